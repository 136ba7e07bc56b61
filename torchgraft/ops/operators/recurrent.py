"""Layers of recurrent networks as operators of the device's library: torchgraft.ops.recurrent plans them, and asks
before it makes an op of a layer.

What a layer keeps for its gradient is the library's own, so that both are its, or neither. Whether it has them must
not depend on what only one of them is told, so that what may be missing is given as zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch

from torchgraft.kernels.recurrent import CELLS
from torchgraft.plans import PlanBuilder
from torchgraft.plans.call import library_serves

aten = torch.ops.aten

Optional = torch.Tensor | None
Specs = tuple[torch.Tensor, ...]


def plan_layer(
    p: PlanBuilder,
    out: Specs,
    gates: torch.Tensor,
    hx: torch.Tensor,
    cx: Optional,
    weight: torch.Tensor,
    bias: Optional,
    cell: str,
    reverse: bool,
    keep: bool,
) -> bool:
    """Plans torchgraft::recurrent, if the device has it, and its gradient where that is kept for."""
    if not has_layer(p.device.index, cell, gates.dtype, _sizes(gates, hx), reverse, keep):
        return False
    if not CELLS[cell].hidden_gradients and bias is not None:
        gates, bias = p.call(aten.add.Tensor, gates, bias), None
    elif CELLS[cell].hidden_gradients and bias is None:
        bias = _zeros(p, weight[:, 0])
    return _operator(p, "recurrent", out, [gates, hx, cx, weight, bias], cell, reverse)


def plan_layer_gradient(
    p: PlanBuilder,
    out: Specs,
    grad: torch.Tensor,
    grad_cy: Optional,
    hx: torch.Tensor,
    cx: Optional,
    weight: torch.Tensor,
    output: torch.Tensor,
    kept: torch.Tensor,
    cell: str,
    reverse: bool,
) -> bool:
    """Plans torchgraft::recurrent_backward, if the device has it and has kept for it."""
    if not has_layer(p.device.index, cell, output.dtype, _sizes(output, hx), reverse, keep=True):
        return False
    if cx is not None and grad_cy is None:
        grad_cy = _zeros(p, cx)
    given = [grad, grad_cy, hx, cx, weight, output, kept]
    return _operator(p, "recurrent_gradient", out, given, cell, reverse)


@lru_cache(maxsize=1024)
def has_layer(
    device: int, cell: str, dtype: torch.dtype, sizes: tuple[int, int, int], reverse: bool, keep: bool
) -> bool:
    """Whether the device's library has a layer, and its gradient if that may be wanted.

    Args:
        device: its index.
        cell: of `CELLS`.
        dtype: of all tensors.
        sizes: steps, rows of the batch, units.
        reverse: whether the last step is the first.
        keep: whether there may be a gradient.
    """
    steps, batch, size = sizes
    about = CELLS[cell]

    def plan(p: PlanBuilder) -> bool:
        def new(*shape: int) -> torch.Tensor:
            return p.empty(shape, dtype)

        def state(is_there: bool = True) -> torch.Tensor:
            return new(batch, size) if is_there else new(0)

        hx, cx, weight = state(), state() if about.has_c else None, new(about.gates * size, size)
        bias = new(about.gates * size) if about.hidden_gradients else None
        output, kept = new(steps, batch, size), new(steps, batch, len(about.keep) * size) if keep else new(0)
        gates, hidden = new(steps, batch, about.gates * size), new(steps, batch, about.gates * size)
        results, given = (output, state(about.has_c), kept), [gates, hx, cx, weight, bias]
        if not _operator(p, "recurrent", results, given, cell, reverse):
            return False
        outs = (gates, hidden if about.hidden_gradients else new(0), state(), state(about.has_c))
        grad, grad_cy = new(steps, batch, size), state() if about.has_c else None
        given = [grad, grad_cy, hx, cx, weight, output, kept]
        return not keep or _operator(p, "recurrent_gradient", outs, given, cell, reverse)

    return batch > 0 and steps > 0 and library_serves(device, "torchgraft::recurrent", plan)


def _sizes(of_steps: torch.Tensor, hx: torch.Tensor) -> tuple[int, int, int]:
    return of_steps.size(0), hx.size(0), hx.size(1)


def _zeros(p: PlanBuilder, like: torch.Tensor) -> torch.Tensor:
    made = p.empty_like(like)
    p.zero(made)
    return made


def _wanted(outs: Specs) -> list[Optional]:
    """What a cell has not, or nobody asks for, has no elements."""
    return [out if out.numel() else None for out in outs]


def _operator(p: PlanBuilder, name: str, outs: Specs, given: Sequence[Optional], cell: str, reverse: bool) -> bool:
    return p.operator(name, given, _wanted(outs), kind=cell, reverse=reverse)
