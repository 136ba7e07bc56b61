"""Registering a backend: the name, the order of things, what goes wrong and what is said then."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from conftest import Script

import torchgraft
from torchgraft.registration import register


@pytest.mark.thorough
def test_names_that_torch_can_parse_and_does_not_use(script: Script) -> None:
    script("""
        import torch, torchgraft
        from numpy_driver import NumpyDriver

        bad = {
            "cannot name a device: torch parses": ["", "9x", "my-npu", "npu2", "Foo", "foo:0", "privateuse1"],
            "torch itself uses this name": ["cpu", "cuda", "opencl", "meta", "xla", "lazy", "tpu", "privateuseone"],
            "exists": ["nn", "add", "float", "register_buffer"],
        }
        for message, names in bad.items():
            for name in names:
                try:
                    torchgraft.register(name, [NumpyDriver()])
                except ValueError as error:
                    assert message in str(error) and repr(name) in str(error), (name, error)
                else:
                    raise AssertionError(name)

        # None of this used up the one registration.
        torchgraft.register("my_npu", [NumpyDriver()])
        assert torch.ones(2, device="my_npu:1").sum().item() == 2
    """)


@pytest.mark.parametrize(
    ("drivers", "kind", "message"),
    [
        ("[]", "ValueError", "at least one driver"),
        ("[NumpyDriver]", "TypeError", "pass an instance, not the class"),
        ("[object()]", "TypeError", "not object"),
        ("[driver := NumpyDriver(), driver]", "ValueError", "is given twice"),
        ("[torchgraft.SharedLibrary('/nowhere/driver.so')]", "RegistrationError", "/nowhere/driver.so"),
        ("[torchgraft.SharedLibrary('libc.so.6')]", "RegistrationError", "torchgraft_driver"),
    ],
)
def test_what_is_no_driver(script: Script, drivers: str, kind: str, message: str) -> None:
    script(f"""
        import torch, torchgraft
        from numpy_driver import NumpyDriver

        try:
            torchgraft.register("npy", {drivers})
        except Exception as error:
            assert type(error).__name__ == "{kind}" and "{message}" in str(error), (type(error), error)
        else:
            raise AssertionError("accepted")
        torchgraft.register("npy", [NumpyDriver()])
        assert torch.npy.device_count() == 2
    """)


def test_a_second_registration_names_the_first(device: str) -> None:
    name = torch.device(device).type
    for other in (name, "another"):
        with pytest.raises(
            torchgraft.RegistrationError, match=rf"'{name}' is registered already.*start another process"
        ):
            torchgraft.register(other, [torchgraft.Driver()])


def test_another_extension_was_first(script: Script) -> None:
    script("""
        import torch
        torch.utils.rename_privateuse1_backend("theirs")

        import torchgraft
        try:
            torchgraft.register("ours", [torchgraft.Driver()])
        except torchgraft.RegistrationError as error:
            assert "'theirs'" in str(error) and "TORCH_DEVICE_BACKEND_AUTOLOAD" in str(error)
        else:
            raise AssertionError
    """)


def test_a_failing_step_is_named() -> None:
    def fail() -> None:
        raise RuntimeError("the moon is in the wrong place")

    with pytest.raises(torchgraft.RegistrationError, match='"install the runtime": the moon'):
        register._step("install the runtime", fail)
    with pytest.raises(torchgraft.RegistrationError, match='"rename": it raised no error, but had no effect'):
        register._step("rename", lambda: None, lambda: False)
    assert register._step("rename", lambda: 7, lambda: True) == 7


def test_every_step_is_checked(script: Script) -> None:
    """A torch in which a step no longer does what it did is told at the step."""
    script("""
        import torch, torchgraft
        from numpy_driver import NumpyDriver
        from torch.utils import backend_registration

        backend_registration.generate_methods_for_privateuse1_backend = lambda **options: None
        try:
            torchgraft.register("npy", [NumpyDriver()])
        except torchgraft.RegistrationError as error:
            assert '"generate the methods of tensors"' in str(error) and "no effect" in str(error), error
        else:
            raise AssertionError
        try:
            torchgraft.register("npy", [NumpyDriver()])
        except torchgraft.RegistrationError as error:
            assert "'npy' has failed in this process" in str(error) and "start another process" in str(error), error
        else:
            raise AssertionError
        assert torchgraft.registration.register.registered_name() is None
    """)


@pytest.mark.quick(generated=["", "for_storage=True"])
@pytest.mark.parametrize("generated", ["", "for_module=False", "for_storage=True"])
def test_the_author_has_renamed_and_generated(script: Script, generated: str) -> None:
    """What the author has called himself is kept, and what is missing is made."""
    call = f"torch.utils.generate_methods_for_privateuse1_backend({generated})" if generated else ""
    script(f"""
        import torch
        torch.utils.rename_privateuse1_backend("npy")
        {call}

        import torchgraft
        from numpy_driver import NumpyDriver
        module = torchgraft.register("npy", [NumpyDriver()])
        assert torch.npy is module
        tensor = torch.ones(2).npy()
        assert tensor.is_npy and tensor.device == torch.device("npy:0")
        assert torch.nn.Linear(2, 2).npy().weight.is_npy
        assert tensor.untyped_storage().is_npy and torch.ones(2).untyped_storage().npy().is_npy
        assert torch.nn.utils.rnn.pack_sequence([torch.ones(2)]).npy().is_npy
        assert torch.utils.backend_registration._privateuse1_backend_name == "npy"
    """)


def test_a_name_given_in_cpp_alone_is_completed(script: Script) -> None:
    script("""
        import torch, torchgraft
        from numpy_driver import NumpyDriver

        torch._C._rename_privateuse1_backend("npy")
        torchgraft.register("npy", [NumpyDriver()])
        assert torch.utils.backend_registration._privateuse1_backend_name == "npy"
        assert torch._C._profiler.ProfilerActivity.NPY == torch._C._profiler.ProfilerActivity.PrivateUse1
    """)


def test_a_device_module_of_the_authors_own(script: Script) -> None:
    script("""
        import types
        import torch, torchgraft
        from numpy_driver import NumpyDriver

        torch.utils.rename_privateuse1_backend("npy")
        torch._register_device_module("npy", types.ModuleType("mine"))
        try:
            torchgraft.register("npy", [NumpyDriver()])
        except torchgraft.RegistrationError as error:
            assert "torch._register_device_module already: leave that call out" in str(error), error
        else:
            raise AssertionError
    """)


@pytest.mark.thorough
def test_dtypes_that_storages_refuse(script: Script) -> None:
    script("""
        import torch, torchgraft, warnings
        from numpy_driver import NumpyDriver

        warnings.simplefilter("ignore")  # TypedStorage is deprecated
        try:
            torchgraft.register("npy", [NumpyDriver()], unsupported_dtype=["float64"])
        except TypeError as error:
            assert "like torch.float64, not 'float64'" in str(error), error
        else:
            raise AssertionError
        torchgraft.register("npy", [NumpyDriver()], unsupported_dtype=(torch.float64,))
        assert torch.ones(2).storage().npy().is_npy
        try:
            torch.ones(2, dtype=torch.float64).storage().npy()
        except RuntimeError as error:
            assert "float64" in str(error) and "not supported" in str(error), error
        else:
            raise AssertionError
    """)


@pytest.mark.thorough
def test_dtypes_that_come_too_late(script: Script) -> None:
    script("""
        import torch, torchgraft
        from numpy_driver import NumpyDriver

        torch.utils.rename_privateuse1_backend("npy")
        torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
        try:
            torchgraft.register("npy", [NumpyDriver()], unsupported_dtype=[torch.float64])
        except torchgraft.RegistrationError as error:
            assert "unsupported_dtype has no effect" in str(error) and "Leave" in str(error), error
        else:
            raise AssertionError
        torchgraft.register("npy", [NumpyDriver()])
        assert torch.ones(2, device="npy").is_npy
    """)


def test_registering_opens_nothing(script: Script) -> None:
    script("""
        import torch, torchgraft
        from numpy_driver import NumpyDriver

        class Closed(NumpyDriver):
            def device_count(self):
                raise AssertionError("opened")

        torchgraft.register("npy", [Closed()])
        torch.manual_seed(1)
        torch.nn.Linear(2, 2)(torch.ones(2)).sum().backward()
        assert torch.device("npy:1").index == 1
        assert not torch.npy.is_initialized() and not torch.npy._initialized
        assert torch.npy.memory_allocated() == 0
        torch.npy.empty_cache()
    """)


def test_a_driver_without_devices(script: Script) -> None:
    script("""
        import torch, torchgraft
        from numpy_driver import NumpyDriver

        class Broken(NumpyDriver):
            def device_count(self):
                raise OSError("the cable is loose")

        torchgraft.register("npy", [Broken()])
        assert not torch.npy.is_available() and torch.npy.device_count() == 0
        assert not torch.accelerator.is_available()
        for use in ("torch.ones(2, device='npy')", "torch.ones(2).to('npy')", "torch.nn.Linear(2, 2).to('npy')",
                    "torch.npy.current_device()", "torch.npy.Stream()", "torch.npy.synchronize(0)"):
            try:
                eval(use)
            except RuntimeError as error:
                assert "npy" in str(error) and "the cable is loose" in str(error), error
            else:
                raise AssertionError
        assert torch.ones(2).sum() == 2
    """)


def test_several_drivers_are_numbered_one_after_the_other(script: Script) -> None:
    script("""
        import torch, torchgraft
        from numpy_driver import NumpyDriver

        class Broken(NumpyDriver):
            def device_count(self):
                raise OSError("the cable is loose")

        small, large = NumpyDriver(devices=1, memory=32 << 20), NumpyDriver(devices=2, memory=48 << 20)
        torchgraft.register("npy", [small, Broken(), large])
        assert torch.npy.device_count() == 3
        assert [torch.npy.get_device_properties(i).total_memory >> 20 for i in range(3)] == [32, 48, 48]
        assert "the cable is loose" in torchgraft._C.device_errors()
        x = torch.arange(4, device="npy:0")
        assert x.to("npy:2").cpu().tolist() == [0, 1, 2, 3]
    """)


TWO_DRIVERS = """
    import itertools
    import torch, torchgraft, torchgraft_opencl
    from numpy_driver import NumpyDriver

    drivers = [{drivers}]
    torchgraft.register("duo", drivers)
    torchgraft.fallback.set_mode("silent")
    a, b = (next(i for i in range(torch.duo.device_count()) if torch.duo.get_device_properties(i).driver == name)
            for name in ("opencl", "numpy"))
    pairs = [(f"duo:{{a}}", f"duo:{{b}}"), (f"duo:{{b}}", f"duo:{{a}}")]
"""
OPENCL_FIRST = "torchgraft.SharedLibrary(torchgraft_opencl.driver_library()), NumpyDriver()"
NUMPY_FIRST = "NumpyDriver(unified=True), torchgraft.SharedLibrary(torchgraft_opencl.driver_library())"


def two_drivers(text: str, drivers: str) -> str:
    # Registering "ocl" at the import of the package would use up the one registration.
    preamble = textwrap.dedent(TWO_DRIVERS.format(drivers=drivers))
    preamble = "import sys, torchgraft.autoload\ntorchgraft.autoload.choose = lambda *names: None\n" + preamble
    return preamble + textwrap.dedent(text)


@pytest.mark.parametrize("memory", ["host", "buffer"])
@pytest.mark.parametrize("drivers", [OPENCL_FIRST, NUMPY_FIRST])
@pytest.mark.quick(memory="buffer", drivers=OPENCL_FIRST)
@pytest.mark.quick(memory="host", drivers=NUMPY_FIRST)
def test_copies_between_two_drivers(script: Script, drivers: str, memory: str) -> None:
    """Two drivers that know nothing of each other: copies go by way of the host, whatever the layout and the dtype."""
    text = """
        x = torch.arange(240, dtype=torch.float32).reshape(4, 5, 12) - 60
        layouts = {
            "contiguous": lambda t: t, "transposed": lambda t: t.transpose(0, 2), "steps": lambda t: t[:, ::2, 1::3],
            "a slice": lambda t: t[1:3, 2], "expanded": lambda t: t[:1, :1, :1].expand(4, 3, 2),
            "empty": lambda t: t[:, :0], "one number": lambda t: t[2, 3, 4],
        }
        dtypes = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.uint8, torch.bool,
                  torch.complex64]
        for (source, target), (what, view) in itertools.product(pairs, layouts.items()):
            there = view(x.to(source))
            for dtype, non_blocking in itertools.product(dtypes, (False, True)):
                want = view(x).to(dtype, copy=True)
                got = there.to(target, dtype, non_blocking=non_blocking)
                torch.duo.synchronize(target)
                assert got.device == torch.device(target) and got.dtype == dtype, (what, dtype)
                assert got.stride() == want.stride(), (what, got.stride(), want.stride())
                assert torch.equal(got.cpu(), want), (what, source, dtype, non_blocking)
            # Into a strided part of something that is there already, with broadcasting.
            last = there.shape[-1] if there.dim() else 1
            base = torch.zeros(6, *there.shape[:-1], 3 * last, device=target)
            on_host = base.cpu()
            base[1:5:2, ..., :2 * last:2].copy_(there)
            on_host[1:5:2, ..., :2 * last:2].copy_(view(x))
            assert torch.equal(base.cpu(), on_host), (what, source)

        for source, target in pairs:
            z = torch.complex(x, x + 1)
            assert torch.equal(z.to(source).conj().to(target).cpu(), z.conj().resolve_conj())
            assert torch.equal(x.to(source).to(target, memory_format=torch.preserve_format).cpu(), x)
            try:
                torch.ones(3, device=source) + torch.ones(3, device=target)
            except RuntimeError as error:
                assert "same device" in str(error) or "two devices" in str(error), error
            else:
                raise AssertionError("tensors of two devices were added")
    """
    script(two_drivers(text, drivers), TORCHGRAFT_OPENCL_MEMORY=memory)


@pytest.mark.thorough
@pytest.mark.quick(drivers=NUMPY_FIRST)
@pytest.mark.parametrize("drivers", [OPENCL_FIRST, NUMPY_FIRST])
def test_backward_over_two_drivers(script: Script, drivers: str) -> None:
    text = """
        def run(first, second):
            torch.manual_seed(3)
            one, two = torch.nn.Linear(8, 16), torch.nn.Linear(16, 4)
            x = torch.randn(10, 8)
            one, two, x = one.to(first), two.to(second), x.to(first).requires_grad_()
            hidden = torch.relu(one(x))
            loss = two(hidden.to(second)[:, ::1]).square().mean() + hidden.mean().to(second)
            loss.backward()
            gradients = [x.grad, *(p.grad for p in (*one.parameters(), *two.parameters()))]
            devices = {gradient.device for gradient in gradients}
            assert devices == {torch.device(first), torch.device(second)}, devices
            return [loss.item(), *(gradient.cpu() for gradient in gradients)]

        want = run("cpu", "cpu")
        for pair in pairs:
            torch.testing.assert_close(run(*pair), want)
    """
    script(two_drivers(text, drivers))


def test_methods_that_torch_generates(device: str) -> None:
    name = torch.device(device).type
    tensor = getattr(torch.ones(2), name)()
    assert tensor.device.type == name
    assert getattr(tensor, f"is_{name}")
    assert not getattr(torch.ones(2), f"is_{name}")
    assert getattr(torch.nn.Linear(2, 2), name)().weight.device.type == name
    assert getattr(torch.ones(2).untyped_storage(), name)().device.type == name
    assert getattr(tensor.untyped_storage(), f"is_{name}")
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(3), torch.ones(2)])
    assert getattr(packed, name)().data.device.type == name


@pytest.mark.parametrize(
    "first", ["torch", "torchgraft", "torchgraft_opencl", "torchgraft.registration.register", "torch.nn"]
)
@pytest.mark.quick(first=["torch", "torchgraft_opencl"])
def test_any_order_of_imports(script: Script, first: str) -> None:
    script(
        f"""
        import {first}
        import torchgraft_opencl, torch
        assert torch.device("ocl").type == "ocl"
        assert torch.ones(2, device="ocl").cpu().tolist() == [1, 1]
        """,
        autoload=True,
    )


def test_import_is_quick_and_quiet(script: Script) -> None:
    """Nothing heavy is imported, nothing is opened and nothing is printed before the first use."""
    printed = script(
        """
        import sys
        import torch, torchgraft_opencl
        # Of torch itself, and of OpenCL: neither is needed to register.
        assert "torch._dynamo" not in sys.modules and "torchgraft.ops" not in sys.modules
        assert not any("OpenCL" in line for line in open("/proc/self/maps"))
        """,
        autoload=True,
    )
    assert printed == ""


@pytest.mark.thorough
def test_what_autoloading_adds_to_the_import_of_torch() -> None:
    """Less than a quarter of what torch takes itself in the same process, and no device is opened. The least share of a
    few runs counts: the machine has more to do."""
    script = Path(__file__).parents[1] / "benchmarks" / "import_time.py"
    command = [sys.executable, str(script), "--runs", "3", "--limit", "25"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "backend ocl, devices closed"


def test_no_opencl(script: Script) -> None:
    """Without OpenCL everything imports, and using the device says what to install."""
    script(
        """
        import sys, types
        # There may be one among the installed packages.
        sys.modules["torchgraft_opencl.implementations"] = types.SimpleNamespace(offer_to=lambda library: None)
        import torch, torchgraft_opencl
        assert torch.ocl.is_available() is False and torch.ocl.device_count() == 0
        assert torch.ones(2).add(1).tolist() == [2, 2]
        try:
            torch.ones(2, device="ocl")
        except RuntimeError as error:
            assert "install" in str(error) and "pocl" in str(error).lower(), error
        else:
            raise AssertionError
        """,
        OCL_ICD_VENDORS="/nowhere",
    )


@pytest.mark.parametrize("first", ["torch", "torchgraft_opencl"])
@pytest.mark.parametrize("autoload", [False, True])
@pytest.mark.quick(autoload=True)
def test_a_core_that_does_not_load(script: Script, first: str, autoload: bool) -> None:
    """torch stays usable, and the device's first use says what is wrong."""
    script(
        f"""
        import sys
        sys.modules["torchgraft._C"] = None  # as if it did not load
        import {first}
        import torch, torchgraft_opencl
        assert torch.ones(2).sum() == 2
        assert torch.ocl.is_available() is False and torch.ocl.device_count() == 0
        assert not torch.accelerator.is_available()
        torch.manual_seed(1)
        for use in (lambda: torch.ones(2, device="ocl"), lambda: torch.ones(2).to("ocl"), torchgraft_opencl.register,
                    lambda: torch.nn.Linear(2, 2).to("ocl"), lambda: torch.ocl.init()):
            try:
                use()
            except (RuntimeError, ImportError) as error:
                assert "does not load" in str(error) and "pip install" in str(error), error
            else:
                raise AssertionError
        """,
        autoload=autoload,
        fresh=True,
    )


# ---- Entry points and autoloading ----


def install(folder: Path, package: str, entries: str, **modules: str) -> str:
    """What pip leaves behind of a distribution; returns the lines that put it on the path of a script."""
    metadata = folder / f"{package}-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(textwrap.dedent(entries))
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(textwrap.dedent(text))
    return f"import sys\nsys.path.insert(0, {str(folder)!r})\n"


NPY_DRIVERS = """
    from numpy_driver import NumpyDriver
    import torchgraft

    class One(NumpyDriver):
        name = "one"
        def __init__(self):
            super().__init__(devices=1, memory=32 << 20)

    class Two(One):
        name = "two"

    class Closed(One):
        def device_count(self):
            raise AssertionError("opened")

    two = Two()

    def several():
        return [One, (two,)]

    def fails():
        raise OSError("no licence")

    library = torchgraft.SharedLibrary("/nowhere/driver.so")
    nothing = 42
"""
BACKENDS = """
    [torch.backends]
    npy = torchgraft.autoload:autoload
"""


def test_drivers_from_entry_points(script: Script, tmp_path: Path) -> None:
    entries = """
        [torchgraft.drivers]
        npy.b = npy_drivers:two
        npy = npy_drivers:One
        other = npy_drivers:Closed
        npyx = npy_drivers:Closed
    """
    script(
        install(tmp_path, "npy-drivers", entries, npy_drivers=NPY_DRIVERS)
        + textwrap.dedent("""
            import torch, torchgraft
            module = torchgraft.register("npy")
            assert [module.get_device_properties(i).driver for i in range(module.device_count())] == ["one", "two"]
            assert torchgraft._C.device_errors() == ""
            assert torch.arange(3, device="npy:1").to("npy:0").tolist() == [0, 1, 2]
        """)
    )


def test_a_list_and_what_is_installed(script: Script, tmp_path: Path) -> None:
    script(
        install(tmp_path, "npy-drivers", "[torchgraft.drivers]\nnpy = npy_drivers:several\n", npy_drivers=NPY_DRIVERS)
        + textwrap.dedent("""
            import torch, torchgraft
            from numpy_driver import NumpyDriver
            module = torchgraft.register("npy", [NumpyDriver(devices=1), *torchgraft.installed_drivers("npy")])
            assert [module.get_device_properties(i).driver for i in range(3)] == ["numpy", "one", "two"]
            assert module.device_count() == 3
        """)
    )


def test_a_broken_entry_point_does_not_break_the_others(script: Script, tmp_path: Path) -> None:
    entries = """
        [torchgraft.drivers]
        npy.a = nowhere.at_all:Driver
        npy.b = npy_drivers:missing
        npy.c = npy_drivers:fails
        npy.d = npy_drivers:library
        npy.e = npy_drivers:nothing
        npy.f = npy_drivers:One
    """
    script(
        install(tmp_path, "npy-drivers", entries, npy_drivers=NPY_DRIVERS)
        + textwrap.dedent("""
            import torch, torchgraft
            module = torchgraft.register("npy")
            assert module.device_count() == 1 and module.get_device_properties(0).driver == "one"
            errors = torchgraft._C.device_errors().splitlines()
            assert len(errors) == 5, errors
            for line, entry, reason in zip(errors, "abcde", ["nowhere", "missing", "no licence", "/nowhere/driver.so",
                                                             "is a int"]):
                assert line.startswith(f"npy.{entry} (npy-drivers): ") and reason in line, line
            assert torch.ones(2, device="npy").sum().item() == 2
        """)
    )


def test_a_library_for_another_contract_does_not_break_the_others(script: Script, tmp_path: Path) -> None:
    source = tmp_path / "driver.c"
    source.write_text("""
        #include <torchgraft/driver.h>
        static const tg_driver table = {.abi_version = 99, .struct_size = sizeof(tg_driver), .name = "future"};
        const tg_driver* torchgraft_driver(void) { return &table; }
    """)
    include = Path(torchgraft.__file__).parent / "include"
    library = tmp_path / "libfuture.so"
    subprocess.run(["gcc", "-shared", "-fPIC", f"-I{include}", str(source), "-o", str(library)], check=True)
    modules = textwrap.dedent(NPY_DRIVERS) + f"\nfuture = torchgraft.SharedLibrary({str(library)!r})\n"
    package = install(
        tmp_path,
        "npy-drivers",
        "[torchgraft.drivers]\nnpy = npy_drivers:future\nnpy.b = npy_drivers:One\n",
        npy_drivers=modules,
    )
    script(
        package
        + textwrap.dedent("""
            import torch, torchgraft
            assert torchgraft.register("npy").device_count() == 1
            assert "built for version 99" in torchgraft._C.device_errors(), torchgraft._C.device_errors()
        """)
    )


USING_ALL = """
    from torchgraft import Dialect, Driver, RegistrationError, SharedLibrary, driver, fallback, kernel, plans, register
    from torchgraft import fallback_report, installed_drivers, register_dialect
    from numpy_driver import NumpyDriver
    assert isinstance(fallback, type) and isinstance(Driver, type)

    class Own(Dialect):
        name = "own"

    class Mine(NumpyDriver):
        pass

    @plans.composite("sinh", replace=True)
    def sinh(self):
        return self + 100
"""


@pytest.mark.parametrize("first", ["torch", "torchgraft", "torchgraft.registration.register"])
def test_what_drivers_may_import(script: Script, tmp_path: Path, first: str) -> None:
    """Whoever comes first: torch may load them while torchgraft is imported."""
    package = install(
        tmp_path, "npy-drivers", BACKENDS + "    [torchgraft.drivers]\n    npy = mine:Mine\n", mine=USING_ALL
    )
    text = f"""
        import {first}
        import torch, torchgraft
        assert torchgraft.autoload.errors == {{}}, torchgraft.autoload.errors
        assert torch.ones(3, device="npy").sum().item() == 3
        assert torch.zeros(1, device="npy").sinh().item() == 100
        assert torchgraft._C.device_errors() == "", torchgraft._C.device_errors()
        assert isinstance(torchgraft.fallback, type) and torchgraft.Dialect is sys.modules["mine"].Dialect
    """
    script(package + textwrap.dedent(text), autoload=True, TORCHGRAFT_BACKEND="npy")


def test_a_module_that_waits_for_torch(script: Script, tmp_path: Path) -> None:
    """It is imported first, and torch wants its driver before there is one."""
    package = install(
        tmp_path,
        "npy-drivers",
        BACKENDS + "    [torchgraft.drivers]\n    npy = waiting:Mine\n",
        waiting="import torch\nfrom numpy_driver import NumpyDriver\nclass Mine(NumpyDriver):\n    pass\n",
    )
    text = """
        import waiting, torch, torchgraft
        try:
            torch.ones(3, device="npy")
        except RuntimeError as error:
            print(error)
        else:
            raise AssertionError
    """
    told = script(package + textwrap.dedent(text), autoload=True, TORCHGRAFT_BACKEND="npy")
    assert "its module is being imported and has come to torch" in told
    assert "Import torch before it, or let waiting/__init__.py end with torchgraft.autoload.choose" in told


def test_no_driver_is_installed(script: Script) -> None:
    script("""
        import torch, torchgraft
        try:
            torchgraft.register("npy")
        except ValueError as error:
            assert 'entry point "npy" in the group "torchgraft.drivers"' in str(error), error
        else:
            raise AssertionError
    """)


def test_autoload_of_an_authors_package(script: Script, tmp_path: Path) -> None:
    """Two lines of metadata, and `import torch` is all that a program needs; nothing is opened by it."""
    package = install(
        tmp_path,
        "npy-drivers",
        BACKENDS + "    [torchgraft.drivers]\n    npy = npy_drivers:Closed\n    npy.b = npy_drivers:two\n",
        npy_drivers=NPY_DRIVERS,
    )
    text = """
        import torch
        assert torch.device("npy:1").type == "npy" and torch.ones(2).sum() == 2
        import torchgraft
        assert not torchgraft._C.devices_opened()
        assert torch.ones(3, device="npy").sum().item() == 3
        assert "AssertionError: opened" in torchgraft._C.device_errors()
    """
    script(package + textwrap.dedent(text), autoload=True, TORCHGRAFT_BACKEND="npy")
    switched_off = """
        import torch
        try:
            torch.device("npy")
        except RuntimeError:
            pass
        else:
            raise AssertionError
        assert "torchgraft" not in __import__("sys").modules
    """
    script(package + textwrap.dedent(switched_off), autoload=False, TORCHGRAFT_BACKEND="npy")


@pytest.mark.thorough
def test_one_of_several_installed_backends(script: Script, tmp_path: Path) -> None:
    entries = BACKENDS + "    [torchgraft.drivers]\n    aaa = npy_drivers:One\n    npy = npy_two:Two\n"
    package = install(
        tmp_path,
        "npy-drivers",
        entries,
        npy_drivers=NPY_DRIVERS,
        npy_two="import torchgraft\nfrom npy_drivers import Two",
    )

    def registered(first: str, **environment: str) -> str:
        text = f"{package}\n{first}\nimport torch\nprint(torch.accelerator.current_accelerator())"
        return script(text, autoload=True, **environment).strip()

    assert registered("") == "aaa"
    assert registered("", TORCHGRAFT_BACKEND="npy") == "npy"
    assert registered("import npy_two") == "npy"
    assert registered("import torchgraft_opencl") == "ocl"


def test_beside_another_accelerator(script: Script) -> None:
    """It keeps its place until the program asks for ours."""
    text = """
        import torch, torchgraft.autoload, sys
        torch.accelerator.device_count = lambda: 1  # as if torch had one of its own
        torchgraft.autoload.autoload()
        assert torch._C._get_privateuse1_backend_name() == "privateuseone"
        assert "torchgraft_opencl" not in sys.modules
        def fail():
            raise RuntimeError("its driver is too old")
        torch.accelerator.device_count = fail  # there, though not well
        torchgraft.autoload.autoload()
        assert torch._C._get_privateuse1_backend_name() == "privateuseone"
    """
    script(text + "    import torchgraft_opencl\n        assert torch.ones(2, device='ocl').is_ocl")
    asked = text.replace(
        "autoload.autoload()\n        assert torch._C", "autoload.autoload()\n        assert 'ocl' == torch._C", 1
    )
    asked = asked[: asked.index('== "privateuseone"')]
    script(asked, TORCHGRAFT_BACKEND="ocl")


def test_what_goes_wrong_while_autoloading_is_told_at_first_use(script: Script) -> None:
    """A backend that is asked for and has no driver; and mended later in the same process."""
    script(
        """
        import torch
        assert torch.npy.is_available() is False
        try:
            torch.ones(2, device="npy")
        except RuntimeError as error:
            assert "The device 'npy' cannot be used: the backend 'npy' needs at least one driver" in str(error), error
        else:
            raise AssertionError
        import torchgraft
        from numpy_driver import NumpyDriver
        torchgraft.register("npy", [NumpyDriver()])
        assert torch.ones(2, device="npy").sum().item() == 2 and torch.npy.is_available()
        """,
        autoload=True,
        TORCHGRAFT_BACKEND="npy",
    )


@pytest.mark.thorough
def test_an_impossible_name_while_autoloading(script: Script) -> None:
    script(
        """
        import torch, torchgraft.autoload
        assert torch.ones(2).sum() == 2
        assert "cannot name a device" in str(torchgraft.autoload.errors["my-npu"])
        """,
        autoload=True,
        TORCHGRAFT_BACKEND="my-npu",
    )


@pytest.mark.thorough
def test_a_package_whose_place_is_taken(script: Script) -> None:
    """Nothing could be told at the use of "ocl", so importing the package does."""
    script("""
        import torch, torchgraft
        from numpy_driver import NumpyDriver
        torchgraft.register("npy", [NumpyDriver()])
        try:
            import torchgraft_opencl
        except torchgraft.RegistrationError as error:
            assert "'npy' is registered already" in str(error), error
        else:
            raise AssertionError
        assert torch.ones(2, device="npy").sum().item() == 2
    """)


def test_an_author_who_registers_by_himself(script: Script, tmp_path: Path) -> None:
    """`attempt` keeps the error of a function of the author's own; `outcome` raises it."""
    script("""
        import torch, torchgraft.autoload
        from numpy_driver import NumpyDriver

        def register():
            raise LookupError("no licence file")

        torchgraft.autoload.attempt("npy", register)
        for use in (lambda: torchgraft.autoload.outcome("npy"), lambda: torch.ones(2, device="npy")):
            try:
                use()
            except (LookupError, RuntimeError) as error:
                assert "no licence file" in str(error)
            else:
                raise AssertionError
        torchgraft.autoload.attempt("npy", lambda: torchgraft.register("npy", [NumpyDriver()]))
        assert torchgraft.autoload.outcome("npy") is torch.npy and torch.npy.device_count() == 2
        try:
            torchgraft.autoload.outcome("other")
        except RuntimeError as error:
            assert "'other' has not been registered" in str(error)
        else:
            raise AssertionError
    """)
