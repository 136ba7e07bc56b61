"""Options of the device for one compilation, as torch has its own in `torch._inductor.config`.

From torch 2.15 on `torch.compile(model, options={"ocl.record": False})` sets them by the device's name; every version
takes `torchgraft.inductor.options.patch(record=False)` as a context or decorator around the call that compiles. They
are part of the key by which generated programs are kept.
"""

import sys
from typing import Any

from torch.utils._config_module import install_config_module

from torchgraft import backend
from torchgraft.plans import device

__all__ = ["by_triton", "codegen", "form", "kernel_form", "record"]

#: Whether programs are recorded, and run from then on without Python.
record: bool = True
#: "cpu" or "gpu": the form of generated kernels, instead of that of all kernels of the device.
kernel_form: str = ""
#: "triton" has Inductor generate Triton's kernels, as it does for torch's own devices, instead of the device's.
codegen: str = ""


def by_triton() -> bool:
    """Whether kernels are Triton's.

    Raises:
        ValueError: the option `codegen` has another value than that.
        NotImplementedError: Triton is not there, or not for the devices.
    """
    options: Any = sys.modules[__name__]
    chosen: str = options.codegen
    if chosen not in ("", "triton"):
        raise ValueError(f"the option codegen is 'triton', or not given; it is not {chosen!r}")
    if not chosen:
        return False
    from torchgraft.inductor.interface import Interface

    if not Interface.is_triton_capable():
        raise NotImplementedError(
            f"the option codegen='triton' needs Triton (pip install 'torchgraft[triton]'), a kernel compiler of "
            f"'{backend.name()}', and that Triton's driver is that of the device (docs/triton.md, Devices)"
        )
    return True


def form(index: int) -> str:
    """The form of the kernels that are generated for a device, by its index.

    Raises:
        ValueError: the option has another value than those two.
    """
    options: Any = sys.modules[__name__]  # whose variables are not globals any more
    chosen: str = options.kernel_form
    if chosen not in ("", "cpu", "gpu"):
        raise ValueError(f"the option kernel_form is 'cpu' or 'gpu', not {chosen!r}")
    return chosen or device.kernel_form(index)


install_config_module(sys.modules[__name__])
