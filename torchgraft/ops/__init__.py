"""The op library. Importing this package declares every op of it; `install` gives them to the dispatcher.

`row` and `reduction` are the tables' own two ways of saying what an op is, for an author's ops as for these.
"""

from __future__ import annotations

import importlib
import pkgutil

from torchgraft.ops.table import Kind, by_kind, reduction, row
from torchgraft.plans import call, registry

__all__ = ["Kind", "by_kind", "install", "reduction", "row"]

for _module in pkgutil.iter_modules(__path__):  # each enters its ops in `plans.ENTRIES`
    importlib.import_module(f"{__name__}.{_module.name}")
registry.complete_tables()


def install() -> None:
    """Registers every op for the device. Called once, when the devices are opened."""
    call.install()
