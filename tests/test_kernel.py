"""Kernels launched by hand: `torchgraft.kernel`."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
import torch
from conftest import Script
from torch.testing import assert_close

import torchgraft
from torchgraft.codegen.compiler import counts
from torchgraft.codegen.signature import signatures, with_offsets
from torchgraft.plans import Kernel, KernelCompileError, Pointer, Value

SCALE = """
__kernel void scale(__global float* x, const float factor, const int n) {
  int i = get_global_id(0);
  if (i < n) x[i] *= factor;
}
"""

EVERY = """
// __kernel void in_a_comment(__global int* x) {}
#define UNUSED 1
__kernel void numbers(__global double* out, char a, unsigned char b, short c, ushort d, int e, unsigned f,
                      long g, unsigned long h, float i, double j, float2 k /* a pair */) {
  out[0] = a; out[1] = b; out[2] = c; out[3] = d; out[4] = e; out[5] = f;
  out[6] = g; out[7] = h; out[8] = i; out[9] = j; out[10] = k.x; out[11] = k.y;
}

kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void
missing(global float* out, global const float* restrict x) { out[0] = x ? 1 : 2; }

__kernel void grid(__global int* out) {
  out[get_global_id(0) * 6 + get_global_id(1) * 2 + get_global_id(2)] = get_group_id(1) * 10 + get_local_id(1);
}
"""


@pytest.fixture(autouse=True)
def _language(device: str) -> None:
    if getattr(torch, device.split(":")[0]).get_device_properties().dialect != "opencl-c":
        pytest.skip("the kernels here are OpenCL C")


class TestLaunch:
    def test_values(self, device: str) -> None:
        scale = torchgraft.kernel(SCALE)
        x = torch.arange(100.0, device=device)
        assert scale[2, 64](x, 2.0, 100) is None
        assert_close(x.cpu(), torch.arange(100.0) * 2)
        scale[100](x, 0.5, 100)
        assert_close(x.cpu(), torch.arange(100.0))

    def test_a_view_is_given_at_its_place(self, device: str) -> None:
        x = torch.ones(10, 10, device=device)
        torchgraft.kernel(SCALE)[3](x[4, 5:8], 7.0, 3)
        expected = torch.ones(10, 10)
        expected[4, 5:8] = 7
        assert_close(x.cpu(), expected)

    def test_strides_are_the_authors_matter(self, device: str) -> None:
        x = torch.ones(4, 4, device=device)
        torchgraft.kernel(SCALE)[4](x[:, 1], 3.0, 4)
        assert x.cpu().view(-1).tolist() == [1, 3, 3, 3, 3] + [1] * 11

    def test_every_type_of_number(self, device: str) -> None:
        out = torch.empty(12, device=device, dtype=torch.float64)
        given = [-128, 255, -32768, 65535, -(2**31), 2**32 - 1, -(2**53), 2**53, 0.5, 0.1, 1 - 2j]
        torchgraft.kernel(EVERY, "numbers")[1](out, *given)
        assert out.tolist() == [*given[:-1], 1, -2]

    def test_numbers_of_other_libraries(self, device: str) -> None:
        numpy = pytest.importorskip("numpy")
        x = torch.ones(3, device=device)
        torchgraft.kernel(SCALE)[3](x, numpy.float32(2), numpy.int64(3))
        torchgraft.kernel(SCALE)[3](x, torch.tensor(2.0), torch.tensor(3))
        torchgraft.kernel(SCALE)[3](x, 2, True)
        assert x.tolist() == [8, 4, 4]

    def test_null(self, device: str) -> None:
        missing = torchgraft.kernel(EVERY, "missing")
        out = torch.zeros(1, device=device)
        missing[1](out, None)
        assert out.item() == 2
        missing[1](out, out)
        assert out.item() == 1

    def test_grids(self, device: str) -> None:
        grid = torchgraft.kernel(EVERY, "grid")
        out = torch.full((2, 3, 2), -1, dtype=torch.int32, device=device)
        grid[(2, 1, 2), (1, 3, 1)](out)
        assert out[:, :, 0].tolist() == [[0, 1, 2], [0, 1, 2]]
        grid[(2, 3, 2), 1](out)
        assert out[:, :, 1].tolist() == [[0, 10, 20], [0, 10, 20]]

    def test_no_groups(self, device: str) -> None:
        x = torch.ones(3, device=device)
        for grid in ((0, 64), ((4, 0), (1, 1)), 0):
            with pytest.raises(ValueError, match=r"kernel scale: groups is .*0.*, which is no work-group at all"):
                torchgraft.kernel(SCALE)[grid](x, 2.0, 3)
        torchgraft.kernel(SCALE)[1](x[:0], 2.0, 0)
        assert x.tolist() == [1, 1, 1]

    def test_too_many_groups(self, device: str) -> None:
        x = torch.ones(3, device=device)
        for groups in (1 << 32, 1 << 40, (1 << 16, 1 << 16), 1 << 70):
            with pytest.raises(ValueError, match=r"kernel scale: groups is .*fewer than 2\*\*32"):
                torchgraft.kernel(SCALE)[groups, 1](x, 2.0, 3)

    def test_a_group_that_is_too_large(self, device: str) -> None:
        x = torch.ones(3, device=device)
        most = getattr(torch, device.split(":")[0]).get_device_properties().max_work_group_size
        torchgraft.kernel(SCALE)[1, most](x, 2.0, 3)
        for local in (most + 1, (1, most, 2), (1 << 32, 1 << 32)):
            with pytest.raises(ValueError, match=rf"kernel scale: a work-group of .* is larger than the {most} that"):
                torchgraft.kernel(SCALE)[1, local](x, 2.0, 3)
        assert x.tolist() == [2, 2, 2]

    def test_on_the_current_stream(self, device: str) -> None:
        module = getattr(torch, device.split(":")[0])
        scale, stream = torchgraft.kernel(SCALE), module.Stream()
        x = torch.ones(1 << 20, device=device)
        stream.wait_stream(module.current_stream())
        with module.stream(stream):
            for _ in range(5):
                scale[1 << 14, 64](x, 2.0, 1 << 20)
        x.record_stream(stream)
        event = stream.record_event()
        event.wait(module.current_stream())
        assert (x == 32).all()

    def test_memory_that_is_freed_is_not_given_to_others_too_early(self, device: str) -> None:
        scale = torchgraft.kernel(SCALE)
        sums = torch.zeros(1 << 16, device=device)
        for i in range(20):
            x = torch.full((1 << 16,), float(i), device=device)
            scale[1 << 10, 64](x, 2.0, 1 << 16)
            sums += x
            del x
        assert (sums == 2 * sum(range(20))).all()

    def test_what_is_written_is_noticed_by_autograd(self, device: str) -> None:
        x = torch.ones(3, device=device)
        w = torch.ones(3, device=device, requires_grad=True)
        product = x * w
        version = x._version
        torchgraft.kernel(SCALE)[3](x, 2.0, 3)
        assert x._version == version + 1
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            product.sum().backward()
        out = torch.zeros(1, device=device)
        torchgraft.kernel(EVERY, "missing")[1](out, x)
        assert x._version == version + 1  # it is const there

    def test_every_pointer_takes_what_has_its_bytes(self, device: str) -> None:
        source = """
        __kernel void put(__global ushort* x, __global uchar* y, __global float4* z, __global void* w) {
          x[0] = 1;
          y[0] = 1;
        }
        """
        put = torchgraft.kernel(source)
        half, flags = (
            torch.zeros(1, dtype=torch.bfloat16, device=device),
            torch.zeros(1, dtype=torch.bool, device=device),
        )
        put[1](half, flags, torch.zeros(4, device=device), torch.zeros(1, dtype=torch.int64, device=device))
        assert half.view(torch.int16).item() == 1
        assert flags.item() is True


class TestRefused:
    """Before anything is launched."""

    def refuse(self, error: type[Exception], match: str, device: str, *arguments: Any) -> None:
        x = torch.ones(3, device=device)
        with pytest.raises(error, match=match):
            torchgraft.kernel(SCALE)[3](*(x if a == "x" else a for a in arguments))
        assert x.tolist() == [1, 1, 1]

    def test_numbers_of_arguments(self, device: str) -> None:
        self.refuse(TypeError, "kernel scale takes 3 arguments, not 2", device, "x", 2.0)
        self.refuse(TypeError, "kernel scale takes 3 arguments, not 4", device, "x", 2.0, 3, 4)

    def test_kinds_of_arguments(self, device: str) -> None:
        self.refuse(
            TypeError, r"argument 3 \('const int n'\) of kernel scale is an integer, not float", device, "x", 2, 3.0
        )
        self.refuse(
            TypeError, r"argument 2 \('const float factor'\) of kernel scale is a number, not str", device, "x", "2", 3
        )
        self.refuse(TypeError, "is a pointer: give a tensor or None, not int", device, 0, 2.0, 3)
        self.refuse(TypeError, "is a pointer: give a tensor or None, not list", device, [1.0], 2.0, 3)
        self.refuse(TypeError, r"is a number, not a tensor on .* read its value with .item\(\)", device, "x", "x", 3)

    def test_numbers_out_of_range(self, device: str) -> None:
        self.refuse(OverflowError, "cannot hold 2147483648", device, "x", 2.0, 2**31)
        self.refuse(OverflowError, "cannot hold -2147483649", device, "x", 2.0, -(2**31) - 1)
        out = torch.empty(12, device=device, dtype=torch.float64)
        given = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
        for place, value in ((1, -1), (0, 128), (6, 2**63), (7, 2**64), (7, -1), (3, 65536)):
            with pytest.raises(OverflowError, match=f"argument {place + 2} .*cannot hold {value}"):
                torchgraft.kernel(EVERY, "numbers")[1](out, *given[:place], value, *given[place + 1 :])

    def test_dtypes(self, device: str) -> None:
        x = torch.ones(3, dtype=torch.float64, device=device)
        self.refuse(TypeError, "cannot be given a tensor of Double elements", device, x, 2.0, 3)
        with pytest.raises(TypeError, match="cannot be given a tensor of Int elements"):
            torchgraft.kernel(SCALE)[3](x.int(), 2.0, 3)

    def test_devices(self, device: str) -> None:
        self.refuse(
            RuntimeError, "Expected all tensors to be on the same device, but argument 1", device, torch.ones(3), 2.0, 3
        )
        self.refuse(
            RuntimeError, r"is given a tensor on meta: move it with .to\(", device, torch.ones(3, device="meta"), 2.0, 3
        )

    def test_several_devices(self, script: Script) -> None:
        script(
            f"""
            import torch, torchgraft
            from torchgraft.registration.register import register
            import torchgraft_opencl
            scale = torchgraft.kernel({SCALE.replace("x,", "x, __global float* y,")!r})
            if torch.ocl.device_count() > 1:
                a, b = torch.ones(3, device="ocl:0"), torch.ones(3, device="ocl:1")
                try:
                    scale[3](a, b, 2.0, 3)
                except RuntimeError as error:
                    assert "found at least two devices, ocl:0 and ocl:1" in str(error), error
                else:
                    raise AssertionError("launched")
                scale[3](b, b, 2.0, 3)
                assert b.tolist() == [2, 2, 2]
            """,
            autoload=True,
            POCL_DEVICES="cpu cpu",
        )

    def test_what_is_still_to_be_done(self, device: str) -> None:
        x = torch.ones(3, dtype=torch.complex64, device=device)
        self.refuse(RuntimeError, "whose conjugation or negation is still to be done", device, x.conj(), 2.0, 3)

    def test_grids(self, device: str) -> None:
        scale = torchgraft.kernel(SCALE)
        with pytest.raises(TypeError, match="say on how many work-groups"):
            scale(torch.ones(3, device=device), 2.0, 3)
        for grid in (1.5, (1, 2, 3), ((1, 1, 1, 1), 1), "3", (3, None)):
            with pytest.raises((TypeError, ValueError)):
                scale[grid]
        for grid in (-1, (4, 0), (4, -1)):
            with pytest.raises(ValueError, match="cannot be"):
                scale[grid]

    @pytest.mark.parametrize("options", [None, ""])
    def test_compilers_print_nothing(self, device: str, capfd: pytest.CaptureFixture[str], options: str | None) -> None:
        """All that they say is in the exception."""
        kernel = torchgraft.kernel("__kernel void wrong(__global float* x) { x[0] = nonsense(1); }", options=options)
        with pytest.raises(KernelCompileError, match="nonsense"):
            kernel[1](torch.ones(1, device=device))
        assert capfd.readouterr() == ("", "")

    def test_what_the_device_refuses(self, device: str) -> None:
        x = torch.ones(3, device=device)
        fixed = SCALE.replace("void", "__attribute__((reqd_work_group_size(2, 1, 1))) void")
        with pytest.raises(RuntimeError, match="launch kernel scale"):
            torchgraft.kernel(fixed)[1, 3](x, 2.0, 3)
        assert x.tolist() == [1, 1, 1]

    def test_the_compiler_says_where(self, device: str) -> None:
        kernel = torchgraft.kernel("__kernel void wrong(__global float* x) {\n  x[0] = 1;\n  x[1] = nonsense;\n}\n")
        for _ in range(2):
            with pytest.raises(KernelCompileError, match="kernel wrong does not compile on") as error:
                kernel[1](torch.ones(3, device=device))
            assert ":3:" in error.value.log
            assert "    3    x[1] = nonsense;" in str(error.value)

    def test_sources(self) -> None:
        with pytest.raises(ValueError, match="the source defines no kernel"):
            torchgraft.kernel("void f(int x) {}")
        with pytest.raises(ValueError, match="the source has the kernels numbers, missing, grid: say which"):
            torchgraft.kernel(EVERY)
        with pytest.raises(ValueError, match="the source has no kernel 'scales'; it has scale"):
            torchgraft.kernel(SCALE, "scales")
        with pytest.raises(ValueError, match="declare local memory inside the kernel"):
            torchgraft.kernel("__kernel void f(__local float* x) {}")
        with pytest.raises(ValueError, match="no Python number can be passed as 'real'"):
            torchgraft.kernel("__kernel void f(__global real* x, real y) {}")
        with pytest.raises(ValueError, match="has no name or no type"):
            torchgraft.kernel("__kernel void f(int) {}")


class TestSources:
    def test_own_names_of_types(self, device: str) -> None:
        source = "typedef float real;\n" + SCALE.replace("float", "real")
        x = torch.ones(3, device=device)
        torchgraft.kernel(source, types={"real": "float"})[3](x, 2.0, 3)
        assert x.tolist() == [2, 2, 2]

    def test_options(self, device: str) -> None:
        source = "__kernel void put(__global int* x) { x[0] = VALUE; }"
        x = torch.zeros(1, dtype=torch.int32, device=device)
        for value in (3, 4):
            torchgraft.kernel(source, options=f"-DVALUE={value}")[1](x)
            assert x.item() == value

    def test_one_module_for_all_kernels_of_a_source(self, device: str) -> None:
        source = EVERY + f"// {uuid.uuid4()}"  # no former run, even of the same seed, has left it in the kernel cache
        out = torch.zeros(1, device=device)
        before = counts.compiled
        torchgraft.kernel(source, "missing")[1](out, out)
        torchgraft.kernel(source, "grid")[1](torch.zeros(9, dtype=torch.int32, device=device))
        torchgraft.kernel(source, "missing")[1](out, out)
        assert counts.compiled == before + 1

    @pytest.mark.thorough
    def test_compiled_once_for_all_processes(self, script: Script, tmp_path: Any) -> None:
        text = f"""
            import torch, torchgraft
            from torchgraft.codegen.compiler import counts
            x = torch.empty(3, device="ocl")
            torchgraft.kernel({SCALE!r})[3](x, 2.0, 3)
            print(counts.compiled, counts.loaded)
        """
        assert script(text, autoload=True, TORCHGRAFT_CACHE_DIR=str(tmp_path)) == "1 0\n"
        assert script(text, autoload=True, TORCHGRAFT_CACHE_DIR=str(tmp_path)) == "0 1\n"

    def test_neutral(self, device: str) -> None:
        params = (Pointer("x", "bf16"), Value("by", "f32"), Value("n", "i64"))
        body = "long i = GLOBAL_ID(0); if (i < n) store_bf16(x, i, load_bf16(x, i) + by);"
        kernel = torchgraft.kernel(Kernel("add", params, body, local=(4,)))
        x = torch.ones(6, dtype=torch.bfloat16, device=device)
        kernel[2](x, 0.5, 6)
        assert x.tolist() == [1.5] * 6
        with pytest.raises(TypeError, match="cannot be given a tensor of Float elements"):
            kernel[2](x.float(), 0.5, 6)
        with pytest.raises(TypeError, match="says itself"):
            torchgraft.kernel(Kernel("add", params, body), "add")

    def test_seen(self) -> None:
        assert repr(torchgraft.kernel(SCALE)) == "<kernel scale(__global float* x, const float factor, const int n)>"

    @pytest.mark.parametrize("model", ["host", "svm", "buffer"])
    @pytest.mark.parametrize("form", ["cpu", "gpu"])
    @pytest.mark.quick(form="cpu", model="buffer")
    @pytest.mark.quick(form="gpu", model="svm")
    def test_memory_models(self, script: Script, model: str, form: str) -> None:
        script(
            f"""
            import torch, torchgraft
            scale = torchgraft.kernel({SCALE!r})
            x = torch.ones(10, 10, device="ocl")
            scale[3](x[4, 5:8], 7.0, 3)
            expected = torch.ones(10, 10)
            expected[4, 5:8] = 7
            assert torch.equal(x.cpu(), expected), x
            out = torch.zeros(1, device="ocl")
            missing = torchgraft.kernel({EVERY!r}, "missing")
            missing[1](out, None)
            assert out.item() == 2
            missing[1](out, x[3, 3:])
            assert out.item() == 1
            """,
            autoload=True,
            TORCHGRAFT_OPENCL_MEMORY=model,
            TORCHGRAFT_KERNEL_FORM=form,
        )


class TestSignatures:
    def read(self, source: str) -> list[tuple[str, list[tuple[str, str, bool]]]]:
        found = signatures(source, ("__kernel", "kernel"), {})
        return [(s.name, [(a.name, a.type, a.written) for a in s.arguments]) for s in found]

    def test_read(self) -> None:
        assert self.read(EVERY)[1:] == [
            ("missing", [("out", "", True), ("x", "", False)]),
            ("grid", [("out", "", True)]),
        ]
        assert [a[1] for a in self.read(EVERY)[0][1]] == ["", *"i8 u8 i16 u16 i32 u32 i64 u64 f32 f64 c64".split()]

    def test_odd_spellings(self) -> None:
        assert self.read("__kernel void a(void) {}") == [("a", [])]
        assert self.read("__kernel void a() {}") == [("a", [])]
        assert self.read("__kernel void a(global int x[], constant float *t){}") == [
            ("a", [("x", "", True), ("t", "", False)])
        ]
        assert self.read("__kernel void a(int x); __kernel void a(int x) {}") == [("a", [("x", "i32", False)])]
        assert self.read("void kernel_of(int n) {} __kernel void b(unsigned long int n) {}") == [
            ("b", [("n", "u64", False)])
        ]

    def test_offsets_keep_the_lines(self) -> None:
        changed = with_offsets(EVERY, signatures(EVERY, ("__kernel", "kernel"), {}))
        assert changed.count("\n") == EVERY.count("\n")
        assert "__global char* tg_out_base, unsigned long tg_out_offset" in changed
        assert "__global double* out = (__global double*)(tg_out_base + tg_out_offset);" in changed
        assert changed.splitlines()[7].strip() == EVERY.splitlines()[7].strip()


class TestWithoutACompiler:
    def test_says_so(self, script: Script) -> None:
        out = script(
            f"""
            import torch, torchgraft
            from numpy_driver import NumpyDriver
            torchgraft.register("npy", [NumpyDriver()])
            torchgraft.fallback.set_mode("silent")
            kernel = torchgraft.kernel({SCALE!r})
            try:
                kernel[3](torch.ones(3, device="npy"), 2.0, 3)
            except NotImplementedError as error:
                print(error)
            """
        )
        assert out.startswith("npy:0 (NumPy")
        assert "has no kernel compiler, so no kernel can be launched on it" in out

    def test_functions_are_its_kernels(self, script: Script) -> None:
        script(
            """
            import ctypes
            import numpy, torch, torchgraft
            from numpy_driver import NumpyDriver
            torchgraft.register("npy", [NumpyDriver(unified=True)])
            torchgraft.fallback.set_mode("error")
            libm = ctypes.CDLL(None)

            @torchgraft.plans.composite("relu", replace=True)
            def relu(x):
                out = torch.empty_like(x)
                numpy.maximum(torchgraft.host_view(x).numpy(), 0, out=torchgraft.host_view(out).numpy())
                return out

            @torchgraft.plans.composite("neg", replace=True)
            def neg(x):  # by a function in C, of addresses
                out = torch.empty_like(x)
                reverse = libm.memcpy
                reverse.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
                reverse(out.data_ptr(), x.data_ptr(), x.nbytes)
                numpy.negative(torchgraft.host_view(out).numpy(), out=torchgraft.host_view(out).numpy())
                return out

            x = torch.tensor([-1.0, 2.0, -3.0]).to("npy")
            x.requires_grad_()
            y = torch.relu(x)
            assert y.tolist() == [0, 2, 0]
            assert (-x).tolist() == [1, -2, 3]
            z = x.detach().clone()
            z.relu_()
            assert z.tolist() == [0, 2, 0]
            out = torch.empty(0, device="npy")
            torch.neg(z, out=out)
            assert out.tolist() == [0, -2, 0]
            """
        )


class TestHostView:
    def test_is_the_memory_itself(self, device: str) -> None:
        if not getattr(torch, device).get_device_properties().unified_memory:
            pytest.skip("the host cannot use the device's memory")
        x = torch.arange(12.0, device=device).view(3, 4)
        view = torchgraft.host_view(x.t()[1:])
        assert view.device.type == "cpu"
        assert (view.shape, view.stride()) == ((3, 3), (1, 4))
        view.fill_(9)
        assert x.tolist() == [[0, 9, 9, 9], [4, 9, 9, 9], [8, 9, 9, 9]]
        del x
        assert view.sum() == 81  # it keeps the memory

    def test_refused(self, script: Script) -> None:
        out = script(
            """
            import torch, torchgraft
            from numpy_driver import NumpyDriver
            torchgraft.register("npy", [NumpyDriver(unified=False)])
            torchgraft.fallback.set_mode("silent")
            for x in (torch.ones(2), torch.ones(2, device="npy")):
                try:
                    torchgraft.host_view(x)
                except Exception as error:
                    print(type(error).__name__, error)
            """
        )
        assert out.splitlines()[0].startswith("TypeError expected a tensor on 'npy', not on cpu")
        assert out.splitlines()[1].startswith("NotImplementedError the host cannot read the memory of npy:0")
