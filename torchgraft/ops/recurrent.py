"""The cells of `nn.LSTM` and `nn.GRU`.

PyTorch sends every device of its dispatch key to the fused cells, which it implements for CUDA alone: neither a
decomposition nor a CPU kernel stands behind them. The products of the weights come before, so the rest is pointwise.
"""

from __future__ import annotations

import torch

from torchgraft.plans import decomposition

Tensor = torch.Tensor


def _computed(*tensors: Tensor | None) -> list[Tensor]:
    """Sixteen-bit values as float32: a cell has some ten roundings, and its errors add up over a sequence."""
    given = [t for t in tensors if t is not None]
    return [t.float() if t.dtype in (torch.float16, torch.bfloat16) else t for t in given]


def _gates(input_gates: Tensor, hidden_gates: Tensor, input_bias: Tensor | None, hidden_bias: Tensor | None) -> Tensor:
    first, *others = _computed(input_gates, hidden_gates, input_bias, hidden_bias)
    return sum(others, start=first)


def _lstm_cell(
    input_gates: Tensor,
    hidden_gates: Tensor,
    cx: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """`nn.LSTMCell`'s equations; the workspace is the four gates (batch, 4 hidden) after their activations."""
    i, f, g, o = _gates(input_gates, hidden_gates, input_bias, hidden_bias).chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    cy = f * _computed(cx)[0] + i * g
    hy = o * cy.tanh()
    workspace = torch.cat([i, f, g, o], 1)
    return hy.to(cx.dtype), cy.to(cx.dtype), workspace.to(cx.dtype)


def _lstm_cell_meta(
    input_gates: Tensor,
    hidden_gates: Tensor,
    cx: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    # torch's own fails where there is no bias.
    return cx.new_empty(cx.shape), cx.new_empty(cx.shape), cx.new_empty(input_gates.shape)


def _lstm_cell_backward(
    grad_hy: Tensor | None, grad_cy: Tensor | None, cx: Tensor, cy: Tensor, workspace: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Gradients of the gates before their activations, of cx, and of either bias."""
    before, after, gates = _computed(cx, cy, workspace)
    i, f, g, o = gates.chunk(4, 1)
    tanh = after.tanh()
    grad_h = torch.zeros_like(after) if grad_hy is None else _computed(grad_hy)[0]
    grad_c = grad_h * o * (1 - tanh * tanh)
    if grad_cy is not None:
        grad_c = grad_c + _computed(grad_cy)[0]
    grads = torch.cat(
        [
            grad_c * g * i * (1 - i),
            grad_c * before * f * (1 - f),
            grad_c * i * (1 - g * g),
            grad_h * tanh * o * (1 - o),
        ],
        1,
    )
    bias = grads.sum(0).to(cx.dtype) if has_bias else None
    return grads.to(cx.dtype), (grad_c * f).to(cx.dtype), bias


def _lstm_cell_backward_meta(
    grad_hy: Tensor | None, grad_cy: Tensor | None, cx: Tensor, cy: Tensor, workspace: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    bias = workspace.new_empty(workspace.size(1)) if has_bias else None
    return workspace.new_empty(workspace.shape), cx.new_empty(cx.shape), bias


def _gru_cell(
    input_gates: Tensor,
    hidden_gates: Tensor,
    hx: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """`nn.GRUCell`'s equations; the workspace (batch, 5 hidden) is r, z, n, hx and the hidden part of n."""
    of_input, of_hidden, hidden, *biases = _computed(input_gates, hidden_gates, hx, input_bias, hidden_bias)
    if biases:
        of_input, of_hidden = of_input + biases[0], of_hidden + biases[1]
    input_r, input_z, input_n = of_input.chunk(3, 1)
    hidden_r, hidden_z, hidden_n = of_hidden.chunk(3, 1)
    r, z = (input_r + hidden_r).sigmoid(), (input_z + hidden_z).sigmoid()
    n = (input_n + r * hidden_n).tanh()
    hy = n + z * (hidden - n)
    return hy.to(hx.dtype), torch.cat([r, z, n, hidden, hidden_n], 1).to(hx.dtype)


def _gru_cell_meta(
    input_gates: Tensor,
    hidden_gates: Tensor,
    hx: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    return hx.new_empty(hx.shape), hx.new_empty(hx.size(0), 5 * hx.size(1))


def _gru_cell_backward(
    grad_hy: Tensor, workspace: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """Gradients of the input's and the hidden gates before their activations, of hx, and of the biases."""
    grad, gates = _computed(grad_hy, workspace)
    r, z, n, hidden, hidden_n = gates.chunk(5, 1)
    grad_n = grad * (1 - z) * (1 - n * n)
    grad_z = grad * (hidden - n) * z * (1 - z)
    grad_r = grad_n * hidden_n * r * (1 - r)
    of_input = torch.cat([grad_r, grad_z, grad_n], 1)
    of_hidden = torch.cat([grad_r, grad_z, grad_n * r], 1)
    dtype = workspace.dtype
    biases = [gates.sum(0).to(dtype) if has_bias else None for gates in (of_input, of_hidden)]
    return of_input.to(dtype), of_hidden.to(dtype), (grad * z).to(dtype), biases[0], biases[1]


def _gru_cell_backward_meta(
    grad_hy: Tensor, workspace: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    batch, hidden = grad_hy.shape
    gates = [workspace.new_empty(batch, 3 * hidden) for _ in range(2)]
    biases = [workspace.new_empty(3 * hidden) if has_bias else None for _ in range(2)]
    return gates[0], gates[1], workspace.new_empty(batch, hidden), biases[0], biases[1]


decomposition("_thnn_fused_lstm_cell", function=_lstm_cell, meta=_lstm_cell_meta)
decomposition("_thnn_fused_lstm_cell_backward_impl", function=_lstm_cell_backward, meta=_lstm_cell_backward_meta)
decomposition("_thnn_fused_gru_cell", function=_gru_cell, meta=_gru_cell_meta)
decomposition("_thnn_fused_gru_cell_backward", function=_gru_cell_backward, meta=_gru_cell_backward_meta)
