"""Composites that count elements or repeat places by counts: their results' shapes depend on data."""

from __future__ import annotations

import torch

from torchgraft.plans import composite
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
    places = torch.arange(size, dtype=ends.dtype, device=repeats.device)
    return torch.searchsorted(ends, places, right=True).to(repeats.dtype)
