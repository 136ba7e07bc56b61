"""Planners of pooling. The one-dimensional ops reach the two-dimensional ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torchgraft.codegen import element_type
from torchgraft.kernels.convolution import Triple
from torchgraft.kernels.pooling import Kind, pool_gradient_launch, pool_launch
from torchgraft.plans import PlanBuilder, Unsupported, planner


def _options(p: PlanBuilder) -> dict[str, Any]:
    return {"form": p.form, "units": p.device.compute_units}


def _spatial(spec: torch.Tensor, dims: int) -> tuple[int, Triple]:
    """Planes, and the size of one."""
    shape = spec.shape[-dims:]
    size = [1] * (3 - dims) + list(shape)
    pixels = size[0] * size[1] * size[2]
    if pixels > 2**31 - 1:
        raise Unsupported("a plane of more than 2**31 pixels")
    planes = 1
    for n in spec.shape[:-dims]:
        planes *= n
    return planes, (size[0], size[1], size[2])


def _full(values: Sequence[int], dims: int, missing: int) -> list[int]:
    given = [int(v) for v in values] * (dims if len(values) == 1 else 1)
    return [missing] * (3 - dims) + given


def _windows(
    dims: int, kernel_size: Sequence[int], stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int]
) -> tuple[int, ...]:
    return (
        *_full(kernel_size, dims, 1),
        *_full(stride or kernel_size, dims, 1),
        *_full(padding, dims, 0),
        *_full(dilation, dims, 1),
    )


def _storage(spec: torch.Tensor, kind: Kind) -> str:
    element = element_type(spec.dtype)
    # The mean of integers is not rounded as C divides; torch's CPU has few of them.
    if element.is_complex or element.name == "b8" or (kind == "average" and not element.is_float):
        raise Unsupported(f"pooling of {spec.dtype}")
    return element.name


def _pool(
    p: PlanBuilder,
    kind: Kind,
    dims: int,
    outs: tuple[torch.Tensor, ...],
    source: torch.Tensor,
    windows: tuple[int, ...] | None,
) -> None:
    planes, source_size = _spatial(source, dims)
    target_size = _spatial(outs[0], dims)[1]
    pointers = (*outs, source)
    launch = pool_launch(
        _storage(source, kind), kind, planes, source_size, target_size, pointers, windows, **_options(p)
    )
    p.launch(launch.kernel, launch.groups, launch.args)


def _pool_gradient(
    p: PlanBuilder,
    kind: Kind,
    dims: int,
    out: torch.Tensor,
    sources: tuple[torch.Tensor, ...],
    windows: tuple[int, ...] | None,
) -> None:
    planes, source_size = _spatial(out, dims)
    target_size = _spatial(sources[0], dims)[1]
    if sources[0].numel() == 0:
        p.zero(out)
        return
    launch = pool_gradient_launch(
        _storage(out, kind), kind, planes, source_size, target_size, (out, *sources), windows, **_options(p)
    )
    p.launch(launch.kernel, launch.groups, launch.args)


def _declare_max(dims: int) -> None:
    @planner(f"max_pool{dims}d_with_indices", contiguous=True)
    def forward(
        p: PlanBuilder,
        outs: tuple[torch.Tensor, torch.Tensor],
        self: torch.Tensor,
        kernel_size: list[int],
        stride: list[int],
        padding: list[int],
        dilation: list[int],
        ceil_mode: bool,
    ) -> None:
        _pool(p, "max", dims, outs, self, _windows(dims, kernel_size, stride, padding, dilation))

    @planner(f"max_pool{dims}d_with_indices_backward", contiguous=True)
    def backward(
        p: PlanBuilder,
        out: torch.Tensor,
        grad_output: torch.Tensor,
        self: torch.Tensor,
        kernel_size: list[int],
        stride: list[int],
        padding: list[int],
        dilation: list[int],
        ceil_mode: bool,
        indices: torch.Tensor,
    ) -> None:
        windows = _windows(dims, kernel_size, stride, padding, dilation)
        _pool_gradient(p, "max", dims, out, (grad_output, indices), windows)


def _declare_average(dims: int) -> None:
    def windows(
        kernel_size: list[int], stride: list[int], padding: list[int], include_pad: bool, divisor: int | None
    ) -> tuple[int, ...]:
        return (*_windows(dims, kernel_size, stride, padding, [1]), int(include_pad), divisor or 0)

    @planner(f"avg_pool{dims}d", contiguous=True)
    def forward(
        p: PlanBuilder,
        out: torch.Tensor,
        self: torch.Tensor,
        kernel_size: list[int],
        stride: list[int],
        padding: list[int],
        ceil_mode: bool,
        count_include_pad: bool,
        divisor_override: int | None,
    ) -> None:
        _pool(
            p, "average", dims, (out,), self, windows(kernel_size, stride, padding, count_include_pad, divisor_override)
        )

    @planner(f"avg_pool{dims}d_backward", contiguous=True)
    def backward(
        p: PlanBuilder,
        out: torch.Tensor,
        grad_output: torch.Tensor,
        self: torch.Tensor,
        kernel_size: list[int],
        stride: list[int],
        padding: list[int],
        ceil_mode: bool,
        count_include_pad: bool,
        divisor_override: int | None,
    ) -> None:
        over = windows(kernel_size, stride, padding, count_include_pad, divisor_override)
        _pool_gradient(p, "average", dims, out, (grad_output,), over)


def _declare_adaptive(dims: int) -> None:
    @planner(f"_adaptive_avg_pool{dims}d", contiguous=True)
    def forward(p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, output_size: list[int]) -> None:
        _pool(p, "average", dims, (out,), self, None)

    @planner(f"_adaptive_avg_pool{dims}d_backward", contiguous=True)
    def backward(p: PlanBuilder, out: torch.Tensor, grad_output: torch.Tensor, self: torch.Tensor) -> None:
        _pool_gradient(p, "average", dims, out, (grad_output,), None)

    @planner(f"adaptive_max_pool{dims}d", contiguous=True)
    def max_forward(
        p: PlanBuilder, outs: tuple[torch.Tensor, torch.Tensor], self: torch.Tensor, output_size: list[int]
    ) -> None:
        _pool(p, "max", dims, outs, self, None)

    @planner(f"adaptive_max_pool{dims}d_backward", contiguous=True)
    def max_backward(
        p: PlanBuilder, out: torch.Tensor, grad_output: torch.Tensor, self: torch.Tensor, indices: torch.Tensor
    ) -> None:
        _pool_gradient(p, "max", dims, out, (grad_output, indices), None)


for _dims in (2, 3):
    _declare_max(_dims)
    _declare_average(_dims)
    _declare_adaptive(_dims)
