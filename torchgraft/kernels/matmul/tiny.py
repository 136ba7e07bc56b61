"""Products of many matrices that are tiny, such as rotations of points: the CPU form.

A matrix of three rows and columns takes less time than a work-item, than a loop over its columns and than finding
where it begins. So a work-item has many of them, one after the other, and the text has each of their elements: sizes
are fixed in it, and a product is some dozens of instructions without a branch.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from torchgraft.codegen import ceil_div
from torchgraft.codegen.arithmetic import Arithmetic, arithmetic
from torchgraft.codegen.kernel import Kernel, Launch, parameters
from torchgraft.codegen.tuning import Tiny
from torchgraft.kernels.matmul.division import share
from torchgraft.kernels.matmul.problem import Product
from torchgraft.kernels.products import Addend, finish_scalar

# Strides up to which a compiler can make vectors of matrices that are side by side: all first elements, and so on.
_NEAR = 4


def is_tiny(sizes: Tiny, batch: int, m: int, n: int, k: int) -> bool:
    """Whether products of so many rows, columns and terms are written out."""
    return batch >= sizes.batch and k > 0 and max(m, n, k) <= sizes.longest and m * n * k <= sizes.products


def has_tiny_rows(sizes: Tiny, m: int, n: int, k: int) -> bool:
    """Whether each row of a product is to be one of its own, which is written out."""
    return (max(n, k) <= sizes.row or (n == 1 and k <= sizes.longest)) and is_tiny(sizes, m, 1, n, k)


def _sum(math: Arithmetic, i: int, j: int, k: int) -> str:
    """Statements that declare the sum ``s`` of element (i, j)."""
    if not math.is_complex:
        terms = " ".join(f"s = {math.multiply_add(f'a{i}_{c}', f'b{c}_{j}', 's')};" for c in range(k))
        return f"{math.scalar} s = 0; {terms}"
    terms = " ".join(
        f"x = fma(-a{i}_{c}.y, b{c}_{j}.y, fma(a{i}_{c}.x, b{c}_{j}.x, x));"
        f" y = fma(a{i}_{c}.y, b{c}_{j}.x, fma(a{i}_{c}.x, b{c}_{j}.y, y));"
        for c in range(k)
    )
    return f"{math.scalar} x = 0, y = 0; {terms} const {math.scalar}2 s = MAKE_{math.scalar}2(x, y);"


Strides = tuple[tuple[int | None, ...], ...]
"""Of A, B and C the distances of rows, columns and matrices, as far as they are written out."""


def tiny_strides(strides: Sequence[tuple[int, int, int]]) -> Strides:
    """Those to write out: all where they are so small that a compiler can make vectors of what lies so; otherwise what
    tells it that rows lie together, and what all products share. Of more it makes vectors that are slower than none."""
    if all(0 <= by <= _NEAR for own in strides for by in own):
        return tuple(strides)
    return tuple((None, 1 if column == 1 else None, 0 if batch == 0 else None) for _, column, batch in strides)


@cache
def tiny_kernel(storage: str, result: str, sizes: tuple[int, int, int], strides: Strides, addend: Addend) -> Kernel:
    """C[i] = alpha * A[i] @ B[i] + beta * D[i], `sizes` being rows, columns and the length of the sums.

    One of A and B whose matrices are at a distance of 0 is shared by all products, and read once. A work-item has
    `share` of the `batches`.
    """
    math, target = arithmetic(storage), arithmetic(result)
    m, n, k = sizes
    value = f"{math.scalar}2" if math.is_complex else math.scalar
    known = dict(zip("abcd", (*strides, (None, None, None)), strict=True))

    def at(name: str, row: int, column: int) -> str:
        places = zip((f"{row}", f"{column}", "batch"), ("rs", "cs", "bs"), known[name], strict=True)
        terms = [f"{i} * {f'{name}_{s}' if by is None else by}" for i, s, by in places if i != "0" and by != 0]
        return " + ".join(terms or ["0"])

    loads_a = [f"const {value} a{i}_{p} = {math.load('A', at('a', i, p))};" for i in range(m) for p in range(k)]
    loads_b = [f"const {value} b{p}_{j} = {math.load('B', at('b', p, j))};" for p in range(k) for j in range(n)]
    stores = [
        f"{{ {_sum(math, i, j, k)} {finish_scalar(target, addend, 's', at('d', i, j), at('c', i, j))} }}"
        for i in range(m)
        for j in range(n)
    ]
    shared, own = [], stores
    for loads, distance in ((loads_b, known["b"][2]), (loads_a, known["a"][2])):
        if distance == 0:
            shared += loads
        else:
            own = loads + own
    before, each = ("\n  ".join(lines) for lines in (shared, own))
    body = f"""
const long first = GROUP_ID(0) * (long)share, last = min(first + share, (long)batches);
{"" if addend == "none" else f"{math.const_pointer} d = D;"}
{target.pointer} c = C;
  {before}
// Compilers make vectors of it unasked where they can; told to, one for CPUs has been seen to crash.
for (long batch = first; batch < last; ++batch) {{
  {each}
}}"""
    d = addend != "none"
    names = ", ".join(f"{name}_{s}" for name in ("abcd" if d else "abc") for s in ("rs", "cs", "bs"))
    pointers = f"{result}* C; const {storage}* A, B{', D' if d else ''}"
    params = parameters(f"{pointers}; i32 share, batches; i64 {names}; {math.value} alpha{', beta' if d else ''}")
    return Kernel("matmul_tiny", params, body, local=(1,))


def why_not(p: Product) -> str:
    if not p.is_cpu:
        return "CPUs"
    sizes = p.on.tuning.tiny
    many = f"{sizes.batch} matrices or more, of at most {sizes.products} multiplications each"
    return "" if is_tiny(sizes, *p.sizes) else many


def launches(p: Product) -> list[Launch]:
    batch, m, n, k = p.sizes
    strides = tiny_strides([(x.row, x.column, x.batch) for x in (p.a, p.b, p.c)])
    kernel = tiny_kernel(p.storage, p.result, (m, n, k), strides, p.any_addend)
    each = share(batch, m * n * k + m * k + k * n + 2 * m * n, p.on)
    return [Launch(kernel, (ceil_div(batch, each),), {**p.operands, "share": each, "batches": batch})]
