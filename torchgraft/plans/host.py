"""What ops do on the CPU for which PyTorch has no kernel there: of those that only devices have."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from torchgraft._core import _C
from torchgraft.plans.schema import overload_name, resolve
from torchgraft.untraced import untraced

__all__ = ["HOST_KERNELS", "can_run_on_host", "on_host"]

_Function = TypeVar("_Function", bound=Callable[..., Any])

#: What has been declared, by the overloads' names.
HOST_KERNELS: dict[str, Callable[..., Any]] = {}


def on_host(*names: str) -> Callable[[_Function], _Function]:
    """Declares a function as what ops do on the CPU.

    The CPU fallback calls it where a device has no compiler, or no kernel for a call, and PyTorch's CPU has none
    either. It may be declared before the devices are opened or after; the last one declared counts.

    Args:
        names: overloads ("mylib::axpy", "batch_norm_elemt.out"). The function takes an overload's arguments by
            position, tensors on the CPU, and returns its results; those of an `out=` overload it has written.

    Raises:
        ValueError: there is no such op.
    """

    def declare(function: _Function) -> _Function:
        @untraced
        @functools.wraps(function)
        def run(*arguments: Any) -> Any:
            with torch._C.DisableTorchFunction():  # a user's default device is not where these tensors are
                return function(*arguments)

        for name in map(overload_name, map(resolve, names)):
            HOST_KERNELS[name] = run
            _C.set_host_kernel(name, run)
        return function

    return declare


def can_run_on_host(op: torch._ops.OpOverload) -> bool:
    """Whether the CPU can take the place of a device."""
    name = op.name()
    if name == "aten::_copy_from" or name in HOST_KERNELS:
        return True
    return bool(torch._C._dispatch_has_computed_kernel_for_dispatch_key(name, "CPU"))
