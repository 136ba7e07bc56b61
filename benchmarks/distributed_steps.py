"""What a step of training costs in two processes, beside one process's: on the device, and on the CPU by gloo.

    python benchmarks/distributed_steps.py [--device ocl] [--rounds 9] [--steps 8] [--models MLP GPT]

Milliseconds a step and what it costs over one process's step, by the clock and in time that the process's core computed
for it, all threads together, which other work on the machine hardly changes. Each process has one core, one thread of
torch's and, on PoCL, one of the driver's; the batch of a process is the same in one process and in two. `apart` is the
same step in both processes at once, without a word between them: what it costs to share memory, caches and the machine.
The rest is DistributedDataParallel and `fully_shard` of each block and of the whole. Everything is measured in turn by
the same two processes, the slower counts; a figure is the median of rounds, a percentage the median of the rounds'
percentages.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import time
import warnings
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.nn.parallel import DistributedDataParallel

RANKS = 2
WIDTH, HEADS, WORDS, LENGTH = 192, 6, 512, 64

Step = Callable[[], object]
Times = dict[tuple[str, str], list[float]]  # by the kind of step and the device: by the clock, of the core


class Block(nn.Module):
    """Of a GPT."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.together, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.together(self.norms[0](x)).chunk(3, dim=-1)
        query, key, value = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in parts)
        seen = scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.wide(self.norms[1](x))


def mlp() -> tuple[nn.Sequential, torch.Tensor, torch.Tensor]:
    """A network and a batch: 4.2 million parameters."""
    layers = [nn.Sequential(nn.Linear(1024, 1024), nn.ReLU()) for _ in range(4)]
    return nn.Sequential(*layers), torch.randn(256, 1024), torch.randint(1024, (256,))


def gpt() -> tuple[nn.Sequential, torch.Tensor, torch.Tensor]:
    """The same: 2 million parameters."""
    words = torch.randint(WORDS, (8, LENGTH))
    blocks = [Block() for _ in range(4)]
    return nn.Sequential(nn.Embedding(WORDS, WIDTH), *blocks, nn.Linear(WIDTH, WORDS)), words, words.roll(-1, 1)


MODELS = {"MLP": mlp, "GPT": gpt}


def replicated(model: nn.Sequential) -> nn.Module:
    return DistributedDataParallel(model)


def sharded(model: nn.Sequential, device: str) -> nn.Module:
    mesh = init_device_mesh(device, (RANKS,))
    for block in model:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def stepping(model: nn.Module, batch: torch.Tensor, targets: torch.Tensor) -> Step:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> None:
        optimizer.zero_grad()
        cross_entropy(model(batch).flatten(0, -2), targets.flatten()).backward()
        optimizer.step()

    return step


def make_steps(name: str, device: str) -> dict[str, Step]:
    """The steps of each kind, of networks that begin alike."""
    steps = {}
    for kind in ("apart", "DDP", "FSDP2"):
        torch.manual_seed(0)
        model, batch, targets = MODELS[name]()
        model = model.to(device)
        whole = model if kind == "apart" else replicated(model) if kind == "DDP" else sharded(model, device)
        steps[kind] = stepping(whole, batch.to(device), targets.to(device))
    return {"one": steps["apart"], **steps}


def milliseconds(step: Step, count: int, device: str, takes_part: bool = True) -> list[float]:
    """A step's, in the slower process: by the clock, and of the core."""
    torch.get_device_module(device).synchronize()
    dist.barrier()
    start = time.perf_counter(), time.process_time()
    if takes_part:
        for _ in range(count):
            step()
        torch.get_device_module(device).synchronize()
    taken = torch.tensor([time.perf_counter(), time.process_time()], dtype=torch.float64)
    taken = (taken - torch.tensor(start, dtype=torch.float64)) * (1e3 / count if takes_part else 0)
    dist.all_reduce(taken, dist.ReduceOp.MAX)
    found: list[float] = taken.tolist()
    return found


def measure(rank: int, options: argparse.Namespace, port: int, cores: Sequence[int]) -> None:
    os.sched_setaffinity(0, {cores[rank]})  # before there are other threads, which have it from this one
    warnings.simplefilter("ignore", FutureWarning)
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "POCL_MAX_PTHREAD_COUNT": "1"}
    dist.init_process_group(f"cpu:gloo,{options.device}:graft", rank=rank, world_size=RANKS)
    devices = ("cpu", options.device)
    for name in options.models:
        steps = {device: make_steps(name, device) for device in devices}
        rounds: list[Times] = []
        for number in range(options.rounds + 1):
            timed = {
                (kind, device): milliseconds(steps[device][kind], options.steps, device, kind != "one" or rank == 0)
                for kind in steps["cpu"]
                for device in devices
            }
            rounds += [timed] if number else []  # the first makes plans and kernels
        if rank == 0:
            report(name, devices, rounds)
    dist.destroy_process_group()


def report(name: str, devices: Sequence[str], rounds: Sequence[Times]) -> None:
    def over(base: str, kind: str, device: str, which: int) -> float:
        return statistics.median(100 * (each[kind, device][which] / each[base, device][which] - 1) for each in rounds)

    for which, by in enumerate(("by the clock", "of the core")):
        heads = "".join(f"{device:>9}{'over one':>10}{'apart':>9}" for device in devices)
        print(f"{f'{name}, ms {by}':22}{heads}")
        for kind in ("one", "apart", "DDP", "FSDP2"):
            row = f"{kind:22}"
            for device in devices:
                median = statistics.median(each[kind, device][which] for each in rounds)
                row += f"{median:9.1f}{over('one', kind, device, which):9.1f}%"
                row += f"{over('apart', kind, device, which):8.1f}%"
            print(row, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="ocl")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < RANKS:
        raise SystemExit(f"each of {RANKS} processes needs a core of its own, and there is {len(cores)}")
    with socket.socket() as found:
        found.bind(("localhost", 0))
        port = found.getsockname()[1]
    torch.multiprocessing.spawn(measure, (options, port, cores), nprocs=RANKS)


if __name__ == "__main__":
    main()
