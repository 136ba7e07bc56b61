"""The loss curves of device and CPU as a picture."""

from __future__ import annotations

from math import isfinite
from pathlib import Path

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from torchgraft_opencl.demo.report import Comparison

DEVICE, CPU = "#f28c38", "#1d3557"


def draw(comparisons: list[Comparison], file: Path) -> None:
    """Writes the picture in the format that the file's name asks for: each task's loss, and below it how far the two
    curves are apart."""
    beside = any(each.cpu for each in comparisons)
    # Text stays text, and the same curves give the same file.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "torchgraft", "font.size": 10}):
        figure = Figure(figsize=(4.8 * len(comparisons), 4.4 if beside else 3.2), layout="constrained")
        rows = 2 if beside else 1
        axes = figure.subplots(rows, len(comparisons), squeeze=False, sharex="col", height_ratios=[3, 1.2][:rows])
        for index, each in enumerate(comparisons):
            _losses(axes[0][index], each)
            axes[-1][index].set_xlabel("step")
            if each.cpu is not None:
                _differences(axes[1][index], each.device.losses, each.cpu.losses)
        file.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else None)


def _losses(axes: Axes, each: Comparison) -> None:
    precision = f", {each.amp}".replace("torch.", "") if each.amp else ""
    label = f"{each.device.device}{precision}"
    axes.plot(_steps(each.device.losses), each.device.losses, color=DEVICE, linewidth=3.5, label=label)
    if each.cpu is not None:
        axes.plot(_steps(each.cpu.losses), each.cpu.losses, color=CPU, linewidth=0.9, label="cpu")
    axes.set(title=each.task.name, ylabel="training loss")
    _tidy(axes)
    axes.legend(frameon=False)


def _differences(axes: Axes, ours: list[float], theirs: list[float]) -> None:
    """A dot for each step; where the losses are equal there is none, since zero has no logarithm."""
    apart = [abs(a - b) or float("nan") for a, b in zip(ours, theirs, strict=True)]
    axes.plot(_steps(apart), apart, ".", color=CPU, markersize=3)
    largest = max((value for value in apart if isfinite(value)), default=0)
    axes.set(yscale="log", ylim=(1e-8, max(1e-5, 3 * largest)), ylabel="difference")
    _tidy(axes)


def _steps(losses: list[float]) -> range:
    return range(1, len(losses) + 1)


def _tidy(axes: Axes) -> None:
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
