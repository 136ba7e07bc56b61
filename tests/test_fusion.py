"""Steps of decompositions that become one: how few there are, and that results are those of the steps apart."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from conftest import in_threads

from torchgraft import plans

pytestmark = pytest.mark.no_fallback

T = torch.Tensor


@pytest.fixture(autouse=True)
def _compiler(device: str) -> None:
    if device == "npy":
        pytest.skip("the device has no compiler")


def chain(x: T, y: T) -> T:
    return (x * y + 1).relu() - y


def in_place(x: T, y: T) -> T:
    t = x + 1
    t.mul_(y)
    return t - x


def twice_read(x: T, y: T) -> T:
    t = x * y
    return t * t + t


def broadcast(x: T, y: T) -> T:
    return y[:, :1] * 2 + x * y[:1]


def around(x: T, y: T) -> T:
    """Elements of another place: nothing may be fused."""
    t = x + y
    return t + t.flip(0)


def transposed(x: T, y: T) -> T:
    t = x * y
    return t.unsqueeze(0) + t.t().unsqueeze(1).sum(2).unsqueeze(1)


def shifted(x: T, y: T) -> T:
    t = x * 2
    t[1:] += t[:-1] * y[1:]
    return t


def over_itself(x: T, y: T) -> T:
    """What is written lies over what the loop before it reads, one row further."""
    t = x * 2
    s = t[:-1] + y[:-1]
    t[1:].copy_(s)
    return t


def reduced(x: T, y: T) -> T:
    t = x * y + 1
    return (t - t.mean(-1, keepdim=True)) * 2


def compared(x: T, y: T) -> T:
    return ((x > y).to(torch.int64) + 1) * 3


def unrelated(x: T, y: T) -> T:
    a, b = x * 2, y + 3
    return torch.minimum(a, b)


def complex_numbers(x: T, y: T) -> T:
    z = torch.complex(x, y)
    return (z * z.conj()).real + z.abs()


# Each with its number of steps for matrices that lie flat; None where that says nothing.
FUNCTIONS: list[tuple[Callable[[T, T], T], int | None]] = [
    (chain, 1),
    (in_place, 1),
    (twice_read, 1),
    (broadcast, 2),  # the first product has another shape
    (around, None),
    (transposed, None),
    (shifted, None),
    (over_itself, None),
    (reduced, 3),
    (compared, 1),
    (unrelated, 1),
    (complex_numbers, None),
]

_library = torch.library.Library("fusing", "FRAGMENT")
for _function, _ in FUNCTIONS:
    _library.define(f"{_function.__name__}(Tensor x, Tensor y) -> Tensor")
    plans.decomposition(f"fusing::{_function.__name__}")(_function)
_library.define("pair(Tensor x, float a) -> (Tensor, Tensor)")
_library.define("quotient(Tensor x, Tensor y) -> Tensor")
_library.define("scaled(Tensor x, float a, float b) -> Tensor")


@plans.decomposition("fusing::pair")
def pair(x: T, a: float) -> tuple[T, T]:
    t = x * a
    return t, t.exp()


@plans.decomposition("fusing::quotient")
def quotient(x: T, y: T) -> T:
    return (x + 1) // y * 2


@plans.decomposition("fusing::scaled")
def scaled(x: T, a: float, b: float) -> T:
    return (x * a + b) * a


def steps(name: str) -> int:
    """Of the last plan of an op."""
    return int(re.findall(r"(\d+) steps", plans.show(f"fusing::{name}"))[-1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("function", "count"), FUNCTIONS, ids=lambda value: getattr(value, "__name__", None))
def test_results_are_those_of_the_steps(
    device: str, function: Callable[[T, T], T], count: int | None, dtype: torch.dtype
) -> None:
    if function is complex_numbers and dtype not in (torch.float32, torch.float64):
        pytest.skip("there are no such complex numbers")
    op = getattr(torch.ops.fusing, function.__name__)
    layouts: list[Callable[[T], T]] = [
        lambda t: t,
        lambda t: t.t().contiguous().t(),
        lambda t: torch.stack([t, t], -1)[..., 0],
    ]
    for shape in [(7, 7), (33, 33), (64, 64)]:
        for layout in layouts:
            x, y = (torch.randn(shape).to(dtype) for _ in range(2))
            plans.clear()
            got = op(layout(x).to(device), layout(y).to(device))
            rtol = 0 if function in (around, compared, unrelated, in_place) else None
            torch.testing.assert_close(got.cpu(), function(x, y), rtol=rtol, atol=rtol)
            assert got.stride() == function(layout(x), layout(y)).stride() or layout is not layouts[0]
            if count is not None and layout is layouts[0]:
                assert steps(function.__name__) == count


def test_sixteen_bits_are_rounded_at_each_step(device: str) -> None:
    x, y = torch.randn(2, 5000).to(torch.bfloat16)
    got = torch.ops.fusing.twice_read(x.to(device), y.to(device))
    product = x * y
    assert torch.equal(got.cpu(), product * product + product)
    assert steps("twice_read") == 1


def test_what_is_returned_is_stored(device: str) -> None:
    x = torch.randn(9, 11)
    for a in (0.5, -2.0):
        t, e = torch.ops.fusing.pair(x.to(device), a)
        assert torch.equal(t.cpu(), x * a)
        torch.testing.assert_close(e.cpu(), (x * a).exp())
    assert steps("pair") == 1


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 0, 2)])
def test_few_elements(device: str, shape: tuple[int, ...]) -> None:
    x, y = torch.randn(shape), torch.randn(shape)
    torch.testing.assert_close(torch.ops.fusing.chain(x.to(device), y.to(device)).cpu(), chain(x, y))


def test_a_division_by_zero_is_still_reported(device: str) -> None:
    x, y = torch.randint(1, 9, (2, 100))
    assert torch.equal(torch.ops.fusing.quotient(x.to(device), y.to(device)).cpu(), quotient(x, y))
    y[50] = 0
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        torch.ops.fusing.quotient(x.to(device), y.to(device)).cpu()


def test_numbers(device: str) -> None:
    x = torch.randn(50)
    for a, b in [(2.0, 3.0), (0.5, -1.0), (float("inf"), 0.0)]:
        torch.testing.assert_close(torch.ops.fusing.scaled(x.to(device), a, b).cpu(), scaled(x, a, b), equal_nan=True)
    assert steps("scaled") == 1


def test_torchs_own_decompositions(device: str) -> None:
    x = torch.randn(8, 12)
    a, b = x.to(device).requires_grad_(), x.clone().requires_grad_()
    plans.clear()
    for each in (a, b):
        torch.nn.functional.glu(each).square().sum().backward()
    torch.testing.assert_close(a.grad.cpu(), b.grad)  # type: ignore[union-attr, arg-type]
    counts = re.findall(r"(\d+) steps", plans.show("aten::glu_backward"))
    assert counts == ["2"]


def test_threads(device: str) -> None:
    x, y = torch.randn(2, 40, 50)
    expected = chain(x, y)

    def work() -> None:
        for _ in range(20):
            plans.clear()
            torch.testing.assert_close(torch.ops.fusing.chain(x.to(device), y.to(device)).cpu(), expected)

    in_threads(*[work] * 4)
