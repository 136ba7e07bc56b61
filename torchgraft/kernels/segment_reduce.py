"""Kernels of `torch.segment_reduce`: neighbouring rows of the data are reduced together.

Everything is contiguous: data is (outer, rows, inner), results are (outer, segments, inner), and segment s of an outer
row holds the rows from bounds[s] to bounds[s + 1]. Teams take a segment, counted through all outer rows; the team's
rows are the places of `inner`.
"""

from __future__ import annotations

import functools

from torchgraft.codegen.kernel import Kernel, parameters
from torchgraft.codegen.teams import Layout, Team
from torchgraft.codegen.types import BY_NAME, value_ctype
from torchgraft.codegen.walk import Walk

# For each reduction what it starts with, and how it takes a value v into a.
_STEPS = {
    "sum": ("0", "a + v"),
    "mean": ("0", "a + v"),
    "prod": ("1", "a * v"),
    "max": ("-INFINITY", "v != v || v > a ? v : a"),
    "min": ("INFINITY", "v != v || v < a ? v : a"),
}

_SEGMENT = """const long whole = o / segments;
    const long begin = max((long)load_{0}(bounds, o + whole), (long)0);
    const long stop = min((long)load_{0}(bounds, o + whole + 1), rows);
    const long length = max(stop - begin, (long)0);"""
_EACH_ROW = "for (long r = begin; r < stop; ++r)"


@functools.cache
def bounds_kernel(index: str, checked: bool, form: str) -> Kernel:
    """Sums the lengths of each outer row up. The walk is over outer rows. Parameters: `bounds`, `lengths`, `errors`,
    `negative_code`, `sum_code`, `rows`, `segments`.

    Reports a negative length and, if `checked`, lengths that are not those of all rows together.
    """
    walk = Walk(form)
    check = "if (sum != rows) tg_report(errors, sum_code, sum);" if checked else ""
    row = f"""
    long sum = 0;
    bounds[i * (segments + 1)] = 0;
    for (long s = 0; s < segments; ++s) {{
      const long length = lengths[i * segments + s];
      if (length < 0) tg_report(errors, negative_code, length);
      sum += max(length, (long)0);
      bounds[i * (segments + 1) + s + 1] = sum;
    }}
    {check}"""
    params = parameters(
        f"{index}* bounds; const {index}* lengths; i32* errors; i32 negative_code, sum_code; i64 rows, segments"
    )
    return walk.kernel("segment_bounds", params, walk.each(row, vectorize=False))


@functools.cache
def forward_kernel(layout: Layout, type_: str, index: str, how: str, starts: bool) -> Kernel:
    """With `starts` every segment begins with the number `initial`. Parameters: `out`, `data`, `bounds`, `errors`,
    `code`, `initial`, `rows`, `segments`."""
    team, compute = Team(layout), BY_NAME[type_].compute
    identity, step = _STEPS[how]
    value = f"load_{type_}(data, (whole * rows + r) * inner + {team.column})"
    finish = ""
    if how == "mean":
        finish = f"if (length > 0) a /= length;{'' if starts else ' else a = NAN;'} "
    head = f"""{_SEGMENT.format(index)}
    if (load_{index}(bounds, o + whole + 1) < load_{index}(bounds, o + whole)) tg_report(errors, code, o);"""
    params = parameters(
        f"{type_}* out; const {type_}* data; const {index}* bounds; i32* errors; i32 code; {compute} initial; "
        "i64 rows, segments"
    )
    return team.kernel(
        f"segment_{how}",
        params,
        head,
        team.var("a", compute, "initial" if starts else identity),
        f"{_EACH_ROW} {{ {team.leader(f'const {value_ctype(compute)} v = {value}; a = {step};')} }}",
        team.leader(f"{finish}store_{type_}(out, o * inner + {team.column}, a);"),
    )


@functools.cache
def backward_kernel(layout: Layout, type_: str, index: str, how: str) -> Kernel:
    """Gradients of the data, zero in the rows of no segment before. Parameters: `out`, `grad`, `result`, `data`,
    `bounds`, `initial`, `rows`, `segments`.

    Of several largest or smallest elements, or several NaN, each gets its part; as on torch's CPU the parts of a
    negative gradient are whole. `initial` is what products began with.
    """
    team, compute = Team(layout), BY_NAME[type_].compute
    t = value_ctype(compute)
    at = f"(whole * rows + r) * inner + {team.column}"
    value = f"const {t} v = load_{type_}(data, {at});"
    parts = [
        _SEGMENT.format(index),
        team.var("g", compute, f"load_{type_}(grad, o * inner + {team.column})"),
        team.let("y", compute, f"load_{type_}(result, o * inner + {team.column})"),
    ]
    slope, others = "g", ""
    if how == "mean":
        slope = "g / length"
    elif how in ("max", "min"):
        slope = f"v != v || v == y ? g : ({t})0"
        parts += [
            team.var("count", "i64", "0"),
            f"{_EACH_ROW} {{ {team.leader(f'{value} count += v != v || v == y;')} }}",
            team.leader("if (g > 0 && count > 1) g /= count;"),
        ]
    elif how == "prod":
        slope = "others"
        others = f"""{t} others = g * y / v;
      if (v != v || v == 0) {{
        others = initial;
        for (long other = begin; other < stop; ++other)
          if (other != r) others *= load_{type_}(data, (whole * rows + other) * inner + {team.column});
        others *= g;
      }}"""
    parts.append(f"{_EACH_ROW} {{ {team.leader(f'{value} {others} store_{type_}(out, {at}, {slope});')} }}")
    params = parameters(
        f"{type_}* out; const {type_}* grad, result, data; const {index}* bounds; {compute} initial; i64 rows, segments"
    )
    return team.kernel(f"segment_{how}_backward", params, *parts)
