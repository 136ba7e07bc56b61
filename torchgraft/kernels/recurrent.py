"""Layers of recurrent networks: all steps of a sequence in one kernel.

A work-item has some rows of the batch, which have nothing to do with each other, and goes through the sequence with
them: at each step it multiplies their states by the weights and computes the cells. In time that costs what the
products cost: between two steps nothing is launched and nothing is waited for. The weights come in panels (see
`panel_width`): those of one panel stay in the first-level cache while the rows of the block pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from torchgraft.codegen.arithmetic import Arithmetic, arithmetic
from torchgraft.codegen.kernel import Kernel, parameters
from torchgraft.codegen.pointwise import expression

ROWS = (1, 2, 4)
"""Rows of the batch that are multiplied at once."""


@dataclass(frozen=True)
class Cell:
    """What a cell computes for one unit of one row.

    Texts name the unit's gates as they come from the inputs (``x0``, ``x1``, ...) and from the state before (``h0``,
    ...), the state before (``before``), and for cells that have one the second state, which is ``c`` before and
    ``next_c`` after. Those of the backward pass name the gradient of the new state (``dh``), what `keep` names, and
    ``carry``: what has come from the step behind, beside the product of its gates' gradients and the weights.

    Attributes:
        gates: their number.
        has_c: whether there is a second state; then `carry` is its gradient, and ``next_c`` the last of `keep`.
        forward: statements.
        result: the new state.
        keep: names that the backward pass needs.
        backward: its statements.
        input_gradients: of the gates as they come from the inputs.
        hidden_gradients: of the gates as they come from the state, where they differ.
        carry: what goes on to the step before; "" if nothing does.
    """

    gates: int
    has_c: bool
    forward: str
    result: str
    keep: tuple[str, ...]
    backward: str
    input_gradients: tuple[str, ...]
    hidden_gradients: tuple[str, ...] = ()
    carry: str = ""


def _plain(function: str, slope: str) -> Cell:
    """torch.nn.RNN's."""
    return Cell(1, False, f"const T a = x0 + h0, y = {function};", "y", ("y",), "", (slope,))


#: By name; equations as in `torchgraft.ops.rnn`.
CELLS = {
    "lstm": Cell(
        gates=4,
        has_c=True,
        forward="""\
const T i = @sigmoid(x0 + h0), f = @sigmoid(x1 + h1), g = @tanh(x2 + h2), o = @sigmoid(x3 + h3);
const T next_c = f * c + i * g;""",
        result="o * @tanh(next_c)",
        keep=("i", "f", "g", "o", "next_c"),
        backward="const T t = @tanh(next_c), dc = dh * o * (1 - t * t) + carry;",
        input_gradients=(
            "dc * g * (1 - i) * i",
            "dc * c * (1 - f) * f",
            "dc * i * (1 - g * g)",
            "dh * t * (1 - o) * o",
        ),
        carry="dc * f",
    ),
    "gru": Cell(
        gates=3,
        has_c=False,
        forward="""\
const T r = @sigmoid(x0 + h0), z = @sigmoid(x1 + h1), h = h2;
const T n = @tanh(x2 + r * h);""",
        result="n + z * (before - n)",
        keep=("r", "z", "n", "h"),
        backward="""\
const T dn = dh * (1 - z) * (1 - n * n), dz = dh * (before - n) * (1 - z) * z;
const T dr = dn * h * (1 - r) * r;""",
        input_gradients=("dr", "dz", "dn"),
        hidden_gradients=("dr", "dz", "dn * r"),
        carry="dh * z",
    ),
    "rnn_tanh": _plain("@tanh(a)", "dh * (1 - y * y)"),
    "rnn_relu": _plain("a < 0 ? (T)0 : a", "y <= 0 ? (T)0 : dh"),  # NaN stays NaN
}


def _vectors(math: Arithmetic) -> int:
    """Vectors of a panel's width: as many as leave registers for the sums of four rows."""
    return 4 if math.width * math.size >= 64 else 2


def panel_width(storage: str, simd_width: int) -> int:
    """Columns of a panel: the weights' matrix lies as [columns / width][rows][width]."""
    math = arithmetic(storage, simd_width)
    return math.width * _vectors(math)


def _product(math: Arithmetic, tile: int, rows: str, pitch: str, depth: str) -> str:
    """Multiplies the block's rows, `pitch` apart, by the panels of `weight`: into `product`."""
    vectors, names = _vectors(math), [f"a{i}" for i in range(tile)]
    width = math.width * vectors
    pointers = " ".join(
        f"{math.const_pointer} {a} = {rows} + min(m + {i}, rows - 1) * {pitch};" for i, a in enumerate(names)
    )
    sums = [[f"s{i}_{v}" for v in range(vectors)] for i in range(tile)]
    declared = ", ".join(f"{name} = {math.splat('0')}" for row in sums for name in row)
    loads = " ".join(
        f"const {math.vector} b{v} = {math.load_vector('panel', f'k * {width} + {v * math.width}')};"
        for v in range(vectors)
    )
    updates = " ".join(
        f"{{ const {math.vector} a = {math.splat(f'{a}[k]')}; "
        + " ".join(f"{name} = {math.multiply_add('a', f'b{v}', name)};" for v, name in enumerate(row))
        + " }"
        for a, row in zip(names, sums, strict=True)
    )
    stores = " ".join(
        f"{math.store_vector('product', f'(m + {i}) * pitch + n + {v * math.width}', name)};"
        for i, row in enumerate(sums)
        for v, name in enumerate(row)
    )
    return f"""
  PLAIN for (long n = 0; n < pitch; n += {width}) {{
    {math.const_pointer} panel = weight + n * {depth};
    PLAIN for (long m = 0; m < rows; m += {tile}) {{
      {pointers}
      {math.vector} {declared};
      PLAIN for (long k = 0; k < {depth}; ++k) {{ {loads} {updates} }}
      {stores}
    }}
  }}"""


def _begin(math: Arithmetic) -> str:
    return f"""
  const long first = GROUP_ID(0) * block, rows = min(block, batch - first);
  {math.pointer} const product = scratch + GROUP_ID(0) * room;"""


#: The step's place in time, and that of the one before it.
_TIMES = "const long t = reverse ? steps - 1 - s : s, last = reverse ? t + 1 : t - 1;"


def _define(values: Sequence[tuple[str, str]]) -> str:
    return " ".join(f"const T {name} = {value};" for name, value in values)


@cache
def forward_kernel(name: str, storage: str, bias: bool, keep: bool, tile: int, simd_width: int) -> Kernel:
    """Parameters: `gates` [steps, batch, gates * size] of the inputs, `weight` in panels, `bias` of the gates of the
    state, the first states `hx` and `cx` [batch, size]; results `out` [steps, batch, size], `cy`, `kept` [steps, batch,
    kept * size]; `scratch`, of which a group has `room`: its rows in whole tiles, times `pitch`, the panels'
    columns."""
    cell, math = CELLS[name], arithmetic(storage, simd_width)
    own = [(f"x{g}", f"inputs[{g} * size + j]") for g in range(cell.gates)]
    own += [
        (f"h{g}", f"sums[{g} * size + j]" + (f" + bias[{g} * size + j]" if bias else "")) for g in range(cell.gates)
    ]
    own += [("before", "from[line * size + j]")] + ([("c", "state[j]")] if cell.has_c else [])
    stores = f"out[row * size + j] = {cell.result};"
    if cell.has_c:
        stores += " cy[(first + line) * size + j] = next_c;"
    if keep:
        stores += " ".join(f"kept[(row * {len(cell.keep)} + {k}) * size + j] = {v};" for k, v in enumerate(cell.keep))
    state = f"{math.const_pointer} state = (s == 0 ? cx : ({math.const_pointer})cy) + (first + line) * size;"
    body = f"""{_begin(math)}
  for (long s = 0; s < steps; ++s) {{
    {_TIMES}
    {math.const_pointer} from = s == 0 ? hx + first * size : ({math.const_pointer})out + (last * batch + first) * size;
    {_product(math, tile, "from", "size", "size")}
    for (long line = 0; line < rows; ++line) {{
      const long row = t * batch + first + line;
      {math.const_pointer} inputs = gates + row * {cell.gates} * size;
      {math.const_pointer} sums = ({math.const_pointer})product + line * pitch;
      {state if cell.has_c else ""}
      VECTORIZE
      for (long j = 0; j < size; ++j) {{
        {_define(own)}
        {cell.forward}
        {stores}
      }}
    }}
  }}"""
    c = f"const {storage}* cx; {storage}* cy;" if cell.has_c else ""
    return Kernel(
        f"{name}_layer",
        parameters(
            f"const {storage}* gates, weight, hx; {c} {f'const {storage}* bias;' if bias else ''} "
            f"{storage}* out, scratch; {f'{storage}* kept;' if keep else ''} "
            "i64 steps, batch, size, pitch, block, room; i32 reverse"
        ),
        expression(body, storage),
    )


@cache
def backward_kernel(name: str, storage: str, tile: int, simd_width: int) -> Kernel:
    """Parameters: `grad` of `out`, the weights in panels [gates * size] deep, `hx`, `cx`, `out` and `kept` as of
    `forward_kernel`; results `grad_gates`, `grad_hidden` where the cell has gradients of its own for them, `grad_hx`;
    `carry` [batch, size], with what comes from behind the sequence, which becomes the gradient of `cx`; `scratch`."""
    cell, math = CELLS[name], arithmetic(storage, simd_width)
    needs_before = "before" in cell.backward
    own = [(kept, f"kept[(row * {len(cell.keep)} + {k}) * size + j]") for k, kept in enumerate(cell.keep)]
    own.append(("dh", "grad[row * size + j] + sums[j]" + (" + carried[j]" if cell.carry and not cell.has_c else "")))
    own += [("carry", "carried[j]")] if cell.has_c else []
    own += [("before", "from[line * size + j]")] if needs_before else []
    own += [("c", "state[j]")] if cell.has_c else []
    both = bool(cell.hidden_gradients)
    stores = [
        f"{to}[(row * {cell.gates} + {g}) * size + j] = {text};"
        for to, texts in (("grad_gates", cell.input_gradients), ("grad_hidden", cell.hidden_gradients))
        for g, text in enumerate(texts)
    ]
    stores += [f"carried[j] = {cell.carry};"] if cell.carry else []
    carried = f"{math.pointer} carried = carry + (first + line) * size;" if cell.carry else ""
    # The second state before is what the step before has kept.
    kept_c = f"kept + ((last * batch + first + line) * {len(cell.keep)} + {len(cell.keep) - 1}) * size"
    state = f"{math.const_pointer} state = s == 0 ? cx + (first + line) * size : {kept_c};" if cell.has_c else ""
    before = f"{math.const_pointer} from = s == 0 ? hx + first * size : out + (last * batch + first) * size;"
    sources = "grad_hidden" if both else "grad_gates"
    pitch = f"{cell.gates} * size"
    last = " + carried[j]" if cell.carry and not cell.has_c else ""
    body = f"""{_begin(math)}
  for (long j = 0; j < room; ++j) product[j] = 0;
  for (long s = steps - 1; s >= 0; --s) {{
    {_TIMES}
    {before if needs_before else ""}
    for (long line = 0; line < rows; ++line) {{
      const long row = t * batch + first + line;
      {math.const_pointer} sums = ({math.const_pointer})product + line * pitch;
      {carried}
      {state}
      VECTORIZE
      for (long j = 0; j < size; ++j) {{
        {_define(own)}
        {cell.backward}
        {" ".join(stores)}
      }}
    }}
    {{
      {math.const_pointer} of = ({math.const_pointer}){sources} + (t * batch + first) * {pitch};
      {_product(math, tile, "of", pitch, pitch)}
    }}
  }}
  for (long line = 0; line < rows; ++line) {{
    {carried}
    VECTORIZE
    for (long j = 0; j < size; ++j) grad_hx[(first + line) * size + j] = product[line * pitch + j]{last};
  }}"""
    return Kernel(
        f"{name}_layer_backward",
        parameters(
            f"const {storage}* grad, weight, kept; {f'const {storage}* hx, out;' if needs_before else ''} "
            f"{f'const {storage}* cx;' if cell.has_c else ''} {f'{storage}* carry;' if cell.carry else ''} "
            f"{storage}* grad_gates, grad_hx, scratch; {f'{storage}* grad_hidden;' if both else ''} "
            "i64 steps, batch, size, pitch, block, room; i32 reverse"
        ),
        expression(body, storage),
    )
