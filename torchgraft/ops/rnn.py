"""The cells of recurrent networks: all gates of a step in one kernel.

`nn.LSTM` and `nn.GRU` reach a device of ours by these four ops only, which torch's CPU does not have. The products of
inputs and weights come as `input_gates` and `hidden_gates`, gates side by side in [batch, gates * hidden].

LSTM: Hochreiter and Schmidhuber, "Long Short-Term Memory", 1997, with the forget gate of Gers et al., 2000; GRU: Cho
    et al., 2014, in the variant of torch.nn.GRU, whose reset gate is applied after the product.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torchgraft.codegen import element_type
from torchgraft.codegen.pointwise import Input, Loop, Result, expression
from torchgraft.ops.operators import cells
from torchgraft.plans import PlanBuilder, planner, pointwise

aten = torch.ops.aten

Optional = torch.Tensor | None


def _plan(
    p: PlanBuilder,
    name: str,
    results: Sequence[tuple[torch.Tensor, str]],
    operands: dict[str, Optional],
    statements: str,
) -> None:
    """One kernel over [batch, hidden]; operands that are None are zero in the texts."""
    compute = element_type(results[0][0].dtype).compute
    given = {name: spec for name, spec in operands.items() if spec is not None}
    absent = "".join(f"T {name} = 0;\n" for name, spec in operands.items() if spec is None)
    loop = Loop(
        f"{name}_{compute}_{''.join('01'[spec is not None] for spec in operands.values())}",
        tuple(Input(each, element_type(spec.dtype).name, compute) for each, spec in given.items()),
        (),
        tuple(
            Result(f"out{i}", element_type(spec.dtype).name, compute, expression(text, compute))
            for i, (spec, text) in enumerate(results)
        ),
        expression(absent + statements, compute),
        cost=16,
    )
    pointwise.plan_loop(p, loop, [spec for spec, _ in results], list(given.values()), [])


def _gates(names: str, gates: Optional) -> dict[str, Optional]:
    """The gates that lie side by side in the last dimension, by name."""
    parts = names.split()
    chunks = [None] * len(parts) if gates is None else gates.chunk(len(parts), -1)
    return dict(zip(parts, chunks, strict=True))


def _sum(p: PlanBuilder, out: torch.Tensor, grad: torch.Tensor) -> None:
    """The gradient of a bias: summed over the batch."""
    p.call_out(aten.sum.dim_IntList, out, grad, [0])


# ---- LSTM ----


def _lstm_meta(
    input_gates: torch.Tensor, hidden_gates: torch.Tensor, cx: torch.Tensor, **_: object
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return cx.new_empty(cx.shape), cx.new_empty(cx.shape), cx.new_empty((cx.size(0), 4 * cx.size(1)))


@planner("_thnn_fused_lstm_cell", meta=_lstm_meta)  # torch's own wants biases
def _lstm_cell(
    p: PlanBuilder,
    out: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    input_gates: torch.Tensor,
    hidden_gates: torch.Tensor,
    cx: torch.Tensor,
    input_bias: Optional = None,
    hidden_bias: Optional = None,
) -> None:
    if not p.device.has_compiler:
        cells.plan_lstm(p, out, input_gates, hidden_gates, cx, input_bias, hidden_bias)
        return
    hy, cy, workspace = out
    operands = _gates("xi xf xg xo", input_gates) | _gates("hi hf hg ho", hidden_gates)
    operands |= _gates("ai af ag ao", input_bias) | _gates("bi bf bg bo", hidden_bias) | {"cx": cx}
    statements = """\
T i = @sigmoid(xi + hi + ai + bi), f = @sigmoid(xf + hf + af + bf);
T g = @tanh(xg + hg + ag + bg), o = @sigmoid(xo + ho + ao + bo);
T c = f * cx + i * g;"""
    kept = _gates("i f g o", workspace)
    results = [(hy, "o * @tanh(c)"), (cy, "c"), *((spec, name) for name, spec in kept.items() if spec is not None)]
    _plan(p, "lstm_cell", results, operands, statements)


@planner("_thnn_fused_lstm_cell_backward_impl")
def _lstm_cell_backward(
    p: PlanBuilder,
    out: tuple[torch.Tensor, torch.Tensor, Optional],
    grad_hy: Optional,
    grad_cy: Optional,
    cx: torch.Tensor,
    cy: torch.Tensor,
    workspace: torch.Tensor,
    has_bias: bool,
) -> None:
    grad_gates, grad_cx, grad_bias = out
    if grad_hy is None and grad_cy is None:  # no gradient comes in, none goes out
        return
    if not p.device.has_compiler:
        cells.plan_lstm_gradient(p, out, grad_hy, grad_cy, cx, cy, workspace)
        return
    operands: dict[str, Optional] = {"dh": grad_hy, "dc": grad_cy, "cx": cx, "cy": cy} | _gates("i f g o", workspace)
    statements = """\
T t = @tanh(cy);
T c = dh * o * (1 - t * t) + dc;"""
    texts = ("c * g * (1 - i) * i", "c * cx * (1 - f) * f", "c * i * (1 - g * g)", "dh * t * (1 - o) * o")
    results = [(grad_cx, "c * f"), *zip(grad_gates.chunk(4, -1), texts, strict=True)]
    _plan(p, "lstm_cell_backward", results, operands, statements)
    if grad_bias is not None:
        _sum(p, grad_bias, grad_gates)


# ---- GRU ----


# torch has no meta kernels for these.


def _gru_meta(
    input_gates: torch.Tensor, hidden_gates: torch.Tensor, hx: torch.Tensor, **_: object
) -> tuple[torch.Tensor, torch.Tensor]:
    return hx.new_empty(hx.shape), hx.new_empty((hx.size(0), 5 * hx.size(1)))


@planner("_thnn_fused_gru_cell", meta=_gru_meta)
def _gru_cell(
    p: PlanBuilder,
    out: tuple[torch.Tensor, torch.Tensor],
    input_gates: torch.Tensor,
    hidden_gates: torch.Tensor,
    hx: torch.Tensor,
    input_bias: Optional = None,
    hidden_bias: Optional = None,
) -> None:
    if not p.device.has_compiler:
        cells.plan_gru(p, out, input_gates, hidden_gates, hx, input_bias, hidden_bias)
        return
    hy, workspace = out
    operands = _gates("xr xz xn", input_gates) | _gates("hr hz hn", hidden_gates)
    operands |= _gates("ar az an", input_bias) | _gates("br bz bn", hidden_bias) | {"hx": hx}
    statements = """\
T r = @sigmoid(xr + hr + ar + br), z = @sigmoid(xz + hz + az + bz);
T h = hn + bn;
T n = @tanh(xn + an + r * h);"""
    kept = zip(workspace.chunk(5, -1), ("r", "z", "n", "hx", "h"), strict=True)
    _plan(p, "gru_cell", [(hy, "n + z * (hx - n)"), *kept], operands, statements)


def _gru_backward_meta(
    grad_hy: torch.Tensor, workspace: torch.Tensor, has_bias: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, Optional, Optional]:
    batch, hidden = grad_hy.shape
    gates, bias = (batch, 3 * hidden), (3 * hidden,)
    new = grad_hy.new_empty
    return new(gates), new(gates), new((batch, hidden)), *((new(bias), new(bias)) if has_bias else (None, None))


@planner("_thnn_fused_gru_cell_backward", meta=_gru_backward_meta)
def _gru_cell_backward(
    p: PlanBuilder,
    out: tuple[torch.Tensor, torch.Tensor, torch.Tensor, Optional, Optional],
    grad_hy: torch.Tensor,
    workspace: torch.Tensor,
    has_bias: bool,
) -> None:
    if not p.device.has_compiler:
        cells.plan_gru_gradient(p, out, grad_hy, workspace)
        return
    grad_input, grad_hidden, grad_hx, *grad_biases = out
    operands = {"dh": grad_hy} | _gates("r z n hx h", workspace)
    statements = """\
T dn = dh * (1 - z) * (1 - n * n);
T dz = dh * (hx - n) * (1 - z) * z;
T dr = dn * h * (1 - r) * r;"""
    results = [(grad_hx, "dh * z")]
    results += zip(grad_input.chunk(3, -1), ("dr", "dz", "dn"), strict=True)
    results += zip(grad_hidden.chunk(3, -1), ("dr", "dz", "dn * r"), strict=True)
    _plan(p, "gru_cell_backward", results, operands, statements)
    for grad_bias, grad_gates in zip(grad_biases, (grad_input, grad_hidden), strict=True):
        if grad_bias is not None:
            _sum(p, grad_bias, grad_gates)
