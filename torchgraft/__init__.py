"""torchgraft: grafts a device that PyTorch does not know onto it, from outside its tree.

import torchgraft

class MyDriver(torchgraft.Driver): ...

torchgraft.register("foo", [MyDriver()])
torch.ones(3, device="foo")
"""

from __future__ import annotations

import importlib
import warnings
from typing import TYPE_CHECKING, Any

from torchgraft import _core
from torchgraft._version import __version__

_core_error: ImportError | None = None
try:
    _core.choose(__path__)
    import torch as torch  # before the core, which needs its libraries

    from torchgraft import _C as _C
except ImportError as error:
    # The package can still be imported, so that `torchgraft doctor` can say what is wrong; using it says so too.
    _core_error = error
    if isinstance(error, _core.UnfitTorchError):
        warnings.warn(str(error), stacklevel=2)

if TYPE_CHECKING or _core_error is None:
    from torchgraft import driver
    from torchgraft.driver import Driver, SharedLibrary
    from torchgraft.fallback import fallback, fallback_report, reset_fallback_report
    from torchgraft.registration.installed import installed_drivers
    from torchgraft.registration.register import RegistrationError, register

if TYPE_CHECKING:
    from torchgraft import autocast, autograd, ops, plans, serialization
    from torchgraft.codegen.dialect import Dialect
    from torchgraft.codegen.dialects import register_dialect
    from torchgraft.compiler import compile_report
    from torchgraft.library import load_library
    from torchgraft.raw_kernel import host_view, kernel

__all__ = [
    "Dialect",
    "Driver",
    "RegistrationError",
    "SharedLibrary",
    "__version__",
    "autocast",
    "autograd",
    "compile_report",
    "driver",
    "fallback",
    "fallback_report",
    "host_view",
    "installed_drivers",
    "kernel",
    "load_library",
    "ops",
    "plans",
    "register",
    "register_dialect",
    "reset_fallback_report",
    "serialization",
]

# What is needed to add ops has to import parts of torch that are slow, so it waits until it is wanted: modules, and
# names with the module that has them.
_LATE = {
    "Dialect": "codegen.dialect",
    "autocast": "",
    "autograd": "",
    "compile_report": "compiler",
    "host_view": "raw_kernel",
    "kernel": "raw_kernel",
    "load_library": "library",
    "ops": "",
    "plans": "",
    "register_dialect": "codegen.dialects",
    "serialization": "",
}


def __getattr__(name: str) -> Any:
    if _core_error is not None and name in __all__:
        _core.explain_missing(_core_error)
    if name in _LATE:
        module = importlib.import_module(f"torchgraft.{_LATE[name] or name}")
        return getattr(module, name) if _LATE[name] else module
    raise AttributeError(f"module 'torchgraft' has no attribute {name!r}")
