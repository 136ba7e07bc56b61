"""A driver's C table (torchgraft/driver.h) by ctypes, without the core: for processes that compile kernels ahead, and
for tests of C drivers.

The structures are made from the header's own text, so that there is no second list of its members.
"""

from __future__ import annotations

import contextlib
import ctypes
import enum
import functools
import re
import threading
from collections.abc import Iterator
from ctypes import byref, c_char, c_char_p, c_double, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from torchgraft.driver import (
    ELEMENTS,
    Capability,
    CompileError,
    CopyKind,
    DeviceKind,
    DeviceProperties,
    Driver,
    InvalidArgument,
    ProgramSource,
    ProgramTensor,
    SharedLibrary,
)

__all__ = [
    "HEADER",
    "Argument",
    "AttributeRecord",
    "Command",
    "Launch",
    "ProgramInfo",
    "Properties",
    "Run",
    "SourceRecord",
    "Status",
    "Table",
    "TableDriver",
    "TensorRecord",
    "driver_table",
    "run_record",
]

HEADER = Path(__file__).parent / "include" / "torchgraft" / "driver.h"


class Status(enum.IntEnum):
    """What a function of the table returns."""

    OK = 0
    ERROR = 1
    ERROR_OUT_OF_MEMORY = 2
    ERROR_INVALID = 3
    ERROR_UNSUPPORTED = 4
    ERROR_COMPILE = 5
    NOT_READY = 6


EXCEPTIONS: dict[int, type[Exception]] = {
    Status.ERROR_OUT_OF_MEMORY: MemoryError,
    Status.ERROR_INVALID: InvalidArgument,
    Status.ERROR_UNSUPPORTED: NotImplementedError,
    Status.ERROR_COMPILE: CompileError,
}

# Reading the header: declarations `type name`, `type* name`, `type name[n]`, `result (*name)(parameters)` and one level
# of union are all that it uses.

_TYPES: dict[str, Any] = {
    "char": c_char,
    "unsigned char": ctypes.c_ubyte,
    "double": c_double,
    "float": ctypes.c_float,
    "int32_t": c_int32,
    "int64_t": c_int64,
    "size_t": c_size_t,
    "uint32_t": c_uint32,
    "uint64_t": c_uint64,
}


@functools.cache
def _header() -> str:
    return re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.DOTALL)


def _type(text: str) -> Any:
    if text.strip() == "const char*":
        return c_char_p
    text = text.replace("const ", "").strip()
    if text.endswith("*") or re.search(rf"typedef struct \w+\* {re.escape(text)};", _header()):
        return c_void_p
    if re.search(rf"typedef enum {re.escape(text)} ", _header()):
        return c_int
    return _TYPES[text]


def _declared(text: str) -> tuple[str, Any]:
    match = re.fullmatch(r"(.*?[\s*])(\w+)(?:\[(\d+)\])?", text.strip(), re.DOTALL)
    assert match, text
    kind = _type(match[1])
    return match[2], kind * int(match[3]) if match[3] else kind


def _members(body: str) -> Iterator[tuple[str, Any]]:
    unions: dict[str, Any] = {}
    for match in re.finditer(r"union \{(.*?)\} (\w+);", body, re.DOTALL):
        unions[match[2]] = type(match[2], (ctypes.Union,), {"_fields_": list(_members(match[1]))})
    for declaration in re.sub(r"union \{.*?\} (\w+);", r"union \1;", body, flags=re.DOTALL).split(";"):
        function = re.fullmatch(r"\s*(.*?)\(\*(\w+)\)\((.*)\)", declaration, re.DOTALL)
        if function:
            parameters = [_declared(each)[1] for each in function[3].split(",")]
            yield function[2], ctypes.CFUNCTYPE(_type(function[1]), *parameters)
        elif declaration.strip().startswith("union "):
            name = declaration.split()[1]
            yield name, unions[name]
        elif declaration.strip():
            yield _declared(declaration)


def _fields(struct: str) -> list[tuple[str, Any]]:
    """The fields of `typedef struct NAME { ... } NAME;`."""
    body = _header().split(f"typedef struct {struct} {{")[1].split(f"}} {struct};")[0]
    return list(_members(body))


class Properties(ctypes.Structure):
    """`tg_device_properties`."""

    _fields_ = _fields("tg_device_properties")


class Argument(ctypes.Structure):
    """`tg_arg`."""

    _fields_ = _fields("tg_arg")


class Launch(ctypes.Structure):
    """`tg_launch`."""

    _fields_ = _fields("tg_launch")


_TYPES["tg_launch"] = Launch  # a member of the next


class Command(ctypes.Structure):
    """`tg_command`."""

    _fields_ = _fields("tg_command")


class TensorRecord(ctypes.Structure):
    """`tg_tensor`."""

    _fields_ = _fields("tg_tensor")


class AttributeRecord(ctypes.Structure):
    """`tg_attribute`."""

    _fields_ = _fields("tg_attribute")


class SourceRecord(ctypes.Structure):
    """`tg_program_source`."""

    _fields_ = _fields("tg_program_source")


class ProgramInfo(ctypes.Structure):
    """`tg_program_info`."""

    _fields_ = _fields("tg_program_info")


class Run(ctypes.Structure):
    """`tg_run`."""

    _fields_ = _fields("tg_run")


class Table(ctypes.Structure):
    """`tg_driver`; its functions can be called, the context (None) first.

    Attributes:
        kernel_dialect: of the `SharedLibrary` that it was loaded by.
    """

    kernel_dialect = Driver.kernel_dialect  # none
    _fields_ = _fields("tg_driver")


#: `TG_DRIVER_MIN_SIZE`: the struct_size of the first version.
MIN_SIZE: int = getattr(Table, re.findall(r"TG_DRIVER_MIN_SIZE offsetof\(tg_driver, (\w+)\)", _header())[0]).offset


def driver_table(library: str | PathLike[str] | SharedLibrary, symbol: str = "torchgraft_driver") -> Table:
    """Loads a shared library and returns the table that it exports.

    Args:
        library: its path, or what is given to `torchgraft.register`, with its own symbol and perhaps a dialect.
        symbol: of the function that returns the table.
    """
    if not isinstance(library, SharedLibrary):
        library = SharedLibrary(library, symbol)
    entry = getattr(ctypes.CDLL(fspath(library.path)), library.symbol)
    entry.restype = ctypes.POINTER(Table)
    table: Table = entry().contents
    if table.struct_size < ctypes.sizeof(Table):
        completed = Table()  # what the header of the driver's time did not have is NULL
        ctypes.memmove(byref(completed), byref(table), table.struct_size)
        table = completed
    table.kernel_dialect = library.kernel_dialect
    return table


OPTIONAL = (
    *("host_allocate", "host_deallocate", "copy_peer", "reserve", "commit", "decommit"),
    *("event_time_next", "event_times", "device_time", "event_synchronize_for"),
    *("graph_create", "graph_destroy", "graph_set_argument", "graph_launch"),
    *("program_binary", "program_load"),
    *("group_id", "group_create", "group_destroy"),
    *("all_reduce", "reduce_scatter", "all_gather", "broadcast"),
)


def _argument(value: int | bytes) -> Argument:
    argument = Argument()
    if isinstance(value, bytes):
        argument.size = len(value)
        ctypes.memmove(argument.value.bytes, value, len(value))
    else:
        argument.is_pointer = 1
        argument.value.pointer = value
    return argument


def _launch(kernel: Any, groups: tuple[int, ...], local: tuple[int, ...], args: list[int | bytes]) -> Launch:
    packed = (Argument * len(args))(*map(_argument, args))
    launch = Launch(kernel=kernel, dims=len(groups), arg_count=len(args), args=ctypes.addressof(packed))
    launch.packed = packed  # kept as long as the launch
    launch.groups[: len(groups)] = list(groups)
    launch.local[: len(local)] = list(local)
    return launch


# Programs

_NUMBER = 1  # TG_TENSOR_NUMBER
_ONE_AT_A_TIME = 1  # TG_PROGRAM_ONE_AT_A_TIME


def _tensor_record(tensor: ProgramTensor | None) -> TensorRecord:
    record = TensorRecord(struct_size=ctypes.sizeof(TensorRecord))
    if tensor is not None:
        record.element = ELEMENTS[tensor.dtype]
        record.dims = len(tensor.sizes)
        record.flags = _NUMBER if tensor.is_number else 0
        record.kept = [(c_int64 * len(each))(*each) for each in (tensor.sizes, tensor.strides)]
        record.sizes, record.strides = map(ctypes.addressof, record.kept)
    return record


def _attribute_record(name: str, value: int | float | str | tuple[int, ...]) -> AttributeRecord:
    record = AttributeRecord(struct_size=ctypes.sizeof(AttributeRecord), name=name.encode())
    if isinstance(value, int):
        record.kind, record.integer = 1, value
    elif isinstance(value, float):
        record.kind, record.number = 2, value
    elif isinstance(value, str):
        record.kind, record.text = 3, value.encode()
    else:
        record.kind, record.count = 4, len(value)
        record.kept = (c_int64 * len(value))(*value)
        record.integers = ctypes.addressof(record.kept)
    return record


def _source_record(source: ProgramSource) -> SourceRecord:
    made: list[list[Any]] = [
        [_attribute_record(*each) for each in source.attributes.items()],
        [_tensor_record(each) for each in source.inputs],
        [_tensor_record(each) for each in source.outputs],
    ]
    kinds: list[Any] = [AttributeRecord, TensorRecord, TensorRecord]
    packed = [(kind * len(each))(*each) for kind, each in zip(kinds, made, strict=True)]
    data = ctypes.create_string_buffer(source.data, len(source.data)) if source.data else None
    record = SourceRecord(
        struct_size=ctypes.sizeof(SourceRecord),
        format=source.format.encode(),
        name=source.name.encode(),
        bytes=None if data is None else ctypes.addressof(data),
        byte_count=len(source.data),
    )
    record.attribute_count, record.input_count, record.output_count = map(len, packed)
    record.attributes, record.inputs, record.outputs = map(ctypes.addressof, packed)
    record.kept = made, packed, data
    return record


def run_record(program: int, addresses: list[int], scratch: int) -> Run:
    """`tg_run`, with `packed`, the array of the addresses."""
    packed = (c_void_p * len(addresses))(*addresses)
    run = Run(struct_size=ctypes.sizeof(Run), address_count=len(addresses), program=program, scratch=scratch)
    run.addresses = ctypes.addressof(packed)
    run.packed = packed
    return run


def _command(name: str, arguments: tuple[Any, ...]) -> tuple[Command, Any]:
    """The command, and what it points to."""
    if name == "program_run":
        run = run_record(*arguments)
        return Command(kind=4, source=ctypes.addressof(run)), run
    if name == "launch":
        launch = _launch(*arguments)
        return Command(kind=1, launch=launch), launch
    if name == "copy":
        destination, source, nbytes, kind, _ = arguments
        return Command(kind=2, destination=destination, source=source, bytes=nbytes, copy_kind=kind), None
    destination, pattern, nbytes = arguments
    command = Command(kind=3, destination=destination, bytes=nbytes, pattern_bytes=len(pattern))
    command.pattern[: len(pattern)] = list(pattern)
    return command, None


class TableDriver(Driver):
    """A C driver with the methods of a driver in Python: a status that is a failure is raised.

    Args:
        table: what the driver exports; it must live as long as this object.
    """

    def __init__(self, table: Table) -> None:
        self.table = table
        self.name = table.name.decode()
        self.kernel_dialect = table.kernel_dialect
        self.has_compiler = bool(table.launch)
        self.has_programs = bool(table.program_run)
        self._alone: dict[int, threading.Lock] = {}  # of programs that run one at a time
        for optional in OPTIONAL:
            if not getattr(table, optional):  # then the base class's method, which says that it is none
                setattr(self, optional, getattr(super(), optional))

    @classmethod
    def load(cls, library: str | PathLike[str] | SharedLibrary, symbol: str = "torchgraft_driver") -> TableDriver:
        """The driver of a shared library; the arguments are those of `driver_table`."""
        return cls(driver_table(library, symbol))

    def last_error(self) -> str:
        """The calling thread's message."""
        text: bytes = self.table.last_error(self.table.context)
        return text.decode()

    def status(self, function: str, *arguments: Any) -> int:
        """Calls a function of the table by its name, without the context, and returns its status."""
        status: int = getattr(self.table, function)(self.table.context, *arguments)
        return status

    def call(self, function: str, *arguments: Any) -> int:
        """The same; a failure is raised, so that OK or NOT_READY is returned."""
        status = self.status(function, *arguments)
        if status not in (Status.OK, Status.NOT_READY):
            raise EXCEPTIONS.get(status, RuntimeError)(self.last_error())
        return status

    def created(self, function: str, *arguments: Any) -> int:
        """Calls a function whose last argument is where it puts a handle or an address, and returns that."""
        out = c_void_p()
        self.call(function, *arguments, byref(out))
        if out.value is None:
            raise RuntimeError(f"{function} returned TG_OK and no handle or address")
        return out.value

    # Devices

    def device_count(self) -> int:
        count = c_int32()
        self.call("device_count", byref(count))
        return count.value

    def properties(self, device: int = 0) -> Properties:
        """The device's properties as they are in C."""
        properties = Properties(struct_size=ctypes.sizeof(Properties))
        self.call("device_properties", device, byref(properties))
        return properties

    def device_properties(self, device: int) -> DeviceProperties:
        found = self.properties(device)
        values = {name: getattr(found, name) for name in DeviceProperties.__dataclass_fields__}
        texts = {name: value.decode() for name, value in values.items() if isinstance(value, bytes)}
        kind, capabilities = DeviceKind(found.kind), Capability(found.capabilities)
        return DeviceProperties(**{**values, **texts, "kind": kind, "capabilities": capabilities})

    def device_synchronize(self, device: int) -> None:
        self.call("device_synchronize", device)

    def memory_info(self, device: int) -> tuple[int, int]:
        free, total = c_uint64(), c_uint64()
        self.call("memory_info", device, byref(free), byref(total))
        return free.value, total.value

    # Memory

    def allocate(self, device: int, nbytes: int) -> int:
        return self.created("allocate", device, nbytes)

    def deallocate(self, device: int, address: int) -> None:
        self.call("deallocate", device, address)

    def host_allocate(self, device: int, nbytes: int) -> int:
        return self.created("host_allocate", device, nbytes)

    def host_deallocate(self, device: int, address: int) -> None:
        self.call("host_deallocate", device, address)

    def reserve(self, device: int, nbytes: int) -> int:
        return self.created("reserve", device, nbytes)

    def commit(self, device: int, address: int, nbytes: int) -> None:
        self.call("commit", device, address, nbytes)

    def decommit(self, device: int, address: int, nbytes: int) -> None:
        self.call("decommit", device, address, nbytes)

    def copy(
        self, device: int, stream: Any, destination: int, source: int, nbytes: int, kind: CopyKind | int, blocking: bool
    ) -> None:
        self.call("copy", device, stream, destination, source, nbytes, kind, blocking)

    def copy_peer(
        self, destination_device: int, destination: int, source_device: int, source: int, nbytes: int, stream: Any
    ) -> None:
        self.call("copy_peer", destination_device, destination, source_device, source, nbytes, stream)

    def fill(self, device: int, stream: Any, destination: int, pattern: bytes, nbytes: int) -> None:
        self.call("fill", device, stream, destination, pattern, len(pattern), nbytes)

    # Streams

    def stream_create(self, device: int, priority: int) -> int:
        return self.created("stream_create", device, priority)

    def stream_destroy(self, device: int, stream: Any) -> None:
        self.call("stream_destroy", device, stream)

    def stream_synchronize(self, device: int, stream: Any) -> None:
        self.call("stream_synchronize", device, stream)

    def stream_query(self, device: int, stream: Any) -> bool:
        return self.call("stream_query", device, stream) == Status.OK

    # Events

    def event_create(self, device: int, timing: bool) -> int:
        return self.created("event_create", device, timing)

    def event_destroy(self, device: int, event: Any) -> None:
        self.call("event_destroy", device, event)

    def event_record(self, device: int, event: Any, stream: Any) -> None:
        self.call("event_record", device, event, stream)

    def event_wait(self, device: int, event: Any, stream: Any) -> None:
        self.call("event_wait", device, event, stream)

    def event_query(self, device: int, event: Any) -> bool:
        return self.call("event_query", device, event) == Status.OK

    def event_synchronize(self, device: int, event: Any) -> None:
        self.call("event_synchronize", device, event)

    def event_synchronize_for(self, device: int, event: Any, seconds: float) -> bool:
        return self.call("event_synchronize_for", device, event, int(seconds * 1e9)) == Status.OK

    def event_elapsed(self, device: int, start: Any, end: Any) -> float:
        if not self.table.event_elapsed:
            raise NotImplementedError("event_elapsed")
        milliseconds = c_double()
        self.call("event_elapsed", device, start, end, byref(milliseconds))
        return milliseconds.value

    # Kernels

    def _raise(self, status: int, log: c_char_p) -> None:
        """Raises for a status that is a failure, with what the compiler said."""
        if status != Status.OK:
            text = f"{self.last_error()}\n{(log.value or b'').decode()}".strip()
            raise EXCEPTIONS.get(status, RuntimeError)(text)

    def _module(self, function: str, *arguments: Any) -> int:
        module, log = c_void_p(), c_char_p()
        self._raise(self.status(function, *arguments, byref(module), byref(log)), log)
        assert module.value is not None
        return module.value

    def module_compile(self, device: int, source: str, options: str) -> int:
        text = source.encode()
        return self._module("module_compile", device, text, len(text), options.encode())

    def module_load(self, device: int, binary: bytes) -> int:
        return self._module("module_load", device, binary, len(binary))

    def module_binary(self, module: Any) -> bytes:
        return self._sized("module_binary", module)

    def _sized(self, function: str, handle: Any) -> bytes:
        """What a function writes that says its size first."""
        size = c_uint64()
        self.call(function, handle, None, byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        self.call(function, handle, buffer, byref(size))
        return buffer.raw

    def module_destroy(self, module: Any) -> None:
        self.call("module_destroy", module)

    def kernel_create(self, module: Any, name: str) -> int:
        return self.created("kernel_create", module, name.encode())

    def kernel_destroy(self, kernel: Any) -> None:
        self.call("kernel_destroy", kernel)

    def launch(
        self,
        device: int,
        stream: Any,
        kernel: Any,
        groups: tuple[int, ...],
        local: tuple[int, ...],
        args: list[int | bytes],
    ) -> None:
        launch = _launch(kernel, groups, local, args)
        self.call("launch", device, stream, byref(launch))

    # Programs

    @property
    def program_formats(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(self.properties().program_formats.decode().split())

    def program_supports(self, device: int, source: ProgramSource) -> list[int]:
        wishes = (c_uint32 * (len(source.inputs) + len(source.outputs)))()
        self.call("program_supports", device, byref(_source_record(source)), wishes)
        return list(wishes)

    def program_create(self, device: int, source: ProgramSource) -> tuple[int, int]:
        return self._program("program_create", device, source)

    def program_load(self, device: int, source: ProgramSource, binary: bytes) -> tuple[int, int]:
        return self._program("program_load", device, source, binary, len(binary))

    def _program(self, function: str, device: int, source: ProgramSource, *binary: Any) -> tuple[int, int]:
        program, log = c_void_p(), c_char_p()
        info = ProgramInfo(struct_size=ctypes.sizeof(ProgramInfo))
        record = _source_record(source)
        self._raise(self.status(function, device, byref(record), *binary, byref(program), byref(info), byref(log)), log)
        assert program.value is not None
        if info.flags & _ONE_AT_A_TIME:
            self._alone[program.value] = threading.Lock()
        else:
            self._alone.pop(program.value, None)
        return program.value, info.scratch_bytes

    def program_binary(self, program: Any) -> bytes:
        return self._sized("program_binary", program)

    def program_destroy(self, program: Any) -> None:
        self.call("program_destroy", program)

    def program_run(self, device: int, stream: Any, program: Any, addresses: list[int], scratch: int) -> None:
        self.submit(device, stream, run_record(program, addresses, scratch))

    def submit(self, device: int, stream: Any, run: Run) -> None:
        """`program_run` with a record of the caller's."""
        with self._alone.get(run.program, contextlib.nullcontext()):
            self.call("program_run", device, stream, byref(run))

    # Graphs

    def graph_create(self, device: int, commands: list[tuple[str, tuple[Any, ...]]]) -> int:
        made = [_command(*each) for each in commands]
        packed = (Command * len(made))(*(command for command, _ in made))
        return self.created("graph_create", device, packed, len(made))

    def graph_destroy(self, device: int, graph: Any) -> None:
        self.call("graph_destroy", device, graph)

    def graph_set_argument(self, device: int, graph: Any, command: int, argument: int, value: int | bytes) -> None:
        self.call("graph_set_argument", device, graph, command, argument, byref(_argument(value)))

    def graph_launch(self, device: int, stream: Any, graph: Any) -> None:
        self.call("graph_launch", device, stream, graph)

    # Times of single commands

    def event_time_next(self, device: int, event: Any) -> None:
        self.call("event_time_next", device, event)

    def event_times(self, device: int, event: Any) -> tuple[int, int]:
        begin, end = c_uint64(), c_uint64()
        self.call("event_times", device, event, byref(begin), byref(end))
        return begin.value, end.value

    def device_time(self, device: int) -> int:
        nanoseconds = c_uint64()
        self.call("device_time", device, byref(nanoseconds))
        return nanoseconds.value
