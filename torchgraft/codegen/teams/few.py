"""Contiguous rows of a few elements on a CPU, whose number is known: loops along a row are unrolled, and vectors go
across rows."""

from __future__ import annotations

from torchgraft.codegen.teams.accumulators import Fields, bind, scan_step, start
from torchgraft.codegen.teams.rendering import joined
from torchgraft.codegen.teams.row import Row


class Few(Row):
    """Some rows at once."""

    @property
    def at(self) -> str:
        return f"row * {self.layout.unrolled} + c"

    def each(self, statements: str, vectorize: bool, size: str) -> str:
        return self._unrolled(statements) if size == "size" else super().each(statements, vectorize, size)

    def fold(self, fields: Fields, step: str, combine: str, cascade: bool, size: str, alone: bool) -> str:
        if size:
            return super().fold(fields, step, combine, cascade, size, alone)
        return f"{start(fields)} {self._unrolled(bind(step, A='{}'))}"

    def scan(self, fields: Fields, load: str, combine: str, then: str, ahead: str) -> str:
        return f"{start(fields)} {self._unrolled(f'{scan_step(fields, load, combine)} {then}')}"

    def body(self, statements: tuple[str, ...]) -> str:
        return self._rows(joined(statements), hint="VECTORIZE")

    def _unrolled(self, statements: str) -> str:
        return f"UNROLL for (int c = 0; c < {self.layout.unrolled}; ++c) {{ {statements} }}"
