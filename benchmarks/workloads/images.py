"""Images made larger or smaller, sampled and pooled."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from harness.case import Call, Case, Make, Shape, gradients_of, moving, on, randn

SIZE = 128
SHAPE = (4, 16, SIZE, SIZE)
PIXELS = 4 * 16 * SIZE * SIZE


def tuned() -> Iterator[Case]:
    for mode in ("nearest", "bilinear", "bicubic"):

        def double(x: torch.Tensor, mode: str = mode) -> torch.Tensor:
            return F.interpolate(x, scale_factor=2, mode=mode)

        def halve(x: torch.Tensor, mode: str = mode) -> torch.Tensor:
            return F.interpolate(x, scale_factor=0.5, mode=mode, antialias=True)

        yield moving(f"image/{mode} doubled", on(double, SHAPE), 4 * 5 * PIXELS)
        yield moving(f"image/{mode} doubled, backward", gradients_of(double, SHAPE), 4 * 5 * PIXELS)
        if mode != "nearest":
            yield moving(f"image/{mode} halved, antialiased", on(halve, SHAPE), 4 * 1.25 * PIXELS)
    moved = 4 * (2 * PIXELS + 4 * SIZE * SIZE * 2)
    for mode in ("nearest", "bilinear", "bicubic"):
        yield moving(f"image/grid sample {mode}", sample(mode, False, *SHAPE), moved)
    yield moving("image/grid sample bilinear, backward", sample("bilinear", True, *SHAPE), 2 * moved)
    yield moving("image/max pool 3x3", on(lambda x: F.max_pool2d(x, 3, 2, 1), SHAPE), 4 * 1.25 * PIXELS)


def sample(mode: str, backward: bool, batch: int, channels: int, height: int, width: int) -> Make:
    def make(device: str) -> Call:
        x = randn(device, batch, channels, height, width).requires_grad_(backward)
        grid = (torch.rand(batch, height, width, 2) * 2 - 1).to(device).requires_grad_(backward)
        y = F.grid_sample(x, grid, mode=mode, align_corners=False)
        if not backward:
            return lambda: F.grid_sample(x, grid, mode=mode, align_corners=False)
        grad = randn(device, *y.shape)
        return lambda: torch.autograd.grad(y, (x, grid), grad, retain_graph=True)

    return make


def others() -> Iterator[Case]:
    def one(name: str, function: Callable[[torch.Tensor], torch.Tensor], shape: Shape, backward: bool = False) -> Case:
        """What reads its image once and writes the result, or the other way round."""
        pixels = torch.Size(shape).numel() + function(torch.empty(shape, device="meta")).numel()
        return moving(f"image/{name}", (gradients_of if backward else on)(function, shape), 4 * pixels)

    def resized(mode: str, size: tuple[int, int]) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda x: F.interpolate(x, size, mode=mode)

    photo, features = (8, 3, 180, 241), (16, 24, 37, 37)
    yield one("bilinear to 224 8x3x180x241", resized("bilinear", (224, 224)), photo)
    yield one("bilinear to 224 8x3x180x241, backward", resized("bilinear", (224, 224)), photo, True)
    yield one("nearest to 100x301 8x3x180x241", resized("nearest", (100, 301)), photo)
    yield one("max pool 2x2 16x24x37x37", lambda x: F.max_pool2d(x, 2), features)
    yield one("max pool 2x2 16x24x37x37, backward", lambda x: F.max_pool2d(x, 2), features, True)
    yield one("average pool 3x3 16x24x37x37", lambda x: F.avg_pool2d(x, 3, 1, 1), features)
    yield one("average pool to 7x7 16x24x37x37", lambda x: F.adaptive_avg_pool2d(x, 7), features)
    yield one("average pool 2x2 16x24x38x38, backward", lambda x: F.avg_pool2d(x, 2), (16, 24, 38, 38), True)
    yield one("average pool to 7x7 16x24x37x37, backward", lambda x: F.adaptive_avg_pool2d(x, 7), features, True)
    yield one("max pool of 3, 1-d 8x64x1001", lambda x: F.max_pool1d(x, 3, 2), (8, 64, 1001))
    yield one("max pool to 1x1 16x64x28x28", lambda x: F.adaptive_max_pool2d(x, 1), (16, 64, 28, 28))
    yield one("max pool of all, 1-d 32x64x100", lambda x: F.max_pool1d(x, 100), (32, 64, 100))
    yield one("average pool of all, 2-d 128x256x8x8", lambda x: F.avg_pool2d(x, 8), (128, 256, 8, 8))
    for mode in ("nearest", "bilinear"):
        yield one(f"{mode} to 60x81 8x3x180x241, backward", resized(mode, (60, 81)), photo, True)
    maps, small = (8, 32, 64, 64), (8, 32, 28, 30)
    for border in ("reflect", "replicate"):

        def padded(x: torch.Tensor, border: str = border) -> torch.Tensor:
            return F.pad(x, (3, 3, 3, 3), mode=border)

        yield one(f"pad, {border} 8x32x64x64", padded, maps)
        yield one(f"pad, {border} 8x32x64x64, backward", padded, maps, True)
    yield one("unfold 3x3 8x32x28x30", lambda x: F.unfold(x, 3, padding=1), small)
    yield one("unfold 3x3 8x32x28x30, backward", lambda x: F.unfold(x, 3, padding=1), small, True)
    yield one("pixel shuffle 4x36x50x70", lambda x: F.pixel_shuffle(x, 3), (4, 36, 50, 70))
    moved = 4 * 3 * 100 * 150 * (2 * 3 + 2)
    yield moving("image/grid sample bilinear 3x3x100x150", sample("bilinear", False, 3, 3, 100, 150), moved)
