"""The innermost part of products by multiply-adds, for CPUs: a tile of sums that stays in registers while products are
added along k. `kernels.pairs` has the same for instructions that take pairs of bfloat16."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torchgraft.codegen.arithmetic import Arithmetic


@dataclass(frozen=True)
class Registers:
    """Sums of products, ``c<row>_<vector>``: `begin`, in a loop over k `add`, then `end`.

    Attributes:
        math: of the elements. Of complex ones the first half of the vectors are real parts, the other imaginary ones.
        rows, vectors: of the tile.
    """

    math: Arithmetic
    rows: int
    vectors: int

    def _row(self, row: int) -> list[str]:
        return [f"c{row}_{v}" for v in range(self.vectors)]

    @property
    def names(self) -> list[str]:
        """Of all sums, row by row."""
        return [name for row in range(self.rows) for name in self._row(row)]

    def begin(self) -> str:
        """Declares the sums, which are zero."""
        zeros = " ".join(f"{name} = {self.math.splat('0')};" for name in self.names)
        return f"{self.math.vector} {', '.join(self.names)};\n  {zeros}"

    def add(self, b: Callable[[int], str], *a: Callable[[int], str]) -> str:
        """Adds the products of a step along k.

        Args:
            b: the text of a vector of B.
            a: the text of a row's element of A; of complex ones of its real part, and of its imaginary one.
        """
        vector = self.math.vector
        loads = " ".join(f"const {vector} b{v} = {b(v)};" for v in range(self.vectors))
        return "\n".join([loads, *(self._add_row(row, [part(row) for part in a]) for row in range(self.rows))])

    def _add_row(self, row: int, parts: list[str]) -> str:
        math, names = self.math, self._row(row)
        if len(parts) == 1:
            updates = [f"{name} = {math.multiply_add('a', f'b{v}', name)};" for v, name in enumerate(names)]
            return f"{{ const {math.vector} a = {math.splat(parts[0])}; {' '.join(updates)} }}"
        n, updates = self.vectors // 2, []
        for factor, other in (("re", ("re", 0, n)), ("-im", ("im", n, 0))):
            for v in range(n):
                real, imaginary = names[v], names[n + v]
                updates += [
                    f"{real} = fma({factor}, b{v + other[1]}, {real});",
                    f"{imaginary} = fma({other[0]}, b{v + other[2]}, {imaginary});",
                ]
        real, imaginary = map(math.splat, parts)
        return f"{{ const {math.vector} re = {real}, im = {imaginary}; {' '.join(updates)} }}"

    def end(self, place: Callable[[int, int], str], fresh: str) -> str:
        """Puts the sums at their places in memory, or adds them to what is there unless `fresh`, a text."""
        places = [(place(row, v), name) for row in range(self.rows) for v, name in enumerate(self._row(row))]
        return f"""if ({fresh}) {{ {" ".join(f"{at} = {name};" for at, name in places)} }}
  else {{ {" ".join(f"{at} += {name};" for at, name in places)} }}"""
