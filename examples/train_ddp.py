"""Trains a network in several processes, each with its part of every batch.

    python examples/train_ddp.py                                               # one process
    torchrun --nproc-per-node 2 examples/train_ddp.py                          # two on this machine
    torchrun --nnodes 2 --node-rank 0 --master-addr first --nproc-per-node 1 examples/train_ddp.py   # and --node-rank 1

The losses are the same whatever the number of processes. Each takes the device of its number, where there are several,
and shares the first one otherwise.
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

BATCH = 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="ocl")
    parser.add_argument("--steps", type=int, default=30)
    options = parser.parse_args()
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", "localhost"), ("MASTER_PORT", "29500")):
        os.environ.setdefault(name, value)  # without torchrun
    dist.init_process_group()
    rank, size = dist.get_rank(), dist.get_world_size()
    count = torch.get_device_module(options.device).device_count()
    device = torch.device(options.device, int(os.environ.get("LOCAL_RANK", "0")) % count)

    torch.manual_seed(0)  # the same network, and the same batches, everywhere
    network = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 10)).to(device)
    network = DistributedDataParallel(network)
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3)
    mine = slice(rank * BATCH // size, (rank + 1) * BATCH // size)
    teacher = torch.randn(64, 10)
    for step in range(options.steps):
        inputs = torch.randn(BATCH, 64)
        classes = (inputs @ teacher).argmax(1)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(network(inputs[mine].to(device)), classes[mine].to(device))
        loss.backward()
        optimizer.step()
        whole = loss.detach().clone()
        dist.all_reduce(whole, dist.ReduceOp.AVG)
        if rank == 0:
            print(f"step {step:3d}  loss {whole.item():.5f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
