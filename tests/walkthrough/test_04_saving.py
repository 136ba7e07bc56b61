"""Saving a model, and loading it: on the device, and where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn


@pytest.fixture
def model(device: str) -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).to(device)


def test_the_parameters(device: str, model: nn.Module, tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    # <save>
    torch.save(model.state_dict(), path)

    again = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).to(device)
    again.load_state_dict(torch.load(path))
    # </save>
    x = torch.randn(5, 3, device=device)
    model.eval()
    again.eval()
    assert again(x).equal(model(x))


def test_loaded_on_another_device(device: str, model: nn.Module, tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    torch.save(model.state_dict(), path)
    # <elsewhere>
    on_cpu = torch.load(path, map_location="cpu")
    on_device = torch.load(path, map_location=device)
    # </elsewhere>
    assert all(tensor.device.type == "cpu" for tensor in on_cpu.values())
    assert all(tensor.device.type == torch.device(device).type for tensor in on_device.values())
    for name, tensor in on_cpu.items():
        assert tensor.equal(on_device[name].cpu())


def test_going_on_where_one_stopped(device: str, tmp_path: Path) -> None:
    """With the optimizer's state and the random numbers, a training goes on as if it had not stopped."""

    def start() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 1)).to(device)
        return model, torch.optim.Adam(model.parameters())

    def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> float:
        loss = model(torch.ones(16, 3, device=device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    module = getattr(torch, torch.device(device).type)
    model, optimizer = start()
    step(model, optimizer)
    path = tmp_path / "checkpoint.pt"
    torch.save(
        {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "random": module.get_rng_state()}, path
    )
    expected = [step(model, optimizer) for _ in range(3)]

    model, optimizer = start()
    checkpoint = torch.load(path)
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    module.set_rng_state(checkpoint["random"])
    assert [step(model, optimizer) for _ in range(3)] == expected
