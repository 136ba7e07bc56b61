"""Entries for overloads that `planner`'s rules for functional, in-place and out= forms do not describe."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchgraft.plans import registry


def enter(name: str, plan: Callable[..., None], **options: Any) -> None:
    """Declares the planner of one overload alone.

    It gets what the op returns as `out`, also where the op writes some of its arguments, which it then writes itself.
    """
    op = registry.resolve(name)
    entry = registry.Entry(op, op, "functional", plan, registry.Options(**options))
    registry.register_entry(entry)
    registry.offer_meta(entry)
