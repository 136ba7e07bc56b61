"""Dialects: every word has a meaning in each, the kernels of all families are right in C++, authors bring their own."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import ClassVar

import pytest
import torch

import torchgraft
from torchgraft.codegen import Kernel, Pointer, Value
from torchgraft.codegen.dialect import UnsupportedKernel
from torchgraft.codegen.dialects import dialect, known_dialects
from torchgraft.codegen.places import ATOMIC_ADDS
from torchgraft.codegen.types import BY_NAME
from torchgraft.codegen.vectors import LOADED, PAIRS, SIZES, VECTORS, WIDTHS, composed_words
from torchgraft.functions import HELPERS

Script = Callable[..., str]

PAGE = (Path(__file__).parent.parent / "docs" / "kernel-language.md").read_text()

# The device "cxx" of the driver in cxx_driver.py, on which nothing runs on torch's CPU kernels instead.
DEVICE = """
import torch, torchgraft
from cxx_driver import CxxDriver
torchgraft.register("cxx", [CxxDriver()])
torchgraft.fallback.set_mode("error")
torch.manual_seed(0)

def same(run, *tensors, **tolerance):
    expected = run(*tensors)
    got = run(*(t.to("cxx") for t in tensors))
    torch.testing.assert_close(got.cpu(), expected, **tolerance)
"""


def _vector_words() -> set[str]:
    words = {f"{name}_{vector}" for vector in VECTORS for name in ("MAKE", "SPLAT", "CONVERT", "AS", "SHUFFLE")}
    words |= {f"{name}_{pair}" for pair in PAIRS for name in ("MAKE", "SPLAT", "CONVERT")}
    words |= {f"AS_{lane}" for lane in SIZES} | {f"{vector}u" for vector in VECTORS} | {"LANE", "SELECT"}
    return words | {f"{access}_{name}x{width}" for access in ("load", "store") for name in LOADED for width in WIDTHS}


@pytest.mark.parametrize("name", ["opencl-c", "c++"])
def test_words_of_vectors_have_a_meaning(name: str) -> None:
    assert _vector_words() <= dialect(name).definitions.keys()


@pytest.mark.parametrize("name", ["opencl-c", "c++"])
def test_documented_words_have_a_meaning(name: str) -> None:
    """Those in capitals; of vectors, the one for float8."""
    language = dialect(name)
    documented = set(re.findall(r"`([A-Z][A-Z_]+\w*)", PAGE)) - {"VECTORIZE", "VECTORIZE_MASKED", "VECTORIZE_ONCE"}
    documented = {re.sub(r"_[TV]$", "_float8", word) for word in documented} - {"LONG_"}
    documented = {re.sub(r"_E$", "_f32", word) for word in documented}
    native = {"INFINITY", "NAN"} if name == "opencl-c" else set()
    native |= {word for word in documented if name == "opencl-c" and word.endswith(("_MIN", "_MAX"))}
    if name == "c++":  # where a group is one work-item
        native |= {word for word in documented if word.startswith("FRAGMENTS_")}
    text = "\n".join([language.prelude, *language.definitions.values()])
    known = {*language.definitions, *HELPERS, *ATOMIC_ADDS, *composed_words(), *re.findall(r"#define (\w+)", text)}
    assert documented - native - known == set()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", LOADED)
def test_vectors_begin_at_any_element(device: str, name: str, width: int) -> None:
    """What is loaded is used twice, so that it is no operand of an instruction: those may be unaligned."""
    vector = f"{LOADED[name]}{width}"
    body = f"""
      const {vector} x = load_{name}x{width}(from, first), y = load_{name}x{width}(from, first + {width});
      store_{name}x{width}(to, first, SELECT(x > y, x, y));
      store_{name}x{width}(to, first + {width}, SELECT(x > y, y, x));"""
    params = (Pointer("to", name), Pointer("from", name, const=True), Value("first", "i64"))
    kernel = torchgraft.kernel(Kernel("order", params, body))
    dtype = BY_NAME[name].dtype
    values = torch.randint(0, 100, (9 + 2 * width,)).to(dtype)
    given = values.to(device)
    for first in range(9):
        got = torch.zeros_like(given)
        kernel[1](got, given, first)
        x, y = values[first : first + width], values[first + width : first + 2 * width]
        expected = torch.zeros_like(values)
        expected[first : first + 2 * width] = torch.cat((torch.maximum(x, y), torch.minimum(x, y)))
        assert torch.equal(got.cpu(), expected), first


def test_the_library_has_no_words_of_opencl() -> None:
    words = r"\b(vload|vstore|convert_|as_(float|int|uint|long|ulong|double)|select|mul_hi|get_\w+_id)\w*"
    assert [name for name, text in HELPERS.items() if re.search(words, text)] == []


@pytest.mark.parametrize("folder", ["functions", "kernels", "ops", "codegen"])
def test_no_text_has_a_literal_of_opencl(folder: str) -> None:
    """`(float2)(a, b)` is a comma in C++, and would be wrong without a word."""
    cast = re.compile(r"\((?:(?:float|double|u?int|u?long)\d+|\{[\w.\[\]()'\"]+\}\d*|T|C|V|element)\)\(")
    found = []
    for path in sorted((Path(torchgraft.__file__).parent / folder).glob("*.py")):
        text = path.read_text()
        for match in cast.finditer(text):
            depth, end = 1, match.end()
            while depth:
                depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(text[end], 0)
                end += 1
                if depth == 1 and text[end] == ",":
                    found.append(f"{path.name}: {text[match.start() : end]}")
    assert found == []


class TestCxx:
    @pytest.mark.thorough
    def test_loads_stores_and_conversions(self, script: Script) -> None:
        script(
            DEVICE
            + dedent("""
            dtypes = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32,
                      torch.int16, torch.int8, torch.uint8, torch.bool, torch.complex64, torch.complex128]
            for source in dtypes:
                x = torch.tensor([0.0, 1.0, 2.5, 100.0, 7.7, 0.1]).to(source)
                for target in dtypes:
                    if source.is_complex and not target.is_complex:
                        continue
                    same(lambda x: x.to(target), x, rtol=0, atol=0)
            """),
            timeout=600,
        )

    @pytest.mark.parametrize("options", ["", "-DTG_HALF_BY_BITS"])
    def test_sixteen_bits(self, script: Script, options: str) -> None:
        """Every float16 and bfloat16 is read, and floats are rounded as torch does it."""
        script(
            DEVICE.replace("CxxDriver()", f"CxxDriver({options!r})")
            + dedent("""
            for dtype in (torch.float16, torch.bfloat16):
                x = torch.arange(-2**15, 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
                assert torch.equal(x.to("cxx").float().cpu().nan_to_num(123), x.float().nan_to_num(123))
                bits = torch.randint(-2**31, 2**31, (100_000,), dtype=torch.int64).to(torch.int32)
                edges = torch.tensor([65504.0, 65519.9, 65520.0, 5.9e-8, 2.98e-8, 2.99e-8, 1e-9, float("inf")])
                y = torch.cat([bits.view(torch.float32), torch.randn(10_000) * 1e-5, edges, -edges])
                got, expected = y.to("cxx").to(dtype).cpu(), y.to(dtype)
                assert torch.equal(got.isnan(), expected.isnan())
                assert torch.equal(got.nan_to_num(1).view(torch.int16), expected.nan_to_num(1).view(torch.int16))
            """),
            timeout=300,
        )

    FAMILIES: ClassVar[dict[str, str]] = {
        "matmul": "same(torch.matmul, torch.randn(37, 50), torch.randn(50, 41))\n"
        "same(torch.matmul, torch.randn(3, 300), torch.randn(70, 300).T)\n"
        "same(torch.matmul, torch.randn(9, 20, dtype=torch.complex64), torch.randn(20, 7, dtype=torch.complex64))\n"
        "same(torch.matmul, torch.randint(-9, 9, (20, 30)), torch.randint(-9, 9, (30, 20)))",
        "convolution": "same(lambda x, w: torch.conv2d(x, w, stride=2, padding=1), torch.randn(2, 8, 15, 17), "
        "torch.randn(6, 8, 3, 3))\n"
        "same(lambda x, w: torch.conv_transpose1d(x, w, stride=2), torch.randn(2, 3, 40), torch.randn(3, 2, 4))",
        "attention": "q, k, v = torch.randn(3, 2, 4, 30, 16)\n"
        "attend, mask = torch.nn.functional.scaled_dot_product_attention, torch.rand(30, 30) > 0.5\n"
        "same(lambda q, k, v: attend(q, k, v, is_causal=True), q, k, v)\n"
        "same(lambda q, k, v, mask: attend(q, k, v, mask), q, k, v, mask)\n"
        "same(lambda q, k, v, mask: attend(q[:, :, :2], k, v, mask[:2]), q, k, v, mask)",
        "recurrent": "for cell, gates in (('lstm', 4), ('gru', 3)):\n"
        "    def network(x, h, *w):\n"
        "        h = [h, h] if cell == 'lstm' else h\n"
        "        y = getattr(torch, cell)(x, h, w, False, 1, 0.0, False, False, False)[0]\n"
        "        return torch.autograd.grad(y.square().sum(), w)[0]\n"
        "    w = [torch.randn(gates * 20, n).requires_grad_() for n in (7, 20)]\n"
        "    same(network, torch.randn(5, 3, 7), torch.randn(1, 3, 20), *w)",
        "transforms": "same(torch.fft.fft, torch.randn(5, 60, dtype=torch.complex64))\n"
        "same(lambda x: torch.fft.rfft(x, dim=0), torch.randn(24, 40, dtype=torch.float64))",
        "pooling": "same(lambda x: torch.nn.functional.max_pool2d(x, 3, 2, 1), torch.randn(2, 3, 20, 21))\n"
        "same(lambda x: torch.nn.functional.avg_pool2d(x, 3, 2, 1), torch.randn(2, 3, 20, 21))\n"
        "same(lambda x: torch.nn.functional.interpolate(x, size=20, mode='bilinear'), torch.randn(1, 2, 9, 9))",
        "reductions": "same(lambda x: x.sum(1), torch.randn(30, 500))\n"
        "same(lambda x: x.prod(1), torch.randn(30, 5, dtype=torch.complex64))\n"
        "same(lambda x: x.cumprod(1), torch.randn(30, 5, dtype=torch.complex64))\n"
        "same(lambda x: x.cumsum(1), torch.randn(30, 500))\n"
        "same(lambda x: x.sort(-1).values, torch.randn(30, 100))\n"
        "same(lambda x: x.softmax(-1), torch.randn(30, 100))\n"
        "same(lambda x: torch.nn.functional.layer_norm(x, (100,)), torch.randn(30, 100))\n"
        "same(lambda x, i: x[i], torch.randn(30, 4), torch.tensor([3, -1, 0]))",
        "functions": "same(lambda x: torch.lgamma(x) + x.sinc() * x.erf() + torch.special.i0(x), torch.randn(1000))\n"
        "same(lambda x: (x * x).sqrt() / (x + 1), torch.randn(1000, dtype=torch.complex128))\n"
        "same(lambda a, b: a // b + a % b, torch.randint(-99, 99, (500,)), torch.randint(1, 9, (500,)))",
        "linear algebra": "a = torch.randn(3, 12, 12, dtype=torch.float64)\n"
        "same(lambda a: torch.geqrf(a).a, torch.randn(9, 9, dtype=torch.complex64))\n"
        "same(torch.linalg.eigvalsh, (lambda c: c + c.mH)(torch.randn(3, 9, 9, dtype=torch.complex128)))\n"
        "same(torch.linalg.det, a)\n"
        "same(torch.linalg.cholesky, (lambda c: c @ c.mH)(torch.randn(3, 9, 9, dtype=torch.complex128)))\n"
        "same(lambda a, b: torch.linalg.solve(a, b), a, torch.randn(3, 12, 2, dtype=torch.float64))",
    }

    @pytest.mark.parametrize("family", FAMILIES)
    @pytest.mark.quick(family=["linear algebra", "reductions"])
    def test_families_of_kernels(self, script: Script, family: str) -> None:
        script(DEVICE + self.FAMILIES[family], timeout=600)

    def test_random_numbers_are_those_of_any_device(self, script: Script, device: str) -> None:
        import torch

        torch.manual_seed(5)
        here = torch.randn(9, device=device).tolist()
        there = script(f"{DEVICE}\ntorch.manual_seed(5)\nprint(torch.randn(9, device='cxx').tolist())", timeout=300)
        assert torch.allclose(torch.tensor(here), torch.tensor(eval(there)))

    def test_groups_whose_work_items_wait_are_refused(self) -> None:
        kernel = Kernel("team", (Pointer("x", "f32"),), "BARRIER;", local=(64,))
        with pytest.raises(UnsupportedKernel, match="groups of 64 work-items that wait for each other"):
            dialect("c++").render(kernel, False)
        dialect("c++").render(Kernel("team", (Pointer("x", "f32"),), "BARRIER;"), False)

    @pytest.mark.parametrize("width", [4, 8])
    def test_narrower_registers(self, script: Script, width: int) -> None:
        """Tiles, vectors and VECTORIZE follow the device's registers."""
        printed = script(
            DEVICE + self.FAMILIES["matmul"] + "\n" + self.FAMILIES["attention"] + "\n"
            "print(torchgraft.plans.show('mm', source=True))",
            TORCHGRAFT_SIMD_WIDTH=str(width),
            timeout=600,
        )
        assert f"vectorize_width({width})" in printed
        assert f"const float{width} " in printed
        assert "float16" not in printed


def test_vectorize_follows_the_registers() -> None:
    loop = Kernel("loop", (Value("n", "i32"),), "VECTORIZE for (int i = 0; i < n; ++i) {}")
    for width in (4, 8, 16):
        assert f"vectorize_width({width})" in dialect("opencl-c").render(loop, False, width)


@pytest.mark.parametrize(
    ("body", "local", "along"),
    [
        ("target_s0[GROUP_ID(0)] = 1;", (1,), 7),  # a name that ends in get_ and goes on
        ("x[0] = NUM_GROUPS(1);", (1,), 5),
        ("x[0] = NUM_GROUPS(0) + NUM_GROUPS(1) + NUM_GROUPS(2);", (1,), None),
        ("x[0] = get_num_groups(0);", (1,), None),
        ("x[0] = get_global_id (0);", (1,), None),
        ("x[LOCAL_ID(0)] = 1;", (64,), None),
    ],
)
def test_it_is_said_along_what_launches_may_be_divided(body: str, local: tuple[int], along: int | None) -> None:
    text = dialect("opencl-c").render(Kernel("any", (Pointer("x", "i32"),), body, local=local), False)
    assert re.findall(r"__kernel void tg_divisible_(\d)\(\) \{\}", text) == ([] if along is None else [str(along)])


class TestRegistration:
    def test_one_that_is_registered_is_found(self) -> None:
        class Mine(torchgraft.Dialect):
            name = "test-mine"

        torchgraft.register_dialect(Mine)
        assert isinstance(dialect("test-mine"), Mine)
        again = Mine()
        torchgraft.register_dialect(again)
        assert dialect("test-mine") is again
        assert {"c++", "opencl-c", "test-mine"} <= set(known_dialects())

    def test_what_is_none_is_refused(self) -> None:
        with pytest.raises(TypeError, match=r"a dialect is a torchgraft\.codegen\.Dialect, not"):
            torchgraft.register_dialect("c++")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="1 to 31 bytes"):
            torchgraft.register_dialect(torchgraft.Dialect)
        with pytest.raises(NotImplementedError, match=r"no kernel dialect 'test-unknown'; known: \['c\+\+'"):
            dialect("test-unknown")

    def test_entry_points(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "dialect_of_a_package.py").write_text(
            "from torchgraft import Dialect\n\nclass Theirs(Dialect):\n    name = 'test-theirs'\n"
        )
        information = tmp_path / "theirs-1.0.dist-info"
        information.mkdir()
        (information / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
        (information / "entry_points.txt").write_text(
            "[torchgraft.dialects]\ntest-theirs = dialect_of_a_package:Theirs\n"
        )
        monkeypatch.syspath_prepend(str(tmp_path))
        assert "test-theirs" in known_dialects()
        assert dialect("test-theirs").name == "test-theirs"

    def test_a_driver_brings_its_own(self, script: Script) -> None:
        script(
            DEVICE.replace("CxxDriver()", "Mine()").replace(
                "torchgraft.register(",
                """from dataclasses import replace
from torchgraft.codegen.dialects.cxx import Cxx

class Own(Cxx):
    name = "own-c++"
    prelude = Cxx.prelude + "#define OWN"

class Mine(CxxDriver):
    kernel_dialect = Own()

    def device_properties(self, device):
        return replace(super().device_properties(device), dialect="own-c++")

    def module_compile(self, device, source, options):
        assert "#define OWN" in source
        return super().module_compile(device, source, options)

torchgraft.register(""",
            )
            + "same(lambda x: x + 1, torch.randn(9))\nassert torch.cxx.get_device_properties().dialect == 'own-c++'"
        )


class TestRefusedKernels:
    """What a device's compiler refuses runs on the CPU."""

    REFUSING = """
import torch, torchgraft, warnings
from cxx_driver import CxxDriver
from torchgraft.driver import CompileError

class Refusing(CxxDriver):
    def module_compile(self, device, source, options):
        if " exp_f32" in source:
            raise CompileError("no exp: " + b"caf\\xe9".decode(errors="surrogateescape"))
        return super().module_compile(device, source, options)

torchgraft.register("cxx", [Refusing("-DREFUSING")])  # which no kernel has been compiled with and kept
x = torch.ones(3, device="cxx")
"""

    def test_the_user_is_told_the_compilers_words(self, script: Script) -> None:
        script(
            self.REFUSING
            + """
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for shape in ((3,), (2, 2), (4, 1)):
        assert torch.ones(shape, device="cxx").exp().cpu().allclose(torch.ones(shape).exp())
words = [str(w.message) for w in caught if "does not compile" in str(w.message)]
assert len(words) == 1 and "aten::exp" in words[0] and "no exp: caf\\ufffd" in words[0], words
assert caught[0].filename == "<string>"
assert "aten::exp.out" in torchgraft.fallback_report() or "aten::exp" in torchgraft.fallback_report()
"""
        )

    def test_an_error_where_nothing_may_run_on_the_cpu(self, script: Script) -> None:
        script(
            self.REFUSING
            + """
with torchgraft.fallback("error"):
    try:
        x.exp()
    except torchgraft.plans.KernelCompileError as error:
        assert "no exp: caf\\ufffd" in str(error) and error.kernel == "exp_f32", error
    else:
        raise AssertionError
with torchgraft.fallback("silent"):
    assert x.exp().cpu().allclose(torch.ones(3).exp())
"""
        )
