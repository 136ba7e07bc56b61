"""Small launches in the calling thread, through PoCL's other device on the CPU, or a queue of Intel's for that."""

from __future__ import annotations

import os
import struct
import threading
import time
from collections.abc import Callable, Iterator
from ctypes import byref, c_double, c_float, c_uint32, c_uint64
from math import prod
from pathlib import Path

import pytest
from driver_table import (
    ERROR,
    INTEL,
    NOT_READY,
    OK,
    OUT_OF_MEMORY,
    POCL,
    Driver,
    DriverError,
    attempts,
    driver_of,
    floats,
    needs_caller,
    run_program,
)

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
    return driver_of(tmp_path_factory.mktemp("drivers"), POCL, INTEL)


@pytest.fixture(scope="module")
def module(driver: Driver) -> int:
    return driver.compile(SOURCE)[0]


@pytest.fixture
def stream(driver: Driver) -> Iterator[int]:
    with driver.new_stream() as stream:
        yield stream


@pytest.fixture
def block(driver: Driver, stream: int) -> Iterator[int]:
    with driver.new_block(stream, struct.pack("f", 1), 65536) as block:
        yield block


@needs_caller
def test_a_small_launch_is_done_when_the_call_returns(driver: Driver, module: int, stream: int, block: int) -> None:
    waiting = []
    for _ in range(5):  # what interrupts a launch while it is timed has workers run the next ones
        add, late = driver.kernel_of(module, "add"), 0
        for i in range(200):
            n = c_uint32(1 + i % 16)
            driver.launch(stream, add, [1], [16], block, block, block + 64, c_float(i), n, nbytes=192)
            late += driver.status("stream_query", 0, stream) != OK
            assert floats(driver.read(stream, block + 64, 64))[: n.value] == [2 + i] * n.value
        waiting.append(late)
        if late <= 5:
            break
    assert min(waiting) <= 5, waiting


def test_without_the_hint_workers_run_it(driver: Driver, module: int, stream: int, block: int) -> None:
    spin = driver.kernel_of(module, "spin")
    driver.launch(stream, spin, [1], [1], block, LONG)
    assert driver.status("stream_query", 0, stream) == NOT_READY


def test_what_takes_long_is_handed_to_workers(driver: Driver, module: int, stream: int, block: int) -> None:
    """However little memory it has: that is found when it has been run."""
    spin = driver.kernel_of(module, "spin")
    states = []
    for _ in range(6):
        driver.launch(stream, spin, [1], [1], block, LONG, nbytes=4)
        states.append(driver.status("stream_query", 0, stream))
        driver.call("stream_synchronize", 0, stream)
    assert states[-3:] == [NOT_READY] * 3


@needs_caller
def test_what_spans_the_same_memory_is_told_apart_by_its_groups(
    driver: Driver, module: int, stream: int, block: int
) -> None:
    """A small launch of a kernel that takes long with many groups is still done when the call returns."""
    spin, done = driver.kernel_of(module, "spin"), 0
    # The first one's code and data are no longer in the caches, and Intel's runtime has more of both.
    small = 1 if driver.properties().platform.decode() == POCL else 4
    for _ in range(40):
        driver.launch(stream, spin, [32], [1], block, c_uint32(LONG.value // 64), nbytes=4)
        driver.call("stream_synchronize", 0, stream)
        for _ in range(small):
            driver.launch(stream, spin, [1], [1], block, c_uint32(1), nbytes=4)
        done += driver.status("stream_query", 0, stream) == OK
        driver.call("stream_synchronize", 0, stream)
    assert done >= 20, done  # what interrupts one while it is timed has workers run the next ones


def test_commands_stay_in_order(driver: Driver, module: int, stream: int, block: int) -> None:
    """A small launch behind a long one waits for it, and is run by the workers, too."""
    spin, append = driver.kernel_of(module, "spin"), driver.kernel_of(module, "append")
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
    add, shared = driver.kernel_of(module, "add"), driver.created("stream_create", 0, 0)
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
    add, event = driver.kernel_of(module, "add"), driver.created("event_create", 0, 1)
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
    add, event = driver.kernel_of(module, "add"), driver.created("event_create", 0, 0)
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
    add = driver.kernel_of(module, "add")
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


class Failing:
    """Small launches that a worker gets together, of which the third fails: `count` says how many were run."""

    def __init__(self, driver: Driver, module: int, stream: int, block: int) -> None:
        self.driver, self.stream, self.block = driver, stream, block
        self.append, self.spin = driver.kernel_of(module, "append"), driver.kernel_of(module, "spin")
        self.numbers = block + 1024, block + 2048
        # As many as it takes to know what a launch costs, though the machine had other work during some.
        for count in (600, 3):
            driver.call("fill", 0, stream, block + 1024, b"\0", 1, 4)
            for _ in range(count):
                self.launch()
            driver.call("stream_synchronize", 0, stream)

    def launch(self) -> None:
        self.driver.launch(self.stream, self.append, [1], [1], *self.numbers, c_uint32(0), nbytes=64)

    def launch_long(self) -> None:
        self.driver.launch(self.stream, self.spin, [1], [1], self.block, LONG)

    def fail(self, what: str = "small_launch") -> None:
        self.launch_long()
        self.driver.fail(f"{what}:3")
        for _ in range(5):
            self.launch()

    def until_done(self) -> None:
        """The batch has run, and nobody has asked the stream."""
        event = self.driver.created("event_create", 0, 0)
        self.driver.call("event_record", 0, event, self.stream)
        while self.driver.call("event_query", 0, event) == NOT_READY:
            time.sleep(0.001)
        self.driver.call("event_destroy", 0, event)

    @property
    def count(self) -> int:
        return int(struct.unpack("i", self.driver.read(self.stream, self.numbers[0], 4))[0])


@pytest.fixture
def failing(driver: Driver, module: int, stream: int, block: int) -> Iterator[Failing]:
    yield Failing(driver, module, stream, block)
    driver.fail("")


def synchronize(driver: Driver, stream: int) -> None:
    driver.call("stream_synchronize", 0, stream)


def synchronize_device(driver: Driver, stream: int) -> None:
    driver.call("device_synchronize", 0)


def query(driver: Driver, stream: int) -> None:
    while driver.call("stream_query", 0, stream) == NOT_READY:
        time.sleep(0.001)


def synchronize_event(driver: Driver, stream: int) -> None:
    event = driver.created("event_create", 0, 0)
    try:
        driver.call("event_record", 0, event, stream)
        driver.call("event_synchronize", 0, event)
    finally:
        driver.call("event_destroy", 0, event)


def synchronize_event_in_pieces(driver: Driver, stream: int) -> None:
    event = driver.created("event_create", 0, 0)
    try:
        driver.call("event_record", 0, event, stream)
        while driver.call("event_synchronize_for", 0, event, 1_000_000) == NOT_READY:
            pass
    finally:
        driver.call("event_destroy", 0, event)


def read(driver: Driver, stream: int) -> None:
    address = driver.created("allocate", 0, 4)
    try:
        driver.read(stream, address, 4)
    finally:
        driver.call("deallocate", 0, address)


def fill(driver: Driver, stream: int) -> None:
    address = driver.created("allocate", 0, 4)
    try:
        driver.call("fill", 0, stream, address, b"\0", 1, 4)
    finally:
        driver.call("deallocate", 0, address)


WAITS = [synchronize, synchronize_device, query, synchronize_event, synchronize_event_in_pieces, read]


@needs_caller
@pytest.mark.parametrize("done", [False, True], ids=["running", "done"])
@pytest.mark.parametrize("wait", WAITS)
def test_a_failure_in_a_batch_is_told(
    failing: Failing, driver: Driver, stream: int, wait: Callable[[Driver, int], None], done: bool
) -> None:
    """Once, by whoever waits first. What came behind it in the batch is not run; what is launched later is."""
    failing.fail()
    if done:
        failing.until_done()
    with pytest.raises(DriverError, match="earlier work failed: small_launch: fails because") as error:
        wait(driver, stream)
    assert error.value.status == ERROR
    assert driver.call("stream_query", 0, stream) == OK
    driver.call("device_synchronize", 0)
    assert failing.count == 5
    failing.launch_long()
    for _ in range(3):
        failing.launch()
    assert failing.count == 8


@needs_caller
@pytest.mark.parametrize("next_call", [read, fill])
def test_a_query_does_not_hide_a_failure(
    failing: Failing, driver: Driver, stream: int, next_call: Callable[[Driver, int], None]
) -> None:
    """Whoever asks in order to copy or fill by himself takes a failure for a no, and then has the stream do it."""
    failing.fail()
    failing.until_done()
    assert driver.status("stream_query", 0, stream) == ERROR
    with pytest.raises(DriverError, match="earlier work failed"):
        next_call(driver, stream)
    assert failing.count == 5


@needs_caller
def test_a_launch_tells_what_failed_before(failing: Failing, driver: Driver, stream: int) -> None:
    failing.fail()
    failing.until_done()
    with pytest.raises(DriverError, match="earlier work failed"):
        failing.launch()
    failing.launch()
    driver.call("stream_synchronize", 0, stream)


@needs_caller
def test_a_later_failure_is_told_though_a_query_has_told_one(failing: Failing, driver: Driver, stream: int) -> None:
    for _ in range(2):
        failing.fail()
        failing.until_done()
        assert driver.status("stream_query", 0, stream) == ERROR
    assert driver.status("stream_query", 0, stream) == OK


@needs_caller
def test_a_failure_holds_up_no_launch(failing: Failing, driver: Driver, stream: int) -> None:
    """Launches that follow without a wait are not added to the batch that failed."""
    failing.fail()
    failing.until_done()
    failing.driver.fail("")
    failing.launch_long()
    for _ in range(3):
        failing.launch()
    with pytest.raises(DriverError, match="earlier work failed"):
        driver.call("stream_synchronize", 0, stream)
    assert failing.count == 8


@needs_caller
def test_a_worker_without_memory(failing: Failing, driver: Driver, stream: int) -> None:
    failing.fail("small_launch_memory")
    with pytest.raises(DriverError, match="earlier work failed: no host memory") as error:
        driver.call("stream_synchronize", 0, stream)
    assert error.value.status == OUT_OF_MEMORY
    assert failing.count == 5


@needs_caller
def test_the_device_is_waited_for_whatever_fails(failing: Failing, driver: Driver, module: int, block: int) -> None:
    """Its memory may be freed then."""
    spin = driver.kernel_of(module, "spin")
    others = [driver.created("stream_create", 0, 0) for _ in range(4)]
    failing.fail()
    for other in others:
        driver.launch(other, spin, [1], [1], block + 4096, c_uint32(9_000_000))
    with pytest.raises(DriverError, match="earlier work failed"):
        driver.call("device_synchronize", 0)
    for other in others:
        assert driver.call("stream_query", 0, other) == OK
        driver.call("stream_destroy", 0, other)


def test_an_event_outlives_its_stream(driver: Driver, module: int, block: int) -> None:
    event, stream = driver.created("event_create", 0, 0), driver.created("stream_create", 0, 0)
    driver.launch(stream, driver.kernel_of(module, "spin"), [1], [1], block, LONG)
    driver.call("event_record", 0, event, stream)
    driver.call("stream_destroy", 0, stream)
    others = [driver.created("stream_create", 0, 0) for _ in range(8)]  # in the memory of the first, if it is free
    while driver.call("event_synchronize_for", 0, event, 1_000_000) == NOT_READY:
        pass
    driver.call("event_synchronize", 0, event)
    driver.call("event_destroy", 0, event)
    for other in others:
        driver.call("stream_destroy", 0, other)


def test_a_kernel_outlives_its_module(driver: Driver, stream: int, block: int) -> None:
    """Its program is needed when the first small launch comes."""
    module = driver.compile(SOURCE.replace("+ c", "+ 2 * c"))[0]
    add = driver.kernel_of(module, "add")
    driver.call("module_destroy", module)
    driver.launch(stream, add, [1], [16], block, block, block + 64, c_float(3), c_uint32(16), nbytes=192)
    assert floats(driver.read(stream, block + 64, 64)) == [8] * 16
    driver.call("kernel_destroy", add)


@needs_caller
@pytest.mark.usefixtures("driver")
@pytest.mark.parametrize(
    "graph", [pytest.param(False, id="batch"), pytest.param(True, id="graph", marks=pytest.mark.thorough)]
)
def test_torch_raises_what_failed(graph: bool) -> None:
    """In the main thread, which waits in pieces, and copies by itself what is small."""
    run_program(f"""
        import ctypes, time
        import torch, torchgraft_opencl
        from driver_table import LIBRARY

        torchgraft_opencl.register()
        fail = ctypes.CDLL(str(LIBRARY)).torchgraft_opencl_fail
        x, last, large = (torch.zeros(n, device="ocl") for n in (64, 64, 1 << 22))
        large = large.view(2048, 2048)

        def launch():
            for _ in range(5):
                x.add_(1)
            last.add_(1)

        for _ in range(5):
            launch()
            torch.ocl.synchronize()
        if {graph}:
            recorded = torch.ocl.Graph()
            with torch.ocl.graph(recorded):
                launch()
            launch = recorded.replay

        event = torch.ocl.Event()
        waits = dict(
            device=torch.ocl.synchronize,
            stream=torch.ocl.current_stream().synchronize,
            event=lambda: (event.record(), event.synchronize()),
            query=torch.ocl.current_stream().query,
            item=lambda: x[0].item(),
            copy=x.cpu,
            large=large.cpu,
            zero=x.zero_,
            launch=lambda: x + 1,
        )

        do_not_wait = ("query", "zero", "launch")

        def is_told(wait, done):
            # False if nothing failed: on a busy machine the launches may come when the stream is idle, and then no
            # worker gets them.
            before = last[0].item()
            for _ in range(3):
                large @ large  # takes a while
            fail(b"small_launch:2")
            try:
                launch()
            except torch.AcceleratorError:  # a graph's launches were run at once
                fail(b"")
                return False
            if done:
                event.record()
                while not event.query():
                    time.sleep(0.001)
            try:
                wait()
                if name in do_not_wait:
                    torch.ocl.synchronize()  # they tell what they know, and on a busy machine may not ask
            except torch.AcceleratorError as error:
                assert "earlier work failed: small_launch" in str(error), (name, done, error)
                return True
            finally:
                fail(b"")
            torch.ocl.synchronize()
            if last[0].item() == before:
                raise SystemExit(f"{{name}} {{done}}: no error")
            for _ in range(100):
                launch()  # what was interrupted when it was timed seems to be long
            return False

        for name, wait in waits.items():
            for done in (False, True):
                if not done and name in do_not_wait:
                    continue
                if not any(is_told(wait, done) for _ in range(100)):
                    raise SystemExit(f"{{name}} {{done}}: nothing failed")
                torch.ocl.synchronize()
                assert torch.equal((x * 0 + 1).cpu(), torch.ones(64)), (name, done)
    """)


# As codegen/dialects/opencl.py marks what may be divided along every dimension.
DIVISIBLE = """
#ifdef __SPIR__
__kernel void tg_divisible_7() {}
#endif
__kernel __attribute__((reqd_work_group_size(1, 1, 1))) void count(__global int* times, int x, int y) {
  times[(get_global_id(2) * y + get_global_id(1)) * x + get_global_id(0)] += 1;
}
__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void meet(volatile __global int* here, __global int* met, int patience) {
  const int own = get_global_id(0);
  here[own] = 1;
  for (int i = 0; i < patience && !met[own]; ++i) met[own] = here[1 - own];
}
"""
SHARED = 1 << 20  # bytes of a launch that is not so small that one thread does it


@pytest.mark.parametrize("grid", [(2,), (1001,), (40, 3), (3, 40), (5, 7, 31), (1, 1, 64)], ids=str)
def test_each_group_of_a_shared_launch_runs_once(
    driver: Driver, stream: int, block: int, grid: tuple[int, ...]
) -> None:
    count = driver.kernel_of(driver.compile(DIVISIBLE)[0], "count")
    x, y, groups = grid[0], (*grid, 1)[1], prod(grid)
    driver.call("fill", 0, stream, block, b"\0", 1, 4 * groups)
    for _ in range(100):
        driver.launch(stream, count, [*grid], [1] * len(grid), block, c_uint32(x), c_uint32(y), nbytes=SHARED)
    assert list(struct.unpack(f"{groups}i", driver.read(stream, block, 4 * groups))) == [100] * groups


def test_two_threads_share_a_launch(driver: Driver, stream: int, block: int) -> None:
    """Two groups meet, though neither waits for ever: one thread would run the first to its end."""
    if driver.properties().compute_units < 2 or len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two cores")
    meet = driver.kernel_of(driver.compile(DIVISIBLE)[0], "meet")
    for _ in attempts():
        driver.call("fill", 0, stream, block, b"\0", 1, 256)
        driver.launch(stream, meet, [2], [1], block, block + 128, c_uint32(1 << 20), nbytes=SHARED)
        driver.call("stream_synchronize", 0, stream)
        if struct.unpack("2i", driver.read(stream, block + 128, 8)) == (1, 1):
            return
    pytest.fail("they never met")


def test_a_thread_with_a_small_stack(driver: Driver, module: int, stream: int, block: int) -> None:
    """What does not fit there is run by workers, who have stacks for it."""
    add, results = driver.kernel_of(module, "add"), []

    def launch() -> None:
        for i in range(50):
            driver.launch(stream, add, [1], [16], block, block, block + 64, c_float(i), c_uint32(16), nbytes=192)
            results.append(floats(driver.read(stream, block + 64, 64)))

    before = threading.stack_size(512 << 10)
    try:
        thread = threading.Thread(target=launch)
        thread.start()
    finally:
        threading.stack_size(before)
    thread.join()
    assert results == [[2 + i] * 16 for i in range(50)]


@pytest.mark.parametrize("chosen", ["", "pthread", "basic"])
def test_users_see_what_they_have_chosen(driver: Driver, chosen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other device is hidden, a choice of the user's own stays, and no child inherits ours."""
    if driver.properties().platform.decode() != POCL:
        pytest.skip("needs PoCL")
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
    monkeypatch.delenv("POCL_DEVICES", raising=False)
    run_program(program, **({"POCL_DEVICES": chosen} if chosen else {}))
