"""Batching rules: what torch.vmap makes of ops for which torch itself has no rule."""

from __future__ import annotations

from typing import Any

import torch

aten = torch.ops.aten
_attention = aten._scaled_dot_product_fused_attention_overrideable
_attention_backward = aten._scaled_dot_product_fused_attention_overrideable_backward


def _front(tensor: torch.Tensor, dim: int | None, size: int) -> torch.Tensor:
    """The tensor with the batch as its first dimension."""
    return tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)


class _Attention:
    """Attention over a batch of batches: both become one, for the op, and two again in its results."""

    def __init__(self, size: int, query: torch.Tensor) -> None:
        self.size, self.inner = size, query.shape[1] if query.dim() == 5 else 1

    def join(self, tensor: torch.Tensor, dims: int) -> torch.Tensor:
        """Without the inner batch, which attention may lack, `dims` dimensions remain."""
        return tensor.reshape(self.size * self.inner, *tensor.shape[tensor.dim() - dims :])

    def join_bias(
        self, bias: torch.Tensor | None, query: torch.Tensor, key: torch.Tensor
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """The bias with a number for each score, for the op, and as it was, with dimensions of 1 for what it lacks."""
        if bias is None:
            return None, None
        aligned = bias.reshape(self.size, *[1] * (5 - bias.dim()), *bias.shape[1:])
        wide = aligned.expand(self.size, self.inner, query.shape[-3], query.shape[-2], key.shape[-2])
        return wide.reshape(-1, *wide.shape[2:]), aligned

    def part(self, result: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        return result.reshape(like.shape[: like.dim() - 3] + result.shape[1:])


def _check_randomness(info: Any, dropout: float) -> None:
    if dropout > 0 and info.randomness != "different":
        raise RuntimeError(
            f"vmap: attention with dropout draws different numbers for each sample, and randomness is "
            f"{info.randomness!r}; use randomness='different'"
        )


def _batched_attention(
    info: Any,
    in_dims: tuple[int | None, ...],
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: torch.Tensor | None = None,
    dropout: float = 0.0,
    causal: bool = False,
    debug: bool = False,
    *,
    scale: float | None = None,
) -> tuple[tuple[Any, ...], tuple[int | None, ...]]:
    _check_randomness(info, dropout)
    q, k, v = (_front(t, d, info.batch_size) for t, d in zip((query, key, value), in_dims, strict=False))
    b = None if bias is None else _front(bias, in_dims[3], info.batch_size)
    batch = _Attention(info.batch_size, q)
    wide, _ = batch.join_bias(b, q, k)
    operands = [batch.join(t, 3) for t in (q, k, v)]
    out, lse, *rest = _attention(*operands, wide, dropout, causal, debug, scale=scale)
    results = (batch.part(out, q), batch.part(lse, q), *rest)
    return results, (0, 0, *[None] * len(rest))


def _batched_attention_backward(
    info: Any,
    in_dims: tuple[Any, ...],
    gradient: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: torch.Tensor | None,
    wanted: list[bool],
    out: torch.Tensor,
    lse: torch.Tensor,
    *rest: Any,
    scale: float | None = None,
) -> tuple[tuple[Any, ...], tuple[int | None, ...]]:
    tensors = (gradient, query, key, value, out, lse)
    dims = (*in_dims[:4], *in_dims[6:8])
    g, q, k, v, o, s = (_front(t, d, info.batch_size) for t, d in zip(tensors, dims, strict=True))
    b = None if bias is None else _front(bias, in_dims[4], info.batch_size)
    batch = _Attention(info.batch_size, q)
    wide, aligned = batch.join_bias(b, q, k)
    g, o, s = batch.join(g, 3), batch.join(o, 3), batch.join(s, 2)
    operands = [batch.join(t, 3) for t in (q, k, v)]
    *grads, grad_bias = _attention_backward(g, *operands, wide, wanted, o, s, *rest, scale=scale)
    results = [None if d is None else batch.part(d, like) for d, like in zip(grads, (q, k, v), strict=True)]
    if grad_bias is not None and aligned is not None and b is not None:
        summed = grad_bias.reshape(batch.size, batch.inner, *grad_bias.shape[1:]).sum_to_size(aligned.shape)
        results.append(summed.reshape(b.shape))
    else:
        results.append(None)
    return tuple(results), tuple(None if r is None else 0 for r in results)


torch.library.register_vmap("aten::_scaled_dot_product_fused_attention_overrideable", _batched_attention)
torch.library.register_vmap(
    "aten::_scaled_dot_product_fused_attention_overrideable_backward", _batched_attention_backward
)
