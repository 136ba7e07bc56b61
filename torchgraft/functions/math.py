"""Mathematical functions for kernels, written so that compilers vectorise the loops that call them.

Device compilers for CPUs have good scalar ``exp`` and ``erf`` but few versions that a loop vectoriser can use, and one
call that stays scalar makes the whole loop scalar. The functions here are therefore free of branches, tables and calls:
rounding by adding a large constant, selections by ``?:``, polynomials by ``fma``. GPUs (and CPU compilers with a vector
library of their own) have fast builtins, so there every function is its builtin; ``TG_OWN_MATH`` says which it is.

Every text defines the function it is named for, ``tg_<function>_<compute type>``. Texts find the texts they need by the
names that occur in them, so a kernel just calls ``tg_erf_f32(x)`` and the dialect puts in what is needed.
"""

from __future__ import annotations

import re

HELPERS: dict[str, str] = {}
"""Name -> text. A text may use other names; the dialect puts the texts a kernel needs in front of it, in order."""


def _define(name: str, text: str) -> None:
    HELPERS[name] = text.strip() + "\n"


# Functions whose builtins are not as good where the compiler goes by way of SPIR, as Intel's for CPUs does (2026.2).
# Its library leaves vectors for each number that it finds rare, so that log1p of normal random numbers takes seven
# times as long as of positive ones; and the compiler crashes over `trunc` of a quotient that is rounded to float16.
# Over others of our texts it crashes, too: asin.
_OWN_BEHIND_SPIR = frozenset("acosh atanh expm1 lgamma log1p trunc".split())


def own_or_builtin(name: str, head: str, body: str, builtin: str) -> str:
    """The text of a function: by `body` where loops are vectorised by the compiler, by `builtin` elsewhere."""
    where = "defined(TG_OWN_MATH)" + " || defined(__SPIR__)" * (name in _OWN_BEHIND_SPIR)
    return f"#if {where}\n{head} {{{body}}}\n#else\n{head} {{ return {builtin}; }}\n#endif\n"


def _own(name: str, params: str, body: str, builtin: str) -> None:
    """Defines a float32 function; see `own_or_builtin`."""
    _define(f"tg_{name}_f32", own_or_builtin(name, f"TG_FUNCTION float tg_{name}_f32({params})", body, builtin))


def in_both_precisions(name: str, params: str, body: str) -> dict[str, str]:
    """The texts of a function that is the same in float32 and float64, by name.

    In `params` and `body`, T stands for the C type, S for the suffix of the type, and a constant such as 0.5F gets its
    type.
    """
    texts = {}
    for ctype, suffix in (("float", "f32"), ("double", "f64")):
        text = re.sub(r"\bT\b", ctype, f"TG_FUNCTION T tg_{name}_{suffix}({params}) {{{body}}}\n").replace(
            "_S(", f"_{suffix}("
        )
        texts[f"tg_{name}_{suffix}"] = re.sub(r"(?<=[\d.])F\b", "f" if suffix == "f32" else "", text)
    return texts


def _same(name: str, params: str, body: str) -> None:
    """Defines a function whose text is the same in float32 and float64; see `in_both_precisions`."""
    HELPERS.update(in_both_precisions(name, params, body))


_define(
    "TG_OWN_MATH",
    """
#if defined(__x86_64__) || defined(__aarch64__) || defined(__riscv) || defined(__powerpc64__)
#define TG_OWN_MATH
#endif""",
)

# Bits --------------------------------------------------------------------------------------------------------------

_define(
    "tg_copysign_f32",
    """
TG_FUNCTION float tg_copysign_f32(float magnitude, float sign) {
  return AS_float((AS_uint(magnitude) & 0x7fffffffu) | (AS_uint(sign) & 0x80000000u));
}""",
)
# By bits, too: Intel's compiler (2026.2) crashes where what a `copysign` takes is chosen between roots and others.
_define(
    "tg_copysign_f64",
    """
TG_FUNCTION double tg_copysign_f64(double magnitude, double sign) {
  return AS_double((AS_ulong(magnitude) & 0x7fffffffffffffffUL) | (AS_ulong(sign) & 0x8000000000000000UL));
}""",
)
_define("tg_abs_f32", "TG_FUNCTION float tg_abs_f32(float x) { return AS_float(AS_uint(x) & 0x7fffffffu); }")
_define("tg_abs_f64", "TG_FUNCTION double tg_abs_f64(double x) { return fabs(x); }")

# Whole numbers -----------------------------------------------------------------------------------------------------

# A sum with 2^23, or 2^52, has no bits behind the point; from there on all numbers are whole.
_WHOLE = {
    "rint": "T a = tg_abs_S(x); return tg_copysign_S(a < LIMIT ? (a + LIMIT) - LIMIT : a, x);",
    "trunc": "T a = tg_abs_S(x); T r = tg_rint_S(a); return tg_copysign_S(r > a ? r - 1.0F : r, x);",
    "floor": "T r = tg_rint_S(x); return r > x ? r - 1.0F : r;",
    "ceil": "T r = tg_rint_S(x); return tg_copysign_S(r < x ? r + 1.0F : r, x);",
}
_LIMITS = {"f32": "8388608.0f", "f64": "4503599627370496.0"}
for _name, _body in _WHOLE.items():
    for _helper, _text in in_both_precisions(_name, "T x", _body).items():
        _head, _, _rest = _text.rstrip("\n").removesuffix("}").partition(" {")
        _rest = f" {_rest.replace('LIMIT', _LIMITS[_helper[-3:]])} "
        _define(_helper, own_or_builtin(_name, _head, _rest, f"{_name}(x)"))

# Exponentials ------------------------------------------------------------------------------------------------------

# Rounding to an integer n: in x + 1.5 * 2^23 the lowest bits are n, and shifted left by 23 all but n is gone, so these
# bits serve as n itself. The power of two is applied in two halves, so that subnormal results are rounded once.
_define(
    "tg_exp2_parts_f32",
    """
TG_FUNCTION float tg_exp2_parts_f32(float p, int n) {
  int half_n = n >> 1;
  return p * AS_float((half_n << 23) + 0x3f800000) * AS_float(((n - half_n) << 23) + 0x3f800000);
}""",
)
# exp(x + low) 2^scale for a small correction `low` and a scale of 0 or less. What is 0 is no product: a processor may
# take a hundred times as long over one that underflows, and softmax asks for that of -infinity, a masked score.
_define(
    "tg_exp_scaled_f32",
    """
TG_FUNCTION float tg_exp_scaled_f32(float x, float low, int scale) {
  bool none = x < -105.0f;
  x = none ? 0.0f : x > 90.0f ? 90.0f : x;
  float shifted = fma(x, 1.44269504f, 12582912.0f);
  float n = shifted - 12582912.0f;
  float r = fma(n, -0.693359375f, x);
  r = fma(n, 2.12194440e-4f, r) + low;
  float p = 0.00139405322f;
  p = fma(p, r, 0.00836883113f);
  p = fma(p, r, 0.0416664034f);
  p = fma(p, r, 0.166665196f);
  p = fma(p, r, 0.5f);
  p = fma(p, r * r, r) + 1.0f;
  return none ? 0.0f : tg_exp2_parts_f32(p, AS_int(shifted) + scale);
}""",
)
_own("exp", "float x", " return tg_exp_scaled_f32(x, 0.0f, 0); ", "exp(x)")
# exp2(x + low)
_define(
    "tg_exp2_sum_f32",
    """
TG_FUNCTION float tg_exp2_sum_f32(float x, float low) {
  x = x > 129.0f ? 129.0f : x;
  x = x < -151.0f ? -151.0f : x;
  float shifted = x + 12582912.0f;
  float n = shifted - 12582912.0f;
  float r = (x - n) + low;
  float p = 1.46734792e-05f;
  p = fma(p, r, 0.000154518493f);
  p = fma(p, r, 0.00133366592f);
  p = fma(p, r, 0.00961808767f);
  p = fma(p, r, 0.0555040613f);
  p = fma(p, r, 0.240226507f);
  p = fma(p, r, 0.693147182f);
  p = fma(p, r, 1.0f);
  return tg_exp2_parts_f32(p, AS_int(shifted));
}""",
)
_own("exp2", "float x", " return tg_exp2_sum_f32(x, 0.0f); ", "exp2(x)")
_own(
    "expm1",
    "float x",
    """
  float a = x > 89.0f ? 89.0f : x;
  a = a < -18.0f ? -18.0f : a;
  float shifted = fma(a, 1.44269504f, 12582912.0f);
  float n = shifted - 12582912.0f;
  float r = fma(n, -0.693359375f, a);
  r = fma(n, 2.12194440e-4f, r);
  float p = 0.000199442555f;
  p = fma(p, r, 0.00139326858f);
  p = fma(p, r, 0.00833320804f);
  p = fma(p, r, 0.0416664891f);
  p = fma(p, r, 0.166666672f);
  p = fma(p, r, 0.5f);
  p = fma(p, r * r, r);
  float s = AS_float((AS_int(shifted) << 23) + 0x3f000000);
  float y = fma(p, s, s - 0.5f) * 2.0f;
  return x == 0.0f ? x : y;
""",
    "expm1(x)",
)

# Logarithms --------------------------------------------------------------------------------------------------------

# The head of every logarithm: x = 2^e (1 + f), f in [sqrt(1/2) - 1, sqrt(2) - 1]; subnormal numbers are scaled first.
_LOG_SPLIT = """
  float scaled = x < 1.17549435e-38f ? x * 8388608.0f : x;
  int bits = AS_int(scaled);
  int exponent = (bits - 0x3f3504f3) >> 23;
  float f = AS_float(bits - (exponent << 23)) - 1.0f;
  float e = (float)exponent - (x < 1.17549435e-38f ? 23.0f : 0.0f);
"""
# y = log(1 + f) - f
_LOG_POLYNOMIAL = """
  float p = 0.0691561103f;
  p = fma(p, f, -0.117893696f);
  p = fma(p, f, 0.118726194f);
  p = fma(p, f, -0.12384402f);
  p = fma(p, f, 0.142187163f);
  p = fma(p, f, -0.166692495f);
  p = fma(p, f, 0.200022236f);
  p = fma(p, f, -0.249999866f);
  p = fma(p, f, 0.333333105f);
  float ff = f * f;
  float y = fma(p * f, ff, -0.5f * ff);
"""
_LOG_SPECIAL = """
  y = x > 3.40282347e38f ? x : y;
  y = x == 0.0f ? -INFINITY : y;
  return x >= 0.0f ? y : NAN;
"""
_own(
    "log",
    "float x",
    _LOG_SPLIT
    + _LOG_POLYNOMIAL
    + """
  y = fma(e, -2.12194440e-4f, y);
  y = fma(e, 0.693359375f, f + y);
"""
    + _LOG_SPECIAL,
    "log(x)",
)
_own(
    "log2",
    "float x",
    _LOG_SPLIT
    + _LOG_POLYNOMIAL
    + """
  y = (fma(y, 0.44269504f, f * 0.44269504f) + y) + f + e;
"""
    + _LOG_SPECIAL,
    "log2(x)",
)
_own(
    "log10",
    "float x",
    _LOG_SPLIT
    + _LOG_POLYNOMIAL
    + """
  float z = (f + y) * 7.00731903e-4f;
  z = fma(e, 2.48745663e-4f, z);
  z = fma(y, 0.43359375f, z);
  z = fma(f, 0.43359375f, z);
  y = fma(e, 0.30078125f, z);
"""
    + _LOG_SPECIAL,
    "log10(x)",
)
# As log of u = 1 + x, with what the addition lost put back into f.
_own(
    "log1p",
    "float x",
    """
  float u = 1.0f + x;
  float lost = x >= 1.0f ? 1.0f - (u - x) : x - (u - 1.0f);
  int bits = AS_int(u);
  int exponent = (bits - 0x3f3504f3) >> 23;
  float e = (float)exponent;
  float f = AS_float(bits - (exponent << 23)) - 1.0f;
  f = fma(lost, AS_float((127 - (exponent > 126 ? 126 : exponent)) << 23), f);
"""
    + _LOG_POLYNOMIAL
    + """
  y = fma(e, -2.12194440e-4f, y);
  y = fma(e, 0.693359375f, f + y);
  y = x > 3.40282347e38f ? x : y;
  y = x == -1.0f ? -INFINITY : y;
  y = x >= -1.0f ? y : NAN;
  return x == 0.0f ? x : y;
""",
    "log1p(x)",
)

# Error function ----------------------------------------------------------------------------------------------------

# for |x| <= 1
_define(
    "tg_erf_near_f32",
    """
TG_FUNCTION float tg_erf_near_f32(float x) {
  float s = x * x;
  float p = 7.92036808e-05f;
  p = fma(p, s, -0.000803076138f);
  p = fma(p, s, 0.00519073382f);
  p = fma(p, s, -0.026855126f);
  p = fma(p, s, 0.112836182f);
  p = fma(p, s, -0.376126289f);
  p = fma(p, s, 0.128379166f);
  return fma(x, p, x);
}""",
)
_own(
    "erf",
    "float x",
    """
  float t = AS_float(AS_uint(x) & 0x7fffffffu);
  float near = tg_erf_near_f32(x);
  float a = t > 4.0f ? 4.0f : t;
  float q = 1.3842543e-05f;
  q = fma(q, a, -0.000349308451f);
  q = fma(q, a, 0.0037518777f);
  q = fma(q, a, -0.0239973273f);
  q = fma(q, a, 0.106514908f);
  q = fma(q, a, 0.634979963f);
  q = fma(q, a, 1.12869155f);
  float far = 1.0f - tg_exp_small_f32(-q * a);
  return t < 1.0f ? near : tg_copysign_f32(far, x);
""",
    "erf(x)",
)
# exp for arguments that are known to lie in [-80, 80]
_define(
    "tg_exp_small_f32",
    """
TG_FUNCTION float tg_exp_small_f32(float x) {
  float shifted = fma(x, 1.44269504f, 12582912.0f);
  float n = shifted - 12582912.0f;
  float r = fma(n, -0.693359375f, x);
  r = fma(n, 2.12194440e-4f, r);
  float p = 0.00139405322f;
  p = fma(p, r, 0.00836883113f);
  p = fma(p, r, 0.0416664034f);
  p = fma(p, r, 0.166665196f);
  p = fma(p, r, 0.5f);
  p = fma(p, r * r, r) + 1.0f;
  return p * AS_float((AS_int(shifted) << 23) + 0x3f800000);
}""",
)
# exp for what a maximum was taken from, so that it lies beneath 80: 0 in place of what would be subnormal. A processor
# may take a hundred times as long over a product that underflows, and with -infinity, a masked score, one would.
_define(
    "tg_exp_below_f32",
    """
TG_FUNCTION float tg_exp_below_f32(float x) {
  float bounded = x > 80.0f ? 80.0f : x;
  float e = tg_exp_small_f32(bounded < -87.0f ? -87.0f : bounded);
  return x < -87.0f ? 0.0f : e;
}""",
)
_define("tg_exp_below_f64", "TG_FUNCTION double tg_exp_below_f64(double x) { return tg_exp_f64(x); }")
# exp(-x^2) P(q) / (1 + 2 x), with q = (x - 2) / (x + 2); x^2 in two words.
_own(
    "erfc",
    "float x",
    """
  float t = AS_float(AS_uint(x) & 0x7fffffffu);
  float a = t > 10.2f ? 10.2f : t;
  float d = a + 2.0f;
  float q = (a - 2.0f) / d;
  float p = 3.26679001e-05f;
  p = fma(p, q, -0.000358502672f);
  p = fma(p, q, -0.00126248214f);
  p = fma(p, q, 0.00126638834f);
  p = fma(p, q, 0.0086453557f);
  p = fma(p, q, -0.00804139581f);
  p = fma(p, q, -0.0542078242f);
  p = fma(p, q, 0.164052516f);
  p = fma(p, q, -0.166030928f);
  p = fma(p, q, -0.0927638561f);
  p = fma(p, q, 1.27697837f);
  float w = fma(2.0f, a, 1.0f);
  float ratio = p / w;
  ratio = fma(fma(-ratio, w, p), 1.0f / w, ratio);
  float square = a * a;
  float e = tg_exp_scaled_f32(-square, -fma(a, a, -square), 0);
  float y = e * ratio;
  y = x < 0.0f ? 2.0f - y : y;
  y = t < 0.45f ? 1.0f - tg_erf_near_f32(x) : y;
  return x != x ? x : y;
""",
    "erfc(x)",
)

# Hyperbolic functions ----------------------------------------------------------------------------------------------

_own(
    "tanh",
    "float x",
    """
  float t = AS_float(AS_uint(x) & 0x7fffffffu);
  float s = x * x;
  float p = -0.00590017904f;
  p = fma(p, s, 0.0208003167f);
  p = fma(p, s, -0.0537851229f);
  p = fma(p, s, 0.133319393f);
  p = fma(p, s, -0.333332986f);
  float near = fma(x * s, p, x);
  float a = t > 10.0f ? 10.0f : t;
  float far = 1.0f - 2.0f / (tg_exp_small_f32(2.0f * a) + 1.0f);
  return t < 0.6f ? near : tg_copysign_f32(far, x);
""",
    "tanh(x)",
)
_own(
    "sinh",
    "float x",
    """
  float t = AS_float(AS_uint(x) & 0x7fffffffu);
  float m = tg_expm1_f32(t > 20.0f ? 20.0f : t);
  float near = 0.5f * (m + m / (m + 1.0f));
  return tg_copysign_f32(t > 20.0f ? tg_exp_scaled_f32(t, 0.0f, -1) : near, x);
""",
    "sinh(x)",
)
_own(
    "cosh",
    "float x",
    """
  float t = AS_float(AS_uint(x) & 0x7fffffffu);
  float e = tg_exp_small_f32(t > 20.0f ? 20.0f : t);
  float near = fma(0.5f, e, 0.5f / e);
  return t > 20.0f ? tg_exp_scaled_f32(t, 0.0f, -1) : near;
""",
    "cosh(x)",
)
_own(
    "asinh",
    "float x",
    """
  float t = AS_float(AS_uint(x) & 0x7fffffffu);
  float a = t > 1e9f ? 1e9f : t;
  float s = a * a;
  float near = tg_log1p_f32(a + s / (1.0f + sqrt(s + 1.0f)));
  float far = tg_log_f32(t) + 0.693147182f;
  return tg_copysign_f32(t > 1e9f ? far : near, x);
""",
    "asinh(x)",
)
_own(
    "acosh",
    "float x",
    """
  float t = x - 1.0f;
  float a = t > 1e9f ? 1e9f : t;
  float near = tg_log1p_f32(a + sqrt(fma(a, a, 2.0f * a)));
  float y = x > 1e9f ? tg_log_f32(x) + 0.693147182f : near;
  return x < 1.0f ? NAN : y;
""",
    "acosh(x)",
)
_own(
    "atanh",
    "float x",
    """
  float t = AS_float(AS_uint(x) & 0x7fffffffu);
  return tg_copysign_f32(0.5f * tg_log1p_f32(2.0f * t / (1.0f - t)), x) + (t > 1.0f ? NAN : 0.0f);
""",
    "atanh(x)",
)

# Trigonometric functions -------------------------------------------------------------------------------------------

# r with |r| <= pi/4 and n modulo 4 so that x = (pi/2) n + r. In float64 by x (2/pi), with 2/pi in two words. From
# |x| = 2^51 on x is a multiple of 2^28 (then of 2^54 and 2^80), so that multiples of 4 may be left away of 2^28 (2/pi),
# which is Payne and Hanek's observation ("Radian reduction for trigonometric functions", SIGNUM 18, 1983) with as many
# words as a float needs. Without float64 three words of pi/2 serve up to |x| = 10^5.
#
# Up to |x| = 10^4 these words are as good as float64: x - n times the first is exact, since both are multiples of 2^-23
# and what is left is less than 1. They take half the time.
_define(
    "TG_REDUCE_NEAR",
    """
#define TG_REDUCE_NEAR(x, r, n) \\
  float shifted = fma(x, 0.636619747f, 12582912.0f); \\
  float turns = shifted - 12582912.0f; \\
  float r = fma(turns, -1.57079601f, x); \\
  r = fma(turns, -3.13916473e-07f, r); \\
  r = fma(turns, -5.39030253e-15f, r); \\
  int n = AS_int(shifted);""",
)
_define(
    "TG_REDUCE",
    """
#ifdef HAS_F64
#define TG_REDUCE(x, r, n) \\
  float size = AS_float(AS_uint(x) & 0x7fffffffu); \\
  int far = size >= 0x1p51f, very_far = size >= 0x1p77f, farthest = size >= 0x1p103f; \\
  float unit = farthest ? 0x1p-80f : very_far ? 0x1p-54f : far ? 0x1p-28f : 1.0f; \\
  double high = farthest ? -0.6569525476390906 : very_far ? 1.2910009524680295 \\
                : far ? -1.1058921025544264 : 0.6366197723675814; \\
  double low = farthest ? 4.697763279926451e-17 : very_far ? -3.862804515881076e-17 \\
               : far ? 7.617183603001664e-17 : -3.935735335036497e-17; \\
  double wide_x = x * unit; \\
  double shifted = fma(wide_x, high, 6755399441055744.0); \\
  double turns = shifted - 6755399441055744.0; \\
  double rest = fma(wide_x, low, fma(wide_x, high, -turns)); \\
  float r = (float)(rest * 1.5707963267948966); \\
  int n = (int)AS_long(shifted);
#else
#define TG_REDUCE(x, r, n) \\
  TG_REDUCE_NEAR(x, r, n) \\
  r = r > 1.0f ? 0.0f : r; \\
  r = r < -1.0f ? 0.0f : r;
#endif""",
)
_define(
    "TG_SIN_COS",
    """
#define TG_SIN_COS(r, sine, cosine) \\
  float square = r * r; \\
  float sine = fma(fma(2.83724717e-06f, square, -0.000198534981f), square, 0.00833338033f); \\
  sine = fma(fma(sine, square, -0.166666672f), square * r, r); \\
  float cosine = fma(fma(2.44306684e-05f, square, -0.00138873013f), square, 0.0416666456f); \\
  cosine = fma(cosine, square * square, fma(-0.5f, square, 1.0f));
""",
)
for _name, _reduce in (("", "TG_REDUCE"), ("_near", "TG_REDUCE_NEAR")):
    _own(
        f"sin{_name}",
        "float x",
        f"""
  {_reduce}(x, r, n)
  TG_SIN_COS(r, sine, cosine)
  float y = (n & 1) != 0 ? cosine : sine;
  y = AS_float(AS_uint(y) ^ ((uint)(n & 2) << 30));
  return x == 0.0f ? x : y;
""",
        "sin(x)",
    )
    _own(
        f"cos{_name}",
        "float x",
        f"""
  {_reduce}(x, r, n)
  TG_SIN_COS(r, sine, cosine)
  float y = (n & 1) != 0 ? sine : cosine;
  return AS_float(AS_uint(y) ^ ((uint)((n + 1) & 2) << 30));
""",
        "cos(x)",
    )
NEAR = {"tg_sin_f32": "tg_sin_near_f32", "tg_cos_f32": "tg_cos_near_f32"}
"""Functions -> what is as good for arguments up to `NEAREST`, and quicker."""
NEAREST = "1e4f"
_own(
    "tan",
    "float x",
    """
  TG_REDUCE(x, r, n)
  TG_SIN_COS(r, sine, cosine)
  float y = (n & 1) != 0 ? -cosine / sine : sine / cosine;
  return x == 0.0f ? x : y;
""",
    "tan(x)",
)
_define(
    "tg_asin_core_f32",
    """
TG_FUNCTION float tg_asin_core_f32(float x, float s) {
  float p = 0.0376048014f;
  p = fma(p, s, 0.0143714976f);
  p = fma(p, s, 0.0318268836f);
  p = fma(p, s, 0.0445144363f);
  p = fma(p, s, 0.0750051886f);
  p = fma(p, s, 0.166666597f);
  return fma(p, x * s, x);
}""",
)
_own(
    "asin",
    "float x",
    """
  float t = AS_float(AS_uint(x) & 0x7fffffffu);
  float s = t > 0.5f ? fma(-0.5f, t, 0.5f) : t * t;
  float y = tg_asin_core_f32(t > 0.5f ? sqrt(s) : t, s);
  y = t > 0.5f ? 1.57079637f - fma(2.0f, y, 4.37113883e-8f) : y;
  return tg_copysign_f32(y, x);
""",
    "asin(x)",
)
_own(
    "acos",
    "float x",
    """
  float t = AS_float(AS_uint(x) & 0x7fffffffu);
  float s = t > 0.5f ? fma(-0.5f, t, 0.5f) : t * t;
  float y = tg_asin_core_f32(t > 0.5f ? sqrt(s) : x, s);
  float outer = 2.0f * y;
  outer = x < 0.0f ? 3.14159274f - outer : outer;
  return t > 0.5f ? outer : 1.57079637f - (y - -4.37113883e-8f);
""",
    "acos(x)",
)
# arctangent of y / x for 0 <= y <= x; that of 1 is exact, as is expected of diagonals and of infinities
_define(
    "tg_atan_core_f32",
    """
TG_FUNCTION float tg_atan_core_f32(float a) {
  float s = a * a;
  float p = 0.00114969478f;
  p = fma(p, s, -0.00749891484f);
  p = fma(p, s, 0.0229279809f);
  p = fma(p, s, -0.0451515652f);
  p = fma(p, s, 0.0677484572f);
  p = fma(p, s, -0.0882595032f);
  p = fma(p, s, 0.110622779f);
  p = fma(p, s, -0.142804697f);
  p = fma(p, s, 0.199997216f);
  p = fma(p, s, -0.333333284f);
  return a == 1.0f ? 0.785398185f : fma(p * s, a, a);
}""",
)
_own(
    "atan",
    "float x",
    """
  float t = AS_float(AS_uint(x) & 0x7fffffffu);
  float y = tg_atan_core_f32(t > 1.0f ? 1.0f / t : t);
  y = t > 1.0f ? 1.57079637f - y : y;
  return tg_copysign_f32(y, x);
""",
    "atan(x)",
)
_own(
    "atan2",
    "float y, float x",
    """
  float a = AS_float(AS_uint(x) & 0x7fffffffu);
  float b = AS_float(AS_uint(y) & 0x7fffffffu);
  float low = a < b ? a : b;
  float high = a < b ? b : a;
  float ratio = low / high;
  ratio = high == 0.0f ? 0.0f : ratio;
  ratio = low > 3.40282347e38f ? 1.0f : ratio;
  float r = tg_atan_core_f32(ratio);
  r = b > a ? 1.57079637f - r : r;
  r = AS_int(x) < 0 ? 3.14159274f - r : r;
  r = tg_copysign_f32(r, y);
  return x != x || y != y ? NAN : r;
""",
    "atan2(y, x)",
)

# Powers ------------------------------------------------------------------------------------------------------------

# exp2(y log2(x)), the logarithm in two words: s = (m - 1) / (m + 1) with the rest of the division, its cube with the
# rest of the products, and the first coefficients in two words each.
_own(
    "pow",
    "float x, float y",
    """
  float t = AS_float(AS_uint(x) & 0x7fffffffu);
  float scaled = t < 1.17549435e-38f ? t * 8388608.0f : t;
  int bits = AS_int(scaled);
  int exponent = (bits - 0x3f3504f3) >> 23;
  float m = AS_float(bits - (exponent << 23));
  float e = (float)exponent - (t < 1.17549435e-38f ? 23.0f : 0.0f);
  float u = m - 1.0f;
  float v = m + 1.0f;
  float v_low = m - (v - 1.0f);
  float inverse = 1.0f / v;
  float s = u * inverse;
  float s_low = fma(-s, v_low, fma(-s, v, u)) * inverse;
  float z = s * s;
  float z_low = fma(2.0f * s, s_low, fma(s, s, -z));
  float q = 0.320011616f;
  q = fma(q, z, 0.412205935f);
  q = fma(q, z, 0.577077985f);
  // c = 2 / (3 ln 2) + q z, then s (2 / ln 2 + c z)
  float qz = q * z;
  float c = 0.961796701f + qz;
  float c_low = (0.961796701f - c) + qz - 7.17416027e-9f;
  float cz = c * z;
  float cz_low = fma(c, z, -cz) + fma(c, z_low, c_low * z);
  float w = 2.88539004f + cz;
  float w_low = (2.88539004f - w) + cz + (cz_low + 3.8519265e-8f);
  float h = s * w;
  float h_low = fma(s, w, -h) + fma(s, w_low, s_low * w);
  float l = e + h;
  float l_low = (e - l) + h + h_low;
  l_low = e == 0.0f ? h_low : l_low;
  float product = y * l;
  float product_low = fma(y, l, -product) + y * l_low;
  float limited = product > 300.0f ? 300.0f : product;
  limited = limited < -300.0f ? -300.0f : limited;
  float r = tg_exp2_sum_f32(limited, limited == product ? product_low : 0.0f);
  // Parity of y: numbers from 2^24 on are even.
  float y_abs = AS_float(AS_uint(y) & 0x7fffffffu);
  float y_part = y_abs > 16777216.0f ? 0.0f : y_abs;
  int y_int = (int)y_part;
  int is_integer = (float)y_int == y_part;
  int odd = is_integer & y_int & 1;
  // r >= 0 for zero, infinite and one-valued bases.
  float at_zero = y < 0.0f ? INFINITY : 0.0f;
  float at_infinity = y < 0.0f ? 0.0f : INFINITY;
  r = t == 0.0f ? at_zero : r;
  r = t > 3.40282347e38f ? at_infinity : r;
  float far = (t > 1.0f) == (y > 0.0f) ? INFINITY : 0.0f;
  far = t == 1.0f ? 1.0f : far;
  r = y_abs > 3.40282347e38f ? far : r;
  float negative = odd ? -r : r;
  float undefined = is_integer || t > 3.40282347e38f || t == 0.0f ? negative : NAN;
  r = AS_int(x) < 0 ? undefined : r;
  r = x != x || y != y ? NAN : r;
  r = x == 1.0f ? 1.0f : r;
  return y == 0.0f ? 1.0f : r;
""",
    "pow(x, y)",
)
_own(
    "hypot",
    "float x, float y",
    """
  float a = AS_float(AS_uint(x) & 0x7fffffffu);
  float b = AS_float(AS_uint(y) & 0x7fffffffu);
  float low = a < b ? a : b;
  float high = a < b ? b : a;
  float scale = high > 1e18f ? 1e-20f : (high < 1e-18f ? 1e25f : 1.0f);
  float back = high > 1e18f ? 1e20f : (high < 1e-18f ? 1e-25f : 1.0f);
  low *= scale;
  high *= scale;
  float r = sqrt(fma(low, low, high * high)) * back;
  r = x != x || y != y ? NAN : r;
  return a > 3.40282347e38f || b > 3.40282347e38f ? INFINITY : r;
""",
    "hypot(x, y)",
)
_same("rsqrt", "T x", " return 1.0F / sqrt(x); ")

# Functions without a vectorising form --------------------------------------------------------------------------------

_define(
    "tg_lgamma_f64",
    "TG_FUNCTION double tg_lgamma_f64(double x) { return x < 0.0 && floor(x) == x ? INFINITY : lgamma(x); }",
)
# For x in [1, 3] (x - 1) (x - 2) times a polynomial, the zeros exact; from 3 on Stirling's series; below 1 by one step
# of the recurrence; for negative x by reflection.
_own(
    "lgamma",
    "float x",
    """
  float t = x < 0.0f ? 1.0f - x : x;
  float u = t < 1.0f ? t + 1.0f : t;
  float near_u = u > 3.0f ? 3.0f : u;
  float y = t < 1.0f ? t - 1.0f : near_u - 2.0f;
  float p = -4.13275338e-05f;
  p = fma(p, y, 7.80774717e-05f);
  p = fma(p, y, -4.53112843e-05f);
  p = fma(p, y, 0.000130964298f);
  p = fma(p, y, -0.000432643836f);
  p = fma(p, y, 0.000943903287f);
  p = fma(p, y, -0.00209899293f);
  p = fma(p, y, 0.00499175955f);
  p = fma(p, y, -0.0123855146f);
  p = fma(p, y, 0.0329655856f);
  p = fma(p, y, -0.100317247f);
  p = fma(p, y, 0.422784328f);
  float near = (u == t ? near_u - 1.0f : t) * y * p;
  float w = 1.0f / u;
  float s = w * w;
  float series = 8.4175084e-04f;
  series = fma(series, s, -5.9523810e-04f);
  series = fma(series, s, 7.9365079e-04f);
  series = fma(series, s, -2.7777778e-03f);
  series = fma(series, s, 8.3333333e-02f);
  float far = fma(u - 0.5f, tg_log_f32(u) - 1.0f, fma(series, w, 0.41893853f));
  float r = u > 3.0f ? far : near;
  r = t < 1.0f ? r - tg_log_f32(t) : r;
  float whole = rint(x);
  float angle = (x - whole) * 3.14159265f;
  float reflected = 1.14472989f - tg_log_f32(tg_abs_f32(tg_sin_f32(angle))) - r;
  r = x < 0.0f ? reflected : r;
  r = x <= 0.0f && whole == x ? INFINITY : r;
  r = x < -3e38f ? INFINITY : r;
  return x != x ? x : r;
""",
    "lgamma(x)",
)
# Reflection for negative x, recurrence up to 10, then the asymptotic series.
_same(
    "digamma",
    "T x",
    """
  if (x == 0.0F) return tg_copysign_S(INFINITY, -x);
  T result = 0.0F;
  if (x < 0.0F) {
    if (floor(x) == x) return NAN;
    result = -3.14159265358979324F / tg_tan_S(3.14159265358979324F * (x - rint(x)));
    x = 1.0F - x;
  }
  while (x < 10.0F) {
    result -= 1.0F / x;
    x += 1.0F;
  }
  if (x == 10.0F) return result + 2.25175258906672110764F;
  T series = 0.0F;
  if (x < 1.0e17F) {
    T z = 1.0F / (x * x);
    series = 8.33333333333333333333E-2F;
    series = series * z - 2.10927960927960927961E-2F;
    series = series * z + 7.57575757575757575758E-3F;
    series = series * z - 4.16666666666666666667E-3F;
    series = series * z + 3.96825396825396825397E-3F;
    series = series * z - 8.33333333333333333333E-3F;
    series = series * z + 8.33333333333333333333E-2F;
    series *= z;
  }
  return result + tg_log_S(x) - 0.5F / x - series;
""",
)

for _name in "sin cos tan".split():
    _define(f"tg_{_name}_f64", f"TG_FUNCTION double tg_{_name}_f64(double x) {{ return {_name}(x); }}")
