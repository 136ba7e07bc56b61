"""Depthwise convolution of planes for CPUs: forward, and both gradients; that of the image with a stride of one.

Each channel has a filter of its own, so that there is nothing to multiply matrices for, and the memory's speed would be
the limit if the borders did not have to be looked after in each vector. A work-item copies a band of a plane's rows
with zeros around it into its private memory, after which every tap is a vector that lies there. With a stride, columns
that are a stride apart are neighbours in the copy: a row of it has a part for each remainder.

* `plane_kernel` keeps the sums of some rows of the target at once: each row of the source is read once for all of them.
  Going backward the filter is turned round and the padding is what a whole overlap leaves of it.
* `plane_weight_kernel` keeps the sums of all taps.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import prod

from torchgraft.codegen import ceil_div
from torchgraft.codegen.arithmetic import Arithmetic, arithmetic
from torchgraft.codegen.kernel import Kernel, Launch, parameters
from torchgraft.codegen.tuning import Planes, Target
from torchgraft.kernels.geometry import Direction, Geometry

_MOST_TAPS, _MOST_STRIDE = 49, 4


_FILL = """
const int part = pitch / {step};
for (int r = 0; r < {high}; ++r)
  for (int remainder = 0; remainder < {step}; ++remainder) {{
    {scalar}* to = band + r * pitch + remainder * part;
    const int y = {first} + r, before = left - remainder, inside = source_x + before;
    if ((uint)y >= (uint)source_y || inside <= 0) {{
      for (int i = 0; i < part; ++i) to[i] = 0;
      continue;
    }}
    const long at = source_at + (long)y * source_x - before;
    const int begin = before > 0 ? min(part, (before + {step} - 1) / {step}) : 0;
    const int end = min(part, (inside + {step} - 1) / {step});
    for (int i = 0; i < begin; ++i) to[i] = 0;
    VECTORIZE
    for (int i = begin; i < end; ++i) to[i] = {value};
    for (int i = max(begin, end); i < part; ++i) to[i] = 0;
  }}"""


def _fill(math: Arithmetic, high: str, first: str, step: int) -> str:
    """Copies rows of the plane at `source_at`, from row `first` on, into `band`. `left` columns of zeros go first; if
    less than none, columns of the plane are left out. Of columns that are `step` apart there is a part for each
    remainder."""
    return _FILL.format(high=high, first=first, step=step, scalar=math.scalar, value=math.load("S", f"at + i * {step}"))


def _sums(math: Arithmetic, rows: int, taps: tuple[int, int], strides: tuple[int, int]) -> str:
    """Each vector of the band goes into the sums of all rows that it meets."""
    lines, (taps_y, taps_x), (down, step) = [], taps, strides
    for i in range((rows - 1) * down + taps_y):
        for kx in range(taps_x):
            value = f"*(const {math.vector}u*)(p + {i} * pitch + {_column(f'{kx} * dilation_x', step)})"
            lines.append(f"{{ const {math.vector} value = {value};")
            for r in (r for r in range(rows) if 0 <= i - r * down < taps_y):
                filter_ = math.splat(f"w[{(i - r * down) * taps_x + kx}]")
                lines.append(f"  sum{r} = {math.multiply_add(filter_, 'value', f'sum{r}')};")
            lines.append("}")
    return "\n".join(lines)


def _column(column: str, step: int) -> str:
    """Where a row of the band has a column."""
    return column if step == 1 else f"({column}) % {step} * part + ({column}) / {step}"


@cache
def plane_kernel(
    storage: str,
    bias: bool,
    at_once: int,
    taps: tuple[int, int],
    strides: tuple[int, int],
    planes: Planes,
    simd_width: int,
) -> Kernel:
    """A band of rows of M targets for each source plane: group 0 is (image, plane), group 1 the band. Launch with
    `plane_launch`."""
    math = arithmetic(storage, simd_width)
    width, count, (down, step) = math.width, prod(taps), strides
    first = math.splat(math.load("E", "channel") if bias else "0")
    stores = "\n".join(
        f"""if (r + {r} < rows) {{
  {math.pointer} t = target + (long)(r + {r}) * target_x;
  if (x + {width} <= target_x) {{ {math.store_vector("t", "x", f"sum{r}")}; }}
  else for (int l = 0; x + l < target_x; ++l) {math.store("t", "x + l", f"((const {math.scalar}*)&sum{r})[l]")};
}}"""
        for r in range(at_once)
    )
    body = f"""
const int plane = GROUP_ID(0), group = plane % groups;
const int row = GROUP_ID(1) * band_rows, rows = min(band_rows, target_y - row);
const int high = ((rows + {at_once - 1}) / {at_once} * {at_once} - 1) * {down} + {taps[0]};
{math.scalar} band[{planes.band}];
const long source_at = (long)plane * source_y * source_x;
{_fill(math, "high", f"row * {down} - top", step)}
for (int m = 0; m < M; ++m) {{
  const int channel = group * M + m;
  {math.scalar} w[{count}];
  for (int k = 0; k < {count}; ++k)
    w[k] = {math.load("F", f"(long)channel * {count} + (turned ? {count - 1} - k : k)")};
  {math.pointer} target = T + (((long)plane * M + m) * target_y + row) * target_x;
  for (int r = 0; r < rows; r += {at_once})
    for (int start = 0; start < target_x; start += {width}) {{
      // The last vector moves back over the one before it rather than stick out.
      const int x = start + {width} > target_x ? max(0, target_x - {width}) : start;
      const {math.scalar}* p = band + r * {down} * pitch + x;
      {math.vector} {", ".join(f"sum{r} = {first}" for r in range(at_once))};
      {_sums(math, at_once, taps, strides)}
      {stores}
    }}
}}"""
    params = parameters(
        f"{storage}* T; const {storage}* S, F{', E' if bias else ''}; "
        "i32 groups, M, source_y, source_x, target_y, target_x, top, left, pitch, dilation_x, band_rows, turned"
    )
    return Kernel("convolution_planes", params, body, local=(1, 1))


@cache
def plane_weight_kernel(
    storage: str, result: str, taps_y: int, taps_x: int, strides: tuple[int, int], planes: Planes, simd_width: int
) -> Kernel:
    """The weight's gradient: group 0 is the channel, group 1 a part of the images. Launch with
    `plane_weight_launch`."""
    math = arithmetic(storage, simd_width)
    width, taps, (down, step) = math.width, taps_y * taps_x, strides
    mask = f"CONVERT_long{width}(inside)" if math.size == 8 else "inside"

    def updates(masked: bool) -> str:
        lines = []
        for k in range(taps):
            column = _column(f"{k % taps_x} * dilation_x", step)
            read = f"*(const {math.vector}u*)(p + {k // taps_x} * dilation_y * pitch + {column})"
            read = f"SELECT({mask}, {read}, none)" if masked else read
            lines.append(f"sum{k} = {math.multiply_add('value', read, f'sum{k}')};")
        return "\n".join(lines)

    folded = "\n".join(
        f"""{{
  {math.scalar} sum = 0;
  for (int l = 0; l < {width}; ++l) sum += ((const {math.scalar}*)&sum{k})[l];
  store_{result}(T, place + {k}, sum);
}}"""
        for k in range(taps)
    )
    body = f"""
const int channel = GROUP_ID(0), group = channel / M;
const int from = GROUP_ID(1) * part_images, to = min(batch, from + part_images);
{math.scalar} band[{planes.band}];
{math.vector} {", ".join(f"sum{k} = {math.splat('0')}" for k in range(taps))};
for (int image = from; image < to; ++image) {{
  const long source_at = ((long)image * groups + group) * source_y * source_x;
  for (int row = 0; row < target_y; row += band_rows) {{
    const int rows = min(band_rows, target_y - row), high = (rows - 1) * {down} + {taps_y - 1} * dilation_y + 1;
    {_fill(math, "high", f"row * {down} - top", step)}
    {math.const_pointer} grad = R + (((long)image * groups * M + channel) * target_y + row) * target_x;
    for (int r = 0; r < rows; ++r, grad += target_x) {{
      int x = 0;
      for (; x + {width} <= target_x; x += {width}) {{
        const {math.scalar}* p = band + r * {down} * pitch + x;
        const {math.vector} value = {math.load_vector("grad", "x")};
        {updates(masked=False)}
      }}
      if (x < target_x) {{  // what other lanes would read may be infinite, which zero times makes no zero
        const {math.scalar}* p = band + r * {down} * pitch + x;
        {math.scalar} own[{width}];
        for (int l = 0; l < {width}; ++l) own[l] = x + l < target_x ? {math.load("grad", "x + l")} : 0;
        const {math.vector} value = *(const {math.vector}u*)own, none = {math.splat("0")};
        const int{width} inside = x + MAKE_int{width}({", ".join(map(str, range(width)))}) < target_x;
        {updates(masked=True)}
      }}
    }}
  }}
}}
const long place = ((long)GROUP_ID(1) * NUM_GROUPS(0) + GROUP_ID(0)) * {taps};
{folded}"""
    params = parameters(
        f"{result}* T; const {storage}* S, R; "
        "i32 batch, groups, M, source_y, source_x, target_y, target_x, top, left, pitch, dilation_y, dilation_x, "
        "band_rows, part_images"
    )
    return Kernel("convolution_planes_weight", params, body, local=(1, 1))


@dataclass(frozen=True)
class _Planes:
    """The parts of a convolution's geometry that are left, for a target of these rows and columns."""

    taps: tuple[int, int]
    dilation: tuple[int, int]
    padding: tuple[int, int]
    strides: tuple[int, int]

    @property
    def reach(self) -> tuple[int, int]:
        return (self.taps[0] - 1) * self.dilation[0], (self.taps[1] - 1) * self.dilation[1]

    def pitch(self, columns: int) -> int:
        """Elements of a row of the copy for so many columns of the target."""
        return self.strides[1] * (columns + self.reach[1] // self.strides[1])

    def most_rows(self, band: int, pitch: int) -> int:
        """Rows of the target for which a copy of so many elements has what they need."""
        return (band // pitch - self.reach[0] - 1) // self.strides[0] + 1


def _planes(g: Geometry) -> _Planes | None:
    """Nothing if it is no such convolution."""
    flat = g.image[0] == g.taps[0] == g.result[0] == 1 and g.padding[0] == 0
    if not flat or g.stride[0] != 1 or max(g.stride) > _MOST_STRIDE or g.taps[1] * g.taps[2] > _MOST_TAPS:
        return None
    return _Planes(g.taps[1:], g.dilation[1:], g.padding[1:], g.stride[1:])


def _lanes(simd_width: int, size: int, taps: int, target_x: int) -> int:
    """The register's width in float32 to compute with: a half for narrow targets, and where the sums of wide vectors
    would not fit into the registers."""
    return min(simd_width, 8) if taps > 9 or target_x * size <= 32 else simd_width


def plane_launch(
    storage: str,
    g: Geometry,
    direction: Direction,
    target: object,
    source: object,
    weight: object,
    bias: object | None,
    on: Target,
) -> Launch | None:
    """As `convolution.convolution_launch`; nothing if it is no such convolution."""
    planes, forward = _planes(g), direction == "forward"
    (channels, count) = (g.image_channels, g.result_channels) if forward else (g.result_channels, g.image_channels)
    if planes is None or channels != g.groups or (planes.dilation[0] != 1 and planes.taps[0] != 1):
        return None
    if not forward and planes.strides != (1, 1):
        return None
    (_, source_y, source_x), (_, target_y, target_x) = (g.image, g.result) if forward else (g.result, g.image)
    simd_width = _lanes(on.simd_width, arithmetic(storage).size, prod(planes.taps), target_x)
    at_once = min(on.tuning.planes.rows, target_y)
    pitch = planes.pitch(max(target_x, arithmetic(storage, simd_width).width))
    band_rows = planes.most_rows(on.tuning.planes.band, pitch) // at_once * at_once
    if band_rows < at_once:
        return None
    bands = ceil_div(4 * on.units, g.batch * g.groups)
    band_rows = min(band_rows, ceil_div(ceil_div(target_y, bands), at_once) * at_once)
    top, left = (
        padding if forward else reach - padding for padding, reach in zip(planes.padding, planes.reach, strict=True)
    )
    arguments = {"T": target, "S": source, "F": weight, **({"E": bias} if bias is not None else {})}
    sizes = {"source_y": source_y, "source_x": source_x, "target_y": target_y, "target_x": target_x}
    return Launch(
        plane_kernel(storage, bias is not None, at_once, planes.taps, planes.strides, on.tuning.planes, simd_width),
        (g.batch * g.groups, ceil_div(target_y, band_rows)),
        {
            **arguments,
            **sizes,
            "groups": g.groups,
            "M": count // g.groups,
            "top": top,
            "left": left,
            "pitch": pitch,
            "dilation_x": planes.dilation[1],
            "band_rows": band_rows,
            "turned": int(not forward),
        },
    )


def plane_weight_launch(
    storage: str,
    result: str,
    g: Geometry,
    target: object,
    image: object,
    grad: object,
    part_images: int,
    on: Target,
) -> Launch | None:
    """The weight's gradient of each part of the images, one after the other, as `result`; nothing if it is no such
    convolution."""
    planes = _planes(g)
    if planes is None or g.image_channels != g.groups:
        return None
    taps_y, taps_x = planes.taps
    (_, source_y, source_x), (_, target_y, target_x) = g.image, g.result
    simd_width = _lanes(on.simd_width, arithmetic(storage).size, taps_y * taps_x, target_x)
    width = arithmetic(storage, simd_width).width
    pitch = planes.pitch(ceil_div(target_x, width) * width)
    band_rows = min(target_y, planes.most_rows(on.tuning.planes.band, pitch))
    if band_rows < 1:
        return None
    return Launch(
        plane_weight_kernel(storage, result, taps_y, taps_x, planes.strides, on.tuning.planes, simd_width),
        (g.result_channels, ceil_div(g.batch, part_images)),
        {
            "T": target,
            "S": image,
            "R": grad,
            "batch": g.batch,
            "groups": g.groups,
            "M": g.result_channels // g.groups,
            "source_y": source_y,
            "source_x": source_x,
            "target_y": target_y,
            "target_x": target_x,
            "top": planes.padding[0],
            "left": planes.padding[1],
            "pitch": pitch,
            "dilation_y": planes.dilation[0],
            "dilation_x": planes.dilation[1],
            "band_rows": band_rows,
            "part_images": part_images,
        },
    )
