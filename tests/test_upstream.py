"""Each patch of PyTorch is still needed: without it, PyTorch shows the fault. A test that fails here names a patch that
can go from torchgraft/patches/upstream.py (for the versions of torch that have the fault no longer)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import torch
from conftest import Script
from torch.utils.dlpack import DLDeviceType

from torchgraft.patches import upstream
from torchgraft.plans.versions import HERE
from torchgraft.serialization import backend_meta, set_backend_meta


def unpatched(function: Any) -> Any:
    """PyTorch's own function, which functools.wraps has kept."""
    return function.__wrapped__


@pytest.fixture
def tensor(device: str) -> torch.Tensor:
    return torch.arange(3.0, device=device)


def test_unnamed_groups_serve_the_cpu() -> None:
    from torch.distributed.distributed_c10d import Backend, BackendConfig

    name = torch._C._get_privateuse1_backend_name()
    config = BackendConfig.__new__(BackendConfig)
    unpatched(BackendConfig.__init__)(config, Backend.UNDEFINED)
    assert list(config.device_backend_map) == [name]
    assert list(BackendConfig(Backend.UNDEFINED).device_backend_map) == ["cpu", name]
    assert list(BackendConfig("gloo").device_backend_map) == Backend.backend_capability["gloo"]


@pytest.mark.parametrize("patched", [False, True] if HERE == (2, 13) else [True])
def test_mixed_groups_have_a_default_backend(
    device: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], patched: bool
) -> None:
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import Backend

    if not patched:
        plain = {name: plugin for name, plugin in Backend._plugins.items() if name.isupper()}
        monkeypatch.setattr(Backend, "_plugins", plain)
    backends = f"cpu:gloo,{torch.device(device).type}:graft"
    dist.init_process_group(backends, store=dist.HashStore(), rank=0, world_size=1)
    dist.destroy_process_group()
    assert ("No backend of type" in capfd.readouterr().err) is not patched


def test_monitored_barriers_ask_for_what_they_need() -> None:
    import torch.distributed as dist

    dist.init_process_group("graft", store=dist.HashStore(), rank=0, world_size=1)
    try:
        if HERE < (2, 14):
            with pytest.raises(ValueError, match="only implemented for GLOO"):
                unpatched(dist.monitored_barrier)()
        dist.monitored_barrier()
        dist.monitored_barrier(timeout=timedelta(seconds=3), wait_all_ranks=True)
    finally:
        dist.destroy_process_group()


@pytest.mark.quick(patched=True)
@pytest.mark.parametrize("patched", [False, True])
def test_meshes_share_devices(device: str, script: Script, patched: bool) -> None:
    output = script(
        f"""
        import os, torch
        from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

        os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="localhost", MASTER_PORT="0", LOCAL_RANK="7")
        if not {patched}:
            DeviceMesh._setup_world_group_and_device = DeviceMesh._setup_world_group_and_device.__wrapped__
        name = torch.accelerator.current_accelerator().type
        count = torch.get_device_module(name).device_count()
        try:
            init_device_mesh(name, (1,))
            print(torch.accelerator.current_device_index() == 7 % count)
        except RuntimeError as error:
            print("refused", error)
        """,
        autoload=True,
    )
    assert ("True" if patched else "refused") in output


def test_gradients_are_exchanged_in_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """parallel_checks.py trains with them."""
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: False)  # as torch for the CPU has it
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
    from torch.nn.parallel import DistributedDataParallel

    model = DistributedDataParallel.__new__(DistributedDataParallel)
    torch.nn.Module.__init__(model)
    model.logger = None
    check, name = DistributedDataParallel._check_comm_hook, torch._C._get_privateuse1_backend_name()
    model.device_type = name
    with pytest.raises(TypeError, match="BF16"):
        unpatched(check)(model, bf16_compress_hook)
    check(model, bf16_compress_hook)
    model.device_type = "cpu"
    with pytest.raises(TypeError, match="BF16"):
        check(model, bf16_compress_hook)


def test_dlpack_knows_the_device(tensor: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="Unknown device type"):
        unpatched(torch.Tensor.__dlpack_device__)(tensor)
    assert tensor.__dlpack_device__() == (DLDeviceType.kDLExtDev, tensor.device.index)


def test_dlpack_offers_host_memory(script: Script) -> None:
    script("""
        import torch, torchgraft
        from numpy_driver import NumpyDriver

        torchgraft.register("npy", [NumpyDriver(unified=True)])
        tensor = torch.arange(3.0, device="npy")
        copied = torch.from_dlpack(torch.Tensor.__dlpack__.__wrapped__(tensor, dl_device=(1, 0)))
        shared = torch.from_dlpack(tensor.__dlpack__(dl_device=(1, 0)))
        assert copied.device.type == shared.device.type == "cpu" and copied.tolist() == shared.tolist() == [0, 1, 2]
        assert copied.data_ptr() != tensor.data_ptr() == shared.data_ptr()
    """)


def test_dlpack_refuses_foreign_memory(tensor: torch.Tensor) -> None:
    host = torch.ones(3)
    capsule = _claim(host, tensor.device.index)
    with pytest.raises(BufferError, match="did not allocate"):
        torch._C._from_dlpack(capsule)
    accepted = unpatched(torch._C._from_dlpack)(_claim(host, tensor.device.index))
    assert accepted.device == tensor.device and accepted.data_ptr() == host.data_ptr()


def test_deepcopy_carries_fields(tensor: torch.Tensor) -> None:
    set_backend_meta(tensor, {"a": 1})
    assert backend_meta(unpatched(torch.Tensor.__deepcopy__)(tensor, {})) == {}
    assert backend_meta(tensor.__deepcopy__({})) == {"a": 1}


def test_flex_attention_knows_the_device(tensor: torch.Tensor) -> None:
    """tests/test_attention.py compares what it computes then."""
    from torch.nn.attention import flex_attention

    with pytest.raises(ValueError, match="only supported on"):
        unpatched(flex_attention._validate_device)(tensor, tensor, tensor)
    flex_attention._validate_device(tensor, tensor, tensor)
    with pytest.raises(ValueError, match="only supported on"):
        flex_attention._validate_device(*[torch.ones(2, device="meta")] * 3)


def test_triton_asks_registered_devices(device: str) -> None:
    """tests/test_triton_compile.py compiles kernels then."""
    pytest.importorskip("triton", reason="needs triton: pip install 'torchgraft[triton]'")
    if device not in ("ocl", "cxx"):
        pytest.skip("the device has no compiler")
    from torch.utils._triton import has_triton

    assert has_triton()
    if HERE < (2, 14):
        assert not unpatched(unpatched(has_triton))()  # a cache around it


def test_enumerations_know_the_name(script: Script) -> None:
    """By torch itself."""
    script("""
        import torch, torchgraft
        from torch.autograd import DeviceType
        from torch.profiler import ProfilerActivity
        from numpy_driver import NumpyDriver

        torchgraft.register("npy", [NumpyDriver()])
        assert DeviceType.NPY == DeviceType.PrivateUse1 and ProfilerActivity.NPY == ProfilerActivity.PrivateUse1
    """)


def test_every_patch_is_tested_here() -> None:
    assert {f"test_{patch.__name__}" for patch in upstream.PATCHES} <= set(globals())
    assert all(patch.__doc__ and "torch 2." in patch.__doc__ for patch in upstream.PATCHES)


def test_torch_without_a_backend_is_torch(script: Script) -> None:
    script("""
        import torch, torchgraft

        functions = (
            torch.Tensor.__dlpack__, torch.Tensor.__dlpack_device__, torch.Tensor.__deepcopy__, torch._C._from_dlpack
        )
        assert not any(hasattr(function, "__wrapped__") for function in functions)
    """)


def test_other_devices_go_the_way_they_went(tensor: torch.Tensor) -> None:
    """Also subclasses with a __torch_function__, which is asked as before."""
    host = torch.ones(3)
    assert host.__dlpack_device__() == (DLDeviceType.kDLCPU, 0)
    assert torch.from_dlpack(host).data_ptr() == host.data_ptr()
    with pytest.raises(AssertionError, match="cpu"):
        host.__dlpack__(stream=3)

    asked = []

    class Watching(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            asked.append(getattr(function, "__name__", str(function)))
            return super().__torch_function__(function, types, args, kwargs or {})

    watched = tensor.as_subclass(Watching)
    assert watched.__dlpack_device__() == (DLDeviceType.kDLExtDev, tensor.device.index)
    assert "__dlpack_device__" in asked


def _claim(host: torch.Tensor, index: int) -> Any:
    from test_dlpack import make_capsule

    return make_capsule(host.data_ptr(), host.numel(), (DLDeviceType.kDLExtDev, index))


IMPORTED = """
import sys
import torch

def imports(call):
    before = set(sys.modules)
    call()
    return "torch._dynamo" in set(sys.modules) - before
"""


@pytest.mark.thorough
def test_references_import_no_tracer(script: Script) -> None:
    """PyTorch does without a backend; with one, functions that are compiled are traced as ever."""
    assert script(IMPORTED + "print(imports(lambda: torch.ones(3, device='meta') + 1))").strip() == "True"
    script(
        IMPORTED
        + """
assert not imports(lambda: torch.ones(3, device='meta') + 1)
import torch._dynamo

reference = torch._refs.add
assert reference(torch.ones(3), 1).tolist() == [2, 2, 2]
(wrapper,) = [cell.cell_contents for cell in reference.__closure__ if hasattr(cell.cell_contents, "__wrapped__")]
assert "untraced" not in repr(wrapper.__wrapped__.__dynamo_disable), "torch's own is back"
""",
        autoload=True,
    )
