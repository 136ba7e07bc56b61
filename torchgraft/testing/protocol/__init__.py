"""The protocol that every driver and every device keeps to, as pytest classes to derive from.

What they check is a fixture of yours:

* `DriverProtocol` (fixture `driver`): the rules of `torchgraft.Driver`, checked on a driver by itself.
* `TableProtocol` (fixture `table`): the same on a driver in C, with the rules that only a table has.
* `OperatorProtocol` (fixture `driver`): each operator that the driver has, and graphs, compared with torch's CPU.
* `DeviceProtocol` (fixture `device`): the device as torch sees it, compared with torch's CPU.

A check that does not apply, since the driver does not claim the capability, is skipped with the reason.
"""

from torchgraft.testing.needs import need

need("the protocol of drivers", "pytest")

import pytest  # noqa: E402

# Before the modules are imported, so that a failing assertion shows its values.
pytest.register_assert_rewrite(
    *(f"{__name__}.{each}" for each in "bench checks device driver graph_programs operators program_runs table".split())
)

from torchgraft.testing.protocol.device import DeviceProtocol  # noqa: E402
from torchgraft.testing.protocol.driver import DriverProtocol  # noqa: E402
from torchgraft.testing.protocol.operators import OperatorProtocol  # noqa: E402
from torchgraft.testing.protocol.table import TableProtocol  # noqa: E402

__all__ = ["DeviceProtocol", "DriverProtocol", "OperatorProtocol", "TableProtocol"]
