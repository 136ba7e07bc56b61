"""The code, quotations and links of the documentation, found so that they can be tested.

Every block of a page that is marked as `python` runs, in order, in one process for each page, in which torch finds the
installed device. A comment before a block, which readers do not see, says where that is not so:

    <!-- new process: NAME=value -->          from here on another process, with this environment, in which torch finds
                                              no device by itself
    <!-- from torchgraft/ops/matmul.py -->    a quotation: it stands word for word in that file

A block marked as `text` right after one of Python is what that one prints; "..." in it stands for anything.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parent.parent

_FENCE = re.compile(
    r"(?:^ *<!-- (?P<comment>[^>]+?) -->\n+)?^(?P<indent> *)```(?P<language>\S*)[^\n]*\n(?P<code>.*?)^ *```$",
    re.MULTILINE | re.DOTALL,
)
# The longer form of pymdownx.snippets: the shorter one is an expression of Python, which ruff would format.
_SNIPPET = re.compile(r"^ *--8<--\n *([^:\n]+)(?::([\w-]+))?\n *--8<--$", re.MULTILINE)
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")


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
        quotations: pairs of a file and what is quoted from it.
        snippets: pairs of an included file and the name of its part, "" for the whole.
        languages: of all blocks.
        links: targets within the repository, as written.
    """

    path: Path
    processes: list[Process]
    quotations: list[tuple[str, str]]
    snippets: list[tuple[str, str]]
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
    page = Page(path, [Process(autoload=True)], [], _SNIPPET.findall(text), [], links)
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
        if fence["language"] != "python" or _SNIPPET.search(code):
            continue
        if comment.startswith("from "):
            page.quotations.append((comment.removeprefix("from ").strip(), code))
            continue
        if comment.startswith("new process"):
            pairs = comment.removeprefix("new process").lstrip(":").split()
            page.processes.append(Process(autoload=False, environment=dict(pair.split("=", 1) for pair in pairs)))
        previous = Block(code, text.count("\n", 0, fence.start("code")) + 1)
        page.processes[-1].blocks.append(previous)
    page.processes = [process for process in page.processes if process.blocks]
    return page


def program(path: Path, process: Process) -> str:
    """A program that runs the blocks in an empty folder; its errors name the page and its lines."""
    blocks = [(block.line, block.code, block.prints) for block in process.blocks]
    return textwrap.dedent(f"""
        import contextlib, doctest, io, os, sys, tempfile

        os.chdir(tempfile.mkdtemp())
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
