"""What `torchgraft doctor` finds, and how a backend's package adds what only it knows.

The toolkit knows drivers and devices; what is behind them (platforms, loaders, permissions of device files, services)
is known to the backend. Its package names a function in its metadata:

    [project.entry-points."torchgraft.diagnoses"]
    foo = "torch_foo.diagnosis:diagnose"

that takes nothing and returns or yields `Finding`s. It should work where the device does not, where torch does not
even import, and need not be careful: it is run in a process of its own, and what it raises becomes a finding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Literal

from torchgraft.registration.installed import DIAGNOSES

__all__ = ["DIAGNOSES", "Diagnose", "Finding", "State", "backend_diagnoses"]

#: `ok`: looked at and in order; `note`: worth knowing; `warning`: something is wrong, the device can be used
#: nevertheless; `problem`: it cannot.
State = Literal["ok", "note", "warning", "problem"]


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        subject: what, in a few words ("copy to and from the device").
        state: see `State`.
        text: what was seen.
        advice: what the reader can do.
    """

    subject: str
    state: State
    text: str
    advice: str = ""


Diagnose = Callable[[], Iterable[Finding]]


def backend_diagnoses() -> dict[str, Callable[[], Diagnose]]:
    """What loads each installed backend's function, by the entry's name."""
    return {entry.name: entry.load for entry in sorted(entry_points(group=DIAGNOSES), key=lambda entry: entry.name)}
