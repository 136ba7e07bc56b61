"""Parts of a graph become functions of their own, which the graph calls."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from torchgraft.compiler.internals import BoxedCodeGen
from torchgraft.plans.trace import is_view

__all__ = ["boxed", "is_free", "outlined", "tensors_of", "value_of"]


def value_of(node: Node) -> Any:
    """What a node gives, as a fake: a tensor, a number, a list of them."""
    return node.meta.get("val")


def tensors_of(node: Node) -> list[torch.Tensor]:
    """The tensors that a node gives, as fakes."""
    value = value_of(node)
    values = value if isinstance(value, (list, tuple)) else [value]
    return [each for each in values if isinstance(each, torch.Tensor)]


def is_free(node: Node) -> bool:
    """Whether a node gives numbers, views, or a member of what another gives: it may be computed twice."""
    if node.op != "call_function" or node.meta.get("unbacked_bindings"):
        return False
    if isinstance(node.target, torch._ops.OpOverload):
        by_number = isinstance(value_of(node), (int, torch.SymInt)) and node.target.namespace == "aten"
        return is_view(node.target) or by_number
    return node.target is operator.getitem or isinstance(value_of(node), (int, float, bool, *_SYMBOLS))


_SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)


def boxed(graph: Graph, root: torch.nn.Module | None = None) -> Callable[[list[Any]], Sequence[Any]]:
    """A graph as a function of a list, which it empties.

    Args:
        root: has the graph's constants.
    """
    graph.set_codegen(BoxedCodeGen())
    module = GraphModule(torch.nn.Module() if root is None else root, graph)
    function: Callable[[list[Any]], Sequence[Any]] = module.forward
    return function


def outlined(graph: Graph, nodes: Sequence[Node], make: Callable[[Graph], Callable[[list[Any]], Any]]) -> Node:
    """Puts one call in the place of nodes that follow each other, and returns it.

    Args:
        make: the function of a list that does what a graph of these nodes does. It has their inputs in the order of
            their first use, and gives a list.
    """
    inside = set(nodes)
    inputs = list(dict.fromkeys(each for node in nodes for each in node.all_input_nodes if each not in inside))
    results = [node for node in nodes if any(user not in inside for user in node.users)]
    part = Graph()
    copies: dict[Node, Node] = {}
    for each in inputs:
        copies[each] = part.placeholder(each.name)
        copies[each].meta = each.meta
    for node in nodes:
        copies[node] = part.node_copy(node, copies.__getitem__)
    part.output([copies[each] for each in results])
    with graph.inserting_before(nodes[0]):
        call = graph.call_function(make(part), (inputs,))
        call.meta = {"val": [value_of(each) for each in results]}
        for number, each in enumerate(results):
            item = graph.call_function(operator.getitem, (call, number))
            item.meta = each.meta
            each.replace_all_uses_with(item, delete_user_cb=lambda user: user not in inside)
    for node in reversed(nodes):
        graph.erase_node(node)
    return call
