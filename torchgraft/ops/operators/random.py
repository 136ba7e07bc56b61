"""Random numbers by an operator of the device's library: a function of the generator's seed and offset.

What distributions need beside it, as checks of their numbers, is in torchgraft.ops.random.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torchgraft.plans import PlanBuilder, Scalar
from torchgraft.plans.operators import operator_form

aten = torch.ops.aten


def plan_random(
    p: PlanBuilder,
    kind: str,
    out: torch.Tensor,
    numbers: Sequence[Any] = (),
    parameters: Sequence[torch.Tensor] = (),
) -> bool:
    """Adds the operator "random", if the device has it.

    Args:
        p: the plan.
        kind: of those in docs/operators.md.
        out: what is filled; it has elements.
        numbers: of the distribution, which each run gives anew.
        parameters: tensors of out's shape.
    """
    if not p.device.has_programs:
        return False
    before = p.mark()
    reserved = p.philox(out.numel())
    if p.operator("random", [reserved.seed, reserved.offset, *numbers, *parameters], [out], kind=kind):
        return True
    p.back_to(before)
    return False


def plan_dropout(
    p: PlanBuilder, out: torch.Tensor, mask: torch.Tensor, x: torch.Tensor, chance: Scalar | float
) -> bool:
    """Plans native_dropout in training by "random" and products, if the device has the former."""
    share = float(chance)
    if mask.numel() == 0 or not plan_random(p, "bernoulli", mask, [1 - share]):
        return False
    _masked(p, out, x, mask, 0.0 if share == 1 else 1 / (1 - share))
    return True


@operator_form("native_dropout_backward")
def _dropout_backward(
    p: PlanBuilder, out: torch.Tensor, grad_output: torch.Tensor, mask: torch.Tensor, scale: Scalar | float
) -> bool:
    if out.numel() == 0 or mask.dtype != torch.bool or grad_output.dtype != out.dtype:
        return False
    _masked(p, out, grad_output, mask, scale)
    return True


def _masked(p: PlanBuilder, out: torch.Tensor, x: torch.Tensor, mask: torch.Tensor, scale: Scalar | float) -> None:
    p.call_out(aten.mul.Tensor, out, p.call(aten.mul.Tensor, x, mask), scale)
