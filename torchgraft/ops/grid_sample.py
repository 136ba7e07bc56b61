"""Planners of grid_sampler_2d and grid_sampler_3d, and of their gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from torchgraft.codegen import ceil_div
from torchgraft.codegen.places import is_addable
from torchgraft.codegen.teams import Layout
from torchgraft.codegen.types import BY_NAME, element_type
from torchgraft.codegen.walk import FEW
from torchgraft.kernels import grid_sample as kernels
from torchgraft.kernels.grid_sample import INTERPOLATIONS, PADDINGS, Sampling
from torchgraft.ops.moves import in_order
from torchgraft.plans import PlanBuilder, Unsupported, planner, versions
from torchgraft.plans.grid import Grid
from torchgraft.plans.refusals import dtype_name

_INT = 2**31 - 1

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
    if dims == 3 and not versions.CUBIC_VOLUMES and INTERPOLATIONS[interpolation_mode] == "cubic":
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


def _sampling(image: torch.Tensor, grid: torch.Tensor, interpolation_mode: int, padding_mode: int) -> Sampling:
    element = element_type(image.dtype)
    if not element.is_float:
        raise Unsupported(f"sampling of {image.dtype}")
    if grid.dtype != image.dtype:
        raise RuntimeError(f"expected scalar type {dtype_name(image.dtype)} but found {dtype_name(grid.dtype)}")
    if image.dim() == 5 and INTERPOLATIONS[interpolation_mode] == "cubic":
        raise Unsupported("cubic interpolation of volumes")
    if math.prod(image.shape[2:]) > _INT:
        raise Unsupported("a plane of more than 2**31 pixels")
    reflects = PADDINGS[padding_mode] == "reflection"
    return Sampling(element.name, image.dim() - 2, INTERPOLATIONS[interpolation_mode], reflects)


def _image(p: PlanBuilder, image: torch.Tensor) -> tuple[dict[str, Any], str]:
    """The image in a layout that kernels take, its steps from image to image, channel to channel, pixel to pixel, and
    the element type that holds any pixel's place in a channel."""
    last = torch.channels_last if image.dim() == 4 else torch.channels_last_3d
    channels, pixels = image.shape[1], math.prod(image.shape[2:])
    apart = not image.is_contiguous() and image.is_contiguous(memory_format=last)
    image = image if apart else p.contiguous(image)
    # Not the strides, which say nothing along dimensions of size 1.
    channel_step, pixel_step = (1, channels) if apart else (pixels, 1)
    steps = {"batch_step": channels * pixels, "channel_step": channel_step, "pixel_step": pixel_step}
    return {"image": image, **steps}, "i64" if pixels * pixel_step > _INT else "i32"


def _numbers(image: torch.Tensor, padding: int, aligned: bool) -> dict[str, int]:
    sizes = zip(kernels.AXES, reversed(image.shape[2:]), strict=False)
    numbers = {"padding": padding, "aligned": int(aligned), "channels": image.shape[1]}
    return {**numbers, **{f"size_{axis}": n for axis, n in sizes}}


def _places(p: PlanBuilder, s: Sampling, image: torch.Tensor, grid: torch.Tensor) -> tuple[Layout, Grid]:
    """The team of the places."""
    cost = s.taps * (image.shape[1] + 4)
    return p.columns(grid.shape[0], math.prod(grid.shape[1:-1]), cost, kernels.BLOCK)


def _scatter(
    p: PlanBuilder,
    s: Sampling,
    out: torch.Tensor,
    gradient: torch.Tensor,
    grid: torch.Tensor,
    numbers: dict[str, int],
) -> None:
    """The image's gradient."""
    images, channels = out.shape[:2]
    places, pixels = math.prod(grid.shape[1:-1]), math.prod(out.shape[2:])
    accumulated = BY_NAME[s.compute].dtype
    to = out if out.is_contiguous() and out.dtype == accumulated else p.empty(out.shape, accumulated)
    if p.form == "gpu" and is_addable(s.compute, p.device.long_atomics) and not in_order():
        p.zero(to)
        kernel, grid_of = kernels.image_gradient_at_once_kernel(s), p.walk((images, places), channels * s.taps)
        p.launch(kernel, grid_of, out=to, grad=gradient, grid=grid, **numbers, places=places)
        if to is not out:
            p.copy(out, to)
        return
    # Enough work-items for the device: of channels first, then of stripes, which find all places anew.
    local = 1 if p.form == "cpu" else FEW
    wanted = 4 * p.device.compute_units * local
    share = ceil_div(images * channels, wanted)
    shares = ceil_div(channels, share)
    items = images * shares
    stripes = 1 if items >= p.device.compute_units * local else min(ceil_div(wanted, items), pixels)
    p.launch(
        kernels.image_gradient_kernel(s, p.form),
        p.walk((images, shares, stripes), places * s.taps, multiple=1, group=FEW),
        out=to,
        grad=gradient,
        grid=grid,
        **numbers,
        places=places,
        share=share,
        stripe=ceil_div(pixels, stripes),
    )
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
        s = _sampling(input, grid, interpolation_mode, padding_mode)
        if out.numel() == 0:
            return
        to = out if out.is_contiguous() else p.empty_like(out)
        layout, groups = _places(p, s, input, grid)
        numbers = _numbers(input, padding_mode, align_corners)
        image, index = _image(p, input)
        kernel = kernels.sample_kernel(layout, s, index)
        p.launch(kernel, groups, out=to, **image, grid=p.contiguous(grid), **numbers)
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
        s = _sampling(input, grid, interpolation_mode, padding_mode)
        numbers = _numbers(input, padding_mode, align_corners)
        grad_input, grad_grid = outs
        if grad_output.numel() == 0:
            for out in outs:
                if out is not None:
                    p.zero(out)
            return
        gradient, grid = p.contiguous(grad_output), p.contiguous(grid)
        if grad_input is not None and output_mask[0]:
            _scatter(p, s, grad_input, gradient, grid, numbers)
        if s.interpolation == "nearest":
            p.zero(grad_grid)
            return
        to = grad_grid if grad_grid.is_contiguous() else p.empty_like(grad_grid)
        layout, groups = _places(p, s, input, grid)
        image, index = _image(p, input)
        kernel = kernels.grid_gradient_kernel(layout, s, index)
        p.launch(kernel, groups, out=to, grad=gradient, **image, grid=grid, **numbers)
        if to is not grad_grid:
            p.copy(grad_grid, to)


for _dims in (2, 3):
    _declare(_dims)
