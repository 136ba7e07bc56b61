"""Dispatch modes that other threads see nothing of."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _pop_mode, _push_mode

__all__ = ["ThreadMode"]


class ThreadMode(TorchDispatchMode):
    """A mode for the calling thread alone."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @contextmanager
    def active(self) -> Iterator[None]:
        """Where the thread's ops come here. Not `with self`, which sets flags for the whole process besides, by which
        torch.compile would take other threads for being in a mode. Modes that something has left behind in it end with
        it: taking one off would leave this one."""
        before = torch._C._len_torch_dispatch_stack()
        _push_mode(self)
        try:
            yield
        finally:
            while torch._C._len_torch_dispatch_stack() > before:
                _pop_mode()
