"""PyTorch on OpenCL: importing this makes `torch.device("ocl")` and `torch.ocl` work.

`import torch` imports it by itself, except beside a CUDA or ROCm device: torch has room for one accelerator, and yours
should not change because a package was installed. There, `import torchgraft_opencl` chooses OpenCL.

Nothing is opened at import: the OpenCL library is loaded at the device's first use. Where there is none,
`torch.ocl.is_available()` is False and using the device says what to install.
"""

# torch calls `autoload` while it is imported, perhaps by this file's last lines: nothing above them imports torch.
from __future__ import annotations

from pathlib import Path
from types import ModuleType

__version__ = "0.1.0"

__all__ = ["NAME", "__version__", "autoload", "driver_library", "register"]

NAME = "ocl"

_module: ModuleType | None = None
_error: Exception | None = None


def driver_library() -> Path:
    """The OpenCL driver: a shared library with the C interface of torchgraft/driver.h."""
    return Path(__file__).with_name("libtorchgraft_opencl.so")


def register() -> ModuleType:
    """Registers the device and returns `torch.ocl`.

    Importing this package has called it already; calling it again shows what went wrong then.
    """
    global _module
    if _module is None:
        from torchgraft.registration import SharedLibrary
        from torchgraft.registration import register as register_backend
        from torchgraft_opencl.implementations import offer_to

        _module = register_backend(NAME, [SharedLibrary(driver_library())])
        offer_to(driver_library())
    return _module


def autoload() -> None:
    """What `import torch` calls, by the entry point. No exception leaves it: that would make torch itself unusable."""
    if not _has_other_accelerator():
        _register_quietly()


def _has_other_accelerator() -> bool:
    """Whether torch was built for an accelerator that this machine seems to have; looked up without opening it."""
    import torch

    cuda = torch.version.cuda is not None and Path("/dev/nvidiactl").exists()
    return cuda or (torch.version.hip is not None and Path("/dev/kfd").exists())


def _register_quietly() -> None:
    """Registers; an error is kept for the device's first use."""
    global _error
    if _module is not None or _error is not None:
        return
    try:
        register()
    except Exception as error:
        _error = error
        _explain_at_first_use(error)


def _explain_at_first_use(error: Exception) -> None:
    """Without the toolkit there is no device, but its name should still lead to the reason, not to "no such device"."""
    import torch
    from torch.utils.backend_registration import rename_privateuse1_backend

    if torch._C._get_privateuse1_backend_name() != "privateuseone":
        return  # another backend has the place

    def refuse() -> None:
        raise RuntimeError(f"The device '{NAME}' cannot be used: {error}") from error

    module = ModuleType(f"torch.{NAME}", f"Not usable: {error}")
    module.__dict__.update(
        is_available=lambda: False, device_count=lambda: 0, _lazy_init=refuse, _is_in_bad_fork=lambda: True
    )
    rename_privateuse1_backend(NAME)
    torch._register_device_module(NAME, module)


import torch as _torch  # noqa: E402, F401  # calls autoload(), unless that is switched off

_register_quietly()
