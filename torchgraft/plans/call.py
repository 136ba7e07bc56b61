"""How a call becomes a plan."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from torchgraft._core import _C
from torchgraft.codegen.compiler import KernelCompileError, counts
from torchgraft.codegen.dialect import UnsupportedKernel
from torchgraft.plans import registry
from torchgraft.plans.ahead import expect_gradient
from torchgraft.plans.builder import PlanBuilder
from torchgraft.plans.device import device_traits, kernel_form
from torchgraft.plans.elementwise import number_dtype, result_spec, wrapped_number
from torchgraft.plans.meta import ask_meta
from torchgraft.plans.operators import plan_as_operator
from torchgraft.plans.pointwise import is_dense
from torchgraft.plans.refusals import (
    check_apart,
    check_broadcast,
    check_on_device,
    check_out,
    check_out_dtype,
    check_over_itself,
    dtype_name,
    looks_at_out_first,
    named_tensors,
    refuse_overlap,
    refuse_resized,
)
from torchgraft.plans.refused import REFUSALS, refusal, stated_refusal, why_on_cpu
from torchgraft.plans.registry import (
    ENTRIES,
    Composite,
    Entry,
    Options,
    fit_targets,
    no_plan,
    quick_result,
    run_own_meta,
)
from torchgraft.plans.scalar import Scalar
from torchgraft.plans.schema import (
    Parameter,
    call_by_name,
    overload_name,
    parameters,
    returns_several,
    tensors_in,
    written,
)
from torchgraft.plans.steps import Unsupported, WrongElements
from torchgraft.plans.trace import trace
from torchgraft.untraced import untraced

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


_DTYPE_NAMES = ("dtype", "out_dtype")
_TENSORS = (_C.ArgumentKind.Tensor, _C.ArgumentKind.TensorList)


@contextmanager
def below_modes() -> Iterator[None]:
    """Specs are made and looked at in it: no mode of torch's sees them."""
    with ExitStack() as stack:
        stack.enter_context(torch._C.DisableTorchFunction())
        if torch._C._len_torch_dispatch_stack() > 0:
            stack.enter_context(_disable_current_modes())
        yield


@dataclass
class _Reads:
    """Which scalars a planner has read."""

    mask: int = 0

    def __call__(self, index: int) -> None:
        self.mask |= 1 << min(index, 63)


@untraced
def plan_call(
    name: str,
    arguments: list[Any],
    places: list[_C.Place],
    device: int,
    contiguous: bool,
    full: bool,
    partial: bool,
    unclear: bool,
    refused: int,
) -> tuple[_C.Plan, int]:
    """Makes the plan of a call; the core calls this for each new key.

    Args:
        name: the overload.
        arguments: the call's arguments, in the schema's order. Tensors are looked at, their data is not.
        places: for each argument, where its tensors or scalars stand among the call's.
        device: index of the device.
        contiguous: the plan must serve any shape; see PlanBuilder.any_shape.
        full: a written tensor is also an input.
        partial: a written tensor shares some of its elements with an input.
        unclear: a written tensor lies in an input's memory in steps, perhaps between its elements.
        refused: how many of the functions that are run in place of a plan have refused the call.

    Returns:
        The plan, and a mask of the scalars whose values it depends on.
    """
    entry = ENTRIES[name]
    reads = _Reads()
    operators: list[str] = []
    functions: list[Composite] = []
    with below_modes():
        try:
            traits = device_traits(device)
            _check_written(entry, arguments, full or partial, partial)
            functions = _functions(entry, arguments)
            if refused < len(functions):
                return _eager(name, entry.op, functions[refused]), 0
            if entry.plan is no_plan:
                raise Unsupported("" if refused else f"{name} has only functions for other calls than this")
            if not traits.has_compiler and not traits.has_programs:
                raise Unsupported("the device has no kernel compiler")
            p = PlanBuilder(traits, kernel_form(device), name, contiguous, refused=operators, nested=plan_nested)
            compiled_before = counts.compiled
            call = _Call(entry, p, arguments, places, reads)
            plan = call.plan(full or partial or unclear)
            if counts.compiled != compiled_before and entry.kind == "functional":
                expect_gradient(entry.op, _named(entry.op, arguments), device, plan_nested)
            return plan, reads.mask
        except REFUSALS as error:
            if entry.options.op_by_op is not None:
                return _C.Plan.eager(name, entry.options.op_by_op, None), reads.mask
            why = why_on_cpu(entry.op, error, operators)
            is_planned = isinstance(error, (UnsupportedKernel, KernelCompileError))
            return _C.Plan.fallback(name, why, call.result_strides if is_planned else []), reads.mask


def _check_written(entry: Entry, arguments: list[Any], overlap: bool, partial: bool) -> None:
    """Refuses what torch's CPU refuses: a result that lies over itself, or over an input that must be elsewhere."""
    if entry.kind == "functional":
        return
    named = {a.name: value for a, value in zip(parameters(entry.op), arguments, strict=True)}
    targets = named_tensors(named, written(entry.op))
    if not entry.op._schema.name.startswith("aten::_copy_from"):
        check_on_device(targets)
    if entry.kind != "out" or entry.plan is no_plan or entry.options.pointwise or looks_at_out_first(entry.functional):
        check_over_itself(overload_name(entry.functional), targets)  # else when it is known whether they are resized
    if overlap:
        check_apart(targets, named_tensors(named, entry.options.apart))
        if entry.options.refusals.out is not None:
            entry.options.refusals.out.check_apart(targets)
    if partial and entry.options.pointwise:
        refuse_overlap()


def _functions(entry: Entry, arguments: list[Any]) -> list[Composite]:
    """What is run in place of a plan, the next where one refuses."""
    if not entry.composites:
        return []
    named = _named(entry.op, arguments)
    return [composite for composite in entry.composites if composite.when is None or composite.when(**named)]


def _eager(name: str, op: torch._ops.OpOverload, composite: Composite) -> _C.Plan:
    """Calls a function of the overload's own arguments."""
    function = composite.function if _takes_calls(composite, op) else functools.partial(_run, composite, op)
    # One that writes into its arguments may have done so before a kernel is refused.
    return _C.Plan.eager(name, function, refusal if composite.kind == "functional" else stated_refusal)


def _takes_calls(composite: Composite, op: torch._ops.OpOverload) -> bool:
    """Whether there is nothing to do for an overload but to call the function with a call's arguments as they are."""
    as_they_are = all(not a.keyword_only and a.name not in _DTYPE_NAMES for a in parameters(op))
    return composite.kind == "functional" and as_they_are and not composite.refusals.checks


def _named(op: torch._ops.OpOverload, arguments: Sequence[Any]) -> dict[str, Any]:
    """A call's arguments by name, with dtypes as such."""
    return {
        a.name: _DTYPES[value] if a.name in _DTYPE_NAMES and isinstance(value, int) else value
        for a, value in zip(parameters(op), arguments, strict=True)
    }


def _run(composite: Composite, op: torch._ops.OpOverload, *arguments: Any) -> Any:
    """Calls a function in the place of an overload, which may have to put the results elsewhere."""
    named = _named(op, arguments)
    composite.refusals.check(named)
    result = call_by_name(composite.function, composite.functional, named)
    if composite.kind == "functional":
        return result
    results = result if isinstance(result, (tuple, list)) else (result,)
    targets = tuple(named[name] for name in written(op))
    for target, by in zip(targets, results, strict=True):
        if composite.kind == "out":
            check_out(target, by, composite.refusals.out is not None or torch.Tag.generated in op.tags)
        if target is not by:
            target.resize_(by.shape).copy_(by)
    return targets[0] if len(targets) == 1 else targets


def _gives_dtype(entry: Entry) -> bool:
    """Whether an `out=` says which dtype the result has."""
    refusal = entry.options.refusals.out
    return refusal is not None and refusal.but_untyped


class _Call:
    """The conversion of one call's arguments to specs, and of its results to a plan."""

    def __init__(
        self, entry: Entry, p: PlanBuilder, arguments: list[Any], places: list[_C.Place], reads: _Reads
    ) -> None:
        self.entry, self.p, self.reads = entry, p, reads
        self.given = {a.name: value for a, value in zip(parameters(entry.op), arguments, strict=True)}
        tensors = sum(place.count for place in places if place.kind in _TENSORS)
        self.specs: list[torch.Tensor | None] = [None] * tensors  # by slot
        self.first: int | None = None
        #: Of new results, where torch's meta function has been asked: the CPU may have another order, and whoever has
        #: asked the meta function too, as torch.compile has, relies on this one.
        self.result_strides: list[Sequence[int]] = []
        self.arguments = {
            a.name: self._convert(a, place, value)
            for a, place, value in zip(parameters(entry.op), places, arguments, strict=True)
        }
        if entry.kind == "out" and _gives_dtype(entry) and self.arguments["dtype"] is None:
            self.arguments["dtype"] = self.arguments["out"].dtype

    # arguments

    def _convert(self, argument: Parameter, place: _C.Place, value: Any) -> Any:
        kind = place.kind
        if kind == _C.ArgumentKind.Tensor:
            return self._tensor(value, place.first)
        if value is None or kind == _C.ArgumentKind.Generator:
            return None
        if kind == _C.ArgumentKind.TensorList:
            return [self._tensor(item, place.first + number) for number, item in enumerate(value)]
        if kind == _C.ArgumentKind.Scalar:
            return Scalar(value, place.first, self.reads)
        if kind == _C.ArgumentKind.ScalarList:
            return [Scalar(item, place.first + number, self.reads) for number, item in enumerate(value)]
        if argument.name in _DTYPE_NAMES and isinstance(value, int):
            return _DTYPES[value]
        return value

    def _tensor(self, value: torch.Tensor | complex | None, slot: int) -> torch.Tensor | None:
        if value is None:
            return None
        if not isinstance(value, torch.Tensor):  # a number that torch has wrapped as a zero-dim CPU tensor
            spec = self.p.adopt(torch.empty((), dtype=number_dtype(type(value)), device="meta"), "number", slot)
            self.p.memory(spec).number = value
            self.specs[slot] = spec
            return spec
        on_cpu = value.device.type == "cpu"
        if not on_cpu:  # a number from the CPU takes whatever type the kernel wants
            self.p.check_dtype(value.dtype)
        spec = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
        self.p.adopt(spec, "cpu scalar" if on_cpu else "argument", slot)
        if not on_cpu and self.first is None:
            self.first = slot
        if value.is_conj():
            spec = spec.conj()
        if value.is_neg():
            spec = torch._neg_view(spec)
        self.specs[slot] = spec
        return spec

    # results

    def plan(self, overlap: bool) -> _C.Plan:
        """Runs torch's meta kernel, then the planner, then numbers the memory."""
        entry, p = self.entry, self.p
        before: list[tuple[torch.Size, tuple[int, ...]] | None] = [None] * len(self.specs)
        if entry.kind != "functional":
            before = [None if spec is None else (spec.shape, spec.stride()) for spec in self.specs]
        returned = self._run_meta()
        if entry.kind == "functional" and not p.any_shape:  # whose results are contiguous
            self.result_strides = [x.stride() if isinstance(x, torch.Tensor) else () for x in returned]
        resizes = []
        for slot, (spec, kept) in enumerate(zip(self.specs, before, strict=True)):
            if spec is None or kept is None:
                continue
            if spec.shape != kept[0]:
                # Some of torch's meta functions in Python do not refuse it.
                if entry.op._schema.name.endswith("_") or (entry.options.pointwise and self._read_and_written(spec)):
                    refuse_resized(kept[0], spec.shape)
                # The meta kernels of linear algebra ask for column-major order, which torch's CPU does not give; some
                # of pointwise ops do not ask for the inputs' order, in which torch's CPU has the elements.
                spec.as_strided_(spec.shape, self._order(spec.shape))
                resizes.append(_C.Resize(slot, spec.shape, spec.stride()))
            elif spec.stride() != kept[1]:  # sort's meta kernel gives an out= of the right shape other strides
                spec.as_strided_(*kept)
        self._check_resized()
        outs = self._out_specs(returned)
        for out in outs:
            if isinstance(out, torch.Tensor):
                p.check_dtype(out.dtype)
        functional = {a.name: self.arguments[a.name] for a in parameters(entry.functional)}
        try:
            run_planner(p, entry, outs, functional, overlap)
        except WrongElements as error:
            self._check_one_dtype(error)
            raise
        outputs, results = self._describe(returned)
        p.settle()
        return p.finish(outputs, results, len(self.specs), resizes)

    def _check_one_dtype(self, error: WrongElements) -> None:
        """Blames the caller where the kernels of an op are for tensors of one dtype, as torch's mostly are."""
        dtypes = list(dict.fromkeys(spec.dtype for spec in self.specs if spec is not None))
        if len(dtypes) > 1:
            found = " and ".join(map(dtype_name, dtypes))
            raise RuntimeError(f"{self.entry.op} expected tensors of one scalar type but found {found}") from error

    def _order(self, shape: torch.Size) -> Sequence[int]:
        """The strides of an `out=` that has got another shape."""
        inputs = tensors_in({a.name: self.arguments[a.name] for a in parameters(self.entry.functional)})
        if self.entry.options.pointwise and inputs:
            return result_spec([t.expand(shape) for t in inputs], torch.bool).stride()
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
        """An `out=` that grows would grow into what lies behind it; one that stays must not lie over itself."""
        if self.entry.kind == "out":
            kept: list[torch.Tensor] = []
            resized: list[torch.Tensor] = []
            for name in written(self.entry.op):
                for given, spec in zip(tensors_in(self.given[name]), tensors_in(self.arguments[name]), strict=True):
                    (kept if given.shape == spec.shape else resized).append(given)
            check_over_itself(overload_name(self.entry.functional), kept)
            check_apart(resized, named_tensors(self.given, self.entry.options.apart))

    def _run_meta(self) -> tuple[Any, ...]:
        entry = self.entry
        plain = plain_arguments(self.p, self.arguments)
        entry.options.refusals.check(plain)
        if "device" in plain and plain["device"] is not None:
            plain["device"] = torch.device("meta")
        quick = quick_result(entry, plain)
        if quick is not None:
            result = fit_targets(entry, plain, quick)
        elif entry.options.meta is not None:
            result = run_own_meta(entry, plain)
        else:
            # A resized out= is warned of when it is resized; meta functions do not warn where it has no elements.
            outs = [(t, t.shape, t.stride()) for t in tensors_in(self._targets())] if entry.kind == "out" else []
            for spec, *_ in outs:
                spec.resize_(0)
            try:
                result = ask_meta(entry.op, plain)
                if entry.kind == "inplace" and entry.options.pointwise:
                    # The functional form's says more: mul_'s lets integers become the product with a fraction.
                    _result_dtypes(self.p, entry, self.arguments, self._targets())
            except RuntimeError:
                for spec, shape, stride in outs:
                    spec.as_strided_(shape, stride)
                if entry.options.pointwise:
                    check_broadcast([spec for spec in self.specs if spec is not None])
                if entry.kind != "functional" and not any(isinstance(t, list) for t in self._targets()):
                    _result_dtypes(self.p, entry, self.arguments, self._targets())
                raise
        if result is None:
            return ()
        return tuple(result) if isinstance(result, (tuple, list)) and returns_several(entry.op) else (result,)

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
        return [self.arguments[name] for name in written(self.entry.op)]

    def _describe(self, returned: tuple[Any, ...]) -> tuple[list[_C.Output], list[torch.Tensor]]:
        results: list[torch.Tensor] = []
        return [self._output(item, results) for item in returned], results

    # A method: a function that calls itself from within another one holds what it sees, tables on the device among it,
    # until Python looks for cycles.
    def _output(self, item: Any, results: list[torch.Tensor]) -> _C.Output:
        """What is returned for an item; adds it to the results if it is a new tensor."""
        if item is None:
            return _C.Output.undefined()
        if isinstance(item, (list, tuple)):
            return _C.Output.list([self._output(part, results) for part in item])
        if not isinstance(item, torch.Tensor):
            return _C.Output.constant(item)
        for slot, spec in enumerate(self.specs):
            if spec is item:
                return _C.Output.argument(slot)
        memory = self.p.memory(item)
        if memory.kind == "argument":
            return _C.Output.view(memory.argument, item.shape, item.stride(), int(item.storage_offset()))
        slot = len(self.specs) + len(results)
        results.append(item)
        memory.kind = "result"
        if self.p.any_shape and self.first is not None:
            first = self.specs[self.first]
            if first is not None and first.shape == item.shape:
                return _C.Output.like(slot, self.first, item.dtype)
        # Some of torch's meta functions order the dimensions even of a result without elements.
        strides = item.stride() if item.numel() else torch.empty(item.shape, device="meta").stride()
        return _C.Output.new(slot, item.shape, strides, item.dtype)


def plain_arguments(p: PlanBuilder, arguments: dict[str, Any]) -> dict[str, Any]:
    """Arguments as torch's meta kernels take them: numbers as numbers."""

    def plain(x: Any) -> Any:
        if isinstance(x, Scalar):
            return x.peek()
        if isinstance(x, torch.Tensor) and p.is_wrapped_number(x):
            return wrapped_number(x.dtype)
        return x

    return {
        name: [plain(item) for item in value] if isinstance(value, (list, tuple)) else plain(value)
        for name, value in arguments.items()
    }


def run_planner(p: PlanBuilder, entry: Entry, outs: list[Any], arguments: dict[str, Any], overlap: bool) -> None:
    """Calls a planner with results and arguments as it wants them, and copies back what had to be elsewhere."""
    options = entry.options
    if options.contiguous:

        def contiguous(x: Any) -> Any:
            return p.contiguous(x) if isinstance(x, torch.Tensor) else x

        arguments = {
            name: [contiguous(item) for item in value] if isinstance(value, (list, tuple)) else contiguous(value)
            for name, value in arguments.items()
        }
    for limits in options.refusals.within:
        limits.guard(p, arguments)
    wanted = list(outs)
    backs: list[tuple[torch.Tensor, torch.Tensor]] = []
    dtypes = _result_dtypes(p, entry, arguments, outs) if entry.kind == "out" else [None] * len(outs)
    if options.empty == "zero" and not all(t.numel() for t in (*tensors_in(arguments), *tensors_in(outs))):
        for out in tensors_in(outs):
            p.zero(out)
        return
    in_memory = set() if options.inplace_safe else {p.memory(t) for t in tensors_in(arguments)}
    for i, out in enumerate(outs):
        if not isinstance(out, torch.Tensor):
            continue
        dtype = dtypes[i] or out.dtype
        shared = not options.inplace_safe and (overlap or p.memory(out) in in_memory)
        if options.pointwise:  # computes in a wider type than these, from which the result must be rounded first
            elsewhere = dtype != out.dtype and dtype in (torch.float16, torch.bfloat16)
        else:
            elsewhere = shared or dtype != out.dtype or not _lies_as_wanted(out, options)
        if elsewhere:
            wanted[i] = p.empty(out.shape, dtype)
            backs.append((out, wanted[i]))
    results = wanted[0] if len(wanted) == 1 else tuple(wanted)
    if not (p.device.has_programs and plan_as_operator(p, entry.functional, entry.plan, results, arguments)):
        call_by_name(functools.partial(entry.plan, p, results), entry.functional, arguments)
    for out, temporary in backs:
        p.copy(out, temporary)


def _lies_as_wanted(out: torch.Tensor, options: Options) -> bool:
    """Whether a planner may write a result where it is."""
    if options.contiguous or options.results == "contiguous":
        return out.is_contiguous()
    return options.results == "any" or is_dense(out)


def _result_dtypes(
    p: PlanBuilder, entry: Entry, arguments: dict[str, Any], outs: Sequence[Any]
) -> list[torch.dtype | None]:
    """The dtypes that the functional overload would give: an out= of another dtype is filled by conversion."""
    plain = plain_arguments(p, arguments)
    functional = {a.name: plain[a.name] for a in parameters(entry.functional)}
    result = _functional_result(entry, functional)
    items = list(result) if isinstance(result, (tuple, list)) else [result]
    # The absolute value of a complex number may be put where it fits.
    real = entry.options.pointwise and any(t.is_complex() for t in tensors_in(functional))
    dtypes: list[torch.dtype | None] = []
    for item, out in zip(items, outs, strict=True):
        dtype = item.dtype if isinstance(item, torch.Tensor) else None
        if dtype is not None:
            refusal = entry.options.refusals.out
            truth = refusal is not None and refusal.but_bytes and {dtype, out.dtype} == {torch.bool, torch.uint8}
            # Forms that torch generates from functional ones all have to have the result's dtype.
            exact = refusal is not None or torch.Tag.generated in entry.op.tags
            if not truth:
                check_out_dtype(dtype, out.dtype, exact and not (real and not dtype.is_complex))
        dtypes.append(dtype)
    return dtypes


def _functional_result(entry: Entry, arguments: Mapping[str, Any]) -> Any:
    """What the functional form returns of specs and numbers."""
    quick = quick_result(entry, arguments)
    if quick is not None:
        return quick
    meta = entry.options.meta
    return ask_meta(entry.functional, arguments) if meta is None else meta(**arguments)


def result_of(op: torch._ops.OpOverload, arguments: Mapping[str, Any]) -> Any:
    """What a functional overload with a planner returns, as specs, or the exception that a call of it raises.

    Numbers may stand for tensors.
    """
    entry = ENTRIES[overload_name(op)]
    options, plain = entry.options, dict(arguments)
    for a in parameters(op):
        if a.type == "Tensor" and isinstance(plain[a.name], (int, float, complex)):
            plain[a.name] = wrapped_number(number_dtype(type(plain[a.name])))
    options.refusals.check(plain)
    try:
        return _functional_result(entry, plain)
    except RuntimeError:
        if options.pointwise:
            check_broadcast(tensors_in(plain))
        raise


def library_serves(device: int, op: str, plan: Callable[[PlanBuilder], bool]) -> bool:
    """Whether the device's library has what a call would need: asked before it is made, where there is another way.

    Args:
        device: index of the device.
        op: the op's name, for messages.
        plan: adds it to a plan, which is thrown away; returns whether the library has it.
    """
    traits = device_traits(device)
    if not traits.has_programs:
        return False
    with below_modes():
        try:
            return plan(PlanBuilder(traits, kernel_form(device), op, False, nested=plan_nested))
        except Unsupported:
            return False


def install() -> None:
    """Has the core ask here for plans, and gives it the ops. Called once, when the devices are opened."""
    _C.set_planner(plan_call)
    registry.install()


def plan_nested(
    p: PlanBuilder, op: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any
) -> Any:
    """Plans an op on specs as part of a plan; see PlanBuilder.call and call_out."""
    entry = ENTRIES.get(overload_name(op))
    if entry is None or entry.functional is not entry.op:
        result = trace(p, op, args, kwargs)
        if out is not None:
            for to, by in zip(tensors_in(out), tensors_in(result), strict=True):
                p.copy(to, by)
        return result
    arguments: dict[str, Any] = {a.name: a.default for a in parameters(op)}
    arguments.update(zip(list(arguments), args, strict=False))
    arguments.update(kwargs)
    any_shape, p.any_shape = p.any_shape, False
    if out is None:
        with _disable_current_modes():
            out = result_of(op, plain_arguments(p, arguments))
    outs = list(out) if isinstance(out, (tuple, list)) else [out]
    for spec in outs:
        if isinstance(spec, torch.Tensor):
            p.check_dtype(spec.dtype)
    run_planner(p, entry, outs, arguments, False)
    p.any_shape = any_shape
    return out
