"""Kernels of softmax and log_softmax, forward and backward: teams on rows that lie along memory or across."""

from __future__ import annotations

import functools

from torchgraft.codegen.kernel import Kernel, parameters
from torchgraft.codegen.teams import Layout, Team
from torchgraft.codegen.types import BY_NAME, value_ctype

#: Elements of a row whose exponentials a CPU can hold.
HELD = 4096


@functools.cache
def forward_kernel(layout: Layout, in_type: str, out_type: str, log: bool, held: bool = False) -> Kernel:
    """Parameters: `x`, `out`. `held`: contiguous rows are of no more than `HELD` elements, and a CPU holds their
    exponentials until it knows their sum."""
    team, acc = Team(layout), BY_NAME[in_type].accumulate
    x = f"load_{in_type}(x, {team.at})"
    exponential = f"tg_exp_{acc}({x} - top)"
    # Of long rows the exponentials are kept in the output where it can hold them; 16 bits would round them twice.
    keep = not log and out_type == acc and not layout.across and not layout.unrolled
    store = f"store_{out_type}(out, {team.at}, {{}});"
    put = store.format("e") if keep else "held[c] = e;" if held else ""
    step = f"const {value_ctype(acc)} e = {exponential}; {put} A.sum += e;"
    kept = f"load_{out_type}(out, {team.at})" if keep else "held[c]" if held else exponential
    return team.kernel(
        f"{'log_' if log else ''}softmax_{in_type}",
        parameters(f"const {in_type}* x; {out_type}* out"),
        f"{value_ctype(acc)} held[{HELD}];" if held else "",
        team.max("top", acc, x),
        team.sum({"sum": acc}, step),
        team.let_of_many("scale", acc, f"tg_log_{acc}(sum)") if log else team.let("scale", acc, "1 / sum"),
        team.each(store.format(f"{x} - top - scale" if log else f"{kept} * scale")),
    )


@functools.cache
def log_sum_exp_kernel(layout: Layout, in_type: str, out_type: str) -> Kernel:
    """Of contiguous rows, the logarithm of the sum of exponentials. Infinite numbers are no distance from each other.
    Parameters: `x`, `out`."""
    team, acc = Team(layout), BY_NAME[in_type].accumulate
    x = f"load_{in_type}(x, {team.at})"
    return team.kernel(
        f"log_sum_exp_{in_type}",
        parameters(f"const {in_type}* x; {out_type}* out"),
        team.max("top", acc, x),
        team.let("base", acc, "fabs(top) == INFINITY ? 0 : top"),
        team.sum({"sum": acc}, f"A.sum += tg_exp_{acc}({x} - base);"),
        team.let_of_many("result", acc, f"tg_log_{acc}(sum) + base"),
        team.leader(f"store_{out_type}(out, row, result);"),
    )


@functools.cache
def backward_kernel(layout: Layout, type_: str, out_type: str, log: bool) -> Kernel:
    """From the gradient and the result. Parameters: `grad`, `result`, `out`."""
    team, acc = Team(layout), BY_NAME[type_].accumulate
    grad, result = f"load_{type_}(grad, {team.at})", f"load_{type_}(result, {team.at})"
    value = f"{grad} - tg_exp_{acc}({result}) * sum" if log else f"({grad} - sum) * {result}"
    return team.kernel(
        f"{'log_' if log else ''}softmax_backward_{type_}",
        parameters(f"const {type_}* grad, result; {out_type}* out"),
        team.sum({"sum": acc}, f"A.sum += {grad if log else f'{grad} * {result}'};"),
        team.each(f"store_{out_type}(out, {team.at}, {value});"),
    )
