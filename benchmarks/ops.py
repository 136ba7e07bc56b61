"""GB/s and GFLOP/s of single ops, on the device and on torch's CPU in the same run.

python benchmarks/ops.py [--device ocl] [--only matmul] [--rounds 5] [--json FILE] [--markdown FILE] [--chart FILE.svg]

Sides take turns in each round: the device, the CPU with a warm heap, and the CPU as torch ships it. With a warm heap
the C library keeps what is freed, so that results do not cost page faults, which the device's allocator spares as
well. Each side runs in a process of its own. A figure is the median of the rounds, a ratio the median of the rounds'
ratios.

Bytes are the least that must move: each input and output once. The floor of a workload is the least time that it could
take: by its bytes or its operations, whichever takes longer, at the best that either side does at the beginning of the
run, and by its launches. "x of floor" is how many times as long the device takes. Below 1 is what does with fewer
operations than the usual algorithm.

At the end stand classes: geometric means and worst cases of the workloads on which kernels were tuned, and of others.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

# Before torch is imported. The profiler counts launches, and would say so each time; and kernels are compiled when they
# are needed, not by helpers while another side is timed.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")
os.environ.setdefault("TORCHGRAFT_COMPILE_HELPERS", "0")

from harness import tables
from harness.case import Case
from harness.ceilings import Ceilings
from harness.chart import chart
from harness.figures import Figure, Run, figure
from harness.machine import machine
from harness.probes import count_launches, probe
from harness.torch_process import TorchProcess, keep_heap
from harness.turns import Here, Side, take_turns
from workloads import all_cases


def arguments(description: str | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="ocl")
    parser.add_argument("--only", default="", help="cases whose name contains this text")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.06, help="of each round and side")
    parser.add_argument("--json", type=Path, metavar="FILE", help="all figures")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="the tables")
    parser.add_argument("--chart", type=Path, metavar="FILE.svg", help="a picture of the classes; see chart.py")
    return parser.parse_args()


def command(options: argparse.Namespace) -> str:
    """By which the same cases are measured again in the same way."""
    words = ["python", f"benchmarks/{Path(sys.argv[0]).name}", "--rounds", options.rounds, "--seconds", options.seconds]
    if options.only:
        words += ["--only", options.only]
    return shlex.join(map(str, words))


def line(cells: Sequence[str]) -> None:
    """All but whether it is tuned, which the name's place in the list tells."""
    name, *numbers = cells[:9]
    print(f"{name:65s}" + "".join(f"{cell:>14s}" for cell in numbers), flush=True)


def measure(
    cases: list[Case], source: Callable[[], Iterator[Case]], ceilings: Ceilings, options: argparse.Namespace
) -> list[Figure]:
    """Prints each figure when it is there."""
    figures, restless = [], 0
    line(tables.CASE_HEAD)
    with (
        contextlib.closing(TorchProcess(source, "shipped")) as shipped,
        contextlib.closing(TorchProcess(source, "warm")) as warm,
    ):
        here = Here(options.device)
        sides: dict[str, Side] = {"shipped": shipped, "warm": warm, "device": here}
        for case in cases:
            times, busy = take_turns(case, sides, options.rounds, options.seconds)
            restless += busy
            figures.append(figure(case, times, count_launches(here.call, options.device), ceilings))
            line(tables.case_row(figures[-1]))
    if restless:
        print(f"After {restless} turns threads were busy that had nothing to do.", file=sys.stderr)
    return figures


def report(run: Run, options: argparse.Namespace) -> None:
    print(f"\n{tables.class_table(run.figures).text()}")
    slow = tables.slow_table(run.figures)
    print(f"\n{len(slow.rows)} below {tables.SLOW} of the CPU with a warm heap")
    if slow.rows:
        print(slow.text())
    if options.json:
        run.write(options.json)
    if options.markdown:
        options.markdown.write_text(tables.markdown(run))
    if options.chart:
        options.chart.write_text(chart([run]))


def main(cases: Callable[[], Iterator[Case]] = all_cases, description: str | None = __doc__) -> None:
    options = arguments(description)
    chosen = [case for case in cases() if options.only in case.name]
    if not chosen:
        raise SystemExit(f"no case has {options.only!r} in its name")
    keep_heap()
    found = machine(options.device)
    ceilings = probe(options.device, {case.dtype for case in chosen}, options.seconds / 3)
    run = Run(command(options), found, ceilings, [])
    print(f"{tables.machine_table(run.machine).text()}\n\n{tables.ceiling_table(run).text()}\n", flush=True)
    run.figures.extend(measure(chosen, cases, ceilings, options))
    report(run, options)


if __name__ == "__main__":
    main()
