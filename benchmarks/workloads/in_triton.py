"""The workloads of benchmarks/triton_kernels.py in Triton's language, as its tutorials write such kernels, and what
calls them."""
# mypy: ignore-errors

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def nothing(x, n):
    tl.store(x, n)


@triton.jit
def _add(x, y, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    tl.store(out + i, tl.load(x + i, mask=mask) + tl.load(y + i, mask=mask), mask=mask)


def add(x, y):
    out = torch.empty_like(x)
    _add[(triton.cdiv(x.numel(), 1024),)](x, y, out, x.numel(), BLOCK=1024)
    return out


@triton.jit
def _softmax(out, x, out_stride, stride, rows, columns, BLOCK: tl.constexpr):
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0)):
        c = tl.arange(0, BLOCK)
        v = tl.load(x + row * stride + c, mask=c < columns, other=-float("inf"))
        e = tl.exp(v - tl.max(v, axis=0))
        tl.store(out + row * out_stride + c, e / tl.sum(e, axis=0), mask=c < columns)


def softmax(x):
    out, (rows, columns) = torch.empty_like(x), x.shape
    block = triton.next_power_of_2(columns)
    _softmax[(min(rows, 64),)](out, x, out.stride(0), x.stride(0), rows, columns, BLOCK=block)
    return out


@triton.jit
def _layer_norm(x, out, weight, bias, means, scales, stride, n, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    x += row * stride
    out += row * stride
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, n, BLOCK):
        c = start + tl.arange(0, BLOCK)
        total += tl.load(x + c, mask=c < n, other=0.0).to(tl.float32)
    mean = tl.sum(total, axis=0) / n
    squares = tl.zeros([BLOCK], tl.float32)
    for start in range(0, n, BLOCK):
        c = start + tl.arange(0, BLOCK)
        v = tl.load(x + c, mask=c < n, other=0.0).to(tl.float32)
        v = tl.where(c < n, v - mean, 0.0)
        squares += v * v
    scale = 1 / tl.sqrt(tl.sum(squares, axis=0) / n + eps)
    tl.store(means + row, mean)
    tl.store(scales + row, scale)
    for start in range(0, n, BLOCK):
        c = start + tl.arange(0, BLOCK)
        mask = c < n
        v = tl.load(x + c, mask=mask, other=0.0).to(tl.float32)
        v = (v - mean) * scale * tl.load(weight + c, mask=mask) + tl.load(bias + c, mask=mask)
        tl.store(out + c, v, mask=mask)


def layer_norm(x, weight, bias):
    out, (rows, columns) = torch.empty_like(x), x.shape
    means, scales = (torch.empty(rows, device=x.device) for _ in range(2))
    block = triton.next_power_of_2(columns)
    _layer_norm[(rows,)](x, out, weight, bias, means, scales, x.stride(0), columns, 1e-5, BLOCK=block)
    return out


@triton.jit
def _matmul(a, b, c, M, N, K, am, ak, bk, bn, cm, cn, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
            GROUP: tl.constexpr):  # fmt: skip
    pid = tl.program_id(0)
    rows, columns = tl.cdiv(M, BM), tl.cdiv(N, BN)
    group = pid // (GROUP * columns)
    first = group * GROUP
    height = min(rows - first, GROUP)
    pm = first + (pid % (GROUP * columns)) % height
    pn = (pid % (GROUP * columns)) // height
    m = (pm * BM + tl.arange(0, BM)) % M
    n = (pn * BN + tl.arange(0, BN)) % N
    k = tl.arange(0, BK)
    a_at = a + m[:, None] * am + k[None, :] * ak
    b_at = b + k[:, None] * bk + n[None, :] * bn
    total = tl.zeros((BM, BN), tl.float32)
    for step in range(tl.cdiv(K, BK)):
        x = tl.load(a_at, mask=k[None, :] < K - step * BK, other=0.0)
        y = tl.load(b_at, mask=k[:, None] < K - step * BK, other=0.0)
        total = tl.dot(x, y, total)
        a_at += BK * ak
        b_at += BK * bk
    m = pm * BM + tl.arange(0, BM)
    n = pn * BN + tl.arange(0, BN)
    place = c + m[:, None] * cm + n[None, :] * cn
    tl.store(place, total.to(c.dtype.element_ty), mask=(m[:, None] < M) & (n[None, :] < N))


def matmul(a, b):
    (m, k), n = a.shape, b.shape[1]
    out = torch.empty(m, n, dtype=a.dtype, device=a.device)
    grid = (triton.cdiv(m, 64) * triton.cdiv(n, 64),)
    _matmul[grid](a, b, out, m, n, k, *a.stride(), *b.stride(), *out.stride(), BM=64, BN=64, BK=32, GROUP=8)
    return out


@triton.jit
def _attention(q, k, v, out, scale, T, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    first = tl.program_id(0) * BM
    m = first + tl.arange(0, BM)
    d = tl.arange(0, D)
    n = tl.arange(0, BN)
    head = tl.program_id(1) * T * D
    query = tl.load(q + head + m[:, None] * D + d[None, :])
    keys = k + head + n[None, :] * D + d[:, None]
    values = v + head + n[:, None] * D + d[None, :]
    largest = tl.full([BM], -float("inf"), tl.float32)
    total = tl.zeros([BM], tl.float32)
    sums = tl.zeros([BM, D], tl.float32)
    for start in range(0, first + BM, BN):
        scores = tl.dot(query, tl.load(keys)) * scale
        scores = tl.where(start + n[None, :] <= m[:, None], scores, -1e6)
        new = tl.maximum(largest, tl.max(scores, 1))
        p = tl.exp2(scores - new[:, None])
        by = tl.exp2(largest - new)
        total = total * by + tl.sum(p, 1)
        sums = tl.dot(p.to(query.dtype), tl.load(values), sums * by[:, None])
        largest = new
        keys += BN * D
        values += BN * D
    tl.store(out + head + m[:, None] * D + d[None, :], (sums / total[:, None]).to(query.dtype))


def attention(q, k, v):
    """Causal, of heads whose length is a multiple of 64."""
    out, (heads, length, width) = torch.empty_like(q), q.shape
    scale = width**-0.5 * 1.44269504  # exponents of 2
    _attention[(length // 64, heads)](q, k, v, out, scale, length, D=width, BM=64, BN=64)
    return out
