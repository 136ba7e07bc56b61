"""Which nodes of a graph a device's compiler takes: those that the importer can write, on the device, of dtypes that
programs can have, and that the driver does not refuse."""

from __future__ import annotations

import operator
from collections import Counter
from typing import Any

import torch
from torch.fx import Node

from torchgraft._core import _C
from torchgraft.compiler.graph_compilers.importer import Importer
from torchgraft.compiler.internals import hint
from torchgraft.compiler.outline import is_free, tensors_of, value_of
from torchgraft.plans.programs import ELEMENTS, Record

__all__ = ["Support"]


class Support:
    """Asks, and keeps the answers.

    Attributes:
        refused: nodes that are not taken, by op and reason.
    """

    def __init__(self, device: torch.device, language: str, importer: Importer) -> None:
        self.refused: Counter[tuple[str, str]] = Counter()
        self._device, self._language, self._importer = device, language, importer
        self._answers: dict[str, str] = {}

    def takes(self, node: Node) -> bool:
        """Whether a node can be in a part."""
        if node.op != "call_function":
            return False
        if node.target is operator.getitem:
            return self.takes(node.args[0])  # type: ignore[arg-type]
        if not tensors_of(node):
            return False  # numbers are the host's
        why = self._why_not(node)
        return not why

    def note_left_out(self, node: Node, otherwise: str) -> None:
        """Counts a node that is in no part, and why: `otherwise` where it would be taken. Views cost nothing there."""
        if node.op != "call_function" or node.target is operator.getitem or not tensors_of(node):
            return
        why = self._why_not(node) or ("" if is_free(node) else otherwise)
        if why:
            self.refused[str(node.target), why] += 1

    def _why_not(self, node: Node) -> str:
        op = node.target
        if not isinstance(op, torch._ops.OpOverload):
            return "it is no op of PyTorch's"
        if op._schema.is_mutable:
            return "it writes to its arguments"
        if torch.Tag.nondeterministic_seeded in op.tags:
            return "it draws random numbers"
        if node.meta.get("unbacked_bindings"):
            return "its sizes depend on data"
        why = self._importer.why_not(op) or self._why_not_tensors(node)
        return why or self._why_not_driver(op, node)

    def _why_not_tensors(self, node: Node) -> str:
        if any(isinstance(value_of(each), (torch.SymFloat, torch.SymBool)) for each in node.all_input_nodes):
            return "it has a number that comes from sizes and is no integer"
        for tensor in (tensor for each in (node, *node.all_input_nodes) for tensor in tensors_of(each)):
            if tensor.device != self._device:
                return f"it has a tensor on {tensor.device}"
            if tensor.layout != torch.strided or tensor.dtype not in ELEMENTS:
                return f"it has a tensor of {tensor.dtype}, {tensor.layout}"
            if any(hint(size) is None for size in tensor.shape):
                return "its sizes depend on data"
        return ""

    def _why_not_driver(self, op: torch._ops.OpOverload, node: Node) -> str:
        inputs = [_record(tensor) for each in node.all_input_nodes for tensor in tensors_of(each)]
        outputs = [_record(tensor) for tensor in tensors_of(node)]
        attributes = _attributes(op, node)
        key = repr((str(op), inputs, outputs, sorted(attributes.items())))
        if key not in self._answers:
            source = _C.ProgramSource(self._language, str(op), b"", attributes, inputs, outputs)
            wishes, reason = _C.Program.supports(self._device.index or 0, source)
            self._answers[key] = "" if wishes is not None else reason or "the driver does not take it"
        return self._answers[key]


def _record(tensor: torch.Tensor) -> Record | None:
    """With the sizes that the graph was made for, contiguous, as they will be."""
    sizes = [int(hint(size) or 0) for size in tensor.shape]
    strides = list(torch.empty(sizes, device="meta").stride())
    return (ELEMENTS[tensor.dtype], sizes, strides, False)


def _attributes(op: torch._ops.OpOverload, node: Node) -> dict[str, Any]:
    """The arguments of a node that are numbers, texts, truths or lists of integers."""
    names = [argument.name for argument in op._schema.arguments]
    given = dict(zip(names, node.args, strict=False)) | dict(node.kwargs)
    return {name: value for name, value in given.items() if _is_attribute(value)}


def _is_attribute(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return bool(value) and all(type(each) is int for each in value)
    return isinstance(value, (bool, int, float, str))
