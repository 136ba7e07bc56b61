"""Functions that torch.compile is to leave alone."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar

import torch

__all__ = ["untraced"]

_Function = TypeVar("_Function", bound=Callable[..., Any])


def untraced(function: _Function) -> _Function:
    """Has torch.compile run a function, and all that it calls, as it is.

    What runs below the dispatcher in a frame of the program that is not traced would be traced in its place. This is
    `torch._dynamo.disable` without the seconds that importing torch._dynamo takes, and without a frame of its own.
    """
    if isinstance(function, FunctionType):
        tracer = torch._C._dynamo.eval_frame
        skip = tracer._FrameAction.SKIP
        tracer.set_code_exec_strategy(function.__code__, tracer._FrameExecStrategy(skip, skip))
    return function
