"""Planners of the fused steps of optimizers, and of the scaling of gradients."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchgraft.codegen import Kernel, element_type
from torchgraft.codegen.batch import Batch
from torchgraft.codegen.kernel import parameters
from torchgraft.codegen.pointwise import Input, Loop, Number, Result, expression
from torchgraft.codegen.types import BY_NAME
from torchgraft.plans import PlanBuilder, Scalar, Unsupported, planner, pointwise
from torchgraft.plans.batch import Item, plan_batch

Specs = list[torch.Tensor]


@dataclass(frozen=True)
class Step:
    """A fused step as text.

    Attributes:
        tensors: names of the lists that are read for each element.
        updated: those of them that are written, with the expression of the new value.
        single: names of one-element tensors.
        numbers: names of the hyperparameters; they have the type `W`, wide enough for powers of what is nearly one.
        head: statements for each tensor; `W` as above, `T` the type that elements are computed in.
        text: statements for each element.
    """

    name: str
    tensors: tuple[str, ...]
    updated: tuple[tuple[str, str], ...]
    single: tuple[str, ...]
    numbers: tuple[str, ...]
    head: str
    text: str


@functools.cache
def _batch(step: Step, storages: tuple[str, ...], singles: tuple[str, ...], wide: str) -> Batch:
    compute = BY_NAME[storages[0]].compute
    wide_type = {"f64": "double", "f32": "float"}[wide]
    head = expression(step.head.replace("W ", f"{wide_type} ").replace("(W)", f"({wide_type})"), compute)
    storage = dict(zip(step.tensors, storages, strict=True))
    inputs = [Input(name, storage[name], compute) for name in step.tensors]
    inputs += [Input(name, s, wide) for name, s in zip(step.single, singles, strict=True)]
    loop = Loop(
        step.name,
        tuple(inputs),
        tuple(Number(name, wide) for name in step.numbers),
        tuple(Result(name, storage[name], compute, expression(text, compute)) for name, text in step.updated),
        expression(step.text, compute),
        cost=4,
    )
    return Batch(loop, frozenset(step.single), frozenset(), head)


def _plan_step(
    p: PlanBuilder, step: Step, lists: Sequence[Specs], singles: Sequence[Specs | torch.Tensor], numbers: Sequence[Any]
) -> None:
    """Adds the launches of a step.

    Args:
        lists: for each of `step.tensors`, its tensors.
        singles: for each of `step.single`, its tensor, or one for each item of the lists.
        numbers: for each of `step.numbers`, its value.
    """
    wide = "f64" if p.device.float64 else "f32"
    alike: dict[tuple[tuple[str, ...], tuple[str, ...]], list[Item]] = {}
    backs: list[tuple[torch.Tensor, torch.Tensor]] = []
    written = {name for name, _ in step.updated}
    if any(len(tensors) != len(lists[0]) for tensors in (*lists, *(s for s in singles if isinstance(s, list)))):
        raise RuntimeError("an optimizer's step needs one tensor of each kind for each parameter")
    for i in range(len(lists[0])):
        specs = [tensors[i] for tensors in lists]
        first = specs[0]
        if not all(s.shape == first.shape for s in specs):
            raise RuntimeError("the tensors of an optimizer's step must have the shape of their parameter")
        flat = pointwise.is_dense(first) and all(s.stride() == first.stride() for s in specs)
        if not flat:
            own, specs = specs, [p.contiguous(s) for s in specs]
            backs += [
                (o, s) for name, o, s in zip(step.tensors, own, specs, strict=True) if name in written and o is not s
            ]
        one = [s[i] if isinstance(s, list) else s for s in singles]
        key = (tuple(element_type(s.dtype).name for s in specs), tuple(element_type(s.dtype).name for s in one))
        alike.setdefault(key, []).append(Item([*specs, *one], list(numbers), first.numel()))
    for (storages, single_storages), items in alike.items():
        if not BY_NAME[storages[0]].is_float:
            raise Unsupported("an optimizer's step of numbers that are no floats")
        plan_batch(p, _batch(step, storages, single_storages, wide), items)
    for to, by in backs:
        p.copy(to, by)


_SCALED = "grad = grad / (T)grad_scale;\n"
_STOPPED = "if (found_inf != 0) continue;\n"


@functools.cache
def _adam_step(decoupled: bool, amsgrad: bool, maximize: bool, tensor_lr: bool, scaled: bool, checked: bool) -> Step:
    decay = "param = param - param * decay;\n" if decoupled else "g = fma(param, decay, g);\n"
    text = f"""\
{_SCALED if scaled else ""}T g = {"-grad" if maximize else "grad"};
{decay}T m = fma(g - exp_avg, 1 - b1, exp_avg);
T v = fma(g * g, 1 - b2, exp_avg_sq * b2);
"""
    if amsgrad:
        text += "T most = max_exp_avg_sq > v ? max_exp_avg_sq : v;\n"
    text += f"T denominator = fma(sqrt({'most' if amsgrad else 'v'}), correction, small);\n"
    text += "T x = param - size * m / denominator;"
    head = f"""\
{_STOPPED if checked else ""}T b1 = (T)beta1, b2 = (T)beta2, small = (T)eps;
    T size = (T)(lr / (1 - pow((W)beta1, step)));
    T correction = (T)(1 / sqrt(1 - pow((W)beta2, step)));
    T decay = (T)({"lr * weight_decay" if decoupled else "weight_decay"});"""
    updated = [("param", "x"), ("exp_avg", "m"), ("exp_avg_sq", "v")]
    tensors = ["param", "grad", "exp_avg", "exp_avg_sq"]
    if amsgrad:
        updated.append(("max_exp_avg_sq", "most"))
        tensors.append("max_exp_avg_sq")
    if scaled:
        updated.append(("grad", "grad"))
    single = ["step"] + ["lr"] * tensor_lr + ["grad_scale"] * scaled + ["found_inf"] * checked
    numbers = ["lr"] * (not tensor_lr) + ["beta1", "beta2", "weight_decay", "eps"]
    return Step(
        "adamw" if decoupled else "adam", tuple(tensors), tuple(updated), tuple(single), tuple(numbers), head, text
    )


def _given(*optional: Any) -> list[Any]:
    return [x for x in optional if x is not None]


def _adam(decoupled: bool) -> Any:
    def plan(
        p: PlanBuilder,
        _: Any,
        self: Specs,
        grads: Specs,
        exp_avgs: Specs,
        exp_avg_sqs: Specs,
        max_exp_avg_sqs: Specs,
        state_steps: Specs,
        *,
        lr: Scalar | torch.Tensor,
        beta1: Scalar,
        beta2: Scalar,
        weight_decay: Scalar,
        eps: Scalar,
        amsgrad: bool,
        maximize: bool,
        grad_scale: torch.Tensor | None = None,
        found_inf: torch.Tensor | None = None,
    ) -> None:
        tensor_lr = isinstance(lr, torch.Tensor)
        step = _adam_step(decoupled, amsgrad, maximize, tensor_lr, grad_scale is not None, found_inf is not None)
        lists = [self, grads, exp_avgs, exp_avg_sqs, *([max_exp_avg_sqs] if amsgrad else [])]
        singles = [state_steps, *_given(lr if tensor_lr else None, grad_scale, found_inf)]
        _plan_step(p, step, lists, singles, [*([] if tensor_lr else [lr]), beta1, beta2, weight_decay, eps])

    return plan


def _nothing(**_: Any) -> None:
    """The meta kernel of ops that write their arguments and return nothing."""


for _name, _decoupled in (("_fused_adam_", False), ("_fused_adamw_", True)):
    planner(_name, f"{_name}.tensor_lr", inplace_safe=True, meta=_nothing)(_adam(_decoupled))


@functools.cache
def _sgd_step(
    momentum: bool, nesterov: bool, maximize: bool, first: bool, tensor_lr: bool, scaled: bool, checked: bool
) -> Step:
    text = f"""\
{_SCALED if scaled else ""}T g = {"-grad" if maximize else "grad"};
g = fma(param, decay, g);
"""
    if momentum:
        text += (
            f"T b = {'g' if first else 'fma(buffer, keep, g * take)'};\ng = {'fma(b, keep, g)' if nesterov else 'b'};\n"
        )
    text += "T x = fma(-rate, g, param);"
    head = _STOPPED if checked else ""
    head += "T decay = (T)weight_decay, rate = (T)lr, keep = (T)momentum, take = (T)(1 - dampening);"
    updated = [("param", "x")] + [("buffer", "b")] * momentum + [("grad", "grad")] * scaled
    tensors = ["param", "grad"] + ["buffer"] * momentum
    single = ["lr"] * tensor_lr + ["grad_scale"] * scaled + ["found_inf"] * checked
    numbers = ["weight_decay", "momentum"] + ["lr"] * (not tensor_lr) + ["dampening"]
    return Step("sgd", tuple(tensors), tuple(updated), tuple(single), tuple(numbers), head, text)


@planner("_fused_sgd_", "_fused_sgd_.tensor_lr", inplace_safe=True, meta=_nothing)
def _sgd(
    p: PlanBuilder,
    _: Any,
    self: Specs,
    grads: Specs,
    buffers: Specs,
    *,
    weight_decay: Scalar,
    momentum: Scalar,
    lr: Scalar | torch.Tensor,
    dampening: Scalar,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
    grad_scale: torch.Tensor | None = None,
    found_inf: torch.Tensor | None = None,
) -> None:
    tensor_lr = isinstance(lr, torch.Tensor)
    step = _sgd_step(
        bool(buffers), nesterov, maximize, is_first_step, tensor_lr, grad_scale is not None, found_inf is not None
    )
    lists = [self, grads, *([buffers] if buffers else [])]
    singles = _given(lr if tensor_lr else None, grad_scale, found_inf)
    _plan_step(p, step, lists, singles, [weight_decay, momentum, *([] if tensor_lr else [lr]), dampening])


@functools.cache
def _adagrad_step(maximize: bool, tensor_lr: bool, scaled: bool, checked: bool) -> Step:
    text = f"""\
{_SCALED if scaled else ""}T g = {"-grad" if maximize else "grad"};
g = fma(param, decay, g);
T s = fma(g, g, sum);
T x = param - rate * g / (sqrt(s) + small);"""
    head = f"""\
{_STOPPED if checked else ""}T decay = (T)weight_decay, small = (T)eps;
    T rate = (T)(lr / (1 + (step - 1) * lr_decay));"""
    updated = [("param", "x"), ("sum", "s")] + [("grad", "grad")] * scaled
    single = ["step"] + ["lr"] * tensor_lr + ["grad_scale"] * scaled + ["found_inf"] * checked
    numbers = ["lr"] * (not tensor_lr) + ["lr_decay", "weight_decay", "eps"]
    return Step("adagrad", ("param", "grad", "sum"), tuple(updated), tuple(single), tuple(numbers), head, text)


@planner("_fused_adagrad_", "_fused_adagrad_.tensor_lr", inplace_safe=True, meta=_nothing)
def _adagrad(
    p: PlanBuilder,
    _: Any,
    self: Specs,
    grads: Specs,
    sums: Specs,
    state_steps: Specs,
    *,
    lr: Scalar | torch.Tensor,
    lr_decay: Scalar,
    weight_decay: Scalar,
    eps: Scalar,
    maximize: bool,
    grad_scale: torch.Tensor | None = None,
    found_inf: torch.Tensor | None = None,
) -> None:
    tensor_lr = isinstance(lr, torch.Tensor)
    step = _adagrad_step(maximize, tensor_lr, grad_scale is not None, found_inf is not None)
    singles = [state_steps, *_given(lr if tensor_lr else None, grad_scale, found_inf)]
    _plan_step(p, step, [self, grads, sums], singles, [*([] if tensor_lr else [lr]), lr_decay, weight_decay, eps])


# ---- gradient scaling ----


@functools.cache
def _unscale_batch(storage: str) -> Batch:
    compute = BY_NAME[storage].compute
    largest = {"f16": "65504.0f", "f64": "1.7976931348623157e308"}.get(storage, "3.40282347e38f")
    loop = Loop(
        "unscale",
        (Input("grad", storage, compute), Input("inv_scale", "f32", "f32"), Input("found_inf", "f32", "f32")),
        (),
        (Result("grad", storage, compute, "grad * by"),),
        f"bad |= @abs(grad) <= {largest} ? 0 : 1;",
        cost=2,
    )
    loop = Loop(loop.name, loop.inputs, (), loop.results, expression(loop.statements, compute), loop.cost)
    head = expression("int bad = 0;\n    T by = (T)inv_scale;", compute)
    return Batch(loop, frozenset(("inv_scale", "found_inf")), frozenset(), head, "if (bad != 0) found_inf_p[0] = 1;")


@planner("_amp_foreach_non_finite_check_and_unscale_", inplace_safe=True)
def _unscale(p: PlanBuilder, _: Any, self: Specs, found_inf: torch.Tensor, inv_scale: torch.Tensor) -> None:
    alike: dict[str, list[Item]] = {}
    backs = []
    for grad in self:
        own = grad if pointwise.is_dense(grad) else p.contiguous(grad)
        if own is not grad:
            backs.append((grad, own))
        alike.setdefault(element_type(grad.dtype).name, []).append(Item([own, inv_scale, found_inf], [], grad.numel()))
    for storage, items in alike.items():
        plan_batch(p, _unscale_batch(storage), items)
    for to, by in backs:
        p.copy(to, by)


_UPDATE_SCALE = Kernel(
    "amp_update_scale",
    parameters("f32* scale; i32* tracker; const f32* found_inf; f32 growth, backoff; i32 interval"),
    """\
  if (found_inf[0] != 0) {
    scale[0] *= backoff;
    tracker[0] = 0;
  } else if (tracker[0] + 1 == interval) {
    float grown = scale[0] * growth;
    if (grown <= 3.40282347e38f) scale[0] = grown;
    tracker[0] = 0;
  } else {
    tracker[0] += 1;
  }""",
)


@planner("_amp_update_scale_", inplace_safe=True)
def _update_scale(
    p: PlanBuilder,
    _: Any,
    self: torch.Tensor,
    tracker: torch.Tensor,
    found_inf: torch.Tensor,
    growth: Scalar,
    backoff: Scalar,
    interval: int,
) -> None:
    numbers = {"growth": growth, "backoff": backoff, "interval": interval}
    p.launch(_UPDATE_SCALE, (1,), scale=self, tracker=tracker, found_inf=found_inf, **numbers)
