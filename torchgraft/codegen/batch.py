"""Kernels that run one loop over several tensors: lists of small tensors would cost a launch each.

The elements of the tensors count as one long row, which is dealt out to groups like one tensor's; a group walks over
the tensors of its part.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

from torchgraft.codegen import pointwise
from torchgraft.codegen.kernel import Kernel, Parameter, Pointer, Value
from torchgraft.codegen.loops import Walk
from torchgraft.codegen.pointwise import Input, Loop, Result
from torchgraft.codegen.types import BY_NAME, value_ctype

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
    def capacity(self) -> int:
        """How many tensors one launch can take."""
        sizes = [8 * len(self.operands) + 8]
        fixed = 16
        for number in self.loop.numbers:
            size = BY_NAME[number.type].size if number.type in BY_NAME else 8
            if number.name in self.varying:
                sizes.append(size)
            else:
                fixed += size
        return max([1, *(count for count in COUNTS if fixed + count * sum(sizes) <= _ARGUMENT_BYTES)])


@functools.cache
def batch_kernel(batch: Batch, count: int, form: str) -> Kernel:
    """Parameters: for each operand and each varying number `count`, called ``<name>_p_0``, ``<name>_0`` and so on; the
    other numbers; and ``tg_last_0``..., the numbers of elements, summed up from the first tensor on.
    """
    loop = batch.loop
    params: list[Parameter] = []
    arrays: list[str] = []
    picks: list[str] = []

    def array(name: str, ctype: str) -> None:
        arrays.append(f"  {ctype} {name}_of[{count}] = {{{', '.join(f'{name}_{t}' for t in range(count))}}};")

    for operand in batch.operands:
        params += [Pointer(f"{operand.name}_p_{t}", operand.storage) for t in range(count)]
        ctype = f"GLOBAL {BY_NAME[operand.storage].storage}*"
        array(f"{operand.name}_p", ctype)
        picks.append(f"{ctype} {operand.name}_p = {operand.name}_p_of[tg_t];")
    for number in loop.numbers:
        if number.name not in batch.varying:
            params.append(Value(number.name, number.type))
            continue
        params += [Value(f"{number.name}_{t}", number.type) for t in range(count)]
        array(number.name, value_ctype(number.type))
        picks.append(f"{value_ctype(number.type)} {number.name} = {number.name}_of[tg_t];")
    params += [Value(f"tg_last_{t}", "i64") for t in range(count)]
    array("tg_last", "long")
    for single in loop.inputs:
        if single.name in batch.single:
            value = pointwise.convert(f"load_{single.storage}({single.name}_p, 0)", single.storage, single.compute)
            picks.append(f"{value_ctype(single.compute)} {single.name} = {value};")
    elements = replace(loop, inputs=tuple(i for i in loop.inputs if i.name not in batch.single))
    walk = Walk(form, prefix="tg_")
    element = pointwise.element(elements, {o.name: "tg_i" for o in batch.operands}, "      ")
    body = (
        "\n".join(arrays)
        + f"""
  for (int tg_t = 0; tg_t < {count}; ++tg_t) {{
    long tg_first = tg_t == 0 ? 0 : tg_last_of[tg_t - 1];
    long tg_low = tg_begin > tg_first ? tg_begin - tg_first : 0;
    long tg_high = (tg_end < tg_last_of[tg_t] ? tg_end : tg_last_of[tg_t]) - tg_first;
    if (tg_low >= tg_high) continue;
    {chr(10).join(picks)}
    {batch.head}
    {walk.loop("tg_i", "tg_low", "tg_high", element)}
    {batch.tail}
  }}"""
    )
    return walk.kernel(f"{loop.name}_list", tuple(params), body)
