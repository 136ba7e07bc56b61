"""Upsampling: every mode is a banded matrix along each axis, and its gradient that matrix transposed.

One kernel writes the matrices: where the row of each pixel of the target begins in the source, and its weights. A row
has the same number of taps everywhere and lies wholly inside the source; what a mode would read beyond the edge is
added to the edge's weight. The kernels that apply the matrices know nothing of modes. A weight of zero is skipped, so
that an infinite pixel reaches only what it is meant to.

An image is planes x z x y x x pixels of `inner` elements each: 1 where channels come first, the channels where they
come last, and the rest of the row where a single axis is resampled.

The formulas are those of torch (aten/src/ATen/native/UpSample.h): half-pixel centres unless corners are aligned, and
for "nearest" floor(target * scale). Antialiasing widens a filter by the scale, as Pillow does.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from torchgraft.codegen.arithmetic import Arithmetic, arithmetic
from torchgraft.codegen.kernel import Kernel, Parameter, parameters
from torchgraft.codegen.teams import Layout, Team
from torchgraft.codegen.types import BY_NAME
from torchgraft.codegen.vectors import VECTORS
from torchgraft.codegen.walk import Walk

AXES = ("x", "y", "z")
"""In the order of the tables; an image of one dimension has x alone."""


@dataclass(frozen=True)
class Filter:
    """What a mode does along one axis.

    Attributes:
        name: of the mode.
        taps: source pixels that have a weight, before antialiasing widens the filter.
        place: statements that set `first`, the first of these pixels, and `offset`, what the weights depend on.
        weight: of tap `j`, an expression; "" if it is 1.
    """

    name: str
    taps: int
    place: str
    weight: str = ""
    antialias: bool = False


_HALF = "(real)0.5"
_NEAREST = "offset = 0; first = min((int)floor((float)({place})), source - 1);"
_BETWEEN = """const real place = {place};
  const int base = min((int)floor((float)place), source - 1);
  offset = clamp(place - base, (real)0, (real)1);
  first = base{before};"""
_CENTRE = f"""const real reach = (real)size / 2 * max(scale, (real)1);
  offset = scale * (o + {_HALF});
  first = max((int)(offset - reach + {_HALF}), 0);"""
# The argument of an antialiasing filter.
_DISTANCE = f"fabs((j + first - offset + {_HALF}) / max(scale, (real)1))"

_CUBIC = """
inline real tg_cubic(real x, real a) {
  return x < 1 ? ((a + 2) * x - (a + 3)) * x * x + 1 : x < 2 ? ((a * x - 5 * a) * x + 8 * a) * x - 4 * a : (real)0;
}"""
_LANCZOS = """
inline real tg_sinc(real x) { return x == 0 ? (real)1 : sinpi(x) / (x * (real)3.14159265358979323846); }
inline real tg_lanczos(real x) { return x < 3 ? tg_sinc(x) * tg_sinc(x / 3) : (real)0; }"""


def _between(aligned: bool, clamped: bool, before: str) -> str:
    centred = f"scale * (o + {_HALF}) - {_HALF}"
    return _BETWEEN.format(
        place="scale * o" if aligned else f"max({centred}, (real)0)" if clamped else centred, before=before
    )


@cache
def resampling_filter(mode: str, aligned: bool = False) -> Filter:
    """The filter of a mode: "nearest", "nearest-exact", "linear", "cubic", and antialiased "linear-aa", "cubic-aa",
    "lanczos-aa". "nearest-exact-fused" rounds otherwise where a centre falls between two pixels: as the kernel for
    large images of torch's CPU does, which takes half a pixel off in one multiply-add and puts it on again."""
    match mode:
        case "nearest":
            return Filter(mode, 1, _NEAREST.format(place="scale * o"))
        case "nearest-exact":
            return Filter(mode, 1, _NEAREST.format(place=f"scale * (o + {_HALF})"))
        case "nearest-exact-fused":
            centre = f"fma(scale, o + {_HALF}, -{_HALF})"
            return Filter(mode, 1, _NEAREST.format(place=f"max({centre}, (real)0) + {_HALF}"))
        case "linear":
            return Filter(mode, 2, _between(aligned, True, ""), "j == 0 ? 1 - offset : offset")
        case "cubic":
            return Filter(mode, 4, _between(aligned, False, " - 1"), "tg_cubic(fabs(j - 1 - offset), (real)-0.75)")
        case "linear-aa":
            return Filter(mode, 2, _CENTRE, f"max(1 - {_DISTANCE}, (real)0)", True)
        case "cubic-aa":
            return Filter(mode, 4, _CENTRE, f"tg_cubic({_DISTANCE}, (real)-0.5)", True)
        case "lanczos-aa":
            return Filter(mode, 6, _CENTRE, f"tg_lanczos({_DISTANCE})", True)
    raise ValueError(f"no resampling mode {mode!r}")


# ---- The matrices.


def _of_axes(*names: str) -> str:
    return ", ".join(f"{name}_{axis}" for name in names for axis in AXES)


def _of_axis(name: str) -> str:
    return f"axis == 0 ? {name}_x : axis == 1 ? {name}_y : {name}_z"


@cache
def table_kernel(mode: str, aligned: bool, real: str, transposed: bool, form: str) -> Kernel:
    """Writes the matrices of all axes. The walk is over an axis' pixels; each axis has groups of its own along
    dimension 1.

    Parameters: `starts`, `weights` if the mode has some, `spans` if `transposed`, `stride`, `most_taps`, and of each
    axis `source`, `target`, `taps` and `scale`.

    Axis a's row o begins at pixel starts[a * stride + o]; its weight k is weights[(a * most_taps + k) * stride + o].
    With `transposed` also the rows that hold pixel i: from spans[(2 * a) * stride + i] up to
    spans[(2 * a + 1) * stride + i].
    """
    walk, filter_ = Walk(form), resampling_filter(mode, aligned)
    ctype = BY_NAME[real].storage
    helpers = f"""
#define real {ctype}
{_CUBIC if "tg_cubic" in filter_.weight else _LANCZOS if "tg_lanczos" in filter_.weight else ""}
inline int tg_first(int o, int source, real scale, real* where) {{
  const int size = {filter_.taps};
  real offset;
  int first;
  {filter_.place}
  *where = offset;
  return first;
}}
inline int tg_begin(int o, int source, real scale, int taps) {{
  real offset;
  return clamp(tg_first(o, source, scale, &offset), 0, source - taps);
}}
inline int tg_reach(int bound, int source, int target, real scale, int taps) {{
  int low = 0, high = target;
  while (low < high) {{
    const int middle = (low + high) / 2;
    if (tg_begin(middle, source, scale, taps) < bound) low = middle + 1; else high = middle;
  }}
  return low;
}}"""
    count = str(filter_.taps)
    if filter_.antialias:
        count = f"clamp(min((int)(offset + reach + {_HALF}), source) - first, 0, 2 * (int)ceil(reach) + 1)"
    weigh = f"""
  const real reach = (real){filter_.taps} / 2 * max(scale, (real)1);
  const int count = {count};
  GLOBAL real* row = weights + (long)axis * most_taps * stride + o;
  for (int k = 0; k < taps; ++k) row[(long)k * stride] = 0;
  real total = 0;
  for (int j = 0; j < count; ++j) {{
    const real weight = {filter_.weight};
    row[(long)(clamp(first + j, 0, source - 1) - begin) * stride] += weight;
    total += weight;
  }}"""
    if filter_.antialias:
        weigh += "\n  if (total != 0) for (int k = 0; k < taps; ++k) row[(long)k * stride] /= total;"
    axis = f"""
const int axis = GROUP_ID(1);
const int source = {_of_axis("source")}, target = {_of_axis("target")}, taps = {_of_axis("taps")};
const real scale = {_of_axis("scale")};
"""
    pixel = f"""
const int o = i;
if (o < target) {{
  real offset;
  const int first = tg_first(o, source, scale, &offset);
  const int begin = clamp(first, 0, source - taps);
  starts[(long)axis * stride + o] = begin;
  {weigh if filter_.weight else ""}
}}"""
    if transposed:
        pixel += """
if (o < source) {
  spans[(long)(2 * axis) * stride + o] = tg_reach(o - taps + 1, source, target, scale, taps);
  spans[(long)(2 * axis + 1) * stride + o] = tg_reach(o + 1, source, target, scale, taps);
}"""
    params = parameters(
        f"i32* starts; {f'{real}* weights' if filter_.weight else ''}; {'i32* spans' if transposed else ''}; "
        f"i32 stride, most_taps, {_of_axes('source', 'target', 'taps')}; {real} {_of_axes('scale')}"
    )
    name = f"upsample_{mode.replace('-', '_')}_table"
    return walk.kernel(name, params, axis + walk.each(pixel, vectorize=False), helpers, dims=2)


@cache
def quantise_kernel(layout: Layout, real: str) -> Kernel:
    """Weights as integers for uint8 images: the largest has 15 bits. The team's rows are axes.

    `fixed` has the weights' layout; precisions[axis] is by how many bits they were shifted. See the note on weights for
    uint8 in torch's UpSampleKernel.cpp. Parameters: `fixed`, `precisions`, `weights`, `most_taps`, and of both axes
    `target` and `taps`.
    """
    team, ctype = Team(layout), BY_NAME[real].storage

    def weights(statements: str) -> str:
        place = "const long at = (row * most_taps + k) * size + c;"
        return f"if (c < target) for (int k = 0; k < taps; ++k) {{ {place} {statements} }}"

    quantise = f"""const {ctype} weight = weights[at] * (1 << precision);
      fixed[at] = (int)(weight + (weight < 0 ? ({ctype})-0.5 : ({ctype})0.5));"""
    params = parameters(
        f"i32* fixed, precisions; const {real}* weights; i32 most_taps, target_x, target_y, taps_x, taps_y"
    )
    return team.kernel(
        "upsample_quantise",
        params,
        "const int target = row == 0 ? target_x : target_y, taps = row == 0 ? taps_x : taps_y;",
        team.fold(
            {"most": (real, "0")}, weights("A.most = max(A.most, weights[at]);"), "A.most = max(A.most, B.most);"
        ),
        f"""int precision = 0;
    while (precision < 22 && (int)(({ctype})0.5 + most * (1 << (precision + 1))) < (1 << 15)) ++precision;""",
        team.leader("precisions[row] = precision;"),
        team.each(weights(quantise), vectorize=False),
    )


# ---- Their application.


@dataclass(frozen=True)
class Image:
    """What the elements are and how they are summed.

    Attributes:
        storage: the elements' type.
        weights: the weights' type: "f32", "f64", "i32" for fixed-point ones, "" if all are 1.
        axes: how many axes are resampled.
    """

    storage: str
    weights: str
    axes: int

    @property
    def math(self) -> Arithmetic:
        return arithmetic(self.storage)

    @property
    def is_fixed(self) -> bool:
        return self.weights == "i32"

    def params(self, transposed: bool) -> tuple[Parameter, ...]:
        """`out` and `values`, the tables of `table_kernel` and `quantise_kernel` that there are, and sizes."""
        return parameters(
            f"{self.storage}* out; const {self.storage}* values; const i32* starts; "
            f"{f'const {self.weights}* weights' if self.weights else ''}; "
            f"{'const i32* precisions' if self.is_fixed else ''}; {'const i32* spans' if transposed else ''}; "
            f"i32 {_of_axes('source', 'target', 'taps')}, inner, stride, most_taps"
        )

    @property
    def begin(self) -> str:
        return "1 << (*precisions - 1)" if self.is_fixed else "0"

    def finish(self, value: str) -> str:
        return f"clamp({value} >> *precisions, 0, 255)" if self.is_fixed else value

    def weight(self, axis: str, tap: str, row: str) -> str:
        return f"weights[({AXES.index(axis)} * most_taps + {tap}) * (long)stride + {row}]"

    def row(self, axis: str, row: str) -> str:
        return f"starts[{AXES.index(axis)} * (long)stride + {row}]"


def _forward_tap(image: Image, axis: str) -> tuple[str, str, str]:
    """The loop over an axis' taps, the weight of one and the pixel of the source that it is for."""
    loop = f"for (int k{axis} = 0; k{axis} < {f'taps_{axis}' if image.weights else '1'}; ++k{axis})"
    return loop, image.weight(axis, f"k{axis}", f"t{axis}"), f"{image.row(axis, f't{axis}')} + k{axis}"


def _backward_tap(image: Image, axis: str) -> tuple[str, str, str]:
    """The loop over the rows that hold a pixel, its weight in one and the row."""
    low, high = (f"spans[{2 * AXES.index(axis) + n} * (long)stride + t{axis}]" for n in (0, 1))
    loop = f"for (int k{axis} = {low}; k{axis} < {high}; ++k{axis})"
    return loop, image.weight(axis, f"t{axis} - {image.row(axis, f'k{axis}')}", f"k{axis}"), f"k{axis}"


def _sum(image: Image, type_: str, value: str, size: str, transposed: bool, depth: int, parent: str = "plane") -> str:
    """Sets `sum_<axis>` of axis number `depth`: the weighted sum over it and the axes within.

    `value` is the element at pixel `x`, and `size` the prefix of the sizes that pixels are counted by.
    """
    axis = AXES[depth]
    loop, weight, pixel = (_backward_tap if transposed else _forward_tap)(image, axis)
    weigh = ""
    if image.weights:
        weigh = f"const {BY_NAME[image.weights].storage} w{axis} = {weight};\n  if (w{axis} == 0) continue;"
    term = value if depth == 0 else f"sum_{AXES[depth - 1]}"
    within = "" if depth == 0 else _sum(image, type_, value, size, transposed, depth - 1, axis)
    begin = f"SPLAT_{type_}({image.begin})" if type_ in VECTORS else image.begin
    return f"""{type_} sum_{axis} = {begin};
{loop} {{
  {weigh}
  const long {axis} = {parent} * {size}_{axis} + {pixel};
  {within}
  sum_{axis} += {f"w{axis} * " if image.weights else ""}{term};
}}"""


# The head of a row of a walk over the target's (plane, z, y, x).
_ROW = """const int ty = i2, tz = i1;
const long plane = i0, first = ((i0 * n1 + i1) * n2 + i2) * n3 + i3;"""


def _name(image: Image, transposed: bool, form: str) -> str:
    return f"upsample{'' if image.weights else '_nearest'}{image.axes}d{'_backward' if transposed else ''}{form}"


@cache
def element_kernel(image: Image, transposed: bool, form: str) -> Kernel:
    """The walk is over (plane, z, y, x * inner), the elements: the GPU form, and for single elements that lie apart the
    CPU's too."""
    walk, math = Walk(form, rank=4), image.math
    value = math.load("values", "x * inner + c")
    element = f"""
const int at = i3 + j, tx = at / inner, c = at - tx * inner;
{_sum(image, math.scalar, value, "target" if transposed else "source", transposed, image.axes - 1)}
{math.store("out", "first + j", image.finish(f"sum_{AXES[image.axes - 1]}"))};"""
    body = walk.each(element, _ROW, vectorize=False)
    return walk.kernel(_name(image, transposed, ""), image.params(transposed), body)


@cache
def line_kernel(image: Image, transposed: bool) -> Kernel:
    """The CPU form where many elements lie together: a vector of a pixel's elements at a time. `inner` is at least
    that. The walk is over (plane, z, y, x)."""
    walk, math = Walk("cpu", rank=4), image.math
    value = math.load_vector("values", "x * inner + c")
    result = f"sum_{AXES[image.axes - 1]}"
    pixel = f"""
const int tx = i3 + j;
for (int start = 0; start < inner; start += {math.width}) {{
  // The last vector moves back over the one before it rather than stick out.
  const int c = min(start, inner - {math.width});
  {_sum(image, math.vector, value, "target" if transposed else "source", transposed, image.axes - 1)}
  {math.store_vector("out", "(first + j) * inner + c", image.finish(result))};
}}"""
    body = walk.each(pixel, _ROW, vectorize=False)
    return walk.kernel(_name(image, transposed, "_lines"), image.params(transposed), body)


@cache
def scatter_kernel(image: Image, taps: int) -> Kernel:
    """The CPU form of a row's gradient where the target has fewer pixels than the source, most of which have no part in
    it then: each gives its share to those that it was made of. The walk is over planes, which are rows; `image` has one
    axis, and elements that sums are kept in."""
    walk, math = Walk("cpu"), image.math
    if image.weights:
        real = BY_NAME[image.weights].storage
        each = (f"const {real} w{k} = {image.weight('x', str(k), 'tx')};" for k in range(taps))
        add = (f"if (w{k} != 0) x[{k}] += w{k} * g[tx];" for k in range(taps))
        share = " ".join([*each, *add])
    else:
        share = "*x += g[tx];"
    row = f"""
{math.pointer} to = out + i * source_x;
{math.const_pointer} g = values + i * target_x;
for (int x = 0; x < source_x; ++x) to[x] = 0;
for (int tx = 0; tx < target_x; ++tx) {{
  {math.pointer} x = to + {image.row("x", "tx")};
  {share}
}}"""
    return walk.kernel(_name(image, True, "_scatter"), image.params(True), walk.each(row, vectorize=False))


@cache
def row_kernel(image: Image, taps: tuple[int, ...]) -> Kernel:
    """The CPU form where single elements lie side by side: the walk is over (plane, z, y), rows of the target, with all
    taps (x, y, z) unrolled."""
    walk, math = Walk("cpu", rank=3), image.math
    outer = [(f"k{axis}", axis, n) for axis, n in zip(AXES[1 : image.axes], taps[1:], strict=False)]
    lines = []
    for _, axis, n in outer:
        weight = image.weight(axis, "solid", f"t{axis}")
        # A row of weight zero is replaced by one that is read anyway.
        lines.append(f"int solid_{axis} = 0;")
        if image.weights:
            lines.append(
                f"while (solid_{axis} < {n - 1} && {weight.replace('solid', f'solid_{axis}')} == 0) ++solid_{axis};"
            )
    combinations: list[tuple[int, ...]] = [()]
    for _, _, n in outer:
        combinations = [(*c, k) for c in combinations for k in range(n)]
    real = BY_NAME[image.weights].storage if image.weights else ""
    terms = [f"({image.begin})"] if image.is_fixed else []
    for number, ks in enumerate(combinations):
        place, weight = "plane", "1"
        for (_, axis, _), k in reversed(list(zip(outer, ks, strict=True))):
            of_axis = image.weight(axis, str(k), f"t{axis}")
            tap = f"({of_axis} != 0 ? {k} : solid_{axis})" if image.weights else str(k)
            place = f"({place} * source_{axis} + {image.row(axis, f't{axis}')} + {tap})"
            weight += f" * {of_axis}"
        lines.append(f"{math.const_pointer} row{number} = values + {place} * source_x;")
        if image.weights:
            lines.append(f"const {real} w{number} = {weight};")
        along = [math.load(f"row{number}", f"x + {k}") for k in range(taps[0])]
        if image.weights:
            along = [f"(w_{k} != 0 ? w_{k} * {value} : 0)" for k, value in enumerate(along)]
            terms.append(f"w{number} * ({' + '.join(along)})")
        else:
            terms.append(along[0])
    declared = [f"const {real} w_{k} = {image.weight('x', str(k), 'tx')};" for k in range(taps[0] if real else 0)]
    row = f"""
const int ty = i2 + j, tz = i1;
const long plane = i0;
{" ".join(lines)}
{math.pointer} t = out + ((i0 * n1 + i1) * n2 + ty) * target_x;
VECTORIZE
for (int tx = 0; tx < target_x; ++tx) {{
  const int x = {image.row("x", "tx")};
  {" ".join(declared)}
  {math.store("t", "tx", image.finish(f"({' + '.join(terms)})"))};
}}"""
    return walk.kernel(_name(image, False, "_rows"), image.params(False), walk.each(row, vectorize=False))
