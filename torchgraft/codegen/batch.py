"""Kernels that run one loop over several tensors: lists of small tensors would cost a launch each.

The elements of the tensors count as one long row, which is dealt out to groups like one tensor's; a group walks over
the tensors of its part.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from torchgraft.codegen import pointwise
from torchgraft.codegen.kernel import Kernel, Parameter, Pointer, Value
from torchgraft.codegen.pointwise import Input, Loop, PlannedLoop, Result
from torchgraft.codegen.types import BY_NAME, value_ctype

if TYPE_CHECKING:
    from torchgraft.plans.builder import PlanBuilder

# Tensors of one launch: one of these, the rest of the places left empty, so that few kernels serve all lists.
_COUNTS = (2, 4, 16)
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
        return max(count for count in (1, *_COUNTS) if count == 1 or fixed + count * sum(sizes) <= _ARGUMENT_BYTES)


@functools.cache
def batch_kernel(batch: Batch, count: int, form: str) -> Kernel:
    """Arguments: for each operand `count` pointers, for each number one value or `count` of them, `count` numbers of
    elements, summed up from the first tensor on, and the chunk (i64).
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
    element = pointwise.element(elements, {o.name: "tg_i" for o in batch.operands}, "      ")
    step = (
        f"for (long tg_i = tg_low + LOCAL_ID(0); tg_i < tg_high; tg_i += {pointwise.GPU_LOCAL})"
        if form == "gpu"
        else "VECTORIZE\n    for (long tg_i = tg_low; tg_i < tg_high; ++tg_i)"
    )
    body = (
        "\n".join(arrays)
        + f"""
  long tg_begin = (long)GROUP_ID(0) * tg_chunk;
  for (int tg_t = 0; tg_t < {count}; ++tg_t) {{
    long tg_first = tg_t == 0 ? 0 : tg_last_of[tg_t - 1];
    long tg_low = tg_begin > tg_first ? tg_begin - tg_first : 0;
    long tg_high = (tg_begin + tg_chunk < tg_last_of[tg_t] ? tg_begin + tg_chunk : tg_last_of[tg_t]) - tg_first;
    if (tg_low >= tg_high) continue;
    {chr(10).join(picks)}
    {batch.head}
    {step} {{
{element}
    }}
    {batch.tail}
  }}"""
    )
    params.append(Value("tg_chunk", "i64"))
    return Kernel(f"{loop.name}_list", tuple(params), body, local=(pointwise.GPU_LOCAL,) if form == "gpu" else (1,))


@dataclass
class Item:
    """One tensor's part of a list: specs for `Batch.operands` in their order, numbers for the loop's."""

    specs: list[torch.Tensor]
    numbers: list[Any]
    elements: int


def plan_batch(p: PlanBuilder, batch: Batch, items: Sequence[Item]) -> None:
    """Adds the launches for the items of a list. Specs of an item lie flat: its elements are numbered as they lie in
    memory.
    """
    items = [item for item in items if item.elements > 0]
    capacity = batch.capacity
    for start in range(0, len(items), capacity):
        part = items[start : start + capacity]
        count = next(c for c in (1, *_COUNTS) if c >= len(part))
        missing = count - len(part)
        args: list[Any] = []
        for k in range(len(batch.operands)):
            args += [item.specs[k] for item in part] + [None] * missing
        for k, number in enumerate(batch.loop.numbers):
            if number.name in batch.varying:
                args += [item.numbers[k] for item in part] + [0] * missing
            else:
                args.append(part[0].numbers[k])
        total, lasts = 0, []
        for item in part:
            total += item.elements
            lasts.append(total)
        groups, chunk = pointwise.deal(total, pointwise.chunking(p, batch.loop.cost))
        p.launch(batch_kernel(batch, count, p.form), (groups,), [*args, *lasts, *[total] * missing, chunk])


# ---- loops that planners of single tensors have planned ----


def plan_loops(p: PlanBuilder, loops: Sequence[PlannedLoop]) -> None:
    """Plans loops over different tensors: those that do the same to tensors that lie flat, and report nothing, share
    launches."""
    alike: dict[tuple[Loop, frozenset[str]], list[PlannedLoop]] = {}
    for planned in loops:
        single = None if planned.loop.fault else _flat(planned)
        if single is None:
            pointwise.plan_loop(p, planned.loop, planned.results, planned.inputs, planned.numbers)
        else:
            alike.setdefault((planned.loop, single), []).append(planned)
    for (loop, single), group in alike.items():
        if len(group) == 1:
            pointwise.plan_loop(p, loop, group[0].results, group[0].inputs, group[0].numbers)
            continue
        varying = frozenset(
            number.name
            for k, number in enumerate(loop.numbers)
            if any(not _same(g.numbers[k], group[0].numbers[k]) for g in group)
        )
        batch = Batch(loop, single, varying)
        items = [Item([*g.inputs, *g.results], list(g.numbers), g.results[0].numel()) for g in group]
        plan_batch(p, batch, items)


def _same(a: Any, b: Any) -> bool:
    # Scalars of a call are equal if they are the same one: their values are not to be read.
    return a is b or (isinstance(a, (int, float, complex)) and isinstance(b, (int, float, complex)) and a == b)


def _flat(planned: PlannedLoop) -> frozenset[str] | None:
    """The names of one-element inputs if all else lies flat and alike, or None."""
    first = planned.results[0]
    if not pointwise.is_dense(first):
        return None
    single = set()
    for spec in planned.results:
        if spec.shape != first.shape or spec.stride() != first.stride():
            return None
    for operand, spec in zip(planned.loop.inputs, planned.inputs, strict=True):
        if spec.numel() == 1 and first.numel() != 1:
            single.add(operand.name)
        elif spec.numel() != first.numel() or (
            first.numel() != 1 and (spec.shape != first.shape or spec.stride() != first.stride())
        ):
            return None
    return frozenset(single)
