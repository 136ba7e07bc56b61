"""Kernels of connectionist temporal classification (Graves et al., ICML 2006), in logarithms.

A target of n labels has 2 n + 1 states: its labels with blanks before, between and behind them. `alpha[b, t, s]` is the
logarithm of the chance to have come to state s with time t, `beta[b, t, s]` that of coming from there to the end; both
count the symbol of time t. `lengths[b]` is (times, labels, place of the first label, step from label to label).

A team goes through the times of a sample and shares the states.
"""

from __future__ import annotations

import functools

from torchgraft.codegen.kernel import Kernel, Parameter, parameters
from torchgraft.codegen.pointwise import expression
from torchgraft.codegen.teams import Layout, Team
from torchgraft.codegen.types import value_ctype
from torchgraft.codegen.walk import Walk

#: Work-items of a group in the GPU form.
_TEAM = 128


def _helpers(target: str) -> str:
    """`tg_label`: the class of a state; what is no class counts as the blank."""
    storage = {"i64": "long", "i32": "int"}[target]
    return f"""
static inline long tg_label(
    const GLOBAL {storage}* targets, const GLOBAL long* lengths, long s, long classes, long blank) {{
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


# What all kernels take: `x` (times, samples, classes), `targets`, `lengths`, and sizes.
def _params(own: str, type_: str, target: str) -> tuple[Parameter, ...]:
    return parameters(
        f"{own}; const {type_}* x; const {target}* targets; const i64* lengths; "
        "i64 times, samples, classes, states, blank"
    )


# Of the sample that a team has: its lengths, and how many states it goes through.
_SAMPLE = """const GLOBAL long* own = lengths + 4 * row;
    const long last = own[0], labels = own[1], count = 2 * labels + 1;"""


@functools.cache
def alpha_kernel(type_: str, target: str, form: str) -> Kernel:
    """alpha, which is -inf before, and the loss. Reports a label that is no class. Parameters besides: `loss`, `alpha`,
    `errors`, `code`."""
    team, t = Team(Layout(form), group=_TEAM), value_ctype(type_)
    check = """const long label = targets[own[2] + c * own[3]];
      if (label < 0 || label >= classes) tg_report(errors, code, label);"""
    start = "a[c] = x[row * classes + tg_label(targets, own, c, classes, blank)];"
    state = f"""const long label = tg_label(targets, own, c, classes, blank);
      const {t} stay = before[c], step = c > 0 ? before[c - 1] : -INFINITY;
      const int skips = c > 1 && tg_label(targets, own, c - 2, classes, blank) != label;
      const {t} skip = skips ? before[c - 2] : -INFINITY;
      {_log_sum(type_, ("stay", "step", "skip"))}
      a[c] = sum + x[(time * samples + row) * classes + label];"""
    finish = f"""if (last == 0) {{
      loss[row] = labels == 0 ? 0 : INFINITY;
    }} else {{
      const {t} one = a[count - 1], two = count > 1 ? a[count - 2] : -INFINITY;
      {_log_sum(type_, ("one", "two"))}
      loss[row] = -sum;
    }}"""
    return team.kernel(
        "ctc_alpha",
        _params(f"{type_}* loss, alpha; i32* errors; i32 code", type_, target),
        f"{_SAMPLE} GLOBAL {t}* a = alpha + row * times * states;",
        team.each(check, vectorize=False, size="labels"),
        f"if (last > 0) {team.each(start, vectorize=False, size='min(count, (long)2)')}",
        team.sync,
        f"for (long time = 1; time < last; ++time) {{ const GLOBAL {t}* before = a; a += states;",
        team.each(state, vectorize=False, size="count"),
        f"{team.sync} }}",
        team.leader(finish),
        helpers=_helpers(target),
    )


@functools.cache
def beta_kernel(type_: str, target: str, form: str) -> Kernel:
    """beta, from the last time to the first. Parameter besides: `beta`."""
    team, t = Team(Layout(form), group=_TEAM), value_ctype(type_)
    state = f"""const long label = tg_label(targets, own, c, classes, blank);
      const int skips = c + 2 < count && tg_label(targets, own, c + 2, classes, blank) != label;
      const {t} stay = first ? (c + 2 < count ? -INFINITY : 0) : after[c];
      const {t} step = !first && c + 1 < count ? after[c + 1] : -INFINITY;
      const {t} skip = !first && skips ? after[c + 2] : -INFINITY;
      {_log_sum(type_, ("stay", "step", "skip"))}
      to[c] = sum + x[(time * samples + row) * classes + label];"""
    return team.kernel(
        "ctc_beta",
        _params(f"{type_}* beta", type_, target),
        _SAMPLE,
        f"""for (long time = last - 1; time >= 0; --time) {{
      GLOBAL {t}* to = beta + (row * times + time) * states;
      const GLOBAL {t}* after = to + states;
      const int first = time == last - 1;""",
        team.each(state, vectorize=False, size="count"),
        f"{team.sync} }}",
        helpers=_helpers(target),
    )


@functools.cache
def gradient_kernel(type_: str, target: str, form: str) -> Kernel:
    """Gradient of the log probabilities. The walk is over (times, samples); the chance of each class at that time is
    added up in the result itself. Parameters besides: `out`, `grad`, `loss`, `alpha`, `beta`, `zero_infinity`."""
    walk, t = Walk(form), value_ctype(type_)
    slope = expression("(@exp(p) - @exp(to[c] + loss[b] - p)) * grad[b]", type_)
    row = f"""
    const long time = i / samples, b = i % samples;
    const GLOBAL long* own = lengths + 4 * b;
    GLOBAL {t}* to = out + i * classes;
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
      const {t} p = x[i * classes + c];
      to[c] = {slope};
    }}"""
    params = _params(f"{type_}* out; const {type_}* grad, loss, alpha, beta; i32 zero_infinity", type_, target)
    return walk.kernel("ctc_gradient", params, walk.each(row, vectorize=False), helpers=_helpers(target))
