"""Kernels of embedding bags: sums, means or largest elements of the table's rows that a bag names, and their gradients.

All tensors are contiguous. Bag b holds the indices from offsets[b] up to the next offset; the last one those up to the
end, or up to a last offset that has no bag of its own. Modes are numbered as in PyTorch.
"""

from __future__ import annotations

import functools

from torchgraft.codegen.kernel import Kernel, Parameter, Pointer, Value
from torchgraft.codegen.types import BY_NAME, value_ctype

SUM, MEAN, MAX = 0, 1, 2
WIDTH = 64
GPU_LOCAL = 64


def _longs(*names: str) -> tuple[Parameter, ...]:
    return tuple(Value(name, "i64") for name in names)


# The part of the columns that a work-item of each form treats: `first` <= c < `last`.
_COLUMNS = {
    "gpu": f"const long first = (long)GROUP_ID(0) * {GPU_LOCAL} + LOCAL_ID(0), last = min(first + 1, width);",
    "cpu": f"const long first = (long)GROUP_ID(0) * {WIDTH}, last = min(width, first + {WIDTH});",
}


def local(form: str) -> tuple[int, int]:
    """Work-items of a group: dimension 0 is for columns."""
    return (GPU_LOCAL, 1) if form == "gpu" else (1, 1)


def columns(form: str) -> int:
    """Columns that a group treats."""
    return GPU_LOCAL if form == "gpu" else WIDTH


@functools.cache
def bags_kernel(index: str) -> Kernel:
    """To which bag each index belongs, and how many of a bag count; one work-item for a bag.

    Offsets that are no offsets, or do not begin with 0, are reported; then the bags hold what lies inside.
    """
    params = (
        *(Pointer(name, index) for name in ("bag_of", "sizes")),
        *(Pointer(name, index, const=True) for name in ("indices", "offsets")),
        Pointer("errors", "i32"),
        *(Value(name, "i32") for name in ("first_code", "code")),
        *_longs("bags", "given", "count", "padding"),
    )
    body = f"""
  const long b = GROUP_ID(0);
  const long start = offsets[b], end = b + 1 < given ? (long)offsets[b + 1] : count;
  if (b == 0 && start != 0) tg_report(errors, first_code, start);
  if (start < 0 || start > count) tg_report(errors, code, start);
  if (end < start || end > count) tg_report(errors, code, end);
  {BY_NAME[index].storage} size = 0;
  for (long i = max(start, 0L); i < min(end, count); ++i) {{
    bag_of[i] = b;
    size += indices[i] != padding;
  }}
  sizes[b] = size;"""
    return Kernel("embedding_bags", params, body)


@functools.cache
def forward_kernel(type_: str, index: str, mode: int, weighted: bool, form: str) -> Kernel:
    """A work-item for a bag and some columns. Of a bag without rows the result is 0."""
    compute = BY_NAME[type_].compute
    t = value_ctype(compute)
    pointers: list[Parameter] = [Pointer("out", type_)]
    if mode == MAX:
        pointers.append(Pointer("places", index))
    pointers += [Pointer("weight", type_, const=True), Pointer("sizes", index, const=True)]
    pointers += [Pointer(name, index, const=True) for name in ("indices", "offsets")]
    if weighted:
        pointers.append(Pointer("factors", type_, const=True))
    params = (
        *pointers,
        Pointer("errors", "i32"),
        Value("code", "i32"),
        *_longs("bags", "given", "count", "padding", "limit", "width"),
    )
    value = f"load_{type_}(weight, row * width + c)"
    if mode == MAX:
        step = f"const {t} v = {value}; if (!seen || v > a[c - first]) {{ a[c - first] = v; at[c - first] = row; }}"
    else:
        step = f"a[c - first] += {f'load_{type_}(factors, i) * ' if weighted else ''}{value};"
    more, store = "", "a[c - first]"
    if mode == MAX:
        more = "places[b * width + c] = at[c - first];"
    elif mode == MEAN:
        store += " / max((long)sizes[b], 1L)"
    vectorize = "" if form == "gpu" else "VECTORIZE"
    lanes = 1 if form == "gpu" else WIDTH
    body = f"""
  {_COLUMNS[form]}
  const long b = GROUP_ID(1);
  const long start = max((long)offsets[b], 0L), end = min(b + 1 < given ? (long)offsets[b + 1] : count, count);
  {t} a[{lanes}];
  {f"{BY_NAME[index].storage} at[{lanes}];" if mode == MAX else ""}
  for (long c = first; c < last; ++c) {{ a[c - first] = 0; {"at[c - first] = 0;" if mode == MAX else ""} }}
  int seen = 0;
  for (long i = start; i < end; ++i) {{
    const long row = indices[i];
    if (row < 0 || row >= limit) {{ tg_report(errors, code, row); continue; }}
    if (row == padding) continue;
    {vectorize} for (long c = first; c < last; ++c) {{ {step} }}
    seen = 1;
  }}
  {vectorize} for (long c = first; c < last; ++c) {{ store_{type_}(out, b * width + c, {store}); {more} }}"""
    return Kernel("embedding_bag", params, body, local=local(form))


@functools.cache
def backward_kernel(type_: str, index: str, out: str, mode: int, scaled: bool, weighted: bool, form: str) -> Kernel:
    """Gradient of the table. Work-items along dimension 1 share its rows, `rows` each, which they set to zero first.

    With `scaled` a row's gradient is divided by how often the row was named, `counts`.
    """
    t = value_ctype(out)
    pointers: list[Parameter] = [Pointer("out", out), Pointer("grad", type_, const=True)]
    pointers += [Pointer(name, index, const=True) for name in ("indices", "bag_of", "sizes")]
    if scaled:
        pointers.append(Pointer("counts", "i32", const=True))
    if weighted:
        pointers.append(Pointer("factors", type_, const=True))
    params = (*pointers, *_longs("count", "padding", "limit", "width", "rows"))
    factor = f"({t})1"
    if mode == MEAN:
        factor += " / max((long)sizes[b], 1L)"
    if weighted:
        factor += f" * load_{type_}(factors, i)"
    if scaled:
        factor += " / counts[row]"
    vectorize = "" if form == "gpu" else "VECTORIZE"
    body = f"""
  {_COLUMNS[form]}
  const long low = (long)GROUP_ID(1) * rows, high = min(limit, low + rows);
  for (long row = low; row < high; ++row)
    {vectorize} for (long c = first; c < last; ++c) out[row * width + c] = 0;
  for (long i = 0; i < count; ++i) {{
    const long row = indices[i], b = bag_of[i];
    if (row < low || row >= high || row == padding || b < 0) continue;
    const {t} factor = {factor};
    {vectorize} for (long c = first; c < last; ++c) out[row * width + c] += factor * load_{type_}(grad, b * width + c);
  }}"""
    return Kernel("embedding_bag_backward", params, body, local=local(form))


@functools.cache
def max_backward_kernel(type_: str, index: str, out: str, form: str) -> Kernel:
    """As `backward_kernel`, where the elements of a bag come from the rows in `places`."""
    params = (
        Pointer("out", out),
        Pointer("grad", type_, const=True),
        *(Pointer(name, index, const=True) for name in ("places", "sizes")),
        *_longs("bags", "limit", "width", "rows"),
    )
    body = f"""
  {_COLUMNS[form]}
  const long low = (long)GROUP_ID(1) * rows, high = min(limit, low + rows);
  for (long row = low; row < high; ++row)
    for (long c = first; c < last; ++c) out[row * width + c] = 0;
  for (long b = 0; b < bags; ++b) {{
    if (sizes[b] <= 0) continue;
    for (long c = first; c < last; ++c) {{
      const long row = places[b * width + c];
      if (row >= low && row < high) out[row * width + c] += load_{type_}(grad, b * width + c);
    }}
  }}"""
    return Kernel("embedding_bag_max_backward", params, body, local=local(form))


@functools.cache
def factors_backward_kernel(type_: str, index: str) -> Kernel:
    """Gradient of the factors of a weighted sum; a work-item takes `chunk` indices."""
    compute = value_ctype(BY_NAME[type_].compute)
    params = (
        Pointer("out", type_),
        *(Pointer(name, type_, const=True) for name in ("grad", "weight")),
        *(Pointer(name, index, const=True) for name in ("indices", "bag_of")),
        *_longs("count", "padding", "limit", "width", "chunk"),
    )
    body = f"""
  const long end = min(count, (long)(GROUP_ID(0) + 1) * chunk);
  for (long i = GROUP_ID(0) * chunk; i < end; ++i) {{
    const long row = indices[i], b = bag_of[i];
    {compute} sum = 0;
    if (row != padding && row >= 0 && row < limit && b >= 0)
      for (long c = 0; c < width; ++c)
        sum += load_{type_}(grad, b * width + c) * load_{type_}(weight, row * width + c);
    store_{type_}(out, i, sum);
  }}"""
    return Kernel("embedding_bag_factors_backward", params, body)
