"""Logarithms of probabilities, for the kernels that draw by rejection.

They are written as deviances (C. Loader, "Fast and accurate computation of binomial probabilities", 2000), which keeps
float32 exact where a difference of large logarithms would not be.
"""

from __future__ import annotations

import re

# What is left of log(n!) after Stirling's formula, for n = 1, ..., 15; beyond, three terms of its series do.
_STIRLING = """\
    F(0.08106146679532726), F(0.04134069595540929), F(0.02767792568499834), F(0.02079067210376509),
    F(0.01664469118982119), F(0.01387612882307075), F(0.01189670994589177), F(0.01041126526197210),
    F(0.00925546218271273), F(0.00833056343336287), F(0.00757367548795184), F(0.00694284010720953),
    F(0.00640899418800421), F(0.00595137011275885), F(0.00555473355196280)"""
_LOG1P_MINUS = """\
TG_FUNCTION T tg_log1p_minus_N(T t) {  /* log(1 + t) - t */
  if (!(t > -F(0.3) && t < F(0.3))) return log1p(t) - t;
  T r = t / (F(2.0) + t), q = r * r, p = 0;
  for (int k = TERMS; k >= 1; --k) p = fma(p, q, (T)1 / (T)(2 * k + 1));
  return F(2.0) * r * q * p - t * r;
}"""
_STIRLING_REST = f"""\
TG_FUNCTION T tg_stirling_N(T n) {{
  const T small[15] = {{
{_STIRLING}}};
  if (n < F(15.5)) return small[(int)n - 1];
  T q = 1 / (n * n);
  return (F(0.08333333333333333) - (F(0.002777777777777778) - F(0.0007936507936507937) * q) * q) / n;
}}"""
_LOG_BINOMIAL = """\
TG_FUNCTION T tg_log_binomial_N(T k, T n, T p) {  /* log of the chance of k, with p at most one half */
  T rest = n - k;
  if (k <= 0) return n * log1p(-p);
  if (rest <= 0) return n * log(p);
  return tg_stirling_N(n) - tg_stirling_N(k) - tg_stirling_N(rest) + k * tg_log1p_minus_N((n * p - k) / k)
      + rest * tg_log1p_minus_N((n * (1 - p) - rest) / rest) - F(0.5) * log(F(6.283185307179586) * k * (rest / n));
}"""
_LOG_POISSON = """\
TG_FUNCTION T tg_log_poisson_N(T k, T rate) {  /* log of the chance of k */
  if (k <= 0) return -rate;
  return k * tg_log1p_minus_N((rate - k) / k) - tg_stirling_N(k) - F(0.5) * log(F(6.283185307179586) * k);
}"""


def _typed(text: str, compute: str, ctype: str, terms: int) -> str:
    """The text for a type: T is its name, F(x) a literal of it, and _N ends the names of functions."""
    text = re.sub(r"F\(([^)]+)\)", r"\1f" if compute == "f32" else r"\1", text)
    return re.sub(r"\bT\b", ctype, text.replace("_N(", f"_{compute}(").replace("TERMS", str(terms)))


HELPERS: dict[str, str] = {
    f"{_name}_{_compute}": _typed(_text, _compute, _ctype, _terms)
    for _name, _text in (
        ("tg_log1p_minus", _LOG1P_MINUS),
        ("tg_stirling", _STIRLING_REST),
        ("tg_log_binomial", _LOG_BINOMIAL),
        ("tg_log_poisson", _LOG_POISSON),
    )
    for _compute, _ctype, _terms in (("f32", "float", 5), ("f64", "double", 12))
}
