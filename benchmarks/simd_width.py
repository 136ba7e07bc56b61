"""GFLOP/s of products with tiles and vectors for registers of 4, 8 (AVX2) and 16 float32: which the device gets is what
its driver says of its registers, and TORCHGRAFT_SIMD_WIDTH forces another.

python benchmarks/simd_width.py [--device ocl] [--only "matmul/nn 512"] [--rounds 5]

A line has a workload's figures on the device, one for each width; each width is a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

OPS = Path(__file__).parent / "ops.py"
WIDTHS = (4, 8, 16)


def figures(width: int, device: str, only: str, rounds: int) -> dict[str, float]:
    """The device's figure for each workload."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "figures.json")
        command = [sys.executable, str(OPS), "--device", device, "--only", only, "--rounds", str(rounds)]
        environment = {**os.environ, "TORCHGRAFT_SIMD_WIDTH": str(width)}
        subprocess.run([*command, "--json", str(file)], env=environment, stdout=subprocess.DEVNULL, check=True)
        return {name: case["rates"]["device"] for name, case in json.loads(file.read_text())["cases"].items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="ocl")
    parser.add_argument("--only", default="matmul/nn", help="workloads of ops.py whose name contains this text")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    found = {width: figures(width, options.device, options.only, options.rounds) for width in WIDTHS}
    print(f"{'':40s}" + "".join(f"{f'{width} lanes':>12s}" for width in WIDTHS))
    for name in found[WIDTHS[0]]:
        print(f"{name:40s}" + "".join(f"{found[width][name]:12.1f}" for width in WIDTHS))


if __name__ == "__main__":
    main()
