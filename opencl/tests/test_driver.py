"""The OpenCL driver through its C table, without torch: in every memory model that the device has.

"coarse" treats memory as a discrete GPU's, which the host cannot touch; "buffer" is OpenCL 1.2, which has no addresses.
"""

from __future__ import annotations

import ctypes
import importlib.util
import itertools
import os
import re
import shutil
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from ctypes import c_float, c_uint32
from pathlib import Path

import pytest
from driver_table import (
    BASE_OFFSET_POINTERS,
    COMPILE,
    COMPILER,
    CPU,
    ERROR,
    FUNCTIONS,
    GPU,
    INVALID,
    LIBRARY,
    MODELS,
    NOT_OFFERED,
    NOT_READY,
    OK,
    ON_DEVICE,
    OUT_OF_MEMORY,
    TO_DEVICE,
    TO_HOST,
    UNIFIED_MEMORY,
    UNSUPPORTED,
    Driver,
    DriverError,
    floats,
)

from torchgraft.driver_table import Properties, Table, driver_table

MIB = 1 << 20


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Driver]:
    folder = tmp_path_factory.mktemp("drivers")
    return lambda **environment: Driver(folder, **environment)


@pytest.fixture(scope="module", params=MODELS)
def driver(request: pytest.FixtureRequest, load: Callable[..., Driver]) -> Driver:
    driver = load(TORCHGRAFT_OPENCL_MEMORY=request.param)
    if driver.count == 0:
        pytest.skip(driver.count_message)
    return driver


@pytest.fixture
def stream(driver: Driver) -> Iterator[int]:
    with driver.new_stream() as stream:
        yield stream


def pointers(driver: Driver, *names: str) -> str:
    """The parameters of float pointers; where the device has no addresses an offset follows each."""
    if driver.capabilities & BASE_OFFSET_POINTERS:
        return ", ".join(f"__global float* {name}, ulong {name}_offset" for name in names)
    return ", ".join(f"__global float* {name}" for name in names)


def offsets(driver: Driver, *names: str) -> str:
    if driver.capabilities & BASE_OFFSET_POINTERS:
        return "".join(f"{name} += {name}_offset / 4; " for name in names)
    return ""


@pytest.fixture(scope="module")
def add(driver: Driver) -> int:
    """out[i] = a[i] + b[i] + c"""
    names = ("a", "b", "out")
    source = f"""__kernel void add({pointers(driver, *names)}, float c, uint n) {{
        {offsets(driver, *names)} size_t i = get_global_id(0); if (i < n) out[i] = a[i] + b[i] + c; }}"""
    return driver.kernel(source, "add")


@pytest.fixture(scope="module")
def spin(driver: Driver) -> int:
    """Takes a while: `rounds` dependent steps of one work-item, then out[0] = rounds' last value."""
    source = f"""__kernel void spin({pointers(driver, "out")}, uint rounds) {{
        {offsets(driver, "out")} float x = out[0]; for (uint i = 0; i < rounds; ++i) x = sin(x + 1); out[0] = x; }}"""
    return driver.kernel(source, "spin")


# Devices


def test_table() -> None:
    table = driver_table(LIBRARY)
    assert (table.abi_version, table.struct_size, table.name) == (2, ctypes.sizeof(Table), b"opencl")
    assert all(getattr(table, name) for name, _ in FUNCTIONS)
    assert not any(getattr(table, name) for name in NOT_OFFERED)


@pytest.mark.thorough
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_the_sources_compile_without_a_warning() -> None:
    """With the flags of setup.py; a table's member that nobody thought of is one."""
    folder = LIBRARY.parents[1]
    flags = re.search(r'^FLAGS = "(.+)"$', (folder / "setup.py").read_text(), re.MULTILINE)
    assert flags is not None
    includes = [f"-I{folder.parent / 'torchgraft' / 'include'}", f"-I{folder / 'csrc'}"]
    sources = sorted((folder / "csrc").rglob("*.cpp"))
    done = subprocess.run(
        ["g++", *flags[1].split(), "-Werror", "-fsyntax-only", *includes, *sources], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_properties(driver: Driver) -> None:
    p = driver.properties()
    assert p.kind in (CPU, GPU, 3)
    assert p.capabilities & COMPILER
    assert p.dialect == b"opencl-c"
    assert p.total_memory >= p.max_allocation > 16 * MIB
    assert p.local_memory >= 16 << 10
    assert min(p.compute_units, p.max_work_group_size, p.simd_width) >= 1
    assert p.address_align >= 128
    assert p.address_align & (p.address_align - 1) == 0
    assert p.name
    assert p.vendor
    assert p.platform
    version = p.driver_version.decode()
    assert "OpenCL" in version
    assert p.platform.decode() in version


def test_properties_of_an_older_header(driver: Driver) -> None:
    p = Properties(struct_size=16)
    driver.call("device_properties", 0, ctypes.byref(p))
    assert p.kind == driver.properties().kind
    assert (p.struct_size, p.total_memory, p.name) == (16, 0, b"")


def test_no_such_device(driver: Driver) -> None:
    for index in (-1, driver.count):
        with pytest.raises(DriverError, match=f"there is no OpenCL device {index}") as error:
            driver.properties(index)
        assert error.value.status == INVALID


def test_gpus_come_first(load: Callable[..., Driver]) -> None:
    driver = load()
    kinds = [driver.properties(i).kind for i in range(driver.count)]
    assert kinds == sorted(kinds, key=[GPU, 3, CPU].index)


def test_journal(load: Callable[..., Driver], tmp_path: Path) -> None:
    """What discovery met, for `torchgraft doctor`."""

    def journal(driver: Driver) -> list[list[str]]:
        driver.library.torchgraft_opencl_journal.restype = ctypes.c_char_p
        return [line.split("\t") for line in driver.library.torchgraft_opencl_journal().decode().splitlines()]

    driver = load()
    lines = journal(driver)
    assert {line[0] for line in lines} <= {"library", "platform", "device", "refused", "cache"}
    devices = [line[1:] for line in lines if line[0] == "device"]
    assert len(devices) == driver.count
    found = {driver.properties(i).name.decode() for i in range(driver.count)}
    assert {name for name, *_ in devices} == found
    platforms = {line[1] for line in lines if line[0] == "platform"}
    assert {platform for _, platform, *_ in devices} <= platforms
    assert {model for _, _, _, model, _ in devices} <= {"host memory", "shared virtual memory", "buffers"}
    buffers = journal(load(TORCHGRAFT_OPENCL_MEMORY="buffer"))
    assert {line[4] for line in buffers if line[0] == "device"} == {"buffers"}

    nothing = journal(load(TORCHGRAFT_OPENCL_LIBRARY="/nowhere.so"))
    assert nothing[0][:2] == ["library", "/nowhere.so"]
    assert "cannot open" in nothing[0][2]


def test_no_library(load: Callable[..., Driver]) -> None:
    driver = load(TORCHGRAFT_OPENCL_LIBRARY="/nowhere/libOpenCL.so")
    assert driver.count == 0
    assert "/nowhere/libOpenCL.so: cannot open shared object file" in driver.count_message


def test_a_library_that_is_not_opencl(load: Callable[..., Driver]) -> None:
    driver = load(TORCHGRAFT_OPENCL_LIBRARY="libc.so.6")
    assert driver.count == 0
    assert "libc.so.6 is not an OpenCL library" in driver.count_message


def test_an_implementation_without_a_loader(load: Callable[..., Driver]) -> None:
    """PoCL's own library exports nothing but its ICD entry; its functions come from the dispatch table."""
    try:
        ctypes.CDLL("libpocl.so.2")
    except OSError as error:
        pytest.skip(str(error))
    driver = load(TORCHGRAFT_OPENCL_LIBRARY="libpocl.so.2", TORCHGRAFT_OPENCL_MEMORY="svm")
    assert driver.properties().platform == b"Portable Computing Language"
    stream = driver.created("stream_create", 0, 0)
    address = driver.created("allocate", 0, 64)
    driver.write(stream, address, b"x" * 64)
    source = "__kernel void twice(__global uchar* p) { p[get_global_id(0)] *= 2; }"
    driver.launch(stream, driver.kernel(source, "twice"), [64], [1], address)
    assert driver.read(stream, address, 64) == b"\xf0" * 64


def test_a_folder_of_implementations(load: Callable[..., Driver], tmp_path: Path) -> None:
    """What a loader would read, for systems that have an implementation and no loader."""
    (tmp_path / "a.icd").write_text("/nowhere/libvendor.so\n")
    (tmp_path / "readme.txt").write_text("not one")
    driver = load(TORCHGRAFT_OPENCL_LIBRARY=str(tmp_path))
    assert driver.count == 0
    assert "/nowhere/libvendor.so: cannot open" in driver.count_message
    (tmp_path / "b.icd").write_text("libpocl.so.2\n")
    driver = load(TORCHGRAFT_OPENCL_LIBRARY=str(tmp_path))
    assert driver.count >= 1 or "libpocl.so.2" in driver.count_message


def test_fallback_libraries(tmp_path: Path) -> None:
    """Libraries named by the program are used only where the system has no device."""
    program = f"""if True:
        import ctypes, sys
        from pathlib import Path
        sys.modules["torch"] = None  # the driver needs none, and importing it takes seconds
        from driver_table import LIBRARY, Driver
        fallback = sys.argv[1]
        ctypes.CDLL(str(LIBRARY)).torchgraft_opencl_fallback_libraries(fallback.encode())
        driver = Driver(Path({str(tmp_path)!r}), copy=False)
        print(driver.count, driver.count_message)"""

    def run(fallback: str, **environment: str) -> str:
        command = [sys.executable, "-c", program, fallback]
        inherited = {name: value for name, value in os.environ.items() if name != "TORCHGRAFT_OPENCL_LIBRARY"}
        folder = Path(__file__).parent
        return subprocess.run(
            command, env={**inherited, **environment}, cwd=folder, check=True, capture_output=True, text=True
        ).stdout

    nothing = run("/nowhere/libx.so", OCL_ICD_VENDORS="/nowhere")
    assert nothing.startswith("0 No OpenCL device was found.")
    assert "pip install intel-opencl-rt" in nothing
    assert "/nowhere/libx.so: cannot open" in nothing
    count = int(run("/nowhere/libx.so:libpocl.so.2", OCL_ICD_VENDORS="/nowhere").split()[0])
    assert count == int(run("").split()[0]) == int(run("libpocl.so.2").split()[0]) >= 1


def test_two_libraries(load: Callable[..., Driver]) -> None:
    both = load(TORCHGRAFT_OPENCL_LIBRARY="libOpenCL.so.1:/nowhere.so:libpocl.so.2")
    alone = load(TORCHGRAFT_OPENCL_LIBRARY="libOpenCL.so.1")
    assert both.count >= alone.count >= 1
    uuids = [both.properties(i).uuid for i in range(both.count) if both.properties(i).kind == CPU]
    assert set(uuids) <= {b"host-cpu"}


def test_an_unknown_memory_model(load: Callable[..., Driver]) -> None:
    with pytest.raises(DriverError, match="TORCHGRAFT_OPENCL_MEMORY is 'cloud'"):
        load(TORCHGRAFT_OPENCL_MEMORY="cloud")


# Memory


@pytest.mark.parametrize("size", [1, 100, 4096, 3 * MIB + 5])
def test_allocate(driver: Driver, stream: int, size: int) -> None:
    free, total = driver.memory()
    assert free <= total == driver.properties().total_memory
    address = driver.created("allocate", 0, size)
    assert address % driver.properties().address_align == 0
    assert driver.memory() == (free - size, total)
    data = bytes(i * 7 % 256 for i in range(size))
    driver.write(stream, address, data)
    assert driver.read(stream, address, size) == data
    if driver.capabilities & UNIFIED_MEMORY:
        assert ctypes.string_at(address, size) == data
    driver.call("deallocate", 0, address)
    assert driver.memory() == (free, total)


def test_addresses_are_distinct(driver: Driver) -> None:
    sizes = [1, 5000, 128, 2 * MIB]
    spans = sorted((driver.created("allocate", 0, size), size) for size in sizes)
    assert all(a + size <= b for (a, size), (b, _) in itertools.pairwise(spans))
    for address, _ in spans:
        driver.call("deallocate", 0, address)


def test_free_of_no_allocation(driver: Driver) -> None:
    address = driver.created("allocate", 0, 256)
    for wrong in (address + 128, 4096):
        with pytest.raises(DriverError, match="not the beginning of an allocation"):
            driver.call("deallocate", 0, wrong)
    driver.call("deallocate", 0, address)
    with pytest.raises(DriverError, match="not the beginning of an allocation"):
        driver.call("deallocate", 0, address)


def test_out_of_memory(driver: Driver) -> None:
    before = driver.memory()
    for size in (1 << 60, driver.properties().max_allocation + 1):
        with pytest.raises(DriverError, match="MiB") as error:
            driver.created("allocate", 0, size)
        assert error.value.status == OUT_OF_MEMORY
    assert driver.memory() == before


def test_total_is_never_exceeded(driver: Driver) -> None:
    """Memory that nobody has touched is counted, although the system would promise more."""
    p = driver.properties()
    piece = p.max_allocation // 2
    held = [driver.created("allocate", 0, piece) for _ in range(p.total_memory // piece)]
    with pytest.raises(DriverError, match="are in use") as error:
        driver.created("allocate", 0, piece)
    assert error.value.status == OUT_OF_MEMORY
    assert len(held) >= 1
    for address in held:
        driver.call("deallocate", 0, address)


@pytest.fixture(scope="module")
def growing(load: Callable[..., Driver]) -> Driver:
    driver = load()
    if not driver.count or driver.properties().kind != CPU:
        pytest.skip("only a CPU's memory grows in place")
    return driver


def test_other_memory_does_not_grow(load: Callable[..., Driver]) -> None:
    driver = load(TORCHGRAFT_OPENCL_MEMORY="buffer")
    with pytest.raises(DriverError, match="does not grow in place") as error:
        driver.created("reserve", 0, 4 * MIB)
    assert error.value.status == UNSUPPORTED


def test_memory_that_grows_is_counted(growing: Driver) -> None:
    before = growing.memory()
    address = growing.created("reserve", 0, 8 * MIB)
    assert growing.memory() == before
    growing.call("commit", 0, address + 2 * MIB, 4 * MIB)
    growing.call("decommit", 0, address + 4 * MIB, 2 * MIB)
    assert growing.memory() == (before[0] - 2 * MIB, before[1])
    growing.call("deallocate", 0, address)
    assert growing.memory() == before


def test_what_has_memory_or_none(growing: Driver) -> None:
    address = growing.created("reserve", 0, 8 * MIB)
    growing.call("commit", 0, address + 2 * MIB, 2 * MIB)
    before = growing.memory()
    for function, offset, nbytes, message in (
        ("commit", 0, 4 * MIB, "has its memory already"),
        ("decommit", 2 * MIB, 4 * MIB, "has no memory"),
        ("commit", MIB, 2 * MIB, "no part of a reserved range"),
        ("commit", 4 * MIB, 3 * MIB, "no part of a reserved range"),
        ("commit", 4 * MIB, 6 * MIB, "no part of a reserved range"),
        ("decommit", -address + 4 * MIB, 2 * MIB, "in no reserved range"),
    ):
        with pytest.raises(DriverError, match=message) as error:
            growing.call(function, 0, address + offset, nbytes)
        assert error.value.status == INVALID
        assert growing.memory() == before
    with pytest.raises(DriverError, match="no multiple of 2 MiB"):
        growing.created("reserve", 0, 3 * MIB)
    growing.call("deallocate", 0, address)


def test_no_more_memory_than_there_is_grows(growing: Driver) -> None:
    total = growing.properties().total_memory // (2 * MIB) * 2 * MIB
    address = growing.created("reserve", 0, 2 * total)
    before = growing.memory()
    with pytest.raises(DriverError, match="MiB") as error:
        growing.call("commit", 0, address, total + 2 * MIB)
    assert error.value.status == OUT_OF_MEMORY
    assert growing.memory() == before
    growing.call("deallocate", 0, address)


def test_pinned_memory(driver: Driver, stream: int) -> None:
    pinned = driver.created("host_allocate", 0, 5000)
    device = driver.created("allocate", 0, 5000)
    ctypes.memset(pinned, 42, 5000)
    driver.call("copy", 0, stream, device, pinned, 5000, TO_DEVICE, 0)
    assert driver.read(stream, device, 5000) == b"*" * 5000
    driver.call("host_deallocate", 0, pinned)
    driver.call("deallocate", 0, device)


# Copies and fills


def test_copies_with_offsets(driver: Driver, stream: int) -> None:
    a, b = driver.created("allocate", 0, 1000), driver.created("allocate", 0, 1000)
    driver.write(stream, a, bytes(range(250)) * 4)
    driver.call("fill", 0, stream, b, b"\0", 1, 1000)
    driver.call("copy", 0, stream, b + 17, a + 3, 100, ON_DEVICE, 0)
    assert driver.read(stream, b + 16, 102) == b"\0" + bytes(range(3, 103)) + b"\0"
    driver.write(stream, b + 999, b"!")
    assert driver.read(stream, b + 998, 2) == b"\0!"
    driver.call("copy", 0, stream, a, a + 500, 0, ON_DEVICE, 1)  # nothing
    driver.call("deallocate", 0, a)
    driver.call("deallocate", 0, b)


@pytest.mark.parametrize("size", [200 << 10, 9 * MIB + 3, 40 * MIB + 77])
def test_large_copies(driver: Driver, stream: int, size: int) -> None:
    """Sizes at which the host works with several threads and around its caches."""
    data = bytes(i * 13 % 251 for i in range(4096)) * (size // 4096 + 1)
    a, b = driver.created("allocate", 0, size + 64), driver.created("allocate", 0, size + 64)
    driver.write(stream, a + 1, data[:size])
    driver.call("copy", 0, stream, b + 3, a + 1, size, ON_DEVICE, 0)
    assert driver.read(stream, b + 3, size) == data[:size]
    driver.call("deallocate", 0, a)
    driver.call("deallocate", 0, b)


def test_a_copy_waits_for_the_stream(driver: Driver, stream: int, spin: int) -> None:
    address = driver.created("allocate", 0, 4)
    driver.write(stream, address, struct.pack("f", 0.5))
    driver.launch(stream, spin, [1], [1], address, c_uint32(300_000))
    source = ctypes.create_string_buffer(struct.pack("f", 2.0), 4)
    driver.call("copy", 0, stream, address, ctypes.addressof(source), 4, TO_DEVICE, 0)
    assert floats(driver.read(stream, address, 4)) == [2.0]
    driver.call("deallocate", 0, address)


@pytest.mark.parametrize("pattern", [b"a", b"ab", b"abcd", b"abcdefgh", b"abcdefghijklmnop"])
@pytest.mark.parametrize("repeats", [1, 3, 1000, 40_000, 700_000])
def test_fill(driver: Driver, stream: int, pattern: bytes, repeats: int) -> None:
    size = len(pattern) * repeats
    address = driver.created("allocate", 0, size + 32)
    driver.write(stream, address, b"." * (size + 32))
    driver.call("fill", 0, stream, address + 16, pattern, len(pattern), size)
    assert driver.read(stream, address, size + 32) == b"." * 16 + pattern * repeats + b"." * 16
    driver.call("deallocate", 0, address)


def test_bad_fills(driver: Driver, stream: int) -> None:
    address = driver.created("allocate", 0, 64)
    for pattern, size in ((b"abc", 9), (b"abcd", 6)):
        with pytest.raises(DriverError, match="a fill of") as error:
            driver.call("fill", 0, stream, address, pattern, len(pattern), size)
        assert error.value.status == INVALID
    driver.call("deallocate", 0, address)


def test_addresses_outside_are_refused(load: Callable[..., Driver]) -> None:
    driver = load(TORCHGRAFT_OPENCL_MEMORY="buffer")
    stream = driver.created("stream_create", 0, 0)
    address = driver.created("allocate", 0, 64)
    for wrong, size in ((address + 60, 8), (address - 1, 1), (1 << 40, 1)):
        with pytest.raises(DriverError, match="outside the device's allocations") as error:
            driver.read(stream, wrong, size)
        assert error.value.status == INVALID


def test_copy_between_devices(load: Callable[..., Driver]) -> None:
    """Two views of one device are two devices: only the host is common to them."""
    driver = load(TORCHGRAFT_OPENCL_LIBRARY="libOpenCL.so.1:libpocl.so.2", TORCHGRAFT_OPENCL_MEMORY="buffer")
    if driver.count < 2:
        pytest.skip("needs two devices")
    streams = [driver.created("stream_create", device, 0) for device in (0, 1)]
    size = 20 * MIB + 9
    first, second = (driver.created("allocate", device, size) for device in (0, 1))
    driver.call("fill", 0, streams[0], first, b"z", 1, size)
    driver.call("stream_synchronize", 0, streams[0])
    driver.call("copy_peer", 1, second, 0, first, size, streams[1])
    buffer = ctypes.create_string_buffer(size)
    driver.call("copy", 1, streams[1], ctypes.addressof(buffer), second, size, TO_HOST, 1)
    assert buffer.raw == b"z" * size


# Streams and events


def test_an_idle_stream_is_known_to_be_idle(driver: Driver, stream: int, add: int) -> None:
    assert driver.call("stream_query", 0, stream) == OK
    address = driver.created("allocate", 0, 64)
    driver.launch(stream, add, [1], [16], address, address, address, c_float(0), c_uint32(16))
    driver.call("stream_synchronize", 0, stream)
    assert driver.call("stream_query", 0, stream) == OK
    driver.call("deallocate", 0, address)


def test_a_busy_stream(driver: Driver, stream: int, spin: int) -> None:
    address = driver.created("allocate", 0, 4)
    driver.launch(stream, spin, [1], [1], address, c_uint32(1))  # loads the kernel
    driver.call("stream_synchronize", 0, stream)
    driver.launch(stream, spin, [1], [1], address, c_uint32(3_000_000))
    assert driver.call("stream_query", 0, stream) == NOT_READY
    driver.call("device_synchronize", 0)
    assert driver.call("stream_query", 0, stream) == OK
    driver.call("deallocate", 0, address)


def test_a_query_becomes_true_without_a_wait(driver: Driver, stream: int, spin: int) -> None:
    address = driver.created("allocate", 0, 4)
    driver.launch(stream, spin, [1], [1], address, c_uint32(10_000))
    deadline = time.monotonic() + 20
    while driver.call("stream_query", 0, stream) == NOT_READY:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    driver.call("deallocate", 0, address)


def test_a_stream_belongs_to_its_device(load: Callable[..., Driver]) -> None:
    driver = load(TORCHGRAFT_OPENCL_LIBRARY="libOpenCL.so.1:libpocl.so.2")
    if driver.count < 2:
        pytest.skip("needs two devices")
    stream = driver.created("stream_create", 0, 0)
    with pytest.raises(DriverError, match="another device than its own"):
        driver.call("stream_synchronize", 1, stream)


@pytest.mark.parametrize("timing", [0, 1])
def test_a_stream_waits_for_another(driver: Driver, stream: int, spin: int, add: int, timing: int) -> None:
    other = driver.created("stream_create", 0, -1)
    event = driver.created("event_create", 0, timing)
    a, out = driver.created("allocate", 0, 4), driver.created("allocate", 0, 4)
    for rounds in (0, 300_001):  # the first loads the kernels, and shows that an event may be recorded again
        driver.write(stream, a, struct.pack("f", 0.25))
        driver.write(stream, out, struct.pack("f", 0))
        driver.launch(stream, spin, [1], [1], a, c_uint32(rounds))
        driver.call("event_record", 0, event, stream)
        driver.call("event_wait", 0, event, other)
        driver.launch(other, add, [1], [1], a, a, out, c_float(1), c_uint32(1))
        expected = floats(driver.read(stream, a, 4))[0]
        assert floats(driver.read(other, out, 4)) == pytest.approx([2 * expected + 1])
    driver.call("event_synchronize", 0, event)
    assert driver.call("event_query", 0, event) == OK
    driver.call("event_destroy", 0, event)
    driver.call("stream_destroy", 0, other)
    for address in (a, out):
        driver.call("deallocate", 0, address)


def test_an_event_never_recorded_holds_nobody_up(driver: Driver, stream: int) -> None:
    event = driver.created("event_create", 0, 1)
    assert driver.call("event_query", 0, event) == OK
    driver.call("event_wait", 0, event, stream)
    driver.call("event_synchronize", 0, event)
    with pytest.raises(DriverError, match="never recorded"):
        driver.elapsed(event, event)
    driver.call("event_destroy", 0, event)


def test_elapsed(driver: Driver, stream: int, spin: int) -> None:
    events = [driver.created("event_create", 0, 1) for _ in range(3)]
    address = driver.created("allocate", 0, 4)
    driver.launch(stream, spin, [1], [1], address, c_uint32(1))
    driver.call("event_record", 0, events[0], stream)  # changes the stream's queue while it is busy
    began = time.perf_counter()
    driver.launch(stream, spin, [1], [1], address, c_uint32(1_000_000))
    driver.call("event_record", 0, events[1], stream)
    assert driver.call("event_query", 0, events[1]) == NOT_READY
    with pytest.raises(DriverError, match="not been reached"):
        driver.elapsed(events[0], events[1])
    driver.call("event_synchronize", 0, events[1])
    taken = (time.perf_counter() - began) * 1e3
    assert taken * 0.5 <= driver.elapsed(events[0], events[1]) <= taken * 1.5 + 1
    assert driver.elapsed(events[1], events[0]) < 0
    # On an idle stream the time is that of the recording, not of work long done.
    time.sleep(0.05)
    driver.call("event_record", 0, events[2], stream)
    driver.call("event_synchronize", 0, events[2])
    assert driver.elapsed(events[1], events[2]) >= 45
    for event in events:
        driver.call("event_destroy", 0, event)
    driver.call("deallocate", 0, address)


def test_elapsed_needs_timing(driver: Driver, stream: int) -> None:
    event = driver.created("event_create", 0, 0)
    driver.call("event_record", 0, event, stream)
    with pytest.raises(DriverError, match="without timing"):
        driver.elapsed(event, event)
    driver.call("event_destroy", 0, event)


# Programs


def test_compile_error(driver: Driver) -> None:
    with pytest.raises(DriverError, match=r"clBuildProgram: CL_BUILD_PROGRAM_FAILURE \(-11\)") as error:
        driver.compile("__kernel void broken(__global float* p) { p[0] = nonsense; }")
    assert error.value.status == COMPILE
    assert "nonsense" in error.value.message


def test_compile_options(driver: Driver, stream: int) -> None:
    source = f"__kernel void f({pointers(driver, 'p')}) {{ {offsets(driver, 'p')} p[get_global_id(0)] = VALUE; }}"
    module, _ = driver.compile(source, "-DVALUE=7.5f")
    kernel = driver.created("kernel_create", module, b"f")
    driver.call("module_destroy", module)  # the kernel lives on
    address = driver.created("allocate", 0, 16)
    driver.launch(stream, kernel, [1, 2], [2, 1], address)
    assert floats(driver.read(stream, address, 8)) == [7.5, 7.5]
    driver.call("kernel_destroy", kernel)
    driver.call("deallocate", 0, address)


def test_no_such_kernel(driver: Driver) -> None:
    module, _ = driver.compile("__kernel void f(uint n) {}")
    with pytest.raises(DriverError, match=r"clCreateKernel: CL_INVALID_KERNEL_NAME \(-46\), kernel g"):
        driver.created("kernel_create", module, b"g")
    driver.call("module_destroy", module)


def test_binary(driver: Driver, stream: int) -> None:
    source = f"__kernel void f({pointers(driver, 'p')}) {{ {offsets(driver, 'p')} p[get_global_id(0)] += 1.5f; }}"
    module, _ = driver.compile(source)
    size = ctypes.c_uint64()
    driver.call("module_binary", module, None, ctypes.byref(size))
    binary = ctypes.create_string_buffer(size.value)
    short = ctypes.c_uint64(1)
    with pytest.raises(DriverError, match="smaller than the binary"):
        driver.call("module_binary", module, binary, ctypes.byref(short))
    driver.call("module_binary", module, binary, ctypes.byref(size))
    loaded, log = ctypes.c_void_p(), ctypes.c_char_p()
    driver.call("module_load", 0, binary.raw, size.value, ctypes.byref(loaded), ctypes.byref(log))
    kernel = driver.created("kernel_create", loaded, b"f")
    address = driver.created("allocate", 0, 16)
    driver.write(stream, address, struct.pack("4f", 0, 1, 2, 3))
    driver.launch(stream, kernel, [1], [4], address)
    assert floats(driver.read(stream, address, 16)) == [1.5, 2.5, 3.5, 4.5]
    driver.call("deallocate", 0, address)


def test_a_damaged_binary(driver: Driver) -> None:
    loaded, log = ctypes.c_void_p(), ctypes.c_char_p()
    with pytest.raises(DriverError, match="clCreateProgramWithBinary") as error:
        driver.call("module_load", 0, b"no binary" * 20, 180, ctypes.byref(loaded), ctypes.byref(log))
    assert error.value.status == COMPILE


def test_launch_inside_allocations(driver: Driver, stream: int, add: int) -> None:
    block = driver.created("allocate", 0, 4096)
    driver.write(stream, block, struct.pack("1024f", *range(1024)))
    # a = block[3:13], b = block[100:110], out = block[500:510]
    driver.launch(stream, add, [1], [16], block + 12, block + 400, block + 2000, c_float(0.5), c_uint32(10))
    values = floats(driver.read(stream, block, 4096))
    assert values[500:510] == [103.5 + 2 * i for i in range(10)]
    assert values[:500] == list(range(500))
    assert values[510:] == list(range(510, 1024))
    driver.call("deallocate", 0, block)


def test_a_pointer_may_be_null(driver: Driver, stream: int) -> None:
    source = (
        f"__kernel void f({pointers(driver, 'p', 'q')}, uint use) {{ {offsets(driver, 'p')} p[0] = use ? q[0] : 3; }}"
    )
    kernel = driver.kernel(source, "f")
    address = driver.created("allocate", 0, 4)
    driver.launch(stream, kernel, [1], [1], address, None, c_uint32(0))
    assert floats(driver.read(stream, address, 4)) == [3]
    driver.call("deallocate", 0, address)


def test_bad_launches(driver: Driver, stream: int, add: int) -> None:
    address = driver.created("allocate", 0, 64)
    good = (address, address, address, c_float(0), c_uint32(1))
    with pytest.raises(DriverError, match="kernel add") as error:
        driver.launch(stream, add, [1], [1], *good[:-1])
    assert error.value.status == INVALID
    with pytest.raises(DriverError, match=r"clSetKernelArg: CL_INVALID_ARG_SIZE \(-51\), argument 3 of kernel add"):
        driver.launch(stream, add, [1], [1], *good[:3], ctypes.c_double(0), good[4])
    with pytest.raises(DriverError, match=r"clEnqueueNDRangeKernel: CL_INVALID_WORK.*kernel add"):
        driver.launch(stream, add, [1], [1 << 20], *good)
    driver.launch(stream, add, [1], [1], *good)  # and it still works
    driver.call("stream_synchronize", 0, stream)
    driver.call("deallocate", 0, address)


def test_two_threads_launch_one_kernel(driver: Driver, add: int) -> None:
    """Arguments are part of the kernel in OpenCL: a launch must not see those of another thread's."""
    count, failures = 300, []

    def work(value: float) -> None:
        stream = driver.created("stream_create", 0, 0)
        block = driver.created("allocate", 0, 64 * (count + 1))
        driver.call("fill", 0, stream, block, struct.pack("f", value), 4, 64)
        for i in range(count):  # block[i + 1] = 2 * block[0] + value
            driver.launch(stream, add, [1], [16], block, block, block + 64 * (i + 1), c_float(value), c_uint32(16))
        result = floats(driver.read(stream, block + 64, 64 * count))
        if result != [3 * value] * (16 * count):
            failures.append(value)
        driver.call("stream_destroy", 0, stream)
        driver.call("deallocate", 0, block)

    threads = [threading.Thread(target=work, args=(float(value),)) for value in (1, 10, 100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_two_threads_share_a_stream(driver: Driver, stream: int, add: int) -> None:
    block = driver.created("allocate", 0, 128)
    driver.call("fill", 0, stream, block, b"\0", 1, 128)
    zero = block + 64

    def work() -> None:
        for _ in range(200):
            driver.launch(stream, add, [1], [16], block, zero, block, c_float(1), c_uint32(16))
            driver.call("stream_query", 0, stream)
            driver.call("stream_synchronize", 0, stream)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert floats(driver.read(stream, block, 64)) == [400.0] * 16
    driver.call("deallocate", 0, block)


# Failures


@pytest.mark.parametrize("function", [name for name, _ in FUNCTIONS])
def test_every_function_can_be_made_to_fail(driver: Driver, function: str) -> None:
    arguments = [None if kind in (ctypes.c_void_p, ctypes.c_char_p) else 0 for kind in dict(FUNCTIONS)[function]]
    driver.fail(f"{function}:1")
    try:
        assert driver.status(function, *arguments) in (ERROR, OUT_OF_MEMORY, COMPILE)
        assert driver.last_error() == f"{function}: fails because TORCHGRAFT_OPENCL_FAIL asks for it"
    finally:
        driver.fail("")


def test_the_nth_call_fails(load: Callable[..., Driver]) -> None:
    driver = load(TORCHGRAFT_OPENCL_FAIL="allocate:2,allocate:4")
    statuses = []
    for _ in range(5):
        address = ctypes.c_void_p()
        statuses.append(driver.status("allocate", 0, 64, ctypes.byref(address)))
        if address.value is not None:
            driver.call("deallocate", 0, address)
    assert statuses == [OK, OUT_OF_MEMORY, OK, OUT_OF_MEMORY, OK]
    for wrong in (b"allocate:soon", b"allocate:2nd", b"allocate:0", b"allocate:"):
        assert driver.library.torchgraft_opencl_fail(wrong) == 1


def test_messages_belong_to_threads(driver: Driver) -> None:
    with pytest.raises(DriverError):
        driver.properties(99)
    seen = []
    thread = threading.Thread(target=lambda: seen.append(driver.last_error()))
    thread.start()
    thread.join()
    assert seen == [""]
    assert "99" in driver.last_error()


def test_packaged_implementations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library is found in whatever folder its package lies, by the package's own list of files."""
    path = Path(__file__).parents[1] / "torchgraft_opencl" / "implementations.py"
    spec = importlib.util.spec_from_file_location("implementations", path)  # without the package, which needs torch
    assert spec is not None
    assert spec.loader is not None
    implementations = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(implementations)
    library = tmp_path / "deep" / "libfake.so"
    library.parent.mkdir()
    library.write_text("")
    info = tmp_path / "fake_rt-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fake-rt\nVersion: 1.0\n")
    (info / "RECORD").write_text("deep/libfake.so,,\ndeep/other.so,,\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(implementations, "PACKAGES", {"fake-rt": "libfake.so", "not-installed": "x.so"})
    assert implementations.packaged_implementations() == [library.resolve()]
