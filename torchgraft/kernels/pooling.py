"""Pooling: the largest element or the mean of windows, and their gradients.

As in `kernels.convolution` everything has three axes, the leading ones of extent 1 where there are fewer, and a tensor
is a row of *planes*, one for each image and channel. Windows lie at target * stride - padding + tap * dilation;
adaptive ones from floor(target * source / targets) to ceil((target + 1) * source / targets).

Gradients are gathered: each pixel of the image adds up what the windows that contain it give, in their order, so there
are no atomics and results repeat. On CPUs a work-item that owns a plane scatters instead, which reads everything once.
"""

from __future__ import annotations

from functools import cache
from typing import Literal

from torchgraft.codegen import ceil_div
from torchgraft.codegen.arithmetic import Arithmetic, arithmetic
from torchgraft.codegen.kernel import Kernel, Launch, Parameter, Pointer, Value
from torchgraft.kernels.convolution import Triple, patch_helper

Kind = Literal["max", "average"]

_AXES = ("z", "y", "x")


def _sizes(*names: str) -> tuple[Parameter, ...]:
    return tuple(Value(f"{name}_{axis}", "i32") for name in names for axis in _AXES)


_IMAGES = _sizes("source", "target")
_WINDOWS = _sizes("taps", "stride", "padding", "dilation")
# Whether padding counts, and the divisor or 0.
_AVERAGE = (Value("include_padding", "i32"), Value("divisor", "i32"))

_LOWEST = {
    "f16": "-INFINITY",
    "bf16": "-INFINITY",
    "f32": "-INFINITY",
    "f64": "-INFINITY",
    "i64": "LONG_MIN",
    "i32": "INT_MIN",
    "i16": "SHRT_MIN",
    "i8": "CHAR_MIN",
    "u8": "0",
}

_GROUP = 64

_SPLIT_TARGET = """
const long index = GLOBAL_ID(0);
if (index >= planes * target_z * target_y * target_x) return;
const int tx = index % target_x, ty = index / target_x % target_y, tz = index / ((long)target_x * target_y) % target_z;
const long plane = index / ((long)target_x * target_y * target_z);
S += plane * source_z * source_y * source_x;
"""

_SPLIT_SOURCE = """
const long index = GLOBAL_ID(0);
if (index >= planes * source_z * source_y * source_x) return;
const int x = index % source_x, y = index / source_x % source_y, z = index / ((long)source_x * source_y) % source_z;
const int place = index % ((long)source_x * source_y * source_z);
const long plane = index / ((long)source_x * source_y * source_z);
G += plane * target_z * target_y * target_x;
"""


def _is_nan(math: Arithmetic, name: str) -> str:
    return f"{name} != {name}" if math.is_float else "0"


# The pixels that an axis' window really holds: from start_* to end_* in steps of dilation.
def _window(axis: str, target: str, adaptive: bool) -> str:
    if adaptive:
        return (
            f"const int start_{axis} = (long){target} * source_{axis} / target_{axis}, "
            f"end_{axis} = (((long){target} + 1) * source_{axis} + target_{axis} - 1) / target_{axis};"
        )
    return f"""const int corner_{axis} = {target} * stride_{axis} - padding_{axis};
const int outside_{axis} = max(0, -corner_{axis});
const int start_{axis} = corner_{axis} + (outside_{axis} + dilation_{axis} - 1) / dilation_{axis} * dilation_{axis};
const int end_{axis} = min(corner_{axis} + (taps_{axis} - 1) * dilation_{axis} + 1, source_{axis});"""


def _count(padded: str = "include_padding") -> str:
    """Sets `count`: what the sum of a window is divided by."""
    sizes = [
        f"({padded} ? min(corner_{a} + taps_{a}, source_{a} + padding_{a}) - corner_{a} : end_{a} - start_{a})"
        for a in _AXES
    ]
    return f"const int count = divisor != 0 ? divisor : {' * '.join(sizes)};"


def _largest(math: Arithmetic, loops: str) -> str:
    """Finds the largest pixel of a window, or a NaN, and where it is."""
    return f"""
{math.scalar} best = {_LOWEST[math.storage]};
long best_at = ((long)start_z * source_y + start_y) * source_x + start_x;
{loops} {{
  const {math.scalar} value = {math.load("S", "((long)z * source_y + y) * source_x + x")};
  if (value > best || {_is_nan(math, "value")}) {{ best = value; best_at = ((long)z * source_y + y) * source_x + x; }}
}}
{math.store("T", "index", "best")};
I[index] = best_at;"""


@cache
def window_kernel(storage: str, kind: Kind, adaptive: bool, simd_width: int = 16) -> Kernel:
    """A work-item for each pixel of the target: the GPU form, and for adaptive windows the only one."""
    math = arithmetic(storage, simd_width)
    step = "1" if adaptive else "dilation_{0}"
    loops = "".join(f"for (int {a} = start_{a}; {a} < end_{a}; {a} += {step.format(a)})\n" for a in _AXES)
    windows = "\n".join(_window(a, f"t{a}", adaptive) for a in _AXES)
    if kind == "max":
        body = _largest(math, loops)
    else:
        value = math.load("S", "((long)z * source_y + y) * source_x + x")
        count = "const int count = (end_z - start_z) * (end_y - start_y) * (end_x - start_x);" if adaptive else _count()
        body = f"""
{math.scalar} sum = 0;
{loops} sum += {value};
{count}
{math.store("T", "index", "start_z < end_z && start_y < end_y && start_x < end_x ? sum / count : 0")};"""
    return Kernel(
        f"{'adaptive_' if adaptive else ''}{kind}_pool",
        _params(storage, kind, adaptive),
        f"{_SPLIT_TARGET}\n{windows}\n{body}",
        local=(_GROUP,),
    )


def _params(storage: str, kind: Kind, adaptive: bool) -> tuple[Parameter, ...]:
    indices = (Pointer("I", "i64"),) if kind == "max" else ()
    more = () if adaptive else (*_WINDOWS, *(_AVERAGE if kind == "average" else ()))
    return (Pointer("T", storage), *indices, Pointer("S", storage, True), Value("planes", "i64"), *_IMAGES, *more)


@cache
def row_kernel(storage: str, kind: Kind, simd_width: int = 16) -> Kernel:
    """The CPU form: rows of the target, a vector of pixels at a time."""
    math = arithmetic(storage, simd_width)
    lane = "long" if math.size == 8 else "int"
    lanes = f"{lane}{math.width}"
    windows = "\n".join(_window(a, f"t{a}", False) for a in ("z", "y"))
    if kind == "max":
        begin = f"""
    {math.vector} best = SPLAT_{math.vector}({_LOWEST[storage]});
    const {lanes} none = SPLAT_{lanes}(0), up = (dilation_x - 1 - corner) / dilation_x * dilation_x;
    const {lanes} first = corner + SELECT(corner < 0, up, none);
    {lanes} best_at = first + (start_z * source_y + start_y) * source_x;"""
        nan = "| (value != value)" if math.is_float else ""
        step = f"""
          const {lanes} lane = corner + kx * dilation_x;
          const {lanes} better = (lane >= 0) & (lane < source_x) & ((value > best) {nan});
          best = SELECT(better, value, best);
          best_at = SELECT(better, lane + (z * source_y + y) * source_x, best_at);"""
        end = f"""
    for (int l = 0; l < count; ++l) i[x + l] = (({lane}*)&best_at)[l];"""
        result = "best"
        rows = "GLOBAL long* i = I + row_at;"
    else:
        begin = f"{math.vector} sum = SPLAT_{math.vector}(0);"
        step = "sum += value;"
        end = ""
        result = "sum"
        end = f"""
    const int high = include_padding ? (min(corner_z + taps_z, source_z + padding_z) - corner_z) *
                     (min(corner_y + taps_y, source_y + padding_y) - corner_y) : (end_z - start_z) * (end_y - start_y);
    const {lanes} last = corner + taps_x;
    const {lanes} from = max(corner, SPLAT_{lanes}(0)), to = min(last, SPLAT_{lanes}(source_x));
    const {lanes} padded = min(last, SPLAT_{lanes}(source_x + padding_x)) - corner;
    const {lanes} wide = include_padding ? padded : to - from;
    const {lanes} by = divisor != 0 ? SPLAT_{lanes}(divisor) : max(wide * high, SPLAT_{lanes}(1));
    const {math.vector} none = SPLAT_{math.vector}(0);
    sum = start_z < end_z && start_y < end_y ? SELECT(to > from, sum / CONVERT_{math.vector}(by), none) : none;"""
        rows = ""
    numbers = ", ".join(str(n) for n in range(math.width))
    body = f"""
const long plane = GROUP_ID(0);
const long source_pixels = (long)source_z * source_y * source_x, end = planes * source_pixels;
const int row_end = min(target_z * target_y, ((int)GROUP_ID(1) + 1) * block_rows);
for (int row = GROUP_ID(1) * block_rows; row < row_end; ++row) {{
  const int tz = row / target_y, ty = row % target_y;
  const long row_at = (plane * target_z * target_y + row) * target_x;
  {math.pointer} t = T + row_at;
  {rows}
  {windows}
  for (int start = 0; start < target_x; start += {math.width}) {{
    // The last vector moves back over the one before it rather than stick out.
    const int x = start + {math.width} > target_x ? max(0, target_x - {math.width}) : start;
    const int count = min({math.width}, target_x - x);
    const int corner_x = x * stride_x - padding_x;
    const {lanes} corner = corner_x + MAKE_{lanes}({numbers}) * stride_x;
    {begin}
    for (int z = start_z; z < end_z; z += dilation_z)
      for (int y = start_y; y < end_y; y += dilation_y) {{
        const long at = plane * source_pixels + ((long)z * source_y + y) * source_x;
        for (int kx = 0; kx < taps_x; ++kx) {{
          const {math.vector} value = tg_patch(S, at, corner_x + kx * dilation_x, stride_x, source_x, end);
          {step}
        }}
      }}
    {end}
    if (count == {math.width}) {{
      {math.store_vector("t", "x", result)};
    }} else {{
      for (int l = 0; l < count; ++l) {math.store("t", "x + l", f"(({math.scalar}*)&{result})[l]")};
    }}
  }}
}}"""
    params = _params(storage, kind, False)
    at = next(n for n, p in enumerate(params) if p.name == "planes") + 1
    params = (*params[:at], Value("block_rows", "i32"), *params[at:])
    return Kernel(f"{kind}_pool_rows", params, body, helpers=patch_helper(math), local=(1, 1))


# --- Windows at random places, and the reverse of pooling.

# Rounds to a storage type whose numbers are kept as float, by the bits that it lacks. Torch computes windows in it.
_ROUND = """
inline float tg_round(float x) {{
  const uint u = AS_uint(x);
  return AS_float((u + ((1u << {bits}) / 2 - 1) + (u >> {bits} & 1)) & ~((1u << {bits}) - 1));
}}"""
_MISSING_BITS = {"f16": 13, "bf16": 16}

# Graham, "Fractional Max-Pooling" (2014): windows begin at the differences of two rounded numbers.
_RANDOM_START = """
inline int tg_start(int target, {real} sample, int source, int targets, int taps) {{
  if (target == targets - 1) return source - taps;
  const {real} alpha = tg_round(tg_round(source - taps) / tg_round(targets - 1));
  return (int)tg_round(tg_round(tg_round(target) + sample) * alpha) - (int)tg_round(sample * alpha);
}}"""


@cache
def fractional_kernel(storage: str, dims: int) -> Kernel:
    """The largest pixels of windows at random places; a work-item for each pixel of the target.

    `samples` has a number in 0 .. 1 for each plane and axis: of images in the order x, y, of volumes z, y, x.
    """
    math = arithmetic(storage)
    axes = _AXES[3 - dims :]
    order = tuple(reversed(axes)) if dims == 2 else axes
    starts = "const int start_z = 0, end_z = 1;" if dims == 2 else ""
    for a in axes:
        sample = math.load("samples", f"plane * {dims} + {order.index(a)}")
        starts += f"""
const int start_{a} = tg_start(t{a}, {sample}, source_{a}, target_{a}, taps_{a}), end_{a} = start_{a} + taps_{a};
if (start_{a} < 0 || end_{a} > source_{a}) {{ tg_report(errors, code, start_{a}); return; }}"""
    loops = "".join(f"for (int {a} = start_{a}; {a} < end_{a}; ++{a})\n" for a in _AXES)
    rounding = f"#define tg_round(x) (({math.scalar})(x))"
    if storage in _MISSING_BITS:
        rounding = _ROUND.format(bits=_MISSING_BITS[storage])
    pointers = (
        Pointer("T", storage),
        Pointer("I", "i64"),
        Pointer("S", storage, True),
        Pointer("samples", storage, True),
    )
    params = (
        *pointers,
        Pointer("errors", "i32"),
        Value("code", "i32"),
        Value("planes", "i64"),
        *_IMAGES,
        *_sizes("taps"),
    )
    helpers = f"{rounding}\n{_RANDOM_START.format(real=math.scalar)}"
    body = f"{_SPLIT_TARGET}\n{starts}\n{_largest(math, loops)}"
    return Kernel("fractional_max_pool", params, body, helpers, local=(_GROUP,))


@cache
def unpool_kernel(moved: str) -> Kernel:
    """Puts each pixel of the source where its index says; a work-item for each. `moved` is a type of the elements'
    size."""
    body = f"""
const long index = GLOBAL_ID(0);
if (index >= planes * source_pixels) return;
const long place = I[index];
if (place < 0 || place >= target_pixels) {{ tg_report(errors, code, place); return; }}
store_{moved}(T, index / source_pixels * target_pixels + place, load_{moved}(S, index));"""
    pointers = (Pointer("T", moved), Pointer("S", moved, True), Pointer("I", "i64", True))
    numbers = (Value("planes", "i64"), Value("source_pixels", "i64"), Value("target_pixels", "i64"))
    params = (*pointers, Pointer("errors", "i32"), Value("code", "i32"), *numbers)
    return Kernel("max_unpool", params, body, local=(_GROUP,))


# --- Gradients. G is the target's gradient, T the source's.


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


@cache
def gather_kernel(storage: str, kind: Kind, adaptive: bool) -> Kernel:
    """The gradient: a work-item for each pixel of the source."""
    math = arithmetic(storage)
    covering = "\n".join(_covering(a, adaptive) for a in _AXES)
    loops = "".join(f"for (int t{a} = from_{a}; t{a} < to_{a}; ++t{a})\n" for a in _AXES)
    at = "((long)tz * target_y + ty) * target_x + tx"
    if kind == "max":
        offset = "I += plane * target_z * target_y * target_x;"
        step = f"{{ const long at = {at}; if (I[at] == place) sum += {math.load('G', 'at')}; }}"
    else:
        offset = ""
        windows = " ".join(_window(a, f"t{a}", adaptive) for a in _AXES)
        count = "const int count = (end_z - start_z) * (end_y - start_y) * (end_x - start_x);" if adaptive else _count()
        step = f"{{ {windows} {count} sum += {math.load('G', at)} / count; }}"
    body = f"""
{_SPLIT_SOURCE}
{offset}
{covering}
{math.scalar} sum = 0;
{loops} {step}
{math.store("T", "index", "sum")};"""
    name = f"{'adaptive_' if adaptive else ''}{kind}_pool_backward"
    return Kernel(name, _gradient_params(storage, kind, adaptive), body, local=(_GROUP,))


def _gradient_params(storage: str, kind: Kind, adaptive: bool) -> tuple[Parameter, ...]:
    indices = (Pointer("I", "i64", True),) if kind == "max" else ()
    more = () if adaptive else (*_WINDOWS, *(_AVERAGE if kind == "average" else ()))
    return (Pointer("T", storage), Pointer("G", storage, True), *indices, Value("planes", "i64"), *_IMAGES, *more)


@cache
def scatter_kernel(storage: str, kind: Kind) -> Kernel:
    """The gradient on CPUs: a work-item for each plane. For types that sums are kept in; not for adaptive windows."""
    math = arithmetic(storage)
    indices = "I += plane * target_pixels;" if kind == "max" else ""
    if kind == "max":
        scatter = f"for (long i = 0; i < target_pixels; ++i) T[I[i]] += {math.load('G', 'i')};"
    else:
        rows = "\n".join(_window(a, f"t{a}", False) for a in ("z", "y"))
        scatter = f"""
for (int tz = 0; tz < target_z; ++tz)
  for (int ty = 0; ty < target_y; ++ty) {{
    {rows}
    for (int tx = 0; tx < target_x; ++tx, ++G) {{
      {_window("x", "tx", False)}
      {_count()}
      const {math.scalar} share = {math.load("G", "0")} / count;
      for (int z = start_z; z < end_z; ++z)
        for (int y = start_y; y < end_y; ++y)
          for (int x = start_x; x < end_x; ++x) T[((long)z * source_y + y) * source_x + x] += share;
    }}
  }}"""
    body = f"""
const long plane = GROUP_ID(0);
const long source_pixels = (long)source_z * source_y * source_x, target_pixels = (long)target_z * target_y * target_x;
T += plane * source_pixels;
G += plane * target_pixels;
{indices}
for (long i = 0; i < source_pixels; ++i) T[i] = 0;
{scatter}"""
    # The indices say where a maximum lay, whatever its windows.
    params = _gradient_params(storage, kind, adaptive=kind == "max")
    return Kernel(f"{kind}_pool_scatter", params, body)


# --- Launches.


def _pixels(size: Triple) -> int:
    return size[0] * size[1] * size[2]


def pool_launch(
    storage: str,
    kind: Kind,
    planes: int,
    source_size: Triple,
    target_size: Triple,
    pointers: tuple[object, ...],
    windows: tuple[int, ...] | None,
    *,
    form: str = "cpu",
    units: int = 1,
    simd_width: int = 16,
) -> Launch:
    """The launch of a pooling.

    Args:
        pointers: target, [indices,] source.
        windows: taps, stride, padding and dilation on each axis, then for means whether padding counts and a divisor or
        0; None for
            adaptive windows.
    """
    more = windows or ()
    if form == "cpu" and windows is not None:
        lines = target_size[0] * target_size[1]
        block_rows = max(1, min(lines, ceil_div(lines * planes, 4 * units)))
        return Launch(
            row_kernel(storage, kind, simd_width),
            (planes, ceil_div(lines, block_rows)),
            (*pointers, planes, block_rows, *source_size, *target_size, *more),
        )
    return Launch(
        window_kernel(storage, kind, windows is None, simd_width),
        (ceil_div(planes * _pixels(target_size), _GROUP),),
        (*pointers, planes, *source_size, *target_size, *more),
    )


def fractional_launch(
    storage: str,
    dims: int,
    planes: int,
    source_size: Triple,
    target_size: Triple,
    taps: Triple,
    pointers: tuple[object, ...],
) -> Launch:
    """The launch of a pooling with windows at random places. Pointers: target, indices, source, samples, error words
    and their code."""
    groups = (ceil_div(planes * _pixels(target_size), _GROUP),)
    return Launch(fractional_kernel(storage, dims), groups, (*pointers, planes, *source_size, *target_size, *taps))


def unpool_launch(
    moved: str, planes: int, source_pixels: int, target_pixels: int, pointers: tuple[object, ...]
) -> Launch:
    """The launch of an unpooling. Pointers: target, source, indices, error words and their code."""
    groups = (ceil_div(planes * source_pixels, _GROUP),)
    return Launch(unpool_kernel(moved), groups, (*pointers, planes, source_pixels, target_pixels))


def pool_gradient_launch(
    storage: str,
    kind: Kind,
    planes: int,
    source_size: Triple,
    target_size: Triple,
    pointers: tuple[object, ...],
    windows: tuple[int, ...] | None,
    *,
    form: str = "cpu",
    units: int = 1,
    simd_width: int = 16,
) -> Launch:
    """The launch of a pooling's gradient. Pointers: the source's gradient, the target's gradient [, the indices]."""
    sizes = (planes, *source_size, *target_size)
    scatters = kind == "max" or windows is not None
    if scatters and form == "cpu" and storage not in ("f16", "bf16") and planes >= units:
        more = () if kind == "max" else windows or ()
        return Launch(scatter_kernel(storage, kind), (planes,), (*pointers, *sizes, *more))
    return Launch(
        gather_kernel(storage, kind, windows is None),
        (ceil_div(planes * _pixels(source_size), _GROUP),),
        (*pointers, *sizes, *(windows or ())),
    )
