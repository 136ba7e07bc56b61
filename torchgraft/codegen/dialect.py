"""Dialects: how a kernel is spelled in a device's language.

Kernel bodies are written in one C-like text with a few neutral names (GLOBAL, BARRIER, GROUP_ID(d), load_f16(p, i),
...). A dialect gives those names their meaning and renders the signature.
"""

from __future__ import annotations

import functools
import re
from typing import ClassVar

from torchgraft.codegen.kernel import Kernel, Pointer, Value
from torchgraft.codegen.types import BY_NAME, value_ctype
from torchgraft.functions import HELPERS

_WORD = re.compile(r"[A-Za-z_]\w*")


class Dialect:
    """A kernel language. Subclasses declare attributes; they rarely need methods.

    Attributes:
        name: as in a driver's properties.
        prelude: text at the head of every module.
        definitions: name -> text of everything that is included only when a kernel uses the name.
        kernel_prefix, global_prefix: parts of a signature.
        kernel_words: those that mark a kernel in the language itself.
        group_size_attribute: format of the attribute that fixes a kernel's work-group size.
        options: of the compiler.
    """

    name = ""
    prelude = ""
    definitions: ClassVar[dict[str, str]] = {}
    kernel_prefix = ""
    kernel_words: tuple[str, ...] = ()
    global_prefix = ""
    restrict = "restrict"
    group_size_attribute = ""
    options = ""

    def render(self, kernel: Kernel, base_offset: bool) -> str:
        """The whole source of a module that holds `kernel`.

        Args:
            kernel: what to render.
            base_offset: pointers arrive as an allocation and a byte offset (see TG_CAP_BASE_OFFSET_POINTERS).
        """
        params: list[str] = []
        head: list[str] = []
        for param in kernel.params:
            if isinstance(param, Value):
                params.append(f"{value_ctype(param.type)} {param.name}")
            elif base_offset:
                pointer = self._pointer(param)
                params.append(f"{self.global_prefix} char* {param.name}_base, ulong {param.name}_offset")
                head.append(f"  {pointer} {param.name} = ({pointer})({param.name}_base + {param.name}_offset);")
            else:
                restrict = f" {self.restrict}" if param.restrict else ""
                params.append(f"{self._pointer(param)}{restrict} {param.name}")
        x, y, z = (*kernel.local, 1, 1)[:3]
        signature = (
            f"{self.kernel_prefix} {self.group_size_attribute.format(x=x, y=y, z=z)}\n"
            f"void {kernel.name}({', '.join(params)})"
        )
        text = "\n".join([kernel.helpers, f"{signature} {{", *head, kernel.body, "}"])
        return "\n".join([self.prelude, *self._used_definitions(text), text, ""])

    def _pointer(self, param: Pointer) -> str:
        const = "const " if param.const else ""
        return f"{self.global_prefix} {const}{BY_NAME[param.type].storage}*"

    def _used_definitions(self, text: str) -> list[str]:
        """Definitions that the text needs, each after those it needs itself."""
        out: dict[str, str] = {}

        def visit(body: str) -> None:
            for word in _WORD.findall(body):
                if word in self.definitions and word not in out:
                    definition = self.definitions[word]
                    out[word] = ""  # stops a definition that names itself
                    visit(definition)
                    del out[word]
                    out[word] = definition

        visit(text)
        return list(dict.fromkeys(out.values()))


def _opencl_accesses() -> dict[str, str]:
    """Loads and stores of every element type, single and in vectors of 4, 8 and 16."""
    out: dict[str, str] = {}
    for name, element in BY_NAME.items():
        storage = element.storage
        if name == "b8":
            out["load_b8"] = "#define load_b8(p, i) ((uchar)((p)[i] != 0))"
            out["store_b8"] = "#define store_b8(p, i, v) ((p)[i] = (uchar)((v) != 0))"
        elif name == "f16":
            out["load_f16"] = _F16_ACCESS
            out["store_f16"] = _F16_ACCESS
        elif name == "bf16":
            out["load_bf16"] = "#define load_bf16(p, i) as_float((uint)(p)[i] << 16)"
            out["store_bf16"] = _BF16_STORE
        else:
            out[f"load_{name}"] = f"#define load_{name}(p, i) ((p)[i])"
            out[f"store_{name}"] = f"#define store_{name}(p, i, v) ((p)[i] = (v))"
        for width in (4, 8, 16):
            if name in ("f32", "f64"):
                vector = f"{storage}{width}u"
                define = f"typedef {storage}{width} {vector} __attribute__((aligned({element.size})));"
                # An unaligned vector type compiles to one instruction where vloadN may not.
                out[vector] = define
                out[f"load_{name}x{width}"] = (
                    f"#define load_{name}x{width}(p, i) (*(const GLOBAL {vector}*)((p) + (i)))"
                )
                out[f"store_{name}x{width}"] = (
                    f"#define store_{name}x{width}(p, i, v) (*(GLOBAL {vector}*)((p) + (i)) = (v))"
                )
            elif name == "f16":
                out[f"load_f16x{width}"] = f"#define load_f16x{width}(p, i) vload_half{width}(0, (p) + (i))"
                out[f"store_f16x{width}"] = (
                    f"#define store_f16x{width}(p, i, v) vstore_half{width}_rte(v, 0, (p) + (i))"
                )
            elif name == "bf16":
                out[f"load_bf16x{width}"] = (
                    f"#define load_bf16x{width}(p, i) "
                    f"as_float{width}(convert_uint{width}(vload{width}(0, (p) + (i))) << 16)"
                )
                out[f"store_bf16x{width}"] = _BF16_STORE_VECTOR.format(n=width)
    return out


# Where clang has the conversion instructions its own half type vectorises; vload_half and vstore_half do not.
_F16_ACCESS = """\
#if defined(__clang__) && defined(__F16C__)
#define load_f16(p, i) ((float)((const GLOBAL _Float16*)(p))[i])
#define store_f16(p, i, v) (((GLOBAL _Float16*)(p))[i] = (_Float16)(v))
#else
#define load_f16(p, i) vload_half(i, p)
#define store_f16(p, i, v) vstore_half_rte(v, i, p)
#endif"""

# Rounds to nearest even; a NaN stays one.
_BF16_STORE = """\
inline ushort tg_to_bf16(float v) {
  uint u = as_uint(v);
  return v != v ? (ushort)0x7fc0 : (ushort)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}
#define store_bf16(p, i, v) ((p)[i] = tg_to_bf16(v))"""

_BF16_STORE_VECTOR = """\
inline ushort{n} tg_to_bf16x{n}(float{n} v) {{
  uint{n} u = as_uint{n}(v);
  uint{n} rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
  return convert_ushort{n}(select(rounded, (uint{n})0x7fc0, v != v));
}}
#define store_bf16x{n}(p, i, v) vstore{n}(tg_to_bf16x{n}(v), 0, (p) + (i))"""

# The first reporter wins; the host reads the words once the work is done.
_REPORT = """\
inline void tg_report(GLOBAL int* words, int code, long index) {
  if (atomic_cmpxchg((volatile GLOBAL int*)words, 0, code) == 0) {
    words[1] = (int)index;
    words[2] = (int)(index >> 32);
  }
}"""

# Philox 4x32-10 (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011).
_PHILOX = """\
inline uint4 tg_philox(ulong seed, ulong counter_low, ulong counter_high) {
  uint k0 = (uint)seed, k1 = (uint)(seed >> 32);
  uint c0 = (uint)counter_low, c1 = (uint)(counter_low >> 32), c2 = (uint)counter_high, c3 = (uint)(counter_high >> 32);
  _Pragma("unroll")
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
  return (uint4)(c0, c1, c2, c3);
}"""


class OpenCL(Dialect):
    """OpenCL C 1.2 and later."""

    name = "opencl-c"
    kernel_prefix = "__kernel"
    kernel_words = ("__kernel", "kernel")
    global_prefix = "__global"
    group_size_attribute = "__attribute__((reqd_work_group_size({x}, {y}, {z})))"
    options = "-cl-std=CL1.2 -w"
    # PoCL warns on stderr of loops that its front end leaves to be vectorised later.
    prelude = """\
#if defined(cl_khr_fp64)
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#endif
#define GLOBAL __global
#define LOCAL __local
#define BARRIER barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE)
#define GLOBAL_ID(d) get_global_id(d)
#define GROUP_ID(d) get_group_id(d)
#define LOCAL_ID(d) get_local_id(d)
#define LOCAL_SIZE(d) get_local_size(d)
#define NUM_GROUPS(d) get_num_groups(d)
/* The iterations are independent, and wide vectors pay where the compiler would choose half of one. */
#define VECTORIZE _Pragma("clang loop vectorize(assume_safety) vectorize_width(16)")
"""
    definitions: ClassVar[dict[str, str]] = {
        **HELPERS,
        **_opencl_accesses(),
        "tg_report": _REPORT,
        "tg_philox": _PHILOX,
    }


DIALECTS: dict[str, Dialect] = {OpenCL.name: OpenCL()}


@functools.cache
def dialect(name: str) -> Dialect:
    """The dialect of that name.

    Raises:
        NotImplementedError: no such dialect is registered; add it to `DIALECTS`.
    """
    try:
        return DIALECTS[name]
    except KeyError:
        raise NotImplementedError(f"torchgraft has no kernel dialect {name!r}; known: {sorted(DIALECTS)}") from None
