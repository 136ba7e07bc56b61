"""Kernels compile to the same with the builtin functions that the driver declares as with all of the compiler's own.

Where the compiler needs no such help (only PoCL's does) both are the same path.
"""

from __future__ import annotations

import re

import pytest
from driver_table import COMPILE, Driver, DriverError

OPTIONS = "-cl-std=CL1.2 -w"

# Each result's type shows which overload was taken: a missing one would be a conversion.
TYPES = r"""
__kernel void types(__global uint* out, volatile __global int* words, __global half* h) {
  char c = (char)words[8]; uchar4 u = (uchar4)(c); long l = c; ulong ul = l; short8 s = (short8)(c);
  float f = c; float3 f3 = (float3)(f); double d = f; double2 d2 = (double2)(d);
  uint sizes[] = {sizeof(fabs(f)), sizeof(fabs(d)), sizeof(sqrt(d2)), sizeof(max(c, c)), sizeof(max(l, l)),
    sizeof(max(u, (uchar)1)), sizeof(min(d, d)), sizeof(abs(l)), sizeof(abs(s)), sizeof(isnan(f)), sizeof(isnan(d)),
    sizeof(isnan(d2)), sizeof(isless(f3, f3)), sizeof(select(d, d, l)), sizeof(clamp(ul, ul, ul)), sizeof(mul_hi(u, u)),
    sizeof(convert_double2(d2)), sizeof(convert_uchar4_sat_rte(u)), sizeof(fmax(d2, d)), sizeof(ldexp(f3, 1)),
    sizeof(pown(d2, (int2)(1))), sizeof(ilogb(d)), sizeof(popcount(l)), sizeof(mad24(1u, 2u, 3u)), sizeof(any(s > s)),
    sizeof(vload4(0, out)), sizeof(vload_half16(0, h)), sizeof(rotate(c, c)), sizeof(get_global_id(0))};
  for (int i = 0; i < 29; ++i) out[i] = sizes[i];
}"""
VALUES = r"""
static inline __attribute__((always_inline)) float4 twice(float4 x) { return fma(x, (float4)(2), (float4)(1)); }
__kernel void values(__global float* out, volatile __global int* words, __global half* h) {
  __local float shared[4];
  for (int i = 0; i < 4; ++i) shared[i] = exp((float)(get_global_id(0) + i));
  barrier(CLK_LOCAL_MEM_FENCE);
  vstore4(twice(vload4(0, shared)) + convert_float4(as_int4(vload4(0, out)) & 255), 0, out);
  atomic_cmpxchg(words, 0, 7); atomic_add(words + 1, 5); atomic_xchg(words + 2, 9);
  vstore_half4_rte((float4)(1.0f / 3, NAN, INFINITY, FLT_MAX), 1, h);
  vstore4(vload_half4(1, h), 1, out);
  out[8] = (float)(sin((double)shared[1]) + pow(2.0, 0.5) + M_PI);
  out[9] = max((uchar)200, (uchar)100) + min(-1, 1) + clamp(7L, 1L, 5L) + mul_hi(1 << 20, 1 << 20);
  out[10] = select(1.0, 2.0, (long)-words[0]) + popcount(words[1]) + words[2];
  float whole; double rest; int power; int2 powers;
  out[11] = fract(2.5f, &whole) + whole; out[12] = frexp(10.0, &power) + power; out[13] = modf(-3.25, &rest) - rest;
  out[14] = sincos(1.0f, &whole) - whole; out[15] = dot(frexp((float2)(3, 20), &powers), convert_float2(powers));
}"""
# Not among the driver's declarations.
UNDECLARED = "__kernel void parts(__global float* out) { int part; out[0] = remquo(7.5f, 2.0f, &part); out[1] = part; }"


@pytest.fixture(scope="module", params=["named", "header"])
def driver(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Driver:
    folder = tmp_path_factory.mktemp("drivers")
    driver = Driver(folder, TORCHGRAFT_OPENCL_BUILTINS=request.param, TORCHGRAFT_OPENCL_MEMORY="host")
    if driver.count == 0:
        pytest.skip(driver.count_message)
    return driver


def run(driver: Driver, source: str, name: str) -> bytes:
    """What the kernel leaves in its first 128 bytes."""
    module, _ = driver.compile(source, OPTIONS)
    kernel = driver.created("kernel_create", module, name.encode())
    stream = driver.created("stream_create", 0, 0)
    out, words, half = (driver.created("allocate", 0, 128) for _ in range(3))
    for address in (out, words, half):
        driver.write(stream, address, bytes(128))
    driver.launch(stream, kernel, [1], [1], *[out, words, half][: source.count("__global", source.index("__kernel"))])
    result = driver.read(stream, out, 128)
    for address in (out, words, half):
        driver.call("deallocate", 0, address)
    driver.call("stream_destroy", 0, stream)
    driver.call("kernel_destroy", kernel)
    driver.call("module_destroy", module)
    return result


results: dict[str, bytes] = {}


@pytest.mark.parametrize(("name", "source"), [("types", TYPES), ("values", VALUES), ("parts", UNDECLARED)])
def test_same_results(driver: Driver, name: str, source: str) -> None:
    result = run(driver, source, name)
    assert any(result)
    assert results.setdefault(name, result) == result


def test_errors_are_the_compilers_own(driver: Driver) -> None:
    with pytest.raises(DriverError, match="nonsense") as error:
        driver.compile("// one\n// two\n__kernel void f(__global float* p) { p[0] = exp(nonsense); }", OPTIONS)
    assert error.value.status == COMPILE
    assert "B_FLOATS" not in error.value.message
    if place := re.search(r"cl:(\d+):", error.value.message):
        assert place[1] == "3"
