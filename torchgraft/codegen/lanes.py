"""Loops over the lanes of vectors, which are elements of arrays that a compiler keeps in registers.

Clang makes vectors of such a loop. A compiler that unrolls it before (Intel's for OpenCL does) may make none: there,
and in languages that have operators for vectors, the same is said of whole vectors.
"""

from __future__ import annotations

import re

#: Lanes that what is left of a row goes to.
FEW_LANES = 4


def each_lane(lanes: int, statements: str, place: int = 0, unroll: bool = False, scalar: str = "") -> str:
    """Statements for so many lanes, ``tg_j``, from a place on.

    Args:
        lanes: how many.
        statements: of one lane, whose variables are ``tg_<name>[tg_j]``, and whose element is ``c``.
        place: number of the first.
        unroll: there had better be no loop.
        scalar: the type of all variables, where it is one.
    """
    vectorize = "VECTORIZE_ONCE" if "tg_exp" in statements else "VECTORIZE"
    hint = "UNROLL" if unroll or lanes <= FEW_LANES else vectorize
    if place == 0:
        loop = f"{hint} for (int tg_j = 0; tg_j < {lanes}; ++tg_j) {{ {statements} }}"
    else:
        loop = f"{hint} for (int tg_i = 0; tg_i < {lanes}; ++tg_i) {{ const int tg_j = tg_i + {place}; {statements} }}"
    vectors = as_vectors(lanes, statements, place, scalar) if lanes > FEW_LANES else None
    return loop if vectors is None else f"\n#ifdef TG_VECTOR_OPERATORS\n{{ {vectors} }}\n#else\n{loop}\n#endif\n"


_FIRST = "const long c = tg_first + tg_j;"
_LANE = re.compile(r"\b(tg_\w+)\[tg_j(?: \+ (\d+))?\]")
_LOADED_AS = {"float": ("f32", "f16", "bf16"), "double": ("f64",)}
# Of neighbours for each lane, or of one place for all.
_PLACE = r"(\w+), ((?:[\w ]+[+*] )*)(\w+)"
_LOAD = re.compile(rf"\bload_(\w+)\({_PLACE}\)")
_STORE = re.compile(rf"\bstore_(\w+)\({_PLACE}, ")
# A function of the library's that dialects with such operators have of vectors, too.
_FUNCTION = re.compile(r"\b(tg_exp_f32)\(")
_TYPE = re.compile(r"\b(?:u?(?:char|short|int|long)|bool|half|float|double)\d*\b")
_OTHER_CALL = re.compile(r"\b(?!fabs\b|fma\b)\w+\(|\bif\b")
# A comparison of vectors is -1 where it holds, so it may only choose, and between values of their type.
_COMPARISON = re.compile(r"[<>!]|[=!]=|&&|\|\|")
_NUMBERS = re.compile(r"\?[\s(]*-?[\d.]+f?[\s)]*:[\s(]*-?[\d.]+f?\b")


def as_vectors(lanes: int, statements: str, place: int, scalar: str) -> str | None:
    """The same as statements of vectors; None where they would not be the same, or it is not certain that they are.
    Certain are loads from neighbouring places, arithmetic of one floating-point type, and choices by comparisons.
    """
    text = statements.replace(_FIRST, "")
    types = _LOADED_AS.get(scalar, ())
    rest = _LOAD.sub(lambda load: "" if _is_alike(load, types) else load[0], _FUNCTION.sub("(", text))
    rest = _STORE.sub(lambda store: "(" if _is_alike(store, types) and store[4] == "c" else store[0], rest)
    if scalar not in _LOADED_AS or _TYPE.search(re.sub(rf"\bconst {scalar} (?=\w+ =)|\({scalar}\)", "", rest)):
        return None
    if _OTHER_CALL.search(rest) or _NUMBERS.search(rest) or re.search(r"\bc\b|\btg_j\b", _LANE.sub("", rest)):
        return None
    if any(_COMPARISON.search(statement.rpartition("?")[2]) for statement in rest.split(";")):
        return None
    vector = f"{scalar}{lanes}"
    text = _LANE.sub(lambda lane: f"(*({vector}u*)({lane[1]} + {place + int(lane[2] or 0)}))", text)
    text = _LOAD.sub(
        lambda load: f"load_{load[1]}x{lanes}({load[2]}, {load[3]}c)" if load[4] == "c" else load[0],
        text,
    )
    text = _STORE.sub(lambda store: f"store_{store[1]}x{lanes}({store[2]}, {store[3]}c, ", text)
    text = _FUNCTION.sub(lambda function: f"{function[1]}x{lanes}(", text)
    text = text.replace(f"const {scalar} ", f"const {vector} ").replace(f"({scalar})", "")
    return (f"const long c = tg_first + {place}; " if _FIRST in statements else "") + text


def _is_alike(access: re.Match[str], types: tuple[str, ...]) -> bool:
    """Whether a load or a store has neighbouring places for the lanes, or the same for all."""
    type_, _, before, last = access.groups()
    steps = re.search(r"\bc\b", before) is None and (last != "c" or not before.rstrip().endswith("*"))
    return type_ in types and steps
