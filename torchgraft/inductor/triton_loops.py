"""What the Triton kernels that Inductor generates are decorated with: blocks, grid and launch.

Their text calls these functions by the names of those in torch._inductor.runtime.triton_heuristics.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from torch._inductor.runtime.hints import ReductionHint
from torch._inductor.runtime.triton_heuristics import GridExpr

from torchgraft import backend

__all__ = ["Loops", "persistent_reduction", "pointwise", "reduction"]

# Elements of a block: of loops over elements by their number of dimensions, of the rows and columns of reductions.
_POINTWISE = {1: (1024,), 2: (32, 32), 3: (16, 16, 16)}
_ROW = 1024
_COLUMNS = 64


class Loops:
    """A kernel that goes through a space in blocks: called with its pointers and the space's sizes.

    Args:
        function: Triton's.
        blocks: the constants that say how large a block is.
        meta: what Inductor knows of the kernel, the kind of its grid among it.
    """

    def __init__(self, function: Any, blocks: Mapping[str, int], meta: Mapping[str, Any]) -> None:
        self._function, self._meta = function, dict(meta)
        self._constants: dict[str, Any] = {name: size for name, size in blocks.items() if name in function.arg_names}
        self._options = {"debug": True} if "device_assert" in function.src else {}  # indices are looked at

    def __call__(self, *arguments: Any) -> None:
        sizes = dict(zip(self._function.arg_names, arguments, strict=False))
        grid = GridExpr.from_meta(self._meta, self._constants).eval_slow({**sizes, **self._constants})
        self._function[grid](*arguments, **self._constants, **self._options)


Decorator = Callable[[Any], Loops]


def pointwise(size_hints: Mapping[str, int], **metas: Any) -> Decorator:
    """Of a loop over elements. `size_hints` has powers of two by the names of the dimensions."""
    return _decorator(size_hints, dict(zip(size_hints, _POINTWISE[len(size_hints)], strict=True)), **metas)


def reduction(size_hints: Mapping[str, int], *, reduction_hint: Any = None, **metas: Any) -> Decorator:
    """Of a loop over rows within one over what they give."""
    # What a row has lies apart in an outer one, and rows lie side by side.
    row, columns = (_ROW // _COLUMNS, _COLUMNS) if reduction_hint == ReductionHint.OUTER else (_ROW, 1)
    rows = [name for name in size_hints if name.startswith("r")]
    if len(rows) > 1:
        row = _POINTWISE[len(rows)][0]
    return _decorator(size_hints, {name: row if name in rows else columns for name in size_hints}, **metas)


#: The same with whole rows as blocks, whose size is not a constant that is chosen.
persistent_reduction = reduction


def __getattr__(name: str) -> NoReturn:
    if name.startswith("__"):
        raise AttributeError(name)
    raise NotImplementedError(
        f"the option codegen='triton' of '{backend.name()}' knows no kernels of the kind {name!r}, which options of "
        "torch._inductor.config ask for: leave these as they are"
    )


def _decorator(
    hints: Mapping[str, int],
    blocks: Mapping[str, int],
    *,
    inductor_meta: Mapping[str, Any],
    **_: Any,
) -> Decorator:
    sizes = {f"{name.upper()}BLOCK": min(blocks[name], hints[name]) for name in hints}
    return lambda function: Loops(function, sizes, inductor_meta)
