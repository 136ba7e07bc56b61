"""Kernels under oclgrind, an OpenCL that watches each access: none outside its memory, and no data race."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import TESTS

pytestmark = pytest.mark.skipif(
    shutil.which("oclgrind") is None, reason="oclgrind is not installed (apt-get install oclgrind)"
)


def oclgrind(tmp_path: Path, *command: str, **environment: str) -> tuple[str, str]:
    """Runs Python under oclgrind; returns what it prints and oclgrind's reports."""
    log = tmp_path / "oclgrind.log"
    path = os.pathsep.join([str(TESTS), *filter(None, sys.path)])
    done = subprocess.run(
        [TESTS.parent / "scripts" / "oclgrind", "--log", log, sys.executable, *command],
        env={**os.environ, "PYTHONPATH": path, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=1500,
    )
    assert done.returncode == 0, done.stdout[-5000:]
    reports = log.read_text() if log.exists() else ""
    return done.stdout, re.sub(r"^\d+ warnings? generated\.\n", "", reports, flags=re.MULTILINE)


@pytest.mark.thorough
@pytest.mark.parametrize("form", ["cpu", "gpu"])
def test_no_kernel_reads_or_writes_what_is_not_its_own(form: str, tmp_path: Path) -> None:
    said, reports = oclgrind(tmp_path, str(TESTS / "oclgrind_ops.py"), TORCHGRAFT_KERNEL_FORM=form)
    assert said.count(" done\n") > 50
    assert not reports, reports[:5000]


@pytest.mark.parametrize("what, line", [("Invalid write", "x[n] = 1;"), ("data race", "x[0] = get_global_id(0);")])
def test_it_does_watch(what: str, line: str, tmp_path: Path) -> None:
    """A kernel that is wrong on purpose is reported: one float behind the end, and one that all work-items write."""
    program = f"""
import torch, torchgraft, torchgraft_opencl
torchgraft_opencl.register()
x = torch.zeros(5, device="ocl")
kernel = torchgraft.kernel("__kernel void wrong(__global float* x, const int n) {{ {line} }}")
kernel[4, 1](x, 5)
torch.accelerator.synchronize()
"""
    assert what in oclgrind(tmp_path, "-c", program)[1]
