"""How a team goes along rows: the layout and the grid of its kernel, by one table of ways."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torchgraft.codegen.lanes import FEW_LANES
from torchgraft.codegen.teams import Layout
from torchgraft.codegen.tuning import Rows as Sizes
from torchgraft.codegen.vectors import vector_lanes
from torchgraft.codegen.walk import GROUP
from torchgraft.kernels.choice import Way, choose
from torchgraft.plans.grid import MASKED, Grid, Partitioner


@dataclass(frozen=True)
class Rows:
    """The middle of a contiguous (outer, size, inner).

    Attributes:
        by: who partitions them.
        cost: of an element relative to an addition.
    """

    by: Partitioner
    outer: int
    size: int
    inner: int = 1
    cost: int = 1

    def __str__(self) -> str:
        return f"{self.outer} rows of {self.size}" + (f", {self.inner} side by side" if self.inner != 1 else "")

    @property
    def is_cpu(self) -> bool:
        return self.by.target.form == "cpu"

    @property
    def sizes(self) -> Sizes:
        return self.by.target.tuning.rows

    @property
    def lanes(self) -> int:
        return vector_lanes(self.by.target.simd_width)


def _why_not_contiguous(r: Rows) -> str:
    return "contiguous rows" if r.inner != 1 else ""


def _why_no_vectors_of_loops(r: Rows) -> str:
    """Other compilers make vectors of what they are told are some, and of no such loop."""
    able = r.is_cpu and r.by.target.outer_vectors
    return _why_not_contiguous(r) or ("" if able else "CPUs whose compiler makes vectors of outer loops")


def why_not_unrolled(r: Rows) -> str:
    few = not (0 < r.size < r.lanes and r.outer >= r.sizes.many)
    return _why_no_vectors_of_loops(r) or (f"{r.sizes.many} or more rows that are shorter than a vector" if few else "")


def unrolled(r: Rows) -> tuple[Layout, Grid]:
    """A kernel for each length."""
    return replace(r.by.layout, unrolled=r.size), r.by.long_rows(r.outer, r.size, r.cost)


def _why_no_columns(r: Rows) -> str:
    """CPUs have columns of rows that are less than a vector, since what lies apart is loaded one by one, or by
    instructions that take some processors longer still."""
    short = r.lanes - 1 if r.is_cpu else r.sizes.gpu_short
    if r.inner != 1 or (r.size <= short and r.outer >= r.sizes.some):
        return ""
    return f"rows across memory, or {r.sizes.some} of at most {short} elements"


def _columns(r: Rows) -> tuple[Layout, Grid]:
    unit = r.inner != 1
    # Neighbours of short rows are `size` apart.
    outer, outer_stride, stride, inner, inner_stride = (
        (r.outer, r.size * r.inner, r.inner, r.inner, 1) if unit else (1, 0, 1, r.outer, r.size)
    )
    grid = r.by.columns(outer, inner, r.size * r.cost)
    values = {"outer_stride": outer_stride, "size": r.size, "stride": stride, "inner_stride": inner_stride}
    return replace(r.by.layout, across=True, unit=unit), Grid(grid.groups, {**grid.values, **values})


def why_no_few_vectors(r: Rows) -> str:
    most = r.sizes.vectors * r.lanes
    return _why_no_vectors_of_loops(r) or (f"rows of at most {most} elements" if r.size > most else "")


def few_vectors(r: Rows) -> tuple[Layout, Grid]:
    layout, grid = _along(r)
    return replace(layout, registers=1), grid


def _why_no_large_groups(r: Rows) -> str:
    target = r.by.target
    if r.is_cpu or target.work_group < 4 * GROUP:
        return f"GPUs with groups of {4 * GROUP}"
    long = r.sizes.gpu_long
    few, most = r.size >= long and r.outer < 2 * target.units, 2 * target.units - 1
    return _why_not_contiguous(r) or ("" if few else f"at most {most} rows of {long} elements or more")


def _large_groups(r: Rows) -> tuple[Layout, Grid]:
    """Where few long rows would leave units idle."""
    layout, grid = _along(r)
    return replace(layout, group=4 * GROUP), grid


def _along(r: Rows) -> tuple[Layout, Grid]:
    masked = r.by.target.outer_vectors and r.by.ends_within_a_vector(r.size) and r.size % MASKED * r.cost > FEW_LANES
    return replace(r.by.layout, masked=masked), r.by.long_rows(r.outer, r.size, r.cost)


_UNROLLED = Way("unrolled", why_not_unrolled, unrolled)
_FEW = Way("few-vectors", why_no_few_vectors, few_vectors)
_ROWS = Way("rows", _why_not_contiguous, _along)

#: Of kernels that find an element by the team's own `at`.
ROWS = (
    _UNROLLED,
    Way("columns", _why_no_columns, _columns),
    _FEW,
    Way("large-groups", _why_no_large_groups, _large_groups),
    _ROWS,
)
#: Of those that are for contiguous rows: they use a row's number, or what all rows share.
CONTIGUOUS = (_UNROLLED, _FEW, _ROWS)
#: And of those that have something for each element of a row in a loop that is not unrolled.
NOT_UNROLLED = (_FEW, _ROWS)


def choose_rows(rows: Rows, ways: tuple[Way[Rows, tuple[Layout, Grid]], ...] = ROWS) -> tuple[Layout, Grid]:
    return choose("rows", ways, rows)
