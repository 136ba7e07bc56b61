"""Random numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from harness.case import Call, Case, Make, moving, on

N = 1 << 24


def into(function: Callable[[torch.Tensor], object], count: int, dtype: torch.dtype = torch.float32) -> Make:
    def make(device: str) -> Call:
        x = torch.ones(count, dtype=dtype, device=device)
        return lambda: function(x)

    return make


def tuned() -> Iterator[Case]:
    yield moving("random/uniform", into(lambda x: x.uniform_(), N), 4 * N)
    yield moving("random/normal", into(lambda x: x.normal_(), N), 4 * N)
    yield moving("random/bernoulli", into(lambda x: x.bernoulli_(0.5), N), 4 * N)
    yield moving("random/dropout", into(lambda x: F.dropout(x, 0.1), N), 8 * N)


def others() -> Iterator[Case]:
    odd = 1_000_003
    yield moving("random/uniform 1000003", into(lambda x: x.uniform_(), odd), 4 * odd)
    yield moving("random/normal float64 1000003", into(lambda x: x.normal_(), odd, torch.float64), 8 * odd)
    yield moving("random/exponential 1000003", into(lambda x: x.exponential_(), odd), 4 * odd)
    yield moving("random/bernoulli bfloat16 1000003", into(lambda x: x.bernoulli_(0.3), odd, torch.bfloat16), 2 * odd)
    yield moving("random/dropout 128x1000", on(lambda x: F.dropout(x, 0.5), (128, 1000)), 8 * 128_000)
    integers = into(lambda x: x.random_(1000), odd, torch.int64)
    yield moving("random/integers 1000003", integers, 8 * odd)
    permutation = into(lambda x: torch.randperm(100_000, device=x.device), 1)
    yield moving("random/permutation of 100000", permutation, 8 * 100_000)
    drawn = on(lambda x: torch.multinomial(x.abs(), 1), (64, 1000))
    yield moving("random/one of 1000 by weight, 64 times", drawn, 4 * 64_000)
