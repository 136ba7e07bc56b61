"""What ops say by themselves of their results is what torch's meta functions say."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

import torchgraft.ops  # noqa: F401  # declares the planners
from torchgraft.plans.meta import ask_meta
from torchgraft.plans.quick_meta import QUICK_METAS
from torchgraft.plans.registry import ENTRIES
from torchgraft.plans.schema import overload_name, parameters

aten = torch.ops.aten


def _by_name(op: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    names = [a.name for a in parameters(op)]
    return {a.name: a.default for a in parameters(op)} | dict(zip(names, args, strict=False)) | dict(kwargs)


def _described(result: Any) -> list[Any]:
    return [
        (tuple(x.shape), x.stride(), x.dtype) if isinstance(x, torch.Tensor) else x
        for x in tree_flatten(result, is_leaf=lambda x: x is None)[0]
    ]


def _expected(op: torch._ops.OpOverload, arguments: dict[str, Any]) -> list[Any]:
    result = _described(ask_meta(op, arguments))
    if op is aten.native_batch_norm_backward.default and not arguments["output_mask"][0]:
        return [None, *result[1:]]  # as torch's CPU says
    if op not in (aten.native_layer_norm.default, aten.native_group_norm.default):
        return result
    # They keep statistics in the dtype of their parameters, as torch's CPU does, not in float32.
    (shape, strides, dtype), *kept = result
    return [(shape, strides, dtype), *((kept_shape, kept_strides, dtype) for kept_shape, kept_strides, _ in kept)]


def test_ops_are_planned() -> None:
    for name in QUICK_METAS:
        entry = ENTRIES[name]
        assert overload_name(entry.functional) == name
        assert entry.options.quick_meta is QUICK_METAS[name] or entry.options.meta is not None


# ---- ordinary arguments ----


def _spec(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _calls() -> Iterator[tuple[torch._ops.OpOverload, tuple[Any, ...], dict[str, Any]]]:
    """Calls that are answered without torch: of each op some."""
    n, m, k, c = (random.randint(2, 9) for _ in range(4))
    x, image, row, weight = _spec(n, m, k), _spec(n, 2 * c, m, k), _spec(k), _spec(2 * c)
    for op in (aten.cumsum.default, aten.cumprod.default):
        yield op, (x, random.randint(-3, 2)), {}
    for op in (aten.tril.default, aten.triu.default):
        yield op, (x, random.randint(-2, 2)), {}
    yield aten.normal_.default, (x, 0.5, 2), {}
    yield aten.native_dropout.default, (x, 0.3, True), {}
    for op in (aten._softmax.default, aten._log_softmax.default):
        yield op, (x, random.randint(-3, 2), False), {}
    for op in (aten._softmax_backward_data.default, aten._log_softmax_backward_data.default):
        yield op, (x, x, random.randint(-3, 2), torch.float32), {}
    for op in (aten.sum.default, aten.mean.default):
        yield op, (x,), {}
    for dims, keepdim in itertools.product(([0], [-1], [0, 2], [1, -1], [0, 1, 2]), (False, True)):
        for op in (aten.sum.dim_IntList, aten.mean.dim, aten.logsumexp.default, aten.amax.default, aten.amin.default):
            yield op, (x, dims, keepdim), {}
        yield aten.linalg_vector_norm.default, (x, random.choice([0, 1, 2, 3.5, float("inf")]), dims, keepdim), {}
        for op in (aten.var.correction, aten.std.correction, aten.var_mean.correction, aten.std_mean.correction):
            yield op, (x, dims), {"correction": random.choice([0, 1, None]), "keepdim": keepdim}
    for op, reduction in itertools.product((aten.mse_loss, aten.smooth_l1_loss, aten.huber_loss), (0, 1, 2)):
        yield op.default, (x, x, reduction), {}
    yield aten.mm.default, (_spec(n, k), _spec(k, m)), {}
    yield aten.mm.default, (_spec(k, n).t(), _spec(m, k).t()), {}
    for bias in (_spec(m), _spec(n, m)):
        yield aten.addmm.default, (bias, _spec(n, k), _spec(k, m)), {"beta": 2, "alpha": 0.5}
    yield aten.bmm.default, (x, _spec(n, k, c)), {}
    yield aten.bmm.default, (x.mT.mT, _spec(n, c, k).mT), {}
    yield aten.mv.default, (_spec(n, k), row), {}
    yield aten.addmv.default, (_spec(n), _spec(n, k), row), {}
    for scale, shift in ((row, row), (None, None), (row, None)):
        mask = [random.random() < 0.7 for _ in range(3)]
        yield aten.native_layer_norm.default, (x, [k], scale, shift, 1e-5), {}
        yield aten.native_layer_norm_backward.default, (x, x, [k], *[_spec(n, m, 1)] * 2, scale, shift, mask), {}
    yield aten.native_layer_norm.default, (x, [m, k], None, _spec(m, k), 1e-5), {}
    sizes = (n, 2 * c, m * k, 2)
    for scale in (weight, None):
        yield aten.native_group_norm.default, (image, scale, weight, *sizes, 1e-5), {}
    for mask in ([True] * 3, [True, False, True], [False, True, True]):
        yield aten.native_group_norm_backward.default, (image, image, *[_spec(n, 2)] * 2, weight, *sizes, mask), {}
        for train in (True, False):
            yield aten.native_batch_norm_backward.default, (image, image, *[weight] * 5, train, 1e-5, mask), {}
    for dim in range(-3, 3):
        other = list(x.shape)
        other[dim] += 2
        yield aten.cat.default, ([x, _spec(*other), x], dim), {}
        yield aten.stack.default, ([x, x], dim), {}
    for index in (_spec(5, dtype=torch.int64), _spec(5, 2, dtype=torch.int32)):
        yield aten.index.Tensor, (x, [index]), {}
    yield aten.upsample_linear1d.default, (x, [7], False), {}
    yield aten.upsample_bilinear2d.default, (image, [5, 30], True), {}
    yield aten.upsample_bicubic2d.default, (image, [5, 30], False), {}
    yield aten.upsample_trilinear3d.default, (_spec(n, c, 2, 3, 4), [5, 6, 7], False, 2.5, None, None), {}
    yield aten.embedding.default, (_spec(n, k), _spec(3, 5, dtype=torch.int64)), {}
    planes = _spec(n, c, 12, 13)
    yield aten.im2col.default, (planes, [3, 2], [2, 1], [1, 0], [2, 3]), {}
    for windows in (([2, 2], [], [0, 0], [1, 1]), ([3, 2], [2, 1], [1, 0], [1, 3])):
        yield aten.max_pool2d_with_indices.default, (planes, *windows), {}
        pooled, places = aten.max_pool2d_with_indices(planes, *windows)
        yield aten.max_pool2d_with_indices_backward.default, (pooled, planes, *windows, False, places), {}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64], ids=str)
def test_ordinary_calls_are_answered(dtype: torch.dtype) -> None:
    def of_dtype(x: Any) -> Any:
        if isinstance(x, torch.dtype):
            return dtype
        return x.to(dtype) if isinstance(x, torch.Tensor) and x.is_floating_point() else x

    answered = set()
    for op, args, kwargs in _calls():
        arguments = tree_map(of_dtype, _by_name(op, args, kwargs))
        quick = QUICK_METAS[overload_name(op)](**arguments)
        assert quick is not None, f"{op} leaves {arguments} to torch"
        assert _described(quick) == _expected(op, arguments), f"{op} of {arguments}"
        answered.add(overload_name(op))
    assert answered == set(QUICK_METAS)


# ---- whatever else ----


class _Watched(TorchDispatchMode):
    """Compares each call of these ops, and counts which were answered."""

    def __init__(self) -> None:
        super().__init__()
        self.answered: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, overload_name(func)
        if name in QUICK_METAS:
            self._compare(func, name, _by_name(func, *tree_map(_as_meta, (args, kwargs))))
        return func(*args, **kwargs)

    def _compare(self, func: Any, name: str, arguments: dict[str, Any]) -> None:
        quick = QUICK_METAS[name](**arguments)
        if quick is None:
            return
        self.answered[name] += 1
        try:
            expected = _expected(func, arguments)
        except Exception as error:  # which a test of refusals must not take for the call's own
            pytest.fail(f"{name} answers {arguments}, which torch refuses: {error}")
        if _described(quick) != expected:
            pytest.fail(f"{name} of {arguments} gives {_described(quick)}, torch's {expected}")


def _as_meta(x: Any) -> Any:
    if not isinstance(x, torch.Tensor) or x.layout != torch.strided:
        return x
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")


_DATABASE = """
addmm addmv bmm cat cumsum cumprod index_put logsumexp matmul mean mm mv native_layer_norm native_batch_norm
nn.functional.batch_norm nn.functional.cross_entropy nn.functional.dropout nn.functional.group_norm
nn.functional.huber_loss nn.functional.interpolate nn.functional.layer_norm nn.functional.linear
nn.functional.mse_loss nn.functional.smooth_l1_loss nn.functional.unfold nn.functional.instance_norm norm
linalg.vector_norm linalg.norm log_softmax softmax std std_mean var var_mean sum amax amin stack hstack tril triu
__getitem__ nn.functional.embedding nn.functional.max_pool2d normal
take_along_dim einsum nn.functional.normalize nn.functional.cosine_similarity
""".split()


@pytest.mark.quick(name=_DATABASE[::5])
@pytest.mark.parametrize("name", _DATABASE)
@pytest.mark.filterwarnings("ignore")
def test_samples(name: str) -> None:
    """Whatever is answered is right, of layouts, dtypes and modes of all kinds, forward and backward; what torch
    refuses is not answered."""
    infos = [info for info in op_db if info.name == name]
    assert infos
    watched = _Watched()
    for info in infos:
        for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.complex64):
            if dtype not in info.supported_dtypes("cpu"):
                continue
            gradients = dtype in info.supported_backward_dtypes("cpu")
            for sample in info.sample_inputs("cpu", dtype, requires_grad=gradients):
                with watched:
                    result = info.op(sample.input, *sample.args, **sample.kwargs)
                    leaves = [t for t in tree_flatten(result)[0] if isinstance(t, torch.Tensor) and t.requires_grad]
                    if leaves:
                        sum(t.abs().sum() for t in leaves).backward()
        if info.error_inputs_func is not None:
            for error in info.error_inputs("cpu"):
                sample = error.sample_input
                with watched, pytest.raises(error.error_type):
                    info.op(sample.input, *sample.args, **sample.kwargs)
    assert watched.answered, f"no call of {name} was answered"
