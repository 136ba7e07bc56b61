"""Contiguous rows, or rows of runs, on a GPU: a group shares a row, and meets in local memory."""

from __future__ import annotations

from collections.abc import Mapping

from torchgraft.codegen.teams.accumulators import RUN, Fields, bind, ctypes
from torchgraft.codegen.teams.members import Members
from torchgraft.codegen.teams.rendering import ROW_OF_RUNS, ROW_VALUES, joined

# Groups up to this size meet once for a fold.
_SMALL_GROUP = 64


class Group(Members):
    """A row for a group, whose members are ``tg_lane``."""

    @property
    def at(self) -> str:
        if self.layout.runs:
            return f"tg_run + c{'' if self.layout.unit else ' * stride'}"
        return "row * size + c"

    def leader(self, statements: str) -> str:
        return f"if (tg_lane == 0) {{ {statements} }}"

    @property
    def sync(self) -> str:
        return "BARRIER;"

    def fold(self, fields: Fields, step: str, combine: str, cascade: bool, size: str, alone: bool) -> str:
        """Registers accumulate; local memory combines. All members have left its arrays before they are filled
        again."""
        own = self.accumulate(fields, step, combine, cascade, size, RUN * self.group)
        return f"{own}\n    {self.meet(ctypes(fields), combine)}"

    def scan(self, fields: Fields, load: str, combine: str, then: str, ahead: str) -> str:
        """The row in stretches of a member for each element; ``tg_first_<field>`` is what came before a stretch."""
        types = ctypes(fields)
        place = self._arrays(types)
        identities = {n: identity for n, (_, identity) in fields.items()}
        return f"""{" ".join(f"{t} tg_first_{n} = {identities[n]};" for n, t in types.items())}
    for (long tg_stretch = 0; tg_stretch < size; tg_stretch += {self.group}) {{
      const long c = tg_stretch + tg_lane;
      {" ".join(f"{t} tg_{n} = {identities[n]};" for n, t in types.items())}
      if (c < size) {{ {bind(load, B="tg_{}")} }}
      {" ".join(f"{place[n]}[tg_lane] = tg_{n};" for n in fields)}
      BARRIER;
      for (int tg_w = 1; tg_w < {self.group}; tg_w *= 2) {{
        if (tg_lane >= tg_w) {{
          {" ".join(f"{t} {n} = {place[n]}[tg_lane - tg_w];" for n, t in types.items())}
          {bind(combine, A="{}", B="tg_{}")}
          {" ".join(f"tg_{n} = {n};" for n in fields)}
        }}
        BARRIER;
        {" ".join(f"{place[n]}[tg_lane] = tg_{n};" for n in fields)}
        BARRIER;
      }}
      {{
        {" ".join(f"{t} {n} = tg_first_{n};" for n, t in types.items())}
        {bind(combine, A="{}", B="tg_{}")}
        if (c < size) {{ {then} }}
      }}
      {bind(combine, A="tg_first_{}", B={n: f"{place[n]}[{self.group - 1}]" for n in fields})}
      BARRIER;
    }}"""

    def meet(self, types: Mapping[str, str], combine: str) -> str:
        """As `Team.meet`."""
        place = self._arrays(types)
        return f"""BARRIER;
    {" ".join(f"{array}[tg_lane] = {name};" for name, array in place.items())}
    BARRIER;
    {self._meet(place, combine)}"""

    @property
    def values(self) -> tuple[str, ...]:
        return ROW_VALUES

    @property
    def local(self) -> int:
        return self.group

    def body(self, statements: tuple[str, ...]) -> str:
        text = joined((ROW_OF_RUNS, *statements) if self.layout.runs else statements)
        head = " ".join(self.head.values())
        return f"  {head}\n  const int tg_lane = LOCAL_ID(0);\n  const long row = GROUP_ID(0);\n    {text}\n"

    def members(self, begin: str, end: str, statements: str, step: str = "") -> str:
        """Shares a range of elements among the members."""
        return super().members(f"{begin} + tg_lane", end, statements, f"c += {self.group}")

    def _meet(self, place: Mapping[str, str], combine: str) -> str:
        """Combines the members' results, which lie in `place`: in steps, or each member for itself in groups so small
        that meeting again costs more, and text with many meetings takes a compiler for CPUs long."""
        take = " ".join(f"{n} = {array}[0];" for n, array in place.items())
        if self.group <= _SMALL_GROUP:
            other = {n: f"{array}[tg_width]" for n, array in place.items()}
            each = f"for (int tg_width = 1; tg_width < {self.group}; ++tg_width)"
            return f"{take} {each} {{ {bind(combine, A='{}', B=other)} }}"
        mine = {n: f"{array}[tg_lane]" for n, array in place.items()}
        other = {n: f"{array}[tg_lane + tg_width]" for n, array in place.items()}
        return f"""for (int tg_width = {self.group // 2}; tg_width > 0; tg_width /= 2) {{
      if (tg_lane < tg_width) {{ {bind(combine, A=mine, B=other)} }}
      BARRIER;
    }}
    {take}"""

    def _arrays(self, types: Mapping[str, str]) -> dict[str, str]:
        """Names of arrays in local memory where members meet, by field: those of a type serve again and again."""
        out: dict[str, str] = {}
        for name, ctype in types.items():
            taken = sum(types[other] == ctype for other in out)
            out[name] = array = f"tg_{ctype}_{taken}"
            self.head[array] = f"LOCAL {ctype} {array}[{self.group}];"
        return out
