"""What is published: wheels that install and compute where there is no compiler, source distributions that build."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
import torch

import torchgraft
import torchgraft_opencl
from torchgraft import _core

ROOT = Path(__file__).parents[1]
VERSION = torchgraft.__version__
pytestmark = pytest.mark.thorough


def first_program() -> tuple[str, str]:
    """The first one of the README, and what it prints."""
    found = re.search(r"```python\n(.*?)```\s+```text\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert found is not None
    return found[1], found[2]


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("published")
    command = [sys.executable, "scripts/wheels", "--output", folder]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def wheel_of(published: Path, name: str) -> Path:
    (wheel,) = published.glob(f"{name}-{VERSION}-*.whl")
    return wheel


class TestContents:
    def test_tags(self, published: Path) -> None:
        python = f"cp{sysconfig.get_config_var('py_version_nodot')}"
        architecture = os.uname().machine
        core = wheel_of(published, "torchgraft").name
        assert re.search(rf"-{python}-{python}-manylinux_2_\d+_{architecture}\.whl$", core), core
        driver = wheel_of(published, "torchgraft_opencl").name
        assert re.search(rf"-py3-none-manylinux_2_\d+_{architecture}\.whl$", driver), driver

    def test_one_core_and_none_of_torchs_libraries(self, published: Path) -> None:
        with zipfile.ZipFile(wheel_of(published, "torchgraft")) as wheel:
            names = wheel.namelist()
        major, minor = _core.minor(torch.__version__)
        suffix = sysconfig.get_config_var("EXT_SUFFIX")
        assert [n for n in names if ".so" in n] == [f"torchgraft/_core/torch{major}_{minor}/_C{suffix}"]
        for name in ("include/torchgraft/driver.h", "include/torchgraft/functions.h", "py.typed"):
            assert f"torchgraft/{name}" in names
        assert not [n for n in names if n.startswith(("tests", "csrc", "build"))]

    def test_one_library_of_the_driver(self, published: Path) -> None:
        with zipfile.ZipFile(wheel_of(published, "torchgraft_opencl")) as wheel:
            libraries = [name for name in wheel.namelist() if ".so" in name]
        assert libraries == [f"torchgraft_opencl/{Path(torchgraft_opencl.driver_library()).name}"]

    def test_sources(self, published: Path) -> None:
        names = {f"torchgraft-{VERSION}.tar.gz", f"torchgraft_opencl-{VERSION}.tar.gz"}
        assert {path.name for path in published.glob("*.tar.gz")} == names


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """A virtual environment that has torch, and nothing of ours."""
    folder = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    for name in ("torch", "numpy"):
        for needed in (name, *needs(name)):
            link(needed, site)
    return folder


def needs(name: str) -> set[str]:
    """The distributions that one needs here, and those that they need."""
    found: set[str] = set()
    for requirement in importlib.metadata.requires(name) or []:
        needed = re.split(r"[\s;<>=!~\[(]", requirement)[0]
        if "extra ==" in requirement or needed in found:
            continue
        try:
            importlib.metadata.distribution(needed)
        except importlib.metadata.PackageNotFoundError:
            continue  # for another platform
        found |= {needed} | needs(needed)
    return found


def link(name: str, site: Path) -> None:
    distribution = importlib.metadata.distribution(name)
    for top in {file.parts[0] for file in distribution.files or [] if file.parts[0] not in ("..", "__pycache__")}:
        if (site / top).is_dir() and not (site / top).is_symlink():
            shutil.rmtree(site / top)  # what the environment came with
        if not (site / top).exists():
            (site / top).symlink_to(distribution.locate_file(top))  # type: ignore[arg-type]


def run(environment: Path, *command: str | Path, path: str = "", **more: str) -> str:
    """Outside the repository, with nothing on PATH but the environment and `path`, and what PoCL calls by name."""
    python = environment / "bin/python"
    linker = shutil.which("ld")
    if linker is not None and not (environment / "bin/ld").exists():
        (environment / "bin/ld").symlink_to(linker)
    kept = ("HOME", "LANG", "OCL_ICD_VENDORS", "TORCHGRAFT_OPENCL_LIBRARY")
    own = {name: os.environ[name] for name in kept if name in os.environ}
    own |= {"PATH": f"{environment / 'bin'}:{path}", "TORCHGRAFT_CACHE_DIR": str(environment / "kernels"), **more}
    done = subprocess.run(
        [python, *command], cwd=environment, env=own, capture_output=True, text=True, timeout=900
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def install(environment: Path, *files: Path, **more: str) -> None:
    pip = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps")
    run(environment, *pip, *more.pop("options", "").split(), *files, **more)


def test_the_first_program_without_a_compiler(published: Path, environment: Path) -> None:
    assert not any(shutil.which(name, path=str(environment / "bin")) for name in ("g++", "c++", "cc", "ninja"))
    install(environment, wheel_of(published, "torchgraft"), wheel_of(published, "torchgraft_opencl"))
    program, printed = first_program()
    assert run(environment, "-c", program) == printed
    where = run(environment, "-c", "import torch; print(torch.ocl.__name__); import torchgraft as t; print(t.__file__)")
    assert str(environment) in where
    assert run(environment, "-m", "torchgraft", "--version").split() == ["torchgraft", VERSION]


def test_sources_build(published: Path, environment: Path) -> None:
    (site,) = environment.glob("lib/python*/site-packages")
    for name in ("setuptools", "ninja", "wheel"):
        link(name, site)
    ninja = shutil.which("ninja")
    assert ninja is not None
    path = f"{Path(ninja).parent}:{os.environ['PATH']}"
    for name in ("torchgraft", "torchgraft_opencl"):
        source = published / f"{name}-{VERSION}.tar.gz"
        install(environment, source, options="--no-build-isolation", path=path)
    program, printed = first_program()
    assert run(environment, "-c", program) == printed
