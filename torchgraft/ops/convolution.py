"""Planners of convolution. torch brings every convolution of a PrivateUse1 device to the two `*_overrideable` ops."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from torchgraft.codegen import element_type
from torchgraft.kernels import boxes_bfloat16, channel_lanes_bfloat16
from torchgraft.kernels.convolution import convolution_launches, weight_launches
from torchgraft.kernels.geometry import Direction, Geometry, Triple
from torchgraft.ops.convolution_fragments import plan_images_by_fragments, plan_weight_by_fragments
from torchgraft.ops.convolution_patches import (
    LEAST_CHANNELS,
    LEAST_PIXELS,
    PATCHES_BYTES,
    patches_bytes,
    plan_images_by_patches,
    plan_weight_of_all_patches,
    plan_weight_of_lines,
    weight_has_lines,
)
from torchgraft.ops.matmul import plan_product, temporaries
from torchgraft.plans import PlanBuilder, Unsupported, other_out, planner
from torchgraft.plans.refusals import check_same_dtype

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


def _check(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    **_: Any,
) -> None:
    """Refuses what the kernels of torch's CPU do; its meta function counts the pixels and looks no further."""
    check_same_dtype(input, weight, bias)
    if any(step <= 0 for step in dilation):
        raise RuntimeError(f"dilation should be greater than zero, but got {list(dilation)}")
    if 0 in weight.shape[2:]:
        raise RuntimeError(f"kernel size should be greater than zero, but got {list(weight.shape[2:])}")
    sizes = zip(output_padding, stride, dilation, strict=False)
    if transposed and any(padding >= max(of_stride, of_dilation) for padding, of_stride, of_dilation in sizes):
        raise RuntimeError(
            f"output padding must be smaller than either stride or dilation, but got output_padding: "
            f"{list(output_padding)} stride: {list(stride)} dilation: {list(dilation)}"
        )


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


# Of smaller images a GPU's other kernels have all pixels of a batch side by side.
_LEAST_PIXELS_OF_GPU = 128


def _is_product(p: PlanBuilder, g: Geometry) -> bool:
    """Whether each image is the product of the filters, of one tap, and an image as it lies: of which kernels prepare
    less than those of other convolutions."""
    single = math.prod(g.taps) == 1 and g.stride == (1, 1, 1) and g.padding == (0, 0, 0) and g.groups == 1
    least = LEAST_PIXELS if p.form == "cpu" else _LEAST_PIXELS_OF_GPU
    large = min(g.image_channels, g.result_channels) >= LEAST_CHANNELS and math.prod(g.image) >= least
    return single and large


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
    lanes = channel_lanes_bfloat16.choose_lanes(g, direction, p.target)
    if lanes is not None and channel_lanes_bfloat16.reads_filters_as_they_are(g):
        filters = weight
    else:
        filters = p.contiguous(weight.flatten(2).permute((0, 2, 1) if direction == "forward" else (1, 2, 0)))
    launch = (
        boxes_bfloat16.box_launch(g, direction, out, source, filters, bias, p.target)
        if lanes is None
        else channel_lanes_bfloat16.lanes_launch(lanes, out, source, filters, bias)
    )
    if launch is not None:
        p.launch(launch.kernel, launch.groups, **launch.arguments)
    return launch is not None


def _plan_images(
    p: PlanBuilder,
    g: Geometry,
    direction: Direction,
    out: torch.Tensor,
    source: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
) -> None:
    """Plans images made of images, as `convolution_launches` has them."""
    storage = _storage(out)
    if plan_images_by_patches(p, g, direction, out, source, weight, bias):
        return
    if not _is_product(p, g):
        if plan_images_by_fragments(p, g, direction, out, source, weight, bias):
            return
        suits = _suits_pairs(p, g, storage, source.shape[1])
        if suits and _plan_images_by_pairs(p, g, direction, out, source, weight, bias):
            return
        temporary = temporaries(p)
        launches = convolution_launches(
            storage, g, direction, out, source, weight, bias, temporary=temporary, on=p.target
        )
        for launch in launches:
            p.launch(launch.kernel, launch.groups, **launch.arguments)
        return
    filters = weight.view(weight.shape[:2]) if direction == "forward" else weight.view(weight.shape[:2]).t()
    target, image = (x.view(*x.shape[:2], -1) for x in (out, source))
    addend = None if bias is None else bias.view(-1, 1)
    plan_product(p, target, filters.expand(g.batch, *filters.shape), image, addend)


@planner("convolution_overrideable", contiguous=True, meta=_forward_meta, refuses=(_check, other_out))
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
    few = patches_bytes(g, storage) <= PATCHES_BYTES
    by_pairs = few and _suits_pairs(p, g, storage, g.image_channels)
    if grad_weight is not None and weight_has_lines(p, g):
        plan_weight_of_lines(p, g, grad_weight, image, result)
    elif grad_weight is not None and by_pairs:
        plan_weight_of_all_patches(p, g, grad_weight, image, result)
    elif grad_weight is not None and not plan_weight_by_fragments(p, g, grad_weight, image, result):
        for launch in weight_launches(storage, g, grad_weight, image, result, temporaries(p), on=p.target):
            p.launch(launch.kernel, launch.groups, **launch.arguments)
    if grad_bias is not None:
        dims = [0, *range(2, grad_output.dim())]
        p.call_out(torch.ops.aten.sum.dim_IntList, grad_bias, grad_output, dims, False)
