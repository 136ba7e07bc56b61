"""A compiler of programs that stands on no other: `torch.compile(model, backend="graft")`.

Dynamo and AOTAutograd give graphs of aten ops, forward and backward. Loops over elements in them become steps of one
plan, which fuses them (`grouping`, `fused`); what else there is the device's own plans and functions do, as for single
calls; and what launches only is recorded and replayed (`parts`, `replay`).

It needs nothing of Inductor's, so that it serves a torch on its first day, and devices without a compiler: their ops
run as they do without torch.compile, in whole graphs. Nothing of it is imported before something is compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from torchgraft.compiler.graph_compilers.report import CompileReport

__all__ = ["NAME", "compile_graph", "compile_report", "graft"]

#: What torch.compile knows the backend by.
NAME = "graft"


def graft(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """The Dynamo backend: compiles a graph of torch's functions, forward and backward.

    Raises:
        ValueError: there is a mode, or options.
    """
    if options:
        given = " and ".join(f"{name}={value!r}" for name, value in options.items())
        raise ValueError(f'torch.compile(backend="{NAME}") has neither modes nor options, but got {given}')
    from torchgraft.compiler import aot

    return aot.compile_program(gm, example_inputs)


def compile_graph(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[[list[Any]], Sequence[Any]]:
    """Compiles a functional graph of aten ops, as AOTAutograd makes them; the result takes a list of the arguments, and
    empties it."""
    from torchgraft.compiler import aot

    return aot.compile_graph(gm, example_inputs)


def compile_report() -> CompileReport:
    """What became of the graphs that were compiled by `torch.compile(model, backend="<the device's name>")`: which
    parts are programs of the device's, and why other nodes are not. Of the last 256 graphs."""
    from torchgraft.compiler.graph_compilers import report

    return report.report()
