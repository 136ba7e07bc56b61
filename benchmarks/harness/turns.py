"""Sides take turns: the device, the CPU with a warm heap, and the CPU as torch ships it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from harness.case import Call, Case
from harness.clock import seconds, settle, turn


class Side(Protocol):
    """Where a workload is run."""

    def prepare(self, case: Case) -> None:
        """Makes its data and calls it a few times; then all threads sleep."""

    def turn(self, at_least: float) -> tuple[float, bool]:
        """Seconds a call, and whether all threads sleep again."""


class Here:
    """A device in this process."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._call: Call | None = None

    @property
    def call(self) -> Call:
        assert self._call is not None
        return self._call

    def prepare(self, case: Case) -> None:
        self._call = None  # lets the last one's memory go
        self._call = case.make(self._device)
        self._call()
        seconds(self._call, self._device, 0.02)
        settle()

    def turn(self, at_least: float) -> tuple[float, bool]:
        return turn(self.call, self._device, at_least), settle()


def take_turns(
    case: Case, sides: Mapping[str, Side], rounds: int, at_least: float
) -> tuple[dict[str, list[float]], int]:
    """Seconds a call of each side in each round, and after how many turns threads were busy still.

    Each round begins with another side, so that none always comes after the same one.
    """
    for side in sides.values():
        side.prepare(case)
    names = list(sides)
    times: dict[str, list[float]] = {name: [] for name in names}
    restless = 0
    for number in range(rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            took, settled = sides[name].turn(at_least)
            times[name].append(took)
            restless += not settled
    return times, restless
