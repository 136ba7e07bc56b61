"""What is built on collectives, in each of several processes: started by test_parallel.py.

Networks are trained by all processes together, on the device, and by each alone, on the CPU, with the whole of every
batch. Losses and parameters have to be those of one process to rounding, and the same to the last bit in all of them.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable
from functools import partial
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from ranks import DEVICE, RANK, SIZE, Checks
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

check = Checks()

BATCH = 24  # for two, three or four processes, in microbatches too
STEPS = 3

Part = Callable[[torch.Tensor], torch.Tensor]
Step = Callable[[nn.Module, torch.Tensor, torch.Tensor], torch.Tensor]


# ---- Training, alone and together ----


def network() -> nn.Module:
    """The same one in each process and at each call."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(8, 24), nn.GELU(), nn.Linear(24, 24), nn.GELU(), nn.Linear(24, 4))


def batches(steps: int = STEPS) -> Iterable[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(11)
    for _ in range(steps):
        yield torch.randn(BATCH, 8, generator=generator), torch.randn(BATCH, 4, generator=generator)


def whole(batch: torch.Tensor) -> torch.Tensor:
    return batch


def whole_there(batch: torch.Tensor) -> torch.Tensor:
    return batch.to(DEVICE)


def mine(batch: torch.Tensor) -> torch.Tensor:
    """This process's part of a batch, on the device."""
    return batch.chunk(SIZE)[RANK].to(DEVICE)


def plain_step(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    loss = mse_loss(model(inputs), targets)
    loss.backward()
    return loss.detach()


def sgd(parameters: Iterable[torch.Tensor], foreach: bool | None = None) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, foreach=foreach)


def train(
    model: nn.Module, part: Part, step: Step = plain_step, make_optimizer: Callable[..., torch.optim.Optimizer] = sgd
) -> list[torch.Tensor]:
    """Some steps; returns the losses."""
    optimizer = make_optimizer(model.parameters())
    losses = []
    for inputs, targets in batches():
        optimizer.zero_grad()
        losses.append(step(model, part(inputs), part(targets)))
        optimizer.step()
    return losses


def values_of(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Whole and on the CPU, whatever they are parts of."""
    from torch.distributed.tensor import DTensor

    return [(t.full_tensor() if isinstance(t, DTensor) else t).detach().cpu() for t in tensors]


def average(losses: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Of all processes' losses."""
    mean = torch.stack(list(losses)).to(DEVICE)
    dist.all_reduce(mean, dist.ReduceOp.AVG)
    return list(mean.cpu())


def assert_same_everywhere(tensors: Iterable[torch.Tensor]) -> None:
    """To the last bit."""
    flat = torch.cat([t.flatten().contiguous().view(torch.uint8) for t in values_of(tensors)])
    others = [torch.empty_like(flat) for _ in range(SIZE)]
    dist.all_gather(others, flat)
    assert all(torch.equal(flat, other) for other in others)


def assert_trained_as_alone(
    model: nn.Module,
    losses: Iterable[torch.Tensor],
    alone: nn.Module | None = None,
    alone_step: Step = plain_step,
    make_optimizer: Callable[..., torch.optim.Optimizer] = sgd,
    **tolerances: float,
) -> None:
    """Compares what `train` did together with what it does in one process on the CPU.

    Args:
        losses: those of the whole batch, or averages of all processes' parts.
        alone: the network as it was before; the usual one by default.
        alone_step: what one process does with a batch.
        make_optimizer: what both had.
    """
    alone = network() if alone is None else alone
    expected = train(alone, whole, alone_step, make_optimizer)
    found = values_of(model.parameters())
    assert_same_everywhere(found)
    torch.testing.assert_close(values_of(losses), expected, **tolerances)
    torch.testing.assert_close(found, values_of(alone.parameters()), **tolerances)


# ---- DistributedDataParallel ----


def data_parallel(model: nn.Module, **options: Any) -> DistributedDataParallel:
    return DistributedDataParallel(model.to(DEVICE), **options)


def assert_parallel_as_alone(model: DistributedDataParallel, step: Step = plain_step, **expectation: Any) -> None:
    """Trains it, each process with its part."""
    losses = average(train(model, mine, step))
    assert_trained_as_alone(model, losses, **expectation)


@check
def ddp_static_graph() -> None:
    from torch.utils.checkpoint import checkpoint

    class Twice(nn.Module):
        """A layer that is used twice and recomputed, which DDP needs a static graph for."""

        def __init__(self) -> None:
            super().__init__()
            self.first, self.layer, self.last = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.first(x)
            for _ in range(2):
                x = checkpoint(self.layer, x, use_reentrant=True).relu()
            return self.last(x)

    def make() -> Twice:
        torch.manual_seed(3)
        return Twice()

    assert_parallel_as_alone(data_parallel(make(), static_graph=True), alone=make())


@check
def ddp_unused_parameters() -> None:
    class Branches(nn.Module):
        """Takes another way in every second step."""

        def __init__(self) -> None:
            super().__init__()
            self.first, self.ways, self.count = nn.Linear(8, 16), nn.ModuleList(nn.Linear(16, 4) for _ in range(2)), 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count += 1
            way: nn.Module = self.ways[self.count % 2]
            return way(self.first(x).relu())  # type: ignore[no-any-return]

    def make() -> Branches:
        torch.manual_seed(3)
        return Branches()

    assert_parallel_as_alone(data_parallel(make(), find_unused_parameters=True), alone=make())


def in_two_parts(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """A step whose gradients come of two halves; only those of the second are exchanged, with the first's in them."""
    losses = []
    halves = list(zip(inputs.chunk(2), targets.chunk(2), strict=True))
    for number, (x, y) in enumerate(halves):
        held_back = isinstance(model, DistributedDataParallel) and number == 0
        with model.no_sync() if held_back else torch.enable_grad():  # type: ignore[attr-defined, operator]
            loss = mse_loss(model(x), y) / len(halves)
            loss.backward()
        losses.append(loss.detach())
    return torch.stack(losses).sum()


@check
def ddp_no_sync() -> None:
    assert_parallel_as_alone(data_parallel(network()), in_two_parts)


@check
def ddp_gradients_as_views() -> None:
    model = data_parallel(network(), gradient_as_bucket_view=True, bucket_cap_mb=0.001)
    assert_parallel_as_alone(model)
    bases = {p.grad._base.data_ptr() for p in model.parameters() if p.grad is not None and p.grad._base is not None}
    assert 1 < len(bases) < len(list(model.parameters()))


@check
def ddp_times() -> None:
    """Are measured on the device's stream."""
    model = data_parallel(network())
    train(model, mine)
    said = model._get_ddp_logging_data()
    assert said["avg_forward_compute_time"] > 0
    assert said["avg_backward_compute_time"] > 0


@check
def ddp_hooks() -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    def doubled(group: Any, bucket: Any) -> Any:
        """A program's own, which goes on in the future's callback."""
        work = dist.all_reduce(bucket.buffer() / (2 * SIZE), group=group, async_op=True)
        return work.get_future().then(lambda done: done.value()[0] * 2)  # type: ignore[union-attr]

    doubled.__annotations__.clear()  # which are texts here, and DDP compares them with types

    for hook, tolerance in (
        (default_hooks.allreduce_hook, 1e-5),
        (doubled, 1e-5),
        (default_hooks.fp16_compress_hook, 1e-2),
        (default_hooks.bf16_compress_hook, 5e-2),
        (default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook), 1e-2),
    ):
        model = data_parallel(network())
        model.register_comm_hook(None, hook)  # type: ignore[arg-type]
        assert_parallel_as_alone(model, rtol=tolerance, atol=tolerance)


@check
def ddp_mixed_precision() -> None:
    from torch.nn.parallel.distributed import _MixedPrecision

    def with_autocast(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        with torch.autocast(inputs.device.type, torch.bfloat16):
            return plain_step(model, inputs, targets)

    loose = {"rtol": 5e-2, "atol": 5e-2}
    assert_parallel_as_alone(data_parallel(network()), with_autocast, **loose)
    precision = _MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = data_parallel(network(), mixed_precision=precision)
    # Torch loses the gradients of the first step, on the CPU too: its buckets get the dtype, their views keep another.
    plain_step(model, *(mine(each) for each in next(iter(batches()))))
    assert_parallel_as_alone(model, **loose)
    assert all(p.dtype == torch.float32 for p in model.parameters())


@check
def ddp_uneven_inputs() -> None:
    """A process that has no more inputs shadows the others' collectives."""
    from torch.distributed.algorithms.join import Join

    model = data_parallel(network())
    optimizer = sgd(model.parameters())
    batch = next(iter(batches()))
    inputs, targets = (mine(each) for each in batch)
    steps = 0
    with Join([model]):
        for _ in range(RANK + 1):
            optimizer.zero_grad()
            plain_step(model, inputs, targets)
            optimizer.step()
            steps += 1
    assert steps == RANK + 1
    assert_same_everywhere(model.parameters())
    try:
        with model.join(throw_on_early_termination=True):
            for _ in range(RANK + 1):
                plain_step(model, inputs, targets)
    except RuntimeError as error:
        assert "uneven" in str(error).lower() or "exhausted" in str(error).lower()
    else:
        raise AssertionError("early ends were to be told")


@check
def ddp_buffers() -> None:
    """The first process's buffers are everybody's."""
    torch.manual_seed(RANK)
    model = data_parallel(nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4)))
    train(model, mine)
    found = values_of([model.module[1].running_mean])[0]
    others = [torch.empty_like(found) for _ in range(SIZE)]
    dist.all_gather(others, found)
    assert not all(torch.equal(found, other) for other in others)  # each has seen its part only
    model.eval()
    model(mine(next(iter(batches()))[0]))  # which hands them round before
    assert_same_everywhere(model.buffers())
    assert_same_everywhere(model.parameters())


@check
def synchronized_batch_norm() -> None:
    """Statistics of the whole batch, in either order of dimensions, with gradients."""

    def make(channels_last: bool) -> nn.Module:
        torch.manual_seed(5)
        model = nn.Sequential(nn.Conv2d(2, 6, 2), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(6, 4))
        return model.to(memory_format=torch.channels_last) if channels_last else model

    def step(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return plain_step(model, inputs.view(-1, 2, 2, 2), targets)

    for channels_last in (False, True):
        alone = make(channels_last)
        model = data_parallel(nn.SyncBatchNorm.convert_sync_batchnorm(make(channels_last)))
        assert_parallel_as_alone(model, step, alone=alone, alone_step=step, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(values_of(model.module.buffers()), values_of(alone.buffers()), rtol=1e-4, atol=1e-5)
        x = next(iter(batches()))[0].view(-1, 2, 2, 2)
        found = model.module.eval()(x.to(DEVICE)).cpu()
        torch.testing.assert_close(found, alone.eval()(x), rtol=1e-4, atol=1e-5)


@check
def synchronized_batch_norm_of_uneven_batches() -> None:
    """A process may have fewer rows than others, of 16 bits too."""
    torch.manual_seed(6)
    rows = torch.randn(3 * SIZE + sum(range(SIZE)), 5)
    start = 3 * RANK + sum(range(RANK))
    part = rows[start : start + 3 + RANK].to(DEVICE)
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 3e-2)):
        layer, alone = nn.SyncBatchNorm(5).to(DEVICE), nn.BatchNorm1d(5)
        found = layer(part.to(dtype))
        expected = alone(rows.to(dtype).float())[start : start + 3 + RANK]
        torch.testing.assert_close(found.float().cpu(), expected, rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(layer.running_var.cpu(), alone.running_var)  # type: ignore[union-attr]


# ---- ZeroRedundancyOptimizer ----


@check
def zero_redundancy() -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    def adam(parameters: Iterable[torch.Tensor]) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, lr=0.01)

    for as_views in (False, True):
        made: list[ZeroRedundancyOptimizer] = []

        def zero(parameters: Any, as_views: bool = as_views, made: Any = made) -> torch.optim.Optimizer:
            options = {"lr": 0.01, "parameters_as_bucket_view": as_views}
            made.append(ZeroRedundancyOptimizer(parameters, torch.optim.Adam, **options))
            return made[0]

        model = data_parallel(network())
        losses = average(train(model, mine, make_optimizer=zero))
        assert_trained_as_alone(model, losses, make_optimizer=adam, rtol=1e-3, atol=1e-5)
        assert len(made[0].optim.state) < len(list(model.parameters()))  # each has its part of the state
        made[0].consolidate_state_dict(to=0)
        if RANK == 0:
            state = made[0].state_dict()["state"]
            assert len(state) == len(list(model.parameters()))


# ---- FSDP2 ----


def sharded(**options: Any) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    model = network().to(DEVICE)
    for layer in model.children():
        if isinstance(layer, nn.Linear):
            fully_shard(layer, **options)
    fully_shard(model, **options)
    return model


def assert_sharded_as_alone(model: nn.Module, step: Step = plain_step, **expectation: Any) -> None:
    losses = average(train(model, mine, step))
    assert_trained_as_alone(model, losses, **expectation)


@check
def fsdp_reshards() -> None:
    for reshard in (True, False, *([2] if SIZE == 4 else [])):
        assert_sharded_as_alone(sharded(reshard_after_forward=reshard))


@check
def fsdp_mixed_precision() -> None:
    from torch.distributed.fsdp import MixedPrecisionPolicy

    model = sharded(mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))

    def in_float32(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        outputs = model(inputs)
        assert outputs.dtype == torch.bfloat16
        loss = mse_loss(outputs.float(), targets)
        loss.backward()
        return loss.detach()

    assert_sharded_as_alone(model, in_float32, rtol=5e-2, atol=5e-2)
    assert all(p.dtype == torch.float32 for p in model.parameters())


@check
def fsdp_offloads() -> None:
    """Parameters, gradients and the optimizer's state are the CPU's."""
    from torch.distributed.fsdp import CPUOffloadPolicy

    for pinned in (True, False):
        model = sharded(offload_policy=CPUOffloadPolicy(pin_memory=pinned))
        parts = [p.to_local() for p in model.parameters()]  # type: ignore[attr-defined]
        assert all(part.device.type == "cpu" and (part.is_pinned() == pinned or not part.numel()) for part in parts)
        assert_sharded_as_alone(model)
        assert all(p.grad is None or p.grad.device.type == "cpu" for p in model.parameters())


@check
def fsdp_prefetches() -> None:
    model = sharded()
    layers: list[Any] = [layer for layer in model.children() if isinstance(layer, nn.Linear)]
    for before, after in pairwise(layers):
        before.set_modules_to_forward_prefetch([after])
        after.set_modules_to_backward_prefetch([before])
    model.unshard(async_op=True)  # type: ignore[operator]
    assert_sharded_as_alone(model)


@check
def fsdp_accumulates() -> None:
    def in_parts(model: Any, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        losses = []
        for last, (x, y) in enumerate(zip(inputs.chunk(2), targets.chunk(2), strict=True)):
            model.set_is_last_backward(bool(last))
            model.set_requires_gradient_sync(bool(last))
            loss = mse_loss(model(x), y) / 2
            loss.backward()
            losses.append(loss.detach())
        return torch.stack(losses).sum()

    assert_sharded_as_alone(sharded(), in_parts)


@check
def fsdp_clips_gradients() -> None:
    def clipped(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        loss = plain_step(model, inputs, targets)
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        return loss

    assert_sharded_as_alone(sharded(), clipped, alone_step=clipped)


@check
def fsdp_in_replicas() -> None:
    """Shards in one dimension of a mesh, replicas in the other."""
    from torch.distributed.device_mesh import init_device_mesh

    for shape in {(SIZE, 1), (1, SIZE), *([(2, 2)] if SIZE == 4 else [])}:
        mesh = init_device_mesh(DEVICE, shape, mesh_dim_names=("replicas", "shards"))
        assert_sharded_as_alone(sharded(mesh=mesh))


@check
def fsdp_from_meta() -> None:
    """Parameters that are made where they are to be, of a network without."""
    from torch.distributed.fsdp import fully_shard

    with torch.device("meta"):
        model = network()
    for layer in model.children():
        fully_shard(layer)
    fully_shard(model)
    model.to_empty(device=DEVICE)
    torch.manual_seed(3)
    with torch.no_grad():
        for p in model.parameters():
            p.uniform_(-0.1, 0.1)
    torch.manual_seed(3)
    expected = [torch.empty(p.shape, device=DEVICE).uniform_(-0.1, 0.1) for p in model.parameters()]
    assert_same_everywhere(model.parameters())
    assert [p.shape for p in values_of(model.parameters())] == [p.shape for p in expected]
    losses = average(train(model, mine))
    assert all(loss.isfinite() for loss in losses)


@check
def replicated() -> None:
    """DDP's composable form."""
    from torch.distributed._composable.replicate import replicate

    model = network().to(DEVICE)
    replicate(model)
    assert_sharded_as_alone(model)


# ---- FSDP1 ----


def flattened(**options: Any) -> nn.Module:
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    policy = ModuleWrapPolicy({nn.Linear})
    return FullyShardedDataParallel(network().to(DEVICE), auto_wrap_policy=policy, use_orig_params=True, **options)


def assert_flattened_as_alone(model: Any, **tolerances: float) -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel

    losses = average(train(model, mine))
    expected = network()
    torch.testing.assert_close(losses, train(expected, whole), **tolerances)
    with FullyShardedDataParallel.summon_full_params(model):
        found = values_of(model.parameters())
    assert_same_everywhere(found)
    torch.testing.assert_close(found, values_of(expected.parameters()), **tolerances)


@check
def fsdp1_strategies() -> None:
    from torch.distributed.fsdp import ShardingStrategy

    for strategy in (ShardingStrategy.FULL_SHARD, ShardingStrategy.SHARD_GRAD_OP, ShardingStrategy.NO_SHARD):
        assert_flattened_as_alone(flattened(sharding_strategy=strategy, device_id=torch.device(DEVICE, 0)))


@check
def fsdp1_mixed_precision_and_offloading() -> None:
    from torch.distributed.fsdp import CPUOffload, MixedPrecision

    precision = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    assert_flattened_as_alone(flattened(mixed_precision=precision), rtol=5e-2, atol=5e-2)
    assert_flattened_as_alone(flattened(cpu_offload=CPUOffload(offload_params=True)))


@check
def fsdp1_state() -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel, StateDictType

    model = flattened()
    train(model, mine)
    for kind in (StateDictType.FULL_STATE_DICT, StateDictType.SHARDED_STATE_DICT):
        with FullyShardedDataParallel.state_dict_type(model, kind):
            state = {name: value.clone() for name, value in model.state_dict().items()}
        again = flattened()
        with FullyShardedDataParallel.state_dict_type(again, kind):
            again.load_state_dict(state)
        for p, q in zip(model.parameters(), again.parameters(), strict=True):
            assert torch.equal(p.cpu(), q.cpu())


# ---- DTensor ----


@check
def meshes() -> None:
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh(DEVICE, (1, SIZE), mesh_dim_names=("outer", "inner"))
    assert mesh.device_type == torch.device(DEVICE).type
    x = torch.full((3,), float(RANK), device=DEVICE)
    dist.all_reduce(x, group=mesh["inner"].get_group())
    assert x.tolist() == [float(sum(range(SIZE)))] * 3
    assert mesh.get_local_rank("inner") == RANK and mesh["outer"].size() == 1
    flat = mesh._flatten("all")
    assert flat.size() == SIZE


@check
def random_tensors_in_parts() -> None:
    """Parts are drawn of one seed and are all different, copies equal, and the generators stay together."""
    import torch.distributed.tensor as dtensor
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh(DEVICE, (SIZE,))
    shape = (4 * SIZE, 8)
    for make in (dtensor.rand, dtensor.randn):
        for placement in (dtensor.Shard(0), dtensor.Shard(1), dtensor.Replicate()):
            torch.manual_seed(7)
            drawn = [make(*shape, device_mesh=mesh, placements=[placement]) for _ in range(2)]
            assert_same_everywhere([*drawn, torch.rand(3, device=DEVICE)])
            assert len(torch.cat(values_of(drawn)).unique()) == 2 * 4 * SIZE * 8
        torch.manual_seed(7)
        assert_same_everywhere([make(*shape, device_mesh=mesh, placements=[dtensor.Replicate()]).to_local()])
    x = dtensor.distribute_tensor(torch.ones(shape, device=DEVICE), mesh, [dtensor.Replicate()])
    dropped = torch.nn.functional.dropout(x, 0.5)
    assert_same_everywhere([dropped.to_local()])  # type: ignore[attr-defined]


@check
def operations_on_parts() -> None:
    """Ops that redistribute by themselves, with gradients."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh(DEVICE, (SIZE,))
    torch.manual_seed(9)
    x, y = torch.randn(SIZE + 1, 6), torch.randn(6, SIZE)  # which do not divide evenly
    functions: list[Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = [
        lambda a, b: a @ b,
        lambda a, b: (a @ b).softmax(-1),
        lambda a, b: a.sum(0) * b.t().mean(0),
        lambda a, b: torch.nn.functional.layer_norm(a, [6]).relu() @ b,
        lambda a, b: torch.cat([a, a])[1:].abs().amax(0) + b[:, 0],
    ]
    for function in functions:
        for placement in (Shard(0), Shard(1), Replicate()):
            a, b = x.clone().requires_grad_(), y.clone().requires_grad_()
            function(a, b).square().sum().backward()
            there = [distribute_tensor(t.to(DEVICE), mesh, [placement]).requires_grad_() for t in (x, y)]
            function(*there).square().sum().backward()
            torch.testing.assert_close(values_of(t.grad for t in there), [a.grad, b.grad])  # type: ignore[misc]


class Block(nn.Module):
    """A transformer's, with heads for two, three or four processes."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.LayerNorm(24)
        self.queries, self.keys, self.values = (nn.Linear(24, 24) for _ in range(3))
        self.joined = nn.Linear(24, 24)
        self.between = nn.LayerNorm(24)
        self.up, self.down = nn.Linear(24, 48), nn.Linear(48, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.before(x)
        q, k, v = (f(y).unflatten(-1, (-1, 2)).transpose(1, 2) for f in (self.queries, self.keys, self.values))
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.joined(attended.transpose(1, 2).flatten(2))
        result: torch.Tensor = x + self.down(nn.functional.gelu(self.up(self.between(x))))
        return result


class Sequences(nn.Module):
    """Blocks on sequences of the usual rows."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Linear(8, 24), nn.Linear(24, 4)
        self.blocks = nn.Sequential(Block(), Block())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head(self.blocks(self.embedding(x.view(2, -1, 8)))).view(-1, 4)
        return result


@check
def attention_in_parts() -> None:
    """Of DTensors: cut by heads or by batch, with and without a bias of its own for each, with fewer heads of keys; and
    with so few heads that a process may have none."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    from torch.nn.functional import scaled_dot_product_attention as attention

    mesh = init_device_mesh(DEVICE, (SIZE,))
    torch.manual_seed(14)
    query, key, value = (torch.randn(2 * SIZE, 2 * SIZE, 9, 8) for _ in range(3))
    cases: list[tuple[int, int, torch.Tensor | None, dict[str, Any]]] = [
        (2 * SIZE, 2 * SIZE, None, {}),
        (2 * SIZE, 2 * SIZE, None, {"is_causal": True}),
        (2 * SIZE, 2 * SIZE, torch.randn(2 * SIZE, 9, 9), {}),
        (2 * SIZE, 2 * SIZE, torch.randn(2 * SIZE, 1, 9, 9), {}),
        (2 * SIZE, SIZE, None, {"enable_gqa": True}),
        (2 * SIZE, 1, None, {"enable_gqa": True}),
        (SIZE + 1, SIZE + 1, torch.randn(1, 9, 9), {}),
    ]
    for heads, key_heads, bias, options in cases:
        operands = [query[:, :heads], key[:, :key_heads], value[:, :key_heads], *([] if bias is None else [bias])]
        alone = [t.clone().requires_grad_() for t in operands]
        expected = attention(*alone, **options)
        expected.square().sum().backward()
        for dim in (0, 1):
            places = [Shard(dim) if t.dim() == 4 and t.shape[dim] >= SIZE else Replicate() for t in operands]
            pairs = zip(operands, places, strict=True)
            parts = [distribute_tensor(t.to(DEVICE), mesh, [place]).requires_grad_() for t, place in pairs]
            found = attention(*parts, **options)
            found.square().sum().backward()
            if key_heads != 1:
                assert found.placements == (Shard(dim),), found.placements
            torch.testing.assert_close(found.full_tensor().cpu(), expected)
            for part, one in zip(parts, alone, strict=True):
                torch.testing.assert_close(part.grad.full_tensor().cpu(), one.grad, rtol=1e-4, atol=1e-5)


def sequences() -> nn.Module:
    torch.manual_seed(12)
    return Sequences()


COLUMNS = ("queries", "keys", "values", "up")


@check
def tensor_parallel() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh(DEVICE, (SIZE,))
    model: Any = sequences().to(DEVICE)
    plan = {**{name: ColwiseParallel() for name in COLUMNS}, "joined": RowwiseParallel(), "down": RowwiseParallel()}
    for block in model.blocks:
        parallelize_module(block, mesh, plan)
    # Norms are no DTensors, which torch does not mix with others in one call of a list.
    losses = train(model, whole_there, make_optimizer=partial(sgd, foreach=False))
    assert_trained_as_alone(model, losses, alone=sequences(), rtol=1e-4, atol=1e-5)


@check
def sequence_parallel() -> None:
    """Norms and what is between them have a part of each sequence, and the last loss a part of the classes."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        loss_parallel,
        parallelize_module,
    )

    mesh = init_device_mesh(DEVICE, (SIZE,))
    model: Any = sequences().to(DEVICE)
    rows = Shard(1)
    for block in model.blocks:
        plan = {
            "before": SequenceParallel(),
            **{name: ColwiseParallel(input_layouts=rows) for name in COLUMNS},
            "joined": RowwiseParallel(output_layouts=rows),
            "between": SequenceParallel(),
            "up": ColwiseParallel(input_layouts=rows),
            "down": RowwiseParallel(output_layouts=rows),
        }
        parallelize_module(block, mesh, plan)
    parallelize_module(model, mesh, {"embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=rows)})
    parallelize_module(model.head, mesh, PrepareModuleInput(input_layouts=rows, desired_input_layouts=Replicate()))
    parallelize_module(model.head, mesh, ColwiseParallel(output_layouts=Replicate()))
    losses = train(model, whole_there)
    assert_trained_as_alone(model, losses, alone=sequences(), rtol=1e-4, atol=1e-5)
    torch.manual_seed(13)
    layer, rows_of = nn.Linear(8, 4 * SIZE), torch.randn(6, 8)
    classes = torch.randint(0, 4 * SIZE, (6,))
    expected = nn.functional.cross_entropy(layer(rows_of), classes)
    there = parallelize_module(layer.to(DEVICE), mesh, ColwiseParallel(use_local_output=False))
    with loss_parallel():
        loss = nn.functional.cross_entropy(there(rows_of.to(DEVICE)), classes.to(DEVICE))
        loss.backward()
    torch.testing.assert_close(values_of([loss]), [expected.detach()])


@check
def tensors_and_shards() -> None:
    """Tensor parallel in one dimension of a mesh, fully sharded in the other."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    outer = 2 if SIZE == 4 else 1
    mesh = init_device_mesh(DEVICE, (outer, SIZE // outer), mesh_dim_names=("data", "tensor"))
    model: Any = sequences().to(DEVICE)
    plan = {**{name: ColwiseParallel() for name in COLUMNS}, "joined": RowwiseParallel(), "down": RowwiseParallel()}
    for block in model.blocks:
        parallelize_module(block, mesh["tensor"], plan)
        fully_shard(block, mesh=mesh["data"])
    fully_shard(model, mesh=mesh["data"])
    row = mesh.get_local_rank("data")
    losses = average(train(model, lambda batch: batch.chunk(outer)[row].to(DEVICE)))
    alone = sequences()

    def in_rows(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Sequences are as long as a process's."""
        loss = torch.stack(
            [mse_loss(model(x), y) for x, y in zip(inputs.chunk(outer), targets.chunk(outer), strict=True)]
        ).mean()
        loss.backward()
        return loss.detach()

    assert_trained_as_alone(model, losses, alone=alone, alone_step=in_rows, rtol=1e-4, atol=1e-5)


# ---- Functional collectives ----


@check
def functional_collectives() -> None:
    from torch.distributed import _functional_collectives as functional

    group = dist.group.WORLD
    x = torch.full((2 * SIZE,), float(RANK + 1), device=DEVICE)
    total = sum(range(1, SIZE + 1))
    assert functional.all_reduce(x, "sum", group).tolist() == [float(total)] * 2 * SIZE
    assert functional.all_reduce(x, "avg", group).tolist() == [total / SIZE] * 2 * SIZE
    gathered = functional.all_gather_tensor(x, 0, group)
    assert gathered.view(SIZE, -1)[:, 0].tolist() == [float(rank + 1) for rank in range(SIZE)]
    assert functional.reduce_scatter_tensor(x, "sum", 0, group).tolist() == [float(total)] * 2
    assert (
        functional.all_to_all_single(x, None, None, group).view(SIZE, 2)[:, 0].tolist()
        == gathered[:: 2 * SIZE].tolist()
    )
    assert functional.broadcast(x, SIZE - 1, group).tolist() == [float(SIZE)] * 2 * SIZE
    first, second = functional.all_reduce_coalesced([x, x * 2], "sum", group)
    assert (second / first).tolist() == [2.0] * 2 * SIZE
    x.requires_grad_()
    functional.all_gather_tensor_autograd(x, 0, group).square().sum().backward()
    assert x.grad is not None and x.grad.tolist() == (x.detach() * 2 * SIZE).tolist()


@check
def compiled_collectives() -> None:
    from torch.distributed import _functional_collectives as functional

    @torch.compile(backend="aot_eager", fullgraph=True)
    def function(x: torch.Tensor) -> torch.Tensor:
        return functional.all_reduce(x * 2, "sum", dist.group.WORLD) + 1

    found = function(torch.full((3,), float(RANK), device=DEVICE))
    assert found.tolist() == [2.0 * sum(range(SIZE)) + 1] * 3


# ---- Pipelines ----


@check
def pipelines() -> None:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

    def make() -> nn.Sequential:
        torch.manual_seed(14)
        stages = (nn.Sequential(nn.Linear(8, 8), nn.GELU()) for _ in range(SIZE - 1))
        return nn.Sequential(*stages, nn.Linear(8, 4))

    for schedule_type in (ScheduleGPipe, Schedule1F1B):
        part = make()[RANK].to(DEVICE)
        stage = PipelineStage(part, RANK, SIZE, torch.device(DEVICE))
        schedule = schedule_type(stage, n_microbatches=2 * SIZE, loss_fn=mse_loss)
        optimizer = sgd(part.parameters())
        found = []
        for inputs, targets in batches():
            optimizer.zero_grad()
            losses: list[torch.Tensor] = []
            if RANK == 0:
                schedule.step(inputs.to(DEVICE))
            elif RANK == SIZE - 1:
                schedule.step(target=targets.to(DEVICE), losses=losses)
                found.append(torch.stack(losses).mean().detach())
            else:
                schedule.step()
            optimizer.step()
        alone = make()
        expected = train(alone, whole)
        if found:
            torch.testing.assert_close(values_of(found), expected)
        torch.testing.assert_close(values_of(part.parameters()), values_of(alone[RANK].parameters()))


@check
def interleaved_pipelines() -> None:
    """Two stages in each process, and backward passes that are split."""
    from torch.distributed.pipelining import PipelineStage, ScheduleInterleaved1F1B, ScheduleInterleavedZeroBubble

    def make() -> nn.Sequential:
        torch.manual_seed(14)
        return nn.Sequential(*(nn.Linear(8, 8) for _ in range(2 * SIZE - 1)), nn.Linear(8, 4))

    for schedule_type in (ScheduleInterleaved1F1B, ScheduleInterleavedZeroBubble):
        parts = [make()[number].to(DEVICE) for number in (RANK, RANK + SIZE)]
        stages = [
            PipelineStage(part, number, 2 * SIZE, torch.device(DEVICE))
            for part, number in zip(parts, (RANK, RANK + SIZE), strict=True)
        ]
        schedule = schedule_type(stages, n_microbatches=2 * SIZE, loss_fn=mse_loss)  # type: ignore[arg-type]
        inputs, targets = next(iter(batches()))
        if RANK == 0:
            schedule.step(inputs.to(DEVICE))
        elif RANK == SIZE - 1:
            schedule.step(target=targets.to(DEVICE))
        else:
            schedule.step()
        alone = make()
        plain_step(alone, inputs, targets)
        for part, number in zip(parts, (RANK, RANK + SIZE), strict=True):
            expected = [p.grad for p in alone[number].parameters()]
            torch.testing.assert_close([p.grad.cpu() for p in part.parameters()], expected)  # type: ignore[union-attr]


# ---- Checkpoints ----


def one_folder() -> str:
    """The same for all processes."""
    given = [tempfile.mkdtemp(dir=os.environ["CHECKS_RESULTS"])]
    dist.broadcast_object_list(given, 0)
    return given[0]


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    from torch.distributed.checkpoint.state_dict import get_state_dict

    of_model, of_optimizer = get_state_dict(model, optimizer)
    return {"model": of_model, "optimizer": of_optimizer}


def trained(model: nn.Module, part: Part, steps: int = 2) -> torch.optim.Optimizer:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for inputs, targets in batches(steps):
        optimizer.zero_grad()
        plain_step(model, part(inputs), part(targets))
        optimizer.step()
    return optimizer


@check
def checkpoints() -> None:
    """What is read back is what was saved, in other parts too, and training goes on as it would have."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import set_state_dict

    folder = one_folder()
    model = sharded()
    optimizer = trained(model, mine)
    dcp.save(state_of(model, optimizer), checkpoint_id=folder)
    again = sharded()
    other = trained(again, mine, steps=1)
    state = state_of(again, other)
    dcp.load(state, checkpoint_id=folder)
    set_state_dict(again, other, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    torch.testing.assert_close(values_of(again.parameters()), values_of(model.parameters()), rtol=0, atol=0)
    for inputs, targets in batches(1):
        for network_, optimizer_ in ((model, optimizer), (again, other)):
            optimizer_.zero_grad()
            plain_step(network_, mine(inputs), mine(targets))
            optimizer_.step()
    torch.testing.assert_close(values_of(again.parameters()), values_of(model.parameters()), rtol=0, atol=0)


@check
def checkpoints_in_one_process() -> None:
    """A checkpoint of several is read by each alone, on the device and on the CPU."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    folder = one_folder()
    model = sharded()
    trained(model, mine)
    dcp.save({"model": model.state_dict()}, checkpoint_id=folder)
    expected = values_of(model.parameters())
    for device in (DEVICE, "cpu"):
        alone = network().to(device)
        state = {"model": alone.state_dict()}
        dcp.load(state, checkpoint_id=folder, no_dist=True)
        alone.load_state_dict(state["model"])
        torch.testing.assert_close(values_of(alone.parameters()), expected, rtol=0, atol=0)
    if RANK == 0:
        dcp_to_torch_save(folder, f"{folder}/all.pt")
        state = torch.load(f"{folder}/all.pt")
        torch.testing.assert_close(list(state["model"].values()), expected, rtol=0, atol=0)


@check
def checkpoints_beside_training() -> None:
    """An asynchronous save has what was there when it was asked for."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

    folder = one_folder()
    model = sharded()
    trained(model, mine, steps=1)
    expected = values_of(model.parameters())
    future = dcp.async_save(
        {"model": model.state_dict()}, checkpoint_id=folder, async_checkpointer_type=AsyncCheckpointerType.THREAD
    )
    trained(model, mine)
    future.result()  # type: ignore[union-attr]
    again = sharded()
    state = {"model": again.state_dict()}
    dcp.load(state, checkpoint_id=folder)
    again.load_state_dict(state["model"])
    torch.testing.assert_close(values_of(again.parameters()), expected, rtol=0, atol=0)


@check
def whole_states() -> None:
    """Gathered to one process's CPU and spread again."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict

    model = sharded()
    trained(model, mine)
    expected = values_of(model.parameters())
    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if RANK == 0:
        torch.testing.assert_close(list(state.values()), expected, rtol=0, atol=0)
    again = sharded()
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(again, state, options=options)
    torch.testing.assert_close(values_of(again.parameters()), expected, rtol=0, atol=0)


# ---- Data ----


@check
def samplers() -> None:
    """Each process has other rows, and all have them all."""
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    rows = TensorDataset(torch.arange(8 * SIZE))
    sampler: DistributedSampler[Any] = DistributedSampler(rows, shuffle=True, seed=1)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        seen = torch.cat([batch.to(DEVICE) for (batch,) in DataLoader(rows, batch_size=3, sampler=sampler)])
        everything = torch.empty(8 * SIZE, dtype=torch.int64, device=DEVICE)
        dist.all_gather_into_tensor(everything, seen)
        assert sorted(everything.tolist()) == list(range(8 * SIZE))


if __name__ == "__main__":
    check.run()
