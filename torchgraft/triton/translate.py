"""From Triton's ops to a text in the kernel language: a program is a work-item that loops over its blocks.

Scalars become variables where they are computed. Blocks are `blocks.Block`s; what must be computed once is a member of
the open group (`groups`), which becomes loops as soon as something needs what it has computed in another way than
element by element.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from torchgraft.codegen.types import BY_NAME
from torchgraft.triton.blocks import (
    REGISTERS,
    Block,
    Choice,
    Computed,
    Elementwise,
    Index,
    Pointer,
    Range,
    Scalar,
    Scope,
    Splat,
    Sum,
    View,
    element_of,
    flat,
    last_axis,
    reshaped,
)
from torchgraft.triton.elements import (
    CTYPES,
    KEPT,
    KEPT_SIZES,
    SIZES,
    elementwise,
    is_elementwise,
    literal,
    operand_types,
    stored,
)
from torchgraft.triton.groups import (
    LANES,
    Accumulate,
    Compute,
    Group,
    Load,
    Member,
    Reduce,
    SerialGroup,
    Store,
    combined,
)
from torchgraft.triton.ir import Block as Ops
from torchgraft.triton.ir import Function, Op, Region, Type, Value, walk
from torchgraft.triton.refused import Refused

__all__ = ["Translator", "is_reverse"]

Known = Scalar | Block | Pointer

# Bytes of arrays that a program may have: they lie on the stack of the thread that runs it.
_MOST_BYTES = 2 << 20
# Integer arithmetic that costs more than so many ops for an element is computed once.
_MOST_WEIGHT = 24
_NOTHING = {"llvm.intr.assume", "tt.return"}


class Translator:
    """Translates a kernel.

    Args:
        function: the kernel.
        apart: different parameters' memory does not overlap.
        methods: what translates ops that are no arithmetic, by name.
        lanes: float32 elements of a vector register.

    Attributes:
        heads: lines before all programs, `lines` those of one.
        stored: parameters that are written.
        helpers: functions that the text needs, by name.
        reports: errors that it reports, and which of them each is.
        values: what has become of the values.
        items: work-items of a program.
        scratch: bytes that they need in global memory, once the text is finished.
    """

    items = 1

    def __init__(
        self,
        function: Function,
        apart: bool,
        methods: Mapping[str, str | Callable[[Translator, Op], None]],
        lanes: int = 16,
    ) -> None:
        self.function, self.apart, self._methods, self.lanes = function, apart, methods, lanes
        self.heads: list[str] = []
        self.lines: list[str] = []
        self.stored: set[str] = set()
        self.helpers: dict[str, str] = {}
        self.reports: dict[str, int] = {}
        self.values: dict[Value, Known] = {}
        self.names = itertools.count()
        self.bytes = self.scratch = 0
        self._group: Group | None = None
        self._emitted: set[Op] = set()
        self.outside: dict[Value, str] = {}
        self._into: dict[Value, tuple[str, Value | None]] = {}
        self._accumulated: dict[Op, tuple[Value, str]] = {}
        for n, argument in enumerate(function.arguments):
            name, kind = f"arg{n}", argument.type
            if kind.shape:
                raise Refused("a parameter that is a block")
            if kind.is_pointer:
                self.values[argument] = Scalar(kind, "0", name)
            else:
                text = f"({name} & 1)" if kind.element == "i1" else name
                self.values[argument] = Scalar(kind, text)
                self.outside[argument] = text

    # ---- for the parts in other modules ----

    def put(self, *lines: str) -> None:
        """Statements of scalars, and of what is done in which order."""
        self.lines += lines

    def phase(self, lines: Sequence[str], writes: Iterable[str]) -> None:
        """Statements in which work-items do not wait for each other.

        Args:
            writes: arrays and parameters that they write.
        """
        self.put(*lines)

    def finished(self) -> list[str]:
        """The body's text."""
        return self.lines

    def once(self, statement: str, writes: Iterable[str]) -> None:
        """A statement that one work-item is to do for all."""
        self.put(statement)

    def once_value(self, value: Value, text: str, writes: Iterable[str]) -> None:
        """Gives a scalar a variable with what one work-item is to compute for all."""
        self.set_scalar(value, text)

    def name(self, prefix: str) -> str:
        return f"{prefix}{next(self.names)}"

    def array(self, element: str, size: int) -> str:
        """Declares an array."""
        name = self.name("a")
        self.bytes += KEPT_SIZES[element] * size
        if self.bytes > _MOST_BYTES:
            raise Refused(f"blocks that take more than {_MOST_BYTES >> 20} MiB in one program")
        self.put(f"{KEPT[element]} {name}[{size}] ALIGN(64);")
        return name

    def shared_array(self, element: str, size: int) -> str:
        """Declares an array of which all work-items see all elements."""
        return self.array(element, size)

    def array_for(self, element: str, values: Sequence[Value]) -> str:
        """Declares an array for blocks of a shape, as all of them are read."""
        return self.shared_array(element, values[0].type.size)

    def scalar(self, value: Value) -> Scalar:
        """A scalar that is known, after what computes it."""
        found = self.values[value]
        assert isinstance(found, Scalar)
        if found.pending is not None:
            self.close()
        return found

    def text(self, value: Value) -> str:
        """A scalar that is no pointer."""
        return self.scalar(value).text

    def as_block(self, value: Value) -> Block:
        """A block that is none of pointers."""
        found = self.values[value]
        if isinstance(found, Pointer):
            raise Refused("a block of pointers as one of numbers")
        if isinstance(found, Scalar):
            return Splat(found.type, self.text(value))
        return found

    def set_scalar(self, value: Value, text: str) -> None:
        """Gives a scalar a variable."""
        name = self.name("s")
        self.put(f"const {CTYPES[value.type.element]} {name} = {text};")
        self.values[value] = Scalar(value.type, name)
        self.outside[value] = name

    def settle(self, *blocks: Block | Pointer | None) -> None:
        """Ends the open group if it computes what these read."""
        if any(not leaf.array for each in blocks if each is not None for leaf in each.leaves):
            self.close()

    def in_array(self, block: Block, into: str = "") -> str:
        """A block in an array of which all elements are seen: where it lies, or a new one.

        Args:
            into: an array that it is copied to in any case.
        """
        self.settle(block)
        if isinstance(block, Computed) and not into and not block.array.startswith(REGISTERS):
            return block.array
        name = into or self.shared_array(block.type.element, block.type.size)
        shape = block.type.shape
        self.each(
            shape, lambda scope, index: [f"{element_of(name, index, shape)} = {scope.value(block, index)};"], [name]
        )
        return name

    def each(
        self,
        shape: tuple[int, ...],
        body: Callable[[Scope, Index], list[str]],
        writes: Iterable[str],
        vectorize: bool = True,
    ) -> None:
        """Loops over a shape; the body gets a scope and an index."""
        last = last_axis(shape)
        index = tuple(f"i{d}" if n > 1 or d == last else "0" for d, n in enumerate(shape))
        outer = Scope(self.names)
        scope = Scope(self.names, index[last], outer)
        inside = body(scope, index)
        opened = [d for d, n in enumerate(shape) if n > 1 and d != last]
        heads = [f"for (int i{d} = 0; i{d} < {shape[d]}; ++i{d}) {{" for d in opened] or ["{"]
        hint = "VECTORIZE " if vectorize else ""
        inner = f"{hint}for (int {index[last]} = 0; {index[last]} < {shape[last]}; ++{index[last]}) {{"
        lines = [*heads, *outer.lines, inner, *scope.lines, *inside, "}", *["}"] * max(1, len(opened))]
        self.phase(lines, writes)

    def all_of(self, block: Block) -> str:
        """Whether all elements are true, as a name."""
        name = self.name("s")
        self.put(f"int {name} = 1;")
        self.each(block.type.shape, lambda scope, index: [f"{name} &= {scope.value(block, index)};"], [], False)
        return name

    def send_to(self, value: Value, array: str, unless_read: Value | None = None) -> None:
        """Where a value is to lie, if it comes to lie in an array.

        Args:
            unless_read: what lies there now: nothing may read it any more.
        """
        self._into[value] = array, unless_read

    def accumulate(self, op: Op, other: Value, array: str) -> None:
        """Has an op of two blocks combine the one that it is given with partial results in an array."""
        self._accumulated[op] = other, array

    def place_of(self, value: Value) -> str:
        """An array for a value."""
        wanted, held = self._into.get(value, ("", None))
        is_free = held is None or self.is_settled(held)
        if wanted and self.suits(wanted, value) and is_free and self._is_free(wanted):
            return wanted
        return self.array_for(value.type.element, [value])

    def suits(self, array: str, value: Value) -> bool:
        """Whether a value can be read from an array as it will be."""
        return True

    def _is_free(self, array: str) -> bool:
        """Whether nothing will read any value that lies in an array: a product may have come to lie where its sums
        began."""
        return all(
            self.is_settled(value)
            for value, known in self.values.items()
            if isinstance(known, Computed) and known.array == array
        )

    def place(self, pointer: Pointer | Scalar, op: Op, writes: bool) -> str:
        """A parameter, as what its memory is accessed by."""
        if writes:
            self.stored.add(pointer.base)
        element = pointer.element if isinstance(pointer, Pointer) else pointer.type.element
        declared = next(a.type.element for n, a in enumerate(self.function.arguments) if f"arg{n}" == pointer.base)
        if declared == element:
            return pointer.base
        storage = BY_NAME[stored(element, op)].storage
        return f"((GLOBAL {'' if writes else 'const '}{storage}*){pointer.base})"

    def is_settled(self, value: Value) -> bool:
        """Whether nothing will read a value any more but members of the open group, element by element."""
        return all(user in self._emitted and not self._is_lazy(user) for user in value.users)

    def has_handed_on(self, block: Ops) -> None:
        """What ends a region has been done, too."""
        self._emitted.update(block.ops[-1:])

    def _is_lazy(self, op: Op) -> bool:
        """Whether an op's results are computed where somebody asks for them."""
        known = [self.values.get(result) for result in op.results]
        return any(not isinstance(each, (Scalar, Computed)) for each in known)

    # ---- groups ----

    def join(self, member: Member, shape: tuple[int, ...]) -> None:
        """Makes a member part of the open group, or of a new one."""
        group = self._group
        if group is not None and (group.shape != shape or not self._reads_only_elements(group, member)):
            self.close()
        if self._group is not None and not self._group.admits(member):
            self.close()
        if self._group is None:
            self._group = self.new_group(shape)
        self._group.members.append(member)

    def new_group(self, shape: tuple[int, ...]) -> Group:
        return SerialGroup(shape, self.apart)

    @staticmethod
    def _reads_only_elements(group: Group, member: Member) -> bool:
        """Whether what it reads of the group's results it reads as they are, element by element."""
        return all(isinstance(part, Computed) or all(leaf.array for leaf in part.leaves) for part in member.parts())

    def close(self) -> None:
        """Ends the open group."""
        group, self._group = self._group, None
        if group is None:
            return
        ops = {member.op for member in group.members}
        self._emitted |= ops
        arrays: dict[Computed, str] = {}
        for member in group.members:
            if isinstance(member, (Reduce, Accumulate)):
                continue
            for value, result in zip(member.op.results, member.results, strict=True):
                if any(user not in ops for user in value.users):
                    arrays[result] = self.place_of(value)
        group.emit(self, arrays)
        for result, place in arrays.items():
            result.array = place
        for member in group.members:
            if isinstance(member, Reduce):
                self._reduced(member)

    def _reduced(self, member: Reduce) -> None:
        for value, scalar, result, array in itertools.zip_longest(
            member.op.results, member.scalars, member.results, member.places
        ):
            if scalar is not None:
                name = self.name("s")
                self.put(f"const {CTYPES[value.type.element]} {name} = {array}[0];")
                scalar.text, scalar.pending = name, None
                self.outside[value] = name
            else:
                result.array = array

    # ---- ops ----

    def block(self, block: Ops) -> Op | None:
        """Translates ops in their order, and returns what the last one is if it ends a region."""
        self._emitted.difference_update(walk(Region([block])))  # it may be translated anew
        for op in block.ops:
            if op.name in ("scf.yield", "scf.condition", "cf.br", "cf.cond_br"):
                return op
            try:
                self.op(op)
            except Refused as refused:
                raise refused if " (" in str(refused) or not op.where else Refused(refused.reason, op) from None
            if self._group is None or all(op is not member.op for member in self._group.members):
                self._emitted.add(op)
        return None

    def op(self, op: Op) -> None:
        if op.name in _NOTHING:
            return
        if op in self._accumulated:
            other, array = self._accumulated.pop(op)  # it may be translated anew, otherwise
            args = self.as_block(other)
            self.join(Accumulate(op, [], array, args, other is op.operands[0]), args.type.shape)
            self.values[op.results[0]] = Computed(Type((LANES,), args.type.element), array)
            return
        if is_elementwise(op):
            self._elementwise(op)
            return
        method = self._methods.get(op.name)
        if method is None:
            raise Refused("there is nothing for it", op)
        if isinstance(method, str):
            getattr(self, method)(op)
        else:
            method(self, op)

    def _elementwise(self, op: Op) -> None:
        (result,) = op.results
        if any(each.type.is_pointer for each in (*op.operands, result)):
            self._of_pointers(op)
            return
        kind = result.type
        if not kind.shape:
            texts = [self.text(each) for each in op.operands]
            self.set_scalar(result, elementwise(op, texts, operand_types(op), kind.element))
            return
        args = [self.as_block(each) for each in op.operands]
        weight = sum(each.weight for each in args)
        if all(each.light for each in args) and weight < _MOST_WEIGHT and self._is_of_indices(op):
            self.settle(*args)
            self.values[result] = Elementwise(op, args, operand_types(op), kind)
            return
        computed = Computed(kind)
        self.join(Compute(op, [computed], args), kind.shape)
        self.values[result] = computed

    @staticmethod
    def _is_of_indices(op: Op) -> bool:
        return all(each.type.element.startswith("i") for each in (*op.operands, *op.results))

    def _of_pointers(self, op: Op) -> None:
        (result,) = op.results
        if op.name == "tt.bitcast":
            source = self.values[op.operands[0]]
            old, new = op.operands[0].type.element, result.type.element
            if SIZES.get(old) != SIZES.get(new):
                raise Refused(f"a pointer to {old} as one to {new}", op)
            if isinstance(source, Scalar):
                self.values[result] = Scalar(result.type, source.text, source.base)
                return
            assert isinstance(source, Pointer)
            self.values[result] = Pointer(result.type, source.base, source.offset)
            return
        if op.name == "arith.select":
            a, b = (self.values[each] for each in op.operands[1:])
            if isinstance(a, Scalar) and isinstance(b, Scalar) and a.base == b.base:
                name = self.name("s")
                self.put(f"const long {name} = {self.text(op.operands[0])} ? {a.text} : {b.text};")
                self.values[result] = Scalar(result.type, name, a.base)
                return
        raise Refused("pointers of which the parameter is not known", op)

    def barrier(self, op: Op) -> None:
        """Nothing to one work-item."""

    def constant(self, op: Op) -> None:
        (result,) = op.results
        word = op.words[0]
        kind = result.type
        if not kind.shape:
            self.values[result] = Scalar(kind, literal(word, kind.element))
            self.outside[result] = literal(word, kind.element)
            return
        found = re.fullmatch(r"dense<([^\[\]\"]*)>", word)
        if found is None:
            raise Refused("a block of different constants", op)
        self.values[result] = Splat(kind, literal(found[1], kind.element))

    def poison(self, op: Op) -> None:
        """What nobody may read."""
        kind = op.results[0].type
        if kind.is_pointer:
            raise Refused("a pointer to nowhere", op)
        self.values[op.results[0]] = Splat(kind, "0") if kind.shape else Scalar(kind, "0")
        self.outside[op.results[0]] = "0"

    def range(self, op: Op) -> None:
        self.values[op.results[0]] = Range(op.results[0].type, op.integer("start"))

    def program_id(self, op: Op) -> None:
        letter = "p" if op.name == "tt.get_program_id" else "g"
        text = f"{letter}{'xyz'.index(op.words[0])}"
        self.values[op.results[0]] = Scalar(op.results[0].type, text)
        self.outside[op.results[0]] = text

    def splat(self, op: Op) -> None:
        source, kind = self.scalar(op.operands[0]), op.results[0].type
        if kind.is_pointer:
            offset = Splat(Type(kind.shape, "i64"), source.text)
            self.values[op.results[0]] = Pointer(kind, source.base, offset)
        else:
            self.values[op.results[0]] = Splat(kind, source.text)

    def _view(self, op: Op, index: Callable[[Index], Index]) -> None:
        source, kind = self.values[op.operands[0]], op.results[0].type
        assert not isinstance(source, Scalar)
        self.settle(source)
        if isinstance(source, Pointer):
            offset = View(Type(kind.shape, "i64"), source.offset, index)
            self.values[op.results[0]] = Pointer(kind, source.base, offset)
        elif isinstance(source, Splat):
            self.values[op.results[0]] = Splat(kind, source.text)
        else:
            self.values[op.results[0]] = View(kind, source, index)

    def expand_dims(self, op: Op) -> None:
        axis = op.integer("axis")
        self._view(op, lambda index: index[:axis] + index[axis + 1 :])

    def broadcast(self, op: Op) -> None:
        shape = op.operands[0].type.shape
        self._view(op, lambda index: tuple("0" if n == 1 else each for each, n in zip(index, shape, strict=True)))

    def trans(self, op: Op) -> None:
        order = [int(n) for n in re.findall(r"-?\d+", op.attributes["order"].split(":", 1)[1])]

        def moved(index: Index) -> Index:
            out = ["0"] * len(order)
            for d, source in enumerate(order):
                out[source] = index[d]
            return tuple(out)

        self._view(op, moved)

    def reshape(self, op: Op) -> None:
        self._view(op, reshaped(op.operands[0].type.shape, op.results[0].type.shape))

    def join_blocks(self, op: Op) -> None:
        parts = [self.as_block(each) for each in op.operands]
        self.settle(*parts)
        self.values[op.results[0]] = Choice(
            op.results[0].type, parts, lambda index: (f"{index[-1]} == 0", index[:-1], index[:-1])
        )

    def split(self, op: Op) -> None:
        source = self.as_block(op.operands[0])
        self.settle(source)
        for n, result in enumerate(op.results):
            if result.type.shape:
                self.values[result] = View(result.type, source, lambda index, n=n: (*index, str(n)))  # type: ignore[misc]
            else:
                scope = Scope(self.names)
                text = scope.value(source, (str(n),))
                self.put(*scope.lines)
                self.set_scalar(result, text)

    def cat(self, op: Op) -> None:
        parts = [self.as_block(each) for each in op.operands]
        self.settle(*parts)
        first, second = (part.type.shape[0] for part in parts)

        def choose(index: Index) -> tuple[str, Index, Index]:
            at = index[0]
            return (
                f"{at} < {first}",
                (f"min({at}, {first - 1})", *index[1:]),
                (f"max({at} - {first}, 0)" if second > 1 else "0", *index[1:]),
            )

        self.values[op.results[0]] = Choice(op.results[0].type, parts, choose)

    def unsplat(self, op: Op) -> None:
        source = self.as_block(op.operands[0])
        self.settle(source)
        scope = Scope(self.names)
        text = scope.value(source, ("0",) * len(source.type.shape))
        self.put(*scope.lines)
        self.set_scalar(op.results[0], text)

    def addptr(self, op: Op) -> None:
        pointer, offset = (self.values[each] for each in op.operands)
        kind = op.results[0].type
        if isinstance(pointer, Scalar):
            name = self.name("s")
            self.put(f"const long {name} = {pointer.text} + {self.text(op.operands[1])};")
            self.values[op.results[0]] = Scalar(kind, name, pointer.base)
            return
        assert isinstance(pointer, Pointer)
        assert not isinstance(offset, Pointer)
        added = self.as_block(op.operands[1])
        self.settle(pointer, added)
        self.values[op.results[0]] = Pointer(kind, pointer.base, Sum(Type(kind.shape, "i64"), pointer.offset, added))

    def load(self, op: Op) -> None:
        pointer, kind = self.values[op.operands[0]], op.results[0].type
        if kind.is_pointer or any("pad" in word or "boundary" in word for word in (*op.words, *op.attributes)):
            raise Refused("a load of this kind", op)
        masks = op.operands[1:]
        if isinstance(pointer, Scalar):
            self.close()
            text = f"load_{stored(pointer.type.element, op)}({self.place(pointer, op, False)}, {pointer.text})"
            if masks:
                other = self.text(masks[1]) if len(masks) > 1 else "0"
                text = f"({self.text(masks[0])} ? {text} : {other})"
            self.set_scalar(op.results[0], text)
            return
        assert isinstance(pointer, Pointer)
        mask, other_block = (self.as_block(masks[n]) if n < len(masks) else None for n in range(2))
        self.settle(pointer)
        result = Computed(kind)
        place = self.place(pointer, op, False)
        self.join(Load(op, [result], pointer, mask, place, other_block), kind.shape)
        self.values[op.results[0]] = result

    def store(self, op: Op) -> None:
        pointer = self.values[op.operands[0]]
        if isinstance(pointer, Scalar):
            value = self.text(op.operands[1])
            condition = self.text(op.operands[2]) if len(op.operands) > 2 else "1"
            self.close()
            place = self.place(pointer, op, True)
            text = f"store_{stored(pointer.type.element, op)}({place}, {pointer.text}, {value});"
            self.once(text if condition == "1" else f"if ({condition}) {{ {text} }}", [pointer.base])
            return
        assert isinstance(pointer, Pointer)
        mask = self.as_block(op.operands[2]) if len(op.operands) > 2 else None
        value_block = self.as_block(op.operands[1])
        self.settle(pointer)
        self.join(Store(op, [], pointer, mask, self.place(pointer, op, True), value_block), pointer.type.shape)

    def reduce(self, op: Op) -> None:
        args = [self.as_block(each) for each in op.operands]
        shape = args[0].type.shape
        member = Reduce(op, [], args, op.integer("axis"))
        self.join(member, shape)
        for value in op.results:
            if value.type.shape:
                computed = Computed(value.type)
                member.results.append(computed)
                self.values[value] = computed
            else:
                scalar = Scalar(value.type, pending=Computed(value.type))
                member.scalars.append(scalar)
                self.values[value] = scalar

    def scan(self, op: Op) -> None:
        """Running results along a dimension, in its order or the reverse."""
        args = [self.as_block(each) for each in op.operands]
        self.close()
        axis, shape = op.integer("axis"), args[0].type.shape
        arrays = [self.array(value.type.element, value.type.size) for value in op.results]
        order = [d for d in range(len(shape)) if d != axis] + [axis]
        index = tuple(f"i{d}" for d in range(len(shape)))
        held = [self.name("h") for _ in args]
        scope = Scope(self.names)
        values = [scope.value(each, index) for each in args]
        found = combined(op, scope, held, values, self.outside)
        first = f"n{axis} == 0"
        for d in order[:-1]:
            self.put(f"for (int i{d} = 0; i{d} < {shape[d]}; ++i{d}) {{")
        for name, value in zip(held, op.results, strict=True):
            self.put(f"{CTYPES[value.type.element]} {name} = 0;")
        at = f"{shape[axis] - 1} - n{axis}" if is_reverse(op) else f"n{axis}"
        self.put(f"for (int n{axis} = 0; n{axis} < {shape[axis]}; ++n{axis}) {{", f"const int i{axis} = {at};")
        self.put(*scope.lines)
        kept = [self.name("f") for _ in held]
        for value, name, old, new in zip(op.results, kept, values, found, strict=True):
            self.put(f"const {CTYPES[value.type.element]} {name} = {first} ? {old} : {new};")
        for name, keep, array in zip(held, kept, arrays, strict=True):
            self.put(f"{name} = {keep};", f"{array}[{flat(index, shape)}] = {keep};")
        self.put(*["}"] * len(shape))
        for value, array in zip(op.results, arrays, strict=True):
            self.values[value] = Computed(value.type, array)

    def gather(self, op: Op) -> None:
        source, places = (self.as_block(each) for each in op.operands)
        self.close()
        axis, kind = op.integer("axis"), op.results[0].type
        held = Computed(source.type, self.in_array(source))
        array = self.array_for(kind.element, op.results)

        def body(scope: Scope, index: Index) -> list[str]:
            found = scope.value(held, (*index[:axis], scope.value(places, index), *index[axis + 1 :]))
            return [f"{element_of(array, index, kind.shape)} = {found};"]

        self.each(kind.shape, body, [array])
        self.values[op.results[0]] = Computed(kind, array)

    def histogram(self, op: Op) -> None:
        blocks = [self.as_block(each) for each in op.operands]
        self.close()
        kind = op.results[0].type
        array = self.array(kind.element, kind.size)
        self.put(f"for (int i = 0; i < {kind.size}; ++i) {array}[i] = 0;")

        def body(scope: Scope, index: Index) -> list[str]:
            bin_, *masks = (scope.value(each, index) for each in blocks)
            inside = f"{bin_} >= 0 && {bin_} < {kind.size}"
            condition = f"{masks[0]} && {inside}" if masks else inside
            return [f"if ({condition}) {array}[{bin_}] += 1;"]

        self.each(blocks[0].type.shape, body, [array], vectorize=False)
        self.values[op.results[0]] = Computed(kind, array)


def is_reverse(op: Op) -> bool:
    """Whether a scan goes from the end."""
    return op.attributes.get("reverse", "").startswith("true")
