"""Loops over the lanes of vectors, which are elements of arrays that a compiler keeps in registers.

Clang makes vectors of such a loop. A compiler that unrolls it before (Intel's for OpenCL does) may make none: there
(``TG_NO_VECTORS_OF_LOOPS``) the same is said of whole vectors. So it is wherever a language has operators for vectors
(``TG_VECTOR_OPERATORS``) of lanes that are combined with each other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterator, Mapping, Sequence

#: Lanes that what is left of a row goes to.
FEW_LANES = 4


def each_lane(lanes: int, statements: str, place: int = 0, types: Mapping[str, str] | None = None) -> str:
    """Statements for so many lanes, ``tg_j``, from a place on.

    Args:
        lanes: how many.
        statements: of one lane, whose variables are ``tg_<name>[tg_j]``, and whose element is ``c``.
        place: number of the first.
        types: of the variables: name -> type of a lane.
    """
    vectorize = "VECTORIZE_ONCE" if "tg_exp" in statements else "VECTORIZE"
    hint = "UNROLL" if lanes <= FEW_LANES else vectorize
    if place == 0:
        loop = f"{hint} for (int tg_j = 0; tg_j < {lanes}; ++tg_j) {{ {statements} }}"
    else:
        loop = f"{hint} for (int tg_i = 0; tg_i < {lanes}; ++tg_i) {{ const int tg_j = tg_i + {place}; {statements} }}"
    vectors = as_vectors(lanes, statements, place, types or {}) if lanes > FEW_LANES else None
    return loop if vectors is None else f"\n#ifdef TG_NO_VECTORS_OF_LOOPS\n{{ {vectors} }}\n#else\n{loop}\n#endif\n"


def fold_lanes(lanes: int, combine: Callable[[str, str], str], types: Mapping[str, str]) -> str:
    """Statements that take the upper half of so many lanes into the lower one, and so on until the first has it all.

    Args:
        lanes: a power of two.
        combine: makes the statements that take a lane into another. It is given how their variables are spelled, with
            "{}" for the name.
        types: of the variables: name -> type of a lane.
    """
    widths = [lanes >> k for k in range(1, lanes.bit_length())]
    texts = {w: combine("tg_{}[tg_j]", f"tg_{{}}[tg_j + {w}]") for w in widths}
    loops = " ".join(f"UNROLL for (int tg_j = 0; tg_j < {w}; ++tg_j) {{ {text} }}" for w, text in texts.items())
    lines = [f"const {t}{lanes} tg_{n}_of_{lanes} = *({t}{lanes}u*)tg_{n};" for n, t in types.items()]
    for w in widths:
        # No parts of the arrays: Clang would take these apart, down to the lanes.
        text = (
            combine(f"tg_{{}}_of_{w}", f"tg_{{}}_of_{2 * w}.hi")
            if w == 1
            else as_vectors(w, texts[w], 0, types, _halves)
        )
        if text is None or _FUNCTION.search(text):
            return loops
        vector = str(w) if w > 1 else ""
        lines += [f"{t}{vector} tg_{n}_of_{w} = tg_{n}_of_{2 * w}.lo;" for n, t in types.items()] + [f"{{ {text} }}"]
    lines += [f"tg_{n}[0] = tg_{n}_of_1;" for n in types]
    return f"\n#ifdef TG_VECTOR_OPERATORS\n{{ {' '.join(lines)} }}\n#else\n{loops}\n#endif\n"


def _places(name: str, type_: str, lanes: int, place: int) -> str:
    """The lanes of a variable from a place on, in its array."""
    return f"(*({type_}{lanes}u*)(tg_{name} + {place}))"


def _halves(name: str, type_: str, lanes: int, place: int) -> str:
    """The same where two vectors are the halves of one."""
    return f"tg_{name}_of_{2 * lanes}.hi" if place else f"tg_{name}_of_{lanes}"


_FIRST = "const long c = tg_first + tg_j;"
_LANE = re.compile(r"\btg_(\w+)\[tg_j(?: \+ (\d+))?\]")
_LOADED_AS = {"float": ("f32", "f16", "bf16"), "double": ("f64",)}
_INTEGERS = {"float": "int", "double": "long"}  # as wide: what a comparison of vectors gives
# Of neighbours for each lane, or of one place for all.
_PLACE = r"(\w+), ((?:[\w ]+[+*] )*)(\w+)"
_LOAD = re.compile(rf"\bload_(\w+)\({_PLACE}\)")
_STORE = re.compile(rf"\bstore_(\w+)\({_PLACE}, ")
# A function of the library's that dialects with such operators have of vectors, too.
_FUNCTION = re.compile(r"\b(tg_exp_f32)(?:x\d+)?\(")
_TYPE = re.compile(r"\b(?:u?(?:char|short|int|long)|bool|half|float|double)\d*\b")
_OTHER_CALL = re.compile(r"\b(?!fabs\b|fma\b)\w+\(|\bif\b")
# A comparison of vectors is -1 where it holds, so it may only choose, and between values of their type.
_COMPARISON = re.compile(r"[<>!]|[=!]=|&&|\|\|")
_NUMBERS = re.compile(r"\?[\s(]*-?[\d.]+f?[\s)]*:[\s(]*-?[\d.]+f?\b")
_TRUTH = re.compile(r"\bconst int (\w+) = ([^;?]*);")
_TOKEN = re.compile(r"[<>!=]=|&&|\|\||\S|\s+")
_INDEX = re.compile(r"\bconst (int|long) (\w+) = \((?:int|long)\)c;")


def as_vectors(
    lanes: int,
    statements: str,
    place: int,
    types: Mapping[str, str],
    spelled: Callable[[str, str, int, int], str] = _places,
) -> str | None:
    """The same as statements of vectors; None where they would not be the same, or it is not certain that they are.
    Certain are loads from neighbouring places, arithmetic of one floating-point type, choices by comparisons, and
    the number of an element, as an integer that is as wide.
    """
    scalar = next((t for t in types.values() if t in _LOADED_AS), "")
    integer = _INTEGERS.get(scalar, "")
    if not scalar or not {*types.values()} <= {scalar, integer}:
        return None
    text = statements.replace(_FIRST, "")
    booleans = dict(_TRUTH.findall(_INDEX.sub("", text)))
    if not all(_is_truth(condition, booleans) for condition in [*booleans.values(), *_conditions(text)]):
        return None
    rest = _without_integers(_without_booleans(text), types, integer)
    rest = _LOAD.sub(lambda load: "" if _is_alike(load, scalar) else load[0], _FUNCTION.sub("(", rest))
    rest = _STORE.sub(lambda store: "(" if _is_alike(store, scalar) and store[4] == "c" else store[0], rest)
    if _TYPE.search(re.sub(rf"\bconst {scalar} (?=\w+ =)|\({scalar}\)", "", rest)):
        return None
    if _OTHER_CALL.search(rest) or _NUMBERS.search(rest) or re.search(r"\bc\b|\btg_j\b", _LANE.sub("", rest)):
        return None
    if any(_COMPARISON.search(statement.rpartition("?")[2]) for statement in rest.split(";")):
        return None
    if any(lane[1] not in types for lane in _LANE.finditer(rest)):
        return None
    vector = f"{scalar}{lanes}"
    text = _LANE.sub(lambda lane: spelled(lane[1], types[lane[1]], lanes, place + int(lane[2] or 0)), text)
    text = _LOAD.sub(
        lambda load: f"load_{load[1]}x{lanes}({load[2]}, {load[3]}c)" if load[4] == "c" else load[0],
        text,
    )
    text = _STORE.sub(lambda store: f"store_{store[1]}x{lanes}({store[2]}, {store[3]}c, ", text)
    text = _FUNCTION.sub(lambda function: f"{function[1]}x{lanes}(", text)
    numbers = f"MAKE_{integer}{lanes}({', '.join(map(str, range(lanes)))})"
    text = _INDEX.sub(rf"const {integer}{lanes} \2 = ({integer})c + {numbers};", text)
    text = _TRUTH.sub(rf"const {integer}{lanes} \1 = \2;", text)
    text = text.replace(f"const {scalar} ", f"const {vector} ").replace(f"({scalar})", "")
    return (f"const long c = tg_first + {place}; " if _FIRST in statements else "") + text


def _conditions(text: str) -> Iterator[str]:
    """What stands before each question mark."""
    tokens = _TOKEN.findall(text)
    for end in (n for n, token in enumerate(tokens) if token == "?"):
        depth, begin = 0, end
        while begin > 0 and (depth or tokens[begin - 1] not in ("(", "=", ";", ",", ":", "?", "{", "}")):
            begin -= 1
            depth += (tokens[begin] == ")") - (tokens[begin] == "(")
        yield "".join(tokens[begin:end])


def _is_truth(text: str, names: Container[str]) -> bool:
    """Whether a condition is made of comparisons, or the names of such, and of nothing that counts how many hold: of
    vectors a comparison that holds is -1, and a number is no condition."""
    text = text.strip()
    parts = _outside(text, ("&&", "||", "&", "|"))
    if len(parts) > 1:
        return all(_is_truth(part, names) for part in parts)
    if text.startswith("!"):
        return _is_truth(text[1:], names)
    if text.startswith("(") and text.endswith(")") and len(_outside(text, ("(",))) == 2:
        return _is_truth(text[1:-1], names)
    sides = _outside(text, ("<", ">", "<=", ">=", "==", "!="))
    return text in names or (len(sides) == 2 and not any(_COMPARISON.search(side) or "?" in side for side in sides))


def _outside(text: str, separators: Sequence[str]) -> list[str]:
    """A text's parts between separators that stand in no parentheses."""
    parts, depth = [""], 0
    for token in _TOKEN.findall(text):
        depth -= token == ")"
        if depth == 0 and token in separators:
            parts.append("")
        else:
            parts[-1] += token
        depth += token == "("
    return parts


def _without_integers(text: str, types: Mapping[str, str], integer: str) -> str:
    """Without comparisons of integers with each other and assignments of one to another, chosen or not."""
    indices = [index[2] for index in _INDEX.finditer(text) if index[1] == integer]
    arrays = [name for name, type_ in types.items() if type_ == integer]
    if not indices and not arrays:
        return text
    names = rf"(?:\btg_(?:{'|'.join(arrays) or '_'})\[tg_j(?: \+ \d+)?\]|\b(?:{'|'.join(indices) or '_'})\b)"
    text = _INDEX.sub(lambda index: "" if index[1] == integer else index[0], text)
    text = re.sub(rf"{names} (?:[<>]=?|[=!]=) (?:{names}|[A-Z_]+\b)", "tg < tg", text)
    text = re.sub(rf"{names} = ([^;?]* \? ){names} : {names};", r"tg = \1tg : tg;", text)
    text = re.sub(rf"{names} = (?:{names}|[A-Z_]+\b|-?\d+);", "", text)
    return f"{text} int;" if re.search(names, text) else text  # which is no type for others


def _without_booleans(text: str) -> str:
    """Without the statements that keep what a comparison says, where it is used for choices only."""
    for truth in [*_TRUTH.finditer(text)]:
        name, value = truth.groups()
        after = text.replace(truth[0], f"({value}) ? 0 : tg;")  # a choice by it: what it is made of is looked at, too
        if _COMPARISON.search(value) and not re.search(rf"\b{name}\b(?! \?)", after):
            text = after
    return text


def _is_alike(access: re.Match[str], scalar: str) -> bool:
    """Whether a load or a store has neighbouring places for the lanes, or the same for all."""
    type_, _, before, last = access.groups()
    steps = re.search(r"\bc\b", before) is None and (last != "c" or not before.rstrip().endswith("*"))
    return type_ in _LOADED_AS[scalar] and steps
