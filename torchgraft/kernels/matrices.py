"""What kernels of dense linear algebra are made of.

One text serves real and complex elements and both kernel forms. A team works on a matrix: a group on a GPU, one
work-item on a CPU. Every member runs the same control flow on the same numbers; what is shared out is the loops over a
column. A team meets in the same places whatever the numbers are: `break`, `return` or a condition around a `sync` make
compilers for CPUs copy all that follows.

Matrices lie in column-major order with unit stride along a column: element (i, j) of `a` is `a[i + j * a_ld]`, and the
matrix of row `row` of a batch starts at `a + row * a_batch`. `element` is the element type, `real` that of its parts,
and `MUL`, `DIV`, `CONJ`, ... are spelled for either.
"""

from __future__ import annotations

from torchgraft.codegen.kernel import Kernel, Parameter, parameters
from torchgraft.codegen.teams import Layout, Team
from torchgraft.codegen.types import BY_NAME

#: Work-items of a team on a GPU.
TEAM = 64

TYPES = ("f32", "f64", "c64", "c128")


def real_type(type_: str) -> str:
    """The element type of a number's parts."""
    return {"c64": "f32", "c128": "f64"}.get(type_, type_)


def matrix(name: str, type_: str, const: bool = False) -> str:
    """Declares the parameters of a matrix: its memory, the distance of matrices, the distance of columns."""
    return f"{'const ' if const else ''}{type_}* {name}; i64 {name}_batch, {name}_ld"


_REAL_ALGEBRA = """
#define MUL(a, b) ((a) * (b))
#define DIV(a, b) ((a) / (b))
#define CONJ(a) (a)
#define RE(a) (a)
#define IM(a) ((real)0)
#define PARTS 1
#define PAIR(x, y) (x)
#define FROM(r) ((element)(r))
#define MAGNITUDE(a) fabs(a)
#define SIZE(a) fabs(a)
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
#define PAIR(x, y) MAKE_{storage}(x, y)
#define FROM(r) PAIR(r, 0)
#define MAGNITUDE(a) tg_abs_{type}(a)
#define SIZE(a) (fabs((a).x) + fabs((a).y))
#define IS_ZERO(a) ((a).x == 0 && (a).y == 0)
"""

# A NaN wins.
_LARGER = """
TG_FUNCTION real larger(real a, real b) { return b > a || b != b ? b : a; }
"""


class MatrixTeam(Team):
    """A team whose rows are the matrices of a batch, with operations on columns.

    These are statements as all of a team's. What they are given are expressions; the names of results are declared.
    """

    def __init__(self, type_: str, form: str) -> None:
        super().__init__(Layout(form), group=TEAM, short=True)
        self.type = type_
        self.real = real_type(type_)
        self.is_complex = BY_NAME[type_].is_complex

    def kernel(
        self, name: str, params: tuple[Parameter, ...], *statements: str, helpers: str = "", dims: int = 1
    ) -> Kernel:
        """A kernel for each matrix; in two dimensions the second shares out `count` columns or rows of it: the
        statements' are from `first` to `last`, at most `part` of them."""
        storage = BY_NAME[self.type].storage
        types = f"typedef {storage} element;\ntypedef {BY_NAME[self.real].storage} real;"
        algebra = _COMPLEX_ALGEBRA.format(type=self.type, storage=storage) if self.is_complex else _REAL_ALGEBRA
        if dims == 2:
            params += parameters("i64 count, part")
            own = "const long first = GROUP_ID(1) * part, last = count - first < part ? count : first + part;"
            statements = (own, *statements)
        return super().kernel(name, params, *statements, helpers=types + algebra + _LARGER + helpers, dims=dims)

    def axpy(self, n: str, factor: str, x: str, y: str) -> str:
        """y += factor x."""
        bound = f"const long tg_n = {n}; const element tg_f = {factor};"
        if not self.is_complex:
            each = self.each("tg_y[c] += tg_f * tg_x[c];", size="tg_n")
            return f"{{ {bound} GLOBAL const element* tg_x = {x}; GLOBAL element* tg_y = {y}; {each} }}"
        # Over parts, of which compilers make vectors as they do not of complex numbers.
        each = self.each(
            """const real u = tg_x[2 * c], v = tg_x[2 * c + 1];
        tg_y[2 * c] += tg_f.x * u - tg_f.y * v;
        tg_y[2 * c + 1] += tg_f.x * v + tg_f.y * u;""",
            size="tg_n",
        )
        return f"""{{
      {bound} GLOBAL const real* tg_x = (GLOBAL const real*)({x}); GLOBAL real* tg_y = (GLOBAL real*)({y});
      {each}
    }}"""

    def dot(self, name: str, n: str, x: str, y: str) -> str:
        """The sum of conj(x) y."""
        if self.is_complex:
            step = """A.re += tg_x[2 * c] * tg_y[2 * c] + tg_x[2 * c + 1] * tg_y[2 * c + 1];
        A.im += tg_x[2 * c] * tg_y[2 * c + 1] - tg_x[2 * c + 1] * tg_y[2 * c];"""
            sums = self.sum({"re": self.real, "im": self.real}, step, "tg_n")
        else:
            sums = self.sum({"re": self.real}, "A.re += tg_x[c] * tg_y[c];", "tg_n")
        return f"""element {name};
    {{
      const long tg_n = {n};
      GLOBAL const real *tg_x = (GLOBAL const real*)({x}), *tg_y = (GLOBAL const real*)({y});
      {sums}
      {name} = PAIR(re, im);
    }}"""

    def norm(self, name: str, n: str, x: str) -> str:
        """The root of the sum of squares, scaled by a power of two so that no square overflows or vanishes.

        To divide by that is exact. By `ldexp` back, LLVM 18 in PoCL 6 ended the process over this kernel.
        """
        most = self.fold(
            {"most": (self.real, "0")},
            "A.most = larger(A.most, fabs(tg_x[c]));",
            "A.most = larger(A.most, B.most);",
            size="tg_n",
        )
        step = "const real part = tg_x[c] * scale; A.square += part * part;"
        return f"""real {name};
    {{
      const long tg_n = PARTS * ({n});
      GLOBAL const real* tg_x = (GLOBAL const real*)({x});
      {most}
      const bool usual = most > 0 && most < INFINITY;
      const int exponent = usual ? clamp((int)floor(log2(most)), -120, 120) : 0;
      const real scale = ldexp((real)1, -exponent);
      {self.sum({"square": self.real}, step, "tg_n")}
      {name} = usual ? sqrt(square) / scale : most;
    }}"""

    def reflector(self, factor: str, n: str, x: str) -> str:
        """Finds H = I - factor v v^H, v[0] being 1, for which H^H x is a real multiple of the first unit vector; leaves
        that in x[0] and the rest of v behind it. As LAPACK's larfg, whose signs these are."""
        return f"""element {factor};
    {{
      const long tg_size = {n};
      GLOBAL element* tg_to = {x};
      const element head = tg_size > 0 ? tg_to[0] : FROM(0);
      {self.norm("rest", "tg_size - 1", "tg_to + 1")}
      const bool done = rest == 0 && IM(head) == 0;
      const real length = done ? RE(head) : -copysign(hypot(MAGNITUDE(head), rest), RE(head));
      const element scale = done ? FROM(1) : DIV(FROM(1), head - FROM(length));
      {self.sync}
      {self.each("tg_to[c] = c == 0 ? FROM(length) : MUL(tg_to[c], scale);", size="tg_size")}
      {self.sync}
      {factor} = done ? FROM(0) : (FROM(length) - head) / length;
    }}"""

    def reflect(self, n: str, v: str, factor: str, x: str) -> str:
        """x -= factor v (v^H x), v[0] being 1. As LAPACK's larf."""
        return f"""{{
      const long tg_size = {n};
      GLOBAL const element* tg_v = {v};
      GLOBAL element* tg_to = {x};
      const element head = tg_to[0];
      {self.dot("rest", "tg_size - 1", "tg_v + 1", "tg_to + 1")}
      const element along = MUL({factor}, head + rest);
      {self.leader("tg_to[0] = head - along;")}
      {self.axpy("tg_size - 1", "-along", "tg_v + 1", "tg_to + 1")}
    }}"""
