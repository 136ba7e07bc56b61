"""Words for what a GPU that takes PTX has beyond OpenCL C: sums into memory, and its matrix units.

These 32 neighbouring work-items feed together: each has a fragment of each matrix.

Fragments of A (16 x 16), B (16 x 8) and of the sums (16 x 8) lie as the instruction `mma.sync.m16n8k16` has them. Of
the work-item g * 4 + t among the 32

* ``a[0]`` is the pair of elements (g, 2t) and (g, 2t + 1) of A, ``a[1]`` the one 8 rows below, ``a[2]`` and ``a[3]``
  those 8 columns to the right of these two;
* ``b[0]`` is the pair of elements (2t, g) and (2t + 1, g) of B, ``b[1]`` the one 8 rows below;
* ``c[0]`` and ``c[1]`` are the sums (g, 2t) and (g, 2t + 1), ``c[2]`` and ``c[3]`` those 8 rows below.

Whether a device has such units is its driver's to say (TG_CAP_FRAGMENTS in driver.h), which defines TG_PTX where its
compiler takes PTX within C. Elsewhere the words find the same by way of local memory, slowly: so that what is made of
them can be tried on any device.

Source: the PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type" and "Parallel Synchronization and
Communication Instructions: red".
"""

from __future__ import annotations

from torchgraft.codegen.places import ATOMIC_ADDS

# c[i] is of row g + 8 (i / 2) and column 2t + i % 2; who has an element of A or B follows from the same places.
_ELSEWHERE = """\
#define FRAGMENTS_BEGIN(n) LOCAL uint tg_all_a[n][4], tg_all_b[n][2]
#define FRAGMENTS_MULTIPLY_{type}(c, a, b) \\
  do {{ \\
    const int tg_me = LOCAL_ID(0), tg_first = tg_me / 32 * 32, tg_g = tg_me % 32 / 4, tg_t = tg_me % 4; \\
    for (int tg_i = 0; tg_i < 4; ++tg_i) tg_all_a[tg_me][tg_i] = (a)[tg_i]; \\
    for (int tg_i = 0; tg_i < 2; ++tg_i) tg_all_b[tg_me][tg_i] = (b)[tg_i]; \\
    BARRIER; \\
    for (int tg_i = 0; tg_i < 4; ++tg_i) \\
      for (int tg_k = 0; tg_k < 16; ++tg_k) {{ \\
        const int tg_of = tg_k % 8 / 2, tg_half = tg_k % 2 * 16; \\
        const uint tg_x = tg_all_a[tg_first + tg_g * 4 + tg_of][tg_i / 2 + tg_k / 8 * 2] >> tg_half; \\
        const uint tg_y = tg_all_b[tg_first + (tg_t * 2 + tg_i % 2) * 4 + tg_of][tg_k / 8] >> tg_half; \\
        (c)[tg_i] += tg_{type}_bits(tg_x) * tg_{type}_bits(tg_y); \\
      }} \\
    BARRIER; \\
  }} while (0)"""

_BITS = {
    "bf16": "#define tg_bf16_bits(x) as_float((x) << 16)",
    "f16": """\
inline float tg_f16_bits(uint x) {
  const ushort bits = (ushort)x;
  return vload_half(0, (const half*)&bits);
}""",
}


def _multiply(type_: str) -> str:
    """The word for products of 16-bit floats of a type."""
    sums = ", ".join(f'"+f"((c)[{i}])' for i in range(4))
    factors = ", ".join([*(f'"r"((a)[{i}])' for i in range(4)), *(f'"r"((b)[{i}])' for i in range(2))])
    named = "{%0, %1, %2, %3}"
    instruction = f"mma.sync.aligned.m16n8k16.row.col.f32.{type_}.{type_}.f32"
    return f"""\
#ifdef TG_PTX
#define FRAGMENTS_BEGIN(n)
#define FRAGMENTS_MULTIPLY_{type_}(c, a, b) \\
  asm volatile("{instruction} {named}, {{%4, %5, %6, %7}}, {{%8, %9}}, {named};" : {sums} : {factors})
#else
{_BITS[type_]}
{_ELSEWHERE.format(type=type_)}
#endif"""


def _add(type_: str, instruction: str, operand: str) -> str:
    """The word that adds to a place in memory which others add to as well."""
    return f"""\
#ifdef TG_PTX
#define ATOMIC_ADD_{type_}(p, value) \\
  asm volatile("red.global.add.{instruction} [%0], %1;" : : "l"(p), "{operand}"(value) : "memory")
#else
{ATOMIC_ADDS[f"ATOMIC_ADD_{type_}"]}
#endif"""


def addition_words() -> dict[str, str]:
    """The words ``ATOMIC_ADD_<type>``, which docs/kernel-language.md describes: name -> text."""
    instructions = {"f32": ("f32", "f"), "f64": ("f64", "d"), "i32": ("s32", "r"), "i64": ("u64", "l")}
    return {f"ATOMIC_ADD_{type_}": _add(type_, *both) for type_, both in instructions.items()}


def fragment_words() -> dict[str, str]:
    """The words, which docs/kernel-language.md describes: name -> text. FRAGMENTS_BEGIN comes along with the other."""
    return {f"FRAGMENTS_MULTIPLY_{type_}": _multiply(type_) for type_ in _BITS}
