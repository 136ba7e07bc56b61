"""Reductions: how what `kernels.reduce` accumulates is laid over tensors, by one table of ways.

An input is seen as kept and reduced dimensions, of which those are merged that lie together in memory: kernels walk two
levels of each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from torchgraft.codegen import ceil_div, element_type
from torchgraft.codegen.teams import LANES, WIDTH, Layout
from torchgraft.codegen.tuning import Reductions
from torchgraft.codegen.types import BY_NAME
from torchgraft.codegen.walk import FEW, GROUP
from torchgraft.kernels import reduce as kernels
from torchgraft.kernels.choice import Way, choose
from torchgraft.kernels.reduce import Reduction
from torchgraft.plans import rows
from torchgraft.plans.builder import PlanBuilder
from torchgraft.plans.grid import Grid
from torchgraft.plans.rows import Rows
from torchgraft.plans.steps import Unsupported


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


def _pair(levels: list[_Level]) -> tuple[_Level, _Level]:
    none = _Level(1, 0, 0)
    return (levels[0], levels[1]) if len(levels) == 2 else (none, levels[0] if levels else none)


@dataclass(frozen=True)
class _Geometry:
    """The four loops over an input."""

    kept: tuple[_Level, _Level]
    reduced: tuple[_Level, _Level]

    @property
    def outputs(self) -> int:
        return self.kept[0].size * self.kept[1].size

    @property
    def count(self) -> int:
        return self.reduced[0].size * self.reduced[1].size


@dataclass(frozen=True)
class _Share:
    """How a reduction is partitioned.

    Attributes:
        groups: of outputs.
        chunk: outputs of a group of the CPU form.
        part: elements that a group has of a row.
        parts: of a row.
        short: part of which sums need no cascade.
        width: outputs side by side.
    """

    groups: int
    chunk: int
    part: int
    parts: int
    short: int
    width: int = WIDTH

    def whole(self, g: _Geometry) -> _Share:
        """Of rows that are not split, should that way be left out."""
        return self if self.parts == 1 else replace(self, part=g.count, parts=1)


@dataclass(frozen=True)
class Reduced:
    """What is asked of a reduction: see `plan_reduction`."""

    p: PlanBuilder
    what: Reduction
    outs: Sequence[torch.Tensor]
    x: torch.Tensor
    dims: list[int]
    values: Sequence[Any]
    others: Sequence[torch.Tensor]

    def __str__(self) -> str:
        shape = "x".join(map(str, self.x.shape))
        return f"{self.what.name} of {self.storage}[{shape}] along {self.dims}"

    @property
    def is_cpu(self) -> bool:
        return self.p.form == "cpu"

    @property
    def sizes(self) -> Reductions:
        return self.p.device.tuning.reductions

    @property
    def storage(self) -> str:
        return element_type(self.x.dtype).name

    @cached_property
    def loops(self) -> _Geometry | None:
        """None if it needs more of them. Elements that are numbered must be met in the tensor's order."""
        x, out = self.x, self.outs[0]
        kept_dims = [d for d in range(x.dim()) if d not in self.dims]
        out_strides = [out.stride(d) for d in kept_dims] if out.dim() == x.dim() else list(out.stride())
        kept = [_Level(x.size(d), x.stride(d), s) for d, s in zip(kept_dims, out_strides, strict=True)]
        reduced = [_Level(x.size(d), x.stride(d), 0) for d in self.dims]
        # With out_stride 0 the merging of reduced levels looks at the input's strides alone.
        kept.sort(key=lambda level: -level.stride)
        if not self.what.index:
            reduced.sort(key=lambda level: -level.stride)
        kept, reduced = _merge(kept), _merge(reduced)
        return _Geometry(_pair(kept), _pair(reduced)) if len(kept) <= 2 and len(reduced) <= 2 else None

    @property
    def g(self) -> _Geometry:
        """Of what is not copied."""
        assert self.loops is not None
        return self.loops

    @cached_property
    def rows(self) -> Rows | None:
        """Contiguous ones, whose outputs lie side by side."""
        if self.loops is None:
            return None
        (k0, k1), (r0, r1) = self.g.kept, self.g.reduced
        contiguous = k0.size == 1 and r0.size == 1 and r1.stride == 1 and k1.stride == r1.size and k1.out_stride == 1
        return Rows(self.p.partitioner, k1.size, r1.size) if contiguous else None

    @cached_property
    def lies_along(self) -> bool:
        """Whether to traverse the reduced dimension rather than along the kept one."""
        kept, reduced = self.g.kept[1], self.g.reduced[1]
        if kept.size < self.sizes.columns:
            touching = kept.size > 1 and kept.stride == 1 and reduced.stride == kept.size
            return not (touching and self.is_cpu and self.what.takes_elements_alone)
        is_of_one = self.is_cpu and len(self.what.fields) == 1
        if self.g.count < (self.sizes.short_of_one if is_of_one else self.sizes.short):
            return False
        return reduced.stride < kept.stride or kept.stride == 0

    @cached_property
    def share_of_rows(self) -> _Share:
        outputs, count = self.g.outputs, self.g.count
        if not self.is_cpu:
            parts = max(1, min(ceil_div(8 * self.p.device.compute_units, outputs), count // self.sizes.gpu_part))
            return self._share(outputs, 1, ceil_div(count, parts), 64 * GROUP)
        groups, parts, is_small = 32 * self.p.device.compute_units, 1, outputs * count <= self.sizes.single
        if not is_small and outputs < groups // 2:
            parts = max(1, min(ceil_div(groups, outputs), count // self.sizes.part))
        part = count if parts == 1 else ceil_div(ceil_div(count, parts), 4096) * 4096
        chunk = outputs if is_small else ceil_div(outputs, groups)
        return self._share(ceil_div(outputs, chunk), chunk, part, 64 * LANES)

    @cached_property
    def share_of_columns(self) -> _Share:
        g, units, sizes = self.g, self.p.device.compute_units, self.sizes
        if not self.is_cpu:
            blocks = ceil_div(g.outputs, FEW)
            parts = max(1, min(ceil_div(32 * units, blocks), g.count // sizes.gpu_column_part))
            return self._share(blocks, 1, ceil_div(g.count, parts), 64)
        size = sum(BY_NAME[type_].size for _, type_, _ in self.what.fields)
        width = max(64, min(2048, sizes.column_bytes // size // 64 * 64))
        outer, row, work, parts = g.kept[0].size, g.kept[1].size, g.outputs * g.count, 1
        across = ceil_div(row, width)
        low = work <= sizes.cached and g.count <= sizes.low
        if low and work > sizes.single:
            across = max(across, min(ceil_div(8 * units, outer), row // 64))
        chunk = min(row, ceil_div(ceil_div(row, across), 16) * 16)
        blocks = outer * ceil_div(row, chunk)
        if work > sizes.single and blocks < (2 if low else 8) * units:
            most = max(2 * units, work // sizes.column_part)
            parts = max(1, min(ceil_div(32 * units, blocks), g.count // 16, most))
        return self._share(blocks, chunk, ceil_div(g.count, parts), 64, width)

    def _share(self, groups: int, chunk: int, part: int, short: int, width: int = WIDTH) -> _Share:
        return _Share(groups, chunk, part, max(1, ceil_div(self.g.count, max(1, part))), short, width)

    @property
    def inputs(self) -> dict[str, torch.Tensor]:
        others = {f"in_{name}": other for (name, _, _), other in zip(self.what.others, self.others, strict=True)}
        return {"input": self.x, **others}

    @property
    def given(self) -> dict[str, Any]:
        """What every kernel gets: numbers, and strides of the results."""
        strides = {f"os{n}": level.out_stride for n, level in enumerate(self.g.kept)}
        return strides | {name: value for (name, _), value in zip(self.what.values, self.values, strict=True)}

    @property
    def results(self) -> dict[str, Any]:
        return {f"out{n}": out for n, out in enumerate(self.outs)} | self.given


# ---- ways ----


def _plan_copied(r: Reduced) -> None:
    """Reduced dimensions become the last ones. If that is how the input lies, it is the results that do not merge."""
    if r.others:
        raise Unsupported("inputs of several dimensions that do not lie together")
    p, ndim = r.p, r.x.dim()
    order = [d for d in range(ndim) if d not in r.dims] + r.dims
    if order == list(range(ndim)) and r.x.is_contiguous():
        outs = [p.empty(out.shape, out.dtype) for out in r.outs]
        plan_reduction(p, r.what, outs, r.x, r.dims, r.values)
        for out, temporary in zip(r.outs, outs, strict=True):
            p.copy(out, temporary)
        return
    outs = [out.permute(order) if out.dim() == ndim else out for out in r.outs]
    moved = p.contiguous(r.x.permute(order))
    plan_reduction(p, r.what, outs, moved, list(range(ndim - len(r.dims), ndim)), r.values)


def _why_not_contiguous(r: Reduced, why_not: Callable[[Rows], str]) -> str:
    return why_not(r.rows) if r.rows else "contiguous rows, with results side by side"


def _plan_contiguous(r: Reduced, way: Callable[[Rows], tuple[Layout, Grid]]) -> None:
    assert r.rows is not None
    layout, grid = way(r.rows)
    kernel = kernels.reduce_kernel(replace(r.what, cascade=False), r.storage, layout, WIDTH, False)
    r.p.launch(kernel, grid, **r.inputs, **r.results)


def _why_no_few_vectors(r: Reduced) -> str:
    short = r.rows is not None and r.rows.size < r.rows.lanes
    return _why_not_contiguous(r, rows.why_no_few_vectors) or ("rows of a vector or more" if short else "")


def _why_no_columns(r: Reduced) -> str:
    return "" if r.loops else "at most two levels of kept and of reduced dimensions"


def _why_no_rows(r: Reduced) -> str:
    return _why_no_columns(r) or ("" if r.lies_along else "long rows whose elements lie closer than rows do")


def _why_no_split_rows(r: Reduced) -> str:
    return _why_no_rows(r) or ("" if r.share_of_rows.parts > 1 else "few long rows")


def _why_no_split_columns(r: Reduced) -> str:
    return _why_no_columns(r) or ("" if r.share_of_columns.parts > 1 else "few long columns")


REDUCTIONS: tuple[Way[Reduced, None], ...] = (
    Way("copied", lambda r: "more levels of kept or of reduced dimensions than two" if r.loops else "", _plan_copied),
    Way(
        "unrolled",
        lambda r: _why_not_contiguous(r, rows.why_not_unrolled),
        lambda r: _plan_contiguous(r, rows.unrolled),
    ),
    Way("few-vectors", _why_no_few_vectors, lambda r: _plan_contiguous(r, rows.few_vectors)),
    Way("split-rows", _why_no_split_rows, lambda r: _launch(r, r.share_of_rows, False)),
    Way("rows", _why_no_rows, lambda r: _launch(r, r.share_of_rows.whole(r.g), False)),
    Way("split-columns", _why_no_split_columns, lambda r: _launch(r, r.share_of_columns, True)),
    Way("columns", _why_no_columns, lambda r: _launch(r, r.share_of_columns.whole(r.g), True)),
)


def _launch(r: Reduced, share: _Share, across: bool) -> None:
    """The results or, of rows that several groups share, accumulators of parts of them, and then the results."""
    (k0, k1), (r0, r1) = r.g.kept, r.g.reduced
    what = replace(r.what, cascade=r.what.cascade and share.part > share.short)
    layout = replace(r.p.layout, across=across, unit=(k1 if across else r1).stride == 1, runs=True)
    shape = {"outer": k0.size, "outer_stride": k0.stride, "inner": k1.size, "inner_stride": k1.stride}
    shape |= {"size": r.g.count, "run": max(1, r1.size), "run_stride": r0.stride, "stride": r1.stride}
    span, chunk = (share.chunk, 1) if across else (1, share.chunk)
    grid = Grid((share.groups, share.parts), {**shape, "span": span, "chunk": chunk, "part": share.part})
    kernel = kernels.reduce_kernel(what, r.storage, layout, share.width, share.parts > 1)
    if share.parts == 1:
        r.p.launch(kernel, grid, **r.inputs, **r.results)
        return
    size = share.parts * r.g.outputs
    accumulators = {f"part_{name}": r.p.empty((size,), BY_NAME[type_].dtype) for name, type_, _ in what.fields}
    r.p.launch(kernel, grid, **r.inputs, **accumulators, **r.given)
    _combine(r, share.parts, accumulators)


def _combine(r: Reduced, parts: int, accumulators: dict[str, torch.Tensor]) -> None:
    what = replace(r.what, cascade=False, others=r.what.kept_for_results(), index="")
    kept = {f"in_{name}": r.inputs[f"in_{name}"] for name, _, _ in what.others}
    sizes = {"inner": r.g.kept[1].size, "count": r.g.count}
    if r.is_cpu or parts < r.sizes.gpu_parts:
        kernel, grid = kernels.combine_kernel(what, r.p.form), r.p.walk(r.g.outputs, parts)
        sizes["parts"] = parts
    else:
        kernel, grid = kernels.combine_many_kernel(what), r.p.long_rows(r.g.outputs, parts)
    r.p.launch(kernel, grid, **accumulators, **kept, **r.results, **sizes)


def plan_reduction(
    p: PlanBuilder,
    what: Reduction,
    outs: Sequence[torch.Tensor],
    x: torch.Tensor,
    dims: list[int],
    values: Sequence[Any] = (),
    others: Sequence[torch.Tensor] = (),
) -> None:
    """Adds a reduction to a plan.

    Args:
        p: the plan.
        what: what to accumulate.
        outs: specs of its results, with or without the reduced dimensions.
        x: the input.
        dims: dimensions to reduce, see `reduced_dims`.
        values: numbers for `what.values`.
        others: inputs for `what.others`; those of kind "same" must have x's shape and strides.
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
    choose("reduction", REDUCTIONS, Reduced(p, what, targets, x, dims, values, others))
    for out, target in zip(outs, targets, strict=True):
        if out is not target:
            p.copy(out, target)
