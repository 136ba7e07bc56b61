"""Matrix multiplication: `C[b] = alpha * A[b] @ B[b] + beta * D[b]`.

Five families of kernels, each for every dtype and every layout:

* `block_kernel`, the CPU form: a work-item owns a block of C, copies the part of B that it needs into panels of a few
  vectors' width and the rows of A into tiles, in its private memory, and multiplies tile by panel with all
  accumulators in registers. There is no barrier, and nothing but the copies depends on dtype or layout.
* `small_kernel`, the CPU form for few columns and short sums, which reads A in place.
* `tiny_kernel`, the CPU form for many matrices of a few elements each.
* `dot_kernel` and `axpy_kernel`, the CPU form for one to four rows, which read B once and straight: such products are
  bound by memory.
* `tile_kernel`, the GPU form: a work-group shares tiles of A and B in local memory.

Sizes and strides are run-time arguments, in elements; so a new shape needs no new kernel, but for tiny products. What
is fixed in the text is the dtype, which stride of an operand is one, and whether there is a D. The `*_launch` functions
give the groups and the arguments, in the order of the kernel's parameters.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from math import prod

from torchgraft.codegen import ceil_div
from torchgraft.codegen.arithmetic import Arithmetic, arithmetic
from torchgraft.codegen.kernel import Kernel, Launch, parameters
from torchgraft.codegen.tuning import Blocks, Target, Tiles
from torchgraft.codegen.types import BY_NAME
from torchgraft.codegen.vectors import lane_sum, lane_sums, shuffle_helpers, transpose_registers
from torchgraft.codegen.x86 import Way
from torchgraft.kernels import bfloat16, fragments, tiny_products
from torchgraft.kernels.products import (
    Addend,
    Tile,
    Unit,
    begin_batches,
    begin_block,
    begin_product,
    finish_block,
    finish_registers,
    finish_scalar,
    finish_vector,
    operands,
    plain_loops,
)
from torchgraft.kernels.tiny_products import is_tiny, tiny_kernel, tiny_strides


def _round_up(value: int, step: int) -> int:
    return ceil_div(value, step) * step


def block_tile(math: Arithmetic, blocks: Blocks, narrow: bool = False) -> Tile:
    """The tile for a dtype. `narrow` is for products of at most one vector's width."""
    rows, vectors, size = blocks.rows, blocks.vectors, math.size
    if math.is_complex:
        rows, size = max(1, rows // 2), 2 * size
    most = blocks.row_tiles * rows
    if narrow:
        rows, vectors = rows * vectors, 1
    columns = _round_up(max(1, blocks.column_bytes // size), math.width * vectors)
    return Tile(rows, vectors, blocks.depth, _round_up(most, rows), columns)


# A block's sums are on the stack of the thread that has it.
_SUMS_BYTES = 2 << 20


def product_tile(math: Arithmetic, blocks: Blocks, narrow: bool = False) -> Tile:
    """The tile of products: with one vector of columns more than other kernels have, where there are registers for it,
    since each element of A is then loaded for as many sums more; and blocks of more rows, which share the panels that
    are copied for them, and wider ones where the device has the cache for them.
    """
    tile = block_tile(math, blocks, narrow)
    if math.is_complex:
        return tile
    registers = 32 if math.width * math.size == 64 else 16
    more = tile.vectors + 1
    if narrow:
        return replace(tile, max_rows=blocks.taller * tile.max_rows)
    vectors = more if tile.rows * more + more + 1 <= registers else tile.vectors
    columns = _round_up(blocks.wider * tile.max_columns, math.width * vectors)
    most = _SUMS_BYTES // (columns * math.size) // tile.rows * tile.rows
    return replace(
        tile, vectors=vectors, max_rows=min(blocks.taller * blocks.wider * tile.max_rows, most), max_columns=columns
    )


def _shallow(blocks: Blocks, k: int) -> Blocks:
    """For sums of few products: as much wider blocks as they may be less deep. Rows of C are then written in longer
    stretches, which is most of what there is to do."""
    while 2 * k <= blocks.depth and blocks.depth > 64:
        blocks = replace(blocks, depth=blocks.depth // 2, column_bytes=2 * blocks.column_bytes)
    return blocks


# --- The CPU form's pieces. Names they share: the block's A, B, C, `rows` and `columns` left from the block's origin,
# the slice of k that begins at `kb` and has `kc` steps, the tile's first row `m`, the panel's first column `n`.


def pack_transposed(
    math: Arithmetic, tile: Tile, base: str, stride: str, begin: str, end: str, pitch: int = 0, places: str = ""
) -> str:
    """Fills steps `begin .. end` of the panels from a B that lies along k: step k of column n is at base[n * stride +
    k]. With `places`, the name of a table, step k goes to the panels' row places[k].
    """
    row = f"{places}[{{}}]" if places else "({})"
    width, panel = math.width, math.width * tile.vectors
    pitch = (pitch or tile.depth * tile.vectors) * width
    offsets = " ".join(f"const long o{i} = min({i}, columns - n - 1) * {stride};" for i in range(width))
    loads = "\n".join(f"{math.vector} r{i} = {math.load_vector('b', f'o{i} + at')};" for i in range(width))
    stores = [f"*({math.vector}*)(to + {row.format(f'at + {i}')} * {panel}) = r{i};" for i in range(width)]
    wanted = [f"if (at + {i} >= {begin} && at + {i} < {end}) {store}" for i, store in enumerate(stores)]
    return f"""
for (int n = 0; n < columns; n += {width}) {{
  {math.scalar}* to = ({math.scalar}*)panels + (n / {panel}) * {pitch} + n % {panel};
  {math.const_pointer} b = {base} + n * {stride};
  {offsets}
  int step = {begin};
  // Fewer steps than a vector has are loaded with what lies before or after them, where B has as much.
  const int steps = {end} - ({begin}), few = steps < {width};
  const int before = n * (long){stride} + steps >= {width};
  const int after = o{width - 1} + {width} <= (columns - 1 - n) * (long){stride} + steps;
  while (step < {end} && (!few || before || after)) {{
    // The last vectors end where the steps do, and repeat some.
    const int at = few && !before ? {begin} : min(step, {end} - {width});
    {loads}
    {transpose_registers(width, math.vector)}
    if (!few) {{
      {" ".join(stores)}
    }} else {{
      {" ".join(wanted)}
    }}
    step = at + {width};
  }}
  for (; step < {end}; ++step)
    for (int j = 0; j < {width}; ++j)
      to[{row.format("step")} * {panel} + j] = n + j < columns ? {math.load("b", f"j * {stride} + step")} : 0;
}}"""


def panel_pitch(tile: Tile) -> int:
    """Vectors from the beginning of a panel of one vector's width to the next one's: a little more than it has, so that
    what is copied into all of them at once does not all fall into the same set of the cache."""
    return tile.depth + 1


def pack_b(math: Arithmetic, tile: Tile, unit: Unit, begin: str = "0") -> str:
    """Copies a slice of B into panels: `panels[n / NR][k][NR]`, NR the panel's width, which is one vector's but for
    complex numbers. Columns past the edge hold what comes after the matrix or zeros, since with what memory held before
    sums may be slow; those before `begin` are left out if B's rows lie together (`unit` is "outer").
    """
    width, panel = math.width, math.width * tile.vectors
    if math.is_complex:
        # A panel's row: the real parts, then the imaginary ones.
        return f"""
for (int n = 0; n < columns; ++n) {{
  {math.scalar}* to = ({math.scalar}*)panels + (n / {panel}) * {2 * tile.depth * panel} + n % {panel};
  {math.const_pointer} b = B + n * b_cs + kb * b_rs;
  for (int k = 0; k < kc; ++k, b += b_rs, to += {2 * panel}) {{
    const {math.scalar}2 value = load_{math.storage}(b, 0);
    to[0] = value.x;
    to[{panel}] = value.y;
  }}
}}"""
    if unit == "outer":
        return f"""
// Row by row, since memory gives long stretches. Lanes beside the matrix may hold what comes after its rows, up to
// where the last one ends.
const long b_end = b_rs >= 0 ? (K - 1) * b_rs + N - n0 : 0;
for (int k = 0; k < kc; ++k) {{
  int n = {begin};
  {math.vector}* to = panels + k + n / {width} * {panel_pitch(tile)};
  {math.const_pointer} b = B + (kb + k) * b_rs;
  const bool beyond = (kb + k) * b_rs + (columns + {width - 1}) / {width} * {width} <= b_end;
  const int whole = beyond ? columns : columns - {width - 1};
  for (; n < whole; n += {width}, to += {panel_pitch(tile)}) {{
    *to = {math.load_vector("b", "n")};
    PREFETCH(b + 2 * b_rs + n);
  }}
  if (n < columns) *to = {math.splat("0")};
  for (int i = 0; n + i < columns; ++i) (({math.scalar}*)to)[i] = {math.load("b", "n + i")};
}}"""
    if unit == "k":
        return pack_transposed(math, tile, "B + kb", "b_cs", "0", "kc", panel_pitch(tile))
    return f"""
for (int n = 0; n < (columns + {width - 1}) / {width} * {width}; ++n) {{
  {math.scalar}* to = ({math.scalar}*)panels + (n / {panel}) * {panel_pitch(tile) * width} + n % {panel};
  {math.const_pointer} b = B + n * b_cs + kb * b_rs;
  for (int k = 0; k < kc; ++k, b += b_rs, to += {panel}) to[0] = n < columns ? {math.load("b", "0")} : 0;
}}"""


# Rows of a tile of A are this much further apart than they are long, so that they do not all fall into the same set of
# the cache.
A_TILE_PADDING = 16


def a_tile_elements(math: Arithmetic, tile: Tile) -> int:
    return tile.rows * (tile.depth + A_TILE_PADDING) * (2 if math.is_complex else 1)


def pack_a(math: Arithmetic, tile: Tile, unit: Unit, count: str | None = None) -> str:
    """Copies the tile's rows of a slice of A: `a_tile[row][k]`, or `a_tile[k][row]` where that is how A lies (see
    `a_element`); or says where they lie.
    """
    pitch = tile.depth + A_TILE_PADDING
    count = count or str(tile.rows)
    if math.is_complex:
        return f"""
for (int i = 0; i < {tile.rows}; ++i) {{
  {math.const_pointer} a = A + min(m + i, rows - 1) * a_rs + kb * a_cs;
  {math.scalar}* to = a_tile + i * {2 * pitch};
  for (int k = 0; k < kc; ++k, a += a_cs) {{
    const {math.scalar}2 value = load_{math.storage}(a, 0);
    to[k] = value.x;
    to[{pitch} + k] = value.y;
  }}
}}"""
    if unit == "outer":
        pieces, done = [], 0
        while done < tile.rows:
            piece = 1 << (min(16, tile.rows - done).bit_length() - 1)
            if piece >= 4:
                load = math.load_vector("a", str(done), piece)
                pieces.append(f"*({math.scalar}{piece}u*)(to + {done}) = {load};")
            else:
                pieces += [f"to[{done + i}] = {math.load('a', str(done + i))};" for i in range(piece)]
            done += piece
        return f"""
{{
  {math.const_pointer} a = A + m + kb * a_cs;
  {math.scalar}* to = a_tile;
  const long end = a_cs >= 0 ? (K - 1) * a_cs + M - m0 - m - {tile.rows} : -1;
  for (int k = 0; k < kc; ++k, a += a_cs, to += {tile.rows}) {{
    // Rows beyond the last may hold what comes after a step, up to where the last one ends.
    if (m + {tile.rows} <= rows || (kb + k) * a_cs <= end) {{ {" ".join(pieces)} }}
    else {{
      for (int i = 0; i < {tile.rows}; ++i) to[i] = m + i < rows ? {math.load("a", "i")} : 0;
    }}
  }}
}}"""
    if unit == "in place":
        return " ".join(
            f"{math.const_pointer} a{i} = A + min(m + {i}, rows - 1) * a_rs + kb;" for i in range(tile.rows)
        )
    vector_part = ""
    if unit == "k":
        copy = f"*({math.vector}*)(to + k) = {math.load_vector('a', 'k')};"
        last = f"*({math.vector}u*)(to + kc - {math.width}) = {math.load_vector('a', f'kc - {math.width}')};"
        vector_part = f"""for (; k + {math.width} <= kc; k += {math.width}) {copy}
  if (k < kc && kc >= {math.width}) {{ {last} continue; }}"""
    step = "k" if unit == "k" else "k * a_cs"
    return f"""
for (int i = 0; i < {count}; ++i) {{
  {math.const_pointer} a = A + min(m + i, rows - 1) * a_rs + kb * a_cs;
  {math.scalar}* to = a_tile + i * {pitch};
  int k = 0;
  {vector_part}
  for (; k < kc; ++k) to[k] = {math.load("a", step)};
}}"""


def a_element(math: Arithmetic, tile: Tile, unit: Unit, row: int, part: int = 0) -> str:
    """The element of row `row` at `k` in the tile that `pack_a` filled; `part` 1 is the imaginary part."""
    pitch = tile.depth + A_TILE_PADDING
    if math.is_complex:
        return f"a_tile[{(2 * row + part) * pitch} + k]"
    if unit == "in place":
        return math.load(f"a{row}", "k")
    return f"a_tile[k * {tile.rows} + {row}]" if unit == "outer" else f"a_tile[{row * pitch} + k]"


def row_vectors(math: Arithmetic, tile: Tile) -> int:
    """Vectors in a row of B in memory where the slice of B is kept in rows: one more than needed, so that a vector that
    overhangs the end of one row leaves the next alone.
    """
    return tile.max_columns // math.width + 1


# Rows of B that are fetched ahead where it is read in place: they lie too far apart for a CPU to foresee them.
_ROWS_AHEAD = 8


def multiply_tile(
    math: Arithmetic,
    tile: Tile,
    unit: Unit,
    in_rows: bool = False,
    row_count: int = 0,
    vector_count: int = 0,
    finish: str = "",
    in_place: bool = False,
) -> str:
    """Adds the product of the tile of A and the panel at `n` to the accumulators `sums`, which start anew when `kb` is
    zero.

    With `in_rows` the slice of B is not in panels but in rows of `row_vectors` vectors. `row_count` and `vector_count`
    are for less than the whole tile, from panels of one vector's width. `finish` is done before anything is put aside.
    With `in_place` B is read where it lies, which it must do in rows.
    """
    parts = 2 if math.is_complex else 1
    pitch = vector_count or tile.vectors * parts
    rows_at_once, vectors = row_count or tile.rows, pitch
    if in_rows:
        vector_step, k_step, columns = 1, row_vectors(math, tile), 1
    elif vector_count:
        vector_step, k_step, columns = panel_pitch(tile), 1, panel_pitch(tile)
    else:
        vector_step, k_step, columns = tile.depth * parts, pitch, 1
    names = [[f"c{i}_{v}" for v in range(vectors)] for i in range(rows_at_once)]
    places = [(i * pitch + v, name) for i, row in enumerate(names) for v, name in enumerate(row)]
    everything = [name for row in names for name in row]
    start, k_stride = f"const {math.vector}* b = panels + n / {math.width} * {vector_step}", f"{k_step}"
    loads = " ".join(f"const {math.vector} b{v} = b[{v * columns}];" for v in range(vectors))
    if in_place:
        start, k_stride = f"{math.const_pointer} b = B + kb * b_rs + n", "b_rs"
        loads = " ".join(
            f"const {math.vector} b{v} = {math.load_vector('b', str(v * math.width))}; "
            f"PREFETCH(b + {_ROWS_AHEAD} * b_rs + {v * math.width});"
            for v in range(vectors)
        )
    rows = []
    for i, row in enumerate(names):
        updates = []
        if math.is_complex:
            # b0.. are the real parts, the second half the imaginary ones; accumulators likewise.
            n = tile.vectors
            for v in range(n):
                updates += [f"{row[v]} = fma(re, b{v}, {row[v]});", f"{row[n + v]} = fma(re, b{n + v}, {row[n + v]});"]
            for v in range(n):
                updates += [f"{row[v]} = fma(-im, b{n + v}, {row[v]});", f"{row[n + v]} = fma(im, b{v}, {row[n + v]});"]
            names_a = (
                f"const {math.vector} re = {math.splat(a_element(math, tile, unit, i))}, "
                f"im = {math.splat(a_element(math, tile, unit, i, 1))};"
            )
        else:
            names_a = f"const {math.vector} a = {math.splat(a_element(math, tile, unit, i))};"
            updates = [f"{name} = {math.multiply_add('a', f'b{v}', name)};" for v, name in enumerate(row)]
        rows.append(f"{{ {names_a} {' '.join(updates)} }}")
    add = " ".join(f"sums[{i}] += {name};" for i, name in places)
    if vector_count:
        # There are several of these texts in a kernel: zeros to add to are less of it than other statements.
        zeros = f"for (int i = 0; i < {len(places)}; ++i) sums[i] = {math.splat('0')};"
        put_aside = f"if (kb == 0) {{ {zeros} }} {add}"
    else:
        put_aside = f"if (kb == 0) {{ {' '.join(f'sums[{i}] = {name};' for i, name in places)} }} else {{ {add} }}"
    return f"""
{{
  {start};
  {math.vector} {", ".join(everything)};
  {" ".join(f"{name} = {math.splat('0')};" for name in everything)}
  for (int k = 0; k < kc; ++k, b += {k_stride}) {{
    {loads}
    {chr(10).join(rows)}
  }}
  {finish}
  // Slices are summed on their own: so rounding errors grow with the length of a slice and the number of slices.
  {put_aside}
}}"""


def _multiply_columns(
    math: Arithmetic, tile: Tile, unit: Unit, rows: int, finish: Callable[[int, int], str] = lambda rows, vectors: ""
) -> str:
    """`multiply_tile` for as many vectors as `vectors` says."""
    texts = [
        multiply_tile(math, tile, unit, False, rows, vectors, finish(rows, vectors))
        for vectors in range(1, tile.vectors + 1)
    ]
    tests = [f"if (vectors == {vectors}) {{ {text} }}" for vectors, text in enumerate(texts[1:], 2)]
    return " else ".join([*reversed(tests), texts[0]])


def block_loop(
    math: Arithmetic,
    tile: Tile,
    fill_panels: str,
    fill_tile: str,
    unit_a: Unit,
    finish: str,
    in_rows: bool = False,
    fewer: int = 0,
    finish_sums: Callable[[int, int], str] = lambda rows, vectors: "",
    in_place: bool = False,
) -> str:
    """The CPU form's loops about their pieces; the names above and `K` must be in scope.

    With `fewer`, panels are of one vector's width each, and what is left below and beside the whole tiles is multiplied
    by tiles of so many rows and of fewer vectors, instead of by whole ones. The pieces find the tile's shape in
    `tile_rows` and `vectors`. `finish_sums` writes the text that stores a whole tile of so many rows and vectors from
    registers.

    Without a `fill_tile`, `fill_panels` fills the tiles too, all of the block's: that of row `m` begins at `a_tiles + m
    * tile_pitch`.

    With `in_place` B is read where it lies but for the columns that fill no whole tile, which are in panels.
    """
    # Tiles are a little further apart than they are large, for the same reason as A_TILE_PADDING.
    tile_pitch = tile.depth + 2
    elements = a_tile_elements(math, tile) if fill_tile else tile.max_rows * tile_pitch
    parts = 2 if math.is_complex else 1
    per_row = tile.max_columns // math.width * parts
    tile_rows, vectors = "", f"{tile.vectors}"
    multiply = multiply_tile(math, tile, unit_a, in_rows)
    if fewer:
        tile_rows = f"if (rows - m <= {tile.rows - fewer}) tile_rows = {fewer};"
        most = tile.vectors
        vectors = f"there > {most} && there < {2 * most} ? (there + 1) / 2 : min(there, {most})"
        multiply = f"""
if (tile_rows == {tile.rows}) {{ {_multiply_columns(math, tile, unit_a, tile.rows, finish_sums)} }}
else {{ {_multiply_columns(math, tile, unit_a, fewer)} }}"""
        if in_place:
            vectors = f"there >= {most} ? {most} : there"
            whole, half = (
                multiply_tile(math, tile, unit_a, False, count, most, finish_sums(count, most) if whole else "", True)
                for count, whole in ((tile.rows, True), (fewer, False))
            )
            multiply = f"""
if (n + {most * math.width} > columns) {{ {multiply} }}
else if (tile_rows == {tile.rows}) {{ {whole} }}
else {{ {half} }}"""
    room = tile.depth * row_vectors(math, tile)
    if not in_rows:
        room = (panel_pitch(tile) if fewer else tile.depth) * per_row
    return f"""
{math.vector} panels[{room}];
{math.vector} accumulators[{tile.max_rows * per_row}];
{math.scalar} a_tiles[{elements}] ALIGN(64);
const int tile_pitch = {0 if fill_tile else tile_pitch};
for (int kb = 0; kb < max(1, K); kb += {tile.depth}) {{
  const int kc = min({tile.depth}, K - kb);
  const bool last = kb + {tile.depth} >= K;
  {fill_panels}
  int tile_rows = {tile.rows};
  for (int m = 0; m < rows; m += tile_rows) {{
    {tile_rows}
    {math.scalar}* const a_tile = a_tiles + m * tile_pitch;
    {fill_tile}
    for (int n = 0, vectors; n < columns; n += vectors * {math.width}) {{
      const int there = (columns - n + {math.width - 1}) / {math.width};
      vectors = {vectors};
      {math.vector}* const sums = accumulators + (m * {per_row} + n / {math.width} * tile_rows * {parts});
      {multiply}
      if (last) {{ {finish} }}
    }}
  }}
}}"""


@cache
def block_kernel(
    storage: str,
    result: str,
    unit_a: Unit,
    unit_b: Unit,
    addend: Addend,
    blocks: Blocks,
    narrow: bool = False,
    in_place: bool = False,
    simd_width: int = 16,
) -> Kernel:
    """The CPU form for products of some size. C has elements of type `result`: `storage`, or with no D any other."""
    math = arithmetic(storage, simd_width)
    tile = product_tile(math, blocks, narrow)
    target = arithmetic(result, simd_width)
    finish = finish_block(target, tile, addend)
    finish_sums = partial(finish_registers, target, addend)
    fewer = 0 if math.is_complex else max(1, tile.rows // 2)
    begin = f"columns / {tile.vectors * math.width} * {tile.vectors * math.width}" if in_place else "0"
    fill_panels = pack_b(math, replace(tile, vectors=1) if fewer else tile, unit_b, begin)
    fill_tile = pack_a(math, tile, unit_a, "tile_rows")
    loop = block_loop(math, tile, fill_panels, fill_tile, unit_a, finish, False, fewer, finish_sums, in_place)
    body = f"""{begin_block(addend)}
{loop}"""
    return Kernel(
        "matmul_block",
        operands(math, result, addend, "block_rows", "block_columns"),
        plain_loops(body),
        helpers=shuffle_helpers(math.width, math.vector) if unit_b == "k" else "",
        local=(1, 1, 1),
    )


# Storing a sum takes as long as so many products of it.
_STORING = 24
# Copying a B that lies along k takes as long as the products of so many rows.
_TRANSPOSING = 16


def block_shape(
    math: Arithmetic, tile: Tile, m: int, n: int, k: int, batch: int, units: int, least: int = 250_000
) -> tuple[int, int]:
    """Rows and columns of a work-item's block: as large as leaves a few blocks for each of `units` cores, since a block
    copies its part of B once for all its rows; and all blocks about as large."""
    panel = math.width * tile.vectors
    rows, columns = min(tile.max_rows, _round_up(m, tile.rows)), min(tile.max_columns, _round_up(n, panel))
    wanted = _wanted_blocks(m * n * max(k, _STORING) * batch, least, units, 3)
    while ceil_div(m, rows) * ceil_div(n, columns) * batch < wanted:
        if columns > panel and columns >= rows:
            columns = _round_up(columns // 2, panel)
        elif rows > 2 * tile.rows:
            rows = _round_up(rows // 2, tile.rows)
        elif columns > panel:
            columns = _round_up(columns // 2, panel)
        else:
            break
    rows, columns = even_part(m, rows, tile.rows), even_part(n, columns, panel)
    if wanted == 1:
        return rows, columns
    return rows, _balanced(columns, panel, tile.max_columns, n, ceil_div(m, rows) * batch, units)


def _balanced(columns: int, panel: int, most: int, n: int, bands: int, units: int) -> int:
    """The multiple of `panel` near `columns` with which the core that has the most to do has the least: the largest of
    those, unless it gains nothing."""
    copied = 16  # columns that take as long as copying A for a block

    def load(columns: int) -> int:
        return ceil_div(bands * ceil_div(n, columns), units) * (columns + copied)

    near = range(_round_up(columns // 2, panel), min(most, 2 * columns) + 1, panel)
    best = min(reversed(near), key=load)
    return best if load(best) < load(columns) else columns


# For at most so many rows of A, the fewest vectors of a sum for which it pays: of any columns, and of few. To add lanes
# up costs each element of C the same; to prepare B costs it less with more rows.
_DOT_VECTORS = {2: (1, 1), 4: (2, 2), 8: (8, 4), 16: (12, 4), 32: (1 << 30, 8)}


# Lanes of the shortest vectors.
_LEAST_LANES = 4


def _pays_dot(math: Arithmetic, m: int, n: int, k: int) -> bool:
    """Whether sums across vectors cost less than preparing a B that lies along k."""
    converted = BY_NAME[math.storage].size < math.size
    if math.is_complex or m > (8 if converted else 32):
        return False
    if m == 1:
        return k >= _LEAST_LANES
    least = next(least for rows, least in _DOT_VECTORS.items() if m <= rows)
    return k // math.width >= least[n <= 2 * math.width]


def _dot_width(storage: str, simd_width: int, k: int) -> int:
    """That of registers whose vectors are no longer than the sums, if there are such."""
    while simd_width > _LEAST_LANES and arithmetic(storage, simd_width).width > max(k, _LEAST_LANES):
        simd_width //= 2
    return simd_width


# Rows of A for which copying B would cost more than it saves: any B; and one whose vectors are lines of the cache.
_IN_PLACE_ROWS, _IN_PLACE_ROWS_OF_LINES = 64, 640


def _pays_in_place(math: Arithmetic, m: int, b: Matrix) -> bool:
    """Whether a B whose rows lie together is better read where it lies by each tile than copied once for a block."""
    size = BY_NAME[math.storage].size
    lines = size == math.size and math.width * size == 64 and b.row * size % 64 == 0
    return m <= (_IN_PLACE_ROWS_OF_LINES if lines else _IN_PLACE_ROWS)


def _wanted_blocks(products: int, least: int, units: int, each: int) -> int:
    """How many blocks to make of so many products: some for each core, `each` at most. A block worth less than some
    microseconds, of `least` products, is not worth a core's waking up."""
    if units == 1:
        return 1
    wanted = min(each * units, 1 + products // least)
    # That no core has one more than the others.
    return _round_up(wanted, units) if wanted > units else wanted


# Cycles for which it pays to begin a work-item, and those of a sum across the lanes of a vector.
_LEAST_CYCLES, _LANES_SUMMED = 25_000, 16


def _share(batch: int, cycles: int, units: int) -> int:
    """How many matrices of a batch a work-item has, each of which takes it about so many cycles."""
    return max(1, min(ceil_div(_LEAST_CYCLES, max(1, cycles)), ceil_div(batch, units)))


def even_part(size: int, part: int, step: int = 1) -> int:
    """The multiple of `step` that leaves as many parts as `part` does, the last as large as can be."""
    return _round_up(ceil_div(size, ceil_div(size, part)), step)


# --- Few rows: every element of B is used once or a few times, so it is read in place.


# --- Few columns and short sums: what is to be prepared would cost more than the product.

# The longest sums whose B is copied, into a panel that stays in the first-level cache; and where half a vector has all
# of the columns; and those whose B can be read where it lies.
_SMALL_DEPTH, _NARROW_DEPTH, _SMALL_DEPTH_IN_PLACE = 256, 1024, 1024
# Length of sums up to which a tile of A stays near once it is converted.
_HELD_DEPTH = 256
# Rows at once for one, two, ... vectors of columns, where there are 16 registers and where there are 32 of 16 lanes.
_SMALL_ROWS = ((10, 8, 6, 5, 4, 3, 2, 1), (6, 5, 4, 3, 2, 1), (4, 3, 2, 1), (2, 1))
_SMALL_ROWS_WIDE = (_SMALL_ROWS[0], (10, 9, 8, 6, 5, 4, 3, 2, 1), (8, 6, 5, 4, 3, 2, 1), (6, 5, 4, 3, 2, 1))
# Tiles of rows for which copying B would cost more than it saves.
_SMALL_IN_PLACE = 2
# Sums so short that whatever the columns, to copy B costs more. Where it lies otherwise, and has to be copied, they pay
# for so many rows, and those with more than four vectors of columns where they are shorter still.
_SHORT_SUMS, _SHORTEST_SUMS, _MANY_ROWS = 24, 5, 128
# A larger result of short sums is better written in longer rows than panels have.
_BYTES_OF_SHORT_SUMS = 4 << 20
# So few rows need no panel where columns are few; longer sums than these are shared out.
_FEW_ROWS, _LONGEST_SUMS = 16, 8192
# So few rows need none either while B stays in the second-level cache, and is not cut into too many panels.
_ROWS_IN_PLACE, _PANELS_IN_PLACE, _BYTES_IN_PLACE = 6, 10, 1 << 19
# The most rows of products with more than two vectors of columns: for more it is blocks that copy B.
_SMALL_ROWS_OF_MANY_COLUMNS = 64


def _is_small(math: Arithmetic, batch: int, m: int, n: int, k: int, unit_b: Unit, paired: bool) -> bool:
    if math.is_complex:
        return False
    short = _SHORT_SUMS if n <= 4 * math.width else _SHORTEST_SUMS
    if unit_b != "outer" and m >= _MANY_ROWS and k <= short and not paired:
        return True
    if unit_b == "outer":
        if k <= _SHORT_SUMS and m > 4 and m * n * math.size <= _BYTES_OF_SHORT_SUMS and not paired:
            return True
        if m <= _FEW_ROWS and n <= 2 * math.width:
            return k <= _LONGEST_SUMS
        if 1 < m <= _ROWS_IN_PLACE and n <= _PANELS_IN_PLACE * _most_vectors(math.width) * math.width and not paired:
            return n * k * math.size <= _BYTES_IN_PLACE
        if batch > 1 and m <= _SMALL_ROWS_OF_MANY_COLUMNS and n <= 4 * math.width:
            return k <= _SMALL_DEPTH
    return k <= (_SMALL_DEPTH_IN_PLACE if unit_b == "outer" else _small_depth(math, n)) and n <= 2 * math.width


def _small_depth(math: Arithmetic, n: int) -> int:
    return _NARROW_DEPTH if 2 * n <= math.width else _SMALL_DEPTH


def _most_vectors(simd_width: int) -> int:
    """Vectors of columns at once where there are several panels of them: what the registers have room for."""
    return 4 if simd_width >= 16 else 2


def _small_rows(m: int, vectors: int, simd_width: int) -> int:
    """Those that compute the least again; each step costs something besides."""
    table = _SMALL_ROWS_WIDE if simd_width >= 16 else _SMALL_ROWS
    fitting = (rows for rows in table[vectors - 1] if rows <= m)
    return min(fitting, key=lambda rows: ceil_div(m, rows) * (2 * rows + 3))


def _small_steps(
    math: Arithmetic, rows: int, vectors: int, held: bool, condition: str, load: Callable[[int], str], fill: str = ""
) -> str:
    """The part of a tile's sums that `condition` ends, with vectors of a row of B from `load`."""
    pairs = [(r, v) for r in range(rows) for v in range(vectors)]
    # Rows are found from every fourth one: an address of each would be more than there are registers.
    places = [(f"p{r // 4 * 4}", f"{r % 4} * {'K' if held else 'a_rs'}") for r in range(rows)]
    values = [math.splat(f"{p}[{at}]" if held else math.load(p, at)) for p, at in places]
    step = "1" if held else "a_cs"
    return f"""
    for (; {condition}; ++k, {", ".join(f"p{r} += {step}" for r in range(0, rows, 4))}) {{
      {fill}
      {" ".join(f"const {math.vector} b{v} = {load(v)};" for v in range(vectors))}
      {" ".join(f"const {math.vector} x{r} = {value};" for r, value in enumerate(values))}
      {" ".join(f"s{r}_{v} = {math.multiply_add(f'x{r}', f'b{v}', f's{r}_{v}')};" for r, v in pairs)}
    }}"""


def _small_held(math: Arithmetic, rows: int) -> str:
    """Converts a tile's rows of A, in vectors: one number after the other, each takes longer than its products."""
    return f"""
    if (a_rs == K) {{
      VECTORIZE
      for (int e = 0; e < {rows} * K; ++e) own[e] = {math.load("a", "e")};
    }} else {{
      for (int r = 0; r < {rows}; ++r) {{
        VECTORIZE
        for (int e = 0; e < K; ++e) own[r * K + e] = {math.load("a", "r * a_rs + e")};
      }}
    }}"""


def _small_in_place(math: Arithmetic, rows: int, vectors: int, held: bool) -> tuple[str, str]:
    """What is prepared for a matrix, and a tile's sums: B is read where it lies, but for its last rows, of which the
    vectors would go beyond its end."""
    width, panel = math.width, math.width * vectors
    inside = f"last < {panel} || K == 0 ? 0 : b_rs == 0 ? K : (int)min((long)K, (last - {panel}) / b_rs + 1)"
    fill = f"for (int n = 0; n < {panel}; ++n) lanes[n] = n < columns ? {math.load('b', 'k * b_rs + n')} : 0;"
    sums = _small_steps(
        math, rows, vectors, held, "k < inside", lambda v: math.load_vector("b", f"k * b_rs + {v * width}")
    )
    lanes = partial("*(const {0}*)(lanes + {1})".format, math.vector)
    sums += _small_steps(math, rows, vectors, held, "k < K", lambda v: lanes(v * width), fill)
    return f"const int inside = {inside}; {math.scalar} lanes[{panel}] ALIGN(64);", sums


def _small_copied(math: Arithmetic, rows: int, vectors: int, depth: int, unit: Unit, held: bool) -> tuple[str, str]:
    """The same with panels, one at a time, that have a copy of B."""
    width = math.width
    copy = f"""
    for (int k = 0; k < K; ++k, b += b_rs)
      for (int n = 0; n < columns; n += {width}) {{
        if (b_cs == 1 && b_rs >= 0 && k * b_rs + n + {width} <= last) {{
          panels[k * {vectors} + n / {width}] = {math.load_vector("b", "n")};
        }} else {{
          {math.scalar}* to = ({math.scalar}*)(panels + k * {vectors}) + n;
          for (int l = 0; l < {width}; ++l) to[l] = n + l < columns ? {math.load("b", "(n + l) * b_cs")} : 0;
        }}
      }}"""
    if unit == "k":
        base = "B + batch * b_bs + before * (long)b_cs"
        copy = pack_transposed(math, Tile(rows, vectors, depth, rows, width * vectors), base, "b_cs", "0", "K")
    prepare = f"""
  const long wanted = batch * ((N + {width * vectors - 1}) / {width * vectors}) + before / {width * vectors};
  if (wanted != copied) {{
    copied = wanted;
    {copy}
  }}"""
    return prepare, _small_steps(math, rows, vectors, held, "k < K", lambda v: f"panels[k * {vectors} + {v}]")


def _small_finish_whole(math: Arithmetic, target: Arithmetic, rows: int, vectors: int, addend: Addend) -> str:
    """Stores whole vectors, and goes on to the next tile. Where rows of the result touch, what is stored beyond one is
    what the next one's store comes over."""
    if addend not in ("none", "row"):
        return ""
    panel, stores = math.width * vectors, []
    for r in range(rows):
        at = range(0, panel, math.width)
        add = [f" + *(const {math.vector}*)(bias + {n})" if addend == "row" else "" for n in at]
        values = [f"(alpha * s{r}_{v}{add[v]})" for v in range(vectors)]
        row = "; ".join(target.store_vector("c", str(n), value) for n, value in zip(at, values, strict=True))
        stores.append(f"if (done <= {r}) {{ {row}; }}")
    return f"""
    const int exceeds = columns < {panel} && spare - (m + {rows - 1}) * (long)N - before < {panel};
    if (c_cs == 1 && !exceeds{" && biased" * (addend == "row")}) {{
      {target.pointer} c = C + batch * c_bs + m * c_rs + before * (long)c_cs;
      {" c += c_rs; ".join(stores)}
      continue;
    }}"""


def _small_finish(math: Arithmetic, target: Arithmetic, rows: int, vectors: int, addend: Addend) -> str:
    """Stores the tile's `sums`, whatever the strides."""
    width = math.width
    whole = ""
    if addend != "any":
        vector, edges = finish_vector(target, addend, width), [part for part in (16, 8, 4) if part <= width]
        whole = "".join(f"if (columns >= {(v + 1) * width}) {{ {vector} j += {width}; }}" for v in range(vectors - 1))
        for part in edges:
            whole += f"if (j + {part} <= columns) {{ {finish_vector(target, addend, part)} j += {part}; }}"
    return f"""
    for (int i = done; i < {rows}; ++i) {{
      {target.pointer} c = C + batch * c_bs + (m + i) * c_rs + before * (long)c_cs;
      {f"{math.const_pointer} d = D + batch * d_bs + (m + i) * d_rs + before * (long)d_cs;" if addend != "none" else ""}
      const {math.scalar}* from = (const {math.scalar}*)sums + i * {width * vectors};
      int j = 0;
      {f"if (c_cs == 1) {{ {whole} }}" if whole else ""}
      for (; j < columns; ++j) {finish_scalar(target, addend, "from[j]", "j * d_cs", "j * c_cs")}
    }}"""


@cache
def small_kernel(
    storage: str,
    result: str,
    rows: int,
    vectors: int,
    depth: int,
    unit_b: Unit,
    addend: Addend,
    simd_width: int,
    held: bool,
) -> Kernel:
    """The CPU form for few columns, or short sums, of which A is read where it lies, `rows` rows at once; M has as
    many.

    So is B if `depth` is 0, which then has unit stride along the columns; otherwise it is copied into a panel, of sums
    of at most `depth`, by vectors along k where `unit_b` says that it lies so. Either way `vectors` of columns are
    taken at once. Numbers of A that are to be converted are so a tile at a time if `held`: A has unit stride along k,
    and sums are of at most `_HELD_DEPTH`. A work-item has `share` blocks of rows, of one matrix after the other. Launch
    with `matmul_launches`.
    """
    math, target = arithmetic(storage, simd_width), arithmetic(result, simd_width)
    if depth:
        prepare, sums = _small_copied(math, rows, vectors, depth, unit_b, held)
    else:
        prepare, sums = _small_in_place(math, rows, vectors, held)
    pairs, panel = [f"s{r}_{v}" for r in range(rows) for v in range(vectors)], vectors * math.width
    pointer = f"const {math.scalar}*" if held else math.const_pointer
    bias = ""
    if addend == "row":
        bias = f"""
  for (int n = 0; n < {panel}; ++n)
    bias[n] = biased && n < columns && beta != 0 ? beta * {math.load("D", "before + n")} : 0;"""
    body = f"""
const int K = last_K;
const long blocks = (M + block_rows - 1) / block_rows, first = GROUP_ID(0) * (long)share;
const long count = min((long)share, blocks * batches - first), after = first + count;
long batch = first / blocks;
int begin = (int)(first - batch * blocks) * block_rows;
{f"{math.vector} panels[{depth * vectors}]; long copied = -1;" if depth else ""}
{f"{math.scalar} own[{rows * _HELD_DEPTH}] ALIGN(64);" if held else ""}
// Elements from this matrix's first to the last that this work-item makes.
const int touching = c_cs == 1 && c_rs == N && (batches == 1 || c_bs == (long)M * N);
long spare = touching ? ((after / blocks - batch) * M + after % blocks * block_rows) * N : 0;
{f"const int biased = d_rs == 0 && d_bs == 0; {math.scalar} bias[{panel}] ALIGN(64);" if bias else ""}
for (long unit = 0; unit < count; ++unit) {{
  const int end = min(M, begin + block_rows);
  // From the last columns on: what is stored beyond them comes before the next row's first ones.
  for (int before = (N - 1) / {panel} * {panel}; before >= 0; before -= {panel}) {{
  const int columns = min({panel}, N - before);
  {math.const_pointer} b = B + batch * b_bs + before * (long)b_cs;
  // The lanes beside the matrix may hold what comes after its rows: they are not stored.
  const long last = (K - 1) * b_rs + N - before;
  {bias}
  {prepare}
  for (int next = begin; next < end; next += {rows}) {{
    // The last tile has rows of the one before, which are not stored again.
    const int m = min(next, end - {rows}), done = next - m;
    {math.const_pointer} a = A + batch * a_bs + m * a_rs;
    {_small_held(math, rows) if held else ""}
    {" ".join(f"{pointer} p{r} = {f'own + {r} * K' if held else f'a + {r} * a_rs'};" for r in range(0, rows, 4))}
    {math.vector} {", ".join(f"{sum} = {math.splat('0')}" for sum in pairs)};
    int k = 0;
    {sums}
    {_small_finish_whole(math, target, rows, vectors, addend)}
    const {math.vector} sums[{rows * vectors}] = {{{", ".join(pairs)}}};
    {_small_finish(math, target, rows, vectors, addend)}
  }}
  }}
  begin += block_rows;
  if (begin >= M) {{
    begin = 0;
    ++batch;
    spare -= (long)M * N;
  }}
}}"""
    params = operands(math, result, addend, "block_rows", "share", "batches")
    helpers = shuffle_helpers(math.width, math.vector) if depth and unit_b == "k" else ""
    return Kernel("matmul_small", params, body, helpers, local=(1,))


@cache
def dot_kernel(storage: str, result: str, rows: int, addend: Addend, simd_width: int = 16, columns: int = 8) -> Kernel:
    """A few rows of A with unit stride along k, `rows` (1 to 4) at once, times a B of `columns` columns (or more) with
    unit stride along k: one dot product for each element, several columns at a time for the sake of the memory. What a
    sum has beyond whole vectors are the last lanes of one that ends where it does. Launch with `matmul_launches`.
    """
    math = arithmetic(storage, simd_width)
    target = arithmetic(result, simd_width)
    together = min(columns, 8 if rows == 1 or (rows == 2 and simd_width >= 16) else 4)
    pairs = [(i, j) for i in range(rows) for j in range(together)]
    names = [f"s{i}_{j}" for i, j in pairs]
    updates = "\n".join(f"s{i}_{j} = {math.multiply_add(f'u{i}', f'v{j}', f's{i}_{j}')};" for i, j in pairs)
    lane = f"{'long' if math.size == 8 else 'int'}{math.width}"

    def load(at: str, part: str) -> str:
        vectors = [(f"u{i}", f"a{i}") for i in range(rows)] + [(f"v{j}", f"b{j}") for j in range(together)]
        return "\n".join(f"const {math.vector} {v} = {part.format(math.load_vector(p, at))};" for v, p in vectors)

    added = (
        lane_sums(math.scalar, math.width, names, "sums")
        if len(names) % 4 == 0
        else " ".join(
            f"{{ {lane_sum(math.scalar, math.width, name)} sums[{at}] = {name}_sum; }}" for at, name in enumerate(names)
        )
    )
    body = f"""{begin_batches(addend, 1)}
const {lane} lanes = MAKE_{lane}({", ".join(map(str, range(math.width)))});
const {math.vector} none = {math.splat("0")};
const int begin = GROUP_ID(0) * block_columns, end = min(N, begin + block_columns);
for (int n = begin; n < end; n += {together})
for (int m = 0; m < M; m += {rows}) {{
  {" ".join(f"{math.const_pointer} a{i} = A + min(m + {i}, M - 1) * a_rs;" for i in range(rows))}
  {" ".join(f"{math.const_pointer} b{j} = B + min(n + {j}, N - 1) * b_cs;" for j in range(together))}
  {math.vector} {", ".join(f"{name} = none" for name in names)};
  {math.scalar} sums[{rows * together}] ALIGN(64);
  int k = 0;
  for (; k + {math.width} <= K; k += {math.width}) {{
    {load("k", "{}")}
    {updates}
  }}
  if (k > 0 && k < K) {{
    const {lane} seen = SPLAT_{lane}({math.width} - (K - k));
    {load(f"K - {math.width}", "SELECT(lanes >= seen, {}, none)")}
    {updates}
    k = K;
  }}
  {added}
  for (; k < K; ++k) {{
    {" ".join(f"sums[{i * together + j}] += {math.load(f'a{i}', 'k')} * {math.load(f'b{j}', 'k')};" for i, j in pairs)}
  }}
  for (int i = 0; i < min({rows}, M - m); ++i)
    for (int j = 0; j < min({together}, end - n); ++j) {{
      {target.pointer} c = C + (m + i) * c_rs + (n + j) * c_cs;
      {"" if addend == "none" else f"{math.const_pointer} d = D + (m + i) * d_rs + (n + j) * d_cs;"}
      {finish_scalar(target, addend, f"sums[i * {together} + j]", "0", "0")}
    }}
}}
}}"""
    params = operands(math, result, addend, "block_columns", "share", "batches")
    helpers = shuffle_helpers(math.width, math.vector)
    return Kernel("matmul_dot", params, body, helpers, local=(1, 1))


def axpy_columns(rows: int) -> int:
    """The most columns of one work-item of `axpy_kernel`: their sums stay in the first-level cache."""
    return 2048 // rows


@cache
def axpy_kernel(storage: str, result: str, rows: int, addend: Addend, simd_width: int = 16) -> Kernel:
    """At most `rows` (1 or 4) rows of A times a B with unit stride along the columns: a work-item adds up a long
    stretch of B's rows, several at a time, so that memory is read in few long streams. Launch with `matmul_launches`.
    """
    math = arithmetic(storage, simd_width)
    target = arithmetic(result, simd_width)
    together = 8 if rows == 1 else 4
    pitch = axpy_columns(rows)
    pairs = [(i, t) for i in range(rows) for t in range(together)]

    def add_rows(count: int) -> str:
        scalars = " ".join(
            f"const {math.scalar} a{i}_{t} = {math.load('A', f'min({i}, M - 1) * a_rs + (k + {t}) * a_cs')};"
            for i, t in pairs
            if t < count
        )
        pointers = " ".join(f"{math.const_pointer} b{t} = B + (k + {t}) * b_rs + begin;" for t in range(count))
        loads = " ".join(f"const {math.vector} v{t} = {math.load_vector(f'b{t}', 'n')};" for t in range(count))
        updates, singles = "", ""
        for i in range(rows):
            updates += f"{math.vector} s{i} = *({math.vector}*)(sums + {i * pitch} + n);"
            singles += f"{math.scalar} s{i} = sums[{i * pitch} + n];"
            for t in range(count):
                updates += f"s{i} = {math.multiply_add(math.splat(f'a{i}_{t}'), f'v{t}', f's{i}')};"
                singles += f"s{i} += a{i}_{t} * {math.load(f'b{t}', 'n')};"
            updates += f"*({math.vector}*)(sums + {i * pitch} + n) = s{i};"
            singles += f"sums[{i * pitch} + n] = s{i};"
        return f"""
    {scalars}
    {pointers}
    int n = 0;
    for (; n + {math.width} <= columns; n += {math.width}) {{ {loads} {updates} }}
    for (; n < columns; ++n) {{ {singles} }}"""

    body = f"""{begin_batches(addend, 1)}
const int begin = GROUP_ID(0) * block_columns, columns = min(block_columns, N - begin);
{math.scalar} sums[{rows * pitch}] ALIGN(64);
for (int i = 0; i < {rows}; ++i)
  for (int n = 0; n < columns; ++n) sums[i * {pitch} + n] = 0;
int k = 0;
for (; k + {together} <= K; k += {together}) {{ {add_rows(together)} }}
for (; k < K; ++k) {{ {add_rows(1)} }}
for (int i = 0; i < min({rows}, M); ++i)
  for (int n = 0; n < columns; ++n) {{
    {target.pointer} c = C + i * c_rs + (begin + n) * c_cs;
    {"" if addend == "none" else f"{math.const_pointer} d = D + i * d_rs + (begin + n) * d_cs;"}
    {finish_scalar(target, addend, f"sums[i * {pitch} + n]", "0", "0")}
  }}
}}"""
    params = operands(math, result, addend, "block_columns", "share", "batches")
    return Kernel("matmul_axpy", params, body, local=(1, 1))


# --- The GPU form.


@dataclass(frozen=True)
class Fetch:
    """How the GPU form's loops read an operand, as statements.

    Attributes:
        name: "a", of elements (m, k), or "b", of elements (k, n).
        unit: in which direction consecutive work-items read.
        load: sets `value` to the element.
        outer: what is found of m or n alone. With "outer" it stands in front of all loops.
        along: what is found of k alone.
        then: makes that of the next k, where `along` would take longer.

    Those of `outer` and `along` declare names of their own, which the other operand's have not.
    """

    name: str
    unit: Unit
    load: str
    outer: str = ""
    along: str = ""
    then: str = ""


def tile_loop(math: Arithmetic, tiles: Tiles, a: Fetch, b: Fetch, finish: str) -> str:
    """The GPU form's loops: a group computes a square, of which each of its work-items has small pieces that lie a
    group's width apart. Slices of A and B pass through local memory, and the next ones through registers meanwhile.

    `M`, `N`, `K` must be in scope and the pointers moved to the batch.

    Args:
        finish: statements that store `sums[i][j]` to (m, n).
    """
    value = f"{math.scalar}2" if math.is_complex else math.scalar
    side, group, each = tiles.side, tiles.group, tiles.item
    depth = tiles.depth_of(2 * math.size if math.is_complex else math.size)
    items, count = group * group, side * depth // (group * group)
    # Pieces of as many elements as one instruction loads.
    tall, wide = (1, 1) if math.is_complex else (min(4, each), min(2, each))
    zero, align = f"({value})0", 4 * math.size

    def index(fetch: Fetch) -> tuple[str, str]:
        return ("m", "M") if fetch.name == "a" else ("n", "N")

    def prepare(fetch: Fetch) -> str:
        if fetch.unit == "k":
            return ""
        outer, _ = index(fetch)
        text = re.sub(rf"\b{outer}\b", f"outer_{fetch.name}", fetch.outer)
        return f"const int outer_{fetch.name} = {outer}0 + item % {side}; {text}"

    def read(fetch: Fetch, begin: str) -> str:
        """The item's elements of a slice."""
        outer, limit = index(fetch)
        start = f"UNROLL for (int i = 0; i < {count}; ++i) {{ {value} value = {zero};"
        end = f"next_{fetch.name}[i] = value; }}"
        if fetch.unit == "k":
            return f"""{{ const int k = {begin} + item % {depth};
      {fetch.along}
      {start} const int {outer} = {outer}0 + item / {depth} + i * {items // depth};
        if (k < K && {outer} < {limit}) {{ {fetch.outer} {fetch.load} }} {end} }}"""
        first, each_k = (fetch.along, "") if fetch.then else ("", fetch.along)
        return f"""{{ const int {outer} = outer_{fetch.name};
      int k = {begin} + item / {side} * {count};
      {first}
      {start}
        if (k < K && {outer} < {limit}) {{ {each_k} {fetch.load} }}
        ++k; {fetch.then} {end} }}"""

    def keep(fetch: Fetch) -> str:
        if fetch.unit == "k":
            place = f"[item % {depth}][item / {depth} + i * {items // depth}]"
        else:
            place = f"[item / {side} * {count} + i][item % {side}]"
        return f"UNROLL for (int i = 0; i < {count}; ++i) tile_{fetch.name}{place} = next_{fetch.name}[i];"

    def piece(name: str, at: str, size: int) -> str:
        vector = value if size == 1 else f"{value}{size}"
        source = f"tile_{name}[k] + (p * {group} + {at}) * {size}"
        return f"""UNROLL for (int p = 0; p < {each // size}; ++p)
      *({vector}*)({name} + p * {size}) = *(LOCAL const {vector}*)({source});"""

    if math.is_complex:
        update = """
          sums[i][j].x = fma(a[i].x, b[j].x, fma(-a[i].y, b[j].y, sums[i][j].x));
          sums[i][j].y = fma(a[i].x, b[j].y, fma(a[i].y, b[j].x, sums[i][j].y));"""
    else:
        update = f"sums[i][j] = {math.multiply_add('a[i]', 'b[j]', 'sums[i][j]')};"
    return f"""
LOCAL {value} tile_a[{depth}][{tiles.pitch}] ALIGN({align});
LOCAL {value} tile_b[{depth}][{tiles.pitch}] ALIGN({align});
const int x = LOCAL_ID(0), y = LOCAL_ID(1), item = y * {group} + x;
const int m0 = GROUP_ID(1) * {side}, n0 = GROUP_ID(0) * {side};
{prepare(a)}
{prepare(b)}
{value} next_a[{count}], next_b[{count}], sums[{each}][{each}];
UNROLL for (int i = 0; i < {each}; ++i)
  UNROLL for (int j = 0; j < {each}; ++j) sums[i][j] = {zero};
{read(a, "0")}
{read(b, "0")}
for (int kb = 0; kb < K; kb += {depth}) {{
  BARRIER;
  {keep(a)}
  {keep(b)}
  BARRIER;
  {read(a, f"kb + {depth}")}
  {read(b, f"kb + {depth}")}
  UNROLL_4 for (int k = 0; k < {depth}; ++k) {{
    {value} a[{each}] ALIGN({align}), b[{each}] ALIGN({align});
    {piece("a", "y", tall)}
    {piece("b", "x", wide)}
    UNROLL for (int i = 0; i < {each}; ++i)
      UNROLL for (int j = 0; j < {each}; ++j) {{ {update} }}
  }}
}}
UNROLL for (int i = 0; i < {each}; ++i) {{
  const int m = m0 + i / {tall} * {tall * group} + y * {tall} + i % {tall};
  UNROLL for (int j = 0; j < {each}; ++j) {{
    const int n = n0 + j / {wide} * {wide * group} + x * {wide} + j % {wide};
    if (m < M && n < N) {{ {finish} }}
  }}
}}"""


def tile_groups(tiles: Tiles, rows: int, columns: int, batch: int) -> tuple[int, int, int]:
    """Work-groups of the GPU form."""
    return (ceil_div(columns, tiles.side), ceil_div(rows, tiles.side), batch)


def tile_local(tiles: Tiles) -> tuple[int, int, int]:
    """Work-items of a work-group of the GPU form."""
    return (tiles.group, tiles.group, 1)


def _strided(math: Arithmetic, name: str, unit: Unit, outer: str, outer_stride: str, k_stride: str) -> Fetch:
    """From memory with a stride for each index, which a number of 64 bits is multiplied by as rarely as can be."""
    return Fetch(
        name,
        unit,
        f"value = {math.load(name.upper(), f'outer_at_{name} + k_at_{name}')};",
        outer=f"const long outer_at_{name} = {outer} * {outer_stride};",
        along=f"long k_at_{name} = k * {k_stride};",
        then=f"k_at_{name} += {k_stride};",
    )


@cache
def tile_kernel(storage: str, result: str, unit_a: Unit, unit_b: Unit, addend: Addend, tiles: Tiles) -> Kernel:
    """The GPU form."""
    math = arithmetic(storage)
    target = arithmetic(result)
    finish = f"""
      {target.pointer} c = C + m * c_rs + n * c_cs;
      {"" if addend == "none" else f"{math.const_pointer} d = D + m * d_rs + n * d_cs;"}
      {finish_scalar(target, addend, "sums[i][j]", "0", "0")}"""
    a = _strided(math, "a", unit_a, "m", "a_rs", "a_cs")
    b = _strided(math, "b", unit_b, "n", "b_cs", "b_rs")
    body = f"""{begin_product(addend, 2)}
{tile_loop(math, tiles, a, b, finish)}"""
    return Kernel("matmul_tile", operands(math, result, addend), body, local=tile_local(tiles))


# What a compute unit does of a square's multiplications, relative to a square of the largest side; and what it does
# with a single group.
_EFFICIENCY = {1: 1.0, 2: 0.85, 4: 0.5}
_ALONE = 0.7
# Multiplications of a compute unit that take as long as another launch, and as to write and read an element once.
_LAUNCH, _ELEMENT = 400_000, 60
_LEAST_TILE_PART = 64


def choose_tiles(tiles: Tiles, m: int, n: int, k: int, batch: int, units: int, speed: int = 1) -> tuple[Tiles, int]:
    """The squares of a product on a GPU, and into how many parts its sums are divided so that all units have work.

    Of the squares that groups of the same size can have, that which should take the least time: large ones read less,
    small ones are more. `speed` is that of multiplications relative to plain ones of float32.
    """

    def time(side: int, parts: int) -> float:
        groups = ceil_div(m, side) * ceil_div(n, side) * batch * parts
        waves = ceil_div(groups, units) if groups < 2 * units else groups / units
        each = side * side * ceil_div(k, parts) / _EFFICIENCY[tiles.side // side] / (_ALONE if waves == 1 else 1)
        return waves * each + (parts > 1) * speed * (_LAUNCH + parts * batch * m * n * _ELEMENT / units)

    sizes = [size for size in tiles.sizes if speed == 1 or size.side >= fragments.LEAST_SIDE]
    most = max(1, k // _LEAST_TILE_PART) if units > 1 else 1
    parts = [1 << power for power in range(most.bit_length())]
    return min(itertools.product(sizes, parts), key=lambda chosen: time(chosen[0].side, chosen[1]))


_LEAST_ROWS_PART = 256
#: Products of so many rows at most have a kernel of their own on a GPU, which reads B once and straight.
GPU_ROWS = 8


def rows_columns(along_k: bool) -> int:
    """Columns of a work-group of `rows_kernel`."""
    return rows_local(along_k)[1 if along_k else 0]


def rows_local(along_k: bool) -> tuple[int, int, int]:
    """Its work-items: the first dimension runs along what lies together in memory."""
    return (32, 8, 1) if along_k else (64, 4, 1)


@cache
def rows_kernel(storage: str, result: str, rows: int, along_k: bool, addend: Addend) -> Kernel:
    """The GPU form for few rows. Work-items that are neighbours read neighbouring elements of B: of a column if those
    lie together (`along_k`), otherwise of a row; those of one column then add up their sums."""
    math, target = arithmetic(storage), arithmetic(result)
    width, height, _ = rows_local(along_k)
    if along_k:
        first, step, most = "x", width, width
        column = f"GROUP_ID(0) * {height} + y"
    else:
        first, step, most = "y", height, height
        column = f"GROUP_ID(0) * {width} + x"
    update = math.multiply_add(math.load("A", "min(r, M - 1) * a_rs + k * a_cs"), "b", "sums[r]")
    body = f"""{begin_product(addend, 1)}
LOCAL {math.scalar} others[{rows}][{height}][{width}];
const int x = LOCAL_ID(0), y = LOCAL_ID(1), n = {column};
{math.scalar} sums[{rows}];
UNROLL for (int r = 0; r < {rows}; ++r) sums[r] = 0;
if (n < N)
  UNROLL_4 for (int k = {first}; k < K; k += {step}) {{
    const {math.scalar} b = {math.load("B", "n * b_cs + k * b_rs")};
    UNROLL for (int r = 0; r < {rows}; ++r) sums[r] = {update};
  }}
UNROLL for (int r = 0; r < {rows}; ++r) others[r][y][x] = sums[r];
BARRIER;
for (int apart = {most // 2}; apart > 0; apart /= 2) {{
  if ({first} < apart)
    for (int r = 0; r < {rows}; ++r) others[r][y][x] += others[r][{"y][x + apart" if along_k else "y + apart][x"}];
  BARRIER;
}}
if (n < N)
  for (int m = {first}; m < min({rows}, M); m += {step}) {{
    const {math.scalar} sum = others[m][{"y][0" if along_k else "0][x"}];
    {target.pointer} c = C + m * c_rs + n * c_cs;
    {"" if addend == "none" else f"{math.const_pointer} d = D + m * d_rs + n * d_cs;"}
    {finish_scalar(target, addend, "sum", "0", "0")}
  }}"""
    return Kernel("matmul_rows", operands(math, result, addend), body, local=rows_local(along_k)[:2])


# --- Launches.


@dataclass(frozen=True)
class Matrix:
    """An operand: whatever the launcher takes for a pointer, and strides of rows, columns and batches in elements."""

    pointer: object
    row: int
    column: int
    batch: int = 0

    @property
    def transposed(self) -> Matrix:
        return Matrix(self.pointer, self.column, self.row, self.batch)

    @property
    def by_rows(self) -> Matrix:
        """A batch of its rows."""
        return Matrix(self.pointer, 0, self.column, self.row)


def _unit(k_stride: int, outer_stride: int, k: int, outer: int) -> Unit:
    # A dimension of one element has any stride.
    if outer_stride == 1 or (outer == 1 and k_stride != 1):
        return "outer"
    return "k" if k_stride == 1 or k == 1 else "none"


# Shorter parts of a sum cost more to add up than they gain. Where few rows of A are multiplied, it is what is read of B
# that takes the time.
_LEAST_PART = 1024
_LEAST_ROWS, _LEAST_ELEMENTS = 512, 65536


def _parts(groups: int, k: int, wanted: int, least: int, units: int) -> int:
    """Into how many parts of at least `least` products to divide sums of `k` when there are `groups` groups, of which
    `wanted` could run: so many that no core has one more than the others."""
    parts = max(1, min(wanted // groups, k // least))
    return max(1, parts * groups // units * units // groups)


def _stretch(n: int, most: int, units: int, parts: int) -> int:
    """Columns of a work-item that reads rows of B: as many as leave something for each core where the sums may be of
    `parts` parts, since long stretches are what memory is quick at."""
    groups = max(ceil_div(n, most), ceil_div(units, parts))
    if groups > units:
        groups = _round_up(groups, units)
    return min(most, _round_up(ceil_div(n, groups), 64))


@cache
def fold_kernel(storage: str, addend: Addend) -> Kernel:
    """Adds up the parts of products: C = alpha * (sum of `parts` matrices, one after the other in P) + beta * D."""
    math = arithmetic(storage)
    value = BY_NAME[math.value].storage
    body = f"""
const long index = GLOBAL_ID(0), count = (long)M * N;
if (index >= count) return;
{value} sum = 0;
for (int part = 0; part < parts; ++part) sum += P[part * count + index];
{math.pointer} c = C + index / N * c_rs + index % N * c_cs;
{"" if addend == "none" else f"{math.const_pointer} d = D + index / N * d_rs + index % N * d_cs;"}
{finish_scalar(math, addend, "sum", "0", "0")}"""
    more = f"; const {storage}* D; i64 d_rs, d_cs; {math.value} beta" if addend != "none" else ""
    params = parameters(
        f"{storage}* C; const {math.value}* P; i32 M, N, parts; i64 c_rs, c_cs; {math.value} alpha{more}"
    )
    return Kernel("matmul_fold", tuple(params), body, local=(64,))


def matmul_launches(
    storage: str,
    sizes: tuple[int, int, int, int],
    c: Matrix,
    a: Matrix,
    b: Matrix,
    d: Matrix | None,
    alpha: object,
    beta: object,
    temporary: Callable[[int, str], object],
    on: Target,
    result: str = "",
) -> list[Launch]:
    """The launches for C = alpha * A @ B + beta * D.

    Args:
        storage: the element type of all four.
        result: that of C, if it is another one; there is no D then.
        sizes: batches, rows (M), columns (N) and length of the sums (K); only K may be 0.
        d: strides of 0 broadcast it.
        alpha, beta: numbers or whatever the launcher takes for one.
        temporary: makes a place for a number of elements of a type.
    """
    result = result or storage
    batch, m, n, k = sizes
    units, simd_width, tiles, blocks = on.units, on.simd_width, on.tuning.tiles, on.tuning.blocks
    if (
        on.form == "cpu"
        and batch == 1
        and (max(n, k) <= tiny_products.FEW or (n == 1 and k <= tiny_products.LONGEST))
        and is_tiny(m, 1, n, k)
    ):
        # Each row is a product of its own.
        batch, m = m, 1
        a, b, c, d = a.by_rows, replace(b, batch=0), c.by_rows, d.by_rows if d else None
    if on.form == "cpu" and is_tiny(batch, m, n, k):
        return [_tiny_launch(_Product(storage, result, (batch, m, n, k), c, a, b, d, alpha, beta), units)]
    math = arithmetic(storage, simd_width)
    if n == 1 and m > 1:
        # A matrix times a column, as a row times a matrix.
        m, n = n, m
        a, b, c, d = b.transposed, a.transposed, c.transposed, d.transposed if d else None
    unit_a, unit_b = _unit(a.column, a.row, k, m), _unit(b.row, b.column, k, n)
    if m == n == 1 and b.row == 1:
        unit_b = "k"  # both strides may be 1
    addend: Addend = "none" if d is None else {0: "column", 1: "row"}.get(d.column, "any")  # type: ignore[assignment]

    # The kernel as a function of C's element type and D's kind, its groups within a matrix, and the sizes it takes.
    kernel: Callable[[str, Addend], Kernel]
    more: dict[str, int] = {}
    wanted, least = 2 * units, _LEAST_PART
    few = 1 if m == 1 else 4
    suits = storage == "bf16" and "none" not in (unit_a, unit_b) and k >= bfloat16.LEAST_DEPTH
    paired = on.bfloat16 if suits else None
    small = _is_small(math, batch, m, n, k, unit_b, paired is not None)
    groups: tuple[int, ...]
    parts = 0
    if on.form != "cpu" and m <= GPU_ROWS and not math.is_complex:
        along_k = unit_b == "k"
        groups = (ceil_div(n, rows_columns(along_k)),)
        kernel = partial(_rows, storage, 1 if m == 1 else ceil_div(m, 4) * 4, along_k)
        parts = max(1, min(8 * units // groups[0], k // _LEAST_ROWS_PART)) if batch == 1 and units > 1 else 1
    elif on.form != "cpu" and on.fragments and storage in fragments.STORAGES and k >= fragments.LEAST_DEPTH:
        tiles, parts = choose_tiles(fragments.TILES, m, n, k, batch, units, fragments.SPEED)
        parts = parts if batch == 1 else 1
        groups = tile_groups(tiles, m, n, 1)[:2]
        kernel = partial(_fragments, storage, unit_a, unit_b, tiles.side)
    elif on.form != "cpu":
        tiles, parts = choose_tiles(tiles, m, n, k, batch, units)
        parts = parts if batch == 1 else 1
        groups = tile_groups(tiles, m, n, 1)[:2]
        kernel = partial(_tile, storage, unit_a, unit_b, tiles)
    elif unit_b == "k" and a.column == 1 and _pays_dot(math, m, n, k) and not (paired and m > 4):
        columns = max(8, min(64, -(-n // (4 * units) // 8 * 8)))
        groups = (ceil_div(n, columns),)
        share = _share(batch, m * min(n, columns) * (k // math.width + _LANES_SUMMED), units)
        more = {"block_columns": columns, "share": share}
        width, together = _dot_width(storage, simd_width, k), 1 << (min(n, 8) - 1).bit_length()
        kernel = partial(_dot, storage, even_part(m, 4), width, together)
    elif m <= 4 and not math.is_complex and unit_b == "outer" and not small:
        least = max(_LEAST_ROWS, _LEAST_ELEMENTS // n)
        columns = _stretch(n, axpy_columns(few), units, max(1, k // least))
        groups = (ceil_div(n, columns),)
        more = {"block_columns": columns, "share": _share(batch, few * k * min(n, columns) // math.width, units)}
        kernel = partial(_axpy, storage, few, simd_width)
    elif small:
        asked = _Product(storage, result, (batch, m, n, k), c, a, b, d, alpha, beta)
        return [_small_launch(asked, unit_b, addend, units, simd_width)]
    elif paired:
        rows, columns = block_shape(math, bfloat16.TILE, m, n, k, batch, units, 1_000_000)
        more = {"block_rows": rows, "block_columns": columns}
        groups = (ceil_div(n, columns), ceil_div(m, rows))
        kernel = partial(_bfloat16_block, paired, unit_a, unit_b)
    else:
        if math.is_complex:
            unit_a = unit_b = "none"
            addend = "none" if d is None else "any"
        narrow = n <= math.width
        tile = product_tile(math, blocks, narrow)
        if n > tile.max_columns:
            blocks = _shallow(blocks, k)
            tile = product_tile(math, blocks)
        least = 2_000_000 // math.size if math.is_float else 250_000
        if unit_b == "k":
            least = least * m // (m + _TRANSPOSING)
        rows, columns = block_shape(math, tile, m, n, k, batch, units, least)
        more = {"block_rows": rows, "block_columns": columns}
        groups = (ceil_div(n, columns), ceil_div(m, rows))
        if a.column == 1 and n <= tile.vectors * math.width and BY_NAME[storage].size == math.size:
            unit_a = "in place"  # it is read once
        in_place = unit_b == "outer" and not narrow and _pays_in_place(math, m, b)
        kernel = partial(_block, storage, unit_a, unit_b, blocks, narrow, in_place, simd_width)

    if parts == 0:
        parts = _parts(prod(groups), k, wanted, least, units) if batch == 1 and units > 1 else 1
    sized = {"M": m, "N": n, **more}
    if parts == 1:
        arguments = {**_operands(c, a, b, d, alpha, beta), **sized, "each_K": k, "last_K": k}
        if "share" in more:
            arguments["batches"] = batch
        return [Launch(kernel(result, addend), (*groups, ceil_div(batch, more.get("share", 1))), arguments)]
    # Too few blocks, of long sums: every group sums a part.
    each = ceil_div(k, parts)
    parts = ceil_div(k, each)
    place = temporary(parts * m * n, math.value)
    matrices = {
        "C": Matrix(place, n, 1, m * n),
        "A": Matrix(a.pointer, a.row, a.column, each * a.column),
        "B": Matrix(b.pointer, b.row, b.column, each * b.row),
    }
    of_parts = {"each_K": each, "last_K": k - (parts - 1) * each, "alpha": 1.0 if math.is_float else 1}
    if "share" in more:
        of_parts |= {"share": 1, "batches": parts}
    product = Launch(kernel(math.value, "none"), (*groups, parts), {**_matrices(matrices), **sized, **of_parts})
    whole: dict[str, object] = {
        "C": c.pointer,
        "P": place,
        "M": m,
        "N": n,
        "parts": parts,
        "c_rs": c.row,
        "c_cs": c.column,
        "alpha": alpha,
    }
    if d:
        whole |= {"D": d.pointer, "d_rs": d.row, "d_cs": d.column, "beta": beta}
    fold = fold_kernel(result, "any" if d else "none")
    return [product, Launch(fold, (ceil_div(m * n, 64),), whole)]


@dataclass(frozen=True)
class _Product:
    """A product as a kernel computes it, perhaps transposed, or by rows; as of `matmul_launches`."""

    storage: str
    result: str
    sizes: tuple[int, int, int, int]
    c: Matrix
    a: Matrix
    b: Matrix
    d: Matrix | None
    alpha: object
    beta: object

    @property
    def operands(self) -> dict[str, object]:
        return _operands(self.c, self.a, self.b, self.d, self.alpha, self.beta)


def _tiny_launch(product: _Product, units: int) -> Launch:
    batch, m, n, k = product.sizes
    strides = tiny_strides([(x.row, x.column, x.batch) for x in (product.a, product.b, product.c)])
    addend = "any" if product.d else "none"
    kernel = tiny_kernel(product.storage, product.result, (m, n, k), strides, addend)
    share = _share(batch, m * n * k + m * k + k * n + 2 * m * n, units)
    return Launch(kernel, (ceil_div(batch, share),), {**product.operands, "share": share, "batches": batch})


def _small_launch(product: _Product, unit_b: Unit, addend: Addend, units: int, simd_width: int) -> Launch:
    storage = product.storage
    batch, m, n, k = product.sizes
    depth = _small_depth(arithmetic(storage, simd_width), n)
    simd_width = max(4, simd_width // 2) if depth == _NARROW_DEPTH else simd_width
    wide = ceil_div(n, arithmetic(storage, simd_width).width)
    panels = 1 if wide <= 4 else ceil_div(wide, _most_vectors(simd_width))
    vectors = ceil_div(wide, panels)
    rows = _small_rows(m, vectors, simd_width)
    tiles = ceil_div(m, rows)
    in_place = unit_b == "outer" and (tiles <= _SMALL_IN_PLACE or panels > 1 or k > depth)
    cycles = batch * panels * tiles * (k * (rows * vectors + rows + 2) // 2 + 4 * rows + 20)  # about
    wanted = _wanted_blocks(cycles, 25_000, units, 8)
    # One panel is copied for all blocks of a matrix, several for each block, which has more rows then.
    if panels == 1:
        block_tiles = even_part(tiles, min(8, ceil_div(batch * tiles, wanted)))
    else:
        block_tiles = min(8 if in_place else 32, ceil_div(tiles, 2 * units))
    block_rows = block_tiles * rows
    blocks = batch * ceil_div(m, block_rows)
    share = ceil_div(blocks, wanted)
    more = {"block_rows": block_rows, "share": share, "batches": batch}
    arguments = {**product.operands, "M": m, "N": n, **more, "each_K": k, "last_K": k}
    converted = BY_NAME[storage].size < arithmetic(storage, simd_width).size
    held = converted and product.a.column == 1 and k <= _HELD_DEPTH
    depth = 0 if in_place else depth
    kernel = small_kernel(storage, product.result, rows, vectors, depth, unit_b, addend, simd_width, held)
    return Launch(kernel, (ceil_div(blocks, share),), arguments)


def _operands(c: Matrix, a: Matrix, b: Matrix, d: Matrix | None, alpha: object, beta: object) -> dict[str, object]:
    """The arguments for all matrices and their factors."""
    if d is None:
        return {**_matrices({"C": c, "A": a, "B": b}), "alpha": alpha}
    return {**_matrices({"C": c, "A": a, "B": b, "D": d}), "alpha": alpha, "beta": beta}


def _matrices(matrices: Mapping[str, Matrix]) -> dict[str, object]:
    """The arguments for matrices: each one's pointer and strides."""
    out: dict[str, object] = {}
    for name, x in matrices.items():
        out[name] = x.pointer
        out |= zip((f"{name.lower()}_{s}" for s in ("rs", "cs", "bs")), (x.row, x.column, x.batch), strict=True)
    return out


def _tile(storage: str, unit_a: Unit, unit_b: Unit, tiles: Tiles, result: str, addend: Addend) -> Kernel:
    return tile_kernel(storage, result, unit_a, unit_b, "any" if addend != "none" else "none", tiles)


def _rows(storage: str, rows: int, along_k: bool, result: str, addend: Addend) -> Kernel:
    return rows_kernel(storage, result, rows, along_k, "any" if addend != "none" else "none")


def _fragments(storage: str, unit_a: Unit, unit_b: Unit, side: int, result: str, addend: Addend) -> Kernel:
    addend = "any" if addend != "none" else "none"
    return fragments.fragment_kernel(storage, result, unit_a, unit_b, addend, side)


def _dot(storage: str, rows: int, simd_width: int, columns: int, result: str, addend: Addend) -> Kernel:
    return dot_kernel(storage, result, rows, "any" if addend != "none" else "none", simd_width, columns)


def _axpy(storage: str, rows: int, simd_width: int, result: str, addend: Addend) -> Kernel:
    return axpy_kernel(storage, result, rows, "any" if addend != "none" else "none", simd_width)


def _block(
    storage: str,
    unit_a: Unit,
    unit_b: Unit,
    blocks: Blocks,
    narrow: bool,
    in_place: bool,
    simd_width: int,
    result: str,
    addend: Addend,
) -> Kernel:
    return block_kernel(storage, result, unit_a, unit_b, addend, blocks, narrow, in_place, simd_width)


def _bfloat16_block(way: Way, unit_a: Unit, unit_b: Unit, result: str, addend: Addend) -> Kernel:
    return bfloat16.block_kernel(way, result, unit_a, unit_b, addend)
