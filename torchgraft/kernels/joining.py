"""Kernels that put tensors together."""

from __future__ import annotations

import functools

from torchgraft.codegen.kernel import Kernel, parameters
from torchgraft.codegen.types import BY_NAME, value_ctype
from torchgraft.codegen.walk import Walk

COUNTS = (2, 8, 16)
"""Tensors that one launch joins: the least of these that will do, since arguments take time. Missing ones have width
0."""


@functools.cache
def join_kernel(type_: str, count: int) -> Kernel:
    """Copies row i of each input, one after the other, to row i of the output, from column `start` on; all are
    contiguous. CPU form. Parameters: `out`, `in_0`..., `width_0`..., `width`, `start`."""
    walk = Walk("cpu")
    copies = "\n".join(
        f"""VECTORIZE
    for (long c = 0; c < width_{k}; ++c) out[at + c] = in_{k}[i * width_{k} + c];
    at += width_{k};"""
        for k in range(count)
    )
    inputs, widths = (", ".join(f"{name}_{k}" for k in range(count)) for name in ("in", "width"))
    params = parameters(f"{type_}* out; const {type_}* {inputs}; i64 {widths}, width, start")
    return walk.kernel("join", params, walk.each(f"long at = i * width + start;\n{copies}", vectorize=False))


@functools.cache
def interleave_kernel(type_: str, count: int, width: int) -> Kernel:
    """The same for short rows of one width, which are joined by `count` at once, all of a row's inputs: rows are what
    vectors are made of. Parameters: `out`, `in_0`..."""
    walk = Walk("cpu")
    moves = "\n".join(
        f"out[i * {count * width} + {k * width + c}] = in_{k}[i * {width} + {c}];"
        for k in range(count)
        for c in range(width)
    )
    params = parameters(f"{type_}* out; const {type_}* {', '.join(f'in_{k}' for k in range(count))}")
    return walk.kernel("interleave", params, walk.each(moves))


@functools.cache
def roll_kernel(type_: str, size: int, shift: int) -> Kernel:
    """Rows of few elements, each of which moves on by `shift`. CPU form. Parameters: `out`, `x`."""
    walk = Walk("cpu")
    moves = "\n".join(f"out[i * {size} + {(c + shift) % size}] = x[i * {size} + {c}];" for c in range(size))
    return walk.kernel("roll", parameters(f"{type_}* out; const {type_}* x"), walk.each(moves))


@functools.cache
def join_elements_kernel(type_: str, count: int, index: str) -> Kernel:
    """The same in the GPU form: a walk over the elements that a launch joins, `part` of each row."""
    walk = Walk("gpu", index=index)
    t = value_ctype(index)
    choice = "".join(
        f"if (c < width_{k}) {{ value = in_{k}[row * width_{k} + c]; }} else {{ c -= width_{k}; " for k in range(count)
    )
    body = f"""const {t} row = i / part, column = i - row * part;
    {t} c = column;
    {BY_NAME[type_].storage} value = 0;
    {choice}{"}" * count}
    out[row * width + start + column] = value;"""
    inputs, widths = (", ".join(f"{name}_{k}" for k in range(count)) for name in ("in", "width"))
    params = parameters(f"{type_}* out; const {type_}* {inputs}; {index} {widths}, width, start, part")
    return walk.kernel("join_elements", params, walk.each(body))


@functools.cache
def join_lines_kernel(type_: str, count: int) -> Kernel:
    """The same for a single row, whose elements are what is partitioned: the walk is over those of all inputs."""
    walk = Walk("cpu")
    copies = "\n".join(
        f"""  {{
    const long first = max(begin, at), last = min(end, at + width_{k});
    VECTORIZE
    for (long c = first; c < last; ++c) out[start + c] = in_{k}[c - at];
    at += width_{k};
  }}"""
        for k in range(count)
    )
    inputs, widths = (", ".join(f"{name}_{k}" for k in range(count)) for name in ("in", "width"))
    params = parameters(f"{type_}* out; const {type_}* {inputs}; i64 {widths}, start")
    return walk.kernel("join_lines", params, f"  long at = 0;\n{copies}")
