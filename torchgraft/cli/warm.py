"""Compiles the kernels that programs need first, so that none of them has to wait: `torchgraft warm` those of small
models of the usual kinds, `torchgraft warm train.py --epochs 1` those of a program, by running it.

They are kept on disk until they have not been used for long (`torchgraft cache`). Exit status: 0, or 1 if something
failed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from torchgraft.diagnosis.child import add_backend_arguments, environment

__all__ = ["HELP", "add_arguments", "run"]

HELP = "compile ahead what most programs need first, or what one program needs"
NAMES = ("images", "transformer", "recurrent", "dense", "tensors")  # those of warming.workloads, which imports torch


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_backend_arguments(parser)
    parser.add_argument(
        "--only", choices=NAMES, action="append", metavar="NAME", help=f"of the models: {', '.join(NAMES)}"
    )
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="processes at once (default: one for each core)"
    )
    parser.add_argument("program", nargs="?", help="a program in Python, which is run instead")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")


def run(arguments: argparse.Namespace) -> int:
    from torchgraft.codegen.cache import KernelCache

    cache = KernelCache()
    if not cache.enabled:
        print("no kernels are kept on disk (TORCHGRAFT_CACHE), so that none can be compiled ahead", file=sys.stderr)
        return 1
    variables = environment(arguments.backend, arguments.modules)
    if arguments.program is not None:
        jobs = {arguments.program: ["--program", arguments.program, *arguments.arguments]}
        variables.pop("TORCH_DEVICE_BACKEND_AUTOLOAD", None)
    else:
        jobs = {name: [name, *arguments.modules] for name in arguments.only or NAMES}
        variables["TORCHGRAFT_COMPILE_HELPERS"] = "0"  # these are as many as there should be
    begin, failed, compiled = time.monotonic(), False, 0
    for name, report in _reports(jobs, variables, max(1, arguments.jobs)):
        error = report["error"]
        failed |= bool(error)
        compiled += report["compiled"]
        counts = f"{report['compiled']} kernels compiled, {report['loaded']} there before, {report['seconds']:.1f} s"
        print(f"{name}: {error or counts}", file=sys.stderr if error else sys.stdout, flush=True)
    print(f"{compiled} kernels compiled in {time.monotonic() - begin:.1f} s")
    return int(failed)


def _reports(
    jobs: dict[str, list[str]], variables: dict[str, str], at_once: int
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Name and report of each job, as they end."""
    waiting, running = list(jobs.items()), dict[str, subprocess.Popen[bytes]]()
    with tempfile.TemporaryDirectory() as folder:
        while waiting or running:
            while waiting and len(running) < at_once:
                name, arguments = waiting.pop(0)
                running[name] = _start(Path(folder), name, arguments, variables)
            ended = [name for name, process in running.items() if process.poll() is not None]
            for name in ended:
                yield name, _report(Path(folder), name, running.pop(name))
            if not ended:
                time.sleep(0.02)


def _start(folder: Path, name: str, arguments: Sequence[str], variables: dict[str, str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "torchgraft.warming.child", str(_file(folder, name)), *arguments]
    is_program = arguments[0] == "--program"  # whose output is the user's
    return subprocess.Popen(command, env=variables, stdout=None if is_program else subprocess.DEVNULL)


def _file(folder: Path, name: str) -> Path:
    return folder / f"{Path(name).name}.json"


def _report(folder: Path, name: str, process: subprocess.Popen[bytes]) -> dict[str, Any]:
    try:
        report: dict[str, Any] = json.loads(_file(folder, name).read_text())
    except (OSError, ValueError):
        return {"error": f"it ended with status {process.returncode}", "compiled": 0, "loaded": 0, "seconds": 0.0}
    return report
