"""Steps of training of a GPT and a ResNet-18 on any device of torch, in float32 and with autocast to bfloat16.

python benchmarks/training.py ocl [--small]
TORCH_DEVICE_BACKEND_AUTOLOAD=0 python benchmarks/training.py cuda

Prints milliseconds of a step, and the losses of the first steps: they are the same on every device but for rounding.
Needs nothing but torch, so that it runs by whichever Python has the device.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

WARMING, AT_LEAST = 3, 1.0  # steps whose losses are shown; seconds that are measured


class Block(nn.Module):
    """Attention and a perceptron, each behind a norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.attend, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.attend(self.norms[0](x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(x.shape))
        return x + self.narrow(F.gelu(self.widen(self.norms[1](x))))


class GPT(nn.Module):
    def __init__(self, words: int, width: int, heads: int, layers: int, length: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        x = self.words(text) + self.places(torch.arange(text.shape[1], device=text.device))
        scores: torch.Tensor = self.out(self.norm(self.blocks(x)))
        return scores.flatten(0, 1)


class Residual(nn.Module):
    """Two convolutions beside a shorter way."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.long = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        same = stride == 1 and inputs == outputs
        way = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
        self.short = nn.Identity() if same else nn.Sequential(way, nn.BatchNorm2d(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.long(x) + self.short(x))


def resnet18() -> nn.Module:
    widths = ((64, 64), (64, 128), (128, 256), (256, 512))
    stages = [
        block
        for inputs, outputs in widths
        for block in (Residual(inputs, outputs, 1 if inputs == outputs else 2), Residual(outputs, outputs, 1))
    ]
    head = (nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
    return nn.Sequential(*head, *stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))


def measure(name: str, make: Callable[[], nn.Module], x: torch.Tensor, y: torch.Tensor, device: str) -> None:
    """Trains with and without autocast, and prints a line for each."""
    for amp in (False, True):
        torch.manual_seed(0)
        model = make().to(device)
        optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
        text, wanted = x.to(device), y.to(device).flatten()

        def step(model: nn.Module = model, optimizer: torch.optim.Optimizer = optimizer) -> torch.Tensor:
            optimizer.zero_grad()
            with torch.autocast(torch.device(device).type, torch.bfloat16, enabled=amp):  # noqa: B023
                loss = F.cross_entropy(model(text), wanted)  # noqa: B023
            loss.backward()
            optimizer.step()
            return loss

        losses = [f"{step().item():.4f}" for _ in range(WARMING)]
        torch.accelerator.synchronize()
        start, count = time.perf_counter(), 0
        while count < WARMING or time.perf_counter() - start < AT_LEAST:
            for _ in range(WARMING):
                step()
            torch.accelerator.synchronize()
            count += WARMING
        milliseconds = (time.perf_counter() - start) / count * 1e3
        print(
            f"{name + (' bfloat16' if amp else ''):45s}{milliseconds:10.2f} ms   losses {' '.join(losses)}", flush=True
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("device", help="ocl, cuda, ...")
    parser.add_argument("--small", action="store_true", help="sizes for a CPU")
    options = parser.parse_args()
    words, width, heads, layers, length, batch = (
        (1000, 64, 2, 2, 32, 2) if options.small else (32000, 768, 12, 12, 512, 8)
    )
    images, side = (2, 64) if options.small else (32, 224)
    torch.manual_seed(1)
    text = torch.randint(words, (2, batch, length))
    name = f"GPT {layers} layers of {width}, {batch} x {length}"
    measure(name, lambda: GPT(words, width, heads, layers, length), text[0], text[1], options.device)
    pictures, kinds = torch.randn(images, 3, side, side), torch.randint(1000, (images,))
    measure(f"ResNet-18 {images} x {side} x {side}", resnet18, pictures, kinds, options.device)


if __name__ == "__main__":
    main()
