"""What the tests of models share: a model computes and learns on the device what it does on torch's CPU."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import nn

Optimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


def momentum(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.02, momentum=0.9)


def adamw(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    # A large eps keeps elements with next to no gradient, whose sign is chance, from moving by the whole rate.
    return torch.optim.AdamW(parameters, lr=1e-3, eps=1e-3)


def assert_near(got: torch.Tensor, expected: torch.Tensor, error: float, what: str = "result") -> None:
    """Compares by the size of all elements together: single ones may be sums that cancel."""
    assert got.device.type != "cpu", f"{what} is on the CPU"
    assert got.shape == expected.shape, what
    assert got.dtype == expected.dtype, what
    wide = torch.complex128 if expected.is_complex() else torch.float64
    exact = expected.detach().to(wide)
    difference, size = (got.detach().cpu().to(wide) - exact).norm().item(), exact.norm().item()
    assert difference <= error * size + 1e-6, f"{what}: off by {difference:.3g} of {size:.3g}"


def assert_same_output(device: str, model: nn.Module, *inputs: torch.Tensor, error: float = 1e-5) -> None:
    """A model in evaluation."""
    model = copy.deepcopy(model).eval()
    with torch.no_grad():
        expected = model(*inputs)
        got = copy.deepcopy(model).to(device)(*(x.to(device) for x in inputs))
    assert_near(got, expected, error)


def assert_learns_alike(
    device: str,
    model: nn.Module,
    loss: Callable[..., torch.Tensor],
    *inputs: torch.Tensor,
    optimizer: Optimizer = adamw,
    steps: int = 3,
    error: float = 1e-4,
) -> None:
    """Trains on one batch; compares losses, the gradients of the first step, and all parameters and buffers at the end,
    with the CPU's or with exact ones.

    Args:
        loss: of the model and the inputs.
        error: of each tensor, relative to its size.
    """

    def train(where: str, dtype: torch.dtype | None = None) -> Run:
        own = copy.deepcopy(model).to(where).to(dtype).train()
        batch = [x.to(where).to(dtype if x.is_floating_point() else None) for x in inputs]
        return _train(own, loss, batch, optimizer(own.parameters()), steps)

    expected, got = train("cpu"), train(device)
    try:
        _compare(got, expected, error)
    except AssertionError:
        # A number that is zero but for rounding may be on either side of a threshold, and then the CPU's can be the one
        # that is wrong.
        _compare(got, train("cpu", torch.float64).like(expected), error)


@dataclass
class Run:
    """What became of a model: losses, the gradients of the first step, and parameters and buffers at the end."""

    losses: list[float]
    gradients: dict[str, torch.Tensor]
    state: dict[str, torch.Tensor]

    def like(self, other: Run) -> Run:
        """With the dtypes of another run."""
        gradients = {name: gradient.to(other.gradients[name].dtype) for name, gradient in self.gradients.items()}
        return Run(
            self.losses, gradients, {name: tensor.to(other.state[name].dtype) for name, tensor in self.state.items()}
        )


def _train(
    model: nn.Module,
    loss: Callable[..., torch.Tensor],
    batch: list[torch.Tensor],
    optimizer: torch.optim.Optimizer,
    steps: int,
) -> Run:
    losses: list[float] = []
    gradients: dict[str, torch.Tensor] = {}
    for step in range(steps):
        optimizer.zero_grad()
        value = loss(model, *batch)
        value.backward()
        if step == 0:
            gradients = {name: p.grad.detach().clone() for name, p in model.named_parameters() if p.grad is not None}
        optimizer.step()
        losses.append(value.item())
    return Run(losses, gradients, model.state_dict())


def _compare(got: Run, expected: Run, error: float) -> None:
    torch.testing.assert_close(got.losses, expected.losses, rtol=error, atol=1e-5)
    assert expected.losses[-1] < expected.losses[0], "it learns nothing"
    assert got.gradients.keys() == expected.gradients.keys()
    assert got.gradients, "nothing has a gradient"
    largest = max(g.norm().item() for g in expected.gradients.values())
    for name, gradient in expected.gradients.items():
        # A bias before a normalisation has a gradient of nothing but rounding.
        if gradient.norm().item() > 1e-5 * largest:
            assert_near(got.gradients[name], gradient, 10 * error, f"the gradient of {name}")
    for name, tensor in expected.state.items():
        assert_near(got.state[name], tensor, 10 * error, name)
