"""What may be in a recording, which holds what a stream is given and nothing else (`torchgraft.compiler.replay`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import torch

from torchgraft import backend
from torchgraft.plans.registry import ENTRIES, no_plan

__all__ = ["device_of_most", "has_plan", "only_launches"]

# What torch's own ops without a kernel of the device's call, and nothing else.
_CALLED_BY = {
    f"aten::{name}": f"aten::{name}_overrideable" for name in ("convolution", "_convolution", "convolution_backward")
}

# Ops that change what tensors are, of which a stream is told nothing.
_HOSTS_OPS = ("resize_", "resize_as_", "set_", "record_stream")


def device_of_most(devices: Iterable[torch.device | None]) -> torch.device | None:
    """The one of ours that occurs most often: a recording is of one device."""
    counts = Counter(each for each in devices if each is not None and each.type == backend.name())
    return counts.most_common(1)[0][0] if counts else None


def only_launches(op: torch._ops.OpOverload) -> bool:
    """Whether an op does nothing else, or raises where it would: PyTorch's own, and those with planners or rows."""
    name = op._schema.name.partition("::")[2]
    return (op.namespace in ("aten", "prims") and name not in _HOSTS_OPS) or op.name() in ENTRIES


def has_plan(op: torch._ops.OpOverload) -> bool:
    """Whether the device has plans for an op, or functions of the core; of another it is known only when it is called
    what it does."""
    name = _CALLED_BY.get(op.name(), op.name())
    entry = ENTRIES.get(name)
    if entry is not None:
        return entry.plan is not no_plan
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(name, "PrivateUse1"))
