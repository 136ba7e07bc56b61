"""Loops over elements that may be fused, brought together: a graph in another order, with one call for each group.

Nothing is fused but what lies side by side in a plan, and in a plan there is nothing to gain but that. So products,
norms and reductions stay calls of their own, which have their plans from single calls, and loops that do not need them
wait until something needs a loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.utils._python_dispatch import _disable_current_modes

from torchgraft import backend
from torchgraft.compiler.fused import FusedOps, new_builder, trace_node
from torchgraft.compiler.internals import hint
from torchgraft.compiler.outline import is_free, outlined, tensors_of, value_of
from torchgraft.plans.device import device_traits
from torchgraft.plans.registry import ENTRIES

__all__ = ["group_loops"]

# Loops that wait for each other at most: plans of more steps take long to make. A step of an optimizer has a dozen for
# each parameter.
_MOST = 3000


def group_loops(graph: Graph) -> Graph:
    """A graph that does the same, with calls of `FusedOps` for loops."""
    ordered, groups = _Schedule(graph).made()
    for group in groups:
        _fuse(ordered, group)
    return ordered


# ---- which ops are loops ----


class _Loops:
    """Which nodes are loops over elements and nothing else, by planning each once for the sizes of the graph."""

    def __init__(self) -> None:
        self._known: dict[str, bool] = {}

    def device_of(self, node: Node) -> int | None:
        """The device on which a node is a loop; None if it is none."""
        device = _device_of(node)
        if device is None or not device_traits(device).has_compiler or not _may_be_traced(node):
            return None
        specs = {each: _spec(value_of(each)) for each in node.all_input_nodes}
        if any(spec is None for spec in specs.values()):
            return None
        key = repr(
            (device, str(node.target), node.kwargs, torch.fx.node.map_arg(node.args, lambda n: _facts(specs[n])))
        )
        if key not in self._known:
            self._known[key] = _is_loop(node, specs, device)
        return device if self._known[key] else None


def _device_of(node: Node) -> int | None:
    """The one of our devices on which a node's one result and all tensors among its arguments lie."""
    result = value_of(node)
    if node.op != "call_function" or not isinstance(result, torch.Tensor) or result.device.type != backend.name():
        return None
    tensors = [result, *(tensor for each in node.all_input_nodes for tensor in tensors_of(each))]
    is_one = all(each.device == result.device and each.layout == torch.strided for each in tensors)
    return (result.device.index or 0) if is_one else None


def _may_be_traced(node: Node) -> bool:
    op = node.target
    if not isinstance(op, torch._ops.OpOverload) or node.meta.get("unbacked_bindings"):
        return False
    if op._schema.is_mutable and (op is not torch.ops.aten.copy_.default or node.users):
        return False
    entry = ENTRIES.get(op.name())
    if entry is None and op.namespace not in ("aten", "prims"):
        return False
    return torch.Tag.nondeterministic_seeded not in op.tags and not (entry is not None and entry.composites)


def _spec(value: Any) -> Any:
    """A fake tensor's meta tensor, or a size, with the sizes that the graph was made for; None of others."""
    if isinstance(value, (int, torch.SymInt)) and not isinstance(value, bool):
        return hint(value)
    if not isinstance(value, torch.Tensor):
        return None
    sizes, strides = ([hint(each) for each in numbers] for numbers in (value.shape, value.stride()))
    if None in sizes or None in strides:
        return None
    spec = torch.empty_strided(sizes, strides, dtype=value.dtype, device="meta")  # type: ignore[arg-type]
    spec = spec.conj() if value.is_conj() else spec
    return torch._neg_view(spec) if value.is_neg() else spec


def _facts(spec: Any) -> Any:
    if not isinstance(spec, torch.Tensor):
        return spec
    return str((spec.dtype, tuple(spec.shape), spec.stride(), spec.is_conj(), spec.is_neg()))


def _is_loop(node: Node, specs: dict[Node, Any], device: int) -> bool:
    with torch._C.DisableTorchFunction(), _disable_current_modes():
        p = new_builder(device, str(node.target))
        try:
            for number, spec in enumerate(specs.values()):
                if isinstance(spec, torch.Tensor):
                    p.check_dtype(spec.dtype)
                    p.adopt(spec, "argument", number)
            trace_node(p, node, specs)
        except Exception:  # it has no plan, or refuses its arguments; the call itself says so
            return False
    return p.step_count > 0 and not p.kernels


# ---- the order ----


class _Schedule:
    """The nodes of a graph in another order. Loops wait until something needs one of them, or writes to an argument.

    Args:
        graph: a functional one, which writes to arguments at the end alone.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph, self._new = graph, Graph()
        self._copies: dict[Node, Node] = {}
        self._loops = _Loops()
        self._waiting: dict[Node, bool] = {}  # whether it is a loop
        self._device = -1  # of those
        self._groups: list[list[Node]] = []

    def made(self) -> tuple[Graph, list[list[Node]]]:
        """The new graph, and its groups: nodes that follow each other, two loops at least among them."""
        for node in self._graph.nodes:
            if node.op == "output":
                self._emit_waiting()
                self._new.output(torch.fx.node.map_arg(node.args[0], self._copies.__getitem__))
            elif node.op == "call_function":
                self._take(node)
            else:
                self._emit(node)
        return self._new, self._groups

    def _take(self, node: Node) -> None:
        device = self._loops.device_of(node)
        needs_waiting = any(each in self._waiting for each in node.all_input_nodes)
        if device is not None and not is_free(node):
            if self._waiting and (device != self._device or sum(self._waiting.values()) >= _MOST):
                self._emit_waiting()
            self._device = device
            self._waiting[node] = True
        elif needs_waiting and is_free(node):
            self._waiting[node] = False
        else:
            if needs_waiting or _writes(node) or any(map(_writes, self._waiting)):
                self._emit_waiting()
            self._emit(node)

    def _emit(self, node: Node) -> Node:
        copy = self._copies[node] = self._new.node_copy(node, self._copies.__getitem__)
        return copy

    def _emit_waiting(self) -> None:
        emitted = [self._emit(node) for node in _ordered(list(self._waiting))]
        if sum(self._waiting.values()) > 1:
            self._groups.append(emitted)
        self._waiting.clear()


def _writes(node: Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def _ordered(nodes: Sequence[Node]) -> list[Node]:
    """Nodes in an order in which each comes as late as its first use allows, and what writes to an argument as early as
    it may; those of one shape come after each other if nothing needs them."""
    before = _needed(nodes)
    last = [node for node in nodes if not any(user in before for user in node.users)]
    shapes = {shape: number for number, shape in enumerate(dict.fromkeys(map(_shape, last)))}
    done: dict[Node, None] = {}

    def finish(node: Node) -> None:
        done[node] = None
        for user in node.users:
            if user in before and _writes(user) and user not in done and all(each in done for each in before[user]):
                done[user] = None

    todo = sorted(last, key=lambda node: shapes[_shape(node)])[::-1]  # from the end on
    while todo:
        node = todo[-1]
        missing = [each for each in before[node] if each not in done]
        if node in done:
            todo.pop()
        elif missing:
            todo += reversed(missing)
        else:
            todo.pop()
            finish(node)
    return list(done)


def _needed(nodes: Sequence[Node]) -> dict[Node, list[Node]]:
    """Which nodes come before each. What writes to an argument comes after all that read it."""
    inside = set(nodes)
    before = {node: [each for each in node.all_input_nodes if each in inside] for node in nodes}
    for node in filter(_writes, nodes):
        readers = [user for user in node.all_input_nodes[0].users if user in inside and user is not node]
        before[node] += readers
    return before


def _shape(node: Node) -> Any:
    shape = getattr(value_of(node), "shape", ())
    return tuple(str(size) for size in shape)


# ---- the groups ----


def _fuse(graph: Graph, group: list[Node]) -> None:
    """Puts one call in the place of a group."""
    group = _without_views_for_others(graph, group)
    inside = set(group)
    inputs = [each for node in group for each in node.all_input_nodes if each not in inside]
    device = next((t.device.index or 0 for each in inputs for t in tensors_of(each)), None)
    if device is None or not all(_is_size_or_tensor(value_of(each)) for each in inputs):
        return
    outlined(graph, group, partial(_fused, device))


def _fused(device: int, part: Graph) -> Callable[[list[Any]], Any]:
    return FusedOps(part, device)


def _is_size_or_tensor(value: Any) -> bool:
    return isinstance(value, (int, torch.SymInt, torch.Tensor)) and not isinstance(value, bool)


def _without_views_for_others(graph: Graph, group: list[Node]) -> list[Node]:
    """The group, with copies of its views, and of its numbers, behind it, for those outside that use them."""
    inside, last = set(group), group[-1]
    for node in reversed(group):
        if not is_free(node):
            continue
        if any(user not in inside for user in node.users):
            with graph.inserting_after(last):
                copy = graph.node_copy(node)
            node.replace_all_uses_with(copy, delete_user_cb=lambda user: user not in inside)
        if not node.users:
            inside.remove(node)
            if node is last:
                last = group[group.index(node) - 1]
            graph.erase_node(node)
    return [node for node in group if node in inside]
