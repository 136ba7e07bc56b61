"""Planners of ops that put tensors together, turn them round and take them apart."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch

from torchgraft.codegen.pointwise import Input, Loop, Result
from torchgraft.codegen.types import MOVES
from torchgraft.kernels import joining as kernels
from torchgraft.plans import PlanBuilder, other_out, planner, pointwise, recomposed
from torchgraft.plans.grid import numbered
from torchgraft.plans.refusals import dtype_name

aten = torch.ops.aten

# Rows that are joined row by row also where one thread would do too little.
_ROWS = 16
# Rows of so many elements are interleaved.
_INTERLEAVED = 8


def _check_dims(tensors: Sequence[torch.Tensor], out: torch.Tensor | None = None, **_: Any) -> None:
    for position, tensor in enumerate(tensors):
        if tensor.dim() == 0:
            raise RuntimeError(f"zero-dimensional tensor (at position {position}) cannot be concatenated")
    _check_cast(tensors, out)


def _check_cast(tensors: Sequence[torch.Tensor], out: torch.Tensor | None = None, **_: Any) -> None:
    """Of all ops these two have a TypeError for an `out=` that the tensors do not fit."""
    if out is not None and not all(torch.can_cast(t.dtype, out.dtype) for t in tensors):
        raise TypeError(f"torch.cat(): input types can't be cast to the desired output type {dtype_name(out.dtype)}")


@planner("cat", apart=("tensors",), refuses=_check_dims)
def _cat(p: PlanBuilder, out: torch.Tensor, tensors: Sequence[torch.Tensor], dim: int = 0) -> None:
    if out.numel() == 0:
        return
    dim %= out.dim()
    start = 0
    tensors = [t for t in tensors if t.numel() > 0]  # empty ones may have any shape, for old programs' sake
    if _in_rows(p, out, tensors, dim):
        return
    for tensor in tensors:
        p.copy(out.narrow(dim, start, tensor.size(dim)), tensor)
        start += tensor.size(dim)


def _in_rows(p: PlanBuilder, out: torch.Tensor, tensors: Sequence[torch.Tensor], dim: int) -> bool:
    """Joins contiguous tensors by few launches, each row of the result from a row of each; false where copies are as
    good."""
    rows = math.prod(out.shape[:dim])
    gpu = p.form == "gpu"
    if len(tensors) == 1 or (not gpu and 1 < rows < _ROWS and out.numel() > p.device.tuning.partition.single):
        return False
    if any(t.dtype != out.dtype or not t.is_contiguous() or t.is_conj() or t.is_neg() for t in [out, *tensors]):
        return False
    width = out.numel() // rows
    type_, start = MOVES[out.element_size()], 0
    if not gpu and _interleaved(p, out, tensors, rows):
        return True
    count = next((c for c in kernels.COUNTS if c >= len(tensors)), kernels.COUNTS[-1])
    for first in range(0, len(tensors), count):
        part = tensors[first : first + count]
        widths = [t.numel() // rows for t in part]
        inputs, own = numbered("in", [p.bits(t) for t in part], count, None), numbered("width", widths, count, 0)
        if gpu:
            index = "i32" if out.numel() < 1 << 30 else "i64"  # with room for what loops add
            kernel, grid = kernels.join_elements_kernel(type_, count, index), p.walk(rows * sum(widths))
            sizes = {"width": width, "part": sum(widths)}
        elif rows == 1:
            kernel, grid, sizes = kernels.join_lines_kernel(type_, count), p.walk(sum(widths)), {}
        else:
            kernel, grid, sizes = kernels.join_kernel(type_, count), p.walk(rows, width, multiple=1), {"width": width}
        p.launch(kernel, grid, out=p.bits(out), **inputs, **own, **sizes, start=start)
        start += sum(widths)
    return True


def _interleaved(p: PlanBuilder, out: torch.Tensor, tensors: Sequence[torch.Tensor], rows: int) -> bool:
    """Joins rows of few elements by one launch; false where there are other rows."""
    width, count = tensors[0].numel() // rows, len(tensors)
    if rows == 1 or width * count > _INTERLEAVED or any(t.numel() != width * rows for t in tensors):
        return False
    kernel = kernels.interleave_kernel(MOVES[out.element_size()], count, width)
    inputs = numbered("in", [p.bits(t) for t in tensors], count, None)
    p.launch(kernel, p.walk(rows, width * count), out=p.bits(out), **inputs)
    return True


@planner("stack", apart=("tensors",), refuses=_check_cast)
def _stack(p: PlanBuilder, out: torch.Tensor, tensors: Sequence[torch.Tensor], dim: int = 0) -> None:
    if out.numel() == 0:
        return
    dim %= out.dim()
    if not _in_rows(p, out, tensors, dim):
        for place, tensor in enumerate(tensors):
            p.copy(out.select(dim, place), tensor)


def _move_loop(x: torch.Tensor) -> Loop:
    moved = MOVES[x.element_size()]
    return Loop(f"move_{moved}", (Input("source", moved, moved),), (), (Result("out", moved, moved, "source"),))


@planner("flip")
def _flip(p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, dims: Sequence[int]) -> None:
    if out.numel() == 0:
        return
    x = p.contiguous(self) if self.is_conj() or self.is_neg() else self
    turned = {d % x.dim() for d in dims} if x.dim() else set()
    # The last element of each turned dimension is the first to be read.
    offset = sum((x.size(d) - 1) * x.stride(d) for d in turned)
    _move(p, out, x, offset, [-s if d in turned else s for d, s in enumerate(x.stride())])


def _move(p: PlanBuilder, out: torch.Tensor, x: torch.Tensor, offset: int, strides: Sequence[int]) -> None:
    """Fills `out` with elements of `x` from the one at `offset` on, with strides of any sign."""
    start = x.as_strided((1,), (1,), x.storage_offset() + offset)
    sizes, merged = pointwise.coalesce(list(out.shape), [list(out.stride()), list(strides)])
    pointwise.plan_strided_loop(p, _move_loop(x), [p.bits(out), p.bits(start)], [], sizes, merged)


def _check_roll(self: torch.Tensor, shifts: Sequence[int], dims: Sequence[int] = (), **_: Any) -> None:
    """torch's meta function looks only where there are elements."""
    if len(shifts) == 0:
        raise RuntimeError("`shifts` required")
    if len(shifts) != max(1, len(dims)):
        raise RuntimeError(f"shifts and dimensions must align. shifts: {len(shifts)}, dims:{len(dims)}")


@planner("roll", refuses=(_check_roll, other_out))
def _roll(
    p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, shifts: Sequence[int], dims: Sequence[int] = ()
) -> None:
    if out.numel() == 0:
        return
    if len(dims) == 0:  # of the elements in order
        target = out if out.is_contiguous() else p.empty_like(out)
        _roll(p, target.view(-1), p.contiguous(self).view(-1), shifts, [0])
        if target is not out:
            p.copy(out, target)
        return
    total = [0] * self.dim()
    for shift, d in zip(shifts, dims, strict=True):
        total[d] += shift
    if _roll_rows(p, out, self, total):
        return
    # Each rolled dimension consists of two pieces that change places.
    pieces = []
    for d, shift in enumerate(total):
        size = self.size(d)
        cut = shift % size
        pieces.append([(0, cut, size - cut), (size - cut, 0, cut)] if cut else [(0, 0, size)])
    for choice in itertools.product(*pieces):
        source, target = self, out
        for d, (start, place, length) in enumerate(choice):
            source, target = source.narrow(d, start, length), target.narrow(d, place, length)
        p.copy(target, source)


def _roll_rows(p: PlanBuilder, out: torch.Tensor, x: torch.Tensor, shifts: Sequence[int]) -> bool:
    """Rolls contiguous rows of few elements by one launch; false where there are other rows."""
    size = out.size(-1) if out.dim() else 1
    if not 1 < size <= _INTERLEAVED or p.form == "gpu" or any(shifts[:-1]):
        return False
    if any(not t.is_contiguous() or t.is_conj() or t.is_neg() for t in (out, x)):
        return False
    kernel = kernels.roll_kernel(MOVES[out.element_size()], size, shifts[-1] % size)
    p.launch(kernel, p.walk(out.numel() // size, size), out=p.bits(out), x=p.bits(x))
    return True


@recomposed("tensor_split.tensor_indices_or_sections")
def _tensor_split(
    self: torch.Tensor, tensor_indices_or_sections: torch.Tensor, dim: int = 0
) -> tuple[torch.Tensor, ...]:
    """The sizes of views are made on the host, wherever the tensor is that holds them; torch's own wants it there."""
    where = tensor_indices_or_sections
    if where.dtype != torch.int64:
        raise RuntimeError(
            f"tensor_split expected tensor_indices_or_sections to have dtype of long, but got {dtype_name(where.dtype)}"
        )
    if where.dim() > 1:
        raise RuntimeError(
            "tensor_split expected tensor_indices_or_sections to be a zero-dimensional or one-dimensional tensor, "
            f"but got a tensor with {where.dim()} dims"
        )
    return self.tensor_split(where.tolist(), dim)
