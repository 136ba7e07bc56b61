"""A hook of MkDocs: the site brings along the files of the repository that its pages link to.

A link from a page to `../csrc/runtime/guard.cpp`, which serves those who read the page in the repository, becomes one
to a page of the site that shows the file. `../tests/test_streams.py#test_capability` leads to the line that defines it.
CONTRIBUTING.md, CHANGELOG.md and SECURITY.md become pages, too.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
LANGUAGES = {".py": "python", ".pyi": "python", ".cpp": "cpp", ".h": "cpp", ".toml": "toml", ".yml": "yaml"}

# Pages of the repository's own folder.
BESIDE = ("CONTRIBUTING", "CHANGELOG", "SECURITY")

_BESIDE = re.compile(rf"\]\(({'|'.join(BESIDE)})\.md\)")
_LINK = re.compile(r"\]\(((?:\.\./)+)([^)#\s]+)(?:#([\w.]+))?\)")


def on_files(files: Files, *, config: Any) -> Files:
    """Adds the pages that show files."""
    for name in BESIDE:
        content = (ROOT / f"{name}.md").read_text().replace("](docs/", "](")
        content = _BESIDE.sub(lambda match: f"]({match[1].lower()}.md)", content)
        files.append(File.generated(config, f"{name.lower()}.md", content=content))
    linked = set()
    for page in files.documentation_pages():
        for _, target, _ in _LINK.findall(page.content_string):
            if (ROOT / target).is_file():
                linked.add(target)
    for target in sorted(linked):
        files.append(File.generated(config, f"source/{target}.md", content=_show(target)))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Leads links to files of the repository to the pages that show them."""

    def lead(match: re.Match[str]) -> str:
        up, target, name = match.groups()
        if not (ROOT / target).is_file():
            return match[0]
        to_docs = up.removesuffix("../")  # one step less: from the page to docs/, not to the repository
        anchor = f"#__codelineno-0-{_line(target, name)}" if name else ""
        return f"]({to_docs}source/{target}.md{anchor})"

    return _LINK.sub(lead, markdown)


def _show(target: str) -> str:
    language = LANGUAGES.get(Path(target).suffix, "text")
    text = (ROOT / target).read_text()
    header = "---\nsearch: {exclude: true}\nhide: [navigation, toc]\n---\n"
    return f'{header}# {Path(target).name}\n\n`{target}`\n\n~~~~~~{{ .{language} linenums="1" }}\n{text}\n~~~~~~\n'


def _line(target: str, name: str) -> int:
    """The line of a file that defines a function or class; for "Class.method", that of the method."""
    start = 0
    lines = (ROOT / target).read_text().splitlines()
    for part in name.split("."):
        for number in range(start, len(lines)):
            if re.match(rf"\s*(async )?(def|class|struct) {part}\b", lines[number]):
                start = number
                break
        else:
            raise ValueError(f"{target} defines no {name}")
    return start + 1
