"""Runs and trains networks by ONNX Runtime and by torch's CPU; prints results, times, and what was compiled or not.

TORCH_DEVICE_BACKEND_AUTOLOAD=0 python infer_and_train.py [--size small|real] [--network resnet|gpt|bert]
"""

from __future__ import annotations

import argparse
import copy
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import onnxruntime_device  # noqa: F401
import torch
from networks import Batch, networks, train
from torch import nn

import torchgraft

DEVICE = "onnxruntime"


def infer(network: Callable[..., torch.Tensor], device: str, batches: list[Batch]) -> tuple[list[torch.Tensor], float]:
    """The results, and the seconds of the quickest call."""
    results, best = [], float("inf")
    with torch.no_grad():
        for x, _ in batches:
            begin = time.perf_counter()
            results.append(network(x.to(device)).cpu())
            best = min(best, time.perf_counter() - begin)
    return results, best


def ratio(what: str, mine: float, of_cpu: float) -> None:
    print(f"  {what}: {1e3 * mine:.1f} ms, {1e3 * of_cpu:.1f} ms on the CPU, {mine / of_cpu:.2f} times")


def try_one(name: str, network: nn.Module, batches: list[Batch]) -> None:
    """Raises SystemExit where results or gradients are not the CPU's."""
    print(name)
    mine = copy.deepcopy(network).to(DEVICE)
    compiled = torch.compile(mine, backend=DEVICE)

    network.eval(), mine.eval()
    results, seconds = infer(compiled, DEVICE, batches)
    expected, of_cpu = infer(network, "cpu", batches)
    apart = max((a - b).abs().max().item() for a, b in zip(results, expected, strict=True))
    print(f"  results at most {apart:.1e} apart")
    ratio("inference", seconds, of_cpu)

    network.train(), mine.train()
    optimizers = [torch.optim.SGD(each.parameters(), 1e-3) for each in (mine, network)]
    # Later losses of the small ResNet, which normalises over four numbers, are apart by what float32 rounds.
    train(compiled, optimizers[0], DEVICE, batches[:1])
    train(network, optimizers[1], "cpu", batches[:1])
    gradients = max(map(distance, mine.parameters(), network.parameters()))
    print(f"  gradients at most {gradients:.1e} of their largest apart")
    losses, seconds = train(compiled, optimizers[0], DEVICE, batches[1:])
    others, of_cpu = train(network, optimizers[1], "cpu", batches[1:])
    print("  losses", *(f"{loss:.4f}" for loss in losses))
    print("  on the CPU", *(f"{loss:.4f}" for loss in others))
    ratio("a step", seconds, of_cpu)
    if apart > 1e-3 or gradients > 1e-2:
        raise SystemExit(f"{name} is not what the CPU says")


def distance(mine: nn.Parameter, theirs: nn.Parameter) -> float:
    """Of two gradients, in parts of the largest number."""
    assert mine.grad is not None
    assert theirs.grad is not None
    return ((mine.grad.cpu() - theirs.grad).abs().max() / theirs.grad.abs().max()).item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--size", choices=("small", "real"), default="small")
    parser.add_argument("--network", choices=("resnet", "gpt", "bert"))
    parser.add_argument("--steps", type=int, default=4)
    options = parser.parse_args()
    for name, (make, batch) in networks(options.size).items():
        if options.network in (None, name):
            torch.manual_seed(0)
            try_one(name, make(), [batch() for _ in range(options.steps)])
    print(torchgraft.compile_report())
    print(torchgraft.fallback_report())


if __name__ == "__main__":
    main()
