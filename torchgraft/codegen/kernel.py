"""A kernel as data: name, parameters, body. A dialect renders it to a device's language."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from torchgraft.codegen.types import BY_NAME, value_ctype


def ceil_div(a: int, b: int) -> int:
    """How many pieces of `b` cover `a`: of the groups that a launch takes, say."""
    return -(-a // b)


def round_up(value: int, step: int) -> int:
    """The least multiple of `step` that is not below `value`."""
    return ceil_div(value, step) * step


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

_DECLARATION = re.compile(
    r"(?P<const>const )?(?P<type>\w+)(?P<pointer>\*)?(?P<restrict> restrict)? (?P<names>\w+(, *\w+)*)"
)


def parameters(declarations: str) -> tuple[Parameter, ...]:
    """Parameters as C would declare them, with element types: ``"const f32* x, y; bf16* out; i64 rows, size"``.

    Empty declarations are left out, so that a part may be an f-string which is empty at times.

    Raises:
        ValueError: a declaration is none, or names a type that kernels do not have.
    """
    out: list[Parameter] = []
    for declaration in filter(None, map(str.strip, declarations.split(";"))):
        found = _DECLARATION.fullmatch(declaration)
        if found is None:
            raise ValueError(f"{declaration!r} declares no parameters; that is done as in 'const f32* x, y'")
        type_, names = found["type"], found["names"].replace(" ", "").split(",")
        if found["pointer"]:
            if type_ not in BY_NAME:
                raise ValueError(f"{declaration!r}: there are no pointers to {type_!r}")
            out += [Pointer(name, type_, bool(found["const"]), bool(found["restrict"])) for name in names]
        else:
            value_ctype(type_)
            out += [Value(name, type_) for name in names]
    return tuple(out)


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
    """A kernel, its groups in each dimension and its arguments by the names of its parameters."""

    kernel: Kernel
    groups: tuple[int, ...]
    arguments: Mapping[str, object]
