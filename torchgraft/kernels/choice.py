"""Which kernel serves a call: a family of kernels has a table of ways, and the first that a problem suits is taken."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import Generic, TypeVar

from torchgraft.codegen.kernel import Launch

__all__ = ["Choice", "Way", "choices", "choose"]

P = TypeVar("P")


@dataclass(frozen=True)
class Way(Generic[P]):
    """One way to compute what a problem asks for.

    Attributes:
        name: as it is called in what is printed; unique in its family.
        why_not: what it is for, in a few words, of a problem that it is not for; empty of others.
        launches: what a problem that suits it comes to.
    """

    name: str
    why_not: Callable[[P], str]
    launches: Callable[[P], list[Launch]]


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


def choose(family: str, ways: Sequence[Way[P]], problem: P) -> list[Launch]:
    """The launches of the first way that a problem suits and that is not left out.

    Raises:
        ValueError: TORCHGRAFT_WITHOUT_WAYS leaves none.
    """
    taken = next((way for way in ways if not way.why_not(problem) and not _is_left_out(family, way)), None)
    if taken is None:
        raise ValueError(f"TORCHGRAFT_WITHOUT_WAYS leaves no way to do this: {problem}")
    made = _listening.get()
    if made is not None:
        made.append(
            Choice(family, str(problem), tuple((way.name, _why_not(family, way, taken, problem)) for way in ways))
        )
    return taken.launches(problem)


def _why_not(family: str, way: Way[P], taken: Way[P], problem: P) -> str:
    if way is taken:
        return ""
    why = way.why_not(problem)
    if why:
        return f"for {why}"
    return "left out" if _is_left_out(family, way) else f"would do; {taken.name} comes first"


def _is_left_out(family: str, way: Way[P]) -> bool:
    return not _left_out().isdisjoint((way.name, f"{family}.{way.name}"))


@cache
def _left_out() -> frozenset[str]:
    return frozenset(os.environ.get("TORCHGRAFT_WITHOUT_WAYS", "").split(",")) - {""}
