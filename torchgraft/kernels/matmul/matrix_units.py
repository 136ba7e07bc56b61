"""Products by a GPU's matrix units; see `kernels.fragments`."""

from __future__ import annotations

from torchgraft.codegen.kernel import Kernel, Launch
from torchgraft.kernels import fragments
from torchgraft.kernels.matmul import split_k
from torchgraft.kernels.matmul.problem import Product, any_addend
from torchgraft.kernels.matmul.tile import choose_tiles, tile_groups
from torchgraft.kernels.products import Addend


def why_not(p: Product) -> str:
    if p.is_cpu or not p.on.matrix_units:
        return "GPUs with matrix units"
    if p.storage not in fragments.STORAGES:
        return " and ".join(fragments.STORAGES)
    least = p.on.tuning.matrix_units.least_sums
    return "" if p.sizes[3] >= least else f"sums of {least} or more"


def launches(p: Product) -> list[Launch]:
    (batch, m, n, k), sizes = p.sizes, p.on.tuning.matrix_units
    tiles, parts = choose_tiles(p.on.matrix_tiles, m, n, k, batch, p.on.units, sizes.speed)

    def kernel(result: str, addend: Addend) -> Kernel:
        return fragments.fragment_kernel(p.storage, result, p.unit_a, p.unit_b, any_addend(addend), tiles.side)

    return split_k.launches(p, kernel, tile_groups(tiles, m, n, 1)[:2], parts if batch == 1 else 1, {})
