"""The driver: what the entry point of the group "torchgraft.drivers" refers to."""

from __future__ import annotations

from pathlib import Path

from torchgraft.driver import SharedLibrary
from torchgraft_opencl.implementations import offer_to

__all__ = ["driver", "driver_library"]


def driver_library() -> Path:
    """The OpenCL driver: a shared library with the C interface of torchgraft/driver.h."""
    return Path(__file__).with_name("libtorchgraft_opencl.so")


def driver() -> SharedLibrary:
    """The driver, told of the OpenCL implementations that came as Python packages."""
    offer_to(driver_library())
    return SharedLibrary(driver_library())
