"""Kernels that a device's compiler refuses."""

from __future__ import annotations

import torch

from torchgraft.codegen.compiler import KernelCompileError
from torchgraft.fallback import fallback
from torchgraft.plans.host import can_run_on_host


def refused_kernel(op: torch._ops.OpOverload, error: KernelCompileError) -> str:
    """Why an op runs on the CPU whose kernel did not compile, with the compiler's words.

    Raises:
        KernelCompileError: nothing may run on the CPU, or nothing there can do it.
    """
    if fallback.get_mode() == "error" or not can_run_on_host(op):
        raise error
    return f"kernel {error.kernel} does not compile:\n{error.device} says: {error.log.strip()}"
