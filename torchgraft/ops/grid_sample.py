"""Planners of grid_sampler_2d and grid_sampler_3d, and of their gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import torch

from torchgraft.codegen import ceil_div
from torchgraft.codegen.types import BY_NAME, element_type
from torchgraft.kernels import grid_sample as kernels
from torchgraft.kernels.grid_sample import INTERPOLATIONS, PADDINGS, Sampling
from torchgraft.plans import PlanBuilder, Unsupported, planner
from torchgraft.plans.refusals import dtype_name

# ---- Shapes. Torch's meta functions look at other things than its CPU.


def _check(dims: int, input: torch.Tensor, grid: torch.Tensor, interpolation_mode: int) -> None:
    """Refuses what torch's check_grid_sampler_* refuse, in their words."""
    sizes = f"input with sizes {list(input.shape)} and grid with sizes {list(grid.shape)}"
    if input.shape[0] != grid.shape[0]:
        raise RuntimeError(f"grid_sampler(): expected grid and input to have same batch size, but got {sizes}")
    if grid.shape[-1] != input.dim() - 2:
        raise RuntimeError(
            f"grid_sampler(): expected grid to have size {input.dim() - 2} in last dimension, but got grid with sizes "
            f"{list(grid.shape)}"
        )
    for dim, n in enumerate(input.shape[2:], 2):
        if n == 0:
            raise RuntimeError(
                "grid_sampler(): expected input to have non-empty spatial dimensions, but input has sizes "
                f"{list(input.shape)} with dimension {dim} being empty"
            )
    if input.dim() != dims + 2 or grid.dim() != dims + 2:
        raise RuntimeError(
            f"grid_sampler(): expected {dims + 2}D input and grid with same number of dimensions, but got {sizes}"
        )
    if dims == 3 and INTERPOLATIONS[interpolation_mode] == "cubic":
        raise RuntimeError("grid_sampler(): bicubic interpolation only supports 4D input")


def _meta(
    dims: int, input: torch.Tensor, grid: torch.Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> torch.Tensor:
    _check_modes(interpolation_mode, padding_mode)
    _check(dims, input, grid, interpolation_mode)
    return input.new_empty((*input.shape[:2], *grid.shape[1:-1]))


def _backward_meta(
    dims: int,
    grad_output: torch.Tensor,
    input: torch.Tensor,
    grid: torch.Tensor,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
    output_mask: Sequence[bool],
) -> tuple[torch.Tensor | None, torch.Tensor]:
    _meta(dims, input, grid, interpolation_mode, padding_mode, align_corners)
    return input.new_empty(input.shape) if output_mask[0] else None, grid.new_empty(grid.shape)


def _check_modes(interpolation_mode: int, padding_mode: int) -> None:
    if interpolation_mode not in range(len(INTERPOLATIONS)):
        raise RuntimeError(f"Invalid interpolation mode {interpolation_mode}")
    if padding_mode not in range(len(PADDINGS)):
        raise RuntimeError(f"Invalid padding mode {padding_mode}")


# ---- Planners.


def _sampling(image: torch.Tensor, grid: torch.Tensor, interpolation_mode: int) -> Sampling:
    element = element_type(image.dtype)
    if not element.is_float:
        raise Unsupported(f"sampling of {image.dtype}")
    if grid.dtype != image.dtype:
        raise RuntimeError(f"expected scalar type {dtype_name(image.dtype)} but found {dtype_name(grid.dtype)}")
    if math.prod(image.shape[2:]) > 2**31 - 1:
        raise Unsupported("a plane of more than 2**31 pixels")
    return Sampling(element.name, image.dim() - 2, INTERPOLATIONS[interpolation_mode])


def _image(p: PlanBuilder, image: torch.Tensor) -> tuple[torch.Tensor, list[int]]:
    """The image in a layout that kernels take, and its steps from image to image, channel to channel, pixel to
    pixel."""
    last = torch.channels_last if image.dim() == 4 else torch.channels_last_3d
    if not image.is_contiguous(memory_format=last):
        image = p.contiguous(image)
    return image, [image.stride(0), image.stride(1), image.stride(-1)]


def _numbers(image: torch.Tensor, places: int, steps: Sequence[int]) -> list[int]:
    return [image.shape[1], places, *reversed(image.shape[2:]), *steps]


def _groups(p: PlanBuilder, images: int, places: int) -> tuple[int, tuple[int, int]]:
    """Places of a block, and the groups that there are."""
    if p.form == "cpu":
        return kernels.CPU_BLOCK, (ceil_div(places, kernels.CPU_BLOCK), images)
    return 1, (ceil_div(places, kernels.GROUP), images)


def _scatter(
    p: PlanBuilder, s: Sampling, rule: tuple[int, int], out: torch.Tensor, gradient: torch.Tensor, grid: torch.Tensor
) -> None:
    """The image's gradient; `rule` is the number of the padding, and whether corners are aligned."""
    images, channels = out.shape[:2]
    places, pixels = math.prod(grid.shape[1:-1]), math.prod(out.shape[2:])
    # Enough work-items for the device: of channels first, then of stripes, which find all places anew.
    block, local = (kernels.CPU_BLOCK, 1) if p.form == "cpu" else (1, kernels.GROUP)
    wanted = 4 * p.device.compute_units * local
    share = ceil_div(images * channels, wanted)
    shares = images * ceil_div(channels, share)
    stripes = 1 if shares >= p.device.compute_units * local else min(ceil_div(wanted, shares), pixels)
    stripe = ceil_div(pixels, stripes)
    accumulated = BY_NAME[BY_NAME[s.storage].compute].dtype
    to = out if out.is_contiguous() and out.dtype == accumulated else p.empty(out.shape, accumulated)
    args = [to, gradient, grid, *rule, *_numbers(out, places, (0, 0, 0)), images, share, stripes, stripe]
    p.launch(kernels.image_gradient_kernel(s, block), (ceil_div(shares * stripes, local),), args)
    if to is not out:
        p.copy(out, to)


def _declare(dims: int) -> None:
    @planner(f"grid_sampler_{dims}d", meta=partial(_meta, dims))
    def forward(
        p: PlanBuilder,
        out: torch.Tensor,
        input: torch.Tensor,
        grid: torch.Tensor,
        interpolation_mode: int,
        padding_mode: int,
        align_corners: bool,
    ) -> None:
        s = _sampling(input, grid, interpolation_mode)
        rule = (padding_mode, int(align_corners))
        if out.numel() == 0:
            return
        image, steps = _image(p, input)
        to = out if out.is_contiguous() else p.empty_like(out)
        places = math.prod(grid.shape[1:-1])
        block, groups = _groups(p, image.shape[0], places)
        args = [to, image, p.contiguous(grid), *rule, *_numbers(image, places, steps)]
        p.launch(kernels.sample_kernel(s, block), groups, args)
        if to is not out:
            p.copy(out, to)

    @planner(f"grid_sampler_{dims}d_backward", meta=partial(_backward_meta, dims))
    def backward(
        p: PlanBuilder,
        outs: tuple[torch.Tensor | None, torch.Tensor],
        grad_output: torch.Tensor,
        input: torch.Tensor,
        grid: torch.Tensor,
        interpolation_mode: int,
        padding_mode: int,
        align_corners: bool,
        output_mask: Sequence[bool],
    ) -> None:
        s = _sampling(input, grid, interpolation_mode)
        rule = (padding_mode, int(align_corners))
        grad_input, grad_grid = outs
        if grad_output.numel() == 0:
            for out in outs:
                if out is not None:
                    p.zero(out)
            return
        gradient, grid = p.contiguous(grad_output), p.contiguous(grid)
        if grad_input is not None and output_mask[0]:
            _scatter(p, s, rule, grad_input, gradient, grid)
        if s.interpolation == "nearest":
            p.zero(grad_grid)
            return
        image, steps = _image(p, input)
        to = grad_grid if grad_grid.is_contiguous() else p.empty_like(grad_grid)
        places = math.prod(grid.shape[1:-1])
        block, groups = _groups(p, image.shape[0], places)
        args = [to, gradient, image, grid, *rule, *_numbers(image, places, steps)]
        p.launch(kernels.grid_gradient_kernel(s, block), groups, args)
        if to is not grad_grid:
            p.copy(grad_grid, to)


for _dims in (2, 3):
    _declare(_dims)
