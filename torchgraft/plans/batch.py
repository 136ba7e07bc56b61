"""Planning of loops over lists of tensors: `codegen.batch` has their kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch

from torchgraft.codegen.batch import COUNTS, Batch, batch_kernel
from torchgraft.codegen.pointwise import Loop
from torchgraft.plans import pointwise
from torchgraft.plans.grid import numbered
from torchgraft.plans.steps import PlannedLoop, Steps


@dataclass
class Item:
    """One tensor's part of a list: specs for `Batch.operands` in their order, numbers for the loop's."""

    specs: list[torch.Tensor]
    numbers: list[Any]
    elements: int


def plan_batch(p: Steps, batch: Batch, items: Sequence[Item]) -> None:
    """Adds the launches for the items of a list. Specs of an item lie flat: its elements are numbered as they lie in
    memory.
    """
    items = [item for item in items if item.elements > 0]
    capacity = batch.capacity
    for start in range(0, len(items), capacity):
        part = items[start : start + capacity]
        count = 1 if capacity == 1 else next(c for c in COUNTS if c >= len(part))
        arguments: dict[str, Any] = {}
        for k, operand in enumerate(batch.operands):
            arguments |= numbered(f"{operand.name}_p", [item.specs[k] for item in part], count, None)
        for k, number in enumerate(batch.loop.numbers):
            if number.name in batch.varying:
                arguments |= numbered(number.name, [item.numbers[k] for item in part], count, 0)
            else:
                arguments[number.name] = part[0].numbers[k]
        lasts = list(accumulate(item.elements for item in part))
        arguments |= numbered("tg_last", lasts, count, lasts[-1])
        p.launch(batch_kernel(batch, count, p.form), p.walk(lasts[-1], batch.loop.cost), **arguments)


# ---- loops that planners of single tensors have planned ----


def _plan_alone(p: Steps, planned: PlannedLoop) -> None:
    pointwise.plan_loop(p, planned.loop, planned.results, planned.inputs, planned.numbers)


def plan_loops(
    p: Steps, loops: Sequence[PlannedLoop], alone: Callable[[Steps, PlannedLoop], None] = _plan_alone
) -> None:
    """Plans loops over different tensors: those that do the same to tensors that lie flat, and report nothing, share
    launches.

    Args:
        alone: plans one that shares none.
    """
    alike: dict[tuple[Loop, frozenset[str]], list[PlannedLoop]] = {}
    for planned in loops:
        single = None if planned.loop.fault else _flat(planned)
        if single is None:
            alone(p, planned)
        else:
            alike.setdefault((planned.loop, single), []).append(planned)
    for (loop, single), group in alike.items():
        if len(group) == 1:
            alone(p, group[0])
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
