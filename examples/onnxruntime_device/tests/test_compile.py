"""`torch.compile` by the device, beside torch's CPU."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import nn

import torchgraft


def test_training(device: str) -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5))
    mine = copy.deepcopy(net).to(device)
    compiled = torch.compile(mine, backend=device)
    for _ in range(3):
        x, y = torch.randn(2, 3, 8, 8), torch.randint(5, (2,))
        expected = F.cross_entropy(net(x), y)
        found = F.cross_entropy(compiled(x.to(device)), y.to(device))
        torch.testing.assert_close(found.cpu(), expected)
        expected.backward()
        found.backward()
    for a, b in zip(mine.parameters(), net.parameters(), strict=True):
        assert a.grad is not None
        torch.testing.assert_close(a.grad.cpu(), b.grad)
    report = torchgraft.compile_report()
    assert [[part.programs for part in graph.parts] for graph in report] == [[1], [1]], str(report)
