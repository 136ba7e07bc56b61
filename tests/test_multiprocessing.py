"""Tensors of the device in other processes: queues, arguments, DataLoader workers, started by spawn and by fork."""

from __future__ import annotations

import gc
import multiprocessing
import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp
from conftest import Script
from torch.utils.data import DataLoader, Dataset

from torchgraft.serialization import backend_meta, set_backend_meta

pytestmark = pytest.mark.filterwarnings(
    "ignore:.* runs on the CPU",
    "ignore:.*use of fork",
    "ignore:.*pin_memory_device",
    "ignore:.*multi-threaded",
    "ignore:TypedStorage is deprecated",
)

FIELDS = {"layout": "nz", "version": 3}
SECONDS = 120

# A spawned process reads this module before it reads what it is sent: here it registers the backend, as a user's main
# module does by importing the backend's package.
if multiprocessing.current_process().name != "MainProcess":
    if os.environ.get("TORCHGRAFT_TEST_DEVICE") == "npy":
        from numpy_driver import NumpyDriver

        import torchgraft

        torchgraft.register("npy", [NumpyDriver()])
    else:
        import torchgraft_opencl

        torchgraft_opencl.register()


def describe(tensor: torch.Tensor) -> dict[str, Any]:
    """What a tensor is, without anything of the device."""
    return {
        "device": str(tensor.device),
        "type": type(tensor).__name__,
        "dtype": tensor.dtype,
        "values": tensor.detach().cpu().tolist(),
        "stride": tensor.stride(),
        "offset": tensor.storage_offset(),
        "requires_grad": tensor.requires_grad,
        "conj": tensor.is_conj(),
        "fields": backend_meta(tensor),
    }


# ---- what the other processes run ----


def describe_each(received: Any, answers: Any) -> None:
    while (tensors := received.get()) is not None:
        first = tensors[0]
        before = [describe(tensor) for tensor in tensors]
        if first.numel() and not first.requires_grad and not first.is_conj():
            first.zero_()
        answers.put((before, [tensor.detach().cpu().tolist() for tensor in tensors]))


def send_back(answers: Any, done: Any, device: str) -> None:
    tensor = torch.arange(6.0, device=device).view(2, 3)
    set_backend_meta(tensor, FIELDS)
    answers.put([tensor, tensor[1], torch.nn.Parameter(tensor)])
    assert done.wait(SECONDS)


def describe_arguments(tensor: torch.Tensor, module: torch.nn.Module, answers: Any) -> None:
    answers.put((describe(tensor), [describe(parameter) for parameter in module.parameters()]))


def describe_what_is_inherited(tensor: torch.Tensor, answers: Any) -> None:
    try:
        answers.put(tensor.cpu().tolist())
    except RuntimeError as error:
        answers.put(str(error))


def receive_in_a_fork(received: Any, answers: Any) -> None:
    try:
        received.get(timeout=SECONDS)
    except RuntimeError as error:
        answers.put(str(error))


def double(rank: int, tensor: torch.Tensor, answers: Any) -> None:
    answers.put((rank, (tensor * 2).cpu().tolist()))


class Numbers(Dataset[Any]):
    """The squares of its indices, on a device or the CPU."""

    def __init__(self, device: str) -> None:
        self.squares = torch.arange(32.0, device=device) ** 2

    def __len__(self) -> int:
        return len(self.squares)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.squares[index]


def sum_of(batches: list[torch.Tensor], device: str) -> float:
    return sum(batch.to(device, non_blocking=True).sum().item() for batch in batches)


TOTAL = float(sum(each * each for each in range(32)))


# ---- queues ----


@pytest.fixture(scope="module")
def describer(device: str) -> Iterator[Any]:
    """A spawned process that tells of each list of tensors that it is sent: as it came, and with the first set to 0."""
    context = mp.get_context("spawn")
    received, answers = context.Queue(), context.Queue()
    process = context.Process(target=describe_each, args=(received, answers), daemon=True)
    process.start()

    def ask(*tensors: torch.Tensor) -> tuple[list[dict[str, Any]], list[Any]]:
        received.put(list(tensors))
        return answers.get(timeout=SECONDS)

    yield ask
    received.put(None)
    process.join(SECONDS)
    assert process.exitcode == 0


@pytest.mark.thorough
def test_tensors_arrive_as_they_were(device: str, describer: Any) -> None:
    base = torch.arange(24.0, device=device).view(4, 6)
    numbers = torch.tensor([1 + 2j, 3 - 1j], device=device)
    with_fields = base.clone()
    set_backend_meta(with_fields, FIELDS)
    sent = [
        base[1:, ::2],
        base.t(),
        base[2, 3],
        base[:0],
        torch.empty(0, device=device),
        base.to(torch.bfloat16),
        base > 3,
        numbers.conj(),
        torch.ones(2, device=device, requires_grad=True),
        torch.nn.Parameter(torch.arange(3, device=device), requires_grad=False),
        with_fields,
        torch.nn.Parameter(with_fields),
    ]
    for tensor in sent:
        expected = describe(tensor)
        ((arrived,), _) = describer(tensor)
        assert arrived == expected
        assert describe(tensor) == expected  # what the other process did to its copy is not seen here


def test_views_sent_together_share_memory_there(device: str, describer: Any) -> None:
    base = torch.arange(4.0, device=device)
    before, after = describer(base[1:3], base, base.clone())
    assert [each["values"] for each in before] == [[1, 2], [0, 1, 2, 3], [0, 1, 2, 3]]
    assert after == [[0, 0], [0, 0, 0, 3], [0, 1, 2, 3]]


def test_work_of_any_stream_is_done_before_it_is_sent(device: str, describer: Any) -> None:
    stream = torch.Stream(device=torch.device(device).type)
    with stream:
        tensor = torch.ones(200_000, device=device).cumsum(0)[-3:]
        ((arrived,), _) = describer(tensor.clone())
    assert arrived["values"] == [199_998, 199_999, 200_000]


def test_tensors_on_the_cpu_are_shared_as_ever(device: str, describer: Any) -> None:
    tensor = torch.arange(3.0)
    received = mp.get_context("spawn").SimpleQueue()
    received.put(tensor)
    received.get().fill_(5)
    assert tensor.tolist() == [5, 5, 5] and tensor.is_shared()


def test_what_autograd_does_not_let_go(device: str) -> None:
    queue = mp.get_context("spawn").SimpleQueue()
    with pytest.raises(RuntimeError, match="non-leaf"):
        queue.put(torch.ones(2, device=device, requires_grad=True) * 2)


def test_storages(device: str) -> None:
    queue = mp.get_context("spawn").SimpleQueue()
    tensor = torch.arange(4, dtype=torch.int16, device=device)
    for storage in (tensor.untyped_storage(), tensor._typed_storage()):
        queue.put(storage)
        arrived = queue.get()
        assert type(arrived) is type(storage) and arrived.device == tensor.device
        assert arrived.tolist() == storage.tolist()


@pytest.mark.parametrize("strategy", sorted(mp.get_all_sharing_strategies()))
def test_each_way_of_sharing_host_memory(device: str, strategy: str) -> None:
    queue = mp.get_context("spawn").SimpleQueue()
    usual = mp.get_sharing_strategy()
    mp.set_sharing_strategy(strategy)
    try:
        queue.put([torch.arange(3.0, device=device), torch.empty(0, device=device)])
        full, empty = queue.get()
    finally:
        mp.set_sharing_strategy(usual)
    assert full.tolist() == [0, 1, 2] and empty.shape == (0,) and full.device == empty.device


def test_a_device_that_the_receiver_has_not(script: Script) -> None:
    script("""
        import pickle, torch
        from multiprocessing.reduction import ForkingPickler
        from torchgraft.device_module import multiprocessing as ours

        try:
            ours._rebuild_storage(torch.UntypedStorage(4), "npy", 1)
        except RuntimeError as error:
            assert "npy:1" in str(error) and "without the backend 'npy'" in str(error), error
        else:
            raise AssertionError

        import torchgraft
        from numpy_driver import NumpyDriver

        torchgraft.register("npy", [NumpyDriver(devices=3)])
        sent = bytes(ForkingPickler.dumps(torch.arange(3.0, device="npy:2")))
        assert str(pickle.loads(sent).device) == "npy:2"
        count = torch.npy.device_count()
        try:
            ours._rebuild_storage(torch.UntypedStorage(4), "npy", count)
        except RuntimeError as error:
            assert f"npy:{count}" in str(error), error
        else:
            raise AssertionError
    """)


# ---- processes ----


def test_from_a_spawned_process(device: str) -> None:
    context = mp.get_context("spawn")
    answers, done = context.Queue(), context.Event()
    process = context.Process(target=send_back, args=(answers, done, device))
    process.start()
    tensor, row, parameter = answers.get(timeout=SECONDS)
    done.set()
    process.join(SECONDS)
    assert process.exitcode == 0
    assert tensor.tolist() == [[0, 1, 2], [3, 4, 5]] and backend_meta(tensor) == FIELDS == backend_meta(parameter)
    assert isinstance(parameter, torch.nn.Parameter) and parameter.requires_grad
    row.zero_()
    assert tensor.tolist() == [[0, 1, 2], [0, 0, 0]] == parameter.tolist()


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.quick(method="spawn")
def test_arguments_of_a_process(device: str, method: str) -> None:
    context = mp.get_context(method)
    answers = context.Queue()
    module = torch.nn.Linear(2, 2).to(device)
    process = context.Process(target=describe_arguments, args=(torch.arange(4.0, device=device)[1:], module, answers))
    process.start()
    tensor, parameters = answers.get(timeout=SECONDS)
    process.join(SECONDS)
    assert process.exitcode == 0
    assert tensor["values"] == [1, 2, 3] and torch.device(tensor["device"]).type == torch.device(device).type
    assert parameters == [describe(parameter) for parameter in module.parameters()]


@pytest.mark.thorough
def test_spawn(device: str) -> None:
    answers = mp.get_context("spawn").Queue()
    mp.spawn(double, args=(torch.arange(3.0, device=device), answers), nprocs=2)
    assert sorted(answers.get(timeout=SECONDS) for _ in range(2)) == [(0, [0, 2, 4]), (1, [0, 2, 4])]


def test_fork_children_are_told_what_to_do(device: str) -> None:
    """An inherited tensor, and one that is sent: the device's threads and queues are not in a forked child."""
    context = mp.get_context("fork")
    tensor = torch.arange(3.0, device=device)
    answers, received = context.Queue(), context.Queue()
    for target, first in ((describe_what_is_inherited, tensor), (receive_in_a_fork, received)):
        process = context.Process(target=target, args=(first, answers))
        process.start()
        if first is received:
            received.put(tensor)
        assert "spawn" in answers.get(timeout=SECONDS)
        process.join(SECONDS)
        assert process.exitcode == 0


# ---- data loaders ----


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("pin_memory", [False, True], ids=["pageable", "pinned"])
@pytest.mark.quick(method="fork")
@pytest.mark.quick(method="spawn", pin_memory=True)
def test_workers_that_use_the_cpu(device: str, method: str, pin_memory: bool) -> None:
    torch.ones(1, device=device)  # it is in use when the workers start
    loader = DataLoader(
        Numbers("cpu"), batch_size=8, num_workers=2, multiprocessing_context=method, pin_memory=pin_memory
    )
    batches = list(loader)
    assert all(batch.is_pinned() == pin_memory for batch in batches)
    assert sum_of(batches, device) == TOTAL


def test_pinning_for_this_device(device: str) -> None:
    loader = DataLoader(Numbers("cpu"), batch_size=8, pin_memory=True, pin_memory_device=torch.device(device).type)
    batches = list(loader)
    assert all(batch.is_pinned() for batch in batches)
    assert sum_of(batches, device) == TOTAL


@pytest.mark.thorough
def test_workers_that_use_the_device(device: str) -> None:
    loader = DataLoader(Numbers(device), batch_size=8, num_workers=2, multiprocessing_context="spawn")
    batches = list(loader)
    assert all(batch.device.type == torch.device(device).type for batch in batches)
    assert sum_of(batches, device) == TOTAL


@pytest.mark.thorough
def test_fork_workers_that_use_the_device(device: str) -> None:
    loader = DataLoader(Numbers(device), batch_size=8, num_workers=2, multiprocessing_context="fork")
    with pytest.raises(RuntimeError, match="spawn"):
        list(loader)
    gc.collect()  # ends the workers, which hold pipes of the process that they were forked from
