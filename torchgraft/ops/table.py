"""Rows of the pointwise tables: an op as an expression."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as Kind
from torch._prims_common import elementwise_dtypes

from torchgraft.codegen import ElementType, UnsupportedDtype, element_type, pointwise
from torchgraft.codegen.types import BY_NAME
from torchgraft.kernels import HELPERS
from torchgraft.plans.builder import PlanBuilder
from torchgraft.plans.registry import Options, check_dtype, dtype_name, number_like, register, resolve
from torchgraft.plans.scalar import Scalar

__all__ = ["Kind", "row"]

Text = str | Callable[..., str]

_REAL_OF = {"c64": "f32", "c128": "f64"}
_OPERANDS = ("Tensor", "number", "float")  # argument types that an expression may compute with
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
    statements: Text = "",
    cost: int = 1,
    types: str = "all",
) -> None:
    """Declares a pointwise op.

    The op's in-place and out= forms, every dtype and stride, broadcasting and type promotion follow from the row.

    Args:
        names: functional overloads, separated by blanks; all have the same argument names.
        text: the result's expression in terms of the arguments' names; ``@f(x)`` is a mathematical function of the
            compute type, ``T`` that type. For several results a mapping from their order ("0", "1") to expressions. A
            function gets the call's static arguments by keyword and returns the text.
        kind: torch's type promotion kind, or a function of the static arguments that gives it.
        integer, boolean, complex: the expression for such compute types where it differs. Without `complex`, complex
            calls go to the fallback.
        promote: scalar arguments that take part in type promotion.
        keep: tensor arguments that keep their own type and take no part in promotion.
        statements: text before the expressions.
        cost: of one element relative to an addition.
        types: compute types that the op has on torch's CPU too: "all", "float" (with complex where there is an
            expression), "integer" (with bool) or "number" (all but bool). Others raise NotImplementedError.
    """
    for name in names.split():
        schema = resolve(name)._schema
        plan = _RowPlanner(
            name,
            schema.arguments,
            text,
            kind,
            integer,
            boolean,
            complex,
            promote,
            keep,
            statements,
            cost,
            types,
        )
        register(name, plan, Options(pointwise=True, cpu_tensors="value"))


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
        statements: Text,
        cost: int,
        types: str,
    ) -> None:
        self.name = re.sub(r"\W", "_", name)
        self.parameters = [a.name for a in parameters]
        self.operands = {a.name for a in parameters if str(a.type).removeprefix("Optional[").rstrip("]") in _OPERANDS}
        self.text, self.kind = text, kind
        self.integer, self.boolean, self.complex = integer, boolean, complex_text
        self.promote, self.keep, self.statements, self.cost, self.types = promote, keep, statements, cost, types

    def __call__(self, p: PlanBuilder, out: Any, *args: Any, **kwargs: Any) -> None:
        arguments = dict(zip(self.parameters, args, strict=False)) | kwargs
        tensors = {n: a for n, a in arguments.items() if isinstance(a, torch.Tensor)}
        scalars = {n: a for n, a in arguments.items() if isinstance(a, Scalar) or _is_number_operand(n, a, self)}
        static = {n: n if n in tensors else a for n, a in arguments.items()}  # a tensor's name says it is there
        kind = self.kind(**static) if callable(self.kind) else self.kind
        compute = self._compute_dtype(p, tensors, scalars, kind)
        check_dtype(p, compute)
        element = element_type(compute)
        self._check_type(p, element)
        texts = self._texts(element.name, static)
        statements = self.statements(**static) if callable(self.statements) else self.statements
        used = set(re.findall(r"[A-Za-z_]\w*", " ".join([statements, *texts])))

        inputs: list[pointwise.Input] = []
        specs: list[torch.Tensor] = []
        numbers: list[pointwise.Number] = []
        values: list[Any] = []
        for name, argument in arguments.items():
            if name not in used:
                continue
            if isinstance(argument, torch.Tensor):
                own = element_type(argument.dtype)
                wanted = own.compute if name in self.keep else element.name
                if p.is_cpu_scalar(argument):
                    numbers.append(pointwise.Number(name, wanted))
                    values.append(argument)
                else:
                    inputs.append(pointwise.Input(name, own.name, wanted))
                    specs.append(argument)
            elif name in scalars:
                numbers.append(pointwise.Number(name, element.name))
                values.append(argument)

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
        )
        pointwise.plan_loop(p, loop, outs[: len(results)], specs, values)

    def _compute_dtype(
        self, p: PlanBuilder, tensors: dict[str, torch.Tensor], scalars: dict[str, Any], kind: Kind
    ) -> torch.dtype:
        operands: list[Any] = []
        for name, spec in tensors.items():
            if name in self.keep:
                continue
            operands.append(number_like(spec) if p.is_wrapped_number(spec) else spec)
        for name, scalar in scalars.items():
            if name in self.promote or not isinstance(scalar, Scalar):
                operands.append(scalar.python_type(1) if isinstance(scalar, Scalar) else scalar)
        if not any(isinstance(o, torch.Tensor) for o in operands):
            operands += [spec for name, spec in tensors.items() if name not in self.keep]
        computation, _ = elementwise_dtypes(*operands, type_promotion_kind=kind)
        return computation

    def _check_type(self, p: PlanBuilder, element: ElementType) -> None:
        refused = {
            "all": False,
            "float": element.is_integer,
            "integer": not element.is_integer,
            "number": element.name == "b8",
        }[self.types]
        if refused:
            raise NotImplementedError(f"\"{p.op}\" not implemented for '{dtype_name(element.dtype)}', on any device")

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

    @staticmethod
    def _result_type(compute: str, kind: Kind) -> str:
        if kind == Kind.ALWAYS_BOOL:
            return "b8"
        if kind == Kind.COMPLEX_TO_FLOAT:
            return _REAL_OF.get(compute, compute)
        return compute


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
