"""The cases: entries of PyTorch's operator database, each with a dtype."""

from __future__ import annotations

import functools
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["DTYPES", "Case", "cases", "quick"]

#: The dtypes that the published figures are over.
DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
    torch.complex64,
)

# They compile CUDA source given as text, and exist on CUDA alone.
CUDA_ONLY = re.compile("jiterator")


@dataclass(frozen=True)
class Case:
    """One entry of the database with one dtype; `str(case)` names it, as in "nn.functional.pad.constant[float32]"."""

    op: str
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"{self.op}[{dtype_name(self.dtype)}]"

    @classmethod
    def parse(cls, text: str) -> Case:
        """The case of a name; ValueError if there is none."""
        found = re.fullmatch(r"(.+)\[(\w+)\]", text)
        dtype = getattr(torch, found[2], None) if found else None
        if found is None or not isinstance(dtype, torch.dtype) or found[1] not in database():
            raise ValueError(f"no case is called {text!r}; one is, for example, 'add[float32]'")
        return cls(found[1], dtype)

    @property
    def info(self) -> Any:
        """The OpInfo."""
        return database()[self.op]


def dtype_name(dtype: torch.dtype) -> str:
    """Without "torch."."""
    return str(dtype).removeprefix("torch.")


@functools.cache
def database() -> dict[str, Any]:
    """OpInfo by name. Importing it takes seconds, so it waits until it is wanted."""
    from torch.testing._internal.common_methods_invocations import op_db

    return {_name(info): info for info in op_db}


def _name(info: Any) -> str:
    return f"{info.name}.{info.variant_test_name}" if info.variant_test_name else str(info.name)


def cases(pattern: str = "", dtypes: Sequence[torch.dtype] = DTYPES) -> Iterator[Case]:
    """The cases that torch's CPU supports.

    Args:
        pattern: a regular expression that is searched for in the case's name.
        dtypes: of the samples.
    """
    wanted = re.compile(pattern)
    for name, info in database().items():
        for dtype in dtypes:
            case = Case(name, dtype)
            if dtype in info.dtypes and not CUDA_ONLY.search(name) and wanted.search(str(case)):
                yield case


def quick(given: Iterable[Case], rotation: int = 0) -> Iterator[Case]:
    """A slice for every day: each op in float32 and in one of its other dtypes, another one for each `rotation`."""
    by_op: dict[str, list[Case]] = {}
    for case in given:
        by_op.setdefault(case.op, []).append(case)
    for op, all_of_it in by_op.items():
        others = [case for case in all_of_it if case.dtype is not torch.float32]
        yield from (case for case in all_of_it if case.dtype is torch.float32)
        if others:  # ops start at different dtypes, so that each slice has all of them
            yield others[(zlib.crc32(op.encode()) + rotation) % len(others)]
