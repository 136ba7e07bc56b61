"""Elements of Triton's types in the kernel language, and what ops do to one element."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Sequence

from torchgraft.codegen.pointwise import expression
from torchgraft.codegen.types import BY_NAME, value_ctype
from torchgraft.triton.ir import Op
from torchgraft.triton.refused import Refused

__all__ = [
    "CTYPES", "KEPT", "KEPT_SIZES", "SIZES", "bits", "convert", "elementwise", "is_elementwise", "literal", "of_bits",
    "operand_types", "stored",
]  # fmt: skip

_SAME = ("i8", "i16", "i32", "i64", "f16", "bf16", "f32", "f64")  # as the kernel language has them
#: What an element is in a register. 16-bit floats are float32 that every op of theirs rounds.
CTYPES = {**{name: value_ctype(name) for name in _SAME}, "i1": "int", "index": "long"}
#: What it is in an array of a work-item's.
KEPT = {**CTYPES, "i1": "uchar"}
SIZES = {**{name: BY_NAME[name].size for name in _SAME}, "i1": 1, "index": 8}
KEPT_SIZES = {**SIZES, "f16": 4, "bf16": 4}
_UNSIGNED = {"i1": "uint", "i8": "uchar", "i16": "ushort", "i32": "uint", "i64": "ulong", "index": "ulong"}
_FLOATS = ("f16", "bf16", "f32", "f64")


def stored(element: str, op: Op | None = None) -> str:
    """The kernel language's name of an element in memory."""
    if element not in SIZES or element == "index":
        raise Refused(f"elements of type {element}", op)
    return "b8" if element == "i1" else element


def literal(text: str, element: str) -> str:
    """A number of MLIR's."""
    if element in _FLOATS:
        value = _float(text, element)
        if math.isnan(value):
            return "NAN"
        if math.isinf(value):
            return "INFINITY" if value > 0 else "(-INFINITY)"
        return f"({value!r})" if element == "f64" else f"({value!r}f)"
    number = {"true": 1, "false": 0}[text] if text in ("true", "false") else int(text, 0)
    if element == "i1":
        return str(number & 1)
    if number == -(2**63):
        return "LONG_MIN"
    if number == -(2**31) and element == "i32":
        return "INT_MIN"
    if element in ("i64", "index"):
        return f"((long){number}L)" if abs(number) >= 2**31 else f"((long){number})"
    return str(number) if number >= 0 else f"({number})"


def _float(text: str, element: str) -> float:
    if not text.lower().lstrip("-").startswith("0x"):
        return float(text)
    bits = int(text, 16)
    if element == "bf16":
        bits, element = bits << 16, "f32"
    size, kind = {"f16": (2, "e"), "f32": (4, "f"), "f64": (8, "d")}[element]
    value: float = struct.unpack(kind, bits.to_bytes(size, "little"))[0]
    return value


def _rounded(text: str, element: str) -> str:
    """A float32 result as an element of 16 bits."""
    return f"tg_narrow_{element}({text})" if element in ("f16", "bf16") else text


def _wrapped(text: str, element: str) -> str:
    """An integer result: C computes small ones as int."""
    if element == "i1":
        return f"(({text}) & 1)"
    return f"(({CTYPES[element]})({text}))" if element in ("i8", "i16") else f"({text})"


def function(name: str, element: str) -> str:
    """The name of a mathematical function: the library's own, or the language's."""
    return expression(f"@{name}", "f64" if element == "f64" else "f32")


_INTEGERS = {"arith.addi": "+", "arith.subi": "-", "arith.muli": "*"}
_LOGICAL = {"arith.andi": "&", "arith.ori": "|", "arith.xori": "^"}
_FLOATING = {"arith.addf": "+", "arith.subf": "-", "arith.mulf": "*", "arith.divf": "/", "tt.precise_divf": "/"}
_CHOICES = {  # not of NaN
    "arith.maxsi": (">", False),
    "arith.minsi": ("<", False),
    "arith.maxui": (">", True),
    "arith.minui": ("<", True),
}
_FUNCTIONS = {
    "arith.maxnumf": "fmax",
    "arith.minnumf": "fmin",
    "arith.remf": "fmod",
    "math.absf": "fabs",
    "math.atan2": "atan2",
    "math.ceil": "ceil",
    "math.copysign": "copysign",
    "math.fma": "fma",
    "math.floor": "floor",
    "math.powf": "pow",
    "math.round": "round",
    "math.roundeven": "rint",
    "math.sqrt": "sqrt",
    "math.trunc": "trunc",
    "tt.precise_sqrt": "sqrt",
    **{
        f"math.{name}": name
        for name in "acos acosh asin asinh atan atanh cos cosh erf erfc exp exp2 expm1 log log10 log1p log2 rsqrt sin "
        "sinh tan tanh".split()
    },
}
_COMPARISONS = {
    "eq": "==", "ne": "!=", "slt": "<", "sle": "<=", "sgt": ">", "sge": ">=",
    "ult": "<", "ule": "<=", "ugt": ">", "uge": ">=",
}  # fmt: skip
_ORDERED = {"oeq": "==", "olt": "<", "ole": "<=", "ogt": ">", "oge": ">="}
_NEGATED = {"ult": ">=", "ule": ">", "ugt": "<=", "uge": "<", "une": "=="}
_CONVERSIONS = {
    "arith.extsi", "arith.extui", "arith.trunci", "arith.sitofp", "arith.uitofp", "arith.fptosi", "arith.fptoui",
    "arith.extf", "arith.truncf", "arith.index_cast", "arith.index_castui", "tt.fp_to_fp",
}  # fmt: skip
_OTHERS = {
    "arith.divsi", "arith.remsi", "arith.divui", "arith.remui", "arith.shli", "arith.shrsi", "arith.shrui",
    "arith.cmpi", "arith.cmpf", "arith.select", "arith.negf", "arith.maximumf", "arith.minimumf", "arith.bitcast",
    "tt.bitcast", "tt.clampf", "tt.mulhiui", "tt.extern_elementwise", "math.absi",
    "arith.ceildivsi", "arith.floordivsi",
}  # fmt: skip

# Names of CUDA's library of device functions, without their prefix and the suffix of float32.
_LIBRARY = {
    **{
        name: name
        for name in "acos acosh asin asinh atan atan2 atanh ceil copysign cos cosh erf erfc erfinv exp exp2 expm1 fabs "
        "floor fma fmax fmin fmod hypot ldexp lgamma log log10 log1p log2 pow rint round rsqrt sin sinh sqrt tan tanh "
        "tgamma trunc ilogb".split()
    },
    "cyl_bessel_i0": "i0",
    "cyl_bessel_i1": "i1",
    "fast_exp": "exp",
    "fast_log": "log",
    "fast_log2": "log2",
    "fast_log10": "log10",
    "fast_cos": "cos",
    "fast_sin": "sin",
    "fast_tan": "tan",
    "fast_pow": "pow",
    "fast_divide": "/",
    "div_rn": "/",
    "sqrt_rn": "sqrt",
    "nearbyint": "rint",
    "j0": "bessel_j0",
    "j1": "bessel_j1",
    "y0": "bessel_y0",
    "y1": "bessel_y1",
    "normcdf": "normal_cdf",
}
_TESTS = {"isnan": "isnan", "isinf": "isinf", "finite": "isfinite", "isfinited": "isfinite", "signbit": "signbit"}


def is_elementwise(op: Op) -> bool:
    """Whether an op computes each element of its one result from the same element of its operands."""
    known = (_INTEGERS, _LOGICAL, _FLOATING, _CHOICES, _FUNCTIONS, _CONVERSIONS, _OTHERS)
    return any(op.name in each for each in known) and len(op.results) == 1


def elementwise(op: Op, args: Sequence[str], types: Sequence[str], result: str) -> str:
    """An element of an op's result, as an expression.

    Args:
        args: elements of its operands.
        types: what these are.
        result: what the element is.
    """
    name = op.name
    for element in (*types, result):
        if element not in CTYPES:
            raise Refused(f"elements of type {element}", op)
    if name in _INTEGERS:
        return _wrapped(f"{args[0]} {_INTEGERS[name]} {args[1]}", result)
    if name in _LOGICAL:
        return _wrapped(f"{args[0]} {_LOGICAL[name]} {args[1]}", result)
    if name in _FLOATING:
        return _rounded(f"({args[0]} {_FLOATING[name]} {args[1]})", result)
    if name in _CHOICES:
        sign, unsigned = _CHOICES[name]
        a, b = (f"({_UNSIGNED[result]}){x}" for x in args) if unsigned else args
        return f"({a} {sign} {b} ? {args[0]} : {args[1]})"
    if name in _FUNCTIONS:
        return _rounded(f"{function(_FUNCTIONS[name], result)}({', '.join(args)})", result)
    if name in _CONVERSIONS:
        if "rtz" in op.words:
            raise Refused("rounding towards zero", op)
        return convert(args[0], types[0], result, unsigned=name in ("arith.extui", "arith.uitofp", "arith.fptoui"))
    return _other(op, args, types, result)


def _other(op: Op, args: Sequence[str], types: Sequence[str], result: str) -> str:
    match op.name.split(".")[1]:
        case "cmpi":
            return _compare_integers(op.words[0], args, types[0])
        case "cmpf":
            return _compare_floats(op.words[0], args)
        case "select":
            return f"({args[0]} ? {args[1]} : {args[2]})"
        case "negf":
            return f"(-{args[0]})"
        case "maximumf" | "minimumf":
            sign = ">" if op.name == "arith.maximumf" else "<"
            return f"({args[0]} {sign} {args[1]} || {args[0]} != {args[0]} ? {args[0]} : {args[1]})"
        case "divsi" | "remsi" | "divui" | "remui" | "ceildivsi" | "floordivsi":
            return _divide(op, args, result)
        case "shli" | "shrsi" | "shrui":
            return _shift(op, args, result)
        case "bitcast":
            return _bits(op, args[0], types[0], result)
        case "clampf":
            low_high = f"fmin(fmax({args[0]}, {args[1]}), {args[2]})"
            return f"({args[0]} != {args[0]} ? {args[0]} : {low_high})" if "all" in op.words else low_high
        case "mulhiui":
            if result == "i64":
                return f"((long)MUL_HIGH_ulong((ulong){args[0]}, (ulong){args[1]}))"
            return f"((int)((ulong)(uint){args[0]} * (ulong)(uint){args[1]} >> 32))"
        case "absi":
            return _wrapped(f"{args[0]} < 0 ? -{args[0]} : {args[0]}", result)
        case "extern_elementwise":
            return _of_library(op, args, types, result)
    raise Refused("there is no such function", op)


def _compare_integers(kind: str, args: Sequence[str], element: str) -> str:
    if element == "i1" and kind.startswith("s"):
        args = [f"(-{x})" for x in args]  # its one bit is the sign
    if kind.startswith("u"):
        args = [f"({_UNSIGNED[element]}){x}" for x in args]
    return f"({args[0]} {_COMPARISONS[kind]} {args[1]})"


def _compare_floats(kind: str, args: Sequence[str]) -> str:
    a, b = args
    if kind in _ORDERED:
        return f"({a} {_ORDERED[kind]} {b})"
    if kind in _NEGATED:
        return f"(!({a} {_NEGATED[kind]} {b}))"
    match kind:
        case "one":
            return f"({a} < {b} || {a} > {b})"
        case "ueq":
            return f"(!({a} < {b} || {a} > {b}))"
        case "ord":
            return f"({a} == {a} && {b} == {b})"
        case "uno":
            return f"({a} != {a} || {b} != {b})"
    return "1" if kind == "true" else "0"


_CONSTANT = re.compile(r"\(?(?:\(long\))?\(?(\d+)L?\)?\)?")


def _divide(op: Op, args: Sequence[str], result: str) -> str:
    """Of integers. Where the divisor is data it may be 0, which must not end the process."""
    kind = op.name.split(".")[1]
    remainder, divisor = kind.startswith("rem"), args[1]
    known = _CONSTANT.fullmatch(divisor)
    constant = known is not None and int(known[1]) > 0
    if kind in ("divui", "remui"):
        ctype, sign = _UNSIGNED[result], "%" if remainder else "/"
        divided = f"({CTYPES[result]})(({ctype}){args[0]} {sign} ({ctype}){divisor})"
        return f"({divided})" if constant else f"({divisor} == 0 ? 0 : {divided})"
    if kind in ("divsi", "remsi") and constant:
        return _wrapped(f"{args[0]} {'%' if remainder else '/'} {divisor}", result)
    suffix = "i32" if result == "i1" else "i64" if result == "index" else result
    match kind:
        case "floordivsi":
            return _wrapped(f"tg_div_floor_{suffix}({args[0]}, {divisor})", result)
        case "ceildivsi":
            return _wrapped(f"-tg_div_floor_{suffix}(-{args[0]}, {divisor})", result)
        case "remsi":
            return _wrapped(f"tg_fmod_{suffix}({args[0]}, {divisor})", result)
    return _wrapped(f"tg_div_trunc_{suffix}({args[0]}, {divisor})", result)


def _shift(op: Op, args: Sequence[str], result: str) -> str:
    by = "0" if result == "i1" else f"({args[1]} & {8 * SIZES[result] - 1})"
    match op.name:
        case "arith.shli":
            return _wrapped(f"{args[0]} << {by}", result)
        case "arith.shrsi":
            return _wrapped(f"{args[0]} >> {by}", result)
    return f"(({CTYPES[result]})(({_UNSIGNED[result]}){args[0]} >> {by}))"


def convert(text: str, source: str, target: str, unsigned: bool = False) -> str:
    """A number as another type, as Triton's casts have it."""
    if source == target:
        return text
    if source == "i1":
        text = text if unsigned or target == "i1" else f"(-{text})"
    elif unsigned and source not in _FLOATS:
        text = f"({_UNSIGNED[source]}){text}"
    if target in _FLOATS:
        return _rounded(f"(({CTYPES[target]})({text}))", target)
    if target == "i1":
        return f"((int)({text}) & 1)"
    if source in _FLOATS:
        inner = "ulong" if unsigned and target == "i64" else "long" if target in ("i64", "i32") else "int"
        return f"(({CTYPES[target]})({inner})({text}))"
    return f"(({CTYPES[target]})({text}))"


def _bits(op: Op, text: str, source: str, target: str) -> str:
    if source == target:
        return text
    if SIZES[source] != SIZES[target] or "i1" in (source, target):
        raise Refused(f"the bits of {source} as {target}", op)
    integer = bits(text, source) if source in _FLOATS else text
    return of_bits(integer, target) if target in _FLOATS else integer


def bits(text: str, element: str) -> str:
    """The bits of a floating-point number, as a signed integer."""
    match element:
        case "f32":
            return f"AS_int({text})"
        case "f64":
            return f"AS_long({text})"
    return f"((short)tg_bits_{element}({text}))"


def of_bits(text: str, element: str) -> str:
    """The floating-point number of bits, those of an integer."""
    match element:
        case "f32":
            return f"AS_float({text})"
        case "f64":
            return f"AS_double({text})"
    return f"tg_of_bits_{element}((uint)({text}))"


def _of_library(op: Op, args: Sequence[str], types: Sequence[str], result: str) -> str:
    symbol = op.attributes.get("symbol", "").strip('"')
    name = symbol.removeprefix("__nv_")
    for short in (name, name.removesuffix("f")):
        if short in _TESTS:
            return f"({_TESTS[short]}({args[0]}) ? 1 : 0)"
        if short == "llrint":
            return convert(f"{function('rint', types[0])}({args[0]})", types[0], result)
        if short in _LIBRARY:
            called = _LIBRARY[short]
            if called == "/":
                return _rounded(f"({args[0]} / {args[1]})", result)
            return _rounded(f"{function(called, types[0])}({', '.join(args)})", result)
    raise Refused(f"the library function {symbol}", op)


def operand_types(op: Op) -> list[str]:
    return [operand.type.element for operand in op.operands]
