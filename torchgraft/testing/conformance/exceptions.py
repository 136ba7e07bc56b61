"""Declared exceptions: what is known not to hold, each with its reason.

They are run like everything else and must still fail: one that passes is reported, so that the list cannot rot.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Declared", "read_exceptions"]


@dataclass(frozen=True)
class Declared:
    """One exception.

    Attributes:
        cases: a regular expression that matches the whole name of the cases it is for.
        check: the check that fails.
        reason: why nobody can mend it here.
    """

    cases: str
    check: str
    reason: str

    def covers(self, case: str, check: str) -> bool:
        return check == self.check and re.fullmatch(self.cases, case) is not None


def read_exceptions(path: Path) -> list[Declared]:
    """Reads a list: TOML tables `[[exception]]` with the three fields of `Declared`, all required."""
    tables: list[dict[str, Any]] = tomllib.loads(path.read_text()).get("exception", [])
    declared = []
    for table in tables:
        if set(table) != {"cases", "check", "reason"} or not str(table["reason"]).strip():
            raise ValueError(f"{path}: an exception has `cases`, `check` and a `reason`, not {table}")
        declared.append(Declared(**table))
    return declared
