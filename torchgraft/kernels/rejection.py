"""Random numbers drawn by rejection: gamma, Poisson and binomial.

How many words an element takes is not known beforehand. Each element has one Philox counter of the reservation, and
the counter's upper half counts its attempts: element i draws the same words however a kernel partitions the elements,
and no other draw uses them, since those leave the upper half at 0 and take other lower halves.
"""

from __future__ import annotations

import functools

from torchgraft.codegen.kernel import Kernel, parameters
from torchgraft.codegen.pointwise import convert, expression
from torchgraft.codegen.types import BY_NAME, value_ctype
from torchgraft.codegen.walk import FEW, Walk

# In (0, 1), of a word, or of two.
_OPEN = {
    "f32": "(((float)({0} >> 9) + 0.5f) * 1.1920928955078125e-07f)",
    "f64": "(((double)(long)(((ulong){0} << 20) | ({1} >> 12)) + 0.5) * 2.2204460492503131e-16)",
}
_LOG = {"f32": "tg_log_f32", "f64": "tg_log_positive_f64"}


def _two_uniforms(compute: str) -> str:
    """Statements for u and v of attempt `k`."""
    words = ("0", "1") if compute == "f32" else ("01", "23")
    u, v = (_OPEN[compute].format(*(f"LANE(w, {lane})" for lane in lanes)) for lanes in words)
    return f"uint4 w = tg_philox(seed, counter, k);\n      T u = {u} - 0.5, v = {v};"


def _sum_of_waits(compute: str, start: str, step: str, goes_on: str) -> str:
    """Statements that count how many uniform numbers `u` it takes until the condition fails."""
    u = (
        "((T)LANE(w, 0) + (T)0.5) * (T)2.3283064365386963e-10"
        if compute == "f64"
        else _OPEN["f32"].format("LANE(w, 0)")
    )
    return f"""\
    {start}
    uint4 w;
    int left = 0;
    ulong k = 0;
    x = -1;
    do {{
      if (left == 0) {{
        w = tg_philox(seed, counter, k++);
        left = 4;
      }}
      T u = {u};
      {step}
      w = SHUFFLE_uint4(w, w, 1, 2, 3, 0);
      --left;
      x += 1;
    }} while ({goes_on});"""


def _gamma(compute: str) -> str:
    """G. Marsaglia and W. W. Tsang, "A simple method for generating gamma variables", ACM TOMS 26 (2000)."""
    if compute == "f32":
        draw = f"""\
      uint4 w = tg_philox(seed, counter, k);
      float z, other;
      tg_normal_pair_f32(LANE(w, 0), LANE(w, 1), &z, &other);
      T u = {_OPEN["f32"].format("LANE(w, 2)")}, boost = {_OPEN["f32"].format("LANE(w, 3)")};"""
    else:
        draw = f"""\
      uint4 w = tg_philox(seed, counter, 2 * k), y = tg_philox(seed, counter, 2 * k + 1);
      double z, other;
      tg_normal_pair_f64(((ulong)LANE(w, 0) << 32) | LANE(w, 1), ((ulong)LANE(w, 2) << 32) | LANE(w, 3), &z, &other);
      T u = {_OPEN["f64"].format("LANE(y, 0)", "LANE(y, 1)")};
      T boost = {_OPEN["f64"].format("LANE(y, 2)", "LANE(y, 3)")};"""
    return f"""\
  T x = NAN;
  if (alpha >= 0) {{
    T d = (alpha < 1 ? alpha + 1 : alpha) - 0.3333333333333333, c = 1 / sqrt(9 * d), factor = 1;
    for (ulong k = 0;; ++k) {{
{draw}
      if (k == 0 && alpha < 1) factor = exp({_LOG[compute]}(boost) / alpha);
      T t = c * z, root = 1 + t, cube = root * root * root;
      if (!(root > 0)) continue;
      x = factor * d * cube;
      if (u < 1 - 0.0331 * (z * z) * (z * z)) break;
      /* d (1 - cube + log(cube)), of which z^2 / 2 is taken away: what is left has no large parts */
      if ({_LOG[compute]}(u) < d * (3 * tg_log1p_minus_{compute}(t) - t * t * (3 + t)) + 0.5 * z * z) break;
    }}
    x = x > tiny ? x : tiny;
  }}"""


def _poisson(compute: str) -> str:
    """W. Hormann, "The transformed rejection method for generating Poisson random variables", Insurance: Mathematics
    and Economics 12 (1993), PTRS; below a rate of 10 the product of uniform numbers (Knuth).
    """
    product = _sum_of_waits(compute, "T product = 1, limit = exp(-rate);", "product *= u;", "product > limit")
    return f"""\
  T x = NAN;
  if (!(rate >= 0)) {{
    bad = 1;
  }} else if (rate < 10) {{
{product}
  }} else if (rate > LARGEST) {{
    x = rate;
  }} else {{
    T b = 0.931 + 2.53 * sqrt(rate), a = 0.02483 * b - 0.059;
    T inverse_alpha = 1.1239 + 1.1328 / (b - 3.4), v_r = 0.9277 - 3.6224 / (b - 2);
    for (ulong k = 0;; ++k) {{
      {_two_uniforms(compute)}
      T us = 0.5 - fabs(u);
      x = floor((2 * a / us + b) * u + rate + 0.43);
      if (us >= 0.07 && v <= v_r) break;
      if (x < 0 || (us < 0.013 && v > us)) continue;
      if ({_LOG[compute]}(v * inverse_alpha / (a / (us * us) + b)) <= tg_log_poisson_{compute}(x, rate)) break;
    }}
  }}"""


def _binomial(compute: str) -> str:
    """W. Hormann, "The generation of binomial random variates", J. Statistical Computation and Simulation 46 (1993),
    BTRS; below an expectation of 10 a sum of waiting times (L. Devroye, "Non-uniform random variate generation",
    1986, chapter X.4).
    """
    waits = _sum_of_waits(
        compute, "T total = 0, scale = 1 / log1p(-p);", f"total += ceil({_LOG[compute]}(u) * scale);", "total <= n"
    )
    return f"""\
  T x = NAN, inside = chance < 0 ? (T)0 : chance > 1 ? (T)1 : chance;
  T n = count > 0 ? floor(count) : (T)0, p = inside > 0.5 ? 1 - inside : inside;
  if (count != count || chance != chance) {{
    /* stays NaN */
  }} else if (n <= 0 || p <= 0 || n > LARGEST) {{
    x = p > 0 ? n : 0;
  }} else if (n * p < 10) {{
{waits}
  }} else {{
    T deviation = sqrt(n * p * (1 - p)), b = 1.15 + 2.53 * deviation, a = 0.0248 * b + 0.01 * p - 0.0873;
    T alpha = (2.83 + 5.1 / b) * deviation, v_r = 0.92 - 4.2 / b, mode = floor((n + 1) * p);
    T at_mode = tg_log_binomial_{compute}(mode, n, p);
    for (ulong k = 0;; ++k) {{
      {_two_uniforms(compute)}
      T us = 0.5 - fabs(u);
      x = floor((2 * a / us + b) * u + n * p + 0.5);
      if (us >= 0.07 && v <= v_r) break;
      if (x < 0 || x > n) continue;
      T ratio = tg_log_binomial_{compute}(x, n, p) - at_mode;
      if ({_LOG[compute]}(v * alpha / (a / (us * us) + b)) <= ratio) break;
    }}
  }}
  if (inside > 0.5) x = n - x;"""


_LARGEST = {"f32": "3.4028234e38", "f64": "1.7976931348623157e308"}
# The smallest normal number: what rounds to nothing becomes this, since a gamma variable is positive.
_TINY = {"f16": "6.103515625e-05", "bf16": "1.17549435e-38", "f32": "1.17549435e-38", "f64": "2.2250738585072014e-308"}

_TEXTS = {
    "gamma": (("alpha",), _gamma),
    "poisson": (("rate",), _poisson),
    "binomial": (("count", "chance"), _binomial),
}


@functools.cache
def rejection_kernel(name: str, storage: str, form: str) -> Kernel:
    """One of the distributions above, for each element of operands ``<name>_p`` that have the result's type.

    Other parameters: `out`, where errors are reported (for parameters that are not allowed), `seed` and `offset` of a
    reservation of one counter for each element.
    """
    inputs, make = _TEXTS[name]
    compute = BY_NAME[storage].compute
    loads = "\n".join(
        f"  {value_ctype(compute)} {i} = {convert(f'load_{storage}({i}_p, tg_i)', storage, compute)};" for i in inputs
    )
    text = make(compute).replace("LARGEST", _LARGEST[compute])
    one = f"""\
{loads}
  ulong counter = offset + (ulong)tg_i;
  {expression(f"const T tiny = {_TINY[storage]};", compute) if "tiny" in text else ""}
{expression(text, compute)}
  store_{storage}(out, tg_i, {convert("x", compute, storage)});"""
    walk = Walk(form, prefix="tg_", group=FEW)
    body = f"  int bad = 0;\n{walk.each(one, vectorize=False)}\n  if (bad) tg_report(errors, code, 0);"
    params = f"{storage}* out; const {storage}* {', '.join(operands(name))}; i32* errors; i32 code; u64 seed, offset"
    return walk.kernel(name, parameters(params), body)


def operands(name: str) -> list[str]:
    """The parameters that the operands of a distribution are given to."""
    return [f"{i}_p" for i in _TEXTS[name][0]]
