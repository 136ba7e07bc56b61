"""Launches of translated kernels."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from torchgraft._core import _C
from torchgraft.codegen.kernel import Kernel, Parameter
from torchgraft.codegen.signature import Argument
from torchgraft.raw_kernel import RawKernel, described, make_neutral
from torchgraft.triton.kernel import Translated

__all__ = ["Launcher", "Utils", "current_device", "dialect"]

# Groups among which the programs of a launch are shared, for each of the device's units.
_GROUPS_PER_UNIT = 16

# Tensors whose elements a kernel reads and writes as integers of so many bits.
_SAME_BITS = {
    "i8": (torch.int8, torch.uint8, torch.bool),
    "b8": (torch.bool, torch.int8, torch.uint8),
    "i16": (torch.int16, torch.uint16),
    "i32": (torch.int32, torch.uint32),
    "i64": (torch.int64, torch.uint64),
}


class _Loaded:
    """A kernel on a device."""

    def __init__(self, translated: Translated, device: int) -> None:
        self.units = _C.device_properties(device)["compute_units"]
        self.written = [n for n, each in enumerate(translated.parameters) if each[3]]
        self.pointers = [n for n, each in enumerate(translated.parameters) if each[2]]
        self.apart = _raw(translated.kernel(shared=False))
        self.shared = _raw(translated.kernel(shared=True)) if translated.shared else self.apart

    def launch(self, groups: int, arguments: Sequence[Any]) -> None:
        kernel = self.apart
        if self.shared is not kernel and self._share_memory(arguments):
            kernel = self.shared
        kernel._launcher((groups,), (1,), *arguments)

    def _share_memory(self, arguments: Sequence[Any]) -> bool:
        storages = {n: arguments[n].untyped_storage()._cdata for n in self.pointers if arguments[n] is not None}
        return any(
            n in storages and storages[n] == other for n in self.written for m, other in storages.items() if m != n
        )


def _raw(kernel: Kernel) -> RawKernel:
    arguments = tuple(map(_argument, kernel.params))
    return RawKernel(kernel.name, arguments, kernel.local, functools.partial(make_neutral, kernel))


def _argument(param: Parameter) -> Argument:
    argument = described(param)
    return replace(argument, dtypes=_SAME_BITS.get(param.type, argument.dtypes)) if argument.dtypes else argument


class Utils:
    def get_device_properties(self, device: int) -> dict[str, int]:
        properties = _C.device_properties(device)
        return {
            "max_shared_mem": 1 << 30,
            "multiprocessor_count": properties["compute_units"],
            "max_num_regs": 1 << 16,
            "warpSize": 1,
        }

    def load_binary(self, name: str, blob: bytes, shared: int, device: int) -> tuple[Any, _Loaded, int, int, int]:
        loaded = _Loaded(Translated.read(blob), device)
        return loaded, loaded, 0, 0, 1 << 20

    def unload_module(self, module: Any) -> None:
        pass


class Launcher:
    """Made for each kernel; called for each launch."""

    def __init__(self, src: Any, metadata: Any) -> None:
        types = list(src.signature.values())
        self._taken = [n for n, kind in enumerate(types) if kind != "constexpr"]
        kinds = [types[n] for n in self._taken]
        self._unsigned = [(n, int(kind[1:])) for n, kind in enumerate(kinds) if kind in ("u8", "u16", "u32", "u64")]
        self._descriptors = any("desc" in str(kind) for kind in kinds)

    def __call__(
        self,
        x: int,
        y: int,
        z: int,
        stream: int,
        function: _Loaded,
        packed: Any,
        launch_metadata: Any,
        enter: Callable[[Any], None] | None,
        leave: Callable[[Any], None] | None,
        *args: Any,
    ) -> None:
        programs = x * y * z
        if programs <= 0:
            return
        given = [args[n] for n in self._taken]
        for n, bits in self._unsigned:  # the language's are signed
            given[n] = (given[n] + (1 << (bits - 1))) % (1 << bits) - (1 << (bits - 1))
        if enter is not None:
            enter(launch_metadata)
        function.launch(min(programs, _GROUPS_PER_UNIT * function.units), (*given, x, y, z))
        if leave is not None:
            leave(launch_metadata)


def current_device() -> int:
    return _C.current_device()


def dialect() -> str:
    """The kernel language of the current device."""
    return str(_C.device_properties(_C.current_device())["dialect"])
