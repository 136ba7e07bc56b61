"""The mathematical functions of float64, written as those of float32 in `math`: so that loops of them become vectors.

Reductions are the usual ones: exponentials by whole powers of two (Cody and Waite), logarithms by
s = f / (2 + f), error functions by a polynomial near 0 and exp(-x^2) times one elsewhere, the inverse tangent by
(t - 1) / (t + 1), the inverse sine by half the angle. Coefficients are the power series' own, or `polynomials`'.
Results are within 2.5 units in the last place, those of `erfc` within 4.

Integers of 64 bits are only added, subtracted and shifted to the left or, unsigned, to the right: for the other
operations, and for conversions, processors with vectors of 256 bits have no instructions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torchgraft.functions.math import own_or_builtin
from torchgraft.functions.polynomials import ASIN, ATAN, ERF_NEAR, ERFC_FAR

HELPERS: dict[str, str] = {}


def _define(name: str, params: str, body: str) -> None:
    HELPERS[f"tg_{name}_f64"] = f"TG_FUNCTION double tg_{name}_f64({params}) {{{body}}}\n"


def _own(name: str, params: str, body: str, builtin: str) -> None:
    """Defines a function; see `own_or_builtin`."""
    head = f"TG_FUNCTION double tg_{name}_f64({params})"
    HELPERS[f"tg_{name}_f64"] = own_or_builtin(name, head, body, builtin)


def _polynomial(result: str, x: str, coefficients: Sequence[float]) -> str:
    """Statements that declare `result`; the lowest coefficient comes first."""
    *rest, highest = coefficients
    lines = [f"double {result} = {highest!r};", *(f"{result} = fma({result}, {x}, {c!r});" for c in reversed(rest))]
    return "\n  " + "\n  ".join(lines) + "\n"


_ABSOLUTE = "  double t = AS_double(AS_ulong(x) & 0x7fffffffffffffffUL);\n"
_ROUND = "6755399441055744.0"  # 1.5 * 2^52: the lowest bits of a sum with it are a whole number

# Exponentials --------------------------------------------------------------------------------------------------------

# n = x / ln 2, rounded, and what is left, r.
_EXP_SPLIT = f"""
  double shifted = fma(x, 1.4426950408889634, {_ROUND});
  double n = shifted - {_ROUND};
  double r = fma(n, -0.69314718036912382, x);
  r = fma(n, -1.9082149292705877e-10, r);
"""
# (exp(r) - 1 - r) / r^2
_EXP_REST = _polynomial("p", "r", [1 / math.factorial(k) for k in range(2, 14)])

# p 2^(n + scale): the power in two halves, so that subnormal results are rounded once.
_define(
    "exp2_parts",
    "double p, double n",
    f"""
  double half_shifted = fma(n, 0.5, {_ROUND});
  double rest_shifted = n - (half_shifted - {_ROUND}) + {_ROUND};
  return p * AS_double((AS_ulong(half_shifted) << 52) + 0x3ff0000000000000UL) *
         AS_double((AS_ulong(rest_shifted) << 52) + 0x3ff0000000000000UL);
""",
)
# exp(x + low) 2^scale for a small correction `low` and a scale of 0 or less. What is 0 is no product: a processor may
# take a hundred times as long over one that underflows.
_define(
    "exp_scaled",
    "double x, double low, double scale",
    f"""
  bool none = x < -746.0;
  x = none ? 0.0 : x > 711.0 ? 711.0 : x;
{_EXP_SPLIT}  r += low;
{_EXP_REST}  p = fma(p, r * r, r) + 1.0;
  return none ? 0.0 : tg_exp2_parts_f64(p, n + scale);
""",
)
_own("exp", "double x", " return tg_exp_scaled_f64(x, 0.0, 0.0); ", "exp(x)")
_own(
    "exp2",
    "double x",
    f"""
  bool none = x < -1076.0;
  x = none ? 0.0 : x > 1025.0 ? 1025.0 : x;
  double n = x + {_ROUND} - {_ROUND};
  double r = (x - n) * 0.69314718055994531;
  r = fma(x - n, 2.3190468138462996e-17, r);
{_EXP_REST}  p = fma(p, r * r, r) + 1.0;
  return none ? 0.0 : tg_exp2_parts_f64(p, n);
""",
    "exp2(x)",
)
_own(
    "expm1",
    "double x",
    f"""
  double given = x;
  x = x > 709.79 ? 709.79 : x;
  x = x < -40.0 ? -40.0 : x;
{_EXP_SPLIT}{_EXP_REST}  p = fma(p, r * r, r);
  double s = AS_double((AS_ulong(shifted) << 52) + 0x3fe0000000000000UL);
  double y = fma(p, s, s - 0.5) * 2.0;
  return AS_double(AS_ulong(given) & 0x7fffffffffffffffUL) < 1e-17 ? given : y;
""",
    "expm1(x)",
)

# Logarithms ----------------------------------------------------------------------------------------------------------

# u = 2^e (1 + f), f in [sqrt(1/2) - 1, sqrt(2) - 1]: of the bits, so much is subtracted that the exponent changes at
# sqrt(2), and added that it is positive, which is then the mantissa of a number near 2^52.
_LOG_SPLIT = """
  ulong bits = AS_ulong(u);
  ulong biased = (bits + (0x3ff0000000000000UL - 0x3fe6a09e667f3bcdUL)) >> 52;
  double e = AS_double(biased + 0x4330000000000000UL) - 4503599627371519.0;
  double f = AS_double(bits - (biased << 52) + 0x3ff0000000000000UL) - 1.0;
"""
# y = log(1 + f) - f
_LOG_REST = (
    """
  double s = f / (2.0 + f);
  double z = s * s;
"""
    + _polynomial("p", "z", [2 / (2 * k + 1) for k in range(1, 12)])
    + """
  double halved = 0.5 * f * f;
  double y = fma(s, fma(p, z, halved), -halved);
"""
)
# Subnormal numbers are scaled first.
_LOG = (
    """
  bool small = x < 2.2250738585072014e-308;
  double u = small ? x * 18014398509481984.0 : x;
"""
    + _LOG_SPLIT
    + "  e = small ? e - 54.0 : e;\n"
    + _LOG_REST
)
_LOG_SPECIAL = """
  y = x > 1.7976931348623157e308 ? x : y;
  y = x == 0.0 ? -INFINITY : y;
  return x >= 0.0 ? y : NAN;
"""
_LOG_SUM = """
  y = fma(e, 1.9082149292705877e-10, y);
  y = fma(e, 0.69314718036912382, f + y);
"""
_own("log", "double x", _LOG + _LOG_SUM + _LOG_SPECIAL, "log(x)")
_own(
    "log2",
    "double x",
    _LOG + "  y = (fma(y, 0.44269504088896339, f * 0.44269504088896339) + y) + f + e;\n" + _LOG_SPECIAL,
    "log2(x)",
)
# 1 / ln 10 and log10(2) in two words each, the first of which have few enough bits for exact products with f and e.
_own(
    "log10",
    "double x",
    _LOG
    + """
  double l = (f + y) * 2.5082946711645275e-11;
  l = fma(e, 3.6942390771589308e-13, l);
  l = fma(y, 0.43429448187816888, l);
  l = fma(f, 0.43429448187816888, l);
  y = fma(e, 0.30102999566361177, l);
"""
    + _LOG_SPECIAL,
    "log10(x)",
)
# As log of u = 1 + x, with what the addition lost put back into f.
_own(
    "log1p",
    "double x",
    """
  double u = 1.0 + x;
  double lost = x >= 1.0 ? 1.0 - (u - x) : x - (u - 1.0);
"""
    + _LOG_SPLIT
    + """
  f = fma(lost, AS_double((2046UL - (biased > 2045UL ? 2045UL : biased)) << 52), f);
"""
    + _LOG_REST
    + _LOG_SUM
    + """
  y = x > 1.7976931348623157e308 ? x : y;
  y = x == -1.0 ? -INFINITY : y;
  y = x >= -1.0 ? y : NAN;
  return x == 0.0 ? x : y;
""",
    "log1p(x)",
)

# Error functions -----------------------------------------------------------------------------------------------------

# For |x| <= 1.
_define(
    "erf_near",
    "double x",
    "\n  double s = x * x;" + _polynomial("p", "s", ERF_NEAR) + "  return fma(x, p, x);\n",
)
# erfc of t in [0.45, 27.3]; t^2 in two words.
_define(
    "erfc_far",
    "double t",
    """
  double d = t + 4.0;
  double q = (t - 4.0) / d;
"""
    + _polynomial("p", "q", ERFC_FAR)
    + """
  double w = fma(2.0, t, 1.0);
  double square = t * t;
  double e = tg_exp_scaled_f64(-square, -fma(t, t, -square), 0.0);
  return e * (p / w);
""",
)
_own(
    "erf",
    "double x",
    "\n"
    + _ABSOLUTE
    + """
  double near = tg_erf_near_f64(x);
  double far = 1.0 - tg_erfc_far_f64(t < 1.0 ? 1.0 : t > 6.0 ? 6.0 : t);
  far = AS_double(AS_ulong(far) | (AS_ulong(x) & 0x8000000000000000UL));
  far = t < 1.0 ? near : far;
  return x != x ? x : far;
""",
    "erf(x)",
)
_own(
    "erfc",
    "double x",
    "\n"
    + _ABSOLUTE
    + """
  double y = tg_erfc_far_f64(t < 0.45 ? 0.45 : t > 27.3 ? 27.3 : t);
  y = x < 0.0 ? 2.0 - y : y;
  y = t < 0.45 ? 1.0 - tg_erf_near_f64(x) : y;
  return x != x ? x : y;
""",
    "erfc(x)",
)

# Hyperbolic functions ------------------------------------------------------------------------------------------------

_SIGN = "AS_double(AS_ulong({}) | (AS_ulong(x) & 0x8000000000000000UL))"
_own(
    "tanh",
    "double x",
    "\n"
    + _ABSOLUTE
    + f"""
  double m = tg_expm1_f64(2.0 * (t > 20.0 ? 20.0 : t));
  double y = m / (m + 2.0);
  return {_SIGN.format("y")};
""",
    "tanh(x)",
)
_own(
    "sinh",
    "double x",
    "\n"
    + _ABSOLUTE
    + f"""
  double m = tg_expm1_f64(t > 22.0 ? 22.0 : t);
  double near = 0.5 * (m + m / (m + 1.0));
  double y = t > 22.0 ? tg_exp_scaled_f64(t, 0.0, -1.0) : near;
  return {_SIGN.format("y")};
""",
    "sinh(x)",
)
_own(
    "cosh",
    "double x",
    "\n"
    + _ABSOLUTE
    + """
  double e = tg_exp_scaled_f64(t, 0.0, -1.0);
  return t > 22.0 ? e : e + 0.25 / e;
""",
    "cosh(x)",
)
_own(
    "asinh",
    "double x",
    "\n"
    + _ABSOLUTE
    + f"""
  double a = t > 1e9 ? 1e9 : t;
  double s = a * a;
  double near = tg_log1p_f64(a + s / (1.0 + sqrt(s + 1.0)));
  double far = tg_log_f64(t) + 0.69314718055994531;
  double y = t > 1e9 ? far : near;
  return {_SIGN.format("y")};
""",
    "asinh(x)",
)
_own(
    "acosh",
    "double x",
    """
  double t = x - 1.0;
  double a = t > 1e9 ? 1e9 : t;
  double near = tg_log1p_f64(a + sqrt(fma(a, a, 2.0 * a)));
  double far = tg_log_f64(x) + 0.69314718055994531;
  double y = t > 1e9 ? far : near;
  return x < 1.0 ? NAN : y;
""",
    "acosh(x)",
)
_own(
    "atanh",
    "double x",
    "\n" + _ABSOLUTE + f"\n  double y = 0.5 * tg_log1p_f64(2.0 * t / (1.0 - t));\n  return {_SIGN.format('y')};\n",
    "atanh(x)",
)

# Trigonometric functions ---------------------------------------------------------------------------------------------

# For |x| up to `NEAREST`, where n, the number of quarter turns, times the first word of pi/2 is subtracted exactly;
# what is left has two words, r and low. Beyond, the builtins stay.
_REDUCE = (
    """
  double shifted = fma(x, 0.63661977236758138, 6755399441055744.0);
  double n = shifted - 6755399441055744.0;
  ulong quarter = AS_ulong(shifted);
  double exact = fma(n, -1.5707963267948966, x);
  double second = n * 6.123233995736766e-17;
  double r = exact - second;
  double low = (exact - r) - second - fma(n, 6.123233995736766e-17, -second) + n * 1.4973849048591698e-33;
  double z = r * r;
"""
    + _polynomial("p", "z", [(-1) ** k / math.factorial(2 * k + 1) for k in range(1, 9)])
    + "  double sine = r + fma(p * z, r, low * fma(-0.5, z, 1.0));\n"
    + _polynomial("q", "z", [(-1) ** k / math.factorial(2 * k) for k in range(2, 9)])
    + """
  double halved = 0.5 * z;
  double most = 1.0 - halved;
  double cosine = most + (((1.0 - most) - halved) + fma(z * z, q, -r * low));
"""
)
_own(
    "sin_near",
    "double x",
    _REDUCE
    + """
  double y = (quarter & 1) != 0 ? cosine : sine;
  y = AS_double(AS_ulong(y) ^ ((quarter & 2) << 62));
  return x == 0.0 ? x : y;
""",
    "sin(x)",
)
_own(
    "cos_near",
    "double x",
    _REDUCE
    + """
  double y = (quarter & 1) != 0 ? sine : cosine;
  return AS_double(AS_ulong(y) ^ (((quarter + 1) & 2) << 62));
""",
    "cos(x)",
)
_own(
    "tan_near",
    "double x",
    _REDUCE
    + """
  double y = (quarter & 1) != 0 ? -cosine / sine : sine / cosine;
  return x == 0.0 ? x : y;
""",
    "tan(x)",
)
NEAR = {f"tg_{name}_f64": f"tg_{name}_near_f64" for name in ("sin", "cos", "tan")}
"""Functions -> what is quicker for arguments up to `NEAREST`."""
NEAREST = "1e9"

# Inverse trigonometric functions -------------------------------------------------------------------------------------

# The angle of (x, y) in [0, pi/2] for x, y >= 0: of the smaller over the larger, and from tan(pi/8) on of that angle
# less pi/4. What would overflow is scaled; that of equal numbers is exact, as diagonals and infinities expect.
_define(
    "angle",
    "double y, double x",
    """
  double scale = x > 1e307 || y > 1e307 ? 0.25 : 1.0;
  double low = (x < y ? x : y) * scale;
  double high = (x < y ? y : x) * scale;
  bool wide = low > 0.41421356237309503 * high || low == high;
  double u = (wide ? low - high : low) / (wide ? low + high : high);
  u = low == high ? 0.0 : u;
  double s = u * u;
"""
    + _polynomial("p", "s", ATAN)
    + """
  double a = fma(p * s, u, u);
  a = wide ? 0.78539816339744828 + (a + 3.0616169978683830e-17) : a;
  a = high == 0.0 ? 0.0 : a;
  return y > x ? 1.5707963267948966 - (a - 6.1232339957367660e-17) : a;
""",
)
_own(
    "atan",
    "double x",
    "\n" + _ABSOLUTE + f"  double y = tg_angle_f64(t, 1.0);\n  return x != x ? x : {_SIGN.format('y')};\n",
    "atan(x)",
)
_own(
    "atan2",
    "double y, double x",
    """
  double a = tg_angle_f64(AS_double(AS_ulong(y) & 0x7fffffffffffffffUL), AS_double(AS_ulong(x) & 0x7fffffffffffffffUL));
  a = AS_long(x) < 0 ? 3.1415926535897931 - (a - 1.2246467991473532e-16) : a;
  a = AS_double(AS_ulong(a) | (AS_ulong(y) & 0x8000000000000000UL));
  return x != x || y != y ? NAN : a;
""",
    "atan2(y, x)",
)
# asin(t) beyond 0.6 is pi/2 - 2 asin(sqrt((1 - t) / 2)). From 1/2 on it would do, too, but what is subtracted is there
# twice as large as what remains, and so are its errors.
_ASIN = (
    "\n"
    + _ABSOLUTE
    + """  bool outer = t > 0.6;
  double s = outer ? fma(-0.5, t, 0.5) : t * t;
"""
    + _polynomial("p", "s", ASIN)
    + """  double r = outer ? sqrt(s) : t;
  double y = fma(p * s, r, r);
"""
)
_own(
    "asin",
    "double x",
    _ASIN
    + f"""  y = outer ? 1.5707963267948966 - fma(2.0, y, -6.1232339957367660e-17) : y;
  return {_SIGN.format("y")};
""",
    "asin(x)",
)
_own(
    "acos",
    "double x",
    _ASIN
    + f"""  double far = x < 0.0 ? 3.1415926535897931 - fma(2.0, y, -1.2246467991473532e-16) : 2.0 * y;
  return outer ? far : 1.5707963267948966 - ({_SIGN.format("y")} - 6.1232339957367660e-17);
""",
    "acos(x)",
)

# Powers --------------------------------------------------------------------------------------------------------------

# exp2(x + low)
_define(
    "exp2_sum",
    "double x, double low",
    f"""
  double n = x + {_ROUND} - {_ROUND};
  double whole = (x - n) + low;
  double r = whole * 0.69314718055994531;
{_EXP_REST}  p = fma(p, r * r, r) + 1.0;
  return tg_exp2_parts_f64(p, n);
""",
)
_LN_2 = math.log(2)
# exp2(y log2(x)), the logarithm in two words: s = (m - 1) / (m + 1) with the rest of the division, its cube with the
# rest of the products, and the first coefficients, 2 / ln 2 and 2 / (3 ln 2), in two words each.
_own(
    "pow",
    "double x, double y",
    "\n"
    + _ABSOLUTE
    + """
  bool small = t < 2.2250738585072014e-308;
  double u = small ? t * 18014398509481984.0 : t;
"""
    + _LOG_SPLIT
    + """
  e = small ? e - 54.0 : e;
  double v = f + 2.0;
  double v_low = f - (v - 2.0);
  double inverse = 1.0 / v;
  double s = f * inverse;
  double s_low = fma(-s, v_low, fma(-s, v, f)) * inverse;
  double z = s * s;
  double z_low = fma(2.0 * s, s_low, fma(s, s, -z));
"""
    + _polynomial("p", "z", [2 / ((2 * k + 1) * _LN_2) for k in range(2, 14)])
    + """
  double pz = p * z;
  double c = 0.9617966939259756 + pz;
  double c_low = (0.9617966939259756 - c) + pz + 5.0577616648125907e-17;
  double cz = c * z;
  double cz_low = fma(c, z, -cz) + fma(c, z_low, c_low * z);
  double w = 2.8853900817779268 + cz;
  double w_low = (2.8853900817779268 - w) + cz + (cz_low + 4.0710547481862066e-17);
  double h = s * w;
  double h_low = fma(s, w, -h) + fma(s, w_low, s_low * w);
  double l = e + h;
  double l_low = (e - l) + h + h_low;
  l_low = e == 0.0 ? h_low : l_low;
  double product = y * l;
  double product_low = fma(y, l, -product) + y * l_low;
  double limited = product > 1030.0 ? 1030.0 : product;
  limited = limited < -1080.0 ? -1080.0 : limited;
  double r = tg_exp2_sum_f64(limited, limited == product ? product_low : 0.0);
  double y_abs = AS_double(AS_ulong(y) & 0x7fffffffffffffffUL);
  bool is_integer = rint(y) == y;
  bool odd = is_integer && rint(0.5 * y) != 0.5 * y;
  // r >= 0 for zero, infinite and one-valued bases.
  double at_zero = y < 0.0 ? INFINITY : 0.0;
  double at_infinity = y < 0.0 ? 0.0 : INFINITY;
  r = t == 0.0 ? at_zero : r;
  r = t > 1.7976931348623157e308 ? at_infinity : r;
  double far = (t > 1.0) == (y > 0.0) ? INFINITY : 0.0;
  far = t == 1.0 ? 1.0 : far;
  r = y_abs > 1.7976931348623157e308 ? far : r;
  double negative = odd ? -r : r;
  double undefined = is_integer || t > 1.7976931348623157e308 || t == 0.0 ? negative : NAN;
  r = AS_long(x) < 0 ? undefined : r;
  r = x != x || y != y ? NAN : r;
  r = x == 1.0 ? 1.0 : r;
  return y == 0.0 ? 1.0 : r;
""",
    "pow(x, y)",
)
_own(
    "hypot",
    "double x, double y",
    """
  double a = AS_double(AS_ulong(x) & 0x7fffffffffffffffUL);
  double b = AS_double(AS_ulong(y) & 0x7fffffffffffffffUL);
  double low = a < b ? a : b;
  double high = a < b ? b : a;
  // Powers of two: 2^600 and its inverse.
  double scale = high > 1e150 ? 2.409919865102884e-181 : high < 1e-150 ? 4.149515568880993e+180 : 1.0;
  double back = high > 1e150 ? 4.149515568880993e+180 : high < 1e-150 ? 2.409919865102884e-181 : 1.0;
  low *= scale;
  high *= scale;
  double r = sqrt(fma(low, low, high * high)) * back;
  r = x != x || y != y ? NAN : r;
  return a > 1.7976931348623157e308 || b > 1.7976931348623157e308 ? INFINITY : r;
""",
    "hypot(x, y)",
)
