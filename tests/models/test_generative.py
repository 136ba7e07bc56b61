"""Two networks that learn against each other, and one that learns a distribution."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from agreement import assert_learns_alike, assert_near
from torch import nn

pytestmark = pytest.mark.no_fallback


def generator() -> nn.Sequential:
    """As in DCGAN (Radford et al., arXiv:1511.06434)."""
    return nn.Sequential(
        nn.ConvTranspose2d(16, 32, 4, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(True),
        nn.ConvTranspose2d(32, 16, 4, 2, 1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(True),
        nn.ConvTranspose2d(16, 1, 4, 2, 1),
        nn.Tanh(),
    )


def critic() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 16, 4, 2, 1),
        nn.LeakyReLU(0.2, True),
        nn.utils.parametrizations.spectral_norm(nn.Conv2d(16, 32, 4, 2, 1, bias=False)),
        nn.InstanceNorm2d(32, affine=True),
        nn.LeakyReLU(0.2, True),
        nn.Conv2d(32, 1, 4),
        nn.Flatten(0),
    )


@pytest.mark.thorough
def test_adversaries(device: str) -> None:
    makers, judges = generator(), critic()
    real, seeds = torch.rand(6, 1, 16, 16) * 2 - 1, torch.randn(3, 6, 16, 1, 1)
    results = []
    for where in ("cpu", device):
        make, judge = copy.deepcopy(makers).to(where), copy.deepcopy(judges).to(where)
        steps = [torch.optim.Adam(m.parameters(), lr=2e-4, betas=(0.5, 0.999), eps=1e-3) for m in (make, judge)]
        losses = []
        for seed in seeds.to(where):
            fake = make(seed)
            answers = torch.cat([judge(real.to(where)), judge(fake.detach())])
            truth = torch.cat([torch.full((6,), 0.9), torch.zeros(6)]).to(where)
            steps[1].zero_grad()
            against = F.binary_cross_entropy_with_logits(answers, truth)
            against.backward()
            steps[1].step()
            steps[0].zero_grad()
            loss = F.softplus(-judge(fake)).mean()
            loss.backward()
            steps[0].step()
            losses += [against.item(), loss.item()]
        results.append((losses, make.eval()(seeds[0].to(where))))
    torch.testing.assert_close(results[1][0], results[0][0], rtol=1e-3, atol=1e-4)
    assert_near(results[1][1], results[0][1], 1e-3)


@pytest.mark.thorough
def test_gradient_penalty(device: str) -> None:
    """A loss made of gradients (Gulrajani et al., arXiv:1704.00028), which needs second derivatives."""
    judge = nn.Sequential(nn.Conv2d(1, 8, 3, 2, 1), nn.SiLU(), nn.Flatten(), nn.Linear(128, 1))

    def penalty(judge: nn.Module, images: torch.Tensor) -> torch.Tensor:
        images = images.requires_grad_()
        (slope,) = torch.autograd.grad(judge(images).sum(), images, create_graph=True)
        return (slope.flatten(1).norm(dim=1) - 1).square().mean()

    assert_learns_alike(device, judge, penalty, torch.randn(4, 1, 8, 8))


class Autoencoder(nn.Module):
    """A variational autoencoder (Kingma and Welling, arXiv:1312.6114); the noise is given."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(64, 32), nn.ELU(), nn.Linear(32, 16))
        self.decode = nn.Sequential(nn.Linear(8, 32), nn.ELU(), nn.Linear(32, 64))

    def forward(self, x: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        mean, log_variance = self.encode(x).chunk(2, 1)
        decoded = self.decode(mean + noise * torch.exp(log_variance / 2))
        likely = torch.distributions.Bernoulli(logits=decoded, validate_args=False).log_prob(x).sum(1)
        own = torch.distributions.Normal(mean, torch.exp(log_variance / 2), validate_args=False)
        apart = torch.distributions.kl_divergence(
            own, torch.distributions.Normal(torch.zeros_like(mean), 1.0, validate_args=False)
        )
        return (apart.sum(1) - likely).mean()


def test_variational_autoencoder(device: str) -> None:
    x, noise = (torch.rand(5, 64) > 0.5).float(), torch.randn(5, 8)
    assert_learns_alike(device, Autoencoder(), lambda model, *inputs: model(*inputs), x, noise)
