"""Atomic operations: a loop that compares and exchanges, for each element one after the other."""

from __future__ import annotations

from collections.abc import Sequence

from torchgraft.triton.blocks import Block, Computed, Index, Pointer, Scalar, Scope
from torchgraft.triton.elements import CTYPES
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
_WORDS = {"i32": ("int", "{}", "{}"), "f32": ("int", "AS_float({})", "AS_int({})"),
          "i64": ("long", "{}", "{}"), "f64": ("long", "AS_double({})", "AS_long({})")}  # fmt: skip


def atomic_rmw(t: Translator, op: Op) -> None:
    kind = op.words[0]
    element = op.operands[0].type.element
    if kind not in _CHANGES or element not in _WORDS:
        raise Refused(f"{kind} of {element}", op)
    word, read, write = _WORDS[element]
    ctype, name = CTYPES[element], f"triton_{kind}_{element}"
    change = _CHANGES[kind].replace("U", f"u{word}")
    t.helpers[name] = f"""\
TG_FUNCTION {ctype} {name}(GLOBAL {word}* p, {ctype} by) {{
  {word} held = *p;
  for (;;) {{
    const {ctype} old = {read.format("held")};
    const {ctype} changed = {change};
    const {word} found = ATOMIC_CAS_{word}(p, held, {write.format("changed")});
    if (found == held) return old;
    held = found;
  }}
}}"""
    _each(t, op, name, word, op.operands[1:2], op.operands[2:3])


def atomic_cas(t: Translator, op: Op) -> None:
    element = op.operands[0].type.element
    if element not in _WORDS:
        raise Refused(f"compare and exchange of {element}", op)
    word, read, write = _WORDS[element]
    ctype, name = CTYPES[element], f"triton_cas_{element}"
    t.helpers[name] = f"""\
TG_FUNCTION {ctype} {name}(GLOBAL {word}* p, {ctype} expected, {ctype} value) {{
  const {word} found = ATOMIC_CAS_{word}(p, {write.format("expected")}, {write.format("value")});
  return {read.format("found")};
}}"""
    _each(t, op, name, word, op.operands[1:3], [])


def _each(t: Translator, op: Op, function: str, word: str, operands: Sequence[Value], masks: Sequence[Value]) -> None:
    """Calls a function for each element."""
    t.close()
    pointer, result = t.values[op.operands[0]], op.results[0]
    assert isinstance(pointer, (Pointer, Scalar))
    place = f"(GLOBAL {word}*){t.place(pointer, op, True)}"
    ctype = CTYPES[result.type.element]
    if isinstance(pointer, Scalar):
        call = f"{function}({place} + {pointer.text}, {', '.join(t.text(each) for each in operands)})"
        t.set_scalar(result, f"({t.text(masks[0])} ? {call} : ({ctype})0)" if masks else call)
        return
    blocks: list[Block] = [t.as_block(each) for each in operands]
    conditions: list[Block] = [t.as_block(each) for each in masks]
    array = t.array(result.type.element, result.type.size) if result.users else ""

    def body(scope: Scope, index: Index, at: str) -> list[str]:
        where = scope.value(pointer.offset, index)
        given = ", ".join(scope.value(each, index) for each in blocks)
        call = f"{function}({place} + {where}, {given})"
        kept = f"{array}[{at}] = {call};" if array else f"{call};"
        if not conditions:
            return [kept]
        return [f"if ({scope.value(conditions[0], index)}) {{ {kept} }}"]

    t.put(*t.loop_over(pointer.offset, body, vectorize=False))
    if array:
        t.values[result] = Computed(result.type, array)
