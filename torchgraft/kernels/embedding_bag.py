"""Kernels of embedding bags: sums, means or largest elements of the table's rows that a bag names, and their gradients.

All tensors are contiguous. Bag b holds the indices from offsets[b] up to the next offset; the last one those up to the
end, or up to a last offset that has no bag of its own. Modes are numbered as in PyTorch.
"""

from __future__ import annotations

import functools

from torchgraft.codegen.kernel import Kernel, parameters
from torchgraft.codegen.teams import Layout, Team
from torchgraft.codegen.types import BY_NAME, value_ctype
from torchgraft.codegen.walk import Walk

SUM, MEAN, MAX = 0, 1, 2


@functools.cache
def bags_kernel(index: str, form: str) -> Kernel:
    """To which bag each index belongs, and how many of a bag count. The walk is over bags. Parameters: `bag_of`,
    `sizes`, `indices`, `offsets`, `errors`, `first_code`, `code`, `given`, `count`, `padding`.

    Offsets that are no offsets, or do not begin with 0, are reported; then the bags hold what lies inside.
    """
    walk = Walk(form)
    bag = f"""
  const long start = offsets[i], stop = i + 1 < given ? (long)offsets[i + 1] : count;
  if (i == 0 && start != 0) tg_report(errors, first_code, start);
  if (start < 0 || start > count) tg_report(errors, code, start);
  if (stop < start || stop > count) tg_report(errors, code, stop);
  {BY_NAME[index].storage} size = 0;
  for (long k = max(start, (long)0); k < min(stop, count); ++k) {{
    bag_of[k] = i;
    size += indices[k] != padding;
  }}
  sizes[i] = size;"""
    params = parameters(
        f"{index}* bag_of, sizes; const {index}* indices, offsets; i32* errors; i32 first_code, code; "
        "i64 given, count, padding"
    )
    return walk.kernel("embedding_bags", params, walk.each(bag, vectorize=False))


@functools.cache
def forward_kernel(layout: Layout, type_: str, index: str, mode: int, weighted: bool) -> Kernel:
    """The team's rows are (bag, column). Of a bag without rows the result is 0. Parameters: `out`, `places` if the mode
    is MAX, `weight`, `sizes`, `indices`, `offsets`, `factors` if `weighted`, `errors`, `code`, `given`, `count`,
    `padding`, `limit`."""
    team, compute = Team(layout), BY_NAME[type_].compute
    t = value_ctype(compute)
    value = f"const {t} x = load_{type_}(weight, row * inner + {team.column});"
    if weighted:
        value += f" const {t} f = load_{type_}(factors, i);"
    step, store = f"a += x{' * f' if weighted else ''};", "a"
    if mode == MAX:
        step = "if (!seen || x > a) { a = x; at = row; }"
    elif mode == MEAN:
        store += " / max((long)sizes[o], (long)1)"
    parts = [team.var("a", compute, "0"), team.var("at", "i64", "0") if mode == MAX else ""]
    bag = f"""const long first = max((long)offsets[o], (long)0);
    const long stop = min(o + 1 < given ? (long)offsets[o + 1] : count, count);
    int seen = 0;
    for (long i = first; i < stop; ++i) {{
      const long row = indices[i];
      if (row < 0 || row >= limit) {{ tg_report(errors, code, row); continue; }}
      if (row == padding) continue;
      {team.leader(f"{value} {step}")}
      seen = 1;
    }}"""
    place = f"o * inner + {team.column}"
    more = f"places[{place}] = at;" if mode == MAX else ""
    params = parameters(
        f"{type_}* out; {f'{index}* places' if mode == MAX else ''}; const {type_}* weight; "
        f"const {index}* sizes, indices, offsets; {f'const {type_}* factors' if weighted else ''}; "
        "i32* errors; i32 code; i64 given, count, padding, limit"
    )
    return team.kernel(
        "embedding_bag", params, *parts, bag, team.leader(f"store_{type_}(out, {place}, {store}); {more}")
    )


_ROWS = """
  const long low = (long)GROUP_ID(1) * rows, high = min(limit, low + rows);
  for (long row = low; row < high; ++row)"""


@functools.cache
def backward_kernel(type_: str, index: str, out: str, mode: int, scaled: bool, weighted: bool, form: str) -> Kernel:
    """Gradient of the table. The walk is over columns; work-items along dimension 1 share its rows, `rows` each, which
    they set to zero first. Parameters: `out`, `grad`, `indices`, `bag_of`, `sizes`, `counts` if `scaled`, `factors` if
    `weighted`, `count`, `padding`, `limit`, `rows`.

    With `scaled` a row's gradient is divided by how often the row was named, `counts`.
    """
    walk, t = Walk(form), value_ctype(out)
    factor = f"({t})1"
    if mode == MEAN:
        factor += " / max((long)sizes[b], (long)1)"
    if weighted:
        factor += f" * load_{type_}(factors, k)"
    if scaled:
        factor += " / counts[row]"
    body = f"""{_ROWS}
    {walk.each("out[row * n + i] = 0;")}
  for (long k = 0; k < count; ++k) {{
    const long row = indices[k], b = bag_of[k];
    if (row < low || row >= high || row == padding || b < 0) continue;
    const {t} factor = {factor};
    {walk.each(f"out[row * n + i] += factor * load_{type_}(grad, b * n + i);")}
  }}"""
    params = parameters(
        f"{out}* out; const {type_}* grad; const {index}* indices, bag_of, sizes; "
        f"{'const i32* counts' if scaled else ''}; {f'const {type_}* factors' if weighted else ''}; "
        "i64 count, padding, limit, rows"
    )
    return walk.kernel("embedding_bag_backward", params, body, dims=2)


@functools.cache
def max_backward_kernel(type_: str, index: str, out: str, form: str) -> Kernel:
    """As `backward_kernel`, where the elements of a bag come from the rows in `places`. Parameters: `out`, `grad`,
    `places`, `sizes`, `bags`, `limit`, `rows`."""
    walk = Walk(form)
    move = f"""
      const long row = places[b * n + i];
      if (row >= low && row < high) out[row * n + i] += load_{type_}(grad, b * n + i);"""
    body = f"""{_ROWS}
    {walk.each("out[row * n + i] = 0;")}
  for (long b = 0; b < bags; ++b) {{
    if (sizes[b] <= 0) continue;
    {walk.each(move, vectorize=False)}
  }}"""
    params = parameters(f"{out}* out; const {type_}* grad; const {index}* places, sizes; i64 bags, limit, rows")
    return walk.kernel("embedding_bag_max_backward", params, body, dims=2)


@functools.cache
def factors_backward_kernel(type_: str, index: str, form: str) -> Kernel:
    """Gradient of the factors of a weighted sum. The walk is over indices. Parameters: `out`, `grad`, `weight`,
    `indices`, `bag_of`, `padding`, `limit`, `width`."""
    walk, compute = Walk(form), value_ctype(BY_NAME[type_].compute)
    element = f"""
    const long row = indices[i], b = bag_of[i];
    {compute} sum = 0;
    if (row != padding && row >= 0 && row < limit && b >= 0)
      for (long c = 0; c < width; ++c)
        sum += load_{type_}(grad, b * width + c) * load_{type_}(weight, row * width + c);
    store_{type_}(out, i, sum);"""
    params = parameters(
        f"{type_}* out; const {type_}* grad, weight; const {index}* indices, bag_of; i64 padding, limit, width"
    )
    return walk.kernel("embedding_bag_factors_backward", params, walk.each(element, vectorize=False))
