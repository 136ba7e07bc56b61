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

if TYPE_CHECKING:
    from torchgraft import autocast, autograd, driver, ops, plans, serialization
    from torchgraft.codegen.dialect import Dialect
    from torchgraft.codegen.dialects import register_dialect
    from torchgraft.compiler import compile_report
    from torchgraft.driver import Driver, SharedLibrary
    from torchgraft.fallback import fallback, fallback_report, reset_fallback_report
    from torchgraft.library import load_library
    from torchgraft.raw_kernel import host_view, kernel
    from torchgraft.registration.installed import installed_drivers
    from torchgraft.registration.register import RegistrationError, register

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

# Names with the module that has them, and modules. What is needed to add ops has to import parts of torch that are
# slow, so it waits until it is wanted.
_EARLY = {
    "Driver": "driver",
    "RegistrationError": "registration.register",
    "SharedLibrary": "driver",
    "driver": "",
    "fallback": "fallback",
    "fallback_report": "fallback",
    "installed_drivers": "registration.installed",
    "register": "registration.register",
    "reset_fallback_report": "fallback",
}
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

_core_error: ImportError | None = None


def __getattr__(name: str) -> Any:
    if _core_error is not None and name in __all__:
        _core.explain_missing(_core_error)
    if name in _EARLY:
        bind_names()
        return globals()[name]
    if name in _LATE:
        return _found(name, _LATE[name])
    raise AttributeError(f"module 'torchgraft' has no attribute {name!r}")


def bind_names() -> None:
    """Imports the core and binds the names that are wanted always.

    `import torch`, below, may load the drivers of an installed package while this module is half done; their modules
    import names from here, too, so that whoever comes first calls this.
    """
    importlib.import_module("torchgraft._C")
    found = {name: _found(name, module) for name, module in _EARLY.items()}
    globals().update(found)  # all at the end: importing the module `fallback` has put that in the place of the class


def _found(name: str, module: str) -> Any:
    imported = importlib.import_module(f"torchgraft.{module or name}")
    return getattr(imported, name) if module else imported


try:
    _core.choose(__path__)
    import torch as torch  # before the core, which needs its libraries

    from torchgraft import _C as _C
except ImportError as error:
    # The package can still be imported, so that `torchgraft doctor` can say what is wrong; using it says so too.
    _core_error = error
    if isinstance(error, _core.UnfitTorchError):
        warnings.warn(str(error), stacklevel=2)
else:
    bind_names()
