"""Rows across memory on a GPU: a work-item has a row of its own."""

from __future__ import annotations

from torchgraft.codegen.teams.accumulators import RUN, Fields, scan_step, start
from torchgraft.codegen.teams.members import Members
from torchgraft.codegen.teams.rendering import joined
from torchgraft.codegen.walk import FEW

_ROW = """
  const long tg_row = GLOBAL_ID(0), o = tg_row / inner;
  if (o >= outer) return;
  const long tg_base = o * outer_stride + (tg_row - o * inner) * inner_stride;
"""


class WorkItem(Members):
    """A row each."""

    @property
    def at(self) -> str:
        return f"{'tg_run' if self.layout.runs else 'tg_base'} + c * stride"

    @property
    def row(self) -> str:
        return "tg_row"

    @property
    def column(self) -> str:
        return "(tg_row - o * inner)"

    def fold(self, fields: Fields, step: str, combine: str, cascade: bool, size: str, alone: bool) -> str:
        """Registers accumulate."""
        return self.accumulate(fields, step, combine, cascade, size, RUN)

    def scan(self, fields: Fields, load: str, combine: str, then: str, ahead: str) -> str:
        step = f"{scan_step(fields, load, combine)} {then}"
        return f"{start(fields)} long c = 0; for (; c < size; ++c) {{ {step} }}"

    @property
    def local(self) -> int:
        return FEW

    def body(self, statements: tuple[str, ...]) -> str:
        return f"{_ROW}    {joined(statements)}\n"
