"""How work is partitioned: the groups of a launch, and the values of the parameters that loops add to kernels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torchgraft._core import _C
from torchgraft.codegen.kernel import ceil_div
from torchgraft.codegen.teams import WIDTH, Layout
from torchgraft.codegen.tuning import Target
from torchgraft.codegen.vectors import vector_lanes
from torchgraft.codegen.walk import FEW, GROUP

MULTIPLE = 256
# Float32 elements of registers with masks, and rows whose rest counts.
MASKED, _SHORT = 16, 1024


@dataclass(frozen=True)
class Grid:
    """The groups of a launch.

    Attributes:
        groups: their number in each dimension.
        values: of the parameters that the kernel's loop has added, by name.
        chunking: of plans for any number of elements, whose groups are found when the plan is run.
    """

    groups: tuple[int, ...]
    values: Mapping[str, Any] = field(default_factory=dict)
    chunking: _C.Chunking | None = None

    def by(self, *groups: int) -> Grid:
        """With more dimensions."""
        return Grid((*self.groups, *groups), self.values, self.chunking)


@dataclass(frozen=True)
class Partitioner:
    """Partitions work for what kernels are made for."""

    target: Target

    @property
    def serial(self) -> Partitioner:
        """For loops of the CPU form, in which a work-item takes a chunk, on whatever device."""
        return Partitioner(replace(self.target, form="cpu"))

    @property
    def layout(self) -> Layout:
        """Of contiguous rows."""
        return Layout(self.target.form, simd_width=vector_lanes(self.target.simd_width))

    def chunking(self, cost: int = 1, multiple: int = MULTIPLE, group: int = GROUP) -> _C.Chunking:
        """How a walk's elements are partitioned."""
        tuning = self.target.tuning.partition
        if self.target.form == "gpu":
            return _C.Chunking(group, 0, group * (tuning.gpu_elements if multiple > 1 else 1), 0)
        most = tuning.groups_per_unit * self.target.units
        return _C.Chunking(multiple, tuning.single // cost, max(multiple, tuning.chunk // cost), most)

    def walk(self, sizes: int | Sequence[int], cost: int = 1, multiple: int = MULTIPLE, group: int = GROUP) -> Grid:
        """For a `Walk` over so many elements, or over a space of these sizes.

        Args:
            sizes: of the walk.
            cost: of an element relative to an addition.
            multiple: a CPU's chunks are multiples of this: 1 where an element is a row, say, and a loop by itself.
            group: as of the walk.
        """
        dims = [sizes] if isinstance(sizes, int) else sizes
        n = math.prod(dims)
        groups, chunk = self.chunking(cost, multiple, group).divide(n)
        values = {"n": n, "chunk": chunk}
        if not isinstance(sizes, int):
            values.update((f"n{d}", size) for d, size in enumerate(sizes))
        return Grid((groups,), values)

    def share(self, n: int, groups: int) -> Grid:
        """For a `Walk` over n elements that no more than so many groups share: of which each has memory of its own,
        say."""
        chunk = max(1, ceil_div(n, groups))
        return Grid((ceil_div(n, chunk),), {"n": n, "chunk": chunk})

    def ends_within_a_vector(self, size: int) -> bool:
        """Whether the rest of a row behind its last whole vector is most of a CPU's work: one element after the other,
        it takes as long as ten vectors. Masks are for the widest registers alone, whose instructions take them for
        nothing."""
        target = self.target
        return target.form == "cpu" and target.simd_width == MASKED and 1 < size < _SHORT and size % MASKED != 0

    def columns(self, outer: int, inner: int, cost: int = 1, width: int = WIDTH) -> Grid:
        """For a `Team` on rows across memory, `inner` of them side by side.

        Args:
            outer, inner: numbers of rows; those of one `outer` may be treated at once.
            cost: of a row relative to an addition.
            width: how many rows a CPU treats at once, at most: fewer than `WIDTH` where each has many values.
        """
        values = {"outer": outer, "inner": inner, "outer_stride": 0, "size": 0, "stride": 0, "inner_stride": 0}
        columns = outer * inner
        if self.target.form == "gpu":
            return Grid((ceil_div(columns, FEW),), {**values, "span": 1, "chunk": 1})
        few = columns * cost <= self.target.tuning.partition.single
        even = columns if few else ceil_div(columns, self.target.tuning.partition.groups_per_unit * self.target.units)
        span = max(1, min(inner, width, max(16, ceil_div(even, 16) * 16)))
        groups, chunk = self.chunking(max(1, cost * span), multiple=1).divide(outer * ceil_div(inner, span))
        return Grid((groups,), {**values, "span": span, "chunk": chunk})

    def long_rows(self, rows: int, size: int, cost: int = 1) -> Grid:
        """For a `Team` on contiguous rows."""
        groups, chunk = rows, 1
        if self.target.form == "cpu":
            groups, chunk = self.chunking(max(1, size * cost), multiple=1).divide(rows)
        return Grid((groups,), {"rows": rows, "size": size, "chunk": chunk})


def numbered(name: str, values: Sequence[Any], count: int, rest: Any) -> dict[str, Any]:
    """`count` arguments `<name>_0`..., where `rest` stands for those that there are not."""
    return {f"{name}_{t}": values[t] if t < len(values) else rest for t in range(count)}
