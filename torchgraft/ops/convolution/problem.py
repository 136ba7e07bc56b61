"""What is asked of a convolution, and what its ways need to know of it, found once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from torchgraft.codegen import element_type
from torchgraft.codegen.kernel import Launch
from torchgraft.codegen.tuning import Target
from torchgraft.codegen.types import BY_NAME
from torchgraft.kernels.convolution import boxes, boxes_bfloat16, channel_lanes, channel_lanes_bfloat16, depthwise
from torchgraft.kernels.convolution.channel_lanes import Lanes
from torchgraft.kernels.convolution.direct import Operands, WeightOperands, part_images_of_weight
from torchgraft.kernels.convolution.geometry import Direction, Geometry, channels_of, sizes_of
from torchgraft.ops.matmul import temporaries
from torchgraft.plans import PlanBuilder, Unsupported


@dataclass(frozen=True)
class _Convolution:
    p: PlanBuilder
    g: Geometry
    out: torch.Tensor

    def __post_init__(self) -> None:
        _ = self.storage  # raises where there are none of its type, whatever way it would go

    @property
    def is_cpu(self) -> bool:
        return self.p.form == "cpu"

    @property
    def on(self) -> Target:
        return self.p.target

    @property
    def temporary(self) -> Callable[[int, str], torch.Tensor]:
        return temporaries(self.p)

    @cached_property
    def storage(self) -> str:
        return storage_of(self.out)

    @property
    def by_pairs(self) -> bool:
        """Whether there are instructions for pairs of its numbers."""
        return self.is_cpu and self.storage == "bf16" and self.on.bfloat16 is not None

    def launch(self, *launches: Launch) -> None:
        for each in launches:
            self.p.launch(each.kernel, each.groups, **each.arguments)


@dataclass(frozen=True)
class Images(_Convolution):
    """Images made of images. Forward: `out` is the result, `source` the image. Backward: `out` is the image (its
    gradient, or what a transposed convolution gives), `source` the result (its gradient).
    """

    direction: Direction
    source: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor | None = None

    def __str__(self) -> str:
        return f"{self.direction} {_described(self.g)} of {self.storage}"

    @property
    def is_forward(self) -> bool:
        return self.direction == "forward"

    @property
    def _pointers(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
        return self.out, self.source, self.weight, self.bias

    @property
    def operands(self) -> Operands:
        return Operands(*self._pointers)

    @cached_property
    def addend(self) -> torch.Tensor | None:
        """The bias as what is added to a product."""
        return None if self.bias is None else self.bias.view(-1, 1)

    @property
    def pixels(self) -> int:
        """Of the target."""
        return math.prod(sizes_of(self.g, self.direction)[0])

    @property
    def filters(self) -> int:
        return channels_of(self.g, self.direction)[0]

    # What families of kernels make of it; None where they cannot do it, or others are quicker.

    @cached_property
    def planes(self) -> Launch | None:
        return depthwise.plane_launch(self.storage, self.g, self.direction, *self._pointers, self.on)

    @cached_property
    def lanes(self) -> Lanes | None:
        return channel_lanes.choose_lanes(self.storage, self.g, self.direction, self.on)

    @cached_property
    def pair_lanes(self) -> Lanes | None:
        return channel_lanes_bfloat16.choose_lanes(self.g, self.direction, self.on)

    @cached_property
    def boxes(self) -> Launch | None:
        return boxes.box_launch(self.storage, self.g, self.direction, *self._pointers, self.on)

    @cached_property
    def pair_boxes(self) -> Launch | None:
        """With the weight as it is; the kernel wants `pair_filters`."""
        return boxes_bfloat16.box_launch(self.g, self.direction, *self._pointers, self.on)

    def pair_filters(self) -> torch.Tensor:
        """The weight as [channels of the target, taps, channels of the source]."""
        order = (0, 2, 1) if self.is_forward else (1, 2, 0)
        return self.p.contiguous(self.weight.flatten(2).permute(order))


@dataclass(frozen=True)
class WeightGradient(_Convolution):
    """The weight's gradient, from the image and the result's gradient."""

    image: torch.Tensor
    result: torch.Tensor

    def __str__(self) -> str:
        return f"weight of {_described(self.g)} of {self.storage}"

    @property
    def operands(self) -> WeightOperands:
        return WeightOperands(self.out, self.image, self.result, self.temporary)

    @cached_property
    def has_planes(self) -> bool:
        """Whether it is depthwise."""
        parts = part_images_of_weight(self.g, self.on)
        storage = self.storage
        return depthwise.plane_weight_launch(storage, storage, self.g, None, None, None, parts, self.on) is not None

    @cached_property
    def boxes(self) -> boxes.WeightBoxes | None:
        return boxes.weight_boxes(self.storage, self.g, self.on)


def storage_of(spec: torch.Tensor) -> str:
    """The element type.

    Raises:
        Unsupported: there are no convolutions of it.
    """
    name = element_type(spec.dtype).name
    if name == "b8" or element_type(spec.dtype).is_complex:
        raise Unsupported(f"a convolution of {spec.dtype}")
    return name


def patches_bytes(g: Geometry, storage: str) -> int:
    """Of the patches of all images, in memory."""
    return BY_NAME[storage].size * g.image_channels * math.prod(g.taps) * g.batch * math.prod(g.result)


def _described(g: Geometry) -> str:
    def sizes(x: Sequence[int]) -> str:
        return "x".join(map(str, x))

    groups = f" in {g.groups} groups" if g.groups > 1 else ""
    return (
        f"{g.batch} times {g.image_channels} of {sizes(g.image)} and {g.result_channels} of {sizes(g.result)}, "
        f"filters of {sizes(g.taps)} by {sizes(g.stride)}{groups}"
    )
