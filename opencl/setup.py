"""Builds the OpenCL driver: a plain shared library, free of torch and of Python, that loads OpenCL itself at run time.

Environment: CXX, CXXFLAGS (appended).
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

HERE = Path(__file__).resolve().parent
FLAGS = "-std=c++20 -O2 -g0 -fPIC -fvisibility=hidden -Wall -Wextra -Wno-unused-parameter"


def version() -> str:
    """The toolkit's, in the repository; in a source distribution, that of its PKG-INFO."""
    for path, pattern in (
        (HERE.parent / "torchgraft/_version.py", r'^__version__ = "(.+)"$'),
        (HERE / "PKG-INFO", r"^Version: (.+)$"),
    ):
        if path.exists() and (found := re.search(pattern, path.read_text(), re.MULTILINE)):
            return found[1]
    raise SystemExit("the version was not found: neither ../torchgraft/_version.py nor PKG-INFO says one.")


def driver_header() -> Path:
    """The folder of torchgraft/driver.h: beside this distribution in the repository, else in the installed toolkit."""
    candidates = [HERE.parent / "torchgraft/include"]
    spec = importlib.util.find_spec("torchgraft")
    candidates += [Path(folder) / "include" for folder in (spec.submodule_search_locations or [] if spec else [])]
    for folder in candidates:
        if (folder / "torchgraft/driver.h").exists():
            return folder
    raise SystemExit(
        "torchgraft/driver.h was not found: install torchgraft first, then this with --no-build-isolation."
    )


class BuildDriver(build_ext):
    def get_ext_filename(self, fullname: str) -> str:
        # Not a Python module: no version of Python in its name.
        return fullname.replace(".", os.sep) + ".so"

    def build_extension(self, ext: Extension) -> None:
        target = Path(self.get_ext_fullpath(ext.name))
        target.parent.mkdir(parents=True, exist_ok=True)
        found = shutil.which("g++") or shutil.which("clang++") or shutil.which("c++")
        cxx = shlex.split(os.environ.get("CXX") or found or "")
        if not cxx:
            raise SystemExit(
                "a C++20 compiler is needed to build: install g++ (Debian: apt-get install g++) or set CXX."
            )
        flags = shlex.split(f"{FLAGS} {os.environ.get('CXXFLAGS', '')}")
        includes = [f"-I{driver_header()}", f"-I{HERE / 'csrc'}"]
        inputs = [str(HERE / source) for source in ext.sources]
        subprocess.run(
            [*cxx, *flags, *includes, "-shared", *inputs, "-o", str(target), "-ldl", "-lpthread"], check=True
        )


class AnyPython(bdist_wheel):
    """The wheel's only library knows nothing of Python."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


sources = sorted(str(path.relative_to(HERE)) for path in (HERE / "csrc").rglob("*.cpp"))
setup(
    version=version(),
    install_requires=[f"torchgraft=={version()}"],
    ext_modules=[Extension("torchgraft_opencl.libtorchgraft_opencl", sources)],
    cmdclass={"build_ext": BuildDriver, "bdist_wheel": AnyPython},
)
