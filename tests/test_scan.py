"""Running sums and products, against torch's CPU in float64."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from torchgraft.fallback import fallback


@pytest.fixture(autouse=True)
def native() -> Iterator[None]:
    with fallback("error"):
        yield


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("shape", "dim"),
    [((5,), 0), ((1000,), 0), ((40, 333), 1), ((40, 333), 0), ((3, 50, 20), 1), ((), 0), ((70_000,), 0)],
    ids=str,
)
def test_floats(device: str, shape: tuple[int, ...], dim: int, dtype: torch.dtype) -> None:
    x = torch.randn(shape).to(dtype)
    t = {torch.float32: 1e-5, torch.float64: 1e-12, torch.float16: 1e-2, torch.bfloat16: 5e-2}[dtype]
    expected = x.double().cumsum(dim)
    limit = t * max(1.0, expected.abs().max().item())
    torch.testing.assert_close(x.to(device).cumsum(dim).cpu().double(), expected, rtol=t, atol=limit)
    near_one = (1 + 0.05 * x).to(dtype)
    got = near_one[:400].to(device).cumprod(dim) if shape else near_one.to(device).cumprod(dim)
    expected = near_one[:400].double().cumprod(dim) if shape else near_one.double().cumprod(dim)
    torch.testing.assert_close(got.cpu().double(), expected, rtol=20 * t, atol=t)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.bool], ids=str)
def test_integers(device: str, dtype: torch.dtype) -> None:
    x = torch.randint(0, 3, (30, 40)).to(dtype)
    for dim in (0, 1):
        assert torch.equal(x.to(device).cumsum(dim).cpu(), x.cumsum(dim))
        assert torch.equal(x.to(device).cumprod(dim).cpu(), x.cumprod(dim))


def test_forms(device: str) -> None:
    x = torch.randn(20, 30)
    y = x.to(device)
    torch.testing.assert_close(y.t().cumsum(0).cpu(), x.t().cumsum(0))
    torch.testing.assert_close(y.cumsum(0, dtype=torch.float64).cpu(), x.cumsum(0, dtype=torch.float64))
    out = torch.empty(30, 20, device=device).t()
    torch.cumsum(y, 1, out=out)
    torch.testing.assert_close(out.cpu(), x.cumsum(1))
    y.cumsum_(1)
    torch.testing.assert_close(y.cpu(), x.cumsum(1))
    assert torch.empty(0, 3, device=device).cumsum(0).shape == (0, 3)
    z = torch.randn(10, 12, dtype=torch.complex64)
    torch.testing.assert_close(z.to(device).cumprod(0).cpu(), z.cumprod(0))
    torch.testing.assert_close(z.to(device).cumsum(1).cpu(), z.cumsum(1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64, torch.bool], ids=str)
def test_extremes(device: str, dtype: torch.dtype) -> None:
    x = torch.randint(0, 9, (20, 30)).to(dtype)
    if dtype.is_floating_point:
        x[3, 5] = x[3, 9] = float("nan")
    for y in (x, x.t()):
        for dim in (0, 1):
            for op in (torch.cummax, torch.cummin):
                for got, expected in zip(op(y.to(device), dim), op(y, dim), strict=True):
                    torch.testing.assert_close(got.cpu(), expected, equal_nan=True)


def test_logcumsumexp(device: str) -> None:
    x = torch.randn(20, 30) * 10
    x[3] = -float("inf")
    for dim in (0, 1):
        torch.testing.assert_close(x.to(device).logcumsumexp(dim).cpu(), x.logcumsumexp(dim))
