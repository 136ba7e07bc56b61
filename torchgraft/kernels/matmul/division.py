"""How a product is divided among work-items."""

from __future__ import annotations

from torchgraft.codegen import ceil_div, round_up
from torchgraft.codegen.tuning import Target


def wanted_blocks(products: int, least: int, units: int, each: int) -> int:
    """How many blocks to make of so many products: some for each core, `each` at most. A block worth less than some
    microseconds, of `least` products, is not worth a core's waking up."""
    if units == 1:
        return 1
    wanted = min(each * units, 1 + products // least)
    # That no core has one more than the others.
    return round_up(wanted, units) if wanted > units else wanted


def share(batch: int, cycles: int, on: Target) -> int:
    """How many matrices of a batch a work-item has, each of which takes it about so many cycles."""
    return max(1, min(ceil_div(on.tuning.partition.cycles, max(1, cycles)), ceil_div(batch, on.units)))


def even_part(size: int, part: int, step: int = 1) -> int:
    """The multiple of `step` that leaves as many parts as `part` does, the last as large as can be."""
    return round_up(ceil_div(size, ceil_div(size, part)), step)
