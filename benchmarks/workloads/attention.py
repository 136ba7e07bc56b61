"""Attention with heads of many sizes, with and without masks."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from harness.case import Call, Case, Make, computing, randn


def attention(
    batch: int,
    heads: int,
    length: int,
    width: int,
    *,
    keys: int = 0,
    mask: torch.dtype | None = None,
    causal: bool = False,
    gradients: bool = False,
    dtype: torch.dtype = torch.float32,
) -> Make:
    """Of as many keys as queries unless said; a mask of numbers or of booleans is one for all heads."""

    def make(device: str) -> Call:
        lengths = (length, keys or length, keys or length)
        q, k, v = (randn(device, batch, heads, n, width, dtype=dtype).requires_grad_(gradients) for n in lengths)
        bias = None if mask is None else (torch.rand(length, keys or length) < 0.5).to(mask).to(device)

        def call() -> torch.Tensor:
            return F.scaled_dot_product_attention(q, k, v, bias, is_causal=causal)

        if not gradients:
            return call
        grad = randn(device, batch, heads, length, width)
        return lambda: torch.autograd.grad(call(), (q, k, v), grad)

    return make


def work(batch: int, heads: int, length: int, width: int, keys: int = 0, itemsize: int = 4) -> tuple[float, float]:
    """Flops, and bytes of queries, keys, values and results."""
    keys = keys or length
    return 4 * batch * heads * length * keys * width, itemsize * 2 * batch * heads * width * (length + keys)


def tuned() -> Iterator[Case]:
    size = 8, 6, 256, 64
    flops, nbytes = work(*size)
    flops /= 2  # causal: half of the scores
    yield computing("attention/causal 8x6x256x64", attention(*size, causal=True), flops, nbytes)
    gradients = attention(*size, causal=True, gradients=True)
    yield computing("attention/causal 8x6x256x64 with gradients", gradients, 3.5 * flops, 2 * nbytes)


def others() -> Iterator[Case]:
    small, long, wide = (8, 8, 50, 32), (1, 4, 1000, 64), (2, 8, 200, 128)
    masked, vision = (4, 8, 128, 32), (2, 12, 197, 64)
    yield computing("attention/8x8x50x32", attention(*small), *work(*small))
    yield computing("attention/2x16x77x80", attention(2, 16, 77, 80), *work(2, 16, 77, 80))
    yield computing("attention/2x8x200x128", attention(*wide), *work(*wide))
    yield computing("attention/2x12x197x64", attention(*vision), *work(*vision))
    flops, nbytes = work(*vision)
    yield computing("attention/2x12x197x64 with gradients", attention(*vision, gradients=True), 3.5 * flops, 2 * nbytes)
    flops, nbytes = work(*long)
    yield computing("attention/causal 1x4x1000x64", attention(*long, causal=True), flops / 2, nbytes)
    yield computing("attention/mask of numbers 4x8x128x32", attention(*masked, mask=torch.float32), *work(*masked))
    yield computing("attention/mask of booleans 4x8x128x32", attention(*masked, mask=torch.bool), *work(*masked))
    one = attention(8, 8, 1, 64, keys=1000)
    yield computing("attention/one query of 1000 keys 8x8x64", one, *work(8, 8, 1, 64, 1000))
    cross = attention(4, 8, 100, 64, keys=300)
    yield computing("attention/100 queries of 300 keys 4x8x64", cross, *work(4, 8, 100, 64, 300))
    for dtype in (torch.float64, torch.bfloat16):
        name = f"attention/2x12x197x64 {str(dtype).removeprefix('torch.')}"
        flops, nbytes = work(*vision, itemsize=dtype.itemsize)
        yield computing(name, attention(*vision, dtype=dtype), flops, nbytes, dtype)
