"""Batches of matrices in column-major order: what the planners of linear algebra share."""

from __future__ import annotations

import math
from typing import Any

import torch

from torchgraft.codegen import ceil_div, element_type
from torchgraft.kernels.matrices import TEAM, TYPES
from torchgraft.ops.matmul import plan_product
from torchgraft.plans import Kernel, PlanBuilder, Unsupported, composite
from torchgraft.plans.grid import Grid

aten = torch.ops.aten


def type_name(spec: torch.Tensor) -> str:
    """The element type's name.

    Raises:
        Unsupported: it is none that torch's CPU computes in here, and refuses in its own words.
    """
    name = element_type(spec.dtype).name
    if name not in TYPES:
        raise Unsupported(f"linear algebra of {spec.dtype}")
    return name


# ---- batches of matrices in column-major order ----


def new_columns(p: PlanBuilder, batch: int, rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
    """A temporary [batch, rows, columns] in column-major order."""
    return p.empty((batch, columns, rows), dtype).mT


def as_columns(spec: torch.Tensor) -> torch.Tensor | None:
    """The same memory as [batch, rows, columns] in column-major order, if that is how it lies."""
    if not spec.mT.is_contiguous() or spec.is_conj() or spec.is_neg():
        return None
    return spec.mT.reshape(math.prod(spec.shape[:-2]), spec.shape[-1], spec.shape[-2]).mT


def batched(spec: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """[batch, rows, columns] with the batch dimensions of another matrix."""
    return spec.mT.reshape(*like.shape[:-2], spec.shape[-1], spec.shape[-2]).mT


def target(p: PlanBuilder, out: torch.Tensor) -> torch.Tensor:
    """Where to compute a result: in its own memory where that is in column-major order, else in a temporary."""
    own = as_columns(out)
    return new_columns(p, math.prod(out.shape[:-2]), out.shape[-2], out.shape[-1], out.dtype) if own is None else own


def load(p: PlanBuilder, to: torch.Tensor, source: torch.Tensor) -> None:
    """Copies matrices, whatever their layout, to [batch, rows, columns]; one matrix is broadcast to `to`'s batch."""
    p.copy(to if source.dim() == 2 else batched(to, source), source)


def loaded(p: PlanBuilder, source: torch.Tensor) -> torch.Tensor:
    """A temporary [batch, rows, columns] in column-major order with a copy."""
    to = new_columns(p, math.prod(source.shape[:-2]), source.shape[-2], source.shape[-1], source.dtype)
    load(p, to, source)
    return to


def read(p: PlanBuilder, source: torch.Tensor) -> torch.Tensor:
    """As [batch, rows, columns] in column-major order: the same memory where possible."""
    own = as_columns(source)
    return loaded(p, source) if own is None else own


def deliver(p: PlanBuilder, out: torch.Tensor, computed: torch.Tensor) -> None:
    """Copies [batch, rows, columns] to a result, unless it was computed there."""
    if p.memory(out) is not p.memory(computed):
        p.copy(out, batched(computed, out))


def flat(p: PlanBuilder, out: torch.Tensor) -> torch.Tensor:
    """A result of numbers or vectors for each matrix as contiguous memory: its own or a temporary."""
    return out if out.is_contiguous() else p.empty(out.shape, out.dtype)


def deliver_flat(p: PlanBuilder, out: torch.Tensor, computed: torch.Tensor) -> None:
    if out is not computed:
        p.copy(out, computed)


def arguments(**specs: torch.Tensor) -> dict[str, Any]:
    """With the distance of matrices, and that of columns, which `kernels.matrices.matrix` declares; or, of vectors
    [batch, n], with their distance alone."""
    out: dict[str, Any] = {}
    for name, spec in specs.items():
        out |= {name: spec, f"{name}_batch": spec.stride(0)}
        if spec.dim() == 3:
            out[f"{name}_ld"] = spec.stride(2)
    return out


def launch(p: PlanBuilder, kernel: Kernel, batch: int, work: int, /, **arguments: Any) -> None:
    """Launches a kernel for a batch of matrices, each of which takes so many operations."""
    p.launch(kernel, p.long_rows(batch, 1, work), **arguments)


def launch_parts(p: PlanBuilder, kernel: Kernel, batch: int, count: int, work: int, /, **arguments: Any) -> None:
    """Launches a kernel that shares out `count` columns along dimension 1; `work` is a column's."""
    grid = p.long_rows(batch, 1, work * count)
    if p.form == "gpu":
        wanted = ceil_div(count, TEAM)
    else:
        wanted = 1 if count * work < 40000 else 4 * p.device.compute_units // grid.groups[0]
    p.launch(kernel, parts(grid, count, wanted), **arguments)


def parts(grid: Grid, count: int, wanted: int) -> Grid:
    """The grid with a second dimension, which shares out `count` columns or rows to about so many groups."""
    part = max(1, ceil_div(count, max(1, wanted)))
    return Grid((*grid.groups, max(1, ceil_div(count, part))), {**grid.values, "count": count, "part": part})


def subtract_product(p: PlanBuilder, c: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    """C -= A B for batches."""
    plan_product(p, c, a, b, c, 1, -1)


# ---- errors ----


def check_errors(op: str, api_name: str) -> None:
    """Declares what check_errors=True does: the op is run without, and its last result, `info`, read."""

    @composite(op, when=lambda check_errors, **_: check_errors)
    def run(*args: Any, check_errors: bool, **kwargs: Any) -> Any:
        results = getattr(aten, op)(*args, **kwargs)
        aten._linalg_check_errors(results[-1], api_name, is_matrix=args[0].dim() == 2)
        return results


def set_identity(p: PlanBuilder, x: torch.Tensor) -> None:
    """Makes [batch, rows, columns] identities, with zeros beyond."""
    p.zero(x)
    p.fill(x.diagonal(dim1=-2, dim2=-1), 1)
