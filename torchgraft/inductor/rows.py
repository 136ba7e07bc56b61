"""Table rows as lowerings: an op whose result is an expression of its arguments fuses with what stands beside it.

Inductor knows PyTorch's own ops. Of others, an author's or PyTorch's rarer ones, it makes calls that nothing can be
fused with. A row (`torchgraft.ops.row`) says all that a fused kernel needs, so nothing has to be declared again: its
expression becomes a function of the kernel language, which `inline_asm_elementwise` carries into the kernel; that is
inductor's operation for text of which it knows nothing but the types.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch._inductor import ir
from torch._inductor.lowering import broadcast_tensors, fallback_handler, fallbacks, lowerings
from torch._inductor.lowering import to_dtype as lowered_to_dtype
from torch._inductor.virtualized import ops

from torchgraft import backend
from torchgraft.codegen import UnsupportedDtype, element_type
from torchgraft.codegen.types import BY_NAME, value_ctype
from torchgraft.inductor import options
from torchgraft.ops.table import Kind, Row
from torchgraft.plans import ENTRIES
from torchgraft.plans.elementwise import promoted_dtype

__all__ = ["add_lowerings", "digest", "row_function"]


def digest() -> str:
    """Of all rows: programs that are kept on disk hold their expressions."""
    text = "\n".join(sorted(_described(row) for row in map(_row_of, list(ENTRIES)) if row is not None))
    return hashlib.sha256(text.encode()).hexdigest()


def add_lowerings(targets: Iterable[Any]) -> None:
    """Makes lowerings for those of the ops that have a row, and that inductor would call."""
    for op in targets:
        if not isinstance(op, torch._ops.OpOverload) or (op in lowerings and op not in fallbacks):
            continue
        row = _row_of(op.name())
        if row is not None:
            lowerings[op] = _lowering(op, row)


def _row_of(name: str) -> Row | None:
    """An op's row, if it is one whose text is the same for all calls and gives one result."""
    entry = ENTRIES.get(name)
    row = entry.plan if entry is not None and entry.kind == "functional" else None
    if not isinstance(row, Row) or row.operands or not isinstance(row.kind, Kind):
        return None
    texts = (row.text, row.integer, row.boolean, row.complex)
    return row if all(text is None or isinstance(text, str) for text in texts) else None


def _described(row: Row) -> str:
    return repr((row.op, row.text, row.integer, row.boolean, row.kind))


def _lowering(op: torch._ops.OpOverload, row: Row) -> Callable[..., Any]:
    call = fallback_handler(op)

    def lowered(*args: Any, **kwargs: Any) -> Any:
        arguments = {p.name: p.default for p in row.parameters if p.default is not None}
        arguments |= dict(zip((p.name for p in row.parameters), args, strict=False)) | kwargs
        made = None if options.by_triton() else _pointwise(row, arguments)  # which is in the device's language
        return call(*args, **kwargs) if made is None else made

    return lowered


def _pointwise(row: Row, arguments: dict[str, Any]) -> Any:
    """The op in inductor's terms, or None for calls that no kernel can hold."""
    tensors = {name: value for name, value in arguments.items() if isinstance(value, ir.TensorBox)}
    numbers = {name: value for name, value in arguments.items() if isinstance(value, int | float)}
    others = [value for value in arguments.values() if not isinstance(value, ir.TensorBox | int | float)]
    on = {tensor.get_device() for tensor in tensors.values()}
    if others or len(on) != 1 or {device and device.type for device in on} != {backend.name()}:
        return None
    # As torch promotes them: how many dimensions a tensor has counts, and not their sizes.
    operands = [torch.empty([1] * len(t.get_size()), dtype=t.get_dtype(), device="meta") for t in tensors.values()]
    assert isinstance(row.kind, Kind)
    common = promoted_dtype(operands)
    compute, result = row.kind.computes_in(common), row.kind.gives(common)
    has_fractions = any(isinstance(number, float) for number in numbers.values())
    if compute.is_complex or (has_fractions and not compute.is_floating_point):
        return None
    try:
        function, given, used = row_function(row, row.kind, compute, {name: name for name in arguments})
    except UnsupportedDtype:
        return None
    inputs = broadcast_tensors(*(lowered_to_dtype(tensor, compute) for tensor in tensors.values()))
    loaders = dict(zip(tensors, (each.make_loader() for each in inputs), strict=True))

    def element(index: Sequence[Any]) -> Any:
        values = [loaders[name](index) if name in loaders else ops.constant(numbers[name], compute) for name in used]
        value = ops.inline_asm_elementwise(*values, asm=function, dtype=BY_NAME[given].dtype)
        return ops.to_dtype(value, result) if result != BY_NAME[given].dtype else value

    return ir.Pointwise.create(
        device=inputs[0].get_device(), dtype=result, inner_fn=element, ranges=list(inputs[0].get_size())
    )


def row_function(row: Row, kind: Kind, compute: torch.dtype, static: Mapping[str, Any]) -> tuple[str, str, list[str]]:
    """A row's expression as a function.

    Args:
        row: the op's.
        kind: how its operands are promoted.
        compute: what is computed in.
        static: the op's arguments by name; those that are the function's stand for themselves.

    Returns:
        its definition, the element type that it gives, and which of the arguments it takes.

    Raises:
        UnsupportedDtype: the row has none for the type.
    """
    type_ = element_type(compute).name
    statements, (text,) = row.texts(type_, dict(static))
    given = "b8" if kind is Kind.ALWAYS_BOOL else type_
    used = [name for name in static if re.search(rf"\b{name}\b", f"{statements} {text}")]
    return _function(row.name, type_, given, used, statements, text), given, used


def _function(name: str, type_: str, given: str, used: Sequence[str], statements: str, text: str) -> str:
    """The definition of a function, named by what it does."""
    parameters = ", ".join(f"{value_ctype(type_)} {parameter}" for parameter in used)
    body = f"({parameters}) {{ {statements} return {text}; }}"
    mark = hashlib.sha256(body.encode()).hexdigest()[:8]
    return f"TG_FUNCTION {value_ctype(given)} tg_row_{name}_{type_}_{mark}{body}"
