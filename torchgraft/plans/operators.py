"""Operators of a device's own library, which calls are planned with before kernels are: docs/operators.md lists them.

A driver with `Capability.PROGRAMS` is asked whether it has an operator for tensors as they are; if it has, the plan
runs the program that the driver makes of it. What it has not becomes kernels where the device has a compiler, and goes
to the CPU where it has none, with the driver's reasons.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from torchgraft._core import _C
from torchgraft.codegen.types import BY_NAME
from torchgraft.driver import Wish
from torchgraft.plans.programs import ELEMENTS, Record, add_run, prepared, record_of_tensor
from torchgraft.plans.scalar import Scalar
from torchgraft.plans.schema import overload_name, parameters, resolve, tensors_in
from torchgraft.plans.steps import Operand, Steps, Unsupported, is_number, number_type

__all__ = [
    "FORMS",
    "Asked",
    "kernels_multiply",
    "operator_form",
    "operators_asked",
    "plan_as_operator",
    "plan_operator",
]

Attribute = int | float | bool | str | Sequence[int] | Scalar
Form = Callable[..., bool]
_Form = TypeVar("_Form", bound=Form)

#: What makes an operator of a call, by the overloads' names.
FORMS: dict[str, Form] = {}
_OVERWRITING: set[Form] = set()
_MULTIPLYING: set[Form] = set()


@dataclass(frozen=True)
class Asked:
    """What a device was asked for.

    Attributes:
        name: the operator's.
        kind: which of an operator that is many, as "relu" of pointwise ones; else "".
        refusal: why the device does not have it for such tensors; "" if it has.
    """

    name: str
    kind: str
    refusal: str


_listeners: list[list[Asked]] = []


@contextlib.contextmanager
def operators_asked() -> Iterator[list[Asked]]:
    """What devices are asked for meanwhile, in this process, in the order of asking."""
    asked: list[Asked] = []
    _listeners.append(asked)
    try:
        yield asked
    finally:
        _listeners[:] = [each for each in _listeners if each is not asked]


def operator_form(*names: str, overwrites: bool = False, multiplies: bool = False) -> Callable[[_Form], _Form]:
    """Declares what makes an operator of a call.

    Args:
        names: functional overloads, as for `planner`. The function takes a planner's arguments by name, and returns
            what `plan_operator` does; False if the call is none of the operator's.
        overwrites: the operator reads nothing of what it writes, though the op has it for an argument.
        multiplies: it is a product of matrices, which asks `kernels_multiply` first.
    """

    def declare(form: _Form) -> _Form:
        for name in names:
            FORMS[overload_name(resolve(name))] = form
            if overwrites:
                _OVERWRITING.add(form)
            if multiplies:
                _MULTIPLYING.add(form)
        return form

    return declare


def plan_as_operator(p: Steps, op: torch._ops.OpOverload, planner: Any, out: Any, arguments: Mapping[str, Any]) -> bool:
    """Plans a call of a functional overload, with its planner's arguments, by an operator of the device's, if it has
    one; returns whether it has. A planner may have a method `as_operator` in place of a form."""
    form: Form | None = FORMS.get(overload_name(op))
    of_row: Form | None = getattr(planner, "as_operator", None)
    if (form is None and of_row is None) or p.any_shape or _serves_by_kernels(p, form):
        return False
    before = p.mark()
    by_name = {a.name: arguments[a.name] for a in parameters(op)}
    if form is not None:
        served = _by_form(p, form, out, by_name)
    else:
        assert of_row is not None
        served = of_row(p, out, by_name)
    if served:
        return True
    p.back_to(before)  # without the copies that it would have needed
    return False


def _by_form(p: Steps, form: Form, out: Any, arguments: Mapping[str, Any]) -> bool:
    """Results that lie in an input's memory are made elsewhere: operators read their inputs while they write."""
    outs = list(out) if isinstance(out, (tuple, list)) else [out]
    read = set() if form in _OVERWRITING else {p.memory(tensor) for tensor in tensors_in(arguments)}
    made = [p.empty(o.shape, o.dtype) if isinstance(o, torch.Tensor) and p.memory(o) in read else o for o in outs]
    if not form(p, made[0] if len(made) == 1 else tuple(made), **arguments):
        return False
    for result, elsewhere in zip(outs, made, strict=True):
        if result is not elsewhere:
            p.copy(result, elsewhere)
    return True


def _preferred(p: Steps) -> str:
    """What serves if there are both: TORCHGRAFT_PREFER; "measured" where it does not say and the device's kernels come
    first."""
    preferred = os.environ.get("TORCHGRAFT_PREFER") or ""
    if preferred not in ("programs", "kernels", ""):
        raise ValueError(f"TORCHGRAFT_PREFER is 'programs' or 'kernels', not {preferred!r}")
    if not p.device.has_compiler:
        return "programs"
    return preferred or ("measured" if p.device.kernels_first else "programs")


def _serves_by_kernels(p: Steps, form: Form | None) -> bool:
    """Whether no operator is asked for at all."""
    preferred = _preferred(p)
    return preferred == "kernels" or (preferred == "measured" and form not in _MULTIPLYING)


def kernels_multiply(p: Steps, products: int) -> bool:
    """Whether kernels compute a product of matrices of so many multiplications, though the device has an operator."""
    return _preferred(p) == "measured" and products < p.device.tuning.operators.products


def plan_operator(
    p: Steps,
    name: str,
    inputs: Sequence[Operand],
    outputs: Sequence[torch.Tensor | None],
    /,
    **attributes: Attribute,
) -> bool:
    """Adds an operator to a plan, if the device has it for such tensors.

    Args:
        p: the plan.
        name: of one of docs/operators.md, or of the device's own.
        inputs: specs, None for those that are not given, and numbers that each run gives anew: `Scalar`s, plain ones,
            and specs of zero-dim tensors of the CPU.
        outputs: specs, None for those that are not wanted.
        attributes: numbers (a `Scalar` is read, and the plan is for its value), truths, texts and lists of integers.

    Returns:
        Whether the plan does it now. If not, nothing has been added to it, and why is kept for messages.
    """
    if not p.device.has_programs or p.any_shape or _preferred(p) == "kernels":
        return False
    offered = _offered(p, name, inputs, outputs, attributes)
    refusal = (offered or "for no reason that it gives") if isinstance(offered, str) else ""
    for listener in _listeners:
        listener.append(Asked(name, str(attributes.get("kind", "")), refusal))
    if isinstance(offered, str):
        p.refused.append(f"{name}: {refusal}")
        return False
    program, placed = offered
    for spec, place in zip(inputs, placed, strict=False):
        if isinstance(spec, torch.Tensor) and isinstance(place, torch.Tensor) and place is not spec:
            p.copy(place, spec)
    add_run(p, program, placed)
    for spec, place in zip(outputs, placed[len(inputs) :], strict=True):
        if spec is not None and isinstance(place, torch.Tensor) and place is not spec:
            p.copy(spec, place)
    return True


def _offered(
    p: Steps,
    name: str,
    inputs: Sequence[Operand],
    outputs: Sequence[torch.Tensor | None],
    attributes: Mapping[str, Attribute],
) -> tuple[_C.Program, list[Operand]] | str:
    """The device's program, and the operands as they lie for it; or why it has none."""
    placed: list[Operand] = [*inputs, *outputs]
    if reason := _why_no_operand(p, placed):
        return reason
    values = {key: _value(value) for key, value in attributes.items()}
    for _ in range(2):
        records = [_record(p, operand) for operand in placed]
        source = _C.ProgramSource("operator", name, b"", values, records[: len(inputs)], records[len(inputs) :])
        wishes, reason = _C.Program.supports(p.device.index, source)
        if wishes is None:
            return reason
        wanted = [_laid_out(p, operand, Wish(wish)) for operand, wish in zip(placed, wishes, strict=True)]
        if all(new is old for new, old in zip(wanted, placed, strict=True)):
            break
        placed = wanted
    else:
        return "it wishes for other strides whatever it is offered"
    key = (name, sorted(values.items()), records, len(inputs))
    program = prepared(p.device.index, f"its operator {name}", source, repr(key))
    return program if isinstance(program, str) else (program, placed)


def _why_no_operand(p: Steps, operands: Sequence[Operand]) -> str:
    """Why something cannot be given to a program; empty if it can."""
    for spec in operands:
        if isinstance(spec, complex) or (isinstance(spec, Scalar) and spec.python_type is complex):
            return "a complex number"
        if not isinstance(spec, torch.Tensor):
            continue
        if p.is_cpu_scalar(spec) and spec.is_complex():
            return "a complex number"
        if spec.is_conj() or spec.is_neg():
            return "a tensor that is conjugated or negated by a bit"
        if spec.dtype not in ELEMENTS:
            return f"elements of {spec.dtype}"
    return ""


def _value(attribute: Attribute) -> int | float | str | list[int]:
    value = attribute.value if isinstance(attribute, Scalar) else attribute
    if isinstance(value, complex):
        raise Unsupported("a complex number as an attribute of an operator")
    if isinstance(value, bool):
        return int(value)
    return value if isinstance(value, (int, float, str)) else [int(each) for each in value]


def _record(p: Steps, operand: Operand) -> Record | None:
    if operand is None:
        return None
    if is_number(p, operand):
        return (ELEMENTS[BY_NAME[number_type(operand)].dtype], [], [], True)
    assert isinstance(operand, torch.Tensor)
    return record_of_tensor(operand)


def _laid_out(p: Steps, spec: Operand, wish: Wish) -> Operand:
    """The spec, or a temporary that lies as the driver wishes."""
    if wish is Wish.NONE or not isinstance(spec, torch.Tensor) or is_number(p, spec):
        return spec
    if wish is Wish.CONTIGUOUS:
        return spec if spec.is_contiguous() else p.empty_like(spec)
    order = [0, *range(2, spec.dim()), 1]  # channels last
    if spec.dim() < 3 or spec.permute(order).is_contiguous():
        return spec
    strides = [0] * spec.dim()
    step = 1
    for d in reversed(order):
        strides[d], step = step, step * max(1, spec.shape[d])
    return p.empty(spec.shape, spec.dtype, strides)
