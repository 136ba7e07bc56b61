"""Planners of sorting and of what follows from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from torchgraft.codegen import Kernel, ceil_div, element_type
from torchgraft.codegen.loops import FEW
from torchgraft.codegen.types import BY_NAME, MOVES
from torchgraft.kernels import sorting as kernels
from torchgraft.kernels.sorting import Chosen
from torchgraft.ops.reductions import check_some
from torchgraft.plans import PlanBuilder, Unsupported, composite, other_out, planner, versions
from torchgraft.plans.grid import Grid
from torchgraft.plans.refusals import refuse_dtype

aten = torch.ops.aten

# Rows from this length on are sorted by several work-items, if there are few of them.
_LONG = 1 << 14
_GPU_LONG = 4096
# Of a GPU's work-item: what it does one after the other. Each part has as many counts as there are digits.
_GPU_PART = 128
# The largest few are found by insertion up to so many.
_FEW = 64


def _type(x: torch.Tensor) -> str:
    element = element_type(x.dtype)
    if element.is_complex:
        raise Unsupported("order of complex numbers")
    return element.name


def _rows(p: PlanBuilder, x: torch.Tensor, dim: int) -> torch.Tensor:
    """A contiguous [rows, length] with dimension `dim` last."""
    if x.dim() == 0:
        return p.contiguous(x).view(1, 1)
    length = x.size(dim)
    return p.contiguous(x.movedim(dim, -1)).view(x.numel() // max(1, length), length)


def _back(p: PlanBuilder, out: torch.Tensor, rows: torch.Tensor, dim: int) -> None:
    """Brings rows to where they belong."""
    if out.dim() == 0:
        p.copy(out, rows.view(()))
        return
    moved = out.movedim(dim, -1)
    p.copy(moved, rows.view(moved.shape))


def _target(p: PlanBuilder, out: torch.Tensor, dim: int) -> torch.Tensor | None:
    """The result as rows, if it can be written in place."""
    if out.dim() == 0:
        return out.view(1, 1)
    if out.is_contiguous() and dim % out.dim() == out.dim() - 1:
        return out.view(out.numel() // max(1, out.size(-1)), out.size(-1))
    return None


def sort_rows(
    p: PlanBuilder,
    x: torch.Tensor,
    descending: bool,
    values: torch.Tensor | None = None,
    places: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sorts contiguous rows."""
    type_, (n, length) = _type(x), x.shape
    values = p.empty_like(x) if values is None else values
    places = p.empty(x.shape, torch.int64) if places is None else places
    if x.numel() == 0:
        return values, places
    if length >= 2**31:
        raise Unsupported("rows of 2**31 elements")
    if _is_long(p, n, length):
        _sort_long_rows(p, x, descending, values, places)
        return values, places
    if p.form == "cpu" and length <= kernels.EXCHANGED:
        shortest = kernels.exchange_kernel(type_, descending, length)
        p.launch(shortest, p.walk(n, length * 2), values=values, places=places, x=x)
        return values, places
    simd_width = p.device.simd_width
    if p.form == "cpu" and length <= kernels.ranked(type_, simd_width):
        short = kernels.rank_kernel(type_, descending, simd_width)
        p.launch(short, _row_grid(p, n, length, 2), values=values, places=places, x=x, length=length)
        return values, places
    grid = _row_grid(p, n, length, 8)
    scratch = (n if p.form == "gpu" else grid.groups[0], 2, length)
    keys, orders = p.empty(scratch, _key_dtype(type_)), p.empty(scratch, torch.int32)
    kernel = kernels.row_kernel(type_, descending, p.form)
    p.launch(kernel, grid, values=values, places=places, x=x, keys=keys, orders=orders, length=length)
    return values, places


def _is_long(p: PlanBuilder, n: int, length: int) -> bool:
    """Whether each row is for several work-items."""
    return (p.form == "gpu" and length >= _GPU_LONG) or (length >= _LONG and n < 4 * p.device.compute_units)


def _row_grid(p: PlanBuilder, n: int, length: int, cost: int = 1) -> Grid:
    """A work-item for each row, whose elements cost so much."""
    return p.walk(n, length * cost, multiple=1, group=FEW)


def _key_dtype(type_: str) -> torch.dtype:
    return BY_NAME[kernels.key_type(type_)].dtype


def _sort_long_rows(
    p: PlanBuilder, x: torch.Tensor, descending: bool, values: torch.Tensor, places: torch.Tensor
) -> None:
    type_, (n, length) = _type(x), x.shape
    parts = ceil_div(length, _GPU_PART) if p.form == "gpu" else 8 * p.device.compute_units
    part = ceil_div(length, parts)
    parts = ceil_div(length, part)
    passes = _Passes(
        p.walk(parts, part, multiple=1, group=FEW).by(n),
        part,
        [p.empty(x.shape, _key_dtype(type_)) for _ in range(2)],
        [p.empty(x.shape, torch.int32) for _ in range(2)],
        p.empty((n, 256, parts), torch.int32),
    )
    found = (_deal_on_gpu if p.form == "gpu" else _deal_on_cpu)(p, x, descending, passes)
    move = kernels.finish_kernel(MOVES[x.element_size()], p.form)
    p.launch(move, p.walk(x.shape, 2), values=p.bits(values), places=places, x=p.bits(x), **found)


@dataclass(frozen=True)
class _Passes:
    """What passes over the digits of long rows work with: parts of `part` elements, keys and places on either side of a
    pass, and the parts' counts of digits."""

    grid: Grid
    part: int
    keys: list[torch.Tensor]
    orders: list[torch.Tensor]
    counts: torch.Tensor


def _deal_on_cpu(p: PlanBuilder, x: torch.Tensor, descending: bool, passes: _Passes) -> dict[str, Any]:
    """Where the order is. A pass over digits that are the same in all of a row leaves the row as it is."""
    type_, (n, length), parts = _type(x), x.shape, passes.counts.size(2)
    key, bounds = kernels.key_type(type_), p.empty((n, parts, 3), torch.int64)
    keys, orders, shape = passes.keys, passes.orders, {"length": length, "part": passes.part}
    kernel = kernels.bounded_key_kernel(type_, descending)
    p.launch(kernel, passes.grid, keys=keys[0], orders=orders[0], bounds=bounds, x=x, **shape)
    sides = {"keys_0": keys[0], "keys_1": keys[1]}
    order_sides = {"orders_0": orders[0], "orders_1": orders[1]}
    for number in range(kernels.passes(type_)):
        given = {**sides, "counts": passes.counts, "bounds": bounds, "shift": 8 * number, **shape}
        p.launch(kernels.count_kernel(key, p.form), passes.grid, **given)
        p.launch(kernels.scan_kernel(p.form), p.long_rows(n, 256 * parts), counts=passes.counts)
        p.launch(kernels.deal_kernel(key, p.form), passes.grid, **given, **order_sides)
    return {**order_sides, "bounds": bounds, "parts": parts, "bits": 8 * kernels.passes(type_)}


def _deal_on_gpu(p: PlanBuilder, x: torch.Tensor, descending: bool, passes: _Passes) -> dict[str, Any]:
    """Where the order is."""
    type_ = _type(x)
    key, keys, orders, counts = kernels.key_type(type_), passes.keys, passes.orders, passes.counts
    p.launch(kernels.key_kernel(type_, descending), p.walk(x.shape), keys=keys[0], orders=orders[0], x=x)
    for number in range(kernels.passes(type_)):
        given = {"keys": keys[0], "counts": counts, "length": x.size(1), "part": passes.part, "shift": 8 * number}
        p.fill(counts, 0)
        p.launch(kernels.count_kernel(key, p.form), passes.grid, **given)
        given |= _begin_digits(p, counts)
        deal = kernels.deal_kernel(key, p.form)
        p.launch(deal, passes.grid, to=keys[1], to_order=orders[1], orders=orders[0], **given)
        keys, orders = keys[::-1], orders[::-1]
    return {"orders": orders[0]}


def _begin_digits(p: PlanBuilder, counts: torch.Tensor) -> dict[str, torch.Tensor]:
    """Turns a GPU's counts of [rows, digits, parts] into places: of its many parts a group for each digit finds where
    they begin within it. Where the digits begin is returned."""
    n, digits, parts = counts.shape
    starts = p.empty((n, digits), torch.int32)
    p.launch(kernels.scan_kernel(p.form, True), p.long_rows(n * digits, parts), counts=counts, totals=starts)
    p.launch(kernels.scan_kernel(p.form), p.long_rows(n, digits), counts=starts)
    return {"starts": starts}


def _sort(p: PlanBuilder, out: tuple[torch.Tensor, torch.Tensor], x: torch.Tensor, dim: int, descending: bool) -> None:
    rows = _rows(p, x, dim)
    targets = [_target(p, o, dim) for o in out]
    results = sort_rows(p, rows, descending, *targets)
    for o, target, result in zip(out, targets, results, strict=True):
        if target is None:
            _back(p, o, result, dim)


def _check_dim(self: torch.Tensor, dim: int = -1, **_: Any) -> None:
    """torch's meta function does not look at the dimension of a number."""
    if self.dim() == 0 and dim not in (-1, 0):
        raise IndexError(f"Dimension out of range (expected to be in range of [-1, 0], but got {dim})")


@planner("sort.stable", refuses=(_check_dim, other_out))
def _sort_stable(
    p: PlanBuilder,
    out: tuple[torch.Tensor, torch.Tensor],
    self: torch.Tensor,
    *,
    stable: bool | None,
    dim: int = -1,
    descending: bool = False,
) -> None:
    _sort(p, out, self, dim, descending)


@planner("sort", refuses=(_check_dim, other_out))
def _sort_plain(
    p: PlanBuilder, out: tuple[torch.Tensor, torch.Tensor], self: torch.Tensor, dim: int = -1, descending: bool = False
) -> None:
    _sort(p, out, self, dim, descending)


def _topk_meta(self: torch.Tensor, k: int, dim: int, largest: bool, sorted: bool) -> Any:
    if self.dtype == torch.bool:
        raise versions.DTYPES_REFUSED("topk does not support bool dtypes on CPU")
    if self.is_complex():
        raise versions.COMPLEX_REFUSED("topk does not support complex dtypes on CPU")
    return aten.topk.default(self, k, dim, largest, sorted)


@planner("topk", meta=_topk_meta)
def _topk(
    p: PlanBuilder,
    out: tuple[torch.Tensor, torch.Tensor],
    self: torch.Tensor,
    k: int,
    dim: int = -1,
    largest: bool = True,
    sorted: bool = True,
) -> None:
    if out[0].numel() == 0:
        return
    rows, type_ = _rows(p, self, dim), _type(self)
    n, length = rows.shape
    # The kernel for few has a work-item for each row.
    if k > _FEW or (k > 8 and k > length // 8) or (p.form == "gpu" and length >= _GPU_LONG):
        results = sort_rows(p, rows, largest)
        for o, result in zip(out, results, strict=True):
            _back(p, o, result.narrow(1, 0, k), dim) if o.dim() else p.copy(o, result.view(()))
        return
    targets = [_target(p, o, dim) for o in out]
    values = p.empty((n, k), self.dtype) if targets[0] is None else targets[0]
    places = p.empty((n, k), torch.int64) if targets[1] is None else targets[1]
    keys, grid = p.empty((n, k), _key_dtype(type_)), _row_grid(p, n, length, 2)
    kernel = kernels.top_kernel(type_, largest, p.form)
    p.launch(kernel, grid, values=values, places=places, x=rows, keys=keys, k=k, length=length)
    for o, target, result in zip(out, targets, (values, places), strict=True):
        if target is None:
            _back(p, o, result, dim)


def _picks(p: PlanBuilder, out: tuple[torch.Tensor, torch.Tensor], count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Where one element of each of `count` rows goes: the results themselves, in whose order rows are, if they are
    contiguous."""
    value, place = (o.view(count) if o.is_contiguous() else p.empty((count,), o.dtype) for o in out)
    return value, place


def _put_picks(
    p: PlanBuilder,
    out: tuple[torch.Tensor, torch.Tensor],
    picked: tuple[torch.Tensor, torch.Tensor],
    x: torch.Tensor,
    dim: int,
) -> None:
    """Picks that lie elsewhere, to results that have the dimension or have lost it."""
    for o, result in zip(out, picked, strict=True):
        if not o.is_contiguous():
            _back(p, o if o.dim() == x.dim() else o.unsqueeze(dim), result.view(-1, 1), dim)


def _select(
    p: PlanBuilder, rows: torch.Tensor, value: torch.Tensor, place: torch.Tensor | None, chosen: Chosen, rank: int = 0
) -> None:
    """One element of each of some contiguous rows: number `rank` in order, or the median."""
    type_, (n, length) = _type(rows), rows.shape
    if length >= 2**31:
        raise Unsupported("rows of 2**31 elements")
    if p.form == "cpu" and length <= kernels.EXCHANGED:
        kernel = kernels.exchange_select_kernel(type_, chosen, length, place is not None)
        p.launch(kernel, p.walk(n, length * 2), value=value, place=place, x=rows, rank=rank)
        return
    if p.form == "cpu":
        grid, pitch = _row_grid(p, n, length, 4), ceil_div(length, 64) * 64
        keys = p.empty((grid.groups[0], pitch), _key_dtype(type_))
        kernel = kernels.select_kernel(type_, chosen, p.device.simd_width)
        given = {"x": rows, "keys": keys, "rank": rank, "pitch": pitch}
        p.launch(kernel, grid, value=value, place=place, length=length, **given)
        return
    values, places = sort_rows(p, rows, False)
    if chosen != "kth":
        _launch_pick(p, kernels.middle_kernel(type_, chosen == "nanmedian"), values, places, value, place)
        return
    p.copy(value.view(n, 1), values.narrow(1, rank, 1))
    if place is not None:
        p.copy(place.view(n, 1), places.narrow(1, rank, 1))


def _kthvalue_meta(self: torch.Tensor, k: int, dim: int, keepdim: bool) -> Any:
    check_some("kthvalue", self, dim)
    if self.dtype == torch.bool:
        refuse_dtype("kthvalue", self.dtype)
    return aten.kthvalue.default(self, k, dim, keepdim)


@planner("kthvalue", apart=("self",), meta=_kthvalue_meta)
def _kthvalue(
    p: PlanBuilder,
    out: tuple[torch.Tensor, torch.Tensor],
    self: torch.Tensor,
    k: int,
    dim: int = -1,
    keepdim: bool = False,
) -> None:
    if out[0].numel() == 0:
        return
    rows = _rows(p, self, dim)
    picked = _picks(p, out, len(rows))
    _select(p, rows, *picked, "kth", k - 1)
    _put_picks(p, out, picked, self, dim)


def _value_and_place(self: torch.Tensor, dim: int = -1, keepdim: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """A meta function. Torch's own says of CUDA's kernels that they are not deterministic."""
    shape = torch.any(self, dim, keepdim).shape
    return self.new_empty(shape), self.new_empty(shape, dtype=torch.int64)


def _launch_pick(
    p: PlanBuilder,
    kernel: Kernel,
    values: torch.Tensor,
    places: torch.Tensor,
    value: torch.Tensor,
    place: torch.Tensor | None,
) -> None:
    """An element of each sorted row, which the kernel chooses."""
    n, length = values.shape
    p.launch(kernel, _row_grid(p, n, length), value=value, place=place, sorted=values, places=places, length=length)


def _median_dim(
    p: PlanBuilder, out: tuple[torch.Tensor, torch.Tensor], x: torch.Tensor, dim: int, chosen: Chosen
) -> None:
    check_some("median", x, dim)
    if out[0].numel() == 0:
        return
    rows = _rows(p, x, dim)
    picked = _picks(p, out, len(rows))
    _select(p, rows, *picked, chosen)
    _put_picks(p, out, picked, x, dim)


@planner("median.dim", meta=_value_and_place)
def _median(
    p: PlanBuilder, out: tuple[torch.Tensor, torch.Tensor], self: torch.Tensor, dim: int, keepdim: bool = False
) -> None:
    _median_dim(p, out, self, dim, "median")


@planner("nanmedian.dim", meta=_value_and_place)
def _nanmedian(
    p: PlanBuilder, out: tuple[torch.Tensor, torch.Tensor], self: torch.Tensor, dim: int, keepdim: bool = False
) -> None:
    _median_dim(p, out, self, dim, "nanmedian")


def _median_of_all(p: PlanBuilder, out: torch.Tensor, x: torch.Tensor, chosen: Chosen) -> None:
    if x.numel() == 0:
        if not x.is_floating_point():
            raise Unsupported("the median of no integers")
        p.fill(out, float("nan"))
        return
    _select(p, p.contiguous(x).view(1, -1), out.view(1), None, chosen)


@planner("median")
def _median_all(p: PlanBuilder, out: torch.Tensor, self: torch.Tensor) -> None:
    _median_of_all(p, out, self, "median")


@planner("nanmedian")
def _nanmedian_all(p: PlanBuilder, out: torch.Tensor, self: torch.Tensor) -> None:
    _median_of_all(p, out, self, "nanmedian")


@planner("mode", meta=_value_and_place)
def _mode(
    p: PlanBuilder, out: tuple[torch.Tensor, torch.Tensor], self: torch.Tensor, dim: int = -1, keepdim: bool = False
) -> None:
    check_some("mode", self, dim)
    if out[0].numel() == 0:
        return
    rows = _rows(p, self, dim)
    picked = _picks(p, out, len(rows))
    _launch_pick(p, kernels.mode_kernel(_type(self), p.form), *sort_rows(p, rows, False), *picked)
    _put_picks(p, out, picked, self, dim)


# ---- distinct elements ----


Distinct = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def _runs(new: torch.Tensor, want_inverse: bool, want_counts: bool) -> Distinct:
    """Where runs of equal elements start, the run of each element, and the runs' lengths; `new` is true where one
    starts."""
    starts = new.nonzero().view(-1)
    none = torch.empty(0, dtype=torch.int64, device=new.device)
    inverse = new.cumsum(0) - 1 if want_inverse else none
    counts = none
    if want_counts:
        end = torch.full((1,), len(new), dtype=torch.int64, device=new.device)
        counts = torch.cat([starts, end]).diff()
    return starts, inverse, counts


def _starts_run(rows: torch.Tensor) -> torch.Tensor:
    """Whether each row differs from the one before it."""
    new = torch.ones(len(rows), dtype=torch.bool, device=rows.device)
    differs = rows[1:] != rows[:-1]
    new[1:] = differs if rows.dim() == 1 else differs.flatten(1).any(1)
    return new


def _unique_truths(self: torch.Tensor, want_inverse: bool, want_counts: bool) -> Distinct:
    """Of two values it is enough to count one."""
    trues = int(self.count_nonzero())
    counts = {value: n for value, n in ((False, self.numel() - trues), (True, trues)) if n > 0}
    none = torch.empty(0, dtype=torch.int64, device=self.device)
    inverse = none
    if want_inverse:
        inverse = self.long() if len(counts) == 2 else torch.zeros_like(self, dtype=torch.int64)
    lengths = torch.tensor(list(counts.values()), dtype=torch.int64, device=self.device) if want_counts else none
    return torch.tensor(list(counts), dtype=torch.bool, device=self.device), inverse, lengths


def _check_order(self: torch.Tensor, **_: Any) -> None:
    if self.is_complex():
        refuse_dtype("unique", self.dtype)


@composite("_unique2", refuses=(_check_order, other_out))
def _unique2(
    self: torch.Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> Distinct:
    if self.dtype == torch.bool:
        return _unique_truths(self, return_inverse, return_counts)
    values, order = self.reshape(-1).sort(stable=True)
    starts, runs, counts = _runs(_starts_run(values), return_inverse, return_counts)
    inverse = torch.empty_like(runs).scatter_(0, order, runs).view(self.shape) if return_inverse else runs
    return values[starts], inverse, counts


@composite("_unique", refuses=(_check_order, other_out))
def _unique(self: torch.Tensor, sorted: bool = True, return_inverse: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    values, inverse, _ = _unique2(self, sorted, return_inverse)
    return values, inverse


@composite("unique_consecutive")
def _unique_consecutive(
    self: torch.Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> Distinct:
    if dim is None:
        flat = self.reshape(-1)
        starts, inverse, counts = _runs(_starts_run(flat), return_inverse, return_counts)
        return flat[starts], inverse.view(self.shape) if return_inverse else inverse, counts
    rows = self.movedim(dim, 0)
    starts, inverse, counts = _runs(_starts_run(rows), return_inverse, return_counts)
    return self.index_select(dim, starts), inverse, counts


@composite("unique_dim")
def _unique_dim(
    self: torch.Tensor, dim: int, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> Distinct:
    if self.numel() == 0 and (self.size(dim) != 0 or self.shape.count(0) > 1):
        raise RuntimeError("There are 0 sized dimensions, and they aren't selected, so unique cannot be applied")
    rows = self.movedim(dim, 0).reshape(self.size(dim), self.numel() // max(1, self.size(dim)))
    order = torch.arange(len(rows), device=self.device)
    for column in range(rows.size(1) - 1, -1, -1):  # the first column decides, so it comes last
        order = order[rows[:, column][order].argsort(stable=True)]
    starts, runs, counts = _runs(_starts_run(rows[order]), return_inverse, return_counts)
    inverse = torch.empty_like(runs).scatter_(0, order, runs) if return_inverse else runs
    return self.index_select(dim, order[starts]), inverse, counts
