"""Matrix products against torch's CPU: every dtype, layouts, sizes about the kernels' tiles, broadcast addends."""

from __future__ import annotations

import itertools
import math
import random

import pytest
import torch
import torch.nn.functional as F

pytestmark = pytest.mark.no_fallback

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
COMPLEX = [torch.complex64, torch.complex128]
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]
TOLERANCE = {
    torch.float32: 2e-6,
    torch.float64: 1e-14,
    torch.float16: 1e-3,
    torch.bfloat16: 8e-3,
    torch.complex64: 2e-6,
    torch.complex128: 1e-14,
}
# Below, at and above the widths of registers, tiles and slices; each draw takes one of each.
SIZES = [1, 2, 3, 4, 5, 8, 15, 16, 17, 32, 33, 64, 65, 130, 257, 300]


def _numbers(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(shape, dtype=torch.complex128 if dtype.is_complex else torch.float64).to(dtype)
    return torch.randint(0 if dtype == torch.uint8 else -100, 100, shape).to(dtype)


def _check(got: torch.Tensor, expected: torch.Tensor, terms: int = 1) -> None:
    """`expected` is exact, or in int64, complex128 or float64, and sums `terms` numbers, which may cancel."""
    dtype = got.dtype
    assert got.shape == expected.shape
    if dtype in TOLERANCE:
        scale = max(math.sqrt(terms), expected.abs().max().item() if expected.numel() else 1.0)
        torch.testing.assert_close(
            got.cpu().to(expected.dtype), expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype] * scale
        )
    else:
        assert torch.equal(got.cpu(), expected.to(dtype))  # sums wrap


def _wide(x: torch.Tensor) -> torch.Tensor:
    if x.is_complex():
        return x.to(torch.complex128)
    return x.to(torch.float64 if x.is_floating_point() else torch.int64)


def _laid_out(x: torch.Tensor, layout: str) -> torch.Tensor:
    """The same matrices, lying otherwise."""
    if layout == "transposed":
        return x.mT.contiguous().mT
    if layout == "strided":
        big = x.new_zeros(*x.shape[:-2], 2 * x.shape[-2], 3 * x.shape[-1])
        big[..., ::2, ::3] = x
        return big[..., ::2, ::3]
    if layout == "apart":
        return torch.nn.functional.pad(x, (1, 2))[..., 1:-2]
    return x


@pytest.mark.parametrize("second", ["plain", "transposed", "strided"])
@pytest.mark.parametrize("first", ["plain", "transposed", "strided"])
@pytest.mark.parametrize("dtype", FLOATS + COMPLEX + INTEGERS, ids=str)
@pytest.mark.quick(dtype=torch.float32)
@pytest.mark.quick(
    dtype=[torch.bfloat16, torch.int64, torch.complex64], first=["plain", "transposed"], second="strided"
)
def test_products(device: str, dtype: torch.dtype, first: str, second: str) -> None:
    for m, n, k in [(random.choice(SIZES), random.choice(SIZES), random.choice(SIZES)) for _ in range(3)]:
        a, b = _numbers(dtype, m, k), _numbers(dtype, k, n)
        x, y = _laid_out(a.to(device), first), _laid_out(b.to(device), second)
        _check(x @ y, _wide(a) @ _wide(b), k)
        _check(x.expand(3, m, k).bmm(y.expand(3, k, n)), (_wide(a) @ _wide(b)).expand(3, m, n), k)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.int32], ids=str)
@pytest.mark.parametrize("few", [1, 3], ids=["one row", "three rows"])
def test_few_rows(device: str, dtype: torch.dtype, few: int) -> None:
    for n, k in [(1000, 300), (37, 515), (1, 700), (2500, 5), (3, 1)]:
        a, b = _numbers(dtype, few, k), _numbers(dtype, k, n)
        for layout in ("plain", "transposed"):
            _check(a.to(device) @ _laid_out(b.to(device), layout), _wide(a) @ _wide(b), k)
            # And few columns.
            _check(_laid_out(b.to(device), layout).mT @ a.to(device).mT, _wide(b).mT @ _wide(a).mT, k)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64, torch.complex64], ids=str)
@pytest.mark.parametrize("shape", [(37, 40), (40,), (37, 1), (1, 1), ()], ids=str)
def test_addend(device: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    a, b, d = _numbers(dtype, 37, 21), _numbers(dtype, 21, 40), _numbers(dtype, *shape)
    alpha, beta = (2, 3) if dtype in INTEGERS else (0.5, -2.0)
    expected = beta * _wide(d) + alpha * (_wide(a) @ _wide(b))
    _check(torch.addmm(d.to(device), a.to(device), b.to(device), alpha=alpha, beta=beta), expected)
    batched = torch.baddbmm(
        d.to(device), a.to(device).expand(2, 37, 21), b.to(device).expand(2, 21, 40), alpha=alpha, beta=beta
    )
    _check(batched, expected.expand(2, 37, 40))


def test_addend_that_is_not_read(device: str) -> None:
    a, b = torch.randn(5, 6), torch.randn(6, 7)
    nothing = torch.full((5, 7), float("nan"))
    _check(torch.addmm(nothing.to(device), a.to(device), b.to(device), beta=0), (a.double() @ b.double()))


def test_in_place_and_out(device: str) -> None:
    a, b, c = torch.randn(33, 33), torch.randn(33, 33), torch.randn(33, 33)
    x, y, z = a.to(device), b.to(device), c.to(device)
    expected = c.double() + a.double() @ b.double()
    _check(z.clone().addmm_(x, y), expected)
    out = torch.empty(33, 66, device=device)[:, ::2]
    assert torch.addmm(z, x, y, out=out) is out
    _check(out, expected)
    # An output that is also a factor.
    torch.mm(x, y, out=x)
    _check(x, a.double() @ b.double())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int32], ids=str)
@pytest.mark.parametrize(
    ("m", "k", "n"), [(101, 40, 100), (35, 300, 49), (8, 20, 64), (30, 31, 7), (9, 65, 17), (11, 10, 10), (4, 3, 3)]
)
@pytest.mark.parametrize("batch", [1, 3])
def test_nothing_beside_the_result_is_written(
    device: str, dtype: torch.dtype, m: int, k: int, n: int, batch: int
) -> None:
    """Whose rows touch, and whose do not: at the edges vectors end beside it."""
    a, b = _numbers(dtype, batch, m, k), _numbers(dtype, batch, k, n)
    for shape, place in (
        ((batch + 2, m, n), (slice(1, -1), slice(None), slice(None))),
        ((batch, m + 2, n + 3), (slice(None), slice(1, -1), slice(1, -2))),
    ):
        whole = torch.full(shape, 7, dtype=dtype, device=device)
        torch.bmm(a.to(device), b.to(device), out=whole[place])
        _check(whole[place], _wide(a) @ _wide(b), k)
        around = whole.cpu()
        around[place] = 7
        assert (around == 7).all()


def test_edges_of_tiles(device: str) -> None:
    """What is left of rows, columns and steps in blocks of several tiles, with addends of each kind."""
    for m, k, n in [(97, 33, 81), (100, 100, 100), (129, 129, 129), (130, 270, 113), (13, 47, 97), (264, 7, 66)]:
        a, b = _numbers(torch.float32, m, k), _numbers(torch.float32, k, n)
        for first, second in (("plain", "plain"), ("transposed", "transposed")):
            x, y = _laid_out(a.to(device), first), _laid_out(b.to(device), second)
            _check(x @ y, _wide(a) @ _wide(b), k)
            for shape in ((n,), (m, 1)):
                d = _numbers(torch.float32, *shape)
                _check(torch.addmm(d.to(device), x, y, beta=2), 2 * _wide(d) + _wide(a) @ _wide(b), k)


@pytest.mark.quick(second="transposed")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64, torch.int32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("second", ["plain", "transposed"])
def test_wide_products_of_short_sums(device: str, dtype: torch.dtype, second: str) -> None:
    """Blocks are the wider the shorter the sums; more than one of them, the last of a few columns."""
    for m, k, n in [(70, 16, 2500), (9, 64, 1200), (33, 65, 1190), (130, 128, 601), (20, 1, 3001)]:
        a, b = _numbers(dtype, m, k), _numbers(dtype, k, n)
        y = _laid_out(b.to(device), second)
        _check(a.to(device) @ y, _wide(a) @ _wide(b), k)
        _check(_laid_out(a.to(device), "transposed") @ y, _wide(a) @ _wide(b), k)


# Batches, rows, sums, columns: of one tile, of several and of a part of one; of one to four vectors of columns, with B
# in place and copied; and with what a tile's last row stores beyond the result's rows.
SMALL = [
    (9, 116, 2, 5),
    (3, 56, 4, 7),
    (20, 2, 30, 20),
    (6, 3, 41, 35),
    (4, 19, 57, 34),
    (11, 1, 8, 60),
    (7, 33, 65, 17),
]
# Many of a few elements each: whole products in the text, in vectors and not; sums along rows that lie together, of
# less and more than a vector; a row times a matrix.
TINY = [
    (300, 3, 3, 3),
    (77, 4, 4, 1),
    (64, 2, 2, 2),
    (201, 1, 4, 1),
    (90, 3, 1, 4),
    (130, 1, 8, 7),
    (70, 8, 2, 4),
    (200, 1, 10, 1),
    (99, 1, 33, 1),
    (85, 12, 12, 1),
    (70, 1, 20, 40),
    (70, 3, 70, 2),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int32, torch.bfloat16, torch.complex64], ids=str)
@pytest.mark.parametrize("sizes", SMALL + TINY, ids=str)
@pytest.mark.quick(dtype=torch.float32, sizes=SMALL[::2] + TINY)
@pytest.mark.quick(dtype=torch.bfloat16, sizes=SMALL[:1] + TINY[::4])
@pytest.mark.quick(dtype=torch.complex64, sizes=TINY[:3])
def test_batches_of_small_products(device: str, sizes: tuple[int, int, int, int], dtype: torch.dtype) -> None:
    batch, m, k, n = sizes
    a, b, bias, column = (_numbers(dtype, *shape) for shape in ((batch, m, k), (batch, k, n), (n,), (batch, m, 1)))
    expected = _wide(a) @ _wide(b)
    for layout in ("plain", "transposed", "strided"):
        x, y = a.to(device), _laid_out(b.to(device), layout)
        _check(x @ y, expected, k)
        _check(torch.bmm(x, y[:1].expand(batch, -1, -1)), _wide(a) @ _wide(b[:1]), k)
        _check(torch.bmm(x[:1].expand(batch, -1, -1), y), _wide(a[:1]) @ _wide(b), k)
        _check(torch.baddbmm(bias.to(device), x, y, beta=2, alpha=3), 3 * expected + 2 * _wide(bias), k)
        _check(torch.baddbmm(column.to(device), x, y), expected + _wide(column), k)
        around = torch.full((batch + 1, m + 2, n + 3), 7, dtype=dtype, device=device)
        torch.bmm(x, y, out=around[1:, 1:-1, 1:-2])
        _check(around[1:, 1:-1, 1:-2], expected, k)
        around[1:, 1:-1, 1:-2] = 7
        assert (around == 7).all()
        rows = torch.full((batch + 2, m, n), 7, dtype=dtype, device=device)  # those that touch, between others
        _check(rows[1:-1].zero_().baddbmm_(x, y), expected, k)
        assert (rows[0] == 7).all() and (rows[-1] == 7).all()


# Rows, sums and columns: few rows with B along the columns and along the sums, whole vectors and parts of one; short
# sums with many columns; sums beyond what a copy of B holds; sums shorter than a vector of B; several panels of columns
# of a B that is read in place; sums of one product, and one column, of which a stride means nothing.
FEW = [
    (1, 800, 10),
    (2, 70, 361),
    (3, 78, 130),
    (3, 803, 13),
    (4, 17, 40),
    (6, 200, 10),
    (11, 300, 25),
    (16, 1030, 31),
    (30, 140, 20),
    (158, 2, 202),
    (119, 5, 213),
    (40, 20, 300),
    (7, 24, 65),
    (60, 700, 5),
    (300, 9, 50),
    (140, 4, 150),
    (5, 8, 83),
    (12, 11, 17),
    (5, 300, 150),
    (80, 500, 19),
    (23, 1, 9),
    (90, 1, 70),
    (9, 31, 1),
    (200, 3, 3),
    (3, 3, 200),
    (150, 4, 1),
    (120, 1, 2),
    (100, 6, 1),
    (90, 8, 1),
    (70, 300, 3),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int32, torch.float16, torch.int8], ids=str)
@pytest.mark.parametrize("sizes", FEW, ids=str)
@pytest.mark.quick(dtype=torch.float32)
@pytest.mark.quick(dtype=torch.float16, sizes=FEW[::5])
def test_few_rows_columns_or_products(device: str, sizes: tuple[int, int, int], dtype: torch.dtype) -> None:
    m, k, n = sizes
    a, b, bias = _numbers(dtype, m, k), _numbers(dtype, k, n), _numbers(dtype, n)
    expected = _wide(a) @ _wide(b)
    for first, second in itertools.product(("plain", "transposed", "apart"), ("plain", "transposed", "strided")):
        x, y = _laid_out(a.to(device), first), _laid_out(b.to(device), second)
        _check(x @ y, expected, k)
        _check(torch.addmm(bias.to(device), x, y, beta=2, alpha=3), 3 * expected + 2 * _wide(bias), k)
        around = torch.full((m + 2, n + 3), 7, dtype=dtype, device=device)
        torch.mm(x, y, out=around[1:-1, 1:-2])
        _check(around[1:-1, 1:-2], expected, k)
        around[1:-1, 1:-2] = 7
        assert (around == 7).all()
        rows = torch.full((m + 2, n), 7, dtype=dtype, device=device)  # those that touch, between others
        _check(rows[1:-1].zero_().addmm_(x, y), expected, k)
        assert (rows[0] == 7).all() and (rows[-1] == 7).all()


def test_infinities_stay_where_they_are(device: str) -> None:
    """What is read twice at the end of a sum is not counted twice, nor makes NaN of an infinity."""
    a, b = torch.ones(3, 30), torch.ones(40, 30)
    b[7, 20], b[9, 29] = math.inf, -math.inf
    assert torch.equal(F.linear(a.to(device), b.to(device)).cpu(), F.linear(a, b))


def test_vectors(device: str) -> None:
    a, v, w = torch.randn(70, 50), torch.randn(50), torch.randn(70)
    x, y = a.to(device), v.to(device)
    _check(x @ y, a.double() @ v.double())
    _check(x.mT.contiguous().mT @ y, a.double() @ v.double())
    _check(torch.addmv(w.to(device), x, y, beta=0.5, alpha=2.0), 0.5 * w.double() + 2 * (a.double() @ v.double()))
    _check(y @ y, v.double() @ v.double())
    _check(torch.vdot(y, y), v.double() @ v.double())
    c = torch.randn(20, dtype=torch.complex64)
    d = torch.randn(20, dtype=torch.complex64)
    _check(torch.vdot(c.to(device), d.to(device)), torch.vdot(c.to(torch.complex128), d.to(torch.complex128)), 20)
    batches = torch.randn(4, 5, 6), torch.randn(4, 6, 7), torch.randn(5, 7)
    _check(
        torch.addbmm(batches[2].to(device), batches[0].to(device), batches[1].to(device)),
        torch.addbmm(batches[2].double(), batches[0].double(), batches[1].double()),
    )


@pytest.mark.parametrize("dtype", [*FLOATS, *COMPLEX, *INTEGERS], ids=str)
def test_outer_product_added(device: str, dtype: torch.dtype) -> None:
    v, w = _numbers(dtype, 5), _numbers(dtype, 7)
    for c in (_numbers(dtype, 5, 7), _numbers(dtype, 7), _numbers(dtype, 5, 1)):
        x, y, z = (t.to(device) for t in (c, v, w))
        expected = _wide(c) + torch.outer(_wide(v), _wide(w))
        _check(torch.addr(x, y, z), expected)
        _check(torch.addr(x, y, z, beta=2, alpha=3), 3 * expected - _wide(c))
        _check(torch.addr(x, y, z, beta=0), torch.outer(_wide(v), _wide(w)))
    with pytest.raises(RuntimeError, match="same device"):
        torch.addr(x, y, z, out=torch.empty(5, 7, dtype=dtype))


def test_conjugated_factors(device: str) -> None:
    a, b = _numbers(torch.complex64, 9, 5), _numbers(torch.complex64, 9, 4)
    _check(a.to(device).mH @ b.to(device), _wide(a).mH @ _wide(b))
    _check(b.to(device).mT @ a.to(device).conj(), _wide(b).mT @ _wide(a).conj())


@pytest.mark.parametrize(("m", "k", "n"), [(3, 0, 4), (0, 3, 4), (3, 4, 0), (0, 0, 0)])
def test_empty(device: str, m: int, k: int, n: int) -> None:
    a, b, d = torch.randn(m, k), torch.randn(k, n), torch.randn(m, n)
    _check(a.to(device) @ b.to(device), a.double() @ b.double())
    _check(torch.addmm(d.to(device), a.to(device), b.to(device), beta=2), 2 * d.double() + a.double() @ b.double())


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_linear_layer(device: str, dtype: torch.dtype) -> None:
    x, w, b = _numbers(dtype, 6, 10, 40), _numbers(dtype, 30, 40), _numbers(dtype, 30)
    exact = [t.double().requires_grad_() for t in (x, w, b)]
    ours = [t.to(device).requires_grad_() for t in (x, w, b)]
    expected = torch.nn.functional.linear(*exact)
    got = torch.nn.functional.linear(*ours)
    _check(got.detach(), expected.detach())
    grad = _numbers(dtype, *expected.shape)
    for mine, true in zip(
        torch.autograd.grad(got, ours, grad.to(device)),
        torch.autograd.grad(expected, exact, grad.double()),
        strict=True,
    ):
        _check(mine, true)
