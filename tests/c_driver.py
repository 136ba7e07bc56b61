"""The driver in C that `torchgraft new` writes, built without the package: kernels in C++ on the host's cores."""

from __future__ import annotations

import functools
import subprocess
import tempfile
from pathlib import Path

from torchgraft.cli.new import write_package
from torchgraft.testing.table import HEADER

FLAGS = ["-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-fvisibility=hidden", "-fPIC", "-shared", "-pthread"]


def build(sources: Path, into: Path) -> Path:
    """Compiles a folder of C files to a driver's library."""
    files = sorted(sources.glob("*.c"))
    subprocess.run(["cc", *FLAGS, f"-I{HEADER.parents[1]}", "-o", into, *files, "-ldl"], check=True)
    return into


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="torchgraft-c-driver-")


@functools.cache
def sources() -> Path:
    """The driver's files, as written for a device 'cxx'; they live as long as this process."""
    package = Path(_folder().name) / "cxx"
    write_package("cxx", "c", package)
    return package / "src" / "cxx"


@functools.cache
def library() -> Path:
    """The driver, to register with `torchgraft.SharedLibrary`."""
    return build(sources(), Path(_folder().name) / "libcxx.so")
