"""A driver written in Python on NumPy arrays in host memory, without a compiler: the smallest device that is real.

Its work is done when a call returns, so that streams and events need nothing.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy

from torchgraft.driver import Capability, CopyKind, DeviceKind, DeviceProperties, Driver, InvalidArgument

ALIGNMENT = 64


class NumpyDriver(Driver):
    """Devices of a fixed size each; their memory is bytes of NumPy arrays."""

    name = "numpy"

    def __init__(self, devices: int = 2, memory: int = 1 << 30, unified: bool = False) -> None:
        self.devices = devices
        self.memory = memory
        self.capabilities = Capability.EVENT_TIMING | (Capability.UNIFIED_MEMORY if unified else Capability.NONE)
        self.allocations: list[dict[int, numpy.ndarray[Any, Any]]] = []

    def device_count(self) -> int:
        self.allocations = [{} for _ in range(self.devices)]
        return self.devices

    def device_properties(self, device: int) -> DeviceProperties:
        if device not in range(self.devices):
            raise InvalidArgument(f"there is no device {device}, the driver has {self.devices}")
        return DeviceProperties(
            name=f"NumPy {numpy.__version__}",
            vendor="NumPy",
            kind=DeviceKind.CPU,
            capabilities=self.capabilities,
            total_memory=self.memory,
            address_align=ALIGNMENT,
            driver_version=numpy.__version__,
        )

    def memory_info(self, device: int) -> tuple[int, int]:
        # A copy of the values, since other threads allocate too.
        used = sum(each.size - ALIGNMENT for each in list(self.allocations[device].values()))
        return self.memory - used, self.memory

    def allocate(self, device: int, nbytes: int) -> int:
        if nbytes > self.memory_info(device)[0]:
            raise MemoryError(f"{nbytes} bytes are more than the device has left")
        array = numpy.empty(nbytes + ALIGNMENT, numpy.uint8)
        address = -(-array.ctypes.data // ALIGNMENT) * ALIGNMENT
        self.allocations[device][address] = array  # keeps the memory alive
        return address

    def deallocate(self, device: int, address: int) -> None:
        if address not in self.allocations[device]:
            raise InvalidArgument(f"{address:#x} was not allocated on device {device}")
        del self.allocations[device][address]

    def copy(
        self, device: int, stream: Any, destination: int, source: int, nbytes: int, kind: CopyKind | int, blocking: bool
    ) -> None:
        as_bytes(destination, nbytes)[:] = as_bytes(source, nbytes)

    def fill(self, device: int, stream: Any, destination: int, pattern: bytes, nbytes: int) -> None:
        repeated = as_bytes(destination, nbytes).reshape(-1, len(pattern))
        repeated[:] = numpy.frombuffer(pattern, numpy.uint8)


def as_bytes(address: int, nbytes: int) -> numpy.ndarray[Any, Any]:
    """The memory at an address as an array of bytes."""
    return numpy.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))
