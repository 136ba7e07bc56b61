"""The one backend of this process: its name, whether its devices are open, and how a device is named in arguments."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeAlias

import torch

from torchgraft._core import _C

DeviceLike: TypeAlias = torch.device | str | int | None

#: Path and symbol of each driver that is a shared library.
libraries: list[tuple[str, str]] = []

_lock = threading.RLock()
_opened = False
_opening = False
_waiting: list[Callable[[], None]] = []


def name() -> str:
    """The name torch knows the backend by; "privateuseone" before registration."""
    return str(torch._C._get_privateuse1_backend_name())


def is_opened() -> bool:
    """Whether devices have been opened in this process (not merely in its parent)."""
    return _opened and not _C.in_bad_fork()


def open_devices() -> None:
    """Opens the devices at their first use; torch itself calls this before it makes a tensor.

    Importing and registering never come here, so a program that does not use the device never pays for it.
    """
    global _opened, _opening
    if is_opened():
        return
    _C.raise_if_forked()
    with _lock:
        if _opened or _opening:  # by another thread while this one waited; or what opening does calls back here
            return
        if _C.device_count() == 0:
            raise RuntimeError(f"No device '{name()}' is available: {_C.device_errors() or 'its driver found none'}")
        _opening = True
        try:
            while _waiting:
                _waiting[0]()  # one that fails stays, to fail again at the next use
                del _waiting[0]
            _opened = True
        finally:
            _opening = False


def when_opened(call: Callable[[], None]) -> None:
    """Calls now if the devices are open, otherwise as soon as they are."""
    with _lock:
        if not _opened:
            _waiting.append(call)
        else:
            call()


def named_index(device: DeviceLike) -> int | None:
    """The number that a device is given with, which may be negative; None where there is none to be read.

    Raises:
        ValueError: it is another backend's device.
        RuntimeError: a string that names no device.
        TypeError: it is not a device at all.
    """
    if device is None:
        return None
    if isinstance(device, int):
        return int(device)
    device = torch.device(device)
    if device.type != name():
        raise ValueError(f"Expected a '{name()}' device, but got: {device}")
    index: int | None = device.index
    return index


def device_index(device: DeviceLike = None) -> int:
    """The number of a device given in any usual way.

    It is the current device for None, a name without number and, as in torch.cuda, a negative number.
    """
    index = named_index(device)
    if index is None or index < 0:
        open_devices()
        return torch._C._accelerator_getDeviceIndex()
    return index
