"""Registering a backend: the name, the order of things, what goes wrong and what is said then."""

from __future__ import annotations

import pytest
import torch
from conftest import Script

import torchgraft
from torchgraft import registration


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


def test_a_failing_step_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("the moon is in the wrong place")

    with pytest.raises(torchgraft.RegistrationError, match='"install the runtime": the moon'):
        registration._step("install the runtime", fail)


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
                    "torch.npy.current_device()", "torch.npy.Stream()", "torch.npy.synchronize()"):
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


@pytest.mark.parametrize("first", ["torch", "torchgraft", "torchgraft_opencl", "torchgraft.registration", "torch.nn"])
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


def test_an_error_at_import_is_kept_for_the_first_use(script: Script) -> None:
    script("""
        import sys
        sys.modules["torchgraft._C"] = None  # as if it did not load
        import torch, torchgraft_opencl
        assert torch.ocl.is_available() is False
        for use in (lambda: torch.ones(2, device="ocl"), lambda: torch.ones(2).to("ocl"), torchgraft_opencl.register):
            try:
                use()
            except (RuntimeError, ImportError) as error:
                assert "does not load" in str(error) and "pip install" in str(error), error
            else:
                raise AssertionError
    """)
