"""Launches whose groups the calling thread shares with helpers of the driver's own, by PoCL's machine code."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from ctypes import byref, c_float, c_int8, c_int64, c_uint32, c_uint64
from pathlib import Path

import pytest
from driver_table import NOT_READY, OK, Driver, DriverError, attempts, floats, needs_caller, pocl_driver

TESTS = Path(__file__).parent

# A group takes some microseconds. The address of a private variable tells the thread.
SOURCE = """
float slow(float x) {
  for (uint i = 0; i < 100; ++i) x = sin(x);
  return x;
}
__kernel void visit(__global uint* visits, __global ulong* stacks, __global float* out) {
  volatile float here = get_work_dim();
  size_t i = (get_group_id(2) * get_num_groups(1) + get_group_id(1)) * get_num_groups(0) + get_group_id(0);
  size_t g = (get_global_id(2) * get_global_size(1) + get_global_id(1)) * get_global_size(0) + get_global_id(0);
  visits[i] += i == g;
  stacks[i] = (ulong)&here >> 20;
  out[i] = slow(here);
}
__kernel void advance(__global float* out, float factor, float more) {
  size_t i = get_group_id(0);
  float x = slow(i);
  out[i] = out[i] * factor + more + (x > 2);
}
__kernel void advance_local(__global float* out, float factor, float more) {
  __local float x;
  x = slow(get_group_id(0));
  barrier(CLK_LOCAL_MEM_FENCE);
  out[get_group_id(0)] = out[get_group_id(0)] * factor + more + (x > 2);
}
__kernel void wide(__global float* out, char c, float4 four, char d, long2 two) {
  size_t i = get_group_id(0);
  out[i] = c + d + four.x + four.y * 2 + four.z * 4 + four.w * 8 + two.x + two.y;
}
__kernel void spin(__global float* out, uint rounds) {
  float x = out[0];
  for (uint i = 0; i < rounds; ++i) x = sin(x + 1);
  out[0] = x > 2;
}
"""
SPAN = 1 << 18  # bytes for which others may help
LONG = c_uint32(1_000_000)


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Driver:
    return pocl_driver(tmp_path_factory.mktemp("drivers"))


@pytest.fixture(scope="module")
def module(driver: Driver) -> int:
    return driver.compile(SOURCE)[0]


@pytest.fixture
def stream(driver: Driver) -> Iterator[int]:
    with driver.new_stream() as stream:
        yield stream


@pytest.fixture
def block(driver: Driver, stream: int) -> Iterator[int]:
    with driver.new_block(stream, b"\0", 65536) as block:
        yield block


@pytest.mark.parametrize("groups", [(1,), (2,), (3,), (67,), (5, 7), (1, 2), (3, 1, 5), (4, 3, 2)])
def test_each_group_is_run_once(driver: Driver, module: int, stream: int, block: int, groups: tuple[int, ...]) -> None:
    visit = driver.kernel_of(module, "visit")
    count = 1
    for n in groups:
        count *= n
    for _ in range(100):
        driver.launch(stream, visit, groups, [1] * len(groups), block, block + 8192, block + 16384, nbytes=SPAN)
        driver.call("stream_synchronize", 0, stream)
    assert struct.unpack(f"{count + 1}I", driver.read(stream, block, 4 * count + 4)) == (100,) * count + (0,)
    driver.call("kernel_destroy", visit)


@needs_caller
@pytest.mark.parametrize("timed", [False, True], ids=["untimed", "timed"])
def test_helpers_take_part(driver: Driver, module: int, stream: int, block: int, timed: bool) -> None:
    """In launches that are done when the call returns, whether or not their time is asked for."""
    if driver.properties().compute_units < 2 or len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two processors")
    visit, event = driver.kernel_of(module, "visit"), driver.created("event_create", 0, 1)
    moments = [c_uint64() for _ in range(4)]
    for _ in attempts():
        driver.call("device_time", 0, byref(moments[0]))
        if timed:
            driver.call("event_time_next", 0, event)
        driver.launch(stream, visit, [64], [1], block, block + 8192, block + 16384, nbytes=SPAN)
        done = driver.status("stream_query", 0, stream) == OK
        if timed:
            driver.call("event_synchronize", 0, event)
            driver.call("event_times", 0, event, byref(moments[1]), byref(moments[2]))
            driver.call("device_time", 0, byref(moments[3]))
            times = [moment.value for moment in moments]
            assert times == sorted(times)
            assert times[1] < times[2]
        driver.call("stream_synchronize", 0, stream)
        stacks = struct.unpack("64Q", driver.read(stream, block + 8192, 512))
        if done and len(set(stacks)) > 1:
            break
    else:
        pytest.fail("one thread has done everything")
    driver.call("event_destroy", 0, event)
    driver.call("kernel_destroy", visit)


@pytest.mark.parametrize("name", ["advance", "advance_local"])
def test_commands_stay_in_order(driver: Driver, module: int, stream: int, block: int, name: str) -> None:
    """Shared launches, small ones, and those of the workers, with and without waits between them."""
    step, spin = driver.kernel_of(module, name), driver.kernel_of(module, "spin")
    expected = 0.0
    for i in range(400):
        if i % 50 == 25:
            driver.launch(stream, spin, [1], [1], block + 4096, LONG)
        factor, more = 0.5, float(i % 7)
        size = SPAN if i % 3 else 64
        driver.launch(stream, step, [40], [1], block, c_float(factor), c_float(more), nbytes=size)
        expected = struct.unpack("f", struct.pack("f", expected * factor + more))[0]
        if i % 5 == 0 and i % 100 < 50:
            driver.call("stream_synchronize", 0, stream)
    assert floats(driver.read(stream, block, 160)) == pytest.approx([expected] * 40, rel=1e-5)


def test_threads(driver: Driver, module: int) -> None:
    """Each on a stream of its own, two on one kernel object."""
    one = driver.kernel_of(module, "advance")
    kernels = [one, one, driver.kernel_of(module, "advance"), driver.kernel_of(module, "visit")]
    failures: list[tuple[int, list[float]]] = []

    def work(number: int) -> None:
        with driver.new_stream() as stream:
            block = driver.created("allocate", 0, 65536)
            driver.call("fill", 0, stream, block, b"\0", 1, 65536)
            for i in range(300):
                if kernels[number] == kernels[3]:
                    driver.launch(stream, kernels[3], [40], [1], block, block + 8192, block + 16384, nbytes=SPAN)
                    continue
                driver.launch(stream, kernels[number], [40], [1], block, c_float(0), c_float(i + number), nbytes=SPAN)
                values = floats(driver.read(stream, block, 160))
                if values != [i + number] * 40:
                    failures.append((number, values))
            if kernels[number] == kernels[3] and driver.read(stream, block, 160) != struct.pack("I", 300) * 40:
                failures.append((number, []))
            driver.call("deallocate", 0, block)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_wide_arguments(driver: Driver, module: int, stream: int, block: int) -> None:
    """Code reads them by instructions that want them aligned."""
    wide = driver.kernel_of(module, "wide")
    for i in range(6):
        four, two = (c_float * 4)(i, 1, 2, 3), (c_int64 * 2)(100, -i)
        driver.launch(stream, wide, [40], [1], block, c_int8(1), four, c_int8(-5), two, nbytes=SPAN)
        driver.call("stream_synchronize", 0, stream)
        assert floats(driver.read(stream, block, 160)) == [-4 + i + 2 + 8 + 24 + 100 - i] * 40


def test_bad_launches(driver: Driver, module: int, stream: int, block: int) -> None:
    """PoCL refuses them, though its machine code is known; what is launched later is run."""
    step = driver.kernel_of(module, "advance")
    good = block, c_float(0), c_float(3)
    for _ in range(5):
        driver.launch(stream, step, [40], [1], *good, nbytes=SPAN)
        driver.call("stream_synchronize", 0, stream)
    for wrong, message in (
        (good[:-1], "has 3 arguments and was given 2"),
        ((*good[:2], c_uint64(0)), "CL_INVALID_ARG_SIZE"),
    ):
        with pytest.raises(DriverError, match=message):
            driver.launch(stream, step, [40], [1], *wrong, nbytes=SPAN)
    driver.launch(stream, step, [40], [1], block, c_float(0), c_float(5), nbytes=SPAN)
    assert floats(driver.read(stream, block, 160)) == [5] * 40
    driver.launch(stream, step, [20], [2], block, c_float(2), c_float(0), nbytes=SPAN)  # groups of another size
    assert set(floats(driver.read(stream, block, 80))) <= {10, 20}


def test_what_takes_long_is_handed_to_workers(driver: Driver, module: int, stream: int, block: int) -> None:
    spin = driver.kernel_of(module, "spin")
    states = []
    for _ in range(6):
        driver.launch(stream, spin, [2], [1], block, LONG, nbytes=SPAN)
        states.append(driver.status("stream_query", 0, stream))
        driver.call("stream_synchronize", 0, stream)
    assert states[-2:] == [NOT_READY] * 2


@needs_caller
def test_what_took_long_is_tried_again(driver: Driver, module: int, stream: int, block: int) -> None:
    """A launch of the same size may do less, or whoever measured was interrupted."""
    spin = driver.kernel_of(module, "spin")
    for _ in range(3):
        driver.launch(stream, spin, [2], [1], block, LONG, nbytes=SPAN)
        driver.call("stream_synchronize", 0, stream)
    states = []
    for _ in range(100):
        driver.launch(stream, spin, [2], [1], block, c_uint32(10), nbytes=SPAN)
        states.append(driver.status("stream_query", 0, stream))
        driver.call("stream_synchronize", 0, stream)
    assert states[-50:].count(OK) >= 45


def test_idle_helpers_sleep(driver: Driver, module: int, stream: int, block: int) -> None:
    visit = driver.kernel_of(module, "visit")
    for _ in range(50):
        driver.launch(stream, visit, [64], [1], block, block + 8192, block + 16384, nbytes=SPAN)
        driver.call("stream_synchronize", 0, stream)
    time.sleep(0.05)
    before = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - before < 0.05


def run_program(program: str) -> str:
    """What it prints."""
    start = f"""
        import ctypes, os, sys
        from pathlib import Path
        sys.modules["torch"] = None
        from driver_table import Driver, floats, pocl_driver
        driver = Driver(Path(), copy=False)
        SOURCE = {SOURCE!r}
        stream = driver.created("stream_create", 0, 0)
        block = driver.created("allocate", 0, 65536)
        driver.call("fill", 0, stream, block, b"\\0", 1, 65536)
        def launch(kernel, *arguments, groups=40):
            driver.launch(stream, kernel, [groups], [1], *arguments, nbytes={SPAN})
            driver.call("stream_synchronize", 0, stream)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(start) + textwrap.dedent(program)],
        cwd=TESTS,
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.usefixtures("driver")
def test_what_kernels_print_is_printed_once() -> None:
    text = run_program("""
        say = driver.kernel('''__kernel void say(int i) { printf("<%d %d>", i, (int)get_group_id(0)); }''', "say")
        for i in range(6):
            launch(say, ctypes.c_int(i), groups=3)
    """)
    words = [f"<{i} {group}>" for i in range(6) for group in range(3)]
    assert sorted(text) == sorted("".join(words))
    assert all(word in text for word in words)


@pytest.mark.usefixtures("driver")
def test_the_process_ends_and_forks_while_helpers_look_for_work() -> None:
    text = run_program("""
        step = driver.kernel(SOURCE, "advance")
        for i in range(50):
            launch(step, block, ctypes.c_float(0), ctypes.c_float(i))
            if i % 10 == 5:
                child = os.fork()
                if child == 0:
                    os._exit(7)
                assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert floats(driver.read(stream, block, 160)) == [49.0] * 40
        launch(step, block, ctypes.c_float(0), ctypes.c_float(1))
        print("ends", flush=True)
    """)
    assert text == "ends\n"


@pytest.mark.usefixtures("driver")
def test_subnormal_numbers_are_kept() -> None:
    """Whatever the calling thread's processor is set to."""
    run_program("""
        import platform
        if platform.machine() != "x86_64":
            sys.exit(0)
        half = driver.kernel("__kernel void half_of(__global float* x) { x[get_group_id(0)] *= 0.5f; }", "half_of")
        libm = ctypes.CDLL("libm.so.6")
        environment = (ctypes.c_uint32 * 8)()  # fenv_t, of which MXCSR is the last
        libm.fegetenv(environment)
        usual, flushing = environment[7], environment[7] | 0x8040
        for _ in range(8):
            driver.call("fill", 0, stream, block, (1 << 20).to_bytes(4, "little"), 4, 160)
            environment[7] = flushing
            libm.fesetenv(environment)
            launch(half, block)
            libm.fegetenv(environment)
            still = environment[7] & 0x8040
            environment[7] = usual
            libm.fesetenv(environment)
            assert still == 0x8040, hex(still)
            assert driver.read(stream, block, 160) == (1 << 19).to_bytes(4, "little") * 40
    """)
