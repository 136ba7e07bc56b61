"""The driver: the shared library that lies beside this file."""

from __future__ import annotations

from pathlib import Path

from torchgraft.driver import SharedLibrary

__all__ = ["driver"]


def driver() -> SharedLibrary:
    """What the entry point in pyproject.toml refers to."""
    return SharedLibrary(Path(__file__).parent / "libonednn_device.so")
