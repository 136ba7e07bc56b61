"""What a kernel tells while it runs: assertions that fail, and what it prints."""

from __future__ import annotations

from torchgraft.triton.blocks import Block, Index, Pointer, Scalar, Scope
from torchgraft.triton.elements import SIZES, bits
from torchgraft.triton.ir import Op, Type, Value, unquoted
from torchgraft.triton.translate import Translator

__all__ = ["device_assert", "device_print"]


def device_assert(t: Translator, op: Op) -> None:
    """An error that the host raises; the programs that the work-item has not begun are left out, and this one ends:
    what it does next may rely on the condition."""
    message = unquoted(op.words[0])
    message = f"{': ' if message else ''}{message} ({op.where})"
    code = t.reports.setdefault(message, len(t.reports))
    condition = op.operands[0]
    if condition.type.shape:
        block = t.as_block(condition)
        t.close()
        good = t.all_of(block)
    else:
        good = t.text(condition)
        t.close()
    t.put(f"if (!{good}) {{")
    t.once(f"tg_report(errors, code + {code}, program);", [])
    t.put("return;", "}")


def device_print(t: Translator, op: Op) -> None:
    """A line for each element, as Triton's other devices print it."""
    prefix = _escaped(unquoted(op.words[0]))
    if not op.operands:
        t.close()
        t.once(_line(prefix, []), [])
        return
    in_hex = op.attributes["hex"].startswith("true")
    signed = [int(n) for n in op.attributes["isSigned"].partition(":")[2].rstrip("> ").split(",")]
    for number, (operand, sign) in enumerate(zip(op.operands, signed, strict=True)):
        which = f"(operand {number}) " if len(op.operands) > 1 else ""
        form, value = _format(operand.type, in_hex, bool(sign))
        _print(t, op, operand, f"{prefix}{which}{form}", value)


def _print(t: Translator, op: Op, operand: Value, form: str, value: str) -> None:
    known = t.values[operand]
    base = ""
    if isinstance(known, (Scalar, Pointer)) and operand.type.is_pointer:
        base = f"{t.place(known, op, False)} + "
    if isinstance(known, Scalar):
        text = t.scalar(operand).text
        t.close()
        t.once(_line(f" idx (){form}", [value.format(base + text)]), [])
        return
    block: Block = known.offset if isinstance(known, Pointer) else known
    t.close()
    places = ", ".join(f"%{len(str(n - 1))}d" for n in operand.type.shape)

    def body(scope: Scope, index: Index) -> list[str]:
        text = value.format(base + scope.value(block, index))
        return [_line(f" idx ({places}){form}", [*(f"(int)({each})" for each in index), text])]

    t.each(operand.type.shape, body, [], vectorize=False)


def _line(form: str, values: list[str]) -> str:
    return f'PRINT("pid (%d, %d, %d){form}\\n", {", ".join(["p0", "p1", "p2", *values])});'


def _format(kind: Type, in_hex: bool, signed: bool) -> tuple[str, str]:
    """How an element is printed, and what is made of it for that."""
    element = kind.element
    if kind.is_pointer:
        return "%p", "(GLOBAL void*)({})"
    is_float = element in ("f16", "bf16", "f32", "f64")
    if is_float and not in_hex:
        return "%f", "{}"
    size = SIZES[element]
    value = bits("{}", element) if is_float else "{}"
    conversion = f"0x%0{2 * size}" if in_hex else "%"
    letter = "x" if in_hex else "d" if signed else "u"
    if size == 8:
        return f"{conversion}l{letter}", f"(ulong)({value})" if letter != "d" else f"(long)({value})"
    unsigned = {1: "uchar", 2: "ushort", 4: "uint"}[size] if element != "i1" else "uchar"
    return f"{conversion}{letter}", f"(uint)({unsigned})({value})" if letter != "d" else f"(int)({value})"


def _escaped(text: str) -> str:
    """Part of a format between quotes."""
    named = {"\n": "\\n", "\t": "\\t", "\r": "\\r", '"': '\\"', "\\": "\\\\", "%": "%%"}
    return "".join(named.get(c) or (c if c.isprintable() else f"\\{ord(c):03o}") for c in text)
