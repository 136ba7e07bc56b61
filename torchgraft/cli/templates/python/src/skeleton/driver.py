"""The driver of skeleton devices: filling it in is all that is left to do.

It works as it is, on memory of the host. Replace the bodies, a method at a time; `pytest` keeps telling which rules
hold. What a method may rely on and must keep to stands in its docstring, what holds for all of them in
`torchgraft.Driver`. In short:

* Methods are called from any thread, with the GIL. Let it go while you wait for the device (ctypes does).
* Addresses are integers, and any address inside an allocation is as good as its start.
* To fail is to raise: `MemoryError`, `NotImplementedError`, `InvalidArgument`; anything else becomes
  torch.AcceleratorError. A failed call changes nothing.
"""

from __future__ import annotations

import ctypes
import threading
import time
from dataclasses import dataclass
from typing import Any

from torchgraft.driver import Capability, CopyKind, DeviceKind, DeviceProperties, Driver, InvalidArgument

__all__ = ["SkeletonDriver", "driver"]

DEVICES = 1  # two work as well; the tests then copy between them, too
TOTAL_MEMORY = 4 << 30  # bytes of each device
ALIGNMENT = 64  # bytes


@dataclass(eq=False)
class Stream:
    """A queue of work. This device has done its work when a call returns, so that nothing is ever in the queue."""

    device: int
    priority: int


@dataclass(eq=False)
class Event:
    """A point in a stream's work."""

    timing: bool
    recorded_at: float | None = None  # seconds


class SkeletonDriver(Driver):
    """Devices in the host's memory."""

    name = "skeleton"

    def __init__(self) -> None:
        # Only what costs nothing: devices are opened by device_count, at their first use.
        self._lock = threading.Lock()
        self._buffers: list[dict[int, ctypes.Array[ctypes.c_char]]] = []
        self._pinned: dict[int, ctypes.Array[ctypes.c_char]] = {}
        self._used: list[int] = []

    # ---- Devices ----

    def device_count(self) -> int:
        """Opens the devices and returns how many there are. Called once, at the first use.

        Without a device return 0. An exception is kept, and told to whoever uses the device.
        """
        self._buffers = [{} for _ in range(DEVICES)]
        self._used = [0] * DEVICES
        return DEVICES

    def device_properties(self, device: int) -> DeviceProperties:
        """What is known of a device: always the same. `InvalidArgument` for a number that none has.

        `capabilities` are promises. UNIFIED_MEMORY: the host may use device addresses, which saves the fallback its
        copies. EVENT_TIMING: `event_elapsed` works. COMPILER: see "Kernels" below. FLOAT64, FLOAT16,
        ATOMIC_INT64, SUBGROUPS: what kernels may use.
        """
        if device not in range(DEVICES):
            raise InvalidArgument(f"there is no device {device}; there are {DEVICES}")
        return DeviceProperties(
            name="Skeleton on host memory",
            vendor="",
            driver_version="0.1.0",
            kind=DeviceKind.CPU,
            capabilities=Capability.UNIFIED_MEMORY | Capability.EVENT_TIMING,
            total_memory=TOTAL_MEMORY,
            address_align=ALIGNMENT,
        )

    def device_synchronize(self, device: int) -> None:
        """Waits for all work on all streams of the device. Here there is never any."""

    def memory_info(self, device: int) -> tuple[int, int]:
        """Free and total bytes, for `torch.skeleton.mem_get_info`."""
        return TOTAL_MEMORY - self._used[device], TOTAL_MEMORY

    # ---- Memory ----

    def allocate(self, device: int, nbytes: int) -> int:
        """The address of new memory; `nbytes` is never 0.

        The address is a multiple of `address_align`. Where there is no more memory raise `MemoryError`: torchgraft
        then frees its cache and tries again. It caches, so that this need not be quick.
        """
        with self._lock:
            if nbytes > TOTAL_MEMORY - self._used[device]:
                raise MemoryError(f"{nbytes} bytes were asked for, {TOTAL_MEMORY - self._used[device]} are free")
            self._used[device] += nbytes
        buffer = (ctypes.c_char * (nbytes + ALIGNMENT))()
        address = -(-ctypes.addressof(buffer) // ALIGNMENT) * ALIGNMENT
        self._buffers[device][address] = buffer  # keeps the memory alive
        return address

    def deallocate(self, device: int, address: int) -> None:
        """Frees what `allocate` returned. Called only when no submitted work uses the memory."""
        buffer = self._buffers[device].pop(address, None)
        if buffer is None:
            raise InvalidArgument(f"{address:#x} is not the address of an allocation of device {device}")
        with self._lock:
            self._used[device] -= len(buffer) - ALIGNMENT

    def host_allocate(self, device: int, nbytes: int) -> int:
        """Pinned host memory, for `tensor.pin_memory()`: memory that the device can copy from while the host goes on.

        Optional, together with `host_deallocate`: without them ordinary host memory serves.
        """
        buffer = (ctypes.c_char * nbytes)()
        address = ctypes.addressof(buffer)
        self._pinned[address] = buffer
        return address

    def host_deallocate(self, device: int, address: int) -> None:
        """Frees what `host_allocate` returned."""
        if self._pinned.pop(address, None) is None:
            raise InvalidArgument(f"{address:#x} is not the address of pinned memory")

    # ---- Copies ----

    def copy(
        self, device: int, stream: Any, destination: int, source: int, nbytes: int, kind: CopyKind | int, blocking: bool
    ) -> None:
        """Copies after all earlier work of the stream; with `blocking` it returns when the copy is done.

        `kind` says which of the addresses belong to the host. A host side that is not pinned stays valid until the
        stream has run the copy.
        """
        ctypes.memmove(destination, source, nbytes)

    def copy_peer(
        self, destination_device: int, destination: int, source_device: int, source: int, nbytes: int, stream: Any
    ) -> None:
        """Copies between two devices of this driver, on a stream of the destination's device; the source is ready.

        Optional: without it such copies go by way of the host.
        """
        ctypes.memmove(destination, source, nbytes)

    def fill(self, device: int, stream: Any, destination: int, pattern: bytes, nbytes: int) -> None:
        """Repeats a pattern of 1, 2, 4, 8 or 16 bytes; `nbytes` is a multiple of its length.

        `torch.zeros` and `torch.full` come here. The form of the base class copies from the host.
        """
        if len(pattern) == 1:
            ctypes.memset(destination, pattern[0], nbytes)
        else:
            super().fill(device, stream, destination, pattern, nbytes)

    # ---- Streams ----
    #
    # Work submitted to one stream runs in the order of submission; streams need not wait for each other. A device
    # that queues its work overrides all methods of streams and events so that they are true of the queue.

    def stream_create(self, device: int, priority: int) -> Stream:
        """A queue of work. Lower priorities are more urgent, 0 is the default; a hint. Any object will do."""
        return Stream(device, priority)

    def stream_destroy(self, device: int, stream: Any) -> None:
        """The stream will not be used again; it has no work left."""

    def stream_synchronize(self, device: int, stream: Any) -> None:
        """Waits for all work of the stream."""

    def stream_query(self, device: int, stream: Any) -> bool:
        """Whether the stream has nothing left to do. Does not wait."""
        return True

    # ---- Events ----

    def event_create(self, device: int, timing: bool) -> Event:
        """A mark that can be put into a stream; with `timing`, `event_elapsed` may be asked for it."""
        return Event(timing)

    def event_destroy(self, device: int, event: Any) -> None:
        """The event will not be used again. Streams may still be waiting for it."""

    def event_record(self, device: int, event: Any, stream: Any) -> None:
        """Marks the present end of the stream. An event may be recorded again; the last time counts."""
        event.recorded_at = time.perf_counter()

    def event_wait(self, device: int, event: Any, stream: Any) -> None:
        """Later work of `stream` waits for the event; the host does not."""

    def event_query(self, device: int, event: Any) -> bool:
        """Whether all work before the mark is done. Does not wait."""
        return True

    def event_synchronize(self, device: int, event: Any) -> None:
        """The host waits for the event."""

    def event_elapsed(self, device: int, start: Any, end: Any) -> float:
        """Milliseconds from one event's passing to another's, by the device's clock; negative if `end` was first."""
        if start.recorded_at is None or end.recorded_at is None:
            raise InvalidArgument("both events must have been recorded")
        return float(end.recorded_at - start.recorded_at) * 1e3

    # ---- Kernels ----
    #
    # Without these, ops run on the CPU: torchgraft copies there and back (or, with UNIFIED_MEMORY, does not) and counts
    # it; see torchgraft.fallback_report(). A kernel that is a function needs none of them: torchgraft.plans.composite
    # makes it an op of the device. A device with a compiler for a language of which torchgraft has a dialect
    # (torchgraft.codegen.dialect) gets some hundreds of native ops by adding these methods, `has_compiler = True`,
    # and to its properties Capability.COMPILER and the dialect's name. They are all there, or none:
    #
    #     def module_compile(self, device: int, source: str, options: str) -> Any: raises torchgraft's CompileError
    #     def module_load(self, device: int, binary: bytes) -> Any: a module of what module_binary returned
    #     def module_binary(self, module: Any) -> bytes: for the cache on disk; NotImplementedError if there is none
    #     def module_destroy(self, module: Any) -> None
    #     def kernel_create(self, module: Any, name: str) -> Any
    #     def kernel_destroy(self, kernel: Any) -> None
    #     def launch(self, device: int, stream: Any, kernel: Any, groups: tuple[int, ...], local: tuple[int, ...],
    #                args: list[int | bytes]) -> None: an address (0: unused) or a scalar's bytes for each parameter
    #
    # The tests of kernels in tests/test_driver.py, skipped until then, say whether they are right.


def driver() -> SkeletonDriver:
    """What the entry point in pyproject.toml refers to."""
    return SkeletonDriver()
