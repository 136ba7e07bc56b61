"""Diagrams of how the parts hang together: docs/assets/call.svg and layers.svg, or in the folder that is given."""

from __future__ import annotations

import sys
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent

# Fill and border by what a part is written in, or who wrote it.
KINDS = {
    "user": ("#f3f4f6", "#9aa3ad"),
    "torch": ("#fde8df", "#e0703a"),
    "python": ("#e4eefc", "#3b78c3"),
    "core": ("#e0f3ea", "#1f8a4d"),
    "driver": ("#fdf3d6", "#c08a10"),
    "device": ("#ece6f7", "#7a55b0"),
}
WIDTH, LINE = 820, 19
HEAD = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"
  role="img" font-family="system-ui, 'DejaVu Sans', sans-serif" font-size="14">
<title>{title}</title>
<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">
  <path d="M0,0 L8,4 L0,8 z" fill="#444"/></marker></defs>
<rect width="{width}" height="{height}" rx="10" fill="#fff"/>
"""


class Drawing:
    """Boxes, arrows and words, from top to bottom."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._parts: list[str] = []
        self._height = 0

    def box(self, kind: str, x: int, y: int, width: int, title: str, *lines: str, height: int = 0) -> int:
        """A box with a title and lines of text; returns where it ends."""
        fill, border = KINDS[kind]
        height = height or 14 + LINE * (1 + len(lines))
        self._parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" fill="{fill}" stroke="{border}"/>'
        )
        self.words(x + width // 2, y + 21, title, weight="bold")
        for number, line in enumerate(lines, start=1):
            self.words(x + width // 2, y + 21 + number * LINE, line, size=13)
        self._height = max(self._height, y + height)
        return y + height

    def frame(self, kind: str, x: int, y: int, width: int, height: int, label: str) -> None:
        """A dashed frame around boxes, with a label in its upper left corner."""
        border = KINDS[kind][1]
        self._parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="10" fill="none" stroke="{border}" '
            'stroke-dasharray="5 4"/>'
        )
        self.words(x + 12, y + 19, label, size=12, anchor="start", colour=border, weight="bold")
        self._height = max(self._height, y + height)

    def arrow(self, *points: tuple[int, int]) -> None:
        path = " L".join(f"{x},{y}" for x, y in points)
        self._parts.append(f'<path d="M{path}" fill="none" stroke="#444" stroke-width="1.6" marker-end="url(#tip)"/>')

    def words(
        self,
        x: int,
        y: int,
        text: str,
        size: int = 14,
        anchor: str = "middle",
        colour: str = "#1b1f24",
        weight: str = "normal",
    ) -> None:
        self._parts.append(
            f'<text x="{x}" y="{y}" text-anchor="{anchor}" font-size="{size}" font-weight="{weight}" '
            f'fill="{colour}">{escape(text)}</text>'
        )

    def svg(self) -> str:
        head = HEAD.format(width=WIDTH, height=self._height + 16, title=escape(self._title))
        return head + "\n".join(self._parts) + "\n</svg>\n"


def call() -> str:
    """What becomes of a call: down the left side each time, by way of the right side the first time."""
    d = Drawing("The path of a call")
    left, right, width = 28, 452, 340
    middle, there = left + width // 2, right + width // 2

    end = d.box("user", left, 16, width, "torch.add(x, y)", "x and y are on the device")
    d.arrow((middle, end), (middle, end + 30))
    dispatcher = end + 32
    end = d.box("torch", left, dispatcher, width, "PyTorch's dispatcher", "autograd, autocast, then PrivateUse1")
    d.arrow((left + width, dispatcher + 26), (right - 2, dispatcher + 26))
    d.box(
        "torch",
        right,
        dispatcher - 32,
        width,
        "Fallback",
        "of what is not declared: computed by torch's",
        "CPU, warned of once, counted, reported",
    )

    d.arrow((middle, end), (middle, end + 52))
    top = end + 54
    end = d.box("core", left, top, width, "PlannedOp::run", "makes the key of the call: dtypes, sizes,", "strides, ...")
    d.arrow((middle, end), (middle, end + 30))
    asked = end + 32
    end = d.box("core", left, asked, width, "Is there a plan for this key?")
    d.arrow((middle, end), (middle, end + 48))
    d.words(middle + 10, end + 29, "yes", anchor="start", weight="bold")
    replay = end + 50
    end = d.box(
        "core", left, replay, width, "Replay", "allocate results and temporaries,", "set the arguments, enqueue"
    )
    d.frame("core", left - 14, top - 26, width + 28, end + 14 - (top - 26), "C++, without the GIL")
    d.arrow((middle, end), (middle, end + 44))
    d.box("driver", left, end + 46, width, "The driver: launch, copy, fill", "on a stream of the device")

    d.arrow((left + width, asked + 16), (410, asked + 16), (410, top + 30), (right - 2, top + 30))
    d.words(406, asked + 10, "no", weight="bold", anchor="end")
    end = d.box(
        "python",
        right,
        top,
        width,
        "torch's meta kernel",
        "shapes, strides and dtypes of the results,",
        "the errors of a bad call",
    )
    d.arrow((there, end), (there, end + 18))
    end = d.box(
        "python",
        right,
        end + 20,
        width,
        "The op's declaration",
        "table row, decomposition or planner:",
        "which steps, on which memory",
    )
    d.arrow((there, end), (there, end + 18))
    kernels = end + 20
    end = d.box(
        "python",
        right,
        kernels,
        width,
        "Its kernels",
        "text in the device's language, compiled,",
        "or read from the cache on disk",
    )
    d.frame("python", right - 14, top - 26, width + 28, end + 14 - (top - 26), "Python, at the first call of each key")
    d.arrow((right, replay + 52), (left + width + 2, replay + 52))
    d.words(410, replay + 45, "plan", weight="bold")
    return d.svg()


def layers() -> str:
    """Who calls whom, from a program down to the device."""
    d = Drawing("The layers")
    left, width, gap = 28, WIDTH - 56, 12

    def row(y: int, kind: str, *boxes: tuple[str, ...]) -> int:
        each = (width - gap * (len(boxes) - 1)) // len(boxes)
        height = 14 + LINE * max(map(len, boxes))
        for index, (title, *lines) in enumerate(boxes):
            d.box(kind, left + index * (each + gap), y, each, title, *lines, height=height)
        return y + height

    end = row(16, "user", ("Your program", 'torch.nn, torch.optim, other libraries: model.to("foo")'))
    end = row(
        end + gap,
        "torch",
        ("PyTorch, unmodified", "dispatcher, autograd, autocast, serialization, profiler; the meta kernels"),
    )
    start = end + gap
    end = row(
        start + 28,
        "python",
        ("ops", "table rows,", "decompositions,", "planners"),
        ("plans", "which steps a call", "needs; traced,", "made once"),
        ("kernels, codegen", "texts for CPUs and", "GPUs; the cache of", "compiled ones"),
        ("torch.foo", "memory, streams,", "random numbers,", "fallback report"),
    )
    end = row(
        end + gap,
        "core",
        ("csrc: plans, aten, distributed", "plans replayed, views, copies,", "fallback, autocast, collectives"),
        (
            "csrc: runtime, memory, graphs, profiler",
            "streams, events, guard, generator,",
            "allocator, commands, recordings",
        ),
    )
    d.frame(
        "python",
        left - 14,
        start,
        width + 28,
        end + 14 - start,
        "torchgraft: Python decides, C++ does; it asks for no vendor",
    )
    end = row(
        end + 14 + gap,
        "driver",
        (
            "The driver contract: driver.h, or class Driver in Python",
            "functions for memory, copies, streams, events, modules, launches; nothing of tensors",
        ),
    )
    end = row(
        end + gap,
        "device",
        ("torchgraft-opencl", "in C++, of this repository:", "PoCL and other OpenCL"),
        ("yours, in C", "a shared library for an", "accelerator or an API"),
        ("yours, in Python", "a simulator, a study,", "a beginning"),
    )
    return d.svg()


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs/assets"
    for name, svg in {"call": call(), "layers": layers()}.items():
        (folder / f"{name}.svg").write_text(svg)
        print(folder / f"{name}.svg")


if __name__ == "__main__":
    main()
