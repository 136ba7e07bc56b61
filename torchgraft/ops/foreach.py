"""Ops on lists of tensors: each is an op on single tensors, done to every one of them in as few launches as can be."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch

from torchgraft.codegen.types import BY_NAME, element_type
from torchgraft.kernels import lists as kernels
from torchgraft.plans import PlanBuilder, Scalar, Unsupported, pointwise, versions
from torchgraft.plans.batch import plan_loops
from torchgraft.plans.call import plan_nested, result_of
from torchgraft.plans.grid import numbered
from torchgraft.plans.refusals import Refusals, check_in_place, dtype_name
from torchgraft.plans.registry import Entry, Options, register_entry
from torchgraft.plans.schema import overload_name, parameters, resolve, variants
from torchgraft.plans.steps import PlannedLoop

aten = torch.ops.aten

#: The arguments of an op on single tensors, of the number of an item and those of the op on lists, by name.
Item = Callable[[int, dict[str, Any]], dict[str, Any]]


_members: dict[str, tuple[torch._ops.OpOverload, Item]] = {}


def as_single_ops(op: torch._ops.OpOverload) -> Callable[..., list[torch.Tensor]] | None:
    """A function that does by ops on single tensors what an op on lists does; None where that is no loop for each."""
    if overload_name(op) not in _members:
        return None
    single, item = _members[overload_name(op)]
    of_op = parameters(op)

    def run(*args: Any, **kwargs: Any) -> list[torch.Tensor]:
        given = {a.name: a.default for a in of_op} | dict(zip((a.name for a in of_op), args, strict=False)) | kwargs
        lists = next(a for a in given.values() if isinstance(a, (list, tuple)) and isinstance(a[0], torch.Tensor))
        given = {name: list(a) if isinstance(a, tuple) else a for name, a in given.items()}
        return [single(**item(i, given)) for i in range(len(lists))]

    return run


def _gather(p: PlanBuilder, each: Sequence[Callable[[], None]]) -> None:
    """Plans what the calls plan, each for tensors of its own, with their loops put together."""
    loops: list[PlannedLoop] = []
    for plan in each:
        p.gathered, steps = [], p.step_count
        try:
            plan()
        finally:
            own, p.gathered = p.gathered, None
        if p.step_count == steps and len(own) <= 1:
            loops += own
        elif not own:
            continue
        else:
            raise Unsupported("an op on single tensors takes several steps")
    plan_loops(p, loops)


def _dynamic(scalar: Any, spec: torch.Tensor) -> Any:
    """The scalar, or its value where that decides about the type to compute in."""
    if not isinstance(scalar, Scalar):
        return scalar
    fits = {"bool": True, "int": spec.dtype != torch.bool, "float": spec.is_floating_point() or spec.is_complex()}
    return scalar if fits.get(scalar.type, spec.is_complex()) else scalar.value


def foreach(name: str, base: str, **fixed: Any) -> None:
    """Declares an op on lists.

    Args:
        name: its functional overload, without "_foreach_".
        base: the op on single tensors. It takes a list's items, or an argument that is no list, in the same order.
        fixed: arguments of the op on single tensors that the op on lists has not.
    """
    op, single = resolve(f"_foreach_{name}"), resolve(base)
    names = [a.name for a in parameters(single)]
    of_list = [a for a in parameters(op) if not a.keyword_only]

    def item(i: int, arguments: dict[str, Any]) -> dict[str, Any]:
        own = [arguments[a.name] for a in of_list]
        given = dict(zip(names, (a[i] if isinstance(a, list) else a for a in own), strict=False))
        return given | {a.name: arguments[a.name] for a in parameters(op) if a.keyword_only} | fixed

    _declare(op, single, item)


def _declare(op: torch._ops.OpOverload, single: torch._ops.OpOverload, item: Item) -> None:
    """Declares the functional and the in-place overload; `item` gives the arguments of the op on single tensors."""
    names = [a.name for a in parameters(op)]
    _members[overload_name(op)] = single, item

    def plan(p: PlanBuilder, outs: list[torch.Tensor], *args: Any, **kwargs: Any) -> None:
        arguments = dict(zip(names, args, strict=False)) | kwargs
        lists = next(a for a in args if isinstance(a, list) and isinstance(a[0], torch.Tensor))

        def one(i: int) -> None:
            given = {name: _dynamic(a, lists[i]) for name, a in item(i, arguments).items()}
            plan_nested(p, single, (), given, outs[i])

        _gather(p, [lambda i=i: one(i) for i in range(len(outs))])  # type: ignore[misc]

    for overload, kind in variants(op):
        if kind != "out":  # composed of the others by torch
            check = partial(_check, single, item, kind == "inplace")
            register_entry(Entry(overload, op, kind, plan, Options(by_value=True, refusals=Refusals(checks=(check,)))))


def _check(single: torch._ops.OpOverload, item: Item, inplace: bool, **arguments: Any) -> None:
    """Refuses what the op on single tensors refuses; torch's meta functions do so in other words, or not at all."""
    if any(isinstance(a, torch.Tensor) and a.dim() for a in arguments.values()):
        return  # torch's says what a tensor for all of them must be
    for i in range(min(len(a) for a in arguments.values() if isinstance(a, list))):
        given = item(i, arguments)
        if _alike(given.values()):
            continue
        given = {a.name: given.get(a.name, a.default) for a in parameters(single)}
        result = result_of(single, given)
        if inplace:
            check_in_place(single, next(iter(given.values())), result)


def _alike(operands: Iterable[Any]) -> bool:
    """Whether nothing about the operands can be refused: floating point tensors of one type and shape, real numbers."""
    operands = list(operands)
    tensors = [a for a in operands if isinstance(a, torch.Tensor)]
    return (
        len({(t.dtype, t.shape) for t in tensors}) == 1
        and tensors[0].is_floating_point()
        and not any(isinstance(a, (bool, complex)) for a in operands)
    )


for _name in (
    "abs acos asin atan ceil cos cosh erf erfc exp expm1 floor frac lgamma log log10 log1p log2 neg reciprocal round "
    "rsqrt sigmoid sign sin sinh sqrt tan tanh trunc"
).split():
    foreach(_name, _name)

for _name in ("add", "sub"):
    foreach(f"{_name}.List", f"{_name}.Tensor")
    foreach(f"{_name}.Scalar", f"{_name}.Tensor", alpha=1)
    foreach(f"{_name}.ScalarList", f"{_name}.Tensor", alpha=1)
foreach("add.Tensor", "add.Tensor")
for _name in ("mul", "div"):
    for _kind in ("List", "Scalar", "ScalarList", "Tensor"):
        foreach(f"{_name}.{_kind}", f"{_name}.Tensor")
for _name, _base in (
    ("maximum", "maximum"),
    ("minimum", "minimum"),
    ("clamp_min", "maximum"),
    ("clamp_max", "minimum"),
):
    for _kind in ("List", "Scalar", "ScalarList"):
        foreach(f"{_name}.{_kind}", _base)
foreach("pow.List", "pow.Tensor_Tensor")
foreach("pow.Scalar", "pow.Tensor_Scalar")
foreach("pow.ScalarList", "pow.Tensor_Scalar")
foreach("pow.ScalarAndTensor", "pow.Scalar")
foreach("lerp.List", "lerp.Tensor")
foreach("lerp.Scalar", "lerp.Scalar")
foreach("lerp.ScalarList", "lerp.Scalar")


def _with_value(name: str) -> None:
    """addcmul and addcdiv: their factor is an argument by keyword in the ops on single tensors."""

    def item(i: int, arguments: dict[str, Any]) -> dict[str, Any]:
        self, a, b, value = (x[i] if isinstance(x, list) else x for x in arguments.values())
        return {"self": self, "tensor1": a, "tensor2": b, "value": value}

    for kind in ("Scalar", "ScalarList"):
        _declare(resolve(f"_foreach_{name}.{kind}"), resolve(name), item)


_with_value("addcmul")
_with_value("addcdiv")


def _zero(p: PlanBuilder, outs: list[torch.Tensor], self: list[torch.Tensor]) -> None:
    _gather(p, [lambda t=t: pointwise.plan_fill(p, t, 0) for t in outs])  # type: ignore[misc]


for _overload, _how in variants(resolve("_foreach_zero")):
    if _how != "out":
        register_entry(Entry(_overload, resolve("_foreach_zero"), _how, _zero, Options()))


def _norm(
    p: PlanBuilder, outs: list[torch.Tensor], self: list[torch.Tensor], ord: Scalar, dtype: torch.dtype | None
) -> None:
    order = {1.0: "1", 2.0: "2", float("inf"): "inf"}.get(float(ord))
    alike: dict[torch.dtype, list[int]] = {}
    for i, (out, x) in enumerate(zip(outs, self, strict=True)):
        together = (
            p.form == "cpu"
            and order is not None
            and x.is_floating_point()
            and pointwise.is_dense(x)
            and dtype in (None, x.dtype)
        )
        if together and x.dtype == out.dtype and x.numel() > 0:
            alike.setdefault(x.dtype, []).append(i)
        else:
            p.call_out(aten.linalg_vector_norm.default, out, x, ord, None, False, dtype=dtype)
    for numbers in alike.values():
        for start in range(0, len(numbers), kernels.COUNT):
            part = numbers[start : start + kernels.COUNT]
            _dense_norms(p, str(order), [outs[i] for i in part], [self[i] for i in part])


def _dense_norms(p: PlanBuilder, order: str, outs: list[torch.Tensor], xs: list[torch.Tensor]) -> None:
    """Of as many tensors of one type as a launch has, at most, which lie flat."""
    storage, count = element_type(xs[0].dtype), kernels.COUNT
    ends = list(itertools.accumulate(x.numel() for x in xs))
    lasts, grid = numbered("last", ends, count, ends[-1]), p.walk(ends[-1])
    room = p.empty((*grid.groups, count), BY_NAME[storage.compute].dtype)
    p.launch(kernels.norm_parts(order, storage.name), grid, **numbered("x", xs, count, None), **lasts, room=room)
    p.launch(
        kernels.norm_ends(order, storage.name),
        p.walk(len(outs)),
        **numbered("out", outs, count, None),
        **lasts,
        part=grid.values["chunk"],
        room=room,
    )


def _check_order(self: list[torch.Tensor], ord: complex = 2, dtype: torch.dtype | None = None) -> None:
    if isinstance(ord, complex):
        raise RuntimeError("foreach_tensor_norm_slow expects ord to be integer or float")
    for x in self:
        if not (x.is_floating_point() or x.is_complex()):
            raise versions.DTYPES_REFUSED(
                "linalg.vector_norm: Expected a floating point or complex tensor as input. Got " + dtype_name(x.dtype)
            )


_op = resolve("_foreach_norm.Scalar")
register_entry(Entry(_op, _op, "functional", _norm, Options(refusals=Refusals(checks=(_check_order,)))))
