"""When a device's result is right: equal to the CPU's, or no farther from the exact one than rounding allows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.testing._comparison import default_tolerances
from torch.utils._pytree import tree_flatten

__all__ = ["difference"]

# A device may round in other places than the CPU: it may be this much worse than the CPU's own error.
WORSE_THAN_CPU = 4.0


def difference(
    actual: Any,
    expected: Any,
    exact: Callable[[], Any] | None,
    *,
    values: bool = True,
    normwise: bool = False,
) -> str:
    """What is wrong with the device's results, or "".

    Args:
        actual: a tree of results of the device.
        expected: the CPU's.
        exact: makes the same results in float64, asked only where the two differ by more than `torch.testing`'s
            tolerances.
        values: False compares kinds, shapes and dtypes only, for random and uninitialised results.
        normwise: also allows what is rounding for the largest of all results, as where terms of sums cancel.
    """
    actual_leaves, _ = tree_flatten(actual)
    expected_leaves, _ = tree_flatten(expected)
    if len(actual_leaves) != len(expected_leaves):
        return f"{len(actual_leaves)} results instead of {len(expected_leaves)}"
    exact_leaves: list[Any] | None = None
    for i, (a, e) in enumerate(zip(actual_leaves, expected_leaves, strict=True)):
        where = f"result {i}: " if len(actual_leaves) > 1 else ""
        if not isinstance(e, torch.Tensor):
            if type(a) is not type(e) or (values and not _equal(a, e)):
                return f"{where}{a!r} instead of {e!r}"
            continue
        if message := _kind_differs(a, e):
            return where + message
        if not values or _close(a, e):
            continue
        if exact is not None and exact_leaves is None:
            exact_leaves = _exact_leaves(exact, len(expected_leaves))
        rounding = _rounding(expected_leaves, exact_leaves) if normwise and exact_leaves else 0.0
        if exact_leaves and _as_good(a, e, exact_leaves[i], rounding):
            continue
        return where + _values_differ(a, e)
    return ""


def _equal(a: Any, e: Any) -> bool:
    return bool(a == e) or (a != a and e != e)


def _kind_differs(a: Any, e: torch.Tensor) -> str:
    if not isinstance(a, torch.Tensor):
        return f"{type(a).__name__} instead of a tensor"
    for what, mine, theirs in (
        ("shape", tuple(a.shape), tuple(e.shape)),
        ("dtype", a.dtype, e.dtype),
        ("layout", a.layout, e.layout),
        ("quantized", a.is_quantized, e.is_quantized),
    ):
        if mine != theirs:
            return f"{what} {mine} instead of {theirs}"
    return ""


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """The values as an ordinary CPU tensor."""
    tensor = tensor.detach().cpu()
    if tensor.is_quantized:
        return tensor.dequantize()
    return tensor if tensor.layout == torch.strided else tensor.to_dense()


def _close(a: torch.Tensor, e: torch.Tensor) -> bool:
    a, e = dense(a), dense(e)
    if not (e.is_floating_point() or e.is_complex()):
        return torch.equal(a, e)
    rtol, atol = default_tolerances(e.dtype)
    wide = torch.complex128 if e.is_complex() else torch.float64
    return torch.allclose(a.to(wide), e.to(wide), rtol=rtol, atol=atol, equal_nan=True)


def _exact_leaves(exact: Callable[[], Any], count: int) -> list[Any] | None:
    try:
        leaves = tree_flatten(exact())[0]
    except (RuntimeError, TypeError, ValueError, NotImplementedError):
        return None  # not defined in float64: then the CPU's result alone decides
    return leaves if len(leaves) == count else None


def _rounding(expected: list[Any], exact: list[Any]) -> float:
    """The rounding of the largest of a call's results, in the coarsest of their types."""
    rtol = largest = 0.0
    for e, x in zip(expected, exact, strict=True):
        if isinstance(x, torch.Tensor) and isinstance(e, torch.Tensor) and (e.is_floating_point() or e.is_complex()):
            rtol = max(rtol, default_tolerances(e.dtype)[0])
            finite = dense(x).abs().nan_to_num(0, 0, 0)
            largest = max(largest, float(finite.max()) if finite.numel() else 0.0)
    return rtol * largest


def _as_good(a: torch.Tensor, e: torch.Tensor, exact: Any, rounding: float) -> bool:
    """Whether the device's error is like the CPU's own, both measured against the exact result, or mere rounding."""
    if not isinstance(exact, torch.Tensor) or exact.shape != e.shape or not (e.is_floating_point() or e.is_complex()):
        return False
    rtol, atol = default_tolerances(e.dtype)
    wide = torch.complex128 if e.is_complex() else torch.float64
    a, e, exact = dense(a).to(wide), dense(e).to(wide), dense(exact).to(wide)
    same = (a == e) | (a.isnan() & e.isnan()) | (a == exact) | (a.isnan() & exact.isnan())
    rest = ~same & a.isfinite() & exact.isfinite()  # where the CPU overflows the device need not
    if not bool((same | rest).all()):
        return False
    if not bool(rest.any()):
        return True
    error, own = (a - exact)[rest].abs(), (e - exact)[rest & e.isfinite()].abs()
    largest = own.max() if own.numel() else 0.0
    return bool((error <= max(WORSE_THAN_CPU * largest, rounding) + rtol * exact[rest].abs() + atol).all())


def _values_differ(a: torch.Tensor, e: torch.Tensor) -> str:
    wide = torch.complex128 if e.is_complex() else torch.float64
    try:
        torch.testing.assert_close(dense(a).to(wide), dense(e).to(wide), rtol=0, atol=0, equal_nan=True)
    except AssertionError as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        return "; ".join(lines[1:3] if len(lines) > 1 else lines)
    return "values differ"
