"""Products of few rows with a B that lies along the sums, the CPU form: each element is a sum across vectors, and B is
read once and straight. Such products are bound by memory."""

from __future__ import annotations

from functools import cache

from torchgraft.codegen import ceil_div
from torchgraft.codegen.arithmetic import Arithmetic, arithmetic
from torchgraft.codegen.kernel import Kernel, Launch
from torchgraft.codegen.types import BY_NAME
from torchgraft.codegen.vectors import lane_sum, lane_sums, shuffle_helpers
from torchgraft.kernels.matmul import split_k
from torchgraft.kernels.matmul.division import even_part, share
from torchgraft.kernels.matmul.problem import Product, any_addend
from torchgraft.kernels.products import Addend, begin_batches, finish_scalar, operands

# For at most so many rows of A, the fewest vectors of a sum for which it pays: of any columns, and of few. To add lanes
# up costs each element of C the same; to prepare B costs it less with more rows.
_DOT_VECTORS = {2: (1, 1), 4: (2, 2), 8: (8, 4), 16: (12, 4), 32: (1 << 30, 8)}


# Lanes of the shortest vectors.
_LEAST_LANES = 4


def _pays_dot(math: Arithmetic, m: int, n: int, k: int) -> bool:
    """Whether sums across vectors cost less than preparing a B that lies along k."""
    converted = BY_NAME[math.storage].size < math.size
    if math.is_complex or m > (8 if converted else 32):
        return False
    if m == 1:
        return k >= _LEAST_LANES
    least = next(least for rows, least in _DOT_VECTORS.items() if m <= rows)
    return k // math.width >= least[n <= 2 * math.width]


def _dot_width(storage: str, simd_width: int, k: int) -> int:
    """That of registers whose vectors are no longer than the sums, if there are such."""
    while simd_width > _LEAST_LANES and arithmetic(storage, simd_width).width > max(k, _LEAST_LANES):
        simd_width //= 2
    return simd_width


@cache
def dot_kernel(storage: str, result: str, rows: int, addend: Addend, simd_width: int = 16, columns: int = 8) -> Kernel:
    """A few rows of A with unit stride along k, `rows` (1 to 4) at once, times a B of `columns` columns (or more) with
    unit stride along k: one dot product for each element, several columns at a time for the sake of the memory. What a
    sum has beyond whole vectors are the last lanes of one that ends where it does. Launch with `matmul_launches`.
    """
    math = arithmetic(storage, simd_width)
    target = arithmetic(result, simd_width)
    together = min(columns, 8 if rows == 1 or (rows == 2 and simd_width >= 16) else 4)
    pairs = [(i, j) for i in range(rows) for j in range(together)]
    names = [f"s{i}_{j}" for i, j in pairs]
    updates = "\n".join(f"s{i}_{j} = {math.multiply_add(f'u{i}', f'v{j}', f's{i}_{j}')};" for i, j in pairs)
    lane = f"{'long' if math.size == 8 else 'int'}{math.width}"

    def load(at: str, part: str) -> str:
        vectors = [(f"u{i}", f"a{i}") for i in range(rows)] + [(f"v{j}", f"b{j}") for j in range(together)]
        return "\n".join(f"const {math.vector} {v} = {part.format(math.load_vector(p, at))};" for v, p in vectors)

    added = (
        lane_sums(math.scalar, math.width, names, "sums")
        if len(names) % 4 == 0
        else " ".join(
            f"{{ {lane_sum(math.scalar, math.width, name)} sums[{at}] = {name}_sum; }}" for at, name in enumerate(names)
        )
    )
    body = f"""{begin_batches(addend, 1)}
const {lane} lanes = MAKE_{lane}({", ".join(map(str, range(math.width)))});
const {math.vector} none = {math.splat("0")};
const int begin = GROUP_ID(0) * block_columns, end = min(N, begin + block_columns);
for (int n = begin; n < end; n += {together})
for (int m = 0; m < M; m += {rows}) {{
  {" ".join(f"{math.const_pointer} a{i} = A + min(m + {i}, M - 1) * a_rs;" for i in range(rows))}
  {" ".join(f"{math.const_pointer} b{j} = B + min(n + {j}, N - 1) * b_cs;" for j in range(together))}
  {math.vector} {", ".join(f"{name} = none" for name in names)};
  {math.scalar} sums[{rows * together}] ALIGN(64);
  int k = 0;
  for (; k + {math.width} <= K; k += {math.width}) {{
    {load("k", "{}")}
    {updates}
  }}
  if (k > 0 && k < K) {{
    const {lane} seen = SPLAT_{lane}({math.width} - (K - k));
    {load(f"K - {math.width}", "SELECT(lanes >= seen, {}, none)")}
    {updates}
    k = K;
  }}
  {added}
  for (; k < K; ++k) {{
    {" ".join(f"sums[{i * together + j}] += {math.load(f'a{i}', 'k')} * {math.load(f'b{j}', 'k')};" for i, j in pairs)}
  }}
  for (int i = 0; i < min({rows}, M - m); ++i)
    for (int j = 0; j < min({together}, end - n); ++j) {{
      {target.pointer} c = C + (m + i) * c_rs + (n + j) * c_cs;
      {"" if addend == "none" else f"{math.const_pointer} d = D + (m + i) * d_rs + (n + j) * d_cs;"}
      {finish_scalar(target, addend, f"sums[i * {together} + j]", "0", "0")}
    }}
}}
}}"""
    params = operands(math, result, addend, "block_columns", "share", "batches")
    helpers = shuffle_helpers(math.width, math.vector)
    return Kernel("matmul_dot", params, body, helpers, local=(1, 1))


def why_not(p: Product) -> str:
    if not p.is_cpu:
        return "CPUs"
    if p.unit_b != "k" or p.a.column != 1:
        return "an A and a B that lie together along the sums"
    _, m, n, k = p.sizes
    if p.paired and m > 4:
        return "at most four rows, where packed bfloat16 serves more"
    return "" if _pays_dot(p.math, m, n, k) else "fewer rows, or longer sums"


def launches(p: Product) -> list[Launch]:
    batch, m, n, k = p.sizes
    units = p.on.units
    columns = max(8, min(64, -(-n // (4 * units) // 8 * 8)))
    width, together = _dot_width(p.storage, p.on.simd_width, k), 1 << (min(n, 8) - 1).bit_length()

    def kernel(result: str, addend: Addend) -> Kernel:
        return dot_kernel(p.storage, result, even_part(m, 4), any_addend(addend), width, together)

    cycles = m * min(n, columns) * (k // p.math.width + p.on.tuning.few_rows.lanes_summed)
    sizes = {"block_columns": columns, "share": share(batch, cycles, p.on)}
    groups = (ceil_div(n, columns),)
    return split_k.launches(p, kernel, groups, split_k.parts_on_cpu(p, groups), sizes)
