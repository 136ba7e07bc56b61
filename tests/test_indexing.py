"""Reading and writing where index tensors say, against torch's CPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

pytestmark = pytest.mark.no_fallback

aten = torch.ops.aten

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]
DTYPES = [*FLOATS, *INTEGERS, torch.bool, torch.complex64]


def make(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    if dtype.is_complex:
        return torch.randn(shape, dtype=dtype)
    return torch.randn(shape).to(dtype) if dtype.is_floating_point else torch.randint(0, 9, shape).to(dtype)


def places(limit: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, limit, shape)


def tolerance_of(dtype: torch.dtype) -> float:
    return {torch.float64: 1e-12, torch.float16: 4e-3, torch.bfloat16: 3e-2}.get(dtype, 1e-5)


def compare(device: str, f: Callable[..., Any], *inputs: Any, backward: bool = False, tolerance: float = 0) -> None:
    """Runs f on the device and on the CPU; with `backward` its gradients are compared too."""
    results: list[list[torch.Tensor]] = []
    for where in (device, "cpu"):
        copies = [x.detach().clone().to(where) if isinstance(x, torch.Tensor) else x for x in inputs]
        if backward:
            copies = [
                x.requires_grad_() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in copies
            ]
        out = f(*copies)
        out = list(out) if isinstance(out, (tuple, list)) else [out]
        if backward:
            weighted = [(o * torch.linspace(1, 2, o.numel()).view(o.shape).to(o)).sum() for o in out if o.requires_grad]
            torch.stack(weighted).sum().backward()
            out += [x.grad for x in copies if isinstance(x, torch.Tensor) and x.grad is not None]
        results.append([o.detach() for o in out])
    for got, expected in zip(*results, strict=True):
        assert got.device.type != "cpu"
        torch.testing.assert_close(got.cpu(), expected, rtol=tolerance, atol=tolerance, equal_nan=True)


def layouts(x: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensor, and others of its shape that lie differently."""
    yield x
    if x.dim() > 1:
        yield x.transpose(0, -1).contiguous().transpose(0, -1)
    if x.dim() > 0:
        yield torch.stack((x, x), -1).flatten(-2)[..., 1::2]


# ---- index_select, gather, take ----


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_index_select_dtypes(device: str, dtype: torch.dtype) -> None:
    x = make((5, 4, 3), dtype)
    for dim in range(3):
        compare(device, lambda a, i, d=dim: a.index_select(d, i), x, places(x.size(dim), 7))
        compare(device, lambda a, i, d=dim: a.index_select(d, i), x, places(x.size(dim), 7).int())


def test_index_select(device: str) -> None:
    x = make((6, 5, 4))
    for y in layouts(x):
        for dim in (0, 1, 2, -1):
            compare(
                device,
                lambda a, i, d=dim: a.index_select(d, i),
                y,
                places(x.size(dim), 9),
                backward=True,
                tolerance=1e-5,
            )
    compare(device, lambda a, i: a.index_select(0, i[::2]), x, places(6, 8))
    compare(device, lambda a, i: a.index_select(0, i), x, places(6, 0))
    compare(device, lambda a, i: a.index_select(0, i), torch.tensor(3.0), torch.tensor([0]))
    compare(device, lambda a, i: a.index_select(0, i), x, torch.tensor(2))
    compare(device, lambda a, i: a.expand(3, 6, 5, 4).index_select(2, i), x, places(5, 3))
    compare(device, lambda a, i: a.conj().index_select(0, i), make((4, 3), torch.complex64), places(4, 3))
    compare(device, lambda a, i: a.index_select(0, i), make((1000, 300)), places(1000, 700))
    compare(device, lambda a, i: a.index_select(1, i), make((300, 1000)), places(1000, 700))
    out = torch.empty(0, device=device)
    torch.index_select(x.to(device), 1, torch.tensor([4, 0]).to(device), out=out)
    assert torch.equal(out.cpu(), x[:, [4, 0]])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gather_dtypes(device: str, dtype: torch.dtype) -> None:
    compare(device, lambda a, i: a.gather(1, i), make((4, 5), dtype), places(5, 4, 8))


def test_gather(device: str) -> None:
    x = make((6, 5, 4))
    for y in layouts(x):
        for dim in (0, 1, 2, -1):
            index = places(x.size(dim), 3, 4, 2)
            compare(device, lambda a, i, d=dim: a.gather(d, i), y, index, backward=True, tolerance=1e-5)
            compare(device, lambda a, i, d=dim: a.gather(d, i.transpose(0, 2)), y, places(x.size(dim), 2, 4, 3))
    compare(device, lambda a, i: a.gather(0, i), torch.tensor(3.0), torch.tensor(0))
    compare(device, lambda a, i: a.gather(0, i), make((3,)), torch.tensor(2))
    compare(device, lambda a, i: a.gather(0, i), x, places(6, 0, 2, 2))
    compare(device, lambda a, i: a.gather(1, i), make((200, 300)), places(300, 200, 300))
    compare(device, lambda a, i: a.gather(0, i), make((200, 300)), places(200, 200, 300))
    compare(device, lambda a, i: a.take_along_dim(i, 1), x, places(5, 6, 2, 4))
    out = torch.empty(2, 2, device=device)
    index = torch.tensor([[0, 1], [2, 0]])
    torch.gather(x[0].to(device), 0, index.to(device), out=out)
    assert torch.equal(out.cpu(), x[0].gather(0, index))


def test_take_and_put(device: str) -> None:
    x, index = make((6, 5, 4)), torch.tensor([[0, -1], [7, 100]])
    compare(device, lambda a, i: a.take(i), x, index, backward=True)
    compare(device, lambda a, i: a.transpose(0, 2).take(i), x, index)
    compare(device, lambda a, i, s: a.put(i, s), x, index, make((2, 2)), backward=True)
    compare(device, lambda a, i, s: a.put_(i, s), x, index, make((4,)))
    compare(
        device, lambda a, i, s: a.put(i, s, accumulate=True), x, torch.tensor([3, 3, -1]), make((3,)), tolerance=1e-6
    )
    compare(device, lambda a, i, s: a.transpose(0, 1).put_(i, s), x, index, make((4,)))


# ---- embedding ----


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(
    "options", [{}, {"padding_idx": 3}, {"scale_grad_by_freq": True}, {"padding_idx": -1}], ids=str
)
def test_embedding(device: str, dtype: torch.dtype, options: dict[str, Any]) -> None:
    weight, index = make((20, 8), dtype), places(20, 5, 7)
    index[0, :3] = 3
    tolerance = 3 * tolerance_of(dtype)
    compare(device, lambda w, i: F.embedding(i, w, **options), weight, index, backward=True, tolerance=tolerance)
    compare(device, lambda w, i: F.embedding(i.int(), w, **options), weight, index, backward=True, tolerance=tolerance)


def test_embedding_shapes(device: str) -> None:
    weight = make((20, 8))
    compare(device, lambda w, i: F.embedding(i, w), weight, torch.tensor(3), backward=True)
    compare(device, lambda w, i: F.embedding(i, w), weight, places(20, 0, 3), backward=True)
    compare(device, lambda w, i: F.embedding(i.t(), w), weight, places(20, 4, 3), backward=True, tolerance=1e-5)
    compare(device, lambda w, i: F.embedding(i, w), make((20, 0)), places(20, 4), backward=True)
    compare(device, lambda w, i: F.embedding(i, w[:, ::2]), weight, places(20, 4), backward=True, tolerance=1e-5)


@pytest.mark.parametrize("rows, width", [(65, 384), (5000, 96), (3, 1000), (1000, 5)])
def test_embedding_backward_of_large_tables(device: str, rows: int, width: int) -> None:
    grad, index = torch.randn(2048, width), places(rows, 2048)
    got = torch.ops.aten.embedding_dense_backward(grad.to(device), index.to(device), rows, -1, False)
    expected = torch.zeros(rows, width, dtype=torch.float64).index_add(0, index, grad.double())
    torch.testing.assert_close(got.cpu().double(), expected, rtol=1e-4, atol=1e-4)
    again = torch.ops.aten.embedding_dense_backward(grad.to(device), index.to(device), rows, -1, False)
    assert torch.equal(got.cpu(), again.cpu())  # the order of sums does not depend on chance


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("options", [{}, {"scale_grad_by_freq": True}, {"padding_idx": 3}], ids=str)
def test_embedding_backward_of_few_indices(device: str, form: str, dtype: torch.dtype, options: dict[str, Any]) -> None:
    """A table of halves that is larger than what its sums need: each of them is rounded once."""
    rows = 2000
    index = torch.cat([places(5, 500), places(rows, 300)]).reshape(8, 100)
    for shape in ((8, 100), (0,), ()):
        at, grad = index.flatten()[: math.prod(shape)].reshape(shape), make((*shape, 33), dtype)
        weight = make((rows, 33), dtype)
        results = []
        for table, g in ((weight.double(), grad.double()), (weight.to(device), grad.to(device))):
            table.requires_grad_()
            F.embedding(at.to(table.device), table, **options).backward(g)
            results.append(table.grad)
        assert results[0] is not None and results[1] is not None and results[1].dtype == dtype
        expected = results[0].to(dtype)
        torch.testing.assert_close(results[1].cpu(), expected, rtol=tolerance_of(dtype), atol=1e-3)
        assert (results[1].cpu() == expected).double().mean() > 0.99


def test_embedding_backward_names_what_is_out_of_range(device: str) -> None:
    grad, index = make((3, 8), torch.bfloat16).to(device), torch.tensor([1, 99, 2]).to(device)
    with pytest.raises(IndexError, match="out of range"):
        torch.ops.aten.embedding_dense_backward(grad, index, 50, -1, False).cpu()
    good = torch.ops.aten.embedding_dense_backward(grad, index, 100, -1, False)
    assert torch.equal(good[99].cpu(), grad[1].cpu())


def test_embedding_max_norm_and_bag(device: str) -> None:
    weight, index = make((20, 8)), places(20, 5, 7)
    compare(device, lambda w, i: (F.embedding(i, w, max_norm=1.0), w), weight, index, tolerance=1e-5)


# ---- scatter ----


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_scatter_dtypes(device: str, dtype: torch.dtype) -> None:
    index = torch.stack([torch.randperm(5)[:3] for _ in range(4)])
    x, source = make((4, 5), dtype), make((4, 3), dtype)
    compare(device, lambda a, i, s: a.scatter(1, i, s), x, index, source)
    compare(device, lambda a, i: a.scatter(1, i, 1), x, index)
    tolerance = tolerance_of(dtype)
    compare(device, lambda a, i, s: a.scatter_add(1, i, s), x, places(5, 4, 3), source, tolerance=tolerance)


def test_scatter(device: str) -> None:
    x = make((6, 5, 4))
    for dim in (0, 1, 2, -1):
        permuted = torch.rand(3, 3, 3).argsort(dim) if x.size(dim) >= 3 else places(1, 3, 3, 3)
        source = make((3, 3, 3))
        for y in layouts(x):
            compare(
                device, lambda a, i, s, d=dim: a.scatter(d, i, s), y, permuted, source, backward=True, tolerance=1e-6
            )
            compare(device, lambda a, i, s, d=dim: a.scatter_(d, i, s.transpose(0, 1)), y, permuted, source)
            compare(device, lambda a, i, d=dim: a.scatter_(d, i, 2.5), y, permuted)
        index = places(x.size(dim), 3, 3, 3)
        compare(device, lambda a, i, s, d=dim: a.scatter(d, i, s, reduce="add"), x, index, source, tolerance=1e-5)
        compare(device, lambda a, i, d=dim: a.scatter(d, i, 2.5, reduce="multiply"), x, index, tolerance=1e-5)
    compare(device, lambda a, i, s: a.scatter(0, i, s), torch.tensor(1.0), torch.tensor(0), torch.tensor(2.0))
    compare(device, lambda a, i, s: a.scatter(0, i, s), x, places(6, 0, 3, 3), make((1, 3, 3)))
    out = torch.empty(0, device=device)
    torch.scatter(x.to(device), 0, torch.zeros(1, 2, 2, dtype=torch.long, device=device), 7.0, out=out)
    assert torch.equal(out.cpu(), x.scatter(0, torch.zeros(1, 2, 2, dtype=torch.long), 7.0))


@pytest.mark.parametrize(
    "shape, dim", [((200, 300), 0), ((200, 300), 1), ((50_000,), 0), ((3, 400, 7), 1), ((400, 3), 0)]
)
def test_scatter_add_of_many(device: str, shape: tuple[int, ...], dim: int) -> None:
    x, source = make(shape, torch.float64), make(shape, torch.float64)
    index = places(max(1, shape[dim] // 3), *shape)
    compare(device, lambda a, i, s: a.scatter_add_(dim, i, s), x, index, source, tolerance=1e-10)
    compare(device, lambda a, i, s: a.scatter_add(dim, i, s), x, index, source, backward=True, tolerance=1e-10)


def test_scatter_takes_the_last_in_deterministic_mode(device: str) -> None:
    torch.use_deterministic_algorithms(True)
    try:
        x, source = torch.zeros(7), torch.arange(1000.0)
        compare(device, lambda a, i, s: a.scatter(0, i, s), x, places(7, 1000), source)
        compare(device, lambda a, i, s: a.index_put((i,), s), x, places(7, 1000), source)
        compare(device, lambda a, i, s: a.index_copy(0, i, s), x, places(7, 1000), source)
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("reduce", ["sum", "prod", "mean", "amax", "amin"])
def test_scatter_reduce(device: str, reduce: str, include_self: bool) -> None:
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int32):
        x, index, source = make((6, 5, 4), dtype), places(5, 6, 3, 4), make((6, 3, 4), dtype)
        compare(
            device,
            lambda a, i, s: a.scatter_reduce(1, i, s, reduce, include_self=include_self),
            x,
            index,
            source,
            backward=dtype == torch.float64,
            tolerance=tolerance_of(dtype) if dtype.is_floating_point else 0,
        )
        if reduce != "sum":
            compare(
                device,
                lambda a, i, s: a.index_reduce(1, i, s, reduce, include_self=include_self),
                x,
                places(5, 3),
                source,
                tolerance=tolerance_of(dtype) if dtype.is_floating_point else 0,
            )


def test_scatter_reduce_keeps_nan(device: str) -> None:
    source = torch.tensor([1.0, float("nan"), 3.0])
    for reduce in ("amax", "amin"):
        compare(
            device,
            lambda a, i, s, r=reduce: a.scatter_reduce(0, i, s, r),
            torch.zeros(2),
            torch.tensor([0, 0, 1]),
            source,
        )


# ---- rows ----


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_dtypes(device: str, dtype: torch.dtype) -> None:
    x, source, index = make((6, 5), dtype), make((3, 5), dtype), torch.randperm(6)[:3]
    compare(device, lambda a, i, s: a.index_copy(0, i, s), x, index, source)
    compare(device, lambda a, i: a.index_fill(0, i, 1), x, index)
    if dtype != torch.bool:
        compare(
            device,
            lambda a, i, s: a.index_add(0, i, s, alpha=2),
            x,
            index * 0,
            source,
            tolerance=4 * tolerance_of(dtype),
        )


def test_rows(device: str) -> None:
    x = make((6, 5, 4))
    for dim in (0, 1, 2, -1):
        m = x.size(dim)
        shape = list(x.shape)
        for y in layouts(x):
            shape[dim] = 7
            source, index = make(tuple(shape)), places(m, 7)
            compare(
                device, lambda a, i, s, d=dim: a.index_add(d, i, s), y, index, source, backward=True, tolerance=1e-5
            )
            compare(device, lambda a, i, s, d=dim: a.index_add_(d, i, s, alpha=-0.5), y, index, source, tolerance=1e-5)
            compare(device, lambda a, i, d=dim: a.index_fill_(d, i, 3.0), y, index)
            compare(device, lambda a, i, d=dim: a.index_fill(d, i - a.size(d), 3.0), y, index, backward=True)
            compare(device, lambda a, i, v, d=dim: a.index_fill(d, i, v), y, index, torch.tensor(3.0))
            shape[dim] = 2
            source, index = make(tuple(shape)), torch.randperm(m)[:2]
            compare(device, lambda a, i, s, d=dim: a.index_copy_(d, i, s), y, index, source)
            compare(device, lambda a, i, s, d=dim: a.index_copy(d, i, s), y, index, source, backward=True)
    compare(device, lambda a, i, s: a.index_add(0, i, s), torch.tensor(1.0), torch.tensor([0]), torch.tensor(2.0))
    compare(device, lambda a, i, s: a.index_add(0, i, s), x, places(6, 0), make((0, 5, 4)))


@pytest.mark.parametrize("shape", [(500, 256), (500, 3), (500, 33), (3, 4000), (1, 400), (5000,)])
def test_index_add_of_many(device: str, shape: tuple[int, ...]) -> None:
    index = places((shape[0] + 1) // 2, 3000)
    source = make((3000, *shape[1:]), torch.float64)
    compare(device, lambda a, i, s: a.index_add(0, i, s), make(shape, torch.float64), index, source, tolerance=1e-10)
    index[:2500] = 0  # most meet in one place
    compare(device, lambda a, i, s: a.index_add_(0, i, s), make(shape, torch.float64), index, source, tolerance=1e-10)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.int64, torch.float16], ids=str)
def test_many_into_few_places(device: str, dtype: torch.dtype) -> None:
    """Several work-items add in memory of their own."""
    count = 200_001
    # Of sixteenths any sum is exact, in whatever order.
    x, source = (torch.randint(-64, 65, shape).div(16).to(dtype) for shape in ((2, 30, 3), (2 * count,)))
    x, source, index = x[1, ::3], source[::2], places(10, count)
    exact = {"tolerance": 0.0}
    if dtype != torch.float16:  # whose sums stop growing
        compare(device, lambda a, i, s: a[:, 1].index_add_(0, i, s), x, index, source, **exact)
        compare(device, lambda a, i, s: a[:, 1].index_add(0, i, s, alpha=-2), x, index, source, **exact)
        compare(device, lambda a, i, s: a[:, 1].scatter_add_(0, i, s), x, index, source, **exact)
    compare(device, lambda a, i: a[:, 2].scatter_reduce_(0, i, a[0, 0].expand(len(i)), "amax"), x, index, **exact)
    compare(device, lambda a, i: a[:, 2].scatter_(0, i, 1, reduce="add"), x.long(), index)


def test_many_into_few_places_out_of_range(device: str) -> None:
    x, source, index = (t.to(device) for t in (torch.zeros(10), torch.ones(200_000), places(10, 200_000)))
    index[150_000] = 10
    refused(device, lambda: x.scatter_add_(0, index, source), "index 10 is out of bounds", RuntimeError)


# ---- several indices ----

_I, _J = torch.tensor([[0, -1], [2, 3]]), torch.tensor([1, 2])
_ALL = slice(None)
INDICES: dict[str, tuple[Any, ...]] = {
    "i": (_I,),
    "i,j": (_I, _J),
    ":,j": (_ALL, _J),
    ":,:,j": (_ALL, _ALL, _J),
    "i,:,j": (_I, _ALL, _J),
    ":,i,j": (_ALL, _I, _J),
    "...,j": (..., _J),
    "i,None": (_I, None),
    "i,i,j": (_I, _I, _J),
    "0,j": (0, _J),
    "i,1": (_I, 1),
    "i,1:4:2": (_I, slice(1, 4, 2)),
    "int32": (_J.int(),),
    "0-d": (torch.tensor(2),),
    "empty": (torch.zeros(0, dtype=torch.long),),
    "list": ([0, 2, -1],),
}


def at(indices: tuple[Any, ...], device: torch.device) -> tuple[Any, ...]:
    return tuple(i.to(device) if isinstance(i, torch.Tensor) else i for i in indices)


@pytest.mark.parametrize("indices", INDICES.values(), ids=INDICES.keys())
def test_index(device: str, indices: tuple[Any, ...]) -> None:
    x = make((6, 5, 4))
    for y in layouts(x):
        compare(device, lambda a: a[at(indices, a.device)], y, backward=True, tolerance=1e-5)
    compare(device, lambda a: a[indices], x)  # indices may be on the CPU
    compare(device, lambda a: a.expand(6, 5, 4)[at(indices, a.device)], make((1, 5, 4)), backward=True, tolerance=1e-5)


@pytest.mark.parametrize("indices", INDICES.values(), ids=INDICES.keys())
def test_index_put(device: str, indices: tuple[Any, ...]) -> None:
    x = make((6, 5, 4))
    values = x[indices]  # equal where places repeat

    def put(a: torch.Tensor, v: Any) -> torch.Tensor:
        a = a.clone(memory_format=torch.preserve_format)
        a[at(indices, a.device)] = v
        return a

    for y in layouts(torch.zeros_like(x)):
        compare(device, put, y, values)
        compare(device, lambda a: put(a, 2.5), y)
        compare(device, put, y, torch.tensor(1.5))
    if values.dim() > 0 and values.numel() > 0:
        compare(device, put, x, values[..., :1].contiguous().mul(0))

    def add(a: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        tensors = [i for i in at(indices, a.device) if isinstance(i, torch.Tensor)]
        return a.index_put(tuple(tensors), v, accumulate=True)

    if all(isinstance(i, torch.Tensor) for i in indices):
        compare(device, add, x, make(tuple(values.shape)), backward=True, tolerance=1e-5)
        compare(device, add, x, torch.tensor(2.0), tolerance=1e-5)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_index_dtypes(device: str, dtype: torch.dtype) -> None:
    x = make((6, 5, 4), dtype)
    compare(device, lambda a, i, j: a[i, :, j], x, _I, _J)
    compare(device, lambda a, i, v: a.index_put_((i,), v), x, torch.tensor([3, 0]), make((2, 5, 4), dtype))
    tolerance = 4 * tolerance_of(dtype)
    compare(
        device,
        lambda a, i, v: a.index_put_((i,), v, accumulate=True),
        x,
        torch.tensor([3, 3]),
        make((2, 5, 4), dtype),
        tolerance=tolerance,
    )


def test_index_put_accumulates_many(device: str) -> None:
    for shape in ((700, 64), (700,), (7, 9, 33)):
        index = places(5, 2, 900)
        values = make((2, 900, *shape[1:]), torch.float64)
        compare(
            device,
            lambda a, i, v: a.index_put((i,), v, accumulate=True),
            make(shape, torch.float64),
            index,
            values,
            tolerance=1e-10,
        )


def test_setitem_leaves_the_rest(device: str) -> None:
    x = torch.zeros(8, 6, device=device)
    view = x[1::2, ::3]
    view[torch.tensor([0, 2]).to(device)] = 1.0
    expected = torch.zeros(8, 6)
    expected[1::2, ::3][torch.tensor([0, 2])] = 1.0
    assert torch.equal(x.cpu(), expected)


def test_index_on_another_device_refuses(device: str) -> None:
    with pytest.raises(RuntimeError):
        torch.ones(3)[torch.tensor([0, 1]).to(device)]
    with pytest.raises(RuntimeError):
        torch.ones(3).index_put_((torch.tensor([0, 1]).to(device),), torch.zeros(2, device=device))
    with pytest.raises(RuntimeError):
        torch.ones(3, device=device).index_select(0, torch.tensor([0, 1]))


# ---- masks ----


def test_masks(device: str) -> None:
    x = make((6, 5, 4))
    m = x > 0
    m[0, 0, 0] = True  # some in every mask: strides are compared, which those of nothing have in no particular order
    compare(device, lambda a, m: a[m], x, m, backward=True)
    compare(device, lambda a, m: a[m[:, 0, 0]], x, m, backward=True)
    compare(device, lambda a, m: a[:, m[0]], x, m, backward=True)
    compare(device, lambda a, m: a[:, m[0, :, 0]], x, m, backward=True)
    compare(device, lambda a, m: a[..., m[0, 0]], x, m, backward=True)
    compare(device, lambda a, m: a.transpose(0, 2)[:, m[0, :, 0]], x, m, backward=True)
    compare(device, lambda a, m, i: a[i, m[0, :, 0]], x, m, torch.tensor(2))
    compare(device, lambda a, m: a.masked_select(m), x, m, backward=True)
    compare(device, lambda a, m: a.masked_select(m[0]), x, m)
    compare(device, lambda a, m: a.transpose(0, 2).masked_select(m.transpose(0, 2)), x, m)
    compare(device, lambda a, m, s: a.masked_scatter(m, s), x, m, make((200,)), backward=True)
    compare(device, lambda a, m: a.masked_fill(m, 2.0), x, m, backward=True)
    compare(device, lambda a, m: a[m & False], x, m)
    rows = x.to(device).permute(2, 0, 1)[:, m[:, 0, 0].to(device)]
    assert rows.stride() == x.permute(2, 0, 1)[:, m[:, 0, 0]].stride()
    out = torch.empty(0, device=device)
    torch.masked_select(x.to(device), m.to(device), out=out)
    assert torch.equal(out.cpu(), x[m])


def test_mask_assignment(device: str) -> None:
    x = make((6, 5, 4))
    m = x > 0

    def put(a: torch.Tensor, index: Any, value: Any) -> torch.Tensor:
        a = a.clone()
        a[index] = value
        return a

    compare(device, lambda a, m: put(a, m, 1.5), x, m)
    compare(device, lambda a, m, v: put(a, m, v), x, m, make((int(m.sum()),)))
    compare(device, lambda a, m, v: put(a, m[:, 0, 0], v), x, m, make((4,)))
    compare(device, lambda a, m: put(a, (slice(None), m[0]), 1.5), x, m)
    compare(device, lambda a, m: put(a, m[:, :, 0], 1.5), x, m)


def test_nonzero(device: str) -> None:
    for dtype in DTYPES:
        compare(
            device,
            lambda a: a.nonzero(),
            make((6, 5, 4), dtype).round() if dtype.is_floating_point else make((6, 5, 4), dtype),
        )
    x = torch.rand(300, 701) > 0.5
    compare(device, lambda a: a.nonzero(), x)
    compare(device, lambda a: a.t().nonzero(), x)
    compare(device, lambda a: a.nonzero(as_tuple=True), x)
    compare(device, lambda a: torch.where(a), x)
    compare(device, lambda a: torch.argwhere(a), x)
    compare(device, lambda a: a.nonzero(), torch.tensor(True))
    compare(device, lambda a: a.nonzero(), torch.zeros(0, 3))
    compare(device, lambda a: a.nonzero(), torch.zeros(4, 3))
    compare(device, lambda a: torch.nonzero_static(a, size=7, fill_value=-5), torch.tensor([1, 0, 2]))
    compare(device, lambda a: torch.nonzero_static(a, size=1), torch.tensor([1, 0, 2]))


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 1.0])
def test_nonzero_of_many(device: str, share: float) -> None:
    """Groups write beside each other: none may write where another does, nor behind what is asked for."""
    for shape in ((50_001,), (201, 300), (9, 20, 31, 7)):
        mask = torch.rand(shape) < share
        compare(device, lambda a: a.nonzero(), mask)
        for size in (1, int(mask.sum()) // 2, int(mask.sum()) + 5):
            compare(device, lambda a, size=size: torch.nonzero_static(a, size=size, fill_value=-7), mask)


def test_masks_of_several_dimensions(device: str) -> None:
    """They select rows of what they cover, wherever it begins."""
    x = torch.randn(4, 5, 6, 3)
    for first in range(4):
        for last in range(first + 1, 5):
            mask, all_before = torch.rand(x.shape[first:last]) < 0.4, (slice(None),) * first
            compare(device, lambda a, m, b=all_before: a[(*b, m)], x, mask)
            compare(device, lambda a, m, b=all_before: a.mT.contiguous().mT[(*b, m)], x, mask)
    compare(device, lambda a, m: a[m], x[:0], torch.ones(0, 5, dtype=torch.bool))
    compare(device, lambda a, m: a[m.t()], x, torch.rand(5, 4) < 0.5)


def test_one_hot(device: str) -> None:
    x = places(5, 3, 4)
    compare(device, lambda a: F.one_hot(a, 6), x)
    compare(device, lambda a: F.one_hot(a), x)


# ---- searches ----


@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8], ids=str)
def test_searchsorted(device: str, dtype: torch.dtype, right: bool) -> None:
    s, v = make((3, 9), dtype).sort(1).values, make((3, 4), dtype)
    compare(device, lambda s, v: torch.searchsorted(s, v, right=right), s, v)
    compare(device, lambda s, v: torch.searchsorted(s[0], v, right=right, out_int32=True), s, v)
    compare(device, lambda s, v: torch.searchsorted(s[0], v.t(), right=right), s, v)
    compare(device, lambda s: torch.searchsorted(s[0], 3, right=right), s)
    compare(device, lambda s, v: torch.bucketize(v, s[0], right=right), s, v)
    compare(device, lambda s: torch.bucketize(3, s[0], right=right), s)
    order = torch.randperm(9)
    compare(
        device,
        lambda s, v, o: torch.searchsorted(s, v, right=right, sorter=o),
        s[:, order],
        v,
        order.argsort().expand(3, 9).contiguous(),
    )
    compare(device, lambda s, v: torch.searchsorted(s, v, right=right), s[:, :0], v)


def test_isin(device: str) -> None:
    x, tests = places(20, 5, 5), places(20, 7)
    compare(device, lambda a, b: torch.isin(a, b), x, tests)
    compare(device, lambda a, b: torch.isin(a, b, invert=True), x, tests)
    compare(device, lambda a, b: torch.isin(a.t(), b.float()), x, tests)
    compare(device, lambda a, b: torch.isin(a, b), x, tests[:0])
    compare(device, lambda a: torch.isin(a, 3), x)
    compare(device, lambda a: torch.isin(3, a), x)
    compare(device, lambda a, b: torch.isin(a, b), places(10_000, 30_000), places(10_000, 500))


def test_repeat_interleave(device: str) -> None:
    x = make((3, 5))
    compare(
        device, lambda a, r: a.repeat_interleave(r, 1), x, torch.tensor([1, 0, 2, 1, 3]), backward=True, tolerance=1e-5
    )
    compare(device, lambda r: torch.repeat_interleave(r), torch.tensor([1, 0, 2, 1, 3]))


# ---- indices out of range ----


def refused(device: str, f: Callable[[], Any], message: str, raises: type[Exception] = IndexError) -> None:
    """Reading the result raises the error, once; the device goes on working."""
    module = getattr(torch, torch.device(device).type)
    with pytest.raises(raises, match=message):
        f()
        module.synchronize()
    module.synchronize()
    assert float(torch.ones(100, device=device).sum()) == 100


def test_reading_out_of_range(device: str) -> None:
    x = torch.randn(5, 4, device=device)
    for bad in (5, -1, 2**40):
        index = torch.tensor([0, bad, 2], device=device)
        refused(device, lambda i=index: x.index_select(0, i).cpu(), "index out of range in self")
        refused(device, lambda i=index: x.index_select(1, i).cpu(), "index out of range in self")
        refused(device, lambda i=index: F.embedding(i, x).cpu(), "index out of range in self")
        refused(
            device,
            lambda i=index, b=bad: x.gather(0, i.view(3, 1)).cpu(),
            f"index {bad} is out of bounds for dimension 0 with size 5",
            RuntimeError,
        )
        refused(
            device,
            lambda i=index: torch.ops.aten.embedding_dense_backward(
                torch.ones(3, 4, device=device), i, 5, -9, False
            ).cpu(),
            "out of range",
        )
    for bad in (5, -6):
        index = torch.tensor([0, bad, 2], device=device)
        refused(device, lambda i=index: x[i].cpu(), f"index {bad} is out of bounds for dimension 0 with size 5")
        refused(
            device,
            lambda i=index: x[i, i.clamp(0, 3)].cpu(),
            f"index {bad} is out of bounds for dimension 0 with size 5",
        )
    refused(device, lambda: x.take(torch.tensor([20], device=device)).cpu(), "index 20 ")
    refused(
        device,
        lambda: x[:, torch.tensor([4], device=device)].cpu(),
        "index 4 is out of bounds for dimension 1 with size 4",
    )


def test_writing_out_of_range(device: str) -> None:
    guard = torch.zeros(3, 5, device=device)
    x = guard[1]
    for bad in (5, 9, -6):
        index = torch.tensor([0, bad, 2], device=device)
        ones = torch.ones(3, device=device)
        for f in (  # torch's CPU raises a RuntimeError for these
            lambda i, s: x.scatter_(0, i, s),
            lambda i, s: x.scatter_add_(0, i, s),
            lambda i, s: x.scatter_reduce_(0, i, s, "amax"),
        ):
            refused(device, lambda f=f, i=index, s=ones: f(i, s), f"index {bad} is out of bounds", RuntimeError)
        for f in (
            lambda i, s: x.index_add_(0, i, s),
            lambda i, s: x.index_copy_(0, i, s),
            lambda i, s: x.index_fill_(0, i, 1.0),
            lambda i, s: x.index_put_((i,), s),
            lambda i, s: x.index_put_((i,), s, accumulate=True),
            lambda i, s: x.put_(i, s),
        ):
            refused(device, lambda f=f, i=index, s=ones: f(i, s), f"{bad} |out of range in self")
    values = guard.cpu()
    assert float(values[0].abs().sum()) == 0 and float(values[2].abs().sum()) == 0
    assert float(values[1, 1].abs() + values[1, 3:].abs().sum()) == 0


def test_nowhere_to_read(device: str) -> None:
    empty, index = torch.empty(0, 3, device=device), torch.tensor([0], device=device)
    refused(device, lambda: empty[index], "")
    for f in (lambda: empty.index_select(0, index), lambda: F.embedding(index, empty)):
        refused(device, f, "", RuntimeError)  # as torch's CPU, which has an IndexError for vectors only
    refused(device, lambda: empty[:, 0].index_select(0, index), "")


def test_one_report_of_many(device: str) -> None:
    """Errors of several launches are one exception; what was computed before and after them stays right."""
    x, good = torch.arange(10.0, device=device), torch.tensor([1, 2], device=device)
    before = x[good]
    module = getattr(torch, torch.device(device).type)
    module.synchronize()
    with pytest.raises(IndexError):
        for _ in range(50):
            x[torch.tensor([99], device=device)]
        module.synchronize()
    module.synchronize()
    assert before.cpu().tolist() == x[good].cpu().tolist() == [1.0, 2.0]


def _numbers(place: torch.device, *values: float) -> torch.Tensor:
    return torch.tensor(values, device=place)


MISMATCHED: dict[str, tuple[type[Exception], str, Callable[[torch.device], object]]] = {
    "indices of two shapes": (
        IndexError,
        "indexing tensors could not be broadcast together with shapes",
        lambda d: torch.ones(5, 5, device=d)[_numbers(d, 0, 1), _numbers(d, 0, 1, 2)],
    ),
    "places of two shapes": (
        IndexError,
        "indexing tensors could not be broadcast together with shapes",
        lambda d: torch.ones(5, 5, device=d).index_put_((_numbers(d, 0, 1), _numbers(d, 0, 1, 2)), torch.ones(3).to(d)),
    ),
    "indices of floats": (IndexError, "must be long, int", lambda d: torch.ones(5, device=d)[_numbers(d, 0.0)]),
    "nowhere to go": (
        IndexError,
        "index is out of bounds for dimension with size 0",
        lambda d: torch.ones(5, 0, device=d)[:, _numbers(d, 0, 1)],
    ),
    "values of another shape": (
        RuntimeError,
        r"value tensor of shape \[3\] cannot be broadcast to indexing result of shape \[2, 5\]",
        lambda d: torch.ones(5, 5, device=d).index_put_((_numbers(d, 0, 1),), torch.ones(3, device=d)),
    ),
    "values of another shape and type": (
        RuntimeError,
        r"shape mismatch",
        lambda d: torch.ones(5, device=d).index_put_((_numbers(d, 0, 1),), torch.ones(3, device=d).long()),
    ),
    "values of another type": (
        RuntimeError,
        "Index put requires the source and destination dtypes match, got Float for the destination and Long for",
        lambda d: torch.ones(5, device=d).index_put_((_numbers(d, 0, 1),), torch.ones(2, device=d).long()),
    ),
    "values behind a mask": (
        RuntimeError,
        r"value tensor of shape \[3\] cannot be broadcast to indexing result of shape \[5\]",
        lambda d: torch.ones(5, device=d).index_put_((torch.ones(5, device=d) > 0,), torch.ones(3, device=d)),
    ),
}


@pytest.mark.parametrize(("error", "words", "op"), MISMATCHED.values(), ids=MISMATCHED)
def test_what_does_not_fit_is_refused(
    error: type[Exception], words: str, op: Callable[[torch.device], object], device: torch.device
) -> None:
    for place in (torch.device("cpu"), device):
        with pytest.raises(error, match=words):
            op(place)


# ---- sums of halves ----


def _rounded_once(got: torch.Tensor, exact: torch.Tensor) -> None:
    """The result is what float32 sums are rounded to: torch's CPU rounds after each addition in some of these ops."""
    assert got.device.type != "cpu" and exact.dtype == torch.float64
    ulp = exact.abs() * torch.finfo(got.dtype).eps
    assert ((got.cpu().double() - exact).abs() <= 0.6 * ulp).all(), (got, exact)


_COUNT, _PLACES = 6006, 3


def _into_places(x: torch.Tensor) -> dict[str, torch.Tensor]:
    """Sums of many numbers in few places, by each op that has some. Places begin at one."""
    i = torch.arange(_COUNT, device=x.device) % _PLACES
    start = torch.ones(_PLACES, dtype=x.dtype, device=x.device)
    table, wide = start.view(-1, 1).expand(-1, 40).contiguous(), x.view(-1, 1).expand(-1, 40)
    factors = torch.where(x > 0.5, 1 + 2**-7, 1 - 2**-7).to(x.dtype)
    sums = {
        "scatter_add": start.scatter_add(0, i, x),
        "scatter_add_": start.clone().scatter_add_(0, i, x),
        "scatter_add rows": table.scatter_add(0, i.view(-1, 1).expand(-1, 40), wide),
        "scatter add": start.scatter(0, i, x, reduce="add"),
        "scatter add of a number": start.scatter(0, i, 0.25, reduce="add"),
        "scatter_reduce sum": start.scatter_reduce(0, i, x, "sum"),
        "scatter_reduce mean": start.scatter_reduce(0, i, x, "mean", include_self=False),
        "scatter_reduce prod": start.scatter_reduce(0, i, factors, "prod"),
        "index_add": start.index_add(0, i, x, alpha=2),
        "index_add rows": table.index_add(0, i, wide),
        "index_add columns": table.t().index_add(1, i, wide.t()),
        "index_reduce mean": start.index_reduce(0, i, x, "mean"),
        "index_reduce prod": start.index_reduce(0, i, factors, "prod"),
        "index_put": start.index_put((i,), x, accumulate=True),
        "index_put rows": table.index_put((i,), wide, accumulate=True),
        "index_put_": start.clone().index_put_((i,), x, accumulate=True),
        "put_": start.clone().put_(i, x, accumulate=True),
        "embedding": aten.embedding_dense_backward(wide, i, _PLACES, -1, False),
    }
    leaf = start.clone().requires_grad_()
    for name, taken in (("gather", leaf.gather(0, i)), ("index", leaf[i]), ("index_select", leaf.index_select(0, i))):
        (sums[f"gradient of {name}"],) = torch.autograd.grad(taken, leaf, x)
    return sums


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_sums_of_halves_are_rounded_once(device: str, form: str, dtype: torch.dtype) -> None:
    x = torch.rand(_COUNT).to(dtype)
    exact = _into_places(x.double())
    for name, got in _into_places(x.to(device)).items():
        assert got.dtype == dtype, name
        _rounded_once(got, exact[name])


def test_sums_of_halves_in_views(device: str, form: str) -> None:
    """In place, where the target has gaps, and with an out= that does."""
    x, i = torch.rand(5000).bfloat16(), places(2, 5000)
    exact = torch.ones(2, dtype=torch.float64).index_add(0, i, x.double())
    whole = torch.ones(4, dtype=torch.bfloat16, device=device)
    view = whole[::2]
    view.index_add_(0, i.to(device), x.to(device))
    _rounded_once(view, exact)
    assert whole[1::2].tolist() == [1, 1]
    torch.scatter_add(whole[1::2], 0, i.to(device), x.to(device), out=view)
    _rounded_once(view, exact)
    whole[:] = 1
    view.put_(i.to(device), x.to(device), accumulate=True)
    _rounded_once(view, exact)
