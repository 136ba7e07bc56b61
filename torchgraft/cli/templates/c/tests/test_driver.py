"""The driver by itself: every rule of torchgraft/driver.h."""

from __future__ import annotations

import pytest
from torchgraft.testing.protocol import TableProtocol
from torchgraft.testing.table import Table, driver_table

from skeleton.driver import library


@pytest.fixture(scope="module")
def table() -> Table:
    return driver_table(library())


class TestDriver(TableProtocol):
    """Uses the fixture above. What your device does beyond the rules is tested here too."""
