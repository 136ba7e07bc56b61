"""Rows of runs on a CPU: each lies in memory as pieces of `run` elements, and is long."""

from __future__ import annotations

from torchgraft.codegen.lanes import FEW_LANES, each_lane
from torchgraft.codegen.teams.accumulators import RUN, Accumulators, Fields, bind, ctypes, start, tree
from torchgraft.codegen.teams.rendering import ROW_OF_RUNS, joined
from torchgraft.codegen.teams.row import MOST_FIELDS, Row

#: Partial results of a row that a CPU keeps side by side.
LANES = 64
_BYTES = {"double": 8, "long": 8, "ulong": 8}


class Runs(Row):
    """A run after the other."""

    @property
    def at(self) -> str:
        return f"tg_run + c{'' if self.layout.unit else ' * stride'}"

    def fold(self, fields: Fields, step: str, combine: str, cascade: bool, size: str, alone: bool) -> str:
        if size:
            return super().fold(fields, step, combine, cascade, size, alone)
        fold = self._in_registers if len(fields) <= MOST_FIELDS else self._swept
        return fold(fields, step, combine, cascade)

    def body(self, statements: tuple[str, ...]) -> str:
        return self._rows(joined((ROW_OF_RUNS, *statements)), before="const long rows = outer * inner;")

    def _in_registers(self, fields: Fields, step: str, combine: str, cascade: bool) -> str:
        """Several registers of lanes, so that additions need not wait for each other, and one more accumulator for what
        a run has beyond them."""
        accumulators = Accumulators(fields, LANES, cascade=False)
        types, stretch = accumulators.types, LANES * RUN
        lanes = self.layout.simd_width
        if lanes == 2 * FEW_LANES and any(_BYTES.get(t, 4) == 8 for t in types.values()):
            lanes = FEW_LANES  # a register
        rest = {n: f"tg_{n}_rest" for n in types}

        def every(statements: str) -> str:
            return " ".join(each_lane(lanes, statements, place, types=types) for place in range(0, LANES, lanes))

        begun = " ".join([every(accumulators.start), *(f"{rest[n]} = {each[1]};" for n, each in fields.items())])
        whole = tree(LANES, lanes, combine, types)
        fold = f"{whole} {bind(combine, A='{}', B='tg_{}[0]')} {bind(combine, A='{}', B=rest)}"
        inner = f"const long c = tg_first + tg_j; {bind(step, A='tg_{}[tg_j]')}"

        def loop(begin: str, end: str) -> str:
            return f"""long tg_first = {begin};
        for (; tg_first + {LANES} <= {end}; tg_first += {LANES}) {{ {every(inner)} }}
        for (; tg_first + {lanes} <= {end}; tg_first += {lanes}) {{ {each_lane(lanes, inner, types=types)} }}
        for (; tg_first + {FEW_LANES} <= {end}; tg_first += {FEW_LANES}) {{ {each_lane(FEW_LANES, inner)} }}
        for (long c = tg_first; c < {end}; ++c) {{ {bind(step, A=rest)} }}"""

        def pieces(begin: str, end: str) -> str:
            return f"""for (long tg_piece = {begin}; tg_piece < {end}; tg_piece += {stretch}) {{
        const long tg_stop = {end} - tg_piece < {stretch} ? {end} : tg_piece + {stretch};
        {loop("tg_piece", "tg_stop")}
        tg_steps += tg_stop - tg_piece;
        if (tg_steps >= {stretch} || tg_stop == tg_end) {{ tg_steps = 0; {fold} {begun} }}
      }}"""

        return f"""{start(fields)} {{
      {accumulators.declared} {" ".join(f"{t} {rest[n]};" for n, t in types.items())}
      {begun}
      {"long tg_steps = 0;" if cascade else ""}
      {self.over(pieces if cascade else lambda begin, end: f"{{ {loop(begin, end)} }}")}
      {"" if cascade else fold}
    }}"""

    def _swept(self, fields: Fields, step: str, combine: str, cascade: bool) -> str:
        """The same where lanes have more than registers hold: they are in memory, and any number of them is swept."""
        accumulators = Accumulators(fields, LANES, cascade)

        def every(statements: str) -> str:
            return f"VECTORIZE for (int tg_j = 0; tg_j < {LANES}; ++tg_j) {{ {statements} }}"

        inner = f"const long c = tg_first + tg_j; {bind(step, A='tg_{}[tg_j]')}"
        halve = f"{{ {bind(combine, A='tg_{}[tg_j]', B='tg_{}[tg_j + tg_width]')} }}"

        def loop(begin: str, end: str) -> str:
            return f"""{{ long tg_first = {begin};
        for (; tg_first + {LANES} <= {end}; tg_first += {LANES}) {every(inner)}
        const int tg_rest = (int)({end} - tg_first);
        VECTORIZE for (int tg_j = 0; tg_j < tg_rest; ++tg_j) {{ {inner} }} }}"""

        return f"""{" ".join(f"{t} {n};" for n, t in ctypes(fields).items())} {{
      {accumulators.declared} {every(accumulators.start)}
      {self.over(lambda begin, end: accumulators.pieces(begin, end, LANES * RUN, loop, combine, every))}
      {accumulators.whole(combine, every)}
      for (int tg_width = {LANES // 2}; tg_width >= 16; tg_width /= 2)
        VECTORIZE for (int tg_j = 0; tg_j < tg_width; ++tg_j) {halve}
      for (int tg_width = {min(LANES, 16) // 2}; tg_width > 0; tg_width /= 2)
        for (int tg_j = 0; tg_j < tg_width; ++tg_j) {halve}
      {" ".join(f"{n} = tg_{n}[0];" for n in fields)}
    }}"""
