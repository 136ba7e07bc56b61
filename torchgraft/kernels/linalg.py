"""Dense linear algebra on batches of small matrices and on the panels of large ones.

One text serves real and complex elements and both kernel forms. A *team* works on a matrix: one work-item on a CPU, a
work-group on a GPU. Every member runs the same control flow on the same numbers; what is shared out is the inner loops
over a column (`EACH`, and the level-1 operations `axpy`, `dot`, `norm` below), and `SYNC` stands wherever a member may
read what another has written, or write what another may still read. Matrices lie in column-major order with unit stride
along a column: element (i, j) of `a` is `a[i + j * a_ld]`, and matrix `b` of a batch starts at `a + b * a_batch`.

`element` is the element type, `real` that of its parts, and `MUL`, `DIV`, `CONJ`, ... are spelled for either.
"""

from __future__ import annotations

from functools import cache
from typing import Literal

from torchgraft.codegen.kernel import Kernel, Parameter, Pointer, Value
from torchgraft.codegen.types import BY_NAME

#: Work-items of a team on a GPU.
TEAM = 64

TYPES = ("f32", "f64", "c64", "c128")


def real_type(type_: str) -> str:
    """The element type of a number's parts."""
    return {"c64": "f32", "c128": "f64"}.get(type_, type_)


_REAL_ALGEBRA = """
#define MUL(a, b) ((a) * (b))
#define DIV(a, b) ((a) / (b))
#define CONJ(a) (a)
#define RE(a) (a)
#define IM(a) ((real)0)
#define PARTS 1
#define FROM(r) ((element)(r))
#define MAGNITUDE(a) fabs(a)
#define SIZE(a) fabs(a)
#define SQUARE(a) ((a) * (a))
#define IS_ZERO(a) ((a) == 0)
"""

# SIZE is LAPACK's measure of a pivot, so that pivots are the CPU's.
_COMPLEX_ALGEBRA = """
#define MUL(a, b) tg_mul_{type}(a, b)
#define DIV(a, b) tg_div_{type}(a, b)
#define CONJ(a) tg_conj_{type}(a)
#define RE(a) ((a).x)
#define IM(a) ((a).y)
#define PARTS 2
#define PAIR(u, v) MAKE_{pair}(u, v)
#define FROM(r) PAIR(r, 0)
#define MAGNITUDE(a) tg_abs_{type}(a)
#define SIZE(a) (fabs((a).x) + fabs((a).y))
#define SQUARE(a) ((a).x * (a).x + (a).y * (a).y)
#define IS_ZERO(a) ((a).x == 0 && (a).y == 0)
"""

_LONE = """
#define LEADER
#define SYNC
#define EACH(i, begin, end) VECTORIZE for (long i = (begin); i < (end); ++i)
#define ONE_BY_ONE(i, begin, end) for (long i = (begin); i < (end); ++i)
#define SCRATCH
#define SHARED
#define TEAM_SUM(x)
#define TEAM_REAL_SUM(x)
#define TEAM_MAX(x)
#define TEAM_FIRST_LARGEST(x, at)
"""

# Members' partial results meet in local memory, where each member goes through all of them: two barriers and no loop
# around any, of which compilers for CPUs make very much code. The last one lets the next meeting use the place again.
_GROUP = """
#define LEADER if (LOCAL_ID(0) == 0)
#define SYNC BARRIER
#define EACH(i, begin, end) for (long i = (begin) + LOCAL_ID(0); i < (end); i += {team})
#define ONE_BY_ONE EACH
#define SCRATCH , LOCAL element* team, LOCAL real* team_real
#define SHARED , team, team_real
#define TEAM_FOLD(array, x, fold) {{ \\
    array[LOCAL_ID(0)] = x; \\
    BARRIER; \\
    x = array[0]; \\
    for (int member = 1; member < {team}; ++member) {{ fold; }} \\
    BARRIER; \\
  }}
#define TEAM_SUM(x) TEAM_FOLD(team, x, x += team[member])
#define TEAM_REAL_SUM(x) TEAM_FOLD(team_real, x, x += team_real[member])
#define TEAM_MAX(x) TEAM_FOLD(team_real, x, x = larger(x, team_real[member]))
#define TEAM_FIRST_LARGEST(x, at) {{ \\
    team_index[LOCAL_ID(0)] = at; \\
    team_real[LOCAL_ID(0)] = x; \\
    BARRIER; \\
    x = team_real[0]; \\
    at = team_index[0]; \\
    for (int member = 1; member < {team}; ++member) \\
      if (team_real[member] > x || (team_real[member] == x && team_index[member] < at)) {{ \\
        x = team_real[member]; \\
        at = team_index[member]; \\
      }} \\
    BARRIER; \\
  }}
"""

_MEETING_PLACE = f"""
  LOCAL element team[{TEAM}];
  LOCAL real team_real[{TEAM}];
  LOCAL long team_index[{TEAM}];
"""

# Loops over parts, which compilers make vectors of as they do not of loops over complex numbers.
_COMPLEX_LEVEL_1 = """
inline void axpy(long n, element f, GLOBAL const element* x, GLOBAL element* y) {
  GLOBAL const real* from = (GLOBAL const real*)x;
  GLOBAL real* to = (GLOBAL real*)y;
  EACH(i, 0, n) {
    const real u = from[2 * i], v = from[2 * i + 1];
    to[2 * i] += f.x * u - f.y * v;
    to[2 * i + 1] += f.x * v + f.y * u;
  }
}
inline element dot(long n, GLOBAL const element* x, GLOBAL const element* y SCRATCH) {
  GLOBAL const real *a = (GLOBAL const real*)x, *b = (GLOBAL const real*)y;
  real u = 0, v = 0;
  EACH(i, 0, n) {
    u += a[2 * i] * b[2 * i] + a[2 * i + 1] * b[2 * i + 1];
    v += a[2 * i] * b[2 * i + 1] - a[2 * i + 1] * b[2 * i];
  }
  element sum = PAIR(u, v);
  TEAM_SUM(sum);
  return sum;
}
"""

_REAL_LEVEL_1 = """
inline void axpy(long n, element f, GLOBAL const element* x, GLOBAL element* y) {
  EACH(i, 0, n) y[i] += f * x[i];
}
inline element dot(long n, GLOBAL const element* x, GLOBAL const element* y SCRATCH) {
  element sum = 0;
  EACH(i, 0, n) sum += x[i] * y[i];
  TEAM_SUM(sum);
  return sum;
}
"""


# A NaN wins.
_LARGER = """
inline real larger(real a, real b) { return b > a || b != b ? b : a; }
"""

# Scaled by a power of two, so that no square overflows or vanishes.
_NORM = """
inline real norm(long n, GLOBAL const element* x SCRATCH) {
  GLOBAL const real* part = (GLOBAL const real*)x;
  real most = 0;
  EACH(i, 0, PARTS * n) most = larger(most, fabs(part[i]));
  TEAM_MAX(most);
  if (most == 0 || !(most < INFINITY)) return most;
  const int exponent = clamp(ilogb(most), -120, 120);
  const real scale = ldexp((real)1, -exponent);
  real sum = 0;
  EACH(i, 0, PARTS * n) sum += part[i] * scale * (part[i] * scale);
  TEAM_REAL_SUM(sum);
  return ldexp(sqrt(sum), exponent);
}
"""

# As LAPACK's larfg and larf, whose signs these are.
_REFLECTORS = """
inline element reflector(long n, GLOBAL element* x SCRATCH) {
  const element head = x[0];
  const real rest = norm(n - 1, x + 1 SHARED);
  if (rest == 0 && IM(head) == 0) return FROM(0);
  const real length = -copysign(hypot(MAGNITUDE(head), rest), RE(head));
  const element scale = DIV(FROM(1), head - FROM(length));
  SYNC;
  LEADER x[0] = FROM(length);
  EACH(i, 1, n) x[i] = MUL(x[i], scale);
  SYNC;
  return (FROM(length) - head) / length;
}
inline void reflect(long n, GLOBAL const element* v, element tau, GLOBAL element* x SCRATCH) {
  const element head = x[0];
  const element along = MUL(tau, head + dot(n - 1, v + 1, x + 1 SHARED));
  LEADER x[0] = head - along;
  axpy(n - 1, -along, v + 1, x + 1);
}
"""


def _level_1(type_: str, form: str) -> str:
    """What matrix kernels are made of.

    `axpy(n, f, x, y)`: y += f x. `dot(n, x, y SHARED)`: the sum of conj(x) y, `norm(n, x SHARED)`: the root of the sum
    of squares, which all members get. `reflector(n, x SHARED)`: finds H = I - tau v v^H, v[0] being 1, for which H^H x
    is a real multiple of the first unit vector; leaves that in x[0] and the rest of v behind it, and returns tau.
    `reflect(n, v, tau, x SHARED)`: x -= tau v (v^H x).
    """
    is_complex = BY_NAME[type_].is_complex
    algebra = _COMPLEX_ALGEBRA.format(type=type_, pair=BY_NAME[type_].storage) if is_complex else _REAL_ALGEBRA
    types = f"typedef {BY_NAME[type_].storage} element;\ntypedef {BY_NAME[real_type(type_)].storage} real;"
    team = _GROUP.format(team=TEAM) if form == "gpu" else _LONE
    return types + algebra + _LARGER + team + (_COMPLEX_LEVEL_1 if is_complex else _REAL_LEVEL_1) + _NORM + _REFLECTORS


def _matrix(name: str, type_: str, const: bool = False) -> tuple[Parameter, ...]:
    return (Pointer(name, type_, const=const), Value(f"{name}_batch", "i64"), Value(f"{name}_ld", "i64"))


def _sizes(*names: str) -> tuple[Parameter, ...]:
    return tuple(Value(name, "i64") for name in names)


# Where a kernel reports what it cannot work with; see PlanBuilder.error.
_ERRORS = (Pointer("errors", "i32"), Value("code", "i32"))


def _kernel(
    name: str, type_: str, form: str, params: tuple[Parameter, ...], body: str, more: str = "", parts: bool = False
) -> Kernel:
    """A kernel whose body is done for each matrix `b` of `batch`, by teams that take turns.

    With `parts` dimension 1 of the grid shares out `count` columns or rows of a matrix: the body's are from `first` to
    `last`, at most `chunk` of them.
    """
    head = _MEETING_PLACE if form == "gpu" else ""
    own: tuple[Parameter, ...] = _sizes("batch")
    if parts:
        own += _sizes("count", "chunk")
        head += "  const long first = GROUP_ID(1) * chunk, last = count - first < chunk ? count : first + chunk;\n"
    text = f"{head}  for (long b = GROUP_ID(0); b < batch; b += NUM_GROUPS(0)) {{{body}  }}"
    size = TEAM if form == "gpu" else 1
    local = (size, 1) if parts else (size,)
    return Kernel(name, (*params, *own), text, helpers=_level_1(type_, form) + more, local=local)


# ---- Cholesky ----


@cache
def cholesky_kernel(type_: str, form: str) -> Kernel:
    """The lower factor of Hermitian matrices of which the lower triangle is read, in place.

    `info[b]`, 0 before, becomes the order of the first leading minor that is not positive, counted from `offset`; a
    matrix that has one already is left alone.
    """
    body = """
    if (info[b] != 0) continue;
    GLOBAL element* own = a + b * a_batch;
    for (long j = 0; j < n; ++j) {
      GLOBAL element* column = own + j * a_ld;
      const real square = RE(column[j]);
      SYNC;
      if (!(square > 0)) {
        LEADER info[b] = offset + j + 1;
        break;
      }
      const real root = sqrt(square);
      LEADER column[j] = FROM(root);
      EACH(i, j + 1, n) column[i] = column[i] / root;
      SYNC;
      for (long c = j + 1; c < n; ++c) axpy(n - c, -CONJ(column[c]), column + c, own + c + c * a_ld);
      SYNC;
    }
"""
    params = (*_matrix("a", type_), Pointer("info", "i32"), *_sizes("n", "offset"))
    return _kernel("cholesky", type_, form, params, body)


# ---- triangular systems ----


@cache
def triangular_kernel(type_: str, lower: bool, unit: bool, along: Literal["rows", "sides"], form: str) -> Kernel:
    """Solves A X = B for triangular A, in place of B. Right-hand sides are shared out along dimension 1.

    `along` is where X has unit stride, which is where the loops run: "rows", or "sides" for X in row-major order, whose
    `x_ld` is then the distance of rows.
    """
    order = "0, n, 1" if lower else "n - 1, -1, -1"
    start, stop, step = order.split(", ")
    begin, end = ("j + 1", "n") if lower else ("0", "j")
    sides = f"for (long j = {start}; j != {stop}; j += {step})"
    if along == "rows":
        divide = "LEADER y[j] = DIV(y[j], own[j + j * a_ld]); SYNC;"
        body = f"""
    GLOBAL const element* own = a + b * a_batch;
    for (long c = first; c < last; ++c) {{
      GLOBAL element* y = x + b * x_batch + c * x_ld;
      {sides} {{
        {"" if unit else divide}
        axpy({end} - ({begin}), -y[j], own + {begin} + j * a_ld, y + {begin});
        SYNC;
      }}
    }}
"""
    else:
        divide = "EACH(c, 0, last - first) y[j * x_ld + c] = DIV(y[j * x_ld + c], diagonal);"
        body = f"""
    GLOBAL const element* own = a + b * a_batch;
    GLOBAL element* y = x + b * x_batch + first;
    {sides} {{
      {"" if unit else f"const element diagonal = own[j + j * a_ld]; {divide}"}
      for (long i = {begin}; i < {end}; ++i) axpy(last - first, -own[i + j * a_ld], y + j * x_ld, y + i * x_ld);
    }}
"""
    params = (*_matrix("a", type_, const=True), *_matrix("x", type_), *_sizes("n"))
    return _kernel("solve_triangular", type_, form, params, body, parts=True)


# ---- LU ----


@cache
def lu_kernel(type_: str, pivot: bool, form: str) -> Kernel:
    """LU of m x n panels in place, with the largest element of a column as its pivot.

    `pivots` are rows counted from one, and from `offset`; `info[b]`, 0 before, is the first column without a pivot.
    """
    choose = """
      real best = -1;
      ONE_BY_ONE(i, j, m) {
        const real size = SIZE(column[i]);
        if (size > best) { best = size; at = i; }
      }
      TEAM_FIRST_LARGEST(best, at);
      if (at != j) {
        ONE_BY_ONE(c, 0, n) {
          const element kept = own[j + c * a_ld];
          own[j + c * a_ld] = own[at + c * a_ld];
          own[at + c * a_ld] = kept;
        }
        SYNC;
      }"""
    body = f"""
    GLOBAL element* own = a + b * a_batch;
    const long steps = m < n ? m : n;
    for (long j = 0; j < steps; ++j) {{
      GLOBAL element* column = own + j * a_ld;
      long at = j;{choose if pivot else ""}
      LEADER pivots[b * pivots_batch + j] = (int)(offset + at + 1);
      const element chosen = column[j];
      if (IS_ZERO(chosen)) {{
        LEADER if (info[b] == 0) info[b] = (int)(offset + j + 1);
      }} else {{
        EACH(i, j + 1, m) column[i] = DIV(column[i], chosen);
      }}
      SYNC;
      for (long c = j + 1; c < n; ++c) axpy(m - j - 1, -own[j + c * a_ld], column + j + 1, own + j + 1 + c * a_ld);
      SYNC;
    }}
"""
    params = (
        *_matrix("a", type_),
        Pointer("pivots", "i32"),
        Value("pivots_batch", "i64"),
        Pointer("info", "i32"),
        *_sizes("m", "n", "offset"),
    )
    return _kernel("lu", type_, form, params, body)


@cache
def swap_kernel(type_: str, backwards: bool, form: str) -> Kernel:
    """Exchanges rows as `n` pivots say, which are counted from one and from `offset`, in order or backwards. Columns
    are shared out along dimension 1. A pivot that is none of the `rows` is reported."""
    order = "long i = n - 1; i >= 0; --i" if backwards else "long i = 0; i < n; ++i"
    body = f"""
    GLOBAL const int* own = pivots + b * pivots_batch;
    ONE_BY_ONE(c, first, last) {{
      GLOBAL element* y = x + b * x_batch + c * x_ld;
      for ({order}) {{
        const long at = own[i] - 1 - offset;
        if (at < 0 || at >= rows) {{ tg_report(errors, code, own[i]); continue; }}
        const element kept = y[i];
        y[i] = y[at];
        y[at] = kept;
      }}
    }}
"""
    params = (
        Pointer("pivots", "i32", const=True),
        Value("pivots_batch", "i64"),
        *_matrix("x", type_),
        *_sizes("n", "rows", "offset"),
        *_ERRORS,
    )
    return _kernel("swap_rows", type_, form, params, body, parts=True)


@cache
def permutation_kernel(type_: str, form: str) -> Kernel:
    """Permutation matrices of order m from `k` pivots, into zeros: P L U is what was factored. `order` has m places for
    each matrix."""
    body = """
    GLOBAL int* own = order + b * m;
    LEADER {
      for (long i = 0; i < m; ++i) own[i] = (int)i;
      for (long i = 0; i < k; ++i) {
        const long at = pivots[b * pivots_batch + i] - 1;
        if (at < 0 || at >= m) { tg_report(errors, code, at + 1); continue; }
        const int kept = own[i];
        own[i] = own[at];
        own[at] = kept;
      }
    }
    SYNC;
    ONE_BY_ONE(i, 0, m) a[b * a_batch + own[i] + i * a_ld] = FROM(1);
"""
    params = (
        *_matrix("a", type_),
        Pointer("pivots", "i32", const=True),
        Value("pivots_batch", "i64"),
        Pointer("order", "i32"),
        *_sizes("m", "k"),
        *_ERRORS,
    )
    return _kernel("permutation", type_, form, params, body)


@cache
def determinant_kernel(type_: str, form: str) -> Kernel:
    """Determinants of factored matrices: `sign[b]` times the exponential of `logarithm[b]`, or all in `sign` if there
    is no `logarithm`."""
    body = """
    GLOBAL const element* own = a + b * a_batch;
    LEADER {
      element product = FROM(1);
      real sum = 0;
      for (long i = 0; i < n; ++i) {
        element x = own[i + i * a_ld];
        if (pivots[b * n + i] != i + 1) x = -x;
        if (logarithm) {
          const real size = MAGNITUDE(x);
          sum += log(size);
          x = IS_ZERO(x) ? x : x / size;
        }
        product = MUL(product, x);
      }
      sign[b] = product;
      if (logarithm) logarithm[b] = sum;
    }
"""
    params = (
        Pointer("sign", type_),
        Pointer("logarithm", real_type(type_)),
        *_matrix("a", type_, const=True),
        Pointer("pivots", "i32", const=True),
        *_sizes("n"),
    )
    return _kernel("determinant", type_, form, params, body)


# ---- orthogonal factorisations ----


@cache
def qr_kernel(type_: str, form: str) -> Kernel:
    """QR of m x n panels in place, as LAPACK's geqrf leaves it: R above the diagonal, below it the vectors of the
    reflectors of Q, their factors in `tau`."""
    body = """
    GLOBAL element* own = a + b * a_batch;
    const long steps = m < n ? m : n;
    for (long j = 0; j < steps; ++j) {
      GLOBAL element* column = own + j + j * a_ld;
      const element factor = reflector(m - j, column SHARED);
      LEADER tau[b * tau_batch + j] = factor;
      for (long c = j + 1; c < n; ++c) reflect(m - j, column, CONJ(factor), own + j + c * a_ld SHARED);
      SYNC;
    }
"""
    params = (*_matrix("a", type_), Pointer("tau", type_), Value("tau_batch", "i64"), *_sizes("m", "n"))
    return _kernel("qr", type_, form, params, body)


@cache
def reflect_kernel(type_: str, adjoint: bool, form: str) -> Kernel:
    """X = Q X or Q^H X, Q being the product of `k` reflectors of m rows in `a` and `tau`. Columns are shared out along
    dimension 1."""
    order = "long j = 0; j < k; ++j" if adjoint else "long j = k - 1; j >= 0; --j"
    factor = "CONJ(own_tau[j])" if adjoint else "own_tau[j]"
    body = f"""
    GLOBAL const element *own = a + b * a_batch, *own_tau = tau + b * tau_batch;
    for (long c = first; c < last; ++c) {{
      GLOBAL element* y = x + b * x_batch + c * x_ld;
      for ({order}) {{
        reflect(m - j, own + j + j * a_ld, {factor}, y + j SHARED);
        SYNC;
      }}
    }}
"""
    params = (
        *_matrix("a", type_, const=True),
        Pointer("tau", type_, const=True),
        Value("tau_batch", "i64"),
        *_matrix("x", type_),
        *_sizes("m", "k"),
    )
    return _kernel("reflect_columns", type_, form, params, body, parts=True)


@cache
def tridiagonal_kernel(type_: str, form: str) -> Kernel:
    """Reduces Hermitian matrices, of which the lower triangle is read, to tridiagonal ones: diagonal `d`, below it `e`.

    Q, for which Q^H A Q is tridiagonal, is made of the reflectors left below the first subdiagonal of `a`, which start
    one row below their column. `work` has n elements for each matrix. Golub and Van Loan, "Matrix Computations", 8.3.1.
    """
    body = """
    GLOBAL element* own = a + b * a_batch;
    GLOBAL element* w = work + b * n;
    ONE_BY_ONE(c, 0, n) {
      own[c + c * a_ld] = FROM(RE(own[c + c * a_ld]));
      for (long i = c + 1; i < n; ++i) own[c + i * a_ld] = CONJ(own[i + c * a_ld]);
    }
    SYNC;
    for (long j = 0; j < n; ++j) {
      LEADER d[b * n + j] = RE(own[j + j * a_ld]);
      if (j == n - 1) {
        LEADER e[b * n + j] = 0;
        break;
      }
      const long rows = n - j - 1;
      GLOBAL element* v = own + j + 1 + j * a_ld;
      GLOBAL element* rest = v + a_ld;
      const element factor = reflector(rows, v SHARED);
      LEADER {
        tau[b * n + j] = factor;
        e[b * n + j] = RE(v[0]);
        v[0] = FROM(1);
      }
      ONE_BY_ONE(i, 0, rows) w[i] = FROM(0);
      SYNC;
      for (long c = 0; c < rows; ++c) axpy(rows, MUL(factor, v[c]), rest + c * a_ld, w);
      SYNC;
      const element correction = MUL(FROM((real)-0.5), MUL(factor, dot(rows, w, v SHARED)));
      axpy(rows, correction, v, w);
      SYNC;
      for (long c = 0; c < rows; ++c) {
        axpy(rows, -CONJ(w[c]), v, rest + c * a_ld);
        axpy(rows, -CONJ(v[c]), w, rest + c * a_ld);
      }
      SYNC;
    }
"""
    real = real_type(type_)
    params = (
        *_matrix("a", type_),
        Pointer("d", real),
        Pointer("e", real),
        Pointer("tau", type_),
        Pointer("work", type_),
        *_sizes("n"),
    )
    return _kernel("tridiagonal", type_, form, params, body)


@cache
def bidiagonal_kernel(type_: str, form: str) -> Kernel:
    """Reduces matrices with m >= n to upper bidiagonal ones Q^H A P: diagonal `d`, above it `e`.

    Q is made of the reflectors below the diagonal of `a`, P of those in the columns of `right` (n x n), which start one
    row below their column. `work` has m elements for each matrix. Golub and Van Loan, "Matrix Computations", 5.4.8.
    """
    body = """
    GLOBAL element* own = a + b * a_batch;
    GLOBAL element* w = work + b * m;
    for (long j = 0; j < n; ++j) {
      GLOBAL element* column = own + j + j * a_ld;
      const element factor = reflector(m - j, column SHARED);
      LEADER {
        tau[b * n + j] = factor;
        d[b * n + j] = RE(column[0]);
      }
      for (long c = j + 1; c < n; ++c) reflect(m - j, column, CONJ(factor), own + j + c * a_ld SHARED);
      SYNC;
      if (j == n - 1) {
        LEADER e[b * n + j] = 0;
        break;
      }
      const long columns = n - j - 1, rows = m - j - 1;
      GLOBAL element* v = right + b * right_batch + j + 1 + j * right_ld;
      GLOBAL element* rest = own + j + 1 + (j + 1) * a_ld;
      ONE_BY_ONE(c, 0, columns) v[c] = CONJ(rest[c * a_ld - 1]);
      SYNC;
      const element other = reflector(columns, v SHARED);
      LEADER {
        right_tau[b * n + j] = other;
        e[b * n + j] = RE(v[0]);
        v[0] = FROM(1);
      }
      ONE_BY_ONE(i, 0, rows) w[i] = FROM(0);
      SYNC;
      for (long c = 0; c < columns; ++c) axpy(rows, MUL(other, v[c]), rest + c * a_ld, w);
      for (long c = 0; c < columns; ++c) axpy(rows, -CONJ(v[c]), w, rest + c * a_ld);
      SYNC;
    }
"""
    real = real_type(type_)
    params = (
        *_matrix("a", type_),
        *_matrix("right", type_),
        Pointer("d", real),
        Pointer("e", real),
        Pointer("tau", type_),
        Pointer("right_tau", type_),
        Pointer("work", type_),
        *_sizes("m", "n"),
    )
    return _kernel("bidiagonal", type_, form, params, body)


# ---- iterations on tridiagonal and bidiagonal matrices ----

# What both share. The leader works on the few numbers of the small matrix; each of its steps leaves plane rotations,
# which all members then apply to their own rows of the vectors `z`. Groups that have other rows of the same matrix
# repeat the leader's work rather than wait for it. `info` is what the leader leaves in `failure`.
_ITERATION = """
    GLOBAL real* d = scratch + (GROUP_ID(0) * NUM_GROUPS(1) + GROUP_ID(1)) * 4 * (n + 1);
    GLOBAL real *e = d + n + 1, *cosines = e + n + 1, *sines = cosines + n + 1;
    GLOBAL int* state = places + (GROUP_ID(0) * NUM_GROUPS(1) + GROUP_ID(1)) * (2 * n + 2);
    GLOBAL int *left = state + 2, *right = left + n;
    GLOBAL real* own = z + b * z_batch;
    EACH(i, 0, n) {{ d[i] = diagonal[b * n + i]; e[i] = beside[b * n + i]; }}
    SYNC;
    int failure = 0;
    {begin}
    while (true) {{
      LEADER {{
        int count = 0;
        {step}
        state[0] = count;
        state[1] = failure;
      }}
      SYNC;
      const int count = state[0];
      if (count < 0) break;
      for (int t = 0; t < count; ++t) {{
        const real c = cosines[t], s = sines[t];
        GLOBAL real *x = own + left[t] * z_ld, *y = own + right[t] * z_ld;
        EACH(i, first, last) {{
          const real u = x[i], v = y[i];
          x[i] = c * u + s * v;
          y[i] = c * v - s * u;
        }}
      }}
      SYNC;
    }}
    {finish}
    for (long i = 0; i + 1 < n; ++i) {{
      long at = i;
      for (long k = i + 1; k < n; ++k) if (d[k] {order} d[at]) at = k;
      SYNC;
      if (at != i) {{
        LEADER {{ const real kept = d[i]; d[i] = d[at]; d[at] = kept; }}
        GLOBAL real *x = own + i * z_ld, *y = own + at * z_ld;
        EACH(k, first, last) {{ const real kept = x[k]; x[k] = y[k]; y[k] = kept; }}
        SYNC;
      }}
    }}
    if (GROUP_ID(1) == 0) {{
      EACH(i, 0, n) values[b * n + i] = d[i];
      LEADER info[b] = state[1];
    }}
    SYNC;
"""

_ROTATION = """
inline real rotation(real f, real g, real* c, real* s) {
  const real r = hypot(f, g);
  *c = r == 0 ? 1 : f / r;
  *s = r == 0 ? 0 : g / r;
  return r;
}
"""

#: Sweeps allowed for each value.
_SWEEPS = 60

_EPSILON = {"f32": "1.1920929e-7f", "f64": "2.220446049250313e-16"}
_TINY = {"f32": "1.1754944e-38f", "f64": "2.2250738585072014e-308"}


def _iteration_kernel(
    name: str, type_: str, form: str, begin: str, step: str, finish: str, order: str, more: tuple[Parameter, ...] = ()
) -> Kernel:
    body = _ITERATION.format(begin=begin, step=step, finish=finish, order=order)
    params = (
        Pointer("values", type_),
        *_matrix("z", type_),
        Pointer("info", "i32"),
        Pointer("diagonal", type_, const=True),
        Pointer("beside", type_, const=True),
        Pointer("scratch", type_),
        Pointer("places", "i32"),
        *more,
        *_sizes("n"),
    )
    return _kernel(name, type_, form, params, body, more=_ROTATION, parts=True)


@cache
def symmetric_kernel(type_: str, form: str) -> Kernel:
    """Eigenvalues of symmetric tridiagonal matrices in ascending order; `z` is multiplied by the eigenvectors.

    Implicit QL: Golub and Van Loan, "Matrix Computations", 8.3.3, from the other end; as EISPACK's tql2. `z` is real,
    or the parts of complex vectors; its rows are shared out along dimension 1. Each group has 4 (n + 1) reals of
    `scratch` and 2 n + 2 `places`. `info` is the number of a value that was not found.
    """
    step = f"""
        while (l < n && failure == 0) {{
          long m = l;
          while (m + 1 < n && !(fabs(e[m]) <= {_EPSILON[type_]} * (fabs(d[m]) + fabs(d[m + 1])))) ++m;
          if (m == l) {{ ++l; sweeps = 0; continue; }}
          if (++sweeps > {_SWEEPS}) {{ failure = (int)l + 1; break; }}
          real g = (d[l + 1] - d[l]) / (2 * e[l]);
          real r = hypot(g, (real)1);
          g = d[m] - d[l] + e[l] / (g + copysign(r, g));
          real s = 1, c = 1, p = 0;
          long i = m - 1;
          for (; i >= l; --i) {{
            const real f = s * e[i], h = c * e[i];
            r = rotation(g, f, &c, &s);
            e[i + 1] = r;
            if (r == 0) {{ d[i + 1] -= p; e[m] = 0; break; }}
            g = d[i + 1] - p;
            r = (d[i] - g) * s + 2 * c * h;
            p = s * r;
            d[i + 1] = g + p;
            g = c * r - h;
            cosines[count] = c;
            sines[count] = s;
            left[count] = (int)i + 1;
            right[count++] = (int)i;
          }}
          if (i < l) {{ d[l] -= p; e[l] = g; e[m] = 0; }}
          break;
        }}
        if (l >= n || failure != 0) count = -1;"""
    return _iteration_kernel("symmetric_ql", type_, form, "long l = 0; int sweeps = 0;", step, "", "<")


@cache
def singular_kernel(type_: str, form: str) -> Kernel:
    """Singular values of upper bidiagonal matrices in descending order; `z` is multiplied by the left singular vectors,
    or by the right ones where `of_right` is not 0.

    Implicit QR with what splits off at small elements: Golub and Van Loan, "Matrix Computations", 8.6.2. For the rest
    see `symmetric_kernel`; `info` is -4 where there are elements that are not finite, as LAPACK's gesdd says.
    """
    begin = f"""
    long p = n;
    int sweeps = 0;
    const real eps = {_EPSILON[type_]}, tiny = {_TINY[type_]};
    for (long i = 0; i < n; ++i) if (!(fabs(d[i]) < INFINITY && fabs(e[i]) < INFINITY)) failure = -4;"""

    def note(for_right: bool, left: str, right: str) -> str:
        return (
            f"if ({'' if for_right else '!'}of_right) {{ cosines[count] = c; sines[count] = s; "
            f"left[count] = (int)({left}); right[count++] = (int)({right}); }}"
        )

    step = f"""
        while (p > 0 && failure == 0) {{
          long k = p - 2;
          for (; k >= 0; --k) if (fabs(e[k]) <= tiny + eps * (fabs(d[k]) + fabs(d[k + 1]))) {{ e[k] = 0; break; }}
          if (k == p - 2) {{ --p; sweeps = 0; continue; }}
          if (++sweeps > {_SWEEPS}) {{ failure = (int)p; break; }}
          long zero = p - 1;
          for (; zero > k; --zero) {{
            const real near = (zero < p - 1 ? fabs(e[zero]) : 0) + (zero > k + 1 ? fabs(e[zero - 1]) : 0);
            if (fabs(d[zero]) <= tiny + eps * near) {{ d[zero] = 0; break; }}
          }}
          real c, s;
          if (zero == p - 1) {{
            real f = e[p - 2];
            e[p - 2] = 0;
            for (long j = p - 2; j > k; --j) {{
              d[j] = rotation(d[j], f, &c, &s);
              if (j > k + 1) {{ f = -s * e[j - 1]; e[j - 1] = c * e[j - 1]; }}
              {note(True, "j", "p - 1")}
            }}
          }} else if (zero > k) {{
            real f = e[zero];
            e[zero] = 0;
            for (long j = zero + 1; j < p; ++j) {{
              d[j] = rotation(d[j], f, &c, &s);
              f = -s * e[j];
              e[j] = c * e[j];
              {note(False, "j", "zero")}
            }}
          }} else {{
            const long start = k + 1;
            real most = fmax(fmax(fabs(d[p - 1]), fabs(d[p - 2])), fmax(fabs(e[p - 2]), fabs(d[start])));
            most = fmax(most, fabs(e[start]));
            const real last_d = d[p - 1] / most, before_d = d[p - 2] / most, before_e = e[p - 2] / most;
            const real first_d = d[start] / most, first_e = e[start] / most;
            const real h = ((before_d + last_d) * (before_d - last_d) + before_e * before_e) / 2;
            const real q = last_d * before_e * (last_d * before_e);
            real shift = 0;
            if (h != 0 || q != 0) shift = q / (h + copysign(sqrt(h * h + q), h));
            real f = (first_d + last_d) * (first_d - last_d) + shift, g = first_d * first_e;
            for (long j = start; j < p - 1; ++j) {{
              const real along = rotation(f, g, &c, &s);
              if (j > start) e[j - 1] = along;
              f = c * d[j] + s * e[j];
              e[j] = c * e[j] - s * d[j];
              g = s * d[j + 1];
              d[j + 1] = c * d[j + 1];
              {note(True, "j", "j + 1")}
              d[j] = rotation(f, g, &c, &s);
              f = c * e[j] + s * d[j + 1];
              d[j + 1] = c * d[j + 1] - s * e[j];
              g = s * e[j + 1];
              e[j + 1] = c * e[j + 1];
              {note(False, "j", "j + 1")}
            }}
            e[p - 2] = f;
          }}
          break;
        }}
        if (p <= 0 || failure != 0) count = -1;"""
    finish = """
    for (long j = 0; j < n; ++j) {
      const real value = d[j];
      SYNC;
      if (value < 0) {
        LEADER d[j] = -value;
        if (of_right) { EACH(i, first, last) own[i + j * z_ld] = -own[i + j * z_ld]; }
      }
    }
    SYNC;"""
    return _iteration_kernel("singular_qr", type_, form, begin, step, finish, ">", (Value("of_right", "i32"),))
