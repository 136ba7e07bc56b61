"""benchmarks/ops.py: what it makes of times, which are given here, and the process of the CPU as torch ships it."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(BENCHMARKS)
    from harness import tables, torch_process
    from harness.case import Case, computing, moving, on
    from harness.ceilings import Ceilings
    from harness.chart import Axis, chart
    from harness.figures import Figure, Run, classes, figure, parts, summarize
    from harness.turns import take_turns
    from workloads import all_cases

CEILINGS = Ceilings({1 << 20: 100e9, 1 << 24: 20e9, 1 << 28: 10e9}, {"float32": 200e9, "float64": 50e9}, 1e-6)
SMALL = "small/add 1 K"


def nothing(device: str) -> object:
    raise AssertionError("its call is not made")


def found(name: str, warm: float, shipped: float, *, tuned: bool = False, slowness: float = 1.0) -> Figure:
    """What a device that takes a second would have, with those ratios."""
    return Figure(name, tuned, "GB/s", 1e9, shipped, warm, 1.0, shipped, warm, 1, 1 / slowness)


RUN = Run(
    "python benchmarks/ops.py",
    {"processor": "a processor <of some kind>", "cores": 2, "torch": "2.13.0"},
    CEILINGS,
    [
        found("copy/quick", 4.0, 8.0, tuned=True, slowness=2.0),
        found("copy/slow", 1.0, 2.0, tuned=True, slowness=8.0),
        found("copy/odd", 0.5, 0.75),
        found("matmul/odd", 0.79, 3.0),
        found("matmul/even", 0.8, 0.9),
    ],
)


def test_floor_is_by_bytes_or_by_operations_and_launches() -> None:
    assert CEILINGS.floor(10e9, 0, "float32", 0) == pytest.approx(1.0)
    assert CEILINGS.floor(10e9, 600e9, "float32", 0) == pytest.approx(3.0)
    assert CEILINGS.floor(10e9, 600e9, "float64", 0) == pytest.approx(12.0)
    assert CEILINGS.floor(0, 0, "complex64", 7) == pytest.approx(7e-6)
    assert CEILINGS.floor(10e9, 100e9, "float32", 1000) == pytest.approx(1.0 + 1e-3)


def test_bandwidth_is_that_of_the_caches_that_hold_the_data() -> None:
    assert [CEILINGS.bandwidth_of(size) for size in (1000, 1 << 20, (1 << 24) - 1)] == [100e9] * 3
    assert CEILINGS.bandwidth_of(1 << 24) == 20e9
    assert CEILINGS.bandwidth_of(1 << 40) == 10e9
    # Where a smaller buffer was slower (launches take their time), it could have been as quick.
    assert Ceilings({1000: 1e9, 2000: 5e9}, {}, 0).bandwidth_of(10) == 5e9


def test_figure_of_rounds() -> None:
    case = dataclasses.replace(computing("matmul/x", nothing, 400e9, 1e9, torch.float32), tuned=True)
    times = {"shipped": [8.0, 60.0, 9.0], "warm": [4.0, 6.0, 20.0], "device": [4.0, 4.0, 8.0]}
    each = figure(case, times, 3, CEILINGS)
    assert (each.shipped, each.warm, each.device) == (9.0, 6.0, 4.0)
    # Of the rounds' ratios, not of the medians.
    assert (each.shipped_ratio, each.warm_ratio) == (2.0, 1.5)
    assert each.floor == pytest.approx(2.0 + 3e-6)
    assert each.of_floor == pytest.approx(2.0, rel=1e-5)
    assert each.rate(each.device) == pytest.approx(100.0)
    assert (each.family, each.tuned, each.launches) == ("matmul", True, 3)
    assert figure(moving("copy/x", nothing, 2e9), times, 1, CEILINGS).rate(4.0) == pytest.approx(0.5)


def test_classes_and_their_worst_cases() -> None:
    by_class = classes(RUN.figures)
    assert {name: len(figures) for name, figures in by_class.items()} == {"copy": 3, "matmul": 2}
    copies = parts(by_class["copy"])
    tuned = summarize(copies["tuned"])
    assert (tuned.count, tuned.warm, tuned.shipped) == (2, pytest.approx(2.0), pytest.approx(4.0))
    assert (tuned.worst_warm.name, tuned.of_floor) == ("copy/slow", pytest.approx(4.0))
    every = summarize(by_class["copy"])
    assert every.warm == pytest.approx(2 ** (1 / 3))
    assert every.worst_shipped.name == "copy/odd"
    assert list(parts(by_class["matmul"])) == ["other"]
    matmul = summarize(by_class["matmul"])
    assert (matmul.worst_warm.name, matmul.worst_shipped.name) == ("matmul/odd", "matmul/even")


def test_tables() -> None:
    rows = tables.class_table(RUN.figures).rows
    assert [row[:5] for row in rows] == [
        ["copy", "tuned", "2", "2.00", "1.00"],
        ["copy", "other", "1", "0.50", "0.50"],
        ["matmul", "other", "2", "0.79", "0.79"],
        ["all", "tuned", "2", "2.00", "1.00"],
        ["all", "other", "3", "0.68", "0.50"],
    ]
    assert [row[0] for row in tables.slow_table(RUN.figures).rows] == ["copy/odd", "matmul/odd"]
    text = tables.markdown(RUN)
    for line in text.splitlines():
        assert not line.startswith("|") or line.endswith("|")
    assert "| copy/slow | 0.50 | 1.00 | 1.00 | GB/s | 2.00 | 1.00 | 8.00 | 1 | yes |" in text
    assert "| products in float64 | 50.0 GFLOP/s |" in text
    assert "a processor <of some kind>" in text
    lines = tables.case_table(RUN.figures).text().splitlines()
    assert len(lines) == 1 + len(RUN.figures)
    assert len({line.index("GB/s") for line in lines[1:]}) == 1


def test_runs_are_kept(tmp_path: Path) -> None:
    RUN.write(tmp_path / "run.json")
    assert Run.read(tmp_path / "run.json") == RUN
    case = json.loads((tmp_path / "run.json").read_text())["cases"]["copy/slow"]
    assert case["rates"] == {"shipped": 0.5, "warm": 1.0, "device": 1.0}
    assert case["of_floor"] == 8.0


def bars(drawn: str) -> list[tuple[float, float]]:
    """From where to where they go, of those that are filled with a colour for a side."""
    found = re.findall(r'<rect x="([\d.]+)" y="[\d.]+" width="([\d.]+)" height="9"', drawn)
    return [(float(x), float(x) + float(width)) for x, width in found]


def test_chart_of_one_run() -> None:
    drawn = chart([RUN])
    texts = [each.text for each in ElementTree.fromstring(drawn).iter("{http://www.w3.org/2000/svg}text")]
    assert {"copy", "matmul", "all", "a processor <of some kind>, 2 cores"} <= set(texts)
    # For each class what is warm, and what is as shipped.
    assert len(bars(drawn)) == 2 * 3
    axis = Axis.around([8.0, 0.5])
    assert axis.place(1) - axis.place(0.5) == pytest.approx(axis.place(8) - axis.place(4))
    assert axis.ticks() == [0.5, 1, 2, 5]


@pytest.mark.thorough
def test_chart_of_machines_beside_each_other(tmp_path: Path) -> None:
    other = dataclasses.replace(RUN, machine={**RUN.machine, "processor": "another"}, figures=RUN.figures[:3])
    for number, run in enumerate((RUN, other)):
        run.write(tmp_path / f"{number}.json")
    command = [sys.executable, BENCHMARKS / "chart.py", *sorted(tmp_path.glob("*.json")), "--out", tmp_path / "x.svg"]
    subprocess.run(command, check=True, timeout=120)
    drawn = (tmp_path / "x.svg").read_text()
    assert len(bars(drawn)) == 2 * 3 + 2 * 2
    assert "another, 2 cores" in drawn
    with pytest.raises(ValueError, match="one to 4 runs"):
        chart([RUN] * 5)


class Counted:
    """A side whose turns take 1, 2, 3, ... seconds, and which writes down whose turn it is."""

    def __init__(self, name: str, log: list[str]) -> None:
        self._name, self._log, self._turns = name, log, 0

    def prepare(self, case: Case) -> None:
        self._log.append(f"{self._name}: {case.name}")

    def turn(self, at_least: float) -> tuple[float, bool]:
        self._log.append(self._name)
        self._turns += 1
        return self._turns, self._turns != 2


def test_sides_take_turns_and_each_round_begins_with_another() -> None:
    log: list[str] = []
    sides = {name: Counted(name, log) for name in "abc"}
    times, restless = take_turns(moving("copy/x", nothing, 1), sides, 3, 0.1)
    assert log == ["a: copy/x", "b: copy/x", "c: copy/x", *"abc", *"bca", *"cab"]
    assert times == {name: [1, 2, 3] for name in "abc"}
    assert restless == 3


def test_workloads_say_what_they_move_and_compute() -> None:
    cases = list(all_cases())
    assert len({case.name for case in cases}) == len(cases)
    assert all(case.nbytes > 0 and case.work > 0 and math.isfinite(case.flops) for case in cases)
    assert {case.unit for case in cases} == {"GB/s", "GFLOP/s"}
    assert {case.family for case in cases if case.tuned} < {case.family for case in cases if not case.tuned}
    assert not any(case.dtype.is_complex for case in cases)


@pytest.mark.quick(heap="shipped")
@pytest.mark.parametrize("heap", ["shipped", "warm"])
def test_the_cpu_has_a_process_without_torchgraft(heap: str) -> None:
    (case,) = (each for each in all_cases() if each.name == SMALL)
    with closing(torch_process.TorchProcess(all_cases, heap)) as side:  # which says so if torchgraft is imported there
        side.prepare(case)
        took, _ = side.turn(0.001)
        assert took > 0
        with pytest.raises(RuntimeError, match="KeyError: 'nothing of the kind'"):
            side.prepare(moving("nothing of the kind", nothing, 1))
        with pytest.raises(RuntimeError, match="ended with status 1"):
            side.prepare(case)


def test_what_the_process_answers() -> None:
    case = moving("copy/x", on(lambda x: x.clone(), (10,)), 80)
    lines: Iterator[str] = iter(['{"prepare": "copy/x"}', '{"seconds": 0.001}'])
    prepared, timed = torch_process.answers({case.name: case}, "cpu", lines)
    assert prepared == {}
    assert timed["seconds"] > 0
    assert isinstance(timed["settled"], bool)


@pytest.mark.thorough
def test_a_run_beside_another_device(tmp_path: Path) -> None:
    """torch's CPU is one, too."""
    files = {name: tmp_path / f"run.{name}" for name in ("json", "markdown")}
    options = [word for name, file in files.items() for word in (f"--{name}", str(file))]
    command = [sys.executable, str(BENCHMARKS / "beside.py"), "cpu", "--only", SMALL, "--rounds", "1"]
    done = subprocess.run([*command, "--seconds", "0.005", *options], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    [case] = json.loads(files["json"].read_text())["cases"]
    assert case["name"] == SMALL
    assert case["ratio"] == pytest.approx(case["beside"] / case["device"])
    assert f"| {SMALL} |" in files["markdown"].read_text()


@pytest.mark.thorough
def test_a_run(tmp_path: Path) -> None:
    """On the device, from the command line."""
    files = {name: tmp_path / f"run.{name}" for name in ("json", "markdown", "chart")}
    options = [word for name, file in files.items() for word in (f"--{name}", str(file))]
    command = [sys.executable, str(BENCHMARKS / "ops.py"), "--only", SMALL, "--rounds", "1", "--seconds", "0.005"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert f"\n{SMALL} " in done.stdout
    run = Run.read(files["json"])
    (each,) = run.figures
    assert (each.name, each.launches) == (SMALL, 1)
    assert min(each.shipped_ratio, each.warm_ratio, each.floor) > 0
    assert files["markdown"].read_text() == tables.markdown(run)
    assert files["chart"].read_text() == chart([run])
