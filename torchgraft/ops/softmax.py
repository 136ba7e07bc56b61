"""Planners of softmax and log_softmax, forward and backward."""

from __future__ import annotations

import math

import torch
from torch._prims_common import canonicalize_dim

from torchgraft.codegen import element_type
from torchgraft.codegen.teams import Layout
from torchgraft.kernels import softmax as kernels
from torchgraft.plans import PlanBuilder, Unsupported, planner
from torchgraft.plans.grid import Grid

# An element costs about as much as two additions.
COST = 2


def _axis(x: torch.Tensor, dim: int) -> tuple[int, int, int]:
    """How many elements lie before, along and behind a dimension."""
    axis = int(canonicalize_dim(x.dim(), dim))  # torch's meta kernel lets a wrong one through
    size = x.shape[axis] if x.dim() else 1
    return math.prod(x.shape[:axis]), size, math.prod(x.shape[axis + 1 :])


def _rows(p: PlanBuilder, x: torch.Tensor, dim: int) -> tuple[Layout, Grid]:
    if not x.is_floating_point():
        raise Unsupported(f"softmax of {x.dtype}")
    return p.rows(*_axis(x, dim), COST)


def _forward(p: PlanBuilder, out: torch.Tensor, x: torch.Tensor, dim: int, log: bool) -> None:
    layout, grid = _rows(p, x, dim)
    in_type, out_type = element_type(x.dtype), element_type(out.dtype)
    # Other compilers make vectors of what they are told are some, and of no such loop.
    long = p.device.outer_vectors and layout.form == "cpu" and not (layout.across or layout.unrolled)
    held = long and not log and out_type.name != in_type.accumulate and _axis(x, dim)[1] <= kernels.HELD
    kernel = kernels.forward_kernel(layout, in_type.name, out_type.name, log, held)
    p.launch(kernel, grid, x=x, out=out)


def _backward(p: PlanBuilder, out: torch.Tensor, grad: torch.Tensor, result: torch.Tensor, dim: int, log: bool) -> None:
    layout, grid = _rows(p, result, dim)
    kernel = kernels.backward_kernel(layout, element_type(result.dtype).name, element_type(out.dtype).name, log)
    p.launch(kernel, grid, grad=p.cast(grad, result.dtype), result=result, out=out)


def _declare(name: str, log: bool) -> None:
    @planner(name, contiguous=True, inplace_safe=True)
    def forward(p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, dim: int, half_to_float: bool) -> None:
        _forward(p, out, self, dim, log)

    @planner(f"{name}_backward_data", contiguous=True, inplace_safe=True)
    def backward(
        p: PlanBuilder, out: torch.Tensor, grad: torch.Tensor, result: torch.Tensor, dim: int, input_dtype: torch.dtype
    ) -> None:
        _backward(p, out, grad, result, dim, log)


_declare("_softmax", False)
_declare("_log_softmax", True)
