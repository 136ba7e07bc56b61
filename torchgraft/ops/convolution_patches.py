"""Convolutions as products of matrices, one of which has the patches of images: on CPUs, where that is quicker."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from torchgraft.codegen import element_type
from torchgraft.codegen.types import BY_NAME
from torchgraft.kernels import channel_lanes, channel_lanes_bfloat16
from torchgraft.kernels.geometry import Direction, Geometry
from torchgraft.kernels.patches import LARGEST_IMAGE, patch_sums_launch, patches_launch, zip_launch
from torchgraft.ops.matmul import plan_product
from torchgraft.plans import PlanBuilder

# A matrix product of less than so many rows, sums or columns does not pay.
LEAST_CHANNELS, LEAST_PIXELS = 8, 32


def plan_images_by_patches(
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
    if _images_have_patches(p, g, forward):
        plan = _plan_from_patches if forward else _plan_to_patches
    elif _is_small(p, g, element_type(out.dtype).name, forward):
        plan = _plan_from_all_patches if forward else _plan_to_all_patches
    else:
        return False
    plan(p, g, out, source, weight, bias)
    return True


# ---- Filters that lie beside each other, as in a vision transformer: each element of an image is in one patch. ----

# Patches whose lines are so long are copied one after the other; others go by their elements, which takes longer: to
# read them pays for the products of so many filters, and not for a weight's gradient.
_LONG_LINE, _MANY_FILTERS = 8, 192


def _has_patches(p: PlanBuilder, g: Geometry) -> bool:
    """Whether a convolution may be a copy of patches and a product."""
    beside = g.stride == g.taps and g.padding == (0, 0, 0) and g.dilation == (1, 1, 1) and g.groups == 1
    large = g.result_channels >= LEAST_CHANNELS and math.prod(g.result) >= LEAST_PIXELS and math.prod(g.taps) > 1
    return p.form == "cpu" and g.batch > 0 and beside and large


def _images_have_patches(p: PlanBuilder, g: Geometry, forward: bool) -> bool:
    if not _has_patches(p, g):
        return False
    if forward:
        return _has_lines(g) or g.result_channels >= _MANY_FILTERS
    return all(size == n * taps for size, n, taps in zip(g.image, g.result, g.taps, strict=True))


def _has_lines(g: Geometry) -> bool:
    return g.taps[2] >= _LONG_LINE


def weight_has_lines(p: PlanBuilder, g: Geometry) -> bool:
    """Whether `plan_weight_of_lines` is the way to a weight's gradient."""
    return _has_patches(p, g) and _has_lines(g)


def _patches(g: Geometry, image: torch.Tensor) -> torch.Tensor:
    """The image as [batch, channels, taps..., pixels of the result...]."""
    x = image.view(*image.shape[:2], *g.image)
    for axis, (pixels, taps) in enumerate(zip(g.result, g.taps, strict=True)):
        x = x.narrow(2 + 2 * axis, 0, pixels * taps).unflatten(2 + 2 * axis, (pixels, taps))
    return x.permute(0, 1, 3, 5, 7, 2, 4, 6)


def _lines(g: Geometry, image: torch.Tensor) -> torch.Tensor:
    """The image as [batch, pixels of the result..., channels, taps...]."""
    return _patches(g, image).permute(0, 5, 6, 7, 1, 2, 3, 4)


def _plan_from_patches(
    p: PlanBuilder,
    g: Geometry,
    out: torch.Tensor,
    image: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
) -> None:
    """The forward convolution."""
    if _has_lines(g):
        patches = p.contiguous(_lines(g, image)).flatten(4).flatten(1, 3).mT
    else:
        patches = p.contiguous(_patches(g, image)).flatten(5).flatten(1, 4)
    filters = weight.flatten(1)
    addend = None if bias is None else bias.view(-1, 1)
    plan_product(p, out.flatten(2), filters.expand(g.batch, *filters.shape), patches, addend)


def _plan_to_patches(
    p: PlanBuilder,
    g: Geometry,
    out: torch.Tensor,
    result: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
) -> None:
    """The image's gradient, and the transposed convolution."""
    target = _lines(g, out) if _has_lines(g) else _patches(g, out)
    made = p.empty(target.shape, out.dtype)
    product = made.flatten(4).flatten(1, 3).mT if _has_lines(g) else made.flatten(5).flatten(1, 4)
    filters = weight.flatten(1).t()
    addend = None
    if bias is not None:
        addend = p.contiguous(bias.view(-1, 1).expand(-1, math.prod(g.taps))).view(-1, 1)
    plan_product(p, product, filters.expand(g.batch, *filters.shape), result.flatten(2), addend)
    launch = None if _has_lines(g) else zip_launch(element_type(out.dtype).name, g, out, made)
    if launch is None:
        p.copy(target, made)
    else:
        p.launch(launch.kernel, launch.groups, **launch.arguments)


def plan_weight_of_lines(
    p: PlanBuilder, g: Geometry, out: torch.Tensor, image: torch.Tensor, result: torch.Tensor
) -> None:
    """One product, whose sums go over the pixels of all images."""
    patches = p.contiguous(_lines(g, image)).flatten(4).flatten(0, 3)
    plan_product(p, out.flatten(1), _of_all_images(p, result), patches)


# ---- Small images, which do not fill vectors of their own: a product with the patches of all of them. ----

PATCHES_BYTES = 64 << 20
# So many stay in a core's own cache; the one that cores share may be others', too.
_KEPT_BYTES = 1 << 20


@dataclass(frozen=True)
class _Small:
    """What pays: pixels of a result at most, read with a stride of one, also where the patches stay in caches, and with
    another stride, and of a result whose image is made; and channels at least, since to copy the patches of few takes
    as long as it saves.
    """

    read: int
    kept: int
    strided: int
    made: int
    channels: int


_SMALL = _Small(read=9, kept=256, strided=100, made=256, channels=96)
_SMALL_PAIRS = _Small(read=256, kept=256, strided=256, made=64, channels=96)


def patches_bytes(g: Geometry, storage: str) -> int:
    return BY_NAME[storage].size * g.image_channels * math.prod(g.taps) * g.batch * math.prod(g.result)


def _is_small(p: PlanBuilder, g: Geometry, storage: str, forward: bool) -> bool:
    by_pairs = storage == "bf16" and p.device.bfloat16 is not None
    limits = _SMALL_PAIRS if by_pairs else _SMALL
    if not forward:
        most = limits.made
    elif math.prod(g.stride) > 1:
        most = limits.strided
    else:
        kept = g.batch > 1 and patches_bytes(g, storage) <= _KEPT_BYTES  # one image's columns fill vectors no better
        most = limits.kept if kept else limits.read
    small = math.prod(g.result) <= most and math.prod(g.image) <= LARGEST_IMAGE
    fits = 0 < patches_bytes(g, storage) <= PATCHES_BYTES
    many = min(g.image_channels, g.result_channels) >= limits.channels and math.prod(g.taps) > 1
    suits = p.form == "cpu" and (by_pairs or storage in ("f32", "f64")) and g.groups == 1 and small and fits and many
    # Where lanes are channels, small images cost nothing more.
    direction: Direction = "forward" if forward else "backward"
    if by_pairs:
        return suits and channel_lanes_bfloat16.choose_lanes(g, direction, p.target) is None
    return suits and channel_lanes.choose_lanes(storage, g, direction, p.target) is None


def _of_all_images(p: PlanBuilder, images: torch.Tensor) -> torch.Tensor:
    """[channels, pixels of all images]"""
    return p.contiguous(images.flatten(2).transpose(0, 1)).flatten(1)


def _plan_all_patches(p: PlanBuilder, g: Geometry, image: torch.Tensor) -> torch.Tensor:
    """[channels and taps, pixels of all results]"""
    patches = p.empty((g.image_channels * math.prod(g.taps), g.batch * math.prod(g.result)), image.dtype)
    launch = patches_launch(element_type(image.dtype).name, g, patches, image)
    p.launch(launch.kernel, launch.groups, **launch.arguments)
    return patches


def _plan_from_all_patches(
    p: PlanBuilder,
    g: Geometry,
    out: torch.Tensor,
    image: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
) -> None:
    made = out.flatten(2) if g.batch == 1 else p.empty((g.result_channels, g.batch, math.prod(g.result)), out.dtype)
    addend = None if bias is None else bias.view(-1, 1)
    plan_product(p, made.view(g.result_channels, -1), weight.flatten(1), _plan_all_patches(p, g, image), addend)
    if g.batch > 1:
        p.copy(out.flatten(2), made.transpose(0, 1))


def _plan_to_all_patches(
    p: PlanBuilder,
    g: Geometry,
    out: torch.Tensor,
    result: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
) -> None:
    # Of bfloat16 the patches are float32: their sums are rounded once.
    dtype = torch.float64 if out.dtype == torch.float64 else torch.float32
    patches = p.empty((g.image_channels * math.prod(g.taps), g.batch * math.prod(g.result)), dtype)
    plan_product(p, patches, weight.flatten(1).t(), _of_all_images(p, result))
    launch = patch_sums_launch(element_type(out.dtype).name, g, out, patches, bias)
    p.launch(launch.kernel, launch.groups, **launch.arguments)


def plan_weight_of_all_patches(
    p: PlanBuilder, g: Geometry, out: torch.Tensor, image: torch.Tensor, result: torch.Tensor
) -> None:
    """One product, whose sums go over the pixels of all images."""
    plan_product(p, out.flatten(1), _of_all_images(p, result), _plan_all_patches(p, g, image).t())
