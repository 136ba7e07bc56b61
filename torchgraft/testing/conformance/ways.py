"""The way in which a case is computed on the device, from the ops that it dispatches."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

__all__ = ["CPU", "KERNELS", "MEANS", "OPERATORS", "WAYS", "dispatched", "farthest", "way"]

#: From the device's own kernels to none at all. "native": a planner, a table's row or a kernel that was registered for
#: the device; "decomposed": a decomposition, traced into one plan; "composite": several such ops, called one after the
#: other by torch's composite kernel or by an eager function; "fallback": at least one op on the CPU; "unsupported":
#: refused.
WAYS = ("native", "decomposed", "composite", "fallback", "unsupported")

#: What computes a sample: operators of the device's library, without the CPU; the CPU, with or without others; and
#: otherwise kernels, of which views and results without elements need none.
MEANS = (KERNELS, OPERATORS, CPU) = ("kernels", "operators", "cpu")

# They prepare or carry what others compute; alone they are what an op computes.
CARRYING = frozenset(
    """_local_scalar_dense _to_copy alias clone copy_ detach empty empty_like empty_strided fill_ full full_like
    lift_fresh new_empty new_empty_strided new_full new_ones new_zeros ones ones_like scalar_tensor zero_ zeros
    zeros_like""".split()
)


class _Watch(TorchDispatchMode):
    """Notes the overloads that are called with or give tensors of the device."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.type = device.type
        self.seen: dict[torch._ops.OpOverload, None] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if any(isinstance(x, torch.Tensor) and x.device.type == self.type for x in tree_leaves((args, kwargs, result))):
            self.seen[func] = None
        return result


def dispatched(call: Callable[[], Any], device: torch.device) -> list[torch._ops.OpOverload]:
    """The overloads that a call dispatches on the device, below autograd and torch's composites of such ops."""
    with _Watch(device) as watch:
        call()
    return list(watch.seen)


def way(overloads: Iterable[torch._ops.OpOverload], device: torch.device) -> str:
    """The way of one call that dispatched these, as far as it can be known without the fallback's counters."""
    seen = list(overloads)
    computing = [op for op in seen if not (op._schema.name.partition("::")[2] in CARRYING or _is_view(op))]
    ways = {_way_of(op, device) for op in computing or seen}
    if "fallback" in ways:
        return "fallback"
    if len(computing or seen) > 1:
        return "composite"
    return ways.pop() if ways else "composite"  # of nothing: a view or an argument, as torch makes it


def farthest(ways: Iterable[str]) -> str:
    """Of several calls the one that is farthest from a kernel of the device's own; "" of none."""
    return max(ways, key=WAYS.index, default="")


def _is_view(op: torch._ops.OpOverload) -> bool:
    aliased = any(r.alias_info is not None and not r.alias_info.is_write for r in op._schema.returns)
    return aliased and not any(a.alias_info is not None and a.alias_info.is_write for a in op._schema.arguments)


def _way_of(op: torch._ops.OpOverload, device: torch.device) -> str:
    from torchgraft.plans import ENTRIES
    from torchgraft.registration.register import registered_name

    name = op.name()
    if registered_name() == device.type and name in ENTRIES:
        return ENTRIES[name].options.way
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    if has_kernel(name, "PrivateUse1"):
        return "native"
    composed = ("CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional", "CompositeImplicitAutograd")
    return "composite" if any(has_kernel(name, key) for key in composed) else "fallback"
