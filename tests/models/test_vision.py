"""Networks for images: residual, mobile, ConvNeXt-like, a vision transformer, a U-Net for diffusion, a detector."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from agreement import adamw, assert_learns_alike, assert_near, assert_same_output, momentum
from torch import nn

pytestmark = pytest.mark.no_fallback


def classes(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(images), labels, label_smoothing=0.1)


# ---- ResNet (He et al., arXiv:1512.03385) ----


class Residual(nn.Module):
    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(outside) for _ in range(2))
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inside != outside:
            self.shortcut = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.norms[0](self.first(x)), inplace=True)
        y = self.norms[1](self.second(y))
        y += self.shortcut(x)
        return F.relu(y, inplace=True)


def resnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 7, 2, 3, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
        Residual(16, 16, 1),
        Residual(16, 32, 2),
        Residual(32, 64, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 10),
    )


# ---- MobileNetV3 (Howard et al., arXiv:1905.02244) ----


class SqueezeExcite(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.gates = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(width, width // 4, 1),
            nn.ReLU(),
            nn.Conv2d(width // 4, width, 1),
            nn.Hardsigmoid(),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.gates(x)


class Inverted(nn.Module):
    def __init__(self, inside: int, outside: int, kernel: int, stride: int) -> None:
        super().__init__()
        width = 4 * inside
        self.skips = stride == 1 and inside == outside
        self.layers = nn.Sequential(
            nn.Conv2d(inside, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.Hardswish(),
            nn.Conv2d(width, width, kernel, stride, kernel // 2, groups=width, bias=False),
            nn.BatchNorm2d(width),
            nn.Hardswish(inplace=True),
            SqueezeExcite(width),
            nn.Conv2d(width, outside, 1, bias=False),
            nn.BatchNorm2d(outside),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.layers(x) if self.skips else self.layers(x)


def mobile() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1, bias=False),
        nn.BatchNorm2d(8),
        nn.Hardswish(),
        Inverted(8, 8, 3, 1),
        Inverted(8, 16, 5, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 10),
    )


# ---- ConvNeXt (Liu et al., arXiv:2201.03545) ----


class ConvNextBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.full((width,), 0.1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.scale * self.down(F.gelu(self.up(y)))
        return x + y.permute(0, 3, 1, 2)


class ChannelNorm(nn.LayerNorm):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def convnext() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 4, 4),
        ChannelNorm(16, eps=1e-6),
        ConvNextBlock(16),
        ChannelNorm(16, eps=1e-6),
        nn.Conv2d(16, 32, 2, 2),
        ConvNextBlock(32),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.LayerNorm(32, eps=1e-6),
        nn.Linear(32, 10),
    )


# ---- Vision transformer (Dosovitskiy et al., arXiv:2010.11929) ----


class VisionTransformer(nn.Module):
    def __init__(self, width: int = 32, patch: int = 8, size: int = 32) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.summary = nn.Parameter(torch.randn(1, 1, width) * 0.02)
        self.places = nn.Parameter(torch.randn(1, 1 + (size // patch) ** 2, width) * 0.02)
        layer = nn.TransformerEncoderLayer(width, 4, 64, 0.0, "gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.summary.expand(len(x), -1, -1), tokens], 1) + self.places
        return self.head(self.encoder(tokens)[:, 0])


CLASSIFIERS = {"resnet": resnet, "mobile": mobile, "convnext": convnext, "transformer": VisionTransformer}


@pytest.mark.quick(name=["resnet", "transformer"])
@pytest.mark.parametrize("name", CLASSIFIERS)
def test_classifiers(device: str, name: str) -> None:
    model = CLASSIFIERS[name]()
    images, labels = torch.randn(4, 3, 32, 32), torch.randint(0, 10, (4,))
    assert_same_output(device, model, images)
    assert_learns_alike(device, model, classes, images, labels, optimizer=adamw)
    assert_learns_alike(device, model, classes, images, labels, optimizer=momentum)


def test_channels_last(device: str) -> None:
    model = resnet().to(memory_format=torch.channels_last)
    images = torch.randn(4, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    assert_same_output(device, model, images)
    assert_learns_alike(device, model, classes, images, torch.randint(0, 10, (4,)))


# ---- The U-Net of diffusion models (Ho et al., arXiv:2006.11239) ----


def time_embedding(times: torch.Tensor, width: int) -> torch.Tensor:
    rates = torch.exp(-math.log(10000.0) * torch.arange(width // 2, device=times.device) / (width // 2))
    angles = times.float().unsqueeze(1) * rates
    return torch.cat([angles.sin(), angles.cos()], 1)


class TimedBlock(nn.Module):
    def __init__(self, inside: int, outside: int, time: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.GroupNorm(4, inside), nn.GroupNorm(4, outside)])
        self.first = nn.Conv2d(inside, outside, 3, padding=1)
        self.second = nn.Conv2d(outside, outside, 3, padding=1)
        self.time = nn.Linear(time, outside)
        self.skip = nn.Conv2d(inside, outside, 1)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        y = self.first(F.silu(self.norms[0](x))) + self.time(F.silu(time))[:, :, None, None]
        return self.skip(x) + self.second(F.silu(self.norms[1](y)))


class PixelAttention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.qkv, self.join = (
            nn.GroupNorm(4, width),
            nn.Conv1d(width, 3 * width, 1),
            nn.Conv1d(width, width, 1),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x).flatten(2)).unflatten(1, (3, 2, -1)).transpose(3, 4).unbind(1)
        seen = F.scaled_dot_product_attention(q, k, v).transpose(2, 3).flatten(1, 2)
        return x + self.join(seen).view_as(x)


class UNet(nn.Module):
    def __init__(self, width: int = 16, mode: str = "nearest") -> None:
        super().__init__()
        self.width, self.mode = width, mode
        self.time = nn.Sequential(nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, 4 * width))
        self.enter = nn.Conv2d(1, width, 3, padding=1)
        self.down = TimedBlock(width, width, 4 * width)
        self.smaller = nn.Conv2d(width, 2 * width, 3, 2, 1)
        self.middle, self.attention = TimedBlock(2 * width, 2 * width, 4 * width), PixelAttention(2 * width)
        self.larger = nn.Conv2d(2 * width, width, 3, padding=1)
        self.up = TimedBlock(2 * width, width, 4 * width)
        self.leave = nn.Sequential(nn.GroupNorm(4, width), nn.SiLU(), nn.Conv2d(width, 1, 3, padding=1))

    def forward(self, x: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
        time = self.time(time_embedding(times, self.width))
        high = self.down(self.enter(x), time)
        low = self.attention(self.middle(self.smaller(high), time))
        corners = {} if self.mode == "nearest" else {"align_corners": False}
        grown = self.larger(F.interpolate(low, scale_factor=2, mode=self.mode, **corners))
        return self.leave(self.up(torch.cat([grown, high], 1), time))


@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
@pytest.mark.quick(mode="bilinear")
def test_diffusion(device: str, mode: str) -> None:
    """A step of training that removes noise, and sampling with the learned model."""
    model = UNet(mode=mode)
    images, noise, times = torch.randn(4, 1, 16, 16), torch.randn(4, 1, 16, 16), torch.randint(0, 50, (4,))

    def loss(model: nn.Module, images: torch.Tensor, noise: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
        kept = torch.linspace(1e-4, 0.02, 50, device=images.device).neg().add(1).cumprod(0)[times].view(-1, 1, 1, 1)
        return F.mse_loss(model(kept.sqrt() * images + (1 - kept).sqrt() * noise, times), noise)

    assert_same_output(device, model, images, times)
    assert_learns_alike(device, model, loss, images, noise, times)

    def sample(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        betas = torch.linspace(1e-4, 0.02, 5, device=x.device)
        kept = (1 - betas).cumprod(0)
        with torch.no_grad():
            for step in reversed(range(5)):
                guess = model(x, torch.full((len(x),), step, device=x.device))
                x = (x - betas[step] / (1 - kept[step]).sqrt() * guess) / (1 - betas[step]).sqrt()
        return x.clamp(-1, 1)

    expected = sample(model, noise)
    assert_near(sample(model.to(device), noise.to(device)), expected, 1e-4)


# ---- A detector of one stage (Redmon et al., arXiv:1506.02640), with its suppression of doubles ----


class Detector(nn.Module):
    """Boxes (x, y, x, y) and scores of the classes, for each cell of a 4 x 4 grid."""

    def __init__(self, kinds: int = 3) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.LeakyReLU(0.1), nn.Conv2d(16, 32, 3, 2, 1), nn.SiLU()
        )
        self.small = nn.Sequential(nn.MaxPool2d(5, 1, 2), nn.Conv2d(32, 32, 3, 2, 1), nn.SiLU())
        self.head = nn.Conv2d(64, 5 + kinds, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        fine = self.body(x)
        coarse = F.interpolate(self.small(fine), scale_factor=2.0)
        cells = self.head(torch.cat([fine, coarse], 1)).flatten(2).transpose(1, 2)
        side = math.isqrt(cells.size(1))
        rows, columns = torch.meshgrid(*[torch.arange(side, device=x.device)] * 2, indexing="ij")
        corners = torch.stack([columns, rows], -1).view(-1, 2)
        center = (cells[..., :2].sigmoid() * 2 - 0.5 + corners) / side
        size = (cells[..., 2:4].sigmoid() * 2) ** 2 / side
        return torch.cat([center - size / 2, center + size / 2, cells[..., 4:]], -1)


def overlaps(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The area that two boxes share, by what both cover."""
    low, high = torch.maximum(a[:, None, :2], b[:, :2]), torch.minimum(a[:, None, 2:], b[:, 2:])
    shared = (high - low).clamp(min=0).prod(-1)
    areas = [(boxes[:, 2:] - boxes[:, :2]).prod(-1) for boxes in (a, b)]
    return shared / (areas[0][:, None] + areas[1] - shared)


def suppress(boxes: torch.Tensor, scores: torch.Tensor, limit: float) -> torch.Tensor:
    """Numbers of the boxes that remain when all that overlap a better one are gone."""
    order = scores.argsort(descending=True, stable=True)
    doubles = overlaps(boxes[order], boxes[order]) > limit
    kept = torch.ones(len(order), dtype=torch.bool, device=boxes.device)
    for k in range(len(order)):
        if kept[k]:
            kept[k + 1 :] &= ~doubles[k, k + 1 :]
    return order[kept]


def test_detector(device: str) -> None:
    model, images = Detector(), torch.randn(2, 3, 16, 16)
    wanted, there = torch.rand(2, 16, 4), torch.rand(2, 16) > 0.7
    kinds = torch.randint(0, 3, (2, 16))

    def loss(
        model: nn.Module, images: torch.Tensor, wanted: torch.Tensor, there: torch.Tensor, kinds: torch.Tensor
    ) -> torch.Tensor:
        found = model(images)
        boxes = F.smooth_l1_loss(found[there][:, :4], wanted[there])
        sure = F.binary_cross_entropy_with_logits(found[..., 4], there.float())
        return boxes + sure + F.cross_entropy(found[there][:, 5:], kinds[there])

    assert_same_output(device, model, images)
    assert_learns_alike(device, model, loss, images, wanted, there, kinds)


def test_suppression_of_doubles(device: str) -> None:
    corners = torch.rand(60, 2)
    boxes, scores = torch.cat([corners, corners + 0.1 + 0.4 * torch.rand(60, 2)], 1), torch.rand(60)
    expected = suppress(boxes, scores, 0.3)
    assert 1 < len(expected) < 60
    assert torch.equal(suppress(boxes.to(device), scores.to(device), 0.3).cpu(), expected)
