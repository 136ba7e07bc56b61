"""The cells of recurrent networks by elementwise operators, for a library without a compiler beside it and without
layers: what torchgraft.ops.rnn makes kernels of."""

from __future__ import annotations

from typing import Any

import torch

from torchgraft.plans import PlanBuilder

aten = torch.ops.aten

Optional = torch.Tensor | None


def _sum(p: PlanBuilder, first: torch.Tensor, *others: Optional) -> torch.Tensor:
    for other in others:
        if other is not None:
            first = p.call(aten.add.Tensor, first, other)
    return first


def _product(p: PlanBuilder, a: torch.Tensor, b: torch.Tensor) -> Any:
    return p.call(aten.mul.Tensor, a, b)


def _sum_of_rows(p: PlanBuilder, out: Optional, x: torch.Tensor) -> None:
    """The gradient of a bias."""
    if out is not None:
        p.call_out(aten.sum.dim_IntList, out, x, [0])


def plan_lstm(
    p: PlanBuilder,
    out: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    input_gates: torch.Tensor,
    hidden_gates: torch.Tensor,
    cx: torch.Tensor,
    input_bias: Optional,
    hidden_bias: Optional,
) -> None:
    hy, cy, workspace = out
    (i, f, g, o), size = workspace.chunk(4, -1), cx.size(1)
    sums = _sum(p, input_gates, hidden_gates, input_bias, hidden_bias)
    p.call_out(aten.sigmoid.default, workspace[:, : 2 * size], sums[:, : 2 * size])
    p.call_out(aten.tanh.default, g, sums[:, 2 * size : 3 * size])
    p.call_out(aten.sigmoid.default, o, sums[:, 3 * size :])
    p.call_out(aten.addcmul.default, cy, _product(p, i, g), f, cx)
    p.call_out(aten.mul.Tensor, hy, o, p.call(aten.tanh.default, cy))


def plan_lstm_gradient(
    p: PlanBuilder,
    out: tuple[torch.Tensor, torch.Tensor, Optional],
    grad_hy: Optional,
    grad_cy: Optional,
    cx: torch.Tensor,
    cy: torch.Tensor,
    workspace: torch.Tensor,
) -> None:
    """At least one of the gradients is given."""
    grad_gates, grad_cx, grad_bias = out
    i, f, g, o = workspace.chunk(4, -1)
    of_i, of_f, of_g, of_o = grad_gates.chunk(4, -1)
    parts = [] if grad_cy is None else [grad_cy]
    if grad_hy is None:
        p.zero(of_o)
    else:
        t = p.call(aten.tanh.default, cy)
        p.call_out(aten.sigmoid_backward.default, of_o, _product(p, grad_hy, t), o)
        parts.append(p.call(aten.tanh_backward.default, _product(p, grad_hy, o), t))
    of_c = _sum(p, *parts)
    p.call_out(aten.sigmoid_backward.default, of_i, _product(p, of_c, g), i)
    p.call_out(aten.sigmoid_backward.default, of_f, _product(p, of_c, cx), f)
    p.call_out(aten.tanh_backward.default, of_g, _product(p, of_c, i), g)
    p.call_out(aten.mul.Tensor, grad_cx, of_c, f)
    _sum_of_rows(p, grad_bias, grad_gates)


def plan_gru(
    p: PlanBuilder,
    out: tuple[torch.Tensor, torch.Tensor],
    input_gates: torch.Tensor,
    hidden_gates: torch.Tensor,
    hx: torch.Tensor,
    input_bias: Optional,
    hidden_bias: Optional,
) -> None:
    hy, workspace = out
    (r, z, n, before, h), size = workspace.chunk(5, -1), hx.size(1)
    of_input, of_hidden = _sum(p, input_gates, input_bias), _sum(p, hidden_gates, hidden_bias)
    both = _sum(p, of_input[:, : 2 * size], of_hidden[:, : 2 * size])
    p.call_out(aten.sigmoid.default, workspace[:, : 2 * size], both)
    p.copy(before, hx)
    p.copy(h, of_hidden[:, 2 * size :])
    p.call_out(aten.tanh.default, n, p.call(aten.addcmul.default, of_input[:, 2 * size :], r, h))
    p.call_out(aten.addcmul.default, hy, n, z, p.call(aten.sub.Tensor, hx, n))


def plan_gru_gradient(
    p: PlanBuilder,
    out: tuple[torch.Tensor, torch.Tensor, torch.Tensor, Optional, Optional],
    grad_hy: torch.Tensor,
    workspace: torch.Tensor,
) -> None:
    grad_input, grad_hidden, grad_hx, input_bias, hidden_bias = out
    (r, z, n, hx, h), size = workspace.chunk(5, -1), grad_hy.size(1)
    of_r, of_z, of_n = grad_input.chunk(3, -1)
    p.call_out(aten.tanh_backward.default, of_n, _product(p, grad_hy, p.call(aten.rsub.Scalar, z, 1)), n)
    p.call_out(aten.sigmoid_backward.default, of_z, _product(p, grad_hy, p.call(aten.sub.Tensor, hx, n)), z)
    p.call_out(aten.sigmoid_backward.default, of_r, _product(p, of_n, h), r)
    p.copy(grad_hidden[:, : 2 * size], grad_input[:, : 2 * size])
    p.call_out(aten.mul.Tensor, grad_hidden[:, 2 * size :], of_n, r)
    p.call_out(aten.mul.Tensor, grad_hx, grad_hy, z)
    _sum_of_rows(p, input_bias, grad_input)
    _sum_of_rows(p, hidden_bias, grad_hidden)
