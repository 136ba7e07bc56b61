"""Derivatives of gamma and beta draws by their parameters: -(d cdf(x; a) / d a) / pdf(x; a), with the draw x held at
its quantile (M. Figurnov et al., "Implicit Reparameterization Gradients", 2018).

The regions and the fitted coefficients are those of torch's aten/src/ATen/native/Distributions.h, so that gradients
agree with torch's CPU where both only approximate.
"""

from __future__ import annotations

from collections.abc import Sequence

from torchgraft.functions.math import in_both_precisions

HELPERS: dict[str, str] = {}


def _define(name: str, params: str, body: str) -> None:
    """Differences of large terms: float32 too is computed in double precision, where the device has it."""
    texts = in_both_precisions(name, params, body)
    single = texts[f"tg_{name}_f32"]
    names = [param.split()[-1] for param in params.split(",")]
    HELPERS[f"tg_{name}_f64"] = texts[f"tg_{name}_f64"]
    HELPERS[f"tg_{name}_f32"] = f"""\
#ifdef HAS_F64
TG_FUNCTION float tg_{name}_f32({params.replace("T ", "float ")}) {{ return (float)tg_{name}_f64({", ".join(names)}); }}
#else
{single}#endif
"""


def _polynomial(x: str, coefficients: Sequence[str]) -> str:
    """Lowest power first; the coefficients are expressions."""
    text = coefficients[-1]
    for coefficient in reversed(coefficients[:-1]):
        text = f"{coefficient} + {x} * ({text})"
    return text


def _fitted(coefficients: Sequence[float]) -> list[str]:
    return [f"{float(c)!r}F" for c in coefficients]


# ---- gamma ----

# The powers 0, 1, 2 of log(x / a), each with eight coefficients: of a numerator and a denominator in log(a).
_GAMMA_FIT = (
    [0.16009398, -0.094634809, 0.025146376, -0.0030648343, 1, 0.32668115, 0.10406089, 0.0014179084],
    [0.53487893, 0.1298071, 0.065735949, -0.0015649758, 0.16639465, 0.020070113, -0.0035938915, -0.00058392623],
    [
        0.040121004,
        -0.0065914022,
        -0.0026286047,
        -0.0013441777,
        0.017050642,
        -0.0021309326,
        0.00085092367,
        -1.5247877e-7,
    ],
)
_GAMMA_TERMS = [_polynomial("u", _fitted([line[k] for line in _GAMMA_FIT])) for k in range(8)]

_define(
    "standard_gamma_grad",
    "T a, T x",
    f"""
  if (x < 0.8F) {{  /* the power series of the cdf */
    T term = 1.0F, place = a, sum = 1.0F / a, slope = 1.0F / (a * a);
    for (int i = 1; i <= 5; ++i) {{
      term *= -x / i;
      place += 1.0F;
      sum += term / place;
      slope += term / (place * place);
    }}
    const T power = tg_pow_S(x, a);
    const T density = tg_pow_S(x, a - 1.0F) * tg_exp_S(-x);
    const T by_a = (tg_log_S(x) - tg_digamma_S(a)) * power * sum - power * slope;
    const T found = -by_a / density;
    return found != found ? 0.0F : found;
  }}
  if (a > 8.0F) {{  /* a saddle point expansion */
    if (0.9F * a <= x && x <= 1.1F * a) {{
      const T one = 1.0F + 24.0F * a * (1.0F + 12.0F * a);
      const T two = 1440.0F * a * a + 6.0F * x * (53.0F - 120.0F * x) - 65.0F * x * x / a + a * (107.0F + 3600.0F * x);
      return one * two / (1244160.0F * (a * a) * (a * a));
    }}
    const T root = sqrt(8.0F * a), away = a - x, ratio = tg_log_S(x / a);
    const T near = root / away, far = tg_pow_S(x - a - a * ratio, -1.5F);
    const T main = ratio * (x < a ? near - far : near + far) - sqrt(2.0F / a) * (a + x) / (away * away);
    const T stirling = 1.0F + 1.0F / (12.0F * a) * (1.0F + 1.0F / (24.0F * a));
    return -stirling * x * main / root;
  }}
  const T u = tg_log_S(x / a), v = tg_log_S(a);
  const T upper = {_polynomial("v", [f"({term})" for term in _GAMMA_TERMS[:4]])};
  const T lower = {_polynomial("v", [f"({term})" for term in _GAMMA_TERMS[4:]])};
  return tg_exp_S(upper / lower);
""",
)

# ---- beta ----

# Near 0 by the power series of the cdf: by the first parameter, and by the second.
_define(
    "beta_grad_first",
    "T x, T a, T b",
    """
  const T factor = tg_digamma_S(a) - tg_digamma_S(a + b) - tg_log_S(x);
  T term = 1.0F, sum = (factor + 1.0F / a) / a;
  for (int i = 1; i <= 10; ++i) {
    term *= (i - b) * x / i;
    const T place = a + i;
    sum += term / place * (factor + 1.0F / place);
  }
  const T found = x * tg_pow_S(1.0F - x, -b) * sum;
  return found != found ? 0.0F : found;
""",
)
_define(
    "beta_grad_second",
    "T x, T a, T b",
    """
  const T factor = tg_digamma_S(a + b) - tg_digamma_S(b);
  T term = 1.0F, falling = 1.0F, slope = 0.0F, sum = factor / a;
  for (int i = 1; i <= 8; ++i) {
    term *= -x / i;
    slope = slope * (b - i) + falling;
    falling *= b - i;
    sum += term / (a + i) * (slope + factor * falling);
  }
  const T found = -tg_pow_S(1.0F - x, 1.0F - b) * sum;
  return found != found ? 0.0F : found;
""",
)
# For two large parameters by a saddle point expansion, and about the mean, where that has a pole, by its limit.
_define(
    "beta_grad_large",
    "T x, T a, T b",
    """
  const T total = a + b, mean = a / total, y = 1.0F - x;
  const T deviation = sqrt(a * b / (total + 1.0F)) / total;
  if (mean - 0.1F * deviation <= x && x <= mean + 0.1F * deviation) {
    const T fourth = 8.0F * y * (135.0F * b - 11.0F);
    const T third = (453.0F + 1620.0F * b * y - 455.0F * x) * b + a * fourth;
    const T second = 3.0F * (59.0F + 180.0F * b - 90.0F * x) * (b * b) + a * third;
    const T first = (43.0F + 20.0F * (16.0F + 27.0F * b) * x) * (b * b) * b + a * second;
    const T sum = 47.0F * x * (b * b) * (b * b) + a * first;
    const T above = (1.0F + 12.0F * a) * (1.0F + 12.0F * b) / (total * total);
    return above / y * sum / (12960.0F * a * a * a * b * b * (1.0F + 12.0F * total));
  }
  const T stirling = (1.0F + 1.0F / (12.0F * a) + 1.0F / (288.0F * a * a))
      * (1.0F + 1.0F / (12.0F * b) + 1.0F / (288.0F * b * b))
      / (1.0F + 1.0F / (12.0F * total) + 1.0F / (288.0F * total * total));
  const T away = b * x - a * y;
  const T pole = -(2.0F * a * a * y + a * b * y + x * b * b)
      / (sqrt(2.0F * a / b) * tg_pow_S(total, 1.5F) * away * away);
  const T distance = b * tg_log_S(b / (total * y)) + a * tg_log_S(a / (total * x));
  const T tail = tg_pow_S(distance, -1.5F);
  const T inner = sqrt(8.0F * a * b / total) / away + (x < mean ? tail : -tail);
  const T sum = pole + 0.5F * tg_log_S(a / (total * x)) * inner;
  return stirling * -x / sqrt(2.0F * a * b / total) * sum;
""",
)

# A numerator and a denominator; the powers 0, 1, 2 of log(x), each with those of log(a / x), each with those of
# log(total x / a).
_BETA_FIT = (
    (
        (
            (1.003668233, -0.01061107488, -0.0657888334, 0.01201642863),
            (0.6336835991, -0.3557432599, 0.05486251648, -0.001465281033),
            (-0.03276231906, 0.004474107445, 0.002429354597, -0.0001557569013),
        ),
        (
            (0.221950385, -0.3187676331, 0.01799915743, 0.01074823814),
            (-0.2951249643, 0.06219954479, 0.01535556598, 0.001550077057),
            (0.02155310298, 0.004170831599, 0.001292462449, 6.976601077e-05),
        ),
        (
            (-0.05980841433, 0.008441916499, 0.01085618172, 0.002319392565),
            (0.02911413504, 0.01400243777, -0.002721828457, 0.000751041181),
            (0.005900514878, -0.001936558688, -9.495446725e-06, 5.385558597e-05),
        ),
    ),
    (
        (
            (1, -0.02924021934, -0.04438342661, 0.007285809825),
            (0.6357567472, -0.3473456711, 0.05454656494, -0.002407477521),
            (-0.03301322327, 0.004845219414, 0.00231480583, -0.0002307248149),
        ),
        (
            (0.5925320577, -0.1757678135, 0.01505928619, 0.000564515273),
            (0.1014815858, -0.06589186703, 0.01272886114, -0.0007316646956),
            (-0.007258481865, 0.001096195486, 0.0003934994223, -4.12701925e-05),
        ),
        (
            (0.06469649321, -0.0236701437, 0.002902096474, -5.896963079e-05),
            (0.001925008108, -0.002869809258, 0.0008000589141, -6.063713228e-05),
            (-0.0003477407336, 6.959756487e-05, 1.097287507e-05, -1.650964693e-06),
        ),
    ),
)


def _nested(coefficients: Sequence[object], variables: Sequence[str]) -> str:
    """A polynomial in the first variable, whose coefficients are polynomials in the others."""
    if not variables:
        return f"{float(str(coefficients))!r}F"
    terms = [_nested(c, variables[1:]) for c in coefficients]  # type: ignore[arg-type]
    return _polynomial(variables[0], [f"({term})" for term in terms])


_BETA_TERMS = [_nested(half, ("u", "v", "w")) for half in _BETA_FIT]

_define(
    "dirichlet_grad",
    "T x, T a, T total",
    f"""
  const T b = total - a, spread = total * x * (1.0F - x);
  if (x <= 0.5F && spread < 2.5F) return tg_beta_grad_first_S(x, a, b);
  if (x >= 0.5F && spread < 0.75F) return -tg_beta_grad_second_S(1.0F - x, b, a);
  if (a > 6.0F && b > 6.0F) return tg_beta_grad_large_S(x, a, b);
  const T u = tg_log_S(x), v = tg_log_S(a) - u, w = tg_log_S(total) - v;
  const T upper = {_BETA_TERMS[0]};
  const T lower = {_BETA_TERMS[1]};
  return upper / lower * x * (tg_digamma_S(total) - tg_digamma_S(a)) / b;
""",
)
