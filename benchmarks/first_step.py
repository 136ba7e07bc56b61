"""Seconds until something happens: the first op, and the first step of training, of new processes.

    python benchmarks/first_step.py [--device ocl] [--runs 3]

Each run is a process of its own, after `import torch`, which is not counted; "cold" ones find no kernels on disk. The
model is a small convolutional network with batch norm; the optimiser is made before. Medians of the runs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

OP = """
import json, sys, time, torch
x = torch.randn(64)
begin = time.perf_counter()
y = x.to(sys.argv[1])
(y + y).cpu()
print(json.dumps({"first op": time.perf_counter() - begin}))
"""
STEP = """
import json, sys, time, torch
from torch import nn
device = sys.argv[1]
begin = time.perf_counter()
model = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1),
    nn.ReLU(), nn.Flatten(), nn.Linear(32 * 14 * 14, 10),
).to(device)
x, y = torch.randn(32, 1, 28, 28).to(device), torch.randint(10, (32,)).to(device)
optimizer = torch.optim.Adam(model.parameters())
times, last = {"model and optimiser": time.perf_counter() - begin}, time.perf_counter()
def part(name):
    global last
    if device != "cpu":
        torch.accelerator.synchronize()
    times[name], last = time.perf_counter() - last, time.perf_counter()
loss = nn.functional.cross_entropy(model(x), y)
part("forward")
loss.backward()
part("backward")
optimizer.step()
part("optimiser's step")
times["first step"] = sum(list(times.values())[1:])
print(json.dumps(times))
"""


def measure(program: str, device: str, folder: Path) -> dict[str, float]:
    caches = {"TORCHGRAFT_CACHE_DIR": str(folder / "kernels"), "POCL_CACHE_DIR": str(folder / "pocl")}
    done = subprocess.run(
        [sys.executable, "-c", program, device], env={**os.environ, **caches}, check=True, stdout=subprocess.PIPE
    )
    times: dict[str, float] = json.loads(done.stdout)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="ocl")
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    runs: dict[str, list[dict[str, float]]] = {"CPU": [], "cold": [], "warm": []}
    for _ in range(options.runs):
        with tempfile.TemporaryDirectory() as folder:
            for state, device in (("CPU", "cpu"), ("cold", options.device), ("warm", options.device)):
                first = measure(OP, device, Path(folder) / "op")
                runs[state].append(first | measure(STEP, device, Path(folder) / "step"))
    print(f"{'':22s}" + "".join(f"{state:>9s}" for state in runs) + "   (seconds)")
    for what in runs["CPU"][0]:
        medians = (statistics.median(run[what] for run in of_state) for of_state in runs.values())
        print(f"{what:22s}" + "".join(f"{median:9.2f}" for median in medians))


if __name__ == "__main__":
    main()
