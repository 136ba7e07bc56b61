"""What an installed backend adds to `import torch`, and whether it opens a device.

    python benchmarks/import_time.py [--runs 5] [--limit 25]

Each run is a new process under `python -X importtime` that imports torch without autoloading and then does what torch
does to autoload: loads and calls the entry points of "torch.backends". The limit is a share of what torch itself takes
of the processor's time in the same process, since a machine that is busy or slow is so for both; the run with the least
share counts. The time that passed is printed too, with the modules that took most of it. The status is 1 if the limit
is passed, or if a device has been opened.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from typing import Any

LINE = re.compile(r"import time:\s+(\d+) \|\s+\d+ \|\s*(\S+)")
AUTOLOAD = """
import json, sys, time
from importlib.metadata import entry_points
torchs = time.process_time()
import torch
torchs = time.process_time() - torchs
print("autoload", file=sys.stderr, flush=True)
elapsed, used = time.perf_counter(), time.process_time()
for entry in entry_points(group="torch.backends"):
    entry.load()()
elapsed, used = time.perf_counter() - elapsed, time.process_time() - used
name = torch._C._get_privateuse1_backend_name()
from torchgraft import _C
found = {"backend": name, "opened": _C.devices_opened()}
print(json.dumps({"elapsed": elapsed * 1e3, "used": used * 1e3, "torchs": torchs * 1e3, **found}))
"""


def measure() -> dict[str, Any]:
    """One run: milliseconds `elapsed` and `used`, those that importing torch used (`torchs`), `backend`, `opened`, and
    the milliseconds of each of `modules`."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", AUTOLOAD],
        env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
        capture_output=True,
        text=True,
        check=True,
    )
    modules = {name: int(own) / 1e3 for own, name in LINE.findall(done.stderr.partition("\nautoload\n")[2])}
    return {**json.loads(done.stdout), "modules": modules}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--limit", type=float, default=25, help="per cent of what torch takes")
    arguments = parser.parse_args()
    runs = [measure() for _ in range(arguments.runs)]
    share, best = min(((100 * run["used"] / run["torchs"], run) for run in runs), key=lambda found: found[0])
    for name, milliseconds in sorted(best["modules"].items(), key=lambda item: -item[1])[:10]:
        print(f"{milliseconds:8.2f} ms  {name}")
    print(f"{best['elapsed']:8.2f} ms  passed")
    print(f"{best['used']:8.2f} ms  of the processor: {share:.0f} % of torch's own import (limit {arguments.limit:g})")
    print(f"backend {best['backend']}, devices {'opened' if best['opened'] else 'closed'}")
    return 0 if share < arguments.limit and not best["opened"] else 1


if __name__ == "__main__":
    sys.exit(main())
