"""A rank that dies, hangs or does something else: the others are told by an exception that names the group, the rank
and the call, and nobody waits for ever. What each process does is in distributed_faults.py."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import distributed_faults
import pytest
import torch
from processes import environment_of
from ranks import free_port, ranks

from torchgraft import distributed

PROGRAM = Path(distributed_faults.__file__)


@pytest.fixture(autouse=True)
def _device(device: str) -> None:
    if device in ("npy", "cxx", "c"):
        pytest.skip("other processes find a device that is installed")


def outcome(device: str, fault: str, ends: int = 2, **environment: str) -> list[list[dict[str, Any]]]:
    """What each of two ranks printed, or only the first ones: the others are not waited for."""
    with ranks(2, PROGRAM, FAULT=fault, CHECKS_DEVICE=device, **environment) as processes:
        outputs = [process.output(timeout=90) for process in processes[:ends]]
    lines = [[json.loads(line) for line in output.splitlines() if line.startswith('{"')] for output in outputs]
    assert any(lines), "\n".join(outputs)
    return lines


def is_told(said: dict[str, Any], call: str, rank: int = 0, count: int = 2) -> bool:
    assert said["error"] == "DistBackendError", said
    assert f"graft: {call} on rank {rank} of {count} in group default_pg" in said["text"], said
    assert said["seconds"] < distributed_faults.TIMEOUT + 15, said
    return True


@pytest.mark.quick(fault=["dies", "hangs"])
@pytest.mark.parametrize(
    ("fault", "call"),
    [("dies", "all_reduce"), ("raises", "broadcast"), ("hangs", "all_gather"), ("hangs_in_a_message", "recv")],
)
def test_the_others_are_told(device: str, fault: str, call: str) -> None:
    ((said,),) = outcome(device, fault, ends=1)
    assert is_told(said, call)
    assert "Rank 1 says nothing" in said["text"] or "does not answer" in said["text"]
    assert ", call " in said["text"] and "float32 [4]" in said["text"]


@pytest.mark.thorough
def test_in_the_middle_of_a_large_tensor(device: str) -> None:
    ((said,),) = outcome(device, "dies_staged", ends=1, TORCHGRAFT_DISTRIBUTED_STAGED="1")
    assert is_told(said, "all_reduce")


@pytest.mark.thorough
def test_after_a_death(device: str) -> None:
    """What is asked for then names its own call, and is not waited for."""
    (said,) = outcome(device, "asks_after_a_death", ends=1)
    for each, call in zip(said[:3], ("all_reduce", "send", "recv"), strict=True):
        assert is_told(each, call)
    assert "Rank 1 says nothing" in said[0]["text"]
    assert "had failed before, in all_reduce, call 2" in said[1]["text"]
    assert said[3]["error"] == "RuntimeError" and "one of them has failed" in said[3]["text"]


def test_the_silent_are_named_first() -> None:
    """Of many ranks a few are named: those that one should look at."""
    store, count = torch.distributed.HashStore(), 11
    over = threading.Barrier(count, timeout=60)

    def run(rank: int) -> str:
        group = distributed._make(store, rank, count, timedelta(seconds=2))
        told = ""
        try:
            if rank == 9:
                group.barrier().wait()
            elif rank != 10:
                group.allreduce([torch.ones(3)]).wait()
        except torch.distributed.DistBackendError as error:
            told = str(error)
        over.wait()
        return told

    with ThreadPoolExecutor(count) as threads:
        told, *_ = threads.map(run, range(count))
    assert [told.count(text) for text in ("says nothing", "failed in barrier", "failed in all_reduce")] == [1, 1, 6]
    assert told.index("Rank 10 says nothing") < told.index("Rank 9 failed in barrier") < told.index("Rank 1 failed")
    assert "2 more are not named" in told


@pytest.mark.thorough
def test_another_call(device: str) -> None:
    """Both are told what the other was at."""
    (first,), (second,) = outcome(device, "calls_another")
    told = [
        is_told(first, "all_reduce") if first["error"] else False,
        second["error"] and is_told(second, "barrier", 1),
    ]
    assert any(told)


@pytest.mark.quick(fault="another_shape")
@pytest.mark.parametrize("fault", ["another_shape", "another_dtype"])
def test_another_amount(device: str, fault: str) -> None:
    """Gloo ends a process that is sent more than it asked for; nobody hangs, and who notices is told."""
    said = [line for lines in outcome(device, fault) for line in lines]
    assert len(said) == 1 and said[0]["seconds"] < distributed_faults.TIMEOUT + 15
    assert not said[0]["error"] or "graft: " in said[0]["text"]


@pytest.mark.quick(fault="calls_another")
@pytest.mark.parametrize("fault", ["calls_another", "another_shape", "another_dtype"])
def test_calls_are_compared(device: str, fault: str) -> None:
    """Torch's own comparison of calls works with the backend: both ranks are told before anything is sent."""
    for (said,) in outcome(device, fault, TORCH_DISTRIBUTED_DEBUG="DETAIL"):
        assert "Detected mismatch between collectives on ranks" in said["text"]
        assert said["seconds"] < 10


@pytest.mark.thorough
def test_a_group_is_aborted_and_made_anew(device: str) -> None:
    waiting, other = outcome(device, "aborted")
    assert is_told(waiting[0], "all_reduce") and "was aborted" in waiting[0]["text"]
    assert other[0]["error"] == ""


@pytest.mark.thorough
def test_an_abort_wakes_who_waits_for_a_message(device: str) -> None:
    ((said,),) = outcome(device, "aborted_in_a_message", ends=1)
    assert is_told(said, "recv") and "was aborted" in said["text"]


@pytest.mark.thorough
def test_a_callback_may_abort(device: str) -> None:
    for (said,) in outcome(device, "aborted_by_a_callback"):
        assert said["error"] == ""


@pytest.mark.thorough
def test_a_forked_child(device: str) -> None:
    first, _ = outcome(device, "forked")
    assert "forked process" in first[0]["text"] and "spawn" in first[0]["text"]


@pytest.mark.thorough
def test_other_versions(device: str) -> None:
    for (said,) in outcome(device, "other_versions"):
        assert "need the same versions" in said["text"] and "rank 1 has torch" in said["text"]
        assert said["seconds"] < 30


@pytest.mark.thorough
def test_a_closed_port() -> None:
    """Of the process that keeps the store."""
    program = f"""
import datetime, torch.distributed as dist
dist.init_process_group("graft", init_method="tcp://localhost:{free_port()}", rank=1, world_size=2,
                        timeout=datetime.timedelta(seconds=2))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment_of(True), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1 and "DistNetworkError" in done.stderr and "localhost" in done.stderr


@pytest.mark.thorough
@pytest.mark.parametrize("staged", ["", "1"], ids=["in place", "staged"])
def test_random_calls_from_two_threads(device: str, staged: str) -> None:
    command = [sys.executable, PROGRAM.with_name("distributed_soak.py"), "--device", device, "--ranks", "2"]
    environment = environment_of(True, TORCHGRAFT_DISTRIBUTED_STAGED=staged)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(" 0 failures") == 2


@pytest.mark.thorough
def test_torchrun_starts_again(device: str, tmp_path: Path) -> None:
    """From the checkpoint: nothing is lost, nothing counted twice."""
    command = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "2"]
    done = subprocess.run(
        [sys.executable, *command, "--standalone", PROGRAM],
        env=environment_of(
            True,
            FAULT="restarted",
            FAULT_FOLDER=str(tmp_path),
            CHECKS_DEVICE=device,
            OMP_NUM_THREADS="1",
            TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1",  # or the new processes get the addresses of the old ones
        ),
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    expected = sum(step + rank for step in range(6) for rank in range(2))
    # On a machine that is busy the new processes may miss each other once.
    assert re.search(rf"sum {float(expected)} restarts [12]\n", done.stdout)
