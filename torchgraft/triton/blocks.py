"""Blocks: values with many elements, as functions from an index to an expression.

Ranges, splats, views and the arithmetic of indices are never stored; an element of them is computed where it is asked
for. What is computed by a loop is a `Computed`: an element of it is known within that loop, and afterwards lies in an
array if somebody asks.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from torchgraft.triton.elements import CTYPES, elementwise
from torchgraft.triton.ir import Op, Type

__all__ = [
    "REGISTERS", "Block", "Choice", "Computed", "Elementwise", "Index", "Line", "Pointer", "Range", "Scalar", "Scope",
    "Splat", "Sum", "View", "element_of", "flat", "last_axis", "reshaped",
]  # fmt: skip

Index = tuple[str, ...]

#: How names of arrays begin of which each work-item has the elements that it computes itself.
REGISTERS = "r"


@dataclass
class Scalar:
    """A value of one element.

    Attributes:
        text: a name or a literal; of pointers the offset in elements, a long.
        base: of pointers the kernel's parameter.
        pending: what it is reduced from, until that is done.
    """

    type: Type
    text: str = ""
    base: str = ""
    pending: Computed | None = None


class Scope:
    """A place among loops where statements stand.

    Attributes:
        inner: the variable of the innermost loop; what does not depend on it is computed before that, in `outer`.
        true: blocks whose elements are all true here.
    """

    def __init__(self, names: Iterator[int], inner: str = "", outer: Scope | None = None) -> None:
        self.lines: list[str] = []
        self.inner, self.outer = inner, outer
        self.true: set[Block] = set()
        self._names, self._memo = names, dict[tuple[Block, Index], str]()
        self._own = {inner} if inner else set()  # variables of the loop

    def varies(self, index: Sequence[str]) -> bool:
        """Whether an index depends on the innermost loop."""
        return any(word in self._own for each in index for word in re.findall(r"\w+", each))

    def value(self, block: Block, index: Index) -> str:
        """An element."""
        if block in self.true:
            return "1"
        key = (block, index)
        if key in self._memo:
            return self._memo[key]
        if self.outer is not None and not self.varies(index):
            return self.outer.value(block, index)
        self._memo[key] = block.at(self, index)
        return self._memo[key]

    def set(self, block: Block, index: Index, text: str) -> None:
        """What an element is from now on."""
        self._memo[block, index] = text

    def let(self, ctype: str, text: str) -> str:
        """A name for a value; what is one already stays."""
        if re.fullmatch(r"\w+|\(?-?[\d.]+f?\)?", text):
            return text
        name = f"t{next(self._names)}"
        self._own.add(name)
        self.lines.append(f"const {ctype} {name} = {text};")
        return name


@dataclass(frozen=True)
class Line:
    """Integers along the innermost loop: base + step * i.

    Attributes:
        when: what must be true for that.
    """

    base: str
    step: str
    when: tuple[str, ...] = ()


class Block:
    """See above.

    Attributes:
        weight: of what an element costs; 0 of what has been computed.
        leaves: what a loop has to have computed before.
    """

    light = True

    def __init__(self, kind: Type, parts: Sequence[Block] = ()) -> None:
        self.type = kind
        self.weight: int = 1 + sum(part.weight for part in parts)
        self.leaves: frozenset[Computed] = frozenset().union(*(part.leaves for part in parts))

    def at(self, scope: Scope, index: Index) -> str:
        raise NotImplementedError

    def line(self, scope: Scope, index: Index) -> Line | None:
        """The integers along the scope's innermost loop, if they are so."""
        if scope.varies(index):
            return self.along(scope, index)
        assert scope.outer is not None
        return Line(scope.outer.value(self, index), "0")

    def along(self, scope: Scope, index: Index) -> Line | None:
        return None


class Splat(Block):
    """One number everywhere."""

    def __init__(self, kind: Type, text: str) -> None:
        super().__init__(kind)
        self.text = text

    def at(self, scope: Scope, index: Index) -> str:
        return self.text

    def line(self, scope: Scope, index: Index) -> Line:
        return Line(self.text, "0")


class Range(Block):
    def __init__(self, kind: Type, start: int) -> None:
        super().__init__(kind)
        self._start = start

    def at(self, scope: Scope, index: Index) -> str:
        return f"((int)({index[0]}) + {self._start})" if self._start else f"((int)({index[0]}))"

    def along(self, scope: Scope, index: Index) -> Line | None:
        return Line(str(self._start), "1") if index[0] == scope.inner else None


class View(Block):
    """The elements of another block, at other indices."""

    def __init__(self, kind: Type, of: Block, index: Callable[[Index], Index]) -> None:
        super().__init__(kind, [of])
        self.of, self._index = of, index

    def at(self, scope: Scope, index: Index) -> str:
        return scope.value(self.of, self._index(index))

    def line(self, scope: Scope, index: Index) -> Line | None:
        return self.of.line(scope, self._index(index))

    def inner_index(self, index: Index) -> Index:
        return self._index(index)


class Choice(Block):
    """Elements of one block or another, by a condition of the index."""

    def __init__(self, kind: Type, parts: Sequence[Block], choose: Callable[[Index], tuple[str, Index, Index]]) -> None:
        super().__init__(kind, parts)
        self._parts, self._choose = parts, choose

    def at(self, scope: Scope, index: Index) -> str:
        condition, first, second = self._choose(index)
        a, b = scope.value(self._parts[0], first), scope.value(self._parts[1], second)
        return scope.let(CTYPES[self.type.element], f"({condition} ? {a} : {b})")


class Elementwise(Block):
    """What an op computes of each element, computed where it is asked for."""

    def __init__(self, op: Op, args: Sequence[Block], types: Sequence[str], kind: Type) -> None:
        super().__init__(kind, args)
        self.op, self.args, self._types = op, args, types

    def at(self, scope: Scope, index: Index) -> str:
        args = [scope.value(each, index) for each in self.args]
        if self.op.name == "arith.andi" and self.type.element == "i1" and "1" in args:
            return next((each for each in args if each != "1"), "1")
        element = self.type.element
        return scope.let(CTYPES[element], elementwise(self.op, args, self._types, element))

    def along(self, scope: Scope, index: Index) -> Line | None:
        match self.op.name:
            case "arith.addi" | "arith.subi" | "arith.muli" | "arith.remsi":
                a, b = (each.line(scope, index) for each in self.args)
                return None if a is None or b is None else self._combined(a, b, scope, index)
            case "arith.extsi" | "arith.index_cast":
                if self._types[0] == "i1":
                    return None
                return self.args[0].line(scope, index)
        return None

    def _combined(self, a: Line, b: Line, scope: Scope, index: Index) -> Line | None:
        when = (*a.when, *b.when)
        match self.op.name:
            case "arith.addi":
                return Line(f"({a.base} + {b.base})", _plus(a.step, b.step), when)
            case "arith.subi":
                return Line(f"({a.base} - {b.base})", _minus(a.step, b.step), when)
            case "arith.muli":
                if a.step == "0":
                    return Line(f"({a.base} * {b.base})", _times(a.base, b.step), when)
                return Line(f"({a.base} * {b.base})", _times(b.base, a.step), when) if b.step == "0" else None
        if b.step != "0" or a.step != "1" or scope.inner not in index:
            return None
        # Along a loop that does not wrap, a remainder is what it is of.
        last = self.type.shape[index.index(scope.inner)] - 1
        return Line(a.base, a.step, (*when, f"{a.base} >= 0 && (long){a.base} + {last} < {b.base}"))


class Sum(Block):
    """Offsets in elements, added as longs."""

    def __init__(self, kind: Type, a: Block, b: Block) -> None:
        super().__init__(kind, [a, b])
        self._parts = a, b

    def at(self, scope: Scope, index: Index) -> str:
        a, b = (scope.value(each, index) for each in self._parts)
        return scope.let("long", f"((long){a} + {b})")

    def along(self, scope: Scope, index: Index) -> Line | None:
        a, b = (each.line(scope, index) for each in self._parts)
        if a is None or b is None:
            return None
        return Line(f"((long){a.base} + {b.base})", _plus(a.step, b.step), (*a.when, *b.when))


class Computed(Block):
    """What a loop computes.

    Attributes:
        array: where it lies; empty while the loop is open, and where nobody asks for it afterwards.
    """

    light = False

    def __init__(self, kind: Type, array: str = "") -> None:
        super().__init__(kind)
        self.weight = 0
        self.array = array
        self.leaves = frozenset([self])

    def at(self, scope: Scope, index: Index) -> str:
        assert self.array, "an element of a loop that is open"
        return scope.let(CTYPES[self.type.element], f"({element_of(self.array, index, self.type.shape)})")


@dataclass(frozen=True, eq=False)
class Pointer:
    """A block of pointers: elements of a parameter's memory.

    Attributes:
        offset: in elements.
    """

    type: Type
    base: str
    offset: Block

    @property
    def element(self) -> str:
        """What they point to."""
        return self.type.element

    @property
    def leaves(self) -> frozenset[Computed]:
        return self.offset.leaves


def _plus(a: str, b: str) -> str:
    if "0" in (a, b):
        return b if a == "0" else a
    return str(int(a) + int(b)) if a.lstrip("-").isdigit() and b.lstrip("-").isdigit() else f"({a} + {b})"


def _minus(a: str, b: str) -> str:
    if b == "0":
        return a
    return str(int(a) - int(b)) if a.lstrip("-").isdigit() and b.lstrip("-").isdigit() else f"({a} - {b})"


def _times(a: str, b: str) -> str:
    if "0" in (a, b):
        return "0"
    return b if a == "1" else a if b == "1" else f"({a} * {b})"


def last_axis(shape: Sequence[int]) -> int:
    """The last dimension with more than one element, or else the last."""
    return max((d for d, n in enumerate(shape) if n > 1), default=len(shape) - 1)


def element_of(array: str, index: Index, shape: Sequence[int]) -> str:
    """An element of an array; of a work-item's registers the one that its loops are at."""
    if not array.startswith(REGISTERS):
        return f"{array}[{flat(index, shape)}]"
    here = tuple(f"i{d}" for d in range(len(shape)))
    assert all(n == 1 or each == name for n, each, name in zip(shape, index, here, strict=True)), (index, shape)
    return f"{array}[own]"


def flat(index: Index, shape: Sequence[int]) -> str:
    """The place of an element in an array."""
    terms = [
        each if step == 1 else f"({each}) * {step}"
        for each, step, n in zip(index, _steps(shape), shape, strict=True)
        if n > 1 and each != "0"
    ]
    return " + ".join(terms) or "0"


def _steps(shape: Sequence[int]) -> list[int]:
    steps = list(itertools.accumulate(reversed(shape), lambda a, b: a * b, initial=1))
    return steps[-2::-1]


def reshaped(source: tuple[int, ...], target: tuple[int, ...]) -> Callable[[Index], Index]:
    """From an index of a block's new shape to that of its old one."""
    kept = [d for d, n in enumerate(source) if n > 1]
    there = [d for d, n in enumerate(target) if n > 1]
    if [source[d] for d in kept] == [target[d] for d in there]:  # only dimensions of one element came or went

        def moved(index: Index) -> Index:
            by = dict(zip(kept, there, strict=True))
            return tuple(index[by[d]] if d in by else "0" for d in range(len(source)))

        return moved

    def computed(index: Index) -> Index:
        place = flat(index, target)
        out = []
        for d, (step, n) in enumerate(zip(_steps(source), source, strict=True)):
            text = f"({place})" if step == 1 else f"(({place}) / {step})"
            out.append("0" if n == 1 else text if all(m == 1 for m in source[:d]) else f"({text} % {n})")
        return tuple(out)

    return computed
