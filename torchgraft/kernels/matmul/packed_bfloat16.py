"""Products of bfloat16 by instructions for packed pairs, the CPU form; see `kernels.bfloat16`."""

from __future__ import annotations

from torchgraft.codegen import ceil_div
from torchgraft.codegen.kernel import Kernel, Launch
from torchgraft.codegen.types import BY_NAME
from torchgraft.kernels import bfloat16
from torchgraft.kernels.matmul import split_k
from torchgraft.kernels.matmul.block import block_shape
from torchgraft.kernels.matmul.problem import Product
from torchgraft.kernels.products import Addend


def why_not(p: Product) -> str:
    if not p.is_cpu:
        return "CPUs"
    if p.storage != "bf16":
        return "bfloat16"
    if p.on.bfloat16 is None:
        return "devices with instructions for it"
    if p.paired is None:
        return f"rows or columns that lie together, and for sums of {bfloat16.LEAST_DEPTH} or more"
    return ""


def launches(p: Product) -> list[Launch]:
    batch, m, n, k = p.sizes
    blocks, size = p.on.tuning.blocks, BY_NAME[p.storage].size
    rows, columns = block_shape(p.math, bfloat16.TILE, m, n, k, batch, p.on.units, blocks, blocks.work // size)

    def kernel(result: str, addend: Addend) -> Kernel:
        assert p.paired is not None
        return bfloat16.block_kernel(p.paired, result, p.unit_a, p.unit_b, addend)

    groups = (ceil_div(n, columns), ceil_div(m, rows))
    sizes = {"block_rows": rows, "block_columns": columns}
    return split_k.launches(p, kernel, groups, split_k.parts_on_cpu(p, groups), sizes)
