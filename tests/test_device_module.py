"""`torch.<name>`, as one knows it from `torch.cuda`, and `torch.accelerator`, which must agree with it."""

from __future__ import annotations

import threading
from types import ModuleType

import pytest
import torch
from conftest import Script

MIB = 1 << 20


@pytest.fixture
def module(device: str) -> ModuleType:
    """The module under test."""
    return torch.get_device_module(device)


def test_it_is_a_module(module: ModuleType, device: str) -> None:
    name = torch.device(device).type
    assert getattr(torch, name) is module
    assert module.__name__ == f"torch.{name}"
    assert set(module.__all__) <= set(dir(module))
    assert torch.accelerator.current_accelerator() == torch.device(name)


def test_devices(module: ModuleType, device: str) -> None:
    assert module.is_available() is True
    assert module.device_count() == torch.accelerator.device_count() >= 1
    assert module.is_initialized()
    assert module._initialized is True
    assert module.current_device() == torch.accelerator.current_device_index()
    module.synchronize()
    module.synchronize(device)
    with pytest.raises(RuntimeError, match="no such device"):
        module.synchronize(99)
    with pytest.raises(ValueError, match="Expected a"):
        module.synchronize("cpu")


def test_properties(module: ModuleType, device: str) -> None:
    properties = module.get_device_properties(device)
    assert properties.name == module.get_device_name() != ""
    assert properties.total_memory > 0
    assert properties.multi_processor_count >= 1
    assert properties.driver != ""
    assert torch.float32 in module.get_device_capability()["supported_dtypes"]
    with pytest.raises(RuntimeError, match="no such device"):
        module.get_device_properties(99)


def test_the_current_device_inside_with(module: ModuleType, device: str) -> None:
    before = module.current_device()
    with module.device(device):
        assert torch.empty(1, device=torch.device(device).type).device.index == module.current_device()
    with module.device(None), module.device_of(torch.ones(1)), module.device_of(torch.ones(1, device=device)):
        assert module.current_device() == before
    with pytest.raises(RuntimeError, match="no such device"), module.device(99):
        pass
    assert module.current_device() == before


def test_two_devices(script: Script) -> None:
    script("""
        import threading
        import torch, torchgraft
        from numpy_driver import NumpyDriver

        npy = torchgraft.register("npy", [NumpyDriver(devices=2)])
        with npy.device(1):
            assert npy.current_device() == 1 and torch.empty(1, device="npy").device == torch.device("npy:1")
            with npy.device_of(torch.empty(1, device="npy:0")):
                assert npy.current_device() == 0
            assert npy.current_device() == 1
            assert npy.current_stream().device.index == 1
        assert npy.current_device() == 0

        npy.set_device("npy:1")
        seen = []
        thread = threading.Thread(target=lambda: seen.append(npy.current_device()))
        thread.start(); thread.join()
        assert seen == [0] and npy.current_device() == 1

        with npy.stream(npy.Stream(device=0)):  # a stream brings its device with it
            assert npy.current_device() == 0
        assert npy.current_device() == 1

        torch.manual_seed(3)
        states = npy.get_rng_state_all()
        assert len(states) == 2 and torch.equal(states[0], states[1])
        npy.manual_seed(4)
        assert not torch.equal(npy.get_rng_state(0), npy.get_rng_state(1))

        x = torch.empty(1 << 20, dtype=torch.uint8, device="npy:1")
        assert npy.memory_allocated() == npy.memory_allocated("npy:1") == 1 << 20 and npy.memory_allocated(0) == 0
    """)


def test_streams(module: ModuleType, device: str) -> None:
    assert issubclass(module.Stream, torch.Stream)
    assert issubclass(module.Event, torch.Event)
    default, side = module.current_stream(), module.Stream(priority=-1)
    assert default == module.default_stream() == torch.accelerator.current_stream()
    assert isinstance(default, module.Stream)
    assert default != side
    with module.stream(side):
        assert module.current_stream() == side
        x = torch.full((1000,), 3.0, device=device)
        with module.stream(None):
            assert module.current_stream() == side
    assert module.current_stream() == default
    default.wait_stream(side)
    assert x.cpu().sum() == 3000
    module.set_stream(side)
    assert module.current_stream() == side
    module.set_stream(default)
    side.synchronize()
    assert side.query()
    assert f"torch.{torch.device(device).type}.Stream" in repr(side)


def test_the_current_stream_belongs_to_the_thread(module: ModuleType) -> None:
    seen = []
    with module.stream(module.Stream()):
        thread = threading.Thread(target=lambda: seen.append(module.current_stream()))
        thread.start()
        thread.join()
    assert seen == [module.default_stream()]


def test_events(module: ModuleType, device: str) -> None:
    begin, end = module.Event(enable_timing=True), module.Event(enable_timing=True)
    assert begin.record() is begin
    x = torch.ones(1 << 16, device=device)
    for _ in range(3):
        x = x.clone()
    side = module.Stream()
    end.record()
    end.wait(side)
    side.wait_event(end)
    side.synchronize()
    assert end.query()
    end.synchronize()
    assert begin.elapsed_time(end) > 0
    assert isinstance(side.record_event(), torch.Event)


def test_memory(module: ModuleType, device: str) -> None:
    module.synchronize()
    module.empty_cache()
    before = module.memory_allocated()
    module.reset_peak_memory_stats()
    x = torch.empty(4 * MIB, dtype=torch.uint8, device=device)
    assert module.memory_allocated() - before == 4 * MIB
    del x
    assert module.memory_allocated() == before == torch.accelerator.memory_allocated()
    assert module.max_memory_allocated() - before == 4 * MIB
    assert module.max_memory_reserved() >= module.memory_reserved() >= 4 * MIB
    module.empty_cache()
    assert module.memory_reserved() < 4 * MIB + before
    assert module.memory_stats()["allocated_bytes.all.current"] == before
    module.reset_accumulated_memory_stats()
    assert module.memory_stats()["allocated_bytes.all.allocated"] == 0
    free, total = module.mem_get_info()
    assert 0 < free <= total
    summary = module.memory_summary()
    assert f"memory of {torch.device(device).type}:" in summary
    assert "out of memory: 0" in summary


def test_a_limit_to_memory(module: ModuleType, device: str) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        module.set_per_process_memory_fraction(1.5)
    module.set_per_process_memory_fraction(0.0)
    try:
        module.empty_cache()
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(64 * MIB, dtype=torch.uint8, device=device)
    finally:
        module.set_per_process_memory_fraction(1.0)
    torch.empty(MIB, dtype=torch.uint8, device=device)


def test_random_state(module: ModuleType) -> None:
    torch.manual_seed(7)
    assert module.initial_seed() == 7
    state = module.get_rng_state()
    assert state.device.type == "cpu"
    assert state.dtype == torch.uint8
    assert state.numel() == 16
    module.manual_seed_all(8)
    assert module.default_generators[module.current_device()].initial_seed() == 8
    module.set_rng_state(state)
    assert torch.equal(module.get_rng_state(), state)
    module.set_rng_state_all(module.get_rng_state_all())
    module.seed()
    module.seed_all()
    assert module.initial_seed() != 7


def test_fork_rng_restores_the_device(module: ModuleType, device: str) -> None:
    torch.manual_seed(5)
    state = module.get_rng_state()
    with torch.random.fork_rng(devices=[module.current_device()], device_type=torch.device(device).type):
        torch.manual_seed(6)
        assert module.initial_seed() == 6
    assert torch.equal(module.get_rng_state(), state)


def test_seeding_before_the_first_use_is_remembered(script: Script) -> None:
    script("""
        import torch, torchgraft
        from numpy_driver import NumpyDriver

        npy = torchgraft.register("npy", [NumpyDriver()])
        torch.manual_seed(11)
        npy.manual_seed(12)
        assert not npy.is_initialized()
        assert [each.initial_seed() for each in npy.default_generators] == [12, 11]
        assert npy.is_initialized()
    """)


def test_mixed_precision(module: ModuleType, device: str) -> None:
    name = torch.device(device).type
    assert set(module.get_amp_supported_dtype()) >= {torch.float16, torch.bfloat16}
    assert module.is_bf16_supported()
    assert torch.amp.is_autocast_available(name)
    assert not module.is_autocast_enabled()
    with torch.autocast(name, dtype=torch.bfloat16):
        assert module.is_autocast_enabled()
        assert module.get_autocast_dtype() == torch.bfloat16
    module.set_autocast_enabled(False)
    module.set_autocast_dtype(torch.float16)


def test_fork_after_first_use(script: Script) -> None:
    """The child gets an error that says what to do; it does not hang, and the CPU still works there."""
    printed = script(
        """
        import os, torch
        torch.ones(2, device="ocl")
        if (child := os.fork()) == 0:
            assert torch.ocl._is_in_bad_fork() and not torch.ocl.is_initialized()
            torch.manual_seed(1)
            assert torch.ones(2).sum() == 2
            for use in (lambda: torch.ones(2, device="ocl"), lambda: torch.ocl.synchronize()):
                try:
                    use()
                except RuntimeError as error:
                    print(error, flush=True)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert torch.ones(2, device="ocl").cpu().sum() == 2
        """,
        autoload=True,
    )
    assert printed.count("in forked subprocess") == 2
    assert printed.count("'spawn'") == 2


def test_fork_before_first_use(script: Script) -> None:
    script(
        """
        import os, torch
        if (child := os.fork()) == 0:
            assert torch.ones(2, device="ocl").cpu().sum() == 2
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert torch.ones(2, device="ocl").cpu().sum() == 2
        """,
        autoload=True,
    )
