"""Kernels in Triton's language for test_triton_compile.py."""
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl
import triton_compile_helpers as helpers
from triton_compile_helpers import CLASH, clashing, doubled
from triton_compile_helpers import scaled as times

SHIFT = tl.constexpr(3)
CLASH = tl.constexpr(1)  # noqa: F811  # and another number there


@triton.jit
def axpy(x, y, out, a, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, a * tl.load(x + i, mask=i < n) + tl.load(y + i, mask=i < n), mask=i < n)


@triton.jit
def gradients(upward, x, y, a, n, BLOCK: tl.constexpr):
    """Of `axpy`, into x and y."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    g = tl.load(upward + i, mask=i < n)
    tl.store(x + i, a * g, mask=i < n)
    tl.store(y + i, g, mask=i < n)


@triton.autotune([triton.Config({"BLOCK": b}, num_warps=w) for b in (32, 128) for w in (2, 4)], key=["n"])
@triton.jit
def tuned(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n) * 2, mask=i < n)


@triton.autotune([triton.Config({"BLOCK": 32}), triton.Config({"BLOCK": 64})], key=["n"], restore_value=["total"])
@triton.jit
def tuned_sum(x, total, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(total, tl.sum(tl.load(x + i, mask=i < n, other=0.0), axis=0))


@triton.autotune([triton.Config({"BLOCK": 32}), triton.Config({"BLOCK": 64})], key=["n"])
@triton.heuristics({"EVEN": lambda a: a["n"] % a["BLOCK"] == 0})
@triton.jit
def tuned_by_heuristics(x, out, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if EVEN:
        tl.store(out + i, tl.load(x + i) + 1)
    else:
        tl.store(out + i, tl.load(x + i, mask=i < n) + 2, mask=i < n)


@triton.heuristics({"BLOCK": lambda a: triton.next_power_of_2(a["n"])})
@triton.jit
def by_heuristics(x, out, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n) - 1, mask=i < n)


@triton.jit
def increment(x, n, by, BLOCK: tl.constexpr):
    """In place."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + i, tl.load(x + i, mask=i < n) + by, mask=i < n)


@triton.jit
def constants(x, bias, out, n, KIND: tl.constexpr, TYPE: tl.constexpr, BY: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n).to(TYPE)
    if KIND == "negative's":
        v = -v
    if bias is not None:
        v += tl.load(bias + i, mask=i < n)
    tl.store(out + i, v * BY, mask=i < n)


@triton.jit(do_not_specialize=["count"])
def counted(x, out, count, n, BLOCK: tl.constexpr):
    """Has a number as a value even where it is 1."""
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n) * count.to(tl.float32), mask=i < n)


@triton.jit
def calls(x, out, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    v = times(tl.load(x + i, mask=i < n), 3.0) + doubled(tl.load(x + i, mask=i < n)) + SHIFT
    tl.store(out + i, helpers.halved(v), mask=i < n)


@triton.jit
def means_two_things(x, out, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, clashing(tl.load(x + i, mask=i < n)) + CLASH, mask=i < n)


@triton.jit
def row_sums(x, out, stride, columns, BLOCK: tl.constexpr):
    c = tl.arange(0, BLOCK)
    tl.store(out + tl.program_id(0), tl.sum(tl.load(x + tl.program_id(0) * stride + c, mask=c < columns, other=0.0)))


@triton.jit
def assembled(x, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    v = tl.inline_asm_elementwise("mov $0, $1;", "=r,r", [tl.load(x + i)], dtype=tl.float32, is_pure=True, pack=1)
    tl.store(x + i, v)
