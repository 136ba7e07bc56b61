"""Depthwise convolution of planes for CPUs: forward, and both gradients; that of the image with strides of one or two.

Each channel has a filter of its own, so that there is nothing to multiply matrices for, and the memory's speed would be
the limit if the borders did not have to be looked after in each vector. A work-item copies a band of a plane's rows
with zeros around it into its private memory, after which every tap is a vector that lies there. With a stride, columns
that are a stride apart are neighbours in the copy: a row of it has a part for each remainder.

* `plane_kernel` keeps the sums of some rows of the target at once: each row of the source is read once for all of them.
  Going backward the filter is flipped and the padding is what a whole overlap leaves of it. Long filters are a
  loop over parts of their columns, and planes whose rows do not fit are divided into tiles of columns.
* `plane_phases_kernel` goes backward with strides: pixels of the image that are a stride apart, a phase, meet the same
  taps, so that each phase is a plane of its own until it is stored.
* `plane_weight_kernel` keeps the sums of all taps.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import product
from math import prod

from torchgraft.codegen import ceil_div
from torchgraft.codegen.arithmetic import Arithmetic, arithmetic
from torchgraft.codegen.kernel import Kernel, Launch, parameters
from torchgraft.codegen.tuning import Planes, Target
from torchgraft.codegen.vectors import WIDTHS
from torchgraft.kernels.convolution.geometry import Direction, Geometry, Triple

_MOST_STRIDE = 4
# Rows of one column at a time, of filters that are not written out.
_PART = 8


# Any row, a column at a time at its borders.
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

# Rows that lie in the band as a whole, in vectors that move back rather than stick out. Those of zeros do stick out,
# into what is written next.
_FILL_VECTORS = """
const int part = pitch / {step};
for (int r = 0; r < {high}; ++r) {{
  {scalar}* const to = band + r * pitch;
  const int y = {first} + r;
  {zeros}
  if ((uint)y < (uint)source_y) {{
    const long at = source_at + (long)y * source_x;
    {copies}
  }}
}}"""
_ZEROS = "for (int i = {first}; i < {end}; i += {width}) *({vector}u*)(to + i) = {zero};"
_COPIES = """
for (int x = 0; x < source_x; x += {width}) {{
  const int from = min(x, source_x - {width});
  *({vector}u*)(to + left + from) = {value};
}}"""
_COPIES_OF_TWO = """
{scalar}* const even = to + left % 2 * part + left / 2;
{scalar}* const odd = to + (left + 1) % 2 * part + (left + 1) / 2;
const int pairs = source_x / 2;
for (int x = 0; x < pairs; x += {width}) {{
  const int from = min(x, pairs - {width});
  const {vector} a = {value}, b = {next};
  *({vector}u*)(even + from) = EVEN_{vector}(a, b);
  *({vector}u*)(odd + from) = ODD_{vector}(a, b);
}}
if (source_x % 2 != 0) even[pairs] = {last};"""


def _fill(math: Arithmetic, high: str, first: str, step: int, width: int) -> str:
    """Copies rows of the plane at `source_at`, from row `first` on, into `band`. `left` columns of zeros go first; if
    less than none, columns of the plane are left out. Of columns that are `step` apart there is a part for each
    remainder.

    Copies so many columns at a time as `_fill_width` allows.
    """
    scalar, vector = math.scalar, f"{math.scalar}{width}"
    if not width:
        return _FILL.format(high=high, first=first, step=step, scalar=scalar, value=math.load("S", f"at + i * {step}"))

    def zeros(first: str, end: str) -> str:
        return _ZEROS.format(first=first, end=end, width=width, vector=vector, zero=f"SPLAT_{vector}(0)")

    def value(index: str) -> str:
        return math.load_vector("S", index, width)

    if step == 1:
        outside = f"if ((uint)y >= (uint)source_y) {zeros('0', 'pitch')}"
        borders = f"else {{\n{zeros('0', 'left')}\n{zeros('left + source_x', 'pitch')}\n}}"
        copies = _COPIES.format(width=width, vector=vector, value=value("at + from"))
        return _FILL_VECTORS.format(
            high=high, first=first, step=step, scalar=scalar, zeros=f"{outside}\n{borders}", copies=copies
        )
    copies = _COPIES_OF_TWO.format(
        width=width,
        scalar=scalar,
        vector=vector,
        value=value("at + 2 * from"),
        next=value(f"at + 2 * from + {width}"),
        last=math.load("S", "at + source_x - 1"),
    )
    return _FILL_VECTORS.format(
        high=high, first=first, step=step, scalar=scalar, zeros=zeros("0", "pitch"), copies=copies
    )


def _fill_width(math: Arithmetic, source_x: int, left: int, pitch: int, step: int) -> int:
    """How many columns are copied at a time; 0 is one, as where part of a row is outside of the band."""
    if step > 2 or left < 0 or left + source_x > pitch:
        return 0
    return next((width for width in reversed(WIDTHS) if width <= min(math.width, source_x // step)), 0)


def _sums(math: Arithmetic, rows: int, taps: tuple[int, int], strides: tuple[int, int]) -> str:
    """Each vector of the band goes into the sums of all rows that it meets; columns one after the other, so that the
    filter's column stays in registers."""
    lines, (taps_y, taps_x), (down, step) = [], taps, strides
    for kx in range(taps_x):
        for i in range((rows - 1) * down + taps_y):
            value = f"*(const {math.vector}u*)(p + {i} * pitch + {_column(f'{kx} * dilation_x', step)})"
            lines.append(f"{{ const {math.vector} value = {value};")
            for r in (r for r in range(rows) if 0 <= i - r * down < taps_y):
                filter_ = math.splat(f"w[{(i - r * down) * taps_x + kx}]")
                lines.append(f"  sum{r}_0 = {math.multiply_add(filter_, 'value', f'sum{r}_0')};")
            lines.append("}")
    return "\n".join(lines)


def _long_sums(math: Arithmetic, rows: int, across: int, taps: tuple[int, int], strides: tuple[int, int]) -> str:
    """The same as loops, with sums of `across` vectors in each row."""
    (taps_y, taps_x), (down, step) = taps, strides

    def part(count: int) -> str:
        lines = [f"const {math.vector} w{k} = {math.splat(f'w[(ky + {k}) * {taps_x} + kx]')};" for k in range(count)]
        for i, a in product(range((rows - 1) * down + count), range(across)):
            lines.append(
                f"{{ const {math.vector} value = *(const {math.vector}u*)(q + {i} * pitch + {a * math.width});"
            )
            for r in (r for r in range(rows) if 0 <= i - r * down < count):
                lines.append(f"  sum{r}_{a} = {math.multiply_add(f'w{i - r * down}', 'value', f'sum{r}_{a}')};")
            lines.append("}")
        return "\n".join([f"const {math.scalar}* q = p + ky * pitch + {_column('kx * dilation_x', step)};", *lines])

    size = min(_PART, taps_y)
    last = f"{{ const int ky = {taps_y - taps_y % size}; {part(taps_y % size)} }}" if taps_y % size else ""
    return f"""for (int kx = 0; kx < {taps_x}; ++kx) {{
  for (int ky = 0; ky <= {taps_y - size}; ky += {size}) {{ {part(size)} }}
  {last}
}}"""


def _column(column: str, step: int) -> str:
    """Where a row of the band has a column."""
    return column if step == 1 else f"({column}) % {step} * part + ({column}) / {step}"


def _arithmetic(storage: str, width: int) -> Arithmetic:
    """With vectors of so many elements."""
    return arithmetic(storage, width * arithmetic(storage).size // 4)


def _width(storage: str, simd_width: int, columns: int) -> int:
    """Elements of the vectors that compute the fewest columns too many. One of 16 bytes takes as long as one of 32."""
    math = arithmetic(storage, simd_width)
    widths, least = [w for w in reversed(WIDTHS) if w <= math.width], 32 // math.size
    return min(widths, key=lambda w: ceil_div(columns, w) * max(w, least))


def _rows(most: int, rows: int) -> int:
    """Rows at once, of so many, with which the fewest too many are computed."""
    return min(range(min(most, rows), most // 2, -1), key=lambda r: ceil_div(rows, r) * r, default=min(most, rows))


@cache
def plane_kernel(
    storage: str,
    bias: bool,
    at_once: int,
    width: int,
    taps: tuple[int, int],
    strides: tuple[int, int],
    planes: Planes,
    fill_width: int,
    across: int = 1,
    tiled: bool = False,
) -> Kernel:
    """A band of rows of M targets for each source plane, `at_once` in `across` vectors of `width`: group 0 is (image,
    plane), group 1 the band, group 2 the tile if it is `tiled`. Launch with `plane_launch`."""
    math, count, (down, step) = _arithmetic(storage, width), prod(taps), strides
    first = math.splat(math.load("E", "channel") if bias else "0")
    sums = [f"sum{r}_{a}" for r, a in product(range(at_once), range(across))]
    is_long = count > planes.taps
    add = _long_sums(math, at_once, across, taps, strides) if is_long else _sums(math, at_once, taps, strides)

    def store(r: int, a: int) -> str:
        x, value = f"x + {a * width}", f"sum{r}_{a}"
        lane = math.store("t", f"{x} + l", f"((const {math.scalar}*)&{value})[l]")
        # A row narrower than a vector sticks out into the next ones, which are written after it; the last cannot, nor
        # may those of tiles.
        whole = f"{x} + {width} <= target_x" if tiled else f"(rows - r - {r}) * target_x >= {x} + {width}"
        return f"""
  if ({whole}) {{ {math.store_vector("t", x, value)}; }}
  else for (int l = 0; {x} + l < target_x; ++l) {lane};"""

    stores = "\n".join(
        f"""if (r + {r} < rows) {{
  {math.pointer} t = target + (long)(r + {r}) * target_x;{"".join(store(r, a) for a in range(across))}
}}"""
        for r in range(at_once)
    )
    body = f"""
{_head(math, planes)}
const int high = ((rows + {at_once - 1}) / {at_once} * {at_once} - 1) * {down} + {taps[0]};
const int from = {"GROUP_ID(2) * columns" if tiled else "0"}, end = min(target_x, from + columns);
const int before = left - from * {step};
{{
const int left = before;
{_fill(math, "high", f"row * {down} - top", step, fill_width)}
for (int m = 0; m < M; ++m) {{
  {_filter(math, count, f"(turned ? {count - 1} - k : k)")}
  for (int r = 0; r < rows; r += {at_once})
    for (int start = from; start < end; start += {across * width}) {{
      // The last vector moves back over the one before it rather than stick out.
      const int x = max(from, min(start, target_x - {across * width}));
      const {math.scalar}* p = band + r * {down} * pitch + x - from;
      {math.vector} {", ".join(f"{name} = {first}" for name in sums)};
      {add}
      {stores}
    }}
}}
}}"""
    params = parameters(
        f"{storage}* T; const {storage}* S, F{', E' if bias else ''}; {_PARAMETERS}, dilation_x, turned, columns"
    )
    return Kernel("convolution_planes", params, body, local=(1, 1, 1))


_PARAMETERS = "i32 groups, M, source_y, source_x, target_y, target_x, top, left, pitch, band_rows"


def _head(math: Arithmetic, planes: Planes) -> str:
    """Which rows of which plane's targets a group computes."""
    return f"""
const int plane = GROUP_ID(0), group = plane % groups;
const int row = GROUP_ID(1) * band_rows, rows = min(band_rows, target_y - row);
{math.scalar} band[{planes.band}];
const long source_at = (long)plane * source_y * source_x;"""


def _filter(math: Arithmetic, taps: int, tap: str = "k") -> str:
    """The filter `w` of target m, and the place of its rows."""
    return f"""
const int channel = group * M + m;
{math.scalar} w[{taps}];
for (int k = 0; k < {taps}; ++k) w[k] = {math.load("F", f"(long)channel * {taps} + {tap}")};
{math.pointer} target = T + (((long)plane * M + m) * target_y + row) * target_x;"""


@dataclass(frozen=True)
class _Phases:
    """Along an axis of a backward convolution with a stride: pixel `stride * u + phase` of the target meets taps that
    are `stride` apart. Source pixels are counted from the first that any target meets, as `origin` says.

    `uneven` is the padding's remainder.
    """

    taps: int
    stride: int
    uneven: int

    @property
    def most(self) -> int:
        """How many taps a phase has at most."""
        return ceil_div(self.taps, self.stride)

    def pairs(self, phase: int) -> list[tuple[int, int]]:
        """(tap, source pixel beyond u) for each of the phase's taps."""
        ahead, first = divmod(phase + self.uneven, self.stride)
        return [(tap, ahead + self.most - 1 - j) for j, tap in enumerate(range(first, self.taps, self.stride))]

    def origin(self, padding: int) -> int:
        """The first source pixel that target pixel 0 may meet, of all phases; before the source if less than 0."""
        return padding // self.stride - self.most + 1


@cache
def plane_phases_kernel(
    storage: str, bias: bool, at_once: int, width: int, axes: tuple[_Phases, _Phases], planes: Planes, fill_width: int
) -> Kernel:
    """As `plane_kernel`, backward with strides: `at_once` rows of the source meet as many times the stride of the
    target, whose columns of two phases are put side by side."""
    math, (y, x) = _arithmetic(storage, width), axes
    step, count = x.stride, y.taps * x.taps
    first = math.splat(math.load("E", "channel") if bias else "0")
    sums = [f"sum{r}_{a}_{b}" for r in range(at_once) for a in range(y.stride) for b in range(step)]
    uses: dict[tuple[int, int], list[str]] = {}
    for r, a, b in product(range(at_once), range(y.stride), range(step)):
        for (ky, i), (kx, j) in product(y.pairs(a), x.pairs(b)):
            name = f"sum{r}_{a}_{b}"
            update = f"{name} = {math.multiply_add(math.splat(f'w[{ky * x.taps + kx}]'), 'value', name)};"
            uses.setdefault((j, r + i), []).append(update)
    updates = "\n".join(
        f"{{ const {math.vector} value = *(const {math.vector}u*)(p + {i} * pitch + {j}); {' '.join(lines)} }}"
        for (j, i), lines in sorted(uses.items())
    )
    stores = "\n".join(
        _phases_store(math, f"(r + {r}) * {y.stride} + {a}", [f"sum{r}_{a}_{b}" for b in range(step)])
        for r in range(at_once)
        for a in range(y.stride)
    )
    body = f"""
{_head(math, planes)}
const int pairs = (rows + {y.stride - 1}) / {y.stride}, last = (target_x - 1) / {step} / {width} * {width};
const int high = (pairs + {at_once - 1}) / {at_once} * {at_once} + {y.most};
{_fill(math, "high", f"row / {y.stride} - top", 1, fill_width)}
for (int m = 0; m < M; ++m) {{
  {_filter(math, count)}
  for (int r = 0; r < pairs; r += {at_once})
    for (int u = last; u >= 0; u -= {width}) {{
      const int x = u * {step};
      const {math.scalar}* p = band + r * pitch + u;
      {math.vector} {", ".join(f"{name} = {first}" for name in sums)};
      {updates}
      {stores}
    }}
}}"""
    params = parameters(f"{storage}* T; const {storage}* S, F{', E' if bias else ''}; {_PARAMETERS}")
    return Kernel("convolution_plane_phases", params, body, local=(1, 1))


def _phases_store(math: Arithmetic, row: str, sums: list[str]) -> str:
    """Vectors stick out into rows, or the begin of the next one, which are written after them."""
    step, width = len(sums), math.width
    vectors = [f"{zip_}_{math.vector}({', '.join(sums)})" for zip_ in ("ZIP_LOW", "ZIP_HIGH")] if step == 2 else sums
    stores = " ".join(f"{math.store_vector('t', f'x + {i * width}', v)};" for i, v in enumerate(vectors))
    lanes = f"{{ {', '.join(sums)} }}"
    lane = f"((const {math.scalar}*)&lanes[l % {step}])[l / {step}]"
    return f"""if ({row} < rows) {{
  {math.pointer} t = target + (long)({row}) * target_x;
  if ((rows - ({row})) * target_x >= x + {step * width}) {{ {stores} }}
  else {{
    const {math.vector} lanes[{step}] = {lanes};
    for (int l = 0; l < {step * width} && x + l < target_x; ++l) {math.store("t", "x + l", lane)};
  }}
}}"""


@cache
def plane_weight_kernel(
    storage: str,
    result: str,
    width: int,
    taps_y: int,
    taps_x: int,
    strides: tuple[int, int],
    planes: Planes,
    fill_width: int,
) -> Kernel:
    """The weight's gradient: group 0 is the channel, group 1 a part of the images. Of a long filter the sums of some
    taps are in registers at a time. Launch with `plane_weight_launch`."""
    math, taps, (down, step) = _arithmetic(storage, width), taps_y * taps_x, strides
    mask = f"CONVERT_long{width}(inside)" if math.size == 8 else "inside"

    def rows_of_band(places: list[str]) -> str:
        """Adds the band's rows to the sums of the taps whose pixels lie in these places."""

        def updates(masked: bool) -> str:
            lines = []
            for k, place in enumerate(places):
                read = f"*(const {math.vector}u*)(p + {place})"
                read = f"SELECT({mask}, {read}, none)" if masked else read
                lines.append(f"sum{k} = {math.multiply_add('value', read, f'sum{k}')};")
            return "\n".join(lines)

        return f"""
    {math.const_pointer} grad = first_grad;
    for (int r = 0; r < rows; ++r, grad += target_x) {{
      int x = first;
      for (; x + {width} <= end; x += {width}) {{
        const {math.scalar}* p = band + r * {down} * pitch + x - first;
        const {math.vector} value = {math.load_vector("grad", "x")};
        {updates(masked=False)}
      }}
      if (x < end) {{  // what other lanes would read may be infinite, which zero times makes no zero
        const int from = max(first, min(x, target_x - {width}));
        const {math.scalar}* p = band + r * {down} * pitch + from - first;
        const int{width} column = from + MAKE_int{width}({", ".join(map(str, range(width)))});
        const int{width} inside = (column >= x) & (column < target_x);
        const {math.vector} none = {math.splat("0")};
        {math.vector} value;
        if (from + {width} <= target_x) value = {math.load_vector("grad", "from")};
        else {{
          {math.scalar} own[{width}];
          for (int l = 0; l < {width}; ++l) own[l] = from + l < target_x ? {math.load("grad", "from + l")} : 0;
          value = *(const {math.vector}u*)own;
        }}
        value = SELECT({mask}, value, none);
        {updates(masked=True)}
      }}
    }}"""

    def tap(k: str) -> str:
        return f"{k} / {taps_x} * dilation_y * pitch + {_column(f'{k} % {taps_x} * dilation_x', step)}"

    def some_sums(count: int) -> str:
        """Adds to as many taps from `k` on."""
        return f"""
      const int {", ".join(f"at{j} = {tap(f'(k + {j})')}" for j in range(count))};
      {math.vector} {", ".join(f"sum{j} = sums[k + {j}]" for j in range(count))};
      {rows_of_band([f"at{j}" for j in range(count)])}
      {" ".join(f"sums[k + {j}] = sum{j};" for j in range(count))}"""

    def folded(sum_: str, k: str) -> str:
        return f"""{{
  {math.scalar} sum = 0;
  for (int l = 0; l < {width}; ++l) sum += ((const {math.scalar}*)&{sum_})[l];
  store_{result}(T, place + {k}, sum);
}}"""

    zero = math.splat("0")
    if taps <= planes.taps:
        declared = f"{math.vector} {', '.join(f'sum{k} = {zero}' for k in range(taps))};"
        added = rows_of_band([tap(str(k)) for k in range(taps)])
        stored = "\n".join(folded(f"sum{k}", str(k)) for k in range(taps))
    else:
        whole = taps - taps % _PART
        declared = f"""{math.vector} sums[{taps}];
for (int k = 0; k < {taps}; ++k) sums[k] = {zero};"""
        added = f"for (int k = 0; k < {whole}; k += {_PART}) {{ {some_sums(_PART)} }}"
        added += f"{{ const int k = {whole}; {some_sums(taps % _PART)} }}" if taps % _PART else ""
        stored = f"for (int k = 0; k < {taps}; ++k) {folded('sums[k]', 'k')}"
    body = f"""
const int channel = GROUP_ID(0), group = channel / M;
const int from = GROUP_ID(1) * part_images, to = min(batch, from + part_images);
{math.scalar} band[{planes.band}];
{declared}
for (int image = from; image < to; ++image) {{
  const long source_at = ((long)image * groups + group) * source_y * source_x;
  for (int row = 0; row < target_y; row += band_rows)
  for (int first = 0; first < target_x; first += columns) {{
    const int end = min(target_x, first + columns), before = left - first * {step};
    const int rows = min(band_rows, target_y - row), high = (rows - 1) * {down} + {taps_y - 1} * dilation_y + 1;
    {math.const_pointer} const first_grad = R + (((long)image * groups * M + channel) * target_y + row) * target_x;
    {{
    const int left = before;
    {_fill(math, "high", f"row * {down} - top", step, fill_width)}
    {added}
    }}
  }}
}}
const long place = ((long)GROUP_ID(1) * NUM_GROUPS(0) + GROUP_ID(0)) * {taps};
{stored}"""
    params = parameters(
        f"{result}* T; const {storage}* S, R; "
        "i32 batch, groups, M, source_y, source_x, target_y, target_x, top, left, pitch, dilation_y, dilation_x, "
        "band_rows, part_images, columns"
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
        """Rows of the target for which a copy of so many elements has what they need, and a vector more."""
        return ((band - WIDTHS[-1]) // pitch - self.reach[0] - 1) // self.strides[0] + 1


def _planes(g: Geometry, most_taps: int) -> _Planes | None:
    """Nothing if it is no such convolution."""
    flat = g.image[0] == g.taps[0] == g.result[0] == 1 and g.padding[0] == 0
    if not flat or g.stride[0] != 1 or max(g.stride) > _MOST_STRIDE or g.taps[1] * g.taps[2] > most_taps:
        return None
    return _Planes(g.taps[1:], g.dilation[1:], g.padding[1:], g.stride[1:])


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
    """Images made of images, as `direct` has them; nothing if it is no such convolution."""
    sizes = on.tuning.planes
    planes, forward = _planes(g, sizes.long_taps), direction == "forward"
    channels = g.image_channels if forward else g.result_channels
    if planes is None or channels != g.groups or (planes.dilation[0] != 1 and planes.taps[0] != 1):
        return None
    arguments = {"T": target, "S": source, "F": weight, **({"E": bias} if bias is not None else {})}
    if forward or planes.strides == (1, 1):
        return _direct_launch(storage, g, planes, forward, arguments, on)
    return _phases_launch(storage, g, planes, arguments, on) if prod(planes.taps) <= sizes.taps else None


def _bands(g: Geometry, rows: int, most_rows: int, at_once: int, on: Target) -> int:
    """Into how many rows each the rows of a target are divided: fewer than so many, and enough bands for the device's
    units."""
    bands = ceil_div(4 * on.units, g.batch * g.groups)
    return min(most_rows // at_once * at_once, ceil_div(ceil_div(rows, bands), at_once) * at_once)


def _sizes(
    g: Geometry, m: int, source: Triple, target: Triple, before: tuple[int, int], pitch: int, band_rows: int
) -> dict[str, object]:
    """The arguments for `_PARAMETERS`; before a plane lie so many rows and columns of zeros."""
    names = ("groups", "M", "source_y", "source_x", "target_y", "target_x", "top", "left", "pitch", "band_rows")
    return dict(zip(names, (g.groups, m // g.groups, *source[1:], *target[1:], *before, pitch, band_rows), strict=True))


def _direct_launch(
    storage: str, g: Geometry, planes: _Planes, forward: bool, arguments: dict[str, object], on: Target
) -> Launch | None:
    source, target = (g.image, g.result) if forward else (g.result, g.image)
    _, target_y, target_x = target
    at_once, width = _rows(on.tuning.planes.rows, target_y), _width(storage, on.simd_width, target_x)
    long = prod(planes.taps) > on.tuning.planes.taps
    across = max(1, min(on.tuning.planes.rows // at_once, target_x // width)) if long else 1
    columns, pitch = _tile(planes, on.tuning.planes.band, at_once, across * width, g.result if forward else g.image)
    band_rows = _bands(g, target_y, planes.most_rows(on.tuning.planes.band, pitch), at_once, on)
    if band_rows < at_once:
        return None
    tiled = columns < target_x
    m = g.result_channels if forward else g.image_channels
    (top, left), (reach_y, reach_x) = planes.padding, planes.reach
    if not forward:
        top, left = reach_y - top, reach_x - left
    fill_width = _fill_width(_arithmetic(storage, width), source[2], left, pitch, planes.strides[1])
    kernel = plane_kernel(
        storage,
        "E" in arguments,
        at_once,
        width,
        planes.taps,
        planes.strides,
        on.tuning.planes,
        0 if tiled else fill_width,
        across,
        tiled,
    )
    return Launch(
        kernel,
        (g.batch * g.groups, ceil_div(target_y, band_rows), ceil_div(target_x, columns)),
        {
            **arguments,
            **_sizes(g, m, source, target, (top, left), pitch, band_rows),
            "dilation_x": planes.dilation[1],
            "turned": int(not forward),
            "columns": columns,
        },
    )


def _tile(planes: _Planes, band: int, at_once: int, width: int, target: Triple) -> tuple[int, int]:
    """Columns of a tile, and the elements of a row of its copy: all columns, or as many times the width as leave room
    for as many rows as the filter reaches beyond, so that no more than half of what is copied is copied again."""
    _, rows, columns = target
    least = max(at_once, min(rows, planes.reach[0] // planes.strides[0]))
    tile, pitch = columns, planes.pitch(ceil_div(columns, width) * width)
    while planes.most_rows(band, pitch) < least and tile > width:
        tile = ceil_div(ceil_div(tile, 2), width) * width
        pitch = planes.pitch(tile)
    return tile, pitch


def _phases_launch(
    storage: str, g: Geometry, planes: _Planes, arguments: dict[str, object], on: Target
) -> Launch | None:
    if max(planes.strides) > 2 or planes.dilation != (1, 1):
        return None
    _, target_y, target_x = g.image
    y, x = (
        _Phases(taps, stride, padding % stride)
        for taps, stride, padding in zip(planes.taps, planes.strides, planes.padding, strict=True)
    )
    rows, columns = ceil_div(target_y, y.stride), ceil_div(target_x, x.stride)
    width = _width(storage, on.simd_width, columns)
    at_once = _rows(max(1, on.tuning.planes.rows // (y.stride * x.stride)), rows)
    pitch = ceil_div(columns, width) * width + x.most
    most_rows = (on.tuning.planes.band - WIDTHS[-1]) // pitch - y.most
    band_rows = _bands(g, rows, most_rows, at_once, on)
    if band_rows < at_once:
        return None
    top, left = (-axis.origin(padding) for axis, padding in zip((y, x), planes.padding, strict=True))
    fill_width = _fill_width(_arithmetic(storage, width), g.result[2], left, pitch, 1)
    sizes = _sizes(g, g.image_channels, g.result, g.image, (top, left), pitch, band_rows * y.stride)
    return Launch(
        plane_phases_kernel(storage, "E" in arguments, at_once, width, (y, x), on.tuning.planes, fill_width),
        (g.batch * g.groups, ceil_div(rows, band_rows)),
        {**arguments, **sizes},
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
    planes = _planes(g, on.tuning.planes.weight_taps)
    if planes is None or g.image_channels != g.groups:
        return None
    taps_y, taps_x = planes.taps
    _, target_y, target_x = g.result
    # The sums of more wide vectors would not fit into the registers.
    widest = arithmetic(storage, min(on.simd_width, 8) if taps_y * taps_x > 9 else on.simd_width).width
    width = next((w for w in reversed(WIDTHS) if w <= min(widest, target_x)), WIDTHS[0])
    columns, pitch = _tile(planes, on.tuning.planes.band, 1, width, g.result)
    band_rows = min(target_y, planes.most_rows(on.tuning.planes.band, pitch))
    if band_rows < 1:
        return None
    fill_width = _fill_width(_arithmetic(storage, width), g.image[2], planes.padding[1], pitch, planes.strides[1])
    fill_width = fill_width if columns >= target_x else 0
    return Launch(
        plane_weight_kernel(storage, result, width, *planes.taps, planes.strides, on.tuning.planes, fill_width),
        (g.result_channels, ceil_div(g.batch, part_images)),
        {
            "T": target,
            "S": image,
            "R": grad,
            "batch": g.batch,
            **_sizes(g, g.result_channels, g.image, g.result, planes.padding, pitch, band_rows),
            "dilation_y": planes.dilation[0],
            "dilation_x": planes.dilation[1],
            "part_images": part_images,
            "columns": columns,
        },
    )
