"""Sampling an image at the places of a grid.

A place is, along each axis, a few pixels with weights: one for "nearest", two for "linear", four for "cubic". All their
combinations are the place's taps. Kernels find the taps of a block of places first, and then go over the channels. The
CPU's blocks are long, so that the loop over their places vectorises; the GPU's are single places.

Places lie in -1 .. 1, whose ends are the centres of the corner pixels or, unless corners are aligned, the corners'
edges. What lies outside is zero, the nearest pixel of the border, or mirrored at the border (torch's
aten/src/ATen/native/GridSampler.h).

The image's gradient is scattered by work-items that own a stripe of it each and go over all places in order, so that
there are no atomics and results repeat.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cache

from torchgraft.codegen.arithmetic import arithmetic
from torchgraft.codegen.kernel import Kernel, Parameter, Pointer, Value
from torchgraft.codegen.types import BY_NAME

GROUP = 64
CPU_BLOCK = 64

_AXES = ("x", "y", "z")

INTERPOLATIONS = ("linear", "nearest", "cubic")
PADDINGS = ("zeros", "border", "reflection")
"""In the order of torch's numbers."""

_SPANS = {"nearest": 1, "linear": 2, "cubic": 4}


@dataclass(frozen=True)
class Sampling:
    """How places become pixels.

    Attributes:
        storage: the element type of image and grid.
        dims: of an image.
        interpolation: of `INTERPOLATIONS`.
    """

    storage: str
    dims: int
    interpolation: str

    @property
    def axes(self) -> tuple[str, ...]:
        return _AXES[: self.dims]

    @property
    def span(self) -> int:
        """Pixels along one axis."""
        return _SPANS[self.interpolation]

    @property
    def taps(self) -> int:
        return int(self.span**self.dims)

    @property
    def real(self) -> str:
        """The type that is computed in."""
        return BY_NAME[BY_NAME[self.storage].compute].storage


_PLACE = """
inline real tg_scale(real coordinate, int size, int aligned, real* slope) {
  *slope = (real)(size - aligned) / 2;
  return aligned ? (coordinate + 1) / 2 * (size - 1) : ((coordinate + 1) * size - 1) / 2;
}
inline real tg_pad(real place, int size, int padding, int aligned, real* slope) {
  if (padding == 0) return place;
  real within = place;
  if (padding == 2) {
    // Twice the mirrors' places, which may lie between pixels.
    const int low = aligned ? 0 : -1, high = aligned ? 2 * (size - 1) : 2 * size - 1;
    if (low == high) { *slope = 0; return 0; }
    const real from = (real)low / 2, span = (real)(high - low) / 2;
    const real way = fabs(place - from), there = way - floor(way / (2 * span)) * (2 * span);
    const int back = there >= span;
    if ((place < from) != back) *slope = -*slope;
    within = (back ? 2 * span - there : there) + from;
  }
  if (!(within > 0 && within < size - 1)) *slope = 0;
  return fmin(fmax(within, (real)0), (real)(size - 1));
}
inline int tg_pixel(real place, int size) { return place >= 0 && place < size ? (int)place : -1; }"""

_CUBIC = """
inline real tg_near(real x) { return ((real)1.25 * x - (real)2.25) * x * x + 1; }
inline real tg_far(real x) { return (((real)-0.75 * x + (real)3.75) * x - 6) * x + 3; }
inline real tg_near_slope(real x) { return ((real)3.75 * x - (real)4.5) * x; }
inline real tg_far_slope(real x) { return ((real)-2.25 * x + (real)7.5) * x - 6; }"""

# Sets what tap j of an axis is: its pixel, its weight, and how the weight grows with the place.
_TAPS = {
    "nearest": """
  const real place = tg_pad(tg_scale(coordinate, size, aligned, slope), size, padding, aligned, slope);
  at[0] = tg_pixel(rint(place), size);
  weights[0] = 1;
  slopes[0] = 0;""",
    "linear": """
  const real place = tg_pad(tg_scale(coordinate, size, aligned, slope), size, padding, aligned, slope);
  const real base = floor(place);
  for (int j = 0; j < 2; ++j) at[j] = tg_pixel(base + j, size);
  weights[0] = base + 1 - place;
  weights[1] = place - base;
  slopes[0] = -1;
  slopes[1] = 1;""",
    "cubic": """
  // Each tap is brought inside by itself, with the weight that it has outside.
  const real place = tg_scale(coordinate, size, aligned, slope), base = floor(place), t = place - base;
  real unused = 1;
  for (int j = 0; j < 4; ++j) at[j] = tg_pixel(tg_pad(base - 1 + j, size, padding, aligned, &unused), size);
  weights[0] = tg_far(1 + t); weights[1] = tg_near(t); weights[2] = tg_near(1 - t); weights[3] = tg_far(2 - t);
  slopes[0] = tg_far_slope(1 + t); slopes[1] = tg_near_slope(t);
  slopes[2] = -tg_near_slope(1 - t); slopes[3] = -tg_far_slope(2 - t);""",
}


def _helpers(s: Sampling) -> str:
    return f"""
#define real {s.real}
{_PLACE}
{_CUBIC if s.interpolation == "cubic" else ""}
inline void tg_axis(real coordinate, int size, int padding, int aligned, int* at, real* weights, real* slopes,
                    real* slope) {{
  {_TAPS[s.interpolation]}
}}"""


def _params(s: Sampling, *more: str) -> tuple[Parameter, ...]:
    """`padding` is a number of `PADDINGS`. The steps are the image's; the channels' planes of the target are
    contiguous."""
    sizes = (Value(f"size_{axis}", "i32") for axis in s.axes)
    steps = (Value(name, "i64") for name in ("batch_step", "channel_step", "pixel_step"))
    numbers = (Value(name, "i32") for name in ("padding", "aligned", "channels"))
    return (*numbers, Value("places", "i64"), *sizes, *steps, *(Value(name, "i64") for name in more))


def _find_taps(s: Sampling, block: int, slopes: bool) -> str:
    """Finds pixels[] and weights[] of the taps of `count` places from `begin` on; outside the image a weight is 0. With
    `slopes` also by what each tap's weight grows along each axis."""
    n, span = s.taps, s.span
    declared = f"int pixels[{n * block}]; real weights[{n * block}];"
    if slopes:
        declared += "".join(f" real slopes_{a}[{n * block}];" for a in s.axes)
    axes = "\n".join(
        f"int at_{a}[{span}]; real w_{a}[{span}], d_{a}[{span}], slope_{a};\n"
        f"tg_axis(load_{s.storage}(D, (image * places + begin + b) * {s.dims} + {i}), "
        f"size_{a}, padding, aligned, at_{a}, w_{a}, d_{a}, &slope_{a});"
        for i, a in enumerate(s.axes)
    )
    lines = []
    for number, ks in enumerate(itertools.product(range(span), repeat=s.dims)):
        index = dict(zip(reversed(s.axes), ks, strict=True))  # x varies fastest
        inside = " && ".join(f"at_{a}[{index[a]}] >= 0" for a in s.axes)
        place = "0"
        for a in reversed(s.axes):
            place = f"({place} * size_{a} + at_{a}[{index[a]}])" if place != "0" else f"at_{a}[{index[a]}]"
        lines.append(f"const bool inside{number} = {inside};")
        lines.append(f"pixels[{number * block} + b] = inside{number} ? {place} : 0;")
        weight = " * ".join(f"w_{a}[{index[a]}]" for a in s.axes)
        lines.append(f"weights[{number * block} + b] = inside{number} ? {weight} : 0;")
        if slopes:
            for along in s.axes:
                factors = [f"{'d' if a == along else 'w'}_{a}[{index[a]}]" for a in s.axes]
                growth = " * ".join([f"slope_{along}", *factors])
                lines.append(f"slopes_{along}[{number * block} + b] = inside{number} ? {growth} : 0;")
    body = "\n    ".join(lines)
    return f"""{declared}
for (int b = 0; b < count; ++b) {{
  {axes}
    {body}
}}"""


def _block(block: int) -> str:
    return f"""const long image = GLOBAL_ID(1), begin = (long)GLOBAL_ID(0) * {block};
if (begin >= places) return;
const int count = min(places - begin, (long){block});"""


def _local(block: int) -> tuple[int, int]:
    return (GROUP, 1) if block == 1 else (1, 1)


@cache
def sample_kernel(s: Sampling, block: int) -> Kernel:
    """A work-item for each block of places of an image."""
    math = arithmetic(s.storage)
    terms = [
        f"(weights[{k * block} + b] != 0 ? weights[{k * block} + b] * "
        f"{math.load('S', f'at + pixels[{k * block} + b] * pixel_step')} : 0)"
        for k in range(s.taps)
    ]
    body = f"""
{_block(block)}
{_find_taps(s, block, False)}
for (int c = 0; c < channels; ++c) {{
  const long at = image * batch_step + c * channel_step, to = (image * channels + c) * places + begin;
  VECTORIZE
  for (int b = 0; b < count; ++b) {{
    {math.store("T", "to + b", " + ".join(terms))};
  }}
}}"""
    pointers = (Pointer("T", s.storage), Pointer("S", s.storage, True), Pointer("D", s.storage, True))
    return Kernel(f"grid_sample{s.dims}d", (*pointers, *_params(s)), body, _helpers(s), _local(block))


@cache
def grid_gradient_kernel(s: Sampling, block: int) -> Kernel:
    """The grid's gradient: a work-item for each block of places of an image. G is the result's gradient."""
    math = arithmetic(s.storage)
    sums = "".join(f" real sum_{a}[{block}];" for a in s.axes)
    clear = " ".join(f"sum_{a}[b] = 0;" for a in s.axes)
    steps = []
    for k in range(s.taps):
        steps.append(f"const real v{k} = g * {math.load('S', f'at + pixels[{k * block} + b] * pixel_step')};")
        for a in s.axes:
            slope = f"slopes_{a}[{k * block} + b]"
            steps.append(f"sum_{a}[b] += {slope} != 0 ? {slope} * v{k} : 0;")
    stores = " ".join(
        math.store("T", f"(image * places + begin + b) * {s.dims} + {i}", f"sum_{a}[b]") + ";"
        for i, a in enumerate(s.axes)
    )
    text = "\n    ".join(steps)
    body = f"""
{_block(block)}
{_find_taps(s, block, True)}
{sums}
for (int b = 0; b < count; ++b) {{ {clear} }}
for (int c = 0; c < channels; ++c) {{
  const long at = image * batch_step + c * channel_step, from = (image * channels + c) * places + begin;
  VECTORIZE
  for (int b = 0; b < count; ++b) {{
    const real g = {math.load("G", "from + b")};
    {text}
  }}
}}
for (int b = 0; b < count; ++b) {{ {stores} }}"""
    pointers = tuple(Pointer(name, s.storage, name != "T") for name in ("T", "G", "S", "D"))
    return Kernel(f"grid_sample{s.dims}d_grid_backward", (*pointers, *_params(s)), body, _helpers(s), _local(block))


@cache
def image_gradient_kernel(s: Sampling, block: int) -> Kernel:
    """The image's gradient, in the type that is computed in. Each work-item owns `share` channels of an image, and
    `stripe` pixels of their planes; there are `stripes` of these."""
    math = arithmetic(s.storage)
    adds = "\n      ".join(
        f"if (weights[{k * block} + b] != 0 && (ulong)(pixels[{k * block} + b] - low) < (ulong)many) "
        f"t[pixels[{k * block} + b]] += weights[{k * block} + b] * g;"
        for k in range(s.taps)
    )
    pixels = " * ".join(f"(long)size_{a}" for a in s.axes)
    body = f"""
const long shares = (channels + share - 1) / share, item = GLOBAL_ID(0), image = item / stripes / shares;
if (image >= images) return;
const int first = item / stripes % shares * share, last = min(first + (int)share, channels);
const long plane = {pixels}, low = item % stripes * stripe, many = clamp(plane - low, 0l, stripe);
for (int c = first; c < last; ++c)
  for (long i = low; i < low + many; ++i) T[(image * channels + c) * plane + i] = 0;
for (long begin = 0; begin < places; begin += {block}) {{
  const int count = min(places - begin, (long){block});
  {_find_taps(s, block, False)}
  for (int c = first; c < last; ++c) {{
    GLOBAL real* t = T + (image * channels + c) * plane;
    for (int b = 0; b < count; ++b) {{
      const real g = {math.load("G", "(image * channels + c) * places + begin + b")};
      {adds}
    }}
  }}
}}"""
    accumulated = BY_NAME[s.storage].compute
    pointers = (Pointer("T", accumulated), Pointer("G", s.storage, True), Pointer("D", s.storage, True))
    params = (*pointers, *_params(s, "images", "share", "stripes", "stripe"))
    local = _local(block)[:1]
    return Kernel(f"grid_sample{s.dims}d_image_backward", params, body, _helpers(s), local)
