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


AXES = ("z", "y", "x")

# A kernel's parameters: extents of the source and the target image, of the filter, and the convolution's own.
GEOMETRY = "i32 " + ", ".join(
    f"{name}_{axis}" for name in ("source", "target", "taps", "stride", "padding", "dilation") for axis in AXES
)


def geometry_arguments(g: Geometry, source: Triple, target: Triple) -> dict[str, object]:
    """The arguments for `GEOMETRY`."""
    triples = {"source": source, "target": target, "taps": g.taps}
    triples |= {"stride": g.stride, "padding": g.padding, "dilation": g.dilation}
    return {f"{name}_{a}": size for name, triple in triples.items() for a, size in zip(AXES, triple, strict=True)}


def channels_of(g: Geometry, direction: Direction) -> tuple[int, int]:
    """Of the target and of the source, in a group."""
    m, channels = g.result_channels // g.groups, g.image_channels // g.groups
    return (m, channels) if direction == "forward" else (channels, m)


def sizes_of(g: Geometry, direction: Direction) -> tuple[Triple, Triple]:
    """Of the target and of the source."""
    return (g.result, g.image) if direction == "forward" else (g.image, g.result)
