"""What is measured for each part of a tuning: ops of sizes that models have, of several kinds, since one tuning has to
do for all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

__all__ = ["WORKLOADS", "Workload"]

Tensors = list[torch.Tensor]


@dataclass(frozen=True)
class Workload:
    """An op on operands.

    Attributes:
        operands: makes them, on the CPU.
        run: the op; its results are compared with those on the CPU.
        tolerance: of the results, relative to the largest.
    """

    operands: Callable[[], Tensors]
    run: Callable[..., Tensors]
    tolerance: float = 1e-4


def _normal(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Callable[[], Tensors]:
    def operands() -> Tensors:
        generator = torch.Generator().manual_seed(0)
        return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]

    return operands


def _convolution(stride: int, padding: int, groups: int = 1) -> Callable[..., Tensors]:
    def run(x: torch.Tensor, w: torch.Tensor) -> Tensors:
        return [F.conv2d(x, w, None, stride, padding, 1, groups)]

    return run


def _as_bfloat16(operands: Callable[[], Tensors]) -> Callable[[], Tensors]:
    return lambda: [x.bfloat16() for x in operands()]


def _gradients(stride: int, padding: int, groups: int = 1) -> Callable[..., Tensors]:
    def run(x: torch.Tensor, w: torch.Tensor, grad: torch.Tensor) -> Tensors:
        strides, paddings = [stride] * 2, [padding] * 2
        masks = [True, True, False]
        return list(
            torch.ops.aten.convolution_backward(
                grad, x, w, None, strides, paddings, [1, 1], False, [0, 0], groups, masks
            )[:2]
        )

    return run


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Tensors:
    return [F.scaled_dot_product_attention(q, k, v)]


def _causal_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Tensors:
    return [F.scaled_dot_product_attention(q, k, v, is_causal=True)]


def _attention_with_gradients(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Tensors:
    operands = [x.detach().requires_grad_() for x in (q, k, v)]
    with torch.enable_grad():
        return list(torch.autograd.grad(_attention(*operands)[0].square().sum(), operands))


_dense = {
    "512x512x512": Workload(_normal((512, 512), (512, 512)), lambda a, b: [a @ b]),
    "128x768 by (2304x768).T": Workload(_normal((128, 768), (2304, 768)), lambda a, b: [a @ b.T]),
    "(1000x300).T by 1000x200": Workload(_normal((1000, 300), (1000, 200)), lambda a, b: [a.T @ b]),
    "24 of 128x64x128": Workload(_normal((24, 128, 64), (24, 64, 128)), lambda a, b: [a @ b]),
    "384x384x384 bfloat16": Workload(
        _normal((384, 384), (384, 384), dtype=torch.bfloat16), lambda a, b: [a @ b], tolerance=0.02
    ),
    "256x256x256 float64": Workload(_normal((256, 256), (256, 256), dtype=torch.float64), lambda a, b: [a @ b]),
}

_convolutions = {
    "3x3 of 64x56x56": Workload(_normal((1, 64, 56, 56), (64, 64, 3, 3)), _convolution(1, 1)),
    "1x1 of 256x28x28": Workload(_normal((2, 256, 28, 28), (128, 256, 1, 1)), _convolution(1, 0)),
    "3x3 of 64x28x28, gradients": Workload(_normal((2, 64, 28, 28), (64, 64, 3, 3), (2, 64, 28, 28)), _gradients(1, 1)),
    "7x7 of 3x112x112, gradients": Workload(
        _normal((1, 3, 112, 112), (64, 3, 7, 7), (1, 64, 56, 56)), _gradients(2, 3)
    ),
}

_few_rows = {
    "1x4096 by 4096x1024": Workload(_normal((1, 4096), (4096, 1024)), lambda a, b: [a @ b]),
    "1x4096 by (1024x4096).T": Workload(_normal((1, 4096), (1024, 4096)), lambda a, b: [a @ b.T]),
    "4x768 by (3072x768).T": Workload(_normal((4, 768), (3072, 768)), lambda a, b: [a @ b.T]),
}
_small_images = {
    "3x3 of 8 of 256x7x7": Workload(_normal((8, 256, 7, 7), (256, 256, 3, 3)), _convolution(1, 1)),
    "3x3 of 512x4x4, gradients": Workload(_normal((2, 512, 4, 4), (512, 512, 3, 3), (2, 512, 4, 4)), _gradients(1, 1)),
    "3x3 of 4 of 128x14x14, stride 2": Workload(_normal((4, 128, 14, 14), (128, 128, 3, 3)), _convolution(2, 1)),
}
_HEADS = ((2, 8, 256, 64),) * 3


def _collected(rows: int, size: int, places: int) -> Workload:
    """Rows that are added to as many random places, which come again."""
    index = torch.randint(places, (rows,), generator=torch.Generator().manual_seed(1))

    def run(x: torch.Tensor) -> Tensors:
        return [x.new_zeros(places, size).index_add(0, index.to(x.device), x)]

    return Workload(_normal((rows, size)), run)


def _line(count: int, run: Callable[[torch.Tensor], torch.Tensor]) -> Workload:
    return Workload(_normal((count,)), lambda x: [run(x)])


WORKLOADS = {
    "blocks": _dense | _convolutions,
    "small": {
        "3000x31 by 31x7": Workload(_normal((3000, 31), (31, 7)), lambda a, b: [a @ b]),
        "10000x3 by 3x3": Workload(_normal((10000, 3), (3, 3)), lambda a, b: [a @ b]),
        "64 of 10x200 by 200x16": Workload(_normal((64, 10, 200), (64, 200, 16)), lambda a, b: [a @ b]),
        "6x200 by 200x600": Workload(_normal((6, 200), (200, 600)), lambda a, b: [a @ b]),
        "2000x20 by (100x20).T": Workload(_normal((2000, 20), (100, 20)), lambda a, b: [a @ b.T]),
    },
    "tiny": {
        "10000 of 3x3x3": Workload(_normal((10000, 3, 3), (10000, 3, 3)), lambda a, b: [a @ b]),
        "1000 of 4x4 by 4x1": Workload(_normal((1000, 4, 4), (1000, 4, 1)), lambda a, b: [a @ b]),
        "100 of 8x2x4": Workload(_normal((100, 8, 2), (100, 2, 4)), lambda a, b: [a @ b]),
    },
    "few_rows": _few_rows,
    "tiles": _dense | _convolutions,
    "matrix_units": {
        "1024x1024x1024 float16": Workload(
            _normal((1024, 1024), (1024, 1024), dtype=torch.float16), lambda a, b: [a @ b], tolerance=0.01
        ),
        "3x3 of 64x56x56 float16": Workload(
            _normal((2, 64, 56, 56), (64, 64, 3, 3), dtype=torch.float16), _convolution(1, 1), tolerance=0.01
        ),
    },
    "boxes": _convolutions,
    "lanes": _convolutions,
    "im2col": _convolutions
    | {"16x16 of 3x224x224": Workload(_normal((1, 3, 224, 224), (192, 3, 16, 16)), _convolution(16, 0))},
    "small_images": _small_images,
    "packed_images": {
        f"{name} bfloat16": Workload(_as_bfloat16(each.operands), each.run, tolerance=0.02)
        for name, each in _small_images.items()
    },
    "gpu_images": _convolutions | _small_images,
    "planes": {
        "3x3 of 32x112x112": Workload(_normal((1, 32, 112, 112), (32, 1, 3, 3)), _convolution(1, 1, 32)),
        "5x5 of 120x28x28": Workload(_normal((2, 120, 28, 28), (120, 1, 5, 5)), _convolution(1, 2, 120)),
        "3x3 of 96x56x56, gradients": Workload(
            _normal((1, 96, 56, 56), (96, 1, 3, 3), (1, 96, 56, 56)), _gradients(1, 1, 96)
        ),
    },
    "attention": {
        "2x8x256x64": Workload(_normal(*_HEADS), _attention),
        "2x8x256x64, causal": Workload(_normal(*_HEADS), _causal_attention),
        "1x4x1000x32": Workload(_normal(*((1, 4, 1000, 32),) * 3), _attention),
        "2x8x256x64, gradients": Workload(_normal(*_HEADS), _attention_with_gradients),
    },
    "rows": {
        "10000 rows of 3, softmax": Workload(_normal((10000, 3)), lambda x: [x.softmax(1)]),
        "2000 rows of 40, layer norm": Workload(_normal((2000, 40)), lambda x: [F.layer_norm(x, (40,))]),
        "1000 rows of 1000, softmax": Workload(_normal((1000, 1000)), lambda x: [x.softmax(1)]),
        "16 rows of 50000, softmax": Workload(_normal((16, 50000)), lambda x: [x.softmax(1)]),
    },
    "reductions": {
        "3 rows of 1000000": Workload(_normal((3, 1_000_000)), lambda x: [x.sum(1)]),
        "1000 rows of 1000": Workload(_normal((1000, 1000)), lambda x: [x.sum(1)]),
        "1000 columns of 1000": Workload(_normal((1000, 1000)), lambda x: [x.sum(0)]),
        "20 columns of 100000": Workload(_normal((100_000, 20)), lambda x: [x.amax(0)]),
        "20000 rows of 20, variance": Workload(_normal((20_000, 20)), lambda x: [x.var(1)]),
        "64 channels of 8x56x56": Workload(_normal((8, 64, 56, 56)), lambda x: [x.sum((0, 2, 3))], tolerance=1e-3),
    },
    "sorting": {
        "2 rows of 100000": Workload(_normal((2, 100_000)), lambda x: [x.sort().values]),
        "100 rows of 5000": Workload(_normal((100, 5000)), lambda x: [x.sort().values]),
        "the first 50 of 100 rows of 5000": Workload(_normal((100, 5000)), lambda x: [x.topk(50).values]),
    },
    "places": {
        "20000 rows of 64 to 1000": _collected(20_000, 64, 1000),
        "1000000 numbers to 10": _collected(1_000_000, 1, 10),
        "500 rows of 1024 to 50000": _collected(500, 1024, 50_000),
    },
    "transforms": {
        "64 of 4096": Workload(_normal((64, 4096)), lambda x: [torch.view_as_real(torch.fft.rfft(x))]),
        "1 of 1000000": Workload(_normal((1, 1_000_000)), lambda x: [torch.view_as_real(torch.fft.rfft(x))]),
        "16 of 256x256": Workload(_normal((16, 256, 256)), lambda x: [torch.view_as_real(torch.fft.rfft2(x))]),
        "100 of 1009": Workload(_normal((100, 1009)), lambda x: [torch.view_as_real(torch.fft.rfft(x))]),
    },
    "partition": {
        "20,000 added": _line(20_000, lambda x: x + 1),
        "60,000 added": _line(60_000, lambda x: x + 1),
        "1,000,000 added": _line(1_000_000, lambda x: x + 1),
        "5,000,000 multiplied": _line(5_000_000, lambda x: x * x),
        "30,000 sines": _line(30_000, torch.sin),
        "500,000 exponentials": _line(500_000, torch.exp),
    },
    "operators": {
        f"{n}x{n}x{n}": Workload(_normal((n, n), (n, n)), lambda a, b: [a @ b]) for n in (32, 64, 128, 256, 512, 1024)
    },
}
"""By part of a `codegen.tuning.Tuning`."""
