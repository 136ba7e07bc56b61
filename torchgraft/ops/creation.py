"""Planners of ops that make tensors from numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchgraft.codegen import element_type
from torchgraft.codegen.pointwise import Input, Loop, Result, expression
from torchgraft.codegen.types import MOVES
from torchgraft.kernels import creation as kernels
from torchgraft.plans import PlanBuilder, Scalar, Unsupported, composite, other_out, planner, pointwise
from torchgraft.plans.refusals import dtype_name, refuse_dtype

aten = torch.ops.aten


def _sequence(p: PlanBuilder, out: torch.Tensor, compute: str, numbers: dict[str, float], text: str) -> None:
    if out.numel() == 0:
        return
    target = out if out.is_contiguous() else p.empty_like(out)
    kernel = kernels.sequence_kernel(element_type(out.dtype).name, compute, tuple(numbers), text, p.form)
    p.launch(kernel, p.walk(out.numel()), out=target, **numbers)
    if target is not out:
        p.copy(out, target)


def _widest(p: PlanBuilder, dtype: torch.dtype) -> str:
    """What torch's CPU computes places in: integers exactly, floats in double."""
    element = element_type(dtype)
    if element.is_complex:
        raise Unsupported(f"a sequence of {dtype}")
    if element.is_integer:
        return "i64"
    return "f64" if p.device.float64 else "f32"


# The results' lengths follow from all of these numbers, so each of them is read.


def _filled(op: torch._ops.OpOverload) -> Callable[..., torch.Tensor]:
    """A tensor of the right number of elements keeps its shape, and is filled in that order."""

    def meta(*, out: torch.Tensor, **numbers: Any) -> torch.Tensor:
        made: torch.Tensor = op(**numbers, out=out.new_empty(0))
        return out if out.numel() == made.numel() else out.resize_(made.shape)

    return meta


@planner("arange.start_out", inplace_safe=True, meta=_filled(aten.arange.start_out))
def _arange(
    p: PlanBuilder,
    result: torch.Tensor,
    start: Scalar | float,
    end: Scalar | float,
    step: Scalar | float,
    *,
    out: torch.Tensor,
) -> None:
    compute = _widest(p, result.dtype)
    float(end)
    first, by = (int(start), int(step)) if compute == "i64" else (float(start), float(step))
    _sequence(p, result, compute, {"first": first, "by": by}, f"first + ({_c(compute)})i * by")


def _c(compute: str) -> str:
    return {"f32": "float", "f64": "double", "i64": "long"}[compute]


@planner("range.out", inplace_safe=True, meta=_filled(aten.range.out))
def _range(
    p: PlanBuilder,
    result: torch.Tensor,
    start: Scalar | float,
    end: Scalar | float,
    step: Scalar | float,
    *,
    out: torch.Tensor,
) -> None:
    _arange(p, result, start, end, step, out=out)


def _linear(p: PlanBuilder, out: torch.Tensor, start: Scalar, end: Scalar, steps: int) -> None:
    element = element_type(out.dtype)
    if element.is_complex:
        raise Unsupported(f"a sequence of {out.dtype}")
    first, last = float(start), float(end)
    compute = "f64" if p.device.float64 and (element.is_integer or element.name == "f64") else "f32"
    if element.is_integer:
        first, last = int(first), int(last)
    step = (last - first) / (steps - 1) if steps > 1 else 0.0
    # From the nearer end, so that both ends are exact.
    c = _c(compute)
    text = f"i < n / 2 || n == 1 ? low + step * ({c})i : high - step * ({c})(n - 1 - i)"
    _sequence(p, out, compute, {"low": first, "high": last, "step": step}, text)


@planner("linspace.out", inplace_safe=True, meta=_filled(aten.linspace.out))
def _linspace(
    p: PlanBuilder, result: torch.Tensor, start: Scalar, end: Scalar, steps: int, *, out: torch.Tensor
) -> None:
    _linear(p, result, start, end, steps)


@planner("logspace.out", inplace_safe=True, meta=_filled(aten.logspace.out))
def _logspace(
    p: PlanBuilder, result: torch.Tensor, start: Scalar, end: Scalar, steps: int, base: Scalar, *, out: torch.Tensor
) -> None:
    wide = torch.float64 if p.device.float64 and result.dtype != torch.float32 else torch.float32
    if not result.is_floating_point():
        raise Unsupported("powers as integers")
    exponents = p.empty((steps,), wide)
    _linear(p, exponents, start, end, steps)
    p.copy(result, p.call(aten.pow.Scalar, float(base), exponents).view(result.shape))


@planner("eye.m_out", inplace_safe=True)
def _eye_m(p: PlanBuilder, result: torch.Tensor, n: int, m: int, *, out: torch.Tensor) -> None:
    p.fill(result, 0)
    p.fill(result.diagonal(), 1)


@planner("eye.out", inplace_safe=True)
def _eye(p: PlanBuilder, result: torch.Tensor, n: int, *, out: torch.Tensor) -> None:
    p.fill(result, 0)
    p.fill(result.diagonal(), 1)


def _triangle(p: PlanBuilder, out: torch.Tensor, x: torch.Tensor, diagonal: int, upper: bool) -> None:
    if out.numel() == 0:
        return
    rows, columns = x.shape[-2:]
    diagonal = max(-rows - 1, min(columns + 1, diagonal))
    kernel = kernels.triangle_kernel(MOVES[out.element_size()], upper, p.form)
    grid = p.walk((x.numel() // columns, columns))
    p.launch(kernel, grid, out=p.bits(out), x=p.bits(x), rows=rows, diagonal=diagonal)


@planner("tril", contiguous=True, inplace_safe=True)
def _tril(p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, diagonal: int = 0) -> None:
    _triangle(p, out, self, diagonal, False)


@planner("triu", contiguous=True, inplace_safe=True)
def _triu(p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, diagonal: int = 0) -> None:
    _triangle(p, out, self, diagonal, True)


def _triangle_indices(p: PlanBuilder, out: torch.Tensor, rows: int, columns: int, offset: int, upper: bool) -> None:
    size = out.size(1)
    offset = max(-rows - 1, min(columns + 1, offset))
    if size:
        kernel = kernels.triangle_indices_kernel(element_type(out.dtype).name, upper, p.form)
        p.launch(kernel, p.walk(rows, columns, multiple=1), out=out, columns=columns, offset=offset, size=size)


def _check_integers(dtype: torch.dtype | None = None, **_: object) -> None:
    if dtype is not None and dtype.is_complex:
        refuse_dtype("triangle_indices", dtype)


@planner("tril_indices", refuses=(_check_integers, other_out))
def _tril_indices(p: PlanBuilder, out: torch.Tensor, row: int, col: int, offset: int = 0, **_: object) -> None:
    _triangle_indices(p, out, row, col, offset, False)


@planner("triu_indices", refuses=(_check_integers, other_out))
def _triu_indices(p: PlanBuilder, out: torch.Tensor, row: int, col: int, offset: int = 0, **_: object) -> None:
    _triangle_indices(p, out, row, col, offset, True)


# ---- windows ----


@composite("kaiser_window", "kaiser_window.periodic", "kaiser_window.beta")
def _kaiser_window(
    window_length: int,
    periodic: bool = True,
    beta: float = 12.0,
    *,
    dtype: torch.dtype | None = None,
    layout: object = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
) -> torch.Tensor:
    """torch's own calls a kernel of the CPU's without asking the dispatcher; its other windows are made of ops."""
    dtype = torch.get_default_dtype() if dtype is None else dtype
    if dtype.is_complex:
        refuse_dtype("kaiser_window", dtype)
    if not dtype.is_floating_point:
        raise RuntimeError(f"kaiser_window expects floating point dtypes, got: {dtype}")
    if window_length < 0:
        raise RuntimeError(f"kaiser_window requires non-negative window_length, got window_length={window_length}")
    if window_length < 2:
        return torch.ones(window_length, dtype=dtype, device=device)
    wide = dtype if dtype == torch.float64 else torch.float32
    middle = (window_length - (not periodic)) / 2
    at = torch.arange(window_length, dtype=wide, device=device) / middle - 1
    window: torch.Tensor = torch.i0(beta * (1 - at * at).sqrt()) / torch.i0(
        torch.full((), beta, dtype=wide, device=device)
    )
    return window.to(dtype)


# ---- complex numbers from parts ----


def _pair(p: PlanBuilder, out: torch.Tensor, a: torch.Tensor, b: torch.Tensor, text: str, cost: int) -> None:
    if a.dtype != b.dtype:
        raise RuntimeError(
            f"Expected object of scalar type {dtype_name(a.dtype)} but got scalar type "
            f"{dtype_name(b.dtype)} for second argument"
        )
    part = element_type(a.dtype)
    if part.name not in ("f32", "f64"):
        raise Unsupported(f"complex numbers of {a.dtype}")
    whole = element_type(out.dtype).name
    text = expression(text.format(pair="float2" if part.name == "f32" else "double2"), part.name)
    inputs = (Input("a", part.name, part.compute), Input("b", part.name, part.compute))
    loop = Loop(f"pair_{part.name}", inputs, (), (Result("out", whole, whole, text),), cost=cost)
    pointwise.plan_loop(p, loop, [out], [a, b], [])


@planner("complex")
def _complex(p: PlanBuilder, out: torch.Tensor, real: torch.Tensor, imag: torch.Tensor) -> None:
    _pair(p, out, real, imag, "MAKE_{pair}(a, b)", 1)


@planner("polar")
def _polar(p: PlanBuilder, out: torch.Tensor, abs: torch.Tensor, angle: torch.Tensor) -> None:
    _pair(p, out, abs, angle, "MAKE_{pair}(a * @cos(b), a * @sin(b))", 8)
