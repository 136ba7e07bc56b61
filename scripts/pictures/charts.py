"""Charts of what is measured: docs/assets/classes.svg, coverage.svg and speed.svg, or in the folder that is given.

Coverage is of the stored conformance run, family by family; the others are of what benchmarks/results keeps: the
classes of benchmarks/ops.py and benchmarks/beside.py, and the table of single ops.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections import Counter
from pathlib import Path

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch.testing._internal.common_methods_invocations import op_db

from torchgraft.testing.conformance import report
from torchgraft.testing.conformance.runner import read_results

ROOT = Path(__file__).resolve().parent.parent.parent
RUN = ROOT / "tests/conformance/pocl.jsonl.gz"
SPEEDS = ROOT / "benchmarks/results/pocl-2-cores.md"

# Beside what, where, the file, and which of its ratios.
CPU = "beside torch's CPU, on the same two cores"
CLASSES = (
    (CPU, "AMD", "ops-amd-2-cores", "warm_ratio"),
    (CPU, "Intel", "ops-intel-2-cores", "warm_ratio"),
    ("beside torch's CUDA, on the same GPU", "NVIDIA H200", "h200", "ratio"),
)

# As on the coverage page.
COLOURS = {
    "native": "#1f8a4d",
    "decomposed": "#14868c",
    "composite": "#2f74c0",
    "fallback": "#e0a030",
    "wrong": "#cf3434",
}
NAMESPACES = ("nn.functional", "linalg", "special", "fft", "masked", "signal")
KINDS = {
    "UnaryUfuncInfo": "elementwise, of one tensor",
    "BinaryUfuncInfo": "elementwise, of two tensors",
    "ReductionOpInfo": "reductions",
}
SLOWER, QUICKER = "#c0504d", "#1f8a4d"


def families() -> dict[str, Counter[str]]:
    """The states of each family's cases: torch's namespaces, and what is in none of them by the database's kinds."""
    kinds = {f"{op.name}.{op.variant_test_name}".rstrip("."): type(op).__name__ for op in op_db}
    found: dict[str, Counter[str]] = {}
    for case, record in read_results(RUN).items():
        op, _ = report.split(case)
        space = next((name for name in NAMESPACES if op.startswith(f"{name}.")), None)
        family = f"torch.{space}" if space else KINDS.get(kinds.get(op, ""), "others of torch")
        found.setdefault(family, Counter())[report.state(record)] += 1
    return dict(sorted(found.items(), key=lambda item: item[1].total()))


def speeds() -> dict[str, dict[str, float]]:
    """How many times as quick as torch's CPU each op is, by family."""
    found: dict[str, dict[str, float]] = {}
    for family, op, ratio in re.findall(
        r"^\| (\w+)/([^|]+) \|[^|]+\|[^|]+\|[^|]+\| ([\d.]+) \|$", SPEEDS.read_text(), re.M
    ):
        found.setdefault(family, {})[op] = float(ratio)
    return found


def class_means(file: str, ratio: str) -> dict[str, float]:
    """The geometric mean of a run's ratios in each class."""
    cases = json.loads((ROOT / f"benchmarks/results/{file}.json").read_text())["cases"]
    found: dict[str, list[float]] = {}
    for case in cases.values() if isinstance(cases, dict) else cases:
        found.setdefault(case["name"].partition("/")[0], []).append(case[ratio])
    return {name: statistics.geometric_mean(ratios) for name, ratios in found.items()}


def classes() -> Figure:
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    sides = list(dict.fromkeys(beside for beside, *_ in CLASSES))
    for axes, side in zip(figure.subplots(1, len(sides), sharey=True), sides, strict=True):
        runs = {where: class_means(file, ratio) for beside, where, file, ratio in CLASSES if beside == side}
        for (where, means), marker in zip(runs.items(), "osD", strict=False):
            colours = [QUICKER if ratio >= 1 else SLOWER for ratio in means.values()]
            axes.scatter(list(means.values()), list(means), c=colours, marker=marker, s=30, zorder=3)
            axes.scatter([], [], c="#666", marker=marker, label=where)
        axes.axvline(1, color="#444", linewidth=0.8)
        axes.set_xscale("log")
        axes.set_xticks([0.1, 0.2, 0.5, 1, 2, 5], ["0.1", "0.2", "½", "1", "2", "5"])
        axes.minorticks_off()
        axes.set(xlim=(0.08, 6), title=side)
        axes.title.set_fontsize(10)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(left=False)
        axes.legend(frameon=False, fontsize=9, loc="upper left")
    axes.invert_yaxis()  # of all: they share it
    figure.supxlabel("times as quick (1: the same), the geometric mean of each class of ops", fontsize=10)
    return figure


def coverage() -> Figure:
    figure = Figure(figsize=(9, 4.2), layout="constrained")
    axes = figure.subplots()
    counted = families()
    left = dict.fromkeys(counted, 0.0)
    for state, colour in COLOURS.items():
        shares = {family: 100 * states[state] / states.total() for family, states in counted.items()}
        axes.barh(list(shares), list(shares.values()), left=list(left.values()), color=colour, label=state, height=0.7)
        left = {family: left[family] + share for family, share in shares.items()}
    for place, states in enumerate(counted.values()):
        own = sum(states[state] for state in report.OWN)
        axes.text(101, place, f"{states.total():,} cases, {100 * own / states.total():.1f} %", va="center", fontsize=9)
    axes.text(101, len(counted) - 0.35, "without fallback:", fontsize=9, style="italic")
    axes.set(xlim=(0, 100), xlabel="% of the cases (an op in a dtype)")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(left=False)
    figure.legend(loc="outside upper left", ncols=len(COLOURS), frameon=False)
    return figure


def speed() -> Figure:
    """Each op on a logarithmic axis, in two columns of about the same length."""
    figure = Figure(figsize=(10, 8), layout="constrained")
    rows = [(family, op, ratio) for family, ops in speeds().items() for op, ratio in ops.items()]
    beginnings = [index for index, row in enumerate(rows) if index == 0 or row[0] != rows[index - 1][0]]
    half = min(beginnings, key=lambda index: abs(2 * index - len(rows)))
    for axes, part in zip(figure.subplots(1, 2, sharex=True), (rows[:half], rows[half:]), strict=True):
        _ratios(axes, part)
    figure.supxlabel("times as quick as torch's CPU on the same two cores (1: the same)", fontsize=10)
    return figure


def _ratios(axes: Axes, rows: list[tuple[str, str, float]]) -> None:
    places, labels, place, last = [], [], 0.0, ""
    for family, op, _ in rows:
        if family != last:
            place += 1.6
            axes.text(0.55, place - 0.95, family, fontsize=9, weight="bold", va="center")
        places.append(place)
        labels.append(op)
        place, last = place + 1, family
    ratios = [ratio for _, _, ratio in rows]
    colours = [QUICKER if ratio >= 1 else SLOWER for ratio in ratios]
    axes.hlines(places, 1, ratios, colors=colours, linewidth=1.5)
    axes.scatter(ratios, places, c=colours, s=14, zorder=3)
    axes.axvline(1, color="#444", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_xticks([0.5, 1, 2, 5, 10, 20, 50], ["½", "1", "2", "5", "10", "20", "50"])
    axes.minorticks_off()
    axes.set(xlim=(0.5, 60), ylim=(max(places) + 1, -0.5))
    axes.set_yticks(places, labels, fontsize=8)
    axes.grid(axis="x", alpha=0.25)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(left=False)


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs/assets"
    # Text stays text, and the same figures give the same file.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "torchgraft", "font.size": 10}):
        for name, figure in {"classes": classes(), "coverage": coverage(), "speed": speed()}.items():
            figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
            print(folder / f"{name}.svg")


if __name__ == "__main__":
    main()
