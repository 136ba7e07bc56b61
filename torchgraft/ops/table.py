"""Rows of the tables: a pointwise op as an expression, a reduction as four."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as Kind
from torch._prims_common import compute_elementwise_output_strides, elementwise_dtypes

from torchgraft.codegen import ElementType, UnsupportedDtype, element_type, pointwise
from torchgraft.codegen.types import BY_NAME, value_ctype
from torchgraft.functions import HELPERS
from torchgraft.kernels.reduce import Reduction
from torchgraft.ops.reductions import plan_reduction, reduced_dims
from torchgraft.plans.builder import PlanBuilder
from torchgraft.plans.registry import (
    Options,
    check_dtype,
    has_meta,
    number_like,
    refuse_dtype,
    register,
    resolve,
)
from torchgraft.plans.scalar import Scalar

__all__ = ["Kind", "reduction", "row"]

Text = str | Callable[..., str]

_REAL_OF = {"c64": "f32", "c128": "f64"}
_OPERANDS = ("Tensor", "number", "float")  # argument types that an expression may compute with
Bounds = Mapping[str, tuple[float | None, float | None, str]]  # of scalars: at least, at most, what an error says

_ANYTHING: Bounds = {}
_NUMBER = "number"  # what texts get of a tensor that is a number from the CPU, in place of the argument's name
_NUMBER_OF = {"f": 1.0, "c": 1j, "i": 1, "b": True}


def row(
    names: str,
    text: Text | Mapping[str, Text],
    *,
    kind: Kind | Callable[..., Kind] = Kind.DEFAULT,
    integer: Text | None = None,
    boolean: Text | None = None,
    complex: Text | None = None,
    promote: tuple[str, ...] = (),
    keep: tuple[str, ...] = (),
    rounded: tuple[str, ...] = (),
    cast: tuple[str, ...] = (),
    divisor: str = "",
    statements: Text = "",
    cost: int = 1,
    types: str = "all",
    complex_to_real: bool = False,
    within: Bounds | Callable[..., Bounds] = _ANYTHING,
    own_meta: bool = False,
    exact_out: bool = False,
    eager: Callable[[dict[str, Any], bool], Callable[..., Any] | None] | None = None,
    check: Callable[..., None] | None = None,
    replace: bool = False,
) -> None:
    """Declares a pointwise op.

    The op's in-place and out= forms, every dtype and stride, broadcasting and type promotion follow from the row; for
    an op of an author's own its meta function too, if it has none.

    Args:
        names: functional overloads, separated by blanks; all have the same argument names.
        text: the result's expression in terms of the arguments' names; ``@f(x)`` is a mathematical function of the
            compute type, ``T`` that type. For several results a mapping from their order ("0", "1") to expressions. A
            function gets the call's static arguments by keyword and returns the text.
        kind: torch's type promotion kind, or a function of the static arguments that gives it. Texts for NO_OPMATH may
            use what depends on the element type itself: ``@narrow(x)`` rounds to it.
        integer, boolean, complex: the expression for such compute types where it differs. Without `complex`, complex
            calls go to the fallback.
        promote: scalar arguments that take part in type promotion.
        keep: tensor arguments that keep their own type and take no part in promotion.
        rounded: numbers, and tensors that another decides the type of, that 16-bit types round before they are
            computed with, as torch does where its kernel takes them in the tensor's own type.
        cast: numbers that are converted to the compute type without a check that they fit, as torch does where its
            kernel takes them as tensors. Others must fit.
        divisor: the operand that integers are divided by: where it is 0 the op raises torch's RuntimeError.
        statements: text before the expressions.
        cost: of one element relative to an addition.
        types: compute types that the op has on torch's CPU too: "all", "float" (with complex where there is an
            expression), "integer" (with bool) or "number" (all but bool). Others raise NotImplementedError.
        complex_to_real: the result of complex arguments is real; the kind COMPLEX_TO_FLOAT says so too.
        within: bounds of scalar arguments, each None for none, and what a RuntimeError says of others, "{}" being the
            value. A function gets the call's static arguments by keyword.
        own_meta: the results' dtypes are as `kind` says also where torch has a meta function, which says otherwise.
        exact_out: an `out=` must have the dtype of the result; otherwise the result is converted to its dtype.
        eager: as for `planner`.
        check: raises what torch raises before it looks at shapes; it gets the overload's arguments by keyword, tensors
            as specs, `out` among them if there is one.
        replace: takes the place of the planner that an op has, which is an error otherwise.

    Raises:
        ValueError: there is no such op, it has a planner, or a row says what its schema does not allow.
    """
    for name in names.split():
        op = resolve(name)
        _check_row(name, op._schema, promote, (*keep, *rounded, *cast, *([divisor] if divisor else [])))
        plan = _RowPlanner(
            name,
            op._schema.arguments,
            text,
            kind,
            integer,
            boolean,
            complex,
            promote,
            keep,
            rounded,
            cast,
            divisor,
            statements,
            cost,
            types,
            complex_to_real or kind == Kind.COMPLEX_TO_FLOAT,
            within,
        )
        # torch's own refuses a complex out= for the real numbers that are made of complex ones; its kernels do not.
        meta = plan.meta if own_meta or plan.complex_to_real or not has_meta(op) else None
        options = Options(pointwise=True, cpu_tensors="value", meta=meta, eager=eager, exact_out=exact_out, check=check)
        register(name, plan, options, replace)


def _check_row(name: str, schema: torch._C.FunctionSchema, promote: tuple[str, ...], keep: tuple[str, ...]) -> None:
    """Finds at once what would only be found at the first call."""
    if not any(str(a.type) == "Tensor" for a in schema.arguments):
        raise ValueError(f"{name} has no tensor among its arguments, so it is no pointwise op: {schema}")
    unknown = {*promote, *keep} - {a.name for a in schema.arguments}
    if unknown:
        raise ValueError(f"{name} has no argument {', '.join(sorted(unknown))}: {schema}")
    if any(str(r.type) != "Tensor" for r in schema.returns):
        raise ValueError(f"{name} returns something else than tensors, so it is no pointwise op: {schema}")


class _RowPlanner:
    def __init__(
        self,
        name: str,
        parameters: list[torch._C.Argument],
        text: Text | Mapping[str, Text],
        kind: Kind | Callable[..., Kind],
        integer: Text | None,
        boolean: Text | None,
        complex_text: Text | None,
        promote: tuple[str, ...],
        keep: tuple[str, ...],
        rounded: tuple[str, ...],
        cast: tuple[str, ...],
        divisor: str,
        statements: Text,
        cost: int,
        types: str,
        complex_to_real: bool,
        within: Bounds | Callable[..., Bounds],
    ) -> None:
        self.name = re.sub(r"\W", "_", name)
        self.parameters = [a.name for a in parameters]
        self.operands = {a.name for a in parameters if str(a.type).removeprefix("Optional[").rstrip("]") in _OPERANDS}
        # A number in the place of a tensor takes part in type promotion, like one that is an operand by itself.
        self.promote = {*promote, *(a.name for a in parameters if "Tensor" in str(a.type))}
        self.text, self.kind = text, kind
        self.integer, self.boolean, self.complex = integer, boolean, complex_text
        self.keep, self.statements, self.cost, self.types = keep, statements, cost, types
        self.rounded, self.cast, self.divisor = rounded, cast, divisor
        self.complex_to_real, self.within = complex_to_real, within

    def __call__(self, p: PlanBuilder, out: Any, *args: Any, **kwargs: Any) -> None:
        arguments = dict(zip(self.parameters, args, strict=False)) | kwargs
        tensors = {n: a for n, a in arguments.items() if isinstance(a, torch.Tensor)}
        scalars = {n: a for n, a in arguments.items() if isinstance(a, Scalar) or _is_number_operand(n, a, self)}
        static = {n: n if n in tensors else a for n, a in arguments.items()}  # a tensor's name says it is there
        static |= {n: _NUMBER for n, a in tensors.items() if p.is_cpu_scalar(a)}
        kind = self.kind(**static) if callable(self.kind) else self.kind
        compute, own_dtype = self._dtypes(p, tensors, scalars, kind)
        check_dtype(p, compute)
        element = element_type(compute)
        self._check_type(p, element)
        bounds = self.within(**static) if callable(self.within) else self.within
        for name, (low, high, message) in bounds.items():
            p.within(arguments[name], low, high, message)
        texts = self._texts(element.name, static)
        statements = self.statements(**static) if callable(self.statements) else self.statements
        used = set(re.findall(r"[A-Za-z_]\w*", " ".join([statements, *texts])))

        inputs: list[pointwise.Input] = []
        specs: list[torch.Tensor] = []
        numbers: list[pointwise.Number] = []
        values: list[Any] = []
        foreign: list[str] = []  # what has another type than the one that is computed for
        given: dict[str, str] = {}  # the type of what is converted in the kernel
        for name, argument in arguments.items():
            if name not in used:
                continue
            if isinstance(argument, torch.Tensor):
                own = element_type(argument.dtype)
                wanted = own.compute if name in self.keep else element.name
                if p.is_cpu_scalar(argument):
                    numbers.append(pointwise.Number(name, wanted))
                    values.append(argument)
                    foreign.append(name)
                else:
                    if argument.dtype != own_dtype:
                        foreign.append(name)
                    inputs.append(pointwise.Input(name, own.name, wanted))
                    specs.append(argument)
            elif name in scalars:
                if name in self.cast:
                    given[name] = p.widest(argument, element.name)
                type_ = given.get(name, element.name)
                numbers.append(pointwise.Number(name, type_))
                values.append(argument if isinstance(argument, Scalar) else _converted(argument, BY_NAME[type_]))
                foreign.append(name)

        prepared = {name: pointwise.convert(name, type_, element.name) for name, type_ in given.items()}
        if own_dtype in (torch.float16, torch.bfloat16):
            narrow = f"tg_narrow_{element_type(own_dtype).name}"
            prepared |= {n: f"{narrow}({prepared.get(n, n)})" for n in foreign if n in self.rounded}
        fault = self._fault(p, arguments.get(self.divisor), element, out)
        if fault:
            report = p.error("ZeroDivisionError", RuntimeError)
            values += [report.words, report.code]
        statements, fault, *texts = _prepare(prepared, value_ctype(element.name), [statements, fault, *texts])
        outs = list(out) if isinstance(out, (tuple, list)) else [out]
        result_type = self._result_type(element.name, kind)
        results = tuple(
            pointwise.Result(f"out{n}", element_type(spec.dtype).name, result_type, text)
            for n, (spec, text) in enumerate(zip(outs, texts, strict=False))
        )
        loop = pointwise.Loop(
            f"{self.name}_{element.name}",
            tuple(inputs),
            tuple(numbers),
            results,
            pointwise.expression(statements, element.name),
            self.cost,
            fault,
        )
        pointwise.plan_loop(p, loop, outs[: len(results)], specs, values)

    def _dtypes(
        self, p: PlanBuilder, tensors: dict[str, torch.Tensor], scalars: dict[str, Any], kind: Kind
    ) -> tuple[torch.dtype, torch.dtype]:
        """What is computed in, and the operands' common type, which is narrower where that has 16 bits."""
        operands: list[Any] = []
        for name, spec in tensors.items():
            if name in self.keep:
                continue
            operands.append(number_like(spec) if p.is_wrapped_number(spec) else spec)
        for name, scalar in scalars.items():
            if name in self.promote:
                operands.append(scalar.python_type(1) if isinstance(scalar, Scalar) else scalar)
        if not any(isinstance(o, torch.Tensor) for o in operands):
            operands += [spec for name, spec in tensors.items() if name not in self.keep]
        computation, _ = elementwise_dtypes(*operands, type_promotion_kind=kind)
        own, _ = elementwise_dtypes(*operands, type_promotion_kind=Kind.NO_OPMATH)
        return computation, own

    def meta(self, /, **arguments: Any) -> Any:
        """The results of an op that has no meta function: broadcast, of the promoted type, strided as torch would."""
        tensors = {n: a for n, a in arguments.items() if isinstance(a, torch.Tensor)}
        static = {n: n if n in tensors else a for n, a in arguments.items()}
        kind = self.kind(**static) if callable(self.kind) else self.kind
        operands = [a for n, a in tensors.items() if n not in self.keep] or list(tensors.values())
        operands += [arguments[n] for n in self.promote if arguments[n] is not None and n not in tensors]
        _, dtype = elementwise_dtypes(*operands, type_promotion_kind=kind)
        if self.complex_to_real and dtype.is_complex:
            dtype = dtype.to_real()
        spread = torch.broadcast_tensors(*tensors.values())
        strides = compute_elementwise_output_strides(*spread)
        outs = [
            spread[0].new_empty_strided(spread[0].shape, strides, dtype=dtype)
            for _ in (self.text if isinstance(self.text, Mapping) else [self.text])
        ]
        return outs[0] if len(outs) == 1 else tuple(outs)

    def _fault(self, p: PlanBuilder, divisor: Any, element: ElementType, out: torch.Tensor) -> str:
        """When the kernel must report a division by zero. Numbers that are known not to be 0 are guarded instead: a
        call that may report waits for its kernel."""
        if divisor is None or not element.is_integer:
            return ""
        fault = f"{self.divisor} == 0"
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

    def _check_type(self, p: PlanBuilder, element: ElementType) -> None:
        refused = {
            "all": False,
            "float": element.is_integer,
            "integer": not element.is_integer,
            "number": element.name == "b8",
        }[self.types]
        if refused:
            refuse_dtype(p.op, element.dtype)

    def _texts(self, compute: str, static: dict[str, Any]) -> list[str]:
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
        return [_resolve(text, compute, static) for text in texts]

    def _result_type(self, compute: str, kind: Kind) -> str:
        if kind == Kind.ALWAYS_BOOL:
            return "b8"
        if self.complex_to_real:
            return _REAL_OF.get(compute, compute)
        return compute


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


def _is_number_operand(name: str, argument: Any, planner: _RowPlanner) -> bool:
    """Python numbers stand for tensors or scalars where an op is planned inside another."""
    return isinstance(argument, (int, float, complex)) and name in planner.operands


def _resolve(text: Text, compute: str, static: dict[str, Any]) -> str:
    body = text(**static) if callable(text) else text
    if BY_NAME[compute].is_complex:
        for function in re.findall(r"@(\w+)", body):
            if f"tg_{function}_{BY_NAME[compute].compute}" not in HELPERS:
                raise UnsupportedDtype(f"no {function} for {compute}")
    return pointwise.expression(body, compute)


# ---- reductions ----


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
    for name in names.split():
        op = resolve(name)
        plan = _ReductionPlanner(name, op._schema, combine, identity, map, finish, dtype, accumulate)
        register(name, plan, Options(meta=None if has_meta(op) else plan.meta, exact_out=False), replace)


class _ReductionPlanner:
    def __init__(
        self,
        name: str,
        schema: torch._C.FunctionSchema,
        combine: str,
        identity: str,
        map_text: str,
        finish: str,
        dtype: torch.dtype | None,
        accumulate: torch.dtype | None,
    ) -> None:
        self.name = re.sub(r"\W", "_", name)
        self.parameters = [a.name for a in schema.arguments]
        tensors = [a.name for a in schema.arguments if str(a.type) == "Tensor"]
        self.numbers = [a.name for a in schema.arguments if str(a.type) in ("number", "float")]
        others = set(self.parameters) - {*tensors, *self.numbers, "dim", "keepdim"}
        if len(tensors) != 1 or others or [str(r.type) for r in schema.returns] != ["Tensor"]:
            raise ValueError(
                f"{name} is no reduction of one tensor to one, over `dim` with `keepdim` and with numbers: {schema}"
            )
        self.input = tensors[0]
        self.combine, self.identity, self.map, self.finish = combine, identity, map_text, finish
        self.dtype, self.accumulate = dtype, accumulate

    def meta(self, /, **arguments: Any) -> torch.Tensor:
        x: torch.Tensor = arguments[self.input]
        dims = reduced_dims(x.dim(), arguments.get("dim"))
        keep = arguments.get("keepdim", False)
        shape = [1 if d in dims else n for d, n in enumerate(x.shape) if keep or d not in dims]
        return x.new_empty(shape, dtype=self.dtype or x.dtype)

    def __call__(self, p: PlanBuilder, out: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        arguments = dict(zip(self.parameters, args, strict=False)) | kwargs
        x, result = arguments[self.input], element_type(out.dtype)
        held = element_type(self.accumulate).name if self.accumulate is not None else result.accumulate
        if x.is_complex() or BY_NAME[held].is_complex:
            raise UnsupportedDtype(f"{self.name} has no kernel for complex numbers")
        check_dtype(p, BY_NAME[held].dtype)
        ctype = value_ctype(held)
        taken = re.sub(r"\bx\b", f"(({ctype})x)", self.map)

        def text(template: str, a: str, b: str = "") -> str:
            named = {"a": a, "b": b}
            return pointwise.expression(re.sub(r"\b[ab]\b", lambda m: named[m[0]], template), held)

        plan_reduction(
            p,
            Reduction(
                name=f"{self.name}_{held}_{result.name}",
                fields=(("value", held, text(self.identity, "")),),
                step=f"A.value = {text(self.combine, 'A.value', f'({taken})')};",
                combine=f"A.value = {text(self.combine, 'A.value', 'B.value')};",
                results=((result.name, text(self.finish, "A.value")),),
                values=tuple((name, held) for name in self.numbers),
            ),
            [out],
            x,
            reduced_dims(x.dim(), arguments.get("dim")),
            [arguments[name] for name in self.numbers],
        )
