"""Rows across memory on a GPU: a work-item has a row of its own."""

from __future__ import annotations

from torchgraft.codegen.teams.accumulators import RUN, Accumulators, Fields, bind
from torchgraft.codegen.teams.rendering import Rendering, ctypes, joined, start
from torchgraft.codegen.teams.row import scan_step
from torchgraft.codegen.walk import FEW

_ROW = """
  const long tg_row = GLOBAL_ID(0), o = tg_row / inner;
  if (o >= outer) return;
  const long tg_base = o * outer_stride + (tg_row - o * inner) * inner_stride;
"""


class WorkItem(Rendering):
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

    def each(self, statements: str, vectorize: bool, size: str) -> str:
        return self.members("0", size, statements)

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

    def accumulate(self, fields: Fields, step: str, combine: str, cascade: bool, size: str, stretch: int) -> str:
        """What this work-item has of a fold, in variables of the fields' names."""
        accumulators = Accumulators(fields, 0, cascade)
        text = accumulators.pieces(
            *self.bounds(size),
            stretch,
            lambda begin, end: self.members(begin, end, bind(step, A="tg_{}")),
            combine,
            lambda statements: f"{{ {statements} }}",
        )
        return f"""{" ".join(f"{t} {n};" for n, t in ctypes(fields).items())} {{
    {accumulators.declared} {accumulators.start} {text}
    {accumulators.whole(combine, lambda statements: f"{{ {statements} }}")}
    {" ".join(f"{n} = tg_{n};" for n in fields)} }}"""

    def members(self, begin: str, end: str, statements: str, step: str = "++c") -> str:
        """The loop over a range of elements. Several are loaded before the first is used: memory answers late."""
        loop = f"UNROLL_4 for (long c = {begin}; c < {end}; {step})"
        if not self.layout.runs:
            return f"{loop} {{ {statements} }}"
        # A division takes longer than an addition, and one of 64 bits much longer; most rows are one run.
        number = "((ulong)c >> 32 ? c / run : (long)((uint)c / (uint)run))"
        return f"""if (run >= size) {{ const long tg_run = tg_base; {loop} {{ {statements} }} }}
    else {loop} {{ const long tg_run = tg_base + {number} * (run_stride - run * stride); {statements} }}"""
