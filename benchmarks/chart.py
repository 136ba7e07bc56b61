"""Draws the classes of one or several runs of benchmarks/ops.py, machines beside each other.

python benchmarks/chart.py RUN.json [RUN.json ...] --out FILE.svg
"""

from __future__ import annotations

import argparse
from pathlib import Path

from harness.chart import chart
from harness.figures import Run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, help="what ops.py --json wrote")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.out.write_text(chart([Run.read(file) for file in options.runs]))


if __name__ == "__main__":
    main()
