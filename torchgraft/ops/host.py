"""What the CPU does where PyTorch has no kernel of its own for an op: the ops of this package, and PyTorch's that only
devices have. A device without a compiler, or whose compiler refuses a kernel, comes here (csrc/aten/fallback.cpp).

What one direction keeps for the other is as the kernels keep it, so that either may be a kernel's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from torchgraft.ops import ctc_loss, eigen, histogram, losses, pooling, recurrent  # noqa: F401  # define these ops
from torchgraft.plans import on_host
from torchgraft.plans.philox import philox_words
from torchgraft.plans.registry import on_host_alone

aten = torch.ops.aten

Optional = torch.Tensor | None
Results = tuple[Optional, ...]

MEAN, NONE = 1, 0  # at::Reduction


on_host_alone(
    "_sobol_engine_draw",
    "_sobol_engine_ff_",
    "_sobol_engine_initialize_state_",
    "_sobol_engine_scramble_",
    "_rowwise_prune",
    "_saturate_weight_to_fp16",
    "choose_qparams_optimized",
)


def _wide(x: torch.Tensor) -> torch.Tensor:
    """In the type that sums are kept in."""
    return x if x.dtype == torch.float64 else x.float()


# ---- linear algebra, counts: torch's own under other names ----


@on_host("torchgraft::eigh")
def _eigh(a: torch.Tensor, uplo: str, vectors: bool) -> Results:
    return *aten._linalg_eigh(a, uplo, vectors), a.new_zeros(a.shape[:-2], dtype=torch.int32)


@on_host("torchgraft::svd")
def _svd(a: torch.Tensor, full: bool, vectors: bool) -> Results:
    return *aten._linalg_svd(a, full, vectors), a.new_zeros(a.shape[:-2], dtype=torch.int32)


@on_host("torchgraft::count_numbers")
def _count_numbers(x: torch.Tensor, bins: int) -> torch.Tensor:
    return torch.bincount(x[(x >= 0) & (x < bins)], minlength=bins)


# Numbers that are counted in the elements' type without a rounding.
_EXACT_COUNTS = 1 << 24


@on_host("torchgraft::count_evenly")
def _count_evenly(x: torch.Tensor, bins: int, low: float, high: float) -> torch.Tensor:
    counts = torch.zeros(bins, dtype=torch.int64)
    for part in x.reshape(-1).split(_EXACT_COUNTS):
        counts += torch.histc(part, bins, low, high).long()
    return counts


# ---- losses ----


def _lengths(lengths: torch.Tensor) -> tuple[list[int], list[int]]:
    """Of inputs and of targets; what else the table has follows from them."""
    inputs, targets, *_ = lengths.unbind(1)
    return inputs.tolist(), targets.tolist()


@on_host("torchgraft::ctc_alpha")
def _ctc_alpha(x: torch.Tensor, targets: torch.Tensor, lengths: torch.Tensor, longest: int, blank: int) -> Results:
    loss, alpha = aten._ctc_loss(x, targets, *_lengths(lengths), blank)
    _, times, states = alpha.shape
    inputs, labels = lengths[:, 0].view(-1, 1, 1), lengths[:, 1].view(-1, 1, 1)
    reached = (torch.arange(times).view(-1, 1) < inputs) & (torch.arange(states) <= 2 * labels)
    return loss, alpha.masked_fill(~reached, -math.inf)  # what nothing reaches PyTorch leaves as it is


@on_host("torchgraft::ctc_gradient")
def _ctc_gradient(
    grad: torch.Tensor, x: torch.Tensor, targets: torch.Tensor, lengths: torch.Tensor, loss: torch.Tensor,
    alpha: torch.Tensor, blank: int, zero_infinity: bool,
) -> torch.Tensor:  # fmt: skip
    made: torch.Tensor = aten._ctc_loss_backward(
        grad, x, targets, *_lengths(lengths), loss, alpha, blank, zero_infinity
    )
    return made


@on_host("torchgraft::cross_entropy_backward")
def _cross_entropy_backward(
    grad: torch.Tensor, log_probs: torch.Tensor, target: torch.Tensor, total: torch.Tensor, reduction: int,
    ignored: int, smoothing: float,
) -> torch.Tensor:  # fmt: skip
    """For [batch, class], through `nll_loss` and `log_softmax`."""
    x = _wide(log_probs)
    counts = target != ignored
    part = torch.where(counts, _wide(grad) / _wide(total) if reduction == MEAN else _wide(grad), 0)
    wanted = torch.full_like(x, smoothing / max(1, x.size(1)))
    places = target.where(counts, 0).unsqueeze(1)
    wanted.scatter_add_(1, places, torch.full_like(places, 1 - smoothing, dtype=x.dtype))
    return ((x.exp() - wanted) * part.unsqueeze(1)).to(log_probs.dtype)


@on_host("log_sigmoid_backward")
def _log_sigmoid_backward(grad: torch.Tensor, x: torch.Tensor, buffer: torch.Tensor) -> torch.Tensor:
    """PyTorch's own reads a buffer that its CPU alone fills on the way there."""
    return (_wide(grad) * (-_wide(x)).sigmoid()).to(x.dtype)


# ---- norms ----


@on_host("_fused_rms_norm_backward")
def _rms_norm_backward(
    grad: torch.Tensor, x: torch.Tensor, shape: Sequence[int], rstd: torch.Tensor, weight: Optional,
    wanted: Sequence[bool],
) -> Results:  # fmt: skip
    dims, type_ = list(range(-len(shape), 0)), x.dtype
    normal, dy = _wide(x) * _wide(rstd), _wide(grad)
    scaled = dy if weight is None else dy * _wide(weight)
    of_x = (scaled - normal * (scaled * normal).mean(dims, keepdim=True)) * _wide(rstd)
    rows = list(range(x.dim() - len(shape)))
    of_weight = (dy * normal).sum(rows) if rows else dy * normal
    return (
        of_x.to(type_) if wanted[0] else None,
        of_weight.to(weight.dtype) if weight is not None and wanted[1] else None,
    )


def _of_channels(statistics: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """A number for each channel, as it is broadcast to [batch, channel, ...]."""
    return _wide(statistics).view(-1, *[1] * (x.dim() - 2))


def _but_channels(x: torch.Tensor) -> list[int]:
    return [d for d in range(x.dim()) if d != 1]


@on_host("batch_norm_stats")
def _batch_norm_stats(x: torch.Tensor, eps: float) -> Results:
    var, mean = torch.var_mean(_wide(x), _but_channels(x), correction=0)
    return mean, (var + eps).rsqrt()


@on_host("batch_norm_elemt")
def _batch_norm_elemt(
    x: torch.Tensor, weight: Optional, bias: Optional, mean: torch.Tensor, invstd: torch.Tensor, eps: float
) -> torch.Tensor:
    y: torch.Tensor = (_wide(x) - _of_channels(mean, x)) * _of_channels(invstd, x)
    y = y if weight is None else y * _of_channels(weight, x)
    return (y if bias is None else y + _of_channels(bias, x)).to(x.dtype)


@on_host("batch_norm_elemt.out")
def _batch_norm_elemt_to(
    x: torch.Tensor, weight: Optional, bias: Optional, mean: torch.Tensor, invstd: torch.Tensor, eps: float,
    out: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    return out.resize_(x.shape).copy_(_batch_norm_elemt(x, weight, bias, mean, invstd, eps))


@on_host("batch_norm_backward_reduce")
def _batch_norm_backward_reduce(
    grad: torch.Tensor, x: torch.Tensor, mean: torch.Tensor, invstd: torch.Tensor, weight: Optional, of_input: bool,
    of_weight: bool, of_bias: bool,
) -> Results:  # fmt: skip
    dims, dy = _but_channels(x), _wide(grad)
    total = dy.sum(dims)
    dot = (dy * (_wide(x) - _of_channels(mean, x))).sum(dims)
    kept = total.dtype if weight is None else weight.dtype
    return (
        total if of_input else None,
        dot if of_input else None,
        (dot * _wide(invstd)).to(kept) if of_weight else None,
        total.to(kept) if of_bias else None,
    )


@on_host("batch_norm_backward_elemt")
def _batch_norm_backward_elemt(
    grad: torch.Tensor, x: torch.Tensor, mean: torch.Tensor, invstd: torch.Tensor, weight: Optional,
    total: torch.Tensor, dot: torch.Tensor, count: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    each = count.sum()
    scale = _of_channels(invstd, x)
    centred = (_wide(x) - _of_channels(mean, x)) * scale.square() * _of_channels(dot / each, x)
    of_x = (_wide(grad) - _of_channels(total / each, x) - centred) * scale
    return (of_x if weight is None else of_x * _of_channels(weight, x)).to(x.dtype)


# ---- pooling with the tap of each window's largest pixel ----


def _per_dim(numbers: Sequence[int], dims: int) -> list[int]:
    return list(numbers) * dims if len(numbers) == 1 else list(numbers)


def _window_corners(targets: Sequence[int], stride: Sequence[int], padding: Sequence[int]) -> list[torch.Tensor]:
    """Of each window, in each dimension, where in the image it begins; to be broadcast with the others."""
    corners = []
    for d, (count, step, pad) in enumerate(zip(targets, stride, padding, strict=True)):
        corners.append((torch.arange(count) * step - pad).view(-1, *[1] * (len(targets) - 1 - d)))
    return corners


@on_host("torchgraft::max_pool_offsets")
def _max_pool_offsets(
    x: torch.Tensor, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int],
    ceil_mode: bool,
) -> Results:  # fmt: skip
    dims = len(kernel)
    pool = aten.max_pool2d_with_indices if dims == 2 else aten.max_pool3d_with_indices
    stride, padding, dilation = (_per_dim(each, dims) for each in (stride or kernel, padding, dilation))
    y, indices = pool(x, kernel, stride, padding, dilation, ceil_mode)
    tap = torch.zeros_like(indices)
    sizes = x.shape[-dims:]
    for d, corner in enumerate(_window_corners(y.shape[-dims:], stride, padding)):
        place = indices // math.prod(sizes[d + 1 :]) % sizes[d]
        tap = tap * kernel[d] + (place - corner) // dilation[d]
    return y, tap.to(torch.int8)


@on_host("torchgraft::max_pool_offsets_backward")
def _max_pool_offsets_backward(
    grad: torch.Tensor, offsets: torch.Tensor, size: Sequence[int], kernel: Sequence[int], stride: Sequence[int],
    padding: Sequence[int], dilation: Sequence[int],
) -> torch.Tensor:  # fmt: skip
    dims = len(size)
    stride, padding, dilation = (_per_dim(each, dims) for each in (stride or kernel, padding, dilation))
    taps, place = offsets.long(), torch.zeros_like(offsets, dtype=torch.int64)
    for d, corner in enumerate(_window_corners(offsets.shape[-dims:], stride, padding)):
        tap = taps // math.prod(kernel[d + 1 :]) % kernel[d]
        place = place * size[d] + corner + tap * dilation[d]
    out = grad.new_zeros((*offsets.shape[:-dims], math.prod(size)))
    out.scatter_add_(-1, place.flatten(-dims), grad.reshape(offsets.shape).flatten(-dims))
    return out.view((*offsets.shape[:-dims], *size))


# ---- cells of recurrent networks; equations as in `torchgraft.ops.rnn` ----


def _sum(*terms: Optional) -> torch.Tensor:
    present = [_wide(term) for term in terms if term is not None]
    return torch.stack(torch.broadcast_tensors(*present)).sum(0) if len(present) > 1 else present[0]


def _lstm(gates: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The new states, and i, f, g and o."""
    i, f, g, o = gates.chunk(4, -1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    c = f * c + i * g
    return o * c.tanh(), c, i, f, g, o


def _lstm_gradient(
    dh: torch.Tensor, dc: torch.Tensor, kept: Sequence[torch.Tensor], before: torch.Tensor, after: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Those of the gates, and of the state before."""
    i, f, g, o = kept
    t = after.tanh()
    dc = dh * o * (1 - t * t) + dc
    gates = dc * g * (1 - i) * i, dc * before * (1 - f) * f, dc * i * (1 - g * g), dh * t * (1 - o) * o
    return torch.cat(gates, -1), dc * f


def _gru(x: torch.Tensor, h: torch.Tensor, before: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The new state, and r, z, n and the state's part of n."""
    (xr, xz, xn), (hr, hz, hn) = x.chunk(3, -1), h.chunk(3, -1)
    r, z = (xr + hr).sigmoid(), (xz + hz).sigmoid()
    n = (xn + r * hn).tanh()
    return n + z * (before - n), r, z, n, hn


def _gru_gradient(
    dh: torch.Tensor, kept: Sequence[torch.Tensor], before: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Those of the inputs' gates, of the state's, and of the state itself."""
    r, z, n, hn = kept
    dn = dh * (1 - z) * (1 - n * n)
    dz, dr = dh * (before - n) * (1 - z) * z, dn * hn * (1 - r) * r
    return torch.cat((dr, dz, dn), -1), torch.cat((dr, dz, dn * r), -1), dh * z


@on_host("_thnn_fused_lstm_cell")
def _lstm_cell(
    x: torch.Tensor, h: torch.Tensor, c: torch.Tensor, x_bias: Optional, h_bias: Optional
) -> tuple[torch.Tensor, ...]:
    h, after, *kept = _lstm(_sum(x, h, x_bias, h_bias), _wide(c))
    return h.to(c.dtype), after.to(c.dtype), torch.cat(kept, -1).to(c.dtype)


@on_host("_thnn_fused_lstm_cell_backward_impl")
def _lstm_cell_backward(
    dh: Optional, dc: Optional, before: torch.Tensor, after: torch.Tensor, workspace: torch.Tensor, has_bias: bool
) -> Results:
    if dh is None and dc is None:
        return None, None, None
    none = torch.zeros_like(_wide(before))
    kept = _wide(workspace).chunk(4, -1)
    of_h, of_c = (none if each is None else _wide(each) for each in (dh, dc))
    gates, of_before = _lstm_gradient(of_h, of_c, kept, _wide(before), _wide(after))
    type_ = workspace.dtype
    return gates.to(type_), of_before.to(type_), gates.sum(0).to(type_) if has_bias else None


@on_host("_thnn_fused_gru_cell")
def _gru_cell(x: torch.Tensor, h: torch.Tensor, before: torch.Tensor, x_bias: Optional, h_bias: Optional) -> Results:
    after, r, z, n, hn = _gru(_sum(x, x_bias), _sum(h, h_bias), _wide(before))
    return after.to(before.dtype), torch.cat((r, z, n, _wide(before), hn), -1).to(before.dtype)


@on_host("_thnn_fused_gru_cell_backward")
def _gru_cell_backward(dh: torch.Tensor, workspace: torch.Tensor, has_bias: bool) -> Results:
    r, z, n, before, hn = _wide(workspace).chunk(5, -1)
    of_x, of_h, of_before = _gru_gradient(_wide(dh), (r, z, n, hn), before)
    biases = (of_x.sum(0), of_h.sum(0)) if has_bias else (None, None)
    return tuple(None if each is None else each.to(dh.dtype) for each in (of_x, of_h, of_before, *biases))


# ---- whole layers ----


def _step(
    cell: str, x: torch.Tensor, h: torch.Tensor, before: torch.Tensor, c: Optional
) -> tuple[torch.Tensor, Optional, tuple[torch.Tensor, ...]]:
    """The new states, and what the gradient needs."""
    if c is not None:
        after, c, *kept = _lstm(x + h, c)
        return after, c, (*kept, c)
    if cell == "gru":
        after, *kept = _gru(x, h, before)
        return after, None, tuple(kept)
    after = (x + h).tanh() if cell == "rnn_tanh" else (x + h).relu()
    return after, None, (after,)


@on_host("torchgraft::recurrent")
def _recurrent(
    gates: torch.Tensor, h: torch.Tensor, c: Optional, weight: torch.Tensor, bias: Optional, cell: str, reverse: bool,
    keep: bool,
) -> Results:  # fmt: skip
    steps = []
    for x in gates.flip(0) if reverse else gates:
        h, c, kept = _step(cell, x, torch.nn.functional.linear(h, weight, bias), h, c)
        steps.append((h, torch.cat(kept, -1)))
    output, kept_of_all = (torch.stack(each) for each in zip(*(steps[::-1] if reverse else steps), strict=True))
    none = gates.new_empty(0)
    return output, none if c is None else c, kept_of_all if keep else none


@on_host("torchgraft::recurrent_backward")
def _recurrent_backward(
    grad: torch.Tensor, grad_c: Optional, h: torch.Tensor, c: Optional, weight: torch.Tensor, output: torch.Tensor,
    kept: torch.Tensor, cell: str, reverse: bool,
) -> Results:  # fmt: skip
    before, after = _before(h, output, reverse), []
    parts = kept.shape[2] // h.shape[1]
    cs = None if c is None else _before(c, kept.chunk(parts, -1)[-1], reverse)
    dh, carry = torch.zeros_like(h), torch.zeros_like(h) if grad_c is None else grad_c
    order = range(len(grad)) if reverse else range(len(grad) - 1, -1, -1)
    for t in order:
        of_step = kept[t].chunk(parts, -1)
        dh = grad[t] + dh
        if cs is not None:
            of_x, carry = _lstm_gradient(dh, carry, of_step[:4], cs[t], of_step[4])
            of_h, dh = of_x, of_x @ weight
        elif cell == "gru":
            of_x, of_h, straight = _gru_gradient(dh, of_step, before[t])
            dh = of_h @ weight + straight
        else:
            (y,) = of_step
            of_x = of_h = dh * (1 - y * y) if cell == "rnn_tanh" else torch.where(y <= 0, 0, dh)
            dh = of_h @ weight
        after.append((of_x, of_h))
    of_x, of_h = (torch.stack(each) for each in zip(*(after if reverse else after[::-1]), strict=True))
    none = grad.new_empty(0)
    return of_x, of_h if cell == "gru" else none, dh, none if c is None else carry


def _before(first: torch.Tensor, states: torch.Tensor, reverse: bool) -> torch.Tensor:
    """The state before each step."""
    start = first.unsqueeze(0)
    return torch.cat((states[1:], start)) if reverse else torch.cat((start, states[:-1]))


# ---- attention ----


class _Attention:
    """Scores and weights of a call, in the type that sums are kept in."""

    def __init__(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bias: Optional, causal: bool,
        scale: float | None,
    ) -> None:  # fmt: skip
        self.q, self.k, self.v = (_wide(t if t.dim() == 4 else t.unsqueeze(0)) for t in (query, key, value))
        self.group = self.q.shape[1] // self.k.shape[1]  # heads of queries that share one of keys
        self.scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
        scores = self.q @ self.shared(self.k).mT * self.scale
        if bias is not None:
            unseen = bias.dtype == torch.bool
            scores = scores.masked_fill(~bias, -math.inf) if unseen else scores + _wide(bias)
        if causal:
            scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).tril().logical_not(), -math.inf)
        self.scores = scores

    def shared(self, keys: torch.Tensor) -> torch.Tensor:
        return keys.repeat_interleave(self.group, 1)

    def lse(self) -> torch.Tensor:
        """The logarithms of the sums of exponentials; of nothing infinity, after which all weights are 0."""
        found = self.scores.logsumexp(-1)
        return torch.where(found == -math.inf, math.inf, found)

    def weights(self, lse: torch.Tensor) -> torch.Tensor:
        return (self.scores - lse.unsqueeze(-1)).exp()

    def kept(self, dropout: float, seed: torch.Tensor, offset: torch.Tensor) -> torch.Tensor | float:
        """What dropout multiplies weights by: four keys have one Philox counter, of which a query has whole ones."""
        if dropout == 0:
            return 1
        if dropout >= 1:
            return 0
        batch, heads, queries, keys = self.scores.shape
        counters = torch.arange(batch * heads * queries * -(-keys // 4)) + int(offset)
        words = philox_words(int(seed), counters).view(batch, heads, queries, -1)[..., :keys]
        limit = int(torch.tensor(1 - dropout, dtype=torch.float32).item() * 2**32)
        return (words < min(limit, 2**32 - 1)).to(self.scores.dtype) * (1 / (1 - dropout))


@on_host("_scaled_dot_product_fused_attention_overrideable")
def _attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bias: Optional, dropout: float, causal: bool,
    debug_mask: bool, scale: float | None,
) -> tuple[torch.Tensor | int | None, ...]:  # fmt: skip
    call = _Attention(query, key, value, bias, causal, scale)
    lse = call.lse()
    seed, offset = torch.randint(2**62, (), device="cpu"), torch.zeros((), dtype=torch.int64)
    weights = call.weights(lse) * call.kept(dropout, seed, offset)
    out = (weights @ call.shared(call.v)).to(query.dtype)
    return (
        out if query.dim() == 4 else out[0], lse, None, None, query.shape[-2], key.shape[-2], seed, offset, None,
    )  # fmt: skip


@on_host("_scaled_dot_product_fused_attention_overrideable_backward")
def _attention_backward(
    grad: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bias: Optional,
    wanted: Sequence[bool], out: torch.Tensor, lse: torch.Tensor, cum_seq_q: Optional, cum_seq_k: Optional, max_q: int,
    max_k: int, dropout: float, causal: bool, seed: torch.Tensor, offset: torch.Tensor, scale: float | None,
) -> Results:  # fmt: skip
    call = _Attention(query, key, value, bias, causal, scale)
    dy = _wide(grad if grad.dim() == 4 else grad.unsqueeze(0))
    weights = call.weights(lse)
    kept = call.kept(dropout, seed, offset)
    of_weights = dy @ call.shared(call.v).mT * kept
    delta = (dy * _wide(out if out.dim() == 4 else out.unsqueeze(0))).sum(-1, keepdim=True)
    of_scores = weights * (of_weights - delta)
    of_query = of_scores @ call.shared(call.k) * call.scale
    of_key = (of_scores.mT @ call.q * call.scale).unflatten(1, (-1, call.group)).sum(2)
    of_value = ((weights * kept).mT @ dy).unflatten(1, (-1, call.group)).sum(2)
    results = [*zip((of_query, of_key, of_value), (query, key, value), strict=True), (of_scores, bias)]
    return tuple(
        made.sum_to_size(like.shape if like.dim() <= made.dim() else made.shape).view(like.shape).to(like.dtype)
        if is_wanted and like is not None
        else None
        for (made, like), is_wanted in zip(results, wanted, strict=True)
    )
