"""How the rows of a team lie in memory."""

from __future__ import annotations

from dataclasses import dataclass

from torchgraft.codegen.walk import GROUP


@dataclass(frozen=True)
class Layout:
    """How the rows of a team lie in memory.

    Attributes:
        form: "cpu" or "gpu".
        across: rows lie across memory, neighbours side by side: a CPU treats many of them at once, in vectors, and a
            GPU gives each a work-item of its own. Otherwise rows are contiguous, one after the other.
        unit: of rows across memory, whether neighbours touch; of rows of runs, whether their elements do.
        runs: each row lies in memory as runs of `run` elements, and rows, whether across or not, have two strides as
            columns do. Several groups may share a row: each has `part` elements of it.
        simd_width: float32 elements of a CPU's vector registers: 4, 8 or 16.
        group: work-items of a group that share a row in the GPU form, a power of two.
        unrolled: of contiguous rows on a CPU that are shorter than a vector, how many elements they have, otherwise 0.
            Loops along a row are unrolled then, and vectors go across rows.
        masked: of contiguous rows on a CPU, whether what a row has behind its last whole vector is treated as a vector,
            too, predicated.
        registers: of contiguous rows on a CPU, vectors that are summed beside each other along a row, so that additions
            need not wait for each other: fewer for rows of few vectors, since they are added to each other at the end.
    """

    form: str
    across: bool = False
    unit: bool = True
    runs: bool = False
    simd_width: int = 16
    group: int = GROUP
    unrolled: int = 0
    masked: bool = False
    registers: int = 4
