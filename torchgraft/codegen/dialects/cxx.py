"""The dialect of C++, as g++ (12 and later) and clang compile it: for devices whose kernels run on a CPU.

A kernel becomes a function

    extern "C" void NAME(void* const* arguments, const unsigned long long groups[3],
                         unsigned long long begin, unsigned long long end);

that runs the work-groups begin, ..., end - 1 one after the other. Groups are numbered with dimension 0 running fastest;
`groups` says how many there are in each. arguments[i] points to the value of the kernel's i-th argument: for a pointer,
to the pointer. A driver divides the numbers 0, ..., groups[0] * groups[1] * groups[2] - 1 among its threads.

Nothing is included: the headers of C++ take longer to read than most kernels do to compile.
"""

from __future__ import annotations

import re
from typing import ClassVar

from torchgraft.codegen.dialect import Dialect, UnsupportedKernel, plain_accesses
from torchgraft.codegen.kernel import Kernel
from torchgraft.codegen.vectors import LOADED, PAIRS, SIZES, VECTORS, WIDTHS, parameters
from torchgraft.codegen.x86 import bfloat16_words

_FLOATS = (("float", "f"), ("double", ""))


def _function(result: str, name: str, params: str, value: str) -> str:
    return f"TG_FUNCTION {result} {name}({params}) {{ return {value}; }}"


def _vectors() -> dict[str, str]:
    """Types of vectors, and what makes and takes them apart."""
    words = {}
    for vector, (lane, width) in VECTORS.items():
        names, size = parameters(width), SIZES[lane]
        words[vector] = f"typedef {lane} {vector} __attribute__((vector_size({width * size})));"
        words[f"{vector}u"] = (
            f"typedef {lane} {vector}u __attribute__((vector_size({width * size}), aligned({size}), may_alias));"
        )
        lanes = ", ".join(f"({lane})({name})" for name in names.split(", "))
        words[f"MAKE_{vector}"] = f"#define MAKE_{vector}({names}) (({vector}){{{lanes}}})"
        # Taken away, since -0.0 and +0.0 make +0.0.
        words[f"SPLAT_{vector}"] = f"#define SPLAT_{vector}(x) (({lane})(x) - ({vector}){{}})"
        words[f"CONVERT_{vector}"] = f"#define CONVERT_{vector}(v) __builtin_convertvector(v, {vector})"
        words[f"AS_{vector}"] = f"#define AS_{vector}(v) (({vector})(v))"
        words[f"SHUFFLE_{vector}"] = (
            f"#define SHUFFLE_{vector}(v, w, {names}) __builtin_shufflevector(v, w, {names}) /* {vector} */"
        )
    words |= {f"AS_{lane}": f"#define AS_{lane}(x) __builtin_bit_cast({lane}, x)" for lane in SIZES}
    words["LANE"] = "#define LANE(v, k) ((v)[0x##k])"
    words["SELECT"] = "#define SELECT(mask, a, b) ((mask) ? (a) : (b))"
    return words


# GCC 12's vectoriser makes a wrong loop of `a[i] = condition ? pair : product(a[i], b)` once it may turn the condition
# into a selection (with -fno-trapping-math): the product's second part sees its first one. Clang does not.
_PAIR = """\
#if !defined(__clang__)
#pragma GCC optimize("no-tree-loop-if-convert")
#endif
struct {P} {{
  {T} x, y;
  {P}() = default;
  TG_FUNCTION {P} make({T} x, {T} y) {{ {P} p; p.x = x; p.y = y; return p; }}
  inline __attribute__((always_inline)) {P}({T} both) : x(both), y(both) {{}}
}};
{operators}"""


def _pairs() -> dict[str, str]:
    """Pairs: two members with the operators of a vector."""
    words = {}
    for pair, part in PAIRS.items():
        lines = []
        for op in "+-*/":
            value = f"{pair}::make(a.x {op} b.x, a.y {op} b.y)"
            lines.append(_function(pair, f"operator{op}", f"{pair} a, {pair} b", value))
            lines.append(_function(f"{pair}&", f"operator{op}=", f"{pair}& a, {pair} b", f"a = a {op} b"))
        lines.append(_function(pair, "operator-", f"{pair} a", f"{pair}::make(-a.x, -a.y)"))
        words[pair] = _PAIR.format(P=pair, T=part, operators="\n".join(lines))
        words[f"MAKE_{pair}"] = f"#define MAKE_{pair}(x, y) {pair}::make(x, y)"
        words[f"SPLAT_{pair}"] = f"#define SPLAT_{pair}(x) {pair}(x)"
        words[f"CONVERT_{pair}"] = "\n".join(
            _function(pair, f"CONVERT_{pair}", f"{source} p", f"{pair}::make(p.x, p.y)") for source in PAIRS
        )
    return words


def _functions() -> dict[str, str]:
    """The functions of <math.h> for both precisions, and those of vectors."""
    words = {}
    for names, params, arguments in (
        (
            "sqrt floor ceil trunc rint round exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh "
            "tanh asinh acosh atanh erf erfc lgamma tgamma fabs",
            "{T} x",
            "x",
        ),
        ("fmod copysign pow hypot atan2 nextafter", "{T} x, {T} y", "x, y"),
        ("fma", "{T} x, {T} y, {T} z", "x, y, z"),
        ("ldexp", "{T} x, int y", "x, y"),
        ("frexp", "{T} x, int* y", "x, y"),
    ):
        for name in names.split():
            words[name] = "\n".join(
                _function(T, name, params.format(T=T), f"__builtin_{name}{suffix}({arguments})")
                for T, suffix in _FLOATS
            )
    words["ilogb"] = "\n".join(_function("int", "ilogb", f"{T} x", f"__builtin_ilogb{s}(x)") for T, s in _FLOATS)
    for name, params, value in (
        # The compiler's own are calls, since they keep NaN out.
        ("fmin", "{T} a, {T} b", "a < b || b != b ? a : b"),
        ("fmax", "{T} a, {T} b", "a > b || b != b ? a : b"),
        ("isnan", "{T} x", "x != x"),
        ("isinf", "{T} x", "__builtin_fabs{s}(x) == __builtin_inf{s}()"),
        ("isfinite", "{T} x", "__builtin_fabs{s}(x) < __builtin_inf{s}()"),
        ("signbit", "{T} x", "__builtin_signbit{s}(x) != 0"),
    ):
        result = "int" if name.startswith(("is", "sign")) else "{T}"
        words[name] = "\n".join(
            _function(result.format(T=T), name, params.format(T=T), value.format(s=suffix)) for T, suffix in _FLOATS
        )
    numbers = ("int", "uint", "long", "ulong", "float", "double")
    for name, params, value in (
        ("min", "{T} a, {T} b", "b < a ? b : a"),
        ("max", "{T} a, {T} b", "a < b ? b : a"),
        ("clamp", "{T} x, {T} a, {T} b", "x < a ? a : b < x ? b : x"),
    ):
        words[name] = "\n".join(_function(T, name, params.format(T=T), value) for T in numbers)
    words["ilogb"] = "\n".join(_function("int", "ilogb", f"{T} x", f"__builtin_ilogb{s}(x)") for T, s in _FLOATS)
    words["abs"] = "\n".join(_function(T, "abs", f"{T} x", "x < 0 ? -x : x") for T in ("int", "long"))
    return words


_LANES = "{{ {V} r; for (int i = 0; i < {n}; ++i) r[i] = {value}; return r; }}"


def _vector_functions() -> dict[str, str]:
    """Functions of vectors by their names in a text that has both: `fma` and `float16`."""
    words = {}
    for lane, suffix in _FLOATS:
        for width in WIDTHS:
            vector = f"{lane}{width}"
            lines = []
            for name, count in (("fma", 3), ("fabs", 1), ("sqrt", 1), ("floor", 1)):
                names = "abc"[:count]
                value = f"__builtin_{name}{suffix}({', '.join(f'{x}[i]' for x in names)})"
                typed = ", ".join(f"{vector} {x}" for x in names)
                body = _LANES.format(V=vector, n=width, value=value)
                lines.append(f"TG_FUNCTION {vector} {name}({typed}) {body}")
            words[vector] = "\n".join(lines)
    for lane in ("int", "uint", "long", "ulong"):
        for width in WIDTHS:
            vector = f"{lane}{width}"
            lines = [
                _function(vector, name, f"{vector} a, {vector} b", f"a {op} b ? a : b")
                for name, op in (("min", "<"), ("max", ">"))
            ]
            bounds = (f"{bound} - ({vector}){{}}" for bound in ("low", "high"))
            clamped = "min(max(v, {}), {})".format(*bounds)
            lines.append(_function(vector, "clamp", f"{vector} v, {lane} low, {lane} high", clamped))
            words[vector] = "\n".join(lines)
    return words


# Without a 16-bit type of the compiler's, by bits: through a float whose last bits round as they should, or for
# subnormal results through an addition that shifts them out.
_HALF = """\
#if defined(__FLT16_MAX__) && !defined(TG_HALF_BY_BITS)
typedef _Float16 half;
TG_FUNCTION float tg_from_half(half h) { return (float)h; }
TG_FUNCTION half tg_to_half(float v) { return (half)v; }
#else
typedef ushort half;
TG_FUNCTION float tg_from_half(half h) {
  uint shifted = (uint)(h & 0x7fff) << 13;
  float small = __builtin_bit_cast(float, shifted) * 0x1p112f;
  uint bits = __builtin_bit_cast(uint, small);
  bits = shifted >= 0x0f800000u ? bits | 0x7f800000u : bits;
  return __builtin_bit_cast(float, bits | (uint)(h & 0x8000) << 16);
}
TG_FUNCTION half tg_to_half(float v) {
  uint u = __builtin_bit_cast(uint, v), sign = u >> 16 & 0x8000u, magnitude = u & 0x7fffffffu;
  uint normal = (magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1)) >> 13;
  uint subnormal = __builtin_bit_cast(uint, __builtin_bit_cast(float, magnitude) + 0.5f) - 0x3f000000u;
  uint bits = magnitude >= 0x38800000u ? normal : subnormal;
  bits = magnitude >= 0x477ff000u ? 0x7c00u : bits;
  bits = magnitude > 0x7f800000u ? 0x7e00u : bits;
  return (half)(sign | bits);
}
#endif"""

# Rounds to nearest even; a NaN stays one.
_BF16_STORE = """\
TG_FUNCTION ushort tg_to_bf16(float v) {
  uint u = __builtin_bit_cast(uint, v);
  return v != v ? (ushort)0x7fc0 : (ushort)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}
#define store_bf16(p, i, v) ((p)[i] = tg_to_bf16(v))"""

_F16_VECTOR = """\
TG_FUNCTION float{n} tg_load_f16x{n}(const half* p) {{
  float{n} r;
  for (int i = 0; i < {n}; ++i) r[i] = tg_from_half(p[i]);
  return r;
}}
TG_FUNCTION void tg_store_f16x{n}(half* p, float{n} v) {{
  for (int i = 0; i < {n}; ++i) p[i] = tg_to_half(v[i]);
}}
#define load_f16x{n}(p, i) tg_load_f16x{n}((p) + (i))
#define store_f16x{n}(p, i, v) tg_store_f16x{n}((p) + (i), v)"""

_BF16_VECTOR_STORE = """\
TG_FUNCTION ushort{n} tg_to_bf16x{n}(float{n} v) {{
  uint{n} u = (uint{n})v;
  uint{n} rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  return CONVERT_ushort{n}(v != v ? 0x7fc0u - (uint{n}){{}} : rounded);
}}
#define store_bf16x{n}(p, i, v) (*(ushort{n}u*)((p) + (i)) = tg_to_bf16x{n}(v))"""


def _accesses() -> dict[str, str]:
    """Loads and stores of every element type, single and in vectors."""
    words = plain_accesses()
    words["half"] = words["tg_from_half"] = words["tg_to_half"] = _HALF
    words["load_f16"] = "#define load_f16(p, i) tg_from_half((p)[i])"
    words["store_f16"] = "#define store_f16(p, i, v) ((p)[i] = tg_to_half(v))"
    words["load_bf16"] = "#define load_bf16(p, i) __builtin_bit_cast(float, (uint)(p)[i] << 16)"
    words["store_bf16"] = _BF16_STORE
    for name, lane in LOADED.items():
        for width in WIDTHS:
            load, store = f"load_{name}x{width}", f"store_{name}x{width}"
            if name == "f16":
                words[load] = words[store] = _F16_VECTOR.format(n=width)
            elif name == "bf16":
                bits = f"CONVERT_uint{width}(*(const ushort{width}u*)((p) + (i))) << 16"
                words[load] = f"#define {load}(p, i) ((float{width})({bits}))"
                words[store] = _BF16_VECTOR_STORE.format(n=width)
            else:
                vector = f"{lane}{width}u"
                # Not the type of the place, which differs by its alignment: one of clang's vectors is not the other.
                words[load] = f"#define {load}(p, i) (({lane}{width}) * (const {vector}*)((p) + (i)))"
                words[store] = f"#define {store}(p, i, v) (*({vector}*)((p) + (i)) = (v))"
    return words


_CONSTANTS = {
    "INFINITY": "__builtin_inff()",
    "NAN": '__builtin_nanf("")',
    "CHAR_MIN": "(-128)",
    "CHAR_MAX": "127",
    "UCHAR_MAX": "255",
    "SHRT_MIN": "(-32768)",
    "SHRT_MAX": "32767",
    "INT_MIN": "(-0x7fffffff - 1)",
    "INT_MAX": "0x7fffffff",
    "UINT_MAX": "0xffffffffu",
    "LONG_MIN": "(-0x7fffffffffffffffl - 1)",
    "LONG_MAX": "0x7fffffffffffffffl",
    "ULONG_MAX": "0xfffffffffffffffful",
    "FLT_MAX": "__FLT_MAX__",
    "DBL_MAX": "((double)__DBL_MAX__)",
}


def _definitions() -> dict[str, str]:
    words = {
        **_vectors(),
        **_pairs(),
        **_functions(),
        **_accesses(),
        **bfloat16_words(),
        **{name: f"#define {name} {value}" for name, value in _CONSTANTS.items()},
        # Where they occur, groups have one work-item.
        "LOCAL": "#define LOCAL",
        "BARRIER": "#define BARRIER ((void)0)",
        "PRINT": 'extern "C" int printf(const char*, ...);\n#define PRINT printf',
        "MUL_HIGH_ulong": "#define MUL_HIGH_ulong(a, b) ((ulong)((unsigned __int128)(ulong)(a) * (ulong)(b) >> 64))",
        **{
            word: f"#define {word}(p, expected, value) __sync_val_compare_and_swap(p, expected, value)"
            for word in ("ATOMIC_CAS_int", "ATOMIC_CAS_long")
        },
    }
    for vector, functions in _vector_functions().items():
        words[vector] += f"\n{functions}"
    return words


class Cxx(Dialect):
    """C++ for CPUs: the CPU form of the kernels, whose groups have one work-item or work-items that do not wait for
    each other."""

    name = "c++"
    restrict = "__restrict__"
    options = (
        "-std=c++20 -O3 -march=native -fno-math-errno -fno-trapping-math -ffp-contract=off -fno-strict-aliasing "
        "-fsigned-char -shared -fPIC -w"
    )
    vectorize = 'TG_VECTORIZE("clang loop vectorize(assume_safety) vectorize_width({lanes})")'
    vectorize_masked = (
        'TG_VECTORIZE("clang loop vectorize(assume_safety) vectorize_width({lanes}) vectorize_predicate(enable)")'
    )
    prelude = """\
typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
#define HAS_F64
#define GLOBAL
#define TG_FUNCTION static inline __attribute__((always_inline))
#if defined(__clang__)
#define TG_VECTORIZE(pragma) _Pragma(pragma)
#define PLAIN _Pragma("clang loop vectorize(disable) unroll(disable)")
#define UNROLL _Pragma("unroll")
#define UNROLL_4 _Pragma("unroll 4")
#else
#define TG_VECTORIZE(pragma) _Pragma("GCC ivdep")
#define PLAIN _Pragma("GCC unroll 1")
#define UNROLL _Pragma("GCC unroll 16")
#define UNROLL_4 _Pragma("GCC unroll 4")
#endif
#define GROUP_ID(d) tg_group[d]
#define NUM_GROUPS(d) tg_groups[d]
#define LOCAL_ID(d) tg_local[d]
#define LOCAL_SIZE(d) tg_locals[d]
#define GLOBAL_ID(d) (tg_group[d] * tg_locals[d] + tg_local[d])
#define WIDE
#define PREFETCH(p) __builtin_prefetch(p)
#define PREFETCH_TO_WRITE(p) __builtin_prefetch(p, 1)
#define UNWRAPPED(i) ((long)(i))
#define ALIGN(n) __attribute__((aligned(n)))
"""
    definitions: ClassVar[dict[str, str]] = _definitions()

    def function(self, kernel: Kernel, base_offset: bool) -> str:
        local = (*kernel.local, 1, 1)[:3]
        several = local != (1, 1, 1)
        if several and re.search(r"\b(BARRIER|LOCAL)\b", kernel.body + kernel.helpers):
            raise UnsupportedKernel(
                f"kernel {kernel.name} has groups of {' x '.join(map(str, kernel.local))} work-items that wait for "
                "each other, which the dialect c++ does not render; use the CPU form of kernels"
            )
        params, head = self.parameters(kernel, base_offset)
        declared = [*(f"{ctype} {name}" for ctype, name in params), *(f"const ulong* {name}" for name in _PLACES)]
        values = [f"  {ctype} const {name} = *({ctype}*)tg_arguments[{i}];" for i, (ctype, name) in enumerate(params)]
        call = f"tg_item({', '.join([*(name for _, name in params), *_PLACES])});"
        if several:
            loops = (f"for (tg_local[{d}] = 0; tg_local[{d}] < {local[d]}; ++tg_local[{d}])" for d in (2, 1, 0))
            call = "\n      ".join([*loops, call])
        return "\n".join(
            [
                f"static inline void tg_item({', '.join(declared)}) {{",
                *head,
                kernel.body,
                "}",
                _ENTRY.format(name=kernel.name, values="\n".join(values), locals=", ".join(map(str, local)), call=call),
            ]
        )


# Where a work-item is.
_PLACES = ("tg_group", "tg_groups", "tg_local", "tg_locals")

_ENTRY = """\
extern "C" void {name}(void* const* tg_arguments, const unsigned long long tg_counts[3], unsigned long long tg_begin,
    unsigned long long tg_end) {{
{values}
  const ulong tg_groups[3] = {{tg_counts[0], tg_counts[1], tg_counts[2]}}, tg_locals[3] = {{{locals}}};
  for (ulong tg_at = tg_begin; tg_at < tg_end; ++tg_at) {{
    const ulong tg_group[3] = {{
        tg_at % tg_groups[0], tg_at / tg_groups[0] % tg_groups[1], tg_at / tg_groups[0] / tg_groups[1]}};
    ulong tg_local[3] = {{0, 0, 0}};
    {call}
  }}
}}"""
