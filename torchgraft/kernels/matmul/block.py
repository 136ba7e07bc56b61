"""Products in blocks, the CPU form: a work-item owns a block of C, copies the part of B that it needs into panels of a
few vectors' width and the rows of A into tiles, in its private memory, and multiplies tile by panel with all
accumulators in registers. There is no barrier, and nothing but the copies depends on dtype or layout.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial

from torchgraft.codegen import ceil_div, round_up
from torchgraft.codegen.arithmetic import Arithmetic, arithmetic
from torchgraft.codegen.kernel import Kernel, Launch
from torchgraft.codegen.tuning import Blocks
from torchgraft.codegen.types import BY_NAME
from torchgraft.codegen.vectors import shuffle_helpers, transpose_registers
from torchgraft.kernels.matmul import split_k
from torchgraft.kernels.matmul.division import even_part, wanted_blocks
from torchgraft.kernels.matmul.problem import Matrix, Product, any_addend
from torchgraft.kernels.products import (
    Addend,
    Tile,
    Unit,
    begin_block,
    finish_block,
    finish_registers,
    operands,
    plain_loops,
)
from torchgraft.kernels.registers import Registers


def block_tile(math: Arithmetic, blocks: Blocks, narrow: bool = False) -> Tile:
    """The tile for a dtype. `narrow` is for products of at most one vector's width."""
    rows, vectors, size = blocks.rows, blocks.vectors, math.size
    if math.is_complex:
        rows, size = max(1, rows // 2), 2 * size
    most = blocks.row_tiles * rows
    if narrow:
        rows, vectors = rows * vectors, 1
    columns = round_up(max(1, blocks.column_bytes // size), math.width * vectors)
    return Tile(rows, vectors, blocks.depth, round_up(most, rows), columns)


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
    columns = round_up(blocks.wider * tile.max_columns, math.width * vectors)
    most = blocks.sums_bytes // (columns * math.size) // tile.rows * tile.rows
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
    are for less than the whole tile, from panels of one vector's width. `finish` comes before a partial sum is
    stored. With `in_place` B is read where it lies, which it must do in rows.
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
    block = Registers(math, rows_at_once, vectors)
    start, k_stride = f"const {math.vector}* b = panels + n / {math.width} * {vector_step}", f"{k_step}"
    ahead = ""

    def b(v: int) -> str:
        return math.load_vector("b", str(v * math.width)) if in_place else f"b[{v * columns}]"

    if in_place:
        start, k_stride = f"{math.const_pointer} b = B + kb * b_rs + n", "b_rs"
        ahead = " ".join(f"PREFETCH(b + {_ROWS_AHEAD} * b_rs + {v * math.width});" for v in range(vectors))
    a = [partial(a_element, math, tile, unit, part=part) for part in range(parts)]
    store_partial = block.end(lambda row, v: f"sums[{row * pitch + v}]", "kb == 0")
    if vector_count:
        # There are several of these texts in a kernel: zeros to add to are less of it than other statements.
        zeros = f"for (int i = 0; i < {len(block.names)}; ++i) sums[i] = {math.splat('0')};"
        add = " ".join(f"sums[{i}] += {name};" for i, name in enumerate(block.names))
        store_partial = f"if (kb == 0) {{ {zeros} }} {add}"
    return f"""
{{
  {start};
  {block.begin()}
  for (int k = 0; k < kc; ++k, b += {k_stride}) {{
    {ahead}
    {block.add(b, *a)}
  }}
  {finish}
  // Slices are summed on their own: so rounding errors grow with the length of a slice and the number of slices.
  {store_partial}
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


def block_shape(
    math: Arithmetic,
    tile: Tile,
    m: int,
    n: int,
    k: int,
    batch: int,
    units: int,
    blocks: Blocks,
    least: int,
) -> tuple[int, int]:
    """Rows and columns of a work-item's block: as large as leaves a few blocks for each of `units` cores, since a block
    copies its part of B once for all its rows; and all blocks about as large."""
    panel = math.width * tile.vectors
    rows, columns = min(tile.max_rows, round_up(m, tile.rows)), min(tile.max_columns, round_up(n, panel))
    wanted = wanted_blocks(m * n * max(k, blocks.storing) * batch, least, units, 3)
    while ceil_div(m, rows) * ceil_div(n, columns) * batch < wanted:
        if columns > panel and columns >= rows:
            columns = round_up(columns // 2, panel)
        elif rows > 2 * tile.rows:
            rows = round_up(rows // 2, tile.rows)
        elif columns > panel:
            columns = round_up(columns // 2, panel)
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

    near = range(round_up(columns // 2, panel), min(most, 2 * columns) + 1, panel)
    best = min(reversed(near), key=load)
    return best if load(best) < load(columns) else columns


def _pays_in_place(blocks: Blocks, math: Arithmetic, m: int, b: Matrix) -> bool:
    """Whether a B whose rows lie together is better read where it lies by each tile than copied once for a block."""
    size = BY_NAME[math.storage].size
    lines = size == math.size and math.width * size == 64 and b.row * size % 64 == 0
    return m <= (blocks.rows_of_lines if lines else blocks.rows_in_place)


def why_not(p: Product) -> str:
    return "" if p.is_cpu else "CPUs"


def launches(p: Product) -> list[Launch]:
    batch, m, n, k = p.sizes
    math, units, blocks = p.math, p.on.units, p.on.tuning.blocks
    unit_a, unit_b = ("none", "none") if math.is_complex else (p.unit_a, p.unit_b)
    narrow = n <= math.width
    tile = product_tile(math, blocks, narrow)
    if n > tile.max_columns:
        blocks = _shallow(blocks, k)
        tile = product_tile(math, blocks)
    least = blocks.work // (math.size if math.is_float else 8)
    if unit_b == "k":
        least = least * m // (m + blocks.transposing)
    rows, columns = block_shape(math, tile, m, n, k, batch, units, blocks, least)
    if p.a.column == 1 and n <= tile.vectors * math.width and BY_NAME[p.storage].size == math.size:
        unit_a = "in place"  # it is read once
    in_place = unit_b == "outer" and not narrow and _pays_in_place(blocks, math, m, p.b)

    def kernel(result: str, addend: Addend) -> Kernel:
        addend = any_addend(addend) if math.is_complex else addend
        simd_width = p.on.simd_width
        return block_kernel(p.storage, result, unit_a, unit_b, addend, blocks, narrow, in_place, simd_width)

    groups = (ceil_div(n, columns), ceil_div(m, rows))
    sizes = {"block_rows": rows, "block_columns": columns}
    return split_k.launches(p, kernel, groups, split_k.parts_on_cpu(p, groups, least), sizes)
