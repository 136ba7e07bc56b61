"""The OpenCL driver's C table for tests: a copy of the library for each, with a state of its own.

Functions are called by their names in the table, `driver.call("allocate", ...)`, without the context; a failure raises
`DriverError`.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import struct
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ctypes import c_char_p, c_double, c_int32, c_uint64, c_void_p
from pathlib import Path
from typing import Any

import pytest

from torchgraft.driver import Capability, CopyKind, DeviceKind
from torchgraft.driver_table import Argument, Launch, Properties, Status, Table, driver_table

OK, ERROR, OUT_OF_MEMORY, INVALID, UNSUPPORTED, COMPILE, NOT_READY = Status
TO_DEVICE, TO_HOST, ON_DEVICE = CopyKind
CPU, GPU, ACCELERATOR = DeviceKind
UNIFIED_MEMORY, COMPILER = Capability.UNIFIED_MEMORY, Capability.COMPILER
BASE_OFFSET_POINTERS = Capability.BASE_OFFSET_POINTERS

LIBRARY = Path(__file__).parents[1] / "torchgraft_opencl" / "libtorchgraft_opencl.so"
MODELS = ["host", "svm", "coarse", "buffer"]

# OpenCL has no network; the core's collectives go through the host.
NOT_OFFERED = frozenset(
    "group_id group_create group_destroy all_reduce reduce_scatter all_gather broadcast "
    "program_binary program_load".split()
)

# Name and types of the arguments, the context left out.
FUNCTIONS: list[tuple[str, Sequence[Any]]] = [
    (name, kind._argtypes_[1:])
    for name, kind in Table._fields_  # type: ignore[misc]
    if hasattr(kind, "_argtypes_") and name not in {"last_error", *NOT_OFFERED}
]


def private_copy(folder: Path) -> Path:
    """A copy of the library has its own state and reads the environment anew."""
    return Path(shutil.copy(LIBRARY, folder / f"driver-{len(list(folder.iterdir()))}.so"))


def run_program(program: str, **environment: str) -> None:
    """Runs it in a process of its own, with these variables besides."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        cwd=Path(__file__).parent,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr


POCL, INTEL = "Portable Computing Language", "Intel(R) OpenCL"

# For tests of what TORCHGRAFT_OPENCL_HOST leaves out.
_HOST = os.environ.get("TORCHGRAFT_OPENCL_HOST") or "code"
needs_caller = pytest.mark.skipif(_HOST == "off", reason="TORCHGRAFT_OPENCL_HOST=off: all work is queued")
needs_code = pytest.mark.skipif(_HOST != "code", reason=f"TORCHGRAFT_OPENCL_HOST={_HOST}: no machine code is called")


def attempts(seconds: float = 30) -> Iterator[None]:
    """For what a test sees only while a second processor is free, which others may need for as long as they like."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield


def driver_of(folder: Path, *platforms: str) -> Driver:
    """For tests of what the driver does on some platforms alone, which are skipped elsewhere."""
    driver = Driver(folder)
    if driver.count == 0 or driver.properties().platform.decode() not in platforms:
        pytest.skip(f"needs {' or '.join(platforms)}")
    return driver


def pocl_driver(folder: Path) -> Driver:
    return driver_of(folder, POCL)


def floats(data: bytes) -> list[float]:
    return list(struct.unpack(f"{len(data) // 4}f", data))


class DriverError(Exception):
    def __init__(self, function: str, status: int, message: str) -> None:
        super().__init__(f"{function}: {message}")
        self.status = status
        self.message = message


class Driver:
    """One loaded driver; by default a copy of the library, which has its own state and reads the environment anew."""

    def __init__(self, folder: Path, copy: bool = True, **environment: str) -> None:
        path = private_copy(folder) if copy else LIBRARY
        saved = {name: os.environ.get(name) for name in environment}
        os.environ.update(environment)
        try:
            self.library = ctypes.CDLL(str(path))  # for functions beside the table
            self.table: Table = driver_table(path)
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
        status: int = getattr(self.table, function)(None, *arguments)
        return status

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
        return self.kernel_of(self.compile(source)[0], name)

    def kernel_of(self, module: int, name: str) -> int:
        return self.created("kernel_create", module, name.encode())

    def launch(
        self, stream: int, kernel: int, groups: Sequence[int], local: Sequence[int], *arguments: Any, nbytes: int = 0
    ) -> None:
        """Arguments: an int is an address, a ctypes value is data. They span `nbytes`: a hint."""
        packed = (Argument * len(arguments))()
        for argument, value in zip(packed, arguments, strict=True):
            if value is None or isinstance(value, int):
                argument.is_pointer = 1
                argument.value.pointer = value
            else:
                argument.size = ctypes.sizeof(value)
                ctypes.memmove(argument.value.bytes, ctypes.byref(value), argument.size)
        launch = Launch(kernel=kernel, dims=len(groups), arg_count=len(arguments), args=ctypes.addressof(packed))
        launch.bytes = nbytes
        launch.groups[: len(groups)] = list(groups)
        launch.local[: len(local)] = list(local)
        self.call("launch", 0, stream, ctypes.byref(launch))

    @contextmanager
    def new_stream(self) -> Iterator[int]:
        """One that ends with the block."""
        stream = self.created("stream_create", 0, 0)
        yield stream
        self.call("stream_synchronize", 0, stream)
        self.call("stream_destroy", 0, stream)

    @contextmanager
    def new_block(self, stream: int, pattern: bytes, size: int) -> Iterator[int]:
        """The address of memory full of `pattern`, which ends with the block."""
        address = self.created("allocate", 0, size)
        self.call("fill", 0, stream, address, pattern, len(pattern), size)
        self.call("stream_synchronize", 0, stream)
        yield address
        self.call("stream_synchronize", 0, stream)
        self.call("deallocate", 0, address)

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
