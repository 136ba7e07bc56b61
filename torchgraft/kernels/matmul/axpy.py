"""Products of one to four rows with a B whose rows lie together, the CPU form: rows of B are added up, each times an
element of A. They are read once and straight; such products are bound by memory."""

from __future__ import annotations

from functools import cache

from torchgraft.codegen import ceil_div, round_up
from torchgraft.codegen.arithmetic import arithmetic
from torchgraft.codegen.kernel import Kernel, Launch
from torchgraft.kernels.matmul import split_k
from torchgraft.kernels.matmul.division import share
from torchgraft.kernels.matmul.problem import Product, any_addend
from torchgraft.kernels.products import Addend, begin_batches, finish_scalar, operands

# The most rows: the text has one or so many.
_ROWS = 4


def axpy_columns(rows: int) -> int:
    """The most columns of one work-item of `axpy_kernel`: their sums stay in the first-level cache."""
    return 2048 // rows


@cache
def axpy_kernel(storage: str, result: str, rows: int, addend: Addend, simd_width: int = 16) -> Kernel:
    """At most `rows` (1 or 4) rows of A times a B with unit stride along the columns: a work-item adds up a long
    stretch of B's rows, several at a time, so that memory is read in few long streams. Launch with `matmul_launches`.
    """
    math = arithmetic(storage, simd_width)
    target = arithmetic(result, simd_width)
    together = 8 if rows == 1 else 4
    pitch = axpy_columns(rows)
    pairs = [(i, t) for i in range(rows) for t in range(together)]

    def add_rows(count: int) -> str:
        scalars = " ".join(
            f"const {math.scalar} a{i}_{t} = {math.load('A', f'min({i}, M - 1) * a_rs + (k + {t}) * a_cs')};"
            for i, t in pairs
            if t < count
        )
        pointers = " ".join(f"{math.const_pointer} b{t} = B + (k + {t}) * b_rs + begin;" for t in range(count))
        loads = " ".join(f"const {math.vector} v{t} = {math.load_vector(f'b{t}', 'n')};" for t in range(count))
        updates, singles = "", ""
        for i in range(rows):
            updates += f"{math.vector} s{i} = *({math.vector}*)(sums + {i * pitch} + n);"
            singles += f"{math.scalar} s{i} = sums[{i * pitch} + n];"
            for t in range(count):
                updates += f"s{i} = {math.multiply_add(math.splat(f'a{i}_{t}'), f'v{t}', f's{i}')};"
                singles += f"s{i} += a{i}_{t} * {math.load(f'b{t}', 'n')};"
            updates += f"*({math.vector}*)(sums + {i * pitch} + n) = s{i};"
            singles += f"sums[{i * pitch} + n] = s{i};"
        return f"""
    {scalars}
    {pointers}
    int n = 0;
    for (; n + {math.width} <= columns; n += {math.width}) {{ {loads} {updates} }}
    for (; n < columns; ++n) {{ {singles} }}"""

    body = f"""{begin_batches(addend, 1)}
const int begin = GROUP_ID(0) * block_columns, columns = min(block_columns, N - begin);
{math.scalar} sums[{rows * pitch}] ALIGN(64);
for (int i = 0; i < {rows}; ++i)
  for (int n = 0; n < columns; ++n) sums[i * {pitch} + n] = 0;
int k = 0;
for (; k + {together} <= K; k += {together}) {{ {add_rows(together)} }}
for (; k < K; ++k) {{ {add_rows(1)} }}
for (int i = 0; i < min({rows}, M); ++i)
  for (int n = 0; n < columns; ++n) {{
    {target.pointer} c = C + i * c_rs + (begin + n) * c_cs;
    {"" if addend == "none" else f"{math.const_pointer} d = D + i * d_rs + (begin + n) * d_cs;"}
    {finish_scalar(target, addend, f"sums[i * {pitch} + n]", "0", "0")}
  }}
}}"""
    params = operands(math, result, addend, "block_columns", "share", "batches")
    return Kernel("matmul_axpy", params, body, local=(1, 1))


def _stretch(n: int, most: int, units: int, parts: int) -> int:
    """Columns of a work-item that reads rows of B: as many as leave something for each core where the sums may be of
    `parts` parts, since long stretches are what memory is quick at."""
    groups = max(ceil_div(n, most), ceil_div(units, parts))
    if groups > units:
        groups = round_up(groups, units)
    return min(most, round_up(ceil_div(n, groups), 64))


def why_not(p: Product) -> str:
    if not p.is_cpu:
        return "CPUs"
    if p.math.is_complex:
        return "real numbers"
    if p.sizes[1] > _ROWS:
        return f"at most {_ROWS} rows"
    return "" if p.unit_b == "outer" else "rows of B that lie together"


def launches(p: Product) -> list[Launch]:
    batch, m, n, k = p.sizes
    sizes, rows = p.on.tuning.few_rows, 1 if m == 1 else _ROWS
    least = max(sizes.part, sizes.part_elements // n)
    columns = _stretch(n, axpy_columns(rows), p.on.units, max(1, k // least))

    def kernel(result: str, addend: Addend) -> Kernel:
        return axpy_kernel(p.storage, result, rows, any_addend(addend), p.on.simd_width)

    shape = {"block_columns": columns, "share": share(batch, rows * k * min(n, columns) // p.math.width, p.on)}
    groups = (ceil_div(n, columns),)
    return split_k.launches(p, kernel, groups, split_k.parts_on_cpu(p, groups, least), shape)
