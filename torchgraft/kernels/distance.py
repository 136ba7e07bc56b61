"""Kernels of p-norm distances between rows: of two matrices, or of each pair of one matrix' rows.

Matrices are batches of (row, column). The pairs i < j of one matrix lie in one line, those of row 0 first: "triangle".
Teams take a row of x, whose distances or elements are the team's rows. Sums are made a column at a time, so that loops
vectorise and their order is fixed; for that the second matrix arrives transposed, as (column, row).
"""

from __future__ import annotations

import functools

from torchgraft.codegen.kernel import Kernel, parameters
from torchgraft.codegen.pointwise import expression
from torchgraft.codegen.teams import Layout, Team
from torchgraft.codegen.types import BY_NAME, value_ctype

# For each norm what a difference d adds to the sum a, and the distance.
_NORMS = {
    "zero": ("a + (d != d ? d : (T)(d != 0))", "a"),
    "one": ("a + @abs(d)", "a"),
    "two": ("a + d * d", "@sqrt(a)"),
    "max": ("@abs(d) > a || d != d ? @abs(d) : a", "a"),
    "any": ("a + @pow(@abs(d), norm)", "@pow(a, 1 / norm)"),
}

_SIGN = "((T)(d > 0) - (T)(d < 0))"

# The gradient of a distance s by a difference d, for the gradient g of the distance.
_SLOPES = {
    "one": f"g * {_SIGN}",
    "two": "s == 0 ? (T)0 : g * d / s",
    "max": f"@abs(d) == s ? g * {_SIGN} : (T)0",
    "any": f"s == 0 || d == 0 && norm < 1 ? (T)0 : g * {_SIGN} * @pow(@abs(d), norm - 1) / @pow(s, norm - 1)",
}


def norm_kind(p: float) -> str:
    """Which of the norms the number means."""
    return {0: "zero", 1: "one", 2: "two", float("inf"): "max"}.get(p, "any")


@functools.cache
def forward_kernel(layout: Layout, type_: str, kind: str, triangle: bool) -> Kernel:
    """Distances of `n` rows of x to `m` rows of y, in all batches; outer is the rows of x, inner those of y.

    Parameters: `out`, `x`, `y`, `norm`, `n`, `m`, `width`.
    """
    team, compute = Team(layout), BY_NAME[type_].compute
    t = value_ctype(compute)
    step, finish = (expression(text, compute) for text in _NORMS[kind])
    # Of the distances of row i, the one to row j lies j further on than this.
    first = "i * (2 * m - i - 1) / 2 - i - 1" if triangle else "o * m"
    mine = f"if ({team.column} > i)" if triangle else ""
    begin = team.var("a", compute, "0")
    columns = f"""const long i = o % n, first = {first};
    for (long k = 0; k < width; ++k) {{
      const {t} own = load_{type_}(x, o * width + k);
      const long at = (o / n * width + k) * m;
      {team.leader(f"const {t} d = own - load_{type_}(y, at + {team.column}); a = {step};")}
    }}"""
    store = team.leader(f"{mine} store_{type_}(out, first + {team.column}, {finish});")
    params = parameters(f"{type_}* out; const {type_}* x, y; {compute} norm; i64 n, m, width")
    return team.kernel(f"distance_{kind}", params, begin, columns, store)


@functools.cache
def backward_kernel(layout: Layout, type_: str, kind: str, triangle: bool) -> Kernel:
    """Gradients of the rows of x: each is the sum over the rows of y, in their order. Here y is not transposed; outer
    is the rows of x, inner their elements. Parameters: `out`, `grad`, `distance`, `x`, `y`, `norm`, `n`, `m`, `width`.
    """
    team, compute = Team(layout), BY_NAME[type_].compute
    t = value_ctype(compute)
    # A pair of one matrix has one distance, whose place the smaller of its rows says.
    low, high = "min(i, other)", "max(i, other)"
    place = f"{low} * (2 * m - {low} - 1) / 2 + {high} - {low} - 1" if triangle else "o * m + other"
    x, y = f"load_{type_}(x, o * width + {team.column})", f"load_{type_}(y, row + {team.column})"
    begin = team.var("sum", compute, "0")
    pairs = f"""const long i = o % n;
    for (long other = 0; other < m; ++other) {{
      {"if (i == other) continue;" if triangle else ""}
      const long pair = {place};
      const {t} g = load_{type_}(grad, pair), s = load_{type_}(distance, pair);
      const long row = (o / n * m + other) * width;
      {team.leader(f"const {t} d = {x} - {y}; sum += {expression(_SLOPES[kind], compute)};")}
    }}"""
    store = team.leader(f"store_{type_}(out, o * width + {team.column}, sum);")
    params = parameters(f"{type_}* out; const {type_}* grad, distance, x, y; {compute} norm; i64 n, m, width")
    return team.kernel(f"distance_{kind}_backward", params, begin, pairs, store)
