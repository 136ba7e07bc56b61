"""What Inductor's kinds of reductions do with an element, and with two partial results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torchgraft.codegen.types import BY_NAME, largest, least, value_ctype
from torchgraft.inductor.operations import literal

__all__ = ["Reduction", "reduction"]


@dataclass(frozen=True)
class Reduction:
    """A kind of reduction over values of certain types.

    Attributes:
        fields: name -> element type and first value of what is accumulated; the results, in their order.
        step: statements that take the element ``V0``, ``V1``, ..., whose place in the row is ``INDEX``, into ``A``.
        combine: statements that take the partial result ``B``, of elements behind those of ``A`` or between them,
            into ``A``.
        rounds: whether what comes last is rounded off beside much that was accumulated before.
    """

    fields: Mapping[str, tuple[str, str]]
    step: str
    combine: str
    rounds: bool = False


def reduction(kind: str, type_: str, result: str) -> Reduction:
    """A kind of reduction.

    Args:
        kind: as Inductor calls it.
        type_: element type that the elements' values are of.
        result: element type of the result's values.

    Raises:
        NotImplementedError: there is no such kind here.
    """
    if kind in ("max", "min"):
        return _extreme(kind, type_)
    if kind == "fmax":
        return _largest_number(type_)
    if kind in ("argmax", "argmin"):
        return _place(kind.removeprefix("arg"), type_)
    if kind in _SIMPLE:
        identity, step = _SIMPLE[kind]
        first = literal(identity, result)
        rounds = kind == "sum" and BY_NAME[result].is_float
        return Reduction({"v": (result, first)}, step.replace("VALUE", "V0"), step.replace("VALUE", "B.v"), rounds)
    if kind in ("welford_reduce", "welford_combine"):
        return _welford(kind, result)
    if kind == "online_softmax_reduce":
        return _softmax(type_)
    raise NotImplementedError(f"reductions of kind {kind}")


_SIMPLE = {
    "sum": (0, "A.v += VALUE;"),
    "prod": (1, "A.v *= VALUE;"),
    "any": (0, "A.v |= (VALUE) != 0;"),
    "xor_sum": (0, "A.v ^= VALUE;"),
}


def _first(kind: str, type_: str) -> str:
    """What every value is at least as large (small) as."""
    return (least if kind == "max" else largest)(type_)


def _extreme(kind: str, type_: str) -> Reduction:
    """NaN wins."""
    sign = ">" if kind == "max" else "<"
    nan = " || {0} != {0}" if BY_NAME[type_].is_float else ""
    text = "A.v = {0} " + sign + " A.v" + nan + " ? {0} : A.v;"
    return Reduction({"v": (type_, _first(kind, type_))}, text.format("V0"), text.format("B.v"))


def _largest_number(type_: str) -> Reduction:
    """NaN loses, as in C's fmax."""
    text = "A.v = {0} > A.v ? {0} : A.v;"
    return Reduction({"v": (type_, _first("max", type_))}, text.format("V0"), text.format("B.v"))


def _place(kind: str, type_: str) -> Reduction:
    """The first of the largest (least) values; the first NaN, if there is one."""
    sign = ">" if kind == "max" else "<"
    same, better = "{0} == A.v", "{0} " + sign + " A.v"
    if BY_NAME[type_].is_float:
        same = "(({0} == A.v) || ({0} != {0} && A.v != A.v))"
        better = "(({0} " + sign + " A.v) || ({0} != {0} && A.v == A.v))"
    text = "if (" + better + " || (" + same + " && {1} < A.i)) {{ A.v = {0}; A.i = {1}; }}"
    fields = {"i": ("i64", largest("i64")), "v": (type_, _first(kind, type_))}
    return Reduction(fields, text.format("V0", "INDEX"), text.format("B.v", "B.i"))


def _welford(kind: str, type_: str) -> Reduction:
    """Mean, sum of squared distances from it, and weight (Welford; Chan, Golub and LeVeque for pairs)."""
    t = value_ctype(type_)
    fields = {"mean": (type_, "0"), "m2": (type_, "0"), "weight": (type_, "0")}
    combine = (
        f"{{ const {t} tg_w = A.weight + {{2}}, tg_d = {{0}} - A.mean, tg_f = tg_w == 0 ? 0 : {{2}} / tg_w;"
        " A.m2 += {1} + tg_d * tg_d * A.weight * tg_f; A.mean += tg_d * tg_f; A.weight = tg_w; }"
    )

    def combined(mean: str, m2: str, weight: str) -> str:
        return combine.replace("{0}", mean).replace("{1}", m2).replace("{2}", weight)

    step = combined("V0", "V1", "V2")
    if kind == "welford_reduce":
        step = (
            f"{{ const {t} tg_d = V0 - A.mean; A.weight += 1; A.mean += tg_d / A.weight;"
            " A.m2 += tg_d * (V0 - A.mean); }"
        )
    return Reduction(fields, step, combined("B.mean", "B.m2", "B.weight").replace("{{", "{"), rounds=True)


def _softmax(type_: str) -> Reduction:
    """The largest value, and the sum of the exponential functions of the distances from it."""
    fields = {"max": (type_, "-INFINITY"), "sum": (type_, "0")}
    t, exp = value_ctype(type_), f"tg_exp_{type_}"
    text = (
        f"{{ const {t} tg_m = VALUE > A.max || VALUE != VALUE ? VALUE : A.max;"
        f" A.sum = tg_m == -INFINITY ? 0 : A.sum * {exp}(A.max - tg_m) + SUM * {exp}(VALUE - tg_m); A.max = tg_m; }}"
    )
    step = text.replace("VALUE", "V0").replace("SUM", "1")
    return Reduction(fields, step, text.replace("VALUE", "B.max").replace("SUM", "B.sum"), rounds=True)
