"""Figures and tables of a stored conformance run."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

HELP = "what a stored conformance run says: figures, a Markdown table, a page to search"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("results", type=Path, help="what `torchgraft conformance` wrote")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table of ops and dtypes")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the page")
    parser.add_argument("--against", type=Path, metavar="STORED", help="fail if this earlier run could do more")
    parser.add_argument("--store", type=Path, metavar="FILE.gz", help="write the run in short, to be kept")
    parser.add_argument("--compiled", type=Path, metavar="RESULTS", help="one through torch.compile, for more columns")
    parser.add_argument("--store-compiled", type=Path, metavar="FILE.gz", help="write that one in short, to be kept")
    parser.add_argument("--title", default="Conformance", help="of table and page")


def run(arguments: argparse.Namespace) -> int:
    from torchgraft.testing.conformance import report
    from torchgraft.testing.conformance.runner import read_results, store_results

    for file in filter(None, (arguments.results, arguments.against, arguments.compiled)):
        if not file.exists():
            print(f"{file} does not exist; `torchgraft conformance` writes one", file=sys.stderr)
            return 2
    records = list(read_results(arguments.results).values())
    for dtype, figures in report.by_dtype(records).items():
        print(f"{dtype:10} {figures}")
    print(f"{'all':10} {report.figures(records)}")
    compiled = list(read_results(arguments.compiled).values()) if arguments.compiled else []
    if compiled:
        print(f"{'compiled':10} {report.figures(compiled)}")
    if arguments.markdown:
        arguments.markdown.write_text(report.markdown(records, arguments.title, compiled))
    if arguments.html:
        arguments.html.write_text(report.html(records, arguments.title, compiled))
    if arguments.store:
        store_results(records, arguments.store)
    if arguments.store_compiled:
        store_results(compiled, arguments.store_compiled)
    lost = report.regressions(records, read_results(arguments.against)) if arguments.against else []
    for line in lost:
        print(line)
    return 1 if lost else 0
