"""What is asked of transforms along one axis, and what their ways need to know of it, found once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from torchgraft.codegen.tuning import Transforms
from torchgraft.kernels.fft.lines import Kind, lanes
from torchgraft.ops.fft import radices, twiddles
from torchgraft.plans import PlanBuilder, Unsupported, pointwise

_LONGEST = 2**30

NAMES = {torch.float32: "f32", torch.float64: "f64"}


@dataclass(frozen=True)
class Side:
    """Where lines come from, or where they go.

    Attributes:
        spec: what holds them.
        kind: "complex", "real", "hermitian" for what is read and only half there, or "pairs" for real numbers of which
            two are one.
        stride: of the axis, in elements.
        apart: strides of the batch.
        length: elements of the axis that are there.
        factors: what each element of the axis is multiplied by.
        first, step: element j of line u of one axis is element u * first + j * step of it.
    """

    spec: torch.Tensor
    kind: Kind
    stride: int
    apart: tuple[int, ...]
    length: int
    factors: torch.Tensor | None = None
    first: int = 0
    step: int = 1

    def arguments(self, name: str) -> dict[str, Any]:
        """Of a kernel that calls it so."""
        spec = torch.view_as_real(self.spec) if self.spec.is_complex() else self.spec
        numbers = {"first": self.first, "step": self.step, "length": self.length, "stride": self.stride}
        numbers.update((f"apart{d}", stride) for d, stride in enumerate(self.apart))
        return {name: spec, **{f"{name}_{of}": number for of, number in numbers.items()}}


@dataclass(frozen=True)
class Transform:
    """The transforms of a batch of lines along one axis.

    Attributes:
        type_: of real parts.
        dim: the axis, and `batch` the sizes of the other dimensions.
        n: length of the transform.
        full: length of a Hermitian axis.
        backward: with exp(+2 pi i j k / n).
        parts: lines that each axis has: several in the two steps of a longer one.
        spectrum: what the lines are convolved with, which is this one's transform.
        is_merged: whether the batch has as few dimensions as may be.
    """

    p: PlanBuilder
    type_: torch.dtype
    dim: int
    batch: tuple[int, ...]
    n: int
    full: int
    backward: bool
    scale: float
    source: Side
    target: Side
    parts: int = 1
    spectrum: torch.Tensor | None = None
    is_merged: bool = False

    def __post_init__(self) -> None:
        if self.n >= _LONGEST:
            raise Unsupported(f"a transform of length {self.n}")

    def __str__(self) -> str:
        source, target = self.source, self.target
        return (
            f"{self.count} times {self.n} of {self.name}, {source.kind} to {target.kind}, "
            f"strides {source.stride * source.step} and {target.stride * target.step}"
        )

    @property
    def is_cpu(self) -> bool:
        return self.p.form == "cpu"

    @property
    def sizes(self) -> Transforms:
        return self.p.device.tuning.transforms

    @property
    def name(self) -> str:
        return NAMES[self.type_]

    @property
    def count(self) -> int:
        """Of lines."""
        return math.prod(self.batch) * self.parts

    @property
    def is_few(self) -> bool:
        """Whether there are fewer lines than half of a CPU's lanes, of which each can fill them."""
        return self.is_cpu and 2 * math.prod(self.batch) < lanes(self.name, "cpu") and self.n >= self.sizes.two_steps

    @property
    def length(self) -> int:
        """Of what is transformed."""
        return self.n // 2 if "pairs" in (self.source.kind, self.target.kind) else self.n

    @cached_property
    def in_pairs(self) -> Transform:
        """The same with two real numbers as one, where that can be: all of a line is read or written as it is."""
        source, target = self.source, self.target
        if self.is_cpu and self.parts == 1 and self.n == self.full and self.n % 2 == 0 and source.factors is None:
            if source.kind == "real":
                return replace(self, source=replace(source, kind="pairs", length=source.length // 2))
            if source.kind == "hermitian" and target.kind == "real" and target.factors is None:
                return replace(self, target=replace(target, kind="pairs", length=target.length // 2))
        return self

    def with_batch(self, sizes: Sequence[int], source: Sequence[int], target: Sequence[int]) -> Transform:
        """The same with these dimensions of the batch, and their strides."""
        sides = [replace(side, apart=tuple(apart)) for side, apart in ((self.source, source), (self.target, target))]
        return replace(self, batch=tuple(sizes), source=sides[0], target=sides[1], is_merged=True)

    @cached_property
    def merged(self) -> Transform:
        """The same with a batch of as few dimensions as may be."""
        if self.is_merged:
            return self
        strides = [list(self.source.apart), list(self.target.apart)]
        sizes, strides = pointwise.coalesce(list(self.batch), strides)
        return self.with_batch(sizes, *strides)

    # ---- Vectors along lines; None where there can be none, or others cost less. ----

    @property
    def _is_plain(self) -> bool:
        """Whether lines are whole, and complex numbers or pairs that become such, and nothing multiplies them."""
        source, target, plain = self.source, self.target, self.is_cpu and self.parts == 1
        plain = plain and source.factors is target.factors is self.spectrum is None
        plain = plain and source.kind in ("complex", "pairs") and target.kind == "complex"
        return plain and (source.length, target.length) == (self.length, self.length + (source.kind == "pairs"))

    @property
    def _are_adjacent(self) -> bool:
        return self.source.stride == self.target.stride == 1

    @cached_property
    def rows(self) -> radices.RowStages | None:
        served = self._is_plain and self._are_adjacent
        return radices.along_rows(self.length, self.type_, self.p.device.simd_width) if served else None

    @cached_property
    def columns(self) -> radices.RowStages | None:
        if not self._is_plain or self._are_adjacent or self.source.kind != "complex":
            return None
        *_, beside = self.merged.batch
        strides = self.merged.source.apart[-1], self.merged.target.apart[-1]
        return radices.along_columns(
            self.length, self.type_, self.p.device.simd_width, beside if strides == (1, 1) else 0
        )

    # ---- Bluestein's algorithm: the lines are convolved with a chirp, and multiplied by it before and after. ----

    @cached_property
    def chirp_length(self) -> int:
        """Of the convolution."""
        return radices.convolution_length(self.n, self.p.form)

    @property
    def chirp_spectrum(self) -> torch.Tensor:
        return self.table(twiddles.chirp_spectrum, self.n, self.chirp_length, self.backward)

    @property
    def chirped(self) -> Transform:
        """The same with its factors."""
        chirp = self.table(twiddles.chirp, self.n, self.backward)
        return replace(self, source=replace(self.source, factors=chirp), target=replace(self.target, factors=chirp))

    # ---- Memory. ----

    def table(self, maker: Callable[..., torch.Tensor], *args: int) -> torch.Tensor:
        return twiddles.table(self.p, self.type_, maker, *args)

    def temporary(self, length: int) -> Side:
        """For all lines of some length."""
        spec = self.p.empty((*self.batch, length, 2), self.type_)
        return Side(spec, "complex", 1, tuple(s // 2 for s in spec.stride()[:-2]), length)
