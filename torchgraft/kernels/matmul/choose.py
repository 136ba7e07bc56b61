"""Which kernel a matrix product gets."""

from __future__ import annotations

from torchgraft.codegen.kernel import Launch
from torchgraft.kernels.choice import Way, choose
from torchgraft.kernels.matmul import axpy, block, dot, matrix_units, packed_bfloat16, rows, small, tile, tiny
from torchgraft.kernels.matmul.problem import Product

#: The first that a product suits is taken.
WAYS = (
    Way("rows", rows.why_not, rows.launches),
    Way("matrix-units", matrix_units.why_not, matrix_units.launches),
    Way("tile", tile.why_not, tile.launches),
    Way("tiny", tiny.why_not, tiny.launches),
    Way("dot", dot.why_not, dot.launches),
    Way("small", small.why_not, small.launches),
    Way("axpy", axpy.why_not, axpy.launches),
    Way("packed-bfloat16", packed_bfloat16.why_not, packed_bfloat16.launches),
    Way("block", block.why_not, block.launches),
)


def matmul_launches(product: Product) -> list[Launch]:
    """The launches of a product."""
    return choose("matmul", WAYS, _turned(product))


def _turned(p: Product) -> Product:
    """Many rows of a few elements are products of their own, and a matrix times a column is a row times a matrix."""
    batch, m, n, k = p.sizes
    sizes = p.on.tuning.tiny
    if p.is_cpu and batch == 1 and tiny.has_tiny_rows(sizes, m, n, k):
        return p.by_rows
    is_tiny = p.is_cpu and tiny.is_tiny(sizes, batch, m, n, k)
    return p.transposed if n == 1 and m > 1 and not is_tiny else p
