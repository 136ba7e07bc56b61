"""The patches of images as a matrix in memory, and images from the sums of such patches, on CPUs.

A kernel that copies what it needs of an image (`boxes`) is quicker where images are large. But small images do
not fill its vectors; and where a CPU multiplies small matrices of bfloat16 by instructions (`kernels.bfloat16`), a
weight's gradient is so quick a product that to copy in float32 takes twice as long as to copy all patches.

* `plane_patches_kernel` and `plane_sums_kernel` have an image with its surroundings in private memory.
* `patches_kernel` and `patch_sums_kernel` are for images that are too large for that.
* `zip_kernel` puts patches that lie beside each other in a row of two or four columns each back into an image.
"""

from __future__ import annotations

from functools import cache
from math import prod

from torchgraft.codegen import ceil_div
from torchgraft.codegen.arithmetic import arithmetic
from torchgraft.codegen.kernel import Kernel, Launch, parameters
from torchgraft.codegen.types import BY_NAME
from torchgraft.codegen.vectors import WIDTHS
from torchgraft.kernels.convolution.geometry import GEOMETRY, Geometry, geometry_arguments
from torchgraft.kernels.products import plain_loops

# What is copied, by an element's bytes: as integers.
_WORDS = {1: ("i8", "char", 16), 2: ("i16", "short", 16), 4: ("i32", "int", 16), 8: ("i64", "long", 8)}

LARGEST_PLANES = 4096
"""Elements of an image and what surrounds it that patches are copied from in private memory."""

LARGEST_IMAGE = 2048
"""Pixels of an image that patches are summed to: they are in private memory."""


# What a tap has to do with a line of the result: its pixels from number `low` to `high` meet pixels of the image, the
# first would at `at`, relative to the image's beginning. `line` is its first pixel.
_LINES = """
const int dx = kx * dilation_x - padding_x;
const int first = dx >= 0 ? 0 : min(target_x, (-dx + stride_x - 1) / stride_x);
const int last = source_x > dx ? min(target_x, (source_x - dx - 1) / stride_x + 1) : 0;
long line = 0;
for (int tz = 0; tz < target_z; ++tz)
  for (int ty = 0; ty < target_y; ++ty, line += target_x) {{
    const int z = tz * stride_z + kz * dilation_z - padding_z, y = ty * stride_y + ky * dilation_y - padding_y;
    const bool inside = (uint)z < (uint)source_z && (uint)y < (uint)source_y;
    const int low = inside ? first : target_x, high = inside ? last : 0;
    const long at = ((long)z * source_y + y) * source_x + dx;
    {each}
  }}"""
_SIZES = """
const int taps = taps_z * taps_y * taps_x;
const long source_pixels = (long)source_z * source_y * source_x, pixels = (long)target_z * target_y * target_x;"""


def _lanes(element: str, lanes: int) -> str:
    return f"MAKE_{element}{lanes}({', '.join(str(lane) for lane in range(lanes))})"


def _copy_line(word: str, element: str, lanes: int) -> str:
    """The pixels of a line of patches, and zeros where they meet none. Whole vectors reach beyond the line: what is
    written there is overwritten by the next one, or by the next image.
    """
    vector = f"{element}{lanes}"
    load, store, zero = f"load_{word}x{lanes}", f"store_{word}x{lanes}", f"SPLAT_{vector}(0)"
    whole = f"{load}(elements, from + i)"
    return f"""
const long from = plane + at;
int i = 0;
if (stride_x == 1) {{
  for (; i < target_x && line + i + {lanes} <= room; i += {lanes}) {{
    if (high <= i || low >= i + {lanes}) {{ {store}(patches, line + i, {zero}); continue; }}
    if (from + i < 0 || from + i + {lanes} > source_end) break;
    if (low <= i && high >= i + {lanes}) {{ {store}(patches, line + i, {whole}); continue; }}
    const {vector} lane = {_lanes(element, lanes)}, begin = SPLAT_{vector}(({element})max(low - i, 0));
    const {vector} end = SPLAT_{vector}(({element})min(high - i, {lanes}));
    {store}(patches, line + i, SELECT((lane >= begin) & (lane < end), {whole}, {zero}));
  }}
}}
for (; i < target_x; ++i) patches[line + i] = i >= low && i < high ? elements[from + (long)i * stride_x] : 0;"""


@cache
def patches_kernel(storage: str) -> Kernel:
    """P[channel, tap, image, pixel]: what the tap of the filter reads of the channel for the pixel of the result. A
    group has a tap of a channel.

    Parameters: P, S, `channels`, `images`, and the geometry's.
    """
    word, element, lanes = _WORDS[BY_NAME[storage].size]
    body = f"""{_SIZES}
const long channel = GROUP_ID(0) / taps;
const int tap = GROUP_ID(0) % taps, kz = tap / (taps_y * taps_x), ky = tap / taps_x % taps_y, kx = tap % taps_x;
const long source_end = images * channels * source_pixels;
GLOBAL const {element}* const elements = (GLOBAL const {element}*)S;
GLOBAL {element}* patches = (GLOBAL {element}*)P + GROUP_ID(0) * images * pixels;
for (int image = 0; image < images; ++image, patches += pixels) {{
  const long plane = (image * channels + channel) * source_pixels, room = (images - image) * pixels;
  {_LINES.format(each=_copy_line(word, element, lanes))}
}}"""
    params = parameters(f"{storage}* P; const {storage}* S; i64 channels, images; {GEOMETRY}")
    return Kernel(f"patches_{storage}", params, plain_loops(body), local=(1,))


# A plane with what surrounds it, as taps see it: row py of it is row py - padding_y of the image. Columns that are a
# stride apart lie beside each other: a row has a part for each remainder.
_SURROUNDED = """
#define EXTENT(a) max((target_##a - 1) * stride_##a + (taps_##a - 1) * dilation_##a + 1, source_##a + padding_##a)
const int deep = EXTENT(z), high = EXTENT(y), part = (EXTENT(x) + stride_x - 1) / stride_x, pitch = part * stride_x;"""

# For each tap of the filter: where what it reads of a plane begins.
_TAPS = """
for (int kz = 0, tap = 0; kz < taps_z; ++kz)
  for (int ky = 0; ky < taps_y; ++ky)
    for (int kx = 0; kx < taps_x; ++kx, ++tap) {{
      const int column = kx * dilation_x, first = (kz * dilation_z * high + ky * dilation_y) * pitch +
                                                  column % stride_x * part + column / stride_x;
      {each}
    }}"""
# For each line of the result: its number of pixels before it, and where it lies from what the tap reads first.
_TAP_LINES = """
int line = 0;
for (int tz = 0; tz < target_z; ++tz)
  for (int ty = 0; ty < target_y; ++ty, line += target_x) {{
    const int at = first + (tz * stride_z * high + ty * stride_y) * pitch;
    {each}
  }}"""


def _surround(word: str, element: str, lanes: int) -> str:
    """Copies the image at `plane` to `planes`. Vectors stick out into what is written after them."""
    vector = f"{element}{lanes}"
    load = f"load_{word}x{lanes}"

    def zeros(first: str, end: str) -> str:
        return f"for (int i = {first}; i < {end}; i += {lanes}) *({vector}u*)(row + i) = SPLAT_{vector}(0);"

    return f"""
{element}* row = planes;
for (int pz = 0; pz < deep; ++pz)
  for (int py = 0; py < high; ++py) {{
    const int z = pz - padding_z, y = py - padding_y;
    if ((uint)z >= (uint)source_z || (uint)y >= (uint)source_y) {{ {zeros("0", "pitch")} row += pitch; continue; }}
    const long line = plane + ((long)z * source_y + y) * source_x;
    for (int remainder = 0; remainder < stride_x; ++remainder, row += part) {{
      const int begin = max(0, (padding_x - remainder + stride_x - 1) / stride_x);
      const int x = begin * stride_x + remainder - padding_x;
      const int end = begin + max(0, (source_x - x + stride_x - 1) / stride_x);
      const long from = line + x;
      {zeros("0", "begin")}
      int i = 0;
      if (stride_x == 1) {{
        for (; begin + i < end && from + i + {lanes} <= source_end; i += {lanes})
          *({vector}u*)(row + begin + i) = {load}(elements, from + i);
      }} else if (stride_x == 2) {{
        for (; begin + i < end && from + 2 * i + {2 * lanes} <= source_end; i += {lanes})
          *({vector}u*)(row + begin + i) =
            EVEN_{vector}({load}(elements, from + 2 * i), {load}(elements, from + 2 * i + {lanes}));
      }}
      for (; begin + i < end; ++i) row[begin + i] = elements[from + (long)i * stride_x];
      {zeros("end", "part")}
    }}
  }}"""


@cache
def plane_patches_kernel(storage: str, lanes: int) -> Kernel:
    """As `patches_kernel` for images that fit into private memory with what surrounds them, so that no line of a patch
    has a border. A group has a channel."""
    word, element, _ = _WORDS[BY_NAME[storage].size]
    copy = f"""
int i = 0;
for (; i < target_x && line + i + {lanes} <= room; i += {lanes})
  store_{word}x{lanes}(to, line + i, *(const {element}{lanes}u*)(planes + at + i));
for (; i < target_x; ++i) to[line + i] = planes[at + i];"""
    copies = f"""
GLOBAL {element}* const to = (GLOBAL {element}*)P + ((channel * taps + tap) * images + image) * pixels;
{_TAP_LINES.format(each=copy)}"""
    body = f"""{_SIZES}{_SURROUNDED}
const long channel = GROUP_ID(0), source_end = images * channels * source_pixels;
GLOBAL const {element}* const elements = (GLOBAL const {element}*)S;
{element} planes[{LARGEST_PLANES + 2 * 16}];
for (int image = 0; image < images; ++image) {{
  const long plane = (image * channels + channel) * source_pixels;
  {{ {_surround(word, element, lanes)} }}
  // What is written beyond a line's end is overwritten by the next line, or by the next image's.
  const long room = (images - image) * pixels;
  {_TAPS.format(each=copies)}
}}"""
    params = parameters(f"{storage}* P; const {storage}* S; i64 channels, images; {GEOMETRY}")
    return Kernel(f"patches_of_planes_{storage}", params, plain_loops(body), local=(1,))


@cache
def plane_sums_kernel(storage: str, bias: bool, lanes: int) -> Kernel:
    """As `patch_sums_kernel` for images that fit into private memory with what surrounds them. A group has a channel
    of an image."""
    math = arithmetic(storage, 16)
    element, value = math.scalar, math.value
    _, number, _ = _WORDS[BY_NAME[value].size]
    vector, mask = f"{element}{lanes}", f"{number}{lanes}"
    add = f"""
for (int i = 0; i < target_x; i += {lanes}) {{
  if (patch + line + i + {lanes} <= patches) {{
    const {mask} inside = {_lanes(number, lanes)} < SPLAT_{mask}(target_x - i);
    *({vector}u*)(planes + at + i) +=
      SELECT(inside, load_{value}x{lanes}(P, patch + line + i), SPLAT_{vector}(0));
  }} else
    for (int l = i; l < target_x; ++l) planes[at + l] += P[patch + line + l];
}}"""
    sums = f"const long patch = ((channel * taps + tap) * images + image) * pixels; {_TAP_LINES.format(each=add)}"
    store = arithmetic(storage, lanes * math.size // 4)
    more = f"+ {math.load('B', 'channel')}" if bias else ""
    body = f"""{_SIZES}{_SURROUNDED}
const long image = GROUP_ID(0) / channels, channel = GROUP_ID(0) % channels;
const long patches = channels * taps * images * pixels;
{element} planes[{LARGEST_PLANES + 2 * 16}];
for (int i = 0; i < deep * high * pitch; i += {lanes}) *({vector}u*)(planes + i) = SPLAT_{vector}(0);
{_TAPS.format(each=sums)}
long to = (image * channels + channel) * source_pixels;
const long end = to + source_pixels;
for (int z = 0; z < source_z; ++z)
  for (int y = 0; y < source_y; ++y, to += source_x) {{
    const {element}* const row = planes + ((z + padding_z) * high + y + padding_y) * pitch;
    int i = 0;
    // What is written beyond a row's end is overwritten by the next one.
    if (stride_x == 1)
      for (; i < source_x && to + i + {lanes} <= end; i += {lanes}) {{
        const {vector} sum = *(const {vector}u*)(row + padding_x + i) {f"+ SPLAT_{vector}({more[2:]})" if bias else ""};
        {store.store_vector("T", "to + i", "sum")};
      }}
    for (; i < source_x; ++i) {{
      const int x = padding_x + i;
      {math.store("T", "to + i", f"row[x % stride_x * part + x / stride_x] {more}")};
    }}
  }}"""
    inputs = f"const {value}* P; i64 channels, images; {GEOMETRY}{f'; const {storage}* B' if bias else ''}"
    return Kernel(f"plane_sums_{storage}", parameters(f"{storage}* T; {inputs}"), plain_loops(body), local=(1,))


def _surrounded(g: Geometry) -> int:
    """Elements of an image with what surrounds it, in rows of whole parts."""

    def extent(axis: int) -> int:
        reach = (g.result[axis] - 1) * g.stride[axis] + (g.taps[axis] - 1) * g.dilation[axis] + 1
        return max(reach, g.image[axis] + g.padding[axis])

    z, y, x = map(extent, range(3))
    return z * y * ceil_div(x, g.stride[2]) * g.stride[2]


def _line_lanes(g: Geometry, most: int) -> int:
    """Elements of the vectors that lines of the result are moved in."""
    return min(8, most) if g.result[2] <= 8 else most


def patches_launch(storage: str, g: Geometry, patches: object, image: object) -> Launch:
    """Fills `patches`: [channels of the image, taps, images, pixels of the result]."""
    arguments = {"P": patches, "S": image, "channels": g.image_channels, "images": g.batch}
    arguments |= geometry_arguments(g, g.image, g.result)
    if _surrounded(g) <= LARGEST_PLANES:
        lanes = _line_lanes(g, _WORDS[BY_NAME[storage].size][2])
        return Launch(plane_patches_kernel(storage, lanes), (g.image_channels,), arguments)
    return Launch(patches_kernel(storage), (g.image_channels * prod(g.taps),), arguments)


def _add_line(storage: str, element: str, lanes: int, number: str) -> str:
    """Adds a line of patches to the image. Whole vectors reach beyond what meets pixels: zeros are added there."""
    vector, mask = f"{element}{lanes}", f"{number}{lanes}"
    inside = f"{_lanes(number, lanes)} < SPLAT_{mask}(high - i)"
    added = f"SELECT({inside}, load_{storage}x{lanes}(P, patch + line + i), SPLAT_{vector}(0))"
    return f"""
{element}* const to = sums + {lanes} + at;
int i = low;
if (stride_x == 1) {{
  for (; i < high && patch + line + i + {lanes} <= patches; i += {lanes}) *({vector}u*)(to + i) += {added};
}}
for (; i < high; ++i) to[(long)i * stride_x] += P[patch + line + i];"""


@cache
def patch_sums_kernel(storage: str, bias: bool) -> Kernel:
    """The opposite of `patches_kernel`: T[image, channel, pixel] is the sum of all that a tap reads of the pixel, and
    of the channel's bias. P is of float32 or float64, as T's elements are computed with. An image has at most
    `LARGEST_IMAGE` pixels. A group has a channel of an image.

    Parameters: T, P, `channels`, `images`, the geometry's; with a bias also B.
    """
    math = arithmetic(storage, 16)
    element, lanes, value = math.scalar, math.width, math.value
    _, number, _ = _WORDS[BY_NAME[value].size]
    body = f"""{_SIZES}
const long image = GROUP_ID(0) / channels, channel = GROUP_ID(0) % channels;
const long plane = (image * channels + channel) * source_pixels, patches = channels * taps * images * pixels;
{element} sums[{LARGEST_IMAGE + 2 * lanes}];
for (int i = 0; i < source_pixels; i += {lanes})
  *({element}{lanes}u*)(sums + {lanes} + i) = SPLAT_{element}{lanes}({math.load("B", "channel") if bias else "0"});
for (int tap = 0; tap < taps; ++tap) {{
  const int kz = tap / (taps_y * taps_x), ky = tap / taps_x % taps_y, kx = tap % taps_x;
  const long patch = ((channel * taps + tap) * images + image) * pixels;
  {_LINES.format(each=_add_line(value, element, lanes, number))}
}}
int i = 0;
for (; i + {lanes} <= source_pixels; i += {lanes})
  {math.store_vector("T", "plane + i", f"*({element}{lanes}u*)(sums + {lanes} + i)")};
for (; i < source_pixels; ++i) {math.store("T", "plane + i", f"sums[{lanes} + i]")};"""
    more = f"; const {storage}* B" if bias else ""
    params = parameters(f"{storage}* T; const {value}* P; i64 channels, images; {GEOMETRY}{more}")
    return Kernel(f"patch_sums_{storage}", params, plain_loops(body), local=(1,))


def patch_sums_launch(storage: str, g: Geometry, image: object, patches: object, bias: object | None) -> Launch:
    """Fills the image from patches as `patches_launch` makes them."""
    arguments = {"T": image, "P": patches, "channels": g.image_channels, "images": g.batch}
    arguments |= geometry_arguments(g, g.image, g.result) | ({} if bias is None else {"B": bias})
    if _surrounded(g) <= LARGEST_PLANES:
        kernel = plane_sums_kernel(storage, bias is not None, _line_lanes(g, arithmetic(storage, 16).width))
    else:
        kernel = patch_sums_kernel(storage, bias is not None)
    return Launch(kernel, (g.image_channels * g.batch,), arguments)


def _zipped(vectors: list[str], vector: str) -> list[str]:
    """The lanes of all vectors in turn, in as many vectors: a power of two."""
    if len(vectors) == 1:
        return vectors
    pairs = zip(_zipped(vectors[::2], vector), _zipped(vectors[1::2], vector), strict=True)
    return [f"{name}_{vector}({a}, {b})" for a, b in pairs for name in ("ZIP_LOW", "ZIP_HIGH")]


@cache
def zip_kernel(storage: str, together: int, lanes: int) -> Kernel:
    """T[image, z, y, x] from P[image, tap, pixel] of patches that lie beside each other, of `together` columns. A group
    has an image, or a channel of one, which have so many pixels in a line as vectors have lanes."""
    word, element, _ = _WORDS[BY_NAME[storage].size]
    vector = f"{element}{lanes}"
    loads = " ".join(f"const {vector} v{k} = load_{word}x{lanes}(from, {k} * pixels + x);" for k in range(together))
    stores = "\n".join(
        f"store_{word}x{lanes}(to, x * {together} + {i * lanes}, {v});"
        for i, v in enumerate(_zipped([f"v{k}" for k in range(together)], vector))
    )
    body = f"""{_SIZES}
GLOBAL {element}* to = (GLOBAL {element}*)T + GROUP_ID(0) * source_pixels;
GLOBAL const {element}* const patches = (GLOBAL const {element}*)P + GROUP_ID(0) * taps * pixels;
for (int z = 0; z < source_z; ++z)
  for (int y = 0; y < source_y; ++y, to += source_x) {{
    const int tap = (z % taps_z * taps_y + y % taps_y) * taps_x, line = (z / taps_z * target_y + y / taps_y) * target_x;
    GLOBAL const {element}* const from = patches + tap * pixels + line;
    for (int start = 0; start < target_x; start += {lanes}) {{
      const int x = min(start, target_x - {lanes});
      {loads}
      {stores}
    }}
  }}"""
    params = parameters(f"{storage}* T; const {storage}* P; {GEOMETRY}")
    return Kernel(f"zip_patches_{storage}", params, plain_loops(body), local=(1,))


def zip_launch(storage: str, g: Geometry, image: object, patches: object) -> Launch | None:
    """Fills the image from patches, [images, channels, taps, pixels of the result]; nothing if there are no two or four
    columns, or fewer pixels in a line than vectors have lanes."""
    widest = _WORDS[BY_NAME[storage].size][2]
    lanes = next((width for width in reversed(WIDTHS) if width <= min(widest, g.result[2])), 0)
    if g.taps[2] not in (2, 4) or not lanes:
        return None
    arguments = {"T": image, "P": patches, **geometry_arguments(g, g.image, g.result)}
    return Launch(zip_kernel(storage, g.taps[2], lanes), (g.batch * g.image_channels,), arguments)
