"""Convolution of bfloat16 by the processor's own instructions: images from images, for CPUs that have some.

As in `boxes` a work-item owns a box of the target and copies the part of the source that the box needs; but two
channels at a time, as the pairs that the instructions take (`kernels.pairs`). A block of 16 pairs of channels and 32
pixels lies in the copy as it is, for each tap of a filter at another place. Filters come with their channels last.
"""

from __future__ import annotations

from functools import cache
from math import prod

from torchgraft.codegen import ceil_div
from torchgraft.codegen.arithmetic import arithmetic
from torchgraft.codegen.kernel import Kernel, Launch
from torchgraft.codegen.tuning import Target
from torchgraft.codegen.x86 import Way
from torchgraft.kernels.convolution.boxes import (
    OFFSET,
    Box,
    BoxPlan,
    axis_of,
    box_head,
    box_parameters,
    copy_elements,
    finish_lines,
    largest_box,
    launch_boxes,
    shared_box,
    sum_elements,
)
from torchgraft.kernels.convolution.geometry import Direction, Geometry
from torchgraft.kernels.pairs import LANES, ROWS, Block, tiles_begin, tiles_end
from torchgraft.kernels.products import Tile, plain_loops

_TILE = Tile(rows=ROWS, vectors=2, depth=0, max_rows=256, max_columns=0)
"""What a block is made of: 32 x 32 sums, over 16 pairs of channels."""
_PAIRS = 16
# Pairs of channels of a slice at most, elements of filters that are copied at once, and taps.
_SLICE, _FILTERS, _TAPS = 2 * _PAIRS, 1 << 17, 128


def fill_pairs() -> str:
    """Copies `count` pairs of channels from number c0 on; what the source does not have of them is zero."""

    def wide(place: str) -> str:
        return f"TO_PAIRS(*(GLOBAL const ushort16u*)({place}), *(GLOBAL const ushort16u*)({place} + next))"

    def every_second(place: str) -> str:
        first, second = (f"*(GLOBAL const ushort16u*)({place} + {offset})" for offset in (0, LANES))
        return f"EVEN_ushort16({first}, {second})"

    halves = f"TO_PAIRS({every_second('from + 2 * i')}, {every_second('from + next + 2 * i')})"
    return f"""
for (int pair = 0; pair < count; ++pair) {{
  uint* row = copy + pair * channel_size;
  const int channel = 2 * (c0 + pair);
  const bool is_whole = channel + 1 < channels;
  const long next = is_whole ? (long)source_z * source_y * source_x : 0;
  const uint mask = is_whole ? 0xffffffff : 0xffff;
  if (channel >= channels) {{
    for (int i = 0; i < channel_size; i += {LANES}) *(uint16*)(row + i) = SPLAT_uint16(0);
    continue;
  }}
  for (int pz = 0; pz < parts_z; ++pz)
    for (int py = 0; py < parts_y; ++py)
      for (int px = 0; px < parts_x; ++px) {{
        const int rest = REMAINDER_x(px);
        const int inside = (source_x - rest + step_x - 1) / step_x;
        const int begin = clamp(least - origin, 0, pitch), end = clamp(inside - origin, begin, pitch);
        for (int image = 0; image < length_i; ++image) {{
          const long plane = ((image0 + image) * groups + group) * channels + channel;
          for (int rz = 0; rz < high_planes; ++rz) {{
            const int z = (at_z + low_z + rz) * step_z + REMAINDER_z(pz);
            for (int ry = 0; ry < high_rows; ++ry, row += pitch) {{
              const int y = (at_y + low_y + ry) * step_y + REMAINDER_y(py);
              if ((uint)z >= (uint)source_z || (uint)y >= (uint)source_y) {{
                for (int i = 0; i < pitch; i += {LANES}) *(uint16h*)(row + i) = SPLAT_uint16(0);
                continue;
              }}
              // Whole vectors are copied while that stays inside the source; what they write too much is overwritten
              // by the next row, or lies past the end.
              const long at = ((plane * source_z + z) * source_y + y) * source_x + (long)origin * step_x + rest;
              GLOBAL const ushort* const from = S + at;
              for (int i = 0; i < begin; ++i) row[i] = 0;
              int i = begin;
              if (step_x == 1) {{
                for (; i < end && at + next + i + {LANES} <= source_end; i += {LANES})
                  *(uint16h*)(row + i) = {wide("from + i")} & SPLAT_uint16(mask);
              }} else if (step_x == 2) {{
                for (; i < end && at + next + 2 * i + {2 * LANES} <= source_end; i += {LANES})
                  *(uint16h*)(row + i) = {halves} & SPLAT_uint16(mask);
              }}
              for (; i < end; ++i)
                row[i] = ((uint)from[(long)i * step_x] | (uint)from[next + (long)i * step_x] << 16) & mask;
              for (i = end; i < pitch; ++i) row[i] = 0;
            }}
          }}
        }}
      }}
  // Zeros after the last row, and anything where vectors overhang.
  const int gap = pair + 1 < count ? channel_size - channel_used : pitch + {LANES * _TILE.vectors};
  for (int i = 0; i < gap; ++i) row[i] = 0;
}}"""


# The filters of the held rows for a slice: [row][tap][channel]; rows beyond the last repeat it, and channels beyond the
# last are zero.
_PACK = """
for (int i = 0; i < (held_end - held_m + 15) / 16 * 16; ++i)
  for (int t = 0; t < meeting; ++t) {
    GLOBAL const ushort* const from = A + ((long)min(held_m + i, rows - 1) * taps + tap_number[t]) * channels + 2 * c0;
    ushort* const to = filters + i * filter_pitch + t * 2 * count;
    const int there = min(2 * count, channels - 2 * c0);
    int k = 0;
    for (; k + 16 <= there; k += 16) *(ushort16u*)(to + k) = *(GLOBAL const ushort16u*)(from + k);
    for (; k < there; ++k) to[k] = from[k];
    for (; k < 2 * count; ++k) to[k] = 0;
  }"""


def _multiply(way: Way) -> str:
    """Adds the product of the filters of row `m` and the columns at vector `n` to their sums."""
    block = Block(way, "sums + n", "64 * sum_pitch", "rows - m", "c0 == 0")
    add = block.add(
        "filters + (m - held_m) * filter_pitch + t * 2 * count",
        "2 * filter_pitch",
        "copy + start[n] + offset[t]",
        "4 * (start[n + 1] - start[n])",
        "4 * channel_size",
        "2 * min(count, pairs - c0)",
        "t == 0",
    )
    return f"""
{block.begin("meeting > 0")}
for (int t = 0; t < meeting; ++t) {{ {add} }}
{block.end()}"""


@cache
def box_kernel(way: Way, direction: Direction, bias: bool) -> Kernel:
    """As `boxes.box_kernel`, for one group of channels. F is [channels of the target, taps, channels of the source];
    a `slice` is of pairs of channels. Launch with `box_launch`."""
    math = arithmetic("bf16", LANES)
    body = f"""
{box_head(direction, LANES, _TILE.vectors)}
GLOBAL const ushort* const A = F + (long)m0 * taps * channels;

// Of the taps that meet pixels: where they lie in the copy, relative to a column's vector.
int offset[{_TAPS}], tap_number[{_TAPS}], meeting = 0;
{{
  const int c = 0;
  for (int kz = 0; kz < taps_z; ++kz)
    for (int ky = 0; ky < taps_y; ++ky)
      for (int kx = 0; kx < taps_x; ++kx) {{
        if (!(MEETS_z(kz) && MEETS_y(ky) && MEETS_x(kx))) continue;
        offset[meeting] = {OFFSET};
        tap_number[meeting++] = (kz * taps_y + ky) * taps_x + kx;
      }}
}}

uint copy[{copy_elements(math)}] ALIGN(64);
float16 all_sums[{sum_elements(math) // LANES}];
ushort filters[{_FILTERS + 64 * _TILE.max_rows}] ALIGN(64);
const int pairs = (channels + 1) / 2;
{tiles_begin(way)}
for (int c0 = 0; c0 == 0 || c0 < pairs; c0 += slice) {{
  const int count = min(slice, (pairs - c0 + {_PAIRS - 1}) / {_PAIRS} * {_PAIRS});
  // Rows of filters do not all fall into the same set of the cache.
  const int filter_pitch = meeting * 2 * count + 32;
  const bool last = c0 + slice >= pairs;
  {{ {fill_pairs()} }}
  for (int held_m = 0; held_m < rows; held_m += held_rows) {{
    const int held_end = min(rows, held_m + held_rows);
    float16* const held_sums = all_sums + (slice < pairs ? held_m * sum_pitch : 0);
    {_PACK}
    for (int n = 0; n < columns; n += {_TILE.vectors})
      for (int m = held_m; m < held_end; m += {_TILE.rows}) {{
        float16* const sums = held_sums + (m - held_m) * sum_pitch;
        {_multiply(way)}
      }}
    if (!last) continue;
    for (int m = held_m; m < held_end; m += {_TILE.rows}) {{
      const float16* const sums = held_sums + (m - held_m) * sum_pitch;
      {finish_lines(math, direction, bias, _TILE)}
    }}
  }}
}}
{tiles_end(way)}"""
    name = f"convolution_bfloat16_{way}_{direction}"
    return Kernel(name, box_parameters("bf16", bias), plain_loops(body), local=(1, 1, 1))


def _plan(g: Geometry, forward: bool) -> BoxPlan | None:
    """Nothing if a filter has too many taps."""
    axes = (axis_of(g, 0, forward), axis_of(g, 1, forward), axis_of(g, 2, forward))
    if not all(axes):
        return None
    channels, m = (g.image_channels, g.result_channels) if forward else (g.result_channels, g.image_channels)
    full = Box(g.batch, *(max(a.pixels for a in axis) for axis in axes))
    taps = max(1, prod(max(a.taps for a in axis) for axis in axes))
    pairs = ceil_div(channels, 2)
    slice_ = ceil_div(ceil_div(pairs, ceil_div(pairs, _SLICE)), _PAIRS) * _PAIRS
    if taps > _TAPS or taps * 2 * slice_ * _TILE.rows > _FILTERS:
        return None
    parts = 1 if forward else prod(g.stride)
    return BoxPlan(arithmetic("bf16", LANES), False, _TILE, axes, full, m, pairs, taps, slice_, parts)


def box_launch(
    g: Geometry, direction: Direction, target: object, source: object, weight: object, bias: object | None, on: Target
) -> Launch | None:
    """As `boxes.box_launch`, for one group of channels.

    Args:
        weight: [channels of the target, taps, channels of the source].
    """
    forward = direction == "forward"
    plan = _plan(g, forward)
    if plan is None or on.bfloat16 is None:
        return None
    most = max(1, _FILTERS // (plan.taps * 2 * plan.slice) // _TILE.rows) * _TILE.rows
    rows = min(_TILE.max_rows, most, ceil_div(plan.m, _TILE.rows) * _TILE.rows)
    box = largest_box(plan, rows)
    if box is None:
        return None
    box, rows = shared_box(plan, box, rows, on)
    kernel = box_kernel(on.bfloat16, direction, bias is not None)
    return launch_boxes(kernel, plan, box, rows, g, forward, target, source, weight, bias)
