"""Tensors on the device: made there or moved there, computed with, and brought back."""

from __future__ import annotations

import numpy
import pytest
import torch

pytestmark = pytest.mark.no_fallback


def test_made_on_the_device(device: str) -> None:
    # <create>
    zeros = torch.zeros(2, 3, device=device)
    steps = torch.arange(6, device=device).reshape(2, 3)
    like = torch.full_like(steps, 7)  # on the device of its model
    with torch.device(device):  # for lines that name no device
        ones = torch.ones(2, 3)
    # </create>
    for tensor in (zeros, steps, like, ones):
        assert tensor.device.type == torch.device(device).type
        assert tensor.shape == (2, 3)


def test_moved_there_and_back(device: str) -> None:
    # <move>
    on_cpu = torch.tensor([1.0, 2.0, 3.0])
    on_device = on_cpu.to(device)
    back = on_device.cpu()
    as_array = back.numpy()
    number = on_device.sum().item()
    # </move>
    assert back.equal(on_cpu)
    assert isinstance(as_array, numpy.ndarray)
    assert number == 6.0


def test_computed_with(device: str) -> None:
    # <compute>
    a = torch.tensor([[1.0, 2.0], [3.0, 4.0]], device=device)
    product = a @ a.t()
    a.mul_(10)  # in place
    row = a[0]  # a view: the same memory
    row += 1
    large = a[a > 25]
    # </compute>
    assert product.tolist() == [[5.0, 11.0], [11.0, 25.0]]
    assert a.tolist() == [[11.0, 21.0], [30.0, 40.0]]
    assert large.tolist() == [30.0, 40.0]


def test_printed(device: str) -> None:
    assert repr(torch.tensor([1, 2], device=device)) == f"tensor([1, 2], device='{torch.device(device).type}:0')"


def test_devices_do_not_mix(device: str) -> None:
    """As with any accelerator, PyTorch moves nothing by itself."""
    # <mix>
    with pytest.raises(RuntimeError, match="same device"):
        torch.ones(3, device=device) + torch.ones(3)
    # </mix>
    # A tensor without dimensions is a number, and numbers go anywhere.
    assert (torch.ones(3, device=device) + torch.tensor(1.0)).tolist() == [2.0, 2.0, 2.0]
