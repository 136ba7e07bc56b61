"""Convolutions as products of matrices, one of which has the patches of images (im2col), on CPUs."""

from __future__ import annotations

import math

import torch

from torchgraft.codegen import element_type
from torchgraft.codegen.tuning import SmallImages
from torchgraft.kernels.convolution.geometry import Geometry
from torchgraft.kernels.convolution.patches import LARGEST_IMAGE, patch_sums_launch, patches_launch, zip_launch
from torchgraft.ops.convolution.problem import Images, WeightGradient, patches_bytes
from torchgraft.ops.matmul import plan_product
from torchgraft.plans import PlanBuilder

# ---- Filters that lie beside each other, as in a vision transformer: each element of an image is in one patch. ----


def _lie_beside(c: Images | WeightGradient) -> bool:
    """Whether a convolution may be a copy of patches and a product."""
    g, sizes = c.g, c.on.tuning.im2col
    beside = g.stride == g.taps and g.padding == (0, 0, 0) and g.dilation == (1, 1, 1) and g.groups == 1
    large = g.result_channels >= sizes.channels and math.prod(g.result) >= sizes.pixels and math.prod(g.taps) > 1
    return g.batch > 0 and beside and large


def why_not_beside(c: Images) -> str:
    """Why the filters' places are not patches of their own."""
    g = c.g
    if not c.is_cpu:
        return "CPUs"
    if not _lie_beside(c):
        return "filters that lie beside each other"
    if c.is_forward:
        many = g.result_channels >= c.on.tuning.im2col.filters  # they pay for a copy by elements
        return "" if _has_lines(c) or many else "long lines, or many filters"
    whole = all(size == n * taps for size, n, taps in zip(g.image, g.result, g.taps, strict=True))
    return "" if whole else "filters that reach every pixel"


def plan_beside(c: Images) -> None:
    (_plan_from_patches if c.is_forward else _plan_to_patches)(c)


def _has_lines(c: Images | WeightGradient) -> bool:
    return c.g.taps[2] >= c.on.tuning.im2col.line


def why_not_weight_of_lines(c: WeightGradient) -> str:
    if c.p.form != "cpu":
        return "CPUs"
    return "" if _lie_beside(c) and _has_lines(c) else "filters with long lines that lie beside each other"


def _patches(g: Geometry, image: torch.Tensor) -> torch.Tensor:
    """The image as [batch, channels, taps..., pixels of the result...]."""
    x = image.view(*image.shape[:2], *g.image)
    for axis, (pixels, taps) in enumerate(zip(g.result, g.taps, strict=True)):
        x = x.narrow(2 + 2 * axis, 0, pixels * taps).unflatten(2 + 2 * axis, (pixels, taps))
    return x.permute(0, 1, 3, 5, 7, 2, 4, 6)


def _lines(g: Geometry, image: torch.Tensor) -> torch.Tensor:
    """The image as [batch, pixels of the result..., channels, taps...]."""
    return _patches(g, image).permute(0, 5, 6, 7, 1, 2, 3, 4)


def _plan_from_patches(c: Images) -> None:
    """The forward convolution."""
    p, g = c.p, c.g
    if _has_lines(c):
        patches = p.contiguous(_lines(g, c.source)).flatten(4).flatten(1, 3).mT
    else:
        patches = p.contiguous(_patches(g, c.source)).flatten(5).flatten(1, 4)
    filters = c.weight.flatten(1)
    plan_product(p, c.out.flatten(2), filters.expand(g.batch, *filters.shape), patches, c.addend)


def _plan_to_patches(c: Images) -> None:
    """The image's gradient, and the transposed convolution."""
    p, g = c.p, c.g
    target = _lines(g, c.out) if _has_lines(c) else _patches(g, c.out)
    made = p.empty(target.shape, c.out.dtype)
    product = made.flatten(4).flatten(1, 3).mT if _has_lines(c) else made.flatten(5).flatten(1, 4)
    filters = c.weight.flatten(1).t()
    addend = None
    if c.bias is not None:
        addend = p.contiguous(c.bias.view(-1, 1).expand(-1, math.prod(g.taps))).view(-1, 1)
    plan_product(p, product, filters.expand(g.batch, *filters.shape), c.source.flatten(2), addend)
    launch = None if _has_lines(c) else zip_launch(c.storage, g, c.out, made)
    if launch is None:
        p.copy(target, made)
    else:
        c.launch(launch)


def plan_weight_of_lines(c: WeightGradient) -> None:
    """One product, whose sums go over the pixels of all images."""
    patches = c.p.contiguous(_lines(c.g, c.image)).flatten(4).flatten(0, 3)
    plan_product(c.p, c.out.flatten(1), _of_all_images(c.p, c.result), patches)


# ---- Small images, which do not fill vectors of their own: a product with the patches of all of them. ----


def _limits(c: Images | WeightGradient) -> SmallImages:
    return c.on.tuning.packed_images if c.by_pairs else c.on.tuning.small_images


def why_not_small(c: Images) -> str:
    """Why the patches of all images are not one matrix."""
    g, storage = c.g, c.storage
    if not c.is_cpu:
        return "CPUs"
    if not (c.by_pairs or storage in ("f32", "f64")) or g.groups > 1:
        return "f32, f64 and packed bf16, in one group"
    limits = _limits(c)
    if min(g.image_channels, g.result_channels) < limits.channels or math.prod(g.taps) == 1:
        return f"{limits.channels} channels or more, and filters of some taps"
    if not 0 < patches_bytes(g, storage) <= c.on.tuning.im2col.patches_bytes:
        return "patches of some MiB"
    most = _most_pixels(c, limits)
    if math.prod(g.result) > most or math.prod(g.image) > LARGEST_IMAGE:
        return f"results of {most} pixels at most"
    # Where lanes are channels, small images cost nothing more.
    return "" if (c.pair_lanes if c.by_pairs else c.lanes) is None else "where lanes do not serve"


def _most_pixels(c: Images, limits: SmallImages) -> int:
    if not c.is_forward:
        return limits.made
    if math.prod(c.g.stride) > 1:
        return limits.strided
    stay = patches_bytes(c.g, c.storage) <= c.on.tuning.im2col.kept_bytes
    return limits.kept if stay and c.g.batch > 1 else limits.read  # one image's columns fill vectors no better


def plan_small(c: Images) -> None:
    (_plan_from_all_patches if c.is_forward else _plan_to_all_patches)(c)


def _of_all_images(p: PlanBuilder, images: torch.Tensor) -> torch.Tensor:
    """[channels, pixels of all images]"""
    return p.contiguous(images.flatten(2).transpose(0, 1)).flatten(1)


def _plan_all_patches(p: PlanBuilder, g: Geometry, image: torch.Tensor) -> torch.Tensor:
    """[channels and taps, pixels of all results]"""
    patches = p.empty((g.image_channels * math.prod(g.taps), g.batch * math.prod(g.result)), image.dtype)
    launch = patches_launch(element_type(image.dtype).name, g, patches, image)
    p.launch(launch.kernel, launch.groups, **launch.arguments)
    return patches


def _plan_from_all_patches(c: Images) -> None:
    p, g, out = c.p, c.g, c.out
    made = out.flatten(2) if g.batch == 1 else p.empty((g.result_channels, g.batch, math.prod(g.result)), out.dtype)
    patches = _plan_all_patches(p, g, c.source)
    plan_product(p, made.view(g.result_channels, -1), c.weight.flatten(1), patches, c.addend)
    if g.batch > 1:
        p.copy(out.flatten(2), made.transpose(0, 1))


def _plan_to_all_patches(c: Images) -> None:
    p, g, out = c.p, c.g, c.out
    # Of bfloat16 the patches are float32: their sums are rounded once.
    dtype = torch.float64 if out.dtype == torch.float64 else torch.float32
    patches = p.empty((g.image_channels * math.prod(g.taps), g.batch * math.prod(g.result)), dtype)
    plan_product(p, patches, c.weight.flatten(1).t(), _of_all_images(p, c.source))
    c.launch(patch_sums_launch(c.storage, g, out, patches, c.bias))


def why_not_weight_by_pairs(c: WeightGradient) -> str:
    if not c.by_pairs:
        return "packed bf16"
    sizes = c.on.tuning.im2col
    if c.g.groups > 1 or c.g.batch == 0 or c.g.image_channels < sizes.packed_channels:
        return f"{sizes.packed_channels} channels or more in one group"
    return "" if patches_bytes(c.g, c.storage) <= sizes.patches_bytes else "patches of some MiB"


def plan_weight_of_all_patches(c: WeightGradient) -> None:
    """One product, whose sums go over the pixels of all images."""
    # In this order: the copies are steps.
    result = _of_all_images(c.p, c.result)
    plan_product(c.p, c.out.flatten(1), result, _plan_all_patches(c.p, c.g, c.image).t())
