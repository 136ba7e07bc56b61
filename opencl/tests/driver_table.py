"""The driver's C table, torchgraft/driver.h, for tests: without torch, by ctypes.

Functions are called by their names in the table, `driver.call("allocate", ...)`, without the context; a failure raises
`DriverError`.
"""

from __future__ import annotations

import ctypes
import os
import shutil
from collections.abc import Callable, Sequence
from ctypes import c_char, c_char_p, c_double, c_int, c_int32, c_size_t, c_uint32, c_uint64, c_void_p
from pathlib import Path
from typing import Any

OK, ERROR, OUT_OF_MEMORY, INVALID, UNSUPPORTED, COMPILE, NOT_READY = range(7)
TO_DEVICE, TO_HOST, ON_DEVICE = 1, 2, 3
CPU, GPU, ACCELERATOR = 1, 2, 3
UNIFIED_MEMORY, COMPILER, BASE_OFFSET_POINTERS = 1 << 0, 1 << 1, 1 << 6

LIBRARY = Path(__file__).parents[1] / "torchgraft_opencl" / "libtorchgraft_opencl.so"


class Properties(ctypes.Structure):
    _fields_ = (
        ("struct_size", c_uint32),
        ("kind", c_uint32),
        ("capabilities", c_uint64),
        ("total_memory", c_uint64),
        ("max_allocation", c_uint64),
        ("local_memory", c_uint64),
        ("compute_units", c_uint32),
        ("max_work_group_size", c_uint32),
        ("simd_width", c_uint32),
        ("address_align", c_uint32),
        ("clock_mhz", c_uint32),
        ("reserved", c_uint32),
        ("name", c_char * 256),
        ("vendor", c_char * 128),
        ("driver_version", c_char * 256),
        ("platform", c_char * 128),
        ("dialect", c_char * 32),
        ("uuid", c_char * 64),
    )


class Value(ctypes.Union):
    _fields_ = (("pointer", c_void_p), ("u64", c_uint64), ("bytes", ctypes.c_ubyte * 16))


class Argument(ctypes.Structure):
    _fields_ = (("is_pointer", c_uint32), ("size", c_uint32), ("value", Value))


class Launch(ctypes.Structure):
    _fields_ = (
        ("kernel", c_void_p),
        ("dims", c_uint32),
        ("arg_count", c_uint32),
        ("groups", c_size_t * 3),
        ("local", c_size_t * 3),
        ("args", ctypes.POINTER(Argument)),
    )


DEVICE, STREAM, EVENT, ADDRESS, BYTES, OUT = c_int32, c_void_p, c_void_p, c_void_p, c_uint64, c_void_p

# In the order of the table; the context comes first in each.
FUNCTIONS: list[tuple[str, Sequence[Any]]] = [
    ("device_count", [OUT]),
    ("device_properties", [DEVICE, OUT]),
    ("device_synchronize", [DEVICE]),
    ("memory_info", [DEVICE, OUT, OUT]),
    ("allocate", [DEVICE, BYTES, OUT]),
    ("deallocate", [DEVICE, ADDRESS]),
    ("host_allocate", [DEVICE, BYTES, OUT]),
    ("host_deallocate", [DEVICE, ADDRESS]),
    ("copy", [DEVICE, STREAM, ADDRESS, ADDRESS, BYTES, c_int, c_int32]),
    ("copy_peer", [DEVICE, ADDRESS, DEVICE, ADDRESS, BYTES, STREAM]),
    ("fill", [DEVICE, STREAM, ADDRESS, c_char_p, c_uint32, BYTES]),
    ("stream_create", [DEVICE, c_int32, OUT]),
    ("stream_destroy", [DEVICE, STREAM]),
    ("stream_synchronize", [DEVICE, STREAM]),
    ("stream_query", [DEVICE, STREAM]),
    ("event_create", [DEVICE, c_int32, OUT]),
    ("event_destroy", [DEVICE, EVENT]),
    ("event_record", [DEVICE, EVENT, STREAM]),
    ("event_wait", [DEVICE, EVENT, STREAM]),
    ("event_query", [DEVICE, EVENT]),
    ("event_synchronize", [DEVICE, EVENT]),
    ("event_elapsed", [DEVICE, EVENT, EVENT, OUT]),
    ("module_compile", [DEVICE, c_char_p, BYTES, c_char_p, OUT, OUT]),
    ("module_load", [DEVICE, c_char_p, BYTES, OUT, OUT]),
    ("module_binary", [c_void_p, c_void_p, OUT]),
    ("module_destroy", [c_void_p]),
    ("kernel_create", [c_void_p, c_char_p, OUT]),
    ("kernel_destroy", [c_void_p]),
    ("launch", [DEVICE, STREAM, OUT]),
]
LAST_ERROR = ctypes.CFUNCTYPE(c_char_p, c_void_p)


class Table(ctypes.Structure):
    _fields_ = (
        ("abi_version", c_uint32),
        ("struct_size", c_uint32),
        ("name", c_char_p),
        ("context", c_void_p),
        ("last_error", LAST_ERROR),
        *((name, ctypes.CFUNCTYPE(c_int, c_void_p, *arguments)) for name, arguments in FUNCTIONS),
    )


class DriverError(Exception):
    def __init__(self, function: str, status: int, message: str) -> None:
        super().__init__(f"{function}: {message}")
        self.status = status
        self.message = message


class Driver:
    """One loaded driver; by default a copy of the library, which has its own state and reads the environment anew."""

    def __init__(self, folder: Path, copy: bool = True, **environment: str) -> None:
        path = LIBRARY
        if copy:
            path = Path(shutil.copy(LIBRARY, folder / f"driver-{len(list(folder.iterdir()))}.so"))
        saved = {name: os.environ.get(name) for name in environment}
        os.environ.update(environment)
        try:
            self.library = ctypes.CDLL(str(path))
            self.library.torchgraft_driver.restype = ctypes.POINTER(Table)
            self.table: Table = self.library.torchgraft_driver().contents
            self.count_message = ""
            self.count = self._count()
        finally:
            for name, value in saved.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value

    def _count(self) -> int:
        count = c_int32()
        self.call("device_count", ctypes.byref(count))
        if count.value == 0:
            self.count_message = self.last_error()
        return count.value

    def last_error(self) -> str:
        text: bytes = self.table.last_error(None)
        return text.decode()

    def status(self, function: str, *arguments: Any) -> int:
        call: Callable[..., int] = getattr(self.table, function)
        return call(None, *arguments)

    def call(self, function: str, *arguments: Any) -> int:
        status = self.status(function, *arguments)
        if status not in (OK, NOT_READY):
            raise DriverError(function, status, self.last_error())
        return status

    def created(self, function: str, *arguments: Any) -> int:
        """Calls a function whose last argument is where it puts a handle or an address, and returns that."""
        out = c_void_p()
        self.call(function, *arguments, ctypes.byref(out))
        assert out.value is not None
        return out.value

    def fail(self, specification: str) -> None:
        assert self.library.torchgraft_opencl_fail(specification.encode()) == 0

    def properties(self, device: int = 0) -> Properties:
        properties = Properties(struct_size=ctypes.sizeof(Properties))
        self.call("device_properties", device, ctypes.byref(properties))
        return properties

    @property
    def capabilities(self) -> int:
        return int(self.properties().capabilities)

    # The rest works on device 0.

    def compile(self, source: str, options: str = "") -> tuple[int, str]:
        """The module and the compiler's log."""
        module, log = c_void_p(), c_char_p()
        text = source.encode()
        status = self.status(
            "module_compile", 0, text, len(text), options.encode(), ctypes.byref(module), ctypes.byref(log)
        )
        logged = (log.value or b"").decode()
        if status != OK:
            raise DriverError("module_compile", status, f"{self.last_error()}\n{logged}")
        assert module.value is not None
        return module.value, logged

    def kernel(self, source: str, name: str) -> int:
        return self.created("kernel_create", self.compile(source)[0], name.encode())

    def launch(self, stream: int, kernel: int, groups: Sequence[int], local: Sequence[int], *arguments: Any) -> None:
        """Arguments: an int is an address, a ctypes value is data."""
        packed = (Argument * len(arguments))()
        for argument, value in zip(packed, arguments, strict=True):
            if value is None or isinstance(value, int):
                argument.is_pointer = 1
                argument.value.pointer = value
            else:
                argument.size = ctypes.sizeof(value)
                ctypes.memmove(argument.value.bytes, ctypes.byref(value), argument.size)
        launch = Launch(kernel=kernel, dims=len(groups), arg_count=len(arguments), args=packed)
        launch.groups[: len(groups)] = list(groups)
        launch.local[: len(local)] = list(local)
        self.call("launch", 0, stream, ctypes.byref(launch))

    def write(self, stream: int, address: int, data: bytes, blocking: bool = True) -> None:
        self.call(
            "copy", 0, stream, address, ctypes.cast(c_char_p(data), c_void_p), len(data), TO_DEVICE, int(blocking)
        )

    def read(self, stream: int, address: int, size: int) -> bytes:
        buffer = ctypes.create_string_buffer(size)
        self.call("copy", 0, stream, ctypes.addressof(buffer), address, size, TO_HOST, 1)
        return buffer.raw

    def elapsed(self, start: int, end: int) -> float:
        milliseconds = c_double()
        self.call("event_elapsed", 0, start, end, ctypes.byref(milliseconds))
        return milliseconds.value

    def memory(self) -> tuple[int, int]:
        """Free and total bytes."""
        free, total = c_uint64(), c_uint64()
        self.call("memory_info", 0, ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value
