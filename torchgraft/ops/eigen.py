"""Eigenvalues of Hermitian matrices and singular values, and what is made of them by looking at data: least squares,
the matrix exponential.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from torchgraft.codegen import ceil_div, element_type
from torchgraft.kernels import eigen as kernels
from torchgraft.kernels.matrices import TEAM
from torchgraft.ops import matrices
from torchgraft.ops.linalg import reflect
from torchgraft.plans import Kernel, PlanBuilder, composite, device_traits, planner

aten = torch.ops.aten

# ---- eigenvalues of Hermitian matrices, singular values ----


def _has_kernels(**arguments: Any) -> bool:
    """Of ops that must look at data: whether the device's kernels can do their work. Else torch's CPU does."""
    a = next(value for value in arguments.values() if isinstance(value, torch.Tensor))
    traits = device_traits(a.device.index or 0)
    wide = a.dtype in (torch.float64, torch.complex128)
    narrow = a.dtype in (torch.float32, torch.complex64)
    return traits.has_compiler and (narrow or (wide and traits.float64))


def _iterate(
    p: PlanBuilder,
    kernel: Kernel,
    values: torch.Tensor,
    z: torch.Tensor | None,
    info: torch.Tensor,
    diagonal: torch.Tensor,
    beside: torch.Tensor,
    **more: int,
) -> None:
    """Launches `symmetric_kernel` or `singular_kernel` for [batch, n] numbers and vectors [batch, rows, n] or more."""
    batch, n = diagonal.shape
    z = _real(z)
    rows = 0 if z is None else z.shape[1]
    grid = p.long_rows(batch, 1, 20 * n * n * (1 + rows // 8))
    if p.form == "gpu":
        wanted = ceil_div(rows, 4 * TEAM)
    else:
        wanted = 1 if rows * n * n < 200000 else 2 * p.device.compute_units // grid.groups[0]
    grid = matrices.parts(grid, rows, wanted)
    groups = math.prod(grid.groups)
    vectors = {"z": None, "z_batch": 0, "z_ld": 0} if z is None else matrices.arguments(z=z)
    scratch = p.empty((groups, 4 * (n + 1)), diagonal.dtype)
    places = p.empty((groups, 2 * n + 2), torch.int32)
    numbers = {"values": values, "diagonal": diagonal, "beside": beside, "scratch": scratch, "places": places}
    p.launch(kernel, grid, **numbers, **vectors, info=info, n=n, **more)


def _real(z: torch.Tensor | None) -> torch.Tensor | None:
    """Complex vectors [batch, rows, n] as real ones [batch, 2 rows, n]."""
    if z is None or not z.is_complex():
        return z
    return torch.view_as_real(z.mT).flatten(2).mT


# Torch's ops with `info` as one more result: they raise what it says at once, which no plan does.
torch.library.define("torchgraft::eigh", "(Tensor A, str UPLO, bool compute_v) -> (Tensor, Tensor, Tensor)")
torch.library.define(
    "torchgraft::svd", "(Tensor A, bool full_matrices, bool compute_uv) -> (Tensor, Tensor, Tensor, Tensor)"
)


def _eigh_meta(A: torch.Tensor, UPLO: str, compute_v: bool) -> tuple[torch.Tensor, ...]:
    return *aten._linalg_eigh(A, UPLO, compute_v), A.new_empty(A.shape[:-2], dtype=torch.int32)


@planner("torchgraft::eigh", meta=_eigh_meta)
def _eigh(
    p: PlanBuilder,
    out: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    A: torch.Tensor,
    UPLO: str,
    compute_v: bool,
) -> None:
    """Eigenvalues and eigenvectors as `_linalg_eigh`, and `info`: by tridiagonal matrices and implicit QL."""
    to_values, to_vectors, info = out
    p.fill(info, 0)
    if A.numel() == 0:
        return
    a = matrices.loaded(p, A if UPLO.upper() == "L" else A.mH)
    batch, n, _ = a.shape
    real = to_values.dtype
    d, e = p.empty((batch, n), real), p.empty((batch, n), real)
    tau = p.empty((batch, n), A.dtype)
    work = p.empty((batch, n), A.dtype)
    kernel = kernels.tridiagonal_kernel(matrices.type_name(a), p.form)
    matrices.launch(p, kernel, batch, 6 * n**3, **matrices.arguments(a=a), d=d, e=e, tau=tau, work=work, n=n)
    vectors = None
    if compute_v:
        vectors = matrices.target(p, to_vectors)
        matrices.set_identity(p, vectors)
        reflect(p, vectors[:, 1:, 1:], a[:, 1:], tau[:, : n - 1], adjoint=False)
    kernel = kernels.symmetric_kernel(element_type(real).name, p.form)
    _iterate(p, kernel, to_values, vectors, info, d, e)
    if vectors is not None:
        matrices.deliver(p, to_vectors, vectors)


@composite("_linalg_eigh", when=_has_kernels)
def _linalg_eigh(A: torch.Tensor, UPLO: str = "L", compute_v: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
    values, vectors, info = torch.ops.torchgraft.eigh(A, UPLO, compute_v)
    aten._linalg_check_errors(info, "linalg.eigh", is_matrix=A.dim() == 2)
    return values, vectors


def _svd_meta(A: torch.Tensor, full_matrices: bool, compute_uv: bool) -> tuple[torch.Tensor, ...]:
    u, s, vh = aten._linalg_svd(A, full_matrices, compute_uv)
    if compute_uv:  # column by column as on the CPU; of meta tensors torch thinks that they stand for CUDA's
        vh = vh.new_empty(vh.mT.shape).mT
    return u, s, vh, A.new_empty(A.shape[:-2], dtype=torch.int32)


@planner("torchgraft::svd", meta=_svd_meta)
def _svd(
    p: PlanBuilder,
    out: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor],
    A: torch.Tensor,
    full_matrices: bool,
    compute_uv: bool,
) -> None:
    """Singular values and vectors as `_linalg_svd`, and `info`: by bidiagonal matrices and implicit QR."""
    to_u, to_s, to_vh, info = out
    p.fill(info, 0)
    wide = A.shape[-2] < A.shape[-1]  # the adjoint has U and V in each other's place
    a = matrices.loaded(p, A.mH if wide else A)
    batch, m, n = a.shape
    targets = ((to_vh.mH, to_u) if wide else (to_u, to_vh.mH)) if compute_uv else ()
    if A.numel() == 0:
        for vectors in targets:
            matrices.set_identity(p, vectors)
        return
    type_, real = matrices.type_name(a), to_s.dtype
    d, e = p.empty((batch, n), real), p.empty((batch, n), real)
    tau, right_tau = p.empty((batch, n), A.dtype), p.empty((batch, n), A.dtype)
    reflectors = matrices.new_columns(p, batch, n, n, A.dtype)
    both = matrices.arguments(a=a, right=reflectors)
    numbers = {"d": d, "e": e, "tau": tau, "right_tau": right_tau, "work": p.empty((batch, m), A.dtype)}
    kernel = kernels.bidiagonal_kernel(type_, p.form)
    matrices.launch(p, kernel, batch, 8 * m * n * n, **both, **numbers, m=m, n=n)
    kernel = kernels.singular_kernel(element_type(real).name, p.form)
    if not targets:
        _iterate(p, kernel, to_s, None, info, d, e, of_right=0)
    for of_right, to_vectors in enumerate(targets):
        vectors = matrices.target(p, to_vectors)
        matrices.set_identity(p, vectors)
        if of_right:
            reflect(p, vectors[:, 1:, 1:], reflectors[:, 1:], right_tau[:, : n - 1], adjoint=False)
        else:
            reflect(p, vectors, a, tau, adjoint=False)
        _iterate(p, kernel, to_s, vectors, info, d, e, of_right=of_right)
        matrices.deliver(p, to_vectors, vectors)


@composite("_linalg_svd", when=_has_kernels)
def _linalg_svd(
    A: torch.Tensor, full_matrices: bool = False, compute_uv: bool = True, *, driver: str | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    if driver is not None:
        raise RuntimeError(
            "torch.linalg.svd: keyword argument `driver=` is only supported on CUDA inputs with cuSOLVER backend."
        )
    u, s, vh, info = torch.ops.torchgraft.svd(A, full_matrices, compute_uv)
    aten._linalg_check_errors(info, "linalg.svd", is_matrix=A.dim() == 2)
    return u, s, vh


# ---- least squares ----

_DRIVERS = ("gels", "gelsy", "gelsd", "gelss")


@composite("linalg_lstsq", when=_has_kernels, refuses=())
def _least_squares(
    self: torch.Tensor, b: torch.Tensor, rcond: float | None = None, *, driver: str | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The solution of least norm, the residuals where they are determined, the rank and the singular values.

    gels takes the matrix to be of full rank and uses QR; the others find the rank, here all by singular values.
    """
    _check_least_squares(self, b, driver)
    vector = b.dim() == 1 or (self.dim() - 1 == b.dim() and self.shape[:-1] == b.shape)
    sides = b.unsqueeze(-1) if vector else b
    m, n = self.shape[-2:]
    batch = torch.broadcast_shapes(self.shape[:-2], sides.shape[:-2])
    driver = driver or "gelsy"
    rank = torch.empty(0, dtype=torch.int64, device=self.device)
    singular = torch.empty(0, dtype=self.real.dtype if self.is_complex() else self.dtype, device=self.device)
    if driver == "gels":
        solution = _solve_full_rank(self, sides)
    else:
        u, s, vh = torch.linalg.svd(self, full_matrices=False)
        cutoff = torch.finfo(self.dtype).eps * max(m, n) if rcond is None else rcond
        kept = s > cutoff * s.amax(-1, keepdim=True) if s.numel() else s > 0
        rank = kept.sum(-1)
        inverse = torch.where(kept, s.reciprocal(), 0)
        solution = vh.mH @ (inverse.unsqueeze(-1) * (u.mH @ sides))
        singular = s if driver in ("gelsd", "gelss") else singular
    residuals = torch.empty(0, dtype=singular.dtype, device=self.device)
    if m > n and driver != "gelsy" and (driver == "gels" or bool((rank == n).all())):
        residuals = (self @ solution - sides).abs().square().sum(-2).expand(*batch, sides.shape[-1])
    return solution.squeeze(-1) if vector else solution, residuals, rank, singular


def _check_least_squares(a: torch.Tensor, b: torch.Tensor, driver: str | None) -> None:
    """What torch's CPU refuses, in its words."""
    if a.dim() < 2:
        raise RuntimeError("torch.linalg.lstsq: input must have at least 2 dimensions.")
    if b.dim() < 1:
        raise RuntimeError("torch.linalg.lstsq: other must have at least 1 dimension.")
    if not 0 <= a.dim() - b.dim() <= 1:
        raise RuntimeError(
            "torch.linalg.lstsq: input.dim() must be greater or equal to other.dim() and "
            "(input.dim() - other.dim()) <= 1"
        )
    vector = b.dim() == 1 or (a.dim() - 1 == b.dim() and a.shape[:-1] == b.shape)
    rows = b.shape[-1] if vector else b.shape[-2]
    if a.shape[-2] != rows:
        raise RuntimeError(
            f"torch.linalg.lstsq: input.size(-2) should match other.size({-1 if vector else -2}), but they are "
            f"{a.shape[-2]} and {rows}"
        )
    if a.dtype != b.dtype:
        raise RuntimeError(
            "torch.linalg.lstsq: Expected input and other to have the same dtype, but got input's dtype "
            f"{a.dtype} and other's dtype {b.dtype}"
        )
    if a.device != b.device:
        raise RuntimeError(f"torch.linalg.lstsq: input is on {a.device} and other on {b.device}")
    if driver is not None and driver not in _DRIVERS:
        raise RuntimeError(f"torch.linalg.lstsq: parameter `driver` should be one of ({', '.join(_DRIVERS)})")


def _solve_full_rank(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    if a.shape[-2] >= a.shape[-1]:
        q, r = torch.linalg.qr(a)
        solution: torch.Tensor = torch.linalg.solve_triangular(r, q.mH @ b, upper=True)
    else:
        q, r = torch.linalg.qr(a.mH)
        solution = q @ torch.linalg.solve_triangular(r.mH, b, upper=False)
    return solution


# ---- the exponential ----

#: The largest 1-norm for which the Taylor polynomial of degree 18 is exact to rounding: Bader, Blanes, Casas,
#: "Computing the matrix exponential with an optimized Taylor polynomial approximation", Mathematics 7(12), 2019.
_TAYLOR_REACH = {torch.float32: 3.01, torch.float64: 1.09}


@composite("linalg_matrix_exp", when=_has_kernels)
def _matrix_exp(self: torch.Tensor) -> torch.Tensor:
    """By scaling and squaring of a Taylor polynomial of degree 18; each matrix has a power of two of its own."""
    aten.linalg_matrix_exp(torch.empty_like(self, device="meta"))  # refuses what is no batch of square matrices
    if self.numel() == 0 or self.shape[-1] == 1:
        return self.exp()
    norms = self.abs().sum(-2).amax(-1)
    squarings = (norms / _TAYLOR_REACH[norms.dtype]).log2().ceil().clamp(0, 1100)
    # A matrix with a NaN or an infinity is one of those that are not scaled: the polynomial carries it on.
    squarings = torch.where(norms.isfinite(), squarings, 0)[..., None, None]
    a = self * torch.exp2(-squarings)
    result = _taylor(a)
    for done in range(int(squarings.max())):
        result = torch.where(squarings > done, result @ result, result)
    return result


def _taylor(a: torch.Tensor) -> torch.Tensor:
    """The sum of a^k / k! up to k = 18, by powers of a^4 (Paterson and Stockmeyer)."""
    powers = [torch.eye(a.shape[-1], dtype=a.dtype, device=a.device).expand(a.shape), a, a @ a]
    powers.append(powers[2] @ a)
    fourth = powers[2] @ powers[2]
    total = torch.zeros_like(a)
    for start in (16, 12, 8, 4, 0):
        part = total @ fourth if start < 16 else total
        for i, power in enumerate(powers):
            if start + i <= 18:
                part = part.add(power, alpha=1 / math.factorial(start + i))
        total = part
    return total
