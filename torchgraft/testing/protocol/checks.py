"""What the classes of checks of a driver share: the device that they are about, and how they wait for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from torchgraft.codegen.dialects import register_dialect
from torchgraft.driver import Driver
from torchgraft.testing.protocol.bench import MIB, Bench, opened


class Checks:
    """The base of the classes of checks that have a fixture `driver`."""

    #: The plug-in `pytest_torchgraft` runs the checks in a process that may crash.
    torchgraft_isolated = True

    #: The number of the device that is checked, within the driver.
    device = 0
    #: Bytes of the copies that keep a stream busy: enough for a few milliseconds.
    busy_bytes = 16 * MIB
    #: Seconds after which work that should take milliseconds counts as lost.
    patience = 20.0

    @pytest.fixture
    def count(self, driver: Driver) -> int:
        """The number of devices."""
        return opened(driver)

    @pytest.fixture
    def bench(self, driver: Driver, count: int) -> Iterator[Bench]:
        if count <= self.device:
            pytest.skip(f"the driver '{driver.name}' finds {count} devices here")
        if driver.kernel_dialect is not None:  # as torchgraft.register does
            register_dialect(driver.kernel_dialect)
        bench = Bench(driver, self.device, self.busy_bytes)
        yield bench
        bench.close()

    def _await(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + self.patience
        while not condition():
            assert time.monotonic() < deadline, what
            time.sleep(0.001)

    @staticmethod
    def _in_threads(work: Callable[[int], None], threads: int) -> None:
        failures: list[BaseException] = []
        together = threading.Barrier(threads)  # on a busy machine one might be done before the next begins

        def run(number: int) -> None:
            together.wait()
            try:
                work(number)
            except BaseException as error:
                failures.append(error)

        workers = [threading.Thread(target=run, args=(number,)) for number in range(1, threads)]
        for each in workers:
            each.start()
        run(0)
        for each in workers:
            each.join()
        if failures:
            raise failures[0]
