"""What installed packages offer to torchgraft, by the entry points in their metadata.

    [project.entry-points."torchgraft.drivers"]
    foo = "torch_foo.driver:FooDriver"          # a driver of the backend "foo"
    "foo.simulator" = "torch_foo.simulator:make"    # another one, perhaps of another package

An entry is named for its backend, or for the backend, a dot, and anything that tells its drivers apart. What it refers
to is a driver (`torchgraft.Driver`, `torchgraft.SharedLibrary`), the class of one, a function that returns one, or
several of these in a list or tuple.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from typing import Any

from torchgraft.driver import Driver, SharedLibrary

__all__ = ["DIAGNOSES", "DRIVERS", "UnusableDriver", "backend_names", "driver_entries", "installed_drivers"]

DRIVERS = "torchgraft.drivers"
#: What `torchgraft doctor` asks besides; see torchgraft.diagnosis.
DIAGNOSES = "torchgraft.diagnoses"


class UnusableDriver(Driver):
    """Stands for an entry point that did not give a driver: it has no devices, and says why."""

    def __init__(self, name: str, reason: str) -> None:
        self.name = name
        self.reason = reason

    def device_count(self) -> int:
        raise RuntimeError(self.reason)


def backend_names() -> list[str]:
    """The backends that installed packages have drivers for, sorted."""
    return sorted({_backend_of(entry) for entry in _driver_entries()})


def driver_entries(backend: str, *references: str) -> list[EntryPoint]:
    """The entry points of a backend's drivers: its own first, then `<backend>.<something>` in the order of the names.

    Args:
        references: what would be in the metadata ("package.module:object"), for a package that is used without having
            been installed. One that an entry point has too counts once.
    """
    given = [EntryPoint(name=backend, value=reference, group=DRIVERS) for reference in references]
    found = [entry for entry in _driver_entries() if _backend_of(entry) == backend]
    # Two distributions of one name (a checkout and an installed copy) both list what is one driver.
    unique = {(entry.name, entry.value): entry for entry in [*given, *found]}
    return sorted(unique.values(), key=lambda entry: (entry.name != backend, entry.name))


def installed_drivers(backend: str, *references: str) -> list[Driver | SharedLibrary]:
    """The drivers that installed packages offer for a backend, for `torchgraft.register`.

    One that cannot be had does not keep the others from being used: an `UnusableDriver` takes its place, whose reason
    is among the device errors and in `torchgraft doctor`.

    Args:
        references: see `driver_entries`.
    """
    drivers: list[Driver | SharedLibrary] = []
    for entry in driver_entries(backend, *references):
        try:
            drivers += _each_driver(entry.load())
        except Exception as error:
            told = _half_imported(entry) or f"{type(error).__name__}: {error}"
            reason = f"the entry point {entry.value!r} gives no driver: {told}"
            drivers.append(UnusableDriver(_label(entry), reason))
    return drivers


def _half_imported(entry: EntryPoint) -> str:
    """Whether an entry's module is what the program imports first, so that it waits for torch, and torch for it."""
    module = sys.modules.get(entry.module)
    if not getattr(getattr(module, "__spec__", None), "_initializing", False):
        return ""
    return (
        f"its module is being imported and has come to torch, which wants the driver already. Import torch before it, "
        f"or let {entry.module.partition('.')[0]}/__init__.py end with torchgraft.autoload.choose"
    )


def _driver_entries() -> EntryPoints:
    return _scan(tuple(sys.path))


@functools.lru_cache(maxsize=1)
def _scan(path: tuple[str, ...]) -> EntryPoints:
    # Reads the metadata of all distributions: milliseconds, several times while torch is imported.
    return entry_points(group=DRIVERS)


def _each_driver(offered: Any) -> Iterator[Driver | SharedLibrary]:
    if isinstance(offered, Driver):
        yield offered
    elif isinstance(offered, SharedLibrary):
        _try_loading(offered)
        yield offered
    elif isinstance(offered, list | tuple):
        for each in offered:
            yield from _each_driver(each)
    elif callable(offered):
        yield from _each_driver(offered())
    else:
        raise TypeError(f"it is a {type(offered).__name__}, neither a torchgraft.Driver nor a torchgraft.SharedLibrary")


def _try_loading(library: SharedLibrary) -> None:
    """Raises now what would otherwise fail together with all other drivers."""
    from torchgraft._core import _C

    _C.load_driver(str(library.path), library.symbol)


def _backend_of(entry: EntryPoint) -> str:
    return entry.name.partition(".")[0]


def _label(entry: EntryPoint) -> str:
    return f"{entry.name} ({entry.dist.name})" if entry.dist is not None else entry.name
