"""The device as torch sees it, compared with torch's CPU."""

from __future__ import annotations

from torchgraft.testing.protocol import DeviceProtocol


class TestDevice(DeviceProtocol):
    """Uses the fixture `device` of conftest.py."""
