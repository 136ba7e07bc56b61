"""Planners of distances between rows: `torch.cdist`, `torch.nn.functional.pdist` and their gradients.

The Euclidean distances of many rows are a matrix product in torch itself (`_euclidean_dist`) and need no kernel here.
"""

from __future__ import annotations

import math

import torch

from torchgraft.codegen import element_type
from torchgraft.kernels import distance as kernels
from torchgraft.plans import PlanBuilder, Scalar, Unsupported, planner


def _type(x: torch.Tensor) -> str:
    element = element_type(x.dtype)
    if not element.is_float:
        raise Unsupported(f"distances of {x.dtype}")
    return element.name


def _transposed(p: PlanBuilder, x: torch.Tensor) -> torch.Tensor:
    return p.contiguous(x.transpose(-2, -1))


def _forward(
    p: PlanBuilder, out: torch.Tensor, x: torch.Tensor, y: torch.Tensor, norm: float, triangle: bool = False
) -> None:
    if out.numel() == 0:
        return
    n, m, width = x.size(-2), y.size(-2), x.size(-1)
    layout, grid = p.columns(math.prod(x.shape[:-1]), m, width)
    kernel = kernels.forward_kernel(layout, _type(out), kernels.norm_kind(norm), triangle)
    p.launch(kernel, grid, out=out, x=p.contiguous(x), y=_transposed(p, y), norm=norm, n=n, m=m, width=width)


def _backward(
    p: PlanBuilder,
    out: torch.Tensor,
    grad: torch.Tensor,
    x: torch.Tensor,
    y: torch.Tensor,
    norm: float,
    distance: torch.Tensor,
    triangle: bool = False,
) -> None:
    if out.numel() == 0:
        return
    kind = kernels.norm_kind(norm)
    if kind == "zero" or y.size(-2) == 0 or distance.numel() == 0:
        p.zero(out)
        return
    n, m, width = x.size(-2), y.size(-2), x.size(-1)
    layout, grid = p.columns(math.prod(x.shape[:-1]), width, m)
    kernel = kernels.backward_kernel(layout, _type(out), kind, triangle)
    given = {"grad": grad, "distance": distance, "x": x, "y": y}
    given = {name: p.contiguous(t) for name, t in given.items()}
    p.launch(kernel, grid, out=out, **given, norm=norm, n=n, m=m, width=width)


def _same_batches(x1: torch.Tensor, x2: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    batches = torch.broadcast_shapes(x1.shape[:-2], x2.shape[:-2])
    return x1.expand(*batches, *x1.shape[-2:]), x2.expand(*batches, *x2.shape[-2:])


# Results are contiguous, unless an out= is not.
@planner("_cdist_forward", contiguous=True)
def _cdist_forward(
    p: PlanBuilder,
    out: torch.Tensor,
    x1: torch.Tensor,
    x2: torch.Tensor,
    norm: Scalar | float,
    compute_mode: int | None,
) -> None:
    _forward(p, out, *_same_batches(x1, x2), float(norm))


@planner("_cdist_backward", contiguous=True)
def _cdist_backward(
    p: PlanBuilder,
    out: torch.Tensor,
    grad: torch.Tensor,
    x1: torch.Tensor,
    x2: torch.Tensor,
    norm: Scalar | float,
    cdist: torch.Tensor,
) -> None:
    _backward(p, out, grad, *_same_batches(x1, x2), float(norm), cdist)


@planner("_pdist_forward", contiguous=True)
def _pdist_forward(p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, norm: Scalar | float = 2.0) -> None:
    _forward(p, out, self, self, float(norm), triangle=True)


@planner("_pdist_backward", contiguous=True)
def _pdist_backward(
    p: PlanBuilder, out: torch.Tensor, grad: torch.Tensor, self: torch.Tensor, norm: Scalar | float, pdist: torch.Tensor
) -> None:
    _backward(p, out, grad, self, self, float(norm), pdist, triangle=True)
