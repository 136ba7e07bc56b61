"""The products of attention in bfloat16, by a processor's own instructions.

They are those of `attention.py`: scores of 32 queries in the lanes, and sums of rows by weights. The rows that are read
from memory stay bfloat16; what lies in lanes, and weights, become pairs of bfloat16 that follow each other along the
products' sums. All else is float32 as ever: scores, softmax, sums.
"""

from __future__ import annotations

from torchgraft.codegen import ceil_div
from torchgraft.codegen.vectors import shuffle_helpers, transpose_registers
from torchgraft.codegen.x86 import Way
from torchgraft.kernels.pairs import LANES, STEP, Block

# Turned rows lie this much further apart than they are long, so that they do not share the cache's sets.
_PADDING = 32

HELPERS = f"""\
TG_FUNCTION uint16 rounded_pairs(float16 low, float16 high) {{
  const uint16 a = AS_uint16(low), b = AS_uint16(high), nan = SPLAT_uint16(0x7fc00000);
  const uint16 x = SELECT(low == low, a + 0x7fff + ((a >> 16) & 1), nan);
  const uint16 y = SELECT(high == high, b + 0x7fff + ((b >> 16) & 1), nan);
  return x >> 16 | (y & 0xffff0000);
}}
{shuffle_helpers(LANES, "uint16")}"""


def is_possible(head: int, value_head: int) -> bool:
    """Whether such heads can be cut into blocks."""
    return head % LANES == value_head % LANES == 0


def _wide(size: int) -> int:
    """A head's elements, up to whole steps."""
    return ceil_div(size, STEP) * STEP


def columns(name: str, size: int) -> str:
    """`name`_p: the columns `name` as pairs of elements d and d + 1, [d / 2][lane]; elements that are not there are
    0."""
    return f"""\
  uint16 {name}_p[{_wide(size)}];
  for (int i = 0; i < {_wide(size)}; ++i) {{
    const int at = i / 2 * 4 + i % 2;
    {name}_p[i] = i < {size} ? AS_uint16({name}[at]) >> 16 | (AS_uint16({name}[at + 2]) & 0xffff0000) : SPLAT_uint16(0);
  }}"""


def rows(name: str, base: str, row: str, size: int, block: int) -> str:
    """`name`_m: the n rows of a block; elements and rows up to whole steps are 0."""
    wide = _wide(size)
    return f"""\
    ushort {name}_m[{block * wide}] ALIGN(64);
    for (int r = 0; r < (n + {STEP - 1}) / {STEP} * {STEP}; ++r) {{
      const GLOBAL ushort* const from = {base} + (long)(r < n ? r : 0) * {row};
      const ushort kept = r < n ? 0xffff : 0;
      VECTORIZE
      for (int d = 0; d < {size}; ++d) {name}_m[r * {wide} + d] = from[d] & kept;
      for (int d = {size}; d < {wide}; ++d) {name}_m[r * {wide} + d] = 0;
    }}"""


def scores(way: Way, out: str, rows: str, columns: str, size: int, scaled: bool) -> str:
    """out[r] = sum over d of rows[r][d] * columns[d], for n rows, and up to 31 behind them."""
    wide = _wide(size)
    scale = f"PLAIN for (int i = 0; i < 2 * n; ++i) {out}[i] *= scale;" if scaled else ""
    block = Block(way, f"{out} + 2 * r", "128", STEP, "1")
    add = block.add(f"{rows}_m + r * {wide}", f"{2 * wide}", f"{columns}_p", "64", "128", f"{size}")
    return f"""\
    PLAIN for (int r = 0; r < n; r += {STEP}) {{
      {block.begin()}
      {add}
      {block.end()}
    }}
    {scale}"""


def gathered(way: Way, sums: str, weights: str, rows: str, size: int, block: int, factor: bool) -> str:
    """sums[c] = sums[c] * (alpha, beta) + the sum over n rows of weights[r] * rows[r][c]."""
    wide, pitch = _wide(size), block + _PADDING
    lines = [f"*(const ushort16u*)({rows}_m + (r + {i}) * {wide} + c)" for i in range(STEP)]
    turned = " ".join(f"r{i} = TO_PAIRS({lines[2 * i]}, {lines[2 * i + 1]});" for i in range(LANES))
    stores = " ".join(f"*(uint16*)(turned + (c + {i}) * {pitch} + r) = r{i};" for i in range(LANES))
    scale = ""
    if factor:
        scale = f"PLAIN for (int c = 0; c < {size}; ++c) {{ {sums}[2 * c] *= alpha; {sums}[2 * c + 1] *= beta; }}"
    return f"""\
    {{
      uint16 pairs[{block}];
      ushort turned[{size * pitch}] ALIGN(64);
      const float16 zero = SPLAT_float16(0);
      PLAIN for (int r = 0; r < n; r += 2) {{
        const bool both = r + 1 < n;
        pairs[r] = rounded_pairs({weights}[2 * r], both ? {weights}[2 * r + 2] : zero);
        pairs[r + 1] = rounded_pairs({weights}[2 * r + 1], both ? {weights}[2 * r + 3] : zero);
      }}
      PLAIN for (int r = (n + 1) / 2 * 2; r < (n + {STEP - 1}) / {STEP} * {STEP}; ++r) pairs[r] = SPLAT_uint16(0);
      PLAIN for (int r = 0; r < n; r += {STEP})
        PLAIN for (int c = 0; c < {size}; c += {LANES}) {{
          uint16 {", ".join(f"r{i}" for i in range(LANES))};
          {turned}
          {transpose_registers(LANES, "uint16")}
          {stores}
        }}
      {scale}
      {chr(10).join(_gathered_columns(way, sums, c, min(STEP, size - c), pitch) for c in range(0, size, STEP))}
    }}"""


def _gathered_columns(way: Way, sums: str, c: int, count: int, pitch: int) -> str:
    """Those of the columns from number c on."""
    block = Block(way, f"{sums} + {2 * c}", "128", count, "0")
    add = block.add(f"turned + {c * pitch}", f"{2 * pitch}", "pairs", "64", "128", "n")
    return f"{block.begin()}\n{add}\n{block.end()}"
