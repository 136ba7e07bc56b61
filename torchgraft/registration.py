"""Makes a device known to PyTorch: every step in the right order, each checked."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from os import PathLike, fspath
from types import ModuleType
from typing import TypeVar

import torch
from torch.utils import backend_registration

from torchgraft import _C, _backend
from torchgraft.device_module import make_device_module
from torchgraft.driver import Driver

__all__ = ["SharedLibrary", "register"]

# Names that torch's device parser or its compiler give a meaning of their own.
RESERVED_NAMES = set(
    "any cpu cuda fpga hip hpu ideep ipu lazy maia meta mkldnn mps mtia opencl opengl ort privateuse1 privateuseone "
    "tpu ve vulkan xla xpu".split()
)
UNNAMED = "privateuseone"

T = TypeVar("T")

_lock = threading.Lock()
_registered: str | None = None


@dataclass(frozen=True)
class SharedLibrary:
    """A driver in C: a shared library that exports a function which returns its table (see torchgraft/driver.h)."""

    path: str | PathLike[str]
    symbol: str = "torchgraft_driver"


class RegistrationError(RuntimeError):
    """A step of the registration could not be done; the message says which, and what to do."""


def register(
    name: str,
    drivers: Sequence[Driver | SharedLibrary],
    *,
    unsupported_dtype: Sequence[torch.dtype] | None = None,
) -> ModuleType:
    """Registers a backend: afterwards `torch.device(name)` and the module `torch.<name>` work.

    No device is opened here: that happens at the first use.

    Args:
        name: of lower-case letters and underscores. A process can have one backend made this way.
        drivers: instances of `torchgraft.Driver` or shared libraries. Their devices are numbered one after the other.
        unsupported_dtype: types for which no storage method is to be made.

    Returns:
        The module `torch.<name>`.
    """
    global _registered
    with _lock:
        _check_name(name)
        _check_drivers(name, drivers)
        additions = [_step(f"load the driver {each}", partial(_load, each)) for each in drivers]
        # From here on the steps change the process, and none can be undone.
        _registered = name
        _step("add the drivers", lambda: [add() for add in additions])
        _step("name the core's backend", lambda: _C.set_backend_name(name))
        _step("install the runtime", _C.install_runtime)
        _step("install the kernels", _install_kernels)
        module = _step("make the device module", lambda: make_device_module(name))
        _step("rename torch's PrivateUse1", lambda: backend_registration.rename_privateuse1_backend(name))
        _step(
            "generate methods",
            lambda: backend_registration.generate_methods_for_privateuse1_backend(
                for_tensor=True,
                for_module=True,
                for_packed_sequence=True,
                for_storage=True,
                unsupported_dtype=list(unsupported_dtype) if unsupported_dtype else None,
            ),
        )
        _step("register the device module", lambda: torch._register_device_module(name, module))
        return module


def registered_name() -> str | None:
    """The name given to `register`, or None."""
    return _registered


def _step(what: str, action: Callable[[], T]) -> T:
    try:
        return action()
    except Exception as error:
        raise RegistrationError(f'registering a backend failed at the step "{what}": {error}') from error


def _check_name(name: str) -> None:
    if not re.fullmatch("[a-z_]+", name):
        raise ValueError(
            f"{name!r} cannot name a device: torch parses device names of lower-case letters and underscores only, "
            "so choose one like 'foo' or 'my_npu'"
        )
    if name in RESERVED_NAMES:
        raise ValueError(f"{name!r} cannot name a device: torch itself uses this name; choose another")
    if _registered is not None:
        raise RegistrationError(
            f"the backend '{_registered}' is registered already, and a process can have only one: pass all drivers to "
            "that one call of torchgraft.register, or start another process (if torch imported it by itself, "
            "TORCH_DEVICE_BACKEND_AUTOLOAD=0 in the environment prevents that)"
        )
    taken = torch._C._get_privateuse1_backend_name()
    if taken != UNNAMED:
        raise RegistrationError(
            f"another extension has named torch's PrivateUse1 '{taken}' in this process, and that can be done once: "
            "keep one of the two from being imported (TORCH_DEVICE_BACKEND_AUTOLOAD=0 stops those torch imports itself)"
        )
    owners = {"torch": vars(torch), "torch.Tensor": dir(torch.Tensor), "torch.nn.Module": dir(torch.nn.Module)}
    owners |= {
        "torch.UntypedStorage": dir(torch.UntypedStorage),
        "PackedSequence": dir(torch.nn.utils.rnn.PackedSequence),
    }
    for owner, attributes in owners.items():
        if name in attributes:
            raise ValueError(
                f"{name!r} cannot name a device: {owner}.{name} exists, and registering would need that name"
            )


def _check_drivers(name: str, drivers: Sequence[Driver | SharedLibrary]) -> None:
    if not drivers:
        raise ValueError(f"the backend '{name}' needs at least one driver")
    for driver in drivers:
        if not isinstance(driver, Driver | SharedLibrary):
            advice = ": pass an instance, not the class" if isinstance(driver, type) else ""
            raise TypeError(
                f"a driver is a torchgraft.Driver or a torchgraft.SharedLibrary, not {type(driver).__name__}{advice}"
            )


def _load(driver: Driver | SharedLibrary) -> Callable[[], None]:
    """What adds the driver to the core; loading it, which may fail, is done now."""
    if isinstance(driver, Driver):
        return lambda: _C.add_python_driver(driver)
    table = _C.load_driver(fspath(driver.path), driver.symbol)
    return lambda: _C.add_driver(table)


def _install_kernels() -> None:
    """The core's kernels now; the op library, which takes longer, when the device is first used."""
    _C.install_kernels()
    _backend.when_opened(_install_ops)


def _install_ops() -> None:
    from torchgraft import ops

    ops.install()
