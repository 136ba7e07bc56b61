"""Kernels of layer, RMS, group and batch normalisation.

The first three are teams on rows: contiguous runs of elements that share a mean, or a mean square. Layer and group norm
take two passes over a row for the mean and the variance - the row lies in a cache - so that nothing is lost by
cancellation. Batch norm is a reduction (`kernels.reduce`), which also does what there is to do once for each channel,
and an affine map.
"""

from __future__ import annotations

import functools
from dataclasses import replace

from torchgraft.codegen.kernel import Kernel, Parameter, parameters
from torchgraft.codegen.teams import Layout, Team
from torchgraft.codegen.types import BY_NAME, value_ctype
from torchgraft.codegen.walk import FEW, Walk
from torchgraft.kernels.reduce import Reduction, variance


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


# Layer and RMS norm --------------------------------------------------------------------------------------------------


@functools.cache
def layer_norm(layout: Layout, type_: str, weight_type: str, stat_type: str, weight: bool, bias: bool) -> Kernel:
    """Parameters: `x`, `weight`, `bias`, `out`, `means`, `rstds`, `eps`."""
    team, acc = Team(layout), BY_NAME[type_].accumulate
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
def rms_norm(layout: Layout, type_: str, weight_type: str, weight: bool) -> Kernel:
    """Parameters: `x`, `weight`, `out`, `rstds`, `eps`."""
    team, acc = Team(layout), BY_NAME[type_].accumulate
    t, x = value_ctype(acc), f"load_{type_}(x, {team.at})"
    value = f"{x} * rstd" + (f" * load_{weight_type}(weight, c)" if weight else "")
    return team.kernel(
        f"rms_norm_{type_}",
        parameters(f"const {type_}* x; const {weight_type}* weight; {type_}* out; {acc}* rstds; {acc} eps"),
        team.sum({"squares": acc}, f"const {t} d = {x}; A.squares += d * d;"),
        team.let("rstd", acc, f"1 / sqrt(squares / ({t})size + eps)"),
        team.leader("rstds[row] = rstd;"),
        team.each(f"store_{type_}(out, {team.at}, {value});"),
    )


@functools.cache
def row_norm_backward(
    layout: Layout,
    type_: str,
    weight_type: str,
    stat_type: str,
    centered: bool,
    weight: bool,
    input_grad: bool,
    weight_grads: bool,
) -> Kernel:
    """Gradients of layer norm or, not `centered`, of RMS norm, which has neither means nor a bias: of the input and, in
    the CPU form, of weight and bias, a sum for each work-group, to be added up.

    Parameters: `grad`, `x`, `means`, `rstds`, `weight`, `out`, `dws`, `dbs`.
    """
    team, acc = Team(layout), BY_NAME[type_].accumulate
    t = value_ctype(acc)
    grad = f"load_{type_}(grad, {team.at})"
    scaled = grad + (f" * load_{weight_type}(weight, c)" if weight else "")
    normal = f"load_{type_}(x, {team.at}) * rstd"
    parts = [f"const {t} rstd = load_{stat_type}(rstds, row);"]
    sums, share = {"dot": acc}, f"{normal} * (dot / ({t})size)"
    step = f"const {t} s = {scaled}; A.dot += s * {normal};"
    if centered:
        normal = f"(load_{type_}(x, {team.at}) - mean) * rstd"
        parts.append(f"const {t} mean = load_{stat_type}(means, row);")
        sums, share = {"sum": acc, "dot": acc}, f"sum / ({t})size - {normal} * (dot / ({t})size)"
        step = f"const {t} s = {scaled}; A.sum += s; A.dot += s * {normal};"
    if input_grad:
        value = f"rstd * ({scaled} - {share})"
        parts += [team.sum(sums, step), team.each(f"store_{type_}(out, {team.at}, {value});")]
    if weight_grads:
        at = "GROUP_ID(0) * size + c"

        def add(how: str) -> str:
            bias = f" dbs[{at}] {how} s;" if centered else ""
            return team.each(f"const {t} s = {grad}; dws[{at}] {how} s * {normal};{bias}")

        # A loop of its own for the first row, which fills the sums.
        parts.append(f"if (row == GROUP_ID(0) * chunk) {{ {add('=')} }} else {{ {add('+=')} }}")
    params = parameters(
        f"const {type_}* grad, x; const {stat_type}* means, rstds; const {weight_type}* weight; {type_}* out; "
        f"{acc}* dws, dbs"
    )
    return team.kernel(f"{'layer' if centered else 'rms'}_norm_backward_{type_}", params, *parts)


@functools.cache
def row_norm_weight(type_: str, stat_type: str, centered: bool) -> Kernel:
    """GPU form of the sums of the gradients of weight and, if `centered`, bias: the parts of `rows` that dimension 1
    shares out, `part` each. The walk is over columns. Parameters: `grad`, `x`, `means`, `rstds`, `dws`, `dbs`, `rows`,
    `part`."""
    acc = BY_NAME[type_].accumulate
    walk, t = Walk("gpu", group=FEW), value_ctype(acc)
    mean = f" - load_{stat_type}(means, row)" if centered else ""
    column = f"""
    {t} dw = 0, db = 0;
    const long stop = min(((long)GROUP_ID(1) + 1) * part, rows);
    for (long row = (long)GROUP_ID(1) * part; row < stop; ++row) {{
      const {t} g = load_{type_}(grad, row * n + i);
      dw += g * (load_{type_}(x, row * n + i){mean}) * load_{stat_type}(rstds, row);
      db += g;
    }}
    dws[GROUP_ID(1) * n + i] = dw;
    {"dbs[GROUP_ID(1) * n + i] = db;" if centered else ""}"""
    params = parameters(f"const {type_}* grad, x; const {stat_type}* means, rstds; {acc}* dws, dbs; i64 rows, part")
    name = f"{'layer' if centered else 'rms'}_norm_weight_{type_}"
    return walk.kernel(name, params, walk.each(column), dims=2)


@functools.cache
def totals(acc: str, types: tuple[str, ...]) -> Reduction:
    """The sums of one or two tensors of `acc`, as `types`."""
    names = ("a", "b")[: len(types)]
    return Reduction(
        f"totals_{acc}",
        tuple((name, acc, "0") for name in names),
        " ".join(f"A.{name} += {value};" for name, value in zip(names, ("x", "y"), strict=False)),
        " ".join(f"A.{name} += B.{name};" for name in names),
        tuple((type_, f"A.{name}") for name, type_ in zip(names, types, strict=True)),
        cascade=acc == "f32",
        others=(("y", acc, "same"),)[: len(types) - 1],
    )


# Group norm ----------------------------------------------------------------------------------------------------------

# A row is a group of a sample: `depth` channels of `inner` elements.
_CHANNEL = "const long channel = row % groups * depth + k, first = row * size + k * inner;"


@functools.cache
def group_norm(layout: Layout, type_: str, weight_type: str, stat_type: str, weight: bool, bias: bool) -> Kernel:
    """Parameters: `x`, `weight`, `bias`, `out`, `means`, `rstds`, `groups`, `depth`, `inner`, `eps`."""
    team, acc = Team(layout), BY_NAME[type_].accumulate
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
def group_norm_sums(layout: Layout, type_: str, stat_type: str) -> Kernel:
    """For each channel of each sample the sums of dy and of dy (x - mean). Rows are channels of samples. Parameters:
    `grad`, `x`, `means`, `sums`, `dots`, `depth`."""
    team, acc = Team(layout), BY_NAME[type_].accumulate
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
def group_norm_input(layout: Layout, type_: str, weight_type: str, stat_type: str, weight: bool) -> Kernel:
    """Gradient of the input. Parameters: `grad`, `x`, `means`, `rstds`, `weight`, `sums`, `dots`, `out`, `groups`,
    `depth`, `inner`."""
    team, acc = Team(layout), BY_NAME[type_].accumulate
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
def batch_norm_moments(acc: str, stat_type: str | None, running_type: str | None) -> Reduction:
    """Mean and inverse deviation of each channel, as `acc` and, if there is a `stat_type`, as that, and the running
    statistics brought forward. Values: `eps`, `momentum`."""
    base, t = variance(acc, acc, False, True), value_ctype(acc)
    var = f"(A.m2 / ({t})count)"
    inverse = f"1 / sqrt({var} + eps)"
    results = [(acc, "A.mean"), (acc, inverse)]
    if stat_type is not None:
        results += [(stat_type, "A.mean"), (stat_type, inverse)]
    if running_type is not None:
        results += [
            (running_type, f"old * (1 - momentum) + {value} * momentum")
            for value in ("A.mean", f"{var} * (({t})count / (({t})count - 1))")
        ]
    values = (("eps", acc), ("momentum", acc))
    return replace(base, name=f"batch_norm_{acc}", results=tuple(results), values=values)


@functools.cache
def batch_norm_sums(
    acc: str, input_type: str, stat_type: str, var: bool, sums: bool, grad_types: tuple[str | None, str | None]
) -> Reduction:
    """The sums of dy and of dy (x - mean) for each channel, as `acc` if `sums`, and the gradients of weight and bias,
    as `grad_types` where there are such. The third of the others is the inverse deviation or, with `var`, the
    variance. Values: `eps`."""
    weight_type, bias_type = grad_types
    results = [(acc, "A.sum"), (acc, "A.dot")] if sums else []
    if weight_type is not None:
        results.append((weight_type, "A.dot * " + ("(1 / sqrt(scale + eps))" if var else "scale")))
    if bias_type is not None:
        results.append((bias_type, "A.sum"))
    return Reduction(
        f"batch_norm_backward_{acc}",
        (("sum", acc, "0"), ("dot", acc, "0")),
        "A.sum += x; A.dot = fma(x, value - center, A.dot);",
        "A.sum += B.sum; A.dot += B.dot;",
        tuple(results),
        values=(("eps", acc),),
        cascade=acc == "f32",
        others=(("value", input_type, "same"), ("center", stat_type, "kept"), ("scale", stat_type, "kept")),
    )


@functools.cache
def batch_norm_map(
    form: str, type_: str, stat_type: str, weight_type: str | None, bias_type: str | None, var: bool, last: bool
) -> Kernel:
    """The normalised elements. `center` and `deviation` are a channel's mean and inverse deviation or, with `var`, its
    variance. Parameters: `x`, `center`, `deviation`, `weight`, `bias`, `out`, `channels`, `eps`."""
    channel = {"m": f"load_{stat_type}(center, k)", "s": _inverse(stat_type, var)}
    if weight_type is not None:
        channel["s"] += f" * load_{weight_type}(weight, k)"
    if bias_type is not None:
        channel["b"] = f"load_{bias_type}(bias, k)"
    value = f"(load_{type_}(x, at + j) - m) * s" + (" + b" if bias_type is not None else "")
    acc = BY_NAME[type_].accumulate
    params = parameters(
        f"const {type_}* x; const {stat_type}* center, deviation; const {weight_type or acc}* weight; "
        f"const {bias_type or acc}* bias; {type_}* out; i64 channels; {acc} eps"
    )
    return _channel_map("batch_norm", form, type_, params, channel, value, last)


@functools.cache
def batch_norm_input(
    form: str, type_: str, stat_type: str, weight_type: str | None, var: bool, train: bool, last: bool
) -> Kernel:
    """The gradient of the input, from `sum` and `dot` of `batch_norm_sums` in training. Parameters: those of
    `batch_norm_map` without the bias, `grad`, `sum`, `dot`, and `each`, the elements of a channel."""
    acc = BY_NAME[type_].accumulate
    channel = {"s": _inverse(stat_type, var)}
    value = f"s * load_{type_}(grad, at + j)"
    if train:
        channel = {"r": channel["s"], "s": "r", "m": f"load_{stat_type}(center, k)"}
        channel["share"] = f"-1 / ({value_ctype(acc)})each"
    if weight_type is not None:
        channel["s"] += f" * load_{weight_type}(weight, k)"
    if train:
        channel |= {"slope": "s * r * r * dot[k] * share", "shift": "s * sum[k] * share"}
        value += f" + slope * (load_{type_}(x, at + j) - m) + shift"
    params = parameters(
        f"const {type_}* grad, x; const {stat_type}* center, deviation; const {weight_type or acc}* weight; "
        f"const {acc}* sum, dot; {type_}* out; i64 channels, each; {acc} eps"
    )
    return _channel_map("batch_norm_backward", form, type_, params, channel, value, last)


def _inverse(stat_type: str, var: bool) -> str:
    """The inverse deviation of channel ``k``."""
    deviation = f"load_{stat_type}(deviation, k)"
    return f"1 / sqrt({deviation} + eps)" if var else deviation


def _channel_map(
    name: str, form: str, type_: str, params: tuple[Parameter, ...], channel: dict[str, str], value: str, last: bool
) -> Kernel:
    """`value` for each element, with the numbers of `channel` ``k`` by name.

    The walk is over rows and their elements: a row is a channel of a sample or, with `last`, where channels are fastest
    in memory, the channels of one position.
    """
    walk, t = Walk(form, rank=2), value_ctype(BY_NAME[type_].accumulate)
    numbers = " ".join(f"const {t} {number} = {text};" for number, text in channel.items())
    row, store = "const long at = i0 * n1 + i1;", f"store_{type_}(out, at + j, {value});"
    if last:
        store = f"const long k = i1 + j; {numbers} {store}"
    else:
        row += f" const long k = i0 % channels; {numbers}"
    return walk.kernel(f"{name}_{type_}", params, walk.each(store, row))
