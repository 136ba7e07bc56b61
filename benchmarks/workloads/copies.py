"""Memory that is moved or set and computes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from harness.case import Call, Case, Make, Shape, moving, on, randn

N, SIDE = 1 << 24, 4096


def from_host(count: int) -> Make:
    def make(device: str) -> Call:
        source, target = torch.randn(count), torch.empty(count, device=device)
        return lambda: target.copy_(source)

    return make


def to_host(count: int) -> Make:
    def make(device: str) -> Call:
        source, target = randn(device, count), torch.empty(count)
        return lambda: target.copy_(source)

    return make


def tuned() -> Iterator[Case]:
    images = on(lambda x: x.contiguous(memory_format=torch.channels_last), (16, 64, 128, 128))
    yield moving("copy/clone", on(lambda x: x.clone(), (N,)), 8 * N)
    yield moving("copy/transpose", on(lambda x: x.t().contiguous(), (SIDE, SIDE)), 8 * N)
    yield moving("copy/nchw to nhwc", images, 8 * N)
    for size, count in (("", N), (" 1 MB", 1 << 18), (" 4 KB", 1 << 10)):
        yield moving(f"copy/host to device{size}", from_host(count), 8 * count)
        yield moving(f"copy/device to host{size}", to_host(count), 8 * count)
    yield moving("copy/clone 1 MB", on(lambda x: x.clone(), (1 << 18,)), 8 << 18)
    yield moving("copy/zero_ 1 MB", on(lambda x: x.zero_(), (1 << 18,)), 4 << 18)
    yield moving("copy/cat", on(lambda x: torch.cat([x, x]), (N // 2,)), 6 * N)


def others() -> Iterator[Case]:
    def one(name: str, function: Callable[[torch.Tensor], object], shape: Shape, share: float = 1) -> Case:
        """What reads and writes that share of a tensor."""
        return moving(f"copy/{name}", on(function, shape), 8 * share * torch.Size(shape).numel())

    yield one("clone 3000001", lambda x: x.clone(), (3_000_001,))
    yield one("transpose 1000x3001", lambda x: x.t().contiguous(), (1000, 3001))
    yield one("transpose 100000x7", lambda x: x.t().contiguous(), (100_000, 7))
    yield one("heads 8x256x12x64", lambda x: x.transpose(1, 2).contiguous(), (8, 256, 12, 64))
    yield one("last to first 300x200x30", lambda x: x.permute(2, 0, 1).contiguous(), (300, 200, 30))
    yield one("nhwc to nchw 8x224x224x3", lambda x: x.permute(0, 3, 1, 2).contiguous(), (8, 224, 224, 3))
    yield one("nchw to nhwc 8x3x224x224", lambda x: x.permute(0, 2, 3, 1).contiguous(), (8, 3, 224, 224))
    yield one("pixel shuffle 4x36x50x70", lambda x: torch.nn.functional.pixel_shuffle(x, 3), (4, 36, 50, 70))
    yield one("columns 100 to 900 of 3000x1000", lambda x: x[:, 100:900].contiguous(), (3000, 1000), 0.8)
    yield one("every third row of 3000x1000", lambda x: x[::3].contiguous(), (3000, 1000), 1 / 3)
    yield one("flip 1000x3001", lambda x: x.flip(1), (1000, 3001))
    yield one("roll 1000x3001", lambda x: x.roll(17, 1), (1000, 3001))
    yield one("cat of 10, columns 300x1000", lambda x: torch.cat(x.chunk(10, 0), 1), (3000, 1000))
    yield one("stack of 16 columns 1000x16x100", lambda x: torch.stack(x.unbind(1), 2), (1000, 16, 100))
    yield one("stack of 2, last 1000x600", lambda x: torch.stack(x.view(2, -1).unbind(0), -1), (1000, 600))
    yield moving("copy/pad 100x3x100x100", on(lambda x: pad(x), (100, 3, 100, 100)), 4 * 300 * (100**2 + 104**2))
    yield moving("copy/repeat 1000x300", on(lambda x: x.repeat(4, 3), (1000, 300)), 4 * 13 * 300_000)

    def of_bytes(device: str) -> Call:
        x = torch.randint(100, (10_000_001,), dtype=torch.uint8).to(device)
        return lambda: x.clone()

    def every_third(device: str) -> Call:
        x, y = randn(device, 3000, 1500), randn(device, 3000, 500)
        return lambda: x[:, ::3].copy_(y)

    yield moving("copy/clone of bytes 10000001", of_bytes, 2 * 10_000_001)
    yield moving("copy/into every third column", every_third, 8 * 3000 * 500)
    yield moving("copy/host to device 100 KB", from_host(25_000), 8 * 25_000)
    yield moving("copy/device to host 100 KB", to_host(25_000), 8 * 25_000)


def pad(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.pad(x, (2, 2, 2, 2))
