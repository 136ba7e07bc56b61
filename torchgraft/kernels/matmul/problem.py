"""What is asked of a matrix product: `C[b] = alpha * A[b] @ B[b] + beta * D[b]`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from torchgraft.codegen.arithmetic import Arithmetic, arithmetic
from torchgraft.codegen.tuning import Target
from torchgraft.codegen.x86 import Way as Instructions
from torchgraft.kernels import bfloat16
from torchgraft.kernels.products import Addend, Unit


@dataclass(frozen=True)
class Matrix:
    """An operand: whatever the launcher takes for a pointer, and strides of rows, columns and batches in elements."""

    pointer: object
    row: int
    column: int
    batch: int = 0

    @property
    def transposed(self) -> Matrix:
        return Matrix(self.pointer, self.column, self.row, self.batch)

    @property
    def by_rows(self) -> Matrix:
        """A batch of its rows."""
        return Matrix(self.pointer, 0, self.column, self.row)


def _unit(k_stride: int, outer_stride: int, k: int, outer: int) -> Unit:
    # A dimension of one element has any stride.
    if outer_stride == 1 or (outer == 1 and k_stride != 1):
        return "outer"
    return "k" if k_stride == 1 or k == 1 else "none"


@dataclass(frozen=True)
class Product:
    """C = alpha * A @ B + beta * D.

    Attributes:
        storage: the element type of all four.
        result: that of C, if it is another one; there is no D then.
        sizes: batches, rows (M), columns (N) and length of the sums (K); only K may be 0.
        d: strides of 0 broadcast it.
        alpha, beta: numbers or whatever the launcher takes for one.
        temporary: makes a place for a number of elements of a type.
        on: what its kernels are made for.
    """

    storage: str
    result: str
    sizes: tuple[int, int, int, int]
    c: Matrix
    a: Matrix
    b: Matrix
    d: Matrix | None
    alpha: object
    beta: object
    temporary: Callable[[int, str], object]
    on: Target

    def __str__(self) -> str:
        batch, m, n, k = self.sizes
        times = f"{batch} times " if batch > 1 else ""
        return f"{times}{m}x{k} by {k}x{n} of {self.storage}, A along {self.unit_a}, B along {self.unit_b}"

    @property
    def is_cpu(self) -> bool:
        return self.on.form == "cpu"

    @cached_property
    def math(self) -> Arithmetic:
        return arithmetic(self.storage, self.on.simd_width)

    @cached_property
    def unit_a(self) -> Unit:
        """The dimension along which A lies together."""
        _, m, _, k = self.sizes
        return _unit(self.a.column, self.a.row, k, m)

    @cached_property
    def unit_b(self) -> Unit:
        _, m, n, k = self.sizes
        if m == n == 1 and self.b.row == 1:
            return "k"  # both strides may be 1
        return _unit(self.b.row, self.b.column, k, n)

    @cached_property
    def addend(self) -> Addend:
        kinds: dict[int, Addend] = {0: "column", 1: "row"}
        return "none" if self.d is None else kinds.get(self.d.column, "any")

    @property
    def any_addend(self) -> Addend:
        """Of kernels that look at D's elements one by one."""
        return any_addend(self.addend)

    @cached_property
    def paired(self) -> Instructions | None:
        """The instructions for pairs of bfloat16, where they serve this product."""
        suits = self.storage == "bf16" and "none" not in (self.unit_a, self.unit_b)
        return self.on.bfloat16 if suits and self.sizes[3] >= bfloat16.LEAST_DEPTH else None

    @property
    def transposed(self) -> Product:
        """The same as the product of the transposes, B by A."""
        batch, m, n, k = self.sizes
        d = self.d.transposed if self.d else None
        a, b, c = self.b.transposed, self.a.transposed, self.c.transposed
        return replace(self, sizes=(batch, n, m, k), a=a, b=b, c=c, d=d)

    @property
    def by_rows(self) -> Product:
        """The same as a batch of products, one for each row; of a product that is no batch itself."""
        _, m, n, k = self.sizes
        d = self.d.by_rows if self.d else None
        return replace(self, sizes=(m, 1, n, k), a=self.a.by_rows, b=replace(self.b, batch=0), c=self.c.by_rows, d=d)

    @property
    def operands(self) -> dict[str, object]:
        """The arguments for all matrices and their factors."""
        if self.d is None:
            return {**matrices({"C": self.c, "A": self.a, "B": self.b}), "alpha": self.alpha}
        all_four = matrices({"C": self.c, "A": self.a, "B": self.b, "D": self.d})
        return {**all_four, "alpha": self.alpha, "beta": self.beta}


def any_addend(addend: Addend) -> Addend:
    """What stands for an addend in kernels that look at its elements one by one."""
    return "any" if addend != "none" else "none"


def matrices(named: Mapping[str, Matrix]) -> dict[str, object]:
    """The arguments for matrices: each one's pointer and strides."""
    out: dict[str, object] = {}
    for name, x in named.items():
        out[name] = x.pointer
        out |= zip((f"{name.lower()}_{s}" for s in ("rs", "cs", "bs")), (x.row, x.column, x.batch), strict=True)
    return out
