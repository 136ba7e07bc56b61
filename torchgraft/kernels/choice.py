"""Which kernel serves a call: a family of kernels has a table of ways, and the first that a problem suits is taken."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import Generic, TypeVar

__all__ = ["Choice", "Way", "choices", "choose", "first"]

P = TypeVar("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Way(Generic[P, R]):
    """One way to compute what a problem asks for.

    Attributes:
        name: as it is called in what is printed; unique in its family.
        why_not: what it is for, in a few words, of a problem that it is not for; empty of others.
        plan: does it for a problem that suits it.
    """

    name: str
    why_not: Callable[[P], str]
    plan: Callable[[P], R]


@dataclass(frozen=True)
class Choice:
    """What was asked of a family, and each of its ways, in the table's order, with why it was not taken; empty of the
    one that was."""

    family: str
    problem: str
    ways: tuple[tuple[str, str], ...]


_listening: ContextVar[list[Choice] | None] = ContextVar("choices", default=None)


@contextmanager
def choices() -> Iterator[list[Choice]]:
    """The choices that this thread makes meanwhile."""
    made: list[Choice] = []
    token = _listening.set(made)
    try:
        yield made
    finally:
        _listening.reset(token)


def first(family: str, ways: Sequence[Way[P, R]], problem: P) -> Way[P, R]:
    """The first way that a problem suits and that is not left out.

    Raises:
        ValueError: TORCHGRAFT_WITHOUT_WAYS leaves none.
    """
    taken = next((way for way in ways if not way.why_not(problem) and not _is_left_out(family, way)), None)
    if taken is None:
        raise ValueError(f"TORCHGRAFT_WITHOUT_WAYS leaves no way to do this: {problem}")
    return taken


def choose(family: str, ways: Sequence[Way[P, R]], problem: P) -> R:
    """Plans a problem in the `first` way.

    Raises:
        ValueError: there is none.
    """
    taken, made = first(family, ways, problem), _listening.get()
    if made is not None:
        why = tuple((way.name, _why_not(family, way, taken, problem)) for way in ways)
        made.append(Choice(family, str(problem), why))
    return taken.plan(problem)


def _why_not(family: str, way: Way[P, R], taken: Way[P, R], problem: P) -> str:
    if way is taken:
        return ""
    why = way.why_not(problem)
    if why:
        return f"for {why}"
    return "left out" if _is_left_out(family, way) else f"would do; {taken.name} comes first"


def _is_left_out(family: str, way: Way[P, R]) -> bool:
    return not _left_out().isdisjoint((way.name, f"{family}.{way.name}"))


@cache
def _left_out() -> frozenset[str]:
    return frozenset(os.environ.get("TORCHGRAFT_WITHOUT_WAYS", "").split(",")) - {""}
