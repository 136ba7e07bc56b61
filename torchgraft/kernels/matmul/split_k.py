"""Products with few blocks and long sums (split-K): each group sums a part, and a second kernel adds the parts up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from math import prod

from torchgraft.codegen import ceil_div
from torchgraft.codegen.arithmetic import arithmetic
from torchgraft.codegen.kernel import Kernel, Launch, parameters
from torchgraft.codegen.types import BY_NAME
from torchgraft.kernels.matmul.problem import Matrix, Product, matrices
from torchgraft.kernels.products import Addend, finish_scalar


def parts_on_cpu(p: Product, groups: tuple[int, ...], least: int | None = None) -> int:
    """Into how many parts of at least `least` products (or as the tuning says) to divide the sums when there are these
    groups: so many that no core has one more than the others."""
    batch, _, _, k = p.sizes
    least = p.on.tuning.blocks.part if least is None else least
    units, count = p.on.units, prod(groups)
    if batch > 1 or units == 1:
        return 1
    parts = max(1, min(2 * units // count, k // least))
    return max(1, parts * count // units * units // count)


def launches(
    p: Product,
    kernel: Callable[[str, Addend], Kernel],
    groups: tuple[int, ...],
    parts: int,
    sizes: Mapping[str, int],
) -> list[Launch]:
    """The launch of a product, or of its parts and of what adds them up.

    Args:
        kernel: by the element type of C and the kind of D.
        groups: within a matrix.
        sizes: that the kernel takes beside those of the matrices. With `share` a work-item has so many of a batch.
    """
    batch, m, n, k = p.sizes
    sized = {"M": m, "N": n, **sizes}
    if parts == 1:
        arguments = {**p.operands, **sized, "each_K": k, "last_K": k}
        if "share" in sizes:
            arguments["batches"] = batch
        return [Launch(kernel(p.result, p.addend), (*groups, ceil_div(batch, sizes.get("share", 1))), arguments)]
    each = ceil_div(k, parts)
    parts = ceil_div(k, each)
    math = p.math
    place = p.temporary(parts * m * n, math.value)
    of_parts = matrices(
        {
            "C": Matrix(place, n, 1, m * n),
            "A": Matrix(p.a.pointer, p.a.row, p.a.column, each * p.a.column),
            "B": Matrix(p.b.pointer, p.b.row, p.b.column, each * p.b.row),
        }
    )
    of_parts |= {**sized, "each_K": each, "last_K": k - (parts - 1) * each, "alpha": 1.0 if math.is_float else 1}
    if "share" in sizes:
        of_parts |= {"share": 1, "batches": parts}
    product = Launch(kernel(math.value, "none"), (*groups, parts), of_parts)
    whole: dict[str, object] = {"C": p.c.pointer, "P": place, "M": m, "N": n, "parts": parts}
    whole |= {"c_rs": p.c.row, "c_cs": p.c.column, "alpha": p.alpha}
    if p.d:
        whole |= {"D": p.d.pointer, "d_rs": p.d.row, "d_cs": p.d.column, "beta": p.beta}
    return [product, Launch(fold_kernel(p.result, p.any_addend), (ceil_div(m * n, 64),), whole)]


@cache
def fold_kernel(storage: str, addend: Addend) -> Kernel:
    """Adds up the parts of products: C = alpha * (sum of `parts` matrices, one after the other in P) + beta * D."""
    math = arithmetic(storage)
    value = BY_NAME[math.value].storage
    body = f"""
const long index = GLOBAL_ID(0), count = (long)M * N;
if (index >= count) return;
{value} sum = 0;
for (int part = 0; part < parts; ++part) sum += P[part * count + index];
{math.pointer} c = C + index / N * c_rs + index % N * c_cs;
{"" if addend == "none" else f"{math.const_pointer} d = D + index / N * d_rs + index % N * d_cs;"}
{finish_scalar(math, addend, "sum", "0", "0")}"""
    more = f"; const {storage}* D; i64 d_rs, d_cs; {math.value} beta" if addend != "none" else ""
    params = parameters(
        f"{storage}* C; const {math.value}* P; i32 M, N, parts; i64 c_rs, c_cs; {math.value} alpha{more}"
    )
    return Kernel("matmul_fold", tuple(params), body, local=(64,))
