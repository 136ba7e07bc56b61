"""Recurrent networks: steps x batch x units."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from harness.case import Call, Case, Make, computing, randn

Kind = type[torch.nn.LSTM] | type[torch.nn.GRU] | type[torch.nn.RNN]
GATES: dict[Kind, int] = {torch.nn.LSTM: 4, torch.nn.GRU: 3, torch.nn.RNN: 1}


def network(kind: Kind, batch: int, steps: int, inputs: int, size: int, backward: bool, **options: Any) -> Make:
    def make(device: str) -> Call:
        torch.manual_seed(0)
        model = kind(inputs, size, **options).to(device).requires_grad_(backward)
        x = randn(device, steps, batch, inputs)
        if not backward:
            return lambda: model(x)
        weights = list(model.parameters())
        return lambda: torch.autograd.grad(model(x)[0].sum(), weights)

    return make


def cases(kind: Kind, batch: int, steps: int, inputs: int, size: int, what: str = "", **options: Any) -> Iterator[Case]:
    """Forward, and with gradients."""
    layers, directions = options.get("num_layers", 1), 2 if options.get("bidirectional") else 1
    widths = [inputs] + [directions * size] * (layers - 1)
    weights = GATES[kind] * directions * sum((width + size) * size for width in widths)
    flops = 2 * steps * batch * weights
    nbytes = 4 * (steps * batch * (inputs + directions * size) + weights)
    name = f"recurrent/{kind.__name__} {steps}x{batch}x{size}{what}"
    yield computing(name, network(kind, batch, steps, inputs, size, False, **options), flops, nbytes)
    gradients = network(kind, batch, steps, inputs, size, True, **options)
    yield computing(f"{name} with gradients", gradients, 3 * flops, 2 * nbytes)


def tuned() -> Iterator[Case]:
    for kind in (torch.nn.LSTM, torch.nn.GRU):
        for batch, steps, size in ((16, 100, 64), (32, 50, 128), (32, 64, 256), (1, 50, 128)):
            yield from cases(kind, batch, steps, size, size)


def others() -> Iterator[Case]:
    yield from cases(torch.nn.LSTM, 20, 35, 200, 200)
    yield from cases(torch.nn.LSTM, 64, 28, 28, 100, " of 28")
    yield from cases(torch.nn.LSTM, 8, 40, 96, 96, " twice, both ways", num_layers=2, bidirectional=True)
    yield from cases(torch.nn.GRU, 20, 35, 200, 200)
    yield from cases(torch.nn.GRU, 7, 33, 50, 37, " of 50")
    yield from cases(torch.nn.RNN, 16, 50, 100, 100)
