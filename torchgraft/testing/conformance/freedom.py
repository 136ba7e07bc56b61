"""What torch leaves open: results that are right in more than one form, and what of them is defined.

A row names the op, the reason, and how to take from the results what every right implementation agrees on. That is
compared instead: nothing is passed over, and a result that is wrong in what is defined is found.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from torchgraft.testing.conformance.layout import Sample

__all__ = ["FREEDOMS", "Freedom"]

Defined = Callable[[Sample, Any], Any]


@dataclass(frozen=True)
class Freedom:
    """What is defined of an op's results.

    Attributes:
        reason: why they may differ, as torch's documentation has it.
        results: takes a sample and an op's results, both on the CPU, and returns what is defined of these.
        gradients: the same for the gradients of the sample's tensors; None compares them as they are.
    """

    reason: str
    results: Defined
    gradients: Defined | None = None


def _argument(sample: Sample, position: int, name: str, default: Any) -> Any:
    """An argument behind the first, given by position or by name."""
    given = sample.args[position] if len(sample.args) > position else default
    return sample.kwargs.get(name, given)


# ---- ties: which of several equal elements is chosen, and in which order they come ----


def _sorted(sample: Sample, results: Any) -> Any:
    values, indices = results
    if _argument(sample, 2, "stable", None):
        return results
    return values, *_permutation(sample, indices, _argument(sample, 0, "dim", -1))


def _argsorted(sample: Sample, indices: Any) -> Any:
    if _argument(sample, 2, "stable", None):
        return indices
    return _permutation(sample, indices, _argument(sample, 0, "dim", -1))


def _permutation(sample: Sample, indices: torch.Tensor, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The values in the order of the indices, and that each element is there once."""
    return sample.input.gather(dim, indices), indices.sort(dim).values


def _largest(sample: Sample, results: Any) -> Any:
    values, indices = results
    dim = _argument(sample, 1, "dim", -1)
    ordered = indices.sort(dim).values
    twice = ordered.diff(dim=dim) == 0 if indices.dim() else torch.tensor(False)
    return values, sample.input.gather(dim, indices), twice


def _chosen(position: int) -> Defined:
    """For ops that choose one element along `dim`, the argument at a position, followed by `keepdim`."""

    def results(sample: Sample, found: Any) -> Any:
        if isinstance(found, torch.Tensor):  # the median of all elements: the value alone
            return found
        values, indices = found
        dim, keepdim = _argument(sample, position, "dim", -1), _argument(sample, position + 1, "keepdim", False)
        picked = sample.input.gather(dim, indices if keepdim or not sample.input.dim() else indices.unsqueeze(dim))
        return values, picked if keepdim or not sample.input.dim() else picked.squeeze(dim)

    return results


def _over_ties(position: int) -> Defined:
    """The gradient of the input, summed over the elements that are equal along `dim`."""

    def gradients(sample: Sample, found: Any) -> Any:
        x, dim = sample.input, _argument(sample, position, "dim", -1)
        if not x.numel() or not x.dim() or found[0] is None:
            return found
        ordered, order = x.detach().sort(dim)
        starts = torch.ones_like(ordered, dtype=torch.int64)
        starts.narrow(dim, 1, max(x.shape[dim] - 1, 0)).copy_(ordered.diff(dim=dim) != 0)
        group = torch.empty_like(order).scatter_(dim, order, starts.cumsum(dim) - 1)
        sums = torch.zeros_like(x.detach()).scatter_add_(dim, group, found[0].detach())
        return (sums.gather(dim, group), *found[1:])

    return gradients


# ---- gauge: vectors that are defined up to a sign, a phase, or a rotation of their space ----


def _gram(columns: torch.Tensor) -> torch.Tensor:
    """The products of all pairs of columns: the unit matrix where they are orthonormal."""
    return columns.mH @ columns


def _svd(hermitian: bool) -> Defined:
    """Singular values, orthonormal vectors, and the matrix that they make up."""

    def results(sample: Sample, found: Any) -> Any:
        u, s, v = found
        if not _argument(sample, 1, "compute_uv", True):
            return found
        v = v.mH if hermitian else v
        k = s.shape[-1]
        return s, (u[..., :k] * s.unsqueeze(-2)) @ v[..., :k].mH, _gram(u), _gram(v)

    return results


def _eigh(sample: Sample, found: Any) -> Any:
    values, vectors = found
    return values, (vectors * values.unsqueeze(-2)) @ vectors.mH, _gram(vectors)


def _eig(sample: Sample, found: Any) -> Any:
    """The eigenvalues in an order of their own, that each vector belongs to its value, and the vectors' norms."""
    values, vectors = found
    matrix = sample.input.to(vectors.dtype)
    residual = (matrix @ vectors - vectors * values.unsqueeze(-2)).abs()
    scale = matrix.abs().sum((-2, -1), keepdim=True)
    belongs = residual <= scale * torch.finfo(vectors.dtype).eps * 100
    return _in_order(values), belongs, torch.linalg.vector_norm(vectors, dim=-2)


def _eigvals(sample: Sample, values: Any) -> Any:
    return _in_order(values)


def _in_order(values: torch.Tensor) -> torch.Tensor:
    """Complex numbers by real part, then by imaginary part; parts that rounding separates count as equal."""
    if not values.numel():
        return values
    step = values.abs().amax().clamp_min(1e-30).item() * 1e-3
    key = (values.real / step).round() * 1e6 + values.imag / step
    return values.gather(-1, key.argsort(-1))


def _qr(sample: Sample, found: Any) -> Any:
    """The matrix that the factors make up, orthonormal columns, and an upper triangle."""
    q, r = found
    if not q.numel():  # mode "r": the triangle is that of the matrix's products, whatever its signs
        return _gram(r), r.tril(-1)
    return q @ r, _gram(q), r.tril(-1)


def _low_rank(sample: Sample, found: Any) -> Any:
    """Orthonormal vectors; where the matrix has the rank that is asked for, also its values and itself.

    Otherwise the vectors depend on random numbers: they must be near to the best approximation of that rank.
    """
    u, s, v = found
    product = (u * s.unsqueeze(-2)) @ v.mH
    minus = sample.kwargs.get("M")
    if minus is None:
        return _gram(u), _gram(v), s, product
    matrix = (sample.input @ sample.args[0].mT - minus).to(torch.promote_types(product.dtype, torch.float64))
    best = torch.linalg.vector_norm(torch.linalg.svdvals(matrix)[..., s.shape[-1] :], dim=-1)
    near = torch.linalg.matrix_norm(matrix - product) <= 1.05 * best + 1e-4 * torch.linalg.matrix_norm(matrix)
    return _gram(u), _gram(v), near


def _kept(sample: Sample, resized: torch.Tensor) -> torch.Tensor:
    """What was there before."""
    return resized.flatten()[: sample.input.numel()]


TIES = "which of equal elements comes first is not defined"
GROWN = "memory that is added is not initialised"
VECTORS = "vectors are defined up to sign or phase, and up to rotation where values repeat"

#: By the entry's name.
FREEDOMS: dict[str, Freedom] = {
    "sort": Freedom(TIES + " unless stable=True", _sorted, _over_ties(0)),
    "argsort": Freedom(TIES + " unless stable=True", _argsorted),
    "topk": Freedom(TIES, _largest, _over_ties(1)),
    "kthvalue": Freedom("the index of any of equal elements", _chosen(1), _over_ties(1)),
    "mode": Freedom("the index of any of equal elements", _chosen(0), _over_ties(0)),
    "median": Freedom("the index of any of equal elements", _chosen(0), _over_ties(0)),
    "nanmedian": Freedom("the index of any of equal elements", _chosen(0), _over_ties(0)),
    "svd": Freedom(VECTORS, _svd(hermitian=False)),
    "linalg.svd": Freedom(VECTORS, _svd(hermitian=True)),
    "linalg.eigh": Freedom(VECTORS, _eigh),
    "linalg.eig": Freedom(VECTORS + "; the values' order is not defined", _eig),
    "linalg.eigvals": Freedom("the values' order is not defined", _eigvals),
    "linalg.qr": Freedom("Q's columns are defined up to sign or phase", _qr),
    "qr": Freedom("Q's columns are defined up to sign or phase", _qr),
    "svd_lowrank": Freedom(VECTORS + "; the space is found by random projections", _low_rank),
    "pca_lowrank": Freedom(VECTORS + "; the space is found by random projections", _low_rank),
    "resize_": Freedom(GROWN, _kept),
    "resize_as_": Freedom(GROWN, _kept),
}
