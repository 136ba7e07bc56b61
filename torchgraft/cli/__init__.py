"""The command `torchgraft`: each module here is a subcommand of its name.

It has `HELP` (one line), `add_arguments(parser)` and `run(arguments)`, which returns the exit status. Nothing here
imports the core or torch before a subcommand runs: `doctor` must work where they do not load.
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import sys
from collections.abc import Sequence
from typing import Protocol, cast

from torchgraft._version import __version__
from torchgraft.testing.needs import MissingExtraError

__all__ = ["main"]


class Command(Protocol):
    """What a subcommand's module offers."""

    HELP: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, arguments: argparse.Namespace) -> int: ...


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command line (the process's own by default) and returns its exit status."""
    parser = argparse.ArgumentParser(prog="torchgraft", description="Brings a new device into PyTorch.")
    parser.add_argument("--version", action="version", version=f"torchgraft {__version__}")
    subparsers = parser.add_subparsers(title="commands", required=True, metavar="command", dest="command")
    for name in sorted(module.name for module in pkgutil.iter_modules(__path__)):
        command = cast(Command, importlib.import_module(f"torchgraft.cli.{name}"))
        subparser = subparsers.add_parser(name, help=command.HELP, description=command.__doc__)
        command.add_arguments(subparser)
        subparser.set_defaults(run=command.run)
    arguments = parser.parse_args(argv)
    try:
        return int(arguments.run(arguments))
    except MissingExtraError as error:
        print(f"torchgraft {arguments.command}: {error}", file=sys.stderr)
        return 2
