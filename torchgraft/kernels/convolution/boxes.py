"""Convolution that reads the patches of an image in place, for CPUs: forward, and both gradients.

A work-item owns a box of the target: some images, planes, rows and columns of pixels, and some channels. It copies the
part of the source that the box needs into its private memory, with zeros around it, a slice of channels at a time.
There every tap is a place relative to a pixel's, so that the matrix product of `kernels.matmul` reads its right side,
the patches, directly: nothing is copied once for each tap.

* Forward with a stride, pixels that are a stride apart are neighbours in the copy: it has one part for each remainder
  of the places of the taps.
* Backward with a stride, each phase of the target (see `direct`) meets its own taps, and is like a
  convolution without a stride.
* The weight's gradient reads the copy by elements, for products with the result's channels.
* Rows of the copy share the zeros between them. Where that wastes the least, the rows of a plane are one run of
  columns, and what is computed for the columns between the rows is not stored.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from math import prod

from torchgraft.codegen import ceil_div
from torchgraft.codegen.arithmetic import Arithmetic, arithmetic
from torchgraft.codegen.kernel import Kernel, Launch, Parameter, parameters
from torchgraft.codegen.tuning import Blocks, Target, Tuning
from torchgraft.codegen.vectors import shuffle_helpers, transpose_registers
from torchgraft.kernels.convolution.geometry import AXES, GEOMETRY, Direction, Geometry, geometry_arguments
from torchgraft.kernels.matmul.block import A_TILE_PADDING, a_element, block_tile, pack_a, pack_transposed
from torchgraft.kernels.matmul.division import even_part
from torchgraft.kernels.products import Tile, Unit, plain_loops
from torchgraft.kernels.registers import Registers

# Bytes of the copy of the source, and of the sums, at most.
_COPY_BYTES = 1 << 18
_SUM_BYTES = 1 << 18
# Columns of a box at most.
_MOST_COLUMNS = 2048


def _tile(math: Arithmetic, blocks: Blocks, half: bool) -> Tile:
    """The product's tile; `half` has half the rows and twice the vectors of columns, or what registers there are for:
    16 but for vectors of 64 bytes."""
    tile = block_tile(math, blocks)
    if not half:
        return tile
    vectors = 2 * tile.vectors if math.width * math.size == 64 else tile.vectors + 1
    return replace(tile, rows=tile.rows // 2, vectors=vectors)


def copy_elements(math: Arithmetic) -> int:
    return _COPY_BYTES // math.size


def sum_elements(math: Arithmetic) -> int:
    return _SUM_BYTES // math.size


# --- The kernel's text.


def _per_axis(text: str) -> str:
    return "\n".join(text.replace("@", a) for a in reversed(AXES))


# On each axis: the taps' least and largest shift in pixels of the source's part that they read, and the parts.
_FORWARD_AXES = """
const int pixels_@ = target_@, step_@ = stride_@;
#define SHIFT_@(k) (((k) * dilation_@ - padding_@ + padding_@ * stride_@) / stride_@ - padding_@)
#define PART_OF_@(k) ((k) * dilation_@ - padding_@ - SHIFT_@(k) * stride_@)
const bool apart_@ = stride_@ > taps_@;  // each tap has a part of its own
const int parts_@ = min(stride_@, taps_@);
#define MEETS_@(k) true
#define PART_@(k) (apart_@ ? (k) : PART_OF_@(k))
#define REMAINDER_@(part) (apart_@ ? PART_OF_@(part) : (part))"""

_BACKWARD_AXES = """
const int step_@ = 1, parts_@ = 1;
#define SHIFT_@(k) ((first_@ + padding_@ - (k) * dilation_@) / stride_@)
#define MEETS_@(k) ((first_@ + padding_@ - (k) * dilation_@) % stride_@ == 0)
#define PART_@(k) 0
#define REMAINDER_@(part) 0"""

_REACH = """
int low_@ = 0, high_@ = 0, meeting_@ = 0;
for (int k = 0; k < taps_@; ++k)
  if (MEETS_@(k)) {
    low_@ = meeting_@ == 0 ? SHIFT_@(k) : min(low_@, SHIFT_@(k));
    high_@ = meeting_@ == 0 ? SHIFT_@(k) : max(high_@, SHIFT_@(k));
    ++meeting_@;
  }"""

_PLACE = """
const int at_@ = box_index % boxes_@ * box_@, length_@ = min(box_@, pixels_@ - at_@);
box_index /= boxes_@;"""

_PHASE = """
const int phases = stride_z * stride_y * stride_x, phase = GROUP_ID(2) % phases, group = GROUP_ID(2) / phases;
const int groups = NUM_GROUPS(2) / phases;
const int first_x = phase % stride_x, first_y = phase / stride_x % stride_y, first_z = phase / (stride_x * stride_y);
const int pixels_x = (target_x - first_x + stride_x - 1) / stride_x;
const int pixels_y = (target_y - first_y + stride_y - 1) / stride_y;
const int pixels_z = (target_z - first_z + stride_z - 1) / stride_z;"""

# A row of the copy has `pitch` elements; that at i is the source's part's at `origin` + i, if that is inside and not
# below `least`.
_ROWS = """
const int source_length = (source_x + step_x - 1) / step_x;
int origin = at_x + low_x, least = 0, pitch = length_x + high_x - low_x;
if (joined) {
  const int kept = min(pixels_x + high_x, source_length) - max(low_x, 0);
  const int gap = max(max(0, -low_x), pixels_x + high_x - source_length);
  least = max(low_x, 0);
  origin = least - gap;
  pitch = kept + gap;
}
const int high_rows = length_y + high_y - low_y, high_planes = length_z + high_z - low_z;
const int plane_size = high_rows * pitch, image_size = high_planes * plane_size, part_size = length_i * image_size;
// Channels begin at whole vectors, and their distance is no power of two: they do not share the cache's sets.
const int channel_used = part_size * parts_x * parts_y * parts_z;
const int channel_size = ((channel_used + 15) / 16 | 1) * 16;"""


# Where tap kz, ky, kx of channel `c` lies in the copy, relative to a pixel.
OFFSET = """c * channel_size + ((PART_z(kz) * parts_y + PART_y(ky)) * parts_x + PART_x(kx)) * part_size +
  (SHIFT_z(kz) - low_z) * plane_size + (SHIFT_y(ky) - low_y) * pitch + SHIFT_x(kx) + at_x - origin"""


def _copy_row(math: Arithmetic) -> str:
    """Statements that put elements `from .. to` of a row of the copy into `row`: element i lies at S[at + i * step_x].

    Whole vectors are copied while that stays inside the source; what they write too much is overwritten by the next
    row, or lies past the end.
    """
    whole = f"*({math.vector}u*)(row + i) = {math.load_vector('S', 'at + i')};"
    first, second = math.load_vector("S", "at + 2 * i"), math.load_vector("S", f"at + 2 * i + {math.width}")
    return f"""
  int i = from;
  if (step_x == 1) {{
    for (; i < to && at + i + {math.width} <= source_end; i += {math.width}) {whole}
  }} else if (step_x == 2) {{
    for (; i < to && at + 2 * i + {2 * math.width} <= source_end; i += {math.width})
      *({math.vector}u*)(row + i) = EVEN_{math.vector}({first}, {second});
  }}
  for (; i < to; ++i) row[i] = {math.load("S", "at + (long)i * step_x")};"""


def fill_copy(math: Arithmetic, tile: Tile) -> str:
    """Copies channels `c0 .. c0 + count`."""
    return f"""
for (int c = c0; c < c0 + count; ++c) {{
  {math.scalar}* row = copy + (c - c0) * channel_size;
  for (int pz = 0; pz < parts_z; ++pz)
    for (int py = 0; py < parts_y; ++py)
      for (int px = 0; px < parts_x; ++px) {{
        const int rest = REMAINDER_x(px);
        const int inside = (source_x - rest + step_x - 1) / step_x;
        const int from = clamp(least - origin, 0, pitch), to = clamp(inside - origin, from, pitch);
        for (int i = 0; i < length_i; ++i) {{
          const long channel_at = ((image0 + i) * groups + group) * channels + c;
          for (int rz = 0; rz < high_planes; ++rz) {{
            const int z = (at_z + low_z + rz) * step_z + REMAINDER_z(pz);
            for (int ry = 0; ry < high_rows; ++ry, row += pitch) {{
              const int y = (at_y + low_y + ry) * step_y + REMAINDER_y(py);
              if ((uint)z >= (uint)source_z || (uint)y >= (uint)source_y) {{
                for (int i = 0; i < pitch; i += {math.width}) *({math.vector}u*)(row + i) = {math.splat("0")};
                continue;
              }}
              const long at = ((channel_at * source_z + z) * source_y + y) * source_x + (long)origin * step_x + rest;
              for (int i = 0; i < from; ++i) row[i] = 0;
              {{ {_copy_row(math)} }}
              for (int i = to; i < pitch; ++i) row[i] = 0;
            }}
          }}
        }}
      }}
  // Zeros after the last row, and anything that can be computed with where vectors overhang.
  const int end = c + 1 < c0 + count ? channel_size - channel_used : pitch + {math.width * tile.vectors};
  for (int i = 0; i < end; ++i) row[i] = 0;
}}"""


def _multiply(math: Arithmetic, tile: Tile, unit: Unit) -> str:
    """Adds the product of the tile of filters and the columns at vector `n` to the sums of row `m`."""
    block = Registers(math, tile.rows, tile.vectors)
    pointers = " ".join(f"const {math.scalar}* const p{v} = copy + start[n + {v}];" for v in range(tile.vectors))
    return f"""
{{
  {pointers}
  {block.begin()}
  for (int k = 0; k < kc; ++k) {{
    const int o = offset[k];
    {block.add(f"*(const {math.vector}u*)(p{{}} + o)".format, partial(a_element, math, tile, unit))}
  }}
  // Slices are summed on their own: so rounding errors grow with the length of a slice and the number of slices.
  {block.end(lambda i, v: f"sums[{i} * sum_pitch + n + {v}]", "c0 == 0")}
}}"""


def finish_lines(math: Arithmetic, direction: Direction, bias: bool, tile: Tile) -> str:
    """Stores the sums of the tile's rows, line by line of the target."""
    add = f"r += {math.load('E', 'group * M + m0 + m + i')};" if bias else ""
    forward = direction == "forward"
    place = {a: f"(at_{a} + {p})" for a, p in (("z", "z"), ("y", "y"), ("x", "0"))}
    if not forward:
        place = {a: f"(first_{a} + {p} * stride_{a})" for a, p in place.items()}
    at = f"({place['z']} * target_y + {place['y']}) * target_x + {place['x']}"
    step = "1" if forward else "stride_x"
    vector = f"{math.vector} r = *(const {math.vector}u*)(from + x); {add} {math.store_vector('t', 'x', 'r')};"
    single = f"{math.scalar} r = from[x]; {add} {math.store('t', f'x * {step}', 'r')};"
    return f"""
for (int i = 0; i < min({tile.rows}, rows - m); ++i)
  for (int j = 0; j < length_i; ++j)
    for (int z = 0; z < length_z; ++z)
      for (int y = 0; y < length_y; ++y) {{
        const {math.scalar}* from = (const {math.scalar}*)(sums + i * sum_pitch + (j * length_z + z) * run_vectors);
        from += y * line_pitch;
        {math.pointer} t = T + (((image0 + j) * groups + group) * M + m0 + m + i) * target_pixels + {at};
        int x = 0;
        if ({step} == 1) {{
          // What is written beyond a line's end is the next one's, which comes later; if there is one.
          const bool follows = length_x == target_x && {"true" if forward else "stride_y == 1"};
          const int room = follows ? (length_y - y) * target_x : length_x;
          for (; x < length_x && x + {math.width} <= room; x += {math.width}) {{ {vector} }}
          if (x < length_x && length_x >= {math.width}) {{ x = length_x - {math.width}; {vector} continue; }}
        }}
        for (; x < length_x; ++x) {{ {single} }}
      }}"""


def box_parameters(storage: str, bias: bool) -> tuple[Parameter, ...]:
    """Target, source, filters, [bias,] sizes of all, of boxes and of the geometry, in groups."""
    tensors = f"{storage}* T; const {storage}* S, F{', E' if bias else ''}"
    boxes = ", ".join(f"box_{a}" for a in AXES) + ", " + ", ".join(f"boxes_{a}" for a in AXES)
    return parameters(
        f"{tensors}; i32 batch, M, channels, block_rows, held_rows, slice, joined, box_i, {boxes}; {GEOMETRY}"
    )


def box_place(direction: Direction) -> str:
    """What a kernel of images from images begins with: the box's place, its sizes and those of its copy."""
    if direction == "forward":
        setup = "const int group = GROUP_ID(2), groups = NUM_GROUPS(2);" + _per_axis(_FORWARD_AXES)
    else:
        setup = _PHASE + _per_axis(_BACKWARD_AXES)
    return f"""
{setup}
int box_index = GROUP_ID(0);
{_per_axis(_REACH)}
{_per_axis(_PLACE)}
if (length_x <= 0 || length_y <= 0 || length_z <= 0) return;  // this phase has fewer pixels than others
const int image0 = box_index * box_i, length_i = min(box_i, batch - image0);
{_ROWS}
const int m0 = GROUP_ID(1) * block_rows, rows = min(block_rows, M - m0), taps = taps_z * taps_y * taps_x;
const long target_pixels = (long)target_z * target_y * target_x;
const long source_end = (long)batch * groups * channels * source_z * source_y * source_x;"""


def box_head(direction: Direction, width: int, vectors: int) -> str:
    """`box_place`, and where a column's vector lies in the copy, relative to its first channel and tap, for whole tiles
    of so many vectors."""
    return f"""{box_place(direction)}

const int line_vectors = (length_x + {width - 1}) / {width};
const int line_pitch = joined ? pitch : line_vectors * {width};
const int run_vectors = joined ? ((length_y - 1) * pitch + length_x + {width - 1}) / {width} : length_y * line_vectors;
const int columns = length_i * length_z * run_vectors;
const int sum_pitch = (columns + {vectors - 1}) / {vectors} * {vectors};
int start[{_MOST_COLUMNS // width + vectors}];
for (int run = 0, n = 0; run < length_i * length_z; ++run) {{
  const int at = run / length_z * image_size + run % length_z * plane_size;
  for (int v = 0; v < run_vectors; ++v, ++n)
    start[n] = at + (joined ? v * {width} : v / line_vectors * pitch + v % line_vectors * {width});
}}
for (int n = columns; n < sum_pitch; ++n) start[n] = start[columns - 1];"""


@cache
def box_kernel(
    storage: str, direction: Direction, bias: bool, blocks: Blocks, half: bool, simd_width: int = 16
) -> Kernel:
    """Images from images: group 0 is the box, group 1 the channels, group 2 the group and phase. Launch with
    `box_launch`."""
    math = arithmetic(storage, simd_width)
    tile = _tile(math, blocks, half)
    forward = direction == "forward"
    unit: Unit
    width, vectors, a_pitch = math.width, tile.vectors, tile.depth + A_TILE_PADDING
    if forward:
        filters = f"""
{math.const_pointer} A = F + ((long)group * M + m0) * channels * taps;
const long a_rs = channels * taps, a_cs = 1;"""
        tap_index, unit = "", "k"
        slice_begin, fill_tile = "const int kb = c0 * taps;", pack_a(math, tile, "k")
    else:
        filters = f"{math.const_pointer} A = F + ((long)group * channels * M + m0) * taps;\nint tap_at[{tile.depth}];"
        tap_index, unit = "tap_at[k] = (c * M * taps) + (kz * taps_y + ky) * taps_x + kx;", "outer"
        slice_begin = f"{math.const_pointer} a_slice = A + (long)c0 * M * taps;"
        places = " ".join(f"const int o{i} = min(m + {i}, rows - 1) * taps;" for i in range(tile.rows))
        loads = " ".join(f"a_tile[k * {tile.rows} + {i}] = {math.load('a', f'o{i}')};" for i in range(tile.rows))
        fill_tile = f"""
{places}
for (int k = 0; k < kc; ++k) {{
  {math.const_pointer} a = a_slice + tap_at[k];
  {loads}
}}"""
    body = f"""
{box_head(direction, width, vectors)}
{filters}

// Where a tap lies in the copy, relative to a column's vector.
int offset[{tile.depth}];
for (int c = 0, k = 0; c < min(slice, channels); ++c)
  for (int kz = 0; kz < taps_z; ++kz)
    for (int ky = 0; ky < taps_y; ++ky)
      for (int kx = 0; kx < taps_x; ++kx) {{
        if (!(MEETS_z(kz) && MEETS_y(ky) && MEETS_x(kx))) continue;
        offset[k] = {OFFSET};
        {tap_index}
        ++k;
      }}

{math.scalar} copy[{copy_elements(math)}] ALIGN(64);
{math.vector} all_sums[{sum_elements(math) // width}];
{math.scalar} a_tiles[{tile.max_rows * a_pitch}] ALIGN(64);
for (int c0 = 0; c0 == 0 || c0 < channels; c0 += slice) {{
  const int count = min(slice, channels - c0), kc = count * meeting_z * meeting_y * meeting_x;
  const bool last = c0 + slice >= channels;
  {{ {fill_copy(math, tile)} }}
  {slice_begin}
  for (int held_m = 0; held_m < rows; held_m += held_rows) {{
    const int held_end = min(rows, held_m + held_rows);
    {math.vector}* const held_sums = all_sums + (slice < channels ? held_m * sum_pitch : 0);
    for (int m = held_m; m < held_end; m += {tile.rows}) {{
      {math.scalar}* const a_tile = a_tiles + (m - held_m) * {a_pitch};
      {fill_tile}
    }}
    // What a vector's column needs of the copy stays in the first-level cache for all rows.
    for (int n = 0; n < columns; n += {vectors})
      for (int m = held_m; m < held_end; m += {tile.rows}) {{
        const {math.scalar}* const a_tile = a_tiles + (m - held_m) * {a_pitch};
        {math.vector}* const sums = held_sums + (m - held_m) * sum_pitch;
        {_multiply(math, tile, unit)}
      }}
    if (!last) continue;
    for (int m = held_m; m < held_end; m += {tile.rows}) {{
      const {math.vector}* const sums = held_sums + (m - held_m) * sum_pitch;
      {finish_lines(math, direction, bias, tile)}
    }}
  }}
}}"""
    params = box_parameters(storage, bias)
    return Kernel(f"convolution_boxes_{direction}", params, plain_loops(body), local=(1, 1, 1))


# --- The weight's gradient.

# Rows of a work-item's block at most.
_MOST_ROWS = 1024


def _weight_tile(math: Arithmetic, blocks: Blocks, narrow: bool) -> Tile:
    """Rows are channels' taps, columns the result's channels; `narrow` is for at most a vector of them."""
    tile = block_tile(math, blocks)
    return replace(tile, vectors=1) if narrow else tile


def _multiply_lines(math: Arithmetic, tile: Tile) -> str:
    """Adds the product of the rows at `m` and the panel at `n` over the box's pixels to their sums. A row's elements
    are read where they lie in the copy, line by line: there is nothing between lines that could be multiplied by zero,
    since it may be infinite."""
    block = Registers(math, tile.rows, tile.vectors)
    pointers = " ".join(
        f"const {math.scalar}* const p{i} = copy + offset[min(m + {i}, rows - 1)];" for i in range(tile.rows)
    )
    lines = " ".join(f"const {math.scalar}* const q{i} = p{i} + line;" for i in range(tile.rows))
    return f"""
{{
  {math.vector}* const sums = all_sums + (m * sum_vectors + n / {math.width} * {tile.rows});
  const {math.vector}* b = panels + n / {math.width} * {tile.depth};
  {pointers}
  {block.begin()}
  for (int plane = 0; plane < length_i * length_z; ++plane) {{
    int line = plane / length_z * image_size + plane % length_z * plane_size;
    for (int y = 0; y < length_y; ++y, line += pitch) {{
      {lines}
      for (int x = 0; x < length_x; ++x, b += {tile.vectors}) {{
        {block.add("b[{}]".format, "q{}[x]".format)}
      }}
    }}
  }}
  // Boxes are summed on their own: so rounding errors grow with the size of a box and the number of boxes.
  {block.end(lambda i, v: f"sums[{i * tile.vectors + v}]", "box == first_box")}
}}"""


def _store_weights(math: Arithmetic, target: Arithmetic, tile: Tile) -> str:
    """Stores the sums of the block: rows are neighbours in memory, so squares of them are transposed."""
    width, panel = math.width, math.width * tile.vectors
    row = f"({{0}}) % {tile.rows}"
    place = f"(({{0}}) - {row}) * sum_vectors + n / {width} * {tile.rows} + {row} * {tile.vectors} + v"
    loads = "\n".join(f"{math.vector} r{i} = all_sums[{place.format(f'm + {i}')}];" for i in range(width))
    stores = "\n".join(target.store_vector("t", f"m + {j} * next", f"r{j}") + ";" for j in range(width))
    one = target.store("t", "m + j * next", f"((const {math.scalar}*)&all_sums[{place.format('m')}])[j]")
    return f"""
const long next = (long)channels * taps;
for (int n = 0; n < columns; n += {panel})
  for (int v = 0; v < {tile.vectors} && n + v * {width} < columns; ++v) {{
    {target.pointer} t = T + ((long)(part * groups + group) * N + n0 + n + v * {width}) * next + c0 * taps;
    const int there = min({width}, columns - n - v * {width});
    int m = 0;
    for (; there == {width} && m + {width} <= rows; m += {width}) {{
      {loads}
      {transpose_registers(width, math.vector)}
      {stores}
    }}
    for (; m < rows; ++m)
      for (int j = 0; j < there; ++j) {one};
  }}"""


@cache
def box_weight_kernel(storage: str, result: str, narrow: bool, blocks: Blocks, simd_width: int = 16) -> Kernel:
    """The weight's gradient over a part of the boxes: group 0 is the result's channels, group 1 the image's, group 2
    the part and group. Parts are stored one after the other as elements of type `result`. Launch with
    `weight_boxes`."""
    math = arithmetic(storage, simd_width)
    tile = _weight_tile(math, blocks, narrow)
    panel = math.width * tile.vectors
    pack = pack_transposed(math, tile, "result", "result_pixels", "k", "k + stretch")
    body = f"""
const int part = GROUP_ID(2) / groups, group = GROUP_ID(2) % groups;
{_per_axis(_FORWARD_AXES)}
{_per_axis(_REACH)}
const int n0 = GROUP_ID(0) * block_columns, columns = min(block_columns, N - n0);
const int c0 = GROUP_ID(1) * slice, count = min(slice, channels - c0);
const int taps = taps_z * taps_y * taps_x, rows = count * taps, joined = 0;
const long result_pixels = (long)target_z * target_y * target_x;
const long source_end = (long)batch * groups * channels * source_z * source_y * source_x;
const int sum_vectors = (columns + {panel - 1}) / {panel} * {tile.vectors};
const int first_box = part * part_boxes, end_box = min(first_box + part_boxes, boxes);
int offset[{_MOST_ROWS}];
{math.scalar} copy[{copy_elements(math)}] ALIGN(64);
{math.vector} panels[{tile.depth * tile.max_columns // math.width}];
{math.vector} all_sums[{sum_elements(math) // math.width}];
for (int box = first_box; box < end_box; ++box) {{
  int box_index = box;
  {_per_axis(_PLACE)}
  const int image0 = box_index * box_i, length_i = min(box_i, batch - image0);
  {_ROWS}
  for (int c = 0, k = 0; c < count; ++c)
    for (int kz = 0; kz < taps_z; ++kz)
      for (int ky = 0; ky < taps_y; ++ky)
        for (int kx = 0; kx < taps_x; ++kx, ++k) offset[k] = {OFFSET};
  {{ {fill_copy(math, tile)} }}
  // The result's pixels, in stretches that lie together.
  const int stretch = length_x == target_x ? length_y * length_x : length_x;
  for (int k = 0; k < length_i * length_z * length_y * length_x; k += stretch) {{
    const int line = k / length_x, y = at_y + line % length_y, z = at_z + line / length_y % length_z;
    const long image = image0 + line / (length_y * length_z);
    {math.const_pointer} result = R + ((image * groups + group) * N + n0) * result_pixels +
                                  ((long)z * target_y + y) * target_x + at_x - k;
    {pack}
  }}
  for (int m = 0; m < rows; m += {tile.rows})
    for (int n = 0; n < columns; n += {panel}) {_multiply_lines(math, tile)}
}}
{_store_weights(math, arithmetic(result, simd_width), tile)}"""
    extents = ", ".join(f"box_{a}" for a in AXES) + ", " + ", ".join(f"boxes_{a}" for a in AXES)
    params = parameters(
        f"{result}* T; const {storage}* S, R; i32 batch, groups, N, channels, slice, block_columns, boxes, part_boxes, "
        f"box_i, {extents}; {GEOMETRY}"
    )
    helpers = shuffle_helpers(math.width, math.vector)
    return Kernel("convolution_boxes_weight", params, plain_loops(body), helpers=helpers, local=(1, 1, 1))


# --- The launch.


@dataclass(frozen=True)
class _Axis:
    """What one axis asks of the copy in one phase: how many taps there are, their least and largest shift, and the
    parts."""

    pixels: int
    source: int
    low: int
    high: int
    parts: int
    taps: int

    @property
    def reach(self) -> int:
        return self.high - self.low

    @property
    def pitch(self) -> int:
        """Of a row that shares its zeros; none if it would have nothing else."""
        kept = min(self.pixels + self.high, self.source) - max(self.low, 0)
        return kept + max(0, -self.low, self.pixels + self.high - self.source) if kept > 0 else 0


def axis_of(g: Geometry, axis: int, forward: bool) -> list[_Axis]:
    """For each phase that has pixels."""
    taps, stride, padding, dilation = g.taps[axis], g.stride[axis], g.padding[axis], g.dilation[axis]
    image, result = g.image[axis], g.result[axis]
    if forward:
        low, high = -padding // stride, ((taps - 1) * dilation - padding) // stride
        return [_Axis(result, ceil_div(image, stride), low, high, min(stride, taps), taps)]
    found = []
    for first in range(min(stride, image)):
        places = [first + padding - k * dilation for k in range(taps)]
        shifts = [place // stride for place in places if place % stride == 0]
        low, high = min(shifts, default=0), max(shifts, default=0)
        found.append(_Axis(ceil_div(image - first, stride), result, low, high, 1, len(shifts)))
    return found


@dataclass(frozen=True)
class Box:
    """Extents of a box in images, planes, rows and columns."""

    i: int
    z: int
    y: int
    x: int


@dataclass(frozen=True)
class BoxPlan:
    """A launch of `box_kernel` but for its box.

    Attributes:
        full: the extents of the target.
        m, channels: of the target and of the source, in a group.
        taps: the most that meet a pixel.
        slice: channels that are copied at once.
        parts: groups and phases.
    """

    math: Arithmetic
    half: bool
    tile: Tile
    axes: tuple[list[_Axis], list[_Axis], list[_Axis]]
    full: Box
    m: int
    channels: int
    taps: int
    slice: int
    parts: int

    def joined(self, box: Box) -> bool:
        """Whether rows of a plane are one run of columns."""
        if box.y == 1 or box.x < max(a.pixels for a in self.axes[2]) or not all(a.pitch for a in self.axes[2]):
            return False
        return self._run(box, True) < self._run(box, False)

    def _run(self, box: Box, joined: bool) -> int:
        width = self.math.width
        if joined:
            return ceil_div((box.y - 1) * max(a.pitch for a in self.axes[2]) + box.x, width)
        return box.y * ceil_div(box.x, width)

    def held(self, rows: int) -> int:
        """Rows whose sums are held at once: those of a single slice need not wait for others."""
        return rows if self.slice < self.channels else self.tile.rows

    def columns(self, box: Box) -> int:
        """Vectors of columns of the box."""
        return box.i * box.z * self._run(box, self.joined(box))

    def fits(self, box: Box, rows: int) -> bool:
        width = self.math.width
        vectors = ceil_div(self.columns(box), self.tile.vectors) * self.tile.vectors
        reach = [max(a.reach for a in axis) for axis in self.axes]
        pitch = box.x + reach[2]
        parts = prod(axis[0].parts for axis in self.axes)
        channel = parts * box.i * (box.z + reach[0]) * (box.y + reach[1]) * pitch
        copy = self.slice * (ceil_div(channel, 16) + 1) * 16
        return (
            vectors * width <= _MOST_COLUMNS
            and vectors * width * self.held(rows) <= sum_elements(self.math)
            and copy + pitch + width * (self.tile.vectors + 1) <= copy_elements(self.math)
        )


def _shrunk(box: Box, width: int) -> Box | None:
    """About half of the box."""
    for name in ("i", "z", "y"):
        if (extent := getattr(box, name)) > 1:
            return replace(box, **{name: ceil_div(extent, 2)})
    if box.x > width:
        return replace(box, x=ceil_div(ceil_div(box.x, 2), width) * width)
    return None


def _count(full: Box, box: Box) -> int:
    return prod(ceil_div(getattr(full, a), getattr(box, a)) for a in ("i", *AXES))


def largest_box(plan: BoxPlan, rows: int) -> Box | None:
    """The largest box that fits."""
    width = plan.math.width * plan.tile.vectors
    box: Box | None = plan.full
    while box is not None and not plan.fits(box, rows):
        box = _shrunk(box, width)
    if box is None:
        return None
    for name in ("y", "z", "i"):  # halving may have left room
        part = even_part(getattr(plan.full, name), _grown(plan, box, name, rows))
        box = replace(box, **{name: part})
    return box


def _grown(plan: BoxPlan, box: Box, name: str, rows: int) -> int:
    """What an extent of a box may become, so that the box still fits."""

    def is_too_large(part: int) -> bool:
        return not plan.fits(replace(box, **{name: part}), rows)

    extent, part = getattr(plan.full, name), getattr(box, name)
    if part == extent or is_too_large(part + 1):
        return int(part)
    return int(part) + bisect(range(part + 1, extent + 1), False, key=is_too_large)


def shared_box(plan: BoxPlan, box: Box, rows: int, on: Target) -> tuple[Box, int]:
    """The box and its rows, so small that every core has some."""
    full, width = plan.full, plan.math.width * plan.tile.vectors
    work = plan.m * full.i * full.z * full.y * full.x * plan.channels * plan.taps * plan.parts
    wanted = 1 if on.units == 1 else min(3 * on.units, 1 + work // on.tuning.boxes.work)
    while _count(full, box) * ceil_div(plan.m, rows) * plan.parts < wanted:
        smaller = _shrunk(box, width)
        if smaller is not None and (plan.columns(box) * plan.math.width >= rows or rows <= 2 * plan.tile.rows):
            box = smaller
        elif rows > plan.tile.rows:
            rows = ceil_div(ceil_div(rows, 2), plan.tile.rows) * plan.tile.rows
        else:
            break
    return box, rows


def products(plan: BoxPlan, box: Box) -> int:
    """What is computed, with what is thrown away."""
    tile = plan.tile
    columns = ceil_div(plan.columns(box), tile.vectors) * tile.vectors * _count(plan.full, box)
    return ceil_div(plan.m, tile.rows) * tile.rows * columns


def flattened(g: Geometry) -> Geometry:
    """A filter of one tap sees no rows: a plane is one line."""
    if prod(g.taps) == 1 and g.stride == (1, 1, 1) and g.padding == (0, 0, 0):
        return replace(g, image=(1, 1, prod(g.image)), result=(1, 1, prod(g.result)))
    return g


def picks(g: Geometry) -> bool:
    """Whether taps are few and their pixels far apart: there is nothing that they share."""
    return g.stride[2] > 2 and g.stride[2] >= g.taps[2]


def _plans(math: Arithmetic, g: Geometry, forward: bool, sizes: Tuning) -> Iterator[BoxPlan]:
    """With either tile, as far as the filter's taps fit into a slice."""
    axes = (axis_of(g, 0, forward), axis_of(g, 1, forward), axis_of(g, 2, forward))
    if not all(axes):
        return
    channels, m = (g.image_channels, g.result_channels) if forward else (g.result_channels, g.image_channels)
    channels, m = channels // g.groups, m // g.groups
    full = Box(g.batch, *(max(a.pixels for a in axis) for axis in axes))
    taps = max(1, prod(max(a.taps for a in axis) for axis in axes))
    parts = g.groups * (1 if forward else prod(g.stride))
    for half in (False, True) if sizes.blocks.rows > 1 and sizes.blocks.vectors <= 2 else (False,):
        tile = _tile(math, sizes.blocks, half)
        if taps <= tile.depth:
            slices = ceil_div(channels, min(sizes.boxes.channels, tile.depth // taps))
            yield BoxPlan(math, half, tile, axes, full, m, channels, taps, ceil_div(channels, slices), parts)


@dataclass(frozen=True)
class _Choice:
    """The plan of the least cost: cycles in which a vector is multiplied, of a core."""

    plan: BoxPlan
    box: Box
    rows: int
    cost: float


def _choose(storage: str, g: Geometry, forward: bool, on: Target) -> _Choice | None:
    """Nothing if the filter is too large for a box, or if a box would be nothing gained."""
    if g.batch == 0 or (forward and picks(g)):
        return None
    best: _Choice | None = None
    for plan in _plans(arithmetic(storage, on.simd_width), g, forward, on.tuning):
        rows = min(plan.tile.max_rows, ceil_div(plan.m, plan.tile.rows) * plan.tile.rows)
        box = largest_box(plan, rows)
        if box is not None:
            box, rows = shared_box(plan, box, rows, on)
            # Another kernel is to be compiled for the second, which it must be worth.
            cost = products(plan, box) * plan.channels * plan.taps * plan.parts / on.units * (1.05 if plan.half else 1)
            if best is None or cost < best.cost:
                best = _Choice(plan, box, rows, cost)
    return best


def box_cost(storage: str, g: Geometry, direction: Direction, on: Target) -> float | None:
    """What `box_launch` costs but for its copies, in cycles of a core in which a vector is multiplied."""
    choice = _choose(storage, flattened(g), direction == "forward", on)
    return None if choice is None else choice.cost


def box_launch(
    storage: str,
    g: Geometry,
    direction: Direction,
    target: object,
    source: object,
    weight: object,
    bias: object | None,
    on: Target,
) -> Launch | None:
    """Images made of images, as `direct` has them; nothing if the filter is too large for a box, or if a
    box would be nothing gained."""
    g = flattened(g)
    forward = direction == "forward"
    choice = _choose(storage, g, forward, on)
    if choice is None:
        return None
    half = choice.plan.half
    kernel = box_kernel(storage, direction, bias is not None, on.tuning.blocks, half, on.simd_width)
    return launch_boxes(kernel, choice.plan, choice.box, choice.rows, g, forward, target, source, weight, bias)


def launch_boxes(
    kernel: Kernel,
    plan: BoxPlan,
    box: Box,
    rows: int,
    g: Geometry,
    forward: bool,
    target: object,
    source: object,
    weight: object,
    bias: object | None,
) -> Launch:
    """The launch of a kernel of `box_parameters` for boxes of this size and so many rows."""
    counts = {a: ceil_div(getattr(plan.full, a), getattr(box, a)) for a in ("i", *AXES)}
    arguments = {"T": target, "S": source, "F": weight, **({"E": bias} if bias is not None else {})}
    channels = (g.image_channels if forward else g.result_channels) // g.groups
    arguments |= {"batch": g.batch, "M": plan.m, "channels": channels, "block_rows": rows}
    arguments |= {"held_rows": plan.held(rows), "slice": plan.slice, "joined": int(plan.joined(box)), "box_i": box.i}
    arguments |= {f"box_{a}": getattr(box, a) for a in AXES} | {f"boxes_{a}": counts[a] for a in AXES}
    arguments |= geometry_arguments(g, *((g.image, g.result) if forward else (g.result, g.image)))
    return Launch(kernel, (prod(counts.values()), ceil_div(plan.m, rows), plan.parts), arguments)


@dataclass(frozen=True)
class WeightBoxes:
    """How `box_weight_kernel` is launched.

    Attributes:
        parts: copies of the weight that it gives.
    """

    g: Geometry
    narrow: bool
    box: Box
    slice: int
    columns: int
    boxes: int
    parts: int

    def launch(self, storage: str, result: str, target: object, image: object, grad: object, on: Target) -> Launch:
        """Puts the parts into `target`, as `result`."""
        g = self.g
        channels, n = g.image_channels // g.groups, g.result_channels // g.groups
        full = Box(g.batch, *g.result)
        arguments = {"T": target, "S": image, "R": grad, "batch": g.batch, "groups": g.groups, "N": n}
        arguments |= {"channels": channels, "slice": self.slice, "block_columns": self.columns}
        arguments |= {"boxes": self.boxes, "part_boxes": ceil_div(self.boxes, self.parts), "box_i": self.box.i}
        arguments |= {f"box_{a}": getattr(self.box, a) for a in AXES}
        arguments |= {f"boxes_{a}": ceil_div(getattr(full, a), getattr(self.box, a)) for a in AXES}
        return Launch(
            box_weight_kernel(storage, result, self.narrow, on.tuning.blocks, on.simd_width),
            (ceil_div(n, self.columns), ceil_div(channels, self.slice), g.groups * self.parts),
            arguments | geometry_arguments(g, g.image, g.result),
        )


def weight_boxes(storage: str, g: Geometry, on: Target) -> WeightBoxes | None:
    """Nothing where `box_launch` has nothing."""
    g = flattened(g)
    if g.batch == 0 or not prod(g.result) or picks(g):
        return None
    math = arithmetic(storage, on.simd_width)
    channels, n, taps = g.image_channels // g.groups, g.result_channels // g.groups, prod(g.taps)
    narrow = n <= math.width
    tile = _weight_tile(math, on.tuning.blocks, narrow)
    columns = min(tile.max_columns // 2, ceil_div(n, math.width * tile.vectors) * math.width * tile.vectors)
    box, left = {}, tile.depth
    for name, extent in zip(("x", "y", "z", "i"), (*reversed(g.result), g.batch), strict=True):
        box[name] = even_part(extent, max(1, min(extent, left)))
        left //= box[name]
    chosen = Box(**box)
    axes = tuple(axis_of(g, axis, True)[0] for axis in range(3))
    copied = (
        prod(a.parts for a in axes)
        * chosen.i
        * prod(getattr(chosen, name) + a.reach for name, a in zip(AXES, axes, strict=True))
    )
    room = copy_elements(math) - chosen.x - axes[2].reach - math.width * (tile.vectors + 1)
    most = min(
        room // (ceil_div(copied, 16) + 1) // 16,
        (sum_elements(math) // columns - tile.rows) // taps,
        _MOST_ROWS // taps,
    )
    if most < 1:
        return None
    slice_ = ceil_div(channels, ceil_div(channels, min(most, channels)))
    boxes = _count(Box(g.batch, *g.result), chosen)
    blocks = ceil_div(n, columns) * ceil_div(channels, slice_) * g.groups
    # Some for every core; but a part costs as much as its copy of the weight, and a slice as much as preparing the
    # result for it.
    parts = 1 if on.units == 1 else max(1, min(ceil_div(3 * on.units, blocks), boxes // 8))
    parts = ceil_div(boxes, ceil_div(boxes, parts))
    if blocks * parts < on.units and g.batch * prod(g.result) * n * channels * taps > on.tuning.boxes.work:
        slices = ceil_div(channels, slice_) * ceil_div(on.units, blocks * parts)
        slice_ = ceil_div(channels, min(slices, channels))
    return WeightBoxes(g, narrow, chosen, slice_, columns, boxes, parts)
