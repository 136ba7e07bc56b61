"""What torch's compilers ask of the device in general: whether it is there, its streams, its properties."""

from __future__ import annotations

from typing import Any

import torch
from torch._dynamo.device_interface import DeviceInterface

from torchgraft import device_module
from torchgraft._version import __version__

__all__ = ["Interface", "described_devices"]


class Interface(DeviceInterface):
    """The device's answers.

    `is_gpu` stays False, which is what it is without an answer: for devices that say True Inductor chooses layouts,
    paddings and orders of loops that were measured on CUDA's.
    """

    class Worker:
        """The same; inductor has no workers for this device."""

        current_device = staticmethod(device_module.current_device)
        set_device = staticmethod(device_module.set_device)
        get_device_properties = staticmethod(device_module.get_device_properties)

    Event = torch.Event
    Stream = torch.Stream
    device = device_module.device
    current_device = staticmethod(device_module.current_device)
    set_device = staticmethod(device_module.set_device)
    device_count = staticmethod(device_module.device_count)
    is_available = staticmethod(device_module.is_available)
    synchronize = staticmethod(device_module.synchronize)
    get_device_properties = staticmethod(device_module.get_device_properties)

    @classmethod
    def get_cache_system_info(cls) -> dict[str, object]:
        """What the keys of generated code depend on, as JSON has it; asked from torch 2.15 on."""
        return {"torchgraft": __version__, "devices": [list(each) for each in described_devices()]}

    @staticmethod
    def get_compute_capability(device: Any = None) -> str:
        return ""

    @staticmethod
    def is_bf16_supported(including_emulation: bool = False) -> bool:
        return True

    @staticmethod
    def is_triton_capable(device: Any = None) -> bool:
        """Whether Triton launches its kernels on the devices, which have a compiler for them."""
        try:
            from triton.runtime import driver

            from torchgraft_triton.driver import Driver
        except ImportError:
            return False
        try:
            active = driver.active
        except RuntimeError:  # there is none, or several
            return False
        index = device_module.current_device()
        return isinstance(active, Driver) and bool(device_module.get_device_properties(index).has_compiler)


def described_devices() -> list[tuple[str, str, str, str]]:
    """Of each device what decides which code is generated for it: its name, driver, kind and dialect."""
    found = (device_module.get_device_properties(index) for index in range(device_module.device_count()))
    return [(each.name, each.driver_version, each.kind, each.dialect) for each in found]
