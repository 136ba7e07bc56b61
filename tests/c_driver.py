"""The driver in C that `torchgraft new` writes, built without the package: kernels in C++ on the host's cores."""

from __future__ import annotations

import functools
import subprocess
import tempfile
from pathlib import Path

from torchgraft.cli.new import write_package
from torchgraft.driver_table import HEADER

FLAGS = ["-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-fvisibility=hidden", "-fPIC", "-pthread"]


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """Lives as long as this process."""
    return tempfile.TemporaryDirectory(prefix="torchgraft-c-driver-")


@functools.cache
def sources() -> Path:
    """The driver's files, as written for a device "cxx"."""
    package = Path(_folder().name) / "cxx"
    write_package("cxx", "c", "c++", package)
    return package / "src" / "cxx"


def _compiled(source: Path, into: Path) -> Path:
    command = ["cc", *FLAGS, "-c", f"-I{HEADER.parents[1]}", f"-I{sources()}", "-o", into, source]
    subprocess.run(command, check=True)
    return into


@functools.cache
def _objects() -> dict[str, Path]:
    return {path.name: _compiled(path, path.with_suffix(".o")) for path in sorted(sources().glob("*.c"))}


def _linked(objects: dict[str, Path], into: Path) -> Path:
    subprocess.run(["cc", "-shared", "-pthread", "-o", into, *objects.values(), "-ldl"], check=True)
    return into


@functools.cache
def library() -> Path:
    """The driver, to register with `torchgraft.SharedLibrary`."""
    return _linked(_objects(), Path(_folder().name) / "libcxx.so")


def changed(file: str, right: str, wrong: str) -> Path:
    """The driver with another text at one place of one of its files."""
    text = (sources() / file).read_text()
    assert text.count(right) == 1, f"{file} has {right!r} {text.count(right)} times"
    folder = Path(tempfile.mkdtemp(dir=_folder().name))
    (folder / file).write_text(text.replace(right, wrong))
    objects = {**_objects(), file: _compiled(folder / file, folder / "changed.o")}
    return _linked(objects, folder / "libcxx.so")
