"""Planners of padding: by a constant, by reflection and by replication, with gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._prims_common import suggest_memory_format

from torchgraft.codegen import element_type
from torchgraft.codegen.types import MOVES
from torchgraft.kernels import padding as kernels
from torchgraft.kernels.padding import Border
from torchgraft.kernels.pooling import AXES
from torchgraft.plans import PlanBuilder, Scalar, planner, pointwise
from torchgraft.plans.refusals import refuse_dtype
from torchgraft.plans.schema import call_by_name

aten = torch.ops.aten


@planner("constant_pad_nd")
def _constant_pad(
    p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, pad: Sequence[int], value: Scalar | float = 0
) -> None:
    """Negative padding cuts off."""
    if out.numel() == 0:
        return
    source, inner = self, out
    for k in range(len(pad) // 2):
        d, (before, after) = self.dim() - 1 - k, pad[2 * k : 2 * k + 2]
        source = source.narrow(d, max(0, -before), max(0, self.size(d) + min(0, before) + min(0, after)))
        inner = inner.narrow(d, max(0, before), source.size(d))
    if inner.numel() < out.numel():
        pointwise.plan_fill(p, out, value)
    p.copy(inner, source)


def _sizes(dims: int, source: torch.Tensor, target: torch.Tensor, padding: Sequence[int]) -> dict[str, int]:
    """What kernels know of the axes; `padding` is (left, right) of the last dimension, then of the one before it."""
    missing = [1] * (3 - dims)
    values = {
        "source": [*missing, *source.shape[-dims:]],
        "target": [*missing, *target.shape[-dims:]],
        "padding": [*[0] * (3 - dims), *reversed(padding[: 2 * dims : 2])],
    }
    return {f"{name}_{axis}": n for name, own in values.items() for axis, n in zip(AXES, own, strict=True)}


def _space(spec: torch.Tensor, dims: int) -> tuple[int, ...]:
    """(planes, z, y, x)."""
    return (math.prod(spec.shape[:-dims]), *[1] * (3 - dims), *spec.shape[-dims:])


def _like_image(op: torch._ops.OpOverload, dims: int) -> Callable[..., torch.Tensor]:
    """torch's meta function, with the image's memory format, which its CPU gives the result and which that forgets."""

    def meta(self: torch.Tensor, **others: Any) -> torch.Tensor:
        if self.dim() not in (dims + 1, dims + 2):
            raise RuntimeError(f"{op} wants {dims + 1} or {dims + 2} dimensions, not {self.dim()}")
        result: torch.Tensor = call_by_name(op, op, {"self": self, **others})
        return result if dims == 1 else result.contiguous(memory_format=suggest_memory_format(self))

    return meta


def _arrange(
    p: PlanBuilder, out: torch.Tensor, given: torch.Tensor, dims: int, padding: Sequence[int]
) -> tuple[torch.Tensor, torch.Tensor, int, Sequence[int]]:
    """Both tensors contiguous, how many of their last dimensions are axes, and these axes' padding. Where an image's
    channels are last they are an axis, too, which is not padded. A target that is a temporary has to be copied back."""
    pixels = dims == 2 and out.dim() == 4 and not out.is_contiguous() and out.movedim(1, -1).is_contiguous()
    if pixels:
        return out.movedim(1, -1), p.contiguous(given.movedim(1, -1)), 3, (0, 0, *padding)
    return out if out.is_contiguous() else p.empty_like(out), p.contiguous(given), dims, padding


def _put_back(p: PlanBuilder, out: torch.Tensor, target: torch.Tensor) -> None:
    if p.memory(target) != p.memory(out):
        p.copy(out, target)


def _declare(border: Border, name: str, dims: int) -> None:
    forward_op, backward_op = (getattr(aten, f"{name}_pad{dims}d{back}").default for back in ("", "_backward"))

    @planner(f"{name}_pad{dims}d", meta=_like_image(forward_op, dims))
    def forward(p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, padding: Sequence[int]) -> None:
        if self.dtype == torch.bool:
            refuse_dtype(f"{name}_pad{dims}d", self.dtype)
        if out.numel() == 0:
            return
        target, image, axes, borders = _arrange(p, out, self, dims, padding)
        short = p.partitioner.ends_within_a_vector(image.size(-1))
        p.launch(
            kernels.pad_kernel(MOVES[image.element_size()], border, p.form, short),
            p.walk(_space(target, axes)),
            out=p.bits(target),
            image=p.bits(image),
            **_sizes(axes, image, target, borders),
        )
        _put_back(p, out, target)

    @planner(f"{name}_pad{dims}d_backward", meta=_like_image(backward_op, dims))
    def backward(
        p: PlanBuilder, out: torch.Tensor, grad_output: torch.Tensor, self: torch.Tensor, padding: Sequence[int]
    ) -> None:
        if grad_output.numel() == 0:
            p.zero(out)
            return
        target, grad, axes, borders = _arrange(p, out, grad_output, dims, padding)
        p.launch(
            kernels.pad_gradient_kernel(element_type(out.dtype).name, border, p.form),
            p.walk(_space(target, axes), 4),
            out=target,
            grad=grad,
            **_sizes(axes, target, grad, borders),
        )
        _put_back(p, out, target)


for _dims in (1, 2, 3):
    _declare("reflected", "reflection", _dims)
    _declare("replicated", "replication", _dims)
