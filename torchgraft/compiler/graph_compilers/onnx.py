"""ONNX, written by torch.onnx."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from torchgraft.compiler.graph_compilers.importer import Importer
from torchgraft.compiler.internals import onnx_registry

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
    return "" if onnx_registry().is_registered(op) else "ONNX has nothing for it"


def _write(gm: torch.fx.GraphModule) -> bytes:
    inputs = tuple(node.meta["val"] for node in gm.graph.find_nodes(op="placeholder"))
    written = torch.onnx.export(torch.export.export(gm, inputs), dynamo=True, verbose=False)
    assert written is not None
    content: bytes = written.model_proto.SerializeToString()
    return content


# ---- what ONNX has not ----


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
    if transposed or groups != 1:
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
        swapped = aten.convolution(
            x.transpose(0, 1), grad.transpose(0, 1), None, dilation, padding, stride, False, [0] * dims, 1
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
    planes = x.reshape(*x.shape[:-2], -1)
    added = torch.zeros_like(planes).scatter_add(-1, indices.flatten(-2), grad.flatten(-2))
    return added.reshape(x.shape)


def _threshold_backward(grad: torch.Tensor, x: torch.Tensor, threshold: float) -> torch.Tensor:
    return torch.where(x <= threshold, torch.zeros_like(grad), grad)


_DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    aten.convolution_backward.default: _convolution_backward,
    aten.max_pool2d_with_indices_backward.default: _max_pool_backward,
    aten.threshold_backward.default: _threshold_backward,
}
