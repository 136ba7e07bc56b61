"""Loops and branches of a program, and the values that they carry.

A scalar that is carried is a variable; a block an array, into which the body's last group writes where nothing reads
what was there. Blocks of pointers and of integers that only move by the same for all elements are what they were at
first, and a variable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torchgraft.triton.accumulators import narrowed
from torchgraft.triton.blocks import Block, Computed, Elementwise, Pointer, Scalar, Splat, Sum
from torchgraft.triton.elements import CTYPES, operand_types
from torchgraft.triton.ir import Block as Ops
from torchgraft.triton.ir import Op, Region, Type, Value, walk
from torchgraft.triton.refused import Refused
from torchgraft.triton.translate import Known, Translator

__all__ = ["branches", "for_loop", "if_else", "while_loop"]

# Blocks that several branches lead to are written out for each.
_MOST_COPIES = 8


@dataclass
class _Carried:
    """A value that a loop or a branch hands on.

    Attributes:
        known: it, as ops use it.
        variable: that of a scalar, or of what is the same for all elements; empty if it is an array.
        array: where a block lies.
        moves: of blocks that only move, what they are from a base on.
    """

    known: Known
    variable: str = ""
    array: str = ""
    moves: bool = False


def for_loop(t: Translator, op: Op) -> None:
    if "unsigned" in op.words:
        raise Refused("a loop that counts without signs", op)
    t.close()
    low, high, step = (t.text(each) for each in op.operands[:3])
    body = op.regions[0].only
    index, *arguments = body.arguments
    results = _handed_on(body)
    carried = [
        _begun(t, argument, start, result, passed)
        for argument, start, result, passed in zip(arguments, op.operands[3:], results, op.results, strict=True)
    ]
    variable = t.name("k")
    ctype = CTYPES[index.type.element]
    t.put(f"for ({ctype} {variable} = {low}; {variable} < {high}; {variable} += {step}) {{")
    t.values[index] = Scalar(index.type, variable)
    t.outside[index] = variable
    for argument, each, result in zip(arguments, carried, results, strict=True):
        _send(t, result, each.array, argument)
    t.block(body)
    _hand_on(t, results, carried)
    t.has_handed_on(body)
    t.put("}")
    for result, each in zip(op.results, carried, strict=True):
        t.values[result] = each.known


def while_loop(t: Translator, op: Op) -> None:
    if any(each.name.startswith("tt.atomic") for region in op.regions for each in walk(region)):
        raise Refused("a loop that waits for other programs, which may not have begun", op)
    t.close()
    before, after = (region.only for region in op.regions)
    condition = before.ops[-1]
    carried = [_begun(t, argument, start) for argument, start in zip(before.arguments, op.operands, strict=True)]
    passed = [_declared(t, value, argument) for value, argument in zip(op.results, after.arguments, strict=True)]
    t.put("for (;;) {")
    t.block(before)
    t.close()
    going = t.text(condition.operands[0])
    _hand_on(t, condition.operands[1:], passed)
    t.put(f"if (!{going}) break;")
    for argument, each in zip(after.arguments, passed, strict=True):
        t.values[argument] = each.known
    t.block(after)
    _hand_on(t, _handed_on(after), carried)
    t.has_handed_on(after)
    t.put("}")
    for result, each in zip(op.results, passed, strict=True):
        t.values[result] = each.known


def if_else(t: Translator, op: Op) -> None:
    condition = t.text(op.operands[0])
    t.close()
    passed = [_declared(t, value) for value in op.results]
    for number, region in enumerate(op.regions):
        t.put("} else {" if number else f"if ({condition}) {{")
        body = region.only
        results = _handed_on(body)
        for result, each in zip(results, passed, strict=False):
            _send(t, result, each.array, None)
        t.block(body)
        _hand_on(t, results, passed)
        t.has_handed_on(body)
    t.put("}")
    for result, each in zip(op.results, passed, strict=True):
        t.values[result] = each.known


def branches(t: Translator, region: Region, block: Ops, path: Sequence[Ops]) -> None:
    """Blocks of a function that returns early: what a branch leads to stands where it branches."""
    by_label = {each.label: each for each in region.blocks}
    if block in path:
        raise Refused("jumps backwards")
    if len(path) > _MOST_COPIES:
        raise Refused("so many early returns")
    end = t.block(block)
    t.close()
    if end is None:
        return

    def go(number: int) -> None:
        label, passed = end.targets[number]
        target = by_label[label]
        for argument, value in zip(target.arguments, passed, strict=True):
            known = t.scalar(value) if not value.type.shape else t.values[value]
            if isinstance(known, Computed):  # an array of its own, which may be written
                known = Computed(known.type, t.in_array(known, t.shared_array(known.type.element, known.type.size)))
            t.values[argument] = known
            if not value.type.shape and not value.type.is_pointer:
                t.outside[argument] = t.text(value)
        branches(t, region, target, [*path, block])

    if end.name == "cf.br":
        go(0)
        return
    t.put(f"if ({t.text(end.operands[0])}) {{")
    go(0)
    t.put("} else {")
    go(1)
    t.put("}")


def _handed_on(body: Ops) -> Sequence[Value]:
    return body.ops[-1].operands if body.ops and body.ops[-1].name == "scf.yield" else ()


def _begun(
    t: Translator, argument: Value, start: Value, result: Value | None = None, passed: Value | None = None
) -> _Carried:
    """What a loop carries, as it is at first.

    Args:
        result: what one turn makes of it.
        passed: what the loop makes of it.
    """
    read = [argument, *([] if passed is None else [passed])]
    kind, first = argument.type, t.values[start]
    if not kind.shape:
        first = t.scalar(start)
        each = _declared(t, *read)
        assert isinstance(each.known, Scalar)
        each.known.base = first.base
        t.put(f"{each.variable} = {first.text};")
    elif (
        result is not None and _only_moves(t, result, argument) and (kind.is_pointer or kind.element in ("i32", "i64"))
    ):
        each = _moving(t, argument, first, result)
    elif passed is not None and result is not None and (partial := narrowed(t, argument, start, result, passed)):
        each = _Carried(partial, array=partial.array)
    elif kind.is_pointer:
        assert isinstance(first, Pointer)
        each = _declared(t, *read)
        each.known = Pointer(kind, first.base, Computed(Type(kind.shape, "i64"), each.array))
        t.in_array(first.offset, each.array)
    else:
        each = _declared(t, *read)
        t.in_array(t.as_block(start), each.array)
    t.values[argument] = each.known
    if each.variable and not kind.shape and not kind.is_pointer:
        t.outside[argument] = each.variable
    return each


def _declared(t: Translator, *values: Value) -> _Carried:
    """A variable or an array for what are values of one type."""
    kind = values[0].type
    if not kind.shape:
        name = t.name("c")
        t.put(f"{'long' if kind.is_pointer else CTYPES[kind.element]} {name};")
        return _Carried(Scalar(kind, name), name)
    array = t.array_for("i64" if kind.is_pointer else kind.element, values)
    known: Known = Computed(kind, array)
    if kind.is_pointer:
        known = Pointer(kind, "", Computed(Type(kind.shape, "i64"), array))
    return _Carried(known, array=array)


def _only_moves(t: Translator, result: Value, argument: Value) -> bool:
    """Whether a carried block only has the same added to all its elements."""
    if result is argument:
        return True
    owner = result.owner
    if owner is None or owner.name not in ("tt.addptr", "arith.addi"):
        return False
    return _is_uniform(t, owner.operands[1]) and _only_moves(t, owner.operands[0], argument)


def _is_uniform(t: Translator, value: Value) -> bool:
    if isinstance(t.values.get(value), Splat):
        return True
    owner = value.owner
    if owner is None:
        return False
    return owner.name == "tt.splat" or (owner.name == "arith.constant" and "[" not in owner.words[0])


def _moving(t: Translator, argument: Value, first: Known, result: Value) -> _Carried:
    kind, name = argument.type, t.name("c")
    t.put(f"{'long' if kind.is_pointer else CTYPES[kind.element]} {name} = 0;")
    if isinstance(first, Pointer):
        at = Type(kind.shape, "i64")
        known: Known = Pointer(kind, first.base, Sum(at, first.offset, Splat(at, name)))
    else:
        assert isinstance(first, Block)
        t.settle(first)
        known = first
        owner = result.owner
        if owner is not None and result is not argument:
            if isinstance(first, Computed) and first.array:
                first = Computed(kind, t.in_array(first, t.shared_array(kind.element, kind.size)))
            known = Elementwise(owner, [first, Splat(kind, name)], operand_types(owner), kind)
    return _Carried(known, name, moves=True)


def _moved(t: Translator, result: Value, argument: Known) -> str:
    """By what a block has moved in one turn of a loop."""
    out = []
    while t.values[result] is not argument:
        assert result.owner is not None
        step = t.values[result.owner.operands[1]]
        assert isinstance(step, Splat)
        out.append(step.text)
        result = result.owner.operands[0]
    return " + ".join(out)


def _send(t: Translator, result: Value, array: str, argument: Value | None) -> None:
    """Has what a loop or a branch hands on computed where it is handed on."""
    if not array or result.type.is_pointer:
        return
    t.send_to(result, array, argument)
    owner = result.owner
    if owner is not None and owner.name == "tt.dot":
        start = owner.operands[2]
        if start is not argument and start.users == [owner]:
            t.send_to(start, array, argument)


def _hand_on(t: Translator, values: Sequence[Value], carried: Sequence[_Carried]) -> None:
    """Gives what is carried its next values, all at once."""
    t.close()
    pairs = list(zip(values, carried, strict=True))
    arrays = {each.array for each in carried if each.array}
    copies: list[Callable[[], None]] = []
    for value, each in pairs:
        if each.array:
            copies += _copies(t, value, each, arrays)
    for copy in copies:
        copy()
    assignments = []
    for value, each in pairs:
        if each.array:
            continue
        if each.moves:
            if step := _moved(t, value, each.known):
                t.put(f"{each.variable} += {step};")
            continue
        found = t.scalar(value)
        assert isinstance(each.known, Scalar)
        if value.type.is_pointer:
            if each.known.base not in ("", found.base):
                raise Refused("a pointer into one parameter's memory or another's")
            each.known.base = found.base
        if found.text != each.variable:
            assignments.append((each.variable, found.text, "long" if value.type.is_pointer else
                                CTYPES[value.type.element]))  # fmt: skip
    if len(assignments) == 1:
        t.put(f"{assignments[0][0]} = {assignments[0][1]};")
        return
    kept = [(name, t.name("n"), text, ctype) for name, text, ctype in assignments]
    t.put(*(f"const {ctype} {new} = {text};" for _, new, text, ctype in kept))
    t.put(*(f"{name} = {new};" for name, new, _, _ in kept))


def _copies(t: Translator, value: Value, each: _Carried, arrays: set[str]) -> list[Callable[[], None]]:
    """Copies a block to where it is handed on; at once into an array of its own if it reads what others are carried
    in, and from there later."""
    known = t.values[value]
    if isinstance(known, Pointer):
        assert isinstance(each.known, Pointer)
        if each.known.base not in ("", known.base):
            raise Refused("pointers into one parameter's memory or another's")
        each.known = Pointer(each.known.type, known.base, each.known.offset)
        block: Block = known.offset
    else:
        block = t.as_block(value)
    if isinstance(block, Computed) and block.array == each.array:
        return []
    if all(leaf.array not in arrays for leaf in block.leaves):
        return [lambda: _copy(t, block, each.array)]
    held = Computed(block.type, t.in_array(block, t.shared_array(block.type.element, block.type.size)))
    return [lambda: _copy(t, held, each.array)]


def _copy(t: Translator, block: Block, array: str) -> None:
    t.in_array(block, array)
