"""Runs of ops as one call of one op, `torchgraft::fused`, whose plans are made by tracing them: a plan for each run and
each set of sizes, strides and dtypes, kept and found as all plans are."""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from torchgraft.compiler.outline import boxed, value_of
from torchgraft.plans.builder import PlanBuilder
from torchgraft.plans.call import plan_nested
from torchgraft.plans.device import device_traits, kernel_form
from torchgraft.plans.pointwise import plan_copy, plan_fill
from torchgraft.plans.registry import Options, register
from torchgraft.plans.schema import overload_name
from torchgraft.plans.trace import full

__all__ = ["FusedOps", "new_builder", "trace_node"]

torch.library.define("torchgraft::fused", "(Tensor[] inputs, int ops, int[] sizes) -> Tensor[]")

_META = torch.device("meta")


def new_builder(device: int, op: str) -> PlanBuilder:
    """A plan that is thrown away."""
    return PlanBuilder(device_traits(device), kernel_form(device), op, False, nested=plan_nested)


def trace_node(p: PlanBuilder, node: Node, values: dict[Node, Any]) -> Any:
    """Plans what a node does, of the specs and numbers that its arguments are; returns specs or numbers."""
    args, kwargs = (_on_meta(map_arg(arguments, values.__getitem__)) for arguments in (node.args, dict(node.kwargs)))
    if not isinstance(node.target, torch._ops.OpOverload):
        return node.target(*args, **kwargs)  # type: ignore[operator]
    p.op = overload_name(node.target)  # which messages name
    # Loops, so that others may take them in, where a single call has commands of the device.
    if node.target is torch.ops.aten.copy_.default and p.memory(args[1]).kind == "temporary" and args[0].numel():
        plan_copy(p, args[0], args[1].expand(args[0].shape))
        return args[0]
    if (filled := full(node.target, args, kwargs)) is not None and filled[0].numel():
        plan_fill(p, *filled)
        return filled[0]
    return p.call(node.target, *args, **kwargs)


def _on_meta(arguments: Any) -> Any:
    """With specs' device in the place of all."""
    return torch.fx.node.map_aggregate(arguments, lambda x: _META if isinstance(x, torch.device) else x)


class FusedOps:
    """Ops that are called as one: a function of a list of tensors and sizes, which it empties.

    Args:
        graph: of the ops. All its tensors are on one device; others are integers.
        device: index of the device.
    """

    # What a graph's text calls it.
    __name__ = "fused"

    def __init__(self, graph: Graph, device: int) -> None:
        self.device = device
        self.op = torch.ops.torchgraft.fused.default
        self._nodes = [node for node in graph.nodes if node.op == "call_function"]
        self._inputs = graph.find_nodes(op="placeholder")
        self._results: list[Node] = list(graph.output_node().args[0])  # type: ignore[arg-type]
        self._are_tensors = [isinstance(value_of(each), torch.Tensor) for each in self._inputs]
        self._op_by_op = boxed(graph)
        self._number = next(_numbers)
        _known[self._number] = self

    def __call__(self, arguments: list[Any]) -> list[torch.Tensor]:
        tensors, sizes = self._tensors(arguments), self._sizes(arguments)
        arguments.clear()
        results: list[torch.Tensor] = self.op(tensors, self._number, sizes)
        return results

    def _tensors(self, arguments: Sequence[Any]) -> list[torch.Tensor]:
        return [each for each, is_tensor in zip(arguments, self._are_tensors, strict=True) if is_tensor]

    def _sizes(self, arguments: Sequence[Any]) -> list[int]:
        return [each for each, is_tensor in zip(arguments, self._are_tensors, strict=True) if not is_tensor]

    def _joined(self, tensors: Sequence[torch.Tensor], sizes: Sequence[int]) -> list[Any]:
        """A call's arguments in the order of the graph's inputs."""
        given_tensors, given_sizes = iter(tensors), iter(sizes)
        return [next(given_tensors) if is_tensor else next(given_sizes) for is_tensor in self._are_tensors]

    def trace(self, p: PlanBuilder, tensors: Sequence[torch.Tensor], sizes: Sequence[int]) -> list[torch.Tensor]:
        """Plans all of it; returns specs of the results."""
        values: dict[Node, Any] = dict(zip(self._inputs, self._joined(tensors, sizes), strict=True))
        whole = p.op
        for node in self._nodes:
            values[node] = trace_node(p, node, values)
        p.op = whole
        return [values[each] for each in self._results]

    def run_op_by_op(self, tensors: Sequence[torch.Tensor], sizes: Sequence[int]) -> Sequence[torch.Tensor]:
        """Op by op, where something has no plan for these sizes, or a kernel does not compile."""
        return self._op_by_op(self._joined(tensors, sizes))


_numbers = itertools.count()
# Plans know a run by its number and may live longer.
_known: weakref.WeakValueDictionary[int, FusedOps] = weakref.WeakValueDictionary()


def _result_specs(inputs: list[torch.Tensor], ops: int, sizes: Sequence[int]) -> list[torch.Tensor]:
    """What tracing gives, without the steps."""
    known = _known[ops]
    p = new_builder(known.device, "torchgraft::fused")
    for number, spec in enumerate(inputs):
        p.adopt(spec, "argument", number)
    return [
        torch.empty_strided(spec.shape, spec.stride(), dtype=spec.dtype, device="meta")
        for spec in known.trace(p, inputs, sizes)
    ]


def _plan(p: PlanBuilder, out: list[torch.Tensor], inputs: list[torch.Tensor], ops: int, sizes: Sequence[int]) -> None:
    for result, spec in zip(out, _known[ops].trace(p, inputs, sizes), strict=True):
        p.copy(result, spec)


def _run_op_by_op(inputs: list[torch.Tensor], ops: int, sizes: list[int]) -> list[torch.Tensor]:
    return list(_known[ops].run_op_by_op(inputs, sizes))


@functools.cache
def install() -> None:
    """Gives the device the op."""
    register("torchgraft::fused", _plan, Options(meta=_result_specs, op_by_op=_run_op_by_op))


install()
