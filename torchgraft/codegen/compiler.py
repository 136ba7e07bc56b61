"""Compiles kernels, each once in a process and once on disk."""

from __future__ import annotations

import functools
import os
import threading
from dataclasses import dataclass

from torchgraft import _C
from torchgraft.codegen.cache import KernelCache
from torchgraft.codegen.dialect import Dialect, dialect
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
_modules: dict[tuple[int, str, str], _C.Module] = {}


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


def compiled_source(source: str, name: str, device: int, options: str) -> _C.Kernel:
    """The kernel `name` of a source in the device's own language; kernels of one source share a module.

    Raises: as `compiled`.
    """
    with _lock:
        key = (device, source, options)
        module = _modules.get(key)
        if module is None:
            module = _modules[key] = _module(source, name, device, options)
        return _C.make_kernel(module, name, source, [1])


def device_dialect(device: int) -> Dialect:
    """The dialect of a device's language.

    Raises:
        NotImplementedError: the device has no compiler, or none of a known dialect.
    """
    properties = _properties(device)
    if not properties["has_compiler"]:
        raise NotImplementedError(
            f"{_C.backend_name()}:{device} ({properties['name']}) has no kernel compiler, so no kernel can be launched "
            "on it; give it functions, with torchgraft.plans.composite or torch.library"
        )
    return dialect(str(properties["dialect"]))


def has_base_offset_pointers(device: int) -> bool:
    """Whether kernels get an allocation and an offset for each pointer (see TG_CAP_BASE_OFFSET_POINTERS)."""
    return bool(int(str(_properties(device)["capabilities"])) & _CAP_BASE_OFFSET_POINTERS)


def _make(kernel: Kernel, device: int) -> _C.Kernel:
    language = device_dialect(device)
    source = language.render(kernel, has_base_offset_pointers(device))
    module = _module(source, kernel.name, device, language.options)
    return _C.make_kernel(module, kernel.name, source, list(kernel.local))


def _module(source: str, name: str, device: int, options: str) -> _C.Module:
    """The source compiled for a device, or loaded from the disk where it is there."""
    options = " ".join(filter(None, [options, os.environ.get("TORCHGRAFT_COMPILE_OPTIONS", "")]))
    properties = _properties(device)
    disk_key = KernelCache.key(source, options, str(properties["name"]), str(properties["driver_version"]))
    binary = _disk().read(disk_key)
    if binary is not None:
        module = _C.load_module(device, binary)
        if module is not None:
            counts.loaded += 1
            return module
        _disk().discard(disk_key)
    module, log = _C.compile_module(device, source, options)
    if module is None:
        raise KernelCompileError(name, f"{properties['name']} ({properties['driver_version']})", log, source)
    counts.compiled += 1
    binary = module.binary()
    if binary is not None:
        _disk().write(disk_key, binary)
    return module
