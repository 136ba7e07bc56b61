"""Planners of the matrix products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchgraft.codegen import element_type
from torchgraft.codegen.types import BY_NAME
from torchgraft.kernels.matmul.choose import matmul_launches
from torchgraft.kernels.matmul.problem import Matrix, Product
from torchgraft.plans import PlanBuilder, Scalar, Unsupported, composite, other_out, planner
from torchgraft.plans.refusals import dtype_name

aten = torch.ops.aten

Number = Scalar | int | complex


def _matrix(spec: torch.Tensor) -> Matrix:
    """A spec of two dimensions, or of three with the batch first."""
    row, column = spec.stride()[-2:]
    return Matrix(spec, row, column, spec.stride(0) if spec.dim() == 3 else 0)


def temporaries(p: PlanBuilder) -> Callable[[int, str], torch.Tensor]:
    """What makes a place for a number of elements of a type, as launchers want it."""
    return lambda count, element: p.empty((count,), BY_NAME[element].dtype)


def plan_product(
    p: PlanBuilder,
    out: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    addend: torch.Tensor | None = None,
    beta: Number = 1,
    alpha: Number = 1,
) -> None:
    """Plans `out = alpha * a @ b + beta * addend` for matrices or batches of matrices, whatever their strides. Without
    an addend `out` may have the wider dtype that sums are of.
    """
    if a.dtype != b.dtype:  # torch's meta kernel lets it through
        raise RuntimeError(f"expected m1 and m2 to have the same dtype, but got: {a.dtype} != {b.dtype}")
    if out.numel() == 0:
        return
    storage = element_type(a.dtype).name
    if storage == "b8":
        raise Unsupported("torch has no matrix product of bool")
    # The kernels read memory: what is conjugated only by a flag has to be written out first.
    a, b = (p.contiguous(x) if x.is_conj() or x.is_neg() else x for x in (a, b))
    if addend is not None:
        if addend.is_conj() or addend.is_neg():
            addend = p.contiguous(addend)
        addend = addend.expand(out.shape)
    if element_type(out.dtype).is_complex:
        alpha, beta = (complex(x) if isinstance(x, int) else x for x in (alpha, beta))
    batch = out.shape[0] if out.dim() == 3 else 1
    product = Product(
        storage,
        element_type(out.dtype).name,
        (batch, out.shape[-2], out.shape[-1], a.shape[-1]),
        _matrix(out),
        _matrix(a),
        _matrix(b),
        _matrix(addend) if addend is not None else None,
        alpha,
        beta,
        temporaries(p),
        p.target,
    )
    for launch in matmul_launches(product):
        p.launch(launch.kernel, launch.groups, **launch.arguments)


@planner("mm", "bmm")
def _mm(p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, mat2: torch.Tensor) -> None:
    plan_product(p, out, self, mat2)


def _check_sum(self: torch.Tensor, **arguments: Any) -> None:
    """What is added must have the dtype of the factors and spread to the product's shape; torch's meta functions let it
    be larger."""
    left, right = (arguments[name] for name in arguments if name in ("mat1", "mat2", "mat", "vec", "batch1", "batch2"))
    if self.dtype != right.dtype:
        raise RuntimeError(
            f"self and mat2 must have the same dtype, but got {dtype_name(self.dtype)} and {dtype_name(right.dtype)}"
        )
    if left.dim() > 1 and right.dim() > 0:
        self.expand(left.shape[:-1] + right.shape[max(right.dim() - 1, 1) :])


@planner("addmm", "baddbmm", refuses=(_check_sum, other_out))
def _addmm(
    p: PlanBuilder,
    out: torch.Tensor,
    self: torch.Tensor,
    mat1: torch.Tensor,
    mat2: torch.Tensor,
    *,
    beta: Number,
    alpha: Number,
) -> None:
    plan_product(p, out, mat1, mat2, self, beta, alpha)


def _has_other_shape(self: torch.Tensor, batch1: torch.Tensor, batch2: torch.Tensor, **_: Any) -> bool:
    shape = (batch1.size(1), batch2.size(2)) if batch1.dim() == batch2.dim() == 3 else None
    return batch2.dim() == 3 and shape != self.shape


@composite("addbmm_", when=_has_other_shape)
def _addbmm_grows(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """In place it alone among its kind gives its first argument another shape."""
    result = aten.addbmm.default(self, *args, **kwargs)
    return self.resize_(result.shape).copy_(result)


@planner("addbmm")
def _addbmm(
    p: PlanBuilder,
    out: torch.Tensor,
    self: torch.Tensor,
    batch1: torch.Tensor,
    batch2: torch.Tensor,
    *,
    beta: Number,
    alpha: Number,
) -> None:
    # The sum over batches of products is one product of matrices that stand side by side.
    batches, n, k = batch1.shape
    left = p.contiguous(batch1.permute(1, 0, 2)).view(n, batches * k)
    right = p.contiguous(batch2).view(batches * k, batch2.shape[2])
    plan_product(p, out, left, right, self, beta, alpha)


@planner("mv")
def _mv(p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, vec: torch.Tensor) -> None:
    plan_product(p, out.unsqueeze(1), self, vec.unsqueeze(1))


@planner("addmv", refuses=(_check_sum, other_out))
def _addmv(
    p: PlanBuilder,
    out: torch.Tensor,
    self: torch.Tensor,
    mat: torch.Tensor,
    vec: torch.Tensor,
    *,
    beta: Number,
    alpha: Number,
) -> None:
    plan_product(p, out.unsqueeze(1), mat, vec.unsqueeze(1), self.expand(out.shape).unsqueeze(1), beta, alpha)


@planner("dot")
def _dot(p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, tensor: torch.Tensor) -> None:
    plan_product(p, out.view(1, 1), self.unsqueeze(0), tensor.unsqueeze(1))


@planner("vdot")
def _vdot(p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, other: torch.Tensor) -> None:
    plan_product(p, out.view(1, 1), self.conj().unsqueeze(0), other.unsqueeze(1))
