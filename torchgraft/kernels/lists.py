"""Norms of the tensors of a list: two launches for many tensors."""

from __future__ import annotations

import functools

from torchgraft.codegen.kernel import Kernel, Parameter, Pointer, Value
from torchgraft.codegen.types import BY_NAME, value_ctype

COUNT = 16
"""Tensors of one launch."""
_LANES = 64

# Order -> term of an element, how terms are put together, and the norm of the whole.
_ORDERS = {
    "1": ("@abs(x)", "a + b", "a"),
    "2": ("x * x", "a + b", "sqrt(a)"),
    "inf": ("@abs(x)", "a > b || a != a ? a : b", "a"),
}


def _parts(order: str, compute: str) -> tuple[str, str, str]:
    term, combine, last = _ORDERS[order]
    return term.replace("@abs", f"tg_abs_{compute}"), combine, last


@functools.cache
def norm_parts(order: str, storage: str) -> Kernel:
    """A group's part of each tensor. Arguments: tensors, their numbers of elements summed up, chunk, room [groups,
    COUNT].
    """
    compute = BY_NAME[storage].compute
    ctype = value_ctype(compute)
    term, combine, _ = _parts(order, compute)
    pointer = f"GLOBAL {BY_NAME[storage].storage}*"
    step = f"{ctype} x = load_{storage}(x_p, i + j); {ctype} a = lanes[j], b = {term}; lanes[j] = {combine};"
    body = f"""\
  {pointer} x_of[{COUNT}] = {{{", ".join(f"x_p_{t}" for t in range(COUNT))}}};
  long last_of[{COUNT}] = {{{", ".join(f"last_{t}" for t in range(COUNT))}}};
  long begin = (long)GROUP_ID(0) * chunk;
  for (int t = 0; t < {COUNT}; ++t) {{
    long first = t == 0 ? 0 : last_of[t - 1];
    long low = begin > first ? begin - first : 0;
    long high = (begin + chunk < last_of[t] ? begin + chunk : last_of[t]) - first;
    if (low >= high) continue;
    {pointer} x_p = x_of[t];
    {ctype} lanes[{_LANES}];
    VECTORIZE
    for (int j = 0; j < {_LANES}; ++j) lanes[j] = 0;
    long i = low;
    for (; i + {_LANES} <= high; i += {_LANES}) {{
      VECTORIZE
      for (int j = 0; j < {_LANES}; ++j) {{ {step} }}
    }}
    for (int j = 0; j < high - i; ++j) {{ {step} }}
    {ctype} sum = 0;
    for (int j = 0; j < {_LANES}; ++j) {{ {ctype} a = sum, b = lanes[j]; sum = {combine}; }}
    room[GROUP_ID(0) * {COUNT} + t] = sum;
  }}"""
    params: list[Parameter] = [Pointer(f"x_p_{t}", storage) for t in range(COUNT)]
    params += [Value(f"last_{t}", "i64") for t in range(COUNT)]
    return Kernel("norm_parts", (*params, Value("chunk", "i64"), Pointer("room", compute)), body)


@functools.cache
def norm_ends(order: str, compute: str, storage: str) -> Kernel:
    """Arguments: results, the numbers of elements summed up, chunk, room [groups, COUNT]."""
    ctype = value_ctype(compute)
    _, combine, last = _parts(order, compute)
    body = f"""\
  GLOBAL {BY_NAME[storage].storage}* out_of[{COUNT}] = {{{", ".join(f"out_{t}" for t in range(COUNT))}}};
  long last_of[{COUNT}] = {{{", ".join(f"last_{t}" for t in range(COUNT))}}};
  for (int t = 0; t < {COUNT}; ++t) {{
    if (out_of[t] == 0) continue;
    long first = t == 0 ? 0 : last_of[t - 1];
    {ctype} sum = 0;
    if (first < last_of[t])
      for (long g = first / chunk; g <= (last_of[t] - 1) / chunk; ++g) {{
        {ctype} a = sum, b = room[g * {COUNT} + t];
        sum = {combine};
      }}
    {ctype} a = sum;
    store_{storage}(out_of[t], 0, {last});
  }}"""
    params: list[Parameter] = [Pointer(f"out_{t}", storage) for t in range(COUNT)]
    params += [Value(f"last_{t}", "i64") for t in range(COUNT)]
    return Kernel("norm_ends", (*params, Value("chunk", "i64"), Pointer("room", compute)), body)
