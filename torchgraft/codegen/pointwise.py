"""Kernels that compute each element of their results from the same element of their inputs."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch._prims_common

from torchgraft.codegen.kernel import Kernel, Parameter, Pointer, Value
from torchgraft.codegen.types import BY_NAME, element_type, value_ctype
from torchgraft.functions import HELPERS

if TYPE_CHECKING:
    from torchgraft.plans.builder import PlanBuilder

_INT32_MAX = 2**31 - 1

# How elements are dealt out on a CPU: one group up to _SINGLE elements, since waking a second thread costs more than
# it gains; then chunks of about _CHUNK, so that threads even out, but no more than _GROUPS_PER_UNIT a core.
_SINGLE = 16384
_CHUNK = 4096
_MULTIPLE = 256
_GROUPS_PER_UNIT = 32
# Side of the squares in which transposed operands are read, and the size from which that pays.
_TILE = 16
_TILED_FROM = 2048
# On a GPU: work-items of a group, and elements of each.
GPU_LOCAL = 256
_GPU_ELEMENTS = 4


@dataclass(frozen=True)
class Input:
    """An operand: loaded as `storage`, converted to `compute`."""

    name: str
    storage: str
    compute: str
    conj: bool = False
    negate: bool = False


@dataclass(frozen=True)
class Number:
    """A scalar operand, equal for all elements."""

    name: str
    type: str


@dataclass(frozen=True)
class Result:
    """A result: the expression has type `compute` and is stored as `storage`."""

    name: str
    storage: str
    compute: str
    text: str


@dataclass(frozen=True)
class Loop:
    """What one element's computation is: names in the results' texts are those of the inputs and numbers.

    Attributes:
        statements: text before the results' expressions.
        cost: how much an element costs relative to an addition; decides into how many pieces small work is cut.
        fault: a condition on an element's operands. Where it holds an error is reported: the kernel has two more
            arguments behind the numbers, the words and the code of an `ErrorReport`, which callers give as numbers.
    """

    name: str
    inputs: tuple[Input, ...]
    numbers: tuple[Number, ...]
    results: tuple[Result, ...]
    statements: str = ""
    cost: int = 1
    fault: str = ""


def convert(text: str, source: str, target: str) -> str:
    """The expression `text` of element type `source` as a value of type `target`, with torch's rules for each pair."""
    source_compute, target_compute = BY_NAME[source].compute, BY_NAME[target].compute
    if source_compute == target_compute:
        return text
    ctype = value_ctype(target)
    if BY_NAME[target].is_complex:
        real = value_ctype({"c64": "f32", "c128": "f64"}[target])
        if BY_NAME[source].is_complex:
            return f"CONVERT_{ctype}({text})"
        return f"MAKE_{ctype}(({real})({text}), ({real})0)"
    if BY_NAME[source].is_complex:
        if target == "b8":
            return f"(({text}).x != 0 || ({text}).y != 0)"
        text = f"({text}).x"
        source = {"c64": "f32", "c128": "f64"}[source]
    if target == "b8":
        return f"(({text}) != 0)"
    if BY_NAME[source].is_float and target in ("u8", "i8", "i16"):
        return f"({ctype})(int)({text})"  # as C++ compilers do it: through int, then the low bits
    return f"({ctype})({text})"


_MATH = re.compile(r"@(\w+)")
_FLOAT_LITERAL = re.compile(r"(?<![\w.])(\d+\.\d*(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)(?![\w.])")


def expression(text: str, compute: str) -> str:
    """An expression of a table with its names resolved for a compute type.

    ``@exp(x)`` becomes the helper ``tg_exp_f32`` or the language's ``exp`` (a helper for the element type itself, such
    as ``tg_nextafter_bf16``, comes first); ``T`` becomes the C type, in ``MAKE_T(x, y)`` too; floating literals get the
    type's suffix.
    """
    base = BY_NAME[compute].compute

    def math_name(match: re.Match[str]) -> str:
        for helper in (f"tg_{match[1]}_{compute}", f"tg_{match[1]}_{base}"):
            if helper in HELPERS:
                return helper
        return match[1]

    text = _MATH.sub(math_name, text)
    text = re.sub(r"\b(MAKE_|SPLAT_|)T\b", rf"\g<1>{value_ctype(compute)}", text)
    if base in ("f32", "c64"):
        text = _FLOAT_LITERAL.sub(r"\1f", text)
    return text


def _load(operand: Input, index: str) -> str:
    """The operand's value at an index, converted."""
    value = convert(f"load_{operand.storage}({operand.name}_p, {index})", operand.storage, operand.compute)
    if operand.conj:
        value = f"tg_conj_{operand.compute}({value})"
    return f"-({value})" if operand.negate else value


def element(loop: Loop, index: dict[str, str], indent: str, loaded: dict[str, str] | None = None) -> str:
    """Statements for one element, given each operand's index expression; `loaded` has the values of inputs that were
    loaded before."""
    lines = []
    for operand in loop.inputs:
        value = (loaded or {}).get(operand.name) or _load(operand, index[operand.name])
        lines.append(f"{value_ctype(operand.compute)} {operand.name} = {value};")
    if loop.statements:
        lines += loop.statements.splitlines()
    if loop.fault:
        lines.append(f"tg_bad |= {loop.fault};")
    # All results are computed before any is stored: an output may be an input.
    for result in loop.results:
        lines.append(f"{value_ctype(result.compute)} {result.name}_v = {result.text};")
    for result in loop.results:
        value = convert(f"{result.name}_v", result.compute, result.storage)
        lines.append(f"store_{result.storage}({result.name}_p, {index[result.name]}, {value});")
    return "\n".join(indent + line for line in lines)


def _operands(loop: Loop) -> list[Input | Result]:
    return [*loop.results, *loop.inputs]


def _common_params(loop: Loop) -> list[Parameter]:
    params: list[Parameter] = [Pointer(f"{r.name}_p", r.storage) for r in loop.results]
    params += [Pointer(f"{i.name}_p", i.storage, const=True) for i in loop.inputs]
    params += [Value(n.name, n.type) for n in loop.numbers]
    if loop.fault:
        params += [Pointer("tg_errors", "i32"), Value("tg_code", "i32")]
    return params


def _reporting(loop: Loop, body: str) -> str:
    """A kernel's body with the report of what its elements have found. One report at the end leaves the loops without
    branches."""
    if not loop.fault:
        return body
    return f"  int tg_bad = 0;\n{body}\n  if (tg_bad) tg_report(tg_errors, tg_code, 0);"


# Names of the skeletons' own variables start with tg_, so that any argument of an op may lend its name to an operand.


@functools.cache
def contiguous_kernel(loop: Loop, form: str) -> Kernel:
    """Every operand is contiguous and of one shape. Arguments: results, inputs, numbers, then the count and the chunk
    (i64)."""
    params = [*_common_params(loop), Value("tg_n", "i64"), Value("tg_chunk", "i64")]
    text = element(loop, {o.name: "tg_i" for o in _operands(loop)}, "    ")
    body = f"{_bounds('long')}{_simple_loop(form, 'long')}\n{text}\n  }}"
    return Kernel(loop.name, tuple(params), _reporting(loop, body), local=_local(form))


def _local(form: str) -> tuple[int, ...]:
    return (GPU_LOCAL,) if form == "gpu" else (1,)


def _bounds(ctype: str) -> str:
    """A group's part of the elements."""
    return (
        f"  {ctype} tg_begin = ({ctype})GROUP_ID(0) * tg_chunk;\n"
        f"  {ctype} tg_end = tg_n - tg_begin < tg_chunk ? tg_n : tg_begin + tg_chunk;\n"
    )


def _simple_loop(form: str, ctype: str) -> str:
    if form == "gpu":
        return f"  for ({ctype} tg_i = tg_begin + LOCAL_ID(0); tg_i < tg_end; tg_i += {GPU_LOCAL}) {{"
    return f"  VECTORIZE\n  for ({ctype} tg_i = tg_begin; tg_i < tg_end; ++tg_i) {{"


@functools.cache
def strided_kernel(loop: Loop, form: str, rank: int, index: str, inner: tuple[str, ...]) -> Kernel:
    """Operands of any strides over `rank` dimensions, the last one innermost.

    Arguments: results, inputs, numbers, the count, the chunk, the sizes, then for each operand (results first) its
        strides.
    `inner` has for each operand its innermost stride: "0", "1", "-1" or "s" (an argument like the others).
    """
    operands = _operands(loop)
    ctype = value_ctype(index)
    params = [*_common_params(loop), Value("tg_n", index), Value("tg_chunk", index)]
    params += [Value(f"tg_n{d}", index) for d in range(rank)]
    params += [Value(f"{o.name}_s{d}", index) for o in operands for d in range(rank)]
    # Innermost strides that are known are written as literals; the argument stays, so that all variants are launched
    # alike.
    step = {o.name: (f"{o.name}_s{rank - 1}" if kind == "s" else kind) for o, kind in zip(operands, inner, strict=True)}
    text = _gpu_walk(loop, ctype, rank, step) if form == "gpu" else _cpu_walk(loop, ctype, rank, step)
    return Kernel(loop.name, tuple(params), _reporting(loop, _bounds(ctype) + text), local=_local(form))


def _split(source: str, ctype: str, rank: int, indent: str) -> str:
    """Statements that make the multi-index tg_i0... of a linear one."""
    lines = [f"{ctype} tg_rest = {source};"]
    for d in range(rank - 1, 0, -1):
        lines += [f"{ctype} tg_i{d} = tg_rest % tg_n{d};", f"tg_rest /= tg_n{d};"]
    lines.append(f"{ctype} tg_i0 = tg_rest;")
    return "\n".join(indent + line for line in lines)


def _offset(name: str, rank: int, step: str) -> str:
    outer = [f"tg_i{d} * {name}_s{d}" for d in range(rank - 1)]
    return " + ".join([*outer, f"tg_i{rank - 1} * {step}"])


def _gpu_walk(loop: Loop, ctype: str, rank: int, step: dict[str, str]) -> str:
    at = {o.name: _offset(o.name, rank, step[o.name]) for o in _operands(loop)}
    return f"{_simple_loop('gpu', ctype)}\n{_split('tg_i', ctype, rank, '    ')}\n{element(loop, at, '    ')}\n  }}"


def _cpu_walk(loop: Loop, ctype: str, rank: int, step: dict[str, str]) -> str:
    """One division at the start, then row after row: a division for each element costs more than the element."""
    last = rank - 1
    operands = _operands(loop)
    starts = "\n".join(f"    {ctype} {o.name}_at = {_offset(o.name, rank, step[o.name])};" for o in operands)
    along = {"0": "", "1": " + tg_j", "-1": " - tg_j"}
    at = {o.name: f"{o.name}_at" + along.get(step[o.name], f" + tg_j * {step[o.name]}") for o in operands}
    carry = "".join(f"if (++tg_i{d} == tg_n{d}) {{ tg_i{d} = 0; " for d in range(last - 1, 0, -1))
    carry += "++tg_i0;" + " }" * (last - 1) if last > 0 else ""
    return f"""\
{_split("tg_begin", ctype, rank, "  ")}
  for ({ctype} tg_done = tg_begin; tg_done < tg_end;) {{
    {ctype} tg_row = tg_n{last} - tg_i{last};
    {ctype} tg_count = tg_row < tg_end - tg_done ? tg_row : tg_end - tg_done;
{starts}
    VECTORIZE
    for ({ctype} tg_j = 0; tg_j < tg_count; ++tg_j) {{
{element(loop, at, "      ")}
    }}
    tg_done += tg_count;
    tg_i{last} = 0;
    {carry}
  }}"""


@functools.cache
def tiled_kernel(loop: Loop, rank: int, index: str, inner: tuple[str, ...], transposed: tuple[bool, ...]) -> Kernel:
    """Some inputs run along the last dimension but one where the results run along the last: both sides are read and
    written in rows.

    A unit of work is a band of _TILE indices of the last dimension but one, over the whole last dimension. A square of
    each transposed input is read in its own order into private memory and then used in the results' order. Arguments
    as in `strided_kernel`, but the count and the chunk are of units. `transposed` says of each input whether it is
    such a one.
    """
    operands = _operands(loop)
    ctype = value_ctype(index)
    row, last = rank - 2, rank - 1
    params = [*_common_params(loop), Value("tg_n", index), Value("tg_chunk", index)]
    params += [Value(f"tg_n{d}", index) for d in range(rank)]
    params += [Value(f"{o.name}_s{d}", index) for o in operands for d in range(rank)]
    across = [i for i, flag in zip(loop.inputs, transposed, strict=True) if flag]
    split = [f"{ctype} tg_rest = tg_unit / tg_bands;", f"{ctype} tg_i{row} = tg_unit % tg_bands * {_TILE};"]
    for d in range(row - 1, -1, -1):
        split += [f"{ctype} tg_i{d} = tg_rest % tg_n{d};", f"tg_rest /= tg_n{d};"]
    starts = [
        f"{ctype} {o.name}_at = {' + '.join(f'tg_i{d} * {o.name}_s{d}' for d in range(rank - 1))};" for o in operands
    ]
    tiles = "\n".join(f"      {value_ctype(i.compute)} {i.name}_tile[{_TILE * _TILE}];" for i in across)
    fills = "\n".join(
        f"          {i.name}_tile[tg_r * {_TILE} + tg_c] = "
        + _load(i, f"{i.name}_at + tg_r + (tg_j + tg_c) * {i.name}_s{last}")
        + ";"
        for i in across
    )
    step = {o.name: (f"{o.name}_s{last}" if kind == "s" else kind) for o, kind in zip(operands, inner, strict=True)}
    at = {o.name: f"{o.name}_at + tg_r * {o.name}_s{row} + (tg_j + tg_c) * {step[o.name]}" for o in operands}
    loaded = {i.name: f"{i.name}_tile[tg_r * {_TILE} + tg_c]" for i in across}
    body = f"""\
{_bounds(ctype)}  {ctype} tg_bands = (tg_n{row} + {_TILE - 1}) / {_TILE};
  for ({ctype} tg_unit = tg_begin; tg_unit < tg_end; ++tg_unit) {{
{_indented(split + starts, "    ")}
    int tg_rows = tg_n{row} - tg_i{row} < {_TILE} ? (int)(tg_n{row} - tg_i{row}) : {_TILE};
    for ({ctype} tg_j = 0; tg_j < tg_n{last}; tg_j += {_TILE}) {{
      int tg_columns = tg_n{last} - tg_j < {_TILE} ? (int)(tg_n{last} - tg_j) : {_TILE};
{tiles}
      for (int tg_c = 0; tg_c < tg_columns; ++tg_c) {{
        VECTORIZE
        for (int tg_r = 0; tg_r < tg_rows; ++tg_r) {{
{fills}
        }}
      }}
      for (int tg_r = 0; tg_r < tg_rows; ++tg_r) {{
        VECTORIZE
        for (int tg_c = 0; tg_c < tg_columns; ++tg_c) {{
{element(loop, at, "          ", loaded)}
        }}
      }}
    }}
  }}"""
    return Kernel(loop.name, tuple(params), _reporting(loop, body))


def _indented(lines: Sequence[str], indent: str) -> str:
    return "\n".join(indent + line for line in lines)


# ---- planning ----


def chunking(p: PlanBuilder, cost: int) -> tuple[int, int, int, int]:
    """(multiple, single, per_group, max_groups) for a loop of that cost; see Chunking in csrc/dispatch/plan.h."""
    if p.form == "gpu":
        return (GPU_LOCAL, 0, GPU_LOCAL * _GPU_ELEMENTS, 0)
    return (_MULTIPLE, _SINGLE // cost, max(_MULTIPLE, _CHUNK // cost), _GROUPS_PER_UNIT * p.device.compute_units)


def deal(n: int, rule: tuple[int, int, int, int]) -> tuple[int, int]:
    """(groups, chunk) for n elements: what C++ does for plans that serve any shape."""
    multiple, single, per_group, max_groups = rule
    if n <= single:
        chunk = n
    else:
        groups = -(-n // per_group)
        chunk = -(-n // (min(groups, max_groups) if max_groups else groups))
    chunk = -(-chunk // multiple) * multiple
    return -(-n // chunk), chunk


@dataclass
class PlannedLoop:
    """A call of `plan_loop`, kept instead of planned; see `PlanBuilder.gathered`."""

    loop: Loop
    results: Sequence[torch.Tensor]
    inputs: Sequence[torch.Tensor]
    numbers: Sequence[Any]


def plan_loop(
    p: PlanBuilder,
    loop: Loop,
    results: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    numbers: Sequence[Any],
) -> None:
    """Adds the launch of a loop to a plan.

    Args:
        results: specs of the loop's results, all of one shape.
        inputs: specs of its inputs, broadcastable to that shape.
        numbers: launch arguments for its numbers, and for its report if it has a fault.
    """
    if p.gathered is not None:
        p.gathered.append(PlannedLoop(loop, results, inputs, numbers))
        return
    if p.any_shape:
        rule = chunking(p, loop.cost)
        args = [*results, *inputs, *numbers, ("numel",), ("chunk",)]
        p.launch_over_elements(contiguous_kernel(loop, p.form), rule, args)
        return
    shape = results[0].shape
    if shape.numel() == 0:
        return
    specs = [*results, *(_broadcast(spec, shape) for spec in inputs)]
    plan_strided_loop(p, loop, specs, numbers, *coalesce(list(shape), [list(spec.stride()) for spec in specs]))


def plan_strided_loop(
    p: PlanBuilder,
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
    groups, chunk = deal(n, chunking(p, loop.cost))
    if len(sizes) == 1 and all(s[0] == 1 for s in strides):
        kernel = contiguous_kernel(loop, p.form)
        p.launch(kernel, (groups,), [*specs, *numbers, n, chunk])
        return
    if p.form == "cpu" and n >= _TILED_FROM and _plan_tiled(p, loop, specs, numbers, sizes, strides):
        return
    reach = max(sum((size - 1) * abs(s) for size, s in zip(sizes, stride, strict=True)) for stride in strides)
    index = "i32" if max(reach, n + chunk) <= _INT32_MAX else "i64"
    inner = tuple({0: "0", 1: "1", -1: "-1"}.get(s[-1], "s") for s in strides)
    kernel = strided_kernel(loop, p.form, len(sizes), index, inner)
    p.launch(kernel, (groups,), [*specs, *numbers, n, chunk, *sizes, *(s for stride in strides for s in stride)])


def is_dense(spec: torch.Tensor) -> bool:
    """The elements fill one block of memory, each once (in any order of the dimensions)."""
    return bool(torch._prims_common.is_non_overlapping_and_dense_or_false(spec))


def _plan_tiled(
    p: PlanBuilder,
    loop: Loop,
    specs: Sequence[torch.Tensor],
    numbers: Sequence[Any],
    sizes: Sequence[int],
    strides: Sequence[Sequence[int]],
) -> bool:
    """Plans `tiled_kernel` if inputs run across the results, all along one dimension."""
    results, last = len(loop.results), len(sizes) - 1
    if last == 0 or sizes[last] < _TILE // 2 or any(abs(s[last]) != 1 for s in strides[:results]):
        return False
    rows = [
        next((d for d in range(last) if s[d] == 1 and sizes[d] >= _TILE // 2), -1) if abs(s[last]) > 1 else -1
        for s in strides[results:]
    ]
    dims = {d for d in rows if d >= 0}
    if len(dims) != 1:
        return False
    row = dims.pop()
    order = [d for d in range(last) if d != row] + [row, last]
    sizes = [sizes[d] for d in order]
    strides = [[s[d] for d in order] for s in strides]
    units = math.prod(sizes[:-2]) * -(-sizes[-2] // _TILE)
    unit = _TILE * sizes[-1] * loop.cost
    groups = 1 if units * unit <= _SINGLE else min(units, _GROUPS_PER_UNIT * p.device.compute_units)
    chunk = -(-units // groups)
    reach = max(sum((size - 1) * abs(s) for size, s in zip(sizes, stride, strict=True)) for stride in strides)
    inner = tuple({0: "0", 1: "1", -1: "-1"}.get(s[-1], "s") for s in strides)
    index = "i32" if reach + math.prod(sizes) <= _INT32_MAX else "i64"
    kernel = tiled_kernel(loop, len(sizes), index, inner, tuple(d >= 0 for d in rows))
    p.launch(
        kernel,
        (-(-units // chunk),),
        [*specs, *numbers, units, chunk, *sizes, *(s for stride in strides for s in stride)],
    )
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


def plan_copy(p: PlanBuilder, destination: torch.Tensor, source: torch.Tensor) -> None:
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


def plan_fill(p: PlanBuilder, destination: torch.Tensor, value: Any) -> None:
    """Sets every element of a spec of any strides to a number (or a `Scalar`)."""
    to = element_type(destination.dtype)
    loop = Loop(f"fill_{to.name}", (), (Number("value", to.compute),), (Result("out", to.name, to.compute, "value"),))
    plan_loop(p, loop, [destination], [], [value])
