"""Dynamo leaves our own Python alone, and knows the device.

While a function that is given to torch.compile runs without having been traced whole, Dynamo looks at each Python frame
that starts in it. Among them are our planners, which C++ calls for ops that it knows nothing of yet; to compile these
costs time, and is wrong where they decide by what they find. PyTorch's own files are left out by lists of theirs, to
which `torch._dynamo.trace_rules.add` adds.
"""

from __future__ import annotations

from types import ModuleType

from torchgraft import _backend, imports

__all__ = ["INTERNAL", "install"]

#: What users' programs do not call, and C++ and torch do.
INTERNAL = ("codegen", "functions", "inductor", "kernels", "ops", "plans", "warming")


def install() -> None:
    """A step of the registration."""
    imports.call_after(
        {"torch._dynamo.trace_rules": [_leave_out], "torch._dynamo.device_interface": [_register_interface]}
    )


def _leave_out(trace_rules: ModuleType) -> None:
    """Dynamo looks at our planners as if they were users' functions."""
    for package in INTERNAL:
        trace_rules.add(f"torchgraft.{package}")


def _register_interface(device_interface: ModuleType) -> None:
    """Torch's compilers do not know the device. From torch 2.15 on they keep what the interfaces say when
    `torch._inductor.utils` is imported, so it is told before."""
    from torchgraft.inductor.interface import Interface  # which needs the module

    device_interface.register_interface_for_device(_backend.name(), Interface)
