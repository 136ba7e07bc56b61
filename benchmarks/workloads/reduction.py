"""Many numbers become few, or are scaled by what they have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from harness.case import Call, Case, Shape, gradients_of, moving, on, randn, with_gradients

SIDE = 4096
Function = Callable[[torch.Tensor], torch.Tensor]


def tuned() -> Iterator[Case]:
    n = SIDE * SIDE
    for name, function in {
        "sum": lambda x: x.sum(),
        "sum of columns": lambda x: x.sum(0),
        "sum of rows": lambda x: x.sum(1),
        "amax of rows": lambda x: x.amax(1),
        "argmax of rows": lambda x: x.argmax(1),
        "var of rows": lambda x: x.var(1),
        "norm": lambda x: x.norm(),
    }.items():
        yield moving(f"reduction/{name}", on(function, (SIDE, SIDE)), 4 * n, n)
    yield moving("reduction/softmax", on(lambda x: torch.softmax(x, 1), (SIDE, SIDE)), 8 * n, 4 * n)
    yield moving("reduction/log softmax", on(lambda x: torch.log_softmax(x, 1), (SIDE, SIDE)), 8 * n, 4 * n)
    layer_norm = on(lambda x, weight, bias: F.layer_norm(x, (1024,), weight, bias), (8192, 1024), (1024,), (1024,))
    yield moving("reduction/layer norm", layer_norm, 8 * 8192 * 1024, 8 * 8192 * 1024)
    yield batch_norm("batch norm", 16, 64, 56, 56)


def batch_norm(name: str, *shape: int) -> Case:
    count, channels = torch.Size(shape).numel(), shape[1]

    def make(device: str) -> Call:
        x = randn(device, *shape)
        mean, var = torch.zeros(channels, device=device), torch.ones(channels, device=device)
        return lambda: F.batch_norm(x, mean, var, training=True)

    return moving(f"reduction/{name}", make, 8 * count, 8 * count)


def others() -> Iterator[Case]:
    yield from _to_few()
    yield from _to_as_many()
    yield from _with_gradients()


def _to_few() -> Iterator[Case]:
    def one(name: str, function: Function, *shape: int, dtype: torch.dtype = torch.float32) -> Case:
        count = torch.Size(shape).numel()
        return moving(f"reduction/{name}", on(function, shape, dtype=dtype), dtype.itemsize * count, count)

    yield one("sum 3000001", lambda x: x.sum(), 3_000_001)
    yield one("sum float64 3000001", lambda x: x.sum(), 3_000_001, dtype=torch.float64)
    yield one("sum bfloat16 3000001", lambda x: x.sum(), 3_000_001, dtype=torch.bfloat16)
    yield one("mean of rows 100000x10", lambda x: x.mean(1), 100_000, 10)
    yield one("norm of rows 200000x3", lambda x: x.norm(dim=1), 200_000, 3)
    yield one("argmax of rows 100000x10", lambda x: x.argmax(1), 100_000, 10)
    yield one("argmax of rows 30000x33", lambda x: x.argmax(1), 30_000, 33)
    yield one("sum of rows 30000x33", lambda x: x.sum(1), 30_000, 33)
    yield one("sum of rows 10x300001", lambda x: x.sum(1), 10, 300_001)
    yield one("sum of columns 300001x10", lambda x: x.sum(0), 300_001, 10)
    yield one("sum of the middle 64x1000x100", lambda x: x.sum(1), 64, 1000, 100)
    yield one("amax of the middle 64x100x1000", lambda x: x.amax(1), 64, 100, 1000)
    yield one("mean of images 32x100x31x31", lambda x: x.mean((2, 3)), 32, 100, 31, 31)
    yield one("sum over batch and image 32x100x31x31", lambda x: x.sum((0, 2, 3)), 32, 100, 31, 31)
    yield one("argmax of columns 1000x3001", lambda x: x.argmax(0), 1000, 3001)
    yield one("std of columns 3001x1000", lambda x: x.std(0), 3001, 1000)
    yield one("logsumexp of rows 3001x1000", lambda x: x.logsumexp(1), 3001, 1000)
    yield one("any of rows 3001x1000", lambda x: (x > 9).any(1), 3001, 1000)


def _to_as_many() -> Iterator[Case]:
    def one(name: str, function: Callable[..., torch.Tensor], shape: Shape, flops: int, *more: Shape) -> Case:
        count = torch.Size(shape).numel()
        return moving(f"reduction/{name}", on(function, shape, *more), 8 * count, flops * count)

    yield one("softmax 2048x1000", lambda x: x.softmax(1), (2048, 1000), 4)
    yield one("softmax 64x50257", lambda x: x.softmax(1), (64, 50257), 4)
    yield one("softmax 100000x10", lambda x: x.softmax(1), (100_000, 10), 4)
    yield one("softmax of channels 4x21x129x129", lambda x: x.softmax(1), (4, 21, 129, 129), 4)
    yield one("log softmax 2048x1000", lambda x: x.log_softmax(1), (2048, 1000), 4)
    yield one("log softmax 20000x50", lambda x: x.log_softmax(1), (20_000, 50), 4)
    yield one("cumsum of rows 3001x1000", lambda x: x.cumsum(1), (3001, 1000), 1)
    yield one("cumsum of columns 1000x3001", lambda x: x.cumsum(0), (1000, 3001), 1)
    norms = (768,), (768,)
    yield one("layer norm 4096x768", lambda x, w, b: F.layer_norm(x, (768,), w, b), (4096, 768), 8, *norms)
    yield one("layer norm 100000x37", lambda x: F.layer_norm(x, (37,)), (100_000, 37), 8)
    yield one("rms norm 1000x3000", lambda x, w: F.rms_norm(x, (3000,), w), (1000, 3000), 4, (3000,))
    yield one("group norm 8x96x31x31", lambda x, w, b: F.group_norm(x, 8, w, b), (8, 96, 31, 31), 8, (96,), (96,))
    yield batch_norm("batch norm 32x37x31x31", 32, 37, 31, 31)
    yield batch_norm("batch norm of rows 4096x300", 4096, 300)


def _with_gradients() -> Iterator[Case]:
    def layer_norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, (768,), w, b)

    def cross_entropy(device: str) -> Call:
        x, target = randn(device, 512, 1000).requires_grad_(), torch.randint(1000, (512,)).to(device)
        return lambda: torch.autograd.grad(F.cross_entropy(x, target), x)

    rows = with_gradients(layer_norm, (2048, 768), (768,), (768,))
    yield moving("reduction/layer norm 2048x768 with gradients", rows, 12 * 2048 * 768, 24 * 2048 * 768)
    rms = with_gradients(lambda x, w: F.rms_norm(x, (768,), w), (2048, 768), (768,))
    yield moving("reduction/rms norm 2048x768 with gradients", rms, 12 * 2048 * 768, 18 * 2048 * 768)
    softmax = gradients_of(lambda x: x.softmax(1), (2048, 1000))
    yield moving("reduction/softmax 2048x1000, backward", softmax, 12 * 2048 * 1000, 4 * 2048 * 1000)
    yield moving("reduction/cross entropy 512x1000 with gradients", cross_entropy, 8 * 512 * 1000, 6 * 512 * 1000)
