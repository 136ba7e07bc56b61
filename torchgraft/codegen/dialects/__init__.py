"""The dialects that there are, by name: the toolkit's own, those of installed packages, and registered ones."""

from __future__ import annotations

from importlib.metadata import entry_points

from torchgraft.codegen.dialect import Dialect
from torchgraft.codegen.dialects.cxx import Cxx
from torchgraft.codegen.dialects.opencl import OpenCL

__all__ = ["ENTRY_POINTS", "dialect", "kernel_words", "known_dialects", "register_dialect"]

ENTRY_POINTS = "torchgraft.dialects"
"""The group of entry points of installed dialects: the name is the dialect's, the object an instance or a class."""

_registered: dict[str, Dialect] = {}


def register_dialect(dialect: Dialect | type[Dialect]) -> None:
    """Makes a kernel language known: devices whose properties name it get the toolkit's kernels in it.

    An installed package may declare its dialects as entry points of the group "torchgraft.dialects" instead, and a
    driver may bring one (`Driver.kernel_dialect`). A name that is registered again stands for the new dialect from then
    on; kernels that were compiled before stay.

    Args:
        dialect: an instance, or a class that takes no arguments.

    Raises:
        TypeError: it is no `Dialect`.
        ValueError: it has no name, or one that does not fit into a device's properties (31 bytes).
    """
    language = dialect() if isinstance(dialect, type) else dialect
    if not isinstance(language, Dialect):
        raise TypeError(f"a dialect is a torchgraft.codegen.Dialect, not {language!r}")
    if not 0 < len(language.name.encode()) < 32:
        raise ValueError(f"the name of a dialect has 1 to 31 bytes, unlike {language.name!r}")
    _registered[language.name] = language


for _own in (OpenCL, Cxx):
    register_dialect(_own)


def dialect(name: str) -> Dialect:
    """The dialect of that name.

    Raises:
        NotImplementedError: there is none; `register_dialect` makes one known.
    """
    if name not in _registered:
        for entry in entry_points(group=ENTRY_POINTS, name=name):
            register_dialect(entry.load())
    try:
        return _registered[name]
    except KeyError:
        raise NotImplementedError(
            f"torchgraft has no kernel dialect {name!r}; known: {known_dialects()}. torchgraft.register_dialect makes "
            "one known"
        ) from None


def known_dialects() -> list[str]:
    """The names of all dialects, sorted."""
    return sorted({*_registered, *(entry.name for entry in entry_points(group=ENTRY_POINTS))})


def kernel_words() -> tuple[str, ...]:
    """What marks a kernel in a source of any registered dialect."""
    return tuple(word for language in _registered.values() for word in language.kernel_words)
