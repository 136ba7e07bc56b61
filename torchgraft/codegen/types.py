"""Element types: how each torch dtype is stored, loaded and computed with in a kernel."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class ElementType:
    """One dtype as kernels see it.

    Attributes:
        name: short name used in kernel texts and in the names of loads and stores (``f32``, ``bf16``, ``i64``, ...).
        dtype: the torch dtype.
        size: bytes of one element.
        storage: name of the C type that lies in memory.
        compute: name of the element type that values are computed in (``f32`` for ``f16`` and ``bf16``).
        accumulate: name of the element type that sums are kept in.
    """

    name: str
    dtype: torch.dtype
    size: int
    storage: str
    compute: str
    accumulate: str

    @property
    def is_float(self) -> bool:
        return self.name in ("f16", "bf16", "f32", "f64")

    @property
    def is_complex(self) -> bool:
        return self.name in ("c64", "c128")

    @property
    def is_integer(self) -> bool:
        """True of the integers and of bool."""
        return not (self.is_float or self.is_complex)


_TYPES = [
    ElementType("f64", torch.float64, 8, "double", "f64", "f64"),
    ElementType("f32", torch.float32, 4, "float", "f32", "f32"),
    ElementType("f16", torch.float16, 2, "half", "f32", "f32"),
    ElementType("bf16", torch.bfloat16, 2, "ushort", "f32", "f32"),
    ElementType("i64", torch.int64, 8, "long", "i64", "i64"),
    ElementType("i32", torch.int32, 4, "int", "i32", "i64"),
    ElementType("i16", torch.int16, 2, "short", "i16", "i64"),
    ElementType("i8", torch.int8, 1, "char", "i8", "i64"),
    ElementType("u8", torch.uint8, 1, "uchar", "u8", "i64"),
    ElementType("b8", torch.bool, 1, "uchar", "b8", "i64"),
    ElementType("c64", torch.complex64, 8, "float2", "c64", "c64"),
    ElementType("c128", torch.complex128, 16, "double2", "c128", "c128"),
]

# Types of scalar arguments only.
_VALUE_TYPES = {"u32": "uint", "u64": "ulong"}

BY_NAME: dict[str, ElementType] = {t.name: t for t in _TYPES}
BY_DTYPE: dict[torch.dtype, ElementType] = {t.dtype: t for t in _TYPES}


MOVES = {1: "u8", 2: "i16", 4: "i32", 8: "i64", 16: "c128"}
"""The element type that moves elements of so many bytes, whatever they are."""


# Of a value in a register: nothing is below the first, nothing above the second.
_LIMITS = {
    **dict.fromkeys(("f64", "f32", "f16", "bf16"), ("-INFINITY", "INFINITY")),
    "i64": ("LONG_MIN", "LONG_MAX"),
    "i32": ("INT_MIN", "INT_MAX"),
    "i16": ("SHRT_MIN", "SHRT_MAX"),
    "i8": ("CHAR_MIN", "CHAR_MAX"),
    "u8": ("0", "UCHAR_MAX"),
    "b8": ("0", "1"),
}


def least(name: str) -> str:
    """The least value of element type `name`, as text: -INFINITY of floating-point types. Complex ones have none."""
    return _LIMITS[name][0]


def largest(name: str) -> str:
    """The largest value, likewise."""
    return _LIMITS[name][1]


class UnsupportedDtype(Exception):
    """The dtype has no element type: the op goes to the fallback."""


def element_type(dtype: torch.dtype) -> ElementType:
    """The element type of `dtype`.

    Raises:
        UnsupportedDtype: kernels cannot hold it (quantised types, the float8 family, uint16 and wider).
    """
    try:
        return BY_DTYPE[dtype]
    except KeyError:
        raise UnsupportedDtype(f"kernels have no element type for {dtype}") from None


def value_ctype(name: str) -> str:
    """The C type of a value of element type `name` in a register: float for f16 and bf16, uchar for bool.

    Raises:
        ValueError: no element type has that name.
    """
    if name in _VALUE_TYPES:
        return _VALUE_TYPES[name]
    if name not in BY_NAME:
        raise ValueError(f"there is no element type {name!r}; there are {', '.join([*BY_NAME, *_VALUE_TYPES])}")
    return BY_NAME[BY_NAME[name].compute].storage
