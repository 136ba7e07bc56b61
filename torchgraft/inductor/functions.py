"""Functions of numbers, as torch has traced them, in the kernel language.

What a function does to a score is a graph of pointwise ops on tensors without dimensions. The tables of ops have an
expression for each. What is no expression has no text here: its callers go another way.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.utils._pytree import tree_leaves

from torchgraft.codegen import UnsupportedDtype, element_type
from torchgraft.codegen.pointwise import convert
from torchgraft.codegen.types import BY_NAME, value_ctype
from torchgraft.inductor.operations import literal
from torchgraft.inductor.rows import row_function
from torchgraft.ops.table import Row
from torchgraft.plans import ENTRIES
from torchgraft.plans.elementwise import promoted_dtype

__all__ = ["Captured", "Text", "Untranslatable", "Value", "number"]

aten = torch.ops.aten


class Untranslatable(Exception):
    """There is no text for a function."""


@dataclass(frozen=True)
class Value:
    """A number.

    Attributes:
        text: the expression that it is.
        dtype: its type in torch.
        below: what it is less than, if it is known, and it is not negative.
    """

    text: str
    dtype: torch.dtype
    below: Any = None

    @property
    def type(self) -> str:
        return element_type(self.dtype).name


@dataclass(frozen=True)
class Captured:
    """A tensor that is read: the kernel's parameter of that name."""

    name: str
    spec: torch.Tensor


_SAME = (aten.alias.default, aten.detach.default, aten.clone.default, aten.lift_fresh_copy.default)
_CASTS = (torch.ops.prims.convert_element_type.default, aten._to_copy.default)
_NUMBERS = (aten.full.default, aten.scalar_tensor.default)


@dataclass
class Text:
    """The text of one or several functions.

    Attributes:
        helpers: definitions of functions that it calls, by name.
    """

    helpers: dict[str, str] = field(default_factory=dict)

    def of(self, gm: torch.fx.GraphModule, inputs: Sequence[Value | Captured]) -> tuple[str, Value]:
        """Statements, and the function's result: the first of several, of which the others are None.

        Raises:
            Untranslatable: there are none.
        """
        try:
            return self._of(gm, inputs)
        except UnsupportedDtype as error:
            raise Untranslatable(str(error)) from error

    def _of(self, gm: torch.fx.GraphModule, inputs: Sequence[Value | Captured]) -> tuple[str, Value]:
        known: dict[torch.fx.Node, Any] = {}
        given = iter(inputs)
        statements: list[str] = []
        needed = _needed(gm.graph)
        for node in gm.graph.nodes:
            if node.op == "placeholder":
                known[node] = next(given)
            elif node.op == "get_attr":
                known[node] = _constant(getattr(gm, str(node.target)))
            elif node.op == "output":
                return "\n".join(statements), known[_result(node)]
            elif node in needed:
                args = torch.fx.map_arg(node.args, known.__getitem__)
                made = self._called(node.target, args, torch.fx.map_arg(node.kwargs, known.__getitem__))
                if made.below is None and not re.fullmatch(r"\w+", made.text):
                    name = f"t{len(statements)}"
                    statements.append(f"const {value_ctype(BY_NAME[made.type].compute)} {name} = {made.text};")
                    made = Value(name, made.dtype)
                known[node] = made
        raise Untranslatable("a graph without output")

    def _called(self, op: Any, args: Any, kwargs: Any) -> Value:
        if op is aten.index.Tensor:
            return _read(*args)
        if op in _SAME and isinstance(args[0], Value):
            return args[0]
        if op in _CASTS and isinstance(args[0], Value):
            dtype = args[1] if len(args) > 1 else kwargs.get("dtype") or args[0].dtype
            return Value(_as(args[0], dtype), dtype)
        if op in _NUMBERS:
            value = args[1] if op is aten.full.default else args[0]
            return number(value, kwargs.get("dtype"))
        if op is aten.where.self and all(isinstance(each, Value) for each in args):
            dtype = _promoted(args[1:])
            truth, one, other = _as(args[0], torch.bool), _as(args[1], dtype), _as(args[2], dtype)
            return Value(f"({truth} ? {one} : {other})", dtype)
        return self._row(op, args, kwargs)

    def _row(self, op: Any, args: Any, kwargs: Any) -> Value:
        """An op whose result is an expression."""
        entry = ENTRIES.get(op.name()) if isinstance(op, torch._ops.OpOverload) else None
        row = entry.plan if entry is not None and entry.kind == "functional" else None
        if not isinstance(row, Row) or isinstance(row.text, Mapping):
            raise Untranslatable(f"{op} is no expression")
        given = {p.name: p.default for p in row.parameters}
        given |= dict(zip(given, args, strict=False)) | kwargs
        roles = {name: words.split() for name, words in row.operands.items()}
        operands = {name: each for name, each in given.items() if isinstance(each, Value)}
        if "keeps" in itertools.chain(*roles.values()) or any(isinstance(each, Captured) for each in given.values()):
            raise Untranslatable(f"{op} of other than numbers")
        promote = {p.name for p in row.parameters if "Tensor" in p.type or "promotes" in roles.get(p.name, ())}
        common = _promoted([each for name, each in given.items() if name in promote and each is not None])
        static = {name: name if _is_number(each) else each for name, each in given.items()}
        kind = row.kind(**static) if callable(row.kind) else row.kind
        compute = kind.computes_in(common)
        fractions = any(isinstance(each, float) for each in given.values()) and not compute.is_floating_point
        if compute.is_complex or fractions:
            raise Untranslatable(f"{op} of {compute}")
        for name in (name for name, words in roles.items() if "divisor" in words):
            if not compute.is_floating_point and (name in operands or not given[name]):
                raise Untranslatable("a division by what may be 0")
        function, gives, used = row_function(row, kind, compute, static)
        name = function.partition("(")[0].rpartition(" ")[2]
        self.helpers[name] = function
        text = ", ".join(_operand(given[each], compute) for each in used)
        result = Value(f"{name}({text})", BY_NAME[gives].dtype)
        wanted = kind.gives(common)
        return result if wanted == result.dtype else Value(_as(result, wanted), wanted)


def _is_number(value: Any) -> bool:
    return isinstance(value, Value) or (isinstance(value, int | float) and not isinstance(value, bool))


def _operand(value: Any, dtype: torch.dtype) -> str:
    return _as(value, dtype) if isinstance(value, Value) else literal(value, element_type(dtype).name)


def _result(output: torch.fx.Node) -> torch.fx.Node:
    """What a function gives, if it is one thing."""
    given = [each for each in tree_leaves(output.args[0]) if each is not None]
    if len(given) != 1 or not isinstance(given[0], torch.fx.Node):
        raise Untranslatable("several results")
    return given[0]


def _needed(graph: torch.fx.Graph) -> set[torch.fx.Node]:
    """The nodes that a function's result depends on."""
    todo, found = [_result(graph.output_node())], set[torch.fx.Node]()
    while todo:
        node = todo.pop()
        if node not in found:
            found.add(node)
            todo += node.all_input_nodes
    return found


def _as(value: Value, dtype: torch.dtype) -> str:
    return f"({convert(value.text, value.type, element_type(dtype).name)})"


def _promoted(operands: Iterable[Any]) -> torch.dtype:
    return promoted_dtype(
        [torch.empty((), dtype=each.dtype, device="meta") if isinstance(each, Value) else each for each in operands]
    )


def number(known: Any, dtype: torch.dtype | None = None) -> Value:
    """A number as text.

    Raises:
        Untranslatable: it is not known, or has another value each time.
    """
    if not isinstance(known, bool | int | float):
        raise Untranslatable("a number that is not known")
    kind = torch.bool if isinstance(known, bool) else torch.int64 if isinstance(known, int) else torch.float32
    dtype = dtype or kind
    is_place = isinstance(known, int) and known >= 0 and not dtype.is_floating_point
    text = f"({value_ctype(element_type(dtype).name)})({literal(known, element_type(dtype).name)})"
    return Value(text, dtype, known + 1 if is_place else None)


def _constant(tensor: Any) -> Value:
    is_number = isinstance(tensor, torch.Tensor) and tensor.device.type == "cpu" and tensor.dim() == 0
    if not is_number or isinstance(tensor, torch._subclasses.FakeTensor):
        raise Untranslatable("a constant that is no number")
    return number(tensor.item(), tensor.dtype)


def _read(tensor: Any, indices: Sequence[Any]) -> Value:
    """An element of a captured tensor, where it is certain that there is one."""
    if not isinstance(tensor, Captured) or len(indices) != tensor.spec.dim():
        raise Untranslatable("an index into a part of a tensor")
    sizes = tensor.spec.shape
    if not all(isinstance(size, int) for size in sizes[1:]):
        raise Untranslatable("sizes that change")
    at = ""
    for index, size in zip(indices, sizes, strict=True):
        if not isinstance(index, Value) or index.below is None or not statically_known_true(index.below <= size):
            raise Untranslatable("an index that may be out of range")
        at = f"({at} * {size} + {index.text})" if at else f"(long)({index.text})"
    type_ = element_type(tensor.spec.dtype).name
    return Value(f"load_{type_}({tensor.name}, {at or 0})", tensor.spec.dtype)
