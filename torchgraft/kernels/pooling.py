"""Pooling: the largest element or the mean of windows, and their gradients.

As in `convolution.direct` everything has three axes, the leading ones of extent 1 where there are fewer, and a tensor
is a row of *planes*, one for each image and channel. Windows lie at target * stride - padding + tap * dilation;
adaptive ones from floor(target * source / targets) to ceil((target + 1) * source / targets).

Gradients are gathered: each pixel of the image adds up what the windows that contain it give, in their order, so there
are no atomics and results repeat. On CPUs a work-item that owns a plane scatters instead, which reads everything once.
"""

from __future__ import annotations

from functools import cache
from typing import Literal

from torchgraft.codegen.arithmetic import Arithmetic, arithmetic
from torchgraft.codegen.kernel import Kernel, Parameter, parameters
from torchgraft.codegen.types import least
from torchgraft.codegen.vectors import lane_sum
from torchgraft.codegen.walk import Walk
from torchgraft.kernels.convolution.direct import patch_helper

Kind = Literal["max", "average"]

Places = Literal["indices", "offsets"]
"""Where the largest pixel of a window is: its number in the plane, or the tap's in the window."""

_STORED = {"indices": "i64", "offsets": "i8"}
_LANES = {"indices": "long", "offsets": "char"}

AXES = ("z", "y", "x")

# Heads of rows of walks over (plane, z, y, x): of the target's pixels and of the source's.
_TARGET_ROW = """const int ty = i2, tz = i1;
const long first = ((i0 * target_z + i1) * target_y + i2) * target_x + i3;
const long source_at = i0 * source_z * source_y * source_x;"""
_SOURCE_ROW = """const int y = i2, z = i1;
const long first = ((i0 * source_z + i1) * source_y + i2) * source_x + i3;
const long target_at = i0 * target_z * target_y * target_x;"""


def _sizes(*names: str) -> str:
    return "i32 " + ", ".join(f"{name}_{axis}" for name in names for axis in AXES)


def _params(pointers: str, kind: Kind, adaptive: bool) -> tuple[Parameter, ...]:
    """`pointers`, the sizes of source and target on each axis and, unless windows are adaptive, their taps, stride,
    padding and dilation on each; for means whether padding counts, and the divisor or 0."""
    windows = "" if adaptive else _sizes("taps", "stride", "padding", "dilation")
    average = "i32 include_padding, divisor" if kind == "average" and not adaptive else ""
    return parameters(f"{pointers}; {_sizes('source', 'target')}; {windows}; {average}")


def _forward_pointers(storage: str, kind: Kind, places: Places = "indices") -> str:
    return f"{storage}* out; {_STORED[places] + '* ' + places if kind == 'max' else ''}; const {storage}* image"


def _is_nan(math: Arithmetic, name: str) -> str:
    return f"{name} != {name}" if math.is_float else "0"


# The pixels that an axis' window really holds: from start_* to end_* in steps of dilation.
def _window(axis: str, target: str, adaptive: bool, dilated: bool = True) -> str:
    if not (adaptive or dilated):
        return f"""const int corner_{axis} = {target} * stride_{axis} - padding_{axis};
const int start_{axis} = max(0, corner_{axis}), end_{axis} = min(corner_{axis} + taps_{axis}, source_{axis});"""
    if adaptive:
        return (
            f"const int start_{axis} = (long){target} * source_{axis} / target_{axis}, "
            f"end_{axis} = (((long){target} + 1) * source_{axis} + target_{axis} - 1) / target_{axis};"
        )
    return f"""const int corner_{axis} = {target} * stride_{axis} - padding_{axis};
const int outside_{axis} = max(0, -corner_{axis});
const int start_{axis} = corner_{axis} + (outside_{axis} + dilation_{axis} - 1) / dilation_{axis} * dilation_{axis};
const int end_{axis} = min(corner_{axis} + (taps_{axis} - 1) * dilation_{axis} + 1, source_{axis});"""


def _extent(axis: str, adaptive: bool) -> str:
    """A factor of what the sum of a window is divided by."""
    own = f"end_{axis} - start_{axis}"
    if adaptive:
        return f"({own})"
    padded = f"min(corner_{axis} + taps_{axis}, source_{axis} + padding_{axis}) - corner_{axis}"
    return f"(include_padding ? {padded} : {own})"


# Of a window without a pixel the sum is zero, and so is its mean.
_ADAPTIVE_COUNT = f"const int count = max({' * '.join(_extent(a, True) for a in AXES)}, 1);"
_COUNT = f"const int count = divisor != 0 ? divisor : max({' * '.join(_extent(a, False) for a in AXES)}, 1);"
_PIXEL = "((long)z * source_y + y) * source_x + x"


def _largest(math: Arithmetic, loops: str) -> str:
    """Finds the largest pixel of a window, or a NaN, and where it is."""
    return f"""
{math.scalar} best = {least(math.storage)};
long best_at = ((long)start_z * source_y + start_y) * source_x + start_x;
{loops} {{
  const {math.scalar} value = {math.load("image", f"source_at + {_PIXEL}")};
  if (value > best || {_is_nan(math, "value")}) {{ best = value; best_at = {_PIXEL}; }}
}}
{math.store("out", "first + j", "best")};
indices[first + j] = best_at;"""


@cache
def window_kernel(storage: str, kind: Kind, adaptive: bool, form: str) -> Kernel:
    """The walk is over the target's pixels: the GPU form, and for adaptive windows the CPU's too.

    Parameters: `out`, `indices` of largest elements, `image`, and what `_params` tells.
    """
    walk, math = Walk(form, rank=4), arithmetic(storage)
    step = "1" if adaptive else "dilation_{0}"
    loops = "".join(f"for (int {a} = start_{a}; {a} < end_{a}; {a} += {step.format(a)})\n" for a in AXES)
    windows = "\n".join(_window(a, f"t{a}", adaptive) for a in AXES)
    if kind == "max":
        pool = _largest(math, loops)
    else:
        pool = f"""
{math.scalar} sum = 0;
{loops} sum += {math.load("image", f"source_at + {_PIXEL}")};
{_ADAPTIVE_COUNT if adaptive else _COUNT}
{math.store("out", "first + j", "sum / count")};"""
    body = walk.each(f"const int tx = i3 + j;\n{windows}\n{pool}", _TARGET_ROW, vectorize=False)
    name = f"{'adaptive_' if adaptive else ''}{kind}_pool"
    return walk.kernel(name, _params(_forward_pointers(storage, kind), kind, adaptive), body)


def _lane(math: Arithmetic) -> str:
    """The integers that comparisons of vectors give for each number: places are kept in vectors of them."""
    return "long" if math.size == 8 else "int"


def _widest(math: Arithmetic) -> tuple[str, str, str]:
    """Of a window that is taken in vectors, the largest pixel: what begins, takes vectors of a row, and ends it. A
    row's last vector moves back over the one before it, since no pixel is the worse for being seen twice."""
    lane, width = _lane(math), math.width
    lanes = f"{lane}{width}"
    numbers = ", ".join(map(str, range(width)))
    lowest, pixel = least(math.storage), math.load("image", "source_at + row + moved + l")
    begin = f"""
{math.vector} best = SPLAT_{math.vector}({lowest});
{lanes} best_at = SPLAT_{lanes}((start_z * source_y + start_y) * source_x + start_x);"""
    row = f"""
  for (int x = start_x; x < end_x; x += {width}) {{
    const int moved = max(start_x, min(x, end_x - {width}));
    {math.vector} value;
    if (moved + {width} <= end_x) {{
      value = {math.load_vector("image", "source_at + row + moved")};
    }} else {{
      {math.scalar} few[{width}];
      for (int l = 0; l < {width}; ++l) few[l] = moved + l < end_x ? {pixel} : {lowest};
      value = *({math.vector}*)few;
    }}
    const {lanes} better = (value > best){" | (value != value)" if math.is_float else ""};
    best = SELECT(better, value, best);
    best_at = SELECT(better, MAKE_{lanes}({numbers}) + (row + moved), best_at);
  }}"""
    # The first of the largest, but the last of what is no number, as one by one.
    halves, best, at = "", "best", "best_at"
    while width > 4:
        width //= 2
        values, places = f"{math.scalar}{width}", f"{lane}{width}"
        later = f"| ((high{width} != high{width}) & ((low{width} == low{width}) | (after{width} > before{width})))"
        halves += f"""
const {values} low{width} = LOW_{values}({best}), high{width} = HIGH_{values}({best});
const {places} before{width} = LOW_{places}({at}), after{width} = HIGH_{places}({at});
const {places} take{width} = (high{width} > low{width}) |
  ((high{width} == low{width}) & (after{width} < before{width})) {later if math.is_float else ""};
const {values} best{width} = SELECT(take{width}, high{width}, low{width});
const {places} at{width} = SELECT(take{width}, after{width}, before{width});"""
        best, at = f"best{width}", f"at{width}"
    nan = f"if ({_is_nan(math, 'value')}) {{ none = true; at = max(at, here); continue; }}" if math.is_float else ""
    finish = f"""{halves}
{math.scalar} top = {lowest};
{lane} at_top = {"LONG_MAX" if lane == "long" else "INT_MAX"}, at = -1;
bool none = false;
for (int l = 0; l < {width}; ++l) {{
  const {math.scalar} value = (({math.scalar}*)&{best})[l];
  const {lane} here = (({lane}*)&{at})[l];
  {nan}
  at_top = value > top ? here : value == top ? min(at_top, here) : at_top;
  top = max(top, value);
}}
{math.store("out", "first + j", "none ? NAN : top" if math.is_float else "top")};
indices[first + j] = none ? at : at_top;"""
    return begin, row, finish


def _whole_sum(math: Arithmetic, adaptive: bool) -> tuple[str, str, str]:
    """The same for the mean."""
    begin = f"{math.vector} whole = SPLAT_{math.vector}(0); {math.scalar} rest = 0;"
    row = f"""
  int x = start_x;
  for (; x + {math.width} <= end_x; x += {math.width}) whole += {math.load_vector("image", "source_at + row + x")};
  for (; x < end_x; ++x) rest += {math.load("image", "source_at + row + x")};"""
    some = "start_z < end_z && start_y < end_y && start_x < end_x"
    finish = f"""
{lane_sum(math.scalar, math.width, "whole")}
{_ADAPTIVE_COUNT if adaptive else _COUNT}
{math.store("out", "first + j", f"{some} ? (whole_sum + rest) / count : 0")};"""
    return begin, row, finish


@cache
def wide_kernel(storage: str, kind: Kind, adaptive: bool, simd_width: int) -> Kernel:
    """The CPU form for windows with rows of a vector or more, not dilated along x: the walk is over the target's
    pixels, and vectors are of a window's row. Parameters as of `window_kernel`."""
    walk, math = Walk("cpu", rank=4), arithmetic(storage, simd_width)
    begin, row, finish = _widest(math) if kind == "max" else _whole_sum(math, adaptive)
    step = "1" if adaptive else "dilation_{0}"
    loops = "".join(f"for (int {a} = start_{a}; {a} < end_{a}; {a} += {step.format(a)})\n" for a in "zy")
    windows = "\n".join(_window(a, f"t{a}", adaptive) for a in AXES)
    pool = f"""const int tx = i3 + j;
{windows}
{begin}
{loops} {{
  const int row = (z * source_y + y) * source_x;
  {row}
}}
{finish}"""
    name = f"{'adaptive_' if adaptive else ''}{kind}_pool_wide"
    params = _params(_forward_pointers(storage, kind), kind, adaptive)
    return walk.kernel(name, params, walk.each(pool, _TARGET_ROW, vectorize=False))


# The rows of a window, and which of its taps' they are.
_ROWS = """for (int z = start_z, kz = first_z; z < end_z; z += dilation_z, ++kz)
      for (int y = start_y, ky = first_y; y < end_y; y += dilation_y, ++ky)"""


def _first_tap(axis: str) -> str:
    return f"const int first_{axis} = (start_{axis} - corner_{axis}) / dilation_{axis};"


def _place(places: Places, lanes: str, x: str) -> str:
    """What is kept of the pixels `x` of row (z, y), the taps kx of row (kz, ky)."""
    if places == "indices":
        return f"{x} + (z * source_y + y) * source_x"
    return f"SPLAT_{lanes}((kz * taps_y + ky) * taps_x + kx)"


def _first_place(places: Places, lanes: str, x: str, tap: str) -> str:
    """The same of a window's first tap: where nothing is larger than the lowest number, it is that."""
    if places == "indices":
        return f"{x} + (start_z * source_y + start_y) * source_x"
    return f"SPLAT_{lanes}((first_z * taps_y + first_y) * taps_x) + {tap}"


# Vectors of a row's inside that are taken at once: what there is to prepare, and the wait for comparisons, are shared.
_AT_ONCE = 3


def _largest_inside(math: Arithmetic, storage: str, lanes: str, numbers: str, places: Places) -> str:
    """Statements that do `_AT_ONCE` vectors from pixel `start` on, if all their windows lie within the row."""
    count, to = _AT_ONCE * math.width, f"{_LANES[places]}{math.width}"
    nan = "| (value != value)" if math.is_float else ""
    begin, steps, finish = "", "", ""
    for u in range(_AT_ONCE):
        first, at = u * math.width, f"from + {u * math.width} * stride_x"
        begin += f"""
    {math.vector} best{u} = SPLAT_{math.vector}({least(storage)});
    const {lanes} corner{u} = corner_x + (MAKE_{lanes}({numbers}) + {first}) * stride_x;
    {lanes} at{u} = {_first_place(places, lanes, f"corner{u}", "0")};"""
        steps += f"""{{
            {math.vector} value = {math.load_vector("image", at)};
            if (stride_x == 2) value = EVEN_{math.vector}(value, {math.load_vector("image", f"{at} + {math.width}")});
            const {lanes} better = (value > best{u}) {nan};
            best{u} = SELECT(better, value, best{u});
            at{u} = SELECT(better, {_place(places, lanes, f"corner{u} + kx * dilation_x")}, at{u});
          }}"""
        finish += f"""
    {math.store_vector("out", f"at + start + {first}", f"best{u}")};
    *(GLOBAL {to}u*)({places} + at + start + {first}) = CONVERT_{to}(at{u});"""
    return f"""
  if (stride_x <= 2 && start + {count} <= target_x && start * stride_x >= padding_x) {{
    const int corner_x = start * stride_x - padding_x;
    const long reach = corner_x + (taps_x - 1) * (long)dilation_x + (long){count} * stride_x;
    if (reach - stride_x < source_x && i0 * pixels + ((end_z - 1L) * source_y + end_y - 1) * source_x + reach <= end) {{
      {begin}
      {_ROWS}
          for (int kx = 0; kx < taps_x; ++kx) {{
            const long from = i0 * pixels + corner_x + kx * dilation_x + (z * source_y + y) * source_x;
            {steps}
          }}
      {finish}
      start += {count - math.width};
      continue;
    }}
  }}"""


@cache
def row_kernel(storage: str, kind: Kind, simd_width: int, places: Places = "indices") -> Kernel:
    """The CPU form: the walk is over (plane, z, y), rows of the target, of which it takes a vector of pixels at a time.
    Parameters as of `window_kernel`, with `offsets` in place of `indices` where that is what `places` says."""
    walk, math = Walk("cpu", rank=3), arithmetic(storage, simd_width)
    lane = _lane(math)
    lanes = f"{lane}{math.width}"
    numbers = ", ".join(str(n) for n in range(math.width))
    if kind == "max":
        begin = f"""
    {math.vector} best = SPLAT_{math.vector}({least(storage)});
    {lanes} outside = max(-corner, SPLAT_{lanes}(0));
    if (dilation_x != 1 && corner_x < 0) outside = (outside + (dilation_x - 1)) / dilation_x;  // for each lane
    {lanes} best_at = {_first_place(places, lanes, "(corner + outside * dilation_x)", "outside")};"""
        nan = "| (value != value)" if math.is_float else ""
        step = f"""
          const {lanes} lane = corner + kx * dilation_x;
          const {lanes} better = (lane >= 0) & (lane < source_x) & ((value > best) {nan});
          best = SELECT(better, value, best);
          best_at = SELECT(better, {_place(places, lanes, "lane")}, best_at);"""
        inner = f"""
            const {lanes} better = (value > best) {nan};
            best = SELECT(better, value, best);
            best_at = SELECT(better, {_place(places, lanes, "corner + kx * dilation_x")}, best_at);"""
        to = f"{_LANES[places]}{math.width}"
        finish = f"""
    if (here == {math.width}) {{
      *(GLOBAL {to}u*)({places} + at + x) = CONVERT_{to}(best_at);
    }} else {{
      for (int l = 0; l < here; ++l) {places}[at + x + l] = (({lane}*)&best_at)[l];
    }}"""
        result = "best"
        inside = _largest_inside(math, storage, lanes, numbers, places)
    else:
        begin = f"{math.vector} sum = SPLAT_{math.vector}(0);"
        step = inner = "sum += value;"
        finish = f"""
    const int high = include_padding ? (min(corner_z + taps_z, source_z + padding_z) - corner_z) *
                     (min(corner_y + taps_y, source_y + padding_y) - corner_y) : (end_z - start_z) * (end_y - start_y);
    const {lanes} last = corner + taps_x;
    const {lanes} from = max(corner, SPLAT_{lanes}(0)), to = min(last, SPLAT_{lanes}(source_x));
    const {lanes} padded = min(last, SPLAT_{lanes}(source_x + padding_x)) - corner;
    const {lanes} wide = include_padding ? padded : to - from;
    const {lanes} by = divisor != 0 ? SPLAT_{lanes}(divisor) : max(wide * high, SPLAT_{lanes}(1));
    const {math.vector} none = SPLAT_{math.vector}(0);
    sum = start_z < end_z && start_y < end_y ? SELECT(to > from, sum / CONVERT_{math.vector}(by), none) : none;"""
        result, inside = "sum", ""
    line = f"""
  const int ty = i2 + j;
  {_window("y", "ty", False)}
  {_first_tap("y")}
  const long at = ((i0 * target_z + tz) * target_y + ty) * target_x;
  for (int start = 0; start < target_x; start += {math.width}) {{
    {inside}
    // The last vector moves back over the one before it rather than stick out.
    const int x = start + {math.width} > target_x ? max(0, target_x - {math.width}) : start;
    const int here = min({math.width}, target_x - x);
    const int corner_x = x * stride_x - padding_x;
    const {lanes} corner = corner_x + MAKE_{lanes}({numbers}) * stride_x;
    // Whether all windows of the vector lie within the row, and how far beyond `corner_x` their loads reach.
    const long reach = (taps_x - 1) * (long)dilation_x + (long){math.width} * stride_x;
    const bool within = stride_x <= 2 && corner_x >= 0 && corner_x + reach - stride_x < source_x;
    {begin}
    {_ROWS} {{
        const long from = i0 * pixels + ((long)z * source_y + y) * source_x;
        if (within && from + corner_x + reach <= end) {{
          for (int kx = 0; kx < taps_x; ++kx) {{
            const long at_x = from + corner_x + kx * dilation_x;
            {math.vector} value = {math.load_vector("image", "at_x")};
            if (stride_x == 2) value = EVEN_{math.vector}(value, {math.load_vector("image", f"at_x + {math.width}")});
            {inner}
          }}
          continue;
        }}
        for (int kx = 0; kx < taps_x; ++kx) {{
          const {math.vector} value = tg_patch(image, from, corner_x + kx * dilation_x, stride_x, source_x, end);
          {step}
        }}
      }}
    {finish}
    if (here == {math.width}) {{
      {math.store_vector("out", "at + x", result)};
    }} else {{
      for (int l = 0; l < here; ++l) {math.store("out", "at + x + l", f"(({math.scalar}*)&{result})[l]")};
    }}
  }}"""
    head = f"""const int tz = i1;
const long pixels = (long)source_z * source_y * source_x, end = pixels * n0;
{_window("z", "tz", False)}
{_first_tap("z")}"""
    params = _params(_forward_pointers(storage, kind, places), kind, False)
    name = f"{kind}_pool_rows" if places == "indices" else "max_pool_offsets"
    return walk.kernel(name, params, walk.each(line, head, vectorize=False), patch_helper(math))


# --- Windows at random places, and the reverse of pooling.

# Rounds to a storage type whose numbers are kept as float, by the bits that it lacks. Torch computes windows in it.
_ROUND = """
static inline float tg_round(float x) {{
  const uint u = AS_uint(x);
  return AS_float((u + ((1u << {bits}) / 2 - 1) + (u >> {bits} & 1)) & ~((1u << {bits}) - 1));
}}"""
_MISSING_BITS = {"f16": 13, "bf16": 16}

# Graham, "Fractional Max-Pooling" (2014): windows begin at the differences of two rounded numbers.
_RANDOM_START = """
static inline int tg_start(int target, {real} sample, int source, int targets, int taps) {{
  if (target == targets - 1) return source - taps;
  const {real} alpha = tg_round(tg_round(source - taps) / tg_round(targets - 1));
  return (int)tg_round(tg_round(tg_round(target) + sample) * alpha) - (int)tg_round(sample * alpha);
}}"""


@cache
def fractional_kernel(storage: str, dims: int, form: str) -> Kernel:
    """The largest pixels of windows at random places; the walk is over the target's pixels.

    Parameters: `out`, `indices`, `image`, `samples`, `errors`, `code`, sizes of source and target, and the taps.
    `samples` has a number in 0 .. 1 for each plane and axis: of images in the order x, y, of volumes z, y, x.
    """
    walk, math = Walk(form, rank=4), arithmetic(storage)
    axes = AXES[3 - dims :]
    order = tuple(reversed(axes)) if dims == 2 else axes
    starts = "const int start_z = 0, end_z = 1;" if dims == 2 else ""
    for a in axes:
        sample = math.load("samples", f"i0 * {dims} + {order.index(a)}")
        starts += f"""
const int start_{a} = tg_start(t{a}, {sample}, source_{a}, target_{a}, taps_{a}), end_{a} = start_{a} + taps_{a};
if (start_{a} < 0 || end_{a} > source_{a}) {{ tg_report(errors, code, start_{a}); continue; }}"""
    loops = "".join(f"for (int {a} = start_{a}; {a} < end_{a}; ++{a})\n" for a in AXES)
    rounding = f"#define tg_round(x) (({math.scalar})(x))"
    if storage in _MISSING_BITS:
        rounding = _ROUND.format(bits=_MISSING_BITS[storage])
    helpers = f"{rounding}\n{_RANDOM_START.format(real=math.scalar)}"
    body = walk.each(f"const int tx = i3 + j;\n{starts}\n{_largest(math, loops)}", _TARGET_ROW, vectorize=False)
    params = parameters(
        f"{_forward_pointers(storage, 'max')}; const {storage}* samples; i32* errors; i32 code; "
        f"{_sizes('source', 'target', 'taps')}"
    )
    return walk.kernel("fractional_max_pool", params, body, helpers)


@cache
def unpool_kernel(moved: str, form: str) -> Kernel:
    """Puts each pixel where its index says; the walk is over (plane, pixel of the source). `moved` is a type of the
    elements' size. Parameters: `out`, `image`, `indices`, `errors`, `code`, `target_pixels`."""
    walk = Walk(form, rank=2)
    move = f"""
const long place = indices[first + j];
if (place < 0 || place >= target_pixels) {{ tg_report(errors, code, place); continue; }}
store_{moved}(out, i0 * target_pixels + place, load_{moved}(image, first + j));"""
    params = parameters(
        f"{moved}* out; const {moved}* image; const i64* indices; i32* errors; i32 code; i64 target_pixels"
    )
    return walk.kernel("max_unpool", params, walk.each(move, "const long first = i0 * n1 + i1;", vectorize=False))


# --- Gradients.


def _covering(axis: str, adaptive: bool) -> str:
    """The windows, from from_* up to to_*, that may hold pixel `axis`."""
    if adaptive:
        return (
            f"const int from_{axis} = (long){axis} * target_{axis} / source_{axis}, "
            f"to_{axis} = (((long){axis} + 1) * target_{axis} + source_{axis} - 1) / source_{axis};"
        )
    span = f"((taps_{axis} - 1) * dilation_{axis})"
    return (
        f"const int from_{axis} = max(0, {axis} + padding_{axis} - {span} + stride_{axis} - 1) / stride_{axis}, "
        f"to_{axis} = min(target_{axis}, ({axis} + padding_{axis}) / stride_{axis} + 1);"
    )


def _backward_pointers(storage: str, kind: Kind) -> str:
    return f"{storage}* out; const {storage}* grad; {'const i64* indices' if kind == 'max' else ''}"


@cache
def gather_kernel(storage: str, kind: Kind, adaptive: bool, form: str) -> Kernel:
    """The gradient `out` of the source; the walk is over its pixels. Parameters: `out`, `grad` of the target, `indices`
    of largest elements, and what `_params` tells."""
    walk, math = Walk(form, rank=4), arithmetic(storage)
    covering = "\n".join(_covering(a, adaptive) for a in AXES)
    loops = "".join(f"for (int t{a} = from_{a}; t{a} < to_{a}; ++t{a})\n" for a in AXES)
    at = "const long at = target_at + ((long)tz * target_y + ty) * target_x + tx;"
    if kind == "max":
        add = f"if (indices[at] == {_PIXEL}) sum += {math.load('grad', 'at')};"
    else:
        windows = " ".join(_window(a, f"t{a}", adaptive) for a in AXES)
        add = f"{windows} {_ADAPTIVE_COUNT if adaptive else _COUNT} sum += {math.load('grad', 'at')} / count;"
    pixel = f"""const int x = i3 + j;
{covering}
{math.scalar} sum = 0;
{loops} {{ {at} {add} }}
{math.store("out", "first + j", "sum")};"""
    name = f"{'adaptive_' if adaptive else ''}{kind}_pool_backward"
    params = _params(_backward_pointers(storage, kind), kind, adaptive)
    return walk.kernel(name, params, walk.each(pixel, _SOURCE_ROW, vectorize=False))


# Pixels of a row, and windows beside each other, that a CPU sums at once.
_SUMS = 256

# Windows of a row one after the other: `start_x` and `end_x` of window tx. Adaptive ones begin at the quotient of
# tx * source / target, and remainders tell when the next one begins a pixel later.
_STEPS_ADAPTIVE = ("""const int step = source_x / target_x, step_rest = source_x - step * target_x;
      int next = (long)first * source_x / target_x, rest = (int)((long)first * source_x - (long)next * target_x);""",
    """const int start_x = next;
        next += step;
        rest += step_rest;
        if (rest >= target_x) { rest -= target_x; ++next; }
        const int end_x = next + (rest > 0);""",
)  # fmt: skip


@cache
def mean_gradient_kernel(storage: str, adaptive: bool) -> Kernel:
    """The gradient of means on CPUs; the walk is over the source's (plane, z, y, x).

    A row adds up the windows' rows that hold it, whose windows then are spread along x. The next row that the same
    windows hold is a copy of it. Parameters as of `gather_kernel`.
    """
    walk, math = Walk("cpu", rank=4), arithmetic(storage)
    covering = {axis: _covering(axis, adaptive) for axis in AXES}
    windows = {axis: _window(axis, f"t{axis}", adaptive, dilated=False) for axis in AXES}
    begin, step = _STEPS_ADAPTIVE if adaptive else ("", windows["x"])
    high, wide = (" * ".join(_extent(a, adaptive) for a in axes) for axes in (("z", "y"), ("x",)))
    by_row, by_window = (high, wide) if adaptive else (f"divisor != 0 ? divisor : {high}", f"divisor != 0 ? 1 : {wide}")
    source_row = f"""
const int z = i1, y = i2;
{covering["y"]}
{math.pointer} to = out + ((i0 * source_z + i1) * source_y + i2) * source_x;
if (i3 == 0 && i2 > 0 && same_from == from_y && same_to == to_y && count == source_x) {{
  VECTORIZE
  for (long k = 0; k < source_x; ++k) {math.store("to", "k", math.load("to", "k - source_x"))};
  continue;
}}
same_from = i3 == 0 && count == source_x ? from_y : -1;
same_to = to_y;
{covering["z"]}
for (long start = i3; start < i3 + count; start += {_SUMS}) {{
  const int last = min(start + {_SUMS}, i3 + count), here = last - start;
  {math.scalar} sums[{_SUMS}], shares[{_SUMS}];
  for (int k = 0; k < here; ++k) sums[k] = 0;
  int low = 0, high = target_x;
  if (here < source_x) {{
    {{ const int x = start; {covering["x"]} low = from_x; }}
    {{ const int x = last - 1; {covering["x"]} high = to_x; }}
  }}
  for (int first = low; first < high; first += {_SUMS}) {{
    const int many = min({_SUMS}, high - first);
    for (int k = 0; k < many; ++k) shares[k] = 0;
    for (int tz = from_z; tz < to_z; ++tz)
      for (int ty = from_y; ty < to_y; ++ty) {{
        {windows["z"]}
        {windows["y"]}
        const {math.scalar} by = {by_row};
        {math.const_pointer} g = grad + ((i0 * target_z + tz) * target_y + ty) * target_x + first;
        VECTORIZE
        for (int k = 0; k < many; ++k) shares[k] += {math.load("g", "k")} / by;
      }}
    {begin}
    for (int k = 0; k < many; ++k) {{
      const int tx = first + k;
      {step}
      const {math.scalar} share = shares[k] / ({by_window});
      const int end = min(end_x, last);
      for (int x = max(start_x, (int)start); x < end; ++x) sums[x - start] += share;
    }}
  }}
  VECTORIZE
  for (int k = 0; k < here; ++k) {math.store("to", "start + k", "sums[k]")};
}}"""
    body = "int same_from = -1, same_to = -1;\n" + walk.rows(source_row)
    name = f"{'adaptive_' if adaptive else ''}average_pool_backward"
    return walk.kernel(name, _params(_backward_pointers(storage, "average"), "average", adaptive), body)


@cache
def scatter_kernel(storage: str, sums: str, apart: bool) -> Kernel:
    """The gradient of largest pixels on CPUs; the walk is over planes.

    Parameters: `out` of the type `sums`, which can hold them, `grad` and `indices`, and sizes of source and target: the
    indices tell all. `apart` says that no two windows have a pixel in common, so that there is nothing to sum: both
    types are then one of the elements' size.
    """
    walk, math, to = Walk("cpu"), arithmetic(storage), arithmetic(sums)
    plane = f"""
const long source_pixels = (long)source_z * source_y * source_x, target_pixels = (long)target_z * target_y * target_x;
{to.pointer} to = out + i * source_pixels;
{math.const_pointer} g = grad + i * target_pixels;
for (long k = 0; k < source_pixels; ++k) to[k] = 0;
const GLOBAL long* at = indices + i * target_pixels;
for (long k = 0; k < target_pixels; ++k) {"to[at[k]] = g[k]" if apart else f"to[at[k]] += {math.load('g', 'k')}"};"""
    params = _params(f"{sums}* out; const {storage}* grad; const i64* indices", "max", adaptive=True)
    return walk.kernel("max_pool_scatter", params, walk.each(plane, vectorize=False))


@cache
def scatter_offsets_kernel(storage: str, apart: bool) -> Kernel:
    """The gradient of largest pixels on CPUs by the taps that they were; the walk is over planes. For types that sums
    are kept in. `apart` as of `scatter_kernel`.

    Parameters: `out`, `grad` and `offsets` of the target, and what `_params` tells. A window has at most 127 taps.
    """
    walk, math = Walk("cpu"), arithmetic(storage)
    plane = f"""
const long source_pixels = (long)source_z * source_y * source_x, target_pixels = (long)target_z * target_y * target_x;
{math.pointer} to = out + i * source_pixels;
{math.const_pointer} g = grad + i * target_pixels;
const GLOBAL char* tap = offsets + i * target_pixels;
long places[128];  // of the taps, beside a window's corner
for (int kz = 0, k = 0; kz < taps_z; ++kz)
  for (int ky = 0; ky < taps_y; ++ky)
    for (int kx = 0; kx < taps_x; ++kx)
      places[k++] = ((long)kz * dilation_z * source_y + ky * dilation_y) * source_x + kx * dilation_x;
for (long k = 0; k < source_pixels; ++k) to[k] = 0;
for (int tz = 0; tz < target_z; ++tz)
  for (int ty = 0; ty < target_y; ++ty) {{
    const long row = ((long)tz * stride_z - padding_z) * source_y + ty * stride_y - padding_y;
    const long corner = row * source_x - padding_x;
    for (int tx = 0; tx < target_x; ++tx, ++g, ++tap)
      to[corner + tx * stride_x + places[*tap]] {"=" if apart else "+="} {math.load("g", "0")};
  }}"""
    params = _params(f"{storage}* out; const {storage}* grad; const i8* offsets", "max", adaptive=False)
    return walk.kernel("max_pool_scatter_offsets", params, walk.each(plane, vectorize=False))
