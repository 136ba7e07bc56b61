"""Histograms against torch's CPU: even bins and given edges, weights, densities, one dimension and more."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.no_fallback

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16], ids=str)


def _moved(value: Any, device: str) -> Any:
    if isinstance(value, list):
        return [_moved(item, device) for item in value]
    return value.to(device) if isinstance(value, torch.Tensor) else value


def _compare(device: str, function: Any, x: torch.Tensor, bins: Any, **options: Any) -> None:
    got = function(_moved(x, device), _moved(bins, device), **{k: _moved(v, device) for k, v in options.items()})
    expected = function(x, bins, **options)
    close = {"rtol": 2e-2, "atol": 2e-3} if x.dtype == torch.float16 else {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(got.hist.cpu(), expected.hist, **close)
    edges = [(got.bin_edges, expected.bin_edges)]
    if not isinstance(expected.bin_edges, torch.Tensor):
        edges = list(zip(got.bin_edges, expected.bin_edges, strict=True))
    for a, b in edges:
        torch.testing.assert_close(a.cpu(), b, **close)


def _numbers(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """On edges and between them."""
    return torch.randint(-8, 9, shape).to(dtype) / 4


@DTYPES
@pytest.mark.parametrize("density", [False, True])
def test_one_dimension(device: str, density: bool, dtype: torch.dtype) -> None:
    x = _numbers((random.randint(20, 200),), dtype)
    weight = torch.rand(x.shape).to(dtype)
    for bins in (1, random.randint(2, 30)):
        _compare(device, torch.histogram, x, bins, range=(-1.0, 1.5), density=density)
        _compare(device, torch.histogram, x, bins, range=(-1.0, 1.5), density=density, weight=weight)
        _compare(device, torch.histogram, x, torch.tensor([-1.5, -0.25, 0, 1]).to(dtype), density=density)
    if dtype != torch.float16:  # of which torch's CPU finds no range
        _compare(device, torch.histogram, x, 7, density=density)


def test_range(device: str) -> None:
    """Of equal elements, of none, and an empty one."""
    _compare(device, torch.histogram, torch.full((3,), 2.0), 4)
    _compare(device, torch.histogram, torch.empty(0), 4)
    _compare(device, torch.histogram, torch.tensor(1.5), 3)
    _compare(device, torch.histogram, torch.tensor([2.0, 1.0]), 4, range=(2.0, 2.0))


def test_nan_is_not_counted(device: str) -> None:
    x = torch.tensor([0.0, float("nan"), 1.0, float("inf"), -float("inf")])
    _compare(device, torch.histogram, x, 3, range=(0.0, 1.0))


@pytest.mark.parametrize("density", [False, True])
def test_dimensions(device: str, density: bool) -> None:
    x, weight = _numbers((6, 30, 3), torch.float32), torch.rand(6, 30)
    edges = [torch.tensor([-1.0, 0, 0.5]), torch.tensor([-2.0, 2]), torch.tensor([0.0, 0.25, 0.75, 1])]
    for bins in ([2, 3, 4], edges):
        _compare(device, torch.histogramdd, x, bins, density=density)
        _compare(device, torch.histogramdd, x, bins, density=density, weight=weight)
    _compare(device, torch.histogramdd, x, [2, 3, 1], range=[-1.0, 1, 0, 1, -2, 2], density=density)


def test_layouts(device: str) -> None:
    x, weight = torch.randn(20, 30), torch.rand(30, 20)
    _compare(device, torch.histogram, x.t()[3:, ::2], 8, weight=weight[3:, ::2])
    hist, edges = torch.empty(0, device=device), torch.empty(0, device=device)
    torch.histogram(x.to(device), 5, out=(hist, edges))
    torch.testing.assert_close(hist.cpu(), torch.histogram(x, 5).hist)
    torch.testing.assert_close(edges.cpu(), torch.histogram(x, 5).bin_edges)


def test_many(device: str) -> None:
    """More in one bin than a half or a float counts exactly."""
    x = torch.zeros(5000, dtype=torch.float16, device=device)
    assert torch.histogram(x, 1, range=(-1.0, 1.0)).hist.item() == 5000


def test_errors(device: str) -> None:
    x = torch.randn(5, device=device)
    for message, bins, options in [
        ("not finite", 4, {"range": (0.0, float("inf"))}),
        ("should not exceed", 4, {"range": (3.0, 2.0)}),
        ("2 elements", 4, {"range": (0.0, 1.0, 2.0)}),
        ("must be > 0", 0, {}),
        ("must be > 0", torch.zeros(1, device=device), {}),
        ("same dtype", torch.zeros(2, device=device).double(), {}),
        ("one dimension", torch.zeros(2, 2, device=device), {}),
        ("same dtype", 4, {"weight": torch.ones(5, device=device).double()}),
        ("same shape", 4, {"weight": torch.ones(4, device=device)}),
    ]:
        with pytest.raises(RuntimeError, match=message):
            torch.histogram(x, bins, **options)
    with pytest.raises(RuntimeError, match="not finite"):
        torch.histogram(x * float("nan"), 3)
    with pytest.raises(RuntimeError, match="same dtype"):
        torch.histogram(x, 3, out=(x.double(), x))
    with pytest.raises(NotImplementedError):
        torch.histogram(x.long(), 3)
    with pytest.raises(RuntimeError, match="innermost dimension"):
        torch.histogramdd(x.view(1, 5), [1, 1])
    with pytest.raises(RuntimeError, match="2 dimensions"):
        torch.histogramdd(x, [3])


# ---- one dimension without edges ----


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16], ids=str)
def test_histc(device: str, dtype: torch.dtype) -> None:
    """On few elements and on many, in few bins and in many; the range is that of the data or given."""
    for n, bins in ((0, 3), (1, 1), (50, 7), (300, 200), (random.randint(3000, 9000), random.randint(20, 90))):
        x = torch.randn(n).to(dtype)
        _compare_counts(device, lambda a, bins=bins: torch.histc(a, bins, -1.3, 1.1), x)
        _compare_counts(device, lambda a, bins=bins: torch.histc(a[::3], bins, -2, 1), x)
        if dtype != torch.float16:  # of which torch's CPU finds no range
            _compare_counts(device, lambda a, bins=bins: torch.histc(a, bins), x)
    edges = torch.tensor([-1.0, 1.0, 0.0, -0.0, float("nan"), 1.5, float("inf")]).to(dtype)
    _compare_counts(device, lambda a: torch.histc(a, 4, -1, 1), edges)


def test_counts_are_exact(device: str) -> None:
    """A dtype's own sums would stop at its last exact number."""
    x = torch.zeros(3000, dtype=torch.float16, device=device)
    assert torch.histc(x, 2, -1, 1).tolist() == [0, 3000]


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8], ids=str)
def test_bincount(device: str, dtype: torch.dtype) -> None:
    for n, most in ((0, 3), (1, 1), (60, 100), (200_000, 100), (300, 5)):
        x = torch.randint(0, most, (n,)).to(dtype)
        _compare_counts(device, torch.bincount, x)
        _compare_counts(device, lambda a: torch.bincount(a[1::2], minlength=40), x)


def test_weighted_bincount(device: str) -> None:
    x, weight = torch.randint(0, 9, (50,)), torch.rand(50, dtype=torch.float64)
    found = torch.bincount(x.to(device), weight.to(device))
    torch.testing.assert_close(found.cpu(), torch.bincount(x, weight), rtol=1e-12, atol=1e-12)
    for bins in (300, 1000):
        _compare_counts(device, torch.bincount, torch.randint(0, bins, (200_000,)))


def test_what_cannot_be_counted(device: str) -> None:
    for dtype in (torch.complex64, torch.bool, torch.int64):
        with pytest.raises(NotImplementedError):
            torch.histc(torch.ones(3, dtype=dtype, device=device), 2, 0, 2)
    for dtype in (torch.complex64, torch.bool, torch.float32):
        with pytest.raises(NotImplementedError):
            torch.bincount(torch.ones(3, dtype=dtype, device=device))
    for x in (torch.tensor([3, -1]), torch.ones(2, 2, dtype=torch.int64)):
        with pytest.raises(RuntimeError, match="1-d non-negative integral"):
            torch.bincount(x.to(device))


def _compare_counts(device: str, count: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> None:
    expected, found = count(x), count(x.to(device))
    assert found.dtype == expected.dtype
    assert torch.equal(found.cpu(), expected)
