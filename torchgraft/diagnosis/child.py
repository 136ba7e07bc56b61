"""Looking at devices in another process, so that a driver that crashes or never returns is a finding like others."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence

__all__ = ["add_backend_arguments", "start"]


def add_backend_arguments(parser: argparse.ArgumentParser) -> None:
    """The options `--backend` and `--import` of commands that look at devices."""
    parser.add_argument(
        "--backend", metavar="NAME", help="the backend to look at (default: the one `import torch` has)"
    )
    parser.add_argument(
        "--import",
        dest="modules",
        metavar="MODULE",
        action="append",
        default=[],
        help="a module that registers a backend which is not installed; nothing else is then registered",
    )


def start(module: str, backend: str | None, modules: Sequence[str]) -> subprocess.Popen[bytes]:
    """Starts `python -m <module> <modules>`, with pipes for what it prints.

    Args:
        backend: the backend that `import torch` is to register there.
        modules: what is to be imported, for its registering a backend; `import torch` then registers none.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    if backend:
        environment["TORCHGRAFT_BACKEND"] = backend
    if modules:
        environment["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    command = [sys.executable, "-m", module, *modules]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
