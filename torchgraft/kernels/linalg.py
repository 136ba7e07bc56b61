"""Factorisations of small matrices and of the panels of large ones, and what is made of them. See `kernels.matrices`
for the notation."""

from __future__ import annotations

from functools import cache
from typing import Literal

from torchgraft.codegen.kernel import Kernel, parameters
from torchgraft.kernels.matrices import MatrixTeam, matrix

# Where a kernel reports what it cannot work with; see PlanBuilder.error.
_ERRORS = "i32* errors; i32 code"


# ---- Cholesky ----


@cache
def cholesky_kernel(type_: str, form: str) -> Kernel:
    """The lower factor of Hermitian matrices of which the lower triangle is read, in place.

    `info[row]`, 0 before, becomes the order of the first leading minor that is not positive, counted from `offset`; a
    matrix that has one already is left alone.
    """
    team = MatrixTeam(type_, form)
    body = f"""
    GLOBAL element* own = a + row * a_batch;
    for (long j = info[row] == 0 ? 0 : n; j < n;) {{
      GLOBAL element *column = own + j * a_ld, *below = column + j + 1;
      const real square = RE(column[j]), root = sqrt(square);
      const bool positive = square > 0;
      const long left = positive ? n - j - 1 : 0;
      {team.sync}
      {team.leader("if (positive) { column[j] = FROM(root); } else { info[row] = (int)(offset + j + 1); }")}
      {team.each("below[c] = below[c] / root;", size="left")}
      {team.sync}
      for (long k = 0; k < left; ++k) {{
        GLOBAL element* from = below + k;
        {team.axpy("left - k", "-CONJ(*from)", "from", "from + (k + 1) * a_ld")}
      }}
      {team.sync}
      j = positive ? j + 1 : n;
    }}
"""
    return team.kernel("cholesky", parameters(f"{matrix('a', type_)}; i32* info; i64 n, offset"), body)


# ---- triangular systems ----


@cache
def triangular_kernel(type_: str, lower: bool, unit: bool, along: Literal["rows", "sides"], form: str) -> Kernel:
    """Solves A X = B for triangular A, in place of B. Right-hand sides are shared out along dimension 1.

    `along` is where X has unit stride, which is where the loops run: "rows", or "sides" for X in row-major order, whose
    `x_ld` is then the distance of rows.
    """
    team = MatrixTeam(type_, form)
    start, stop, step = ("0", "n", "1") if lower else ("n - 1", "-1", "-1")
    begin, end = ("j + 1", "n") if lower else ("0", "j")
    steps = f"for (long j = {start}; j != {stop}; j += {step})"
    if along == "rows":
        divide = f"{team.leader('y[j] = DIV(y[j], own[j + j * a_ld]);')} {team.sync}"
        body = f"""
    for (long k = first; k < last; ++k) {{
      GLOBAL element* y = x + row * x_batch + k * x_ld;
      {steps} {{
        {"" if unit else divide}
        {team.axpy(f"{end} - ({begin})", "-y[j]", f"own + {begin} + j * a_ld", f"y + {begin}")}
        {team.sync}
      }}
    }}
"""
    else:
        divide = team.each("y[j * x_ld + c] = DIV(y[j * x_ld + c], diagonal);", size="last - first")
        body = f"""
    GLOBAL element* y = x + row * x_batch + first;
    {steps} {{
      {"" if unit else f"const element diagonal = own[j + j * a_ld]; {divide}"}
      for (long i = {begin}; i < {end}; ++i)
        {team.axpy("last - first", "-own[i + j * a_ld]", "y + j * x_ld", "y + i * x_ld")}
    }}
"""
    params = parameters(f"{matrix('a', type_, const=True)}; {matrix('x', type_)}; i64 n")
    return team.kernel("solve_triangular", params, "GLOBAL const element* own = a + row * a_batch;", body, dims=2)


# ---- LU ----


@cache
def lu_kernel(type_: str, pivot: bool, form: str) -> Kernel:
    """LU of m x n panels in place, with the largest element of a column as its pivot.

    `pivots` are rows counted from one, and from `offset`; `info[row]`, 0 before, is the first column without a pivot.
    """
    team = MatrixTeam(type_, form)
    swap = """const element kept = own[j + c * a_ld];
          own[j + c * a_ld] = own[at + c * a_ld];
          own[at + c * a_ld] = kept;"""
    keep = """pivots[row * pivots_batch + j] = (int)(offset + at + 1);
        if (IS_ZERO(chosen) && info[row] == 0) info[row] = (int)(offset + j + 1);"""
    choose = f"""
      {team.argmax("further", team.real, "SIZE(column[c])", "m - j")}
      const long at = j + further;
      if (at != j) {team.each(swap, vectorize=False, size="n")}
      {team.sync}"""
    body = f"""
    GLOBAL element* own = a + row * a_batch;
    for (long j = 0; j < min(m, n); ++j) {{
      GLOBAL element* column = own + j + j * a_ld;
      {choose if pivot else "const long at = j;"}
      const element chosen = column[0];
      const long left = m - j - 1, divided = IS_ZERO(chosen) ? 0 : left;
      {team.leader(keep)}
      {team.each("column[1 + c] = DIV(column[1 + c], chosen);", size="divided")}
      {team.sync}
      for (long k = 1; k < n - j; ++k) {team.axpy("left", "-column[k * a_ld]", "column + 1", "column + 1 + k * a_ld")}
      {team.sync}
    }}
"""
    params = parameters(f"{matrix('a', type_)}; i32* pivots; i64 pivots_batch; i32* info; i64 m, n, offset")
    return team.kernel("lu", params, body)


@cache
def swap_kernel(type_: str, backwards: bool, form: str) -> Kernel:
    """Exchanges rows as `n` pivots say, which are counted from one and from `offset`, in order or backwards. Columns
    are shared out along dimension 1. A pivot that is none of the matrix' `height` rows is reported."""
    team = MatrixTeam(type_, form)
    order = "long i = n - 1; i >= 0; --i" if backwards else "long i = 0; i < n; ++i"
    column = f"""GLOBAL element* y = x + row * x_batch + (first + c) * x_ld;
      for ({order}) {{
        const long at = own[i] - 1 - offset;
        if (at < 0 || at >= height) {{ tg_report(errors, code, own[i]); continue; }}
        const element kept = y[i];
        y[i] = y[at];
        y[at] = kept;
      }}"""
    params = parameters(f"const i32* pivots; i64 pivots_batch; {matrix('x', type_)}; i64 n, height, offset; {_ERRORS}")
    own = "GLOBAL const int* own = pivots + row * pivots_batch;"
    return team.kernel("swap_rows", params, own, team.each(column, vectorize=False, size="last - first"), dims=2)


@cache
def permutation_kernel(type_: str, form: str) -> Kernel:
    """Permutation matrices of order m from `k` pivots, into zeros: P L U is what was factored. `order` has m places for
    each matrix."""
    team = MatrixTeam(type_, form)
    permute = """
      for (long i = 0; i < m; ++i) own[i] = (int)i;
      for (long i = 0; i < k; ++i) {
        const long at = pivots[row * pivots_batch + i] - 1;
        if (at < 0 || at >= m) { tg_report(errors, code, at + 1); continue; }
        const int kept = own[i];
        own[i] = own[at];
        own[at] = kept;
      }
"""
    params = parameters(f"{matrix('a', type_)}; const i32* pivots; i64 pivots_batch; i32* order; i64 m, k; {_ERRORS}")
    ones = team.each("a[row * a_batch + own[c] + c * a_ld] = FROM(1);", vectorize=False, size="m")
    own = "GLOBAL int* own = order + row * m;"
    return team.kernel("permutation", params, own, team.leader(permute), team.sync, ones)


@cache
def determinant_kernel(type_: str, form: str) -> Kernel:
    """Determinants of factored matrices: `sign` times the exponential of `logarithm`, or all in `sign` if there is no
    `logarithm`."""
    team = MatrixTeam(type_, form)
    body = """
      GLOBAL const element* own = a + row * a_batch;
      element product = FROM(1);
      real sum = 0;
      for (long i = 0; i < n; ++i) {
        element x = own[i + i * a_ld];
        if (pivots[row * n + i] != i + 1) x = -x;
        if (logarithm) {
          const real magnitude = MAGNITUDE(x);
          sum += log(magnitude);
          x = IS_ZERO(x) ? x : x / magnitude;
        }
        product = MUL(product, x);
      }
      sign[row] = product;
      if (logarithm) logarithm[row] = sum;
"""
    params = parameters(
        f"{type_}* sign; {team.real}* logarithm; {matrix('a', type_, const=True)}; const i32* pivots; i64 n"
    )
    return team.kernel("determinant", params, team.leader(body))


# ---- orthogonal factorisations ----


@cache
def qr_kernel(type_: str, form: str) -> Kernel:
    """QR of m x n panels in place, as LAPACK's geqrf leaves it: R above the diagonal, below it the vectors of the
    reflectors of Q, their factors in `tau`."""
    team = MatrixTeam(type_, form)
    body = f"""
    for (long j = 0; j < min(m, n); ++j) {{
      GLOBAL element* column = a + row * a_batch + j + j * a_ld;
      {team.reflector("factor", "m - j", "column")}
      {team.leader("tau[row * tau_batch + j] = factor;")}
      for (long k = 1; k < n - j; ++k) {team.reflect("m - j", "column", "CONJ(factor)", "column + k * a_ld")}
      {team.sync}
    }}
"""
    return team.kernel("qr", parameters(f"{matrix('a', type_)}; {type_}* tau; i64 tau_batch, m, n"), body)


@cache
def reflect_kernel(type_: str, adjoint: bool, form: str) -> Kernel:
    """X = Q X or Q^H X, Q being the product of `k` reflectors of m rows in `a` and `tau`. Columns are shared out along
    dimension 1."""
    team = MatrixTeam(type_, form)
    order = "long j = 0; j < k; ++j" if adjoint else "long j = k - 1; j >= 0; --j"
    factor = "CONJ(own_tau[j])" if adjoint else "own_tau[j]"
    body = f"""
    GLOBAL const element *own = a + row * a_batch, *own_tau = tau + row * tau_batch;
    for (long i = first; i < last; ++i) {{
      GLOBAL element* y = x + row * x_batch + i * x_ld;
      for ({order}) {{
        {team.reflect("m - j", "own + j + j * a_ld", factor, "y + j")}
        {team.sync}
      }}
    }}
"""
    params = parameters(
        f"{matrix('a', type_, const=True)}; const {type_}* tau; i64 tau_batch; {matrix('x', type_)}; i64 m, k"
    )
    return team.kernel("reflect_columns", params, body, dims=2)
