"""Planners of reductions: how the reductions of `kernels.reduce` are laid over tensors.

`plan_reduction` sees an input as kept and reduced dimensions, merges those that lie together in memory, and chooses the
kernel by the dimension that is fastest in memory. Inputs with more levels than the kernels walk are copied first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from torchgraft.codegen import ceil_div, element_type
from torchgraft.codegen.loops import FEW, GROUP, LANES, WIDTH
from torchgraft.codegen.types import BY_NAME
from torchgraft.kernels import reduce as kernels
from torchgraft.kernels import softmax
from torchgraft.kernels.reduce import Reduction
from torchgraft.plans import OtherOut, PlanBuilder, Scalar, Unsupported, composite, other_out, planner, versions
from torchgraft.plans.grid import Grid
from torchgraft.plans.refusals import check_out_dtype, dtype_name, refuse_dtype

aten = torch.ops.aten

# CPU form: below this many elements one thread is as quick as two; a part of a long row is not shorter than this.
_SMALL = 32768
_ROW_PART = 16384
# So many parts on a GPU are added up by a group for each result.
_MANY_PARTS = 32
# Rows shorter than this are reduced side by side, as columns. By CPUs, rows with a single accumulator are gone along
# as soon as they fill the widest register.
_SHORT_ROW, _SHORT_SIMPLE_ROW = 32, 16
_COLUMN_BYTES = 32768  # accumulators of one block of columns
# Columns of up to so many elements are shared out rather than parts of them, which would have to be added up, if there
# are at most so many in all.
_LOW, _CACHED = 512, 1 << 20
_COLUMNS_PART = 32768  # elements of a part of columns, unless there is less for each core


@dataclass(frozen=True)
class _Level:
    """A run of dimensions that is walked with one stride: of the input, and of the outputs (0 for reduced ones)."""

    size: int
    stride: int
    out_stride: int


def _merge(levels: Sequence[_Level]) -> list[_Level]:
    """Merges neighbours, outer first, that one stride can walk."""
    merged: list[_Level] = []
    for level in levels:
        if level.size == 1:
            continue
        if merged:
            outer = merged[-1]
            if outer.stride == level.size * level.stride and outer.out_stride == level.size * level.out_stride:
                merged[-1] = _Level(outer.size * level.size, level.stride, level.out_stride)
                continue
        merged.append(level)
    return merged


def reduced_dims(ndim: int, dims: int | Sequence[int] | None, empty_is_all: bool = True) -> list[int]:
    """The dimensions to reduce, as non-negative numbers in ascending order."""
    if ndim > 64:
        raise RuntimeError("only tensors with up to 64 dims are supported")
    if isinstance(dims, int):
        dims = [dims]
    if dims is None or (empty_is_all and len(dims) == 0):
        return list(range(ndim))
    return sorted({d % ndim if ndim else 0 for d in dims} & set(range(ndim)))


@dataclass(frozen=True)
class _Geometry:
    kept: tuple[_Level, _Level]
    reduced: tuple[_Level, _Level]

    @property
    def outputs(self) -> int:
        return self.kept[0].size * self.kept[1].size

    @property
    def count(self) -> int:
        return self.reduced[0].size * self.reduced[1].size


_ONE = _Level(1, 0, 0)


def _pair(levels: list[_Level]) -> tuple[_Level, _Level]:
    if len(levels) == 2:
        return levels[0], levels[1]
    return _ONE, levels[0] if levels else _ONE


def _geometry(x: torch.Tensor, out: torch.Tensor, dims: list[int], ordered: bool) -> _Geometry | None:
    """The input's four loops; None if it needs more of them.

    Args:
        x: the input.
        out: one of the outputs, with or without the reduced dimensions.
        dims: dimensions to reduce.
        ordered: reduced elements must be met in the tensor's order, since they are numbered.
    """
    kept_dims = [d for d in range(x.dim()) if d not in dims]
    out_strides = [out.stride(d) for d in kept_dims] if out.dim() == x.dim() else list(out.stride())
    kept = [_Level(x.size(d), x.stride(d), s) for d, s in zip(kept_dims, out_strides, strict=True)]
    reduced = [_Level(x.size(d), x.stride(d), 0) for d in dims]
    # With out_stride 0 the merging of reduced levels looks at the input's strides alone.
    kept.sort(key=lambda level: -level.stride)
    if not ordered:
        reduced.sort(key=lambda level: -level.stride)
    kept, reduced = _merge(kept), _merge(reduced)
    if len(kept) > 2 or len(reduced) > 2:
        return None
    return _Geometry(_pair(kept), _pair(reduced))


def plan_reduction(
    p: PlanBuilder,
    reduction: Reduction,
    outs: Sequence[torch.Tensor],
    x: torch.Tensor,
    dims: list[int],
    values: Sequence[Any] = (),
    others: Sequence[torch.Tensor] = (),
) -> None:
    """Adds a reduction to a plan.

    Args:
        p: the plan.
        reduction: what to accumulate.
        outs: specs of its results, with or without the reduced dimensions.
        x: the input.
        dims: dimensions to reduce, see `reduced_dims`.
        values: numbers for `reduction.values`.
        others: inputs for `reduction.others`; those of kind "same" must have x's shape and strides.
    """
    if outs[0].numel() == 0:
        return
    targets = list(outs)
    if any(out.stride() != outs[0].stride() for out in outs):
        targets = [out if out.is_contiguous() else p.empty_like(out) for out in outs]
    if not others:
        x = p.contiguous(x) if x.is_conj() or x.is_neg() else x
        if x.numel() == 0:  # nothing for each result; strides of no elements need not merge
            x = p.empty([n if d not in dims else int(d != dims[0]) for d, n in enumerate(x.shape)], x.dtype)
    geometry = _geometry(x, targets[0], dims, bool(reduction.index))
    if geometry is None:
        if others:
            raise Unsupported("inputs of several dimensions that do not lie together")
        kept_dims = [d for d in range(x.dim()) if d not in dims]
        order = kept_dims + dims
        moved = p.contiguous(x.permute(order))
        flat = targets[0] if targets[0].dim() < x.dim() or not dims else targets[0].permute(order)
        geometry = _geometry(moved, flat, list(range(len(kept_dims), x.dim())), bool(reduction.index))
        if geometry is None:  # the result's own strides do not merge
            temporaries = [p.empty(out.shape, out.dtype) for out in targets]
            plan_reduction(p, reduction, temporaries, moved.permute(_inverse(order)), dims, values)
            for out, temporary in zip(outs, temporaries, strict=True):
                p.copy(out, temporary)
            return
        x = moved
    _reduce(p, reduction, targets, x, geometry, values, others)
    for out, target in zip(outs, targets, strict=True):
        if out is not target:
            p.copy(out, target)


def _inverse(order: list[int]) -> list[int]:
    return [order.index(d) for d in range(len(order))]


def _is_row(p: PlanBuilder, r: Reduction, g: _Geometry) -> bool:
    """Whether to go along the reduced dimension rather than along the kept one."""
    kept, reduced = g.kept[1], g.reduced[1]
    if kept.size < 16:
        touching = kept.size > 1 and kept.stride == 1 and reduced.stride == kept.size
        return not (touching and p.form == "cpu" and r.takes_elements_alone)
    if g.count < (_SHORT_SIMPLE_ROW if p.form == "cpu" and len(r.fields) == 1 else _SHORT_ROW):
        return False
    return reduced.stride < kept.stride or kept.stride == 0


def _is_short(p: PlanBuilder, g: _Geometry) -> bool:
    """Whether the rows are contiguous, have few vectors, and their outputs lie side by side."""
    (k0, k1), (r0, r1) = g.kept, g.reduced
    contiguous = k0.size == 1 and r0.size == 1 and r1.stride == 1 and k1.stride == r1.size and k1.out_stride == 1
    short = p.form == "cpu" and p.device.outer_vectors and r1.size <= 4 * p.layout.simd_width
    return contiguous and short and (p.is_flat(k1.size, r1.size) or r1.size >= p.layout.simd_width)


@dataclass(frozen=True)
class _Share:
    """How a reduction is dealt out.

    Attributes:
        groups: of outputs.
        chunk: outputs of a group of the CPU form.
        part: elements that a group has of a row.
        short: part of which sums need no cascade.
        width: outputs side by side.
    """

    groups: int
    chunk: int
    part: int
    short: int
    width: int = WIDTH


def _share_cpu(p: PlanBuilder, r: Reduction, g: _Geometry) -> _Share:
    units = p.device.compute_units
    groups = 32 * units
    work = g.outputs * g.count
    parts = 1
    if _is_row(p, r, g):
        if work > _SMALL and g.outputs < groups // 2:
            parts = max(1, min(ceil_div(groups, g.outputs), g.count // _ROW_PART))
        part = g.count if parts == 1 else ceil_div(ceil_div(g.count, parts), 4096) * 4096
        chunk = g.outputs if work <= _SMALL else ceil_div(g.outputs, groups)
        return _Share(ceil_div(g.outputs, chunk), chunk, part, 64 * LANES)
    size = sum(BY_NAME[type_].size for _, type_, _ in r.fields)
    width = max(64, min(2048, _COLUMN_BYTES // size // 64 * 64))
    row = g.kept[1].size
    across = ceil_div(row, width)
    low = work <= _CACHED and g.count <= _LOW
    if low and work > _SMALL:
        across = max(across, min(ceil_div(8 * units, g.kept[0].size), row // 64))
    chunk = min(row, ceil_div(ceil_div(row, across), 16) * 16)
    blocks = g.kept[0].size * ceil_div(row, chunk)
    if work > _SMALL and blocks < (2 if low else 8) * units:
        parts = max(1, min(ceil_div(groups, blocks), g.count // 16, max(2 * units, work // _COLUMNS_PART)))
    return _Share(blocks, chunk, ceil_div(g.count, parts), 64, width)


def _share_gpu(p: PlanBuilder, r: Reduction, g: _Geometry) -> _Share:
    wanted = 8 * p.device.compute_units
    blocks, least, short = g.outputs, 4096, 64 * GROUP
    if not _is_row(p, r, g):
        blocks, least, wanted, short = ceil_div(g.outputs, FEW), 64, 4 * wanted, 64
    parts = max(1, min(ceil_div(wanted, blocks), g.count // least))
    return _Share(blocks, 1, ceil_div(g.count, parts), short)


def _reduce(
    p: PlanBuilder,
    r: Reduction,
    outs: list[torch.Tensor],
    x: torch.Tensor,
    g: _Geometry,
    values: Sequence[Any],
    others: Sequence[torch.Tensor],
) -> None:
    given: dict[str, Any] = {name: value for (name, _), value in zip(r.values, values, strict=True)}
    given |= {"os0": g.kept[0].out_stride, "os1": g.kept[1].out_stride}
    results = {f"out{n}": out for n, out in enumerate(outs)}
    sources = {f"in_{name}": other for (name, _, _), other in zip(r.others, others, strict=True)}
    type_ = element_type(x.dtype).name
    if _is_short(p, g):
        layout, grid = p.along_rows(g.outputs, g.count)
        kernel = kernels.reduce_kernel(replace(r, cascade=False), type_, layout, WIDTH, False)
        p.launch(kernel, grid, input=x, **sources, **results, **given)
        return
    share = _share_gpu(p, r, g) if p.form == "gpu" else _share_cpu(p, r, g)
    parts = max(1, ceil_div(g.count, max(1, share.part)))
    if share.part <= share.short:
        r = replace(r, cascade=False)
    (k0, k1), (r0, r1), row = g.kept, g.reduced, _is_row(p, r, g)
    layout = replace(p.layout, across=not row, unit=(r1 if row else k1).stride == 1, runs=True)
    shape = {"outer": k0.size, "outer_stride": k0.stride, "inner": k1.size, "inner_stride": k1.stride}
    shape |= {"size": g.count, "run": max(1, r1.size), "run_stride": r0.stride, "stride": r1.stride}
    deal = {"span": 1, "chunk": share.chunk} if row else {"span": share.chunk, "chunk": 1}
    grid = Grid((share.groups, parts), {**shape, **deal, "part": share.part})
    targets = results
    if parts > 1:
        targets = {f"part_{name}": p.empty((parts * g.outputs,), BY_NAME[type_].dtype) for name, type_, _ in r.fields}
    kernel = kernels.reduce_kernel(r, type_, layout, share.width, parts > 1)
    p.launch(kernel, grid, input=x, **sources, **targets, **given)
    if parts > 1:
        r = replace(r, cascade=False, others=r.kept_for_results(), index="")
        kept = {f"in_{name}": sources[f"in_{name}"] for name, _, _ in r.others}
        sizes = {"inner": k1.size, "count": g.count}
        if p.form == "gpu" and parts >= _MANY_PARTS:
            kernel, grid = kernels.combine_many_kernel(r), p.long_rows(g.outputs, parts)
        else:
            kernel, grid = kernels.combine_kernel(r, p.form), p.walk(g.outputs, parts)
            sizes["parts"] = parts
        p.launch(kernel, grid, **targets, **kept, **results, **given, **sizes)


# ---- sums ----


def converted(p: PlanBuilder, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The input of a sum or product of a dtype: as torch's CPU, fractions and imaginary parts are cut off before.
    Kernels convert from one real type to another, not from one complex type to another."""
    cut = x.is_floating_point() and not (dtype.is_floating_point or dtype.is_complex)
    complex_differs = dtype != x.dtype and (dtype.is_complex or x.is_complex())
    return p.cast(x, dtype) if cut or complex_differs else x


def _sum(
    p: PlanBuilder, out: torch.Tensor, x: torch.Tensor, dims: list[int], mean: bool = False, nan: bool = False
) -> None:
    to = element_type(out.dtype)
    x = converted(p, x, out.dtype)
    if out.dtype == torch.bool:
        plan_reduction(p, kernels.truth(False, x.is_complex()), [out], x, dims)
        return
    if not to.is_integer and x.dtype == torch.float64 and out.dtype != torch.float64:
        x = p.cast(x, out.dtype)
    plan_reduction(p, kernels.total(to.accumulate, to.name, mean, nan), [out], x, dims)


def _check_dtype_of_out(dtype: torch.dtype | None = None, out: torch.Tensor | None = None, **_: Any) -> None:
    if dtype is not None and out is not None:
        check_out_dtype(dtype, out.dtype, exact=True)


@planner("sum", refuses=OtherOut(but_untyped=True))
def sum_all(p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, *, dtype: torch.dtype | None = None) -> None:
    _sum(p, out, self, reduced_dims(self.dim(), None))


@planner("sum.dim_IntList", refuses=OtherOut(but_untyped=True))
def sum_dim(
    p: PlanBuilder,
    out: torch.Tensor,
    self: torch.Tensor,
    dim: Sequence[int] | None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> None:
    _sum(p, out, self, reduced_dims(self.dim(), dim))


def _nansum_meta(
    self: torch.Tensor, dim: Sequence[int] | None, keepdim: bool, dtype: torch.dtype | None
) -> torch.Tensor:
    """torch's own takes no dimensions for none to be reduced, as no other op does."""
    result: torch.Tensor = aten.nansum.default(self, dim or None, keepdim, dtype=dtype)
    return result


def _check_nansum(
    self: torch.Tensor, dtype: torch.dtype | None = None, out: torch.Tensor | None = None, **_: Any
) -> None:
    """Sums are in the dtype of `out=`, of which torch's CPU has those of floating-point numbers."""
    if out is not None and self.is_floating_point() and not out.is_floating_point():
        refuse_dtype("nansum_cpu", out.dtype)
    _check_dtype_of_out(dtype, out)


@composite("nansum.out", when=lambda self, **_: not (self.is_floating_point() or self.is_complex()))
def _nansum_of_integers(
    self: torch.Tensor, dim: list[int] | None, keepdim: bool, *, dtype: torch.dtype | None, out: torch.Tensor
) -> torch.Tensor:
    """The sum, in the dtype of `out=`."""
    return self.sum(dim, keepdim, dtype=dtype or out.dtype)


@planner("nansum", meta=_nansum_meta, refuses=_check_nansum)
def nansum(
    p: PlanBuilder,
    out: torch.Tensor,
    self: torch.Tensor,
    dim: Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> None:
    if self.is_complex():
        raise Unsupported("nansum of complex numbers")
    _sum(p, out, self, reduced_dims(self.dim(), dim), nan=self.is_floating_point())


@planner("mean", refuses=_check_dtype_of_out)
def mean_all(p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, *, dtype: torch.dtype | None = None) -> None:
    _sum(p, out, self, reduced_dims(self.dim(), None), mean=True)


@composite("mean.out", when=lambda self, out, **_: out.is_floating_point() and self.is_complex())
def _real_mean(*args: Any, out: torch.Tensor, **kwargs: Any) -> torch.Tensor:
    """Of complex numbers a real `out=` gets the real part, as on torch's CPU."""
    mean: torch.Tensor = aten.mean.dim(*args, **kwargs)
    return mean.real


@planner("mean.dim", refuses=_check_dtype_of_out)
def mean_dim(
    p: PlanBuilder,
    out: torch.Tensor,
    self: torch.Tensor,
    dim: Sequence[int] | None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> None:
    _sum(p, out, self, reduced_dims(self.dim(), dim), mean=True)


def _prod(p: PlanBuilder, out: torch.Tensor, x: torch.Tensor, dims: list[int]) -> None:
    to = element_type(out.dtype)
    x = converted(p, x, out.dtype)
    if out.dtype == torch.bool:
        plan_reduction(p, kernels.truth(True, x.is_complex()), [out], x, dims)
        return
    plan_reduction(p, kernels.product(to.accumulate, to.name), [out], x, dims)


@planner("prod", refuses=OtherOut(but_untyped=True))
def prod_all(p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, *, dtype: torch.dtype | None = None) -> None:
    _prod(p, out, self, reduced_dims(self.dim(), None))


@planner("prod.dim_int", refuses=OtherOut(but_untyped=True))
def prod_dim(
    p: PlanBuilder,
    out: torch.Tensor,
    self: torch.Tensor,
    dim: int,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> None:
    _prod(p, out, self, reduced_dims(self.dim(), dim))


# ---- sums of exponentials ----


def _check_log_sum_exp(
    self: torch.Tensor, dim: Sequence[int], keepdim: bool = False, out: torch.Tensor | None = None
) -> None:
    # Of no dimensions all are summed over, and the largest element is left with all of them.
    if not dim and not keepdim and self.dim() and self.numel():
        raise RuntimeError(f"output with shape [] doesn't match the broadcast shape {[1] * self.dim()}")
    if out is not None and not (out.is_floating_point() or out.is_complex()):
        raise RuntimeError(
            f"logsumexp(): Expected floating point type for result tensor, but got: {dtype_name(out.dtype)}"
        )


@composite(
    "logsumexp",
    "logsumexp.out",
    when=lambda self, out=None, **_: self.is_complex() or (out is not None and out.is_complex()),
    refuses=_check_log_sum_exp,
)
def _log_sum_exp_of_complex(
    self: torch.Tensor, dim: list[int], keepdim: bool = False, *, out: torch.Tensor | None = None
) -> torch.Tensor:
    """The largest real part is what is taken out. The sums are of the type of `out`, which may have no logarithm of
    them, as on torch's CPU."""
    dims = reduced_dims(self.dim(), dim)
    if not (self.is_complex() or self.is_floating_point()):
        self = self.to(torch.get_default_dtype())
    if self.numel() == 0:
        top = torch.zeros((), device=self.device)
    else:
        top = torch.amax(self.real, dims, keepdim=True)
        top = torch.where(top.isinf(), 0, top)
    sums = (self - top).exp().sum(dims, keepdim)
    if out is not None:
        sums = sums.to(out.dtype)
    return sums.log() + (top.squeeze(dims) if top.dim() and not keepdim else top)


def _has_more_digits(self: torch.Tensor, out: torch.Tensor, **_: Any) -> bool:
    """Whether `out` is of a floating-point type that has all numbers of the operand's, and more."""
    both = torch.promote_types(self.dtype, out.dtype)
    return self.is_floating_point() and both == out.dtype != self.dtype and out.is_floating_point()


@composite("logsumexp.out", when=_has_more_digits, refuses=_check_log_sum_exp)
def _log_sum_exp_with_more_digits(
    self: torch.Tensor, dim: list[int], keepdim: bool = False, *, out: torch.Tensor
) -> torch.Tensor:
    """The sums are of the type of `out`, which is not to have what was rounded to the operand's."""
    return torch.logsumexp(self.to(out.dtype), dim, keepdim)


@planner("logsumexp", refuses=_check_log_sum_exp)
def log_sum_exp(
    p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, dim: Sequence[int], keepdim: bool = False
) -> None:
    x = self if self.is_floating_point() else p.cast(self, torch.get_default_dtype())
    dims = reduced_dims(x.dim(), dim)
    if _log_sum_exp_of_rows(p, out, x, dims):
        return
    reduction = kernels.log_sum_exp(element_type(x.dtype).accumulate, element_type(out.dtype).name)
    plan_reduction(p, reduction, [out], x, dims)


def _log_sum_exp_of_rows(p: PlanBuilder, out: torch.Tensor, x: torch.Tensor, dims: list[int]) -> bool:
    """Plans it in two passes if a CPU's nearest cache holds a row in between: one exponential less."""
    rows, size = x.shape[: x.dim() - len(dims)].numel(), math.prod(x.shape[d] for d in dims)
    if p.form != "cpu" or dims != [*range(x.dim() - len(dims), x.dim())] or not 0 < size <= softmax.HELD:
        return False
    if not (x.is_contiguous() and out.is_contiguous()) or x.is_neg() or rows == 0 or p.is_flat(rows, size):
        return False
    layout, grid = p.along_rows(rows, size, 2)
    kernel = softmax.log_sum_exp_kernel(layout, element_type(x.dtype).name, element_type(out.dtype).name)
    p.launch(kernel, grid, x=x, out=out)
    return True


@planner("count_nonzero.dim_IntList", meta=lambda self, dim: torch.sum(self, dim, dtype=torch.int64))
def count_nonzero(p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, dim: Sequence[int]) -> None:
    plan_reduction(p, kernels.nonzeros(self.is_complex()), [out], self, reduced_dims(self.dim(), dim))


# ---- extremes ----


def _compute_type(x: torch.Tensor) -> str:
    if x.is_complex():
        raise Unsupported("order of complex numbers")
    return element_type(x.dtype).compute


def _extreme(p: PlanBuilder, out: torch.Tensor, x: torch.Tensor, dims: list[int], greater: bool) -> None:
    plan_reduction(p, kernels.extreme(_compute_type(x), element_type(out.dtype).name, greater), [out], x, dims)


def check_some(name: str, x: torch.Tensor, dim: int | Sequence[int] | None) -> list[int]:
    """The dimensions to reduce; refuses to choose among no elements.

    Raises:
        IndexError: a dimension that is named has no elements.
        RuntimeError: none is named, and the tensor is empty.
    """
    dims = reduced_dims(x.dim(), dim)
    for d in dims if x.dim() else []:
        if x.size(d) == 0 and dim is not None and (isinstance(dim, int) or len(dim) > 0):
            raise IndexError(f"{name}(): Expected reduction dim {d} to have non-zero size.")
    if x.numel() == 0 and (dim is None or dim in ([], ())):
        raise RuntimeError(
            f"{name}(): Expected reduction dim to be specified for input.numel() == 0. "
            "Specify the reduction dim with the 'dim' argument."
        )
    return dims


def _extreme_meta(op: torch._ops.OpOverload, name: str) -> Callable[..., Any]:
    """torch's meta functions raise RuntimeError where its CPU raises IndexError."""

    def meta(self: torch.Tensor, dim: int | Sequence[int] | None, keepdim: bool) -> Any:
        check_some(name, self, dim)
        return op(self, dim=dim, keepdim=keepdim)

    return meta


def _check_alike(self: torch.Tensor, out: torch.Tensor | None = None, **_: Any) -> None:
    if out is not None and out.dtype != self.dtype:
        raise RuntimeError(
            f"Expected the dtype for input and out to match, but got {dtype_name(self.dtype)} for input's dtype and "
            f"{dtype_name(out.dtype)} for out's dtype."
        )


@planner("amax", meta=_extreme_meta(aten.amax.default, "amax"), refuses=(_check_alike, other_out))
def amax(p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, dim: Sequence[int] = (), keepdim: bool = False) -> None:
    _extreme(p, out, self, reduced_dims(self.dim(), dim), True)


@planner("amin", meta=_extreme_meta(aten.amin.default, "amin"), refuses=(_check_alike, other_out))
def amin(p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, dim: Sequence[int] = (), keepdim: bool = False) -> None:
    _extreme(p, out, self, reduced_dims(self.dim(), dim), False)


@planner("max", refuses=())
def max_all(p: PlanBuilder, out: torch.Tensor, self: torch.Tensor) -> None:
    _extreme(p, out, self, check_some("max", self, None), True)


@planner("min", refuses=())
def min_all(p: PlanBuilder, out: torch.Tensor, self: torch.Tensor) -> None:
    _extreme(p, out, self, check_some("min", self, None), False)


_RESULTS_APART = "aminmax(): the `min` and `max` out= tensors must not overlap." if versions.HERE >= (2, 15) else ""


@planner("aminmax", meta=_extreme_meta(aten.aminmax.default, "aminmax"), refuses=OtherOut(apart=_RESULTS_APART))
def aminmax(
    p: PlanBuilder, out: tuple[torch.Tensor, ...], self: torch.Tensor, *, dim: int | None = None, keepdim: bool = False
) -> None:
    reduction = kernels.extremes(_compute_type(self), element_type(out[0].dtype).name)
    plan_reduction(p, reduction, out, self, reduced_dims(self.dim(), dim))


def _index_reduction(x: torch.Tensor, dims: list[int], greater: bool, out_type: str, with_value: bool) -> Reduction:
    count = math.prod(x.size(d) for d in dims)
    wide = x.element_size() == 8 or count >= 2**31 - 1
    return kernels.extreme_index(_compute_type(x), out_type, greater, "i64" if wide else "i32", with_value)


def _arg(p: PlanBuilder, out: torch.Tensor, x: torch.Tensor, dim: int | None, greater: bool) -> None:
    dims = reduced_dims(x.dim(), dim)
    plan_reduction(p, _index_reduction(x, dims, greater, "i64", False), [out], x, dims)


def _arg_meta(op: torch._ops.OpOverload, name: str) -> Callable[..., torch.Tensor]:
    def meta(self: torch.Tensor, dim: int | None, keepdim: bool) -> torch.Tensor:
        if self.dtype == torch.bool or self.is_complex():
            if self.is_complex():
                raise versions.COMPLEX_REFUSED(f"{name}(): does not support complex input")
            raise versions.DTYPES_REFUSED(f"{name}(): does not support bool input")
        if dim is None and self.numel() == 0:
            raise IndexError(f"{name}(): Expected reduction dim to be specified for input.numel() == 0.")
        check_some(name, self, dim)
        result: torch.Tensor = op(self, dim, keepdim)
        return result

    return meta


@planner("argmax", meta=_arg_meta(aten.argmax.default, "argmax"))
def argmax(
    p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, dim: int | None = None, keepdim: bool = False
) -> None:
    _arg(p, out, self, dim, True)


@planner("argmin", meta=_arg_meta(aten.argmin.default, "argmin"))
def argmin(
    p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, dim: int | None = None, keepdim: bool = False
) -> None:
    _arg(p, out, self, dim, False)


def _extreme_dim(p: PlanBuilder, out: tuple[torch.Tensor, ...], x: torch.Tensor, dim: int, greater: bool) -> None:
    dims = check_some("max" if greater else "min", x, dim)
    plan_reduction(p, _index_reduction(x, dims, greater, element_type(out[0].dtype).name, True), out, x, dims)


@planner("max.dim")
def max_dim(p: PlanBuilder, out: tuple[torch.Tensor, ...], self: torch.Tensor, dim: int, keepdim: bool = False) -> None:
    _extreme_dim(p, out, self, dim, True)


@planner("min.dim")
def min_dim(p: PlanBuilder, out: tuple[torch.Tensor, ...], self: torch.Tensor, dim: int, keepdim: bool = False) -> None:
    _extreme_dim(p, out, self, dim, False)


# ---- truth ----


def _truth(p: PlanBuilder, out: torch.Tensor, x: torch.Tensor, dims: list[int], every: bool) -> None:
    plan_reduction(p, kernels.truth(every, x.is_complex(), element_type(out.dtype).name), [out], x, dims)


def _declare_truth(name: str, every: bool) -> None:
    def over_all(p: PlanBuilder, out: torch.Tensor, self: torch.Tensor) -> None:
        _truth(p, out, self, reduced_dims(self.dim(), None), every)

    def over_dim(p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, dim: int, keepdim: bool = False) -> None:
        _truth(p, out, self, reduced_dims(self.dim(), dim), every)

    def over_dims(
        p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, dim: Sequence[int] | None = None, keepdim: bool = False
    ) -> None:
        _truth(p, out, self, reduced_dims(self.dim(), dim, empty_is_all=False), every)

    def check(out: torch.Tensor | None = None, **_: Any) -> None:
        if out is not None and out.dtype not in (torch.bool, torch.uint8):
            raise RuntimeError(f"{name} only supports bool tensor for result, got: {dtype_name(out.dtype)}")

    # The functional forms' meta functions: that of out= refuses truth of bytes.
    op = getattr(aten, name)
    refuses = (check, OtherOut(but_bytes=True))
    planner(name, refuses=refuses, meta=op.default)(over_all)
    planner(f"{name}.dim", refuses=refuses, meta=op.dim)(over_dim)
    planner(f"{name}.dims", refuses=refuses, meta=op.dims)(over_dims)


_declare_truth("any", False)
_declare_truth("all", True)


# ---- moments ----


def _variance(
    p: PlanBuilder, outs: Sequence[torch.Tensor], x: torch.Tensor, dim: Any, correction: Scalar | None, root: bool
) -> None:
    if not (x.is_floating_point() or x.is_complex()):
        raise versions.DTYPES_REFUSED("std and var only support floating point and complex dtypes")
    if x.is_complex():
        _complex_variance(p, outs, x, dim, correction, root)
        return
    type_ = element_type(outs[0].dtype)
    reduction = kernels.variance(type_.accumulate, type_.name, root, len(outs) == 2)
    plan_reduction(p, reduction, outs, x, reduced_dims(x.dim(), dim), [1 if correction is None else correction])


def _complex_variance(
    p: PlanBuilder, outs: Sequence[torch.Tensor], x: torch.Tensor, dim: Any, correction: Scalar | None, root: bool
) -> None:
    """The sum of the variances of both parts."""
    dims = reduced_dims(x.dim(), dim)
    parts = torch.view_as_real(p.contiguous(x))
    both = p.empty([n for d, n in enumerate(parts.shape) if d not in dims], parts.dtype)
    type_ = element_type(outs[0].dtype)
    variance = kernels.variance(type_.accumulate, type_.name, False, False)
    plan_reduction(p, variance, [both], parts, dims, [1 if correction is None else correction])
    total = kernels.total(type_.accumulate, type_.name)
    if root:
        total = replace(total, name=f"root_{total.name}", results=((type_.name, "sqrt(A.sum)"),))
    plan_reduction(p, total, [outs[0].view(both.shape[:-1])], both, [both.dim() - 1])
    if len(outs) == 2:
        _sum(p, outs[1], x, dims, mean=True)


def _check_variance_out(
    self: torch.Tensor, dim: Sequence[int] | None, out: torch.Tensor | None = None, **_: Any
) -> None:
    """Torch's CPU sums in the dtype of `out=`, but all elements at once by a kernel that has neither 16-bit numbers nor
    a way to them."""
    x = self
    if out is None or x.is_complex() or out.dtype == x.dtype:
        return
    whole = len(reduced_dims(x.dim(), dim)) == x.dim()
    if whole and x.numel() and x.element_size() == 2 and not (out.is_floating_point() and out.element_size() == 2):
        raise RuntimeError(f"std_var_all: Unsupported dtype {dtype_name(x.dtype)}")
    if out.is_complex() and not whole:
        refuse_dtype("std_cpu", out.dtype)


def _declare_variance(name: str, root: bool, with_mean: bool) -> Callable[..., None]:
    @planner(f"{name}.correction", refuses=_check_variance_out)
    def plan(
        p: PlanBuilder,
        out: Any,
        self: torch.Tensor,
        dim: Sequence[int] | None = None,
        *,
        correction: Scalar | None = None,
        keepdim: bool = False,
    ) -> None:
        _variance(p, out if with_mean else [out], self, dim, correction, root)

    return plan


for _name in ("var", "std"):
    _declare_variance(_name, _name == "std", False)
    _declare_variance(f"{_name}_mean", _name == "std", True)


# ---- norms ----


def _norm(p: PlanBuilder, out: torch.Tensor, x: torch.Tensor, order: Scalar | float | None, dims: list[int]) -> None:
    value = 2.0 if order is None else float(order)
    if x.is_complex():
        x = p.cast(x, out.dtype.to_complex())
    elif x.dtype == torch.float64:
        x = p.cast(x, out.dtype)
    known = {0.0: "0", 1.0: "1", 2.0: "2", math.inf: "inf", -math.inf: "-inf"}
    kind = known.get(value, "p")
    type_ = element_type(out.dtype)
    reduction = kernels.norm(kind, type_.accumulate, type_.name, x.is_complex())
    plan_reduction(p, reduction, [out], x, dims, [value] if kind == "p" else [])


def _vector_norm_meta(
    self: torch.Tensor,
    ord: float,
    dim: Sequence[int] | None,
    keepdim: bool,
    dtype: torch.dtype | None,
) -> torch.Tensor:
    """torch's own refuses a norm without identity of any empty tensor, also where what is reduced has elements."""
    dims = reduced_dims(self.dim(), dim)
    some = [n or int(d not in dims) for d, n in enumerate(self.shape)]
    result: torch.Tensor = aten.linalg_vector_norm.default(self.new_empty(some), ord, dim, keepdim, dtype=dtype)
    shape = [1 if d in dims else n for d, n in enumerate(self.shape) if keepdim or d not in dims]
    return result.new_empty(shape)


@planner("linalg_vector_norm", meta=_vector_norm_meta)
def vector_norm(
    p: PlanBuilder,
    out: torch.Tensor,
    self: torch.Tensor,
    ord: Scalar | float = 2,
    dim: Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> None:
    _norm(p, out, self, ord, reduced_dims(self.dim(), dim))


@planner("norm.ScalarOpt_dim")
def norm_dim(
    p: PlanBuilder,
    out: torch.Tensor,
    self: torch.Tensor,
    order: Scalar | None,
    dim: Sequence[int],
    keepdim: bool = False,
) -> None:
    _norm(p, out, self, order, reduced_dims(self.dim(), dim))


@planner("norm.ScalarOpt_dim_dtype")
def norm_dim_dtype(
    p: PlanBuilder,
    out: torch.Tensor,
    self: torch.Tensor,
    order: Scalar | None,
    dim: Sequence[int],
    keepdim: bool = False,
    *,
    dtype: torch.dtype,
) -> None:
    _norm(p, out, self, order, reduced_dims(self.dim(), dim))


# ---- hashes ----


@composite("hash_tensor")
def _hash_tensor(self: torch.Tensor, dim: Sequence[int] = (), *, keepdim: bool = False, mode: int = 0) -> torch.Tensor:
    """The exclusive or of the bits of all elements as float64 or int64. Kernels take uint64 for int64."""
    if mode != 0:
        raise RuntimeError(f"Unknown hash_tensor mode: {mode}")
    if self.is_complex():
        raise NotImplementedError(f"hash_tensor is not implemented for {self.dtype}, on any device")
    if self.numel() == 0 and len(dim) == 0:
        raise RuntimeError("hash_tensor: specify the reduction dim with the 'dim' argument where there is no element.")
    bits = self.double().view(torch.int64) if self.is_floating_point() else self.long()
    dims = reduced_dims(self.dim(), dim)
    kept = [size for d, size in enumerate(self.shape) if d not in dims]
    shape = [1 if d in dims else size for d, size in enumerate(self.shape)] if keepdim else kept
    bits = bits.movedim(dims, list(range(-len(dims), 0))).reshape(*kept, math.prod(self.shape[d] for d in dims))
    while (count := bits.shape[-1]) > 1:
        half = count // 2
        rest = bits[..., 2 * half :]
        bits = torch.cat([bits[..., :half] ^ bits[..., half : 2 * half], rest], -1)
    whole = bits if bits.shape[-1] else bits.new_zeros(*kept, 1)
    return whole.reshape(shape).view(torch.uint64)
