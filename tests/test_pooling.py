"""Pooling and its gradients against torch's CPU, with its indices, its NaN and its edges."""

from __future__ import annotations

import itertools
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
FRACTIONAL: list[Callable[..., Any]] = [F.fractional_max_pool2d, F.fractional_max_pool3d]
UNPOOL: list[Callable[..., Any]] = [F.max_unpool1d, F.max_unpool2d, F.max_unpool3d]


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


@DIMS
def test_mean_of_integers(device: str, form: str, dims: int) -> None:
    """Rounded towards zero, as torch's CPU does it."""
    for _ in range(4):
        taps, stride, padding = _windows(dims)
        options: dict[str, Any] = {"ceil_mode": random.random() < 0.5, "count_include_pad": random.random() < 0.5}
        x = torch.randint(-99, 99, (2, 3, *(random.randint(3, 20) for _ in range(dims))))
        expected = MEAN[dims - 1](x, taps, stride, padding, **options)
        assert torch.equal(MEAN[dims - 1](x.to(device), taps, stride, padding, **options).cpu(), expected)


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


@DTYPES
@pytest.mark.parametrize("dims", [2, 3])
def test_fractional(device: str, form: str, dims: int, dtype: torch.dtype) -> None:
    """The windows are those of torch's CPU in each dtype, which computes them in it."""
    pool = FRACTIONAL[dims - 2]
    for _ in range(4):
        x = _image(dims, dtype)
        taps = [random.randint(1, 2) for _ in range(dims)]
        size = [random.randint(1, max(1, n - k - 1)) for n, k in zip(x.shape[-dims:], taps, strict=True)]
        if any(m + k > n for n, k, m in zip(x.shape[-dims:], taps, size, strict=True)):
            continue
        samples = torch.rand(x.shape[0] if x.dim() > dims + 1 else 1, x.shape[-dims - 1], dims).to(dtype)
        mine, theirs = x.to(device).requires_grad_(), x.clone().requires_grad_()
        got, places = pool(mine, taps, size, _random_samples=samples.to(device), return_indices=True)
        expected, their_places = pool(theirs, taps, size, _random_samples=samples, return_indices=True)
        assert torch.equal(places.cpu(), their_places)
        torch.testing.assert_close(got.cpu(), expected, rtol=0, atol=0, equal_nan=True)
        gradient = torch.randint(-4, 5, expected.shape).to(dtype)
        (a,) = torch.autograd.grad(got, mine, gradient.to(device))
        assert torch.equal(a.cpu(), torch.autograd.grad(expected, theirs, gradient)[0])


@pytest.mark.parametrize("dims", [2, 3])
def test_samples_that_do_not_fit(device: str, dims: int) -> None:
    x = torch.randn(2, 3, *[8] * dims)
    for shape in ((0, 3, dims), (1, 3, dims), (2, 2, dims), (2, 3, dims - 1), (2, 3)):
        for where in ("cpu", device):
            with pytest.raises(RuntimeError):
                FRACTIONAL[dims - 2](x.to(where), 2, [3] * dims, _random_samples=torch.rand(shape).to(where))


@DTYPES
@DIMS
def test_unpool(device: str, form: str, dims: int, dtype: torch.dtype) -> None:
    for _ in range(3):
        x = _image(dims, dtype).nan_to_num(0, 0, 0)
        stride = random.choice([2, 3])
        largest, places = MAX[dims - 1](x, 2, stride, return_indices=True)
        mine, theirs = largest.to(device).requires_grad_(), largest.clone().requires_grad_()
        size = list(x.shape[-dims:])
        got = UNPOOL[dims - 1](mine, places.to(device), 2, stride, output_size=size)
        expected = UNPOOL[dims - 1](theirs, places, 2, stride, output_size=size)
        assert torch.equal(got.cpu(), expected)
        gradient = torch.randn(expected.shape).to(dtype)
        (a,) = torch.autograd.grad(got, mine, gradient.to(device))
        assert torch.equal(a.cpu(), torch.autograd.grad(expected, theirs, gradient)[0])


def test_unpool_to_places_that_are_not_there(device: str) -> None:
    x, places = torch.ones(1, 2, 3, 3), torch.full((1, 2, 3, 3), 99)
    for where in ("cpu", device):
        with pytest.raises(RuntimeError, match=r"Found an invalid max index: 99 \(output volumes are of size 6x6"):
            torch.ops.aten.max_unpool2d(x.to(where), places.to(where), [6, 6]).cpu()
        with pytest.raises(RuntimeError, match="elements in indices should be type int64"):
            torch.ops.aten.max_unpool2d(x.to(where), places.to(where).int(), [6, 6])


def test_unpool_layouts(device: str) -> None:
    x = torch.randn(2, 3, 8, 10)
    largest, places = F.max_pool2d(x, 2, return_indices=True)
    last = largest.to(memory_format=torch.channels_last)
    expected = F.max_unpool2d(last, places, 2)
    got = F.max_unpool2d(last.to(device), places.to(device), 2)
    assert got.stride() == expected.stride() and torch.equal(got.cpu(), expected)
    out = torch.full((2, 3, 20, 8), 7.0, device=device).transpose(2, 3)[..., ::2]
    torch.ops.aten.max_unpool2d(largest.to(device), places.to(device), [8, 10], out=out)
    assert torch.equal(out.cpu(), expected)
    none = torch.ones(0, 3, 4, 5, device=device)
    assert F.max_unpool2d(none, none.long(), 2).shape == (0, 3, 8, 10)


def test_wide_rows(device: str) -> None:
    """Rows of several vectors, with and without edges."""
    for width in (15, 16, 17, 31, 32, 33, 64, 112):
        x = torch.randn(2, 2, 9, width)
        _compare(device, x, lambda t: F.max_pool2d(t, 3, 2, 1, return_indices=True))
        _compare(device, x, lambda t: F.max_pool2d(t, 3, 1, 1, return_indices=True))
        _compare(device, x, lambda t: F.avg_pool2d(t, 3, 2, 1))


@pytest.mark.parametrize("dtype", [*TOLERANCE, torch.int64, torch.int32, torch.uint8], ids=str)
def test_vectors_within_rows(device: str, dtype: torch.dtype) -> None:
    """Vectors of windows that touch no edge beside those that do, to the last element of the last row."""
    for width, stride, dilation, padding in itertools.product((31, 33, 64, 70), (1, 2, 3), (1, 2), (0, 1)):
        x = torch.randint(0, 9, (2, 3, width)).to(dtype)
        x[0, 1] = float("-inf") if dtype.is_floating_point else torch.iinfo(dtype).min
        if dtype.is_floating_point:
            x[0, 2, random.randrange(width)] = float("nan")
        mine, theirs = x.to(device), x.double()
        for taps in (2, 3):
            got, expected = (
                F.max_pool1d(t, taps, stride, padding, dilation, return_indices=True) for t in (mine, theirs)
            )
            torch.testing.assert_close(got[0].cpu().double(), expected[0], rtol=0, atol=0, equal_nan=True)
            assert torch.equal(got[1].cpu(), expected[1])
            if dtype.is_floating_point and dilation == 1:
                a, b = (F.avg_pool1d(t, taps, stride, padding) for t in (mine, theirs))
                tolerance = TOLERANCE[dtype]
                torch.testing.assert_close(a.cpu().double(), b, rtol=tolerance, atol=tolerance, equal_nan=True)


def _numbers(shape: list[int], dtype: torch.dtype) -> torch.Tensor:
    """With ties; some of their rows have numbers that are none, or nothing but the lowest."""
    x = torch.randint(-9, 9, shape).to(dtype) if random.random() < 0.7 else torch.randn(shape).to(dtype)
    x[torch.rand(shape) < random.choice([0, 0, 0.1])] = float("nan")
    x[torch.rand(shape) < random.choice([0, 0, 0.5])] = float("-inf")
    x[:, 0] = float("-inf")
    return x


@DTYPES
@DIMS
def test_wide_windows(device: str, dims: int, dtype: torch.dtype) -> None:
    """Whose own rows become vectors; rows of which a window takes all go on with the next."""
    for _ in range(8):
        sizes = [random.randint(1, 9) for _ in range(dims - 1)] + [random.randint(4, 60)]
        x = _numbers([2, 3, *sizes], dtype)
        taps = [random.randint(1, n) for n in sizes]
        whole = random.randint(0, dims)  # so many of the last axes
        taps[dims - whole :] = sizes[dims - whole :]
        stride, dilation = [random.randint(1, 2) for _ in range(dims - 1)] + [random.randint(3, 40)], [1] * dims
        padding = [random.choice([0, k // 2]) for k in taps]
        if dims > 1 and taps[0] * 2 <= sizes[0]:
            dilation[0] = 2
        if random.random() < 0.7:
            padding = [0] * dims
        _compare(
            device,
            x,
            lambda t, k=taps, s=stride, p=padding, d=dilation: MAX[dims - 1](t, k, s, p, d, return_indices=True),
        )
        x = torch.randn(x.shape).to(dtype)
        _compare(device, x, lambda t, k=taps, s=stride, p=padding: MEAN[dims - 1](t, k, s, p, ceil_mode=True))


@DTYPES
@DIMS
def test_wide_adaptive_windows(device: str, dims: int, dtype: torch.dtype) -> None:
    for _ in range(8):
        sizes = [random.randint(1, 9) for _ in range(dims - 1)] + [random.randint(4, 60)]
        target = [random.choice([1, n, random.randint(1, n)]) for n in sizes[:-1]] + [random.choice([1, 1, 2, 3])]
        x = _numbers([2, 3, *sizes], dtype)
        _compare(device, x, lambda t, s=target: ADAPTIVE_MAX[dims - 1](t, s, return_indices=True))
        _compare(device, torch.randn(x.shape).to(dtype), lambda t, s=target: ADAPTIVE_MEAN[dims - 1](t, s))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8], ids=str)
def test_wide_windows_of_integers(device: str, dtype: torch.dtype) -> None:
    for shape, taps in [((3, 4, 9, 40), (3, 40)), ((3, 4, 9, 40), (9, 40)), ((2, 2, 7, 33), (2, 17))]:
        x = torch.randint(0 if dtype == torch.uint8 else -9, 9, shape).to(dtype)
        x[0] = torch.iinfo(dtype).min
        mine, theirs = (F.max_pool2d(t, taps, return_indices=True) for t in (x.to(device), x))
        assert torch.equal(mine[0].cpu(), theirs[0])
        assert torch.equal(mine[1].cpu(), theirs[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_gradients_of_means_in_parts(device: str, form: str, dtype: torch.dtype) -> None:
    """Rows longer than what is summed at once, more windows than that, rows that threads share, and rows that are
    copies of the one before."""
    means: list[Callable[[torch.Tensor], torch.Tensor]] = [
        lambda x: F.adaptive_avg_pool2d(x, (3, 7)),
        lambda x: F.adaptive_avg_pool2d(x, (9, 700)),
        lambda x: F.adaptive_avg_pool2d(x, (2, 5000)),
        lambda x: F.avg_pool2d(x, 3, 1, 1, count_include_pad=False),
        lambda x: F.avg_pool2d(x, (4, 5), (2, 7), (1, 2)),
        lambda x: F.avg_pool2d(x, (2, 600), 1),
        lambda x: F.avg_pool2d(x, 2, divisor_override=3),
    ]
    for mean in means:
        _compare(device, torch.randn(2, 3, 7, 1000).to(dtype), mean)
    _compare(device, torch.randn(1, 1, 200_000).to(dtype), lambda x: F.adaptive_avg_pool1d(x, 1001))
    _compare(device, torch.randn(1, 1, 200_000).to(dtype), lambda x: F.avg_pool1d(x, 4, 3, 1))


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
