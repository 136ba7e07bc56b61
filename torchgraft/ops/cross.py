"""The planner of cross products."""

from __future__ import annotations

from typing import Any

import torch

from torchgraft.codegen import element_type
from torchgraft.codegen.pointwise import Input, Loop, Result
from torchgraft.kernels import cross as kernels
from torchgraft.plans import PlanBuilder, other_out, planner, pointwise
from torchgraft.plans.refusals import dtype_name, refuse_dtype

# Loads, products and stores of a vector.
_COST = 6


def _check(self: torch.Tensor, other: torch.Tensor, **_: Any) -> None:
    if self.dtype != other.dtype:
        raise RuntimeError(f"expected scalar type {dtype_name(self.dtype)} but found {dtype_name(other.dtype)}")
    if self.dtype == torch.bool:
        refuse_dtype("cross", self.dtype)


@planner("linalg_cross", apart=("self", "other"), refuses=(_check, other_out))
def _linalg_cross(p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, other: torch.Tensor, *, dim: int = -1) -> None:
    if out.numel() == 0:
        return
    if out.is_conj() or out.is_neg():
        result = p.empty_like(out)
        _linalg_cross(p, result, self, other, dim=dim)
        p.copy(out, result)
        return
    x, y = (p.contiguous(v) if v.is_conj() or v.is_neg() else v for v in (self, other))
    x, y = x.expand(out.shape), y.expand(out.shape)
    type_ = element_type(out.dtype)
    if dim % out.dim() == out.dim() - 1 and all(v.is_contiguous() for v in (out, x, y)):
        p.launch(kernels.cross_kernel(type_.name, p.form), p.walk(out.numel() // 3, _COST), out=out, x=x, y=y)
        return
    loop = Loop(
        f"cross_product_{type_.name}",
        tuple(Input(f"{v}{k}", type_.name, type_.compute) for v in ("x", "y") for k in range(3)),
        (),
        tuple(
            Result(f"out{k}", type_.name, type_.compute, text)
            for k, text in enumerate(kernels.components(type_.compute, "x", "y"))
        ),
        cost=_COST,
    )
    parts = [[v.select(dim, k) for k in range(3)] for v in (out, x, y)]
    pointwise.plan_loop(p, loop, parts[0], [*parts[1], *parts[2]], [])
