"""The protocol that `torchgraft.testing.protocol` checks: drivers that keep to it pass, and each fault is found."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from faulty_drivers import FAULTS, Sound
from numpy_driver import NumpyDriver

from torchgraft import Driver
from torchgraft.testing import table
from torchgraft.testing.protocol import DeviceProtocol, DriverProtocol


@pytest.fixture(scope="module")
def driver() -> Driver:
    return NumpyDriver(unified=True)


class TestNumpyDriver(DriverProtocol):
    """A driver in Python that has done its work when a call returns."""


class TestDevice(DeviceProtocol):
    """Whichever device is under test."""


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """For each class of faulty_drivers.py, the checks that failed on it."""
    report = tmp_path_factory.mktemp("faults") / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
    done = subprocess.run(
        [*command, "faulty_drivers.py"], cwd=Path(__file__).parent, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout[-5000:] + done.stderr[-5000:]
    failed: dict[str, set[str]] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        fault = case.attrib["classname"].rpartition(".")[2].removeprefix("Test")
        failed.setdefault(fault, set())
        if case.find("failure") is not None or case.find("error") is not None:
            failed[fault].add(case.attrib["name"].partition("[")[0].removeprefix("test_"))
    return failed


class TestFaults:
    """Drivers with one fault each: the check that is there for it fails, and no other kind of thing happens."""

    def test_every_fault_was_tried(self, failed: dict[str, set[str]]) -> None:
        assert set(failed) == {fault.__name__ for fault in FAULTS} | {"Sound"}

    def test_without_a_fault_nothing_fails(self, failed: dict[str, set[str]]) -> None:
        assert failed["Sound"] == set()

    @pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
    def test_the_fault_is_found(self, failed: dict[str, set[str]], fault: type[Sound]) -> None:
        assert fault.found_by
        assert set(fault.found_by) <= failed[fault.__name__]


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_the_structures_are_those_of_c(tmp_path: Path) -> None:
    """`torchgraft.testing.table` reads the header; a compiler is asked whether it understood it."""
    structures = {
        "tg_device_properties": table.Properties,
        "tg_arg": table.Argument,
        "tg_launch": table.Launch,
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
