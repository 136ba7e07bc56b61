"""Collectives on the device and, in the same run, on CPU tensors by gloo.

    python benchmarks/distributed.py [--device ocl] [--ranks 2] [--rounds 5] [--sizes 4 64 1024 16384 65536]

Microseconds a call and the ratio, for messages of several sizes in KB. Device and CPU take turns; a figure is the
median of rounds, the ratio the median of the rounds' ratios. "again" is the same ratio of a second group of gloo's to
the first: what it is off 1.00 is chance. With them, what the backend counted for each call on the device: copies, their
bytes, and how many calls went through the queue's thread. Each process has one thread of torch's.
With TORCHGRAFT_DISTRIBUTED_STAGED=1 the device's tensors are copied, as where its memory is its own.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import time
import warnings
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.multiprocessing

from torchgraft.distributed import traffic

SIZES = (4, 64, 1024, 16384, 65536)
Collective = Callable[[], object]


def collectives(
    size: int, kilobytes: int, device: str, group: dist.ProcessGroup | None = None
) -> dict[str, Collective]:
    """What is called over and over, on tensors that there are."""
    x = torch.ones(kilobytes << 8, device=device)
    part, other = x[: len(x) // size].clone(), torch.zeros_like(x)
    return {
        "all_reduce": lambda: dist.all_reduce(x, dist.ReduceOp.MAX, group),
        "broadcast": lambda: dist.broadcast(x, 0, group),
        "all_gather": lambda: dist.all_gather_into_tensor(x, part, group),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, x, dist.ReduceOp.MAX, group),
        "all_to_all": lambda: dist.all_to_all_single(other, x, group=group),
    }


def seconds(collective: Collective, calls: int) -> float:
    dist.barrier()
    start = time.perf_counter()
    for _ in range(calls):
        collective()
    return (time.perf_counter() - start) / calls


def measure(rank: int, options: argparse.Namespace, port: int) -> None:
    warnings.simplefilter("ignore", FutureWarning)  # other names of the same calls
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    dist.init_process_group(f"cpu:gloo,{options.device}:graft", rank=rank, world_size=options.ranks)
    other_gloo = dist.new_group(backend="gloo")
    if rank == 0:
        ratios = f"{'ratio':>8}{'again':>8}"
        print(f"{'us a call':28}{'CPU':>10}{options.device:>10}{ratios}{'copies':>8}{'KB':>8}{'queued':>8}")
    for size in options.sizes:
        host, there = (collectives(options.ranks, size, device) for device in ("cpu", options.device))
        again = collectives(options.ranks, size, "cpu", other_gloo)
        calls = max(5, min(200, (32 << 10) // size))
        for name in host:
            seconds(there[name], 3)
            before = traffic()
            rounds = [[seconds(each[name], calls) for each in (host, there, again)] for _ in range(options.rounds)]
            made = {key: (value - before[key]) / (calls * options.rounds) for key, value in traffic().items()}
            here, device, _ = (statistics.median(column) * 1e6 for column in zip(*rounds, strict=True))
            ratios = "".join(f"{statistics.median(row[0] / row[k] for row in rounds):8.2f}" for k in (1, 2))
            if rank == 0:
                counted = f"{made['copies']:8.1f}{made['copied_bytes'] / 1024:8.0f}{made['queued']:8.2f}"
                print(f"{name + f' {size} KB':28}{here:10.0f}{device:10.0f}{ratios}{counted}", flush=True)
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="ocl")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, metavar="KB")
    options = parser.parse_args()
    with socket.socket() as found:
        found.bind(("localhost", 0))
        port = found.getsockname()[1]
    torch.multiprocessing.spawn(measure, (options, port), nprocs=options.ranks)


if __name__ == "__main__":
    main()
