"""Convolution of bfloat16 whose lanes are the target's channels, by a processor's instructions for pairs: images from
images, with a stride of one for the image's gradient.

As `channel_lanes`, with two channels of the source at a time (`boxes_bfloat16` has their copy). Filters
of few taps come with their channels last; others come as they are, since to transpose them in memory would take longer
than to do so by squares of taps that are half empty.
"""

from __future__ import annotations

from functools import cache
from math import prod

from torchgraft.codegen import ceil_div
from torchgraft.codegen.arithmetic import arithmetic
from torchgraft.codegen.kernel import Kernel, Launch
from torchgraft.codegen.tuning import Target
from torchgraft.codegen.vectors import shuffle_helpers, transpose_registers
from torchgraft.codegen.x86 import LINES
from torchgraft.kernels.convolution.boxes_bfloat16 import fill_pairs
from torchgraft.kernels.convolution.channel_lanes import Lanes, best_part, lanes_body, lanes_parameters, line_parts
from torchgraft.kernels.convolution.geometry import Direction, Geometry, channels_of
from torchgraft.kernels.pairs import LANES
from torchgraft.kernels.products import Tile, plain_loops

# Taps of all pairs of a slice at most, and pairs of channels that are transposed together.
_DEPTH, _PAIRS = 400, LANES
# Of so many taps more than half of a vector is used where filters are read as they are.
_MANY_TAPS = LANES // 2 + 1


def _store_pairs(panel: int, condition: str, pair: str, tap: str) -> str:
    """Stores 16 vectors of columns, of pairs and taps with a number {0}."""
    places = f"places[({pair}) * taps + {tap}] * {panel} + n"
    return "\n".join(f"{condition} *(float16*)(panels + {places}) = r{{0}};".format(i) for i in range(LANES))


def _pack_as_is(direction: Direction, panel: int) -> str:
    """Turns round the filters of a slice from [channels of the target, channels of the source, taps], or backward from
    the same with their first two dimensions exchanged: squares of 16 taps of a pair of channels and 16 rows. A channel
    without another one has zero beside it."""
    strides = ("(long)channels * taps", "taps") if direction == "forward" else ("taps", "(long)M * taps")
    offsets = " ".join(f"const long o{i} = min({i}, columns - n - 1) * row;" for i in range(LANES))
    halves = ("*(GLOBAL const ushort16u*)(from + {0})", "*(GLOBAL const ushort16u*)(from + {0} + next)")
    pairs = [f"TO_PAIRS({', '.join(half.format(f'o{i}') for half in halves)})" for i in range(LANES)]
    loads = "\n".join(f"float16 r{i} = AS_float16({pair} & SPLAT_uint16(mask));" for i, pair in enumerate(pairs))
    return f"""
const long row = {strides[0]}, filters_end = (long)channels * M * taps;
for (int pair = 0; pair < count; ++pair) {{
  const int channel = 2 * (c0 + pair);
  const bool is_whole = channel + 1 < channels;
  const long next = is_whole ? {strides[1]} : 0;
  const uint mask = is_whole ? 0xffffffff : 0xffff;
  for (int n = 0; n < columns; n += {LANES}) {{
    {offsets}
    for (int step = 0; step < taps; step += {LANES}) {{
      const long at = (m0 + m + n) * row + channel * {strides[1]} + step;
      GLOBAL const ushort* const from = F + at;
      if (at + o{LANES - 1} + next + {LANES} <= filters_end) {{
        {loads}
        {transpose_registers(LANES, "float16")}
        {_store_pairs(panel, "if (step + {0} < taps)", "pair", "step + {0}")}
        continue;
      }}
      for (int k = 0; k < min(taps - step, {LANES}); ++k)
        for (int j = 0; j < min({LANES}, columns - n); ++j) {{
          const uint low = from[j * row + k], high = from[j * row + k + next];
          panels[places[pair * taps + step + k] * {panel} + n + j] = AS_float((low | high << 16) & mask);
        }}
    }}
  }}
}}"""


def _pack_last(panel: int) -> str:
    """Turns round the filters of a slice: squares of 16 pairs of channels and 16 rows, and what is left of the pairs
    one by one. A channel without another one has zero beside it."""
    offsets = " ".join(f"const long o{i} = min({i}, columns - n - 1) * row;" for i in range(LANES))
    loads = " ".join(
        f"float16 r{i} = AS_float16(*(GLOBAL const uint16h*)(from + o{i} + 2 * step));" for i in range(LANES)
    )
    return f"""
const long row = (long)taps * channels;
const int whole = min(count, channels / 2 - c0);
for (int tap = 0; tap < taps; ++tap)
  for (int n = 0; n < columns; n += {LANES}) {{
    GLOBAL const ushort* const from = F + (m0 + m + n) * row + (long)tap * channels + 2 * c0;
    {offsets}
    int step = 0;
    while (step < whole && whole >= {LANES}) {{
      // The last vectors end where the pairs do, and repeat some.
      step = min(step, whole - {LANES});
      {loads}
      {transpose_registers(LANES, "float16")}
      {_store_pairs(panel, "", "step + {0}", "tap")}
      step += {LANES};
    }}
    for (; step < count; ++step)
      for (int j = 0; j < min({LANES}, columns - n); ++j) {{
        const uint low = from[j * row + 2 * step], high = step < whole ? from[j * row + 2 * step + 1] : 0;
        panels[places[step * taps + tap] * {panel} + n + j] = AS_float(low | high << 16);
      }}
  }}"""


def _multiply(line: int) -> str:
    """Adds the products of the line at `pixel` and the panel to its sums."""
    vectors = LINES[line]
    return f"""
{{
  float16* const sums = panel_sums + pixel * {vectors};
  if (first_k < end_k) {{
    VECTORS_LINE_{line}(sums, line, offset + first_k, panel + first_k * {vectors}, end_k - first_k, c0 == 0);
  }} else if (c0 == 0) {{
    for (int i = 0; i < {line * vectors}; ++i) sums[i] = SPLAT_float16(0);
  }}
}}"""


def _tile(line: int) -> Tile:
    return Tile(rows=line, vectors=LINES[line], depth=_DEPTH, max_rows=0, max_columns=0)


@cache
def lanes_kernel(direction: Direction, bias: bool, as_is: bool, line: int) -> Kernel:
    """As `channel_lanes.lanes_kernel`, for one group of channels; a `slice` is of pairs of channels. F comes `as_is`,
    or as [channels of the target, taps, channels of the source]."""
    tile = _tile(line)
    panel = LANES * tile.vectors
    body = lanes_body(
        arithmetic("bf16", LANES),
        direction,
        tile,
        bias,
        fill=fill_pairs(),
        pack=_pack_as_is(direction, panel) if as_is else _pack_last(panel),
        multiply=_multiply(line),
        element="uint",
        channels="pairs",
    )
    body = f"const int pairs = (channels + 1) / 2; {body}"
    helpers = shuffle_helpers(LANES, "float16")
    name = f"convolution_bfloat16_lanes_{direction}"
    return Kernel(name, lanes_parameters("bf16", bias), plain_loops(body), helpers=helpers, local=(1, 1, 1))


def choose_lanes(g: Geometry, direction: Direction, on: Target) -> Lanes | None:
    """Nothing where lines have no equal parts, a filter has too many taps, lanes would be left empty, or the device has
    no such instructions."""
    lines = line_parts(g, direction)
    if on.form != "cpu" or on.bfloat16 != "vectors" or g.groups > 1 or not lines:
        return None
    line = lines[0]
    m, channels = channels_of(g, direction)
    sizes, pairs, lanes = on.tuning.lanes, ceil_div(channels, 2), LANES * LINES[line]
    most = _DEPTH // prod(g.taps) // _PAIRS * _PAIRS
    if not most or m < sizes.used * ceil_div(m, lanes) * lanes:
        return None
    slice_ = min(pairs, ceil_div(ceil_div(pairs, ceil_div(pairs, most)), _PAIRS) * _PAIRS)
    pack = sizes.transpose_in_place if reads_filters_as_they_are(g) else sizes.transpose
    part = best_part(arithmetic("bf16", LANES), _tile(line), g, direction, pairs, slice_, pack, on)
    return None if part is None else Lanes(g, direction, line, LINES[line], slice_, part)


def reads_filters_as_they_are(g: Geometry) -> bool:
    """Whether `lanes_launch` takes filters as they are, and not with their channels last."""
    return prod(g.taps) >= _MANY_TAPS


def lanes_launch(lanes: Lanes, target: object, source: object, weight: object, bias: object | None) -> Launch:
    """The launch of what `choose_lanes` has found."""
    as_is = reads_filters_as_they_are(lanes.g)
    kernel = lanes_kernel(lanes.direction, bias is not None, as_is, lanes.line)
    return lanes.launch(kernel, target, source, weight, bias)
