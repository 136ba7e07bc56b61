"""Small tensors, of a thousand to a hundred thousand elements: what a call costs beside its arithmetic counts here."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from harness.case import Case, Shape, computing, moving, on


def tuned() -> Iterator[Case]:
    return iter(())


def others() -> Iterator[Case]:
    for words, count in (("1 K", 1000), ("10 K", 10_000), ("100 K", 100_000)):
        yield from _of(words, count)
    for size in (32, 64, 129):
        product = on(lambda a, b: a @ b, (size, size), (size, size))
        yield computing(f"small/matmul {size}", product, 2 * size**3, 12 * size**2)
    linear = on(lambda x, w, b: F.linear(x, w, b), (16, 100), (50, 100), (50,))
    yield computing("small/linear 16x100x50", linear, 2 * 16 * 100 * 50, 4 * (1600 + 5000 + 800))


def _of(words: str, count: int) -> Iterator[Case]:
    def case(name: str, function: Callable[..., object], nbytes: float, *shapes: Shape) -> Case:
        return moving(f"small/{name} {words}", on(function, *shapes), nbytes * count, count)

    flat, rows = (count,), (count // 100, 100)
    yield case("add", lambda a, b: a + b, 12, flat, flat)
    yield case("mul scalar, in place", lambda x: x.mul_(1.0), 8, flat)
    yield case("gelu", lambda x: F.gelu(x), 8, flat)
    yield case("sum", lambda x: x.sum(), 4, flat)
    yield case("sum of columns", lambda x: x.sum(0), 4, rows)
    yield case("softmax", lambda x: x.softmax(1), 8, rows)
    yield case("layer norm", lambda x: F.layer_norm(x, (100,)), 8, rows)
    yield case("transpose", lambda x: x.t().contiguous(), 8, rows)
    yield case("cat", lambda x: torch.cat([x, x]), 12, flat)
