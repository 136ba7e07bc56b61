"""Imports between the package's parts: from the ground up, without a circle."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from torchgraft import ops, plans

PACKAGE = Path(__file__).parent.parent / "torchgraft"

#: The parts from the ground up: one imports those before it, and its own modules.
PARTS = ("functions", "codegen", "kernels", "plans", "ops")

#: Imports that go up, and why.
UPWARD = {
    # What an author declares comes after our own tables: the first declaration loads them.
    ("torchgraft.plans.registry", "torchgraft.ops"),
    # The planning of loops is to leave codegen, and the function library kernels.
    ("torchgraft.codegen.pointwise", "torchgraft.plans.builder"),
    ("torchgraft.codegen.batch", "torchgraft.plans.builder"),
    ("torchgraft.codegen.pointwise", "torchgraft.kernels"),
    ("torchgraft.codegen.dialect", "torchgraft.kernels"),
}


def name_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in PACKAGE.rglob("*.py") if "templates" not in path.parts}


def imported(module: str) -> Iterator[str]:
    """The package's modules that one imports anywhere in its text, in functions and for type checkers too."""
    for node in ast.walk(ast.parse(MODULES[module].read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in MODULES)
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{module} imports relatively"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                if full in MODULES:
                    yield full
                elif node.module in MODULES and full != "torchgraft._C":  # the core, in C++
                    yield node.module


IMPORTS = {module: set(imported(module)) - {module} for module in MODULES}


def part_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def circles(imports: dict[str, set[str]]) -> list[set[str]]:
    """The modules that come back to themselves, those of one circle together."""
    reached: dict[str, set[str]] = {}
    for module in imports:
        todo, seen = list(imports[module]), set()
        while todo:
            other = todo.pop()
            if other not in seen:
                seen.add(other)
                todo += imports[other]
        reached[module] = seen
    found: list[set[str]] = []
    for module in imports:
        circle = {other for other in reached[module] if module in reached[other]}
        if circle and circle not in found:
            found.append(circle)
    return found


def test_no_circle() -> None:
    parts = {m: {n for n in IMPORTS[m] if (m, n) not in UPWARD} for m in MODULES if part_of(m) in PARTS}
    inside = {m: {n for n in names if n in parts} for m, names in parts.items()}
    assert circles(inside) == []


def test_a_circle_is_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == [{"b", "c"}]


@pytest.mark.parametrize("part", PARTS)
def test_imports_go_down(part: str) -> None:
    above = PARTS[PARTS.index(part) + 1 :]
    upward = {(m, n) for m in MODULES if part_of(m) == part for n in IMPORTS[m] if part_of(n) in above}
    assert upward - UPWARD == set()


def test_imports_that_go_up_are_there() -> None:
    assert {(m, n) for m, n in UPWARD if n not in IMPORTS[m]} == set()


def test_declarations_have_few_flags() -> None:
    """What is declared beside the names, the function and the texts."""
    declarers = (plans.planner, plans.composite, plans.decomposition, plans.decompose, ops.row, ops.reduction)
    texts = {"names", "text", "integer", "boolean", "complex", "combine", "identity", "map", "finish"}
    flags = {name for declare in declarers for name in inspect.signature(declare).parameters} - texts
    assert len(flags) <= 16, flags


def test_rows_are_data() -> None:
    row = plans.ENTRIES["aten::exp"].plan
    assert dataclasses.is_dataclass(row)
    with pytest.raises(dataclasses.FrozenInstanceError):
        row.cost = 2  # type: ignore[misc]


def test_pages_agree_on_the_ways_to_write_an_op() -> None:
    root = PACKAGE.parent
    adding, architecture = ((root / "docs" / page).read_text() for page in ("adding-ops.md", "architecture.md"))
    numbered = re.findall(r"^## \d\. A (.+)$", adding, re.MULTILINE)
    table = architecture.split("There are four ways to write an op, cheapest first:")[1].split("\n\n")[1]
    assert re.findall(r"^\| a (.+?) \|", table, re.MULTILINE) == numbered
    assert len(numbered) == 4 and "There are four ways" in adding
    named = ", ".join(f"a {way}" for way in numbered)
    assert f"the four ways that serves: {named}" in " ".join((root / "CONTRIBUTING.md").read_text().split())
