"""The OpenCL driver keeps to the protocol, in every memory model."""

from __future__ import annotations

import pytest
from driver_table import MODELS, private_copy

from torchgraft.driver_table import Table, TableDriver, driver_table
from torchgraft.testing.protocol import TableProtocol


@pytest.fixture(scope="module", params=MODELS)
def table(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Table:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHGRAFT_OPENCL_MEMORY", request.param)
        table = driver_table(private_copy(tmp_path_factory.mktemp("driver")))
        TableDriver(table).device_count()  # reads the environment
    return table


class TestOpenCL(TableProtocol):
    """All that a driver in C keeps to."""
