"""Planners of embedding bags (`torch.nn.EmbeddingBag`). Sparse gradients of the table torch makes of other ops."""

from __future__ import annotations

from typing import Any

import torch

from torchgraft.codegen import ceil_div, element_type
from torchgraft.kernels import embedding_bag as kernels
from torchgraft.kernels.indexing import count_kernel
from torchgraft.ops.moves import Index, check_places
from torchgraft.plans import PlanBuilder, Unsupported, composite, planner
from torchgraft.plans.refusals import check_same_dtype

Results = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


_RANGE = "Expected idx >= 0 && idx < num_embeddings, the rows of the table, but found idx to be {}"


def _type(x: torch.Tensor) -> str:
    element = element_type(x.dtype)
    if not element.is_float:
        raise Unsupported(f"embedding bags of {x.dtype}")
    return element.name


def _check_bags(offset2bag: torch.Tensor, indices: torch.Tensor) -> None:
    if offset2bag.numel() != indices.numel():  # a forward on the CPU leaves it out at times
        raise Unsupported("bags without the bag of each index")


def _check_dims(name: str, t: torch.Tensor, *dims: int) -> None:
    if t.dim() not in dims:
        allowed = " or ".join(f"{d}D" for d in dims)
        raise RuntimeError(f"{name} has to be a {allowed} Tensor, but got Tensor of dimension {t.dim()}")


def _plan_bags(
    p: PlanBuilder,
    bag_of: torch.Tensor,
    sizes: torch.Tensor,
    indices: torch.Tensor,
    offsets: torch.Tensor,
    include_last_offset: bool,
    padding_idx: int,
) -> None:
    bags = offsets.numel() - include_last_offset
    p.fill(sizes, 0)
    p.fill(bag_of, -1)  # indices that no bag holds
    first = p.error("offsets[0] has to be 0, but is {}", RuntimeError)
    report = p.error("offsets have to rise from 0 to at most the number of indices, but one is {}", RuntimeError)
    p.launch(
        kernels.bags_kernel(element_type(indices.dtype).name, p.form),
        p.walk(bags, 1 + indices.numel() // max(1, bags), multiple=1),
        bag_of=bag_of,
        sizes=sizes,
        indices=indices,
        offsets=offsets,
        errors=first.words,
        first_code=first.code,
        code=report.code,
        given=offsets.numel(),
        count=indices.numel(),
        padding=padding_idx,
    )


def _plan_forward(
    p: PlanBuilder,
    out: Results,
    weight: torch.Tensor,
    indices: torch.Tensor,
    offsets: torch.Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = kernels.SUM,
    sparse: bool = False,
    per_sample_weights: torch.Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> None:
    _check_dims("input", indices, 1, 2)
    _check_dims("offsets", offsets, 1)
    _check_dims("weight", weight, 2)
    if per_sample_weights is not None:
        check_same_dtype(weight, per_sample_weights)
    result, bag_of, sizes, places = out
    type_ = _type(weight)
    if indices.dtype != offsets.dtype:
        wide = torch.promote_types(indices.dtype, offsets.dtype)
        indices, offsets = p.cast(indices, wide), p.cast(offsets, wide)
        bag_of, sizes = (p.empty_like(t, wide) for t in (bag_of, sizes))
    index = element_type(indices.dtype).name
    _plan_bags(p, bag_of, sizes, indices, offsets, include_last_offset, padding_idx)
    bags, (limit, width) = offsets.numel() - include_last_offset, weight.shape
    if width == 0:
        check_places(p, Index(indices, (), limit, 0, _RANGE, raises=RuntimeError))
    report = p.error(_RANGE, RuntimeError)
    own_places = p.empty(places.shape, indices.dtype) if places.dtype != indices.dtype else places
    arguments: dict[str, Any] = {"weight": weight, "sizes": sizes, "indices": indices, "offsets": offsets}
    if mode == kernels.MAX:
        arguments["places"] = own_places
    if per_sample_weights is not None:
        arguments["factors"] = p.cast(per_sample_weights, weight.dtype)
    arguments |= {"errors": report.words, "code": report.code, "padding": padding_idx, "limit": limit}
    layout, grid = p.columns(bags, width, 1 + indices.numel() // max(1, bags))
    kernel = kernels.forward_kernel(layout, type_, index, mode, per_sample_weights is not None)
    p.launch(kernel, grid, out=result, **arguments, given=offsets.numel(), count=indices.numel())
    for given, made in ((out[1], bag_of), (out[2], sizes), (places, own_places)):
        if given is not made:
            p.copy(given, made)


@planner("_embedding_bag", "_embedding_bag_forward_only", contiguous=True)
def _embedding_bag(p: PlanBuilder, out: Results, *args: object, **options: object) -> None:
    _plan_forward(p, out, *args, **options)  # type: ignore[arg-type]


@planner("_embedding_bag_dense_backward", contiguous=True)
def _embedding_bag_dense_backward(
    p: PlanBuilder,
    out: torch.Tensor,
    grad: torch.Tensor,
    indices: torch.Tensor,
    offset2bag: torch.Tensor,
    bag_size: torch.Tensor,
    maximum_indices: torch.Tensor,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    per_sample_weights: torch.Tensor | None,
    padding_idx: int = -1,
) -> None:
    if out.numel() == 0:
        return
    _check_bags(offset2bag, indices)
    (limit, width), count, index = out.shape, indices.numel(), element_type(indices.dtype).name
    bag_of, sizes, places = (p.cast(t, indices.dtype) for t in (offset2bag, bag_size, maximum_indices))
    # Sums of many halves are kept in float32.
    type_, wide = _type(grad), element_type(out.dtype).accumulate
    total = out if element_type(out.dtype).name == wide else p.empty(out.shape, torch.float32)
    work = grad.numel() if mode == kernels.MAX else count * width
    is_small = work + out.numel() <= p.device.tuning.partition.single
    rows = limit if is_small else ceil_div(limit, 16 * p.device.compute_units)
    grid = p.walk(width).by(ceil_div(limit, rows))
    table = {"out": total, "grad": grad, "sizes": sizes, "limit": limit, "rows": rows}
    if mode == kernels.MAX:
        kernel = kernels.max_backward_kernel(type_, index, wide, p.form)
        p.launch(kernel, grid, **table, places=places, bags=grad.size(0))
    else:
        table |= {"indices": indices, "bag_of": bag_of, "count": count, "padding": padding_idx}
        if scale_grad_by_freq:
            counts = p.empty((limit,), torch.int32)
            p.fill(counts, 0)
            p.launch(count_kernel(index), (1,), counts=counts, index=indices, n=count, limit=limit)
            table["counts"] = counts
        if per_sample_weights is not None:
            table["factors"] = p.cast(per_sample_weights, grad.dtype)
        kernel = kernels.backward_kernel(
            type_, index, wide, mode, scale_grad_by_freq, per_sample_weights is not None, p.form
        )
        p.launch(kernel, grid, **table)
    if total is not out:
        p.copy(out, total)


@composite("_embedding_bag_backward", when=lambda sparse, **_: sparse)
def _sparse_backward(
    grad: torch.Tensor,
    indices: torch.Tensor,
    offsets: torch.Tensor,
    offset2bag: torch.Tensor,
    bag_size: torch.Tensor,
    maximum_indices: torch.Tensor,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: torch.Tensor | None,
    padding_idx: int = -1,
) -> torch.Tensor:
    made: torch.Tensor = torch.ops.aten._embedding_bag_sparse_backward(
        grad,
        indices,
        offsets,
        offset2bag,
        bag_size,
        num_weights,
        scale_grad_by_freq,
        mode,
        per_sample_weights,
        padding_idx,
    )
    return made


@planner("_embedding_bag_backward", contiguous=True)
def _embedding_bag_backward(
    p: PlanBuilder,
    out: torch.Tensor,
    grad: torch.Tensor,
    indices: torch.Tensor,
    offsets: torch.Tensor,
    offset2bag: torch.Tensor,
    bag_size: torch.Tensor,
    maximum_indices: torch.Tensor,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: torch.Tensor | None,
    padding_idx: int = -1,
) -> None:
    _embedding_bag_dense_backward(
        p,
        out,
        grad,
        indices,
        offset2bag,
        bag_size,
        maximum_indices,
        num_weights,
        scale_grad_by_freq,
        mode,
        per_sample_weights,
        padding_idx,
    )


@planner("_embedding_bag_per_sample_weights_backward", contiguous=True)
def _embedding_bag_factors_backward(
    p: PlanBuilder,
    out: torch.Tensor,
    grad: torch.Tensor,
    weight: torch.Tensor,
    indices: torch.Tensor,
    offsets: torch.Tensor,
    offset2bag: torch.Tensor,
    mode: int,
    padding_idx: int = -1,
) -> None:
    count, (limit, width) = indices.numel(), weight.shape
    if count == 0:
        return
    _check_bags(offset2bag, indices)
    p.launch(
        kernels.factors_backward_kernel(_type(grad), element_type(indices.dtype).name, p.form),
        p.walk(count, width, multiple=1),
        out=out,
        grad=grad,
        weight=p.cast(weight, grad.dtype),
        indices=indices,
        bag_of=p.cast(offset2bag, indices.dtype),
        padding=padding_idx,
        limit=limit,
        width=width,
    )
