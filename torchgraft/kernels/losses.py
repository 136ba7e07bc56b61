"""Kernels of the negative log likelihood: one log probability a target, out of [batch, class, place] with any
strides."""

from __future__ import annotations

import functools

from torchgraft.codegen.kernel import Kernel, Parameter, Pointer, Value
from torchgraft.codegen.types import value_ctype

GPU_LOCAL = 256
SHAPE = ("classes", "ignored", "places", "batch_stride", "class_stride", "place_stride", "n", "chunk")


def _params(target: str, weight: str | None, type_: str) -> list[Parameter]:
    out: list[Parameter] = [Pointer("target", target, const=True)]
    if weight is not None:
        out.append(Pointer("weight", type_, const=True))
    return [*out, Pointer("errors", "i32"), Value("code", "i32"), *(Value(v, "i64") for v in SHAPE)]


def _element(type_: str, target: str, weight: str | None, found: str, skipped: str = "") -> str:
    """Statements for target number i of place s in batch b; `found` uses t, w and `at`."""
    w = f"load_{type_}(weight, t)" if weight is not None else f"({value_ctype(type_)})1"
    return f"""\
    long t = load_{target}(target, i);
    long at = b * batch_stride + t * class_stride + s * place_stride;
    if (t == ignored) {{ {skipped} }}
    else if (t < 0 || t >= classes) {{ tg_report(errors, code, t); {skipped} }}
    else {{ {value_ctype(type_)} w = {w}; {found} }}"""


def _walk(body: str, form: str) -> tuple[str, tuple[int, ...]]:
    """Over targets: a CPU's work-item takes a chunk of them."""
    if form == "gpu":
        head = f"  long i = (long)GROUP_ID(0) * {GPU_LOCAL} + LOCAL_ID(0);\n  if (i >= n) return;\n"
        return f"{head}  long b = i / places, s = i % places;\n{body}", (GPU_LOCAL,)
    text = f"""\
  long begin = (long)GROUP_ID(0) * chunk, end = n - begin < chunk ? n : begin + chunk;
  long b = begin / places, s = begin % places;
  for (long i = begin; i < end; ++i) {{
{body}
    if (++s == places) {{ s = 0; ++b; }}
  }}"""
    return text, (1,)


@functools.cache
def each_kernel(type_: str, target: str, weight: str | None, form: str) -> Kernel:
    """The loss of each target, stored in order."""
    params = (Pointer("out", type_), Pointer("x", type_, const=True), *_params(target, weight, type_))
    zero = f"store_{type_}(out, i, 0);"
    text, local = _walk(
        _element(type_, target, weight, f"store_{type_}(out, i, -w * load_{type_}(x, at));", zero), form
    )
    return Kernel("nll_each", params, text, local=local)


@functools.cache
def sum_kernel(type_: str, accumulate: str, target: str, weight: str | None) -> Kernel:
    """Sums of losses and of weights of each group: sums[2 g], sums[2 g + 1]. One work-item takes a chunk in both
    forms."""
    params = (Pointer("sums", accumulate), Pointer("x", type_, const=True), *_params(target, weight, type_))
    a = value_ctype(accumulate)
    text, local = _walk(
        _element(type_, target, weight, f"loss -= ({a})(w * load_{type_}(x, at)); total += ({a})w;"), "cpu"
    )
    text = f"  {a} loss = 0, total = 0;\n{text}\n  sums[2 * GROUP_ID(0)] = loss;\n  sums[2 * GROUP_ID(0) + 1] = total;"
    return Kernel("nll_sum", params, text, local=local)


@functools.cache
def whole_kernel(type_: str, accumulate: str, target: str, weight: str | None, mean: bool) -> Kernel:
    """The loss of all targets, and their weight, by one work-item."""
    params = (
        Pointer("out", type_),
        Pointer("weight_out", type_),
        Pointer("x", type_, const=True),
        *_params(target, weight, type_),
    )
    a = value_ctype(accumulate)
    text, local = _walk(
        _element(type_, target, weight, f"loss -= ({a})(w * load_{type_}(x, at)); total += ({a})w;"), "cpu"
    )
    text = f"""\
  {a} loss = 0, total = 0;
{text}
  store_{type_}(out, 0, {"loss / total" if mean else "loss"});
  store_{type_}(weight_out, 0, total);"""
    return Kernel("nll", params, text, local=local)


@functools.cache
def finish_kernel(type_: str, accumulate: str, mean: bool) -> Kernel:
    """Adds the groups' sums: the loss, and the weight of all targets."""
    params = (
        Pointer("out", type_),
        Pointer("weight_out", type_),
        Pointer("sums", accumulate, const=True),
        Value("groups", "i64"),
    )
    a = value_ctype(accumulate)
    body = f"""\
  {a} loss = 0, total = 0;
  for (long g = 0; g < groups; ++g) {{ loss += sums[2 * g]; total += sums[2 * g + 1]; }}
  store_{type_}(out, 0, {"loss / total" if mean else "loss"});
  store_{type_}(weight_out, 0, total);"""
    return Kernel("nll_finish", params, body)


@functools.cache
def backward_kernel(type_: str, target: str, weight: str | None, mean: bool, each: bool, form: str) -> Kernel:
    """Writes the gradients at the targets' classes; the others are zero before. `each`: one gradient for every
    target."""
    params: tuple[Parameter, ...] = (
        Pointer("out", type_),
        Pointer("grad", type_, const=True),
        Pointer("total", type_, const=True),
    )
    value = f"-w * load_{type_}(grad, {'i' if each else '0'})" + (f" / load_{type_}(total, 0)" if mean else "")
    text, local = _walk(_element(type_, target, weight, f"store_{type_}(out, at, {value});"), form)
    return Kernel("nll_backward", (*params, *_params(target, weight, type_)), text, local=local)
