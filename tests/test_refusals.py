"""What torch's CPU refuses for its values or shapes is refused with the same type of exception, at every call."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import torchgraft
from torchgraft.plans import versions

Op = Callable[[torch.device], object]


def floats(device: torch.device, *shape: int) -> torch.Tensor:
    return torch.randn(*shape).to(device)


def in_place_gradient(device: torch.device, op: Callable[[torch.Tensor], torch.Tensor]) -> None:
    op(floats(device, 5).requires_grad_().clone()).sum().backward()


def lists(device: torch.device, *shape: int) -> list[torch.Tensor]:
    return [floats(device, *shape) for _ in range(3)]


REFUSED: dict[str, tuple[type[Exception], Op]] = {
    "lists of two sizes": (RuntimeError, lambda d: torch._foreach_mul(lists(d, 10), lists(d, 11))),
    "lists that would grow": (RuntimeError, lambda d: torch._foreach_mul_(lists(d, 10, 1), lists(d, 10, 10))),
    "fractions added to lists of integers": (
        RuntimeError,
        lambda d: torch._foreach_add_([x.int() for x in lists(d, 3)], 1.5),
    ),
    "roots in place of lists of integers": (
        RuntimeError,
        lambda d: torch._foreach_sqrt_([x.int() for x in lists(d, 3)]),
    ),
    "matrices added to a product of two": (
        RuntimeError,
        lambda d: floats(d, 1, 1, 2).addmm(floats(d, 2, 2), floats(d, 2, 2)),
    ),
    "a row added to a product of one number": (
        RuntimeError,
        lambda d: floats(d, 1, 2).addmm(floats(d, 1, 2), floats(d, 2, 1)),
    ),
    "truth added to a product": (
        RuntimeError,
        lambda d: (floats(d, 2, 2) > 0).addmm(floats(d, 2, 2), floats(d, 2, 2)),
    ),
    "a matrix added to a product with a vector": (
        RuntimeError,
        lambda d: floats(d, 1, 2).addmv(floats(d, 2, 2), floats(d, 2)),
    ),
    "a number that does not fit filled nowhere": (
        RuntimeError,
        lambda d: floats(d, 2).to(torch.int8).index_fill_(0, torch.tensor([], dtype=torch.int64, device=d), 300),
    ),
    "several places of a scalar": (
        RuntimeError,
        lambda d: floats(d, 1)[0].index_select(0, torch.tensor([0, 0], device=d)),
    ),
    "several places of a scalar added to": (
        RuntimeError,
        lambda d: floats(d, 1)[0].index_add_(0, torch.tensor([0, 0], device=d), floats(d, 2)),
    ),
    "a scalar joined into truth": (
        RuntimeError,
        lambda d: torch.cat([floats(d, 2), floats(d, 1)[0]], out=torch.empty(3, dtype=torch.bool, device=d)),
    ),
    "complex number added to lists": (RuntimeError, lambda d: torch._foreach_add_(lists(d, 3), 1j)),
    "lists to a complex power": (RuntimeError, lambda d: torch._foreach_pow_(lists(d, 3), 2 + 1j)),
    "complex factor of lists": (
        RuntimeError,
        lambda d: torch._foreach_addcmul(lists(d, 3), lists(d, 3), lists(d, 3), value=1j),
    ),
    "complex factors of lists": (
        RuntimeError,
        lambda d: torch._foreach_addcmul_(lists(d, 3), lists(d, 3), lists(d, 3), [1.0, 2.0, 1j]),
    ),
    "complex weight of lists": (RuntimeError, lambda d: torch._foreach_lerp(lists(d, 3), lists(d, 3), 1j)),
    "lists of integers between": (
        NotImplementedError,
        lambda d: torch._foreach_lerp([x.int() for x in lists(d, 3)], [x.int() for x in lists(d, 3)], 0.5),
    ),
    "integers between": (NotImplementedError, lambda d: torch.lerp(floats(d, 3).int(), floats(d, 3).int(), 0.5)),
    "norms of lists of integers": (
        versions.DTYPES_REFUSED,
        lambda d: torch._foreach_norm([x.int() for x in lists(d, 3)]),
    ),
    "softshrink of integers": (NotImplementedError, lambda d: F.softshrink(floats(d, 3).int())),
    "deviation of integers": (versions.DTYPES_REFUSED, lambda d: floats(d, 3).int().std()),
    "variance of truth": (versions.DTYPES_REFUSED, lambda d: (floats(d, 3, 3) > 0).var(0)),
    "log of the sums of integers": (NotImplementedError, lambda d: floats(d, 3).long().logcumsumexp(0)),
    "random complex integers": (RuntimeError, lambda d: torch.randint_like(floats(d, 3).to(torch.complex64), 5)),
    "largest of complex numbers": (
        NotImplementedError,
        lambda d: (x := floats(d, 3).to(torch.complex64)).scatter_reduce(0, torch.tensor([0], device=d), x, "amax"),
    ),
    "glu of integers": (NotImplementedError, lambda d: F.glu(floats(d, 4).int())),
    "margins of integers": (
        NotImplementedError,
        lambda d: F.multi_margin_loss(floats(d, 2, 3).int(), torch.tensor([0, 1], device=d)),
    ),
    "margins of integers and several classes": (
        NotImplementedError,
        lambda d: F.multilabel_margin_loss(floats(d, 2, 3).int(), torch.zeros(2, 3, dtype=torch.int64, device=d)),
    ),
    "complex norm of lists": (RuntimeError, lambda d: torch._foreach_norm(lists(d, 3), 1j)),
    "lists of two lengths": (RuntimeError, lambda d: torch._foreach_add(lists(d, 3), lists(d, 3)[1:])),
    "lists times vectors": (RuntimeError, lambda d: torch._foreach_mul(lists(d, 2), floats(d, 2))),
    "quotients of integers added": (
        RuntimeError,
        lambda d: torch.addcdiv(floats(d, 3), floats(d, 3).int(), floats(d, 3).int()),
    ),
    "index_fill with a complex number": (
        RuntimeError,
        lambda d: floats(d, 3).index_fill(0, torch.tensor([0], device=d), 1j),
    ),
    "index_fill with a complex tensor": (
        RuntimeError,
        lambda d: floats(d, 3).index_fill(0, torch.tensor([0], device=d), torch.tensor(1j, device=d)),
    ),
    "weights of other classes": (
        RuntimeError,
        lambda d: F.nll_loss(floats(d, 2, 3), torch.tensor([0, 2], device=d), weight=floats(d, 4)),
    ),
    "complex of two dtypes": (RuntimeError, lambda d: torch.complex(floats(d, 3), floats(d, 3).double())),
    "polar of two dtypes": (RuntimeError, lambda d: torch.polar(floats(d, 3).double(), floats(d, 3))),
    "complex out": (
        RuntimeError,
        lambda d: torch.complex(floats(d, 3), floats(d, 3), out=torch.empty(3, dtype=torch.complex128, device=d)),
    ),
    "aminmax out": (
        RuntimeError,
        lambda d: torch.aminmax(floats(d, 5, 5), dim=1, out=(floats(d, 5), floats(d, 5).double())),
    ),
    "pow of a larger exponent in place": (RuntimeError, lambda d: floats(d, 1)[0].pow_(floats(d, 3))),
    "copysign of a larger sign in place": (RuntimeError, lambda d: floats(d, 2, 1).copysign_(floats(d, 2, 2))),
    "heaviside of two dtypes": (RuntimeError, lambda d: torch.heaviside(floats(d, 3), floats(d, 3).half())),
    "heaviside out of another dtype": (
        RuntimeError,
        lambda d: torch.heaviside(floats(d, 3), floats(d, 3), out=floats(d, 3).double()),
    ),
    "isposinf out": (RuntimeError, lambda d: torch.isposinf(floats(d, 3), out=torch.zeros(3, device=d).byte())),
    "frexp of integers": (RuntimeError, lambda d: torch.frexp(floats(d, 3).int())),
    "frexp out": (
        RuntimeError,
        lambda d: torch.frexp(floats(d, 3), out=(floats(d, 3).double(), torch.zeros(3, dtype=torch.int32, device=d))),
    ),
    "frexp out of long exponents": (
        RuntimeError,
        lambda d: torch.frexp(floats(d, 3), out=(floats(d, 3), torch.zeros(3, dtype=torch.int64, device=d))),
    ),
    "abs of complex numbers in place": (RuntimeError, lambda d: torch.complex(floats(d, 3), floats(d, 3)).abs_()),
    "complex out of real sizes": (
        RuntimeError,
        lambda d: torch.abs(floats(d, 3), out=torch.zeros(3, dtype=torch.complex64, device=d)),
    ),
    "number minus bool": (versions.BOOLEANS_REFUSED, lambda d: 1 - floats(d, 3).bool()),
    "fraction of integers added": (
        RuntimeError,
        lambda d: torch.add(floats(d, 3).int(), floats(d, 3).int(), alpha=0.5),
    ),
    "softshrink": (RuntimeError, lambda d: F.softshrink(floats(d, 5), -0.5)),
    "elu of a lost sign": (RuntimeError, lambda d: in_place_gradient(d, lambda x: F.elu(x, -2.0, inplace=True))),
    "leaky_relu of a lost sign": (
        RuntimeError,
        lambda d: in_place_gradient(d, lambda x: F.leaky_relu(x, -0.5, inplace=True)),
    ),
    "adaptive pooling of integers": (NotImplementedError, lambda d: F.adaptive_max_pool2d(floats(d, 1, 4, 4).int(), 2)),
    "adaptive means of integers": (NotImplementedError, lambda d: F.adaptive_avg_pool2d(floats(d, 1, 4, 4).int(), 2)),
    "bucketize": (RuntimeError, lambda d: torch.bucketize(floats(d, 5), floats(d, 5, 5))),
    "multinomial": (RuntimeError, lambda d: torch.multinomial(floats(d, 5).abs(), 0)),
    "bernoulli": (RuntimeError, lambda d: torch.bernoulli(floats(d, 50).abs() + 1).cpu()),
    "unique": (RuntimeError, lambda d: torch.unique(floats(d, 5, 0), dim=0)),
    "amax": (IndexError, lambda d: torch.amax(floats(d, 5, 0, 5), 1)),
    "amin of all": (RuntimeError, lambda d: torch.amin(floats(d, 5, 0, 5))),
    "max": (IndexError, lambda d: torch.max(floats(d, 5, 0, 5), 1)),
    "min": (IndexError, lambda d: torch.min(floats(d, 5, 0, 5), 1)),
    "aminmax": (IndexError, lambda d: torch.aminmax(floats(d, 5, 0, 5), dim=1)),
    "argmax of nothing": (IndexError, lambda d: torch.argmax(floats(d, 0))),
    "argmin of 65 dimensions": (RuntimeError, lambda d: floats(d, *[1] * 65).argmin(0)),
    "mode out": (
        RuntimeError,
        lambda d: torch.mode(floats(d, 5), out=(floats(d, 1).double(), torch.zeros(1, dtype=torch.int64, device=d))),
    ),
    "deviation along a dimension into complex numbers": (
        NotImplementedError,
        lambda d: torch.std(floats(d, 3, 4), 0, out=torch.empty(0, dtype=torch.complex64, device=d)),
    ),
    "deviation of all halves into floats": (
        RuntimeError,
        lambda d: torch.std(floats(d, 3, 4).half(), None, out=torch.empty(0, device=d)),
    ),
    "cat of complex numbers into real ones": (
        TypeError,
        lambda d: torch.cat([floats(d, 3).to(torch.complex64)], out=torch.empty(0, device=d)),
    ),
    "nansum into integers": (
        NotImplementedError,
        lambda d: torch.nansum(floats(d, 3), dim=0, out=torch.empty(0, dtype=torch.int64, device=d)),
    ),
    "normal numbers into integers": (
        NotImplementedError,
        lambda d: torch.normal(floats(d, 3), 1.0, out=torch.empty(3, dtype=torch.int64, device=d)),
    ),
    "all out": (RuntimeError, lambda d: torch.all(floats(d, 5), out=floats(d, 1)[0])),
    "max out": (
        RuntimeError,
        lambda d: torch.max(floats(d, 5), 0, out=(floats(d, 1)[0].int(), torch.zeros((), dtype=torch.int64, device=d))),
    ),
    "median": (IndexError, lambda d: torch.median(floats(d, 5, 0, 5), 1)),
    "means of nothing": (RuntimeError, lambda d: F.avg_pool3d(floats(d, 1, 4, 4, 4), 2, divisor_override=0)),
    "nanmedian": (IndexError, lambda d: torch.nanmedian(floats(d, 5, 0, 5), 1)),
    "mode": (IndexError, lambda d: torch.mode(floats(d, 5, 0, 5), 1)),
    "cat of numbers": (RuntimeError, lambda d: torch.cat([floats(d, 1)[0], floats(d, 1)[0]])),
    "kthvalue": (IndexError, lambda d: torch.kthvalue(floats(d, 5, 0, 5), 1, 1)),
    "topk of truth": (versions.DTYPES_REFUSED, lambda d: torch.ones(3, dtype=torch.bool, device=d).topk(1)),
    "kthvalue of truth": (NotImplementedError, lambda d: torch.ones(3, dtype=torch.bool, device=d).kthvalue(1)),
    "argmax of no truth": (versions.DTYPES_REFUSED, lambda d: torch.ones(0, dtype=torch.bool, device=d).argmax()),
    "argmin of no truth": (versions.DTYPES_REFUSED, lambda d: torch.ones(3, 0, dtype=torch.bool, device=d).argmin(1)),
    "argmax of no complex numbers": (
        versions.COMPLEX_REFUSED,
        lambda d: torch.ones(0, dtype=torch.cfloat, device=d).argmax(),
    ),
    "relu of truth": (versions.BOOLEANS_REFUSED, lambda d: torch.ones(3, dtype=torch.bool, device=d).relu_()),
    "elu of integers": (NotImplementedError, lambda d: F.elu(torch.ones(3, dtype=torch.int32, device=d))),
    "leaky_relu of integers": (NotImplementedError, lambda d: F.leaky_relu(torch.ones(3, dtype=torch.int8, device=d))),
    "silu of integers": (NotImplementedError, lambda d: F.silu(torch.ones(3, dtype=torch.int32, device=d))),
    "softplus of truth": (NotImplementedError, lambda d: F.softplus(torch.ones(3, dtype=torch.bool, device=d))),
    "quotients of truth": (NotImplementedError, lambda d: (floats(d, 3) > 0) // (floats(d, 3) > 9)),
    "hardtanh of integers to what is none": (RuntimeError, lambda d: F.hardtanh(floats(d, 3).int(), -1, 1e300)),
    "hardtanh of truth": (versions.BOOLEANS_REFUSED, lambda d: F.hardtanh(floats(d, 3) > 0)),
    "amax into another type": (
        RuntimeError,
        lambda d: torch.amax(floats(d, 3, 3), 0, out=torch.empty(3, dtype=torch.float64, device=d)),
    ),
    "amin of truth into bytes": (
        RuntimeError,
        lambda d: torch.amin(floats(d, 3, 3) > 0, 0, out=torch.empty(3, dtype=torch.uint8, device=d)),
    ),
    "all into complex numbers": (
        RuntimeError,
        lambda d: torch.all(
            torch.ones(3, dtype=torch.cfloat, device=d), 0, out=torch.empty((), dtype=torch.cfloat, device=d)
        ),
    ),
    "any of complex numbers into integers": (
        RuntimeError,
        lambda d: torch.any(torch.ones(3, dtype=torch.cfloat, device=d), out=torch.ones((), device=d).long()),
    ),
    "nansum of fractions into integers": (
        NotImplementedError,
        lambda d: torch.nansum(floats(d, 3), 0, out=torch.empty((), dtype=torch.int64, device=d)),
    ),
    "means into another type than they are of": (
        RuntimeError,
        lambda d: torch.mean(floats(d, 3), 0, dtype=torch.float32, out=torch.empty((), device=d).double()),
    ),
    "running sums into truth": (
        NotImplementedError,
        lambda d: torch.cumsum(floats(d, 3), 0, out=torch.empty(3, dtype=torch.bool, device=d)),
    ),
    "tensor_split of floats": (RuntimeError, lambda d: floats(d, 5).tensor_split(floats(d, 1))),
    "tensor_split of a matrix": (RuntimeError, lambda d: floats(d, 5).tensor_split(torch.ones(1, 1).long())),
}


@pytest.mark.parametrize(("error", "op"), REFUSED.values(), ids=REFUSED)
def test_refused(error: type[Exception], op: Op, device: torch.device) -> None:
    for place in (torch.device("cpu"), device, device):
        with pytest.raises(error) as raised:
            op(place)
        assert raised.type is error


def test_a_scalar_is_checked_at_every_call(device: torch.device) -> None:
    x = floats(device, 5)
    F.softshrink(x, 0.25)
    F.softshrink(x, 0.5)  # by the same plan
    with pytest.raises(RuntimeError, match="lambda"):
        F.softshrink(x, -0.75)


def test_limits_of_hardtanh(device: torch.device) -> None:
    """In any order; of bytes none below 0, at every call."""
    for dtype in (torch.float32, torch.int32, torch.uint8):
        x = torch.tensor([0, 2, 5]).to(dtype)
        for limits in ((1, 4), (4, 1), (0, 3)):
            expected = torch.ops.aten.hardtanh(x, *limits)
            assert torch.ops.aten.hardtanh(x.to(device), *limits).cpu().tolist() == expected.tolist()
    for limits in ((-1, 1), (-2, -1)):
        with pytest.raises(RuntimeError, match="on an unsigned type with negative limits"):
            torch.ops.aten.hardtanh(x.to(device), *limits)


def test_tensor_split_takes_indices_anywhere(device: torch.device) -> None:
    x = torch.randn(5, 3)
    y = x.to(device).requires_grad_()
    where = torch.tensor([1, 3])
    for places in (where, where.to(device)):
        parts = y.tensor_split(places)
        assert [part.cpu().tolist() for part in parts] == [part.tolist() for part in x.tensor_split(where)]
    (gradient,) = torch.autograd.grad(y.tensor_split(where.to(device))[1].sum(), y)
    assert gradient.cpu()[:, 0].tolist() == [0, 1, 1, 0, 0]


@pytest.mark.parametrize("correction", [0, 1, -5])
def test_variance_of_nothing(correction: int, device: torch.device) -> None:
    x = torch.empty(0, 4)
    for op in (torch.var, torch.std):
        assert torch.isnan(op(x.to(device), correction=correction)).item()
        assert torch.isnan(op(x.to(device), dim=0, correction=correction)).all().item()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("mixed", [False, True])
def test_kept_statistics_are_of_the_parameters(dtype: torch.dtype, mixed: bool, device: torch.device) -> None:
    """Shapes and dtypes of what the norms keep are those of torch's CPU."""
    kept = torch.float32 if mixed else dtype
    aten = torch.ops.aten

    def statistics(place: torch.device | str) -> list[tuple[torch.dtype, torch.Size]]:
        x = torch.randn(4, 6, 5, dtype=dtype).to(place)
        w, mean, var = (torch.ones(6, dtype=kept).to(place) for _ in range(3))
        results = [
            *aten.native_layer_norm(x.mT.contiguous(), [6], w, w, 1e-5)[1:],
            *aten.native_group_norm(x, w, w, 4, 6, 5, 2, 1e-5)[1:],
            *aten.native_batch_norm(x, w, w, mean, var, True, 0.1, 1e-5)[1:],
            *aten.native_batch_norm(x, w, w, mean, var, False, 0.1, 1e-5)[1:],
            *aten._native_batch_norm_legit.no_stats(x, w, w, True, 0.1, 1e-5)[1:],
            *aten._batch_norm_with_update(x, w, w, mean, var, 0.1, 1e-5)[1:3],
        ]
        return [(result.dtype, result.shape) for result in results]

    assert statistics(device) == statistics("cpu")


def test_errors_of_kernels_come_from_their_line(device: torch.device) -> None:
    """A CPU's kernels are waited for where they look at what they are given."""
    x = floats(device, 5)
    if torchgraft.plans.device_traits(x.device.index).kind != "cpu":
        pytest.skip("other devices report at the next synchronisation")
    with pytest.raises(IndexError, match="index 7 is out of bounds for dimension 0 with size 5"):
        x[torch.tensor([7], device=device)]
    assert x[torch.tensor([4], device=device)].item() == x[4].item()


@pytest.mark.parametrize("shape", [(), (3,)], ids=str)
def test_results_are_not_written_to_the_cpu(shape: tuple[int, ...], device: torch.device) -> None:
    x, out = floats(device, 3)[0].expand(shape), torch.zeros(shape)
    for write in (
        lambda: torch.neg(x, out=out),
        lambda: torch.add(x, x, out=out),
        lambda: torch.cumsum(x, 0, out=out),
        lambda: out.mul_(x),
    ):
        with pytest.raises(RuntimeError, match="same device"):
            write()
    assert not out.any()


def test_out_of_composites(device: torch.device) -> None:
    x = floats(device, 5)
    with pytest.raises(RuntimeError, match="out tensor to have dtype Long"):
        torch.nonzero(x, out=torch.empty(0, device=device))
    with pytest.raises(RuntimeError, match="out tensor to have dtype Float"):
        torch.masked_select(x, x > 0, out=torch.empty(0, dtype=torch.int64, device=device))


def test_masks_of_bytes_are_deprecated(device: torch.device) -> None:
    x = torch.arange(3.0)
    with pytest.warns(UserWarning, match="indexing with dtype torch.uint8 is now deprecated"):
        assert x.to(device)[torch.tensor([1, 0, 1], dtype=torch.uint8).to(device)].tolist() == [0, 2]


def test_clamp_without_bounds(device: torch.device) -> None:
    for place in (torch.device("cpu"), device):
        with pytest.raises(RuntimeError, match="At least one of 'min' or 'max' must not be None"):
            torch.clamp(floats(place, 3))
