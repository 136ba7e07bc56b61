"""The functions of float64 beside their definitions: errors in units in the last place, and special values."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import mpmath as mp
import pytest
import torch

COUNT = 400
SPECIAL = (
    *(0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 3.0, -3.0, 4.5, 10.0, 1000.0, math.inf, -math.inf, math.nan),
    *(5e-324, -5e-324, 1e-310, 2.2250738585072014e-308, 1e-17, -1e-17, 0.45, 6.0, 26.6, 27.2, 1e22),
    *(709.7, 709.79, -708.5, -745.1, -745.2, 1e308, -1e308, 1.7976931348623157e308, -1.7976931348623157e308),
    *(9007199254740993.0, 9007199254740991.0, -9007199254740991.0, 1e300),
)


@pytest.fixture(autouse=True)
def computing(device: str) -> None:
    if device == "npy":
        pytest.skip("the device has no compiler")


def drawn(*parts: torch.Tensor) -> torch.Tensor:
    return torch.cat(parts).to(torch.float64)


def normal(scale: float = 1.0) -> torch.Tensor:
    return torch.randn(COUNT, dtype=torch.float64) * scale


def uniform(begin: float, end: float) -> torch.Tensor:
    return begin + (end - begin) * torch.rand(COUNT, dtype=torch.float64)


def anywhere() -> torch.Tensor:
    return drawn(normal(), normal(10), normal(30).exp() * normal().sign(), normal(1e-3), normal(1e-9))


def exponents() -> torch.Tensor:
    return drawn(normal(), normal(30), uniform(-745, 709), normal(1e-9))


def positive() -> torch.Tensor:
    return drawn(normal().exp(), normal(100).exp(), 1 + normal(1e-3), 1 + normal(1e-8), uniform(0, 2))


def within_one() -> torch.Tensor:
    return drawn(uniform(-1, 1), 1 - uniform(0, 1e-4), normal(1e-5))


def turns() -> torch.Tensor:
    """Beside others multiples of a quarter turn, where little is left of them."""
    quarters = (torch.arange(1, COUNT + 1) * math.pi / 2).double()
    return drawn(normal(), normal(100), uniform(-1e9, 1e9), quarters, quarters * 1e5, normal(1e-9))


Draw = Callable[[], torch.Tensor]
Exact = Callable[..., Any]

#: Name of torch's function -> its arguments, its definition, and the units in the last place that it may be off.
FUNCTIONS: dict[str, tuple[Draw, Exact, float]] = {
    "exp": (exponents, mp.exp, 1.5),
    "exp2": (exponents, lambda x: mp.mpf(2) ** x, 1.5),
    "expm1": (lambda: drawn(exponents(), normal(1e-310)), mp.expm1, 2),
    "log": (positive, mp.log, 1.5),
    "log2": (positive, lambda x: mp.log(x, 2), 1.5),
    "log10": (positive, mp.log10, 1.5),
    "log1p": (lambda: drawn(normal().exp() - 1, normal(50).exp(), normal(1e-8), uniform(-1, 0)), mp.log1p, 1.5),
    "erf": (lambda: drawn(normal(), normal(3), normal(1e-5)), mp.erf, 1.5),
    "erfc": (lambda: drawn(normal(), normal(3), uniform(0, 26.5)), mp.erfc, 4),
    "tanh": (anywhere, mp.tanh, 2.5),
    "sinh": (exponents, mp.sinh, 2.5),
    "cosh": (exponents, mp.cosh, 2),
    "asinh": (anywhere, mp.asinh, 2),
    "acosh": (lambda: 1 + drawn(normal(5).exp(), normal(100).exp(), normal(20).exp() * 1e-20), mp.acosh, 2),
    "atanh": (within_one, mp.atanh, 2),
    "atan": (anywhere, mp.atan, 2.5),
    "sin": (turns, mp.sin, 1.5),
    "cos": (turns, mp.cos, 1.5),
    "tan": (turns, mp.tan, 2.5),
    "asin": (within_one, mp.asin, 2.5),
    "acos": (within_one, mp.acos, 2.5),
}
PAIRS: dict[str, tuple[Callable[[], tuple[torch.Tensor, torch.Tensor]], Exact, float]] = {
    "pow": (
        lambda: (
            drawn(normal(3).exp(), 1 + normal(1e-4), normal(100).exp(), uniform(-100, 0)),
            drawn(normal(30), normal(1e6), normal(3), uniform(-20, 20).round()),
        ),
        lambda x, y: x**y,
        1.5,
    ),
    "atan2": (lambda: (drawn(normal(), normal()), drawn(normal(), normal(5).exp() * normal())), mp.atan2, 2.5),
    "hypot": (lambda: (drawn(normal(), normal(200).exp()), drawn(normal(), normal(200).exp())), mp.hypot, 1.5),
}


def units(result: float, exact: Any) -> float:
    """By how many units in the last place a result is off; subnormal ones have the least numbers as units."""
    nearest = float(exact)
    if math.isinf(nearest) or math.isinf(result):
        return 0.0 if nearest == result or abs(exact) > 1.79e308 else math.inf
    return float(abs(mp.mpf(result) - exact) / math.ulp(nearest))


def worst(results: torch.Tensor, exact: Exact, *arguments: torch.Tensor) -> tuple[float, tuple[float, ...]]:
    with mp.workdps(50):
        found = [
            (units(result, exact(*map(mp.mpf, given))), given)
            for result, *given in zip(results.tolist(), *(each.tolist() for each in arguments), strict=True)
        ]
    return max(found)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_error(device: str, name: str) -> None:
    draw, exact, bound = FUNCTIONS[name]
    x = draw()
    off, where = worst(getattr(torch, name)(x.to(device)).cpu(), exact, x)
    assert off <= bound, where


@pytest.mark.parametrize("name", PAIRS)
def test_error_of_two_arguments(device: str, name: str) -> None:
    draw, exact, bound = PAIRS[name]
    x, y = draw()
    off, where = worst(getattr(torch, name)(x.to(device), y.to(device)).cpu(), exact, x, y)
    assert off <= bound, where


def differ(result: float, expected: float, bound: float) -> bool:
    """But for rounding; signs of zeros count."""
    if math.isnan(result) or math.isnan(expected):
        return math.isnan(result) != math.isnan(expected)
    if math.isinf(result) or math.isinf(expected):
        return result != expected
    if result == expected == 0:
        return math.copysign(1, result) != math.copysign(1, expected)
    return abs(result - expected) > (bound + 1) * math.ulp(expected)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_special_values(device: str, name: str) -> None:
    x = torch.tensor(SPECIAL, dtype=torch.float64)
    if name in ("sinh", "cosh"):
        x = x[x != 709.79]  # where torch's CPU has infinity, though exp(709.79) / 2 is none
    function = getattr(torch, name)
    pairs = zip(x.tolist(), function(x.to(device)).tolist(), function(x).tolist(), strict=True)
    assert [each for each in pairs if differ(*each[1:], FUNCTIONS[name][2])] == []


@pytest.mark.parametrize("name", PAIRS)
def test_special_pairs(device: str, name: str) -> None:
    both = torch.tensor(list(itertools.product(SPECIAL, SPECIAL)), dtype=torch.float64)
    x, y = both.unbind(1)
    function = getattr(torch, name)
    results = zip(both.tolist(), function(x.to(device), y.to(device)).tolist(), function(x, y).tolist(), strict=True)
    assert [each for each in results if differ(*each[1:], PAIRS[name][2])] == []


@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_large_arguments(device: str, name: str) -> None:
    """Among small ones: those of a block are looked at together."""
    x = normal(3)
    x[::37] = uniform(1e12, 1e18)[::37]
    off, where = worst(getattr(torch, name)(x.to(device)).cpu(), getattr(mp, name), x)
    assert off <= 4, where
