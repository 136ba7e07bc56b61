"""Functions that kernels of triton_compile_kernels.py call."""
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

FACTOR = tl.constexpr(2)
CLASH = tl.constexpr(10)


@triton.jit
def scaled(x, by):
    return x * by


@triton.jit
def doubled(x):
    return scaled(x, FACTOR)


@triton.jit
def halved(x):
    return scaled(x, 0.5)


@triton.jit
def clashing(x):
    return x * CLASH
