"""Trains two networks in several processes: one that reads digits with DistributedDataParallel, of which each process
has a copy, and a GPT with `fully_shard`, of which each has a part. Beside their losses are those of one process, which
has the whole of every batch, on the CPU.

    python examples/train_ddp.py                                               # one process
    torchrun --nproc-per-node 2 examples/train_ddp.py                          # two on this machine
    torchrun --nnodes 2 --node-rank 0 --master-addr first --nproc-per-node 1 examples/train_ddp.py   # and --node-rank 1

With `--checkpoint FOLDER` what has been trained is saved there now and then, and a later start goes on from there, with
any number of processes: after `torchrun --max-restarts 3` has started them anew, for one. `--fail-at` makes that
happen.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

from torchgraft_opencl.demo.digits import Digits
from torchgraft_opencl.demo.task import Task
from torchgraft_opencl.demo.text import Text


def replicate(network: nn.Module) -> nn.Module:
    """A copy in each process. Batch norm takes its statistics of the whole batch."""
    return DistributedDataParallel(nn.SyncBatchNorm.convert_sync_batchnorm(network))


def shard(network: nn.Module) -> nn.Module:
    """A part of each parameter in each process; a layer has its whole parameters while it computes."""
    mesh = init_device_mesh(next(network.parameters()).device.type, (dist.get_world_size(),))
    blocks = network.blocks
    assert isinstance(blocks, nn.Sequential)
    for block in blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(network, mesh=mesh)


class Training(Stateful):
    """A network on its way, with what a checkpoint holds.

    Attributes:
        step: how many steps have been made.
    """

    def __init__(self, task: Task, network: nn.Module) -> None:
        self.task, self.network, self.step = task, network, 0
        self.optimizer = task.make_optimizer(network)
        self.scheduler = task.make_scheduler(self.optimizer)

    def make_steps(self, device: torch.device, rank: int, size: int) -> Iterator[float]:
        """Goes on to the end; gives the loss of each step's batch, of which this process has one of `size` parts."""
        for batch in islice(self.task.training_batches(), self.step, self.task.steps):
            inputs, classes = (whole.chunk(size)[rank].to(device) for whole in batch)
            self.optimizer.zero_grad()
            loss = cross_entropy(self.network(inputs).flatten(0, -2), classes.flatten())
            loss.backward()
            if self.task.clip is not None:
                clip_grad_norm_(self.network.parameters(), self.task.clip)
            self.optimizer.step()
            self.scheduler.step()
            self.step += 1
            whole = loss.detach()
            if size > 1:
                dist.all_reduce(whole, dist.ReduceOp.AVG)
            yield whole.item()

    def state_dict(self) -> dict[str, Any]:
        network, optimizer = get_state_dict(self.network, self.optimizer)
        scheduler = self.scheduler.state_dict()
        return {"network": network, "optimizer": optimizer, "scheduler": scheduler, "step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_state_dict(
            self.network, self.optimizer, model_state_dict=state["network"], optim_state_dict=state["optimizer"]
        )
        self.scheduler.load_state_dict(state["scheduler"])
        self.step = state["step"]


class Checkpoints:
    """Of one training, in a folder. A checkpoint counts from when it is complete."""

    def __init__(self, folder: Path | None, name: str, every: int) -> None:
        self.folder, self.every = folder and folder / name, every

    def load(self, training: Training) -> None:
        """The last one, if there is any."""
        if self.folder is None:
            return
        numbers = [int(each.parent.name) for each in self.folder.glob("*/.metadata")]
        if numbers:
            checkpoint.load({"training": training}, checkpoint_id=self.folder / str(max(numbers)))

    def save(self, training: Training) -> None:
        """After every so many steps."""
        if self.folder is not None and training.step % self.every == 0:
            checkpoint.save({"training": training}, checkpoint_id=self.folder / str(training.step))


def start(name: str) -> torch.device:
    """Joins the other processes. Each takes the device of its number; they share where there are fewer."""
    for variable, value in (("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", "localhost"), ("MASTER_PORT", "29500")):
        os.environ.setdefault(variable, value)  # without torchrun
    dist.init_process_group()
    count = torch.get_device_module(name).device_count()
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if here > count and dist.get_rank() == 0:
        print(f"{here} processes share {count} of '{name}'", flush=True)
    device = torch.device(name, int(os.environ.get("LOCAL_RANK", "0")) % count)
    torch.accelerator.set_device_index(device)
    return device


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="ocl")
    parser.add_argument("--steps", type=int, default=20, help="of each network")
    parser.add_argument("--checkpoint", type=Path, metavar="FOLDER")
    parser.add_argument("--every", type=int, default=5, help="how many steps there are between checkpoints")
    parser.add_argument(
        "--fail-at", type=int, metavar="STEP", help="the last process dies there, if it never did before"
    )
    options = parser.parse_args()
    device = start(options.device)
    rank, size = dist.get_rank(), dist.get_world_size()
    first_life = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"

    digits, text = Digits(seed=0, epochs=1 + options.steps // 22, least_accuracy=0), Text(seed=0, steps=options.steps)
    digits.steps = options.steps
    for task, distribute in ((digits, replicate), (text, shard)):
        training = Training(task, distribute(task.make_model().to(device)))
        checkpoints = Checkpoints(options.checkpoint, task.name, options.every)
        checkpoints.load(training)
        first = training.step
        losses = training.make_steps(device, rank, size)
        if rank == 0:
            alone = Training(task, task.make_model()).make_steps(torch.device("cpu"), 0, 1)
            print(f"{task.name}: step, loss in {size} processes, in one on the CPU", flush=True)
        for step, loss in enumerate(losses, first):
            if rank == 0:
                expected = next(islice(alone, first if step == first else 0, None))
                print(f"{task.name} {step:3d}  {loss:.5f}  {expected:.5f}", flush=True)
            if first_life and step == options.fail_at and rank == size - 1:
                os._exit(1)
            checkpoints.save(training)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
