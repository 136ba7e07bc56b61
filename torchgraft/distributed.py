"""Collectives: a backend of `torch.distributed` for the device and for the CPU, over torch's own gloo.

`init_process_group()` without a name takes it for the device's tensors and gloo for those of the CPU; by its name,
"graft", it has both. See csrc/distributed/backend.h for how it works.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed

from torchgraft import _C
from torchgraft._core import minor

__all__ = ["NAME", "install"]

NAME = "graft"
"""Of the backend, in `torch.distributed.init_process_group`."""


def install(device: str) -> None:
    """Makes the backend known to torch.distributed, for a device's tensors and the CPU's; nothing where torch has no
    collectives."""
    if torch.distributed.is_available() and torch.distributed.is_gloo_available():
        torch.distributed.Backend.register_backend(NAME, _make, devices=["cpu", device])


def is_installed() -> bool:
    """Whether torch.distributed knows it, or has no use for it."""
    if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
        return True
    return NAME.upper() in torch.distributed.Backend._plugins


def _make(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    inner = torch.distributed.ProcessGroupGloo(store, rank, size, timeout=timeout)
    if minor(torch.__version__) < (2, 14):  # where a group begins to count with its first collective
        inner._set_sequence_number_for_group()
    return _C.distributed_backend(inner, NAME)
