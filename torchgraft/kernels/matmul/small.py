"""Products of few columns and short sums, the CPU form, which reads A in place: what is to be prepared would cost more
than the product."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

from torchgraft.codegen import ceil_div
from torchgraft.codegen.arithmetic import Arithmetic, arithmetic
from torchgraft.codegen.kernel import Kernel, Launch
from torchgraft.codegen.types import BY_NAME
from torchgraft.codegen.vectors import shuffle_helpers
from torchgraft.kernels.matmul.block import pack_transposed
from torchgraft.kernels.matmul.division import even_part, wanted_blocks
from torchgraft.kernels.matmul.problem import Product
from torchgraft.kernels.products import Addend, Tile, Unit, finish_scalar, finish_vector, operands

# Rows at once for one, two, ... vectors of columns, where there are 16 registers and where there are 32 of 16 lanes.
_SMALL_ROWS = ((10, 8, 6, 5, 4, 3, 2, 1), (6, 5, 4, 3, 2, 1), (4, 3, 2, 1), (2, 1))
_SMALL_ROWS_WIDE = (_SMALL_ROWS[0], (10, 9, 8, 6, 5, 4, 3, 2, 1), (8, 6, 5, 4, 3, 2, 1), (6, 5, 4, 3, 2, 1))


def _is_small(p: Product) -> bool:
    sizes, math, (batch, m, n, k) = p.on.tuning.small, p.math, p.sizes
    short = sizes.short_sums if n <= 4 * math.width else sizes.shortest_sums
    if p.unit_b != "outer":
        pays = m >= sizes.many_rows and k <= short and p.paired is None
        return pays or (k <= _depth(p) and n <= 2 * math.width)
    if k <= sizes.short_sums and m > 4 and m * n * math.size <= sizes.short_sums_bytes and p.paired is None:
        return True
    if m <= sizes.few_rows and n <= 2 * math.width:
        return k <= sizes.longest_sums
    most = sizes.panels_in_place * _most_vectors(math.width) * math.width
    if 1 < m <= sizes.rows_in_place and n <= most and p.paired is None:
        return n * k * math.size <= sizes.bytes_in_place
    if batch > 1 and m <= sizes.rows_of_many_columns and n <= 4 * math.width:
        return k <= sizes.depth
    return k <= sizes.depth_in_place and n <= 2 * math.width


def _is_narrow(p: Product) -> bool:
    """Whether half a vector has all columns."""
    return 2 * p.sizes[2] <= p.math.width


def _depth(p: Product) -> int:
    """The longest sums whose B is copied."""
    return p.on.tuning.small.narrow_depth if _is_narrow(p) else p.on.tuning.small.depth


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
    held_depth: int,
) -> Kernel:
    """The CPU form for few columns, or short sums, of which A is read where it lies, `rows` rows at once; M has as
    many.

    So is B if `depth` is 0, which then has unit stride along the columns; otherwise it is copied into a panel, of sums
    of at most `depth`, by vectors along k where `unit_b` says that it lies so. Either way `vectors` of columns are
    taken at once. Numbers of A that are to be converted are so a tile at a time if `held_depth` is not 0: A has unit
    stride along k, and sums are of at most so many. A work-item has `share` blocks of rows, of one matrix after the
    other. Launch with `matmul_launches`.
    """
    math, target, held = arithmetic(storage, simd_width), arithmetic(result, simd_width), held_depth > 0
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
{f"{math.scalar} own[{rows * held_depth}] ALIGN(64);" if held else ""}
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


def why_not(p: Product) -> str:
    if not p.is_cpu:
        return "CPUs"
    if p.math.is_complex:
        return "real numbers"
    return "" if _is_small(p) else "few columns, or short sums"


def launches(p: Product) -> list[Launch]:
    storage, units = p.storage, p.on.units
    batch, m, n, k = p.sizes
    sizes, depth = p.on.tuning.small, _depth(p)
    simd_width = max(4, p.on.simd_width // 2) if _is_narrow(p) else p.on.simd_width
    math = arithmetic(storage, simd_width)
    wide = ceil_div(n, math.width)
    panels = 1 if wide <= 4 else ceil_div(wide, _most_vectors(simd_width))
    vectors = ceil_div(wide, panels)
    rows = _small_rows(m, vectors, simd_width)
    tiles = ceil_div(m, rows)
    in_place = p.unit_b == "outer" and (tiles <= sizes.tiles_in_place or panels > 1 or k > depth)
    cycles = batch * panels * tiles * (k * (rows * vectors + rows + 2) // 2 + 4 * rows + 20)  # about
    wanted = wanted_blocks(cycles, p.on.tuning.partition.cycles, units, 8)
    # One panel is copied for all blocks of a matrix, several for each block, which has more rows then.
    if panels == 1:
        block_tiles = even_part(tiles, min(8, ceil_div(batch * tiles, wanted)))
    else:
        block_tiles = min(8 if in_place else 32, ceil_div(tiles, 2 * units))
    block_rows = block_tiles * rows
    blocks = batch * ceil_div(m, block_rows)
    share = ceil_div(blocks, wanted)
    more = {"block_rows": block_rows, "share": share, "batches": batch}
    arguments = {**p.operands, "M": m, "N": n, **more, "each_K": k, "last_K": k}
    converted = BY_NAME[storage].size < math.size
    held_depth = sizes.converted_depth if converted and p.a.column == 1 and k <= sizes.converted_depth else 0
    depth = 0 if in_place else depth
    kernel = small_kernel(storage, p.result, rows, vectors, depth, p.unit_b, p.addend, simd_width, held_depth)
    return [Launch(kernel, (ceil_div(blocks, share),), arguments)]
