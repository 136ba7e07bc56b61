"""The products of attention in bfloat16, by a processor's tiles.

They are those of `attention.py`: scores of 32 queries in the lanes, and sums of rows by weights. The rows that are read
from memory stay bfloat16; what lies in lanes, and weights, become pairs of bfloat16 that follow each other along the
products' sums. All else is float32 as ever: scores, softmax, sums.
"""

from __future__ import annotations

from torchgraft.codegen import ceil_div
from torchgraft.codegen.vectors import shuffle_helpers, transpose_registers

# Elements along a sum that one multiplication of tiles takes; rows and columns of a tile; lanes.
_STEP = 32
_SIDE = 16
# Turned rows lie this much further apart than they are long, so that they do not share the cache's sets.
_PADDING = 32

HELPERS = f"""\
TG_FUNCTION uint16 rounded_pairs(float16 low, float16 high) {{
  const uint16 a = AS_uint16(low), b = AS_uint16(high), nan = SPLAT_uint16(0x7fc00000);
  const uint16 x = SELECT(low == low, a + 0x7fff + ((a >> 16) & 1), nan);
  const uint16 y = SELECT(high == high, b + 0x7fff + ((b >> 16) & 1), nan);
  return x >> 16 | (y & 0xffff0000);
}}
{shuffle_helpers(_SIDE, "uint16")}"""


def is_possible(head: int, value_head: int) -> bool:
    """Whether there are tiles for heads of such sizes."""
    return head % _SIDE == value_head % _SIDE == 0


def _wide(size: int) -> int:
    """A head's elements, up to whole steps."""
    return ceil_div(size, _STEP) * _STEP


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
    for (int r = 0; r < (n + {_STEP - 1}) / {_STEP} * {_STEP}; ++r) {{
      const GLOBAL ushort* const from = {base} + (long)(r < n ? r : 0) * {row};
      const ushort kept = r < n ? 0xffff : 0;
      VECTORIZE
      for (int d = 0; d < {size}; ++d) {name}_m[r * {wide} + d] = from[d] & kept;
      for (int d = {size}; d < {wide}; ++d) {name}_m[r * {wide} + d] = 0;
    }}"""


def scores(out: str, rows: str, columns: str, size: int, scaled: bool) -> str:
    """out[r] = sum over d of rows[r][d] * columns[d], for n rows, and up to 31 behind them."""
    wide = _wide(size)
    scale = f"PLAIN for (int i = 0; i < 2 * n; ++i) {out}[i] *= scale;" if scaled else ""
    return f"""\
    PLAIN for (int r = 0; r < n; r += {_STEP}) {{
      TILE_ZERO(0); TILE_ZERO(1); TILE_ZERO(2); TILE_ZERO(3);
      PLAIN for (int d = 0; d < {wide}; d += {_STEP}) {{
        TILE_LOAD(4, {rows}_m + r * {wide} + d, {2 * wide});
        TILE_LOAD(5, {rows}_m + (r + {_SIDE}) * {wide} + d, {2 * wide});
        TILE_LOAD(6, {columns}_p + d, 128); TILE_LOAD(7, {columns}_p + d + 1, 128);
        TILE_MULTIPLY(0, 4, 6); TILE_MULTIPLY(1, 4, 7); TILE_MULTIPLY(2, 5, 6); TILE_MULTIPLY(3, 5, 7);
      }}
      TILE_STORE(0, {out} + 2 * r, 128); TILE_STORE(1, {out} + 2 * r + 1, 128);
      TILE_STORE(2, {out} + 2 * (r + {_SIDE}), 128); TILE_STORE(3, {out} + 2 * (r + {_SIDE}) + 1, 128);
    }}
    {scale}"""


def gathered(sums: str, weights: str, rows: str, size: int, block: int, factor: bool) -> str:
    """sums[c] = sums[c] * (alpha, beta) + the sum over n rows of weights[r] * rows[r][c]."""
    wide, pitch = _wide(size), block + _PADDING
    lines = [f"*(const ushort16u*)({rows}_m + (r + {i}) * {wide} + c)" for i in range(_STEP)]
    turned = " ".join(f"r{i} = TO_PAIRS({lines[2 * i]}, {lines[2 * i + 1]});" for i in range(_SIDE))
    stores = " ".join(f"*(uint16*)(turned + (c + {i}) * {pitch} + r) = r{i};" for i in range(_SIDE))
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
      PLAIN for (int r = (n + 1) / 2 * 2; r < (n + {_STEP - 1}) / {_STEP} * {_STEP}; ++r) pairs[r] = SPLAT_uint16(0);
      PLAIN for (int r = 0; r < n; r += {_STEP})
        PLAIN for (int c = 0; c < {size}; c += {_SIDE}) {{
          uint16 {", ".join(f"r{i}" for i in range(_SIDE))};
          {turned}
          {transpose_registers(_SIDE, "uint16")}
          {stores}
        }}
      {scale}
      {chr(10).join(_gathered_columns(sums, c, c + _SIDE < size, pitch) for c in range(0, size, _STEP))}
    }}"""


def _gathered_columns(sums: str, c: int, both: bool, pitch: int) -> str:
    """The sums from number c on: of two tiles of columns, or of one."""
    halves = (0, 1) if both else (0,)
    places = [(2 * i + j, f"{sums} + {2 * (c + i * _SIDE) + j}") for i in halves for j in (0, 1)]
    return f"""\
      {" ".join(f"TILE_LOAD({t}, {place}, 128);" for t, place in places)}
      PLAIN for (int r = 0; r < n; r += {_STEP}) {{
        TILE_LOAD(6, pairs + r, 128); TILE_LOAD(7, pairs + r + 1, 128);
        {" ".join(f"TILE_LOAD({4 + i}, turned + {(c + i * _SIDE) * pitch} + r, {2 * pitch});" for i in halves)}
        {" ".join(f"TILE_MULTIPLY({2 * i + j}, {4 + i}, {6 + j});" for i in halves for j in (0, 1))}
      }}
      {" ".join(f"TILE_STORE({t}, {place}, 128);" for t, place in places)}"""
