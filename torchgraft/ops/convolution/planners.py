"""Planners of convolution. torch brings every convolution of a PrivateUse1 device to the two `*_overrideable` ops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torchgraft.kernels.convolution.geometry import Geometry, Triple
from torchgraft.ops.convolution.choose import plan_images, plan_weight
from torchgraft.ops.convolution.problem import Images, WeightGradient
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
    plan_images(Images(p, g, out, "backward" if transposed else "forward", input, weight, bias))


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
    if grad_input is not None:
        plan_images(Images(p, g, grad_input, "forward" if transposed else "backward", grad_output, weight))
    if grad_weight is not None:
        plan_weight(WeightGradient(p, g, grad_weight, image, result))
    if grad_bias is not None:
        dims = [0, *range(2, grad_output.dim())]
        p.call_out(torch.ops.aten.sum.dim_IntList, grad_bias, grad_output, dims, False)
