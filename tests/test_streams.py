"""Devices, streams and events, through torch's device-independent interface."""

from __future__ import annotations

import functools
import threading
import time

import pytest
import torch
from conftest import Script, in_threads

import torchgraft

acc = torch.accelerator


def test_current_device(device: str) -> None:
    assert acc.current_device_index() == 0
    with acc.device_index(0):
        assert acc.current_device_index() == 0
    assert acc.device_count() >= 1


@pytest.mark.parametrize("index", [63, 100])
def test_a_device_that_is_not_there(device: str, index: int) -> None:
    name = f"{torch.device(device).type}:{index}"
    with pytest.raises(RuntimeError, match=rf"out of range: there is no {name}, \d+ devices? (is|are) available"):
        acc.set_device_index(index)
    assert acc.current_device_index() == 0


def test_the_default_stream_has_id_0(device: str) -> None:
    assert acc.current_stream().stream_id == 0
    assert acc.current_stream().device.type == torch.device(device).type


def test_a_stream_is_current_inside_with_and_only_there(device: str) -> None:
    stream = torch.Stream(device=device)
    before = acc.current_stream()
    with stream:
        assert acc.current_stream() == stream
    assert acc.current_stream() == before


def test_the_current_stream_belongs_to_the_thread(device: str) -> None:
    seen = []
    with torch.Stream(device=device):
        thread = threading.Thread(target=lambda: seen.append(acc.current_stream().stream_id))
        thread.start()
        thread.join()
    assert seen == [0]


def test_streams_have_handles_of_their_own(device: str) -> None:
    handles = {torch.Stream(device=device).native_handle for _ in range(8)}
    assert len(handles) == 8
    assert 0 not in handles


def test_any_number_of_streams(device: str) -> None:
    torch.get_device_module(device).synchronize()  # what other tests have left to those of the pool
    for priority in (-5, -1, 0, 1, 7):
        streams = [torch.Stream(device=device, priority=priority) for _ in range(40)]
        # One whose handle somebody has is asked by a marker, which takes a moment.
        end = time.monotonic() + 10
        while not all(stream.query() for stream in streams):
            assert time.monotonic() < end
            time.sleep(0.01)


def test_work_on_a_stream_is_done_after_synchronize(device: str) -> None:
    stream = torch.Stream(device=device)
    source = torch.arange(100_000.0)
    with stream:
        there = source.to(device)
        twice = there + there
    stream.synchronize()
    assert stream.query()
    assert torch.equal(twice.cpu(), source * 2)


def test_one_stream_waits_for_another(device: str) -> None:
    first, second = torch.Stream(device=device), torch.Stream(device=device)
    with first:
        x = torch.ones(1 << 20, device=device)
        for _ in range(10):
            x = x + 1
    second.wait_stream(first)
    with second:
        y = x + 1
    second.synchronize()
    assert y.cpu().unique().tolist() == [12.0]


def test_events_order_streams(device: str) -> None:
    first, second = torch.Stream(device=device), torch.Stream(device=device)
    with first:
        x = torch.full((1 << 18,), 3.0, device=device)
        event = first.record_event()
    second.wait_event(event)
    with second:
        y = x * x
    second.synchronize()
    assert y.cpu().unique().tolist() == [9.0]


def test_an_event_that_was_never_recorded_has_passed(device: str) -> None:
    event = torch.Event(device=device)
    assert event.query()
    event.synchronize()
    event.wait()


def test_an_event_can_be_recorded_again(device: str) -> None:
    event = torch.Event(device=device)
    for _ in range(3):
        event.record()
        event.synchronize()
        assert event.query()


def test_elapsed_time_in_milliseconds(device: str) -> None:
    start, end = (torch.Event(device=device, enable_timing=True) for _ in range(2))
    start.record()
    start.synchronize()
    time.sleep(0.02)
    x = torch.ones(1000, device=device) + 1
    end.record()
    acc.synchronize()
    del x
    assert 10 < start.elapsed_time(end) < 5000


def test_elapsed_time_needs_timing(device: str) -> None:
    start, end = torch.Event(device=device), torch.Event(device=device)
    start.record()
    end.record()
    acc.synchronize()
    with pytest.raises(ValueError, match="enable_timing"):
        start.elapsed_time(end)
    module = torch.get_device_module(device)
    with pytest.raises(ValueError, match="enable_timing"):
        module.Event().record().elapsed_time(module.Event().record())
    with pytest.raises(ValueError, match="recorded"):
        module.Event(enable_timing=True).elapsed_time(module.Event(enable_timing=True))


def test_the_modules_classes_and_torchs_go_together(device: str) -> None:
    module = torch.get_device_module(device)
    first, second = module.Event(enable_timing=True), torch.Event(device=device, enable_timing=True)
    first.record(torch.Stream(device=device))
    x = torch.ones(1000, device=device)
    second.record(module.Stream())
    acc.synchronize()
    assert abs(first.elapsed_time(second)) < 5000
    assert isinstance(module.current_stream().record_event(), module.Event)
    assert module.current_stream().record_event(second) is second
    module.Stream().wait_event(second)
    torch.Stream(device=device).wait_event(first)
    module.Stream().wait_stream(torch.Stream(device=device))
    torch.Stream(device=device).wait_stream(module.Stream())
    x.record_stream(module.Stream())
    x.record_stream(torch.Stream(device=device))
    acc.set_stream(side := module.Stream())
    assert module.current_stream() == acc.current_stream() == side
    module.set_stream(module.default_stream())
    assert "not recorded" in repr(module.Event())
    assert "id=0x" in repr(first)


def test_synchronize_of_a_device_waits_for_all_its_streams(device: str) -> None:
    streams = [torch.Stream(device=device) for _ in range(3)]
    results = []
    for stream in streams:
        with stream:
            results.append(torch.full((1 << 18,), 2.0, device=device) * 2)
    acc.synchronize()
    assert all(stream.query() for stream in streams)
    assert all(result.cpu().unique().tolist() == [4.0] for result in results)


def test_backward_on_a_side_stream(device: str) -> None:
    stream = torch.Stream(device=device)
    x = torch.ones(64, device=device, requires_grad=True)
    stream.wait_stream(acc.current_stream())
    with stream:
        (x * 3).sum().backward()
    stream.synchronize()
    assert x.grad is not None
    assert x.grad.cpu().unique().tolist() == [3.0]


def test_streams_of_torch_device_module(device: str) -> None:
    module = getattr(torch, torch.device(device).type)
    stream = module.Stream()
    with module.stream(stream):
        assert module.current_stream() == stream
    assert module.current_stream() == module.default_stream()
    event = module.Event(enable_timing=True)
    assert event.record() is event
    event.synchronize()


def test_capability(device: str) -> None:
    supported = acc.get_device_capability()["supported_dtypes"]
    assert {torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool} <= supported
    module = getattr(torch, torch.device(device).type)
    assert (torch.float64 in supported) == module.get_device_properties().has_float64


@pytest.mark.thorough
@pytest.mark.quick(wait="x.cpu()")
@pytest.mark.parametrize("wait", ["x.cpu()", "x[0, 0].item()", "acc.synchronize()", "event.synchronize()"])
def test_an_interrupt_ends_a_wait(script: Script, wait: str) -> None:
    """What was queued goes on, and the process can be used."""
    script(
        f"""
        import os, signal, threading, time
        import torch
        acc = torch.accelerator
        signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's jobs in the background ignore
        x = torch.full((2048, 2048), 1 / 2048, device="ocl")
        weights = torch.full((2048, 2048), 1 / 2048, device="ocl")
        (x @ weights).cpu()
        quickest = 60.0
        for _ in range(5):  # however busy the machine is, and each too long to be done by the thread that asks
            before = time.perf_counter()
            (x @ weights).cpu()
            quickest = min(quickest, time.perf_counter() - before)
        products = int(3 / quickest) + 1
        event = torch.Event(device="ocl")
        for _ in range(products):
            x = x @ weights
        event.record()
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            {wait}
        except KeyboardInterrupt:
            pass
        else:
            raise SystemExit("the wait went on")
        assert not acc.current_stream().query()  # there is work left
        torch.testing.assert_close(x.cpu(), torch.full((2048, 2048), 1 / 2048))
        """,
        autoload=True,
    )


def test_threads_that_share_a_stream_get_what_they_computed(device: str) -> None:
    """Whatever launches of one thread come between another's, in batches or one by one."""
    inputs = [torch.randn(20 + number, 30) for number in range(4)]
    wrong = [0] * len(inputs)

    def work(number: int) -> None:
        x, expected = inputs[number].to(device), inputs[number].softmax(-1) * 2 + inputs[number].sum(0)
        for _ in range(500):
            result = (x.softmax(-1) * 2 + x.sum(0)).cpu()
            wrong[number] += not torch.allclose(result, expected, atol=1e-4)

    with torchgraft.fallback("silent"):
        in_threads(*(functools.partial(work, number) for number in range(4)))
    assert wrong == [0] * len(inputs)
