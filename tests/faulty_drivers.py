"""Drivers that are broken on purpose, one fault each, and the check of the protocol that finds it.

As a file of tests it runs on each of them the checks that must find the fault and a few that show the rest to be in
order, or with TORCHGRAFT_TEST_PROTOCOL=whole all of the protocol; test_protocol.py looks at what failed.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import resource
import time
from dataclasses import replace
from typing import Any, ClassVar

import pytest
from sound_driver import KERNELS, Event, Sound, Stream, timed

from torchgraft import Driver
from torchgraft.driver import Capability, CompileError, CopyKind, DeviceProperties, InvalidArgument
from torchgraft.testing.protocol import DriverProtocol

MIB = 1 << 20
SLOW = 0.004  # seconds
BUSY = 300_000  # bytes; Stream takes its time as it is


def segfault() -> None:
    """What a driver does that follows a wrong pointer, without a file of the process's memory."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    ctypes.string_at(0)


# Devices


class EveryDeviceExists(Sound):
    found_by = ("no_such_device",)

    def device_properties(self, device: int) -> DeviceProperties:
        return super().device_properties(0)


class TheWrongException(Sound):
    found_by = ("no_such_device",)

    def device_properties(self, device: int) -> DeviceProperties:
        if device not in range(self.devices):
            raise KeyError(device)
        return super().device_properties(device)


class ChangingProperties(Sound):
    found_by = ("properties_are_constant",)
    clock: ClassVar[Any] = itertools.count(1000)

    def device_properties(self, device: int) -> DeviceProperties:
        return replace(super().device_properties(device), clock_mhz=next(self.clock))


class NoName(Sound):
    found_by = ("properties",)

    def device_properties(self, device: int) -> DeviceProperties:
        return replace(super().device_properties(device), name="")


class ACompilerWithoutALanguage(Sound):
    found_by = ("claims",)

    def device_properties(self, device: int) -> DeviceProperties:
        # Without the claim the checks of kernels are skipped, so that only the claim itself is looked at.
        return replace(super().device_properties(device), capabilities=Capability.EVENT_TIMING)


class MoreFreeThanThereIs(Sound):
    found_by = ("memory_info",)

    def memory_info(self, device: int) -> tuple[int, int]:
        return self.memory + 1, self.memory

    def allocate(self, device: int, nbytes: int) -> int:
        if nbytes > self.memory:
            raise MemoryError("full")
        return super().allocate(device, nbytes)


# Memory


class Unaligned(Sound):
    found_by = ("alignment",)

    def allocate(self, device: int, nbytes: int) -> int:
        return super().allocate(device, nbytes + 8) + 8

    def deallocate(self, device: int, address: int) -> None:
        super().deallocate(device, address - 8)


class Overlapping(Sound):
    """Rounds sizes down to whole kilobytes, and hands out one region from the bottom up."""

    found_by = ("allocations_do_not_overlap", "memory_keeps_its_content", "threads")

    def __init__(self) -> None:
        super().__init__()
        self.region = 0
        self.used = 0

    def allocate(self, device: int, nbytes: int) -> int:
        if nbytes > self.memory:
            raise MemoryError("full")
        if nbytes > 10_000 or nbytes % 1024 == 0 or nbytes in (1000, 3000):
            return super().allocate(device, nbytes)
        self.region = self.region or super().allocate(device, 64 * MIB)
        self.used += nbytes // 1024 * 1024 + (64 if nbytes < 64 else 0)
        return self.region + self.used

    def deallocate(self, device: int, address: int) -> None:
        if address in self.allocations[device]:
            super().deallocate(device, address)


class Leaking(Sound):
    found_by = ("freed_memory_comes_back",)

    def deallocate(self, device: int, address: int) -> None:
        pass


class PartsLieApart(Sound):
    """A copy ends where a part does."""

    found_by = ("memory_that_grows",)

    def __init__(self) -> None:
        super().__init__()
        self.ranges: dict[int, int] = {}

    def reserve(self, device: int, nbytes: int) -> int:
        address = super().reserve(device, nbytes)
        self.ranges[address] = nbytes
        return address

    def move(self, destination: int, source: int, nbytes: int) -> None:
        for begin, size in self.ranges.items():
            if begin <= destination < begin + size:
                nbytes = min(nbytes, 2 * MIB - (destination - begin) % (2 * MIB))
        super().move(destination, source, nbytes)


class LosesTheNextPart(Sound):
    found_by = ("memory_that_shrinks",)

    def decommit(self, device: int, address: int, nbytes: int) -> None:
        super().decommit(device, address, nbytes + MIB)


class KeepsReservedMemory(Sound):
    found_by = ("reserved_addresses_come_back",)

    def reserve(self, device: int, nbytes: int) -> int:
        super().reserve(device, nbytes)
        return super().reserve(device, nbytes)


class FullIsAnError(Sound):
    found_by = ("out_of_memory", "a_failed_call_changes_nothing")

    def allocate(self, device: int, nbytes: int) -> int:
        try:
            return super().allocate(device, nbytes)
        except MemoryError as error:
            raise RuntimeError(str(error)) from None


class FullLosesAll(Sound):
    found_by = ("a_failed_call_changes_nothing",)

    def allocate(self, device: int, nbytes: int) -> int:
        try:
            return super().allocate(device, nbytes)
        except MemoryError:
            for address, array in self.allocations[device].items():
                self.repeat(address, b"\0", array.size - 64)
            raise


class PinnedMemoryElsewhere(Sound):
    """The device reads a copy of it, made when it was allocated."""

    found_by = ("pinned_memory",)

    def move(self, destination: int, source: int, nbytes: int) -> None:
        super().move(destination, destination if source in self.pinned else source, nbytes)


class NotUnified(Sound):
    """What the host sees lies beside what the device uses."""

    found_by = ("unified_memory",)

    def allocate(self, device: int, nbytes: int) -> int:
        return super().allocate(device, nbytes + (1 << 20))

    def copy(self, device: int, stream: Any, destination: int, source: int, nbytes: int, *rest: Any) -> None:
        kind, blocking = rest
        if nbytes in (13, 3000):
            destination += (1 << 19) * (kind == CopyKind.HOST_TO_DEVICE)
            source += (1 << 19) * (kind == CopyKind.DEVICE_TO_HOST)
        super().copy(device, stream, destination, source, nbytes, kind, blocking)


# Copies and fills


class OnlyWholeAllocations(Sound):
    """Finds an allocation by its start, and takes an address inside it for the start."""

    found_by = ("copies_inside_allocations", "copies_inside_one_allocation")

    def start(self, address: int) -> int:
        for each in self.allocations:
            for begin, array in list(each.items()):
                if begin < address < begin + array.size - 64 and array.size < 8192:
                    return begin
        return address

    def move(self, destination: int, source: int, nbytes: int) -> None:
        super().move(self.start(destination), self.start(source), nbytes)


class RoundsUp(Sound):
    """Copies whole words."""

    found_by = ("copies_inside_allocations", "fill")

    def move(self, destination: int, source: int, nbytes: int) -> None:
        ctypes.memmove(destination, source, nbytes)
        if nbytes % 4 == 3 and nbytes > 60:
            self.repeat(destination + nbytes, b"?", 1)

    def repeat(self, destination: int, pattern: bytes, nbytes: int) -> None:
        super().repeat(destination, pattern, nbytes)
        if nbytes == 3:
            super().repeat(destination + nbytes, b"?", 1)


class NeverBlocks(Sound):
    """Returns at once from large copies, whatever is asked."""

    delay = SLOW
    found_by: ClassVar[tuple[str, ...]] = ("a_blocking_write_has_read_its_source", "a_blocking_read_has_arrived")

    def copy(
        self, device: int, stream: Any, destination: int, source: int, nbytes: int, kind: CopyKind | int, blocking: bool
    ) -> None:
        super().copy(device, stream, destination, source, nbytes, kind, blocking and nbytes != BUSY)


class WordsOnly(Sound):
    """Fills with the pattern's first four bytes."""

    found_by = ("fill",)

    def repeat(self, destination: int, pattern: bytes, nbytes: int) -> None:
        super().repeat(destination, pattern[:4], nbytes)


class FillsWithText(Sound):
    """Takes the pattern for a text that ends at its first zero byte."""

    found_by = ("fill_with_zero_bytes_in_the_pattern",)

    def repeat(self, destination: int, pattern: bytes, nbytes: int) -> None:
        pattern = pattern.split(b"\0")[0] or b"\0" if len(pattern) == 4 else pattern
        super().repeat(destination, pattern, nbytes)


class PeersMixedUp(Sound):
    found_by = ("copy_peer",)

    def copy_peer(
        self, destination_device: int, destination: int, source_device: int, source: int, nbytes: int, stream: Any
    ) -> None:
        stream.submit(lambda: self.move(source, destination, nbytes))


# Streams


class OutOfOrder(Sound):
    """Fills overtake the copies before them."""

    delay = SLOW
    found_by = ("a_stream_keeps_the_order",)

    def fill(self, device: int, stream: Any, destination: int, pattern: bytes, nbytes: int) -> None:
        self.repeat(destination, pattern, nbytes)


class SynchronizeDoesNotWait(Sound):
    delay = SLOW
    found_by = (
        "copies_have_arrived_when_the_stream_is_synchronized", "a_stream_keeps_the_order",
        "a_synchronized_stream_is_idle", "a_stream_waits_for_an_event", "launches_and_copies_keep_the_order",
    )  # fmt: skip

    def stream_synchronize(self, device: int, stream: Any) -> None:
        pass


class AlwaysIdle(Sound):
    delay = SLOW
    found_by = ("a_stream_that_says_idle_has_done_its_work",)

    def stream_query(self, device: int, stream: Any) -> bool:
        return True


class AWaitWithALimitThatDoesNotWait(Sound):
    delay = SLOW
    found_by = ("a_wait_with_a_limit",)

    def event_synchronize_for(self, device: int, event: Any, seconds: float) -> bool:
        return True


class AWaitWithALimitThatGivesUp(Sound):
    delay = SLOW
    found_by = ("a_wait_with_a_limit",)

    def event_synchronize_for(self, device: int, event: Any, seconds: float) -> bool:
        return self.event_query(device, event)


class NeverIdle(Sound):
    found_by = (
        "a_stream_that_says_idle_has_done_its_work", "a_synchronized_stream_is_idle",
        "device_synchronize_waits_for_all_streams",
    )  # fmt: skip

    def stream_query(self, device: int, stream: Any) -> bool:
        return False


class DeviceSynchronizeForgetsStreams(Sound):
    delay = SLOW
    found_by = ("device_synchronize_waits_for_all_streams",)

    def device_synchronize(self, device: int) -> None:
        self.streams[0].wait()

    def deallocate(self, device: int, address: int) -> None:
        super().device_synchronize(device)  # so that the fault has no other consequence
        super().deallocate(device, address)


class OneStreamForAll(Sound):
    """Destroying one stream ends the others of its priority."""

    found_by = ("streams_are_objects_of_their_own", "threads")

    def __init__(self) -> None:
        super().__init__()
        self.alive: dict[Any, bool] = {}

    def stream_create(self, device: int, priority: int) -> Any:
        stream = super().stream_create(device, priority)
        self.alive[stream] = True
        return stream

    def stream_destroy(self, device: int, stream: Any) -> None:
        self.alive = dict.fromkeys(self.alive, False)

    def copy(self, device: int, stream: Any, *rest: Any) -> None:
        if not self.alive[stream]:
            raise InvalidArgument("the stream has been destroyed")
        super().copy(device, stream, *rest)


class UrgentOnly(Sound):
    found_by = ("priorities_are_hints",)

    def stream_create(self, device: int, priority: int) -> Any:
        if priority not in (0, -1):
            raise InvalidArgument(f"no priority {priority}")
        return super().stream_create(device, priority)


# Events


class EventsPassAtOnce(Sound):
    delay = SLOW
    found_by = ("an_event_that_says_passed_has_passed",)

    def event_query(self, device: int, event: Any) -> bool:
        return True


class EventsNeverPass(Sound):
    found_by = ("an_event_that_has_passed", "an_event_that_says_passed_has_passed")

    def event_query(self, device: int, event: Any) -> bool:
        return False


class EventsAreNotWaitedFor(Sound):
    delay = SLOW
    found_by = ("an_event_that_has_passed",)

    def event_synchronize(self, device: int, event: Any) -> None:
        pass


class TheFirstRecordingCounts(Sound):
    delay = SLOW
    found_by = ("an_event_that_has_passed", "a_stream_waits_for_an_event")

    def event_create(self, device: int, timing: bool) -> Any:
        event = Event()
        event.time = -1
        return event

    def event_record(self, device: int, event: Any, stream: Any) -> None:
        if event.time == -1:
            event.record(stream)
            event.time = 0.0


class StreamsDoNotWait(Sound):
    delay = SLOW
    found_by = ("a_stream_waits_for_an_event",)

    def event_wait(self, device: int, event: Any, stream: Any) -> None:
        pass


class Seconds(Sound):
    found_by = ("elapsed_time",)

    def event_elapsed(self, device: int, start: Any, end: Any) -> float:
        return super().event_elapsed(device, start, end) / 1e3


class NoSign(Sound):
    found_by = ("elapsed_time",)

    def event_elapsed(self, device: int, start: Any, end: Any) -> float:
        return abs(super().event_elapsed(device, start, end))


class TimesInMicroseconds(Sound):
    found_by = ("times_of_a_command",)

    def event_times(self, device: int, event: Any) -> tuple[int, int]:
        begin, end = super().event_times(device, event)
        return begin // 1000, end // 1000

    def device_time(self, device: int) -> int:
        return super().device_time(device) // 1000


class SecondsTimesAThousand(Sound):
    """Nanoseconds are right, and the seconds before them are taken for milliseconds."""

    found_by = ("elapsed_time_beyond_a_second", "times_beyond_a_second")

    @staticmethod
    def wrong(nanoseconds: int) -> int:
        seconds, rest = divmod(nanoseconds, 1_000_000_000)
        return seconds * 1000 + rest

    def event_elapsed(self, device: int, start: Any, end: Any) -> float:
        return (self.wrong(int(end.time * 1e9)) - self.wrong(int(start.time * 1e9))) / 1e6

    def event_times(self, device: int, event: Any) -> tuple[int, int]:
        begin, end = super().event_times(device, event)
        return self.wrong(begin), self.wrong(end)

    def device_time(self, device: int) -> int:
        return self.wrong(super().device_time(device))


class AnotherClock(Sound):
    found_by = ("times_of_a_command",)

    def device_time(self, device: int) -> int:
        return 0


class TimesEveryCommand(Sound):
    found_by = ("an_event_times_one_command",)

    def event_time_next(self, device: int, event: Any) -> None:
        super().event_time_next(device, event)
        self.timing = event

    def copy(
        self, device: int, stream: Any, destination: int, source: int, nbytes: int, kind: CopyKind | int, blocking: bool
    ) -> None:
        if event := getattr(self, "timing", None):
            timed.event = event
        super().copy(device, stream, destination, source, nbytes, kind, blocking)


# Graphs


class GraphsInAnyOrder(Sound):
    found_by = ("a_graph",)

    def graph_launch(self, device: int, stream: Any, graph: Any) -> None:
        super().graph_launch(device, stream, graph[::-1])


class OneArgumentForAllReplays(Sound):
    """Arguments are read when the work is done, not when the graph is launched."""

    found_by = ("a_graph_with_another_argument",)

    def graph_launch(self, device: int, stream: Any, graph: Any) -> None:
        for name, arguments in graph:
            if name == "launch":
                stream.submit(lambda given=arguments: KERNELS[given[0]](given[1][0] * given[2][0], given[3]))
            else:
                getattr(self, name)(device, stream, *arguments)


# Threads


class OneStagingBuffer(Sound):
    """Small copies go through one buffer, which no lock guards."""

    found_by = ("threads", "threads_that_share_a_kernel", "threads_that_share_a_stream")

    def __init__(self) -> None:
        super().__init__()
        self.staging = ctypes.create_string_buffer(MIB)

    def copy(
        self, device: int, stream: Any, destination: int, source: int, nbytes: int, kind: CopyKind | int, blocking: bool
    ) -> None:
        staged = blocking and nbytes < MIB and kind == CopyKind.HOST_TO_DEVICE
        if staged:
            ctypes.memmove(self.staging, source, nbytes)
            time.sleep(0.0005)
        super().copy(
            device, stream, destination, ctypes.addressof(self.staging) if staged else source, nbytes, kind, blocking
        )


# Kernels


class NoLog(Sound):
    found_by = ("a_refused_source",)

    def module_compile(self, device: int, source: str, options: str) -> Any:
        if "$" in source:
            raise CompileError("")
        return super().module_compile(device, source, options)


class AcceptsAnything(Sound):
    found_by = ("a_refused_source",)

    def module_compile(self, device: int, source: str, options: str) -> Any:
        return source


class TheWrongCompileError(Sound):
    found_by = ("a_refused_source",)

    def module_compile(self, device: int, source: str, options: str) -> Any:
        try:
            return super().module_compile(device, source, options)
        except CompileError as error:
            raise ValueError(str(error)) from None


class EveryKernelExists(Sound):
    found_by = ("no_such_kernel",)

    def kernel_create(self, module: Any, name: str) -> Any:
        return name


class KernelsDieWithTheirModule(Sound):
    found_by = ("a_kernel_outlives_its_module",)

    def kernel_create(self, module: Any, name: str) -> Any:
        super().kernel_create(module, name)
        self.dead: set[str] = set()
        return name

    def module_destroy(self, module: Any) -> None:
        self.dead.add(module)

    def launch(self, device: int, stream: Any, kernel: Any, *rest: Any) -> None:
        if any(f"void {kernel}(" in each for each in self.dead):
            raise InvalidArgument("the module has been destroyed")
        super().launch(device, stream, kernel, *rest)


class KernelsAreFreedWithTheirModule(Sound):
    """And a launch of one of them looks for it where it was."""

    found_by = ("a_kernel_outlives_its_module",)
    crashes = True

    def kernel_create(self, module: Any, name: str) -> Any:
        super().kernel_create(module, name)
        self.freed: set[str] = set()
        return name

    def module_destroy(self, module: Any) -> None:
        self.freed.add(module)

    def launch(self, device: int, stream: Any, kernel: Any, *rest: Any) -> None:
        if any(f"void {kernel}(" in each for each in self.freed):
            segfault()
        super().launch(device, stream, kernel, *rest)


class LoadsAnything(Sound):
    found_by = ("a_damaged_binary",)

    def module_load(self, device: int, binary: bytes) -> Any:
        return binary.removeprefix(b"source ").decode()


class EmptyBinaries(Sound):
    found_by = ("a_module_as_binary",)

    def module_binary(self, module: Any) -> bytes:
        return b""


class PointersAreNeverNull(Sound):
    found_by = ("a_pointer_may_be_null", "a_kernel_outlives_its_module", "a_module_as_binary")

    def launch(self, *given: Any) -> None:
        if 0 in given[-1]:
            raise InvalidArgument("a null pointer")
        super().launch(*given)


class FollowsNullPointers(Sound):
    found_by = ("a_pointer_may_be_null",)
    crashes = True

    def launch(self, *given: Any) -> None:
        if 0 in given[-1]:
            segfault()
        super().launch(*given)


class AbortsWhenFull(Sound):
    found_by = ("out_of_memory",)
    crashes = True

    def allocate(self, device: int, nbytes: int) -> int:
        try:
            return super().allocate(device, nbytes)
        except MemoryError:
            os.abort()


class OneDimension(Sound):
    found_by = ("launches_of_one_two_and_three_dimensions",)

    def launch(self, device: int, stream: Any, kernel: Any, groups: Any, local: Any, args: Any) -> None:
        super().launch(device, stream, kernel, groups[:1], local[:1], args)


class ScalarsOfFourBytes(Sound):
    found_by = ("scalars_of_every_size",)

    def launch(self, device: int, stream: Any, kernel: Any, groups: Any, local: Any, args: Any) -> None:
        args = [each[:4].ljust(len(each), b"\0") if isinstance(each, bytes) else each for each in args]
        super().launch(device, stream, kernel, groups, local, args)


class LaunchesOvertake(Sound):
    """Kernels run at once, whatever waits in the stream."""

    delay = SLOW
    found_by = ("launches_and_copies_keep_the_order",)

    def launch(self, device: int, stream: Any, *rest: Any) -> None:
        super().launch(device, now := Stream(), *rest)
        now.wait()


class OneSetOfArguments(Sound):
    """Arguments are set on the kernel, which all threads share, before it is launched."""

    found_by = ("threads_that_share_a_kernel",)

    def launch(self, device: int, stream: Any, kernel: Any, groups: Any, local: Any, args: Any) -> None:
        self.arguments = args
        time.sleep(0.002)  # for the others to come between, also on a busy machine
        super().launch(device, stream, kernel, groups, local, self.arguments)


FAULTS: list[type[Sound]] = Sound.__subclasses__()
# What every driver is asked where not all of the protocol is: a fault must not keep all else from being looked at.
CORE = (
    "properties",
    "memory_keeps_its_content",
    "copies_inside_one_allocation",
    "a_synchronized_stream_is_idle",
    "a_kernel",
)


def _protocol_of(kind: type[Sound]) -> type[DriverProtocol]:
    class Checked(DriverProtocol):
        busy_bytes = BUSY
        patience = 0.3

        @pytest.fixture
        def driver(self) -> Driver:
            return drivers[kind]

    whole = kind is Sound or os.environ.get("TORCHGRAFT_TEST_PROTOCOL") == "whole"
    checks = [name for name in dir(DriverProtocol) if name.startswith("test_")]
    core = CORE if kind.crashes else CORE[:2]  # after a crash all else has to be as it was
    asked = {f"test_{name}" for name in (*kind.found_by, *core)}
    # A test that is None is none, to pytest.
    return type(f"Test{kind.__name__}", (Checked,), {name: None for name in checks if not (whole or name in asked)})


drivers = {kind: kind() for kind in [Sound, *FAULTS]}
for _kind in drivers:
    globals()[f"Test{_kind.__name__}"] = _protocol_of(_kind)
