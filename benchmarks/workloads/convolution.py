"""Convolutions of one to three dimensions, transposed ones, and their gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from harness.case import Case, computing, on, with_gradients

FORWARD: dict[int, Callable[..., torch.Tensor]] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
TRANSPOSED: dict[int, Callable[..., torch.Tensor]] = {
    1: F.conv_transpose1d,
    2: F.conv_transpose2d,
    3: F.conv_transpose3d,
}


@dataclass(frozen=True)
class Convolution:
    """The image and the kernel have as many dimensions as `size`; both are padded so that borders are covered."""

    batch: int
    inputs: int
    size: tuple[int, ...]
    outputs: int
    kernel: int
    stride: int = 1
    groups: int = 1
    dilation: int = 1
    transposed: bool = False
    padding: int | None = None
    dtype: torch.dtype = torch.float32

    def __call__(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        padding = self.dilation * (self.kernel // 2) if self.padding is None else self.padding
        options: dict[str, Any] = {"stride": self.stride, "padding": padding, "groups": self.groups}
        function = (TRANSPOSED if self.transposed else FORWARD)[len(self.size)]
        return function(x, w, dilation=self.dilation, **options)

    def case(self, name: str, gradients: bool = False) -> Case:
        kernel = (self.kernel,) * len(self.size)
        pair = (self.inputs, self.outputs) if self.transposed else (self.outputs, self.inputs)
        x, w = (self.batch, self.inputs, *self.size), (pair[0], pair[1] // self.groups, *kernel)
        y = self(torch.empty(x, device="meta"), torch.empty(w, device="meta")).shape
        # Each element of the weight meets each pixel of the smaller grid: the result's, or transposed the input's.
        pixels = math.prod(self.size) if self.transposed else math.prod(y[2:])
        flops = 2 * self.batch * math.prod(w) * pixels
        nbytes = self.dtype.itemsize * (math.prod(x) + math.prod(w) + y.numel())
        if gradients:
            return computing(f"convolution/{name} with gradients", with_gradients(self, x, w), 3 * flops, 2 * nbytes)
        return computing(f"convolution/{name}", on(self, x, w, dtype=self.dtype), flops, nbytes, self.dtype)


def tuned() -> Iterator[Case]:
    for name, convolution in {
        "3x3 64 56x56 n16": Convolution(16, 64, (56, 56), 64, 3),
        "1x1 64-256 56x56 n16": Convolution(16, 64, (56, 56), 256, 1),
        "7x7 stride 2 3-64 224x224 n8": Convolution(8, 3, (224, 224), 64, 7, 2),
        "depthwise 3x3 128 56x56 n16": Convolution(16, 128, (56, 56), 128, 3, groups=128),
    }.items():
        yield convolution.case(name)
        yield convolution.case(name, gradients=True)


def others() -> Iterator[Case]:
    half = torch.bfloat16
    for name, convolution in {
        "3x3 24-40 31x31 n7": Convolution(7, 24, (31, 31), 40, 3),
        "3x3 stride 2 3-32 224x224 n1": Convolution(1, 3, (224, 224), 32, 3, 2),
        "1x1 37-53 19x19 n4": Convolution(4, 37, (19, 19), 53, 1),
        "grouped 3x3 64 by 4 28x28 n8": Convolution(8, 64, (28, 28), 64, 3, groups=4),
        "depthwise 5x5 96 14x14 n8": Convolution(8, 96, (14, 14), 96, 5, groups=96),
        "depthwise 3x3 stride 2 64 28x28 n8": Convolution(8, 64, (28, 28), 64, 3, 2, groups=64),
        "1-d 3 64-128 1000 n8": Convolution(8, 64, (1000,), 128, 3),
        "3-d 3 8-16 16x16x16 n2": Convolution(2, 8, (16, 16, 16), 16, 3),
        "transposed 4x4 stride 2 64-32 16x16 n8": Convolution(8, 64, (16, 16), 32, 4, 2, transposed=True, padding=1),
        "transposed 2x2 stride 2 64-32 32x32 n4": Convolution(4, 64, (32, 32), 32, 2, 2, transposed=True, padding=0),
        "3x3 256 7x7 n4": Convolution(4, 256, (7, 7), 256, 3),
        "3x3 stride 2 128-256 15x15 n5": Convolution(5, 128, (15, 15), 256, 3, 2),
        "4x4 stride 4 3-96 112x112 n4": Convolution(4, 3, (112, 112), 96, 4, 4, padding=0),
    }.items():
        yield convolution.case(name)
        yield convolution.case(name, gradients=True)
    for name, convolution in {
        "depthwise 7x7 192 14x14 n8": Convolution(8, 192, (14, 14), 192, 7, groups=192),
        "3x3 128 28x28 n4": Convolution(4, 128, (28, 28), 128, 3),
        "3x3 512 7x7 n1": Convolution(1, 512, (7, 7), 512, 3),
        "3x3 1-10 28x28 n64": Convolution(64, 1, (28, 28), 10, 3),
        "5x5 16-32 28x28 n32": Convolution(32, 16, (28, 28), 32, 5),
        "3x3 dilated 32 64x64 n4": Convolution(4, 32, (64, 64), 32, 3, dilation=2),
        "1x1 stride 2 128-256 28x28 n8": Convolution(8, 128, (28, 28), 256, 1, 2),
        "16x16 stride 16 3-768 224x224 n1": Convolution(1, 3, (224, 224), 768, 16, 16, padding=0),
        "1-d 25 1-16 16000 n4": Convolution(4, 1, (16000,), 16, 25),
        "3x3 24-40 31x31 n7 float64": Convolution(7, 24, (31, 31), 40, 3, dtype=torch.float64),
        "3x3 24-40 31x31 n7 bfloat16": Convolution(7, 24, (31, 31), 40, 3, dtype=half),
        "3x3 128 28x28 n4 bfloat16": Convolution(4, 128, (28, 28), 128, 3, dtype=half),
        "3x3 256 7x7 n4 bfloat16": Convolution(4, 256, (7, 7), 256, 3, dtype=half),
    }.items():
        yield convolution.case(name)
