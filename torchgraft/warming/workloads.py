"""Small steps of training that need the kernels which most programs need first.

Kernels depend on dtypes and layouts, hardly on sizes, so that a small model warms for a large one.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

__all__ = ["WORKLOADS"]

Workload = Callable[[torch.device], None]


def _train(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> None:
    """A step with each of the usual optimisers, and a step without gradients."""
    optimizers = [
        torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4),
        torch.optim.Adam(model.parameters(), lr=1e-3),
        torch.optim.AdamW(model.parameters(), lr=1e-3),
        torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True),
    ]
    for optimizer in optimizers:
        optimizer.zero_grad()
        outputs = model(inputs)
        F.cross_entropy(outputs.flatten(0, -2), targets.flatten()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    model.eval()
    with torch.no_grad():
        outputs = model(inputs)
        (outputs.argmax(-1) == targets).float().mean().item()
        F.cross_entropy(outputs.flatten(0, -2), targets.flatten()).item()


def _dense(device: torch.device) -> None:
    inputs, targets = torch.randn(64, 1, 28, 28).to(device), torch.randint(7, (64,)).to(device)
    deep = nn.Sequential(
        nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Dropout(0.1), nn.Linear(256, 64), nn.GELU(), nn.Linear(64, 10)
    )
    # Results wider than what their sums are made of, and narrower than a vector, have kernels of their own.
    uneven = nn.Sequential(
        nn.Flatten(), nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 300), nn.ReLU(), nn.Linear(300, 7)
    )
    # Lists of four tensors have, too.
    for model in (deep, uneven, nn.Sequential(nn.Flatten(), nn.Linear(784, 300), nn.ReLU(), nn.Linear(300, 10))):
        _train(model.to(device), inputs, targets)


def _images(device: torch.device) -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 32, 1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )
    _train(model.to(device), torch.randn(16, 3, 32, 32).to(device), torch.randint(10, (16,)).to(device))


class _Transformer(nn.Module):
    """Tokens to tokens, with causal attention of two heads."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(65, width), nn.Embedding(32, width)
        self.before, self.between, self.after = nn.LayerNorm(width), nn.LayerNorm(width), nn.LayerNorm(width)
        self.project, self.join = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.head = nn.Linear(width, 65, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.places(torch.arange(tokens.size(1), device=tokens.device))
        parts = self.project(self.before(x)).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in parts)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + F.dropout(self.join(attended.transpose(1, 2).flatten(-2)), 0.1, self.training)
        x = x + self.narrow(F.gelu(self.widen(self.between(x))))
        logits: torch.Tensor = self.head(self.after(x))
        return logits


def _transformer(device: torch.device) -> None:
    tokens = torch.randint(65, (8, 33))
    for width in (64, 128):  # kernels of attention depend on the width of a head
        _train(_Transformer(width).to(device), tokens[:, :-1].to(device), tokens[:, 1:].to(device))


class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(65, 32)
        self.lstm, self.gru, self.head = nn.LSTM(32, 64), nn.GRU(64, 64), nn.Linear(64, 65)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.gru(self.lstm(self.tokens(tokens))[0])[0])
        return logits


def _recurrent(device: torch.device) -> None:
    tokens = torch.randint(65, (13, 8))
    _train(_Recurrent().to(device), tokens[:-1].to(device), tokens[1:].to(device))


def _tensors(device: torch.device) -> None:
    """What people try in a shell."""
    x, y = torch.randn(64, 64).to(device), torch.randn(64, device=device)
    for a, b in ((x, y), (x, x.t()), (x, 2.0)):
        for result in (a + b, a - b, a * b, a / b, a > b, a == b):
            result.cpu()
    x.add_(y).mul_(2).sub_(1).div_(3)
    for result in (x.exp(), x.tanh(), x.sigmoid(), x.relu(), x.abs(), x.sqrt(), -x, x**2, x.clamp(-1, 1), x.log()):
        for reduced in (result.sum(), result.mean(), result.max(), result.sum(0), result.mean(1), result.std()):
            reduced.item() if reduced.dim() == 0 else reduced.cpu()
    (x @ x).softmax(-1).argmax(-1).cpu()
    (x[0] @ x[1]).item()
    (x > 0).sum().item()
    torch.stack([x, x.clone()]).clamp_min(0).cpu()
    torch.where(x > 0, x, y).half().float().to(torch.int64).sum().item()
    whole = torch.arange(100, device=device).view(10, 10)
    (whole * 2 + whole.t() - 1).sum().item()
    torch.cat([x, x]).sort().values[torch.randperm(64, device=device)].cpu()
    repr(x)
    (
        torch.zeros(3, device=device),
        torch.ones(3, device=device),
        torch.rand(3, device=device),
        torch.eye(3, device=device),
    )


WORKLOADS: dict[str, Workload] = {
    "images": _images,
    "transformer": _transformer,
    "recurrent": _recurrent,
    "dense": _dense,
    "tensors": _tensors,
}
"""Name -> what is run, those that compile longest first."""
