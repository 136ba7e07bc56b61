"""Barriers where work-items of a group read what others have written, and rooms for what they share.

A text is a list of statements of scalars, heads and ends of loops and branches that all work-items take alike, phases
in which they do not wait for each other, and arrays that they share. Arrays that are not in use at the same time get
the same memory. A barrier stands before what touches memory that was written since the last one, or writes what was
touched: of arrays by their rooms, of parameters by their names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

__all__ = ["Entry", "Phase", "Shared", "with_barriers", "with_rooms"]


@dataclass(frozen=True)
class Phase:
    """Statements without a barrier among them.

    Attributes:
        writes: arrays and parameters that they write.
    """

    lines: tuple[str, ...]
    writes: frozenset[str]


@dataclass(frozen=True)
class Shared:
    """An array of all work-items of a group.

    Attributes:
        ctype: of its elements, `bytes` what one of them takes.
    """

    name: str
    ctype: str
    size: int
    bytes: int


Entry = str | Phase | Shared
_NAME = re.compile(r"\b(?:l|arg)\d+\b")


def _touched(entry: str | Phase) -> frozenset[str]:
    text = entry if isinstance(entry, str) else "\n".join(entry.lines)
    return frozenset(_NAME.findall(text))


# ---- rooms ----


def with_rooms(entries: Sequence[Entry], local_bytes: int) -> tuple[list[str], dict[str, frozenset[str]], int]:
    """Where arrays lie.

    Args:
        local_bytes: of local memory that a group has.

    Returns:
        their declarations; of each the arrays that it shares memory with; and the bytes of a group's scratch memory,
        which has those that find no room in local memory.
    """
    arrays = [each for each in entries if isinstance(each, Shared)]
    used = _used(entries)
    local, outside = list(arrays), list[Shared]()
    while True:
        places, sizes = _placed(local, used)
        if sum(-(-size // 16) * 16 for size in sizes.values()) <= local_bytes:  # with what aligns them
            break
        largest = max(local, key=lambda each: each.size * each.bytes)
        local.remove(largest)
        outside.append(largest)
    lines = [f"LOCAL {ctype} room_{ctype}[{bytes_ // _bytes_of(ctype, arrays)}];" for ctype, bytes_ in sizes.items()]
    lines += [f"LOCAL {a.ctype}* const {a.name} = room_{a.ctype} + {places[a.name] // a.bytes};" for a in local]
    end = 0
    for each in sorted(outside, key=lambda each: -each.bytes):
        place = f"scratch + group_scratch * GROUP_ID(0) + {end}"
        lines.append(f"GLOBAL {each.ctype}* const {each.name} = (GLOBAL {each.ctype}*)({place});")
        end += -(-each.size * each.bytes // 64) * 64
    overlaps = {each.name: frozenset([each.name]) for each in outside}
    for a in local:
        overlaps[a.name] = frozenset(b.name for b in local if a.ctype == b.ctype and _overlap(a, b, places))
    return lines, overlaps, end


def _bytes_of(ctype: str, arrays: Sequence[Shared]) -> int:
    return next(each.bytes for each in arrays if each.ctype == ctype)


def _overlap(a: Shared, b: Shared, places: Mapping[str, int]) -> bool:
    first, second = places[a.name], places[b.name]
    return first < second + b.size * b.bytes and second < first + a.size * a.bytes


def _placed(arrays: Sequence[Shared], used: Mapping[str, tuple[int, int]]) -> tuple[dict[str, int], dict[str, int]]:
    """The first byte of each array among those of its type, and the bytes of each type. Types have memory of their own:
    a compiler may take for granted that it is never read as another."""
    places, sizes = dict[str, int](), dict[str, int]()
    for n, each in enumerate(arrays):
        begin, end = used[each.name]
        rivals = sorted(
            (places[other.name], other.size * other.bytes)
            for other in arrays[:n]
            if other.ctype == each.ctype and used[other.name][0] <= end and begin <= used[other.name][1]
        )
        at, size = 0, each.size * each.bytes
        for place, taken in rivals:
            if place < at + size and at < place + taken:
                at = place + taken
        places[each.name] = at
        sizes[each.ctype] = max(sizes.get(each.ctype, 0), at + size)
    return places, sizes


def _used(entries: Sequence[Entry]) -> dict[str, tuple[int, int]]:
    """From where to where each array is in use: in loops that it was there before, for as long as they last."""
    loops: list[int] = []
    ends = _ends(entries)
    declared: dict[str, tuple[int, ...]] = {}
    found: dict[str, tuple[int, int]] = {}
    for at, entry in enumerate(entries):
        if isinstance(entry, Shared):
            declared[entry.name], found[entry.name] = tuple(loops), (at, at)
            continue
        for name in _touched(entry):
            if name not in declared:
                continue
            around = loops[len(declared[name]) :]
            begin, end = (around[0], ends[around[0]]) if around else (at, at)
            found[name] = min(found[name][0], begin), max(found[name][1], end)
        if isinstance(entry, str):
            if entry.startswith("}"):
                loops.pop()
            if entry.endswith("{"):
                loops.append(at)
    return found


def _ends(entries: Sequence[Entry]) -> dict[int, int]:
    """Where what opens at a place is closed."""
    opened, ends = list[int](), dict[int, int]()
    for at, entry in enumerate(entries):
        if isinstance(entry, str):
            if entry.startswith("}"):
                ends[opened.pop()] = at
            if entry.endswith("{"):
                opened.append(at)
    return ends


# ---- barriers ----


@dataclass(frozen=True)
class _State:
    """What has been touched, and what of that written, since the last barrier."""

    touched: frozenset[str] = frozenset()
    written: frozenset[str] = frozenset()

    def __or__(self, other: _State) -> _State:
        return _State(self.touched | other.touched, self.written | other.written)


@dataclass
class _Nested:
    """A loop or a branch; of a branch with an alternative two bodies."""

    heads: list[str]
    bodies: list[list[_Node]] = field(default_factory=list)

    @property
    def is_loop(self) -> bool:
        return "for (" in self.heads[0]


_Node = str | Phase | _Nested


def with_barriers(
    entries: Sequence[Entry], overlaps: Mapping[str, frozenset[str]], parameters: Iterable[str], apart: bool
) -> list[str]:
    """The text of a program, which a group runs again and again, with its barriers.

    Args:
        overlaps: of arrays those that they share memory with.
        parameters: those that are pointers.
        apart: parameters' memory does not overlap.
    """
    nodes = _tree(iter([each for each in entries if not isinstance(each, Shared)]))
    placer = _Placer(overlaps, frozenset(parameters), apart)
    start = _State()
    while True:  # what another program does to parameters' memory is in no order with this one
        lines, end = placer.place(nodes, start)
        arrays = _State(end.touched - placer.memory, end.written - placer.memory)
        if start | arrays == start:
            return lines
        start |= arrays


def _tree(entries: Iterator[str | Phase]) -> list[_Node]:
    root: list[_Node] = []
    stack, opened = [root], list[_Nested]()
    for entry in entries:
        if isinstance(entry, str) and entry.startswith("}"):
            stack.pop()
            if entry == "}":
                opened.pop()
            else:
                opened[-1].heads.append(entry)
                opened[-1].bodies.append([])
                stack.append(opened[-1].bodies[-1])
        elif isinstance(entry, str) and entry.endswith("{"):
            nested = _Nested([entry], [[]])
            stack[-1].append(nested)
            opened.append(nested)
            stack.append(nested.bodies[0])
        else:
            stack[-1].append(entry)
    return root


class _Placer:
    def __init__(self, overlaps: Mapping[str, frozenset[str]], parameters: frozenset[str], apart: bool) -> None:
        self.memory, self._overlaps = parameters, overlaps
        self._known = parameters | overlaps.keys()
        self._together = {} if apart else dict.fromkeys(parameters, parameters)

    def place(self, nodes: Sequence[_Node], state: _State) -> tuple[list[str], _State]:
        """The nodes' text, and the state behind them."""
        lines: list[str] = []
        for node in nodes:
            if isinstance(node, _Nested):
                text, state = self._loop(node, state) if node.is_loop else self._branch(node, state)
                lines += text
                continue
            new = self._of(node)
            if self._meets(new.touched, state.written) or self._meets(new.written, state.touched):
                lines.append("BARRIER;")
                state = _State()
            state |= new
            lines += [node] if isinstance(node, str) else node.lines
        return lines, state

    def _of(self, node: str | Phase) -> _State:
        written = frozenset[str]() if isinstance(node, str) else node.writes
        return _State(_touched(node) & self._known, written & self._known)

    def _meets(self, names: frozenset[str], others: frozenset[str]) -> bool:
        return any(not others.isdisjoint(self._same_memory(name)) for name in names)

    def _same_memory(self, name: str) -> frozenset[str]:
        return self._overlaps.get(name) or self._together.get(name) or frozenset([name])

    def _loop(self, node: _Nested, start: _State) -> tuple[list[str], _State]:
        while True:
            body, end = self.place(node.bodies[0], start)
            if start | end == start:
                break
            start |= end
        left = start
        if any(isinstance(each, str) and each.endswith("break;") for each in node.bodies[0]):
            left |= self._all(node.bodies[0])  # it may be left before a barrier
        return [node.heads[0], *body, "}"], left

    def _branch(self, node: _Nested, start: _State) -> tuple[list[str], _State]:
        lines, end = list[str](), start
        for head, body in zip(node.heads, node.bodies, strict=True):
            text, state = self.place(body, start)
            lines += [head, *text]
            end |= state
        return [*lines, "}"], end

    def _all(self, nodes: Sequence[_Node]) -> _State:
        state = _State()
        for node in nodes:
            if isinstance(node, _Nested):
                for body in node.bodies:
                    state |= self._all(body)
            else:
                state |= self._of(node)
        return state
