"""What the caching allocator keeps, and what it costs.

python benchmarks/allocator.py [--device ocl] [--operations 4000] [--seeds 6] [--rounds 20] [--json FILE]

"random sizes" allocates and frees tensors of random sizes, of which a changing number is alive, and shows the most
bytes that were reserved over the most that were allocated (the median of the seeds and the worst), and which part of
the bytes that tensors got came fresh from the driver, which is what costs page faults. "loops" repeats one random
sequence, as training does, and shows when the driver was last asked: after the first rounds it should never be. "hits"
is the time of an allocation and its release. Times are the least of the rounds, since all else that the machine does
only adds to them.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import time
from collections.abc import Callable

import torch

MIB = 1 << 20
SMALLEST, LARGEST = 64, 32 * MIB
Sizes = Callable[[random.Random], int]
DISTRIBUTIONS: dict[str, Sizes] = {
    "log-uniform": lambda chosen: int(math.exp(chosen.uniform(math.log(SMALLEST), math.log(LARGEST)))),
    "uniform": lambda chosen: chosen.randrange(SMALLEST, LARGEST + 1),
    "powers of 2": lambda chosen: 1 << chosen.randrange(6, 26),
}
LIVE = (4, 16, 64, 200)
HITS = (64, 4096, 262144, MIB, 8 * MIB, 32 * MIB)
acc = torch.accelerator


def new(nbytes: int, device: str) -> torch.Tensor:
    return torch.empty(nbytes, dtype=torch.uint8, device=device)


def start() -> None:
    """An empty cache and statistics that begin again."""
    acc.synchronize()
    acc.empty_cache()
    acc.reset_peak_memory_stats()
    acc.reset_accumulated_memory_stats()


def random_sizes(device: str, sizes: Sizes, live: int, operations: int, seed: int) -> tuple[float, float]:
    """The most reserved over the most allocated, and the part of the bytes that was fresh."""
    chosen = random.Random(seed)
    start()
    tensors: list[torch.Tensor] = []
    for step in range(operations):
        if step % 100 == 0:
            wanted = chosen.randrange(1, live + 1)
        tensors.append(new(sizes(chosen), device))
        while len(tensors) > wanted:
            tensors.pop(chosen.randrange(len(tensors)))
    stats = acc.memory_stats()
    return (
        stats["reserved_bytes.all.peak"] / stats["allocated_bytes.all.peak"],
        stats["reserved_bytes.all.allocated"] / stats["allocated_bytes.all.allocated"],
    )


def sequence(sizes: Sizes, live: int, seed: int) -> list[tuple[int, int]]:
    """300 allocations among the releases of what they allocate: (number, bytes), or (number, 0) for a release."""
    chosen = random.Random(seed)
    steps: list[tuple[int, int]] = []
    alive: list[int] = []
    for number in range(300):
        if number % 50 == 0:
            wanted = chosen.randrange(1, live + 1)
        steps.append((number, sizes(chosen)))
        alive.append(number)
        while len(alive) > wanted:
            steps.append((alive.pop(chosen.randrange(len(alive))), 0))
    return steps + [(number, 0) for number in reversed(alive)]


def loop(device: str, steps: list[tuple[int, int]], rounds: int) -> tuple[int, float]:
    """The last round, from 1, that asked the driver for memory, and milliseconds a round after that."""
    start()
    last = 0
    times: list[float] = []
    for number in range(1, rounds + 1):
        before = acc.memory_stats()["num_device_alloc"]
        tensors: dict[int, torch.Tensor] = {}
        begun = time.perf_counter()
        for which, nbytes in steps:
            if nbytes:
                tensors[which] = new(nbytes, device)
            else:
                del tensors[which]
        times.append((time.perf_counter() - begun) * 1e3)
        if acc.memory_stats()["num_device_alloc"] != before:
            last = number
    return last, min(times[last:] or times[-1:])


def hit(device: str, nbytes: int, rounds: int) -> float:
    """Microseconds an allocation and its release."""
    start()
    calls = 5000
    times = []
    for _ in range(rounds):
        begun = time.perf_counter()
        for _ in range(calls):
            torch.empty(nbytes, dtype=torch.uint8, device=device)
        times.append((time.perf_counter() - begun) / calls * 1e6)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="ocl")
    parser.add_argument("--operations", type=int, default=4000)
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json")
    options = parser.parse_args()
    figures: dict[str, dict[str, float]] = {}
    print(f"{'random sizes 64 B to 32 MiB':32s} {'reserved/peak':>14s} {'worst':>8s} {'fresh %':>8s}")
    for name, sizes in DISTRIBUTIONS.items():
        for live in LIVE:
            runs = [
                random_sizes(options.device, sizes, live, options.operations, seed) for seed in range(options.seeds)
            ]
            ratios, fresh = [ratio for ratio, _ in runs], statistics.mean(part for _, part in runs) * 100
            median, worst = statistics.median(ratios), max(ratios)
            label = f"{name}, up to {live} alive"
            figures[label] = {"ratio": median, "worst": worst, "fresh": fresh}
            print(f"{label:32s} {median:14.2f} {worst:8.2f} {fresh:8.2f}")
    print(f"\n{'loops':32s} {'last asked':>14s} {'ms a round':>12s}   (of {options.rounds} rounds)")
    for name, sizes in DISTRIBUTIONS.items():
        for live in LIVE[:3]:
            loops = [loop(options.device, sequence(sizes, live, seed), options.rounds) for seed in range(options.seeds)]
            last, elapsed = max(number for number, _ in loops), statistics.mean(each for _, each in loops)
            label = f"{name}, {live} alive"
            figures[f"loop of {label}"] = {"last": last, "milliseconds": elapsed}
            print(f"{label:32s} {last:14d} {elapsed:12.3f}")
    print(f"\n{'hits':32s} {'microseconds':>14s}")
    for nbytes in HITS:
        elapsed = hit(options.device, nbytes, options.rounds)
        figures[f"hit of {nbytes}"] = {"microseconds": elapsed}
        print(f"{nbytes:32d} {elapsed:14.3f}")
    if options.json:
        with open(options.json, "w") as file:
            json.dump(figures, file, indent=1)


if __name__ == "__main__":
    main()
