"""Which op is planned by what: the declarations, and the dispatcher's knowledge of them."""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, get_args

import torch

from torchgraft._core import _C
from torchgraft.plans.builder import PlanBuilder
from torchgraft.plans.meta import has_meta, meta_function
from torchgraft.plans.quick_meta import QUICK_METAS
from torchgraft.plans.refusals import Refusals, Refuses, check_in_place, gathered, other_out
from torchgraft.plans.schema import is_composed, overload_name, parameters, resolve, variants, written
from torchgraft.plans.steps import Unsupported
from torchgraft.plans.versions import here
from torchgraft.untraced import untraced

Planner = Callable[..., None]
#: How results must lie for a planner; see `planner`.
Results = Literal["any", "dense", "contiguous"]
#: What becomes of calls that have no elements; see `planner`.
Empty = Literal["planned", "zero"]
Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Options:
    """How a planner wants to be called; see `planner`.

    Attributes:
        pointwise: elements of results are made of the elements in the same place, so that results may be inputs.
        by_value: kernels take zero-dim CPU tensors as numbers; otherwise they are copied to the device.
        quick_meta: like `meta`, for an op that has a meta function in torch: what it says in a hundredth of the time,
            or None where it is not known to say so.
        way: how the op was declared: "native", "decomposed" or "composite".
        op_by_op: what is called instead, with the call's arguments, where there is no plan; the CPU does it otherwise.
    """

    contiguous: bool = False
    inplace_safe: bool = False
    pointwise: bool = False
    by_value: bool = False
    meta: Callable[..., Any] | None = None
    quick_meta: Callable[..., Any] | None = None
    way: str = "native"
    op_by_op: Callable[..., Any] | None = None
    apart: tuple[str, ...] = ()
    results: Results = "any"
    empty: Empty = "planned"
    refusals: Refusals = Refusals(out=other_out)  # noqa: RUF009  # frozen


@dataclass(frozen=True)
class Composite:
    """A function that is run in the place of an overload.

    Attributes:
        function: takes the arguments of `functional`.
        when: whether it is for a call, of the call's arguments by keyword; None of all calls.
        functional, kind: as of an `Entry`.
        refusals: what it refuses itself.
    """

    function: Callable[..., Any]
    when: Callable[..., bool] | None
    functional: torch._ops.OpOverload
    kind: str
    refusals: Refusals


@dataclass(frozen=True)
class Entry:
    """One overload and its planner.

    Attributes:
        op: the overload that the dispatcher calls.
        functional: the overload whose arguments the planner takes.
        kind: "functional", "inplace" or "out".
        composites: what is run instead of a plan; the first that is for a call.
    """

    op: torch._ops.OpOverload
    functional: torch._ops.OpOverload
    kind: str
    plan: Planner
    options: Options
    composites: tuple[Composite, ...] = ()

    @property
    def serves_all(self) -> bool:
        """Whether there is something for every call."""
        return self.plan is not no_plan or any(c.when is None for c in self.composites)

    @property
    def cpu_tensors(self) -> str:
        """What becomes of zero-dim CPU tensors among the arguments: "value" leaves them, "upload" copies them to the
        device, "upload_all" also any in lists of tensors, as indices are."""
        if self.options.by_value:
            return "value"
        return "upload_all" if any(a.type == "List[Optional[Tensor]]" for a in parameters(self.op)) else "upload"


ENTRIES: dict[str, Entry] = {}
"""Every planned overload by name ("aten::add.out")."""


_lock = threading.RLock()
_recomposed: dict[str, Callable[..., Any]] = {}
_on_host_alone: list[str] = []
_installed = False
_tables_complete = False
_planned: set[str] = set()  # names that the dispatcher has from here


def register(name: str, plan: Planner, options: Options, replace: bool = False) -> None:
    """Enters an op and its in-place and out= forms in `ENTRIES`, and in the dispatcher if the devices are open."""
    _enter([Entry(overload, op, kind, plan, options) for op, overload, kind in _declared(name)], replace)


def _declared(name: str) -> list[tuple[torch._ops.OpOverload, torch._ops.OpOverload, str]]:
    """The op of a declaration, and each of its overloads with its kind."""
    import torchgraft.ops  # noqa: F401  # whatever is declared comes after our own tables

    op = resolve(name)
    if _tables_complete and is_composed(overload_name(op)):
        raise ValueError(
            f"torch composes {overload_name(op)} of other ops, from which it has its gradient; a kernel for itself "
            "would have none. Give it one first, with torchgraft.autograd.override"
        )
    return [(op, overload, kind) for overload, kind in variants(op)]


def _enter(entries: list[Entry], instead: bool) -> None:
    """Enters what serves every call; functions for some calls stay before it, but where it takes another's place."""
    with _lock:
        known = [ENTRIES.get(overload_name(entry.op)) for entry in entries]
        for found in known:
            if found is not None and found.serves_all and not instead:
                raise ValueError(
                    f"{overload_name(found.op)} has a planner already; replace=True puts this one in its place"
                )
        for entry, found in zip(entries, known, strict=True):
            kept = () if found is None or found.serves_all else found.composites
            register_entry(dataclasses.replace(entry, composites=(*kept, *entry.composites)))
    for entry in entries:
        offer_meta(entry)


def _enter_for_some(entries: list[Entry]) -> None:
    """Enters functions for some calls, before what there is for others."""
    with _lock:
        for entry in entries:
            found = ENTRIES.get(overload_name(entry.op))
            composites = entry.composites + (() if found is None else found.composites)
            register_entry(dataclasses.replace(found or entry, composites=composites))


def complete_tables() -> None:
    """Our own ops are declared; what comes now is an author's."""
    global _tables_complete
    _tables_complete = True


def register_entry(entry: Entry) -> None:
    """Enters one overload in `ENTRIES`."""
    with _lock:
        ENTRIES[overload_name(entry.op)] = entry
        if _installed:
            _install(entry)


def offer_meta(entry: Entry) -> None:
    """Gives an op the meta function that its planner has, where it has none: fake tensors, torch.export and
    torch.compile use it too."""
    name = overload_name(entry.op)
    # Nothing above the device's own copy knows of _copy_from.
    if entry.options.meta is None or has_meta(entry.op) or name == "aten::_copy_from":
        return

    def meta(*args: Any, **kwargs: Any) -> Any:
        names = [a.name for a in parameters(entry.op)]
        defaults = {a.name: a.default for a in parameters(entry.op)}
        return run_own_meta(entry, defaults | dict(zip(names, args, strict=False)) | kwargs)

    if entry.op.namespace == "aten":
        _aten_library().impl(name.removeprefix("aten::"), meta, "Meta")
    else:
        torch.library.register_fake(name, meta)


@functools.cache
def _aten_library() -> torch.library.Library:
    return torch.library.Library("aten", "IMPL")


def run_own_meta(entry: Entry, arguments: Mapping[str, Any]) -> Any:
    """What an overload returns, by the meta function of its functional form."""
    assert entry.options.meta is not None
    with meta_function():
        result = entry.options.meta(**{a.name: arguments[a.name] for a in parameters(entry.functional)})
    return fit_targets(entry, arguments, result)


def quick_result(entry: Entry, arguments: Mapping[str, Any]) -> Any:
    """What the functional form returns where the entry knows it by itself and torch's meta function would say the same;
    None elsewhere."""
    quick = entry.options.quick_meta
    return None if quick is None else quick(**{a.name: arguments[a.name] for a in parameters(entry.functional)})


def fit_targets(entry: Entry, arguments: Mapping[str, Any], result: Any) -> Any:
    """What an overload returns whose functional form returns `result`: arguments that it writes have got its shape."""
    if entry.op is entry.functional:
        return result
    targets = [arguments[name] for name in written(entry.op)]
    for target, by in zip(targets, result if isinstance(result, (tuple, list)) else [result], strict=True):
        if entry.kind == "inplace":
            check_in_place(entry.functional, target, by)
        elif target.shape != by.shape:
            target.resize_(by.shape)
    if not entry.op._schema.returns:
        return None
    return targets[0] if len(targets) == 1 else tuple(targets)


def planner(
    *names: str,
    contiguous: bool = False,
    inplace_safe: bool = False,
    meta: Callable[..., Any] | None = None,
    apart: tuple[str, ...] = (),
    results: Results = "any",
    empty: Empty = "planned",
    refuses: Refuses = other_out,
    replace: bool = False,
) -> Callable[[Planner], Planner]:
    """Declares a function as the planner of ops.

    The function is called once for each new key with the plan under construction, the results' specs and the
    functional overload's arguments: see docs/adding-ops.md. It may be declared before the devices are opened or after.

    Args:
        names: functional overloads ("mm", "sum.dim_IntList", "mylib::axpy"); their in-place and out= overloads are
            found by their schemas.
        contiguous: tensors arrive contiguous, copied where they are not.
        inplace_safe: a result may be one of the inputs; otherwise such calls get a temporary and a copy.
        meta: gives the results' specs for ops without a meta kernel in torch.
        apart: arguments that a written tensor must not share elements with. Elsewhere the results are as if the inputs
            were copied first.
        results: how they lie: "dense" for those without gaps, their dimensions in any order, "contiguous" for the usual
            order. Others, that an `out=` may ask for, get a contiguous temporary and a copy. With `contiguous` they
            are contiguous anyway.
        empty: "zero" makes results zeros where an argument or a result has no element, as products over nothing are;
            the planner is not called.
        refuses: what torch's CPU refuses and its meta functions do not: refusals of `torchgraft.plans`, and functions
            that raise what torch raises before it looks at shapes. They get the overload's arguments by keyword,
            tensors as specs, `out` among them if there is one. Without `other_out`, which stands here by itself, an
            `out=` of another dtype gets the result converted.
        replace: takes the place of the planner that an op has, which is an error otherwise.

    Raises:
        ValueError: there is no such op, it has a planner, or an option has another value than those.
        RuntimeError: an overload's schema fits no rule.
    """
    refusals = gathered(refuses)
    if refusals.only is not None:
        raise ValueError("only a row knows which type is computed in; a planner refuses others itself")
    for given, known in ((results, get_args(Results)), (empty, get_args(Empty))):
        if given not in known:
            raise ValueError(f"a planner's option is one of {', '.join(map(repr, known))}, not {given!r}")

    def declare(plan: Planner) -> Planner:
        options = Options(
            contiguous, inplace_safe, meta=meta, apart=apart, results=results, empty=empty, refusals=refusals
        )
        for name in here(names):
            quick = QUICK_METAS.get(f"aten::{name}") if meta is None else None
            register(name, plan, dataclasses.replace(options, quick_meta=quick), replace)
        return plan

    return declare


def composite(
    *names: str,
    when: Callable[..., bool] | None = None,
    apart: tuple[str, ...] = (),
    refuses: Refuses = other_out,
    replace: bool = False,
) -> Callable[[Function], Function]:
    """Declares a function of tensors as what ops do: for results whose shape depends on data, and for devices whose
    kernels are functions.

    The function is run for each call, takes the functional overload's arguments and calls other ops. In place and with
    `out=` its result is copied to where it is wanted; one that is named by its in-place or out= overload takes that
    one's arguments, and may write there and return what it has written.

    Where it raises `Unsupported`, what was declared before it does the call, or the CPU, with the exception's text as
    the reason: before it writes anything or gives work to the device, since what it has done by then is not undone.

    Args:
        names: as for `planner`.
        when: for which calls it is: gets the overload's arguments by keyword, and looks neither at data nor at the
            values of numbers. Other calls are left to what was declared before, or is later, a planner or a row among
            them; without any they run on the CPU.
        apart: as for `planner`, which says it for an op that has one.
        refuses: as for `planner`; functions get the tensors of each call.
        replace: takes the place of the planner that an op has, which is an error otherwise. With `when` nothing's place
            is taken.

    Raises:
        ValueError: there is no such op, or it has a planner.
        RuntimeError: an overload's schema fits no rule.
    """
    refusals = gathered(refuses)
    options = Options(way="composite", apart=apart, refusals=refusals)

    def declare(function: Function) -> Function:
        for name in here(names):
            entries = [
                Entry(overload, op, kind, no_plan, options, (Composite(function, when, op, kind, refusals),))
                for op, overload, kind in _declared(name)
            ]
            if when is None:
                _enter(entries, replace)
            else:
                _enter_for_some(entries)
        return function

    return declare


def recomposed(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declares a function that takes the place of what torch composes an op of, for our devices; gradients come from
    the ops that it calls in turn. Where it raises `Unsupported`, torch's own composition does the call."""

    def declare(function: Callable[..., Any]) -> Callable[..., Any]:
        if not is_composed(overload_name(resolve(name))):
            raise ValueError(f"torch does not compose {name} of other ops")
        _recomposed[name] = function
        return function

    return declare


def _or_composed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, or where it raises `Unsupported`, what torch composes the op of."""
    op = resolve(name)

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except Unsupported:
            return op.decompose(*args, **kwargs)

    return run


def on_host_alone(*names: str) -> None:
    """Declares that ops run on the CPU, counted as such, which torch composes of no others: it reads and writes memory
    as the host's, whatever the tensors' device."""
    _on_host_alone.extend(overload_name(resolve(name)) for name in names)


def no_plan(p: PlanBuilder, *_: Any, **__: Any) -> None:
    """The planner of what runs as a function for each call."""
    raise Unsupported(f"{p.op} reads data and cannot be part of a plan")


def install() -> None:
    """Registers every entry with the dispatcher, and from now on each that is declared. Called once, when the devices
    are opened."""
    global _installed
    with _lock:
        _installed = True
        for entry in ENTRIES.values():
            _install(entry)
        for name in _on_host_alone:
            _C.register_host_op(name)
        for name, function in _recomposed.items():
            for key in ("PrivateUse1", "AutogradPrivateUse1"):
                _aten_library().impl(name, untraced(_or_composed(name, function)), key)


def _install(entry: Entry) -> None:
    name = overload_name(entry.op)
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    internal = name.startswith("aten::_copy_from")  # reached from the copy kernel, not from the dispatcher
    # A kernel that an author has registered with torch.library stays.
    taken = name not in _planned and has_kernel(name, "PrivateUse1")
    reached = not (internal or taken or is_composed(name))
    # A plan for any shape would also serve calls that there is a function for.
    any_shape = entry.options.pointwise and not entry.composites
    _C.register_planned_op(name, entry.cpu_tensors, any_shape, reached)
    _planned.add(name)
