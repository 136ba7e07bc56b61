"""torch.profiler: what the device did, when, for whom; in tables, in events and in the Chrome trace."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Script, in_threads
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function

import torchgraft

Event = dict[str, Any]


def backend(device: str) -> str:
    return device.partition(":")[0]


def activities(device: str) -> list[ProfilerActivity]:
    return [ProfilerActivity.CPU, getattr(ProfilerActivity, backend(device).upper())]


@pytest.fixture
def compiler(device: str) -> None:
    """Skips where the device has no kernels of its own."""
    if not torchgraft._C.device_properties(torch.device(device).index or 0)["has_compiler"]:
        pytest.skip("the device has no compiler, so all it does is to copy")


def commands(prof: profile) -> list[Any]:
    """The events of the device: kernels, copies and fills."""
    events = prof.events()
    assert events is not None
    return [e for e in events if e.device_type == DeviceType.PrivateUse1 and not e.is_user_annotation]


class Trace:
    """The Chrome trace of a profile."""

    def __init__(self, prof: profile, folder: Path) -> None:
        path = folder / "trace.json"
        prof.export_chrome_trace(str(path))
        self.content = json.loads(path.read_text())
        self.events: list[Event] = self.content["traceEvents"]

    def all(self, *categories: str) -> list[Event]:
        return [e for e in self.events if e.get("cat") in categories and e["ph"] == "X"]

    @property
    def commands(self) -> list[Event]:
        return self.all("kernel", "gpu_memcpy", "gpu_memset")

    def call_of(self, command: Event) -> Event:
        """What the host did for a command."""
        number = command["args"]["correlation"]
        [call] = [e for e in self.all("privateuse1_runtime") if e["args"]["correlation"] == number]
        return call

    def op_of(self, command: Event) -> Event:
        """The operator, or the record_function, that asked for a command."""
        number = command["args"]["External id"]
        [op] = [e for e in self.all("cpu_op", "user_annotation") if e["args"].get("External id") == number]
        return op


def end(event: Event) -> float:
    return float(event["ts"] + event["dur"])


SLACK = 5.0  # microseconds: host times of torch's and ours are read from two clocks


class Clock:
    """By how much torch's times are wrong between two marks, which are set within a profile.

    Torch counts a processor's cycles, and finds out what they are in nanoseconds by reading the time before and after a
    profile, in which it may be interrupted on a busy machine.
    """

    def __init__(self) -> None:
        self.marks: list[tuple[int, int]] = []  # no earlier than, no later than

    def mark(self) -> None:
        before = time.time_ns()
        with record_function("mark"):
            self.marks.append((before, time.time_ns()))

    def error(self, trace: Trace) -> float:
        """In microseconds."""
        events = sorted((e for e in trace.all("user_annotation") if e["name"] == "mark"), key=lambda e: float(e["ts"]))
        base, errors = trace.content["baseTimeNanoseconds"], [0.0]
        for event, (first, last) in zip(events, self.marks, strict=True):
            errors += [(first - base) / 1000 - event["ts"], event["ts"] - (last - base) / 1000]
        return max(errors)


class TestActivities:
    def test_the_activity_has_the_backends_name(self, device: str) -> None:
        assert activities(device)[1] == ProfilerActivity.PrivateUse1
        assert ProfilerActivity.PrivateUse1 in torch.profiler.supported_activities()

    @pytest.mark.parametrize("numel", [1000, 1_000_000])
    def test_copies(self, device: str, numel: int, tmp_path: Path) -> None:
        host = torch.randn(numel)
        with profile(activities=activities(device)) as prof:
            x = host.to(device)
            y = x.clone()
            back = y.cpu()
        assert torch.equal(back, host)
        trace = Trace(prof, tmp_path)
        copies = trace.all("gpu_memcpy")
        assert [e["name"] for e in copies] == ["Memcpy HtoD", "Memcpy DtoD", "Memcpy DtoH"]
        for copy in copies:
            assert copy["args"]["bytes"] == 4 * numel
            assert copy["args"]["stream"] == 0
            assert trace.op_of(copy)["name"].startswith("aten::")
            assert trace.call_of(copy)["name"] == backend(device) + "Memcpy"
        assert [e.name for e in commands(prof)] == ["Memcpy HtoD", "Memcpy DtoD", "Memcpy DtoH"]

    def test_fills(self, device: str, tmp_path: Path) -> None:
        x = torch.empty(100_000, device=device)
        with profile(activities=activities(device)) as prof:
            x.copy_(torch.tensor(3.0))
        trace = Trace(prof, tmp_path)
        [fill] = trace.all("gpu_memset")
        assert fill["name"] == "Memset"
        assert fill["args"]["bytes"] == 400_000
        assert trace.call_of(fill)["name"] == backend(device) + "Memset"

    @pytest.mark.usefixtures("compiler")
    def test_kernels(self, device: str, tmp_path: Path) -> None:
        x = torch.randn(256, 256, device=device)
        (x @ x).relu()  # planning runs the operator on the meta device, which would be in the profile
        with profile(activities=activities(device), record_shapes=True, with_stack=True) as prof:
            (x @ x).relu()
        [mm] = [e for e in prof.events() or [] if e.name == "aten::mm"]
        assert mm.kernels
        assert mm.input_shapes == [[256, 256], [256, 256]]
        assert mm.self_device_time_total == pytest.approx(sum(kernel.duration for kernel in mm.kernels))
        trace = Trace(prof, tmp_path)
        by_op = {
            op: [k for k in trace.all("kernel") if trace.op_of(k)["name"] == op] for op in ("aten::mm", "aten::relu")
        }
        assert {kernel.name for kernel in mm.kernels} == {kernel["name"] for kernel in by_op["aten::mm"]}
        [relu] = by_op["aten::relu"]
        assert relu["name"] in torchgraft.plans.show("relu")
        assert len(relu["args"]["grid"]) == len(relu["args"]["block"]) == 3
        assert trace.call_of(relu)["name"] == backend(device) + "LaunchKernel"

    @pytest.mark.usefixtures("compiler")
    def test_kernels_of_ones_own(self, device: str, tmp_path: Path) -> None:
        """They belong to the range in which they are launched, where there is no operator."""
        if torchgraft._C.device_properties(torch.device(device).index or 0)["dialect"] != "opencl-c":
            pytest.skip("the kernel is written in OpenCL C")
        twice = torchgraft.kernel("__kernel void twice(__global float* x) { x[get_global_id(0)] *= 2; }")
        x = torch.ones(64, device=device)
        with profile(activities=activities(device)) as prof, record_function("mine"):
            twice[4, 16](x)
        trace = Trace(prof, tmp_path)
        [kernel] = trace.all("kernel")
        assert kernel["name"] == "twice"
        assert (kernel["args"]["grid"], kernel["args"]["block"]) == ([4, 1, 1], [16, 1, 1])
        assert trace.op_of(kernel)["name"] == "mine"
        assert (x == 2).all()

    def test_waiting_is_seen(self, device: str, tmp_path: Path) -> None:
        with profile(activities=activities(device)) as prof:
            torch.zeros(10).to(device)
            torch.accelerator.current_stream().synchronize()
            torch.accelerator.synchronize()
        names = [e["name"] for e in Trace(prof, tmp_path).all("privateuse1_runtime")]
        assert backend(device) + "StreamSynchronize" in names
        assert backend(device) + "DeviceSynchronize" in names

    def test_a_chosen_kind(self, device: str, tmp_path: Path) -> None:
        """The activities of the CPU alone hold nothing of the device."""
        x = torch.randn(100)
        with profile(activities=[ProfilerActivity.CPU]) as prof:
            x.to(device)
        trace = Trace(prof, tmp_path)
        assert trace.commands == []
        assert trace.all("privateuse1_runtime") == []
        assert trace.all("cpu_op")

    def test_without_the_cpu(self, device: str) -> None:
        x = torch.randn(1000)
        with profile(activities=activities(device)[1:]) as prof:
            x.to(device)
        assert [e.name for e in commands(prof)] == ["Memcpy HtoD"]

    def test_nothing_is_left_from_before(self, device: str) -> None:
        x = torch.randn(1000)
        for number in range(5):
            x.to(device)
            with profile(activities=activities(device)) as prof:
                for _ in range(number):
                    x.to(device)
            assert len(commands(prof)) == number

    def test_many(self, device: str) -> None:
        """More than are kept waiting for their times."""
        x, y = torch.randn(64), torch.empty(64, device=device)
        with profile(activities=activities(device), acc_events=True) as prof:
            for _ in range(3000):
                y.copy_(x)
        names = [e.name for e in commands(prof)]
        assert names == ["Memcpy HtoD"] * 3000

    def test_threads(self, device: str) -> None:
        """What other threads submit is there, although torch does not see their operators."""
        x = torch.randn(64)

        def work() -> None:
            for _ in range(200):
                x.to(device)

        with profile(activities=activities(device)) as prof:
            in_threads(*[work] * 4)
        assert len(commands(prof)) == 800

    def test_threads_that_do_not_stop(self, device: str) -> None:
        x = torch.randn(64)
        ended = threading.Event()

        def work() -> None:
            while not ended.is_set():
                x.to(device)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            for _ in range(5):
                with profile(activities=activities(device)) as prof:
                    for _ in range(20):
                        x.to(device)
                assert len(commands(prof)) >= 20
        finally:
            ended.set()
            thread.join()

    def test_an_exception_within(self, device: str) -> None:
        x = torch.randn(10)
        with pytest.raises(ZeroDivisionError), profile(activities=activities(device)) as prof:
            x.to(device)
            raise ZeroDivisionError
        assert len(commands(prof)) == 1
        with profile(activities=activities(device)) as prof:
            x.to(device)
        assert len(commands(prof)) == 1


class TestTimes:
    def test_commands_come_after_their_calls(self, device: str, tmp_path: Path) -> None:
        x = torch.randn(200, 200, device=device)
        for _ in range(5):  # until torch's clock is right
            clock = Clock()
            with profile(activities=activities(device)) as prof:
                clock.mark()
                for _ in range(20):
                    x = (x @ x).tanh()
                x.cpu()
                clock.mark()
            trace = Trace(prof, tmp_path)
            if clock.error(trace) <= SLACK:
                break
        else:
            pytest.fail("torch's times are wrong in each of five profiles")
        [span] = [e for e in trace.events if e.get("cat") == "Trace" and e["ph"] == "X"]
        assert len(trace.commands) >= 20
        for command in trace.commands:
            call, op = trace.call_of(command), trace.op_of(command)
            assert call["ts"] <= command["ts"] + 0.002
            assert op["ts"] - SLACK <= call["ts"]
            assert end(call) <= end(op) + SLACK
            assert span["ts"] - SLACK <= command["ts"]
            assert end(command) <= end(span) + SLACK

    def test_a_stream_does_one_thing_at_a_time(self, device: str, tmp_path: Path) -> None:
        x = torch.randn(300, 300, device=device)
        with profile(activities=activities(device)) as prof:
            for _ in range(20):
                x = (x @ x).tanh()
                x.cpu()
        done = sorted(Trace(prof, tmp_path).commands, key=lambda e: e["args"]["correlation"])
        for first, second in itertools.pairwise(done):
            assert end(first) <= second["ts"] + 1.0

    @pytest.mark.usefixtures("compiler")
    def test_kernels_fill_the_time(self, device: str, tmp_path: Path) -> None:
        """Large kernels one after the other: their times add up to what the host waited."""
        x = torch.randn(1024, 1024, device=device)
        out = torch.empty_like(x)
        torch.mm(x, x, out=out)
        torch.accelerator.synchronize()
        with profile(activities=activities(device)) as prof:
            began = time.perf_counter()
            for _ in range(8):
                torch.mm(x, x, out=out)
            torch.accelerator.synchronize()
            wall = (time.perf_counter() - began) * 1e6
        trace = Trace(prof, tmp_path)
        kernels = trace.all("kernel")
        assert {kernel["args"]["timed by"] for kernel in kernels} == {"device"}
        busy = sum(kernel["dur"] for kernel in kernels)
        assert 0.8 * wall <= busy <= 1.01 * wall
        # Between the begin of the first and the end of the last there is next to nothing else.
        assert busy >= 0.9 * (max(map(end, kernels)) - min(kernel["ts"] for kernel in kernels))

    def test_a_copy_takes_no_longer_than_its_call(self, device: str, tmp_path: Path) -> None:
        """The host's wait for earlier work is no part of a copy."""
        x = torch.randn(512, 512, device=device)
        with profile(activities=activities(device)) as prof:
            for _ in range(10):
                y = x @ x
            y.cpu()
        trace = Trace(prof, tmp_path)
        copy = [e for e in trace.all("gpu_memcpy") if e["name"] == "Memcpy DtoH"][-1]
        assert end(copy) <= end(trace.call_of(copy)) + 2000  # where an event is recorded after it, that takes time
        for kernel in trace.all("kernel"):
            assert end(kernel) <= copy["ts"] + 1.0


class TestTracks:
    def test_devices_and_streams_have_names(self, device: str, tmp_path: Path) -> None:
        stream = torch.Stream(device)
        with profile(activities=activities(device)) as prof:
            torch.randn(10).to(device)
            with stream:
                torch.randn(10).to(device)
            stream.synchronize()
        trace = Trace(prof, tmp_path)
        index = torch.device(device).index or 0
        assert [e["tid"] for e in trace.all("gpu_memcpy")] == [0, stream.stream_id]
        assert {e["pid"] for e in trace.all("gpu_memcpy")} == {index}
        named = {(e["name"], e["pid"], e["tid"]): e["args"] for e in trace.events if e["ph"] == "M"}
        assert named["process_name", index, 0] == {"name": f"{backend(device)}:{index}"}
        name = torchgraft._C.device_properties(index)["name"]
        assert named["process_labels", index, 0] == {"labels": name}
        assert named["thread_name", index, stream.stream_id] == {"name": f"stream {stream.stream_id}"}
        properties = {p["id"]: p for p in trace.content["deviceProperties"]}
        assert properties[index]["name"] == name

    def test_arrows_lead_from_the_call_to_the_command(self, device: str, tmp_path: Path) -> None:
        with profile(activities=activities(device)) as prof:
            torch.randn(10).to(device).cpu()
        trace = Trace(prof, tmp_path)
        arrows = {
            kind: {e["id"]: e for e in trace.events if e.get("cat") == "ac2g" and e["ph"] == kind} for kind in "sf"
        }
        assert len(trace.commands) == 2
        for command in trace.commands:
            number = command["args"]["correlation"]
            call = trace.call_of(command)
            assert (arrows["s"][number]["ts"], arrows["s"][number]["tid"]) == (call["ts"], call["tid"])
            assert (arrows["f"][number]["ts"], arrows["f"][number]["pid"]) == (command["ts"], command["pid"])

    @pytest.mark.usefixtures("compiler")
    def test_backward_belongs_to_its_thread(self, device: str, tmp_path: Path) -> None:
        w = torch.randn(64, 64, device=device, requires_grad=True)
        with profile(activities=activities(device)) as prof:
            (w @ w).relu().sum().backward()
        trace = Trace(prof, tmp_path)
        names = {"MmBackward0": 0, "ReluBackward0": 0}
        for kernel in trace.all("kernel"):
            op, call = trace.op_of(kernel), trace.call_of(kernel)
            assert op["tid"] == call["tid"]
            for node in trace.all("cpu_op"):
                if node["name"] in names and node["tid"] == op["tid"] and node["ts"] <= op["ts"] <= end(node):
                    names[node["name"]] += 1
        assert all(names.values())

    def test_ranges(self, device: str, tmp_path: Path) -> None:
        x = torch.randn(1000)
        with profile(activities=activities(device)) as prof:
            x.to(device)
            with record_function("mine"):
                y = x.to(device)
                y.cpu()
        trace = Trace(prof, tmp_path)
        [span] = trace.all("gpu_user_annotation")
        assert span["name"] == "mine"
        first, second = [e for e in trace.commands if e["args"]["correlation"] > 1 and e["ts"] >= span["ts"]]
        assert span["ts"] == pytest.approx(first["ts"], abs=0.01)
        assert end(span) == pytest.approx(end(second), abs=0.01)
        [mine] = [e for e in prof.key_averages() if e.key == "mine" and e.device_type == DeviceType.CPU]
        assert mine.device_time_total == pytest.approx(sum(e["dur"] for e in (first, second)), abs=0.1)


class TestTables:
    def test_the_columns_have_the_backends_name(self, device: str) -> None:
        x = torch.randn(1000)
        with profile(activities=activities(device)) as prof:
            x.to(device)
        name = backend(device).upper()
        table = prof.key_averages().table(sort_by="self_device_time_total")
        assert f"Self {name}" in table
        assert f"{name} total" in table
        assert "Memcpy HtoD" in table
        assert f"Self {name} time total" in table
        assert all(row.self_cpu_time_total >= 0 for row in prof.key_averages())

    def test_each_command_counts_once(self, device: str) -> None:
        x = torch.randn(100_000)
        with profile(activities=activities(device)) as prof, record_function("range"):
            for _ in range(5):
                x.to(device).cpu()
        averages = prof.key_averages()
        rows = [e for e in averages if e.device_type == DeviceType.PrivateUse1 and not e.is_user_annotation]
        assert {row.key: row.count for row in rows} == {"Memcpy HtoD": 5, "Memcpy DtoH": 5}
        total = sum(e.time_range.elapsed_us() for e in commands(prof))
        assert sum(row.self_device_time_total for row in rows) == pytest.approx(total)
        ops = [e for e in averages if e.device_type == DeviceType.CPU]
        assert sum(op.self_device_time_total for op in ops) == pytest.approx(total)

    def test_steps(self, device: str) -> None:
        """Only the active steps are recorded, each cycle by itself."""
        x = torch.randn(1000)
        seen: list[int] = []
        schedule = torch.profiler.schedule(wait=1, warmup=1, active=2, repeat=2)
        with profile(
            activities=activities(device),
            schedule=schedule,
            on_trace_ready=lambda prof: seen.append(len(commands(prof))),
        ) as prof:
            for _ in range(10):
                x.to(device).cpu()
                prof.step()
        assert seen == [4, 4]


class TestMemory:
    def test_allocations_have_their_operator(self, device: str) -> None:
        with profile(activities=activities(device), profile_memory=True) as prof:
            x = torch.empty(1 << 20, device=device)
            del x
        rows = {e.key: e for e in prof.key_averages()}
        assert rows["aten::empty"].self_device_memory_usage == 4 << 20
        assert rows["[memory]"].self_device_memory_usage == -(4 << 20)
        assert f"Self {backend(device).upper()} Mem" in prof.key_averages().table()

    def test_events_in_the_trace(self, device: str, tmp_path: Path) -> None:
        with profile(activities=activities(device), profile_memory=True) as prof:
            x = torch.empty(1 << 20, device=device)
            address = x.data_ptr()
            del x
        events = [e for e in Trace(prof, tmp_path).events if e["name"] == "[memory]"]
        changes = [e["args"] for e in events if e["args"]["Addr"] == address]
        assert [change["Bytes"] for change in changes] == [4 << 20, -(4 << 20)]
        for change in changes:
            assert change["Device Type"] == DeviceType.PrivateUse1.value
            assert change["Device Id"] == (torch.device(device).index or 0)
        assert changes[0]["Total Allocated"] - changes[1]["Total Allocated"] == 4 << 20
        assert changes[0]["Total Reserved"] >= changes[0]["Total Allocated"]

    def test_no_memory_left(self, device: str, tmp_path: Path) -> None:
        with profile(activities=activities(device), profile_memory=True) as prof, pytest.raises(torch.OutOfMemoryError):
            torch.empty(1 << 50, dtype=torch.uint8, device=device)
        [event] = [e for e in Trace(prof, tmp_path).events if e["name"] == "[OutOfMemory]"]
        assert event["args"]["Bytes"] == 1 << 50
        assert event["args"]["Device Type"] == DeviceType.PrivateUse1.value

    @pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:.*deprecated")
    def test_timeline(self, device: str, tmp_path: Path) -> None:
        model = torch.nn.Linear(256, 256).to(device)
        x = torch.randn(64, 256, device=device)
        with profile(activities=activities(device), profile_memory=True, record_shapes=True, with_stack=True) as prof:
            model(x).sum().backward()
        path = tmp_path / "timeline.json"
        prof.export_memory_timeline(str(path), device=f"{backend(device)}:{torch.device(device).index or 0}")
        times, sizes = json.loads(path.read_text())
        assert len(times) == len(sizes) > 2
        assert max(sum(row) for row in sizes) >= 4 * 256 * 256  # at least the weight's gradient


class TestOlderProfiler:
    """torch.autograd.profiler without Kineto: an event of the device at each end of an operator."""

    def test_times(self, device: str) -> None:
        x = torch.randn(512, 512, device=device)
        x @ x
        torch.accelerator.synchronize()
        with torch.autograd.profiler.profile(use_device=backend(device), use_kineto=False) as prof:
            began = time.perf_counter()
            for _ in range(5):
                y = x @ x
            torch.accelerator.synchronize()
            wall = (time.perf_counter() - began) * 1e6
        del y
        [row] = [e for e in prof.key_averages() if e.key == "aten::mm"]
        assert row.count == 5
        assert 0 < row.device_time_total <= wall * 1.05

    def test_synchronization_and_devices(self, script: Script) -> None:
        """A device whose events take no times is waited for instead."""
        script("""
            import time
            import torch, torchgraft
            from numpy_driver import NumpyDriver
            from torchgraft.driver import Capability

            class Untimed(NumpyDriver):
                def __init__(self):
                    super().__init__()
                    self.capabilities = Capability.NONE
                def copy(self, *arguments):
                    time.sleep(0.01)
                    super().copy(*arguments)

            torchgraft.register("untimed", [Untimed()])
            x = torch.randn(10)
            with torch.autograd.profiler.profile(use_device="untimed", use_kineto=False) as prof:
                x.to("untimed")
            [row] = [e for e in prof.key_averages() if e.key == "aten::_copy_from"]
            assert 10_000 <= row.device_time_total < 1e6, row
        """)


SCRIPT = """
    import json, tempfile, time
    import torch, torchgraft
    from numpy_driver import NumpyDriver
    from torchgraft.driver import Capability
    from torch.profiler import ProfilerActivity, profile

    def trace(prof):
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            prof.export_chrome_trace(file.name)
            return json.load(open(file.name))["traceEvents"]

    def copies(events):
        return [e for e in events if e.get("cat") == "gpu_memcpy"]

    def call_of(events, copy):
        [call] = [e for e in events if e.get("cat") == "privateuse1_runtime"
                  and e["args"]["correlation"] == copy["args"]["correlation"]]
        return call

    class Slow(NumpyDriver):
        def copy(self, *arguments):
            time.sleep(0.005)
            super().copy(*arguments)
"""


@pytest.fixture
def drivers(script: Script) -> Callable[[str], str]:
    """Runs a script for which drivers and helpers are at hand."""

    def run(text: str) -> str:
        import textwrap

        return script(textwrap.dedent(SCRIPT) + textwrap.dedent(text))

    return run


class TestDrivers:
    """Where times come from."""

    def test_from_events(self, drivers: Callable[[str], str]) -> None:
        drivers("""
            torchgraft.register("slow", [Slow()])
            with profile() as prof:
                torch.randn(10).to("slow")
            events = trace(prof)
            [copy] = copies(events)
            call = call_of(events, copy)
            assert copy["args"]["timed by"] == "device"
            assert 5000 <= copy["dur"] <= call["dur"] + 2000, (copy, call)
            assert call["ts"] <= copy["ts"] <= call["ts"] + 2000, (copy, call)
        """)

    def test_from_the_driver(self, drivers: Callable[[str], str]) -> None:
        """The device's clock began elsewhere and runs at a rate of its own; its times come to lie on the host's."""
        drivers("""
            import threading
            timed = threading.local()

            def clock():
                return 10**15 + int(time.perf_counter_ns() * 1.5)

            class Exact(NumpyDriver):
                copied = 0
                def copy(self, *arguments):
                    event = timed.__dict__.pop("event", None)
                    begin = clock()
                    time.sleep(0.005)
                    super().copy(*arguments)
                    self.copied += 1
                    if event is not None:
                        event.append((begin, clock()))
                def event_create(self, device, timing):
                    return []
                def event_time_next(self, device, event):
                    event.clear()
                    timed.event = event
                def event_times(self, device, event):
                    return event[-1]
                def device_time(self, device):
                    return clock()

            driver = Exact()
            torchgraft.register("exact", [driver])
            with profile() as prof:
                for _ in range(20):
                    torch.randn(10).to("exact")
                    time.sleep(0.01)
            assert driver.copied == 20
            events = trace(prof)
            assert len(copies(events)) == 20
            for copy in copies(events):
                call = call_of(events, copy)
                assert copy["args"]["timed by"] == "device"
                assert call["ts"] <= copy["ts"] + 0.002
                assert copy["ts"] + copy["dur"] <= call["ts"] + call["dur"] + 500, (copy, call)
                assert 4990 <= copy["dur"], copy
        """)

    def test_from_the_host(self, drivers: Callable[[str], str]) -> None:
        drivers("""
            class Untimed(Slow):
                waits = 0
                def __init__(self):
                    super().__init__()
                    self.capabilities = Capability.NONE
                def stream_synchronize(self, device, stream):
                    time.sleep(0.003)
                    self.waits += 1

            driver = Untimed()
            torchgraft.register("untimed", [driver])
            with profile() as prof:
                torch.randn(10).to("untimed")
            events = trace(prof)
            [copy] = copies(events)
            assert copy["args"]["timed by"] == "host"
            assert copy["dur"] >= 8000  # the wait belongs to it
            assert driver.waits == 1
        """)

    @pytest.mark.thorough
    def test_a_clock_that_fails(self, drivers: Callable[[str], str]) -> None:
        """A profile is taken all the same, and says what was wrong."""
        said = drivers("""
            class Broken(Slow):
                def event_elapsed(self, device, start, end):
                    raise ArithmeticError("the clock stands still")

            torchgraft.register("broken", [Broken()])
            with profile() as prof:
                torch.randn(10).to("broken")
            [copy] = copies(trace(prof))
            assert copy["args"]["timed by"] == "host"
            assert copy["dur"] >= 5000
        """)
        assert "profile of broken: broken:0: reading the times of events failed: ArithmeticError" in said

    def test_a_command_that_fails(self, drivers: Callable[[str], str]) -> None:
        drivers("""
            class Failing(NumpyDriver):
                fail = False
                def copy(self, *arguments):
                    if self.fail:
                        raise ArithmeticError("no such copy")
                    super().copy(*arguments)

            driver = Failing()
            torchgraft.register("failing", [driver])
            with profile() as prof:
                torch.randn(10).to("failing")
                driver.fail = True
                try:
                    torch.randn(10).to("failing")
                except RuntimeError as error:
                    assert "no such copy" in str(error)
                else:
                    raise AssertionError("the copy did not fail")
                driver.fail = False
                torch.randn(10).to("failing")
            assert len(copies(trace(prof))) == 2
        """)

    def test_several_devices(self, drivers: Callable[[str], str]) -> None:
        drivers("""
            torchgraft.register("two", [NumpyDriver(devices=1), NumpyDriver(devices=1)])
            with profile() as prof:
                x = torch.randn(10).to("two:0")
                y = x.to("two:1")
            events = trace(prof)
            assert [(e["name"], e["pid"]) for e in copies(events)] == [
                ("Memcpy HtoD", 0), ("Memcpy DtoH", 0), ("Memcpy HtoD", 1)]
            names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
            assert names[0] == "two:0" and names[1] == "two:1"
        """)

    def test_no_device(self, drivers: Callable[[str], str]) -> None:
        """A profile of the CPU works all the same, whether or not somebody has looked for devices."""
        drivers("""
            class Broken(NumpyDriver):
                def device_count(self):
                    raise OSError("the cable is loose")

            torchgraft.register("broken", [Broken()])
            for _ in range(2):
                with profile() as prof:
                    torch.randn(10).sum()
                assert "aten::sum" in {e.name for e in prof.events()}
                with torch.autograd.profiler.profile(use_device="broken", use_kineto=False) as prof:
                    torch.randn(10).sum()
                assert "aten::sum" in {e.name for e in prof.function_events}
                assert torch.broken.device_count() == 0
        """)

    def test_a_profile_opens_no_device(self, drivers: Callable[[str], str]) -> None:
        drivers("""
            torchgraft.register("unused", [NumpyDriver()])
            with profile():
                torch.randn(10).sum()
            assert not torchgraft._C.devices_opened()
        """)

    @pytest.mark.thorough
    def test_more_than_are_kept(self, drivers: Callable[[str], str]) -> None:
        said = drivers("""
            torchgraft.register("npy", [NumpyDriver()])
            torchgraft._C.set_activity_capacity(100)
            x = torch.randn(10)
            with profile() as prof:
                for _ in range(150):
                    x.to("npy")
            assert len(copies(trace(prof))) == 100
            with profile() as prof:
                x.to("npy")
            assert len(copies(trace(prof))) == 1
        """)
        # With them the wait at the end.
        assert said.count("profile of npy: 51 activities after the first 100 were not kept") == 1

    @pytest.mark.thorough
    def test_profiles_from_before_the_backend(self, drivers: Callable[[str], str]) -> None:
        drivers("""
            with profile(activities=[ProfilerActivity.CPU]):
                torch.randn(10).sum()
            torchgraft.register("late", [NumpyDriver()])
            assert not torchgraft._C.devices_opened()
            with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.LATE]) as prof:
                torch.randn(10).to("late")
            assert len(copies(trace(prof))) == 1
        """)
