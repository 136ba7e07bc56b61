"""Attention by matrix products, in the GPU form: what is done with the rows of scores between the products.

Scores, and whatever has their shape, are contiguous: rows of keys, those of a head's queries one after the other, and
heads after each other. A group has a row. The scores that come from a product are scaled already; bias and causal limit
are added here, wherever scores are read.
"""

from __future__ import annotations

import functools

from torchgraft.codegen.kernel import Kernel, parameters
from torchgraft.codegen.teams import Layout, Team
from torchgraft.kernels.attention.variant import Variant

# Work-items of a group have this many keys each, where rows are neither short nor long.
_KEYS = 4
_LEAST_GROUP, _LARGEST_GROUP = 64, 256


def group_of(keys: int) -> int:
    """Work-items of a group for rows of so many keys: a power of two."""
    wanted = 1 << (max(1, keys // _KEYS) - 1).bit_length()
    return min(max(wanted, _LEAST_GROUP), _LARGEST_GROUP)


def _team(group: int) -> Team:
    return Team(Layout("gpu"), group=group)


def _head(v: Variant, places: bool = False) -> str:
    """Which query a group has: ``qi`` of head ``bh`` among all, ``line`` among all queries; and how many of the keys
    are `seen`. With a bias, or if asked for, also batch ``b`` and head ``h`` in it. A launch has fewer than 2 ** 32
    rows, and short divisions are quicker.
    """
    seen = "qi + 1 < size ? qi + 1 : size" if v.causal else "size"
    text = f"""\
const long qi = (uint)row % (uint)sq, bh = first + (uint)row / (uint)sq, line = first * sq + row;
    const long seen = {seen};"""
    if v.bias or places:
        text += "\n    const long b = (uint)bh / (uint)heads, h = (uint)bh % (uint)heads;"
    if v.bias:
        text += "\n    const long bias_at = b * bsb + h * bsh + qi * bsq;"
    return text


def _score(v: Variant, at: str) -> str:
    """The score of key ``c``, with its bias."""
    score = f"load_{v.compute}(scores, {at})"
    return f"({score} + {v.bias_value('bias_at + c * bsk')})" if v.bias else score


def _sizes(v: Variant) -> str:
    """What all kernels take besides: the heads `first` that come before the launch's, the queries of each, and the
    bias with its strides."""
    return f"i64 first, sq, heads; {f'const {v.bias}* bias; i64 bsb, bsh, bsq, bsk' if v.bias else ''}"


@functools.cache
def weights(v: Variant, group: int) -> Kernel:
    """The softmax of rows.

    Parameters: `scores` (overwritten), `out`, the weights, which may be the same memory if they have its type, `lse`,
    the logarithms of sums of all queries, and `_sizes`.
    """
    team, t = _team(group), v.compute
    # NaN must not be the largest: it shows in the sum. Of rows without keys nothing is left but zeros.
    largest = f"const {v.scalar} v = {_score(v, team.at)}; A.top = v > A.top ? v : A.top;"
    # A work-item reads nothing that another has written, so that these need not meet.
    exponential = f"const {v.scalar} e = tg_exp_{t}({_score(v, team.at)} - base);"
    weight = f"load_{t}(scores, {team.at}) * by"
    return team.kernel(
        f"attention_weights_{v.storage}",
        parameters(f"{t}* scores; {v.storage}* out; {t}* lse; {_sizes(v)}"),
        _head(v),
        team.fold({"top": (t, "-INFINITY")}, largest, "A.top = B.top > A.top ? B.top : A.top;", size="seen"),
        team.let("base", t, "top == -INFINITY ? 0 : top"),
        team.sum({"sum": t}, f"{exponential} store_{t}(scores, {team.at}, e); A.sum += e;", size="seen"),
        team.let("by", t, "sum == 0 ? 0 : 1 / sum"),
        team.each(f"store_{v.storage}(out, {team.at}, {f'c < seen ? {weight} : 0' if v.causal else weight});"),
        team.leader(f"store_{t}(lse, line, sum == 0 ? ({v.scalar})INFINITY : top + tg_log_{t}(sum));"),
    )


@functools.cache
def gradients(v: Variant, group: int, of_values: bool, of_scores: bool) -> Kernel:
    """What the gradients' products take.

    Parameters: `scores` and `lse`; `out`, the weights, if the gradient `of_values` is wanted; if that `of_scores` is,
    `dp`, the weights' gradient, `ds`, the scores' gradient but for the scale, and `g`, `o`, the result's gradient and
    the result, with their strides and `value_head`; `_sizes`. Outputs may be the same memory as `scores` and `dp` in
    this order, if they have its type.
    """
    team, t, s = _team(group), v.compute, v.storage
    declarations, delta = f"const {t}* scores, lse", ""
    value = f"tg_exp_{t}({_score(v, team.at)} - less)"
    steps = [f"const {v.scalar} e = {f'c < seen ? {value} : 0' if v.causal else value};"]
    if of_scores:
        declarations += f"; const {t}* dp; {s}* ds; const {s}* g, o; i64 gsb, gsh, gss, osb, osh, oss, value_head"
        product = f"load_{s}(g, b * gsb + h * gsh + qi * gss + c) * load_{s}(o, b * osb + h * osh + qi * oss + c)"
        delta = team.sum({"delta": t}, f"A.delta += {product};", size="value_head")
        slope = f"e * (load_{t}(dp, {team.at}) - delta)"
        steps.append(f"store_{s}(ds, {team.at}, {f'c < seen ? {slope} : 0' if v.causal else slope});")
    if of_values:
        declarations += f"; {s}* out"
        steps.append(f"store_{s}(out, {team.at}, e);")
    return team.kernel(
        f"attention_gradients_{s}",
        parameters(f"{declarations}; {_sizes(v)}"),
        _head(v, places=of_scores),
        delta,
        team.let("less", t, f"load_{t}(lse, line)"),
        team.each(" ".join(steps)),
    )
