"""The networks that the devices of this folder are tried with: ResNet-18, a GPT and a BERT, small or of real size."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn


class Residual(nn.Module):
    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.a = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.b = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.norm_a, self.norm_b = nn.BatchNorm2d(outside), nn.BatchNorm2d(outside)
        other = stride != 1 or inside != outside
        short = [nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside)] if other else []
        self.short = nn.Sequential(*short)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm_b(self.b(F.relu(self.norm_a(self.a(x)))))
        return F.relu(y + self.short(x))


def resnet(width: int) -> nn.Module:
    """ResNet-18, with 64 channels at first."""
    layers: list[nn.Module] = [nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    layers.append(nn.MaxPool2d(3, 2, 1))
    channels = width
    for stage, stride in enumerate((1, 2, 2, 2)):
        for each in (stride, 1):
            layers.append(Residual(channels, width << stage, each))
            channels = width << stage
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.norm_a, self.norm_b = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.heads, self.causal = heads, causal

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, length, width = x.shape
        q, k, v = (t.view(n, length, self.heads, -1).transpose(1, 2) for t in self.qkv(self.norm_a(x)).chunk(3, dim=-1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.out(y.transpose(1, 2).reshape(n, length, width))
        return x + self.mlp(self.norm_b(x))


class Words(nn.Module):
    """A GPT, or with `causal` off what BERT is."""

    def __init__(self, words: int, length: int, width: int, layers: int, causal: bool) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.layers = nn.Sequential(*(Attention(width, width // 16, causal) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        places = torch.arange(words.shape[1], device=words.device)
        return self.head(self.norm(self.layers(self.words(words) + self.places(places)))).flatten(0, 1)


Batch = tuple[torch.Tensor, torch.Tensor]


def train(
    network: Callable[..., torch.Tensor], optimizer: torch.optim.Optimizer, device: str, batches: list[Batch]
) -> tuple[list[float], float]:
    """The losses, and the seconds of the quickest step."""
    losses, best = [], float("inf")
    for x, y in batches:
        begin = time.perf_counter()
        optimizer.zero_grad()
        loss = F.cross_entropy(network(x.to(device)), y.to(device))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        best = min(best, time.perf_counter() - begin)
    return losses, best


def networks(size: str) -> dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[torch.Tensor, torch.Tensor]]]]:
    """By name: the network, and a batch."""
    small = size == "small"
    pixels, width, n = (32, 8, 4) if small else (112, 64, 4)
    words, length, wide, layers = (50, 16, 32, 2) if small else (5000, 128, 256, 4)

    def images() -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(n, 3, pixels, pixels), torch.randint(10, (n,))

    def sentences() -> tuple[torch.Tensor, torch.Tensor]:
        text = torch.randint(words, (4, length + 1))
        return text[:, :-1].contiguous(), text[:, 1:].flatten()

    return {
        "resnet": (lambda: resnet(width), images),
        "gpt": (lambda: Words(words, length, wide, layers, True), sentences),
        "bert": (lambda: Words(words, length, wide, layers, False), sentences),
    }
