"""Which kernels serve a call on a device that need not be there: a plan is made of shapes and of a device's traits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map

from torchgraft._core import _C
from torchgraft.codegen.kernel import Kernel
from torchgraft.codegen.tuning import device_class
from torchgraft.codegen.types import BY_DTYPE
from torchgraft.codegen.x86 import Way
from torchgraft.plans.ahead import as_on_device
from torchgraft.plans.builder import PlanBuilder
from torchgraft.plans.call import plan_nested
from torchgraft.plans.device import DeviceTraits
from torchgraft.plans.mode import ThreadMode
from torchgraft.plans.schema import overload_name
from torchgraft.plans.trace import trace

__all__ = ["CLASSES", "calls_of", "described", "fake_device", "kernels_of"]


def _device(kind: str, simd_width: int, bfloat16: Way | None = None, matrix_units: bool = False) -> DeviceTraits:
    return DeviceTraits(
        has_programs=False,
        program_formats=(),
        constants=False,
        kernels_first=False,
        index=0,
        name=f"any {kind}",
        kind=kind,
        compute_units=2 if kind == "cpu" else 128,
        max_work_group_size=4096 if kind == "cpu" else 1024,
        simd_width=simd_width,
        float64=True,
        has_compiler=True,
        long_atomics=True,
        bfloat16=bfloat16,
        matrix_units=matrix_units,
        outer_vectors=kind == "cpu",
        tuning=device_class(kind, simd_width, matrix_units).sizes,
    )


#: Classes of devices, each by one that has all that a driver may tell of it: CPUs by the bytes of their registers and
#: the words that they have for bfloat16, GPUs without and with matrix units.
CLASSES = {
    "cpu32": _device("cpu", 8),
    "cpu64": _device("cpu", 16),
    "cpu64-pairs": _device("cpu", 16, bfloat16="vectors"),
    "cpu64-tiles": _device("cpu", 16, bfloat16="tiles"),
    "gpu": _device("gpu", 1),
    "gpu-matrix": _device("gpu", 1, matrix_units=True),
}


def kernels_of(
    op: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], traits: DeviceTraits, form: str = ""
) -> list[Kernel]:
    """The kernels of a call's plan, in the order of their launches; empty of views, and of what is copied or filled.

    Args:
        op: an overload, functional or not.
        args, kwargs: of the call; of tensors the shape, strides and dtype are looked at.
        traits: of the device, for instance one of `CLASSES`.
        form: of its kernels, if it is not that of its kind.

    Raises:
        Unsupported: there is no plan of it.
    """
    if torch.Tag.inplace_view in op.tags:
        return []
    op, args = as_on_device(op, args)
    p = PlanBuilder(traits, form or traits.kind, overload_name(op), False, nested=plan_nested)
    args, kwargs = tree_map(_spec, (args, kwargs))
    for number, spec in enumerate(leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)):
        p.adopt(spec, "argument", number)
    trace(p, op, args, kwargs)
    p.settle()
    return p.kernels


Call = tuple[torch._ops.OpOverload, tuple[Any, ...], dict[str, Any]]


@contextmanager
def fake_device() -> Iterator[None]:
    """Where tensors are made on a device that need not be there, and have no memory: torch composes of others what it
    does on the device, and leaves whole what it leaves whole there."""
    if not torch._C._dispatch_has_kernel_for_dispatch_key("aten::empty.memory_format", "PrivateUse1"):
        _C.install_kernels()
    where = torch.device(torch._C._get_privateuse1_backend_name(), 0)
    with FakeTensorMode(allow_non_fake_inputs=True), where:
        yield


class _Calls(ThreadMode):
    """The ops that are called, without those that only ask."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[Call] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace != "prim":
            self.made.append((func, args, kwargs or {}))
        return func(*args, **(kwargs or {}))


def calls_of(program: Callable[[], object]) -> list[Call]:
    """What a program calls, of tensors that have no memory: meta tensors, or fake ones."""
    calls = _Calls()
    with calls.active():
        program()
    return calls.made


def described(op: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """A call as text: of tensors dtype, shape, and strides where they are not those of a contiguous one."""
    return f"{overload_name(op).removeprefix('aten::')}({', '.join(map(_described, tree_leaves((args, kwargs))))})"


def _described(x: Any) -> str:
    if not isinstance(x, torch.Tensor):
        return str(x).removeprefix("torch.")
    element = BY_DTYPE[x.dtype].name if x.dtype in BY_DTYPE else str(x.dtype).removeprefix("torch.")
    text = f"{element}[{'x'.join(map(str, x.shape))}]"
    return text if x.is_contiguous() else f"{text} by {'x'.join(map(str, x.stride()))}"


def _spec(x: Any) -> Any:
    if isinstance(x, torch.Tensor):
        return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")
    return torch.device("meta") if isinstance(x, torch.device) else x
