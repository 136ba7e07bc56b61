"""Tables of a run, for a terminal and for Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.figures import Figure, Run, Summary, classes, parts, summarize

#: Below it a workload is listed at the end.
SLOW = 0.8
CLASS_HEAD = ("class", "of", "cases", "warm", "worst", "", "as shipped", "worst", "", "x of floor")
CASE_HEAD = ("op", "as shipped", "warm", "device", "unit", "x as shipped", "x warm", "x of floor", "launches", "tuned")
#: Columns of words; the others are figures.
WORDS = frozenset({"class", "of", "op", "", "unit", "tuned", "ceiling", "machine"})


@dataclass(frozen=True)
class Table:
    head: Sequence[str]
    rows: list[list[str]]

    def text(self) -> str:
        """In columns as wide as they need to be."""
        lines = [list(self.head), *self.rows]
        widths = [max(len(line[column]) for line in lines) for column in range(len(self.head))]
        return "\n".join(self._line(line, widths).rstrip() for line in lines)

    def _line(self, line: Sequence[str], widths: Sequence[int]) -> str:
        cells = zip(self.head, line, widths, strict=True)
        return "  ".join(f"{text:<{width}}" if head in WORDS else f"{text:>{width}}" for head, text, width in cells)

    def markdown(self) -> str:
        rule = ["---" if head in WORDS else "---:" for head in self.head]
        return "\n".join("| " + " | ".join(line) + " |" for line in (self.head, rule, *self.rows))


def case_row(figure: Figure) -> list[str]:
    rates = [f"{figure.rate(seconds):.2f}" for seconds in (figure.shipped, figure.warm, figure.device)]
    ratios = [f"{ratio:.2f}" for ratio in (figure.shipped_ratio, figure.warm_ratio, figure.of_floor)]
    return [figure.name, *rates, figure.unit, *ratios, str(figure.launches), "yes" if figure.tuned else ""]


def class_row(family: str, part: str, summary: Summary) -> list[str]:
    return [
        family,
        part,
        str(summary.count),
        f"{summary.warm:.2f}",
        f"{summary.worst_warm.warm_ratio:.2f}",
        summary.worst_warm.name.partition("/")[2],
        f"{summary.shipped:.2f}",
        f"{summary.worst_shipped.shipped_ratio:.2f}",
        summary.worst_shipped.name.partition("/")[2],
        f"{summary.of_floor:.2f}",
    ]


def case_table(figures: Sequence[Figure]) -> Table:
    return Table(CASE_HEAD, [case_row(each) for each in figures])


def class_table(figures: Sequence[Figure]) -> Table:
    """A row for what is tuned in each class and one for the rest, and the same of all together."""
    found = {**classes(figures), "all": list(figures)}
    rows = [
        class_row(family, part, summarize(some)) for family, each in found.items() for part, some in parts(each).items()
    ]
    return Table(CLASS_HEAD, rows)


def slow_table(figures: Sequence[Figure]) -> Table:
    """What is slower than the CPU with a warm heap, the slowest first."""
    slow = [each for each in figures if each.warm_ratio < SLOW]
    return case_table(sorted(slow, key=lambda each: each.warm_ratio))


def machine_table(machine: Mapping[str, object]) -> Table:
    return Table(("machine", ""), [[name.replace("_", " "), str(value)] for name, value in machine.items()])


def ceiling_table(run: Run) -> Table:
    ceilings = run.ceilings
    rows = [[f"buffers of {size / 2**20:g} MiB", f"{rate / 1e9:.1f} GB/s"] for size, rate in ceilings.bandwidth.items()]
    rows += [[f"products in {dtype}", f"{rate / 1e9:.1f} GFLOP/s"] for dtype, rate in ceilings.peak.items()]
    return Table(("ceiling", "at best"), [*rows, ["a launch", f"{ceilings.launch * 1e6:.2f} µs"]])


def markdown(run: Run) -> str:
    """The whole run as a page."""
    sections = {
        "Machine": machine_table(run.machine).markdown(),
        "Ceilings": ceiling_table(run).markdown(),
        "Classes": class_table(run.figures).markdown(),
        f"Below {SLOW} of the CPU with a warm heap": slow_table(run.figures).markdown(),
        "Cases": case_table(run.figures).markdown(),
    }
    head = f"# Single ops beside torch's CPU\n\n`{run.command}`. {EXPLANATION}\n"
    return head + "".join(f"\n## {title}\n\n{text}\n" for title, text in sections.items())


EXPLANATION = (
    "A ratio above 1 means that the device is quicker: than the CPU with a warm heap, which keeps freed memory, and "
    "than the CPU as torch ships it, where large results cost page faults. The floor of a call is the least time that "
    "it could take by the bytes and the operations that it needs and by its launches."
)
