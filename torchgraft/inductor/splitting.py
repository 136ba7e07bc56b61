"""Where a program is split: what cannot be recorded stands between parts that are recorded and replayed.

A recording (replay.py) holds what a stream is given. An op on the CPU, a value that is read, a tensor of another device
or an op of which nothing is known is none of that. Inductor makes functions of the nodes between such, as it does for
graphs of CUDA's, and leaves the nodes themselves in the program that calls those.

Of some ops it is known only when they are called: those that are functions and not plans, and torch's own that are
composed of others. A program with none but those is recorded as a whole if it can be, and in parts if not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch._inductor import ir
from torch._inductor.virtualized import V

from torchgraft.codegen.types import BY_DTYPE
from torchgraft.plans.recording import device_of_most, has_plan, only_launches

__all__ = ["SplitPrograms", "Splitting", "why_not_recorded"]

# Nodes that call ops, or none, and do nothing else.
_PLAIN_NODES = (
    ir.ComputedBuffer,
    ir.ConcatKernel,
    ir.ExternKernelAlloc,
    ir.ExternKernelOut,
    ir.FallbackKernel,
    ir.IndexPutFallback,
    ir.InplaceBernoulliFallback,
    ir.InplaceCopyFallback,
    ir.MultiOutput,
    ir.NopKernel,
    ir.RandomSeeds,
    ir.ScatterFallback,
    ir.UserDefinedTritonKernel,
)


class Splitting:
    """What of a program's nodes is recorded.

    Args:
        nodes: inductor's, after fusion.
    """

    def __init__(self, nodes: Sequence[Any]) -> None:
        operations = {node: [each.node for each in node.get_nodes()] for node in nodes}
        device = device_of_most(_device_of(op) for each in operations.values() for op in each)
        self._reasons = {node: _first(_why_apart(op, device) for op in each) for node, each in operations.items()}
        self._doubts = {node for node, each in operations.items() if not all(map(_is_planned, each))}

    @property
    def is_needed(self) -> bool:
        """Whether there is, or may be, something that cannot be recorded."""
        return bool(self._doubts) or any(self._reasons.values())

    def why_apart(self, node: Any) -> str | None:
        """Why a node is in no part."""
        return self._reasons[node] or ("it may do more than launch kernels" if node in self._doubts else None)


class SplitPrograms:
    """A part of Inductor's schedulings that knows what of a program is recorded."""

    scheduler: Any
    _splitting: Splitting | None = None

    @property
    def splitting(self) -> Splitting:
        """To be asked when the program's nodes are what they will be."""
        if self._splitting is None:
            self._splitting = Splitting(self.scheduler.nodes)
        return self._splitting


def why_not_recorded(operations: Sequence[Any]) -> str:
    """Why a program cannot be recorded as a whole, or an empty string."""
    device = device_of_most(map(_device_of, operations))
    return _first(_why_apart(operation, device) for operation in operations)


def _first(reasons: Iterable[str]) -> str:
    return next(filter(None, reasons), "")


def _device_of(node: Any) -> torch.device | None:
    if not isinstance(node, ir.IRNode):
        return None
    found = node.get_device()
    return found if isinstance(found, torch.device) else None


def _why_apart(operation: Any, device: torch.device | None) -> str:
    """Why an operation cannot be recorded, or an empty string."""
    if type(operation) not in _PLAIN_NODES:
        return f"it has a node {type(operation).__name__}"
    if isinstance(operation, ir.MultiOutput) and isinstance(operation.inputs[0], ir.Operation):
        return _why_apart(operation.inputs[0], device)
    if any(each not in (None, device) for each in map(_device_of, _used(operation))):
        return "it is not on one device alone"
    if getattr(operation, "unbacked_bindings", None):
        return f"{_name(operation)} reads data"
    op = getattr(operation, "op_overload", None)
    if isinstance(op, torch._ops.OpOverload) and not only_launches(op):
        return f"what {op} does besides launching kernels is not known"
    return ""


def _used(operation: Any) -> list[Any]:
    """An operation, and what it reads and writes."""
    names = [each.name for each in operation.get_read_writes().reads_and_writes()]
    return [operation, *map(V.graph.try_get_buffer, names)]


def _name(operation: Any) -> str:
    return str(getattr(operation, "op_overload", None) or type(operation).__name__)


def _is_planned(operation: Any) -> bool:
    """Whether an operation is a kernel that is generated, or an op that the device has plans or functions of the core
    for."""
    if isinstance(operation, ir.MultiOutput) and isinstance(operation.inputs[0], ir.Operation):
        return _is_planned(operation.inputs[0])
    op = getattr(operation, "op_overload", None)
    if not isinstance(op, torch._ops.OpOverload):
        return True
    dtypes = {each.maybe_get_dtype() for each in _used(operation) if isinstance(each, ir.IRNode)}
    if not dtypes <= {None, *BY_DTYPE}:
        return False
    return has_plan(op)
