"""Ops of torchvision's in C++ have a kernel for the CPU, and run there."""

from __future__ import annotations

import pytest
import torch
from libraries import library

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.filterwarnings("ignore:torchvision.* runs on the CPU:UserWarning"),
]


def test_boxes(device: str) -> None:
    ops = library("torchvision.ops")
    boxes, scores = torch.rand(20, 4) * 10, torch.rand(20)
    boxes[:, 2:] += boxes[:, :2] + 1
    expected = ops.nms(boxes, scores, 0.5)
    assert torch.equal(ops.nms(boxes.to(device), scores.to(device), 0.5).cpu(), expected)


def test_gradients(device: str) -> None:
    ops = library("torchvision.ops")
    regions = torch.tensor([[0, 1.0, 1, 9, 9], [0, 2, 2, 12, 14]])
    images = torch.randn(1, 2, 16, 16)
    results = []
    for where in ("cpu", device):
        own = images.to(where, copy=True).requires_grad_()
        pooled = ops.roi_align(own, regions.to(where), 4)
        pooled.square().sum().backward()
        assert own.grad is not None and pooled.device.type == own.grad.device.type == torch.device(where).type
        results.append((pooled.detach().cpu(), own.grad.cpu()))
    torch.testing.assert_close(results[1], results[0])
