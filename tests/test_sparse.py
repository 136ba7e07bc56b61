"""Sparse and quantised tensors on the device: their parts are there, and what computes with them is right and counted.

Nothing here forbids the fallback: such ops run on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

import torchgraft

pytestmark = pytest.mark.filterwarnings("ignore:.*(invariant|beta state|deprecated)")

LAYOUTS = [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc]


@pytest.fixture(autouse=True)
def _silent() -> Iterator[None]:
    with torchgraft.fallback("silent"):
        yield


def _dense(*shape: int) -> torch.Tensor:
    return torch.randn(shape) * (torch.rand(shape) < 0.4)


def _sparse(x: torch.Tensor, layout: torch.layout) -> torch.Tensor:
    block = (2, 3) if layout in (torch.sparse_bsr, torch.sparse_bsc) else None
    return x.to_sparse(layout=layout, blocksize=block)


def _equal(mine: torch.Tensor, theirs: torch.Tensor) -> None:
    assert mine.device.type == torch.device(torch._C._get_privateuse1_backend_name()).type
    assert mine.layout == theirs.layout
    torch.testing.assert_close(mine.cpu(), theirs)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_there_and_back(device: str, layout: torch.layout) -> None:
    x = _dense(6, 9)
    theirs = _sparse(x, layout)
    for mine in (_sparse(x.to(device), layout), theirs.to(device), theirs.to(device).clone()):
        _equal(mine, theirs)
        _equal(mine.to_dense(), x)
        assert mine.values().device.type == x.to(device).device.type
        _equal(mine.to(torch.float64), theirs.double())
    empty = torch.empty(6, 9, layout=layout, device=device) if layout in LAYOUTS[:3] else None
    assert empty is None or not empty.to_dense().any()


def test_from_indices(device: str) -> None:
    indices, values = torch.tensor([[0, 2, 2], [1, 0, 0]]), torch.tensor([1.0, 2, 3])
    theirs = torch.sparse_coo_tensor(indices, values, (3, 4))
    for mine in (
        torch.sparse_coo_tensor(indices.to(device), values.to(device), (3, 4)),
        torch.sparse_coo_tensor(indices, values, (3, 4), device=device),
        torch.sparse_coo_tensor(indices.to(device), values.to(device), (3, 4), check_invariants=True),
    ):
        assert not mine.is_coalesced()
        assert mine._nnz() == 3
        _equal(mine.coalesce(), theirs.coalesce())
        _equal(mine.coalesce().indices(), theirs.coalesce().indices())
    rows, columns = torch.tensor([0, 1, 3]), torch.tensor([1, 0, 2])
    mine = torch.sparse_csr_tensor(rows, columns, values, (2, 4), device=device)
    _equal(mine, torch.sparse_csr_tensor(rows, columns, values, (2, 4)))
    with pytest.raises(RuntimeError, match="size"):
        torch.sparse_coo_tensor(indices.to(device) + 5, values.to(device), (3, 4), check_invariants=True)


def test_members_stay(device: str) -> None:
    """No copy is made of the values that a tensor is made of, nor for an op that reads them."""
    values = torch.ones(2, device=device)
    mine = torch.sparse_coo_tensor(torch.tensor([[0, 1]], device=device), values, (3,), is_coalesced=True)
    assert mine.values().data_ptr() == values.data_ptr()
    values *= 3
    assert mine.to_dense().tolist() == [3, 3, 0]


CALLS: list[Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = [
    lambda s, x: s @ x,
    lambda s, x: s + s,
    lambda s, x: s * 2,
    lambda s, x: torch.sparse.mm(s, x),
    lambda s, x: torch.sparse.mm(s, s),
    lambda s, x: torch.addmm(x, s, x),
    lambda s, x: x.sparse_mask(s),
    lambda s, x: s.t(),
    lambda s, x: s.neg().sin(),
]


@pytest.mark.parametrize("number", range(len(CALLS)))
@pytest.mark.parametrize("layout", LAYOUTS[:2], ids=str)
def test_computations(device: str, layout: torch.layout, number: int) -> None:
    s, x = _dense(5, 5), torch.randn(5, 5)
    theirs = CALLS[number](_sparse(s, layout), x)
    _equal(CALLS[number](_sparse(s, layout).to(device), x.to(device)), theirs)


def test_in_place(device: str) -> None:
    x, y = _dense(4, 5), _dense(4, 5)
    mine, theirs = x.to(device).to_sparse(), x.to_sparse()
    mine.add_(y.to(device).to_sparse())
    theirs.add_(y.to_sparse())
    _equal(mine.coalesce(), theirs.coalesce())
    mine.zero_()
    assert mine._nnz() == 0
    mine.copy_(theirs)
    _equal(mine.to_dense(), theirs.to_dense())
    _equal(x.to(device).add_(theirs.to(device)), x.add(theirs))


def test_of_both(device: str) -> None:
    """Ops of rows and sparse matrices: sampled products and reductions."""
    a, b, s = torch.randn(4, 3), torch.randn(3, 5), _dense(4, 5)
    mine = torch.sparse.sampled_addmm(s.to_sparse_csr().to(device), a.to(device), b.to(device), beta=0.5)
    _equal(mine, torch.sparse.sampled_addmm(s.to_sparse_csr(), a, b, beta=0.5))
    for reduce in ("sum", "mean", "amax", "amin"):
        got = torch.sparse.mm(s.to_sparse_csr().to(device), b.t().to(device), reduce)
        _equal(got, torch.sparse.mm(s.to_sparse_csr(), b.t(), reduce))


def test_gradients(device: str) -> None:
    x, y = _dense(4, 5), torch.randn(5, 3)
    grads = []
    for place in (device, "cpu"):
        leaves = [t.detach().to(place).requires_grad_() for t in (x, y)]
        torch.sparse.mm(leaves[0].to_sparse(), leaves[1]).sin().sum().backward()
        grads.append([leaf.grad for leaf in leaves])
    for a, b in zip(*grads, strict=True):
        assert a is not None
        torch.testing.assert_close(a.cpu(), b)


@pytest.mark.parametrize("reduce", ["sum", "mean", "amax", "amin"])
def test_gradients_of_reductions(device: str, reduce: str) -> None:
    """The CPU's kernel keeps what backward needs only for arguments that need a gradient."""
    s, x = _dense(4, 5).to_sparse_csr(), torch.randn(5, 3)
    grads = []
    for place in (device, "cpu"):
        leaves = [t.detach().to(place).requires_grad_() for t in (s, x)]
        torch.sparse.mm(leaves[0], leaves[1], reduce).square().sum().backward()
        grads.append([leaf.grad for leaf in leaves])
    for a, b in zip(*grads, strict=True):
        assert a is not None
        torch.testing.assert_close(a.cpu(), b)


@pytest.mark.parametrize("bag", [False, True], ids=["embedding", "embedding bag"])
def test_sparse_gradients_of_tables(device: str, bag: bool) -> None:
    """And an optimizer that takes them."""
    start = torch.randn(6, 3)
    indices = torch.tensor([[1, 4], [4, 0]])
    tables = []
    for place in (device, "cpu"):
        module = (torch.nn.EmbeddingBag if bag else torch.nn.Embedding)(6, 3, sparse=True)
        module.load_state_dict({"weight": start})
        module.to(place)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        module(indices.to(place)).square().sum().backward()
        assert module.weight.grad is not None
        assert module.weight.grad.is_sparse
        optimizer.step()
        tables.append(module.weight.detach().cpu())
    torch.testing.assert_close(*tables)


def test_counted_and_forbidden(device: str) -> None:
    s = _dense(4, 4).to_sparse().to(device)
    torchgraft.reset_fallback_report()
    s.sin()
    assert "aten::sin" in {record.op for record in torchgraft.fallback_report()}
    with torchgraft.fallback("error"):
        assert s._nnz() == s.clone()._nnz(), "taking apart and copying is native"
        with pytest.raises(NotImplementedError, match="not permitted"):
            s.sin()


# ---- quantised tensors ----


def test_quantised(device: str) -> None:
    x = torch.randn(4, 6)
    for dtype in (torch.quint8, torch.qint8, torch.qint32):
        theirs = torch.quantize_per_tensor(x, 0.1, 10, dtype)
        for mine in (torch.quantize_per_tensor(x.to(device), 0.1, 10, dtype), theirs.to(device)):
            assert mine.is_quantized
            assert (mine.q_scale(), mine.q_zero_point()) == (theirs.q_scale(), 10)
            assert torch.equal(mine.int_repr().cpu(), theirs.int_repr())
            assert torch.equal(mine.dequantize().cpu(), theirs.dequantize())
            assert torch.equal(mine.cpu(), theirs)
            assert torch.equal(mine[1:, ::2].dequantize().cpu(), theirs[1:, ::2].dequantize())
            assert torch.equal(mine.t().dequantize().cpu(), theirs.t().dequantize())


def test_quantised_per_channel(device: str) -> None:
    x, scales, zeros = torch.randn(3, 4), torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0, 5, 10])
    theirs = torch.quantize_per_channel(x, scales, zeros, 0, torch.quint8)
    mine = torch.quantize_per_channel(x.to(device), scales.to(device), zeros.to(device), 0, torch.quint8)
    assert torch.equal(mine.dequantize().cpu(), theirs.dequantize())
    assert torch.equal(mine.int_repr().cpu(), theirs.int_repr())
