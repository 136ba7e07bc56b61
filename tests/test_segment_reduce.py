"""Reductions of segments against torch's CPU: given by lengths or by offsets, along any axis, and their gradients."""

from __future__ import annotations

import random

import pytest
import torch

pytestmark = pytest.mark.no_fallback

REDUCTIONS = pytest.mark.parametrize("reduce", ["sum", "mean", "prod", "max", "min"])
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-13, torch.float16: 1e-2, torch.bfloat16: 8e-2}
DTYPES = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)


def _lengths(rows: int, segments: int) -> list[int]:
    cuts = sorted(random.randint(0, rows) for _ in range(segments - 1))
    return [b - a for a, b in zip([0, *cuts], [*cuts, rows], strict=True)]


def _data(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """With ties and zeros, and at times a NaN."""
    x = (torch.randint(-3, 4, shape) / 2).to(dtype)
    if random.random() < 0.3 and x.numel():
        x.view(-1)[random.randrange(x.numel())] = float("nan")
    return x


def _compare(device: str, x: torch.Tensor, reduce: str, index: dict[str, torch.Tensor], **options: object) -> None:
    mine, theirs = x.to(device).requires_grad_(), x.double().requires_grad_()
    moved = {k: t.to(device) for k, t in index.items()}
    got = torch.segment_reduce(mine, reduce, **moved, **options)  # type: ignore[arg-type]
    expected = torch.segment_reduce(theirs, reduce, **index, **options)  # type: ignore[arg-type]
    atol = TOLERANCE[x.dtype]
    assert got.dtype == x.dtype
    torch.testing.assert_close(got.detach().cpu().double(), expected.detach(), rtol=atol, atol=atol, equal_nan=True)
    grad = torch.randint(-3, 4, expected.shape).to(x.dtype)
    (a,) = torch.autograd.grad(got, mine, grad.to(device))
    (b,) = torch.autograd.grad(expected, theirs, grad.double())
    torch.testing.assert_close(a.cpu().double(), b, rtol=atol, atol=4 * atol, equal_nan=True)


@DTYPES
@REDUCTIONS
@pytest.mark.quick(dtype=torch.float32)
@pytest.mark.quick(dtype=torch.bfloat16, reduce="mean")
def test_lengths(device: str, reduce: str, dtype: torch.dtype) -> None:
    for index in (torch.int64, torch.int32):
        rows = random.randint(1, 14)
        lengths = {"lengths": torch.tensor(_lengths(rows, random.randint(1, 6)), dtype=index)}
        for shape in ((rows,), (rows, 5), (rows, 3, 2)):
            _compare(device, _data(shape, dtype), reduce, lengths)
            _compare(device, _data(shape, dtype), reduce, lengths, initial=2, unsafe=True)


@REDUCTIONS
def test_offsets(device: str, reduce: str) -> None:
    for index in (torch.int64, torch.int32):
        offsets = torch.tensor([0, *_lengths(17, 5)], dtype=index).cumsum(0, dtype=index)
        for shape in ((17,), (17, 4)):
            _compare(device, _data(shape, torch.float32), reduce, {"offsets": offsets})
            _compare(device, _data(shape, torch.float32), reduce, {"offsets": offsets}, initial=-1.5)
    _compare(device, _data((9,), torch.float32), reduce, {"offsets": torch.tensor([2, 5])})


@REDUCTIONS
def test_axes(device: str, reduce: str) -> None:
    x = _data((2, 3, 8, 2), torch.float32)
    lengths = torch.tensor([[_lengths(8, 4) for _ in range(3)] for _ in range(2)])
    _compare(device, x, reduce, {"lengths": lengths}, axis=2)
    starts = torch.cat([torch.zeros(2, 3, 1, dtype=torch.int64), lengths.cumsum(2)], 2)
    _compare(device, x, reduce, {"offsets": starts}, axis=2)


@REDUCTIONS
def test_large(device: str, reduce: str) -> None:
    """More than one thread's share."""
    x = _data((700, 40), torch.float32).clamp(-1.0, 1.0)
    _compare(device, x, reduce, {"lengths": torch.tensor(_lengths(700, 300))})


@REDUCTIONS
def test_layouts(device: str, reduce: str) -> None:
    x, lengths = torch.randn(6, 10), torch.tensor([1, 9, 4, 9, 0, 9])
    got = torch.segment_reduce(x.to(device).t()[1:6], reduce, lengths=lengths.to(device)[::2])
    expected = torch.segment_reduce(x.t()[1:6], reduce, lengths=lengths[::2])
    torch.testing.assert_close(got.cpu(), expected, equal_nan=True)  # the mean of nothing
    out = torch.empty(6, 3, device=device).t()
    torch.ops.aten.segment_reduce.out(x.to(device).t()[1:6], reduce, lengths=lengths.to(device)[::2], out=out)
    assert torch.equal(out.nan_to_num(7), got.nan_to_num(7))


@REDUCTIONS
def test_nothing(device: str, reduce: str) -> None:
    _compare(device, torch.empty(0, 4), reduce, {"lengths": torch.tensor([0, 0])})
    _compare(device, torch.empty(3, 0), reduce, {"lengths": torch.tensor([1, 2])})


def test_errors(device: str) -> None:
    x = torch.ones(3, 4, device=device)

    def lengths(*values: int) -> torch.Tensor:
        return torch.tensor(values, device=device)

    with pytest.raises(RuntimeError, match="to sum to data"):
        torch.segment_reduce(x, "sum", lengths=lengths(1, 1)).cpu()
    with pytest.raises(RuntimeError, match="negative value"):
        torch.segment_reduce(x, "sum", lengths=lengths(4, -1)).cpu()
    with pytest.raises(RuntimeError, match="do not rise"):
        torch.segment_reduce(x, "sum", offsets=lengths(0, 2, 1, 3)).cpu()
    with pytest.raises(RuntimeError, match="last dimension"):
        torch.segment_reduce(x, "sum", lengths=lengths(1, 2), axis=1)
    with pytest.raises(RuntimeError, match="reduce argument"):
        torch.segment_reduce(x, "median", lengths=lengths(1, 2))
    with pytest.raises(RuntimeError, match="lengths or offsets"):
        torch.segment_reduce(x, "sum")
    with pytest.raises(RuntimeError, match="indices"):
        torch.segment_reduce(x, "sum", lengths=lengths(1, 2), indices=lengths(1, 2))
    assert torch.equal(torch.segment_reduce(x, "sum", lengths=lengths(1, 1), unsafe=True).cpu(), torch.ones(2, 4))
