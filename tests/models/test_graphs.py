"""Networks on graphs: messages along edges, gathered and added up by scattering."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from agreement import assert_learns_alike, assert_same_output
from torch import nn

pytestmark = pytest.mark.no_fallback


class Convolution(nn.Module):
    """Kipf and Welling, arXiv:1609.02907."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inside, outside)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        source, target = edges
        degree = torch.bincount(target, minlength=len(x)).clamp(min=1).to(x.dtype)
        weight = (degree[source] * degree[target]).rsqrt().unsqueeze(1)
        messages = self.linear(x)[source] * weight
        return torch.zeros(len(x), messages.size(1), device=x.device).index_add_(0, target, messages)


class Attention(nn.Module):
    """Velickovic et al., arXiv:1710.10903: a softmax over each node's edges."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inside, outside, bias=False)
        self.ends = nn.Parameter(torch.randn(2, outside) * 0.1)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        source, target = edges
        y = self.linear(x)
        scores = F.leaky_relu((y @ self.ends[0])[source] + (y @ self.ends[1])[target], 0.2)
        best = torch.full((len(x),), -float("inf"), device=x.device)
        best = best.scatter_reduce(0, target, scores.detach(), "amax")
        parts = (scores - best[target]).exp()
        whole = torch.zeros(len(x), device=x.device).scatter_add(0, target, parts)
        weights = (parts / whole[target]).unsqueeze(1)
        return torch.zeros_like(y).scatter_add(0, target.unsqueeze(1).expand(-1, y.size(1)), y[source] * weights)


class Network(nn.Module):
    def __init__(self, features: int = 12, kinds: int = 4) -> None:
        super().__init__()
        self.first, self.second = Convolution(features, 16), Attention(16, 16)
        self.head = nn.Linear(32, kinds)

    def forward(self, x: torch.Tensor, edges: torch.Tensor, graphs: torch.Tensor) -> torch.Tensor:
        """One row for each graph; `graphs` says to which each node belongs."""
        x = F.relu(self.first(x, edges))
        x = F.elu(self.second(x, edges))
        count = 3
        index = graphs.unsqueeze(1).expand_as(x)
        mean = torch.zeros(count, x.size(1), device=x.device).scatter_reduce(0, index, x, "mean", include_self=False)
        most = torch.zeros(count, x.size(1), device=x.device).scatter_reduce(0, index, x, "amax", include_self=False)
        return self.head(torch.cat([mean, most], 1))


def test_graphs(device: str) -> None:
    nodes = 30
    graphs = torch.arange(3).repeat_interleave(nodes // 3)
    source = torch.randint(0, nodes, (120,))
    target = source // 10 * 10 + torch.randint(0, 10, (120,))  # in the same graph
    edges = torch.stack([torch.cat([source, torch.arange(nodes)]), torch.cat([target, torch.arange(nodes)])])
    x, labels = torch.randn(nodes, 12), torch.tensor([0, 2, 3])

    def loss(
        model: nn.Module, x: torch.Tensor, edges: torch.Tensor, graphs: torch.Tensor, labels: torch.Tensor
    ) -> torch.Tensor:
        return F.cross_entropy(model(x, edges, graphs), labels)

    assert_same_output(device, Network(), x, edges, graphs)
    assert_learns_alike(device, Network(), loss, x, edges, graphs, labels)


def test_sums_of_neighbours(device: str) -> None:
    """By scattering, and as a product with the matrix of edges."""
    edges, x = torch.randint(0, 20, (2, 60)), torch.randn(20, 8)
    dense = torch.zeros(20, 20).index_put_((edges[0], edges[1]), torch.ones(60), accumulate=True)
    sums = torch.zeros(20, 8, device=device).index_add_(0, edges[0].to(device), x.to(device)[edges[1].to(device)])
    torch.testing.assert_close(sums.cpu(), dense @ x)
