"""The sentences of `torchgraft/driver.h` that the checks are of: a check that fails tells what the driver owes."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

from torchgraft.driver_table import HEADER

__all__ = ["header_text", "rule", "rule_of"]

Check = TypeVar("Check", bound=Callable[..., None])


def rule(sentence: str) -> Callable[[Check], Check]:
    """Says which sentence a check is of, in the header's words; the tests of torchgraft look it up there."""

    def quote(check: Check) -> Check:
        check.__torchgraft_rule__ = sentence  # type: ignore[attr-defined]
        return check

    return quote


def rule_of(check: Any) -> str:
    """What `rule` said of a function; empty if nothing was said."""
    return str(getattr(check, "__torchgraft_rule__", ""))


def header_text() -> str:
    """The header as one line, without the marks of its comments."""
    return re.sub(r"\s+", " ", re.sub(r"/\*|\*/|^ *\*(?= )", "", HEADER.read_text(), flags=re.MULTILINE))
