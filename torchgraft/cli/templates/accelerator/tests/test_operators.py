"""The operators by themselves, beside torch's CPU. What the device has not is skipped, with its reason."""

from __future__ import annotations

import pytest
from torchgraft.testing.protocol import OperatorProtocol
from torchgraft.testing.table import TableDriver

from skeleton.driver import library


@pytest.fixture(scope="module")
def driver() -> TableDriver:
    return TableDriver.load(library())


class TestOperators(OperatorProtocol):
    """Uses the fixture above. Operators of your own are tested here too."""
