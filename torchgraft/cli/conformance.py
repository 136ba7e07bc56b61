"""Runs PyTorch's operator database on a device beside the CPU; an interrupted run goes on where it stopped."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

HELP = "compare every op with torch's CPU, by PyTorch's operator database"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", required=True, help="the device's name, such as 'foo' or 'foo:1'")
    parser.add_argument("--import", dest="imports", action="append", default=[], metavar="MODULE", help="import first")
    parser.add_argument("--ops", default="", metavar="REGEX", help="only cases whose name it is found in")
    parser.add_argument("--dtypes", default="", metavar="NAMES", help="with commas; by default those of the figures")
    parser.add_argument("--fallback", choices=("allow", "error"), default="allow", help="allow counts it")
    parser.add_argument("--samples", type=int, default=0, metavar="N", help="for each check at most; 0: all (default)")
    parser.add_argument(
        "--compile",
        nargs="?",
        const="inductor",
        default="",
        metavar="BACKEND",
        help="through torch.compile, forward and backward; by default its own backend, inductor",
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="processes")
    parser.add_argument("--timeout", type=float, default=600, metavar="SECONDS", help="for one case")
    parser.add_argument("--results", type=Path, default=Path("conformance.jsonl"), metavar="FILE", help="JSON lines")
    parser.add_argument("--again", action="store_true", help="run anew what the results file has already")
    parser.add_argument("--exceptions", type=Path, metavar="FILE", help="declared exceptions (TOML)")
    parser.add_argument(
        "--quick",
        type=int,
        nargs="?",
        const=0,
        metavar="ROTATION",
        help="only float32 and, for each op, one other dtype; another one for another number",
    )
    parser.add_argument(
        "--slice",
        type=part_of_all,
        metavar="I/N",
        help="only every N-th case, of which the I-th slice (modulo N, so that any growing number will do)",
    )
    parser.add_argument(
        "--compare", type=Path, metavar="STORED", help="fail for what this earlier run could do, and for nothing else"
    )


def part_of_all(text: str) -> tuple[int, int]:
    """I and N of "I/N", for argparse."""
    first, _, step = text.partition("/")
    if not (first.isdecimal() and step.isdecimal() and int(step) > 0):
        raise argparse.ArgumentTypeError(f"a slice is, for example, 3/8, and not {text!r}")
    return int(first), int(step)


def run(arguments: argparse.Namespace) -> int:
    from torchgraft.testing.needs import need

    need("torchgraft conformance", "expecttest", "numpy", "tqdm")
    import torch

    from torchgraft.testing.conformance import cases, quick, report, runner
    from torchgraft.testing.conformance.cases import DTYPES
    from torchgraft.testing.conformance.exceptions import read_exceptions

    dtypes = [getattr(torch, name) for name in arguments.dtypes.split(",")] if arguments.dtypes else DTYPES
    wanted = list(cases(arguments.ops, dtypes))
    if arguments.quick is not None:
        wanted = list(quick(wanted, arguments.quick))
    if arguments.slice is not None:
        first, step = arguments.slice
        wanted = wanted[first % step :: step]
    if not wanted:
        print(f"no case's name matches {arguments.ops!r}", file=sys.stderr)
        return 2
    if arguments.compare and not arguments.compare.exists():
        print(f"{arguments.compare} does not exist; `torchgraft coverage --store` writes one", file=sys.stderr)
        return 2
    options = runner.Options(
        device=arguments.device,
        mode="silent" if arguments.fallback == "allow" else "error",
        samples=arguments.samples or None,
        jobs=arguments.jobs,
        timeout=arguments.timeout,
        compiled=arguments.compile,
        imports=tuple(arguments.imports),
    )
    if arguments.again:
        arguments.results.unlink(missing_ok=True)
    try:
        with runner.progress_bar(len(wanted), arguments.results, wanted) as progress:
            records = runner.run(wanted, options, arguments.results, progress)
    except runner.WorkerError as error:
        print(error, file=sys.stderr)
        return 2
    names = {str(case) for case in wanted}
    ran = [record for name, record in records.items() if name in names]
    declared = read_exceptions(arguments.exceptions) if arguments.exceptions else []
    lines, stale = report.unexpected(ran, declared)
    if arguments.samples:  # the sample that fails may be one of those that are left out
        stale = []
    for line in lines:
        print(line)
    for exception in stale:
        print(f"declared to fail, but passes: {exception.cases} {exception.check} ({exception.reason})")
    print(report.figures(ran))
    wrong = _triton(arguments)
    if not arguments.compare:
        return 1 if lines or stale or wrong else 0
    lost = report.regressions(ran, runner.read_results(arguments.compare), declared)
    for line in lost:
        print(f"regression: {line}")
    return 1 if lost or stale or wrong else 0


def _triton(arguments: argparse.Namespace) -> list[str]:
    """Says whether the device runs Triton's kernels, where the run is one of all ops as they are; returns what does
    not."""
    from torchgraft.testing.triton import runs_triton

    if arguments.ops or arguments.compile:
        return []
    wrong, summary = runs_triton(arguments.device, arguments.imports, max(arguments.timeout, 600))
    print(*wrong, summary, sep="\n")
    return wrong
