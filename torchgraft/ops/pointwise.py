"""The table of pointwise ops.

One row an op: its functional overloads and its expression. See `table.row` for what a row says.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from torchgraft.ops.table import Kind, by_kind, row
from torchgraft.plans import OtherOut, Scalar, composite, only, other_out, versions, within
from torchgraft.plans.refusals import Within, check_filling, check_fits, check_floating

ALWAYS_FLOAT = Kind.ALWAYS_FLOAT
INT_TO_FLOAT = Kind.INT_TO_FLOAT
ALWAYS_BOOL = Kind.ALWAYS_BOOL
COMPLEX_TO_FLOAT = Kind.COMPLEX_TO_FLOAT
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)

# ---- arithmetic ----


def _check_alpha(self: torch.Tensor, other: torch.Tensor, alpha: complex = 1, **_: Any) -> None:
    """Refuses the factors that torch's kernels refuse; meta functions do so in other words, or not at all."""
    dtype = torch.result_type(self, other)
    if isinstance(alpha, bool) and dtype != torch.bool:
        raise RuntimeError("Boolean alpha only supported for Boolean results.")
    if isinstance(alpha, (float, complex)) and not (dtype.is_floating_point or dtype.is_complex):
        raise RuntimeError("For integral input tensors, argument alpha must not be a floating point number.")
    if isinstance(alpha, complex) and not dtype.is_complex:
        raise RuntimeError("For non-complex input tensors, argument alpha must not be a complex number.")


def _check_difference(self: torch.Tensor, other: torch.Tensor, alpha: complex = 1, **_: Any) -> None:
    if self.dtype == other.dtype == torch.bool:
        raise versions.BOOLEANS_REFUSED(
            "Subtraction, the `-` operator, with two bool tensors is not supported. Use the `^` or `logical_xor()` "
            "operator instead."
        )
    if torch.bool in (self.dtype, other.dtype):
        raise versions.BOOLEANS_REFUSED(
            "Subtraction, the `-` operator, with a bool tensor is not supported. If you are trying to invert a mask, "
            "use the `~` or `logical_not()` operator instead."
        )
    _check_alpha(self, other, alpha)


row(
    "add.Tensor",
    "self + alpha * other",
    boolean="self || (alpha && other)",
    complex="self + @mul(alpha, other)",
    operands={"other": "cast"},
    refuses=_check_alpha,
)
row(
    "sub.Tensor",
    "self - alpha * other",
    complex="self - @mul(alpha, other)",
    operands={"other": "cast"},
    refuses=_check_difference,
)
row("rsub.Tensor", "other - alpha * self", complex="other - @mul(alpha, self)", refuses=_check_difference)
row("mul.Tensor", "self * other", boolean="self && other", complex="@mul(self, other)", operands={"other": "cast"})
row("div.Tensor", "self / other", kind=INT_TO_FLOAT, complex="@div(self, other)", operands={"other": "cast"}, cost=2)


def _rounded(rounding_mode: str | None = None, **_: Any) -> str:
    texts = {None: "self / other", "trunc": "@trunc(@narrow(self / other))", "floor": "@floor_divide(self, other)"}
    return texts[rounding_mode]


def _rounded_integer(rounding_mode: str | None = None, **_: Any) -> str:
    return "@div_trunc(self, other)" if rounding_mode == "trunc" else "@div_floor(self, other)"


def _whole_quotient(other: Any = None, **_: Any) -> Kind:
    """torch's kernels round quotients of 16-bit numbers before they are made whole, but not those by a number."""
    return Kind.NO_OPMATH if other == "other" else Kind.DEFAULT


def _check_not_bool(
    self: torch.Tensor, other: torch.Tensor | complex, rounding_mode: str | None = "floor", **_: Any
) -> None:
    if rounding_mode is not None and torch.result_type(self, other) == torch.bool:
        raise NotImplementedError("not implemented for 'Bool'")


row(
    "div.Tensor_mode",
    _rounded,
    integer=_rounded_integer,
    kind=lambda rounding_mode=None, **given: INT_TO_FLOAT if rounding_mode is None else _whole_quotient(**given),
    operands={"self": "rounded", "other": "divisor"},
    refuses=_check_not_bool,
    cost=4,
)
row(
    "floor_divide",
    "@floor_divide(self, other)",
    integer="@div_floor(self, other)",
    kind=_whole_quotient,
    operands={"self": "rounded", "other": "divisor"},
    refuses=_check_not_bool,
    cost=4,
)
for _name, _overloads in (
    ("remainder", "remainder.Tensor remainder.Scalar remainder.Scalar_Tensor"),
    ("fmod", "fmod.Tensor fmod.Scalar"),
):
    row(
        _overloads,
        f"@{_name}(self, other)",
        operands={"self": "promotes rounded cast", "other": "promotes rounded cast divisor"},
        refuses=only("number"),
        cost=4,
    )
for _name in ("gcd", "lcm"):
    row(_name, f"@{_name}(self, other)", cost=16, refuses=(only("integer"), _check_not_bool))
row(
    "addcmul",
    "self + value * tensor1 * tensor2",
    complex="self + @mul(value, @mul(tensor1, tensor2))",
    refuses=only("number"),
)


def _check_quotient(tensor1: torch.Tensor, tensor2: torch.Tensor, **_: Any) -> None:
    if not any(t.is_floating_point() or t.is_complex() for t in (tensor1, tensor2)):
        raise RuntimeError(
            "Integer division with addcdiv is no longer supported; for a true division make the tensors "
            "floating-point, for the former behaviour write self + value * torch.trunc(tensor1 / tensor2)"
        )


row(
    "addcdiv",
    "self + value * (tensor1 / tensor2)",
    complex="self + @mul(value, @div(tensor1, tensor2))",
    cost=2,
    refuses=_check_quotient,
)
# As torch computes it: from the nearer end.
for _name in ("lerp.Scalar", "lerp.Tensor"):
    row(
        _name,
        "@abs(weight) < 0.5 ? self + weight * (end - self) : end - (end - self) * (1 - weight)",
        complex="@abs(weight) < 0.5 ? self + @mul(weight, end - self) : end - @mul(end - self, MAKE_T(1, 0) - weight)",
        cost=2,
        refuses=(only("float"), other_out) if _name == "lerp.Tensor" else only("float"),
    )
row("neg", "-self", complex="-self", exact="self", refuses=other_out)
row(
    "abs",
    "@abs(self)",
    exact="self",
    kind=COMPLEX_TO_FLOAT,
    integer="self < 0 ? -self : self",
    boolean="self",
    complex="@abs(self)",
    refuses=(only("number"), other_out),
)
row("sign", "(T)(self > 0) - (T)(self < 0)", boolean="self", exact="self", refuses=other_out)
row("sgn", "(T)(self > 0) - (T)(self < 0)", boolean="self", complex="@sgn(self)", refuses=other_out)
row("reciprocal", "1 / self", kind=INT_TO_FLOAT, complex="@reciprocal(self)", cost=2)
row("sqrt", "sqrt(self)", kind=INT_TO_FLOAT, complex="@sqrt(self)", cost=2)
row("rsqrt", "@rsqrt(self)", kind=INT_TO_FLOAT, complex="@reciprocal(@sqrt(self))", cost=2)
row("conj_physical", "self", complex="@conj(self)", exact="self", refuses=other_out)

# ---- powers ----


def _value(exponent: Any) -> Any:
    """Makes an exponent's value part of the plan's key."""
    return exponent.value if isinstance(exponent, Scalar) else exponent


def _power_of_scalar(exponent: Any = None, **_: Any) -> str:
    """Common exponents are products, as in torch; reading the exponent gives each of them its own plan."""
    known = {
        2: "self * self",
        3: "self * self * self",
        0.5: "sqrt(self)",
        -1: "1 / self",
        -0.5: "@rsqrt(self)",
        -2: "1 / (self * self)",
    }
    return known.get(_value(exponent), "@pow(self, exponent)")


def _complex_power_of_scalar(exponent: Any = None, **_: Any) -> str:
    known = {
        2: "@mul(self, self)",
        3: "@mul(@mul(self, self), self)",
        0.5: "@sqrt(self)",
        -1: "@reciprocal(self)",
        -0.5: "@reciprocal(@sqrt(self))",
        -2: "@reciprocal(@mul(self, self))",
    }
    return known.get(_value(exponent), "@pow(self, exponent)")


def _check_exponent(self: torch.Tensor, exponent: complex, **_: Any) -> None:
    """torch's kernel takes the exponent of integers and 16-bit numbers in their own type, in which it must fit."""
    dtype = torch.result_type(self, exponent)
    if dtype in (torch.float16, torch.bfloat16, *_INTEGERS):
        check_fits(exponent, dtype)


def _integer_power_of_scalar(exponent: Any = None, **_: Any) -> str:
    value = _value(exponent)
    if value < 0:
        raise RuntimeError("Integers to negative integer powers are not allowed.")
    return {2: "self * self", 3: "self * self * self"}.get(value, "@ipow(self, exponent)")


row(
    "pow.Tensor_Scalar",
    _power_of_scalar,
    integer=_integer_power_of_scalar,
    boolean="self || !exponent",
    complex=_complex_power_of_scalar,
    operands={"exponent": "promotes rounded cast"},
    refuses=_check_exponent,
    meta=by_kind,  # torch's makes int64 of bool
    cost=4,
)
row(
    "pow.Tensor_Tensor",
    "@pow(self, exponent)",
    integer="@ipow(self, exponent)",
    complex="@pow(self, exponent)",
    operands={"self": "rounded", "exponent": "rounded"},
    refuses=only("number"),
    cost=16,
)
row(
    "pow.Scalar",
    "@pow(self, exponent)",
    integer="@ipow(self, exponent)",
    complex="@pow(self, exponent)",
    operands={"self": "promotes rounded cast"},
    refuses=only("number"),
    meta=by_kind,  # torch's makes int64 of bool
    cost=16,
)


# The product with a power of two that does not fit would make NaN of 0 and infinity.
row(
    "ldexp.Tensor",
    "isfinite(other) && other == @trunc(other) ? ldexp(self, (int)clamp(other, (T)-9999, (T)9999))"
    " : self * exp2(other)",
    kind=INT_TO_FLOAT,
    complex="@mul(self, @pow(MAKE_T(2, 0), other))",
    cost=16,
    meta=by_kind,
)

# ---- the larger and the smaller; NaN wins, but in fmax and fmin ----

row(
    "maximum",
    "(self >= other) | (self != self) ? self : other",
    integer="max(self, other)",
    exact="self other",
)
row(
    "minimum",
    "(self <= other) | (self != self) ? self : other",
    integer="min(self, other)",
    exact="self other",
)
row("fmax", "self != self ? other : (self < other ? other : self)", integer="max(self, other)", exact="self other")
row("fmin", "self != self ? other : (self > other ? other : self)", integer="min(self, other)", exact="self other")

_AT_LEAST = "((self >= {0}) | (self != self) ? self : {0})"
_AT_MOST = "((self <= {0}) | (self != self) ? self : {0})"


def _clamp(min: Any = None, max: Any = None, **_: Any) -> str:
    """The bounds that are there; torch applies the upper one last."""
    if min is None:
        return _AT_MOST.format("max")
    if max is None:
        return _AT_LEAST.format("min")
    lower = "(self < min ? min : self)"
    return f"self != self ? self : min != min ? min : max != max ? max : ({lower} > max ? max : {lower})"


def _check_bounds(min: Any = None, max: Any = None, **_: Any) -> None:
    if min is None and max is None:
        raise RuntimeError("torch.clamp: At least one of 'min' or 'max' must not be None")


_CLAMPS: tuple[tuple[str, tuple[OtherOut, ...]], ...] = (("", (other_out,)), (".Tensor", ()))
for _overload, _out in _CLAMPS:
    row(
        f"clamp{_overload}",
        _clamp,
        operands={"min": "promotes", "max": "promotes"},
        refuses=(_check_bounds, *_out),
    )
    row(f"clamp_min{_overload}", _AT_LEAST.format("min"), operands={"min": "promotes"}, refuses=_out)
    row(f"clamp_max{_overload}", _AT_MOST.format("max"), operands={"max": "promotes"}, refuses=_out)

# ---- comparisons and logic ----

for _name, _sign in (("eq", "=="), ("ne", "!="), ("lt", "<"), ("le", "<="), ("gt", ">"), ("ge", ">=")):
    _complex = {"eq": "self.x == other.x && self.y == other.y", "ne": "self.x != other.x || self.y != other.y"}.get(
        _name
    )
    row(
        f"{_name}.Tensor {_name}.Scalar",
        f"self {_sign} other",
        kind=ALWAYS_BOOL,
        complex=_complex,
        operands={"other": "promotes rounded cast", "self": "rounded"},
    )

_TRUE = "({0}.x != 0 || {0}.y != 0)"
_SELF, _OTHER = _TRUE.format("self"), _TRUE.format("other")
row("logical_and", "self != 0 && other != 0", kind=ALWAYS_BOOL, complex=f"{_SELF} && {_OTHER}")
row("logical_or", "self != 0 || other != 0", kind=ALWAYS_BOOL, complex=f"{_SELF} || {_OTHER}")
row("logical_xor", "(self != 0) != (other != 0)", kind=ALWAYS_BOOL, complex=f"{_SELF} != {_OTHER}")
row("logical_not", "self == 0", kind=ALWAYS_BOOL, complex=f"!{_SELF}")
row("bitwise_and.Tensor", "self & other", refuses=only("integer"))
row("bitwise_or.Tensor", "self | other", refuses=only("integer"))
row("bitwise_xor.Tensor", "self ^ other", refuses=only("integer"))
row("bitwise_not", "~self", boolean="!self", refuses=(only("integer"), other_out))
for _name, _shifted in {
    "left": "other < 0 || other >= (T)(sizeof(T) * 8) ? (T)0 : (T)(self << other)",
    "right": "other < 0 || other >= (T)(sizeof(T) * 8) ? (T)-(self < 0) : (T)(self >> other)",
}.items():
    row(f"bitwise_{_name}_shift.Tensor", _shifted, refuses=only("integer"))
    # Python's operators are ops of their own, whose meta functions have another error for fractions.
    _operator = f"__{_name[0]}shift__"
    _shift = getattr(torch.ops.aten, f"bitwise_{_name}_shift")
    row(f"{_operator}.Tensor {_operator}.Scalar", _shifted, refuses=only("integer"), meta=_shift)
row("isnan", "self != self", kind=ALWAYS_BOOL, integer="0", complex="self.x != self.x || self.y != self.y")


def _check_boolean_out(out: torch.Tensor | None = None, **_: Any) -> None:
    if out is not None and out.dtype != torch.bool:
        raise RuntimeError("isposinf and isneginf: does not support non-boolean outputs.")


row("isposinf", "self == INFINITY", kind=ALWAYS_BOOL, integer="0", refuses=_check_boolean_out)
row("isneginf", "self == -INFINITY", kind=ALWAYS_BOOL, integer="0", refuses=_check_boolean_out)
row("isinf", "isinf(self)", kind=ALWAYS_BOOL, integer="0", complex="isinf(self.x) || isinf(self.y)")
row("signbit", "@signbit(self)", kind=ALWAYS_BOOL, integer="self < 0", boolean="0", refuses=other_out)
row(
    "where.self",
    "condition ? self : other",
    complex="condition ? self : other",
    operands={"condition": "keeps"},
    exact="self other",
    refuses=other_out,
)


def _may_not_fit(self: torch.Tensor, value: torch.Tensor, **_: Any) -> bool:
    return self.dtype in _INTEGERS and value.dim() == 0 and value.dtype not in (self.dtype, torch.bool)


@composite("masked_fill.Tensor", when=_may_not_fit, refuses=())
def _masked_fill_number(self: torch.Tensor, mask: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """The value is looked at, as by torch's kernels."""
    return self.masked_fill(mask, value.item())


def _check_one_value(value: torch.Tensor | complex, **_: Any) -> None:
    if isinstance(value, torch.Tensor) and value.dim() > 0:
        raise RuntimeError(f"fills take a 0-dimensional value tensor, but got one with {value.dim()} dimensions")


row(
    "masked_fill.Scalar masked_fill.Tensor",
    "mask ? value : self",
    complex="mask ? value : self",
    operands={"mask": "keeps"},
    refuses=(check_filling, _check_one_value),
)


def _check_heaviside(self: torch.Tensor, values: torch.Tensor, out: torch.Tensor | None = None, **_: Any) -> None:
    dtypes = {t.dtype for t in (self, values, out) if t is not None}
    if any(dtype.is_complex for dtype in dtypes):
        raise versions.DTYPES_REFUSED("heaviside is not yet implemented for complex tensors.")
    if len(dtypes) > 1:
        raise RuntimeError("heaviside is not yet implemented for tensors with different dtypes.")


row("heaviside", "self == 0 ? values : (T)(self > 0)", refuses=_check_heaviside)
row("copysign.Tensor", "@copysign(self, other)", kind=INT_TO_FLOAT, exact="self")

# ---- rounding ----

for _name in ("floor", "ceil", "trunc"):
    row(_name, f"@{_name}(self)", integer="self", exact="self", refuses=(only("number"), other_out))
row("round", "@rint(self)", integer="self", exact="self", refuses=(only("number"), other_out))


def _round_decimals(decimals: int = 0, **_: Any) -> str:
    if decimals == 0:
        return "@rint(self)"
    power = f"(T)1e{min(abs(decimals), 308)}"
    return f"@rint(self * {power}) / {power}" if decimals > 0 else f"@rint(self / {power}) * {power}"


row("round.decimals", _round_decimals, refuses=(only("float"), other_out))
row("frac", "self - @trunc(self)", refuses=(only("float"), other_out))

# ---- transcendental ----

for _name in (
    "exp exp2 expm1 log log2 log10 log1p sin cos tan tanh sinh cosh asin acos atan asinh acosh atanh sigmoid"
).split():
    row(_name, f"@{_name}(self)", kind=INT_TO_FLOAT, complex=f"@{_name}(self)", cost=4)
for _name in "erf erfc lgamma digamma".split():
    row(_name, f"@{_name}(self)", kind=INT_TO_FLOAT, cost=4)
row("atan2", "@atan2(self, other)", kind=INT_TO_FLOAT, cost=8)
row("hypot", "@hypot(self, other)", cost=4, refuses=only("float"))
row("logaddexp", "@logaddexp(self, other)", complex="@logaddexp(self, other)", cost=8, refuses=only("float"))
row("logaddexp2", "@logaddexp2(self, other)", cost=8, refuses=only("float"))
row(
    "xlogy.Tensor",
    "other != other ? other : self == 0 ? (T)0 : self * @log(other)",
    kind=INT_TO_FLOAT,
    operands={"self": "rounded", "other": "rounded"},
    cost=4,
)
row(
    "angle",
    "self != self ? self : self < 0 ? (T)3.141592653589793 : (T)0",
    kind=ALWAYS_FLOAT,
    complex="@angle(self)",
    cost=4,
)

row(
    "sinc",
    "self == 0 ? (T)1 : @sin((T)3.141592653589793 * self) / ((T)3.141592653589793 * self)",
    kind=INT_TO_FLOAT,
    complex="self.x == 0 && self.y == 0 ? MAKE_T(1, 0)"
    " : @div(@sin(self * 3.141592653589793), self * 3.141592653589793)",
    cost=8,
)

# ---- special functions ----

for _name in "i0 erfinv".split():
    row(_name, f"@{_name}(self)", kind=INT_TO_FLOAT, cost=16)
for _name in "i0e i1 i1e bessel_j0 bessel_j1 bessel_y0 bessel_y1 erfcx ndtri log_ndtr".split():
    row(f"special_{_name}", f"@{_name}(self)", kind=INT_TO_FLOAT, cost=16)
for _name in ("i0", "i1", "k0", "k1"):
    row(f"special_modified_bessel_{_name}", f"@{_name}(self)", kind=INT_TO_FLOAT, cost=16)
for _name in ("k0", "k1"):
    row(f"special_scaled_modified_bessel_{_name}", f"@{_name}e(x)", kind=INT_TO_FLOAT, cost=16)
for _name in ("spherical_bessel_j0", "airy_ai"):
    row(f"special_{_name}", f"@{_name}(x)", kind=INT_TO_FLOAT, cost=16)
row(
    "special_entr",
    "self > 0 ? -self * @log(self) : self == 0 ? (T)0 : self != self ? self : -INFINITY",
    kind=INT_TO_FLOAT,
)
row(
    "special_xlog1py",
    "other != other ? other : self == 0 ? (T)0 : self * @log1p(other)",
    kind=INT_TO_FLOAT,
    operands={"self": "rounded", "other": "rounded"},
    cost=4,
)
row("special_zeta", "@zeta(self, other)", kind=INT_TO_FLOAT, cost=64)
row("igamma", "@igamma(self, other)", cost=64, refuses=only("float"))
row("igammac", "@igammac(self, other)", cost=64, refuses=only("float"))


def _polygamma(n: int = 0, **_: Any) -> str:
    """The derivatives of digamma (DLMF 25.11.12)."""
    if n < 2:
        return "@trigamma(self)" if n else "@digamma(self)"
    factorial = repr(float(math.factorial(n))) if n <= 170 else "INFINITY"
    return f"{'' if n % 2 else '-'}{factorial} * @zeta((T){n + 1}, self)"


row("polygamma", _polygamma, kind=INT_TO_FLOAT, cost=64)


def _multivariate_gamma(p: int = 1, **_: Any) -> str:
    if p < 1:
        raise RuntimeError("p has to be greater than or equal to 1")
    constant = p * (p - 1) / 4 * math.log(math.pi)
    terms = f"for (int tg_k = 0; tg_k < {p}; ++tg_k) tg_sum += @lgamma(self - (T)0.5 * tg_k)"
    return f"T tg_sum = {constant!r}; {terms}; tg_sum"


row("mvlgamma", _multivariate_gamma, kind=INT_TO_FLOAT, cost=16)
for _kind in "tuvw":
    for _shifted in ("", "shifted_"):
        _name = f"{_shifted}chebyshev_polynomial_{_kind}"
        row(f"special_{_name}", f"@{_name}(x, n)", kind=INT_TO_FLOAT, cost=32)
for _name in ("hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l", "legendre_polynomial_p"):
    row(f"special_{_name}", f"@{_name}(x, n)", kind=INT_TO_FLOAT, cost=32)

# ---- parts of numbers ----


def _check_frexp(
    self: torch.Tensor, mantissa: torch.Tensor | None = None, exponent: torch.Tensor | None = None, **_: Any
) -> None:
    if not self.is_floating_point():
        raise RuntimeError(f"torch.frexp() only supports floating-point dtypes, got {self.dtype}")
    if mantissa is not None and mantissa.dtype != self.dtype:
        raise RuntimeError(f"torch.frexp() expects mantissa to have dtype {self.dtype} but got {mantissa.dtype}")
    if exponent is not None and exponent.dtype != torch.int32:
        raise RuntimeError(f"torch.frexp() expects exponent to have int dtype but got {exponent.dtype}")


row(
    "frexp.Tensor",
    {"0": "@frexp_mantissa(self)", "1": "@frexp_exponent(self)"},
    refuses=(only("float"), _check_frexp),
)

# These depend on the element type itself, which NO_OPMATH keeps.
row("nextafter", "@nextafter(self, other)", kind=Kind.NO_OPMATH, refuses=only("float"))


def _replaced(x: str, part: str, nan: Any, posinf: Any, neginf: Any) -> str:
    zero = "0" if nan is None else f"nan{part}"
    high = "@largest()" if posinf is None else f"posinf{part}"
    low = "-@largest()" if neginf is None else f"neginf{part}"
    return f"({x} != {x} ? {zero} : {x} == INFINITY ? {high} : {x} == -INFINITY ? {low} : {x})"


row(
    "nan_to_num",
    lambda nan=None, posinf=None, neginf=None, **_: _replaced("self", "", nan, posinf, neginf),
    kind=Kind.NO_OPMATH,
    integer="self",
    complex=lambda nan=None, posinf=None, neginf=None, **_: (
        f"MAKE_T({_replaced('self.x', '.x', nan, posinf, neginf)}, {_replaced('self.y', '.x', nan, posinf, neginf)})"
    ),
    meta=by_kind,  # torch's knows no complex numbers in place
    refuses=other_out,
)

# ---- activations ----


def _check_relu(self: torch.Tensor, **_: Any) -> None:
    if self.dtype == torch.bool:
        raise versions.BOOLEANS_REFUSED("Boolean inputs not supported for relu")


row("relu", "self != self ? self : (self > 0 ? self : (T)0)", exact="self", refuses=(only("number"), _check_relu))
row("silu", "@silu(self)", complex="@silu(self)", cost=4, refuses=(only("float"), other_out))
row("mish", "@mish(self)", cost=8, refuses=(only("float"), other_out))
row("hardswish", "self * (self < -3 ? (T)0 : self > 3 ? (T)6 : self + 3) / 6", refuses=(only("float"), other_out))
row("hardsigmoid", "(self < -3 ? (T)0 : self > 3 ? (T)6 : self + 3) / 6", refuses=(only("float"), other_out))


def _check_hardtanh(self: torch.Tensor, **_: Any) -> None:
    if self.dtype == torch.bool:
        raise versions.BOOLEANS_REFUSED("Bool inputs not supported for hardtanh")


_NOT_NEGATIVE = (0, None, "cannot do hardtanh on an unsigned type with negative limits")
_AT_LEAST_MIN = "(self < min_val ? min_val : self)"
row(
    "hardtanh",
    f"self != self ? self : {_AT_LEAST_MIN} > max_val ? max_val : {_AT_LEAST_MIN}",
    meta=by_kind,
    refuses=(
        only("number"),
        _check_hardtanh,
        within({"min_val": _NOT_NEGATIVE, "max_val": _NOT_NEGATIVE}, lambda self, **_: self.dtype == torch.uint8),
        other_out,
    ),
)
row("leaky_relu", "self > 0 ? self : self * negative_slope", refuses=(only("float"), check_floating, other_out))
row(
    "elu",
    "self > 0 ? self * scale : @expm1(self * input_scale) * (alpha * scale)",
    cost=4,
    refuses=(only("float"), check_floating, other_out),
)
row("threshold", "self <= threshold ? value : self", refuses=only("number"))
row(
    "softplus",
    "self * beta > threshold ? self : @log1p(@exp(self * beta)) / beta",
    cost=8,
    refuses=(only("float"), check_floating, other_out),
)
row(
    "softshrink",
    "self > lambd ? self - lambd : self < -lambd ? self + lambd : self * 0",
    refuses=(
        only("float"),
        within({"lambd": (0, None, "lambda must be in range [0, inf), but found {}")}),
        check_floating,
        other_out,
    ),
)
row(
    "hardshrink",
    "self >= -lambd && self <= lambd ? (T)0 : self",
    operands={"lambd": "rounded"},
    refuses=(only("float"), other_out),
)
row("_prelu_kernel", "self > 0 ? self : weight * self", refuses=only("float"))
row(
    "gelu",
    lambda approximate="none", **_: "@gelu(self)" if approximate == "none" else "@gelu_tanh(self)",
    cost=4,
    refuses=(only("float"), other_out),
)
row("logit", lambda eps=None, **_: _logit(eps), kind=INT_TO_FLOAT, cost=4)


def _logit(eps: Any) -> str:
    if eps is None:
        return "@log(self / (1 - self))"
    bounded = "(self < eps ? eps : self > 1 - eps ? 1 - eps : self)"
    return f"@log({bounded} / (1 - {bounded}))"


# ---- backwards of activations ----


def _logit_backward(eps: Any = None, **_: Any) -> str:
    slope = "grad_output / (self * (1 - self))"
    if eps is None:
        return f"self < 0 || self > 1 ? (T)NAN : {slope}"
    return f"self < eps || self > 1 - eps ? (T)0 : {slope}"


row("logit_backward", _logit_backward, refuses=only("float"))

row("threshold_backward", "self <= threshold ? (T)0 : grad_output", exact="grad_output", refuses=only("number"))
row(
    "sigmoid_backward",
    "grad_output * (1 - output) * output",
    complex="@mul(grad_output, @conj(@mul(MAKE_T(1, 0) - output, output)))",
    refuses=only("float"),
)
row(
    "tanh_backward",
    "grad_output * (1 - output * output)",
    complex="@mul(grad_output, @conj(MAKE_T(1, 0) - @mul(output, output)))",
    refuses=only("float"),
)
row("silu_backward", "@silu_backward(grad_output, self)", cost=4, refuses=only("float"))
row("mish_backward", "@mish_backward(grad_output, self)", cost=8, refuses=only("float"))
row(
    "hardswish_backward",
    "self <= -3 ? (T)0 : self < 3 ? grad_output * (self / 3 + 0.5) : grad_output",
    refuses=only("float"),
)
row("hardsigmoid_backward", "self > -3 && self < 3 ? grad_output / 6 : (T)0", refuses=only("float"))
row("hardtanh_backward", "self <= min_val || self >= max_val ? (T)0 : grad_output", refuses=only("float"))


def _positive_in_place(flag: str, name: str, op: str) -> Within:
    """Bounds of a backward of which `flag` says that it has the result, which tells no sign of the input then."""
    refusal = f"The gradient of an in-place {op} with a negative slope ({{}}) is unknown: call out-of-place version"
    return within({name: (0, None, refusal)}, where=flag)


row(
    "leaky_relu_backward",
    "self > 0 ? grad_output : grad_output * negative_slope",
    refuses=(only("float"), _positive_in_place("self_is_result", "negative_slope", "leaky_relu")),
)


def _elu_backward(is_result: bool = False, **_: Any) -> str:
    slope = "(self_or_result + alpha * scale)" if is_result else "(alpha * scale) * @exp(self_or_result * input_scale)"
    return f"self_or_result <= 0 ? grad_output * input_scale * {slope} : grad_output * scale"


row(
    "elu_backward",
    _elu_backward,
    cost=4,
    refuses=(only("float"), _positive_in_place("is_result", "alpha", "elu")),
)
row(
    "softplus_backward",
    "self * beta > threshold ? grad_output : grad_output * @sigmoid(self * beta)",
    cost=4,
    refuses=only("float"),
)
row("softshrink_backward", "self >= -lambd && self <= lambd ? (T)0 : grad_output", refuses=only("float"))
row("hardshrink_backward", "self >= -lambd && self <= lambd ? (T)0 : grad_out", refuses=only("float"))
row(
    "gelu_backward",
    lambda approximate="none", **_: (
        "@gelu_backward(grad_output, self)" if approximate == "none" else "@gelu_tanh_backward(grad_output, self)"
    ),
    cost=8,
    refuses=only("float"),
)
row(
    "_prelu_kernel_backward",
    {"0": "self > 0 ? grad_output : weight * grad_output", "1": "self > 0 ? (T)0 : self * grad_output"},
    refuses=only("float"),
)
row("log_sigmoid_forward", {"0": "@log_sigmoid(self)"}, cost=8, refuses=(only("float"), other_out))
row("log_sigmoid_backward", "grad_output * @sigmoid(-self)", cost=4, refuses=(only("float"), other_out))


# ---- fills ----

row("fill_.Scalar fill_.Tensor", "value", complex="value", refuses=_check_one_value)
row("zero_", "0", complex="MAKE_T(0, 0)")
