"""Builds the driver: a plain shared library, free of torch and of Python.

torchgraft's header is in include/ so that a build in isolation has it; torchgraft checks its version when the driver
is loaded. Environment: CC, CFLAGS, LDFLAGS, as usual.
"""

from __future__ import annotations

import os
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext


class BuildDriver(build_ext):
    """Compiles a library where setuptools would make a Python module."""

    def get_ext_filename(self, fullname: str) -> str:
        return fullname.replace(".", os.sep) + ".so"


class AnyPython(bdist_wheel):
    """The library depends on the platform, and on no version of Python."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


driver = Extension(
    "skeleton.libskeleton",
    sorted(map(str, Path("src/skeleton").glob("*.c"))),
    include_dirs=["include"],
    depends=["include/torchgraft/driver.h", *map(str, Path("src/skeleton").glob("*.h"))],
    extra_compile_args=["-std=c11", "-Wall", "-Wextra", "-pthread", "-fvisibility=hidden"],
    extra_link_args=["-pthread"],
    libraries=["dl", "m"],
)
setup(ext_modules=[driver], cmdclass={"build_ext": BuildDriver, "bdist_wheel": AnyPython})
