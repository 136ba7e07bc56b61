"""An op of one's own: declared once, it has every dtype, its in-place and out= forms, and a gradient."""

from __future__ import annotations

import pytest
import torch

import torchgraft

pytestmark = pytest.mark.no_fallback


@pytest.fixture(scope="module", autouse=True)
def _declared() -> None:
    # <declare>
    torch.library.define("walkthrough::softclip", "(Tensor x, float limit=1.0) -> Tensor")
    torchgraft.ops.row("walkthrough::softclip", "limit * @tanh(x / limit)")

    def keep(ctx, inputs, output):
        ctx.save_for_backward(output)
        ctx.limit = inputs[1]

    def backward(ctx, grad):
        (output,) = ctx.saved_tensors
        return grad * (1 - (output / ctx.limit) ** 2), None

    torch.library.register_autograd("walkthrough::softclip", backward, setup_context=keep)
    # </declare>


@pytest.fixture(autouse=True)
def _compiler(device: str) -> None:
    if not getattr(torch, torch.device(device).type).get_device_properties().has_compiler:
        pytest.skip("the device has no compiler")


def test_it_computes(device: str) -> None:
    # <use>
    x = torch.linspace(-9, 9, 7, device=device)
    clipped = torch.ops.walkthrough.softclip(x, 3.0)
    # </use>
    torch.testing.assert_close(clipped.cpu(), 3 * torch.tanh(x.cpu() / 3))
    half = torch.ops.walkthrough.softclip(x.half().view(7, 1).t(), 3.0)
    assert half.dtype == torch.float16
    torch.testing.assert_close(half.cpu().float()[0], clipped.cpu(), rtol=2e-3, atol=2e-3)


def test_it_has_a_gradient(device: str) -> None:
    x = torch.linspace(-2, 2, 5, device=device, requires_grad=True)
    torch.ops.walkthrough.softclip(x, 2.0).sum().backward()
    expected = 1 - torch.tanh(x.detach().cpu() / 2) ** 2
    assert x.grad is not None
    torch.testing.assert_close(x.grad.cpu(), expected)


def test_another_number_makes_no_new_kernel(device: str) -> None:
    x = torch.ones(3, device=device)
    torch.ops.walkthrough.softclip(x, 2.0)
    before = torchgraft.plans.stats().misses
    torch.ops.walkthrough.softclip(x, 5.0)
    assert torchgraft.plans.stats().misses == before
