"""Kernels of layer, group and batch normalisation.

Layer and group norm are teams on rows: contiguous runs of elements that share a mean. Both take two passes over a row
for the mean and the variance - the row lies in a cache - so that nothing is lost by cancellation. Batch norm takes its
sums from `kernels.reduce`; here are the steps between, walks over channels, and the last one, which is an affine map
for each channel.
"""

from __future__ import annotations

import functools

from torchgraft.codegen.kernel import Kernel, parameters
from torchgraft.codegen.loops import FEW, Layout, Team, Walk
from torchgraft.codegen.types import BY_NAME, value_ctype
from torchgraft.kernels.reduce import Reduction


def _moments(team: Team, acc: str, type_: str) -> str:
    """Finds `mean` and `rstd` of the row of `x`."""
    t, x = value_ctype(acc), f"load_{type_}(x, {team.at})"
    return "\n    ".join(
        [
            team.sum({"total": acc}, f"A.total += {x};"),
            team.let("mean", acc, f"total / ({t})size"),
            team.sum({"squares": acc}, f"const {t} d = {x} - mean; A.squares += d * d;"),
            team.let("rstd", acc, f"1 / sqrt(squares / ({t})size + eps)"),
        ]
    )


def _save(team: Team, stat_type: str) -> str:
    return team.leader(f"store_{stat_type}(means, row, mean); store_{stat_type}(rstds, row, rstd);")


# Layer norm ----------------------------------------------------------------------------------------------------------


@functools.cache
def layer_norm(form: str, type_: str, weight_type: str, stat_type: str, weight: bool, bias: bool) -> Kernel:
    """Parameters: `x`, `weight`, `bias`, `out`, `means`, `rstds`, `eps`."""
    team, acc = Team(Layout(form)), BY_NAME[type_].accumulate
    value = f"(load_{type_}(x, {team.at}) - mean) * rstd"
    if weight:
        value += f" * load_{weight_type}(weight, c)"
    if bias:
        value += f" + load_{weight_type}(bias, c)"
    params = parameters(
        f"const {type_}* x; const {weight_type}* weight, bias; {type_}* out; {stat_type}* means, rstds; {acc} eps"
    )
    each = team.each(f"store_{type_}(out, {team.at}, {value});")
    return team.kernel(f"layer_norm_{type_}", params, _moments(team, acc, type_), _save(team, stat_type), each)


@functools.cache
def layer_norm_backward(
    form: str, type_: str, weight_type: str, stat_type: str, weight: bool, input_grad: bool, weight_grads: bool
) -> Kernel:
    """Gradients of the input and, in the CPU form, of weight and bias: a sum for each work-group, to be added up.

    Parameters: `grad`, `x`, `means`, `rstds`, `weight`, `out`, `dws`, `dbs`.
    """
    team, acc = Team(Layout(form)), BY_NAME[type_].accumulate
    t = value_ctype(acc)
    grad = f"load_{type_}(grad, {team.at})"
    scaled = grad + (f" * load_{weight_type}(weight, c)" if weight else "")
    normal = f"(load_{type_}(x, {team.at}) - mean) * rstd"
    parts = [f"const {t} mean = load_{stat_type}(means, row), rstd = load_{stat_type}(rstds, row);"]
    if input_grad:
        step = f"const {t} s = {scaled}; A.sum += s; A.dot += s * {normal};"
        value = f"rstd * ({scaled} - sum / ({t})size - {normal} * (dot / ({t})size))"
        parts += [team.sum({"sum": acc, "dot": acc}, step), team.each(f"store_{type_}(out, {team.at}, {value});")]
    if weight_grads:
        s, at = f"const {t} s = {grad};", "GROUP_ID(0) * size + c"
        # A loop of its own for the first row, which fills the sums.
        first = team.each(f"{s} dws[{at}] = s * {normal}; dbs[{at}] = s;")
        more = team.each(f"{s} dws[{at}] += s * {normal}; dbs[{at}] += s;")
        parts.append(f"if (row == GROUP_ID(0) * chunk) {{ {first} }} else {{ {more} }}")
    params = parameters(
        f"const {type_}* grad, x; const {stat_type}* means, rstds; const {weight_type}* weight; {type_}* out; "
        f"{acc}* dws, dbs"
    )
    return team.kernel(f"layer_norm_backward_{type_}", params, *parts)


@functools.cache
def layer_norm_weight(type_: str, stat_type: str) -> Kernel:
    """GPU form of the sums of the gradients of weight and bias: the parts of `rows` that dimension 1 shares out, `part`
    each. The walk is over columns. Parameters: `grad`, `x`, `means`, `rstds`, `dws`, `dbs`, `rows`, `part`."""
    walk, t = Walk("gpu", group=FEW), value_ctype(BY_NAME[type_].accumulate)
    column = f"""
    {t} dw = 0, db = 0;
    const long stop = min(((long)GROUP_ID(1) + 1) * part, rows);
    for (long row = (long)GROUP_ID(1) * part; row < stop; ++row) {{
      const {t} g = load_{type_}(grad, row * n + i);
      dw += g * (load_{type_}(x, row * n + i) - load_{stat_type}(means, row)) * load_{stat_type}(rstds, row);
      db += g;
    }}
    dws[GROUP_ID(1) * n + i] = dw;
    dbs[GROUP_ID(1) * n + i] = db;"""
    acc = BY_NAME[type_].accumulate
    params = parameters(f"const {type_}* grad, x; const {stat_type}* means, rstds; {acc}* dws, dbs; i64 rows, part")
    return walk.kernel(f"layer_norm_weight_{type_}", params, walk.each(column), dims=2)


# Group norm ----------------------------------------------------------------------------------------------------------

# A row is a group of a sample: `depth` channels of `inner` elements.
_CHANNEL = "const long channel = row % groups * depth + k, first = row * size + k * inner;"


@functools.cache
def group_norm(form: str, type_: str, weight_type: str, stat_type: str, weight: bool, bias: bool) -> Kernel:
    """Parameters: `x`, `weight`, `bias`, `out`, `means`, `rstds`, `groups`, `depth`, `inner`, `eps`."""
    team, acc = Team(Layout(form)), BY_NAME[type_].accumulate
    t = value_ctype(acc)
    scale = f"rstd * load_{weight_type}(weight, channel)" if weight else "rstd"
    shift = f"load_{weight_type}(bias, channel)" if bias else "0"
    value = f"store_{type_}(out, first + c, (load_{type_}(x, first + c) - mean) * scale + shift);"
    channels = f"""for (long k = 0; k < depth; ++k) {{
      {_CHANNEL}
      const {t} scale = {scale}, shift = {shift};
      {team.each(value, size="inner")}
    }}"""
    params = parameters(
        f"const {type_}* x; const {weight_type}* weight, bias; {type_}* out; {stat_type}* means, rstds; "
        f"i64 groups, depth, inner; {acc} eps"
    )
    return team.kernel(f"group_norm_{type_}", params, _moments(team, acc, type_), _save(team, stat_type), channels)


@functools.cache
def group_norm_sums(form: str, type_: str, stat_type: str) -> Kernel:
    """For each channel of each sample the sums of dy and of dy (x - mean). Rows are channels of samples. Parameters:
    `grad`, `x`, `means`, `sums`, `dots`, `depth`."""
    team, acc = Team(Layout(form)), BY_NAME[type_].accumulate
    t = value_ctype(acc)
    step = f"const {t} g = load_{type_}(grad, {team.at}); A.sum += g; A.dot += g * (load_{type_}(x, {team.at}) - mean);"
    return team.kernel(
        f"group_norm_sums_{type_}",
        parameters(f"const {type_}* grad, x; const {stat_type}* means; {acc}* sums, dots; i64 depth"),
        f"const {t} mean = load_{stat_type}(means, row / depth);",
        team.sum({"sum": acc, "dot": acc}, step),
        team.leader("sums[row] = sum; dots[row] = dot;"),
    )


@functools.cache
def group_norm_input(form: str, type_: str, weight_type: str, stat_type: str, weight: bool) -> Kernel:
    """Gradient of the input. Parameters: `grad`, `x`, `means`, `rstds`, `weight`, `sums`, `dots`, `out`, `groups`,
    `depth`, `inner`."""
    team, acc = Team(Layout(form)), BY_NAME[type_].accumulate
    t = value_ctype(acc)
    factor = f"load_{weight_type}(weight, row % groups * depth + k)" if weight else "1"
    x = f"load_{type_}(x, first + c)"
    value = f"store_{type_}(out, first + c, f * load_{type_}(grad, first + c) - ({x} - mean) * s2 - s1);"
    body = f"""const {t} mean = load_{stat_type}(means, row), rstd = load_{stat_type}(rstds, row);
    {t} s1 = 0, s2 = 0;
    for (long k = 0; k < depth; ++k) {{
      const {t} f = {factor};
      s1 += sums[row * depth + k] * f;
      s2 += dots[row * depth + k] * f;
    }}
    s1 *= rstd / ({t})size;
    s2 *= rstd * rstd * rstd / ({t})size;
    for (long k = 0; k < depth; ++k) {{
      const {t} f = rstd * {factor};
      const long first = row * size + k * inner;
      {team.each(value, size="inner")}
    }}"""
    params = parameters(
        f"const {type_}* grad, x; const {stat_type}* means, rstds; const {weight_type}* weight; "
        f"const {acc}* sums, dots; {type_}* out; i64 groups, depth, inner"
    )
    return team.kernel(f"group_norm_input_{type_}", params, body)


@functools.cache
def group_norm_weight(form: str, acc: str, weight_type: str, stat_type: str) -> Kernel:
    """Gradients of weight and bias from `group_norm_sums`; either may be absent. The walk is over channels. Parameters:
    `rstds`, `sums`, `dots`, `weight_grad`, `bias_grad`, `samples`, `groups`, `depth`, `has_weight`, `has_bias`."""
    walk, t = Walk(form), value_ctype(acc)
    channel = f"""
  {t} dw = 0, db = 0;
  for (long s = 0; s < samples; ++s) {{
    dw += dots[s * n + i] * load_{stat_type}(rstds, s * groups + i / depth);
    db += sums[s * n + i];
  }}
  if (has_weight) store_{weight_type}(weight_grad, i, dw);
  if (has_bias) store_{weight_type}(bias_grad, i, db);"""
    params = parameters(
        f"const {stat_type}* rstds; const {acc}* sums, dots; {weight_type}* weight_grad, bias_grad; "
        "i64 samples, groups, depth; i32 has_weight, has_bias"
    )
    return walk.kernel(f"group_norm_weight_{weight_type}", params, walk.each(channel, vectorize=False))


# Batch norm ----------------------------------------------------------------------------------------------------------


@functools.cache
def batch_norm_statistics(
    form: str, acc: str, weight_type: str, stat_type: str, running_type: str, options: str
) -> Kernel:
    """What follows from the statistics of a batch. The walk is over channels.

    Saves mean and inverse deviation, updates the running statistics, and finds the affine map of each channel.
    `options` are letters: w weight, b bias, r running statistics are updated, e evaluation (from the running
    statistics), s save. Parameters: `mean`, `var`, `weight`, `bias`, `running_mean`, `running_var`, `save_mean`,
    `save_invstd`, `scale`, `shift`, `center`, `count`, `momentum`, `eps`.
    """
    walk, t = Walk(form), value_ctype(acc)
    weight = f"load_{weight_type}(weight, i)" if "w" in options else "1"
    bias = f"load_{weight_type}(bias, i)" if "b" in options else "0"
    if "e" in options:
        source = f"const {t} m = load_{running_type}(running_mean, i), v = load_{running_type}(running_var, i);"
    else:
        source = f"const {t} m = mean[i], v = var[i];"
    update = ""
    if "r" in options:
        old_mean, old_var = (f"load_{running_type}(running_{name}, i)" for name in ("mean", "var"))
        update = f"""
  const {t} unbiased = v * (({t})count / (({t})count - 1));
  store_{running_type}(running_mean, i, {old_mean} * (1 - momentum) + m * momentum);
  store_{running_type}(running_var, i, {old_var} * (1 - momentum) + unbiased * momentum);"""
    save = f"store_{stat_type}(save_mean, i, m); store_{stat_type}(save_invstd, i, inverse);" if "s" in options else ""
    channel = f"""
  {source}
  const {t} inverse = 1 / sqrt(v + eps);{update}
  {save}
  scale[i] = inverse * {weight};
  shift[i] = {bias};
  center[i] = m;"""
    params = parameters(
        f"const {acc}* mean, var; const {weight_type}* weight, bias; {running_type}* running_mean, running_var; "
        f"{stat_type}* save_mean, save_invstd; {acc}* scale, shift, center; i64 count; {acc} momentum, eps"
    )
    return walk.kernel(f"batch_norm_statistics_{stat_type}", params, walk.each(channel, vectorize=False))


@functools.cache
def batch_norm_sums(acc: str, input_type: str) -> Reduction:
    """The sums of dy and of dy (x - mean) for each channel."""
    return Reduction(
        f"batch_norm_{acc}",
        (("sum", acc, "0"), ("dot", acc, "0")),
        "A.sum += x; A.dot = fma(x, value - center, A.dot);",
        "A.sum += B.sum; A.dot += B.dot;",
        ((acc, "A.sum"), (acc, "A.dot")),
        cascade=acc == "f32",
        others=(("value", input_type, "same"), ("center", acc, "kept")),
    )


@functools.cache
def batch_norm_center(form: str, acc: str, running_type: str, stat_type: str, train: bool) -> Kernel:
    """The mean and inverse deviation that a backward pass uses, as `acc`. The walk is over channels. Parameters:
    `running_mean`, `running_var`, `save_mean`, `save_invstd`, `center`, `invstd`, `eps`."""
    walk, t = Walk(form), value_ctype(acc)
    if train:
        values = f"load_{stat_type}(save_mean, i), inverse = load_{stat_type}(save_invstd, i)"
    else:
        values = f"load_{running_type}(running_mean, i), inverse = 1 / sqrt(load_{running_type}(running_var, i) + eps)"
    params = parameters(
        f"const {running_type}* running_mean, running_var; const {stat_type}* save_mean, save_invstd; "
        f"{acc}* center, invstd; {acc} eps"
    )
    channel = f"const {t} m = {values}; center[i] = m; invstd[i] = inverse;"
    return walk.kernel(f"batch_norm_center_{acc}", params, walk.each(channel, vectorize=False))


@functools.cache
def batch_norm_coefficients(form: str, acc: str, weight_type: str, grad_type: str, weight: bool, train: bool) -> Kernel:
    """Gradients of weight and bias, and dx as scale dy + slope (x - mean) + shift. The walk is over channels.
    Parameters: `sum`, `dot`, `invstd`, `weight`, `weight_grad`, `bias_grad`, `scale`, `slope`, `shift`, `count`,
    `has_weight`, `has_bias`."""
    walk, t = Walk(form), value_ctype(acc)
    factor = f"load_{weight_type}(weight, i)" if weight else "1"
    rest = "slope[i] = 0; shift[i] = 0;"
    if train:
        rest = f"slope[i] = -s * inverse * inverse * dot[i] / ({t})count; shift[i] = -s * sum[i] / ({t})count;"
    channel = f"""
  const {t} inverse = invstd[i], s = inverse * {factor};
  scale[i] = s;
  {rest}
  if (has_weight) store_{grad_type}(weight_grad, i, dot[i] * inverse);
  if (has_bias) store_{grad_type}(bias_grad, i, sum[i]);"""
    params = parameters(
        f"const {acc}* sum, dot, invstd; const {weight_type}* weight; {grad_type}* weight_grad, bias_grad; "
        f"{acc}* scale, slope, shift; i64 count; i32 has_weight, has_bias"
    )
    return walk.kernel(f"batch_norm_coefficients_{acc}", params, walk.each(channel, vectorize=False))


@functools.cache
def channel_map(form: str, type_: str, backward: bool, last: bool) -> Kernel:
    """The affine map of each element. Parameters: `x`, `grad` and `slope` if `backward`, `scale`, `shift`, `center`,
    `out`, `channels`.

    The walk is over rows and their elements: a row is a channel of a sample or, with `last`, where channels are fastest
    in memory, the channels of one position.
    """
    walk, acc = Walk(form, rank=2), BY_NAME[type_].accumulate
    t = value_ctype(acc)
    names = ["scale", "shift", "center", *(["slope"] if backward else [])]
    row, channel = "const long at = i0 * n1 + i1;", "i1 + j"
    own = {name: f"{name}[{channel}]" for name in names}
    if not last:
        row += " const long k = i0 % channels;" + "".join(f" const {t} {name}_k = {name}[k];" for name in names)
        own = {name: f"{name}_k" for name in names}
    x = f"load_{type_}(x, at + j) - {own['center']}"
    value = f"({x}) * {own['scale']} + {own['shift']}"
    if backward:
        value = f"{own['scale']} * load_{type_}(grad, at + j) + {own['slope']} * ({x}) + {own['shift']}"
    gradient = f"const {type_}* grad; const {acc}* slope; " if backward else ""
    params = parameters(f"const {type_}* x; {gradient}const {acc}* scale, shift, center; {type_}* out; i64 channels")
    return walk.kernel(f"channel_map_{type_}", params, walk.each(f"store_{type_}(out, at + j, {value});", row))
