"""A chart of the classes, of one machine or of several beside each other, as SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from harness.figures import Figure, Run, Summary, classes, summarize

# As scripts/pictures/diagrams.py: on white in either theme. For each machine a colour, and a lighter one.
COLOURS = (("#2f74c0", "#a9c8ec"), ("#e0703a", "#f4c2a4"), ("#1f8a4d", "#a3d6b9"), ("#7a55b0", "#cdbbe6"))
INK, FAINT = "#1b1f24", "#d5d9de"
WIDTH, LEFT, RIGHT = 860, 120, 60
BAR, GAP, BETWEEN = 9, 2, 14
STEPS = (1, 2, 5)
HEAD = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"
  role="img" font-family="system-ui, 'DejaVu Sans', sans-serif" font-size="13">
<title>{title}</title>
<rect width="{width}" height="{height}" rx="10" fill="#fff"/>
"""
TITLE = "How many times as quick as torch's CPU the device is, by class of ops"


@dataclass(frozen=True)
class Bar:
    """From 1 to the mean, and a whisker to the worst case."""

    mean: float
    worst: float
    colour: str


@dataclass(frozen=True)
class Axis:
    """Logarithmic, from left to right."""

    low: float
    high: float

    @classmethod
    def around(cls, values: Sequence[float]) -> Axis:
        """With a little room on both sides."""
        return cls(min(*values, 1) / 1.15, max(*values, 1) * 1.15)

    def place(self, value: float) -> float:
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def ticks(self) -> list[float]:
        """1, 2, 5 and their multiples by powers of ten."""
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        return [step * 10.0**power for power in powers for step in STEPS if self.low < step * 10.0**power < self.high]


def bars(summary: Summary, colours: tuple[str, str]) -> list[Bar]:
    strong, light = colours
    return [
        Bar(summary.warm, summary.worst_warm.warm_ratio, strong),
        Bar(summary.shipped, summary.worst_shipped.shipped_ratio, light),
    ]


def groups(runs: Sequence[Run]) -> dict[str, list[Bar]]:
    """The bars of each class, machine by machine; of all ops at the end."""
    found: dict[str, list[Bar]] = {}
    for run, colours in zip(runs, COLOURS, strict=False):
        by_class: dict[str, list[Figure]] = {**classes(run.figures), "all": run.figures}
        for family, figures in by_class.items():
            found.setdefault(family, []).extend(bars(summarize(figures), colours))
    found["all"] = found.pop("all")  # after classes that only a later run has
    return found


def words(x: float, y: float, text: str, anchor: str = "start", size: int = 13, colour: str = INK) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{colour}">{escape(text)}</text>'
    )


def line(x: float, y: float, to_x: float, to_y: float, colour: str, width: float = 1) -> str:
    return (
        f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}" stroke="{colour}" stroke-width="{width:g}"/>'
    )


def drawn_bar(bar: Bar, y: float, axis: Axis) -> list[str]:
    one, mean, worst = axis.place(1), axis.place(bar.mean), axis.place(bar.worst)
    middle = y + BAR / 2
    left, width = min(one, mean), abs(mean - one)
    return [
        f'<rect x="{left:.1f}" y="{y:.1f}" width="{width:.1f}" height="{BAR}" fill="{bar.colour}"/>',
        line(worst, middle, mean, middle, INK),
        line(worst, middle - 3, worst, middle + 3, INK),
        words(max(one, mean, worst) + 5, middle + 4, f"{bar.mean:.2f}", size=11),
    ]


def legend(runs: Sequence[Run]) -> list[str]:
    """A line for each machine, and one that tells what a bar is."""
    parts = []
    for number, (run, (strong, light)) in enumerate(zip(runs, COLOURS, strict=False)):
        y = 46 + 20 * number
        for place, colour, text in ((LEFT, strong, "warm heap"), (LEFT + 100, light, "as shipped")):
            parts.append(f'<rect x="{place}" y="{y - 10}" width="12" height="12" fill="{colour}"/>')
            parts.append(words(place + 18, y, text))
        parts.append(words(LEFT + 205, y, f"{run.machine['processor']}, {run.machine['cores']} cores"))
    return parts


def chart(runs: Sequence[Run]) -> str:
    """Bars are geometric means of a class's cases."""
    if not 0 < len(runs) <= len(COLOURS):
        raise ValueError(f"a chart of one to {len(COLOURS)} runs, not of {len(runs)}")
    found = groups(runs)
    axis = Axis.around([value for each in found.values() for bar in each for value in (bar.mean, bar.worst)])
    top = 62 + 20 * len(runs)
    y, rows = float(top), []
    for family, each in found.items():
        height = len(each) * (BAR + GAP) - GAP
        rows.append(words(LEFT - 10, y + height / 2 + 4, family, "end"))
        for number, bar in enumerate(each):
            rows += drawn_bar(bar, y + number * (BAR + GAP), axis)
        y += height + BETWEEN
    grid = [line(axis.place(tick), top - 8, axis.place(tick), y, FAINT) for tick in axis.ticks()]
    labels = [words(axis.place(tick), y + 16, f"{tick:g}", "middle", 12) for tick in axis.ticks()]
    head = HEAD.format(width=WIDTH, height=round(y) + 48, title=escape(TITLE))
    parts = [
        words(LEFT, 24, "Geometric mean of a class, and its worst case; above 1 the device is quicker", size=14),
        *legend(runs),
        *grid,
        line(axis.place(1), top - 8, axis.place(1), y, INK, 1.5),
        *rows,
        *labels,
        words((LEFT + WIDTH - RIGHT) / 2, y + 36, "times as quick as torch's CPU on the same cores", "middle", 12),
    ]
    return head + "\n".join(parts) + "\n</svg>\n"
