"""The work-items that share a row, and what they do together."""

from __future__ import annotations

from collections.abc import Mapping

from torchgraft.codegen.kernel import Kernel, Parameter
from torchgraft.codegen.teams.accumulators import Fields
from torchgraft.codegen.teams.columns import Columns
from torchgraft.codegen.teams.few import Few
from torchgraft.codegen.teams.group import Group
from torchgraft.codegen.teams.layout import Layout
from torchgraft.codegen.teams.rendering import Rendering
from torchgraft.codegen.teams.row import Row
from torchgraft.codegen.teams.runs import Runs
from torchgraft.codegen.teams.work_item import WorkItem
from torchgraft.codegen.types import value_ctype

#: Columns that a group of the CPU form treats side by side, at most.
WIDTH = 256


def _rendering(layout: Layout) -> type[Rendering]:
    if layout.form == "gpu":
        return WorkItem if layout.across else Group
    if layout.across:
        return Columns
    if layout.runs:
        return Runs
    return Few if layout.unrolled else Row


class Team:
    """The work-items that share a row of `size` elements, and the text of what they do with it.

    Its methods return statements, which `kernel` puts into the loop over rows. What they are given is written as for
    one row and one element: ``c`` is the element's place in the row, `at` its place in memory, `row` the row's number.
    Results of `sum`, `max`, `fold`, `let` and `var` are known by their names in the statements of everything that is
    called later; ValueError, if statements of one column have named them before.

    Of rows across memory, those that a CPU treats at once have the same ``o``, the number in front of their elements.
    Statements that are given to no method may use that, but nothing that belongs to one row: loops of an author's own
    around `leader`, for rows that are made of something else than a tensor's elements.

    Args:
        layout: of the rows; it decides on the rendering.
        group: work-items of a group in the GPU form, a power of two; 0: as the layout says.
        width: columns that the CPU form treats side by side, at most.
        short: whether there are few elements, so that sums put nothing aside.
    """

    def __init__(self, layout: Layout, group: int = 0, width: int = WIDTH, short: bool = False) -> None:
        self.layout, self.group, self.width, self.short = layout, group or layout.group, width, short
        self._rendering = _rendering(layout)(layout, self.group, width)

    @property
    def at(self) -> str:
        """Where element c lies in tensors of the rows' shape."""
        return self._rendering.at

    @property
    def row(self) -> str:
        """The row's number."""
        return self._rendering.row

    @property
    def column(self) -> str:
        """Of rows across memory or of runs, the number of the row among those with the same ``o``."""
        return self._rendering.column

    # ---- what a team does ----

    def each(self, statements: str, vectorize: bool = True, size: str = "size") -> str:
        """For each element of the row, which has no runs, or each of `size` numbers, in any order."""
        return self._rendering.each(statements, vectorize, size)

    def leader(self, statements: str) -> str:
        """Once for the row."""
        return self._rendering.leader(statements)

    def let(self, name: str, type_: str, value: str) -> str:
        """Gives a value of the row a name."""
        return self._rendering.let(name, type_, value)

    def let_of_many(self, name: str, type_: str, value: str) -> str:
        """The same, once in a kernel and as a statement of its own there, where the value takes a function: of
        contiguous rows a CPU finds it for many of them at once, in vectors. Statements before and after it share
        nothing but what `sum`, `max`, `fold` and `let` have found before."""
        return self._rendering.let_of_many(name, type_, value)

    def var(self, name: str, type_: str, value: str = "") -> str:
        """The same for a value that `leader` may change, of rows across memory; it may be left to `leader` to set it
        first."""
        return self._rendering.var(name, type_, value)

    @property
    def sync(self) -> str:
        """Stands where a member may read what another has written to memory, or write what another may still read."""
        return self._rendering.sync

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
        return self._rendering.fold(fields, step, combine, cascade, size, alone)

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
        return self._rendering.scan(fields, load, combine, then, ahead)

    def meet(self, types: Mapping[str, str], combine: str) -> str:
        """Combines what the members of a group have in variables of their own; each has the whole afterwards.

        Args:
            types: name -> C type of each variable.
            combine: as of `fold`.
        """
        return self._rendering.meet(types, combine)

    @property
    def declarations(self) -> str:
        """What the head of a kernel must declare for the statements so far, where `kernel` does not make it."""
        return " ".join(self._rendering.head.values())

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
        return self._rendering.kernel(name, params, statements, helpers, dims)
