"""What each of several processes does, on the device and beside it on the CPU: started by test_distributed.py."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from ranks import DEVICE, RANK, SIZE, Checks

check = Checks()
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.int64, torch.int32, torch.int8, torch.uint8]


def values(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Other ones on each rank, the same in each run; sums of them are exact."""
    generator = torch.Generator().manual_seed(17 + RANK)
    return torch.randint(1, 4, shape, generator=generator).to(dtype)


def both(collective: Callable[[torch.Tensor], Any], x: torch.Tensor) -> None:
    """The same call with the device's tensor and with the CPU's; what each has done to its tensor is compared."""
    there, here = x.to(DEVICE), x.clone()
    collective(there)
    collective(here)
    assert there.device.type == torch.device(DEVICE).type
    torch.testing.assert_close(there.cpu(), here, rtol=0, atol=0)


def gathered(make: Callable[[torch.device], tuple[Any, list[torch.Tensor]]]) -> None:
    """The same for a call that fills other tensors: `make` calls it for a device, and returns them."""
    (_, there), (_, here) = make(torch.device(DEVICE)), make(torch.device("cpu"))
    for a, b in zip(there, here, strict=True):
        assert a.device.type == torch.device(DEVICE).type
        torch.testing.assert_close(a.cpu(), b, rtol=0, atol=0)


@check
def all_reduce() -> None:
    for dtype in FLOATS + INTEGERS:
        for op in (dist.ReduceOp.SUM, dist.ReduceOp.PRODUCT, dist.ReduceOp.MIN, dist.ReduceOp.MAX):
            both(lambda x, op=op: dist.all_reduce(x, op), values(5, 7, dtype=dtype))
    for op in (dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR):
        both(lambda x, op=op: dist.all_reduce(x, op), values(33, dtype=torch.int32))


@check
def average() -> None:
    for dtype in FLOATS:
        x = values(100, dtype=dtype).to(DEVICE)
        expected = values(100, dtype=dtype)
        dist.all_reduce(expected)
        dist.all_reduce(x, dist.ReduceOp.AVG)
        torch.testing.assert_close(x.cpu(), expected / SIZE)


@check
def layouts() -> None:
    """Strided, offset, conjugate, empty and zero-dim tensors."""
    for make in (lambda t: t.t(), lambda t: t[::2], lambda t: t[1:], lambda t: t[:, 1], lambda t: t[:0]):
        x = values(6, 5).to(DEVICE)
        view = make(x)
        expected = make(values(6, 5)).clone()
        dist.all_reduce(view)
        dist.all_reduce(expected)
        assert torch.equal(view.cpu(), expected)
        untouched = values(6, 5)
        make(untouched).copy_(expected)
        assert torch.equal(x.cpu(), untouched)
    both(lambda x: dist.all_reduce(x), torch.tensor(float(RANK)))
    z = torch.complex(values(8), values(8)).to(DEVICE)
    expected = torch.complex(values(8), values(8))
    dist.all_reduce(z)
    dist.all_reduce(expected)
    assert torch.equal(z.cpu(), expected)


@check
def booleans() -> None:
    flags = torch.tensor([RANK == 0, True, False], device=DEVICE)
    dist.all_reduce(flags, dist.ReduceOp.MAX)
    assert flags.tolist() == [True, True, False]
    dist.broadcast(flags := torch.tensor([RANK == 0], device=DEVICE), 0)
    assert flags.tolist() == [True]


@check
def broadcast_and_reduce() -> None:
    for root in range(SIZE):
        both(lambda x, root=root: dist.broadcast(x, root), values(300))
        x, expected = values(9).to(DEVICE), values(9)
        dist.reduce(x, root)
        dist.reduce(expected, root)
        if root == RANK:
            assert torch.equal(x.cpu(), expected)


@check
def gathers() -> None:
    def lists(device: torch.device) -> tuple[Any, list[torch.Tensor]]:
        out = [torch.empty(3, 2, device=device) for _ in range(SIZE)]
        return dist.all_gather(out, values(3, 2).to(device)), out

    def into(device: torch.device) -> tuple[Any, list[torch.Tensor]]:
        out = torch.empty(3 * SIZE, 2, device=device)
        return dist.all_gather_into_tensor(out, values(3, 2).to(device)), [out]

    def to_one(device: torch.device) -> tuple[Any, list[torch.Tensor]]:
        out = [torch.empty(4, device=device) for _ in range(SIZE)] if RANK == 0 else None
        return dist.gather(values(4).to(device), out, dst=0), out or []

    for each in (lists, into, to_one):
        gathered(each)


@check
def scatters() -> None:
    def from_one(device: torch.device) -> tuple[Any, list[torch.Tensor]]:
        out = torch.empty(4, device=device)
        parts = [values(4).to(device) + k for k in range(SIZE)] if RANK == 0 else None
        return dist.scatter(out, parts, src=0), [out]

    def reduced(device: torch.device) -> tuple[Any, list[torch.Tensor]]:
        out = torch.empty(4, device=device)
        return dist.reduce_scatter(out, [values(4).to(device) * (k + 1) for k in range(SIZE)]), [out]

    def reduced_tensor(device: torch.device) -> tuple[Any, list[torch.Tensor]]:
        out = torch.empty(4, device=device)
        return dist.reduce_scatter_tensor(out, values(4 * SIZE).to(device)), [out]

    for each in (from_one, reduced, reduced_tensor):
        gathered(each)


@check
def all_to_all() -> None:
    def single(device: torch.device) -> tuple[Any, list[torch.Tensor]]:
        out = torch.empty(2 * SIZE, 3, device=device)
        return dist.all_to_all_single(out, values(2 * SIZE, 3).to(device)), [out]

    def uneven(device: torch.device) -> tuple[Any, list[torch.Tensor]]:
        sent = torch.cat([values(k + 1).to(device) for k in range(SIZE)])
        out = torch.empty((RANK + 1) * SIZE, device=device)
        given = dist.all_to_all_single(out, sent, [RANK + 1] * SIZE, [k + 1 for k in range(SIZE)])
        return given, [out]

    gathered(single)
    gathered(uneven)
    out = [torch.empty(RANK + 1, device=DEVICE) for _ in range(SIZE)]
    dist.all_to_all(out, [torch.full((k + 1,), float(10 * RANK + k), device=DEVICE) for k in range(SIZE)])
    assert [t.tolist() for t in out] == [[10.0 * k + RANK] * (RANK + 1) for k in range(SIZE)]


@check
def point_to_point() -> None:
    after, before = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    received = torch.empty(50, device=DEVICE)
    incoming = dist.irecv(received, before)  # posted first by all: the queue must not wait for it
    dist.isend(torch.full((50,), float(RANK), device=DEVICE), after).wait()
    incoming.wait()
    assert received.unique().tolist() == [before]
    ops = [
        dist.P2POp(dist.isend, torch.full((5,), float(RANK), device=DEVICE), after, tag=3),
        dist.P2POp(dist.irecv, received[:5], before, tag=3),
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    assert received[:5].tolist() == [float(before)] * 5
    if RANK == 0:
        for _ in range(SIZE - 1):
            found = torch.empty(1, device=DEVICE)
            assert dist.recv(found) == int(found.item())
    else:
        dist.send(torch.tensor([float(RANK)], device=DEVICE), 0)


@check
def the_streams_order() -> None:
    """What was queued before a collective is in it, and what is queued after `wait` finds its result."""
    x = torch.ones(300, 300, device=DEVICE) / 300
    for _ in range(20):
        y = x @ x
        y += 1
        work = dist.all_reduce(y, async_op=True)
        work.wait()
        expected = (torch.ones(300, 300) / 300 + 1) * SIZE
        torch.testing.assert_close((y * 1).cpu(), expected)
    with torch.Stream(device=DEVICE):
        z = x.sum() * 0 + RANK
        dist.all_reduce(z)
        assert z.item() == sum(range(SIZE))


@check
def futures() -> None:
    x = torch.full((4,), 1.0, device=DEVICE)
    future = dist.all_reduce(x, async_op=True).get_future()
    doubled = future.then(lambda done: [t * 2 for t in done.value()])
    (result,) = doubled.wait()
    assert result.tolist() == [2.0 * SIZE] * 4 and result.device.type == torch.device(DEVICE).type


@check
def kinds_of_booleans_and_other_types() -> None:
    """Types that the inner backend does not know: moved as bytes, computed as what comes to the same."""
    flags = torch.tensor([RANK == 0, True, False], device=DEVICE)
    dist.all_reduce(flags, dist.ReduceOp.SUM)
    assert flags.tolist() == [True, True, False]
    dist.all_reduce(flags, dist.ReduceOp.PRODUCT)
    assert flags.tolist() == [True, True, False]
    for dtype in (torch.int16, torch.complex64, torch.bool):
        part = (torch.arange(3) + RANK).to(dtype).to(DEVICE)
        whole = torch.empty(3 * SIZE, dtype=dtype, device=DEVICE)
        dist.all_gather_into_tensor(whole, part)
        assert torch.equal(whole.cpu(), torch.cat([(torch.arange(3) + rank).to(dtype) for rank in range(SIZE)]))


@check
def large_ones_in_pieces() -> None:
    """More than four MB for each rank: in pieces where memory is staged, and in one otherwise."""
    count = (5 << 20) // 4 + 3
    x, expected = values(count), values(count)
    both(lambda t: dist.all_reduce(t), x)
    both(lambda t: dist.broadcast(t, 1), x)
    there, here = (torch.empty(SIZE * count, device=device) for device in (DEVICE, "cpu"))
    dist.all_gather_into_tensor(there, x.to(DEVICE))
    dist.all_gather_into_tensor(here, expected)
    assert torch.equal(there.cpu(), here)
    for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT):
        mine, other = torch.empty(count, device=DEVICE), torch.empty(count)
        dist.reduce_scatter_tensor(mine, there, op)
        dist.reduce_scatter_tensor(other, here, op)
        assert torch.equal(mine.cpu(), other)
    average = torch.empty(count, device=DEVICE)
    dist.reduce_scatter_tensor(average, there, dist.ReduceOp.AVG)
    assert torch.equal(average.cpu(), here.view(SIZE, count)[RANK])


def differently_placed(x: torch.Tensor) -> torch.Tensor:
    """On the device, contiguous on the first rank and transposed on the others."""
    there = x.to(DEVICE)
    return there if RANK == 0 else there.t().contiguous().t()


@check
def large_ones_of_other_strides() -> None:
    """Strides are each rank's own: whether a call goes in pieces cannot depend on them."""
    x, nothing = values(1024, 1300), torch.zeros(1024, 1300)
    total = x.clone()
    dist.all_reduce(total)
    everybodys = [torch.empty_like(x) for _ in range(SIZE)]
    dist.all_gather(everybodys, x)

    for root in range(2):
        dist.broadcast(there := differently_placed(x), root)
        assert torch.equal(there.cpu(), everybodys[root])
    for op, expected in ((dist.ReduceOp.SUM, total), (dist.ReduceOp.AVG, total / SIZE)):
        dist.all_reduce(there := differently_placed(x), op)
        torch.testing.assert_close(there.cpu(), expected)
        dist.reduce_scatter(there := differently_placed(nothing), [differently_placed(x)] * SIZE, op)
        torch.testing.assert_close(there.cpu(), expected)
        dist.reduce_scatter_tensor(there := differently_placed(nothing), differently_placed(torch.cat([x] * SIZE)), op)
        torch.testing.assert_close(there.cpu(), expected)
    dist.all_gather(parts := [differently_placed(nothing) for _ in range(SIZE)], differently_placed(x))
    assert all(torch.equal(part.cpu(), each) for part, each in zip(parts, everybodys, strict=True))
    dist.all_gather_into_tensor(whole := differently_placed(torch.cat([nothing] * SIZE)), differently_placed(x))
    assert torch.equal(whole.cpu(), torch.cat(everybodys))


def assert_filled(value: float, *tensors: torch.Tensor) -> None:
    for tensor in tensors:
        assert tensor.device.type == torch.device(DEVICE).type
        torch.testing.assert_close(tensor.cpu(), torch.full(tensor.shape, value))


def fill_by_all_of_them(filled: Callable[[float], torch.Tensor]) -> None:
    """Every collective once; `filled` makes a tensor."""
    after, before, total = (RANK + 1) % SIZE, (RANK - 1) % SIZE, SIZE * (SIZE + 1) / 2

    def mine() -> torch.Tensor:
        return filled(RANK + 1.0)

    def room(count: int = SIZE) -> list[torch.Tensor]:
        return [filled(0.0) for _ in range(count)]

    dist.broadcast(x := mine(), 1)
    assert_filled(2.0, x)
    for op, expected in ((dist.ReduceOp.SUM, total), (dist.ReduceOp.AVG, total / SIZE)):
        dist.all_reduce(x := mine(), op)
        assert_filled(expected, x)
        dist.reduce(x := mine(), 0, op)
        assert_filled(expected, *[x] * (RANK == 0))
        dist.reduce_scatter(x := filled(0.0), [mine() for _ in range(SIZE)], op)
        assert_filled(expected, x)
        dist.reduce_scatter_tensor(x := filled(0.0), torch.stack([mine() for _ in range(SIZE)]), op)
        assert_filled(expected, x)
        dist.all_reduce_coalesced(several := [mine(), mine()], op)
        assert_filled(expected, *several)
    dist.all_gather(parts := room(), mine())
    dist.all_gather_into_tensor(whole := torch.stack(room()), mine())
    dist.all_to_all(swapped := room(), [mine() for _ in range(SIZE)])
    dist.all_to_all_single(at_once := torch.stack(room()), torch.stack([mine() for _ in range(SIZE)]))
    for rank in range(SIZE):
        assert_filled(rank + 1.0, parts[rank], whole[rank], swapped[rank], at_once[rank])
    dist.gather(mine(), parts := room(SIZE * (RANK == 0)) or None, dst=0)
    for rank, part in enumerate(parts or []):
        assert_filled(rank + 1.0, part)
    dist.scatter(x := filled(0.0), [filled(rank + 5.0) for rank in range(SIZE)] if RANK == 0 else None, src=0)
    assert_filled(RANK + 5.0, x)
    incoming = dist.irecv(x := filled(0.0), before)
    dist.send(mine(), after)
    incoming.wait()
    assert_filled(before + 1.0, x)


@check
def inference() -> None:
    """Tensors made in inference mode can be written nowhere else, and other threads do some of the writing."""
    with torch.inference_mode():
        fill_by_all_of_them(lambda value: torch.full((4, 3), value, device=DEVICE))
        fill_by_all_of_them(lambda value: torch.full((4, 3), value, device=DEVICE).t())
        x = torch.full((1100, 1000), 1.0, device=DEVICE)
        dist.all_reduce(x, dist.ReduceOp.AVG)
        dist.all_reduce(x.t(), dist.ReduceOp.SUM)
        assert_filled(float(SIZE), x)
    dist.all_reduce(x, dist.ReduceOp.AVG)
    assert_filled(float(SIZE), x)
    other = torch.ones(3, device=DEVICE)
    (found,) = dist.all_reduce(other, async_op=True).get_future().then(lambda done: [done.value()[0] * 2]).wait()
    assert not other.is_inference() and not found.is_inference()


@check
def sparse() -> None:
    """One collective takes them."""
    for device in (DEVICE, "cpu"):
        is_ours = device == DEVICE or "cpu:graft" in dist.get_backend_config()
        for op in (dist.ReduceOp.SUM, dist.ReduceOp.AVG)[: 1 + is_ours]:
            x = torch.sparse_coo_tensor([[RANK, SIZE]], [1.0, 2.0], (SIZE + 2,), device=device)
            dist.all_reduce(x, op)
            expected = torch.tensor([1.0] * SIZE + [2.0 * SIZE, 0.0]) / (SIZE if op == dist.ReduceOp.AVG else 1)
            assert x.is_sparse and x.device.type == torch.device(device).type
            torch.testing.assert_close(x.to_dense().cpu(), expected)
    try:
        dist.broadcast(torch.sparse_coo_tensor([[0]], [1.0], (3,), device=DEVICE), 0)
    except NotImplementedError as error:
        assert "of the collectives only all_reduce does" in str(error)
    else:
        raise AssertionError("only all_reduce was to take them")


@check
def complex_numbers() -> None:
    """Have sums and averages; the real and the imaginary part alone have no product and no order."""
    z = torch.full((SIZE, 3), complex(RANK + 1.0, 1.0), device=DEVICE)
    total = complex(SIZE * (SIZE + 1) / 2, SIZE)
    calls: list[Callable[[dist.ReduceOp.RedOpType, torch.Tensor], Any]] = [
        lambda op, out: dist.reduce(out.copy_(z[0]), 0, op),
        lambda op, out: dist.reduce_scatter(out, list(z), op),
        lambda op, out: dist.reduce_scatter_tensor(out, z, op),
    ]
    for call in calls:
        for op, expected in ((dist.ReduceOp.SUM, total), (dist.ReduceOp.AVG, total / SIZE)):
            call(op, out := torch.zeros_like(z[0]))
            assert (call is calls[0] and RANK != 0) or out.tolist() == [expected] * 3
        for op in (dist.ReduceOp.PRODUCT, dist.ReduceOp.MIN, dist.ReduceOp.MAX):
            try:
                call(op, torch.zeros_like(z[0]))
            except ValueError as error:
                assert "complex" in str(error)
            else:
                raise AssertionError(f"{op} of complex tensors")


@check
def messages_that_are_asked_about() -> None:
    """Whether they have come, while somebody waits for another; a limit holds whoever else waits."""
    after, before = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    mine, rooms = torch.full((5,), float(RANK), device=DEVICE), [torch.empty(5, device=DEVICE) for _ in range(3)]
    works = [dist.irecv(room, before, tag=tag) for tag, room in enumerate(rooms)]
    first, second = (work.get_future() for work in works[:2])
    begin = time.monotonic()
    try:
        works[0].wait(timedelta(milliseconds=50))
    except dist.DistBackendError as error:
        assert "has not ended within 50 ms" in str(error)
    else:
        raise AssertionError("nobody has sent it")
    assert time.monotonic() - begin < 10 and not works[2].is_completed()
    dist.barrier()  # one that was slow has waited as well
    dist.send(mine, after, tag=1)
    second.wait()
    dist.send(mine, after, tag=0)
    first.wait()
    dist.send(mine, after, tag=2)
    while not works[2].is_completed() and time.monotonic() < begin + 30:
        time.sleep(0.001)
    assert all(work.is_completed() for work in works)
    assert all(room.tolist() == [float(before)] * 5 for room in rooms)


@check
def coalesced_by_two_threads() -> None:
    """Each has its own calls."""
    group, device = dist.group.WORLD, torch.device(DEVICE)
    assert group is not None
    rooms, works = [torch.empty(2, device=DEVICE) for _ in range(2)], {}
    meeting = threading.Barrier(2, timeout=20)

    def run(number: int) -> None:
        group._start_coalescing(device)
        meeting.wait()
        dist.irecv(rooms[number], (RANK - 1) % SIZE, tag=number)
        meeting.wait()
        works[number] = group._end_coalescing(device)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len(works[number].result()) for number in range(2)] == [1, 1]
    for number in range(2):
        dist.send(torch.full((2,), float(number), device=DEVICE), (RANK + 1) % SIZE, tag=number)
        works[number].wait()
        assert rooms[number].tolist() == [float(number)] * 2


@check
def coalesced() -> None:
    from torch.distributed.distributed_c10d import _coalescing_manager

    tensors = [torch.full((3,), float(k), device=DEVICE) for k in range(4)]
    with _coalescing_manager():
        for tensor in tensors:
            dist.all_reduce(tensor)
    assert [t[0].item() for t in tensors] == [float(k * SIZE) for k in range(4)]
    with _coalescing_manager(device=torch.device(DEVICE), async_ops=True) as manager:
        dist.broadcast(tensors[0].fill_(RANK + 5), 0)
        dist.broadcast(tensors[1].fill_(RANK + 6), 1)
    manager.wait()
    assert tensors[0].tolist() == [5.0] * 3 and tensors[1].tolist() == [7.0] * 3


@check
def profiled() -> None:
    """A row for each call, and what goes in and out."""
    x = torch.ones(1000, device=DEVICE)
    with torch.profiler.profile(record_shapes=True) as profile:
        dist.all_reduce(x)
    rows = {event.name: event.input_shapes for event in profile.events()}
    assert rows["graft:all_reduce"] == [[1000]]
    assert "record_param_comms" in rows


@check
def many_at_once() -> None:
    works, tensors = [], []
    for number in range(50):
        tensors.append(torch.full((1000,), float(number + RANK), device=DEVICE))
        works.append(dist.all_reduce(tensors[-1], async_op=True))
    for work in reversed(works):
        work.wait()
    assert all(work.is_completed() for work in works)
    assert [int(t[0].item()) for t in tensors] == [SIZE * n + sum(range(SIZE)) for n in range(50)]


@check
def objects_and_barriers() -> None:
    found: list[Any] = [None] * SIZE
    dist.all_gather_object(found, {"rank": RANK})
    assert [each["rank"] for each in found] == list(range(SIZE))
    dist.barrier()
    given = [f"from {RANK}", torch.ones(2)]
    dist.broadcast_object_list(given, 0)
    assert given[0] == "from 0"


@check
def groups() -> None:
    pairs = dist.new_group([0, 1])
    alone = dist.new_group([RANK], use_local_synchronization=True)
    x = torch.full((3,), 1.0, device=DEVICE)
    if RANK < 2:
        dist.all_reduce(x, group=pairs)
        assert x.tolist() == [2.0] * 3
    dist.all_reduce(x, group=alone)
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh(torch.device(DEVICE).type, (SIZE,))
    y = torch.ones(2, device=DEVICE)
    dist.all_reduce(y, group=mesh.get_group())
    assert y.tolist() == [float(SIZE)] * 2


@check
def errors() -> None:
    """They belong to the call, and the group goes on."""
    try:
        dist.broadcast(torch.ones(2, device=DEVICE), SIZE + 3)
    except (RuntimeError, ValueError) as error:
        assert str(error)
    else:
        raise AssertionError("a root that there is not")
    x = torch.ones(3, device=DEVICE)
    dist.all_reduce(x)
    assert x.tolist() == [float(SIZE)] * 3


@check
def data_parallel() -> None:
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    alone = [p.detach().clone() for p in model.parameters()]
    inputs, targets = torch.randn(4 * SIZE, 8), torch.randn(4 * SIZE, 4)
    parallel = torch.nn.parallel.DistributedDataParallel(model.to(DEVICE))
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
    mine = slice(4 * RANK, 4 * RANK + 4)
    for _ in range(3):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(parallel(inputs[mine].to(DEVICE)), targets[mine].to(DEVICE)).backward()
        optimizer.step()
    expected = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    with torch.no_grad():
        for p, value in zip(expected.parameters(), alone, strict=True):
            p.copy_(value)
    optimizer = torch.optim.SGD(expected.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(expected(inputs), targets).backward()
        optimizer.step()
    for p, q in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(p.detach().cpu(), q.detach())
    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    others = [torch.empty_like(flat) for _ in range(SIZE)]
    dist.all_gather(others, flat)
    assert all(torch.equal(other.cpu(), flat.cpu()) for other in others)


@check
def fully_sharded() -> None:
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(4)
    model = torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(3)))
    expected = torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(3)))
    expected.load_state_dict(model.state_dict())
    model.to(DEVICE)
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    x = torch.randn(2 * SIZE, 16)
    for network, batch in ((model, x[2 * RANK : 2 * RANK + 2].to(DEVICE)), (expected, x)):
        optimizer = torch.optim.AdamW(network.parameters(), lr=0.01)
        for _ in range(3):
            optimizer.zero_grad()
            network(batch).square().mean().backward()
            optimizer.step()
    for p, q in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(p.full_tensor().detach().cpu(), q.detach(), rtol=1e-4, atol=1e-5)  # type: ignore[attr-defined]


@check
def tensors_in_parts() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh(torch.device(DEVICE).type, (SIZE,))
    torch.manual_seed(5)
    whole = torch.randn(4 * SIZE, 6)
    parts = distribute_tensor(whole.to(DEVICE), mesh, [Shard(0)])
    assert parts.to_local().shape == (4, 6)
    product = (parts @ parts.t()).redistribute(mesh, [Replicate()]).to_local()
    torch.testing.assert_close(product.cpu(), whole @ whole.t())
    model = torch.nn.Sequential(torch.nn.Linear(6, 4 * SIZE), torch.nn.GELU(), torch.nn.Linear(4 * SIZE, 6))
    expected = model(whole)
    parallelize_module(model.to(DEVICE), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    torch.testing.assert_close(model(whole.to(DEVICE)).detach().cpu(), expected.detach())


if __name__ == "__main__":
    check.run()
