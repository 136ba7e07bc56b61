"""How a library's function is put in order, and what several of them ask and need."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import torch

from torchgraft import backend

__all__ = ["PATCHES", "after", "is_ours", "keep_random_numbers", "module", "only_device", "rather_than_cpu"]

Patch = Callable[[Any], None]

#: The functions, with the modules they are called with.
PATCHES: dict[Patch, tuple[str, ...]] = {}


def after(*modules: str) -> Callable[[Patch], Patch]:
    """Has a function called with each of the modules."""

    def decorate(patch: Patch) -> Patch:
        PATCHES[patch] = modules
        return patch

    return decorate


def only_device() -> torch.device | None:
    """This thread's current device, if this backend is the only accelerator that can be used. Opens nothing."""
    others = (torch.cuda.is_available, torch.xpu.is_available, torch.backends.mps.is_available)
    if not module().is_available() or any(is_available() for is_available in others):
        return None
    index = torch._C._accelerator_getDeviceIndex() if backend.is_opened() else 0
    return torch.device(backend.name(), index)


def rather_than_cpu(device: torch.device) -> torch.device:
    """What a library is to use that has looked for all accelerators that it knows."""
    return (only_device() or device) if device.type == "cpu" else device


def is_ours(device: Any) -> bool:
    """Whether it is one of the backend's."""
    return isinstance(device, torch.device) and device.type == backend.name()


def module() -> Any:
    """`torch.<name>`."""
    return getattr(torch, backend.name())


def keep_random_numbers(owner: Any, name: str, folder: str) -> None:
    """Has a function that saves or loads a checkpoint do so with the states of our generators.

    Args:
        folder: its parameter with the checkpoint's folder.
    """
    plain = getattr(owner, name)
    signature = inspect.signature(plain)
    exchange = _load_random_numbers if "load" in name else _save_random_numbers

    @wraps(plain)
    def with_random_numbers(*arguments: Any, **options: Any) -> Any:
        given = signature.bind(*arguments, **options).arguments[folder]
        result = plain(*arguments, **options)
        if given is not None and backend.is_opened():
            exchange(Path(given) / f"{backend.name()}_random_states_{os.environ.get('RANK', '0')}.pt")
        return result

    setattr(owner, name, with_random_numbers)


def _save_random_numbers(file: Path) -> None:
    torch.save(module().get_rng_state_all(), file)


def _load_random_numbers(file: Path) -> None:
    if file.is_file():
        module().set_rng_state_all(torch.load(file, weights_only=True))
