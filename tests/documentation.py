"""The code, quotations and links of the documentation, found so that they can be tested.

Every block of a page that is marked as `python` runs, in order, in one process for each page, in which torch finds the
installed device. A comment before a block, which readers do not see, says where that is not so:

    <!-- new process: NAME=value -->               from here on another process, with this environment, in which torch
                                                   finds no device by itself
    <!-- needs one other -->                       the block runs where these libraries are installed
    <!-- from tests/walkthrough/test_x.py:use -->  a quotation, which `make docs-code` (this file, run as a program)
                                                   copies from there

Pages hold the code that they quote, so that they can be read wherever Markdown can. What is quoted is the whole file,
or the part of it that is named after the colon: the lines between `# <use>` and `# </use>`, the function or class of
that name, or the statement that begins with that text.

A block marked as `text` right after one of Python is what that one prints; "..." in it stands for anything.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parent.parent

_FENCE = re.compile(
    r"(?:^ *<!-- (?P<comment>[^>]+?) -->\n+)?^(?P<indent> *)```(?P<language>\S*)[^\n]*\n(?P<code>.*?)^ *```$",
    re.MULTILINE | re.DOTALL,
)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")  # or a picture


@dataclass
class Block:
    """A block of Python.

    Attributes:
        line: number of its first line in the page.
        prints: what the page says it prints; None if it says nothing.
    """

    code: str
    line: int
    prints: str | None = None


@dataclass
class Process:
    """Blocks that run one after the other in a process of their own."""

    autoload: bool
    environment: dict[str, str] = field(default_factory=dict)
    blocks: list[Block] = field(default_factory=list)


@dataclass
class Page:
    """What is to be tested of a page.

    Attributes:
        path: from the repository's root.
        quotations: pairs of a source, as the page names it, and what the page quotes from it.
        languages: of all blocks.
        links: targets within the repository, as written; pictures are among them.
    """

    path: Path
    processes: list[Process]
    quotations: list[tuple[str, str]]
    languages: list[str]
    links: list[str]


def paths() -> list[Path]:
    """The pages: the READMEs, CONTRIBUTING and all of docs/."""
    found = [*ROOT.glob("*.md"), *ROOT.glob("opencl/*.md"), *ROOT.glob("docs/**/*.md")]
    return sorted(path.relative_to(ROOT) for path in found)


def read(path: Path) -> Page:
    """Reads a page."""
    text = (ROOT / path).read_text()
    links = [link for link in _LINK.findall(_FENCE.sub("", text)) if not re.match(r"\w+:|#", link)]
    page = Page(path, [Process(autoload=True)], [], [], links)
    previous: Block | None = None
    end = 0
    for fence in _FENCE.finditer(text):
        code = textwrap.dedent(fence["code"])
        comment = fence["comment"] or ""
        page.languages.append(fence["language"])
        if fence["language"] == "text" and previous is not None and not text[end : fence.start()].strip():
            previous.prints = code
        previous = None
        end = fence.end()
        if comment.startswith("from "):
            page.quotations.append((comment.removeprefix("from "), code))
            continue
        if fence["language"] != "python":
            continue
        if comment.startswith("needs ") and not all(map(importlib.util.find_spec, comment.split()[1:])):
            continue
        if comment.startswith("new process"):
            pairs = comment.removeprefix("new process").lstrip(":").split()
            page.processes.append(Process(autoload=False, environment=dict(pair.split("=", 1) for pair in pairs)))
        previous = Block(code, text.count("\n", 0, fence.start("code")) + 1)
        page.processes[-1].blocks.append(previous)
    page.processes = [process for process in page.processes if process.blocks]
    return page


def source_text(source: str) -> str:
    """What a quotation's source says, e.g. `torchgraft/ops/creation.py:_triu`.

    Raises:
        ValueError: if the file has no such part, or more than one.
    """
    path, _, part = source.partition(":")
    text = (ROOT / path).read_text()
    if not part:
        return text
    marked = re.findall(rf"^ *# <{re.escape(part)}>\n(.*?)^ *# </{re.escape(part)}>$", text, re.MULTILINE | re.DOTALL)
    found = [_at_the_top_level(each) for each in marked] or list(_statements(text, part))
    if len(found) != 1:
        raise ValueError(f"{path} has {len(found)} parts {part}")
    return found[0]


def _at_the_top_level(code: str) -> str:
    """What stood within a function, as ruff formats it where it stands alone: two empty lines around functions."""
    paragraphs = re.split(r"\n\n(?=\S)", textwrap.dedent(code))
    joined = paragraphs[0]
    for before, after in pairwise(paragraphs):
        defines = re.match("def|class|@", before) or re.match("def|class|@", after)
        joined += ("\n\n\n" if defines else "\n\n") + after
    return joined


def _statements(text: str, part: str) -> Iterator[str]:
    """The statements of a module that define the name `part`, or begin with this text."""
    lines = text.splitlines(keepends=True)
    for statement in ast.parse(text).body:
        decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
        start = min(each.lineno for each in [statement, *decorators])
        code = "".join(lines[start - 1 : statement.end_lineno])
        if getattr(statement, "name", None) == part or code.startswith(part):
            yield code


def with_quotations(path: Path) -> str:
    """The text of a page, with its quotations as their sources are now."""

    def quote(fence: re.Match[str]) -> str:
        comment = fence["comment"] or ""
        if not comment.startswith("from "):
            return fence[0]
        start, end = (fence.span("code")[side] - fence.start() for side in (0, 1))
        code = textwrap.indent(source_text(comment.removeprefix("from ")), fence["indent"])
        return fence[0][:start] + code + fence[0][end:]

    return _FENCE.sub(quote, (ROOT / path).read_text())


def program(path: Path, process: Process) -> str:
    """A program that runs the blocks as a reader does: in an empty folder, without the tests' modules. Its errors name
    the page and its lines."""
    blocks = [(block.line, block.code, block.prints) for block in process.blocks]
    return textwrap.dedent(f"""
        import contextlib, doctest, io, os, sys, tempfile

        os.chdir(tempfile.mkdtemp())
        sys.path[:] = [folder for folder in sys.path if os.path.basename(folder.rstrip("/")) != "tests"]
        options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.REPORT_NDIFF
        space = {{"__name__": "__main__"}}
        for line, code, expected in {blocks!r}:
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile("\\n" * (line - 1) + code, {str(ROOT / path)!r}, "exec"), space)
            checker, got = doctest.OutputChecker(), printed.getvalue()
            if expected is not None and not checker.check_output(expected, got, options):
                difference = checker.output_difference(doctest.Example(code, expected), got, options)
                sys.exit(f"{path}:{{line}}: " + difference)
    """)


def definitions(source: Path) -> Iterator[str]:
    """The names of a file's functions and classes, in Python or C++; methods are "Class.method" too."""
    kind = ""
    for line in (ROOT / source).read_text().splitlines():
        if found := re.match(r"( *)(?:async )?(def|class|struct) (\w+)", line):
            yield found[3]
            if found[2] == "class":
                kind = found[3]
            elif found[1]:
                yield f"{kind}.{found[3]}"


if __name__ == "__main__":
    for each in paths():
        (ROOT / each).write_text(with_quotations(each))
