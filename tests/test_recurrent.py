"""nn.RNN, nn.LSTM and nn.GRU, forward and backward, beside the CPU."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

pytestmark = pytest.mark.no_fallback

INPUT, HIDDEN = 6, 5


def leaves(module: nn.Module) -> list[torch.Tensor]:
    return [p.grad for p in module.parameters() if p.grad is not None]


def compare(actual: object, expected: object, **tolerances: float) -> None:
    torch.testing.assert_close(actual, expected, check_device=False, **tolerances)


@pytest.mark.parametrize("kind", [nn.RNN, nn.LSTM, nn.GRU])
@pytest.mark.parametrize(
    "options",
    [{}, {"bias": False}, {"num_layers": 2, "bidirectional": True}, {"batch_first": True}],
    ids=lambda o: "-".join(o) or "plain",
)
def test_a_sequence(device: str, kind: type[nn.RNNBase], options: dict[str, bool]) -> None:
    ours = kind(INPUT, HIDDEN, **options)
    theirs = copy.deepcopy(ours)
    ours.to(device)
    x = torch.randn(4, 3, INPUT)
    mine = x.to(device).requires_grad_()
    expected_input = x.clone().requires_grad_()
    output, state = ours(mine)
    expected, expected_state = theirs(expected_input)
    compare(output, expected)
    compare(state, expected_state)
    output.square().sum().backward()
    expected.square().sum().backward()
    compare(mine.grad, expected_input.grad)
    compare(leaves(ours), leaves(theirs))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_a_gradient_of_the_last_state_alone(device: str, kind: type[nn.RNNBase]) -> None:
    ours = kind(INPUT, HIDDEN)
    theirs = copy.deepcopy(ours)
    ours.to(device)
    x = torch.randn(4, 3, INPUT)
    for module, argument in ((ours, x.to(device)), (theirs, x)):
        state = module(argument)[1]
        (state[1] if isinstance(state, tuple) else state).sum().backward()
    compare(leaves(ours), leaves(theirs))


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_dtypes_of_a_cell(device: str, kind: type[nn.Module], dtype: torch.dtype) -> None:
    if dtype == torch.float64 and dtype not in torch.accelerator.get_device_capability()["supported_dtypes"]:
        pytest.skip("the device has no float64")
    cell = kind(INPUT, HIDDEN).to(dtype)
    theirs = copy.deepcopy(cell).double()
    cell.to(device)
    x = torch.randn(3, INPUT).to(dtype)
    result, expected = (
        state if isinstance(state, tuple) else (state,) for state in (cell(x.to(device)), theirs(x.double()))
    )
    assert {state.dtype for state in result} == {dtype}
    # The products of the weights are rounded to the dtype before the cell adds them, as on any device.
    error = 4 * torch.finfo(dtype).eps
    for ours, exact in zip(result, expected, strict=True):
        compare(ours.double(), exact, atol=error, rtol=error)


def test_packed_sequences(device: str) -> None:
    ours = nn.LSTM(INPUT, HIDDEN)
    theirs = copy.deepcopy(ours)
    ours.to(device)
    packed = nn.utils.rnn.pack_sequence([torch.randn(n, INPUT) for n in (5, 3, 1)])
    output, (hidden, cell) = ours(packed.to(device))
    expected, (expected_hidden, expected_cell) = theirs(packed)
    assert output.data.device.type == torch.device(device).type
    compare(output.data, expected.data)
    compare(hidden, expected_hidden)
    compare(cell, expected_cell)


def test_wrong_sizes_are_told(device: str) -> None:
    module = nn.LSTM(INPUT, HIDDEN).to(device)
    with pytest.raises(RuntimeError, match=r"input.size\(-1\) must be equal to input_size"):
        module(torch.randn(4, 3, INPUT + 1, device=device))
