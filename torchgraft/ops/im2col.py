"""Planners of the patches of images as columns, and of sums of such patches: `F.unfold` and `F.fold`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from torchgraft.codegen import element_type
from torchgraft.codegen.types import MOVES
from torchgraft.kernels import im2col as kernels
from torchgraft.plans import PlanBuilder, other_out, planner
from torchgraft.plans.refusals import refuse_dtype


def _sizes(
    image: torch.Tensor,
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> dict[str, int]:
    """What kernels know of both axes."""
    source = image.shape[-2:]
    patches = [
        (n + 2 * pad - step * (taps - 1) - 1) // jump + 1
        for n, pad, step, taps, jump in zip(source, padding, dilation, kernel_size, stride, strict=True)
    ]
    values = {
        "source": source,
        "patches": patches,
        "taps": kernel_size,
        "stride": stride,
        "padding": padding,
        "dilation": dilation,
    }
    return {f"{name}_{axis}": n for name, own in values.items() for axis, n in zip("yx", own, strict=True)}


def _check(self: torch.Tensor, padding: Sequence[int], **_: Any) -> None:
    if not (self.is_floating_point() or self.is_complex() or self.dtype == torch.bool):
        refuse_dtype("im2col", self.dtype)
    if any(pad < 0 for pad in padding):
        raise RuntimeError(f"padding should be non-negative, but got {list(padding)}")


def _check_image(self: torch.Tensor, **_: Any) -> None:
    if self.dim() < 3:
        raise IndexError(f"Expected 3D or 4D (batch mode) tensor for input, but got: {tuple(self.shape)}")


@planner("im2col", contiguous=True, refuses=(_check_image, _check, other_out))
def _im2col(
    p: PlanBuilder,
    out: torch.Tensor,
    self: torch.Tensor,
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> None:
    if out.numel() == 0:
        return
    sizes = _sizes(self, kernel_size, dilation, padding, stride)
    planes, patches = math.prod(self.shape[:-2]), (sizes["patches_y"], sizes["patches_x"])
    short = p.partitioner.ends_within_a_vector(patches[1])
    p.launch(
        kernels.patches_kernel(MOVES[self.element_size()], p.form, short),
        p.walk((planes, math.prod(kernel_size), *patches)),
        out=p.bits(out),
        image=p.bits(self),
        **sizes,
    )


@planner("col2im", contiguous=True, refuses=(_check, other_out))
def _col2im(
    p: PlanBuilder,
    out: torch.Tensor,
    self: torch.Tensor,
    output_size: Sequence[int],
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> None:
    if out.numel() == 0:
        return
    p.launch(
        kernels.sums_kernel(element_type(out.dtype).name, p.form),
        p.walk((math.prod(out.shape[:-2]), *out.shape[-2:]), math.prod(kernel_size)),
        out=out,
        columns=self,
        **_sizes(out, kernel_size, dilation, padding, stride),
    )
