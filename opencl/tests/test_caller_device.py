"""Small launches in the calling thread, through PoCL's other device on the CPU."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from ctypes import byref, c_double, c_float, c_uint32, c_uint64
from pathlib import Path

import pytest
from driver_table import NOT_READY, OK, Driver, DriverError, floats

TESTS = Path(__file__).parent

SOURCE = """
__kernel void add(__global const float* a, __global const float* b, __global float* out, float c, uint n) {
  size_t i = get_global_id(0);
  if (i < n) out[i] = a[i] + b[i] + c;
}
__kernel void spin(__global float* out, uint rounds) {
  float x = out[0];
  for (uint i = 0; i < rounds; ++i) x = sin(x + 1);
  out[0] = x;
}
__kernel void append(__global int* count, __global int* list, int what) { list[count[0]++] = what; }
"""
LONG = c_uint32(3_000_000)  # rounds of a tenth of a second


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Driver:
    driver = Driver(tmp_path_factory.mktemp("drivers"))
    if driver.count == 0 or driver.properties().platform != b"Portable Computing Language":
        pytest.skip("needs PoCL")
    return driver


@pytest.fixture(scope="module")
def module(driver: Driver) -> int:
    return driver.compile(SOURCE)[0]


@pytest.fixture
def stream(driver: Driver) -> Iterator[int]:
    with driver.new_stream() as stream:
        yield stream


@pytest.fixture
def block(driver: Driver, stream: int) -> Iterator[int]:
    block = driver.created("allocate", 0, 65536)
    driver.call("fill", 0, stream, block, struct.pack("f", 1), 4, 65536)
    driver.call("stream_synchronize", 0, stream)
    yield block
    driver.call("stream_synchronize", 0, stream)
    driver.call("deallocate", 0, block)


def kernel(driver: Driver, module: int, name: str) -> int:
    return driver.created("kernel_create", module, name.encode())


def test_a_small_launch_is_done_when_the_call_returns(driver: Driver, module: int, stream: int, block: int) -> None:
    add = kernel(driver, module, "add")
    for i in range(200):
        n = c_uint32(1 + i % 16)
        driver.launch(stream, add, [1], [16], block, block, block + 64, c_float(i), n, nbytes=192)
        assert driver.status("stream_query", 0, stream) == OK
        assert floats(driver.read(stream, block + 64, 64))[: n.value] == [2 + i] * n.value


def test_without_the_hint_workers_run_it(driver: Driver, module: int, stream: int, block: int) -> None:
    spin = kernel(driver, module, "spin")
    driver.launch(stream, spin, [1], [1], block, LONG)
    assert driver.status("stream_query", 0, stream) == NOT_READY


def test_what_takes_long_is_handed_to_workers(driver: Driver, module: int, stream: int, block: int) -> None:
    """However little memory it has: that is found when it has been run."""
    spin = kernel(driver, module, "spin")
    states = []
    for _ in range(6):
        driver.launch(stream, spin, [1], [1], block, LONG, nbytes=4)
        states.append(driver.status("stream_query", 0, stream))
        driver.call("stream_synchronize", 0, stream)
    assert states[-3:] == [NOT_READY] * 3


def test_commands_stay_in_order(driver: Driver, module: int, stream: int, block: int) -> None:
    """A small launch behind a long one waits for it, and is run by the workers, too."""
    spin, append = kernel(driver, module, "spin"), kernel(driver, module, "append")
    driver.call("fill", 0, stream, block + 1024, b"\0", 1, 4)
    numbers = block + 1024, block + 2048
    expected = []
    for i in range(300):
        if i % 60 == 30:
            driver.launch(stream, spin, [1], [1], block, LONG)
        driver.launch(stream, append, [1], [1], *numbers, c_uint32(i), nbytes=2048)
        expected.append(i)
    assert list(struct.unpack("i", driver.read(stream, numbers[0], 4))) == [300]
    assert list(struct.unpack("300i", driver.read(stream, numbers[1], 1200))) == expected


def test_threads(driver: Driver, module: int) -> None:
    """Some on streams of their own, two on one; all launch one kernel."""
    add, shared = kernel(driver, module, "add"), driver.created("stream_create", 0, 0)
    failures = []

    def work(value: float, stream: int) -> None:
        block = driver.created("allocate", 0, 192)
        for i in range(2000):
            driver.call("fill", 0, stream, block, struct.pack("f", value), 4, 64)
            driver.launch(stream, add, [1], [16], block, block, block + 64, c_float(i), c_uint32(16), nbytes=192)
            driver.launch(stream, add, [1], [16], block, block + 64, block + 128, c_float(0), c_uint32(16), nbytes=192)
            if floats(driver.read(stream, block + 128, 64)) != [3 * value + i] * 16:
                failures.append((value, i))
        driver.call("deallocate", 0, block)

    streams = [shared, shared, *(driver.created("stream_create", 0, 0) for _ in range(2))]
    threads = [threading.Thread(target=work, args=(float(10**i), stream)) for i, stream in enumerate(streams)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_times(driver: Driver, module: int, stream: int, block: int) -> None:
    """Of a launch in the calling thread, on the clock of all others."""
    add, event = kernel(driver, module, "add"), driver.created("event_create", 0, 1)
    times = []
    for _ in range(20):
        driver.call("event_time_next", 0, event)
        driver.launch(stream, add, [1], [16], block, block, block + 64, c_float(0), c_uint32(16), nbytes=192)
        driver.call("event_synchronize", 0, event)
        begin, end = c_uint64(), c_uint64()
        driver.call("event_times", 0, event, byref(begin), byref(end))
        times += [begin.value, end.value]
    assert times == sorted(times)
    assert times[0] > 0
    driver.call("event_destroy", 0, event)


def test_events(driver: Driver, module: int, stream: int, block: int) -> None:
    """One recorded behind launches that are done has been reached; another stream that waits for it goes on."""
    add, event = kernel(driver, module, "add"), driver.created("event_create", 0, 0)
    other = driver.created("stream_create", 0, 0)
    for i in range(50):
        driver.launch(stream, add, [1], [16], block, block, block + 64, c_float(i), c_uint32(16), nbytes=192)
        driver.call("event_record", 0, event, stream)
        driver.call("event_wait", 0, event, other)
        driver.launch(other, add, [1], [16], block + 64, block, block + 128, c_float(0), c_uint32(16), nbytes=192)
        assert floats(driver.read(other, block + 128, 64)) == [3 + i] * 16
    driver.call("event_destroy", 0, event)
    driver.call("stream_destroy", 0, other)


def test_bad_launches(driver: Driver, module: int, stream: int, block: int) -> None:
    add = kernel(driver, module, "add")
    good = block, block, block + 64, c_float(0), c_uint32(16)
    for wrong, groups, message in (
        (good[:-1], 16, "has 5 arguments and was given 4"),
        ((*good[:3], c_double(0), good[4]), 16, "CL_INVALID_ARG_SIZE"),
        (good, 1 << 20, "CL_INVALID_WORK"),
    ):
        for _ in range(3):
            with pytest.raises(DriverError, match=f"{message}.*kernel add|kernel add .*{message}"):
                driver.launch(stream, add, [1], [groups], *wrong, nbytes=192)
        driver.launch(stream, add, [1], [16], *good, nbytes=192)
        assert floats(driver.read(stream, block + 64, 64)) == [2] * 16


def test_a_kernel_outlives_its_module(driver: Driver, stream: int, block: int) -> None:
    """Its program is needed when the first small launch comes."""
    module = driver.compile(SOURCE.replace("+ c", "+ 2 * c"))[0]
    add = kernel(driver, module, "add")
    driver.call("module_destroy", module)
    driver.launch(stream, add, [1], [16], block, block, block + 64, c_float(3), c_uint32(16), nbytes=192)
    assert floats(driver.read(stream, block + 64, 64)) == [8] * 16
    driver.call("kernel_destroy", add)


@pytest.mark.usefixtures("driver")
@pytest.mark.parametrize("chosen", ["", "pthread", "basic"])
def test_users_see_what_they_have_chosen(chosen: str) -> None:
    """The other device is hidden, a choice of the user's own stays, and no child inherits ours."""
    program = f"""
        import ctypes, sys
        from pathlib import Path
        sys.modules["torch"] = None
        from driver_table import Driver
        driver = Driver(Path(), copy=False)
        assert driver.count == 1, driver.count
        name = driver.properties().name.decode()
        assert name.startswith({chosen or "pthread"!r}) or name.startswith("cpu"), name
        getenv = ctypes.CDLL(None).getenv
        getenv.restype = ctypes.c_char_p
        assert getenv(b"POCL_DEVICES") == {chosen.encode() or None!r}
    """
    environment = {name: value for name, value in os.environ.items() if name != "POCL_DEVICES"}
    if chosen:
        environment["POCL_DEVICES"] = chosen
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], cwd=TESTS, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
