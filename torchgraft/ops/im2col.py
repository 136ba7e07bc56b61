"""Planners of the patches of images as columns, and of sums of such patches: `F.unfold` and `F.fold`."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from torchgraft.codegen import element_type
from torchgraft.codegen.types import MOVES
from torchgraft.kernels import im2col as kernels
from torchgraft.plans import PlanBuilder, planner


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


@planner("im2col", contiguous=True)
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
    short = p.dealer.ends_within_a_vector(patches[1])
    p.launch(
        kernels.patches_kernel(MOVES[self.element_size()], p.form, short),
        p.walk((planes, math.prod(kernel_size), *patches)),
        out=p.bits(out),
        image=p.bits(self),
        **sizes,
    )


@planner("col2im", contiguous=True)
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
