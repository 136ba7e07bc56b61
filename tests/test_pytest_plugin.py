"""The pytest plug-in, as a device's author runs it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import TESTS


def run_pytest(folder: Path, *arguments: str) -> tuple[int, str]:
    """Runs pytest in a process of its own; returns its status and what it prints."""
    path = os.pathsep.join([str(TESTS), str(TESTS.parent), *filter(None, sys.path)])
    command = [sys.executable, "-m", "pytest", "-p", "pytest_torchgraft", "-p", "no:cacheprovider", "-rA", *arguments]
    environment = {**os.environ, "PYTHONPATH": path, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def options(device: str) -> list[str]:
    module = "torchgraft_opencl,broken_ops" if torch.device(device).type == "ocl" else "broken_ops"
    common = ["--torchgraft-device", device, "--torchgraft-import", module, "--torchgraft-samples", "1"]
    return [*common, "--pyargs", "torchgraft.testing.suite"]


@pytest.mark.thorough
def test_a_test_for_each_op_and_dtype(options: list[str], tmp_path: Path) -> None:
    """One that is right, one that is wrong, one that crashes as is declared, one that does not fail as is declared."""
    listed = tmp_path / "exceptions.toml"
    declare = '[[exception]]\ncases = {}\ncheck = "{}"\nreason = "a test"\n'.format
    listed.write_text(declare(r"'erf\[.*'", "crash") + declare(r"'sgn\[.*'", "values"))
    only = ["--torchgraft-ops", "^(abs|erf|erfc|sgn)$", "--torchgraft-dtypes", "float32"]
    status, out = run_pytest(tmp_path, *options, *only, "--torchgraft-exceptions", str(listed))
    outcomes = dict(map(reversed, re.findall(r"^(PASSED|FAILED|XFAIL) \S*::(test_op\S*)", out, re.MULTILINE)))
    assert status == 1
    assert outcomes == {
        "test_op[abs-float32]": "PASSED",
        "test_op[erf-float32]": "XFAIL",
        "test_op[erfc-float32]": "FAILED",
        "test_op[sgn-float32]": "FAILED",
    }
    assert "::test_op[erf-float32] - a test" in out
    assert "sgn[float32] is declared to fail, but passes: values (a test)" in out
    assert "erfc[float32] out=: " in out


@pytest.mark.thorough
def test_fallback_can_be_forbidden(options: list[str], tmp_path: Path) -> None:
    only = ["--torchgraft-ops", "^digamma$", "--torchgraft-dtypes", "float32"]  # broken_ops has taken its planner away
    assert run_pytest(tmp_path, *options, *only)[0] == 0
    status, out = run_pytest(tmp_path, *options, *only, "--torchgraft-fallback", "error")
    assert status == 1 and "running it on the CPU is not permitted" in out


@pytest.mark.thorough
def test_among_a_packages_own_tests(options: list[str], device: str, tmp_path: Path) -> None:
    (tmp_path / "test_ops.py").write_text("from torchgraft.testing.suite import test_op\n")
    (tmp_path / "pytest.ini").write_text(
        f"[pytest]\ntorchgraft_device = {device}\ntorchgraft_import = {options[3]}\ntorchgraft_dtypes = float32\n"
        "torchgraft_samples = 1\n"
    )
    status, out = run_pytest(tmp_path, "--torchgraft-ops", "^(abs|sgn)$")
    assert status == 0 and "2 passed" in out
    assert "no op's name matches" in run_pytest(tmp_path, "--torchgraft-ops", "^nothing$")[1]
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    assert "--torchgraft-device" in run_pytest(tmp_path)[1]


def test_who_does_not_use_it_does_not_pay_for_it(tmp_path: Path) -> None:
    text = "import sys\n\n\ndef test_nothing():\n    assert not {'torch', 'torchgraft'} & set(sys.modules)\n"
    (tmp_path / "test_nothing.py").write_text(text)
    status, out = run_pytest(tmp_path)
    assert status == 0, out
    assert "--torchgraft-device=DEVICE" in run_pytest(tmp_path, "--help")[1]
