"""Kernels that read or write where index tensors say.

All walk over a space of some dimensions in which every operand has a stride for each dimension. One of them, the
indexed one, lies besides at the sum of the indices times their steps: it is the source (gather, index_select,
embedding) or the target (scatter, index_put). An index out of range is reported and the element skipped.

`move_kernel` treats elements in any order; on a GPU it also adds elements that meet in one place, in an order that is
left to chance. `collect_kernel` lets several elements meet in one place: it walks one more dimension, along which
places may repeat, in order, so that results do not depend on chance and need no atomics.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

from torchgraft.codegen.kernel import Kernel, Parameter, parameters
from torchgraft.codegen.places import add_into_place
from torchgraft.codegen.pointwise import convert
from torchgraft.codegen.types import BY_NAME, value_ctype
from torchgraft.codegen.walk import FEW, Walk


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
        number: the source is a number, a parameter.
        combine: the new value, of `a` (what is in the target) and `b` (the source's); "" for b itself.
        alpha: `combine` has a factor `alpha`.
        at_once: others may add to the same place at the same time; `combine` is a sum.
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
    at_once: bool = False

    @property
    def operands(self) -> list[str]:
        return ["target", *([] if self.number else ["source"]), *(f"index{k}" for k in range(len(self.indices)))]

    def parameters(self, extra: str = "") -> tuple[Parameter, ...]:
        """The operands, with their strides ``<operand>_s<d>``; where errors are reported; the code, limit and step of
        each index; `extra`."""
        source = f"{self.source} source" if self.number else f"const {self.source}* source"
        factor = f"{self.target} alpha" if self.alpha else ""
        each = [f"const {t}* index{k}; i32 code{k}; i64 limit{k}, step{k}" for k, t in enumerate(self.indices)]
        strides = ", ".join(f"{o}_s{d}" for o in self.operands for d in range(self.rank))
        return parameters(
            f"{self.target}* target; {source}; {factor}; i32* errors; {'; '.join(each)}; i64 {strides}; {extra}"
        )

    def starts(self, walk: Walk) -> str:
        """Declares where a row begins in each operand."""
        return "\n".join(f"    long {o}_at = {walk.offset(f'{o}_s', self.step(o))};" for o in self.operands)

    def step(self, operand: str) -> str:
        kind = self.inner[self.operands.index(operand)]
        return f"{operand}_s{self.rank - 1}" if kind == "s" else kind

    def at(self, operand: str) -> str:
        """Index of the element number ``j`` of the row."""
        step = self.step(operand)
        return f"{operand}_at" + {"0": "", "1": " + j"}.get(step, f" + j * {step}")

    def load_indices(self, along: bool, row: Mapping[str, str] | None = None) -> str:
        """Declares raw, k, out for every index, `bad`, and the `offset` that the indices make.

        Args:
            along: of element ``j``, otherwise of the row.
            row: what to add to the place of an index, by its name.
        """
        lines = []
        for k, type_ in enumerate(self.indices):
            name = f"index{k}"
            place = (self.at(name) if along else f"{name}_at") + (row[name] if row else "")
            lines += [
                f"long raw{k} = load_{type_}({name}, {place});",
                f"long k{k} = raw{k}{f' + (raw{k} < 0 ? limit{k} : 0)' if self.wraps else ''};",
                f"int out{k} = (ulong)k{k} >= (ulong)limit{k};",
            ]
        numbers = range(len(self.indices))
        lines.append(f"int bad = {' | '.join(f'out{k}' for k in numbers)};")
        lines.append(f"long offset = {' + '.join(f'k{k} * step{k}' for k in numbers)};")
        return "\n".join("      " + line for line in lines)

    @property
    def report(self) -> str:
        return " ".join(f"if (out{k}) tg_report(errors, code{k}, raw{k});" for k in range(len(self.indices)))

    def put(self, target: str, source: str) -> str:
        """Statements that write one element."""
        ctype = value_ctype(self.target)
        value = "source" if self.number else f"load_{self.source}(source, {source})"
        value = convert(value, self.source, self.target)
        if self.at_once:
            return (
                f"tg_add_into_place_{self.target}(target + {target}, {f'alpha * ({value})' if self.alpha else value});"
            )
        if not self.combine:
            return f"store_{self.target}(target, {target}, {value});"
        return (
            f"{ctype} b = {value}; {ctype} a = load_{self.target}(target, {target}); "
            f"store_{self.target}(target, {target}, {self.combine});"
        )


@functools.cache
def move_kernel(x: Indexing, form: str, short: bool = False) -> Kernel:
    """One element for each place of the space. `short`: as of `Walk`."""
    walk = Walk(form, x.rank, short=short)
    source, target = "" if x.number else x.at("source"), x.at("target")
    if x.reads:
        source += " + offset"
    else:
        target += " + offset"
    where = f"{x.load_indices(x.along)}\n      if (bad) {{ {x.report} continue; }}\n"
    put = f"      {x.put(target, source)}"
    if x.along:  # vectors of scattered addresses gain nothing over single ones
        body = walk.each(where + put, x.starts(walk), vectorize=False)
    else:
        body = walk.each(put, f"{x.starts(walk)}\n{where}")
    return walk.kernel(x.name, x.parameters(), body, add_into_place(x.target) if x.at_once else "")


@functools.cache
def collect_kernel(x: Indexing, form: str, inner_rows: bool, shared: str, row_steps: tuple[str, ...]) -> Kernel:
    """Elements that may meet in one place: `rows` times the space.

    The work-items along dimension 0 share the space. Each operand but the target has a stride ``<operand>_row`` from
    row to row.

    Args:
        x: the target is the indexed operand.
        form: "cpu" or "gpu".
        inner_rows: walk over rows innermost, which suits operands whose rows are nearer in memory than their elements.
        shared: what the work-items along dimension 1 share, `share` each: "places", the values of the first index;
            "rows", each with a target of its own, `apart` elements after the one before; or "" if there is but one.
        row_steps: the strides from row to row, as `Indexing.inner` has them.
    """
    walk = Walk(form, x.rank, group=FEW)
    step = {o: f"{o}_row" if s == "s" else s for o, s in zip(x.operands[1:], row_steps, strict=True)}
    row = {o: {"0": "", "1": " + r"}.get(s, f" + r * {s}") for o, s in step.items()}
    mine = f"      if (bad) {{ {x.report} continue; }}\n"
    if shared == "places":  # an index out of range belongs to no group; the first one reports it
        mine = f"""\
      if (bad) {{ if (low == 0) {{ {x.report} }} continue; }}
      if (k0 < low || k0 >= high) continue;
"""
    where = f"{x.load_indices(x.along, row)}\n{mine}"
    source = "" if x.number else f"{x.at('source')}{row['source']}"
    put = "      " + x.put(f"{x.at('target')} + offset", source)
    rows = "    for (long r = first; r < last; ++r) {{\n{}\n    }}"
    if not x.along:
        order = rows.format(where + walk.along(put))
    elif inner_rows:
        order = walk.along(rows.format(where + put), vectorize=False)
    else:
        order = rows.format(walk.along(where + put, vectorize=False))
    body = _SHARES[shared] + walk.rows(f"{x.starts(walk)}\n{order}")
    extra = "; ".join(
        ["i64 rows, share", *(f"i64 {o}_row" for o in step), *(["i64 apart"] if shared == "rows" else [])]
    )
    return walk.kernel(x.name, x.parameters(extra), body, dims=2)


_SHARES = {
    "": "  const long first = 0, last = rows;\n",
    "places": """\
  const long low = (long)GROUP_ID(1) * share, high = low + share;
  const long first = 0, last = rows;
""",
    "rows": """\
  const long first = (long)GROUP_ID(1) * share, last = rows - first < share ? rows : first + share;
  target += (long)GROUP_ID(1) * apart;
""",
}


# ---- embeddings ----


@functools.cache
def embedding_backward_kernel(grad: str, index: str, out: str, scaled: bool, form: str) -> Kernel:
    """Sums rows of gradients into a table; all tensors are contiguous.

    The walk is over columns; work-items along dimension 1 share the table's rows, `share` each, which they set to zero
    first.
    """
    walk = Walk(form, group=FEW)
    factor = f" * (({value_ctype(out)})1 / counts[k])" if scaled else ""
    body = f"""\
  const long low = (long)GROUP_ID(1) * share, high = limit - low < share ? limit : low + share;
  for (long k = low; k < high; ++k) {{
    {walk.each("out[k * n + i] = 0;")}
  }}
  for (long r = 0; r < count; ++r) {{
    long k = load_{index}(index, r);
    if (k == padding) continue;
    if (k < low || k >= high) {{
      if (low == 0 && (k < 0 || k >= limit)) tg_report(errors, code, k);
      continue;
    }}
    {walk.each(f"out[k * n + i] += load_{grad}(grad, r * n + i){factor};")}
  }}"""
    params = f"""{out}* out; const {grad}* grad; const {index}* index; {"const i32* counts" if scaled else ""};
        i32* errors; i32 code; i64 count, limit, padding, share"""
    return walk.kernel("embedding_backward", parameters(params), body, dims=2)


@functools.cache
def first_places_kernel(index: str, form: str) -> Kernel:
    """For each index the place where the same occurs first; -1 for `padding` and for those out of range."""
    walk = Walk(form)
    body = walk.each(
        f"""\
    const long k = load_{index}(index, i);
    const int counts = k != padding && k >= 0 && k < limit, before = counts ? (int)i : 0;
    if (!counts && k != padding) tg_report(errors, code, k);
    int first = counts ? (int)i : -1;
    VECTORIZE
    for (int q = 0; q < before; ++q) first = load_{index}(index, q) == k && q < first ? q : first;
    places[i] = first;""",
        vectorize=False,
    )
    params = f"i32* places; const {index}* index; i32* errors; i32 code; i64 limit, padding"
    return walk.kernel("first_places", parameters(params), body)


@functools.cache
def put_rows_kernel(index: str, out: str, form: str) -> Kernel:
    """Sets rows of a table: each to the sums at the place where its index occurs first."""
    walk = Walk(form, 2)
    row = f"""\
    if (places[i0] != (int)i0) continue;
    const long to = load_{index}(index, i0) * n1, from = i0 * n1;"""
    put = f"const long c = i1 + j; store_{out}(out, to + c, total[from + c]);"
    params = parameters(f"{out}* out; const f32* total; const i32* places; const {index}* index")
    return walk.kernel("put_rows", params, walk.each(put, row))


@functools.cache
def count_kernel(index: str) -> Kernel:
    """How often each index occurs; one work-item. The counts are zero before."""
    body = f"""\
  for (long r = 0; r < n; ++r) {{
    long k = load_{index}(index, r);
    if (k >= 0 && k < limit) ++counts[k];
  }}"""
    return Kernel("count_indices", parameters(f"i32* counts; const {index}* index; i64 n, limit"), body)


# ---- places of elements that are not zero ----


@functools.cache
def nonzero_count_kernel(source: str) -> Kernel:
    """Counts each group's elements that are not zero."""
    walk = Walk("cpu")
    count = walk.each(f"count += {_is_true(source, 'source', 'i')};")
    body = f"  long count = 0;\n{count}\n  counts[GROUP_ID(0)] = count;"
    return walk.kernel("nonzero_count", parameters(f"i64* counts; const {source}* source"), body)


@functools.cache
def nonzero_kernel(source: str, rank: int) -> Kernel:
    """Writes the multi-index of each element that is not zero, up to `size` of them; the last group fills up with
    `fill`.

    Each element's is written, and stays where it is one of them: nothing branches on what a random boolean mask has,
    and a group ends with the last of its own.
    """
    walk = Walk("cpu", rank)
    start = "i0"
    for d in range(1, rank):
        start = f"({start}) * n{d} + i{d}"
    places = " ".join(f"out[at * {rank} + {d}] = i{d}{' + j' if d == rank - 1 else ''};" for d in range(rank))
    statements = f"""\
      if (at >= limit) break;
      {places}
      at += {_is_true(source, "source", "start + j")};"""
    body = f"""\
  long at = 0;
  for (long g = 0; g < GROUP_ID(0); ++g) at += counts[g];
  const long limit = min(size, at + counts[GROUP_ID(0)]);
{walk.each(statements, f"    const long start = {start};", vectorize=False)}
  if (GROUP_ID(0) == NUM_GROUPS(0) - 1)
    for (long i = at * {rank}; i < size * {rank}; ++i) out[i] = fill;"""
    params = f"i64* out; const i64* counts; const {source}* source; i64 size, fill"
    return walk.kernel("nonzero", parameters(params), body)


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
    one (`boundary_row` 0); `values` may be a single number.

    Without `right` the first place whose boundary is not less than the value, with it the first whose boundary is
    greater.
    """
    walk = Walk(form)
    value = convert("values" if number else f"load_{values}(values, i)", values, compute)
    at = "base + sorter[base + middle]" if sorter else "base + middle"
    boundary = convert(f"load_{boundaries}(boundaries, {at})", boundaries, compute)
    before = "!(b > v)" if right else "!(b >= v)"  # so that NaN comes last, as a value
    body = walk.each(
        f"""\
    {value_ctype(compute)} v = {value};
    long base = i / row * boundary_row;
    long low = 0, high = length;
    while (low < high) {{
      long middle = low + (high - low) / 2;
      {value_ctype(compute)} b = {boundary};
      if ({before}) low = middle + 1; else high = middle;
    }}
    out[i] = low;""",
        vectorize=False,
    )
    params = f"""{out}* out; {f"{values} values" if number else f"const {values}* values"};
        const {boundaries}* boundaries; {"const i64* sorter" if sorter else ""}; i64 row, length, boundary_row"""
    return walk.kernel("search_sorted", parameters(params), body)


@functools.cache
def isin_kernel(elements: str, tests: str, compute: str, invert: bool, form: str) -> Kernel:
    """Whether each element occurs among the tests."""
    walk = Walk(form)
    body = walk.each(
        f"""\
    {value_ctype(compute)} v = {convert(f"load_{elements}(elements, i)", elements, compute)};
    int found = 0;
    {"VECTORIZE" if form == "cpu" else ""}
    for (long t = 0; t < count; ++t) found |= v == {convert(f"load_{tests}(tests, t)", tests, compute)};
    out[i] = {"!found" if invert else "found"};""",
        vectorize=False,
    )
    return walk.kernel(
        "isin", parameters(f"b8* out; const {elements}* elements; const {tests}* tests; i64 count"), body
    )
