"""Distances between rows, and their gradients, against torch's CPU in float64."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
import torch

pytestmark = pytest.mark.no_fallback

NORMS = pytest.mark.parametrize("norm", [0.0, 0.5, 1.0, 1.7, 2.0, 3.0, math.inf])
TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-12, torch.float16: 4e-3, torch.bfloat16: 3e-2}
DTYPES = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)


def _matrices(count: int, *shapes: tuple[int, ...]) -> list[torch.Tensor]:
    """With some numbers in common, so that some differences and distances are zero."""
    return [torch.randint(-3, 4, shapes[k]) / 2 for k in range(count)]


def _close(mine: torch.Tensor, theirs: torch.Tensor, dtype: torch.dtype) -> None:
    assert mine.dtype == dtype
    largest = max(1.0, float(theirs.abs().max())) if theirs.numel() else 1.0
    torch.testing.assert_close(mine.detach().cpu().double(), theirs, rtol=0, atol=TOLERANCE[dtype] * largest)


def _cdist(norm: float) -> Callable[..., torch.Tensor]:
    return lambda a, b: torch.cdist(a, b, norm, compute_mode="donot_use_mm_for_euclid_dist")


def _compare(
    device: str, inputs: list[torch.Tensor], dtype: torch.dtype, distance: Callable[..., torch.Tensor]
) -> None:
    mine = [x.to(dtype).to(device).requires_grad_() for x in inputs]
    theirs = [x.double().requires_grad_() for x in inputs]
    got, expected = distance(*mine), distance(*theirs)
    assert got.shape == expected.shape
    _close(got, expected.detach(), dtype)
    grad = torch.randint(-4, 5, expected.shape).double()
    expected_grads = torch.autograd.grad(expected, theirs, grad)
    for a, b in zip(torch.autograd.grad(got, mine, grad.to(dtype).to(device)), expected_grads, strict=True):
        _close(a, b, dtype)


@DTYPES
@NORMS
def test_two_matrices(device: str, norm: float, dtype: torch.dtype) -> None:
    rows, others, width = random.randint(1, 20), random.randint(1, 20), random.randint(1, 100)
    inputs = _matrices(2, (rows, width), (others, width))
    _compare(device, inputs, dtype, _cdist(norm))


@NORMS
def test_batches(device: str, norm: float) -> None:
    for shapes in [((2, 3, 5, 4), (2, 3, 7, 4)), ((3, 1, 5, 4), (2, 70, 4)), ((66, 3), (4, 2, 3))]:
        _compare(device, _matrices(2, *shapes), torch.float32, _cdist(norm))


def test_the_matrix_product(device: str) -> None:
    """Many rows, whose Euclidean distances torch takes from one product."""
    a, b = torch.randn(3, 40, 17), torch.randn(3, 30, 17)
    got = torch.cdist(a.to(device), b.to(device))
    torch.testing.assert_close(got.cpu().double(), torch.cdist(a.double(), b.double()), rtol=1e-4, atol=1e-3)
    far = torch.cdist(a.to(device), a.to(device), compute_mode="use_mm_for_euclid_dist").cpu()
    assert (far.diagonal(dim1=1, dim2=2) < 1e-2).all()


@DTYPES
@NORMS
def test_pairs_of_rows(device: str, norm: float, dtype: torch.dtype) -> None:
    for rows in (1, 2, random.randint(3, 9), 70):
        inputs = _matrices(1, (rows, random.randint(1, 80)))
        _compare(device, inputs, dtype, lambda x: torch.nn.functional.pdist(x, norm))


@NORMS
def test_layouts(device: str, norm: float) -> None:
    """Strided, transposed, and inside of larger memory."""
    a, b = torch.randn(9, 12), torch.randn(6, 20)
    mine_a, mine_b = a.to(device), b.to(device)
    for cut in (lambda t: t[1:, ::2][:, :5], lambda t: t[:5, 3:8].t()):
        got, expected = torch.cdist(cut(mine_a), cut(mine_b), norm), torch.cdist(cut(a), cut(b), norm)
        torch.testing.assert_close(got.cpu(), expected, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(
            torch.pdist(cut(mine_a).contiguous(), norm).cpu(),
            torch.pdist(cut(a).contiguous(), norm),
            rtol=1e-5,
            atol=1e-5,
        )
    out = torch.empty(6, 9, device=device).t()
    torch.ops.aten._cdist_forward.out(mine_a, mine_a[:6], norm, None, out=out)
    torch.testing.assert_close(out.cpu(), torch.cdist(a, a[:6], norm), rtol=1e-5, atol=1e-5)


@NORMS
def test_nothing(device: str, norm: float) -> None:
    """Without rows there are no distances, and without columns they are zero; gradients are zero."""
    for shapes in [((0, 3), (4, 3)), ((4, 3), (0, 3)), ((4, 0), (3, 0)), ((0, 4, 3), (0, 2, 3))]:
        a, b = (torch.randn(shape, device=device, requires_grad=True) for shape in shapes)
        got = torch.cdist(a, b, norm)
        assert torch.equal(got.cpu(), torch.cdist(a.detach().cpu(), b.detach().cpu(), norm))
        for grad in torch.autograd.grad(got.sum(), (a, b)):
            assert not grad.any()
    for shape in [(0, 3), (1, 3), (4, 0)]:
        x = torch.randn(shape, device=device, requires_grad=True)
        got = torch.nn.functional.pdist(x, norm)
        assert got.shape == (6 if shape[0] == 4 else 0,)
        assert not got.any()
        assert not torch.autograd.grad(got.sum(), x)[0].any()


@pytest.mark.parametrize("norm", [0.0, 1.0, 2.0, 3.0, math.inf])
def test_nan(device: str, norm: float) -> None:
    x = torch.randn(4, 5)
    x[1, 2] = math.nan
    got = torch.cdist(x.to(device), x.to(device), norm).cpu()
    assert got[1].isnan().all()
    assert got[:, 1].isnan().all()
    assert not got[0, 2:].isnan().any()


def test_errors(device: str) -> None:
    x = torch.ones(3, 4, device=device)
    with pytest.raises(RuntimeError, match="same number of columns"):
        torch.cdist(x, x[:, :2])
    with pytest.raises(RuntimeError, match="non-negative p"):
        torch.cdist(x, x, -1)
    with pytest.raises(RuntimeError, match="floating-point"):
        torch.cdist(x.long(), x.long())
    with pytest.raises(RuntimeError, match="same device"):
        torch.cdist(x, x.cpu())
