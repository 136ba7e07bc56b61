"""Kernels that reduce.

A `Reduction` says what is accumulated: fields with their identities, how a value steps into them, how two accumulators
combine, and what is finally stored. The generators here lay that over an input seen as four loops: kept indices
(k0, k1) and reduced indices (r0, r1), each with a stride given at run time. Any input whose kept and reduced dimensions
each coalesce into two levels is read in place.

CPU form: one work-item for a range of outputs, without barriers. `row_kernel` is for inputs whose fastest dimension is
reduced: `lanes` accumulators side by side, which the compiler turns into vector registers, folded at the end.
`column_kernel` is for inputs whose fastest dimension is kept (or whose rows are short): the accumulators are those of
neighbouring outputs. GPU form: a work-group for an output (row) or for 32 neighbouring outputs (column), and a tree in
local memory. If there are too few outputs for the machine the reduced range is divided into parts, whose accumulators
are stored and combined by `combine_kernel`, always in the same order.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from torchgraft.codegen.kernel import Kernel, Parameter, Pointer, Value
from torchgraft.codegen.types import BY_NAME, value_ctype


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
            type i64, and `values`.
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

    def declare(self, prefix: str, count: int = 0) -> str:
        """Declarations of an accumulator, or of `count` of them, with identities."""
        out = []
        for name, type_, identity in self.fields:
            if count:
                out.append(f"{value_ctype(type_)} {prefix}_{name}[{count}];")
            else:
                out.append(f"{value_ctype(type_)} {prefix}_{name} = {identity};")
        return " ".join(out)

    def reset(self, prefix: str, at: str) -> str:
        return " ".join(f"{prefix}_{name}{at} = {identity};" for name, _, identity in self.fields)

    def text(self, template: str, a: str, at: str = "", b: str = "", b_at: str = "") -> str:
        """`template` with A standing for accumulator `a` at index `at`, and B for `b` at `b_at`."""
        template = re.sub(r"\bA\.(\w+)", rf"{a}_\1{at}", template)
        return re.sub(r"\bB\.(\w+)", rf"{b}_\1{b_at}", template)

    def step_at(self, a: str, at: str, input_type: str, base: str, element: str, index: str, kept: str) -> str:
        """A block that takes an element into accumulator `a`.

        Args:
            a, at: the accumulator.
            input_type: element type of the input.
            base: name of the pointer that `element` is an index of; those of the others end in their names.
            element: index of the element.
            index: its reduced index.
            kept: index of the output.
        """
        declared = f"const {value_ctype(self.index)} i = ({value_ctype(self.index)})({index}); " if self.index else ""
        declared += f"const {value_ctype(input_type)} x = load_{input_type}({base}, {element}); "
        for name, type_, kind in self.others:
            source = f"{base}_{name}, {element}" if kind == "same" else f"in_{name}, {kept}"
            declared += f"const {value_ctype(type_)} {name} = load_{type_}({source}); "
        return "{ " + declared + self.text(self.step, a, at) + " }"

    def pointers(self, name: str, base: str, offset: str, input_type: str) -> str:
        """Declares pointer `name` as `base` + `offset`, and those of the others likewise."""
        out = [f"const GLOBAL {BY_NAME[input_type].storage}* {name} = {base} + {offset};"]
        for other, type_, kind in self.others:
            if kind == "same":
                out.append(f"const GLOBAL {BY_NAME[type_].storage}* {name}_{other} = {base}_{other} + {offset};")
        return " ".join(out)

    def combine_at(self, a: str, at: str, b: str, b_at: str) -> str:
        return "{ " + self.text(self.combine, a, at, b, b_at) + " }"

    def store(self, a: str, at: str, index: str) -> str:
        """Statements that store all results of accumulator `a`."""
        return " ".join(
            f"store_{type_}(out{n}, {index}, {self.text(expression, a, at)});"
            for n, (type_, expression) in enumerate(self.results)
        )

    def store_parts(self, a: str, at: str, index: str) -> str:
        return " ".join(f"part_{name}[{index}] = {a}_{name}{at};" for name, _, _ in self.fields)


# Scalars of row_kernel and column_kernel after the pointers: outputs k0 * kept1 + k1, their strides in the input and in
# the outputs; reduced elements r0 * inner + r1, their strides; outputs for a work-group; elements in a part.
SHAPE = ("kept", "kept1", "ks0", "ks1", "os0", "os1", "count", "inner", "rs0", "rs1", "chunk", "part")


def _params(r: Reduction, input_type: str, parts: bool) -> tuple[Parameter, ...]:
    if parts:
        outs: list[Parameter] = [Pointer(f"part_{name}", type_) for name, type_, _ in r.fields]
    else:
        outs = [Pointer(f"out{n}", type_) for n, (type_, _) in enumerate(r.results)]
    values: list[Parameter] = [Value(name, type_) for name, type_ in r.values]
    others = [Pointer(f"in_{name}", type_, const=True) for name, type_, _ in r.others]
    return (Pointer("in", input_type, const=True), *others, *outs, *(Value(name, "i64") for name in SHAPE), *values)


# Every kernel starts with the part of the reduced range that the work-group has.
_PART = """
  const long begin = GROUP_ID(1) * part;
  const long end = begin + part < count ? begin + part : count;
"""

# Steps before accumulators are emptied into the next level of a cascade.
_CASCADE = 64


def _store(r: Reduction, a: str, at: str, k: str, out: str, parts: bool) -> str:
    return r.store_parts(a, at, f"GROUP_ID(1) * kept + {k}") if parts else r.store(a, at, out)


@functools.cache
def row_kernel(r: Reduction, input_type: str, lanes: int, parts: bool, unit: bool) -> Kernel:
    """CPU form for inputs that are fastest along the reduced dimension. Groups: (outputs / chunk, parts).

    Args:
        r: what is accumulated.
        input_type: element type of the input.
        lanes: accumulators side by side, a power of two.
        parts: stores accumulators of parts instead of results.
        unit: rs1 is 1.
    """
    step = r.step_at("a", "[j]", input_type, "row", f"(r + j){'' if unit else ' * rs1'}", "first + r + j", "k")
    levels = ["a", "b", "c"] if r.cascade else ["a"]
    flush = ""
    if r.cascade:
        flush = f"""
        if (++steps == {_CASCADE}) {{
          steps = 0;
          VECTORIZE for (int j = 0; j < {lanes}; ++j) {{
            {r.combine_at("b", "[j]", "a", "[j]")}
            {r.reset("a", "[j]")}
          }}
          if (++blocks == {_CASCADE}) {{
            blocks = 0;
            VECTORIZE for (int j = 0; j < {lanes}; ++j) {{
              {r.combine_at("c", "[j]", "b", "[j]")}
              {r.reset("b", "[j]")}
            }}
          }}
        }}"""
    gather = "".join(
        f"VECTORIZE for (int j = 0; j < {lanes}; ++j) {r.combine_at('a', '[j]', level, '[j]')}\n    "
        for level in reversed(levels[1:])
    )
    body = f"""{_PART}
  const long k_end = (GROUP_ID(0) + 1) * chunk < kept ? (GROUP_ID(0) + 1) * chunk : kept;
  for (long k = GROUP_ID(0) * chunk; k < k_end; ++k) {{
    const long k0 = k / kept1, k1 = k - k0 * kept1;
    {" ".join(r.declare(level, lanes) for level in levels)}
    VECTORIZE for (int j = 0; j < {lanes}; ++j) {{ {" ".join(r.reset(level, "[j]") for level in levels)} }}
    {"int steps = 0, blocks = 0;" if r.cascade else ""}
    long r0 = begin / inner, r1 = begin - r0 * inner;
    for (long at = begin; at < end;) {{
      const long rest = inner - r1 < end - at ? inner - r1 : end - at;
      {r.pointers("row", "in", "k0 * ks0 + k1 * ks1 + r0 * rs0 + r1 * rs1", input_type)}
      const long first = at;
      long r = 0;
      for (; r + {lanes} <= rest; r += {lanes}) {{
        VECTORIZE for (int j = 0; j < {lanes}; ++j) {step}{flush}
      }}
      const int tail = (int)(rest - r);
      VECTORIZE for (int j = 0; j < tail; ++j) {step}
      at += rest;
      r1 = 0;
      ++r0;
    }}
    {gather}for (int width = {lanes // 2}; width >= 16; width /= 2)
      VECTORIZE for (int j = 0; j < width; ++j) {r.combine_at("a", "[j]", "a", "[j + width]")}
    for (int width = {min(lanes, 16) // 2}; width > 0; width /= 2)
      for (int j = 0; j < width; ++j) {r.combine_at("a", "[j]", "a", "[j + width]")}
    {_store(r, "a", "[0]", "k", "k0 * os0 + k1 * os1", parts)}
  }}
"""
    return _kernel(f"row_{r.name}_{input_type}", r, input_type, parts, body)


def _kernel(
    name: str, r: Reduction, input_type: str, parts: bool, body: str, local: tuple[int, ...] = (1, 1)
) -> Kernel:
    return Kernel(name, _params(r, input_type, parts), body, r.helpers, local)


@functools.cache
def column_kernel(r: Reduction, input_type: str, width: int, parts: bool, unit: bool) -> Kernel:
    """CPU form for inputs that are contiguous along a kept dimension, or with short rows. Groups: (blocks, parts).

    A block is `chunk` outputs (at most `width`) with the same k0.

    Args:
        r: what is accumulated.
        input_type: element type of the input.
        width: outputs side by side.
        parts: stores accumulators of parts instead of results.
        unit: ks1 is 1.
    """
    step = r.step_at("a", "[j]", input_type, "row", f"shift + j{'' if unit else ' * ks1'}", "at", "k + j")
    levels = ["a", "b", "c"] if r.cascade else ["a"]
    flush = ""
    if r.cascade:
        flush = f"""
      if (++steps == {_CASCADE}) {{
        steps = 0;
        VECTORIZE for (int j = 0; j < m; ++j) {{
          {r.combine_at("b", "[j]", "a", "[j]")}
          {r.reset("a", "[j]")}
        }}
        if (++blocks == {_CASCADE}) {{
          blocks = 0;
          VECTORIZE for (int j = 0; j < m; ++j) {{
            {r.combine_at("c", "[j]", "b", "[j]")}
            {r.reset("b", "[j]")}
          }}
        }}
      }}"""
    gather = "".join(
        f"VECTORIZE for (int j = 0; j < m; ++j) {r.combine_at('a', '[j]', level, '[j]')}\n  "
        for level in reversed(levels[1:])
    )
    results = _store(r, "a", "[j]", "k + j", "k0 * os0 + (k1 + j) * os1", parts)
    body = f"""{_PART}
  const long blocks_in_row = (kept1 + chunk - 1) / chunk;
  const long k0 = GROUP_ID(0) / blocks_in_row, k1 = (GROUP_ID(0) - k0 * blocks_in_row) * chunk;
  const int m = (int)(kept1 - k1 < chunk ? kept1 - k1 : chunk);
  const long k = k0 * kept1 + k1;
  {r.pointers("column", "in", "k0 * ks0 + k1 * ks1", input_type)}
  {" ".join(r.declare(level, width) for level in levels)}
  VECTORIZE for (int j = 0; j < m; ++j) {{ {" ".join(r.reset(level, "[j]") for level in levels)} }}
  {"int steps = 0, blocks = 0;" if r.cascade else ""}
  long r0 = begin / inner, r1 = begin - r0 * inner;
  for (long at = begin; at < end;) {{
    const long stop = at + (inner - r1 < end - at ? inner - r1 : end - at);
    {r.pointers("row", "column", "r0 * rs0 + r1 * rs1", input_type)}
    for (long shift = 0; at < stop; ++at, shift += rs1) {{
      VECTORIZE for (int j = 0; j < m; ++j) {step}{flush}
    }}
    r1 = 0;
    ++r0;
  }}
  {gather}VECTORIZE for (int j = 0; j < m; ++j) {{ {results} }}
"""
    return _kernel(f"column_{r.name}_{input_type}", r, input_type, parts, body)


def _local_tree(r: Reduction, size: int, lane: str, stride: int = 1) -> str:
    """Stores accumulator a in local memory at `lane` and combines `size` of them, `stride` apart."""
    put = " ".join(f"s_{name}[{lane}] = a_{name};" for name, _, _ in r.fields)
    out = [put, "BARRIER;"]
    half = size // 2
    while half:
        inner = r.combine_at("s", f"[{lane}]", "s", f"[{lane} + {half * stride}]")
        out.append(f"if ({lane} < {half * stride}) {inner} BARRIER;")
        half //= 2
    return "\n  ".join(out)


def _local_fields(r: Reduction, size: int) -> str:
    return " ".join(f"LOCAL {value_ctype(type_)} s_{name}[{size}];" for name, type_, _ in r.fields)


@functools.cache
def row_kernel_gpu(r: Reduction, input_type: str, parts: bool) -> Kernel:
    """GPU form of `row_kernel`: a work-group of 256 for each output and part. Groups: (outputs, parts); no chunk."""
    step = r.step_at("a", "", input_type, "row", "r0 * rs0 + (at - r0 * inner) * rs1", "at", "k")
    body = f"""{_PART}
  {_local_fields(r, 256)}
  const int lane = LOCAL_ID(0);
  const long k = GROUP_ID(0), k0 = k / kept1, k1 = k - k0 * kept1;
  {r.pointers("row", "in", "k0 * ks0 + k1 * ks1", input_type)}
  {r.declare("a")}
  for (long at = begin + lane; at < end; at += 256) {{
    const long r0 = at / inner;
    {step}
  }}
  {_local_tree(r, 256, "lane")}
  if (lane == 0) {{ {_store(r, "s", "[0]", "k", "k0 * os0 + k1 * os1", parts)} }}
"""
    return _kernel(f"row_{r.name}_{input_type}", r, input_type, parts, body, (256, 1))


@functools.cache
def column_kernel_gpu(r: Reduction, input_type: str, parts: bool) -> Kernel:
    """GPU form of `column_kernel`: 32 outputs by 8 reduced elements. Groups: (kept / 32, parts); no chunk."""
    step = r.step_at("a", "", input_type, "column", "r0 * rs0 + (at - r0 * inner) * rs1", "at", "k")
    body = f"""{_PART}
  {_local_fields(r, 256)}
  const int lane = LOCAL_ID(1) * 32 + LOCAL_ID(0);
  const long k = GROUP_ID(0) * 32 + LOCAL_ID(0), k0 = k / kept1, k1 = k - k0 * kept1;
  {r.declare("a")}
  if (k < kept) {{
    {r.pointers("column", "in", "k0 * ks0 + k1 * ks1", input_type)}
    for (long at = begin + LOCAL_ID(1); at < end; at += 8) {{
      const long r0 = at / inner;
      {step}
    }}
  }}
  {_local_tree(r, 8, "lane", 32)}
  if (LOCAL_ID(1) == 0 && k < kept) {{ {_store(r, "s", "[lane]", "k", "k0 * os0 + k1 * os1", parts)} }}
"""
    return _kernel(f"column_{r.name}_{input_type}", r, input_type, parts, body, (32, 8))


# Scalars of combine_kernel after the pointers.
COMBINE_SHAPE = ("kept", "kept1", "os0", "os1", "count", "parts", "chunk")


@functools.cache
def combine_kernel(r: Reduction, gpu: bool = False) -> Kernel:
    """Combines the accumulators of parts, which lie one part after the other, and stores the results.

    Groups: kept / chunk, each a work-item for `chunk` outputs (CPU form) or 64 work-items for 64 outputs (GPU form).
    """
    loads = " ".join(f"const {value_ctype(type_)} b_{name} = part_{name}[n * kept + k];" for name, type_, _ in r.fields)
    one = f"""
    {r.declare("a")}
    for (long n = 0; n < parts; ++n) {{
      {loads}
      {r.combine_at("a", "", "b", "")}
    }}
    const long k0 = k / kept1, k1 = k - k0 * kept1;
    {r.store("a", "", "k0 * os0 + k1 * os1")}"""
    if gpu:
        body = f"""
  const long k = GLOBAL_ID(0);
  if (k < kept) {{{one}
  }}
"""
    else:
        body = f"""
  const long k_end = (GROUP_ID(0) + 1) * chunk < kept ? (GROUP_ID(0) + 1) * chunk : kept;
  for (long k = GROUP_ID(0) * chunk; k < k_end; ++k) {{{one}
  }}
"""
    params: list[Parameter] = [Pointer(f"part_{name}", type_, const=True) for name, type_, _ in r.fields]
    params += [Pointer(f"out{n}", type_) for n, (type_, _) in enumerate(r.results)]
    params += [Value(name, "i64") for name in COMBINE_SHAPE] + [Value(name, type_) for name, type_ in r.values]
    return Kernel(f"combine_{r.name}", tuple(params), body, r.helpers, (64,) if gpu else (1,))


# The reductions of the op library ----------------------------------------------------------------------------------

# Lowest and highest values of the compute types.
_LOWEST = {
    "f32": "-INFINITY",
    "f64": "-INFINITY",
    "i64": "LONG_MIN",
    "i32": "INT_MIN",
    "i16": "SHRT_MIN",
    "i8": "CHAR_MIN",
    "u8": "0",
    "b8": "0",
}
_HIGHEST = {
    "f32": "INFINITY",
    "f64": "INFINITY",
    "i64": "LONG_MAX",
    "i32": "INT_MAX",
    "i16": "SHRT_MAX",
    "i8": "CHAR_MAX",
    "u8": "UCHAR_MAX",
    "b8": "1",
}


def _is_float(type_: str) -> bool:
    return type_ in ("f32", "f64")


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
    if _is_float(type_):
        # "not b <= a" is also true where b is NaN.
        return f"(!({b} {'<=' if greater else '>='} {a}) && {a} == {a})"
    return f"({b} {'>' if greater else '<'} {a})"


@functools.cache
def extreme(type_: str, out: str, greater: bool) -> Reduction:
    """Maximum or minimum in compute type `type_`; NaN if there is one."""
    step = f"A.best = {_better(type_, 'A.best', '{b}', greater)} ? {{b}} : A.best;"
    return Reduction(
        f"{'max' if greater else 'min'}_{type_}",
        (("best", type_, (_LOWEST if greater else _HIGHEST)[type_]),),
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
        (("low", type_, _HIGHEST[type_]), ("high", type_, _LOWEST[type_])),
        low.step.replace("A.best", "A.low") + " " + high.step.replace("A.best", "A.high"),
        low.combine.replace(".best", ".low") + " " + high.combine.replace(".best", ".high"),
        ((out, "A.low"), (out, "A.high")),
    )


@functools.cache
def extreme_index(type_: str, out: str, greater: bool, index: str, with_value: bool) -> Reduction:
    """Index of the first maximum or minimum (the first NaN if there is one), and the value itself with `with_value`.

    An index type as wide as the value keeps loops vectorised.
    """
    highest = {"i32": "INT_MAX", "i64": "LONG_MAX"}[index]
    # An accumulator meets its elements in ascending order, so a step takes only what is better; the first element it
    # takes in any case, since it may equal the identity. Where accumulators combine the lower index wins.
    better = f"({_better(type_, 'A.best', 'x', greater)} || (A.at == {highest} && x == A.best))"
    b_better = _better(type_, "A.best", "B.best", greater)
    same = "A.best == B.best"
    if _is_float(type_):
        same = f"({same} || (A.best != A.best && B.best != B.best))"
    results: tuple[tuple[str, str], ...] = (("i64", "A.at"),)
    if with_value:
        results = ((out, "A.best"), *results)
    return Reduction(
        f"arg{'max' if greater else 'min'}_{type_}",
        (("best", type_, (_LOWEST if greater else _HIGHEST)[type_]), ("at", index, highest)),
        f"const int t = {better}; A.best = t ? x : A.best; A.at = t ? i : A.at;",
        f"const int t = {b_better} || ({same} && B.at < A.at); A.best = t ? B.best : A.best; A.at = t ? B.at : A.at;",
        results,
        index=index,
    )


@functools.cache
def truth(every: bool, complex_input: bool, out: str = "b8") -> Reduction:
    """all (with `every`) or any."""
    value = "(x.x != 0 || x.y != 0)" if complex_input else "(x != 0)"
    operator = "&" if every else "|"
    return Reduction(
        "all" if every else "any",
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
    value = f"(A.n == 0 ? ({ctype})NAN : A.m2 / fmax(({ctype})0, ({ctype})count - correction))"
    results: tuple[tuple[str, str], ...] = ((out, f"sqrt({value})" if root else value),)
    if with_mean:
        results = (*results, (out, "(A.n == 0 ? NAN : A.mean)"))
    return Reduction(
        f"var_{acc}",
        (("n", acc, zero), ("mean", acc, zero), ("m2", acc, zero)),
        f"A.n += 1; const {ctype} d = x - A.mean; A.mean += d / A.n; A.m2 = fma(d, x - A.mean, A.m2);",
        # Chan's formula; two empty accumulators stay empty.
        f"const {ctype} n = A.n + B.n; const {ctype} d = B.mean - A.mean; "
        f"const {ctype} w = n == 0 ? 0 : B.n / n; "
        "A.m2 += B.m2 + d * d * A.n * w; A.mean = B.n == n ? B.mean : fma(d, w, A.mean); A.n = n;",
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
