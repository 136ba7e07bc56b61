"""Kernels of layer, group and batch normalisation.

Layer and group norm work on rows: contiguous runs of elements that share a mean. Both take two passes over a row for
the mean and the variance - the row lies in a cache - so that nothing is lost by cancellation. Batch norm takes its sums
from `kernels.reduce`; here are the steps between and the last one, which is an affine map for each channel.

CPU forms have a work-item for `chunk` rows, and accumulators side by side that the compiler turns into vectors; GPU
forms have a work-group of 256 for a row.
"""

from __future__ import annotations

import functools

from torchgraft.codegen.kernel import Kernel, Parameter, Pointer, Value
from torchgraft.codegen.types import BY_NAME, value_ctype
from torchgraft.kernels.reduce import Reduction

LANES = 64
GROUP = 256

# Elements that a lane sums before it puts the sum aside: a sum of millions would round off what is added last.
_RUN = 256


def _i64(*names: str) -> tuple[Value, ...]:
    return tuple(Value(name, "i64") for name in names)


def _pointer(name: str, type_: str, offset: str, source: str, const: bool = True) -> str:
    return f"{'const ' if const else ''}GLOBAL {BY_NAME[type_].storage}* {name} = {source} + {offset};"


# Rows in either form -------------------------------------------------------------------------------------------------


def _rows(gpu: bool, declarations: str, body: str) -> str:
    """The loop over a work-group's rows."""
    if gpu:
        return f"\n  {declarations}\n  const int lane = LOCAL_ID(0);\n  const long row = GROUP_ID(0);\n  {body}\n"
    return f"""
  {declarations}
  const long row_end = (GROUP_ID(0) + 1) * chunk < rows ? (GROUP_ID(0) + 1) * chunk : rows;
  for (long row = GROUP_ID(0) * chunk; row < row_end; ++row) {{
    {body}
  }}
"""


def _arrays(gpu: bool, acc: str, names: str) -> str:
    """Declares an array of accumulators, one for each lane, for each name; CPU forms put sums aside in another."""
    t = value_ctype(acc)
    if gpu:
        return " ".join(f"LOCAL {t} {name}[{GROUP}];" for name in names.split())
    return " ".join(f"{t} {name}[{LANES}], {name}_aside[{LANES}];" for name in names.split())


def _over(gpu: bool, size: str, statement: str) -> str:
    """A loop over the elements c of a row, each with a statement."""
    if gpu:
        return f"for (long c = lane; c < {size}; c += {GROUP}) {{ {statement} }}"
    return f"VECTORIZE for (long c = 0; c < {size}; ++c) {{ {statement} }}"


def _sum(gpu: bool, acc: str, size: str, names: str, statement: str) -> str:
    """Sums over a row: leaves in a[0], for each a of `names`, what `statement` added to a[j] for the elements c."""
    arrays = names.split()
    t = value_ctype(acc)
    if gpu:
        # Registers sum, local memory combines. All work-items have left the arrays before they are filled again.
        local = statement
        for name in arrays:
            local = local.replace(f"{name}[j]", f"{name}_run")
        fold = " ".join(f"{name}[lane] += {name}[lane + w];" for name in arrays)
        return f"""{{
    {" ".join(f"{t} {name}_sum = 0;" for name in arrays)}
    for (long first = lane; first < {size}; first += {GROUP * _RUN}) {{
      const long end = first + {GROUP * _RUN} < {size} ? first + {GROUP * _RUN} : {size};
      {" ".join(f"{t} {name}_run = 0;" for name in arrays)}
      for (long c = first; c < end; c += {GROUP}) {{ {local} }}
      {" ".join(f"{name}_sum += {name}_run;" for name in arrays)}
    }}
    BARRIER;
    {" ".join(f"{name}[lane] = {name}_sum;" for name in arrays)}
    BARRIER;
    for (int w = {GROUP // 2}; w > 0; w /= 2) {{
      if (lane < w) {{ {fold} }}
      BARRIER;
    }}
  }}"""
    zero = " ".join(f"{name}[j] = {name}_aside[j] = 0;" for name in arrays)
    aside = " ".join(f"{name}_aside[j] += {name}[j]; {name}[j] = 0;" for name in arrays)
    whole = " ".join(f"{name}[j] += {name}_aside[j];" for name in arrays)
    fold = " ".join(f"{name}[j] += {name}[j + w];" for name in arrays)
    return f"""VECTORIZE for (int j = 0; j < {LANES}; ++j) {{ {zero} }}
    for (long first = 0; first < {size}; first += {LANES}) {{
      if (first > 0 && first % {LANES * _RUN} == 0) VECTORIZE for (int j = 0; j < {LANES}; ++j) {{ {aside} }}
      const int n = (int)({size} - first < {LANES} ? {size} - first : {LANES});
      if (n == {LANES}) {{ VECTORIZE for (int j = 0; j < {LANES}; ++j) {{ const long c = first + j; {statement} }} }}
      else {{ VECTORIZE for (int j = 0; j < n; ++j) {{ const long c = first + j; {statement} }} }}
    }}
    VECTORIZE for (int j = 0; j < {LANES}; ++j) {{ {whole} }}
    for (int w = {LANES // 2}; w >= 16; w /= 2) VECTORIZE for (int j = 0; j < w; ++j) {{ {fold} }}
    for (int w = 8; w > 0; w /= 2) for (int j = 0; j < w; ++j) {{ {fold} }}"""


def _local(gpu: bool) -> tuple[int, ...]:
    return (GROUP,) if gpu else (1,)


def _moments(gpu: bool, acc: str, type_: str) -> str:
    """Declares mean and rstd of the row x of `size` elements."""
    t = value_ctype(acc)
    return f"""{_sum(gpu, acc, "size", "a", f"a[j] += load_{type_}(x, c);")}
    const {t} mean = a[0] / ({t})size;
    {_sum(gpu, acc, "size", "a", f"const {t} d = load_{type_}(x, c) - mean; a[j] += d * d;")}
    const {t} rstd = 1 / sqrt(a[0] / ({t})size + eps);"""


# Layer norm ----------------------------------------------------------------------------------------------------------


@functools.cache
def layer_norm(gpu: bool, type_: str, weight_type: str, stat_type: str, weight: bool, bias: bool) -> Kernel:
    """Groups: rows / chunk (CPU), rows (GPU)."""
    acc = BY_NAME[type_].accumulate
    value = f"(load_{type_}(x, c) - mean) * rstd"
    if weight:
        value += f" * load_{weight_type}(weight, c)"
    if bias:
        value += f" + load_{weight_type}(bias, c)"
    save = f"store_{stat_type}(means, row, mean); store_{stat_type}(rstds, row, rstd);"
    body = f"""{_pointer("x", type_, "row * size", "in")}
    {_pointer("y", type_, "row * size", "out", const=False)}
    {_moments(gpu, acc, type_)}
    {f"if (lane == 0) {{ {save} }}" if gpu else save}
    {_over(gpu, "size", f"store_{type_}(y, c, {value});")}"""
    params: tuple[Parameter, ...] = (
        Pointer("in", type_, const=True),
        Pointer("weight", weight_type, const=True),
        Pointer("bias", weight_type, const=True),
        Pointer("out", type_),
        Pointer("means", stat_type),
        Pointer("rstds", stat_type),
        *_i64("rows", "size", "chunk"),
        Value("eps", acc),
    )
    return Kernel(f"layer_norm_{type_}", params, _rows(gpu, _arrays(gpu, acc, "a"), body), local=_local(gpu))


@functools.cache
def layer_norm_backward(
    gpu: bool, type_: str, weight_type: str, stat_type: str, weight: bool, input_grad: bool, weight_grads: bool
) -> Kernel:
    """Gradients of the input and, in the CPU form, of weight and bias: a sum for each work-group, to be added up.

    Groups: rows / chunk (CPU), rows (GPU).
    """
    acc = BY_NAME[type_].accumulate
    t = value_ctype(acc)
    scaled = f"load_{type_}(g, c)" + (f" * load_{weight_type}(weight, c)" if weight else "")
    normal = f"(load_{type_}(x, c) - mean) * rstd"
    passes = ""
    if input_grad:
        passes += f"""
    {_sum(gpu, acc, "size", "a b", f"const {t} s = {scaled}; a[j] += s; b[j] += s * {normal};")}
    const {t} s1 = a[0] / ({t})size, s2 = b[0] / ({t})size;
    {_over(gpu, "size", f"store_{type_}(d, c, rstd * ({scaled} - s1 - {normal} * s2));")}"""
    if weight_grads:
        grad = f"const {t} s = load_{type_}(g, c);"
        # A loop of its own for the first row, which fills the sums.
        passes += f"""
    if (row == GROUP_ID(0) * chunk) {{
      {_over(gpu, "size", f"{grad} dw[c] = s * {normal}; db[c] = s;")}
    }} else {{
      {_over(gpu, "size", f"{grad} dw[c] += s * {normal}; db[c] += s;")}
    }}"""
    body = f"""{_pointer("g", type_, "row * size", "grad")}
    {_pointer("x", type_, "row * size", "in")}
    {_pointer("d", type_, "row * size", "out", const=False) if input_grad else ""}
    const {t} mean = load_{stat_type}(means, row), rstd = load_{stat_type}(rstds, row);{passes}"""
    sums = ""
    if weight_grads:
        sums = " ".join(_pointer(s, acc, "GROUP_ID(0) * size", f"{s}s", const=False) for s in ("dw", "db"))
    params: tuple[Parameter, ...] = (
        Pointer("grad", type_, const=True),
        Pointer("in", type_, const=True),
        Pointer("means", stat_type, const=True),
        Pointer("rstds", stat_type, const=True),
        Pointer("weight", weight_type, const=True),
        Pointer("out", type_),
        Pointer("dws", acc),
        Pointer("dbs", acc),
        *_i64("rows", "size", "chunk"),
    )
    declarations = (_arrays(gpu, acc, "a b") if input_grad else "") + sums
    return Kernel(f"layer_norm_backward_{type_}", params, _rows(gpu, declarations, body), local=_local(gpu))


@functools.cache
def layer_norm_weight_gpu(type_: str, stat_type: str) -> Kernel:
    """Sums of the gradients of weight and bias over `chunk` rows: 32 columns by 8 rows. Groups: (size / 32, parts)."""
    acc = BY_NAME[type_].accumulate
    t = value_ctype(acc)
    body = f"""
  LOCAL {t} a[256], b[256];
  const int lane = LOCAL_ID(1) * 32 + LOCAL_ID(0);
  const long c = GROUP_ID(0) * 32 + LOCAL_ID(0);
  const long row_end = (GROUP_ID(1) + 1) * chunk < rows ? (GROUP_ID(1) + 1) * chunk : rows;
  {t} dw = 0, db = 0;
  if (c < size) {{
    for (long row = GROUP_ID(1) * chunk + LOCAL_ID(1); row < row_end; row += 8) {{
      const {t} g = load_{type_}(grad, row * size + c);
      dw += g * (load_{type_}(in, row * size + c) - load_{stat_type}(means, row)) * load_{stat_type}(rstds, row);
      db += g;
    }}
  }}
  a[lane] = dw;
  b[lane] = db;
  BARRIER;
  for (int w = 128; w >= 32; w /= 2) {{
    if (lane < w) {{ a[lane] += a[lane + w]; b[lane] += b[lane + w]; }}
    BARRIER;
  }}
  if (lane < 32 && c < size) {{ dws[GROUP_ID(1) * size + c] = a[lane]; dbs[GROUP_ID(1) * size + c] = b[lane]; }}
"""
    params: tuple[Parameter, ...] = (
        Pointer("grad", type_, const=True),
        Pointer("in", type_, const=True),
        Pointer("means", stat_type, const=True),
        Pointer("rstds", stat_type, const=True),
        Pointer("dws", acc),
        Pointer("dbs", acc),
        *_i64("rows", "size", "chunk"),
    )
    return Kernel(f"layer_norm_weight_{type_}", params, body, local=(32, 8))


# Group norm ----------------------------------------------------------------------------------------------------------


@functools.cache
def group_norm(gpu: bool, type_: str, weight_type: str, stat_type: str, weight: bool, bias: bool) -> Kernel:
    """A row is a group of a sample: `depth` channels of `inner` elements. Groups: rows / chunk (CPU), rows (GPU)."""
    acc = BY_NAME[type_].accumulate
    t = value_ctype(acc)
    scale = f"rstd * load_{weight_type}(weight, channel)" if weight else "rstd"
    shift = f"load_{weight_type}(bias, channel)" if bias else "0"
    save = f"store_{stat_type}(means, row, mean); store_{stat_type}(rstds, row, rstd);"
    body = f"""const long size = depth * inner;
    {_pointer("x", type_, "row * size", "in")}
    {_moments(gpu, acc, type_)}
    {f"if (lane == 0) {{ {save} }}" if gpu else save}
    for (long k = 0; k < depth; ++k) {{
      const long channel = row % groups * depth + k, at = row * size + k * inner;
      {_pointer("p", type_, "at", "in")}
      {_pointer("y", type_, "at", "out", const=False)}
      const {t} scale = {scale}, shift = {shift};
      {_over(gpu, "inner", f"store_{type_}(y, c, (load_{type_}(p, c) - mean) * scale + shift);")}
    }}"""
    params: tuple[Parameter, ...] = (
        Pointer("in", type_, const=True),
        Pointer("weight", weight_type, const=True),
        Pointer("bias", weight_type, const=True),
        Pointer("out", type_),
        Pointer("means", stat_type),
        Pointer("rstds", stat_type),
        *_i64("rows", "groups", "depth", "inner", "chunk"),
        Value("eps", acc),
    )
    return Kernel(f"group_norm_{type_}", params, _rows(gpu, _arrays(gpu, acc, "a"), body), local=_local(gpu))


@functools.cache
def group_norm_sums(gpu: bool, type_: str, stat_type: str) -> Kernel:
    """For each channel of each sample the sums of dy and of dy (x - mean). Rows are channels of samples."""
    acc = BY_NAME[type_].accumulate
    save = "sums[row] = a[0]; dots[row] = b[0];"
    step = f"a[j] += load_{type_}(g, c); b[j] += load_{type_}(g, c) * (load_{type_}(x, c) - mean);"
    body = f"""{_pointer("g", type_, "row * size", "grad")}
    {_pointer("x", type_, "row * size", "in")}
    const {value_ctype(acc)} mean = load_{stat_type}(means, row / depth);
    {_sum(gpu, acc, "size", "a b", step)}
    {f"if (lane == 0) {{ {save} }}" if gpu else save}"""
    params: tuple[Parameter, ...] = (
        Pointer("grad", type_, const=True),
        Pointer("in", type_, const=True),
        Pointer("means", stat_type, const=True),
        Pointer("sums", acc),
        Pointer("dots", acc),
        *_i64("rows", "size", "depth", "chunk"),
    )
    return Kernel(f"group_norm_sums_{type_}", params, _rows(gpu, _arrays(gpu, acc, "a b"), body), local=_local(gpu))


@functools.cache
def group_norm_input(gpu: bool, type_: str, weight_type: str, stat_type: str, weight: bool) -> Kernel:
    """Gradient of the input. Rows are groups of samples."""
    acc = BY_NAME[type_].accumulate
    t = value_ctype(acc)
    factor = f"load_{weight_type}(weight, lowest + k)" if weight else "1"
    body = f"""const long lowest = row % groups * depth;
    const {t} mean = load_{stat_type}(means, row), rstd = load_{stat_type}(rstds, row);
    {t} s1 = 0, s2 = 0;
    for (long k = 0; k < depth; ++k) {{
      const {t} f = {factor};
      s1 += sums[row * depth + k] * f;
      s2 += dots[row * depth + k] * f;
    }}
    s1 *= rstd / ({t})(depth * inner);
    s2 *= rstd * rstd * rstd / ({t})(depth * inner);
    for (long k = 0; k < depth; ++k) {{
      const {t} f = rstd * {factor};
      const long at = (row * depth + k) * inner;
      {_pointer("g", type_, "at", "grad")}
      {_pointer("x", type_, "at", "in")}
      {_pointer("d", type_, "at", "out", const=False)}
      {_over(gpu, "inner", f"store_{type_}(d, c, f * load_{type_}(g, c) - (load_{type_}(x, c) - mean) * s2 - s1);")}
    }}"""
    params: tuple[Parameter, ...] = (
        Pointer("grad", type_, const=True),
        Pointer("in", type_, const=True),
        Pointer("means", stat_type, const=True),
        Pointer("rstds", stat_type, const=True),
        Pointer("weight", weight_type, const=True),
        Pointer("sums", acc, const=True),
        Pointer("dots", acc, const=True),
        Pointer("out", type_),
        *_i64("rows", "groups", "depth", "inner", "chunk"),
    )
    return Kernel(f"group_norm_input_{type_}", params, _rows(gpu, "", body), local=_local(gpu))


@functools.cache
def group_norm_weight(gpu: bool, acc: str, weight_type: str, stat_type: str) -> Kernel:
    """Gradients of weight and bias from `group_norm_sums`; either may be absent. One work-item a channel."""
    t = value_ctype(acc)
    body = f"""
  const long channel = GLOBAL_ID(0);
  if (channel >= channels) return;
  {t} dw = 0, db = 0;
  for (long n = 0; n < samples; ++n) {{
    dw += dots[n * channels + channel] * load_{stat_type}(rstds, n * groups + channel / depth);
    db += sums[n * channels + channel];
  }}
  if (has_weight) store_{weight_type}(weight_grad, channel, dw);
  if (has_bias) store_{weight_type}(bias_grad, channel, db);
"""
    params: tuple[Parameter, ...] = (
        Pointer("rstds", stat_type, const=True),
        Pointer("sums", acc, const=True),
        Pointer("dots", acc, const=True),
        Pointer("weight_grad", weight_type),
        Pointer("bias_grad", weight_type),
        *_i64("samples", "channels", "groups", "depth"),
        Value("has_weight", "i32"),
        Value("has_bias", "i32"),
    )
    return Kernel(f"group_norm_weight_{weight_type}", params, body, local=(64,))


# Batch norm ----------------------------------------------------------------------------------------------------------


@functools.cache
def batch_norm_statistics(acc: str, weight_type: str, stat_type: str, running_type: str, options: str) -> Kernel:
    """What follows from the statistics of a batch, one work-item a channel.

    Saves mean and inverse deviation, updates the running statistics, and finds the affine map of each channel.
    `options` are letters: w weight, b bias, r running statistics are updated, e evaluation (from the running
    statistics), s save.
    """
    t = value_ctype(acc)
    weight = f"load_{weight_type}(weight, c)" if "w" in options else "1"
    bias = f"load_{weight_type}(bias, c)" if "b" in options else "0"
    if "e" in options:
        source = f"const {t} m = load_{running_type}(running_mean, c), v = load_{running_type}(running_var, c);"
    else:
        source = f"const {t} m = mean[c], v = var[c];"
    update = ""
    if "r" in options:
        old_mean, old_var = (f"load_{running_type}(running_{name}, c)" for name in ("mean", "var"))
        update = f"""
  const {t} unbiased = v * (({t})count / (({t})count - 1));
  store_{running_type}(running_mean, c, {old_mean} * (1 - momentum) + m * momentum);
  store_{running_type}(running_var, c, {old_var} * (1 - momentum) + unbiased * momentum);"""
    save = f"store_{stat_type}(save_mean, c, m); store_{stat_type}(save_invstd, c, inverse);" if "s" in options else ""
    body = f"""
  const long c = GLOBAL_ID(0);
  if (c >= channels) return;
  {source}
  const {t} inverse = 1 / sqrt(v + eps);{update}
  {save}
  scale[c] = inverse * {weight};
  shift[c] = {bias};
  center[c] = m;
"""
    params: tuple[Parameter, ...] = (
        Pointer("mean", acc, const=True),
        Pointer("var", acc, const=True),
        Pointer("weight", weight_type, const=True),
        Pointer("bias", weight_type, const=True),
        Pointer("running_mean", running_type),
        Pointer("running_var", running_type),
        Pointer("save_mean", stat_type),
        Pointer("save_invstd", stat_type),
        Pointer("scale", acc),
        Pointer("shift", acc),
        Pointer("center", acc),
        *_i64("channels", "count"),
        Value("momentum", acc),
        Value("eps", acc),
    )
    return Kernel(f"batch_norm_statistics_{stat_type}", params, body, local=(64,))


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
def batch_norm_center(acc: str, running_type: str, stat_type: str, train: bool) -> Kernel:
    """The mean and inverse deviation that a backward pass uses, as `acc`. One work-item a channel."""
    t = value_ctype(acc)
    if train:
        values = f"load_{stat_type}(save_mean, c), inverse = load_{stat_type}(save_invstd, c)"
    else:
        values = f"load_{running_type}(running_mean, c), inverse = 1 / sqrt(load_{running_type}(running_var, c) + eps)"
    body = f"""
  const long c = GLOBAL_ID(0);
  if (c >= channels) return;
  const {t} m = {values};
  center[c] = m;
  invstd[c] = inverse;
"""
    params: tuple[Parameter, ...] = (
        Pointer("running_mean", running_type, const=True),
        Pointer("running_var", running_type, const=True),
        Pointer("save_mean", stat_type, const=True),
        Pointer("save_invstd", stat_type, const=True),
        Pointer("center", acc),
        Pointer("invstd", acc),
        *_i64("channels"),
        Value("eps", acc),
    )
    return Kernel(f"batch_norm_center_{acc}", params, body, local=(64,))


@functools.cache
def batch_norm_coefficients(acc: str, weight_type: str, grad_type: str, weight: bool, train: bool) -> Kernel:
    """Gradients of weight and bias, and dx as scale dy + slope (x - mean) + shift. One work-item a channel."""
    t = value_ctype(acc)
    factor = f"load_{weight_type}(weight, c)" if weight else "1"
    rest = "slope[c] = 0; shift[c] = 0;"
    if train:
        rest = f"slope[c] = -s * inverse * inverse * dot[c] / ({t})count; shift[c] = -s * sum[c] / ({t})count;"
    body = f"""
  const long c = GLOBAL_ID(0);
  if (c >= channels) return;
  const {t} inverse = invstd[c], s = inverse * {factor};
  scale[c] = s;
  {rest}
  if (has_weight) store_{grad_type}(weight_grad, c, dot[c] * inverse);
  if (has_bias) store_{grad_type}(bias_grad, c, sum[c]);
"""
    params: tuple[Parameter, ...] = (
        Pointer("sum", acc, const=True),
        Pointer("dot", acc, const=True),
        Pointer("invstd", acc, const=True),
        Pointer("weight", weight_type, const=True),
        Pointer("weight_grad", grad_type),
        Pointer("bias_grad", grad_type),
        Pointer("scale", acc),
        Pointer("slope", acc),
        Pointer("shift", acc),
        *_i64("channels", "count"),
        Value("has_weight", "i32"),
        Value("has_bias", "i32"),
    )
    return Kernel(f"batch_norm_coefficients_{acc}", params, body, local=(64,))


def _map(type_: str, backward: bool, element: str, channel: str) -> str:
    """The affine map of one element; coefficients are looked up at `channel`."""
    if backward:
        value = (
            f"scale[{channel}] * load_{type_}(g, {element}) "
            f"+ slope[{channel}] * (load_{type_}(x, {element}) - center[{channel}]) + shift[{channel}]"
        )
    else:
        value = f"(load_{type_}(x, {element}) - center[{channel}]) * scale[{channel}] + shift[{channel}]"
    return f"store_{type_}(y, {element}, {value});"


def _map_params(type_: str, backward: bool) -> tuple[Parameter, ...]:
    acc = BY_NAME[type_].accumulate
    extra = (Pointer("grad", type_, const=True), Pointer("slope", acc, const=True)) if backward else ()
    return (
        Pointer("in", type_, const=True),
        *extra,
        Pointer("scale", acc, const=True),
        Pointer("shift", acc, const=True),
        Pointer("center", acc, const=True),
        Pointer("out", type_),
        *_i64("rows", "channels", "inner", "chunk"),
    )


@functools.cache
def channel_map(type_: str, backward: bool, last: bool) -> Kernel:
    """CPU form. Groups: rows / chunk.

    A row is `inner` elements of a channel of a sample, or with `last`, where channels are fastest in memory, the
    channels of one position.
    """
    t = value_ctype(BY_NAME[type_].accumulate)
    size = "channels" if last else "inner"
    pointers = [_pointer("x", type_, f"row * {size}", "in"), _pointer("y", type_, f"row * {size}", "out", const=False)]
    if backward:
        pointers.append(_pointer("g", type_, f"row * {size}", "grad"))
    if last:
        loop = _over(False, size, _map(type_, backward, "c", "c"))
    else:
        names = ["scale", "shift", "center", *(["slope"] if backward else [])]
        text = _map(type_, backward, "c", "k")
        for name in names:
            text = text.replace(f"{name}[k]", f"{name}_k")
        loop = f"""const long k = row % channels;
    {" ".join(f"const {t} {name}_k = {name}[k];" for name in names)}
    {_over(False, size, text)}"""
    body = _rows(False, "", "\n    ".join([*pointers, loop]))
    return Kernel(f"channel_map_{type_}", _map_params(type_, backward), body)


@functools.cache
def channel_map_gpu(type_: str, backward: bool, last: bool) -> Kernel:
    """One work-item an element. Groups: rows * (channels or inner) / 256."""
    size, channel = ("channels", "at % channels") if last else ("inner", "at / inner % channels")
    names = {"x": "in", "y": "out", "g": "grad"}
    pointers = " ".join(
        _pointer(name, type_, "0", source, const=name != "y")
        for name, source in names.items()
        if backward or name != "g"
    )
    body = f"""
  const long at = GLOBAL_ID(0);
  if (at >= rows * {size}) return;
  const long k = {channel};
  {pointers}
  {_map(type_, backward, "at", "k")}
"""
    return Kernel(f"channel_map_{type_}", _map_params(type_, backward), body, local=(256,))
