"""Reductions, against torch's CPU in float64."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from torchgraft.fallback import fallback
from torchgraft.plans import versions

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.int64, torch.int32, torch.uint8, torch.bool]

# (shape, dims): each way in which kept and reduced dimensions can lie.
SHAPES: list[tuple[tuple[int, ...], Any]] = [
    ((7,), 0),
    ((300, 777), 1),
    ((300, 777), 0),
    ((300, 777), (0, 1)),
    ((100_003,), 0),
    ((5, 40_000), 1),
    ((40_000, 5), 0),
    ((1000, 10), 1),
    ((2000, 3000), 0),
    ((4, 5, 6, 7), (0, 2)),
    ((4, 5, 6, 7), (1, 3)),
    ((4, 5, 6, 7), (2,)),
    ((3, 33, 65), 1),
    ((1, 1), 0),
    ((), ()),
]


@pytest.fixture(autouse=True)
def native() -> Iterator[None]:
    with fallback("error"):
        yield


def make(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.rand(shape, generator=generator) > 0.3
    if not dtype.is_floating_point and not dtype.is_complex:
        return torch.randint(0 if dtype == torch.uint8 else -9, 10, shape, generator=generator).to(dtype)
    return torch.randn(shape, generator=generator, dtype=torch.complex64 if dtype.is_complex else torch.float32).to(
        dtype
    )


def strided(x: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensor and others of its shape that lie differently."""
    yield "contiguous", x
    if x.dim() > 1:
        yield "transposed", x.transpose(0, -1).contiguous().transpose(0, -1)
        yield "steps", torch.stack((x, x), -1).flatten(-2)[..., ::2]
        yield "expanded", x[:1].expand(x.shape)
        yield "permuted", x.permute(*range(1, x.dim()), 0).contiguous().permute(x.dim() - 1, *range(x.dim() - 1))


def check(got: Any, expected: Any, tolerance: float) -> None:
    if isinstance(expected, (tuple, list)):
        for g, e in zip(got, expected, strict=True):
            check(g, e, tolerance)
        return
    assert got.shape == expected.shape
    got, expected = got.cpu(), expected
    if not (expected.dtype.is_floating_point or expected.dtype.is_complex):
        assert torch.equal(got, expected.to(got.dtype))
        return
    wide = torch.complex128 if expected.dtype.is_complex else torch.float64
    torch.testing.assert_close(got.to(wide), expected.to(wide), rtol=tolerance, atol=tolerance, equal_nan=True)


def tolerance(dtype: torch.dtype) -> float:
    return {torch.float64: 1e-10, torch.float16: 2e-3, torch.bfloat16: 2e-2}.get(dtype, 2e-4)


def wide(x: torch.Tensor) -> torch.Tensor:
    if x.is_complex():
        return x.to(torch.complex128)
    return x.double() if x.is_floating_point() else x


@pytest.mark.quick(name=["sum", "argmin"], dtype=torch.float32)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int32])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", ["sum", "amax", "argmin", "any", "all"])
def test_layouts(device: str, name: str, shape: tuple[tuple[int, ...], Any], dtype: torch.dtype) -> None:
    size, dims = shape
    x = make(size, dtype)
    if name == "argmin" and not isinstance(dims, int):
        dims = None if len(dims) == len(size) else dims[0]
    elif name != "argmin" and isinstance(dims, int):
        dims = (dims,)
    op: Callable[..., Any] = getattr(torch, name)
    for how, y in strided(x):
        z = y.to(device)
        if how == "steps":
            z = torch.stack((x, x), -1).flatten(-2).to(device)[..., ::2]
        for keepdim in (False, True):
            check(op(z, dims, keepdim=keepdim), op(wide(y), dims, keepdim=keepdim), 1e-3)


@pytest.mark.parametrize("columns", [2, 3, 10, 15, 16, 31, 33])
@pytest.mark.parametrize("rows", [31, 32, 33, 50, 63, 64, 100, 5001])
def test_few_columns(device: str, rows: int, columns: int) -> None:
    """Several elements of each are taken at once, and some are left over; what is not a number stays in its column."""
    x = make((rows, columns), torch.float32)
    x[rows // 2, 1], x[-1, 0] = torch.nan, torch.inf
    near = torch.where(x.isfinite(), x, 1)
    parts = torch.stack([near, near]).to(device)  # each part's columns touch, and the parts' do not
    for op in (torch.sum, torch.amax, torch.var, torch.norm, torch.any):
        check(op(x.to(device), dim=0), op(wide(x), dim=0), 1e-3)
        check(op(parts, dim=1)[1], op(wide(near), dim=0), 1e-3)
    for op in (torch.argmax, torch.nansum):
        check(op(x.to(device), dim=0), op(wide(x), dim=0), 1e-3)
    check(near.to(device)[:, 1:].sum(0), wide(near)[:, 1:].sum(0), 1e-3)


@pytest.mark.quick(size=[(64, 70), ()], dtype=[torch.float32, torch.int64])
@pytest.mark.parametrize(
    ("size", "dtype"),
    [((64, 70), dtype) for dtype in (*FLOATS, *INTEGERS, torch.complex64)]
    + [((70_000,), torch.float32), ((), torch.float32)],
    ids=str,
)
def test_dtypes(device: str, size: tuple[int, ...], dtype: torch.dtype) -> None:
    x = make(size, dtype)
    y, w = x.to(device), wide(x)
    dims: list[int | None] = [None] if not size else [None, 0, len(size) - 1] if dtype == torch.float32 else [1]
    t = tolerance(dtype)
    for dim in dims:
        scale = math.sqrt(x.numel()) * t
        check(torch.sum(y, dim), torch.sum(w, dim), scale)
        check(torch.any(y) if dim is None else torch.any(y, dim), torch.any(x) if dim is None else torch.any(x, dim), 0)
        check(torch.all(y) if dim is None else torch.all(y, dim), torch.all(x) if dim is None else torch.all(x, dim), 0)
        check(torch.count_nonzero(y, dim), torch.count_nonzero(x, dim), 0)
        if dtype.is_complex:
            check(torch.mean(y, dim), torch.mean(w, dim), t)
            check(torch.linalg.vector_norm(y, 2, dim), torch.linalg.vector_norm(w, 2, dim), scale)
            continue
        check(torch.amax(y, () if dim is None else dim), torch.amax(x, () if dim is None else dim), 0)
        check(torch.amin(y, () if dim is None else dim), torch.amin(x, () if dim is None else dim), 0)
        check(torch.aminmax(y, dim=dim), torch.aminmax(x, dim=dim), 0)
        if dim is not None:
            check(torch.max(y, dim), torch.max(x, dim), 0)
            check(torch.min(y, dim), torch.min(x, dim), 0)
        else:
            check(torch.max(y), torch.max(x), 0)
            check(torch.min(y), torch.min(x), 0)
        if dtype != torch.bool:
            check(torch.argmax(y, dim), torch.argmax(x, dim), 0)
            check(torch.argmin(y, dim), torch.argmin(x, dim), 0)
        if dtype.is_floating_point:
            check(torch.mean(y, dim), torch.mean(w, dim), t)
            check(torch.nansum(y, dim), torch.nansum(w, dim), scale)
            for correction in (0, 1, 3):
                if x.numel() > 3:
                    check(torch.var(y, dim, correction=correction), torch.var(w, dim, correction=correction), 10 * t)
            if x.numel() > 1:
                check(torch.std_mean(y, dim), torch.std_mean(w, dim), 10 * t)
            for order in (0, 1, 2, 3.5, math.inf, -math.inf):
                e = torch.linalg.vector_norm(w, order, dim)
                if e.max() > torch.finfo(dtype).max:
                    continue
                check(torch.linalg.vector_norm(y, order, dim) / (e + 1).to(device, y.dtype), e / (e + 1), 10 * t)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int32, torch.int64], ids=str)
def test_products(device: str, dtype: torch.dtype) -> None:
    x = make((30, 200), dtype) if not dtype.is_floating_point else 1 + 0.1 * make((30, 200), dtype)
    for dim in (0, 1):
        check(torch.prod(x.to(device), dim), torch.prod(wide(x), dim), 1e-3)
    check(torch.prod(x[:2].to(device)), torch.prod(wide(x[:2])), 1e-3)


@pytest.mark.quick(dtype=[torch.float32, torch.bfloat16], form="cpu")
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_sums_of_exponentials(device: str, form: str, dtype: torch.dtype) -> None:
    for shape, dims in [*SHAPES, ((2, 3, 4, 5, 6), (0, 2, 4)), ((30, 50, 100), 1), ((3, 0), 1), ((0, 3), 1)]:
        if shape == ():
            dims = 0
        for label, x in strided((5 * torch.randn(shape)).to(dtype)):
            got = torch.logsumexp(x.to(device), dims, keepdim=label == "steps")
            assert got.dtype == dtype
            check(got, torch.logsumexp(x.double(), dims, keepdim=label == "steps"), max(2e-6, tolerance(dtype)))


@pytest.mark.parametrize("across", [False, True])
def test_sums_of_exponentials_of_what_is_infinite(device: str, across: bool) -> None:
    inf, nan = math.inf, math.nan
    for values in ([1, inf], [-inf, -inf], [nan, inf], [inf, -inf, nan], [-inf, 3], [inf, inf], [1e30, -1e30], [-inf]):
        for count in (1, 40):
            x = torch.tensor(values * count)[torch.randperm(len(values) * count)]
            x = x[:, None].expand(-1, 20) if across else x.expand(20, -1)
            check(torch.logsumexp(x.to(device), int(not across)), torch.logsumexp(x.double(), int(not across)), 1e-6)


def test_sums_of_exponentials_of_other_types(device: str) -> None:
    x = torch.randn(3, 40)
    for kept in (False, True):
        for y in ((9 * x).int(), x > 0, torch.complex(x, x.flip(0))):
            got, expected = (torch.logsumexp(t, 1, kept) for t in (y.to(device), y))
            assert got.dtype == expected.dtype
            torch.testing.assert_close(got.cpu(), expected)
    for dtype in (torch.float64, torch.float16, torch.complex64):
        out = torch.empty(3, dtype=dtype, device=device)
        for y in (x, (9 * x).int(), x > 0):
            assert torch.logsumexp(y.to(device), 1, out=out) is out
            torch.testing.assert_close(out.cpu(), torch.logsumexp(y, 1).to(dtype), rtol=1e-3, atol=1e-6)
    for dtype, wider in (
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float64),
        (torch.float32, torch.float64),
    ):
        for dims in ((1,), (0, 1), ()):
            y, out = (9 * x).to(dtype), torch.empty(0, dtype=wider, device=device)
            torch.logsumexp(y.to(device), dims, keepdim=True, out=out)
            torch.testing.assert_close(
                out.cpu(), torch.logsumexp(y.double(), dims, True).to(wider), rtol=1e-6, atol=1e-6
            )
    for shape in ((0, 5), (5, 0)):
        none = torch.empty(shape, dtype=torch.complex64)
        assert torch.equal(torch.logsumexp(none.to(device), 0).cpu(), torch.logsumexp(none, 0))
    with pytest.raises(RuntimeError, match="Expected floating point type for result tensor, but got: Long"):
        torch.logsumexp(x.to(device), 1, out=torch.empty(3, dtype=torch.int64, device=device))
    a, b = (t.requires_grad_() for t in (x.to(device), x.double()))
    (mine,), (theirs,) = (torch.autograd.grad(t.logsumexp(0).sin().sum(), t) for t in (a, b))
    torch.testing.assert_close(mine.cpu().double(), theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["amax", "amin", "argmax", "argmin"])
@pytest.mark.parametrize("size", [(17,), (5, 1000), (1000, 40)], ids=str)
def test_nan(device: str, name: str, size: tuple[int, ...]) -> None:
    x = make(size, torch.float32)
    x.view(-1)[x.numel() // 2] = math.nan
    x.view(-1)[x.numel() // 2 + 3] = math.nan
    op = getattr(torch, name)
    for dim in range(len(size)):
        check(op(x.to(device), dim), op(x, dim), 0)
    if len(size) > 1:
        check(op(x.to(device).view(-1), 0), op(x.view(-1), 0), 0)


@pytest.mark.parametrize("value", [0.0, math.inf, -math.inf, 1.0])
def test_first_index(device: str, value: float) -> None:
    """Of equal elements the first; also where they equal the identity of the reduction."""
    for size in ((40,), (5, 70_000), (20_000, 33)):
        x = torch.full(size, value)
        for dim in (None, *range(len(size))):
            assert torch.equal(torch.argmax(x.to(device), dim).cpu(), torch.argmax(x, dim))
            assert torch.equal(torch.argmin(x.to(device), dim).cpu(), torch.argmin(x, dim))
    low = torch.full((100,), torch.iinfo(torch.int32).min, dtype=torch.int32)
    assert torch.argmax(low.to(device)).item() == 0


def test_empty(device: str) -> None:
    x = torch.empty(0, 3, device=device)
    assert torch.equal(x.sum(0).cpu(), torch.zeros(3))
    assert torch.equal(x.prod(0).cpu(), torch.ones(3))
    assert x.mean(0).isnan().all().item()
    assert x.sum(1).shape == (0,)
    assert x.amax(1).shape == (0,)
    assert not torch.any(x).item()
    assert torch.all(x).item()
    assert torch.equal(torch.linalg.vector_norm(x, 2, 0).cpu(), torch.zeros(3))
    assert torch.var(x, 0).isnan().all().item()
    with pytest.raises((IndexError, RuntimeError), match="reduc"):
        x.amax(0)
    for op in (torch.max, torch.min, torch.argmax):
        with pytest.raises((IndexError, RuntimeError), match=r"numel\(\) == 0"):
            op(x)


def test_dtype_argument(device: str) -> None:
    x = make((50, 60), torch.int32)
    y = x.to(device)
    assert torch.equal(torch.sum(y, 0, dtype=torch.float32).cpu(), torch.sum(x, 0, dtype=torch.float32))
    assert torch.sum(y).dtype == torch.int64
    half = make((50, 6000), torch.float16)
    got = torch.sum(half.to(device), 1, dtype=torch.float32)
    check(got, half.double().sum(1), 1e-3)
    assert torch.sum(half.to(device), dtype=torch.bool).item() is True


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.bool])
def test_what_is_no_number_is_left_out_of_integers(device: str, dtype: torch.dtype) -> None:
    for values in ([torch.nan], [1.7, torch.nan, -2.7], [0.5]):
        x = torch.tensor(values)
        assert torch.equal(torch.nansum(x.to(device), dtype=dtype).cpu(), torch.nansum(x, dtype=dtype))


@pytest.mark.parametrize("name", ["sum", "amax", "argmax", "var", "mean"])
def test_out(device: str, name: str) -> None:
    x = make((40, 50), torch.float32)
    y = x.to(device)
    op = getattr(torch, name)
    expected = op(x, 1)
    out = torch.empty(40, 2, dtype=expected.dtype, device=device)[:, 1]
    assert op(y, 1, out=out) is out
    check(out, expected, 1e-4)
    resized = torch.empty(0, dtype=expected.dtype, device=device)
    op(y, 1, out=resized)
    check(resized, expected, 1e-4)
    three = make((4, 5, 6), torch.float32)
    swapped = torch.empty(6, 4, dtype=expected.dtype, device=device).t()
    check(op(three.to(device), 1, out=swapped), op(three, 1), 1e-4)


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool, torch.float64], ids=str)
@pytest.mark.parametrize("name", ["sum", "prod", "cumsum", "cumprod"])
@pytest.mark.filterwarnings("ignore:Casting complex")
def test_an_out_gives_the_type(device: str, name: str, dtype: torch.dtype) -> None:
    """As if it were the argument `dtype`: elements are converted before they are added."""
    op = getattr(torch, name)
    for x in (
        torch.tensor([[1.6, 2.7], [1.7, 3.6]]),
        torch.tensor([[1 + 1j, 2], [1.5, 3]]),
        torch.tensor([[2, 3], [0, 1]]),
    ):
        if name[:3] == "cum" and dtype == torch.bool:
            continue
        out = torch.empty((2, 2) if name[:3] == "cum" else 2, dtype=dtype)
        expected = op(x, 1, out=out.clone())
        check(op(x.to(device), 1, out=out.to(device)), expected, 1e-12)


@pytest.mark.parametrize("shape", [(3, 2, 1, 2), (4, 1, 3, 1, 2)], ids=str)
@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("name", ["sum", "amax", "argmin", "max", "all"])
def test_dimensions_of_one_into_steps(device: str, name: str, keep: bool, shape: tuple[int, ...]) -> None:
    """The result has more levels than one loop walks."""
    op = getattr(torch, name)
    x = make(shape, torch.float32) if name != "all" else make(shape, torch.bool)
    for dim in range(len(shape)):
        expected = op(x, dim, keep)
        several = expected if isinstance(expected, tuple) else (expected,)
        outs = []
        for result in several:
            room = torch.zeros([2 * n for n in reversed(result.shape)], dtype=result.dtype, device=device)
            outs.append(room.permute(*reversed(range(room.dim())))[tuple(slice(None, None, 2) for _ in result.shape)])
        op(x.to(device), dim, keep, out=tuple(outs) if isinstance(expected, tuple) else outs[0])
        for out, result in zip(outs, several, strict=True):
            check(out, result, 1e-6)


@pytest.mark.parametrize("name", ["sum", "prod", "amax", "mean"])
def test_into_a_part_of_the_input(device: str, name: str) -> None:
    """The result is that of the input as it was; torch's CPU reads what it has written."""
    x = make((3, 3), torch.float32)
    for dim in (0, 1):
        for part in (lambda t: t[0], lambda t: t[:, 1], lambda t: t.view(-1)[1:4]):
            y = x.to(device)
            check(getattr(torch, name)(y, dim, out=part(y)), getattr(torch, name)(x, dim), 1e-6)


def test_accuracy(device: str) -> None:
    """Errors grow no faster than those of torch's CPU by much."""
    x = torch.rand(1 << 22)
    exact = x.double().sum().item()
    assert abs(x.to(device).sum().item() - exact) / exact < 1e-6
    wide_ = torch.rand(1 << 15, 64)
    error = (wide_.to(device).sum(0).cpu().double() - wide_.double().sum(0)).abs().max() / (1 << 14)
    assert error < 1e-6
    shifted = torch.randn(1 << 18) + 1000
    assert abs(shifted.to(device).var().item() / shifted.double().var().item() - 1) < 1e-4


def test_complex_variance(device: str) -> None:
    x = make((30, 40), torch.complex64)
    for dim in (0, 1, None):
        check(torch.std_mean(x.to(device), dim), torch.std_mean(x.to(torch.complex128), dim), 1e-4)
    check(torch.var(x.to(device).conj(), 0), torch.var(x.to(torch.complex128), 0), 1e-4)


def test_conjugate(device: str) -> None:
    x = make((30, 40), torch.complex64)
    check(x.to(device).conj().sum(1), x.conj().to(torch.complex128).sum(1), 1e-4)
    check(x.to(device).conj().imag.sum(1), x.conj().imag.double().sum(1), 1e-4)


def test_gradients(device: str) -> None:
    x = make((20, 30), torch.float32)
    functions: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
        lambda t: t.sum(0).square().sum(),
        lambda t: t.mean(),
        lambda t: t.amax(1).sum(),
        lambda t: t.var(0).sum(),
        lambda t: torch.linalg.vector_norm(t),
    )
    for f in functions:
        a = x.clone().requires_grad_()
        b = x.to(device).requires_grad_()
        torch.autograd.backward(f(a))
        torch.autograd.backward(f(b))
        check(b.grad, a.grad, 1e-4)


def test_medians_where_algorithms_must_be_deterministic(device: str) -> None:
    """torch's meta function knows of CUDA's kernel that it is not; what it says of that is not for others."""
    x = torch.randn(5, 7)
    torch.use_deterministic_algorithms(True)
    try:
        values, _ = x.to(device).median(1)
    finally:
        torch.use_deterministic_algorithms(False)
    assert torch.equal(values.cpu(), x.median(1).values)


@pytest.mark.thorough
def test_reductions_with_cold_caches(device: str) -> None:
    """A few rounds of what `python tests/reductions_soak.py --seconds 3600` does for an hour."""
    if device.partition(":")[0] != "ocl":
        pytest.skip("other processes find a device that is installed")
    program = Path(__file__).with_name("reductions_soak.py")
    done = subprocess.run(
        [sys.executable, program, "--device", device, "--seconds", "15"], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(versions.HERE < (2, 15), reason="this torch takes them")
def test_least_and_largest_in_one_memory(device: str) -> None:
    """In any call, also one for whose sizes there is a plan."""
    x = torch.randn(4, 5)
    for place in ("cpu", device):
        memory, apart = torch.empty(9, device=place), torch.empty(5, device=place)
        on = x.to(place)
        least, most = torch.aminmax(on, dim=0, out=(memory[:5], apart))
        assert torch.equal(least.cpu(), x.amin(0)) and torch.equal(most.cpu(), x.amax(0))
        for other in (memory[4:], memory[:5]):
            with pytest.raises(ValueError, match="out= tensors must not overlap"):
                torch.aminmax(on, dim=0, out=(memory[:5], other))
