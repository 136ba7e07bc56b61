"""Programs that have a model's parameters as constants, which many compilers make more of.

Such a program is right as long as the parameters are what they were: each call looks whether their memory and the count
of writes to them are the same, and has the program made anew if not. Writes by `Tensor.data` are not counted by torch,
and so not seen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from torchgraft.compiler.replay import Program

__all__ = ["with_constants"]

# How often a program is made anew before the parameters are arguments: that of a model that is being trained.
_MOST = 4


def with_constants(make: Callable[..., Program], static: Sequence[int], most: int = _MOST) -> Program:
    """What is called in place of a graph.

    Args:
        make: makes it, given `constants`: arguments by their numbers.
        static: which arguments are parameters and buffers.
    """
    held = _Constants(make, static, most)

    def run(arguments: list[Any]) -> Sequence[Any]:
        return held.program(arguments)(arguments)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


class _Constants:
    def __init__(self, make: Callable[..., Program], static: Sequence[int], most: int) -> None:
        self._make, self._static, self._most = make, static, most
        self._state: tuple[Any, ...] | None = None
        self._program: Program | None = None

    def program(self, arguments: Sequence[Any]) -> Program:
        """The program for arguments."""
        given = {number: arguments[number] for number in self._static if _may_be_constant(arguments[number])}
        state = tuple((number, tensor.data_ptr(), tensor._version) for number, tensor in given.items())
        if self._program is None or state != self._state:
            constants: Mapping[int, torch.Tensor] = given if self._most > 0 else {}
            self._program, self._most = self._make(constants=constants), self._most - 1
            self._state, self._static = state, list(constants)
        return self._program


def _may_be_constant(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not value.is_inference() and value.layout == torch.strided
