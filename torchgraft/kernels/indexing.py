"""Kernels that read or write where index tensors say.

All walk over a space of some dimensions in which every operand has a stride for each dimension. One of them, the
indexed one, lies besides at the
sum of the indices times their steps: it is the source (gather, index_select, embedding) or the target (scatter,
    index_put). An index out of range
is reported and the element skipped.

`move_kernel` treats elements in any order. `collect_kernel` lets several elements meet in one place: it walks one more
dimension, along which places may repeat, in order, so that results do not depend on chance and need no atomics.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from torchgraft.codegen.kernel import Kernel, Parameter, Pointer, Value
from torchgraft.codegen.pointwise import convert
from torchgraft.codegen.types import BY_NAME, value_ctype

GPU_LOCAL = 256
GPU_COLLECT_LOCAL = 64

MOVES = {1: "u8", 2: "i16", 4: "i32", 8: "i64", 16: "c128"}
"""The element type that moves elements of so many bytes, whatever they are."""


@dataclass(frozen=True)
class Indexing:
    """What one element's work is.

    Attributes:
        name: of the kernel.
        target, source: their element types.
        indices: element types of the index tensors.
        reads: the source is the indexed operand; otherwise the target is.
        wraps: negative indices count from the end.
        along: some index varies along the innermost dimension.
        rank: number of dimensions.
        inner: the innermost strides of target, source and indices: "0", "1", or "s" for one given at run time.
        number: the source is a number.
        combine: the new value, of `a` (what is in the target) and `b` (the source's); "" for b itself.
        alpha: `combine` has a factor `alpha`.
    """

    name: str
    target: str
    source: str
    indices: tuple[str, ...]
    reads: bool
    wraps: bool
    along: bool
    rank: int
    inner: tuple[str, ...]
    number: bool = False
    combine: str = ""
    alpha: bool = False

    @property
    def operands(self) -> list[str]:
        return ["target", *([] if self.number else ["source"]), *(f"index{k}" for k in range(len(self.indices)))]

    def params(self, *extra: str, more_strides: bool = False) -> tuple[Parameter, ...]:
        """Pointers and number; error words; codes, limits and steps of the indices; `extra`; n, chunk, sizes; each
        operand's strides."""
        out: list[Parameter] = [Pointer("target", self.target)]
        out.append(Value("number", self.source) if self.number else Pointer("source", self.source, const=True))
        if self.alpha:
            out.append(Value("alpha", self.target))
        out += [Pointer(f"index{k}", type_, const=True) for k, type_ in enumerate(self.indices)]
        out.append(Pointer("errors", "i32"))
        out += [Value(f"code{k}", "i32") for k in range(len(self.indices))]
        out += [Value(f"limit{k}", "i64") for k in range(len(self.indices))]
        out += [Value(f"step{k}", "i64") for k in range(len(self.indices))]
        out += [Value(name, "i64") for name in (*extra, "n", "chunk")]
        out += [Value(f"n{d}", "i64") for d in range(self.rank)]
        out += [Value(f"{o}_s{d}", "i64") for o in self.operands for d in range(self.rank)]
        if more_strides:
            out += [Value(f"{o}_row", "i64") for o in self.operands[1:]]
        return tuple(out)

    def step(self, operand: str) -> str:
        kind = self.inner[self.operands.index(operand)]
        return f"{operand}_s{self.rank - 1}" if kind == "s" else kind

    def at(self, operand: str, j: str = "j") -> str:
        """Index of the element number `j` of the row."""
        step = self.step(operand)
        return f"{operand}_at" + {"0": "", "1": f" + {j}"}.get(step, f" + {j} * {step}")

    def load_indices(self, j: str, indent: str, row: str = "") -> str:
        """Declares raw, k, out for every index, and `bad`."""
        lines = []
        for k, type_ in enumerate(self.indices):
            at = self.at(f"index{k}", j) if j else f"index{k}_at"
            lines.append(f"long raw{k} = load_{type_}(index{k}, {at}{row.format(f'index{k}')});")
            lines.append(f"long k{k} = raw{k}{f' + (raw{k} < 0 ? limit{k} : 0)' if self.wraps else ''};")
            lines.append(f"int out{k} = (ulong)k{k} >= (ulong)limit{k};")
        lines.append(f"int bad = {' | '.join(f'out{k}' for k in range(len(self.indices)))};")
        return "\n".join(indent + line for line in lines)

    @property
    def offset(self) -> str:
        return " + ".join(f"k{k} * step{k}" for k in range(len(self.indices)))

    def report(self, indent: str) -> str:
        return "\n".join(f"{indent}if (out{k}) tg_report(errors, code{k}, raw{k});" for k in range(len(self.indices)))

    def put(self, target: str, source: str) -> str:
        """Statements that write one element."""
        ctype = value_ctype(self.target)
        value = "number" if self.number else f"load_{self.source}(source, {source})"
        value = convert(value, self.source, self.target)
        if not self.combine:
            return f"store_{self.target}(target, {target}, {value});"
        return (
            f"{ctype} b = {value}; {ctype} a = load_{self.target}(target, {target}); "
            f"store_{self.target}(target, {target}, {self.combine});"
        )


def _bounds(local: int) -> str:
    """The group's part of the elements, or a work-item's single one."""
    if local > 1:
        return f"  long begin = (long)GROUP_ID(0) * {local} + LOCAL_ID(0);\n  if (begin >= n) return;\n"
    return "  long begin = (long)GROUP_ID(0) * chunk;\n  long end = n - begin < chunk ? n : begin + chunk;\n"


def _split(rank: int) -> str:
    lines = ["  long rest = begin;"]
    for d in range(rank - 1, 0, -1):
        lines += [f"  long i{d} = rest % n{d};", f"  rest /= n{d};"]
    return "\n".join([*lines, "  long i0 = rest;"])


def _starts(x: Indexing, indent: str) -> str:
    def start(operand: str) -> str:
        outer = [f"i{d} * {operand}_s{d}" for d in range(x.rank - 1)]
        return " + ".join([*outer, f"i{x.rank - 1} * {x.step(operand)}"])

    return "\n".join(f"{indent}long {o}_at = {start(o)};" for o in x.operands)


def _rows(x: Indexing, body: str) -> str:
    """Walks over the group's part row by row; `body` treats elements 0 <= j < count of a row."""
    last = x.rank - 1
    carry = "".join(f"if (++i{d} == n{d}) {{ i{d} = 0; " for d in range(last - 1, 0, -1))
    carry += "++i0;" + " }" * (last - 1) if last > 0 else ""
    return f"""\
{_split(x.rank)}
  for (long done = begin; done < end;) {{
    long row = n{last} - i{last};
    long count = row < end - done ? row : end - done;
{_starts(x, "    ")}
{body}
    done += count;
    i{last} = 0;
    {carry}
  }}"""


@functools.cache
def move_kernel(x: Indexing, form: str) -> Kernel:
    """One element for each place of the space."""
    source = "" if x.number else x.at("source")
    target = x.at("target")
    offset = x.offset
    if form == "gpu":
        source, target = ("" if x.number else "source_at"), "target_at"
        source, target = (f"{source} + {offset}", target) if x.reads else (source, f"{target} + {offset}")
        body = f"""\
{_bounds(GPU_LOCAL)}{_split(x.rank)}
{_starts(x, "  ")}
{x.load_indices("", "  ")}
  if (bad) {{
{x.report("    ")}
    return;
  }}
  {x.put(target, source)}"""
        return Kernel(x.name, x.params(), body, local=(GPU_LOCAL,))
    if x.along:
        source, target = (f"{source} + {offset}", target) if x.reads else (source, f"{target} + {offset}")
        # Vectors of scattered addresses gain nothing over single ones.
        body = f"""\
    for (long j = 0; j < count; ++j) {{
{x.load_indices("j", "      ")}
      if (bad) {{
{x.report("        ")}
        continue;
      }}
      {x.put(target, source)}
    }}"""
    else:
        moved = "source" if x.reads else "target"
        body = f"""\
{x.load_indices("", "    ")}
    if (bad) {{
{x.report("      ")}
    }} else {{
      {moved}_at += {offset};
      VECTORIZE
      for (long j = 0; j < count; ++j) {{ {x.put(target, source)} }}
    }}"""
    return Kernel(x.name, x.params(), f"{_bounds(1)}{_rows(x, body)}")


@functools.cache
def collect_kernel(x: Indexing, form: str, inner_rows: bool) -> Kernel:
    """Elements that may meet in one place: `rows` times the space.

    The work-items along dimension 0 share the space; those along dimension 1 share the values of the first index,
    `range` each. Extra arguments
    before n: rows, range; at the end, for each operand but the target, its stride from row to row.

    Args:
        x: the target is the indexed operand.
        form: "cpu" or "gpu".
        inner_rows: walk over rows innermost, which suits operands whose rows are nearer in memory than their elements.
    """
    params = x.params("rows", "range", more_strides=True)
    range_ = "  long low = (long)GROUP_ID(1) * range, high = low + range;\n"
    source_row = "" if x.number else " + r * source_row"
    index_row = " + r * {0}_row"
    # An index out of range belongs to no group; the first one reports it.
    skip = "if (bad) { if (low == 0) { " + x.report("").replace("\n", " ") + " } continue; }\n"
    skip += "{indent}if (k0 < low || k0 >= high) continue;"
    source, target = ("" if x.number else x.at("source") + source_row), x.at("target") + " + offset"
    if form == "gpu":
        source = "" if x.number else "source_at" + source_row
        body = f"""\
{_bounds(GPU_COLLECT_LOCAL)}{range_}{_split(x.rank)}
{_starts(x, "  ")}
  for (long r = 0; r < rows; ++r) {{
{x.load_indices("", "    ", index_row)}
    {skip.replace("{indent}", "    ")}
    {x.put(f"target_at + {x.offset}", source)}
  }}"""
        return Kernel(x.name, params, body, local=(GPU_COLLECT_LOCAL, 1))
    if not x.along:
        body = f"""\
    for (long r = 0; r < rows; ++r) {{
{x.load_indices("", "      ", index_row)}
      {skip.replace("{indent}", "      ")}
      long offset = {x.offset};
      VECTORIZE
      for (long j = 0; j < count; ++j) {{ {x.put(target, source)} }}
    }}"""
    else:
        r, j = "for (long r = 0; r < rows; ++r)", "for (long j = 0; j < count; ++j)"
        first, second = (j, r) if inner_rows else (r, j)
        body = f"""\
    {first}
    {second} {{
{x.load_indices("j", "      ", index_row)}
      {skip.replace("{indent}", "      ")}
      long offset = {x.offset};
      {x.put(target, source)}
    }}"""
    return Kernel(x.name, params, f"{_bounds(1)}{range_}{_rows(x, body)}", local=(1, 1))


# ---- embeddings ----


@functools.cache
def embedding_backward_kernel(grad: str, index: str, out: str, scaled: bool, form: str) -> Kernel:
    """Sums rows of gradients into a table; all tensors are contiguous.

    Work-items along dimension 0 share the columns, `columns` each; along dimension 1 the table's rows, `rows` each,
    which they set to zero first.
    """
    ctype = value_ctype(out)
    params: list[Parameter] = [
        Pointer("out", out),
        Pointer("grad", grad, const=True),
        Pointer("index", index, const=True),
    ]
    if scaled:
        params.append(Pointer("counts", "i32", const=True))
    params += [Pointer("errors", "i32"), Value("code", "i32")]
    params += [Value(v, "i64") for v in ("n", "width", "limit", "padding", "columns", "rows")]
    if form == "gpu":
        begin = (
            f"  long first = (long)GROUP_ID(0) * {GPU_COLLECT_LOCAL} + LOCAL_ID(0);\n"
            "  long last = first < width ? first + 1 : first;"
        )
        loop = ""
    else:
        begin = (
            "  long first = (long)GROUP_ID(0) * columns;\n"
            "  long last = width - first < columns ? width : first + columns;"
        )
        loop = "VECTORIZE"
    factor = f" * (({ctype})1 / counts[k])" if scaled else ""
    body = f"""\
{begin}
  long low = (long)GROUP_ID(1) * rows, high = limit - low < rows ? limit : low + rows;
  for (long k = low; k < high; ++k) {{
    {loop}
    for (long c = first; c < last; ++c) out[k * width + c] = 0;
  }}
  for (long r = 0; r < n; ++r) {{
    long k = load_{index}(index, r);
    if (k == padding) continue;
    if (k < low || k >= high) {{
      if (low == 0 && (k < 0 || k >= limit)) tg_report(errors, code, k);
      continue;
    }}
    {loop}
    for (long c = first; c < last; ++c) out[k * width + c] += load_{grad}(grad, r * width + c){factor};
  }}"""
    return Kernel("embedding_backward", tuple(params), body, local=(GPU_COLLECT_LOCAL, 1) if form == "gpu" else (1, 1))


@functools.cache
def count_kernel(index: str) -> Kernel:
    """How often each index occurs; one work-item. The counts are zero before."""
    params = (
        Pointer("counts", "i32"),
        Pointer("index", index, const=True),
        Value("n", "i64"),
        Value("limit", "i64"),
    )
    body = f"""\
  for (long r = 0; r < n; ++r) {{
    long k = load_{index}(index, r);
    if (k >= 0 && k < limit) ++counts[k];
  }}"""
    return Kernel("count_indices", params, body)


# ---- places of elements that are not zero ----


@functools.cache
def nonzero_count_kernel(source: str) -> Kernel:
    """Counts each chunk's elements that are not zero."""
    params = (Pointer("counts", "i64"), Pointer("source", source, const=True), Value("n", "i64"), Value("chunk", "i64"))
    body = f"""\
{_bounds(1)}  long count = 0;
  VECTORIZE
  for (long i = begin; i < end; ++i) count += {_is_true(source, "source", "i")};
  counts[GROUP_ID(0)] = count;"""
    return Kernel("nonzero_count", params, body)


@functools.cache
def nonzero_kernel(source: str, rank: int) -> Kernel:
    """Writes the multi-index of each element that is not zero, up to `size` of them; the last group fills up with
    `fill`."""
    params: list[Parameter] = [
        Pointer("out", "i64"),
        Pointer("counts", "i64", const=True),
        Pointer("source", source, const=True),
    ]
    params += [Value(v, "i64") for v in ("size", "fill", "n", "chunk", *(f"n{d}" for d in range(rank)))]
    split = [f"{'long rest = i' if d == rank - 1 else 'rest /= n' + str(d + 1)}; "
        f"out[at * {rank} + {d}] = {'rest' if d == 0 else f'rest % n{d}'};"
             for d in range(rank - 1, -1, -1)]  # fmt: skip
    body = f"""\
{_bounds(1)}  long at = 0;
  for (long g = 0; g < GROUP_ID(0); ++g) at += counts[g];
  for (long i = begin; i < end && at < size; ++i) {{
    if (!{_is_true(source, "source", "i")}) continue;
    {" ".join(split)}
    ++at;
  }}
  if (GROUP_ID(0) == NUM_GROUPS(0) - 1)
    for (long i = at * {rank}; i < size * {rank}; ++i) out[i] = fill;"""
    return Kernel("nonzero", tuple(params), body)


def _is_true(type_: str, pointer: str, i: str) -> str:
    if BY_NAME[type_].is_complex:
        return f"({pointer}[{i}].x != 0 || {pointer}[{i}].y != 0)"
    return f"(load_{type_}({pointer}, {i}) != 0)"


# ---- searches ----


@functools.cache
def search_kernel(
    values: str, boundaries: str, compute: str, out: str, right: bool, sorter: bool, number: bool, form: str
) -> Kernel:
    """Where each value belongs in a sorted sequence. Rows of values go with rows of boundaries, or all with a single
    one (`boundary_row` 0).

    Without `right` the first place whose boundary is not less than the value, with it the first whose boundary is
    greater.
    """
    ctype = value_ctype(compute)
    params: list[Parameter] = [Pointer("out", out)]
    params.append(Value("number", values) if number else Pointer("values", values, const=True))
    params.append(Pointer("boundaries", boundaries, const=True))
    if sorter:
        params.append(Pointer("sorter", "i64", const=True))
    params += [Value(v, "i64") for v in ("row", "length", "boundary_row", "n", "chunk")]
    value = convert("number" if number else f"load_{values}(values, i)", values, compute)
    at = "base + sorter[base + middle]" if sorter else "base + middle"
    boundary = convert(f"load_{boundaries}(boundaries, {at})", boundaries, compute)
    before = "!(b > v)" if right else "!(b >= v)"  # so that NaN comes last, as a value
    loop = f"""\
    {ctype} v = {value};
    long base = i / row * boundary_row;
    long low = 0, high = length;
    while (low < high) {{
      long middle = low + (high - low) / 2;
      {ctype} b = {boundary};
      if ({before}) low = middle + 1; else high = middle;
    }}
    out[i] = low;"""
    if form == "gpu":
        body = f"{_bounds(GPU_LOCAL)}  long i = begin;\n{loop}"
    else:
        body = f"{_bounds(1)}  for (long i = begin; i < end; ++i) {{\n{loop}\n  }}"
    return Kernel("search_sorted", tuple(params), body, local=(GPU_LOCAL,) if form == "gpu" else (1,))


@functools.cache
def isin_kernel(elements: str, tests: str, compute: str, invert: bool, form: str) -> Kernel:
    """Whether each element occurs among the tests."""
    ctype = value_ctype(compute)
    params = (
        Pointer("out", "b8"),
        Pointer("elements", elements, const=True),
        Pointer("tests", tests, const=True),
        Value("count", "i64"),
        Value("n", "i64"),
        Value("chunk", "i64"),
    )
    loop = f"""\
    {ctype} v = {convert(f"load_{elements}(elements, i)", elements, compute)};
    int found = 0;
    {"VECTORIZE" if form == "cpu" else ""}
    for (long t = 0; t < count; ++t) found |= v == {convert(f"load_{tests}(tests, t)", tests, compute)};
    out[i] = {"!found" if invert else "found"};"""
    if form == "gpu":
        body = f"{_bounds(GPU_LOCAL)}  long i = begin;\n{loop}"
    else:
        body = f"{_bounds(1)}  for (long i = begin; i < end; ++i) {{\n{loop}\n  }}"
    return Kernel("isin", params, body, local=(GPU_LOCAL,) if form == "gpu" else (1,))
