"""The driver by itself: every rule of `torchgraft.Driver`."""

from __future__ import annotations

import pytest
from onnxruntime_device.driver import OnnxRuntimeDriver

from torchgraft.testing.protocol import DriverProtocol


@pytest.fixture(scope="module")
def driver() -> OnnxRuntimeDriver:
    return OnnxRuntimeDriver()


class TestDriver(DriverProtocol):
    """Uses the fixture above."""
