"""The pictures of the documentation: they show what their scripts draw now, and a page shows each of them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from documentation import ROOT, paths

ASSETS = ROOT / "docs/assets"
PICTURES = [path for path in sorted(ASSETS.iterdir()) if path.suffix in (".svg", ".png")]


def draw(script: str, folder: Path) -> list[Path]:
    """What a script draws into an empty folder."""
    command = [sys.executable, ROOT / "scripts/pictures" / script, folder]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return sorted(folder.iterdir())


def test_diagrams_are_as_drawn(tmp_path: Path) -> None:
    drawn = draw("diagrams.py", tmp_path)
    assert [path.name for path in drawn] == ["call.svg", "layers.svg"]
    for path in drawn:
        assert path.read_text() == (ASSETS / path.name).read_text(), "`make pictures` draws it anew"


@pytest.mark.thorough
def test_charts_show_the_stored_figures(tmp_path: Path) -> None:
    """Their words and numbers: another version of matplotlib may draw other lines."""

    def words(path: Path) -> list[str]:
        return re.findall(r"<text[^>]*>([^<]+)</text>", path.read_text())

    drawn = draw("charts.py", tmp_path)
    assert [path.name for path in drawn] == ["classes.svg", "coverage.svg", "speed.svg"]
    for path in drawn:
        assert len(words(path)) > 20
        assert words(path) == words(ASSETS / path.name), "`make pictures` draws it anew"


@pytest.mark.parametrize("picture", PICTURES, ids=lambda path: path.name)
def test_a_page_shows_it_and_says_what_it_is(picture: Path) -> None:
    pages = "".join((ROOT / path).read_text() for path in paths())
    assert re.search(rf"!\[[^\]]{{20,}}\]\((docs/)?assets/{re.escape(picture.name)}\)", pages)
    assert picture.stat().st_size < 200_000
