"""scaled_dot_product_attention: results and gradients against torch on the CPU in float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention
from torch.profiler import ProfilerActivity

import torchgraft.plans
from torchgraft.codegen.tuning import Attention

pytestmark = pytest.mark.no_fallback

TOLERANCES = {torch.float64: 1e-12, torch.float32: 5e-6, torch.float16: 4e-3, torch.bfloat16: 3e-2}


@pytest.fixture(autouse=True)
def only_fused() -> Iterator[None]:
    """The fused kernels serve what is asked of them here, unless a test says otherwise."""
    with sdpa_kernel([SDPBackend.OVERRIDEABLE]):
        yield


def operand(batch: int, heads: int, rows: int, size: int, layout: str = "bhsd") -> torch.Tensor:
    if layout == "bshd":
        return torch.randn(batch, rows, heads, size, dtype=torch.float64).transpose(1, 2)
    if layout == "slices":
        return torch.randn(batch, heads, rows, 3 * size, dtype=torch.float64)[..., size : 2 * size]
    if layout == "bhds":
        return torch.randn(batch, heads, size, rows, dtype=torch.float64).transpose(2, 3)
    return torch.randn(batch, heads, rows, size, dtype=torch.float64)


def compare(
    device: str, dtype: torch.dtype, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any = None, **options: Any
) -> None:
    """Results and all gradients."""
    floating = mask is not None and mask.is_floating_point()
    leaves = [t.to(dtype) for t in (q, k, v)] + ([mask.to(dtype)] if floating else [])
    exact = [t.detach().clone().double().requires_grad_() for t in leaves]
    with sdpa_kernel([SDPBackend.MATH]):
        expected = scaled_dot_product_attention(*exact[:3], exact[3] if floating else mask, **options)
    grad = torch.randn(expected.shape, dtype=dtype)
    expected.backward(grad.double())
    own = [t.to(device).requires_grad_() for t in leaves]
    moved = None if mask is None else (own[3] if floating else mask.to(device))
    out = scaled_dot_product_attention(*own[:3], moved, **options)
    out.backward(grad.to(device))
    tolerance = TOLERANCES[dtype]
    torch.testing.assert_close(out.detach().cpu().double(), expected.detach(), rtol=tolerance, atol=tolerance)
    for mine, theirs in zip(own, exact, strict=True):
        assert mine.grad is not None
        assert theirs.grad is not None
        torch.testing.assert_close(mine.grad.cpu().double(), theirs.grad, rtol=4 * tolerance, atol=4 * tolerance)


@pytest.mark.quick(form="cpu", dtype=[torch.float32, torch.bfloat16])
@pytest.mark.quick(form="gpu", dtype=torch.float32)
@pytest.mark.parametrize("dtype", list(TOLERANCES))
@pytest.mark.parametrize("causal", [False, True])
def test_dtypes(device: str, form: str, dtype: torch.dtype, causal: bool) -> None:
    compare(device, dtype, operand(2, 3, 70, 32), operand(2, 3, 70, 32), operand(2, 3, 70, 32), is_causal=causal)


@pytest.mark.parametrize("layout", ["bshd", "slices", "bhds"])
def test_layouts(device: str, form: str, layout: str) -> None:
    q, k, v = (operand(2, 2, 33, 16, layout) for _ in range(3))
    compare(device, torch.float32, q, k, v)
    out = scaled_dot_product_attention(*(t.float().to(device) for t in (q, k, v)))
    if layout == "bshd":  # merging the heads costs no copy then
        assert out.transpose(1, 2).is_contiguous()


@pytest.mark.parametrize(("queries", "keys"), [(5, 1), (6, 300), (31, 32), (64, 64), (65, 129), (130, 7)])
@pytest.mark.parametrize("causal", [False, True])
def test_lengths(device: str, queries: int, keys: int, causal: bool) -> None:
    compare(
        device,
        torch.float64,
        operand(1, 2, queries, 8),
        operand(1, 2, keys, 8),
        operand(1, 2, keys, 8),
        is_causal=causal,
    )


@pytest.mark.quick(head=[7, 64])
@pytest.mark.parametrize(("head", "value_head"), [(1, 1), (7, 5), (20, 12), (64, 128), (256, 256)])
def test_heads(device: str, head: int, value_head: int) -> None:
    compare(device, torch.float32, operand(1, 1, 20, head), operand(1, 1, 70, head), operand(1, 1, 70, value_head))


@pytest.mark.quick(form="cpu")
@pytest.mark.parametrize("shape", [(2, 3, 40, 50), (2, 1, 40, 50), (3, 40, 50), (40, 50), (1, 1, 1, 50), (2, 1, 40, 1)])
def test_bias(device: str, form: str, shape: tuple[int, ...]) -> None:
    q, k, v = operand(2, 3, 40, 16), operand(2, 3, 50, 16), operand(2, 3, 50, 16)
    compare(device, torch.float32, q, k, v, torch.randn(shape, dtype=torch.float64), scale=0.3)
    compare(device, torch.float32, q, k, v, torch.rand(shape) > 0.3)


def test_rows_without_keys(device: str, form: str) -> None:
    q, k, v = (operand(1, 2, 40, 16) for _ in range(3))
    mask = torch.ones(40, 40, dtype=torch.bool)
    mask[3] = False
    mask[:, :35] &= torch.rand(40, 35) > 0.9
    compare(device, torch.float32, q, k, v, mask)
    assert (
        scaled_dot_product_attention(*(t.float().to(device) for t in (q, k, v)), mask.to(device)).cpu()[:, :, 3] == 0
    ).all()


@pytest.mark.quick(form="cpu", dtype=torch.float32, queries=3, keys=70)
@pytest.mark.parametrize("dtype", list(TOLERANCES))
@pytest.mark.parametrize("queries", [1, 2, 3, 4])
@pytest.mark.parametrize(("keys", "head", "value_head"), [(1, 1, 3), (70, 24, 32), (200, 64, 80)])
def test_few_queries(
    device: str, form: str, dtype: torch.dtype, queries: int, keys: int, head: int, value_head: int
) -> None:
    """Which have kernels of their own: with heads that fill vectors or not, and blocks of keys."""
    q, k, v = operand(2, 3, queries, head), operand(2, 3, keys, head), operand(2, 3, keys, value_head)
    compare(device, dtype, q, k, v)
    compare(device, dtype, q, k, v, is_causal=True)
    compare(device, dtype, q, k, v, torch.randn(2, 1, queries, keys, dtype=torch.float64))
    compare(device, dtype, q, k, v, torch.rand(3, queries, keys) > 0.5)


def test_few_queries_of_groups(device: str, form: str) -> None:
    q, k, v = operand(2, 6, 1, 16, "bshd"), operand(2, 2, 90, 16, "bshd"), operand(2, 2, 90, 16, "slices")
    compare(device, torch.float32, q, k, v, enable_gqa=True)
    compare(device, torch.float32, q, k, v, torch.arange(90) > torch.tensor([[[[80]]], [[[20]]]]), enable_gqa=True)


def booleans(layout: str, queries: int, keys: int) -> torch.Tensor:
    """Masks that lie in memory in many ways; some rows have no key."""
    if layout == "transposed":
        mask = (torch.rand(2, 3, keys, queries) > 0.5).transpose(2, 3)
    elif layout == "every other":
        mask = (torch.rand(2, 3, 2 * queries, 2 * keys) > 0.5)[..., ::2, ::2]
    elif layout == "off by one":
        mask = (torch.rand(2, 3, queries, keys + 3) > 0.5)[..., 1 : keys + 1]
    elif layout == "of keys":
        return (torch.rand(2, 1, 1, keys) > 0.5).expand(2, 3, queries, keys)
    else:
        mask = torch.rand(2, 1, queries, keys) > 0.5
    mask[0, :, queries // 2] = False
    mask[1, :, -1, : keys - 1] = False
    return mask.expand(2, 3, queries, keys)


@pytest.mark.quick(form="cpu", layout=["heads share", "off by one"], dtype=torch.float32)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("layout", ["heads share", "of keys", "transposed", "every other", "off by one"])
def test_masks_of_booleans(device: str, form: str, layout: str, dtype: torch.dtype) -> None:
    """Across blocks of keys, whole and in part."""
    for queries, keys in ((3, 70), (40, 64), (70, 131)):
        q, k, v = operand(2, 3, queries, 16), operand(2, 3, keys, 16), operand(2, 3, keys, 16)
        compare(device, dtype, q, k, v, booleans(layout, queries, keys))


@pytest.mark.parametrize("queries", [1, 40])
def test_one_launch(device: str, queries: int) -> None:
    """Nothing is made of a mask of booleans first, and few queries are not left to products and softmax."""
    q, k, v = (operand(2, 3, n, 16).float().to(device) for n in (queries, 50, 50))
    mask = (torch.rand(queries, 50) > 0.5).to(device)
    activities = [ProfilerActivity.CPU, getattr(ProfilerActivity, torch.device(device).type.upper())]
    for given in (None, mask):
        for recording in (torch.no_grad, torch.inference_mode):
            with recording(), torch.profiler.profile(activities=activities) as profiled:
                scaled_dot_product_attention(q, k, v, given)
                torch.accelerator.synchronize()
            names = [event.name for event in profiled.events() if event.device_type != torch.autograd.DeviceType.CPU]
            assert len(names) == 1, names


def test_groups_of_heads(device: str, form: str) -> None:
    for heads, key_heads in ((6, 2), (4, 1)):
        q, k, v = operand(2, heads, 40, 16), operand(2, key_heads, 50, 16), operand(2, key_heads, 50, 16)
        compare(device, torch.float32, q, k, v, enable_gqa=True)


def test_three_dimensions(device: str) -> None:
    compare(device, torch.float32, *(torch.randn(3, 40, 16, dtype=torch.float64) for _ in range(3)), is_causal=True)


def test_no_heads(device: str) -> None:
    """What torch does not ask for itself, but DTensor for a process that has none of them."""
    aten = torch.ops.aten
    none, bias = torch.empty(2, 0, 9, 8, device=device), torch.randn(2, 1, 9, 9, device=device)
    out, sums, _, _, _, _, *state = aten._scaled_dot_product_fused_attention_overrideable(none, none, none, bias)[:8]
    assert out.shape == none.shape and sums.shape == (2, 0, 9)
    gradients = aten._scaled_dot_product_fused_attention_overrideable_backward(
        out, none, none, none, bias, [True] * 4, out, sums, None, None, 9, 9, 0.0, False, *state
    )
    assert [g.shape for g in gradients] == [none.shape] * 3 + [bias.shape]
    assert torch.equal(gradients[3], torch.zeros_like(bias))


def test_large_scores(device: str) -> None:
    """Scores in the hundreds, whose exponentials would overflow."""
    q, k, v = operand(1, 2, 40, 16) * 30, operand(1, 2, 300, 16) * 30, operand(1, 2, 300, 16)
    compare(device, torch.float64, q, k, v)


def test_not_a_number_shows(device: str) -> None:
    q, k, v = (operand(1, 1, 40, 16).float() for _ in range(3))
    q[0, 0, 3, 5] = math.nan
    out = scaled_dot_product_attention(*(t.to(device) for t in (q, k, v))).cpu()
    assert out[0, 0, 3].isnan().all()
    assert out[0, 0, 4:].isfinite().all()


@pytest.mark.quick(form="cpu")
@pytest.mark.parametrize("queries", [3, 50])
@pytest.mark.parametrize("causal", [False, True])
def test_dropout(device: str, form: str, causal: bool, queries: int) -> None:
    """Values that are unit vectors show which weights were dropped; the gradients must belong to the same ones."""
    keys, rate = 60, 0.3
    q, k = operand(2, 3, queries, 16), operand(2, 3, keys, 16)
    v = torch.eye(keys, dtype=torch.float64).expand(2, 3, keys, keys)
    own = [t.to(device).requires_grad_() for t in (q, k, v)]
    out = scaled_dot_product_attention(*own, dropout_p=rate, is_causal=causal)
    weights = (q @ k.transpose(-1, -2) / 4).requires_grad_(False)
    limit = torch.ones(queries, keys, dtype=torch.bool)
    limit = limit.tril() if causal else limit
    kept = (out.detach().cpu() != 0) | ~limit
    share = 1 - float((~kept).sum()) / float(limit.expand_as(kept).sum())
    assert abs(share - (1 - rate)) < 5 * math.sqrt(rate * (1 - rate) / float(limit.expand_as(kept).sum()))
    exact = [t.clone().requires_grad_() for t in (q, k, v.contiguous())]
    weights = (
        torch.softmax((exact[0] @ exact[1].transpose(-1, -2) / 4).masked_fill(~limit, -math.inf), -1)
        * kept
        / (1 - rate)
    )
    expected = weights @ exact[2]
    torch.testing.assert_close(out.detach().cpu(), expected.detach(), rtol=1e-6, atol=1e-6)
    grad = torch.randn_like(expected)
    expected.backward(grad)
    out.backward(grad.to(device))
    for mine, theirs in zip(own, exact, strict=True):
        assert mine.grad is not None
        assert theirs.grad is not None
        torch.testing.assert_close(mine.grad.cpu(), theirs.grad, rtol=1e-6, atol=1e-6)


def test_dropout_can_be_repeated(device: str) -> None:
    q, k, v = (operand(1, 2, 40, 16).float().to(device) for _ in range(3))
    results = []
    for _ in range(2):
        torch.manual_seed(4)
        results += [scaled_dot_product_attention(q, k, v, dropout_p=0.5).cpu() for _ in range(2)]
    assert torch.equal(results[0], results[2])
    assert torch.equal(results[1], results[3])
    assert not torch.equal(results[0], results[1])


def test_the_scores_are_never_in_memory(device: str, tune: Callable[..., None]) -> None:
    """Nor in the GPU form, if there are more than products may have."""
    length = 6000
    tune("attention", gpu_scores=length * length)
    q, k, v = (torch.randn(1, 1, length, 16, device=device, requires_grad=True) for _ in range(3))
    torch.accelerator.empty_cache()
    torch.accelerator.reset_peak_memory_stats()
    before = torch.accelerator.memory_allocated()
    scaled_dot_product_attention(q, k, v, is_causal=True).sum().backward()
    assert torch.accelerator.max_memory_allocated() - before < length * length


def test_gradient_of_the_queries_alone(device: str) -> None:
    q, k, v = (operand(1, 2, 40, 16) for _ in range(3))
    own = q.to(device).requires_grad_()
    scaled_dot_product_attention(own, k.to(device), v.to(device)).sum().backward()
    exact = q.clone().requires_grad_()
    with sdpa_kernel([SDPBackend.MATH]):
        scaled_dot_product_attention(exact, k, v).sum().backward()
    torch.testing.assert_close(own.grad.cpu(), exact.grad)  # type: ignore[union-attr]


def test_what_the_kernels_do_not_serve(device: str) -> None:
    """Goes through matrix products and softmax; the answer is the same."""
    cases = [
        [torch.randn(1, 1, 8, 300, dtype=torch.float64) for _ in range(3)],
        [torch.randn(2, 2, 2, 8, 16, dtype=torch.float64) for _ in range(3)],
    ]
    with sdpa_kernel([SDPBackend.OVERRIDEABLE, SDPBackend.MATH]):
        for tensors in cases:
            got = scaled_dot_product_attention(*(t.to(device) for t in tensors))
            torch.testing.assert_close(got.cpu(), scaled_dot_product_attention(*tensors))
        with pytest.raises(RuntimeError):
            scaled_dot_product_attention(
                torch.randn(2, 2, 8, 16, device=device),
                torch.randn(2, 2, 8, 15, device=device),
                torch.randn(2, 2, 8, 16, device=device),
            )


def test_the_choice_can_be_asked_for(device: str) -> None:
    served = torch.randn(1, 2, 8, 16, device=device)
    not_served = torch.randn(1, 2, 8, 300, device=device)
    with sdpa_kernel([SDPBackend.OVERRIDEABLE, SDPBackend.MATH]):
        assert torch._fused_sdp_choice(served, served, served) == SDPBackend.OVERRIDEABLE.value
        assert torch._fused_sdp_choice(not_served, not_served, not_served) == SDPBackend.MATH.value
        few = torch.randn(1, 2, 1, 16, device=device, requires_grad=True)
        assert torch._fused_sdp_choice(few, served, served) == SDPBackend.MATH.value  # for the gradients' sake
        with torch.no_grad():
            assert torch._fused_sdp_choice(few, served, served) == SDPBackend.OVERRIDEABLE.value


@pytest.fixture
def products(tune: Callable[..., None]) -> None:
    """In the GPU form whatever can be made of matrix products is, small as it may be."""
    tune("attention", gpu_products=0)


def made_of_products() -> set[str]:
    """The directions that some plan has by products. Plans are made anew afterwards."""
    op = "_scaled_dot_product_fused_attention_overrideable"
    kernels = {"forward": (op, "attention_weights"), "backward": (f"{op}_backward", "attention_gradients")}
    made = {way for way, (name, kernel) in kernels.items() if kernel in torchgraft.plans.show(name)}
    torchgraft.plans.clear()
    return made


def check_products(form: str) -> None:
    assert made_of_products() == ({"forward", "backward"} if form == "gpu" else set())


@pytest.mark.usefixtures("products")
@pytest.mark.quick(form="gpu", dtype=[torch.float32, torch.bfloat16], causal=True)
@pytest.mark.parametrize("dtype", list(TOLERANCES))
@pytest.mark.parametrize("causal", [False, True])
def test_products(device: str, form: str, dtype: torch.dtype, causal: bool) -> None:
    """With fewer keys than queries and more than one item has, sums that matrix units take, and short ones."""
    for queries, keys, head, value_head in ((5, 1, 1, 1), (70, 33, 64, 40), (64, 300, 7, 16), (33, 1100, 32, 5)):
        q, k, v = operand(2, 3, queries, head), operand(2, 3, keys, head), operand(2, 3, keys, value_head)
        compare(device, dtype, q, k, v, is_causal=causal, scale=0.2 if head == 7 else None)
        check_products(form)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("causal", [False, True])
def test_products_of_what_pays(device: str, form: str, dtype: torch.dtype, causal: bool) -> None:
    """Enough of it that nobody has to ask for products."""
    q, k, v = operand(2, 4, 130, 64), operand(2, 4, 170, 64), operand(2, 4, 170, 32)
    assert Attention().gpu_products < 2 * 4 * 130 * 170 * 96
    compare(device, dtype, q, k, v, is_causal=causal)
    compare(device, dtype, q, k, v, torch.rand(130, 170) > 0.3)


@pytest.mark.usefixtures("products")
def test_products_with_masks(device: str, form: str) -> None:
    """Of booleans that lie in many ways, some rows without a key, and of numbers, which get no gradient."""
    q, k, v = operand(2, 3, 40, 16), operand(2, 3, 70, 16), operand(2, 3, 70, 16)
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        for layout in ("heads share", "of keys", "transposed", "every other", "off by one"):
            compare(device, dtype, q, k, v, booleans(layout, 40, 70))
            check_products(form)
    grad = torch.randn(2, 3, 40, 16)
    for shape in ((2, 3, 40, 70), (2, 1, 40, 70), (3, 40, 70), (40, 70), (1, 1, 1, 70), (2, 1, 40, 1)):
        bias = torch.randn(shape)
        bias[..., -1:, :1] = -math.inf
        bias[..., :1, :] = -math.inf
        results = []
        for where, dtype, backend in (("cpu", torch.float64, SDPBackend.MATH), (device, torch.float32, None)):
            leaves = [t.clone().to(where, dtype).requires_grad_() for t in (q, k, v)]
            with sdpa_kernel([backend or SDPBackend.OVERRIDEABLE]):
                out = scaled_dot_product_attention(*leaves, bias.to(where, dtype))
            out.backward(grad.to(where, dtype))
            results.append([out.detach(), *(t.grad for t in leaves)])
        check_products(form)
        for got, expected in zip(results[1], results[0], strict=True):
            torch.testing.assert_close(got.cpu().double(), expected, rtol=2e-5, atol=2e-5)


@pytest.mark.usefixtures("products")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products_of_layouts(device: str, form: str, dtype: torch.dtype) -> None:
    """In place and copied: heads behind rows, slices, columns, one sample, and three dimensions."""
    for layout in ("bshd", "slices", "bhds"):
        for batch in (1, 2):
            q, k, v = (operand(batch, 3, 33, 16, layout) for _ in range(3))
            compare(device, dtype, q, k, v, is_causal=True)
            check_products(form)
    q, k, v = (torch.randn(3, rows, 16, dtype=torch.float64) for rows in (33, 40, 40))
    compare(device, dtype, q, k, v)
    compare(device, dtype, q, k, v, torch.rand(3, 33, 40) > 0.3)
    check_products(form)


@pytest.mark.usefixtures("products")
@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_products_of_groups(device: str, form: str, layout: str) -> None:
    for heads, key_heads in ((6, 2), (4, 1)):
        q = operand(2, heads, 40, 16, layout)
        k, v = operand(2, key_heads, 50, 16, layout), operand(2, key_heads, 50, 24, layout)
        compare(device, torch.float32, q, k, v, enable_gqa=True, is_causal=True)
        compare(device, torch.bfloat16, q, k, v, torch.rand(2, heads, 40, 50) > 0.3, enable_gqa=True)
        check_products(form)


@pytest.mark.usefixtures("products")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products_of_parts(device: str, form: str, dtype: torch.dtype, tune: Callable[..., None]) -> None:
    """Scores of all heads take more memory than they may."""
    q, k, v = operand(2, 6, 40, 16), operand(2, 3, 50, 16), operand(2, 3, 50, 16)
    for matrices in (1, 4):  # of six
        tune("attention", gpu_scores=matrices * 80 * 50 * 4)
        compare(device, dtype, q, k, v, torch.rand(2, 6, 40, 50) > 0.3, enable_gqa=True)
        compare(device, dtype, q, k, v, is_causal=True, enable_gqa=True)
        check_products(form)
    tune("attention", gpu_scores=80 * 50 * 4 - 1)
    compare(device, dtype, q, k, v, is_causal=True, enable_gqa=True)
    assert not made_of_products()


@pytest.mark.usefixtures("products")
def test_products_agree_with_the_kernel(device: str, form: str, tune: Callable[..., None]) -> None:
    """In the logarithms of sums, too, of rows without keys, and of those that are not a number."""
    attend = torch.ops.aten._scaled_dot_product_fused_attention_overrideable
    q, k, v = (operand(2, 3, rows, 16).float().to(device) for rows in (40, 50, 50))
    q[0, 1, 3, 5] = math.nan
    k[1, 0, 7, 2] = math.inf
    mask = (torch.rand(2, 3, 40, 50) > 0.3).to(device)
    mask[0, :, 20] = False
    results = []
    for least in (0, math.inf):
        tune("attention", gpu_products=least)
        of_mask, causal = attend(q, k, v, mask), attend(q, k, v, is_causal=True)
        results.append([t.cpu() for t in (*of_mask[:2], *causal[:2])])
        assert made_of_products() == ({"forward"} if form == "gpu" and least == 0 else set())
    assert (results[0][1][0, 0, 20] == math.inf) and (results[0][0][0, 0, 20] == 0).all()
    assert results[0][0][0, 1, 3].isnan().all()
    for got, expected in zip(*results, strict=True):
        torch.testing.assert_close(got, expected, equal_nan=True)


@pytest.mark.usefixtures("products")
def test_products_of_some_gradients(device: str, form: str) -> None:
    operands = [operand(1, 2, 40, 16) for _ in range(3)]
    for wanted in range(3):
        exact, own = [t.clone() for t in operands], [t.to(device) for t in operands]
        for tensors, backend in ((exact, SDPBackend.MATH), (own, SDPBackend.OVERRIDEABLE)):
            tensors[wanted].requires_grad_()
            with sdpa_kernel([backend]):
                out = scaled_dot_product_attention(*tensors)
            (out * out).sum().backward()
        torch.testing.assert_close(own[wanted].grad.cpu(), exact[wanted].grad)  # type: ignore[union-attr]
        check_products(form)


@pytest.mark.usefixtures("products")
def test_what_products_do_not_serve(device: str, form: str) -> None:
    """Dropout, gradients of what is added to the scores, and few queries."""
    q, k, v = (operand(1, 2, 40, 16).float().to(device).requires_grad_() for _ in range(3))
    scaled_dot_product_attention(q, k, v, dropout_p=0.5).sum().backward()
    with torch.no_grad():
        scaled_dot_product_attention(q[:, :, :4], k, v)
    assert not made_of_products()
    bias = torch.randn(40, 40, dtype=torch.float64)
    compare(device, torch.float32, operand(1, 2, 40, 16), operand(1, 2, 40, 16), operand(1, 2, 40, 16), bias)
    assert "backward" not in made_of_products()


@pytest.mark.parametrize("mode", ["train", "eval", "weights", "mask", "padding"])
def test_multihead_attention(device: str, mode: str) -> None:
    with sdpa_kernel([SDPBackend.OVERRIDEABLE, SDPBackend.MATH]):
        layer = torch.nn.MultiheadAttention(32, 4, batch_first=True, dtype=torch.float64)
        layer.train(mode != "eval")
        x = torch.randn(2, 12, 32, dtype=torch.float64)
        options: dict[str, Any] = {"need_weights": mode == "weights"}
        if mode == "mask":
            options["attn_mask"] = torch.ones(12, 12, dtype=torch.bool).triu(1)
        if mode == "padding":
            options["key_padding_mask"] = torch.arange(12).expand(2, 12) >= torch.tensor([[12], [7]])
        results = []
        for where in ("cpu", device):
            own = torch.nn.MultiheadAttention(32, 4, batch_first=True, dtype=torch.float64)
            own.load_state_dict(layer.state_dict())
            own.to(where).train(layer.training)
            y = x.to(where)
            with torch.set_grad_enabled(layer.training):
                result = own(
                    y, y, y, **{k: v.to(where) if isinstance(v, torch.Tensor) else v for k, v in options.items()}
                )
            if layer.training:
                result[0].sum().backward()
            grads = [p.grad.cpu() for p in own.parameters() if p.grad is not None]
            results.append([t.detach().cpu() for t in result if t is not None] + grads)
        torch.testing.assert_close(results[1], results[0])


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("norm_first", [True, False])
def test_encoder_layer(device: str, training: bool, norm_first: bool) -> None:
    """In eval mode torch takes a path of its own, in one op."""
    with sdpa_kernel([SDPBackend.OVERRIDEABLE, SDPBackend.MATH]):
        layer = torch.nn.TransformerEncoderLayer(
            32, 4, 64, dropout=0.0, batch_first=True, norm_first=norm_first, dtype=torch.float64
        )
        layer.train(training)
        x = torch.randn(2, 12, 32, dtype=torch.float64)
        with torch.set_grad_enabled(training):
            expected = layer(x)
            got = layer.to(device)(x.to(device))
        torch.testing.assert_close(got.cpu(), expected)


def test_encoder_with_padding(device: str) -> None:
    """Where torch's CPU would take a nested tensor: what is not padding is the same."""
    encoder = (
        torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 2).double().eval()
    )
    x = torch.randn(2, 12, 32, dtype=torch.float64)
    padding = torch.arange(12).expand(2, 12) >= torch.tensor([[12], [7]])
    with sdpa_kernel([SDPBackend.OVERRIDEABLE, SDPBackend.MATH]), torch.no_grad():
        expected = encoder(x, src_key_padding_mask=padding)
        got = encoder.to(device)(x.to(device), src_key_padding_mask=padding.to(device)).cpu()
    torch.testing.assert_close(got[~padding], expected[~padding])


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.quick(compiled=False)
@pytest.mark.parametrize("compiled", [False, True])
def test_flex_attention(device: str, compiled: bool) -> None:
    """Without inductor it is made of ops, which are the device's."""

    def causal(b: Any, h: Any, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return q >= k

    def bias(score: torch.Tensor, b: Any, h: Any, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return score + (q - k)

    torch._dynamo.reset()
    attend: Any = torch.compile(flex_attention, backend="eager") if compiled else flex_attention
    on_cpu = [torch.randn(1, 2, 16, 8) for _ in range(3)]
    q, k, v = (t.to(device).requires_grad_() for t in on_cpu)
    result = attend(q, k, v, score_mod=bias, block_mask=create_block_mask(causal, 1, 1, 16, 16, device=device))
    expected = flex_attention(*on_cpu, score_mod=bias, block_mask=create_block_mask(causal, 1, 1, 16, 16, device="cpu"))
    torch.testing.assert_close(result.cpu(), expected, rtol=1e-4, atol=1e-5)
    result.sum().backward()
    assert v.grad is not None and v.grad.device == v.device
    torch.testing.assert_close(v.grad.sum().item(), float(result.numel()), rtol=1e-4, atol=1e-4)
