"""A driver that does its work late, and right: what drivers with a fault are made of."""

from __future__ import annotations

import ctypes
import queue
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

from numpy_driver import NumpyDriver

from torchgraft.driver import Capability, CompileError, CopyKind, DeviceProperties, InvalidArgument
from torchgraft.testing.protocol.driver import COUNT, MAYBE, SAXPY, SCALARS

PART = 2 << 20  # bytes: parts of memory that grows
timed = threading.local()  # .event: what the thread's next command is timed by


class Stream:
    """Work that a thread of its own does, a little late; the order is kept."""

    def __init__(self, delay: float = 0.0) -> None:
        self.delay = delay
        self.work: queue.Queue[Callable[[], None] | None] = queue.Queue()
        self.submitted = self.done = 0
        self.condition = threading.Condition()
        threading.Thread(target=self._run, daemon=True).start()

    def submit(self, action: Callable[[], None]) -> None:
        event = timed.__dict__.pop("event", None)
        with self.condition:
            self.submitted += 1
        self.work.put(action if event is None else lambda: event.measure(action))

    def _run(self) -> None:
        while action := self.work.get():
            time.sleep(self.delay)
            action()
            with self.condition:
                self.done += 1
                self.condition.notify_all()

    def close(self) -> None:
        """Lets the thread end when it has done what was submitted."""
        self.work.put(None)

    def wait(self, until: int | None = None) -> None:
        with self.condition:
            target = self.submitted if until is None else until
            self.condition.wait_for(lambda: self.done >= target)


class Event:
    def __init__(self) -> None:
        self.passed = threading.Event()
        self.passed.set()
        self.time = 0.0
        self.times = 0, 0

    def measure(self, action: Callable[[], None]) -> None:
        begin = time.perf_counter_ns()
        action()
        self.times = begin, time.perf_counter_ns()
        self.time = self.times[1] * 1e-9
        self.passed.set()

    def record(self, stream: Stream) -> None:
        passed = self.passed = threading.Event()  # the last time counts

        def arrive() -> None:
            self.time = time.perf_counter()
            passed.set()

        stream.submit(arrive)


class Sound(NumpyDriver):
    """A driver whose streams run on their own, with pinned memory, peers and a "compiler", and without a fault.

    Its compiler knows the kernels of the protocol by their sources' names and runs them in Python.
    """

    name = "sound"
    has_compiler = True
    #: Seconds for which each piece of work waits. Faults that only show in time are slow enough for a busy machine.
    delay = 0.0005
    #: The checks that are there for a fault, without "test_"; as a consequence others may fail too.
    found_by: ClassVar[tuple[str, ...]] = ()
    #: Whether the fault ends the process.
    crashes = False

    def __init__(self) -> None:
        super().__init__(memory=4 << 30, unified=True)
        self.capabilities |= Capability.COMPILER
        self.streams: list[Stream] = []
        self.pinned: dict[int, Any] = {}

    def device_properties(self, device: int) -> DeviceProperties:
        return replace(super().device_properties(device), dialect="opencl-c", max_work_group_size=64)

    def device_synchronize(self, device: int) -> None:
        for each in list(self.streams):
            each.wait()

    def reserve(self, device: int, nbytes: int) -> int:
        """All of it has memory from the beginning."""
        room = self.allocate(device, nbytes + PART)
        address = -(-room // PART) * PART
        self.allocations[device][address] = self.allocations[device].pop(room)
        return address

    def commit(self, device: int, address: int, nbytes: int) -> None:
        pass

    def decommit(self, device: int, address: int, nbytes: int) -> None:
        ctypes.memset(address, 0xEE, nbytes)

    def host_allocate(self, device: int, nbytes: int) -> int:
        buffer = ctypes.create_string_buffer(nbytes)
        self.pinned[ctypes.addressof(buffer)] = buffer
        return ctypes.addressof(buffer)

    def host_deallocate(self, device: int, address: int) -> None:
        del self.pinned[address]

    def move(self, destination: int, source: int, nbytes: int) -> None:
        ctypes.memmove(destination, source, nbytes)

    def copy(
        self, device: int, stream: Any, destination: int, source: int, nbytes: int, kind: CopyKind | int, blocking: bool
    ) -> None:
        stream.submit(lambda: self.move(destination, source, nbytes))
        if blocking:
            stream.wait()

    def copy_peer(
        self, destination_device: int, destination: int, source_device: int, source: int, nbytes: int, stream: Any
    ) -> None:
        stream.submit(lambda: self.move(destination, source, nbytes))

    def fill(self, device: int, stream: Any, destination: int, pattern: bytes, nbytes: int) -> None:
        stream.submit(lambda: self.repeat(destination, pattern, nbytes))

    def repeat(self, destination: int, pattern: bytes, nbytes: int) -> None:
        super().fill(0, None, destination, pattern, nbytes)

    def stream_create(self, device: int, priority: int) -> Any:
        stream = Stream(self.delay)
        self.streams.append(stream)
        return stream

    def stream_destroy(self, device: int, stream: Any) -> None:
        stream.close()

    def stream_synchronize(self, device: int, stream: Any) -> None:
        stream.wait()

    def stream_query(self, device: int, stream: Any) -> bool:
        return bool(stream.done == stream.submitted)

    def event_create(self, device: int, timing: bool) -> Any:
        return Event()

    def event_record(self, device: int, event: Any, stream: Any) -> None:
        event.record(stream)

    def event_wait(self, device: int, event: Any, stream: Any) -> None:
        passed = event.passed
        stream.submit(lambda: passed.wait())

    def event_query(self, device: int, event: Any) -> bool:
        return bool(event.passed.is_set())

    def event_synchronize(self, device: int, event: Any) -> None:
        event.passed.wait()

    def event_synchronize_for(self, device: int, event: Any, seconds: float) -> bool:
        return bool(event.passed.wait(seconds))

    def event_elapsed(self, device: int, start: Any, end: Any) -> float:
        return float(end.time - start.time) * 1e3

    def graph_create(self, device: int, commands: list[tuple[str, tuple[Any, ...]]]) -> Any:
        return [(name, list(arguments)) for name, arguments in commands]

    def graph_destroy(self, device: int, graph: Any) -> None:
        graph.clear()

    def graph_set_argument(self, device: int, graph: Any, command: int, argument: int, value: int | bytes) -> None:
        kernel, groups, local, args = graph[command][1]
        graph[command][1][:] = kernel, groups, local, [*args[:argument], value, *args[argument + 1 :]]

    def graph_launch(self, device: int, stream: Any, graph: Any) -> None:
        for name, arguments in graph:
            getattr(self, name)(device, stream, *arguments)

    def event_time_next(self, device: int, event: Any) -> None:
        event.passed = threading.Event()
        timed.event = event

    def event_times(self, device: int, event: Any) -> tuple[int, int]:
        times: tuple[int, int] = event.times
        return times

    def device_time(self, device: int) -> int:
        return time.perf_counter_ns()

    def module_compile(self, device: int, source: str, options: str) -> Any:
        if "$" in source:
            raise CompileError("a stray $ in the program")
        return source

    def module_load(self, device: int, binary: bytes) -> Any:
        if not binary.startswith(b"source "):
            raise CompileError("this is no binary of ours")
        return binary.removeprefix(b"source ").decode()

    def module_binary(self, module: Any) -> bytes:
        return b"source " + str(module).encode()

    def kernel_create(self, module: Any, name: str) -> Any:
        if f"void {name}(" not in module:
            raise InvalidArgument(f"the module has no kernel {name}")
        return name

    def launch(
        self,
        device: int,
        stream: Any,
        kernel: Any,
        groups: tuple[int, ...],
        local: tuple[int, ...],
        args: list[int | bytes],
    ) -> None:
        items = 1
        for g, l in zip(groups, local, strict=True):  # noqa: E741
            items *= g * l
        stream.submit(lambda: KERNELS[kernel](items, args))


def numbers(address: int | bytes, count: int, kind: Any) -> Any:
    assert isinstance(address, int)
    return (kind * count).from_address(address)


def scalar(argument: int | bytes, form: str) -> Any:
    assert isinstance(argument, bytes)
    return struct.unpack(form, argument)[0]


def saxpy(items: int, args: list[int | bytes]) -> None:
    n = min(items, scalar(args[3], "i"))
    x, y = (numbers(each, n, ctypes.c_float) for each in args[:2])
    for i in range(n):
        y[i] += scalar(args[2], "f") * x[i]


def scalars(items: int, args: list[int | bytes]) -> None:
    out = numbers(args[0], 6, ctypes.c_int64)
    for i, form in enumerate("iqIQB"):
        out[i] = scalar(args[i + 1], form)
    out[5] = int(scalar(args[6], "f") * 10)


def maybe(items: int, args: list[int | bytes]) -> None:
    numbers(args[0], 1, ctypes.c_float)[0] = numbers(args[1], 1, ctypes.c_float)[0] if scalar(args[2], "i") else 3


def count(items: int, args: list[int | bytes]) -> None:
    out = numbers(args[0], items, ctypes.c_int)
    for i in range(items):
        out[i] += i + 1


KERNELS = {SAXPY.name: saxpy, SCALARS.name: scalars, MAYBE.name: maybe, COUNT[1].name: count}
