"""The op library. Importing this package declares every op; `install` gives them to the dispatcher."""

from __future__ import annotations

import importlib
import pkgutil

from torchgraft.plans import registry


def declare() -> None:
    """Imports every table and planner of this package, which enter themselves in `plans.ENTRIES`."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")


def install() -> None:
    """Declares every op and registers it for the device. Called once."""
    declare()
    registry.install()
