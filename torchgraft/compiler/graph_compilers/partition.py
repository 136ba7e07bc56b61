"""Parts of a graph: nodes that are taken, as many together as can be without a part needing itself."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

import torch
from torch.fx import Graph, Node

from torchgraft.compiler.internals import CapabilityBasedPartitioner, OperatorSupportBase
from torchgraft.compiler.outline import is_free, tensors_of

__all__ = ["ordered_by_parts", "proposed_parts"]


class _Taken(OperatorSupportBase):
    def __init__(self, nodes: Collection[Node]) -> None:
        self._nodes = nodes

    def is_node_supported(self, submodules: Mapping[str, torch.nn.Module], node: Node) -> bool:
        return node in self._nodes


def proposed_parts(gm: torch.fx.GraphModule, takes: Callable[[Node], bool], least: int) -> list[set[Node]]:
    """Disjoint sets of nodes, each with tensors to read and at least so many ops that compute something."""
    taken = {node for node in gm.graph.nodes if takes(node)}
    partitioner = CapabilityBasedPartitioner(gm, _Taken(taken), allows_single_node_partition=True)
    parts = [set(partition.nodes) for partition in partitioner.propose_partitions()]
    for part in parts:
        _leave_views_outside(gm.graph, part)
    return [part for part in parts if _reads(part) and sum(not is_free(node) for node in part) >= least]


def _reads(part: set[Node]) -> bool:
    """Whether a tensor comes from elsewhere: calls are dispatched by their tensors."""
    return any(each not in part and tensors_of(each) for node in part for each in node.all_input_nodes)


def _leave_views_outside(graph: Graph, part: set[Node]) -> None:
    """Views that nodes outside use are made there: a program would copy them."""
    for node in [each for each in reversed(graph.nodes) if each in part and _is_view(each)]:
        if any(user not in part for user in node.users):
            with graph.inserting_after(node):
                copy = graph.node_copy(node)
            node.replace_all_uses_with(copy, delete_user_cb=lambda user: user not in part)
        if not node.users:
            part.remove(node)
            graph.erase_node(node)


def _is_view(node: Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and is_free(node)


def ordered_by_parts(graph: Graph, parts: list[set[Node]]) -> tuple[Graph, list[list[Node]]]:
    """The same graph in an order in which the nodes of each part follow each other, and these.

    What writes to an argument stays the last, after all that reads it.
    """
    number_of = {node: number for number, part in enumerate(parts) for node in part}
    units: dict[int | Node, list[Node]] = {}
    for node in graph.nodes:
        units.setdefault(number_of.get(node, node), []).append(node)
    new, copies = Graph(), dict[Node, Node]()
    for unit in _sorted(units, lambda node: number_of.get(node, node)):
        for node in units[unit]:
            if node.op == "output":
                new.output(torch.fx.node.map_arg(node.args[0], copies.__getitem__))
            else:
                copies[node] = new.node_copy(node, copies.__getitem__)
    return new, [[copies[node] for node in units[number]] for number in range(len(parts)) if number in units]


def _sorted(units: Mapping[int | Node, list[Node]], unit_of: Callable[[Node], int | Node]) -> Iterable[int | Node]:
    """Units, each after those that it needs, and otherwise in their order."""
    done: dict[int | Node, None] = {}
    todo = list(units)[::-1]
    while todo:
        unit = todo[-1]
        needed = {unit_of(each): None for node in units[unit] for each in node.all_input_nodes}
        missing = [each for each in needed if each not in done and each != unit]
        if unit in done:
            todo.pop()
        elif missing:
            todo += reversed(missing)
        else:
            todo.pop()
            done[unit] = None
    return done


def writes_come_last(graph: Graph) -> bool:
    """Whether nothing is computed after something has been written to an argument."""
    written = False
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        mutates = isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable
        if written and not mutates and not is_free(node):
            return False
        written = written or mutates
    return True
