"""What torch builds on collectives: trained in several processes on the device, networks are what one process on the
CPU makes of them. What each process does is in parallel_checks.py."""

from __future__ import annotations

from pathlib import Path

import parallel_checks
import pytest
from ranks import Said, run_checks

CHECKS = Path(parallel_checks.__file__)


@pytest.fixture(autouse=True)
def _device(device: str) -> None:
    if device in ("npy", "cxx", "c"):
        pytest.skip("other processes find a device that is installed")


def asked(session: pytest.Session, count: int) -> list[str]:
    """The checks that this run is to do in so many processes."""
    calls = [getattr(item, "callspec", None) for item in session.items if item.path == Path(__file__)]
    return [call.params["check"] for call in calls if call is not None and call.params["said"] == count]


@pytest.fixture(scope="module", params=[2, 3, 4], ids=["two", "three", "four"])
def said(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Said:
    """For each check, what each rank said; nothing, where it did not fail."""
    count: int = request.param
    return run_checks(count, CHECKS, asked(request.session, count), tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("check", parallel_checks.check)
def test_in_each_process(said: Said, check: str) -> None:
    assert "".join(said[check]) == ""
