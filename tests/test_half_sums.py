"""Long sums of 16-bit floating-point numbers are kept in a wider type and rounded once, in every op that sums: against
float64. Sums into places that indices name are in test_indexing.py."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

pytestmark = pytest.mark.no_fallback

aten = torch.ops.aten
Sum = Callable[[torch.Tensor], torch.Tensor]

# Halves that are added one to the other stay at 256 or 2,048.
_LENGTH = 7200


def _gradient(shape: tuple[int, ...], function: Sum, zero: float = 0.0) -> Sum:
    """The gradient of a leaf of constants that a function makes a tensor of: of its elements each is one of `x`."""

    def made(x: torch.Tensor) -> torch.Tensor:
        leaf = torch.full(shape, zero, dtype=x.dtype, device=x.device, requires_grad=True)
        y = function(leaf)
        (gradient,) = torch.autograd.grad(y, leaf, x[: y.numel()].view_as(y))
        return gradient

    return made


def _affine(normalize: Callable[..., torch.Tensor], channels: int, *shape: int) -> Sum:
    """The gradients of a normalisation's bias."""

    def made(x: torch.Tensor) -> torch.Tensor:
        weight = torch.ones(channels, dtype=x.dtype, device=x.device)
        bias = torch.zeros_like(weight).requires_grad_()
        y = normalize(x.view(shape), weight, bias)
        (gradient,) = torch.autograd.grad(y, bias, x.view_as(y))
        return gradient

    return made


def _weight(
    convolve: Callable[..., torch.Tensor], weight: tuple[int, ...], image: tuple[int, ...], **options: int
) -> Sum:
    def made(x: torch.Tensor) -> torch.Tensor:
        leaf = torch.zeros(weight, dtype=x.dtype, device=x.device, requires_grad=True)
        y = convolve(x.view(image), leaf, padding=1, **options)
        (gradient,) = torch.autograd.grad(y, leaf, x[: y.numel()].view_as(y))
        return gradient

    return made


_SUMS: dict[str, Sum] = {
    "sum": torch.sum,
    "sum of columns": lambda x: x.view(-1, 4).sum(0),
    "mean": torch.mean,
    "nansum": torch.nansum,
    "nanmean": torch.nanmean,
    "var": torch.var,
    "std of columns": lambda x: x.view(-1, 4).std(0),
    "norm": torch.norm,
    "norm 1": lambda x: x.norm(1),
    "norm 3 of columns": lambda x: x.view(-1, 4).norm(3, dim=0),
    "_foreach_norm": lambda x: torch._foreach_norm([x])[0],
    "dist": lambda x: torch.dist(x, torch.zeros_like(x)),
    "cdist": lambda x: torch.cdist(x.view(1, -1), torch.zeros_like(x).view(1, -1)),
    "logsumexp": lambda x: x.logsumexp(0),
    "cumsum": lambda x: x.cumsum(0),
    "cumsum of columns": lambda x: x.view(-1, 4).cumsum(0),
    "logcumsumexp": lambda x: x.logcumsumexp(0),
    "trapezoid": torch.trapezoid,
    "trace": lambda x: x[:6400].view(80, 80).trace(),
    "dot": lambda x: x.dot(x),
    "mv": lambda x: x.view(4, -1).mv(x[:1800]),
    "mv of columns": lambda x: x.view(-1, 4).t().mv(x[:1800]),
    "mm": lambda x: x.view(4, -1) @ x.view(-1, 4),
    "mm of columns": lambda x: x.view(-1, 4).t() @ x.view(-1, 4),
    "bmm": lambda x: torch.bmm(x.view(2, 2, -1), x.view(2, -1, 2)),
    "addmm": lambda x: torch.addmm(x[:16].view(4, 4), x.view(4, -1), x.view(-1, 4), beta=0.5, alpha=0.25),
    "linear": lambda x: F.linear(x.view(4, -1), x.view(4, -1), x[:4]),
    "segment_reduce": lambda x: torch.segment_reduce(x, "sum", lengths=torch.tensor([3600, 3600], device=x.device)),
    "embedding_bag": lambda x: F.embedding_bag(
        torch.arange(7200, device=x.device).view(1, -1), x.view(-1, 1), mode="sum"
    ),
    "mse_loss": lambda x: F.mse_loss(x, torch.zeros_like(x), reduction="sum"),
    "l1_loss": lambda x: F.l1_loss(x, torch.zeros_like(x), reduction="sum"),
    "nll_loss": lambda x: F.nll_loss(
        x.view(-1, 4), torch.ones(1800, dtype=torch.int64, device=x.device), reduction="sum"
    ),
    "avg_pool1d": lambda x: F.avg_pool1d(x.view(1, 1, -1), 3600),
    "avg_pool2d": lambda x: F.avg_pool2d(x.view(1, 1, 80, 90), (80, 90), divisor_override=3),
    "adaptive_avg_pool3d": lambda x: F.adaptive_avg_pool3d(x.view(1, 1, 8, 30, 30), 1),
    "fold": lambda x: F.fold(x.view(1, 80, 90), (16, 19), (8, 10)),
    "conv1d": lambda x: F.conv1d(x.view(1, 1, -1), x[:3600].view(1, 1, -1), stride=1800),
    "conv2d": lambda x: F.conv2d(x.view(1, 8, 30, 30), x.view(1, 8, 30, 30)),
    "conv2d by channel": lambda x: F.conv2d(x.view(1, 8, 30, 30), x[:392].view(8, 1, 7, 7), groups=8),
    "weight of conv2d": _weight(F.conv2d, (4, 4, 3, 3), (2, 4, 30, 30)),
    "weight of conv2d by channel": _weight(F.conv2d, (4, 1, 3, 3), (2, 4, 30, 30), groups=4),
    "weight of conv3d": _weight(F.conv3d, (4, 4, 3, 3, 3), (1, 4, 12, 15, 10)),
    "bias of batch_norm": _affine(lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True), 2, 90, 2, 40),
    "bias of layer_norm": _affine(lambda x, w, b: F.layer_norm(x, (10,), w, b), 10, 720, 10),
    "bias of group_norm": _affine(lambda x, w, b: F.group_norm(x, 2, w, b), 4, 180, 4, 10),
    "expand": _gradient((2,), lambda a: a.expand(3600, 2)),
    "repeat": _gradient((2,), lambda a: a.repeat(3600)),
    "repeat_interleave": _gradient((2,), lambda a: a.repeat_interleave(3600)),
    "as_strided": _gradient((2,), lambda a: a.as_strided((3600, 2), (0, 1))),
    "Tensor.unfold": _gradient((139,), lambda a: a.unfold(0, 70, 1)),
    "F.unfold": _gradient((1, 1, 16, 19), lambda a: F.unfold(a, (8, 10))),
    "pad": _gradient((1, 1, 10, 2), lambda a: F.pad(a, (40, 38, 30, 50), mode="replicate")),
    "max_pool2d": _gradient((1, 1, 80, 80), lambda a: F.max_pool2d(a, 41, 1)),
    "avg_pool2d gradient": _gradient((1, 1, 100, 100), lambda a: F.avg_pool2d(a, 31, 1, divisor_override=1)),
    "adaptive_max_pool2d": _gradient((1, 1, 2, 2), lambda a: F.adaptive_max_pool2d(a, (80, 90))),
    "adaptive_avg_pool2d": _gradient((1, 1, 2, 2), lambda a: F.adaptive_avg_pool2d(a, (80, 90))),
    "upsample nearest": _gradient((1, 1, 1, 1), lambda a: F.interpolate(a, (80, 90))),
    "upsample bilinear": _gradient((1, 1, 1, 1), lambda a: F.interpolate(a, (80, 90), mode="bilinear")),
    "upsample bicubic": _gradient((1, 1, 1, 1), lambda a: F.interpolate(a, (80, 90), mode="bicubic")),
    "upsample trilinear": _gradient((1, 1, 1, 1, 1), lambda a: F.interpolate(a, (8, 30, 30), mode="trilinear")),
    "grid_sample": _gradient(
        (1, 1, 4, 4),
        lambda a: F.grid_sample(
            a, torch.full((1, 1, 7200, 2), 0.5, dtype=a.dtype, device=a.device), align_corners=False
        ),
    ),
}


@pytest.mark.quick(form="cpu", dtype=torch.bfloat16)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", _SUMS)
def test_long_sums(device: str, form: str, name: str, dtype: torch.dtype) -> None:
    """No further from the exact sum than two units in the last place of the result's type."""
    x = (torch.rand(_LENGTH) / 4).to(dtype)
    exact, got = _SUMS[name](x.double()), _SUMS[name](x.to(device))
    assert got.dtype == dtype
    error = (got.cpu().double() - exact).abs()
    assert (error <= 2 * torch.finfo(dtype).eps * exact.abs() + torch.finfo(dtype).tiny).all(), error.max()
