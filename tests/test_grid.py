"""How work is partitioned into groups."""

from __future__ import annotations

import pytest

from torchgraft.codegen.kernel import ceil_div
from torchgraft.codegen.teams import WIDTH
from torchgraft.codegen.tuning import Target, Tuning
from torchgraft.plans.grid import Partitioner


def partitioner(form: str) -> Partitioner:
    return Partitioner(Target(form, 2, 16, Tuning()))


@pytest.mark.parametrize("form", ["cpu", "gpu"])
@pytest.mark.parametrize(("n", "most"), [(0, 4), (1, 4), (4, 4), (5, 4), (1000, 7)])
def test_groups_that_share_are_no_more_than_there_may_be(form: str, n: int, most: int) -> None:
    grid = partitioner(form).share(n, most)
    (groups,), chunk = grid.groups, grid.values["chunk"]
    assert grid.values["n"] == n
    assert groups <= most
    assert groups * chunk >= n > (groups - 1) * chunk or n == groups == 0


@pytest.mark.parametrize("outer", [1, 3])
@pytest.mark.parametrize("width", [1, 64, WIDTH])
def test_columns_are_treated_so_many_at_once_at_most(outer: int, width: int) -> None:
    for inner in (1, 63, 64, 100_000):
        grid = partitioner("cpu").columns(outer, inner, 100, width)
        span = grid.values["span"]
        assert span <= width
        assert grid.groups[0] * grid.values["chunk"] >= outer * ceil_div(inner, span)
