"""Planners of ops that read or write where an index tensor says: elements, and rows along one dimension."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from torchgraft.codegen import ceil_div, element_type
from torchgraft.codegen.walk import FEW
from torchgraft.kernels import indexing as kernels
from torchgraft.ops.moves import (
    BOUNDS,
    RANGE_OF_SELF,
    SCALED_SUM,
    SUM,
    Collected,
    Index,
    bounds_of,
    check_places,
    collecting,
    combine_text,
    drop,
    flat_index,
    in_order,
    plan_collect,
    plan_move,
    resolved,
    rows_into,
    some_dims,
    start_from,
    without,
)
from torchgraft.plans import PlanBuilder, Scalar, Unsupported, composite, other_out, planner
from torchgraft.plans.refusals import check_filling, dtype_name, refuse_dtype
from torchgraft.plans.steps import ErrorReport

aten = torch.ops.aten

# ---- one index for one dimension ----

# So torch's CPU refuses an index where nothing is read.
_RANGE_OF_NOTHING = "index {} is out of range, and nothing would be read"


def _check_selected(self: torch.Tensor, index: torch.Tensor, **_: Any) -> None:
    if index.dim() > 1:
        raise IndexError("index_select(): Index is supposed to be a vector")
    if self.dim() == 0 and index.numel() != 1:
        raise RuntimeError(f"index_select(): Index to scalar can have only 1 value, got {index.numel()} value(s)")


@planner("index_select", apart=("self", "index"), refuses=(_check_selected, other_out))
def _index_select(p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, dim: int, index: torch.Tensor) -> None:
    _select(p, some_dims(out), some_dims(self), dim, index.reshape(-1), RANGE_OF_SELF)


def _select(p: PlanBuilder, out: torch.Tensor, x: torch.Tensor, dim: int, index: torch.Tensor, message: str) -> None:
    x = resolved(p, x)
    dim %= x.dim()
    along = [index.stride(0) if d == dim else 0 for d in range(x.dim())]
    places = Index(flat_index(index), along, x.size(dim), x.stride(dim), message)
    if x.numel() == 0:
        check_places(p, replace(places, message=_RANGE_OF_NOTHING, raises=RuntimeError) if x.dim() > 1 else places)
        return
    plan_move(p, out, x, out.shape, out.stride(), without(x.stride(), dim), [places], reads=True)


@planner("embedding")
def _embedding(
    p: PlanBuilder,
    out: torch.Tensor,
    weight: torch.Tensor,
    indices: torch.Tensor,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> None:
    index = Index(flat_index(indices), [*indices.stride(), 0], weight.size(0), weight.stride(0), RANGE_OF_SELF)
    if weight.numel() == 0:
        check_places(p, replace(index, message=_RANGE_OF_NOTHING, raises=RuntimeError))
        return
    source_strides = [*(0 for _ in indices.shape), weight.stride(1)]
    plan_move(p, out, resolved(p, weight), out.shape, out.stride(), source_strides, [index], reads=True)


@planner("embedding_dense_backward", contiguous=True)
def _embedding_backward(
    p: PlanBuilder,
    out: torch.Tensor,
    grad_output: torch.Tensor,
    indices: torch.Tensor,
    num_weights: int,
    padding_idx: int,
    scale_grad_by_freq: bool,
) -> None:
    n = indices.numel()
    if out.numel() == 0:
        return
    grad, wide = element_type(grad_output.dtype), element_type(out.dtype).accumulate
    if not grad.is_float:
        raise Unsupported(f"gradients of {grad_output.dtype}")
    sums = _Sums(p, grad_output, scale_grad_by_freq, p.error(RANGE_OF_SELF))
    # Sums of many halves are kept in float32.
    if element_type(out.dtype).name == wide:
        sums.plan(out, indices, padding_idx)
    elif 2 * n > num_weights or n > p.device.tuning.places.few_indices:
        total = p.empty(out.shape, torch.float32)
        sums.plan(total, indices, padding_idx)
        p.copy(out, total)
    else:  # of the rows that occur alone: a table may be large
        _plan_rows_that_occur(p, out, sums, indices, padding_idx)


@dataclass(frozen=True)
class _Sums:
    """Sums of rows of gradients."""

    p: PlanBuilder
    grad_output: torch.Tensor
    by_frequency: bool
    report: ErrorReport

    def plan(self, total: torch.Tensor, indices: torch.Tensor, padding: int) -> None:
        """Adds the launches for the sums by index, those of `padding` left out; `total` is set to zero first."""
        p, (rows, width), n = self.p, total.shape, indices.numel()
        index = element_type(flat_index(indices).dtype).name
        counts = None
        if self.by_frequency:
            counts = p.empty((rows,), torch.int32)
            p.fill(counts, 0)
            p.launch(kernels.count_kernel(index), (1,), counts=counts, index=indices, n=n, limit=rows)
        sizes = p.device.tuning.places
        parted = total.numel() <= sizes.table and width >= 2 * sizes.row_part
        grid = p.walk(width, n + rows, sizes.row_part if parted else width, FEW)
        parts = sizes.groups if parted else 2 * p.device.compute_units
        if p.form == "cpu" and n * width + total.numel() <= p.device.tuning.partition.single:
            parts = 1
        share = ceil_div(rows, min(rows, ceil_div(parts, grid.groups[0])))
        grad, wide = element_type(self.grad_output.dtype).name, element_type(total.dtype).name
        p.launch(
            kernels.embedding_backward_kernel(grad, index, wide, self.by_frequency, p.form),
            grid.by(ceil_div(rows, share)),
            out=total,
            grad=self.grad_output,
            index=indices,
            **({} if counts is None else {"counts": counts}),
            errors=self.report.words,
            code=self.report.code,
            count=n,
            limit=rows,
            padding=padding,
            share=share,
        )


def _plan_rows_that_occur(
    p: PlanBuilder, out: torch.Tensor, sums: _Sums, indices: torch.Tensor, padding_idx: int
) -> None:
    """Sums at the places where each index occurs first, which then become rows of the table."""
    n, index = indices.numel(), element_type(flat_index(indices).dtype).name
    p.fill(out, 0)
    if n == 0:
        return
    places, total = p.empty((n,), torch.int32), p.empty((n, out.size(1)), torch.float32)
    p.launch(
        kernels.first_places_kernel(index, p.form),
        p.walk(n, cost=ceil_div(n, 2), multiple=1),
        places=places,
        index=indices,
        errors=sums.report.words,
        code=sums.report.code,
        limit=out.size(0),
        padding=padding_idx,
    )
    sums.plan(total, places, -1)
    p.launch(
        kernels.put_rows_kernel(index, element_type(out.dtype).name, p.form),
        p.walk(total.shape),
        out=out,
        total=total,
        places=places,
        index=indices,
    )


@planner("gather", apart=("self", "index"))
def _gather(
    p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, dim: int, index: torch.Tensor, *, sparse_grad: bool = False
) -> None:
    if index.numel() == 0:  # of any dtype
        return
    if index.dtype not in (torch.int64, torch.int32):
        raise RuntimeError(f"gather(): Expected dtype int32/int64 for index, but got {index.dtype}")
    out, x, index = some_dims(out), some_dims(resolved(p, self)), some_dims(index)
    dim %= x.dim()
    message = bounds_of(dim, x.size(dim))
    indices = [Index(flat_index(index), index.stride(), x.size(dim), x.stride(dim), message, raises=RuntimeError)]
    plan_move(p, out, x, index.shape, out.stride(), without(x.stride(), dim), indices, reads=True)


@planner("take", apart=("self", "index"))
def _take(p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, index: torch.Tensor) -> None:
    x = p.contiguous(self)
    message = f"out of range: tried to access index {{}} on a tensor of {x.numel()} elements."
    indices = [Index(flat_index(index), index.stride(), x.numel(), 1, message)]
    plan_move(p, out, x, index.shape, out.stride(), [0] * index.dim(), indices, reads=True, wraps=True)


def _scatter(
    p: PlanBuilder,
    out: torch.Tensor,
    dim: int,
    index: torch.Tensor,
    source: torch.Tensor | Scalar | float,
    combine: str | None = None,
) -> None:
    """Writes (combine None) or collects elements along one dimension."""
    if index.numel() == 0:
        return
    out, index = some_dims(out), some_dims(flat_index(index))
    dim %= out.dim()
    if isinstance(source, torch.Tensor):
        source = some_dims(resolved(p, source))
    strides = source.stride() if isinstance(source, torch.Tensor) else [0] * out.dim()
    limit, step = out.size(dim), out.stride(dim)
    message = bounds_of(dim, limit)
    if combine is None and not in_order():
        indices = [Index(index, index.stride(), limit, step, message, raises=RuntimeError)]
        plan_move(p, out, source, index.shape, without(out.stride(), dim), strides, indices, reads=False)
        return
    indices = [Index(index, drop(index.stride(), dim), limit, step, message, index.stride(dim), RuntimeError)]
    sizes = drop(index.shape, dim) or [1]
    if index.dim() == 1:
        indices = [Index(index, [0], limit, step, message, index.stride(dim), RuntimeError)]
    to, by = drop(out.stride(), dim) or [0], drop(strides, dim) or [0]
    rows = index.size(dim)
    plan_collect(Collected(p, out, source, rows, sizes, to, by, strides[dim], indices, combine or ""))


@planner("scatter.src", inplace_safe=True, apart=("index", "src"))
def _scatter_src(
    p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, dim: int, index: torch.Tensor, src: torch.Tensor
) -> None:
    start_from(p, out, self)
    _scatter(p, out, dim, index, src)


@planner("scatter.value", inplace_safe=True, apart=("index",))
def _scatter_value(
    p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, dim: int, index: torch.Tensor, value: Scalar
) -> None:
    start_from(p, out, self)
    _scatter(p, out, dim, index, value)


_ROUNDED = ("sum", "prod", "mean")
_OLD_NAMES = {"add": "sum", "multiply": "prod"}


@planner("scatter.reduce", inplace_safe=True, apart=("index", "src"))
def _scatter_old_reduce(
    p: PlanBuilder,
    out: torch.Tensor,
    self: torch.Tensor,
    dim: int,
    index: torch.Tensor,
    src: torch.Tensor,
    *,
    reduce: str,
) -> None:
    with collecting(p, out, self) as total:
        _scatter(p, total, dim, index, src, combine_text(_OLD_NAMES[reduce], out.dtype))


@planner("scatter.value_reduce", inplace_safe=True, apart=("index",))
def _scatter_value_reduce(
    p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, dim: int, index: torch.Tensor, value: Scalar, *, reduce: str
) -> None:
    with collecting(p, out, self) as total:
        _scatter(p, total, dim, index, value, combine_text(_OLD_NAMES[reduce], out.dtype))


@planner("scatter_add", inplace_safe=True, apart=("index", "src"))
def _scatter_add(
    p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, dim: int, index: torch.Tensor, src: torch.Tensor
) -> None:
    with collecting(p, out, self) as total:
        _scatter(p, total, dim, index, src, SUM)


def _identity(reduce: str, dtype: torch.dtype) -> float:
    """The number that a reduction starts from."""
    if reduce in ("sum", "mean"):
        return 0
    if reduce == "prod":
        return 1
    if dtype.is_floating_point:
        return -math.inf if reduce == "amax" else math.inf
    if dtype == torch.bool:
        return reduce == "amin"
    if dtype.is_complex:
        refuse_dtype(reduce, dtype)
    info = torch.iinfo(dtype)
    return info.min if reduce == "amax" else info.max


@planner("scatter_reduce.two", inplace_safe=True, apart=("index", "src"))
def _scatter_reduce(
    p: PlanBuilder,
    out: torch.Tensor,
    self: torch.Tensor,
    dim: int,
    index: torch.Tensor,
    src: torch.Tensor,
    reduce: str,
    *,
    include_self: bool = True,
) -> None:

    def collect(target: torch.Tensor, values: Any, combine: str | None) -> None:
        _scatter(p, target, dim, index, values, combine)

    with collecting(p, out, self, rounds=reduce in _ROUNDED) as total:
        _reduce_into(p, total, reduce, include_self, collect, src)


def _reduce_into(
    p: PlanBuilder,
    out: torch.Tensor,
    reduce: str,
    include_self: bool,
    collect: Callable[[torch.Tensor, Any, str | None], None],
    source: torch.Tensor,
) -> None:
    """Reduces with or without what is in the target; `collect(target, source, combine)` brings the elements to it."""
    if out.numel() == 0:
        return
    if not include_self:
        collect(out, _identity(reduce, out.dtype), None)
    collect(out, source, combine_text("sum" if reduce == "mean" else reduce, out.dtype))
    if reduce != "mean":
        return
    whole = not (out.is_floating_point() or out.is_complex())
    counts = p.empty(out.shape, torch.int64 if whole else out.dtype)
    p.fill(counts, 1 if include_self else 0)
    collect(counts, 1, SUM)
    if not include_self:
        counts = p.call(aten.clamp_min.default, counts, 1)
    if whole:
        p.call_out(aten.div.Tensor_mode, out, out, p.cast(counts, out.dtype), rounding_mode="floor")
    else:
        p.call_out(aten.div.Tensor, out, out, counts)


# ---- rows ----


def _check_vector(name: str, self: torch.Tensor, index: torch.Tensor, source: torch.Tensor) -> None:
    if index.dim() > 1:
        raise IndexError(f"{name}(): Index is supposed to be a vector, but got dim: {index.dim()}")
    if self.dtype != source.dtype:
        raise RuntimeError(
            f"{name}(): self ({dtype_name(self.dtype)}) and source ({dtype_name(source.dtype)}) must have the same "
            "scalar type"
        )


def _check_copied(self: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, **_: Any) -> None:
    _check_vector("index_copy_", self, index, source)
    if index.dtype != torch.int64:
        raise RuntimeError(f"index_copy_(): Expected a long tensor for index, but got {dtype_name(index.dtype)}")
    count = source.size(dim) if -source.dim() <= dim < source.dim() else 1
    if self.dim() == source.dim() and index.numel() != count:
        raise IndexError(
            f"index_copy_(): Number of indices ({index.numel()}) should be equal to source.size(dim) ({count})"
        )


_REDUCTIONS = ("prod", "mean", "amax", "amin")


def _check_reduced(
    self: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, reduce: str, **_: Any
) -> None:
    """torch's meta function refuses nothing."""
    if reduce not in _REDUCTIONS:
        raise RuntimeError(f"index_reduce(): Expected reduce to be one of prod, mean, amax or amin but got {reduce}.")
    rank = max(self.dim(), 1)
    if not -rank <= dim < rank:
        raise IndexError(f"Dimension out of range (expected to be in range of [{-rank}, {rank - 1}], but got {dim})")
    _check_vector("index_reduce_", self, index, source)
    if index.dtype not in (torch.int64, torch.int32):
        raise RuntimeError(f"index_reduce_(): Expected dtype int32/int64 for index but got: {dtype_name(index.dtype)}")


def _check_added(self: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor) -> None:
    """Refuses what torch's CPU does, whose meta function lets tensors without dimensions be of one."""
    count = index.numel()
    if source.dim() == 0 and count != 1:
        raise IndexError(f"Dimension specified as {dim} but tensor has no dimensions")
    if source.dim() > dim and source.size(dim) != count:
        raise RuntimeError(
            f"index_add_(): Number of indices ({count}) should be equal to source.size(dim): ({source.size(dim)}), "
            f"for dim: {dim}"
        )
    if self.dim() != source.dim() or (self.dim() and drop(self.shape, dim) != drop(source.shape, dim)):
        raise RuntimeError(
            "source tensor shape must match self tensor shape, excluding the specified dimension. Got self.shape = "
            f"{list(self.shape)} source.shape = {list(source.shape)}"
        )


def _check_rows(self: torch.Tensor, index: torch.Tensor, source: torch.Tensor, **_: Any) -> None:
    _check_vector("index_add_", self, index, source)


@planner("index_add", inplace_safe=True, apart=("index", "source"), refuses=(_check_rows, other_out))
def _index_add(
    p: PlanBuilder,
    out: torch.Tensor,
    self: torch.Tensor,
    dim: int,
    index: torch.Tensor,
    source: torch.Tensor,
    *,
    alpha: Scalar | float = 1,
) -> None:
    _check_added(self, dim % max(self.dim(), 1), index, source)
    # Which error torch's CPU raises depends on the dimensions.
    message, raises = (RANGE_OF_SELF, IndexError) if self.dim() < 2 else (BOUNDS, RuntimeError)
    if element_type(out.dtype).is_complex:
        start_from(p, out, self)
        if alpha != 1:
            source = p.call(aten.mul.Tensor, source, complex(alpha))
        rows_into(p, out, dim, index, source, message, SUM, raises=raises)
        return
    with collecting(p, out, self) as total:
        rows_into(p, total, dim, index, source, message, SCALED_SUM, alpha=alpha, raises=raises)


@planner("index_copy", inplace_safe=True, apart=("index", "source"), refuses=(_check_copied, other_out))
def _index_copy(
    p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor
) -> None:
    start_from(p, out, self)
    message = "index_copy_(): index {} is out of bounds for dimension {dim} with size {size}"
    rows_into(p, out, dim, index, source, message, None)


@planner("index_reduce", inplace_safe=True, refuses=(_check_reduced, other_out))
def _index_reduce(
    p: PlanBuilder,
    out: torch.Tensor,
    self: torch.Tensor,
    dim: int,
    index: torch.Tensor,
    source: torch.Tensor,
    reduce: str,
    *,
    include_self: bool = True,
) -> None:
    if out.numel() == 0:
        limit = out.size(dim) if out.dim() else 1
        check_places(p, Index(flat_index(index), (), limit, 0, RANGE_OF_SELF))
        return

    def collect(target: torch.Tensor, values: Any, combine: str | None) -> None:
        rows_into(p, target, dim, index, values, RANGE_OF_SELF, combine)

    with collecting(p, out, self, rounds=reduce in _ROUNDED) as total:
        _reduce_into(p, total, reduce, include_self, collect, source)


def _check_places(index: torch.Tensor, **_: Any) -> None:
    if index.dtype != torch.int64:
        raise IndexError(f"index_fill_(): Expected dtype int64 for index, not {dtype_name(index.dtype)}.")


def _check_real(self: torch.Tensor, complex_value: bool) -> None:
    if complex_value and not self.is_complex():
        raise RuntimeError("index_fill_(): Converting complex Scalar to non-complex type is not supported")


@planner(
    "index_fill.int_Scalar", inplace_safe=True, apart=("index",), refuses=(_check_places, check_filling, other_out)
)
def _index_fill(
    p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, dim: int, index: torch.Tensor, value: Scalar
) -> None:
    _check_real(self, value.type == "complex")
    start_from(p, out, self)
    rows_into(p, out, dim, index, value, BOUNDS, None, wraps=True)


def _may_not_fit(self: torch.Tensor, value: torch.Tensor, **_: Any) -> bool:
    inexact = self.is_floating_point() or self.is_complex()
    return not inexact and value.dim() == 0 and value.dtype not in (self.dtype, torch.bool)


@composite("index_fill.int_Tensor", when=_may_not_fit)
def _index_fill_number(self: torch.Tensor, dim: int, index: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """The value is looked at, as by torch's kernels."""
    return self.index_fill(dim, index, value.item())


@planner("index_fill.int_Tensor", inplace_safe=True, apart=("index", "value"), refuses=(_check_places, other_out))
def _index_fill_tensor(
    p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, dim: int, index: torch.Tensor, value: torch.Tensor
) -> None:
    _check_real(self, value.is_complex())
    start_from(p, out, self)
    rows_into(p, out, dim, index, p.cast(value, out.dtype), BOUNDS, None, wraps=True)
