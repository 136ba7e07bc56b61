"""The driver: a device whose maker gives a compiler of graphs in ONNX, and nothing else.

Its memory is the host's, its compiler ONNX Runtime with the kernels of its CPU provider, and its streams run by
themselves. `torch.compile(model, backend="onnxruntime")` makes programs of graphs. Ops that are called one by one run
on the CPU, in the same memory, but for the operators `copy` and `fill`.
"""

from __future__ import annotations

import atexit
import os
import threading
from ctypes import memmove
from typing import TYPE_CHECKING, Any

import numpy
import torch

from torchgraft.driver import (
    Capability,
    CopyKind,
    DeviceKind,
    DeviceProperties,
    Driver,
    InvalidArgument,
    ProgramSource,
)

from . import support
from .streams import Event, Stream

if TYPE_CHECKING:
    from .programs import Program

__all__ = ["OnnxRuntimeDriver", "driver"]

ALIGNMENT = 64


class OnnxRuntimeDriver(Driver):
    """One device. onnxruntime is imported when it is opened, and not by `import torch`."""

    name = "onnxruntime"
    has_programs = True
    program_formats = ("onnx",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._memory: dict[int, numpy.ndarray[Any, Any]] = {}
        self._used = 0
        self._streams: set[Stream] = set()
        self._properties = DeviceProperties("", 0)

    # ---- devices ----

    def device_count(self) -> int:
        import onnxruntime

        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        cores = len(os.sched_getaffinity(0))
        self._properties = DeviceProperties(
            name="ONNX Runtime",
            vendor="ONNX Runtime",
            driver_version=f"ONNX Runtime {onnxruntime.__version__}, {torch.backends.cpu.get_cpu_capability()}",
            kind=DeviceKind.CPU,
            capabilities=Capability.PROGRAMS
            | Capability.CONSTANTS
            | Capability.UNIFIED_MEMORY
            | Capability.EVENT_TIMING
            | Capability.FLOAT64
            | Capability.FLOAT16,
            total_memory=memory,
            compute_units=cores,
            address_align=ALIGNMENT,
        )
        atexit.register(self._finish)
        return 1

    def _finish(self) -> None:
        """Python ends no thread well that is in a library."""
        for stream in list(self._streams):
            try:
                stream.wait()
            except Exception:  # nobody is left to be told
                continue

    def device_properties(self, device: int) -> DeviceProperties:
        if device != 0:
            raise InvalidArgument(f"there is no device {device}; there is one")
        return self._properties

    def device_synchronize(self, device: int) -> None:
        failures = []
        for stream in list(self._streams):
            try:
                stream.wait()
            except Exception as error:
                failures.append(error)
        if failures:
            raise failures[0]

    def memory_info(self, device: int) -> tuple[int, int]:
        total = self._properties.total_memory
        return total - self._used, total

    # ---- memory ----

    def allocate(self, device: int, nbytes: int) -> int:
        with self._lock:
            free = self._properties.total_memory - self._used
            if nbytes > free:
                raise MemoryError(f"{nbytes} bytes were asked for, {free} are free")
            block = numpy.empty(nbytes + ALIGNMENT, numpy.uint8)
            self._used += nbytes
        address: int = -(-block.ctypes.data // ALIGNMENT) * ALIGNMENT
        self._memory[address] = block
        return address

    def deallocate(self, device: int, address: int) -> None:
        block = self._memory.pop(address, None)
        if block is None:
            raise InvalidArgument(f"{address:#x} was not allocated")
        with self._lock:
            self._used -= block.size - ALIGNMENT

    def copy(
        self, device: int, stream: Any, destination: int, source: int, nbytes: int, kind: CopyKind | int, blocking: bool
    ) -> None:
        stream.submit(lambda: memmove(destination, source, nbytes))
        if blocking:
            stream.wait()

    def fill(self, device: int, stream: Any, destination: int, pattern: bytes, nbytes: int) -> None:
        def run() -> None:
            memmove(destination, pattern, len(pattern))
            done = len(pattern)
            while done < nbytes:
                count = min(done, nbytes - done)
                memmove(destination + done, destination, count)
                done += count

        stream.submit(run)

    # ---- streams and events ----

    def stream_create(self, device: int, priority: int) -> Stream:
        stream = Stream()
        with self._lock:
            self._streams.add(stream)
        return stream

    def stream_destroy(self, device: int, stream: Any) -> None:
        with self._lock:
            self._streams.discard(stream)
        stream.submit(None)

    def stream_synchronize(self, device: int, stream: Any) -> None:
        stream.wait()

    def stream_query(self, device: int, stream: Any) -> bool:
        idle: bool = stream.is_idle()
        return idle

    def event_create(self, device: int, timing: bool) -> Event:
        return Event()

    def event_record(self, device: int, event: Any, stream: Any) -> None:
        event.record(stream)

    def event_wait(self, device: int, event: Any, stream: Any) -> None:
        if not event.mark.has_passed():
            stream.submit(event.mark.wait)

    def event_query(self, device: int, event: Any) -> bool:
        passed: bool = event.mark.has_passed()
        return passed

    def event_synchronize(self, device: int, event: Any) -> None:
        event.mark.wait()

    def event_synchronize_for(self, device: int, event: Any, seconds: float) -> bool:
        passed: bool = event.mark.wait(seconds)
        return passed

    def event_elapsed(self, device: int, start: Any, end: Any) -> float:
        for event in (start, end):
            if not (event.recorded and event.mark.has_passed()):
                raise InvalidArgument("time was asked of an event that has not passed")
        return float(end.mark.time - start.mark.time) * 1e3

    # ---- programs ----

    def program_supports(self, device: int, source: ProgramSource) -> None:
        """Of an operator, or of a node of a graph in ONNX."""
        if source.format == "operator":
            support.check_operator(source)
        else:
            support.check_node(source)

    def program_create(self, device: int, source: ProgramSource) -> tuple[Program, int]:
        from . import programs

        if source.format == "operator":
            support.check_operator(source)
            make = {"copy": programs.copied, "fill": programs.filled}[source.name]
            return make(source), 0
        return programs.graph(source, source.data, optimised=False), 0

    def program_load(self, device: int, source: ProgramSource, binary: bytes) -> tuple[Program, int]:
        from . import programs

        return programs.graph(source, binary, optimised=True), 0

    def program_binary(self, program: Program) -> bytes:
        if program.binary is None:
            raise NotImplementedError(f"the operator {program.name} has no binary")
        return program.binary()

    def program_run(self, device: int, stream: Any, program: Program, addresses: list[int], scratch: int) -> None:
        def run() -> None:
            try:
                program.run(addresses)
            except Exception as error:
                raise RuntimeError(f"program {program.name}: {error}") from error

        stream.submit(run)


def driver() -> OnnxRuntimeDriver:
    """What the entry point in pyproject.toml refers to."""
    return OnnxRuntimeDriver()
