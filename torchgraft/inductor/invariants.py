"""Statements that need not stand in a loop, since they give the same for all of its elements.

A compiler moves what is computed, but not what is loaded: of two pointers it does not know that what is stored by one
is not loaded by the other. Inductor does: elements of a kernel have nothing to do with each other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from torch._inductor.utils import DeferredLineBase, LineContext

__all__ = ["Statements", "by_loop"]

Line = str | DeferredLineBase | LineContext

_DECLARATION = re.compile(r"(?:const )?(?P<type>\w+) (?P<name>\w+) = (?P<value>[^{}&]*);")
_NAME = re.compile(r"\b[A-Za-z_]\w*\b")
# Names whose value may change after their declaration.
_CHANGED = re.compile(r"\b(\w+)(?:\[[^\]]*\])? [-+*/|&^]?= |&(\w+)")
# A division of integers may be one by zero, which is looked for before it.
_MAY_FAIL = re.compile(r"[/%]|\b(?!load_)\w+\(")


@dataclass
class Statements:
    """Of an element, by how often they are to be done.

    Attributes:
        once: for all elements.
        row: for each row, which is the elements that differ in the innermost loop's variable alone.
        each: for each element.
    """

    once: list[Line] = field(default_factory=list)
    row: list[Line] = field(default_factory=list)
    each: list[Line] = field(default_factory=list)


def by_loop(lines: Iterable[Line], outer: Sequence[str], inner: Sequence[str]) -> Statements:
    """Sorts statements.

    Args:
        lines: the statements, a line each; those between braces, and what is no text yet, stay where they are.
        outer, inner: variables of the outer loops, and of the innermost one.
    """
    statements = Statements()
    places = (statements.once, statements.row, statements.each)
    lines = list(lines)
    levels = dict.fromkeys(outer, 1) | dict.fromkeys(inner, 2)
    loops = set(levels)
    levels |= dict.fromkeys(_changed(lines), 2)
    depth = 0
    for line in lines:
        found = _DECLARATION.fullmatch(line.strip()) if isinstance(line, str) and depth == 0 else None
        depth += line.count("{") - line.count("}") if isinstance(line, str) else 0
        if found is None:
            statements.each.append(line)
            continue
        names = _NAME.findall(found["value"])
        level = max((levels.get(name, 0) for name in (found["name"], *names)), default=0)
        if level < 2 and not _may_move(found, names, levels.keys() - loops):
            level = 2
        levels[found["name"]] = level
        places[level].append(line)
    return statements


def _changed(lines: Iterable[Line]) -> set[str]:
    others = (line for line in lines if isinstance(line, str) and not _DECLARATION.fullmatch(line.strip()))
    return {name for line in others for pair in _CHANGED.findall(line) for name in pair if name}


def _may_move(found: re.Match[str], names: Sequence[str], computed: Iterable[str]) -> bool:
    """Whether a value may be computed where nothing has been checked yet."""
    if "load_" in found["value"] and not set(names).isdisjoint(computed):
        return False  # a computed index may be out of bounds
    return found["type"] in ("float", "double") or not _MAY_FAIL.search(found["value"])
