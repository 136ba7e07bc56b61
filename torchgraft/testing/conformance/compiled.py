"""The same cases through torch.compile."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from torchgraft.testing.conformance.check import CheckResult, Run, gradients_of
from torchgraft.testing.conformance.layout import Sample, on_device

__all__ = ["COMPILED_CHECKS"]

# A program may do something else at later calls than at the first, as ours, which are recorded and replayed.
CALLS = 4


def check_compiled(run: Run, check: CheckResult) -> None:
    """The functional form in a compiled function, beside the CPU without the compiler."""
    for sample in run.samples():
        run.compare(check, sample, functools.partial(called, run, lambda s, op: s.call(op)), **run.functional)


def check_compiled_backward(run: Run, check: CheckResult) -> None:
    """Gradients through a compiled function."""
    for sample in run.differentiable_samples():
        run.compare(check, sample, functools.partial(called, run, gradients_of), **run.gradients)


def called(run: Run, call: Callable[[Sample, Any], Any], sample: Sample) -> Any:
    """What the last call of several gives, each with a sample of its own; on the CPU without the compiler."""
    op = run.info.op
    if not is_on(sample, run.device):
        return call(sample, op)
    torch.compiler.reset()
    compiled = torch.compile(lambda *args, **kwargs: op(*args, **kwargs), dynamic=False)
    for _ in range(CALLS - 1):
        call(on_device(sample, run.device), compiled)
    return call(sample, compiled)


def is_on(sample: Sample, device: torch.device) -> bool:
    """Whether a sample is one for the device."""
    leaves = tree_leaves(sample.arguments())
    devices = [leaf.device if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    return any(isinstance(each, torch.device) and each.type == device.type for each in devices)


COMPILED_CHECKS: dict[str, Callable[[Run, CheckResult], None]] = {
    "compiled": check_compiled,
    "compiled backward": check_compiled_backward,
}
