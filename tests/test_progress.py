"""The line on the terminal while kernels are compiled."""

from __future__ import annotations

import io
import sys
import time

import pytest
from conftest import in_threads

from torchgraft.codegen import progress as module
from torchgraft.codegen.progress import Progress


class Terminal(io.StringIO):
    is_one = True

    def isatty(self) -> bool:
        return self.is_one


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.delenv("TORCHGRAFT_PROGRESS", raising=False)
    monkeypatch.setattr(module, "PATIENCE", 0.02)
    monkeypatch.setattr(module, "IDLE", 0.3)
    return Terminal()


@pytest.fixture(params=["tqdm", "plain"])
def line(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "plain":
        monkeypatch.setitem(sys.modules, "tqdm", None)
    else:
        pytest.importorskip("tqdm")


def work(progress: Progress, kernels: int = 5) -> None:
    for _ in range(kernels):
        with progress.compiling():
            time.sleep(0.015)


def shown(text: str) -> str:
    """What is left on a terminal's line."""
    return text.replace("\x1b[K", "").split("\r")[-1].strip()


@pytest.mark.usefixtures("line")
def test_it_comes_and_goes(terminal: Terminal) -> None:
    progress = Progress(terminal)
    work(progress)
    assert "compiling kernels: " in terminal.getvalue()
    deadline = time.monotonic() + 10
    while progress._line is not None and time.monotonic() < deadline:
        time.sleep(0.02)
    assert progress._line is None and shown(terminal.getvalue()) == ""


@pytest.mark.usefixtures("line")
def test_at_the_end_of_the_program(terminal: Terminal) -> None:
    progress = Progress(terminal)
    work(progress)
    assert shown(terminal.getvalue()) != ""
    progress.close()
    progress.close()
    assert shown(terminal.getvalue()) == ""


@pytest.mark.usefixtures("line")
def test_threads_share_it(terminal: Terminal) -> None:
    progress = Progress(terminal)
    in_threads(*[lambda: work(progress)] * 4)
    assert "compiling kernels: " in terminal.getvalue()
    assert progress._done == 20 and progress._running == 0
    progress.close()
    assert shown(terminal.getvalue()) == ""


def test_few_kernels_show_none(terminal: Terminal) -> None:
    work(Progress(terminal), 1)
    assert terminal.getvalue() == ""


def test_not_off_a_terminal(terminal: Terminal) -> None:
    terminal.is_one = False
    work(Progress(terminal))
    assert terminal.getvalue() == ""


def test_switched_off(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHGRAFT_PROGRESS", "0")
    work(Progress(terminal))
    assert terminal.getvalue() == ""


def test_a_terminal_that_goes_hinders_nothing(terminal: Terminal) -> None:
    progress = Progress(terminal)
    work(progress, 3)
    assert terminal.getvalue()
    terminal.close()
    work(progress, 3)
    progress.close()
