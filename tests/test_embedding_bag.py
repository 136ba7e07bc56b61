"""Embedding bags and their gradients against torch's CPU in float64."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import torchgraft

pytestmark = pytest.mark.no_fallback

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-13, torch.float16: 1e-2, torch.bfloat16: 8e-2}
DTYPES = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
MODES = pytest.mark.parametrize("mode", ["sum", "mean", "max"])
INDICES = pytest.mark.parametrize("index", [torch.int64, torch.int32], ids=str)


def _bags(rows: int, count: int, bags: int, index: torch.dtype) -> dict[str, torch.Tensor]:
    """Indices of a table, and where the bags begin; some are empty."""
    starts = sorted(random.randint(0, count) for _ in range(bags - 1))
    return {"input": torch.randint(0, rows, (count,), dtype=index), "offsets": torch.tensor([0, *starts], dtype=index)}


def _compare(
    device: str,
    weight: torch.Tensor,
    tensors: dict[str, torch.Tensor],
    factors: torch.Tensor | None = None,
    **options: Any,
) -> None:
    dtype = weight.dtype
    leaves = [weight] if factors is None else [weight, factors]
    mine = [x.to(device).requires_grad_() for x in leaves]
    theirs = [x.double().requires_grad_() for x in leaves]

    def bag(leaves: list[torch.Tensor], tensors: dict[str, torch.Tensor]) -> torch.Tensor:
        given = dict(options, per_sample_weights=leaves[1]) if len(leaves) == 2 else options
        return F.embedding_bag(weight=leaves[0], **tensors, **given)

    got, expected = bag(mine, {k: t.to(device) for k, t in tensors.items()}), bag(theirs, tensors)
    atol = TOLERANCE[dtype]
    assert got.dtype == dtype
    torch.testing.assert_close(got.detach().cpu().double(), expected.detach(), rtol=atol, atol=atol)
    grad = torch.randn(expected.shape).to(dtype)
    expected_grads = torch.autograd.grad(expected, theirs, grad.double())
    for a, b in zip(torch.autograd.grad(got, mine, grad.to(device)), expected_grads, strict=True):
        torch.testing.assert_close(a.cpu().double(), b, rtol=atol, atol=4 * atol)
    with torch.no_grad():
        alone = bag([x.detach() for x in mine], {k: t.to(device) for k, t in tensors.items()})
        assert torch.equal(alone, got)


@DTYPES
@MODES
@INDICES
def test_modes(device: str, mode: str, index: torch.dtype, dtype: torch.dtype) -> None:
    for width in (1, random.randint(2, 30), 70):
        weight = torch.randn(11, width).to(dtype)
        tensors = _bags(11, random.randint(1, 40), random.randint(1, 9), index)
        _compare(device, weight, tensors, mode=mode)
        _compare(device, weight, tensors, mode=mode, padding_idx=int(tensors["input"][0]))
        whole = dict(tensors, offsets=torch.cat([tensors["offsets"], torch.tensor([len(tensors["input"])])]).to(index))
        _compare(device, weight, whole, mode=mode, include_last_offset=True)


@DTYPES
@INDICES
def test_weighted_sums(device: str, index: torch.dtype, dtype: torch.dtype) -> None:
    weight = torch.randn(7, random.randint(1, 80)).to(dtype)
    tensors = _bags(7, 25, 6, index)
    factors = torch.randn(25).to(dtype)
    _compare(device, weight, tensors, factors, mode="sum")
    _compare(device, weight, tensors, factors, mode="sum", padding_idx=3)


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_scaled_by_frequency(device: str, mode: str) -> None:
    """By the row's own count, as the documentation says; torch's CPU takes another row's at times."""
    tensors = _bags(6, 30, 5, torch.int64)
    weight = torch.randn(6, 8, device=device, requires_grad=True)
    moved = {k: t.to(device) for k, t in tensors.items()}
    plain, scaled = (
        torch.autograd.grad(F.embedding_bag(weight=weight, **moved, mode=mode, scale_grad_by_freq=by).sum(), weight)[0]
        for by in (False, True)
    )
    counts = torch.bincount(tensors["input"], minlength=6).clamp(min=1)
    torch.testing.assert_close(scaled.cpu(), plain.cpu() / counts.unsqueeze(1))


@MODES
def test_bags_of_one_size(device: str, mode: str) -> None:
    weight = torch.randn(20, 9)
    _compare(device, weight, {"input": torch.randint(0, 20, (6, 5))}, mode=mode)
    _compare(device, weight, {"input": torch.randint(0, 20, (6, 5))}, mode=mode, padding_idx=2)


@MODES
def test_large(device: str, mode: str) -> None:
    """More than one thread's share, of rows and of columns."""
    _compare(device, torch.randn(600, 150), _bags(600, 900, 80, torch.int64), mode=mode)


def test_layouts(device: str) -> None:
    weight, indices = torch.randn(12, 10), torch.randint(0, 12, (30,))
    offsets = torch.tensor([0, 4, 4, 9])
    for cut in (lambda t: t[:, ::2], lambda t: t[:10].t()[:8, :7]):
        rows = cut(weight).size(0)
        got = F.embedding_bag(indices.to(device)[::2] % rows, cut(weight.to(device)), offsets.to(device), mode="sum")
        expected = F.embedding_bag(indices[::2] % rows, cut(weight), offsets, mode="sum")
        torch.testing.assert_close(got.cpu(), expected)


@MODES
def test_nothing(device: str, mode: str) -> None:
    weight = torch.randn(4, 3)
    none = torch.empty(0, dtype=torch.int64)
    _compare(device, weight, {"input": none, "offsets": torch.zeros(3, dtype=torch.int64)}, mode=mode)
    _compare(device, weight, {"input": none, "offsets": none}, mode=mode)
    # Bags of padding alone are empty.
    everything = {"input": torch.full((4,), 2), "offsets": torch.tensor([0, 3])}
    _compare(device, weight, everything, mode=mode, padding_idx=2)


def test_module(device: str) -> None:
    bags = torch.nn.EmbeddingBag(10, 4, mode="mean", padding_idx=0)
    x = torch.randint(0, 10, (5, 3))
    expected = bags(x).detach()
    torch.testing.assert_close(bags.to(device)(x.to(device)).detach().cpu(), expected)


def test_errors(device: str) -> None:
    weight = torch.ones(4, 3, device=device)
    with pytest.raises(RuntimeError, match="rows of the table, but found idx to be 4"):
        F.embedding_bag(torch.tensor([[0, 4]], device=device), weight).cpu()
    with pytest.raises(RuntimeError, match="has to be 0"):
        F.embedding_bag(torch.tensor([0, 1], device=device), weight, torch.tensor([1], device=device)).cpu()
    with pytest.raises(RuntimeError, match="offsets"):
        F.embedding_bag(torch.tensor([0, 1], device=device), weight, torch.tensor([0, 5], device=device)).cpu()
    with pytest.raises(RuntimeError, match="int"):
        F.embedding_bag(torch.tensor([0.0, 1], device=device), weight, torch.tensor([0], device=device))
    indices, offsets = torch.tensor([0, 1], device=device), torch.tensor([0], device=device)
    for name, arguments in {
        "input": (weight, indices.view(1, 1, 2), offsets),
        "offsets": (weight, indices, offsets.view(1, 1)),
        "weight": (weight[None], indices, offsets),
    }.items():
        with pytest.raises(RuntimeError, match=f"{name} has to be a"):
            torch.embedding_bag(*arguments)
    assert (weight + 1 == 2).all(), "the device still works"


@MODES
def test_gradients_of_a_forward_on_the_cpu(device: str, mode: str) -> None:
    """It leaves out, at times, which bag an index is in."""
    tensors = _bags(11, 30, 5, torch.int64)
    weight, indices, offsets = torch.randn(11, 7), tensors["input"], tensors["offsets"]
    number = {"sum": 0, "mean": 1, "max": 2}[mode]
    result, bag_of, sizes, places = torch.ops.aten._embedding_bag(weight, indices, offsets, False, number)
    grad = torch.randn_like(result)

    def gradients(where: str) -> list[torch.Tensor]:
        moved = [t.to(where) for t in (grad, indices, offsets, bag_of, sizes, places)]
        made = [torch.ops.aten._embedding_bag_backward(*moved, 11, False, number, False, None)]
        if mode == "sum":
            kept = [t.to(where) for t in (grad, weight, indices, offsets, bag_of)]
            made.append(torch.ops.aten._embedding_bag_per_sample_weights_backward(*kept, number))
        return made

    with torchgraft.fallback("silent"):
        got = gradients(device)
    for mine, theirs in zip(got, gradients("cpu"), strict=True):
        torch.testing.assert_close(mine.cpu(), theirs)
