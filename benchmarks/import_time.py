"""What an installed backend adds to `import torch`: the time that autoloading takes, and whether it opens a device.

    python benchmarks/import_time.py [--runs 5] [--limit 150]

Each run is a new process under `python -X importtime`. The figure is the sum of the times of all modules that are only
imported with autoloading, plus the growth of torch's own line (where the registration's work is done); the smallest of
the runs counts, since anything else that the machine does only adds to it. The status is 1 if it is above the limit.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys

LINE = re.compile(r"import time:\s+(\d+) \|\s+(\d+) \|\s*(\S+)")
OPENED = """
import torch
if "torchgraft._C" in __import__("sys").modules:
    from torchgraft import _C
    print("opened" if _C.devices_opened() else "closed")
else:
    print("absent")
"""


def own_times(autoload: bool) -> tuple[dict[str, int], str]:
    """Microseconds of each module's own (without what it imports), and whether devices are open after the import."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", OPENED],
        env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "01"[autoload]},
        capture_output=True,
        text=True,
        check=True,
    )
    return {name: int(own) for own, _, name in LINE.findall(done.stderr)}, done.stdout.strip()


def growth(runs: int) -> tuple[float, list[tuple[str, float]], str]:
    """The milliseconds that autoloading adds, the modules that cost most, and whether anything was opened."""
    without = [own_times(False)[0] for _ in range(runs)]
    with_it = [own_times(True) for _ in range(runs)]
    base = min(times["torch"] for times in without)
    usual = set().union(*without)
    best = min(with_it, key=lambda run: sum(us for name, us in run[0].items() if name not in usual) + run[0]["torch"])
    added = {name: us for name, us in best[0].items() if name not in usual}
    added["(registration, in torch)"] = max(0, best[0]["torch"] - base)
    slowest = sorted(added.items(), key=lambda item: -item[1])
    return sum(added.values()) / 1e3, [(name, us / 1e3) for name, us in slowest[:10]], best[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--limit", type=float, default=150, help="milliseconds")
    arguments = parser.parse_args()
    total, slowest, opened = growth(arguments.runs)
    for name, milliseconds in slowest:
        print(f"{milliseconds:8.2f} ms  {name}")
    print(f"{total:8.2f} ms  in all (limit {arguments.limit:g}); devices: {opened}")
    return 0 if total < arguments.limit and opened == "closed" else 1


if __name__ == "__main__":
    sys.exit(main())
