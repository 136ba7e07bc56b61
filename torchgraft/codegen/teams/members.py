"""What a GPU's renderings share: the loop in which a work-item goes over elements, and what it accumulates."""

from __future__ import annotations

from torchgraft.codegen.teams.accumulators import Accumulators, Fields, bind, ctypes
from torchgraft.codegen.teams.rendering import Rendering


class Members(Rendering):
    """A work-item's elements: all of its row, or its share of a group's."""

    def each(self, statements: str, vectorize: bool, size: str) -> str:
        return self.members("0", size, statements)

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
