"""What a step of training gives the device to do: launches, copies and fills, by op.

    python benchmarks/launches.py [--device ocl] [--ops 12]

The third step of each model is profiled, when all plans are made. The models are the demo's, a recurrent one and a
block of a transformer, each with the optimiser that its users take first.
"""

from __future__ import annotations

import argparse
import collections
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn
from torch.profiler import ProfilerActivity, profile

from torchgraft_opencl.demo.digits import ConvNet
from torchgraft_opencl.demo.text import GPT

Step = Callable[[], object]


def training(
    model: nn.Module,
    inputs: torch.Tensor,
    targets: torch.Tensor,
    optimizer: type[torch.optim.Optimizer],
    **options: object,
) -> Step:
    optimiser = optimizer(model.parameters(), **options)  # type: ignore[arg-type]

    def step() -> None:
        optimiser.zero_grad()
        outputs = model(inputs)
        outputs = outputs[0] if isinstance(outputs, tuple) else outputs
        F.cross_entropy(outputs.flatten(0, -2), targets.flatten()).backward()
        optimiser.step()

    return step


def models(device: str) -> dict[str, Callable[[], Step]]:
    """Each makes a model and returns its step."""
    adamw = torch.optim.AdamW
    tokens = torch.randint(60, (8, 65)).to(device)

    def classes(*shape: int) -> torch.Tensor:
        return torch.randint(10, shape).to(device)

    def floats(*shape: int) -> torch.Tensor:
        return torch.randn(shape).to(device)

    block = nn.TransformerEncoderLayer(64, 4, 256, batch_first=True)
    return {
        "digits, SGD": lambda: training(
            ConvNet().to(device), floats(32, 1, 8, 8), classes(32), torch.optim.SGD, lr=0.1, momentum=0.9
        ),
        "text, AdamW": lambda: training(GPT().to(device), tokens[:, :-1], tokens[:, 1:], adamw, lr=1e-3),
        "text, AdamW fused": lambda: training(
            GPT().to(device), tokens[:, :-1], tokens[:, 1:], adamw, lr=1e-3, fused=True
        ),
        "LSTM of 50 steps, Adam": lambda: training(
            nn.LSTM(32, 64).to(device), floats(50, 16, 32), classes(50, 16), torch.optim.Adam
        ),
        "transformer block, AdamW": lambda: training(block.to(device), floats(8, 32, 64), classes(8, 32), adamw),
    }


def commands(step: Step, activity: ProfilerActivity) -> collections.Counter[str]:
    """What the device did in one step, by the op that asked for it."""
    for _ in range(2):
        step()
    torch.accelerator.synchronize()
    with profile(activities=[ProfilerActivity.CPU, activity]) as profiled:
        step()
        torch.accelerator.synchronize()
    count: collections.Counter[str] = collections.Counter()
    for event in profiled.events():
        count[event.name] += len(event.kernels)
    return +count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="ocl")
    parser.add_argument("--ops", type=int, default=0, help="how many ops to list for each model")
    options = parser.parse_args()
    activity = getattr(ProfilerActivity, options.device.upper())
    for name, make in models(options.device).items():
        torch.manual_seed(0)
        count = commands(make(), activity)
        print(f"{name:28s} {count.total():5d}")
        for op, commands_of_op in count.most_common(options.ops):
            print(f"    {op:40s} {commands_of_op:5d}")


if __name__ == "__main__":
    main()
