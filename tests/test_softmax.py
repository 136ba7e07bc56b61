"""softmax and log_softmax, against torch's CPU in float64."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F

from torchgraft.fallback import fallback

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12, torch.float16: 2e-3, torch.bfloat16: 2e-2}


@pytest.fixture(autouse=True)
def native() -> Iterator[None]:
    with fallback("error"):
        yield


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("shape", "dim"),
    [
        ((5,), 0),
        ((4, 1000), 1),
        ((1000, 10), 1),
        ((3, 70, 50), 1),
        ((70, 3), 0),
        ((2, 3, 4, 5), -2),
        ((1, 20_000), 1),
        ((), 0),
    ],
    ids=str,
)
def test_values_and_gradients(device: str, shape: tuple[int, ...], dim: int, dtype: torch.dtype, log: bool) -> None:
    op = F.log_softmax if log else F.softmax
    x = (torch.randn(shape) * 3).to(dtype)
    grad = torch.randn(shape).to(dtype)
    exact = x.clone().double().requires_grad_()
    expected = op(exact, dim)
    expected.backward(grad.double())
    assert exact.grad is not None
    for a in (x, x.t().contiguous().t()) if len(shape) == 2 else (x,):
        b = a.to(device).requires_grad_()
        got = op(b, dim)
        got.backward(grad.to(device))
        assert b.grad is not None
        assert got.dtype == dtype
        t = TOLERANCE[dtype] * (10 if log else 1)
        torch.testing.assert_close(got.detach().cpu().double(), expected.detach(), rtol=t, atol=t)
        t *= 1 + math.sqrt(x.numel()) * 0.1
        torch.testing.assert_close(b.grad.cpu().double(), exact.grad, rtol=t, atol=t)


@pytest.mark.parametrize("log", [False, True])
def test_special_values(device: str, log: bool) -> None:
    op = F.log_softmax if log else F.softmax
    inf, nan = math.inf, math.nan
    x = torch.tensor([[0, -inf, 1], [-inf, -inf, -inf], [1, inf, 0], [nan, 1, 2], [1e30, -1e30, 0]])
    for y in (x, torch.cat((x, x.repeat(1, 40)[:, :100]), 1), x.t()):
        for dim in (0, 1):
            torch.testing.assert_close(op(y.to(device), dim).cpu(), op(y, dim), equal_nan=True)


def test_empty_and_out(device: str) -> None:
    assert F.softmax(torch.empty(0, 3, device=device), 1).shape == (0, 3)
    assert F.softmax(torch.empty(3, 0, device=device), 1).shape == (3, 0)
    x = torch.randn(6, 200)
    out = torch.empty(200, 6, device=device).t()
    torch._softmax(x.to(device), 1, False, out=out)
    torch.testing.assert_close(out.cpu(), F.softmax(x, 1))
    y = x.to(device)
    torch._softmax(y, 1, False, out=y)
    torch.testing.assert_close(y.cpu(), F.softmax(x, 1))
    assert F.softmax(x.to(device).half(), 1, dtype=torch.float32).dtype == torch.float32
