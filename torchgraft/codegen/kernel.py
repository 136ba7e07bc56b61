"""A kernel as data: name, parameters, body. A dialect renders it to a device's language."""

from __future__ import annotations

from dataclasses import dataclass


def ceil_div(a: int, b: int) -> int:
    """How many pieces of `b` cover `a`: of the groups that a launch takes, say."""
    return -(-a // b)


@dataclass(frozen=True)
class Pointer:
    """A pointer parameter to elements of storage type `type` ("f32", "bf16", ...; see codegen.types)."""

    name: str
    type: str
    const: bool = False
    restrict: bool = False


@dataclass(frozen=True)
class Value:
    """A scalar parameter of type `type`: an element type's name, or "u32", "u64"."""

    name: str
    type: str


Parameter = Pointer | Value


@dataclass(frozen=True)
class Kernel:
    """One kernel.

    Attributes:
        name: an identifier; shown by profilers and error messages. Kernels that differ may share it.
        params: in the order of a launch's arguments.
        body: statements, without the signature and its braces.
        helpers: text before the kernel: macros and functions. Those of `functions.HELPERS` that a text names need not
            be here: the dialect includes them.
        local: work-items of one group in each dimension; a constant, since compilers specialise on it.
    """

    name: str
    params: tuple[Parameter, ...]
    body: str
    helpers: str = ""
    local: tuple[int, ...] = (1,)

    @property
    def dims(self) -> int:
        return len(self.local)


@dataclass(frozen=True)
class Launch:
    """A kernel, its groups in each dimension and its arguments in the order of its parameters."""

    kernel: Kernel
    groups: tuple[int, ...]
    args: tuple[object, ...]
