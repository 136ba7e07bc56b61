"""Elements found by index, by mask or by order."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from harness.case import Call, Case, Make, indices, moving, on, randn


def embedding(words: int, width: int, count: int, backward: bool) -> Make:
    def make(device: str) -> Call:
        table = randn(device, words, width).requires_grad_(backward)
        index = indices(device, words, count)
        if not backward:
            return lambda: F.embedding(index, table)
        grad = randn(device, count, width)
        return lambda: torch.autograd.grad(F.embedding(index, table), table, grad)

    return make


def gather(rows: int, columns: int, found: int, dim: int) -> Make:
    def make(device: str) -> Call:
        x, shape = randn(device, rows, columns), ((rows, found) if dim else (found, columns))
        index = indices(device, columns if dim else rows, *shape)
        return lambda: x.gather(dim, index)

    return make


def tuned() -> Iterator[Case]:
    yield moving("indexing/embedding 2048x384", embedding(50257, 384, 2048, False), 8 * 2048 * 384)
    yield moving("indexing/embedding backward", embedding(50257, 384, 2048, True), 4 * 50257 * 384)
    yield moving("indexing/gather 4096", gather(4096, 4096, 4096, 1), 16 * 4096 * 4096)


def others() -> Iterator[Case]:
    yield from _reading()
    yield from _writing()
    yield from _ordering()


def _reading() -> Iterator[Case]:
    def index_select(device: str) -> Call:
        x, index = randn(device, 100_000, 65), indices(device, 100_000, 5000)
        return lambda: x.index_select(0, index)

    def columns(device: str) -> Call:
        x, index = randn(device, 1000, 1000), indices(device, 1000, 300)
        return lambda: x[:, index]

    def points(device: str) -> Call:
        x = randn(device, 1000, 1000)
        i, j = indices(device, 1000, 100_000), indices(device, 1000, 100_000)
        return lambda: x[i, j]

    def masked(device: str) -> Call:
        x = randn(device, 1_000_003)
        mask = x > 0
        return lambda: x[mask]

    yield moving("indexing/embedding 3200x300", embedding(10_000, 300, 3200, False), 8 * 3200 * 300)
    yield moving("indexing/embedding 3200x300 backward", embedding(10_000, 300, 3200, True), 4 * 300 * 13_200)
    yield moving("indexing/gather 1000x100 of 3000", gather(1000, 3000, 100, 1), 16 * 1000 * 100)
    yield moving("indexing/gather of columns 300x1000", gather(1000, 1000, 300, 0), 16 * 300 * 1000)
    yield moving("indexing/index_select 5000x65", index_select, 8 * 5000 * 65)
    yield moving("indexing/300 columns of 1000", columns, 8 * 1000 * 300)
    yield moving("indexing/100000 points", points, 24 * 100_000)
    yield moving("indexing/by mask 1000003", masked, 7 * 1_000_003)
    yield moving("indexing/nonzero 1000x1001", on(lambda x: (x > 0).nonzero(), (1000, 1001)), 12 * 1000 * 1001)


def _writing() -> Iterator[Case]:
    def scatter_add(device: str) -> Call:
        x, target = randn(device, 1_000_003), torch.zeros(1000, device=device)
        index = indices(device, 1000, 1_000_003)
        return lambda: target.scatter_add_(0, index, x)

    def scatter(device: str) -> Call:
        x, source = randn(device, 1000, 1000), randn(device, 1000, 300)
        index = torch.rand(1000, 1000).argsort(1)[:, :300].contiguous().to(device)
        return lambda: x.scatter_(1, index, source)

    def index_add(device: str) -> Call:
        x, source, index = randn(device, 1000, 129), randn(device, 10_000, 129), indices(device, 1000, 10_000)
        return lambda: x.index_add_(0, index, source)

    def accumulate(device: str) -> Call:
        x, values = randn(device, 1000, 1000), randn(device, 100_000)
        where = indices(device, 1000, 100_000), indices(device, 1000, 100_000)
        return lambda: x.index_put_(where, values, accumulate=True)

    def masked_fill(device: str) -> Call:
        x = randn(device, 1000, 1001)
        mask = x > 0
        return lambda: x.masked_fill(mask, -1.0)

    yield moving("indexing/scatter_add 1000003 to 1000", scatter_add, 12 * 1_000_003)
    yield moving("indexing/scatter 1000x300 to 1000", scatter, 16 * 1000 * 300)
    yield moving("indexing/index_add 10000x129 to 1000", index_add, 4 * 129 * 12_000)
    yield moving("indexing/index_put of 100000, added", accumulate, 28 * 100_000)
    yield moving("indexing/masked_fill 1000x1001", masked_fill, 9 * 1000 * 1001)


def _ordering() -> Iterator[Case]:
    def searchsorted(device: str) -> Call:
        edges, x = torch.linspace(-3, 3, 1001).to(device), randn(device, 300_000)
        return lambda: torch.searchsorted(edges, x)

    def bincount(device: str) -> Call:
        x = indices(device, 1000, 300_000)
        return lambda: torch.bincount(x, minlength=1000)

    yield moving("indexing/sort 300001", on(lambda x: x.sort(), (300_001,)), 16 * 300_001)
    yield moving("indexing/sort rows 1000x300", on(lambda x: x.sort(1), (1000, 300)), 16 * 300_000)
    yield moving("indexing/sort rows 200000x2", on(lambda x: x.sort(1), (200_000, 2)), 16 * 400_000)
    yield moving("indexing/topk 50 of rows 64x50257", on(lambda x: x.topk(50), (64, 50257)), 4 * 64 * 50257)
    yield moving("indexing/searchsorted 300000 in 1001", searchsorted, 12 * 300_000)
    yield moving("indexing/bincount 300000", bincount, 8 * 300_000)
