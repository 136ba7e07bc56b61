"""`torchgraft.kernel`: kernels written by hand, launched from Python."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from torchgraft import backend
from torchgraft._core import _C
from torchgraft.codegen import Kernel, Parameter, Pointer
from torchgraft.codegen.compiler import compiled, compiled_source, device_dialect, has_base_offset_pointers
from torchgraft.codegen.dialects import kernel_words
from torchgraft.codegen.signature import Argument, Signature, signatures, with_offsets
from torchgraft.codegen.types import BY_NAME

__all__ = ["RawKernel", "described", "host_view", "kernel", "make_neutral"]

# Implementations count them in 32 bits.
_MOST_GROUPS = 1 << 32


class RawKernel:
    """A kernel that is launched by `kernel[groups, local](arguments)`; made by `torchgraft.kernel`.

    `groups` is the number of work-groups and `local` that of the work-items in each, both an int or a tuple of up to
    three. No group at all, and a group of more work-items than the device can run, are ValueErrors. Arguments are given
    in the order of the kernel's parameters:

    * for a pointer a tensor of the device, of a dtype that has the pointer's elements: the kernel gets the address of
      its first element, whatever its strides; or None, which is a null pointer;
    * for a number a Python number.

    The launch goes to the current stream of the tensors' device and does not wait. As with torch's own ops, memory that
    is used on another stream than the one it was allocated for needs `Tensor.record_stream`.

    Attributes:
        name: the kernel's name.
        arguments: what it takes.
    """

    def __init__(
        self, name: str, arguments: tuple[Argument, ...], local: tuple[int, ...], make: Callable[[int], _C.Kernel]
    ) -> None:
        self.name, self.arguments, self._local = name, arguments, local
        described = [(a.name, a.text, a.type, list(a.dtypes), a.written) for a in arguments]
        self._launcher = _C.Launcher(name, described, make)

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        groups, local = grid if isinstance(grid, tuple) else (grid, self._local)
        groups, local = _sizes("groups", groups), _sizes("local", local)
        self._check_groups(groups)
        dims = max(len(groups), len(local))
        return functools.partial(
            self._launcher, groups + (1,) * (dims - len(groups)), local + (1,) * (dims - len(local))
        )

    def __call__(self, *arguments: Any) -> None:
        raise TypeError(f"say on how many work-groups and work-items: kernel[groups, local](...), for {self.name}")

    def _check_groups(self, groups: tuple[int, ...]) -> None:
        if 0 in groups:
            raise ValueError(
                f"kernel {self.name}: groups is {_text(groups)}, which is no work-group at all; leave the launch out "
                "where there is nothing to do, or round up: (n + local - 1) // local"
            )
        if math.prod(groups) >= _MOST_GROUPS:
            raise ValueError(
                f"kernel {self.name}: groups is {_text(groups)}, and fewer than 2**32 work-groups can be launched at "
                "once: have each do more, or launch several times"
            )

    def __repr__(self) -> str:
        return f"<kernel {self.name}({', '.join(a.text for a in self.arguments)})>"


def _text(sizes: tuple[int, ...]) -> str:
    return repr(sizes[0] if len(sizes) == 1 else sizes)


def _sizes(what: str, given: Any) -> tuple[int, ...]:
    sizes = given if isinstance(given, tuple) else (given,)
    if not 1 <= len(sizes) <= 3 or not all(isinstance(n, int) for n in sizes):
        raise TypeError(f"{what} is an int or a tuple of up to three, not {given!r}; kernel[groups, local](...)")
    if any(n < 0 for n in sizes) or (what == "local" and 0 in sizes):
        raise ValueError(f"{what} cannot be {given!r}")
    return sizes


def kernel(
    source: str | Kernel, name: str | None = None, *, options: str | None = None, types: Mapping[str, str] | None = None
) -> RawKernel:
    """A kernel to launch on tensors::

        scale = torchgraft.kernel("__kernel void scale(__global float* x, float a) { x[get_global_id(0)] *= a; }")
        scale[x.numel() // 64, 64](x, 2.0)

    It is compiled at its first launch on each device, once for all processes: it is kept on disk like all kernels.

    Args:
        source: in the device's own language (`torch.<name>.get_device_properties().dialect`). A
            `torchgraft.plans.Kernel` is written in the neutral dialect instead, for devices of every known language.
        name: which kernel of the source; not needed where there is only one.
        options: of the compiler, in place of the ones that torchgraft's own kernels are compiled with.
        types: what types of numbers the source's own names stand for: {"real": "float"}.

    Raises:
        ValueError: the source has no such kernel, or one with a parameter that nothing can be passed for.

    A launch raises TypeError for a wrong number or kind of arguments and OverflowError for a number out of range,
    before anything is launched; RuntimeError for tensors of another device; KernelCompileError with the compiler's log
    and the numbered source; and NotImplementedError where the device has no compiler.
    """
    if isinstance(source, Kernel):
        if name is not None or options is not None or types is not None:
            raise TypeError("a Kernel says itself what its name and types are; it is compiled like torchgraft's own")
        return RawKernel(
            source.name, tuple(map(described, source.params)), source.local, functools.partial(make_neutral, source)
        )
    words = kernel_words()
    found = signatures(source, words, types or {})
    by_name = {each.name: each for each in found}
    if not found:
        raise ValueError(f"the source defines no kernel: there is no function marked {' or '.join(words)} in it")
    if name is None and len(by_name) > 1:
        raise ValueError(f"the source has the kernels {', '.join(by_name)}: say which")
    chosen = by_name.get(name or found[0].name)
    if chosen is None:
        raise ValueError(f"the source has no kernel {name!r}; it has {', '.join(by_name)}")
    make = functools.partial(_make_raw, source, found, chosen.name, options)
    return RawKernel(chosen.name, chosen.arguments, (1,), make)


def described(param: Parameter) -> Argument:
    """What a launch gives a parameter of the neutral text's."""
    if isinstance(param, Pointer):
        const = "const " if param.const else ""
        text = f"{const}{param.type}* {param.name}"
        return Argument(param.name, text, dtypes=(BY_NAME[param.type].dtype,), written=not param.const)
    return Argument(param.name, f"{param.type} {param.name}", type=param.type)


def make_neutral(source: Kernel, device: int) -> _C.Kernel:
    """A kernel in the neutral text, compiled for a device."""
    backend.open_devices()
    return compiled(source, device)


def _make_raw(source: str, kernels: list[Signature], name: str, options: str | None, device: int) -> _C.Kernel:
    backend.open_devices()
    language = device_dialect(device)
    if has_base_offset_pointers(device):
        source = with_offsets(source, kernels)
    return compiled_source(source, name, device, language.options if options is None else options)


def host_view(tensor: torch.Tensor) -> torch.Tensor:
    """A CPU tensor over the memory of a device's tensor: of its shape, strides and dtype, without a copy.

    For ops that are functions of the host, on devices whose memory the host can use: `host_view(x).numpy()` is the
    array to compute with. It waits for the work that the device has been given; what the host writes is there for all
    that is submitted afterwards. It does not track gradients.

    Raises:
        TypeError: the tensor is not on the device.
        NotImplementedError: the host cannot use the device's memory.
    """
    _C.raise_if_forked()
    return _C.host_view(tensor.detach())
