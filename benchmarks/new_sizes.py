"""What it costs that sizes are new: microseconds of calls with sizes that the process has not seen, of the same calls
once it has, and of torch's CPU, in one run.

    python benchmarks/new_sizes.py [--device ocl] [--calls 100]

A call with new sizes is planned. Figures are medians over calls with sizes that are all different, each with a wait for
its results; kernels are compiled before.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from harness.clock import seconds
from torch import nn

Tensors = tuple[torch.Tensor, ...]


def ops() -> Iterator[tuple[str, Callable[[int], Tensors], Callable[..., Any]]]:
    """Each with its tensors, of a size that is given, and what is done with them."""
    weight, columns = torch.rand(64, 64), torch.randint(0, 64, (32,))

    def rows(n: int) -> Tensors:
        return (torch.rand(n, 64),)

    def mask(n: int) -> Tensors:
        return torch.rand(1000), torch.arange(1000) < n

    yield "add", rows, lambda x: x + x
    yield "sum", rows, torch.sum
    yield "mean over rows", rows, lambda x: x.mean(1)
    yield "softmax", rows, lambda x: x.softmax(1)
    yield "layer norm", rows, lambda x: F.layer_norm(x, (64,))
    yield "cumulative sum", rows, lambda x: x.cumsum(0)
    yield "matmul", lambda n: (torch.rand(n, 64), weight), torch.matmul
    yield "cat", lambda n: (torch.rand(n, 64), weight), lambda *x: torch.cat(x)
    yield "index", lambda n: (torch.rand(n, 64), columns), lambda x, i: x[:, i]
    yield "by a mask", mask, lambda x, m: x[m]
    yield "convolution", lambda n: (torch.rand(1, 8, n, 20), torch.rand(8, 8, 3, 3)), F.conv2d


def steps() -> Iterator[tuple[str, nn.Module, Callable[[int], torch.Tensor]]]:
    """Models that are trained on inputs of a size that is given."""
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, dropout=0)
    yield "encoder, training", layer, lambda n: torch.randn(2, n, 64)
    network = nn.Sequential(
        *(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.GroupNorm(4, 32), nn.SiLU(), nn.AdaptiveAvgPool2d(1)),
    )
    yield "CNN, training", network, lambda n: torch.randn(2, 3, n, 20)


def measure(call: Callable[..., Any], made: list[Tensors], device: str) -> tuple[float, float]:
    """Microseconds with new sizes and with known ones, after the first calls of all."""
    tensors = [tuple(t.to(device) for t in each) for each in made]
    for each in tensors[:5]:
        call(*each)
    rounds = [[seconds(partial(call, *each), device, 0) for each in tensors[5:]] for _ in range(2)]
    new, known = (median(times) * 1e6 for times in rounds)
    return new, known


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="ocl")
    parser.add_argument("--calls", type=int, default=100)
    options = parser.parse_args()
    sizes = range(100, 105 + options.calls)
    print("| us a call | torch's CPU | known sizes | new sizes |\n|---|---:|---:|---:|")

    def show(name: str, call_of: Callable[[str], Callable[..., Any]], make: Callable[[int], Tensors]) -> None:
        made = [make(n) for n in sizes]
        _, cpu = measure(call_of("cpu"), made, "cpu")
        new, known = measure(call_of(options.device), made, options.device)
        print(f"| {name} | {cpu:.0f} | {known:.0f} | {new:.0f} |", flush=True)

    for name, make, call in ops():
        show(name, lambda _, call=call: call, make)
    for name, model, make_input in steps():

        def step(device: str, model: nn.Module = model) -> Callable[[torch.Tensor], None]:
            moved = model.to(device)
            return lambda x: moved(x).square().mean().backward()

        show(name, step, lambda n, make_input=make_input: (make_input(n - 84),))


if __name__ == "__main__":
    main()
