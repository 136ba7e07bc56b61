"""Imported by conformance workers: a device five of whose ops are broken, each in its way."""

from __future__ import annotations

import os
import time
from typing import Any

import torch

from torchgraft import plans


def _wrong(self: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
    return out.fill_(0.25)


def _crashing(self: torch.Tensor, *, out: torch.Tensor) -> Any:
    os.abort()


def _hanging(self: torch.Tensor, *, out: torch.Tensor) -> Any:
    time.sleep(3600)


def _converting(self: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
    """Right, but for an `out=` of another dtype, which torch's CPU refuses."""
    return out.resize_(self.shape).copy_(self - self.trunc())


device = os.environ.get("TORCHGRAFT_TEST_DEVICE", "ocl")
for _name, _function in {
    "erfc.out": _wrong,
    "erf.out": _crashing,
    "lgamma.out": _hanging,
    "frac.out": _converting,
}.items():
    torch.library.impl(f"aten::{_name}", torch.device(device).type, _function)


@plans.planner("digamma", refuses=(), replace=True)
def _falling_back(p: plans.PlanBuilder, *_: Any, **__: Any) -> None:
    raise plans.Unsupported("a test")
