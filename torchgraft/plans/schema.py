"""What an overload's schema and the dispatcher say of it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Parameter:
    """One argument of an overload's schema."""

    name: str
    type: str
    keyword_only: bool
    default: Any
    is_out: bool
    is_written: bool


@functools.cache
def parameters(op: torch._ops.OpOverload) -> tuple[Parameter, ...]:
    """An overload's arguments. Kept, because torch makes its objects anew at each look at a schema."""
    return tuple(
        Parameter(
            a.name,
            str(a.type),
            a.kwarg_only,
            a.default_value if a.has_default_value() else None,
            a.is_out,
            a.alias_info is not None and a.alias_info.is_write,
        )
        for a in op._schema.arguments
    )


def written(op: torch._ops.OpOverload) -> list[str]:
    """The names of the arguments that an overload writes."""
    return [a.name for a in parameters(op) if a.is_written]


def call_by_name(function: Callable[..., Any], op: torch._ops.OpOverload, arguments: Mapping[str, Any]) -> Any:
    """Calls a function that takes what an overload takes; the arguments are given by name."""
    positional = [arguments[a.name] for a in parameters(op) if not a.keyword_only]
    return function(*positional, **{a.name: arguments[a.name] for a in parameters(op) if a.keyword_only})


def _signature(op: torch._ops.OpOverload) -> list[tuple[str, str]]:
    return [(a.name, a.type) for a in parameters(op) if not a.is_out]


@functools.cache
def _packet(namespace: str, name: str) -> list[torch._ops.OpOverload]:
    packet = getattr(getattr(torch.ops, namespace), name, None)
    if packet is None:
        return []
    return [getattr(packet, overload) for overload in packet.overloads()]


def _in_place(name: str) -> str:
    """What torch calls the in-place form: "add_" for "add", "__ilshift__" for Python's operator "__lshift__"."""
    return f"__i{name[2:]}" if name.startswith("__") else f"{name}_"


def variants(op: torch._ops.OpOverload) -> Iterator[tuple[torch._ops.OpOverload, str]]:
    """The overloads that do the same as a functional one: itself, in place, and with `out=`, found by comparing
    schemas."""
    namespace, name = op._schema.name.split("::")
    signature = _signature(op)
    kind = "functional" if not written(op) else "inplace"
    yield op, kind
    if kind == "inplace":
        return
    names = [a for a, _ in signature]
    for other in [*_packet(namespace, name), *_packet(namespace, _in_place(name))]:
        if other is op:
            continue
        targets = written(other)
        if not targets or _signature(other) != signature:
            continue
        if all(a.is_out for a in parameters(other) if a.is_written):
            yield other, "out"
        elif other._schema.name.endswith("_") and targets == names[: len(targets)]:
            yield other, "inplace"
        else:
            raise RuntimeError(f"{other} writes {targets}: torchgraft knows no rule for that")


def resolve(name: str) -> torch._ops.OpOverload:
    """The overload of a name: "mm", "sum.dim_IntList", "aten::add.Tensor", "mylib::op"."""
    qualified = name if "::" in name else f"aten::{name}"
    namespace, rest = qualified.split("::")
    base, _, overload = rest.partition(".")
    packet = getattr(getattr(torch.ops, namespace), base, None)
    if packet is None or (overload or "default") not in packet.overloads():
        raise ValueError(f"there is no op {qualified}")
    op: torch._ops.OpOverload = getattr(packet, overload or "default")
    return op


def overload_name(op: torch._ops.OpOverload) -> str:
    """An overload's name as the dispatcher writes it: "aten::add.out", "aten::mm"."""
    return op._schema.name + (f".{op._overloadname}" if op._overloadname != "default" else "")


def returns_several(op: torch._ops.OpOverload) -> bool:
    """Whether an overload returns a tuple, which one of no results is too."""
    returns = op._schema.returns
    return len(returns) != 1


def is_composed(name: str) -> bool:
    """Whether torch makes the overload of ops that have derivatives; a kernel for itself would have none."""
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    own_gradient = has_kernel(name, "Autograd") or has_kernel(name, "AutogradPrivateUse1")
    return has_kernel(name, "CompositeImplicitAutograd") and not own_gradient


def tensors_in(value: Any) -> list[torch.Tensor]:
    """The tensors among an argument's or several arguments' values, in lists too."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, (list, tuple)):
        return []
    return [t for item in value for t in tensors_in(item)]
