"""The rules that a driver's table in C has beside those of every driver."""

from __future__ import annotations

import ctypes
import itertools
import re
import threading
from ctypes import byref, c_void_p

import pytest

from torchgraft.driver import Driver
from torchgraft.driver_table import HEADER, MIN_SIZE, Properties, Status, Table, TableDriver
from torchgraft.testing.protocol.bench import Bench
from torchgraft.testing.protocol.driver import DriverProtocol
from torchgraft.testing.protocol.rules import rule

ABI_VERSION = int(re.findall(r"#define TG_DRIVER_ABI (\d+)u", HEADER.read_text())[0])
MEMORY = ("host_allocate", "host_deallocate")
KERNELS = tuple("module_compile module_load module_binary module_destroy kernel_create kernel_destroy launch".split())
TIMES = ("event_time_next", "event_times", "device_time")
GRAPHS = ("graph_create", "graph_destroy", "graph_set_argument", "graph_launch")
COLLECTIVES = tuple("group_id group_create group_destroy all_reduce reduce_scatter all_gather broadcast".split())
GROWING = ("reserve", "commit", "decommit")
PROGRAMS = ("program_supports", "program_create", "program_destroy", "program_run")
PROGRAMS_ON_DISK = ("program_binary", "program_load")
GROUPS = (MEMORY, KERNELS, TIMES, GRAPHS, COLLECTIVES, GROWING, PROGRAMS, PROGRAMS_ON_DISK)
OPTIONAL = {*itertools.chain(*GROUPS), "copy_peer", "event_elapsed", "event_synchronize_for"}


class TableProtocol(DriverProtocol):
    """Derive from it, and have a fixture `table`, for example by `torchgraft.driver_table.driver_table`."""

    @pytest.fixture
    def driver(self, table: Table) -> Driver:
        return TableDriver(table)

    @rule("A function marked [optional] may be NULL; torchgraft then does without, or says that the device cannot.")
    def test_the_table(self, table: Table) -> None:
        assert table.abi_version == ABI_VERSION
        assert table.struct_size >= MIN_SIZE
        assert table.name
        functions = [name for name, kind in Table._fields_ if hasattr(kind, "argtypes")]
        missing = [name for name in functions if name not in OPTIONAL and not getattr(table, name)]
        assert not missing, "members that are not optional"

    @rule("Kernels [optional, all or none: TG_CAP_COMPILER].")
    def test_members_that_belong_together(self, table: Table) -> None:
        for group in GROUPS:
            present = [name for name in group if getattr(table, name)]
            assert present in ([], list(group)), "all of them, or none"

    @rule("set by the caller")
    def test_properties_of_an_older_header(self, bench: Bench) -> None:
        """A caller whose structure is shorter gets no more than fits in it."""
        driver = bench.driver
        assert isinstance(driver, TableDriver)
        whole = driver.properties(self.device)
        for size in (16, Properties.name.offset):
            given = Properties(struct_size=size, name=b"untouched")
            driver.call("device_properties", self.device, byref(given))
            assert given.struct_size == size
            assert given.kind == whole.kind
            assert given.capabilities == whole.capabilities
            assert given.name == b"untouched"

    @rule("after a failure `last_error` gives the calling thread's message")
    def test_messages_belong_to_threads(self, bench: Bench, count: int) -> None:
        driver = bench.driver
        assert isinstance(driver, TableDriver)
        address = c_void_p()
        assert driver.status("allocate", self.device, 1 << 60, byref(address)) == Status.ERROR_OUT_OF_MEMORY
        mine, theirs = driver.last_error(), []
        assert mine

        def fail_otherwise() -> None:
            theirs.append(driver.last_error())
            driver.status("device_properties", count, byref(Properties(struct_size=ctypes.sizeof(Properties))))
            theirs.append(driver.last_error())

        thread = threading.Thread(target=fail_otherwise)
        thread.start()
        thread.join()
        assert theirs[0] != mine, "the message of another thread"
        assert theirs[1] not in ("", mine)
        assert driver.last_error() == mine, "another thread's failure changed this thread's message"

    @rule("A failed call changes nothing.")
    def test_a_failed_call_sets_no_result(self, bench: Bench) -> None:
        driver = bench.driver
        assert isinstance(driver, TableDriver)
        address = c_void_p(0x1234)
        assert driver.status("allocate", self.device, 1 << 60, byref(address)) == Status.ERROR_OUT_OF_MEMORY
        assert address.value == 0x1234
