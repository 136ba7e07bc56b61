"""Kernels of running sums, products and extremes: teams on rows that lie along memory or across."""

from __future__ import annotations

import functools

from torchgraft.codegen.kernel import Kernel, parameters
from torchgraft.codegen.teams import Layout, Team
from torchgraft.codegen.types import BY_NAME, largest, least, value_ctype
from torchgraft.codegen.vectors import shuffle

# `how` is "sum", "prod" or "logsumexp" everywhere.

_VECTOR_TYPES = ("f32", "f16", "bf16")


def _identity(acc: str, how: str) -> str:
    if how == "prod" and acc in ("c64", "c128"):
        return f"MAKE_{value_ctype(acc)}(1, 0)"
    if how == "logsumexp":
        return f"MAKE_{value_ctype(acc)}(-INFINITY, 0)" if acc in ("c64", "c128") else "-INFINITY"
    return f"({value_ctype(acc)})({int(how == 'prod')})"


def _combine(acc: str, how: str) -> str:
    if how == "prod" and acc in ("c64", "c128"):
        return f"A.sum = tg_mul_{acc}(A.sum, B.sum);"
    if how == "logsumexp":
        return f"A.sum = tg_logaddexp_{acc}(A.sum, B.sum);"
    return f"A.sum = A.sum {'*' if how == 'prod' else '+'} B.sum;"


# Prefix sums of sixteen lanes in four steps.
_PREFIX = "\n      ".join(
    f"v += {shuffle('float16', 'none', 'v', [16 + lane - step if lane >= step else 0 for lane in range(16)])};"
    for step in (1, 2, 4, 8)
)


@functools.cache
def running_kernel(layout: Layout, in_type: str, out_type: str, how: str, wide: bool) -> Kernel:
    """Parameters: `x`, `out`. `wide`: a CPU carries float32 sums on in float64."""
    team, acc = Team(layout), BY_NAME[out_type].accumulate
    carry = "f64" if wide and acc == "f32" and how != "logsumexp" and layout.form == "cpu" else acc
    ahead = ""
    if how == "sum" and in_type in _VECTOR_TYPES and out_type in _VECTOR_TYPES:
        ahead = f"""for (; c + 16 <= size; c += 16) {{
      float16 v = load_{in_type}x16(x, {team.at});
      const float16 none = SPLAT_float16(0);
      {_PREFIX}
      store_{out_type}x16(out, {team.at}, v + (float)sum);
      sum += LANE(v, f);
    }}"""
    running = team.scan(
        {"sum": (carry, _identity(carry, how))},
        f"B.sum = ({value_ctype(carry)})load_{in_type}(x, {team.at});",
        _combine(carry, how),
        f"store_{out_type}(out, {team.at}, ({value_ctype(acc)})sum);",
        ahead,
    )
    return team.kernel(f"cum{how}_{in_type}", parameters(f"const {in_type}* x; {out_type}* out"), running)


@functools.cache
def extreme_kernel(layout: Layout, type_: str, greater: bool) -> Kernel:
    """Running maxima or minima with their indices, of equal ones the last.

    A NaN stays the extreme from where it is met, its index that of the latest. Parameters: `x`, `values`, `indices`.
    """
    team, acc = Team(layout), BY_NAME[type_].compute
    first = (least if greater else largest)(acc)
    better = f"B.best != B.best || (A.best == A.best && B.best {'>=' if greater else '<='} A.best)"
    running = team.scan(
        {"best": (acc, first), "place": ("i64", "0")},
        f"B.best = load_{type_}(x, {team.at}); B.place = c;",
        f"if ({better}) {{ A.best = B.best; A.place = B.place; }}",
        f"store_{type_}(values, {team.at}, best); indices[{team.at}] = place;",
    )
    params = parameters(f"const {type_}* x; {type_}* values; i64* indices")
    return team.kernel(f"cum{'max' if greater else 'min'}_{type_}", params, running)
