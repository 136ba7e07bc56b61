"""Whether this torch's Inductor is one that the generators can be used with, and the error where it is not."""

from __future__ import annotations

import functools
import warnings
from typing import NoReturn

import torch

from torchgraft import backend
from torchgraft._core import _C, minor

__all__ = ["VERSIONS", "check_compiler", "refuse", "why_unfit"]

#: The versions of torch whose inductor the generators are tested with.
VERSIONS = ((2, 13), (2, 14), (2, 15))


@functools.cache
def why_unfit() -> str:
    """Why the generators cannot be used with this torch, or an empty string. Of a torch newer than those that they are
    tested with it warns that it is one."""
    if minor(torch.__version__) in VERSIONS:
        return ""
    from torchgraft.inductor.seam import broken

    tested = ", ".join(f"{major}.{minor_}" for major, minor_ in VERSIONS)
    if found := broken():
        others = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        return f"that is made for torch {tested}, and torch {torch.__version__} has changed: {found[0]}{others}"
    warnings.warn(
        f"torch.compile for '{backend.name()}' is tested with torch {tested}. All that it uses of torch "
        f"{torch.__version__} is as it was there, so it is used; if something goes wrong, compare with {_ANYWAY}.",
        stacklevel=2,
    )
    return ""


_ANYWAY = 'torch.compile(model, backend="graft")'


def refuse(why: str) -> NoReturn:
    """Raises the error that says why there is no code, and what works.

    Raises:
        NotImplementedError: always.
    """
    name = backend.name()
    raise NotImplementedError(
        f"inductor, the default backend of torch.compile, generates no code for device '{name}': {why}. What works is "
        f"{_ANYWAY}, which needs nothing of inductor: whole graphs, forward and backward, recorded and replayed; or "
        'backend="aot_eager", backend="eager", or the model without torch.compile'
    )


def check_compiler(device: torch.device) -> None:
    """Raises:
    NotImplementedError: the device has none.
    """
    backend.open_devices()
    index = device.index if device.index is not None else 0
    if index < _C.device_count() and not _C.device_properties(index)["has_compiler"]:
        refuse(f"{device} has no kernel compiler")
