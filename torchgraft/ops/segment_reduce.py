"""Planners of `torch.segment_reduce` and its gradient."""

from __future__ import annotations

import math
from typing import Any

import torch

from torchgraft.codegen import ceil_div, element_type
from torchgraft.codegen.teams import Layout
from torchgraft.kernels import segment_reduce as kernels
from torchgraft.plans import PlanBuilder, Scalar, Unsupported, planner
from torchgraft.plans.grid import Grid

_REDUCTIONS = {"sum": "sum", "mean": "mean", "prod": "prod", "max": "max", "min": "min", "amax": "max", "amin": "min"}


def _how(reduce: str) -> str:
    if reduce not in _REDUCTIONS:
        raise RuntimeError(f"reduce argument must be either sum, prod, mean, amax or amin, got {reduce}")
    return _REDUCTIONS[reduce]


def _types(data: torch.Tensor, index: torch.Tensor) -> tuple[str, str]:
    if not data.is_floating_point():
        raise Unsupported(f"segments of {data.dtype}")
    if index.dtype not in (torch.int64, torch.int32):
        raise Unsupported(f"segments given as {index.dtype}")
    return element_type(data.dtype).name, element_type(index.dtype).name


def _bounds(
    p: PlanBuilder, data: torch.Tensor, lengths: torch.Tensor | None, offsets: torch.Tensor | None, checked: bool
) -> torch.Tensor:
    """Where the segments of each outer row begin, and where the last one ends."""
    if lengths is None:
        assert offsets is not None  # the meta function has seen to it
        return offsets
    rows, segments = data.size(lengths.dim() - 1), lengths.size(-1)
    bounds = p.empty((*lengths.shape[:-1], segments + 1), lengths.dtype)
    negative = p.error("segment_reduce(): lengths contains the negative value {}", RuntimeError)
    total = p.error(
        f"segment_reduce(): Expected all rows of lengths along axis to sum to data.size(lengths.dim()-1) = {rows} "
        "when !unsafe, but one sums to {}",
        RuntimeError,
    )
    p.launch(
        kernels.bounds_kernel(element_type(lengths.dtype).name, checked, p.form),
        p.walk(math.prod(lengths.shape[:-1]), max(1, segments), multiple=1),
        bounds=bounds,
        lengths=lengths,
        errors=negative.words,
        negative_code=negative.code,
        sum_code=total.code,
        rows=rows,
        segments=segments,
    )
    return bounds


def _segments(p: PlanBuilder, data: torch.Tensor, bounds: torch.Tensor) -> tuple[Layout, Grid, dict[str, int]]:
    """The teams of segments, and what they are told of the sizes."""
    axis = bounds.dim() - 1
    rows, segments, inner = data.size(axis), bounds.size(-1) - 1, math.prod(data.shape[axis + 1 :])
    total = math.prod(bounds.shape[:-1]) * segments
    layout, grid = p.columns(total, inner, ceil_div(data.numel(), max(1, total * inner)))
    return layout, grid, {"rows": rows, "segments": segments}


def _check(data: torch.Tensor, index: torch.Tensor | None, axis: int) -> None:
    if index is None:
        raise RuntimeError("segment_reduce(): Either lengths or offsets must be defined.")
    if not -data.dim() <= axis < data.dim():
        raise IndexError(f"Dimension out of range (expected one of {data.dim()} dimensions, but got {axis})")
    if index.dim() - 1 != axis:
        raise RuntimeError(f"segment_reduce(): Expected axis to be the last dimension of lengths but got {axis}.")
    if data.dim() < index.dim() or data.shape[:axis] != index.shape[:-1]:
        raise RuntimeError(
            f"segment_reduce(): lengths or offsets of shape {list(index.shape)} do not go with data of shape "
            f"{list(data.shape)}"
        )


def _meta(
    data: torch.Tensor,
    reduce: str,
    lengths: torch.Tensor | None = None,
    indices: torch.Tensor | None = None,
    offsets: torch.Tensor | None = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: float | None = None,
) -> torch.Tensor:
    if indices is not None:
        raise RuntimeError("segment_reduce(): indices based reduction is not supported yet.")
    _how(reduce)
    index = lengths if lengths is not None else offsets
    _check(data, index, axis)
    assert index is not None
    segments = index.size(-1) - (lengths is None)
    return torch.empty((*data.shape[:axis], segments, *data.shape[axis + 1 :]), dtype=data.dtype, device="meta")


@planner("segment_reduce", contiguous=True, meta=_meta)
def _segment_reduce(
    p: PlanBuilder,
    out: torch.Tensor,
    data: torch.Tensor,
    reduce: str,
    *,
    lengths: torch.Tensor | None = None,
    indices: torch.Tensor | None = None,
    offsets: torch.Tensor | None = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: Scalar | float | None = None,
) -> None:
    bounds = _bounds(p, data, lengths, offsets, not unsafe)
    type_, index = _types(data, bounds)
    report = p.error("segment_reduce(): offsets do not rise at segment {}", RuntimeError)
    layout, grid, sizes = _segments(p, data, bounds)
    kernel = kernels.forward_kernel(layout, type_, index, _how(reduce), initial is not None)
    start = 0 if initial is None else initial
    errors = {"errors": report.words, "code": report.code}
    p.launch(kernel, grid, out=out, data=data, bounds=bounds, **errors, initial=start, **sizes)


def _backward_meta(grad: torch.Tensor, data: torch.Tensor, **_: Any) -> torch.Tensor:
    return torch.empty(data.shape, dtype=grad.dtype, device="meta")


@planner("_segment_reduce_backward", contiguous=True, meta=_backward_meta)
def _segment_reduce_backward(
    p: PlanBuilder,
    out: torch.Tensor,
    grad: torch.Tensor,
    output: torch.Tensor,
    data: torch.Tensor,
    reduce: str,
    *,
    lengths: torch.Tensor | None = None,
    offsets: torch.Tensor | None = None,
    axis: int = 0,
    initial: Scalar | float | None = None,
) -> None:
    p.zero(out)
    bounds = _bounds(p, data, lengths, offsets, False)
    type_, index = _types(data, bounds)
    layout, grid, sizes = _segments(p, data, bounds)
    kernel = kernels.backward_kernel(layout, type_, index, _how(reduce))
    start = 1 if initial is None else initial
    p.launch(kernel, grid, out=out, grad=grad, result=output, data=data, bounds=bounds, initial=start, **sizes)
