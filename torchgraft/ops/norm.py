"""Planners of layer, RMS, group and batch normalisation, forward and backward."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchgraft.codegen import ceil_div, element_type
from torchgraft.codegen.walk import FEW
from torchgraft.kernels import norm as kernels
from torchgraft.ops.entries import enter, enter_composite
from torchgraft.plans import PlanBuilder, Scalar, Unsupported, composite, other_out, planner
from torchgraft.plans.grid import Grid
from torchgraft.plans.quick_meta import QUICK_METAS
from torchgraft.plans.reduction import plan_reduction
from torchgraft.plans.refusals import check_out, check_parameters
from torchgraft.plans.schema import overload_name

aten = torch.ops.aten

Mask = Sequence[bool]
Gradients = tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]
"""Of input, weight and bias."""


def _name(t: torch.Tensor | None, default: str) -> str:
    return default if t is None else element_type(t.dtype).name


def _type_name(t: torch.Tensor | None) -> str | None:
    return None if t is None else element_type(t.dtype).name


def _float_name(x: torch.Tensor) -> str:
    type_ = element_type(x.dtype)
    if not type_.is_float:
        raise Unsupported(f"normalisation of {x.dtype}")
    return type_.name


def _accumulate(x: torch.Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _kept(x: torch.Tensor, *parameters: torch.Tensor | None) -> torch.dtype:
    """The dtype in which statistics are kept for the backward pass: that of the parameters, if there are any."""
    return next((parameter.dtype for parameter in parameters if parameter is not None), x.dtype)


def _meta(op: torch._ops.OpOverload) -> Callable[..., Any]:
    """torch's meta functions keep the statistics as its CUDA device does; users compare with its CPU."""

    quick_meta = QUICK_METAS[overload_name(op)]

    def meta(input: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, **others: Any) -> Any:
        quick = quick_meta(input=input, weight=weight, bias=bias, **others)
        if quick is not None:
            return quick
        y, *statistics = op(input=input, weight=weight, bias=bias, **others)
        dtype = _kept(input, weight, bias)
        return y, *(kept.new_empty(kept.shape, dtype=dtype) for kept in statistics)

    return meta


def _check(input: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, **_: Any) -> None:
    check_parameters(input, weight, bias)


# ---- layer norm ----


@planner("native_layer_norm", contiguous=True, meta=_meta(aten.native_layer_norm.default), refuses=(_check, other_out))
def layer_norm(
    p: PlanBuilder,
    out: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    input: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: Scalar,
) -> None:
    y, mean, rstd = out
    type_ = _float_name(input)
    size = math.prod(normalized_shape)
    if size == 0 or input.numel() == 0:
        p.fill(mean, 0)
        p.fill(rstd, math.nan)
        return
    layout, grid = p.along_rows(input.numel() // size, size)
    kernel = kernels.layer_norm(
        layout,
        type_,
        _name(weight if weight is not None else bias, type_),
        _name(mean, type_),
        weight is not None,
        bias is not None,
    )
    statistics = {"means": mean, "rstds": rstd}
    p.launch(kernel, grid, x=input, weight=weight, bias=bias, out=y, **statistics, eps=eps)


def _row_norm_backward(
    p: PlanBuilder,
    out: Gradients,
    grad: torch.Tensor,
    x: torch.Tensor,
    normalized_shape: Sequence[int],
    statistics: tuple[torch.Tensor | None, torch.Tensor],
    weight: torch.Tensor | None,
) -> None:
    """Plans the gradients of input, weight and bias from mean and inverse deviation; RMS norm has no mean, no bias."""
    input_grad, weight_grad, bias_grad = out
    mean, rstd = statistics
    type_, stat, centered = _float_name(x), element_type(rstd.dtype).name, mean is not None
    size = math.prod(normalized_shape)
    rows = x.numel() // size if size else 0
    if rows == 0:
        for result in out:
            if result is not None:
                p.fill(result, 0)
        return
    gpu = p.form == "gpu"
    wants_weight = weight_grad is not None or bias_grad is not None
    layout, grid = p.along_rows(rows, size, unrolled=False)
    (parts,) = grid.groups
    if gpu:
        parts = max(1, min(ceil_div(8 * p.device.compute_units * 32, size), ceil_div(rows, 64)))
        parts = ceil_div(rows, ceil_div(rows, parts))
    dws = p.empty((parts, size), _accumulate(x)) if wants_weight else None
    dbs = p.empty((parts, size), _accumulate(x)) if wants_weight and centered else None
    arguments = {"grad": p.cast(grad, x.dtype), "x": x, "means": mean, "rstds": rstd, "dws": dws, "dbs": dbs}
    if input_grad is not None or (wants_weight and not gpu):
        kernel = kernels.row_norm_backward(
            layout,
            type_,
            _name(weight, type_),
            stat,
            centered,
            weight is not None,
            input_grad is not None,
            wants_weight and not gpu,
        )
        p.launch(kernel, grid, **arguments, weight=weight, out=input_grad)
    if wants_weight and gpu:
        columns, part = p.walk(size, multiple=1, group=FEW).by(parts), ceil_div(rows, parts)
        p.launch(kernels.row_norm_weight(type_, stat, centered), columns, **arguments, rows=rows, part=part)
    pairs = [
        (grad, sums) for grad, sums in ((weight_grad, dws), (bias_grad, dbs)) if grad is not None and sums is not None
    ]
    if pairs:
        acc, types = element_type(_accumulate(x)).name, tuple(element_type(grad.dtype).name for grad, _ in pairs)
        (_, first), *others = pairs
        results = [grad.view(-1) for grad, _ in pairs]
        plan_reduction(p, kernels.totals(acc, types), results, first, [0], others=[sums for _, sums in others])


@planner("native_layer_norm_backward", contiguous=True)
def layer_norm_backward(
    p: PlanBuilder,
    out: Gradients,
    grad: torch.Tensor,
    x: torch.Tensor,
    shape: Sequence[int],
    mean: torch.Tensor,
    rstd: torch.Tensor,
    weight: torch.Tensor | None,
    *_: Any,
) -> None:
    _row_norm_backward(p, out, grad, x, shape, (mean, rstd), weight)


# ---- RMS norm ----
#
# What torch composes it of for complex numbers and channels-last images is not these.


@planner("_fused_rms_norm", contiguous=True)
def rms_norm(
    p: PlanBuilder,
    out: tuple[torch.Tensor, torch.Tensor],
    input: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None,
    eps: Scalar | None,
) -> None:
    y, rstd = out
    type_, size = _float_name(input), math.prod(normalized_shape)
    if input.numel() == 0:
        p.fill(rstd, math.nan)
        return
    layout, grid = p.along_rows(input.numel() // size, size)
    kernel = kernels.rms_norm(layout, type_, _name(weight, type_), weight is not None)
    added = torch.finfo(rstd.dtype).eps if eps is None else eps
    p.launch(kernel, grid, x=input, weight=weight, out=y, rstds=rstd, eps=added)


@planner("_fused_rms_norm_backward", contiguous=True)
def rms_norm_backward(
    p: PlanBuilder,
    out: tuple[torch.Tensor | None, torch.Tensor | None],
    grad: torch.Tensor,
    x: torch.Tensor,
    shape: Sequence[int],
    rstd: torch.Tensor,
    weight: torch.Tensor | None,
    *_: Any,
) -> None:
    _row_norm_backward(p, (*out, None), grad, x, shape, (None, rstd), weight)


# ---- group norm ----


@planner("native_group_norm", contiguous=True, meta=_meta(aten.native_group_norm.default), refuses=(_check, other_out))
def group_norm(
    p: PlanBuilder,
    out: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    input: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    N: int,
    C: int,
    HxW: int,
    group: int,
    eps: Scalar,
) -> None:
    y, mean, rstd = out
    type_ = _float_name(input)
    if input.numel() == 0:
        p.fill(mean, 0)
        p.fill(rstd, math.nan)
        return
    rows, depth = N * group, C // group
    kernel = kernels.group_norm(
        p.layout,
        type_,
        _name(weight if weight is not None else bias, type_),
        _name(mean, type_),
        weight is not None,
        bias is not None,
    )
    tensors = {"x": input, "weight": weight, "bias": bias, "out": y, "means": mean, "rstds": rstd}
    sizes = {"groups": group, "depth": depth, "inner": HxW}
    p.launch(kernel, p.long_rows(rows, depth * HxW), **tensors, **sizes, eps=eps)


@planner("native_group_norm_backward", contiguous=True)
def group_norm_backward(
    p: PlanBuilder,
    out: Gradients,
    grad_out: torch.Tensor,
    input: torch.Tensor,
    mean: torch.Tensor,
    rstd: torch.Tensor,
    weight: torch.Tensor | None,
    N: int,
    C: int,
    HxW: int,
    group: int,
    output_mask: Mask,
) -> None:
    input_grad, weight_grad, bias_grad = out
    type_, stat = _float_name(input), element_type(mean.dtype).name
    if input.numel() == 0:
        for grad in out:
            if grad is not None:
                p.fill(grad, 0)
        return
    grad_out = p.cast(grad_out, input.dtype)
    acc = element_type(_accumulate(input)).name
    depth = C // group
    sums = {name: p.empty((N, C), _accumulate(input)) for name in ("sums", "dots")}
    tensors: dict[str, torch.Tensor | None] = {"grad": grad_out, "x": input, "means": mean, **sums}
    p.launch(kernels.group_norm_sums(p.layout, type_, stat), p.long_rows(N * C, HxW), **tensors, depth=depth)
    if input_grad is not None:
        kernel = kernels.group_norm_input(p.layout, type_, _name(weight, type_), stat, weight is not None)
        tensors |= {"rstds": rstd, "weight": weight, "out": input_grad}
        sizes = {"groups": group, "depth": depth, "inner": HxW}
        p.launch(kernel, p.long_rows(N * group, depth * HxW), **tensors, **sizes)
    some = weight_grad if weight_grad is not None else bias_grad
    if some is not None:
        kernel = kernels.group_norm_weight(p.form, acc, _name(some, type_), stat)
        wants = {"has_weight": int(weight_grad is not None), "has_bias": int(bias_grad is not None)}
        grads = {"weight_grad": weight_grad, "bias_grad": bias_grad}
        p.launch(kernel, p.walk(C, N, 1), rstds=rstd, **sums, **grads, samples=N, groups=group, depth=depth, **wants)


# ---- batch norm ----


def _channels_last(x: torch.Tensor) -> bool | None:
    """Whether channels are fastest in memory; None if the tensor is neither that nor contiguous."""
    if x.movedim(1, -1).is_contiguous():  # of one position to a sample, too
        return True
    return False if x.is_contiguous() else None


def _like(p: PlanBuilder, x: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
    """x with those strides, copied where it lies differently."""
    if tuple(x.stride()) == tuple(strides):
        return x
    copy = p.empty(x.shape, x.dtype, strides)
    p.copy(copy, x)
    return copy


def _channel_walk(p: PlanBuilder, x: torch.Tensor) -> tuple[bool, Grid]:
    """Whether channels are fastest in memory, and the walk of a kernel for each element."""
    last = x.size(1) > 1 and bool(_channels_last(x))
    samples, channels = x.shape[:2]
    inner = math.prod(x.shape[2:])
    return last, p.walk((samples * inner, channels) if last else (samples * channels, inner))


class _Channels:
    """The tensors with one element a channel: kernels want them contiguous, so others have a contiguous stand-in."""

    def __init__(self, p: PlanBuilder) -> None:
        self._p = p
        self._backs: list[tuple[torch.Tensor, torch.Tensor]] = []

    def read(self, *specs: torch.Tensor | None) -> list[torch.Tensor | None]:
        """Stand-ins for what is read."""
        return [None if spec is None else self._p.contiguous(spec) for spec in specs]

    def write(self, *specs: torch.Tensor | None, read: bool = False) -> list[torch.Tensor | None]:
        """Stand-ins for what is written, and read before if `read`; `finish` brings their values back."""
        stand_ins: list[torch.Tensor | None] = []
        for spec in specs:
            own = spec
            if spec is not None and not spec.is_contiguous():
                own = self._p.contiguous(spec) if read else self._p.empty_like(spec)
                self._backs.append((spec, own))
            stand_ins.append(own)
        return stand_ins

    def finish(self) -> None:
        """After the last kernel that writes one."""
        for spec, own in self._backs:
            self._p.copy(spec, own)


def _batch_norm(
    p: PlanBuilder,
    out: Sequence[torch.Tensor],
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    training: bool,
    momentum: Scalar | float,
    eps: Scalar,
) -> None:
    y, *saved = out
    if x.numel() == 0:
        return
    of_channels = _Channels(p)
    weight, bias = of_channels.read(weight, bias)
    if training:
        running_mean, running_var = of_channels.write(running_mean, running_var, read=True)
    else:
        running_mean, running_var = of_channels.read(running_mean, running_var)
    save_mean, save_invstd = of_channels.write(*saved)
    target = p.empty_like(y) if _channels_last(y) is None else y
    x = _like(p, x, target.stride())
    if training or running_mean is None or running_var is None:
        updated = training and running_mean is not None
        running = (running_mean, running_var) if updated else (None, None)
        center, deviation = _moments(p, x, (save_mean, save_invstd), running, momentum, eps)
    else:
        center, deviation = running_mean, running_var
    of_channels.finish()
    _normalise(p, target, x, weight, bias, center, deviation, deviation is running_var, eps)
    if target is not y:
        p.copy(y, target)


def _normalise(
    p: PlanBuilder,
    y: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    center: torch.Tensor,
    deviation: torch.Tensor,
    var: bool,
    eps: Scalar,
) -> None:
    """Plans the normalised elements, of an input with the result's strides; with `var` the deviation is a variance."""
    last, grid = _channel_walk(p, x)
    type_, stat_type = _float_name(x), element_type(center.dtype).name
    kernel = kernels.batch_norm_map(p.form, type_, stat_type, _type_name(weight), _type_name(bias), var, last)
    statistics = {"center": center, "deviation": deviation, "weight": weight, "bias": bias}
    p.launch(kernel, grid, x=x, **statistics, out=y, channels=x.size(1), eps=eps)


def _moments(
    p: PlanBuilder,
    x: torch.Tensor,
    saved: tuple[torch.Tensor | None, torch.Tensor | None],
    running: tuple[torch.Tensor | None, torch.Tensor | None],
    momentum: Scalar | float,
    eps: Scalar,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Plans mean and inverse deviation of each channel, and whatever follows from them."""
    dtype = _accumulate(x)
    acc = element_type(dtype).name
    keeps = [spec for spec in saved if spec is not None and spec.numel()]
    exact = len(keeps) == 2 and keeps[0].dtype == dtype
    center, deviation = keeps if exact else [p.empty((x.size(1),), dtype) for _ in range(2)]
    more = [] if exact else keeps
    updated = [spec for spec in running if spec is not None]
    reduction = kernels.batch_norm_moments(
        acc, _type_name(more[0]) if more else None, _type_name(updated[0]) if updated else None
    )
    dims = [d for d in range(x.dim()) if d != 1]
    plan_reduction(p, reduction, [center, deviation, *more, *updated], x, dims, [eps, momentum])
    return center, deviation


def _batch_norm_without_statistics_meta(
    input: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    running_mean: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    if input.dim() < 2:
        raise IndexError(f"batch norm takes inputs of at least two dimensions, not {input.dim()}")
    check_parameters(input, weight, bias)
    dtype = _kept(input, weight, bias, running_mean)
    saved = [input.new_empty((input.size(1),), dtype=dtype) for _ in range(2)]
    return torch.empty_like(input), saved[0], saved[1]


def _batch_norm_meta(training: bool, **tensors: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Without training there is nothing to keep: the statistics are empty, as on torch's CPU."""
    y, *saved = _batch_norm_without_statistics_meta(**tensors)
    mean, invstd = saved if training else (statistics.new_empty(0) for statistics in saved)
    return y, mean, invstd


planner("native_batch_norm", meta=_batch_norm_meta)(_batch_norm)
enter("_native_batch_norm_legit", _batch_norm, meta=_batch_norm_meta)


def _batch_norm_to(
    *args: Any, out: torch.Tensor, save_mean: torch.Tensor, save_invstd: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The out= form, which writes the running statistics too: no rule for out= forms describes it."""
    targets = out, save_mean, save_invstd
    for target, made in zip(targets, torch.ops.aten._native_batch_norm_legit.default(*args), strict=True):
        check_out(target, made)
        target.resize_(made.shape).copy_(made)
    return targets


enter_composite("_native_batch_norm_legit.out", _batch_norm_to)


def _batch_norm_with_update_meta(
    **tensors: Any,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    reserve = tensors["input"].new_empty(0, dtype=torch.uint8)
    return *_batch_norm_without_statistics_meta(**tensors), reserve


def _batch_norm_with_update(
    p: PlanBuilder,
    out: tuple[torch.Tensor, ...],
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    mean: torch.Tensor,
    var: torch.Tensor,
    momentum: Scalar,
    eps: Scalar,
) -> None:
    _batch_norm(p, out[:3], x, weight, bias, mean, var, True, momentum, eps)


enter("_batch_norm_with_update", _batch_norm_with_update, meta=_batch_norm_with_update_meta)


@planner("_native_batch_norm_legit.no_stats", meta=_batch_norm_without_statistics_meta)  # torch has none for out=
def _batch_norm_without_statistics(
    p: PlanBuilder,
    out: tuple[torch.Tensor, ...],
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    training: bool,
    momentum: Scalar,
    eps: Scalar,
) -> None:
    _batch_norm(p, out, x, weight, bias, None, None, training, momentum, eps)


@planner("native_batch_norm_backward", "batch_norm_backward")
def _batch_norm_backward(
    p: PlanBuilder,
    out: Sequence[torch.Tensor | None],
    grad: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor | None,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    save_mean: torch.Tensor | None,
    save_invstd: torch.Tensor | None,
    train: bool,
    eps: Scalar,
    *_: Any,  # which gradients are wanted, and the reserve: nothing is in it
) -> None:
    input_grad, weight_grad, bias_grad = out
    type_ = _float_name(x)
    if x.numel() == 0:
        for result in out:
            if result is not None:
                p.fill(result, 0)
        return
    of_channels = _Channels(p)
    weight, running_mean, running_var = of_channels.read(weight, running_mean, running_var)
    save_mean, save_invstd = of_channels.read(save_mean, save_invstd)
    weight_grad, bias_grad = of_channels.write(weight_grad, bias_grad)
    layout = input_grad if input_grad is not None else x
    if _channels_last(layout) is None:
        layout = torch.empty(x.shape, device="meta")
    x = _like(p, x, layout.stride())
    grad = _like(p, p.cast(grad, x.dtype), layout.stride())
    center, deviation = (save_mean, save_invstd) if train else (running_mean, running_var)
    if center is None or deviation is None:
        raise Unsupported("no statistics")
    stat_type = _name(center, type_)
    channels, dtype = x.size(1), _accumulate(x)
    acc = element_type(dtype).name
    sums = [p.empty((channels,), dtype) for _ in range(2)] if train and input_grad is not None else []
    grads = [grad for grad in (weight_grad, bias_grad) if grad is not None]
    if sums or grads:
        grad_types = _type_name(weight_grad), _type_name(bias_grad)
        reduction = kernels.batch_norm_sums(acc, type_, stat_type, not train, bool(sums), grad_types)
        dims = [d for d in range(x.dim()) if d != 1]
        plan_reduction(p, reduction, [*sums, *grads], grad, dims, [eps], others=[x, center, deviation])
    of_channels.finish()
    if input_grad is None:
        return
    _plan_input_grad(p, input_grad, grad, x, weight, (center, deviation), sums, x.numel() // channels, eps)


def _plan_input_grad(
    p: PlanBuilder,
    input_grad: torch.Tensor,
    grad: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor | None,
    statistics: tuple[torch.Tensor, torch.Tensor],
    sums: Sequence[torch.Tensor],
    each: int,
    eps: Scalar | float,
) -> None:
    """Plans the gradient of the input.

    Args:
        grad, x: of one layout.
        statistics: mean and inverse deviation or, without sums, variance.
        sums: in training those of `kernels.batch_norm_sums`.
        each: how many elements of a channel they are of.
    """
    target = input_grad if input_grad.stride() == x.stride() else p.empty(x.shape, x.dtype, x.stride())
    last, grid = _channel_walk(p, x)
    center, deviation = statistics
    stat_type, train = element_type(center.dtype).name, bool(sums)
    kernel = kernels.batch_norm_input(p.form, _float_name(x), stat_type, _type_name(weight), not train, train, last)
    total, dot = sums or (None, None)
    of_channels = {"center": center, "deviation": deviation, "weight": weight, "sum": total, "dot": dot}
    sizes = {"channels": x.size(1), "each": each}
    p.launch(kernel, grid, grad=grad, x=x, **of_channels, out=target, **sizes, eps=eps)
    if target is not input_grad:
        p.copy(input_grad, target)


# ---- batch norm of a batch in several processes ----
#
# SyncBatchNorm is made of ops that torch has for CUDA alone: each process's statistics, those of the whole batch, and
# the same backward.


def _dense(p: PlanBuilder, x: torch.Tensor) -> torch.Tensor:
    """x in one of the layouts that kernels know."""
    return p.contiguous(x) if _channels_last(x) is None else x


def _stats_meta(input: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    mean, invstd = (input.new_empty((input.size(1),), dtype=_accumulate(input)) for _ in range(2))
    return mean, invstd


@planner("batch_norm_stats", meta=_stats_meta)
def batch_norm_stats(p: PlanBuilder, out: tuple[torch.Tensor, torch.Tensor], input: torch.Tensor, eps: Scalar) -> None:
    _float_name(input)
    if input.numel() == 0:
        raise Unsupported("statistics of nothing")
    _moments(p, _dense(p, input), out, (None, None), 0.0, eps)


def _like_input_meta(input: torch.Tensor, **_: Any) -> torch.Tensor:
    return torch.empty_like(input)


@planner("batch_norm_elemt", meta=_like_input_meta)
def batch_norm_elemt(
    p: PlanBuilder,
    out: torch.Tensor,
    input: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    mean: torch.Tensor,
    invstd: torch.Tensor,
    eps: Scalar,
) -> None:
    if input.numel() == 0:
        return
    target = out if _channels_last(out) is not None else p.empty_like(out)
    weight, bias = _Channels(p).read(weight, bias)
    source, center, deviation = _like(p, input, target.stride()), p.contiguous(mean), p.contiguous(invstd)
    _normalise(p, target, source, weight, bias, center, deviation, False, eps)
    if target is not out:
        p.copy(out, target)


@composite("batch_norm_gather_stats_with_counts")
def batch_norm_gather_stats_with_counts(
    input: torch.Tensor,
    mean: torch.Tensor,
    invstd: torch.Tensor,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    momentum: float,
    eps: float,
    counts: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Of statistics with a row for each process those of all; brings the running ones forward."""
    each = counts.to(mean.dtype).unsqueeze(1)
    count = each.sum()
    center = (mean * each).sum(0) / count
    squares = ((invstd.pow(-2) - eps + (mean - center).square()) * each).sum(0)
    for running, value in ((running_mean, center), (running_var, squares / (count - 1))):
        if running is not None:
            running.lerp_(value.to(running.dtype), momentum)
    return center, (squares / count + eps).rsqrt()


@composite("batch_norm_gather_stats")
def batch_norm_gather_stats(
    input: torch.Tensor,
    mean: torch.Tensor,
    invstd: torch.Tensor,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    momentum: float,
    eps: float,
    count: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    counts = torch.full((mean.size(0),), count, dtype=mean.dtype, device=mean.device)
    return batch_norm_gather_stats_with_counts(input, mean, invstd, running_mean, running_var, momentum, eps, counts)


def _backward_reduce_meta(
    input: torch.Tensor, weight: torch.Tensor | None, input_g: bool, weight_g: bool, bias_g: bool, **_: Any
) -> tuple[torch.Tensor | None, ...]:
    dtype = _accumulate(input)
    kept = dtype if weight is None else weight.dtype
    wanted = (input_g, dtype), (input_g, dtype), (weight_g, kept), (bias_g, kept)
    return tuple(input.new_empty((input.size(1),), dtype=dtype) if wants else None for wants, dtype in wanted)


@planner("batch_norm_backward_reduce", meta=_backward_reduce_meta)
def batch_norm_backward_reduce(
    p: PlanBuilder,
    out: tuple[torch.Tensor | None, ...],
    grad_out: torch.Tensor,
    input: torch.Tensor,
    mean: torch.Tensor,
    invstd: torch.Tensor,
    weight: torch.Tensor | None,
    input_g: bool,
    weight_g: bool,
    bias_g: bool,
) -> None:
    results = [result for result in out if result is not None]
    if input.numel() == 0:
        for result in results:
            p.fill(result, 0)
        return
    x = _dense(p, input)
    grad = _like(p, p.cast(grad_out, x.dtype), x.stride())
    center, deviation = p.contiguous(mean), p.contiguous(invstd)
    acc, stat_type = element_type(_accumulate(x)).name, element_type(center.dtype).name
    grad_types = _type_name(out[2]), _type_name(out[3])
    reduction = kernels.batch_norm_sums(acc, _float_name(x), stat_type, False, input_g, grad_types)
    dims = [d for d in range(x.dim()) if d != 1]
    plan_reduction(p, reduction, results, grad, dims, [0.0], others=[x, center, deviation])


@planner("batch_norm_backward_elemt", meta=_like_input_meta)
def batch_norm_backward_elemt(
    p: PlanBuilder,
    out: torch.Tensor,
    grad_out: torch.Tensor,
    input: torch.Tensor,
    mean: torch.Tensor,
    invstd: torch.Tensor,
    weight: torch.Tensor | None,
    sum_dy: torch.Tensor,
    sum_dy_xmu: torch.Tensor,
    count: torch.Tensor,
) -> None:
    if input.numel() == 0:
        return
    x = _dense(p, input)
    grad = _like(p, p.cast(grad_out, x.dtype), x.stride())
    total = p.empty((), sum_dy.dtype)
    p.call_out(aten.sum.default, total, count, dtype=sum_dy.dtype)
    means = [p.empty((x.size(1),), _accumulate(x)) for _ in range(2)]
    for mean_, sum_ in zip(means, (sum_dy, sum_dy_xmu), strict=True):
        p.call_out(aten.div.Tensor, mean_, sum_, total)
    statistics = p.contiguous(mean), p.contiguous(invstd)
    (weight,) = _Channels(p).read(weight)
    _plan_input_grad(p, out, grad, x, weight, statistics, means, 1, 0.0)
