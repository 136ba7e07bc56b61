"""Moves of elements from or to where index tensors say: what the planners of indexing share."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from torchgraft.codegen import ceil_div, element_type
from torchgraft.codegen.places import is_addable
from torchgraft.codegen.tuning import Places
from torchgraft.codegen.types import BY_NAME, MOVES
from torchgraft.codegen.walk import FEW
from torchgraft.kernels import indexing as kernels
from torchgraft.kernels.choice import Way, choose
from torchgraft.kernels.indexing import Indexing
from torchgraft.plans import PlanBuilder, Scalar, Unsupported, pointwise

aten = torch.ops.aten


@dataclass(frozen=True)
class Index:
    """An index tensor: `spec` with its strides over the walk's space, for places 0 <= index < `limit`, `step` elements
    apart.

    `row` is its stride along the rows of `plan_collect`; `raises` is what torch's CPU raises for an index out of range.
    """

    spec: torch.Tensor
    strides: Sequence[int]
    limit: int
    step: int
    message: str
    row: int = 0
    raises: type[IndexError] | type[RuntimeError] = IndexError


def _check_not_empty(indices: Sequence[Index], count: int) -> None:
    """With no place at all every index is wrong, and a kernel would have nowhere safe to read."""
    for index in indices:
        if index.limit == 0 and count > 0:
            raise index.raises(index.message.format(0) if "{}" in index.message else index.message)


def check_places(p: PlanBuilder, index: Index, wraps: bool = False) -> None:
    """Has a kernel look whether an index is in range of which nothing is moved: it gathers the same byte for each."""
    shape, byte = index.spec.shape, p.empty((1,), torch.uint8)
    looked_up = p.empty(shape, torch.uint8)
    alone = replace(index, strides=index.spec.stride(), step=0)
    plan_move(p, looked_up, byte, shape, looked_up.stride(), [0] * len(shape), [alone], reads=True, wraps=wraps)


def _spaces(
    sizes: Sequence[int], lead: Sequence[int] | None, strides: list[Sequence[int]]
) -> tuple[list[int], list[list[int]]]:
    """The space with dimensions ordered by `lead` (the strides of the operand that is not indexed) and merged."""
    if lead is None:
        lead, product = [0] * len(sizes), 1
        for d in range(len(sizes) - 1, -1, -1):
            lead[d], product = product, product * sizes[d]
    merged, merged_strides = pointwise.coalesce(list(sizes), [list(lead), *(list(s) for s in strides)])
    return merged, merged_strides[1:]


def _kinds(strides: list[list[int]]) -> tuple[str, ...]:
    return tuple({0: "0", 1: "1"}.get(s[-1], "s") for s in strides)


def _arguments(
    p: PlanBuilder,
    x: Indexing,
    target: torch.Tensor,
    source: torch.Tensor | Scalar | float,
    strides: list[list[int]],
    indices: Sequence[Index],
) -> dict[str, Any]:
    """Those of `Indexing.parameters`."""
    given: dict[str, Any] = {"target": target.view(BY_NAME[x.target].dtype)}
    given["source"] = source.view(BY_NAME[x.source].dtype) if isinstance(source, torch.Tensor) else source
    for k, index in enumerate(indices):
        report = p.error(index.message, index.raises)
        given |= {"errors": report.words, f"code{k}": report.code}
        given |= {f"index{k}": index.spec, f"limit{k}": index.limit, f"step{k}": index.step}
    return given | {f"{o}_s{d}": s for o, of in zip(x.operands, strides, strict=True) for d, s in enumerate(of)}


def plan_move(
    p: PlanBuilder,
    target: torch.Tensor,
    source: torch.Tensor | Scalar | float,
    sizes: Sequence[int],
    target_strides: Sequence[int],
    source_strides: Sequence[int],
    indices: Sequence[Index],
    reads: bool,
    wraps: bool = False,
) -> None:
    """Moves one element for each place of a space of `sizes`.

    Args:
        target, source: specs, or a number to write.
        target_strides, source_strides: over the space; 0 in the dimensions that the indices stand for.
        indices: at least one.
        reads: the source is indexed; otherwise the target.
        wraps: negative indices count from the end.
    """
    n = math.prod(sizes)
    _check_not_empty(indices, n)
    if n == 0:
        return
    number = not isinstance(source, torch.Tensor)
    operands = [target_strides, *([] if number else [source_strides]), *(index.strides for index in indices)]
    lead = target_strides if reads else None if number else source_strides
    merged, strides = _spaces(sizes, lead, operands)
    moved = element_type(target.dtype).name if number else MOVES[target.element_size()]
    x = Indexing(
        name="gather" if reads else "scatter",
        target=moved,
        source=moved,
        indices=tuple(element_type(index.spec.dtype).name for index in indices),
        reads=reads,
        wraps=wraps,
        along=any(s[-1] != 0 for s in strides[-len(indices) :]),
        rank=len(merged),
        inner=_kinds(strides),
        number=number,
    )
    grid = p.walk(merged, 2 if x.along else 1)
    kernel = kernels.move_kernel(x, p.form, not x.along and p.partitioner.ends_within_a_vector(merged[-1]))
    p.launch(kernel, grid, **_arguments(p, x, target, source, strides, indices))


SUM = "a + b"
SCALED_SUM = "a + alpha * b"
_COMBINE = {
    "sum": SUM,
    "prod": "a * b",
    "amax": "b > a ? b : a",
    "amin": "b < a ? b : a",
}


def combine_text(reduce: str, dtype: torch.dtype) -> str:
    element = element_type(dtype)
    if reduce == "prod" and element.is_complex:
        return f"tg_mul_{element.name}(a, b)"
    if reduce in ("amax", "amin"):
        if element.is_complex:
            raise Unsupported("order of complex numbers")
        if element.is_float:
            return f"a != a ? a : b != b || {'b > a' if reduce == 'amax' else 'b < a'} ? b : a"
    return _COMBINE[reduce]


@dataclass(frozen=True)
class Collected:
    """`rows` times a space of elements that come to a target where they may meet.

    Attributes:
        source_row: stride of the source from row to row. For the rest see `plan_move`.
        combine: see `Indexing`; "" keeps the last.
        alpha: a factor that `combine` uses.
    """

    p: PlanBuilder
    target: torch.Tensor
    source: torch.Tensor | Scalar | float
    rows: int
    sizes: Sequence[int]
    target_strides: Sequence[int]
    source_strides: Sequence[int]
    source_row: int
    indices: Sequence[Index]
    combine: str
    wraps: bool = False
    alpha: Scalar | float | None = None

    def __str__(self) -> str:
        how = f"combined by {self.combine}" if self.combine else "of which the last stays"
        return f"{self.rows} rows of {self.size} to {self.indices[0].limit} places of {self.type}, {how}"

    @property
    def is_cpu(self) -> bool:
        return self.p.form == "cpu"

    @property
    def size(self) -> int:
        """Elements of a row."""
        return math.prod(self.sizes)

    @property
    def type(self) -> str:
        return element_type(self.target.dtype).name

    @property
    def number(self) -> bool:
        return not isinstance(self.source, torch.Tensor)

    @property
    def sums(self) -> bool:
        return self.combine in (SUM, SCALED_SUM)

    @property
    def strides(self) -> list[Sequence[int]]:
        """The operands', along a row."""
        source = [] if self.number else [self.source_strides]
        return [self.target_strides, *source, *(index.strides for index in self.indices)]

    @property
    def row_strides(self) -> list[int]:
        """The operands', but the target's, from row to row."""
        return [*([] if self.number else [self.source_row]), *(index.row for index in self.indices)]

    @property
    def limits(self) -> Places:
        return self.p.device.tuning.places

    @property
    def parts(self) -> int:
        """Of the rows that add up in memory of their own."""
        return min(self.p.device.compute_units, self.limits.apart_parts)

    def indexing(self, name: str, strides: list[list[int]], **given: Any) -> Indexing:
        """What a kernel does over a space where operands have these strides."""
        source = element_type(self.source.dtype).name if isinstance(self.source, torch.Tensor) else self.type
        return Indexing(
            name=name,
            indices=tuple(element_type(index.spec.dtype).name for index in self.indices),
            reads=False,
            wraps=self.wraps,
            rank=len(strides[0]),
            inner=_kinds(strides),
            number=self.number,
            combine=self.combine,
            alpha=self.alpha is not None,
            **{"target": self.type, "source": source, **given},
        )

    def arguments(self, x: Indexing, strides: list[list[int]]) -> dict[str, Any]:
        given = _arguments(self.p, x, self.target, self.source, strides, self.indices)
        return given if self.alpha is None else {**given, "alpha": self.alpha}

    def vary(self, strides: list[list[int]]) -> bool:
        """Whether some index varies along the innermost dimension."""
        return any(s[-1] != 0 for s in strides[-len(self.indices) :])


def _why_no_atomics(c: Collected) -> str:
    """In order a GPU's work-items would each look at all rows."""
    few = c.limits.gpu_rows
    if c.is_cpu or c.rows <= few:
        return f"GPUs, more than {few} rows"
    if not c.sums or c.type == "b8" or not is_addable(c.type, c.p.device.long_atomics):
        return "sums of what can be added at once"
    return "sums in any order, which rounds otherwise each time" if in_order() else ""


def _plan_atomics(c: Collected) -> None:
    """A work-item for each element of each row."""
    lead = None if c.number else [c.source_row, *c.source_strides]
    operands: list[Sequence[int]] = [[row, *of] for row, of in zip([0, *c.row_strides], c.strides, strict=True)]
    merged, strides = _spaces([c.rows, *c.sizes], lead, operands)
    x = c.indexing("add_at_once", strides, along=c.vary(strides), at_once=True)
    c.p.launch(kernels.move_kernel(x, c.p.form), c.p.walk(merged, 2), **c.arguments(x, strides))


def _why_no_partial_sums(c: Collected) -> str:
    if not c.is_cpu or c.size >= c.parts:
        return "CPUs, rows of fewer elements than cores"
    if not c.sums or c.type not in ("f32", "f64", "i64") or len(c.indices) > 1:
        return "sums of f32, f64 or i64 by one index"
    few = 4 * c.parts * c.indices[0].limit <= c.rows and c.size * c.rows >= c.limits.apart
    return "" if few else f"{c.limits.apart} elements or more for few places"


def _plan_partial_sums(c: Collected) -> None:
    """Parts of the rows add in memory of their own, and what they have is added up."""
    [index] = c.indices
    own = c.p.empty((c.parts, index.limit, *c.sizes), c.target.dtype)
    c.p.fill(own, 0)
    own_index = [replace(index, step=c.size)]
    _collect(replace(c, target=own, target_strides=own.stride()[2:], indices=own_index), c.parts)
    whole = c.target.as_strided(own.shape[1:], (index.step, *c.target_strides), c.target.storage_offset())
    for part in own.unbind():
        c.p.call_out(aten.add.Tensor, whole, whole, part)


def _collect(c: Collected, parts_of_rows: int = 1) -> None:
    """Each place takes elements in the rows' order. The target has a first dimension for the parts of the rows, if
    there are some."""
    n, rows, p = c.size, c.rows, c.p
    merged, strides = _spaces(c.sizes, None if c.number else c.source_strides, c.strides)
    # A row of few elements is not worth a loop of its own: then one walks along the rows.
    along = c.vary(strides) or merged[-1] < 4
    moved = {} if c.combine or c.number else dict.fromkeys(("target", "source"), MOVES[c.target.element_size()])
    x = c.indexing("collect", strides, along=along, **moved)
    places = c.indices[0].limit
    inner_rows = merged[-1] < 4 or max(c.row_strides) <= max((s[-1] for s in strides[1:]), default=0)
    by_places = parts_of_rows == 1 and not (along or inner_rows) and _has_long_rows(p, n, places)
    grid = p.walk(merged, rows, n if by_places else _columns(p, merged, along, places), FEW)
    values = c.arguments(x, strides)
    values |= {f"{o}_row": stride for o, stride in zip(x.operands[1:], c.row_strides, strict=True)}
    if parts_of_rows > 1:
        shared, share = "rows", ceil_div(rows, parts_of_rows)
        grid = grid.by(ceil_div(rows, share))
        values["apart"] = c.target.stride(0)
    else:
        units = p.device.compute_units
        parts = _parts_of_places(p, n, rows, along, places, units if by_places else 2 * units, grid.groups[0])
        shared, share = "places" if parts > 1 else "", ceil_div(places, parts)
        grid = grid.by(ceil_div(places, share))
    kernel = kernels.collect_kernel(x, p.form, inner_rows, shared, _kinds([[s] for s in c.row_strides]))
    p.launch(kernel, grid, rows=rows, share=share, **values)


COLLECT = (
    Way("atomics", _why_no_atomics, _plan_atomics),
    Way("partial-sums", _why_no_partial_sums, _plan_partial_sums),
    Way("in-order", lambda c: "", _collect),
)


def plan_collect(collected: Collected) -> None:
    """Brings the elements to their places."""
    _check_not_empty(collected.indices, collected.size * collected.rows)
    if collected.size > 0 and collected.rows > 0:
        choose("collect", COLLECT, collected)


def _columns(p: PlanBuilder, sizes: Sequence[int], along: bool, places: int) -> int:
    """Elements of the space for a work-item; each reads all indices of them."""
    n, least, tuned = math.prod(sizes), 2 * p.device.compute_units, p.device.tuning.places
    if p.form == "gpu":
        return 1
    if along:
        columns = 1 if sizes[-1] < tuned.columns else tuned.columns
        return columns * ceil_div(n, 4 * least * columns)
    most = max(tuned.slice, min(ceil_div(n, least), max(tuned.wide_slice, tuned.near // places)))
    return ceil_div(n, ceil_div(n, most))


def _has_long_rows(p: PlanBuilder, n: int, places: int) -> bool:
    """Whether a CPU's work-items rather share the places than the elements of a row: each has to look at all indices,
    but memory gives it whole rows."""
    return p.form == "cpu" and n >= 2 * p.device.tuning.places.columns and places >= p.device.compute_units


def _parts_of_places(p: PlanBuilder, n: int, rows: int, along: bool, places: int, wanted: int, groups: int) -> int:
    """Among how many work-items places are split, where the groups that share the space are fewer than `wanted`."""
    if p.form == "gpu":
        return min(places, max(1, 256 * p.device.compute_units // n)) if rows > p.device.tuning.places.gpu_rows else 1
    tuning = p.device.tuning
    if along or n * rows <= tuning.partition.single or n < 2 * tuning.places.columns:
        return 1
    return min(places, ceil_div(wanted, groups))


def in_order() -> bool:
    """Whether elements that meet in one place must be taken in order, the last one staying."""
    return torch.are_deterministic_algorithms_enabled()


def flat_index(spec: torch.Tensor) -> torch.Tensor:
    if spec.dtype not in (torch.int64, torch.int32):
        raise Unsupported(f"indices of {spec.dtype}")
    return spec


def some_dims(x: torch.Tensor) -> torch.Tensor:
    """Zero-dim tensors count as tensors of one element."""
    return x if x.dim() else x.unsqueeze(0)


def without(values: Sequence[int], dim: int) -> list[int]:
    """A copy with 0 at `dim`."""
    return [0 if d == dim else v for d, v in enumerate(values)]


def drop(values: Sequence[int], dim: int) -> list[int]:
    return [v for d, v in enumerate(values) if d != dim]


RANGE_OF_SELF = "index out of range in self"


BOUNDS = "index {} is out of bounds for dimension {dim} with size {size}"


def bounds_of(dim: int, size: int) -> str:
    return BOUNDS.format("{}", dim=dim, size=size)


def resolved(p: PlanBuilder, x: torch.Tensor) -> torch.Tensor:
    """A spec whose memory holds its values: conjugate and negative bits are no part of what is moved."""
    return p.contiguous(x) if x.is_conj() or x.is_neg() else x


def start_from(p: PlanBuilder, out: torch.Tensor, self: torch.Tensor) -> None:
    """The result of an op that changes some elements begins as a copy, unless it is the tensor itself."""
    if out is not self:
        p.copy(out, self)


@contextmanager
def collecting(p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, rounds: bool = True) -> Iterator[torch.Tensor]:
    """What elements are collected in: the result, begun as a copy of `self`; of 16-bit floating-point types float32,
    where what is collected `rounds`, as sums and products do, which becomes the result when all are there."""
    wide = BY_NAME[element_type(out.dtype).accumulate].dtype
    if not rounds or not out.is_floating_point() or wide == out.dtype:
        start_from(p, out, self)
        yield out
        return
    total = p.cast(self, wide)
    yield total
    p.copy(out, total)


def rows_into(
    p: PlanBuilder,
    out: torch.Tensor,
    dim: int,
    index: torch.Tensor,
    source: torch.Tensor | Scalar | float,
    message: str,
    combine: str | None,
    wraps: bool = False,
    alpha: Scalar | float | None = None,
    raises: type[IndexError] | type[RuntimeError] = IndexError,
) -> None:
    """Writes (combine None) or collects slices: that number i of the source goes to place index[i] of dimension
    `dim`."""
    out, index = some_dims(out), flat_index(index).reshape(-1)
    dim %= out.dim()
    sizes = [*out.shape[:dim], index.size(0), *out.shape[dim + 1 :]]
    strides: Sequence[int] = [0] * len(sizes)
    if isinstance(source, torch.Tensor):
        source = some_dims(resolved(p, source)).expand(sizes)
        strides = source.stride()
    limit, step, index_stride = out.size(dim), out.stride(dim), index.stride(0)
    message = message.format("{}", dim=dim, size=limit)
    if combine is None and not in_order():
        walk = [index_stride if d == dim else 0 for d in range(len(sizes))]
        indices = [Index(index, walk, limit, step, message, raises=raises)]
        plan_move(p, out, source, sizes, without(out.stride(), dim), strides, indices, False, wraps)
        return
    free = drop(sizes, dim) or [1]
    indices = [Index(index, [0] * len(free), limit, step, message, index_stride, raises)]
    to, by = drop(out.stride(), dim) or [0], drop(strides, dim) or [0]
    rows = index.size(0)
    plan_collect(Collected(p, out, source, rows, free, to, by, strides[dim], indices, combine or "", wraps, alpha))
