"""Sorting and what follows from it, against torch's CPU."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from conftest import Script

pytestmark = pytest.mark.no_fallback

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
DTYPES = [*FLOATS, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool]


def make(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Values of both signs, many of them equal."""
    if dtype.is_floating_point:
        return (torch.randn(shape) * 20).round().div(8).to(dtype)
    if dtype == torch.bool:
        return torch.rand(shape) > 0.5
    low = 0 if dtype == torch.uint8 else torch.iinfo(dtype).min
    return torch.where(
        torch.rand(shape) < 0.5, torch.randint(0, 9, shape), torch.randint(low, torch.iinfo(dtype).max, shape)
    ).to(dtype)


def distinct(*shape: int) -> torch.Tensor:
    """Numbers of both signs, no two equal: an order that is not stable, and a place, are then the only right ones."""
    count = math.prod(shape)
    return (torch.randperm(count).float() - count // 2).div(64).view(shape)


def compare(device: str, f: Callable[..., Any], *inputs: torch.Tensor, backward: bool = False) -> None:
    results: list[list[torch.Tensor]] = []
    for where in (device, "cpu"):
        copies = [x.detach().clone().to(where) for x in inputs]
        if backward:
            copies = [x.requires_grad_() for x in copies]
        out = f(*copies)
        out = list(out) if isinstance(out, (tuple, list)) else [out]
        if backward:
            (out[0] * torch.linspace(1, 2, out[0].numel()).view(out[0].shape).to(where)).sum().backward()
            out += [x.grad for x in copies if x.grad is not None]
        results.append([o.detach() for o in out])
    for got, expected in zip(*results, strict=True):
        assert got.device.type != "cpu"
        torch.testing.assert_close(
            got.cpu(), expected, rtol=1e-6 if backward else 0, atol=1e-6 if backward else 0, equal_nan=True
        )


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sort_dtypes(device: str, dtype: torch.dtype, descending: bool) -> None:
    for length in (1, 20, 63, 64, 129, 256, 300):
        compare(device, lambda a: a.sort(stable=True, descending=descending), make((5, length), dtype))


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sort_shortest_rows(device: str, dtype: torch.dtype, descending: bool) -> None:
    for length in range(1, 11):
        x = make((203, length), dtype)
        if dtype.is_floating_point:
            x[torch.rand(x.shape) < 0.1] = float("nan")
            x[torch.rand(x.shape) < 0.2] = -0.0
        compare(device, lambda a: a.sort(stable=True, descending=descending), x)
        compare(device, lambda a: a.view(7, 29, -1).transpose(1, 2).sort(dim=1, stable=True, descending=descending), x)


def test_sort(device: str) -> None:
    x = make((6, 50, 4))
    for dim in (0, 1, 2, -1):
        compare(device, lambda a, d=dim: a.sort(dim=d, stable=True), x)
        compare(device, lambda a, d=dim: a.transpose(0, 1).sort(dim=d, stable=True), x)
    compare(device, lambda a: a.sort(1), distinct(4, 500), backward=True)
    compare(device, lambda a: a.argsort(dim=1, stable=True), x)
    compare(device, lambda a: a.msort(), torch.randn(40, 3))
    compare(device, lambda a: a.sort(), torch.tensor(2.0))
    compare(device, lambda a: a.sort(), make((3, 0)))
    compare(device, lambda a: a[:, ::2].sort(dim=1, stable=True), x)
    values, places = torch.empty(0, device=device), torch.empty(0, dtype=torch.long, device=device)
    torch.sort(x.to(device), dim=1, stable=True, out=(values, places))
    assert torch.equal(values.cpu(), x.sort(1).values)


def test_out_keeps_its_strides(device: str) -> None:
    x = make((6, 40))
    around = torch.zeros(6, 40, 2, device=device), torch.zeros(6, 40, 2, dtype=torch.int64, device=device)
    torch.sort(x.to(device), stable=True, out=(around[0][..., 1], around[1][..., 1]))
    for written, expected in zip(around, x.sort(stable=True), strict=True):
        assert torch.equal(written[..., 1].cpu(), expected)
        assert not written[..., 0].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.int16, torch.float64], ids=str)
def test_long_rows_with_few_digits(device: str, dtype: torch.dtype) -> None:
    """Passes over digits that all keys of a row share are left out, and rows of one tensor have others."""
    x = torch.randint(0, 30, (3, 40_000)).to(dtype)
    x[1] = 7  # no pass at all
    x[2] = torch.randint(-3000, 3000, (40_000,)).to(dtype) * (1024 if dtype == torch.int64 else 4)
    for descending in (False, True):
        compare(device, lambda a, d=descending: a.sort(dim=1, stable=True, descending=d), x)
        compare(device, lambda a, d=descending: a[0].sort(stable=True, descending=d), x)
    if dtype == torch.int64:
        ends = torch.tensor([torch.iinfo(dtype).min, torch.iinfo(dtype).max, 0, -1]).repeat(10_000)
        compare(device, lambda a: a.sort(stable=True), ends)


def test_sort_special_values(device: str) -> None:
    x = torch.tensor([3.0, float("nan"), -0.0, float("inf"), 0.0, -float("inf"), -3.0, float("nan"), 0.0, -0.0, 1e-40])
    for dtype in FLOATS:
        for descending in (False, True):
            for y in (x, x.repeat(20)):
                compare(device, lambda a, r=descending: a.sort(stable=True, descending=r), y.to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.uint8, torch.float16], ids=str)
def test_sort_long_rows(device: str, dtype: torch.dtype) -> None:
    compare(device, lambda a: a.sort(stable=True), make((200_001,), dtype))
    compare(device, lambda a: a.sort(stable=True, descending=True), make((2, 70_000), dtype))
    compare(device, lambda a: a.sort(stable=True), make((300, 1000), dtype))


@pytest.mark.parametrize("largest", [False, True])
@pytest.mark.parametrize("dtype", DTYPES[:-1], ids=str)
def test_topk(device: str, dtype: torch.dtype, largest: bool) -> None:
    x = make((5, 300), dtype)
    for k in (0, 1, 7, 40, 100, 300):
        compare(device, lambda a, k=k: a.topk(k, largest=largest).values, x)
        top = x.to(device).topk(k, largest=largest)
        assert torch.equal(x.gather(1, top.indices.cpu()), top.values.cpu())
        assert all(len(set(row)) == k for row in top.indices.cpu().tolist())


def test_topk_shapes(device: str) -> None:
    x = distinct(6, 50, 4)
    for dim in (0, 1, 2, -1):
        compare(device, lambda a, d=dim: a.topk(3, d), x, backward=True)
    for k in (0, 1):
        compare(device, lambda a, k=k: a.topk(k), torch.tensor(2.0))
    compare(device, lambda a: a.topk(5), distinct(100_000))
    compare(device, lambda a: a.topk(2, sorted=False).values.sort().values, x)
    with_nan = torch.tensor([1.0, float("nan"), 2.0])
    compare(device, lambda a: a.topk(2).values, with_nan)
    compare(device, lambda a: a.topk(2, largest=False).values, with_nan)
    with pytest.raises(RuntimeError):
        x.to(device).topk(51, 1)


def test_order_statistics(device: str) -> None:
    x = distinct(6, 51, 4)
    for dim in (0, 1, -1):
        compare(device, lambda a, d=dim: a.kthvalue(3, d), x, backward=True)
        compare(device, lambda a, d=dim: a.median(d), x, backward=True)
        compare(device, lambda a, d=dim: a.nanmedian(d, keepdim=True), x)
    compare(device, lambda a: a.median(), x, backward=True)
    compare(device, lambda a: a.quantile(0.3, 1), x)
    compare(device, lambda a: a.quantile(torch.tensor([0.25, 0.75], device=a.device)), x)
    compare(device, lambda a: a.kthvalue(1), torch.tensor(3.0))
    compare(device, lambda a: a.median(), torch.tensor([1, 4, 2, 3]))
    y = x.clone()
    y[0, 3], y[2, :, 1] = float("nan"), float("nan")
    for dim in (0, 1):
        compare(device, lambda a, d=dim: a.median(d).values, y)
        compare(device, lambda a, d=dim: a.nanmedian(d).values, y)
    compare(device, lambda a: a.median(), y)
    compare(device, lambda a: a.nanmedian(), y)


@pytest.mark.parametrize("dtype", DTYPES[:-1], ids=str)
def test_selected_elements(device: str, form: str, dtype: torch.dtype) -> None:
    """Of rows with many equal elements, and NaN: the value is the CPU's, and the place is the first that is left when
    equals before it in order have theirs."""
    for length in (1, 2, 17, 48, 49, 64, 65, 300, 1000):
        x = make((7, length), dtype)
        if dtype.is_floating_point:
            x[1, 0], x[2, length // 2 :], x[3], x[4, length // 2] = (
                float("nan"),
                float("nan"),
                float("nan"),
                float("inf"),
            )
        on_device = x.to(device)
        ordered = x.sort(dim=1, stable=True)
        for k in {1, (length + 1) // 2, length, random.randint(1, length)}:
            value, place = on_device.kthvalue(k, 1)
            assert torch.equal(place.cpu(), ordered.indices[:, k - 1])
            torch.testing.assert_close(value.cpu(), ordered.values[:, k - 1], rtol=0, atol=0, equal_nan=True)
        for pick in (torch.median, torch.nanmedian):
            value, place = pick(on_device, 1)
            torch.testing.assert_close(value.cpu(), pick(x, 1).values, rtol=0, atol=0, equal_nan=True)
            torch.testing.assert_close(
                x.gather(1, place.cpu().unsqueeze(1))[:, 0], value.cpu(), rtol=0, atol=0, equal_nan=True
            )
            torch.testing.assert_close(pick(on_device).cpu(), pick(x), rtol=0, atol=0, equal_nan=True)


def test_selected_into_results_that_are_not_contiguous(device: str) -> None:
    x = distinct(4, 5, 6)
    for dim in (0, 1, 2):
        value = torch.zeros(*x.median(dim).values.shape, 2, device=device)
        place = torch.zeros(value.shape, dtype=torch.int64, device=device)
        torch.median(x.to(device), dim, out=(value[..., 0], place[..., 0]))
        assert torch.equal(value[..., 0].cpu(), x.median(dim).values)
        assert torch.equal(place[..., 0].cpu(), x.median(dim).indices)
        assert not value[..., 1].any()


def test_ways_that_others_come_before(script: Script) -> None:
    """Each way does whatever it says it would do."""
    text = """
        import torch

        for length in (1, 5, 100, 20_000):
            x = torch.randint(0, 9, (3, length)).float()
            x[0, length // 2 :] = float("nan")
            y = x.to("ocl")
            for name in ("sort", "median", "nanmedian"):
                got, expected = (getattr(torch, name)(z, dim=1) for z in (y, x))
                torch.testing.assert_close(got.values.cpu(), expected.values, rtol=0, atol=0, equal_nan=True)
            got = y.kthvalue((length + 1) // 2, 1)
            assert torch.equal(got.indices.cpu(), x.sort(stable=True).indices[:, (length - 1) // 2])
            torch.testing.assert_close(y.topk(1).values.cpu(), x.topk(1).values, rtol=0, atol=0, equal_nan=True)
    """
    selection = "insertion,selection.network,selection.radix-select"
    for left_out in (selection, f"{selection},sort.network,sort.rank,parallel-radix,gpu-radix", "selection.network"):
        changes = {"TORCHGRAFT_FALLBACK": "error", "TORCHGRAFT_WITHOUT_WAYS": left_out}
        script(text, autoload=True, TORCHGRAFT_BACKEND="ocl", **changes)


def test_mode(device: str) -> None:
    x = torch.randint(0, 5, (6, 51, 4))
    for dim in (0, 1, -1):
        compare(device, lambda a, d=dim: a.mode(d).values, x)
        mode = x.to(device).mode(dim, keepdim=True)
        assert torch.equal(x.gather(dim, mode.indices.cpu()), mode.values.cpu())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_unique_dtypes(device: str, dtype: torch.dtype) -> None:
    compare(device, lambda a: a.unique(return_inverse=True, return_counts=True), make((9, 11), dtype))


def test_unique_booleans(device: str) -> None:
    for x in (torch.rand(7, 9) > 0.5, torch.ones(5, dtype=torch.bool), torch.zeros(3, 4) > 0, torch.zeros(0) > 0):
        for inverse, counts in itertools.product([False, True], repeat=2):
            compare(device, lambda a, i=inverse, c=counts: a.unique(return_inverse=i, return_counts=c), x)
        compare(device, lambda a: a.t().unique(return_inverse=True), x)


def test_unique(device: str) -> None:
    x = torch.randint(0, 4, (30, 2, 3))
    compare(device, lambda a: a.unique(), x)
    compare(device, lambda a: a.unique(), x[:0])
    for dim in (0, 1):
        compare(device, lambda a, d=dim: a.unique(dim=d, return_inverse=True, return_counts=True), x)
        compare(device, lambda a, d=dim: a.unique_consecutive(dim=d, return_inverse=True, return_counts=True), x)
    compare(device, lambda a: a.unique_consecutive(return_inverse=True, return_counts=True), x)
    compare(device, lambda a: a.unique_consecutive(), torch.tensor([1, 1, 2, 2, 1]))


@pytest.mark.no_fallback
@pytest.mark.quick(dtype=[torch.float32, torch.bfloat16, torch.int64])
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int32, torch.uint8], ids=str
)
def test_one_of_each_short_row(device: str, dtype: torch.dtype) -> None:
    """Of few different numbers, and some NaN."""
    for length in range(1, 10):
        x = torch.randint(0, 4, (531, length)).to(dtype)
        if dtype.is_floating_point:
            x[torch.rand(x.shape) < 0.2] = float("nan")
        given, ordered = x.to(device), x.sort(dim=1, stable=True)
        for k in range(length):
            value, place = given.kthvalue(k + 1, 1)
            torch.testing.assert_close(value.cpu(), ordered.values[:, k], rtol=0, atol=0, equal_nan=True)
            assert torch.equal(x.gather(1, place.cpu()[:, None])[:, 0].nan_to_num(), value.cpu().nan_to_num())
        for pick in (torch.median, torch.nanmedian):
            value, place = pick(given, 1)
            torch.testing.assert_close(value.cpu(), pick(x, 1).values, rtol=0, atol=0, equal_nan=True)
            assert torch.equal(x.gather(1, place.cpu()[:, None])[:, 0].nan_to_num(), value.cpu().nan_to_num())
