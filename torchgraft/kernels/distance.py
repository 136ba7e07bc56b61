"""Kernels of p-norm distances between rows: of two matrices, or of each pair of one matrix' rows.

Matrices are batches of (row, column). The pairs i < j of one matrix lie in one line, those of row 0 first: "triangle".
Sums are made a column at a time for a stretch of neighbouring distances, so that loops vectorise and their order is
fixed; for that the second matrix arrives transposed, as (column, row).
"""

from __future__ import annotations

import functools

from torchgraft.codegen.kernel import Kernel, Parameter, Pointer, Value
from torchgraft.codegen.pointwise import expression
from torchgraft.codegen.types import BY_NAME, value_ctype

WIDTH = 64
GPU_LOCAL = 128

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


def _sizes(compute: str) -> tuple[Parameter, ...]:
    return (Value("norm", compute), *(Value(name, "i64") for name in ("n", "m", "width", "rows", "chunk")))


# Of row i of `rows` rows in all, the first of its distances: those of the row j lie j further on.
_FIRST = {False: "row * m", True: "i * (2 * m - i - 1) / 2 - i - 1"}


@functools.cache
def forward_kernel(type_: str, kind: str, triangle: bool, form: str) -> Kernel:
    """Distances of `n` rows of x to `m` rows of y, in all batches."""
    compute = BY_NAME[type_].compute
    t = value_ctype(compute)
    step, finish = (expression(text, compute) for text in _NORMS[kind])
    params = (Pointer("out", type_), Pointer("x", type_, True), Pointer("y", type_, True), *_sizes(compute))
    start = "i + 1" if triangle else "0"
    if form == "gpu":
        body = f"""
  const long place = (long)GROUP_ID(0) * {GPU_LOCAL} + LOCAL_ID(0);
  if (place >= rows * m) return;
  const long row = place / m, j = place % m, i = row % n;
  if (j < {start}) return;
  {t} a = 0;
  for (long k = 0; k < width; ++k) {{
    const {t} d = load_{type_}(x, row * width + k) - load_{type_}(y, (row / n * width + k) * m + j);
    a = {step};
  }}
  store_{type_}(out, {_FIRST[triangle]} + j, {finish});"""
        return Kernel(f"distance_{kind}", params, body, local=(GPU_LOCAL,))
    body = f"""
  const long end = min(rows, (long)(GROUP_ID(0) + 1) * chunk);
  for (long row = GROUP_ID(0) * chunk; row < end; ++row) {{
    const long i = row % n, first = {_FIRST[triangle]};
    for (long j = {start}; j < m; j += {WIDTH}) {{
      const int count = (int)min(m - j, (long){WIDTH});
      {t} sums[{WIDTH}];
      VECTORIZE for (int l = 0; l < count; ++l) sums[l] = 0;
      for (long k = 0; k < width; ++k) {{
        const {t} own = load_{type_}(x, row * width + k);
        const long at = (row / n * width + k) * m + j;
        VECTORIZE for (int l = 0; l < count; ++l) {{
          const {t} d = own - load_{type_}(y, at + l), a = sums[l];
          sums[l] = {step};
        }}
      }}
      VECTORIZE for (int l = 0; l < count; ++l) {{
        const {t} a = sums[l];
        store_{type_}(out, first + j + l, {finish});
      }}
    }}
  }}"""
    return Kernel(f"distance_{kind}", params, body)


@functools.cache
def backward_kernel(type_: str, kind: str, triangle: bool, form: str) -> Kernel:
    """Gradients of the rows of x: each is the sum over the rows of y, in their order. Here y is not transposed."""
    compute = BY_NAME[type_].compute
    t = value_ctype(compute)
    slope = expression(_SLOPES[kind], compute)
    pointers = (Pointer(name, type_, const=name != "out") for name in ("out", "grad", "distance", "x", "y"))
    # A pair of one matrix has one distance, whose place the smaller of its rows says.
    place = "min(i, j) * (2 * m - min(i, j) - 1) / 2 + max(i, j) - min(i, j) - 1" if triangle else "row * m + j"
    skip = "if (i == j) continue;" if triangle else ""
    pair = f"""{skip}
      const long pair = {place};
      const {t} g = load_{type_}(grad, pair), s = load_{type_}(distance, pair);
      const long other = (row / n * m + j) * width;"""
    if form == "gpu":
        body = f"""
  const long place = (long)GROUP_ID(0) * {GPU_LOCAL} + LOCAL_ID(0);
  if (place >= rows * width) return;
  const long row = place / width, k = place % width, i = row % n;
  const {t} own = load_{type_}(x, place);
  {t} sum = 0;
  for (long j = 0; j < m; ++j) {{
      {pair}
      const {t} d = own - load_{type_}(y, other + k);
      sum += {slope};
  }}
  store_{type_}(out, place, sum);"""
        return Kernel(f"distance_{kind}_backward", (*pointers, *_sizes(compute)), body, local=(GPU_LOCAL,))
    body = f"""
  const long end = min(rows, (long)(GROUP_ID(0) + 1) * chunk);
  for (long row = GROUP_ID(0) * chunk; row < end; ++row)
  for (long k = 0; k < width; k += {WIDTH}) {{
    const int count = (int)min(width - k, (long){WIDTH});
    const long i = row % n, own = row * width + k;
    {t} sums[{WIDTH}];
    VECTORIZE for (int l = 0; l < count; ++l) sums[l] = 0;
    for (long j = 0; j < m; ++j) {{
      {pair}
      VECTORIZE for (int l = 0; l < count; ++l) {{
        const {t} d = load_{type_}(x, own + l) - load_{type_}(y, other + k + l);
        sums[l] += {slope};
      }}
    }}
    VECTORIZE for (int l = 0; l < count; ++l) store_{type_}(out, own + l, sums[l]);
  }}"""
    return Kernel(f"distance_{kind}_backward", (*pointers, *_sizes(compute)), body)
