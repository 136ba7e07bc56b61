"""Planners of sorting and of what follows from it."""

from __future__ import annotations

from typing import Any

import torch

from torchgraft.kernels.choice import choose
from torchgraft.kernels.sorting.selection import Chosen
from torchgraft.ops.reductions import check_some
from torchgraft.ops.sorting.choose import SELECTION, TOP, Pair, sort
from torchgraft.ops.sorting.problem import Rows
from torchgraft.plans import PlanBuilder, Unsupported, other_out, planner, versions
from torchgraft.plans.refusals import refuse_dtype

aten = torch.ops.aten


def _rows(p: PlanBuilder, x: torch.Tensor, dim: int) -> torch.Tensor:
    """A contiguous [rows, length] with dimension `dim` last."""
    if x.dim() == 0:
        return p.contiguous(x).view(1, 1)
    length = x.size(dim)
    return p.contiguous(x.movedim(dim, -1)).view(x.numel() // max(1, length), length)


def _targets(p: PlanBuilder, out: Pair, *shape: int, in_place: bool = True) -> Pair:
    """The results as rows, where they can be written in place, or temporaries."""
    values, indices = (o.view(shape) if in_place and o.is_contiguous() else p.empty(shape, o.dtype) for o in out)
    return values, indices


def _put(p: PlanBuilder, out: Pair, results: Pair, x: torch.Tensor, dim: int) -> None:
    """Brings rows to where they belong, if that is elsewhere; results have the dimension or have lost it."""
    for o, rows in zip(out, results, strict=True):
        if p.memory(rows) is not p.memory(o):
            whole = o if o.dim() == x.dim() else o.unsqueeze(dim)
            moved = whole.movedim(dim, -1) if o.dim() else whole
            p.copy(moved, rows.view(moved.shape))


def _is_last(x: torch.Tensor, dim: int) -> bool:
    return x.dim() == 0 or dim % x.dim() == x.dim() - 1


def _check_dim(self: torch.Tensor, dim: int = -1, **_: Any) -> None:
    """torch's meta function does not look at the dimension of a number."""
    if self.dim() == 0 and dim not in (-1, 0):
        raise IndexError(f"Dimension out of range (expected to be in range of [-1, 0], but got {dim})")


@planner("sort", "sort.stable", refuses=(_check_dim, other_out))
def _sort(
    p: PlanBuilder, out: Pair, self: torch.Tensor, dim: int = -1, descending: bool = False, stable: bool | None = None
) -> None:
    rows = _rows(p, self, dim)
    targets = _targets(p, out, *rows.shape, in_place=_is_last(self, dim))
    sort(Rows(p, rows, "sort", *targets, descending))
    _put(p, out, targets, self, dim)


def _topk_meta(self: torch.Tensor, k: int, dim: int, largest: bool, sorted: bool) -> Any:
    if self.dtype == torch.bool:
        raise versions.DTYPES_REFUSED("topk does not support bool dtypes on CPU")
    if self.is_complex():
        raise versions.COMPLEX_REFUSED("topk does not support complex dtypes on CPU")
    return aten.topk.default(self, k, dim, largest, sorted)


@planner("topk", meta=_topk_meta)
def _topk(
    p: PlanBuilder, out: Pair, self: torch.Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> None:
    if out[0].numel() == 0:
        return
    rows, k = _rows(p, self, dim), k if self.dim() else 1  # a number is its own first, however few are wanted
    targets = _targets(p, out, len(rows), k, in_place=_is_last(self, dim))
    results = choose("topk", TOP, Rows(p, rows, "topk", *targets, largest, k))
    _put(p, out, results, self, dim)


def _select_along(p: PlanBuilder, out: Pair, x: torch.Tensor, dim: int, chosen: Chosen, k: int = 1) -> None:
    """One element of each row along a dimension, which results have or have lost."""
    check_some(chosen.removeprefix("nan"), x, dim)
    if out[0].numel() == 0:
        return
    rows = _rows(p, x, dim)
    targets = _targets(p, out, len(rows), 1)
    choose("selection", SELECTION, Rows(p, rows, chosen, *targets, k=k))
    _put(p, out, targets, x, dim)


def _kthvalue_meta(self: torch.Tensor, k: int, dim: int, keepdim: bool) -> Any:
    check_some("kthvalue", self, dim)
    if self.dtype == torch.bool:
        refuse_dtype("kthvalue", self.dtype)
    return aten.kthvalue.default(self, k, dim, keepdim)


@planner("kthvalue", apart=("self",), meta=_kthvalue_meta)
def _kthvalue(p: PlanBuilder, out: Pair, self: torch.Tensor, k: int, dim: int = -1, keepdim: bool = False) -> None:
    _select_along(p, out, self, dim, "kthvalue", k)


def _value_and_index(self: torch.Tensor, dim: int = -1, keepdim: bool = False) -> Pair:
    """A meta function. Torch's own says of CUDA's kernels that they are not deterministic."""
    shape = torch.any(self, dim, keepdim).shape
    return self.new_empty(shape), self.new_empty(shape, dtype=torch.int64)


@planner("median.dim", meta=_value_and_index)
def _median(p: PlanBuilder, out: Pair, self: torch.Tensor, dim: int, keepdim: bool = False) -> None:
    _select_along(p, out, self, dim, "median")


@planner("nanmedian.dim", meta=_value_and_index)
def _nanmedian(p: PlanBuilder, out: Pair, self: torch.Tensor, dim: int, keepdim: bool = False) -> None:
    _select_along(p, out, self, dim, "nanmedian")


@planner("mode", meta=_value_and_index)
def _mode(p: PlanBuilder, out: Pair, self: torch.Tensor, dim: int = -1, keepdim: bool = False) -> None:
    _select_along(p, out, self, dim, "mode")


def _median_of_all(p: PlanBuilder, out: torch.Tensor, x: torch.Tensor, chosen: Chosen) -> None:
    if x.numel() == 0:
        if not x.is_floating_point():
            raise Unsupported("the median of no integers")
        p.fill(out, float("nan"))
        return
    choose("selection", SELECTION, Rows(p, p.contiguous(x).view(1, -1), chosen, out.view(1, 1), None))


@planner("median")
def _median_all(p: PlanBuilder, out: torch.Tensor, self: torch.Tensor) -> None:
    _median_of_all(p, out, self, "median")


@planner("nanmedian")
def _nanmedian_all(p: PlanBuilder, out: torch.Tensor, self: torch.Tensor) -> None:
    _median_of_all(p, out, self, "nanmedian")
