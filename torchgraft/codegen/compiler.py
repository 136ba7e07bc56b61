"""Compiles kernels, each once in a process and once on disk."""

from __future__ import annotations

import functools
import os
import threading
from dataclasses import dataclass

from torchgraft import _C
from torchgraft.codegen.cache import KernelCache
from torchgraft.codegen.dialect import dialect
from torchgraft.codegen.kernel import Kernel

_CAP_BASE_OFFSET_POINTERS = 1 << 6


class KernelCompileError(RuntimeError):
    """A device's compiler refused a kernel. The message has the kernel's name, the compiler's log and the numbered
    source.

    Attributes:
        kernel: the kernel's name.
        log: what the compiler said.
        source: the whole text that it was given.
    """

    def __init__(self, kernel: str, device: str, log: str, source: str) -> None:
        self.kernel, self.log, self.source = kernel, log, source
        numbered = "\n".join(f"{n:5d}  {line}" for n, line in enumerate(source.splitlines(), 1))
        super().__init__(f"kernel {kernel} does not compile on {device}:\n{log.strip()}\n\nsource:\n{numbered}")


@dataclass
class CompileCounts:
    """Kernels made in this process: `compiled` from source, `loaded` from the disk."""

    compiled: int = 0
    loaded: int = 0


counts = CompileCounts()
_lock = threading.Lock()
_kernels: dict[tuple[int, Kernel], _C.Kernel] = {}


@functools.cache
def _disk() -> KernelCache:
    return KernelCache()


@functools.cache
def _properties(device: int) -> dict[str, object]:
    return dict(_C.device_properties(device))


def compiled(kernel: Kernel, device: int) -> _C.Kernel:
    """The kernel, ready to launch on a device.

    Raises:
        KernelCompileError: the device's compiler refused it.
        NotImplementedError: the device has no compiler, or none of a known dialect.
    """
    key = (device, kernel)
    known = _kernels.get(key)
    if known is None:
        with _lock:
            known = _kernels.get(key)
            if known is None:
                known = _kernels[key] = _make(kernel, device)
    return known


def _make(kernel: Kernel, device: int) -> _C.Kernel:
    properties = _properties(device)
    language = dialect(str(properties["dialect"]))
    source = language.render(kernel, bool(int(str(properties["capabilities"])) & _CAP_BASE_OFFSET_POINTERS))
    options = " ".join(filter(None, [language.options, os.environ.get("TORCHGRAFT_COMPILE_OPTIONS", "")]))
    disk_key = KernelCache.key(source, options, str(properties["name"]), str(properties["driver_version"]))
    binary = _disk().read(disk_key)
    if binary is not None:
        module = _C.load_module(device, binary)
        if module is not None:
            counts.loaded += 1
            return _C.make_kernel(module, kernel.name, source, list(kernel.local))
        _disk().discard(disk_key)
    module, log = _C.compile_module(device, source, options)
    if module is None:
        raise KernelCompileError(kernel.name, f"{properties['name']} ({properties['driver_version']})", log, source)
    counts.compiled += 1
    made = _C.make_kernel(module, kernel.name, source, list(kernel.local))
    binary = module.binary()
    if binary is not None:
        _disk().write(disk_key, binary)
    return made
