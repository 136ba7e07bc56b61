"""Products of matrices and vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from harness.case import Case, Make, Shape, computing, on, with_gradients


def product(name: str, m: int, n: int, k: int, layout: str = "nn", dtype: torch.dtype = torch.float32) -> Case:
    """Of m x k and k x n; "t" of the layout says that a factor is the transpose of what lies in memory."""

    def multiply(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (a if layout[0] == "n" else a.t()) @ (b if layout[1] == "n" else b.t())

    a, b = ((m, k) if layout[0] == "n" else (k, m)), ((k, n) if layout[1] == "n" else (n, k))
    nbytes = dtype.itemsize * (m * k + k * n + m * n)
    return computing(f"matmul/{name}", on(multiply, a, b, dtype=dtype), 2 * m * n * k, nbytes, dtype)


def batched(batch: int, m: int, n: int, k: int) -> Case:
    make = on(lambda a, b: a @ b, (batch, m, k), (batch, k, n))
    nbytes = 4 * batch * (m * k + k * n + m * n)
    return computing(f"matmul/batched {batch}x{m}x{k}x{n}", make, 2 * batch * m * n * k, nbytes)


def linear(rows: int, inputs: int, outputs: int, dtype: torch.dtype = torch.float32, gradients: bool = False) -> Case:
    shapes: tuple[Shape, ...] = (rows, inputs), (outputs, inputs), (outputs,)
    function: Callable[..., torch.Tensor] = F.linear
    make: Make = with_gradients(function, *shapes) if gradients else on(function, *shapes, dtype=dtype)
    name = f"matmul/linear {rows}x{inputs}x{outputs}"
    if dtype != torch.float32:
        name += f" {str(dtype).removeprefix('torch.')}"
    flops, nbytes = 2 * rows * inputs * outputs, dtype.itemsize * (rows * inputs + inputs * outputs + rows * outputs)
    if gradients:
        return computing(f"{name} with gradients", make, 3 * flops, 2 * nbytes)
    return computing(name, make, flops, nbytes, dtype)


def tuned() -> Iterator[Case]:
    for size in (256, 512, 1024, 2048):
        yield product(f"nn {size}", size, size, size)
    for layout in ("nt", "tn"):
        yield product(f"{layout} 1024", 1024, 1024, 1024, layout)
    yield product("vector 1x4096x4096", 1, 4096, 4096, "nt")
    yield batched(16, 128, 128, 64)
    yield linear(512, 1024, 1024)


def others() -> Iterator[Case]:
    for size in (100, 333, 1000, 1537):
        yield product(f"nn {size}", size, size, size)
    yield product("nt 777", 777, 777, 777, "nt")
    yield product("tn 777", 777, 777, 777, "tn")
    yield product("tt 777", 777, 777, 777, "tt")
    for m, k, n in (
        (4096, 16, 4096),
        (16, 4096, 1000),
        (10000, 64, 65),
        (31, 3000, 31),
        (3000, 31, 7),
        (525, 9, 291),
        (3, 803, 13),
        (100_000, 3, 3),
    ):
        yield product(f"nn {m}x{k}x{n}", m, n, k)
    yield product("vector 1x1000x3000", 1, 3000, 1000)
    matrix_vector = on(lambda a, b: a @ b, (3001, 1000), (1000,))
    yield computing("matmul/matrix 3001x1000 by vector", matrix_vector, 2 * 3001 * 1000, 4 * 3001 * 1001)
    for batch, m, n, k in (
        (100, 33, 17, 65),
        (1000, 10, 10, 10),
        (140, 116, 5, 2),
        (264, 3, 35, 41),
        (500, 8, 40, 8),
        (24, 197, 197, 64),
        (7, 300, 200, 100),
        (100_000, 3, 1, 3),
        (10_000, 1, 1, 128),
    ):
        yield batched(batch, m, n, k)
    yield linear(1, 768, 3072)
    yield linear(8, 4096, 1000)
    yield linear(3, 78, 361)
    yield linear(6, 511, 361)
    yield linear(197, 768, 768)
    yield linear(333, 784, 500, gradients=True)
    for dtype in (torch.float64, torch.float16, torch.bfloat16):
        name = str(dtype).removeprefix("torch.")
        yield product(f"nn 512 {name}", 512, 512, 512, dtype=dtype)
        yield product(f"nt 500x300x700 {name}", 500, 700, 300, "nt", dtype)
    yield linear(128, 768, 3072, torch.bfloat16)
