"""torchgraft: grafts a device that PyTorch does not know onto it, from outside its tree.

import torchgraft

class MyDriver(torchgraft.Driver): ...

torchgraft.register("foo", [MyDriver()])
torch.ones(3, device="foo")
"""

from __future__ import annotations

import torch

try:
    from torchgraft import _C as _C
except ImportError as error:
    raise ImportError(
        f"torchgraft's C++ core does not load into torch {torch.__version__} ({error}). It is compiled for one minor version of "
        "torch; compile it for this one: pip install --force-reinstall --no-deps --no-build-isolation torchgraft"
    ) from error

from torchgraft.driver import Driver
from torchgraft.registration import RegistrationError, SharedLibrary, register

__version__ = "0.1.0"

__all__ = ["Driver", "RegistrationError", "SharedLibrary", "__version__", "register"]
