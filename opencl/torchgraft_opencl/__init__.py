"""PyTorch on OpenCL: importing this makes `torch.device("ocl")` and `torch.ocl` work.

`import torch` finds the device by itself, except beside another accelerator that torch was built for: torch has room
for one, and yours should not change because a package was installed. There, `import torchgraft_opencl` chooses OpenCL.

Nothing is opened at import: the OpenCL library is loaded at the device's first use. Where there is none,
`torch.ocl.is_available()` is False and using the device says what to install.
"""

from __future__ import annotations

from types import ModuleType

from torchgraft._version import __version__  # they are released together, each for just the other
from torchgraft.autoload import choose, outcome
from torchgraft_opencl.driver import driver_library

__all__ = ["NAME", "__version__", "driver_library", "register"]

NAME = "ocl"


def register() -> ModuleType:
    """Returns `torch.ocl`. Importing this package has registered it; this shows what went wrong then.

    Raises:
        RuntimeError, ImportError: why the device could not be registered.
    """
    return outcome(NAME)


choose(NAME, "torchgraft_opencl.driver:driver")
