"""Ranks whose devices have a network of their own: files in a folder, which all processes of one machine can read.

torchrun --nproc-per-node 2 tests/network_driver.py
"""

from __future__ import annotations

import gc
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy
import torch
import torch.distributed as dist
from numpy_driver import NumpyDriver, as_bytes
from torch.nn.parallel import DistributedDataParallel

import torchgraft

REDUCTIONS = {"sum": numpy.add, "product": numpy.multiply, "minimum": numpy.minimum, "maximum": numpy.maximum}
PATIENCE = 60  # seconds


class Group:
    """The files of a group: for each call one of each rank."""

    def __init__(self, folder: Path, rank: int, size: int) -> None:
        self.folder, self.rank, self.size, self.calls = folder, rank, size, 0

    def exchange(self, mine: bytes) -> list[bytes]:
        """What each rank gives in this call."""
        self.calls += 1
        written = self.folder / f"writing.{self.rank}"
        written.write_bytes(mine)
        written.rename(self.folder / f"{self.calls}.{self.rank}")
        return [self._await(self.folder / f"{self.calls}.{rank}") for rank in range(self.size)]

    @staticmethod
    def _await(path: Path) -> bytes:
        end = time.monotonic() + PATIENCE
        while not path.exists():
            if time.monotonic() > end:
                raise RuntimeError(f"{path} has not come")
            time.sleep(0.001)
        return path.read_bytes()


class NetworkDriver(NumpyDriver):
    def __init__(self) -> None:
        super().__init__(devices=1)
        self.calls: Counter[str] = Counter()
        self.attempts = 0  # to make a group
        self.order: list[str] = []

    def group_id(self, device: int) -> bytes:
        return tempfile.mkdtemp(prefix="network-", dir=os.environ.get("NETWORK_FOLDER")).encode()

    def group_create(self, device: int, id: bytes, rank: int, size: int) -> Any:
        self.attempts += 1
        if self.attempts == 1:
            raise RuntimeError("the network is not up yet")
        return Group(Path(id.decode()), rank, size)

    def stream_synchronize(self, device: int, stream: Any) -> None:
        self.order.append("synchronized")

    def group_destroy(self, device: int, group: Any) -> None:
        self.order.append("destroyed")
        group.folder = None

    def _reduced(self, group: Group, source: int, count: int, element: str, reduction: str) -> Any:
        if element not in ("float32", "float64", "int64"):
            raise NotImplementedError(f"this network does not reduce {element}")
        self.calls[reduction] += 1
        nbytes = count * numpy.dtype(element).itemsize
        parts = [numpy.frombuffer(part, element) for part in group.exchange(as_bytes(source, nbytes).tobytes())]
        return REDUCTIONS[reduction].reduce(parts)

    def all_reduce(
        self, device: int, group: Any, stream: Any, source: int, destination: int, count: int, *by: str
    ) -> None:
        result = self._reduced(group, source, count, *by)
        as_bytes(destination, result.nbytes)[:] = result.view(numpy.uint8)

    def reduce_scatter(
        self, device: int, group: Any, stream: Any, source: int, destination: int, count: int, *by: str
    ) -> None:
        result = self._reduced(group, source, count * group.size, *by)
        mine = result[count * group.rank : count * (group.rank + 1)]
        as_bytes(destination, mine.nbytes)[:] = mine.view(numpy.uint8)

    def all_gather(self, device: int, group: Any, stream: Any, source: int, destination: int, nbytes: int) -> None:
        self.calls["gather"] += 1
        joined = b"".join(group.exchange(as_bytes(source, nbytes).tobytes()))
        as_bytes(destination, len(joined))[:] = numpy.frombuffer(joined, numpy.uint8)

    def broadcast(self, device: int, group: Any, stream: Any, address: int, nbytes: int, root: int) -> None:
        self.calls["broadcast"] += 1
        parts = group.exchange(as_bytes(address, nbytes).tobytes() if group.rank == root else b"")
        as_bytes(address, nbytes)[:] = numpy.frombuffer(parts[root], numpy.uint8)


def main() -> None:
    driver = NetworkDriver()
    torchgraft.register("net", [driver])
    torchgraft.fallback.set_mode("silent")
    dist.init_process_group("graft")
    rank, size = dist.get_rank(), dist.get_world_size()
    mine = [torch.arange(6.0) * (each + 1) for each in range(size)]

    try:
        dist.all_reduce(mine[rank].to("net"))
    except RuntimeError as error:
        assert "not up yet" in str(error)
    else:
        raise AssertionError("the first attempt was to fail")
    for operation, expected in ((dist.ReduceOp.SUM, sum(mine)), (dist.ReduceOp.AVG, sum(mine) / size)):
        x = mine[rank].to("net")
        dist.all_reduce(x, operation)
        assert torch.equal(x.cpu(), expected)
    strided = mine[rank].repeat_interleave(2).to("net")[::2]
    dist.all_reduce(strided, dist.ReduceOp.MAX)
    assert torch.equal(strided.cpu(), mine[-1])
    work = dist.all_reduce(y := torch.full((3,), 2, device="net"), dist.ReduceOp.PRODUCT, async_op=True)
    assert torch.equal(work.get_future().wait()[0].cpu(), torch.full((3,), 2**size))
    work.wait()
    assert work.is_completed()
    gathered = torch.empty(6 * size, device="net")
    dist.all_gather_into_tensor(gathered, mine[rank].to("net"))
    assert torch.equal(gathered.cpu(), torch.cat(mine))
    with torch.profiler.profile(record_shapes=True) as profile:
        spread = torch.zeros(6 * size, 2, device="net")[:, 0]
        dist.all_gather_into_tensor(spread, mine[rank].to("net"))
    assert torch.equal(spread.cpu(), torch.cat(mine))
    rows = {event.name: event.input_shapes for event in profile.events()}
    assert rows["graft:all_gather_into_tensor"] == [[6 * size]] and "record_param_comms" in rows
    part = torch.empty(1, device="net")
    dist.reduce_scatter_tensor(part, torch.arange(float(size)).to("net"))
    assert part.item() == rank * size
    dist.broadcast(z := torch.full((2,), rank, device="net"), src=size - 1)
    assert z.tolist() == [size - 1] * 2
    assert driver.calls == Counter(sum=3, maximum=1, product=1, gather=2, broadcast=1), driver.calls

    # What the network cannot do, and messages, go through the host.
    half = torch.full((2,), rank + 1.0, dtype=torch.float16, device="net")
    dist.all_reduce(half)
    assert half.tolist() == [size * (size + 1) / 2] * 2
    if rank == 0:
        dist.send(torch.ones(3, device="net"), 1)
    elif rank == 1:
        dist.recv(received := torch.zeros(3, device="net"), 0)
        assert received.tolist() == [1.0] * 3
    assert driver.calls.total() == 8

    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(4, 2).to("net"))
    reference = torch.nn.Linear(4, 2)
    reference.load_state_dict({name: value.cpu() for name, value in model.module.state_dict().items()})
    data = torch.randn(2 * size, 4)
    model(data[2 * rank : 2 * rank + 2].to("net")).square().mean().backward()
    reference(data).square().mean().backward()
    torch.testing.assert_close(model.module.weight.grad.cpu(), reference.weight.grad)
    assert driver.calls["sum"] > 3

    other = dist.new_group()
    dist.all_reduce(y, group=other)
    driver.order.clear()
    dist.destroy_process_group(other)
    del other
    gc.collect()
    assert driver.order == ["synchronized", "destroyed"], driver.order  # what was asked for is done before
    print(f"rank {rank} of {size}: right, {y.tolist()[0] // size}")
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(__file__))
    main()
