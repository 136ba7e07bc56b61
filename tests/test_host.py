"""What the CPU does for ops that PyTorch has no kernel for there: as the device's kernels, and for each of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_map

import torchgraft
from torchgraft import plans
from torchgraft.plans.host import HOST_KERNELS, can_run_on_host
from torchgraft.plans.philox import philox_words
from torchgraft.plans.registry import no_plan

aten, own = torch.ops.aten, torch.ops.torchgraft


def test_every_planned_op_has_a_fallback(device: str) -> None:
    torch.empty(0, device=device)
    own = ("aten", "torchgraft")  # other tests declare ops too
    entries = [entry for entry in plans.ENTRIES.values() if entry.op.namespace in own]
    planned = [entry.op for entry in entries if entry.plan is not no_plan and entry.options.op_by_op is None]
    assert len(planned) > 1000
    # Programs of torch.compile alone call flex attention, whose functions are text: they run op by op by their graph.
    graphs = [op for op in planned if op.name().startswith("torchgraft::flex_attention")]
    assert not [op.name() for op in planned if op not in graphs and not can_run_on_host(op)]


def same(actual: Any, expected: Any, dtype: torch.dtype) -> None:
    """Results as they come back from an op; what is None in one is an undefined tensor in the other."""
    assert len(tree_leaves(actual)) == len(tree_leaves(expected))
    for a, b in zip(tree_leaves(actual), tree_leaves(expected), strict=True):
        if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
            assert a == b
            continue
        assert a.dtype == b.dtype and a.shape == b.shape
        tolerance = {torch.bfloat16: 2e-2, torch.float16: 4e-3, torch.float32: 1e-5, torch.float64: 1e-11}[dtype]
        torch.testing.assert_close(a.cpu(), b.cpu(), rtol=tolerance, atol=tolerance, equal_nan=True)


def check(device: str, op: torch._ops.OpOverload, *arguments: Any, skip: tuple[int, ...] = ()) -> Any:
    """Compares an op on the device with its function on the CPU, and gives what the device gave.

    Args:
        skip: results that are drawn anew by each.
    """
    dtype = next(t.dtype for t in tree_leaves(arguments) if isinstance(t, torch.Tensor) and t.is_floating_point())
    schema = op._schema.arguments
    keywords = {a.name: v for a, v in zip(schema, arguments, strict=True) if a.kwarg_only}
    there = tree_map(lambda x: x.to(device) if isinstance(x, torch.Tensor) else x, arguments)
    with torchgraft.fallback("error"):
        results = op(
            *there[: len(arguments) - len(keywords)],
            **dict(zip(keywords, there[len(arguments) - len(keywords) :], strict=True)),
        )
    expected = HOST_KERNELS[op.name()](*arguments)
    listed = isinstance(results, tuple)
    same(
        [r for i, r in enumerate(results) if i not in skip] if listed else results,
        [r for i, r in enumerate(expected) if i not in skip] if listed else expected,
        dtype,
    )
    return tree_map(lambda x: x.cpu() if isinstance(x, torch.Tensor) else x, results)


FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def usable(device: str, dtype: torch.dtype) -> None:
    if dtype == torch.float64 and not plans.device_traits(torch.device(device).index or 0).float64:
        pytest.skip("the device has no float64")


@pytest.fixture(params=FLOATS, ids=lambda dtype: str(dtype).removeprefix("torch."))
def floats(request: pytest.FixtureRequest, device: str) -> Callable[..., torch.Tensor]:
    dtype: torch.dtype = request.param
    usable(device, dtype)
    return lambda *sizes: torch.randn(*sizes).to(dtype)


@pytest.fixture(params=FLOATS[:2], ids=lambda dtype: str(dtype).removeprefix("torch."))
def wide(request: pytest.FixtureRequest, device: str) -> Callable[..., torch.Tensor]:
    dtype: torch.dtype = request.param
    usable(device, dtype)
    return lambda *sizes: torch.randn(*sizes).to(dtype)


Draw = Callable[..., torch.Tensor]


def test_linear_algebra(device: str, wide: Draw) -> None:
    a = wide(3, 5, 5)
    for uplo in "LU":
        check(device, own.eigh.default, a + a.mT, uplo, False)
    values, vectors, _ = HOST_KERNELS["torchgraft::eigh"](a + a.mT, "L", True)
    torch.testing.assert_close(vectors @ values.diag_embed() @ vectors.mT, a + a.mT)
    for full in (False, True):
        check(device, own.svd.default, wide(2, 4, 6), full, False)


def test_counts(device: str, wide: Draw) -> None:
    x = wide(1000)
    check(device, own.count_evenly.default, x, 7, -1.5, 2.0)
    numbers = torch.randint(-2, 12, (500,))
    actual = own.count_numbers(numbers.to(device), 10)
    assert actual.tolist() == HOST_KERNELS["torchgraft::count_numbers"](numbers, 10).tolist()


def test_ctc_loss(device: str, wide: Draw) -> None:
    x = wide(9, 2, 5).log_softmax(-1)
    targets, lengths = torch.tensor([[1, 2, 2], [3, 4, 1]]), torch.tensor([[9, 3, 0, 1], [6, 2, 3, 1]])
    loss, alpha = check(device, own.ctc_alpha.default, x, targets, lengths, 3, 0)
    check(device, own.ctc_gradient.default, torch.rand_like(loss), x, targets, lengths, loss, alpha, 0, True)
    joined, lengths = torch.tensor([1, 2, 2, 3, 4]), torch.tensor([[9, 3, 0, 1], [6, 2, 3, 1]])
    check(device, own.ctc_alpha.default, x, joined, lengths, 3, 0)


@pytest.mark.parametrize("reduction", [0, 1, 2])
def test_cross_entropy(device: str, floats: Draw, reduction: int) -> None:
    x = floats(6, 5).log_softmax(-1)
    target = torch.tensor([0, 4, 2, -100, 1, 1])
    grad = floats(6) if reduction == 0 else floats(1).view(())
    for smoothing in (0.0, 0.3):
        total = torch.tensor(5.0).to(x.dtype)
        check(device, own.cross_entropy_backward.default, grad, x, target, total, reduction, -100, smoothing)


def test_log_sigmoid(device: str, floats: Draw) -> None:
    """One direction may be a kernel, which keeps nothing for the other."""
    check(device, aten.log_sigmoid_backward.default, floats(9), floats(9), floats(0))


def test_rms_norm(device: str, floats: Draw) -> None:
    x, weight = floats(3, 4, 6), floats(6)
    for w in (weight, None):
        _, rstd = aten._fused_rms_norm(x.to(device), [6], None if w is None else w.to(device), 1e-5)
        wanted = [True, w is not None]
        check(device, aten._fused_rms_norm_backward.default, floats(3, 4, 6), x, [6], rstd.cpu(), w, wanted)


def test_batch_norm_of_several_processes(device: str, floats: Draw) -> None:
    x, grad, weight, bias = floats(4, 3, 5, 2), floats(4, 3, 5, 2), floats(3), floats(3)
    mean, invstd = check(device, aten.batch_norm_stats.default, x, 1e-5)
    for w, b in ((weight, bias), (None, None)):
        check(device, aten.batch_norm_elemt.default, x, w, b, mean, invstd, 1e-5)
        total, dot, *_ = check(
            device, aten.batch_norm_backward_reduce.default, grad, x, mean, invstd, w, True, True, True
        )
        count = torch.tensor([40], dtype=torch.int32)
        check(device, aten.batch_norm_backward_elemt.default, grad, x, mean, invstd, w, total, dot, count)
    out = torch.empty(0, dtype=x.dtype)
    HOST_KERNELS["aten::batch_norm_elemt.out"](x, weight, bias, mean, invstd, 1e-5, out)
    same(out, HOST_KERNELS["aten::batch_norm_elemt"](x, weight, bias, mean, invstd, 1e-5), x.dtype)


@pytest.mark.parametrize("kernel, stride, padding, dilation", [(3, 2, 1, 1), (2, 2, 0, 1), (2, 1, 1, 2), (3, 1, 0, 2)])
def test_pooling_with_offsets(device: str, wide: Draw, kernel: int, stride: int, padding: int, dilation: int) -> None:
    if plans.kernel_form(0) != "cpu":
        pytest.skip("there are such kernels for CPUs alone")
    for dims in (2, 3):
        size = [7, 6, 8][:dims]
        numbers = [[each] * dims for each in (kernel, stride, padding, dilation)]
        y, offsets = check(device, own.max_pool_offsets.default, wide(2, 3, *size), *numbers, False)
        check(device, own.max_pool_offsets_backward.default, torch.rand_like(y), offsets, size, *numbers)


def test_cells(device: str, floats: Draw) -> None:
    gates, hidden, c, bias = floats(3, 20), floats(3, 20), floats(3, 5), floats(20)
    for b in (bias, None):
        _, after, workspace = check(device, aten._thnn_fused_lstm_cell.default, gates, hidden, c, b, b)
        for dh, dc in ((floats(3, 5), floats(3, 5)), (None, floats(3, 5)), (floats(3, 5), None)):
            op = aten._thnn_fused_lstm_cell_backward_impl.default
            check(device, op, dh, dc, c, after, workspace, b is not None)
    gates, hidden, bias = floats(3, 15), floats(3, 15), floats(15)
    for b in (bias, None):
        _, workspace = check(device, aten._thnn_fused_gru_cell.default, gates, hidden, c, b, b)
        check(device, aten._thnn_fused_gru_cell_backward.default, floats(3, 5), workspace, b is not None)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("cell, gates", [("lstm", 4), ("gru", 3), ("rnn_tanh", 1), ("rnn_relu", 1)])
def test_layers(device: str, wide: Draw, cell: str, gates: int, reverse: bool) -> None:
    if plans.kernel_form(0) != "cpu":
        pytest.skip("there are such kernels for CPUs alone")
    x, h, weight = wide(4, 3, gates * 5), wide(3, 5), wide(gates * 5, 5)
    c = wide(3, 5) if cell == "lstm" else None
    for bias in (wide(gates * 5), None):
        check(device, own.recurrent.default, x, h, c, weight, bias, cell, reverse, False)
        output, _, kept = check(device, own.recurrent.default, x, h, c, weight, bias, cell, reverse, True)
    for grad_c in (wide(3, 5), None) if cell == "lstm" else (None,):
        arguments = (wide(4, 3, 5), grad_c, h, c, weight, output, kept, cell, reverse)
        check(device, own.recurrent_backward.default, *arguments)


ATTENTION = aten._scaled_dot_product_fused_attention_overrideable.default
ATTENTION_BACKWARD = aten._scaled_dot_product_fused_attention_overrideable_backward.default
DRAWN = (6, 7)  # results that are seed and offset


@pytest.mark.parametrize("causal, bias", [(False, "none"), (True, "none"), (False, "bool"), (False, "number")])
def test_attention(device: str, floats: Draw, causal: bool, bias: str) -> None:
    for heads, key_heads, dims in ((4, 4, 4), (4, 2, 4), (3, 3, 3)):
        lead = (2,) if dims == 4 else ()
        q, k, v = floats(*lead, heads, 7, 8), floats(*lead, key_heads, 9, 8), floats(*lead, key_heads, 9, 6)
        mask: Any = None
        if bias == "bool":
            mask = torch.rand(7, 9) < 0.7
            mask[2] = False  # a query that sees nothing
        elif bias == "number":
            mask = floats(heads, 7, 9)
        results = check(device, ATTENTION, q, k, v, mask, 0.0, causal, False, None, skip=DRAWN)
        wanted = [True, True, True, bias == "number"]
        more = (*results[:8][:1], results[1], None, None, 7, 9, 0.0, causal, results[6], results[7])
        check(device, ATTENTION_BACKWARD, floats(*results[0].shape), q, k, v, mask, wanted, *more, 0.3)


def test_attention_drops_the_same_weights(device: str) -> None:
    """Whoever has drawn them: one direction may be a kernel and the other not."""
    q, k, v = torch.randn(2, 3, 6, 8), torch.randn(2, 3, 10, 8), torch.randn(2, 3, 10, 8)
    there = [t.to(device) for t in (q, k, v)]
    out, lse, *_, seed, offset, _ = ATTENTION(*there, None, 0.4, False, False)
    of_kernel = HOST_KERNELS[ATTENTION.name()]
    grad = torch.randn(2, 3, 6, 8)
    given = (None, None, 6, 10, 0.4, False)
    actual = ATTENTION_BACKWARD(
        grad.to(device), *there, None, [True, True, True, False], out, lse, *given, seed, offset
    )
    expected = HOST_KERNELS[ATTENTION_BACKWARD.name()](
        grad, q, k, v, None, [True, True, True, False], out.cpu(), lse.cpu(), *given, seed.cpu(), offset.cpu(), None
    )
    same(actual, expected, torch.float32)
    out, lse, *_, seed, offset, _ = of_kernel(q, k, v, None, 0.4, False, False, None)
    given_host = (None, [True, True, True, False], out, lse, *given, seed, offset)
    check(device, ATTENTION_BACKWARD, grad, q, k, v, *given_host, None)


def test_philox_words() -> None:
    """Known answers of the authors' Random123 for the counter and key of all zeros, and of all ones."""
    zero = philox_words(0, torch.tensor([0]))[0].tolist()
    assert zero == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


def test_an_op_of_an_author(device: str) -> None:
    torch.library.define("torchgraft_test_host::twice", "(Tensor x) -> Tensor")
    op = torch.ops.torchgraft_test_host.twice
    with pytest.raises(NotImplementedError, match="twice"):
        op(torch.ones(2, device=device))

    @plans.on_host("torchgraft_test_host::twice")
    def twice(x: torch.Tensor) -> torch.Tensor:
        assert x.device.type == "cpu"
        return x + x

    with torchgraft.fallback("silent"):
        assert op(torch.ones(2, device=device)).tolist() == [2, 2]
    assert torchgraft.fallback_report()["torchgraft_test_host::twice"].reasons
    with pytest.raises(ValueError, match="no op"):
        plans.on_host("torchgraft_test_host::thrice")(twice)


def test_under_a_default_device(device: str) -> None:
    """A user's default device is not where the CPU's tensors are."""
    x = torch.randn(1, 1, 6, 6)
    try:
        torch.set_default_device(device)
        results = HOST_KERNELS["torchgraft::max_pool_offsets"](x, [2, 2], [2, 2], [0, 0], [1, 1], False)
    finally:
        torch.set_default_device(None)
    assert {each.device.type for each in results} == {"cpu"}
