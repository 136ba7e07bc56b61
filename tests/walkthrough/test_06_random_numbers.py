"""Random numbers: one generator for each device, and everything repeatable."""

from __future__ import annotations

import pytest
import torch
from torch import nn

pytestmark = pytest.mark.no_fallback


def test_a_seed_repeats_everything(device: str) -> None:
    # <seed>
    torch.manual_seed(42)  # the CPU's generator and every device's
    first = torch.randn(4, device=device)
    torch.manual_seed(42)
    second = torch.randn(4, device=device)
    assert first.equal(second)
    # </seed>
    assert not torch.randn(4, device=device).equal(second)


def test_a_generator_of_ones_own(device: str) -> None:
    # <generator>
    generator = torch.Generator(device).manual_seed(7)
    noise = torch.randn(3, device=device, generator=generator)
    # </generator>
    untouched = torch.random.get_rng_state()
    generator.manual_seed(7)
    assert torch.randn(3, device=device, generator=generator).equal(noise)
    assert torch.random.get_rng_state().equal(untouched)


def test_a_state_put_back(device: str) -> None:
    module = getattr(torch, torch.device(device).type)
    dropout = nn.Dropout()
    x = torch.ones(100, device=device)
    state = module.get_rng_state()
    once = dropout(x)
    module.set_rng_state(state)
    assert dropout(x).equal(once)


def test_checkpointing_draws_the_same_numbers_again(device: str) -> None:
    """Recomputing a layer in backward must drop the same elements as the forward did."""
    x = torch.ones(1000, device=device, requires_grad=True)
    y = torch.utils.checkpoint.checkpoint(nn.Dropout(), x, use_reentrant=False)
    y.sum().backward()
    assert x.grad is not None and x.grad.equal(y.detach())
