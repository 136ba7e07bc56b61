"""PoCL's machine code, called without PoCL: for which releases, with what it is given, and when it is left alone."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from ctypes import c_float, c_int
from pathlib import Path

import pytest
from driver_table import Driver, DriverError, floats, needs_code, pocl_driver, run_program

from torchgraft_opencl import diagnosis

ROOT = Path(__file__).parents[2]
CSRC = ROOT / "opencl/csrc"

# What each release gives a work-group (include/pocl_context.h of its sources).
COMMON = "uint64_t groups[3], offset[3], local[3]; unsigned char* printed; uint32_t* printed_bytes; uint32_t capacity;"
LATER = f"{COMMON} unsigned char* variables; uint32_t dims;"
CONTEXTS = {
    "3.1": f"{COMMON} uint32_t dims;",
    "4.0": LATER,
    "5.0": LATER,
    "6.0": LATER,
    "7.0": f"{LATER} uint32_t failed;",
    "7.1": f"{LATER} uint32_t failed;",
    "7.2": f"{LATER} uint32_t failed;",
}
# A work-group function as PoCL compiles one: it notes all it was given. The last of the groups fails if it is to.
PROGRAM = """
#include <cstdio>
#include <cstring>
#include "pocl_binary.h"
#include "work_group.h"
struct Given { CONTEXT };
static bool fails = false;
static void group(const void* const* arguments, void* context, size_t x, size_t y, size_t z) {
  Given& given = *static_cast<Given*>(context);
  long* const out = *static_cast<long* const*>(arguments[0]) + ((z * 3 + y) * 5 + x) * 8;
  const long numbers[8] = {static_cast<long>(given.groups[0] * 100 + given.groups[1] * 10 + given.groups[2]),
                           static_cast<long>(given.local[0] * 100 + given.local[1] * 10 + given.local[2]),
                           static_cast<long>(given.offset[0] + given.offset[1] + given.offset[2]),
                           given.dims, given.capacity, given.printed != nullptr && *given.printed_bytes == 0,
                           *static_cast<const short*>(arguments[1]), static_cast<long>(x + 10 * y + 100 * z)};
  std::memcpy(out, numbers, sizeof numbers);
  if (fails && x == 4 && z == 1) FAIL;
}
int main() {
  static long out[2 * 3 * 5 * 8];
  tg_arg arguments[2] = {};
  arguments[0].is_pointer = 1, arguments[0].value.pointer = out;
  const short number = -7;
  arguments[1].size = sizeof number, std::memcpy(arguments[1].value.bytes, &number, sizeof number);
  tg_launch launch{};
  launch.dims = 3, launch.args = arguments, launch.arg_count = 2;
  const size_t groups[3] = {5, 3, 2}, local[3] = {4, 1, 6};
  std::memcpy(launch.groups, groups, sizeof groups), std::memcpy(launch.local, local, sizeof local);
  std::printf("%d", ocl::run_groups(group, launch, nullptr, false));
  fails = true;
  std::printf(" %d\\n", ocl::run_groups(group, launch, nullptr, false));
  for (size_t i = 0; i < 30; ++i, std::printf("\\n"))
    for (size_t k = 0; k < 8; ++k) std::printf("%ld ", out[i * 8 + k]);
}
"""


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The parts of the driver that know PoCL's insides, compiled for programs of their own."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("needs g++")
    folder = tmp_path_factory.mktemp("objects")
    command = [compiler, "-std=c++20", "-O1", "-c", f"-I{CSRC}", f"-I{ROOT / 'torchgraft/include'}"]
    subprocess.run([*command, *(CSRC / "cpu" / f"{name}.cpp" for name in PARTS)], cwd=folder, check=True)
    return [str(folder / f"{name}.o") for name in PARTS]


PARTS = ("pocl_binary", "thread_team", "work_group")


def run_cxx(objects: list[str], program: str, folder: Path) -> str:
    (folder / "program.cpp").write_text(program)
    includes = [f"-I{folder}" for folder in (CSRC, CSRC / "cpu", ROOT / "torchgraft/include")]
    command = ["g++", "-std=c++20", *includes, "program.cpp", *objects]
    subprocess.run([*command, "-o", "program", "-ldl", "-lpthread"], cwd=folder, check=True)
    return subprocess.run([folder / "program"], check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("release", ["3.1", "6.0", "7.1"])
def test_what_a_group_is_given(objects: list[str], release: str, tmp_path: Path) -> None:
    """By the layouts that releases have; others have the same as one of these."""
    context = CONTEXTS[release]
    reports = "failed" in context
    program = PROGRAM.replace("CONTEXT", context).replace("FAIL", "given.failed = 1" if reports else "(void)0")
    ended, *lines = run_cxx(objects, program, tmp_path).splitlines()
    assert ended == ("1 0" if reports else "1 1")
    places = [x + 10 * y + 100 * z for z in range(2) for y in range(3) for x in range(5)]
    assert [[int(word) for word in line.split()] for line in lines] == [
        [532, 416, 0, 3, 0, 1, -7, place] for place in places
    ]


RELEASES = {
    "OpenCL 3.0 PoCL 3.1+debian  Linux, None+Asserts, RELOC, SPIR, LLVM 15.0.6, SLEEF": "9",
    "OpenCL 3.0 PoCL 4.0  Linux, Release": "11",
    "OpenCL 3.0 PoCL 5.0+debian  Linux, None+Asserts": "11",
    "OpenCL 3.0 PoCL 6.0+debian  Linux, None+Asserts": "11",
    "OpenCL 3.0 PoCL 7.0  Linux, Release": "11",
    "OpenCL 3.0 PoCL 7.1+debian  Linux, None+Asserts": "11",
    "OpenCL 3.0 PoCL 7.2": "12",
    # Not known, not releases, not PoCL.
    "OpenCL 3.0 PoCL 3.0  Linux": "",
    "OpenCL 3.0 PoCL 6.1  Linux": "",
    "OpenCL 3.0 PoCL 7.10  Linux": "",
    "OpenCL 3.0 PoCL 7.2-pre main-0-g5066640  Linux": "",
    "OpenCL 3.0 PoCL 7.2.1  Linux": "",
    "OpenCL 3.0 PoCL 8.0  Linux": "",
    "OpenCL 3.0 PoCL": "",
    "OpenCL 3.0 PoCL x.y": "",
    "OpenCL 3.0 ": "",
}


def test_releases_and_binaries(objects: list[str], tmp_path: Path) -> None:
    """Those whose sources were read are known, each with the number of its binaries; anything else is nothing."""
    program = f"""
    #include <cstdio>
    #include <cstring>
    #include "pocl_binary.h"
    static ocl::Binary binary_with(uint32_t version, uint64_t flags, uint64_t variables, const char* text) {{
      ocl::Binary binary(84);
      std::memcpy(binary.data(), "poclbin", 8);
      std::memcpy(&binary[16], &version, 4), std::memcpy(&binary[24], &flags, 8);
      std::memset(&binary[36], 'A', 40), std::memcpy(&binary[76], &variables, 8);
      binary.insert(binary.end(), text, text + std::strlen(text));
      return binary;
    }}
    int main() {{
      for (const char* text : {{{", ".join(f'"{text}"' for text in RELEASES)}}}) {{
        const ocl::PoclRelease* release = ocl::find_pocl_release(text);
        std::printf("%s\\n", release == nullptr ? "" : std::to_string(release->binary_version).c_str());
      }}
      const ocl::PoclRelease six = *ocl::find_pocl_release("PoCL 6.0");
      const auto folder = [&](const ocl::Binary& binary) {{ return ocl::code_folder(binary, six); }};
      const uint64_t kind = uint64_t{{4}} << 32;
      std::printf("%s\\n", folder(binary_with(11, kind | 2, 0, "")).c_str());
      std::printf("<%s%s%s%s>\\n", folder(binary_with(9, kind, 0, "")).c_str(),
                  folder(binary_with(12, kind, 0, "")).c_str(),
                  folder(binary_with(11, kind | 1, 0, "")).c_str(), folder(ocl::Binary(20, 'p')).c_str());
      std::printf("%d%d%d ", ocl::has_variables(binary_with(11, kind | 2, 8, "")),
                  ocl::has_variables(binary_with(11, kind | 2, 0, "")),
                  ocl::has_variables(binary_with(9, kind, 99, "")));
      std::printf("%d%d%d\\n", ocl::may_print(binary_with(9, 0, 0, "a__pocl_printf_format_full")),
                  ocl::may_print(binary_with(11, 0, 0, "pocl_printf_alloc_stub")),
                  ocl::may_print(binary_with(11, 0, 0, "_printf_buffer_capacity__const.__pocl_printf_float_libc.str")));
      // Records of kernels: the name behind its length, the number of arguments, of arrays in local memory.
      const auto record = [](const std::string& name, uint32_t arguments, uint32_t arrays) {{
        const auto length = static_cast<uint32_t>(name.size());
        const auto bytes = [](const uint32_t* word) {{ return std::string(reinterpret_cast<const char*>(word), 4); }};
        return bytes(&length) + name + bytes(&arguments) + bytes(&arrays);
      }};
      const std::string both = record("sums", 3, 2) + record("add", 2, 0);
      const ocl::Binary records(both.begin(), both.end()), cut(both.begin(), both.end() - 4);
      std::printf("%d%d%d%d%d\\n", ocl::may_have_local_arrays(records, "sums", 3),
                  ocl::may_have_local_arrays(records, "add", 2), ocl::may_have_local_arrays(records, "add", 3),
                  ocl::may_have_local_arrays(records, "other", 2), ocl::may_have_local_arrays(cut, "add", 2));
    }}
    """
    *numbers, folder, no_folders, said, local = run_cxx(objects, program, tmp_path).splitlines()
    assert dict(zip(RELEASES, numbers, strict=True)) == RELEASES
    assert folder == f"/{'A' * 40}/"
    assert no_folders == "<>"
    assert said == "100 110"
    assert local == "10111", "what is not known to have none may have some"


# ---- with the PoCL that is here ----


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Driver:
    return pocl_driver(tmp_path_factory.mktemp("drivers"))


def way(driver: Driver) -> list[str]:
    driver.library.torchgraft_opencl_small_launches.restype = ctypes.c_char_p
    for line in driver.library.torchgraft_opencl_small_launches().decode().splitlines():
        name, *rest = line.split("\t")
        if name.encode() == driver.properties().name:
            return list(rest)
    raise AssertionError


def check_launches(driver: Driver) -> None:
    """Many small ones, some of them large enough for a team, interleaved with those of the workers."""
    kernel = driver.kernel(
        "__kernel void advance(__global float* x, float f, float m) {"
        "  x[get_global_id(0)] = x[get_global_id(0)] * f + m; }",
        "advance",
    )
    with driver.new_stream() as stream, driver.new_block(stream, b"\0", 4096) as block:
        expected = 0.0
        for i in range(60):
            groups, nbytes = (64, 1 << 19) if i % 3 else (64, 0 if i % 2 else 4096)
            driver.launch(stream, kernel, [groups], [16], block, c_float(0.5), c_float(i), nbytes=nbytes)
            expected = expected * 0.5 + i
            if i % 4 == 0:
                driver.call("stream_synchronize", 0, stream)
        assert floats(driver.read(stream, block, 4096)) == pytest.approx([expected] * 1024, rel=1e-6)


@needs_code
def test_known_releases_are_called(driver: Driver) -> None:
    if "POCL_DEVICES" in os.environ:
        pytest.skip("POCL_DEVICES is set")
    version = driver.properties().driver_version.decode()
    assert any(f"PoCL {known}" in version for known in CONTEXTS), f"a release that the driver does not know: {version}"
    assert way(driver) == ["direct", ""]
    check_launches(driver)


@needs_code
def test_a_wrong_result_turns_it_off(driver: Driver, tmp_path: Path) -> None:
    """For the process, and what is launched is right."""
    other = Driver(tmp_path)
    other.fail("direct_calls")
    try:
        check_launches(other)
        assert way(other) == ["device", "a kernel that was called directly gave other results than by PoCL"]
    finally:
        other.fail("")
    assert way(other)[0] == "device"
    check_launches(other)


@pytest.mark.usefixtures("driver")
def test_without_the_second_device_workers_run_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    run_program(
        """
        from pathlib import Path
        from driver_table import Driver
        from test_direct_calls import check_launches, way
        driver = Driver(Path(), copy=False)
        assert way(driver) == ["workers", ""], way(driver)
        check_launches(driver)
        """,
        POCL_DEVICES="pthread",
    )


@needs_code
@pytest.mark.usefixtures("driver")
def test_beside_another_platform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system's loader sorts platforms by their devices, so that it opens those of PoCL before it tells of them."""
    vendors = Path(os.environ.get("OCL_ICD_VENDORS") or "/etc/OpenCL/vendors")
    if shutil.which("gcc") is None or not vendors.is_dir() or os.environ.get("TORCHGRAFT_OPENCL_LIBRARY"):
        pytest.skip("needs gcc and implementations that files name")
    from test_implementations import SOURCE

    folder = tmp_path / "vendors"
    shutil.copytree(vendors, folder)
    (tmp_path / "other.c").write_text(SOURCE)
    command = ["gcc", "-shared", "-fPIC", "-w", '-DNAME="other"', "-DDEVICES=0", "other.c", "-o", "libother.so"]
    subprocess.run(command, cwd=tmp_path, check=True)
    (folder / "other.icd").write_text(str(tmp_path / "libother.so"))
    monkeypatch.delenv("POCL_DEVICES", raising=False)
    run_program(
        """
        from pathlib import Path
        from driver_table import Driver
        from test_direct_calls import way
        driver = Driver(Path(), copy=False)
        assert way(driver) != ["workers", ""], way(driver)
        """,
        OCL_ICD_VENDORS=str(folder),
    )


def test_variables_of_a_program_are_one(driver: Driver) -> None:
    """Each of PoCL's devices has its own: such a kernel is run by one of them, small or not."""
    source = "__global int count = 3; __kernel void more(__global int* out) { out[get_global_id(0)] = count++; }"
    try:
        module, _ = driver.compile(source, "-cl-std=CL3.0")
    except DriverError:
        pytest.skip("this OpenCL has no variables of programs")
    kernel = driver.kernel_of(module, "more")
    with driver.new_stream() as stream, driver.new_block(stream, b"\0", 64) as block:
        for i in range(24):
            driver.launch(stream, kernel, [1], [1], block + 4 * (i % 2), nbytes=0 if i % 3 == 0 else 64)
            driver.call("stream_synchronize", 0, stream)
            assert int.from_bytes(driver.read(stream, block + 4 * (i % 2), 4), "little") == 3 + i


def test_local_memory_is_each_group_s_own(driver: Driver) -> None:
    """Only PoCL knows where it is; some releases do not even tell that there is some."""
    source = """
    __kernel void turn(__global float* x) {
      __local float all[16];
      __local float more;
      const int i = get_local_id(0);
      all[i] = x[get_global_id(0)];
      if (i == 0) more = 1;
      barrier(CLK_LOCAL_MEM_FENCE);
      x[get_global_id(0)] = all[15 - i] + more;
    }"""
    kernel = driver.kernel(source, "turn")
    with driver.new_stream() as stream, driver.new_block(stream, b"\0", 4096) as block:
        for i in range(24):
            driver.launch(stream, kernel, [64], [16], block, nbytes=0 if i % 3 == 0 else 4096)
            if i % 4 == 0:
                driver.call("stream_synchronize", 0, stream)
        assert floats(driver.read(stream, block, 4096)) == [24.0] * 1024


@pytest.fixture
def said(driver: Driver, capfd: pytest.CaptureFixture[str]) -> Iterator[list[str]]:
    words: list[str] = []
    yield words
    assert sorted(capfd.readouterr().out.split()) == sorted(words)


def test_what_kernels_print_is_all_there(driver: Driver, said: list[str]) -> None:
    """However much it is, and whether or not a launch before has printed anything."""
    kernel = driver.kernel(
        "__kernel void say(int i, int n) {"
        '  for (int k = 0; k < n; ++k) printf("<%d:%d:%d>\\n", i, k, (int)get_group_id(0)); }',
        "say",
    )
    with driver.new_stream() as stream:
        for i in range(8):
            count = 0 if i < 4 else 40
            driver.launch(stream, kernel, [3], [1], c_int(i), c_int(count), nbytes=64)
            driver.call("stream_synchronize", 0, stream)
            said += [f"<{i}:{k}:{group}>" for k in range(count) for group in range(3)]


@needs_code
def test_doctor_says_which_way(driver: Driver) -> None:
    named = {finding.subject: finding for finding in diagnosis.small_launches(driver.library)}
    finding = named[f"small launches of {driver.properties().name.decode()}"]
    assert finding.state == "ok"
    assert "machine code" in finding.text
