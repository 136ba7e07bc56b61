"""Long rows that several work-items sort: the passes over digits."""

from __future__ import annotations

import torch

from torchgraft.codegen import ceil_div
from torchgraft.codegen.types import MOVES
from torchgraft.codegen.walk import FEW
from torchgraft.kernels.sorting import radix as kernels
from torchgraft.kernels.sorting.keys import key_type, passes
from torchgraft.ops.sorting.problem import Rows
from torchgraft.plans.grid import Grid


def _parts(r: Rows, parts: int) -> tuple[int, Grid, torch.Tensor]:
    """Elements of each of about so many parts, the grid of a pass, and the parts' counts of digits."""
    part = ceil_div(r.length, parts)
    parts = ceil_div(r.length, part)
    grid = r.p.walk(parts, part, multiple=1, group=FEW).by(r.count)
    return part, grid, r.p.empty((r.count, 256, parts), torch.int32)


def _buffers(r: Rows) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Keys and their indices on either side of a pass."""
    return [r.keys(*r.x.shape) for _ in range(2)], [r.p.empty(r.x.shape, torch.int32) for _ in range(2)]


def _finish(r: Rows, **order: object) -> None:
    kernel = kernels.finish_kernel(MOVES[r.x.element_size()], r.p.form)
    grid = r.p.walk(r.x.shape, 2)
    r.p.launch(kernel, grid, values=r.p.bits(r.values), indices=r.indices, x=r.p.bits(r.x), **order)


def plan_on_cpu(r: Rows) -> None:
    """A pass over digits that are the same in all of a row leaves the row as it is."""
    p, key, (keys, orders) = r.p, key_type(r.type), _buffers(r)
    part, grid, counts = _parts(r, 8 * p.device.compute_units)
    parts, sizes = counts.size(2), {"length": r.length, "part": part}
    bounds = p.empty((r.count, parts, 3), torch.int64)
    kernel = kernels.bounded_key_kernel(r.type, r.descending)
    p.launch(kernel, grid, keys=keys[0], orders=orders[0], bounds=bounds, x=r.x, **sizes)
    both_orders = {"orders_0": orders[0], "orders_1": orders[1]}
    for number in range(passes(r.type)):
        given = {"keys_0": keys[0], "keys_1": keys[1], "counts": counts, "bounds": bounds, "shift": 8 * number, **sizes}
        p.launch(kernels.count_kernel(key, "cpu"), grid, **given)
        p.launch(kernels.scan_kernel("cpu"), p.long_rows(r.count, 256 * parts), counts=counts)
        p.launch(kernels.scatter_kernel(key, "cpu"), grid, **given, **both_orders)
    _finish(r, **both_orders, bounds=bounds, parts=parts, bits=8 * passes(r.type))


def plan_on_gpu(r: Rows) -> None:
    """Of a GPU's many parts a group for each digit finds where they begin within it, and one for each row where the
    digits begin."""
    p, key, (keys, orders) = r.p, key_type(r.type), _buffers(r)
    part, grid, counts = _parts(r, ceil_div(r.length, r.sizes.gpu_part))
    rows, digits, parts = counts.shape
    p.launch(kernels.key_kernel(r.type, r.descending), p.walk(r.x.shape), keys=keys[0], orders=orders[0], x=r.x)
    for number in range(passes(r.type)):
        given = {"keys": keys[0], "counts": counts, "length": r.length, "part": part, "shift": 8 * number}
        p.fill(counts, 0)
        p.launch(kernels.count_kernel(key, "gpu"), grid, **given)
        starts = p.empty((rows, digits), torch.int32)
        p.launch(kernels.scan_kernel("gpu", True), p.long_rows(rows * digits, parts), counts=counts, totals=starts)
        p.launch(kernels.scan_kernel("gpu"), p.long_rows(rows, digits), counts=starts)
        scatter = kernels.scatter_kernel(key, "gpu")
        p.launch(scatter, grid, to=keys[1], to_order=orders[1], orders=orders[0], starts=starts, **given)
        keys, orders = keys[::-1], orders[::-1]
    _finish(r, orders=orders[0])
