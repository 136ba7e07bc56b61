"""The demonstration, shortened: both models train on the device as on the CPU, without fallbacks."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest


def run(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torchgraft_opencl.demo", "--characters", "20", *options]
    environment = {**os.environ, "COLUMNS": "160"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)


@pytest.mark.thorough
def test_both_models(device: str, tmp_path: Path) -> None:
    curves = tmp_path / "new folder" / "curves.svg"
    done = run("--device", device, "--epochs", "3", "--steps", "12", "--seed", "1", "--curves", str(curves))
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"the loss curves are drawn in {curves}" in done.stdout.splitlines()
    drawn = re.findall(r"<text[^>]*>([^<]+)</text>", curves.read_text())
    assert [name for name in drawn if name in ("digits", "text")] == ["digits", "text"]
    assert drawn.count(device) == drawn.count("cpu") == 2
    for expected in ("held-out accuracy", "written by the GPT", "calls served by a plan", "fallbacks to the CPU"):
        assert expected in done.stdout


@pytest.mark.parametrize("amp", ["float16", "bfloat16"])
@pytest.mark.thorough
def test_mixed_precision(device: str, amp: str) -> None:
    """Its exit status tells that the losses are near those of float32, and that nothing fell back."""
    shortened = ("--epochs", "2", "--steps", "10", "--seed", "1", "--least-accuracy", "0.5")
    done = run("--device", device, "--amp", amp, *shortened)
    assert done.returncode == 0, done.stdout + done.stderr
    differences = [float(each) for each in re.findall(r"by at most (\S+) of its value", done.stdout)]
    assert len(differences) == 2
    assert all(difference > 1e-5 for difference in differences)  # it really was another precision


@pytest.mark.thorough
def test_its_exit_status_tells_of_failure(device: str) -> None:
    done = run(
        "--device", device, "--tasks", "digits", "--epochs", "1", "--seed", "1", "--no-cpu", "--least-accuracy", "1.01"
    )
    assert done.returncode == 1
    assert "not as it should be" in done.stdout
