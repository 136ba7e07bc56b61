"""A device of one's own: the simulator of the README is enough to train a model."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import Script
from documentation import program, read

TRAINING = """
torchgraft.fallback.set_mode("silent")
torch.manual_seed(0)
x = torch.rand(64, 4)
y = x.sum(dim=1, keepdim=True)


def train(device):
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    losses = []
    for _ in range(30):
        loss = torch.nn.functional.mse_loss(model(x.to(device)), y.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


on_cpu, on_simulator = train("cpu"), train("sim")
assert on_simulator[-1] < on_simulator[0] / 5
torch.testing.assert_close(on_simulator, on_cpu)
"""


@pytest.fixture
def simulator() -> str:
    """The program of the README that makes a device."""
    readme = Path("README.md")
    (process,) = (process for process in read(readme).processes if not process.autoload)
    return program(readme, process)


def test_the_simulator_trains_a_model(script: Script, simulator: str) -> None:
    """Every op is a fallback to the CPU, and the losses are the CPU's."""
    script(f"{simulator}\nexec({TRAINING!r}, space)")


def test_what_pytorch_offers_for_it(script: Script, simulator: str) -> None:
    """Nothing of this was written by the device's author."""
    script(
        simulator
        + """
import io, torch

x = torch.randn(1000, device="sim")
assert torch.sim.memory_allocated() >= 4000
with torch.Stream("sim"):
    y = x.sum()
torch.accelerator.synchronize()
file = io.BytesIO()
torch.save({"x": x}, file)
file.seek(0)
assert torch.load(file)["x"].equal(x)
with torch.autocast("sim", torch.bfloat16):
    assert (x.view(10, 100) @ x.view(100, 10)).dtype == torch.bfloat16
torch.manual_seed(3)
first = torch.rand(5, device="sim")
torch.manual_seed(3)
assert torch.rand(5, device="sim").equal(first)
"""
    )
