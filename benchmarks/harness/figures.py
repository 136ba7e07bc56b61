"""What comes out of the times: ratios, distances from floors, classes; kept as JSON."""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.case import Case
from harness.ceilings import Ceilings


@dataclass(frozen=True)
class Figure:
    """What was found of a workload.

    Attributes:
        work: what a call does, in `unit` times 1e9 seconds.
        shipped: seconds a call on the CPU as torch ships it.
        warm: and on the CPU with a warm heap.
        device: and on the device.
        shipped_ratio: how many times as quick as the CPU as shipped the device is: the median of the rounds' ratios.
        warm_ratio: and as the CPU with a warm heap.
        launches: kernels, copies and fills of a call.
        floor: the least seconds that a call could take.
    """

    name: str
    tuned: bool
    unit: str
    work: float
    shipped: float
    warm: float
    device: float
    shipped_ratio: float
    warm_ratio: float
    launches: int
    floor: float

    @property
    def family(self) -> str:
        return self.name.split("/")[0]

    @property
    def of_floor(self) -> float:
        """How many times as long as its floor the device took."""
        return self.device / self.floor

    def rate(self, seconds: float) -> float:
        """In the unit."""
        return self.work / seconds / 1e9


def figure(case: Case, times: Mapping[str, Sequence[float]], launches: int, ceilings: Ceilings) -> Figure:
    """Of the sides' seconds a call in each round."""

    def ratio(side: str) -> float:
        return statistics.median(cpu / ours for cpu, ours in zip(times[side], times["device"], strict=True))

    middle = {side: statistics.median(rounds) for side, rounds in times.items()}
    return Figure(
        name=case.name,
        tuned=case.tuned,
        unit=case.unit,
        work=case.work,
        shipped=middle["shipped"],
        warm=middle["warm"],
        device=middle["device"],
        shipped_ratio=ratio("shipped"),
        warm_ratio=ratio("warm"),
        launches=launches,
        floor=ceilings.floor(case.nbytes, case.flops, str(case.dtype).removeprefix("torch."), launches),
    )


@dataclass(frozen=True)
class Summary:
    """Of some workloads: geometric means, and those that are worst."""

    count: int
    warm: float
    worst_warm: Figure
    shipped: float
    worst_shipped: Figure
    of_floor: float


def summarize(figures: Sequence[Figure]) -> Summary:
    return Summary(
        count=len(figures),
        warm=statistics.geometric_mean(each.warm_ratio for each in figures),
        worst_warm=min(figures, key=lambda each: each.warm_ratio),
        shipped=statistics.geometric_mean(each.shipped_ratio for each in figures),
        worst_shipped=min(figures, key=lambda each: each.shipped_ratio),
        of_floor=statistics.geometric_mean(each.of_floor for each in figures),
    )


def classes(figures: Iterable[Figure]) -> dict[str, list[Figure]]:
    """In the order in which they come."""
    found: dict[str, list[Figure]] = {}
    for each in figures:
        found.setdefault(each.family, []).append(each)
    return found


def parts(figures: Sequence[Figure]) -> dict[str, list[Figure]]:
    """Those on which kernels were tuned and the others; a part that is empty is left out."""
    found = {"tuned": [each for each in figures if each.tuned], "other": [each for each in figures if not each.tuned]}
    return {name: part for name, part in found.items() if part}


@dataclass(frozen=True)
class Run:
    """All that a run found, and on what."""

    command: str
    machine: dict[str, str | int | float]
    ceilings: Ceilings
    figures: list[Figure]

    def write(self, file: Path) -> None:
        ceilings = dataclasses.asdict(self.ceilings)
        ceilings["bandwidth"] = {str(size): rate for size, rate in self.ceilings.bandwidth.items()}
        cases = {each.name: self._case(each) for each in self.figures}
        record = {"command": self.command, "machine": self.machine, "ceilings": ceilings, "cases": cases}
        file.write_text(json.dumps(record, indent=1) + "\n")

    @staticmethod
    def _case(figure: Figure) -> dict[str, Any]:
        """Its fields, and what readers would have to compute."""
        fields = dataclasses.asdict(figure)
        rates = {side: figure.rate(fields[side]) for side in ("shipped", "warm", "device")}
        return {**fields, "rates": rates, "of_floor": figure.of_floor}

    @classmethod
    def read(cls, file: Path) -> Run:
        record = json.loads(file.read_text())
        ceilings = record["ceilings"]
        ceilings["bandwidth"] = {int(size): rate for size, rate in ceilings["bandwidth"].items()}
        names = [field.name for field in dataclasses.fields(Figure)]
        figures = [Figure(**{name: case[name] for name in names}) for case in record["cases"].values()]
        return cls(record["command"], record["machine"], Ceilings(**ceilings), figures)
