"""F.unfold and F.fold against torch's CPU."""

from __future__ import annotations

import random

import pytest
import torch
import torch.nn.functional as F

pytestmark = pytest.mark.no_fallback

ROUNDING = {torch.float32: 1e-5, torch.float64: 1e-13, torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.complex64: 1e-5}


def make(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(shape, dtype=dtype) if dtype != torch.bool else torch.rand(shape) > 0.8


def compare(device: str, x: torch.Tensor, *windows: tuple[int, int]) -> None:
    """The patches of an image; their sums, beside those of twice the precision; and the gradient of each."""
    size = x.shape[-2:]
    expected = F.unfold(x, *windows)
    mine = x.to(device).requires_grad_(x.dtype != torch.bool)
    patches = F.unfold(mine, *windows)
    assert torch.equal(patches.detach().cpu(), expected)
    assert patches.stride() == expected.stride()
    columns = make(expected.shape, x.dtype)
    if x.dtype == torch.bool:
        assert torch.equal(F.fold(columns.to(device), size, *windows).cpu(), F.fold(columns, size, *windows))
        return
    wide, tolerance = torch.complex128 if x.is_complex() else torch.float64, ROUNDING[x.dtype]
    sums = F.fold(columns.to(wide), size, *windows)
    on_device = columns.to(device).requires_grad_()
    folded = F.fold(on_device, size, *windows)
    torch.testing.assert_close(folded.detach().cpu().to(wide), sums, rtol=tolerance, atol=tolerance)
    (gradient,) = torch.autograd.grad(patches, mine, columns.to(device))  # the same sums
    torch.testing.assert_close(gradient.cpu().to(wide), sums, rtol=tolerance, atol=tolerance)
    (back,) = torch.autograd.grad(folded, on_device, x.to(device))
    assert torch.equal(back.cpu(), expected)


@pytest.mark.parametrize("dtype", [*ROUNDING, torch.bool], ids=str)
def test_dtypes(device: str, form: str, dtype: torch.dtype) -> None:
    compare(device, make((2, 3, 6, 70), dtype), (3, 3), (1, 1), (1, 1), (1, 1))
    compare(device, make((2, 3, 6, 70), dtype), (2, 3), (1, 2), (0, 2), (2, 3))


def test_random_windows(device: str, form: str) -> None:
    for _ in range(30):
        windows = [
            (random.randint(low, high), random.randint(low, high)) for low, high in [(1, 4), (1, 3), (0, 3), (1, 4)]
        ]
        taps, dilation, padding, _ = windows
        least = [max(1, step * (k - 1) + 1 - 2 * pad) for k, step, pad in zip(taps, dilation, padding, strict=True)]
        shape = (3, least[0] + random.randint(0, 9), least[1] + random.choice([random.randint(0, 9), 150]))
        batch: tuple[int, ...] = random.choice([(), (2,)])
        x = make((*batch, *shape), random.choice(list(ROUNDING)))
        if random.random() < 0.3:  # not contiguous
            x = x.transpose(-1, -2).contiguous().transpose(-1, -2)
        compare(device, x, *windows)


def test_nothing_to_move(device: str) -> None:
    assert F.unfold(torch.ones(0, 3, 4, 4, device=device), 2).shape == (0, 12, 9)
    assert F.fold(torch.ones(0, 12, 9, device=device), 4, 2).shape == (0, 3, 4, 4)


def test_refusals(device: str) -> None:
    for where in (device, "cpu"):
        with pytest.raises(RuntimeError, match="sliding blocks"):
            F.unfold(torch.ones(1, 3, 2, 2, device=where), 3)
        with pytest.raises(RuntimeError, match="divisible"):
            F.fold(torch.ones(1, 7, 9, device=where), 4, 2)
