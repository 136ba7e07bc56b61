"""Microseconds a call: what an op costs beside its arithmetic, on the device and on torch's CPU in the same run.

python benchmarks/dispatch.py [--device ocl] [--rounds 7] [--calls 1000] [--least] [--json FILE]

"async" is the time until the call returns; "sync" is one call and a wait. A figure is the median of rounds, in which
device and CPU take turns; with `--least` it is the least, for machines that are busy: many rounds of few calls.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch

Call = Callable[[], object]


def cases(device: str) -> dict[str, Call]:
    """One call of each kind on 64 floats."""
    a, b = torch.randn(64, device=device), torch.randn(64, device=device)
    out = torch.empty(64, device=device)
    matrix = torch.randn(32, 32, device=device)

    def chain() -> torch.Tensor:
        x = a
        for _ in range(5):
            x = x * 1.01 + b
        return x

    return {
        "add": lambda: a + b,
        "add_": lambda: a.add_(b, alpha=1e-9),
        "add out=": lambda: torch.add(a, b, out=out),
        "mul by a scalar": lambda: a * 2.0,
        "chain of 10": chain,
        "view": lambda: a.view(8, 8),
        "empty": lambda: torch.empty(64, device=device),
        "sum": lambda: a.sum(),
        "matmul 32": lambda: matrix @ matrix,
    }


def synchronize(device: str) -> None:
    if device != "cpu":
        torch.accelerator.synchronize()


def measure(call: Call, device: str, wait: bool, calls: int) -> float:
    """Microseconds a call."""
    synchronize(device)
    start = time.perf_counter()
    if wait:
        for _ in range(calls):
            call()
            synchronize(device)
    else:
        for _ in range(calls):
            call()
    elapsed = time.perf_counter() - start
    synchronize(device)
    return elapsed / calls * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="ocl")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--least", action="store_true", help="the least of the rounds instead of their median")
    parser.add_argument("--json")
    options = parser.parse_args()
    typical = min if options.least else statistics.median
    sets = {"cpu": cases("cpu"), options.device: cases(options.device)}
    figures: dict[str, dict[str, float]] = {}
    print(f"{'':18s} {'CPU':>8s} {'async':>8s} {'x CPU':>6s} {'sync':>8s} {'x CPU':>6s}   (microseconds a call)")
    for name in sets["cpu"]:
        times: dict[str, list[float]] = {"cpu": [], "async": [], "sync": []}
        for device, calls in sets.items():
            measure(calls[name], device, False, 200)
        for _ in range(options.rounds):
            times["cpu"].append(measure(sets["cpu"][name], "cpu", False, options.calls))
            times["async"].append(measure(sets[options.device][name], options.device, False, options.calls))
            times["sync"].append(measure(sets[options.device][name], options.device, True, options.calls // 5))
        figure = {key: typical(values) for key, values in times.items()}
        ratio = {
            key: statistics.median(mine / cpu for mine, cpu in zip(times[key], times["cpu"], strict=True))
            for key in ("async", "sync")
        }
        if options.least:
            ratio = {key: figure[key] / figure["cpu"] for key in ratio}
        figures[name] = {**figure, "async_ratio": ratio["async"], "sync_ratio": ratio["sync"]}
        print(
            f"{name:18s} {figure['cpu']:8.2f} {figure['async']:8.2f} {ratio['async']:6.2f} "
            f"{figure['sync']:8.2f} {ratio['sync']:6.2f}"
        )
    if options.json:
        with open(options.json, "w") as file:
            json.dump(figures, file, indent=1)


if __name__ == "__main__":
    main()
