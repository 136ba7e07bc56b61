"""Convolutions of 16-bit floats as products by a GPU's matrix units, which are so quick that to write the patches of
images to memory first pays: the factors of such products must lie in memory as they are."""

from __future__ import annotations

import math

import torch

from torchgraft.codegen import element_type
from torchgraft.kernels import fragments
from torchgraft.kernels.convolution.direct import all_patches_launch
from torchgraft.kernels.convolution.geometry import Direction, channels_of, sizes_of
from torchgraft.ops.convolution.problem import Images, WeightGradient
from torchgraft.ops.matmul import plan_product


def _why_not(c: Images | WeightGradient, sums: int, filters: int, pixels: int) -> str:
    g, sizes = c.g, c.on.tuning.matrix_units
    if c.is_cpu or not c.on.matrix_units:
        return "GPUs with matrix units"
    if c.storage not in fragments.STORAGES:
        return " and ".join(fragments.STORAGES)
    if g.groups > 1 or g.batch == 0 or sums < sizes.least_taps or filters < sizes.least_filters:
        return f"{sizes.least_filters} filters or more of {sizes.least_taps} elements, in one group"
    most = sizes.patches_bytes
    return "" if sums * g.batch * pixels * c.out.dtype.itemsize <= most else f"patches of at most {most} bytes"


def _patches(c: Images | WeightGradient, direction: Direction, source: torch.Tensor) -> torch.Tensor:
    """The patches of all images: [channels * taps, batch * pixels]."""
    g = c.g
    (target, _), (_, channels) = sizes_of(g, direction), channels_of(g, direction)
    patches = c.p.empty((channels * math.prod(g.taps), g.batch * math.prod(target)), source.dtype)
    c.launch(all_patches_launch(element_type(source.dtype).name, g, direction, patches, source))
    return patches


def _sums(c: Images) -> int:
    return channels_of(c.g, c.direction)[1] * math.prod(c.g.taps)


def why_not_images(c: Images) -> str:
    return _why_not(c, _sums(c), c.filters, c.pixels)


def plan_images(c: Images) -> None:
    p, g, sums, filters, pixels = c.p, c.g, _sums(c), c.filters, c.pixels
    patches = _patches(c, c.direction, c.source)
    matrix = c.weight.flatten(1) if c.is_forward else p.contiguous(c.weight.transpose(0, 1)).flatten(1)
    target = c.out.view(g.batch, filters, pixels)
    # The images of a batch are one product where they are small, and are put in order afterwards.
    if pixels >= c.on.tuning.matrix_units.least_pixels or g.batch == 1:
        images = patches.view(sums, g.batch, pixels).transpose(0, 1)
        plan_product(p, target, matrix.expand(g.batch, filters, sums), images, c.addend)
    else:
        made = p.empty((filters, g.batch * pixels), c.out.dtype)
        plan_product(p, made, matrix, patches, c.addend)
        p.copy(target, made.view(filters, g.batch, pixels).transpose(0, 1))


def why_not_weight(c: WeightGradient) -> str:
    return _why_not(c, c.g.image_channels * math.prod(c.g.taps), c.g.result_channels, math.prod(c.g.result))


def plan_weight(c: WeightGradient) -> None:
    g, pixels = c.g, math.prod(c.g.result)
    patches = _patches(c, "forward", c.image)
    filters = c.p.contiguous(c.result.view(g.batch, g.result_channels, pixels).transpose(0, 1)).flatten(1)
    plan_product(c.p, c.out.view(g.result_channels, -1), filters, patches.t())
