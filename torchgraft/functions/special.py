"""The functions of `torch.special` for kernels, in float32 and float64 alike.

Chebyshev series come from `series`, whose coefficients `scripts/chebyshev.py` computes from the definitions; a series
is cut where its type sees no more of it. Other sources are named where they are used: DLMF is the NIST Digital Library
of Mathematical Functions, https://dlmf.nist.gov. Special values are those of torch's CPU.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from torchgraft.functions.math import in_both_precisions
from torchgraft.functions.series import CHEBYSHEV, TEMME

HELPERS: dict[str, str] = {}

_PRECISIONS = (("float", "f32", "f", 2e-9), ("double", "f64", "", 1e-18))


def _same(name: str, params: str, body: str) -> None:
    """Defines a function in float32 and float64; see `math.in_both_precisions` for what `body` may use."""
    HELPERS.update(in_both_precisions(name, params, body))


def _polynomial(x: str, coefficients: Iterable[float]) -> str:
    """An expression, lowest coefficient first."""
    *rest, text = (f"{c!r}F" for c in coefficients)
    for c in reversed(rest):
        text = f"fma({text}, {x}, {c})"
    return text


def _define_series(name: str, coefficients: Sequence[float]) -> None:
    """Defines the function of t in [-1, 1] with the given Chebyshev coefficients (Clenshaw's algorithm)."""
    for ctype, suffix, literal, smallest in _PRECISIONS:
        limit = smallest * max(abs(c) for c in coefficients)
        count = len(coefficients)
        while sum(abs(c) for c in coefficients[count - 1 :]) < limit:
            count -= 1
        first, *rest = coefficients[:count]
        lines = [f"{ctype} u = t + t, a = {rest.pop()!r}{literal}, b = 0, c;"]
        lines += [f"c = fma(u, a, {c!r}{literal} - b); b = a; a = c;" for c in reversed(rest)]
        lines.append(f"return fma(t, a, {first!r}{literal} - b);")
        body = "\n  ".join(lines)
        HELPERS[f"tg_{name}_{suffix}"] = f"TG_FUNCTION {ctype} tg_{name}_{suffix}({ctype} t) {{\n  {body}\n}}\n"


for _name, _coefficients in CHEBYSHEV.items():
    _define_series(_name, _coefficients)

# Modified Bessel functions -------------------------------------------------------------------------------------------

# What is beyond the range of the near series is not evaluated there, so that nothing overflows.
_I_SCALED = """
  T a = tg_abs_S(x);
  T near = tg_i{n}_near_S((a > 8.0F ? 8.0F : a) * 0.25F - 1.0F){times};
  T far = tg_i{n}_far_S(16.0F / (a < 8.0F ? 8.0F : a) - 1.0F);
"""
for _order, _times, _sign in ((0, "", "{}"), (1, " * a", "tg_copysign_S({}, x)")):
    _head = _I_SCALED.format(n=_order, times=_times)
    _scaled = _sign.format("a <= 8.0F ? near : far / sqrt(a)")
    _plain = _sign.format("a <= 8.0F ? e * near : e * far / sqrt(a)")
    _same(f"i{_order}e", "T x", f"{_head}  return {_scaled};\n")
    _same(f"i{_order}", "T x", f"{_head}  T e = tg_exp_S(a);\n  return {_plain};\n")

_K = """
  T s = x > 2.0F ? 2.0F : x;
  T near = {near};
  T far = tg_k{n}_far_S(4.0F / (x < 2.0F ? 2.0F : x) - 1.0F) / sqrt(x);
  T y = x <= 2.0F ? {near_scale}near : {far_scale}far;
  y = x == 0.0F ? INFINITY : y;
  return x < 0.0F ? NAN : y;
"""
_K_NEAR = (
    "tg_k0_near_S(0.5F * s * s - 1.0F) - tg_log_S(0.5F * s) * tg_i0_S(s)",
    "tg_k1_near_S(0.5F * s * s - 1.0F) / s + tg_log_S(0.5F * s) * tg_i1_S(s)",
)
for _order in (0, 1):
    _same(f"k{_order}", "T x", _K.format(n=_order, near=_K_NEAR[_order], near_scale="", far_scale="tg_exp_S(-x) * "))
    _same(f"k{_order}e", "T x", _K.format(n=_order, near=_K_NEAR[_order], near_scale="tg_exp_S(x) * ", far_scale=""))

# Bessel functions ----------------------------------------------------------------------------------------------------

# Far from 0 by amplitude and phase (DLMF 10.17.3). The phase's shift by odd multiples of pi/4 is made with sums of sine
# and cosine, since subtracting it from a large argument would cost the argument's last digits.
_FAR = """
  T a = tg_abs_S(x);
  T near_a = a > 8.0F ? 8.0F : a, far_a = a < 8.0F ? 8.0F : a;
  T near_t = near_a * near_a * 0.03125F - 1.0F, far_t = 128.0F / (far_a * far_a) - 1.0F;
  T s = tg_sin_S(far_a), c = tg_cos_S(far_a);
  T amplitude = 0.56418958354775629F / sqrt(far_a);
  T p = tg_p{n}_S(far_t), q = tg_q{n}_S(far_t) / far_a;
"""
_same(
    "bessel_j0",
    "T x",
    _FAR.format(n=0)
    + """
  T far = amplitude * (p * (c + s) - q * (s - c));
  return a <= 8.0F ? tg_j0_near_S(near_t) : far;
""",
)
_same(
    "bessel_j1",
    "T x",
    _FAR.format(n=1)
    + """
  T far = amplitude * (p * (s - c) + q * (s + c));
  far = x < 0.0F ? -far : far;
  return a <= 8.0F ? x * tg_j1_near_S(near_t) : far;
""",
)
_Y_SPECIAL = """
  T y = x <= 8.0F ? near : far;
  y = x == 0.0F ? -INFINITY : y;
  return x < 0.0F ? NAN : y;
"""
_same(
    "bessel_y0",
    "T x",
    _FAR.format(n=0)
    + """
  T near = tg_y0_near_S(near_t) + 0.63661977236758134F * tg_log_S(near_a) * tg_j0_near_S(near_t);
  T far = amplitude * (p * (s - c) + q * (s + c));
"""
    + _Y_SPECIAL,
)
_same(
    "bessel_y1",
    "T x",
    _FAR.format(n=1)
    + """
  T near = near_a * tg_y1_near_S(near_t);
  near += 0.63661977236758134F * (tg_log_S(near_a) * near_a * tg_j1_near_S(near_t) - 1.0F / near_a);
  T far = amplitude * (q * (s - c) - p * (s + c));
"""
    + _Y_SPECIAL,
)
_SINC_SERIES = [(-1) ** k / math.factorial(2 * k + 1) for k in range(7)]
_same(
    "spherical_bessel_j0",
    "T x",
    f"""
  T y = tg_abs_S(x) < 0.5F ? {_polynomial("(x * x)", _SINC_SERIES)} : tg_sin_S(x) / x;
  return tg_abs_S(x) == INFINITY ? 0.0F : y;
""",
)
# Left of -3 by amplitude and phase (DLMF 9.7.9), right of 2 by the decaying exponential. The phase is far larger than
# its last digit's worth: it is computed in two words.
_same(
    "airy_ai",
    "T x",
    """
  T a = tg_abs_S(x);
  T far = a < 2.0F ? 2.0F : a;
  T root = sqrt(far), quarter = sqrt(root);
  T root_low = fma(-root, root, far) / (2.0F * root);
  T cube = far * root;
  T cube_low = fma(far, root, -cube) + far * root_low;
  T zeta = cube / 1.5F;
  T zeta_low = (fma(-1.5F, zeta, cube) + cube_low) / 1.5F;
  T near = tg_airy_near_S(0.4F * (x < -3.0F ? -3.0F : x > 2.0F ? 2.0F : x) + 0.2F);
  T right_t = 3.7712361663282534F / zeta - 1.0F;
  T right = tg_airy_right_S(right_t) * tg_exp_S(-zeta) * (1.0F - zeta_low) * 0.28209479177387814F / quarter;
  right = tg_exp_S(-zeta) == 0.0F ? 0.0F : right;
  T ratio = 3.4641016151377544F / (zeta < 3.4641016151377544F ? 3.4641016151377544F : zeta);
  T left_t = 2.0F * ratio * ratio - 1.0F;
  T s0 = tg_sin_S(zeta), c0 = tg_cos_S(zeta), s1 = tg_sin_S(zeta_low), c1 = tg_cos_S(zeta_low);
  T s = s0 * c1 + c0 * s1, c = c0 * c1 - s0 * s1;
  T left = tg_airy_p_S(left_t) * (s + c) - tg_airy_q_S(left_t) / zeta * (c - s);
  left *= 0.39894228040143268F / quarter;
  T y = x > 2.0F ? right : near;
  y = x < -3.0F ? left : y;
  return a == INFINITY ? NAN : y;
""",
)

# Error function and normal distribution ------------------------------------------------------------------------------

# exp(x^2) with the square in two words
_same(
    "erfcx",
    "T x",
    """
  T a = tg_abs_S(x);
  T y = tg_erfcx_right_S(1.0F - 7.5F / (a + 3.75F)) / (1.0F + 2.0F * a);
  T b = a > 30.0F ? 30.0F : a;
  T square = b * b;
  T e = tg_exp_S(square) * (1.0F + fma(b, b, -square));
  return x < 0.0F ? 2.0F * e - y : y;
""",
)
_same(
    "log_ndtr",
    "T x",
    """
  T t = x * 0.70710678118654752F;
  T left = tg_log_S(0.5F * tg_erfcx_S(-t)) - t * t;
  return x < -1.0F ? left : tg_log1p_S(-0.5F * tg_erfc_S(t));
""",
)
# Wichura, "Algorithm AS 241: the percentage points of the normal distribution", Applied Statistics 37 (1988), PPND16:
# rational functions of 0.425^2 - q^2 for |q| <= 0.425, and of sqrt(-log tail) up to 5 and beyond.
_CENTRE = (
    (
        3.3871328727963666080e0,
        1.3314166789178437745e2,
        1.9715909503065514427e3,
        1.3731693765509461125e4,
        4.5921953931549871457e4,
        6.7265770927008700853e4,
        3.3430575583588128105e4,
        2.5090809287301226727e3,
    ),
    (
        1.0,
        4.2313330701600911252e1,
        6.8718700749205790830e2,
        5.3941960214247511077e3,
        2.1213794301586595867e4,
        3.9307895800092710610e4,
        2.8729085735721942674e4,
        5.2264952788528545610e3,
    ),
)
_SHOULDER = (
    (
        1.42343711074968357734e0,
        4.63033784615654529590e0,
        5.76949722146069140550e0,
        3.64784832476320460504e0,
        1.27045825245236838258e0,
        2.41780725177450611770e-1,
        2.27238449892691845833e-2,
        7.74545014278341407640e-4,
    ),
    (
        1.0,
        2.05319162663775882187e0,
        1.67638483018380384940e0,
        6.89767334985100004550e-1,
        1.48103976427480074590e-1,
        1.51986665636164571966e-2,
        5.47593808499534494600e-4,
        1.05075007164441684324e-9,
    ),
)
_TAIL = (
    (
        6.65790464350110377720e0,
        5.46378491116411436990e0,
        1.78482653991729133580e0,
        2.96560571828504891230e-1,
        2.65321895265761230930e-2,
        1.24266094738807843860e-3,
        2.71155556874348757815e-5,
        2.01033439929228813265e-7,
    ),
    (
        1.0,
        5.99832206555887937690e-1,
        1.36929880922735805310e-1,
        1.48753612908506148525e-2,
        7.86869131145613259100e-4,
        1.84631831751005468180e-5,
        1.42151175831644588870e-7,
        2.04426310338993978564e-15,
    ),
)


def _ratio(x: str, coefficients: tuple[tuple[float, ...], tuple[float, ...]]) -> str:
    return f"{_polynomial(x, coefficients[0])} / ({_polynomial(x, coefficients[1])})"


# The normal distribution's quantile at 1/2 + q; `tail` is the probability of the nearer tail.
_same(
    "normal_quantile",
    "T q, T tail",
    f"""
  T square = 0.180625F - q * q;
  T r = sqrt(-tg_log_S(tail));
  T shoulder = r - 1.6F, far = r - 5.0F;
  T outer = r <= 5.0F ? {_ratio("shoulder", _SHOULDER)} : {_ratio("far", _TAIL)};
  outer = tail == 0.0F ? INFINITY : outer;
  return tg_abs_S(q) <= 0.425F ? q * ({_ratio("square", _CENTRE)}) : tg_copysign_S(outer, q);
""",
)
_same(
    "ndtri",
    "T p",
    """
  T y = tg_normal_quantile_S(p - 0.5F, p < 0.5F ? p : 1.0F - p);
  return p >= 0.0F && p <= 1.0F ? y : NAN;
""",
)
_same(
    "erfinv",
    "T x",
    """
  T a = tg_abs_S(x);
  T y = tg_normal_quantile_S(0.5F * x, 0.5F * (1.0F - a)) * 0.70710678118654752F;
  return a <= 1.0F ? y : NAN;
""",
)

# Gamma function ------------------------------------------------------------------------------------------------------

# B_2, B_4, ... (DLMF 24.2)
_BERNOULLI_NUMBERS = (
    *(1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510, 43867 / 798, -174611 / 330),
    *(854513 / 138, -236364091 / 2730),
)
_BERNOULLI = _BERNOULLI_NUMBERS[:7]
# The recurrence up to 10 and more, there the asymptotic series (DLMF 5.15.8); below 1/2 by reflection (5.15.6).
_same(
    "trigamma",
    "T x",
    f"""
  T y = x < 0.5F ? 1.0F - x : x;
  T sum = 0.0F;
  for (int k = 0; k < 10; ++k) {{
    sum += 1.0F / (y * y);
    y += 1.0F;
  }}
  T w = 1.0F / y;
  T s = w * w;
  sum += w + 0.5F * s + w * s * ({_polynomial("s", _BERNOULLI)});
  T sine = tg_sin_S(3.14159265358979324F * (x - rint(x)));
  return x < 0.5F ? 9.86960440108935862F / (sine * sine) - sum : sum;
""",
)
# B_2k / (2 k)!
_EULER_MACLAURIN = [b / math.factorial(2 * k) for k, b in enumerate(_BERNOULLI_NUMBERS, 1)]
# sum of (q + k)^-x for q > 0: nine terms, and the rest by the Euler-Maclaurin formula (DLMF 25.11.7).
_same(
    "zeta_right",
    "T x, T q",
    f"""
  const T bernoulli[12] = {{ {", ".join(f"{b!r}F" for b in _EULER_MACLAURIN)} }};
  T sum = tg_pow_S(q, -x);
  T b = 0.0F;
  for (int k = 0; k < 9; ++k) {{
    q += 1.0F;
    b = tg_pow_S(q, -x);
    sum += b;
  }}
  if (b < sum * (sizeof(T) == 8 ? 1e-17F : 1e-9F)) return sum;
  sum += b * q / (x - 1.0F) - 0.5F * b;
  T term = b * x / q;
  for (int k = 0; k < 12; ++k) {{
    T change = term * bernoulli[k];
    sum += change;
    if (tg_abs_S(change) < sum * (sizeof(T) == 8 ? 1e-17F : 1e-9F)) break;
    term *= (x + (2 * k + 1)) / q * ((x + (2 * k + 2)) / q);
  }}
  return sum;
""",
)
# Below 0 only integer powers are defined. There the terms left of the pole, from q up to -d, are the difference of two
# sums on the right.
_same(
    "zeta",
    "T x, T q",
    """
  if (x == 1.0F) return INFINITY;
  if (x < 1.0F) return NAN;
  if (!(q <= 0.0F)) return tg_zeta_right_S(x, q);
  T below = floor(q);
  if (q == below) return INFINITY;
  if (x != floor(x)) return NAN;
  T left = tg_zeta_right_S(x, 1.0F + below - q) - tg_zeta_right_S(x, 1.0F - q);
  T sign = 2.0F * floor(0.5F * x) == x ? 1.0F : -1.0F;
  return tg_zeta_right_S(x, q - below) + sign * left;
""",
)
# Sums of both signs cancel: as on torch's CPU they are kept in double precision, where the device has it.
HELPERS["tg_zeta_f32"] = f"""\
#ifdef HAS_F64
TG_FUNCTION float tg_zeta_f32(float x, float q) {{
  return q > 0.0f && x > 1.0f ? tg_zeta_right_f32(x, q) : (float)tg_zeta_f64(x, q);
}}
#else
{HELPERS["tg_zeta_f32"]}#endif
"""

# Incomplete gamma functions ------------------------------------------------------------------------------------------

# The regions of the methods are those of Maddock et al., "Incomplete Gamma Functions" (Boost), which torch's CPU uses.

# log(1 + m) - m, near 0 by the series of the inverse hyperbolic tangent of m / (2 + m)
_same(
    "log1p_minus",
    "T m",
    f"""
  T s = m / (2.0F + m), z = s * s;
  T near = 2.0F * s * z * ({_polynomial("z", [1 / (2 * k + 3) for k in range(13)])}) - m * s;
  return tg_abs_S(m) < 0.35F ? near : tg_log1p_S(m) - m;
""",
)
# log(gamma(a) / (sqrt(2 pi / a) (a / e)^a)) for a >= 10 (DLMF 5.11.1)
_same(
    "stirling_rest",
    "T a",
    f"""
  T w = 1.0F / a;
  return w * ({_polynomial("(w * w)", [b / (2 * k * (2 * k - 1)) for k, b in enumerate(_BERNOULLI, 1)])});
""",
)
# x^a exp(-x) / gamma(a)
_same(
    "gamma_density",
    "T a, T x",
    """
  if (!(a < 10.0F)) {
    T m = (x - a) / a;
    T exponent = m < -0.5F ? tg_log_S(x / a) - m : tg_log1p_minus_S(m);
    return 0.39894228040143268F * sqrt(a) * tg_exp_S(a * exponent - tg_stirling_rest_S(a));
  }
  if (x > 1000.0F) return 0.0F;
  T rising = 1.0F;
  for (int k = 0; k < 10; ++k) rising *= a + k;
  T b = a + 10.0F;
  T gamma_b = 2.50662827463100050F / sqrt(b) * tg_pow_S(b, b) * tg_exp_S(tg_stirling_rest_S(b) - b);
  return tg_pow_S(x, a) * tg_exp_S(-x) * (rising / gamma_b);
""",
)
# DLMF 8.11.4
_same(
    "igamma_series",
    "T a, T x",
    """
  T density = tg_gamma_density_S(a, x);
  if (density == 0.0F) return 0.0F;
  T term = 1.0F, sum = 1.0F;
  for (int n = 1; n < 2000 && term > sum * (sizeof(T) == 8 ? 1e-17F : 1e-9F); ++n) {
    term *= x / (a + n);
    sum += term;
  }
  return sum * density / a;
""",
)
# DLMF 8.7.3, without cancellation for small x
_same(
    "igammac_series",
    "T a, T x",
    """
  T factor = 1.0F, sum = 0.0F, term = 1.0F;
  for (int n = 1; n < 2000 && tg_abs_S(term) > tg_abs_S(sum) * (sizeof(T) == 8 ? 1e-17F : 1e-9F); ++n) {
    factor *= -x / n;
    term = factor / (a + n);
    sum += term;
  }
  T power = a * tg_log_S(x);
  return -tg_expm1_S(power - tg_lgamma_S(1.0F + a)) - tg_exp_S(power - tg_lgamma_S(a)) * sum;
""",
)
# DLMF 8.9.2 by the modified Lentz algorithm (Thompson and Barnett, J. Comput. Phys. 64, 1986)
_same(
    "igammac_fraction",
    "T a, T x",
    """
  T density = tg_gamma_density_S(a, x);
  if (density == 0.0F) return 0.0F;
  T b = x + 1.0F - a, c = 1e30F, d = 1.0F / b, y = d;
  for (int n = 1; n < 2000; ++n) {
    T numerator = n * (a - n);
    b += 2.0F;
    d = fma(numerator, d, b);
    d = 1.0F / (tg_abs_S(d) < 1e-30F ? 1e-30F : d);
    c = b + numerator / c;
    c = tg_abs_S(c) < 1e-30F ? 1e-30F : c;
    T change = c * d;
    y *= change;
    if (tg_abs_S(change - 1.0F) < (sizeof(T) == 8 ? 2e-16F : 1e-7F)) break;
  }
  return y * density;
""",
)


def _temme(smallest: float) -> str:
    """sum of c_k(eta) / a^k (DLMF 8.12.7) with the terms that count where the expansion is used."""
    rows = []
    for k, row in enumerate(TEMME):
        kept = list(row)
        while kept and abs(kept[-1]) * 0.345 ** (len(kept) - 1) * 20.0**-k < smallest:
            kept.pop()
        rows.append(f"({_polynomial('eta', kept)})" if kept else "0.0F")
    *rest, text = rows
    for row_text in reversed(rest):
        text = f"fma({text}, w, {row_text})"
    return text


for _ctype, _suffix, _literal, _smallest in _PRECISIONS:
    HELPERS[f"tg_temme_{_suffix}"] = in_both_precisions("temme", "T eta, T w", f" return {_temme(_smallest)}; ")[
        f"tg_temme_{_suffix}"
    ]
# Temme's uniform expansion for large a and x near a (DLMF 8.12.3 with sign = -1, and 8.12.4 with sign = 1)
_same(
    "igamma_uniform",
    "T a, T x, T sign",
    """
  T m = (x - a) / a;
  T rest = tg_log1p_minus_S(m);
  T eta = tg_copysign_S(sqrt(-2.0F * rest), m);
  T gauss = tg_exp_S(a * rest) * 0.39894228040143268F / sqrt(a);
  return 0.5F * tg_erfc_S(sign * eta * sqrt(0.5F * a)) + sign * gauss * tg_temme_S(eta, 1.0F / a);
""",
)
_NEAR = "(a > 20.0F && a < 200.0F && gap < 0.3F) || (a > 200.0F && gap < 4.5F / sqrt(a))"
_same(
    "igammac",
    "T a, T x",
    f"""
  if (x < 0.0F || a < 0.0F) return NAN;
  if (a == 0.0F) return x > 0.0F ? 0.0F : NAN;
  if (x == 0.0F) return 1.0F;
  if (a == INFINITY) return x == INFINITY ? NAN : 1.0F;
  if (x == INFINITY) return 0.0F;
  T gap = tg_abs_S(x - a) / a;
  if ({_NEAR}) return tg_igamma_uniform_S(a, x, 1.0F);
  if (x > 1.1F && x >= a) return tg_igammac_fraction_S(a, x);
  T bound = x > 1.1F ? x : x > 0.5F ? 1.1F * x : -0.4F / tg_log_S(x);
  return bound < a ? 1.0F - tg_igamma_series_S(a, x) : tg_igammac_series_S(a, x);
""",
)
_same(
    "igamma",
    "T a, T x",
    f"""
  if (x < 0.0F || a < 0.0F) return NAN;
  if (a == 0.0F) return x > 0.0F ? 1.0F : NAN;
  if (x == 0.0F) return 0.0F;
  if (a == INFINITY) return x == INFINITY ? NAN : 0.0F;
  if (x == INFINITY) return 1.0F;
  T gap = tg_abs_S(x - a) / a;
  if ({_NEAR}) return tg_igamma_uniform_S(a, x, -1.0F);
  return x > 1.0F && x > a ? 1.0F - tg_igammac_S(a, x) : tg_igamma_series_S(a, x);
""",
)

# Orthogonal polynomials ----------------------------------------------------------------------------------------------

# All by their recurrences in the degree (DLMF 18.9). As on torch's CPU the degree is cut to an integer and a negative
# one gives 0. A kernel must end: degrees of which torch's CPU would compute for minutes give NaN.
_POLYNOMIAL = """
  if (!(degree > -1.0F)) return 0.0F;
  long n = degree > 1e9F ? 1000000000 : (long)degree;
  {special}
  if (n > {limit}) return NAN;
  T p = 1.0F, q = {first};
  if (n == 0) return p;
  for (long k = 1; k < n && q == q; ++k) {{
    T r = {step};
    p = q;
    q = r;
  }}
  return q;
"""
_LIMIT = "(1 << 24)"

# kind: the polynomial of degree 1; the values at y = 1 and, before the sign (-1)^n, at y = -1; the trigonometric form
# (DLMF 18.5.1-4, with cos(angle) = y), which is used between the two.
_CHEBYSHEV = {
    "t": ("y", "1.0F", "1.0F", "tg_cos_S(n * angle)"),
    "u": ("2.0F * y", "(T)(n + 1)", "(T)(n + 1)", "tg_sin_S((n + 1) * angle) / tg_sin_S(angle)"),
    "v": ("2.0F * y - 1.0F", "1.0F", "(T)(2 * n + 1)", "tg_cos_S((n + 0.5F) * angle) / tg_cos_S(0.5F * angle)"),
    "w": ("2.0F * y + 1.0F", "(T)(2 * n + 1)", "1.0F", "tg_sin_S((n + 0.5F) * angle) / tg_sin_S(0.5F * angle)"),
}
for _shifted in ("", "shifted_"):
    for _kind, (_first, _right, _left, _angular) in _CHEBYSHEV.items():
        _special = f"""T y = {"x + x - 1.0F" if _shifted else "x"};
  if (y == 1.0F) return {_right};
  if (y == -1.0F) return (n & 1) != 0 ? -{_left} : {_left};
  if (n > 6 && tg_abs_S(y) < 1.0F) {{
    T angle = tg_acos_S(y);
    return {_angular};
  }}"""
        _same(
            f"{_shifted}chebyshev_polynomial_{_kind}",
            "T x, T degree",
            _POLYNOMIAL.format(special=_special, limit=_LIMIT, first=_first, step="2.0F * y * q - p"),
        )
for _name, _special, _limit, _first, _step in (
    # torch's CPU gives no higher degrees, whose values overflow.
    ("hermite_polynomial_h", "", "(sizeof(T) == 8 ? 512 : 128)", "x + x", "(x + x) * q - (2 * k) * p"),
    ("hermite_polynomial_he", "", "(sizeof(T) == 8 ? 512 : 128)", "x", "x * q - k * p"),
    (
        "laguerre_polynomial_l",
        "if (x == 0.0F) return 1.0F;",
        _LIMIT,
        "1.0F - x",
        "((2 * k + (1.0F - x)) * q - k * p) / (k + 1)",
    ),
    (
        "legendre_polynomial_p",
        "if (tg_abs_S(x) == 1.0F) return x < 0.0F && (n & 1) != 0 ? -1.0F : 1.0F;",
        _LIMIT,
        "x",
        "((2 * k + 1) * x * q - k * p) / (k + 1)",
    ),
):
    _same(_name, "T x, T degree", _POLYNOMIAL.format(special=_special, limit=_limit, first=_first, step=_step))

# Parts of numbers ----------------------------------------------------------------------------------------------------

for _ctype, _suffix in (("float", "f32"), ("double", "f64")):
    HELPERS[f"tg_frexp_mantissa_{_suffix}"] = f"""\
TG_FUNCTION {_ctype} tg_frexp_mantissa_{_suffix}({_ctype} x) {{
  int exponent;
  return x - x == 0 ? frexp(x, &exponent) : x;
}}
"""
    HELPERS[f"tg_frexp_exponent_{_suffix}"] = f"""\
TG_FUNCTION int tg_frexp_exponent_{_suffix}({_ctype} x) {{
  int exponent = 0;
  frexp(x, &exponent);
  return x - x == 0 ? exponent : 0;
}}
"""
    HELPERS[f"tg_nextafter_{_suffix}"] = f"""\
TG_FUNCTION {_ctype} tg_nextafter_{_suffix}({_ctype} x, {_ctype} y) {{ return nextafter(x, y); }}
"""
# The 16-bit types live in float32: bfloat16 is its upper half; float16 steps by 2^-11 of the power of two above.
HELPERS["tg_nextafter_bf16"] = """\
TG_FUNCTION float tg_nextafter_bf16(float x, float y) {
  int bits = AS_int(x);
  int away = (x < y) == (bits >= 0) ? 0x10000 : -0x10000;
  float next = x == 0.0f ? tg_copysign_f32(AS_float(0x10000), y) : AS_float(bits + away);
  return x != x || y != y ? NAN : x == y ? y : next;
}
"""
HELPERS["tg_nextafter_f16"] = """\
TG_FUNCTION float tg_nextafter_f16(float x, float y) {
  float a = tg_abs_f32(x);
  int away = (x < y) == (x > 0.0f);
  int exponent = AS_int(a) >> 23;
  exponent -= !away && (AS_int(a) & 0x7fffff) == 0;
  exponent = exponent < 113 ? 113 : exponent;
  float unit = AS_float((exponent - 10) << 23);
  float next = x == 0.0f ? tg_copysign_f32(unit, y) : tg_copysign_f32(away ? a + unit : a - unit, x);
  next = a == INFINITY ? tg_copysign_f32(65504.0f, x) : next;
  return x != x || y != y ? NAN : x == y ? y : next;
}
"""
# The largest finite number of each element type, by the type's own name
for _suffix, _text in (
    ("f64", "1.79769313486231570815e308"),
    ("f32", "3.40282346638528859812e38f"),
    ("f16", "65504.0f"),
    ("bf16", "3.38953138925153547590e38f"),
    ("c64", "3.40282346638528859812e38f"),
    ("c128", "1.79769313486231570815e308"),
):
    HELPERS[f"tg_largest_{_suffix}"] = f"#define tg_largest_{_suffix}() {_text}\n"
