"""The driver: a shared library, made of the files in C beside this one, with the interface of torchgraft/driver.h."""

from __future__ import annotations

from pathlib import Path

from torchgraft.driver import SharedLibrary

__all__ = ["driver", "library"]


def library() -> Path:
    """The shared library, as the package's build has made it."""
    return Path(__file__).with_name("libskeleton.so")


def driver() -> SharedLibrary:
    """What the entry point in pyproject.toml refers to."""
    return SharedLibrary(library())
