"""What became of compiled graphs: `torchgraft.compile_report()`."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torchgraft.compiler.graph_compilers.program import GraphProgram

__all__ = ["CompileReport", "CompiledGraph", "Part", "note", "report"]

# Of the graphs that were compiled last.
_MOST = 256


@dataclass(frozen=True)
class Part:
    """A part of a graph.

    Attributes:
        name: as profiles show it.
        ops: how many ops it has.
        programs: for how many sets of sizes it is a program.
        seconds: that making them took.
        why_not: why it ran op by op for others, each with how often.
    """

    name: str
    ops: int
    programs: int
    seconds: float
    why_not: dict[str, int]


@dataclass(frozen=True)
class CompiledGraph:
    """A graph, as torch's compiler gave it: one for forward, one for backward.

    Attributes:
        language: that its parts were written in.
        refused: how many nodes stayed ops, by op and reason.
    """

    language: str
    parts: tuple[Part, ...]
    refused: dict[tuple[str, str], int]


@dataclass(frozen=True)
class CompileReport:
    """The graphs that a device's compiler of graphs was given, in their order. Printed, it is a table."""

    graphs: tuple[CompiledGraph, ...]

    def __iter__(self) -> Iterator[CompiledGraph]:
        return iter(self.graphs)

    def __len__(self) -> int:
        return len(self.graphs)

    def __str__(self) -> str:
        if not self.graphs:
            return "no graph has been compiled by a device's compiler of graphs"
        lines = []
        for number, graph in enumerate(self.graphs, 1):
            left = sum(graph.refused.values())
            ops = sum(part.ops for part in graph.parts)
            lines.append(f"graph {number} ({graph.language}): {ops} ops in {len(graph.parts)} parts, {left} outside")
            for part in graph.parts:
                lines.append(f"  {part.name}: {part.ops} ops, programs: {part.programs}, {part.seconds:.2f} s")
                lines += [f"    op by op {count} times: {why}" for why, count in part.why_not.items()]
            for (op, why), count in sorted(graph.refused.items(), key=lambda each: (-each[1], each[0])):
                lines.append(f"  outside: {op} {count} times: {why}")
        return "\n".join(lines)


@dataclass
class _Noted:
    language: str
    programs: Sequence[GraphProgram]
    refused: Counter[tuple[str, str]]


_graphs: deque[_Noted] = deque(maxlen=_MOST)
_lock = threading.Lock()


def note(language: str, programs: Sequence[GraphProgram], refused: Counter[tuple[str, str]]) -> None:
    """A graph has been compiled."""
    with _lock:
        _graphs.append(_Noted(language, programs, refused))


def report() -> CompileReport:
    """What has been compiled since the start, of the last 256 graphs."""
    with _lock:
        noted = list(_graphs)
    return CompileReport(tuple(_seen(each) for each in noted))


def _seen(noted: _Noted) -> CompiledGraph:
    return CompiledGraph(noted.language, tuple(map(_part, noted.programs)), dict(noted.refused))


def _part(program: GraphProgram) -> Part:
    made = list(program.made)
    why_not = Counter(each.why_not for each in made if each.why_not)
    programs = sum(not each.why_not for each in made)
    return Part(program.name, program.ops, programs, sum(each.seconds for each in made), dict(why_not))
