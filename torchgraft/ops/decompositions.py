"""Ops that are made of other ops, planned as one."""

from __future__ import annotations

import torch

from torchgraft.plans import decompose, decomposition, other_out
from torchgraft.plans.refusals import check_floating, dtype_name

aten = torch.ops.aten

decompose(
    "trace",
    "unfold_backward",
    "glu_backward",
    "renorm",
    "channel_shuffle",
)
decompose("addr", "soft_margin_loss_backward", refuses=())


def _check_soft_margin(self: torch.Tensor, target: torch.Tensor, **_: object) -> None:
    """The loss is of the input's elements."""
    check_floating(self)
    if torch.broadcast_shapes(self.shape, target.shape) != self.shape:
        raise RuntimeError(
            f"output with shape {list(self.shape)} doesn't match the broadcast shape "
            f"{list(torch.broadcast_shapes(self.shape, target.shape))}"
        )


decompose("soft_margin_loss", refuses=(_check_soft_margin, other_out))
decompose("glu", refuses=check_floating)


def _narrow_copy_meta(self: torch.Tensor, dim: int, start: int, length: int) -> torch.Tensor:
    if dim >= self.dim():  # of all that takes a dimension this op alone raises no IndexError
        raise RuntimeError(
            f"Dimension out of range (expected to be in range of [{-self.dim()}, {self.dim() - 1}], but got {dim})"
        )
    return torch.empty(self.narrow(dim, start, length).shape, dtype=self.dtype, device="meta")


@decomposition("narrow_copy", meta=_narrow_copy_meta)
def _narrow_copy(self: torch.Tensor, dim: int, start: int, length: int) -> torch.Tensor:
    return self.narrow(dim, start, length).clone()


@decomposition("glu_jvp", meta=lambda glu, **_: torch.empty_like(glu))
def _glu_jvp(glu: torch.Tensor, x: torch.Tensor, dx: torch.Tensor, dim: int) -> torch.Tensor:
    """The derivative of a s(b) along dx, s being the sigmoid."""
    b, (da, db) = x.chunk(2, dim)[1], dx.chunk(2, dim)
    s = b.sigmoid()
    return da * s + glu * (1 - s) * db


@decomposition("glu_backward_jvp", meta=lambda grad_x, **_: torch.empty_like(grad_x))
def _glu_backward_jvp(
    grad_x: torch.Tensor, grad_glu: torch.Tensor, x: torch.Tensor, dgrad_glu: torch.Tensor, dx: torch.Tensor, dim: int
) -> torch.Tensor:
    """The derivative of (g s(b), g a s'(b)) along dgrad_glu and dx."""
    (a, b), (da, db) = x.chunk(2, dim), dx.chunk(2, dim)
    s = b.sigmoid()
    slope = s * (1 - s)
    first = dgrad_glu * s + grad_glu * slope * db
    second = slope * (dgrad_glu * a + grad_glu * (da + a * (1 - 2 * s) * db))
    return torch.cat([first, second], dim)


def _weight_norm_meta(v: torch.Tensor, g: torch.Tensor, dim: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(v), torch.empty_like(g, memory_format=torch.contiguous_format)


@decomposition("_weight_norm_interface", meta=_weight_norm_meta)
def _weight_norm(v: torch.Tensor, g: torch.Tensor, dim: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """w = g v / |v|, the norms over all dimensions but `dim`; also the norms."""
    norms = torch.linalg.vector_norm(v, 2, [d for d in range(v.dim()) if d != dim], True)
    return v * (g / norms), norms


def _weight_norm_backward_meta(
    grad_w: torch.Tensor, saved_v: torch.Tensor, saved_g: torch.Tensor, saved_norms: torch.Tensor, dim: int
) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(saved_v), torch.empty_like(saved_g)


@decomposition("_weight_norm_interface_backward", meta=_weight_norm_backward_meta)
def _weight_norm_backward(
    grad_w: torch.Tensor, saved_v: torch.Tensor, saved_g: torch.Tensor, saved_norms: torch.Tensor, dim: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """What is left of the gradient across v, and what of it lies along v."""
    along = (grad_w * saved_v).sum([d for d in range(saved_v.dim()) if d != dim], keepdim=True) / saved_norms
    return saved_g / saved_norms * (grad_w - saved_v * (along / saved_norms)), along


@decomposition("embedding_renorm_")
def _embedding_renorm(self: torch.Tensor, indices: torch.Tensor, max_norm: float, norm_type: float) -> torch.Tensor:
    flat = indices.reshape(-1)
    rows = self.index_select(0, flat)
    norms = torch.linalg.vector_norm(rows, norm_type, dim=1, keepdim=True)
    scale = torch.where(norms > max_norm, max_norm / (norms + 1e-7), 1.0)
    return self.index_copy_(0, flat, rows * scale)  # equal rows where indices repeat


def _like_self(self: torch.Tensor, **_: object) -> torch.Tensor:
    return torch.empty_like(self)


def _one_sample(x: torch.Tensor) -> torch.Tensor:
    """(sample, class), also of one sample, or one number."""
    return x if x.dim() == 2 else x.reshape(1, -1)


def _check_classes(target: torch.Tensor) -> None:
    if target.dtype != torch.int64:
        raise RuntimeError(f"expected scalar type Long but found {dtype_name(target.dtype)}")


@decomposition("multi_margin_loss")
def _multi_margin(
    self: torch.Tensor,
    target: torch.Tensor,
    p: float = 1,
    margin: float = 1,
    weight: torch.Tensor | None = None,
    reduction: int = 1,
) -> torch.Tensor:
    """torch's own decomposition gives the mean of no sample as NaN, its CPU as 0."""
    check_floating(self)
    _check_classes(target)
    loss = torch._decomp.decomposition_table[aten.multi_margin_loss.default]
    none = self.numel() == 0 and reduction != 0
    made: torch.Tensor = loss(self, target, p, margin, weight, 2 if none else reduction)
    return made


@decomposition("multi_margin_loss_backward", meta=_like_self)
def _multi_margin_backward(
    grad_output: torch.Tensor,
    self: torch.Tensor,
    target: torch.Tensor,
    p: float,
    margin: float,
    weight: torch.Tensor | None,
    reduction: int,
) -> torch.Tensor:
    if self.numel() == 0:
        return torch.zeros_like(self)
    x = _one_sample(self)
    t = target.reshape(-1, 1)
    z = margin - x.gather(1, t) + x
    grad = (torch.ones_like(z) if p == 1 else 2 * z) / x.size(1)
    if weight is not None:
        grad = grad * weight.index_select(0, t.reshape(-1)).unsqueeze(1)
    others = torch.arange(x.size(1), device=x.device) != t
    grad = torch.where((z > 0) & others, grad, 0)
    grad = grad.scatter(1, t, -grad.sum(1, keepdim=True))
    if reduction == 1:
        grad = grad / x.size(0)
    return (grad * grad_output.reshape(-1, 1)).reshape(self.shape)


@decomposition("multilabel_margin_loss_forward")
def _multilabel_margin(self: torch.Tensor, target: torch.Tensor, reduction: int) -> tuple[torch.Tensor, torch.Tensor]:
    """torch's own decomposition also counts what follows the first negative class."""
    check_floating(self)
    x, t = _one_sample(self), _one_sample(target)
    given = (t < 0).long().cumsum(1) == 0
    t = torch.where(t < -1, x.size(1), t.clamp(0))  # below -1 as out of range as above the classes
    is_target = torch.zeros_like(t).scatter_add(1, t, given.long()) > 0
    z = (1 - x.gather(1, t).unsqueeze(2) + x.unsqueeze(1)).clamp_min(0) / x.size(1)  # sample, listed class, class
    each = torch.where(given.unsqueeze(2) & ~is_target.unsqueeze(1), z, 0).sum((1, 2))
    if reduction == 1 and len(x) == 0:  # the mean of no sample is 0
        reduction = 2
    loss = each.mean() if reduction == 1 else each.sum() if reduction == 2 else each.reshape(self.shape[:-1])
    return loss, is_target.to(self.dtype).reshape(target.shape)


@decomposition("multilabel_margin_loss_backward", meta=_like_self)
def _multilabel_margin_backward(
    grad_output: torch.Tensor, self: torch.Tensor, target: torch.Tensor, reduction: int, is_target: torch.Tensor
) -> torch.Tensor:
    if self.numel() == 0:
        return torch.zeros_like(self)
    x, t = _one_sample(self), _one_sample(target)
    given = (t < 0).long().cumsum(1) == 0  # classes are listed up to the first negative one
    t = t.clamp(0)
    apart = 1 - x.gather(1, t).unsqueeze(2) + x.unsqueeze(1)  # sample, listed class, class
    counts = (apart > 0) & given.unsqueeze(2) & (is_target.reshape(x.shape).unsqueeze(1) == 0)
    pairs = torch.where(counts, 1 / x.size(1), 0.0).to(x.dtype)
    grad = pairs.sum(1).scatter_add(1, t, -pairs.sum(2))
    if reduction == 1:
        grad = grad / x.size(0)
    return (grad * grad_output.reshape(-1, 1)).reshape(self.shape)
