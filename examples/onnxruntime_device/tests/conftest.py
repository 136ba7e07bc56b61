"""The tests use this package's device, whatever other backends are installed: a process has room for one."""

from __future__ import annotations

import os

# Before torch is imported. If something has imported it already, with another backend, the import below says so:
# then run the tests without the plug-in of pytest's that did it (-p no:NAME).
os.environ["TORCHGRAFT_BACKEND"] = "onnxruntime"

import onnxruntime_device  # noqa: F401
import pytest

from torchgraft.autoload import outcome


@pytest.fixture(scope="session")
def device() -> str:
    """The device under test."""
    outcome("onnxruntime")  # raises what went wrong, should the device not be there
    return "onnxruntime"
