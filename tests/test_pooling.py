"""Pooling and its gradients against torch's CPU, with its indices, its NaN and its edges."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

pytestmark = pytest.mark.no_fallback

TOLERANCE = {torch.float32: 2e-6, torch.float64: 1e-14, torch.float16: 3e-3, torch.bfloat16: 2e-2}
DTYPES = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
DIMS = pytest.mark.parametrize("dims", [1, 2, 3])

MAX: list[Callable[..., Any]] = [F.max_pool1d, F.max_pool2d, F.max_pool3d]
MEAN: list[Callable[..., Any]] = [F.avg_pool1d, F.avg_pool2d, F.avg_pool3d]
ADAPTIVE_MAX: list[Callable[..., Any]] = [F.adaptive_max_pool1d, F.adaptive_max_pool2d, F.adaptive_max_pool3d]
ADAPTIVE_MEAN: list[Callable[..., Any]] = [F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d]


def _image(dims: int, dtype: torch.dtype) -> torch.Tensor:
    """With ties, or a NaN, or without a batch, at times."""
    shape = [random.choice([1, 2]), 3] + [random.randint(3, {1: 60, 2: 24, 3: 8}[dims]) for _ in range(dims)]
    x = torch.randint(-9, 9, shape).to(dtype) if random.random() < 0.5 else torch.randn(shape).to(dtype)
    if random.random() < 0.2:
        x.view(-1)[random.randrange(x.numel())] = float("nan")
    if random.random() < 0.1:
        x.fill_(float("-inf"))
    return x[0] if random.random() < 0.2 else x


def _windows(dims: int) -> tuple[list[int], list[int], list[int]]:
    """Extents, strides, paddings."""
    taps = [random.randint(1, 3) for _ in range(dims)]
    return taps, [random.randint(1, 3) for _ in range(dims)], [random.randint(0, k // 2) for k in taps]


def _compare(device: str, x: torch.Tensor, pool: Callable[..., Any]) -> None:
    """Against float64: torch's CPU does not pool every dtype."""
    mine, theirs = x.to(device).requires_grad_(), x.double().requires_grad_()
    got, expected = pool(mine), pool(theirs)
    if isinstance(expected, tuple):
        assert torch.equal(got[1].cpu(), expected[1])
        got, expected = got[0], expected[0]
    assert got.dtype == x.dtype
    tolerance = TOLERANCE[x.dtype]
    torch.testing.assert_close(
        got.detach().cpu().double(), expected.detach(), rtol=tolerance, atol=tolerance, equal_nan=True
    )
    grad = torch.randn(expected.shape).to(x.dtype)
    (a,) = torch.autograd.grad(got, mine, grad.to(device))
    (b,) = torch.autograd.grad(expected, theirs, grad.double())
    torch.testing.assert_close(a.cpu().double(), b, rtol=tolerance, atol=4 * tolerance)


@DTYPES
@DIMS
def test_max(device: str, dims: int, dtype: torch.dtype) -> None:
    for _ in range(8):
        taps, stride, padding = _windows(dims)
        x, dilation, ceil = _image(dims, dtype), random.choice([1, 1, 2]), random.random() < 0.5
        if min(x.shape[-dims:]) < 5:
            dilation = 1
        _compare(
            device,
            x,
            lambda t, k=taps, s=stride, p=padding, d=dilation, c=ceil: MAX[dims - 1](
                t, k, s, p, d, ceil_mode=c, return_indices=True
            ),
        )


@DTYPES
@DIMS
def test_mean(device: str, dims: int, dtype: torch.dtype) -> None:
    for _ in range(8):
        taps, stride, padding = _windows(dims)
        options: dict[str, Any] = {"ceil_mode": random.random() < 0.5, "count_include_pad": random.random() < 0.5}
        if dims > 1 and random.random() < 0.3:
            options["divisor_override"] = 3
        x = _image(dims, dtype).nan_to_num(0, 0, 0)
        _compare(device, x, lambda t, k=taps, s=stride, p=padding, o=options: MEAN[dims - 1](t, k, s, p, **o))


@DTYPES
@DIMS
@pytest.mark.parametrize("largest", [False, True], ids=["mean", "max"])
def test_adaptive(device: str, dims: int, dtype: torch.dtype, largest: bool) -> None:
    for _ in range(6):
        x = _image(dims, dtype)
        size = [random.randint(1, n + 2) for n in x.shape[-dims:]]
        if largest:
            _compare(device, x, lambda t, o=size: ADAPTIVE_MAX[dims - 1](t, o, return_indices=True))
        else:
            _compare(device, x.nan_to_num(0, 0, 0), lambda t, o=size: ADAPTIVE_MEAN[dims - 1](t, o))


def test_wide_rows(device: str) -> None:
    """Rows of several vectors, with and without edges."""
    for width in (15, 16, 17, 31, 32, 33, 64, 112):
        x = torch.randn(2, 2, 9, width)
        _compare(device, x, lambda t: F.max_pool2d(t, 3, 2, 1, return_indices=True))
        _compare(device, x, lambda t: F.max_pool2d(t, 3, 1, 1, return_indices=True))
        _compare(device, x, lambda t: F.avg_pool2d(t, 3, 2, 1))


def test_layouts(device: str) -> None:
    x = torch.randn(2, 3, 8, 10)
    channels_last = x.to(device).to(memory_format=torch.channels_last)
    assert torch.equal(F.max_pool2d(channels_last, 2).cpu(), F.max_pool2d(x, 2))
    assert torch.equal(F.max_pool2d(x.to(device)[:, 1:, ::2], 2).cpu(), F.max_pool2d(x[:, 1:, ::2], 2))


def test_global(device: str) -> None:
    x = torch.randn(2, 5, 7, 7)
    torch.testing.assert_close(F.adaptive_avg_pool2d(x.to(device), 1).cpu(), F.adaptive_avg_pool2d(x, 1))


def test_empty_batch(device: str) -> None:
    x = torch.randn(0, 3, 8, 8, device=device, requires_grad=True)
    out = F.max_pool2d(x, 2)
    assert out.shape == (0, 3, 4, 4)
    out.sum().backward()
    assert x.grad is not None
    assert x.grad.shape == x.shape
