"""Kernels of connectionist temporal classification (Graves et al., ICML 2006), in logarithms.

A target of n labels has 2 n + 1 states: its labels with blanks before, between and behind them. `alpha[b, t, s]` is the
logarithm of the chance to have come to state s with time t, `beta[b, t, s]` that of coming from there to the end; both
count the symbol of time t. `lengths[b]` is (times, labels, place of the first label, step from label to label).

One work-group goes through the times of a sample; in the GPU form its work-items share the states.
"""

from __future__ import annotations

import functools

from torchgraft.codegen.kernel import Kernel, Parameter, Pointer, Value
from torchgraft.codegen.pointwise import expression
from torchgraft.codegen.types import value_ctype

GPU_LOCAL = 128

_SHAPE = tuple(Value(name, "i64") for name in ("times", "samples", "classes", "states", "blank"))


def _helpers(target: str) -> str:
    """`tg_label`: the class of a state; what is no class counts as the blank."""
    storage = {"i64": "long", "i32": "int"}[target]
    return f"""
inline long tg_label(const GLOBAL {storage}* targets, const GLOBAL long* lengths, long s, long classes, long blank) {{
  if (s % 2 == 0) return blank;
  const long label = targets[lengths[2] + s / 2 * lengths[3]];
  return label < 0 || label >= classes ? blank : label;
}}
"""


def _log_sum(compute: str, values: tuple[str, ...]) -> str:
    """Statements that set `sum` to the logarithm of the sum of exponentials."""
    t = value_ctype(compute)
    largest = values[0]
    for value in values[1:]:
        largest = f"({largest} > {value} ? {largest} : {value})"
    terms = " + ".join(expression(f"@exp({value} - top)", compute) for value in values)
    return f"""{t} top = {largest};
    if (top == -INFINITY) top = 0;
    const {t} sum = {expression(f"@log({terms})", compute)} + top;"""


def _local(form: str) -> int:
    return GPU_LOCAL if form == "gpu" else 1


def _tensors(type_: str, target: str) -> tuple[Parameter, ...]:
    return (
        Pointer("x", type_, const=True),
        Pointer("targets", target, const=True),
        Pointer("lengths", "i64", const=True),
    )


@functools.cache
def alpha_kernel(type_: str, target: str, form: str) -> Kernel:
    """alpha, which is -inf before, and the loss. Reports a label that is no class."""
    t, local = value_ctype(type_), _local(form)
    params = (
        Pointer("loss", type_),
        Pointer("alpha", type_),
        *_tensors(type_, target),
        Pointer("errors", "i32"),
        Value("code", "i32"),
        *_SHAPE,
    )
    barrier = "BARRIER;" if form == "gpu" else ""
    body = f"""
  const long b = GROUP_ID(0);
  lengths += 4 * b;
  const long last = lengths[0], labels = lengths[1], count = 2 * labels + 1;
  GLOBAL {t}* a = alpha + b * times * states;
  for (long l = LOCAL_ID(0); l < labels; l += {local}) {{
    const long label = targets[lengths[2] + l * lengths[3]];
    if (label < 0 || label >= classes) tg_report(errors, code, label);
  }}
  for (long s = LOCAL_ID(0); s < min(count, 2L) && last > 0; s += {local})
    a[s] = x[b * classes + tg_label(targets, lengths, s, classes, blank)];
  {barrier}
  for (long time = 1; time < last; ++time) {{
    const GLOBAL {t}* before = a;
    a += states;
    for (long s = LOCAL_ID(0); s < count; s += {local}) {{
      const long label = tg_label(targets, lengths, s, classes, blank);
      const {t} stay = before[s], step = s > 0 ? before[s - 1] : -INFINITY;
      const int skips = s > 1 && tg_label(targets, lengths, s - 2, classes, blank) != label;
      const {t} skip = skips ? before[s - 2] : -INFINITY;
      {_log_sum(type_, ("stay", "step", "skip"))}
      a[s] = sum + x[(time * samples + b) * classes + label];
    }}
    {barrier}
  }}
  if (LOCAL_ID(0) == 0) {{
    if (last == 0) {{
      loss[b] = labels == 0 ? 0 : INFINITY;
    }} else {{
      const {t} one = a[count - 1], two = count > 1 ? a[count - 2] : -INFINITY;
      {_log_sum(type_, ("one", "two"))}
      loss[b] = -sum;
    }}
  }}"""
    return Kernel("ctc_alpha", params, body, helpers=_helpers(target), local=(local,))


@functools.cache
def beta_kernel(type_: str, target: str, form: str) -> Kernel:
    """beta, from the last time to the first."""
    t, local = value_ctype(type_), _local(form)
    barrier = "BARRIER;" if form == "gpu" else ""
    body = f"""
  const long b = GROUP_ID(0);
  lengths += 4 * b;
  const long last = lengths[0], labels = lengths[1], count = 2 * labels + 1;
  for (long time = last - 1; time >= 0; --time) {{
    GLOBAL {t}* to = beta + (b * times + time) * states;
    const GLOBAL {t}* after = to + states;
    const int first = time == last - 1;
    for (long s = LOCAL_ID(0); s < count; s += {local}) {{
      const long label = tg_label(targets, lengths, s, classes, blank);
      const int skips = s + 2 < count && tg_label(targets, lengths, s + 2, classes, blank) != label;
      const {t} stay = first ? (s + 2 < count ? -INFINITY : 0) : after[s];
      const {t} step = !first && s + 1 < count ? after[s + 1] : -INFINITY;
      const {t} skip = !first && skips ? after[s + 2] : -INFINITY;
      {_log_sum(type_, ("stay", "step", "skip"))}
      to[s] = sum + x[(time * samples + b) * classes + label];
    }}
    {barrier}
  }}"""
    params = (Pointer("beta", type_), *_tensors(type_, target), *_SHAPE)
    return Kernel("ctc_beta", params, body, helpers=_helpers(target), local=(local,))


@functools.cache
def gradient_kernel(type_: str, target: str, form: str) -> Kernel:
    """Gradient of the log probabilities: a work-item for each sample and time, `chunk` of them one after the other.

    The chance of each class at that time is added up in the result itself.
    """
    t, local = value_ctype(type_), _local(form)
    params = (
        Pointer("out", type_),
        *(Pointer(name, type_, const=True) for name in ("grad", "loss", "alpha", "beta")),
        *_tensors(type_, target),
        *_SHAPE,
        Value("zero_infinity", "i32"),
        Value("chunk", "i64"),
    )
    slope = expression("(@exp(p) - @exp(to[c] + loss[b] - p)) * grad[b]", type_)
    body = f"""
  const long end = min(times * samples, (long)(GLOBAL_ID(0) + 1) * chunk);
  for (long row = GLOBAL_ID(0) * chunk; row < end; ++row) {{
    const long time = row / samples, b = row % samples;
    const GLOBAL long* own = lengths + 4 * b;
    GLOBAL {t}* to = out + row * classes;
    const int counts = time < own[0] && !(zero_infinity && loss[b] == INFINITY);
    for (long c = 0; c < classes; ++c) to[c] = counts ? -INFINITY : 0;
    if (!counts) continue;
    const long from = (b * times + time) * states;
    for (long s = 0; s <= 2 * own[1]; ++s) {{
      const long label = tg_label(targets, own, s, classes, blank);
      const {t} one = to[label], two = alpha[from + s] + beta[from + s];
      {_log_sum(type_, ("one", "two"))}
      to[label] = sum;
    }}
    for (long c = 0; c < classes; ++c) {{
      const {t} p = x[row * classes + c];
      to[c] = {slope};
    }}
  }}"""
    return Kernel("ctc_gradient", params, body, helpers=_helpers(target), local=(local,))
