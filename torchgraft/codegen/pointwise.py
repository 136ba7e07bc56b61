"""Kernels that compute each element of their results from the same element of their inputs."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, replace

from torchgraft.codegen.kernel import Kernel, Parameter, Pointer, Value
from torchgraft.codegen.types import BY_NAME, value_ctype
from torchgraft.codegen.vectors import LOADED, SIZES, shuffle_helpers, transpose_registers, vector_lanes
from torchgraft.codegen.walk import Walk
from torchgraft.functions import HELPERS, NEAR, NEAREST

#: Side of the tiles in which transposed operands are read, along the results' rows: some lines of a cache, since
#: processors fetch neighbours of a line, and look up a page once for all of them.
TILE = 64
#: The other side, likewise.
BANDS = (64, 16)
#: Elements that are looked at before they are computed, and are still near then.
BLOCK = 1024


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
    """A result: the expression has type `compute` and is stored as `storage`. `exact` says that it is a number of that
    type, so that there is nothing to round."""

    name: str
    storage: str
    compute: str
    text: str
    exact: bool = False


@dataclass(frozen=True)
class Loop:
    """What one element's computation is: names in the results' texts are those of the inputs and numbers.

    Attributes:
        statements: text before the results' expressions.
        cost: how much an element costs relative to an addition; decides into how many pieces small work is cut.
        fault: a condition on an element's operands. Where it holds an error is reported: the kernel has two more
            parameters behind the numbers, for the words and the code of an `ErrorReport`, which callers give as
            numbers.
    """

    name: str
    inputs: tuple[Input, ...]
    numbers: tuple[Number, ...]
    results: tuple[Result, ...]
    statements: str = ""
    cost: int = 1
    fault: str = ""

    @property
    def operands(self) -> list[Input | Result]:
        """Results, then inputs."""
        return [*self.results, *self.inputs]


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


def _store(result: Result, index: str, value: str) -> str:
    """A statement that stores a result, converted."""
    if result.exact and (result.storage, result.compute) == ("bf16", "f32"):  # the upper half of a float32
        return f"{result.name}_p[{index}] = (ushort)(AS_uint({value}) >> 16);"
    return f"store_{result.storage}({result.name}_p, {index}, {convert(value, result.compute, result.storage)});"


def element(loop: Loop, index: dict[str, str], indent: str, loaded: dict[str, str] | None = None) -> str:
    """Statements for one element, given each operand's index expression; `loaded` has the values of inputs that were
    loaded before."""
    # All results are computed before any is stored: an output may be an input.
    lines = [*_values(loop, index, loaded or {}), *_stores(loop, index)]
    return "\n".join(indent + line for line in lines)


def _values(loop: Loop, index: dict[str, str], loaded: dict[str, str]) -> list[str]:
    """Statements that compute an element's results, `<name>_v`."""
    lines = []
    for operand in loop.inputs:
        value = loaded.get(operand.name) or _load(operand, index[operand.name])
        lines.append(f"{value_ctype(operand.compute)} {operand.name} = {value};")
    if loop.statements:
        lines += loop.statements.splitlines()
    if loop.fault:
        lines.append(f"tg_bad |= {loop.fault};")
    return lines + [f"{value_ctype(r.compute)} {r.name}_v = {r.text};" for r in loop.results]


def _stores(loop: Loop, index: dict[str, str], value: str = "{}_v") -> list[str]:
    """Statements that store an element's results, whose values are named like `value`."""
    return [_store(result, index[result.name], value.format(result.name)) for result in loop.results]


@functools.cache
def loop_parameters(loop: Loop, rank: int = 0, index: str = "i64") -> tuple[Parameter, ...]:
    """The kernels' parameters: pointers called after results and inputs, ``<name>_p``, the numbers, where errors are
    reported, and for `rank` dimensions each operand's strides ``<name>_s0``..."""
    params: list[Parameter] = [Pointer(f"{r.name}_p", r.storage) for r in loop.results]
    params += [Pointer(f"{i.name}_p", i.storage, const=True) for i in loop.inputs]
    params += [Value(n.name, n.type) for n in loop.numbers]
    if loop.fault:
        params += [Pointer("tg_errors", "i32"), Value("tg_code", "i32")]
    return (*params, *(Value(f"{o.name}_s{d}", index) for o in loop.operands for d in range(rank)))


def _reporting(loop: Loop, body: str) -> str:
    """A kernel's body with the report of what its elements have found. One report at the end leaves the loops without
    branches."""
    if not loop.fault:
        return body
    return f"  int tg_bad = 0;\n{body}\n  if (tg_bad) tg_report(tg_errors, tg_code, 0);"


# The loops' own variables start with tg_, so that any argument of an op may lend its name to an operand.


@functools.cache
def contiguous_kernel(loop: Loop, form: str) -> Kernel:
    """Every operand is contiguous and of one shape."""
    walk = Walk(form, prefix="tg_")
    at = {o.name: "tg_i" for o in loop.operands}
    near = _near(loop) if form == "cpu" else None
    body = walk.each(element(loop, at, "    ")) if near is None else _by_blocks(walk, loop, near, at)
    return walk.kernel(loop.name, loop_parameters(loop), _reporting(loop, body))


def _near(loop: Loop) -> Loop | None:
    """The loop for an input whose elements are not large, where a function of it is quicker then."""
    if len(loop.inputs) != 1 or loop.inputs[0].compute not in NEAREST:
        return None
    calls = {f"{name}({loop.inputs[0].name})": f"{near}({loop.inputs[0].name})" for name, near in NEAR.items()}
    results = list(loop.results)
    for far, near in calls.items():
        results = [replace(result, text=result.text.replace(far, near)) for result in results]
    return replace(loop, results=tuple(results)) if tuple(results) != loop.results else None


def _by_blocks(walk: Walk, loop: Loop, near: Loop, at: dict[str, str]) -> str:
    """Looks at a block of elements before it is computed: a vector has no branches."""
    [x] = loop.inputs
    far = f"    tg_far |= !(fabs({_load(x, at[x.name])}) <= {NEAREST[x.compute]});"
    far_loop, near_loop = (walk.loop("tg_i", "tg_block", "tg_stop", element(each, at, "    ")) for each in (loop, near))
    return f"""\
  for (long tg_block = tg_begin; tg_block < tg_end; tg_block += {BLOCK}) {{
    const long tg_stop = tg_end - tg_block < {BLOCK} ? tg_end : tg_block + {BLOCK};
    int tg_far = 0;
{walk.loop("tg_i", "tg_block", "tg_stop", far)}
    if (tg_far) {{
{far_loop}
    }} else {{
{near_loop}
    }}
  }}"""


def _steps(loop: Loop, last: int, inner: tuple[str, ...]) -> dict[str, str]:
    """Innermost strides as text. Those that are known are literals; the parameter stays, so that all variants are
    launched alike."""
    return {o.name: f"{o.name}_s{last}" if s == "s" else s for o, s in zip(loop.operands, inner, strict=True)}


@functools.cache
def strided_kernel(loop: Loop, form: str, rank: int, index: str, inner: tuple[str, ...], short: bool = False) -> Kernel:
    """Operands of any strides over `rank` dimensions, the last one innermost; `short` as of `Walk`.

    `inner` has for each operand, results first, its innermost stride: a number, or "s" (a parameter like the others).
    """
    walk = Walk(form, rank, index, prefix="tg_", short=short)
    step = _steps(loop, rank - 1, inner)
    t = value_ctype(index)
    starts = "\n".join(f"    {t} {n}_at = {walk.offset(f'{n}_s', s)};" for n, s in step.items())
    along = {"0": "{n}_at", "1": "{n}_at + tg_j", "-1": "{n}_at - tg_j", "s": "{n}_at + tg_j * {s}"}
    # A sum that may overflow for all that a compiler knows has it gather, instead of reading whole vectors.
    far = "UNWRAPPED({n}_at) + UNWRAPPED(tg_j) * {s}" if form == "cpu" else along["s"]
    at = {o.name: along.get(s, far).format(n=o.name, s=step[o.name]) for o, s in zip(loop.operands, inner, strict=True)}
    body = walk.each(element(loop, at, "      "), starts)
    return walk.kernel(loop.name, loop_parameters(loop, rank, index), _reporting(loop, body))


@functools.cache
def interleaved_kernel(loop: Loop, rank: int, index: str, inner: tuple[str, ...], together: int) -> Kernel:
    """The results' rows are `together` elements each, a few, and touch each other: what is innermost in the walk is the
    dimension before, and at each of its places a whole row is written, such as the colours of a pixel. What a compiler
    makes vectors of then are whole vectors of all rows' first elements, of their second ones and so on.

    The walk has `rank` dimensions without the rows; `inner` is as of `strided_kernel`, of the last of them. Behind
    the strides over these a parameter `<name>_row` has each operand's along a row.
    """
    walk = Walk("cpu", rank, index, prefix="tg_")
    t = value_ctype(index)
    step = _steps(loop, rank - 1, inner)
    starts = "\n".join(f"    {t} {n}_at = {walk.offset(f'{n}_s', s)};" for n, s in step.items())
    results = {r.name for r in loop.results}
    lines: list[str] = []
    stores: list[str] = []
    for c in range(together):
        along = {n: f"{c}" if n in results else f"UNWRAPPED({c}) * {n}_row" for n in step}
        at = {n: f"UNWRAPPED({n}_at) + UNWRAPPED(tg_j) * {s} + {along[n]}" for n, s in step.items()}
        values = _values(loop, at, {}) + [f"{r.name}_v{c} = {r.name}_v;" for r in loop.results]
        lines += [f"{value_ctype(r.compute)} {r.name}_v{c};" for r in loop.results]
        lines += ["{", *(f"  {line}" for line in values), "}"]
        stores += _stores(loop, at, f"{{}}_v{c}")
    body = walk.each("\n".join(f"      {line}" for line in lines + stores), starts)
    params = (*loop_parameters(loop, rank, index), *(Value(f"{o.name}_row", index) for o in loop.operands))
    return walk.kernel(loop.name, params, _reporting(loop, body))


@functools.cache
def tiled_kernel(
    loop: Loop, rank: int, index: str, inner: tuple[str, ...], transposed: tuple[bool, ...], band: int, simd_width: int
) -> Kernel:
    """Some inputs run along the last dimension but one where the results run along the last: both sides are read and
    written in rows.

    A unit of work is a band of `band` indices of the last dimension but one, over the whole last dimension. A tile of
    each transposed input, the band by TILE, is read in its own order into private memory and then used in the results'
    order. Parameters as of `strided_kernel`, and the sizes; the walk is over units. `transposed` says of each input
    whether it is such a one.
    """
    walk = Walk("cpu", index=index, prefix="tg_")
    ctype = value_ctype(index)
    row, last = rank - 2, rank - 1
    across = [i for i, flag in zip(loop.inputs, transposed, strict=True) if flag]
    split = [f"{ctype} tg_rest = tg_i / tg_bands;", f"{ctype} tg_i{row} = tg_i % tg_bands * {band};"]
    for d in range(row - 1, -1, -1):
        split += [f"{ctype} tg_i{d} = tg_rest % tg_n{d};", f"tg_rest /= tg_n{d};"]
    starts = [
        f"{ctype} {o.name}_at = {' + '.join(f'tg_i{d} * {o.name}_s{d}' for d in range(rank - 1))};"
        for o in loop.operands
    ]
    tiles = "\n".join(f"      {value_ctype(i.compute)} {i.name}_tile[{band * TILE}] ALIGN(64);" for i in across)
    squares = _Squares.of(across[0], simd_width)
    fills = "\n".join(_fill(i, last, squares if squares == _Squares.of(i, simd_width) else None) for i in across)
    step = _steps(loop, last, inner)
    at = {n: f"{n}_at + tg_r * {n}_s{row} + (tg_j + tg_c) * {s}" for n, s in step.items()}
    loaded = {i.name: f"{i.name}_tile[tg_r * {TILE} + tg_c]" for i in across}
    places = "\n".join("    " + line for line in split + starts)
    unit = f"""\
{places}
    int tg_rows = tg_n{row} - tg_i{row} < {band} ? (int)(tg_n{row} - tg_i{row}) : {band};
    for ({ctype} tg_j = 0; tg_j < tg_n{last}; tg_j += {TILE}) {{
      int tg_columns = tg_n{last} - tg_j < {TILE} ? (int)(tg_n{last} - tg_j) : {TILE};
{tiles}
{fills}
      for (int tg_r = 0; tg_r < tg_rows; ++tg_r) {{
        VECTORIZE
        for (int tg_c = 0; tg_c < tg_columns; ++tg_c) {{
{element(loop, at, "          ", loaded)}
        }}
      }}
    }}"""
    body = f"  {ctype} tg_bands = (tg_n{row} + {band - 1}) / {band};\n{walk.each(unit, vectorize=False)}"
    params = (*loop_parameters(loop, rank, index), *(Value(f"tg_n{d}", index) for d in range(rank)))
    return walk.kernel(loop.name, params, _reporting(loop, body), squares.helpers if squares else "")


@dataclass(frozen=True)
class _Squares:
    """The parts of a tile that are transposed in registers: `width` vectors of as many elements."""

    vector: str
    width: int

    @staticmethod
    def of(operand: Input, simd_width: int) -> _Squares | None:
        """Those of an input whose elements are loaded in vectors and need no conversion after it."""
        ctype = value_ctype(operand.compute)
        if LOADED.get(operand.storage) != ctype or operand.conj or operand.negate:
            return None
        lanes = vector_lanes(simd_width)
        width = max(4, lanes // 2) if SIZES[ctype] == 8 else lanes
        return _Squares(f"{ctype}{width}", width)

    @property
    def helpers(self) -> str:
        return shuffle_helpers(self.width, self.vector)


def _fill(operand: Input, last: int, squares: _Squares | None) -> str:
    """Reads a tile of a transposed input. A store for each element takes the longest, so that whole squares are
    transposed before."""
    start = f"{operand.name}_at + tg_r + (tg_j + tg_c"
    single = f"""\
          {operand.name}_tile[tg_r * {TILE} + tg_c] = {_load(operand, f"{start}) * {operand.name}_s{last}")};"""
    if squares is None:
        return f"""\
      for (int tg_c = 0; tg_c < tg_columns; ++tg_c) {{
        VECTORIZE
        for (int tg_r = 0; tg_r < tg_rows; ++tg_r) {{
{single}
        }}
      }}"""
    width, vector, load = squares.width, squares.vector, f"load_{operand.storage}x{squares.width}"
    loads = "\n".join(
        f"          {vector} r{k} = {load}({operand.name}_p, {start} + {k}) * {operand.name}_s{last});"
        for k in range(width)
    )
    stores = "\n".join(
        f"          (({vector}*){operand.name}_tile)[((tg_r + {k}) * {TILE} + tg_c) / {width}] = r{k};"
        for k in range(width)
    )
    return f"""\
      PLAIN for (int tg_c = 0; tg_c + {width} <= tg_columns; tg_c += {width}) {{
        PLAIN for (int tg_r = 0; tg_r + {width} <= tg_rows; tg_r += {width}) {{
{loads}
{transpose_registers(width, vector)}
{stores}
        }}
      }}
      for (int tg_c = 0; tg_c < tg_columns; ++tg_c) {{
        const int tg_first = tg_c < tg_columns / {width} * {width} ? tg_rows / {width} * {width} : 0;
        VECTORIZE
        for (int tg_r = tg_first; tg_r < tg_rows; ++tg_r) {{
{single}
        }}
      }}"""
