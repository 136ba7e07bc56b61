"""The protocol that `torchgraft.testing.protocol` checks: drivers that keep to it pass, and each fault is found."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from cxx_driver import CxxDriver
from faulty_drivers import CORE, FAULTS, AbortsWhenFull
from faulty_operators import OPERATOR_FAULTS, SOUND, SoundOperators
from numpy_driver import NumpyDriver
from operator_driver import OperatorDriver
from sound_driver import Sound

from torchgraft import Driver
from torchgraft import driver_table as table
from torchgraft.codegen.dialects.cxx import Cxx
from torchgraft.driver import DeviceProperties
from torchgraft.testing.protocol import DeviceProtocol, DriverProtocol, OperatorProtocol, TableProtocol
from torchgraft.testing.protocol.isolation import RULE
from torchgraft.testing.protocol.rules import header_text, rule_of


@pytest.fixture(scope="module")
def driver() -> Driver:
    return NumpyDriver(unified=True)


class TestNumpyDriver(DriverProtocol):
    """A driver in Python that has done its work when a call returns."""


class Renamed(Cxx):
    name = "of-its-own"


class WithDialect(CxxDriver):
    kernel_dialect = Renamed()

    def device_properties(self, device: int) -> DeviceProperties:
        return replace(super().device_properties(device), dialect=Renamed.name)


class TestADialectOfItsOwn(DriverProtocol):
    """Which nobody has registered: the checks of a kernel."""

    vars().update({name: None for name in dir(DriverProtocol) if name.startswith("test_") and "a_kernel" not in name})

    @pytest.fixture
    def driver(self) -> Driver:
        return WithDialect()


@pytest.mark.thorough
class TestOperators(OperatorProtocol):
    """A driver in Python that has all operators."""

    @pytest.fixture(scope="class")
    def driver(self) -> Driver:
        return OperatorDriver()


class TestDevice(DeviceProtocol):
    """Whichever device is under test."""


@pytest.mark.parametrize(("protocol", "least"), [(TableProtocol, 50), (OperatorProtocol, 20)])
def test_each_check_quotes_the_header(protocol: type, least: int) -> None:
    checks = {name: getattr(protocol, name) for name in dir(protocol) if name.startswith("test_")}
    assert len(checks) > least
    header = header_text()
    assert {name: rule_of(check) for name, check in checks.items() if rule_of(check) not in header} == {}
    assert [name for name, check in checks.items() if not rule_of(check)] == []


Results = dict[str, dict[str, str]]


def results_of(file: str, which: str, folder: Path) -> Results:
    """For each class of a file of faulty drivers, what each check said; nothing, where it did not fail.

    Args:
        which: "core", or "whole" for all checks.
    """
    report = folder / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "pytest_torchgraft", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, f"--junitxml={report}", file],
        cwd=Path(__file__).parent,
        env={**os.environ, "TORCHGRAFT_TEST_PROTOCOL": which},
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout[-5000:] + done.stderr[-5000:]
    results: Results = {}
    for case in ElementTree.parse(report).iter("testcase"):
        fault = case.attrib["classname"].rpartition(".")[2].removeprefix("Test")
        check = case.attrib["name"].partition("[")[0].removeprefix("test_")
        said = [each.text or "" for kind in ("failure", "error") for each in case.iter(kind)]
        results.setdefault(fault, {}).setdefault(check, "")
        results[fault][check] += "\n".join(said)
    return results


@pytest.fixture(scope="module", params=["core", "whole"])
def results(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Results:
    return results_of("faulty_drivers.py", request.param, tmp_path_factory.mktemp("faults"))


@pytest.fixture(scope="module")
def operator_results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return results_of("faulty_operators.py", "core", tmp_path_factory.mktemp("faults"))


@pytest.mark.thorough
class TestOperatorFaults:
    """The same for drivers with operators, and with a compiler of graphs."""

    def test_without_a_fault_nothing_fails(self, operator_results: Results) -> None:
        assert set(operator_results) == {kind.__name__ for kind in (*SOUND, *OPERATOR_FAULTS)}
        for sound in SOUND:
            assert "".join(operator_results[sound.__name__].values()) == ""

    def test_each_check_finds_a_fault(self) -> None:
        checks = {name.removeprefix("test_") for name in dir(OperatorProtocol) if name.startswith("test_")}
        assert {check for fault in OPERATOR_FAULTS for check in fault.found_by} == checks

    @pytest.mark.parametrize("fault", OPERATOR_FAULTS, ids=lambda fault: fault.__name__)
    def test_the_fault_is_found(self, operator_results: Results, fault: type[SoundOperators]) -> None:
        """By the checks that are there for it, and by no other that was asked."""
        failed = {check for check, said in operator_results[fault.__name__].items() if said}
        assert failed == set(fault.found_by)


@pytest.mark.thorough
@pytest.mark.quick(results="core")
class TestFaults:
    """Drivers with one fault each: the check that is there for it fails, and no other kind of thing happens."""

    def test_every_fault_was_tried(self, results: Results) -> None:
        assert set(results) == {fault.__name__ for fault in FAULTS} | {"Sound"}

    def test_without_a_fault_nothing_fails(self, results: Results) -> None:
        assert "".join(results["Sound"].values()) == ""

    @pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
    def test_the_fault_is_found(self, results: Results, fault: type[Sound]) -> None:
        """By each check that is named for it; threads find what they find by chance, so one of theirs will do."""
        said = results[fault.__name__]
        missing = [check for check in fault.found_by if not said[check]]
        assert [check for check in missing if not check.startswith("threads")] == []
        assert len(missing) < len(fault.found_by)

    @pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault.crashes], ids=lambda fault: fault.__name__)
    def test_a_crash_is_the_failure_of_its_check(self, results: Results, fault: type[Sound]) -> None:
        """It says which rule was broken and where the process was; the other checks have results of their own."""
        (check,) = fault.found_by
        said = results[fault.__name__]
        signal = "SIGABRT" if fault is AbortsWhenFull else "SIGSEGV"
        assert said[check].startswith(f"the process of this check ended: {signal}\n{RULE}: ")
        assert rule_of(getattr(DriverProtocol, f"test_{check}")) in said[check]
        assert "Fatal Python error" in said[check] and "faulty_drivers.py" in said[check]
        assert {each: said[each] for each in CORE} == dict.fromkeys(CORE, "")


@pytest.mark.thorough
def test_a_hang_is_the_failure_of_its_check(tmp_path: Path) -> None:
    (tmp_path / "test_slow.py").write_text("""
import time
class TestSlow:
    torchgraft_isolated = True
    def test_hangs(self): time.sleep(600)
    def test_goes_on(self): pass
    def test_says_no(self, pytestconfig): assert not hasattr(pytestconfig, "workerinput")
def test_here(pytestconfig): assert not hasattr(pytestconfig, "workerinput")
""")
    command = [sys.executable, "-m", "pytest", "-p", "pytest_torchgraft", "-p", "no:cacheprovider"]
    command += ["--torchgraft-timeout", "1", "-rA", "--tb=short"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert "2 failed, 2 passed" in done.stdout, done.stdout + done.stderr
    assert "FAILED test_slow.py::TestSlow::test_hangs - no answer within 1 s" in done.stdout
    assert "FAILED test_slow.py::TestSlow::test_says_no - AssertionError" in done.stdout
    assert "PASSED test_slow.py::test_here" in done.stdout
    command += ["--torchgraft-isolate", "no", "-k", "says_no"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert "1 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_the_structures_are_those_of_c(tmp_path: Path) -> None:
    """`torchgraft.driver_table` reads the header; a compiler is asked whether it understood it."""
    structures = {
        "tg_device_properties": table.Properties,
        "tg_arg": table.Argument,
        "tg_launch": table.Launch,
        "tg_command": table.Command,
        "tg_tensor": table.TensorRecord,
        "tg_attribute": table.AttributeRecord,
        "tg_program_source": table.SourceRecord,
        "tg_program_info": table.ProgramInfo,
        "tg_run": table.Run,
        "tg_driver": table.Table,
    }
    expected, lines = [], []
    for name, structure in structures.items():
        lines.append(f"sizeof({name})")
        expected.append(ctypes.sizeof(structure))
        for field, _ in structure._fields_:  # type: ignore[misc]
            lines += [f"offsetof({name}, {field})", f"sizeof((({name}*)0)->{field})"]
            expected += [getattr(structure, field).offset, getattr(structure, field).size]
    for status in table.Status:
        lines.append("TG_" + status.name)
        expected.append(status.value)
    prints = "\n".join(f'  printf("%ld\\n", (long)({line}));' for line in lines)
    program = f"#include <stdio.h>\n#include <torchgraft/driver.h>\nint main(void) {{\n{prints}\n  return 0;\n}}\n"
    (tmp_path / "print.c").write_text(program)
    include = table.HEADER.parents[1]
    subprocess.run(["cc", "-std=c11", f"-I{include}", "-o", tmp_path / "print", tmp_path / "print.c"], check=True)
    printed = subprocess.run([tmp_path / "print"], check=True, capture_output=True, text=True).stdout
    assert [int(each) for each in printed.split()] == expected
