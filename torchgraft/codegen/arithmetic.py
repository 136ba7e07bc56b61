"""How each storage type is computed with in vectors."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from torchgraft.codegen.types import BY_NAME
from torchgraft.codegen.vectors import vector_lanes


@dataclass(frozen=True)
class Arithmetic:
    """How a storage type is computed with in vectors.

    Attributes:
        storage: the storage type's name.
        scalar: the C type of one accumulator, of a complex number's parts for the complex types.
        width: elements of the vectors used.
        value: the type of `alpha` and `beta`, an element type's name.
    """

    storage: str
    scalar: str
    width: int
    value: str

    @property
    def vector(self) -> str:
        return f"{self.scalar}{self.width}"

    @property
    def size(self) -> int:
        """Bytes of one scalar."""
        return 8 if self.scalar in ("double", "long") else 4

    @property
    def is_complex(self) -> bool:
        return self.storage in ("c64", "c128")

    @property
    def is_float(self) -> bool:
        return self.storage in ("f16", "bf16", "f32", "f64")

    @property
    def pointer(self) -> str:
        return f"GLOBAL {BY_NAME[self.storage].storage}*"

    @property
    def const_pointer(self) -> str:
        return f"GLOBAL const {BY_NAME[self.storage].storage}*"

    def load(self, pointer: str, index: str) -> str:
        if self.is_complex or self.is_float:
            return f"load_{self.storage}({pointer}, {index})"
        return f"({self.scalar})load_{self.storage}({pointer}, {index})"

    def load_vector(self, pointer: str, index: str, width: int | None = None) -> str:
        width = width or self.width
        if self.is_float:
            return f"load_{self.storage}x{width}({pointer}, {index})"
        return f"CONVERT_{self.scalar}{width}(load_{self._bytes}x{width}({pointer}, {index}))"

    def store(self, pointer: str, index: str, value: str) -> str:
        return f"store_{self.storage}({pointer}, {index}, {value})"

    def store_vector(self, pointer: str, index: str, value: str) -> str:
        if self.is_float:
            return f"store_{self.storage}x{self.width}({pointer}, {index}, {value})"
        converted = f"CONVERT_{BY_NAME[self.storage].storage}{self.width}({value})"
        return f"store_{self._bytes}x{self.width}({pointer}, {index}, {converted})"

    @property
    def _bytes(self) -> str:
        """What vectors of integers are loaded and stored as: booleans are bytes."""
        return "u8" if self.storage == "b8" else self.storage

    def splat(self, value: str) -> str:
        return f"SPLAT_{self.vector}({value})"

    def multiply_add(self, a: str, b: str, c: str) -> str:
        """a*b + c for vectors or scalars, real."""
        return f"fma({a}, {b}, {c})" if self.is_float or self.is_complex else f"({a} * {b} + {c})"


@cache
def arithmetic(storage: str, simd_width: int = 16) -> Arithmetic:
    """The arithmetic of a storage type on a device whose registers hold `simd_width` float32.

    Small integers are summed in int32: sums that wrap agree in their low bits whatever the width they are kept in.
    """
    simd_width = vector_lanes(simd_width)
    wide = max(4, simd_width // 2)
    match storage:
        case "f32" | "f16" | "bf16":
            return Arithmetic(storage, "float", simd_width, "f32")
        case "f64":
            return Arithmetic(storage, "double", wide, "f64")
        case "i32" | "i16" | "i8" | "u8" | "b8":
            return Arithmetic(storage, "int", simd_width, "i32")
        case "i64":
            return Arithmetic(storage, "long", wide, "i64")
        case "c64":
            return Arithmetic(storage, "float", simd_width, "c64")
        case "c128":
            return Arithmetic(storage, "double", wide, "c128")
    raise ValueError(f"no matrix product for elements of type {storage}")
