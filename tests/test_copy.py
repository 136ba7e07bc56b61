"""Copies between host and device, between devices, and on one: any dtypes, strides and sizes that broadcast."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial

import pytest
import torch
from conftest import Script, in_threads

SHAPES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "dense": lambda x: x,
    "transposed": lambda x: x.t(),
    "strided": lambda x: x[1:4, ::2],
    "column": lambda x: x[:, 3],
    "expanded": lambda x: x[:1].expand(6, 8),
    "zero-dim": lambda x: x[2, 3],
    "empty": lambda x: x[:0],
}
WRITABLE = [name for name in SHAPES if name != "expanded"]
DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.complex64,
]

pytestmark = pytest.mark.filterwarnings("ignore:Casting complex values to real", "ignore:.* runs on the CPU")


def values(dtype: torch.dtype) -> torch.Tensor:
    numbers = torch.arange(48, dtype=torch.float32).view(6, 8) * 1.25 - 20
    if dtype is torch.complex64:
        return torch.complex(numbers, numbers.flip(0))
    return numbers.abs().to(dtype)  # a negative number has no one meaning as uint8


def same(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual.cpu(), expected, rtol=0, atol=0)


def test_onto_itself(device: str) -> None:
    tensor = torch.arange(6.0, device=device)
    assert tensor.copy_(tensor.detach()).tolist() == [0, 1, 2, 3, 4, 5]
    assert tensor.view(2, 3).copy_(tensor.detach().view(2, 3)).tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.thorough
def test_torchs_threads_stay_out_of_it(script: Script) -> None:
    """They would keep their cores busy for a millisecond after a copy, and the kernel that follows waiting for one. The
    device's own helpers are three at most.
    """
    script(
        """
        import os
        import torch
        torch.set_num_threads(16)
        host = bytearray(8_000_003)
        torch.zeros(3, device="ocl").cpu()  # the device has its workers
        before = len(os.listdir("/proc/self/task"))
        for count in (200_000, 1_000_001, 8_000_003):
            expected = torch.frombuffer(host, dtype=torch.uint8, count=count)
            there = expected.to("ocl")
            there.fill_(7)
            there = there.clone().zero_()
            there.copy_(expected)
            assert there.cpu().numpy().tobytes() == bytes(count)
            there[:-1].view(torch.int16 if count % 2 else torch.uint8).fill_(3)
            assert there[-2].item() == (0 if count % 2 else 3)
        assert len(os.listdir("/proc/self/task")) - before < 15
        """,
        autoload=True,
    )


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_to_the_device_and_back(device: str, shape: str, dtype: torch.dtype) -> None:
    host = SHAPES[shape](values(dtype))
    moved = host.to(device)
    assert moved.dtype == dtype
    assert moved.stride() == torch.empty_like(host).stride()
    same(moved, host)
    same(SHAPES[shape](values(dtype).to(device)), host)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("source", DTYPES)
def test_change_of_dtype(device: str, shape: str, source: torch.dtype) -> None:
    host = SHAPES[shape](values(source))
    there = SHAPES[shape](values(source).to(device))
    # Every pair of types where the layout matters least, fewer elsewhere: each pair is a kernel to compile.
    for target in DTYPES if shape in ("dense", "strided") else (torch.float32, torch.int64):
        expected = host.to(target)
        same(there.to(target), expected)
        same(host.to(device, target), expected)
        same(there.to("cpu", target), expected)


@pytest.mark.parametrize("shape", WRITABLE)
@pytest.mark.parametrize(
    ("source", "target"),
    [(torch.float32, torch.float32), (torch.uint8, torch.float32), (torch.float64, torch.bfloat16)],
)
def test_into_a_view(device: str, shape: str, source: torch.dtype, target: torch.dtype) -> None:
    view = SHAPES[shape]
    expected = torch.zeros(6, 8, dtype=target)
    view(expected).copy_(view(values(source)))
    for origin, goal in itertools.product((device, "cpu"), (device, "cpu")):
        actual = torch.zeros(6, 8, dtype=target).to(goal)
        view(actual).copy_(view(values(source).to(origin)))
        same(actual, expected)


def test_sizes_broadcast(device: str) -> None:
    row = torch.arange(8.0)
    for origin in (device, "cpu"):
        target = torch.zeros(6, 8, device=device)
        target.copy_(row.to(origin))
        same(target, row.expand(6, 8))
        target.copy_(torch.tensor(3, dtype=torch.int64).to(origin))
        same(target, torch.full((6, 8), 3.0))
        with pytest.raises(RuntimeError) as expected:
            torch.zeros(6, 8).copy_(torch.zeros(7))
        with pytest.raises(RuntimeError) as actual:
            target.copy_(torch.zeros(7).to(origin))
        assert str(actual.value) == str(expected.value)
        with pytest.raises(RuntimeError, match="doesn't match the broadcast shape"):
            target[0].copy_(torch.zeros(6, 8).to(origin))


def test_overlapping_memory_is_refused(device: str) -> None:
    x = torch.arange(6.0, device=device)
    with pytest.raises(RuntimeError, match="single memory location"):
        x[1:].copy_(x[:-1])
    with pytest.raises(RuntimeError, match="single memory location"):
        x[:1].expand(6).copy_(torch.arange(6.0))
    assert x.copy_(x) is x


LAZY: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "conj": lambda z: z.conj(),
    "transposed": lambda z: z.conj().t(),
    "part": lambda z: z.mT.conj()[1:],
    "imag": lambda z: z.conj().imag,
    "neg": lambda z: torch._neg_view(z),
    "neg of imag": lambda z: torch._neg_view(z.conj().imag),
}


@pytest.mark.parametrize("name", LAZY)
def test_lazy_conjugation_and_negation(device: str, name: str) -> None:
    view = LAZY[name]
    host = torch.complex(torch.arange(20.0), torch.arange(20.0).flip(0) + 1).view(5, 4)
    there, expected = view(host.to(device)), view(host)
    same(there, expected)
    same(there.clone(), expected)
    same(there + 1, expected + 1)
    same(view(host).to(device), expected)
    wider = torch.complex128 if expected.is_complex() else torch.float64
    same(there.to(wider), expected.to(wider))
    assert there[1, 2].item() == expected[1, 2].item()
    assert there.tolist() == expected.tolist()


@pytest.mark.parametrize("name", LAZY)
def test_writing_to_lazy_views(device: str, name: str) -> None:
    view = LAZY[name]
    source = torch.complex(torch.arange(20.0), torch.arange(20.0) - 7).view(5, 4)
    target = torch.zeros(5, 4, dtype=torch.complex64)
    numbers = source if view(target).is_complex() else source.imag
    numbers = numbers.reshape(-1)[: view(target).numel()].view(view(target).shape)
    view(target).copy_(numbers)
    for origin, goal in itertools.product((device, "cpu"), (device, "cpu")):
        actual = torch.zeros(5, 4, dtype=torch.complex64).to(goal)
        view(actual).copy_(numbers.to(origin))
        same(actual, target)
        if numbers.is_complex():
            actual.zero_()
            view(actual).copy_(numbers.conj().resolve_conj().to(origin).conj())
            same(actual, target)


def test_pinned_memory_goes_asynchronously(device: str) -> None:
    host = torch.arange(1 << 16, dtype=torch.float32).pin_memory()
    assert host.is_pinned()
    there = host.to(device, non_blocking=True)
    back = torch.empty_like(host).pin_memory()
    back.copy_(there, non_blocking=True)
    torch.accelerator.synchronize()
    same(back, host)


def test_pageable_memory_may_change_at_once(device: str) -> None:
    for _ in range(20):
        host = torch.ones(1 << 16)
        there = host.to(device, non_blocking=True)
        host.zero_()
        same(there, torch.ones(1 << 16))


def test_pinned_memory_is_not_used_again_too_early(device: str) -> None:
    targets = []
    for i in range(50):
        host = torch.full((1 << 14,), float(i)).pin_memory()
        targets.append(host.to(device, non_blocking=True))
        del host
    for i, target in enumerate(targets):
        same(target, torch.full((1 << 14,), float(i)))


@pytest.mark.parametrize("dtype", [*DTYPES, torch.complex128, torch.int16, torch.int32])
def test_item(device: str, dtype: torch.dtype) -> None:
    host = values(torch.complex64 if dtype.is_complex else dtype).to(dtype)
    there = host.to(device)
    assert there[2, 3].item() == host[2, 3].item()
    assert bool(there[5, 7]) == bool(host[5, 7])


def test_between_devices(device: str) -> None:
    kind, count = torch.device(device).type, torch.accelerator.device_count()
    if count < 2:
        pytest.skip("one device")
    for origin, goal in itertools.permutations(range(count), 2):
        for shape in SHAPES.values():
            host = shape(values(torch.float32))
            moved = shape(values(torch.float32).to(f"{kind}:{origin}")).to(f"{kind}:{goal}")
            assert moved.device.index == goal
            same(moved, host)
        target = torch.zeros(6, 8, dtype=torch.float64, device=f"{kind}:{goal}")
        target.t().copy_(values(torch.int64).to(f"{kind}:{origin}").t())
        same(target, values(torch.int64).double())


def test_threads(device: str) -> None:
    def work(number: int) -> None:
        for size in range(1, 60):
            host = torch.full((size, 7), float(number))
            same(host.to(device).t().double().to(torch.int32), host.t().int())

    in_threads(*(partial(work, number) for number in range(4)))


def test_copies_are_differentiable(device: str) -> None:
    x = torch.ones(3, requires_grad=True)
    (x.to(device).double().t().cpu() * 3).sum().backward()
    same(x.grad, torch.full((3,), 3.0))
    target = torch.zeros(2, 3, device=device)
    y = torch.ones(3, device=device, requires_grad=True)
    (target + 0).copy_(y).sum().backward()
    same(y.grad, torch.full((3,), 2.0))


class TestByTheHost:
    """Where the host may use the device's memory it copies and fills by itself, but never before what is queued."""

    # Bytes: by one thread, by several, and by the driver; with ends that fit no word.
    SIZES = (1, 63, (512 << 10) - 1, 512 << 10, (512 << 10) + 3, (4 << 20) + 1, (32 << 20) - 1, (32 << 20) + 5)

    @pytest.mark.parametrize("size", SIZES)
    def test_sizes(self, device: str, size: int) -> None:
        x = torch.randint(256, (size + 1,), dtype=torch.uint8)[1:]  # an odd address
        there = torch.full((size + 2,), 7, dtype=torch.uint8, device=device)
        inner = there[1:-1]
        inner.copy_(x)
        same(inner, x)
        same(inner.clone(), x)
        assert (there[0].item(), there[-1].item()) == (7, 7)
        inner.fill_(9)
        assert torch.equal(inner.cpu(), torch.full((size,), 9, dtype=torch.uint8))
        inner.zero_()
        assert inner.cpu().count_nonzero().item() == 0
        assert (there[0].item(), there[-1].item()) == (7, 7)

    @pytest.mark.parametrize("count", [3, 300_000])
    @pytest.mark.parametrize("dtype", [*DTYPES, torch.int16, torch.int32, torch.complex128], ids=str)
    def test_fills(self, device: str, dtype: torch.dtype, count: int) -> None:
        value = True if dtype is torch.bool else 3 if not (dtype.is_floating_point or dtype.is_complex) else -1.7
        value = complex(value, 0.3) if dtype.is_complex else value
        for where in (slice(None), slice(1, None), slice(None, None, 2)):
            expected, found = torch.zeros(count, dtype=dtype), torch.zeros(count, dtype=dtype, device=device)
            expected[where].fill_(value)
            found[where].fill_(value)
            same(found, expected)
            found[where].zero_()
            assert found.cpu().count_nonzero().item() == 0

    def test_numbers_that_do_not_fit_are_refused(self, device: str) -> None:
        for where in (device, "cpu"):
            x = torch.ones(4, dtype=torch.int8, device=where)
            with pytest.raises(RuntimeError, match="without overflow"):
                x.fill_(1000)
            with pytest.raises(RuntimeError):
                torch.ones(4, device=where).fill_(1 + 2j)
            assert x.tolist() == [1, 1, 1, 1]

    @pytest.mark.parametrize("size", [100, 200_000])
    def test_after_what_is_queued(self, device: str, size: int) -> None:
        for _ in range(20):
            work = torch.ones(1 << 20, device=device)
            x, out = torch.zeros(size, device=device), torch.ones(size, device=device)
            for _ in range(5):
                work = work * 1.0001 + 1e-6  # takes a while
            x += work[:size] * 0 + 1  # behind it
            out.copy_(x)  # and behind that
            x.zero_()
            y = x.clone()
            x.fill_(5)
            x.copy_(torch.full((size,), 6.0))
            assert out.cpu().unique().tolist() == [1]
            assert y.cpu().unique().tolist() == [0]
            assert x.cpu().unique().tolist() == [6]

    def test_by_many_threads(self, device: str) -> None:
        def copies(seed: int) -> None:
            source = torch.full((300_000,), float(seed))
            for _ in range(30):
                there = source.to(device)
                there.add_(1)
                twice = there.clone().fill_(seed)
                same(there, source + 1)
                same(twice, source)

        in_threads(*(partial(copies, seed) for seed in range(6)))


FLOAT8 = [
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
]


@pytest.mark.parametrize("dtype", FLOAT8)
class TestFloat8:
    """What the CPU does with numbers of 8 bits: they are stored, moved, viewed, converted and printed."""

    def test_moves_and_views(self, device: str, dtype: torch.dtype) -> None:
        x = torch.tensor([[1.0, 2.5, 0.1], [300.0, 0.0, 7.0]]).to(dtype)
        moved = x.to(device)
        assert moved.dtype == dtype and moved.device.type == torch.device(device).type
        for view in (
            lambda t: t,
            lambda t: t.t().contiguous(),
            lambda t: t[0, ::2].clone(),
            lambda t: torch.cat([t, t]),
            lambda t: t.reshape(3, 2),
            torch.zeros_like,
        ):
            assert torch.equal(view(moved).cpu().view(torch.uint8), view(x).view(torch.uint8))
        assert torch.equal(moved.view(torch.uint8).cpu(), x.view(torch.uint8))
        assert str(moved).split(", device")[0] == str(x).split(", dtype")[0]

    @pytest.mark.parametrize("other", [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int32])
    def test_conversions(self, device: str, dtype: torch.dtype, other: torch.dtype) -> None:
        x = torch.tensor([1.0, 2.0, 0.25, 5.0, 64.0])
        narrow = x.to(dtype)
        assert torch.equal(narrow.to(device).to(other).cpu(), narrow.to(other))
        converted = x.to(other).to(device).to(dtype).cpu()
        assert torch.equal(converted.view(torch.uint8), x.to(other).to(dtype).view(torch.uint8))
