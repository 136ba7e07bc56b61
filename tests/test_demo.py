"""The demonstration, shortened: both models train on the device as on the CPU, without fallbacks."""

from __future__ import annotations

import os
import subprocess
import sys


def run(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torchgraft_opencl.demo", "--characters", "20", *options]
    environment = {**os.environ, "COLUMNS": "160"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)


def test_both_models(device: str) -> None:
    done = run("--device", device, "--epochs", "3", "--steps", "12", "--seed", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    for expected in ("held-out accuracy", "written by the GPT", "calls served by a plan", "fallbacks to the CPU"):
        assert expected in done.stdout


def test_its_exit_status_tells_of_failure(device: str) -> None:
    done = run(
        "--device", device, "--tasks", "digits", "--epochs", "1", "--seed", "1", "--no-cpu", "--least-accuracy", "1.01"
    )
    assert done.returncode == 1
    assert "not as it should be" in done.stdout
