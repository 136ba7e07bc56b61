"""Gradients of gamma and Dirichlet draws against torch's CPU in float64, in every region of their formulas."""

from __future__ import annotations

import pytest
import torch

pytestmark = pytest.mark.no_fallback

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
CLOSE = {torch.float32: 1e-5, torch.float64: 1e-9}


@DTYPES
def test_gamma(device: str, dtype: torch.dtype) -> None:
    alpha = torch.logspace(-3, 4, 200, dtype=torch.float64).unsqueeze(1)
    x = (alpha * torch.logspace(-2, 2, 101, dtype=torch.float64)).to(dtype)
    alpha = alpha.expand(x.shape).to(dtype)
    expected = torch._standard_gamma_grad(alpha.double(), x.double()).to(dtype)
    got = torch._standard_gamma_grad(alpha.to(device), x.to(device)).cpu()
    torch.testing.assert_close(got, expected, rtol=CLOSE[dtype], atol=CLOSE[dtype], equal_nan=True)


@DTYPES
def test_dirichlet(device: str, dtype: torch.dtype) -> None:
    alpha = torch.logspace(-2, 3, 40, dtype=torch.float64).view(-1, 1, 1)
    total = alpha + torch.logspace(-2, 3, 40, dtype=torch.float64).view(-1, 1)
    x = torch.linspace(0.001, 0.999, 61, dtype=torch.float64)
    arguments = [t.to(dtype) for t in torch.broadcast_tensors(x, alpha, total)]
    expected = torch._dirichlet_grad(*(t.double() for t in arguments)).to(dtype)
    got = torch._dirichlet_grad(*(t.to(device) for t in arguments)).cpu()
    torch.testing.assert_close(got, expected, rtol=CLOSE[dtype], atol=CLOSE[dtype], equal_nan=True)


def test_draws_have_gradients(device: str) -> None:
    """The mean of a gamma draw grows with its parameter one to one."""
    alpha = torch.full((20000,), 3.0, device=device, requires_grad=True)
    torch.distributions.Gamma(alpha, torch.ones_like(alpha)).rsample().sum().backward()
    assert alpha.grad is not None
    assert abs(float(alpha.grad.mean()) - 1) < 0.05
    parameters = torch.tensor([1.0, 2.0, 3.0], device=device, requires_grad=True)
    torch.distributions.Dirichlet(parameters.expand(20000, 3)).rsample()[:, 0].mean().backward()
    assert parameters.grad is not None
    torch.testing.assert_close(parameters.grad.cpu(), torch.tensor([5 / 36, -1 / 36, -1 / 36]), rtol=0, atol=0.01)
