"""Planners of convolution. torch brings every convolution of a PrivateUse1 device to the two `*_overrideable` ops."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from torchgraft.codegen import element_type
from torchgraft.codegen.types import BY_NAME
from torchgraft.kernels import boxes_bfloat16
from torchgraft.kernels.convolution import convolution_launch, weight_launches
from torchgraft.kernels.geometry import Direction, Geometry, Triple
from torchgraft.kernels.patches import LARGEST_IMAGE, patch_sums_launch, patches_launch
from torchgraft.ops.matmul import plan_product
from torchgraft.plans import PlanBuilder, Unsupported, planner

_LARGEST = 2**31 - 1


def _triple(values: Sequence[int], missing: int) -> Triple:
    x = [missing] * (3 - len(values)) + [int(v) for v in values]
    return (x[0], x[1], x[2])


def _geometry(
    image: torch.Tensor,
    weight: torch.Tensor,
    result: torch.Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Geometry:
    dims = image.dim() - 2
    if dims > 3:
        raise Unsupported("a convolution over more than three dimensions")
    if max(image.numel(), result.numel(), weight.numel()) > _LARGEST:
        raise Unsupported("a convolution of more than 2**31 elements")

    def full(values: Sequence[int]) -> list[int]:
        return [int(v) for v in values] * (dims if len(values) == 1 else 1)

    return Geometry(
        batch=image.shape[0],
        groups=groups,
        image_channels=image.shape[1],
        result_channels=result.shape[1],
        image=_triple(image.shape[2:], 1),
        result=_triple(result.shape[2:], 1),
        taps=_triple(weight.shape[2:], 1),
        stride=_triple(full(stride), 1),
        padding=_triple(full(padding), 0),
        dilation=_triple(full(dilation), 1),
    )


def _storage(spec: torch.Tensor) -> str:
    name = element_type(spec.dtype).name
    if name == "b8" or element_type(spec.dtype).is_complex:
        raise Unsupported(f"a convolution of {spec.dtype}")
    return name


def _forward_meta(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
) -> torch.Tensor:
    out = torch.ops.aten.convolution.default(
        input, weight, bias, stride, padding, dilation, transposed, output_padding, groups
    )
    return torch.empty(out.shape, dtype=out.dtype, device="meta")


# A matrix product of less than so many rows, sums or columns does not pay.
_LEAST_CHANNELS, _LEAST_PIXELS = 8, 32


def _is_product(p: PlanBuilder, g: Geometry) -> bool:
    """Whether each image is the product of the filters, of one tap, and an image as it lies: of which CPUs' kernels
    prepare less than those of other convolutions."""
    single = math.prod(g.taps) == 1 and g.stride == (1, 1, 1) and g.padding == (0, 0, 0) and g.groups == 1
    large = min(g.image_channels, g.result_channels) >= _LEAST_CHANNELS and math.prod(g.image) >= _LEAST_PIXELS
    return p.form == "cpu" and single and large


# ---- Filters that lie beside each other, as in a vision transformer: each element of an image is in one patch. ----

# Patches whose lines are so long are copied one after the other; others go by their elements, which takes longer: to
# read them pays for the products of so many filters, and not for a weight's gradient.
_LONG_LINE, _MANY_FILTERS = 8, 192


def _has_patches(p: PlanBuilder, g: Geometry) -> bool:
    """Whether a convolution may be a copy of patches and a product."""
    beside = g.stride == g.taps and g.padding == (0, 0, 0) and g.dilation == (1, 1, 1) and g.groups == 1
    large = g.result_channels >= _LEAST_CHANNELS and math.prod(g.result) >= _LEAST_PIXELS and math.prod(g.taps) > 1
    return p.form == "cpu" and g.batch > 0 and beside and large


def _images_have_patches(p: PlanBuilder, g: Geometry, forward: bool) -> bool:
    if not _has_patches(p, g):
        return False
    if forward:
        return _has_lines(g) or g.result_channels >= _MANY_FILTERS
    return all(size == n * taps for size, n, taps in zip(g.image, g.result, g.taps, strict=True))


def _has_lines(g: Geometry) -> bool:
    return g.taps[2] >= _LONG_LINE


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
    p.copy(target, made)


def _plan_weight_of_patches(
    p: PlanBuilder, g: Geometry, out: torch.Tensor, image: torch.Tensor, result: torch.Tensor
) -> None:
    """One product, whose sums go over the pixels of all images."""
    patches = p.contiguous(_lines(g, image)).flatten(4).flatten(0, 3)
    plan_product(p, out.flatten(1), _of_all_images(p, result), patches)


# ---- Small images, which do not fill vectors of their own: a product with the patches of all of them. ----

_PATCHES_BYTES = 64 << 20


@dataclass(frozen=True)
class _Small:
    """What pays: pixels of a result at most, read with a stride of one and with another, and of a result whose image is
    made; and channels at least, since to copy the patches of few takes as long as it saves.
    """

    read: int
    strided: int
    made: int
    channels: int


_SMALL = _Small(read=9, strided=100, made=256, channels=96)
_SMALL_PAIRS = _Small(read=100, strided=256, made=64, channels=128)


def _patches_bytes(g: Geometry, storage: str) -> int:
    return BY_NAME[storage].size * g.image_channels * math.prod(g.taps) * g.batch * math.prod(g.result)


def _is_small(p: PlanBuilder, g: Geometry, storage: str, forward: bool) -> bool:
    by_pairs = storage == "bf16" and p.device.bfloat16 is not None
    limits = _SMALL_PAIRS if by_pairs else _SMALL
    most = limits.made if not forward else limits.read if math.prod(g.stride) == 1 else limits.strided
    small = math.prod(g.result) <= most and math.prod(g.image) <= LARGEST_IMAGE
    fits = 0 < _patches_bytes(g, storage) <= _PATCHES_BYTES
    many = min(g.image_channels, g.result_channels) >= limits.channels and math.prod(g.taps) > 1
    return p.form == "cpu" and (by_pairs or storage in ("f32", "f64")) and g.groups == 1 and small and fits and many


def _of_all_images(p: PlanBuilder, images: torch.Tensor) -> torch.Tensor:
    """[channels, pixels of all images]"""
    return p.contiguous(images.flatten(2).transpose(0, 1)).flatten(1)


def _plan_all_patches(p: PlanBuilder, g: Geometry, image: torch.Tensor) -> torch.Tensor:
    """[channels and taps, pixels of all results]"""
    patches = p.empty((g.image_channels * math.prod(g.taps), g.batch * math.prod(g.result)), image.dtype)
    launch = patches_launch(_storage(image), g, patches, image)
    p.launch(launch.kernel, launch.groups, **launch.arguments)
    return patches


def _plan_small_images(
    p: PlanBuilder,
    g: Geometry,
    direction: Direction,
    out: torch.Tensor,
    source: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
) -> None:
    filters = weight.flatten(1)
    if direction == "forward":
        made = out.flatten(2) if g.batch == 1 else p.empty((g.result_channels, g.batch, math.prod(g.result)), out.dtype)
        target = made.view(g.result_channels, -1)
        plan_product(p, target, filters, _plan_all_patches(p, g, source), None if bias is None else bias.view(-1, 1))
        if g.batch > 1:
            p.copy(out.flatten(2), made.transpose(0, 1))
        return
    # Of bfloat16 the patches are float32: their sums are rounded once.
    dtype = torch.float64 if out.dtype == torch.float64 else torch.float32
    patches = p.empty((filters.shape[1], g.batch * math.prod(g.result)), dtype)
    plan_product(p, patches, filters.t(), _of_all_images(p, source))
    launch = patch_sums_launch(_storage(out), g, out, patches, bias)
    p.launch(launch.kernel, launch.groups, **launch.arguments)


# ---- By a processor's own instructions for pairs of bfloat16. ----

# What is copied of an image must be worth it: fewer channels fill less than half of a block.
_LEAST_CHANNELS_OF_PAIRS = 12


def _suits_pairs(p: PlanBuilder, g: Geometry, storage: str, channels: int) -> bool:
    return (
        storage == "bf16"
        and p.device.bfloat16 is not None
        and g.groups == 1
        and g.batch > 0
        and channels >= _LEAST_CHANNELS_OF_PAIRS
    )


def _plan_images_by_pairs(
    p: PlanBuilder,
    g: Geometry,
    direction: Direction,
    out: torch.Tensor,
    source: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
) -> bool:
    """Says no where there is no such kernel."""
    order = (0, 2, 1) if direction == "forward" else (1, 2, 0)
    filters = p.contiguous(weight.flatten(2).permute(order))
    launch = boxes_bfloat16.box_launch(g, direction, out, source, filters, bias, p.target)
    if launch is not None:
        p.launch(launch.kernel, launch.groups, **launch.arguments)
    return launch is not None


def _plan_weight_by_pairs(
    p: PlanBuilder, g: Geometry, out: torch.Tensor, image: torch.Tensor, result: torch.Tensor
) -> None:
    """One product, whose sums go over the pixels of all images."""
    plan_product(p, out.flatten(1), _of_all_images(p, result), _plan_all_patches(p, g, image).t())


def _plan_images(
    p: PlanBuilder,
    g: Geometry,
    direction: Direction,
    out: torch.Tensor,
    source: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
) -> None:
    """Plans images made of images, as `convolution_launch` has them."""
    storage = _storage(out)
    forward = direction == "forward"
    if _images_have_patches(p, g, forward):
        plan = _plan_from_patches if forward else _plan_to_patches
        plan(p, g, out, source, weight, bias)
        return
    if not _is_product(p, g) and _is_small(p, g, storage, forward):
        _plan_small_images(p, g, direction, out, source, weight, bias)
        return
    if not _is_product(p, g):
        suits = _suits_pairs(p, g, storage, source.shape[1])
        if suits and _plan_images_by_pairs(p, g, direction, out, source, weight, bias):
            return
        launch = convolution_launch(storage, g, direction, out, source, weight, bias, on=p.target)
        p.launch(launch.kernel, launch.groups, **launch.arguments)
        return
    filters = weight.view(weight.shape[:2]) if forward else weight.view(weight.shape[:2]).t()
    target, image = (x.view(*x.shape[:2], -1) for x in (out, source))
    addend = None if bias is None else bias.view(-1, 1)
    plan_product(p, target, filters.expand(g.batch, *filters.shape), image, addend)


@planner("convolution_overrideable", contiguous=True, meta=_forward_meta)
def _convolution(
    p: PlanBuilder,
    out: torch.Tensor,
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
) -> None:
    # A transposed convolution gives the image that an ordinary one would have read.
    image, result = (out, input) if transposed else (input, out)
    g = _geometry(image, weight, result, stride, padding, dilation, groups)
    _plan_images(p, g, "backward" if transposed else "forward", out, input, weight, bias)


def _backward_meta(
    grad_output: torch.Tensor,
    input: torch.Tensor,
    weight: torch.Tensor,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
    output_mask: list[bool],
) -> tuple[torch.Tensor | None, ...]:
    channels = weight.shape[1] * groups if transposed else weight.shape[0]
    shapes = (input.shape, weight.shape, (channels,))
    return tuple(
        torch.empty(shape, dtype=grad_output.dtype, device="meta") if wanted else None
        for shape, wanted in zip(shapes, output_mask, strict=True)
    )


@planner("convolution_backward_overrideable", contiguous=True, meta=_backward_meta)
def _convolution_backward(
    p: PlanBuilder,
    outs: tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None],
    grad_output: torch.Tensor,
    input: torch.Tensor,
    weight: torch.Tensor,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
    output_mask: list[bool],
) -> None:
    grad_input, grad_weight, grad_bias = outs
    image, result = (grad_output, input) if transposed else (input, grad_output)
    g = _geometry(image, weight, result, stride, padding, dilation, groups)
    storage = _storage(grad_output)
    if grad_input is not None:
        _plan_images(p, g, "forward" if transposed else "backward", grad_input, grad_output, weight)
    few = _patches_bytes(g, storage) <= _PATCHES_BYTES
    by_pairs = few and _suits_pairs(p, g, storage, g.image_channels)
    if grad_weight is not None and _has_patches(p, g) and _has_lines(g):
        _plan_weight_of_patches(p, g, grad_weight, image, result)
    elif grad_weight is not None and by_pairs:
        _plan_weight_by_pairs(p, g, grad_weight, image, result)
    elif grad_weight is not None:

        def temporary(count: int, element: str) -> torch.Tensor:
            return p.empty((count,), BY_NAME[element].dtype)

        for launch in weight_launches(storage, g, grad_weight, image, result, temporary, on=p.target):
            p.launch(launch.kernel, launch.groups, **launch.arguments)
    if grad_bias is not None:
        dims = [0, *range(2, grad_output.dim())]
        p.call_out(torch.ops.aten.sum.dim_IntList, grad_bias, grad_output, dims, False)
