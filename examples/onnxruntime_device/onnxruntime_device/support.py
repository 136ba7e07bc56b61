"""What ONNX Runtime's CPU kernels lack, by the nodes of PyTorch's graphs: found by trying its 1.32 on each."""

from __future__ import annotations

from collections.abc import Sequence

from torchgraft.driver import ProgramSource, ProgramTensor

#: Ops that only move elements or convert them.
_MOVES = frozenset(
    "_to_copy _unsafe_view alias cat clone detach embedding flatten gather index index_select permute reshape select "
    "slice split split_with_sizes squeeze stack t transpose unsqueeze unbind view".split()
)
_HAS_NO_INTEGERS = frozenset(
    "addmm avg_pool1d avg_pool2d avg_pool3d ceil conv_transpose2d convolution floor isnan max_pool2d_with_indices "
    "max_pool2d round trunc".split()
)
#: By the dtype of an input, or of the result where there is none.
_LACKING = {
    "float64": frozenset(
        "_adaptive_avg_pool2d acos acosh asin asinh atan atan2 atanh avg_pool1d avg_pool2d avg_pool3d conv_transpose2d "
        "convolution cosh erf erfc gelu gelu_backward native_group_norm sinh tan upsample_bilinear2d "
        "upsample_nearest2d".split()
    ),
    "float16": frozenset("index_add index_put scatter_add scatter_reduce".split()),
    "int32": _HAS_NO_INTEGERS,
    "int64": _HAS_NO_INTEGERS | {"relu"},
    "bool": frozenset("add amax amin isnan max min mul pow sort sub topk".split()),
}
_COMPUTED = {"float32", *_LACKING}


def check_operator(source: ProgramSource) -> None:
    """Raises NotImplementedError for an operator that the device has not."""
    if source.name not in ("copy", "fill"):
        raise NotImplementedError(f"the device takes graphs; of operators it has copy and fill, and no {source.name}")
    dtypes = _dtypes(source.inputs) | _dtypes(source.outputs)
    _check_real(dtypes)
    if "bfloat16" in dtypes and (source.name == "fill" or len(dtypes) > 1):
        raise NotImplementedError("NumPy converts no bfloat16")


def check_node(source: ProgramSource) -> None:
    """Raises NotImplementedError for a node that ONNX Runtime has no kernel for."""
    op = source.name.removeprefix("aten.").split(".")[0]
    made = _dtypes(source.outputs)
    _check_real(_dtypes(source.inputs) | made)
    for dtype in _dtypes(source.inputs) or made:
        if op not in _MOVES and (dtype not in _COMPUTED or op in _LACKING.get(dtype, ())):
            raise NotImplementedError(f"ONNX Runtime has no {op} of {dtype}")
    if op in ("where", "masked_fill") and "bool" in made:
        raise NotImplementedError(f"ONNX Runtime has no {op} of bool")
    if op.startswith("scatter") and len(source.inputs) == 3 and _sizes(source, 1) != _sizes(source, 2):
        raise NotImplementedError(f"{op} of more values than indices")


def _check_real(dtypes: set[str]) -> None:
    if any(dtype.startswith("complex") for dtype in dtypes):
        raise NotImplementedError("ONNX Runtime has no complex numbers")


def _dtypes(tensors: Sequence[ProgramTensor | None]) -> set[str]:
    return {tensor.dtype for tensor in tensors if tensor is not None}


def _sizes(source: ProgramSource, i: int) -> tuple[int, ...] | None:
    tensor = source.inputs[i]
    return None if tensor is None else tensor.sizes
