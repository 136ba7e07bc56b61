"""The operator database as pytest's tests: `pytest --pyargs torchgraft.testing.suite --torchgraft-device foo`.

Or among a package's own tests, with `torchgraft_device = "foo"` in pytest's configuration:

    from torchgraft.testing.suite import test_op

The plug-in `pytest_torchgraft`, which comes with torchgraft, has the options and makes the cases.
"""

from __future__ import annotations

from typing import Any

__all__ = ["test_op"]


def test_op(torchgraft_case: str, torchgraft_cases: Any) -> None:
    """Compares one op in one dtype with torch's CPU; see `torchgraft.testing.conformance.check`."""
    torchgraft_cases.check(torchgraft_case)
