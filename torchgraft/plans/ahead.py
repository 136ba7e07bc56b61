"""What a call is followed by in training: the ops of its gradient, whose kernels are compiled while the forward pass
goes on (`codegen.ahead`).

Which ops those are is torch's to say: the call is repeated on meta tensors, its gradient is taken there, and the ops
that come of it are planned, and their plans thrown away. This is done only after a call for which a kernel had to be
compiled; a process that finds its kernels on disk never comes here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from torchgraft.codegen import ahead
from torchgraft.codegen.compiler import compile_ahead
from torchgraft.codegen.kernel import Kernel
from torchgraft.plans.builder import Nested, PlanBuilder
from torchgraft.plans.device import device_traits, kernel_form
from torchgraft.plans.elementwise import number_dtype, wrapped_number
from torchgraft.plans.mode import ThreadMode
from torchgraft.plans.registry import ENTRIES
from torchgraft.plans.schema import call_by_name, overload_name, parameters

__all__ = ["as_on_device", "expect_gradient"]

aten = torch.ops.aten

Call = tuple[torch._ops.OpOverload, tuple[Any, ...], dict[str, Any]]

# Under these names an op has a meta function; its own is for devices alone.
_KNOWN_AS = {aten.convolution_overrideable.default: aten.convolution.default}
_OWN = {known: own for own, known in _KNOWN_AS.items()}


def as_on_device(op: torch._ops.OpOverload, args: tuple[Any, ...]) -> tuple[torch._ops.OpOverload, tuple[Any, ...]]:
    """A call as it arrives on a device, of one that was made on meta tensors."""
    if op is aten.convolution_backward.default:  # the device's own has no sizes of the bias
        return aten.convolution_backward_overrideable.default, (*args[:3], *args[4:])
    return _OWN.get(op, op), args


def expect_gradient(op: torch._ops.OpOverload, arguments: dict[str, Any], device: int, nested: Nested) -> None:
    """Has the kernels of an op's gradient compiled, if there can be one.

    Args:
        op: a functional overload.
        arguments: of a call of it; tensors are looked at now, and not kept.
        device: index of the device.
        nested: see `PlanBuilder`.
    """
    if not torch.is_grad_enabled() or not ahead.is_possible():
        return
    specs = {a.name: _spec(arguments[a.name], "Tensor" in a.type) for a in parameters(op)}
    if any(isinstance(spec, torch.Tensor) and spec.requires_grad for spec in specs.values()):
        ahead.later(lambda: _compile_gradient(op, specs, device, nested))


def _spec(value: Any, is_tensor: bool) -> Any:
    if isinstance(value, torch.Tensor):
        spec = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
        return spec.requires_grad_(value.requires_grad)
    if is_tensor and isinstance(value, (bool, int, float, complex)):
        return wrapped_number(number_dtype(type(value)))
    return value


def _joined(calls: Iterable[Call]) -> Iterator[Call]:
    """What is likely to take the place of calls: a log_softmax over classes belongs to a cross entropy as a rule, whose
    backward is one kernel (csrc/aten/cross_entropy.cpp)."""
    for func, args, _ in calls:
        if func is aten._log_softmax_backward_data.default and args[1].dim() == 2 and args[2] in (1, -1):
            log_probs = args[1]
            loss, target = log_probs.new_empty(()), log_probs.new_empty(len(log_probs), dtype=torch.long)
            yield torch.ops.torchgraft.cross_entropy_backward.default, (loss, log_probs, target, loss, 1, -100, 0.0), {}


def _compile_gradient(op: torch._ops.OpOverload, specs: dict[str, Any], device: int, nested: Nested) -> None:
    inputs = [spec for spec in specs.values() if isinstance(spec, torch.Tensor) and spec.requires_grad]
    with torch.enable_grad():
        called = call_by_name(_KNOWN_AS.get(op, op), op, specs)
        results = [result for result in tree_leaves(called) if isinstance(result, torch.Tensor)]
    outputs = [result for result in results if result.requires_grad]
    if not outputs:
        return
    recorder = _Recorder()
    with recorder.active():
        torch.autograd.grad(outputs, inputs, [torch.empty_like(o) for o in outputs], allow_unused=True)
    kernels: list[Kernel] = []
    for func, args, kwargs in [*_joined(recorder.calls), *recorder.calls]:
        p = PlanBuilder(device_traits(device), kernel_form(device), overload_name(func), False, nested=nested)
        for number, spec in enumerate(leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)):
            p.adopt(spec.detach(), "argument", number)
        p.call(func, *args, **kwargs)
        p.settle()
        kernels += p.kernels
    compile_ahead(reversed(kernels), device)  # the first is needed first


class _Recorder(ThreadMode):
    """Keeps the planned ops that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[torch._ops.OpOverload, tuple[Any, ...], dict[str, Any]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        op, arguments = as_on_device(func, args)
        entry = ENTRIES.get(overload_name(op))
        if entry is not None and entry.kind == "functional":
            self.calls.append((op, arguments, kwargs or {}))
        return func(*args, **(kwargs or {}))
