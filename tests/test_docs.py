"""What the documentation says is so: its code runs and prints what it says, its quotations and links are right."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from conftest import Script
from documentation import ROOT, Page, definitions, paths, program, read

LANGUAGES = {"python", "text", "sh", "c", "cpp", "toml", "mermaid"}

each_page = pytest.mark.parametrize("page", [read(path) for path in paths()], ids=lambda page: str(page.path))


def test_pages_are_found() -> None:
    assert {Path("README.md"), Path("docs/architecture.md")} <= set(paths())


@each_page
def test_the_code_runs(page: Page, script: Script) -> None:
    for process in page.processes:
        script(program(page.path, process), process.autoload, **process.environment)


@each_page
def test_blocks_say_their_language(page: Page) -> None:
    """So that no block of Python is left out for being called otherwise."""
    assert set(page.languages) <= LANGUAGES


@each_page
def test_quotations_are_word_for_word(page: Page) -> None:
    for source, code in page.quotations:
        assert code.strip() in (ROOT / source).read_text(), f"{page.path} quotes what {source} does not say"


@each_page
def test_included_code_is_tested(page: Page) -> None:
    for source, part in page.snippets:
        assert re.match(r"(tests|opencl/tests)/(\w+/)?test_\w+\.py$", source), f"{source} is no test"
        text = (ROOT / source).read_text()
        for mark in ("start", "end") if part else ():
            assert text.count(f"# --8<-- [{mark}:{part}]") == 1, f"{source} has no part {part}"


@each_page
def test_links_lead_somewhere(page: Page) -> None:
    for link in page.links:
        target, _, anchor = link.partition("#")
        path = (ROOT / page.path.parent / target).resolve()
        assert path.exists(), f"{page.path} links to {link}"
        if anchor and path.suffix in (".py", ".cpp", ".h"):
            assert anchor in definitions(path), f"{page.path}: {target} defines no {anchor}"
