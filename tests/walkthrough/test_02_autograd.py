"""A first gradient."""

from __future__ import annotations

import pytest
import torch

pytestmark = pytest.mark.no_fallback


def test_a_first_gradient(device: str) -> None:
    # <gradient>
    x = torch.tensor([1.0, 2.0, 3.0], device=device, requires_grad=True)
    y = (x**2).sum()
    y.backward()
    print(x.grad)  # 2x
    # </gradient>
    assert x.grad is not None
    assert x.grad.tolist() == [2.0, 4.0, 6.0]
    assert x.grad.device == x.device


def test_gradients_add_up_until_they_are_reset(device: str) -> None:
    x = torch.ones(2, device=device, requires_grad=True)
    for _ in range(2):
        (3 * x).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [6.0, 6.0]
    x.grad = None
    with torch.no_grad():
        assert not (3 * x).requires_grad


def test_through_the_cpu_and_back(device: str) -> None:
    """A graph may cross devices; each gradient arrives where its tensor is."""
    # <across>
    weight = torch.tensor([2.0, 3.0], requires_grad=True)  # on the CPU
    loss = weight.to(device).prod().cpu()
    loss.backward()
    # </across>
    assert weight.grad is not None
    assert weight.grad.tolist() == [3.0, 2.0]


def test_a_gradient_of_a_gradient(device: str) -> None:
    x = torch.tensor(2.0, device=device, requires_grad=True)
    (first,) = torch.autograd.grad(x**3, x, create_graph=True)
    (second,) = torch.autograd.grad(first, x)
    assert (first.item(), second.item()) == (12.0, 12.0)
