"""Planners of softmax and log_softmax, forward and backward."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch._prims_common import canonicalize_dim

from torchgraft.codegen import Kernel, ceil_div, element_type
from torchgraft.kernels import softmax as kernels
from torchgraft.plans import PlanBuilder, Unsupported, planner

# Rows up to this length are treated as columns of their neighbours.
_SHORT_ROW = 64
# Elements below which one thread does it all; an element costs about as much as four additions.
_SMALL = 8192


def _plan(
    p: PlanBuilder, tensors: list[torch.Tensor], dim: int, forms: dict[str, Any], variant: tuple[Any, ...]
) -> None:
    """Launches the form that suits the layout. Tensors are contiguous; the last is the result."""
    shape = tensors[0].shape
    if not tensors[0].is_floating_point():
        raise Unsupported(f"softmax of {tensors[0].dtype}")
    axis = int(canonicalize_dim(len(shape), dim))  # torch's meta kernel lets a wrong one through
    outer, inner = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    size = shape[axis] if shape else 1
    gpu = p.form == "gpu"
    kernel: Kernel
    if inner == 1 and not (size <= _SHORT_ROW and outer >= 16):
        if gpu:
            p.launch(forms["row_gpu"](*variant), (outer,), [*tensors, outer, size, 1])
            return
        chunk = outer if outer * size <= _SMALL else ceil_div(outer, 32 * p.device.compute_units)
        p.launch(forms["row"](*variant), (ceil_div(outer, max(1, chunk)),), [*tensors, outer, size, chunk])
        return
    # Neighbours of short rows are `size` apart.
    strides = [1, 0, size, 1, outer, size] if inner == 1 else [outer, size * inner, size, inner, inner, 1]
    if gpu:
        p.launch(forms["column_gpu"](*variant), (ceil_div(strides[0] * strides[4], 64),), [*tensors, *strides, 1])
        return
    total = strides[0] * strides[4]
    even = total if total * size <= _SMALL else ceil_div(total, 32 * p.device.compute_units)
    chunk = min(strides[4], kernels.WIDTH, max(16, ceil_div(even, 16) * 16))
    kernel = forms["column"](*variant, strides[5] == 1)
    p.launch(kernel, (strides[0] * ceil_div(strides[4], max(1, chunk)),), [*tensors, *strides, chunk])


_FORWARD = {
    "row": kernels.forward_row,
    "column": kernels.forward_column,
    "row_gpu": kernels.forward_row_gpu,
    "column_gpu": kernels.forward_column_gpu,
}
_BACKWARD = {
    "row": kernels.backward_row,
    "column": kernels.backward_column,
    "row_gpu": kernels.backward_row_gpu,
    "column_gpu": kernels.backward_column_gpu,
}


def _forward(p: PlanBuilder, out: torch.Tensor, x: torch.Tensor, dim: int, log: bool) -> None:
    variant = (element_type(x.dtype).name, element_type(out.dtype).name, log)
    _plan(p, [x, out], dim, _FORWARD, variant)


def _backward(p: PlanBuilder, out: torch.Tensor, grad: torch.Tensor, result: torch.Tensor, dim: int, log: bool) -> None:
    variant = (element_type(result.dtype).name, element_type(out.dtype).name, log)
    _plan(p, [p.cast(grad, result.dtype), result, out], dim, _BACKWARD, variant)


@planner("_softmax", contiguous=True, inplace_safe=True)
def softmax(p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, dim: int, half_to_float: bool) -> None:
    _forward(p, out, self, dim, False)


@planner("_log_softmax", contiguous=True, inplace_safe=True)
def log_softmax(p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, dim: int, half_to_float: bool) -> None:
    _forward(p, out, self, dim, True)


@planner("_softmax_backward_data", contiguous=True, inplace_safe=True)
def softmax_backward(
    p: PlanBuilder,
    out: torch.Tensor,
    grad_output: torch.Tensor,
    output: torch.Tensor,
    dim: int,
    input_dtype: torch.dtype,
) -> None:
    _backward(p, out, grad_output, output, dim, False)


@planner("_log_softmax_backward_data", contiguous=True, inplace_safe=True)
def log_softmax_backward(
    p: PlanBuilder,
    out: torch.Tensor,
    grad_output: torch.Tensor,
    output: torch.Tensor,
    dim: int,
    input_dtype: torch.dtype,
) -> None:
    _backward(p, out, grad_output, output, dim, True)
