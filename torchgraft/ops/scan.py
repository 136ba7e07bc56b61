"""Planners of running sums, products and extremes."""

from __future__ import annotations

import math

import torch
from torch._prims_common import canonicalize_dim

from torchgraft.codegen import element_type
from torchgraft.kernels import scan as kernels
from torchgraft.ops.entries import enter
from torchgraft.ops.reductions import converted
from torchgraft.plans import OtherOut, PlanBuilder, Unsupported, planner
from torchgraft.plans.refusals import refuse_dtype


def _levels(x: torch.Tensor, dim: int) -> tuple[int, int, int]:
    """Sizes before, of and after a dimension."""
    if x.dim() == 0:
        return 1, 1, 1
    axis = dim % x.dim()
    return math.prod(x.shape[:axis]), x.shape[axis], math.prod(x.shape[axis + 1 :])


def _scan(p: PlanBuilder, out: torch.Tensor, x: torch.Tensor, dim: int, how: str) -> None:
    if out.dtype == torch.bool and x.dim() > 0 and x.numel() > 0:
        refuse_dtype(p.op, out.dtype)
    x = p.cast(x, converted(x.dtype, out.dtype))
    layout, grid = p.rows(*_levels(x, dim))
    types = element_type(x.dtype).name, element_type(out.dtype).name
    p.launch(kernels.running_kernel(layout, *types, how, p.device.float64), grid, x=x, out=out)


def _declare(name: str, how: str) -> None:
    @planner(name, contiguous=True, inplace_safe=True, refuses=OtherOut(but_untyped=True))
    def plan(
        p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, dim: int, *, dtype: torch.dtype | None = None
    ) -> None:
        _scan(p, out, self, dim, how)


_declare("cumsum", "sum")
_declare("cumprod", "prod")


# torch has no meta kernels for the ops below.
def _logcumsumexp_meta(self: torch.Tensor, dim: int) -> torch.Tensor:
    canonicalize_dim(self.dim(), dim)  # raises IndexError
    if not (self.is_floating_point() or self.is_complex()):
        refuse_dtype("logcumsumexp", self.dtype)
    return torch.empty(self.shape, dtype=self.dtype, device="meta")


@planner("_logcumsumexp", contiguous=True, inplace_safe=True, meta=_logcumsumexp_meta)
def logcumsumexp(p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, dim: int) -> None:
    _scan(p, out, self, dim, "logsumexp")


def _declare_extreme(name: str, greater: bool) -> None:
    def plan(
        p: PlanBuilder, out: tuple[()], self: torch.Tensor, values: torch.Tensor, indices: torch.Tensor, dim: int
    ) -> None:
        if self.is_complex():
            raise Unsupported("order of complex numbers")
        layout, grid = p.rows(*_levels(self, dim))
        kernel = kernels.extreme_kernel(layout, element_type(self.dtype).name, greater)
        # The caller made both results for this call, so neither is one of the inputs.
        targets = [t if t.is_contiguous() else p.empty_like(t) for t in (values, indices)]
        p.launch(kernel, grid, x=p.contiguous(self), values=targets[0], indices=targets[1])
        for result, target in zip((values, indices), targets, strict=True):
            if result is not target:
                p.copy(result, target)

    enter(name, plan, meta=lambda **_: None)


_declare_extreme("_cummax_helper", True)
_declare_extreme("_cummin_helper", False)
