"""Tensors of the backend in queues, pipes and arguments of other processes.

`torch.multiprocessing` shares the memory of CPU and CUDA tensors; that of other devices it cannot. Here such a tensor
travels as a copy in shared host memory, and arrives on the device of the same name. So, other than with the CPU,
sender and receiver do not see each other's changes. Tensors that share a storage and are sent together still share
one when they arrive.

Nothing has to be called: registering a backend teaches `multiprocessing` about it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from multiprocessing import context
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch.multiprocessing import reductions

from torchgraft import backend
from torchgraft._core import _C

__all__ = ["install"]

Reduced = tuple[Callable[..., Any], tuple[Any, ...]]

# A process that is being started gets file descriptors of shared memory, which must be open until it runs, and nobody
# else keeps our copies until then.
_staged_for_starts: weakref.WeakKeyDictionary[Any, list[torch.UntypedStorage]] = weakref.WeakKeyDictionary()


def install() -> None:
    """Registers the reducers below; PyTorch's own go on serving all other devices."""
    ForkingPickler.register(torch.UntypedStorage, _reduce_storage)
    for kind in (torch.Tensor, torch.nn.Parameter):
        ForkingPickler.register(kind, _reduce_tensor)


def _reduce_tensor(tensor: torch.Tensor) -> Reduced:
    """PyTorch's way, which comes to `_reduce_storage`, and in addition what it forgets: the tensor's metadata."""
    reduced: Reduced = reductions.reduce_tensor(tensor)
    if tensor.device.type == backend.name() and tensor.layout == torch.strided:
        metadata = torch._utils.get_tensor_metadata(tensor)
        if metadata:
            return _rebuild_with_metadata, (*reduced, metadata)
    return reduced


def _rebuild_with_metadata(
    rebuild: Callable[..., torch.Tensor], arguments: tuple[Any, ...], metadata: dict[str, bool]
) -> torch.Tensor:
    tensor = rebuild(*arguments)
    torch._utils.set_tensor_metadata(tensor, metadata)
    return tensor


def _reduce_storage(storage: torch.UntypedStorage) -> Reduced:
    if storage.device.type != backend.name():
        reduced: Reduced = reductions.reduce_storage(storage)
        return reduced
    # A queue pickles in a thread of its own, whose current stream is not the one that the work was submitted to.
    _C.synchronize(storage.device.index)
    staged = _stage(storage)
    starting = context.get_spawning_popen()
    if starting is not None:
        _staged_for_starts.setdefault(starting, []).append(staged)
    return _rebuild_storage, (staged, backend.name(), storage.device.index)


def _stage(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    """A copy in shared host memory (which cannot be empty)."""
    size = storage.nbytes()
    host = torch.UntypedStorage._new_shared(size) if size else torch.UntypedStorage(0)
    host.copy_(storage)
    return host


def _rebuild_storage(staged: torch.UntypedStorage, name: str, index: int) -> torch.UntypedStorage:
    if backend.name() != name:
        raise RuntimeError(
            f"a tensor on device '{name}:{index}' was sent to a process without the backend '{name}': register it "
            "there too, by importing its package where the process's main module or the function's module begins, or "
            "send tensor.cpu()"
        )
    storage: torch.UntypedStorage = staged.to(device=torch.device(name, index))
    return storage
