"""Functions of complex numbers, in complex64 and complex128 alike: those that make them of the real ones."""

from __future__ import annotations

import re

HELPERS: dict[str, str] = {}


def _complex(name: str, params: str, body: str, result: str = "C") -> None:
    """Defines a complex function. In `body` C is the complex type, a vector of two; T and S are of its parts."""
    for ctype, suffix, cname in (("float", "f32", "c64"), ("double", "f64", "c128")):
        text = f"TG_FUNCTION {result} tg_{name}_Z({params}) {{{body}}}"
        text = re.sub(r"\bC\b|(?<=MAKE_)C\b", ctype + "2", re.sub(r"\bT\b", ctype, text))
        text = text.replace("_S(", f"_{suffix}(").replace("_Z(", f"_{cname}(")
        text = re.sub(r"(?<=[\d.])F\b", "f" if suffix == "f32" else "", text)
        HELPERS[f"tg_{name}_{cname}"] = text.strip() + "\n"


_complex("mul", "C a, C b", " return MAKE_C(a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x); ")
# Scaled by the larger part of the divisor, so that neither overflows.
_complex(
    "div",
    "C a, C b",
    """
  T x = tg_abs_S(b.x), y = tg_abs_S(b.y);
  T scale = 1.0F / (x > y ? x : y);
  if (x == 0.0F && y == 0.0F) return MAKE_C(a.x / x, a.y / x);
  if ((x == INFINITY || y == INFINITY) && tg_abs_S(a.x) < INFINITY && tg_abs_S(a.y) < INFINITY) {
    T u = x == INFINITY ? tg_copysign_S(1.0F, b.x) : 0.0F, v = y == INFINITY ? tg_copysign_S(1.0F, b.y) : 0.0F;
    return MAKE_C(0.0F * (a.x * u + a.y * v), 0.0F * (a.y * u - a.x * v));
  }
  C s = b * scale;
  T norm = s.x * s.x + s.y * s.y;
  return MAKE_C((a.x * s.x + a.y * s.y) / norm, (a.y * s.x - a.x * s.y) / norm) * scale;
""",
)
_complex("reciprocal", "C a", " return tg_div_Z(MAKE_C(1.0F, 0.0F), a); ")
_complex("abs", "C a", " return tg_hypot_S(a.x, a.y); ", "T")
_complex("angle", "C a", " return tg_atan2_S(a.y, a.x); ", "T")
_complex("conj", "C a", " return MAKE_C(a.x, -a.y); ")
_complex(
    "sgn",
    "C a",
    """
  T r = tg_abs_Z(a);
  return r == 0.0F ? MAKE_C(0.0F, 0.0F) : a / r;
""",
)
_complex(
    "exp",
    "C a",
    """
  T e = tg_exp_S(a.x);
  if (a.y == 0.0F) return MAKE_C(e, a.y);
  if (a.x == -INFINITY) return MAKE_C(0.0F, 0.0F);
  T s = tg_sin_S(a.y), c = tg_cos_S(a.y);
  if (a.x == INFINITY && s != s) return MAKE_C(e, NAN);
  return MAKE_C(e * c, e * s);
""",
)
_complex("exp2", "C a", " return tg_exp_Z(a * 0.69314718055994531F); ")
# e^x cos y - 1 without cancellation near 0
_complex(
    "expm1",
    "C a",
    """
  T m = tg_expm1_S(a.x);
  T h = tg_sin_S(0.5F * a.y);
  T e = m + 1.0F;
  if (e == INFINITY) return tg_exp_Z(a);
  return MAKE_C(m - 2.0F * h * h * e, a.y == 0.0F ? a.y : e * tg_sin_S(a.y));
""",
)
# log |a|, near |a| = 1 from |a|^2 - 1, which loses nothing there
_complex(
    "log",
    "C a",
    """
  T x = tg_abs_S(a.x), y = tg_abs_S(a.y);
  T high = x > y ? x : y, low = x > y ? y : x;
  T r;
  if (high > 0.5F && high < 1.5F) r = 0.5F * tg_log1p_S(fma(high - 1.0F, high + 1.0F, low * low));
  else r = tg_log_S(tg_abs_Z(a));
  return MAKE_C(r, tg_atan2_S(a.y, a.x));
""",
)
_complex("log2", "C a", " return tg_log_Z(a) * 1.4426950408889634F; ")
_complex("log10", "C a", " return tg_log_Z(a) * 0.43429448190325183F; ")
_complex(
    "log1p",
    "C a",
    """
  T x = a.x;
  T r;
  if (tg_abs_S(x) < 0.5F && tg_abs_S(a.y) < 0.5F) r = 0.5F * tg_log1p_S(x * (2.0F + x) + a.y * a.y);
  else r = tg_log_S(tg_hypot_S(1.0F + x, a.y));
  return MAKE_C(r, tg_atan2_S(a.y, 1.0F + x));
""",
)
_complex(
    "sqrt",
    "C a",
    """
  if (a.x == 0.0F && a.y == 0.0F) return MAKE_C(0.0F, a.y);
  if (tg_abs_S(a.y) == INFINITY) return MAKE_C(INFINITY, a.y);
  if (a.x == INFINITY) return MAKE_C(a.x, a.y != a.y ? a.y : tg_copysign_S(0.0F, a.y));
  if (a.x == -INFINITY) return MAKE_C(a.y != a.y ? a.y : 0.0F, tg_copysign_S(INFINITY, a.y));
  // Halved first, since |a| + |x| may overflow.
  T t = sqrt(0.25F * tg_abs_S(a.x) + 0.25F * tg_abs_Z(a)) * 1.41421356237309505F;
  T other = 0.5F * tg_abs_S(a.y) / t;
  return a.x >= 0.0F ? MAKE_C(t, tg_copysign_S(other, a.y)) : MAKE_C(other, tg_copysign_S(t, a.y));
""",
)
# The larger real part goes before the exponential; both -inf or +inf need care, as they have no difference.
_complex(
    "logaddexp",
    "C a, C b",
    """
  C low = a.x < b.x ? a : b, high = a.x < b.x ? b : a;
  if (a.x != a.x || a.y != a.y || b.x != b.x || b.y != b.y) return MAKE_C(NAN, NAN);
  if (low.x == high.x && tg_abs_S(low.x) == INFINITY)
    return low.x < 0.0F ? low : tg_log_Z(tg_exp_Z(low) + tg_exp_Z(high));
  return high + tg_log1p_Z(tg_exp_Z(low - high));
""",
)
_complex("rsqrt", "C a", " return tg_reciprocal_Z(tg_sqrt_Z(a)); ")
# In which corner of the plane an infinite number lies: each part 1 or 0, with its sign. Infinite and missing parts are
# treated here as by C11, annex G.
_complex(
    "corner",
    "C a",
    """
  return MAKE_C(tg_copysign_S(tg_abs_S(a.x) == INFINITY ? 1.0F : 0.0F, a.x),
             tg_copysign_S(tg_abs_S(a.y) == INFINITY ? 1.0F : 0.0F, a.y));
""",
)
_complex("infinite", "C a", " return tg_abs_S(a.x) == INFINITY || tg_abs_S(a.y) == INFINITY; ", "int")
# C's product (C11 G.5.1): of an infinite factor it is infinite, whatever of it is NaN.
_complex(
    "mul_infinite",
    "C a, C b",
    """
  C p = tg_mul_Z(a, b);
  if (p.x == p.x || p.y == p.y) return p;
  int over = tg_abs_S(a.x * b.x) == INFINITY || tg_abs_S(a.y * b.y) == INFINITY
      || tg_abs_S(a.x * b.y) == INFINITY || tg_abs_S(a.y * b.x) == INFINITY;
  if (!tg_infinite_Z(a) && !tg_infinite_Z(b) && !over) return p;
  if (tg_infinite_Z(a)) a = tg_corner_Z(a);
  if (tg_infinite_Z(b)) b = tg_corner_Z(b);
  a = MAKE_C(a.x != a.x ? tg_copysign_S(0.0F, a.x) : a.x, a.y != a.y ? tg_copysign_S(0.0F, a.y) : a.y);
  b = MAKE_C(b.x != b.x ? tg_copysign_S(0.0F, b.x) : b.x, b.y != b.y ? tg_copysign_S(0.0F, b.y) : b.y);
  return tg_mul_Z(a, b) * (T)INFINITY;
""",
)
_complex(
    "pow",
    "C a, C b",
    """
  if (b.x == 0.0F && b.y == 0.0F) return MAKE_C(1.0F, 0.0F);
  if (a.x == 0.0F && a.y == 0.0F && b.y == 0.0F) return b.x > 0.0F ? MAKE_C(0.0F, 0.0F) : MAKE_C(INFINITY, NAN);
  C p = tg_mul_infinite_Z(b, tg_log_Z(a));
  if (p.x == -INFINITY) return MAKE_C(0.0F, 0.0F);
  if (p.x == INFINITY) return p.y - p.y == 0.0F ? tg_exp_Z(p) : MAKE_C(INFINITY, NAN);
  return tg_exp_Z(p);
""",
)
_complex(
    "sinh",
    "C a",
    """
  if (a.y == 0.0F) return MAKE_C(tg_sinh_S(a.x), a.y);
  if (a.y - a.y != 0.0F && (a.x == 0.0F || tg_abs_S(a.x) == INFINITY)) return MAKE_C(a.x, NAN);
  return MAKE_C(tg_sinh_S(a.x) * tg_cos_S(a.y), tg_cosh_S(a.x) * tg_sin_S(a.y));
""",
)
_complex(
    "cosh",
    "C a",
    """
  if (a.y == 0.0F) return MAKE_C(tg_cosh_S(a.x), a.x == 0.0F ? 0.0F : tg_copysign_S(0.0F, a.x) * a.y);
  if (a.y - a.y != 0.0F && a.x == 0.0F) return MAKE_C(NAN, 0.0F);
  if (a.y - a.y != 0.0F && tg_abs_S(a.x) == INFINITY) return MAKE_C(INFINITY, NAN);
  return MAKE_C(tg_cosh_S(a.x) * tg_cos_S(a.y), tg_sinh_S(a.x) * tg_sin_S(a.y));
""",
)
# With t = tan y and s = sinh x: (cosh x sinh x (1 + t^2) + i t) / (1 + s^2 (1 + t^2))
_complex(
    "tanh",
    "C a",
    """
  if (a.y == 0.0F) return MAKE_C(tg_tanh_S(a.x), a.y);
  if (a.y - a.y != 0.0F && tg_abs_S(a.x) < INFINITY) return MAKE_C(a.x == 0.0F ? a.x : NAN, NAN);
  if (tg_abs_S(a.x) > 11.0F + (sizeof(T) == 8 ? 11.0F : 0.0F)) {
    T e = 4.0F * tg_exp_S(-2.0F * tg_abs_S(a.x));
    T y = tg_abs_S(a.y) < INFINITY ? e * tg_sin_S(a.y) * tg_cos_S(a.y) : 0.0F;
    return MAKE_C(tg_copysign_S(1.0F, a.x), tg_copysign_S(y, a.y));
  }
  T t = tg_tan_S(a.y), s = tg_sinh_S(a.x), c = tg_cosh_S(a.x);
  T beta = 1.0F + t * t;
  if (beta == INFINITY) return MAKE_C(c / s, 1.0F / t);
  T d = 1.0F + beta * s * s;
  return MAKE_C(beta * c * s / d, t / d);
""",
)
_complex("sin", "C a", " C r = tg_sinh_Z(MAKE_C(-a.y, a.x)); return MAKE_C(r.y, -r.x); ")
_complex("cos", "C a", " return tg_cosh_Z(MAKE_C(-a.y, a.x)); ")
_complex("tan", "C a", " C r = tg_tanh_Z(MAKE_C(-a.y, a.x)); return MAKE_C(r.y, -r.x); ")
_complex(
    "sigmoid",
    "C a",
    """
  C e = tg_exp_Z(-a);
  return tg_reciprocal_Z(MAKE_C(1.0F + e.x, e.y));
""",
)
_complex("silu", "C a", " return tg_mul_Z(a, tg_sigmoid_Z(a)); ")
# Kahan's formulas: products of square roots of 1 - a and 1 + a, exact on the branch cuts.
_complex("asinh", "C a", " C r = tg_asin_Z(MAKE_C(-a.y, a.x)); return MAKE_C(r.y, -r.x); ")
_complex(
    "asin",
    "C a",
    """
  if (tg_infinite_Z(a)) {
    C k = tg_corner_Z(a);
    T re = a.x != a.x || a.y != a.y ? NAN : tg_atan2_S(k.x, tg_abs_S(k.y));
    return MAKE_C(re, tg_copysign_S(INFINITY, a.y));
  }
  if (a.x == 0.0F && a.y != a.y) return a;
  C p = tg_sqrt_Z(MAKE_C(1.0F + a.x, a.y)), m = tg_sqrt_Z(MAKE_C(1.0F - a.x, -a.y));
  T re = tg_atan2_S(a.x, p.x * m.x - p.y * m.y);
  return MAKE_C(re, tg_asinh_S(m.x * p.y - m.y * p.x));
""",
)
_complex(
    "acos",
    "C a",
    """
  if (tg_infinite_Z(a)) {
    C k = tg_corner_Z(a);
    T re = a.x != a.x || a.y != a.y ? NAN : tg_atan2_S(tg_abs_S(k.y), k.x);
    return MAKE_C(re, -tg_copysign_S(INFINITY, a.y));
  }
  if (a.x == 0.0F && a.y != a.y) return MAKE_C(1.57079632679489662F, a.y);
  C p = tg_sqrt_Z(MAKE_C(1.0F + a.x, a.y)), m = tg_sqrt_Z(MAKE_C(1.0F - a.x, -a.y));
  return MAKE_C(2.0F * tg_atan2_S(m.x, p.x), tg_asinh_S(p.x * m.y - p.y * m.x));
""",
)
_complex(
    "acosh",
    "C a",
    """
  if (tg_infinite_Z(a)) {
    C k = tg_corner_Z(a);
    return MAKE_C(INFINITY, a.x != a.x || a.y != a.y ? NAN : tg_atan2_S(k.y, k.x));
  }
  if (a.x == 0.0F && a.y != a.y) return MAKE_C(a.y, 1.57079632679489662F);
  C p = tg_sqrt_Z(MAKE_C(a.x + 1.0F, a.y)), m = tg_sqrt_Z(MAKE_C(a.x - 1.0F, a.y));
  return MAKE_C(tg_asinh_S(p.x * m.x + p.y * m.y), 2.0F * tg_atan2_S(m.y, p.x));
""",
)
_complex(
    "atanh",
    "C a",
    """
  T x = tg_abs_S(a.x), y = a.y, d = 1.0F - x;
  if (x != x) return tg_abs_S(y) == INFINITY ? MAKE_C(0.0F, tg_copysign_S(1.57079632679489662F, y)) : MAKE_C(NAN, NAN);
  if (y != y) return x == 0.0F || x == INFINITY ? MAKE_C(tg_copysign_S(0.0F, a.x), NAN) : MAKE_C(NAN, NAN);
  if (x > 1e8F || tg_abs_S(y) > 1e8F) {
    C r = tg_reciprocal_Z(a);
    return MAKE_C(r.x, tg_copysign_S(1.57079632679489662F, y));
  }
  T re = 0.25F * tg_log1p_S(4.0F * x / (d * d + y * y));
  return MAKE_C(tg_copysign_S(re, a.x), 0.5F * tg_atan2_S(2.0F * y, d * (1.0F + x) - y * y));
""",
)
_complex("atan", "C a", " C r = tg_atanh_Z(MAKE_C(-a.y, a.x)); return MAKE_C(r.y, -r.x); ")
