"""Groups: what is done to each element of blocks of one shape, as one nest of loops.

Loads, arithmetic, reductions and stores over one shape are collected in the order of the program. A group ends where
something needs what it has reduced, has another shape, or might touch memory in another order than the program says.
Where masks bound the innermost loop, it is two: up to the last whole vector without masks, and behind that with them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torchgraft.triton.blocks import (
    Block,
    Computed,
    Elementwise,
    Index,
    Line,
    Pointer,
    Scalar,
    Scope,
    Splat,
    View,
    element_of,
    flat,
)
from torchgraft.triton.elements import CTYPES, elementwise, literal, operand_types, stored
from torchgraft.triton.ir import Block as Ops
from torchgraft.triton.ir import Op, Value
from torchgraft.triton.refused import Refused

__all__ = [
    "LANES",
    "Accumulate",
    "Compute",
    "Group",
    "Load",
    "Member",
    "Nest",
    "Reduce",
    "SerialGroup",
    "Store",
    "Text",
    "combined",
]

# Partial results of a reduction along the innermost loop stand side by side: the longest are summed in so many parts.
LANES = 64
# Elements of a loop without masks are a multiple of this.
_VECTOR = 16


@dataclass(eq=False)
class Member:
    """Something that is done for each element.

    Attributes:
        op: whose it is.
        results: that others may ask for.
    """

    op: Op
    results: list[Computed] = field(default_factory=list)

    def parts(self) -> list[Block]:
        """What it reads."""
        return []

    def emit(self, nest: Nest, scope: Scope, fast: bool) -> None:
        raise NotImplementedError


@dataclass(eq=False)
class Compute(Member):
    args: Sequence[Block] = ()

    def parts(self) -> list[Block]:
        return list(self.args)

    def emit(self, nest: Nest, scope: Scope, fast: bool) -> None:
        element = self.results[0].type.element
        text = elementwise(
            self.op, [scope.value(each, nest.index) for each in self.args], operand_types(self.op), element
        )
        scope.set(self.results[0], nest.index, scope.let(CTYPES[element], text))


@dataclass(eq=False)
class Memory(Member):
    pointer: Pointer | None = None
    mask: Block | None = None
    place: str = ""  # of the pointer, as the kernel language has it

    def where(self, nest: Nest, scope: Scope, fast: bool) -> str:
        """The offset of an element."""
        assert self.pointer is not None
        line = self.pointer.offset.line(scope, nest.index)
        if line is None or (line.when and not fast):
            return scope.value(self.pointer.offset, nest.index)
        assert scope.outer is not None
        base = line.base if line.base == "0" else scope.outer.let("long", f"({line.base})")
        match line.step:
            case "0":
                return base
            case "1":
                return f"{base} + {nest.inner}"
        return f"{base} + (long){scope.outer.let('long', line.step)} * {nest.inner}"

    def condition(self, nest: Nest, scope: Scope) -> str:
        return "1" if self.mask is None else scope.value(self.mask, nest.index)


@dataclass(eq=False)
class Load(Memory):
    other: Block | None = None

    def parts(self) -> list[Block]:
        assert self.pointer is not None
        return [each for each in (self.pointer.offset, self.mask, self.other) if each is not None]

    def emit(self, nest: Nest, scope: Scope, fast: bool) -> None:
        assert self.pointer is not None
        text = f"load_{stored(self.pointer.element, self.op)}({self.place}, {self.where(nest, scope, fast)})"
        condition = self.condition(nest, scope)
        if condition != "1":
            other = "0" if self.other is None else scope.value(self.other, nest.index)
            text = f"({condition} ? {text} : {other})"
        scope.set(self.results[0], nest.index, scope.let(CTYPES[self.pointer.element], text))


@dataclass(eq=False)
class Store(Memory):
    value: Block | None = None

    def parts(self) -> list[Block]:
        assert self.pointer is not None
        return [each for each in (self.pointer.offset, self.mask, self.value) if each is not None]

    def emit(self, nest: Nest, scope: Scope, fast: bool) -> None:
        assert self.pointer is not None
        assert self.value is not None
        value, condition = scope.value(self.value, nest.index), self.condition(nest, scope)
        where = self.where(nest, scope, fast)
        text = f"store_{stored(self.pointer.element, self.op)}({self.place}, {where}, {value});"
        scope.lines.append(text if condition == "1" else f"if ({condition}) {{ {text} }}")


@dataclass(eq=False)
class Reduce(Member):
    """Along one dimension, by a function of two elements, each of one value or several.

    Attributes:
        scalars: the results, where nothing is left of the shape.
        partial: arrays of partial results.
        places: arrays of the results.
    """

    args: Sequence[Block] = ()
    axis: int = 0
    scalars: list[Scalar] = field(default_factory=list)
    partial: list[str] = field(default_factory=list)
    places: list[str] = field(default_factory=list)

    def parts(self) -> list[Block]:
        return list(self.args)

    def emit(self, nest: Nest, scope: Scope, fast: bool) -> None:
        values = [scope.value(each, nest.index) for each in self.args]
        place, first = nest.partial(self.axis)
        held = [f"{array}[{place}]" for array in self.partial]
        found = combined(self.op, scope, held, values, nest.outside)
        for target, old, new in zip(held, values, found, strict=True):
            scope.lines.append(f"{target} = {first} ? {old} : {new};" if first else f"{target} = {old};")

    @property
    def shape(self) -> tuple[int, ...]:
        shape = self.args[0].type.shape
        return shape[: self.axis] + shape[self.axis + 1 :]


@dataclass(eq=False)
class Accumulate(Member):
    """Combines blocks with partial results that stand side by side, those of a reduction along the innermost loop.

    Attributes:
        into: the array of the partial results.
        arg: what they are combined with.
        is_first: whether that is the first of the op's operands.
    """

    into: str = ""
    arg: Block | None = None
    is_first: bool = False

    def parts(self) -> list[Block]:
        assert self.arg is not None
        return [self.arg]

    def emit(self, nest: Nest, scope: Scope, fast: bool) -> None:
        (arg,) = self.parts()
        operands = [f"{self.into}[lane]", scope.value(arg, nest.index)]
        if self.is_first:
            operands.reverse()
        text = elementwise(self.op, operands, operand_types(self.op), arg.type.element)
        scope.lines.append(f"{self.into}[lane] = {text};")


def combined(op: Op, scope: Scope, first: Sequence[str], second: Sequence[str], outside: dict[Value, str]) -> list[str]:
    """What the function of a reduction or a scan makes of two elements. Its assertions are left out: it is called for
    elements, too, that nobody asks for.

    Args:
        outside: names of scalars that it uses beside its arguments.
    """
    block: Ops = op.regions[0].only
    names = dict(zip(block.arguments, [*first, *second], strict=True))
    for each in block.ops[:-1]:
        if each.name == "tt.assert":
            continue
        if len(each.results) != 1 or each.regions:
            raise Refused("this in a function that combines elements", each)
        args = []
        for operand in each.operands:
            if operand in names:
                args.append(names[operand])
            elif operand in outside:
                args.append(outside[operand])
            else:
                raise Refused("a value from outside in a function that combines elements", each)
        result = each.results[0]
        if each.name == "arith.constant":
            names[result] = literal(each.words[0], result.type.element)
            continue
        text = elementwise(each, args, operand_types(each), result.type.element)
        names[result] = scope.let(CTYPES[result.type.element], text)
    return [names[operand] for operand in block.ops[-1].operands]


class Nest:
    """The loops of a group.

    Attributes:
        index: of an element, a name for each dimension.
        inner_axis: the dimension of the innermost loop, `inner` its name.
    """

    def __init__(self, shape: tuple[int, ...], inner_axis: int, outside: dict[Value, str]) -> None:
        self.shape, self.inner_axis, self.outside = shape, inner_axis, outside
        self.index: Index = tuple(f"i{d}" if n > 1 or d == inner_axis else "0" for d, n in enumerate(shape))
        self.inner = self.index[inner_axis]

    def without(self, axis: int) -> Index:
        return self.index[:axis] + self.index[axis + 1 :]

    def partial(self, axis: int) -> tuple[str, str]:
        """The place of a partial result of a reduction, and the condition that there is none yet; empty if there never
        is one."""
        raise NotImplementedError


class _SerialNest(Nest):
    """One work-item's.

    Attributes:
        lanes: how many partial results a reduction along the innermost loop has; 0 if there is none.
        chunk: the variable that counts these.
    """

    chunk = "chunk"

    def __init__(self, shape: tuple[int, ...], inner_axis: int, lanes: int, outside: dict[Value, str]) -> None:
        super().__init__(shape, inner_axis, outside)
        self.lanes = lanes

    def partial(self, axis: int) -> tuple[str, str]:
        inside = axis == self.inner_axis
        always = self.shape[axis] == 1 or (inside and self.shape[axis] == self.lanes)
        first = "" if always else f"{self.chunk if inside else self.index[axis]} == 0"
        shape = self.shape[:axis] + self.shape[axis + 1 :]
        return "lane" if inside else flat(self.without(axis), shape), first


class Text(Protocol):
    """What a group writes itself to."""

    @property
    def names(self) -> Iterator[int]:
        """Numbers of names."""

    @property
    def outside(self) -> dict[Value, str]:
        """Names of scalars."""

    def put(self, *lines: str) -> None: ...
    def phase(self, lines: Sequence[str], writes: Iterable[str]) -> None: ...
    def array(self, element: str, size: int) -> str: ...
    def shared_array(self, element: str, size: int) -> str: ...


class Group:
    """See above.

    Attributes:
        shape: of the loops.
    """

    def __init__(self, shape: tuple[int, ...], apart: bool) -> None:
        self.shape = shape
        self.members: list[Member] = []
        self._apart = apart

    def admits(self, new: Member) -> bool:
        """Whether a member may come to those that there are: memory is touched in the program's order."""
        if not isinstance(new, Memory):
            return True
        assert new.pointer is not None
        for old in self.members:
            if not isinstance(old, Memory) or (isinstance(old, Load) and isinstance(new, Load)):
                continue
            assert old.pointer is not None
            if old.pointer is new.pointer and self._is_distinct(new.pointer):
                continue
            if old.pointer.base == new.pointer.base or not self._apart:
                return False
        return True

    def _is_distinct(self, pointer: Pointer) -> bool:
        """Whether each element has a place of its own, as far as can be told: offsets move along all dimensions."""
        for axis in (d for d, n in enumerate(self.shape) if n > 1):
            nest = Nest(self.shape, axis, {})
            names = itertools.count()  # of a text that is thrown away
            line = pointer.offset.line(Scope(names, nest.inner, Scope(names)), nest.index)
            if line is None or line.when or line.step == "0":
                return False
        return True

    def reductions(self) -> list[Reduce]:
        return [member for member in self.members if isinstance(member, Reduce)]

    def stored(self) -> set[str]:
        """Parameters whose memory is written."""
        return {m.pointer.base for m in self.members if isinstance(m, Store) and m.pointer is not None}

    def emit(self, t: Text, arrays: dict[Computed, str]) -> None:
        """Puts the loops.

        Args:
            arrays: where results go that others ask for.
        """
        raise NotImplementedError

    def inner_axis(self, names: Iterator[int]) -> int:
        """The dimension along which most of memory lies one beside the other, or else the last."""
        dims = [d for d, n in enumerate(self.shape) if n > 1]
        if len(dims) < 2:
            return dims[0] if dims else len(self.shape) - 1
        return max(dims, key=lambda axis: (self._neighbours(axis, names), axis))

    def _neighbours(self, axis: int, names: Iterator[int]) -> int:
        nest = Nest(self.shape, axis, {})
        count = 0
        for member in self.members:
            if isinstance(member, Memory) and member.pointer is not None and not _open(member.pointer.offset):
                line = member.pointer.offset.line(Scope(names, nest.inner, Scope(names)), nest.index)
                count += line is not None and line.step == "1"
        return count


class SerialGroup(Group):
    """One work-item's loops."""

    def emit(self, t: Text, arrays: dict[Computed, str]) -> None:
        names, axis = t.names, self.inner_axis(t.names)
        along = any(m.axis == axis if isinstance(m, Reduce) else isinstance(m, Accumulate) for m in self.members)
        nest = _SerialNest(self.shape, axis, min(LANES, self.shape[axis]) if along else 0, t.outside)
        for reduction in self.reductions():
            inside, size = reduction.axis == axis, _size(reduction.shape)
            types = [each.type.element for each in reduction.args]
            reduction.partial = [t.array(element, nest.lanes if inside else size) for element in types]
            own = inside and reduction.shape
            reduction.places = [t.array(element, size) for element in types] if own else reduction.partial
        outer = Scope(names)
        ends, when, true = self._bounds(nest, outer)
        bodies = []
        for fast in [True, False] if ends or when else [True]:
            scope = Scope(names, nest.inner, outer)
            scope.true = true if fast else set()
            for member in self.members:
                member.emit(nest, scope, fast)
            for result, place in arrays.items():
                target = element_of(place, nest.index, self.shape)
                scope.lines.append(f"{target} = {scope.value(result, nest.index)};")
            bodies.append(scope.lines)
        t.put(*self._loops(nest, outer, ends, when, bodies, names))

    def _bounds(self, nest: Nest, outer: Scope) -> tuple[list[str], list[str], set[Block]]:
        """Up to where there are no masks, what must be true for that, and the blocks that are then true."""
        ends: dict[str, None] = {}
        when: dict[str, None] = {}
        true: set[Block] = set()
        scope = Scope(iter(()), nest.inner, outer)
        for member in self.members:
            if not isinstance(member, Memory) or member.pointer is None:
                continue
            if member.mask is not None and not _open(member.mask):
                _bound(member.mask, scope, nest.index, ends, when, true)
            if not _open(member.pointer.offset):
                line = member.pointer.offset.line(scope, nest.index)
                when |= dict.fromkeys(() if line is None else line.when)
        return list(ends), list(when), true

    def _loops(
        self,
        nest: _SerialNest,
        outer: Scope,
        ends: list[str],
        when: list[str],
        bodies: list[list[str]],
        names: Iterator[int],
    ) -> list[str]:
        size, lines = self.shape[nest.inner_axis], list[str]()
        step = nest.lanes or min(_VECTOR, size)
        along = [m for m in self.reductions() if m.axis == nest.inner_axis]
        opened = [d for d, n in enumerate(self.shape) if n > 1 and d != nest.inner_axis]
        lines += [f"for (int i{d} = 0; i{d} < {self.shape[d]}; ++i{d}) {{" for d in opened] or ["{"]
        lines += outer.lines
        if len(bodies) == 1:
            lines += _inner_loop(nest, bodies[0], "0", str(size))
        else:
            end = f"end{next(names)}"
            least = f"(long){size}"
            for each in ends:
                least = f"min((long)({each}), {least})"
            whole = f"(int)max({least}, (long)0) & ~{step - 1}" if ends else str(size)
            condition = f"({' && '.join(when)}) ? {whole} : 0" if when else whole
            lines.append(f"const int {end} = {condition};")
            lines += _inner_loop(nest, bodies[0], "0", end)
            lines += _inner_loop(nest, bodies[1], end, str(size))
        for member in along:
            lines += _fold(member, nest, names)
        lines += ["}"] * max(1, len(opened))
        return lines


def _inner_loop(nest: _SerialNest, body: list[str], begin: str, end: str) -> list[str]:
    if nest.lanes:
        head = [
            f"for (int {nest.chunk} = {begin}; {nest.chunk} < {end}; {nest.chunk} += {nest.lanes})",
            f"VECTORIZE for (int lane = 0; lane < {nest.lanes}; ++lane) {{",
            f"const int {nest.inner} = {nest.chunk} + lane;",
        ]
    else:
        head = [f"VECTORIZE for (int {nest.inner} = {begin}; {nest.inner} < {end}; ++{nest.inner}) {{"]
    return [*head, *body, "}"]


def _fold(member: Reduce, nest: _SerialNest, names: Iterator[int]) -> list[str]:
    """The partial results of a reduction along the innermost loop become one."""
    lines = []
    if nest.lanes > 1:
        scope = Scope(names, "lane")
        held, others = ([f"{array}[{at}]" for array in member.partial] for at in ("lane", "lane + width"))
        found = combined(member.op, scope, held, others, nest.outside)
        kept = [f"f{next(names)}" for _ in held]
        lines += [
            f"UNROLL for (int width = {nest.lanes // 2}; width > 0; width /= 2)",
            "VECTORIZE for (int lane = 0; lane < width; ++lane) {",
            *scope.lines,
        ]
        for each, name, text in zip(member.args, kept, found, strict=True):
            lines.append(f"const {CTYPES[each.type.element]} {name} = {text};")
        lines += [f"{place} = {name};" for place, name in zip(held, kept, strict=True)]
        lines.append("}")
    if member.shape:
        at = flat(nest.without(nest.inner_axis), member.shape)
        lines += [f"{place}[{at}] = {array}[0];" for place, array in zip(member.places, member.partial, strict=True)]
    return lines


def _bound(
    mask: Block, scope: Scope, index: Index, ends: dict[str, None], when: dict[str, None], true: set[Block]
) -> None:
    """Finds of which parts of a mask it is known where they are true."""
    while isinstance(mask, View):
        index, mask = mask.inner_index(index), mask.of
    if isinstance(mask, Splat):
        if mask.text not in ("0", "1"):
            when[mask.text] = None
            true.add(mask)
        return
    if not isinstance(mask, Elementwise):
        return
    if mask.op.name == "arith.andi":
        for each in mask.args:
            _bound(each, scope, index, ends, when, true)
        return
    if not scope.varies(index) and mask.type.element == "i1":
        assert scope.outer is not None
        when[scope.outer.value(mask, index)] = None
        true.add(mask)
        return
    if mask.op.name != "arith.cmpi" or mask.op.words[0] not in ("slt", "sle", "sgt", "sge"):
        return
    a, b = (each.line(scope, index) for each in mask.args)
    if a is None or b is None:
        return
    kind = mask.op.words[0]
    low, high = (a, b) if kind in ("slt", "sle") else (b, a)
    if _is_end(low, high):
        ends[f"(long){high.base} - {low.base}" + (" + 1" if kind in ("sle", "sge") else "")] = None
    elif low.step == "0" and high.step == "1":  # true from somewhere on: it must be from the beginning
        when[f"{low.base} {'<' if kind in ('slt', 'sgt') else '<='} {high.base}"] = None
    else:
        return
    when |= dict.fromkeys([*low.when, *high.when])
    true.add(mask)


def _is_end(low: Line, high: Line) -> bool:
    return low.step == "1" and high.step == "0"


def _open(block: Block) -> bool:
    return any(not leaf.array for leaf in block.leaves)


def _size(shape: Sequence[int]) -> int:
    size = 1
    for n in shape:
        size *= n
    return size
