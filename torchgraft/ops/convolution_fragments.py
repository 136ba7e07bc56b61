"""Convolutions of 16-bit floats as products by a GPU's matrix units, which are so quick that to write the patches of
images to memory first pays: the factors of such products must lie in memory as they are."""

from __future__ import annotations

import math

import torch

from torchgraft.codegen import element_type
from torchgraft.kernels import fragments
from torchgraft.kernels.convolution import all_patches_launch
from torchgraft.kernels.geometry import Direction, Geometry
from torchgraft.ops.matmul import plan_product
from torchgraft.plans import PlanBuilder

# Patches of more bytes are not written: memory is dearer than time then.
_MOST_BYTES = 1 << 30
# Fewer filters or shorter sums leave most of a square empty, and so do fewer pixels of an image; the images of a batch
# are one product then, and are put in order afterwards.
_LEAST_FILTERS, _LEAST_SUMS, _LEAST_PIXELS = 16, 32, 96


def _suits(p: PlanBuilder, g: Geometry, dtype: torch.dtype, sums: int, filters: int, pixels: int) -> bool:
    return (
        p.form == "gpu"
        and p.target.fragments
        and element_type(dtype).name in fragments.STORAGES
        and g.groups == 1
        and g.batch > 0
        and sums >= _LEAST_SUMS
        and filters >= _LEAST_FILTERS
        and sums * g.batch * pixels * dtype.itemsize <= _MOST_BYTES
    )


def _patches(p: PlanBuilder, g: Geometry, direction: Direction, source: torch.Tensor) -> torch.Tensor:
    """The patches of all images: [channels * taps, batch * pixels]."""
    forward = direction == "forward"
    channels, pixels = (g.image_channels, g.result) if forward else (g.result_channels, g.image)
    patches = p.empty((channels * math.prod(g.taps), g.batch * math.prod(pixels)), source.dtype)
    launch = all_patches_launch(element_type(source.dtype).name, g, direction, patches, source)
    p.launch(launch.kernel, launch.groups, **launch.arguments)
    return patches


def plan_images_by_fragments(
    p: PlanBuilder,
    g: Geometry,
    direction: Direction,
    out: torch.Tensor,
    source: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
) -> bool:
    """Plans images made of images, or says no where other ways are quicker."""
    forward = direction == "forward"
    filters, channels = (g.result_channels, g.image_channels) if forward else (g.image_channels, g.result_channels)
    pixels = math.prod(g.result if forward else g.image)
    sums = channels * math.prod(g.taps)
    if not _suits(p, g, out.dtype, sums, filters, pixels):
        return False
    patches = _patches(p, g, direction, source)
    matrix = weight.flatten(1) if forward else p.contiguous(weight.transpose(0, 1)).flatten(1)
    addend = None if bias is None else bias.view(-1, 1)
    target = out.view(g.batch, filters, pixels)
    if pixels >= _LEAST_PIXELS or g.batch == 1:
        images = patches.view(sums, g.batch, pixels).transpose(0, 1)
        plan_product(p, target, matrix.expand(g.batch, filters, sums), images, addend)
    else:
        made = p.empty((filters, g.batch * pixels), out.dtype)
        plan_product(p, made, matrix, patches, addend)
        p.copy(target, made.view(filters, g.batch, pixels).transpose(0, 1))
    return True


def plan_weight_by_fragments(
    p: PlanBuilder, g: Geometry, grad_weight: torch.Tensor, image: torch.Tensor, result: torch.Tensor
) -> bool:
    """Plans the weight's gradient, or says no where other ways are quicker."""
    pixels = math.prod(g.result)
    sums = g.image_channels * math.prod(g.taps)
    if not _suits(p, g, grad_weight.dtype, sums, g.result_channels, pixels):
        return False
    patches = _patches(p, g, "forward", image)
    filters = p.contiguous(result.view(g.batch, g.result_channels, pixels).transpose(0, 1)).flatten(1)
    plan_product(p, grad_weight.view(g.result_channels, sums), filters, patches.t())
    return True
