"""Planners of losses."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from torchgraft.codegen import element_type
from torchgraft.codegen.pointwise import Input, Loop, Number, Result, expression
from torchgraft.kernels import losses as kernels
from torchgraft.kernels import reduce
from torchgraft.ops import softmax
from torchgraft.ops.checks import plan_check
from torchgraft.plans import PlanBuilder, Scalar, Unsupported, other_out, planner, pointwise, within
from torchgraft.plans.grid import Grid
from torchgraft.plans.reduction import plan_reduction
from torchgraft.plans.refusals import check_floating, check_same_dtype, dtype_name, refuse_dtype

NONE, MEAN, SUM = 0, 1, 2


# ---- negative log likelihood ----


def _places(p: PlanBuilder, x: torch.Tensor) -> torch.Tensor:
    """[batch, class, place], as a view if the places lie in one line."""
    if x.dim() == 1:
        return x.view(1, -1, 1)
    if x.dim() == 2:
        return x.unsqueeze(2)
    shape = (x.size(0), x.size(1), math.prod(x.shape[2:]))
    try:
        return x.view(shape)
    except RuntimeError:
        return p.contiguous(x).view(shape)


@dataclass(frozen=True)
class _Targets:
    """What all kernels of the loss share.

    Attributes:
        types: of the input, the target and the weight, by name.
        arguments: of a launch.
        sizes: of the walk: batch and places.
    """

    types: tuple[str, str, str | None]
    arguments: dict[str, Any]
    sizes: tuple[int, int]


def _targets(
    p: PlanBuilder, x: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None, ignore_index: int
) -> _Targets:
    type_ = element_type(x.dtype)
    if not type_.is_float:
        raise Unsupported(f"losses of {x.dtype}")
    check_same_dtype(x, weight)
    if target.dtype not in (torch.int64, torch.uint8):
        raise RuntimeError(f"expected target dtype to be Long or Byte, but got {dtype_name(target.dtype)}")
    report = p.error("Target {} is out of bounds.")
    arguments = {"target": p.contiguous(target), "errors": report.words, "code": report.code}
    if weight is not None:
        arguments["weight"] = p.contiguous(weight)
    strides = zip(("batch_stride", "class_stride", "place_stride"), x.stride(), strict=True)
    arguments |= {"classes": x.size(1), "ignored": ignore_index, **dict(strides)}
    places = max(1, x.size(2))
    types = type_.name, element_type(target.dtype).name, None if weight is None else type_.name
    return _Targets(types, arguments, (target.numel() // places, places))


# Every target is likely to be a miss of the cache, so little work is worth a second thread.
_COST = 16


def _with_bytes(op: torch._ops.OpOverload) -> Callable[..., Any]:
    """torch's meta functions refuse targets of uint8, which its kernels of rows take."""

    def meta(target: torch.Tensor, **others: Any) -> Any:
        return op(target=target.long() if target.dtype == torch.uint8 else target, **others)

    return meta


@planner("nll_loss_forward", meta=_with_bytes(torch.ops.aten.nll_loss_forward.default))
@planner("nll_loss2d_forward")
def _nll(
    p: PlanBuilder,
    out: tuple[torch.Tensor, torch.Tensor],
    self: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    reduction: int,
    ignore_index: int,
) -> None:
    loss, total = out
    x = _places(p, self)
    t = _targets(p, x, target, weight, ignore_index)
    if reduction == NONE:
        p.fill(total, 0)
        if loss.numel() == 0:
            return
        to = loss if loss.is_contiguous() else p.empty_like(loss)
        p.launch(kernels.each_kernel(*t.types, p.form), p.walk(t.sizes, _COST, 1), out=to, x=x, **t.arguments)
        if to is not loss:
            p.copy(loss, to)
        return
    type_, *others = t.types
    wide = torch.float64 if p.device.float64 else torch.float32
    accumulate, mean = element_type(wide).name, reduction == MEAN
    results = {"out": loss, "weight_out": total}
    grid = p.partitioner.serial.walk(t.sizes, _COST, 1)
    (groups,) = grid.groups
    if groups <= 1:
        whole = Grid((1,), grid.values)
        p.launch(kernels.whole_kernel(type_, accumulate, *others, mean), whole, **results, x=x, **t.arguments)
        return
    sums = p.empty((2 * groups,), wide)
    p.launch(kernels.sum_kernel(type_, accumulate, *others), grid, sums=sums, x=x, **t.arguments)
    p.launch(kernels.finish_kernel(type_, accumulate, mean), (1,), **results, sums=sums, groups=groups)


@planner("nll_loss_backward", meta=_with_bytes(torch.ops.aten.nll_loss_backward.default))
@planner("nll_loss2d_backward")
def _nll_backward(
    p: PlanBuilder,
    out: torch.Tensor,
    grad_output: torch.Tensor,
    self: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    reduction: int,
    ignore_index: int,
    total_weight: torch.Tensor,
) -> None:
    check_same_dtype(self, grad_output, total_weight)
    p.fill(out, 0)
    if out.numel() == 0:
        return
    to = _places(p, out)
    back = p.memory(to) is not p.memory(out)
    t = _targets(p, to, target, weight, ignore_index)
    kernel = kernels.backward_kernel(*t.types, reduction == MEAN, reduction == NONE, p.form)
    grads = {"grad": p.contiguous(grad_output), "total": total_weight}
    p.launch(kernel, p.walk(t.sizes, _COST, 1), out=to, **grads, **t.arguments)
    if back:
        p.copy(out, to.view(out.shape))


torch.library.define(
    "torchgraft::cross_entropy_backward",
    "(Tensor grad, Tensor log_probs, Tensor target, Tensor total_weight, int reduction, int ignore_index, "
    "float label_smoothing) -> Tensor",
)


@planner(
    "torchgraft::cross_entropy_backward",
    contiguous=True,
    meta=lambda **given: given["log_probs"].new_empty(given["log_probs"].shape),
)
def _cross_entropy_backward(
    p: PlanBuilder,
    out: torch.Tensor,
    grad: torch.Tensor,
    log_probs: torch.Tensor,
    target: torch.Tensor,
    total_weight: torch.Tensor,
    reduction: int,
    ignore_index: int,
    label_smoothing: float,
) -> None:
    """The backward of `nll_loss` and `log_softmax` at once, for [batch, class]; see
    csrc/aten/cross_entropy.cpp. The targets are known to be classes: the way there has looked at them."""
    layout, grid = p.rows(out.shape[0], out.shape[1], cost=softmax.COST)
    kernel = kernels.cross_entropy_backward_kernel(
        layout, element_type(out.dtype).name, element_type(target.dtype).name, reduction == MEAN, reduction == NONE
    )
    given = {"x": log_probs, "grad": grad, "target": target, "total": total_weight, "ignored": ignore_index}
    p.launch(kernel, grid, out=out, **given, smoothing=label_smoothing)


# ---- losses of one element at a time ----


def _loss_loop(
    p: PlanBuilder,
    name: str,
    out: torch.Tensor,
    tensors: dict[str, torch.Tensor],
    numbers: dict[str, Any],
    text: str,
    cost: int,
) -> None:
    compute = element_type(out.dtype).compute
    loop = Loop(
        f"{name}_{compute}",
        tuple(Input(n, element_type(t.dtype).name, compute) for n, t in tensors.items()),
        tuple(Number(n, compute) for n in numbers),
        (Result("out", element_type(out.dtype).name, compute, expression(text, compute)),),
        cost=cost,
    )
    pointwise.plan_loop(p, loop, [out], list(tensors.values()), list(numbers.values()))


def _forward(
    p: PlanBuilder,
    name: str,
    out: torch.Tensor,
    tensors: dict[str, torch.Tensor],
    numbers: dict[str, Any],
    text: str,
    reduction: int,
    cost: int = 1,
) -> None:
    """A loss, summed in the same kernel if all tensors have one shape."""
    if not out.is_floating_point():
        raise Unsupported(f"losses of {out.dtype}")
    if reduction == NONE:
        _loss_loop(p, name, out, tensors, numbers, text, cost)
        return
    shape = torch.broadcast_shapes(*(t.shape for t in tensors.values()))
    flat = {n: p.contiguous(p.cast(t.expand(shape), out.dtype)).view(-1) for n, t in tensors.items()}
    type_ = element_type(out.dtype)
    total = reduce.total(type_.accumulate, type_.name, reduction == MEAN)
    reduction_ = replace(
        total,
        name=f"{name}_{total.name}",
        step=f"A.sum += {expression(text, type_.compute)};",
        others=tuple((n, type_.name, "same") for n in flat if n != "x"),
        values=tuple((n, type_.compute) for n in numbers),
    )
    plan_reduction(
        p, reduction_, [out], flat["x"], [0], list(numbers.values()), [t for n, t in flat.items() if n != "x"]
    )


def _backward(
    p: PlanBuilder,
    name: str,
    out: torch.Tensor,
    grad: torch.Tensor,
    tensors: dict[str, torch.Tensor],
    numbers: dict[str, Any],
    text: str,
    reduction: int,
    cost: int = 1,
) -> None:
    if not out.is_floating_point():
        raise Unsupported(f"losses of {out.dtype}")
    text = f"g * ({text})"
    if reduction == MEAN:
        numbers = {**numbers, "part": 1 / max(1, out.numel())}
        text += " * part"
    _loss_loop(p, f"{name}_backward", out, {**tensors, "g": grad}, numbers, text, cost)


def _check_kind(self: torch.Tensor, target: torch.Tensor, **_: Any) -> None:
    """Refuses integers and truth, of which torch's CPU has no loss."""
    if not (self.is_complex() or target.is_complex()):
        kind = torch.promote_types(self.dtype, target.dtype)
        if not kind.is_floating_point:
            refuse_dtype("loss", kind)


_SQUARE = "(x - t) * (x - t)"


@planner("mse_loss", refuses=_check_kind)
def _mse(p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, target: torch.Tensor, reduction: int = MEAN) -> None:
    _forward(p, "mse_loss", out, {"x": self, "t": target}, {}, _SQUARE, reduction)


@planner("mse_loss_backward", refuses=())
def _mse_backward(
    p: PlanBuilder,
    out: torch.Tensor,
    grad_output: torch.Tensor,
    self: torch.Tensor,
    target: torch.Tensor,
    reduction: int,
) -> None:
    _backward(p, "mse_loss", out, grad_output, {"x": self, "t": target}, {}, "2 * (x - t)", reduction)


_SMOOTH = "@abs(x - t) < beta ? 0.5 * (x - t) * (x - t) / beta : @abs(x - t) - 0.5 * beta"


@planner(
    "smooth_l1_loss",
    refuses=(
        _check_kind,
        within({"beta": (0, None, "smooth_l1_loss does not support negative values for beta, such as {}")}),
    ),
)
def _smooth_l1(
    p: PlanBuilder,
    out: torch.Tensor,
    self: torch.Tensor,
    target: torch.Tensor,
    reduction: int = MEAN,
    beta: Scalar | float = 1.0,
) -> None:
    _forward(p, "smooth_l1_loss", out, {"x": self, "t": target}, {"beta": beta}, _SMOOTH, reduction)


@planner("smooth_l1_loss_backward", refuses=())
def _smooth_l1_backward(
    p: PlanBuilder,
    out: torch.Tensor,
    grad_output: torch.Tensor,
    self: torch.Tensor,
    target: torch.Tensor,
    reduction: int,
    beta: Scalar | float,
) -> None:
    text = "x - t <= -beta ? (T)-1 : x - t >= beta ? (T)1 : (x - t) / beta"
    _backward(p, "smooth_l1_loss", out, grad_output, {"x": self, "t": target}, {"beta": beta}, text, reduction)


_HUBER = "@abs(x - t) <= delta ? 0.5 * (x - t) * (x - t) : delta * (@abs(x - t) - 0.5 * delta)"


@planner("huber_loss", refuses=_check_kind)
def _huber(
    p: PlanBuilder,
    out: torch.Tensor,
    self: torch.Tensor,
    target: torch.Tensor,
    reduction: int = MEAN,
    delta: Scalar | float = 1.0,
) -> None:
    _forward(p, "huber_loss", out, {"x": self, "t": target}, {"delta": delta}, _HUBER, reduction)


@planner("huber_loss_backward")
def _huber_backward(
    p: PlanBuilder,
    out: torch.Tensor,
    grad_output: torch.Tensor,
    self: torch.Tensor,
    target: torch.Tensor,
    reduction: int,
    delta: Scalar | float,
) -> None:
    text = "x - t <= -delta ? -delta : x - t >= delta ? delta : x - t"
    _backward(p, "huber_loss", out, grad_output, {"x": self, "t": target}, {"delta": delta}, text, reduction)


def _weighted(text: str, tensors: dict[str, torch.Tensor], weight: torch.Tensor | None) -> str:
    if weight is None:
        return text
    tensors["w"] = weight
    return f"w * ({text})"


# Logarithms are bounded from below, so that a sure and wrong prediction costs no infinity.
_LOG = "(@log{0} < -100 ? (T)-100 : @log{0})"
_CROSS = f"(t - 1) * {_LOG.format('1p(-x)')} - t * {_LOG.format('(x)')}"


def _check_chances(self: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None = None, **_: Any) -> None:
    if target.is_floating_point() or self.is_floating_point():
        for other in (target, weight):
            if other is not None and other.dtype != self.dtype:
                raise RuntimeError(f"Found dtype {dtype_name(other.dtype)} but expected {dtype_name(self.dtype)}")
    check_floating(self)


@planner("binary_cross_entropy", refuses=(_check_chances, other_out))
def _bce(
    p: PlanBuilder,
    out: torch.Tensor,
    self: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    reduction: int = MEAN,
) -> None:
    for name, chances in (("input", self), ("target", target)):
        plan_check(p, chances, "x >= 0 && x <= 1", f"all elements of {name} should be between 0 and 1")
    tensors = {"x": self, "t": target}
    text = _weighted(_CROSS, tensors, weight)
    _forward(p, "binary_cross_entropy", out, tensors, {}, text, reduction, cost=8)


@planner("binary_cross_entropy_backward")
def _bce_backward(
    p: PlanBuilder,
    out: torch.Tensor,
    grad_output: torch.Tensor,
    self: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    reduction: int = MEAN,
) -> None:
    tensors = {"x": self, "t": target}
    text = _weighted("(x - t) / ((1 - x) * x < 1e-12 ? (T)1e-12 : (1 - x) * x)", tensors, weight)
    _backward(p, "binary_cross_entropy", out, grad_output, tensors, {}, text, reduction, cost=2)


@planner("binary_cross_entropy_with_logits")
def _bce_logits(
    p: PlanBuilder,
    out: torch.Tensor,
    self: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    pos_weight: torch.Tensor | None = None,
    reduction: int = MEAN,
) -> None:
    tensors = {"x": self, "t": target}
    softplus = "(@log1p(@exp(-@abs(x))) + (x < 0 ? -x : (T)0))"
    text = f"(1 - t) * x + {softplus}"
    if pos_weight is not None:
        tensors["v"] = pos_weight
        text = f"(1 - t) * x + (1 + (v - 1) * t) * {softplus}"
    text = _weighted(text, tensors, weight)
    _forward(p, "binary_cross_entropy_with_logits", out, tensors, {}, text, reduction, cost=8)
