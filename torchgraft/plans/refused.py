"""Kernels that a device's compiler refuses."""

from __future__ import annotations

import torch

from torchgraft.codegen.compiler import KernelCompileError
from torchgraft.fallback import fallback, warn_user

_told: set[str] = set()


def refused_kernel(op: torch._ops.OpOverload, error: KernelCompileError) -> str:
    """Why an op runs on the CPU whose kernel did not compile: its users are told once, with the compiler's words.

    Raises:
        KernelCompileError: nothing may run on the CPU, or torch has no kernel for it there.
    """
    name = op.name()
    has_host_kernel = torch._C._dispatch_has_computed_kernel_for_dispatch_key(name, "CPU")
    if fallback.get_mode() == "error" or not (has_host_kernel or name == "aten::_copy_from"):
        raise error
    reason = f"kernel {error.kernel} does not compile on {error.device}:\n{error.log.strip()}"
    if fallback.get_mode() == "warn" and name not in _told:
        _told.add(name)
        warn_user(f"{name} runs on the CPU, since its {reason}")
    return reason
