"""Sampling an image at the places of a grid.

A place is, along each axis, a few pixels with weights: one for "nearest", two for "linear", four for "cubic". All their
combinations are the place's taps. Kernels find the taps of a block of places first, and then go over the channels. The
CPU's blocks are long, so that the loop over their places vectorises; the GPU's are single places. Places are the rows
of a team: `outer` images, of which each has `inner` places side by side.

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
from torchgraft.codegen.kernel import Kernel, Parameter, parameters
from torchgraft.codegen.places import add_into_place
from torchgraft.codegen.teams import Layout, Team
from torchgraft.codegen.types import BY_NAME, value_ctype
from torchgraft.codegen.walk import FEW, Walk

#: Places that a CPU treats at once.
BLOCK = 64

AXES = ("x", "y", "z")

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
        reflects: whether the padding is "reflection", which takes as long as all the rest.
    """

    storage: str
    dims: int
    interpolation: str
    reflects: bool

    @property
    def axes(self) -> tuple[str, ...]:
        return AXES[: self.dims]

    @property
    def span(self) -> int:
        """Pixels along one axis."""
        return _SPANS[self.interpolation]

    @property
    def taps(self) -> int:
        return int(self.span**self.dims)

    def outside(self, weight: str) -> str:
        """A tap's weight outside the image, of what it would be inside: 0. Of places that are no numbers, or infinite,
        it is NaN in planes, where torch's CPU multiplies weights by zeros; in volumes it leaves such taps out."""
        return f"0 * ({weight})" if self.dims == 2 else "0"

    @property
    def compute(self) -> str:
        """The element type that is computed in."""
        return BY_NAME[self.storage].compute


# Without branches and calls: the loop over places has vectors.
_PLACE = """
TG_FUNCTION real tg_scale(real coordinate, int size, int aligned, real* slope) {
  *slope = (real)(size - aligned) / 2;
  return aligned ? (coordinate + 1) / 2 * (size - 1) : ((coordinate + 1) * size - 1) / 2;
}
TG_FUNCTION real tg_pad(real place, int size, int padding, int aligned, real* slope) {
  const real edge = size - 1;
  real within = place, grows = *slope;
#ifdef REFLECTS
  {
    // Twice the mirrors' places, which may lie between pixels. Of a single pixel they may be one, and any span will do.
    const int low = aligned ? 0 : -1, high = aligned ? 2 * (size - 1) : 2 * size - 1;
    const real from = (real)low / 2, span = low == high ? 1 : (real)(high - low) / 2;
    const real way = fabs(place - from), there = way - floor(way / (2 * span)) * (2 * span);
    const bool back = there >= span;
    grows = (place < from) != back ? -grows : grows;
    within = (back ? 2 * span - there : there) + from;
  }
#endif
  const bool inside = (within > 0) & (within < edge);
  within = within > 0 ? within : 0;
  within = within < edge ? within : edge;
  *slope = padding == 0 ? *slope : inside ? grows : 0;
  return padding == 0 ? place : within;
}
TG_FUNCTION int tg_pixel(real place, int size) { return place >= 0 && place < size ? (int)place : -1; }"""

_CUBIC = """
TG_FUNCTION real tg_near(real x) { return ((real)1.25 * x - (real)2.25) * x * x + 1; }
TG_FUNCTION real tg_far(real x) { return (((real)-0.75 * x + (real)3.75) * x - 6) * x + 3; }
TG_FUNCTION real tg_near_slope(real x) { return ((real)3.75 * x - (real)4.5) * x; }
TG_FUNCTION real tg_far_slope(real x) { return ((real)-2.25 * x + (real)7.5) * x - 6; }"""

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
  UNROLL for (int j = 0; j < 2; ++j) at[j] = tg_pixel(base + j, size);
  weights[0] = base + 1 - place;
  weights[1] = place - base;
  slopes[0] = -1;
  slopes[1] = 1;""",
    "cubic": """
  // Each tap is brought inside by itself, with the weight that it has outside.
  const real place = tg_scale(coordinate, size, aligned, slope), base = floor(place), t = place - base;
  real unused = 1;
  UNROLL for (int j = 0; j < 4; ++j) at[j] = tg_pixel(tg_pad(base - 1 + j, size, padding, aligned, &unused), size);
  weights[0] = tg_far(1 + t); weights[1] = tg_near(t); weights[2] = tg_near(1 - t); weights[3] = tg_far(2 - t);
  slopes[0] = tg_far_slope(1 + t); slopes[1] = tg_near_slope(t);
  slopes[2] = -tg_near_slope(1 - t); slopes[3] = -tg_far_slope(2 - t);""",
}


def _helpers(s: Sampling) -> str:
    return f"""
#define real {BY_NAME[s.compute].storage}
{"#define REFLECTS" if s.reflects else ""}
{_PLACE}
{_CUBIC if s.interpolation == "cubic" else ""}
TG_FUNCTION void tg_axis(real coordinate, int size, int padding, int aligned, int* at, real* weights, real* slopes,
                    real* slope) {{
  {_TAPS[s.interpolation]}
}}"""


def _params(s: Sampling, pointers: str, numbers: str) -> tuple[Parameter, ...]:
    """`padding` is a number of `PADDINGS`."""
    sizes = ", ".join(f"size_{axis}" for axis in s.axes)
    return parameters(f"{pointers}; i32 padding, aligned, channels, {sizes}; i64 {numbers}")


# Of the image; the channels' planes of the target are contiguous.
_STEPS = "batch_step, channel_step, pixel_step"


def _found(s: Sampling, slopes: bool, index: str = "i32") -> dict[str, str]:
    """What `_find_taps` finds: names and element types."""
    found = {}
    for k in range(s.taps):
        found[f"pixel{k}"], found[f"weight{k}"] = index, s.compute
        found.update((f"slope{k}_{a}", s.compute) for a in s.axes if slopes)
    return found


def _find_taps(s: Sampling, place: str, slopes: bool, step: str = "", at: str = "", masked: bool = False) -> str:
    """Finds the taps of the place with that number: pixel<k>, times `step` if there is one, and weight<k>; outside the
    image a weight is as `outside` says, or 0 where taps are `masked`. With `slopes` also by what each tap's weight
    grows along each axis, slope<k>_<axis>. `at` is put behind the names."""
    span, lines = s.span, []
    times = f" * {step}" if step else ""
    for i, a in enumerate(s.axes):
        lines.append(f"int at_{a}[{span}]; real w_{a}[{span}], d_{a}[{span}], slope_{a};")
        coordinate = f"load_{s.storage}(grid, ({place}) * {s.dims} + {i})"
        lines.append(f"tg_axis({coordinate}, size_{a}, padding, aligned, at_{a}, w_{a}, d_{a}, &slope_{a});")
    for number, ks in enumerate(itertools.product(range(span), repeat=s.dims)):
        index = dict(zip(reversed(s.axes), ks, strict=True))  # x varies fastest
        inside = " && ".join(f"at_{a}[{index[a]}] >= 0" for a in s.axes)
        pixel = ""
        for a in reversed(s.axes):
            pixel = f"({pixel} * size_{a} + at_{a}[{index[a]}])" if pixel else f"at_{a}[{index[a]}]"
        lines.append(f"const bool inside{number} = {inside};")
        lines.append(f"pixel{number}{at} = inside{number} ? {pixel}{times} : 0;")
        weight = " * ".join(f"w_{a}[{index[a]}]" for a in s.axes)
        lines.append(f"weight{number}{at} = inside{number} ? {weight} : {'0' if masked else s.outside(weight)};")
        if slopes:
            for along in s.axes:
                factors = [f"{'d' if a == along else 'w'}_{a}[{index[a]}]" for a in s.axes]
                growth = " * ".join([f"slope_{along}", *factors])
                lines.append(f"slope{number}_{along}{at} = inside{number} ? {growth} : {s.outside(growth)};")
    return "\n    ".join(lines)


def _step(index: str) -> str:
    """From pixel to pixel, in the type of their places."""
    return f"({value_ctype(index)})pixel_step"


def _plane(s: Sampling) -> str:
    """The channel of the image, whose pixels `_pixel` loads."""
    return f"{arithmetic(s.storage).const_pointer} plane = image + o * batch_step + channel * channel_step;"


def _pixel(s: Sampling, k: int) -> str:
    return arithmetic(s.storage).load("plane", f"pixel{k}")


def _sum_of_taps(s: Sampling, team: Team, index: str) -> tuple[list[str], str]:
    """What finds the taps of places, and what stores the sum of their pixels in a channel."""
    found = [team.var(name, type_) for name, type_ in _found(s, False, index).items()]
    find = team.leader(_find_taps(s, f"o * inner + {team.column}", False, _step(index)))
    if team.layout.form == "gpu":
        loads, pixels = [], [_pixel(s, k) for k in range(s.taps)]
    else:  # a load that depends on nothing is no branch, where there are no vectors of such loads
        loads = [f"const real v{k} = {_pixel(s, k)};" for k in range(s.taps)]
        pixels = [f"v{k}" for k in range(s.taps)]
    terms = " + ".join(f"(weight{k} != 0 ? weight{k} * {pixel} : 0)" for k, pixel in enumerate(pixels))
    return [*found, find], f"{' '.join(loads)} store_{s.storage}(out, to + {team.column}, {terms});"


def _sum_of_rows(s: Sampling, team: Team, index: str) -> tuple[list[str], str]:
    """The same by sums along x and then y, for images: fewer numbers are found and kept than there are taps."""
    parts, ks, seen = [], range(s.span), ""
    for i, a in enumerate(s.axes):
        parts += [team.var(f"at_{a}{k}", index) for k in ks] + [team.var(f"weight_{a}{k}", s.compute) for k in ks]
        step = _step(index) if a == "x" else f"size_x * {_step(index)}"
        coordinate = f"load_{s.storage}(grid, (o * inner + {team.column}) * {s.dims} + {i})"
        lines = [
            f"int at[{s.span}]; real w[{s.span}], d[{s.span}], slope;",
            f"tg_axis({coordinate}, size_{a}, padding, aligned, at, w, d, &slope);",
            *(f"at_{a}{k} = at[{k}] >= 0 ? at[{k}] * {step} : 0;" for k in ks),
            # A row that is no number has a weight, or it would not be seen.
            *(f"weight_{a}{k} = at[{k}] >= 0 ? w[{k}] : {s.outside(f'w[{k}]{seen}')};" for k in ks),
        ]
        seen = f" * weight_{a}0"
        parts.append(team.leader(" ".join(lines)))
    add = ["real sum = 0;"]
    for y in ks:
        add += [f"const real v{y}{x} = {arithmetic(s.storage).load('plane', f'at_y{y} + at_x{x}')};" for x in ks]
        row = " + ".join(f"(weight_x{x} != 0 ? weight_x{x} * v{y}{x} : 0)" for x in ks)
        add.append(f"const real row{y} = {row}; sum += weight_y{y} != 0 ? weight_y{y} * row{y} : 0;")
    return parts, f"{' '.join(add)} store_{s.storage}(out, to + {team.column}, sum);"


@cache
def sample_kernel(layout: Layout, s: Sampling, index: str) -> Kernel:
    """Parameters: `out`, `image`, `grid`, and what `_params` and `_STEPS` tell. Places of pixels in a channel of the
    image have the element type `index`."""
    team = Team(layout, width=BLOCK)
    by_rows = s.interpolation == "cubic" and layout.form == "cpu"
    find, store = (_sum_of_rows if by_rows else _sum_of_taps)(s, team, index)
    channels = f"""for (int channel = 0; channel < channels; ++channel) {{
      {_plane(s)}
      const long to = (o * channels + channel) * inner;
      {team.leader(store)}
    }}"""
    params = _params(s, f"{s.storage}* out; const {s.storage}* image, grid", _STEPS)
    return team.kernel(f"grid_sample{s.dims}d", params, *find, channels, helpers=_helpers(s))


@cache
def grid_gradient_kernel(layout: Layout, s: Sampling, index: str) -> Kernel:
    """The grid's gradient. Parameters: `out`, the result's gradient `grad`, `image`, `grid`, and what `_params` and
    `_STEPS` tell; `index` as of `sample_kernel`."""
    team = Team(layout, width=BLOCK)
    found = [team.var(name, type_) for name, type_ in _found(s, True, index).items()]
    sums = [team.var(f"sum_{a}", s.compute, "0") for a in s.axes]
    find = team.leader(_find_taps(s, f"o * inner + {team.column}", True, _step(index)))
    add = [f"const real g = load_{s.storage}(grad, to + {team.column});"]
    for k in range(s.taps):
        add.append(f"const real v{k} = g * {_pixel(s, k)};")
        add += [f"sum_{a} += slope{k}_{a} != 0 ? slope{k}_{a} * v{k} : 0;" for a in s.axes]
    channels = f"""for (int channel = 0; channel < channels; ++channel) {{
      {_plane(s)}
      const long to = (o * channels + channel) * inner;
      {team.leader(" ".join(add))}
    }}"""
    place = f"(o * inner + {team.column}) * {s.dims}"
    stores = [f"store_{s.storage}(out, {place} + {i}, sum_{a});" for i, a in enumerate(s.axes)]
    name = f"grid_sample{s.dims}d_grid_backward"
    params = _params(s, f"{s.storage}* out; const {s.storage}* grad, image, grid", _STEPS)
    parts = [*found, *sums, find, channels, team.leader(" ".join(stores))]
    return team.kernel(name, params, *parts, helpers=_helpers(s))


@cache
def image_gradient_kernel(s: Sampling, form: str) -> Kernel:
    """The image's gradient, in the type that is computed in. The walk is over (image, share, stripe): `share` channels,
    and `stripe` pixels of their planes. Parameters: `out`, the result's gradient `grad`, `grid`, what `_params` tells,
    `places`, `share`, `stripe`."""
    walk, block = Walk(form, rank=3, group=FEW), BLOCK if form == "cpu" else 1
    found = " ".join(f"{BY_NAME[type_].storage} {name}[{block}];" for name, type_ in _found(s, False).items())
    adds = "\n      ".join(
        f"if (weight{k}[b] != 0 && (ulong)(pixel{k}[b] - low) < (ulong)many) t[pixel{k}[b]] += weight{k}[b] * g;"
        for k in range(s.taps)
    )
    pixels = " * ".join(f"(long)size_{a}" for a in s.axes)
    part = f"""
const long image = i0, plane = {pixels}, low = (i2 + j) * stripe, many = clamp(plane - low, (long)0, stripe);
const int first = (int)(i1 * share), last = min(first + (int)share, channels);
for (int channel = first; channel < last; ++channel)
  for (long k = low; k < low + many; ++k) out[(image * channels + channel) * plane + k] = 0;
{found}
for (long start = 0; start < places; start += {block}) {{
  const int here = (int)min(places - start, (long){block});
  for (int b = 0; b < here; ++b) {{ {_find_taps(s, "image * places + start + b", False, at="[b]", masked=True)} }}
  for (int channel = first; channel < last; ++channel) {{
    GLOBAL real* t = out + (image * channels + channel) * plane;
    for (int b = 0; b < here; ++b) {{
      const real g = load_{s.storage}(grad, (image * channels + channel) * places + start + b);
      {adds}
    }}
  }}
}}"""
    pointers = f"{s.compute}* out; const {s.storage}* grad, grid"
    params = _params(s, pointers, "places, share, stripe")
    return walk.kernel(f"grid_sample{s.dims}d_image_backward", params, walk.each(part, vectorize=False), _helpers(s))


@cache
def image_gradient_at_once_kernel(s: Sampling) -> Kernel:
    """The same on a GPU, where places of the grid add to the same pixels at the same time. The walk is over (image,
    place); `out` is zero before. Parameters: `out`, `grad`, `grid`, what `_params` tells, `places`."""
    walk = Walk("gpu", rank=2)
    found = " ".join(f"{BY_NAME[type_].storage} {name};" for name, type_ in _found(s, False).items())
    pixels = " * ".join(f"(long)size_{a}" for a in s.axes)
    adds = " ".join(
        f"if (weight{k} != 0) tg_add_into_place_{s.compute}(t + pixel{k}, weight{k} * g);" for k in range(s.taps)
    )
    body = f"""
const long image = i0, place = i1 + j, plane = {pixels};
{found}
{{ {_find_taps(s, "image * places + place", False, masked=True)} }}
for (int channel = 0; channel < channels; ++channel) {{
  GLOBAL real* t = out + (image * channels + channel) * plane;
  const real g = load_{s.storage}(grad, (image * channels + channel) * places + place);
  {adds}
}}"""
    params = _params(s, f"{s.compute}* out; const {s.storage}* grad, grid", "places")
    helpers = f"{add_into_place(s.compute)}\n{_helpers(s)}"
    return walk.kernel(f"grid_sample{s.dims}d_image_backward_at_once", params, walk.each(body), helpers)
