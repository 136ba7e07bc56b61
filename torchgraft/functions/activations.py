"""Functions of neural networks: activations and their derivatives, and sums in the log domain."""

from __future__ import annotations

from torchgraft.functions.math import in_both_precisions

HELPERS: dict[str, str] = {}


def _define(name: str, text: str) -> None:
    HELPERS[name] = text.strip() + "\n"


def _same(name: str, params: str, body: str) -> None:
    """Defines a function in float32 and float64; see `math.in_both_precisions` for what `body` may use."""
    HELPERS.update(in_both_precisions(name, params, body))


# exp(-x) without the care for subnormal results, which disappear beside 1.
_define(
    "tg_exp_beside_one_f32",
    """
TG_FUNCTION float tg_exp_beside_one_f32(float x) {
  float limited = x > 88.0f ? 88.0f : x;
  limited = limited < -87.0f ? -87.0f : limited;
  float e = tg_exp_small_f32(limited);
  return x > 88.0f ? INFINITY : e;
}""",
)
_define("tg_exp_beside_one_f64", "TG_FUNCTION double tg_exp_beside_one_f64(double x) { return tg_exp_f64(x); }")
_same("sigmoid", "T x", " return 1.0F / (1.0F + tg_exp_beside_one_S(-x)); ")
_same("silu", "T x", " return x / (1.0F + tg_exp_beside_one_S(-x)); ")
# The normal distribution's cumulative function: erfc(a / sqrt 2) / 2 for a = |x|, as the exponential of a polynomial.
# It is off by less than 1e-7 everywhere, and 0 below -6.
_define(
    "tg_normal_cdf_f32",
    """
TG_FUNCTION float tg_normal_cdf_f32(float x) {
  float a = AS_float(AS_uint(x) & 0x7fffffffu);
  a = a > 6.0f ? 6.0f : a;
  float q = -1.48159742e-07f;
  q = fma(q, a, 3.42893009e-06f);
  q = fma(q, a, -3.18449893e-05f);
  q = fma(q, a, 0.000130391432f);
  q = fma(q, a, 0.000115048308f);
  q = fma(q, a, -0.00493845437f);
  q = fma(q, a, 0.036422316f);
  q = fma(q, a, 0.318287134f);
  q = fma(q, a, 0.79788655f);
  float half_tail = 0.5f * tg_exp_small_f32(-q * a);
  half_tail = a == 6.0f ? 0.0f : half_tail;
  return x > 0.0f ? 1.0f - half_tail : half_tail;
}""",
)
_define(
    "tg_normal_cdf_f64",
    "TG_FUNCTION double tg_normal_cdf_f64(double x) { return 0.5 * tg_erfc_f64(x * -0.70710678118654752); }",
)
_same("gelu", "T x", " return x * tg_normal_cdf_S(x); ")
_same(
    "gelu_tanh",
    "T x",
    """
  T inner = 0.79788456080286536F * (x + 0.044715F * x * x * x);
  return 0.5F * x * (1.0F + tg_tanh_S(inner));
""",
)
_same(
    "gelu_backward",
    "T grad, T x",
    """
  T cdf = tg_normal_cdf_S(x);
  T pdf = 0.39894228040143268F * tg_exp_S(-0.5F * x * x);
  return grad * (cdf + x * pdf);
""",
)
_same(
    "gelu_tanh_backward",
    "T grad, T x",
    """
  T inner = 0.79788456080286536F * (x + 0.044715F * x * x * x);
  T t = tg_tanh_S(inner);
  T slope = 0.79788456080286536F * (1.0F + 3.0F * 0.044715F * x * x);
  return grad * (0.5F * (1.0F + t) + 0.5F * x * (1.0F - t * t) * slope);
""",
)
_same(
    "silu_backward",
    "T grad, T x",
    """
  T s = tg_sigmoid_S(x);
  return grad * s * (1.0F + x * (1.0F - s));
""",
)
_same(
    "log_sigmoid",
    "T x",
    """
  return (x < 0.0F ? x : 0.0F) - tg_log1p_S(tg_exp_S(-tg_abs_S(x))) + (x != x ? x : 0.0F);
""",
)
_same(
    "softplus",
    "T x, T beta, T threshold",
    """
  T scaled = x * beta;
  T soft = tg_log1p_S(tg_exp_S(scaled)) / beta;
  return scaled > threshold ? x : soft;
""",
)
# tanh(log(1 + e^x)) = (n^2 + 2 n) / (n^2 + 2 n + 2) with n = e^x
_same(
    "mish",
    "T x",
    """
  T n = tg_exp_S(x > 20.0F ? 20.0F : x);
  T q = n * (n + 2.0F);
  return x * (q / (q + 2.0F));
""",
)
_same(
    "mish_backward",
    "T grad, T x",
    """
  T n = tg_exp_S(x > 20.0F ? 20.0F : x);
  T q = n * (n + 2.0F);
  T t = q / (q + 2.0F);
  return grad * (t + x * tg_sigmoid_S(x) * (1.0F - t * t));
""",
)
_same(
    "logaddexp",
    "T x, T y",
    """
  T high = x > y ? x : y;
  T gap = tg_abs_S(x - y);
  T sum = high + tg_log1p_S(tg_exp_S(-gap));
  sum = x == y ? high + 0.69314718055994531F : sum;
  return x != x || y != y ? x + y : sum;
""",
)
_same(
    "logaddexp2",
    "T x, T y",
    """
  T high = x > y ? x : y;
  T gap = tg_abs_S(x - y);
  T sum = high + tg_log1p_S(tg_exp2_S(-gap)) * 1.4426950408889634F;
  sum = x == y ? high + 1.0F : sum;
  return x != x || y != y ? x + y : sum;
""",
)
