"""Kernels whose values follow from an element's place."""

from __future__ import annotations

import functools

from torchgraft.codegen.kernel import Kernel, parameters
from torchgraft.codegen.pointwise import convert
from torchgraft.codegen.types import value_ctype
from torchgraft.codegen.walk import Walk


@functools.cache
def sequence_kernel(type_: str, compute: str, numbers: tuple[str, ...], text: str, form: str) -> Kernel:
    """Stores `text`, an expression of type `compute` of the place `i` and of `numbers` (of that type), in a contiguous
    tensor. Parameters: `out` and the numbers."""
    walk = Walk(form)
    value = f"{value_ctype(compute)} value = {text};"
    element = f"{value} store_{type_}(out, i, {convert('value', compute, type_)});"
    params = parameters(f"{type_}* out; {f'{compute} ' + ', '.join(numbers) if numbers else ''}")
    return walk.kernel("sequence", params, walk.each(element))


@functools.cache
def triangle_kernel(type_: str, upper: bool, form: str) -> Kernel:
    """Copies the elements of contiguous matrices on one side of a diagonal; the others become zero. The walk is over
    (row, column), rows being counted through all matrices. Parameters: `out`, `x`, `rows`, `diagonal`."""
    walk = Walk(form, rank=2)
    keep = f"i1 + j - r {'>=' if upper else '<='} diagonal"
    row = "const long at = i0 * n1 + i1, r = i0 % rows;"
    body = walk.each(f"out[at + j] = {keep} ? x[at + j] : ({value_ctype(type_)})0;", row)
    return walk.kernel("triangle", parameters(f"{type_}* out; const {type_}* x; i64 rows, diagonal"), body)


@functools.cache
def triangle_indices_kernel(type_: str, upper: bool, form: str) -> Kernel:
    """Rows and columns of a triangle's elements in order: `offset` is the diagonal. The walk is over the rows of the
    matrix. Parameters: `out`, `columns`, `offset`, `size`.

    Row r of the lower triangle has min(columns, max(0, r + offset + 1)) elements; the upper triangle is what is left of
    the matrix by the lower one of offset - 1.
    """
    walk = Walk(form)
    # Elements of rows before r: of those that grow from row to row, and of full ones.
    row = f"""\
  long shift = offset + {"0" if upper else "1"};
  long full = columns - shift < 0 ? 0 : columns - shift;
  long grow_end = i < full ? i : full, grow_begin = -shift < 0 ? 0 : -shift;
  long before = i > full ? (i - full) * columns : 0;
  if (grow_end > grow_begin) before += (grow_begin + shift + grow_end - 1 + shift) * (grow_end - grow_begin) / 2;
  long edge = i + shift;
  edge = edge < 0 ? 0 : edge > columns ? columns : edge;
  long at = {"i * columns - before" if upper else "before"};
  for (long c = {"edge" if upper else "0"}; c < {"columns" if upper else "edge"}; ++c, ++at) {{
    out[at] = i;
    out[size + at] = c;
  }}"""
    params = parameters(f"{type_}* out; i64 columns, offset, size")
    return walk.kernel("triangle_indices", params, walk.each(row, vectorize=False))
