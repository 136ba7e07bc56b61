"""Kernels of running sums, products and extremes.

Tensors are contiguous and seen as (outer, size, inner), the scan running along the middle. As in `kernels.softmax` rows
are for inner = 1, and columns, neighbours in memory, for inner > 1.
"""

from __future__ import annotations

import functools

from torchgraft.codegen.kernel import Kernel, Parameter, Pointer, Value
from torchgraft.codegen.types import BY_NAME, value_ctype
from torchgraft.codegen.vectors import shuffle

WIDTH = 256

# `how` is "sum", "prod" or "logsumexp" everywhere.

_VECTOR_TYPES = ("f32", "f16", "bf16")


def _params(in_type: str, out_type: str, *values: str) -> tuple[Parameter, ...]:
    return (Pointer("in", in_type, const=True), Pointer("out", out_type), *(Value(name, "i64") for name in values))


def _identity(acc: str, how: str) -> str:
    if how == "prod" and acc in ("c64", "c128"):
        return f"MAKE_{value_ctype(acc)}(1, 0)"
    if how == "logsumexp":
        return f"MAKE_{value_ctype(acc)}(-INFINITY, 0)" if acc in ("c64", "c128") else "-INFINITY"
    return f"({value_ctype(acc)})({int(how == 'prod')})"


def _apply(acc: str, how: str, a: str, b: str) -> str:
    """`a` combined with `b`."""
    if how == "prod" and acc in ("c64", "c128"):
        return f"tg_mul_{acc}({a}, {b})"
    if how == "logsumexp":
        return f"tg_logaddexp_{acc}({a}, {b})"
    return f"({a} {'*' if how == 'prod' else '+'} {b})"


def _load(in_type: str, acc: str, pointer: str, index: str) -> str:
    return f"({value_ctype(acc)})load_{in_type}({pointer}, {index})"


# Prefix sums of sixteen lanes in four steps.
_PREFIX = "\n      ".join(
    f"v += {shuffle('float16', 'none', 'v', [16 + lane - step if lane >= step else 0 for lane in range(16)])};"
    for step in (1, 2, 4, 8)
)


@functools.cache
def row_kernel(in_type: str, out_type: str, how: str, wide: bool) -> Kernel:
    """CPU form. Groups: rows / chunk. `wide`: float32 sums are carried on in float64."""
    acc = BY_NAME[out_type].accumulate
    carry = "f64" if wide and acc == "f32" and how != "logsumexp" else acc
    t = value_ctype(carry)
    vectors = ""
    if how == "sum" and in_type in _VECTOR_TYPES and out_type in _VECTOR_TYPES:
        vectors = f"""for (; c + 16 <= size; c += 16) {{
      float16 v = load_{in_type}x16(x, c);
      const float16 none = SPLAT_float16(0);
      {_PREFIX}
      store_{out_type}x16(y, c, v + (float)sum);
      sum += LANE(v, f);
    }}"""
    body = f"""
  const long row_end = (GROUP_ID(0) + 1) * chunk < rows ? (GROUP_ID(0) + 1) * chunk : rows;
  for (long row = GROUP_ID(0) * chunk; row < row_end; ++row) {{
    const GLOBAL {BY_NAME[in_type].storage}* x = in + row * size;
    GLOBAL {BY_NAME[out_type].storage}* y = out + row * size;
    {t} sum = {_identity(carry, how)};
    long c = 0;
    {vectors}
    for (; c < size; ++c) {{
      sum = {_apply(carry, how, "sum", _load(in_type, carry, "x", "c"))};
      store_{out_type}(y, c, ({value_ctype(acc)})sum);
    }}
  }}
"""
    return Kernel(f"cum{how}_row_{in_type}", _params(in_type, out_type, "rows", "size", "chunk"), body)


@functools.cache
def column_kernel(in_type: str, out_type: str, how: str, wide: bool) -> Kernel:
    """CPU form. Groups: outer * ceil(inner / chunk); chunk is at most WIDTH."""
    acc = BY_NAME[out_type].accumulate
    carry = "f64" if wide and acc == "f32" and how != "logsumexp" else acc
    body = f"""
  const long blocks = (inner + chunk - 1) / chunk;
  const long o = GROUP_ID(0) / blocks, start = (GROUP_ID(0) - o * blocks) * chunk;
  const int m = (int)(inner - start < chunk ? inner - start : chunk);
  {value_ctype(carry)} sum[{WIDTH}];
  VECTORIZE for (int j = 0; j < m; ++j) sum[j] = {_identity(carry, how)};
  for (long c = 0; c < size; ++c) {{
    const GLOBAL {BY_NAME[in_type].storage}* x = in + (o * size + c) * inner + start;
    GLOBAL {BY_NAME[out_type].storage}* y = out + (o * size + c) * inner + start;
    VECTORIZE for (int j = 0; j < m; ++j) {{
      sum[j] = {_apply(carry, how, "sum[j]", _load(in_type, carry, "x", "j"))};
      store_{out_type}(y, j, ({value_ctype(acc)})sum[j]);
    }}
  }}
"""
    return Kernel(f"cum{how}_column_{in_type}", _params(in_type, out_type, "outer", "size", "inner", "chunk"), body)


@functools.cache
def row_kernel_gpu(in_type: str, out_type: str, how: str) -> Kernel:
    """A work-group for a row, 256 elements at a time. Groups: rows."""
    acc = BY_NAME[out_type].accumulate
    t = value_ctype(acc)
    body = f"""
  LOCAL {t} a[256];
  const int j = LOCAL_ID(0);
  const GLOBAL {BY_NAME[in_type].storage}* x = in + GROUP_ID(0) * size;
  GLOBAL {BY_NAME[out_type].storage}* y = out + GROUP_ID(0) * size;
  {t} sum = {_identity(acc, how)};
  for (long first = 0; first < size; first += 256) {{
    const long c = first + j;
    {t} v = {_identity(acc, how)};
    if (c < size) v = {_load(in_type, acc, "x", "c")};
    a[j] = v;
    BARRIER;
    for (int w = 1; w < 256; w *= 2) {{
      if (j >= w) v = {_apply(acc, how, "a[j - w]", "v")};
      BARRIER;
      a[j] = v;
      BARRIER;
    }}
    if (c < size) store_{out_type}(y, c, {_apply(acc, how, "sum", "v")});
    sum = {_apply(acc, how, "sum", "a[255]")};
    BARRIER;
  }}
"""
    return Kernel(f"cum{how}_row_{in_type}", _params(in_type, out_type, "rows", "size", "chunk"), body, local=(256,))


@functools.cache
def column_kernel_gpu(in_type: str, out_type: str, how: str) -> Kernel:
    """A work-item for a column. Groups: ceil(outer * inner / 64)."""
    acc = BY_NAME[out_type].accumulate
    body = f"""
  const long k = GLOBAL_ID(0), o = k / inner;
  if (o >= outer) return;
  const long base = o * size * inner + (k - o * inner);
  {value_ctype(acc)} sum = {_identity(acc, how)};
  for (long c = 0; c < size; ++c) {{
    sum = {_apply(acc, how, "sum", _load(in_type, acc, "in", "base + c * inner"))};
    store_{out_type}(out, base + c * inner, sum);
  }}
"""
    params = _params(in_type, out_type, "outer", "size", "inner", "chunk")
    return Kernel(f"cum{how}_column_{in_type}", params, body, local=(64,))


@functools.cache
def extreme_kernel(type_: str, greater: bool) -> Kernel:
    """Running maxima or minima with their indices, of equal ones the last.

    One work-item for a column. Groups: columns / 64.
    A NaN stays the extreme from where it is met, its index that of the latest.
    """
    acc = BY_NAME[type_].compute
    sign = ">=" if greater else "<="
    body = f"""
  const long k = GLOBAL_ID(0), o = k / inner;
  if (o >= outer) return;
  const long base = o * size * inner + (k - o * inner);
  {value_ctype(acc)} best = size > 0 ? load_{type_}(in, base) : 0;
  long at = 0;
  for (long c = 0; c < size; ++c) {{
    const {value_ctype(acc)} x = load_{type_}(in, base + c * inner);
    if (x != x || (best == best && x {sign} best)) {{
      best = x;
      at = c;
    }}
    store_{type_}(values, base + c * inner, best);
    indices[base + c * inner] = at;
  }}
"""
    params = (
        Pointer("in", type_, const=True),
        Pointer("values", type_),
        Pointer("indices", "i64"),
        Value("outer", "i64"),
        Value("size", "i64"),
        Value("inner", "i64"),
    )
    return Kernel(f"cum{'max' if greater else 'min'}_{type_}", params, body, local=(64,))
