"""What each operator of docs/operators.md is, as functions of tensors of the CPU."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F

__all__ = ["KINDS", "OPERATORS", "compute", "overload"]

aten = torch.ops.aten

#: Which there are of operators that are many; of `pointwise` see `overload`.
KINDS = {
    "reduce": "sum mean prod amax amin argmax argmin max min any all logsumexp norm var std var_mean std_mean".split(),
    "cumulative": ["cumsum", "cumprod"],
    "triangle": ["tril", "triu"],
}
#: What each operator does with its inputs (numbers as such) and attributes; returns the outputs' values.
OPERATORS: dict[str, Callable[..., Any]] = {}


def operator(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def declare(function: Callable[..., Any]) -> Callable[..., Any]:
        OPERATORS[name] = function
        return function

    return declare


@operator("copy")
def _copy(x: Any) -> Any:
    return x


@operator("fill")
def _fill(*, value: float) -> Any:
    return value


@operator("pointwise")
def _pointwise(*inputs: Any, kind: str, names: str, **others: Any) -> Any:
    given = dict(zip(names.split(), inputs, strict=True)) | others
    op = overload(kind, {name: isinstance(value, torch.Tensor) for name, value in given.items()})
    wanted = {a.name: str(a.type) for a in op._schema.arguments}
    # Numbers count as converted to the tensors' dtype, which is not that of masks.
    dtypes = [v.dtype for v in inputs if isinstance(v, torch.Tensor)]
    dtype = max(dtypes, key=lambda each: each is not torch.bool)
    return op(
        **{
            n: torch.tensor(v, dtype=dtype) if wanted[n] == "Tensor" and not isinstance(v, torch.Tensor) else v
            for n, v in given.items()
        }
    )


def overload(kind: str, given: dict[str, bool]) -> Any:
    """Of torch's op, for arguments of which some are tensors: numbers go for tensors as well."""
    packet = getattr(aten, kind, None)
    found = [] if packet is None else [getattr(packet, name) for name in packet.overloads()]

    def fits(op: Any) -> bool:
        types = {a.name: str(a.type) for a in op._schema.arguments}
        needed = {a.name for a in op._schema.arguments if not a.has_default_value()}
        tensors = all(types[name] == "Tensor" for name, is_tensor in given.items() if is_tensor and name in types)
        return not op._schema.is_mutable and needed <= set(given) <= set(types) and tensors

    # The one that takes most numbers as such.
    fitting = sorted(filter(fits, found), key=lambda op: sum(str(a.type) == "Tensor" for a in op._schema.arguments))
    if not fitting:
        raise NotImplementedError(f"the library has no {kind} of {' '.join(given)}")
    return fitting[0]


@operator("matmul")
def _matmul(a: Any, b: Any, addend: Any, *, alpha: float, beta: float) -> Any:
    if not a.is_floating_point():
        alpha = int(alpha)
        beta = int(beta)
    product = alpha * (a @ b)
    return product if addend is None else product + beta * addend


@operator("convolution")
def _convolution(x: Any, w: Any, b: Any, **sizes: Any) -> Any:
    return aten.convolution(x, w, b, *_sizes(sizes))


def _sizes(sizes: dict[str, Any]) -> list[Any]:
    names = ("stride", "padding", "dilation", "transposed", "output_padding", "groups")
    return [bool(sizes[n]) if n == "transposed" else sizes[n] for n in names]


@operator("convolution_input_gradient")
def _input_gradient(grad: Any, w: Any, *, out: Any, **sizes: Any) -> Any:
    x = torch.zeros(out[0].shape, dtype=grad.dtype)
    return aten.convolution_backward(grad, x, w, None, *_sizes(sizes), [True, False, False])[0]


@operator("convolution_weight_gradient")
def _weight_gradient(grad: Any, x: Any, *, out: Any, **sizes: Any) -> Any:
    w = torch.zeros(out[0].shape, dtype=grad.dtype)
    return aten.convolution_backward(grad, x, w, None, *_sizes(sizes), [False, True, False])[1]


@operator("max_pool")
def _max_pool(x: Any, *, kernel_size: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: int) -> Any:
    return aten.max_pool2d_with_indices(x, kernel_size, stride, padding, dilation, bool(ceil_mode))


@operator("max_pool_gradient")
def _max_pool_gradient(grad: Any, indices: Any, *, out: Any) -> Any:
    made = torch.zeros(out[0].shape, dtype=grad.dtype).flatten(-2)
    made.scatter_add_(-1, indices.flatten(-2), grad.flatten(-2))
    return made.view(out[0].shape)


@operator("adaptive_average_pool")
def _adaptive(x: Any, *, out: Any) -> Any:
    return F.adaptive_avg_pool2d(x, out[0].shape[-2:])


@operator("adaptive_average_pool_gradient")
def _adaptive_gradient(grad: Any, *, out: Any) -> Any:
    return aten._adaptive_avg_pool2d_backward(grad, torch.zeros(out[0].shape, dtype=grad.dtype))


@operator("reduce")
def _reduce(x: Any, *, kind: str, dims: Any, correction: float = 1, ord: float = 2) -> Any:
    dims = list(dims)
    whole = len(dims) == x.dim()
    if kind in ("sum", "mean", "amax", "amin", "logsumexp"):
        return getattr(torch, kind)(x, dims) if x.dim() else getattr(torch, kind)(x.view(1), [0])
    if kind == "norm":
        return torch.linalg.vector_norm(x, ord, dims)
    if kind in ("var", "std", "var_mean", "std_mean"):
        return getattr(torch, kind)(x, dims, correction=correction)
    if kind == "prod" and whole:
        return x.prod()
    if whole:
        result = getattr(torch, kind)(x.reshape(-1), 0)
    else:
        assert len(dims) == 1
        result = getattr(torch, kind)(x, dims[0])
    return result[0] if kind in ("max", "min") and whole and x.dim() != 1 else result


def _along(kind: str, function: Callable[..., Any], backward: Callable[..., Any]) -> None:
    operator(kind)(lambda x, *, dim: function(x, dim))
    operator(f"{kind}_gradient")(lambda grad, y, *, dim: backward(grad, y, dim, y.dtype))


_along("softmax", torch.softmax, aten._softmax_backward_data)
_along("log_softmax", torch.log_softmax, aten._log_softmax_backward_data)


@operator("cumulative")
def _cumulative(x: Any, *, kind: str, dim: int) -> Any:
    return getattr(torch, kind)(x, dim, dtype=x.dtype)


@operator("sort")
def _sort(x: Any, *, dim: int, descending: int) -> Any:
    return torch.sort(x, dim=dim, descending=bool(descending), stable=True)


@operator("topk")
def _top(x: Any, *, dim: int, largest: int, out: Any) -> Any:
    return torch.topk(x, out[0].shape[dim], dim, bool(largest))


@operator("layer_norm")
def _layer_norm(x: Any, w: Any, b: Any, *, dims: int, eps: float) -> Any:
    return torch.native_layer_norm(x, x.shape[x.dim() - dims :], w, b, eps)


@operator("layer_norm_gradient")
def _layer_norm_gradient(grad: Any, x: Any, mean: Any, rstd: Any, w: Any, *, dims: int, out: Any) -> Any:
    shape, mask = x.shape[x.dim() - dims :], [each is not None for each in out]
    bias = torch.zeros(shape, dtype=x.dtype) if mask[2] else None
    mean, rstd = mean.contiguous(), rstd.contiguous()  # torch's function takes them for that
    return aten.native_layer_norm_backward(grad, x, shape, mean, rstd, w, bias, mask)


@operator("batch_norm")
def _batch_norm(x: Any, w: Any, b: Any, mean: Any, var: Any, *, training: int, momentum: float, eps: float) -> Any:
    mean, var = (None if each is None else each.clone() for each in (mean, var))
    return *torch.native_batch_norm(x, w, b, mean, var, bool(training), momentum, eps), mean, var


@operator("batch_norm_gradient")
def _batch_norm_gradient(grad: Any, x: Any, w: Any, mean: Any, rstd: Any, *, out: Any) -> Any:
    mask = [each is not None for each in out]
    return aten.native_batch_norm_backward(grad, x, w, None, None, mean, rstd, True, 0.0, mask)


@operator("gather")
def _gather(x: Any, indices: Any, *, dim: int) -> Any:
    if int(indices.min()) < 0 or int(indices.max()) >= x.shape[dim]:
        raise IndexError("index out of range in gather")
    found = x.index_select(dim, indices.reshape(-1))
    return found.view(*x.shape[:dim], *indices.shape, *x.shape[dim + 1 :])


@operator("scatter_add")
def _scatter_add(values: Any, indices: Any, *, left_out: int, out: Any) -> Any:
    return aten.embedding_dense_backward(values, indices, out[0].shape[0], left_out, False)


@operator("cat")
def _cat(*parts: Any, dim: int) -> Any:
    return torch.cat(parts, dim)


@operator("range")
def _range(*, start: float, step: float, out: Any) -> Any:
    return start + torch.arange(out[0].numel(), dtype=torch.float64 if isinstance(start, float) else torch.int64) * step


@operator("triangle")
def _triangle(x: Any, *, kind: str, diagonal: int) -> Any:
    return getattr(torch, kind)(x, diagonal)


@operator("nll_loss")
def _nll_loss(x: Any, target: Any, weight: Any, *, reduction: str, ignored: int) -> Any:
    return aten.nll_loss_forward(x, target, weight, ("none", "mean", "sum").index(reduction), ignored)


@operator("nll_loss_gradient")
def _nll_loss_gradient(
    grad: Any, target: Any, weight: Any, total: Any, *, reduction: str, ignored: int, out: Any
) -> Any:
    x = torch.zeros(out[0].shape, dtype=grad.dtype)
    how = ("none", "mean", "sum").index(reduction)
    return aten.nll_loss_backward(grad, x, target, weight, how, ignored, total)


# ---- attention ----


def _weights(q: Any, k: Any, mask: Any, causal: int, scale: float) -> tuple[Any, Any]:
    """Of each score, and the logarithms of their sums."""
    scores = q @ _for_each_head(k, q).mT * scale
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
    if causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        scores = scores.masked_fill(~seen, -math.inf)
    sums = scores.logsumexp(-1)
    return (scores - sums.unsqueeze(-1)).exp().masked_fill((sums == -math.inf).unsqueeze(-1), 0), sums


def _for_each_head(x: Any, q: Any) -> Any:
    return x.repeat_interleave(q.shape[1] // x.shape[1], 1)


def _wide(*tensors: Any) -> list[Any]:
    """16-bit floats in float32."""
    return [t.float() if t is not None and t.dtype in (torch.float16, torch.bfloat16) else t for t in tensors]


@operator("attention")
def _attention(q: Any, k: Any, v: Any, mask: Any, *, causal: int, scale: float) -> Any:
    q, k, v, mask = _wide(q, k, v, mask)
    weights, sums = _weights(q, k, mask, causal, scale)
    return weights @ _for_each_head(v, q), sums


@operator("attention_gradient")
def _attention_gradient(
    grad: Any, q: Any, k: Any, v: Any, mask: Any, y: Any, sums: Any, *, causal: int, scale: float
) -> Any:
    grad, q, k, v, mask, y = _wide(grad, q, k, v, mask, y)
    weights, again = _weights(q, k, mask, causal, scale)
    torch.testing.assert_close(sums, again)  # what the forward operator has left is what comes back
    by = grad @ _for_each_head(v, q).mT - (grad * y).sum(-1, keepdim=True)
    of_scores = weights * by

    def shared(x: Any) -> Any:
        return x.unflatten(1, (k.shape[1], -1)).sum(2)

    of_k, of_v = shared(of_scores.mT @ q) * scale, shared(weights.mT @ grad)
    return of_scores @ _for_each_head(k, q) * scale, of_k, of_v, of_scores


# ---- layers of recurrent networks ----


def _cell(kind: str, x: Any, h: Any, before: Any, c: Any) -> tuple[Any, Any, list[Any]]:
    """The new state, the new second one, and what the gradient needs."""
    if kind == "lstm":
        i, f, g, o = (x + h).chunk(4, -1)
        i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
        c = f * c + i * g
        return o * c.tanh(), c, [i, f, g, o, c]
    if kind == "gru":
        (xr, xz, xn), (hr, hz, hn) = x.chunk(3, -1), h.chunk(3, -1)
        r, z = (xr + hr).sigmoid(), (xz + hz).sigmoid()
        n = (xn + r * hn).tanh()
        return n + z * (before - n), None, [r, z, n, hn]
    y = (x + h).tanh() if kind == "rnn_tanh" else (x + h).relu()
    return y, None, [y]


@operator("recurrent")
def _recurrent(gates: Any, hx: Any, cx: Any, weight: Any, bias: Any, *, kind: str, reverse: int) -> Any:
    steps = range(len(gates))
    output: list[Any] = [None] * len(gates)
    kept: list[Any] = [None] * len(gates)
    for t in reversed(steps) if reverse else steps:
        h = F.linear(hx, weight, bias)
        hx, cx, own = _cell(kind, gates[t], h, hx, cx)
        output[t], kept[t] = hx, torch.cat(own, -1)
    return torch.stack(output), cx, torch.stack(kept)


@operator("recurrent_gradient")
def _recurrent_gradient(
    grad: Any, grad_cy: Any, hx: Any, cx: Any, weight: Any, y: Any, kept: Any, *, kind: str, reverse: int
) -> Any:
    steps, size = range(len(grad)), hx.shape[1]
    dh, dc = torch.zeros_like(hx), torch.zeros_like(hx) if grad_cy is None else grad_cy
    of_gates: list[Any] = [None] * len(grad)
    of_hidden: list[Any] = [None] * len(grad)
    for t in steps if reverse else reversed(steps):
        earlier = t + 1 if reverse else t - 1
        is_first = not 0 <= earlier < len(grad)
        before, own, dh = hx if is_first else y[earlier], kept[t].split(size, -1), dh + grad[t]
        if kind == "lstm":
            i, f, g, o, c = own
            c_before = cx if is_first else kept[earlier].split(size, -1)[4]
            through = c.tanh()
            dc = dc + dh * o * (1 - through * through)
            parts = [
                dc * g * (1 - i) * i,
                dc * c_before * (1 - f) * f,
                dc * i * (1 - g * g),
                dh * through * (1 - o) * o,
            ]
            hidden, direct, dc = parts, 0, dc * f
        elif kind == "gru":
            r, z, n, h = own
            dn, dz = dh * (1 - z) * (1 - n * n), dh * (before - n) * (1 - z) * z
            dr = dn * h * (1 - r) * r
            parts, hidden, direct = [dr, dz, dn], [dr, dz, dn * r], dh * z
        else:
            parts = [dh * (1 - own[0] ** 2 if kind == "rnn_tanh" else own[0] > 0)]
            hidden, direct = parts, 0
        of_gates[t], of_hidden[t] = torch.cat(parts, -1), torch.cat(hidden, -1)
        dh = of_hidden[t] @ weight + direct
    return torch.stack(of_gates), torch.stack(of_hidden), dh, dc


# ---- random numbers ----


def _integers(like: Any, generator: torch.Generator, least: int, most: int) -> Any:
    words = torch.empty(64 + 4 * like.numel(), dtype=torch.int64).random_(-(2**63), None, generator=generator)
    if most - least + 1 < 2**63:
        words = least + words.remainder(most - least + 1)
    return words[(words >= least) & (words <= most)][: like.numel()].view(like.shape)


@operator("random")
def _random(seed: int, offset: int, *numbers: Any, kind: str, out: Any) -> Any:
    generator = torch.Generator().manual_seed((seed * 1000003 + offset) % (1 << 63))
    like = out[0]
    made = torch.empty(like.shape, dtype=like.dtype if like.is_floating_point() else torch.float64)
    if kind == "integers":
        return _integers(like, generator, *numbers)
    if kind == "permutation":
        return torch.randperm(like.numel(), generator=generator)
    if kind == "bernoulli":
        return torch.bernoulli(
            torch.as_tensor(numbers[0], dtype=torch.float64).expand(like.shape).contiguous(), generator=generator
        )
    if kind == "gamma":
        return torch._standard_gamma(numbers[0].contiguous(), generator=generator)
    if kind in ("poisson", "binomial"):
        return getattr(torch, kind)(*(each.contiguous() for each in numbers), generator=generator)
    return getattr(made, f"{kind}_")(*numbers, generator=generator)


# ---- steps of optimizers ----


@operator("optimizer_step")
def _step(*inputs: Any, kind: str, count: int, out: Any, **flags: int) -> Any:
    names = {
        "sgd": "lr weight_decay momentum dampening",
        "adagrad": "lr lr_decay weight_decay eps",
    }.get(kind, "lr beta1 beta2 weight_decay eps").split()
    numbers = dict(zip(names, inputs, strict=False))
    scale, found_inf = inputs[len(names) : len(names) + 2]
    rest = inputs[len(names) + 2 :]
    lists = [[None if x is None else x.clone() for x in rest[i : i + count]] for i in range(0, len(rest), count)]
    given = [[] if each[0] is None else each for each in lists]
    flags = {name: bool(value) for name, value in flags.items()}
    if kind == "sgd":
        flags["is_first_step"] = flags.pop("first")
    elif kind != "adagrad":
        flags["amsgrad"] = bool(given[4])
    getattr(aten, f"_fused_{kind}_")(*given, **numbers, **flags, grad_scale=scale, found_inf=found_inf)
    return [x for each in (lists[:3] if kind in ("sgd", "adagrad") else lists[:5]) for x in each]


_WANTS_OUTPUTS = {name for name, function in OPERATORS.items() if "out" in inspect.signature(function).parameters}


def compute(
    name: str, inputs: Sequence[Any], attributes: Mapping[str, Any], outputs: Sequence[torch.Tensor | None]
) -> list[Any]:
    """What comes out.

    Args:
        inputs: tensors, numbers, None for what is not given.
        outputs: tensors of which sizes and dtypes count, where the inputs do not tell them; None for what is not
            wanted.

    Returns:
        Tensors, None, and of `fill` the number.

    Raises:
        IndexError: an index is out of range.
    """
    given = dict(attributes)
    if name in _WANTS_OUTPUTS:
        given["out"] = outputs
    made = OPERATORS[name](*inputs, **given)
    return list(made) if isinstance(made, (tuple, list)) else [made]
