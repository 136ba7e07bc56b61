"""Images surrounded by their own pixels, and the gradient of that.

As in `kernels.pooling` there are three axes, z, y and x, the leading ones of extent 1 where there are fewer, behind the
planes. Pixel t of an axis of the target is a pixel of the source's n: t - padding where that lies within; beyond it, a
*reflected* border repeats the source backwards from the outermost pixel, which stands once, a *replicated* one the
outermost pixel. Negative padding cuts off.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Literal

from torchgraft.codegen.arithmetic import arithmetic
from torchgraft.codegen.kernel import Kernel, Parameter, parameters
from torchgraft.codegen.types import BY_NAME, value_ctype
from torchgraft.codegen.walk import Walk
from torchgraft.kernels.pooling import AXES

Border = Literal["reflected", "replicated"]

_FROM = {
    "reflected": "t < padding ? padding - t : t - padding < n ? t - padding : 2 * (n - 1) - (t - padding)",
    "replicated": "clamp(t - padding, 0L, n - 1)",
}

# The target's pixels that repeat pixel s lie in so many runs.
_RUNS = {"reflected": 3, "replicated": 1}
_RUN = {
    "reflected": """  const long t = run == 0 ? s + padding : run == 1 ? padding - s : padding + 2 * (n - 1) - s;
  const bool is = t >= 0 && t < m && (run == 0 || (run == 1 ? s > 0 : s < n - 1));
  *end = is ? t + 1 : 0;
  return is ? t : 0;""",
    "replicated": """  *end = s == n - 1 ? m : clamp(s + padding + 1, 0L, m);
  return s == 0 ? 0 : max(s + padding, 0L);""",
}

# Pixels of a row that a CPU sums at once.
_SUMS = 64


def _params(pointers: str) -> tuple[Parameter, ...]:
    sizes = ", ".join(f"{name}_{axis}" for name in ("source", "target", "padding") for axis in AXES)
    return parameters(f"{pointers}; i64 {sizes}")


def _from(border: Border) -> str:
    """`tg_from`: the pixel of the source that pixel t of the target repeats."""
    return f"inline long tg_from(long t, long padding, long n) {{ return {_FROM[border]}; }}"


def _run(border: Border) -> str:
    """`tg_run`: where a run of the target's m pixels begins and ends, all of which repeat pixel s."""
    return f"inline long tg_run(int run, long s, long padding, long n, long m, long* end) {{\n{_RUN[border]}\n}}"


@cache
def pad_kernel(moved: str, border: Border, form: str, short: bool) -> Kernel:
    """The walk is over the target's (plane, z, y, x). `moved` is a type of the elements' size; `short` as of `Walk`.

    Parameters: `out`, `image`, and of each axis the sizes of `source` and `target` and the first border's `padding`.
    """
    walk = Walk(form, rank=4)
    source = "tg_from(i1, padding_z, source_z)) * source_y + tg_from(i2, padding_y, source_y)"
    row = f"""GLOBAL const {BY_NAME[moved].storage}* row = image + ((i0 * source_z + {source}) * source_x;
GLOBAL {BY_NAME[moved].storage}* to = out + ((i0 * target_z + i1) * target_y + i2) * target_x;"""
    if form == "gpu":
        body = walk.each("to[i3 + j] = row[tg_from(i3 + j, padding_x, source_x)];", row)
    else:
        body = walk.rows(f"""{row}
const long last = i3 + count, inside = clamp(padding_x, i3, last);
const long outside = clamp(padding_x + source_x, inside, last);
for (long x = i3; x < inside; ++x) to[x] = row[tg_from(x, padding_x, source_x)];
{"VECTORIZE_MASKED" if short else "VECTORIZE"}
for (long x = inside; x < outside; ++x) to[x] = row[x - padding_x];
for (long x = outside; x < last; ++x) to[x] = row[tg_from(x, padding_x, source_x)];""")
    return walk.kernel(f"pad_{border}", _params(f"{moved}* out; const {moved}* image"), body, _from(border))


def _runs(border: Border, axis: str, number: str) -> str:
    """The loop over the pixels t_<axis> of the target that repeat pixel `number`."""
    return f"""for (int run_{axis} = 0; run_{axis} < {_RUNS[border]}; ++run_{axis}) {{
  long end_{axis};
  long t{axis} = tg_run(run_{axis}, {number}, padding_{axis}, source_{axis}, target_{axis}, &end_{axis});
  for (; t{axis} < end_{axis}; ++t{axis})"""


def _row_sums(border: Border, load: Callable[[str], str]) -> str:
    """Adds what a row `g` of the target gives to pixels `start` up to `last` of the source."""
    if border == "reflected":
        outer = f"""
const long left = min(last, min(padding_x + 1, source_x));
for (long x = max(start, max(1L, padding_x - target_x + 1)); x < left; ++x) sums[x - start] += {load("padding_x - x")};
const long right = min(last, min(source_x - 1, padding_x + 2 * source_x - 1));
for (long x = max(start, padding_x + 2 * source_x - 1 - target_x); x < right; ++x)
  sums[x - start] += {load("padding_x + 2 * (source_x - 1) - x")};"""
    else:
        outer = f"""
if (start == 0) for (long t = 0; t < min(padding_x, target_x); ++t) sums[0] += {load("t")};
if (last == source_x)
  for (long t = max(padding_x + source_x, 0L); t < target_x; ++t) sums[last - 1 - start] += {load("t")};"""
    return f"""
const long first = max(start, -padding_x), behind = min(last, target_x - padding_x);
VECTORIZE
for (long x = first; x < behind; ++x) sums[x - start] += {load("x + padding_x")};{outer}"""


@cache
def pad_gradient_kernel(storage: str, border: Border, form: str) -> Kernel:
    """Each pixel of the source adds up what the target's pixels give that repeat it; the walk is over the source's
    (plane, z, y, x).

    Parameters: `out`, `grad`, and the sizes as of `pad_kernel`.
    """
    walk, math = Walk(form, rank=4), arithmetic(storage)
    ctype = value_ctype(storage) if math.is_complex else math.scalar
    target = f"{math.const_pointer} g = grad + ((i0 * target_z + tz) * target_y + ty) * target_x;"
    rows = f"{_runs(border, 'z', 'i1')}\n{_runs(border, 'y', 'i2')}"
    place = "((i0 * source_z + i1) * source_y + i2) * source_x"
    if form == "gpu":
        body = walk.each(f"""const long x = i3 + j;
{ctype} sum = 0;
{rows} {{
  {target}
  {_runs(border, "x", "x")} sum += {math.load("g", "tx")}; }}
}} }} }}
{math.store("out", f"{place} + x", "sum")};""")
    else:
        body = walk.rows(f"""
for (long start = i3; start < i3 + count; start += {_SUMS}) {{
  const long last = min(start + {_SUMS}, i3 + count);
  {ctype} sums[{_SUMS}];
  for (int k = 0; k < {_SUMS}; ++k) sums[k] = 0;
  {rows} {{
  {target}
  {_row_sums(border, lambda t: math.load("g", t))}
  }} }} }}
  VECTORIZE
  for (int k = 0; k < (int)(last - start); ++k) {math.store("out", f"{place} + start + k", "sums[k]")};
}}""")
    params = _params(f"{storage}* out; const {storage}* grad")
    return walk.kernel(f"pad_{border}_backward", params, body, _run(border))
