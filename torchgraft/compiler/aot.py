"""From a graph of torch's functions to what is called: AOTAutograd, our decompositions, our compiler of graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchgraft import backend
from torchgraft._core import _C
from torchgraft.compiler.grouping import group_loops
from torchgraft.compiler.internals import (
    aot_autograd,
    core_aten_decompositions,
    min_cut_rematerialization_partition,
)
from torchgraft.compiler.parts import recorded
from torchgraft.compiler.replay import Program
from torchgraft.ops.foreach import as_single_ops
from torchgraft.plans.device import device_traits
from torchgraft.plans.registry import ENTRIES
from torchgraft.plans.schema import overload_name

__all__ = ["allow_other_strides", "boxed_program", "compile_graph", "compile_program"]

aten = torch.ops.aten


def compile_program(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """What is called in place of a graph of torch's functions."""
    backend.open_devices()
    made = aot_autograd(
        fw_compiler=compile_graph,
        bw_compiler=compile_graph,
        inference_compiler=compile_graph,
        decompositions=decompositions() if _has_compiler(example_inputs) else {},
        partition_fn=min_cut_rematerialization_partition,
        keep_inference_input_mutations=True,
    )
    compiled: Callable[..., Any] = made(gm, example_inputs)
    return compiled


def _has_compiler(example_inputs: Sequence[Any]) -> bool:
    """Whether a program's kernels can be compiled: without, an op in one piece is one fallback at most."""
    devices = {each.device for each in example_inputs if isinstance(each, torch.Tensor)}
    ours = {each.index or 0 for each in devices if each.type == backend.name()} or {_C.current_device()}
    return all(device_traits(index).has_compiler for index in ours)


def decompositions() -> dict[Any, Callable[..., Any]]:
    """PyTorch's, of ops that the device has nothing for; and ops on lists as ops on single tensors, which are fused.
    Random ops stay, so that numbers are those of single calls."""
    of_lists = {entry.op: as_single_ops(entry.op) for entry in ENTRIES.values() if entry.kind == "functional"}
    return {op: function for op, function in of_lists.items() if function is not None} | {
        op: function
        for op, function in core_aten_decompositions().items()
        if isinstance(op, torch._ops.OpOverload)
        and overload_name(op) not in ENTRIES
        and torch.Tag.nondeterministic_seeded not in op.tags
        and not torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "PrivateUse1")
    }


def compile_graph(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Program:
    """What is called in place of a functional graph of aten ops, with a list of the arguments that it empties."""
    graph = torch.fx.Graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    allow_other_strides(graph)
    return boxed_program(gm, graph)


def boxed_program(gm: torch.fx.GraphModule, graph: torch.fx.Graph) -> Program:
    """What is called in place of a graph of a module's, with its loops put together."""
    program = recorded(gm, group_loops(graph))

    def run(arguments: list[Any]) -> Sequence[Any]:
        return program(arguments)

    run._boxed_call = True  # type: ignore[attr-defined]  # AOTAutograd gives a list then
    return run


def allow_other_strides(graph: torch.fx.Graph) -> None:
    """What runs on the CPU may lie in memory otherwise than a meta function says, and have no such view."""
    for node in graph.find_nodes(op="call_function", target=aten.view.default):
        node.target = aten.reshape.default
