"""Looking at devices in another process, so that a driver that crashes or never returns is a finding like others."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence

__all__ = ["add_backend_arguments", "environment", "start"]


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
    command = [sys.executable, "-m", module, *modules]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(backend, modules))


def environment(backend: str | None, modules: Sequence[str]) -> dict[str, str]:
    """The environment of such a process: it finds the same modules as this one."""
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    if backend:
        variables["TORCHGRAFT_BACKEND"] = backend
    if modules:
        variables["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    return variables
