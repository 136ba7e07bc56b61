"""Kernels of one's own with PyOpenCL on the memory and in the queues of PyTorch, in each model of memory."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pyopencl
import pyopencl.array
import pytest
import torch

import torchgraft_opencl
from torchgraft_opencl import interop

MODELS = ["host", "svm", "coarse", "buffer"]
MODEL = os.environ.get("TORCHGRAFT_OPENCL_MEMORY", "")

SOURCE = """
kernel void scale(global float *x, float factor, int steps) {
  for (int i = 0; i < steps; ++i) x[get_global_id(0)] *= factor;
}
kernel void ramp(global float *x) { x[get_global_id(0)] = get_global_id(0); }
"""

torchgraft_opencl.register()


@pytest.fixture(scope="module")
def program() -> Any:
    program = pyopencl.Program(interop.context(), SOURCE).build()
    return SimpleNamespace(scale=pyopencl.Kernel(program, "scale"), ramp=pyopencl.Kernel(program, "ramp"))


def is_buffer_model() -> bool:
    return interop._native(0).model is interop.MemoryModel.BUFFER


@pytest.mark.skipif(bool(MODEL), reason="is one of the runs below")
@pytest.mark.thorough
@pytest.mark.parametrize("model", MODELS)
def test_in_each_model(model: str) -> None:
    """The whole file once more in a process where the driver's memory is made to be of another kind."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(Path(__file__))],
        env={**os.environ, "TORCHGRAFT_OPENCL_MEMORY": model},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-10000:] + done.stderr[-2000:]


def test_the_objects_are_those_of_the_driver() -> None:
    queue = interop.queue()
    assert queue.context == interop.context()
    assert queue.device == interop.device()
    assert interop.context().devices == [interop.device()]
    assert interop.device().name.strip() == torch.ocl.get_device_name()
    assert interop.queue() == queue
    with torch.Stream(device="ocl"):
        assert interop.queue() != queue


def test_a_kernel_in_the_order_of_the_stream(program: Any) -> None:
    """Nothing waits in between, neither before nor after the kernel."""
    x = torch.zeros(100_000, device="ocl")
    for _ in range(20):
        x += 1
        program.scale(interop.queue(), x.shape, None, interop.buffer(x), numpy.float32(2), numpy.int32(1))
        x -= 1
    expected = 0.0
    for _ in range(20):
        expected = (expected + 1) * 2 - 1
    assert torch.equal(x.cpu(), torch.full((100_000,), expected))


def test_small_launches_do_not_overtake_such_work(program: Any) -> None:
    """What waits for a worker is added to only while nobody else may have queued something behind it."""
    x = torch.zeros(64, device="ocl")
    for _ in range(20):
        x += 1
        torch.ocl.synchronize()
    y = torch.ones(64, device="ocl")
    queue = interop.queue()
    program.scale(queue, y.shape, None, interop.buffer(y), numpy.float32(1.0000001), numpy.int32(2_000_000))
    expected = 20.0
    for _ in range(5):
        x += 1
        program.scale(queue, x.shape, None, interop.buffer(x), numpy.float32(2), numpy.int32(1))
        expected = (expected + 1) * 2
    assert x.tolist() == [expected] * 64


def test_nor_do_those_from_before_the_queue_was_shared(program: Any) -> None:
    with torch.Stream(device="ocl"):
        x, y = torch.zeros(64, device="ocl"), torch.zeros(1 << 22, device="ocl")
        for _ in range(20):
            x += 1
            torch.ocl.synchronize()
        for _ in range(5):
            y += 1
        x += 1
        program.scale(interop.queue(), x.shape, None, interop.buffer(x), numpy.float32(2), numpy.int32(1))
        x += 1
        assert x.tolist() == [43.0] * 64


@pytest.mark.parametrize("wait", ["item", "stream", "device", "event", "query"])
def test_waiting_waits_for_work_that_pytorch_did_not_submit(program: Any, wait: str) -> None:
    x = torch.ones(64, device="ocl")
    torch.ocl.synchronize()
    program.scale(interop.queue(), x.shape, None, interop.buffer(x), numpy.float32(1.0000001), numpy.int32(2_000_000))
    last = program.ramp(interop.queue(), x.shape, None, interop.buffer(x))
    stream = torch.ocl.current_stream()
    if wait == "stream":
        stream.synchronize()
    elif wait == "device":
        torch.ocl.synchronize()
    elif wait == "event":
        event = torch.ocl.Event()
        event.record()
        event.synchronize()
    elif wait == "query":
        assert not stream.query()
        while not stream.query():
            pass
    elif wait == "item":
        assert x[63].item() == 63
    assert last.command_execution_status == pyopencl.command_execution_status.COMPLETE
    assert x.tolist() == list(range(64))


def test_a_queue_is_held_while_it_is_waited_for(program: Any) -> None:
    """Another thread may have the stream change to a queue that records times: PoCL ends the process if the one that
    somebody waits for goes."""
    x = torch.ones(64, device="ocl")
    stream, queue = torch.ocl.current_stream(), interop.queue()
    torch.ocl.synchronize()

    def most_references(wait: Callable[[], object]) -> int:
        """How many more there are while something waits."""
        program.scale(queue, x.shape, None, interop.buffer(x), numpy.float32(1.0000001), numpy.int32(20_000_000))
        before, seen = queue.reference_count, []
        waiting = threading.Thread(target=wait)
        waiting.start()
        while waiting.is_alive():
            seen.append(queue.reference_count)
            time.sleep(0.001)
        return max(seen) - before

    # From PoCL 4 on the wait itself holds the queue, too; but others do not.
    assert most_references(stream.synchronize) == most_references(queue.finish) + 1


def test_times_are_measured_over_such_work(program: Any) -> None:
    start, end = torch.ocl.Event(enable_timing=True), torch.ocl.Event(enable_timing=True)
    x = torch.ones(64, device="ocl")
    torch.ocl.synchronize()
    start.record()
    program.scale(interop.queue(), x.shape, None, interop.buffer(x), numpy.float32(1.0000001), numpy.int32(2_000_000))
    end.record()
    end.synchronize()
    assert start.elapsed_time(end) > 0.5


def test_other_streams_wait_for_it(program: Any) -> None:
    x = torch.ones(64, device="ocl")
    torch.ocl.synchronize()
    program.scale(interop.queue(), x.shape, None, interop.buffer(x), numpy.float32(1.0000001), numpy.int32(2_000_000))
    program.ramp(interop.queue(), x.shape, None, interop.buffer(x))
    side = torch.ocl.Stream()
    side.wait_stream(torch.ocl.current_stream())
    with side:
        y = x + 1
    side.synchronize()
    assert y.cpu().tolist() == list(range(1, 65))


# ---- buffer(tensor) ----


def test_parts_of_a_tensor(program: Any) -> None:
    align = interop.device().mem_base_addr_align // 8
    x = torch.zeros(4 * align, device="ocl")
    program.ramp(interop.queue(), (4,), None, interop.buffer(x[align : align + 4]))
    assert x[align : align + 5].tolist() == [0, 1, 2, 3, 0]
    assert x.sum().item() == 6
    part = x[1:5]
    if is_buffer_model():
        with pytest.raises(ValueError, match=f"bytes into its buffer.*multiple of {align}"):
            interop.buffer(part)
        offset = interop.array(part)
        assert offset.offset % align == 4
    else:
        program.ramp(interop.queue(), (4,), None, interop.buffer(part))
        assert x[:6].tolist() == [0, 0, 1, 2, 3, 0]


def test_a_buffer_keeps_the_memory(program: Any) -> None:
    buffer = interop.buffer(torch.zeros(1000, device="ocl"))
    program.ramp(interop.queue(), (1000,), None, buffer)
    others = [torch.full((1000,), -1.0, device="ocl") for _ in range(3)]
    back = numpy.empty(1000, numpy.float32)
    pyopencl.enqueue_copy(interop.queue(), back, buffer)
    assert back.tolist() == list(range(1000))
    assert len(others) == 3


def test_what_has_no_buffer() -> None:
    with pytest.raises(ValueError, match="on 'cpu'"):
        interop.buffer(torch.ones(2))
    with pytest.raises(ValueError, match="without elements"):
        interop.buffer(torch.ones(0, device="ocl"))
    with pytest.raises(ValueError, match="resolve_conj"):
        interop.buffer(torch.ones(2, dtype=torch.complex64, device="ocl").conj())


# ---- array(tensor) ----


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.uint8, torch.complex64, torch.float16], ids=str)
def test_arrays_share_memory(dtype: torch.dtype) -> None:
    host = torch.arange(24).view(4, 6).to(dtype)
    x = host.to("ocl")
    array = interop.array(x)
    assert array.shape == (4, 6)
    assert array.dtype == host.numpy().dtype
    assert numpy.array_equal(array.get(), host.numpy())
    array.set(host.numpy()[::-1].copy())
    assert torch.equal(x.cpu(), host.flip(0))
    x.zero_()
    assert not array.get().any()


def test_arrays_of_views() -> None:
    base = torch.arange(24.0, device="ocl").view(4, 6)
    for view in (base[1:3], base[2], base.t(), base[3, 5], base[:0]):
        array = interop.array(view)
        assert array.shape == tuple(view.shape)
        assert array.strides == tuple(4 * each for each in view.stride())
        if view.numel():
            assert numpy.array_equal((array + 1).get(), (view + 1).cpu().numpy())


def test_arithmetic_of_arrays() -> None:
    x = torch.arange(6.0, device="ocl")
    array = interop.array(x)
    array *= 2
    assert x.tolist() == [0, 2, 4, 6, 8, 10]
    assert (array + array).get().tolist() == [0, 4, 8, 12, 16, 20]
    flags = interop.array(x > 5)
    assert flags.dtype == numpy.int8
    assert flags.get().tolist() == [0, 0, 0, 1, 1, 1]


def test_what_has_no_array() -> None:
    with pytest.raises(RuntimeError, match="detach"):
        interop.array(torch.ones(2, device="ocl", requires_grad=True))
    with pytest.raises(TypeError, match="bfloat16"):
        interop.array(torch.ones(2, dtype=torch.bfloat16, device="ocl"))
    with pytest.raises(ValueError, match="on 'cpu'"):
        interop.array(torch.ones(2))


# ---- tensor(array) ----


def test_tensors_share_the_memory_of_arrays() -> None:
    source = numpy.arange(24, dtype=numpy.float32).reshape(4, 6)
    array = pyopencl.array.to_device(interop.queue(), source, allocator=interop.allocator())
    x = interop.tensor(array)
    assert x.device == torch.device("ocl:0")
    assert x.dtype == torch.float32
    assert numpy.array_equal(x.cpu().numpy(), source)
    x += 1
    array *= 2
    assert numpy.array_equal(x.cpu().numpy(), (source + 1) * 2)
    assert numpy.array_equal(array.get(), (source + 1) * 2)
    torch.testing.assert_close((x @ x.t()).cpu(), x.cpu() @ x.cpu().t())
    part = interop.tensor(array[1:3])
    part.zero_()
    assert not x[1:3].any().item()
    assert x[0].all().item()
    transposed = interop.tensor(array.T)
    assert torch.equal(transposed.cpu(), x.cpu().t())


def test_the_array_lives_as_long_as_the_tensor() -> None:
    array = pyopencl.array.to_device(
        interop.queue(), numpy.arange(1000, dtype=numpy.float32), allocator=interop.allocator()
    )
    x = interop.tensor(array)[10:]
    memory, free = array.base_data, torch.accelerator.get_memory_info()[0]
    del array
    gc.collect()
    others = [torch.zeros(1000, device="ocl") for _ in range(3)]
    assert x.sum().item() == sum(range(10, 1000))
    assert len(others) == 3
    references = sys.getrefcount(memory)
    del x
    gc.collect()
    if is_buffer_model():  # the driver holds it, and counts it with its own
        assert torch.accelerator.get_memory_info()[0] >= free + 4000
    else:
        assert sys.getrefcount(memory) == references - 1


def test_it_is_a_tensor_like_others() -> None:
    array = pyopencl.array.to_device(interop.queue(), numpy.ones(8, numpy.float32), allocator=interop.allocator())
    x = interop.tensor(array)
    again = torch.from_dlpack(x)
    assert again.data_ptr() == x.data_ptr()
    assert torch.equal(x.clone().cpu(), torch.ones(8))
    assert x.sum().item() == 8
    with pytest.raises(RuntimeError, match="not resizable"):
        x.resize_(1 << 20)
    assert x.shape == (8,)
    x.record_stream(torch.ocl.Stream())
    w = x.requires_grad_()
    (w * 3).sum().backward()
    assert w.grad is not None
    assert w.grad.tolist() == [3] * 8
    empty = pyopencl.array.zeros(interop.queue(), (0, 3), numpy.float32, allocator=interop.allocator())
    assert interop.tensor(empty).shape == (0, 3)


def test_arrays_whose_memory_cannot_be_shared() -> None:
    if is_buffer_model():
        alien = pyopencl.tools.SVMAllocator(interop.context(), queue=interop.queue())
        needed = "have to be in a buffer"
    else:
        alien, needed = None, "have to be in shared virtual memory"
    array = pyopencl.array.zeros(interop.queue(), 4, numpy.float32, allocator=alien)
    with pytest.raises(ValueError, match=rf"{needed}.*from_numpy\(array\.get\(\)\)"):
        interop.tensor(array)
    array.context = None
    with pytest.raises(ValueError, match="another OpenCL context"):
        interop.tensor(array)


@pytest.mark.skipif(
    interop.device().platform not in pyopencl.get_platforms(), reason="PyOpenCL cannot make contexts on this platform"
)
def test_arrays_of_other_contexts() -> None:
    other = pyopencl.CommandQueue(pyopencl.Context([interop.device()]))
    with pytest.raises(ValueError, match="another OpenCL context"):
        interop.tensor(pyopencl.array.zeros(other, 4, numpy.float32))


def test_devices_that_do_not_exist() -> None:
    with pytest.raises((RuntimeError, ValueError), match="7"):
        interop.context("ocl:7")
    with pytest.raises(ValueError, match="cpu"):
        interop.queue("cpu")
