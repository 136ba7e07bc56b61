"""From a graph of torch's functions to what is called, for a device with a compiler of graphs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from torchgraft import backend
from torchgraft._core import _C
from torchgraft.compiler import aot
from torchgraft.compiler.graph_compilers import report
from torchgraft.compiler.graph_compilers.constants import with_constants
from torchgraft.compiler.graph_compilers.importer import Importer
from torchgraft.compiler.graph_compilers.languages import importer
from torchgraft.compiler.graph_compilers.partition import ordered_by_parts, proposed_parts, writes_come_last
from torchgraft.compiler.graph_compilers.program import GraphProgram, Language
from torchgraft.compiler.graph_compilers.support import Support
from torchgraft.compiler.internals import (
    aot_autograd,
    core_aten_decompositions,
    min_cut_rematerialization_partition,
    static_inputs,
)
from torchgraft.compiler.outline import outlined
from torchgraft.compiler.replay import Program
from torchgraft.plans.device import device_traits
from torchgraft.plans.recording import device_of_most

__all__ = ["compile_program"]

_numbers = itertools.count(1)


@dataclass(frozen=True)
class _Options:
    """Of `torch.compile(options=...)`, see `graph_compiler`."""

    format: str | None = None
    constants: bool | None = None
    least: int | None = None
    sizes: int = 8


def _options(given: Mapping[str, Any], others: Mapping[str, Any]) -> _Options:
    if others:
        named = ", ".join(f"{name}={value!r}" for name, value in others.items())
        raise ValueError(f"torch.compile with a device's graph compiler has options, and not {named}")
    known = {"format": str, "constants": bool, "least": int, "sizes": int}
    for name, value in given.items():
        if name not in known:
            raise ValueError(f"there is no option {name!r} of a device's graph compiler; it has {', '.join(known)}")
        if not isinstance(value, known[name]):
            raise ValueError(f"the option {name!r} is of type {known[name].__name__}, and not {value!r}")
    return _Options(**given)


def compile_program(
    gm: GraphModule, example_inputs: Sequence[Any], options: Mapping[str, Any], others: Mapping[str, Any]
) -> Callable[..., Any]:
    """What is called in place of a graph of torch's functions."""
    backend.open_devices()
    chosen = _options(options, others)
    index = _C.current_device()
    tensors = [each for each in example_inputs if isinstance(each, torch.Tensor)]
    device = device_of_most(each.device for each in tensors) or torch.device(backend.name(), index)
    traits = device_traits(device.index or 0)
    try:
        language, writer = importer(traits.program_formats, chosen.format)
    except NotImplementedError as error:
        raise NotImplementedError(
            f"torch.compile(backend={backend.name()!r}) needs a compiler of graphs, and {device} has none that can be "
            f'used: {error}. backend="graft" needs none.'
        ) from None
    make = partial(
        _compile_graph,
        device=torch.device(device.type, device.index or 0),
        language=Language(language, writer, chosen.sizes),
        least=chosen.least or (2 if traits.has_compiler else 1),
    )
    constants = traits.constants if chosen.constants is None else chosen.constants
    made = aot_autograd(
        fw_compiler=make,
        bw_compiler=make,
        inference_compiler=partial(_compile_inference, make) if constants else make,
        decompositions=decompositions(writer),
        partition_fn=min_cut_rematerialization_partition,
        keep_inference_input_mutations=True,
    )
    compiled: Callable[..., Any] = made(gm, example_inputs)
    return compiled


def decompositions(writer: Importer) -> dict[Any, Callable[..., Any]]:
    """The importer's, and torch's of what it cannot write."""
    return {
        op: function
        for op, function in core_aten_decompositions().items()
        if isinstance(op, torch._ops.OpOverload)
        and writer.why_not(op)
        and torch.Tag.nondeterministic_seeded not in op.tags
    } | dict(writer.decompositions)


def _compile_inference(make: Callable[..., Program], gm: GraphModule, example_inputs: Sequence[Any]) -> Program:
    return with_constants(partial(make, gm, example_inputs), static_inputs())


def _compile_graph(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    *,
    device: torch.device,
    language: Language,
    least: int,
    constants: Mapping[int, torch.Tensor] | None = None,
) -> Program:
    """What is called in place of a functional graph of aten ops, with a list of the arguments that it empties.

    Args:
        constants: arguments that are what they are for this program, by their numbers.
    """
    graph = Graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    aot.allow_other_strides(graph)
    module = GraphModule(gm, graph)
    support = Support(device, language.name, language.importer)
    in_order = writes_come_last(module.graph)
    parts = proposed_parts(module, support.takes, least) if in_order else []
    inside = {node for part in parts for node in part}
    otherwise = (
        f"it is in no part that reads tensors and has {least} ops" if in_order else "ops follow a write to an argument"
    )
    for node in module.graph.nodes:
        if node not in inside:
            support.note_left_out(node, otherwise)
    ordered, groups = ordered_by_parts(module.graph, parts)
    inputs = ordered.find_nodes(op="placeholder")
    values = {inputs[number].name: tensor for number, tensor in (constants or {}).items()}
    programs = [_outlined(ordered, nodes, device, language, values) for nodes in groups]
    report.note(language.name, programs, support.refused)
    return aot.boxed_program(gm, ordered)


def _outlined(
    graph: Graph, nodes: list[Node], device: torch.device, language: Language, constants: dict[str, torch.Tensor]
) -> GraphProgram:
    made: list[GraphProgram] = []

    def make(part: Graph) -> GraphProgram:
        made.append(GraphProgram(part, device.index or 0, language, f"graph {next(_numbers)}", constants))
        return made[0]

    outlined(graph, nodes, make)
    return made[0]
