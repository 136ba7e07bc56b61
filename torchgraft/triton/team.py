"""A program by a group of work-items, for GPUs: elements of a block are dealt to them.

Neighbours along the last dimension go to neighbours; of blocks that are products each work-item has a tile. What is
only ever read by the work-item that computed it lies in its registers, the rest in memory of the group. Scalars are
computed by all alike; what changes memory for one of them is done by the first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from torchgraft.triton.barriers import Entry, Phase, Shared, with_barriers, with_rooms
from torchgraft.triton.blocks import REGISTERS, Block, Computed, Index, Scope, Splat, element_of, flat, last_axis
from torchgraft.triton.elements import CTYPES, KEPT, KEPT_SIZES, is_elementwise
from torchgraft.triton.groups import Group, Nest, Reduce, Text, combined
from torchgraft.triton.ir import Block as Ops
from torchgraft.triton.ir import Function, Op, Region, Type, Value, walk
from torchgraft.triton.translate import Translator, is_reverse

__all__ = ["Deal", "DealtNest", "TeamTranslator"]

# Iterations that are written out, so that what they keep lies in registers.
_MOST_UNROLLED = 64
# Partial results that a work-item makes one of, from one barrier to the next.
_AT_ONCE = 8


class Deal:
    """How elements go to work-items.

    Args:
        items: work-items of a group, a power of two.
        tiles: rows and columns of blocks that are products.
    """

    def __init__(self, items: int, tiles: Iterable[tuple[int, ...]] = ()) -> None:
        self.items, self._tiles = items, frozenset(tiles)

    def lanes(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Work-items side by side in each dimension."""
        left, out = self.items, [1] * len(shape)
        dims = list(reversed(range(len(shape))))
        if shape[-2:] in self._tiles:
            columns = min(shape[-1], 1 << (self.items.bit_length() // 2))
            rows = min(shape[-2], self.items // columns)
            columns = min(shape[-1], self.items // rows)
            out[-2:] = rows, columns
            left, dims = self.items // (rows * columns), dims[2:]
        for d in dims:
            out[d] = min(shape[d], left)
            left //= out[d]
        return tuple(out)

    def registers(self, shape: tuple[int, ...]) -> int:
        """Elements of a block that a work-item has."""
        return math.prod(shape) // math.prod(self.lanes(shape))


class DealtNest(Nest):
    """A work-item's loops: element i of a dimension is its lane and as many more as there are side by side.

    Attributes:
        lanes: work-items side by side in each dimension, `trips` how often each of them goes there.
    """

    def __init__(self, deal: Deal, shape: tuple[int, ...], inner_axis: int, outside: dict[Value, str]) -> None:
        super().__init__(shape, inner_axis, outside)
        self.lanes = deal.lanes(shape)
        self.trips = tuple(n // lanes for n, lanes in zip(shape, self.lanes, strict=True))
        self._items = deal.items

    def partial(self, axis: int) -> tuple[str, str]:
        return self.own(axis), f"j{axis} == 0" if self.trips[axis] > 1 else ""

    def own(self, without: int = -1) -> str:
        """The place among a work-item's elements, of all or of those that are left without a dimension."""
        dims = [d for d in range(len(self.shape)) if d != without]
        return flat(tuple(f"j{d}" for d in dims), [self.trips[d] for d in dims])

    def lane(self, axis: int) -> str:
        """Which of the work-items side by side it is."""
        inner, outer = math.prod(self.lanes[axis + 1 :]), math.prod(self.lanes[:axis])
        if self.lanes[axis] == 1:
            return "0"
        text = "item" if inner == 1 else f"item / {inner}"
        return text if outer == 1 else f"{text} % {self.lanes[axis]}"

    def loops(self, before: Sequence[str], inside: Sequence[str], without: int = -1) -> list[str]:
        """The loops' text.

        Args:
            before: what stands before the innermost loop.
            without: a dimension that is left out.
        """
        dims = [d for d in range(len(self.shape)) if d not in (self.inner_axis, without)]
        if self.inner_axis != without:
            dims.append(self.inner_axis)
        lines = self._guard()
        unroll = "UNROLL " if math.prod(self.trips[d] for d in dims) <= _MOST_UNROLLED else ""
        for d in dims:
            if d == dims[-1]:
                lines += before
            if self.trips[d] > 1:
                lines.append(f"{unroll}for (int j{d} = 0; j{d} < {self.trips[d]}; ++j{d}) {{")
            if self.index[d] != "0":
                lines.append(f"const int i{d} = {self._at(d)};")
        if without < 0:
            lines.append(f"const int own = {self.own()};")
        return [*lines, *inside, *("}" for d in dims if self.trips[d] > 1), *self._guard_end()]

    def batches(self, inside: Sequence[str]) -> list[str]:
        """The loop along all but the last two dimensions, of which there is one at most."""
        lines = self._guard()
        if len(self.shape) > 2:
            lines += [f"for (int j0 = 0; j0 < {self.trips[0]}; ++j0) {{", f"const int i0 = {self._at(0)};"]
        return [*lines, *inside, *["}"] * (len(self.shape) > 2), *self._guard_end()]

    def _guard(self) -> list[str]:
        """Keeps those out that have no element."""
        used = math.prod(self.lanes)
        return [f"if (item < {used}) {{"] if used < self._items else []

    def _guard_end(self) -> list[str]:
        return ["}"] * len(self._guard())

    def _at(self, d: int) -> str:
        if self.trips[d] == 1:
            return self.lane(d)
        return f"j{d} * {self.lanes[d]} + {self.lane(d)}" if self.lanes[d] > 1 else f"j{d}"


class _TeamGroup(Group):
    def __init__(self, shape: tuple[int, ...], apart: bool, deal: Deal) -> None:
        super().__init__(shape, apart)
        self._deal = deal

    def emit(self, t: Text, arrays: dict[Computed, str]) -> None:
        nest = DealtNest(self._deal, self.shape, self.inner_axis(t.names), t.outside)
        reductions = self.reductions()
        for member in reductions:
            size = math.prod(nest.trips) // nest.trips[member.axis]
            member.partial = [t.array(arg.type.element, size) for arg in member.args]
        outer = Scope(t.names)
        scope = Scope(t.names, nest.inner, outer)
        for each in self.members:
            each.emit(nest, scope, fast=False)
        for result, place in arrays.items():
            target = element_of(place, nest.index, self.shape)
            scope.lines.append(f"{target} = {scope.value(result, nest.index)};")
        t.phase(nest.loops(outer.lines, scope.lines), {*arrays.values(), *self.stored()})
        for member in reductions:
            _fold(t, nest, member, self._deal.items)


def _fold(t: Text, nest: DealtNest, member: Reduce, items: int) -> None:
    """The work-items' partial results become one for each place, in memory of the group."""
    axis, results = member.axis, math.prod(member.shape)
    member.places = [t.shared_array(each.type.element, nest.lanes[axis] * results) for each in member.args]
    at = flat(nest.without(axis), member.shape)
    lane = f"({nest.lane(axis)}) * {results} + " if nest.lanes[axis] > 1 else ""
    pairs = zip(member.places, member.partial, strict=True)
    kept = [f"{shared}[{lane}{at}] = {partial}[{nest.own(axis)}];" for shared, partial in pairs]
    t.phase(nest.loops([], kept, axis), member.places)
    left = nest.lanes[axis]
    while left > 1:
        some = min(_AT_ONCE, left)
        left //= some
        scope = Scope(t.names, "e")
        found = [f"{array}[e]" for array in member.places]
        for n in range(1, some):
            others = [f"{array}[e + {n * left * results}]" for array in member.places]
            found = combined(member.op, scope, found, others, nest.outside)
        names = [scope.let(CTYPES[arg.type.element], text) for arg, text in zip(member.args, found, strict=True)]
        kept = [f"{array}[e] = {name};" for array, name in zip(member.places, names, strict=True)]
        t.phase(_dealt("e", left * results, items, [*scope.lines, *kept]), member.places)


def _dealt(name: str, size: int, items: int, inside: Sequence[str]) -> list[str]:
    """Something to be done so many times, by any work-item."""
    if size < items:
        return [f"if (item < {size}) {{", f"const int {name} = item;", *inside, "}"]
    return [f"for (int {name} = item; {name} < {size}; {name} += {items}) {{", *inside, "}"]


# Ops that read a block's elements where they write their own. What hands a block on copies it so.
_SAME_PLACE = {"tt.load", "tt.store", "tt.reduce", "tt.atomic_rmw", "tt.atomic_cas", "tt.assert", "tt.print",
               "scf.yield", "scf.condition", "scf.while"}  # fmt: skip


def _read_elsewhere(body: Region) -> set[Value]:
    """Blocks of which a work-item may read elements that another one has."""
    found: set[Value] = set()
    for block in reversed(body.blocks):
        _find(block, found)
    return found


def _find(block: Ops, found: set[Value]) -> None:
    """From the end on: what becomes of a value comes behind it."""
    for op in reversed(block.ops):
        for region in op.regions:
            for inner in reversed(region.blocks):
                _find(inner, found)
        found.update(value for value in op.results if _is_read_elsewhere(value, found))
    found.update(value for value in block.arguments if _is_read_elsewhere(value, found))


def _is_read_elsewhere(value: Value, found: set[Value]) -> bool:
    return value.type.shape != () and any(_reads_elsewhere(user, value, found) for user in value.users)


def _reads_elsewhere(user: Op, value: Value, found: set[Value]) -> bool:
    if user.name in _SAME_PLACE:
        return False
    if user.name == "scf.for":  # a block that only moves is read where the argument is
        arguments = user.regions[0].only.arguments[1:]
        carried = zip(user.operands[3:], arguments, user.results, strict=True)
        return any(start is value and (inside in found or result in found) for start, inside, result in carried)
    if user.name == "tt.dot":
        return value in user.operands[:2]
    if user.name == "tt.gather":
        return value is user.operands[0]
    if is_elementwise(user) or user.name == "tt.addptr":  # integers are computed where somebody asks for them
        return any(result in found for result in user.results if _is_of_integers(result.type))
    return True


def _is_of_integers(kind: Type) -> bool:
    return kind.is_pointer or kind.element.startswith("i")


class TeamTranslator(Translator):
    """Translates a kernel for groups of work-items.

    Args:
        items: work-items of a group.
        local_bytes: of local memory that a group has.
    """

    def __init__(
        self,
        function: Function,
        apart: bool,
        methods: Mapping[str, str | Callable[[Translator, Op], None]],
        items: int,
        local_bytes: int,
    ) -> None:
        super().__init__(function, apart, methods)
        dots = [op for op in walk(function.body) if op.name == "tt.dot"]
        self.deal = Deal(items, {op.results[0].type.shape[-2:] for op in dots})
        self.items, self._local_bytes = items, local_bytes
        self._elsewhere = _read_elsewhere(function.body)
        self._entries: list[Entry] = []

    def put(self, *lines: str) -> None:
        self._entries += lines

    def phase(self, lines: Sequence[str], writes: Iterable[str]) -> None:
        # A name for each phase is nothing that a compiler has to keep across barriers.
        own = ("{", "const int item = LOCAL_ID(0);", *lines, "}")
        self._entries.append(Phase(own, frozenset(writes)))

    def once(self, statement: str, writes: Iterable[str]) -> None:
        self.phase([f"if (item == 0) {{ {statement} }}"], writes)

    def once_value(self, value: Value, text: str, writes: Iterable[str]) -> None:
        kept = self.shared_array(value.type.element, 1)
        self.once(f"{kept}[0] = {text};", [kept, *writes])
        self.set_scalar(value, f"({kept}[0])")

    def shared_array(self, element: str, size: int) -> str:
        name = self.name("l")
        ctype = KEPT[element]
        self._entries.append(Shared(name, ctype, size, KEPT_SIZES[element]))
        return name

    def array_for(self, element: str, values: Sequence[Value]) -> str:
        shape = values[0].type.shape
        if not self._elsewhere.isdisjoint(values):
            return self.shared_array(element, math.prod(shape))
        name = self.name(REGISTERS)
        self.put(f"{KEPT[element]} {name}[{self.deal.registers(shape)}];")
        return name

    def suits(self, array: str, value: Value) -> bool:
        return not array.startswith(REGISTERS) or value not in self._elsewhere

    def new_group(self, shape: tuple[int, ...]) -> Group:
        return _TeamGroup(shape, self.apart, self.deal)

    def each(
        self,
        shape: tuple[int, ...],
        body: Callable[[Scope, Index], list[str]],
        writes: Iterable[str],
        vectorize: bool = True,
    ) -> None:
        nest = self.nest(shape)
        outer = Scope(self.names)
        scope = Scope(self.names, nest.inner, outer)
        inside = body(scope, nest.index)
        self.phase(nest.loops(outer.lines, [*scope.lines, *inside]), writes)

    def nest(self, shape: tuple[int, ...]) -> DealtNest:
        """Loops over a shape, the last dimension innermost."""
        return DealtNest(self.deal, shape, last_axis(shape), self.outside)

    def all_of(self, block: Block) -> str:
        kept, name = self.shared_array("i32", 1), self.name("s")
        self.once(f"{kept}[0] = 1;", [kept])
        self.each(block.type.shape, lambda scope, index: [f"if (!{scope.value(block, index)}) {kept}[0] = 0;"], [kept])
        self.put(f"const int {name} = {kept}[0];")
        return name

    def finished(self) -> list[str]:
        self.heads, overlaps, self.scratch = with_rooms(self._entries, self._local_bytes)
        parameters = {f"arg{n}" for n, each in enumerate(self.function.arguments) if each.type.is_pointer}
        return with_barriers(self._entries, overlaps, parameters, self.apart)

    # ---- ops ----

    def barrier(self, op: Op) -> None:
        """What programs tell each other in memory is in the order that the kernel's author wants."""
        self.close()
        self.put("BARRIER;")

    def histogram(self, op: Op) -> None:
        values, *masks = (self.as_block(each) for each in op.operands)
        self.close()
        kind, size = op.results[0].type, values.type.size
        array = self.shared_array(kind.element, kind.size)
        held = self.in_array(values)
        mask = self.in_array(masks[0]) if masks and not isinstance(masks[0], Splat) else ""
        inside = f"{held}[e] == b" + (f" && {mask}[e]" if mask else "")
        if masks and not mask:
            inside += f" && {masks[0].at(Scope(self.names), ())}"
        self.phase(
            _dealt(
                "b",
                kind.size,
                self.items,
                ["int count = 0;", f"for (int e = 0; e < {size}; ++e) count += {inside};", f"{array}[b] = count;"],
            ),
            [array],
        )
        self.values[op.results[0]] = Computed(kind, array)

    def scan(self, op: Op) -> None:
        """Each work-item scans a piece of a line; then what stands before the piece is combined with its elements."""
        args = [self.as_block(each) for each in op.operands]
        self.close()
        _Scan(self, op, args).emit()


class _Scan:
    """The phases of a scan.

    Attributes:
        pieces: of a line, `length` elements of each.
    """

    def __init__(self, t: TeamTranslator, op: Op, args: Sequence[Block]) -> None:
        self.t, self.op, self.args = t, op, args
        self.axis, self.shape = op.integer("axis"), args[0].type.shape
        self.others = [d for d in range(len(self.shape)) if d != self.axis]
        self.lines = math.prod(self.shape[d] for d in self.others)
        self.pieces = min(self.shape[self.axis], max(1, t.deal.items // self.lines))
        self.length = self.shape[self.axis] // self.pieces
        self.index = tuple(f"i{d}" for d in range(len(self.shape)))
        self.types = [CTYPES[each.type.element] for each in args]

    def emit(self) -> None:
        t = self.t
        arrays = [t.shared_array(value.type.element, value.type.size) for value in self.op.results]
        elements = [f"{array}[{flat(self.index, self.shape)}]" for array in arrays]
        scope = Scope(t.names)
        values = [scope.value(each, self.index) for each in self.args]
        held = [t.name("h") for _ in values]
        found = self._combined(scope, held, values)
        step = [*scope.lines, *self._set(held, [f"n == 0 ? {v} : {f}" for v, f in zip(values, found, strict=True)])]
        step += [f"{element} = {name};" for element, name in zip(elements, held, strict=True)]
        along = f"for (int n = 0; n < {self.length}; ++n) {{"
        t.phase(self._pieces([*self._zero(held), along, self._place("piece", "n"), *step, "}"]), arrays)
        if self.pieces > 1:
            self._carry(arrays, elements, along)
        for value, array in zip(self.op.results, arrays, strict=True):
            t.values[value] = Computed(value.type, array)

    def _carry(self, arrays: list[str], elements: list[str], along: str) -> None:
        t = self.t
        carried = [t.shared_array(value.type.element, self.lines * self.pieces) for value in self.op.results]
        held, scope = [t.name("h") for _ in arrays], Scope(t.names)
        found = self._combined(scope, held, elements)
        before = ["for (int p = 0; p < piece; ++p) {", self._place("p", str(self.length - 1)), *scope.lines]
        before += self._set(held, [f"p == 0 ? {e} : {f}" for e, f in zip(elements, found, strict=True)])
        keep = [f"{array}[q] = {name};" for array, name in zip(carried, held, strict=True)]
        t.phase(self._pieces([*self._zero(held), *before, "}", *keep]), carried)
        scope = Scope(t.names)
        found = self._combined(scope, [f"{array}[q]" for array in carried], elements)
        names = [t.name("f") for _ in found]
        step = [f"const {c} {n} = {f};" for c, n, f in zip(self.types, names, found, strict=True)]
        step += [f"{element} = {name};" for element, name in zip(elements, names, strict=True)]
        inside = ["if (piece > 0)", along, self._place("piece", "n"), *scope.lines, *step, "}"]
        t.phase(self._pieces(inside), arrays)

    def _combined(self, scope: Scope, first: Sequence[str], second: Sequence[str]) -> list[str]:
        return combined(self.op, scope, first, second, self.t.outside)

    def _zero(self, names: Sequence[str]) -> list[str]:
        return [f"{ctype} {name} = 0;" for ctype, name in zip(self.types, names, strict=True)]

    def _set(self, names: Sequence[str], texts: Sequence[str]) -> list[str]:
        """All at once: a text may read any of them."""
        new = [self.t.name("f") for _ in names]
        lines = [f"const {ctype} {name} = {text};" for ctype, name, text in zip(self.types, new, texts, strict=True)]
        return lines + [f"{name} = {found};" for name, found in zip(names, new, strict=True)]

    def _place(self, piece: str, n: str) -> str:
        at = f"{piece} * {self.length} + {n}"
        return f"const int i{self.axis} = {f'{self.shape[self.axis] - 1} - ({at})' if is_reverse(self.op) else at};"

    def _pieces(self, inside: Sequence[str]) -> list[str]:
        lines = [f"const int piece = q % {self.pieces};"]
        step = self.pieces
        for d in reversed(self.others):
            lines.append(f"const int i{d} = q / {step} % {self.shape[d]};")
            step *= self.shape[d]
        return _dealt("q", self.lines * self.pieces, self.t.items, [*lines, *inside])
