"""Products of few rows, the GPU form: B is read once and straight."""

from __future__ import annotations

from functools import cache

from torchgraft.codegen import ceil_div
from torchgraft.codegen.arithmetic import arithmetic
from torchgraft.codegen.kernel import Kernel, Launch
from torchgraft.kernels.matmul import split_k
from torchgraft.kernels.matmul.problem import Product, any_addend
from torchgraft.kernels.products import Addend, begin_product, finish_scalar, operands


def rows_columns(along_k: bool) -> int:
    """Columns of a work-group of `rows_kernel`."""
    return rows_local(along_k)[1 if along_k else 0]


def rows_local(along_k: bool) -> tuple[int, int, int]:
    """Its work-items: the first dimension runs along what lies together in memory."""
    return (32, 8, 1) if along_k else (64, 4, 1)


@cache
def rows_kernel(storage: str, result: str, rows: int, along_k: bool, addend: Addend) -> Kernel:
    """The GPU form for few rows. Work-items that are neighbours read neighbouring elements of B: of a column if those
    lie together (`along_k`), otherwise of a row; those of one column then add up their sums."""
    math, target = arithmetic(storage), arithmetic(result)
    width, height, _ = rows_local(along_k)
    if along_k:
        first, step, most = "x", width, width
        column = f"GROUP_ID(0) * {height} + y"
    else:
        first, step, most = "y", height, height
        column = f"GROUP_ID(0) * {width} + x"
    update = math.multiply_add(math.load("A", "min(r, M - 1) * a_rs + k * a_cs"), "b", "sums[r]")
    body = f"""{begin_product(addend, 1)}
LOCAL {math.scalar} others[{rows}][{height}][{width}];
const int x = LOCAL_ID(0), y = LOCAL_ID(1), n = {column};
{math.scalar} sums[{rows}];
UNROLL for (int r = 0; r < {rows}; ++r) sums[r] = 0;
if (n < N)
  UNROLL_4 for (int k = {first}; k < K; k += {step}) {{
    const {math.scalar} b = {math.load("B", "n * b_cs + k * b_rs")};
    UNROLL for (int r = 0; r < {rows}; ++r) sums[r] = {update};
  }}
UNROLL for (int r = 0; r < {rows}; ++r) others[r][y][x] = sums[r];
BARRIER;
for (int apart = {most // 2}; apart > 0; apart /= 2) {{
  if ({first} < apart)
    for (int r = 0; r < {rows}; ++r) others[r][y][x] += others[r][{"y][x + apart" if along_k else "y + apart][x"}];
  BARRIER;
}}
if (n < N)
  for (int m = {first}; m < min({rows}, M); m += {step}) {{
    const {math.scalar} sum = others[m][{"y][0" if along_k else "0][x"}];
    {target.pointer} c = C + m * c_rs + n * c_cs;
    {"" if addend == "none" else f"{math.const_pointer} d = D + m * d_rs + n * d_cs;"}
    {finish_scalar(target, addend, "sum", "0", "0")}
  }}"""
    return Kernel("matmul_rows", operands(math, result, addend), body, local=rows_local(along_k)[:2])


def why_not(p: Product) -> str:
    if p.is_cpu:
        return "GPUs"
    if p.math.is_complex:
        return "real numbers"
    most = p.on.tuning.few_rows.gpu_rows
    return "" if p.sizes[1] <= most else f"at most {most} rows"


def launches(p: Product) -> list[Launch]:
    batch, m, n, k = p.sizes
    units, along_k = p.on.units, p.unit_b == "k"
    groups = (ceil_div(n, rows_columns(along_k)),)
    parts = max(1, min(8 * units // groups[0], k // p.on.tuning.few_rows.gpu_part)) if batch == 1 and units > 1 else 1

    def kernel(result: str, addend: Addend) -> Kernel:
        rows = 1 if m == 1 else ceil_div(m, 4) * 4
        return rows_kernel(p.storage, result, rows, along_k, any_addend(addend))

    return split_k.launches(p, kernel, groups, parts, {})
