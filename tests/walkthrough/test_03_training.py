"""Training a model: only the word `device` differs from what one writes for the CPU."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

pytestmark = pytest.mark.no_fallback


def rings(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Points of the plane, and whether they lie within the unit circle: no straight line parts them."""
    points = 2 * torch.rand(count, 2) * torch.randn(count, 2).sign()
    return points, (points.norm(dim=1) < 1).long()


def test_a_model_learns(device: str) -> None:
    torch.manual_seed(0)
    # <train>
    data = DataLoader(TensorDataset(*rings(1024)), batch_size=128, shuffle=True, pin_memory=True)
    model = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 2)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)

    for _ in range(15):
        for points, labels in data:
            points = points.to(device, non_blocking=True)
            labels = labels.to(device, non_blocking=True)
            loss = nn.functional.cross_entropy(model(points), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    # </train>

    # <evaluate>
    model.eval()
    with torch.inference_mode():
        points, labels = rings(1000)
        predicted = model(points.to(device)).argmax(dim=1).cpu()
    accuracy = (predicted == labels).float().mean().item()
    # </evaluate>
    assert accuracy > 0.9


def test_an_optimizer_made_before_the_move_still_serves(device: str) -> None:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = model.weight.detach().clone()
    model.to(device)
    model(torch.ones(1, 3, device=device)).sum().backward()
    optimizer.step()
    torch.testing.assert_close(model.weight.detach().cpu(), before - 0.1)
