"""Imports between the package's parts: from the ground up, without a circle, as the page on the architecture shows."""

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

#: The parts from the ground up: one imports those before it, and its own modules. A line of docs/architecture.md each.
STOREYS = {
    "the core": ("_version", "_core"),
    "drivers": ("driver", "driver_table"),
    "the one backend": ("backend", "untraced", "fallback", "distributed", "serialization"),
    "texts of kernels": ("functions", "codegen", "kernels", "raw_kernel"),
    "ops": ("plans", "ops", "autograd", "autocast"),
    "what torch has": ("device_module", "compiler", "inductor", "patches", "library", "triton"),
    "the package": ("registration", "face", "autoload", "mypy"),
    "tools": ("diagnosis", "testing", "tuning", "warming", "cli", "__main__"),
}
PARTS = tuple(part for parts in STOREYS.values() for part in parts)

#: Imports that go up, and why.
UPWARD = {
    # What an author declares comes after our own tables: the first declaration loads them.
    ("torchgraft.plans.registry", "torchgraft.ops"),
    # A driver may bring its kernels' language: for type checkers alone.
    ("torchgraft.driver", "torchgraft.codegen.dialect"),
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
    """The package's face is `torchgraft` itself: what users import."""
    return module.split(".")[1] if "." in module else "face"


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


def test_every_part_has_its_storey() -> None:
    assert {part_of(module) for module in MODULES} == set(PARTS)


def test_no_circle() -> None:
    assert circles({m: {n for n in IMPORTS[m] if (m, n) not in UPWARD} for m in MODULES}) == []


def test_a_circle_is_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == [{"b", "c"}]


@pytest.mark.parametrize("part", PARTS)
def test_imports_go_down(part: str) -> None:
    above = PARTS[PARTS.index(part) + 1 :]
    upward = {(m, n) for m in MODULES if part_of(m) == part for n in IMPORTS[m] if part_of(n) in above}
    assert upward - UPWARD == set()


def test_imports_that_go_up_are_there() -> None:
    assert {(m, n) for m, n in UPWARD if n not in IMPORTS[m]} == set()


def test_few_imports_go_up() -> None:
    assert len(UPWARD) <= 6


def test_nothing_of_the_tests_is_in_the_product() -> None:
    users = {part_of(m) for m in MODULES for n in IMPORTS[m] if part_of(n) == "testing"}
    assert users <= {"testing", "cli"}, "`torchgraft conformance` is the one command that offers them"


def test_the_page_shows_the_storeys() -> None:
    """Top to bottom, with what a reader calls each and its parts."""
    page = (PACKAGE.parent / "docs/architecture.md").read_text()
    block = page.split("<!-- storeys -->")[1].split("```")[1].removeprefix("text\n")
    drawn = [re.split(r"\s{2,}", line.strip(), maxsplit=1) for line in block.splitlines()]
    names = {"face": "torchgraft"}
    expected = [[name, " ".join(names.get(each, each) for each in parts)] for name, parts in STOREYS.items()]
    assert drawn == expected[::-1]


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
