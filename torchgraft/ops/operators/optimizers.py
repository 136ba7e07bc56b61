"""The fused steps of optimizers as an operator of the device's library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from torchgraft.plans import PlanBuilder, Scalar
from torchgraft.plans.operators import operator_form

Specs = Sequence[torch.Tensor]
Optional = torch.Tensor | None
Number = Scalar | float | torch.Tensor


class List(NamedTuple):
    """What belongs to the parameters, one for each.

    Attributes:
        read: as an input.
        written: as an output, None if it is none.
        optional: whether it may be missing; then it is empty.
        single: whether each is one number.
    """

    read: Specs
    written: Specs | None = None
    optional: bool = False
    single: bool = False


def _are_alike(lists: Sequence[List]) -> bool:
    """Whether all that belongs to a parameter is there, has its shape, and elements that are floats."""
    count = len(lists[0].read)
    return all(len(each.read) == count or (each.optional and not each.read) for each in lists) and all(
        x.is_floating_point() and (x.numel() == 1 if each.single else x.shape == parameter.shape)
        for each in lists
        for x, parameter in zip(each.read, lists[0].read, strict=False)
    )


def _some(specs: Specs, places: Sequence[int]) -> list[Optional]:
    return [specs[i] if specs else None for i in places]


def _plan_step(
    p: PlanBuilder,
    kind: str,
    numbers: Sequence[Number | None],
    lists: Sequence[List],
    together: int = 64,
    **attributes: Any,
) -> bool:
    """Adds the operator "optimizer_step" for all parameters, some at a time, if the device has it for them.

    Args:
        p: the plan.
        kind: of those in docs/operators.md.
        numbers: of the step; None for those that are not given.
        lists: the parameters, and what belongs to each of them.
        attributes: of the kind.
    """
    parameters = lists[0].read
    if not _are_alike(lists):
        return False  # which the planner refuses
    places = [i for i, parameter in enumerate(parameters) if parameter.numel()]
    for begin in range(0, len(places), together):
        part = places[begin : begin + together]
        inputs = [*numbers, *(x for each in lists for x in _some(each.read, part))]
        outputs = [x for each in lists if each.written is not None for x in _some(each.written, part)]
        if not p.operator("optimizer_step", inputs, outputs, kind=kind, count=len(part), **attributes):
            return False
    return bool(places)


def _adam(kind: str) -> None:
    @operator_form(f"_fused_{kind}_", f"_fused_{kind}_.tensor_lr")
    def form(
        p: PlanBuilder,
        _: Any,
        self: Specs,
        grads: Specs,
        exp_avgs: Specs,
        exp_avg_sqs: Specs,
        max_exp_avg_sqs: Specs,
        state_steps: Specs,
        *,
        lr: Number,
        beta1: Number,
        beta2: Number,
        weight_decay: Number,
        eps: Number,
        amsgrad: bool,
        maximize: bool,
        grad_scale: Optional = None,
        found_inf: Optional = None,
    ) -> bool:
        numbers = [lr, beta1, beta2, weight_decay, eps, grad_scale, found_inf]
        most = max_exp_avg_sqs if amsgrad else ()
        averages = [List(exp_avgs, exp_avgs), List(exp_avg_sqs, exp_avg_sqs), List(most, most, optional=not amsgrad)]
        lists = [List(self, self), _gradients(grads, grad_scale), *averages, List(state_steps, single=True)]
        return _plan_step(p, kind, numbers, lists, maximize=maximize)


for _kind in ("adam", "adamw"):
    _adam(_kind)


@operator_form("_fused_sgd_", "_fused_sgd_.tensor_lr")
def _sgd(
    p: PlanBuilder,
    _: Any,
    self: Specs,
    grads: Specs,
    momentum_buffer_list: Specs,
    *,
    weight_decay: Number,
    momentum: Number,
    lr: Number,
    dampening: Number,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
    grad_scale: Optional = None,
    found_inf: Optional = None,
) -> bool:
    numbers = [lr, weight_decay, momentum, dampening, grad_scale, found_inf]
    momenta = List(momentum_buffer_list, momentum_buffer_list, optional=True)
    lists = [List(self, self), _gradients(grads, grad_scale), momenta]
    return _plan_step(p, "sgd", numbers, lists, nesterov=nesterov, maximize=maximize, first=is_first_step)


@operator_form("_fused_adagrad_", "_fused_adagrad_.tensor_lr")
def _adagrad(
    p: PlanBuilder,
    _: Any,
    self: Specs,
    grads: Specs,
    state_sums: Specs,
    state_steps: Specs,
    *,
    lr: Number,
    lr_decay: Number,
    weight_decay: Number,
    eps: Number,
    maximize: bool,
    grad_scale: Optional = None,
    found_inf: Optional = None,
) -> bool:
    numbers = [lr, lr_decay, weight_decay, eps, grad_scale, found_inf]
    sums = List(state_sums, state_sums)
    lists = [List(self, self), _gradients(grads, grad_scale), sums, List(state_steps, single=True)]
    return _plan_step(p, "adagrad", numbers, lists, maximize=maximize)


def _gradients(grads: Specs, scale: Optional) -> List:
    """Those that are scaled are written, too, as they are without the scale."""
    return List(grads, () if scale is None else grads)
