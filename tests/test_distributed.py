"""Collectives in several processes: on the device they do what they do on the CPU. What each process does is in
distributed_checks.py."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import cast

import distributed_checks
import pytest
import torch
from ranks import Said, ranks, run_checks, where_they_hang

import torchgraft
from torchgraft import _C, distributed

CHECKS = Path(distributed_checks.__file__)


@pytest.fixture(
    scope="module", params=[(2, "graft", ""), (3, "", ""), (2, "graft", "1")], ids=["two", "three", "staged"]
)
def said(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Said:
    """For each check, what each rank said; nothing, where it did not fail."""
    count, backend, staged = request.param
    told = {"CHECKS_BACKEND": backend, "TORCHGRAFT_DISTRIBUTED_STAGED": staged}
    return run_checks(count, CHECKS, distributed_checks.check, tmp_path_factory.mktemp("ranks"), **told)


@pytest.fixture(autouse=True)
def _device(device: str) -> None:
    if device in ("npy", "cxx", "c"):
        pytest.skip("other processes find a device that is installed")


@pytest.mark.quick(said=(2, "graft", ""))
@pytest.mark.parametrize("check", distributed_checks.check)
def test_in_each_process(said: Said, check: str) -> None:
    assert "".join(said[check]) == ""


def test_its_name_is_known() -> None:
    backend = torch.distributed.Backend
    name = torch._C._get_privateuse1_backend_name()
    assert backend.default_device_backend_map[name] == distributed.NAME
    assert backend.backend_capability[distributed.NAME] == ["cpu", name]


@pytest.mark.thorough
def test_programs_for_the_cpu_are_as_they_were(tmp_path: Path) -> None:
    """Without a backend's name, too; and no device is opened for them."""
    program = tmp_path / "program.py"
    program.write_text("""
import torch, torch.distributed as dist
dist.init_process_group()
x = torch.ones(3)
dist.all_reduce(x)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
model(torch.ones(1, 2)).sum().backward()
print(x.tolist(), torch.get_device_module().is_initialized())
dist.destroy_process_group()
""")
    with ranks(1, program) as (process,):
        output = process.output(timeout=120)
    assert "[1.0, 1.0, 1.0] False" in output


@pytest.mark.thorough
def test_groups_of_two_backends_end_in_silence(device: str, tmp_path: Path) -> None:
    """Groups made of the first one, too."""
    program = tmp_path / "program.py"
    program.write_text(f"""
import torch, torch.distributed as dist
dist.init_process_group("cpu:gloo,{torch.device(device).type}:graft")
other = dist.new_group([0, 1])
for group in (None, other):
    here, there = torch.ones(3), torch.ones(3, device={device!r})
    dist.all_reduce(here, group=group)
    dist.all_reduce(there, group=group)
    dist.barrier(group=group)
    assert here.tolist() == there.tolist() == [2.0, 2.0, 2.0]
dist.destroy_process_group(other)
dist.destroy_process_group()
print("end")
""")
    with ranks(2, program) as processes:
        assert [process.output(timeout=120) for process in processes] == ["end\n", "end\n"]


def test_a_rank_that_dies_is_told_to_the_others(device: str, tmp_path: Path) -> None:
    program = tmp_path / "dies.py"
    program.write_text(f"""
import os, datetime, torch, torch.distributed as dist
dist.init_process_group("graft", timeout=datetime.timedelta(seconds=20))
x = torch.ones(4, device={device!r})
dist.all_reduce(x)
if dist.get_rank() == 1:
    os._exit(3)
try:
    dist.all_reduce(x)
except RuntimeError as error:
    print("told:", str(error).splitlines()[0])
y = torch.ones(3, device={device!r}) + 1
print(y.tolist())
os._exit(0)
""")
    with ranks(2, program) as processes:
        output = processes[0].output(timeout=120)
    assert "told:" in output and "[2.0, 2.0, 2.0]" in output


def test_a_rank_that_tries_again() -> None:
    """To make a group that the others have not come to: they find each other then."""
    store = torch.distributed.HashStore()
    store.set_timeout(timedelta(seconds=1))
    with pytest.raises(torch.distributed.DistStoreError, match="rank 1 has not come"):
        distributed._make(store, 0, 2, timedelta(seconds=1))
    store.set_timeout(timedelta(seconds=60))

    def run(rank: int) -> list[float]:
        x = torch.full((2,), rank + 1.0)
        distributed._make(store, rank, 2, timedelta(seconds=60)).allreduce([x]).wait()
        return cast("list[float]", x.tolist())

    for _ in range(2):  # and again, in the same store
        with ThreadPoolExecutor(2) as threads:
            assert list(threads.map(run, range(2))) == [[3.0, 3.0]] * 2


def test_a_check_that_hangs_is_named() -> None:
    said = [{"first": "", "second": ""}, {"first": "wrong"}]
    assert where_they_hang(["first", "second"], said) == "rank 1 hangs in second"


def test_a_backend_for_something_else() -> None:
    with pytest.raises(TypeError):
        _C.distributed_backend(object(), None, "graft")
    assert torchgraft.distributed is distributed


@pytest.mark.quick(count=3)
@pytest.mark.parametrize("count", [2, 3])
def test_a_network_of_the_devices_own(count: int, tmp_path: Path) -> None:
    """A driver that offers collectives is asked for them; what it cannot do goes through the host."""
    told = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "NETWORK_FOLDER": str(tmp_path)}
    with ranks(count, CHECKS.with_name("network_driver.py"), **told) as processes:
        for rank, process in enumerate(processes):
            printed = process.output(timeout=120)
            assert process.returncode == 0, printed
            assert f"rank {rank} of {count}: right, {2**count}" in printed


@pytest.mark.thorough
def test_devices_of_several_drivers(tmp_path: Path) -> None:
    """In one process and across: each rank computes on the device of another driver."""
    program = tmp_path / "program.py"
    program.write_text("""
import os, torch, torch.distributed as dist, torchgraft
from cxx_driver import CxxDriver
from numpy_driver import NumpyDriver
torchgraft.register("mix", [NumpyDriver(devices=1), CxxDriver()])
torchgraft.fallback.set_mode("silent")
dist.init_process_group()
rank = dist.get_rank()
assert torch.mix.device_count() >= 2
for turn in range(2):
    device = f"mix:{(rank + turn) % 2}"
    x = torch.full((5,), rank + 1.0, device=device)
    dist.all_reduce(x)
    gathered = [torch.empty(5, device=device) for _ in range(2)]
    dist.all_gather(gathered, x * rank)
    print(x.tolist(), [each[0].item() for each in gathered])
dist.destroy_process_group()
""")
    with ranks(2, program, TORCH_DEVICE_BACKEND_AUTOLOAD="0") as processes:
        for process in processes:
            printed = process.output(timeout=120)
            assert process.returncode == 0, printed
            assert printed.splitlines() == ["[3.0, 3.0, 3.0, 3.0, 3.0] [0.0, 3.0]"] * 2
