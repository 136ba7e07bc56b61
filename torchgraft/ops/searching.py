"""Planners of searches: places in what is sorted, elements in a set, and the places where something is true."""

from __future__ import annotations

from typing import Any

import torch

from torchgraft.codegen import element_type
from torchgraft.kernels import indexing as kernels
from torchgraft.ops.moves import Index, check_places
from torchgraft.plans import PlanBuilder, Scalar, Unsupported, composite, other_out, planner

aten = torch.ops.aten

# ---- searches ----


def _search(
    p: PlanBuilder, out: torch.Tensor, boundaries: torch.Tensor, values: Any, right: bool, sorter: torch.Tensor | None
) -> None:
    if out.numel() == 0:
        return
    boundaries = p.contiguous(boundaries)
    number = not isinstance(values, torch.Tensor)
    if number:
        compute = torch.result_type(boundaries, values.python_type(1))
        values_type = p.widest(values, element_type(compute).compute)
    else:
        values = p.contiguous(values)
        compute = torch.promote_types(boundaries.dtype, values.dtype)
        values_type = element_type(values.dtype).name
    if compute.is_complex:
        raise Unsupported("order of complex numbers")
    target = out if out.is_contiguous() else p.empty_like(out)
    length = boundaries.size(-1) if boundaries.dim() else 1
    row = max(1, values.size(-1)) if not number and values.dim() else 1
    kernel = kernels.search_kernel(
        values_type,
        element_type(boundaries.dtype).name,
        element_type(compute).compute,
        element_type(out.dtype).name,
        right,
        sorter is not None,
        number,
        p.form,
    )
    p.launch(
        kernel,
        p.walk(out.numel(), 16),
        out=target,
        values=values,
        boundaries=boundaries,
        **({} if sorter is None else {"sorter": p.contiguous(sorter)}),
        row=row,
        length=length,
        boundary_row=length if boundaries.dim() > 1 else 0,
    )
    if target is not out:
        p.copy(out, target)


def _check_search(
    sorted_sequence: torch.Tensor,
    self: Any,
    right: bool = False,
    side: str | None = None,
    sorter: torch.Tensor | None = None,
    **_: Any,
) -> None:
    """torch's meta function counts the values and looks no further."""
    if side == "left" and right:
        raise RuntimeError("torch.searchsorted(): side is left while right is set")
    if sorted_sequence.dim() > 1 and not isinstance(self, torch.Tensor):
        raise RuntimeError("torch.searchsorted(): a number has its place in boundaries of one dimension")
    if side not in (None, "left", "right"):
        raise RuntimeError(f"torch.searchsorted(): side can only be 'left' or 'right' but got {side}")
    if sorted_sequence.dim() == 0:
        raise RuntimeError(
            "torch.searchsorted(): boundaries tensor should have positive dimension, but got 0 dimension"
        )
    if sorter is not None and sorter.dtype != torch.int64:
        raise RuntimeError(f"torch.searchsorted(): sorter must be a tensor of long dtype but got dtype {sorter.dtype}")


@planner("searchsorted.Tensor", "searchsorted.Scalar", refuses=(_check_search, other_out))
def _searchsorted(
    p: PlanBuilder,
    out: torch.Tensor,
    sorted_sequence: torch.Tensor,
    self: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: torch.Tensor | None = None,
) -> None:
    if sorter is not None:
        limit, message = sorted_sequence.size(-1), "torch.searchsorted(): sorter index out of range"
        check_places(p, Index(sorter, (), limit, 0, message, raises=RuntimeError))
    _search(p, out, sorted_sequence, self, right or side == "right", sorter)


@planner("bucketize.Tensor", "bucketize.Scalar")
def _bucketize(
    p: PlanBuilder,
    out: torch.Tensor,
    self: Any,
    boundaries: torch.Tensor,
    *,
    out_int32: bool = False,
    right: bool = False,
) -> None:
    if boundaries.dim() != 1:
        raise RuntimeError(f"boundaries tensor must be 1 dimension, but got dim({boundaries.dim()})")
    _search(p, out, boundaries, self, right, None)


@planner("isin.Tensor_Scalar")
def _isin_number(
    p: PlanBuilder,
    out: torch.Tensor,
    elements: torch.Tensor,
    test_element: Scalar,
    *,
    assume_unique: bool = False,
    invert: bool = False,
) -> None:
    p.call_out(aten.ne.Scalar if invert else aten.eq.Scalar, out, elements, test_element)


@planner("isin.Scalar_Tensor")
def _number_isin(
    p: PlanBuilder,
    out: torch.Tensor,
    element: Scalar,
    test_elements: torch.Tensor,
    *,
    assume_unique: bool = False,
    invert: bool = False,
) -> None:
    found = p.call(aten.any.default, p.call(aten.eq.Scalar, test_elements, element))
    p.call_out(aten.logical_not.default if invert else aten.clone.default, out, found)


@planner("isin.Tensor_Tensor")
def _isin(
    p: PlanBuilder,
    out: torch.Tensor,
    elements: torch.Tensor,
    test_elements: torch.Tensor,
    *,
    assume_unique: bool = False,
    invert: bool = False,
) -> None:
    n, count = elements.numel(), test_elements.numel()
    if n == 0:
        return
    target = out if out.is_contiguous() else p.empty_like(out)
    compute = torch.result_type(elements, test_elements)
    if compute.is_complex:
        raise Unsupported("complex elements")
    if count == 0:
        p.fill(out, invert)
        return
    kernel = kernels.isin_kernel(
        element_type(elements.dtype).name,
        element_type(test_elements.dtype).name,
        element_type(compute).compute,
        invert,
        p.form,
    )
    grid = p.walk(n, max(1, min(1024, count // 8)))
    p.launch(kernel, grid, out=target, elements=p.contiguous(elements), tests=p.contiguous(test_elements), count=count)
    if target is not out:
        p.copy(out, target)


# ---- shapes that depend on data ----


@planner("nonzero_static")
def _nonzero_static(p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, *, size: int, fill_value: int = -1) -> None:
    x, target = p.contiguous(self), out if out.is_contiguous() else p.empty_like(out)
    if target.numel() == 0:
        return
    if x.numel() == 0:
        p.fill(out, fill_value)
        return
    type_, grid = element_type(x.dtype).name, p.partitioner.serial.walk(x.shape)
    counts = p.empty(grid.groups, torch.int64)
    p.launch(kernels.nonzero_count_kernel(type_), grid, counts=counts, source=x)
    kernel = kernels.nonzero_kernel(type_, x.dim())
    p.launch(kernel, grid, out=target, counts=counts, source=x, size=size, fill=fill_value)
    if target is not out:
        p.copy(out, target)


@composite("equal")
def _equal(self: torch.Tensor, other: torch.Tensor) -> bool:
    if self.shape != other.shape:
        return False
    return bool((self == other).all())


@composite("nonzero")
def _nonzero(self: torch.Tensor) -> torch.Tensor:
    count = int(torch.count_nonzero(self))
    return torch.nonzero_static(self, size=count)


@composite("masked_select", apart=("self", "mask"))
def _masked_select(self: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    if mask.dtype != torch.bool:
        raise RuntimeError(f"masked_select: expected BoolTensor for mask, but got {mask.dtype}")
    if self.shape != mask.shape:
        self, mask = torch.broadcast_tensors(self, mask)
    return self.reshape(-1).index_select(0, mask.reshape(-1).nonzero().view(-1))


@composite("masked_scatter_")
def _masked_scatter(self: torch.Tensor, mask: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    if mask.dtype != torch.bool:
        raise RuntimeError(f"masked_scatter_ only supports boolean masks, but got mask with dtype {mask.dtype}")
    if self.dtype != source.dtype:
        raise RuntimeError(
            f"masked_scatter_: expected self and source to have same dtypes but got {self.dtype} and {source.dtype}"
        )
    places = mask.expand(self.shape).reshape(self.shape or (1,)).nonzero()
    if source.numel() < len(places):
        raise RuntimeError("Number of elements of source < number of ones in mask")
    if source.untyped_storage()._cdata == self.untyped_storage()._cdata:
        source = source.clone()
    whole = self if self.dim() else self.view(1)
    whole.index_put_(tuple(places.unbind(1)), source.reshape(-1)[: len(places)])
    return self
