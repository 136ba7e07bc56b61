"""Products in tiles, the GPU form: a work-group shares tiles of A and B in local memory."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from functools import cache

from torchgraft.codegen import ceil_div
from torchgraft.codegen.arithmetic import Arithmetic, arithmetic
from torchgraft.codegen.kernel import Kernel, Launch
from torchgraft.codegen.tuning import Tiles
from torchgraft.kernels import fragments
from torchgraft.kernels.matmul import split_k
from torchgraft.kernels.matmul.problem import Product, any_addend
from torchgraft.kernels.products import Addend, Unit, begin_product, finish_scalar, operands


@dataclass(frozen=True)
class Fetch:
    """How the GPU form's loops read an operand, as statements.

    Attributes:
        name: "a", of elements (m, k), or "b", of elements (k, n).
        unit: in which direction consecutive work-items read.
        load: sets `value` to the element.
        outer: what is found of m or n alone. With "outer" it stands in front of all loops.
        along: what is found of k alone.
        then: makes that of the next k, where `along` would take longer.

    Those of `outer` and `along` declare names of their own, which the other operand's have not.
    """

    name: str
    unit: Unit
    load: str
    outer: str = ""
    along: str = ""
    then: str = ""


def tile_loop(math: Arithmetic, tiles: Tiles, a: Fetch, b: Fetch, finish: str) -> str:
    """The GPU form's loops: a group computes a square, of which each of its work-items has small pieces that lie a
    group's width apart. Slices of A and B pass through local memory, and the next ones through registers meanwhile.

    `M`, `N`, `K` must be in scope and the pointers moved to the batch.

    Args:
        finish: statements that store `sums[i][j]` to (m, n).
    """
    value = f"{math.scalar}2" if math.is_complex else math.scalar
    side, group, each = tiles.side, tiles.group, tiles.item
    depth = tiles.depth_of(2 * math.size if math.is_complex else math.size)
    items, count = group * group, side * depth // (group * group)
    # Pieces of as many elements as one instruction loads.
    tall, wide = (1, 1) if math.is_complex else (min(4, each), min(2, each))
    zero, align = f"({value})0", 4 * math.size

    def index(fetch: Fetch) -> tuple[str, str]:
        return ("m", "M") if fetch.name == "a" else ("n", "N")

    def prepare(fetch: Fetch) -> str:
        if fetch.unit == "k":
            return ""
        outer, _ = index(fetch)
        text = re.sub(rf"\b{outer}\b", f"outer_{fetch.name}", fetch.outer)
        return f"const int outer_{fetch.name} = {outer}0 + item % {side}; {text}"

    def read(fetch: Fetch, begin: str) -> str:
        """The item's elements of a slice."""
        outer, limit = index(fetch)
        start = f"UNROLL for (int i = 0; i < {count}; ++i) {{ {value} value = {zero};"
        end = f"next_{fetch.name}[i] = value; }}"
        if fetch.unit == "k":
            return f"""{{ const int k = {begin} + item % {depth};
      {fetch.along}
      {start} const int {outer} = {outer}0 + item / {depth} + i * {items // depth};
        if (k < K && {outer} < {limit}) {{ {fetch.outer} {fetch.load} }} {end} }}"""
        first, each_k = (fetch.along, "") if fetch.then else ("", fetch.along)
        return f"""{{ const int {outer} = outer_{fetch.name};
      int k = {begin} + item / {side} * {count};
      {first}
      {start}
        if (k < K && {outer} < {limit}) {{ {each_k} {fetch.load} }}
        ++k; {fetch.then} {end} }}"""

    def keep(fetch: Fetch) -> str:
        if fetch.unit == "k":
            place = f"[item % {depth}][item / {depth} + i * {items // depth}]"
        else:
            place = f"[item / {side} * {count} + i][item % {side}]"
        return f"UNROLL for (int i = 0; i < {count}; ++i) tile_{fetch.name}{place} = next_{fetch.name}[i];"

    def piece(name: str, at: str, size: int) -> str:
        vector = value if size == 1 else f"{value}{size}"
        source = f"tile_{name}[k] + (p * {group} + {at}) * {size}"
        return f"""UNROLL for (int p = 0; p < {each // size}; ++p)
      *({vector}*)({name} + p * {size}) = *(LOCAL const {vector}*)({source});"""

    if math.is_complex:
        update = """
          sums[i][j].x = fma(a[i].x, b[j].x, fma(-a[i].y, b[j].y, sums[i][j].x));
          sums[i][j].y = fma(a[i].x, b[j].y, fma(a[i].y, b[j].x, sums[i][j].y));"""
    else:
        update = f"sums[i][j] = {math.multiply_add('a[i]', 'b[j]', 'sums[i][j]')};"
    return f"""
LOCAL {value} tile_a[{depth}][{tiles.pitch}] ALIGN({align});
LOCAL {value} tile_b[{depth}][{tiles.pitch}] ALIGN({align});
const int x = LOCAL_ID(0), y = LOCAL_ID(1), item = y * {group} + x;
const int m0 = GROUP_ID(1) * {side}, n0 = GROUP_ID(0) * {side};
{prepare(a)}
{prepare(b)}
{value} next_a[{count}], next_b[{count}], sums[{each}][{each}];
UNROLL for (int i = 0; i < {each}; ++i)
  UNROLL for (int j = 0; j < {each}; ++j) sums[i][j] = {zero};
{read(a, "0")}
{read(b, "0")}
for (int kb = 0; kb < K; kb += {depth}) {{
  BARRIER;
  {keep(a)}
  {keep(b)}
  BARRIER;
  {read(a, f"kb + {depth}")}
  {read(b, f"kb + {depth}")}
  UNROLL_4 for (int k = 0; k < {depth}; ++k) {{
    {value} a[{each}] ALIGN({align}), b[{each}] ALIGN({align});
    {piece("a", "y", tall)}
    {piece("b", "x", wide)}
    UNROLL for (int i = 0; i < {each}; ++i)
      UNROLL for (int j = 0; j < {each}; ++j) {{ {update} }}
  }}
}}
UNROLL for (int i = 0; i < {each}; ++i) {{
  const int m = m0 + i / {tall} * {tall * group} + y * {tall} + i % {tall};
  UNROLL for (int j = 0; j < {each}; ++j) {{
    const int n = n0 + j / {wide} * {wide * group} + x * {wide} + j % {wide};
    if (m < M && n < N) {{ {finish} }}
  }}
}}"""


def tile_groups(tiles: Tiles, rows: int, columns: int, batch: int) -> tuple[int, int, int]:
    """Work-groups of the GPU form."""
    return (ceil_div(columns, tiles.side), ceil_div(rows, tiles.side), batch)


def tile_local(tiles: Tiles) -> tuple[int, int, int]:
    """Work-items of a work-group of the GPU form."""
    return (tiles.group, tiles.group, 1)


def _strided(math: Arithmetic, name: str, unit: Unit, outer: str, outer_stride: str, k_stride: str) -> Fetch:
    """From memory with a stride for each index, which a number of 64 bits is multiplied by as rarely as can be."""
    return Fetch(
        name,
        unit,
        f"value = {math.load(name.upper(), f'outer_at_{name} + k_at_{name}')};",
        outer=f"const long outer_at_{name} = {outer} * {outer_stride};",
        along=f"long k_at_{name} = k * {k_stride};",
        then=f"k_at_{name} += {k_stride};",
    )


@cache
def tile_kernel(storage: str, result: str, unit_a: Unit, unit_b: Unit, addend: Addend, tiles: Tiles) -> Kernel:
    """The GPU form."""
    math = arithmetic(storage)
    target = arithmetic(result)
    finish = f"""
      {target.pointer} c = C + m * c_rs + n * c_cs;
      {"" if addend == "none" else f"{math.const_pointer} d = D + m * d_rs + n * d_cs;"}
      {finish_scalar(target, addend, "sums[i][j]", "0", "0")}"""
    a = _strided(math, "a", unit_a, "m", "a_rs", "a_cs")
    b = _strided(math, "b", unit_b, "n", "b_cs", "b_rs")
    body = f"""{begin_product(addend, 2)}
{tile_loop(math, tiles, a, b, finish)}"""
    return Kernel("matmul_tile", operands(math, result, addend), body, local=tile_local(tiles))


# What a compute unit does of a square's multiplications, relative to a square of the largest side.
_EFFICIENCY = {1: 1.0, 2: 0.85, 4: 0.5}


def choose_tiles(tiles: Tiles, m: int, n: int, k: int, batch: int, units: int, speed: int = 1) -> tuple[Tiles, int]:
    """The squares of a product on a GPU, and into how many parts its sums are divided so that all units have work.

    Of the squares that groups of the same size can have, that which should take the least time: large ones read less,
    small ones are more. `speed` is that of multiplications relative to plain ones of float32.
    """

    def time(side: int, parts: int) -> float:
        groups = ceil_div(m, side) * ceil_div(n, side) * batch * parts
        waves = ceil_div(groups, units) if groups < 2 * units else groups / units
        each = side * side * ceil_div(k, parts) / _EFFICIENCY[tiles.side // side] / (tiles.alone if waves == 1 else 1)
        return waves * each + (parts > 1) * speed * (tiles.launch + parts * batch * m * n * tiles.element / units)

    sizes = [size for size in tiles.sizes if speed == 1 or size.side >= fragments.LEAST_SIDE]
    most = max(1, k // tiles.part) if units > 1 else 1
    parts = [1 << power for power in range(most.bit_length())]
    return min(itertools.product(sizes, parts), key=lambda chosen: time(chosen[0].side, chosen[1]))


def why_not(p: Product) -> str:
    return "GPUs" if p.is_cpu else ""


def launches(p: Product) -> list[Launch]:
    batch, m, n, k = p.sizes
    tiles, parts = choose_tiles(p.on.tuning.tiles, m, n, k, batch, p.on.units)

    def kernel(result: str, addend: Addend) -> Kernel:
        return tile_kernel(p.storage, result, p.unit_a, p.unit_b, any_addend(addend), tiles)

    return split_k.launches(p, kernel, tile_groups(tiles, m, n, 1)[:2], parts if batch == 1 else 1, {})
