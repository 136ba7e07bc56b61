"""Elements as keys: unsigned numbers of the same order, and what kernels that go over rows of them share."""

from __future__ import annotations

from torchgraft.codegen.kernel import Kernel, parameters
from torchgraft.codegen.types import BY_NAME, MOVES
from torchgraft.codegen.vectors import vector_lanes
from torchgraft.codegen.walk import FEW, Walk


def key_type(type_: str) -> str:
    """The element type that a key lies in."""
    return "i64" if BY_NAME[type_].size == 8 else "i32"


def passes(type_: str) -> int:
    """Bytes of a key that may differ."""
    return {"f16": 4, "bf16": 4}.get(type_, BY_NAME[type_].size)


def unsigned(type_: str) -> str:
    """A key as a number."""
    return "ulong" if key_type(type_) == "i64" else "uint"


def signed(type_: str) -> str:
    """What keys are compared as in vectors, after their highest bit is turned."""
    return unsigned(type_)[1:]


def lowest(type_: str) -> str:
    """A signed number's highest bit."""
    return f"{signed(type_).upper()}_MIN"


def highest(type_: str) -> str:
    """The largest key as it is compared in vectors, which is that of NaN."""
    return f"{signed(type_).upper()}_MAX"


def lanes(type_: str, simd_width: int) -> int:
    """Keys that a vector has."""
    return max(4, vector_lanes(simd_width) // (2 if key_type(type_) == "i64" else 1))


def vector(type_: str, simd_width: int) -> str:
    return f"{signed(type_)}{lanes(type_, simd_width)}"


def storage(type_: str) -> str:
    """What holds an element as it is, also of types that kernels cannot hold."""
    return BY_NAME[MOVES[BY_NAME[type_].size]].storage


def sort_key(type_: str, descending: bool) -> str:
    """The function `sort_key`, which gives the key of a value."""
    if type_ in ("f32", "f16", "bf16"):
        body = "uint u = AS_uint(v == 0 ? 0.0f : v); uint k = v != v ? ~0u : u >> 31 ? ~u : u | 0x80000000u;"
        value, key = "float", "uint"
    elif type_ == "f64":
        body = "ulong u = AS_ulong(v == 0 ? 0.0 : v); ulong k = v != v ? ~0ul : u >> 63 ? ~u : u | (1ul << 63);"
        value, key = "double", "ulong"
    elif type_ == "i64":
        body, value, key = "ulong k = (ulong)v ^ (1ul << 63);", "long", "ulong"
    else:
        bias = {"i32": "0x80000000u", "i16": "0x8000u", "i8": "0x80u"}.get(type_, "0u")
        body, value, key = f"uint k = (uint)((int)v) + {bias};", "int", "uint"
    used = (1 << (8 * passes(type_))) - 1 if passes(type_) < 4 else None
    turned = "~k" if used is None else f"k ^ {used}u"
    return f"inline {key} sort_key({value} v) {{ {body} return {turned if descending else 'k'}; }}\n"


def signed_key(type_: str, at: str) -> str:
    """The key of an element of `x`, to be compared in vectors."""
    return f"({signed(type_)})sort_key(load_{type_}(x, {at})) ^ {lowest(type_)}"


def move(type_: str, to: str, at: str, source: str, source_at: str) -> str:
    """A statement that copies an element."""
    return f"((GLOBAL {storage(type_)}*){to})[{at}] = ((const GLOBAL {storage(type_)}*){source})[{source_at}];"


def rows_kernel(name: str, params: str, form: str, statements: str, helpers: str = "") -> Kernel:
    """A work-item takes a row of `length` elements, number ``i``, which begins at ``base``."""
    walk = Walk(form, group=FEW)
    body = walk.each(f"    const long base = i * length;\n{statements}", vectorize=False)
    return walk.kernel(name, parameters(f"{params}; i64 length"), body, helpers)
