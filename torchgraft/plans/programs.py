"""Programs of the device's own in plans: how they are made, kept, and given what they run on."""

from __future__ import annotations

import threading
import warnings
from collections import OrderedDict
from collections.abc import Sequence

import torch

from torchgraft import driver
from torchgraft._core import _C
from torchgraft._version import __version__
from torchgraft.codegen.cache import KernelCache
from torchgraft.plans.steps import Operand, Run, Steps

__all__ = ["ELEMENTS", "Record", "add_run", "created", "found", "key_on_disk", "prepared", "record_of_tensor"]

#: `tg_element`, by torch's dtypes.
ELEMENTS: dict[torch.dtype, int] = {getattr(torch, name): number for name, number in driver.ELEMENTS.items()}

#: What a driver is told of a tensor: element, sizes, strides, and whether it is a number of each run.
Record = tuple[int, list[int], list[int], bool]


class _Kept:
    """The programs that were used last, for plans to come; each plan keeps its own."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._programs: OrderedDict[tuple[int, str], _C.Program] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, device: int, key: str) -> _C.Program | None:
        with self._lock:
            if (device, key) in self._programs:
                self._programs.move_to_end((device, key))
            return self._programs.get((device, key))

    def keep(self, device: int, key: str, program: _C.Program) -> _C.Program:
        with self._lock:
            self._programs[device, key] = program
            while len(self._programs) > self._most:
                self._programs.popitem(last=False)
        return program


_kept = _Kept(most=1024)
_warned: set[tuple[int, str]] = set()


def record_of_tensor(spec: torch.Tensor) -> Record:
    return (ELEMENTS[spec.dtype], list(spec.shape), list(spec.stride()), False)


def add_run(p: Steps, program: _C.Program, operands: Sequence[Operand]) -> None:
    """Adds a run to a plan, with its scratch as a temporary."""
    scratch = p.empty((program.scratch_bytes,), torch.uint8) if program.scratch_bytes else None
    p.add(Run(program, list(operands), scratch))


def prepared(device: int, name: str, source: _C.ProgramSource, key: str) -> _C.Program | str:
    """The program, or why there is none.

    Args:
        name: for a warning.
        key: what decides what is made, beside the driver and the device; the same in every process.
    """
    return found(device, source, key) or created(device, name, source, key)


def found(device: int, source: _C.ProgramSource, key: str) -> _C.Program | None:
    """The program, if it has been prepared before, in this process or another; the source needs no bytes for that."""
    program = _kept.find(device, key)
    if program is None:
        loaded = _from_disk(device, source, key)
        program = None if loaded is None else _kept.keep(device, key, loaded)
    return program


def key_on_disk(device: int, what: str, key: str) -> str:
    """The name under which what a key and a device's driver decide is kept on disk."""
    p = _C.device_properties(device)
    driver = [str(p[each]) for each in ("driver", "driver_version", "platform", "name")]
    return KernelCache.key(what, __version__, *driver, key)


def _from_disk(device: int, source: _C.ProgramSource, key: str) -> _C.Program | None:
    disk = KernelCache()
    if not _C.keeps_programs(device) or not disk.usable():
        return None
    name = key_on_disk(device, "program", key)
    binary = disk.read(name)
    if binary is None:
        return None
    program, _ = _C.Program.load(device, source, binary)
    if program is None:
        disk.discard(name)
    return program


def created(device: int, name: str, source: _C.ProgramSource, key: str) -> _C.Program | str:
    """`prepared` of what has not been `found`."""
    program, reason, refused = _C.Program.create(device, source)
    if program is None:
        if refused and (device, name) not in _warned:
            _warned.add((device, name))
            backend = torch._C._get_privateuse1_backend_name()
            warnings.warn(
                f"'{backend}:{device}' could not prepare {name}, which it says that it has: {reason}. It is served in "
                "another way; the result is right.",
                RuntimeWarning,
                stacklevel=2,
            )
        return reason
    if _C.keeps_programs(device) and (binary := program.binary()) is not None:
        KernelCache().write(key_on_disk(device, "program", key), binary)
    return _kept.keep(device, key, program)
