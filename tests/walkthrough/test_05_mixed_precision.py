"""Mixed precision: products in 16 bits, sums and losses in 32."""

from __future__ import annotations

import pytest
import torch
from torch import nn

pytestmark = pytest.mark.no_fallback


def test_autocast_chooses_the_types(device: str) -> None:
    a = torch.randn(8, 8, device=device)
    with torch.autocast(torch.device(device).type, dtype=torch.bfloat16):
        product = a @ a
        loss = nn.functional.mse_loss(product, a)
        total = a + a
    assert (product.dtype, loss.dtype, total.dtype) == (torch.bfloat16, torch.float32, torch.float32)


def test_training_with_bfloat16(device: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    x = torch.rand(64, 4, device=device)
    y = x.sum(dim=1, keepdim=True)
    losses = []
    for _ in range(40):
        # <bfloat16>
        with torch.autocast(torch.device(device).type, dtype=torch.bfloat16):
            loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        # </bfloat16>
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 5
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())


def test_float16_needs_a_scaler(device: str) -> None:
    """Small gradients vanish in float16, so the loss is scaled up, and a step with an overflow is left out."""
    model = nn.Linear(4, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.rand(8, 4, device=device)
    # <float16>
    scaler = torch.amp.GradScaler(torch.device(device).type, init_scale=1024.0)

    with torch.autocast(torch.device(device).type, dtype=torch.float16):
        loss = model(x).square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    # </float16>
    assert scaler.get_scale() == 1024.0

    before = model.weight.detach().clone()
    scaler.scale(loss.detach().requires_grad_() * float("inf") * model.weight.sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert model.weight.equal(before)
    assert scaler.get_scale() == 512.0
