"""Kernels that put tensors together."""

from __future__ import annotations

import functools

from torchgraft.codegen.kernel import Kernel, Parameter, Pointer, Value

JOINED = 8
"""Tensors that one launch joins; missing ones have width 0."""


@functools.cache
def join_kernel(type_: str) -> Kernel:
    """Copies row r of each input, one after the other, to row r of the output, from column `start` on; all are
    contiguous."""
    params: tuple[Parameter, ...] = (
        Pointer("out", type_),
        *(Pointer(f"in{k}", type_, const=True) for k in range(JOINED)),
        *(Value(f"width{k}", "i64") for k in range(JOINED)),
        *(Value(v, "i64") for v in ("width", "start", "rows", "chunk")),
    )
    copies = "\n".join(
        f"""\
    VECTORIZE
    for (long c = 0; c < width{k}; ++c) out[at + c] = in{k}[r * width{k} + c];
    at += width{k};"""
        for k in range(JOINED)
    )
    body = f"""\
  long begin = (long)GROUP_ID(0) * chunk, end = rows - begin < chunk ? rows : begin + chunk;
  for (long r = begin; r < end; ++r) {{
    long at = r * width + start;
{copies}
  }}"""
    return Kernel("join", params, body)
