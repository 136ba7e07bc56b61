"""Compiles kernels, each once in a process and once on disk."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from torchgraft._core import _C
from torchgraft.codegen import ahead
from torchgraft.codegen.cache import KernelCache
from torchgraft.codegen.dialect import Dialect, UnsupportedKernel
from torchgraft.codegen.dialects import dialect
from torchgraft.codegen.kernel import Kernel
from torchgraft.codegen.progress import progress
from torchgraft.codegen.vectors import vector_lanes
from torchgraft.driver import Capability


class KernelCompileError(RuntimeError):
    """A device's compiler refused a kernel. The message has the kernel's name, the compiler's log and the numbered
    source.

    Attributes:
        kernel: the kernel's name.
        device: the device and its driver's version.
        log: what the compiler said.
        source: the whole text that it was given.
        origin: what the kernel was made of, if it was made of somebody's program.
    """

    def __init__(self, kernel: str, device: str, log: str, source: str, origin: str = "") -> None:
        self.kernel, self.device, self.log, self.source, self.origin = kernel, device, log, source, origin
        numbered = "\n".join(f"{n:5d}  {line}" for n, line in enumerate(source.splitlines(), 1))
        made = f"\n\nmade of:\n{origin}" if origin else ""
        super().__init__(f"kernel {kernel} does not compile on {device}:\n{log.strip()}{made}\n\nsource:\n{numbered}")

    def of(self, origin: str) -> KernelCompileError:
        """The same with what the kernel was made of."""
        return KernelCompileError(self.kernel, self.device, self.log, self.source, origin)


@dataclass
class CompileCounts:
    """Kernels made in this process: `compiled` from source, `loaded` from the disk."""

    compiled: int = 0
    loaded: int = 0


counts = CompileCounts()


_listeners: list[list[KernelCompileError]] = []


@contextlib.contextmanager
def refusals() -> Iterator[list[KernelCompileError]]:
    """What devices' compilers refuse meanwhile, in this process, whatever becomes of the calls that needed it."""
    refused: list[KernelCompileError] = []
    _listeners.append(refused)
    try:
        yield refused
    finally:
        _listeners[:] = [each for each in _listeners if each is not refused]


@dataclass(frozen=True)
class _Built:
    """A module, and the first kernel that was made of it."""

    module: _C.Module
    kernel: _C.Kernel
    from_disk: bool


_kernels: dict[tuple[int, Kernel], _C.Kernel] = {}
_modules: dict[tuple[int, str, str], _Built] = {}
# Locks are taken in this order: the turn of a kernel, its claim on disk, the compiler. Who loads a kernel that was
# compiled before takes no turn but its own, and so waits for nobody's compile.
_turns: dict[object, threading.Lock] = {}
_compiler = threading.Lock()
_counting = threading.Lock()


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
        UnsupportedKernel: the dialect cannot express it.
    """
    key = (device, kernel)
    known = _kernels.get(key)
    if known is None:
        with _turn(key):
            known = _kernels.get(key)
            if known is None:
                known = _kernels[key] = _make(kernel, device)
    return known


def compile_ahead(kernels: Iterable[Kernel], device: int) -> None:
    """Has helpers compile those that are neither in this process nor on disk, the last of them first."""
    # Another process on a GPU would take memory from it, and its compiler serves threads.
    if _properties(device)["kind"] != "cpu" or not ahead.is_possible() or not _disk().usable():
        return
    missing = [kernel for kernel in dict.fromkeys(kernels) if (device, kernel) not in _kernels]
    jobs = []
    for kernel in missing:
        with contextlib.suppress(UnsupportedKernel):  # whoever needs it is told
            jobs.append(_job(kernel, device))
    ahead.send(job.described() for job in jobs if not _disk().has(job.key()))


def compiled_source(source: str, name: str, device: int, options: str) -> _C.Kernel:
    """The kernel `name` of a source in the device's own language; kernels of one source share a module.

    Raises: as `compiled`.
    """
    key = (device, source, options)
    job = _Job(source, name, device, _with_users(options), shared=True)
    with _turn(key):
        built = _modules.get(key)
        if built is not None:
            try:
                return job.make(built.module)
            except RuntimeError:
                if not built.from_disk:
                    raise
                _disk().discard(job.key())  # its binary has not all of its kernels
        built = _modules[key] = _build(job)
        return built.kernel


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
    return Capability.BASE_OFFSET_POINTERS in Capability(int(str(_properties(device)["capabilities"])))


@functools.cache
def simd_width(device: int) -> int:
    """How many float32 a device's vector register holds: what the driver says, down to a power of two, or what
    TORCHGRAFT_SIMD_WIDTH says instead.

    Raises:
        ValueError: that is no power of two.
    """
    forced = os.environ.get("TORCHGRAFT_SIMD_WIDTH", "")
    if not forced:
        return 1 << max(1, int(str(_properties(device)["simd_width"]))).bit_length() - 1
    if not forced.isdecimal() or int(forced).bit_count() != 1:
        raise ValueError(f"TORCHGRAFT_SIMD_WIDTH is a power of two, not {forced!r}")
    return int(forced)


@contextlib.contextmanager
def _turn(key: object) -> Iterator[None]:
    """Lets one thread at a time make what has this key."""
    lock = _turns.setdefault(key, threading.Lock())
    try:
        with lock:
            yield
    finally:
        _turns.pop(key, None)


@dataclass(frozen=True)
class _Job:
    """What is to be compiled, and which kernel is wanted of it.

    Attributes:
        shared: the source has other kernels too, so that its module does not belong to this one.
    """

    source: str
    name: str
    device: int
    options: str
    local: tuple[int, ...] = (1,)
    shared: bool = False

    def key(self) -> str:
        """On disk."""
        properties = _properties(self.device)
        device = str(properties["name"]), str(properties["driver_version"])
        return KernelCache.key("" if self.shared else self.name, self.source, self.options, *device)

    def described(self) -> ahead.Job:
        """For a helper."""
        properties = _properties(self.device)
        device = [properties["name"], properties["driver_version"]]
        where = {"driver": properties["driver"], "ordinal": properties["ordinal"], "device": device}
        return {"key": self.key(), "source": self.source, "options": self.options, **where}

    def make(self, module: _C.Module) -> _C.Kernel:
        return _C.make_kernel(module, self.name, self.source, list(self.local))


def _with_users(options: str) -> str:
    return " ".join(filter(None, [options, os.environ.get("TORCHGRAFT_COMPILE_OPTIONS", "")]))


def _job(kernel: Kernel, device: int) -> _Job:
    options = _with_users(device_dialect(device).options)
    return _Job(_source(kernel, device), kernel.name, device, options, kernel.local)


@functools.lru_cache(maxsize=64)  # a kernel that is compiled ahead is soon looked for
def _source(kernel: Kernel, device: int) -> str:
    language = device_dialect(device)
    return language.render(kernel, has_base_offset_pointers(device), vector_lanes(simd_width(device)))


def _make(kernel: Kernel, device: int) -> _C.Kernel:
    return _build(_job(kernel, device)).kernel


def _build(job: _Job) -> _Built:
    """Loads from the disk what is there and works, and compiles anything else: in one of several processes, where they
    share a directory."""
    key = job.key()
    built = _load(job, key)
    if built is None:
        with _disk().claim(key):
            built = _load(job, key) or _compile(job, key)
    return built


def _load(job: _Job, key: str) -> _Built | None:
    binary = _disk().read(key)
    if binary is None:
        return None
    module = _C.load_module(job.device, binary)
    if module is not None:
        with contextlib.suppress(RuntimeError):  # a binary may load and lack its kernel
            built = _Built(module, job.make(module), from_disk=True)
            with _counting:
                counts.loaded += 1
            return built
    _disk().discard(key)
    return None


def _compile(job: _Job, key: str) -> _Built:
    with _compiler, progress.compiling():
        module, log = _C.compile_module(job.device, job.source, job.options)
        if module is None:
            properties = _properties(job.device)
            device = f"{properties['name']} ({properties['driver_version']})"
            refused = KernelCompileError(job.name, device, log, job.source)
            for listener in _listeners:
                listener.append(refused)
            raise refused
        with _counting:
            counts.compiled += 1
        kernel = job.make(module)
        binary = None
        with contextlib.suppress(RuntimeError):  # it is only for the disk
            binary = module.binary()
    if binary is not None:
        _disk().write(key, binary)
    return _Built(module, kernel, from_disk=False)
