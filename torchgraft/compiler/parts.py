"""What of a graph is recorded and replayed: all of it, or the parts between what cannot be.

Of some ops it is known only when they are called what they do: those that are functions and not plans. A program with
none but those is recorded as a whole if it can be, and in parts if not.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch.fx import Graph, Node

from torchgraft.codegen.types import BY_DTYPE
from torchgraft.compiler.fused import FusedOps
from torchgraft.compiler.outline import boxed, is_free, outlined, tensors_of, value_of
from torchgraft.compiler.replay import Program, Replayed, refuse, splits
from torchgraft.plans.recording import device_of_most, has_plan, only_launches

__all__ = ["recorded"]


def recorded(root: torch.nn.Module, graph: Graph) -> Program:
    """A graph as a function of a list of its arguments, which it empties.

    Args:
        root: has the graph's constants.
    """
    device = device_of_most(each.device for node in graph.nodes for each in tensors_of(node))
    if device is None:
        return boxed(graph, root)
    _gather_members(graph)
    reasons = {node: _why_apart(node, device) for node in graph.nodes}
    why = next(filter(None, reasons.values()), "")
    if not why:
        return _whole(graph, root)
    refuse(why)
    splits[why] += 1
    _outline_parts(graph, {node for node, reason in reasons.items() if reason})
    return boxed(graph, root)


class _Recorded(Replayed):
    """A part of a program."""

    __name__ = "part"  # what a graph's text calls it


def _whole(graph: Graph, root: torch.nn.Module | None = None) -> _Recorded:
    """A graph, or a part, that is recorded; parts of it that are if it turns out that it cannot be."""
    in_doubt = {node for node in graph.nodes if _is_in_doubt(node)}
    if in_doubt:
        _outline_parts(graph, in_doubt)
    return _Recorded(boxed(graph, root), has_parts=bool(in_doubt))


def _outline_parts(graph: Graph, apart: Collection[Node]) -> None:
    """Puts calls of recorded functions in the place of what is between some nodes."""
    part: list[Node] = []
    for node in [*(each for each in graph.nodes if each.op == "call_function"), None]:
        if node is not None and node not in apart:
            part.append(node)
            continue
        if sum(not is_free(each) for each in part) > 1:  # else there is little to gain
            outlined(graph, part, _whole)
        part = []


def _gather_members(graph: Graph) -> None:
    """Members of what a node gives are taken where it is given, so that no part gives, or is given, anything else."""
    for node in reversed(list(graph.nodes)):
        if node.target is operator.getitem:
            node.args[0].append(node)


def _why_apart(node: Node, device: torch.device) -> str:
    """Why a node cannot be in a recording, or an empty string."""
    if node.op == "placeholder":
        return "" if _is_given(value_of(node), device) else "it has an argument that is not on one device alone"
    if node.op != "call_function":
        return ""
    if node.target is operator.getitem:
        return _why_apart(node.args[0], device)  # type: ignore[arg-type]
    used = [each for each in node.all_input_nodes if each.op != "get_attr" or tensors_of(each)]
    if any(tensor.device != device for each in (node, *used) for tensor in tensors_of(each)):
        return "it is not on one device alone"
    if isinstance(node.target, FusedOps):
        return ""
    if node.meta.get("unbacked_bindings"):
        return f"{node.target} reads data"
    if not isinstance(node.target, torch._ops.OpOverload):
        numbers = (value_of(node), *map(value_of, used))
        return "" if all(isinstance(each, (int, torch.SymInt)) for each in numbers) else f"it calls {node.target}"
    if not _are_numbers_integers(used):
        return f"{node.target} has a number among its arguments that is no integer"
    return _why_not_by_op(node.target, node)


def _why_not_by_op(op: torch._ops.OpOverload, node: Node) -> str:
    if is_free(node):
        return ""
    if not tensors_of(node) and not any(map(tensors_of, node.all_input_nodes)):
        return f"{op} is done by the host"
    if not only_launches(op):
        return f"what {op} does besides launching kernels is not known"
    return ""


def _are_numbers_integers(nodes: Sequence[Node]) -> bool:
    return all(isinstance(value_of(each), (int, torch.SymInt)) or tensors_of(each) for each in nodes)


def _is_given(value: Any, device: torch.device) -> bool:
    """Whether a recording may have such an argument."""
    if isinstance(value, torch.Tensor):
        return value.device == device and value.layout == torch.strided
    return value is None or isinstance(value, (int, torch.SymInt))


def _is_in_doubt(node: Node) -> bool:
    """Whether it may turn out that a node does something else than launch."""
    op = node.target
    if not isinstance(op, torch._ops.OpOverload) or is_free(node):
        return False
    dtypes = {tensor.dtype for each in (node, *node.all_input_nodes) for tensor in tensors_of(each)}
    return not (dtypes <= set(BY_DTYPE) and has_plan(op))
