"""Planning of loops over elements: `codegen.pointwise` has their kernels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch._prims_common

from torchgraft.codegen.kernel import ceil_div
from torchgraft.codegen.pointwise import (
    BANDS,
    Input,
    Loop,
    Number,
    Result,
    contiguous_kernel,
    convert,
    interleaved_kernel,
    strided_kernel,
    tiled_kernel,
)
from torchgraft.codegen.types import element_type
from torchgraft.plans.steps import PlannedLoop, Steps

_INT32_MAX = 2**31 - 1
# The size from which it pays to read transposed operands in squares, and to write short rows interleaved.
_TILED_FROM = 2048
# Of narrower squares rows are hardly longer than elements.
_NARROW = 8
_SMALL_STRIDE = 4


def plan_loop(
    p: Steps,
    loop: Loop,
    results: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    numbers: Sequence[Any],
) -> None:
    """Adds a loop to a plan.

    Args:
        results: specs of the loop's results, all of one shape.
        inputs: specs of its inputs, broadcastable to that shape.
        numbers: launch arguments for its numbers, and for its report if it has a fault.
    """
    planned = PlannedLoop(loop, results, inputs, numbers, p.any_shape)
    if p.gathered is not None:
        p.gathered.append(planned)
    elif p.any_shape or results[0].numel() != 0:
        p.add(planned)


def launch_loop(p: Steps, planned: PlannedLoop) -> None:
    """Adds the launch of a loop to a plan."""
    loop, results, inputs, numbers = planned.loop, planned.results, planned.inputs, planned.numbers
    if planned.any_shape:
        given = _arguments(loop, [*results, *inputs], numbers)
        p.launch(contiguous_kernel(loop, p.form), p.any_number(loop.cost), **given)
        return
    shape = results[0].shape
    specs = [*results, *(_broadcast(spec, shape) for spec in inputs)]
    plan_strided_loop(p, loop, specs, numbers, *coalesce(list(shape), [list(spec.stride()) for spec in specs]))


def _arguments(loop: Loop, specs: Sequence[torch.Tensor], numbers: Sequence[Any]) -> dict[str, Any]:
    """What the loop's kernels take, by name."""
    names = [f"{o.name}_p" for o in loop.operands] + [number.name for number in loop.numbers]
    if loop.fault:
        names += ["tg_errors", "tg_code"]
    return dict(zip(names, [*specs, *numbers], strict=True))


def _strides(loop: Loop, strides: Sequence[Sequence[int]]) -> dict[str, int]:
    return {f"{o.name}_s{d}": s for o, own in zip(loop.operands, strides, strict=True) for d, s in enumerate(own)}


def _inner(loop: Loop, strides: Sequence[Sequence[int]]) -> tuple[str, ...]:
    """Innermost strides as kernels are told apart by them: of inputs small ones too, which compilers read in whole
    vectors."""
    known = [(-1, 1)] * len(loop.results) + [(-1, _SMALL_STRIDE)] * len(loop.inputs)
    return tuple(str(s[-1]) if low <= s[-1] <= high else "s" for s, (low, high) in zip(strides, known, strict=True))


def _reach(sizes: Sequence[int], strides: Sequence[Sequence[int]]) -> int:
    """The largest index of any operand."""
    return max(sum((size - 1) * abs(s) for size, s in zip(sizes, stride, strict=True)) for stride in strides)


def plan_strided_loop(
    p: Steps,
    loop: Loop,
    specs: Sequence[torch.Tensor],
    numbers: Sequence[Any],
    sizes: Sequence[int],
    strides: Sequence[Sequence[int]],
) -> None:
    """Adds the launch of a loop over given sizes, with given strides (also negative ones) for each spec, results
    first."""
    n = math.prod(sizes)
    if n == 0:
        return
    arguments = _arguments(loop, specs, numbers)
    if len(sizes) == 1 and all(s[0] == 1 for s in strides):
        p.launch(contiguous_kernel(loop, p.form), p.walk(n, loop.cost), **arguments)
        return
    if p.form == "cpu" and n >= _TILED_FROM:
        kinds = (_plan_interleaved, _plan_tiled)
        if any(plan(p, loop, arguments, sizes, strides) for plan in kinds):
            return
    grid = p.walk(sizes, loop.cost)
    index = "i32" if max(_reach(sizes, strides), n + grid.values["chunk"]) <= _INT32_MAX else "i64"
    short = not loop.fault and p.partitioner.ends_within_a_vector(sizes[-1])
    kernel = strided_kernel(loop, p.form, len(sizes), index, _inner(loop, strides), short)
    p.launch(kernel, grid, **arguments, **_strides(loop, strides))


def is_dense(spec: torch.Tensor) -> bool:
    """The elements fill one block of memory, each once (in any order of the dimensions)."""
    return bool(torch._prims_common.is_non_overlapping_and_dense_or_false(spec))


def _plan_interleaved(
    p: Steps,
    loop: Loop,
    arguments: dict[str, Any],
    sizes: Sequence[int],
    strides: Sequence[Sequence[int]],
) -> bool:
    """Plans `interleaved_kernel` if the results' rows are short and touch each other."""
    if len(sizes) < 2 or sizes[-1] >= _NARROW or sizes[-2] < _NARROW:
        return False
    together = sizes[-1]
    if any(s[-1] != 1 or s[-2] != together for s in strides[: len(loop.results)]):
        return False
    rows, outer, along = [s[-1] for s in strides], [s[:-1] for s in strides], sizes[:-1]
    grid = p.walk(along, together * loop.cost)
    index = (
        "i32" if _reach(sizes, strides) + together * (math.prod(along) + grid.values["chunk"]) <= _INT32_MAX else "i64"
    )
    inner = tuple(str(s[-1]) if 0 <= s[-1] <= _NARROW else "s" for s in outer)
    kernel = interleaved_kernel(loop, len(along), index, inner, together)
    steps = {f"{o.name}_row": row for o, row in zip(loop.operands, rows, strict=True)}
    p.launch(kernel, grid, **arguments, **_strides(loop, outer), **steps)
    return True


def _plan_tiled(
    p: Steps,
    loop: Loop,
    arguments: dict[str, Any],
    sizes: Sequence[int],
    strides: Sequence[Sequence[int]],
) -> bool:
    """Plans `tiled_kernel` if inputs run across the results, all along one dimension."""
    results, last = len(loop.results), len(sizes) - 1
    if last == 0 or sizes[last] < _NARROW or any(abs(s[last]) != 1 for s in strides[:results]):
        return False
    rows = [
        next((d for d in range(last) if s[d] == 1 and sizes[d] >= _NARROW), -1) if abs(s[last]) > 1 else -1
        for s in strides[results:]
    ]
    dims = {d for d in rows if d >= 0}
    if len(dims) != 1:
        return False
    row = dims.pop()
    order = [d for d in range(last) if d != row] + [row, last]
    sizes = [sizes[d] for d in order]
    strides = [[s[d] for d in order] for s in strides]
    outer, least = math.prod(sizes[:-2]), 8 * p.device.compute_units
    band = next((band for band in BANDS if outer * ceil_div(sizes[-2], band) >= least), BANDS[-1])
    units = outer * ceil_div(sizes[-2], band)
    index = "i32" if _reach(sizes, strides) + math.prod(sizes) <= _INT32_MAX else "i64"
    across = tuple(d >= 0 for d in rows)
    kernel = tiled_kernel(loop, len(sizes), index, _inner(loop, strides), across, band, p.device.simd_width)
    grid = p.walk(units, band * sizes[-1] * loop.cost, multiple=1)
    dims_of = {f"tg_n{d}": size for d, size in enumerate(sizes)}
    p.launch(kernel, grid, **arguments, **_strides(loop, strides), **dims_of)
    return True


def _broadcast(spec: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    return spec if spec.shape == shape else spec.expand(shape)


def coalesce(sizes: list[int], strides: list[list[int]]) -> tuple[list[int], list[list[int]]]:
    """Orders dimensions by the first operand's strides, the smallest last, and merges those that are one in memory for
    all operands.

    Args:
        sizes: of the dimensions.
        strides: for each operand, its stride in each dimension (elements).

    Returns:
        The new sizes (at least one dimension) and strides.
    """
    dims = [d for d in range(len(sizes)) if sizes[d] != 1]
    dims.sort(key=lambda d: tuple(abs(s[d]) for s in strides), reverse=True)
    out_sizes: list[int] = []
    out_strides: list[list[int]] = [[] for _ in strides]
    for d in dims:
        if out_sizes and all(o[-1] == s[d] * sizes[d] for o, s in zip(out_strides, strides, strict=True)):
            out_sizes[-1] *= sizes[d]
            for o, s in zip(out_strides, strides, strict=True):
                o[-1] = s[d]
        else:
            out_sizes.append(sizes[d])
            for o, s in zip(out_strides, strides, strict=True):
                o.append(s[d])
    if not out_sizes:
        return [1], [[1] for _ in strides]
    return out_sizes, out_strides


def plan_copy(p: Steps, destination: torch.Tensor, source: torch.Tensor) -> None:
    """Copies with conversion between any strides; a conjugate or negative bit on either side is honoured."""
    to, by = element_type(destination.dtype), element_type(source.dtype)
    value = convert("source", by.name, to.name)
    if destination.is_conj():
        value = f"tg_conj_{to.name}({value})"
    if destination.is_neg():
        value = f"-({value})"
    number = p.is_cpu_scalar(source)
    conj, negate = source.is_conj(), source.is_neg()
    loop = Loop(
        name=f"copy_{by.name}_{to.name}",
        inputs=() if number else (Input("source", by.name, by.compute, conj, negate),),
        numbers=(Number("source", by.compute),) if number else (),
        results=(Result("out", to.name, to.compute, value),),
    )
    plan_loop(p, loop, [destination], [] if number else [source], [source] if number else [])


def plan_fill(p: Steps, destination: torch.Tensor, value: Any) -> None:
    """Sets every element of a spec of any strides to a number (or a `Scalar`)."""
    to = element_type(destination.dtype)
    loop = Loop(f"fill_{to.name}", (), (Number("value", to.compute),), (Result("out", to.name, to.compute, "value"),))
    plan_loop(p, loop, [destination], [], [value])
