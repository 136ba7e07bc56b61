"""Division, remainders and powers with Python's and torch's rules.

Integer division by zero and of the smallest number by -1 trap on CPUs: here they give some number and the wrapped
negation, so that a bad divisor does not end the process; the kernel reports it.
"""

from __future__ import annotations

HELPERS: dict[str, str] = {}

_INTEGERS = {"i64": "long", "i32": "int", "i16": "short", "i8": "char", "u8": "uchar", "b8": "uchar"}

_DIV_TRUNC = """\
TG_FUNCTION {t} tg_div_trunc_{s}({t} a, {t} b) {{
  {t} safe = b == 0 ? ({t})1 : b;
  {t} quotient = safe == ({t})-1 && ({t})-1 < 0 ? ({t})(0 - a) : ({t})(a / safe);
  return b == 0 ? ({t})0 : quotient;
}}"""

_FMOD = """\
TG_FUNCTION {t} tg_fmod_{s}({t} a, {t} b) {{
  {t} safe = b == 0 || (b == ({t})-1 && ({t})-1 < 0) ? ({t})1 : b;
  return ({t})(a % safe);
}}"""

# Processors divide integers one by one, and floating-point numbers in vectors. The quotient of two numbers that the
# floating-point type holds exactly, rounded, has the right whole part: one that is not whole is further from the next
# whole number, by 1 / b at least, than half of a unit in its last place, since a has a bit less than the type's. (LLVM
# 15 makes no vectors of the larger of a byte and 1, which a choice in the place of `b | (b == 0)` becomes.)
_BY_FLOATS = """\
#ifdef TG_OWN_MATH
TG_FUNCTION {t} tg_div_trunc_{s}({t} a, {t} b) {{
  {t} safe = (b == ({t})-1) & (({t})-1 < 0) ? ({t})1 : ({t})(b | (b == 0));
  {t} quotient = ({t})(int)(({f})a / ({f})safe);
  quotient = (b == ({t})-1) & (({t})-1 < 0) ? ({t})(0 - a) : quotient;
  return b == 0 ? ({t})0 : quotient;
}}
#else
{otherwise}
#endif"""
_FMOD_BY_FLOATS = """\
#ifdef TG_OWN_MATH
TG_FUNCTION {t} tg_fmod_{s}({t} a, {t} b) {{ return ({t})(a - tg_div_trunc_{s}(a, b) * b); }}
#else
{otherwise}
#endif"""
_FLOATS = {"i32": "double", "i16": "float", "i8": "float", "u8": "float", "b8": "float"}

_REMAINDER = """\
TG_FUNCTION {t} tg_remainder_{s}({t} a, {t} b) {{
  {t} r = tg_fmod_{s}(a, b);
  return b != 0 && r != 0 && (r < 0) != (b < 0) ? ({t})(r + b) : r;
}}"""

# With one division: what is left of a comes by multiplication.
_DIV_FLOOR = """\
TG_FUNCTION {t} tg_div_floor_{s}({t} a, {t} b) {{
  {t} quotient = tg_div_trunc_{s}(a, b);
  {t} r = b == 0 || (b == ({t})-1 && ({t})-1 < 0) ? ({t})0 : ({t})(a - quotient * b);
  return r != 0 && (r < 0) != (b < 0) ? ({t})(quotient - 1) : quotient;
}}"""

_POW = """\
TG_FUNCTION {t} tg_ipow_{s}({t} base, {t} exponent) {{
  if (exponent < 0) return base == 1 ? ({t})1 : base == ({t})-1 ? (exponent & 1 ? ({t})-1 : ({t})1) : ({t})0;
  {t} result = 1;
  for (; exponent != 0; exponent >>= 1) {{
    if (exponent & 1) result = ({t})(result * base);
    base = ({t})(base * base);
  }}
  return result;
}}"""

# Euclid's algorithm on magnitudes; of 0 and b it is |b|. The least number has none and stays what it is, for which it
# is negated without a sign: of others compilers believe that the result is not negative.
_GCD = """\
TG_FUNCTION {t} tg_gcd_{s}({t} a, {t} b) {{
  a = a < 0 ? ({t})(0UL - a) : a;
  b = b < 0 ? ({t})(0UL - b) : b;
  while (a != 0) {{
    {t} rest = ({t})(b % a);
    b = a;
    a = rest;
  }}
  return b;
}}"""

_LCM = """\
TG_FUNCTION {t} tg_lcm_{s}({t} a, {t} b) {{
  {t} divisor = tg_gcd_{s}(a, b);
  long product = divisor == 0 ? 0 : a / divisor * b;
  return ({t})(product < 0 ? 0 - product : product);
}}"""

for _suffix, _ctype in _INTEGERS.items():
    for _name, _text in (
        ("div_trunc", _DIV_TRUNC),
        ("fmod", _FMOD),
        ("remainder", _REMAINDER),
        ("div_floor", _DIV_FLOOR),
        ("ipow", _POW),
        ("gcd", _GCD),
        ("lcm", _LCM),
    ):
        HELPERS[f"tg_{_name}_{_suffix}"] = _text.format(t=_ctype, s=_suffix)
    if _suffix in _FLOATS:
        for _name, _text in (("div_trunc", _BY_FLOATS), ("fmod", _FMOD_BY_FLOATS)):
            _plain = HELPERS[f"tg_{_name}_{_suffix}"]
            HELPERS[f"tg_{_name}_{_suffix}"] = _text.format(t=_ctype, s=_suffix, f=_FLOATS[_suffix], otherwise=_plain)

# A value as its element type has it: the 16-bit types live in float32.
HELPERS["tg_narrow_f32"] = "#define tg_narrow_f32(x) (x)\n"
HELPERS["tg_narrow_f64"] = "#define tg_narrow_f64(x) (x)\n"
HELPERS["tg_narrow_bf16"] = """\
TG_FUNCTION float tg_narrow_bf16(float x) {
  uint u = AS_uint(x);
  const uint rounded = (u + 0x7fff + ((u >> 16) & 1)) & 0xffff0000u;
  return AS_float(x != x ? u : rounded);
}"""
# Adding and taking away 1.5 * 2^23 units of the last place leaves none below it; the least unit is 2^-24.
HELPERS["tg_narrow_f16"] = """\
TG_FUNCTION float tg_narrow_f16(float x) {
  uint bits = AS_uint(x) & 0x7fffffffu;
  uint exponent = bits >> 23;
  float magic = 1.5f * AS_float(((exponent < 113u ? 113u : exponent) + 13u) << 23);
  float narrow = AS_float(AS_uint((AS_float(bits) + magic) - magic) | (AS_uint(x) & 0x80000000u));
  return bits < 0x477ff000u ? narrow : bits > 0x7f800000u ? x : AS_float((AS_uint(x) & 0x80000000u) | 0x7f800000u);
}"""

# The bits of a 16-bit float, which is rounded first, and the float of such bits. In float16 2^-24 is the least unit.
HELPERS["tg_bits_bf16"] = """\
TG_FUNCTION uint tg_bits_bf16(float x) {
  return x != x ? (AS_uint(x) >> 16 & 0x8000u) | 0x7fc0u : AS_uint(tg_narrow_bf16(x)) >> 16;
}"""
HELPERS["tg_of_bits_bf16"] = "TG_FUNCTION float tg_of_bits_bf16(uint bits) { return AS_float(bits << 16); }"
HELPERS["tg_bits_f16"] = """\
TG_FUNCTION uint tg_bits_f16(float x) {
  const float narrow = tg_narrow_f16(x);
  const uint bits = AS_uint(narrow) & 0x7fffffffu, sign = AS_uint(narrow) >> 16 & 0x8000u;
  const uint least = (uint)(int)(AS_float(bits < 0x38800000u ? bits : 0) * 16777216.0f);
  const uint finite = bits < 0x38800000u ? least : (bits >> 13) - (112u << 10);
  return sign | (bits > 0x7f800000u ? 0x7e00u : bits == 0x7f800000u ? 0x7c00u : finite);
}"""
HELPERS["tg_of_bits_f16"] = """\
TG_FUNCTION float tg_of_bits_f16(uint bits) {
  const uint magnitude = bits & 0x7fffu, sign = (bits & 0x8000u) << 16;
  const uint normal = (magnitude << 13) + ((magnitude < 0x7c00u ? 112u : 224u) << 23);
  const float least = (float)(int)magnitude * (1 / 16777216.0f);
  return AS_float(sign | (magnitude < 0x400u ? AS_uint(least) : normal));
}"""

# In float64 a quotient is right to within a half. Each step takes away so many divisors, times a power of two, that
# what is left is less than one of these: exactly, since it has no more bits than a divisor. A quotient of float32 has
# up to 277 bits. Adding and taking away 1.5 * 2^52 rounds to a whole number.
_FMOD_STEP_BITS, _FMOD_STEPS = 48, 6
_FMOD_STEPS_TEXT = "\n".join(
    f"  rest = fma(magic - (rest * (inverse * {2.0**-bits!r}) + magic), divisor * {2.0**bits!r}, rest);"
    for bits in range(_FMOD_STEP_BITS * (_FMOD_STEPS - 1), -1, -_FMOD_STEP_BITS)
)
HELPERS["tg_fmod_f32"] = f"""\
#ifdef HAS_F64
TG_FUNCTION float tg_fmod_f32(float a, float b) {{
  const double divisor = fabs((double)b), inverse = 1 / divisor, magic = 6755399441055744.0;
  double rest = fabs((double)a);
{_FMOD_STEPS_TEXT}
  rest = rest < 0 ? rest + divisor : rest;
  const float result = tg_copysign_f32((float)rest, a);
  return fabs(b) == INFINITY && fabs(a) < INFINITY ? a : result;
}}
#else
TG_FUNCTION float tg_fmod_f32(float a, float b) {{ return fmod(a, b); }}
#endif
"""
HELPERS["tg_fmod_f64"] = "TG_FUNCTION double tg_fmod_f64(double a, double b) { return fmod(a, b); }\n"

_FLOAT_REMAINDER = """\
TG_FUNCTION {t} tg_remainder_{s}({t} a, {t} b) {{
  {t} r = tg_fmod_{v}(a, b);
  return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}}"""

# Each step is rounded to the element type, as torch does it.
_FLOAT_DIV_FLOOR = """\
TG_FUNCTION {t} tg_floor_divide_{s}({t} a, {t} b) {{
  if (b == 0) return a / b;
  {t} r = tg_fmod_{v}(a, b);
  {t} quotient = tg_narrow_{s}(tg_narrow_{s}(a - r) / b);
  if (r != 0 && (r < 0) != (b < 0)) quotient = tg_narrow_{s}(quotient - 1);
  if (quotient == 0) return copysign(({t})0, a / b);
  {t} whole = floor(quotient);
  return quotient - whole > ({t})0.5 ? whole + 1 : whole;
}}"""

for _suffix, _ctype in (("f32", "float"), ("f64", "double"), ("f16", "float"), ("bf16", "float")):
    _value = "f64" if _suffix == "f64" else "f32"
    HELPERS[f"tg_floor_divide_{_suffix}"] = _FLOAT_DIV_FLOOR.format(t=_ctype, s=_suffix, v=_value)
for _suffix, _ctype in (("f32", "float"), ("f64", "double")):
    HELPERS[f"tg_remainder_{_suffix}"] = _FLOAT_REMAINDER.format(t=_ctype, s=_suffix, v=_suffix)
