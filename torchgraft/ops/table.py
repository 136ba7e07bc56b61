"""Rows of the tables: a pointwise op as an expression, a reduction as four."""

from __future__ import annotations

import enum
import inspect
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchgraft.codegen import ElementType, UnsupportedDtype, element_type
from torchgraft.codegen.pointwise import Input, Loop, Number, Result, convert, expression
from torchgraft.codegen.types import BY_NAME, value_ctype
from torchgraft.functions import HELPERS
from torchgraft.kernels.reduce import Reduction
from torchgraft.plans import pointwise
from torchgraft.plans.builder import PlanBuilder
from torchgraft.plans.elementwise import (
    compute_dtype,
    promoted_dtype,
    result_spec,
    symbolic_result_spec,
    wrapped_number,
)
from torchgraft.plans.meta import has_meta
from torchgraft.plans.quick_meta import QUICK_METAS
from torchgraft.plans.reduction import plan_reduction, reduced_dims
from torchgraft.plans.refusals import Refusals, Refuses, gathered, other_out, refuse_dtype
from torchgraft.plans.registry import Options, register
from torchgraft.plans.scalar import Scalar
from torchgraft.plans.schema import Parameter, overload_name, parameters, resolve
from torchgraft.plans.steps import Operand
from torchgraft.plans.versions import here

__all__ = ["Kind", "Row", "by_kind", "reduction", "row"]

Text = str | Callable[..., str]

_FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_ANY_NUMBER = ("self", "other", "exponent")  # tensors in whose place torch's kernels take a number of any type
_REAL_OF = {"c64": "f32", "c128": "f64"}
_OPERANDS = ("Tensor", "number", "float")  # argument types that an expression may compute with
_NUMBER = "number"  # what texts get of a tensor that is a number from the CPU, in place of the argument's name
_ROLES = ("promotes", "keeps", "rounded", "cast", "divisor")

# Of an expression: names, unless they are called, members or a mathematical function; and those that it gives values.
_NAME = re.compile(r"(?<![\w.@])[A-Za-z_]\w*\b(?!\s*\()")
_OWN_NAME = re.compile(r"\b([A-Za-z_]\w*)\s*(?:<<|>>|[-+*/%&|^])?=(?!=)|[A-Za-z_]\w*\s+([A-Za-z_]\w*)\s*[;,\[]")
# What the kernel language has: constants and words in capitals, T among them; types; statements.
_LANGUAGE = re.compile(
    r"[A-Z][A-Z0-9_]*|MAKE_T|(u?(char|short|int|long)|float|double)\d*u?|bool|void|size_t|(un)?signed|const|volatile|"
    r"if|else|for|while|do|switch|case|default|break|continue|return|true|false"
)


class Kind(enum.Enum):
    """How an op's operands are promoted to the type that is computed in, and what becomes of that type: torch's
    ELEMENTWISE_TYPE_PROMOTION_KIND of the same names, and one more."""

    DEFAULT = "their common type"
    NO_OPMATH = "their common type, also where it has 16 bits"
    INT_TO_FLOAT = "floating-point numbers of integers"
    ALWAYS_BOOL = "bool of all"
    COMPLEX_TO_FLOAT = "real numbers of complex ones"
    BOOL_TO_LONG = "int64 of bool"
    ALWAYS_FLOAT = "real floating-point numbers of all"

    @property
    def gives_real(self) -> bool:
        """Whether the result of complex arguments is real."""
        return self in (Kind.COMPLEX_TO_FLOAT, Kind.ALWAYS_FLOAT)

    def computes_in(self, common: torch.dtype) -> torch.dtype:
        """The type that is computed in, of the operands' common one."""
        if self is Kind.NO_OPMATH:
            return common
        return compute_dtype(self._widened(common))

    def gives(self, common: torch.dtype) -> torch.dtype:
        """The result's type, of the operands' common one."""
        if self is Kind.ALWAYS_BOOL:
            return torch.bool
        widened = self._widened(common)
        return widened.to_real() if self.gives_real and widened.is_complex else widened

    def _widened(self, common: torch.dtype) -> torch.dtype:
        if self in (Kind.INT_TO_FLOAT, Kind.ALWAYS_FLOAT) and not (common.is_floating_point or common.is_complex):
            return torch.get_default_dtype()
        return torch.int64 if self is Kind.BOOL_TO_LONG and common == torch.bool else common


def by_kind(**_: Any) -> Any:
    """For `row(meta=...)`: the results' dtypes are as `kind` says also where torch has a meta function, which says
    otherwise."""
    raise TypeError("by_kind stands for the meta function of a row")


def row(
    names: str,
    text: Text | Mapping[str, Text],
    *,
    kind: Kind | Callable[..., Kind] = Kind.DEFAULT,
    integer: Text | None = None,
    boolean: Text | None = None,
    complex: Text | None = None,
    operands: Mapping[str, str] | None = None,
    exact: str = "",
    cost: int = 1,
    meta: Callable[..., Any] | None = None,
    refuses: Refuses = (),
    replace: bool = False,
) -> None:
    """Declares a pointwise op.

    The op's in-place and out= forms, every dtype and stride, broadcasting and type promotion follow from the row; for
    an op of an author's own its meta function too, if it has none.

    Args:
        names: functional overloads, separated by blanks; all have the same argument names.
        text: the result's expression in terms of the arguments' names; ``@f(x)`` is a mathematical function of the
            compute type, ``T`` that type. Statements may stand before it, each ended by a semicolon. For several
            results a mapping from their order ("0", "1") to expressions. A function gets the call's static arguments by
            keyword and returns the text.
        kind: the type promotion kind, or a function of the static arguments that gives it. Texts for NO_OPMATH may use
            what depends on the element type itself: ``@narrow(x)`` rounds to it.
        integer, boolean, complex: the expression for such compute types where it differs. Without `complex`, complex
            calls go to the fallback.
        operands: what arguments are, by name, each one word or several. "promotes": a scalar takes part in type
            promotion. "keeps": a tensor keeps its own type and takes no part in promotion. "rounded": a number, or a
            tensor that another decides the type of, that 16-bit types round before it is computed with, as torch does
            where its kernel takes it in the tensor's own type. "cast": a number is converted to the compute type
            without a check that it fits, as torch does where its kernel takes it as a tensor; others must fit.
            "divisor": integers are divided by it; where it is 0 the op raises torch's RuntimeError.
        exact: names of tensors, separated by blanks, of which each element of the result is one, but for its sign, or a
            whole number next to it. If they have the result's type there is nothing to round.
        cost: of one element relative to an addition.
        meta: as for `planner`; `by_kind` for what `kind` says also where torch has a meta function.
        refuses: as for `planner`, and `only(...)` of compute types. Functions look at dtypes, not at shapes: a row's
            plans are for any. An `out=` of another dtype gets the result converted, but with `other_out`.
        replace: takes the place of the planner that an op has, which is an error otherwise.

    Raises:
        ValueError: there is no such op, it has a planner, or a row says what its schema does not allow, such as a name
            that is no argument.
    """
    refusals = gathered(refuses)
    for name in here(names.split()):
        op = resolve(name)
        _check_row(name, op._schema, operands or {}, exact)
        _check_names(name, op._schema, text, integer, boolean, complex, kind)
        made = Row(name, parameters(op), text, kind, integer, boolean, complex, operands or {}, exact, cost, refusals)
        # torch's own refuses a complex out= for the real numbers that are made of complex ones; its kernels do not.
        gives_real = isinstance(kind, Kind) and kind.gives_real
        own = made.meta if meta is by_kind or gives_real or not has_meta(op) else None
        options = Options(
            pointwise=True,
            by_value=True,
            meta=own if meta in (None, by_kind) else meta,
            quick_meta=made.quick_meta if meta is None and made.reads_all_to_give_one else None,
            refusals=refusals,
        )
        register(name, made, options, replace)


def _check_row(name: str, schema: torch._C.FunctionSchema, operands: Mapping[str, str], exact: str) -> None:
    """Finds at once what would only be found at the first call."""
    if not any(str(a.type) == "Tensor" for a in schema.arguments):
        raise ValueError(f"{name} has no tensor among its arguments, so it is no pointwise op: {schema}")
    unknown = {*operands, *exact.split()} - {a.name for a in schema.arguments}
    if unknown:
        raise ValueError(f"{name} has no argument {', '.join(sorted(unknown))}: {schema}")
    odd = {word for words in operands.values() for word in words.split()} - set(_ROLES)
    if odd:
        raise ValueError(f"an operand is one of {', '.join(_ROLES)}, not {', '.join(sorted(odd))}")
    if any(str(r.type) != "Tensor" for r in schema.returns):
        raise ValueError(f"{name} returns something else than tensors, so it is no pointwise op: {schema}")


def _check_names(name: str, schema: torch._C.FunctionSchema, *given: Any) -> None:
    """Refuses names in expressions, and parameters of functions in their places, that are no arguments of the op."""
    arguments = {a.name for a in schema.arguments}
    for text in _each(given):
        unknown = _foreign_names(text) - arguments
        if unknown:
            where = repr(text) if isinstance(text, str) else "a function of its row"
            raise ValueError(f"{name} has no argument {', '.join(sorted(unknown))}, which {where} names: {schema}")


def _each(given: Iterable[Any]) -> Iterator[Any]:
    for text in given:
        yield from text.values() if isinstance(text, Mapping) else (text,)


def _foreign_names(text: Any) -> set[str]:
    """What an expression takes from elsewhere, or what a function asks for by name."""
    if isinstance(text, str):
        own = {word for found in _OWN_NAME.findall(text) for word in found}
        return {word for word in _NAME.findall(text) if word not in own and not _LANGUAGE.fullmatch(word)}
    if not callable(text) or isinstance(text, Kind):
        return set()
    asked = inspect.signature(text).parameters.values()
    return {
        each.name
        for each in asked
        if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD) and each.default is each.empty
    }


@dataclass(frozen=True)
class Row:
    """A pointwise op as `row` declares it, and its planner."""

    op: str
    parameters: tuple[Parameter, ...]
    text: Text | Mapping[str, Text]
    kind: Kind | Callable[..., Kind]
    integer: Text | None
    boolean: Text | None
    complex: Text | None
    operands: Mapping[str, str]
    exact: str
    cost: int
    refusals: Refusals

    @property
    def name(self) -> str:
        """A name for its kernels."""
        return re.sub(r"\W", "_", self.op)

    def _are(self, role: str) -> set[str]:
        """The operands that are said to be something."""
        return {name for name, words in self.operands.items() if role in words.split()}

    @property
    def reads_all_to_give_one(self) -> bool:
        """Whether it has one result, of the shape of all its tensors."""
        if isinstance(self.text, Mapping):
            return False
        words = set(re.findall(r"\w+", self.text)) if isinstance(self.text, str) else None
        return words is None or all(a.name in words for a in self.parameters if "Tensor" in a.type)

    @property
    def _promote(self) -> set[str]:
        # A number in the place of a tensor takes part in type promotion, like one that is an operand by itself.
        return self._are("promotes") | {a.name for a in self.parameters if "Tensor" in a.type}

    @property
    def _divisor(self) -> str:
        return next(iter(self._are("divisor")), "")

    def _is_number(self, name: str, argument: Any) -> bool:
        """Python numbers stand for tensors or scalars where an op is planned inside another."""
        may_be = any(_is_operand(a) for a in self.parameters if a.name == name)
        return isinstance(argument, (int, float, complex)) and may_be

    def as_operator(self, p: PlanBuilder, out: Any, arguments: dict[str, Any]) -> bool:
        """Plans the op with the device's operator "pointwise", whose tensors have one dtype and one shape."""
        kind_name = self.op.rpartition("::")[2].partition(".")[0]
        if isinstance(self.text, Mapping) or kind_name in ("fill_", "zero_"):  # several results; another operator
            return False
        tensors = {n: a for n, a in arguments.items() if isinstance(a, torch.Tensor)}
        scalars = {n: a for n, a in arguments.items() if isinstance(a, Scalar) or self._is_number(n, a)}
        static: dict[str, Any] = {n: n if n in tensors else a for n, a in arguments.items()}
        static |= {n: _NUMBER for n, a in tensors.items() if p.is_cpu_scalar(a)}
        kind = self.kind(**static) if callable(self.kind) else self.kind
        compute, common = self._dtypes(p, tensors, scalars, kind)
        element = element_type(compute)
        if self.refusals.refuses_type(is_integer=element.is_integer, is_bool=element.name == "b8"):
            refuse_dtype(p.op, element.dtype)
        statements, texts = self.texts(element.name, static)  # which refuse values, too
        used = set(re.findall(r"[A-Za-z_]\w*", " ".join([statements, *texts])))
        if self._fault(p, arguments.get(self._divisor), element, out) or (kind.gives_real and common.is_complex):
            return False
        if out.numel() == 0:
            return True
        if kind is not Kind.ALWAYS_BOOL:
            common = kind.gives(common)
        inputs: list[Operand] = []
        names, attributes = [], {}
        for name, argument in arguments.items():
            if name in scalars or (name in tensors and p.is_cpu_scalar(tensors[name])):
                operand = argument
            elif name in tensors:
                spec = tensors[name] if name in self._are("keeps") else p.cast(tensors[name], common)
                operand = spec.expand(out.shape)
            else:
                if argument is not None:
                    attributes[name] = argument
                continue
            if name in used or not isinstance(self.text, str):  # a function's text may be for one value of an argument
                inputs.append(operand)
                names.append(name)
        gives = torch.bool if kind is Kind.ALWAYS_BOOL else common
        result = out if out.dtype == gives else p.empty(out.shape, gives)
        if not p.operator("pointwise", inputs, [result], kind=kind_name, names=" ".join(names), **attributes):
            return False
        if result is not out:
            p.copy(out, result)
        return True

    def __call__(self, p: PlanBuilder, out: Any, *args: Any, **kwargs: Any) -> None:
        arguments = dict(zip((a.name for a in self.parameters), args, strict=False)) | kwargs
        tensors = {n: a for n, a in arguments.items() if isinstance(a, torch.Tensor)}
        scalars = {n: a for n, a in arguments.items() if isinstance(a, Scalar) or self._is_number(n, a)}
        static = {n: n if n in tensors else a for n, a in arguments.items()}  # a tensor's name says it is there
        static |= {n: _NUMBER for n, a in tensors.items() if p.is_cpu_scalar(a)}
        kind = self.kind(**static) if callable(self.kind) else self.kind
        compute, own_dtype = self._dtypes(p, tensors, scalars, kind)
        p.check_dtype(compute)
        element = element_type(compute)
        if self.refusals.refuses_type(is_integer=element.is_integer, is_bool=element.name == "b8"):
            refuse_dtype(p.op, element.dtype)
        statements, texts = self.texts(element.name, static)
        used = set(re.findall(r"[A-Za-z_]\w*", " ".join([statements, *texts])))

        keep, cast, rounded = self._are("keeps"), self._are("cast"), self._are("rounded")
        inputs: list[Input] = []
        specs: list[torch.Tensor] = []
        numbers: list[Number] = []
        values: list[Any] = []
        foreign: list[str] = []  # what has another type than the one that is computed for
        given: dict[str, str] = {}  # the type of what is converted in the kernel
        for name, argument in arguments.items():
            if name not in used:
                continue
            if isinstance(argument, torch.Tensor):
                own = element_type(argument.dtype)
                wanted = own.compute if name in keep else element.name
                if p.is_cpu_scalar(argument):
                    numbers.append(Number(name, wanted))
                    values.append(argument)
                    foreign.append(name)
                else:
                    if argument.dtype != own_dtype:
                        foreign.append(name)
                    inputs.append(Input(name, own.name, wanted))
                    specs.append(argument)
            elif name in scalars:
                if name in cast:
                    given[name] = p.widest(argument, element.name)
                type_ = given.get(name, element.name)
                numbers.append(Number(name, type_))
                values.append(argument if isinstance(argument, Scalar) else _converted(argument, BY_NAME[type_]))
                foreign.append(name)

        prepared = {name: convert(name, type_, element.name) for name, type_ in given.items()}
        if own_dtype in (torch.float16, torch.bfloat16):
            narrow = f"tg_narrow_{element_type(own_dtype).name}"
            prepared |= {n: f"{narrow}({prepared.get(n, n)})" for n in foreign if n in rounded}
        fault = self._fault(p, arguments.get(self._divisor), element, out)
        if fault:
            report = p.error("ZeroDivisionError", RuntimeError)
            values += [report.words, report.code]
        statements, fault, *texts = _prepare(prepared, value_ctype(element.name), [statements, fault, *texts])
        outs = list(out) if isinstance(out, (tuple, list)) else [out]
        result_type = self._result_type(element.name, kind)
        own_names = {i.name for i in inputs} - set(foreign)
        exact = bool(self.exact) and set(self.exact.split()) <= own_names
        results = tuple(
            Result(f"out{n}", element_type(spec.dtype).name, result_type, text, exact and spec.dtype == own_dtype)
            for n, (spec, text) in enumerate(zip(outs, texts, strict=False))
        )
        loop = Loop(
            f"{self.name}_{element.name}",
            tuple(inputs),
            tuple(numbers),
            results,
            statements,
            self.cost,
            fault,
        )
        pointwise.plan_loop(p, loop, outs[: len(results)], specs, values)

    def _dtypes(
        self, p: PlanBuilder, tensors: dict[str, torch.Tensor], scalars: dict[str, Any], kind: Kind
    ) -> tuple[torch.dtype, torch.dtype]:
        """What is computed in, and the operands' common type, which is narrower where that has 16 bits."""
        operands: list[Any] = []
        keep, promote = self._are("keeps"), self._promote
        for name, spec in tensors.items():
            if name in keep:
                continue
            operands.append(wrapped_number(spec.dtype) if p.is_wrapped_number(spec) else spec)
        for name, scalar in scalars.items():
            if name in promote:
                operands.append(scalar.python_type(1) if isinstance(scalar, Scalar) else scalar)
        if not any(isinstance(o, torch.Tensor) for o in operands):
            operands += [spec for name, spec in tensors.items() if name not in keep]
        common = promoted_dtype(operands)
        return kind.computes_in(common), common

    def meta(self, /, **arguments: Any) -> Any:
        """The results of an op that has no meta function: broadcast, of the promoted type, strided as torch would."""
        return self._results(arguments, symbolic_result_spec)

    def _results(
        self, arguments: dict[str, Any], spec: Callable[[Sequence[torch.Tensor], torch.dtype], torch.Tensor]
    ) -> Any:
        tensors = {n: a for n, a in arguments.items() if isinstance(a, torch.Tensor)}
        static = {n: n if n in tensors else a for n, a in arguments.items()}
        kind = self.kind(**static) if callable(self.kind) else self.kind
        keep = self._are("keeps")
        operands = [a for n, a in tensors.items() if n not in keep] or list(tensors.values())
        operands += [arguments[n] for n in self._promote if arguments[n] is not None and n not in tensors]
        dtype = kind.gives(promoted_dtype(operands))
        results = len(self.text) if isinstance(self.text, Mapping) else 1
        outs = [spec(list(tensors.values()), dtype) for _ in range(results)]
        return outs[0] if len(outs) == 1 else tuple(outs)

    def quick_meta(self, /, **arguments: Any) -> torch.Tensor | None:
        """What `meta` says where torch's meta function says the same: of contiguous floating-point tensors of one type
        and masks. What has its elements in another order, or is refused, is left to torch, whose functions in Python
        import sympy besides (half a second)."""
        specs = {n: a for n, a in arguments.items() if isinstance(a, torch.Tensor) and a.is_meta}
        kept = self._are("keeps")
        numbers = {n: a for n, a in arguments.items() if n not in specs}
        if len({spec.dtype for n, spec in specs.items() if n not in kept}) != 1 or not all(
            spec.is_contiguous() and spec.dtype in ((torch.bool,) if n in kept else _FLOATS)
            for n, spec in specs.items()
        ):
            return None
        if any(
            a.is_complex() or n not in _ANY_NUMBER if isinstance(a, torch.Tensor) else isinstance(a, complex)
            for n, a in numbers.items()
        ):
            return None
        modes = [a for a in self.parameters if a.name in numbers and not _is_operand(a) and a.type != "bool"]
        if any(numbers[a.name] != a.default for a in modes):
            return None  # it may be none that there is
        result: torch.Tensor = self._results(arguments, result_spec)
        return result

    def _fault(self, p: PlanBuilder, divisor: Any, element: ElementType, out: torch.Tensor) -> str:
        """When the kernel must report a division by zero. Numbers that are known not to be 0 are guarded instead: a
        call that may report waits for its kernel."""
        if divisor is None or not element.is_integer:
            return ""
        fault = f"{self._divisor} == 0"
        number = p.peek(divisor)
        if number is None:
            return fault
        modulus = 2 ** (8 * element.size)  # the numbers wrap
        if int(number.real) % modulus == 0:
            if out.numel() > 0:
                raise RuntimeError("ZeroDivisionError")
            return fault
        p.no_multiple(divisor, modulus)
        return ""

    def texts(self, compute: str, static: dict[str, Any]) -> tuple[str, list[str]]:
        """The statements and the results' expressions."""
        element = BY_NAME[compute]
        chosen: Text | Mapping[str, Text] | None = self.text
        if element.is_complex:
            chosen = self.complex
        elif compute == "b8" and self.boolean is not None:
            chosen = self.boolean
        elif element.is_integer and self.integer is not None:
            chosen = self.integer
        if chosen is None:
            raise UnsupportedDtype(f"{self.name} has no kernel for {compute}")
        texts = list(chosen.values()) if isinstance(chosen, Mapping) else [chosen]
        parts = [_resolve(text, compute, static).rpartition(";") for text in texts]
        return "\n".join(f"{before};" for before, end, _ in parts if end), [text for *_, text in parts]

    def _result_type(self, compute: str, kind: Kind) -> str:
        if kind == Kind.ALWAYS_BOOL:
            return "b8"
        if kind.gives_real:
            return _REAL_OF.get(compute, compute)
        return compute


def _is_operand(parameter: Parameter) -> bool:
    """Whether an expression may compute with it."""
    return parameter.type.removeprefix("Optional[").rstrip("]") in _OPERANDS


def _prepare(prepared: Mapping[str, str], ctype: str, texts: list[str]) -> list[str]:
    """Statements and expressions, the statements first, that use other values of named operands."""
    lines = []
    for name, value in prepared.items():
        lines.append(f"{ctype} tg_{name} = {value};")
        texts = [re.sub(rf"\b{name}\b", f"tg_{name}", text) for text in texts]
    return ["\n".join([*lines, texts[0]]), *texts[1:]]


def _converted(number: complex, element: ElementType) -> complex:
    """A number as torch's kernels take it: fractions are cut off for integers, imaginary parts are refused."""
    if isinstance(number, complex) and not element.is_complex:
        if number.imag:
            raise RuntimeError(f"value cannot be converted to type {element.storage} without overflow")
        number = number.real
    if isinstance(number, float) and element.is_integer:
        if not math.isfinite(number):
            raise RuntimeError(f"value cannot be converted to type {element.storage} without overflow")
        return int(number)
    return number


def _resolve(text: Text, compute: str, static: dict[str, Any]) -> str:
    body = text(**static) if callable(text) else text
    if BY_NAME[compute].is_complex:
        for function in re.findall(r"@(\w+)", body):
            if f"tg_{function}_{BY_NAME[compute].compute}" not in HELPERS:
                raise UnsupportedDtype(f"no {function} for {compute}")
    return expression(body, compute)


# ---- reductions ----

Accumulated = Callable[[ElementType, ElementType, int], Reduction]
"""What a kernel accumulates, of the types of the input and of the (first) result, and how many elements there are."""


def reduction(
    names: str,
    *,
    combine: str,
    identity: str,
    map: str = "x",
    finish: str = "a",
    dtype: torch.dtype | None = None,
    accumulate: torch.dtype | None = None,
    replace: bool = False,
) -> None:
    """Declares a reduction.

    The op takes a tensor, optionally `dim` (an int, or several; all without it) and `keepdim`, and numbers that the
    texts use by name. Its out= form, every dtype but the complex ones, strides and dimensions follow, and for an op of
    an author's own the meta function, if it has none.

    Args:
        names: functional overloads, separated by blanks.
        combine: of two accumulated values, ``a`` and ``b``: "a + b". It must be associative and commutative.
        identity: what `combine` leaves the other as it is for: "0".
        map: what of an element ``x`` is accumulated: "x * x".
        finish: the result, of the accumulated value ``a`` and the number of elements ``count``: "a / count".
            In all texts ``@f(x)`` is a mathematical function of the accumulated type and ``T`` that type.
        dtype: of the result; the input's by default.
        accumulate: in which dtype is accumulated; by default one that is wide enough for sums of the result's.
        replace: takes the place of the planner that an op has, which is an error otherwise.

    Raises:
        ValueError: there is no such op, it has a planner, or its schema is not that of a reduction.
    """
    held = None if accumulate is None else element_type(accumulate)
    for name in here(names.split()):
        op = resolve(name)
        if len(op._schema.returns) != 1 or any(a.name == "dtype" for a in parameters(op)):
            raise ValueError(_no_reduction(op))
        numbers = [a.name for a in parameters(op) if a.type in ("number", "float")]
        accumulated = _accumulated(re.sub(r"\W", "_", name), numbers, combine, identity, map, finish, held)
        reduction_of(name, accumulated, dtype=dtype, refuses=(), replace=replace)


def reduction_of(
    names: str,
    accumulated: Accumulated,
    *,
    reads: Callable[[torch.dtype, torch.dtype], torch.dtype] = lambda given, result: given,
    empty_is_all: bool = True,
    dtype: torch.dtype | None = None,
    meta: Callable[..., Any] | None = None,
    refuses: Refuses = other_out,
    replace: bool = False,
) -> None:
    """Declares a reduction that takes more than four texts to say: of several results, or of complex numbers.

    Args:
        names, dtype, replace: as of `reduction`.
        accumulated: finds it for a call.
        reads: the dtype to which the input is converted before, of its own and the result's.
        empty_is_all: whether an empty `dim` stands for all dimensions.
        meta, refuses: as of `planner`.
    """
    for name in here(names.split()):
        op = resolve(name)
        plan = _ReductionPlanner(op, accumulated, reads, empty_is_all, dtype)
        quick = QUICK_METAS.get(overload_name(op)) if meta is None else None
        own = meta or (None if has_meta(op) else plan.meta)
        register(name, plan, Options(meta=own, quick_meta=quick, refusals=gathered(refuses)), replace)


def _no_reduction(op: torch._ops.OpOverload) -> str:
    name = overload_name(op)
    return f"{name} is no reduction of one tensor to one, over `dim` with `keepdim` and with numbers: {op._schema}"


def _accumulated(
    name: str, numbers: list[str], combine: str, identity: str, map_text: str, finish: str, wanted: ElementType | None
) -> Accumulated:
    """What a row's four texts say."""

    def accumulated(x: ElementType, result: ElementType, count: int) -> Reduction:
        held = wanted.name if wanted is not None else result.accumulate
        if x.is_complex or BY_NAME[held].is_complex:
            raise UnsupportedDtype(f"{name} has no kernel for complex numbers")
        taken = re.sub(r"\bx\b", f"(({value_ctype(held)})x)", map_text)

        def text(template: str, a: str, b: str = "") -> str:
            named = {"a": a, "b": b}
            return expression(re.sub(r"\b[ab]\b", lambda m: named[m[0]], template), held)

        return Reduction(
            name=f"{name}_{held}_{result.name}",
            fields=(("value", held, text(identity, "")),),
            step=f"A.value = {text(combine, 'A.value', f'({taken})')};",
            combine=f"A.value = {text(combine, 'A.value', 'B.value')};",
            results=((result.name, text(finish, "A.value")),),
            values=tuple((name, held) for name in numbers),
        )

    return accumulated


@dataclass(frozen=True)
class _ReductionPlanner:
    op: torch._ops.OpOverload
    accumulated: Accumulated
    reads: Callable[[torch.dtype, torch.dtype], torch.dtype]
    empty_is_all: bool
    dtype: torch.dtype | None

    def __post_init__(self) -> None:
        types = {a.name: a.type for a in parameters(self.op) if a.name not in ("dim", "keepdim", "dtype")}
        others = set(types.values()) - {"Tensor", "number", "float"}
        returns = {str(r.type) for r in self.op._schema.returns}
        if list(types.values()).count("Tensor") != 1 or others or returns != {"Tensor"}:
            raise ValueError(_no_reduction(self.op))

    def _reduced(self, arguments: Mapping[str, Any]) -> tuple[torch.Tensor, list[int]]:
        x: torch.Tensor = arguments[next(a.name for a in parameters(self.op) if a.type == "Tensor")]
        return x, reduced_dims(x.dim(), arguments.get("dim"), self.empty_is_all)

    def meta(self, /, **arguments: Any) -> torch.Tensor:
        x, dims = self._reduced(arguments)
        keep = arguments.get("keepdim", False)
        shape = [1 if d in dims else n for d, n in enumerate(x.shape) if keep or d not in dims]
        return x.new_empty(shape, dtype=self.dtype or x.dtype)

    def __call__(self, p: PlanBuilder, out: torch.Tensor | tuple[torch.Tensor, ...], *args: Any, **kwargs: Any) -> None:
        arguments = dict(zip((a.name for a in parameters(self.op)), args, strict=False)) | kwargs
        x, dims = self._reduced(arguments)
        outs = out if isinstance(out, tuple) else (out,)
        x = p.cast(x, self.reads(x.dtype, outs[0].dtype))
        count = math.prod(x.size(d) for d in dims)
        what = self.accumulated(element_type(x.dtype), element_type(outs[0].dtype), count)
        for _, held, _ in what.fields:
            p.check_dtype(BY_NAME[held].dtype)
        plan_reduction(p, what, outs, x, dims, [arguments[name] for name, _ in what.values])
