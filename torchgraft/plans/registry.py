"""Which op is planned by what, and how a call becomes a plan."""

from __future__ import annotations

import functools
import itertools
import math
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from traceback import walk_tb
from typing import Any, NoReturn

import torch
import torch._meta_registrations  # meta functions that torch has in Python
from torch._library import custom_ops
from torch._prims_common import compute_elementwise_output_strides
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map

from torchgraft import _C
from torchgraft.codegen.compiler import KernelCompileError
from torchgraft.codegen.dialect import UnsupportedKernel
from torchgraft.codegen.types import UnsupportedDtype, element_type
from torchgraft.plans.builder import PlanBuilder, Unsupported, device_traits, kernel_form
from torchgraft.plans.refused import refused_kernel
from torchgraft.plans.scalar import Scalar

Planner = Callable[..., None]

# c10::ScalarType by number, as dtypes arrive in boxed calls.
_DTYPES: list[torch.dtype | None] = [
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.float32,
    torch.float64,
    torch.complex32,
    torch.complex64,
    torch.complex128,
    torch.bool,
    torch.qint8,
    torch.quint8,
    torch.qint32,
    torch.bfloat16,
]


_WRAPPED = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}


@dataclass(frozen=True)
class Options:
    """How a planner wants to be called; see `planner`. `way` is how it was declared: "native", "decomposed" or
    "composite"."""

    contiguous: bool = False
    inplace_safe: bool = False
    pointwise: bool = False
    cpu_tensors: str = "upload"
    meta: Callable[..., Any] | None = None
    eager: Callable[[dict[str, Any], bool], Callable[..., Any] | None] | None = None
    way: str = "native"
    apart: tuple[str, ...] = ()
    exact_out: bool = True
    typed_by_out: bool = False
    check: Callable[..., None] | None = None


@dataclass(frozen=True)
class Entry:
    """One overload and its planner.

    Attributes:
        op: the overload that the dispatcher calls.
        functional: the overload whose arguments the planner takes.
        kind: "functional", "inplace" or "out".
    """

    op: torch._ops.OpOverload
    functional: torch._ops.OpOverload
    kind: str
    plan: Planner
    options: Options


ENTRIES: dict[str, Entry] = {}
"""Every planned overload by name ("aten::add.out")."""

_META_KEYS = (
    "Meta",
    "CompositeImplicitAutograd",
    "CompositeExplicitAutograd",
    "CompositeExplicitAutogradNonFunctional",
)

_lock = threading.RLock()
_recomposed: dict[str, Callable[..., Any]] = {}
_installed = False
_tables_complete = False
_planned: set[str] = set()  # names that the dispatcher has from here


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


def _signature(op: torch._ops.OpOverload) -> list[tuple[str, str]]:
    return [(a.name, a.type) for a in parameters(op) if not a.is_out]


def _written(op: torch._ops.OpOverload) -> list[str]:
    return [a.name for a in parameters(op) if a.is_written]


def _call(function: Callable[..., Any], op: torch._ops.OpOverload, arguments: Mapping[str, Any]) -> Any:
    """Calls a function that takes what an overload takes; the arguments are given by name."""
    positional = [arguments[a.name] for a in parameters(op) if not a.keyword_only]
    return function(*positional, **{a.name: arguments[a.name] for a in parameters(op) if a.keyword_only})


@functools.cache
def _packet(namespace: str, name: str) -> list[torch._ops.OpOverload]:
    packet = getattr(getattr(torch.ops, namespace), name, None)
    if packet is None:
        return []
    return [getattr(packet, overload) for overload in packet.overloads()]


def variants(op: torch._ops.OpOverload) -> Iterator[tuple[torch._ops.OpOverload, str]]:
    """The overloads that do the same as a functional one: itself, in place, and with `out=`, found by comparing
    schemas."""
    namespace, name = op._schema.name.split("::")
    signature = _signature(op)
    kind = "functional" if not _written(op) else "inplace"
    yield op, kind
    if kind == "inplace":
        return
    names = [a for a, _ in signature]
    for other in [*_packet(namespace, name), *_packet(namespace, f"{name}_")]:
        if other is op:
            continue
        written = _written(other)
        if not written or _signature(other) != signature:
            continue
        if all(a.is_out for a in parameters(other) if a.is_written):
            yield other, "out"
        elif other._schema.name.endswith("_") and written == names[: len(written)]:
            yield other, "inplace"
        else:
            raise RuntimeError(f"{other} writes {written}: torchgraft knows no rule for that")


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


def register(name: str, plan: Planner, options: Options, replace: bool = False) -> None:
    """Enters an op and its in-place and out= forms in `ENTRIES`, and in the dispatcher if the devices are open."""
    import torchgraft.ops  # noqa: F401  # whatever is declared comes after our own tables

    op = resolve(name)
    if _tables_complete and _is_composed(overload_name(op)):
        raise ValueError(
            f"torch composes {overload_name(op)} of other ops, from which it has its gradient; a kernel for itself "
            "would have none. Give it one first, with torchgraft.autograd.override"
        )
    entries = [Entry(overload, op, kind, plan, options) for overload, kind in variants(op)]
    with _lock:
        for entry in entries:
            if not replace and overload_name(entry.op) in ENTRIES:
                raise ValueError(
                    f"{overload_name(entry.op)} has a planner already; replace=True puts this one in its place"
                )
        for entry in entries:
            register_entry(entry)
    for entry in entries:
        offer_meta(entry)


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
    if (
        entry.options.meta is None or has_meta(entry.op) or name == "aten::_copy_from"
    ):  # of which nothing above the device's own copy knows
        return

    def meta(*args: Any, **kwargs: Any) -> Any:
        names = [a.name for a in parameters(entry.op)]
        defaults = {a.name: a.default for a in parameters(entry.op)}
        return _run_own_meta(entry, defaults | dict(zip(names, args, strict=False)) | kwargs)

    if entry.op.namespace == "aten":
        _aten_library().impl(name.removeprefix("aten::"), meta, "Meta")
    else:
        torch.library.register_fake(name, meta)


@functools.cache
def _aten_library() -> torch.library.Library:
    return torch.library.Library("aten", "IMPL")


def has_meta(op: torch._ops.OpOverload) -> bool:
    """Whether an overload has a meta function."""
    definition = custom_ops._maybe_get_opdef(op)
    if definition is not None:  # torch.library.custom_op registers one that only raises
        return definition._abstract_fn is not None or (op._schema.is_mutable and not op._schema.returns)
    # Not the computed kernel: where there is none, that is a fallback which only raises.
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    return any(has(overload_name(op), key) for key in _META_KEYS)


def _run_own_meta(entry: Entry, arguments: Mapping[str, Any]) -> Any:
    """What an overload returns, by the meta function of its functional form."""
    assert entry.options.meta is not None
    with _meta_function():
        result = entry.options.meta(**{a.name: arguments[a.name] for a in parameters(entry.functional)})
    if entry.op is entry.functional:
        return result
    targets = [arguments[name] for name in _written(entry.op)]
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
    cpu_tensors: str = "upload",
    meta: Callable[..., Any] | None = None,
    eager: Callable[[dict[str, Any], bool], Callable[..., Any] | None] | None = None,
    apart: tuple[str, ...] = (),
    exact_out: bool = True,
    typed_by_out: bool = False,
    check: Callable[..., None] | None = None,
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
        cpu_tensors: CPU tensors among the arguments: "upload" copies zero-dim ones to the device, "upload_all" also
            any in lists of tensors.
        meta: gives the results' specs for ops without a meta kernel in torch.
        eager: looks at a call's arguments by name (not at data) and at whether the call is in place; a function that
            it returns is run in place of a plan, for every such call. It takes the functional overload's arguments and
            calls other ops; in place it may write into its first argument and return that.
        apart: arguments that a written tensor must not share elements with. Elsewhere the results are as if the inputs
            were copied first.
        exact_out: an `out=` must have the dtype of the result; False converts the result to the dtype of `out=`.
        typed_by_out: where the argument `dtype` is not given, an `out=` gives it.
        check: raises what torch raises before it looks at shapes; it gets the overload's arguments by keyword, tensors
            as specs, `out` among them if there is one.
        replace: takes the place of the planner that an op has, which is an error otherwise.

    Raises:
        ValueError: there is no such op, or it has a planner.
        RuntimeError: an overload's schema fits no rule.
    """

    def declare(plan: Planner) -> Planner:
        for name in names:
            options = Options(
                contiguous,
                inplace_safe,
                cpu_tensors=cpu_tensors,
                meta=meta,
                eager=eager,
                apart=apart,
                exact_out=exact_out,
                typed_by_out=typed_by_out,
                check=check,
            )
            register(name, plan, options, replace)
        return plan

    return declare


def composite(
    *names: str, apart: tuple[str, ...] = (), exact_out: bool = True, replace: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declares a function of tensors as what ops do: for results whose shape depends on data, and for devices whose
    kernels are functions.

    The function is run for each call, takes the functional overload's arguments and calls other ops. `names`, `apart`,
    `exact_out` and `replace` are as for `planner`.
    """

    def declare(function: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            options = Options(eager=lambda *_: function, way="composite", apart=apart, exact_out=exact_out)
            register(name, no_plan, options, replace)
        return function

    return declare


def recomposed(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declares a function that takes the place of what torch composes an op of, for our devices; gradients come from
    the ops that it calls in turn."""

    def declare(function: Callable[..., Any]) -> Callable[..., Any]:
        if not _is_composed(overload_name(resolve(name))):
            raise ValueError(f"torch does not compose {name} of other ops")
        _recomposed[name] = function
        return function

    return declare


def no_plan(p: PlanBuilder, *_: Any, **__: Any) -> None:
    """The planner of what runs as a function for each call."""
    raise Unsupported(f"{p.op} reads data and cannot be part of a plan")


def install() -> None:
    """Registers every entry with the dispatcher, and from now on each that is declared. Called once, when the devices
    are opened."""
    global _installed
    _C.set_planner(plan_call)
    with _lock:
        _installed = True
        for entry in ENTRIES.values():
            _install(entry)
        for name, function in _recomposed.items():
            for key in ("PrivateUse1", "AutogradPrivateUse1"):
                _aten_library().impl(name, function, key)


def _install(entry: Entry) -> None:
    name = overload_name(entry.op)
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    internal = name.startswith("aten::_copy_from")  # reached from the copy kernel, not from the dispatcher
    # A kernel that an author has registered with torch.library stays.
    taken = name not in _planned and has_kernel(name, "PrivateUse1")
    reached = not (internal or taken or _is_composed(name))
    _C.register_planned_op(name, entry.options.cpu_tensors, entry.options.pointwise, reached)
    _planned.add(name)


def _is_composed(name: str) -> bool:
    """Whether torch makes the overload of ops that have derivatives; a kernel for itself would have none."""
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    own_gradient = has_kernel(name, "Autograd") or has_kernel(name, "AutogradPrivateUse1")
    return has_kernel(name, "CompositeImplicitAutograd") and not own_gradient


# ---- from a call to a plan ----


@dataclass
class _Reads:
    """Which scalars a planner has read."""

    mask: int = 0

    def __call__(self, index: int) -> None:
        self.mask |= 1 << min(index, 63)


def plan_call(
    name: str, arguments: list[Any], device: int, contiguous: bool, full: bool, partial: bool, unclear: bool
) -> tuple[_C.Plan, int]:
    """Makes the plan of a call; the core calls this for each new key.

    Args:
        name: the overload.
        arguments: the call's arguments, in the schema's order. Tensors are looked at, their data is not.
        device: index of the device.
        contiguous: the plan must serve any shape; see PlanBuilder.any_shape.
        full: a written tensor is also an input.
        partial: a written tensor shares some of its elements with an input.
        unclear: a written tensor lies in an input's memory in steps, perhaps between its elements.

    Returns:
        The plan, and a mask of the scalars whose values it depends on.
    """
    entry = ENTRIES[name]
    reads = _Reads()
    with ExitStack() as stack:
        stack.enter_context(torch._C.DisableTorchFunction())
        if torch._C._len_torch_dispatch_stack() > 0:
            stack.enter_context(_disable_current_modes())
        try:
            traits = device_traits(device)
            _check_overlap(entry, arguments, full or partial, partial)
            eager = _eager(entry, arguments)
            if eager is not None:
                return _C.Plan({"op": name, "eager": eager}), 0
            if not traits.has_compiler:
                raise Unsupported("the device has no kernel compiler")
            p = PlanBuilder(traits, kernel_form(device), name, contiguous)
            return _Call(entry, p, arguments, reads).plan(full or partial or unclear), reads.mask
        except (Unsupported, UnsupportedDtype, UnsupportedKernel) as reason:
            return _C.Plan({"op": name, "fallback": str(reason)}), reads.mask
        except KernelCompileError as error:
            return _C.Plan({"op": name, "fallback": refused_kernel(entry.op, error)}), reads.mask


def _eager(entry: Entry, arguments: list[Any]) -> Callable[..., Any] | None:
    """What is run in place of a plan: a function of the overload's own arguments."""
    if entry.options.eager is None:
        return None
    names = [a.name for a in parameters(entry.op)]
    dtypes = {name for name in names if name in ("dtype", "out_dtype")}
    function = entry.options.eager(dict(zip(names, arguments, strict=True)), entry.kind == "inplace")
    if function is None:
        return None
    written = _written(entry.op)

    def run(*values: Any) -> Any:
        named = dict(zip(names, values, strict=True))
        for name in dtypes:
            named[name] = _DTYPES[named[name]] if isinstance(named[name], int) else named[name]
        result = _call(function, entry.functional, named)
        if entry.kind == "functional":
            return result
        results = result if isinstance(result, (tuple, list)) else (result,)
        targets = tuple(named[name] for name in written)
        for target, by in zip(targets, results, strict=True):
            if entry.kind == "out":
                check_out(target, by, _is_exact(entry))
            if target is not by:
                target.resize_(by.shape).copy_(by)
        return targets[0] if len(targets) == 1 else targets

    return run


def check_out(out: torch.Tensor, result: torch.Tensor, exact: bool = True) -> None:
    """Refuses an `out=` that is elsewhere, or of a dtype that the result cannot be put into."""
    check_out_dtype(result.dtype, out.dtype, exact)
    if out.device != result.device:
        raise RuntimeError(f"Expected out to be on the same device as the inputs, {result.device}, not {out.device}")


def check_in_place(op: torch._ops.OpOverload, target: torch.Tensor, result: torch.Tensor) -> None:
    """Refuses to put the result of a functional overload in the place of an operand that it does not fit."""
    if target.is_complex() and not result.is_complex():
        raise RuntimeError(f"In-place {op._opname} is not supported for complex tensors.")
    _check_cast(result.dtype, target.dtype)
    if target.shape != result.shape:
        _refuse_resized(target.shape, result.shape)


def check_out_dtype(dtype: torch.dtype, out: torch.dtype, exact: bool) -> None:
    """Refuses an `out=` whose dtype is not the result's, or to which the result's cannot be converted.

    Args:
        dtype: of the result.
        out: of the `out=`.
        exact: whether they must be the same.
    """
    if exact and dtype != out:
        raise RuntimeError(f"Expected out tensor to have dtype {dtype_name(dtype)}, but got {dtype_name(out)} instead")
    _check_cast(dtype, out)


def _is_exact(entry: Entry) -> bool:
    """Whether an `out=` must have the result's dtype. Forms that torch generates from functional ones say so all."""
    return entry.options.exact_out or torch.Tag.generated in entry.op.tags


def _check_cast(dtype: torch.dtype, to: torch.dtype) -> None:
    if not torch.can_cast(dtype, to):
        raise RuntimeError(f"result type {dtype_name(dtype)} can't be cast to the desired output type {dtype_name(to)}")


def _refuse_resized(shape: torch.Size, wanted: torch.Size) -> NoReturn:
    raise RuntimeError(f"output with shape {list(shape)} doesn't match the broadcast shape {list(wanted)}")


def check_dtype(p: PlanBuilder, dtype: torch.dtype) -> None:
    """Raises Unsupported where the device's kernels cannot compute in a dtype."""
    element_type(dtype)
    if dtype in (torch.float64, torch.complex128) and not p.device.float64:
        raise Unsupported(f"{p.device.name} cannot compute in {dtype}")


class _Call:
    """The conversion of one call's arguments to specs, and of its results to a plan."""

    def __init__(self, entry: Entry, p: PlanBuilder, arguments: list[Any], reads: _Reads) -> None:
        self.entry, self.p, self.reads = entry, p, reads
        self.given = {a.name: value for a, value in zip(parameters(entry.op), arguments, strict=True)}
        self.tensors = 0
        self.scalars = 0
        self.specs: list[torch.Tensor | None] = []  # by slot
        self.first: int | None = None
        self.arguments = {a.name: self._convert(a, self.given[a.name]) for a in parameters(entry.op)}
        if entry.kind == "out" and entry.options.typed_by_out and self.arguments["dtype"] is None:
            self.arguments["dtype"] = self.arguments["out"].dtype

    # arguments

    def _convert(self, argument: Parameter, value: Any) -> Any:
        kind = argument.type
        if kind in ("Tensor", "Optional[Tensor]"):
            return self._tensor(value)
        if value is None:
            return None
        if kind in ("List[Tensor]", "List[Optional[Tensor]]", "Optional[List[Tensor]]"):
            return [self._tensor(item) for item in value]
        if kind in ("number", "float", "Optional[number]", "Optional[float]"):
            return self._scalar(value)
        if kind in ("List[number]", "Optional[List[number]]"):
            return [self._scalar(item) for item in value]
        if "Generator" in kind:
            return None
        if argument.name in ("dtype", "out_dtype") and isinstance(value, int):
            return _DTYPES[value]
        return value

    def _scalar(self, value: complex) -> Scalar:
        self.scalars += 1
        return Scalar(value, self.scalars - 1, self.reads)

    def _tensor(self, value: torch.Tensor | complex | None) -> torch.Tensor | None:
        slot = self.tensors
        self.tensors += 1
        if value is None:
            self.specs.append(None)
            return None
        if not isinstance(value, torch.Tensor):  # a number that torch has wrapped as a zero-dim CPU tensor
            spec = self.p.adopt(torch.empty((), dtype=_WRAPPED[type(value)], device="meta"), "number", slot)
            self.p.memory(spec).number = value
            self.specs.append(spec)
            return spec
        on_cpu = value.device.type == "cpu"
        if not on_cpu:  # a number from the CPU takes whatever type the kernel wants
            check_dtype(self.p, value.dtype)
        spec = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
        self.p.adopt(spec, "cpu scalar" if on_cpu else "argument", slot)
        if not on_cpu and self.first is None:
            self.first = slot
        if value.is_conj():
            spec = spec.conj()
        if value.is_neg():
            spec = torch._neg_view(spec)
        self.specs.append(spec)
        return spec

    # results

    def plan(self, overlap: bool) -> _C.Plan:
        """Runs torch's meta kernel, then the planner, then numbers the memory."""
        entry, p = self.entry, self.p
        before = [None if spec is None else (spec.shape, spec.stride()) for spec in self.specs]
        returned = self._run_meta()
        resizes = []
        for slot, (spec, kept) in enumerate(zip(self.specs, before, strict=True)):
            if spec is None or kept is None:
                continue
            if spec.shape != kept[0]:
                # Some of torch's meta functions in Python do not refuse it.
                if entry.op._schema.name.endswith("_") or (entry.options.pointwise and self._read_and_written(spec)):
                    _refuse_resized(kept[0], spec.shape)
                # The meta kernels of linear algebra ask for column-major order, which torch's CPU does not give; some
                # of pointwise ops do not ask for the inputs' order, in which torch's CPU has the elements.
                spec.as_strided_(spec.shape, self._order(spec.shape))
                resizes.append((slot, list(spec.shape), list(spec.stride())))
            elif spec.stride() != kept[1]:  # sort's meta kernel gives an out= of the right shape other strides
                spec.as_strided_(*kept)
        self._check_resized()
        outs = self._out_specs(returned)
        for out in outs:
            if isinstance(out, torch.Tensor):
                check_dtype(p, out.dtype)
        functional = {a.name: self.arguments[a.name] for a in parameters(entry.functional)}
        run_planner(p, entry, outs, functional, overlap)
        outputs, results = self._describe(returned)
        return p.finish(outputs, results, self.tensors, resizes)

    def _order(self, shape: torch.Size) -> Sequence[int]:
        """The strides of an `out=` that has got another shape."""
        inputs = _tensors({a.name: self.arguments[a.name] for a in parameters(self.entry.functional)})
        if self.entry.options.pointwise and inputs:
            return compute_elementwise_output_strides(*(t.expand(shape) for t in inputs))
        return torch.empty(shape, device="meta").stride()

    def _read_and_written(self, out: torch.Tensor) -> bool:
        """Whether an `out=` is also an input."""
        names = [name for name, spec in self.arguments.items() if spec is out]
        return any(
            value is self.given[name]
            for name in names
            for other, value in self.given.items()
            if other != name and isinstance(value, torch.Tensor)
        )

    def _check_resized(self) -> None:
        """An `out=` that grows would grow into what lies behind it."""
        apart = [t for name in self.entry.options.apart for t in _tensors(self.given[name])]
        if not apart or self.entry.kind != "out":
            return
        names = [name for name in _written(self.entry.op) if self.given[name].shape != self.arguments[name].shape]
        if _share_memory([self.given[name] for name in names], apart):
            _refuse_overlap()

    def _run_meta(self) -> tuple[Any, ...]:
        entry = self.entry
        plain = plain_arguments(self.p, self.arguments)
        if entry.options.check is not None:
            entry.options.check(**plain)
        if "device" in plain and plain["device"] is not None:
            plain["device"] = torch.device("meta")
        if entry.options.meta is not None:
            result = _run_own_meta(entry, plain)
        else:
            # A resized out= is warned of when it is resized; meta functions do not warn where it has no elements.
            outs = [(t, t.shape, t.stride()) for t in _tensors(self._targets())] if entry.kind == "out" else []
            for spec, *_ in outs:
                spec.resize_(0)
            try:
                result = _ask_meta(entry.op, plain)
                if entry.kind == "inplace" and entry.options.pointwise:
                    # The functional form's says more: mul_'s lets integers become the product with a fraction.
                    _result_dtypes(self.p, entry, self.arguments, self._targets())
            except RuntimeError:
                for spec, shape, stride in outs:
                    spec.as_strided_(shape, stride)
                if entry.options.pointwise:
                    _check_broadcast([spec for spec in self.specs if spec is not None])
                if entry.kind != "functional" and not any(isinstance(t, list) for t in self._targets()):
                    _result_dtypes(self.p, entry, self.arguments, self._targets())
                raise
        if result is None:
            return ()
        return tuple(result) if isinstance(result, (tuple, list)) and _returns_several(entry.op) else (result,)

    def _out_specs(self, returned: tuple[Any, ...]) -> list[Any]:
        """What the planner writes: new results, or the arguments that the overload writes."""
        if self.entry.kind == "functional":
            for item in returned:
                for spec in item if isinstance(item, (list, tuple)) else [item]:
                    if isinstance(spec, torch.Tensor) and spec.untyped_storage()._cdata not in self.p._memory:
                        self.p.adopt(spec, "result")
            return list(returned)
        return self._targets()

    def _targets(self) -> list[Any]:
        return [self.arguments[name] for name in _written(self.entry.op)]

    def _describe(self, returned: tuple[Any, ...]) -> tuple[list[tuple[Any, ...]], list[torch.Tensor]]:
        results: list[torch.Tensor] = []

        def describe(item: Any) -> tuple[Any, ...]:
            if item is None:
                return ("undefined",)
            if isinstance(item, (list, tuple)):
                return ("list", [describe(part) for part in item])
            if not isinstance(item, torch.Tensor):
                return ("constant", item)
            for slot, spec in enumerate(self.specs):
                if spec is item:
                    return ("argument", slot)
            memory = self.p.memory(item)
            if memory.kind == "argument":
                return ("view", memory.argument, list(item.shape), list(item.stride()), item.storage_offset())
            results.append(item)
            memory.kind = "result"
            if self.p.any_shape and self.first is not None:
                first = self.specs[self.first]
                if first is not None and first.shape == item.shape:
                    return ("like", item, self.first, item.dtype)
            # Some of torch's meta functions order the dimensions even of a result without elements.
            strides = item.stride() if item.numel() else torch.empty(item.shape, device="meta").stride()
            return ("new", item, list(item.shape), list(strides), item.dtype)

        return [describe(item) for item in returned], results


def _ask_meta(op: torch._ops.OpOverload, arguments: Mapping[str, Any]) -> Any:
    """What torch's meta function of an overload says."""
    with _meta_function():
        return _call(op, op, arguments)


@contextmanager
def _meta_function() -> Iterator[None]:
    """Where meta functions are called: errors get the types that torch's kernels raise."""
    try:
        yield
    except OverflowError as error:  # a number that is made one of an integer type
        raise RuntimeError(f"value cannot be converted without overflow: {error}") from error
    except (AssertionError, ValueError) as error:
        # So some of torch's meta functions in Python refuse what its kernels refuse by a RuntimeError.
        if isinstance(error, ValueError) and not _raised_by_reference(error):
            raise
        raise RuntimeError(str(error)) from error


def _raised_by_reference(error: Exception) -> bool:
    """Whether one of torch's functions in Python has raised it itself, not a check of torch's that says ValueError."""
    *_, (innermost, _) = walk_tb(error.__traceback__)
    return str(innermost.f_globals.get("__name__", "")).startswith(("torch._refs", "torch._prims", "torch._decomp"))


def _check_broadcast(specs: list[torch.Tensor]) -> None:
    """Says in the words of torch's CPU which sizes do not fit; some meta kernels say it in others."""
    for a, b in itertools.combinations(specs, 2):
        for dim in range(-1, -min(a.dim(), b.dim()) - 1, -1):
            if a.shape[dim] != b.shape[dim] and 1 not in (a.shape[dim], b.shape[dim]):
                raise RuntimeError(
                    f"The size of tensor a ({a.shape[dim]}) must match the size of tensor b ({b.shape[dim]}) at "
                    f"non-singleton dimension {max(a.dim(), b.dim()) + dim}"
                )


def plain_arguments(p: PlanBuilder, arguments: dict[str, Any]) -> dict[str, Any]:
    """Arguments as torch's meta kernels take them: numbers as numbers."""

    def plain(x: Any) -> Any:
        if isinstance(x, Scalar):
            return x.peek()
        if isinstance(x, torch.Tensor) and p.is_wrapped_number(x):
            return _wrapped_number(x.dtype)
        return x

    return {
        name: tree_map(plain, value) if isinstance(value, (list, tuple)) else plain(value)
        for name, value in arguments.items()
    }


@functools.cache
def _wrapped_number(dtype: torch.dtype) -> torch.Tensor:
    """A zero-dim CPU tensor that torch takes for a number; its value does not matter."""
    tensor = torch.ones((), dtype=dtype, device="cpu")
    _C.set_wrapped_number(tensor)
    return tensor


def number_like(spec: torch.Tensor) -> complex:
    """Some number of the Python type that a wrapped number's dtype stands for."""
    if spec.dtype == torch.bool:
        return True
    if spec.is_complex():
        return 1j
    return 1.0 if spec.is_floating_point() else 1


def _returns_several(op: torch._ops.OpOverload) -> bool:
    returns = op._schema.returns
    return len(returns) != 1


# Where elements of a tensor share memory these still do what is meant, and torch's CPU lets them, some with a warning.
_WARN_OF_EXPANDED = {
    "aten::masked_fill.Scalar",
    "aten::masked_fill.Tensor",
    "aten::index_fill.int_Scalar",
    "aten::index_fill.int_Tensor",
    "aten::index_put",
    "aten::_index_put_impl_",
}
_WRITE_ONE_VALUE = {"aten::fill_.Scalar", "aten::fill_.Tensor", "aten::zero_", "aten::threshold", *_WARN_OF_EXPANDED}


def _check_overlap(entry: Entry, arguments: list[Any], overlap: bool, partial: bool) -> None:
    """Refuses what torch's CPU refuses: a result that lies over itself, or over an input that must be elsewhere."""
    options = entry.options
    named = {a.name: value for a, value in zip(parameters(entry.op), arguments, strict=True)}
    written = [t for name in _written(entry.op) for t in _tensors(named[name])]
    elsewhere = next((t.device for t in written if t.device.type == "cpu"), None)
    if elsewhere is not None and not entry.op._schema.name.startswith("aten::_copy_from"):
        backend = torch._C._get_privateuse1_backend_name()
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, {elsewhere} (written to) "
            f"and {backend}"
        )
    functional = overload_name(entry.functional)
    writes_one_value = functional in _WRITE_ONE_VALUE
    over_itself = any(map(_lies_over_itself, written))
    if over_itself and functional in _WARN_OF_EXPANDED:
        name = entry.functional._schema.name.removeprefix("aten::").replace("_index_put_impl_", "index_put")
        warnings.warn(
            f"Use of {name}_ on expanded tensors is deprecated. Please clone() the tensor before performing this "
            "operation. This also applies to advanced indexing e.g. tensor[mask] = scalar",
            stacklevel=2,
        )
    if over_itself and not writes_one_value:
        raise RuntimeError(
            "unsupported operation: more than one element of the written-to tensor refers to a single memory "
            "location. Please clone() the tensor before performing the operation."
        )
    shared = overlap and _share_memory(written, [t for name in options.apart for t in _tensors(named[name])])
    if shared or (partial and options.pointwise):
        _refuse_overlap()


def _refuse_overlap() -> None:
    raise RuntimeError(
        "unsupported operation: some elements of the input tensor and the written-to tensor refer to a single "
        "memory location. Please clone() the tensor before performing the operation."
    )


def _share_memory(some: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    memory = {t.untyped_storage()._cdata for t in some}
    return any(t.untyped_storage()._cdata in memory for t in others)


def _lies_over_itself(tensor: torch.Tensor) -> bool:
    repeats = any(s == 0 and n > 1 for s, n in zip(tensor.stride(), tensor.shape, strict=True))
    return repeats and tensor.numel() > 0


def run_planner(p: PlanBuilder, entry: Entry, outs: list[Any], arguments: dict[str, Any], overlap: bool) -> None:
    """Calls a planner with results and arguments as it wants them, and copies back what had to be elsewhere."""
    options = entry.options
    if options.contiguous:
        arguments = {
            name: tree_map(lambda x: p.contiguous(x) if isinstance(x, torch.Tensor) else x, value)
            for name, value in arguments.items()
        }
    wanted = list(outs)
    backs: list[tuple[torch.Tensor, torch.Tensor]] = []
    dtypes = _result_dtypes(p, entry, arguments, outs) if entry.kind == "out" else [None] * len(outs)
    in_memory = {p.memory(t) for t in _tensors(arguments)}
    for i, out in enumerate(outs):
        if not isinstance(out, torch.Tensor):
            continue
        dtype = dtypes[i] or out.dtype
        shared = not options.inplace_safe and (overlap or p.memory(out) in in_memory)
        if options.pointwise:  # computes in a wider type than these, from which the result must be rounded first
            elsewhere = dtype != out.dtype and dtype in (torch.float16, torch.bfloat16)
        else:
            elsewhere = shared or dtype != out.dtype or (options.contiguous and not out.is_contiguous())
        if elsewhere:
            wanted[i] = p.empty(out.shape, dtype)
            backs.append((out, wanted[i]))
    plan = functools.partial(entry.plan, p, wanted[0] if len(wanted) == 1 else tuple(wanted))
    _call(plan, entry.functional, arguments)
    for out, temporary in backs:
        p.copy(out, temporary)


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, (list, tuple)):
        return []
    return [t for item in value for t in _tensors(item)]


def _result_dtypes(
    p: PlanBuilder, entry: Entry, arguments: dict[str, Any], outs: Sequence[Any]
) -> list[torch.dtype | None]:
    """The dtypes that the functional overload would give: an out= of another dtype is filled by conversion."""
    plain = plain_arguments(p, arguments)
    meta = entry.options.meta
    functional = {a.name: plain[a.name] for a in parameters(entry.functional)}
    result = _ask_meta(entry.functional, plain) if meta is None else meta(**functional)
    items = list(result) if isinstance(result, (tuple, list)) else [result]
    # The absolute value of a complex number may be put where it fits.
    real = entry.options.pointwise and any(t.is_complex() for t in _tensors(functional))
    dtypes: list[torch.dtype | None] = []
    for item, out in zip(items, outs, strict=True):
        dtype = item.dtype if isinstance(item, torch.Tensor) else None
        if dtype is not None:
            # `all` and `any` take bytes for truth, of old, when there was no bool.
            bytes_too = entry.functional._opname in ("all", "any")
            byte = bytes_too and {dtype, out.dtype} == {torch.bool, torch.uint8}
            exact = _is_exact(entry) and not (real and not dtype.is_complex)
            if not byte:
                check_out_dtype(dtype, out.dtype, exact)
        dtypes.append(dtype)
    return dtypes


def dtype_name(dtype: torch.dtype) -> str:
    """As torch's messages call it: "Float", "Long"."""
    names = {
        torch.float32: "Float",
        torch.float64: "Double",
        torch.float16: "Half",
        torch.int64: "Long",
        torch.int32: "Int",
    }
    names |= {
        torch.int16: "Short",
        torch.int8: "Char",
        torch.uint8: "Byte",
        torch.bool: "Bool",
        torch.bfloat16: "BFloat16",
    }
    names |= {torch.complex64: "ComplexFloat", torch.complex128: "ComplexDouble"}
    return names.get(dtype, str(dtype))


def result_of(op: torch._ops.OpOverload, arguments: Mapping[str, Any]) -> Any:
    """What a functional overload with a planner returns, as specs, or the exception that a call of it raises.

    Numbers may stand for tensors.
    """
    options = ENTRIES[overload_name(op)].options
    plain = dict(arguments)
    for a in parameters(op):
        if a.type == "Tensor" and isinstance(plain[a.name], (int, float, complex)):
            plain[a.name] = _wrapped_number(_WRAPPED[type(plain[a.name])])
    if options.check is not None:
        options.check(**plain)
    if options.meta is not None:
        return options.meta(**plain)
    try:
        return _ask_meta(op, plain)
    except RuntimeError:
        if options.pointwise:
            _check_broadcast(_tensors(plain))
        raise


def refuse_dtype(name: str, dtype: torch.dtype) -> NoReturn:
    """Says of an op that torch's CPU has none for a dtype either."""
    raise NotImplementedError(f"\"{name}\" not implemented for '{dtype_name(dtype)}', on any device")


def check_fits(value: complex, dtype: torch.dtype) -> None:
    """Refuses a number outside of a real type's range, as torch's kernels do. Integers have no infinities; unsigned
    ones take negative numbers, which wrap."""
    most = torch.finfo(dtype).max if dtype.is_floating_point else torch.iinfo(dtype).max
    least = -most if dtype.is_floating_point else min(-most, torch.iinfo(dtype).min)
    endless = dtype.is_floating_point and not math.isfinite(value.real)
    if not endless and not least <= value.real <= most:
        raise RuntimeError(f"value cannot be converted to type {dtype_name(dtype)} without overflow")


def check_filling(self: torch.Tensor, value: torch.Tensor | complex, **_: Any) -> None:
    """A check of ops that put a number into places of a tensor, also where there is no such place."""
    is_integer = not (self.is_floating_point() or self.is_complex() or self.dtype == torch.bool)
    if is_integer and isinstance(value, (int, float)):
        check_fits(value, self.dtype)


def check_floating(self: torch.Tensor, **_: Any) -> None:
    """A check of ops that have real, floating-point numbers only."""
    if not self.is_floating_point():
        raise NotImplementedError(f"not implemented for '{dtype_name(self.dtype)}', only for floating-point numbers")


def plan_nested(
    p: PlanBuilder, op: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any
) -> Any:
    """Plans an op on specs as part of a plan; see PlanBuilder.call and call_out."""
    from torchgraft.plans.trace import trace

    entry = ENTRIES.get(overload_name(op))
    if entry is None or entry.functional is not entry.op:
        result = trace(p, op, args, kwargs)
        if out is not None:
            for to, by in zip(_tensors(out), _tensors(result), strict=True):
                p.copy(to, by)
        return result
    arguments: dict[str, Any] = {a.name: a.default for a in parameters(op)}
    arguments.update(zip(list(arguments), args, strict=False))
    arguments.update(kwargs)
    any_shape, p.any_shape = p.any_shape, False
    if out is None:
        with torch.utils._python_dispatch._disable_current_modes():
            out = result_of(op, plain_arguments(p, arguments))
    outs = list(out) if isinstance(out, (tuple, list)) else [out]
    for spec in outs:
        if isinstance(spec, torch.Tensor):
            check_dtype(p, spec.dtype)
    run_planner(p, entry, outs, arguments, False)
    p.any_shape = any_shape
    return out
