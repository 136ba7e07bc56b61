"""Kernels in Triton's language, of each kind that programs are made of, for `triton_samples`."""
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["affine", "bins", "conversion", "product", "running_sums", "softmax", "sorted_rows"]


@triton.jit
def affine(x, y, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    tl.store(out + i, tl.load(x + i, mask=mask) * 2 + tl.load(y + i, mask=mask), mask=mask)


@triton.jit
def softmax(x, out, rows, columns, BLOCK: tl.constexpr):
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        c = tl.arange(0, BLOCK)
        v = tl.load(x + row * columns + c, mask=c < columns, other=-float("inf")).to(tl.float32)
        e = tl.exp(v - tl.max(v, axis=0))
        tl.store(out + row * columns + c, e / tl.sum(e, axis=0), mask=c < columns)


@triton.jit
def product(a, b, out, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    sums = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        left = tl.load(a + m[:, None] * K + k[None, :], mask=(m[:, None] < M) & (k[None, :] < K), other=0.0)
        right = tl.load(b + k[:, None] * N + n[None, :], mask=(k[:, None] < K) & (n[None, :] < N), other=0.0)
        sums = tl.dot(left, right, sums)
    tl.store(out + m[:, None] * N + n[None, :], sums, mask=(m[:, None] < M) & (n[None, :] < N))


@triton.jit
def running_sums(x, out, M: tl.constexpr, N: tl.constexpr):
    at = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(out + at, tl.cumsum(tl.load(x + at), 1))


@triton.jit
def sorted_rows(x, out, places, M: tl.constexpr, N: tl.constexpr):
    at = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    v = tl.load(x + at)
    tl.store(out + at, tl.sort(v, 1))
    tl.store(places + tl.arange(0, M), tl.argmax(v, 1))


@triton.jit
def bins(x, index, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    tl.atomic_add(out + tl.load(index + i, mask=mask, other=0), tl.load(x + i, mask=mask), mask=mask)


@triton.jit
def conversion(x, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i))
