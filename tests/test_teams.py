"""Teams in both forms: folds of a part of a row, and where the members of a team meet."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from torchgraft.codegen.kernel import Kernel, parameters
from torchgraft.codegen.teams import Layout, Team
from torchgraft.kernels import eigen, linalg
from torchgraft.plans import PlanBuilder, planner

TEAMS: dict[str, tuple[str, dict[str, Any]]] = {
    "cpu": ("cpu", {}),
    "cpu_short": ("cpu", {"short": True}),
    "gpu": ("gpu", {}),
    "gpu_small": ("gpu", {"group": 64, "short": True}),
}
library = torch.library.Library("teams", "FRAGMENT")


@pytest.fixture(scope="module", autouse=True)
def _declared(device: str) -> None:
    for name, (form, options) in TEAMS.items():
        library.define(f"{name}(Tensor x, int size, bool across) -> (Tensor, Tensor, Tensor)")
        _declare(name, form, options)


def _declare(name: str, form: str, options: dict[str, Any]) -> None:
    def meta(x: torch.Tensor, size: int, across: bool) -> tuple[torch.Tensor, ...]:
        rows = x.shape[int(across)]
        return x.new_empty(rows, dtype=torch.int64), x.new_empty(rows), x.new_empty(rows)

    @planner(f"teams::{name}", meta=meta)
    def folds(p: PlanBuilder, out: tuple[torch.Tensor, ...], x: torch.Tensor, size: int, across: bool) -> None:
        p.form = form
        if across:
            layout, grid = p.rows(1, *x.shape)
        else:
            layout, grid = Layout(form), p.long_rows(*x.shape)
        team = Team(layout, **options)
        kernel = team.kernel(
            "folds",
            parameters("const f32* x; i64* at; f32* value, total; i64 part"),
            team.argmax("best", "f32", f"x[{team.at}]", size="part"),
            team.sum({"sum": "f32"}, f"const float v = x[{team.at}]; A.sum += v == v ? v : 0;", size="part"),
            team.leader(f"at[{team.row}] = best; value[{team.row}] = best_value; total[{team.row}] = sum;"),
        )
        p.launch(kernel, grid, x=x, at=out[0], value=out[1], total=out[2], part=size)


@pytest.mark.no_fallback
@pytest.mark.parametrize("across", [False, True])
@pytest.mark.parametrize("size", [1, 3, 4, 15, 16, 77, 300])
@pytest.mark.parametrize("name", TEAMS)
def test_the_first_of_the_largest_and_sums_of_a_part(device: str, name: str, size: int, across: bool) -> None:
    x = torch.randint(-9, 9, (40, size + 5)).float()  # so that the largest is there several times
    x[:, size:] = 100  # behind the part
    x[7, ::2] = float("nan")
    x[8] = float("nan")
    at, value, total = getattr(torch.ops.teams, name)((x.mT if across else x).contiguous().to(device), size, across)
    part = x[:, :size].nan_to_num(-float("inf"))
    largest = part.amax(1)
    assert value.tolist() == largest.tolist()
    assert at.tolist() == [row.index(v) for row, v in zip(part.tolist(), largest.tolist(), strict=True)]
    assert total.tolist() == x[:, :size].nan_to_num(0).sum(1).tolist()


def conditional_meetings(body: str) -> list[str]:
    """Conditions around a barrier, and jumps out of loops that have one: compilers for CPUs copy what follows."""
    text = body
    while (plain := re.sub(r"\([^()]*\)", "", text)) != text:
        text = plain
    found: list[str] = []
    blocks: list[tuple[str, list[str], list[bool]]] = []  # what stands in front, jumps out of it, whether it meets
    statement = ""
    for word in re.findall(r"[{};]|\w+", text):
        if word == "{":
            blocks.append((statement, [], []))
        elif word == "}":
            _, jumps, meets = blocks.pop()
            found += jumps if meets else []
        elif word == "BARRIER":
            found += [
                head for head in (statement, *(head for head, _, _ in blocks)) if re.search(r"\b(if|else)\b", head)
            ]
            for _, _, meets in blocks:
                meets.append(True)
        elif word in ("break", "continue", "return"):
            loops = [jumps for head, jumps, _ in blocks if re.search(r"\b(for|while)\b", head)]
            if loops:
                loops[-1].append(word)
        statement = "" if word in "{};" else f"{statement} {word}"
    return found


KERNELS = [
    linalg.cholesky_kernel("f32", "gpu"),
    linalg.triangular_kernel("f32", True, False, "rows", "gpu"),
    linalg.triangular_kernel("f32", True, False, "sides", "gpu"),
    linalg.lu_kernel("f32", True, "gpu"),
    linalg.permutation_kernel("f32", "gpu"),
    linalg.qr_kernel("c64", "gpu"),
    linalg.reflect_kernel("c64", True, "gpu"),
    eigen.tridiagonal_kernel("c64", "gpu"),
    eigen.bidiagonal_kernel("c64", "gpu"),
    eigen.symmetric_kernel("f32", "gpu"),
    eigen.singular_kernel("f32", "gpu"),
]


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_teams_on_matrices_meet_whatever_the_numbers(kernel: Kernel) -> None:
    assert "BARRIER" in kernel.body or kernel.name == "solve_triangular"
    assert conditional_meetings(kernel.body) == []


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("for (long i = 0; i < n; ++i) { if (x[i]) { BARRIER; } }", [" if"]),
        ("while (true) { BARRIER; if (state[0] < 0) break; }", ["break"]),
        ("while (true) { BARRIER; for (;;) { if (f(x, (y))) { break; } } }", []),
    ],
)
def test_a_meeting_under_a_condition_is_found(body: str, expected: list[str]) -> None:
    assert conditional_meetings(body) == expected


def test_a_value_that_was_named_before_it_was_made() -> None:
    team = Team(Layout("cpu", across=True))
    team.leader("y[o] = total;")
    with pytest.raises(ValueError, match="'total' is in statements that were made before it"):
        team.let("total", "f32", "1")
