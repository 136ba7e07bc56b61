"""Convolution whose lanes are the target's channels, for CPUs: images from images, with a stride of one for the image's
gradient.

Lines of few pixels do not fill the vectors of `boxes`. Here registers hold a line's pixels, or a part of it,
each with some vectors of channels, and a pixel of the source, from a box's copy, is multiplied by a vector of filters.
So no lane is wasted where there are channels enough, and taps that lie above or below the image are left out.

The kernel's text has the number of pixels of a line's part.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from math import prod

from torchgraft.codegen import ceil_div
from torchgraft.codegen.arithmetic import Arithmetic, arithmetic
from torchgraft.codegen.kernel import Kernel, Launch, Parameter, parameters
from torchgraft.codegen.tuning import Blocks, Target
from torchgraft.codegen.vectors import shuffle_helpers, transpose_registers
from torchgraft.codegen.x86 import LINES
from torchgraft.kernels.convolution.boxes import (
    OFFSET,
    axis_of,
    box_cost,
    box_place,
    copy_elements,
    fill_copy,
    sum_elements,
)
from torchgraft.kernels.convolution.geometry import GEOMETRY, Direction, Geometry, channels_of, geometry_arguments
from torchgraft.kernels.matmul.block import block_tile, pack_transposed
from torchgraft.kernels.products import Tile, plain_loops
from torchgraft.kernels.registers import Registers


def _tile(math: Arithmetic, blocks: Blocks, line: int, vectors: int) -> Tile:
    """Rows are a line's pixels, columns channels."""
    return replace(block_tile(math, blocks), rows=line, vectors=vectors)


def line_parts(g: Geometry, direction: Direction) -> list[int]:
    """Of how many pixels the parts of the target's lines may be, most first; none if there are no equal parts, nothing
    to compute, or a stride where it is the image's gradient."""
    forward = direction == "forward"
    if not prod((g.batch, *g.result, *g.image, *channels_of(g, direction))) or not (forward or prod(g.stride) == 1):
        return []
    pixels = (g.result if forward else g.image)[2]
    return [n for n in reversed(LINES) if pixels % n == 0]


def _multiply(math: Arithmetic, tile: Tile) -> str:
    """Adds the products of the line at `pixel` and the panel to its sums."""
    line = Registers(math, tile.rows, tile.vectors)
    return f"""
{{
  {line.begin()}
  const {math.vector}* b = panel + first_k * {tile.vectors};
  for (int k = first_k; k < end_k; ++k, b += {tile.vectors}) {{
    const {math.scalar}* const p = line + offset[k];
    {line.add("b[{}]".format, "p[{}]".format)}
  }}
  // Slices are summed on their own: so rounding errors grow with the length of a slice and the number of slices.
  {math.vector}* const sums = panel_sums + pixel * {tile.vectors};
  {line.end(lambda x, v: f"sums[{x * tile.vectors + v}]", "c0 == 0")}
}}"""


def _finish(math: Arithmetic, tile: Tile, bias: bool) -> str:
    """Stores the panel's sums: pixels are neighbours in memory, so squares of them are transposed."""
    width = math.width
    add = f" + {math.splat(math.load('E', 'group * M + m0 + m + v * {0} + {1}'))}" if bias else ""
    loads = " ".join(f"{math.vector} r{i} = from[(p + {i}) * {tile.vectors}];" for i in range(width))
    stores = "\n".join(
        f"if ({j} < there) {math.store_vector('t', f'{j} * target_pixels + p', f'r{j}{add.format(width, j)}')};"
        for j in range(width)
    )
    sum_ = f"((const {math.scalar}*)(from + p * {tile.vectors}))[j]"
    more = f" + {math.load('E', f'group * M + m0 + m + v * {width} + j')}" if bias else ""
    return f"""
for (int image = 0; image < length_i; ++image)
  for (int v = 0; v < {tile.vectors} && m + v * {width} < rows; ++v) {{
    const int there = min({width}, rows - m - v * {width});
    const long channel = ((image0 + image) * groups + group) * M + m0 + m + v * {width};
    {math.pointer} t = T + channel * target_pixels + at_y * target_x;
    const {math.vector}* const from = panel_sums + image * band * {tile.vectors} + v;
    if (band >= {width}) {{
      for (int begin = 0; begin < band; begin += {width}) {{
        // The last vectors end where the pixels do, and repeat some.
        const int p = min(begin, band - {width});
        {loads}
        {transpose_registers(width, math.vector)}
        {stores}
      }}
      continue;
    }}
    for (int p = 0; p < band; ++p)
      for (int j = 0; j < there; ++j) {math.store("t", "j * target_pixels + p", sum_ + more)};
  }}"""


def _pack_backward(math: Arithmetic, tile: Tile) -> str:
    """As `pack_transposed` for filters that lie channel of the source by channel: one's taps of all channels of the
    panel are a matrix, whose rows are shorter than vectors. What is read beyond them is not stored."""
    width, panel = math.width, math.width * tile.vectors
    offsets = " ".join(f"const long o{i} = min({i}, columns - n - 1) * taps;" for i in range(width))
    loads = "\n".join(f"{math.vector} r{i} = {math.load_vector('F', f'at + o{i}')};" for i in range(width))
    rows = [f"*({math.vector}*)(panels + row[step + {i}] * {panel} + n) = r{i};" for i in range(width)]
    stores = "\n".join(f"if (step + {i} < taps) {store}" for i, store in enumerate(rows))
    one = math.load("F", "at + (long)j * taps + k - step")
    return f"""
for (int c = 0; c < count; ++c) {{
  const int* const row = places + c * taps;
  for (int n = 0; n < columns; n += {width}) {{
    {offsets}
    for (int step = 0; step < taps; step += {width}) {{
      const long at = (((long)group * channels + c0 + c) * M + m0 + m + n) * taps + step;
      if (at + o{width - 1} + {width} <= filters_end) {{
        {loads}
        {transpose_registers(width, math.vector)}
        {stores}
        continue;
      }}
      for (int k = step; k < min(taps, step + {width}); ++k)
        for (int j = 0; j < min({width}, columns - n); ++j) panels[row[k] * {panel} + n + j] = {one};
    }}
  }}
}}"""


def lanes_parameters(storage: str, bias: bool) -> tuple[Parameter, ...]:
    """Target, source, filters, [bias,] sizes of all, of boxes and of the geometry, in groups."""
    tensors = f"{storage}* T; const {storage}* S, F{', E' if bias else ''}"
    return parameters(f"{tensors}; i32 batch, M, channels, block_rows, slice, box_i, box_y, boxes_y; {GEOMETRY}")


def lanes_body(
    math: Arithmetic,
    direction: Direction,
    tile: Tile,
    bias: bool,
    *,
    fill: str,
    pack: str,
    multiply: str,
    element: str = "",
    channels: str = "channels",
) -> str:
    """The text of a kernel: `fill` copies `count` of so many `channels` from number c0 on as elements of a type, `pack`
    turns round their filters for `columns` channels from number m on, `multiply` adds the products of a line."""
    element, panel = element or math.scalar, math.width * tile.vectors
    return f"""
const int joined = 0, box_z = target_z, box_x = target_x, boxes_z = 1, boxes_x = 1;
{box_place(direction)}
// In a slice, taps of one row and plane lie together, of all channels: where each tap of a channel lies in the copy,
// and in which row of the panel, and the other way round.
int offset[{tile.depth}], places[{tile.depth}];
{element} copy[{copy_elements(math)}] ALIGN(64);
{math.vector} all_sums[{sum_elements(math) // math.width}];
{math.vector} panel[{tile.depth * tile.vectors}];
{math.scalar}* const panels = ({math.scalar}*)panel;
for (int i = 0; i < {tile.depth * tile.vectors}; ++i) panel[i] = {math.splat("0")};
const int band = length_z * length_y * length_x, pixels = length_i * band;
for (int c0 = 0; c0 == 0 || c0 < {channels}; c0 += slice) {{
  const int count = min(slice, {channels} - c0), kc = count * taps;
  if (c0 == 0 || count < slice) {{
    for (int kz = 0, tap = 0; kz < taps_z; ++kz)
      for (int ky = 0; ky < taps_y; ++ky)
        for (int kx = 0; kx < taps_x; ++kx, ++tap) {{
          const int c = 0, at = {OFFSET};
          int k = (kz * taps_y + ky) * count * taps_x + kx;
          for (int i = 0; i < count; ++i, k += taps_x) {{
            offset[k] = i * channel_size + at;
            places[i * taps + tap] = k;
          }}
        }}
  }}
  {{ {fill} }}
  for (int m = 0; m < rows; m += {panel}) {{
    {{
      const int columns = min({panel}, rows - m);
      {pack}
    }}
    {math.vector}* const panel_sums = all_sums + m / {math.width} * pixels;
    for (int image = 0, pixel = 0; image < length_i; ++image)
      for (int z = 0; z < length_z; ++z)
        for (int y = 0; y < length_y; ++y) {{
          // Taps above and below the image meet zeros only.
          int first = 0, end = taps_y;
          #define ROW(k) ((at_y + y + SHIFT_y(k)) * step_y + REMAINDER_y(PART_y(k)))
          if (taps_z == 1) {{
            while (first < end && (uint)ROW(first) >= (uint)source_y) ++first;
            while (first < end && (uint)ROW(end - 1) >= (uint)source_y) --end;
          }}
          const int first_k = first * count * taps_x, end_k = taps_z == 1 ? end * count * taps_x : kc;
          const {element}* line = copy + image * image_size + z * plane_size + y * pitch;
          for (int x = 0; x < length_x; x += {tile.rows}, line += {tile.rows}, pixel += {tile.rows}) {multiply}
        }}
    if (c0 + slice >= {channels}) {{ {_finish(math, tile, bias)} }}
  }}
}}"""


@cache
def lanes_kernel(
    storage: str, direction: Direction, bias: bool, blocks: Blocks, line: int, vectors: int, simd_width: int = 16
) -> Kernel:
    """Images from images whose lines have parts of `line` pixels, with `vectors` of channels: group 0 is some images,
    or lines of one, group 1 the channels, group 2 the group. Launch with `lanes_launch`."""
    math = arithmetic(storage, simd_width)
    tile = _tile(math, blocks, line, vectors)
    if direction == "forward":
        pack = f"""
{math.const_pointer} filters = F + ((long)(group * M + m0 + m) * channels + c0) * taps;
{pack_transposed(math, tile, "filters", "channels * taps", "0", "kc", places="places")}"""
    else:
        pack = f"const long filters_end = (long)groups * channels * M * taps; {_pack_backward(math, tile)}"
    body = lanes_body(
        math, direction, tile, bias, fill=fill_copy(math, tile), pack=pack, multiply=_multiply(math, tile)
    )
    helpers = shuffle_helpers(math.width, math.vector)
    name = f"convolution_lanes_{direction}"
    return Kernel(name, lanes_parameters(storage, bias), plain_loops(body), helpers=helpers, local=(1, 1, 1))


# --- The launch. Costs are cycles in which a vector is multiplied.


@dataclass(frozen=True)
class Part:
    """What a work-item makes of the target.

    Attributes:
        images, lines, channels: of it; lines are all of a plane, or of a single image.
        cost: of all, on the core that has the most.
    """

    images: int
    lines: int
    channels: int
    cost: float


def _meeting(g: Geometry, forward: bool) -> float:
    """The share of the taps of all lines that lie neither above nor below the image."""
    if g.taps[0] > 1:
        return 1.0
    source, target = (g.image[1], g.result[1]) if forward else (g.result[1], g.image[1])
    step, sign = (g.stride[1], 1) if forward else (1, -1)
    met = 0
    for k in range(g.taps[1]):
        before = sign * (g.padding[1] - k * g.dilation[1])  # line y meets row y * step - before
        met += max(0, min(target, ceil_div(source + before, step)) - max(0, ceil_div(before, step)))
    return met / (target * g.taps[1])


def _boxes(g: Geometry, planes: int, lines: int) -> Iterator[tuple[int, int]]:
    """Images and lines of ever smaller parts."""
    for images in _even_parts(g.batch):
        yield images, lines
    for band in _even_parts(lines) if planes == 1 else ():
        if band < lines:
            yield 1, band


def _even_parts(n: int) -> Iterator[int]:
    """What each of one, two, three, ... parts of n has, without what comes again."""
    part = n
    while part > 0:
        yield part
        part = ceil_div(n, ceil_div(n, part - 1)) if part > 1 else 0


def best_part(
    math: Arithmetic, tile: Tile, g: Geometry, direction: Direction, channels: int, slice_: int, pack: float, on: Target
) -> Part | None:
    """How the work is partitioned: to copy the same images for more channels costs time, as does transposing the same
    filters, which costs `pack` for each element, for more images."""
    forward, units = direction == "forward", on.units
    m, _ = channels_of(g, direction)
    z, y, x = (axis_of(g, axis, forward)[0] for axis in range(3))
    sums, panel = channels * prod(g.taps), math.width * tile.vectors
    work = g.batch * g.groups * m * z.pixels * y.pixels * x.pixels * sums
    shared = units > 1 and work > on.tuning.boxes.work
    meeting = _meeting(g, forward)
    best: Part | None = None
    for images, lines in _boxes(g, z.pixels, y.pixels):
        copied = images * prod(a.parts * (n + a.reach) for a, n in ((z, z.pixels), (y, lines), (x, x.pixels)))
        pixels = images * z.pixels * lines * x.pixels
        most = sum_elements(math) // pixels // panel * panel
        overhang = x.pixels + x.reach + panel + math.width
        if slice_ * (ceil_div(copied, 16) + 1) * 16 + overhang > copy_elements(math) or not most:
            continue
        parts = g.groups * ceil_div(g.batch, images) * ceil_div(y.pixels, lines)
        # More parts even out what cores are kept from by others, which is worth a little.
        for wanted, worth in ((3 * units, 0.95), (units, 1.0)) if shared else ((1, 1.0),):
            blocks = max(ceil_div(m, most), min(ceil_div(m, panel), ceil_div(wanted, parts)))
            rows = ceil_div(ceil_div(m, blocks), panel) * panel
            each = rows // math.width * pixels * sums * meeting
            each += on.tuning.lanes.copy * copied * channels + pack * rows * sums
            cost = each * ceil_div(parts * ceil_div(m, rows), units)
            if best is None or worth * cost < best.cost:
                best = Part(images, lines, rows, worth * cost)
        if parts >= 3 * units or not shared:
            break
    return best


@dataclass(frozen=True)
class Lanes:
    """A launch of `lanes_kernel` but for its operands.

    Attributes:
        line, vectors: pixels of a line's part, and vectors of channels that each has.
        slice: channels of the source that are copied at once.
    """

    g: Geometry
    direction: Direction
    line: int
    vectors: int
    slice: int
    part: Part

    def launch(self, kernel: Kernel, target: object, source: object, weight: object, bias: object | None) -> Launch:
        """Of a kernel of `lanes_parameters`."""
        g, part = self.g, self.part
        m, channels = channels_of(g, self.direction)
        source_size, target_size = (g.image, g.result) if self.direction == "forward" else (g.result, g.image)
        bands = ceil_div(target_size[1], part.lines)
        arguments = {"T": target, "S": source, "F": weight, **({"E": bias} if bias is not None else {})}
        arguments |= {"batch": g.batch, "M": m, "channels": channels, "block_rows": part.channels}
        arguments |= {"slice": self.slice, "box_i": part.images, "box_y": part.lines, "boxes_y": bands}
        arguments |= geometry_arguments(g, source_size, target_size)
        groups = (ceil_div(g.batch, part.images) * bands, ceil_div(m, part.channels), g.groups)
        return Launch(kernel, groups, arguments)


def choose_lanes(storage: str, g: Geometry, direction: Direction, on: Target) -> Lanes | None:
    """Nothing where boxes cost no more, lines have no equal parts, a filter has too many taps, or the device has too
    few registers."""
    math = arithmetic(storage, on.simd_width)
    if on.form != "cpu" or on.registers < 32:  # fewer are too few for these sums
        return None
    sizes, (m, channels) = on.tuning.lanes, channels_of(g, direction)
    best: Lanes | None = None
    for line in line_parts(g, direction):
        # As few panels as there must be, and each no wider than it must be.
        wide = ceil_div(m, math.width)
        vectors = ceil_div(wide, ceil_div(wide, LINES[line]))
        tile = _tile(math, on.tuning.blocks, line, vectors)
        if prod(g.taps) > tile.depth:
            return None
        slice_ = ceil_div(channels, ceil_div(channels, tile.depth // prod(g.taps)))
        part = best_part(math, tile, g, direction, channels, slice_, sizes.transpose, on)
        if part is not None and (best is None or part.cost < sizes.longer * best.part.cost):
            best = Lanes(g, direction, line, vectors, slice_, part)
    if best is None:
        return None
    by_boxes = box_cost(storage, g, direction, on)
    return None if by_boxes is not None and sizes.boxes * by_boxes <= best.part.cost else best


def lanes_launch(
    storage: str, lanes: Lanes, target: object, source: object, weight: object, bias: object | None, on: Target
) -> Launch:
    """The launch of what `choose_lanes` has found."""
    blocks, width = on.tuning.blocks, on.simd_width
    kernel = lanes_kernel(storage, lanes.direction, bias is not None, blocks, lanes.line, lanes.vectors, width)
    return lanes.launch(kernel, target, source, weight, bias)
