"""Kernels of `torch.segment_reduce`: neighbouring rows of the data are reduced together.

Everything is contiguous: data is (outer, rows, inner), results are (outer, segments, inner), and segment s of an outer
row holds the rows from bounds[s] to bounds[s + 1]. One work-item treats a segment, for all of inner or for one place.
"""

from __future__ import annotations

import functools

from torchgraft.codegen.kernel import Kernel, Parameter, Pointer, Value
from torchgraft.codegen.types import BY_NAME, value_ctype

GPU_LOCAL = 64

# For each reduction what it starts with, and how it takes a value v into a.
_STEPS = {
    "sum": ("0", "a + v"),
    "mean": ("0", "a + v"),
    "prod": ("1", "a * v"),
    "max": ("-INFINITY", "v != v || v > a ? v : a"),
    "min": ("INFINITY", "v != v || v < a ? v : a"),
}


def _walk(form: str, body: str) -> tuple[str, tuple[int, ...]]:
    """Over segments and places: `segment` is counted through all outer rows."""
    if form == "gpu":
        head = f"""
  const long at = (long)GROUP_ID(0) * {GPU_LOCAL} + LOCAL_ID(0);
  if (at >= total * inner) return;
  const long segment = at / inner, first = at % inner, last = first + 1;"""
        return f"{head}\n{body}", (GPU_LOCAL,)
    head = """
  const long end = min(total, (long)(GROUP_ID(0) + 1) * chunk);
  for (long segment = GROUP_ID(0) * chunk; segment < end; ++segment) {
  const long first = 0, last = inner;"""
    return f"{head}\n{body}\n  }}", (1,)


_SEGMENT = """
  const long o = segment / segments;
  const long begin = max((long)load_{0}(bounds, segment + o), 0L);
  const long stop = min((long)load_{0}(bounds, segment + o + 1), rows);
  const long length = max(stop - begin, 0L);"""

_SIZES: tuple[Parameter, ...] = tuple(Value(name, "i64") for name in ("rows", "segments", "inner", "total", "chunk"))


@functools.cache
def bounds_kernel(index: str, checked: bool) -> Kernel:
    """Sums the lengths of each outer row up: a work-item for a row.

    Reports a negative length and, if `checked`, lengths that are not those of all rows together.
    """
    params = (
        Pointer("bounds", index),
        Pointer("lengths", index, const=True),
        Pointer("errors", "i32"),
        Value("negative_code", "i32"),
        Value("sum_code", "i32"),
        Value("rows", "i64"),
        Value("segments", "i64"),
    )
    check = "if (sum != rows) tg_report(errors, sum_code, sum);" if checked else ""
    body = f"""
  const long o = GROUP_ID(0);
  long sum = 0;
  bounds[o * (segments + 1)] = 0;
  for (long s = 0; s < segments; ++s) {{
    const long length = lengths[o * segments + s];
    if (length < 0) tg_report(errors, negative_code, length);
    sum += max(length, 0L);
    bounds[o * (segments + 1) + s + 1] = sum;
  }}
  {check}"""
    return Kernel("segment_bounds", params, body)


@functools.cache
def forward_kernel(type_: str, index: str, how: str, starts: bool, form: str) -> Kernel:
    """With `starts` every segment begins with the number `initial`."""
    compute = BY_NAME[type_].compute
    identity, step = _STEPS[how]
    params = (
        Pointer("out", type_),
        Pointer("data", type_, const=True),
        Pointer("bounds", index, const=True),
        Pointer("errors", "i32"),
        Value("code", "i32"),
        Value("initial", compute),
        *_SIZES,
    )
    finish = ""
    if how == "mean":
        finish = f"if (length > 0) a /= length;{'' if starts else ' else a = NAN;'}"
    body, local = _walk(
        form,
        f"""{_SEGMENT.format(index)}
  if (load_{index}(bounds, segment + o + 1) < load_{index}(bounds, segment + o)) tg_report(errors, code, segment);
  for (long k = first; k < last; ++k) {{
    {value_ctype(compute)} a = {"initial" if starts else identity};
    for (long r = begin; r < stop; ++r) {{
      const {value_ctype(compute)} v = load_{type_}(data, (o * rows + r) * inner + k);
      a = {step};
    }}
    {finish}
    store_{type_}(out, segment * inner + k, a);
  }}""",
    )
    return Kernel(f"segment_{how}", params, body, local=local)


@functools.cache
def backward_kernel(type_: str, index: str, how: str, form: str) -> Kernel:
    """Gradients of the data, zero in the rows of no segment before.

    Of several largest or smallest elements, or several NaN, each gets its part; as on torch's CPU the parts of a
    negative gradient are whole. `initial` is what products began with.
    """
    compute = BY_NAME[type_].compute
    t = value_ctype(compute)
    params: tuple[Parameter, ...] = (
        *(Pointer(name, type_, const=name != "out") for name in ("out", "grad", "result", "data")),
        Pointer("bounds", index, const=True),
        Value("initial", compute),
        *_SIZES,
    )
    row = "(o * rows + r) * inner + k"
    value = f"const {t} v = load_{type_}(data, {row});"
    before, slope = "", "g"
    if how == "mean":
        slope = "g / length"
    elif how in ("max", "min"):
        before = f"""long count = 0;
    for (long r = begin; r < stop; ++r) {{ {value} count += v != v || v == y; }}
    if (g > 0 && count > 1) g /= count;"""
        slope = f"v != v || v == y ? g : ({t})0"
    elif how == "prod":
        slope = "others"
    others = f"""
      {t} others = g * y / v;
      if (v != v || v == 0) {{
        others = initial;
        for (long other = begin; other < stop; ++other)
          if (other != r) others *= load_{type_}(data, (o * rows + other) * inner + k);
        others *= g;
      }}"""
    body, local = _walk(
        form,
        f"""{_SEGMENT.format(index)}
  for (long k = first; k < last; ++k) {{
    {t} g = load_{type_}(grad, segment * inner + k);
    const {t} y = load_{type_}(result, segment * inner + k);
    {before}
    for (long r = begin; r < stop; ++r) {{
      {value}
      {others if how == "prod" else ""}
      store_{type_}(out, {row}, {slope});
    }}
  }}""",
    )
    return Kernel(f"segment_{how}_backward", params, body, local=local)
