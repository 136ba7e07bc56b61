"""Products, convolutions and attention in bfloat16 by a processor's tiles or vectors, against float64."""

from __future__ import annotations

import os
import platform
import random
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from conftest import in_threads

import torchgraft
from torchgraft import _C, plans
from torchgraft.codegen.dialects import dialect
from torchgraft.codegen.kernel import Kernel, parameters
from torchgraft.codegen.x86 import LINES
from torchgraft.driver import Capability
from torchgraft.kernels import bfloat16
from torchgraft.kernels.attention import lanes
from torchgraft.kernels.attention.variant import Variant
from torchgraft.kernels.convolution import boxes_bfloat16, channel_lanes_bfloat16
from torchgraft.plans import device as traits

pytestmark = pytest.mark.no_fallback

# The words as C, of which any processor is capable: so the copies are tested everywhere.
VECTORS_IN_C = """
#undef VECTORS_MULTIPLY_4
#undef VECTORS_MULTIPLY_8
#undef VECTORS_MULTIPLY_12
#define VECTORS_MULTIPLY_4(...) vectors_multiply(4, __VA_ARGS__)
#define VECTORS_MULTIPLY_8(...) vectors_multiply(8, __VA_ARGS__)
#define VECTORS_MULTIPLY_12(...) vectors_multiply(12, __VA_ARGS__)
TG_FUNCTION void vectors_multiply(int rows, void* sums, long sums_pitch, const void* a, long a_pitch, const void* b,
                                  long next, long b_pitch, long steps, bool zero) {
  for (int row = 0; row < rows; ++row)
    for (int column = 0; column < 32; ++column) {
      float* const at = (float*)((uchar*)sums + row * sums_pitch) + column;
      float sum = zero ? 0 : *at;
      for (long k = 0; k < steps; ++k) {
        const uint x = ((const uint*)((const uchar*)a + row * a_pitch))[k];
        const uint y = ((const uint*)((const uchar*)b + k * b_pitch + column / 16 * next))[column % 16];
        sum += AS_float(x << 16) * AS_float(y << 16) + AS_float(x & 0xffff0000) * AS_float(y & 0xffff0000);
      }
      *at = sum;
    }
}
TG_FUNCTION void vectors_line(int pixels, int lanes, float16* sums, const uint* line, const int* offsets,
                              const float16* b, long steps, bool zero) {
  for (int i = 0; i < pixels * lanes; ++i) {
    float sum = zero ? 0 : ((const float*)sums)[i];
    for (long k = 0; k < steps; ++k) {
      const uint x = line[offsets[k] + i / lanes], y = ((const uint*)b)[k * lanes + i % lanes];
      sum += AS_float(x << 16) * AS_float(y << 16) + AS_float(x & 0xffff0000) * AS_float(y & 0xffff0000);
    }
    ((float*)sums)[i] = sum;
  }
}
"""
VECTORS_IN_C += "".join(
    f"#undef VECTORS_LINE_{n}\n#define VECTORS_LINE_{n}(...) vectors_line({n}, {16 * vectors}, __VA_ARGS__)\n"
    for n, vectors in LINES.items()
)
TILES_IN_C = """
#undef TILES_BEGIN
#undef TILES_END
#undef TILE_ZERO
#undef TILE_LOAD
#undef TILE_STORE
#undef TILE_MULTIPLY
#define TILES_BEGIN uint tiles[8][256]
#define TILES_END()
#define TILE_BYTES for (int i = 0; i < 1024; ++i)
#define TILE_ZERO(t) TILE_BYTES ((uchar*)tiles[t])[i] = 0
#define TILE_LOAD(t, p, pitch) TILE_BYTES ((uchar*)tiles[t])[i] = ((const uchar*)(p))[i / 64 * (pitch) + i % 64]
#define TILE_STORE(t, p, pitch) TILE_BYTES ((uchar*)(p))[i / 64 * (pitch) + i % 64] = ((const uchar*)tiles[t])[i]
#define TILE_MULTIPLY(c, a, b) tile_multiply(tiles[c], tiles[a], tiles[b])
TG_FUNCTION void tile_multiply(uint* c, const uint* a, const uint* b) {
  for (int i = 0; i < 256; ++i) {
    float sum = AS_float(c[i]);
    for (int k = 0; k < 16; ++k) {
      const uint x = a[i / 16 * 16 + k], y = b[k * 16 + i % 16];
      sum += AS_float(x << 16) * AS_float(y << 16) + AS_float(x & 0xffff0000) * AS_float(y & 0xffff0000);
    }
    c[i] = AS_uint(sum);
  }
}
"""


INSTRUCTIONS = {"tiles": "tdpbf16ps", "vectors": "vdpbf16ps"}
IN_C = {"tiles": TILES_IN_C, "vectors": VECTORS_IN_C}
CAPABILITIES = {"tiles": Capability.BFLOAT16_TILES, "vectors": Capability.BFLOAT16_VECTORS}


def record(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, words: str, asked: list[Kernel]) -> None:
    """Adds what a function makes of kernels of pairs to those asked for, with `words` in front."""
    make = getattr(module, name)

    def kernel(first: Any, *arguments: Any) -> Kernel:
        made: Kernel = make(first, *arguments)
        if isinstance(first, Variant) and first.packed is None:
            return made
        asked.append(replace(made, helpers=words + made.helpers))
        return asked[-1]

    monkeypatch.setattr(module, name, kernel)


def forget() -> None:
    """What is known of the device, and what was made for it."""
    for known in (traits.device_traits, lanes.forward, lanes.query_gradient, lanes.key_gradient):
        known.cache_clear()
    plans.clear()


@pytest.fixture(params=["tiles of the processor", "tiles in C", "vectors of the processor", "vectors in C"])
def made(request: pytest.FixtureRequest, device: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Kernel]]:
    """The kernels that were asked for, on a device that has tiles, or vectors."""
    index = torch.device(device).index or 0
    known = traits.device_traits(index)
    if traits.kernel_form(index) != "cpu" or not known.has_compiler:
        pytest.skip("pairs are for the CPU form")
    way, _, where = request.param.partition(" ")
    properties = _C.device_properties(index)
    capabilities = int(properties["capabilities"])
    if where == "in C":  # where the processor has narrower vectors, the compiler takes those of 16 lanes apart
        monkeypatch.setattr(traits, "simd_width", lambda _: 16)
    elif not capabilities & CAPABILITIES[way]:
        pytest.skip(f"the processor has no {way} of bfloat16, or the driver does not offer them")
    words = IN_C[way] if where == "in C" else ""
    asked: list[Kernel] = []
    for module, name in (
        (bfloat16, "block_kernel"),
        (boxes_bfloat16, "box_kernel"),
        (channel_lanes_bfloat16, "lanes_kernel"),
        (Variant, "_kernel"),
    ):
        record(monkeypatch, module, name, words, asked)
    others = Capability.BFLOAT16_TILES | Capability.BFLOAT16_VECTORS
    offered = {**properties, "capabilities": capabilities & ~int(others) | CAPABILITIES[way]}
    monkeypatch.setattr(traits, "_C", SimpleNamespace(device_properties=lambda _: offered, clear_plans=_C.clear_plans))
    forget()
    yield asked
    monkeypatch.undo()
    forget()


def close(got: torch.Tensor, wanted: torch.Tensor) -> None:
    # Half a unit of bfloat16's last place, and of sums that cancel what float32 leaves.
    scale = wanted.abs().max().item() if wanted.numel() else 1.0
    torch.testing.assert_close(got.cpu().double(), wanted, rtol=4e-3, atol=1e-5 * scale)


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(shape).bfloat16()


def within(x: torch.Tensor, transposed: bool) -> torch.Tensor:
    """The same matrix amid NaN, at an odd place, its rows or its columns together."""
    rows, columns = x.mT.shape if transposed else x.shape
    around = torch.full((rows + 2, columns + 3), torch.nan, dtype=x.dtype, device=x.device)
    inner = around[1:-1, 1:-2]
    inner = inner.mT if transposed else inner
    return inner.copy_(x)


SIZES = [(37, 300, 61), (5, 700, 33), (130, 257, 300), (33, 16, 47), (16, 31, 640), (100, 33, 34), (64, 256, 64)]


@pytest.mark.parametrize("second", ["plain", "transposed"])
@pytest.mark.parametrize("first", ["plain", "transposed"])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.quick(sizes=SIZES[:2])
def test_edges(made: list[Kernel], device: str, sizes: tuple[int, int, int], first: str, second: str) -> None:
    m, k, n = sizes
    a, b = numbers(m, k), numbers(k, n)
    x, y = within(a.to(device), first == "transposed"), within(b.to(device), second == "transposed")
    result = torch.full((m + 2, n + 2), 7.0, dtype=torch.bfloat16, device=device)
    torch.mm(x, y, out=result[1:-1, 1:-1])
    close(result[1:-1, 1:-1], a.double() @ b.double())
    result[1:-1, 1:-1] = 7.0
    assert torch.equal(result.cpu(), torch.full_like(result.cpu(), 7.0))  # nothing was written around it
    assert made


def test_sizes_at_random(made: list[Kernel], device: str) -> None:
    for _ in range(20):
        m, k, n = random.randint(5, 90), random.randint(16, 600), random.randint(33, 140)
        a, b = numbers(m, k), numbers(k, n)
        x, y = (within(z.to(device), random.random() < 0.5) for z in (a, b))
        close(x @ y, a.double() @ b.double())
    assert made


@pytest.mark.parametrize("first", ["plain", "transposed"])
def test_several_blocks_and_slices(made: list[Kernel], device: str, first: str) -> None:
    a, b = numbers(290, 600), numbers(600, 1100)
    x, y = within(a.to(device), first == "transposed"), b.to(device)
    wanted = a.double() @ b.double()
    close(x @ y, wanted)
    close(x @ y.mT.contiguous().mT, wanted)
    assert made


def test_long_sums_in_parts(made: list[Kernel], device: str) -> None:
    a, b = numbers(20, 9000), numbers(9000, 40)
    close(a.to(device) @ b.to(device), a.double() @ b.double())
    assert made


@pytest.mark.parametrize("shape", [(70,), (40, 70), (40, 1), (1, 1)], ids=str)
def test_addend(made: list[Kernel], device: str, shape: tuple[int, ...]) -> None:
    a, b, c = numbers(40, 90), numbers(90, 70), numbers(*shape)
    got = torch.addmm(c.to(device), a.to(device), b.to(device), beta=-0.5, alpha=3)
    close(got, 3 * (a.double() @ b.double()) - 0.5 * c.double())
    torch.addmm(torch.full_like(got, torch.nan), a.to(device), b.to(device), beta=0, out=got)
    close(got, a.double() @ b.double())
    assert made


def test_batches_and_linear_layers(made: list[Kernel], device: str) -> None:
    a, b = numbers(3, 40, 70), numbers(3, 70, 50)
    close(a.to(device) @ b.to(device), a.double() @ b.double())
    layer, x = torch.nn.Linear(70, 50, dtype=torch.bfloat16), numbers(2, 30, 70)
    exact = torch.nn.Linear(70, 50, dtype=torch.float64)
    exact.load_state_dict(layer.state_dict())
    wanted = exact(x.double())
    wanted.sum().backward()
    layer.to(device)
    got = layer(x.to(device))
    got.sum().backward()
    close(got.detach(), wanted.detach())
    assert layer.weight.grad is not None and exact.weight.grad is not None
    close(layer.weight.grad, exact.weight.grad)
    assert made


def test_values_without_bounds(made: list[Kernel], device: str) -> None:
    """Infinity and NaN reach the rows and columns that have them, and no others."""
    a, b = numbers(40, 50), numbers(50, 60)
    a[3, 7], a[20, 49], b[0, 33] = torch.nan, torch.inf, -torch.inf
    got, wanted = (a.to(device) @ b.to(device)).cpu(), a.double() @ b.double()
    assert torch.equal(got.isnan(), wanted.isnan())
    finite = wanted.isfinite()
    close(got[finite], wanted[finite])
    assert torch.equal(got[~finite].nan_to_num(123, 1, -1).double(), wanted[~finite].nan_to_num(123, 1, -1))
    assert made


def test_from_several_threads(made: list[Kernel], device: str) -> None:
    a, b = numbers(300, 200), numbers(200, 300)
    x, y, wanted = a.to(device), b.to(device), a.double() @ b.double()

    def work() -> None:
        for _ in range(30):
            close(x @ y, wanted)

    in_threads(*[work] * 4)
    assert made


def attend(
    device: str,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    bias: torch.Tensor | None = None,
    is_causal: bool = False,
) -> None:
    """Forward and backward, of what is given and of the same in float64."""

    def outcome(*operands: torch.Tensor, bias: torch.Tensor | None) -> list[torch.Tensor]:
        inputs = [x.detach().requires_grad_() for x in operands]
        groups = operands[0].shape[1] != operands[1].shape[1]
        out = F.scaled_dot_product_attention(*inputs, bias, is_causal=is_causal, enable_gqa=groups)
        return [out.detach(), *torch.autograd.grad(out.square().sum(), inputs)]

    exact = bias if bias is None or bias.dtype == torch.bool else bias.double()
    wanted = outcome(q.double(), k.double(), v.double(), bias=exact)
    got = outcome(*(x.to(device) for x in (q, k, v)), bias=None if bias is None else bias.to(device))
    for x, y in zip(got, wanted, strict=True):
        torch.testing.assert_close(x.cpu().double(), y, rtol=2e-2, atol=1e-2 * max(1.0, y.abs().max().item()))


@pytest.mark.quick(queries=100)
@pytest.mark.parametrize(
    ("queries", "keys", "head", "value_head"),
    [(5, 7, 16, 16), (33, 70, 64, 64), (64, 64, 32, 48), (100, 130, 80, 16), (37, 200, 128, 256)],
)
def test_attention(made: list[Kernel], device: str, queries: int, keys: int, head: int, value_head: int) -> None:
    q, k = numbers(2, 3, queries, head), numbers(2, 3, keys, head)
    attend(device, q, k, numbers(2, 3, keys, value_head))
    assert {kernel.name for kernel in made} == {
        f"attention_{name}_bf16_{head}" for name in ("forward", "query_gradient", "key_gradient")
    }


@pytest.mark.quick(kind=["bias", "layout"])
@pytest.mark.parametrize("kind", ["causal", "bias", "mask", "groups", "layout"])
def test_attention_of_all_kinds(made: list[Kernel], device: str, kind: str) -> None:
    q, k, v = numbers(2, 4, 75, 48), numbers(2, 4, 90, 48), numbers(2, 4, 90, 48)
    bias = None
    if kind == "bias":
        bias = numbers(4, 75, 90)
    elif kind == "mask":
        bias = torch.rand(75, 90) > 0.4
        bias[:, 0], bias[7] = True, torch.arange(90) == 3
    elif kind == "groups":
        k, v = k[:, :2], v[:, :2]
    elif kind == "layout":
        q, k = (numbers(2, x.shape[2], 4, 48).transpose(1, 2) for x in (q, k))
        v = numbers(2, 4, 90, 100)[..., 5:53]
    attend(device, q, k, v, bias, is_causal=kind == "causal")
    assert made


def test_attention_that_cannot_be_cut(made: list[Kernel], device: str) -> None:
    """Heads whose size is no multiple of a tile's side go without."""
    attend(device, numbers(1, 2, 40, 20), numbers(1, 2, 50, 20), numbers(1, 2, 50, 20))
    assert not made


def test_attention_with_values_without_bounds(made: list[Kernel], device: str) -> None:
    """A value's infinity reaches the queries of its head; what lies beyond the keys reaches none."""
    q, k, v = (numbers(1, 2, 40, 32) for _ in range(3))
    v[0, 1, 39, 5] = torch.inf
    got = F.scaled_dot_product_attention(*(x.to(device) for x in (q, k, v))).cpu()
    wanted = F.scaled_dot_product_attention(q.double(), k.double(), v.double())
    assert torch.equal(got.isfinite(), wanted.isfinite())
    finite = wanted.isfinite()
    torch.testing.assert_close(got[finite].double(), wanted[finite], rtol=2e-2, atol=2e-2)
    assert made


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the instructions are of x86-64")
@pytest.mark.parametrize("unit_b", ["k", "outer"])
@pytest.mark.parametrize("unit_a", ["k", "outer"])
@pytest.mark.parametrize("way", INSTRUCTIONS)
def test_as_cxx(way: Any, unit_a: Any, unit_b: Any) -> None:
    """A C++ compiler takes the text and the instructions, too."""
    compile_as_cxx(way, bfloat16.block_kernel(way, "bf16", unit_a, unit_b, "row"))


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the instructions are of x86-64")
@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("way", INSTRUCTIONS)
def test_convolution_as_cxx(way: Any, direction: Any) -> None:
    compile_as_cxx(way, boxes_bfloat16.box_kernel(way, direction, True))


@pytest.mark.quick(line=list(LINES)[::3])
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the instructions are of x86-64")
@pytest.mark.parametrize("line", LINES)
def test_lanes_as_cxx(line: int) -> None:
    compile_as_cxx("vectors", channel_lanes_bfloat16.lanes_kernel("forward", True, line > 9, line))


def compile_as_cxx(way: str, kernel: Kernel) -> None:
    text = dialect("c++").render(kernel, base_offset=False)
    assert INSTRUCTIONS[way] in text
    command = ["g++", "-std=c++20", "-w", "-x", "c++", "-c", "-", "-o", os.devnull]
    result = subprocess.run(command, input=text, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-2000:]


def convolve(device: str, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, **how: Any) -> None:
    """Forward and backward, of what is given and of the same in float64."""
    how = dict(how)
    function: Any = {3: F.conv1d, 4: F.conv2d, 5: F.conv3d}[x.dim()]
    if how.pop("transposed", False):
        function = F.conv_transpose2d

    def outcome(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> list[torch.Tensor]:
        inputs = [y.detach().requires_grad_() for y in (x, weight)]
        out = function(*inputs, bias, **how)
        given = torch.linspace(-1, 1, out.numel(), dtype=torch.float64).view(out.shape).bfloat16()
        return [out.detach(), *torch.autograd.grad(out, inputs, given.to(out))]

    wanted = outcome(x.double(), weight.double(), None if bias is None else bias.double())
    got = outcome(x.to(device), weight.to(device), None if bias is None else bias.to(device))
    for found, exact in zip(got, wanted, strict=True):
        close(found, exact)


CONVOLUTIONS = [
    ((3, 24, 17, 19), (40, 24, 3, 3), {"padding": 1}),
    ((2, 5, 30, 21), (7, 5, 5, 3), {"padding": (0, 2), "stride": (2, 1)}),
    ((2, 16, 9, 70), (33, 16, 1, 7), {"padding": (0, 3), "dilation": (1, 3)}),
    ((1, 8, 12, 40), (20, 8, 2, 2), {}),
    ((3, 40, 50), (24, 40, 3), {"padding": 4}),
    ((2, 9, 5, 6, 7), (11, 9, 3, 3, 3), {"padding": 1, "stride": (1, 2, 2)}),
    ((2, 9, 5, 6, 7), (11, 9, 2, 3, 3), {"padding": (1, 0, 2), "dilation": (1, 2, 1)}),
    ((2, 12, 8, 9), (12, 10, 3, 3), {"padding": 1, "transposed": True}),
    ((2, 33, 4, 3), (12, 33, 7, 7), {"padding": 3}),
    ((5, 70, 20, 18), (100, 70, 3, 3), {"padding": 1}),
    ((2, 17, 6, 5), (17, 40, 1, 2), {"stride": 3, "transposed": True}),  # pixels that no tap meets
    ((2, 130, 9, 40), (40, 130, 3, 3), {"padding": (1, 0), "stride": 2}),
]


@pytest.mark.quick(image=[image for image, _, _ in CONVOLUTIONS[::3]])
@pytest.mark.parametrize(("image", "filters", "how"), CONVOLUTIONS, ids=str)
def test_convolution(
    made: list[Kernel],
    device: str,
    image: tuple[int, ...],
    filters: tuple[int, ...],
    how: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    tune: Callable[..., None],
) -> None:
    tune("im2col", packed_channels=1)  # also where they do not pay
    monkeypatch.setattr(channel_lanes_bfloat16, "choose_lanes", lambda *_: None)
    bias = numbers(filters[1] if "transposed" in how else filters[0])
    convolve(device, numbers(*image), numbers(*filters), bias, **how)
    convolve(device, numbers(*image), numbers(*filters), **how)
    way = made[0].name.split("_")[2]
    of_images = {f"convolution_bfloat16_{way}_{direction}" for direction in ("forward", "backward")}
    assert {kernel.name for kernel in made} == {f"matmul_bfloat16_{way}", *of_images}


LANES = [  # one line's length after the other
    ((2, 24, 5, 4), (70, 24, 3, 3), {"padding": 1}),
    ((1, 70, 9, 5), (33, 70, 3, 3), {"padding": 1}),  # several slices
    ((3, 17, 3, 6), (64, 17, 3, 2), {"padding": 1}),  # a channel without another one
    ((2, 40, 7, 7), (100, 40, 5, 5), {"padding": 2}),
    ((2, 12, 8, 16), (20, 12, 3, 3), {"padding": 1, "dilation": 3}),
    ((2, 35, 20, 18), (40, 35, 3, 3), {"padding": (0, 1), "stride": 2}),
    ((1, 6, 3, 10), (32, 6, 4, 3), {"padding": (7, 1)}),  # lines of which no tap lies inside
    ((1, 64, 60, 66), (64, 64, 3, 3), {"padding": 1}),  # bands of lines of parts
    ((2, 9, 5, 6, 12), (11, 9, 2, 3, 3), {"padding": (1, 0, 1)}),
    ((3, 40, 26), (24, 40, 3), {"padding": 1}),
    ((2, 16, 2, 14), (48, 16, 1, 3), {"padding": (0, 1)}),
]


@pytest.mark.quick(image=[image for image, _, _ in LANES[::3]])
@pytest.mark.parametrize(("image", "filters", "how"), LANES, ids=str)
def test_convolution_lanes(
    made: list[Kernel],
    device: str,
    image: tuple[int, ...],
    filters: tuple[int, ...],
    how: dict[str, Any],
    tune: Callable[..., None],
) -> None:
    if traits.device_traits(torch.device(device).index or 0).bfloat16 != "vectors":
        pytest.skip("tiles have boxes")
    tune("im2col", packed_channels=1)  # also where they do not pay
    tune("lanes", used=0.0)
    convolve(device, numbers(*image), numbers(*filters), numbers(filters[0]), **how)
    convolve(device, numbers(*image), numbers(*filters), **how)
    names = {kernel.name for kernel in made}
    assert "convolution_bfloat16_lanes_forward" in names
    assert "stride" in how or "convolution_bfloat16_lanes_backward" in names


@pytest.mark.parametrize("channels", [16, 17, 13])
def test_convolution_with_values_without_bounds(made: list[Kernel], device: str, channels: int) -> None:
    """NaN reaches the pixels around it and no others: neither those of the next row nor those of the next image."""
    x, weight = numbers(2, channels, 20, 33), numbers(32, channels, 3, 3)
    x[0, 3, 19, 32] = x[0, 0, 7, 0] = x[1, channels - 1, 3, 30] = torch.nan
    got = F.conv2d(x.to(device), weight.to(device), padding=1).cpu()
    wanted = F.conv2d(x.double(), weight.double(), padding=1)
    assert got.isnan().any()
    assert torch.equal(got.isnan(), wanted.isnan())
    close(got[~got.isnan()], wanted[~got.isnan()])
    assert made


# As many vectors as the processor has registers are in use around the instructions.
VALUES = 32
REGISTERS = Kernel(
    "registers",
    parameters("f32* x; const f32* other"),
    f"""
  ALIGN(64) float sums[4 * 32], a[4 * 2], b[2 * 32];
  for (int i = 0; i < 4 * 32; ++i) sums[i] = 0;
  for (int i = 0; i < 4 * 2; ++i) a[i] = 1;
  for (int i = 0; i < 2 * 32; ++i) b[i] = 1;
{"".join(f"  const float16 v{i} = load_f32x16(x, {16 * i});" for i in range(VALUES))}
  VECTORS_MULTIPLY_4(sums, 128, a, 8, b, 64, 128, 2, 1);
  const float16 w = load_f32x16(other, 0) * sums[0];
{"".join(f"  store_f32x16(x, {16 * i}, v{i} * w);" for i in range(VALUES))}
""",
)


def test_registers_are_as_before(device: str) -> None:
    properties = _C.device_properties(torch.device(device).index or 0)
    if not int(properties["capabilities"]) & Capability.BFLOAT16_VECTORS:
        pytest.skip("the processor has no vectors of bfloat16, or the driver does not offer them")
    x, other = torch.randn(VALUES * 16), torch.randn(16)
    got = x.to(device)
    torchgraft.kernel(REGISTERS)[1](got, other.to(device))
    # Each pair of ones as bfloat16: 1.0 is 0x3f800000, of which the lower half is zero, at two steps.
    assert torch.equal(got.cpu(), (x.view(-1, 16) * (other * 2)).view(-1))
