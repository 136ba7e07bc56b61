"""Trains networks on the device of this folder and on the CPU, and prints losses, fallbacks and the time of a step.

./build.sh && TORCH_DEVICE_BACKEND_AUTOLOAD=0 python train.py [--size small|real] [--network resnet|gpt|bert]
"""

from __future__ import annotations

import argparse
import copy
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from networks import Batch, networks, train
from torch import nn

import torchgraft

HERE = Path(__file__).resolve().parent


def trained(network: nn.Module, device: str, batches: list[Batch]) -> tuple[list[float], float]:
    """The losses, and the seconds of the quickest step, of a network that is brought to a device."""
    network.to(device)
    return train(network, torch.optim.AdamW(network.parameters(), lr=1e-3), device, batches)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--library", default=os.environ.get("ONEDNN_DEVICE", str(HERE / "libonednn_device.so")))
    parser.add_argument("--size", choices=("small", "real"), default="small")
    parser.add_argument("--network", choices=("resnet", "gpt", "bert"))
    parser.add_argument("--steps", type=int, default=4)
    options = parser.parse_args()
    torchgraft.register("npu", [torchgraft.SharedLibrary(options.library)])
    for name, (make, batch) in networks(options.size).items():
        if options.network not in (None, name):
            continue
        torch.manual_seed(0)
        network, batches = make(), [batch() for _ in range(options.steps)]
        same = copy.deepcopy(network)
        mine, seconds = trained(network, "npu", batches)
        others, of_cpu = trained(same, "cpu", batches)
        print(name, *(f"{loss:.5f}" for loss in mine))
        print(" " * len(name), *(f"{loss:.5f}" for loss in others), "on the CPU")
        print(f"a step: {1e3 * seconds:.1f} ms, {1e3 * of_cpu:.1f} ms on the CPU, {seconds / of_cpu:.2f} times")
        apart = max(abs(a - b) for a, b in zip(mine, others, strict=True))
        if apart > 1e-2:
            raise SystemExit(f"the losses of {name} are {apart} apart")
    print(torchgraft.fallback_report())


if __name__ == "__main__":
    main()
