"""Matrix multiplication of bfloat16 by the processor's own instructions, for CPUs that have some.

As in `matmul.block_kernel` a work-item owns a block of C, and copies the part of B that it needs into panels and the
rows of A into its private memory; but both stay bfloat16, in pairs (`kernels.pairs`): a panel of B is `[k / 2][column]`
and A's rows are `[row][k / 2]`; what K lacks of a whole number of steps is zero in both.
"""

from __future__ import annotations

from functools import cache

from torchgraft.codegen.arithmetic import Arithmetic, arithmetic
from torchgraft.codegen.kernel import Kernel
from torchgraft.codegen.vectors import shuffle_helpers, transpose_registers
from torchgraft.codegen.x86 import Way
from torchgraft.kernels.pairs import LANES, ROWS, STEP, Block, tiles_begin, tiles_end
from torchgraft.kernels.products import Addend, Tile, Unit, begin_block, finish_block, operands, plain_loops

_REGISTERS = ", ".join(f"r{i}" for i in range(LANES))
LEAST_DEPTH = 16
"""Shorter sums are not worth it: they are of 32 products at least, and what lacks is zeros."""
TILE = Tile(rows=ROWS, vectors=2, depth=256, max_rows=256, max_columns=512)
"""What a block is made of: 32 x 32 sums; its numbers are multiples of 16 rows and of 32 steps."""
# Elements from a row of A to the next: a little more than it has, so that rows do not all fall into the same set of the
# cache; and vectors from a panel to the next, likewise.
_PITCH = TILE.depth + 32
_PANEL_PITCH = (TILE.depth // 2 + 1) * TILE.vectors
# Where the pairs of the columns from `n` on begin: in panels[n / 32][k / 2][32].
_PANEL = f"(panels + n / {LANES * TILE.vectors} * {_PANEL_PITCH} + n / {LANES} % {TILE.vectors})"


def _pack_rows_along_k() -> str:
    """A's rows as they lie; those beyond the last repeat it."""
    return f"""
for (int i = 0; i < (rows + 15) / 16 * 16; ++i) {{
  GLOBAL const ushort* const from = A + min(i, rows - 1) * a_rs + kb;
  ushort* const to = a_rows + i * {_PITCH};
  int k = 0;
  for (; k + {STEP} <= kc; k += {STEP}) *(uint16*)(to + k) = *(GLOBAL const uint16h*)(from + k);
  if (k < kc) {{
    *(uint16*)(to + k) = SPLAT_uint16(0);
    if (kc >= {STEP}) *(uint16h*)(to + kc - {STEP}) = *(GLOBAL const uint16h*)(from + kc - {STEP});
    else {{
      for (; k < kc; ++k) to[k] = from[k];
    }}
  }}
}}"""


def _pack_rows_across_k() -> str:
    """An A whose elements of one step lie together, of 16 rows and 32 steps at a time. Nothing is read beyond its
    edges: the vector that ends there goes to where the wanted elements of it fall into place, and the others into
    places that nobody asks for.
    """
    lines = [f"*(GLOBAL const ushort16u*)(from + {k} * a_cs)" for k in range(STEP)]
    halves = [f"*(const ushort16*)(rest + {k * LANES})" for k in range(STEP)]
    store = " ".join(f"*(uint16*)(to + {i * _PITCH}) = r{i};" for i in range(LANES))
    return f"""
for (int k = 0; k < kc; k += {STEP})
  for (int i = 0; i < rows; i += {LANES}) {{
    GLOBAL const ushort* const from = A + i + (kb + k) * a_cs;
    ushort* const to = a_rows + i * {_PITCH} + k;
    const int steps = min({STEP}, kc - k), left = min({LANES}, rows - i);
    uint16 {_REGISTERS};
    if (steps == {STEP} && left == {LANES}) {{
      {" ".join(f"r{i} = TO_PAIRS({lines[2 * i]}, {lines[2 * i + 1]});" for i in range(LANES))}
    }} else {{
      ushort room[{LANES * (STEP + 1)}] ALIGN(64);
      ushort* const rest = room + {LANES};
      for (int step = 0; step < {STEP}; ++step) {{
        GLOBAL const ushort* const line = from + step * a_cs;
        if (step >= steps) *(ushort16*)(rest + step * {LANES}) = SPLAT_ushort16(0);
        else if (i + left >= {LANES})
          *(ushort16u*)(rest + (step - 1) * {LANES} + left) = *(GLOBAL const ushort16u*)(line + left - {LANES});
        else {{
          for (int row = 0; row < left; ++row) rest[step * {LANES} + row] = line[row];
        }}
      }}
      {" ".join(f"r{i} = TO_PAIRS({halves[2 * i]}, {halves[2 * i + 1]});" for i in range(LANES))}
    }}
    {transpose_registers(LANES, "uint16")}
    {store}
  }}"""


def _pack_columns_along_k() -> str:
    """A B whose columns lie along k, of 16 columns and 32 steps at a time; columns beyond the last repeat it. Of what
    is left of k the vector that ends there is read, and shifted to its place by way of memory.
    """
    columns = range(LANES)
    places = [f"rest + {2 * STEP * i}" for i in columns]
    store = " ".join(f"to[(k / 2 + {i}) * {TILE.vectors}] = r{i};" for i in columns)
    return f"""
for (int n = 0; n < columns; n += {LANES}) {{
  uint16* const to = {_PANEL};
  {" ".join(f"GLOBAL const ushort* const b{i} = B + min(n + {i}, columns - 1) * b_cs + kb;" for i in columns)}
  for (int k = 0; k < kc; k += {STEP}) {{
    uint16 {_REGISTERS};
    if (k + {STEP} <= kc) {{
      {" ".join(f"r{i} = *(GLOBAL const uint16h*)(b{i} + k);" for i in columns)}
    }} else {{
      ushort rest[{2 * LANES * STEP}] ALIGN(64);
      const int steps = kc - k, shift = kb + kc >= {STEP} ? {STEP} - steps : 0;
      {" ".join(f"*(uint16*)({place} + {STEP}) = SPLAT_uint16(0);" for place in places)}
      if (kb + kc >= {STEP}) {{
        {" ".join(f"*(uint16*)({p}) = *(GLOBAL const uint16h*)(b{i} + k - shift);" for i, p in enumerate(places))}
      }} else {{
        {" ".join(f"*(uint16*)({place}) = SPLAT_uint16(0);" for place in places)}
        for (int step = 0; step < steps; ++step) {{
          {" ".join(f"({place})[step] = b{i}[k + step];" for i, place in enumerate(places))}
        }}
      }}
      {" ".join(f"r{i} = *(const uint16h*)({place} + shift);" for i, place in enumerate(places))}
    }}
    {transpose_registers(LANES, "uint16")}
    {store}
  }}
}}"""


def _pack_columns_across_k() -> str:
    """A B whose rows lie together, two of them after another; those beyond the last are zero."""
    to = f"{_PANEL}[k / 2 * {TILE.vectors}]"
    return f"""
for (int k = 0; k < (kc + {STEP - 1}) / {STEP} * {STEP}; k += 2) {{
  GLOBAL const ushort* const low = B + (kb + min(k, kc - 1)) * b_rs;
  GLOBAL const ushort* const high = B + (kb + min(k + 1, kc - 1)) * b_rs;
  const uint mask = k + 1 < kc ? 0xffffffff : k < kc ? 0xffff : 0;
  int n = 0;
  for (; n + {LANES} <= columns; n += {LANES})
    {to} = TO_PAIRS(*(GLOBAL const ushort16u*)(low + n), *(GLOBAL const ushort16u*)(high + n)) & SPLAT_uint16(mask);
  for (int i = 0; i < columns - n; ++i)
    ((uint*)&{to})[i] = ((uint)low[n + i] | (uint)high[n + i] << 16) & mask;
}}"""


def _block_loop(way: Way, fill_panels: str, fill_rows: str, finish: str) -> str:
    """The loops about their pieces; `K`, `rows` and `columns` must be in scope."""
    vector = 64 * TILE.vectors
    block = Block(way, "sums", f"{vector}", "rows - m", "kb == 0")
    add = block.add(f"a_rows + m * {_PITCH}", f"{2 * _PITCH}", _PANEL, "64", f"{vector}", "kc")
    return f"""
uint16 panels[{TILE.max_columns // LANES // TILE.vectors * _PANEL_PITCH}];
ushort a_rows[{TILE.max_rows * _PITCH}] ALIGN(64);
float16 accumulators[{TILE.max_rows * TILE.max_columns // LANES}];
{tiles_begin(way)}
const int tile_rows = {TILE.rows}, vectors = {TILE.vectors};
for (int kb = 0; kb < K; kb += {TILE.depth}) {{
  const int kc = min({TILE.depth}, K - kb);
  {fill_panels}
  {fill_rows}
  for (int m = 0; m < rows; m += {TILE.rows})
    for (int n = 0; n < columns; n += {LANES * TILE.vectors}) {{
      float16* const sums = accumulators + (m * {TILE.max_columns // LANES} + n / {LANES} * {TILE.rows});
      {block.begin()}
      {add}
      {block.end()}
      if (kb + {TILE.depth} >= K) {{ {finish} }}
    }}
}}
{tiles_end(way)}"""


@cache
def block_kernel(way: Way, result: str, unit_a: Unit, unit_b: Unit, addend: Addend) -> Kernel:
    """A product of bfloat16 of some size. K is at least 1. C has elements of type `result`: bfloat16, or with no D
    any other. Parameters and launches are those of `matmul.block_kernel`.
    """
    math: Arithmetic = arithmetic("bf16", LANES)
    fill_rows = _pack_rows_along_k() if unit_a == "k" else _pack_rows_across_k()
    fill_panels = _pack_columns_along_k() if unit_b == "k" else _pack_columns_across_k()
    finish = finish_block(arithmetic(result, LANES), TILE, addend)
    body = f"""{begin_block(addend)}
{_block_loop(way, fill_panels, fill_rows, finish)}"""
    return Kernel(
        f"matmul_bfloat16_{way}",
        operands(math, result, addend, "block_rows", "block_columns"),
        plain_loops(body),
        helpers=shuffle_helpers(LANES, "uint16"),
        local=(1, 1, 1),
    )
