"""The loop over elements that have nothing to do with each other; rows whose elements do are for a
`torchgraft.codegen.teams.Team`. Both render the two forms of a kernel from one text:

* The CPU form has few groups of a single work-item, which takes a *chunk* of the elements or rows in a plain loop that
  the compiler makes vectors of.
* The GPU form has a work-item for an element, and a group for a row.

How many groups there are, and how large a chunk is, belongs to the launch: `PlanBuilder.walk` and `PlanBuilder.rows`
give what `PlanBuilder.launch` wants, along with the values of the parameters that a loop adds to its kernel.
"""

from __future__ import annotations

from dataclasses import dataclass

from torchgraft.codegen.kernel import Kernel, Parameter, Value
from torchgraft.codegen.types import value_ctype

#: Work-items of a group in the GPU form.
GROUP = 256
#: The same where each has much to do: a row of its own, say.
FEW = 64


@dataclass(frozen=True)
class Walk:
    """A loop over `n` elements, which are partitioned into groups.

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
            vector, too, predicated.
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
        to traverse it once. ``continue`` leaves a row out."""
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
