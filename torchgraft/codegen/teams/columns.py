"""Rows across memory on a CPU, where neighbours lie side by side: a work-item treats many of them at once, in vectors.
Each of them may have runs."""

from __future__ import annotations

import re

from torchgraft.codegen.teams.accumulators import RUN, Accumulators, Fields, bind, ctypes, scan_step
from torchgraft.codegen.teams.layout import Layout
from torchgraft.codegen.teams.rendering import Rendering, joined
from torchgraft.codegen.types import value_ctype

# Elements of each of a few columns that are taken at once.
_TOGETHER = 16

# `span` columns at a time, and `chunk` such blocks.
_LOOP = """
  const long tg_blocks = (inner + span - 1) / span;
  const long tg_last = (GROUP_ID(0) + 1) * chunk < outer * tg_blocks ? (GROUP_ID(0) + 1) * chunk : outer * tg_blocks;
  for (long tg_block = GROUP_ID(0) * chunk; tg_block < tg_last; ++tg_block) {
    const long o = tg_block / tg_blocks, tg_start = (tg_block - o * tg_blocks) * span;
    const int tg_m = (int)(inner - tg_start < span ? inner - tg_start : span);
    const long tg_base = o * outer_stride + tg_start * inner_stride;
"""


class Columns(Rendering):
    """Columns side by side. A value of a row is an array's element, and its name is replaced where statements of one
    column mention it."""

    def __init__(self, layout: Layout, group: int, width: int) -> None:
        super().__init__(layout, group, width)
        self._places: dict[str, str] = {}  # of the values of each column
        self._written: list[str] = []  # statements of one column so far

    @property
    def at(self) -> str:
        base = "tg_run" if self.layout.runs else "tg_base"
        return f"{base} + c * stride + tg_j{'' if self.layout.unit else ' * inner_stride'}"

    @property
    def row(self) -> str:
        return "(o * inner + tg_start + tg_j)"

    @property
    def column(self) -> str:
        return "(tg_start + tg_j)"

    def each(self, statements: str, vectorize: bool, size: str) -> str:
        return f"for (long c = 0; c < {size}; ++c) {{ {self._lanes(statements, vectorize)} }}"

    def leader(self, statements: str) -> str:
        return self._lanes(statements)

    def let(self, name: str, type_: str, value: str) -> str:
        return self.var(name, type_, value)

    def var(self, name: str, type_: str, value: str) -> str:
        declared = self._declare(name, value_ctype(type_))
        return f"{declared}{self._lanes(f'{name} = {value};') if value else ''}"

    def fold(self, fields: Fields, step: str, combine: str, cascade: bool, size: str, alone: bool) -> str:
        """Of few columns that touch several elements each are taken at once, if they are `alone`: as memory has them,
        those of the next element after those of the one."""
        several = alone and self.layout.unit
        each = bind(step, A="tg_{}[tg_j]")
        accumulators = Accumulators(fields, self.width, cascade)
        begin, end = self.bounds(size)

        def every(statements: str) -> str:
            return self._lanes(statements, count="tg_wide" if several else "tg_m")

        def loop(begin: str, end: str) -> str:
            first = ""
            if several:
                more = f"for (; c + {_TOGETHER} <= {end}; c += {_TOGETHER}) {{ {every(each)} }}"
                first = f"if (tg_wide > tg_m) {more}"
            return f"{{ long c = {begin}; {first} for (; c < {end}; ++c) {{ {self._lanes(each)} }} }}"

        text = self.over(lambda begin, end: accumulators.pieces(begin, end, RUN, loop, combine, every), size)
        text = f"{every(accumulators.start)} {text} {accumulators.whole(combine, every)}"
        if several:
            touch = f"stride == tg_m && tg_m <= {self.width // _TOGETHER} && {end} - {begin} >= {2 * _TOGETHER}"
            whole = self._lanes(bind(combine, A="tg_{}[tg_j]", B="tg_{}[tg_place + tg_j]"))
            text = f"""const int tg_wide = {touch} ? {_TOGETHER} * tg_m : tg_m; {text}
      for (int tg_place = tg_m; tg_place < tg_wide; tg_place += tg_m) {{ {whole} }}"""
        for name in fields:
            self._name(name, f"tg_{name}[tg_j]")
        return f"{accumulators.declared} {text}"

    def scan(self, fields: Fields, load: str, combine: str, then: str, ahead: str) -> str:
        declared = "".join(self._declare(name, ctype) for name, ctype in ctypes(fields).items())
        begun = self._lanes(" ".join(f"{name} = {identity};" for name, (_, identity) in fields.items()))
        step = self._lanes(f"{scan_step(fields, load, combine)} {then}")
        return f"{declared}{begun} for (long c = 0; c < size; ++c) {{ {step} }}"

    @property
    def local(self) -> int:
        return 1

    def body(self, statements: tuple[str, ...]) -> str:
        self._written.clear()  # another kernel may give the names to others
        return f"{_LOOP}    {joined(statements)}\n  }}\n"

    def _declare(self, name: str, ctype: str) -> str:
        self._name(name, f"{name}[tg_j]")
        return f"{ctype} {name}[{self.width}]; "

    def _name(self, name: str, place: str) -> None:
        if name not in self._places and any(_mentions(name).search(text) for text in self._written):
            raise ValueError(f"{name!r} is in statements that were made before it; make it first")
        self._places[name] = place

    def _lanes(self, statements: str, vectorize: bool = True, count: str = "tg_m") -> str:
        """Statements for each column, ``tg_j``, with the values that are known so far."""
        for name in sorted(self._places):
            statements = _mentions(name).sub(self._places[name], statements)
        self._written.append(statements)
        return f"{'VECTORIZE ' if vectorize else ''}for (int tg_j = 0; tg_j < {count}; ++tg_j) {{ {statements} }}"


def _mentions(name: str) -> re.Pattern[str]:
    """Where statements mention a value; arrays and fields may have the same name."""
    return re.compile(rf"(?<![\w.]){name}\b(?!\[)")
