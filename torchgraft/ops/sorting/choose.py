"""Which kernels sort rows, find the first few of each or select one. The first way that it suits is taken."""

from __future__ import annotations

import torch

from torchgraft.codegen import round_up
from torchgraft.kernels.choice import Way, choose
from torchgraft.kernels.sorting import network, radix, rank, selection
from torchgraft.ops.sorting import parallel_radix
from torchgraft.ops.sorting.problem import Rows
from torchgraft.plans import PlanBuilder

Pair = tuple[torch.Tensor, torch.Tensor]
"""Values and indices."""


def _for_cpus(r: Rows) -> str:
    return "" if r.is_cpu else "CPUs"


# ---- Sorting. ----


def _why_no_parallel_radix(r: Rows) -> str:
    few = r.length >= r.sizes.long and r.count < 4 * r.p.device.compute_units
    return _for_cpus(r) or ("" if few else f"few rows, of {r.sizes.long} elements or more")


def _why_no_gpu_radix(r: Rows) -> str:
    long = r.sizes.gpu_long
    return "" if not r.is_cpu and r.length >= long else f"GPUs, rows of {long} elements or more"


def _why_not_short(r: Rows, longest: int) -> str:
    return _for_cpus(r) or ("" if r.length <= longest else f"rows of at most {longest} elements")


def _why_no_network(r: Rows) -> str:
    return _why_not_short(r, network.LONGEST)


def _plan_network(r: Rows) -> None:
    kernel = network.sort_kernel(r.type, r.descending, r.length)
    r.p.launch(kernel, r.p.walk(r.count, r.length * 2), values=r.values, indices=r.indices, x=r.x)


def _why_no_rank(r: Rows) -> str:
    return _why_not_short(r, rank.longest(r.type, r.p.device.simd_width))


def _plan_rank(r: Rows) -> None:
    kernel = rank.sort_kernel(r.type, r.descending, r.p.device.simd_width)
    r.p.launch(kernel, r.grid(2), values=r.values, indices=r.indices, x=r.x, length=r.length)


def _plan_radix(r: Rows) -> None:
    kernel, grid = radix.row_kernel(r.type, r.descending, r.p.form), r.grid(8)
    scratch = (grid.groups[0] if r.is_cpu else r.count, 2, r.length)
    given = {"keys": r.keys(*scratch), "orders": r.p.empty(scratch, torch.int32), "length": r.length}
    r.p.launch(kernel, grid, values=r.values, indices=r.indices, x=r.x, **given)


SORT = (
    Way("parallel-radix", _why_no_parallel_radix, parallel_radix.plan_on_cpu),
    Way("gpu-radix", _why_no_gpu_radix, parallel_radix.plan_on_gpu),
    Way("network", _why_no_network, _plan_network),
    Way("rank", _why_no_rank, _plan_rank),
    Way("radix", lambda r: "", _plan_radix),
)


def sort(rows: Rows) -> None:
    if rows.x.numel() > 0:
        choose("sort", SORT, rows)


def sort_rows(p: PlanBuilder, x: torch.Tensor, descending: bool) -> Pair:
    """Contiguous rows in order, and where their elements were."""
    values, indices = p.empty_like(x), p.empty_like(x, torch.int64)
    sort(Rows(p, x, "sort", values, indices, descending))
    return values, indices


# ---- The first few. ----


def _why_no_insertion(r: Rows) -> str:
    few, long = r.sizes.few, r.sizes.gpu_long
    if r.k > min(few, max(8, r.length // 8)):
        return f"at most {few} elements, no more than 8 or an eighth of a row"
    return "" if r.is_cpu or r.length < long else f"CPUs, and rows of less than {long} elements"


def _plan_insertion(r: Rows) -> Pair:
    assert r.indices is not None
    kernel = selection.top_kernel(r.type, r.descending, r.p.form)
    given = {"x": r.x, "keys": r.keys(r.count, r.k), "k": r.k, "length": r.length}
    r.p.launch(kernel, r.grid(2), values=r.values, indices=r.indices, **given)
    return r.values, r.indices


def _plan_top_of_sorted(r: Rows) -> Pair:
    values, indices = sort_rows(r.p, r.x, r.descending)
    return values.narrow(1, 0, r.k), indices.narrow(1, 0, r.k)


TOP = (
    Way("insertion", _why_no_insertion, _plan_insertion),
    Way("sort", lambda r: "", _plan_top_of_sorted),
)


# ---- One element. ----


def _why_no_radix_select(r: Rows) -> str:
    return _for_cpus(r) or ("k-th values and medians" if r.wanted == "mode" else "")


def _plan_radix_select(r: Rows) -> None:
    grid, pitch = r.grid(4), round_up(r.length, 64)
    kernel = selection.select_kernel(r.type, r.wanted, r.p.device.simd_width)
    given = {"keys": r.keys(grid.groups[0], pitch), "rank": r.k - 1, "pitch": pitch, "length": r.length}
    r.p.launch(kernel, grid, value=r.values, index=r.indices, x=r.x, **given)


def _why_no_network_selection(r: Rows) -> str:
    return _why_no_radix_select(r) or _why_no_network(r)


def _plan_network_selection(r: Rows) -> None:
    kernel = network.select_kernel(r.type, r.wanted, r.length, r.indices is not None)
    r.p.launch(kernel, r.p.walk(r.count, r.length * 2), value=r.values, index=r.indices, x=r.x, rank=r.k - 1)


def _plan_pick_of_sorted(r: Rows) -> None:
    ordered = sort_rows(r.p, r.x, False)
    if r.wanted == "kthvalue":
        for target, source in zip((r.values, r.indices), ordered, strict=True):
            if target is not None:
                r.p.copy(target, source.narrow(1, r.k - 1, 1))
        return
    given = {"sorted": ordered[0], "indices": ordered[1], "length": r.length}
    kernel = selection.pick_kernel(r.type, r.wanted, r.p.form)
    r.p.launch(kernel, r.grid(), value=r.values, index=r.indices, **given)


SELECTION = (
    Way("network", _why_no_network_selection, _plan_network_selection),
    Way("radix-select", _why_no_radix_select, _plan_radix_select),
    Way("sort", lambda r: "", _plan_pick_of_sorted),
)
