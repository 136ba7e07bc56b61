"""Calls that what is declared of an op does not serve, so that something else does."""

from __future__ import annotations

import torch

from torchgraft.codegen.compiler import KernelCompileError
from torchgraft.codegen.dialect import UnsupportedKernel
from torchgraft.codegen.types import UnsupportedDtype
from torchgraft.fallback import fallback
from torchgraft.plans.host import can_run_on_host
from torchgraft.plans.steps import Unsupported

#: What says so when it is raised by a planner, or by a function that is run in the place of a plan.
REFUSALS = (Unsupported, UnsupportedDtype, UnsupportedKernel, KernelCompileError)


def refusal(error: BaseException) -> str | None:
    """Why a function that is run in the place of a plan does not serve a call, by what it has raised; None of errors
    that are the caller's."""
    if not isinstance(error, REFUSALS) or (isinstance(error, KernelCompileError) and fallback.get_mode() == "error"):
        return None
    return _words(error) or "the function that is declared for it refuses this call"


def stated_refusal(error: BaseException) -> str | None:
    """The same, where nothing refuses a call but `Unsupported`."""
    return refusal(error) if isinstance(error, Unsupported) else None


def why_on_cpu(op: torch._ops.OpOverload, error: Exception, operators: list[str]) -> str:
    """Why an op runs on the CPU.

    Args:
        op: the overload.
        error: one of `REFUSALS`, which its planner has raised.
        operators: why the device's own operators do not serve it.

    Raises:
        KernelCompileError: it is that, and nothing may run on the CPU, or nothing there can do it.
    """
    if isinstance(error, KernelCompileError) and (fallback.get_mode() == "error" or not can_run_on_host(op)):
        raise error
    before, words = "; ".join(dict.fromkeys(operators)), _words(error)
    return words if words.startswith(before) else f"{before}; {words}"


def _words(error: BaseException) -> str:
    if isinstance(error, KernelCompileError):
        return f"kernel {error.kernel} does not compile:\n{error.device} says: {error.log.strip()}"
    return str(error)
