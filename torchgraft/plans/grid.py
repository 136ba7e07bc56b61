"""How work is dealt out: the groups of a launch, and the values of the parameters that loops add to kernels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torchgraft import _C
from torchgraft.codegen.kernel import ceil_div
from torchgraft.codegen.lanes import FEW_LANES
from torchgraft.codegen.loops import FEW, GROUP, WIDTH, Layout
from torchgraft.codegen.tuning import Target
from torchgraft.codegen.vectors import vector_lanes

MULTIPLE = 256
# Contiguous rows up to this length are treated side by side, as columns, if there are some of them: by GPUs, whose
# groups have that many members or more. CPUs do so with rows that are less than a vector, since what lies apart is
# loaded one by one, or by instructions that take some processors longer still.
SHORT_ROW = 64
SOME_ROWS = 16
# So many short rows are worth a kernel of their own for the number of their elements.
MANY_ROWS = 1024
# Float32 elements of registers with masks, and rows whose rest counts.
_MASKED, _SHORT = 16, 1024
# Vectors of a row up to which one sum after the other takes no longer than it takes to add sums to each other.
_FEW_VECTORS = 4
# Rows of so many elements keep a large group of a GPU busy.
LONG_ROW = 4096


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
class Dealer:
    """Deals out work to what kernels are made for."""

    target: Target

    @property
    def serial(self) -> Dealer:
        """For loops of the CPU form, in which a work-item takes a chunk, on whatever device."""
        return Dealer(replace(self.target, form="cpu"))

    @property
    def layout(self) -> Layout:
        """Of contiguous rows."""
        return Layout(self.target.form, simd_width=vector_lanes(self.target.simd_width))

    def chunking(self, cost: int = 1, multiple: int = MULTIPLE, group: int = GROUP) -> _C.Chunking:
        """How a walk's elements are dealt out."""
        tuning = self.target.tuning.dealing
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
        groups, chunk = self.chunking(cost, multiple, group).deal(n)
        values = {"n": n, "chunk": chunk}
        if not isinstance(sizes, int):
            values.update((f"n{d}", size) for d, size in enumerate(sizes))
        return Grid((groups,), values)

    def share(self, n: int, groups: int) -> Grid:
        """For a `Walk` over n elements that no more than so many groups share: of which each has memory of its own,
        say."""
        chunk = max(1, ceil_div(n, groups))
        return Grid((ceil_div(n, chunk),), {"n": n, "chunk": chunk})

    def rows(self, outer: int, size: int, inner: int = 1, cost: int = 1) -> tuple[Layout, Grid]:
        """For a `Team` that works along the middle of a contiguous (outer, size, inner): how its rows lie, and its
        groups."""
        if inner == 1 and self.is_flat(outer, size):
            return self.along_rows(outer, size, cost)
        short = SHORT_ROW if self.target.form == "gpu" else vector_lanes(self.target.simd_width) - 1
        if inner == 1 and not (size <= short and outer >= SOME_ROWS):
            layout = replace(self.row_layout(size, cost), group=self._members(outer, size))
            return layout, self.long_rows(outer, size, cost)
        unit = inner != 1
        # Neighbours of short rows are `size` apart.
        outer, outer_stride, stride, inner, inner_stride = (
            (outer, size * inner, inner, inner, 1) if unit else (1, 0, 1, outer, size)
        )
        grid = self.columns(outer, inner, size * cost)
        values = {"outer_stride": outer_stride, "size": size, "stride": stride, "inner_stride": inner_stride}
        return replace(self.layout, across=True, unit=unit), Grid(grid.groups, {**grid.values, **values})

    def row_layout(self, size: int, cost: int = 1) -> Layout:
        """Of contiguous rows of so many elements, which are not written out."""
        if not self.target.outer_vectors:
            return self.layout
        masked = self.ends_within_a_vector(size) and size % _MASKED * cost > FEW_LANES
        few = size <= _FEW_VECTORS * vector_lanes(self.target.simd_width)
        return replace(self.layout, masked=masked, registers=1 if few else self.layout.registers)

    def ends_within_a_vector(self, size: int) -> bool:
        """Whether the rest of a row behind its last whole vector is most of a CPU's work: one element after the other,
        it takes as long as ten vectors. Masks are for the widest registers alone, whose instructions take them for
        nothing."""
        target = self.target
        return target.form == "cpu" and target.simd_width == _MASKED and 1 < size < _SHORT and size % _MASKED != 0

    def is_flat(self, rows: int, size: int) -> bool:
        """Whether contiguous rows are `Layout.flat`."""
        target, lanes = self.target, vector_lanes(self.target.simd_width)
        return target.form == "cpu" and target.outer_vectors and 0 < size < lanes and rows >= MANY_ROWS

    def along_rows(self, rows: int, size: int, cost: int = 1) -> tuple[Layout, Grid]:
        """For a `Team` that works along contiguous rows, whatever their length."""
        layout = replace(self.layout, flat=size) if self.is_flat(rows, size) else self.row_layout(size, cost)
        return layout, self.long_rows(rows, size, cost)

    def _members(self, rows: int, size: int) -> int:
        """Of the group that shares a row on a GPU: larger ones where few long rows would leave units idle."""
        large = rows < 2 * self.target.units and size >= LONG_ROW and self.target.work_group >= 4 * GROUP
        return 4 * GROUP if large else GROUP

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
        few = columns * cost <= self.target.tuning.dealing.single
        even = columns if few else ceil_div(columns, self.target.tuning.dealing.groups_per_unit * self.target.units)
        span = max(1, min(inner, width, max(16, ceil_div(even, 16) * 16)))
        groups, chunk = self.chunking(max(1, cost * span), multiple=1).deal(outer * ceil_div(inner, span))
        return Grid((groups,), {**values, "span": span, "chunk": chunk})

    def long_rows(self, rows: int, size: int, cost: int = 1) -> Grid:
        """For a `Team` on contiguous rows."""
        groups, chunk = rows, 1
        if self.target.form == "cpu":
            groups, chunk = self.chunking(max(1, size * cost), multiple=1).deal(rows)
        return Grid((groups,), {"rows": rows, "size": size, "chunk": chunk})


def numbered(name: str, values: Sequence[Any], count: int, rest: Any) -> dict[str, Any]:
    """`count` arguments `<name>_0`..., where `rest` stands for those that there are not."""
    return {f"{name}_{t}": values[t] if t < len(values) else rest for t in range(count)}
