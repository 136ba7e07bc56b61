"""The two loops that kernels are made of.

A `Walk` goes over elements that have nothing to do with each other. A `Team` is the work-items that share a row, and
that find sums, largest elements and running sums of it together. Each renders both forms of a kernel from one text:

* The CPU form has few groups of a single work-item, which takes a *chunk* of the elements or rows in a plain loop that
  the compiler makes vectors of.
* The GPU form has a work-item for an element, and a group for a row.

How many groups there are, and how large a chunk is, belongs to the launch: `PlanBuilder.walk` and `PlanBuilder.rows`
give what `PlanBuilder.launch` wants, along with the values of the parameters that a loop adds to its kernel.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torchgraft.codegen.kernel import Kernel, Parameter, Value
from torchgraft.codegen.lanes import FEW_LANES, each_lane, fold_lanes
from torchgraft.codegen.types import value_ctype

#: Work-items of a group in the GPU form.
GROUP = 256
#: The same where each has much to do: a row of its own, say.
FEW = 64
#: Partial results of a row that a CPU keeps side by side.
LANES = 64
#: Columns that a group of the CPU form treats side by side, at most.
WIDTH = 256

# Elements that a lane sums before it puts the sum aside: a sum of millions would round off what is added last.
_RUN = 256


# Elements of each of a few columns that a CPU takes at once.
_TOGETHER = 16
_BYTES = {"double": 8, "long": 8, "ulong": 8}
# Fields of an accumulator of which registers hold `LANES`, or `Layout.registers`.
_MOST_FIELDS = 2
# Groups up to this size meet once for a fold.
_SMALL_GROUP = 64


@dataclass(frozen=True)
class Walk:
    """A loop over `n` elements, which are dealt out to groups.

    Of rank 0 it counts them: the statements of `each` see their number ``i``. Otherwise the elements fill a space of
    that many dimensions, whose sizes ``n0``, ``n1``, ... are parameters too: statements see the indices ``i0``,
    ``i1``, ... of the element where a row begins, and ``j``, how far along the last dimension it is.

    Attributes:
        form: "cpu" or "gpu".
        rank: number of dimensions, or 0.
        index: element type of counts and indices: "i64" or, where they fit, "i32".
        prefix: of all names that the loop brings along, where they could meet an author's.
        group: work-items of a group in the GPU form.
        together: whether these are at the same element, of which each does a part: a row, say. A group has one element
            then, and ``return`` leaves it out. No loop is made: around places where a group meets, a compiler for CPUs
            has been seen to drop what stands in another loop before.
        short: whether rows are short and end within a vector, so that a CPU had better treat the rest of a row as a
            vector, too, under a mask.
    """

    form: str
    rank: int = 0
    index: str = "i64"
    prefix: str = ""
    group: int = GROUP
    together: bool = False
    short: bool = False

    def kernel(self, name: str, params: tuple[Parameter, ...], body: str, helpers: str = "", dims: int = 1) -> Kernel:
        """A kernel whose body has loops of this walk, made by `each`.

        Args:
            name: as of `Kernel`.
            params: those of the body itself.
            body: statements.
            helpers: as of `Kernel`.
            dims: dimensions of the grid, of which the walk has the first.
        """
        p = self.prefix
        own = [f"{p}n", f"{p}chunk", *(f"{p}n{d}" for d in range(self.rank))]
        t = value_ctype(self.index)
        bounds = (
            f"  const {t} {p}begin = ({t})GROUP_ID(0) * {p}chunk;\n"
            f"  const {t} {p}end = {p}n - {p}begin < {p}chunk ? {p}n : {p}begin + {p}chunk;\n"
        )
        local = (self.group if self.form == "gpu" else 1, *[1] * (dims - 1))
        return Kernel(name, (*params, *(Value(v, self.index) for v in own)), bounds + body, helpers, local)

    def each(self, statements: str, row: str = "", vectorize: bool = True) -> str:
        """The loop over the group's elements.

        Args:
            statements: of one element; ``continue`` leaves it out.
            row: statements at the head of each row, for walks with a rank: what `statements` add ``j`` to.
                ``continue`` leaves the row out.
            vectorize: whether vectors pay, which takes independent elements.
        """
        p = self.prefix
        if not self.rank:
            return self.loop(f"{p}i", f"{p}begin", f"{p}end", statements, vectorize)
        return self.rows(f"{row}\n{self.along(statements, vectorize)}")

    def rows(self, statements: str) -> str:
        """The loop over the group's rows, for walks with a rank: `each` for those who have more to do with a row than
        to go along it once. ``continue`` leaves a row out."""
        if self.form == "cpu":
            return self._rows(statements)
        p = self.prefix
        return self.loop(f"{p}i", f"{p}begin", f"{p}end", f"{self._split(f'{p}i')}\n{statements}")

    def along(self, statements: str, vectorize: bool = True) -> str:
        """The loop along a row, within `rows`."""
        p, t = self.prefix, value_ctype(self.index)
        if self.together:
            return f"    {{ const {t} {p}j = 0;\n{statements}\n    }}"
        if self.form == "gpu":  # a row is an element
            return f"    for ({t} {p}j = 0; {p}j < 1; ++{p}j) {{\n{statements}\n    }}"
        word = "VECTORIZE_MASKED" if self.short else "VECTORIZE"
        head = f"{f'    {word}' if vectorize else ''}\n    for ({t} {p}j = 0; {p}j < {p}count; ++{p}j)"
        return f"{head} {{\n{statements}\n    }}"

    def loop(self, name: str, begin: str, end: str, statements: str, vectorize: bool = True) -> str:
        """A loop over other numbers than the group's own, which its work-items share likewise."""
        t = value_ctype(self.index)
        if self.together:
            return f"  {{ const {t} {name} = {begin};\n{statements}\n  }}"
        if self.form == "gpu":
            head = f"  for ({t} {name} = {begin} + LOCAL_ID(0); {name} < {end}; {name} += {self.group})"
        else:
            head = f"{'  VECTORIZE' if vectorize else ''}\n  for ({t} {name} = {begin}; {name} < {end}; ++{name})"
        return f"{head} {{\n{statements}\n  }}"

    def offset(self, strides: str, step: str = "") -> str:
        """Where a row begins in an operand whose strides are ``<strides>0``, ``<strides>1``, ...; `step` is another
        text for the last of them."""
        p, last = self.prefix, self.rank - 1
        steps = [f"{strides}{d}" for d in range(last)] + [step or f"{strides}{last}"]
        return " + ".join(f"{p}i{d} * {s}" for d, s in enumerate(steps))

    def _split(self, source: str) -> str:
        """Makes a multi-index of a linear one."""
        p, t = self.prefix, value_ctype(self.index)
        lines = [f"{t} {p}rest = {source};"]
        for d in range(self.rank - 1, 0, -1):
            lines += [f"{t} {p}i{d} = {p}rest % {p}n{d};", f"{p}rest /= {p}n{d};"]
        return "\n".join([*lines, f"{t} {p}i0 = {p}rest;"])

    def _rows(self, statements: str) -> str:
        """One division at the start, then row after row: a division for each element costs more than the element."""
        p, t, last = self.prefix, value_ctype(self.index), self.rank - 1
        carry = "".join(f"if (++{p}i{d} == {p}n{d}) {{ {p}i{d} = 0; " for d in range(last - 1, 0, -1))
        carry += f"++{p}i0;" + " }" * (last - 1) if last > 0 else ""
        return f"""\
{self._split(f"{p}begin")}
  for ({t} {p}done = {p}begin; {p}done < {p}end;) {{
    const {t} {p}row = {p}n{last} - {p}i{last};
    const {t} {p}count = {p}row < {p}end - {p}done ? {p}row : {p}end - {p}done;
    do {{
{statements}
    }} while (0);
    {p}done += {p}count;
    {p}i{last} = 0;
    {carry}
  }}"""


@dataclass(frozen=True)
class Layout:
    """How the rows of a team lie in memory.

    Attributes:
        form: "cpu" or "gpu".
        across: rows lie across memory, neighbours side by side: a CPU treats many of them at once, in vectors, and a
            GPU gives each a work-item of its own. Otherwise rows are contiguous, one after the other.
        unit: of rows across memory, whether neighbours touch; of rows of runs, whether their elements do.
        runs: each row lies in memory as runs of `run` elements, and rows, whether across or not, have two strides as
            columns do. Several groups may share a row: each has `part` elements of it.
        simd_width: float32 elements of a CPU's vector registers: 4, 8 or 16.
        group: work-items of a group that share a row in the GPU form, a power of two.
        unrolled: of contiguous rows on a CPU that are shorter than a vector, how many elements they have, otherwise 0.
            Loops along a row are unrolled then, and vectors go across rows.
        masked: of contiguous rows on a CPU, whether what a row has behind its last whole vector is treated as a vector,
            too, under a mask.
        registers: of contiguous rows on a CPU, vectors that are summed beside each other along a row, so that additions
            need not wait for each other: fewer for rows of few vectors, since they are added to each other at the end.
    """

    form: str
    across: bool = False
    unit: bool = True
    runs: bool = False
    simd_width: int = 16
    group: int = GROUP
    unrolled: int = 0
    masked: bool = False
    registers: int = 4


Fields = Mapping[str, tuple[str, str]]
"""Of an accumulator: name -> element type and identity, the value that changes nothing."""

# A CPU takes `span` columns at a time, and `chunk` such blocks.
_COLUMNS_CPU = """
  const long tg_blocks = (inner + span - 1) / span;
  const long tg_last = (GROUP_ID(0) + 1) * chunk < outer * tg_blocks ? (GROUP_ID(0) + 1) * chunk : outer * tg_blocks;
  for (long tg_block = GROUP_ID(0) * chunk; tg_block < tg_last; ++tg_block) {
    const long o = tg_block / tg_blocks, tg_start = (tg_block - o * tg_blocks) * span;
    const int tg_m = (int)(inner - tg_start < span ? inner - tg_start : span);
    const long tg_base = o * outer_stride + tg_start * inner_stride;
"""
_COLUMNS_GPU = """
  const long tg_row = GLOBAL_ID(0), o = tg_row / inner;
  if (o >= outer) return;
  const long tg_base = o * outer_stride + (tg_row - o * inner) * inner_stride;
"""
# Around what is done for each of the columns side by side.
_LANES_OPEN, _LANES_CLOSE = "\1", "\2"
# Around the name, type and text of what is found for many rows at once.
_MANY = "\3"
# As many rows as that, if so many elements hold them, which are still in the nearest cache when they are met again.
_ROWS_AT_ONCE, _ELEMENTS_AT_ONCE = 16, 4096
_LANES_TEXT = re.compile(f"{_LANES_OPEN}(.*?){_LANES_CLOSE}", re.DOTALL)

_ROW_VALUES = ("rows", "size", "chunk")
_COLUMN_VALUES = ("outer", "outer_stride", "size", "stride", "inner", "inner_stride", "span", "chunk")
_RUN_VALUES = (*_COLUMN_VALUES, "run", "run_stride", "part")
_PART = "  const long tg_begin = GROUP_ID(1) * part, tg_end = tg_begin + part < size ? tg_begin + part : size;\n"
_ROW_OF_RUNS = "const long o = row / inner, tg_base = o * outer_stride + (row - o * inner) * inner_stride;"


@dataclass
class Team:
    """The work-items that share a row of `size` elements, and the text of what they do with it.

    Its methods return statements, which `kernel` puts into the loop over rows. What they are given is written as for
    one row and one element: ``c`` is the element's place in the row, `at` its place in memory, `row` the row's number.
    Results of `sum`, `max`, `fold`, `let` and `var` are known by their names in everything that follows.

    Of rows across memory, those that a CPU treats at once have the same ``o``, the number in front of their elements.
    Statements that are given to no method may use that, but nothing that belongs to one row: loops of an author's own
    around `leader`, for rows that are made of something else than a tensor's elements.

    Attributes:
        layout: of the rows.
        group: work-items of a group in the GPU form, a power of two; 0: as the layout says.
        width: columns that the CPU form treats side by side, at most.
        short: whether there are few elements, so that sums put nothing aside.
    """

    layout: Layout
    group: int = 0
    width: int = WIDTH
    short: bool = False
    _head: dict[str, str] = field(default_factory=dict)  # declarations at the head of the kernel
    # Values that a CPU has for each of its columns, and where they are.
    _columns: dict[str, str] = field(default_factory=dict)
    # C types of the values of a row.
    _values: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.group = self.group or self.layout.group

    @property
    def at(self) -> str:
        """Where element c lies in tensors of the rows' shape."""
        base, unit = "tg_run" if self.layout.runs else "tg_base", self.layout.unit
        if not self.layout.across:
            row = f"row * {self.layout.unrolled or 'size'} + c"
            return f"{base} + c{'' if unit else ' * stride'}" if self.layout.runs else row
        if self.layout.form == "gpu":
            return f"{base} + c * stride"
        return f"{base} + c * stride + tg_j{'' if unit else ' * inner_stride'}"

    @property
    def row(self) -> str:
        """The row's number."""
        if not self.layout.across:
            return "row"
        return "tg_row" if self.layout.form == "gpu" else "(o * inner + tg_start + tg_j)"

    @property
    def column(self) -> str:
        """Of rows across memory or of runs, the number of the row among those with the same ``o``."""
        if not self.layout.across:
            return "(row - o * inner)"
        return "(tg_row - o * inner)" if self.layout.form == "gpu" else "(tg_start + tg_j)"

    # ---- what a team does ----

    def each(self, statements: str, vectorize: bool = True, size: str = "size") -> str:
        """For each element of the row, which has no runs, or each of `size` numbers, in any order."""
        if self._is_vector:
            return f"for (long c = 0; c < {size}; ++c) {{ {self._lanes(statements, vectorize)} }}"
        if self.layout.form == "gpu":
            return self._members("0", size, statements)
        if self.layout.unrolled and size == "size":
            return self._unrolled(statements)
        if self.layout.masked and size == "size" and vectorize:
            whole = f"const long tg_whole = size & ~{self.layout.simd_width - 1}L;"
            first = f"VECTORIZE for (long c = 0; c < tg_whole; ++c) {{ {statements} }}"
            return f"{{ {whole} {first} VECTORIZE_MASKED for (long c = tg_whole; c < size; ++c) {{ {statements} }} }}"
        return f"{'VECTORIZE ' if vectorize else ''}for (long c = 0; c < {size}; ++c) {{ {statements} }}"

    def leader(self, statements: str) -> str:
        """Once for the row."""
        if self._is_vector:
            return self._lanes(statements)
        return f"if (tg_lane == 0) {{ {statements} }}" if self._is_group else f"{{ {statements} }}"

    def let(self, name: str, type_: str, value: str) -> str:
        """Gives a value of the row a name."""
        ctype = value_ctype(type_)
        self._values[name] = ctype
        return self.var(name, type_, value) if self._is_vector else f"const {ctype} {name} = {value};"

    def let_of_many(self, name: str, type_: str, value: str) -> str:
        """The same, once in a kernel, where the value takes a function: of contiguous rows a CPU finds it for many of
        them at once, in vectors. Statements before and after it share nothing but what `sum`, `max`, `fold` and `let`
        have found before."""
        if self.layout.form == "gpu" or self.layout.across or self.layout.runs or self.layout.unrolled:
            return self.let(name, type_, value)
        return f"{_MANY}{name}{_MANY}{value_ctype(type_)}{_MANY}{value}{_MANY}"

    def var(self, name: str, type_: str, value: str = "") -> str:
        """The same for a value that `leader` may change, of rows across memory; it may be left to `leader` to set it
        first."""
        ctype = value_ctype(type_)
        assign = f"{name} = {value};" if value else ""
        if self._is_vector:
            return f"{self._column(name, ctype)}{self._lanes(assign) if value else ''}"
        return f"{ctype} {assign or f'{name};'}"

    @property
    def sync(self) -> str:
        """Stands where a member may read what another has written to memory, or write what another may still read."""
        return "BARRIER;" if self._is_group else ""

    def sum(self, types: Mapping[str, str], statements: str, size: str = "") -> str:
        """Sums over the row.

        Args:
            types: name -> element type of each sum.
            statements: of one element; they add to ``A.<name>``.
            size: as of `fold`.
        """
        combine = " ".join(f"A.{name} += B.{name};" for name in types)
        fields = {name: (t, f"({value_ctype(t)})(0)") for name, t in types.items()}
        return self.fold(fields, statements, combine, not self.short, size)

    def max(self, name: str, type_: str, value: str) -> str:
        """The largest of a floating-point value of each element; the value must not be NaN to count."""
        step = f"const {value_ctype(type_)} v = {value}; A.{name} = v > A.{name} ? v : A.{name};"
        return self.fold({name: (type_, "-INFINITY")}, step, f"A.{name} = B.{name} > A.{name} ? B.{name} : A.{name};")

    def argmax(self, name: str, type_: str, value: str, size: str = "") -> str:
        """The place of the first of the largest, 0 if all are NaN; what lies there is ``<name>_value``."""
        value_name = f"{name}_value"
        fields = {name: ("i64", "0"), value_name: (type_, "-INFINITY")}
        own = f"const {value_ctype(type_)} v = {value};"
        step = f"{own} if (v > A.{value_name}) {{ A.{name} = c; A.{value_name} = v; }}"
        first = f"B.{value_name} == A.{value_name} && B.{name} < A.{name}"
        take = f"A.{name} = B.{name}; A.{value_name} = B.{value_name};"
        return self.fold(fields, step, f"if (B.{value_name} > A.{value_name} || ({first})) {{ {take} }}", size=size)

    def fold(
        self, fields: Fields, step: str, combine: str, cascade: bool = False, size: str = "", alone: bool = False
    ) -> str:
        """Takes the elements of the row, or of the group's part of it, into one accumulator.

        Args:
            fields: of the accumulator; afterwards they are values of the row.
            step: statements that take element ``c`` into accumulator ``A.<field>``.
            combine: statements that take accumulator ``B.<field>`` into ``A.<field>``.
            cascade: puts what is accumulated aside from time to time, since long sums round off what comes last.
            size: another number of elements than the row's.
            alone: `step` uses nothing of an element but `at`, so that where a few neighbouring rows lie without a gap a
                CPU may take several elements of each at once.
        """
        self._values.update((name, value_ctype(of)) for name, (of, _) in fields.items())
        if self._is_vector:
            return self._fold_columns(fields, step, combine, cascade, size, alone and self.layout.unit)
        if self.layout.form == "gpu":
            return self._fold_group(fields, step, combine, cascade, size)
        if self.layout.runs and not size:
            return self._fold_runs(fields, step, combine, cascade)
        if self.layout.unrolled and not size:
            start = " ".join(f"{value_ctype(type_)} {name} = {first};" for name, (type_, first) in fields.items())
            return f"{start} {self._unrolled(bind(step, A='{}'))}"
        return self._fold_row(fields, step, combine, cascade, size)

    def scan(self, fields: Fields, load: str, combine: str, then: str, ahead: str = "") -> str:
        """Goes along the row, which has no runs, with an accumulator of all elements so far.

        Args:
            fields: of the accumulator, named in `then`.
            load: statements that set the accumulator ``B.<field>`` of element ``c`` alone.
            combine: statements that take accumulator ``B.<field>``, which comes later, into ``A.<field>``.
            then: statements for each element, once it has been taken in.
            ahead: of contiguous rows on a CPU, statements that deal with as many elements as they like and move ``c``
                on.
        """
        types = {name: value_ctype(type_) for name, (type_, _) in fields.items()}
        own = " ".join(f"{t} tg_{n};" for n, t in types.items())
        step = f"{own} {bind(load, B='tg_{}')} {bind(combine, A='{}', B='tg_{}')}"
        if self._is_vector:
            declared = "".join(self._column(n, t) for n, t in types.items())
            start = self._lanes(" ".join(f"{n} = {identity};" for n, (_, identity) in fields.items()))
            return f"{declared}{start} for (long c = 0; c < size; ++c) {{ {self._lanes(f'{step} {then}')} }}"
        start = " ".join(f"{types[n]} {n} = {identity};" for n, (_, identity) in fields.items())
        if self._is_group:
            return self._scan_group(fields, types, load, combine, then)
        if self.layout.unrolled:
            return f"{start} {self._unrolled(f'{step} {then}')}"
        ahead = "" if self.layout.across else ahead
        return f"{start} long c = 0; {ahead} for (; c < size; ++c) {{ {step} {then} }}"

    def meet(self, types: Mapping[str, str], combine: str) -> str:
        """Combines what the members of a group have in variables of their own; each has the whole afterwards.

        Args:
            types: name -> C type of each variable.
            combine: as of `fold`.
        """
        place = self._local(types)
        return f"""BARRIER;
    {" ".join(f"{array}[tg_lane] = {name};" for name, array in place.items())}
    BARRIER;
    {self._meet(place, combine)}"""

    @property
    def declarations(self) -> str:
        """What the head of a kernel must declare for the statements so far, where `kernel` does not make it."""
        return " ".join(self._head.values())

    # ---- the kernel ----

    def kernel(
        self, name: str, params: tuple[Parameter, ...], *statements: str, helpers: str = "", dims: int = 1
    ) -> Kernel:
        """A kernel that does `statements` for each row.

        Args:
            name: as of `Kernel`.
            params: those of the statements.
            statements: of one row, in this order.
            helpers: as of `Kernel`.
            dims: dimensions of the grid, of which the rows have the first.
        """
        text, head = "\n    ".join(filter(None, statements)), self.declarations
        text = _LANES_TEXT.sub(self._of_columns, text)
        layout = self.layout
        if layout.runs and not layout.across:
            text = f"{_ROW_OF_RUNS}\n    {text}"
        if layout.across:
            body = f"{_COLUMNS_GPU}    {text}\n" if layout.form == "gpu" else f"{_COLUMNS_CPU}    {text}\n  }}\n"
        elif layout.form == "gpu":
            body = f"  {head}\n  const int tg_lane = LOCAL_ID(0);\n  const long row = GROUP_ID(0);\n    {text}\n"
        else:
            step = "1"
            if _MANY in text:
                more, step, text = self._at_once(text)
                head = f"{head} {more}"
            body = f"""  {head}
  {"const long rows = outer * inner;" if layout.runs else ""}
  const long tg_row_end = (GROUP_ID(0) + 1) * chunk < rows ? (GROUP_ID(0) + 1) * chunk : rows;
  {"VECTORIZE" if layout.unrolled else ""}
  for (long row = GROUP_ID(0) * chunk; row < tg_row_end; row += {step}) {{
    {text}
  }}
"""
        values = _RUN_VALUES if layout.runs else _COLUMN_VALUES if layout.across else _ROW_VALUES
        own = tuple(Value(v, "i64") for v in values)
        local = 1 if layout.form == "cpu" else FEW if layout.across else self.group
        if layout.runs:
            return Kernel(name, (*params, *own), _PART + body, helpers, (local, 1))
        return Kernel(name, (*params, *own), body, helpers, (local, *[1] * (dims - 1)))

    # ---- forms ----

    @property
    def _is_group(self) -> bool:
        return self.layout.form == "gpu" and not self.layout.across

    @property
    def _is_vector(self) -> bool:
        return self.layout.form == "cpu" and self.layout.across

    def _bounds(self, size: str) -> tuple[str, str]:
        """The elements that the group has of a row, or of `size` others."""
        return ("tg_begin", "tg_end") if self.layout.runs and not size else ("0", size or "size")

    def _at_once(self, text: str) -> tuple[str, str, str]:
        """Rows in blocks, gone through twice, with the value of `let_of_many` between: declarations, the number of rows
        in a block, and the statements of one."""
        before, name, ctype, value, after = text.split(_MANY)
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
        return head, "tg_some", block

    def _unrolled(self, statements: str) -> str:
        """The loop along a row of a known number of elements."""
        return f"UNROLL for (int c = 0; c < {self.layout.unrolled}; ++c) {{ {statements} }}"

    def _over(self, loop: Callable[[str, str], str], size: str = "") -> str:
        """What `loop` makes of a range of elements, for the row or for each run of it, or of `size` elements."""
        if size or not self.layout.runs:
            return loop(*self._bounds(size))
        return f"""for (long tg_number = tg_begin / run, tg_from = tg_begin; tg_from < tg_end; ++tg_number) {{
      const long tg_to = (tg_number + 1) * run < tg_end ? (tg_number + 1) * run : tg_end;
      const long tg_run = tg_base + tg_number * (run_stride - run * stride);
      {loop("tg_from", "tg_to")}
      tg_from = tg_to;
    }}"""

    def _members(self, begin: str, end: str, statements: str) -> str:
        """The GPU form's loop over a range of elements. Several are loaded before the first is used: memory answers
        late."""
        lane, step = (f"{begin} + tg_lane", f"c += {self.group}") if self._is_group else (begin, "++c")
        loop = f"UNROLL_4 for (long c = {lane}; c < {end}; {step})"
        if not self.layout.runs:
            return f"{loop} {{ {statements} }}"
        # A division takes longer than an addition, and one of 64 bits much longer; most rows are one run.
        number = "((ulong)c >> 32 ? c / run : (long)((uint)c / (uint)run))"
        return f"""if (run >= size) {{ const long tg_run = tg_base; {loop} {{ {statements} }} }}
    else {loop} {{ const long tg_run = tg_base + {number} * (run_stride - run * stride); {statements} }}"""

    def _column(self, name: str, ctype: str) -> str:
        """Declares a value of each column."""
        self._columns[name] = f"{name}[tg_j]"
        return f"{ctype} {name}[{self.width}]; "

    def _lanes(self, statements: str, vectorize: bool = True, count: str = "tg_m") -> str:
        """Statements for each column; `kernel` tells values of the rows apart by j, once all of them are known."""
        loop = f"{'VECTORIZE ' if vectorize else ''}for (int tg_j = 0; tg_j < {count}; ++tg_j)"
        return f"{loop} {_LANES_OPEN}{{ {statements} }}{_LANES_CLOSE}"

    def _of_columns(self, lanes: re.Match[str]) -> str:
        text = lanes[1]
        for name in sorted(self._columns):
            text = re.sub(rf"(?<![\w.]){name}\b(?!\[)", self._columns[name], text)
        return text

    def _fold_columns(
        self, fields: Fields, step: str, combine: str, cascade: bool, size: str, several: bool = False
    ) -> str:
        """With `several` of few columns that touch, `_TOGETHER` elements each are taken at once: as memory has them,
        those of the next element after those of the one."""
        each = bind(step, A="tg_{}[tg_j]")
        accumulators = _Accumulators(fields, self.width, cascade)
        begin, end = self._bounds(size)

        def every(statements: str) -> str:
            return self._lanes(statements, count="tg_wide" if several else "tg_m")

        def loop(begin: str, end: str) -> str:
            first = ""
            if several:
                more = f"for (; c + {_TOGETHER} <= {end}; c += {_TOGETHER}) {{ {every(each)} }}"
                first = f"if (tg_wide > tg_m) {more}"
            return f"{{ long c = {begin}; {first} for (; c < {end}; ++c) {{ {self._lanes(each)} }} }}"

        text = self._over(lambda begin, end: accumulators.pieces(begin, end, _RUN, loop, combine, every), size)
        text = f"{every(accumulators.start)} {text} {accumulators.whole(combine, every)}"
        if several:
            touch = f"stride == tg_m && tg_m <= {self.width // _TOGETHER} && {end} - {begin} >= {2 * _TOGETHER}"
            whole = self._lanes(bind(combine, A="tg_{}[tg_j]", B="tg_{}[tg_place + tg_j]"))
            text = f"""const int tg_wide = {touch} ? {_TOGETHER} * tg_m : tg_m; {text}
      for (int tg_place = tg_m; tg_place < tg_wide; tg_place += tg_m) {{ {whole} }}"""
        self._columns.update((name, f"tg_{name}[tg_j]") for name in fields)
        return f"{accumulators.declared} {text}"

    def _fold_row(self, fields: Fields, step: str, combine: str, cascade: bool, size: str) -> str:
        """A contiguous row, which may be short: some registers of lanes, so that additions need not wait for each
        other, or one; what a row has beyond goes to the first few of them and then to the result. Places in arrays are
        all known beforehand, so that the arrays are registers."""
        lanes = self.layout.simd_width
        together = lanes * (self.layout.registers if len(fields) <= _MOST_FIELDS else 1)
        accumulators = _Accumulators(fields, together, cascade=False)
        types = accumulators.types
        inner = f"const long c = tg_first + tg_j; {bind(step, A='tg_{}[tg_j]')}"
        tree = _tree(together, lanes, combine, types)

        def every(statements: str) -> str:
            return " ".join(each_lane(lanes, statements, place, types=types) for place in range(0, together, lanes))

        def rest(end: str) -> str:
            if not self.layout.masked or size:
                return f"for (; tg_first + {FEW_LANES} <= {end}; tg_first += {FEW_LANES}) {each_lane(FEW_LANES, inner)}"
            # An accumulator of the element's own, since a lane that were written under the mask would be in memory; and
            # the mask by comparing float32, since Clang compares indices as int64, in twice the vectors.
            own = " ".join(f"{types[n]} tg_own_{n} = {identity};" for n, (_, identity) in fields.items())
            taken = f"if ((float)tg_j < tg_rest) {{ const long c = tg_first + tg_j; {bind(step, A='tg_own_{}')} }}"
            added = bind(combine, A="tg_{}[tg_j]", B="tg_own_{}")
            return f"""if (tg_first < {end}) {{
          const float tg_rest = (float)({end} - tg_first);
          {each_lane(lanes, f"{own} {taken} {added}")}
          tg_first = {end};
        }}"""

        def piece(end: str) -> str:
            several = f"for (; tg_first + {together} <= {end}; tg_first += {together}) {{ {every(inner)} }}"
            return f"""{accumulators.declared}
        {every(accumulators.start)}
        {several if together > lanes else ""}
        for (; tg_first + {lanes} <= {end}; tg_first += {lanes}) {each_lane(lanes, inner, types=types)}
        {rest(end)}
        {tree}
        {bind(combine, A="{}", B="tg_{}[0]")}"""

        if cascade:
            stretch = together * _RUN
            text = f"""while (tg_size - tg_first >= {FEW_LANES}) {{
        const long tg_stop = tg_size - tg_first < {stretch} ? tg_size : tg_first + {stretch};
        {piece("tg_stop")}
      }}"""
        else:
            text = f"if (tg_size >= {FEW_LANES}) {{ {piece('tg_size')} }}"
        return f"""{" ".join(f"{types[n]} {n} = {identity};" for n, (_, identity) in fields.items())} {{
      const long tg_size = {size or "size"};
      long tg_first = 0;
      {text}
      for (long c = tg_first; c < tg_size; ++c) {{ {bind(step, A="{}")} }}
    }}"""

    def _fold_runs(self, fields: Fields, step: str, combine: str, cascade: bool) -> str:
        """A row of runs, which is long: several registers of lanes, so that additions need not wait for each other,
        and one more accumulator for what a run has beyond them."""
        if len(fields) > _MOST_FIELDS:
            return self._fold_runs_swept(fields, step, combine, cascade)
        accumulators = _Accumulators(fields, LANES, cascade=False)
        types, stretch = accumulators.types, LANES * _RUN
        lanes = self.layout.simd_width
        if lanes == 2 * FEW_LANES and any(_BYTES.get(t, 4) == 8 for t in types.values()):
            lanes = FEW_LANES  # a register
        rest = {n: f"tg_{n}_rest" for n in types}
        start = " ".join(
            [
                *(each_lane(lanes, accumulators.start, place, types=types) for place in range(0, LANES, lanes)),
                *(f"{rest[n]} = {identity};" for n, (_, identity) in fields.items()),
            ]
        )
        tree = _tree(LANES, lanes, combine, types)
        fold = f"{tree} {bind(combine, A='{}', B='tg_{}[0]')} {bind(combine, A='{}', B=rest)}"
        inner = f"const long c = tg_first + tg_j; {bind(step, A='tg_{}[tg_j]')}"

        def loop(begin: str, end: str) -> str:
            every = " ".join(each_lane(lanes, inner, place, types=types) for place in range(0, LANES, lanes))
            return f"""long tg_first = {begin};
        for (; tg_first + {LANES} <= {end}; tg_first += {LANES}) {{ {every} }}
        for (; tg_first + {lanes} <= {end}; tg_first += {lanes}) {{ {each_lane(lanes, inner, types=types)} }}
        for (; tg_first + {FEW_LANES} <= {end}; tg_first += {FEW_LANES}) {{ {each_lane(FEW_LANES, inner)} }}
        for (long c = tg_first; c < {end}; ++c) {{ {bind(step, A=rest)} }}"""

        def pieces(begin: str, end: str) -> str:
            return f"""for (long tg_piece = {begin}; tg_piece < {end}; tg_piece += {stretch}) {{
        const long tg_stop = {end} - tg_piece < {stretch} ? {end} : tg_piece + {stretch};
        {loop("tg_piece", "tg_stop")}
        tg_steps += tg_stop - tg_piece;
        if (tg_steps >= {stretch} || tg_stop == tg_end) {{ tg_steps = 0; {fold} {start} }}
      }}"""

        return f"""{" ".join(f"{t} {n} = {fields[n][1]};" for n, t in types.items())} {{
      {accumulators.declared} {" ".join(f"{t} {rest[n]};" for n, t in types.items())}
      {start}
      {"long tg_steps = 0;" if cascade else ""}
      {self._over(pieces if cascade else lambda begin, end: f"{{ {loop(begin, end)} }}")}
      {"" if cascade else fold}
    }}"""

    def _fold_runs_swept(self, fields: Fields, step: str, combine: str, cascade: bool) -> str:
        """The same where lanes have more than registers hold: they are in memory, and any number of them is swept."""
        lanes = LANES
        accumulators = _Accumulators(fields, lanes, cascade)

        def every(statements: str) -> str:
            return f"VECTORIZE for (int tg_j = 0; tg_j < {lanes}; ++tg_j) {{ {statements} }}"

        inner = f"const long c = tg_first + tg_j; {bind(step, A='tg_{}[tg_j]')}"
        tree = f"{{ {bind(combine, A='tg_{}[tg_j]', B='tg_{}[tg_j + tg_width]')} }}"

        def loop(begin: str, end: str) -> str:
            return f"""{{ long tg_first = {begin};
        for (; tg_first + {lanes} <= {end}; tg_first += {lanes}) {every(inner)}
        const int tg_rest = (int)({end} - tg_first);
        VECTORIZE for (int tg_j = 0; tg_j < tg_rest; ++tg_j) {{ {inner} }} }}"""

        return f"""{" ".join(f"{t} {n};" for n, t in accumulators.types.items())} {{
      {accumulators.declared} {every(accumulators.start)}
      {self._over(lambda begin, end: accumulators.pieces(begin, end, lanes * _RUN, loop, combine, every))}
      {accumulators.whole(combine, every)}
      for (int tg_width = {lanes // 2}; tg_width >= 16; tg_width /= 2)
        VECTORIZE for (int tg_j = 0; tg_j < tg_width; ++tg_j) {tree}
      for (int tg_width = {min(lanes, 16) // 2}; tg_width > 0; tg_width /= 2)
        for (int tg_j = 0; tg_j < tg_width; ++tg_j) {tree}
      {" ".join(f"{n} = tg_{n}[0];" for n in fields)}
    }}"""

    def _fold_group(self, fields: Fields, step: str, combine: str, cascade: bool, size: str) -> str:
        """Registers accumulate; of contiguous rows local memory combines. All members have left its arrays before they
        are filled again."""
        accumulators = _Accumulators(fields, 0, cascade)
        stretch = _RUN * (self.group if self._is_group else 1)
        text = accumulators.pieces(
            *self._bounds(size),
            stretch,
            lambda begin, end: self._members(begin, end, bind(step, A="tg_{}")),
            combine,
            lambda statements: f"{{ {statements} }}",
        )
        text = f"""{" ".join(f"{t} {n};" for n, t in accumulators.types.items())} {{
    {accumulators.declared} {accumulators.start} {text}
    {accumulators.whole(combine, lambda statements: f"{{ {statements} }}")}
    {" ".join(f"{n} = tg_{n};" for n in fields)} }}"""
        return f"{text}\n    {self.meet(accumulators.types, combine)}" if self._is_group else text

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

    def _scan_group(self, fields: Fields, types: Mapping[str, str], load: str, combine: str, then: str) -> str:
        """The row in stretches of a member for each element; `first_<field>` is what came before a stretch."""
        place = self._local(types)
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

    def _local(self, types: Mapping[str, str]) -> dict[str, str]:
        """Names of arrays in local memory where members meet, by field: those of a type serve again and again."""
        out: dict[str, str] = {}
        for name, ctype in types.items():
            taken = sum(types[other] == ctype for other in out)
            out[name] = array = f"tg_{ctype}_{taken}"
            self._head[array] = f"LOCAL {ctype} {array}[{self.group}];"
        return out


@dataclass(frozen=True)
class _Accumulators:
    """The variables ``tg_<field>`` of a fold, or arrays of `count` of them, whose element is ``tg_<field>[tg_j]``."""

    fields: Fields
    count: int
    cascade: bool

    @property
    def types(self) -> dict[str, str]:
        return {name: value_ctype(type_) for name, (type_, _) in self.fields.items()}

    @property
    def _at(self) -> str:
        return "[tg_j]" if self.count else ""

    @property
    def declared(self) -> str:
        size = f"[{self.count}]" if self.count else ""
        kinds = ("", "_aside") if self.cascade else ("",)
        variables = " ".join(f"{t} tg_{n}{kind}{size};" for kind in kinds for n, t in self.types.items())
        return f"{variables} {'long tg_steps = 0;' if self.cascade else ''}"

    def _reset(self, kind: str = "") -> str:
        return " ".join(f"tg_{n}{kind}{self._at} = {identity};" for n, (_, identity) in self.fields.items())

    @property
    def start(self) -> str:
        return f"{self._reset()} {self._reset('_aside') if self.cascade else ''}"

    def pieces(
        self,
        begin: str,
        end: str,
        stretch: int,
        loop: Callable[[str, str], str],
        combine: str,
        every: Callable[[str], str],
    ) -> str:
        """The loop over a range in pieces of `stretch` elements; so many later what is accumulated is put aside."""
        if not self.cascade:
            return loop(begin, end)
        put = bind(combine, A=f"tg_{{}}_aside{self._at}", B=f"tg_{{}}{self._at}")
        return f"""for (long tg_piece = {begin}; tg_piece < {end}; tg_piece += {stretch}) {{
        const long tg_stop = {end} - tg_piece < {stretch} ? {end} : tg_piece + {stretch};
        {loop("tg_piece", "tg_stop")}
        tg_steps += tg_stop - tg_piece;
        if (tg_steps >= {stretch}) {{ tg_steps = 0; {every(f"{{ {put} }} {self._reset()}")} }}
      }}"""

    def whole(self, combine: str, every: Callable[[str], str]) -> str:
        """Adds what was put aside."""
        put = bind(combine, A=f"tg_{{}}{self._at}", B=f"tg_{{}}_aside{self._at}")
        return every(put) if self.cascade else ""


def _tree(count: int, lanes: int, combine: str, types: Mapping[str, str]) -> str:
    """Takes the accumulators in arrays of `count` elements, treated `lanes` at once, into the first."""
    vectors = [
        each_lane(lanes, bind(combine, A="tg_{}[tg_j]", B=f"tg_{{}}[tg_j + {w}]"), place, types)
        for w in (count >> k for k in range(1, (count // lanes).bit_length()))
        for place in range(0, w, lanes)
    ]
    return " ".join([*vectors, fold_lanes(lanes, lambda a, b: bind(combine, A=a, B=b), types)])


def bind(text: str, **accumulators: str | Mapping[str, str]) -> str:
    """Statements with accumulators spelled out: `A="tg_{}[j]"` makes ``tg_sum[j]`` of ``A.sum``."""
    for letter, spelled in accumulators.items():
        if isinstance(spelled, str):
            text = re.sub(rf"\b{letter}\.(\w+)", lambda m, s=spelled: s.format(m[1]), text)  # type: ignore[misc]
        else:
            text = re.sub(rf"\b{letter}\.(\w+)", lambda m, s=spelled: s[m[1]], text)  # type: ignore[misc]
    return text
