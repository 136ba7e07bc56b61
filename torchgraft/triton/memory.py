"""Atomic operations: a loop that compares and exchanges, for each element one after the other."""

from __future__ import annotations

from collections.abc import Sequence

from torchgraft.codegen.types import BY_NAME
from torchgraft.triton.blocks import Block, Computed, Index, Pointer, Scalar, Scope, element_of
from torchgraft.triton.elements import CTYPES, SIZES, bits, of_bits
from torchgraft.triton.ir import Op, Value
from torchgraft.triton.refused import Refused
from torchgraft.triton.translate import Translator

__all__ = ["atomic_cas", "atomic_rmw"]

_CHANGES = {
    "and": "old & by",
    "or": "old | by",
    "xor": "old ^ by",
    "add": "old + by",
    "fadd": "old + by",
    "max": "old > by ? old : by",
    "min": "old < by ? old : by",
    "umax": "(U)old > (U)by ? old : by",
    "umin": "(U)old < (U)by ? old : by",
    "exch": "by",
}
_WORDS = {4: "int", 8: "long"}


def atomic_rmw(t: Translator, op: Op) -> None:
    kind = op.words[0]
    element = op.operands[0].type.element
    if kind not in _CHANGES or SIZES.get(element, 0) < 2:
        raise Refused(f"{kind} of {element}", op)
    ctype, name = CTYPES[element], f"triton_{kind}_{element}"
    change = _CHANGES[kind].replace("U", f"u{ctype}")
    if element in ("f16", "bf16"):
        change = f"tg_narrow_{element}({change})"
    t.helpers[name] = _trials(name, element, f"{ctype} by", "", change)
    _each(t, op, name, op.operands[1:2], op.operands[2:3])


def atomic_cas(t: Translator, op: Op) -> None:
    element = op.operands[0].type.element
    if SIZES.get(element, 0) < 2:
        raise Refused(f"compare and exchange of {element}", op)
    ctype, name = CTYPES[element], f"triton_cas_{element}"
    other = f"if ({_bits('old', element)} != {_bits('expected', element)}) return old;"
    t.helpers[name] = _trials(name, element, f"{ctype} expected, {ctype} value", other, "value")
    _each(t, op, name, op.operands[1:3], [])


def _trials(name: str, element: str, parameters: str, leave: str, change: str) -> str:
    """A function that changes an element, and returns what it was. Of 16 bits, the word around it is exchanged, which
    may reach beyond the last element, but not beyond what the allocator gives out.

    Args:
        leave: a statement that may end it before.
        change: what the element is to be.
    """
    ctype, size = CTYPES[element], SIZES[element]
    word = _WORDS[max(size, 4)]
    if size < 4:
        place = f"(GLOBAL {word}*)((GLOBAL uchar*)p - ((ulong)p & 2))"
        head = "const int shift = 8 * (int)((ulong)p & 2);"
        bits = "(short)((uint)held >> shift)"
        new = f"(int)(((uint)held & ~(0xffffu << shift)) | (uint)(ushort)({_bits(change, element)}) << shift)"
    else:
        place, head, bits, new = f"(GLOBAL {word}*)p", "", "held", _bits(change, element)
    old = of_bits(bits, element) if ctype in ("float", "double") else bits
    return f"""\
TG_FUNCTION {ctype} {name}(GLOBAL {BY_NAME[element].storage}* p, {parameters}) {{
  GLOBAL {word}* place = {place}; {head}
  {word} held = ATOMIC_CAS_{word}(place, 0, 0);
  for (;;) {{
    const {ctype} old = {old}; {leave}
    const {word} found = ATOMIC_CAS_{word}(place, held, {new});
    if (found == held) return old;
    held = found;
  }}
}}"""


def _bits(text: str, element: str) -> str:
    return bits(text, element) if CTYPES[element] in ("float", "double") else f"({text})"


def _ordered(t: Translator, op: Op, base: str) -> list[str]:
    """Parameters whose memory is in order with an atomic op: it may tell other programs of all that came before."""
    if "relaxed" in op.words:
        return [base]
    return [f"arg{n}" for n, each in enumerate(t.function.arguments) if each.type.is_pointer]


def _each(t: Translator, op: Op, function: str, operands: Sequence[Value], masks: Sequence[Value]) -> None:
    """Calls a function for each element."""
    t.close()
    pointer, result = t.values[op.operands[0]], op.results[0]
    assert isinstance(pointer, (Pointer, Scalar))
    place = t.place(pointer, op, True)
    writes = _ordered(t, op, pointer.base)
    ctype = CTYPES[result.type.element]
    if isinstance(pointer, Scalar):
        call = f"{function}({place} + {pointer.text}, {', '.join(t.text(each) for each in operands)})"
        text = f"({t.text(masks[0])} ? {call} : ({ctype})0)" if masks else call
        if result.users:
            t.once_value(result, text, writes)
        else:
            t.once(f"(void){text};", writes)
        return
    blocks: list[Block] = [t.as_block(each) for each in operands]
    conditions: list[Block] = [t.as_block(each) for each in masks]
    array = t.array_for(result.type.element, [result]) if result.users else ""

    def body(scope: Scope, index: Index) -> list[str]:
        where = scope.value(pointer.offset, index)
        given = ", ".join(scope.value(each, index) for each in blocks)
        call = f"{function}({place} + {where}, {given})"
        kept = f"{element_of(array, index, result.type.shape)} = {call};" if array else f"{call};"
        if not conditions:
            return [kept]
        return [f"if ({scope.value(conditions[0], index)}) {{ {kept} }}"]

    t.each(pointer.type.shape, body, [*writes, array], vectorize=False)
    if array:
        t.values[result] = Computed(result.type, array)
