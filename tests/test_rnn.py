"""Recurrent networks against torch's CPU: outputs, states and gradients."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

pytestmark = pytest.mark.no_fallback

TOLERANCES = {
    torch.float32: {"rtol": 2e-5, "atol": 2e-5},
    torch.float64: {"rtol": 1e-10, "atol": 1e-10},
    torch.float16: {"rtol": 2e-2, "atol": 2e-2},
    torch.bfloat16: {"rtol": 1e-1, "atol": 1e-1},
}


def compare(device: str, module: nn.Module, *inputs: torch.Tensor, dtype: torch.dtype = torch.float32) -> None:
    """Runs forward and backward on both, in `dtype` on the device and in float64 on the CPU."""
    sides: list[list[torch.Tensor]] = []
    for where, width in ((device, dtype), ("cpu", torch.float64)):
        own = copy.deepcopy(module).to(where, width)
        given = [x.to(dtype).to(where, width).requires_grad_() for x in inputs]
        with torch.no_grad():
            for parameter, original in zip(own.parameters(), module.parameters(), strict=True):
                parameter.copy_(original.to(dtype))
        results: Any = own(given[0], *([tuple(given[1:])] if len(given) == 3 else given[1:]))
        leaves = tree_leaves(results)
        sum((x.double() * torch.linspace(1, 2, x.numel()).view(x.shape).to(where)).sum() for x in leaves).backward()
        gradients = [x.grad for x in (*given, *own.parameters())]
        assert all(g is not None for g in gradients)
        sides.append([x.detach().cpu().double() for x in (*leaves, *gradients)])
    for mine, expected in zip(*sides, strict=True):
        scale = max(1.0, expected.abs().max().item())
        torch.testing.assert_close(mine / scale, expected / scale, **TOLERANCES[dtype])


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_networks(device: str, kind: type[nn.RNNBase], dtype: torch.dtype) -> None:
    compare(device, kind(5, 7, num_layers=2, bidirectional=True, batch_first=True), torch.randn(3, 4, 5), dtype=dtype)


@pytest.mark.parametrize("bias", [True, False])
def test_options_and_given_states(device: str, bias: bool) -> None:
    x, h, c = torch.randn(4, 2, 5), torch.randn(1, 2, 6), torch.randn(1, 2, 6)
    compare(device, nn.GRU(5, 6, bias=bias), x, h)
    compare(device, nn.LSTM(5, 6, bias=bias), x, h, c)
    compare(device, nn.LSTM(5, 6, bias=bias, proj_size=3), x, torch.randn(1, 2, 3), c)


@pytest.mark.parametrize("bias", [True, False])
def test_single_cells(device: str, bias: bool) -> None:
    x, h, c = torch.randn(3, 5), torch.randn(3, 6), torch.randn(3, 6)
    compare(device, nn.GRUCell(5, 6, bias=bias), x, h)
    compare(device, nn.LSTMCell(5, 6, bias=bias), x, h, c)
    compare(device, nn.GRUCell(5, 6, bias=bias), x.t().contiguous().t(), h)


def test_packed_sequences(device: str) -> None:
    model = nn.LSTM(3, 4)
    packed = nn.utils.rnn.pack_sequence([torch.randn(n, 3) for n in (5, 3, 1)])
    expected = nn.utils.rnn.pad_packed_sequence(model(packed)[0])[0]
    found = nn.utils.rnn.pad_packed_sequence(copy.deepcopy(model).to(device)(packed.to(device))[0])[0]
    torch.testing.assert_close(found.cpu(), expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_a_gradient_of_the_last_state_alone(device: str, kind: type[nn.RNNBase]) -> None:
    model, x = kind(3, 4), torch.randn(5, 2, 3)
    gradients = []
    for where in (device, "cpu"):
        own = copy.deepcopy(model).to(where)
        state = own(x.to(where))[1]
        gradients.append(torch.autograd.grad(tree_leaves(state)[-1].sum(), list(own.parameters())))
    for mine, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(mine.cpu(), expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("bias", [True, False])
def test_no_gradient_comes_in(device: str, bias: bool) -> None:
    model, x = nn.LSTM(3, 4, bias=bias).to(device), torch.randn(5, 2, 3).to(device).requires_grad_()
    y = torch._C._functions.UndefinedGrad()(model(x)[0])
    assert torch.autograd.grad(y.sum(), [x, *model.parameters()], allow_unused=True) == (None,) * (5 if bias else 3)


def test_second_derivatives(device: str) -> None:
    for kind in (nn.LSTMCell, nn.GRUCell):
        model = kind(2, 3).double()
        results = []
        for where in (device, "cpu"):
            own = copy.deepcopy(model).to(where)
            x = torch.linspace(-1, 1, 4, dtype=torch.float64).view(2, 2).to(where).requires_grad_()
            y = tree_leaves(own(x))[0]
            (first,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
            results.append(torch.autograd.grad(first.square().sum(), x)[0].cpu())
        torch.testing.assert_close(*results)


def test_a_wrong_width_is_refused(device: str) -> None:
    model = nn.LSTM(3, 4).to(device)
    with pytest.raises(RuntimeError, match="Expected 3, got 5"):
        model(torch.randn(2, 1, 5, device=device))
