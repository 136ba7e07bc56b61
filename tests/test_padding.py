"""Padding by a constant, by reflection, by replication and in circles, with gradients, against torch's CPU."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from torchgraft.plans import clear, show

pytestmark = pytest.mark.no_fallback

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
DTYPES = [*FLOATS, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool, torch.complex64]
BORDERS = pytest.mark.parametrize("mode", ["reflect", "replicate"])
ROUNDING = {torch.float32: 1e-5, torch.float64: 1e-13, torch.float16: 2e-3, torch.bfloat16: 2e-2, torch.complex64: 1e-5}


def make(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(shape, dtype=torch.complex64 if dtype.is_complex else torch.float64).to(dtype)
    return torch.randint(0, 9, shape).to(dtype)


def compare(device: str, pad: Callable[..., torch.Tensor], x: torch.Tensor) -> None:
    """What is moved is equal; gradients, sums of up to some hundred numbers, are compared with those of twice the
    precision."""
    got, expected = pad(x.to(device)), pad(x)
    assert got.device.type == torch.device(device).type
    assert torch.equal(got.cpu(), expected)
    assert got.stride() == expected.stride()
    if x.dtype not in ROUNDING:
        return
    wide = torch.complex128 if x.is_complex() else torch.float64
    mine, theirs = x.to(device).requires_grad_(), x.to(wide).requires_grad_()
    out = pad(mine)
    weight = make(out.shape, x.dtype)
    (a,) = torch.autograd.grad(out, mine, weight.to(device))
    (b,) = torch.autograd.grad(pad(theirs), theirs, weight.to(wide))
    assert a.dtype == x.dtype
    tolerance = ROUNDING[x.dtype]
    torch.testing.assert_close(a.cpu().to(wide), b, rtol=tolerance, atol=10 * tolerance)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_constant_dtypes(device: str, dtype: torch.dtype) -> None:
    compare(device, lambda a: F.pad(a, (1, 2, 0, 3), value=1), make((3, 4), dtype))


def test_constant(device: str) -> None:
    x = make((2, 3, 4, 5))
    for pad in ((1, 2), (0, 0), (-1, 2), (1, -2, 2, 1), (1, 1, 1, 1, 1, 1), (-1, -1, -1, -1)):
        compare(device, lambda a, p=pad: F.pad(a, p, value=2.5), x)
    compare(device, lambda a: F.pad(a.transpose(1, 3), (1, 2)), x)
    compare(device, lambda a: F.pad(a, (1, 2)), make((0, 3)))


def test_circular(device: str) -> None:
    for x, pad in (
        (make((3, 4, 5)), (2, 1)), (make((2, 3, 4, 5)), (2, 1, 3, 2)), (make((1, 2, 3, 4, 5)), (2, 1, 3, 2, 1, 1))
    ):  # fmt: skip
        compare(device, lambda a, p=pad: F.pad(a, p, mode="circular"), x)


@BORDERS
def test_rows(device: str, mode: str) -> None:
    for pad in ((5, 5), (0, 3), (3, 0), (-1, 2), (2, -3), (-2, -1), (0, 0)):
        compare(device, lambda a, p=pad: F.pad(a, p, mode=mode), make((2, 3, 6)))
        compare(device, lambda a, p=pad: F.pad(a.transpose(0, 2), p, mode=mode), make((7, 3, 2)))
        compare(device, lambda a, p=pad: F.pad(a.conj(), p, mode=mode), make((3, 7), torch.complex64))
    compare(device, lambda a: F.pad(a, (2, 3), mode=mode), make((0, 3, 6)))


@BORDERS
@pytest.mark.parametrize("dtype", [d for d in DTYPES if d != torch.bool], ids=str)
def test_dtypes(device: str, form: str, dtype: torch.dtype, mode: str) -> None:
    compare(device, lambda a: F.pad(a, (4, 5, 2, 0), mode=mode), make((2, 4, 70), dtype))


@BORDERS
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_random_shapes(device: str, form: str, dims: int, mode: str) -> None:
    for _ in range(12):
        sizes = [random.randint(2, 9) for _ in range(dims - 1)] + [random.choice([random.randint(2, 9), 150])]
        borders: list[int] = []
        for n in reversed(sizes):
            most = n - 1 if mode == "reflect" else 7
            borders += [random.randint(-(n // 2) + 1, most), random.randint(-((n - 1) // 2), most)]
        batch: tuple[int, ...] = random.choice([(), (2,)])
        x = make((*batch, 3, *sizes), random.choice([*FLOATS, torch.complex64]))
        if random.random() < 0.3:  # not contiguous
            x = x.transpose(-1, -dims - 1).contiguous().transpose(-1, -dims - 1)
        compare(device, lambda a, p=borders: F.pad(a, p, mode=mode), x)


@BORDERS
def test_other_memory_formats(device: str, mode: str) -> None:
    for x, pad in ((make((2, 5, 6, 7)), (1, 2, 3, 0)), (make((2, 5, 3, 4, 6)), (1, 2, 3, 0, 1, 1))):
        last = torch.channels_last if x.dim() == 4 else torch.channels_last_3d
        compare(device, lambda a, p=pad: F.pad(a, p, mode=mode), x.contiguous(memory_format=last))


def test_a_launch_each_way(device: str) -> None:
    clear()
    x = torch.randn(2, 3, 8, 9, device=device, requires_grad=True)
    out = F.pad(x, (1, 2, 3, 1), mode="reflect")
    out.backward(torch.ones_like(out))
    for op in ("reflection_pad2d", "reflection_pad2d_backward"):
        assert re.findall(r"(\d+) steps", show(op)) == ["1"]


@BORDERS
def test_refusals(device: str, mode: str) -> None:
    for shape, pad in (((2, 3, 0, 5), (1, 1, 1, 1)), ((2, 3, 4, 5), (-3, -3, 0, 0)), ((3, 4), (1, 1, 1, 1))):
        errors = []
        for where in (device, "cpu"):
            with pytest.raises((RuntimeError, NotImplementedError)) as caught:
                F.pad(torch.ones(shape, device=where), pad, mode=mode)
            errors.append(caught.type)
        assert errors[0] is errors[1]
    if mode == "reflect":
        with pytest.raises(RuntimeError, match="less than"):
            F.pad(torch.ones(2, 3, 4, device=device), (4, 0), mode=mode)
