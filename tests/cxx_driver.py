"""A driver whose kernels are C++, compiled by g++ (or what CXX names) and called through ctypes: the dialect's test.

As a script it registers the device "cxx", so that the conformance run can import it.
"""

from __future__ import annotations

import ctypes
import math
import os
import shlex
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from numpy_driver import NumpyDriver

from torchgraft.driver import Capability, CompileError, DeviceProperties

COMPILER = os.environ.get("CXX", "g++")


class CxxDriver(NumpyDriver):
    """The host's processor, one thread of it."""

    name = "cxx"
    has_compiler = True

    def __init__(self, options: str = os.environ.get("CXXFLAGS", ""), simd_width: int = 16) -> None:
        super().__init__(devices=1, memory=4 << 30, unified=True)
        self.capabilities |= Capability.COMPILER | Capability.FLOAT64
        self.options, self.simd_width = options, simd_width
        self.folder = tempfile.TemporaryDirectory()
        self.modules = 0

    def device_properties(self, device: int) -> DeviceProperties:
        known = super().device_properties(device)
        version = f"{COMPILER} {self.options}"
        return replace(known, dialect="c++", simd_width=self.simd_width, driver_version=version)

    def module_compile(self, device: int, source: str, options: str) -> bytes:
        self.modules += 1
        library = Path(self.folder.name, f"{self.modules}.so")
        words = " ".join([COMPILER, options, self.options, "-x c++ - -o", shlex.quote(str(library))])
        done = subprocess.run(shlex.split(words), input=source.encode(), capture_output=True, check=False)
        if done.returncode:
            raise CompileError(done.stderr.decode(errors="replace"))
        return library.read_bytes()

    def module_load(self, device: int, binary: bytes) -> bytes:
        return binary

    def module_binary(self, module: bytes) -> bytes:
        return module

    def kernel_create(self, module: bytes, name: str) -> Any:
        self.modules += 1
        library = Path(self.folder.name, f"{self.modules}.so")
        library.write_bytes(module)
        return getattr(ctypes.CDLL(str(library)), name)

    def graph_create(self, device: int, commands: list[tuple[str, tuple[Any, ...]]]) -> Any:
        return [(name, list(arguments)) for name, arguments in commands]

    def graph_set_argument(self, device: int, graph: Any, command: int, argument: int, value: int | bytes) -> None:
        graph[command][1][-1][argument] = value  # launch's last are the kernel's arguments

    def graph_destroy(self, device: int, graph: Any) -> None:
        graph.clear()

    def graph_launch(self, device: int, stream: Any, graph: Any) -> None:
        for name, arguments in graph:
            getattr(self, name)(device, stream, *arguments)

    def launch(
        self,
        device: int,
        stream: Any,
        kernel: Any,
        groups: tuple[int, ...],
        local: tuple[int, ...],
        args: list[int | bytes],
    ) -> None:
        values = [ctypes.c_void_p(a) if isinstance(a, int) else ctypes.create_string_buffer(a, len(a)) for a in args]
        pointers = (ctypes.c_void_p * len(args))(*(ctypes.addressof(value) for value in values))
        counts = (ctypes.c_ulonglong * 3)(*groups, *(1 for _ in range(3 - len(groups))))
        kernel(pointers, counts, ctypes.c_ulonglong(0), ctypes.c_ulonglong(math.prod(groups)))
