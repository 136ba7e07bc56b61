"""Steps of plans that look at values, and report what an op does not take."""

from __future__ import annotations

import torch

from torchgraft.codegen import element_type
from torchgraft.kernels.checks import check_kernel
from torchgraft.plans import PlanBuilder


def plan_check(p: PlanBuilder, values: torch.Tensor, condition: str, message: str) -> None:
    """Adds a step that raises RuntimeError if the condition is false of some element ``x`` of real numbers."""
    if values.numel() == 0:
        return
    type_, report = element_type(values.dtype), p.error(message, RuntimeError)
    p.launch(
        check_kernel(type_.name, type_.compute, condition, p.form),
        p.walk(values.numel()),
        values=p.contiguous(values),
        errors=report.words,
        code=report.code,
    )
