"""What planners may know of the device that a plan is for."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass

from torchgraft._core import _C
from torchgraft.codegen import tuned
from torchgraft.codegen.compiler import simd_width
from torchgraft.codegen.tuning import Target, Tuning, device_class
from torchgraft.codegen.vectors import vector_lanes
from torchgraft.codegen.x86 import Way
from torchgraft.driver import Capability
from torchgraft.kernels.pairs import LANES


@dataclass(frozen=True)
class DeviceTraits:
    """What planners may want to know of the device."""

    index: int
    name: str
    kind: str
    compute_units: int
    max_work_group_size: int
    simd_width: int  # float32 elements of a vector register, a power of two
    float64: bool
    has_compiler: bool
    has_programs: bool  # operators of its own
    program_formats: tuple[str, ...]  # languages of whole graphs that it has a compiler of
    constants: bool  # whether that compiler would rather have parameters as constants
    kernels_first: bool  # before those, but where its tuning says otherwise
    long_atomics: bool  # of 64 bits
    bfloat16: Way | None  # whose words kernels may use to multiply bfloat16, if any
    matrix_units: bool  # whether they may use those for a GPU's
    outer_vectors: bool  # whether its compiler makes vectors of a loop around one that is written out
    tuning: Tuning  # the sizes to make its kernels with

    def target(self, form: str) -> Target:
        """What kernels of a form are made for on the device."""
        return Target(
            form,
            self.compute_units,
            self.simd_width,
            self.tuning,
            self.bfloat16,
            self.matrix_units,
            self.max_work_group_size,
            self.outer_vectors,
            self.has_programs and self.kernels_first,
        )


@functools.cache
def device_traits(index: int) -> DeviceTraits:
    """The traits of a device of the backend."""
    p = _C.device_properties(index)
    capabilities, lanes = Capability(int(p["capabilities"])), simd_width(index)
    kind, matrix_units = "cpu" if p["kind"] == "cpu" else "gpu", Capability.FRAGMENTS in capabilities
    return DeviceTraits(
        index=index,
        name=str(p["name"]),
        kind=kind,
        compute_units=max(1, int(p["compute_units"])),
        max_work_group_size=int(p["max_work_group_size"]),
        simd_width=lanes,
        float64=Capability.FLOAT64 in capabilities,
        has_compiler=Capability.COMPILER in capabilities,
        has_programs=Capability.PROGRAMS in capabilities,
        program_formats=tuple(str(p["program_formats"]).split()),
        constants=Capability.CONSTANTS in capabilities,
        kernels_first=Capability.KERNELS_FIRST in capabilities,
        long_atomics=Capability.ATOMIC_INT64 in capabilities,
        bfloat16=_bfloat16(capabilities, lanes),
        matrix_units=matrix_units,
        outer_vectors=Capability.OUTER_VECTORS in capabilities,
        tuning=_forced.get(index) or tuned.read(described(index)) or device_class(kind, lanes, matrix_units).sizes,
    )


def _bfloat16(capabilities: Capability, simd_width: int) -> Way | None:
    """Tiles, where a device has both. The copies for them are worth it with whole vectors only."""
    if Capability.BFLOAT16_TILES in capabilities and vector_lanes(simd_width) == LANES:
        return "tiles"
    return "vectors" if Capability.BFLOAT16_VECTORS in capabilities else None


def described(index: int) -> dict[str, object]:
    """The device's properties, as what is kept of its tuning is found by."""
    return {**_C.device_properties(index), "simd_width": simd_width(index)}


# What a process that measures sizes has set.
_forced: dict[int, Tuning] = {}


def set_tuning(index: int, tuning: Tuning) -> None:
    """Has the plans that are made from now on use these sizes: for a process that does nothing but measure them."""
    _forced[index] = tuning
    device_traits.cache_clear()
    _C.clear_plans()


def forget_tuning(index: int) -> None:
    """Has them use the device's own again."""
    _forced.pop(index, None)
    device_traits.cache_clear()
    _C.clear_plans()


@functools.cache
def kernel_form(index: int) -> str:
    """ "cpu" or "gpu": which form of a kernel a device gets. TORCHGRAFT_KERNEL_FORM forces one.

    An OpenCL for CPUs that says that it has no vectors puts work-items side by side in them, as a GPU's does. What the
    CPU's form writes out for each element of a vector gains nothing there, and takes such a compiler minutes: Mesa's
    has not done with a product of matrices after four, and takes eight seconds for the GPU's form.
    """
    forced = os.environ.get("TORCHGRAFT_KERNEL_FORM", "")
    if forced in ("cpu", "gpu"):
        return forced
    if forced:
        raise ValueError(f"TORCHGRAFT_KERNEL_FORM is 'cpu' or 'gpu', not {forced!r}")
    p = _C.device_properties(index)
    if p["dialect"] == "opencl-c" and p["simd_width"] == 1:
        return "gpu"
    return device_traits(index).kind
