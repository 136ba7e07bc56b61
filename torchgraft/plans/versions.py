"""What differs between the versions of torch that work: ops that some of them have, and types of exceptions.

A declaration of such an op is left out where it is not. An op that is missing and is not named here is an error, as one
is that a declaration misspells.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch

from torchgraft._core import minor

__all__ = ["BOOLEANS_REFUSED", "COMPLEX_REFUSED", "CUBIC_VOLUMES", "DTYPES_REFUSED", "HERE", "PARTIAL", "Span", "here"]

HERE = minor(torch.__version__)


@dataclass(frozen=True)
class Span:
    """Minor versions of torch: from `since` on, and before `until`; None is without end."""

    since: tuple[int, int] | None = None
    until: tuple[int, int] | None = None

    def __contains__(self, version: tuple[int, int]) -> bool:
        return (self.since is None or self.since <= version) and (self.until is None or version < self.until)


#: The versions that have an op, by its name without the overload's. Each is looked up in torch by a test.
PARTIAL = {
    "cholesky": Span(until=(2, 14)),  # linalg_cholesky remains
    "linalg_matrix_sqrth": Span(since=(2, 14)),  # autocast knows it, in C++
}


#: What torch raises where an op does not take booleans.
BOOLEANS_REFUSED: type[RuntimeError] = NotImplementedError if HERE >= (2, 14) else RuntimeError

#: And where a reduction, a decomposition or the like does not take integers, booleans or halves.
DTYPES_REFUSED: type[RuntimeError] = NotImplementedError if HERE >= (2, 15) else RuntimeError

#: And where there is no order among complex numbers.
COMPLEX_REFUSED: type[Exception] = TypeError if HERE >= (2, 15) else RuntimeError

#: Whether volumes are sampled by cubic interpolation too.
CUBIC_VOLUMES = HERE >= (2, 15)


def here(names: Iterable[str], version: tuple[int, int] = HERE, partial: Mapping[str, Span] = PARTIAL) -> Iterator[str]:
    """The names of ops ("mm", "aten::sum.dim_IntList"), but for those that this version of torch is known not to
    have."""
    for name in names:
        span = partial.get(name.removeprefix("aten::").partition(".")[0])
        if span is None or version in span:
            yield name
