"""Planners of Fourier transforms: axes are transformed one after the other."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from torchgraft.kernels.fft.lines import Kind
from torchgraft.ops.fft.choose import plan_axes
from torchgraft.ops.fft.problem import NAMES, Side, Transform
from torchgraft.plans import PlanBuilder, Unsupported, planner

_REAL = {torch.complex64: torch.float32, torch.complex128: torch.float64}


def _scale(normalization: int, n: int) -> float:
    """`normalization` as torch numbers it: none, by the root of n, by n."""
    return (1.0, 1 / math.sqrt(n), 1 / n)[normalization]


def _along(
    p: PlanBuilder, out: torch.Tensor, x: torch.Tensor, dim: int, n: int, backward: bool, scale: float = 1.0
) -> Transform:
    """The transforms of one dimension. A real result is that of a Hermitian `x`."""
    dim %= x.dim()
    others = [d for d in range(x.dim()) if d != dim]

    def side(spec: torch.Tensor, kind: Kind, length: int) -> Side:
        return Side(spec, kind, spec.stride(dim), tuple(spec.stride(d) for d in others), length)

    complex_or_real: Kind = "complex" if x.is_complex() else "real"
    source = side(x, complex_or_real if out.is_complex() else "hermitian", n)
    target = side(out, "complex" if out.is_complex() else "real", out.size(dim))
    batch = tuple(x.size(d) for d in others)
    return Transform(p, _REAL.get(x.dtype, x.dtype), dim, batch, n, n, backward, scale, source, target)


def _resolved(p: PlanBuilder, x: torch.Tensor) -> torch.Tensor:
    """Something that kernels can read as it lies in memory."""
    if _REAL.get(x.dtype, x.dtype) not in NAMES:
        raise Unsupported(f"transforms of {x.dtype}")
    return p.contiguous(x) if x.is_conj() or x.is_neg() else x


def _c2c(
    p: PlanBuilder, out: torch.Tensor, x: torch.Tensor, dims: Sequence[int], backward: bool, scale: float
) -> list[Transform]:
    """Several dimensions; `scale` is for all of them together."""
    sources = [x] + [out] * (len(dims) - 1)
    scales = [1.0] * (len(dims) - 1) + [scale]
    return [
        _along(p, out, source, dim, x.size(dim), backward, each)
        for source, dim, each in zip(sources, dims, scales, strict=True)
    ]


def _nearest_first(spec: torch.Tensor, dims: Sequence[int]) -> list[int]:
    return sorted(dims, key=lambda d: spec.stride()[d])


@planner("_fft_c2c", refuses=())
def _fft_c2c(
    p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, dim: list[int], normalization: int, forward: bool
) -> None:
    if out.numel() == 0:
        return
    if not dim:
        p.copy(out, self)
        return
    target = p.empty_like(out) if out.is_conj() else out
    scale = _scale(normalization, math.prod(self.size(d) for d in dim))
    plan_axes(_c2c(p, target, _resolved(p, self), _nearest_first(target, dim), not forward, scale))
    if target is not out:
        p.copy(out, target)


@planner("_fft_r2c", refuses=())
def _fft_r2c(
    p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, dim: list[int], normalization: int, onesided: bool
) -> None:
    if out.numel() == 0:
        return
    target = p.empty_like(out) if out.is_conj() else out
    scale = _scale(normalization, math.prod(self.size(d) for d in dim))
    *others, last = dim
    first = _along(p, target, _resolved(p, self), last, self.size(last), False, 1.0 if others else scale)
    more = _c2c(p, target, target, _nearest_first(target, others), False, scale) if others else []
    plan_axes([first, *more])
    if target is not out:
        p.copy(out, target)


@planner("_fft_c2r", refuses=())
def _fft_c2r(
    p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, dim: list[int], normalization: int, last_dim_size: int
) -> None:
    *others, last = dim
    half = last_dim_size // 2 + 1
    if self.size(last) < half:
        raise RuntimeError(
            f"a signal of length {last_dim_size} has {half} Fourier coefficients, but dimension {last} of the input "
            f"only {self.size(last)}"
        )
    if out.numel() == 0:
        return
    x = _resolved(p, self).narrow(last, 0, half)
    scale = _scale(normalization, math.prod(out.size(d) for d in dim))
    transforms = []
    if others:
        coefficients = p.empty_like(x)
        transforms = _c2c(p, coefficients, x, _nearest_first(coefficients, others)[::-1], True, 1.0)
        x = coefficients
    plan_axes([*transforms, _along(p, out, x, last, last_dim_size, True, scale)])
