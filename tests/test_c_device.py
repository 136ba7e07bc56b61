"""The device whose kernels are C++: the driver in C that `torchgraft new` writes, on the host's cores."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import c_driver
import pytest
from conftest import Script
from faulty_c_drivers import FAULTS

from torchgraft.codegen.dialects.cxx import Cxx
from torchgraft.driver import CompileError, InvalidArgument, SharedLibrary
from torchgraft.driver_table import TableDriver, driver_table

TESTS = Path(__file__).parent
WITHOUT_AUTOLOAD = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}


@pytest.fixture(scope="module")
def driver() -> TableDriver:
    driver = TableDriver.load(c_driver.library())
    assert driver.device_count() == 1
    return driver


def source(name: str, body: str) -> str:
    """A kernel as the dialect "c++" has it, of one argument and without loops."""
    arguments = "void* const* arguments, const unsigned long long*, unsigned long long begin, unsigned long long end"
    return f'extern "C" void {name}({arguments}) {{ {body} }}'


def test_what_is_registered_can_be_loaded_too() -> None:
    """A `SharedLibrary`, whose symbol and dialect count."""
    language = Cxx()
    table = driver_table(SharedLibrary(c_driver.library(), kernel_dialect=language))
    assert table.name == driver_table(c_driver.library()).name
    assert TableDriver(table).kernel_dialect is language
    assert TableDriver.load(c_driver.library()).kernel_dialect is None
    with pytest.raises(AttributeError, match="no_such_symbol"):
        driver_table(SharedLibrary(c_driver.library(), "no_such_symbol"))
    with pytest.raises(AttributeError, match="no_such_symbol"):
        driver_table(c_driver.library(), "no_such_symbol")


class TestTheCompiler:
    def test_its_version_and_the_cpu_are_in_the_key_of_kernels(self, driver: TableDriver) -> None:
        version = driver.device_properties(0).driver_version
        compiler = os.environ.get("CXX", "c++").split()
        said = subprocess.run([*compiler, "--version"], capture_output=True, text=True, check=True).stdout
        assert said.splitlines()[0] in version
        assert "features " in version

    def test_options_are_words_and_no_shell_sees_them(self, driver: TableDriver, tmp_path: Path) -> None:
        with pytest.raises(CompileError):
            driver.module_compile(0, source("f", ""), f"-DA=1; touch {tmp_path}/made #$(touch {tmp_path}/too)")
        assert not list(tmp_path.iterdir())

    def test_a_log_is_text_whatever_the_source_has(self, driver: TableDriver) -> None:
        with pytest.raises(CompileError, match=r"error:\s+#error"):
            driver.module_compile(0, "#error \udcff ü".encode("utf-8", "surrogatepass").decode("latin-1"), "")

    def test_a_name_that_nobody_defines(self, driver: TableDriver) -> None:
        """It links, and cannot be loaded."""
        with pytest.raises(CompileError, match="undefined symbol: elsewhere"):
            driver.module_compile(0, 'extern "C" void elsewhere();' + source("f", "elsewhere();"), "")

    def test_nothing_is_left_behind(self, driver: TableDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TMPDIR", str(tmp_path))
        driver.module_destroy(driver.module_compile(0, source("f", ""), ""))
        with pytest.raises(CompileError):
            driver.module_compile(0, "no program", "")
        assert not list(tmp_path.iterdir())

    def test_without_one_ops_run_on_the_cpu(self, script: Script) -> None:
        script(
            """
            import c_driver, torch, torchgraft

            torchgraft.register("cxx", [torchgraft.SharedLibrary(c_driver.library())])
            assert "no C++ compiler" in torch.cxx.get_device_properties().driver_version
            torchgraft.fallback.set_mode("silent")
            assert (torch.ones(3, device="cxx") + 1).sum().item() == 6
            """,
            CXX="nonesuch++",
        )


class TestTheLoader:
    def test_a_kernel_is_the_modules_own(self, driver: TableDriver) -> None:
        """A library also finds the names of those that it needs."""
        module = driver.module_compile(0, source("f", ""), "")
        with pytest.raises(InvalidArgument, match="no kernel malloc"):
            driver.kernel_create(module, "malloc")
        driver.module_destroy(module)

    def test_its_own_functions_come_first(self, driver: TableDriver) -> None:
        """A kernel may be called like a function of the C library."""
        module = driver.module_compile(0, source("exp", "**(int**)arguments[0] = 7;"), "")
        kernel, address = driver.kernel_create(module, "exp"), driver.allocate(0, 4)
        stream = driver.stream_create(0, 0)
        driver.launch(0, stream, kernel, (1,), (1,), [address])
        assert ctypes.string_at(address, 4) == b"\7\0\0\0"

    @pytest.mark.parametrize("size", [0, 10, 64, 0.5, -1], ids=str)
    def test_a_binary_that_is_cut_off(self, driver: TableDriver, size: float) -> None:
        """The system's loader would die of it."""
        module = driver.module_compile(0, source("f", ""), "")
        binary = driver.module_binary(module)
        driver.module_destroy(module)
        with pytest.raises(InvalidArgument, match="no shared library"):
            driver.module_load(0, binary[: int(size * len(binary)) if isinstance(size, float) else size])


CLANG = pytest.mark.skipif(shutil.which("clang++") is None, reason="clang is not installed (apt-get install clang)")


@pytest.mark.quick(compiler="c++")
@pytest.mark.parametrize("compiler", ["c++", pytest.param("clang++", marks=CLANG)])
def test_what_it_computes(script: Script, compiler: str) -> None:
    """Natively, in the dtypes that matter, beside the CPU; kernels of every kind."""
    script(
        """
        import c_driver, torch, torchgraft
        import torch.nn.functional as F

        torchgraft.register("cxx", [torchgraft.SharedLibrary(c_driver.library())])
        torchgraft.fallback.set_mode("error")
        torch.manual_seed(0)

        real = [
            torch.exp, torch.tanh, torch.erf, lambda x: x.sum(1), lambda x: x.amax(0), lambda x: F.softmax(x, -1),
            lambda x: x.cumsum(0), lambda x: F.layer_norm(x, x.shape[-1:]), lambda x: x.sort(-1).values,
            lambda x: F.max_pool2d(x.view(1, 1, *x.shape), 3),
        ]
        numbers = [
            lambda x: x + x.t()[:1, :1], lambda x: x * 3 - 1, lambda x: x.t().contiguous(), lambda x: x.sum(),
            lambda x: torch.where(x != 0, x, x + 1), lambda x: torch.cat([x, x[:3]]),
            lambda x: x[torch.arange(5, 0, -1)], lambda x: x @ x.t().contiguous(),
        ]
        complex_ = [torch.exp, torch.angle, lambda x: x[:9].prod(0), lambda x: x[:9].cumprod(0),
                    lambda x: x.logcumsumexp(0), *numbers]
        functions = {torch.float32: real + numbers, torch.float16: real + numbers, torch.bfloat16: real + numbers,
                     torch.int64: numbers, torch.complex64: complex_,
                     torch.bool: [lambda x: ~x, lambda x: x.any(0), lambda x: x.nonzero(), lambda x: x.sum()]}
        for dtype, each in functions.items():
            x = (torch.randn(37, 65, dtype=torch.complex64 if dtype.is_complex else torch.float32) * 3).to(dtype)
            rtol, atol = (1.6e-2, 1e-1) if dtype in (torch.float16, torch.bfloat16) else (1e-5, 1e-4)
            for function in each:
                torch.testing.assert_close(function(x.to("cxx")).cpu(), function(x), rtol=rtol, atol=atol)
        assert torchgraft.fallback_report().calls == 0
    """,
        timeout=600,
        CXX=compiler,
    )


@pytest.mark.thorough
def test_a_model_trains_on_it(script: Script) -> None:
    script(
        """
        import c_driver, torch, torchgraft

        torchgraft.register("cxx", [torchgraft.SharedLibrary(c_driver.library())])
        torchgraft.fallback.set_mode("error")

        def train(device):
            torch.manual_seed(0)
            x, y = torch.randn(8, 3, 12, 12).to(device), torch.randint(4, (8,)).to(device)
            layers = torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.MaxPool2d(2)
            model = torch.nn.Sequential(*layers, torch.nn.Flatten(), torch.nn.Linear(200, 4)).to(device)
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
            losses = []
            for _ in range(6):
                optimizer.zero_grad()
                loss = torch.nn.functional.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            return losses

        on_device, on_cpu = train("cxx"), train("cpu")
        assert on_cpu[-1] < on_cpu[0] / 2
        torch.testing.assert_close(on_device, on_cpu, rtol=1e-3, atol=1e-4)
    """,
        timeout=600,
    )


def failing_checks(report: Path) -> dict[str, set[str]]:
    """For each class of faulty_c_drivers.py, the checks that failed."""
    failed: dict[str, set[str]] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        fault = case.attrib["classname"].rpartition(".")[2].removeprefix("Test")
        failed.setdefault(fault, set())
        if case.find("failure") is not None:
            failed[fault].add(case.attrib["name"].partition("[")[0].removeprefix("test_"))
    return failed


def run_faulty(*options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options, "faulty_c_drivers.py"]
    env = {**WITHOUT_AUTOLOAD, **environment}
    return subprocess.run(command, cwd=TESTS, env=env, capture_output=True, text=True, timeout=600)


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    report = tmp_path_factory.mktemp("faults") / "report.xml"
    done = run_faulty("-q", f"--junitxml={report}")
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout[-5000:] + done.stderr[-5000:]
    return failing_checks(report)


@pytest.mark.thorough
class TestAnAuthorsMistakes:
    """Each is found by a check of the protocol that is there for it."""

    @pytest.mark.parametrize("fault", [name for name, fault in FAULTS.items() if not fault.fatal])
    def test_it_is_found(self, failed: dict[str, set[str]], fault: str) -> None:
        assert failed[fault] & set(FAULTS[fault].found_by)

    @pytest.mark.thorough
    @pytest.mark.parametrize("fault", [name for name, fault in FAULTS.items() if fault.fatal])
    def test_what_ends_the_process_is_found(self, fault: str) -> None:
        done = run_faulty("-v", TORCHGRAFT_TEST_FAULT=fault)
        assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout[-3000:] + done.stderr[-3000:]
        failures = [line for line in done.stdout.splitlines() if line.startswith("FAILED")]
        assert any(f"::test_{check}" in line for line in failures for check in FAULTS[fault].found_by), failures
