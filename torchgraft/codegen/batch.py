"""Kernels that run one loop over several tensors: lists of small tensors would cost a launch each.

The elements of the tensors count as one long row, which is partitioned into groups like one tensor's; a group walks
over the tensors of its part.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from torchgraft.codegen import pointwise
from torchgraft.codegen.kernel import Kernel, Parameter, Pointer, Value
from torchgraft.codegen.pointwise import Input, Loop, Result
from torchgraft.codegen.types import BY_NAME, value_ctype
from torchgraft.codegen.walk import Walk

#: Tensors of one launch: the least of these that will do, the rest of the places left empty, so that few kernels serve
#: all lists. One, where more do not fit into a launch's arguments.
COUNTS = (4, 16)
# OpenCL guarantees 1024 bytes of arguments.
_ARGUMENT_BYTES = 960


@dataclass(frozen=True)
class Batch:
    """What happens to each tensor of a list.

    Attributes:
        loop: of the elements. A result of the name of an input is the same memory.
        single: inputs that are one element for each tensor, loaded before its loop.
        varying: numbers that differ from tensor to tensor.
        head, tail: statements before and behind the loop of a tensor's elements; `continue` in the head leaves the
            tensor out.
    """

    loop: Loop
    single: frozenset[str] = frozenset()
    varying: frozenset[str] = frozenset()
    head: str = ""
    tail: str = ""

    @property
    def operands(self) -> list[Input | Result]:
        """Those that have a pointer, each once."""
        named: dict[str, Input | Result] = {o.name: o for o in self.loop.inputs}
        named.update((o.name, o) for o in self.loop.results)
        return list(named.values())

    @property
    def parameters(self) -> tuple[list[Parameter], list[Parameter]]:
        """Those that differ from tensor to tensor, and the numbers that do not."""
        numbers = [Value(number.name, number.type) for number in self.loop.numbers]
        varying = [number for number in numbers if number.name in self.varying]
        pointers = [Pointer(f"{operand.name}_p", operand.storage) for operand in self.operands]
        return [*pointers, *varying], [number for number in numbers if number.name not in self.varying]

    @property
    def capacity(self) -> int:
        """How many tensors one launch can take."""
        most = most_tensors(*self.parameters)
        return max([1, *(count for count in COUNTS if count <= most)])


@functools.cache
def batch_kernel(batch: Batch, count: int, form: str) -> Kernel:
    """Parameters: as of `list_kernel`, where operands and varying numbers are what differs; operands are called
    ``<name>_p``.
    """
    loop = batch.loop
    singles = []
    for single in loop.inputs:
        if single.name in batch.single:
            value = pointwise.convert(f"load_{single.storage}({single.name}_p, 0)", single.storage, single.compute)
            singles.append(f"{value_ctype(single.compute)} {single.name} = {value};")
    elements = replace(loop, inputs=tuple(i for i in loop.inputs if i.name not in batch.single))
    walk = Walk(form, prefix="tg_")
    element = pointwise.element(elements, {o.name: "tg_i" for o in batch.operands}, "      ")
    statements = "\n".join((*singles, batch.head, walk.loop("tg_i", "tg_low", "tg_high", element), batch.tail))
    return list_kernel(walk, f"{loop.name}_list", *batch.parameters, count, statements)


def list_kernel(
    walk: Walk,
    name: str,
    varying: Sequence[Parameter],
    shared: Sequence[Parameter],
    count: int,
    statements: str,
    helpers: str = "",
) -> Kernel:
    """A kernel that does the same to each of `count` tensors.

    Parameters: for each one that varies `count`, called ``<name>_0``, ``<name>_1`` and so on; ``tg_last_0``..., the
    numbers of elements, summed up from the first tensor on; those that are shared; and those of the walk, over the
    elements of all.

    Args:
        walk: of rank 0, or whose ``n0``... are among what varies; with names that begin with ``tg_``.
        name, helpers: as of `Kernel`.
        varying, shared: parameters, which statements see under their own names.
        count: of tensors.
        statements: of one tensor, whose elements from ``tg_low`` to ``tg_high`` are the group's; ``continue`` leaves
            the tensor out.
    """
    lasts = Value("tg_last", "i64")
    params = [replace(each, name=f"{each.name}_{t}") for each in (*varying, lasts) for t in range(count)]
    arrays = "\n".join(
        f"  {_ctype(each)} {each.name}_of[{count}] = {{{', '.join(f'{each.name}_{t}' for t in range(count))}}};"
        for each in (*varying, lasts)
    )
    picks = "\n".join(f"    {_ctype(each)} {each.name} = {each.name}_of[tg_t];" for each in varying)
    body = f"""
{arrays}
  for (int tg_t = 0; tg_t < {count}; ++tg_t) {{
    long tg_first = tg_t == 0 ? 0 : tg_last_of[tg_t - 1];
    long tg_low = tg_begin > tg_first ? tg_begin - tg_first : 0;
    long tg_high = (tg_end < tg_last_of[tg_t] ? tg_end : tg_last_of[tg_t]) - tg_first;
    if (tg_low >= tg_high) continue;
{picks}
{statements}
  }}"""
    return replace(walk, rank=0).kernel(name, (*params, *shared), body, helpers)


def _ctype(parameter: Parameter) -> str:
    """Of a parameter; of a pointer, to what may be written."""
    if isinstance(parameter, Pointer):
        return f"GLOBAL {BY_NAME[parameter.type].storage}*"
    return value_ctype(parameter.type)


def most_tensors(varying: Sequence[Parameter], shared: Sequence[Parameter]) -> int:
    """How many tensors a launch of a `list_kernel` can take at most; at least one."""
    fixed = 16 + sum(map(_bytes, shared))
    return max(1, (_ARGUMENT_BYTES - fixed) // (8 + sum(map(_bytes, varying))))


def _bytes(parameter: Parameter) -> int:
    if isinstance(parameter, Pointer) or parameter.type not in BY_NAME:
        return 8
    return BY_NAME[parameter.type].size
