"""Entries for overloads that `planner`'s rules for functional, in-place and out= forms do not describe."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchgraft.plans.refusals import Refusals
from torchgraft.plans.registry import Composite, Entry, Options, no_plan, offer_meta, register_entry
from torchgraft.plans.schema import resolve


def enter(name: str, plan: Callable[..., None], meta: Callable[..., Any]) -> None:
    """Declares the planner of one overload alone.

    It gets what the op returns as `out`, also where the op writes some of its arguments, which it then writes itself.
    """
    op = resolve(name)
    entry = Entry(op, op, "functional", plan, Options(meta=meta))
    register_entry(entry)
    offer_meta(entry)


def enter_composite(name: str, function: Callable[..., Any]) -> None:
    """Declares the function of one overload alone. It takes the overload's arguments, and writes those that the op
    writes itself."""
    op = resolve(name)
    composite = Composite(function, None, op, "functional", Refusals())
    register_entry(Entry(op, op, "functional", no_plan, Options(way="composite"), (composite,)))
