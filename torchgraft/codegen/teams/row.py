"""Contiguous rows on a CPU: a work-item goes along one after the other, in vectors."""

from __future__ import annotations

import re

from torchgraft.codegen.lanes import FEW_LANES, each_lane
from torchgraft.codegen.teams.accumulators import RUN, Accumulators, Fields, bind, ctypes, scan_step, start, tree
from torchgraft.codegen.teams.layout import Layout
from torchgraft.codegen.teams.rendering import ROW_VALUES, Rendering, joined
from torchgraft.codegen.types import value_ctype

#: Fields of an accumulator of which registers hold several vectors.
MOST_FIELDS = 2
# As many rows as that at once, if so many elements hold them, which are still in the nearest cache when they are met
# again.
_ROWS_AT_ONCE, _ELEMENTS_AT_ONCE = 16, 4096


class _OfMany(str):
    """The statement of `let`, of which `Row` may find the value for many rows at once."""

    def __new__(cls, name: str, ctype: str, value: str) -> _OfMany:
        return super().__new__(cls, f"const {ctype} {name} = {value};")

    def __init__(self, name: str, ctype: str, value: str) -> None:
        self.name, self.ctype, self.value = name, ctype, value


class Row(Rendering):
    """A row after the other."""

    def __init__(self, layout: Layout, group: int, width: int) -> None:
        super().__init__(layout, group, width)
        self._values: dict[str, str] = {}  # C types of the values of a row

    @property
    def at(self) -> str:
        return "row * size + c"

    def each(self, statements: str, vectorize: bool, size: str) -> str:
        if self.layout.masked and size == "size" and vectorize:
            whole = f"const long tg_whole = size & ~{self.layout.simd_width - 1}L;"
            first = f"VECTORIZE for (long c = 0; c < tg_whole; ++c) {{ {statements} }}"
            return f"{{ {whole} {first} VECTORIZE_MASKED for (long c = tg_whole; c < size; ++c) {{ {statements} }} }}"
        return f"{'VECTORIZE ' if vectorize else ''}for (long c = 0; c < {size}; ++c) {{ {statements} }}"

    def let(self, name: str, type_: str, value: str) -> str:
        self._values[name] = value_ctype(type_)
        return super().let(name, type_, value)

    def let_of_many(self, name: str, type_: str, value: str) -> str:
        return _OfMany(name, value_ctype(type_), value)

    def fold(self, fields: Fields, step: str, combine: str, cascade: bool, size: str, alone: bool) -> str:
        """A row may be short: some registers of lanes, so that additions need not wait for each other, or one; what a
        row has beyond goes to the first few of them and then to the result. Places in arrays are all known beforehand,
        so that the arrays are registers."""
        self._values.update(ctypes(fields))
        lanes = self.layout.simd_width
        together = lanes * (self.layout.registers if len(fields) <= MOST_FIELDS else 1)
        accumulators = Accumulators(fields, together, cascade=False)
        types = accumulators.types
        inner = f"const long c = tg_first + tg_j; {bind(step, A='tg_{}[tg_j]')}"
        whole = tree(together, lanes, combine, types)

        def every(statements: str) -> str:
            return " ".join(each_lane(lanes, statements, place, types=types) for place in range(0, together, lanes))

        def piece(end: str) -> str:
            several = f"for (; tg_first + {together} <= {end}; tg_first += {together}) {{ {every(inner)} }}"
            return f"""{accumulators.declared}
        {every(accumulators.start)}
        {several if together > lanes else ""}
        for (; tg_first + {lanes} <= {end}; tg_first += {lanes}) {each_lane(lanes, inner, types=types)}
        {self._rest(end, fields, step, combine, size)}
        {whole}
        {bind(combine, A="{}", B="tg_{}[0]")}"""

        if cascade:
            stretch = together * RUN
            text = f"""while (tg_size - tg_first >= {FEW_LANES}) {{
        const long tg_stop = tg_size - tg_first < {stretch} ? tg_size : tg_first + {stretch};
        {piece("tg_stop")}
      }}"""
        else:
            text = f"if (tg_size >= {FEW_LANES}) {{ {piece('tg_size')} }}"
        return f"""{start(fields)} {{
      const long tg_size = {size or "size"};
      long tg_first = 0;
      {text}
      for (long c = tg_first; c < tg_size; ++c) {{ {bind(step, A="{}")} }}
    }}"""

    def _rest(self, end: str, fields: Fields, step: str, combine: str, size: str) -> str:
        """What a row has behind its last whole vector."""
        inner = f"const long c = tg_first + tg_j; {bind(step, A='tg_{}[tg_j]')}"
        if not self.layout.masked or size:
            return f"for (; tg_first + {FEW_LANES} <= {end}; tg_first += {FEW_LANES}) {each_lane(FEW_LANES, inner)}"
        # An accumulator of the element's own, since a lane that were written under the mask would be in memory; and the
        # mask by comparing float32, since Clang compares indices as int64, in twice the vectors.
        types = ctypes(fields)
        own = " ".join(f"{types[n]} tg_own_{n} = {identity};" for n, (_, identity) in fields.items())
        taken = f"if ((float)tg_j < tg_rest) {{ const long c = tg_first + tg_j; {bind(step, A='tg_own_{}')} }}"
        added = bind(combine, A="tg_{}[tg_j]", B="tg_own_{}")
        return f"""if (tg_first < {end}) {{
          const float tg_rest = (float)({end} - tg_first);
          {each_lane(self.layout.simd_width, f"{own} {taken} {added}")}
          tg_first = {end};
        }}"""

    def scan(self, fields: Fields, load: str, combine: str, then: str, ahead: str) -> str:
        return (
            f"{start(fields)} long c = 0; {ahead} for (; c < size; ++c) {{ {scan_step(fields, load, combine)} {then} }}"
        )

    # ---- the kernel ----

    @property
    def values(self) -> tuple[str, ...]:
        return ROW_VALUES

    @property
    def local(self) -> int:
        return 1

    def body(self, statements: tuple[str, ...]) -> str:
        found = [number for number, each in enumerate(statements) if isinstance(each, _OfMany)]
        if not found:
            return self._rows(joined(statements))
        (number,) = found
        many = statements[number]
        assert isinstance(many, _OfMany)
        more, text = self._at_once(joined(statements[:number]), many, joined(statements[number + 1 :]))
        return self._rows(text, more, "tg_some")

    def _rows(self, text: str, more: str = "", step: str = "1", before: str = "", hint: str = "") -> str:
        head = " ".join(self.head.values())
        return f"""  {f"{head} {more}" if more else head}
  {before}
  const long tg_row_end = (GROUP_ID(0) + 1) * chunk < rows ? (GROUP_ID(0) + 1) * chunk : rows;
  {hint}
  for (long row = GROUP_ID(0) * chunk; row < tg_row_end; row += {step}) {{
    {text}
  }}
"""

    def _at_once(self, before: str, many: _OfMany, after: str) -> tuple[str, str]:
        """Rows in blocks, gone through twice, with the value of `let_of_many` between: declarations, and the statements
        of one block, which has ``tg_some`` rows."""
        name, ctype, value = many.name, many.ctype, many.value
        carried = {n: t for n, t in self._values.items() if re.search(rf"\b{n}\b", f"{value} {after}")}
        arrays = " ".join(f"{t} tg_all_{n}[{_ROWS_AT_ONCE}] = {{0}};" for n, t in {**carried, name: ctype}.items())
        keep = " ".join(f"tg_all_{n}[tg_r] = {n};" for n in carried)
        take = " ".join(f"const {t} {n} = tg_all_{n}[tg_r];" for n, t in carried.items())
        rows = "for (int tg_r = 0; tg_r < tg_count; ++tg_r) { const long row = tg_from + tg_r;"
        head = f"""{arrays}
  const long tg_fit = {_ELEMENTS_AT_ONCE} / (size > 0 ? size : 1);
  const int tg_some = tg_fit < 1 ? 1 : tg_fit < {_ROWS_AT_ONCE} ? (int)tg_fit : {_ROWS_AT_ONCE};"""
        block = f"""const long tg_from = row;
    const int tg_count = tg_row_end - row < tg_some ? (int)(tg_row_end - row) : tg_some;
    {rows} {before} {keep} }}
    VECTORIZE for (int tg_r = 0; tg_r < {_ROWS_AT_ONCE}; ++tg_r) {{ {take} tg_all_{name}[tg_r] = {value}; }}
    {rows} {take} const {ctype} {name} = tg_all_{name}[tg_r]; {after} }}"""
        return head, block
