"""Texts that make blocks of random words, and normal numbers of words."""

from __future__ import annotations

COUNTERS = 64
"""Counters of a block; its words stay in the first-level cache."""

HELPERS: dict[str, str] = {}

# Philox 4x32-10 (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011).
HELPERS["tg_philox"] = """\
inline uint4 tg_philox(ulong seed, ulong counter_low, ulong counter_high) {
  uint k0 = (uint)seed, k1 = (uint)(seed >> 32);
  uint c0 = (uint)counter_low, c1 = (uint)(counter_low >> 32), c2 = (uint)counter_high, c3 = (uint)(counter_high >> 32);
  UNROLL
  for (int round = 0; round < 10; ++round) {
    ulong p0 = (ulong)0xD2511F53u * c0, p1 = (ulong)0xCD9E8D57u * c2;
    uint n0 = (uint)(p1 >> 32) ^ c1 ^ k0, n2 = (uint)(p0 >> 32) ^ c3 ^ k1;
    c1 = (uint)p1;
    c3 = (uint)p0;
    c0 = n0;
    c2 = n2;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return MAKE_uint4(c0, c1, c2, c3);
}"""

# Words are kept in the lower halves of 64-bit lanes: there the product of two words is one instruction, and what is
# left in the upper halves does no harm.
HELPERS["TG_PHILOX_ROUNDS"] = """\
#define TG_PHILOX_ROUND(k) { \\
    ulong p0 = (c0 & 0xffffffffUL) * 0xD2511F53UL, p1 = (c2 & 0xffffffffUL) * 0xCD9E8D57UL; \\
    c0 = (p1 >> 32) ^ c1 ^ (uint)(k0 + k * 0x9E3779B9u); \\
    c2 = (p0 >> 32) ^ c3 ^ (uint)(k1 + k * 0xBB67AE85u); \\
    c1 = p1; \\
    c3 = p0; \\
  }
#define TG_PHILOX_ROUNDS(seed, counter) \\
    uint k0 = (uint)(seed), k1 = (uint)((seed) >> 32); \\
    ulong c0 = (counter), c1 = c0 >> 32, c2 = 0, c3 = 0; \\
    TG_PHILOX_ROUND(0) TG_PHILOX_ROUND(1) TG_PHILOX_ROUND(2) TG_PHILOX_ROUND(3) TG_PHILOX_ROUND(4) \\
    TG_PHILOX_ROUND(5) TG_PHILOX_ROUND(6) TG_PHILOX_ROUND(7) TG_PHILOX_ROUND(8) TG_PHILOX_ROUND(9)"""
# The words of successive counters, in order.
HELPERS["tg_philox_block"] = f"""\
TG_FUNCTION void tg_philox_block(uint* words, ulong seed, ulong counter) {{
  VECTORIZE
  for (int j = 0; j < {COUNTERS}; ++j) {{
    TG_PHILOX_ROUNDS(seed, counter + (ulong)j)
    words[4 * j] = (uint)c0;
    words[4 * j + 1] = (uint)c1;
    words[4 * j + 2] = (uint)c2;
    words[4 * j + 3] = (uint)c3;
  }}
}}"""
# Counters `step` apart: the first words of all, then the second ones, ...
HELPERS["tg_philox_lanes"] = """\
TG_FUNCTION void tg_philox_lanes(uint* words, ulong seed, ulong counter, ulong step, int lanes) {
  VECTORIZE
  for (int j = 0; j < lanes; ++j) {
    TG_PHILOX_ROUNDS(seed, counter + step * (ulong)j)
    words[j] = (uint)c0;
    words[lanes + j] = (uint)c1;
    words[2 * lanes + j] = (uint)c2;
    words[3 * lanes + j] = (uint)c3;
  }
}"""
# Rows of `per_row` successive counters, whose first ones are `step` apart; the words in order.
HELPERS["tg_philox_rows"] = """\
TG_FUNCTION void tg_philox_rows(uint* words, ulong seed, ulong counter, ulong step, int per_row, int rows) {
  VECTORIZE
  for (int j = 0; j < rows * per_row; ++j) {
    TG_PHILOX_ROUNDS(seed, counter + step * (ulong)(j / per_row) + (ulong)(j % per_row))
    words[4 * j] = (uint)c0;
    words[4 * j + 1] = (uint)c1;
    words[4 * j + 2] = (uint)c2;
    words[4 * j + 3] = (uint)c3;
  }
}"""

# Two independent normal numbers by Box and Muller. The angle is a quarter turn chosen by two bits plus one within
# [-pi/4, pi/4) made of the others, where sine and cosine are short polynomials. Radius: the uniform number is never 0,
# and 1 gives 0.
HELPERS["tg_normal_pair_f32"] = """\
TG_FUNCTION void tg_normal_pair_f32(uint w, uint v, float* x, float* y) {
  float u = fma((float)w, 2.32830644e-10f, 2.32830644e-10f);
  float radius = sqrt(-2.0f * tg_log_f32(u > 1.0f ? 1.0f : u));
  float r = (float)(int)(v << 2) * 3.65723109e-10f;
  TG_SIN_COS(r, sine, cosine)
  uint quarter = v >> 30;
  float a = (quarter & 1) != 0 ? sine : cosine, b = (quarter & 1) != 0 ? cosine : sine;
  *x = AS_float(AS_uint(radius * a) ^ ((quarter & 2) << 30));
  *y = AS_float(AS_uint(radius * b) ^ (((quarter + 1) & 2) << 30));
}"""

# Free of calls, as the float32 functions of functions.math: log by the series of atanh, sine and cosine by Taylor's.
HELPERS["tg_log_positive_f64"] = """\
TG_FUNCTION double tg_log_positive_f64(double x) {
  long bits = AS_long(x);
  long exponent = (bits - 0x3fe6a09e667f3bcdL) >> 52;
  double m = AS_double(bits - (exponent << 52));
  double s = (m - 1.0) / (m + 1.0), q = s * s;
  double p = 1.0 / 21.0;
  p = fma(p, q, 1.0 / 19.0);
  p = fma(p, q, 1.0 / 17.0);
  p = fma(p, q, 1.0 / 15.0);
  p = fma(p, q, 1.0 / 13.0);
  p = fma(p, q, 1.0 / 11.0);
  p = fma(p, q, 1.0 / 9.0);
  p = fma(p, q, 1.0 / 7.0);
  p = fma(p, q, 0.2);
  p = fma(p, q, 1.0 / 3.0);
  p = fma(p, q, 1.0);
  return fma((double)(int)exponent, 0.69314718055994531, 2.0 * s * p);
}"""
HELPERS["tg_normal_pair_f64"] = """\
TG_FUNCTION void tg_normal_pair_f64(ulong w, ulong v, double* x, double* y) {
  double u = ((double)(long)(w >> 12) + 0.5) * 2.2204460492503131e-16;
  double radius = sqrt(-2.0 * tg_log_positive_f64(u));
  double r = (double)((long)(v << 2) >> 10) * 8.7188937063447254e-17;
  double q = r * r;
  double sine = 2.8114572543455206e-15;
  sine = fma(sine, q, -7.6471637318198164e-13);
  sine = fma(sine, q, 1.6059043836821613e-10);
  sine = fma(sine, q, -2.5052108385441720e-8);
  sine = fma(sine, q, 2.7557319223985893e-6);
  sine = fma(sine, q, -1.9841269841269841e-4);
  sine = fma(sine, q, 8.3333333333333332e-3);
  sine = fma(sine, q, -1.6666666666666666e-1);
  sine = fma(sine * q, r, r);
  double cosine = 4.7794773323873853e-14;
  cosine = fma(cosine, q, -1.1470745597729725e-11);
  cosine = fma(cosine, q, 2.0876756987868100e-9);
  cosine = fma(cosine, q, -2.7557319223985888e-7);
  cosine = fma(cosine, q, 2.4801587301587302e-5);
  cosine = fma(cosine, q, -1.3888888888888889e-3);
  cosine = fma(cosine, q, 4.1666666666666664e-2);
  cosine = fma(cosine, q, -0.5);
  cosine = fma(cosine, q, 1.0);
  ulong quarter = v >> 62;
  double a = (quarter & 1) != 0 ? sine : cosine, b = (quarter & 1) != 0 ? cosine : sine;
  *x = AS_double(AS_ulong(radius * a) ^ ((quarter & 2) << 62));
  *y = AS_double(AS_ulong(radius * b) ^ (((quarter + 1) & 2) << 62));
}"""

# To the nearest number with so many fewer bits; a storage type's rounding, done where the value is still to be
# compared.
HELPERS["tg_round_bits"] = """\
TG_FUNCTION float tg_round_bits(float x, int drop) {
  uint u = AS_uint(x);
  return AS_float((u + ((1u << (drop - 1)) - 1) + ((u >> drop) & 1)) & ~((1u << drop) - 1));
}"""
