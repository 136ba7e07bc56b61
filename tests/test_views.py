"""Views share memory with their base, and autograd knows it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

pytestmark = pytest.mark.filterwarnings("ignore:.* runs on the CPU")

VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "view": lambda x: x.view(-1),
    "reshape": lambda x: x.reshape(2, 12),
    "transpose": lambda x: x.transpose(0, 2),
    "permute": lambda x: x.permute(2, 0, 1),
    "slice": lambda x: x[1:, ::2],
    "select": lambda x: x[0],
    "narrow": lambda x: x.narrow(2, 1, 2),
    "unsqueeze": lambda x: x.unsqueeze(1),
    "squeeze": lambda x: x[:1].squeeze(0),
    "flatten": lambda x: x.flatten(1),
    "unflatten": lambda x: x.unflatten(2, (2, 2)),
    "diagonal": lambda x: x.diagonal(dim1=0, dim2=1),
    "unfold": lambda x: x.unfold(2, 2, 2),
    "as_strided": lambda x: x.as_strided((2, 3), (1, 4), 3),
    "split": lambda x: x.split(2, dim=1)[1],
    "chunk": lambda x: x.chunk(2, dim=2)[1],
    "unbind": lambda x: x.unbind(1)[2],
    "movedim": lambda x: x.movedim(0, 2),
    "alias": lambda x: torch.ops.aten.alias(x),
    "detach": lambda x: x.detach(),
    "view_as_complex": lambda x: torch.view_as_complex(x.view(2, 3, 2, 2)),
    "dtype": lambda x: x.view(torch.int32),
    "real": lambda x: torch.view_as_complex(x.view(2, 3, 2, 2)).real,
    "imag of conj": lambda x: torch.view_as_complex(x.view(2, 3, 2, 2)).conj().imag,
}


def base(device: str) -> torch.Tensor:
    return torch.arange(24, dtype=torch.float32).view(2, 3, 4).to(device)


def same(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual.cpu(), expected, rtol=0, atol=0)


@pytest.mark.parametrize("name", VIEWS)
def test_values_and_strides(device: str, name: str) -> None:
    actual, expected = VIEWS[name](base(device)), VIEWS[name](base("cpu"))
    assert (actual.shape, actual.stride(), actual.storage_offset()) == (
        expected.shape,
        expected.stride(),
        expected.storage_offset(),
    )
    same(actual, expected)


@pytest.mark.parametrize("name", VIEWS)
def test_writing_to_the_view_writes_to_the_base(device: str, name: str) -> None:
    results = []
    for place in (device, "cpu"):
        x = base(place)
        view = VIEWS[name](x)
        view.fill_(7)
        results.append(x)
    same(results[0], results[1])


@pytest.mark.parametrize("name", [name for name in VIEWS if name not in ("detach", "dtype")])
def test_gradients_pass_through(device: str, name: str) -> None:
    gradients = []
    for place in (device, "cpu"):
        x = base(place).requires_grad_()
        y = VIEWS[name](x * 2)
        assert y._is_view()
        y = torch.view_as_real(y) if y.is_complex() else y
        (y * y).sum().backward()
        gradients.append(x.grad)
    torch.testing.assert_close(gradients[0].cpu(), gradients[1])


def test_writing_in_place_is_noticed_by_autograd(device: str) -> None:
    x = torch.ones(4, device=device, requires_grad=True)
    y = x * 1
    z = y * y
    y[:2].mul_(3)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()


def test_complex_and_real_views_share_memory(device: str) -> None:
    pairs = torch.zeros(3, 2, device=device)
    torch.view_as_complex(pairs).real.add_(1)
    same(pairs, torch.tensor([[1.0, 0.0]] * 3))
    numbers = torch.zeros(3, dtype=torch.complex64, device=device)
    torch.view_as_real(numbers)[:, 1] = 2
    same(numbers, torch.full((3,), 2j, dtype=torch.complex64))


def test_is_set_to(device: str) -> None:
    x = base(device)
    assert x.is_set_to(x.view(2, 3, 4))
    assert not x.is_set_to(x[1:])


def test_modules_keep_their_parameters_when_they_move(device: str) -> None:
    layer = torch.nn.Linear(3, 2)
    weight = layer.weight
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
    layer.to(device)
    assert layer.weight is weight
    assert weight.device.type == torch.device(device).type
    before = weight.detach().cpu().clone()
    layer(torch.ones(1, 3, device=device)).sum().backward()
    optimizer.step()
    same(weight.detach(), before - 1)
    layer.to("cpu")
    assert layer.weight is weight
    assert weight.device.type == "cpu"


def test_errors_are_those_of_the_cpu(device: str) -> None:
    for attempt in (lambda x: x.view(5, 5), lambda x: x.as_strided((2,), (-1,)), lambda x: x.transpose(0, 1).view(-1)):
        with pytest.raises(RuntimeError) as expected:
            attempt(base("cpu"))
        with pytest.raises(RuntimeError) as actual:
            attempt(base(device))
        assert str(actual.value) == str(expected.value)
