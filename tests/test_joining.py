"""Tensors put together, transposed and taken apart, against torch's CPU."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

pytestmark = pytest.mark.no_fallback

DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.complex64,
]


def make(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    if dtype.is_complex:
        return torch.randn(shape, dtype=dtype)
    return (torch.randn(shape) * 5).to(dtype) if dtype.is_floating_point else torch.randint(0, 9, shape).to(dtype)


def compare(
    device: str, f: Callable[..., Any], *inputs: torch.Tensor, backward: bool = False, tolerance: float = 0
) -> None:
    """Runs f on the device and on the CPU; with `backward` its gradients are compared too."""
    results: list[list[torch.Tensor]] = []
    for where in (device, "cpu"):
        copies = [x.detach().to(where) for x in inputs]
        if backward:
            copies = [x.requires_grad_() if x.is_floating_point() else x for x in copies]
        out = f(*copies)
        out = list(out) if isinstance(out, (tuple, list)) else [out]
        if backward:
            weighted = [(o * torch.linspace(1, 2, o.numel()).view(o.shape).to(o)).sum() for o in out if o.requires_grad]
            torch.stack(weighted).sum().backward()
            out += [x.grad for x in copies if x.grad is not None]
        results.append([o.detach() for o in out])
    for got, expected in zip(*results, strict=True):
        assert got.device.type != "cpu"
        torch.testing.assert_close(got.cpu(), expected, rtol=tolerance, atol=tolerance)


def test_cat_dims(device: str) -> None:
    x, y = make((4, 5, 6)), make((4, 5, 6))
    for dim in (0, 1, 2, -1, -3):
        compare(device, lambda a, b, d=dim: torch.cat([a, b, a], d), x, y, backward=True)
        compare(device, lambda a, b, d=dim: torch.cat([a.transpose(0, 2), b.transpose(0, 2)], d), x, y, backward=True)
        compare(device, lambda a, b, d=dim: torch.cat([a[1:, ::2], b[1:, ::2]], d), x, y)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_cat_dtypes(device: str, dtype: torch.dtype) -> None:
    compare(device, lambda a, b: torch.cat([a, b], 1), make((3, 4), dtype), make((3, 2), dtype))


def test_cat_mixed_dtypes(device: str) -> None:
    for first, second in (
        (torch.float32, torch.int64),
        (torch.int8, torch.bool),
        (torch.float16, torch.float64),
        (torch.int32, torch.complex64),
    ):
        compare(device, lambda a, b: torch.cat([a, b]), make((3, 4), first), make((2, 4), second))


def test_cat_large_and_many(device: str) -> None:
    compare(device, lambda a, b: torch.cat([a, b], 1), make((700, 90)), make((700, 33)))
    compare(device, lambda a, b: torch.cat([a, b], 0), make((70, 900)), make((33, 900)))
    compare(device, lambda a: torch.cat([a[i] for i in range(50)], 1), make((50, 7, 3)))


@pytest.mark.parametrize("count", [2, 3, 8, 17])
def test_cat_of_lines(device: str, count: int) -> None:
    """Their elements are partitioned whosever they are."""
    lines = [make((n,)) for n in random.choices([1, 7, 300, 20_000], k=count)]
    for where in (lines, [line.to(torch.int8) for line in lines], [line.view(1, -1, 1) for line in lines]):
        dim = where[0].dim() // 2
        assert torch.equal(torch.cat([x.to(device) for x in where], dim).cpu(), torch.cat(where, dim))


def test_cat_empty(device: str) -> None:
    x = make((3, 4))
    compare(device, lambda a: torch.cat([a, torch.empty(0, device=a.device), a], 1), x)
    compare(device, lambda a: torch.cat([a, a[:0]]), x)
    compare(device, lambda a: torch.cat([a[:0], a[:0]]), x)


def test_cat_out(device: str) -> None:
    x, y = make((3, 4)), make((3, 2))
    out = torch.empty(0, device=device)
    torch.cat([x.to(device), y.to(device)], 1, out=out)
    assert torch.equal(out.cpu(), torch.cat([x, y], 1))
    whole = torch.zeros(6, 8, device=device)
    torch.cat([x.to(device), y.to(device)], 1, out=whole[::2, 1:7])
    assert torch.equal(whole.cpu()[::2, 1:7], torch.cat([x, y], 1))
    assert float(whole.cpu()[1::2].abs().sum()) == 0


def test_cat_refuses(device: str) -> None:
    with pytest.raises(RuntimeError):
        torch.cat([torch.ones(2, 3, device=device), torch.ones(3, 3, device=device)], 1)
    with pytest.raises(IndexError):
        torch.cat([torch.ones(2, 3, device=device)], 2)
    with pytest.raises((ValueError, RuntimeError)):
        torch.cat([])


def test_stack(device: str) -> None:
    x, y = make((4, 5)), make((4, 5))
    for dim in (0, 1, 2, -1):
        compare(device, lambda a, b, d=dim: torch.stack([a, b], d), x, y, backward=True)
    compare(device, lambda a: torch.stack([a, a]), torch.tensor(3.0))
    compare(device, lambda a, b: torch.stack([a.t(), b.t()], 1), x, y)
    compare(device, lambda a, b: torch.hstack([a, b]), x, y)
    compare(device, lambda a, b: torch.vstack([a, b]), x, y)
    compare(device, lambda a, b: torch.dstack([a, b]), x, y)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_flip_and_roll(device: str, dtype: torch.dtype) -> None:
    x = make((3, 5, 7), dtype)
    compare(device, lambda a: a.flip(0, 2), x)
    compare(device, lambda a: a.flip(1), x)
    compare(device, lambda a: a.roll((2, -1), (0, 2)), x)


def test_flip(device: str) -> None:
    x = make((3, 5, 7))
    compare(device, lambda a: a.transpose(0, 1).flip(-1), x, backward=True)
    compare(device, lambda a: a[:, 1:, ::2].flip(0, 1, 2), x)
    compare(device, lambda a: a.expand(4, 3, 5, 7).flip(0, 3), x)
    compare(device, lambda a: a.flip(()), torch.tensor(2.0))
    compare(device, lambda a: a.flip(0), make((0, 3)))
    compare(device, lambda a: a.flip(0), make((100_001,)))
    compare(device, lambda a: a.conj().flip(0), make((4, 3), torch.complex64))
    compare(device, lambda a: torch.rot90(a, 1, (0, 2)), x, backward=True)
    compare(device, lambda a: torch.fliplr(a), x)


def test_roll(device: str) -> None:
    x = make((3, 5, 7))
    compare(device, lambda a: a.roll(4), x, backward=True)
    compare(device, lambda a: a.roll((2, -1), (1, 1)), x)
    compare(device, lambda a: a.transpose(0, 2).roll(-9, 0), x, backward=True)
    compare(device, lambda a: a.roll(1, 0), make((0, 3)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.complex128], ids=str)
def test_roll_of_short_rows(device: str, dtype: torch.dtype) -> None:
    for size in range(1, 10):
        x = make((100, size), dtype)
        for shift in (-1, 2, 3 * size + 1):
            compare(device, lambda a, shift=shift: a.roll(shift, 1), x)
        compare(device, lambda a: a.roll((1, 2), (0, 1)), x)
        compare(device, lambda a: a.t().roll(1, 1), x)


def test_repeat_and_tile(device: str) -> None:
    x = make((3, 4))
    compare(device, lambda a: a.repeat(2, 1, 3), x, backward=True, tolerance=1e-5)
    compare(device, lambda a: a.tile(2, 2), x)
    compare(device, lambda a: a.repeat_interleave(3, 1), x, backward=True, tolerance=1e-5)
    compare(device, lambda a: torch.block_diag(a, a), x)


def test_backwards_of_views(device: str) -> None:
    x = make((6, 5, 4))
    compare(device, lambda a: a.select(1, 2), x, backward=True)
    compare(device, lambda a: a[:, 1:4:2], x, backward=True)
    compare(device, lambda a: a.diagonal(1, 0, 2), x, backward=True)
    compare(device, lambda a: a.unfold(1, 2, 1), x, backward=True, tolerance=1e-5)
    compare(device, lambda a: a.chunk(3, 1), x, backward=True)
    compare(device, lambda a: a.split([1, 4], 1), x, backward=True)
    compare(device, lambda a: a.unbind(1), x, backward=True)
    compare(device, lambda a: a.diag_embed(), x, backward=True)
    compare(device, lambda a: F.pixel_shuffle(a, 2), make((1, 8, 3, 3)), backward=True)
