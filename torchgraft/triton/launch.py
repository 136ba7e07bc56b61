"""Launches of translated kernels."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from torchgraft._core import _C
from torchgraft.codegen.compiler import simd_width
from torchgraft.codegen.kernel import Kernel, Parameter, Pointer
from torchgraft.codegen.signature import Argument
from torchgraft.codegen.tuning import Room
from torchgraft.codegen.types import BY_NAME
from torchgraft.codegen.vectors import vector_lanes
from torchgraft.plans.device import kernel_form
from torchgraft.raw_kernel import described, make_neutral
from torchgraft.triton.kernel import Translated

__all__ = ["Launcher", "Utils", "architecture", "current_device"]

# Groups among which the programs of a launch are shared, for each of the device's units: of one work-item, of several
# with all in local memory, and of several with memory of their own elsewhere.
_GROUPS_PER_UNIT = {"cpu": 16, "gpu": 1024, "scratch": 4}

# Tensors whose elements a kernel reads and writes as integers of so many bits.
_SAME_BITS = {
    "i8": (torch.int8, torch.uint8, torch.bool),
    "b8": (torch.bool, torch.int8, torch.uint8),
    "i16": (torch.int16, torch.uint16),
    "i32": (torch.int32, torch.uint32),
    "i64": (torch.int64, torch.uint64),
}
_UNSIGNED = {"u8": 8, "u16": 16, "u32": 32, "u64": 64}


class _Loaded:
    """A kernel on a device."""

    def __init__(self, translated: Translated, device: int) -> None:
        kind = "scratch" if translated.scratch else "gpu" if translated.items > 1 else "cpu"
        self._most_groups = _GROUPS_PER_UNIT[kind] * _C.device_properties(device)["compute_units"]
        self._local, self._scratch = (translated.items,), translated.scratch
        self._device = torch.device(torch._C._get_privateuse1_backend_name(), device)
        self._pointers = [
            (n, _dtypes(element)) for n, (_, element, is_pointer, _) in enumerate(translated.parameters) if is_pointer
        ]
        self._apart = _launcher(translated.kernel(shared=False), bool(translated.reports))
        shared = translated.kernel(shared=True)
        self._shared = _launcher(shared, bool(translated.reports)) if translated.shared else None
        self._code: tuple[int, ...] = ()
        if translated.reports:
            head = f"program {{}} of the Triton kernel {translated.name.removeprefix('triton_')}: assertion failed"
            where = f" (on {torch._C._get_privateuse1_backend_name()}:{device})"
            self._code = (_C.error_codes([(f"{head}{text}{where}", False) for text in translated.reports]),)

    def launch(self, programs: int, arguments: list[Any]) -> None:
        groups = min(programs, self._most_groups)
        for n, dtypes in self._pointers:
            if type(arguments[n]) is not torch.Tensor:
                arguments[n] = _tensor(arguments[n], dtypes)
        if self._scratch:
            arguments += self._scratch, torch.empty(groups * self._scratch, dtype=torch.uint8, device=self._device)
        kernel = self._apart
        if self._shared is not None and kernel.share_memory(*arguments):
            kernel = self._shared
        kernel((groups,), self._local, *arguments, *self._code)


def _launcher(kernel: Kernel, reports: bool) -> _C.Launcher:
    params = kernel.params[:-1] if reports else kernel.params
    arguments = [(a.name, a.text, a.type, list(a.dtypes), a.written) for a in map(_argument, params)]
    return _C.Launcher(kernel.name, arguments, functools.partial(make_neutral, kernel), reports)


def _argument(param: Parameter) -> Argument:
    argument = described(param)
    return replace(argument, dtypes=_dtypes(param.type)) if isinstance(param, Pointer) else argument


def _dtypes(element: str) -> tuple[torch.dtype, ...]:
    """Of tensors with such elements."""
    return _SAME_BITS.get(element) or (BY_NAME[element].dtype,)


def _tensor(argument: Any, dtypes: Sequence[torch.dtype]) -> Any:
    """What a pointer is given, as a tensor: Triton's `reinterpret` makes something else of one, whose `base` it is."""
    base = getattr(argument, "base", None)
    if isinstance(argument, torch.Tensor) or not isinstance(base, torch.Tensor):
        return argument
    return base if base.dtype in dtypes else base.view(dtypes[0])


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
        self._kinds = list(src.signature.values())
        self._taken = [n for n, kind in enumerate(self._kinds) if kind != "constexpr"]
        self._nested = any(isinstance(kind, tuple) or _is_descriptor(kind) for kind in self._kinds)
        self._unsigned = any(kind in _UNSIGNED for kind in self._kinds)

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
        if self._nested or self._unsigned:
            given = list(_flattened(self._kinds, args))
        else:
            given = [args[n] for n in self._taken]
        given += (x, y, z)
        if enter is not None:
            enter(launch_metadata)
        function.launch(programs, given)
        if leave is not None:
            leave(launch_metadata)


def _is_descriptor(kind: Any) -> bool:
    return isinstance(kind, str) and kind.startswith("tensordesc")


def _flattened(kinds: Iterable[Any], arguments: Iterable[Any]) -> Iterator[Any]:
    """Arguments as the kernel takes them: a tuple's parts, and of a descriptor what Triton makes of it where a device
    has none."""
    for kind, argument in zip(kinds, arguments, strict=True):
        if isinstance(kind, tuple):
            yield from _flattened(kind, argument)
        elif _is_descriptor(kind):
            places = [*argument.shape, *argument.strides]
            yield from (argument.base, *places, argument.padding == "nan", argument.round_f32_to_tf32, *places)
        elif kind in _UNSIGNED:  # the language's are signed
            half = 1 << (_UNSIGNED[kind] - 1)
            yield (argument + half) % (2 * half) - half
        elif kind != "constexpr":
            yield argument


def current_device() -> int:
    return _C.current_device()


def architecture() -> str:
    """What texts are made for on the current device: the kernel language with the float32 lanes of a CPU's vectors, or
    on GPUs with the most work-items of a group and its bytes of local memory: "opencl-c/8" or "opencl-c:256:32768"."""
    index = _C.current_device()
    properties = _C.device_properties(index)
    if kernel_form(index) == "cpu":
        return f"{properties['dialect']}/{vector_lanes(simd_width(index))}"
    room = Room.of(properties)
    return f"{properties['dialect']}:{room.items}:{room.local_bytes}"
