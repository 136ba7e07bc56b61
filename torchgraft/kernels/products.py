"""What kernels of products share: the words for their operands, how they begin and how they store sums."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

from torchgraft.codegen.arithmetic import Arithmetic
from torchgraft.codegen.kernel import Parameter, parameters

# Which stride of an operand is one: along k, along the other dimension ("outer": rows of A, columns of B), or neither.
# What is "in place" lies along k and is not copied.
Unit = Literal["k", "outer", "none", "in place"]
# D, the addend: absent, with unit stride along the columns, one value for each row, or anything (a transposed matrix).
Addend = Literal["none", "row", "column", "any"]


@dataclass(frozen=True)
class Tile:
    """Shapes of the CPU form: registers hold `rows` x `vectors` accumulators; a private panel is `depth` deep; a
    work-item's block has at most `max_rows` x `max_columns` elements.
    """

    rows: int
    vectors: int
    depth: int
    max_rows: int
    max_columns: int


def plain_loops(body: str) -> str:
    """The body with its loops marked to be left as they are: they are in vectors already, and what the compiler makes
    of their ends takes it longer than all the rest.
    """
    return re.sub(r"(?<!PLAIN )for \(", "PLAIN for (", body)


def operands(math: Arithmetic, result: str, addend: Addend, *sizes: str) -> tuple[Parameter, ...]:
    """C, A, B, [D,] M, N, K of all parts but the last, K of the last, `sizes`, each one's strides (row, column, batch),
    alpha [, beta]"""
    d = addend != "none"
    strides = ", ".join(f"{name}_{s}" for name in ("abcd" if d else "abc") for s in ("rs", "cs", "bs"))
    pointers = f"{result}* C; const {math.storage}* A, B{', D' if d else ''}"
    numbers = f"i32 {', '.join(('M', 'N', 'each_K', 'last_K', *sizes))}; i64 {strides}"
    return parameters(f"{pointers}; {numbers}; {math.value} alpha{', beta' if d else ''}")


def begin_product(addend: Addend, dimension: int) -> str:
    """What every product begins with: K, and the pointers moved to the batch (or to the part of the sums)."""
    return f"""
const long batch = GROUP_ID({dimension});
const int K = batch + 1 == NUM_GROUPS({dimension}) ? last_K : each_K;
A += batch * a_bs;
B += batch * b_bs;
C += batch * c_bs;
{"D += batch * d_bs;" if addend != "none" else ""}"""


def begin_batches(addend: Addend, dimension: int) -> str:
    """What a product begins with of which a work-item has `share` of the `batches`: the loop over them, with K and the
    pointers of each (or of parts of the sums)."""
    names = "ABC" if addend == "none" else "ABCD"
    begin = " ".join(f"{name} += first * {name.lower()}_bs;" for name in names)
    move = "".join(f", {name} += {name.lower()}_bs" for name in names)
    return f"""
const long first = GROUP_ID({dimension}) * (long)share, after = min(first + share, (long)batches);
{begin}
for (long batch = first; batch < after; ++batch{move}) {{
const int K = batch + 1 == batches ? last_K : each_K;"""


def begin_block(addend: Addend) -> str:
    """What a product of blocks begins with: the pointers moved to the block's origin, and its `rows` and `columns`."""
    return f"""{begin_product(addend, 2)}
const int m0 = GROUP_ID(1) * block_rows, n0 = GROUP_ID(0) * block_columns;
const int rows = min(block_rows, M - m0), columns = min(block_columns, N - n0);
A += m0 * a_rs;
B += n0 * b_cs;
C += m0 * c_rs + n0 * c_cs;
{"D += m0 * d_rs + n0 * d_cs;" if addend != "none" else ""}"""


def finish_scalar(math: Arithmetic, addend: Addend, value: str, d_index: str, c_index: str) -> str:
    """Stores alpha * value + beta * D at one place; with beta zero D is not read, so what it holds cannot matter."""
    add = ""
    if math.is_complex:
        value = (
            f"MAKE_{math.scalar}2({value}.x * alpha.x - {value}.y * alpha.y, {value}.x * alpha.y + {value}.y * alpha.x)"
        )
        if addend != "none":
            add = f"""if (beta.x != 0 || beta.y != 0) {{
              const {math.scalar}2 e = load_{math.storage}(d, {d_index});
              r += MAKE_{math.scalar}2(e.x * beta.x - e.y * beta.y, e.x * beta.y + e.y * beta.x); }}"""
        return f"{{ {math.scalar}2 r = {value}; {add} {math.store('c', c_index, 'r')}; }}"
    if addend != "none":
        add = f"if (beta != 0) r += beta * {math.load('d', d_index)};"
    return f"{{ {math.scalar} r = alpha * {value}; {add} {math.store('c', c_index, 'r')}; }}"


def finish_block(math: Arithmetic, tile: Tile, addend: Addend) -> str:
    """Stores the tile's sums: whole vectors inside C, single elements at its right edge."""
    panel = math.width * tile.vectors
    d = f"{math.const_pointer} d = D + (m + i) * d_rs + n * d_cs;" if addend != "none" else ""
    if math.is_complex:
        edge = finish_scalar(math, addend, "value", "j * d_cs", "j * c_cs")
        return f"""
for (int i = 0; i < min(tile_rows, rows - m); ++i) {{
  {math.pointer} c = C + (m + i) * c_rs + n * c_cs;
  {d}
  const {math.scalar}* from = (const {math.scalar}*)(sums + i * {2 * tile.vectors});
  for (int j = 0; j < min({panel}, columns - n); ++j) {{
    const {math.scalar}2 value = MAKE_{math.scalar}2(from[j], from[j + {panel}]);
    {edge}
  }}
}}"""
    text = ""
    if addend != "any":
        pieces = {width: finish_vector(math, addend, width) for width in (16, 8, 4) if width <= math.width}
        whole = " ".join(f"{{ const int j = {v * math.width}; {pieces[math.width]} }}" for v in range(tile.vectors))
        rest = f"for (; j + {math.width} <= left; j += {math.width}) {pieces.pop(math.width)}"
        rest += " ".join(f"if (j + {width} <= left) {{ {piece} j += {width}; }}" for width, piece in pieces.items())
        text = f"""if (c_cs == 1) {{
    if (left == {panel}) {{ {whole} continue; }}
    {rest}
  }}"""
    edge = finish_scalar(math, addend, "from[j]", "j * d_cs", "j * c_cs")
    return f"""
const int left = min(vectors * {math.width}, columns - n);
for (int i = 0; i < min(tile_rows, rows - m); ++i) {{
  {math.pointer} c = C + (m + i) * c_rs + n * c_cs;
  {d}
  const {math.scalar}* const from = (const {math.scalar}*)(sums + i * vectors);
  int j = 0;
  {text}
  for (; j < left; ++j) {edge}
}}"""


def finish_registers(math: Arithmetic, addend: Addend, rows: int, vectors: int) -> str:
    """Stores a tile of sums that lies inside C as a whole from the registers `c{row}_{vector}`, if they are whole sums,
    and goes on to the next tile.
    """
    if addend == "any":
        return ""
    stores = []
    for i in range(rows):
        stores += [finish_vector(math, addend, math.width, f"c{i}_{v}", f"{v * math.width}") for v in range(vectors)]
        stores.append(f"c += c_rs; {'d += d_rs;' if addend != 'none' else ''}")
    d = f"{math.const_pointer} d = D + m * d_rs + n * d_cs;" if addend != "none" else ""
    return f"""
  if (kb == 0 && last && c_cs == 1 && n + {vectors * math.width} <= columns && m + {rows} <= rows) {{
    {math.pointer} c = C + m * c_rs + n;
    {d}
    {" ".join(stores)}
    continue;
  }}"""


def finish_vector(math: Arithmetic, addend: Addend, width: int, value: str = "", index: str = "j") -> str:
    """Stores a vector of `width` sums at the index: `value`, or those at `from`."""
    math = replace(math, width=width)
    add = ""
    if addend != "none":
        addition = math.load_vector("d", index) if addend == "row" else math.load("d", "0")
        add = f"if (beta != 0) r += beta * {addition};"
    value = value or f"*(const {math.vector}u*)(from + {index})"
    return f"{{ {math.vector} r = alpha * {value}; {add} {math.store_vector('c', index, 'r')}; }}"
