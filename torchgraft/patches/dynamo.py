"""Dynamo leaves our own Python alone, and knows the device and our compiler.

While a function that is given to torch.compile runs without having been traced whole, Dynamo looks at each Python frame
that starts in it. Among them are our planners, which C++ calls for ops that it knows nothing of yet; to compile these
costs time, and is wrong where they decide by what they find. PyTorch's own files are left out by lists of theirs, to
which `torch._dynamo.trace_rules.add` adds.
"""

from __future__ import annotations

from contextlib import suppress
from types import ModuleType

from torchgraft import backend, compiler
from torchgraft.compiler import graph_compilers
from torchgraft.patches import imports

__all__ = ["INTERNAL", "install"]

#: What users' programs do not call, and C++ and torch do.
INTERNAL = ("codegen", "compiler", "functions", "inductor", "kernels", "ops", "plans", "warming")


def install() -> None:
    """A step of the registration."""
    imports.call_after(
        {
            "torch._dynamo.trace_rules": [_leave_out],
            "torch._dynamo.device_interface": [_register_interface],
            "torch._dynamo.backends.registry": [_offer_compiler],
        }
    )


def _leave_out(trace_rules: ModuleType) -> None:
    """Dynamo looks at our planners as if they were users' functions."""
    for package in INTERNAL:
        trace_rules.add(f"torchgraft.{package}")


def _register_interface(device_interface: ModuleType) -> None:
    """Torch's compilers do not know the device. From torch 2.15 on they keep what the interfaces say when
    `torch._inductor.utils` is imported, so it is told before."""
    from torchgraft.inductor.interface import Interface  # which needs the module

    device_interface.register_interface_for_device(backend.name(), Interface)


def _offer_compiler(registry: ModuleType) -> None:
    """torch.compile knows our own compiler by name, where the metadata of an installed package did not say so, and that
    of a device's maker by the device's."""
    with suppress(AssertionError):  # that it is there
        registry.register_backend(compiler.graft, name=compiler.NAME)
    with suppress(AssertionError):
        registry.register_backend(graph_compilers.graph_compiler, name=backend.name())
