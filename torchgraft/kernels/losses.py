"""Kernels of the negative log likelihood: one log probability a target, out of [batch, class, place] with any
strides.

The walk is over (batch, place). All kernels but the last have the parameters `target`, `weight` if there are weights,
`errors`, `code`, `classes`, `ignored`, `batch_stride`, `class_stride` and `place_stride`.
"""

from __future__ import annotations

import functools

from torchgraft.codegen.kernel import Kernel, Parameter, parameters
from torchgraft.codegen.teams import Layout, Team
from torchgraft.codegen.types import BY_NAME, value_ctype
from torchgraft.codegen.walk import Walk


def _params(own: str, target: str, weight: str | None) -> tuple[Parameter, ...]:
    weights = f"const {weight}* weight; " if weight is not None else ""
    return parameters(
        f"{own}; const {target}* target; {weights}i32* errors; i32 code; "
        "i64 classes, ignored, batch_stride, class_stride, place_stride"
    )


def _element(type_: str, target: str, weight: str | None, found: str, skipped: str = "") -> str:
    """Statements for a target, which is number `i`; `found` uses t, w and `at`."""
    w = f"load_{type_}(weight, t)" if weight is not None else f"({value_ctype(type_)})1"
    return f"""\
    const long i = i0 * n1 + i1 + j, t = load_{target}(target, i);
    const long at = i0 * batch_stride + t * class_stride + (i1 + j) * place_stride;
    if (t == ignored) {{ {skipped} }}
    else if (t < 0 || t >= classes) {{ tg_report(errors, code, t); {skipped} }}
    else {{ const {value_ctype(type_)} w = {w}; {found} }}"""


@functools.cache
def each_kernel(type_: str, target: str, weight: str | None, form: str) -> Kernel:
    """The loss of each target, stored in order. Parameters besides: `out`, `x`."""
    found = f"store_{type_}(out, i, -w * load_{type_}(x, at));"
    walk = Walk(form, rank=2)
    body = walk.each(_element(type_, target, weight, found, f"store_{type_}(out, i, 0);"), vectorize=False)
    return walk.kernel("nll_each", _params(f"{type_}* out; const {type_}* x", target, weight), body)


def _sums(walk: Walk, type_: str, accumulate: str, target: str, weight: str | None) -> str:
    a = value_ctype(accumulate)
    add = f"loss -= ({a})(w * load_{type_}(x, at)); total += ({a})w;"
    return f"{a} loss = 0, total = 0;\n{walk.each(_element(type_, target, weight, add), vectorize=False)}\n"


def _finish(type_: str, mean: bool) -> str:
    loss = "loss / total" if mean else "loss"
    return f"store_{type_}(out, 0, {loss}); store_{type_}(weight_out, 0, total);"


@functools.cache
def sum_kernel(type_: str, accumulate: str, target: str, weight: str | None) -> Kernel:
    """Sums of losses and of weights of each group: sums[2 g], sums[2 g + 1]. One work-item takes a chunk, on every
    device. Parameters besides: `sums`, `x`."""
    walk = Walk("cpu", rank=2)
    store = "sums[2 * GROUP_ID(0)] = loss; sums[2 * GROUP_ID(0) + 1] = total;"
    params = _params(f"{accumulate}* sums; const {type_}* x", target, weight)
    return walk.kernel("nll_sum", params, _sums(walk, type_, accumulate, target, weight) + store)


@functools.cache
def whole_kernel(type_: str, accumulate: str, target: str, weight: str | None, mean: bool) -> Kernel:
    """The loss of all targets, and their weight, by one work-item. Parameters besides: `out`, `weight_out`, `x`."""
    walk = Walk("cpu", rank=2)
    params = _params(f"{type_}* out, weight_out; const {type_}* x", target, weight)
    return walk.kernel("nll", params, _sums(walk, type_, accumulate, target, weight) + _finish(type_, mean))


@functools.cache
def finish_kernel(type_: str, accumulate: str, mean: bool) -> Kernel:
    """Adds the sums of `groups` groups: the loss, and the weight of all targets."""
    a = value_ctype(accumulate)
    body = f"""\
  {a} loss = 0, total = 0;
  for (long g = 0; g < groups; ++g) {{ loss += sums[2 * g]; total += sums[2 * g + 1]; }}
  {_finish(type_, mean)}"""
    params = parameters(f"{type_}* out, weight_out; const {accumulate}* sums; i64 groups")
    return Kernel("nll_finish", params, body)


@functools.cache
def backward_kernel(type_: str, target: str, weight: str | None, mean: bool, each: bool, form: str) -> Kernel:
    """Writes the gradients at the targets' classes; the others are zero before. `each`: one gradient for every
    target. Parameters besides: `out`, `grad`, `total`."""
    value = f"-w * load_{type_}(grad, {'i' if each else '0'})" + (f" / load_{type_}(total, 0)" if mean else "")
    walk = Walk(form, rank=2)
    body = walk.each(_element(type_, target, weight, f"store_{type_}(out, at, {value});"), vectorize=False)
    return walk.kernel("nll_backward", _params(f"{type_}* out; const {type_}* grad, total", target, weight), body)


@functools.cache
def cross_entropy_backward_kernel(layout: Layout, type_: str, target: str, mean: bool, each: bool) -> Kernel:
    """The gradient with respect to logits, from their log probabilities: for each target the probabilities, less the
    label, of which `smoothing` is spread over all classes, times its part of the gradient. Parameters: `out`, `x`,
    `grad`, `total`, `target`, `ignored`, `smoothing`."""
    team, acc = Team(layout), BY_NAME[type_].accumulate
    part = f"load_{type_}(grad, {team.row if each else '0'})" + (f" / load_{type_}(total, 0)" if mean else "")
    value = f"(tg_exp_{acc}(load_{type_}(x, {team.at})) - (c == t ? 1 - smoothing : 0) - spread) * part"
    return team.kernel(
        f"cross_entropy_backward_{type_}",
        parameters(
            f"{type_}* out; const {type_}* x, grad, total; const {target}* target; i64 ignored; {acc} smoothing"
        ),
        team.let("spread", acc, "smoothing / size"),
        team.let("t", "i64", f"load_{target}(target, {team.row})"),
        team.let("part", acc, f"t == ignored ? 0 : {part}"),
        team.each(f"store_{type_}(out, {team.at}, {value});"),
    )
