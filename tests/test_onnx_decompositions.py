"""Ops that ONNX has not, gradients most of all, written as ops that it has: beside torch's own."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F

from torchgraft.compiler.graph_compilers.onnx import _DECOMPOSITIONS

aten = torch.ops.aten


def assert_same(op: torch._ops.OpOverload, *arguments: object) -> None:
    mine, expected = _DECOMPOSITIONS[op](*arguments), op(*arguments)
    mine, expected = ((each,) if isinstance(each, torch.Tensor) else tuple(each) for each in (mine, expected))
    for a, b in zip(mine, expected, strict=True):
        if b is None:
            assert a is None
        else:
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize("size", [7, 8, 9, 10])
@pytest.mark.parametrize("kernel", [1, 2, 3])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_convolution_backward(dims: int, kernel: int, size: int) -> None:
    for stride, padding, dilation in itertools.product((1, 2, 3), (0, 1, 2), (1, 2)):
        # The last dimension differs from the others, and has all arguments of its own.
        x = torch.randn(2, 3, *[size] * (dims - 1), size + 1, dtype=torch.float64)
        w = torch.randn(4, 3, *[kernel] * (dims - 1), 2, dtype=torch.float64)
        sizes = [[each] * (dims - 1) + [other] for each, other in ((stride, 2), (padding, 1), (dilation, 1))]
        rest = (*sizes, False, [0] * dims, 1)
        grad = torch.randn_like(aten.convolution(x, w, None, *rest))
        for mask in ([True] * 3, [False, True, False], [True, False, False], [False, False, True]):
            assert_same(aten.convolution_backward.default, grad, x, w, [4], *rest, mask)


def test_convolution_backward_of_one_number_for_all_dimensions() -> None:
    x, w = torch.randn(2, 3, 9, 8, dtype=torch.float64), torch.randn(4, 3, 3, 3, dtype=torch.float64)
    rest = ([2], [1], [1], False, [0], 1)
    grad = torch.randn_like(aten.convolution(x, w, None, *rest))
    assert_same(aten.convolution_backward.default, grad, x, w, [4], *rest, [True] * 3)


@pytest.mark.parametrize(("groups", "inside", "outside"), [(2, 4, 6), (4, 4, 4), (4, 4, 8), (3, 6, 3)])
def test_convolution_backward_in_groups(groups: int, inside: int, outside: int) -> None:
    for stride, padding, dilation in itertools.product((1, 2), (0, 1), (1, 2)):
        x = torch.randn(3, inside, 9, 8, dtype=torch.float64)
        w = torch.randn(outside, inside // groups, 3, 2, dtype=torch.float64)
        rest = ([stride, 1], [padding, 1], [dilation, 1], False, [0, 0], groups)
        grad = torch.randn_like(aten.convolution(x, w, None, *rest))
        assert_same(aten.convolution_backward.default, grad, x, w, [outside], *rest, [True] * 3)


def test_transposed_convolutions_are_left_as_they_are() -> None:
    x, w = torch.randn(2, 3, 9, 8), torch.randn(3, 3, 3, 3)
    rest = ([1, 1], [0, 0], [1, 1], True, [0, 0], 1)
    grad = torch.randn_like(aten.convolution(x, w, None, *rest))
    decomposed = _DECOMPOSITIONS[aten.convolution_backward.default](grad, x, w, [3], *rest, [True] * 3)
    assert decomposed is NotImplemented


@pytest.mark.parametrize("shape", [(2, 3, 9, 8), (3, 9, 8), (1, 1, 4, 4)])
@pytest.mark.parametrize(
    "arguments", [(2, 2, 0, 1, False), (3, 2, 1, 1, True), (2, 1, 0, 2, False), (3, 1, 1, 1, False)]
)
def test_max_pool_backward(shape: tuple[int, ...], arguments: tuple[int, int, int, int, bool]) -> None:
    kernel, stride, padding, dilation, ceil = arguments
    x = torch.randn(shape, dtype=torch.float64)
    found, indices = F.max_pool2d(x, kernel, stride, padding, dilation, ceil, return_indices=True)
    pairs = [[each] * 2 for each in (kernel, stride, padding, dilation)]
    # Windows overlap where the stride is less than the kernel: gradients of one place are added up.
    grad = torch.randn_like(found)
    assert_same(aten.max_pool2d_with_indices_backward.default, grad, x, *pairs, ceil, indices)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64])
@pytest.mark.parametrize("threshold", [0, 1])
def test_threshold_backward(dtype: torch.dtype, threshold: int) -> None:
    x = torch.tensor([-2, -1, 0, 1, 2, 3]).to(dtype)
    grad = torch.arange(1, 7).to(dtype)
    assert_same(aten.threshold_backward.default, grad, x, threshold)
    if dtype.is_floating_point:
        x[1], x[2] = float("nan"), float("inf")
        assert_same(aten.threshold_backward.default, grad, x, threshold)
    assert_same(aten.threshold_backward.default, grad[:0], x[:0], threshold)


def test_an_empty_batch() -> None:
    x, w = torch.randn(0, 3, 9, 8), torch.randn(4, 3, 3, 3)
    rest = ([2, 2], [1, 1], [1, 1], False, [0, 0], 1)
    grad = torch.empty(aten.convolution(x, w, None, *rest).shape)
    decomposed = _DECOMPOSITIONS[aten.convolution_backward.default](grad, x, w, [4], *rest, [True] * 3)
    assert decomposed is NotImplemented  # there is no convolution with an empty kernel
    found, indices = aten.max_pool2d_with_indices(x, [2, 2])
    pool = ([2, 2], [2, 2], [0, 0], [1, 1], False, indices)
    assert_same(aten.max_pool2d_with_indices_backward.default, torch.empty_like(found), x, *pool)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 7), (4, 3, 5, 6), (2, 3, 2, 3, 2)])
def test_batch_norm(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = torch.randn(shape).to(dtype) + 1
    kept = torch.float32 if dtype == torch.float16 else dtype
    weight, bias, mean = (torch.randn(3, dtype=kept) for _ in range(3))
    tolerance = {"rtol": 2e-3, "atol": 2e-3} if dtype == torch.float16 else {}
    running = aten._native_batch_norm_legit_functional.default, (mean, torch.rand(3, dtype=kept))
    for op, others in (running, (aten._native_batch_norm_legit.no_stats, ())):
        for affine in ((weight, bias), (None, None)):
            given = (x, *affine, *others)
            mine, expected = _DECOMPOSITIONS[op](*given, True, 0.1, 1e-3), op(*given, True, 0.1, 1e-3)
            for a, b in zip(mine, expected, strict=True):
                torch.testing.assert_close(a, b, check_dtype=False, **tolerance)
            assert mine[0].dtype == dtype and all(each.dtype == kept for each in mine[1:])
            assert _DECOMPOSITIONS[op](*given, False, 0.1, 1e-3) is NotImplemented


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
@pytest.mark.parametrize("correction", [None, 0, 1, 2.5, 100])
@pytest.mark.parametrize("dim", [None, [], [0], [1, -1]])
def test_variances(dim: list[int] | None, correction: float | None) -> None:
    for keepdim, dtype in itertools.product((False, True), (torch.float32, torch.float16)):
        x = torch.randn(3, 4, 5).to(dtype)
        for op in (aten.var.correction, aten.var_mean.correction):
            mine = _DECOMPOSITIONS[op](x, dim, correction=correction, keepdim=keepdim)
            expected = op(x, dim, correction=correction, keepdim=keepdim)
            for a, b in zip(*([each] if op is aten.var.correction else each for each in (mine, expected)), strict=True):
                torch.testing.assert_close(a, b)
