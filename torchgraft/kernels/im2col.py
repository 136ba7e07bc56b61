"""The patches of images as columns, and the sums of patches where they overlap: what `F.unfold` and `F.fold` are.

The patches' tensor is (plane, tap, y, x), a plane being one image's channel, taps the pixels of a patch and (y, x) the
place of the patch. Its tap k is the image's pixel place * stride - padding + k * dilation on each axis, or 0 outside.
"""

from __future__ import annotations

from functools import cache

from torchgraft.codegen.arithmetic import arithmetic
from torchgraft.codegen.kernel import Kernel, Parameter, parameters
from torchgraft.codegen.types import BY_NAME, value_ctype
from torchgraft.codegen.walk import Walk

_AXES = ("y", "x")
# Steps that kernels know, since compilers then see which elements lie beside each other.
_STEPS = (1, 2)
# Pixels of a row that a CPU sums at once.
_SUMS = 64


def _params(pointers: str) -> tuple[Parameter, ...]:
    names = ("source", "patches", "taps", "stride", "padding", "dilation")
    return parameters(f"{pointers}; i64 " + ", ".join(f"{name}_{axis}" for name in names for axis in _AXES))


# The first place of a row whose pixel is not before `least`, where place 0 has pixel `shift`.
_PLACE = """inline long tg_place(long least, long shift, long stride) {
  return shift >= least ? 0 : (least - shift + stride - 1) / stride;
}"""


def _by_steps(statements: str) -> str:
    """Statements with STEP, the distance of a row's pixels."""
    known = "".join(f"if (stride_x == {n}) {{ {statements.replace('STEP', str(n))} }} else " for n in _STEPS)
    return f"{known}{{ {statements.replace('STEP', 'stride_x')} }}"


@cache
def patches_kernel(moved: str, form: str, short: bool) -> Kernel:
    """The walk is over (plane, tap, y, x). `moved` is a type of the elements' size; `short` as of `Walk`.

    Parameters: `out`, `image`, and of each axis the sizes of the `source`, how many `patches` there are, and `taps`,
    `stride`, `padding` and `dilation`.
    """
    walk, storage = Walk(form, rank=4), BY_NAME[moved].storage
    row = f"""const long ky = i1 / taps_x, kx = i1 - ky * taps_x;
const long y = i2 * stride_y - padding_y + ky * dilation_y, shift = kx * dilation_x - padding_x;
GLOBAL {storage}* to = out + ((i0 * n1 + i1) * patches_y + i2) * patches_x;
const bool within = y >= 0 && y < source_y;
GLOBAL const {storage}* row = image + (i0 * source_y + (within ? y : 0)) * source_x;"""
    if form == "gpu":
        body = walk.each(
            f"""const long x = (i3 + j) * stride_x + shift;
{storage} value = 0;
if (within && x >= 0 && x < source_x) value = row[x];
to[i3 + j] = value;""",
            row,
        )
    else:
        vectorize = "VECTORIZE_MASKED" if short else "VECTORIZE"
        move = f"{vectorize}\nfor (long x = first; x < behind; ++x) to[x] = row[x * STEP + shift];"
        body = walk.rows(f"""{row}
const long last = i3 + count;
const long first = within ? min(last, max(i3, tg_place(0, shift, stride_x))) : last;
const long behind = max(first, min(last, tg_place(source_x, shift, stride_x)));
VECTORIZE
for (long x = i3; x < first; ++x) to[x] = 0;
{_by_steps(move)}
for (long x = behind; x < last; ++x) to[x] = 0;""")
    return walk.kernel("im2col", _params(f"{moved}* out; const {moved}* image"), body, _PLACE)


@cache
def sums_kernel(storage: str, form: str) -> Kernel:
    """Each pixel adds up what the patches have of it; the walk is over (plane, y, x). A sum of booleans is whether one
    holds.

    Parameters: `out`, `columns`, and the sizes as of `patches_kernel`.
    """
    walk, math = Walk(form, rank=3), arithmetic(storage)
    ctype = value_ctype(storage) if math.is_complex else math.scalar
    taps = f"""for (long ky = 0; ky < taps_y; ++ky) {{
  const long from_y = i1 + padding_y - ky * dilation_y, py = from_y / stride_y;
  if (from_y < 0 || py >= patches_y || py * stride_y != from_y) continue;
  for (long kx = 0; kx < taps_x; ++kx) {{
    {math.const_pointer} row = columns + (((i0 * taps_y + ky) * taps_x + kx) * patches_y + py) * patches_x;"""
    of = "({} != 0)" if storage == "b8" else "{}"
    place = "(i0 * source_y + i1) * source_x"
    if form == "gpu":
        body = walk.each(f"""const long x = i2 + j;
{ctype} sum = 0;
{taps}
    const long from_x = x + padding_x - kx * dilation_x, px = from_x / stride_x;
    if (from_x >= 0 && px < patches_x && px * stride_x == from_x) sum += {math.load("row", "px")};
  }}
}}
{math.store("out", f"{place} + x", of.format("sum"))};""")
    else:
        add = f"sums[x * STEP + shift - start] += {math.load('row', 'x')};"
        add = f"VECTORIZE\nfor (long x = first; x < behind; ++x) {add}"
        body = walk.rows(f"""
for (long start = i2; start < i2 + count; start += {_SUMS}) {{
  const long last = min(start + {_SUMS}, i2 + count);
  {ctype} sums[{_SUMS}];
  for (int k = 0; k < {_SUMS}; ++k) sums[k] = 0;
  {taps}
    const long shift = kx * dilation_x - padding_x;
    const long first = tg_place(start, shift, stride_x), behind = min(patches_x, tg_place(last, shift, stride_x));
    {_by_steps(add)}
  }}
  }}
  VECTORIZE
  for (int k = 0; k < (int)(last - start); ++k) {math.store("out", f"{place} + start + k", of.format("sums[k]"))};
}}""")
    return walk.kernel("col2im", _params(f"{storage}* out; const {storage}* columns"), body, _PLACE)
