"""Planners of ops that read or write where index tensors say."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchgraft.codegen import ceil_div, element_type
from torchgraft.kernels import indexing as kernels
from torchgraft.kernels.indexing import Indexing
from torchgraft.plans import PlanBuilder, Scalar, Unsupported, composite, planner, pointwise
from torchgraft.plans.grid import deal
from torchgraft.plans.registry import check_filling, dtype_name, refuse_dtype

aten = torch.ops.aten

# CPU form: columns of a work-item are a multiple of this; below so many elements one thread is as quick as two.
_COLUMNS = 16
_SMALL = 16384
# Rows are cut into parts of so many elements; fewer than so many groups do not fill two threads evenly.
_ROW_PART = 128
_GROUPS = 16
# Rows of larger tables stay whole: most of the work is to zero them.
_SMALL_TABLE = 1 << 18


@dataclass(frozen=True)
class Index:
    """An index tensor: `spec` with its strides over the walk's space, for places 0 <= index < `limit`, `step` elements
    apart.

    `row` is its stride along the rows of `plan_collect`; `raises` is what torch's CPU raises for an index out of range.
    """

    spec: torch.Tensor
    strides: Sequence[int]
    limit: int
    step: int
    message: str
    row: int = 0
    raises: type[IndexError] | type[RuntimeError] = IndexError


def _check_not_empty(indices: Sequence[Index], count: int) -> None:
    """With no place at all every index is wrong, and a kernel would have nowhere safe to read."""
    for index in indices:
        if index.limit == 0 and count > 0:
            raise index.raises(index.message.format(0) if "{}" in index.message else index.message)


def _spaces(
    sizes: Sequence[int], lead: Sequence[int] | None, strides: list[Sequence[int]]
) -> tuple[list[int], list[list[int]]]:
    """The space with dimensions ordered by `lead` (the strides of the operand that is not indexed) and merged."""
    if lead is None:
        lead, product = [0] * len(sizes), 1
        for d in range(len(sizes) - 1, -1, -1):
            lead[d], product = product, product * sizes[d]
    merged, merged_strides = pointwise.coalesce(list(sizes), [list(lead), *(list(s) for s in strides)])
    return merged, merged_strides[1:]


def _kinds(strides: list[list[int]]) -> tuple[str, ...]:
    return tuple({0: "0", 1: "1"}.get(s[-1], "s") for s in strides)


def _index_args(p: PlanBuilder, indices: Sequence[Index]) -> list[Any]:
    reports = [p.error(index.message, index.raises) for index in indices]
    return [
        *(index.spec for index in indices),
        reports[0].words,
        *(report.code for report in reports),
        *(index.limit for index in indices),
        *(index.step for index in indices),
    ]


def plan_move(
    p: PlanBuilder,
    target: torch.Tensor,
    source: torch.Tensor | Scalar | float,
    sizes: Sequence[int],
    target_strides: Sequence[int],
    source_strides: Sequence[int],
    indices: Sequence[Index],
    reads: bool,
    wraps: bool = False,
) -> None:
    """Moves one element for each place of a space of `sizes`.

    Args:
        target, source: specs, or a number to write.
        target_strides, source_strides: over the space; 0 in the dimensions that the indices stand for.
        indices: at least one.
        reads: the source is indexed; otherwise the target.
        wraps: negative indices count from the end.
    """
    n = math.prod(sizes)
    _check_not_empty(indices, n)
    if n == 0:
        return
    number = not isinstance(source, torch.Tensor)
    operands = [target_strides, *([] if number else [source_strides]), *(index.strides for index in indices)]
    lead = target_strides if reads else None if number else source_strides
    merged, strides = _spaces(sizes, lead, operands)
    moved = element_type(target.dtype).name if number else kernels.MOVES[target.element_size()]
    x = Indexing(
        name="gather" if reads else "scatter",
        target=moved,
        source=moved,
        indices=tuple(element_type(index.spec.dtype).name for index in indices),
        reads=reads,
        wraps=wraps,
        along=any(s[-1] != 0 for s in strides[-len(indices) :]),
        rank=len(merged),
        inner=_kinds(strides),
        number=number,
    )
    groups, chunk = ceil_div(n, kernels.GPU_LOCAL), 1
    if p.form == "cpu":
        groups, chunk = deal(n, p.dealer.chunking(2 if x.along else 1))
    args = [target, source, *_index_args(p, indices), n, chunk, *merged, *(s for operand in strides for s in operand)]
    p.launch(kernels.move_kernel(x, p.form), (groups,), args)


_SUM = "a + b"
_COMBINE = {
    "sum": _SUM,
    "prod": "a * b",
    "amax": "b > a ? b : a",
    "amin": "b < a ? b : a",
}


def _combine_text(reduce: str, dtype: torch.dtype) -> str:
    element = element_type(dtype)
    if reduce == "prod" and element.is_complex:
        return f"tg_mul_{element.name}(a, b)"
    if reduce in ("amax", "amin"):
        if element.is_complex:
            raise Unsupported("order of complex numbers")
        if element.is_float:
            return f"a != a ? a : b != b || {'b > a' if reduce == 'amax' else 'b < a'} ? b : a"
    return _COMBINE[reduce]


def plan_collect(
    p: PlanBuilder,
    target: torch.Tensor,
    source: torch.Tensor | Scalar | float,
    rows: int,
    sizes: Sequence[int],
    target_strides: Sequence[int],
    source_strides: Sequence[int],
    source_row: int,
    indices: Sequence[Index],
    combine: str,
    wraps: bool = False,
    alpha: Scalar | float | None = None,
) -> None:
    """Brings `rows` times a space of elements to a target where they may meet; each place takes them in the rows'
    order.

    Args:
        combine: see `Indexing`; "" keeps the last.
        alpha: a factor that `combine` uses.
        source_row: stride of the source from row to row. For the rest see `plan_move`.
    """
    n = math.prod(sizes)
    _check_not_empty(indices, n * rows)
    if n == 0 or rows == 0:
        return
    number = not isinstance(source, torch.Tensor)
    operands = [target_strides, *([] if number else [source_strides]), *(index.strides for index in indices)]
    merged, strides = _spaces(sizes, None if number else source_strides, operands)
    type_ = element_type(target.dtype).name
    moved = type_ if combine or number else kernels.MOVES[target.element_size()]
    # A row of few elements is not worth a loop of its own: then one walks along the rows.
    along = any(s[-1] != 0 for s in strides[-len(indices) :]) or merged[-1] < 4
    x = Indexing(
        name="collect",
        target=moved,
        source=moved,
        indices=tuple(element_type(index.spec.dtype).name for index in indices),
        reads=False,
        wraps=wraps,
        along=along,
        rank=len(merged),
        inner=_kinds(strides),
        number=number,
        combine=combine,
        alpha=alpha is not None,
    )
    places = indices[0].limit
    if p.form == "gpu":
        groups, chunk = ceil_div(n, kernels.GPU_COLLECT_LOCAL), 1
        parts = min(places, max(1, 256 * p.device.compute_units // n)) if rows > 64 else 1
    else:
        columns = 1 if merged[-1] < _COLUMNS else _COLUMNS if along else _ROW_PART
        most = 8 * p.device.compute_units if along else 32 * p.device.compute_units
        chunk = n
        if n * rows > _SMALL:
            chunk = ceil_div(ceil_div(n, min(ceil_div(n, columns), most)), columns) * columns
        groups, parts = ceil_div(n, chunk), 1
        if not along and n * rows > _SMALL and groups < _GROUPS and n >= 2 * _COLUMNS:
            parts = min(places, ceil_div(_GROUPS, groups))
    range_ = ceil_div(places, parts)
    row_strides = [*([] if number else [source_row]), *(index.row for index in indices)]
    args = [
        target,
        source,
        *([] if alpha is None else [alpha]),
        *_index_args(p, indices),
        rows,
        range_,
        n,
        chunk,
        *merged,
    ]
    args += [s for operand in strides for s in operand]
    inner_rows = merged[-1] < 4 or max(row_strides) <= max((s[-1] for s in strides[1:]), default=0)
    p.launch(kernels.collect_kernel(x, p.form, inner_rows), (groups, ceil_div(places, range_)), [*args, *row_strides])


def _ordered() -> bool:
    """Whether elements that meet in one place must be taken in order, the last one staying."""
    return torch.are_deterministic_algorithms_enabled()


def _flat_index(spec: torch.Tensor) -> torch.Tensor:
    if spec.dtype not in (torch.int64, torch.int32):
        raise Unsupported(f"indices of {spec.dtype}")
    return spec


def _some_dims(x: torch.Tensor) -> torch.Tensor:
    """Zero-dim tensors count as tensors of one element."""
    return x if x.dim() else x.unsqueeze(0)


def _without(values: Sequence[int], dim: int) -> list[int]:
    """A copy with 0 at `dim`."""
    return [0 if d == dim else v for d, v in enumerate(values)]


def _drop(values: Sequence[int], dim: int) -> list[int]:
    return [v for d, v in enumerate(values) if d != dim]


_RANGE_OF_SELF = "index out of range in self"


_BOUNDS = "index {} is out of bounds for dimension {dim} with size {size}"


def _bounds_of(dim: int, size: int) -> str:
    return _BOUNDS.format("{}", dim=dim, size=size)


def _resolved(p: PlanBuilder, x: torch.Tensor) -> torch.Tensor:
    """A spec whose memory holds its values: conjugate and negative bits are no part of what is moved."""
    return p.contiguous(x) if x.is_conj() or x.is_neg() else x


# ---- one index for one dimension ----


def _check_selected(self: torch.Tensor, index: torch.Tensor, **_: Any) -> None:
    if self.dim() == 0 and index.numel() != 1:
        raise RuntimeError(f"index_select(): Index to scalar can have only 1 value, got {index.numel()} value(s)")


@planner("index_select", apart=("self", "index"), check=_check_selected)
def _index_select(p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, dim: int, index: torch.Tensor) -> None:
    _select(p, _some_dims(out), _some_dims(self), dim, index.reshape(-1), _RANGE_OF_SELF)


def _select(p: PlanBuilder, out: torch.Tensor, x: torch.Tensor, dim: int, index: torch.Tensor, message: str) -> None:
    x = _resolved(p, x)
    dim %= x.dim()
    along = [index.stride(0) if d == dim else 0 for d in range(x.dim())]
    indices = [Index(_flat_index(index), along, x.size(dim), x.stride(dim), message)]
    plan_move(p, out, x, out.shape, out.stride(), _without(x.stride(), dim), indices, reads=True)


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
    index = Index(_flat_index(indices), [*indices.stride(), 0], weight.size(0), weight.stride(0), _RANGE_OF_SELF)
    source_strides = [*(0 for _ in indices.shape), weight.stride(1)]
    plan_move(p, out, _resolved(p, weight), out.shape, out.stride(), source_strides, [index], reads=True)


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
    width, n = out.size(1), indices.numel()
    if out.numel() == 0:
        return
    index, grad = element_type(_flat_index(indices).dtype).name, element_type(grad_output.dtype)
    if not grad.is_float:
        raise Unsupported(f"gradients of {grad_output.dtype}")
    # Sums of many halves are kept in float32.
    wide = element_type(out.dtype).accumulate
    total = out if element_type(out.dtype).name == wide else p.empty(out.shape, torch.float32)
    counts = None
    if scale_grad_by_freq:
        counts = p.empty((num_weights,), torch.int32)
        p.fill(counts, 0)
        p.launch(kernels.count_kernel(index), (1,), [counts, indices, n, num_weights])
    small = out.numel() <= _SMALL_TABLE
    if p.form == "gpu":
        columns = kernels.GPU_COLLECT_LOCAL
        rows = ceil_div(num_weights, min(num_weights, max(1, 8 * p.device.compute_units)))
    elif n * width + out.numel() <= _SMALL:
        columns, rows = width, num_weights
    elif small and width >= 2 * _ROW_PART:
        columns = _ROW_PART
        rows = ceil_div(num_weights, min(num_weights, ceil_div(_GROUPS, ceil_div(width, columns))))
    else:
        columns, rows = width, ceil_div(num_weights, min(num_weights, 16 * p.device.compute_units))
    kernel = kernels.embedding_backward_kernel(grad.name, index, wide, scale_grad_by_freq, p.form)
    report = p.error(_RANGE_OF_SELF)
    args = [total, grad_output, indices, *([counts] if counts is not None else []), report.words, report.code]
    groups = (ceil_div(width, columns), ceil_div(num_weights, rows))
    p.launch(kernel, groups, [*args, n, width, num_weights, padding_idx, columns, rows])
    if total is not out:
        p.copy(out, total)


@planner("gather", apart=("self", "index"))
def _gather(
    p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, dim: int, index: torch.Tensor, *, sparse_grad: bool = False
) -> None:
    if index.numel() == 0:  # of any dtype
        return
    if index.dtype not in (torch.int64, torch.int32):
        raise RuntimeError(f"gather(): Expected dtype int32/int64 for index, but got {index.dtype}")
    out, x, index = _some_dims(out), _some_dims(_resolved(p, self)), _some_dims(index)
    dim %= x.dim()
    message = _bounds_of(dim, x.size(dim))
    indices = [Index(_flat_index(index), index.stride(), x.size(dim), x.stride(dim), message, raises=RuntimeError)]
    plan_move(p, out, x, index.shape, out.stride(), _without(x.stride(), dim), indices, reads=True)


@planner("take", apart=("self", "index"))
def _take(p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, index: torch.Tensor) -> None:
    x = p.contiguous(self)
    message = f"out of range: tried to access index {{}} on a tensor of {x.numel()} elements."
    indices = [Index(_flat_index(index), index.stride(), x.numel(), 1, message)]
    plan_move(p, out, x, index.shape, out.stride(), [0] * index.dim(), indices, reads=True, wraps=True)


def _start(p: PlanBuilder, out: torch.Tensor, self: torch.Tensor) -> None:
    """The result of an op that changes some elements begins as a copy, unless it is the tensor itself."""
    if out is not self:
        p.copy(out, self)


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
    out, index = _some_dims(out), _some_dims(_flat_index(index))
    dim %= out.dim()
    if isinstance(source, torch.Tensor):
        source = _some_dims(_resolved(p, source))
    strides = source.stride() if isinstance(source, torch.Tensor) else [0] * out.dim()
    limit, step = out.size(dim), out.stride(dim)
    message = _bounds_of(dim, limit)
    if combine is None and not _ordered():
        indices = [Index(index, index.stride(), limit, step, message, raises=RuntimeError)]
        plan_move(p, out, source, index.shape, _without(out.stride(), dim), strides, indices, reads=False)
        return
    indices = [Index(index, _drop(index.stride(), dim), limit, step, message, index.stride(dim), RuntimeError)]
    sizes = _drop(index.shape, dim) or [1]
    if index.dim() == 1:
        indices = [Index(index, [0], limit, step, message, index.stride(dim), RuntimeError)]
    to, by = _drop(out.stride(), dim) or [0], _drop(strides, dim) or [0]
    plan_collect(p, out, source, index.size(dim), sizes, to, by, strides[dim], indices, combine or "")


@planner("scatter.src", inplace_safe=True, apart=("index", "src"))
def _scatter_src(
    p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, dim: int, index: torch.Tensor, src: torch.Tensor
) -> None:
    _start(p, out, self)
    _scatter(p, out, dim, index, src)


@planner("scatter.value", inplace_safe=True, apart=("index",))
def _scatter_value(
    p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, dim: int, index: torch.Tensor, value: Scalar
) -> None:
    _start(p, out, self)
    _scatter(p, out, dim, index, value)


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
    _start(p, out, self)
    _scatter(p, out, dim, index, src, _combine_text(_OLD_NAMES[reduce], out.dtype))


@planner("scatter.value_reduce", inplace_safe=True, apart=("index",))
def _scatter_value_reduce(
    p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, dim: int, index: torch.Tensor, value: Scalar, *, reduce: str
) -> None:
    _start(p, out, self)
    _scatter(p, out, dim, index, value, _combine_text(_OLD_NAMES[reduce], out.dtype))


@planner("scatter_add", inplace_safe=True, apart=("index", "src"))
def _scatter_add(
    p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, dim: int, index: torch.Tensor, src: torch.Tensor
) -> None:
    _start(p, out, self)
    _scatter(p, out, dim, index, src, _SUM)


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
    _start(p, out, self)
    _reduce_into(
        p,
        out,
        reduce,
        include_self,
        lambda target, source, combine: _scatter(p, target, dim, index, source, combine),
        src,
    )


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
    collect(out, source, _combine_text("sum" if reduce == "mean" else reduce, out.dtype))
    if reduce != "mean":
        return
    whole = not (out.is_floating_point() or out.is_complex())
    counts = p.empty(out.shape, torch.int64 if whole else out.dtype)
    p.fill(counts, 1 if include_self else 0)
    collect(counts, 1, _SUM)
    if not include_self:
        counts = p.call(aten.clamp_min.default, counts, 1)
    if whole:
        p.call_out(aten.div.Tensor_mode, out, out, p.cast(counts, out.dtype), rounding_mode="floor")
    else:
        p.call_out(aten.div.Tensor, out, out, counts)


# ---- rows ----


def _rows_into(
    p: PlanBuilder,
    out: torch.Tensor,
    dim: int,
    index: torch.Tensor,
    source: torch.Tensor | Scalar | float,
    message: str,
    combine: str | None,
    wraps: bool = False,
    alpha: Scalar | float | None = None,
    raises: type[IndexError] | type[RuntimeError] = IndexError,
) -> None:
    """Writes (combine None) or collects slices: that number i of the source goes to place index[i] of dimension
    `dim`."""
    out, index = _some_dims(out), _flat_index(index).reshape(-1)
    dim %= out.dim()
    sizes = [*out.shape[:dim], index.size(0), *out.shape[dim + 1 :]]
    strides: Sequence[int] = [0] * len(sizes)
    if isinstance(source, torch.Tensor):
        source = _some_dims(_resolved(p, source)).expand(sizes)
        strides = source.stride()
    limit, step, index_stride = out.size(dim), out.stride(dim), index.stride(0)
    message = message.format("{}", dim=dim, size=limit)
    if combine is None and not _ordered():
        walk = [index_stride if d == dim else 0 for d in range(len(sizes))]
        indices = [Index(index, walk, limit, step, message, raises=raises)]
        plan_move(p, out, source, sizes, _without(out.stride(), dim), strides, indices, False, wraps)
        return
    free = _drop(sizes, dim) or [1]
    indices = [Index(index, [0] * len(free), limit, step, message, index_stride, raises)]
    to, by = _drop(out.stride(), dim) or [0], _drop(strides, dim) or [0]
    plan_collect(p, out, source, index.size(0), free, to, by, strides[dim], indices, combine or "", wraps, alpha)


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
    if self.dim() != source.dim() or (self.dim() and _drop(self.shape, dim) != _drop(source.shape, dim)):
        raise RuntimeError(
            "source tensor shape must match self tensor shape, excluding the specified dimension. Got self.shape = "
            f"{list(self.shape)} source.shape = {list(source.shape)}"
        )


@planner("index_add", inplace_safe=True, apart=("index", "source"))
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
    _start(p, out, self)
    # Which error torch's CPU raises depends on the dimensions.
    message, raises = (_RANGE_OF_SELF, IndexError) if self.dim() < 2 else (_BOUNDS, RuntimeError)
    if element_type(out.dtype).is_complex:
        if alpha != 1:
            source = p.call(aten.mul.Tensor, source, complex(alpha))
        _rows_into(p, out, dim, index, source, message, _SUM, raises=raises)
        return
    _rows_into(p, out, dim, index, source, message, "a + alpha * b", alpha=alpha, raises=raises)


@planner("index_copy", inplace_safe=True, apart=("index", "source"))
def _index_copy(
    p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor
) -> None:
    _start(p, out, self)
    message = "index_copy_(): index {} is out of bounds for dimension {dim} with size {size}"
    _rows_into(p, out, dim, index, source, message, None)


@planner("index_reduce", inplace_safe=True)
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
    _start(p, out, self)

    def collect(target: torch.Tensor, values: Any, combine: str | None) -> None:
        _rows_into(p, target, dim, index, values, _RANGE_OF_SELF, combine)

    _reduce_into(p, out, reduce, include_self, collect, source)


_FILL_MESSAGE = "index {} is out of bounds for dimension {dim} with size {size}"


def _check_real(self: torch.Tensor, complex_value: bool) -> None:
    if complex_value and not self.is_complex():
        raise RuntimeError("index_fill_(): Converting complex Scalar to non-complex type is not supported")


@planner("index_fill.int_Scalar", inplace_safe=True, apart=("index",), check=check_filling)
def _index_fill(
    p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, dim: int, index: torch.Tensor, value: Scalar
) -> None:
    _check_real(self, value.type == "complex")
    _start(p, out, self)
    _rows_into(p, out, dim, index, value, _FILL_MESSAGE, None, wraps=True)


def _fill_by_number(arguments: dict[str, Any], _: bool) -> Callable[..., torch.Tensor] | None:
    """A value that may not fit is looked at, as by torch's kernels."""
    self, value = arguments["self"], arguments["value"]
    if self.is_floating_point() or self.is_complex() or value.dim() > 0 or value.dtype in (self.dtype, torch.bool):
        return None
    return lambda self, dim, index, value: self.index_fill(dim, index, value.item())


@planner("index_fill.int_Tensor", inplace_safe=True, apart=("index", "value"), eager=_fill_by_number)
def _index_fill_tensor(
    p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, dim: int, index: torch.Tensor, value: torch.Tensor
) -> None:
    _check_real(self, value.is_complex())
    _start(p, out, self)
    _rows_into(p, out, dim, index, p.cast(value, out.dtype), _FILL_MESSAGE, None, wraps=True)


# ---- several indices ----


@dataclass(frozen=True)
class _Places:
    """The elements of `x` that x[indices] means, as a space of the result's shape.

    Attributes:
        sizes: the result's.
        strides: those of x over the space; 0 in the dimensions of the indices.
        indices: one for each tensor.
        first, count: which dimensions of the space are the indices'.
    """

    sizes: list[int]
    strides: list[int]
    indices: list[Index]
    first: int
    count: int


def _places(x: torch.Tensor, given: Sequence[torch.Tensor | None]) -> _Places:
    tensors = [(d, _flat_index(i)) for d, i in enumerate(given) if i is not None]
    shape = torch.broadcast_shapes(*(i.shape for _, i in tensors))
    dims = [d for d, _ in tensors]
    together = dims == list(range(dims[0], dims[-1] + 1))
    first = dims[0] if together else 0
    free = [d for d in range(x.dim()) if d not in dims]
    before, after = free[:first], free[first:]
    sizes = [*(x.size(d) for d in before), *shape, *(x.size(d) for d in after)]
    strides = [*(x.stride(d) for d in before), *(0 for _ in shape), *(x.stride(d) for d in after)]
    indices = []
    for d, tensor in tensors:
        own = [*(0 for _ in before), *tensor.expand(shape).stride(), *(0 for _ in after)]
        indices.append(Index(tensor, own, x.size(d), x.stride(d), _bounds_of(d, x.size(d))))
    return _Places(sizes, strides, indices, first, len(shape))


def _has_masks(arguments: dict[str, Any]) -> bool:
    return any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in arguments["indices"])


def _without_masks(x: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
    """Masks as the places where they are true, which reads them."""
    out: list[torch.Tensor | None] = []
    for index in indices:
        if index is None or index.dtype not in (torch.bool, torch.uint8):
            out.append(index)
            continue
        if index.dtype == torch.uint8:
            warnings.warn(
                "indexing with dtype torch.uint8 is now deprecated, please use a dtype torch.bool instead.",
                stacklevel=2,
            )
        for k in range(index.dim()):
            if index.size(k) != x.size(len(out) + k):
                raise IndexError(
                    f"The shape of the mask {list(index.shape)} at index {k} does not match the shape of the indexed "
                    f"tensor {list(x.shape)} at index {len(out) + k}"
                )
        out += (index.to(x.device) if index.device != x.device else index).nonzero().unbind(1)
    return out


def _index_eager(arguments: dict[str, Any], inplace: bool) -> Callable[..., Any] | None:
    if not _has_masks(arguments):
        return None

    def index(self: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> torch.Tensor:
        result: torch.Tensor = aten.index.Tensor(self, _without_masks(self, indices))
        return result

    return index


def _check_indices(x: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> None:
    """Refuses by IndexError, as torch's CPU, what its meta function refuses by RuntimeError."""
    given = [index for index in indices if index is not None]
    if any(index.dtype not in _INDEX_DTYPES for index in given):
        raise IndexError("tensors used as indices must be long, int, byte or bool tensors")
    try:
        shape = torch.broadcast_shapes(*(index.shape for index in given))
    except RuntimeError as error:
        shapes = ", ".join(str(list(index.shape)) for index in given)
        raise IndexError(
            f"shape mismatch: indexing tensors could not be broadcast together with shapes {shapes}"
        ) from error
    nowhere = any(index is not None and x.size(d) == 0 for d, index in enumerate(indices) if d < x.dim())
    if nowhere and math.prod(shape):
        raise IndexError("index is out of bounds for dimension with size 0")


def _index_meta(self: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> torch.Tensor:
    _check_indices(self, indices)
    result: torch.Tensor = aten.index.Tensor(self, indices)
    return result


_INDEX_DTYPES = (torch.int64, torch.int32, torch.bool, torch.uint8)


@planner("index.Tensor", "_unsafe_index.Tensor", cpu_tensors="upload_all", eager=_index_eager, meta=_index_meta)
def _index(p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> None:
    x = _resolved(p, self)
    if all(i is None for i in indices):
        p.copy(out, x)
        return
    places = _places(x, indices)
    plan_move(p, out, x, places.sizes, out.stride(), places.strides, places.indices, reads=True, wraps=True)


def _put_eager(arguments: dict[str, Any], inplace: bool) -> Callable[..., Any] | None:
    if not _has_masks(arguments):
        return None

    def put(
        self: torch.Tensor, indices: Any, values: torch.Tensor, accumulate: bool = False, unsafe: bool = False
    ) -> torch.Tensor:
        masks = [i for i in indices if i is not None]
        if len(masks) == 1 and values.numel() == 1 and not accumulate and all(i is None for i in indices[:-1]):
            mask = masks[0].to(self.device)
            before = len(indices) - 1
            if mask.shape == self.shape[before : before + mask.dim()]:
                wide = mask.reshape(*mask.shape, *(1 for _ in self.shape[before + mask.dim() :]))
                return self.masked_fill_(wide, values.reshape(()).to(self.device, self.dtype))
        result: torch.Tensor = aten.index_put_.default(self, _without_masks(self, indices), values, accumulate)
        return result

    return put if inplace else lambda self, *args: put(self.clone(), *args)


def _check_put(message: str, destination: torch.Tensor, source: torch.Tensor) -> None:
    if source.dtype != destination.dtype:
        raise RuntimeError(
            f"{message}, got {dtype_name(destination.dtype)} for the destination and {dtype_name(source.dtype)} "
            "for the source."
        )


def _put(
    p: PlanBuilder,
    out: torch.Tensor,
    self: torch.Tensor,
    indices: Sequence[torch.Tensor | None],
    values: torch.Tensor,
    accumulate: bool,
) -> None:
    message = "Index put requires the source and destination dtypes match"
    _check_indices(self, indices)
    _start(p, out, self)
    if all(i is None for i in indices):
        _check_put(message, self, values)
        if accumulate:
            p.call_out(aten.add.Tensor, out, out, values)
        else:
            p.copy(out, values)
        return
    places = _places(out, indices)
    values = _resolved(p, values)
    if _cannot_expand(values.shape, places.sizes):
        raise RuntimeError(
            f"shape mismatch: value tensor of shape {list(values.shape)} cannot be broadcast to indexing result of "
            f"shape {list(places.sizes)}"
        )
    _check_put(message, self, values)
    values = values.expand(places.sizes)
    if not accumulate and not _ordered():
        plan_move(p, out, values, places.sizes, places.strides, values.stride(), places.indices, False, wraps=True)
        return
    # The dimensions of the indices become rows: one dimension of one stride for each operand.
    first, last = places.first, places.first + places.count
    rows = math.prod(places.sizes[first:last])
    values = values.movedim(tuple(range(first, last)), tuple(range(places.count)))
    flat = values.reshape(rows, *values.shape[places.count :]) if _is_view(values, places.count) else None
    if flat is None:
        flat = p.contiguous(values).view(rows, *values.shape[places.count :])
    shape = places.sizes[first:last]
    collected = []
    for index in places.indices:
        spec = p.contiguous(index.spec.expand(shape)).reshape(-1)
        collected.append(
            Index(spec, [0] * max(1, flat.dim() - 1), index.limit, index.step, index.message, spec.stride(0))
        )
    free = [*places.sizes[:first], *places.sizes[last:]] or [1]
    to = [*places.strides[:first], *places.strides[last:]] or [0]
    by = list(flat.stride()[1:]) or [0]
    combine = _SUM if accumulate else ""
    plan_collect(p, out, flat, rows, free, to, by, flat.stride(0), collected, combine, wraps=True)


def _cannot_expand(shape: Sequence[int], to: Sequence[int]) -> bool:
    pairs = zip(reversed(shape), reversed(to), strict=False)
    return len(shape) > len(to) or any(n not in (1, wanted) for n, wanted in pairs)


def _is_view(x: torch.Tensor, count: int) -> bool:
    """The first `count` dimensions can be one without a copy."""
    try:
        x.view(math.prod(x.shape[:count]), *x.shape[count:])
    except RuntimeError:
        return False
    return True


def _declare_put() -> None:
    def put(
        p: PlanBuilder,
        out: torch.Tensor,
        self: torch.Tensor,
        indices: Sequence[torch.Tensor | None],
        values: torch.Tensor,
        accumulate: bool = False,
        unsafe: bool = False,
    ) -> None:
        _put(p, out, self, indices, values, accumulate)

    names = ("_index_put_impl_", "index_put", "_unsafe_index_put")
    apart = ("indices", "values")
    planner(*names, inplace_safe=True, cpu_tensors="upload_all", eager=_put_eager, apart=apart)(put)


_declare_put()


@planner("put_", inplace_safe=True, apart=("index", "source"))
def _put_linear(
    p: PlanBuilder,
    out: torch.Tensor,
    self: torch.Tensor,
    index: torch.Tensor,
    source: torch.Tensor,
    accumulate: bool = False,
) -> None:
    _check_put("put_(): self and source expected to have the same dtype", self, source)
    target = out if out.is_contiguous() else p.contiguous(out)
    flat, source = target.view(-1), p.contiguous(source).view(-1)
    message = f"out of range: tried to access index {{}} on a tensor of {target.numel()} elements."
    _rows_into(p, flat, 0, p.contiguous(index).view(-1), source, message, _SUM if accumulate else None, wraps=True)
    if target is not out:
        p.copy(out, target)


# ---- shapes that depend on data ----


@planner("nonzero_static")
def _nonzero_static(p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, *, size: int, fill_value: int = -1) -> None:
    x, target = p.contiguous(self), out if out.is_contiguous() else p.empty_like(out)
    n, rank = x.numel(), x.dim()
    if target.numel() == 0:
        return
    if n == 0:
        p.fill(out, fill_value)
        return
    groups = 1 if n <= _SMALL else min(ceil_div(n, 4096), 32 * p.device.compute_units)
    chunk = ceil_div(n, groups)
    groups = ceil_div(n, chunk)
    counts = p.empty((groups,), torch.int64)
    type_ = element_type(x.dtype).name
    p.launch(kernels.nonzero_count_kernel(type_), (groups,), [counts, x, n, chunk])
    args = [target, counts, x, size, fill_value, n, chunk, *x.shape]
    p.launch(kernels.nonzero_kernel(type_, rank), (groups,), args)
    if target is not out:
        p.copy(out, target)


@composite("equal")
def _equal(self: torch.Tensor, other: torch.Tensor) -> bool:
    if self.shape != other.shape:
        return False
    return bool((self == other).all())


@composite("nonzero")
def _nonzero(self: torch.Tensor) -> torch.Tensor:
    count = int(torch.count_nonzero(self))
    return torch.nonzero_static(self, size=count)


@composite("masked_select", apart=("self", "mask"))
def _masked_select(self: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    if mask.dtype != torch.bool:
        raise RuntimeError(f"masked_select: expected BoolTensor for mask, but got {mask.dtype}")
    self, mask = torch.broadcast_tensors(self, mask)
    return self.reshape(-1).index_select(0, mask.reshape(-1).nonzero().view(-1))


@composite("masked_scatter_")
def _masked_scatter(self: torch.Tensor, mask: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    if mask.dtype != torch.bool:
        raise RuntimeError(f"masked_scatter_ only supports boolean masks, but got mask with dtype {mask.dtype}")
    if self.dtype != source.dtype:
        raise RuntimeError(
            f"masked_scatter_: expected self and source to have same dtypes but got {self.dtype} and {source.dtype}"
        )
    places = mask.expand(self.shape).reshape(self.shape or (1,)).nonzero()
    if source.numel() < len(places):
        raise RuntimeError("Number of elements of source < number of ones in mask")
    if source.untyped_storage()._cdata == self.untyped_storage()._cdata:
        source = source.clone()
    whole = self if self.dim() else self.view(1)
    whole.index_put_(tuple(places.unbind(1)), source.reshape(-1)[: len(places)])
    return self


# ---- searches ----


def _search(
    p: PlanBuilder, out: torch.Tensor, boundaries: torch.Tensor, values: Any, right: bool, sorter: torch.Tensor | None
) -> None:
    if out.numel() == 0:
        return
    boundaries = p.contiguous(boundaries)
    number = not isinstance(values, torch.Tensor)
    if number:
        compute = torch.result_type(boundaries, values.python_type(1))
        values_type = p.widest(values, element_type(compute).compute)
    else:
        values = p.contiguous(values)
        compute = torch.promote_types(boundaries.dtype, values.dtype)
        values_type = element_type(values.dtype).name
    if compute.is_complex:
        raise Unsupported("order of complex numbers")
    target = out if out.is_contiguous() else p.empty_like(out)
    n, length = out.numel(), boundaries.size(-1) if boundaries.dim() else 1
    row = max(1, values.size(-1)) if not number and values.dim() else 1
    kernel = kernels.search_kernel(
        values_type,
        element_type(boundaries.dtype).name,
        element_type(compute).compute,
        element_type(out.dtype).name,
        right,
        sorter is not None,
        number,
        p.form,
    )
    groups, chunk = _deal(p, n, 16)
    args = [target, values, boundaries, *([] if sorter is None else [p.contiguous(sorter)])]
    p.launch(kernel, (groups,), [*args, row, length, length if boundaries.dim() > 1 else 0, n, chunk])
    if target is not out:
        p.copy(out, target)


def _deal(p: PlanBuilder, n: int, cost: int) -> tuple[int, int]:
    if p.form == "gpu":
        return ceil_div(n, kernels.GPU_LOCAL), 1
    return deal(n, p.dealer.chunking(cost))


@planner("searchsorted.Tensor", "searchsorted.Scalar")
def _searchsorted(
    p: PlanBuilder,
    out: torch.Tensor,
    sorted_sequence: torch.Tensor,
    self: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: torch.Tensor | None = None,
) -> None:
    _search(p, out, sorted_sequence, self, right or side == "right", sorter)


@planner("bucketize.Tensor", "bucketize.Scalar")
def _bucketize(
    p: PlanBuilder,
    out: torch.Tensor,
    self: Any,
    boundaries: torch.Tensor,
    *,
    out_int32: bool = False,
    right: bool = False,
) -> None:
    if boundaries.dim() != 1:
        raise RuntimeError(f"boundaries tensor must be 1 dimension, but got dim({boundaries.dim()})")
    _search(p, out, boundaries, self, right, None)


@planner("isin.Tensor_Scalar")
def _isin_number(
    p: PlanBuilder,
    out: torch.Tensor,
    elements: torch.Tensor,
    test_element: Scalar,
    *,
    assume_unique: bool = False,
    invert: bool = False,
) -> None:
    p.call_out(aten.ne.Scalar if invert else aten.eq.Scalar, out, elements, test_element)


@planner("isin.Scalar_Tensor")
def _number_isin(
    p: PlanBuilder,
    out: torch.Tensor,
    element: Scalar,
    test_elements: torch.Tensor,
    *,
    assume_unique: bool = False,
    invert: bool = False,
) -> None:
    found = p.call(aten.any.default, p.call(aten.eq.Scalar, test_elements, element))
    p.call_out(aten.logical_not.default if invert else aten.clone.default, out, found)


@planner("isin.Tensor_Tensor", cpu_tensors="upload")
def _isin(
    p: PlanBuilder,
    out: torch.Tensor,
    elements: torch.Tensor,
    test_elements: torch.Tensor,
    *,
    assume_unique: bool = False,
    invert: bool = False,
) -> None:
    n, count = elements.numel(), test_elements.numel()
    if n == 0:
        return
    target = out if out.is_contiguous() else p.empty_like(out)
    compute = torch.result_type(elements, test_elements)
    if compute.is_complex:
        raise Unsupported("complex elements")
    if count == 0:
        p.fill(out, invert)
        return
    kernel = kernels.isin_kernel(
        element_type(elements.dtype).name,
        element_type(test_elements.dtype).name,
        element_type(compute).compute,
        invert,
        p.form,
    )
    groups, chunk = _deal(p, n, max(1, min(1024, count // 8)))
    p.launch(kernel, (groups,), [target, p.contiguous(elements), p.contiguous(test_elements), count, n, chunk])
    if target is not out:
        p.copy(out, target)


# ---- counts ----


@composite("bincount")
def _bincount(self: torch.Tensor, weights: torch.Tensor | None = None, minlength: int = 0) -> torch.Tensor:
    if minlength < 0:
        raise RuntimeError("minlength should be >= 0")
    if self.dim() != 1 or self.is_floating_point() or self.is_complex() or (self.numel() and int(self.min()) < 0):
        raise RuntimeError("bincount only supports 1-d non-negative integral inputs.")
    if weights is not None and weights.shape != self.shape:
        raise RuntimeError("weights should be 1-d and have the same length as input")
    size = max(minlength, int(self.max()) + 1 if self.numel() else 0)
    if weights is None or not self.numel():
        weights = torch.ones((), dtype=torch.int64, device=self.device).expand(self.shape)
    elif weights.dtype not in (torch.float32, torch.float64):
        weights = weights.double()
    return torch.zeros(size, dtype=weights.dtype, device=self.device).scatter_add_(0, self.long(), weights)


@composite("histc")
def _histc(self: torch.Tensor, bins: int = 100, min: complex = 0, max: complex = 0) -> torch.Tensor:
    if bins <= 0:
        raise RuntimeError("bins must be > 0")
    low, high = float(min.real), float(max.real)
    x = self.reshape(-1)
    if low == high and x.numel():
        low, high = float(x.min()), float(x.max())
    if low == high:
        low, high = low - 1, high + 1
    if not (math.isfinite(low) and math.isfinite(high)):
        raise RuntimeError(f"range of [{low}, {high}] is not finite")
    if low > high:
        raise RuntimeError("max must be larger than min")
    inside = (x >= low) & (x <= high)
    place = ((x - low) * bins / (high - low)).clamp(0, bins - 1)  # rounded after each step, as on torch's CPU
    place = torch.where(inside, place, 0).long()
    return torch.zeros(bins, dtype=self.dtype, device=self.device).scatter_add_(0, place, inside.to(self.dtype))


@composite("repeat_interleave.Tensor")
def _repeat_interleave(repeats: torch.Tensor, *, output_size: int | None = None) -> torch.Tensor:
    if repeats.dim() != 1:
        raise RuntimeError("repeat_interleave only accept 1D vector as repeat")
    if repeats.dtype not in (torch.int64, torch.int32):
        raise RuntimeError("repeats has to be Long or Int tensor")
    if repeats.numel() == 0:
        return torch.empty_like(repeats)
    if int(repeats.min()) < 0:
        raise RuntimeError("repeats can not be negative")
    ends = repeats.cumsum(0)
    size = int(ends[-1]) if output_size is None else output_size
    places = torch.arange(size, dtype=ends.dtype, device=repeats.device)
    return torch.searchsorted(ends, places, right=True).to(repeats.dtype)
