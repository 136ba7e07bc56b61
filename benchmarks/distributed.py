"""Collectives on the device and, in the same run, on CPU tensors by gloo.

    python benchmarks/distributed.py [--device ocl] [--ranks 2] [--rounds 5]

Microseconds a call and the ratio, for messages of several sizes. Device and CPU take turns; a figure is the median of
rounds, the ratio the median of the rounds' ratios. Each process has one thread of torch's. With
TORCHGRAFT_DISTRIBUTED_STAGED=1 the device's tensors are copied, as where its memory is its own.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.multiprocessing

SIZES = (4 << 10, 64 << 10, 1 << 20, 16 << 20)
Collective = Callable[[torch.Tensor], object]


def collectives(size: int) -> dict[str, Collective]:
    """Each takes a tensor whose elements divide by the number of ranks."""

    def all_gather(x: torch.Tensor) -> None:
        dist.all_gather_into_tensor(x, x[: len(x) // size].clone())

    def reduce_scatter(x: torch.Tensor) -> None:
        dist.reduce_scatter_tensor(x[: len(x) // size].clone(), x)

    return {
        "all_reduce": lambda x: dist.all_reduce(x),
        "broadcast": lambda x: dist.broadcast(x, 0),
        "all_gather": all_gather,
        "reduce_scatter": reduce_scatter,
    }


def seconds(collective: Collective, x: torch.Tensor, calls: int) -> float:
    x.fill_(1)
    dist.barrier()
    start = time.perf_counter()
    for _ in range(calls):
        collective(x)
    if x.device.type != "cpu":
        torch.accelerator.synchronize()
    return (time.perf_counter() - start) / calls


def measure(rank: int, options: argparse.Namespace, port: int) -> None:
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    dist.init_process_group(f"cpu:gloo,{options.device}:graft", rank=rank, world_size=options.ranks)
    if rank == 0:
        print(f"{'us a call':28}{'CPU':>10}{options.device:>10}{'ratio':>8}")
    for name, collective in collectives(options.ranks).items():
        for size in SIZES:
            calls = max(3, min(200, (4 << 20) // size))
            tensors = [torch.ones(size // 4, device=device) for device in ("cpu", options.device)]
            rounds = [[seconds(collective, x, calls) for x in tensors] for _ in range(options.rounds + 1)][1:]
            host, there = (statistics.median(column) * 1e6 for column in zip(*rounds, strict=True))
            ratio = statistics.median(a / b for a, b in rounds)
            if rank == 0:
                print(f"{name + f' {size >> 10} KB':28}{host:10.0f}{there:10.0f}{ratio:8.2f}", flush=True)
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="ocl")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with socket.socket() as found:
        found.bind(("localhost", 0))
        port = found.getsockname()[1]
    torch.multiprocessing.spawn(measure, (options, port), nprocs=options.ranks)


if __name__ == "__main__":
    main()
