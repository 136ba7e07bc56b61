"""Single ops on the device and on another device of torch's, such as CUDA's of the same GPU, in the same run.

python benchmarks/beside.py cuda [--python FILE] [--device ocl] [--only matmul] [--json FILE] [--markdown FILE]

The workloads are those of ops.py. The other device belongs to the torch of `--python`, which may be another build than
the device's own, in a process of its own. The two take turns; a figure is the median of the rounds, a ratio the median
of the rounds' ratios. Above 1 the device is quicker.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

# Before torch is imported: kernels are compiled when they are needed, not while the other side is timed.
os.environ.setdefault("TORCHGRAFT_COMPILE_HELPERS", "0")

from harness.case import Case
from harness.figures import classes
from harness.machine import machine
from harness.tables import Table, machine_table
from harness.torch_process import TorchProcess
from harness.turns import Here, Side, take_turns
from workloads import all_cases

CASE_HEAD = ("op", "beside", "device", "unit", "us beside", "us", "ratio")
CLASS_HEAD = ("class", "cases", "ratio", "worst", "")


@dataclass(frozen=True)
class Compared:
    """What was found of a workload: seconds a call on the other device and on ours, and how many times as quick ours
    is. `work` is what a call does, in `unit` times 1e9 seconds."""

    name: str
    unit: str
    work: float
    beside: float
    device: float
    ratio: float

    @property
    def family(self) -> str:
        return self.name.split("/")[0]

    def row(self) -> list[str]:
        rates = [f"{self.work / seconds / 1e9:.1f}" for seconds in (self.beside, self.device)]
        times = [f"{seconds * 1e6:.1f}" for seconds in (self.beside, self.device)]
        return [self.name, *rates, self.unit, *times, f"{self.ratio:.2f}"]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("beside", help="the other device: cuda")
    parser.add_argument("--python", default=sys.executable, help="the Python whose torch has it")
    parser.add_argument("--device", default="ocl")
    parser.add_argument("--only", default="", help="cases whose name contains this text")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.02, help="of each round and side")
    parser.add_argument("--json", type=Path, metavar="FILE", help="all figures")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="the tables")
    return parser.parse_args()


def compared(case: Case, sides: dict[str, Side], options: argparse.Namespace) -> Compared:
    times, _ = take_turns(case, sides, options.rounds, options.seconds)
    ratio = statistics.median(other / ours for other, ours in zip(times["beside"], times["device"], strict=True))
    beside, device = (statistics.median(times[side]) for side in ("beside", "device"))
    return Compared(case.name, case.unit, case.work, beside, device, ratio)


def measure(cases: Sequence[Case], options: argparse.Namespace) -> tuple[list[Compared], list[str]]:
    """Prints each figure when it is there. Also returns the cases that failed on the device."""
    found, failed = [], []
    with contextlib.closing(TorchProcess(all_cases, device=options.beside, python=options.python)) as other:
        sides: dict[str, Side] = {"beside": other, "device": Here(options.device)}
        for case in cases:
            try:
                found.append(compared(case, sides, options))
            except Exception as error:  # the others go on
                failed.append(f"{case.name}: {error}".strip())
                print(failed[-1], flush=True)
                continue
            name, *cells = found[-1].row()
            print(f"{name:60s}" + "".join(f"{cell:>12s}" for cell in cells), flush=True)
    return found, failed


def class_table(figures: Sequence[Compared]) -> Table:
    rows = []
    for family, some in {**classes(figures), "all": list(figures)}.items():
        worst = min(some, key=lambda each: each.ratio)
        mean = statistics.geometric_mean(each.ratio for each in some)
        rows.append([family, str(len(some)), f"{mean:.2f}", f"{worst.ratio:.2f}", worst.name.partition("/")[2]])
    return Table(CLASS_HEAD, rows)


def torch_of(python: str) -> str:
    """The version of the torch of a Python."""
    asked = [python, "-c", "import torch; print(torch.__version__)"]
    environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    return subprocess.run(asked, env=environment, capture_output=True, text=True, check=True).stdout.strip()


def main() -> None:
    options = arguments()
    chosen = [case for case in all_cases() if options.only in case.name]
    if not chosen:
        raise SystemExit(f"no case has {options.only!r} in its name")
    found = {**machine(options.device), "beside": f"{options.beside} of torch {torch_of(options.python)}"}
    figures, failed = measure(chosen, options)
    table = class_table(figures)
    print(f"\n{table.text()}")
    if options.json:
        record = {"machine": found, "cases": [dataclasses.asdict(each) for each in figures]}
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    if options.markdown:
        heads = {"Classes": table, "Cases": Table(CASE_HEAD, [each.row() for each in figures])}
        sections = "".join(f"\n## {title}\n\n{each.markdown()}\n" for title, each in heads.items())
        head = machine_table(found).markdown()
        options.markdown.write_text(f"# Single ops beside {options.beside}\n\n{head}\n{sections}")
    if failed:
        sys.exit(f"{len(failed)} cases failed on {options.device}")


if __name__ == "__main__":
    main()
