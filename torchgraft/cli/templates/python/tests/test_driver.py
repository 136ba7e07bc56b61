"""The driver by itself: every rule of `torchgraft.Driver`."""

from __future__ import annotations

import pytest
from torchgraft.testing.protocol import DriverProtocol

from skeleton.driver import SkeletonDriver


@pytest.fixture(scope="module")
def driver() -> SkeletonDriver:
    return SkeletonDriver()


class TestDriver(DriverProtocol):
    """Uses the fixture above. What your device does beyond the rules is tested here too."""
