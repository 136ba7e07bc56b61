"""What planners may know of the device that a plan is for."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass

from torchgraft import _C


@dataclass(frozen=True)
class DeviceTraits:
    """What planners may want to know of the device."""

    index: int
    name: str
    kind: str
    compute_units: int
    local_memory: int
    max_work_group_size: int
    simd_width: int  # float32 elements of a vector register, a power of two
    float64: bool
    has_compiler: bool


@functools.cache
def device_traits(index: int) -> DeviceTraits:
    """The traits of a device of the backend."""
    p = _C.device_properties(index)
    capabilities = int(p["capabilities"])
    return DeviceTraits(
        index=index,
        name=str(p["name"]),
        kind="cpu" if p["kind"] == "cpu" else "gpu",
        compute_units=max(1, int(p["compute_units"])),
        local_memory=int(p["local_memory"]),
        max_work_group_size=int(p["max_work_group_size"]),
        simd_width=_simd_width(int(p["simd_width"])),
        float64=bool(capabilities & 1 << 2),
        has_compiler=bool(capabilities & 1 << 1),
    )


def _simd_width(reported: int) -> int:
    """How many float32 a vector register holds: what the driver says, down to a power of two, or what
    TORCHGRAFT_SIMD_WIDTH says instead."""
    forced = os.environ.get("TORCHGRAFT_SIMD_WIDTH", "")
    if not forced:
        return 1 << max(1, reported).bit_length() - 1
    if not forced.isdecimal() or int(forced).bit_count() != 1:
        raise ValueError(f"TORCHGRAFT_SIMD_WIDTH is a power of two, not {forced!r}")
    return int(forced)


@functools.cache
def kernel_form(index: int) -> str:
    """ "cpu" or "gpu": which form of a kernel a device gets. TORCHGRAFT_KERNEL_FORM forces one."""
    forced = os.environ.get("TORCHGRAFT_KERNEL_FORM", "")
    if forced in ("cpu", "gpu"):
        return forced
    if forced:
        raise ValueError(f"TORCHGRAFT_KERNEL_FORM is 'cpu' or 'gpu', not {forced!r}")
    return device_traits(index).kind
