"""Implementations that are installed and show no device: what `torchgraft doctor` and the error say of them.

They are made up: a library for ICD loaders with a platform of some name, and with no devices or with one that can do
nothing.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from driver_table import Driver, run_program

from torchgraft.diagnosis import Finding
from torchgraft_opencl import diagnosis

# Slots of the ICD extension's table: 0 clGetPlatformIDs, 1 clGetPlatformInfo, 2 clGetDeviceIDs, 3 clGetDeviceInfo.
SOURCE = """
#include <stdint.h>
#include <string.h>
static long nothing(void) { return -30; }
static int answer(const void* value, size_t bytes, size_t size, void* out, size_t* needed) {
  if (needed) *needed = bytes;
  if (out) { if (size < bytes) return -30; memcpy(out, value, bytes); }
  return 0;
}
static int platform_info(void* id, unsigned name, size_t size, void* value, size_t* needed) {
  const char* text = name == 0x0902 ? NAME : name == 0x0901 ? "OpenCL 3.0 " : name == 0x0904 ? "cl_khr_icd" : "SOME";
  return answer(text, strlen(text) + 1, size, value, needed);
}
static void* table[256];
static void** platform = table;
static void** device = table;
static int device_ids(void* id, uint64_t type, unsigned n, void** ids, unsigned* count) {
  if (count) *count = DEVICES;
  if (ids && DEVICES) ids[0] = &device;
  return DEVICES ? 0 : -1;
}
static int device_info(void* id, unsigned name, size_t size, void* value, size_t* needed) {
  const uint64_t gpu = 4;
  const unsigned yes = 1;
  if (name == 0x1000) return answer(&gpu, sizeof gpu, size, value, needed);
  /* it is there, and its byte order is the host's */
  if (name == 0x1027 || name == 0x1026) return answer(&yes, sizeof yes, size, value, needed);
  if (name == 0x102B) return answer("Some GPU", 9, size, value, needed);
  return -30;
}
int clIcdGetPlatformIDsKHR(unsigned n, void** ids, unsigned* count) {
  for (int i = 0; i < 256; ++i) table[i] = nothing;
  table[1] = platform_info, table[2] = device_ids, table[3] = device_info;
  if (count) *count = 1;
  if (ids && n) ids[0] = &platform;
  return 0;
}
void* clGetExtensionFunctionAddress(const char* name) {
  return strcmp(name, "clIcdGetPlatformIDsKHR") == 0 ? (void*)clIcdGetPlatformIDsKHR : 0;
}
"""

MakeIcd = Callable[[str, int], None]


@pytest.fixture
def make_icd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeIcd:
    """Makes a folder with the file of an implementation, <name>.icd, and has loaders look there."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")

    def make(name: str, devices: int) -> None:
        folder, source = tmp_path / "vendors", tmp_path / f"{name}.c"
        folder.mkdir(exist_ok=True)
        source.write_text(SOURCE)
        library = tmp_path / f"lib{name}.so"
        macros = [f'-DNAME="{name}"', f"-DDEVICES={devices}"]
        subprocess.run([compiler, "-shared", "-fPIC", "-w", *macros, source, "-o", library], check=True)
        (folder / f"{name}.icd").write_text(f"{library}\n")
        monkeypatch.setenv("OCL_ICD_VENDORS", str(folder))
        monkeypatch.setenv("TORCHGRAFT_OPENCL_LIBRARY", str(folder))  # the system's loader looks once in a process

    return make


def findings(driver: Driver) -> dict[str, Finding]:
    return {finding.subject: finding for finding in diagnosis._journal(driver.library)}


def test_rusticl_without_devices(make_icd: MakeIcd, tmp_path: Path) -> None:
    make_icd("rusticl", 0)
    driver = Driver(tmp_path)
    assert driver.count == 0
    assert "RUSTICL_ENABLE=radeonsi" in driver.count_message
    told = findings(driver)
    assert told["platform rusticl"].state == "note"
    assert "RUSTICL_ENABLE=" in told["platform rusticl"].advice
    assert told["OpenCL devices"].state == "problem"
    assert "RUSTICL_ENABLE=" in told["OpenCL devices"].advice


def test_rusticl_that_does_not_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its file is there: it is installed, and would be told the same."""
    (tmp_path / "rusticl.icd").write_text("libNowhere.so.1\n")
    monkeypatch.setenv("OCL_ICD_VENDORS", str(tmp_path))
    monkeypatch.delenv("TORCHGRAFT_OPENCL_LIBRARY", raising=False)
    program = """
        import sys
        from pathlib import Path
        sys.modules["torch"] = None  # the driver needs none, and importing it takes seconds
        from driver_table import Driver, run_program
        from torchgraft_opencl import diagnosis
        driver = Driver(Path(), copy=False)
        assert driver.count == 0
        assert "RUSTICL_ENABLE=" in driver.count_message, driver.count_message
        (last,) = [finding for finding in diagnosis._journal(driver.library) if finding.state == "problem"]
        assert "RUSTICL_ENABLE=" in last.advice, last
    """
    run_program(program)


def test_others_without_devices(make_icd: MakeIcd, tmp_path: Path) -> None:
    make_icd("Something", 0)
    driver = Driver(tmp_path)
    assert driver.count == 0
    told = findings(driver)
    assert told["platform Something"].text.endswith("devices: 0")
    assert "RUSTICL" not in driver.count_message + "".join(finding.advice for finding in told.values())


@pytest.mark.parametrize("name", ["rusticl", "Something"])
def test_rusticl_without_float64(make_icd: MakeIcd, tmp_path: Path, name: str) -> None:
    make_icd(name, 1)
    driver = Driver(tmp_path)
    assert driver.count == 1
    told = findings(driver)
    assert "float64" not in told["device Some GPU"].text
    assert ("float64 of Some GPU" in told) is (name == "rusticl")
    if name == "rusticl":
        assert "RUSTICL_FEATURES=fp64" in told["float64 of Some GPU"].advice


def test_the_driver_that_fits_is_named(tmp_path: Path) -> None:
    def card(number: int, driver: str) -> None:
        (drivers := tmp_path / "drivers" / driver).mkdir(parents=True)
        (device := tmp_path / "drm" / f"card{number}" / "device").mkdir(parents=True)
        (device / "driver").symlink_to(drivers)

    assert "llvmpipe" in diagnosis.rusticl_advice(tmp_path / "drm")
    card(0, "amdgpu")
    assert diagnosis.rusticl_advice(tmp_path / "drm").startswith("RUSTICL_ENABLE=radeonsi in the environment")
    card(1, "xe")
    assert diagnosis.rusticl_advice(tmp_path / "drm").startswith("RUSTICL_ENABLE=iris,radeonsi in the environment")
