"""`torch.<name>`, as one knows it from `torch.cuda`, and `torch.accelerator`, which must agree with it."""

from __future__ import annotations

import re
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch
from conftest import Script
from torch._subclasses.fake_tensor import FakeTensorMode

from torchgraft import _core
from torchgraft._version import TORCH_BELOW

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


def names_without_meaning() -> set[str]:
    """The names in the table of docs/device-module.md that says what is not there, in this torch."""
    page = (Path(__file__).parent.parent / "docs" / "device-module.md").read_text()
    rows = page[page.index("## What is not there") :].splitlines()
    newer = [f"(from 2.{minor} on)" for minor in range(_core.minor(torch.__version__)[1] + 1, TORCH_BELOW[1])]
    cells = [row.split("|")[1] for row in rows if row.startswith("| `") and not any(told in row for told in newer)]
    return {name for cell in cells for name in re.findall("`([^`]+)`", cell)}


@pytest.mark.parametrize("other", ["cuda", "xpu", "mps", "mtia", "accelerator"])
def test_every_name_of_the_other_modules_has_been_thought_about(module: ModuleType, other: str) -> None:
    theirs = set(getattr(torch, other).__all__)
    assert theirs - set(module.__all__) - names_without_meaning() == set()


def test_what_is_said_not_to_be_there_is_not(module: ModuleType) -> None:
    absent = names_without_meaning()
    assert len(absent) > 60
    assert absent.isdisjoint(dir(module))
    modules = (torch.cuda, torch.xpu, torch.mps, torch.mtia, torch.accelerator)
    assert absent <= {name for each in modules for name in each.__all__}  # nothing torch no longer has


def test_devices(module: ModuleType, device: str) -> None:
    assert module.is_available() is True
    assert module.device_count() == torch.accelerator.device_count() >= 1
    assert module.is_initialized()
    assert module._initialized is True
    assert module.current_device() == torch.accelerator.current_device_index()
    module.synchronize()
    module.synchronize(device)
    with pytest.raises(RuntimeError, match="device index is out of range"):
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
    for index in (99, -1):
        with pytest.raises(AssertionError, match="Invalid device id"):
            module.get_device_properties(index)


def test_the_current_device_inside_with(module: ModuleType, device: str) -> None:
    before = module.current_device()
    with module.device(device):
        assert torch.empty(1, device=torch.device(device).type).device.index == module.current_device()
    with module.device(None), module.device_of(torch.ones(1)), module.device_of(torch.ones(1, device=device)):
        assert module.current_device() == before
    with pytest.raises(RuntimeError, match="device index is out of range"), module.device(99):
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
    before, reserved = module.memory_allocated(), module.memory_reserved()  # constants of cached plans stay
    module.reset_peak_memory_stats()
    x = torch.empty(4 * MIB, dtype=torch.uint8, device=device)
    assert module.memory_allocated() - before == 4 * MIB
    del x
    assert module.memory_allocated() == before == torch.accelerator.memory_allocated()
    assert module.max_memory_allocated() - before == 4 * MIB
    assert module.max_memory_reserved() >= module.memory_reserved() >= 4 * MIB
    module.empty_cache()
    assert module.memory_reserved() <= reserved
    assert module.memory_stats()["allocated_bytes.all.current"] == before
    module.reset_accumulated_memory_stats()
    assert module.memory_stats()["allocated_bytes.all.allocated"] == 0
    free, total = module.mem_get_info()
    assert 0 < free <= total
    summary = module.memory_summary()
    assert f"memory of {torch.device(device).type}:" in summary
    assert "out of memory: 0" in summary


def test_nested_statistics(module: ModuleType, device: str) -> None:
    x = torch.empty(MIB, dtype=torch.uint8, device=device)
    nested, flat = module.memory_stats_as_nested_dict(), module.memory_stats()
    assert nested["allocated_bytes"]["all"]["current"] == flat["allocated_bytes.all.current"] >= x.nbytes
    assert list(flat) == sorted(flat)
    assert flat == torch.accelerator.memory_stats()


def test_pinned_memory_is_counted(module: ModuleType) -> None:
    torch.accelerator.empty_host_cache()
    module.reset_peak_host_memory_stats()
    module.reset_accumulated_host_memory_stats()
    before = module.host_memory_stats()
    x = torch.empty(3 * MIB, dtype=torch.uint8, pin_memory=True)
    stats = module.host_memory_stats()
    assert stats["active_bytes.current"] - before["active_bytes.current"] >= x.nbytes
    assert stats["num_host_alloc"] == before["num_host_alloc"] + 1
    assert stats["host_alloc_time.count"] == before["host_alloc_time.count"] + 1
    assert stats["host_alloc_time.max"] >= stats["host_alloc_time.avg"] > 0
    assert module.host_memory_stats_as_nested_dict()["allocations"]["current"] == stats["allocations.current"]
    del x
    torch.accelerator.empty_host_cache()
    assert module.host_memory_stats()["host_free_time.count"] > before["host_free_time.count"]


def test_older_names_warn(module: ModuleType) -> None:
    for older, newer in (("memory_cached", "memory_reserved"), ("max_memory_cached", "max_memory_reserved")):
        with pytest.warns(FutureWarning, match=newer):
            assert getattr(module, older)() == getattr(module, newer)()
    for older in ("reset_max_memory_allocated", "reset_max_memory_cached"):
        with pytest.warns(FutureWarning, match="reset_peak_memory_stats"):
            getattr(module, older)()


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (lambda m: m.set_device("cpu"), ValueError),
        (lambda m: m.set_device(None), ValueError),
        (lambda m: m.set_device(m.__name__.removeprefix("torch.")), ValueError),
        (lambda m: m.set_device(99), RuntimeError),
        (lambda m: m.set_device("nonsense"), RuntimeError),
        (lambda m: m.set_device(1.5), TypeError),
        (lambda m: m.device("cpu"), ValueError),
        (lambda m: m.device("cuda:0"), ValueError),
        (lambda m: m.synchronize("cpu"), ValueError),
        (lambda m: m.synchronize(99), RuntimeError),
        (lambda m: m.current_stream(9), RuntimeError),
        (lambda m: m.current_stream("cpu"), ValueError),
        (lambda m: m.default_stream(9), RuntimeError),
        (lambda m: m.Stream(device="cpu"), ValueError),
        (lambda m: m.Stream(device=99), RuntimeError),
        (lambda m: m.memory_allocated("cpu"), ValueError),
        (lambda m: m.memory_stats(99), RuntimeError),
        (lambda m: m.reset_peak_memory_stats(99), RuntimeError),
        (lambda m: m.mem_get_info(99), RuntimeError),
        (lambda m: m.set_per_process_memory_fraction(0.5, 99), RuntimeError),
        (lambda m: m.set_per_process_memory_fraction("half"), TypeError),
        (lambda m: m.set_per_process_memory_fraction(-0.5), ValueError),
        (lambda m: m.get_device_name(99), AssertionError),
        (lambda m: m.get_device_properties("cpu"), ValueError),
        (lambda m: m.get_rng_state(99), IndexError),
        (lambda m: m.set_rng_state(torch.zeros(16, dtype=torch.uint8), 99), IndexError),
        (lambda m: m.get_rng_state("cpu"), ValueError),
        (lambda m: m.get_rng_state(1.5), TypeError),
    ],
)
def test_what_is_no_device_of_ours(
    module: ModuleType, call: Callable[[ModuleType], object], kind: type[Exception]
) -> None:
    before = module.current_device()
    with pytest.raises(kind):
        call(module)
    assert module.current_device() == before


def test_a_negative_number_is_the_current_device(module: ModuleType) -> None:
    module.set_device(-1)
    module.synchronize(-1)
    assert module.current_stream(-1) == module.current_stream()
    assert module.memory_stats(-1) == module.memory_stats()
    with module.device(-1):
        assert module.current_device() == 0
    assert module.Stream(device=-1).device.index == 0


def test_what_works_before_the_first_use(script: Script) -> None:
    """Each asked of a module whose device has not been opened, and none of these opens it."""
    script("""
        import torch, torchgraft
        from numpy_driver import NumpyDriver

        class Watched(NumpyDriver):
            def stream_create(self, *args):
                raise AssertionError("the device was used")

        npy = torchgraft.register("npy", [Watched()])
        assert npy.is_available() and npy.device_count() == 2
        assert npy.memory_allocated() == npy.max_memory_reserved() == 0
        assert npy.memory_stats() == npy.memory_stats_as_nested_dict() == npy.host_memory_stats() == {}
        assert npy.memory_snapshot() == []
        assert "out of memory: 0" in npy.memory_summary()
        npy.empty_cache(); npy.reset_peak_memory_stats(); npy.reset_accumulated_memory_stats()
        npy.manual_seed(1); npy.manual_seed_all(2); npy.seed(); npy.seed_all(); torch.manual_seed(5); torch.seed()
        npy.set_rng_state(torch.arange(16, dtype=torch.uint8))
        assert not npy._is_in_bad_fork() and not npy.is_autocast_enabled()
        assert npy.get_amp_supported_dtype() and npy.is_bf16_supported()
        assert torch.accelerator.is_available() and torch.accelerator.device_count() == 2
        assert torch.accelerator.current_accelerator(check_available=True) == torch.device("npy")
        assert torch.get_device_module("npy") is torch.get_device_module() is npy
        assert torch.accelerator.memory_allocated() == 0
        torch.accelerator.empty_cache()
        assert not npy.is_initialized()
        assert npy.get_rng_state().tolist() == list(range(16))
        assert npy.is_initialized()
    """)


FIRST_USES = [
    "npy.current_device() == 0",
    "npy.get_device_name() != ''",
    "npy.get_device_properties(1).total_memory > 0",
    "'supported_dtypes' in npy.get_device_capability()",
    "npy.current_stream() == npy.default_stream()",
    "npy.Stream(device=1).device.index == 1",
    "npy.Event(enable_timing=True).record().query()",
    "npy.mem_get_info()[0] > 0",
    "npy.get_per_process_memory_fraction() == 1.0",
    "npy.synchronize() is None",
    "len(npy.default_generators) == 2",
    "npy.initial_seed() > 0",
    "torch.accelerator.current_stream().stream_id == 0",
    "torch.accelerator.get_memory_info(1)[0] > 0",
    "torch.Stream(device='npy:1').device.index == 1",
    "torch.Event(device='npy').query()",
    "torch.Generator(device='npy:1').device.index == 1",
    "torch.ones(2).npy().is_npy",
    "torch.nn.Linear(2, 2).npy(1).weight.device.index == 1",
    "torch.ones(2).untyped_storage().npy().device.type == 'npy'",
    "torch.ones(2).pin_memory().is_pinned()",
    "torch.UntypedStorage(8, device='npy').nbytes() == 8",
    "torch.ones(2).type('torch.npy.HalfTensor').is_npy",
    "torch.empty(2, device='npy', pin_memory=False).is_npy",
]


@pytest.mark.thorough
def test_any_of_these_may_be_the_first_use(script: Script) -> None:
    """Each in a child of a process that has registered the backend, but not used it."""
    uses = repr(FIRST_USES)
    printed = script(f"""
        import os, sys, torch, torchgraft
        from numpy_driver import NumpyDriver

        torchgraft.fallback.set_mode("silent")
        npy = torchgraft.register("npy", [NumpyDriver()])
        for use in {uses}:
            if (child := os.fork()) == 0:
                try:
                    assert not npy.is_initialized()
                    assert eval(use)
                except BaseException as error:
                    print(f"{{use}}: {{error!r}}", flush=True)
                    os._exit(1)
                os._exit(0)
            if os.waitpid(child, 0)[1] != 0:
                print("failed:", use)
        print("done")
    """)
    assert printed == "done\n"


def test_a_limit_to_memory(module: ModuleType, device: str) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        module.set_per_process_memory_fraction(1.5)
    assert module.get_per_process_memory_fraction() == 1.0
    module.set_per_process_memory_fraction(0.25)
    assert module.get_per_process_memory_fraction(0) == pytest.approx(0.25)
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


def test_random_state_under_fake_tensors(module: ModuleType) -> None:
    """Modes keep states of their own while they are in force."""
    state = module.get_rng_state()
    module.manual_seed(6)
    with FakeTensorMode():
        module.set_rng_state(state)
    assert torch.equal(module.get_rng_state(), state)


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
    assert not module.is_bf16_supported(including_emulation=False)
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


def test_generated_methods(module: ModuleType, device: str) -> None:
    """What `generate_methods_for_privateuse1_backend` promises, and what storages add to it."""
    name = torch.device(device).type
    x = torch.arange(6.0).reshape(2, 3)
    there = getattr(x, name)(0, non_blocking=True)
    assert getattr(there, f"is_{name}")
    assert not getattr(x, f"is_{name}")
    assert there.get_device() == 0
    assert torch.equal(there.cpu(), x)
    assert getattr(there, name)() is there
    with pytest.raises(RuntimeError, match="Invalid device"):
        getattr(x, name)("cpu")
    with pytest.raises(RuntimeError, match="device index is out of range"):
        getattr(x, name)(99)

    linear = getattr(torch.nn.Linear(3, 2), name)()
    assert linear.weight.device.type == name
    assert linear.cpu().weight.device.type == "cpu"

    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(3, 2), torch.ones(2, 2)])
    there_packed = getattr(packed, name)()
    assert getattr(there_packed, f"is_{name}")
    assert not getattr(packed, f"is_{name}")
    assert torch.equal(there_packed.cpu().data, packed.data)

    storage = getattr(x.untyped_storage(), name)()
    assert storage.device.type == name
    assert getattr(storage, f"is_{name}")
    assert storage.tolist() == x.untyped_storage().tolist()


def test_typed_storages(module: ModuleType, device: str) -> None:
    name = torch.device(device).type
    x = torch.arange(1.0, 7.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # they are deprecated
        storage = getattr(x.storage(), name)()
        assert storage.device.type == name
        assert isinstance(storage, module.FloatStorage)
        assert not isinstance(storage, module.HalfStorage)
        assert not isinstance(x.storage(), module.FloatStorage)
        assert storage.type() == f"torch.{name}.FloatStorage"
        made = module.HalfStorage(5)
        assert (made.dtype, made.device.type, made.size()) == (torch.float16, name, 5)
        for convert, dtype in (("double", torch.float64), ("int", torch.int32), ("bool", torch.bool)):
            converted = getattr(storage, convert)()
            assert (converted.dtype, converted.device.type) == (dtype, name)
        assert (storage.size(), storage.nbytes(), storage.element_size()) == (6, 24, 4)
        assert (storage[2], storage.tolist()) == (3.0, x.tolist())
        storage[2] = 9.0
        assert storage.cpu().tolist() == [1, 2, 9, 4, 5, 6]
        storage.copy_(x.storage())
        assert storage.clone().fill_(2.0).tolist() == [2.0] * 6
        assert storage.tolist() == x.tolist()
        storage.resize_(8)
        assert storage.size() == 8


def test_conversions(module: ModuleType, device: str) -> None:
    """Every overload of `to`, `type` and the constructors with a device."""
    name = torch.device(device).type
    x = torch.arange(4.0)
    there = x.to(device)
    for moved in (
        x.to(name),
        x.to(f"{name}:0"),
        x.to(torch.device(name, 0)),
        x.to(0),
        x.to(device=name, non_blocking=True, copy=True, memory_format=torch.preserve_format),
        x.to(there),
        there.to(name, copy=True),
        x.type(f"torch.{name}.FloatTensor"),
        x.type_as(there),
        torch.tensor([0.0, 1, 2, 3], device=name),
        torch.tensor([0.0, 1, 2, 3], device=0),
        torch.as_tensor([0.0, 1, 2, 3], device=f"{name}:0"),
        torch.as_tensor(x, device=name),
        torch.asarray([0.0, 1, 2, 3], device=name),
        there.new_tensor([0.0, 1, 2, 3]),
        there.new([0.0, 1, 2, 3]),
    ):
        assert moved.device == torch.device(name, 0)
        assert moved.dtype == torch.float32
        assert torch.equal(moved.cpu(), x)
    assert there.to(name) is there
    assert there.to(name, torch.float32) is there
    assert there.to(name, copy=True) is not there
    assert there.to(torch.float16).device == there.device
    half = x.to(name, torch.float16)
    assert (half.dtype, half.device.type) == (torch.float16, name)
    assert there.type() == f"torch.{name}.FloatTensor"
    assert half.type() == f"torch.{name}.HalfTensor"
    assert there.type("torch.DoubleTensor").device.type == "cpu"
    assert there.type(torch.int64).dtype == torch.int64
    assert there.cpu().to(name, memory_format=torch.contiguous_format).is_contiguous()
    image = torch.arange(16.0).reshape(1, 2, 2, 4).to(name, memory_format=torch.channels_last)
    assert image.is_contiguous(memory_format=torch.channels_last)
    with pytest.raises(TypeError, match="to numpy"):
        there.numpy()
    assert there.numpy(force=True).tolist() == [0, 1, 2, 3]
    with pytest.raises(RuntimeError, match="device index is out of range"):
        x.to(f"{name}:99")


def test_default_device(device: str) -> None:
    name = torch.device(device).type
    here = torch.device(name, 0)
    assert torch.get_default_device() == torch.device("cpu")
    torch.set_default_device(name)
    try:
        assert torch.get_default_device() == here
        made = (torch.ones(2), torch.tensor([1]), torch.arange(3), torch.randperm(4), torch.nn.Linear(2, 2).weight)
        assert [each.device for each in made] == [here] * 5
        assert torch.ones(2, device="cpu").device.type == "cpu"
        with torch.device("cpu"):
            assert torch.zeros(2).device.type == "cpu"
    finally:
        torch.set_default_device(None)
    assert torch.ones(2).device.type == "cpu"
    with torch.device(name):
        assert torch.zeros(2).device == here
        assert torch.get_default_device() == here
    assert torch.zeros(2).device.type == "cpu"


def test_benchmark_timer_waits_for_the_device(module: ModuleType, device: str) -> None:
    from torch.utils.benchmark import Timer

    x = torch.rand(300, 300, device=device)
    timer = Timer("x @ x", globals={"x": x})
    assert timer.timeit(3).median > 0
    measured = timer.blocked_autorange(min_run_time=0.02)
    assert measured.number_per_run >= 1
    assert module.current_stream().query()
    begin = torch.utils.benchmark.utils.timer.timer()
    timer.timeit(2)
    assert torch.utils.benchmark.utils.timer.timer() > begin


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoint_repeats_random_numbers(device: str, reentrant: bool) -> None:
    """The masks of dropout in the second forward are those of the first."""
    from torch.utils.checkpoint import checkpoint

    masks = []

    def layer(x: torch.Tensor) -> torch.Tensor:
        y = torch.nn.functional.dropout(x, 0.5)
        masks.append((y != 0).detach().cpu())
        return y * y

    x = torch.ones(4096, device=device, requires_grad=True)
    y = checkpoint(layer, x, use_reentrant=reentrant)
    torch.rand(77, device=device)  # numbers drawn in between
    y.sum().backward()
    assert len(masks) == 2
    assert torch.equal(masks[0], masks[1])
    assert torch.equal((x.grad != 0).cpu(), masks[0])
    after = torch.rand(4, device=device)  # and the recomputation leaves the generator as it was
    assert not torch.equal(after.cpu(), torch.rand(4, device=device).cpu())

    masks.clear()
    y = checkpoint(layer, x, use_reentrant=reentrant, preserve_rng_state=False)
    y.sum().backward()
    assert not torch.equal(masks[0], masks[1])


@pytest.mark.thorough
def test_checkpoint_in_a_fresh_process(script: Script) -> None:
    """The device is first used inside the checkpointed function or right before it."""
    script(
        """
        import torch
        from torch.utils.checkpoint import checkpoint
        x = torch.ones(1000, device="ocl", requires_grad=True)
        y = checkpoint(lambda t: torch.nn.functional.dropout(t, 0.5), x, use_reentrant=False)
        y.sum().backward()
        assert torch.equal(x.grad.cpu() != 0, y.detach().cpu() != 0)
        """,
        autoload=True,
    )
