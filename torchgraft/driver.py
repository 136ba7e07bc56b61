"""`torchgraft.Driver`: a device written in Python.

A subclass is the same contract as ``torchgraft/driver.h``, method for function, and is wrapped for the C++ core by
``torchgraft._C.add_python_driver``. A device starts life here; what becomes hot moves to C with the same names.

What every method may rely on, and must keep to:

* It is called with the GIL held, from any thread. While it waits for the device it should let the GIL go (``ctypes``
  does).
* ``device`` is the number of the device within this driver. Addresses are integers; an address inside an allocation is
  as good as its start. Streams, events, modules and kernels are whatever objects the methods that create them return;
  they are kept alive until they are destroyed.
* Failing is raising: `MemoryError` makes torchgraft free its cache, try again and raise ``torch.OutOfMemoryError``;
  `NotImplementedError` stays one; `InvalidArgument` becomes ``RuntimeError``; `CompileError` carries the compiler's
  log; anything else becomes ``torch.AcceleratorError``. A failed call changes nothing.
* Work submitted to one stream runs in the order of submission.
* It makes no tensors of its own device.

Four methods are enough for one device that has done its work when a call returns: `device_properties`, `allocate`,
`deallocate` and `copy`. The others have forms here that suit such a device; one whose streams run on their own
overrides all the methods of streams and events.
"""

from __future__ import annotations

import ctypes
import enum
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from torchgraft.codegen.dialect import Dialect

__all__ = [
    "Capability",
    "CompileError",
    "CopyKind",
    "DeviceKind",
    "DeviceProperties",
    "Driver",
    "InvalidArgument",
    "ProgramSource",
    "ProgramTensor",
    "SharedLibrary",
    "Wish",
]


class DeviceKind(enum.IntEnum):
    CPU = 1
    GPU = 2
    ACCELERATOR = 3


#: `tg_element`, by the names of torch's dtypes.
ELEMENTS = {
    name: number
    for number, name in enumerate(
        "uint8 int8 int16 int32 int64 float16 bfloat16 float32 float64 bool complex64 complex128".split(), 1
    )
}


class Capability(enum.IntFlag):
    """What a device can do."""

    NONE = 0
    UNIFIED_MEMORY = 1 << 0  #: the host may use device addresses whenever no submitted work does
    COMPILER = 1 << 1  #: `Driver.module_compile` and `Driver.launch` work
    FLOAT64 = 1 << 2  #: kernels may compute in float64
    FLOAT16 = 1 << 3  #: kernels may compute in float16 (storing it is always possible)
    ATOMIC_INT64 = 1 << 4
    EVENT_TIMING = 1 << 5  #: `Driver.event_elapsed` works
    BASE_OFFSET_POINTERS = 1 << 6  #: kernels take an allocation and an offset for each pointer
    SUBGROUPS = 1 << 7
    BFLOAT16_TILES = 1 << 8  #: kernels may use the kernel language's words for tiles of bfloat16
    BFLOAT16_VECTORS = 1 << 9  #: kernels may use the kernel language's words for vectors of bfloat16
    FRAGMENTS = 1 << 10  #: kernels may use the kernel language's words for fragments of 16-bit floats
    OUTER_VECTORS = 1 << 11  #: the compiler makes vectors of a loop around one that is written out
    PROGRAMS = 1 << 12  #: `Driver.program_create` and `Driver.program_run` work
    CONSTANTS = 1 << 13  #: graphs are better with the parameters of a model as constants in them
    KERNELS_FIRST = 1 << 14  #: kernels serve what both can, but products that `torchgraft tune` found slower


class CopyKind(enum.IntEnum):
    HOST_TO_DEVICE = 1
    DEVICE_TO_HOST = 2
    DEVICE_TO_DEVICE = 3


class Wish(enum.IntEnum):
    """What a driver would rather have for a tensor of a program than what it is asked about."""

    NONE = 0
    CONTIGUOUS = 1  #: the last dimension closest together
    CHANNELS_LAST = 2  #: the second dimension closest together, then the last


class InvalidArgument(ValueError):
    """An argument is out of range; the user sees RuntimeError."""

    torchgraft_status = 3


class CompileError(RuntimeError):
    """A kernel's source was refused; the message is the compiler's log."""

    torchgraft_status = 5


@dataclass
class DeviceProperties:
    """What is known of a device before it is used."""

    name: str
    total_memory: int  #: bytes
    kind: DeviceKind = DeviceKind.ACCELERATOR
    capabilities: Capability = Capability.NONE
    max_allocation: int = 0  #: bytes, of one allocation; 0: all of the memory
    local_memory: int = 0  #: bytes of a work-group's local memory
    compute_units: int = 1
    max_work_group_size: int = 1
    simd_width: int = 1  #: of float32
    address_align: int = 64  #: bytes; every allocation starts at a multiple
    clock_mhz: int = 0
    vendor: str = ""
    driver_version: str = ""  #: everything that decides what the compiler makes of a source
    platform: str = ""
    dialect: str = ""  #: the kernel language; empty without a compiler
    uuid: str = ""  #: equal for the same physical device


@dataclass(frozen=True)
class ProgramTensor:
    """A tensor of a program, without its memory."""

    dtype: str  #: torch's name of it: "float32", "bool"
    sizes: tuple[int, ...]
    strides: tuple[int, ...]  #: in elements
    #: A number that each run gives anew: the run's address is that of a float64 or an int64 on the host, which is read
    #: during the call.
    is_number: bool = False


@dataclass(frozen=True)
class ProgramSource:
    """What a program is made of: an operator with its attributes, or a graph in a language of the device's compiler."""

    format: str  #: "operator" (see docs/operators.md), or the language of `data`, as "onnx"
    name: str  #: the operator's; in other formats the program's, for messages and profiles
    data: bytes
    attributes: dict[str, int | float | str | tuple[int, ...]]  #: a truth is 0 or 1
    inputs: tuple[ProgramTensor | None, ...]  #: None: an optional tensor that is not given
    outputs: tuple[ProgramTensor | None, ...]


@dataclass(frozen=True)
class SharedLibrary:
    """A driver in C: a shared library that exports a function which returns its table (see torchgraft/driver.h)."""

    path: str | PathLike[str]
    symbol: str = "torchgraft_driver"
    kernel_dialect: Dialect | None = None  #: of its devices' language, where torchgraft has none


_Method = TypeVar("_Method", bound=Callable[..., Any])


def _optional(method: _Method) -> _Method:
    """Marks a method that need not exist: where a subclass does not override it, torchgraft does without."""
    method.__torchgraft_optional__ = True  # type: ignore[attr-defined]
    return method


class Driver:
    """The base class of devices written in Python."""

    #: Of the driver, for messages.
    name: str = "python"
    #: Whether the methods under "Kernels" are there; properties then carry `Capability.COMPILER`.
    has_compiler: bool = False
    #: Whether the methods under "Programs" are there; properties then carry `Capability.PROGRAMS`.
    has_programs: bool = False
    #: Languages of whole graphs that `program_create` reads, as ("onnx",): see docs/graph-compilers.md.
    program_formats: tuple[str, ...] = ()
    #: A dialect of the driver's own, for devices whose properties name it; registered with the driver.
    kernel_dialect: Dialect | None = None

    # Devices

    def device_count(self) -> int:
        """How many devices there are. Called once, at the first use: open the devices here, not in the constructor."""
        return 1

    def device_properties(self, device: int) -> DeviceProperties:
        raise NotImplementedError("device_properties")

    def device_synchronize(self, device: int) -> None:
        """Waits for all work on all streams of the device."""

    def memory_info(self, device: int) -> tuple[int, int]:
        """Free and total bytes. The form here knows of no use but its own total."""
        total = self.device_properties(device).total_memory
        return total, total

    # Memory

    def allocate(self, device: int, nbytes: int) -> int:
        """The address of new memory; `nbytes` is never 0. Raises MemoryError where there is none."""
        raise NotImplementedError("allocate")

    def deallocate(self, device: int, address: int) -> None:
        """Called only when no submitted work uses the memory."""
        raise NotImplementedError("deallocate")

    @_optional
    def host_allocate(self, device: int, nbytes: int) -> int:
        """Pinned host memory. Without it, ordinary host memory serves."""
        raise NotImplementedError("host_allocate")

    @_optional
    def host_deallocate(self, device: int, address: int) -> None:
        raise NotImplementedError("host_deallocate")

    # Memory that grows in place: with all three of these methods, or else none.

    @_optional
    def reserve(self, device: int, nbytes: int) -> int:
        """Addresses without memory; `deallocate` gives them back, with what memory they have.

        Beginnings and sizes, of ranges and of parts, are multiples of 2 MiB.

        Parts of them that have memory and adjoin are one allocation to copies, fills and launches. Without it, or where
        it raises, torchgraft allocates segments, of which some memory stays unused because pieces of two do not join.
        """
        raise NotImplementedError("reserve")

    @_optional
    def commit(self, device: int, address: int, nbytes: int) -> None:
        """All of a part of reserved addresses gets memory, of which none had any.

        Raises MemoryError where there is none.
        """
        raise NotImplementedError("commit")

    @_optional
    def decommit(self, device: int, address: int, nbytes: int) -> None:
        """All of a part loses its memory, of which all had some; called only when no submitted work uses it."""
        raise NotImplementedError("decommit")

    def copy(
        self, device: int, stream: Any, destination: int, source: int, nbytes: int, kind: CopyKind | int, blocking: bool
    ) -> None:
        """Copies on `stream`; with `blocking` it returns when the copy is done."""
        raise NotImplementedError("copy")

    @_optional
    def copy_peer(
        self, destination_device: int, destination: int, source_device: int, source: int, nbytes: int, stream: Any
    ) -> None:
        """Copies between two devices of this driver, ordered on `stream` of the destination's device.

        Without it such copies go by way of the host.
        """
        raise NotImplementedError("copy_peer")

    def fill(self, device: int, stream: Any, destination: int, pattern: bytes, nbytes: int) -> None:
        """Repeats a pattern of 1, 2, 4, 8 or 16 bytes; `nbytes` is a multiple of its length.

        The form here copies from the host.
        """
        repeated = pattern * (nbytes // len(pattern))
        source = ctypes.cast(ctypes.c_char_p(repeated), ctypes.c_void_p).value
        assert source is not None
        self.copy(device, stream, destination, source, nbytes, CopyKind.HOST_TO_DEVICE, True)

    # Streams. The forms here are those of a device that has done the work when a call returns.

    def stream_create(self, device: int, priority: int) -> Any:
        """A queue of work. Lower priorities are more urgent, 0 is the default; a hint."""
        return object()

    def stream_destroy(self, device: int, stream: Any) -> None:
        pass

    def stream_synchronize(self, device: int, stream: Any) -> None:
        """Waits for all work of the stream."""

    def stream_query(self, device: int, stream: Any) -> bool:
        """Whether the stream has nothing left to do."""
        return True

    # Events

    def event_create(self, device: int, timing: bool) -> Any:
        return [0.0]

    def event_destroy(self, device: int, event: Any) -> None:
        pass

    def event_record(self, device: int, event: Any, stream: Any) -> None:
        """Marks the present end of the stream. An event may be recorded again; the last time counts."""
        event[0] = time.perf_counter()

    def event_wait(self, device: int, event: Any, stream: Any) -> None:
        """Later work of `stream` waits for the event; the host does not."""

    def event_query(self, device: int, event: Any) -> bool:
        """Whether the event has passed."""
        return True

    def event_synchronize(self, device: int, event: Any) -> None:
        """The host waits for the event."""

    def event_elapsed(self, device: int, start: Any, end: Any) -> float:
        """Milliseconds between two recorded events; asked only of devices with `Capability.EVENT_TIMING`."""
        return float(end[0] - start[0]) * 1e3

    # Kernels: used if `has_compiler`

    def module_compile(self, device: int, source: str, options: str) -> Any:
        """Makes a module of a source in the dialect that the properties name. Raises `CompileError`."""
        raise NotImplementedError("module_compile")

    def module_load(self, device: int, binary: bytes) -> Any:
        """Makes a module of what `module_binary` returned."""
        raise NotImplementedError("module_load")

    def module_binary(self, module: Any) -> bytes:
        """The module in a form that `module_load` takes; NotImplementedError where there is none."""
        raise NotImplementedError("module_binary")

    def module_destroy(self, module: Any) -> None:
        pass

    def kernel_create(self, module: Any, name: str) -> Any:
        raise NotImplementedError("kernel_create")

    def kernel_destroy(self, kernel: Any) -> None:
        pass

    def launch(
        self,
        device: int,
        stream: Any,
        kernel: Any,
        groups: tuple[int, ...],
        local: tuple[int, ...],
        args: list[int | bytes],
    ) -> None:
        """Runs `groups` work-groups of `local` work-items each.

        An argument is an address (int; 0 for one that the kernel will not use) or the bytes of a scalar in the host's
        order.
        """
        raise NotImplementedError("launch")

    # Programs: used if `has_programs`

    def program_supports(self, device: int, source: ProgramSource) -> Sequence[Wish | int] | None:
        """Whether the device can, answered quickly. Raises `NotImplementedError`, with the reason, where it cannot.

        Of a language of `program_formats` it is first asked for single nodes of a graph: `data` is empty then, and the
        name is that of an op of PyTorch's ("aten.add.Tensor").

        Returns:
            None, or a wish for each input and then for each output: torchgraft copies the tensors accordingly and asks
            again.
        """
        raise NotImplementedError("program_supports")

    def program_create(self, device: int, source: ProgramSource) -> tuple[Any, int]:
        """Prepares a program for tensors as they are.

        Returns:
            The program, and the bytes of scratch that each run is given.

        Raises:
            NotImplementedError: the device cannot; the op goes elsewhere.
            CompileError: it should have worked.
        """
        raise NotImplementedError("program_create")

    def program_destroy(self, program: Any) -> None:
        """Called when no run will be submitted any more; those that were may still be going on."""

    def program_run(self, device: int, stream: Any, program: Any, addresses: list[int], scratch: int) -> None:
        """Submits a run, ordered on the stream.

        Args:
            addresses: of the inputs and then of the outputs; 0 for one that is not given or has no elements.
            scratch: the address of the scratch; 0 where the program wants none.
        """
        raise NotImplementedError("program_run")

    # On disk programs are kept under driver_version, platform and what they are made of. Both methods or none.

    @_optional
    def program_load(self, device: int, source: ProgramSource, binary: bytes) -> tuple[Any, int]:
        """`program_create` of what `program_binary` returned; `source.data` is empty. Raises whatever it likes where it
        cannot: the program is created then."""
        raise NotImplementedError("program_load")

    @_optional
    def program_binary(self, program: Any) -> bytes:
        """The program in a form that `program_load` takes; NotImplementedError where this one has none."""
        raise NotImplementedError("program_binary")

    # Times of single commands, for the profiler. Without them it records a timing event before and after each command,
    # and without `Capability.EVENT_TIMING` it waits for each command and measures on the host.

    @_optional
    def event_synchronize_for(self, device: int, event: Any, seconds: float) -> bool:
        """`event_synchronize` for at most so long; whether the event has passed.

        With it Ctrl-C ends a wait of the main thread, which torchgraft then makes in pieces; without it, once the wait
        is over.
        """
        raise NotImplementedError("event_synchronize_for")

    @_optional
    def event_time_next(self, device: int, event: Any) -> None:
        """The calling thread's next launch, copy or fill on the device is timed by `event`, made with timing.

        The event is then as if recorded after that command. It holds for one call, whatever comes of it.
        """
        raise NotImplementedError("event_time_next")

    @_optional
    def event_times(self, device: int, event: Any) -> tuple[int, int]:
        """When the device began and ended the command that a reached event timed: nanoseconds of the device's clock.

        Both are 0 where the host did the work within the call.
        """
        raise NotImplementedError("event_times")

    @_optional
    def device_time(self, device: int) -> int:
        """What that clock shows during this call: by it the device's times are brought to the host's."""
        raise NotImplementedError("device_time")

    # Graphs: commands that are given to a stream again and again. Without these methods torchgraft gives the stream one
    # command after the other.

    @_optional
    def graph_create(self, device: int, commands: list[tuple[str, tuple[Any, ...]]]) -> Any:
        """Prepares commands, each the name of a method ("launch", "program_run", "copy" or "fill") and its arguments
        after the device and the stream: `getattr(self, name)(device, stream, *arguments)` would run it."""
        raise NotImplementedError("graph_create")

    @_optional
    def graph_destroy(self, device: int, graph: Any) -> None:
        raise NotImplementedError("graph_destroy")

    @_optional
    def graph_set_argument(self, device: int, graph: Any, command: int, argument: int, value: int | bytes) -> None:
        """Gives a launch, by its number among the commands, another value for an argument, which is an address or a
        scalar, from the next `graph_launch` on. Of a run these are its addresses, numbers by their eight bytes, and
        behind them its scratch."""
        raise NotImplementedError("graph_set_argument")

    @_optional
    def graph_launch(self, device: int, stream: Any, graph: Any) -> None:
        """As if the commands were given to the stream in their order. Calls with one graph come one at a time."""
        raise NotImplementedError("graph_launch")

    # Collectives over a network of the device's own. Without these methods torchgraft goes through the host. A group is
    # of one device in each of `size` processes, which make the same calls in the same order. A call is ordered on
    # the stream. Elements are "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32" or
    # "float64", reductions "sum", "product", "minimum" or "maximum".

    @_optional
    def group_id(self, device: int) -> bytes:
        """What one process makes and all are given for `group_create`; at most 256 bytes."""
        raise NotImplementedError("group_id")

    @_optional
    def group_create(self, device: int, id: bytes, rank: int, size: int) -> Any:
        raise NotImplementedError("group_create")

    @_optional
    def group_destroy(self, device: int, group: Any) -> None:
        raise NotImplementedError("group_destroy")

    @_optional
    def all_reduce(
        self,
        device: int,
        group: Any,
        stream: Any,
        source: int,
        destination: int,
        count: int,
        element: str,
        reduction: str,
    ) -> None:
        """`count` elements of each rank are reduced, for all of them.

        NotImplementedError, of all ranks alike, sends the call through the host.
        """
        raise NotImplementedError("all_reduce")

    @_optional
    def reduce_scatter(
        self,
        device: int,
        group: Any,
        stream: Any,
        source: int,
        destination: int,
        count: int,
        element: str,
        reduction: str,
    ) -> None:
        """The same, and rank r gets the r-th `count` elements of the result."""
        raise NotImplementedError("reduce_scatter")

    @_optional
    def all_gather(self, device: int, group: Any, stream: Any, source: int, destination: int, nbytes: int) -> None:
        """All get the bytes of each rank, one after the other."""
        raise NotImplementedError("all_gather")

    @_optional
    def broadcast(self, device: int, group: Any, stream: Any, address: int, nbytes: int, root: int) -> None:
        """All get what the root has there."""
        raise NotImplementedError("broadcast")
