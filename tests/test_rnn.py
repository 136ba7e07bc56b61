"""Recurrent networks against torch's CPU: outputs, states and gradients."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from torchgraft import _C
from torchgraft.plans.device import kernel_form

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


KINDS = [nn.LSTM, nn.GRU, nn.RNN, functools.partial(nn.RNN, nonlinearity="relu")]
NAMES = ["lstm", "gru", "rnn_tanh", "rnn_relu"]


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell, *KINDS], ids=["lstm_cell", "gru_cell", *NAMES])
def test_second_derivatives(device: str, kind: Callable[..., nn.Module]) -> None:
    model = kind(2, 3).double()
    shape = (2, 2) if isinstance(model, nn.RNNCellBase) else (3, 2, 2)
    results: list[list[torch.Tensor]] = []
    for where in (device, "cpu"):
        own = copy.deepcopy(model).to(where)
        x = torch.linspace(-1, 1, math.prod(shape), dtype=torch.float64).view(shape).to(where).requires_grad_()
        leaves = tree_leaves(own(x))
        first = torch.autograd.grad(sum(y.square().sum() for y in leaves), [x, *own.parameters()], create_graph=True)
        second = torch.autograd.grad(sum(g.square().sum() for g in first), [x, *own.parameters()])
        results.append([g.cpu() for g in second])
    for mine, expected in zip(*results, strict=True):
        torch.testing.assert_close(mine, expected)


def calls_of(op: str) -> int:
    """How often an op has been run by a plan."""
    return sum(hits + misses for name, _, hits, misses in _C.plan_counts() if name == op)


class TestLayers:
    """What takes one launch for all steps."""

    # Steps, batch, inputs, units: tiles of 1, 2 and 4 rows, several of them, panels that are full and that are not.
    SHAPES: ClassVar = [(1, 1, 3, 5), (4, 2, 5, 32), (3, 5, 4, 33), (6, 9, 16, 64), (2, 19, 8, 20), (40, 4, 6, 16)]

    @pytest.mark.quick(shape=[(1, 1, 3, 5), (3, 5, 4, 33)], dtype=[torch.float32])
    @pytest.mark.parametrize("shape", SHAPES, ids=str)
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
    @pytest.mark.parametrize("kind", KINDS, ids=NAMES)
    def test_shapes(
        self, device: str, kind: Callable[..., nn.Module], dtype: torch.dtype, shape: tuple[int, int, int, int]
    ) -> None:
        steps, batch, inputs, units = shape
        states = [torch.randn(2, batch, units) for _ in range(2 if kind is nn.LSTM else 1)]
        model = kind(inputs, units, bidirectional=True)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(2)  # away from what is nearly linear
        before = calls_of("torchgraft::recurrent"), calls_of("torchgraft::recurrent_backward")
        compare(device, model, torch.randn(steps, batch, inputs), *states, dtype=dtype)
        if kernel_form(0) == "cpu":
            assert calls_of("torchgraft::recurrent") == before[0] + 2
            assert calls_of("torchgraft::recurrent_backward") == before[1] + 2

    @pytest.mark.parametrize("kind", KINDS, ids=NAMES)
    def test_without_gradients(self, device: str, kind: Callable[..., nn.Module]) -> None:
        model, x = kind(5, 24, num_layers=2, dropout=0.5, batch_first=True).eval(), torch.randn(7, 6, 5)
        with torch.no_grad():
            expected = tree_leaves(model(x))
            found = tree_leaves(copy.deepcopy(model).to(device)(x.to(device)))
        for mine, theirs in zip(found, expected, strict=True):
            assert mine.grad_fn is None
            torch.testing.assert_close(mine.cpu(), theirs, rtol=2e-5, atol=2e-5)

    @pytest.mark.parametrize("frozen", ["weight_hh_l0", "bias_hh_l0", "weight_ih_l0", "input"])
    def test_some_need_no_gradient(self, device: str, frozen: str) -> None:
        model, x = nn.GRU(4, 9), torch.randn(3, 2, 4)
        gradients = []
        for where in ("cpu", device):
            own, given = copy.deepcopy(model).to(where), x.clone().to(where).requires_grad_(frozen != "input")
            for name, parameter in own.named_parameters():
                parameter.requires_grad_(name != frozen)
            own(given)[0].square().sum().backward()
            gradients.append([t.grad for t in (given, *own.parameters())])
        for theirs, mine in zip(*gradients, strict=True):
            assert (mine is None) == (theirs is None)
            if mine is not None:
                torch.testing.assert_close(mine.cpu(), theirs, rtol=2e-5, atol=2e-5)

    @pytest.mark.parametrize("kind", KINDS[1:], ids=NAMES[1:])
    def test_results_may_be_written(self, device: str, kind: Callable[..., nn.Module]) -> None:
        model, x = kind(3, 4), torch.randn(5, 2, 3)
        gradients = []
        for where in (device, "cpu"):
            own = copy.deepcopy(model).to(where)
            y, h = own(x.to(where))
            (y.mul_(2).sum() + h.add_(1).sum()).backward()
            gradients.append([parameter.grad.cpu() for parameter in own.parameters()])
        for mine, expected in zip(*gradients, strict=True):
            torch.testing.assert_close(mine, expected, rtol=2e-5, atol=2e-5)

    @pytest.mark.parametrize("kind", KINDS, ids=NAMES)
    def test_what_is_not_a_number_stays_so(self, device: str, kind: Callable[..., nn.Module]) -> None:
        model, x = kind(3, 20), torch.randn(4, 3, 3)
        x[1, 2] = float("nan")
        with torch.no_grad():
            expected, found = model(x)[0], copy.deepcopy(model).to(device)(x.to(device))[0].cpu()
        assert torch.equal(found.isnan(), expected.isnan())
        assert found[:, :2].isfinite().all()

    def test_dropout_between_layers(self, device: str) -> None:
        model, x = nn.LSTM(4, 8, num_layers=2, dropout=1.0).to(device), torch.randn(3, 2, 4, device=device)
        first, second = model(x)[0], model(torch.zeros_like(x))[0]
        torch.testing.assert_close(first, second)  # nothing of the first layer passes
        assert model.eval()(x)[0].ne(first).any()

    def test_what_is_composed(self, device: str) -> None:
        """Calls that the op does not know are torch's composition, with torch's results and refusals."""
        model, x = nn.LSTM(4, 8).to(device), torch.randn(3, 2, 4, device=device)
        expected = model(x)[0]
        before = calls_of("torchgraft::recurrent")
        with torch.autocast(device, dtype=torch.bfloat16):
            torch.testing.assert_close(model(x)[0].float(), expected, rtol=2e-2, atol=2e-2)
        gradient = torch.func.grad(lambda x: model(x)[0].sum())(x)
        copy.deepcopy(model).half()(x.half())
        with pytest.raises(RuntimeError):
            torch.lstm(
                x, [torch.zeros(1, 2, 7, device=device)] * 2, model._flat_weights, True, 1, 0.0, False, False, False
            )
        assert calls_of("torchgraft::recurrent") == before
        x.requires_grad_()
        torch.testing.assert_close(gradient, *torch.autograd.grad(model(x)[0].sum(), x), rtol=2e-5, atol=2e-5)


def test_a_wrong_width_is_refused(device: str) -> None:
    model = nn.LSTM(3, 4).to(device)
    with pytest.raises(RuntimeError, match="Expected 3, got 5"):
        model(torch.randn(2, 1, 5, device=device))
