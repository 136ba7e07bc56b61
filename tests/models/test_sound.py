"""Networks for sound: convolutions over time with normalised weights, losses on spectra."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from agreement import assert_learns_alike, assert_near, assert_same_output
from torch import nn

pytestmark = pytest.mark.no_fallback


class Gated(nn.Module):
    """A dilated causal layer of WaveNet (van den Oord et al., arXiv:1609.03499)."""

    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.dilation = dilation
        norm = nn.utils.parametrizations.weight_norm
        self.gates = norm(nn.Conv1d(width, 2 * width, 2, dilation=dilation))
        self.join = norm(nn.Conv1d(width, width, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        filter, gate = self.gates(F.pad(x, (self.dilation, 0))).chunk(2, 1)
        return x + self.join(filter.tanh() * gate.sigmoid())


class Waves(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.enter = nn.Conv1d(1, width, 1)
        self.layers = nn.Sequential(*(Gated(width, 2**k) for k in range(4)))
        self.leave = nn.Linear(width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.leave(F.elu(self.layers(self.enter(x.unsqueeze(1)))).transpose(1, 2)).squeeze(2)


def spectra(x: torch.Tensor, size: int) -> torch.Tensor:
    window = torch.hann_window(size, device=x.device)
    return torch.stft(x, size, size // 4, window=window, return_complex=True).abs().clamp(min=1e-4)


def spectral(model: nn.Module, x: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """A loss on spectra of several resolutions (Yamamoto et al., arXiv:1910.11480)."""
    made, loss = model(x), torch.zeros((), device=x.device)
    for size in (32, 50, 128):
        a, b = spectra(made, size), spectra(wanted, size)
        loss = loss + (b - a).norm() / b.norm() + F.l1_loss(a.log(), b.log())
    return loss


@pytest.mark.thorough
def test_waves(device: str) -> None:
    times = torch.arange(512) / 64
    noise = 0.3 * torch.randn(2, 512)
    wanted = torch.stack([(3 * times).sin(), (5 * times).cos()])
    assert_same_output(device, Waves(), wanted + noise)
    assert_learns_alike(device, Waves(), spectral, wanted + noise, wanted, error=1e-3)


class FourierLayer(nn.Module):
    """The spectral convolution of neural operators (Li et al., arXiv:2010.08895)."""

    def __init__(self, width: int, modes: int) -> None:
        super().__init__()
        self.modes = modes
        self.weight = nn.Parameter(torch.randn(width, width, modes, modes, dtype=torch.complex64) / width)
        self.local = nn.Conv2d(width, width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        waves, m = torch.fft.rfft2(x), self.modes
        kept = torch.zeros_like(waves)
        kept[..., :m, :m] = torch.einsum("bixy,ioxy->boxy", waves[..., :m, :m], self.weight)
        return F.gelu(torch.fft.irfft2(kept, s=x.shape[-2:]) + self.local(x))


def test_neural_operator(device: str) -> None:
    model = nn.Sequential(nn.Conv2d(1, 8, 1), FourierLayer(8, 4), FourierLayer(8, 4), nn.Conv2d(8, 1, 1))
    x = torch.randn(2, 1, 15, 16)
    wanted = x.roll(2, -1)
    assert_same_output(device, model, x)
    assert_learns_alike(device, model, lambda m, x, y: F.mse_loss(m(x), y), x, wanted)


@pytest.mark.parametrize("dim", [0, 2])
def test_normalised_weights(device: str, dim: int) -> None:
    """Both of the kernels that torch has for them, and their gradients."""
    v, g = torch.randn(5, 3, 4, dtype=torch.float64), torch.rand(5, 3, 4, dtype=torch.float64)
    g = g[:, :1, :1].contiguous() if dim == 0 else g[:1, :1, :].contiguous()
    results = []
    for where in ("cpu", device):
        leaves = [x.clone().to(where).requires_grad_() for x in (v, g)]
        w = torch._weight_norm(leaves[0], leaves[1], dim)
        w.sin().sum().backward()
        results.append([w, *(x.grad for x in leaves)])
    for expected, got in zip(*results, strict=True):
        assert_near(got, expected, 1e-12)
