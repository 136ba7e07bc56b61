"""Calls functions with a module as soon as it has been executed, whenever that is, and without importing it.

A module that is there already is handed over at once, one that is being imported when its import ends (libraries import
torch, which imports us), any other when it is imported. Modules, their specs and loaders are afterwards as if this were
not here; a module that is reloaded is handed over anew.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, cast

__all__ = ["call_after"]

Call = Callable[[Any], None]

_calls: dict[str, list[Call]] = {}
_handed_over: dict[str, ModuleSpec] = {}  # by name, for which execution that was
_lock = threading.Lock()


def call_after(calls: Mapping[str, Sequence[Call]]) -> None:
    """Calls functions with modules that have been executed.

    What one of them raises becomes a warning: it is not to keep a program from importing a library.

    Args:
        calls: the functions, by the module's full name.
    """
    for name, functions in calls.items():
        _calls.setdefault(name, []).extend(functions)
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    for name in calls:
        if (module := sys.modules.get(name)) is not None:
            _hand_over_late(module)


def _hand_over(module: ModuleType) -> None:
    """Calls the module's functions, once for each time that it was executed."""
    spec = module.__spec__
    with _lock:
        if spec is None or _handed_over.get(spec.name) is spec:
            return
        _handed_over[spec.name] = spec
    for call in _calls[spec.name]:
        try:
            call(module)
        except Exception as error:
            about = (call.__doc__ or "").split("\n\n")[0]
            warnings.warn(f"{spec.name} is not as torchgraft knows it ({error!r}): {about}", stacklevel=2)


def _hand_over_late(module: ModuleType) -> None:
    """The same for a module that was imported before, or is being imported, without our knowing."""
    spec = module.__spec__
    if getattr(spec, "_initializing", False) and type(spec) is ModuleSpec:
        spec.__class__ = _Unfinished
        if spec._initializing:  # type: ignore[attr-defined]  # another thread may just have ended the import
            return
        spec.__class__ = ModuleSpec
    before = dict(vars(module))
    _hand_over(module)
    changes = {id(value): vars(module)[name] for name, value in before.items() if vars(module).get(name) is not value}
    if changes:
        _pass_on(changes)


def _pass_on(changes: dict[int, Any]) -> None:
    """Gives new values to the modules that have imported the old ones by name."""
    for other in [each for each in sys.modules.values() if isinstance(each, ModuleType)]:
        for name, value in list(vars(other).items()):
            if id(value) in changes:
                setattr(other, name, changes[id(value)])


class _Unfinished(ModuleSpec):
    """The spec of a module whose import had begun before we waited for it. The import system writes its end there."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "_initializing" and not value:
            self.__class__ = ModuleSpec  # type: ignore[assignment]
            module = sys.modules.get(self.name)  # none if the import has failed
            if module is not None and module.__spec__ is self:
                _hand_over(module)
        ModuleSpec.__setattr__(self, name, value)


class _Finder:
    """Finds the modules that are waited for as everybody else does, and is told when they have been executed."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        if name not in _calls:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            if finder is self or find is None:
                continue
            spec: ModuleSpec | None = find(name, path, target)
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    spec.loader = cast(Loader, _Loader(spec.loader))
                return spec
        return None


class _Loader:
    """A module's loader up to the execution, for which it gives its place back to the real one."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        if name == "_loader":  # of an object that is just being copied
            raise AttributeError(name)
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        create = getattr(self._loader, "create_module", None)
        made: ModuleType | None = None if create is None else create(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        _hand_over(module)
