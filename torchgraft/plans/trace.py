"""Plans of ops that are defined by other ops: decompositions, traced on specs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map

from torchgraft.plans.builder import PlanBuilder
from torchgraft.plans.meta import has_meta
from torchgraft.plans.mode import ThreadMode
from torchgraft.plans.refusals import Refuses, gathered, other_out
from torchgraft.plans.registry import ENTRIES, Options, register
from torchgraft.plans.scalar import Scalar
from torchgraft.plans.schema import call_by_name, overload_name, parameters, resolve
from torchgraft.plans.steps import Unsupported
from torchgraft.plans.versions import here

aten = torch.ops.aten


def is_view(op: torch._ops.OpOverload) -> bool:
    """Returns an alias of an argument and writes nothing."""
    returns = op._schema.returns
    aliased = any(r.alias_info is not None for r in returns)
    return aliased and not any(a.alias_info is not None and a.alias_info.is_write for a in op._schema.arguments)


class _Trace(ThreadMode):
    """Turns each op that runs on specs into steps of a plan."""

    def __init__(self, p: PlanBuilder) -> None:
        super().__init__()
        self.p = p

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.plan(func, args, kwargs or {})

    def plan(self, func: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        composite = torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")
        if is_view(func) and not composite:  # a composite (`to`, `reshape`) may copy in spite of its schema
            return func(*args, **kwargs)
        special = _SPECIAL.get(func)
        if special is not None:
            return special(self.p, func, args, kwargs)
        entry = ENTRIES.get(overload_name(func))
        if entry is not None:
            if entry.kind == "functional":
                return self.p.call(func, *args, **kwargs)
            return self._plan_writing(func, entry, args, kwargs)
        if func._overloadname == "Scalar":  # where tensors are taken numbers are too
            by_tensor = ENTRIES.get(f"{func._schema.name}.Tensor")
            if by_tensor is not None and by_tensor.kind == "functional":
                return self.p.call(by_tensor.op, *args, **kwargs)
        return self._plan_parts(func, composite, args, kwargs)

    def _plan_parts(
        self, func: torch._ops.OpOverload, composite: bool, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """What torch says that an op comes down to."""
        if func in self.p.decomposed:  # as aten.as_strided_scatter is prims.as_strided_scatter, and that the other
            raise Unsupported(f"{func} comes down to itself, and has no planner")
        decomposition = torch._decomp.decomposition_table.get(func)
        self.p.decomposed.append(func)
        try:
            with self.active():
                if func.namespace == "prims":  # each says which torch function it is
                    return func.impl_aten(*args, **kwargs)  # type: ignore[attr-defined]
                if composite:
                    return func.decompose(*args, **kwargs)
                if decomposition is not None:
                    return decomposition(*args, **kwargs)
        finally:
            self.p.decomposed.pop()
        raise Unsupported(f"{func} has neither a planner nor a decomposition")

    def _plan_writing(
        self, func: torch._ops.OpOverload, entry: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """An in-place or out= op: torch's meta kernel checks it, the functional form's planner writes into its
        targets."""
        result = func(*args, **kwargs)
        schema = func._schema.arguments
        named = {a.name: a.default for a in parameters(func)}  # the functional form may have none
        named |= {a.name: value for a, value in zip(schema, args, strict=False)} | kwargs
        targets = [named[a.name] for a in schema if a.alias_info is not None and a.alias_info.is_write]
        functional = {a.name: named[a.name] for a in entry.functional._schema.arguments if a.name in named}
        out = targets[0] if len(targets) == 1 else tuple(targets)
        self.p.nested(self.p, entry.functional, (), functional, out)
        return result


def _empty(p: PlanBuilder, func: Any, args: Any, kwargs: Any) -> Any:
    return func(*args, **{**kwargs, "device": "meta"})


def full(func: Any, args: Any, kwargs: Any) -> tuple[torch.Tensor, Any] | None:
    """The result of an op that fills it, and the number that it fills it with; None of other ops."""
    if _SPECIAL.get(func) is not _full:
        return None
    out = func(*args, **{**kwargs, "device": "meta"})
    packet = func.overloadpacket
    if packet in (aten.zeros, aten.zeros_like, aten.new_zeros):
        value: Any = 0
    elif packet in (aten.ones, aten.ones_like, aten.new_ones):
        value = 1
    else:
        value = args[0] if packet is aten.scalar_tensor else (args[1] if packet is not aten.new_full else args[2])
    return out, value


def _full(p: PlanBuilder, func: Any, args: Any, kwargs: Any) -> Any:
    filled = full(func, args, kwargs)
    assert filled is not None
    p.fill(*filled)
    return filled[0]


def _iota(p: PlanBuilder, func: Any, args: Any, kwargs: Any) -> Any:
    out = func(*args, **{**kwargs, "device": torch.device("meta")})
    start, step = kwargs["start"], kwargs["step"]
    p.nested(p, aten.arange.start_out, (start, start + step * out.numel(), step), {"out": out}, out)
    return out


def _copy(p: PlanBuilder, func: Any, args: Any, kwargs: Any) -> Any:
    p.copy(args[0], args[1])
    return args[0]


def _clone(p: PlanBuilder, func: Any, args: Any, kwargs: Any) -> Any:
    if kwargs.get("device") is not None:
        kwargs = {**kwargs, "device": torch.device("meta")}
    out = func(*args, **kwargs)
    p.copy(out, args[0])
    return out


_SPECIAL: dict[Any, Callable[[PlanBuilder, Any, Any, Any], Any]] = {
    **dict.fromkeys(
        (
            aten.empty.memory_format,
            aten.empty_strided.default,
            aten.empty_like.default,
            aten.new_empty.default,
            aten.new_empty_strided.default,
        ),
        _empty,
    ),
    **dict.fromkeys(
        (
            aten.zeros.default,
            aten.zeros_like.default,
            aten.new_zeros.default,
            aten.ones.default,
            aten.ones_like.default,
            aten.new_ones.default,
            aten.full.default,
            aten.full_like.default,
            aten.new_full.default,
            aten.scalar_tensor.default,
        ),
        _full,
    ),
    torch.ops.prims.iota.default: _iota,
    aten.copy_.default: _copy,
    aten.clone.default: _clone,
    aten._to_copy.default: _clone,
}


def trace(p: PlanBuilder, op: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Runs an op on specs, planning every op that it comes down to.

    Raises:
        Unsupported: it comes down to an op that has no planner.
    """
    args, kwargs = tree_map(lambda x: x.value if isinstance(x, Scalar) else x, (args, kwargs))
    return _Trace(p).plan(op, args, kwargs)


def decomposition(
    *names: str, meta: Callable[..., Any] | None = None, replace: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declares a function that calls other ops as what ops come down to; they are planned by tracing it.

    The function takes the functional overload's arguments. It is run on specs, once for each key, and all that it calls
    becomes one plan. Scalars of such an op are part of its key.

    Args:
        names: functional overloads, as for `planner`.
        meta: gives the results' specs for ops without a meta kernel in torch. An op of an author's own that has no
            meta function gets the decomposition itself as one.
        replace: takes the place of the planner that an op has, which is an error otherwise.

    Raises:
        ValueError: there is no such op, or it has a planner.
        RuntimeError: an overload's schema fits no rule.
    """

    def declare(function: Callable[..., Any]) -> Callable[..., Any]:
        for name in here(names):
            op = resolve(name)
            own = meta or (None if has_meta(op) else _meta_of(op, function))
            register(name, _planner_of(op, function), Options(meta=own, way="decomposed"), replace)
        return function

    return declare


def _meta_of(op: torch._ops.OpOverload, function: Callable[..., Any]) -> Callable[..., Any]:
    """A decomposition as the meta function. Those are called by the schema's names; it may have names of its own."""
    return lambda **arguments: call_by_name(function, op, arguments)


def decompose(*names: str, refuses: Refuses = other_out, replace: bool = False) -> None:
    """Declares ops as planned by tracing torch's own decomposition of them; see `decomposition`.

    Args:
        names: functional overloads, as for `planner`.
        refuses: as for `planner`: what torch's kernels refuse and its decomposition does not.
        replace: takes the place of the planner that an op has, which is an error otherwise.

    Raises:
        ValueError: there is no such op, it has a planner, or torch has no decomposition of it.
    """
    for name in here(names):
        op = resolve(name)
        definition = torch._decomp.decomposition_table.get(op)
        if definition is None and not torch._C._dispatch_has_kernel_for_dispatch_key(
            op.name(), "CompositeImplicitAutograd"
        ):
            raise ValueError(f"torch has no decomposition of {name}; write one, with `decomposition`")
        options = Options(way="decomposed", refusals=gathered(refuses))
        register(name, _planner_of(op, definition), options, replace)


def _planner_of(op: torch._ops.OpOverload, definition: Callable[..., Any] | None) -> Callable[..., None]:
    def plan(p: PlanBuilder, out: Any, *args: Any, **kwargs: Any) -> None:
        args, kwargs = tree_map(lambda x: x.value if isinstance(x, Scalar) else x, (args, kwargs))
        with _Trace(p).active():
            result = definition(*args, **kwargs) if definition is not None else op.decompose(*args, **kwargs)
        results = list(result) if isinstance(result, (tuple, list)) else [result]
        outs = list(out) if isinstance(out, (tuple, list)) else [out]
        for to, by in zip(outs, results, strict=True):
            if isinstance(to, torch.Tensor) and to is not by:
                p.copy(to, by)

    return plan
