"""Conformance: PyTorch's own database of operators (`torch.testing`'s OpInfo), run on a device beside the CPU.

A *case* is an entry of the database with a dtype. It is made of *checks* (values, in-place, `out=`, memory layouts,
gradients, refused inputs), and a check of *samples*. The CPU says what is right, in float64 where rounding decides;
whether the device did it by itself is read from the fallback's counters. The device is any PrivateUse1 backend, given
by name; the counters exist where torchgraft registered it.

    cases     which cases there are, and their samples
    layout    a sample on the device, with the CPU's strides, offsets and aliasing
    compare   when two results are the same
    freedom   ops whose results are right in more than one form, and what of them is compared
    ways      whether a case has a kernel, a decomposition, or is composed of other ops
    check     runs one case
    runner    runs many, in processes that may crash or hang
    report    figures, tables and a page to search
"""

from __future__ import annotations

from torchgraft.testing.needs import need

need("the operator database", "expecttest", "numpy")  # or torch's own modules, imported below, say less

from torchgraft.testing.conformance.cases import Case, cases, quick  # noqa: E402
from torchgraft.testing.conformance.check import CHECKS, CaseResult, CheckResult, run_case  # noqa: E402

__all__ = ["CHECKS", "Case", "CaseResult", "CheckResult", "cases", "quick", "run_case"]
