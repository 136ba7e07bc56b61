"""Programs by the driver's own functions, without torch: as a maker of a device tries its compiler first."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from typing import Any

import numpy
import onnx
import pytest
from onnx import TensorProto, helper
from onnxruntime_device.driver import OnnxRuntimeDriver

from torchgraft.driver import CompileError, ProgramSource, ProgramTensor

SIZES = (3, 4)


def model(op: str = "Add", element: int = TensorProto.FLOAT) -> bytes:
    tensors = [helper.make_tensor_value_info(name, element, SIZES) for name in "abc"]
    graph = helper.make_graph([helper.make_node(op, ["a", "b"], ["c"])], "g", tensors[:2], tensors[2:])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    written: bytes = made.SerializeToString()
    onnx.checker.check_model(made)
    return written


def source(data: bytes, sizes: tuple[int, int] = SIZES, dtype: str = "float32") -> ProgramSource:
    tensor = ProgramTensor(dtype, sizes, (sizes[1], 1))
    return ProgramSource("onnx", "graph 1", data, {}, (tensor, tensor), (tensor,))


@pytest.fixture
def driver() -> Iterator[OnnxRuntimeDriver]:
    driver = OnnxRuntimeDriver()
    assert driver.device_count() == 1
    yield driver
    driver.device_synchronize(0)


def check_sum(driver: OnnxRuntimeDriver, program: Any, seed: int) -> None:
    """Runs the program on a stream of its own, several times, in memory that is the same and another."""
    stream = driver.stream_create(0, 0)
    random = numpy.random.default_rng(seed)
    for _ in range(4):
        addresses = [driver.allocate(0, 48) for _ in range(3)]
        for _ in range(3):
            a, b = (random.standard_normal(SIZES, numpy.float32) for _ in range(2))
            for address, array in zip(addresses, (a, b), strict=False):
                ctypes.memmove(address, array.ctypes.data, array.nbytes)
            driver.program_run(0, stream, program, addresses, 0)
            driver.stream_synchronize(0, stream)
            found = numpy.frombuffer((ctypes.c_char * 48).from_address(addresses[2]), numpy.float32).reshape(SIZES)
            numpy.testing.assert_array_equal(found, a + b)
        for address in addresses:
            driver.deallocate(0, address)
    driver.stream_destroy(0, stream)


def test_a_model_runs_and_is_kept(driver: OnnxRuntimeDriver) -> None:
    program, scratch = driver.program_create(0, source(model()))
    assert scratch == 0
    check_sum(driver, program, 0)
    loaded, _ = driver.program_load(0, source(b""), driver.program_binary(program))
    check_sum(driver, loaded, 1)
    assert driver.program_binary(loaded) == driver.program_binary(loaded)


def test_one_program_on_several_streams(driver: OnnxRuntimeDriver) -> None:
    program, _ = driver.program_create(0, source(model()))
    problems: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            check_sum(driver, program, seed)
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems, problems


def test_what_is_no_model_is_refused(driver: OnnxRuntimeDriver) -> None:
    with pytest.raises(CompileError, match="ONNX Runtime"):
        driver.program_create(0, source(b"no model"))
    with pytest.raises(CompileError, match="ONNX Runtime"):
        driver.program_load(0, source(b""), model()[:40])


def test_a_kernel_that_is_missing_is_no_failure(driver: OnnxRuntimeDriver) -> None:
    with pytest.raises(NotImplementedError, match="Max"):
        driver.program_create(0, source(model("Max", TensorProto.INT16), dtype="int16"))


@pytest.mark.parametrize("wrong", [{"sizes": (4, 3)}, {"dtype": "float64"}])
def test_the_model_must_have_the_tensors_that_are_asked_for(driver: OnnxRuntimeDriver, wrong: dict[str, Any]) -> None:
    with pytest.raises(CompileError, match="graph 1 has tensors"):
        driver.program_create(0, source(model(), **wrong))


def test_a_failing_run_is_told_by_the_next_wait_once(driver: OnnxRuntimeDriver) -> None:
    program, _ = driver.program_create(0, source(model()))
    stream = driver.stream_create(0, 0)
    driver.program_run(0, stream, program, [0], 0)  # too few addresses
    with pytest.raises(RuntimeError, match="program graph 1"):
        driver.stream_synchronize(0, stream)
    driver.stream_synchronize(0, stream)
    driver.stream_destroy(0, stream)
    check_sum(driver, program, 2)
