"""Rows shorter than a vector, of which there are many, so that vectors go across them, and rows of few vectors, which
end within one. Against torch's CPU in float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

pytestmark = pytest.mark.no_fallback

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.uint8]
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
# As few as have no kernel of their own, and more, which end within a vector.
ROWS = (1023, 1027)
LENGTHS = (1, 2, 3, 5, 8, 13, 15, 16, 17, 22, 48, 63, 71)

Function = Callable[[torch.Tensor], torch.Tensor]

DIFFERENTIABLE: dict[str, Function] = {
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "sum": lambda x: x.sum(-1),
    "mean": lambda x: x.mean(-1, keepdim=True),
    "norm": lambda x: x.norm(dim=-1),
    "variance": lambda x: x.var(-1, correction=0),
    "logsumexp": lambda x: x.logsumexp(-1),
    "amax": lambda x: x.amax(-1),
    "cumsum": lambda x: x.cumsum(-1),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:], torch.linspace(1, 2, x.shape[-1]).to(x)),
    "rms_norm": lambda x: F.rms_norm(x, x.shape[-1:]),
    "cross_entropy": lambda x: F.cross_entropy(x, (torch.arange(len(x)) % x.shape[-1]).to(x.device)),
}
EXACT: dict[str, Function] = {
    "sum": lambda x: x.sum(-1),
    "prod": lambda x: x.sign().prod(-1),
    "amin": lambda x: x.amin(-1),
    "argmax": lambda x: x.argmax(-1),
    "argmin": lambda x: x.argmin(-1, keepdim=True),
    "place of the largest": lambda x: x.max(-1).indices,
    "any": lambda x: (x > 3).any(-1),
    "all": lambda x: (x > -3).all(-1),
    "count": lambda x: x.count_nonzero(-1),
    "cummax": lambda x: x.cummax(-1).indices,
    "of a slice": lambda x: x[:, :-1].sum(-1) if x.shape[1] > 1 else x.sum(-1),
    "of every second row": lambda x: x[::2].amax(-1),
    "of columns": lambda x: x.t().contiguous().t().amax(-1),
}


@pytest.mark.quick(dtype=torch.float32)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_values_and_gradients(device: str, name: str, dtype: torch.dtype) -> None:
    function = DIFFERENTIABLE[name]
    for rows in ROWS:
        for length in LENGTHS:
            x = torch.randn(rows, length)
            if name in ("layer_norm", "rms_norm"):  # elements that are nearly equal, or 0, have gradients of any size
                x = x.sigmoid() + 0.5 + torch.arange(length)
            x = x.to(dtype)
            exact, given = (x.detach().to(to).requires_grad_() for to in (torch.float64, device))
            expected, got = function(exact), function(given)
            weight = torch.linspace(-1, 1, expected.numel(), dtype=torch.float64).view(expected.shape)
            (expected * weight).sum().backward()
            (got * weight.to(got)).sum().backward()
            assert got.device.type != "cpu"
            assert exact.grad is not None
            assert given.grad is not None
            tolerance = TOLERANCE[dtype]
            pairs = [(got, expected), (given.grad, exact.grad)]
            if name == "layer_norm" and length == 2:  # whose gradients are nothing but what is rounded
                pairs.pop()
            for one, other in pairs:
                assert_close(one.detach().cpu().double(), other.detach(), rtol=tolerance, atol=4 * tolerance)


@pytest.mark.quick(dtype=[torch.float32, torch.int64])
@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=str)
@pytest.mark.parametrize("name", EXACT)
def test_exact_results(device: str, name: str, dtype: torch.dtype) -> None:
    """Of small whole numbers, with equal ones and, of floating point, NaN and infinities."""
    function = EXACT[name]
    for rows in ROWS:
        for length in LENGTHS:
            x = torch.randint(0 if dtype == torch.uint8 else -4, 5, (rows, length)).to(dtype)
            if dtype.is_floating_point and name != "prod":
                x[torch.rand(x.shape) < 0.05] = float("nan")
                x[torch.rand(x.shape) < 0.05] = float("inf")
            assert_close(function(x.to(device)).cpu(), function(x), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("length", [1, 7, 16, 23, 64, 100, 4096, 4097])
@pytest.mark.parametrize("rows", [1, 3, 17, 40])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.quick(dtype=[torch.float32, torch.bfloat16])
def test_rows_of_infinities(device: str, rows: int, length: int, dtype: torch.dtype) -> None:
    """Of which the logarithms of sums are found for several at once, and exponentials of 16 bits are held."""
    x = torch.randn(rows, length, dtype=dtype)
    x[0] = -float("inf")
    x[rows // 2, length // 2] = float("inf")
    x[-1, -1] = float("nan")
    for function in (lambda x: x.log_softmax(1), lambda x: x.logsumexp(1), lambda x: x.softmax(1)):
        tolerance = TOLERANCE[dtype]
        expected = function(x.double())
        assert_close(function(x.to(device)).cpu().double(), expected, equal_nan=True, rtol=tolerance, atol=tolerance)
    given = x.to(device)
    torch.softmax(given, 1, out=given)
    assert_close(given.cpu().double(), expected, equal_nan=True, rtol=tolerance, atol=tolerance)
    negated = torch._neg_view(x.to(device)).logsumexp(1)
    assert_close(negated.cpu().double(), (-x).double().logsumexp(1), equal_nan=True, rtol=tolerance, atol=tolerance)


def test_into_given_results(device: str) -> None:
    """Whose elements do not lie side by side."""
    x = torch.randn(2000, 6)
    out = torch.zeros(2000, 3, device=device)
    torch.sum(x.to(device), 1, out=out[:, 1])
    torch.softmax(x.to(device)[:, :3], 1, out=out[1:].view(-1)[:6000].view(-1, 3)[:1999])
    expected = torch.zeros(2000, 3)
    expected[:, 1] = x.sum(1)
    expected[1:] = x[:1999, :3].softmax(1)
    assert_close(out.cpu(), expected)
