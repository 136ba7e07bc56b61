"""`torchgraft warm`: kernels are compiled by one command and found by the next."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from torchgraft.cli import main
from torchgraft.codegen.cache import KernelCache
from torchgraft.warming.workloads import WORKLOADS

PROGRAM = """
import sys
import helper
import torch
assert __name__ == "__main__"
x = torch.full((5,), float(sys.argv[1]), device=helper.DEVICE)
print("the sum is", (x * 3 - torch.atan2(x, x)).round().sum().item())
"""


@pytest.fixture(autouse=True)
def _kernels_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHGRAFT_CACHE_DIR", str(tmp_path / "kernels"))


@pytest.fixture
def program(device: str, tmp_path: Path) -> str:
    (tmp_path / "helper.py").write_text(f"DEVICE = {device!r}")
    (tmp_path / "program.py").write_text(PROGRAM)
    return str(tmp_path / "program.py")


def counts(text: str, name: str) -> tuple[int, int]:
    """Kernels that were compiled for a job, and that were there before."""
    found = re.search(rf"{re.escape(name)}: (\d+) kernels compiled, (\d+) there before", text)
    assert found is not None, text
    return int(found[1]), int(found[2])


@pytest.mark.thorough
def test_a_program(program: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["warm", program, "2.0"]) == 0
    first = capfd.readouterr().out
    compiled, loaded = counts(first, program)
    assert "the sum is 25.0" in first
    assert compiled > 0
    assert loaded == 0
    assert KernelCache().usage().kernels == compiled
    assert main(["warm", program, "3.0"]) == 0
    assert counts(capfd.readouterr().out, program) == (0, compiled)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("last_line", "said"),
    [
        ("raise OSError('the disk is gone')", "OSError: the disk is gone"),
        ("sys.exit(3)", "exit status 3"),
        ("import os; os.abort()", "it ended with status -6"),
        ("sys.exit()", "kernels compiled"),
    ],
)
def test_a_program_that_ends_early(program: str, last_line: str, said: str, capfd: pytest.CaptureFixture[str]) -> None:
    Path(program).write_text(PROGRAM + last_line)
    status = main(["warm", program, "2.0"])
    captured = capfd.readouterr()
    assert status == (0 if said == "kernels compiled" else 1)
    assert f"{program}: " in (captured.err if status else captured.out)
    assert said in captured.err + captured.out


def test_without_a_cache(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("TORCHGRAFT_CACHE", "0")
    assert main(["warm"]) == 1
    assert "no kernels are kept on disk (TORCHGRAFT_CACHE)" in capfd.readouterr().err


@pytest.mark.thorough
def test_a_device_whose_kernels_are_functions(tmp_path: Path, capfd: pytest.CaptureFixture[str],
                                              monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "registers.py").write_text(
        "import torchgraft\nfrom numpy_driver import NumpyDriver\ntorchgraft.register('npy', [NumpyDriver()])\n"
    )
    assert main(["warm", "--import", "registers", "--only", "dense", "--jobs", "1"]) == 0
    assert counts(capfd.readouterr().out, "dense") == (0, 0)


@pytest.mark.thorough
def test_a_step_of_training_needs_nothing_else(tmp_path: Path, device: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Not a model of the workloads, but one like them."""
    assert main(["warm"]) == 0
    printed = capfd.readouterr().out
    assert sum(counts(printed, name)[0] for name in WORKLOADS) == KernelCache().usage().kernels
    (tmp_path / "train.py").write_text(
        f"""
import torch
from torch import nn
model = nn.Sequential(nn.Linear(100, 300), nn.ReLU(), nn.Linear(300, 7)).to("{device}")
optimizer = torch.optim.Adam(model.parameters())
x, y = torch.randn(50, 100).to("{device}"), torch.randint(7, (50,)).to("{device}")
for _ in range(3):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
"""
    )
    assert main(["warm", str(tmp_path / "train.py")]) == 0
    assert counts(capfd.readouterr().out, str(tmp_path / "train.py"))[0] == 0


def test_the_names_are_those_of_the_workloads() -> None:
    from torchgraft.cli.warm import NAMES

    assert tuple(WORKLOADS) == NAMES
