"""Tensors made from numbers, against torch's CPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

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
]
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


def check(got: torch.Tensor, expected: torch.Tensor, tolerance: float = 0) -> None:
    assert got.device.type != "cpu"
    torch.testing.assert_close(got.cpu(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_arange(device: str, dtype: torch.dtype) -> None:
    for arguments in ((7,), (3, 9), (100, 4, -7), (0,), (5, 5)):
        check(torch.arange(*arguments, dtype=dtype, device=device), torch.arange(*arguments, dtype=dtype))


def test_arange_of_fractions(device: str) -> None:
    check(torch.arange(0.5, 9.1, 0.3, device=device), torch.arange(0.5, 9.1, 0.3), 1e-6)
    check(torch.arange(100_000, device=device), torch.arange(100_000))
    large = 2**40
    check(torch.arange(large, large + 5, device=device), torch.arange(large, large + 5))


def test_arange_out(device: str) -> None:
    out = torch.empty(3, dtype=torch.int64, device=device)
    assert torch.arange(3, out=out) is out
    check(out, torch.arange(3))
    strided = torch.zeros(10, device=device)
    torch.arange(5.0, out=strided[::2])
    check(strided, torch.tensor([0.0, 0, 1, 0, 2, 0, 3, 0, 4, 0]))


def test_arange_refuses(device: str) -> None:
    for arguments in ((0, 3, 0), (0, 3, -1)):
        with pytest.raises(RuntimeError):
            torch.arange(*arguments, device=device)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_linspace(device: str, dtype: torch.dtype) -> None:
    tolerance = 1e-2 if dtype in (torch.float16, torch.bfloat16) else 1e-6
    for start, end, steps in ((1, 20, 7), (0, 1, 1), (5, -5, 11), (2, 2, 3), (0, 1, 0)):
        if start > end and dtype == torch.uint8:
            continue
        expected = torch.linspace(start, end, steps, dtype=torch.float64 if dtype.is_floating_point else dtype)
        check(torch.linspace(start, end, steps, dtype=dtype, device=device), expected.to(dtype), tolerance)


def test_linspace_ends_are_exact(device: str) -> None:
    x = torch.linspace(0.1, 0.7, 100_001, device=device).cpu()
    assert x[0] == torch.tensor(0.1) and x[-1] == torch.tensor(0.7)


def test_logspace(device: str) -> None:
    check(torch.logspace(-2, 2, 9, device=device), torch.logspace(-2, 2, 9), 1e-5)
    check(torch.logspace(0, 10, 11, base=2, device=device), torch.logspace(0, 10, 11, base=2), 1e-5)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.bool, torch.complex64], ids=str)
def test_eye(device: str, dtype: torch.dtype) -> None:
    for arguments in ((4,), (3, 5), (5, 3), (0, 4)):
        check(torch.eye(*arguments, dtype=dtype, device=device), torch.eye(*arguments, dtype=dtype))


def test_full_ones_zeros(device: str) -> None:
    for dtype in (*DTYPES, torch.bool, torch.complex64):
        check(torch.ones(3, 2, dtype=dtype, device=device), torch.ones(3, 2, dtype=dtype))
        check(torch.zeros(3, 2, dtype=dtype, device=device), torch.zeros(3, 2, dtype=dtype))
        check(torch.full((3, 2), 1, dtype=dtype, device=device), torch.full((3, 2), 1, dtype=dtype))
    check(torch.full_like(torch.ones(2, device=device), 2.5), torch.full((2,), 2.5))


@pytest.mark.parametrize("name", ["tril", "triu"])
@pytest.mark.parametrize("dtype", [*DTYPES, torch.bool, torch.complex64], ids=str)
def test_triangles(device: str, name: str, dtype: torch.dtype) -> None:
    x = torch.randint(0, 9, (3, 5, 7)).to(dtype)
    y = x.to(device)
    triangle: Callable[..., torch.Tensor] = getattr(torch, name)
    for diagonal in (-9, -2, 0, 1, 9):
        check(triangle(y, diagonal), triangle(x, diagonal))
        check(triangle(y.transpose(0, 2), diagonal), triangle(x.transpose(0, 2), diagonal))
    check(triangle(y[:, 1:, ::2]), triangle(x[:, 1:, ::2]))
    check(triangle(y[:0]), triangle(x[:0]))
    z = y.clone()
    getattr(z, f"{name}_")(1)
    check(z, triangle(x, 1))
    out = torch.empty(0, dtype=dtype, device=device)
    check(triangle(y, out=out), triangle(x))


def test_triangle_of_large_matrices_and_backward(device: str) -> None:
    x = torch.randn(300, 257)
    check(x.to(device).triu(3), x.triu(3))
    y = x.to(device).requires_grad_()
    y.tril().sum().backward()
    assert y.grad is not None
    check(y.grad, torch.ones(300, 257).tril())


@pytest.mark.parametrize("offset", [-9, -3, -1, 0, 1, 4, 9])
def test_triangle_indices(device: str, offset: int) -> None:
    for rows, columns in ((5, 7), (7, 5), (4, 4), (0, 3), (3, 0)):
        check(torch.tril_indices(rows, columns, offset, device=device), torch.tril_indices(rows, columns, offset))
        check(torch.triu_indices(rows, columns, offset, device=device), torch.triu_indices(rows, columns, offset))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_complex_and_polar(device: str, dtype: torch.dtype) -> None:
    a, b = torch.rand(4, 5, dtype=dtype), torch.randn(4, 5, dtype=dtype)
    check(torch.complex(a.to(device), b.to(device)), torch.complex(a, b))
    check(torch.polar(a.to(device), b.to(device)), torch.polar(a, b), 1e-6)
    check(torch.complex(a.to(device).t(), b.to(device).t()), torch.complex(a.t(), b.t()))


def test_meshgrid_and_windows(device: str) -> None:
    a, b = torch.arange(3.0), torch.arange(4.0)
    for got, expected in zip(
        torch.meshgrid(a.to(device), b.to(device), indexing="ij"), torch.meshgrid(a, b, indexing="ij"), strict=True
    ):
        check(got, expected)
    check(torch.hann_window(16, device=device), torch.hann_window(16), 1e-6)


FILLED = {
    "arange": lambda out: torch.arange(0, 4, out=out),
    "linspace": lambda out: torch.linspace(0, 3, 4, out=out),
    "logspace": lambda out: torch.logspace(0, 3, 4, base=2, out=out),
}


@pytest.mark.parametrize("fill", FILLED.values(), ids=FILLED)
def test_sequences_fill_an_out_of_their_size_in_its_shape(fill: Callable[..., object], device: torch.device) -> None:
    for make in (lambda d: torch.zeros(2, 3, device=d).narrow(1, 1, 2), lambda d: torch.zeros(2, 2, device=d)):
        expected, actual = make("cpu"), make(device)
        fill(expected)
        fill(actual)
        assert actual.shape == expected.shape
        assert torch.equal(actual.cpu(), expected)


def test_sequences_resize_an_out_of_another_size(device: torch.device) -> None:
    out = torch.zeros(0, device=device)
    assert torch.arange(5, out=out).tolist() == [0, 1, 2, 3, 4]
    assert out.shape == (5,)
