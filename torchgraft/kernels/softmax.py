"""Kernels of softmax and log_softmax, forward and backward.

Tensors are contiguous and seen as (outer, size, inner), the softmax running along the middle. Row kernels are for
inner = 1; column kernels have work-items (or vector lanes, in the CPU form) of neighbouring inner indices and take the
strides of all three, so that many short rows can be treated as columns.
"""

from __future__ import annotations

import functools

from torchgraft.codegen.kernel import Kernel, Parameter, Pointer, Value
from torchgraft.codegen.types import BY_NAME, value_ctype

LANES = 64
WIDTH = 256


def _fold(array: str, how: str) -> str:
    """Folds an array of LANES accumulators into its first element."""
    return f"""for (int w = {LANES // 2}; w >= 16; w /= 2) VECTORIZE for (int j = 0; j < w; ++j) {how}
    for (int w = 8; w > 0; w /= 2) for (int j = 0; j < w; ++j) {how}""".replace("@", array)


_ADD = "@[j] += @[j + w];"
_MAX = "@[j] = @[j] > @[j + w] ? @[j] : @[j + w];"


def _over_row(statement: str) -> str:
    """A loop over the row in steps of LANES; `statement` uses element index c and lane j."""
    return f"""for (long b = 0; b < size; b += {LANES}) {{
      const int n = (int)(size - b < {LANES} ? size - b : {LANES});
      if (n == {LANES}) {{ VECTORIZE for (int j = 0; j < {LANES}; ++j) {{ const long c = b + j; {statement} }} }}
      else {{ VECTORIZE for (int j = 0; j < n; ++j) {{ const long c = b + j; {statement} }} }}
    }}"""


def _rows(body: str) -> str:
    return f"""
  const long row_end = (GROUP_ID(0) + 1) * chunk < rows ? (GROUP_ID(0) + 1) * chunk : rows;
  for (long row = GROUP_ID(0) * chunk; row < row_end; ++row) {{
    {body}
  }}
"""


def _storage(type_: str) -> str:
    return BY_NAME[type_].storage


_ROW_VALUES = (Value("rows", "i64"), Value("size", "i64"), Value("chunk", "i64"))
_COLUMN_VALUES = tuple(
    Value(name, "i64") for name in ("outer", "outer_stride", "size", "stride", "inner", "inner_stride", "chunk")
)


@functools.cache
def forward_row(in_type: str, out_type: str, log: bool) -> Kernel:
    """CPU form. Groups: rows / chunk."""
    acc = BY_NAME[in_type].accumulate
    t = value_ctype(acc)
    # The exponentials are kept in the output where it can hold them; a half-precision output would round them twice.
    keep = not log and out_type == acc
    load = f"load_{in_type}(x, c)"
    exponential = (
        f"const {t} e = tg_exp_{acc}({load} - top); {f'store_{out_type}(y, c, e);' if keep else ''} a[j] += e;"
    )
    if log:
        last = f"store_{out_type}(y, c, {load} - top - scale);"
        scale = f"tg_log_{acc}(a[0])"
    elif keep:
        last = f"store_{out_type}(y, c, load_{out_type}(y, c) * scale);"
        scale = "1 / a[0]"
    else:
        last = f"store_{out_type}(y, c, tg_exp_{acc}({load} - top) * scale);"
        scale = "1 / a[0]"
    body = _rows(f"""const GLOBAL {_storage(in_type)}* x = in + row * size;
    GLOBAL {_storage(out_type)}* y = out + row * size;
    {t} a[{LANES}];
    VECTORIZE for (int j = 0; j < {LANES}; ++j) a[j] = -INFINITY;
    {_over_row(f"const {t} v = {load}; a[j] = v > a[j] ? v : a[j];")}
    {_fold("a", _MAX)}
    const {t} top = a[0];
    VECTORIZE for (int j = 0; j < {LANES}; ++j) a[j] = 0;
    {_over_row(exponential)}
    {_fold("a", _ADD)}
    const {t} scale = {scale};
    VECTORIZE for (long c = 0; c < size; ++c) {last}""")
    params: tuple[Parameter, ...] = (Pointer("in", in_type, const=True), Pointer("out", out_type), *_ROW_VALUES)
    return Kernel(f"{'log_' if log else ''}softmax_row_{in_type}", params, body)


@functools.cache
def backward_row(type_: str, out_type: str, log: bool) -> Kernel:
    """CPU form, from the gradient and the result. Groups: rows / chunk."""
    acc = BY_NAME[type_].accumulate
    t = value_ctype(acc)
    grad, result = f"load_{type_}(g, c)", f"load_{type_}(y, c)"
    term = grad if log else f"{grad} * {result}"
    value = f"{grad} - tg_exp_{acc}({result}) * sum" if log else f"({grad} - sum) * {result}"
    body = _rows(f"""const GLOBAL {_storage(type_)}* g = grad + row * size;
    const GLOBAL {_storage(type_)}* y = result + row * size;
    GLOBAL {_storage(out_type)}* d = out + row * size;
    {t} a[{LANES}];
    VECTORIZE for (int j = 0; j < {LANES}; ++j) a[j] = 0;
    {_over_row(f"a[j] += {term};")}
    {_fold("a", _ADD)}
    const {t} sum = a[0];
    VECTORIZE for (long c = 0; c < size; ++c) store_{out_type}(d, c, {value});""")
    params: tuple[Parameter, ...] = (
        Pointer("grad", type_, const=True),
        Pointer("result", type_, const=True),
        Pointer("out", out_type),
        *_ROW_VALUES,
    )
    return Kernel(f"{'log_' if log else ''}softmax_backward_row_{type_}", params, body)


_BLOCK = """
  const long blocks = (inner + chunk - 1) / chunk;
  const long o = GROUP_ID(0) / blocks, start = (GROUP_ID(0) - o * blocks) * chunk;
  const int m = (int)(inner - start < chunk ? inner - start : chunk);
  const long base = o * outer_stride + start * inner_stride;
"""
_EACH = "VECTORIZE for (int j = 0; j < m; ++j)"


@functools.cache
def forward_column(in_type: str, out_type: str, log: bool, unit: bool) -> Kernel:
    """CPU form. Groups: outer * ceil(inner / chunk); chunk at most WIDTH. `unit`: inner_stride is 1."""
    acc = BY_NAME[in_type].accumulate
    t = value_ctype(acc)
    at = "j" if unit else "j * inner_stride"
    load = f"load_{in_type}(x, {at})"
    loop = "for (long c = 0; c < size; ++c)"
    x = f"const GLOBAL {_storage(in_type)}* x = in + base + c * stride;"
    y = f"GLOBAL {_storage(out_type)}* y = out + base + c * stride;"
    value = f"{load} - top[j] - sum[j]" if log else f"tg_exp_{acc}({load} - top[j]) * sum[j]"
    body = f"""{_BLOCK}
  {t} top[{WIDTH}], sum[{WIDTH}];
  {_EACH} {{ top[j] = -INFINITY; sum[j] = 0; }}
  {loop} {{ {x} {_EACH} {{ const {t} v = {load}; top[j] = v > top[j] ? v : top[j]; }} }}
  {loop} {{ {x} {_EACH} sum[j] += tg_exp_{acc}({load} - top[j]); }}
  {_EACH} sum[j] = {f"tg_log_{acc}(sum[j])" if log else "1 / sum[j]"};
  {loop} {{ {x} {y} {_EACH} store_{out_type}(y, {at}, {value}); }}
"""
    params: tuple[Parameter, ...] = (Pointer("in", in_type, const=True), Pointer("out", out_type), *_COLUMN_VALUES)
    return Kernel(f"{'log_' if log else ''}softmax_column_{in_type}", params, body)


@functools.cache
def backward_column(type_: str, out_type: str, log: bool, unit: bool) -> Kernel:
    """CPU form. Groups as of `forward_column`."""
    acc = BY_NAME[type_].accumulate
    t = value_ctype(acc)
    at = "j" if unit else "j * inner_stride"
    grad, result = f"load_{type_}(g, {at})", f"load_{type_}(y, {at})"
    term = grad if log else f"{grad} * {result}"
    value = f"{grad} - tg_exp_{acc}({result}) * sum[j]" if log else f"({grad} - sum[j]) * {result}"
    loop = "for (long c = 0; c < size; ++c)"
    sources = (
        f"const GLOBAL {_storage(type_)}* g = grad + base + c * stride; "
        f"const GLOBAL {_storage(type_)}* y = result + base + c * stride;"
    )
    body = f"""{_BLOCK}
  {t} sum[{WIDTH}];
  {_EACH} sum[j] = 0;
  {loop} {{ {sources} {_EACH} sum[j] += {term}; }}
  {loop} {{
    {sources}
    GLOBAL {_storage(out_type)}* d = out + base + c * stride;
    {_EACH} store_{out_type}(d, {at}, {value});
  }}
"""
    params: tuple[Parameter, ...] = (
        Pointer("grad", type_, const=True),
        Pointer("result", type_, const=True),
        Pointer("out", out_type),
        *_COLUMN_VALUES,
    )
    return Kernel(f"{'log_' if log else ''}softmax_backward_column_{type_}", params, body)


# GPU forms -----------------------------------------------------------------------------------------------------------


def _tree(array: str, how: str) -> str:
    """Combines what 256 work-items left in a local array; all of them then read its first element."""
    return f"""BARRIER;
  for (int w = 128; w > 0; w /= 2) {{
    if (j < w) {how.replace("@", array)}
    BARRIER;
  }}"""


@functools.cache
def forward_row_gpu(in_type: str, out_type: str, log: bool) -> Kernel:
    """Groups: rows."""
    acc = BY_NAME[in_type].accumulate
    t = value_ctype(acc)
    load = f"load_{in_type}(x, c)"
    value = f"{load} - top - scale" if log else f"tg_exp_{acc}({load} - top) * scale"
    body = f"""
  LOCAL {t} a[256];
  const int j = LOCAL_ID(0);
  const GLOBAL {_storage(in_type)}* x = in + GROUP_ID(0) * size;
  GLOBAL {_storage(out_type)}* y = out + GROUP_ID(0) * size;
  {t} best = -INFINITY;
  for (long c = j; c < size; c += 256) {{ const {t} v = {load}; best = v > best ? v : best; }}
  a[j] = best;
  {_tree("a", _MAX)}
  const {t} top = a[0];
  BARRIER;
  {t} sum = 0;
  for (long c = j; c < size; c += 256) sum += tg_exp_{acc}({load} - top);
  a[j] = sum;
  {_tree("a", _ADD)}
  const {t} scale = {f"tg_log_{acc}(a[0])" if log else "1 / a[0]"};
  for (long c = j; c < size; c += 256) store_{out_type}(y, c, {value});
"""
    params: tuple[Parameter, ...] = (Pointer("in", in_type, const=True), Pointer("out", out_type), *_ROW_VALUES)
    return Kernel(f"{'log_' if log else ''}softmax_row_{in_type}", params, body, local=(256,))


@functools.cache
def backward_row_gpu(type_: str, out_type: str, log: bool) -> Kernel:
    """Groups: rows."""
    acc = BY_NAME[type_].accumulate
    t = value_ctype(acc)
    grad, result = f"load_{type_}(g, c)", f"load_{type_}(y, c)"
    term = grad if log else f"{grad} * {result}"
    value = f"{grad} - tg_exp_{acc}({result}) * total" if log else f"({grad} - total) * {result}"
    body = f"""
  LOCAL {t} a[256];
  const int j = LOCAL_ID(0);
  const GLOBAL {_storage(type_)}* g = grad + GROUP_ID(0) * size;
  const GLOBAL {_storage(type_)}* y = result + GROUP_ID(0) * size;
  GLOBAL {_storage(out_type)}* d = out + GROUP_ID(0) * size;
  {t} sum = 0;
  for (long c = j; c < size; c += 256) sum += {term};
  a[j] = sum;
  {_tree("a", _ADD)}
  const {t} total = a[0];
  for (long c = j; c < size; c += 256) store_{out_type}(d, c, {value});
"""
    params: tuple[Parameter, ...] = (
        Pointer("grad", type_, const=True),
        Pointer("result", type_, const=True),
        Pointer("out", out_type),
        *_ROW_VALUES,
    )
    return Kernel(f"{'log_' if log else ''}softmax_backward_row_{type_}", params, body, local=(256,))


_COLUMN_GPU = """
  const long k = GLOBAL_ID(0), o = k / inner;
  if (o >= outer) return;
  const long base = o * outer_stride + (k - o * inner) * inner_stride;
"""


@functools.cache
def forward_column_gpu(in_type: str, out_type: str, log: bool) -> Kernel:
    """One work-item for a column. Groups: ceil(outer * inner / 64)."""
    acc = BY_NAME[in_type].accumulate
    t = value_ctype(acc)
    load = f"load_{in_type}(in, base + c * stride)"
    value = f"{load} - top - scale" if log else f"tg_exp_{acc}({load} - top) * scale"
    body = f"""{_COLUMN_GPU}
  {t} top = -INFINITY, sum = 0;
  for (long c = 0; c < size; ++c) {{ const {t} v = {load}; top = v > top ? v : top; }}
  for (long c = 0; c < size; ++c) sum += tg_exp_{acc}({load} - top);
  const {t} scale = {f"tg_log_{acc}(sum)" if log else "1 / sum"};
  for (long c = 0; c < size; ++c) store_{out_type}(out, base + c * stride, {value});
"""
    params: tuple[Parameter, ...] = (Pointer("in", in_type, const=True), Pointer("out", out_type), *_COLUMN_VALUES)
    return Kernel(f"{'log_' if log else ''}softmax_column_{in_type}", params, body, local=(64,))


@functools.cache
def backward_column_gpu(type_: str, out_type: str, log: bool) -> Kernel:
    """One work-item for a column. Groups: ceil(outer * inner / 64)."""
    acc = BY_NAME[type_].accumulate
    t = value_ctype(acc)
    grad, result = f"load_{type_}(grad, base + c * stride)", f"load_{type_}(result, base + c * stride)"
    term = grad if log else f"{grad} * {result}"
    value = f"{grad} - tg_exp_{acc}({result}) * sum" if log else f"({grad} - sum) * {result}"
    body = f"""{_COLUMN_GPU}
  {t} sum = 0;
  for (long c = 0; c < size; ++c) sum += {term};
  for (long c = 0; c < size; ++c) store_{out_type}(out, base + c * stride, {value});
"""
    params: tuple[Parameter, ...] = (
        Pointer("grad", type_, const=True),
        Pointer("result", type_, const=True),
        Pointer("out", out_type),
        *_COLUMN_VALUES,
    )
    return Kernel(f"{'log_' if log else ''}softmax_backward_column_{type_}", params, body, local=(64,))
