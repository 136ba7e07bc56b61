"""Dispatch modes that other threads see nothing of."""

from __future__ import annotations

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _push_mode

__all__ = ["ThreadMode"]


class ThreadMode(TorchDispatchMode):
    """A mode for the calling thread alone."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def active(self) -> _Active:
        """Where the thread's ops come here. Not `with self`, which sets flags for the whole process besides, by which
        torch.compile would take other threads for being in a mode. Modes that something has left behind in it end with
        it: taking one off would leave this one."""
        return _Active(self)


class _Active:
    """No generator, and the end asks C++ directly: close to the limit of recursion the beginning must be the first to
    fail, for it needs the deeper stack. An end that fails would leave the mode, and all that the thread calls from then
    on would be planned and not run."""

    def __init__(self, mode: ThreadMode) -> None:
        self._mode, self._before = mode, 0

    def __enter__(self) -> None:
        self._before = torch._C._len_torch_dispatch_stack()
        _push_mode(self._mode)

    def __exit__(self, *_: object) -> None:
        while torch._C._len_torch_dispatch_stack() > self._before:
            torch._C._pop_torch_dispatch_stack(None)
