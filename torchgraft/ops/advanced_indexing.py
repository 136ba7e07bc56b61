"""Planners of ops that read or write where several index tensors, or masks, say."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchgraft.ops.moves import (
    SUM,
    Collected,
    Index,
    bounds_of,
    collecting,
    flat_index,
    in_order,
    plan_collect,
    plan_move,
    resolved,
    rows_into,
    start_from,
)
from torchgraft.plans import PlanBuilder, composite, planner
from torchgraft.plans.refusals import dtype_name

aten = torch.ops.aten


@dataclass(frozen=True)
class _Places:
    """The elements of `x` that x[indices] means, as a space of the result's shape.

    Attributes:
        sizes: the result's.
        strides: those of x over the space; 0 in the dimensions of the indices.
        indices: one for each tensor.
        first, count: which dimensions of the space are the indices'.
    """

    sizes: list[int]
    strides: list[int]
    indices: list[Index]
    first: int
    count: int


def _places(x: torch.Tensor, given: Sequence[torch.Tensor | None]) -> _Places:
    tensors = [(d, flat_index(i)) for d, i in enumerate(given) if i is not None]
    shape = torch.broadcast_shapes(*(i.shape for _, i in tensors))
    dims = [d for d, _ in tensors]
    together = dims == list(range(dims[0], dims[-1] + 1))
    first = dims[0] if together else 0
    free = [d for d in range(x.dim()) if d not in dims]
    before, after = free[:first], free[first:]
    sizes = [*(x.size(d) for d in before), *shape, *(x.size(d) for d in after)]
    strides = [*(x.stride(d) for d in before), *(0 for _ in shape), *(x.stride(d) for d in after)]
    indices = []
    for d, tensor in tensors:
        own = [*(0 for _ in before), *tensor.expand(shape).stride(), *(0 for _ in after)]
        indices.append(Index(tensor, own, x.size(d), x.stride(d), bounds_of(d, x.size(d))))
    return _Places(sizes, strides, indices, first, len(shape))


def _has_masks(indices: Sequence[torch.Tensor | None], **_: Any) -> bool:
    return any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in indices)


def _without_masks(x: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
    """Masks as the places where they are true, which reads them."""
    out: list[torch.Tensor | None] = []
    for index in indices:
        if index is None or index.dtype not in (torch.bool, torch.uint8):
            out.append(index)
            continue
        if index.dtype == torch.uint8:
            warnings.warn(
                "indexing with dtype torch.uint8 is now deprecated, please use a dtype torch.bool instead.",
                stacklevel=2,
            )
        for k in range(index.dim()):
            if index.size(k) != x.size(len(out) + k):
                raise IndexError(
                    f"The shape of the mask {list(index.shape)} at index {k} does not match the shape of the indexed "
                    f"tensor {list(x.shape)} at index {len(out) + k}"
                )
        out += (index.to(x.device) if index.device != x.device else index).nonzero().unbind(1)
    return out


@composite("index.Tensor", "_unsafe_index.Tensor", when=_has_masks)
def _index_masks(self: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> torch.Tensor:
    (dim, mask), *others = [(dim, index) for dim, index in enumerate(indices) if index is not None]
    alone = not others and mask.dtype == torch.bool and mask.device == self.device and self.is_contiguous()
    if alone and mask.dim() and mask.shape == self.shape[dim : dim + mask.dim()]:
        if mask.dim() > 1:
            self, mask = self.flatten(dim, dim + mask.dim() - 1), mask.reshape(-1)
        return self.index_select(dim, mask.nonzero().view(-1))
    result: torch.Tensor = aten.index.Tensor(self, _without_masks(self, indices))
    return result


def _check_indices(x: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> None:
    """Refuses by IndexError, as torch's CPU, what its meta function refuses by RuntimeError."""
    given = [index for index in indices if index is not None]
    if any(index.dtype not in _INDEX_DTYPES for index in given):
        raise IndexError("tensors used as indices must be long, int, byte or bool tensors")
    try:
        shape = torch.broadcast_shapes(*(index.shape for index in given))
    except RuntimeError as error:
        shapes = ", ".join(str(list(index.shape)) for index in given)
        raise IndexError(
            f"shape mismatch: indexing tensors could not be broadcast together with shapes {shapes}"
        ) from error
    nowhere = any(index is not None and x.size(d) == 0 for d, index in enumerate(indices) if d < x.dim())
    if nowhere and math.prod(shape):
        raise IndexError("index is out of bounds for dimension with size 0")


def _index_meta(self: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> torch.Tensor:
    _check_indices(self, indices)
    result: torch.Tensor = aten.index.Tensor(self, indices)
    return result


_INDEX_DTYPES = (torch.int64, torch.int32, torch.bool, torch.uint8)


@planner("index.Tensor", "_unsafe_index.Tensor", meta=_index_meta)
def _index(p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> None:
    x = resolved(p, self)
    if all(i is None for i in indices):
        p.copy(out, x)
        return
    places = _places(x, indices)
    plan_move(p, out, x, places.sizes, out.stride(), places.strides, places.indices, reads=True, wraps=True)


@composite("index_put", "_unsafe_index_put", when=_has_masks)
def _put_masks(
    self: torch.Tensor, indices: Any, values: torch.Tensor, accumulate: bool = False, unsafe: bool = False
) -> torch.Tensor:
    result: torch.Tensor = _put_masks_into(self.clone(), indices, values, accumulate)
    return result


@composite("index_put_", "_index_put_impl_", when=_has_masks)
def _put_masks_into(
    self: torch.Tensor, indices: Any, values: torch.Tensor, accumulate: bool = False, unsafe: bool = False
) -> torch.Tensor:
    masks = [i for i in indices if i is not None]
    if len(masks) == 1 and values.numel() == 1 and not accumulate and all(i is None for i in indices[:-1]):
        mask = masks[0].to(self.device)
        before = len(indices) - 1
        if mask.shape == self.shape[before : before + mask.dim()]:
            wide = mask.reshape(*mask.shape, *(1 for _ in self.shape[before + mask.dim() :]))
            return self.masked_fill_(wide, values.reshape(()).to(self.device, self.dtype))
    result: torch.Tensor = aten.index_put_.default(self, _without_masks(self, indices), values, accumulate)
    return result


def _check_put(message: str, destination: torch.Tensor, source: torch.Tensor) -> None:
    if source.dtype != destination.dtype:
        raise RuntimeError(
            f"{message}, got {dtype_name(destination.dtype)} for the destination and {dtype_name(source.dtype)} "
            "for the source."
        )


def _put(
    p: PlanBuilder,
    out: torch.Tensor,
    self: torch.Tensor,
    indices: Sequence[torch.Tensor | None],
    values: torch.Tensor,
    accumulate: bool,
) -> None:
    message = "Index put requires the source and destination dtypes match"
    _check_indices(self, indices)
    if all(i is None for i in indices):
        _check_put(message, self, values)
        start_from(p, out, self)
        if accumulate:
            p.call_out(aten.add.Tensor, out, out, values)
        else:
            p.copy(out, values)
        return
    sizes = _places(self, indices).sizes
    if _cannot_expand(values.shape, sizes):
        raise RuntimeError(
            f"shape mismatch: value tensor of shape {list(values.shape)} cannot be broadcast to indexing result of "
            f"shape {sizes}"
        )
    _check_put(message, self, values)
    with collecting(p, out, self, rounds=accumulate) as total:
        _put_into(p, total, indices, resolved(p, values).expand(sizes), accumulate)


def _put_into(
    p: PlanBuilder, out: torch.Tensor, indices: Sequence[torch.Tensor | None], values: torch.Tensor, accumulate: bool
) -> None:
    """Puts values, which have a place each, or adds them to what is there."""
    places = _places(out, indices)
    if not accumulate and not in_order():
        plan_move(p, out, values, places.sizes, places.strides, values.stride(), places.indices, False, wraps=True)
        return
    # The dimensions of the indices become rows: one dimension of one stride for each operand.
    first, last = places.first, places.first + places.count
    rows = math.prod(places.sizes[first:last])
    values = values.movedim(tuple(range(first, last)), tuple(range(places.count)))
    flat = values.reshape(rows, *values.shape[places.count :]) if _is_view(values, places.count) else None
    if flat is None:
        flat = p.contiguous(values).view(rows, *values.shape[places.count :])
    shape = places.sizes[first:last]
    collected = []
    for index in places.indices:
        spec = p.contiguous(index.spec.expand(shape)).reshape(-1)
        collected.append(
            Index(spec, [0] * max(1, flat.dim() - 1), index.limit, index.step, index.message, spec.stride(0))
        )
    free = [*places.sizes[:first], *places.sizes[last:]] or [1]
    to = [*places.strides[:first], *places.strides[last:]] or [0]
    by = list(flat.stride()[1:]) or [0]
    combine = SUM if accumulate else ""
    plan_collect(Collected(p, out, flat, rows, free, to, by, flat.stride(0), collected, combine, wraps=True))


def _cannot_expand(shape: Sequence[int], to: Sequence[int]) -> bool:
    pairs = zip(reversed(shape), reversed(to), strict=False)
    return len(shape) > len(to) or any(n not in (1, wanted) for n, wanted in pairs)


def _is_view(x: torch.Tensor, count: int) -> bool:
    """The first `count` dimensions can be one without a copy."""
    try:
        x.view(math.prod(x.shape[:count]), *x.shape[count:])
    except RuntimeError:
        return False
    return True


def _declare_put() -> None:
    def put(
        p: PlanBuilder,
        out: torch.Tensor,
        self: torch.Tensor,
        indices: Sequence[torch.Tensor | None],
        values: torch.Tensor,
        accumulate: bool = False,
        unsafe: bool = False,
    ) -> None:
        _put(p, out, self, indices, values, accumulate)

    names = ("_index_put_impl_", "index_put", "_unsafe_index_put")
    apart = ("indices", "values")
    planner(*names, inplace_safe=True, apart=apart)(put)


_declare_put()


@planner("put_", inplace_safe=True, apart=("index", "source"))
def _put_linear(
    p: PlanBuilder,
    out: torch.Tensor,
    self: torch.Tensor,
    index: torch.Tensor,
    source: torch.Tensor,
    accumulate: bool = False,
) -> None:
    if index.dtype != torch.int64:
        raise RuntimeError(f"put_(): Expected a long tensor for index, but got {dtype_name(index.dtype)}")
    if index.numel() != source.numel():
        raise IndexError(
            f"put_(): Expected source and index to have the same number of elements, but got {source.numel()} and "
            f"{index.numel()}"
        )
    _check_put("put_(): self and source expected to have the same dtype", self, source)
    message = f"out of range: tried to access index {{}} on a tensor of {self.numel()} elements."
    with collecting(p, out, self, rounds=accumulate) as total:
        target = p.contiguous(total)
        flat, source = target.view(-1), p.contiguous(source).view(-1)
        rows_into(p, flat, 0, p.contiguous(index).view(-1), source, message, SUM if accumulate else None, wraps=True)
        if target is not total:
            p.copy(total, target)
