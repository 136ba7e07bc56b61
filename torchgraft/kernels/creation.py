"""Kernels whose values follow from an element's place."""

from __future__ import annotations

import functools

from torchgraft.codegen.kernel import Kernel, Parameter, Pointer, Value
from torchgraft.codegen.pointwise import convert
from torchgraft.codegen.types import value_ctype

GPU_LOCAL = 256


def _body(form: str, loop: str, before: str = "") -> tuple[str, tuple[int, ...]]:
    if form == "gpu":
        text = f"  long i = (long)GROUP_ID(0) * {GPU_LOCAL} + LOCAL_ID(0);\n  if (i >= n) return;\n{before}{loop}"
        return text, (GPU_LOCAL,)
    text = "  long begin = (long)GROUP_ID(0) * chunk, end = n - begin < chunk ? n : begin + chunk;\n"
    return f"{text}{before}  VECTORIZE\n  for (long i = begin; i < end; ++i) {{\n{loop}\n  }}", (1,)


@functools.cache
def sequence_kernel(type_: str, compute: str, numbers: tuple[str, ...], text: str, form: str) -> Kernel:
    """Stores `text`, an expression of type `compute` of the place `i` and of `numbers` (of that type), in a contiguous
    tensor."""
    params: list[Parameter] = [Pointer("out", type_), *(Value(name, compute) for name in numbers)]
    params += [Value("n", "i64"), Value("chunk", "i64")]
    loop = f"    {value_ctype(compute)} value = {text};\n    store_{type_}(out, i, {convert('value', compute, type_)});"
    body, local = _body(form, loop)
    return Kernel("sequence", tuple(params), body, local=local)


@functools.cache
def triangle_kernel(type_: str, upper: bool, form: str) -> Kernel:
    """Copies the elements of contiguous matrices on one side of a diagonal; the others become zero. Works on rows on a
    CPU."""
    params: tuple[Parameter, ...] = (
        Pointer("out", type_),
        Pointer("in", type_, const=True),
        *(Value(v, "i64") for v in ("rows", "columns", "diagonal", "n", "chunk")),
    )
    zero = f"({value_ctype(type_)})0"
    if form == "gpu":
        keep = "c - r >= diagonal" if upper else "c - r <= diagonal"
        loop = f"  long c = i % columns, r = i / columns % rows;\n  out[i] = {keep} ? in[i] : {zero};"
        body, local = _body(form, loop)
        return Kernel("triangle", params, body, local=local)
    first, second = (zero, "in[at + c]") if upper else ("in[at + c]", zero)
    body = f"""\
  long begin = (long)GROUP_ID(0) * chunk, end = n - begin < chunk ? n : begin + chunk;
  for (long i = begin; i < end; ++i) {{
    long at = i * columns, edge = i % rows + diagonal{"" if upper else " + 1"};
    edge = edge < 0 ? 0 : edge > columns ? columns : edge;
    VECTORIZE
    for (long c = 0; c < edge; ++c) out[at + c] = {first};
    VECTORIZE
    for (long c = edge; c < columns; ++c) out[at + c] = {second};
  }}"""
    return Kernel("triangle", params, body)


@functools.cache
def triangle_indices_kernel(type_: str, upper: bool) -> Kernel:
    """Rows and columns of a triangle's elements in order: `offset` is the diagonal. One work-item for each row of the
    matrix.

    Row r of the lower triangle has min(columns, max(0, r + offset + 1)) elements; the upper triangle is what is left of
    the matrix by the lower one of offset - 1.
    """
    params: tuple[Parameter, ...] = (Pointer("out", type_), *(Value(v, "i64") for v in ("columns", "offset", "size")))
    # Elements of rows before r: of those that grow from row to row, and of full ones.
    body = f"""\
  long r = GROUP_ID(0);
  long shift = offset + {"0" if upper else "1"};
  long full = columns - shift < 0 ? 0 : columns - shift;
  long grow_end = r < full ? r : full, grow_begin = -shift < 0 ? 0 : -shift;
  long before = r > full ? (r - full) * columns : 0;
  if (grow_end > grow_begin) before += (grow_begin + shift + grow_end - 1 + shift) * (grow_end - grow_begin) / 2;
  long edge = r + shift;
  edge = edge < 0 ? 0 : edge > columns ? columns : edge;
  long at = {"r * columns - before" if upper else "before"};
  for (long c = {"edge" if upper else "0"}; c < {"columns" if upper else "edge"}; ++c, ++at) {{
    out[at] = r;
    out[size + at] = c;
  }}"""
    return Kernel("triangle_indices", params, body)
