"""What is asked of rows whose elements have an order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from torchgraft.codegen import element_type
from torchgraft.codegen.tuning import Sorting
from torchgraft.codegen.types import BY_NAME
from torchgraft.codegen.walk import FEW
from torchgraft.kernels.sorting.keys import key_type
from torchgraft.kernels.sorting.selection import Chosen
from torchgraft.plans import PlanBuilder, Unsupported
from torchgraft.plans.grid import Grid

Wanted = Chosen | Literal["sort", "topk"]


@dataclass(frozen=True)
class Rows:
    """Contiguous [count, length], and what is wanted of each row.

    Attributes:
        values, indices: where the wanted elements go, and where in the row they were; of one element the latter may be
            None.
        descending: of rows that are sorted, of which `topk` wants the beginning.
        k: how many elements `topk` wants, or which `kthvalue`, from 1 on.
    """

    p: PlanBuilder
    x: torch.Tensor
    wanted: Wanted
    values: torch.Tensor
    indices: torch.Tensor | None
    descending: bool = False
    k: int = 1

    def __post_init__(self) -> None:
        if element_type(self.x.dtype).is_complex:
            raise Unsupported("order of complex numbers")
        if self.wanted != "topk" and min(self.length, self.x.numel()) >= 2**31:
            raise Unsupported("rows of 2**31 elements")

    def __str__(self) -> str:
        numbered = {"topk": f"the first {self.k}", "kthvalue": f"number {self.k}"}
        what = "" if self.wanted == "sort" else f"{numbered.get(self.wanted, f'the {self.wanted}')} of each of "
        return f"{what}{self.count} rows of {self.length} of {self.type}"

    @property
    def is_cpu(self) -> bool:
        return self.p.form == "cpu"

    @property
    def sizes(self) -> Sorting:
        return self.p.device.tuning.sorting

    @property
    def count(self) -> int:
        return self.x.size(0)

    @property
    def length(self) -> int:
        return self.x.size(1)

    @property
    def type(self) -> str:
        return element_type(self.x.dtype).name

    def keys(self, *shape: int) -> torch.Tensor:
        """A temporary."""
        return self.p.empty(shape, BY_NAME[key_type(self.type)].dtype)

    def grid(self, cost: int = 1) -> Grid:
        """A work-item for each row, whose elements cost so much."""
        return self.p.walk(self.count, self.length * cost, multiple=1, group=FEW)
