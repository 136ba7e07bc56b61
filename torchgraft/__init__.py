"""torchgraft: grafts a device that PyTorch does not know onto it, from outside its tree.

import torchgraft

class MyDriver(torchgraft.Driver): ...

torchgraft.register("foo", [MyDriver()])
torch.ones(3, device="foo")
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

import torch

try:
    from torchgraft import _C as _C
except ImportError as error:
    raise ImportError(
        f"torchgraft's C++ core does not load into torch {torch.__version__} ({error}). It is compiled for one minor "
        "version of torch; compile it for this one: "
        "pip install --force-reinstall --no-deps --no-build-isolation torchgraft"
    ) from error

from torchgraft import driver
from torchgraft.driver import Driver
from torchgraft.fallback import fallback, fallback_report, reset_fallback_report
from torchgraft.registration import RegistrationError, SharedLibrary, register

if TYPE_CHECKING:
    from torchgraft import plans

__version__ = "0.1.0"

__all__ = [
    "Driver",
    "RegistrationError",
    "SharedLibrary",
    "__version__",
    "driver",
    "fallback",
    "fallback_report",
    "plans",
    "register",
    "reset_fallback_report",
]


def __getattr__(name: str) -> ModuleType:
    # Making plans needs parts of torch that are slow to import, so they wait until they are wanted.
    if name == "plans":
        return importlib.import_module("torchgraft.plans")
    raise AttributeError(f"module 'torchgraft' has no attribute {name!r}")
