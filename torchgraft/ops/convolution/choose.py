"""Which kernels a convolution gets. The first way that it suits is taken."""

from __future__ import annotations

import math
from dataclasses import replace

from torchgraft.kernels.choice import Way, choose
from torchgraft.kernels.convolution import channel_lanes, channel_lanes_bfloat16
from torchgraft.kernels.convolution import direct as kernels
from torchgraft.ops.convolution import matrix_units, patches
from torchgraft.ops.convolution.problem import Images, WeightGradient
from torchgraft.ops.matmul import plan_product


def _for_gpus(c: Images | WeightGradient) -> str:
    return "GPUs" if c.is_cpu else ""


def _for_cpus(c: Images | WeightGradient) -> str:
    return "" if c.is_cpu else "CPUs"


# ---- Images made of images. ----


def _why_no_product(c: Images) -> str:
    """Whose kernels prepare less than those of other convolutions."""
    g = c.g
    if not (math.prod(g.taps) == 1 and g.stride == (1, 1, 1) and g.padding == (0, 0, 0) and g.groups == 1):
        return "filters of one tap"
    sizes = c.on.tuning
    least = sizes.im2col.pixels if c.is_cpu else sizes.gpu_images.pixels
    channels = sizes.im2col.channels
    large = min(g.image_channels, g.result_channels) >= channels and math.prod(g.image) >= least
    return "" if large else f"{channels} channels and {least} pixels or more"


def _plan_product(c: Images) -> None:
    """Each image is the product of the filters and an image as it lies."""
    filters = c.weight.view(c.weight.shape[:2])
    filters = filters if c.is_forward else filters.t()
    target, image = (x.view(*x.shape[:2], -1) for x in (c.out, c.source))
    plan_product(c.p, target, filters.expand(c.g.batch, *filters.shape), image, c.addend)


def _why_no_pairs(c: Images) -> str:
    if not c.by_pairs:
        return "bf16, on devices with instructions for it"
    least = c.on.tuning.im2col.packed_channels
    if c.g.groups > 1 or c.g.batch == 0 or c.source.shape[1] < least:
        return f"{least} channels or more in one group"
    return ""


def _why_no_pair_lanes(c: Images) -> str:
    return _why_no_pairs(c) or ("" if c.pair_lanes else "lines of equal parts, and channels that fill lanes")


def _plan_pair_lanes(c: Images) -> None:
    assert c.pair_lanes is not None
    filters = c.weight if channel_lanes_bfloat16.reads_filters_as_they_are(c.g) else c.pair_filters()
    c.launch(channel_lanes_bfloat16.lanes_launch(c.pair_lanes, c.out, c.source, filters, c.bias))


def _why_no_pair_boxes(c: Images) -> str:
    return _why_no_pairs(c) or ("" if c.pair_boxes else "filters that fit into a box")


def _plan_pair_boxes(c: Images) -> None:
    assert c.pair_boxes is not None
    filters = c.pair_filters()
    c.launch(replace(c.pair_boxes, arguments={**c.pair_boxes.arguments, "F": filters}))


def _why_no_planes(c: Images) -> str:
    return _for_cpus(c) or ("" if c.planes else "depthwise filters")


def _plan_planes(c: Images) -> None:
    assert c.planes is not None
    c.launch(c.planes)


def _why_not_direct(c: Images) -> str:
    return _for_cpus(c) or ("" if kernels.has_few_channels(c.g, c.direction) else "few channels")


def _plan_direct(c: Images) -> None:
    c.launch(kernels.direct_launch(c.storage, c.g, c.direction, c.operands, c.on))


def _why_no_elements(c: Images) -> str:
    few = kernels.suits_elements(c.g, c.direction, c.on)
    return _for_gpus(c) or ("" if few else "few channels, or strides that leave taps out")


def _plan_elements(c: Images) -> None:
    c.launch(kernels.element_launch(c.storage, c.g, c.direction, c.operands))


def _plan_tile(c: Images) -> None:
    c.launch(*kernels.tile_launches(c.storage, c.g, c.direction, c.operands, c.temporary, c.on))


def _why_no_lanes(c: Images) -> str:
    return _for_cpus(c) or ("" if c.lanes else "wide registers, lines of equal parts, and where boxes cost more")


def _plan_lanes(c: Images) -> None:
    assert c.lanes is not None
    c.launch(channel_lanes.lanes_launch(c.storage, c.lanes, c.out, c.source, c.weight, c.bias, c.on))


def _why_no_boxes(c: Images | WeightGradient) -> str:
    return _for_cpus(c) or ("" if c.boxes else "filters that fit into a box, with taps near each other")


def _plan_boxes(c: Images) -> None:
    assert c.boxes is not None
    c.launch(c.boxes)


def _plan_block(c: Images) -> None:
    c.launch(kernels.block_launch(c.storage, c.g, c.direction, c.operands, c.on))


IMAGES = (
    Way("patches-beside", patches.why_not_beside, patches.plan_beside),
    Way("patches-of-all", patches.why_not_small, patches.plan_small),
    Way("product", _why_no_product, _plan_product),
    Way("matrix-units", matrix_units.why_not_images, matrix_units.plan_images),
    Way("element", _why_no_elements, _plan_elements),
    Way("tile", _for_gpus, _plan_tile),
    Way("pair-lanes", _why_no_pair_lanes, _plan_pair_lanes),
    Way("pair-boxes", _why_no_pair_boxes, _plan_pair_boxes),
    Way("planes", _why_no_planes, _plan_planes),
    Way("direct", _why_not_direct, _plan_direct),
    Way("lanes", _why_no_lanes, _plan_lanes),
    Way("boxes", _why_no_boxes, _plan_boxes),
    Way("block", _for_cpus, _plan_block),
)


def plan_images(images: Images) -> None:
    choose("convolution", IMAGES, images)


# ---- The weight's gradient. ----


def _few_pairs(c: WeightGradient) -> bool:
    return kernels.pairs_of_weight(c.g) <= 4


def _why_no_weight_elements(c: WeightGradient) -> str:
    return _for_gpus(c) or ("" if _few_pairs(c) else "few channels")


def _plan_weight_elements(c: WeightGradient) -> None:
    c.launch(*kernels.element_weight_launches(c.storage, c.g, c.operands, c.on))


def _plan_weight_tile(c: WeightGradient) -> None:
    c.launch(*kernels.tile_weight_launches(c.storage, c.g, c.operands, c.on))


def _why_no_weight_planes(c: WeightGradient) -> str:
    if not c.is_cpu:
        return "CPUs"
    taps = max(c.on.tuning.planes.weight_taps, kernels.MOST_DIRECT_TAPS)
    if not _few_pairs(c) or math.prod(c.g.taps) > taps or not c.has_planes:
        return f"depthwise filters of at most {taps} taps"
    return ""


def _plan_weight_planes(c: WeightGradient) -> None:
    c.launch(*kernels.plane_weight_launches(c.storage, c.g, c.operands, c.on))


def _why_not_weight_direct(c: WeightGradient) -> str:
    if not c.is_cpu:
        return "CPUs"
    few = _few_pairs(c) and math.prod(c.g.taps) <= kernels.MOST_DIRECT_TAPS
    return "" if few else f"few channels, and at most {kernels.MOST_DIRECT_TAPS} taps"


def _plan_weight_direct(c: WeightGradient) -> None:
    c.launch(*kernels.direct_weight_launches(c.storage, c.g, c.operands, c.on))


def _plan_weight_boxes(c: WeightGradient) -> None:
    assert c.boxes is not None
    c.launch(*kernels.box_weight_launches(c.storage, c.g, c.operands, c.on, c.boxes))


def _plan_weight_block(c: WeightGradient) -> None:
    c.launch(*kernels.block_weight_launches(c.storage, c.g, c.operands, c.on))


WEIGHTS = (
    Way("patches-beside", patches.why_not_weight_of_lines, patches.plan_weight_of_lines),
    Way("patches-of-all", patches.why_not_weight_by_pairs, patches.plan_weight_of_all_patches),
    Way("matrix-units", matrix_units.why_not_weight, matrix_units.plan_weight),
    Way("element", _why_no_weight_elements, _plan_weight_elements),
    Way("tile", _for_gpus, _plan_weight_tile),
    Way("planes", _why_no_weight_planes, _plan_weight_planes),
    Way("direct", _why_not_weight_direct, _plan_weight_direct),
    Way("boxes", _why_no_boxes, _plan_weight_boxes),
    Way("block", _for_cpus, _plan_weight_block),
)


def plan_weight(gradient: WeightGradient) -> None:
    choose("convolution-weight", WEIGHTS, gradient)
