"""Collectives: a backend of `torch.distributed` for the device and for the CPU, over torch's own gloo.

`init_process_group()` without a name takes it for the device's tensors and gloo for those of the CPU; by its name,
"graft", it has both. See csrc/distributed/backend.h for how it works.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch.distributed

from torchgraft._core import _C, minor
from torchgraft._version import __version__

__all__ = ["NAME", "alone", "install", "traffic"]

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


def traffic() -> dict[str, int]:
    """What the groups of this process have done so far: `calls`, those of them that were `queued` behind the device's
    work, and the `copies` and `copied_bytes` that it took to bring tensors to the host's memory and back."""
    return _C.distributed_traffic()


def alone() -> Any:
    """A group of this process only, which torch.distributed does not know of: to try whether there can be groups."""
    from torch._C._distributed_c10d import HashStore

    return _make(HashStore(), 0, 1, timedelta(seconds=30))


def _make(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    from torch._C._distributed_c10d import PrefixStore

    # A group that is made anew under the same name, in a store that remembers, finds nothing of the one before. What
    # was not made does not count: some ranks may have tried more often than others.
    made = f"made/{rank}"
    own = PrefixStore(str(store.add(made, 0)), store)
    try:
        _compare_versions(own, rank, size)
    except RuntimeError:
        _forget_versions(own, rank, size)
        raise
    inner = torch.distributed.ProcessGroupGloo(own, rank, size, timeout=timeout)
    if minor(torch.__version__) < (2, 14):  # where a group begins to count with its first collective
        inner._set_sequence_number_for_group()
    group = _C.distributed_backend(inner, own, NAME)
    store.add(made, 1)
    return group


def _forget_versions(store: Any, rank: int, size: int) -> None:
    """What this rank has said, and with the first all that came of it: other processes may say something else."""
    rest = ["versions", *(f"versions/read/{other}" for other in range(size))] if rank == 0 else []
    with suppress(torch.distributed.DistError):  # the store may have ended
        for key in (f"versions/{rank}", *rest):
            store.delete_key(key)


def _compare_versions(store: Any, rank: int, size: int) -> None:
    """Ranks of other releases may speak otherwise: then every rank says so, in place of waiting for the others.

    Raises:
        RuntimeError: naming the ranks and their versions.
    """
    if size == 1:
        return
    store.set(f"versions/{rank}", f"torch {torch.__version__.split('+')[0]}, torchgraft {__version__}")
    if rank == 0:
        versions = [_said(store, f"versions/{other}", other) for other in range(size)]
        others = [f"rank {k} has {version}" for k, version in enumerate(versions) if version != versions[0]]
        verdict = "" if not others else f"rank 0 has {versions[0]}, but {', '.join(others[:8])}"
        store.set("versions", f"verdict: {verdict}")
    verdict = _said(store, "versions", 0).removeprefix("verdict: ")
    if verdict:
        store.set(f"versions/read/{rank}", "")
        if rank == 0:  # which may have the store: it stays until the others have read, for a while
            with suppress(torch.distributed.DistError):
                store.wait([f"versions/read/{other}" for other in range(size)], timedelta(seconds=10))
        raise RuntimeError(f"{NAME}: the processes of a group need the same versions: {verdict}")


def _said(store: Any, key: str, rank: int) -> str:
    try:
        return str(store.get(key).decode())
    except torch.distributed.DistError as error:  # after the store's timeout
        raise torch.distributed.DistStoreError(
            f"{NAME}: rank {rank} has not come to make the group: {error}"
        ) from error
