"""What Inductor's operations are in the kernel language.

Values of kernels have the types that Inductor's own rules of promotion give them, and float16 and bfloat16 are float32
there. An operation is an expression as in the tables of ops: ``@exp(a)`` is the library's function for the type that
the operands are promoted to.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import sympy
import torch
from torch._inductor.codegen.common import CSEVariable, OpOverrides
from torch._inductor.dtype_propagation import promote_types
from torch._inductor.utils import get_bounds_index_expr, upcast_compute_type
from torch._inductor.virtualized import OpsValue, V

from torchgraft.codegen.pointwise import convert, expression
from torchgraft.codegen.types import BY_NAME, element_type, least, value_ctype

__all__ = ["Operations", "as_type", "has_bits", "literal"]


def literal(value: complex, type_: str) -> str:
    """A number as text of an element type's values."""
    if type_ == "b8":
        return str(int(bool(value)))
    if BY_NAME[type_].is_float:
        number = float(value.real)
        if math.isnan(number):
            return "NAN"
        if math.isinf(number):
            return "INFINITY" if number > 0 else "-INFINITY"
        if BY_NAME[type_].compute == "f64":
            return repr(number)
        if abs(number) > torch.finfo(torch.float32).max:
            return "INFINITY" if number > 0 else "-INFINITY"
        # All digits: inductor knows values by their texts, and two numbers of float64 are not one to it.
        return f"{number!r}f"
    bits = 8 * BY_NAME[type_].size
    number = int(value.real) & (1 << bits) - 1
    if type_ != "u8" and number >> bits - 1:
        number -= 1 << bits
    if number == -(1 << bits - 1):
        return least(type_)
    return f"{number}L" if type_ == "i64" else f"{number}"


def as_type(value: Any, type_: str) -> str:
    """An operand as text of another type's value."""
    if isinstance(value, OpsValue):
        value = value.value
    if isinstance(value, (bool, int, float)):
        return literal(value, type_)
    return convert(str(value), element_type(value.dtype).name, type_)


_SAME_BITS = ({"f32", "i32"}, {"f64", "i64"}, {"i8", "u8"})


def has_bits(source: torch.dtype, target: torch.dtype) -> bool:
    """Whether a value in a kernel has its bits in memory, to be another type's. The 16-bit types are float32 there, and
    booleans are 0 or 1."""
    return any({element_type(source).name, element_type(target).name} <= types for types in _SAME_BITS)


def _promoted(*operands: Any) -> str:
    """The element type that operands are computed in."""
    return BY_NAME[element_type(upcast_compute_type(promote_types(operands))).name].compute


def _operation(text: str, *, integer: str = "", boolean: str = "") -> Callable[..., str]:
    """An operation on operands ``a``, ``b``, ``c``, which are promoted to one type.

    Args:
        text: the expression.
        integer: the one for integers, where it is another.
        boolean: the one for booleans, where it is another.
    """

    def operation(*operands: Any) -> str:
        type_ = _promoted(*operands)
        chosen = text
        if type_ == "b8":
            chosen = boolean or integer or text
        elif BY_NAME[type_].is_integer:
            chosen = integer or text
        chosen = expression(chosen, type_)
        for name, operand in zip("abc", operands, strict=False):
            chosen = _put(chosen, name, f"({as_type(operand, type_)})")
        return f"({value_ctype(type_)})({chosen})" if type_ in ("i8", "i16", "u8") else f"({chosen})"

    return operation


def _put(text: str, name: str, operand: str) -> str:
    # Operands stand between parentheses or commas, or alone: their names are letters that nothing else is called.
    return _OPERANDS[name].sub(lambda _: operand, text)


def _comparison(sign: str) -> Callable[..., str]:
    def comparison(a: Any, b: Any) -> str:
        type_ = _promoted(a, b)
        return f"({as_type(a, type_)} {sign} {as_type(b, type_)})"

    return comparison


def _division(text: str, integer: str) -> Callable[..., str]:
    """A quotient or remainder. An integer divided by zero is an error, as it is without a compiler."""
    quotient = _operation(text, integer=integer)

    def division(a: Any, b: Any) -> str:
        type_ = _promoted(a, b)
        divisor = b.value if isinstance(b, OpsValue) else b
        if BY_NAME[type_].is_integer and isinstance(divisor, CSEVariable) and 0 in divisor.bounds:
            V.kernel.report(f"({divisor}) == 0", "0", "ZeroDivisionError", False)
        return quotient(a, b)

    return division


def _truth(text: str) -> Callable[..., str]:
    def truth(*operands: Any) -> str:
        out = text
        for name, operand in zip("ab", operands, strict=False):
            out = _put(out, name, f"({as_type(operand, 'b8')})")
        return f"({out})"

    return truth


_OPERANDS = {name: re.compile(rf"\b{name}\b") for name in "abc"}

_FUNCTIONS = (
    "exp exp2 expm1 log log2 log10 log1p sin cos tan tanh sinh cosh asin acos atan asinh acosh atanh sigmoid erf erfc "
    "lgamma digamma rsqrt i0 i0e i1 i1e erfinv bessel_j0 bessel_j1 bessel_y0 bessel_y1 erfcx ndtri log_ndtr "
    "spherical_bessel_j0 airy_ai"
)
_FUNCTIONS_OF_TWO = "atan2 hypot copysign igamma igammac zeta nextafter"
_POLYNOMIALS = (
    "chebyshev_polynomial_t chebyshev_polynomial_u chebyshev_polynomial_v chebyshev_polynomial_w "
    "shifted_chebyshev_polynomial_t shifted_chebyshev_polynomial_u shifted_chebyshev_polynomial_v "
    "shifted_chebyshev_polynomial_w legendre_polynomial_p hermite_polynomial_h hermite_polynomial_he "
    "laguerre_polynomial_l"
)

#: Operations that are functions of the library's, of some lines each.
FUNCTIONS = frozenset(f"{_FUNCTIONS} {_FUNCTIONS_OF_TWO} {_POLYNOMIALS} polygamma pow gammainc gammaincc ndtr".split())

_COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "gt": ">", "le": "<=", "ge": ">="}

_OPERATIONS: dict[str, Callable[..., str]] = {
    **{name: _operation(f"@{name}(a)") for name in _FUNCTIONS.split()},
    **{name: _operation(f"@{name}(a, b)") for name in _FUNCTIONS_OF_TWO.split()},
    **{name: _operation(f"@{name}(a, b)") for name in _POLYNOMIALS.split()},
    **{f"modified_bessel_{name}": _operation(f"@{name}(a)") for name in ("i0", "i1", "k0", "k1")},
    **{f"scaled_modified_bessel_{name}": _operation(f"@{name}e(a)") for name in ("k0", "k1")},
    "gammainc": _operation("@igamma(a, b)"),
    "gammaincc": _operation("@igammac(a, b)"),
    "ndtr": _operation("@normal_cdf(a)"),
    # The derivatives of digamma (DLMF 25.11.12).
    "polygamma": _operation(
        "a == 0 ? @digamma(b) : a == 1 ? @trigamma(b)"
        " : (fmod(a, (T)2) == 0 ? (T)-1 : (T)1) * @exp(@lgamma(a + 1)) * @zeta(a + 1, b)"
    ),
    "sqrt": _operation("sqrt(a)"),
    "abs": _operation("@abs(a)", integer="(a < 0 ? -a : a)", boolean="a"),
    "neg": _operation("-a"),
    "sign": _operation("(T)(a > 0) - (T)(a < 0)", boolean="a"),
    "relu": _operation("a > 0 || a != a ? a : (T)0", integer="a > 0 ? a : (T)0", boolean="a"),
    "square": _operation("a * a", boolean="a"),
    "reciprocal": _operation("1 / a"),
    "add": _operation("a + b", boolean="a | b"),
    "sub": _operation("a - b", boolean="a ^ b"),
    "mul": _operation("a * b", boolean="a & b"),
    "mul_rn": _operation("a * b"),
    "truediv": _division("a / b", "@div_trunc(a, b)"),
    "div_rn": _operation("a / b"),
    "floordiv": _division("@floor(a / b)", "@div_floor(a, b)"),
    "truncdiv": _division("@trunc(a / b)", "@div_trunc(a, b)"),
    "mod": _division("@fmod(a, b)", "@fmod(a, b)"),
    "fmod": _division("@fmod(a, b)", "@fmod(a, b)"),
    "remainder": _division("@remainder(a, b)", "@remainder(a, b)"),
    "fma": _operation("fma(a, b, c)", integer="a * b + c"),
    "pow": _operation("@pow(a, b)", integer="@ipow(a, b)"),
    "maximum": _operation("a > b || a != a ? a : b", integer="a > b ? a : b"),
    "fmaximum": _operation("a > b || b != b ? a : b", integer="a > b ? a : b"),
    "minimum": _operation("a < b || a != a ? a : b", integer="a < b ? a : b"),
    "floor": _operation("@floor(a)", integer="a"),
    "ceil": _operation("@ceil(a)", integer="a"),
    "trunc": _operation("@trunc(a)", integer="a"),
    "round": _operation("rint(a)", integer="a"),
    "isnan": _operation("a != a", integer="0"),
    "isinf": _operation("isinf(a)", integer="0"),
    "signbit": _operation("@signbit(a)", integer="a < 0", boolean="0"),
    "bitwise_and": _operation("a & b"),
    "bitwise_or": _operation("a | b"),
    "bitwise_xor": _operation("a ^ b"),
    "bitwise_not": _operation("~a", boolean="!a"),
    "bitwise_left_shift": _operation("b < 0 || b >= (T)(sizeof(T) * 8) ? (T)0 : (T)(a << b)"),
    "bitwise_right_shift": _operation("b < 0 || b >= (T)(sizeof(T) * 8) ? (T)-(a < 0) : (T)(a >> b)"),
    "logical_not": _truth("!a"),
    "logical_and": _truth("a & b"),
    "logical_or": _truth("a | b"),
    "logical_xor": _truth("a ^ b"),
    **{
        name: _comparison(sign)
        for name, sign in zip("eq ne lt gt le ge".split(), "== != < > <= >=".split(), strict=True)
    },
}
_OPERATIONS |= {
    "and_": _OPERATIONS["bitwise_and"],
    "or_": _OPERATIONS["bitwise_or"],
    "xor": _OPERATIONS["bitwise_xor"],
    "lshift": _OPERATIONS["bitwise_left_shift"],
    "rshift": _OPERATIONS["bitwise_right_shift"],
}


# A number's place among those of a seed is its Philox counter, so that numbers do not depend on who makes them.
_UNIFORM = """\
TG_FUNCTION float tg_random_uniform(long seed, long place) {
  uint4 words = tg_philox((ulong)seed, (ulong)place, 0);
  return (float)(LANE(words, 0) >> 8) * 5.9604645e-08f;
}"""
_NORMAL = """\
TG_FUNCTION float tg_random_normal(long seed, long place) {
  uint4 words = tg_philox((ulong)seed, (ulong)place, 0);
  float first, second;
  tg_normal_pair_f32(LANE(words, 0), LANE(words, 1), &first, &second);
  return first;
}"""
_INTEGER = """\
TG_FUNCTION long tg_random_integer(long seed, long place, long low, long high) {
  uint4 words = tg_philox((ulong)seed, (ulong)place, 0);
  const ulong word = ((ulong)LANE(words, 0) << 32) | LANE(words, 1), range = (ulong)(high - low);
  return low + (long)(range == 0 ? word : word % range);
}"""


class Operations(OpOverrides):
    """The handler of Inductor's operations: each gives the text of its result."""

    @staticmethod
    def constant(value: bool | float | int, dtype: torch.dtype) -> str:
        type_ = _compute(dtype)
        # Inductor knows values by their texts, and bytes are not booleans to it.
        ctype = "bool" if type_ == "b8" else value_ctype(type_)
        return f"(({ctype})({literal(value, type_)}))"

    @staticmethod
    def to_dtype(
        x: Any, dtype: torch.dtype, src_dtype: torch.dtype | None = None, use_compute_types: bool = True
    ) -> str:
        type_ = element_type(dtype).name
        text = as_type(x, type_)
        # Computed in float32, but a conversion that is asked for rounds.
        return f"tg_narrow_{type_}({text})" if type_ in ("f16", "bf16") else f"({text})"

    @staticmethod
    def to_dtype_bitcast(x: Any, dtype: torch.dtype, src_dtype: torch.dtype) -> str:
        source, target = element_type(src_dtype).name, element_type(dtype).name
        text = as_type(x, source)
        if source == target:
            return text
        if not has_bits(src_dtype, dtype):
            raise NotImplementedError(f"the bits of {src_dtype} as {dtype}")
        return f"({value_ctype(target)})({text})" if source in ("i8", "u8") else f"AS_{value_ctype(target)}({text})"

    @staticmethod
    def inline_asm_elementwise(*inputs: Any, asm: str, dtype: torch.dtype = torch.float32, **_: Any) -> str:
        """Calls the function whose definition is given: see rows.py."""
        name = asm.partition("(")[0].rpartition(" ")[2]
        V.kernel.helper(name, asm)
        return f"{name}({', '.join(map(str, inputs))})"

    @staticmethod
    def index_expr(expr: sympy.Expr, dtype: torch.dtype) -> Any:
        text = V.kernel.index_to_str(V.kernel.prepare_indexing(expr))
        # sympy does not know it of numbers that a program computes with, and not of each index.
        integer = expr.is_integer or (expr.is_integer is None and not dtype.is_floating_point)
        var = V.kernel.cse.generate(
            V.kernel.compute,
            f"({'long' if integer else 'double'})({text})",
            bounds=get_bounds_index_expr(expr),
            dtype=torch.int64 if integer else torch.float64,
            shape=(),
        )
        return Operations.to_dtype(var, dtype)

    value_expr = index_expr

    @staticmethod
    def where(condition: Any, a: Any, b: Any) -> str:
        type_ = _promoted(a, b)
        return f"({as_type(condition, 'b8')} ? {as_type(a, type_)} : {as_type(b, type_)})"

    @staticmethod
    def masked(mask: Any, body: Callable[[], Any], other: Any) -> Any:
        return V.kernel.masked(mask, body, other)

    @staticmethod
    def frexp(x: Any) -> tuple[Any, Any]:
        type_ = _promoted(x)
        text = as_type(x, type_)
        generate = V.kernel.cse.generate
        mantissa = generate(
            V.kernel.compute, f"tg_frexp_mantissa_{type_}({text})", dtype=BY_NAME[type_].dtype, shape=()
        )
        exponent = generate(V.kernel.compute, f"(int)tg_frexp_exponent_{type_}({text})", dtype=torch.int32, shape=())
        return mantissa, exponent

    @staticmethod
    def ldexp(x: Any, n: Any) -> str:
        type_ = _promoted(x)
        return f"ldexp({as_type(x, type_)}, (int)clamp({as_type(n, 'i64')}, -9999L, 9999L))"

    @staticmethod
    def int_truediv(a: Any, b: Any) -> str:
        return f"((float)((double)({as_type(a, 'i64')}) / (double)({as_type(b, 'i64')})))"

    @staticmethod
    def load_seed(name: str, offset: Any) -> Any:
        return V.kernel.load(name, sympy.Integer(offset))

    @staticmethod
    def rand(seed: Any, offset: Any) -> str:
        V.kernel.helper("tg_random_uniform", _UNIFORM)
        return f"tg_random_uniform({as_type(seed, 'i64')}, {as_type(offset, 'i64')})"

    @staticmethod
    def randn(seed: Any, offset: Any) -> str:
        V.kernel.helper("tg_random_normal", _NORMAL)
        return f"tg_random_normal({as_type(seed, 'i64')}, {as_type(offset, 'i64')})"

    @staticmethod
    def randint64(seed: Any, offset: Any, low: Any, high: Any) -> str:
        V.kernel.helper("tg_random_integer", _INTEGER)
        operands = ", ".join(as_type(each, "i64") for each in (seed, offset, low, high))
        return f"tg_random_integer({operands})"

    @staticmethod
    def identity(value: Any) -> Any:
        return value


def _compute(dtype: torch.dtype) -> str:
    return BY_NAME[element_type(dtype).name].compute


for _name, _function in _OPERATIONS.items():
    setattr(Operations, _name, staticmethod(_function))
