"""The sizes of a convolution, which its kernels, of blocks and of planes, share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Triple = tuple[int, int, int]
Direction = Literal["forward", "backward"]


@dataclass(frozen=True)
class Geometry:
    """A convolution's sizes. `image` is what a forward convolution reads, `result` what it gives."""

    batch: int
    groups: int
    image_channels: int
    result_channels: int
    image: Triple
    result: Triple
    taps: Triple
    stride: Triple
    padding: Triple
    dilation: Triple
