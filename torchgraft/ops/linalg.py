"""Planners of dense linear algebra: factorisations, and the systems of equations that they solve.

Torch's own composites (`torch.linalg.inv`, `solve`, `pinv`, ...) and its derivatives are made of these ops. A large
matrix is cut into blocks: the kernels of `kernels.linalg` factor a panel of some columns, and matrix products bring the
rest up to date.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch

from torchgraft.codegen import ceil_div, element_type
from torchgraft.kernels import linalg as kernels
from torchgraft.ops.matmul import plan_product
from torchgraft.plans import Kernel, PlanBuilder, Unsupported, composite, device_traits, planner

aten = torch.ops.aten

#: Columns of a panel, and the order of the blocks that kernels solve by themselves.
_PANEL = 64


def _type(spec: torch.Tensor) -> str:
    """The element type's name.

    Raises:
        Unsupported: it is none that torch's CPU computes in here, and refuses in its own words.
    """
    name = element_type(spec.dtype).name
    if name not in kernels.TYPES:
        raise Unsupported(f"linear algebra of {spec.dtype}")
    return name


# ---- batches of matrices in column-major order ----


def _columns(p: PlanBuilder, batch: int, rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
    """A temporary [batch, rows, columns] in column-major order."""
    return p.empty((batch, columns, rows), dtype).mT


def _as_columns(spec: torch.Tensor) -> torch.Tensor | None:
    """The same memory as [batch, rows, columns] in column-major order, if that is how it lies."""
    if not spec.mT.is_contiguous() or spec.is_conj() or spec.is_neg():
        return None
    return spec.mT.reshape(math.prod(spec.shape[:-2]), spec.shape[-1], spec.shape[-2]).mT


def _batched(spec: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """[batch, rows, columns] with the batch dimensions of another matrix."""
    return spec.mT.reshape(*like.shape[:-2], spec.shape[-1], spec.shape[-2]).mT


def _target(p: PlanBuilder, out: torch.Tensor) -> torch.Tensor:
    """Where to compute a result: in its own memory where that is in column-major order, else in a temporary."""
    own = _as_columns(out)
    return _columns(p, math.prod(out.shape[:-2]), out.shape[-2], out.shape[-1], out.dtype) if own is None else own


def _load(p: PlanBuilder, to: torch.Tensor, source: torch.Tensor) -> None:
    """Copies matrices, whatever their layout, to [batch, rows, columns]; one matrix is broadcast to `to`'s batch."""
    p.copy(to if source.dim() == 2 else _batched(to, source), source)


def _loaded(p: PlanBuilder, source: torch.Tensor) -> torch.Tensor:
    """A temporary [batch, rows, columns] in column-major order with a copy."""
    to = _columns(p, math.prod(source.shape[:-2]), source.shape[-2], source.shape[-1], source.dtype)
    _load(p, to, source)
    return to


def _read(p: PlanBuilder, source: torch.Tensor) -> torch.Tensor:
    """As [batch, rows, columns] in column-major order: the same memory where possible."""
    own = _as_columns(source)
    return _loaded(p, source) if own is None else own


def _deliver(p: PlanBuilder, out: torch.Tensor, computed: torch.Tensor) -> None:
    """Copies [batch, rows, columns] to a result, unless it was computed there."""
    if p.memory(out) is not p.memory(computed):
        p.copy(out, _batched(computed, out))


def _flat(p: PlanBuilder, out: torch.Tensor) -> torch.Tensor:
    """A result of numbers or vectors for each matrix as contiguous memory: its own or a temporary."""
    return out if out.is_contiguous() else p.empty(out.shape, out.dtype)


def _deliver_flat(p: PlanBuilder, out: torch.Tensor, computed: torch.Tensor) -> None:
    if out is not computed:
        p.copy(out, computed)


def _arguments(spec: torch.Tensor) -> list[Any]:
    """Of a matrix parameter: memory, distance of matrices, distance of columns."""
    return [spec, spec.stride(0), spec.stride(2)]


def _teams(p: PlanBuilder, batch: int, work: int) -> int:
    """Groups for a batch of matrices, each of which takes so many operations."""
    if p.form == "gpu":
        return min(batch, 65535)
    return 1 if batch * work < 20000 else min(batch, 32 * p.device.compute_units)


def _launch(p: PlanBuilder, kernel: Kernel, batch: int, work: int, args: Sequence[Any]) -> None:
    p.launch(kernel, (_teams(p, batch, work),), [*args, batch])


def _launch_parts(p: PlanBuilder, kernel: Kernel, batch: int, count: int, work: int, args: Sequence[Any]) -> None:
    """Launches a kernel that shares out `count` columns along dimension 1; `work` is a column's."""
    teams = _teams(p, batch, work * count)
    if p.form == "gpu":
        parts = ceil_div(count, kernels.TEAM)
    else:
        parts = 1 if count * work < 40000 else min(count, max(1, 4 * p.device.compute_units // teams))
    chunk = max(1, ceil_div(count, max(1, parts)))
    p.launch(kernel, (teams, ceil_div(count, chunk)), [*args, batch, count, chunk])


def _subtract_product(p: PlanBuilder, c: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    """C -= A B for batches."""
    plan_product(p, c, a, b, c, 1, -1)


# ---- errors ----


def _checked(op: Any, api_name: str) -> Callable[[dict[str, Any], bool], Callable[..., Any] | None]:
    """For `planner(eager=...)`: with check_errors=True the op is run without, and its last result, `info`, read."""

    def eager(arguments: dict[str, Any], _: bool) -> Callable[..., Any] | None:
        if not arguments["check_errors"]:
            return None

        def run(*args: Any, check_errors: bool, **kwargs: Any) -> Any:
            results = op(*args, **kwargs)
            aten._linalg_check_errors(results[-1], api_name, is_matrix=args[0].dim() == 2)
            return results

        return run

    return eager


# ---- triangular systems ----


def _solve_triangular(p: PlanBuilder, a: torch.Tensor, x: torch.Tensor, lower: bool, unit: bool = False) -> None:
    """Solves A X = B in place of B, [batch, n, sides], which is in column-major or in row-major order. `a` may have a
    batch stride of 0."""
    batch, n, sides = x.shape
    if x.numel() == 0:
        return
    along: Literal["rows", "sides"] = "rows" if x.stride(1) == 1 or n == 1 else "sides"
    kernel = kernels.triangular_kernel(_type(x), lower, unit, along, p.form)
    starts = range(0, n, _PANEL)
    for start in starts if lower else reversed(starts):
        end = min(start + _PANEL, n)
        block, solved = a[:, start:end, start:end], x[:, start:end]
        distance = x.stride(2) if along == "rows" else x.stride(1)
        args = [*_arguments(block), solved, x.stride(0), distance, end - start]
        _launch_parts(p, kernel, batch, sides, (end - start) ** 2, args)
        if lower and end < n:
            _subtract_product(p, x[:, end:], a[:, end:, start:end], solved)
        elif not lower and start > 0:
            _subtract_product(p, x[:, :start], a[:, :start, start:end], solved)


def _system(p: PlanBuilder, a: torch.Tensor, batch: torch.Size) -> torch.Tensor:
    """A system's matrices in column-major order, once for each of the broadcast batch or with a batch stride of 0."""
    if a.dim() == 2:
        return _read(p, a).expand(math.prod(batch), *a.shape)
    return _read(p, a if a.shape[:-2] == batch else a.expand(*batch, *a.shape[-2:]))


def _solve_triangular_into(
    p: PlanBuilder, out: torch.Tensor, a: torch.Tensor, b: torch.Tensor, upper: bool, left: bool, unit: bool
) -> None:
    if out.numel() == 0:
        return
    if not left:  # X A = B is the same as A^T X^T = B^T
        _solve_triangular_into(p, out.mT, a.mT, b.mT, not upper, True, unit)
        return
    transposed = _as_columns(out.mT)
    x = _target(p, out) if transposed is None or _as_columns(out) is not None else transposed.mT
    _load(p, x, b.expand(out.shape))
    _solve_triangular(p, _system(p, a, out.shape[:-2]), x, not upper, unit)
    _deliver(p, out, x)


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
    _type(out)
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
    _type(solution)
    p.copy(copy, A)
    _solve_triangular_into(p, solution, A.mT if transpose else A, self, upper != transpose, True, unitriangular)


# ---- Cholesky ----


def _factor_cholesky(p: PlanBuilder, a: torch.Tensor, info: torch.Tensor) -> None:
    """The lower factor in place of the lower triangle; what is above the diagonal afterwards has no meaning."""
    batch, n, _ = a.shape
    p.fill(info, 0)
    kernel = kernels.cholesky_kernel(_type(a), p.form)
    for start in range(0, n, _PANEL):
        end = min(start + _PANEL, n)
        diagonal = a[:, start:end, start:end]
        _launch(p, kernel, batch, (end - start) ** 3, [*_arguments(diagonal), info, end - start, start])
        if end == n:
            break
        below = a[:, end:, start:end]
        upper = _loaded(p, diagonal.conj())  # X L^H = B is the same as conj(L) X^T = B^T
        _solve_triangular(p, upper, below.mT, lower=True)
        _subtract_product(p, a[:, end:, end:], below, below.mH)


def _cholesky_into(p: PlanBuilder, out: torch.Tensor, a: torch.Tensor, info: torch.Tensor, upper: bool) -> None:
    """With M M^H = conj(A), M being lower and made of the upper triangle, M^T is the upper factor of A."""
    if out.numel() == 0:
        p.fill(info, 0)
        return
    factor = _loaded(p, a.mT) if upper else _target(p, out)
    if not upper:
        _load(p, factor, a)
    _factor_cholesky(p, factor, info)
    result = _batched(factor, out)
    if upper:
        p.call_out(aten.triu.default, out, result.mT)
    else:  # in terms of contiguous memory
        p.call_out(aten.triu.default, out.mT, result.mT)


@planner("linalg_cholesky_ex", eager=_checked(aten.linalg_cholesky_ex, "linalg.cholesky_ex"))
def _linalg_cholesky_ex(
    p: PlanBuilder,
    out: tuple[torch.Tensor, torch.Tensor],
    self: torch.Tensor,
    *,
    upper: bool = False,
    check_errors: bool = False,
) -> None:
    _type(self)
    info = _flat(p, out[1])
    _cholesky_into(p, out[0], self, info, upper)
    _deliver_flat(p, out[1], info)


@composite("cholesky", exact_out=False)
def _cholesky(self: torch.Tensor, upper: bool = False) -> torch.Tensor:
    if self.numel() == 0:  # whatever its shape
        return torch.empty_like(self)
    factor, info = aten.linalg_cholesky_ex(self, upper=upper)
    aten._linalg_check_errors(info, "cholesky", is_matrix=self.dim() == 2)
    return factor  # type: ignore[no-any-return]


def _solve_cholesky(p: PlanBuilder, factor: torch.Tensor, x: torch.Tensor, upper: bool) -> None:
    """Solves A X = B in place of B [batch, n, sides], A = L L^H or U^H U being given by its factor."""
    _type(x)
    batch = factor.shape[:-2]
    lower = _system(p, factor.mH if upper else factor, batch)
    adjoint = _system(p, factor if upper else factor.mH, batch)
    _solve_triangular(p, lower, x, lower=True)
    _solve_triangular(p, adjoint, x, lower=False)


@planner("_cholesky_solve_helper")
def _cholesky_solve(p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, A: torch.Tensor, upper: bool) -> None:
    if out.numel() == 0:
        return
    x = _target(p, out)
    _load(p, x, self)
    _solve_cholesky(p, A, x, upper)
    _deliver(p, out, x)


def _set_identity(p: PlanBuilder, x: torch.Tensor) -> None:
    """Makes [batch, rows, columns] identities, with zeros beyond."""
    p.zero(x)
    p.fill(x.diagonal(dim1=-2, dim2=-1), 1)


@planner("cholesky_inverse", exact_out=False)
def _cholesky_inverse(p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, upper: bool = False) -> None:
    if out.numel() == 0:
        return
    x = _target(p, out)
    _set_identity(p, x)
    _solve_cholesky(p, self, x, upper)
    _deliver(p, out, x)


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
    kernel = kernels.lu_kernel(_type(a), pivot, p.form)
    for start in range(0, steps, _PANEL):
        end = min(start + _PANEL, steps)
        right = end if end < steps else n  # the last panel takes what is left of a wide matrix
        panel = a[:, start:, start:right]
        _launch(
            p,
            kernel,
            batch,
            (m - start) * (end - start) * (right - start),
            [*_arguments(panel), pivots[:, start:], steps, info, m - start, right - start, start],
        )
        if pivot:
            for others in (a[:, start:, :start], a[:, start:, right:]):
                _swap_rows(p, others, pivots[:, start:end], start)
        if right < n:
            _solve_triangular(p, a[:, start:end, start:end], a[:, start:end, right:], lower=True, unit=True)
            if end < m:
                _subtract_product(p, a[:, end:, right:], a[:, end:, start:end], a[:, start:end, right:])


def _swap_rows(p: PlanBuilder, x: torch.Tensor, pivots: torch.Tensor, offset: int = 0, backwards: bool = False) -> None:
    """Exchanges rows of [batch, rows, columns] as pivots [batch, n], counted from offset + 1, say."""
    if x.numel() == 0:
        return
    batch, rows, columns = x.shape
    n = pivots.shape[1]
    report = p.error(_BAD_PIVOT, RuntimeError)
    kernel = kernels.swap_kernel(_type(x), backwards, p.form)
    args = [pivots, pivots.stride(0), *_arguments(x), n, rows, offset, report.words, report.code]
    _launch_parts(p, kernel, batch, columns, n, args)


@planner("linalg_lu_factor_ex", eager=_checked(aten.linalg_lu_factor_ex, "torch.linalg.lu_factor_ex"))
def _linalg_lu_factor_ex(
    p: PlanBuilder,
    out: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    A: torch.Tensor,
    *,
    pivot: bool = True,
    check_errors: bool = False,
) -> None:
    _type(A)
    factors = _target(p, out[0])
    pivots, info = _flat(p, out[1]), _flat(p, out[2])
    _load(p, factors, A)
    _factor_lu(p, factors, pivots, info, pivot)
    _deliver(p, out[0], factors)
    _deliver_flat(p, out[1], pivots)
    _deliver_flat(p, out[2], info)


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
        square = _target(p, to_p)
        batch, count = square.shape[0], pivots.shape[-1]
        p.zero(square)
        order = p.empty((batch, m), torch.int32)
        rows = p.contiguous(pivots)
        report = p.error(_BAD_PIVOT, RuntimeError)
        args = [*_arguments(square), rows, count, order, m, count, report.words, report.code]
        _launch(p, kernels.permutation_kernel(_type(to_p), p.form), batch, m + k, args)
        _deliver(p, to_p, square)
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
    _type(LU_data)
    _unpack(p, out, LU_data, LU_pivots, unpack_data, unpack_pivots)


@planner("linalg_lu")
def _linalg_lu(
    p: PlanBuilder, out: tuple[torch.Tensor, torch.Tensor, torch.Tensor], A: torch.Tensor, *, pivot: bool = True
) -> None:
    _type(A)
    factors = _loaded(p, A)
    batch, m, n = factors.shape
    pivots = p.empty((batch, min(m, n)), torch.int32)
    _factor_lu(p, factors, pivots, p.empty((batch,), torch.int32), pivot)
    _unpack(p, out, _batched(factors, A), pivots, True, pivot)


def _solve_lu(p: PlanBuilder, factors: torch.Tensor, pivots: torch.Tensor, x: torch.Tensor, adjoint: bool) -> None:
    """Solves A X = B or A^H X = B in place of B [batch, n, sides], with factors and pivots [batch, n] of A."""
    if x.numel() == 0:
        return
    if not adjoint:
        _swap_rows(p, x, pivots)
        _solve_triangular(p, factors, x, lower=True, unit=True)
        _solve_triangular(p, factors, x, lower=False)
    else:
        turned = _loaded(p, factors.mH)
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
    x = _target(p, turned)
    _load(p, x, (b if left else b.mH).expand(turned.shape))
    _solve_lu(p, _system(p, factors, batch), rows, x, adjoint == left)
    _deliver(p, turned, x)


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
    _type(LU)
    # Torch's meta kernel says that what it returns is to be conjugated; the memory here is the result itself.
    _solve_lu_into(p, out.conj() if out.is_conj() else out, LU, pivots, B, left, adjoint)


@planner("_linalg_solve_ex", eager=_checked(aten._linalg_solve_ex, "linalg.solve_ex"))
def _linalg_solve_ex(
    p: PlanBuilder,
    out: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor],
    A: torch.Tensor,
    B: torch.Tensor,
    *,
    left: bool = True,
    check_errors: bool = False,
) -> None:
    _type(A)
    to_result, to_factors, to_pivots, to_info = out
    pivots, info = _flat(p, to_pivots), _flat(p, to_info)
    factors = _target(p, to_factors)
    _load(p, factors, A)
    _factor_lu(p, factors, pivots, info)
    vector = B.dim() == 1 or (A.dim() - 1 == B.dim() and B.shape == A.shape[:-1])
    result, b = (to_result.unsqueeze(-1), B.unsqueeze(-1)) if vector else (to_result, B)
    _solve_lu_into(p, result, _batched(factors, A), pivots, b, left, False)
    _deliver(p, to_factors, factors)
    _deliver_flat(p, to_pivots, pivots)
    _deliver_flat(p, to_info, info)


@planner("linalg_inv_ex", eager=_checked(aten.linalg_inv_ex, "linalg.inv_ex"))
def _linalg_inv_ex(
    p: PlanBuilder, out: tuple[torch.Tensor, torch.Tensor], A: torch.Tensor, *, check_errors: bool = False
) -> None:
    _type(A)
    info = _flat(p, out[1])
    factors = _loaded(p, A)
    batch, n, _ = factors.shape
    pivots = p.empty((batch, n), torch.int32)
    _factor_lu(p, factors, pivots, info)
    inverse = _target(p, out[0])
    if inverse.numel() > 0:
        _set_identity(p, inverse)
        _solve_lu(p, factors, pivots, inverse, False)
        _deliver(p, out[0], inverse)
    _deliver_flat(p, out[1], info)


def _determinant(
    p: PlanBuilder,
    to_sign: torch.Tensor,
    to_logarithm: torch.Tensor | None,
    to_factors: torch.Tensor,
    to_pivots: torch.Tensor,
    a: torch.Tensor,
) -> None:
    _type(a)
    pivots = _flat(p, to_pivots)
    batch, n = math.prod(a.shape[:-2]), a.shape[-1]
    factors = _target(p, to_factors)
    # Torch's derivatives rely on what its CPU does: A^T is factored where that is in column-major order already.
    _load(p, factors, a.mT if a.is_contiguous() and not a.is_complex() else a)
    _factor_lu(p, factors, pivots, p.empty((batch,), torch.int32))
    sign = _flat(p, to_sign)
    logarithm = None if to_logarithm is None else _flat(p, to_logarithm)
    kernel = kernels.determinant_kernel(_type(a), p.form)
    _launch(p, kernel, batch, n, [sign, logarithm, *_arguments(factors), pivots, n])
    _deliver(p, to_factors, factors)
    _deliver_flat(p, to_pivots, pivots)
    _deliver_flat(p, to_sign, sign)
    if to_logarithm is not None and logarithm is not None:
        _deliver_flat(p, to_logarithm, logarithm)


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
    kernel = kernels.qr_kernel(_type(a), p.form)
    for start in range(0, steps, _QR_PANEL):
        end = min(start + _QR_PANEL, steps)
        panel, factors = a[:, start:, start:end], tau[:, start:end]
        args = [*_arguments(panel), factors, steps, m - start, end - start]
        _launch(p, kernel, batch, 2 * (m - start) * (end - start) ** 2, args)
        _reflect(p, a[:, start:, end:], panel, factors, adjoint=True)


def _reflect(p: PlanBuilder, x: torch.Tensor, vectors: torch.Tensor, tau: torch.Tensor, adjoint: bool) -> None:
    """X = Q X or Q^H X for [batch, m, sides], Q being the product of reflectors [batch, m, k] with `tau` [batch, k]."""
    batch, m, sides = x.shape
    k = tau.shape[1]
    if x.numel() == 0:
        return
    kernel = kernels.reflect_kernel(_type(x), adjoint, p.form)
    starts = range(0, k, _QR_PANEL)
    for start in starts if adjoint else reversed(starts):
        count = min(_QR_PANEL, k - start)
        args = [*_arguments(vectors[:, start:, start:]), tau[:, start:], tau.stride(0)]
        args += [*_arguments(x[:, start:]), m - start, count]
        _launch_parts(p, kernel, batch, sides, 4 * m * count, args)


def _qr_meta(self: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    if self.dim() < 2:
        raise RuntimeError("torch.geqrf: input must have at least 2 dimensions.")
    return self.new_empty(self.mT.shape).mT, self.new_empty(*self.shape[:-2], min(self.shape[-2:]))


@planner("geqrf", meta=_qr_meta, exact_out=False)
def _geqrf(p: PlanBuilder, out: tuple[torch.Tensor, torch.Tensor], self: torch.Tensor) -> None:
    _type(self)
    a, tau = _target(p, out[0]), _flat(p, out[1])
    _load(p, a, self)
    _factor_qr(p, a, tau)
    _deliver(p, out[0], a)
    _deliver_flat(p, out[1], tau)


@planner("linalg_qr")
def _linalg_qr(p: PlanBuilder, out: tuple[torch.Tensor, torch.Tensor], A: torch.Tensor, mode: str = "reduced") -> None:
    _type(A)
    to_q, to_r = out
    a = _loaded(p, A)
    batch, m, n = a.shape
    tau = p.empty((batch, min(m, n)), A.dtype)
    _factor_qr(p, a, tau)
    if to_r.numel() > 0:
        p.call_out(aten.triu.default, to_r, _batched(a[:, : to_r.shape[-2]], A))
    if mode != "r" and to_q.numel() > 0:
        q = _target(p, to_q)
        _set_identity(p, q)
        _reflect(p, q, a, tau, adjoint=False)
        _deliver(p, to_q, q)


@planner("linalg_householder_product", exact_out=False)
def _householder_product(p: PlanBuilder, out: torch.Tensor, input: torch.Tensor, tau: torch.Tensor) -> None:
    _type(input)
    q = _target(p, out)
    _set_identity(p, q)
    _reflect(p, q, _read(p, input), p.contiguous(tau).view(q.shape[0], tau.shape[-1]), adjoint=False)
    _deliver(p, out, q)


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
    _type(self)
    # C Q is the same as (Q^H C^H)^H.
    turned, other = (out, input3) if left else (out.mH, input3.mH)
    x = _target(p, turned)
    _load(p, x, other)
    tau = p.contiguous(input2).view(math.prod(self.shape[:-2]), input2.shape[-1])
    _reflect(p, x, _read(p, self), tau, adjoint=transpose == left)
    _deliver(p, turned, x)


# ---- eigenvalues of Hermitian matrices, singular values ----


def _natively(function: Callable[..., Any]) -> Callable[[dict[str, Any], bool], Callable[..., Any] | None]:
    """For `planner(eager=...)` of ops that must look at data: the function where the device's kernels can do its work,
    else torch's CPU."""

    def eager(arguments: dict[str, Any], _: bool) -> Callable[..., Any] | None:
        a = next(value for value in arguments.values() if isinstance(value, torch.Tensor))
        traits = device_traits(a.device.index or 0)
        wide = a.dtype in (torch.float64, torch.complex128)
        narrow = a.dtype in (torch.float32, torch.complex64)
        return function if traits.has_compiler and (narrow or (wide and traits.float64)) else None

    return eager


def _cpu_only(p: PlanBuilder, *_: Any, **__: Any) -> None:
    raise Unsupported(f"{p.op} in this dtype")


def _iterate(
    p: PlanBuilder,
    kernel: Kernel,
    values: torch.Tensor,
    z: torch.Tensor | None,
    info: torch.Tensor,
    diagonal: torch.Tensor,
    beside: torch.Tensor,
    *more: int,
) -> None:
    """Launches `symmetric_kernel` or `singular_kernel` for [batch, n] numbers and vectors [batch, rows, n] or more."""
    batch, n = diagonal.shape
    parts_of = 2 if z is not None and z.is_complex() else 1
    rows = 0 if z is None else z.shape[1] * parts_of
    vectors: list[Any] = [values, 0, 0] if z is None else [z, z.stride(0) * parts_of, z.stride(2) * parts_of]
    teams = _teams(p, batch, 20 * n * n * (1 + rows // 8))
    if p.form == "gpu":
        parts = ceil_div(rows, 4 * kernels.TEAM)
    else:
        parts = 1 if rows * n * n < 200000 else max(1, 2 * p.device.compute_units // teams)
    chunk = max(1, ceil_div(rows, max(1, parts)))
    parts = max(1, ceil_div(rows, chunk))
    scratch = p.empty((teams * parts, 4 * (n + 1)), diagonal.dtype)
    places = p.empty((teams * parts, 2 * n + 2), torch.int32)
    args = [values, *vectors, info, diagonal, beside, scratch, places, *more, n, batch, rows, chunk]
    p.launch(kernel, (teams, parts), args)


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
    a = _loaded(p, A if UPLO.upper() == "L" else A.mH)
    batch, n, _ = a.shape
    real = to_values.dtype
    d, e = p.empty((batch, n), real), p.empty((batch, n), real)
    tau = p.empty((batch, n), A.dtype)
    args = [*_arguments(a), d, e, tau, p.empty((batch, n), A.dtype), n]
    _launch(p, kernels.tridiagonal_kernel(_type(a), p.form), batch, 6 * n**3, args)
    vectors = None
    if compute_v:
        vectors = _target(p, to_vectors)
        _set_identity(p, vectors)
        _reflect(p, vectors[:, 1:, 1:], a[:, 1:], tau[:, : n - 1], adjoint=False)
    kernel = kernels.symmetric_kernel(element_type(real).name, p.form)
    _iterate(p, kernel, to_values, vectors, info, d, e)
    if vectors is not None:
        _deliver(p, to_vectors, vectors)


def _linalg_eigh(A: torch.Tensor, UPLO: str = "L", compute_v: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
    values, vectors, info = torch.ops.torchgraft.eigh(A, UPLO, compute_v)
    aten._linalg_check_errors(info, "linalg.eigh", is_matrix=A.dim() == 2)
    return values, vectors


planner("_linalg_eigh", eager=_natively(_linalg_eigh))(_cpu_only)


def _svd_meta(A: torch.Tensor, full_matrices: bool, compute_uv: bool) -> tuple[torch.Tensor, ...]:
    u, s, vh = aten._linalg_svd(A, full_matrices, compute_uv)
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
    a = _loaded(p, A.mH if wide else A)
    batch, m, n = a.shape
    targets = ((to_vh.mH, to_u) if wide else (to_u, to_vh.mH)) if compute_uv else ()
    if A.numel() == 0:
        for vectors in targets:
            _set_identity(p, vectors)
        return
    type_, real = _type(a), to_s.dtype
    d, e = p.empty((batch, n), real), p.empty((batch, n), real)
    tau, right_tau = p.empty((batch, n), A.dtype), p.empty((batch, n), A.dtype)
    reflectors = _columns(p, batch, n, n, A.dtype)
    work = p.empty((batch, m), A.dtype)
    args = [*_arguments(a), *_arguments(reflectors), d, e, tau, right_tau, work, m, n]
    _launch(p, kernels.bidiagonal_kernel(type_, p.form), batch, 8 * m * n * n, args)
    kernel = kernels.singular_kernel(element_type(real).name, p.form)
    if not targets:
        _iterate(p, kernel, to_s, None, info, d, e, 0)
    for of_right, to_vectors in enumerate(targets):
        vectors = _target(p, to_vectors)
        _set_identity(p, vectors)
        if of_right:
            _reflect(p, vectors[:, 1:, 1:], reflectors[:, 1:], right_tau[:, : n - 1], adjoint=False)
        else:
            _reflect(p, vectors, a, tau, adjoint=False)
        _iterate(p, kernel, to_s, vectors, info, d, e, of_right)
        _deliver(p, to_vectors, vectors)


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


planner("_linalg_svd", eager=_natively(_linalg_svd))(_cpu_only)


# ---- least squares ----

_DRIVERS = ("gels", "gelsy", "gelsd", "gelss")


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


planner("linalg_lstsq", eager=_natively(_least_squares), exact_out=False)(_cpu_only)


# ---- the exponential ----

#: The largest 1-norm for which the Taylor polynomial of degree 18 is exact to rounding: Bader, Blanes, Casas,
#: "Computing the matrix exponential with an optimized Taylor polynomial approximation", Mathematics 7(12), 2019.
_TAYLOR_REACH = {torch.float32: 3.01, torch.float64: 1.09}


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


planner("linalg_matrix_exp", eager=_natively(_matrix_exp))(_cpu_only)
