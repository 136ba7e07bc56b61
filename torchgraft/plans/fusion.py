"""Steps of a plan that become one: what a decomposition leaves behind.

A loop over elements that follows others over the same elements takes their values from registers, and what nobody reads
afterwards is not stored. Values are those of the loops apart, bit by bit. A temporary that is only copied to a result
is the result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch

from torchgraft.codegen.pointwise import Input, Loop, Number, Result, convert
from torchgraft.codegen.types import BY_NAME, value_ctype
from torchgraft.plans.steps import Memory, PlannedLoop, Step, Steps, _Copy

__all__ = ["alike_together", "fused", "independent", "without_copies"]

# Some devices pass no more than 1 KiB of arguments to a kernel, and registers end.
_OPERANDS = 24
_LOOPS = 64
# Elements of a loop to which a launch of its own matters little, and its temporaries' memory may.
_SMALL = 1 << 16


def without_copies(p: Steps, steps: Sequence[Step]) -> list[Step]:
    """The steps without copies of whole temporaries into results that have not been touched before."""
    kept: list[Step] = []
    for time, step in enumerate(steps):
        if isinstance(step, _Copy) and _is_result(p, step, steps[:time], steps[time + 1 :]):
            p.unite(step.source, step.destination)
        else:
            kept.append(step)
    return kept


def _is_result(p: Steps, copy: _Copy, before: Sequence[Step], after: Sequence[Step]) -> bool:
    source, destination = p.memory(copy.source), p.memory(copy.destination)
    return (
        (source.kind, destination.kind) == ("temporary", "result")
        and source.nbytes == destination.nbytes == copy.nbytes
        and not _touch(p, before, destination)
        and not _touch(p, after, source)
    )


def _touch(p: Steps, steps: Iterable[Step], memory: Memory) -> bool:
    return any(p.memory(spec) is memory for step in steps for spec in step.specs)


def fused(p: Steps, steps: Sequence[Step]) -> list[Step]:
    """The steps, with neighbouring loops in one."""
    done: list[Step] = []
    group: list[PlannedLoop] = []
    uses = {id(p.memory(spec)): time for time, step in enumerate(steps) for spec in step.specs}  # the last ones

    def close(time: int) -> None:
        done.extend([_Fusion(p, group, uses, time).planned()] if len(group) > 1 else group)
        group.clear()

    for time, step in enumerate(steps):
        if isinstance(step, PlannedLoop):
            if not _fits(p, group, step, uses, time):
                close(time)
            group.append(step)
        else:
            close(time)
            done.append(step)
    close(len(steps))
    return done


def _is_stored(p: Steps, result: torch.Tensor, uses: Mapping[int, int], time: int) -> bool:
    """Whether something but the loops of a group reads a result, which ends before this time."""
    memory = p.memory(result)
    return memory.kind != "temporary" or uses[id(memory)] >= time


def _fits(p: Steps, group: Sequence[PlannedLoop], loop: PlannedLoop, uses: Mapping[int, int], time: int) -> bool:
    """Whether a loop goes over the same elements as those before it, and gains by them."""
    together = [*group, loop]
    first = together[0]
    if not group or loop.any_shape != first.any_shape or loop.results[0].shape != first.results[0].shape:
        return False
    if any(each.loop.fault for each in together) or len(together) > _LOOPS:
        return False
    before = [spec for each in group for spec in each.results]
    if any(spec.is_conj() or spec.is_neg() for spec in before):  # what is loaded is not what was computed
        return False
    if not any(_same(spec, read) for spec in before for read in loop.inputs) and not _alike(p, first, loop):
        return False
    written = [*before, *loop.results]
    touched = [spec for each in together for spec in each.specs]
    if not all(_same(w, t) or p.memory(w) is not p.memory(t) for w in written for t in touched):
        return False
    return _operands(p, together, uses, time) <= _OPERANDS


def _operands(p: Steps, loops: Sequence[PlannedLoop], uses: Mapping[int, int], time: int) -> int:
    """How many operands loops have as one of which the last is the step of this time."""
    made: set[object] = set()
    read: set[object] = set()
    numbers = stored = 0
    for planned in loops:
        numbers += len(planned.loop.numbers)
        read.update(key for spec in planned.inputs if (key := _identity(spec)) not in made)
        made.update(map(_identity, planned.results))
        stored += sum(_is_stored(p, spec, uses, time + 1) for spec in planned.results)
    return len(read) + numbers + stored


def alike_together(p: Steps, steps: Sequence[Step]) -> list[Step]:
    """The steps in an order in which small loops that do the same to different tensors follow each other."""
    loops = Counter(step.loop for step in steps if isinstance(step, PlannedLoop) and not step.any_shape)
    if not any(count > 1 for count in loops.values()):
        return list(steps)
    waits = _waits(p, steps)
    todo = dict(enumerate(steps))
    ordered: list[Step] = []
    while todo:
        first, step = next(iter(todo.items()))  # for which everything before it is done
        together = [first]
        if isinstance(step, PlannedLoop) and loops[step.loop] > 1:
            together += [
                time
                for time, other in todo.items()
                if time != first
                and isinstance(other, PlannedLoop)
                and other.loop == step.loop
                and other.results[0].numel() <= _SMALL
                and not waits[time] & todo.keys()
            ]
        for time in together:
            ordered.append(todo.pop(time))
    return ordered


def _waits(p: Steps, steps: Sequence[Step]) -> list[set[int]]:
    """Which steps come before each, since one of the two writes what the other one touches."""
    writer: dict[int, int] = {}
    readers: dict[int, list[int]] = {}
    waits: list[set[int]] = []
    for time, step in enumerate(steps):
        touched = {id(p.memory(spec)) for spec in step.specs}
        # Of launches it is not known which operands they write.
        writes = {id(p.memory(spec)) for spec in step.results} if isinstance(step, PlannedLoop) else touched
        before = {writer[each] for each in touched if each in writer}
        before.update(time for each in writes for time in readers.get(each, ()))
        waits.append(before)
        for each in touched - writes:
            readers.setdefault(each, []).append(time)
        for each in writes:
            writer[each] = time
            readers.pop(each, None)
    return waits


def independent(p: Steps, steps: Sequence[Step]) -> Iterator[Step | list[PlannedLoop]]:
    """The steps, with neighbouring loops in lists of which none touches what another one writes."""
    run: list[PlannedLoop] = []
    touched: set[int] = set()
    written: set[int] = set()
    for step in steps:
        loop = step if isinstance(step, PlannedLoop) and not step.any_shape else None
        touches = set() if loop is None else {id(p.memory(spec)) for spec in loop.specs}
        writes = set() if loop is None else {id(p.memory(spec)) for spec in loop.results}
        if run and (loop is None or writes & touched or touches & written):
            yield run if len(run) > 1 else run[0]
            run, touched, written = [], set(), set()
        if loop is None:
            yield step
        else:
            run.append(loop)
            touched |= touches
            written |= writes
    if run:
        yield run if len(run) > 1 else run[0]


def _alike(p: Steps, first: PlannedLoop, loop: PlannedLoop) -> bool:
    """Whether all that a loop touches lies as the results of another one do, so that neither holds the other up."""
    order = first.results[0].stride()
    return all(spec.stride() == order for spec in loop.specs if not p.is_cpu_scalar(spec))


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """The same elements of memory, as the same numbers."""

    return a is b or _identity(a) == _identity(b)


def _identity(t: torch.Tensor) -> tuple[object, ...]:
    where = t.untyped_storage()._cdata, t.storage_offset(), t.shape, t.stride()
    return *where, t.dtype, t.is_conj(), t.is_neg()


class _Fusion:
    """Loops as one, which end before a time. Each keeps the names of its operands, in a block of its own."""

    def __init__(self, p: Steps, loops: Sequence[PlannedLoop], uses: Mapping[int, int], time: int) -> None:
        self._loops = list(loops)
        self._inputs: list[tuple[Input, torch.Tensor]] = []
        self._numbers: list[Number] = []
        self._results: list[tuple[Result, torch.Tensor]] = []
        self._blocks: list[str] = []
        for planned in self._loops:
            self._take(planned)
        last = len(self._results) - len(loops[-1].results)
        self._results = [
            (result, spec)
            for number, (result, spec) in enumerate(self._results)
            if number >= last or _is_stored(p, spec, uses, time)
        ]

    def planned(self) -> PlannedLoop:
        loops = [planned.loop for planned in self._loops]
        inner = f"_{len(loops) - 2}_more" if len(loops) > 2 else ""
        loop = Loop(
            f"{loops[0].name}{inner}_{loops[-1].name}",
            tuple(operand for operand, _ in self._inputs),
            tuple(self._numbers),
            tuple(result for result, _ in self._results),
            "\n".join(self._blocks),
            sum(each.cost for each in loops),
        )
        return replace(
            self._loops[0],
            loop=loop,
            results=[spec for _, spec in self._results],
            inputs=[spec for _, spec in self._inputs],
            numbers=[number for planned in self._loops for number in planned.numbers],
        )

    def _take(self, planned: PlannedLoop) -> None:
        loop = planned.loop
        own = [(i.name, i.compute, self._value(i, spec)) for i, spec in zip(loop.inputs, planned.inputs, strict=True)]
        for number in loop.numbers:
            own.append((number.name, number.type, f"tg_k{len(self._numbers)}"))
            self._numbers.append(Number(f"tg_k{len(self._numbers)}", number.type))
        results = [
            Result(f"tg_y{n}", result.storage, result.compute, f"tg_v{n}", result.exact)
            for n, result in enumerate(loop.results, len(self._results))
        ]
        self._blocks += [f"{value_ctype(result.compute)} {result.text};" for result in results]
        self._blocks += ["{", *(f"{value_ctype(type_)} {name} = {value};" for name, type_, value in own)]
        self._blocks += [loop.statements] if loop.statements else []
        self._blocks += [f"{to.text} = {by.text};" for to, by in zip(results, loop.results, strict=True)]
        self._blocks.append("}")
        self._results += zip(results, planned.results, strict=True)

    def _value(self, operand: Input, spec: torch.Tensor) -> str:
        """What was computed before, as a load after a store would give it, or a load."""
        for result, written in reversed(self._results):
            if _same(written, spec):
                stored = convert(result.text, result.compute, result.storage)
                if BY_NAME[result.storage].compute != result.storage:
                    stored = f"tg_narrow_{result.storage}({stored})"
                return convert(stored, result.storage, operand.compute)
        for known, other in self._inputs:
            if _same(other, spec) and known.compute == operand.compute:
                return known.name
        name = f"tg_x{len(self._inputs)}"
        self._inputs.append((replace(operand, name=name), spec))
        return name
