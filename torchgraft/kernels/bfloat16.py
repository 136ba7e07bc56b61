"""Matrix multiplication of bfloat16 by the processor's own instructions, for CPUs that have some.

As in `matmul.block_kernel` a work-item owns a block of C, and copies the part of B that it needs into panels and the
rows of A into its private memory; but both stay bfloat16. What the instructions take are pairs: two elements that
follow each other along k, one after the other in 32 bits. So a panel of B is `[k / 2][column]` and A's rows are
`[row][k / 2]`, of pairs; what K lacks of a whole number of steps is zero in both.
"""

from __future__ import annotations

from functools import cache

from torchgraft.codegen.arithmetic import Arithmetic, arithmetic
from torchgraft.codegen.kernel import Kernel
from torchgraft.codegen.vectors import shuffle_helpers, transpose_registers
from torchgraft.kernels.products import Addend, Tile, Unit, begin_block, finish_block, operands, plain_loops

# Elements along k that are copied at once: a vector of 16 pairs.
_STEP = 32
_LANES = 16

_REGISTERS = ", ".join(f"r{i}" for i in range(_LANES))
LEAST_DEPTH = 16
"""Shorter sums are not worth it: those of tiles are of 32 products, and what lacks is zeros."""
TILE = Tile(rows=32, vectors=2, depth=256, max_rows=256, max_columns=512)
"""What a block is made of: 32 x 32 sums in four tiles; its numbers are multiples of 16 rows and of 32 steps."""
# Elements from a row of A to the next: a little more than it has, so that rows do not all fall into the same set of the
# cache; and vectors from a panel to the next, likewise.
_PITCH = TILE.depth + 32
_PANEL_PITCH = (TILE.depth // 2 + 1) * TILE.vectors
# Where the pairs of the columns from `n` on begin: in panels[n / 32][k / 2][32].
_PANEL = f"(panels + n / {_LANES * TILE.vectors} * {_PANEL_PITCH} + n / {_LANES} % {TILE.vectors})"


def _pack_rows_along_k() -> str:
    """A's rows as they lie; those beyond the last repeat it."""
    return f"""
for (int i = 0; i < (rows + 15) / 16 * 16; ++i) {{
  GLOBAL const ushort* const from = A + min(i, rows - 1) * a_rs + kb;
  ushort* const to = a_rows + i * {_PITCH};
  int k = 0;
  for (; k + {_STEP} <= kc; k += {_STEP}) *(uint16*)(to + k) = *(GLOBAL const uint16h*)(from + k);
  if (k < kc) {{
    *(uint16*)(to + k) = SPLAT_uint16(0);
    if (kc >= {_STEP}) *(uint16h*)(to + kc - {_STEP}) = *(GLOBAL const uint16h*)(from + kc - {_STEP});
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
    lines = [f"*(GLOBAL const ushort16u*)(from + {k} * a_cs)" for k in range(_STEP)]
    halves = [f"*(const ushort16*)(rest + {k * _LANES})" for k in range(_STEP)]
    store = " ".join(f"*(uint16*)(to + {i * _PITCH}) = r{i};" for i in range(_LANES))
    return f"""
for (int k = 0; k < kc; k += {_STEP})
  for (int i = 0; i < rows; i += {_LANES}) {{
    GLOBAL const ushort* const from = A + i + (kb + k) * a_cs;
    ushort* const to = a_rows + i * {_PITCH} + k;
    const int steps = min({_STEP}, kc - k), left = min({_LANES}, rows - i);
    uint16 {_REGISTERS};
    if (steps == {_STEP} && left == {_LANES}) {{
      {" ".join(f"r{i} = TO_PAIRS({lines[2 * i]}, {lines[2 * i + 1]});" for i in range(_LANES))}
    }} else {{
      ushort room[{_LANES * (_STEP + 1)}] ALIGN(64);
      ushort* const rest = room + {_LANES};
      for (int step = 0; step < {_STEP}; ++step) {{
        GLOBAL const ushort* const line = from + step * a_cs;
        if (step >= steps) *(ushort16*)(rest + step * {_LANES}) = SPLAT_ushort16(0);
        else if (i + left >= {_LANES})
          *(ushort16u*)(rest + (step - 1) * {_LANES} + left) = *(GLOBAL const ushort16u*)(line + left - {_LANES});
        else {{
          for (int row = 0; row < left; ++row) rest[step * {_LANES} + row] = line[row];
        }}
      }}
      {" ".join(f"r{i} = TO_PAIRS({halves[2 * i]}, {halves[2 * i + 1]});" for i in range(_LANES))}
    }}
    {transpose_registers(_LANES, "uint16")}
    {store}
  }}"""


def _pack_columns_along_k() -> str:
    """A B whose columns lie along k, of 16 columns and 32 steps at a time; columns beyond the last repeat it. Of what
    is left of k the vector that ends there is read, and shifted to its place by way of memory.
    """
    columns = range(_LANES)
    places = [f"rest + {2 * _STEP * i}" for i in columns]
    store = " ".join(f"to[(k / 2 + {i}) * {TILE.vectors}] = r{i};" for i in columns)
    return f"""
for (int n = 0; n < columns; n += {_LANES}) {{
  uint16* const to = {_PANEL};
  {" ".join(f"GLOBAL const ushort* const b{i} = B + min(n + {i}, columns - 1) * b_cs + kb;" for i in columns)}
  for (int k = 0; k < kc; k += {_STEP}) {{
    uint16 {_REGISTERS};
    if (k + {_STEP} <= kc) {{
      {" ".join(f"r{i} = *(GLOBAL const uint16h*)(b{i} + k);" for i in columns)}
    }} else {{
      ushort rest[{2 * _LANES * _STEP}] ALIGN(64);
      const int steps = kc - k, shift = kb + kc >= {_STEP} ? {_STEP} - steps : 0;
      {" ".join(f"*(uint16*)({place} + {_STEP}) = SPLAT_uint16(0);" for place in places)}
      if (kb + kc >= {_STEP}) {{
        {" ".join(f"*(uint16*)({p}) = *(GLOBAL const uint16h*)(b{i} + k - shift);" for i, p in enumerate(places))}
      }} else {{
        {" ".join(f"*(uint16*)({place}) = SPLAT_uint16(0);" for place in places)}
        for (int step = 0; step < steps; ++step) {{
          {" ".join(f"({place})[step] = b{i}[k + step];" for i, place in enumerate(places))}
        }}
      }}
      {" ".join(f"r{i} = *(const uint16h*)({place} + shift);" for i, place in enumerate(places))}
    }}
    {transpose_registers(_LANES, "uint16")}
    {store}
  }}
}}"""


def _pack_columns_across_k() -> str:
    """A B whose rows lie together, two of them after another; those beyond the last are zero."""
    to = f"{_PANEL}[k / 2 * {TILE.vectors}]"
    return f"""
for (int k = 0; k < (kc + {_STEP - 1}) / {_STEP} * {_STEP}; k += 2) {{
  GLOBAL const ushort* const low = B + (kb + min(k, kc - 1)) * b_rs;
  GLOBAL const ushort* const high = B + (kb + min(k + 1, kc - 1)) * b_rs;
  const uint mask = k + 1 < kc ? 0xffffffff : k < kc ? 0xffff : 0;
  int n = 0;
  for (; n + {_LANES} <= columns; n += {_LANES})
    {to} = TO_PAIRS(*(GLOBAL const ushort16u*)(low + n), *(GLOBAL const ushort16u*)(high + n)) & SPLAT_uint16(mask);
  for (int i = 0; i < columns - n; ++i)
    ((uint*)&{to})[i] = ((uint)low[n + i] | (uint)high[n + i] << 16) & mask;
}}"""


def _multiply() -> str:
    """Adds the product of the rows at `a` and the panel at `b`: tiles 0 to 3 are sums, 4 and 5 A's, 6 and 7 B's."""
    pitch = 2 * _PITCH
    places = [f"(float*)sums + {i * 16 * 32 + j * 16}" for i in (0, 1) for j in (0, 1)]
    return f"""
if (kb == 0) {{ {" ".join(f"TILE_ZERO({t});" for t in range(4))} }}
else {{ {" ".join(f"TILE_LOAD({t}, {p}, 128);" for t, p in enumerate(places))} }}
for (int k = 0; k < kc; k += {_STEP}, a += {_STEP}, b += {_STEP // 2 * TILE.vectors}) {{
  TILE_LOAD(4, a, {pitch}); TILE_LOAD(6, b, 128);
  TILE_MULTIPLY(0, 4, 6);
  TILE_LOAD(7, b + 1, 128); TILE_MULTIPLY(1, 4, 7);
  if (rows - m > 16) {{
    TILE_LOAD(5, a + {16 * _PITCH}, {pitch});
    TILE_MULTIPLY(2, 5, 6); TILE_MULTIPLY(3, 5, 7);
  }}
}}
{" ".join(f"TILE_STORE({t}, {p}, 128);" for t, p in enumerate(places))}"""


def _block_loop(fill_panels: str, fill_rows: str, finish: str) -> str:
    """The loops about their pieces; `K`, `rows` and `columns` must be in scope."""
    return f"""
uint16 panels[{TILE.max_columns // _LANES // TILE.vectors * _PANEL_PITCH}];
ushort a_rows[{TILE.max_rows * _PITCH}] ALIGN(64);
float16 accumulators[{TILE.max_rows * TILE.max_columns // _LANES}];
TILES_BEGIN;
const int tile_rows = {TILE.rows}, vectors = {TILE.vectors};
for (int kb = 0; kb < K; kb += {TILE.depth}) {{
  const int kc = min({TILE.depth}, K - kb);
  {fill_panels}
  {fill_rows}
  for (int m = 0; m < rows; m += {TILE.rows})
    for (int n = 0; n < columns; n += {_LANES * TILE.vectors}) {{
      float16* const sums = accumulators + (m * {TILE.max_columns // _LANES} + n / {_LANES} * {TILE.rows});
      {{
        const ushort* a = a_rows + m * {_PITCH};
        const uint16* b = {_PANEL};
        {_multiply()}
      }}
      if (kb + {TILE.depth} >= K) {{ {finish} }}
    }}
}}
TILES_END();"""


@cache
def block_kernel(result: str, unit_a: Unit, unit_b: Unit, addend: Addend) -> Kernel:
    """A product of bfloat16 of some size. K is at least 1. C has elements of type `result`: bfloat16, or with no D
    any other. Parameters and launches are those of `matmul.block_kernel`.
    """
    math: Arithmetic = arithmetic("bf16", _LANES)
    fill_rows = _pack_rows_along_k() if unit_a == "k" else _pack_rows_across_k()
    fill_panels = _pack_columns_along_k() if unit_b == "k" else _pack_columns_across_k()
    finish = finish_block(arithmetic(result, _LANES), TILE, addend)
    body = f"""{begin_block(addend)}
{_block_loop(fill_panels, fill_rows, finish)}"""
    return Kernel(
        "matmul_bfloat16",
        operands(math, result, addend, "block_rows", "block_columns"),
        plain_loops(body),
        helpers=shuffle_helpers(_LANES, "uint16"),
        local=(1, 1, 1),
    )
