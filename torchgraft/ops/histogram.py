"""Histograms in one and more dimensions (`torch.histc`, `torch.histogram`, `torch.histogramdd`): composites, since an
error in what the range of the data comes to is the caller's at once, around ops of our own that count.

An element belongs to the bin whose left edge is the last one that is not greater; the rightmost edge belongs to the
last bin. What lies outside of all bins, and NaN, is not counted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from torchgraft.codegen import element_type
from torchgraft.kernels import histogram as kernels
from torchgraft.plans import PlanBuilder, Scalar, Unsupported, composite, other_out, planner
from torchgraft.plans.refusals import refuse_dtype

torch.library.define("torchgraft::count_numbers", "(Tensor self, int bins) -> Tensor")
torch.library.define("torchgraft::count_evenly", "(Tensor self, int bins, Scalar low, Scalar high) -> Tensor")


def _check_outs(self: torch.Tensor, **arguments: Any) -> None:
    for out in ("hist", "bin_edges"):
        if out in arguments and arguments[out].dtype != self.dtype:
            raise RuntimeError(
                f"torch.histogram: input tensor and {out} tensor should have the same dtype, but got input "
                f"{self.dtype} and {out} {arguments[out].dtype}"
            )


# ---- what is planned ----


def _counts_meta(self: torch.Tensor, bins: int, **_: object) -> torch.Tensor:
    return torch.empty((bins,), dtype=torch.int64, device="meta")


def _plan_counts(p: PlanBuilder, out: torch.Tensor, x: torch.Tensor, even: bool, **edges: Scalar) -> None:
    bins, type_ = out.numel(), element_type(x.dtype)
    if x.numel() >= 2**31 or type_.is_complex:
        raise Unsupported("counts of 2**31 elements, or of complex numbers")
    # A row of counts for each group is no more work than the elements are.
    grid, groups = p.walk(x.numel(), 8), max(1, x.numel() // max(1, bins))
    if p.form == "cpu" and grid.groups[0] > groups:
        grid = p.partitioner.share(x.numel(), groups)
    counts = p.empty((1 if p.form == "gpu" else grid.groups[0], bins), torch.int32)
    if p.form == "gpu" or not x.numel():
        p.fill(counts, 0)
    if x.numel():
        kernel = kernels.count_kernel(type_.name, even, p.form)
        p.launch(kernel, grid, counts=counts, x=p.contiguous(x), bins=bins, **edges)
    p.call_out(torch.ops.aten.sum.dim_IntList, out, counts, [0])


@planner("torchgraft::count_numbers", meta=_counts_meta)
def _count_numbers(p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, bins: int) -> None:
    """How often each of the numbers below `bins` is among integers."""
    _plan_counts(p, out, self, False)


@planner("torchgraft::count_evenly", meta=_counts_meta)
def _count_evenly(p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, bins: int, low: Scalar, high: Scalar) -> None:
    """How many of float32 or float64 numbers are in each of the even parts of a range."""
    _plan_counts(p, out, self, True, low=low, high=high)


# ---- edges ----


def _outer_edges(points: torch.Tensor, ranges: Sequence[float] | None) -> list[tuple[float, float]]:
    """The leftmost and the rightmost edge of each dimension of points (count, dimensions)."""
    count, dims = points.shape
    if ranges is not None:
        if len(ranges) != 2 * dims:
            raise RuntimeError(
                f"torch.histogramdd: for a {dims}-dimensional histogram range should have {2 * dims} elements, but got "
                f"{len(ranges)}"
            )
        pairs = list(zip(ranges[::2], ranges[1::2], strict=True))
    elif count and dims:
        pairs = list(zip(*torch.stack(torch.aminmax(points, dim=0)).tolist(), strict=True))
    else:
        pairs = [(0.0, 1.0)] * dims
    for dim, (low, high) in enumerate(pairs):
        if not (math.isfinite(low) and math.isfinite(high)):
            raise RuntimeError(f"torch.histogramdd: dimension {dim}'s range [{low:g}, {high:g}] is not finite")
        if low > high:
            raise RuntimeError(
                f"torch.histogramdd: min should not exceed max, but got min {low:g} max {high:g} for dimension {dim}"
            )
    return [(low - 0.5, high + 0.5) if low == high else (low, high) for low, high in pairs]


def _even_edges(points: torch.Tensor, bins: Sequence[int], ranges: Sequence[float] | None) -> list[torch.Tensor]:
    if len(bins) != points.size(1):
        raise RuntimeError(
            f"torch.histogramdd: bins are given for {len(bins)} dimensions, but the innermost dimension of "
            f"the input is {points.size(1)}"
        )
    if not points.is_floating_point():
        raise NotImplementedError(f'"histogramdd" not implemented for {points.dtype}')
    return [
        torch.linspace(low, high, count + 1, dtype=points.dtype, device=points.device)
        for (low, high), count in zip(_outer_edges(points, ranges), bins, strict=True)
    ]


# ---- counts ----


def _check(self: torch.Tensor, edges: Sequence[torch.Tensor], weight: torch.Tensor | None) -> None:
    if not self.is_floating_point():
        raise NotImplementedError(f'"histogramdd" not implemented for {self.dtype}')
    for dim, line in enumerate(edges):
        if line.dtype != self.dtype:
            raise RuntimeError(
                "torch.histogramdd: input tensor and bins tensors should have the same dtype, but got input with dtype "
                f"{self.dtype} and bins for dimension {dim} with dtype {line.dtype}"
            )
        if line.dim() != 1:
            raise RuntimeError(
                f"torch.histogramdd: bins tensor should have one dimension, but got {line.dim()} dimensions in the "
                f"bins tensor for dimension {dim}"
            )
        if line.numel() < 2:
            raise RuntimeError(f"torch.histogram(): bins must be > 0, but got {line.numel() - 1} for dimension {dim}")
    if weight is None:
        return
    if weight.dtype != self.dtype:
        raise RuntimeError(
            "torch.histogramdd: if weight tensor is provided, input tensor and weight tensor should have the same "
            f"dtype, but got input({self.dtype}), and weight({weight.dtype})"
        )
    if (tuple(weight.shape) or (1,)) != tuple(self.shape[:-1]):
        raise RuntimeError(
            "torch.histogramdd: if weight tensor is provided it should have the same shape as the input tensor "
            f"excluding its innermost dimension, but got input with shape {list(self.shape)} and weight with shape "
            f"{list(weight.shape)}"
        )


def _count(
    self: torch.Tensor, edges: Sequence[torch.Tensor], weight: torch.Tensor | None, density: bool
) -> torch.Tensor:
    """The histogram of points, which are the rows of the last dimension."""
    _check(self, edges, weight)
    shape = [line.numel() - 1 for line in edges]
    points = self.reshape(-1, len(edges))
    inside = torch.ones(len(points), dtype=torch.bool, device=self.device)
    place = torch.zeros(len(points), dtype=torch.int64, device=self.device)
    size = math.prod(shape)
    for column, line, bins in zip(points.unbind(1), edges, shape, strict=True):
        inside &= (column >= line[0]) & (column <= line[-1])
        found = torch.searchsorted(line.contiguous(), column.contiguous(), right=True) - 1
        place = place * bins + found.clamp(0, bins - 1)
    # Numbers are counted as integers, and halves summed in float32: neither may stop at the dtype's last exact number.
    counts: torch.Tensor
    if weight is None:
        counts = torch.ops.torchgraft.count_numbers(torch.where(inside, place, -1), size)
    else:
        wide = torch.promote_types(self.dtype, torch.float32)
        amounts = torch.where(inside, weight.reshape(-1).to(wide), 0)
        counts = torch.zeros(size, dtype=wide, device=self.device).scatter_add_(0, place, amounts)
    counts = counts.to(self.dtype).view(shape)
    if density:
        counts = counts / counts.sum()
        for dim, line in enumerate(edges):
            counts = counts / line.diff().view([-1 if d == dim else 1 for d in range(len(edges))])
    return counts


def _flat(self: torch.Tensor, weight: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Points of one coordinate, and their weights."""
    return self.reshape(-1, 1), None if weight is None else weight.reshape(-1)


def _points(self: torch.Tensor) -> torch.Tensor:
    if self.dim() < 2:
        raise RuntimeError("torch.histogramdd: input tensor should have at least 2 dimensions")
    return self.reshape(-1, self.size(-1))


def _check_bins(bins: Sequence[int]) -> None:
    for dim, count in enumerate(bins):
        if count <= 0:
            raise RuntimeError(f"torch.histogram(): bins must be > 0, but got {count} for dimension {dim}")


def _even_places(x: torch.Tensor, bins: int, edges: torch.Tensor) -> torch.Tensor:
    """The bins of elements between two edges, which lie on the CPU, and -1 elsewhere; each step is rounded to the
    dtype, as on torch's CPU."""
    low, high, span = *edges.tolist(), (edges[1] - edges[0]).item()
    place = (x - low) * torch.tensor(bins, dtype=x.dtype, device="cpu").item() / span
    return torch.where((x >= low) & (x <= high), place, -1).long().clamp(max=bins - 1)


# ---- torch's ops ----


@composite("histc")
def _histc(self: torch.Tensor, bins: int = 100, min: complex = 0, max: complex = 0) -> torch.Tensor:
    if not self.is_floating_point():
        refuse_dtype("histogram", self.dtype)
    if bins <= 0:
        raise RuntimeError("bins must be > 0")
    low, high = float(min.real), float(max.real)
    if low == high and self.numel():
        low, high = (float(end) for end in self.aminmax())
    if low == high:
        low, high = low - 1, high + 1
    if not (math.isfinite(low) and math.isfinite(high)):
        raise RuntimeError(f"range of [{low}, {high}] is not finite")
    if low > high:
        raise RuntimeError("max must be larger than min")
    if self.dtype in (torch.float32, torch.float64):
        counts: torch.Tensor = torch.ops.torchgraft.count_evenly(self, bins, low, high)
    else:
        place = _even_places(self, bins, torch.tensor([low, high], dtype=self.dtype, device="cpu"))
        counts = torch.ops.torchgraft.count_numbers(place, bins)
    return counts.to(self.dtype)


@composite("histogram.bins_tensor", refuses=(_check_outs, other_out))
def _histogram_of_edges(
    self: torch.Tensor, bins: torch.Tensor, *, weight: torch.Tensor | None = None, density: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    points, weights = _flat(self, weight)
    return _count(points, [bins], weights, density), bins.clone()


@composite("histogram.bin_ct", refuses=(_check_outs, other_out))
def _histogram(
    self: torch.Tensor,
    bins: int = 100,
    *,
    range: Sequence[float] | None = None,
    weight: torch.Tensor | None = None,
    density: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    _check_bins([bins])
    points, weights = _flat(self, weight)
    edges = _even_edges(points, [bins], range)
    return _count(points, edges, weights, density), edges[0]


@composite("_histogramdd_bin_edges")
def _bin_edges(
    self: torch.Tensor,
    bins: Sequence[int],
    *,
    range: Sequence[float] | None = None,
    weight: torch.Tensor | None = None,
    density: bool = False,
) -> list[torch.Tensor]:
    return _even_edges(_points(self), bins, range)


@composite("_histogramdd_from_bin_cts")
def _histogramdd(
    self: torch.Tensor,
    bins: Sequence[int],
    *,
    range: Sequence[float] | None = None,
    weight: torch.Tensor | None = None,
    density: bool = False,
) -> torch.Tensor:
    _check_bins(bins)
    return _count(self, _even_edges(_points(self), bins, range), weight, density)


@composite("_histogramdd_from_bin_tensors")
def _histogramdd_of_edges(
    self: torch.Tensor, bins: Sequence[torch.Tensor], *, weight: torch.Tensor | None = None, density: bool = False
) -> torch.Tensor:
    if _points(self).size(1) != len(bins):
        raise RuntimeError(
            f"torch.histogramdd: expected {self.size(-1)} sequences of bin edges for a {self.size(-1)}-dimensional "
            f"histogram but got {len(bins)}"
        )
    return _count(self, bins, weight, density)
