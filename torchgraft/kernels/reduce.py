"""Kernels that reduce.

A `Reduction` says what is accumulated: fields with their identities, how a value steps into them, how two accumulators
combine, and what is finally stored. `reduce_kernel` lays that over an input seen as four loops, two of kept indices and
two of reduced ones, each with a stride given at run time: a team's rows are the outputs, and its runs the reduced
elements. Any input whose kept and reduced dimensions each coalesce into two levels is read in place. Rows lie along
memory where the input's fastest dimension is reduced, and across it otherwise.

If there are too few outputs for the machine several groups share a row. The accumulators of their parts are stored and
combined by `combine_kernel`, always in the same order.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from torchgraft.codegen.kernel import Kernel, Parameter, parameters
from torchgraft.codegen.teams import Layout, Team, bind
from torchgraft.codegen.types import BY_NAME, largest, least, value_ctype
from torchgraft.codegen.walk import Walk


@dataclass(frozen=True)
class Reduction:
    """What is accumulated, as text.

    Attributes:
        name: part of kernel names.
        fields: (name, element type, identity) of each number that an accumulator consists of.
        step: statements that take value ``x`` (of the input's compute type), whose reduced index is ``i`` (of type
            `index`), into accumulator A: ``A.sum += x;``.
        combine: statements that take accumulator B into A.
        results: (element type, expression of A) of each output. May use ``count``, the number of reduced elements, of
            type i64, `values`, `others` of kind "kept", and ``old``, what the output holds before.
        values: more scalar parameters (name, element type), given to every kernel.
        index: element type of indices; "" if `step` does not need ``i``.
        cascade: sums of sums: accumulators are emptied into others after some steps, so that rounding errors grow with
            the logarithm of the length rather than with the length.
        others: (name, element type, kind) of more inputs, whose values `step` uses by name. Kind "same": shaped and
            strided like the input; "kept": one value for each output, contiguous.
        helpers: text before the kernels.
    """

    name: str
    fields: tuple[tuple[str, str, str], ...]
    step: str
    combine: str
    results: tuple[tuple[str, str], ...]
    values: tuple[tuple[str, str], ...] = ()
    index: str = ""
    cascade: bool = False
    others: tuple[tuple[str, str, str], ...] = ()
    helpers: str = ""

    @property
    def takes_elements_alone(self) -> bool:
        """Whether a step needs nothing but the elements at one place of the inputs."""
        return not self.index and all(kind == "same" for _, _, kind in self.others)

    def taken_in(self, input_type: str, team: Team) -> str:
        """Statements that take element ``c`` of a row into accumulator A."""
        declared = f"const {value_ctype(self.index)} i = ({value_ctype(self.index)})c; " if self.index else ""
        declared += f"const {value_ctype(input_type)} x = load_{input_type}(input, {team.at}); "
        for other in self.others:
            declared += self._load(other, team.at if other[2] == "same" else team.row) + " "
        return f"{{ {declared} {self.step} }}"

    def store(self, at: str, row: str, accumulator: str) -> str:
        """Statements that store all results of a row; `accumulator` spells a field "{}"."""
        texts = [self._load(other, row) for other in self.kept_for_results()]
        for n, (type_, expression) in enumerate(self.results):
            value = re.sub(r"\bold\b", f"load_{type_}(out{n}, {at})", bind(expression, A=accumulator))
            texts.append(f"store_{type_}(out{n}, {at}, {value});")
        return " ".join(texts)

    def kept_for_results(self) -> tuple[tuple[str, str, str], ...]:
        """Those of `others` that results use."""
        text = " ".join(expression for _, expression in self.results)
        return tuple(o for o in self.others if o[2] == "kept" and re.search(rf"\b{o[0]}\b", text))

    @staticmethod
    def _load(other: tuple[str, str, str], at: str) -> str:
        name, type_, _ = other
        return f"const {value_ctype(type_)} {name} = load_{type_}(in_{name}, {at});"

    def parameters(self, sources: str, parts: bool) -> tuple[Parameter, ...]:
        """`sources`, results ``out<n>`` or accumulators ``part_<field>``, strides of the results, and `values`."""
        targets = [(f"part_{name}", type_) for name, type_, _ in self.fields]
        if not parts:
            targets = [(f"out{n}", type_) for n, (type_, _) in enumerate(self.results)]
        out = "; ".join(f"{type_}* {name}" for name, type_ in targets)
        values = "; ".join(f"{type_} {name}" for name, type_ in self.values)
        return parameters(f"{sources}; {out}; i64 os0, os1; {values}")


def _inputs(others: tuple[tuple[str, str, str], ...]) -> str:
    return "; ".join(f"const {type_}* in_{name}" for name, type_, _ in others)


@functools.cache
def reduce_kernel(r: Reduction, input_type: str, layout: Layout, width: int, parts: bool) -> Kernel:
    """The results of each row, whose outputs are `os0` and `os1` apart.

    Args:
        r: what is accumulated.
        input_type: element type of the input.
        layout: of rows of runs, or of contiguous ones, whose outputs lie side by side.
        width: rows side by side, as of `Team`.
        parts: stores accumulators of parts instead of results.
    """
    team = Team(layout, width=width)
    if parts:
        at = f"GROUP_ID(1) * (outer * inner) + {team.row}"
        store = " ".join(f"part_{name}[{at}] = {name};" for name, _, _ in r.fields)
    else:
        at = f"o * os0 + {team.column} * os1" if layout.runs else "row"
        store = f"const long count = size; {r.store(at, team.row, '{}')}"
    return team.kernel(
        f"{r.name}_{input_type}",
        r.parameters(f"const {input_type}* input; {_inputs(r.others)}", parts),
        team.fold(
            {name: (type_, identity) for name, type_, identity in r.fields},
            r.taken_in(input_type, team),
            f"{{ {r.combine} }}",
            r.cascade,
            alone=r.takes_elements_alone,
        ),
        team.leader(store),
        helpers=r.helpers,
    )


@functools.cache
def combine_kernel(r: Reduction, form: str) -> Kernel:
    """Combines the accumulators of parts, which lie one part after the other, and stores the results: a walk over
    outputs, of which `inner` have one stride."""
    walk = Walk(form)
    declared = " ".join(f"{value_ctype(type_)} a_{name} = {identity};" for name, type_, identity in r.fields)
    loads = " ".join(f"const {value_ctype(type_)} b_{name} = part_{name}[part * n + i];" for name, type_, _ in r.fields)
    combine = bind(r.combine, A="a_{}", B="b_{}")
    body = walk.each(
        f"""\
    {declared}
    for (long part = 0; part < parts; ++part) {{ {loads} {combine} }}
    const long k0 = i / inner, k1 = i - k0 * inner;
    {r.store("k0 * os0 + k1 * os1", "i", "a_{}")}""",
        vectorize=False,
    )
    accumulators = "; ".join(f"const {type_}* part_{name}" for name, type_, _ in r.fields)
    params = r.parameters(f"{accumulators}; {_inputs(r.kept_for_results())}; i64 inner, count, parts", False)
    return walk.kernel(f"combine_{r.name}", params, body, r.helpers)


@functools.cache
def combine_many_kernel(r: Reduction) -> Kernel:
    """The same on a GPU where there are many parts of few outputs: a group for each of them."""
    team = Team(Layout("gpu"))
    loads = " ".join(
        f"const {value_ctype(type_)} b_{name} = part_{name}[c * rows + row];" for name, type_, _ in r.fields
    )
    accumulators = "; ".join(f"const {type_}* part_{name}" for name, type_, _ in r.fields)
    at = "row / inner * os0 + row % inner * os1"
    return team.kernel(
        f"combine_many_{r.name}",
        r.parameters(f"{accumulators}; {_inputs(r.kept_for_results())}; i64 inner, count", False),
        team.fold(
            {name: (type_, identity) for name, type_, identity in r.fields},
            f"{{ {loads} {bind(r.combine, A='A.{}', B='b_{}')} }}",
            f"{{ {r.combine} }}",
        ),
        team.leader(r.store(at, "row", "{}")),
        helpers=r.helpers,
    )


# The reductions of the op library ----------------------------------------------------------------------------------


@functools.cache
def total(acc: str, out: str, mean: bool = False, skip_nan: bool = False) -> Reduction:
    """Sum in accumulator type `acc`, divided by ``count`` if `mean`; of what is not NaN with `skip_nan`."""
    ctype = value_ctype(acc)
    value = f"({ctype})x"
    if skip_nan:
        value = f"(x != x ? 0 : {value})"
    return Reduction(
        f"{'mean' if mean else 'sum'}_{acc}",
        (("sum", acc, f"({ctype})(0)"),),
        f"A.sum += {value};",
        "A.sum += B.sum;",
        ((out, f"A.sum / ({ctype.removesuffix('2')})count" if mean else "A.sum"),),
        cascade=acc in ("f32", "c64"),
    )


@functools.cache
def log_sum_exp(acc: str, out: str) -> Reduction:
    """The logarithm of the sum of exponentials in one pass: of what has been taken in, the largest number and the sum
    of exponentials of the distances from it (M. Milakov and N. Gimelshein, "Online normalizer calculation for softmax",
    2018). Numbers that are both infinite are no distance apart."""
    t = value_ctype(acc)
    apart = f"const {t} d = fabs({{0}} - A.top); const {t} e = tg_exp_{acc}({{0}} == A.top ? 0 : -d);"
    return Reduction(
        f"logsumexp_{acc}",
        (("top", acc, "-INFINITY"), ("sum", acc, "0")),
        f"{apart.format('x')} A.sum = fma(A.sum, x > A.top ? e : 1, x > A.top ? 1 : e); A.top = x > A.top ? x : A.top;",
        f"{apart.format('B.top')} A.sum = B.top > A.top ? A.sum * e + B.sum : A.sum + B.sum * e; "
        "A.top = B.top > A.top ? B.top : A.top;",
        ((out, f"tg_log_{acc}(A.sum) + A.top"),),
        cascade=acc == "f32",
    )


@functools.cache
def nonzeros(complex_input: bool) -> Reduction:
    """The number of elements that are not zero."""
    value = "x.x != 0 || x.y != 0" if complex_input else "x != 0"
    return Reduction(
        "nonzeros", (("sum", "i64", "0"),), f"A.sum += (long)({value});", "A.sum += B.sum;", (("i64", "A.sum"),)
    )


@functools.cache
def product(acc: str, out: str) -> Reduction:
    if acc in ("c64", "c128"):
        return Reduction(
            f"prod_{acc}",
            (("prod", acc, f"MAKE_{value_ctype(acc)}(1, 0)"),),
            f"A.prod = tg_mul_{acc}(A.prod, x);",
            f"A.prod = tg_mul_{acc}(A.prod, B.prod);",
            ((out, "A.prod"),),
        )
    return Reduction(
        f"prod_{acc}",
        (("prod", acc, "1"),),
        f"A.prod *= ({value_ctype(acc)})x;",
        "A.prod *= B.prod;",
        ((out, "A.prod"),),
    )


def _better(type_: str, a: str, b: str, greater: bool) -> str:
    """Condition that b takes the place of a; NaN beats all numbers and is not beaten."""
    if BY_NAME[type_].is_float:
        # "not b <= a" is also true where b is NaN.
        return f"(!({b} {'<=' if greater else '>='} {a}) & ({a} == {a}))"
    return f"({b} {'>' if greater else '<'} {a})"


@functools.cache
def extreme(type_: str, out: str, greater: bool) -> Reduction:
    """Maximum or minimum in compute type `type_`; NaN if there is one."""
    # The choice alone is an instruction of processors, which takes b if one of both is NaN.
    step = f"A.best = A.best {'>' if greater else '<'} {{b}} ? A.best : {{b}};"
    if BY_NAME[type_].is_float:
        step = step.replace("A.best = ", "A.best = A.best != A.best ? A.best : ")
    return Reduction(
        f"{'max' if greater else 'min'}_{type_}",
        (("best", type_, (least if greater else largest)(type_)),),
        step.format(b="x"),
        step.format(b="B.best"),
        ((out, "A.best"),),
    )


@functools.cache
def extremes(type_: str, out: str) -> Reduction:
    """Minimum and maximum."""
    low, high = extreme(type_, out, False), extreme(type_, out, True)
    return Reduction(
        f"minmax_{type_}",
        (("low", type_, largest(type_)), ("high", type_, least(type_))),
        low.step.replace("A.best", "A.low") + " " + high.step.replace("A.best", "A.high"),
        low.combine.replace(".best", ".low") + " " + high.combine.replace(".best", ".high"),
        ((out, "A.low"), (out, "A.high")),
    )


@functools.cache
def extreme_index(type_: str, out: str, greater: bool, index: str, with_value: bool) -> Reduction:
    """Index of the first maximum or minimum (the first NaN if there is one), and the value itself with `with_value`.

    An index type as wide as the value keeps loops vectorised.
    """
    last = largest(index)
    # An accumulator meets its elements in ascending order, so a step takes only what is better; the first element it
    # takes in any case, since it may equal the identity. Where accumulators combine the lower index wins.
    # Without the operators that evaluate one side first: they are branches, and which way these go nobody can tell.
    better = f"({_better(type_, 'A.best', 'x', greater)} | ((A.at == {last}) & (x == A.best)))"
    b_better = _better(type_, "A.best", "B.best", greater)
    same = "(A.best == B.best)"
    if BY_NAME[type_].is_float:
        same = f"({same} | ((A.best != A.best) & (B.best != B.best)))"
    results: tuple[tuple[str, str], ...] = (("i64", "A.at"),)
    if with_value:
        results = ((out, "A.best"), *results)
    return Reduction(
        f"arg{'max' if greater else 'min'}_{type_}",
        (("best", type_, (least if greater else largest)(type_)), ("at", index, last)),
        f"const int t = {better}; A.best = t ? x : A.best; A.at = t ? i : A.at;",
        f"const int t = {b_better} | ({same} & (B.at < A.at)); A.best = t ? B.best : A.best; A.at = t ? B.at : A.at;",
        results,
        index=index,
    )


@functools.cache
def truth(every: bool, complex_input: bool, out: str = "b8", skip_nan: bool = False) -> Reduction:
    """all (with `every`) or any; of what is not NaN with `skip_nan`."""
    value = "(x.x != 0 || x.y != 0)" if complex_input else "((x < 0) | (x > 0))" if skip_nan else "(x != 0)"
    operator = "&" if every else "|"
    return Reduction(
        "all" if every else "any_number" if skip_nan else "any",
        (("truth", "u8", "1" if every else "0"),),
        f"A.truth {operator}= (uchar){value};",
        f"A.truth {operator}= B.truth;",
        ((out, "A.truth"),),
    )


@functools.cache
def variance(acc: str, out: str, root: bool, with_mean: bool) -> Reduction:
    """Variance (or its root) by Welford's method, and the mean. The divisor is count - correction, not below 0."""
    ctype = value_ctype(acc)
    zero = "0"
    # An addend rather than a choice: Intel's compiler dies of a division that vectors of a loop do under a condition.
    value = f"(A.m2 / fmax(({ctype})0, ({ctype})count - correction) + (A.n == 0 ? ({ctype})NAN : 0))"
    results: tuple[tuple[str, str], ...] = ((out, f"sqrt({value})" if root else value),)
    if with_mean:
        results = (*results, (out, "(A.n == 0 ? NAN : A.mean)"))
    return Reduction(
        f"var_{acc}",
        (("n", acc, zero), ("mean", acc, zero), ("m2", acc, zero)),
        f"A.n += 1; const {ctype} d = x - A.mean; A.mean += d / A.n; A.m2 = fma(d, x - A.mean, A.m2);",
        # Chan's formula; two empty accumulators stay empty.
        f"const {ctype} both = A.n + B.n; const {ctype} d = B.mean - A.mean; "
        f"const {ctype} w = both == 0 ? 0 : B.n / both; "
        "A.m2 += B.m2 + d * d * A.n * w; A.mean = B.n == both ? B.mean : fma(d, w, A.mean); A.n = both;",
        results,
        values=(("correction", acc),),
        cascade=True,
    )


@functools.cache
def norm(kind: str, acc: str, out: str, complex_input: bool) -> Reduction:
    """Vector norms of order `kind`: "0", "1", "2", "inf", "-inf", or "p" for a parameter ``order``."""
    ctype = value_ctype(acc)
    x = f"tg_abs_{'c64' if acc == 'f32' else 'c128'}(x)" if complex_input else f"fabs(({ctype})x)"
    if kind in ("inf", "-inf"):
        base = extreme(acc, out, kind == "inf")
        identity = "0" if kind == "inf" else "INFINITY"
        return Reduction(
            f"norm_inf_{acc}",
            (("best", acc, identity),),
            f"const {ctype} v = {x}; " + re.sub(r"\bx\b", "v", base.step),
            base.combine,
            base.results,
        )
    step = {"0": f"{x} != 0 ? 1 : 0", "1": x, "p": f"tg_pow_{acc}({x}, order)"}.get(kind, "")
    if kind == "2":
        step = "x.x * x.x + x.y * x.y" if complex_input else f"({ctype})x * ({ctype})x"
    result = {"2": "sqrt(A.sum)", "p": f"tg_pow_{acc}(A.sum, 1 / order)"}.get(kind, "A.sum")
    return Reduction(
        f"norm{kind}_{acc}",
        (("sum", acc, "0"),),
        f"A.sum += {step};",
        "A.sum += B.sum;",
        ((out, result),),
        values=(("order", acc),) if kind == "p" else (),
        cascade=acc == "f32",
    )
