"""A driver in Python on host memory and without a compiler passes the tests of the runtime and of the fallback.

Files of tests run again in a process in which that driver is the backend.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import SEED, Script

TESTS = Path(__file__).parent
FILES = [
    "test_memory.py",
    "test_streams.py",
    "test_generator.py",
    "test_device_module.py",
    "test_fallback.py",
    "test_profiler.py",
    "test_graph_capture.py",
    "test_cli.py",
    "test_serialization.py",
    "test_dlpack.py",
    "test_multiprocessing.py",
    "test_func.py",
    "walkthrough/test_04_saving.py",
    "walkthrough/test_08_memory.py",
    "walkthrough/test_09_fallback.py",
]


@pytest.mark.thorough
@pytest.mark.parametrize("file", FILES)
def test_the_same_tests(file: str) -> None:
    # Tests that start processes of their own do there what they did already.
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        str(TESTS / file),
        "-k",
        "not fork_",
        "--all",
    ]
    environment = {
        "TORCHGRAFT_TEST_DEVICE": "npy",
        "TORCHGRAFT_TEST_SEED": str(SEED),
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
    }
    done = subprocess.run(
        command, env={**os.environ, **environment}, cwd=TESTS.parent, capture_output=True, text=True, timeout=1800
    )
    assert done.returncode == 0, done.stdout[-10000:] + done.stderr[-2000:]  # it is 5 where no test ran


def test_a_model_trains_on_it(script: Script) -> None:
    """Every op is a fallback, and right."""
    script("""
        import torch, torchgraft
        from numpy_driver import NumpyDriver

        torchgraft.register("npy", [NumpyDriver()])
        torchgraft.fallback.set_mode("silent")

        def train(device):
            torch.manual_seed(0)
            x, y = torch.randn(32, 8), torch.randint(3, (32,))
            layers = torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU(), torch.nn.Linear(16, 3)
            model = torch.nn.Sequential(*layers).to(device)
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
            losses = []
            for _ in range(10):
                optimizer.zero_grad()
                loss = torch.nn.functional.cross_entropy(model(x.to(device)), y.to(device))
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            return losses

        on_npy, on_cpu = train("npy"), train("cpu")
        assert on_cpu[-1] < on_cpu[0]
        torch.testing.assert_close(on_npy, on_cpu)
        assert torchgraft.fallback_report().calls > 100
        assert torchgraft.plans.stats().kernels_compiled == 0
    """)
