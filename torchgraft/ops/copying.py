"""Copies on one device between any strides and dtypes."""

from __future__ import annotations

import torch

from torchgraft.plans import PlanBuilder, planner


@planner("_copy_from", inplace_safe=True, meta=lambda self, dst, non_blocking=False: dst)
def copy_from(
    p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, dst: torch.Tensor, non_blocking: bool = False
) -> None:
    """Reached from the copy kernel of the core, which does plain copies itself."""
    p.copy(dst, self)
