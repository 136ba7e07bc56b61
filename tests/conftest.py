"""What all tests share: the device, random seeds that can be repeated, fallback forbidden where asked, scripts in a
process of their own.

Environment: TORCHGRAFT_TEST_DEVICE ("ocl" by default, "ocl:1", or "npy", "cxx" and "c" for the drivers in
numpy_driver.py, cxx_driver.py and c_driver.py, which need TORCH_DEVICE_BACKEND_AUTOLOAD=0 too), TORCHGRAFT_TEST_SEED
(default: a new one for each run; with CI set, the commit's, so that a clone of it tells what CI will find).
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import textwrap
import threading
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import hypothesis
import numpy
import pytest
import torch
from processes import ForkServer, environment_of, run_in_new_interpreter
from selection import select

import torchgraft
from torchgraft.cli.conformance import part_of_all
from torchgraft.codegen.tuning import changed
from torchgraft.plans.device import device_traits, forget_tuning, kernel_form, set_tuning

TESTS = Path(__file__).parent


def _chosen_seed() -> int:
    told = os.environ.get("TORCHGRAFT_TEST_SEED")
    if told:
        return int(told)
    if "CI" in os.environ and shutil.which("git"):
        commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=TESTS, capture_output=True, text=True, check=False)
        if commit.returncode == 0:
            return int(commit.stdout, 16) % 2**31
    return random.SystemRandom().randrange(2**31)


SEED = _chosen_seed()
os.environ["TORCHGRAFT_TEST_SEED"] = str(SEED)  # for the processes among which pytest-xdist shares the tests
# There are as many processes as cores already; test_compile_ahead.py has helpers.
os.environ.setdefault("TORCHGRAFT_COMPILE_HELPERS", "0")


# How hypothesis tries random calls and programs.
_RANDOM = hypothesis.settings(
    deadline=None,
    database=None,
    suppress_health_check=list(hypothesis.HealthCheck),
    phases=[hypothesis.Phase.generate, hypothesis.Phase.shrink],
)
_REPEATED = "CI" in os.environ


def random_examples(count: int, seed: int = SEED) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Makes a test of hypothesis try so many examples: those of the seed, or with CI set the same as ever."""

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        chosen = hypothesis.settings(_RANDOM, max_examples=count, derandomize=_REPEATED)(test)
        return chosen if _REPEATED else hypothesis.seed(seed)(chosen)

    return decorate


def in_threads(*functions: Callable[[], None]) -> None:
    """Calls each function in a thread of its own, and raises what one of them has raised."""
    started = threading.Barrier(len(functions))
    with ThreadPoolExecutor(len(functions), initializer=started.wait) as pool:
        for done in [pool.submit(function) for function in functions]:
            done.result()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="also the tests that `make test` leaves to `make test-all`")
    parser.addoption("--rest", action="store_true", help="only the tests that `make test` leaves to `make test-all`")
    parser.addoption(
        "--slice",
        type=part_of_all,
        metavar="I/N",
        help="only one of N slices of the tests that are asked for, the I-th (modulo N)",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    select(config, items)


def pytest_report_header() -> str:
    return f"torch {torch.__version__}; TORCHGRAFT_TEST_SEED={SEED}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int) -> None:
    if exitstatus == pytest.ExitCode.TESTS_FAILED:
        terminalreporter.line(f"TORCHGRAFT_TEST_SEED={SEED} repeats this run's random numbers")


@pytest.fixture(scope="session")
def device() -> str:
    """The device under test."""
    name = os.environ.get("TORCHGRAFT_TEST_DEVICE", "ocl")
    if name == "npy":
        from numpy_driver import NumpyDriver

        module = torchgraft.register(name, [NumpyDriver()])
    elif name == "cxx":
        from cxx_driver import CxxDriver

        module = torchgraft.register(name, [CxxDriver()])
    elif name == "c":
        import c_driver

        module = torchgraft.register(name, [torchgraft.SharedLibrary(c_driver.library())])
    else:
        import torchgraft_opencl

        module = torchgraft_opencl.register()  # shows why, should it have failed at import
    module.init()
    module.set_device(torch.device(name).index or 0)
    return name


@pytest.fixture(autouse=True)
def seeded(request: pytest.FixtureRequest) -> int:
    """Seeds every generator, differently for each test, whatever tests run beside it; the value is for its own use."""
    seed = SEED ^ zlib.crc32(request.node.nodeid.encode())
    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)
    return seed


@pytest.fixture(autouse=True)
def _obey_marker(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.node.get_closest_marker("no_fallback") is None:
        yield
    else:
        with torchgraft.fallback("error"):
            yield


@pytest.fixture
def tune(device: str) -> Iterator[Callable[..., None]]:
    """Changes sizes of the device's kernels for the test: `tune("blocks", rows=4)`."""
    index = torch.device(device).index or 0
    yield lambda family, **sizes: set_tuning(index, changed(device_traits(index).tuning, family, **sizes))
    forget_tuning(index)


@pytest.fixture
def no_fallback() -> Iterator[None]:
    """Makes an op that falls back to the CPU an error; `pytestmark = pytest.mark.no_fallback` does so for a file."""
    with torchgraft.fallback("error"):
        yield


@pytest.fixture(params=["cpu", "gpu"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Makes plans with one form of the kernels, whatever the device is."""
    monkeypatch.setenv("TORCHGRAFT_KERNEL_FORM", request.param)
    kernel_form.cache_clear()
    torchgraft.plans.clear()
    yield request.param
    monkeypatch.undo()
    kernel_form.cache_clear()
    torchgraft.plans.clear()


@pytest.fixture
def compiled_afresh(device: str) -> Iterator[None]:
    """For tests of inductor: what was compiled before is forgotten, and nothing is read from the disk or asked of other
    processes."""
    if device == "npy":
        pytest.skip("the device has no compiler")
    import torch._dynamo
    import torch._inductor.config

    from torchgraft.inductor import replay

    torch._dynamo.reset()
    replay.refusals.clear()
    replay.splits.clear()
    with torch._inductor.config.patch(compile_threads=1, fx_graph_cache=False):
        yield


Script = Callable[..., str]


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer]:
    """What forks for scripts."""
    server = ForkServer()
    yield server
    server.close()


@pytest.fixture
def script(fork_server: ForkServer) -> Script:
    """Runs lines of Python in a new process and returns what they print; there no backend is registered by itself.

    A process has one backend, so whatever registers another, or goes wrong on purpose, happens there. `fresh` gives it
    an interpreter that has not imported torch, which costs two seconds; with `autoload` it always has one.
    """

    def run(text: str, autoload: bool = False, fresh: bool = False, timeout: float = 120, **changes: str) -> str:
        runner = run_in_new_interpreter if autoload or fresh else fork_server.run
        status, printed = runner(textwrap.dedent(text), environment_of(autoload, **changes), timeout)
        assert status == 0, f"exit status {status}:\n{printed}"
        return printed

    return run
