"""Eigenvalues of Hermitian matrices and singular values: reductions to tridiagonal and bidiagonal matrices, and the
iterations on those. See `kernels.matrices` for the notation."""

from __future__ import annotations

from functools import cache

from torchgraft.codegen.kernel import Kernel, parameters
from torchgraft.kernels.matrices import MatrixTeam, matrix

# ---- reductions ----


@cache
def tridiagonal_kernel(type_: str, form: str) -> Kernel:
    """Reduces Hermitian matrices, of which the lower triangle is read, to tridiagonal ones: diagonal `d`, below it `e`.

    Q, for which Q^H A Q is tridiagonal, is made of the reflectors left below the first subdiagonal of `a`, which start
    one row below their column. `work` has n elements for each matrix. Golub and Van Loan, "Matrix Computations", 8.3.1.
    """
    team = MatrixTeam(type_, form)
    mirror = """own[c + c * a_ld] = FROM(RE(own[c + c * a_ld]));
      for (long i = c + 1; i < n; ++i) own[c + i * a_ld] = CONJ(own[i + c * a_ld]);"""
    keep = """tau[row * n + j] = factor;
        e[row * n + j] = RE(v[0]);
        v[0] = FROM(1);"""
    body = f"""
    GLOBAL element *own = a + row * a_batch, *w = work + row * n;
    {team.each(mirror, vectorize=False, size="n")}
    {team.sync}
    for (long j = 0; j + 1 < n; ++j) {{
      const long left = n - j - 1;
      GLOBAL element *v = own + j + 1 + j * a_ld, *rest = v + a_ld;
      {team.reflector("factor", "left", "v")}
      {team.leader(keep)}
      {team.each("w[c] = FROM(0);", vectorize=False, size="left")}
      {team.sync}
      for (long k = 0; k < left; ++k) {team.axpy("left", "MUL(factor, v[k])", "rest + k * a_ld", "w")}
      {team.sync}
      {team.dot("along", "left", "w", "v")}
      {team.axpy("left", "MUL(FROM((real)-0.5), MUL(factor, along))", "v", "w")}
      {team.sync}
      for (long k = 0; k < left; ++k) {{
        {team.axpy("left", "-CONJ(w[k])", "v", "rest + k * a_ld")}
        {team.axpy("left", "-CONJ(v[k])", "w", "rest + k * a_ld")}
      }}
      {team.sync}
    }}
    {team.leader("for (long j = 0; j < n; ++j) d[row * n + j] = RE(own[j + j * a_ld]); e[row * n + n - 1] = 0;")}
"""
    params = parameters(f"{matrix('a', type_)}; {team.real}* d, e; {type_}* tau, work; i64 n")
    return team.kernel("tridiagonal", params, body)


@cache
def bidiagonal_kernel(type_: str, form: str) -> Kernel:
    """Reduces matrices with m >= n to upper bidiagonal ones Q^H A P: diagonal `d`, above it `e`.

    Q is made of the reflectors below the diagonal of `a`, P of those in the columns of `right` (n x n), which start one
    row below their column. `work` has m elements for each matrix. Golub and Van Loan, "Matrix Computations", 5.4.8.
    """
    team = MatrixTeam(type_, form)
    keep = """right_tau[row * n + j] = other;
        e[row * n + j] = columns > 0 ? RE(v[0]) : 0;
        if (columns > 0) v[0] = FROM(1);"""
    body = f"""
    GLOBAL element* w = work + row * m;
    for (long j = 0; j < n; ++j) {{
      GLOBAL element* column = a + row * a_batch + j + j * a_ld;
      {team.reflector("factor", "m - j", "column")}
      {team.leader("tau[row * n + j] = factor; d[row * n + j] = RE(column[0]);")}
      const long columns = n - j - 1, height = m - j - 1;
      for (long k = 1; k <= columns; ++k) {team.reflect("m - j", "column", "CONJ(factor)", "column + k * a_ld")}
      {team.sync}
      GLOBAL element *v = right + row * right_batch + j + 1 + j * right_ld, *rest = column + 1 + a_ld;
      {team.each("v[c] = CONJ(rest[c * a_ld - 1]);", vectorize=False, size="columns")}
      {team.sync}
      {team.reflector("other", "columns", "v")}
      {team.leader(keep)}
      {team.each("w[c] = FROM(0);", vectorize=False, size="height")}
      {team.sync}
      for (long k = 0; k < columns; ++k) {team.axpy("height", "MUL(other, v[k])", "rest + k * a_ld", "w")}
      for (long k = 0; k < columns; ++k) {team.axpy("height", "-CONJ(v[k])", "w", "rest + k * a_ld")}
      {team.sync}
    }}
"""
    params = parameters(
        f"{matrix('a', type_)}; {matrix('right', type_)}; {team.real}* d, e; {type_}* tau, right_tau, work; i64 m, n"
    )
    return team.kernel("bidiagonal", params, body)


# ---- iterations on tridiagonal and bidiagonal matrices ----

_ROTATION = """
TG_FUNCTION real rotation(real f, real g, real* c, real* s) {
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


# A group's own copy of the numbers, its list of rotations, and the part of the vectors that it has.
_START = """
    const long group = GROUP_ID(0) * NUM_GROUPS(1) + GROUP_ID(1);
    GLOBAL real *d = scratch + group * 4 * (n + 1), *e = d + n + 1, *cosines = e + n + 1, *sines = cosines + n + 1;
    GLOBAL int *state = places + group * (2 * n + 2), *left = state + 2, *right = left + n;
    GLOBAL real* own = z + row * z_batch + first;
"""


def _iteration_kernel(
    name: str, team: MatrixTeam, begin: str, step: str, finish: str, order: str, more: str = ""
) -> Kernel:
    """What both share. The leader works on the few numbers of the small matrix; each of its steps leaves plane
    rotations, which all members then apply to their own rows of the vectors `z`. Groups that have other rows of the
    same matrix repeat the leader's work rather than wait for it. `info` is what the leader leaves in `failure`.
    """
    lead = f"""
        found = 0;
        {step}
        state[0] = found;
        state[1] = failure;
"""
    rotate = """const real u = x[c], v = y[c];
          x[c] = cosine * u + sine * v;
          y[c] = cosine * v - sine * u;"""
    body = f"""
    {team.each("d[c] = diagonal[row * n + c]; e[c] = beside[row * n + c];", size="n")}
    {team.sync}
    int failure = 0, found = 0;
    {begin}
    while (found >= 0) {{
      {team.leader(lead)}
      {team.sync}
      found = state[0];
      for (int t = 0; t < found; ++t) {{
        const real cosine = cosines[t], sine = sines[t];
        GLOBAL real *x = own + left[t] * z_ld, *y = own + right[t] * z_ld;
        {team.each(rotate, size="last - first")}
      }}
      {team.sync}
    }}
    {finish}
    for (long i = 0; i + 1 < n; ++i) {{
      long at = i;
      for (long k = i + 1; k < n; ++k) if (d[k] {order} d[at]) at = k;
      GLOBAL real *x = own + i * z_ld, *y = own + at * z_ld;
      {team.sync}
      {team.leader("const real kept = d[i]; d[i] = d[at]; d[at] = kept;")}
      if (at != i) {{ {team.each("const real kept = x[c]; x[c] = y[c]; y[c] = kept;", size="last - first")} }}
      {team.sync}
    }}
    if (GROUP_ID(1) == 0) {{
      {team.each("values[row * n + c] = d[c];", size="n")}
      {team.leader("info[row] = state[1];")}
    }}
    {team.sync}
"""
    params = parameters(
        f"{team.type}* values; {matrix('z', team.type)}; i32* info; const {team.type}* diagonal, beside;"
        f"{team.type}* scratch; i32* places; i64 n; {more}"
    )
    return team.kernel(name, params, _START, body, helpers=_ROTATION, dims=2)


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
            cosines[found] = c;
            sines[found] = s;
            left[found] = (int)i + 1;
            right[found++] = (int)i;
          }}
          if (i < l) {{ d[l] -= p; e[l] = g; e[m] = 0; }}
          break;
        }}
        if (l >= n || failure != 0) found = -1;"""
    return _iteration_kernel("symmetric_ql", MatrixTeam(type_, form), "long l = 0; int sweeps = 0;", step, "", "<")


@cache
def singular_kernel(type_: str, form: str) -> Kernel:
    """Singular values of upper bidiagonal matrices in descending order; `z` is multiplied by the left singular vectors,
    or by the right ones where `of_right` is not 0.

    Implicit QR with what splits off at small elements: Golub and Van Loan, "Matrix Computations", 8.6.2. For the rest
    see `symmetric_kernel`; `info` is -4 where there are elements that are not finite, as LAPACK's gesdd says.
    """
    team = MatrixTeam(type_, form)
    begin = f"""
    long p = n;
    int sweeps = 0;
    const real eps = {_EPSILON[type_]}, tiny = {_TINY[type_]};
    for (long i = 0; i < n; ++i) if (!(fabs(d[i]) < INFINITY && fabs(e[i]) < INFINITY)) failure = -4;"""

    def note(for_right: bool, left: str, right: str) -> str:
        return (
            f"if ({'' if for_right else '!'}of_right) {{ cosines[found] = c; sines[found] = s; "
            f"left[found] = (int)({left}); right[found++] = (int)({right}); }}"
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
        if (p <= 0 || failure != 0) found = -1;"""
    negate = team.each("own[c + j * z_ld] = -own[c + j * z_ld];", size="last - first")
    finish = f"""
    for (long j = 0; j < n; ++j) {{
      const real value = d[j];
      {team.sync}
      if (value < 0) {{
        {team.leader("d[j] = -value;")}
        if (of_right) {{ {negate} }}
      }}
    }}
    {team.sync}"""
    return _iteration_kernel("singular_qr", team, begin, step, finish, ">", "i32 of_right")
