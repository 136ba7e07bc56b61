"""Random collectives for a while, checked; and processes that are killed while they make them.

    python tests/distributed_soak.py [--device ocl] [--ranks 4] [--seconds 600] [--kills 50] [--seed 0]

Each rank has two threads, each with a group of its own, that make the same random calls of random dtypes and shapes as
the same threads of the other ranks, collectives and messages, and wait for works or for futures. Memory, threads and
descriptors are looked at after half of the time and at the end. With --kills, groups are started that many times and a
random rank of each is killed at a random moment: the others must end by themselves, told by an exception. In every
second group rank 0 keeps the store that they meet at. Exit status 0 if all went well.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import random
import signal
import subprocess
import threading
import time
import warnings
from contextlib import AbstractContextManager
from datetime import timedelta
from pathlib import Path

from ranks import Rank, free_port, ranks

TIMEOUT = 10.0
CALLS = ("all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all", "barrier", "messages", "batch")
DTYPES = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "int8", "uint8")
# Calls of a rank at least, however long they take: by half of them all threads that stay have begun.
LEAST = 800


def resources() -> dict[str, int]:
    """Of this process: MB, threads, descriptors. What the C library keeps for later calls does not count: of blocks of
    all sizes, from several threads, that is more than what is in use, and comes and goes by hundreds of MB."""
    ctypes.CDLL(None).malloc_trim(0)
    status = Path("/proc/self/status").read_text()
    fields = dict(line.split(":", 1) for line in status.splitlines())
    descriptors = len(os.listdir("/proc/self/fd"))
    return {"MB": int(fields["VmRSS"].split()[0]) >> 10, "threads": int(fields["Threads"]), "descriptors": descriptors}


def work(options: argparse.Namespace) -> None:
    """One rank."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    warnings.simplefilter("ignore", FutureWarning)  # other names of the same calls
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("graft", timeout=timedelta(seconds=TIMEOUT))
    failures: list[str] = []
    calls = [0, 0]

    def tensor(of: int, numel: int, dtype: torch.dtype, salt: int) -> torch.Tensor:
        """What rank `of` brings: small integers, of which sums are exact."""
        return ((torch.arange(numel) + of + salt) % 3).to(dtype)

    def check(name: str, found: torch.Tensor, expected: torch.Tensor) -> None:
        if not torch.equal(found.cpu(), expected):
            failures.append(f"{name} of {expected.dtype} {tuple(expected.shape)} on rank {rank} is wrong")

    def await_all(works: list[dist.Work], by_futures: bool) -> None:
        for future in [work.get_future() for work in works if by_futures]:
            future.wait()
        for work in works:
            work.wait()

    def call(generator: random.Random, group: dist.ProcessGroup, device: str) -> None:
        name = generator.choice(CALLS)
        dtype = getattr(torch, generator.choice(DTYPES))
        numel = generator.choice([0, 1, 7, 64, 1000, 4097, 60000, 300000]) if generator.random() < 0.9 else 1 << 20
        salt, root, strided = generator.randrange(3), generator.randrange(size), generator.random() < 0.2
        waits, by_futures = generator.random() < 0.5, generator.random() < 0.3
        mine = tensor(rank, numel, dtype, salt).to(device)
        if strided and name in ("all_reduce", "broadcast"):
            mine = torch.stack([mine, mine], dim=-1)[..., 0]
        all_of_them = [tensor(of, numel, dtype, salt) for of in range(size)]
        after, before = (rank + 1) % size, (rank - 1) % size
        handle = None
        if name in ("messages", "batch"):
            received = torch.empty(numel, dtype=dtype, device=device)
            if name == "messages":
                works = [dist.irecv(received, before, group=group), dist.isend(mine, after, group=group)]
            else:
                messages = [dist.P2POp(dist.isend, mine, after, group), dist.P2POp(dist.irecv, received, before, group)]
                works = dist.batch_isend_irecv(messages)
            await_all([work for work in works if work is not None], by_futures)
        elif name == "all_reduce":
            handle = dist.all_reduce(mine, group=group, async_op=waits)
        elif name == "broadcast":
            handle = dist.broadcast(mine, root, group=group, async_op=waits)
        elif name == "all_gather":
            gathered = torch.empty(size * numel, dtype=dtype, device=device)
            handle = dist.all_gather_into_tensor(gathered, mine, group=group, async_op=waits)
        elif name == "reduce_scatter":
            whole = mine.repeat(size)
            result = torch.empty(numel, dtype=dtype, device=device)
            handle = dist.reduce_scatter_tensor(result, whole, group=group, async_op=waits)
        elif name == "all_to_all":
            received = torch.empty(size * numel, dtype=dtype, device=device)
            handle = dist.all_to_all_single(received, mine.repeat(size), group=group, async_op=waits)
        else:
            dist.barrier(group=group)
        if handle is not None:
            await_all([handle], by_futures)
        if name == "all_reduce":
            check(name, mine, sum(all_of_them[1:], all_of_them[0]))
        elif name == "broadcast":
            check(name, mine, all_of_them[root])
        elif name in ("messages", "batch"):
            check(name, received, all_of_them[before])
        elif name in ("all_gather", "all_to_all"):
            check(name, gathered if name == "all_gather" else received, torch.cat(all_of_them))
        elif name == "reduce_scatter":
            check(name, result, sum(all_of_them[1:], all_of_them[0]))

    # Without a limit of their own they would have torch's, of half an hour.
    groups = [dist.new_group(list(range(size)), timeout=timedelta(seconds=TIMEOUT)) for _ in calls]
    until = time.monotonic() + options.seconds
    stop_at = [0, 0]  # the call before which all ranks stop, once rank 0 has said so

    def run(number: int) -> None:
        generator = random.Random(options.seed * 2 + number)
        flag = torch.zeros(1, dtype=torch.int64)
        try:
            while not stop_at[number]:
                for _ in range(10):
                    call(generator, groups[number], options.device if generator.random() < 0.9 else "cpu")
                    calls[number] += 1
                flag[0] = int(time.monotonic() > until and calls[number] >= LEAST // 2)
                dist.broadcast(flag, 0, group=groups[number])
                stop_at[number] = int(flag.item())
        except Exception as error:
            failures.append(f"{type(error).__name__}: {error}")

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(groups))]
    print("begins", flush=True)
    for thread in threads:
        thread.start()
    for thread in threads:  # which end early if a call fails
        thread.join(options.seconds / 2 / len(threads))
    while sum(calls) < LEAST // 2 and not failures:
        time.sleep(0.05)
    early = resources()
    for thread in threads:
        thread.join()
    time.sleep(0.5)  # what waited for messages is ending
    late = resources()
    grown = {key: late[key] - early[key] for key in early}
    print(f"rank {rank}: {sum(calls)} calls, {len(failures)} failures, from {early} to {late}", flush=True)
    for failure in failures[:5]:
        print(failure, flush=True)
    # What caches keep is bounded, but a short run only fills them.
    is_steady = options.seconds < 240 or grown["MB"] < 100
    ok = not failures and grown["threads"] <= -len(threads) and grown["descriptors"] <= 0 and is_steady
    os._exit(0 if ok else 1)


def start(options: argparse.Namespace, seconds: float, seed: int, **where: str) -> AbstractContextManager[list[Rank]]:
    command = [__file__, "--device", options.device, "--seconds", str(seconds), "--seed", str(seed)]
    return ranks(options.ranks, *command, SOAK="1", **where)


def soak(options: argparse.Namespace) -> bool:
    with start(options, options.seconds, options.seed) as processes:
        outputs = [process.output(options.seconds + 300) for process in processes]
    ok = all(process.returncode == 0 for process in processes)
    print("".join(output if not ok else output.splitlines(True)[-1] for output in outputs))
    return ok


def kill(options: argparse.Namespace, number: int) -> bool:
    """One group, of which a rank is killed: whether the others ended by themselves, told by an exception."""
    generator = random.Random(options.seed + number)
    where = {"MASTER_PORT": str(free_port()), "TORCHELASTIC_USE_AGENT_STORE": "False"} if number % 2 else {}
    with start(options, 1000, options.seed + number, **where) as processes:
        while not all("begins" in process.printed.read_text() for process in processes):
            if any(process.process.poll() is not None for process in processes):
                print(f"kill {number}: the group has not begun\n", *(each.printed.read_text() for each in processes))
                return False
            time.sleep(0.1)
        time.sleep(generator.uniform(0, 10))
        killed = generator.randrange(options.ranks)
        was_alive = processes[killed].process.poll() is None
        processes[killed].process.send_signal(signal.SIGKILL)
        begin = time.monotonic()
        ends = [end_of(process, begin + TIMEOUT + 30) for process in processes]
    others = ends[:killed] + ends[killed + 1 :]
    ok = was_alive and all(end == "told" for end in others)
    print(f"kill {number}: rank {killed}, {time.monotonic() - begin:.1f} s, {ends}", flush=True)
    return ok


def end_of(process: Rank, until: float) -> str:
    try:
        said = process.output(max(1, until - time.monotonic()))
    except subprocess.TimeoutExpired:
        return "HANGS"
    return "told" if process.returncode == 1 and "graft:" in said else f"ended with {process.returncode}: {said[-500:]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="ocl")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if os.environ.get("SOAK"):
        work(options)
    if options.kills:
        ok = sum(kill(options, number) for number in range(options.kills)) == options.kills
    else:
        ok = soak(options)
    raise SystemExit(0 if ok else 1)


if __name__ == "__main__":
    main()
