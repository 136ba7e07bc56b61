"""Builds the driver by build.sh: a plain shared library, free of torch and of Python."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

HERE = Path(__file__).resolve().parent


class BuildDriver(build_ext):
    def get_ext_filename(self, fullname: str) -> str:
        return fullname.replace(".", os.sep) + ".so"

    def build_extension(self, ext: Extension) -> None:
        target = Path(self.get_ext_fullpath(ext.name)).resolve()
        target.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run([HERE / "build.sh", target], check=True)


class AnyPython(bdist_wheel):
    """The library depends on the platform, and on no version of Python."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


driver = Extension(
    "onednn_device.libonednn_device",
    ["driver.cpp", "loops.cpp", "pointwise.cpp", "products.cpp"],
    depends=["device.h", "loop.h", "operators.h", "build.sh"],
)
setup(ext_modules=[driver], cmdclass={"build_ext": BuildDriver, "bdist_wheel": AnyPython})
