"""Norms of the tensors of a list: two launches for many tensors."""

from __future__ import annotations

import functools

from torchgraft.codegen.kernel import Kernel, parameters
from torchgraft.codegen.pointwise import expression
from torchgraft.codegen.teams import LANES
from torchgraft.codegen.types import BY_NAME, value_ctype
from torchgraft.codegen.walk import Walk

COUNT = 16
"""Tensors of one launch."""

# Order -> term of an element, how terms are put together, and the norm of the whole.
_ORDERS = {
    "1": ("@abs(x)", "a + b", "a"),
    "2": ("x * x", "a + b", "@sqrt(a)"),
    "inf": ("@abs(x)", "a > b || a != a ? a : b", "a"),
}


def _numbered(name: str) -> str:
    return ", ".join(f"{name}_{t}" for t in range(COUNT))


@functools.cache
def norm_parts(order: str, storage: str) -> Kernel:
    """A group's part of each tensor; the walk is over all elements of the list.

    Parameters: tensors `x_<t>`, `last_<t>`, their numbers of elements summed up, and `room`, [groups, COUNT].
    """
    walk, compute = Walk("cpu", prefix="tg_"), BY_NAME[storage].compute
    ctype, pointer = value_ctype(compute), f"GLOBAL const {BY_NAME[storage].storage}*"
    term, combine = (expression(text, compute) for text in _ORDERS[order][:2])
    step = f"{ctype} x = load_{storage}(x_p, i + j); {ctype} a = lanes[j], b = {term}; lanes[j] = {combine};"
    body = f"""\
  {pointer} x_of[{COUNT}] = {{{_numbered("x")}}};
  long last_of[{COUNT}] = {{{_numbered("last")}}};
  for (int t = 0; t < {COUNT}; ++t) {{
    const long first = t == 0 ? 0 : last_of[t - 1];
    const long low = max(tg_begin - first, (long)0), high = min(tg_end, last_of[t]) - first;
    if (low >= high) continue;
    {pointer} x_p = x_of[t];
    {ctype} lanes[{LANES}];
    VECTORIZE
    for (int j = 0; j < {LANES}; ++j) lanes[j] = 0;
    long i = low;
    for (; i + {LANES} <= high; i += {LANES}) {{
      VECTORIZE
      for (int j = 0; j < {LANES}; ++j) {{ {step} }}
    }}
    for (int j = 0; j < high - i; ++j) {{ {step} }}
    {ctype} sum = 0;
    for (int j = 0; j < {LANES}; ++j) {{ {ctype} a = sum, b = lanes[j]; sum = {combine}; }}
    room[GROUP_ID(0) * {COUNT} + t] = sum;
  }}"""
    params = parameters(f"const {storage}* {_numbered('x')}; i64 {_numbered('last')}; {compute}* room")
    return walk.kernel("norm_parts", params, body)


@functools.cache
def norm_ends(order: str, storage: str) -> Kernel:
    """Norms of the parts; the walk is over tensors.

    Parameters: results `out_<t>`, `last_<t>`, the elements of a `part`, and `room` as of `norm_parts`.
    """
    walk, compute = Walk("cpu"), BY_NAME[storage].compute
    ctype = value_ctype(compute)
    combine, norm = (expression(text, compute) for text in _ORDERS[order][1:])
    end = f"""
  const long first = i == 0 ? 0 : last_of[i - 1];
  {ctype} a = 0;
  for (long group = first / part; group <= (last_of[i] - 1) / part; ++group) {{
    const {ctype} b = room[group * {COUNT} + i];
    a = {combine};
  }}
  store_{storage}(out_of[i], 0, {norm});"""
    body = f"""\
  GLOBAL {BY_NAME[storage].storage}* out_of[{COUNT}] = {{{_numbered("out")}}};
  long last_of[{COUNT}] = {{{_numbered("last")}}};
  {walk.each(end, vectorize=False)}"""
    params = parameters(f"{storage}* {_numbered('out')}; i64 {_numbered('last')}, part; const {compute}* room")
    return walk.kernel("norm_ends", params, body)
