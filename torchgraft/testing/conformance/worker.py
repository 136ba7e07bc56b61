"""A process that runs cases for the runner: names come in, results go out, one JSON object a line.

What is being computed stands in a file of one byte, so that the runner knows, when this process dies, whether the CPU
or the device killed it.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import sys
import time

import torch

import torchgraft
from torchgraft.testing.conformance import CHECKS, Case, run_case
from torchgraft.testing.conformance.cases import database
from torchgraft.testing.conformance.compiled import compiled_checks

PHASES = {"": b"-", "cpu": b"c", "device": b"d"}


def main() -> None:
    """Arguments: the device, the fallback's mode, samples for each check (0: all), a backend of torch.compile or
    nothing, the phase file, modules to import."""
    device, mode, samples, backend, phase_file, imports = sys.argv[1:]
    for module in filter(None, imports.split(",")):
        importlib.import_module(module)
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else is printed must not mix with the results
    torch.set_num_threads(1)
    torch.empty(0, device=device)
    database()
    if torchgraft.registration.register.registered_name() == torch.device(device).type:
        torchgraft.fallback.set_mode("error" if mode == "error" else "silent")
    phase = os.open(phase_file, os.O_WRONLY)

    def note(what: str) -> None:
        os.pwrite(phase, PHASES[what], 0)

    checks = compiled_checks(backend) if backend else CHECKS
    print("ready", file=results, flush=True)
    for line in sys.stdin:
        started = time.perf_counter()
        result = run_case(Case.parse(line.strip()), device, samples=int(samples) or None, phase=note, checks=checks)
        record = {**dataclasses.asdict(result), "seconds": round(time.perf_counter() - started, 3)}
        print(json.dumps(record), file=results, flush=True)


if __name__ == "__main__":
    main()
