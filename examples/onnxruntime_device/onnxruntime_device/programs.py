"""What the device runs: graphs by ONNX Runtime's CPU kernels, copies and fills by NumPy."""

from __future__ import annotations

import ctypes
import os
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import onnxruntime

from torchgraft.driver import CompileError, InvalidArgument, ProgramSource, ProgramTensor

__all__ = ["Program", "copied", "filled", "graph"]

Run = Callable[[Sequence[int]], None]

#: The number that ONNX has for a dtype, ONNX Runtime's name, and NumPy's.
DTYPES = {
    "float32": (1, "float", "f4"),
    "uint8": (2, "uint8", "u1"),
    "int8": (3, "int8", "i1"),
    "int16": (5, "int16", "i2"),
    "int32": (6, "int32", "i4"),
    "int64": (7, "int64", "i8"),
    "bool": (9, "bool", "?"),
    "float16": (10, "float16", "f2"),
    "float64": (11, "double", "f8"),
    "bfloat16": (16, "bfloat16", "u2"),  # NumPy has none: only copied as it is
}


@dataclass(frozen=True)
class Program:
    """A function of addresses, inputs before outputs, and what its binary is, if it has one."""

    name: str
    run: Run
    binary: Callable[[], bytes] | None = None


# ---- graphs ----

# Of how many sets of addresses bindings are kept. Binding takes longer than a small graph's run.
_BINDINGS = 8


def graph(source: ProgramSource, model: bytes, optimised: bool) -> Program:
    """A program of a model.

    Args:
        optimised: whether the model is a binary of such a program: its kernels and layouts are chosen already.

    Raises:
        NotImplementedError: ONNX Runtime lacks a kernel.
        CompileError: it refuses the model, or the model's tensors are not the source's.
    """
    session = _session(model, _options(optimised))
    given, made = session.get_inputs(), session.get_outputs()
    _check(source.name, source.inputs, given)
    _check(source.name, source.outputs, made)
    runner = _Runner(session, [*source.inputs, *source.outputs], [each.name for each in (*given, *made)], len(given))
    return Program(source.name, runner.run, lambda: model if optimised else _optimised(model))


class _Runner:
    """Runs a session in the device's own memory. Several streams may run it at once."""

    def __init__(
        self,
        session: onnxruntime.InferenceSession,
        tensors: list[ProgramTensor | None],
        names: list[str],
        input_count: int,
    ) -> None:
        self._session, self._tensors, self._names, self._input_count = session, tensors, names, input_count
        self._bindings: dict[tuple[int, ...], onnxruntime.IOBinding] = {}  # those that no run uses
        self._lock = threading.Lock()

    def run(self, addresses: Sequence[int]) -> None:
        key = tuple(addresses)
        with self._lock:
            binding = self._bindings.pop(key, None)
        binding = binding or self._bind(addresses)
        self._session.run_with_iobinding(binding)
        with self._lock:
            self._bindings[key] = binding
            if len(self._bindings) > _BINDINGS:
                del self._bindings[next(iter(self._bindings))]

    def _bind(self, addresses: Sequence[int]) -> onnxruntime.IOBinding:
        binding = self._session.io_binding()
        for i, (name, tensor, address) in enumerate(zip(self._names, self._tensors, addresses, strict=True)):
            bind = binding.bind_input if i < self._input_count else binding.bind_output
            assert tensor is not None  # _check
            bind(name, "cpu", 0, DTYPES[tensor.dtype][0], tensor.sizes, address)
        return binding


def _options(optimised: bool) -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = len(os.sched_getaffinity(0))
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # each session has threads of its own
    options.log_severity_level = 4  # what fails is raised
    if optimised:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return options


def _session(model: bytes, options: onnxruntime.SessionOptions) -> onnxruntime.InferenceSession:
    try:
        return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented as error:
        raise NotImplementedError(f"ONNX Runtime: {error}") from None
    except Exception as error:
        raise CompileError(f"ONNX Runtime: {error}") from None


def _optimised(model: bytes) -> bytes:
    """The model as ONNX Runtime has made it for this processor."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        options = _options(optimised=False)
        options.optimized_model_filepath = str(path)
        _session(model, options)
        return path.read_bytes()


def _check(name: str, tensors: Sequence[ProgramTensor | None], found: Sequence[Any]) -> None:
    """ONNX Runtime reads and writes by the model's sizes: they must be the tensors'."""
    wanted = [None if t is None else (f"tensor({DTYPES[t.dtype][1]})", list(t.sizes)) for t in tensors]
    has = [(each.type, list(each.shape)) for each in found]
    if wanted != has:
        raise CompileError(f"the model {name} has tensors {has}, and is to have {wanted}")


# ---- operators ----


def copied(source: ProgramSource) -> Program:
    """The operator `copy`: other strides, or another dtype."""
    (given,), (made,) = source.inputs, source.outputs
    assert given is not None
    assert made is not None

    def run(addresses: Sequence[int]) -> None:
        with numpy.errstate(all="ignore"):
            numpy.copyto(_array(made, addresses[1]), _array(given, addresses[0]), casting="unsafe")

    return Program(source.name, run)


def filled(source: ProgramSource) -> Program:
    """The operator `fill`."""
    (made,) = source.outputs
    assert made is not None
    value = source.attributes["value"]
    if isinstance(value, (str, tuple)):
        raise InvalidArgument(f"fill with {value!r}, which is no number")

    def run(addresses: Sequence[int]) -> None:
        with numpy.errstate(all="ignore"):
            _array(made, addresses[0])[...] = numpy.asarray(value).astype(DTYPES[made.dtype][2])

    return Program(source.name, run)


def _array(tensor: ProgramTensor, address: int) -> numpy.ndarray[Any, Any]:
    dtype = numpy.dtype(DTYPES[tensor.dtype][2])
    reach = 1 + sum((size - 1) * stride for size, stride in zip(tensor.sizes, tensor.strides, strict=True))
    memory = (ctypes.c_char * (reach * dtype.itemsize)).from_address(address)
    steps = [stride * dtype.itemsize for stride in tensor.strides]
    return numpy.ndarray(tensor.sizes, dtype, memoryview(memory), strides=steps)
