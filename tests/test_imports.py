"""Functions are called with modules that were executed, whoever imports them and when; nothing else is seen of it."""

from __future__ import annotations

import copy
import importlib
import importlib.util
import inspect
import itertools
import pickle
import sys
import threading
import warnings
from collections.abc import Callable
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from conftest import in_threads

from torchgraft.patches import imports

Write = Callable[[str], str]
_numbers = itertools.count()


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes a module and returns its name, which no other has."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(text: str) -> str:
        name = f"imported_{next(_numbers)}"
        (tmp_path / f"{name}.py").write_text(text)
        return name

    return write


def change(module: ModuleType) -> None:
    """Changes nothing to the worse."""
    plain = module.answer
    module.answer = lambda: plain() + 1  # type: ignore[attr-defined]


ANSWER = "class Kind: ...\ndef answer(): return 41\n"


def test_at_the_import(write: Write) -> None:
    name = write(ANSWER)
    imports.call_after({name: [change]})
    assert name not in sys.modules
    assert importlib.import_module(name).answer() == 42


def test_modules_are_as_ever(write: Write) -> None:
    name = write(ANSWER)
    imports.call_after({name: [change]})
    found = importlib.util.find_spec(name)
    assert found is not None and found.loader is not None
    assert copy.copy(found.loader).get_filename(name) == found.origin  # type: ignore[attr-defined]
    module = importlib.import_module(name)
    assert type(module) is ModuleType and type(module.__spec__) is ModuleSpec
    assert type(module.__loader__) is type(module.__spec__.loader) is SourceFileLoader
    assert inspect.getsource(module) == ANSWER
    assert isinstance(pickle.loads(pickle.dumps(module.Kind())), module.Kind)
    assert importlib.reload(module).answer() == 42


def test_already_imported(write: Write) -> None:
    """Those that have taken the old function by name get the new one."""
    name = write(ANSWER)
    user = importlib.import_module(write(f"from {name} import answer as known\n"))
    imports.call_after({name: [change]})
    assert sys.modules[name].answer() == user.known() == 42


def test_while_it_is_imported(write: Write) -> None:
    """As where a library's import of torch registers the backend."""
    name = write("import sys\nsys.modules['waiting']()\n" + ANSWER)
    sys.modules["waiting"] = lambda: imports.call_after({name: [change]})  # type: ignore[assignment]
    try:
        module = importlib.import_module(name)
    finally:
        del sys.modules["waiting"]
    assert module.answer() == 42
    assert type(module.__spec__) is ModuleSpec


def test_what_fails(write: Write) -> None:
    """A function that does not fit its module says so, a module that cannot be imported says that as ever."""
    name, broken = write("nothing = 1\n"), write("import no_such_module\n")
    imports.call_after({name: [change], broken: [change]})
    with pytest.warns(UserWarning, match=f"{name} is not as torchgraft knows it.*nothing to the worse"):
        assert importlib.import_module(name).nothing == 1
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        importlib.import_module(broken)


def test_in_threads(write: Write) -> None:
    name = write("import time\ntime.sleep(0.1)\n" + ANSWER)
    calls: list[Any] = []
    imports.call_after({name: [calls.append]})

    def use() -> None:
        assert importlib.import_module(name).answer() == 41 and calls == [sys.modules[name]]

    in_threads(use, use, use)


def test_while_another_thread_imports_it(write: Write) -> None:
    name = write("import sys\nsys.modules['waiting']()\n" + ANSWER)
    begun, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        go_on.wait()

    def register() -> None:
        begun.wait()
        imports.call_after({name: [change]})
        go_on.set()

    sys.modules["waiting"] = wait  # type: ignore[assignment]
    try:
        in_threads(lambda: importlib.import_module(name), register)
    finally:
        del sys.modules["waiting"]
    assert sys.modules[name].answer() == 42


def test_other_modules_are_left_alone(write: Write) -> None:
    name = write(ANSWER)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert importlib.import_module(name).answer() == 41
