"""Index expressions: as text of the kernel language, and as loops in place of divisions.

Inductor counts the elements of a kernel with one number for each of a few flattened dimensions ("trees"), from which
indices come by division and remainder. `Loops` makes of a tree the loops whose variables those indices are.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import sympy
from torch._inductor.codegen.simd import IterationRangesEntry, IterationRangesRoot
from torch._inductor.utils import sympy_index_symbol
from torch._inductor.virtualized import V
from torch.utils._sympy.functions import FloorDiv, ModularIndexing
from torch.utils._sympy.printers import ExprPrinter

__all__ = ["Loop", "Loops", "divisions", "printed"]


class _Printer(ExprPrinter):
    """Expressions over int64 as C. Divisions round towards minus infinity, as Python's."""

    def _arguments(self, expr: sympy.Expr) -> list[str]:
        return [self._print(each) for each in expr.args]

    def _print_Integer(self, expr: sympy.Integer) -> str:
        value = int(expr)
        if value == -(1 << 63):
            return "LONG_MIN"
        return f"{value}L" if abs(value) >= 1 << 31 else str(value)

    def _print_Float(self, expr: sympy.Float) -> str:
        return str(int(expr)) if expr.is_integer else repr(float(expr))

    def _print_Rational(self, expr: sympy.Rational) -> str:
        return f"((double){expr.p} / {expr.q})"

    def _print_FloorDiv(self, expr: sympy.Expr) -> str:
        x, divisor = self._arguments(expr)
        if all(each.is_nonnegative for each in expr.args):
            return f"(({x}) / ({divisor}))"
        return f"tg_div_floor_i64({x}, {divisor})"

    def _print_ModularIndexing(self, expr: sympy.Expr) -> str:
        base, divisor, modulus = expr.args
        quotient = self._print(base if divisor == 1 else FloorDiv(base, divisor))
        return self._remainder(quotient, self._print(modulus), bool(base.is_nonnegative))

    def _print_PythonMod(self, expr: sympy.Expr) -> str:
        x, modulus = self._arguments(expr)
        return self._remainder(x, modulus, all(each.is_nonnegative for each in expr.args))

    def _print_Mod(self, expr: sympy.Expr) -> str:
        return self._print_PythonMod(expr)

    @staticmethod
    def _remainder(x: str, modulus: str, nonnegative: bool) -> str:
        return f"(({x}) % ({modulus}))" if nonnegative else f"tg_remainder_i64({x}, {modulus})"

    def _print_CleanDiv(self, expr: sympy.Expr) -> str:
        x, divisor = self._arguments(expr)
        return f"(({x}) / ({divisor}))"

    def _folded(self, expr: sympy.Expr, function: str) -> str:
        ctype = "long" if expr.is_integer else "double"
        first, *others = (f"({ctype})({each})" for each in self._arguments(expr))
        for other in others:
            first = f"{function}({first}, {other})"
        return first

    def _print_Min(self, expr: sympy.Expr) -> str:
        return self._folded(expr, "min")

    def _print_Max(self, expr: sympy.Expr) -> str:
        return self._folded(expr, "max")

    def _print_Abs(self, expr: sympy.Expr) -> str:
        (x,) = self._arguments(expr)
        return f"(({x}) < 0 ? -({x}) : ({x}))"

    def _print_Where(self, expr: sympy.Expr) -> str:
        condition, a, b = self._arguments(expr)
        return f"(({condition}) ? ({a}) : ({b}))"

    def _print_Piecewise(self, expr: sympy.Expr) -> str:
        text = "0"
        for value, condition in reversed(expr.args):
            text = f"(({self._print(condition)}) ? ({self._print(value)}) : ({text}))"
        return text

    def _print_And(self, expr: sympy.Expr) -> str:
        return "(" + " && ".join(f"({each})" for each in self._arguments(expr)) + ")"

    def _print_Or(self, expr: sympy.Expr) -> str:
        return "(" + " || ".join(f"({each})" for each in self._arguments(expr)) + ")"

    def _print_Not(self, expr: sympy.Expr) -> str:
        return f"(!({self._print(expr.args[0])}))"

    def _print_ToFloat(self, expr: sympy.Expr) -> str:
        return f"((double)({self._print(expr.args[0])}))"

    def _print_TruncToInt(self, expr: sympy.Expr) -> str:
        return f"((long)({self._print(expr.args[0])}))"

    def _rounded(self, function: str, expr: sympy.Expr) -> str:
        return f"((long){function}((double)({self._print(expr.args[0])})))"

    def _print_FloorToInt(self, expr: sympy.Expr) -> str:
        return self._rounded("floor", expr)

    def _print_floor(self, expr: sympy.Expr) -> str:
        return self._rounded("floor", expr)

    def _print_CeilToInt(self, expr: sympy.Expr) -> str:
        return self._rounded("ceil", expr)

    def _print_ceiling(self, expr: sympy.Expr) -> str:
        return self._rounded("ceil", expr)

    def _print_RoundToInt(self, expr: sympy.Expr) -> str:
        return self._rounded("rint", expr)

    def _print_RoundDecimal(self, expr: sympy.Expr) -> str:
        number, digits = expr.args
        scaled, scale = f"(double)({self._print(number)})", f"1e{abs(int(digits))}"
        up, down = ("*", "/") if int(digits) >= 0 else ("/", "*")
        return f"(rint({scaled} {up} {scale}) {down} {scale})"

    def _print_TruncToFloat(self, expr: sympy.Expr) -> str:
        return f"trunc((double)({self._print(expr.args[0])}))"

    def _print_IntTrueDiv(self, expr: sympy.Expr) -> str:
        x, divisor = self._arguments(expr)
        return f"((double)({x}) / (double)({divisor}))"

    def _print_FloatTrueDiv(self, expr: sympy.Expr) -> str:
        return self._print_IntTrueDiv(expr)

    def _print_FloatPow(self, expr: sympy.Expr) -> str:
        x, power = self._arguments(expr)
        return f"pow((double)({x}), (double)({power}))"

    def _print_PowByNatural(self, expr: sympy.Expr) -> str:
        x, power = self._arguments(expr)
        return f"tg_ipow_i64({x}, {power})"

    def _print_Infinity(self, expr: sympy.Expr) -> str:
        return "INFINITY"

    def _print_NegativeInfinity(self, expr: sympy.Expr) -> str:
        return "-INFINITY"

    def _print_NaN(self, expr: sympy.Expr) -> str:
        return "NAN"

    def _print_BooleanTrue(self, expr: sympy.Expr) -> str:
        return "1"

    def _print_BooleanFalse(self, expr: sympy.Expr) -> str:
        return "0"

    def __getattr__(self, name: str) -> Any:
        """sympy's functions of one number."""
        prefix = "_print_OpaqueUnaryFn_"
        if not name.startswith(prefix):
            raise AttributeError(name)
        return lambda expr: f"{name.removeprefix(prefix)}((double)({self._print(expr.args[0])}))"


def printed(expr: sympy.Expr) -> str:
    """The text of an index expression."""
    return str(_Printer().doprint(expr))


@dataclass(frozen=True)
class Loop:
    """A loop over 0 ... size - 1.

    Attributes:
        variable: its name, as a symbol.
        size: how many iterations it has.
        stride: how many elements of the tree a step goes on.
    """

    variable: sympy.Symbol
    size: sympy.Expr
    stride: sympy.Expr


@dataclass
class Loops:
    """The loops that a tree becomes, innermost first."""

    tree: IterationRangesRoot
    loops: list[Loop] = field(default_factory=list)

    @staticmethod
    def of(
        tree: IterationRangesRoot, used: Iterable[IterationRangesEntry], first: int, divided: Iterable[sympy.Expr] = ()
    ) -> Loops:
        """The loops by which the tree's indices are sums of loop variables.

        Each index is a digit of the element's number: (number // divisor) % length. Where all divisors and their
        products with the lengths are a chain, each dividing the next, the loops are the steps of the chain. An index
        that does not fit into the chain is left to `index`, which makes it by division.

        Args:
            tree: the flattened dimension.
            used: its indices that occur.
            first: the number of the first loop variable.
            divided: where loops are cut, too, if that fits into the chain, as `divisions` gives it.
        """
        ones = sympy.S.One
        cuts: list[sympy.Expr] = [ones, tree.numel]
        for entry in used:
            for cut in (entry.divisor, entry.divisor * entry.length):
                if not any(_equal(cut, known) for known in cuts):
                    cuts.append(cut)
        chain = [ones]
        for cut in sorted(cuts[2:], key=_hint):
            if _divides(chain[-1], cut) and _divides(cut, tree.numel):
                chain.append(cut)
        if not _equal(chain[-1], tree.numel):
            chain.append(tree.numel)
        for cut in divided:
            at = next((k for k, high in enumerate(chain) if _hint(high) >= _hint(cut)), 0)
            if at and _hint(chain[at]) > _hint(cut) and _divides(chain[at - 1], cut) and _divides(cut, chain[at]):
                chain.insert(at, cut)
        loops = Loops(tree)
        for k, (low, high) in enumerate(itertools.pairwise(chain)):
            loops.loops.append(Loop(sympy_index_symbol(f"q{first + k}"), _quotient(high, low), low))
        return loops

    @property
    def number(self) -> sympy.Expr:
        """The number of an element in the tree."""
        return sympy.Add(*(loop.variable * loop.stride for loop in self.loops))

    def index(self, entry: IterationRangesEntry) -> sympy.Expr:
        """An index of the tree as an expression of the loops' variables."""
        end = entry.divisor * entry.length
        inside: list[sympy.Expr] = []
        low = high = False
        for loop in self.loops:
            low = low or _equal(loop.stride, entry.divisor)
            if low and not high and not _equal(loop.stride, end):
                inside.append(loop.variable * _quotient(loop.stride, entry.divisor))
            high = high or _equal(loop.stride * loop.size, end)
            if high:
                break
        if _equal(entry.length, sympy.S.One):
            return sympy.S.Zero
        if low and high:
            return sympy.Add(*inside)
        if _equal(end, self.tree.numel):
            return FloorDiv(self.number, entry.divisor)
        return ModularIndexing(self.number, entry.divisor, entry.length)


def divisions(index: sympy.Expr, entries: Iterable[IterationRangesEntry]) -> Iterator[sympy.Expr]:
    """By what an index divides indices of a tree, in elements of the tree: x // 3 and x % 3, where pixels are shuffled
    by 3, are variables of loops if that over x is cut."""
    strides = {entry.symbol(): entry.divisor for entry in entries}
    for quotient in index.atoms(FloorDiv, ModularIndexing):
        stride = strides.get(quotient.args[0])
        if stride is not None:
            yield from itertools.accumulate(quotient.args[1:], sympy.Mul, initial=stride)


def _equal(a: sympy.Expr, b: sympy.Expr) -> bool:
    return bool(V.graph.sizevars.statically_known_equals(a, b))


def _divides(a: sympy.Expr, b: sympy.Expr) -> bool:
    return _equal(a, b) or bool(V.graph.sizevars.statically_known_multiple_of(b, a))


def _quotient(a: sympy.Expr, b: sympy.Expr) -> sympy.Expr:
    """a / b, which is known to be whole."""
    exact = sympy.cancel(a / b)
    numerator, denominator = exact.as_numer_denom()
    return numerator if denominator == 1 else FloorDiv(a, b)


def _hint(size: sympy.Expr) -> int:
    return int(V.graph.sizevars.optimization_hint(size, fallback=1 << 20))
