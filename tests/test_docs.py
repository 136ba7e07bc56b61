"""What the documentation says is so: its code runs and prints what it says, its quotations and links are right."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from conftest import Script
from documentation import ROOT, Page, definitions, paths, program, read, source_text, with_quotations

LANGUAGES = {"python", "text", "sh", "c", "cpp", "toml", "mermaid"}

PAGES = [read(path) for path in paths()]
# Whose code `make test` runs: what a newcomer reads first, and the longest.
FIRST = {"README.md", "docs/getting-started.md", "docs/new-device.md", "docs/troubleshooting.md"}

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.path))


def test_pages_are_found() -> None:
    assert {Path("README.md"), Path("docs/architecture.md")} <= set(paths())


@each_page
@pytest.mark.quick(page=[page for page in PAGES if str(page.path) in FIRST])
def test_the_code_runs(page: Page, script: Script) -> None:
    for process in page.processes:
        script(program(page.path, process), process.autoload, **process.environment)


@each_page
def test_blocks_say_their_language(page: Page) -> None:
    """So that no block of Python is left out for being called otherwise."""
    assert set(page.languages) <= LANGUAGES


@each_page
def test_quotations_are_as_their_sources(page: Page) -> None:
    assert (ROOT / page.path).read_text() == with_quotations(page.path), "`make docs-code` copies them anew"


@each_page
def test_quoted_code_is_tested(page: Page) -> None:
    """It is a test, or what the tests test."""
    for source, _ in page.quotations:
        assert re.match(r"(opencl/)?(tests/(\w+/)?test_\w+\.py|torchgraft(_opencl)?/.*|csrc/.*)(:|$)", source), source


def test_parts_of_files() -> None:
    assert source_text("tests/walkthrough/test_01_tensors.py:create").startswith("zeros = ")
    assert source_text("torchgraft/ops/creation.py:_triu").startswith("@planner")
    assert source_text('torchgraft/ops/pointwise.py:row("isinf"').count("\n") == 1
    with pytest.raises(ValueError, match="0 parts nothing"):
        source_text("tests/walkthrough/test_01_tensors.py:nothing")


@each_page
def test_nothing_is_included(page: Page) -> None:
    """Nothing stands only in the built site: a plain host of the repository shows every page in full."""
    assert "--8<--" not in (ROOT / page.path).read_text()
    assert all(code.strip() for _, code in page.quotations)


@each_page
def test_links_lead_somewhere(page: Page) -> None:
    for link in page.links:
        target, _, anchor = link.partition("#")
        path = (ROOT / page.path.parent / target).resolve()
        assert path.exists(), f"{page.path} links to {link}"
        if anchor and path.suffix in (".py", ".cpp", ".h"):
            assert anchor in definitions(path), f"{page.path}: {target} defines no {anchor}"


INTEGRATION = (ROOT / "docs/integration.md").read_text()


@pytest.mark.parametrize("row", re.findall(r"^\| (?!PyTorch asks|File)(.*\]\(\.\./.*) \|$", INTEGRATION, re.MULTILINE))
def test_each_item_has_a_source_and_a_test(row: str) -> None:
    """That the files and what they define exist is tested with all links."""
    asked, source, test = row.split(" | ")
    assert asked
    assert re.search(r"\]\(\.\./(torchgraft|csrc|opencl)/", source)
    assert re.search(r"\]\(\.\./(tests|opencl/tests)/[\w/]+\.py#\w+\)", test)


def test_all_items_are_read() -> None:
    tables = INTEGRATION.split("## PyTorch's sample backend")[0]
    rows = [line for line in tables.splitlines() if line.startswith("| ")]
    heads = [row for row in rows if row.startswith("| PyTorch asks for | Here | Test |")]
    assert len(heads) == tables.count("\n## ")
    assert all(row in heads or (row.count(" | ") == 2 and "](../" in row) for row in rows)
    assert len(rows) - len(heads) > 40


README = (ROOT / "README.md").read_text()
TABLE = {
    cells[0]: cells[1]
    for row in re.findall(r"^\| (.*) \|$", README, re.MULTILINE)
    if len(cells := row.split(" | ")) > 2
}


class TestNumbersOfTheReadme:
    """What the README says of this project can be counted, and is counted here."""

    def test_functions_of_the_smallest_driver(self) -> None:
        device = README.split("class Simulator(Driver):")[1].split("torchgraft.register")[0]
        functions = [name for name in re.findall(r"    def (\w+)\(", device) if name != "__init__"]
        assert f"{len(functions)} functions to begin with" in TABLE["For another device"]

    @pytest.mark.usefixtures("device")
    def test_overloads(self) -> None:
        said = int(re.sub(r"\D", "", TABLE["aten overloads with code of their own"]))
        registered = torch._C._dispatch_get_registrations_for_dispatch_key("PrivateUse1")
        counted = sum(name.startswith("aten::") for name in registered)
        assert said == pytest.approx(counted, rel=0.03)

    def test_the_operator_database(self) -> None:
        dtypes, agree = re.findall(r"in (\d+) dtypes.*?([\d.]+) % agree", TABLE["PyTorch's operator database"])[0]
        page = (ROOT / "docs/coverage.md").read_text()
        assert agree == f"{float(re.findall(r'correct [0-9]+ .([0-9.]+) %', page)[0]):.1f}"
        rows = re.findall(r"^\| (\w+) \| \d+ \| ", page, re.MULTILINE)
        assert int(dtypes) == len([row for row in rows if row != "all"])

    def test_versions_of_torch_and_python(self) -> None:
        requires = (ROOT / "pyproject.toml").read_text()
        oldest, newest = re.findall(r"torch (2\.\d+) to (2\.\d+)", README)[0]
        assert TABLE["torch, from one source"] == f"{oldest} to {newest}"
        major, minor = newest.split(".")
        assert f"torch>={oldest},<{major}.{int(minor) + 1}" in requires
        python = re.findall(r"Python (3\.\d+) to 3\.\d+", README)[0]
        assert f'requires-python = ">={python}"' in requires
