"""Planners of running sums and products."""

from __future__ import annotations

import math

import torch

from torchgraft.codegen import element_type
from torchgraft.kernels import scan as kernels
from torchgraft.plans import PlanBuilder, planner

# Elements below which one thread does it all.
_SMALL = 16384


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


def _scan(p: PlanBuilder, out: torch.Tensor, x: torch.Tensor, dim: int, product: bool) -> None:
    if x.is_complex() != out.is_complex():
        x = p.cast(x, out.dtype)
    in_type, out_type = element_type(x.dtype).name, element_type(out.dtype).name
    axis = dim % x.dim() if x.dim() else 0
    outer, inner = math.prod(x.shape[:axis]), math.prod(x.shape[axis + 1 :])
    size = x.shape[axis] if x.dim() else 1
    gpu, wide = p.form == "gpu", p.device.float64
    units = 32 * p.device.compute_units
    if inner == 1:
        if gpu:
            p.launch(kernels.row_kernel_gpu(in_type, out_type, product), (outer,), [x, out, outer, size, 1])
            return
        chunk = max(1, outer if outer * size <= _SMALL else _ceil(outer, units))
        kernel = kernels.row_kernel(in_type, out_type, product, wide)
        p.launch(kernel, (_ceil(outer, chunk),), [x, out, outer, size, chunk])
        return
    if gpu:
        kernel = kernels.column_kernel_gpu(in_type, out_type, product)
        p.launch(kernel, (_ceil(outer * inner, 64),), [x, out, outer, size, inner, 1])
        return
    even = inner if outer * size * inner <= _SMALL else _ceil(outer * inner, units)
    chunk = max(1, min(inner, kernels.WIDTH, max(16, _ceil(even, 16) * 16)))
    kernel = kernels.column_kernel(in_type, out_type, product, wide)
    p.launch(kernel, (outer * _ceil(inner, chunk),), [x, out, outer, size, inner, chunk])


@planner("cumsum", contiguous=True, inplace_safe=True)
def cumsum(
    p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, dim: int, *, dtype: torch.dtype | None = None
) -> None:
    _scan(p, out, self, dim, False)


@planner("cumprod", contiguous=True, inplace_safe=True)
def cumprod(
    p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, dim: int, *, dtype: torch.dtype | None = None
) -> None:
    _scan(p, out, self, dim, True)
