"""Convolution: forward, with respect to the input (which is also transposed convolution), with respect to the weight.

Everything is three-dimensional here; fewer dimensions are leading ones of extent 1. Tensors are contiguous, channels
before pixels.

The CPU form is the blocked matrix product of `kernels.matmul`, where one operand, the patches of the image, exists only
a slice at a time: a work-item copies the pixels that a slice needs, row by row of the image, into its private memory.
Most convolutions copy the image without its repetitions (`boxes`); large filters, and filters of few taps with
a large stride, have this module's own.

* `block_kernel` computes images from images: rows are channels of the result, columns its pixels (of all images in the
  batch, one after the other), and k runs over (channel of the source, tap of the filter). Forward, pixel j of the
  result reads pixel j * stride - padding + tap * dilation of the source. Backward with a stride, only some taps meet a
  given pixel, and which ones depends on the pixel modulo the stride, its *phase*; the pixels of a phase are again like
  those of an ordinary convolution with stride one. So each phase is a product of its own, without a multiplication by
  zero.
* `weight_kernel` computes the weight's gradient: rows are (channel, tap), columns the channels of the result, and k
  runs over all pixels.
* `direct_kernel` and `direct_weight_kernel` serve groups of few channels, which are bound by memory; those of one
  channel and a stride of one have kernels of their own (`depthwise`).

The GPU form, `tile_kernel` and `weight_tile_kernel`, is the same product by elements; `element_kernel` is for few
channels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from math import prod

from torchgraft.codegen import ceil_div
from torchgraft.codegen.arithmetic import Arithmetic, arithmetic
from torchgraft.codegen.kernel import Kernel, Launch, Parameter, parameters
from torchgraft.codegen.tuning import Blocks, Target, Tiles
from torchgraft.codegen.types import BY_NAME
from torchgraft.codegen.vectors import shuffle_helpers
from torchgraft.kernels.convolution.boxes import WeightBoxes
from torchgraft.kernels.convolution.depthwise import plane_weight_launch
from torchgraft.kernels.convolution.geometry import (
    AXES,
    GEOMETRY,
    Direction,
    Geometry,
    channels_of,
    geometry_arguments,
    sizes_of,
)
from torchgraft.kernels.matmul.block import (
    A_TILE_PADDING,
    block_loop,
    block_shape,
    block_tile,
    pack_a,
    pack_transposed,
    row_vectors,
)
from torchgraft.kernels.matmul.tile import Fetch, choose_tiles, tile_groups, tile_local, tile_loop
from torchgraft.kernels.products import plain_loops

_FIRST_PIXELS = """
// Of this phase: the first pixel on each axis, and how many there are.
const int phases = stride_z * stride_y * stride_x;
const int phase = GROUP_ID(2) % phases, group = GROUP_ID(2) / phases;
const int first_x = phase % stride_x, first_y = phase / stride_x % stride_y, first_z = phase / (stride_x * stride_y);
const int pixels_x = (target_x - first_x + stride_x - 1) / stride_x;
const int pixels_y = (target_y - first_y + stride_y - 1) / stride_y;
const int pixels_z = (target_z - first_z + stride_z - 1) / stride_z;
"""


def _meets(axis: str) -> str:
    """Whether a tap meets this phase's pixels, going backward."""
    return f"(first_{axis} + padding_{axis} - k{axis} * dilation_{axis}) % stride_{axis} == 0"


def _copy_row(math: Arithmetic, step: str) -> str:
    """Statements that put elements `from .. to` of a row of patches into `row`: pixel i lies at S[at + i * step].

    Whole vectors are copied while that stays inside the source; what they write too much is overwritten by the next
    row, or lies past the row's end.
    """
    one = f"for (; i < to; ++i) row[i] = {math.load('S', f'at + (long)i * {step}')};"
    whole = f"*({math.vector}u*)(row + i) = {math.load_vector('S', 'at + i')};"
    single = f"for (; i < to && at + i + {math.width} <= source_end; i += {math.width}) {whole}"
    first, second = math.load_vector("S", "at + 2 * i"), math.load_vector("S", f"at + 2 * i + {math.width}")
    pair = f"""for (; i < to && at + 2 * i + {2 * math.width} <= source_end; i += {math.width})
      *({math.vector}u*)(row + i) = EVEN_{math.vector}({first}, {second});"""
    return f"""
{{
  int i = from;
  if ({step} == 1) {{ {single} }}
  else if ({step} == 2) {{ {pair} }}
  {one}
}}"""


@cache
def block_kernel(storage: str, direction: Direction, bias: bool, blocks: Blocks, simd_width: int = 16) -> Kernel:
    """The CPU form of images from images."""
    math = arithmetic(storage, simd_width)
    tile = block_tile(math, blocks)
    pitch = row_vectors(math, tile) * math.width
    forward = direction == "forward"
    if forward:
        setup = """
const int group = GROUP_ID(2);
const int pixels_x = target_x, pixels_y = target_y, pixels_z = target_z;
const int K = channels * taps_z * taps_y * taps_x;
#define STEP(axis) stride_##axis
"""
        advance = """
if (++kx == taps_x) { kx = 0; if (++ky == taps_y) { ky = 0; if (++kz == taps_z) { kz = 0; ++channel; } } }"""
        start = ""
        offsets = "const int " + ", ".join(f"d{a} = k{a} * dilation_{a} - padding_{a}" for a in AXES) + ";"
        target = "((long)jz * target_y + jy) * target_x + jx"
        fill_tile, fill_tiles = pack_a(math, tile, "k"), ""
        filters = "F + ((long)group * M + m0) * K"
        tap_index = ""
    else:
        counts = "\n".join(
            f"int meeting_{a} = 0; for (int k{a} = 0; k{a} < taps_{a}; ++k{a}) meeting_{a} += {_meets(a)};"
            for a in AXES
        )
        setup = f"""
{_FIRST_PIXELS}
{counts}
const int K = channels * meeting_z * meeting_y * meeting_x;
const int taps = taps_z * taps_y * taps_x;
#define STEP(axis) 1
"""
        advance = f"""
do {{
  if (++kx == taps_x) {{ kx = 0; if (++ky == taps_y) {{ ky = 0; if (++kz == taps_z) {{ kz = 0; ++channel; }} }} }}
}} while (channel < channels && !({_meets("z")} && {_meets("y")} && {_meets("x")}));"""
        start = f"kx = -1; {advance}"
        offsets = "const int " + ", ".join(
            f"d{a} = (first_{a} + padding_{a} - k{a} * dilation_{a}) / stride_{a}" for a in AXES
        )
        offsets += ";"
        place = {a: f"(first_{a} + j{a} * stride_{a})" for a in AXES}
        target = f"((long){place['z']} * target_y + {place['y']}) * target_x + {place['x']}"
        # Rows of the filter's transpose: neighbouring rows are `taps` apart, and the taps of a slice anywhere. Copied
        # for all tiles at once, so that memory is read in long stretches.
        fill_tile = ""
        places = " ".join(f"const long o{i} = min(m + {i}, rows - 1) * taps;" for i in range(tile.rows))
        loads = " ".join(f"to[{i}] = {math.load('a', f'o{i}')};" for i in range(tile.rows))
        fill_tiles = f"""
for (int k = 0; k < kc; ++k) {{
  {math.const_pointer} a = A + tap_at[k];
  for (int m = 0; m < rows; m += {tile.rows}) {{
    {math.scalar}* const to = a_tiles + m * tile_pitch + k * {tile.rows};
    {places}
    {loads}
  }}
}}"""
        filters = "F + ((long)group * channels * M + m0) * taps"
        tap_index = "tap_at[k] = (long)channel * M * taps + (kz * taps_y + ky) * taps_x + kx;"

    fill_panels = f"""
// What the slice's steps read: tap_at[k] of the filter; patch_at[k] of the source, relative to a pixel's place; on_z,
// on_y, which rows of the image relative to the pixel's; and the pixels of a row, from low to high, for which the
// column exists.
for (int k = 0; k < kc; ++k) {{
  {offsets}
  {tap_index}
  patch_at[k] = (((long)channel * source_z + dz) * source_y + dy) * source_x + dx;
  on_z[k] = dz;
  on_y[k] = dy;
  low[k] = dx >= 0 ? 0 : (-dx + STEP(x) - 1) / STEP(x);
  high[k] = source_x > dx ? (source_x - dx - 1) / STEP(x) + 1 : 0;
  {advance}
}}
for (int k = 0; k < kc; ++k) {{
  {math.scalar}* const panel_row = ({math.scalar}*)panels + k * {pitch};
  for (int run = 0; run < runs; ++run) {{
    {math.scalar}* const row = panel_row + run_column[run];
    const int length = run_column[run + 1] - run_column[run];
    const int z = run_z[run] + on_z[k], y = run_y[run] + on_y[k];
    const bool inside = (uint)z < (uint)source_z && (uint)y < (uint)source_y;
    const int from = inside ? clamp(low[k] - run_x[run], 0, length) : length;
    const int to = clamp(high[k] - run_x[run], from, length);
    const long at = run_at[run] + patch_at[k];
    for (int i = 0; i < from; ++i) row[i] = 0;
    {_copy_row(math, "STEP(x)")}
    for (int i = to; i < length; ++i) row[i] = 0;
  }}
}}
{fill_tiles}"""
    panel = math.width * tile.vectors
    bias_value = math.load("E", "group * M + m0 + m + i") if bias else ""
    bias_vector = f"r += {bias_value};" if bias else ""
    stores = " ".join(
        f"{{ {math.vector} r = from[{v}]; {bias_vector} {math.store_vector('t', str(v * math.width), 'r')}; }}"
        for v in range(tile.vectors)
    )
    finish = f"""
for (int i = 0; i < min({tile.rows}, rows - m); ++i) {{
  {math.pointer} const target_row = T + ((long)group * M + m0 + m + i) * target_pixels;
  const {math.vector}* from = sums + i * {tile.vectors};
  if (n + {panel} <= columns && column_at[n + {panel - 1}] == column_at[n] + {panel - 1}) {{
    {math.pointer} const t = target_row + column_at[n];
    {stores}
    continue;
  }}
  for (int j = 0; j < min({panel}, columns - n); ++j) {{
    {math.scalar} r = (({math.scalar}*)from)[j];
    {bias_vector}
    {math.store("target_row", "column_at[n + j]", "r")};
  }}
}}"""
    depth, widest = tile.depth, tile.max_columns
    body = f"""
{setup}
const int n0 = GROUP_ID(0) * block_columns, m0 = GROUP_ID(1) * block_rows;
const int image_pixels = pixels_z * pixels_y * pixels_x;
const int columns = min((long)block_columns, (long)batch * image_pixels - n0), rows = min(block_rows, M - m0);
if (columns <= 0) return;
const long source_pixels = (long)source_z * source_y * source_x, target_pixels = (long)target_z * target_y * target_x;
const int groups = NUM_GROUPS(2) / {"1" if forward else "phases"};
const long source_end = source_pixels * channels * groups * batch;
{math.const_pointer} A = {filters};
{"const long a_rs = K, a_cs = 1;" if forward else ""}

// The block's columns: runs of pixels that are neighbours on a row of one image, and each column's place in the target.
long column_at[{widest}], run_at[{widest}];
int run_column[{widest} + 1], run_z[{widest}], run_y[{widest}], run_x[{widest}];
int runs = 0;
{{
  int jx = n0 % pixels_x, jy = n0 / pixels_x % pixels_y, jz = n0 / (pixels_x * pixels_y) % pixels_z;
  int image = n0 / image_pixels;
  for (int n = 0; n < columns;) {{
    const int length = min(pixels_x - jx, columns - n);
    run_column[runs] = n;
    run_z[runs] = jz * STEP(z);
    run_y[runs] = jy * STEP(y);
    run_x[runs] = jx;
    run_at[runs] = ((long)image * groups + group) * channels * source_pixels +
                   ((long)run_z[runs] * source_y + run_y[runs]) * source_x + jx * STEP(x);
    ++runs;
    const int after = n + length;
    for (; n < after; ++n, ++jx) column_at[n] = (long)image * groups * M * target_pixels + {target};
    jx = 0;
    if (++jy == pixels_y) {{ jy = 0; if (++jz == pixels_z) {{ jz = 0; ++image; }} }}
  }}
  run_column[runs] = columns;
}}

long tap_at[{depth}], patch_at[{depth}];
int on_z[{depth}], on_y[{depth}], low[{depth}], high[{depth}];
int channel = 0, kz = 0, ky = 0, kx = 0;
{start}
{block_loop(math, tile, fill_panels, fill_tile, "k" if forward else "outer", finish, in_rows=True)}"""
    tensors = f"{storage}* T; const {storage}* S, F{', E' if bias else ''}"
    params = parameters(f"{tensors}; i32 batch, M, channels, block_rows, block_columns; {GEOMETRY}")
    return Kernel(f"convolution_{direction}", params, plain_loops(body), local=(1, 1, 1))


# --- The weight's gradient.


@cache
def weight_kernel(storage: str, result: str, narrow: bool, blocks: Blocks, simd_width: int = 16) -> Kernel:
    """The CPU form of the weight's gradient, over a part of the pixels: parts are stored one after the other as
    elements of type `result`."""
    math = arithmetic(storage, simd_width)
    tile = block_tile(math, blocks, narrow)
    pitch = tile.depth + A_TILE_PADDING
    fill_panels = f"""
// The slice's steps: runs of pixels that are neighbours on a row of one image, and runs of those that are of one image.
runs = 0;
for (int k = 0; k < kc;) {{
  const int in_image = kc - k < result_pixels - pixel ? kc - k : (int)(result_pixels - pixel);
  {math.const_pointer} result = R + (((long)image * groups + group) * N + n0) * result_pixels + pixel - k;
  {pack_transposed(math, tile, "result", "result_pixels", "k", "k + in_image")}
  int jx = pixel % target_x, jy = pixel / target_x % target_y, jz = pixel / (target_x * target_y);
  for (const int after = k + in_image; k < after;) {{
    const int length = min(target_x - jx, after - k);
    run_column[runs] = k;
    run_z[runs] = jz * stride_z;
    run_y[runs] = jy * stride_y;
    run_x[runs] = jx;
    run_at[runs] = ((long)image * groups + group) * channels * source_pixels +
                   ((long)run_z[runs] * source_y + run_y[runs]) * source_x + jx * stride_x;
    ++runs;
    k += length;
    jx = 0;
    if (++jy == target_y) {{ jy = 0; ++jz; }}
  }}
  pixel += in_image;
  if (pixel == result_pixels) {{ pixel = 0; ++image; }}
}}
run_column[runs] = kc;"""
    fill_tile = f"""
for (int i = 0; i < {tile.rows}; ++i) {{
  const int tap = min(m0 + m + i, M - 1);
  const int dx = tap % taps_x * dilation_x - padding_x, dy = tap / taps_x % taps_y * dilation_y - padding_y;
  const int dz = tap / (taps_x * taps_y) % taps_z * dilation_z - padding_z, channel = tap / (taps_x * taps_y * taps_z);
  const long patch = (((long)channel * source_z + dz) * source_y + dy) * source_x + dx;
  const int low = dx >= 0 ? 0 : (-dx + stride_x - 1) / stride_x;
  const int high = source_x > dx ? (source_x - dx - 1) / stride_x + 1 : 0;
  for (int run = 0; run < runs; ++run) {{
    {math.scalar}* const row = a_tile + i * {pitch} + run_column[run];
    const int length = run_column[run + 1] - run_column[run];
    const int z = run_z[run] + dz, y = run_y[run] + dy;
    const bool inside = (uint)z < (uint)source_z && (uint)y < (uint)source_y;
    const int from = inside ? clamp(low - run_x[run], 0, length) : length;
    const int to = clamp(high - run_x[run], from, length);
    const long at = run_at[run] + patch;
    for (int j = 0; j < from; ++j) row[j] = 0;
    {_copy_row(math, "stride_x")}
    for (int j = to; j < length; ++j) row[j] = 0;
  }}
}}"""
    panel = math.width * tile.vectors
    finish = f"""
for (int i = 0; i < min({tile.rows}, rows - m); ++i) {{
  const {math.scalar}* from = (const {math.scalar}*)(sums + i * {tile.vectors});
  for (int j = 0; j < min({panel}, columns - n); ++j) store_{result}(t, (long)(n + j) * M + m + i, from[j]);
}}"""
    body = f"""
const int part = GROUP_ID(2) / groups, group = GROUP_ID(2) % groups;
const int m0 = GROUP_ID(1) * block_rows, n0 = GROUP_ID(0) * block_columns;
const int rows = min(block_rows, M - m0), columns = min(block_columns, N - n0);
const long source_pixels = (long)source_z * source_y * source_x, result_pixels = (long)target_z * target_y * target_x;
const long source_end = source_pixels * channels * groups * batch;
const long begin = part * part_pixels;
const int K = min(part_pixels, batch * result_pixels - begin);
int image = begin / result_pixels;
long pixel = begin % result_pixels;
GLOBAL {BY_NAME[result].storage}* t = T + ((long)(part * groups + group) * N + n0) * M + m0;
long run_at[{tile.depth}];
int run_column[{tile.depth} + 1], run_z[{tile.depth}], run_y[{tile.depth}], run_x[{tile.depth}];
int runs;
{block_loop(math, tile, fill_panels, fill_tile, "k", finish)}"""
    params = parameters(
        f"{result}* T; const {storage}* S, R; i32 batch, groups, M, N, channels, block_rows, block_columns; "
        f"i64 part_pixels; {GEOMETRY}"
    )
    helpers = shuffle_helpers(math.width, math.vector)
    return Kernel("convolution_weight", params, plain_loops(body), helpers=helpers, local=(1, 1, 1))


@cache
def fold_kernel(parts_of: str, storage: str) -> Kernel:
    """Adds up the parts of a result: out[i] = sum of from[part * count + i]."""
    body = f"""
const long i = GLOBAL_ID(0);
if (i >= count) return;
{BY_NAME[parts_of].storage} sum = 0;
for (int part = 0; part < parts; ++part) sum += partial[part * count + i];
store_{storage}(out, i, sum);"""
    params = parameters(f"{storage}* out; const {parts_of}* partial; i64 count; i32 parts")
    return Kernel("fold_parts", params, body, local=(64,))


# --- Few channels: no product worth the name; the taps of a pixel are added up in place.


def patch_helper(math: Arithmetic) -> str:
    """tg_patch(S, at, i, step, width, end): the lanes S[at + i + lane * step] for which i + lane * step is in 0 ..
    width, others zero. S has `end` elements; the row begins at `at`.
    """
    lanes = ", ".join(str(lane) for lane in range(math.width))
    index = f"int{math.width}"
    whole = math.load_vector("S", "first")
    first, second = math.load_vector("S", "first"), math.load_vector("S", f"first + {math.width}")
    mask = f"CONVERT_long{math.width}(inside)" if math.size == 8 else "inside"
    return f"""
inline {math.vector} tg_patch({math.const_pointer} S, long at, int i, int step, int width, long end) {{
  const long first = at + i;
  const bool one = step == 1 && first >= 0 && first + {math.width} <= end;
  const bool two = step == 2 && first >= 0 && first + {2 * math.width} <= end;
  if (one && i >= 0 && i + {math.width} <= width) return {whole};
  const {index} lane = i + MAKE_{index}({lanes}) * step;
  const {index} inside = (lane >= 0) & (lane < width);
  const {math.vector} none = {math.splat("0")};
  if (one) return SELECT({mask}, {whole}, none);
  if (two) return SELECT({mask}, EVEN_{math.vector}({first}, {second}), none);
  {math.scalar} out[{math.width}];
  for (int l = 0; l < {math.width}; ++l)
    out[l] = (uint)(i + l * step) < (uint)width ? {math.load("S", "first + (long)l * step")} : 0;
  return *({math.vector}u*)out;
}}"""


@cache
def direct_kernel(storage: str, direction: Direction, bias: bool, simd_width: int = 16) -> Kernel:
    """The CPU form where a group has few channels: rows of the target, a vector of pixels at a time. Going backward,
    the pixels of a vector are those of one phase.
    """
    math = arithmetic(storage, simd_width)
    forward = direction == "forward"
    tap = math.load("w", "(kz * taps_y + ky) * taps_x + kx")
    if forward:
        row = """
        const int z = tz * stride_z - padding_z + kz * dilation_z, y = ty * stride_y - padding_y + ky * dilation_y;"""
        meets_row, meets = "true", ""
        place, step, phases = "x * stride_x - padding_x + kx * dilation_x", "stride_x", "1"
        weight = "((target_channel * channels) + c) * taps"
        pixel = "x"
    else:
        row = """
        const int up_z = tz + padding_z - kz * dilation_z, up_y = ty + padding_y - ky * dilation_y;
        const int z = up_z / stride_z, y = up_y / stride_y;"""
        meets_row = "up_z % stride_z == 0 && up_y % stride_y == 0 && up_z >= 0 && up_y >= 0"
        meets = f"if (!({_meets('x')})) continue;"
        place, step, phases = "x + (first_x + padding_x - kx * dilation_x) / stride_x", "1", "stride_x"
        weight = "((group * channels + c) * M + target_channel % M) * taps"
        pixel = "(first_x + x * stride_x)"
    body = f"""
const long target_channel = GROUP_ID(0) % (groups * M), image = GROUP_ID(0) / (groups * M), group = target_channel / M;
const int taps = taps_z * taps_y * taps_x;
const long source_pixels = (long)source_z * source_y * source_x, end = source_pixels * channels * groups * batch;
const int row_end = min(target_z * target_y, ((int)GROUP_ID(1) + 1) * block_rows);
for (int row = GROUP_ID(1) * block_rows; row < row_end; ++row) {{
  const int tz = row / target_y, ty = row % target_y;
  {math.pointer} t = T + (((image * groups * M + target_channel) * target_z + tz) * target_y + ty) * target_x;
  for (int first_x = 0; first_x < {phases}; ++first_x) {{
    const int length = (target_x - first_x + {phases} - 1) / {phases};
    for (int start = 0; start < length; start += {math.width}) {{
      // The last vector moves back over the one before it rather than stick out.
      const int x = start + {math.width} > length ? max(0, length - {math.width}) : start;
      {math.vector} sum = {math.splat(math.load("E", "target_channel") if bias else "0")};
      for (int c = 0; c < channels; ++c) {{
        const long plane = ((image * groups + group) * channels + c) * source_pixels;
        {math.const_pointer} w = F + {weight};
        for (int kz = 0; kz < taps_z; ++kz)
          for (int ky = 0; ky < taps_y; ++ky) {{
            {row}
            if (!({meets_row}) || (uint)z >= (uint)source_z || (uint)y >= (uint)source_y) continue;
            const long at = plane + ((long)z * source_y + y) * source_x;
            for (int kx = 0; kx < taps_x; ++kx) {{
              {meets}
              const {math.vector} value = tg_patch(S, at, {place}, {step}, source_x, end);
              sum = {math.multiply_add(math.splat(tap), "value", "sum")};
            }}
          }}
      }}
      if ({phases} == 1 && x + {math.width} <= length) {{
        {math.store_vector("t", "x", "sum")};
      }} else {{
        const {math.scalar}* from = (const {math.scalar}*)&sum;
        const int count = min({math.width}, length - x), to = {pixel};
        for (int l = 0; l < count; ++l) {math.store("t", f"to + l * {phases}", "from[l]")};
      }}
    }}
  }}
}}"""
    return Kernel(
        f"convolution_direct_{direction}",
        _channel_params(storage, bias),
        body,
        helpers=patch_helper(math),
        local=(1, 1),
    )


def _channel_params(storage: str, bias: bool) -> tuple[Parameter, ...]:
    """Target, source, filters, [bias,] sizes: M channels of the target and `channels` of the source in a group."""
    tensors = f"{storage}* T; const {storage}* S, F{', E' if bias else ''}"
    return parameters(f"{tensors}; i32 batch, groups, M, channels, block_rows; {GEOMETRY}")


# Sums of this many taps are kept side by side.
MOST_DIRECT_TAPS = 64


@cache
def direct_weight_kernel(storage: str, result: str, simd_width: int = 16) -> Kernel:
    """The CPU form of the weight's gradient where a group has few channels: a work-item sums all taps of one pair of
    channels, over a part of the images.
    """
    math = arithmetic(storage, simd_width)
    update = math.multiply_add(
        "value", "tg_patch(S, at, x * stride_x + kx * dilation_x - padding_x, stride_x, source_x, end)", "sums[tap]"
    )
    body = f"""
const int taps = taps_z * taps_y * taps_x;
const int c = GROUP_ID(0) % channels, result_channel = GROUP_ID(0) / channels, group = result_channel / N;
const int from = GROUP_ID(1) * part_images, to = min(batch, from + part_images);
const long source_pixels = (long)source_z * source_y * source_x, end = source_pixels * channels * groups * batch;
const long result_pixels = (long)target_z * target_y * target_x, result_end = result_pixels * N * groups * batch;
{math.vector} sums[{MOST_DIRECT_TAPS}];
for (int tap = 0; tap < taps; ++tap) sums[tap] = {math.splat("0")};
for (int image = from; image < to; ++image) {{
  const long plane = (((long)image * groups + group) * channels + c) * source_pixels;
  long result_at = ((long)image * groups * N + result_channel) * result_pixels;
  for (int tz = 0; tz < target_z; ++tz)
    for (int ty = 0; ty < target_y; ++ty, result_at += target_x)
      for (int x = 0; x < target_x; x += {math.width}) {{
        const {math.vector} value = tg_patch(R, result_at, x, 1, target_x, result_end);
        for (int kz = 0, tap = 0; kz < taps_z; ++kz)
          for (int ky = 0; ky < taps_y; ++ky) {{
            const int z = tz * stride_z - padding_z + kz * dilation_z, y = ty * stride_y - padding_y + ky * dilation_y;
            if ((uint)z >= (uint)source_z || (uint)y >= (uint)source_y) {{ tap += taps_x; continue; }}
            const long at = plane + ((long)z * source_y + y) * source_x;
            for (int kx = 0; kx < taps_x; ++kx, ++tap) sums[tap] = {update};
          }}
      }}
}}
const long place = ((long)GROUP_ID(1) * NUM_GROUPS(0) + GROUP_ID(0)) * taps;
for (int tap = 0; tap < taps; ++tap) {{
  {math.scalar} sum = 0;
  for (int l = 0; l < {math.width}; ++l) sum += ((const {math.scalar}*)&sums[tap])[l];
  store_{result}(T, place + tap, sum);
}}"""
    params = parameters(f"{result}* T; const {storage}* S, R; i32 batch, groups, N, channels, part_images; {GEOMETRY}")
    return Kernel("convolution_direct_weight", params, body, helpers=patch_helper(math), local=(1, 1))


# --- The GPU form.


def _patch_element(math: Arithmetic, direction: Direction, strided: bool = True) -> str:
    """Sets `value` to the pixel of channel `c` that tap (kz, ky, kx) reads for pixel (tz, ty, tx) of the target. Going
    backward, strides of one need no division."""
    meets = "true"
    if direction == "forward":
        places = " ".join(f"const int {a} = t{a} * stride_{a} - padding_{a} + k{a} * dilation_{a};" for a in AXES)
    elif strided:
        places = " ".join(
            f"const int up_{a} = t{a} + padding_{a} - k{a} * dilation_{a}, {a} = up_{a} / stride_{a};" for a in AXES
        )
        meets = " && ".join(f"up_{a} >= 0 && up_{a} % stride_{a} == 0" for a in AXES)
    else:
        places = " ".join(f"const int {a} = t{a} + padding_{a} - k{a} * dilation_{a};" for a in AXES)
    inside = " && ".join(f"(uint){a} < (uint)source_{a}" for a in AXES)
    at = "((((long)image * groups + group) * channels + c) * source_z + z) * source_y + y"
    return f"{{ {places} if ({meets} && {inside}) value = {math.load('S', f'({at}) * source_x + x')}; }}"


_SPLIT_TAP = """int kx = ({0}) % taps_x, ky = ({0}) / taps_x % taps_y, kz = ({0}) / (taps_x * taps_y) % taps_z;
int c = ({0}) / (taps_x * taps_y * taps_z);"""
_NEXT_TAP = "if (++kx == taps_x) { kx = 0; if (++ky == taps_y) { ky = 0; if (++kz == taps_z) { kz = 0; ++c; } } }"
_SPLIT_PIXEL = """const int tx = ({0}) % target_x, ty = ({0}) / target_x % target_y;
const int tz = ({0}) / (target_x * target_y) % target_z, image = ({0}) / (target_x * target_y * target_z);"""
# Which part of the sums a group has, if they are divided.
_PART = "const int part = GROUP_ID(2) / groups, group = GROUP_ID(2) % groups;"


@cache
def tile_kernel(storage: str, result: str, direction: Direction, strided: bool, bias: bool, tiles: Tiles) -> Kernel:
    """The GPU form of images from images, over a part of the sums."""
    math = arithmetic(storage)
    if direction == "forward":
        a = Fetch("a", "k", f"value = {math.load('F', '((long)group * M + m) * channels * taps + first + k')};")
    else:
        a = Fetch(
            "a",
            "k",
            f"value = {math.load('F', '(((long)group * channels + channel) * M + m) * taps + tap')};",
            along="const int channel = (first + k) / taps, tap = (first + k) % taps;",
        )
    b = Fetch(
        "b",
        "outer",
        _patch_element(math, direction, strided),
        outer=_SPLIT_PIXEL.format("n"),
        along=_SPLIT_TAP.format("first + k"),
        then=_NEXT_TAP,
    )
    add = f"if (part == 0) sums[i][j] += {math.load('E', 'group * M + m')};" if bias else ""
    place = "(((long)part * batch + n / pixels) * groups * M + group * M + m) * pixels + n % pixels"
    finish = f"{add} store_{result}(T, {place}, sums[i][j]);"
    body = f"""
{_PART}
const int taps = taps_z * taps_y * taps_x, first = part * part_k, K = min(part_k, channels * taps - first);
const int pixels = target_z * target_y * target_x, N = batch * pixels;
{tile_loop(math, tiles, a, b, finish)}"""
    tensors = f"{result}* T; const {storage}* S, F{', E' if bias else ''}"
    params = parameters(f"{tensors}; i32 batch, groups, M, channels, part_k; {GEOMETRY}")
    return Kernel(f"convolution_tile_{direction}", params, body, local=tile_local(tiles))


# Rows of patches that a work-item copies an element of.
_PATCH_ROWS = 32


@cache
def all_patches_kernel(storage: str, direction: Direction, strided: bool) -> Kernel:
    """The patches of all images as a matrix in memory, in the GPU form: row k has what the product reads for its k."""
    math = arithmetic(storage)
    body = f"""
const int pixels = target_z * target_y * target_x, n = GLOBAL_ID(0), group = 0, groups = 1;
if (n >= batch * pixels) return;
const int first = GROUP_ID(1) * {_PATCH_ROWS}, end = min(first + {_PATCH_ROWS}, channels * taps_z * taps_y * taps_x);
{_SPLIT_PIXEL.format("n")}
{_SPLIT_TAP.format("first")}
for (int k = first; k < end; ++k) {{
  {math.scalar} value = 0;
  {_patch_element(math, direction, strided)}
  {math.store("T", "(long)k * batch * pixels + n", "value")};
  {_NEXT_TAP}
}}"""
    params = parameters(f"{storage}* T; const {storage}* S; i32 batch, channels; {GEOMETRY}")
    return Kernel(f"convolution_patches_{direction}", params, body, local=(128, 1))


def all_patches_launch(storage: str, g: Geometry, direction: Direction, target: object, source: object) -> Launch:
    """Fills [channels * taps, batch * pixels]; there is one group of channels."""
    forward = direction == "forward"
    source_size, target_size = (g.image, g.result) if forward else (g.result, g.image)
    channels = g.image_channels if forward else g.result_channels
    arguments = {"T": target, "S": source, "batch": g.batch, "channels": channels}
    arguments |= geometry_arguments(g, source_size, target_size)
    grid = (ceil_div(g.batch * prod(target_size), 128), ceil_div(channels * prod(g.taps), _PATCH_ROWS))
    strided = not forward and g.stride != (1, 1, 1)
    return Launch(all_patches_kernel(storage, direction, strided), grid, arguments)


@cache
def element_kernel(storage: str, direction: Direction, bias: bool, dilated: bool) -> Kernel:
    """The GPU form where a group has few channels: a work-item for each pixel of the target. Going backward, taps that
    are not dilated meet it as far apart as the stride."""
    math = arithmetic(storage)
    skips = direction == "backward" and not dilated
    loops = "".join(
        f"for (int k{a} = {f'(t{a} + padding_{a}) % stride_{a}' if skips else '0'}; k{a} < taps_{a}; "
        f"k{a} += {f'stride_{a}' if skips else '1'})\n"
        for a in AXES
    )
    if direction == "forward":
        weight = "(target_channel * channels + c) * taps + tap"
    else:
        weight = "((group * channels + c) * M + target_channel % M) * taps + tap"
    body = f"""
const long index = GLOBAL_ID(0);
const long target_pixels = (long)target_z * target_y * target_x;
if (index >= batch * groups * M * target_pixels) return;
const int taps = taps_z * taps_y * taps_x;
const int tx = index % target_x, ty = index / target_x % target_y, tz = index / ((long)target_x * target_y) % target_z;
const long target_channel = index / target_pixels % (groups * M), image = index / target_pixels / (groups * M);
const long group = target_channel / M;
{math.scalar} sum = {math.load("E", "target_channel") if bias else "0"};
for (int c = 0; c < channels; ++c)
  {loops} {{
    const int tap = (kz * taps_y + ky) * taps_x + kx;
    {math.scalar} value = 0;
    {_patch_element(math, direction)}
    sum = {math.multiply_add("value", math.load("F", weight), "sum")};
  }}
{math.store("T", "index", "sum")};"""
    return Kernel(f"convolution_element_{direction}", _channel_params(storage, bias), body, local=(64,))


@cache
def weight_tile_kernel(storage: str, result: str, tiles: Tiles) -> Kernel:
    """The GPU form of the weight's gradient, over a part of the pixels."""
    math = arithmetic(storage)
    a = Fetch(
        "a",
        "k",
        _patch_element(math, "forward"),
        outer=_SPLIT_TAP.format("m"),
        along=_SPLIT_PIXEL.format("first + k"),
    )
    b = Fetch(
        "b",
        "k",
        f"value = {math.load('R', '((result_image * groups + group) * N + n) * pixels + pixel')};",
        along="const long result_image = (first + k) / pixels; const int pixel = (first + k) % pixels;",
    )
    finish = f"store_{result}(T, ((long)(part * groups + group) * N + n) * M + m, sums[i][j]);"
    body = f"""
{_PART}
const int pixels = target_z * target_y * target_x, first = part * part_pixels;
const int K = min((int)part_pixels, batch * pixels - first);
{tile_loop(math, tiles, a, b, finish)}"""
    params = parameters(
        f"{result}* T; const {storage}* S, R; i32 batch, groups, M, N, channels; i64 part_pixels; {GEOMETRY}"
    )
    return Kernel("convolution_tile_weight", params, body, local=tile_local(tiles))


# Work-items of a group that sum one element of a weight's gradient.
_SUMMED_BY = 128


@cache
def element_weight_kernel(storage: str, result: str) -> Kernel:
    """The same where a group has few channels: a work-group for each element of the weight."""
    math = arithmetic(storage)
    at = "(((long)image * groups + group) * N + n) * pixels + at % pixels"
    body = f"""
LOCAL {math.scalar} sums[{_SUMMED_BY}];
const int M = channels * taps_z * taps_y * taps_x, pixels = target_z * target_y * target_x;
const int m = GROUP_ID(0) % M, n = GROUP_ID(0) / M % N, group = GROUP_ID(0) / M / N, lane = LOCAL_ID(0);
const long begin = GROUP_ID(1) * part_pixels, whole = (long)batch * pixels;
const uint end = (uint)min(whole, begin + part_pixels);
{_SPLIT_TAP.format("m")}
{math.scalar} sum = 0;
for (uint at = (uint)begin + lane; at < end; at += {_SUMMED_BY}) {{
  {_SPLIT_PIXEL.format("at")}
  {math.scalar} value = 0;
  {_patch_element(math, "forward")}
  sum = {math.multiply_add("value", math.load("R", at), "sum")};
}}
sums[lane] = sum;
BARRIER;
for (int apart = {_SUMMED_BY // 2}; apart > 0; apart /= 2) {{
  if (lane < apart) sums[lane] += sums[lane + apart];
  BARRIER;
}}
if (lane == 0) store_{result}(T, GROUP_ID(1) * NUM_GROUPS(0) + GROUP_ID(0), sums[0]);"""
    params = parameters(
        f"{result}* T; const {storage}* S, R; i32 batch, groups, N, channels; i64 part_pixels; {GEOMETRY}"
    )
    return Kernel("convolution_element_weight", params, body, local=(_SUMMED_BY, 1))


# --- Launches of images made of images. Forward: the target is the result, the source the image. Backward: the target
# is the image (its gradient, or what a transposed convolution gives), the source the result (its gradient).


@dataclass(frozen=True)
class Operands:
    """Of images made of images; whatever the launcher takes for a pointer."""

    target: object
    source: object
    weight: object
    bias: object | None = None

    @property
    def arguments(self) -> dict[str, object]:
        given = {"T": self.target, "S": self.source, "F": self.weight}
        return given if self.bias is None else {**given, "E": self.bias}


def _arguments(g: Geometry, direction: Direction, given: Operands) -> dict[str, object]:
    rows, channels = channels_of(g, direction)
    target, source = sizes_of(g, direction)
    sizes = {"batch": g.batch, "M": rows, "channels": channels}
    return {**given.arguments, **sizes, **geometry_arguments(g, source, target)}


def has_few_channels(g: Geometry, direction: Direction) -> bool:
    """Whether a tile of eight rows would be mostly empty, or its sums shorter than what it costs to prepare it."""
    rows, channels = channels_of(g, direction)
    return rows * channels <= 4 or (rows <= 2 and channels <= 8)


def direct_launch(storage: str, g: Geometry, direction: Direction, given: Operands, on: Target) -> Launch:
    """The CPU form for few channels."""
    rows, _ = channels_of(g, direction)
    target, _ = sizes_of(g, direction)
    lines = target[0] * target[1]
    block_rows = max(1, min(lines, ceil_div(lines * g.batch * rows * g.groups, 4 * on.units)))
    kernel = direct_kernel(storage, direction, given.bias is not None, on.simd_width)
    grid = (g.batch * rows * g.groups, ceil_div(lines, block_rows))
    arguments = {**_arguments(g, direction, given), "groups": g.groups, "block_rows": block_rows}
    return Launch(kernel, grid, arguments)


def suits_elements(g: Geometry, direction: Direction, on: Target) -> bool:
    """Whether a GPU has a work-item for each element: most products of a square would be with zeros where a stride
    leaves taps out, and few rows leave most of it empty."""
    strided = direction == "backward" and g.stride != (1, 1, 1) and g.dilation == (1, 1, 1)
    return has_few_channels(g, direction) or (
        strided and channels_of(g, direction)[0] <= on.tuning.gpu_images.strided_rows
    )


def element_launch(storage: str, g: Geometry, direction: Direction, given: Operands) -> Launch:
    """The GPU form with a work-item for each element."""
    rows, _ = channels_of(g, direction)
    kernel = element_kernel(storage, direction, given.bias is not None, g.dilation != (1, 1, 1))
    elements = g.batch * g.groups * rows * prod(sizes_of(g, direction)[0])
    arguments = {**_arguments(g, direction, given), "groups": g.groups, "block_rows": 0}
    return Launch(kernel, (ceil_div(elements, 64),), arguments)


def tile_launches(
    storage: str,
    g: Geometry,
    direction: Direction,
    given: Operands,
    temporary: Callable[[int, str], object],
    on: Target,
) -> list[Launch]:
    """The GPU form in tiles; parts of the sums are added up afterwards. `temporary` makes a place for a number of
    elements of a type."""
    rows, channels = channels_of(g, direction)
    columns = g.batch * prod(sizes_of(g, direction)[0])
    sums = channels * prod(g.taps)
    tiles, parts = choose_tiles(on.tuning.tiles, rows, columns, sums, g.groups, on.units)
    each = ceil_div(sums, parts)
    parts = ceil_div(sums, each)
    accumulator = arithmetic(storage).value if parts > 1 else storage
    count = rows * g.groups * columns
    place = temporary(parts * count, accumulator) if parts > 1 else given.target
    strided = direction == "backward" and g.stride != (1, 1, 1)
    kernel = tile_kernel(storage, accumulator, direction, strided, given.bias is not None, tiles)
    grid = tile_groups(tiles, rows, columns, g.groups * parts)
    arguments = {**_arguments(g, direction, given), "groups": g.groups, "T": place, "part_k": each}
    return [Launch(kernel, grid, arguments), *_fold(accumulator, storage, given.target, place, count, parts)]


def block_launch(storage: str, g: Geometry, direction: Direction, given: Operands, on: Target) -> Launch:
    """The CPU form in blocks with panels of patches, for any convolution."""
    forward = direction == "forward"
    rows, channels = channels_of(g, direction)
    phases = 1 if forward else prod(g.stride)
    extents = zip(sizes_of(g, direction)[0], g.stride, strict=True)
    columns = g.batch * prod(extent if forward else ceil_div(extent, stride) for extent, stride in extents)
    blocks = on.tuning.blocks
    math = arithmetic(storage, on.simd_width)
    sums = channels * prod(g.taps) // phases
    products = g.groups * phases
    block_rows, block_columns = block_shape(
        math, block_tile(math, blocks), rows, columns, sums, products, on.units, blocks, blocks.work // 8
    )
    kernel = block_kernel(storage, direction, given.bias is not None, blocks, on.simd_width)
    grid = (ceil_div(columns, block_columns), ceil_div(rows, block_rows), g.groups * phases)
    arguments = {**_arguments(g, direction, given), "block_rows": block_rows, "block_columns": block_columns}
    return Launch(kernel, grid, arguments)


# --- Launches of the weight's gradient, from the image and the result's gradient.


@dataclass(frozen=True)
class WeightOperands:
    """Of a weight's gradient: its place, the image, the result's gradient, and what makes a place for a number of
    elements of a type."""

    target: object
    image: object
    result: object
    temporary: Callable[[int, str], object]

    def arguments(self, g: Geometry) -> dict[str, object]:
        sizes = {
            "batch": g.batch,
            "groups": g.groups,
            "N": columns_of_weight(g),
            "channels": g.image_channels // g.groups,
        }
        return {"S": self.image, "R": self.result, **sizes, **geometry_arguments(g, g.image, g.result)}


def columns_of_weight(g: Geometry) -> int:
    """Filters of a group."""
    return g.result_channels // g.groups


def pairs_of_weight(g: Geometry) -> int:
    """Pairs of channels of a group."""
    return g.image_channels // g.groups * columns_of_weight(g)


def _rows_of_weight(g: Geometry) -> int:
    return g.image_channels // g.groups * prod(g.taps)


def _in_parts(
    storage: str,
    g: Geometry,
    given: WeightOperands,
    parts: int,
    launch: Callable[[str, object], Launch],
) -> list[Launch]:
    """A launch, by the element type and the place of what it writes, of so many copies of the weight, and what adds
    them up."""
    count = _rows_of_weight(g) * columns_of_weight(g) * g.groups
    accumulator = arithmetic(storage).value if parts > 1 else storage
    place = given.temporary(parts * count, accumulator) if parts > 1 else given.target
    return [launch(accumulator, place), *_fold(accumulator, storage, given.target, place, count, parts)]


def element_weight_launches(storage: str, g: Geometry, given: WeightOperands, on: Target) -> list[Launch]:
    """The GPU form for few channels."""
    count = _rows_of_weight(g) * columns_of_weight(g) * g.groups
    pixels = g.batch * prod(g.result)
    parts = max(1, min(ceil_div(8 * on.units, count), pixels // on.tuning.gpu_images.part))
    part_pixels = ceil_div(pixels, parts)
    parts = ceil_div(pixels, part_pixels)

    def launch(accumulator: str, place: object) -> Launch:
        arguments = {**given.arguments(g), "T": place, "part_pixels": part_pixels}
        return Launch(element_weight_kernel(storage, accumulator), (count, parts), arguments)

    return _in_parts(storage, g, given, parts, launch)


def tile_weight_launches(storage: str, g: Geometry, given: WeightOperands, on: Target) -> list[Launch]:
    """The GPU form in tiles."""
    rows, columns, pixels = _rows_of_weight(g), columns_of_weight(g), g.batch * prod(g.result)
    tiles, parts = choose_tiles(on.tuning.tiles, rows, columns, pixels, g.groups, on.units)
    part_pixels = ceil_div(pixels, parts)
    parts = ceil_div(pixels, part_pixels)

    def launch(accumulator: str, place: object) -> Launch:
        kernel = weight_tile_kernel(storage, accumulator, tiles)
        arguments = {**given.arguments(g), "T": place, "part_pixels": part_pixels, "M": rows}
        return Launch(kernel, tile_groups(tiles, rows, columns, g.groups * parts), arguments)

    return _in_parts(storage, g, given, parts, launch)


def part_images_of_weight(g: Geometry, on: Target) -> int:
    """Images of a part where few channels leave few work-items."""
    return max(1, min(g.batch, g.batch * pairs_of_weight(g) * g.groups // (4 * on.units)))


def direct_weight_launches(storage: str, g: Geometry, given: WeightOperands, on: Target) -> list[Launch]:
    """The CPU form for few channels and taps."""
    pairs, part_images = pairs_of_weight(g) * g.groups, part_images_of_weight(g, on)
    parts = ceil_div(g.batch, part_images)

    def launch(accumulator: str, place: object) -> Launch:
        kernel = direct_weight_kernel(storage, accumulator, on.simd_width)
        return Launch(kernel, (pairs, parts), {**given.arguments(g), "T": place, "part_images": part_images})

    return _in_parts(storage, g, given, parts, launch)


def plane_weight_launches(storage: str, g: Geometry, given: WeightOperands, on: Target) -> list[Launch]:
    """Depthwise, the CPU form; of what `depthwise.plane_weight_launch` has."""
    part_images = part_images_of_weight(g, on)

    def launch(accumulator: str, place: object) -> Launch:
        made = plane_weight_launch(storage, accumulator, g, place, given.image, given.result, part_images, on)
        assert made is not None
        return made

    return _in_parts(storage, g, given, ceil_div(g.batch, part_images), launch)


def box_weight_launches(
    storage: str, g: Geometry, given: WeightOperands, on: Target, boxes: WeightBoxes
) -> list[Launch]:
    """The CPU form in boxes."""
    return _in_parts(
        storage,
        g,
        given,
        boxes.parts,
        lambda accumulator, place: boxes.launch(storage, accumulator, place, given.image, given.result, on),
    )


def block_weight_launches(storage: str, g: Geometry, given: WeightOperands, on: Target) -> list[Launch]:
    """The CPU form in blocks with panels of patches, for any convolution."""
    units, blocks, math = on.units, on.tuning.blocks, arithmetic(storage, on.simd_width)
    rows, columns, pixels = _rows_of_weight(g), columns_of_weight(g), g.batch * prod(g.result)
    narrow = columns <= math.width
    tile = block_tile(math, blocks, narrow)
    block_rows, block_columns = block_shape(math, tile, rows, columns, pixels, g.groups, 1, blocks, blocks.work // 8)
    # Large blocks, and for every core some: the pixels are divided, which costs a second pass over a few copies of the
    # weight.
    count = ceil_div(rows, block_rows) * ceil_div(columns, block_columns) * g.groups
    parts = 1 if units == 1 else max(1, min(ceil_div(3 * units, count), pixels // (8 * tile.depth)))
    part_pixels = max(1, ceil_div(ceil_div(pixels, parts), tile.depth)) * tile.depth
    parts = max(1, ceil_div(pixels, part_pixels))

    def launch(accumulator: str, place: object) -> Launch:
        kernel = weight_kernel(storage, accumulator, narrow, blocks, on.simd_width)
        grid = (ceil_div(columns, block_columns), ceil_div(rows, block_rows), g.groups * parts)
        sizes = {"M": rows, "part_pixels": part_pixels, "block_rows": block_rows, "block_columns": block_columns}
        return Launch(kernel, grid, {**given.arguments(g), "T": place, **sizes})

    return _in_parts(storage, g, given, parts, launch)


def _fold(parts_of: str, storage: str, target: object, place: object, count: int, parts: int) -> list[Launch]:
    if parts == 1:
        return []
    arguments = {"out": target, "partial": place, "count": count, "parts": parts}
    return [Launch(fold_kernel(parts_of, storage), (ceil_div(count, 64),), arguments)]
