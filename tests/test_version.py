"""One version: the source, both packages, the command line and both distributions' metadata say the same."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

import torchgraft
import torchgraft_opencl
from torchgraft.cli import main

ROOT = Path(torchgraft.__file__).parent.parent
DISTRIBUTIONS = {"torchgraft": ROOT, "torchgraft_opencl": ROOT / "opencl"}


def setup_py(folder: Path, *arguments: str | Path) -> None:
    done = subprocess.run([sys.executable, "setup.py", "-q", *arguments], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(params=DISTRIBUTIONS)
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A source distribution, unpacked where no repository is around it."""
    folder = DISTRIBUTIONS[request.param]
    setup_py(folder, "egg_info", "--egg-base", tmp_path, "sdist", "--dist-dir", tmp_path)
    with tarfile.open(tmp_path / f"{request.param}-{torchgraft.__version__}.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / f"{request.param}-{torchgraft.__version__}"


def metadata(folder: Path, output: Path) -> Message:
    """What the wheel of the distribution in `folder` would say."""
    setup_py(folder, "egg_info", "--egg-base", output, "dist_info", "--output-dir", output)
    (found,) = output.glob("*.dist-info")
    return Parser().parsestr((found / "METADATA").read_text())


def test_packages_and_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert torchgraft.__version__ == torchgraft_opencl.__version__
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"torchgraft {torchgraft.__version__}\n"


def test_distributions(source: Path, tmp_path: Path) -> None:
    """From the repository and from a source distribution, which has all that is compiled."""
    name = source.name.partition("-")[0]
    folder = DISTRIBUTIONS[name]
    for number, place in enumerate((folder, source)):
        (output := tmp_path / str(number)).mkdir()
        said = metadata(place, output)
        assert said["Version"] == torchgraft.__version__
        assert name == "torchgraft" or f"torchgraft=={torchgraft.__version__}" in (said.get_all("Requires-Dist") or [])
    compiled = {path.relative_to(folder) for path in (folder / "csrc").rglob("*.*")}
    assert compiled == {path.relative_to(source) for path in (source / "csrc").rglob("*.*")}
