"""The command line: trains, compares, and tells by its exit status whether all is well."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from rich.console import Console
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from torchgraft_opencl.demo import training
from torchgraft_opencl.demo.report import (
    COMPARED_STEPS,
    Comparison,
    Work,
    complaints,
    describe_device,
    results_table,
    work_table,
)
from torchgraft_opencl.demo.task import Task

AMP = {"float16": torch.float16, "bfloat16": torch.bfloat16}


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m torchgraft_opencl.demo",
        description="Trains a convolutional network and a small GPT on a device, and beside it on the CPU.",
    )
    parser.add_argument("--device", default="ocl", help='"ocl", "ocl:1", "cpu", ... (default: ocl)')
    parser.add_argument("--tasks", nargs="+", choices=["digits", "text"], default=["digits", "text"])
    parser.add_argument("--epochs", type=int, default=10, help="over the digits (default: 10)")
    parser.add_argument("--steps", type=int, default=200, help="on the text (default: 200)")
    parser.add_argument("--characters", type=int, default=300, help="to sample from the GPT (default: 300)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--least-accuracy", type=float, default=0.97, help="of the digits, held out (default: 0.97)")
    parser.add_argument(
        "--amp", choices=AMP, help="train in mixed precision on the device; beside it the CPU computes in float32"
    )
    parser.add_argument("--curves", type=Path, metavar="FILE", help="draw the losses: .svg, .png or .pdf")
    parser.add_argument("--no-cpu", action="store_true", help="leave out the comparison with the CPU")
    return parser.parse_args()


def chosen_tasks(options: argparse.Namespace) -> Iterator[Task]:
    # Imported here so that each needs only its own data.
    if "digits" in options.tasks:
        from torchgraft_opencl.demo.digits import Digits

        yield Digits(options.seed, options.epochs, options.least_accuracy)
    if "text" in options.tasks:
        from torchgraft_opencl.demo.text import Text

        yield Text(options.seed, options.steps)


def train(task: Task, device: torch.device, bars: Progress, amp: torch.dtype | None = None) -> training.Run:
    """Trains with a progress bar."""
    bar = bars.add_task(f"{task.name} on {device}", total=task.steps, loss="", speed="", memory="")

    def report(progress: training.Progress) -> None:
        bars.update(
            bar,
            completed=progress.step,
            loss=f"loss {progress.loss:.3f}",
            speed=f"{progress.samples_per_second:,.0f} samples/s",
            memory=f"{progress.memory / 2**20:,.1f} MiB" if progress.memory else "",
        )

    return training.train(task, device, report, amp)


def main() -> int:
    options = parse_options()
    console = Console()
    started = time.perf_counter()
    device = torch.device(options.device)
    on_cpu = device.type == "cpu"
    amp = AMP.get(options.amp)
    console.print(describe_device(device), highlight=False)

    comparisons = []
    text = ""
    work: Work | None = None
    columns = [TextColumn(f"{{task.{field}}}") for field in ("fields[loss]", "fields[speed]", "fields[memory]")]
    bars = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        *columns,
        TimeElapsedColumn(),
        console=console,
    )
    with bars:
        for task in chosen_tasks(options):
            on_device = train(task, device, bars, amp)
            text += task.show(on_device.model, options.characters)
            work = None if on_cpu else Work.so_far()
            beside = None if options.no_cpu else train(task, torch.device("cpu"), bars)
            comparisons.append(Comparison(task, on_device, beside, amp))

    if text:
        console.print(Panel(text, title="written by the GPT"), highlight=False, markup=False)
    console.print(results_table(comparisons))
    for each in comparisons:
        if (difference := each.difference()) is not None:
            console.print(
                f"{each.task.name}: over the first {COMPARED_STEPS} steps the loss on {device} differs from the CPU's "
                f"by at most {difference:.1e} of its value",
                highlight=False,
            )
    if work is not None:
        console.print(work_table(work))
    if options.curves:
        from torchgraft_opencl.demo import curves  # which needs matplotlib

        curves.draw(comparisons, options.curves)
        console.print(f"the loss curves are drawn in {options.curves}", highlight=False, soft_wrap=True)
    console.print(f"all of it took {time.perf_counter() - started:.0f} s", highlight=False)

    problems = complaints(comparisons, work)
    for problem in problems:
        console.print(f"[red]not as it should be:[/red] {problem}", highlight=False)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
