"""What each of several processes does when something goes wrong: started by test_distributed_faults.py.

Environment: that of torch.distributed, CHECKS_DEVICE, FAULT (which of the functions), FAULT_FOLDER (for files). Each
rank prints one line of JSON: what was raised, and after how many seconds.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

DEVICE = os.environ.get("CHECKS_DEVICE", "ocl")
RANK, SIZE = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
TIMEOUT = 4.0
HANGS = 60.0  # longer than anybody waits; such a process is killed when the others have told
FAULTS: dict[str, Callable[[], None]] = {}


def fault(function: Callable[[], None]) -> Callable[[], None]:
    FAULTS[function.__name__] = function
    return function


def start(timeout: float = TIMEOUT) -> torch.Tensor:
    """A group that works, and a tensor."""
    dist.init_process_group("graft", timeout=timedelta(seconds=timeout))
    x = torch.ones(4, device=DEVICE)
    dist.all_reduce(x)
    assert x.tolist() == [float(SIZE)] * 4
    return x


def tell(call: Callable[[], object]) -> None:
    """Makes a call and prints what came of it; the device is still usable then."""
    begin = time.monotonic()
    error, text = "", ""
    try:
        call()
    except Exception as raised:
        error, text = type(raised).__name__, str(raised)
    seconds = time.monotonic() - begin
    assert (torch.ones(3, device=DEVICE) + 1).tolist() == [2.0] * 3
    print(json.dumps({"error": error, "text": text, "seconds": seconds}), flush=True)


@fault
def dies() -> None:
    x = start()
    if RANK == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    tell(lambda: dist.all_reduce(x))


@fault
def dies_staged() -> None:
    """While a large tensor is on its way in pieces."""
    start()
    x = torch.ones(8 << 20, device=DEVICE)
    dist.all_reduce(x)
    if RANK == 1:
        threading.Timer(0.02, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
    tell(lambda: [dist.all_reduce(x) for _ in range(1000)])


@fault
def raises() -> None:
    x = start()
    if RANK == 1:
        raise SystemExit("this rank has had enough")
    tell(lambda: dist.broadcast(x, 1))


@fault
def hangs() -> None:
    x = start()
    if RANK == 1:
        time.sleep(HANGS)
        os._exit(0)
    tell(lambda: dist.all_gather([torch.empty_like(x) for _ in range(SIZE)], x))


@fault
def hangs_in_a_message() -> None:
    x = start()
    if RANK == 1:
        time.sleep(HANGS)
        os._exit(0)
    tell(lambda: dist.recv(x, 1))


@fault
def asks_after_a_death() -> None:
    """Messages of a group that has failed, one of them among calls that are to be waited for as one."""
    x = start()
    if RANK == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    tell(lambda: dist.all_reduce(x))
    tell(lambda: dist.send(x, 1))
    group = dist.group.WORLD
    assert group is not None
    group._start_coalescing(torch.device(DEVICE))
    tell(lambda: dist.irecv(x, 1))
    tell(lambda: group._end_coalescing(torch.device(DEVICE)))


@fault
def calls_another() -> None:
    x = start()
    tell(lambda: dist.all_reduce(x) if RANK == 0 else dist.barrier())
    time.sleep(TIMEOUT)


@fault
def another_shape() -> None:
    start()
    tell(lambda: dist.all_reduce(torch.ones(1000 * (RANK + 1), device=DEVICE)))
    time.sleep(TIMEOUT)


@fault
def another_dtype() -> None:
    start()
    dtype = torch.float64 if RANK == 0 else torch.float32
    tell(lambda: dist.broadcast(torch.ones(1000, device=DEVICE, dtype=dtype), 0))
    time.sleep(TIMEOUT)


@fault
def aborted() -> None:
    """Also a call that is waiting in another thread ends; the group can then be made anew."""
    from torch.distributed.distributed_c10d import _abort_process_group

    x = start(timeout=HANGS)
    if RANK == 0:
        threading.Timer(1, _abort_process_group).start()
        tell(lambda: dist.all_reduce(x))
    else:
        time.sleep(2)
        _abort_process_group()
        tell(lambda: None)
    x = start()
    dist.all_reduce(x)
    assert x.tolist() == [float(SIZE * SIZE)] * 4
    dist.destroy_process_group()


@fault
def aborted_in_a_message() -> None:
    from torch.distributed.distributed_c10d import _abort_process_group

    x = start(timeout=HANGS)
    if RANK == 1:
        time.sleep(HANGS)
    threading.Timer(1, _abort_process_group).start()
    tell(lambda: dist.recv(x, 1))


@fault
def aborted_by_a_callback() -> None:
    """Of the call's own future."""
    from torch.distributed.distributed_c10d import _abort_process_group

    x = start()
    if RANK == 1:
        time.sleep(1)  # the callback is there before the call has ended
    work = dist.all_reduce(x, async_op=True)
    if RANK == 0:
        work.get_future().add_done_callback(lambda done: _abort_process_group())
    tell(work.wait)
    time.sleep(1)  # for the other one


@fault
def forked() -> None:
    x = start()
    cpu = torch.ones(2)
    dist.all_reduce(cpu)
    if RANK == 0:
        child = os.fork()
        if child == 0:
            begin = time.monotonic()
            try:
                dist.all_reduce(cpu)
            except RuntimeError as raised:
                print(json.dumps({"error": "RuntimeError", "text": str(raised), "seconds": time.monotonic() - begin}))
            raise SystemExit(0)  # with all that Python does then
        assert os.waitpid(child, 0)[1] == 0
    dist.all_reduce(x)
    assert x.tolist() == [float(SIZE * SIZE)] * 4
    dist.destroy_process_group()


@fault
def other_versions() -> None:
    import torchgraft.distributed

    if RANK == 1:
        torchgraft.distributed.__version__ = "0.0.9"
    begin = time.monotonic()
    try:
        start()
    except RuntimeError as raised:
        seconds = time.monotonic() - begin
        print(json.dumps({"error": "RuntimeError", "text": str(raised), "seconds": seconds}), flush=True)


@fault
def restarted() -> None:
    """Counts steps; in the first life a rank dies in the middle of one. What is counted is in the checkpoint."""
    import torch.distributed.checkpoint as checkpoint

    folder = Path(os.environ["FAULT_FOLDER"])
    dist.init_process_group(timeout=timedelta(seconds=20))
    state = {"sum": torch.zeros(8, device=DEVICE), "step": torch.zeros(1, device=DEVICE)}
    found = sorted(folder.glob("step-*/.metadata"))
    if found:
        checkpoint.load(state, checkpoint_id=found[-1].parent)
    for step in range(int(state["step"].item()), 6):
        x = torch.full((8,), float(step + dist.get_rank()), device=DEVICE)
        if step == 4 and dist.get_rank() == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)
        dist.all_reduce(x)
        state["sum"] += x
        state["step"] += 1
        checkpoint.save(state, checkpoint_id=folder / f"step-{step}")
    if dist.get_rank() == 0:
        print("sum", state["sum"][0].item(), "restarts", os.environ["TORCHELASTIC_RESTART_COUNT"], flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    FAULTS[os.environ["FAULT"]]()
    os._exit(0) if os.environ["FAULT"] not in ("aborted", "forked", "restarted") else None
