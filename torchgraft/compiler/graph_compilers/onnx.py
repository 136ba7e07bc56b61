"""ONNX, written by torch.onnx."""

from __future__ import annotations

import functools
import importlib.util
import math
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from torchgraft.compiler.graph_compilers.importer import Importer
from torchgraft.compiler.internals import hint, onnx_registry

__all__ = ["importer"]

aten = torch.ops.aten

# What the exporter asks for.
_PACKAGES = ("onnx", "onnxscript")


def importer() -> Importer:
    """The importer.

    Raises:
        ImportError: packages are missing.
    """
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise ImportError(f"torch.onnx needs {' and '.join(missing)}: pip install {' '.join(missing)}")
    return Importer(_why_not, _write, _version, _DECOMPOSITIONS)


@functools.cache
def _version() -> str:
    texts = [str(torch.__version__)]
    for name in (*_PACKAGES, "onnx_ir"):
        try:
            texts.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            texts.append(f"{name} ?")
    return ", ".join(texts)


def _why_not(op: torch._ops.OpOverload) -> str:
    if op in _WRITTEN_WRONG:
        return "torch.onnx writes something else for it"
    return "" if onnx_registry().is_registered(op) else "ONNX has nothing for it"


def _write(gm: torch.fx.GraphModule) -> bytes:
    inputs = tuple(node.meta["val"] for node in gm.graph.find_nodes(op="placeholder"))
    written = torch.onnx.export(torch.export.export(gm, inputs), dynamo=True, verbose=False)
    assert written is not None
    _check_results(gm, written.model.graph.outputs)
    content: bytes = written.model_proto.SerializeToString()
    return content


def _check_results(gm: torch.fx.GraphModule, outputs: Sequence[Any]) -> None:
    """torch.onnx computes some ops of 16-bit floats in float32, and leaves the results so."""
    nodes = gm.graph.output_node().args[0]
    for node, output in zip(nodes, outputs, strict=True):  # type: ignore[arg-type]
        wanted = _FLOATS.get(node.meta["val"].dtype)
        if wanted is not None and output.dtype.name != wanted:
            raise TypeError(f"torch.onnx writes {node}, which is of {wanted}, as {output.dtype.name}")


_FLOATS = {torch.float16: "FLOAT16", torch.bfloat16: "BFLOAT16", torch.float32: "FLOAT", torch.float64: "DOUBLE"}


# ---- what ONNX has not, or torch.onnx writes wrong ----

_WRITTEN_WRONG = {
    # As if they were not training.
    aten.native_batch_norm.default,
    aten._native_batch_norm_legit.default,
    aten._native_batch_norm_legit.no_stats,
    aten._native_batch_norm_legit_functional.default,
    # With anything for the results that only gradients need.
    aten.nll_loss_forward.default,
    aten._embedding_bag.default,
    aten._linalg_det.default,
    aten._scaled_dot_product_efficient_attention.default,
    aten._scaled_dot_product_flash_attention.default,
    aten._scaled_dot_product_flash_attention_for_cpu.default,
}


def _batch_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    if not training:
        return NotImplemented
    dims = [0, *range(2, x.dim())]
    count = math.prod(x.shape[dim] for dim in dims)
    wide = _wide(x)
    mean = wide.mean(dims, keepdim=True)
    centred = wide - mean
    squares = centred.square().sum(dims, keepdim=True)
    rstd = (squares / count + eps).rsqrt()
    y = centred * rstd
    if weight is not None:
        y = y * weight.view(mean.shape[1:])
    if bias is not None:
        y = y + bias.view(mean.shape[1:])
    of_channels = mean.flatten(), rstd.flatten()
    means = _moved(running_mean, of_channels[0], momentum)
    variances = _moved(running_var, squares.flatten() / (count - 1), momentum)
    return y.to(x.dtype), *of_channels, means, variances


def _batch_norm_without_running(
    x: torch.Tensor, weight: Any, bias: Any, training: bool, momentum: float, eps: float
) -> Any:
    made = _batch_norm(x, weight, bias, None, None, training, momentum, eps)
    return NotImplemented if made is NotImplemented else made[:3]


def _moved(running: torch.Tensor | None, now: torch.Tensor, momentum: float) -> torch.Tensor | None:
    return None if running is None else (running * (1 - momentum) + now * momentum).to(running.dtype)


def _wide(x: torch.Tensor) -> torch.Tensor:
    """Sums of many 16-bit floats are made in float32."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _var_mean(
    x: torch.Tensor, dim: Sequence[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    dims = [d % x.dim() for d in dim] if dim else list(range(x.dim()))
    count = math.prod(x.shape[d] for d in dims)
    wide = _wide(x)
    mean = wide.mean(dims, keepdim=True)
    squares = (wide - mean).square().sum(dims, keepdim=True)
    others = max(count - (1 if correction is None else correction), 0)
    made = (squares / others).to(x.dtype), mean.to(x.dtype)
    if keepdim:
        return made
    kept = [x.shape[d] for d in range(x.dim()) if d not in dims]
    return made[0].view(kept), made[1].view(kept)


def _var(
    x: torch.Tensor, dim: Sequence[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> torch.Tensor:
    return _var_mean(x, dim, correction=correction, keepdim=keepdim)[0]


def _convolution_backward(
    grad: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias_sizes: Any,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> Any:
    """Both gradients of a convolution are convolutions: see docs/graph-compilers.md."""
    dims = x.dim() - 2
    stride, padding, dilation = (list(each) * (dims if len(each) == 1 else 1) for each in (stride, padding, dilation))
    if transposed or 0 in map(hint, grad.shape):  # nothing is convolved with an empty kernel
        return NotImplemented
    grad_x = grad_weight = grad_bias = None
    if output_mask[0]:
        reached = [
            (grad.shape[d + 2] - 1) * stride[d] - 2 * padding[d] + dilation[d] * (weight.shape[d + 2] - 1) + 1
            for d in range(dims)
        ]
        missed = [x.shape[d + 2] - reached[d] for d in range(dims)]  # what the strides leave over
        grad_x = aten.convolution(grad, weight, None, stride, padding, dilation, True, missed, groups)
    if output_mask[1]:
        # Channels are the batch here, and the gradient is the kernel: its steps are the stride.
        n, channels, *places = x.shape
        batch = x.view(n, groups, channels // groups, *places).transpose(0, 2).reshape(-1, groups * n, *places)
        swapped = aten.convolution(
            batch, grad.transpose(0, 1), None, dilation, padding, stride, False, [0] * dims, groups
        )
        grad_weight = swapped.transpose(0, 1)
        for d in range(dims):
            grad_weight = grad_weight.narrow(d + 2, 0, weight.shape[d + 2])
    if output_mask[2]:
        grad_bias = grad.sum([0, *range(2, grad.dim())])
    return grad_x, grad_weight, grad_bias


def _max_pool_backward(
    grad: torch.Tensor, x: torch.Tensor, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool, indices: Any
) -> torch.Tensor:
    """Gradients are added up where the maxima were; indices count within a plane."""
    planes = x.flatten(-2)
    added = torch.zeros_like(planes).scatter_add(-1, indices.flatten(-2), grad.flatten(-2))
    return added.reshape(x.shape)


def _threshold_backward(grad: torch.Tensor, x: torch.Tensor, threshold: float) -> torch.Tensor:
    return torch.where(x <= threshold, torch.zeros_like(grad), grad)


_DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    aten._native_batch_norm_legit_functional.default: _batch_norm,
    aten._native_batch_norm_legit.no_stats: _batch_norm_without_running,
    aten.var.correction: _var,
    aten.var_mean.correction: _var_mean,
    aten.convolution_backward.default: _convolution_backward,
    aten.max_pool2d_with_indices_backward.default: _max_pool_backward,
    aten.threshold_backward.default: _threshold_backward,
}
