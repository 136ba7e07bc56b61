"""Planners of dense linear algebra: factorisations, and the systems of equations that they solve.

Torch's own composites (`torch.linalg.inv`, `solve`, `pinv`, ...) and its derivatives are made of these ops. A large
matrix is cut into blocks: the kernels of `kernels.linalg` factor a panel of some columns, and matrix products bring the
rest up to date.
"""

from __future__ import annotations

import math
from typing import Literal

import torch

from torchgraft.kernels import linalg as kernels
from torchgraft.ops import matrices
from torchgraft.plans import PlanBuilder, composite, planner

aten = torch.ops.aten

#: Columns of a panel, and the order of the blocks that kernels solve by themselves.
_PANEL = 64


# ---- triangular systems ----


def _solve_triangular(p: PlanBuilder, a: torch.Tensor, x: torch.Tensor, lower: bool, unit: bool = False) -> None:
    """Solves A X = B in place of B, [batch, n, sides], which is in column-major or in row-major order. `a` may have a
    batch stride of 0."""
    batch, n, sides = x.shape
    if x.numel() == 0:
        return
    along: Literal["rows", "sides"] = "rows" if x.stride(1) == 1 or n == 1 else "sides"
    kernel = kernels.triangular_kernel(matrices.type_name(x), lower, unit, along, p.form)
    starts = range(0, n, _PANEL)
    for start in starts if lower else reversed(starts):
        end = min(start + _PANEL, n)
        block, solved, order = a[:, start:end, start:end], x[:, start:end], end - start
        both = matrices.arguments(a=block, x=solved if along == "rows" else solved.mT)
        matrices.launch_parts(p, kernel, batch, sides, order**2, **both, n=order)
        if lower and end < n:
            matrices.subtract_product(p, x[:, end:], a[:, end:, start:end], solved)
        elif not lower and start > 0:
            matrices.subtract_product(p, x[:, :start], a[:, :start, start:end], solved)


def _system(p: PlanBuilder, a: torch.Tensor, batch: torch.Size) -> torch.Tensor:
    """A system's matrices in column-major order, once for each of the broadcast batch or with a batch stride of 0."""
    if a.dim() == 2:
        return matrices.read(p, a).expand(math.prod(batch), *a.shape)
    return matrices.read(p, a if a.shape[:-2] == batch else a.expand(*batch, *a.shape[-2:]))


def _solve_triangular_into(
    p: PlanBuilder, out: torch.Tensor, a: torch.Tensor, b: torch.Tensor, upper: bool, left: bool, unit: bool
) -> None:
    if out.numel() == 0:
        return
    if not left:  # X A = B is the same as A^T X^T = B^T
        _solve_triangular_into(p, out.mT, a.mT, b.mT, not upper, True, unit)
        return
    transposed = matrices.as_columns(out.mT)
    x = matrices.target(p, out) if transposed is None or matrices.as_columns(out) is not None else transposed.mT
    matrices.load(p, x, b.expand(out.shape))
    _solve_triangular(p, _system(p, a, out.shape[:-2]), x, not upper, unit)
    matrices.deliver(p, out, x)


@planner("linalg_solve_triangular")
def _linalg_solve_triangular(
    p: PlanBuilder,
    out: torch.Tensor,
    self: torch.Tensor,
    B: torch.Tensor,
    *,
    upper: bool,
    left: bool = True,
    unitriangular: bool = False,
) -> None:
    matrices.type_name(out)
    _solve_triangular_into(p, out, self, B, upper, left, unitriangular)


@planner("triangular_solve")
def _triangular_solve(
    p: PlanBuilder,
    out: tuple[torch.Tensor, torch.Tensor],
    self: torch.Tensor,
    A: torch.Tensor,
    upper: bool = True,
    transpose: bool = False,
    unitriangular: bool = False,
) -> None:
    solution, copy = out
    matrices.type_name(solution)
    p.copy(copy, A)
    _solve_triangular_into(p, solution, A.mT if transpose else A, self, upper != transpose, True, unitriangular)


# ---- Cholesky ----


def _factor_cholesky(p: PlanBuilder, a: torch.Tensor, info: torch.Tensor) -> None:
    """The lower factor in place of the lower triangle; what is above the diagonal afterwards has no meaning."""
    batch, n, _ = a.shape
    p.fill(info, 0)
    kernel = kernels.cholesky_kernel(matrices.type_name(a), p.form)
    for start in range(0, n, _PANEL):
        end = min(start + _PANEL, n)
        diagonal, order = a[:, start:end, start:end], end - start
        matrices.launch(p, kernel, batch, order**3, **matrices.arguments(a=diagonal), info=info, n=order, offset=start)
        if end == n:
            break
        below = a[:, end:, start:end]
        upper = matrices.loaded(p, diagonal.conj())  # X L^H = B is the same as conj(L) X^T = B^T
        _solve_triangular(p, upper, below.mT, lower=True)
        matrices.subtract_product(p, a[:, end:, end:], below, below.mH)


def _cholesky_into(p: PlanBuilder, out: torch.Tensor, a: torch.Tensor, info: torch.Tensor, upper: bool) -> None:
    """With M M^H = conj(A), M being lower and made of the upper triangle, M^T is the upper factor of A."""
    if out.numel() == 0:
        p.fill(info, 0)
        return
    factor = matrices.loaded(p, a.mT) if upper else matrices.target(p, out)
    if not upper:
        matrices.load(p, factor, a)
    _factor_cholesky(p, factor, info)
    result = matrices.batched(factor, out)
    if upper:
        p.call_out(aten.triu.default, out, result.mT)
    else:  # in terms of contiguous memory
        p.call_out(aten.triu.default, out.mT, result.mT)


matrices.check_errors("linalg_cholesky_ex", "linalg.cholesky_ex")


@planner("linalg_cholesky_ex")
def _linalg_cholesky_ex(
    p: PlanBuilder,
    out: tuple[torch.Tensor, torch.Tensor],
    self: torch.Tensor,
    *,
    upper: bool = False,
    check_errors: bool = False,
) -> None:
    matrices.type_name(self)
    info = matrices.flat(p, out[1])
    _cholesky_into(p, out[0], self, info, upper)
    matrices.deliver_flat(p, out[1], info)


@composite("cholesky", refuses=())
def _cholesky(self: torch.Tensor, upper: bool = False) -> torch.Tensor:
    if self.numel() == 0:  # whatever its shape
        return torch.empty_like(self)
    factor, info = aten.linalg_cholesky_ex(self, upper=upper)
    aten._linalg_check_errors(info, "cholesky", is_matrix=self.dim() == 2)
    return factor  # type: ignore[no-any-return]


def _solve_cholesky(p: PlanBuilder, factor: torch.Tensor, x: torch.Tensor, upper: bool) -> None:
    """Solves A X = B in place of B [batch, n, sides], A = L L^H or U^H U being given by its factor."""
    matrices.type_name(x)
    batch = factor.shape[:-2]
    lower = _system(p, factor.mH if upper else factor, batch)
    adjoint = _system(p, factor if upper else factor.mH, batch)
    _solve_triangular(p, lower, x, lower=True)
    _solve_triangular(p, adjoint, x, lower=False)


@planner("_cholesky_solve_helper")
def _cholesky_solve(p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, A: torch.Tensor, upper: bool) -> None:
    if out.numel() == 0:
        return
    x = matrices.target(p, out)
    matrices.load(p, x, self)
    _solve_cholesky(p, A, x, upper)
    matrices.deliver(p, out, x)


@planner("cholesky_inverse", refuses=())
def _cholesky_inverse(p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, upper: bool = False) -> None:
    if out.numel() == 0:
        return
    x = matrices.target(p, out)
    matrices.set_identity(p, x)
    _solve_cholesky(p, self, x, upper)
    matrices.deliver(p, out, x)


# ---- LU ----


_BAD_PIVOT = "pivot {} is no row of the matrix. Did you properly pass the result of lu_factor?"


def _factor_lu(p: PlanBuilder, a: torch.Tensor, pivots: torch.Tensor, info: torch.Tensor, pivot: bool = True) -> None:
    """LU in place of [batch, m, n]; `pivots` is contiguous, [batch, min(m, n)] or what counts as many."""
    batch, m, n = a.shape
    p.fill(info, 0)
    if a.numel() == 0:
        return
    steps = min(m, n)
    pivots = pivots.view(batch, steps)
    kernel = kernels.lu_kernel(matrices.type_name(a), pivot, p.form)
    for start in range(0, steps, _PANEL):
        end = min(start + _PANEL, steps)
        right = end if end < steps else n  # the last panel takes what is left of a wide matrix
        both = matrices.arguments(a=a[:, start:, start:right], pivots=pivots[:, start:])
        work = (m - start) * (end - start) * (right - start)
        matrices.launch(p, kernel, batch, work, **both, info=info, m=m - start, n=right - start, offset=start)
        if pivot:
            for others in (a[:, start:, :start], a[:, start:, right:]):
                _swap_rows(p, others, pivots[:, start:end], start)
        if right < n:
            _solve_triangular(p, a[:, start:end, start:end], a[:, start:end, right:], lower=True, unit=True)
            if end < m:
                matrices.subtract_product(p, a[:, end:, right:], a[:, end:, start:end], a[:, start:end, right:])


def _swap_rows(p: PlanBuilder, x: torch.Tensor, pivots: torch.Tensor, offset: int = 0, backwards: bool = False) -> None:
    """Exchanges rows of [batch, rows, columns] as pivots [batch, n], counted from offset + 1, say."""
    if x.numel() == 0:
        return
    batch, height, columns = x.shape
    n = pivots.shape[1]
    report = p.error(_BAD_PIVOT, RuntimeError)
    kernel = kernels.swap_kernel(matrices.type_name(x), backwards, p.form)
    both = matrices.arguments(pivots=pivots, x=x)
    sizes = {"n": n, "height": height, "offset": offset}
    matrices.launch_parts(p, kernel, batch, columns, n, **both, **sizes, errors=report.words, code=report.code)


matrices.check_errors("linalg_lu_factor_ex", "torch.linalg.lu_factor_ex")


@planner("linalg_lu_factor_ex")
def _linalg_lu_factor_ex(
    p: PlanBuilder,
    out: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    A: torch.Tensor,
    *,
    pivot: bool = True,
    check_errors: bool = False,
) -> None:
    matrices.type_name(A)
    factors = matrices.target(p, out[0])
    pivots, info = matrices.flat(p, out[1]), matrices.flat(p, out[2])
    matrices.load(p, factors, A)
    _factor_lu(p, factors, pivots, info, pivot)
    matrices.deliver(p, out[0], factors)
    matrices.deliver_flat(p, out[1], pivots)
    matrices.deliver_flat(p, out[2], info)


def _unpack(
    p: PlanBuilder,
    out: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    factors: torch.Tensor,
    pivots: torch.Tensor,
    data: bool,
    permutation: bool,
) -> None:
    """P, L and U of factors [..., m, n] and pivots [..., k]."""
    to_p, to_l, to_u = out
    m, k = factors.shape[-2], min(factors.shape[-2:])
    if permutation and to_p.numel() > 0:
        square = matrices.target(p, to_p)
        batch, count = square.shape[0], pivots.shape[-1]
        both = matrices.arguments(a=square, pivots=p.contiguous(pivots).view(batch, count))
        p.zero(square)
        order = p.empty((batch, m), torch.int32)
        report = p.error(_BAD_PIVOT, RuntimeError)
        kernel = kernels.permutation_kernel(matrices.type_name(to_p), p.form)
        sizes = {"m": m, "k": count}
        matrices.launch(p, kernel, batch, m + k, **both, **sizes, order=order, errors=report.words, code=report.code)
        matrices.deliver(p, to_p, square)
    if data:
        if to_l.numel() > 0:
            p.call_out(aten.tril.default, to_l, factors[..., :k], -1)
            p.fill(to_l.diagonal(dim1=-2, dim2=-1), 1)
        if to_u.numel() > 0:
            p.call_out(aten.triu.default, to_u, factors[..., :k, :])


@planner("lu_unpack")
def _lu_unpack(
    p: PlanBuilder,
    out: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    LU_data: torch.Tensor,
    LU_pivots: torch.Tensor,
    unpack_data: bool = True,
    unpack_pivots: bool = True,
) -> None:
    matrices.type_name(LU_data)
    _unpack(p, out, LU_data, LU_pivots, unpack_data, unpack_pivots)


@planner("linalg_lu")
def _linalg_lu(
    p: PlanBuilder, out: tuple[torch.Tensor, torch.Tensor, torch.Tensor], A: torch.Tensor, *, pivot: bool = True
) -> None:
    matrices.type_name(A)
    factors = matrices.loaded(p, A)
    batch, m, n = factors.shape
    pivots = p.empty((batch, min(m, n)), torch.int32)
    _factor_lu(p, factors, pivots, p.empty((batch,), torch.int32), pivot)
    _unpack(p, out, matrices.batched(factors, A), pivots, True, pivot)


def _solve_lu(p: PlanBuilder, factors: torch.Tensor, pivots: torch.Tensor, x: torch.Tensor, adjoint: bool) -> None:
    """Solves A X = B or A^H X = B in place of B [batch, n, sides], with factors and pivots [batch, n] of A."""
    if x.numel() == 0:
        return
    if not adjoint:
        _swap_rows(p, x, pivots)
        _solve_triangular(p, factors, x, lower=True, unit=True)
        _solve_triangular(p, factors, x, lower=False)
    else:
        turned = matrices.loaded(p, factors.mH)
        _solve_triangular(p, turned, x, lower=True)
        _solve_triangular(p, turned, x, lower=False, unit=True)
        _swap_rows(p, x, pivots, backwards=True)


def _solve_lu_into(
    p: PlanBuilder,
    out: torch.Tensor,
    factors: torch.Tensor,
    pivots: torch.Tensor,
    b: torch.Tensor,
    left: bool,
    adjoint: bool,
) -> None:
    if out.numel() == 0:
        return
    batch = out.shape[:-2]
    n = factors.shape[-1]
    if pivots.dim() > 1:
        pivots = pivots.expand(*batch, n)
        rows = p.contiguous(pivots).view(-1, n)
    else:
        rows = p.contiguous(pivots).expand(math.prod(batch), n)
    # X A = B is the same as A^H X^H = B^H.
    turned = out if left else out.mH
    x = matrices.target(p, turned)
    matrices.load(p, x, (b if left else b.mH).expand(turned.shape))
    _solve_lu(p, _system(p, factors, batch), rows, x, adjoint == left)
    matrices.deliver(p, turned, x)


@planner("linalg_lu_solve")
def _linalg_lu_solve(
    p: PlanBuilder,
    out: torch.Tensor,
    LU: torch.Tensor,
    pivots: torch.Tensor,
    B: torch.Tensor,
    *,
    left: bool = True,
    adjoint: bool = False,
) -> None:
    matrices.type_name(LU)
    # Torch's meta kernel says that what it returns is to be conjugated; the memory here is the result itself.
    _solve_lu_into(p, out.conj() if out.is_conj() else out, LU, pivots, B, left, adjoint)


matrices.check_errors("_linalg_solve_ex", "linalg.solve_ex")


@planner("_linalg_solve_ex")
def _linalg_solve_ex(
    p: PlanBuilder,
    out: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor],
    A: torch.Tensor,
    B: torch.Tensor,
    *,
    left: bool = True,
    check_errors: bool = False,
) -> None:
    matrices.type_name(A)
    to_result, to_factors, to_pivots, to_info = out
    pivots, info = matrices.flat(p, to_pivots), matrices.flat(p, to_info)
    factors = matrices.target(p, to_factors)
    matrices.load(p, factors, A)
    _factor_lu(p, factors, pivots, info)
    vector = B.dim() == 1 or (A.dim() - 1 == B.dim() and B.shape == A.shape[:-1])
    result, b = (to_result.unsqueeze(-1), B.unsqueeze(-1)) if vector else (to_result, B)
    _solve_lu_into(p, result, matrices.batched(factors, A), pivots, b, left, False)
    matrices.deliver(p, to_factors, factors)
    matrices.deliver_flat(p, to_pivots, pivots)
    matrices.deliver_flat(p, to_info, info)


matrices.check_errors("linalg_inv_ex", "linalg.inv_ex")


@planner("linalg_inv_ex")
def _linalg_inv_ex(
    p: PlanBuilder, out: tuple[torch.Tensor, torch.Tensor], A: torch.Tensor, *, check_errors: bool = False
) -> None:
    matrices.type_name(A)
    info = matrices.flat(p, out[1])
    factors = matrices.loaded(p, A)
    batch, n, _ = factors.shape
    pivots = p.empty((batch, n), torch.int32)
    _factor_lu(p, factors, pivots, info)
    inverse = matrices.target(p, out[0])
    if inverse.numel() > 0:
        matrices.set_identity(p, inverse)
        _solve_lu(p, factors, pivots, inverse, False)
        matrices.deliver(p, out[0], inverse)
    matrices.deliver_flat(p, out[1], info)


def _determinant(
    p: PlanBuilder,
    to_sign: torch.Tensor,
    to_logarithm: torch.Tensor | None,
    to_factors: torch.Tensor,
    to_pivots: torch.Tensor,
    a: torch.Tensor,
) -> None:
    matrices.type_name(a)
    pivots = matrices.flat(p, to_pivots)
    batch, n = math.prod(a.shape[:-2]), a.shape[-1]
    factors = matrices.target(p, to_factors)
    # Torch's derivatives rely on what its CPU does: A^T is factored where that is in column-major order already.
    matrices.load(p, factors, a.mT if a.is_contiguous() and not a.is_complex() else a)
    _factor_lu(p, factors, pivots, p.empty((batch,), torch.int32))
    sign = matrices.flat(p, to_sign)
    logarithm = None if to_logarithm is None else matrices.flat(p, to_logarithm)
    kernel = kernels.determinant_kernel(matrices.type_name(a), p.form)
    own = matrices.arguments(a=factors)
    matrices.launch(p, kernel, batch, n, **own, pivots=pivots, n=n, sign=sign, logarithm=logarithm)
    matrices.deliver(p, to_factors, factors)
    matrices.deliver_flat(p, to_pivots, pivots)
    matrices.deliver_flat(p, to_sign, sign)
    if to_logarithm is not None and logarithm is not None:
        matrices.deliver_flat(p, to_logarithm, logarithm)


@planner("_linalg_det")
def _linalg_det(p: PlanBuilder, out: tuple[torch.Tensor, torch.Tensor, torch.Tensor], A: torch.Tensor) -> None:
    _determinant(p, out[0], None, out[1], out[2], A)


@planner("_linalg_slogdet")
def _linalg_slogdet(
    p: PlanBuilder, out: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], A: torch.Tensor
) -> None:
    _determinant(p, *out, A)


# ---- QR ----

_QR_PANEL = 32


def _factor_qr(p: PlanBuilder, a: torch.Tensor, tau: torch.Tensor) -> None:
    """QR in place of [batch, m, n], as LAPACK's geqrf; `tau` is contiguous, [batch, min(m, n)] or so many in other
    dimensions."""
    batch, m, n = a.shape
    if a.numel() == 0:
        return
    steps = min(m, n)
    tau = tau.view(batch, steps)
    kernel = kernels.qr_kernel(matrices.type_name(a), p.form)
    for start in range(0, steps, _QR_PANEL):
        end = min(start + _QR_PANEL, steps)
        panel, factors = a[:, start:, start:end], tau[:, start:end]
        height, width = m - start, end - start
        both = matrices.arguments(a=panel, tau=factors)
        matrices.launch(p, kernel, batch, 2 * height * width**2, **both, m=height, n=width)
        reflect(p, a[:, start:, end:], panel, factors, adjoint=True)


def reflect(p: PlanBuilder, x: torch.Tensor, vectors: torch.Tensor, tau: torch.Tensor, adjoint: bool) -> None:
    """X = Q X or Q^H X for [batch, m, sides], Q being the product of reflectors [batch, m, k] with `tau` [batch, k]."""
    batch, m, sides = x.shape
    k = tau.shape[1]
    if x.numel() == 0:
        return
    kernel = kernels.reflect_kernel(matrices.type_name(x), adjoint, p.form)
    starts = range(0, k, _QR_PANEL)
    for start in starts if adjoint else reversed(starts):
        count = min(_QR_PANEL, k - start)
        all_three = matrices.arguments(a=vectors[:, start:, start:], tau=tau[:, start:], x=x[:, start:])
        matrices.launch_parts(p, kernel, batch, sides, 4 * m * count, **all_three, m=m - start, k=count)


def _qr_meta(self: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    if self.dim() < 2:
        raise RuntimeError("torch.geqrf: input must have at least 2 dimensions.")
    return self.new_empty(self.mT.shape).mT, self.new_empty(*self.shape[:-2], min(self.shape[-2:]))


@planner("geqrf", meta=_qr_meta, refuses=())
def _geqrf(p: PlanBuilder, out: tuple[torch.Tensor, torch.Tensor], self: torch.Tensor) -> None:
    matrices.type_name(self)
    a, tau = matrices.target(p, out[0]), matrices.flat(p, out[1])
    matrices.load(p, a, self)
    _factor_qr(p, a, tau)
    matrices.deliver(p, out[0], a)
    matrices.deliver_flat(p, out[1], tau)


@planner("linalg_qr")
def _linalg_qr(p: PlanBuilder, out: tuple[torch.Tensor, torch.Tensor], A: torch.Tensor, mode: str = "reduced") -> None:
    matrices.type_name(A)
    to_q, to_r = out
    a = matrices.loaded(p, A)
    batch, m, n = a.shape
    tau = p.empty((batch, min(m, n)), A.dtype)
    _factor_qr(p, a, tau)
    if to_r.numel() > 0:
        p.call_out(aten.triu.default, to_r, matrices.batched(a[:, : to_r.shape[-2]], A))
    if mode != "r" and to_q.numel() > 0:
        q = matrices.target(p, to_q)
        matrices.set_identity(p, q)
        reflect(p, q, a, tau, adjoint=False)
        matrices.deliver(p, to_q, q)


@planner("linalg_householder_product", refuses=())
def _householder_product(p: PlanBuilder, out: torch.Tensor, input: torch.Tensor, tau: torch.Tensor) -> None:
    matrices.type_name(input)
    q = matrices.target(p, out)
    matrices.set_identity(p, q)
    reflect(p, q, matrices.read(p, input), p.contiguous(tau).view(q.shape[0], tau.shape[-1]), adjoint=False)
    matrices.deliver(p, out, q)


@planner("ormqr")
def _ormqr(
    p: PlanBuilder,
    out: torch.Tensor,
    self: torch.Tensor,
    input2: torch.Tensor,
    input3: torch.Tensor,
    left: bool = True,
    transpose: bool = False,
) -> None:
    matrices.type_name(self)
    # C Q is the same as (Q^H C^H)^H.
    turned, other = (out, input3) if left else (out.mH, input3.mH)
    x = matrices.target(p, turned)
    matrices.load(p, x, other)
    tau = p.contiguous(input2).view(math.prod(self.shape[:-2]), input2.shape[-1])
    reflect(p, x, matrices.read(p, self), tau, adjoint=transpose == left)
    matrices.deliver(p, turned, x)
