"""The pytest plug-in: the protocol's checks in a process beside pytest's, and PyTorch's operator database as tests of a
device, one for each op and dtype.

    pytest --pyargs torchgraft.testing.suite --torchgraft-device foo --torchgraft-ops '^(add|mul)$'

Each test is `test_op[add-float32]`. It runs in a process beside pytest's, so that an op that crashes or hangs fails its
test and the next one runs; so do the checks of `torchgraft.testing.protocol`. Declared exceptions are expected
failures, and must fail: one that passes is an error.

This module stands outside the package, and imports neither torch nor torchgraft until a test of it is collected: pytest
loads it wherever torchgraft is installed.
"""

from __future__ import annotations

import argparse
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from torchgraft.testing.conformance.exceptions import Declared
    from torchgraft.testing.conformance.runner import Options, Worker
    from torchgraft.testing.protocol.isolation import Isolation

_OPTIONS = {
    "device": ("the device to test, such as 'foo' or 'foo:1'", ""),
    "import": ("modules to import first, with commas, for a backend that torch does not load by itself", ""),
    "ops": ("a regular expression that is searched for in the names of ops", ""),
    "dtypes": ("names of dtypes, with commas (default: those of the published figures)", ""),
    "samples": ("how many of the database's samples at most for each check (default: all)", "0"),
    "fallback": ("'allow' lets ops run on the CPU, 'error' forbids it", "allow"),
    "exceptions": ("a list of declared exceptions (TOML)", ""),
    "timeout": ("seconds for one test", "600"),
    "isolate": ("'no' runs the checks of the protocol in pytest's own process, as --pdb does", "yes"),
}


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("torchgraft", "torchgraft: PyTorch's operator database on a device")
    for name, (text, default) in _OPTIONS.items():
        group.addoption(f"--torchgraft-{name}", metavar=name.upper(), default=None, help=text)
        parser.addini(f"torchgraft_{name}", f"{text}: what --torchgraft-{name} is by default", default=default)
    # What pytest_runtest_protocol starts processes with.
    group.addoption("--torchgraft-serve", default="", help=argparse.SUPPRESS)


def _option(config: pytest.Config, name: str) -> str:
    given = config.getoption(f"--torchgraft-{name}")
    return str(config.getini(f"torchgraft_{name}") if given is None else given)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Gives each case to a test that asks for one."""
    if "torchgraft_case" not in metafunc.fixturenames:
        return
    if not _option(metafunc.config, "device"):
        raise pytest.UsageError("--torchgraft-device (or torchgraft_device in pytest's configuration) names the device")
    import re

    import torch

    from torchgraft.testing.needs import MissingExtraError

    try:
        from torchgraft.testing.conformance.cases import DTYPES, cases, dtype_name
    except MissingExtraError as error:
        raise pytest.UsageError(str(error)) from error

    given = _option(metafunc.config, "dtypes")
    dtypes = [getattr(torch, name) for name in given.split(",")] if given else list(DTYPES)
    wanted = re.compile(_option(metafunc.config, "ops"))
    found = [case for case in cases(dtypes=dtypes) if wanted.search(case.op)]
    if not found:
        raise pytest.UsageError(f"no op's name matches {wanted.pattern!r}")
    ids = [f"{case.op}-{dtype_name(case.dtype)}" for case in found]
    metafunc.parametrize("torchgraft_case", [str(case) for case in found], ids=ids)


# ---- The protocol's checks, each in a process that it may crash ----

_isolation: pytest.StashKey[Isolation] = pytest.StashKey()


def _served(config: pytest.Config) -> list[int]:
    """The descriptors of a process that runs checks for another: requests, answers, its log. Elsewhere nothing."""
    return [int(each) for each in str(config.getoption("--torchgraft-serve")).split(",") if each]


def _is_isolated(item: pytest.Item | None) -> bool:
    if not getattr(getattr(item, "cls", None), "torchgraft_isolated", False):
        return False
    assert item is not None
    config = item.config
    return not (_served(config) or config.getoption("usepdb") or _option(config, "isolate") == "no")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if served := _served(config):
        from torchgraft.testing.protocol import isolation

        isolation.take_options(config, served[0])


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    if not (served := _served(session.config)):
        return None
    from torchgraft.testing.protocol import isolation

    isolation.serve(session, *served)
    return True


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    if not _is_isolated(item):
        return None
    from torchgraft.testing.protocol.isolation import Isolation

    if _isolation not in item.config.stash:
        item.config.stash[_isolation] = Isolation(item.config, float(_option(item.config, "timeout")))
    isolation = item.config.stash[_isolation]
    isolation.run(item, nextitem if _is_isolated(nextitem) else None)
    if nextitem is None or nextitem.path != item.path:
        isolation.close()
    # What tests before this one have set up here and the next does not need; pytest does it within its own protocol.
    item.session._setupstate.teardown_exact(nextitem)
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Adds to a failure the rule that the check is of."""
    report = yield
    if report.failed and getattr(getattr(item, "cls", None), "torchgraft_isolated", False):
        from torchgraft.testing.protocol.isolation import RULE
        from torchgraft.testing.protocol.rules import rule_of

        if quoted := rule_of(getattr(item, "function", None)):
            report.sections.append((RULE, quoted))
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    if isolation := session.config.stash.get(_isolation, None):
        isolation.close()


# ---- The operator database ----


class Cases:
    """Runs cases in a process of their own, and in another one after a crash."""

    def __init__(self, options: Options, declared: list[Declared]) -> None:
        self.options, self.declared = options, declared
        self.worker: Worker | None = None

    def check(self, case: str) -> None:
        """Runs a case; its failures are the test's.

        Args:
            case: its name, as in "add[float32]".
        """
        __tracebackhide__ = True
        from torchgraft.testing.conformance import report
        from torchgraft.testing.conformance.runner import Worker

        self.worker = self.worker or Worker(self.options)
        record = self.worker.ask(case)
        if record["status"] != "ran":
            self.close()
        if not report.counts(record):
            pytest.skip("torch's CPU cannot run it")
        lines, stale = report.unexpected([record], self.declared)
        if lines:
            pytest.fail("\n".join(lines), pytrace=False)
        if stale:
            reasons = "; ".join(f"{declared.check} ({declared.reason})" for declared in stale)
            pytest.fail(f"{case} is declared to fail, but passes: {reasons}", pytrace=False)
        failed = report.failures(record)
        if expected := [d.reason for d in self.declared if any(d.covers(case, check) for check in failed)]:
            pytest.xfail("; ".join(expected))

    def close(self) -> None:
        """Ends the process."""
        if self.worker is not None:
            self.worker.close()
            self.worker = None


@pytest.fixture(scope="session")
def torchgraft_cases(pytestconfig: pytest.Config) -> Iterator[Cases]:
    """The session's process for cases."""
    from torchgraft.testing.conformance.exceptions import read_exceptions
    from torchgraft.testing.conformance.runner import Options

    def option(name: str) -> Any:
        return _option(pytestconfig, name)

    if option("fallback") not in ("allow", "error"):
        raise pytest.UsageError(f"--torchgraft-fallback is 'allow' or 'error', not {option('fallback')!r}")
    options = Options(
        device=option("device"),
        mode="silent" if option("fallback") == "allow" else "error",
        samples=int(option("samples")) or None,
        timeout=float(option("timeout")),
        imports=tuple(filter(None, option("import").split(","))),
    )
    exceptions = Path(pytestconfig.rootpath, option("exceptions")) if option("exceptions") else None
    cases = Cases(options, read_exceptions(exceptions) if exceptions else [])
    yield cases
    cases.close()
