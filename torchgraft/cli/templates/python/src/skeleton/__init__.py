"""PyTorch on skeleton devices: `torch.device("skeleton")` and `torch.skeleton`.

`import torch` finds the device by itself, by the entry points in pyproject.toml, unless
TORCH_DEVICE_BACKEND_AUTOLOAD=0 forbids it. Importing this package asks for the device whatever else is there.

A process has room for one such backend. Where several are installed, TORCHGRAFT_BACKEND=skeleton
chooses this one; what comes second says why it cannot be used.
"""

from __future__ import annotations

from types import ModuleType

from torchgraft.autoload import choose, outcome

__version__ = "0.1.0"

__all__ = ["NAME", "__version__", "register"]

NAME = "skeleton"


def register() -> ModuleType:
    """Returns `torch.skeleton`. Importing this package has registered it; this shows what went wrong then.

    Raises:
        RuntimeError, ImportError: why the device could not be registered.
    """
    return outcome(NAME)


choose(NAME, "skeleton.driver:driver")
