"""The contract between torchgraft and a driver: what is checked, what failures become, what a driver in Python can do.

A process has one backend, so drivers of the tests' own are used in processes of their own.
"""

from __future__ import annotations

import ctypes
import re
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import torchgraft
from torchgraft import _C, driver

HEADER = Path(torchgraft.__file__).parent / "include" / "torchgraft" / "driver.h"

TOY = """
import ctypes, sys, threading
import torch, torchgraft
from torchgraft import _C
from torchgraft.driver import Capability, CopyKind, DeviceProperties, Driver, InvalidArgument

class Toy(Driver):
    '''Two devices in host memory.'''
    name = "toy"
    capabilities = Capability.EVENT_TIMING
    total = 256 << 20

    def __init__(self):
        self.buffers = {}
        self.opened = False

    def device_count(self):
        self.opened = True
        return 2

    def device_properties(self, device):
        return DeviceProperties(f"Toy {device}", self.total, capabilities=self.capabilities)

    def memory_info(self, device):
        return self.total - sum(len(each) for each in self.buffers.values()), self.total

    def allocate(self, device, nbytes):
        if nbytes > self.memory_info(device)[0]:
            raise MemoryError("the toy is full")
        buffer = ctypes.create_string_buffer(nbytes + 64)
        address = -(-ctypes.addressof(buffer) // 64) * 64
        self.buffers[address] = buffer
        return address

    def deallocate(self, device, address):
        del self.buffers[address]

    def copy(self, device, stream, destination, source, nbytes, kind, blocking):
        ctypes.memmove(destination, source, nbytes)

toy = Toy()

def first_line(call, kind):
    try:
        call()
    except kind as error:
        return str(error).splitlines()[0]
    raise AssertionError(f"no {kind.__name__}")
"""


Run = Callable[..., None]


@pytest.fixture
def run(script: Callable[..., str]) -> Run:
    """Runs lines of Python in a process where `toy` serves the device "toy"."""

    def run(text: str, *, register: bool = True, timeout: float = 120) -> None:
        preamble = TOY + ('torchgraft.register("toy", [toy])\n' if register else "")
        script(preamble + textwrap.dedent(text), timeout=timeout, TORCHGRAFT_FALLBACK="silent")

    return run


class TestPythonDriver:
    def test_a_device_of_four_methods(self, run: Run) -> None:
        run("""
        assert not toy.opened                      # registering opens nothing
        assert torch.accelerator.device_count() == 2 and toy.opened
        x = torch.arange(6.0, device="toy").reshape(2, 3)
        assert x.sum().item() == 15 and x.T.contiguous().cpu().tolist() == [[0, 3], [1, 4], [2, 5]]
        y = torch.ones(3, device="toy:1")
        assert y.device.index == 1 and (y + 1).cpu().tolist() == [2, 2, 2]
        assert torch.toy.get_device_name(1) == "Toy 1"
        """)

    def test_memory_that_grows_in_place(self, run: Run) -> None:
        """Freed pieces join, what is missing is added, and a device that cannot has segments."""
        run(
            """
            class Growing(Toy):
                aligned, committed = True, 0
                def reserve(self, device, nbytes):
                    if device == 1:
                        raise NotImplementedError("segments here")
                    room = self.allocate(device, 64 << 20)
                    address = -(-room // (2 << 20)) * (2 << 20) if self.aligned else room + 64
                    self.buffers[address] = self.buffers.pop(room)
                    return address
                def commit(self, device, address, nbytes):
                    if self.committed + nbytes > 32 << 20:
                        raise MemoryError("the toy has no more")
                    self.committed += nbytes
                def decommit(self, device, address, nbytes):
                    self.committed -= nbytes
            toy = Growing()
            torchgraft.register("toy", [toy])

            def new(mebibytes, device=0):
                return torch.full((mebibytes << 20,), mebibytes, dtype=torch.uint8, device=f"toy:{device}")

            toy.aligned = False
            assert "no multiple of 2 MiB" in first_line(lambda: new(6), RuntimeError)
            with torch.Stream(device="toy"):
                toy.aligned = True
                x, y = new(6), new(4)
                del x, y
                x = new(16)
            assert toy.committed == torch.toy.memory_reserved() == 16 << 20
            assert "the toy is full" in first_line(lambda: new(300), torch.OutOfMemoryError)
            assert (x.cpu() == 16).all() and toy.committed == 16 << 20
            del x
            torch.toy.empty_cache()
            assert toy.committed == torch.toy.memory_reserved() == 0
            y = new(3, 1)
            assert (y.cpu() == 3).all() and torch.toy.memory_reserved(1) >= 3 << 20
            """,
            register=False,
        )

    def test_copies_between_devices_without_copy_peer(self, run: Run) -> None:
        run("""
        x = torch.arange(1000.0).to("toy:0").to("toy:1")
        assert x.device.index == 1 and x.cpu().tolist() == list(range(1000))
        """)

    def test_copies_between_devices_with_copy_peer(self, run: Run) -> None:
        run(
            """
            class Peer(Toy):
                calls = 0
                def copy_peer(self, destination_device, destination, source_device, source, nbytes, stream):
                    Peer.calls += 1
                    ctypes.memmove(destination, source, nbytes)
            torchgraft.register("toy", [Peer()])
            x = torch.arange(1000.0).to("toy:0").to("toy:1")
            assert x.cpu().tolist() == list(range(1000)) and Peer.calls == 1
            """,
            register=False,
        )

    def test_two_drivers_share_a_name(self, run: Run) -> None:
        run(
            """
            class Other(Toy):
                name = "other"
                def device_count(self):
                    return 1
                def device_properties(self, device):
                    return DeviceProperties("Other", 1 << 26)
            torchgraft.register("toy", [toy, Other()])
            names = [torch.toy.get_device_name(i) for i in range(torch.toy.device_count())]
            assert names == ["Toy 0", "Toy 1", "Other"], names
            x = torch.arange(5.0).to("toy:0").to("toy:2").to("toy:1")
            assert x.cpu().tolist() == [0, 1, 2, 3, 4]
            """,
            register=False,
        )

    def test_a_driver_that_does_not_open_leaves_the_others(self, run: Run) -> None:
        run(
            """
            class Broken(Toy):
                name = "broken"
                def device_count(self):
                    raise OSError("no such library")
            torchgraft.register("toy", [Broken(), toy])
            assert torch.toy.device_count() == 2
            assert _C.device_errors().startswith("broken: OSError: no such library (in device_count, ")
            """,
            register=False,
        )

    def test_without_devices_the_reason_is_told(self, run: Run) -> None:
        run(
            """
            class Empty(Toy):
                def device_count(self):
                    return 0
            torchgraft.register("toy", [Empty()])
            assert not torch.accelerator.is_available() and torch.toy.device_count() == 0
            assert "no devices" in first_line(lambda: torch.ones(1, device="toy"), RuntimeError)
            """,
            register=False,
        )

    def test_claims_are_checked(self, run: Run) -> None:
        run(
            """
            Toy.capabilities = Capability.COMPILER
            torchgraft.register("toy", [toy])
            assert torch.toy.device_count() == 0 and "TG_CAP_COMPILER" in _C.device_errors()
            """,
            register=False,
        )

    @pytest.mark.parametrize(
        ("raised", "expected", "text"),
        [
            ('ValueError("boom")', "torch.AcceleratorError", "ValueError: boom (in fail, "),
            ('NotImplementedError("nope")', "NotImplementedError", "nope"),
            ('MemoryError("full")', "torch.OutOfMemoryError", "full"),
            ('InvalidArgument("too far")', "RuntimeError", "too far"),
        ],
    )
    def test_what_exceptions_become(self, run: Run, raised: str, expected: str, text: str) -> None:
        run(f"""
        x = torch.ones(3, device="toy")
        def fail(*args):
            raise {raised}
        toy.copy = fail
        line = first_line(lambda: x.cpu(), {expected})
        assert line.startswith("toy:0: ") and {text!r} in line, line
        del toy.copy
        x.cpu()                                    # and nothing is broken
        """)

    def test_a_keyboard_interrupt_reaches_the_user(self, run: Run) -> None:
        run("""
        x = torch.ones(3, device="toy")
        def fail(*args):
            raise KeyboardInterrupt
        toy.copy = fail
        try:
            try:
                x.cpu()
            except RuntimeError:
                pass
            for _ in range(1000): pass
            raise SystemExit("it was swallowed")
        except KeyboardInterrupt:
            pass
        """)

    def test_an_exception_that_is_being_handled_is_kept(self, run: Run) -> None:
        run("""
        import gc
        def work():
            x = torch.ones(3, device="toy")
            x.record_stream(torch.Stream(device="toy"))
            raise LookupError("mine")              # x is freed while this unwinds, and an event is recorded
        assert first_line(work, LookupError) == "mine"
        torch.toy.empty_cache()
        """)

    def test_out_of_memory(self, run: Run) -> None:
        run("""
        x = torch.empty(100 << 20, dtype=torch.uint8, device="toy")
        line = first_line(lambda: torch.empty(200 << 20, dtype=torch.uint8, device="toy"), torch.OutOfMemoryError)
        assert "toy:0 out of memory. Tried to allocate 200.00 MiB; total 256.00 MiB" in line, line
        assert "the toy is full" in line, line
        del x
        torch.empty(200 << 20, dtype=torch.uint8, device="toy")    # frees the cache first
        """)

    @pytest.mark.thorough
    def test_threads_with_and_without_the_gil(self, run: Run) -> None:
        run("""
        stream = torch.Stream(device="toy")
        def work():
            for step in range(100):
                x = torch.full((100 * step + 1,), float(step), device="toy")
                x.record_stream(stream)
                assert x.cpu()[-1].item() == step
                del x
                if step % 20 == 0:
                    torch.toy.empty_cache()
        threads = [threading.Thread(target=work) for _ in range(8)]
        for each in threads: each.start()
        for each in threads: each.join()
        """)

    def test_exit_with_everything_alive(self, run: Run) -> None:
        run("""
        stream, event = torch.Stream(device="toy"), torch.Event(device="toy")
        x = torch.ones(1000, device="toy"); x.record_stream(stream); event.record(stream)
        pinned = torch.ones(100).pin_memory()
        class Late:
            tensor = torch.ones(10, device="toy")
            def __del__(self): self.tensor = None
        sys.late = Late()
        """)

    def test_pinned_memory_of_the_driver(self, run: Run) -> None:
        run(
            """
            class Pinning(Toy):
                taken, freed = [], []
                def host_allocate(self, device, nbytes):
                    address = self.allocate(device, nbytes)
                    self.taken.append(address)
                    return address
                def host_deallocate(self, device, address):
                    self.freed.append(address)
                    self.deallocate(device, address)
            torchgraft.register("toy", [Pinning()])
            torch.ones(1, device="toy")            # torch leaves the host's cache alone before the device's first use
            x = torch.empty(1000, pin_memory=True)
            assert x.is_pinned() and x.data_ptr() in Pinning.taken
            del x
            torch.accelerator.empty_host_cache()
            assert Pinning.freed == Pinning.taken and len(Pinning.taken) == 1
            """,
            register=False,
        )

    def test_streams_and_events_are_the_drivers_objects(self, run: Run) -> None:
        run(
            """
            class Recording(Toy):
                log = []
                def stream_create(self, device, priority):
                    return f"stream {device} {priority}"
                def event_create(self, device, timing):
                    return ["event", 0.0]
                def event_record(self, device, event, stream):
                    self.log.append(("record", stream)); event[1] += 2.5
                def event_wait(self, device, event, stream):
                    self.log.append(("wait", stream))
                def event_elapsed(self, device, start, end):
                    return 40.0 + end[1]
            torchgraft.register("toy", [Recording()])
            urgent = torch.Stream(device="toy:1", priority=-1)
            start, end = (torch.Event(device="toy:1", enable_timing=True) for _ in range(2))
            start.record(urgent); end.record(urgent); urgent.wait_event(end)
            assert start.elapsed_time(end) == 42.5
            assert Recording.log == [("record", "stream 1 -1")] * 2 + [("wait", "stream 1 -1")]
            """,
            register=False,
        )

    def test_unified_memory(self, run: Run) -> None:
        run(
            """
            Toy.capabilities = Capability.UNIFIED_MEMORY
            torchgraft.register("toy", [toy])
            x = torch.arange(10.0, device="toy")
            assert (x * 2).cpu().tolist() == [2.0 * i for i in range(10)]
            _C._report_error_as_kernel(0, _C.error_code("index {} is out of bounds", True), 3)
            assert first_line(torch.accelerator.synchronize, IndexError) == "index 3 is out of bounds"
            """,
            register=False,
        )


class TestFork:
    CHILD = """
        import os, gc
        def in_child(check):
            sys.stdout.flush()
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    check()
                    status = 0
                except BaseException:
                    import traceback; traceback.print_exc()
                finally:
                    sys.stderr.flush()
                    os._exit(status)
            assert os.waitpid(child, 0)[1] == 0
    """

    @pytest.fixture
    def in_parent(self, run: Run) -> Run:
        return lambda text: run(textwrap.dedent(self.CHILD) + textwrap.dedent(text), timeout=60)

    def test_a_child_of_a_process_that_has_used_no_device(self, in_parent: Run) -> None:
        in_parent("""
        def check():
            assert torch.ones(3, device="toy").cpu().tolist() == [1, 1, 1]
        in_child(check)
        check()
        """)

    def test_use_in_a_child_raises(self, in_parent: Run) -> None:
        in_parent("""
        x, stream, generator = torch.ones(3, device="toy"), torch.Stream(device="toy"), torch.Generator("toy")
        pinned = torch.ones(3).pin_memory()
        calls = [
            lambda: torch.ones(3, device="toy"), lambda: x + 1, lambda: x.cpu(), lambda: torch.ones(3).to("toy"),
            torch.accelerator.synchronize, torch.toy.synchronize, stream.synchronize, stream.query,
            lambda: torch.Stream(device="toy"), lambda: torch.Event(device="toy").record(),
            lambda: torch.Generator("toy"), lambda: torch.ones(3).pin_memory(), torch.accelerator.empty_cache,
        ]
        def check():
            assert torch.toy._is_in_bad_fork()
            for number, call in enumerate(calls):
                line = first_line(call, RuntimeError)
                assert "toy" in line and "spawn" in line, (number, line)
            torch.manual_seed(0)                   # harmless
            assert (torch.ones(3) + 1).tolist() == [2, 2, 2]
        in_child(check)
        assert not torch.toy._is_in_bad_fork() and (x + 1).cpu().tolist() == [2, 2, 2]
        """)

    @pytest.mark.thorough
    def test_freeing_in_a_child_is_harmless_whatever_other_threads_hold(self, in_parent: Run) -> None:
        in_parent("""
        stop = False
        def work():
            while not stop:
                torch.empty(1000, device="toy"); torch.empty(3 << 20, device="toy")
        threads = [threading.Thread(target=work) for _ in range(3)]
        for each in threads: each.start()
        try:
            for _ in range(10):
                x, pinned = torch.ones(1000, device="toy"), torch.ones(10).pin_memory()
                def check():
                    global x, pinned
                    del x, pinned
                    gc.collect()
                in_child(check)
        finally:
            stop = True
            for each in threads: each.join()
        """)

    def test_data_loader_workers_that_make_cpu_tensors(self, in_parent: Run) -> None:
        in_parent("""
        model = torch.ones(4, device="toy")
        data = torch.utils.data.TensorDataset(torch.arange(32.0))
        loader = torch.utils.data.DataLoader(data, batch_size=8, num_workers=2, pin_memory=True)
        assert sum(batch.to("toy").sum().item() for (batch,) in loader) == sum(range(32))
        """)


# The C table, made by ctypes from the header's own text.

Function = ctypes.CFUNCTYPE(ctypes.c_int)


ABI = int(re.findall(r"#define TG_DRIVER_ABI (\d+)u", HEADER.read_text())[0])


def members() -> list[str]:
    body = HEADER.read_text().split("typedef struct tg_driver {")[1].split("} tg_driver;")[0]
    return re.findall(r"\(\*(\w+)\)\(", body)


class Table(ctypes.Structure):
    _fields_ = [
        ("abi_version", ctypes.c_uint32),
        ("struct_size", ctypes.c_uint32),
        ("name", ctypes.c_char_p),
        ("context", ctypes.c_void_p),
        *((name, ctypes.c_void_p) for name in members()),
    ]


OPTIONAL = {
    "host_allocate", "host_deallocate", "copy_peer", "event_elapsed",
    "module_compile", "module_load", "module_binary", "module_destroy", "kernel_create", "kernel_destroy", "launch",
    "event_time_next", "event_times", "device_time", "event_synchronize_for",
    "graph_create", "graph_destroy", "graph_set_argument", "graph_launch",
    "group_id", "group_create", "group_destroy",
    "all_reduce", "reduce_scatter", "all_gather", "broadcast",
    "reserve", "commit", "decommit",
    "program_supports", "program_create", "program_destroy", "program_run", "program_binary", "program_load",
}  # fmt: skip


@pytest.fixture
def table() -> Iterator[Table]:
    """A table that lacks nothing; the tests take something away, so that it is never added."""
    function = Function(lambda: 0)
    made = Table(ABI, ctypes.sizeof(Table), b"scratch", None)
    for name in members():
        setattr(made, name, ctypes.cast(function, ctypes.c_void_p).value)
    yield made
    del function


def refused(table: Table) -> str:
    with pytest.raises(RuntimeError) as caught:
        _C.add_driver(ctypes.addressof(table))
    return str(caught.value).splitlines()[0]


class TestTable:
    def test_another_version(self, device: str, table: Table) -> None:
        table.abi_version = 99
        assert re.search(r"version 99 .* speaks version " + str(ABI), refused(table))

    def test_a_table_that_is_too_short(self, device: str, table: Table) -> None:
        table.struct_size = Table.event_time_next.offset - 8
        assert "sizeof(tg_driver)" in refused(table)

    def test_a_table_of_the_first_version(self, device: str, table: Table) -> None:
        """What a shorter table lacks is not read: here it would be members without their companions."""
        table.event_time_next = None
        assert "`event_time_next`" in refused(table)
        table.struct_size = Table.event_time_next.offset
        _C.device_count()
        assert "too late" in refused(table)

    @pytest.mark.parametrize("name", sorted(set(members()) - OPTIONAL))
    def test_a_missing_member_is_named(self, device: str, table: Table, name: str) -> None:
        setattr(table, name, None)
        assert f"driver 'scratch' lacks the member `{name}`" in refused(table)

    @pytest.mark.parametrize(
        "name", ["host_deallocate", "module_load", "launch", "event_times", "program_run", "program_load"]
    )
    def test_members_that_belong_together(self, device: str, table: Table, name: str) -> None:
        setattr(table, name, None)
        assert f"`{name}`" in refused(table)

    def test_a_driver_that_comes_too_late(self, device: str, table: Table) -> None:
        _C.device_count()
        assert "too late" in refused(table)


class TestSharedLibrary:
    def test_a_library_that_is_not_there(self, device: str, tmp_path: Path) -> None:
        with pytest.raises(RuntimeError, match=r"cannot load the driver .*nothing\.so"):
            _C.load_driver(str(tmp_path / "nothing.so"), "torchgraft_driver")

    def test_a_library_without_the_symbol(self, device: str) -> None:
        with pytest.raises(RuntimeError, match=r"does not export the function torchgraft_driver\(\)"):
            _C.load_driver(_C.__file__, "torchgraft_driver")


@pytest.mark.parametrize(
    ("python", "c"),
    [
        (driver.Capability, "TG_CAP_"),
        (driver.CopyKind, "TG_COPY_"),
        (driver.DeviceKind, "TG_DEVICE_"),
    ],
)
def test_python_and_c_agree(python: type[driver.Capability], c: str) -> None:
    header = {
        name: eval(value.replace("u", ""))
        for name, value in re.findall(rf"{c}(\w+) = ([^,}}\s]+(?: << \d+)?)", HEADER.read_text())
    }
    assert header == {member.name: member.value for member in python if member.value}


def test_every_function_of_the_table_is_a_method() -> None:
    methods: set[str] = {name for name in vars(driver.Driver) if isinstance(vars(driver.Driver)[name], Callable)}
    assert set(members()) - {"last_error"} == {name for name in methods if not name.startswith("_")}
