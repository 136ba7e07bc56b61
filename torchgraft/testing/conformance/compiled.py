"""The same cases through torch.compile."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from torchgraft.testing.conformance.check import CheckResult, Run, gradients_of
from torchgraft.testing.conformance.layout import Sample, on_device

__all__ = ["compiled_checks"]

# A program may do something else at later calls than at the first, as ours, which are recorded and replayed.
CALLS = 4


def check_compiled(backend: str, run: Run, check: CheckResult) -> None:
    """The functional form in a compiled function, beside the CPU without the compiler."""
    for sample in run.samples():
        call = functools.partial(called, run, backend, lambda s, op: s.call(op))
        run.compare(check, sample, call, **run.functional)


def check_compiled_backward(backend: str, run: Run, check: CheckResult) -> None:
    """Gradients through a compiled function."""
    for sample in run.differentiable_samples():
        run.compare(check, sample, functools.partial(called, run, backend, gradients_of), **run.gradients)


def called(run: Run, backend: str, call: Callable[[Sample, Any], Any], sample: Sample) -> Any:
    """What the last call of several gives, each with a sample of its own; on the CPU without the compiler."""
    op = run.info.op
    if not is_on(sample, run.device):
        return call(sample, op)
    torch.compiler.reset()
    compiled = torch.compile(lambda *args, **kwargs: op(*args, **kwargs), backend=backend, dynamic=False)
    for _ in range(CALLS - 1):
        call(on_device(sample, run.device), compiled)
    return call(sample, compiled)


def is_on(sample: Sample, device: torch.device) -> bool:
    """Whether a sample is one for the device."""
    leaves = tree_leaves(sample.arguments())
    devices = [leaf.device if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    return any(isinstance(each, torch.device) and each.type == device.type for each in devices)


def compiled_checks(backend: str) -> dict[str, Callable[[Run, CheckResult], None]]:
    """What is looked at through a backend of torch.compile, by name."""
    return {
        "compiled": functools.partial(check_compiled, backend),
        "compiled backward": functools.partial(check_compiled_backward, backend),
    }
