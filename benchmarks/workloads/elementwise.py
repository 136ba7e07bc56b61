"""Loops over elements: large ones, contiguous, broadcast and strided."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from harness.case import Call, Case, Shape, moving, on, randn

N, SIDE = 1 << 24, 4096


def tuned() -> Iterator[Case]:
    def contiguous(name: str, function: Callable[[torch.Tensor, torch.Tensor], object], nbytes: int) -> Case:
        return moving(f"elementwise/{name}", on(function, (N,), (N,)), nbytes * N, N)

    def two(name: str, function: Callable[[torch.Tensor, torch.Tensor], object], b: Shape, nbytes: int) -> Case:
        return moving(f"elementwise/{name}", on(function, (SIDE, SIDE), b), nbytes * N, N)

    yield contiguous("add", lambda a, b: a + b, 12)
    yield contiguous("add_", lambda a, b: a.add_(b, alpha=1e-9), 12)
    yield contiguous("mul scalar", lambda a, b: a * 2.0, 8)
    yield contiguous("relu", lambda a, b: torch.relu(a), 8)
    yield contiguous("exp", lambda a, b: torch.exp(a), 8)
    yield contiguous("gelu", lambda a, b: F.gelu(a), 8)
    yield contiguous("sigmoid", lambda a, b: torch.sigmoid(a), 8)
    yield contiguous("tanh", lambda a, b: torch.tanh(a), 8)
    yield contiguous("addcmul", lambda a, b: torch.addcmul(a, a, b), 12)
    yield contiguous("to float16", lambda a, b: a.half(), 6)
    yield contiguous("to int32", lambda a, b: a.int(), 8)
    yield two("broadcast row", lambda a, b: a + b, (SIDE,), 8)
    yield two("broadcast column", lambda a, b: a + b, (SIDE, 1), 8)
    yield two("every second", lambda a, b: a[:, ::2] + b[:, ::2], (SIDE, SIDE), 6)
    yield two("add transposed", lambda a, b: a.t() + b, (SIDE, SIDE), 12)


def others() -> Iterator[Case]:
    odd = 10_000_019

    def one(
        name: str, function: Callable[[torch.Tensor], object], nbytes: int, dtype: torch.dtype = torch.float32
    ) -> Case:
        return moving(f"elementwise/{name} 10000019", on(function, (odd,), dtype=dtype), nbytes * odd, odd)

    yield one("gelu", lambda x: F.gelu(x), 8)
    yield one("sin", lambda x: x.sin(), 8)
    yield one("log1p", lambda x: x.log1p(), 8)
    yield one("pow 2.5", lambda x: x**2.5, 8)
    yield one("clamp", lambda x: x.clamp(-1, 1), 8)
    yield one("silu bfloat16", lambda x: F.silu(x), 4, torch.bfloat16)
    yield one("mul scalar bfloat16", lambda x: x * 2.0, 4, torch.bfloat16)
    yield one("exp float16", lambda x: x.exp(), 4, torch.float16)
    yield one("exp float64", lambda x: x.exp(), 16, torch.float64)
    yield one("to float64", lambda x: x.double(), 12)
    yield one("greater", lambda x: x > 0, 5)

    def two(name: str, function: Callable[[torch.Tensor, torch.Tensor], object], a: Shape, b: Shape) -> Case:
        count = max(torch.Size(a).numel(), torch.Size(b).numel())
        nbytes = 4 * (count + torch.Size(a).numel() + torch.Size(b).numel())
        return moving(f"elementwise/{name}", on(function, a, b), nbytes, count)

    yield two("div 10000019", lambda a, b: a / b, (odd,), (odd,))
    yield two("lerp 3000x1537", lambda a, b: a.lerp(b, 0.1), (3000, 1537), (3000, 1537))
    yield two("broadcast row 3000x1537", lambda a, b: a + b, (3000, 1537), (1537,))
    yield two("broadcast row 200000x3", lambda a, b: a + b, (200_000, 3), (3,))
    yield two("broadcast column 1537x3000", lambda a, b: a * b, (1537, 3000), (1537, 1))
    yield two("broadcast middle 64x37x1000", lambda a, b: a + b, (64, 37, 1000), (64, 1, 1000))
    yield two("outer 3001x1009", lambda a, b: a[:, None] * b, (3001,), (1009,))
    yield two("add permuted 500x100x30", lambda a, b: a.permute(2, 0, 1) + b, (100, 30, 500), (500, 100, 30))

    def where(device: str) -> Call:
        a, b = randn(device, 1000, 3001), randn(device, 1000, 3001)
        mask = a > 0
        return lambda: torch.where(mask, a, b)

    def integers(device: str) -> Call:
        a = torch.arange(3_000_001).to(device)
        return lambda: a * 3 + a

    yield moving("elementwise/where 1000x3001", where, 13 * 1000 * 3001, 1000 * 3001)
    yield moving("elementwise/int64 mul, add 3000001", integers, 16 * 3_000_001, 2 * 3_000_001)
