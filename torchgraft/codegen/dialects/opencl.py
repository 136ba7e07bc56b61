"""The dialect of OpenCL C."""

from __future__ import annotations

import re
from typing import ClassVar

from torchgraft.codegen.dialect import Dialect, plain_accesses
from torchgraft.codegen.kernel import Kernel
from torchgraft.codegen.ptx import addition_words, fragment_words
from torchgraft.codegen.types import BY_NAME
from torchgraft.codegen.vectors import LOADED, PAIRS, SIZES, VECTORS, WIDTHS, parameters
from torchgraft.codegen.x86 import bfloat16_words

# Types as large as another's lanes: of the numbers of lanes that `shuffle2` takes.
_UNSIGNED = {1: "uchar", 2: "ushort", 4: "uint", 8: "ulong"}


def _vectors() -> dict[str, str]:
    """What makes and takes apart vectors and pairs."""
    words = {}
    for vector, (lane, width) in {**VECTORS, **{pair: (part, 2) for pair, part in PAIRS.items()}}.items():
        names = parameters(width)
        words[f"MAKE_{vector}"] = f"#define MAKE_{vector}({names}) (({vector})({names}))"
        words[f"SPLAT_{vector}"] = f"#define SPLAT_{vector}(x) (({vector})(x))"
        words[f"CONVERT_{vector}"] = f"#define CONVERT_{vector}(v) convert_{vector}(v)"
        words[f"AS_{vector}"] = f"#define AS_{vector}(v) as_{vector}(v)"
        words[f"{vector}u"] = f"typedef {vector} {vector}u __attribute__((aligned({SIZES[lane]})));"
        if width != 2:
            words[f"SHUFFLE_{vector}"] = (
                # clang has an instruction for it, and takes longer over the function.
                "#ifdef __clang__\n"
                f"#define SHUFFLE_{vector}(v, w, {names}) __builtin_shufflevector(v, w, {names})\n"
                "#else\n"
                f"#define SHUFFLE_{vector}(v, w, {names}) shuffle2(v, w, ({_UNSIGNED[SIZES[lane]]}{width})({names}))\n"
                "#endif"
            )
    words |= {f"AS_{lane}": f"#define AS_{lane}(x) as_{lane}(x)" for lane in SIZES}
    words["LANE"] = "#define LANE(v, k) ((v).s##k)"
    words["SELECT"] = "#define SELECT(mask, a, b) ((mask) ? (a) : (b))"
    return words


def _accesses() -> dict[str, str]:
    """Loads and stores of every element type, single and in vectors."""
    words = plain_accesses()
    words["tg_no_bits"] = _NO_BITS
    words["store_b8"] = _B8_STORE
    words["load_f16"] = words["store_f16"] = _F16_ACCESS
    words["load_bf16"] = "#define load_bf16(p, i) as_float((uint)(p)[i] << 16)"
    words["store_bf16"] = _BF16_STORE
    for name, lane in LOADED.items():
        for width in WIDTHS:
            load, store = f"load_{name}x{width}", f"store_{name}x{width}"
            vector = f"{lane}{width}"
            if name == "f16":
                words[load] = words[store] = _F16_VECTOR_ACCESS.format(n=width)
            elif name == "bf16":
                words[load] = f"#define {load}(p, i) as_{vector}(convert_uint{width}(vload{width}(0, (p) + (i))) << 16)"
                words[store] = _BF16_STORE_VECTOR.format(n=width)
            elif BY_NAME[name].is_float:
                # An unaligned vector type compiles to one instruction where vloadN may not.
                words[load] = f"#define {load}(p, i) (*(const GLOBAL {vector}u*)((p) + (i)))"
                words[store] = f"#define {store}(p, i, v) (*(GLOBAL {vector}u*)((p) + (i)) = (v))"
            else:
                words[load] = f"#define {load}(p, i) vload{width}(0, (p) + (i))"
                words[store] = f"#define {store}(p, i, v) (*(GLOBAL {vector}u*)((p) + (i)) = (v))"
    return words


# No bits: the highest of a program's addresses is never set, which compilers do not know. A number to which these are
# added is no constant to them, and no other number.
_NO_BITS = "#define tg_no_bits(p) ((ulong)(p) >> 63)"

# Where clang has the conversion instructions, or compiles for another compiler that knows halves, a type of halves
# vectorises; vload_half and vstore_half do not.
_HALVES = """\
#if defined(__clang__) && defined(__F16C__)
#define TG_HALF _Float16
#elif defined(__SPIR__) && defined(cl_khr_fp16)
#define TG_HALF half
#endif
"""
# But of a number that it knows to come from a half, or to become one, clang compares and negates the half, and there
# are no instructions for that: each element would be taken out of its vector and widened once more.
_F16_ACCESS = f"""\
{_HALVES}#ifdef TG_HALF
#define load_f16(p, i) as_float(as_uint((float)((const GLOBAL TG_HALF*)(p))[i]) | (uint)tg_no_bits(p))
#define store_f16(p, i, v) (((GLOBAL TG_HALF*)(p))[i] = (TG_HALF)as_float(as_uint((float)(v)) | (uint)tg_no_bits(p)))
#else
#define load_f16(p, i) vload_half(i, p)
#define store_f16(p, i, v) vstore_half_rte(v, i, p)
#endif"""

# PoCL 3.1 reads and writes what vload_half and vstore_half are given as if it were aligned as a whole vector.
_F16_VECTOR_ACCESS = f"""\
{_HALVES}#ifdef TG_HALF
typedef TG_HALF tg_half{{n}} __attribute__((ext_vector_type({{n}}), aligned(2)));
#define load_f16x{{n}}(p, i) as_float{{n}}(as_uint{{n}}( \\
  __builtin_convertvector(*(const GLOBAL tg_half{{n}}*)((p) + (i)), float{{n}})) | (uint)tg_no_bits(p))
#define store_f16x{{n}}(p, i, v) (*(GLOBAL tg_half{{n}}*)((p) + (i)) = \\
  __builtin_convertvector(as_float{{n}}(as_uint{{n}}(v) | (uint)tg_no_bits(p)), tg_half{{n}}))
#else
#define load_f16x{{n}}(p, i) vload_half{{n}}(0, (p) + (i))
#define store_f16x{{n}}(p, i, v) vstore_half{{n}}_rte(v, 0, (p) + (i))
#endif"""

# 1 as no constant, for the reason that the next has: mostly no element is a NaN, say.
_B8_STORE = "#define store_b8(p, i, v) ((p)[i] = (v) != 0 ? (uchar)(tg_no_bits(p) << 1 | 1) : (uchar)0)"

# Rounds to nearest even; a NaN stays one. A NaN that is a constant would be loaded into just those lanes that need it:
# mostly none does, and while nothing else has read that page of memory such a load takes a hundred cycles. (It is made
# of 64 bits since a choice between what was made of 32 bits would be one of 32 bits, which are twice as many vectors.)
_BF16_STORE = """\
static inline ushort tg_to_bf16(float v, ushort nan) {
  uint u = as_uint(v);
  return v != v ? nan : (ushort)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}
#define store_bf16(p, i, v) ((p)[i] = tg_to_bf16(v, (ushort)(0x7fc0 | tg_no_bits(p))))"""

_BF16_STORE_VECTOR = """\
static inline ushort{n} tg_to_bf16x{n}(float{n} v) {{
  uint{n} u = as_uint{n}(v);
  uint{n} rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
  return convert_ushort{n}(select(rounded, (uint{n})0x7fc0, v != v));
}}
#define store_bf16x{n}(p, i, v) (*(GLOBAL ushort{n}u*)((p) + (i)) = tg_to_bf16x{n}(v))"""

# Not for a virtual machine, which may have no such instruction.
_ON_CPU = "#if defined(__clang__) && (defined(__x86_64__) || defined(__aarch64__))\n"


_NUM_GROUPS = re.compile(r"\bNUM_GROUPS\((\w+)\)")
_BUILTINS_OF_RANGES = re.compile(r"\bget_\w+\s*\(")  # get_group_id and the like


class OpenCL(Dialect):
    """OpenCL C 1.2 and later."""

    name = "opencl-c"
    kernel_prefix = "__kernel"
    kernel_words = ("__kernel", "kernel")
    global_prefix = "__global"
    group_size_attribute = "__attribute__((reqd_work_group_size({x}, {y}, {z})))"
    options = "-cl-std=CL1.2 -w"
    # The iterations are independent, and wide vectors pay where the compiler would choose half of one. (PoCL warns on
    # stderr of loops that its front end leaves to be vectorised later.) Intel's compiler (2026.2) unrolls loops of few
    # iterations first, which pays where the body is an addition, and takes eight times as long where it is exp.
    vectorize = '_Pragma("clang loop vectorize(assume_safety) vectorize_width({lanes})")'
    vectorize_masked = (
        '_Pragma("clang loop vectorize(assume_safety) vectorize_width({lanes}) vectorize_predicate(enable)")'
    )
    vectorize_once = "TG_VECTORIZE_ONCE"
    prelude = """\
#if defined(__SPIR__)
#define TG_VECTORIZE_ONCE _Pragma("clang loop vectorize(assume_safety) unroll(disable)")
#define TG_NO_VECTORS_OF_LOOPS
#else
#define TG_VECTORIZE_ONCE VECTORIZE
#endif
#define TG_VECTOR_OPERATORS
#if defined(cl_khr_fp64)
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#define HAS_F64
#endif
#define GLOBAL __global
#define LOCAL __local
#if defined(__clang__) && (defined(__x86_64__) || defined(__aarch64__))
// PoCL 3.1 takes a condition that was known before a barrier for the same in all work-items behind it, if the first
// branch there is by it: behind this nothing is known of memory.
#define BARRIER do { barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE); __asm__ volatile("" ::: "memory"); } while (0)
#else
#define BARRIER barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE)
#endif
#define GLOBAL_ID(d) get_global_id(d)
#ifdef TG_DIVISIBLE
#define GROUP_ID(d) (get_group_id(d) + get_global_offset(d))
#else
#define GROUP_ID(d) get_group_id(d)
#endif
#define LOCAL_ID(d) get_local_id(d)
#define LOCAL_SIZE(d) get_local_size(d)
#define NUM_GROUPS(d) get_num_groups(d)
"""
    definitions: ClassVar[dict[str, str]] = {
        **_vectors(),
        **_accesses(),
        **bfloat16_words(),
        **fragment_words(),
        **addition_words(),
        "TG_FUNCTION": "#define TG_FUNCTION static inline __attribute__((always_inline))",
        # Where a CPU's make prefers vectors of 256 bits, Clang has no wider ones in a function without such arguments.
        "WIDE": "#if defined(__clang__) && defined(__AVX512F__)\n#define WIDE __attribute__((min_vector_width(512)))\n"
        "#else\n#define WIDE\n#endif",
        **{f"tg_exp_f32x{n}": f"#define tg_exp_f32x{n}(v) exp(v)" for n in WIDTHS},
        "PREFETCH": f"{_ON_CPU}#define PREFETCH(p) __builtin_prefetch((const void*)(size_t)(p))\n"
        "#else\n#define PREFETCH(p) ((void)0)\n#endif",
        "PREFETCH_TO_WRITE": f"{_ON_CPU}#define PREFETCH_TO_WRITE(p) __builtin_prefetch((const void*)(size_t)(p), 1)\n"
        "#else\n#define PREFETCH_TO_WRITE(p) ((void)0)\n#endif",
        # A compiler that goes by way of a virtual machine (intel-opencl-rt 2026.2) crashes where it can tell that every
        # other float32 is read to become an int64.
        "UNWRAPPED": f"{_ON_CPU}#define UNWRAPPED(i) ((long)(i))\n#else\n#define UNWRAPPED(i) (i)\n#endif",
        "ALIGN": "#define ALIGN(n) __attribute__((aligned(n)))",
        "PRINT": "#define PRINT printf",
        "PLAIN": '#define PLAIN _Pragma("clang loop vectorize(disable) unroll(disable)")',
        "UNROLL": '#define UNROLL _Pragma("unroll")',
        "UNROLL_4": '#define UNROLL_4 _Pragma("unroll 4")',
        "MUL_HIGH_ulong": "#define MUL_HIGH_ulong(a, b) mul_hi((ulong)(a), (ulong)(b))",
        "ATOMIC_CAS_int": "#define ATOMIC_CAS_int(p, expected, value) "
        "atomic_cmpxchg((volatile GLOBAL int*)(p), expected, value)",
        "ATOMIC_CAS_long": "#pragma OPENCL EXTENSION cl_khr_int64_base_atomics : enable\n"
        "#define ATOMIC_CAS_long(p, expected, value) atom_cmpxchg((volatile GLOBAL long*)(p), expected, value)",
    }

    def render(self, kernel: Kernel, base_offset: bool, simd_width: int = 16) -> str:
        """As of every dialect, and with a word for implementations that can have several threads each run a part of a
        launch: along which dimensions nothing tells a part from the whole, where groups are of one work-item. Their
        numbers then have the offset of the part added, which is counted in work-items."""
        text = super().render(kernel, base_offset, simd_width)
        own = kernel.helpers + kernel.body
        told = _NUM_GROUPS.findall(own)  # how many groups there are along these
        along = sum(1 << d for d in range(3) if str(d) not in told)
        if set(kernel.local) != {1} or not along or _BUILTINS_OF_RANGES.search(own):
            return text
        word = f"#define TG_DIVISIBLE {along}\n__kernel void tg_divisible_{along}() {{}}"
        return f"#ifdef __SPIR__\n{word}\n#endif\n{text}"
