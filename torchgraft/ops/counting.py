"""Composites that count elements, find distinct ones or repeat indices by counts: their results' shapes depend on
data."""

from __future__ import annotations

from typing import Any

import torch

from torchgraft.plans import composite, other_out
from torchgraft.plans.refusals import refuse_dtype


@composite("bincount")
def _bincount(self: torch.Tensor, weights: torch.Tensor | None = None, minlength: int = 0) -> torch.Tensor:
    if minlength < 0:
        raise RuntimeError("minlength should be >= 0")
    if self.is_floating_point() or self.is_complex() or self.dtype == torch.bool:
        refuse_dtype("bincount_cpu", self.dtype)
    low, high = (int(end) for end in self.aminmax()) if self.dim() == 1 and self.numel() else (0, -1)
    if self.dim() != 1 or low < 0:
        raise RuntimeError("bincount only supports 1-d non-negative integral inputs.")
    if weights is not None and weights.shape != self.shape:
        raise RuntimeError("weights should be 1-d and have the same length as input")
    size = max(minlength, high + 1)
    if weights is None or not self.numel():
        counts: torch.Tensor = torch.ops.torchgraft.count_numbers(self, size)
        return counts
    if weights.dtype not in (torch.float32, torch.float64):
        weights = weights.double()
    return torch.zeros(size, dtype=weights.dtype, device=self.device).scatter_add_(0, self.long(), weights)


@composite("repeat_interleave.Tensor")
def _repeat_interleave(repeats: torch.Tensor, *, output_size: int | None = None) -> torch.Tensor:
    if repeats.dim() != 1:
        raise RuntimeError("repeat_interleave only accept 1D vector as repeat")
    if repeats.dtype not in (torch.int64, torch.int32):
        refuse_dtype("repeat_interleave_cpu", repeats.dtype)
    if repeats.numel() == 0:
        return torch.empty_like(repeats)
    if int(repeats.min()) < 0:
        raise RuntimeError("repeats can not be negative")
    ends = repeats.cumsum(0)
    size = int(ends[-1])
    if output_size not in (None, size):
        raise RuntimeError("allocated size does not match required size")
    indices = torch.arange(size, dtype=ends.dtype, device=repeats.device)
    return torch.searchsorted(ends, indices, right=True).to(repeats.dtype)


# ---- Distinct elements. ----


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


def _unique_booleans(self: torch.Tensor, want_inverse: bool, want_counts: bool) -> Distinct:
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
        return _unique_booleans(self, return_inverse, return_counts)
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
