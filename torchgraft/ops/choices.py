"""Which kernels serve a call on a device that need not be there: a plan is made of shapes and of a device's traits."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from torchgraft.codegen.kernel import Kernel
from torchgraft.codegen.tuning import LOCAL_BYTES, default_tuning
from torchgraft.codegen.x86 import Way
from torchgraft.plans.builder import PlanBuilder
from torchgraft.plans.call import plan_nested
from torchgraft.plans.device import DeviceTraits
from torchgraft.plans.schema import overload_name
from torchgraft.plans.trace import trace

__all__ = ["CLASSES", "kernels_of"]

aten = torch.ops.aten


def _device(kind: str, simd_width: int, bfloat16: Way | None = None, fragments: bool = False) -> DeviceTraits:
    return DeviceTraits(
        index=0,
        name=f"any {kind}",
        kind=kind,
        compute_units=2 if kind == "cpu" else 128,
        local_memory=LOCAL_BYTES,
        max_work_group_size=4096 if kind == "cpu" else 1024,
        simd_width=simd_width,
        float64=True,
        has_compiler=True,
        long_atomics=True,
        bfloat16=bfloat16,
        fragments=fragments,
        outer_vectors=kind == "cpu",
        tuning=default_tuning(simd_width),
    )


#: Classes of devices, each by one that has all that a driver may tell of it: CPUs by the bytes of their registers and
#: the words that they have for bfloat16, GPUs without and with matrix units.
CLASSES = {
    "cpu32": _device("cpu", 8),
    "cpu64": _device("cpu", 16),
    "cpu64 pairs": _device("cpu", 16, bfloat16="vectors"),
    "cpu64 tiles": _device("cpu", 16, bfloat16="tiles"),
    "gpu": _device("gpu", 1),
    "gpu matrix": _device("gpu", 1, fragments=True),
}

# Under these names ops arrive that torch gives a device of its own.
_OWN = {
    aten.convolution.default: aten.convolution_overrideable.default,
    aten.convolution_backward.default: aten.convolution_backward_overrideable.default,
}


def kernels_of(
    op: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], traits: DeviceTraits
) -> list[Kernel]:
    """The kernels of a call's plan, in the order of their launches; empty of views, and of what is copied or filled.

    Args:
        op: an overload, functional or not.
        args, kwargs: of the call; of tensors the shape, strides and dtype are looked at.
        traits: of the device, for instance one of `CLASSES`.

    Raises:
        Unsupported: there is no plan of it.
    """
    if torch.Tag.inplace_view in op.tags:
        return []
    if op is aten.convolution_backward.default:  # the device's own has no sizes of the bias
        args = (*args[:3], *args[4:])
    op = _OWN.get(op, op)
    p = PlanBuilder(traits, traits.kind, overload_name(op), False, nested=plan_nested)
    args, kwargs = tree_map(_spec, (args, kwargs))
    for number, spec in enumerate(leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)):
        p.adopt(spec, "argument", number)
    trace(p, op, args, kwargs)
    p.settle()
    return p.kernels


def _spec(x: Any) -> Any:
    if isinstance(x, torch.Tensor):
        return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")
    return torch.device("meta") if isinstance(x, torch.device) else x
