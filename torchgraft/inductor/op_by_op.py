"""A compiled program as its graph, op by op, where the device's compiler refuses one of its kernels.

A program's kernels are those of the ops that it was made of, fused, and there is nothing on the CPU that could take the
place of one. So its graph is part of the program, as text, and is run instead: by the device's own kernels, each op of
which has a CPU fallback of its own. Kernels are compiled before anything of the program is run, since what has
written to its arguments cannot be begun anew.

Random numbers are what the kernels draw, so that one direction of a training step may be a program and the other not.
"""

from __future__ import annotations

import base64
import functools
import io
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from torchgraft.plans.philox import philox_words

__all__ = ["OpByOp", "described", "noted"]

#: Of a result, and whether they are always these; others tell the order of the dimensions in memory.
Strides = tuple[Sequence[int], bool] | None

# Sizes that are no nodes of the graph have no text outside of it.
_SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)

_NOTE = "torchgraft_op_by_op"


def noted(gm: torch.fx.GraphModule) -> None:
    """Keeps a graph as it is now with the graph, whatever passes make of it: for `described`."""
    gm.meta[_NOTE] = _noted(gm)


def _noted(gm: torch.fx.GraphModule) -> dict[str, Any] | None:
    graph = torch.fx.Graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    if any(isinstance(leaf, _SYMBOLS) for node in graph.nodes for leaf in tree_leaves((node.args, node.kwargs))):
        return None
    if any("kernel_idx" in node.kwargs for node in graph.nodes):  # a Triton kernel's place in a table of this process
        return None
    for node in graph.nodes:
        node.target = _DRAWN.get(str(node.target), node.target)
    code = graph.python_code("self")
    if any("<locals>" in getattr(each, "__qualname__", "") for each in code.globals.values()):
        return None
    parts: dict[str, Any] = {}
    for node in graph.find_nodes(op="get_attr"):
        name = str(node.target)
        part = getattr(gm, name, None)
        parts[name] = _noted(part) if isinstance(part, torch.fx.GraphModule) else part
    names = "".join(map(_imported, code.globals.keys(), code.globals.values()))
    return {"code": names + code.src, "parts": parts}


def _imported(name: str, value: Any) -> str:
    """The line that gives a name of a graph's code its meaning."""
    if isinstance(value, float):
        return f"{name} = float('{value}')\n"
    if isinstance(value, ModuleType):
        return f"import {value.__name__} as {name}\n"
    if value is type(None):
        return f"{name} = type(None)\n"
    return f"from {value.__module__} import {value.__qualname__} as {name}\n"


def described(gm: Any, constants: Mapping[str, torch.Tensor], strides: Sequence[Strides]) -> str:
    """The expression that makes the `OpByOp` of a program of its names, or "None".

    Args:
        gm: whose graph was `noted`.
        constants: tensors that the program has, by the names that it has for them.
        strides: of its results; None leaves a result as it is.
    """
    note = gm.meta.get(_NOTE)
    names = {id(tensor): name for name, tensor in constants.items()}
    made = None if note is None else _described(note, names)
    return "None" if made is None else f"tg_op_by_op({made!r}, {list(strides)!r}, globals())"


def _described(note: Mapping[str, Any], names: Mapping[int, str]) -> dict[str, Any] | None:
    """The same as literals; None where something has no text."""
    parts: dict[str, Any] = {}
    for name, part in note["parts"].items():
        made: Any = None  # a function within that has none, or what is no tensor
        if isinstance(part, dict):
            made = _described(part, names)
        elif isinstance(part, torch.Tensor):
            made = names.get(id(part)) or _small(part)
        if made is None:
            return None
        parts[name] = made
    return {**note, "parts": parts}


# Bytes of a tensor that a program has as text: Inductor takes small ones as numbers, and keeps none.
_SMALL = 1024


def _small(tensor: torch.Tensor) -> tuple[bytes, str] | None:
    """A tensor as text, and its device."""
    if tensor.nbytes > _SMALL:
        return None
    buffer = io.BytesIO()
    torch.save(tensor.cpu().clone(), buffer)
    return base64.b64encode(buffer.getvalue()), str(tensor.device)


class _Module(torch.nn.Module):
    """What a graph's code takes for itself."""


class OpByOp:
    """A program's graph.

    Args:
        source: what `described` has written.
        strides: of the results.
        program: the program's names, where its constants are.
    """

    def __init__(self, source: Mapping[str, Any], strides: Sequence[Strides], program: Mapping[str, Any]) -> None:
        self._source, self._strides, self._program = source, strides, program
        self._forward: Callable[..., Any] | None = None

    def __call__(self, arguments: list[Any]) -> Sequence[Any]:
        if self._forward is None:
            self._forward = self._made(self._source)
        given = list(arguments)
        arguments.clear()
        # What is an argument, or a view of one, lies as it does.
        kept = {each.untyped_storage()._cdata for each in given if isinstance(each, torch.Tensor)}
        with torch.no_grad():
            results = self._forward(*given)
            return tuple(
                each
                if not isinstance(each, torch.Tensor) or each.untyped_storage()._cdata in kept
                else _laid_out(each, strides)
                for each, strides in zip(results, self._strides, strict=True)
            )

    def _made(self, source: Mapping[str, Any]) -> Callable[..., Any]:
        module = _Module()
        for name, part in source["parts"].items():
            if isinstance(part, dict):
                value: Any = self._made(part)
            elif isinstance(part, tuple):
                text, device = part
                value = torch.load(io.BytesIO(base64.b64decode(text)), weights_only=True).to(device)
            else:
                value = self._program[part]
            object.__setattr__(module, name, value)
        names: dict[str, Any] = {}
        exec(source["code"], names)
        return functools.partial(names["forward"], module)


def _laid_out(result: torch.Tensor, wanted: Strides) -> torch.Tensor:
    """A result that lies in memory as the program's does, on which the next program relies."""
    if wanted is None or result.numel() == 0:
        return result
    strides, is_known = wanted
    if not is_known:
        strides = _dense_strides(result.shape, strides)
    if all(size == 1 or a == b for size, a, b in zip(result.shape, strides, result.stride(), strict=True)):
        return result
    return torch.empty_strided(result.shape, strides, dtype=result.dtype, device=result.device).copy_(result)


def _dense_strides(sizes: Sequence[int], like: Sequence[int]) -> list[int]:
    """Of dimensions that lie in memory in the order of these strides; of equal ones the last is the innermost."""
    strides, step = [0] * len(sizes), 1
    for d in sorted(range(len(sizes)), key=lambda d: (like[d], -d)):
        strides[d] = step
        step *= sizes[d]
    return strides


# ---- random numbers: those that `operations` draws ----


def _words(seed: torch.Tensor, count: int) -> torch.Tensor:
    return philox_words(int(seed.item()), torch.arange(count, device="cpu"))


def drawn_numbers(
    size: Sequence[int], seed: torch.Tensor, mode: str, *, align_dtype: torch.dtype | None = None
) -> torch.Tensor:
    """What `prims.inductor_random` is for kernels: float32, uniform ("rand") or normal ("randn")."""
    first, second, *_ = _words(seed, torch.Size(size).numel()).unbind(1)
    if mode == "rand":
        numbers = (first >> 8).float() * 2.0**-24
    else:
        radius = (-2 * ((first.float() + 1) * 2.0**-32).clamp(max=1).log()).sqrt()
        quarter, within = second >> 30, ((second << 2 & 0xFFFFFFFF) ^ 1 << 31) - (1 << 31)
        angle = within.float() * (torch.pi / 4 / 2**31)
        numbers = radius * torch.where(quarter & 1 != 0, angle.sin(), angle.cos())
        numbers = torch.where(quarter & 2 != 0, -numbers, numbers)
    return numbers.view(size).to(seed.device)


def drawn_integers(low: int, high: int, size: Sequence[int], seed: torch.Tensor) -> torch.Tensor:
    """The same of `prims.inductor_randint`: int64 in [low, high)."""
    span = (high - low) % 2**64
    words = (upper << 32 | lower for upper, lower, *_ in _words(seed, torch.Size(size).numel()).tolist())
    numbers = [low + (word % span if span else word) for word in words]
    return torch.tensor(numbers, dtype=torch.int64, device="cpu").view(size).to(seed.device)


_DRAWN: dict[str, Any] = {
    "prims.inductor_random.default": drawn_numbers,
    "prims.inductor_randint.default": drawn_integers,
}
