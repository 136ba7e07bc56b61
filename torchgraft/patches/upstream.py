"""Faults of PyTorch that cannot be gone round from outside: the only monkeypatches there are.

Each function here puts one of PyTorch's functions in order for tensors of the backend and leaves it as it is for all
others. It says what is wrong, in which versions of torch; tests/test_upstream.py fails as soon as one is needed no
longer. Registering a backend applies them, so a process without a backend keeps PyTorch unchanged.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import cache, wraps
from types import CodeType, FunctionType
from typing import Any

import torch
import torch._compile
from torch.overrides import has_torch_function_unary

from torchgraft import backend
from torchgraft._core import _C, minor
from torchgraft.distributed import NAME
from torchgraft.patches import imports

__all__ = ["PATCHES", "apply"]


def dlpack_knows_the_device() -> None:
    """`Tensor.__dlpack_device__` knows devices from outside as "privateuse1" only, not by the name they were given, so
    that `torch.from_dlpack(tensor)` raises ValueError. torch 2.13 to 2.15 (torch/_tensor.py).
    """
    plain = torch.Tensor.__dlpack_device__

    @wraps(plain)
    def __dlpack_device__(self: torch.Tensor) -> Any:
        if not _is_ours(self):
            return plain(self)
        from torchgraft.device_module import dlpack

        return dlpack.device_of(self)

    torch.Tensor.__dlpack_device__ = __dlpack_device__  # type: ignore[method-assign]


def dlpack_offers_host_memory() -> None:
    """`Tensor.__dlpack__` always copies to reach the host, as if no device but the CPU had memory that the host can
    read, and orders streams for CUDA only. No hook for either. torch 2.13 to 2.15 (torch/_tensor.py).
    """
    plain = torch.Tensor.__dlpack__

    @wraps(plain)
    def __dlpack__(self: torch.Tensor, **options: Any) -> Any:
        if not _is_ours(self):
            return plain(self, **options)
        from torchgraft.device_module import dlpack

        return dlpack.export(plain, self, **options)

    torch.Tensor.__dlpack__ = __dlpack__  # type: ignore[method-assign]


def dlpack_refuses_foreign_memory() -> None:
    """A capsule of type kDLExtDev becomes a tensor of the backend whoever made it; using it reads wild addresses.
    torch 2.13 to 2.15 (aten/src/ATen/DLConvertor.cpp asks no hook about it).
    """
    plain = torch._C._from_dlpack

    @wraps(plain)
    def _from_dlpack(capsule: Any) -> torch.Tensor:
        from torchgraft.device_module import dlpack

        return dlpack.refuse_foreign_memory(plain(capsule))

    torch._C._from_dlpack = _from_dlpack  # type: ignore[assignment]


def deepcopy_carries_fields() -> None:
    """`Tensor.__deepcopy__` makes the copy from the storage and forgets the BackendMeta, which pickling and
    `Parameter.__deepcopy__` keep. torch 2.13 to 2.15 (torch/_tensor.py).
    """
    plain: Callable[..., Any] = torch.Tensor.__deepcopy__

    @wraps(plain)
    def __deepcopy__(self: torch.Tensor, memo: dict[int, Any]) -> torch.Tensor:
        copy: torch.Tensor = plain(self, memo)
        if _is_ours(self):
            _C.carry_backend_meta(self, copy)
        return copy

    torch.Tensor.__deepcopy__ = __deepcopy__  # type: ignore[method-assign]


def references_import_no_tracer() -> None:
    """Torch's reference functions, which are its meta functions of elementwise ops, import torch._dynamo (a second)
    when they are called, to keep it from tracing them. What has not been imported traces nothing; once it is there,
    everything is as torch has it. torch 2.13 to 2.15 (torch/_compile.py, `_disable_dynamo`).
    """
    wrappers = [code for code in torch._compile._disable_dynamo.__code__.co_consts if isinstance(code, CodeType)]
    for module in [module for name, module in sys.modules.items() if name.startswith("torch._refs")]:
        for reference in list(vars(module).values()):
            for function in _closed_over(reference):
                if function.__code__ in wrappers:
                    _leave_untraced(function)


def _leave_untraced(disabled: FunctionType) -> None:
    """Has a wrapper call its function as it is until there is a tracer."""
    function: Any = disabled.__wrapped__  # type: ignore[attr-defined]

    def untraced(*args: Any, **kwargs: Any) -> Any:
        if "torch._dynamo" not in sys.modules:
            return function(*args, **kwargs)
        if function.__dict__.get("__dynamo_disable") is untraced:
            del function.__dynamo_disable
        return disabled(*args, **kwargs)

    function.__dict__.setdefault("__dynamo_disable", untraced)  # which is what the wrapper calls


def _closed_over(value: Any) -> Iterator[FunctionType]:
    """A function, and those that it wraps."""
    if not isinstance(value, FunctionType):
        return
    yield value
    for cell in value.__closure__ or ():
        yield from _closed_over(cell.cell_contents)


def flex_attention_knows_the_device() -> None:
    """`flex_attention` refuses devices that are not on a list in its own source, though what it does without inductor
    is made of ops that every device has. torch 2.13 to 2.15 (torch/nn/attention/flex_attention.py).
    """
    imports.call_after({"torch.nn.attention.flex_attention": [_let_flex_attention_in]})  # which is slow to import


def _let_flex_attention_in(flex_attention: Any) -> None:
    """`flex_attention` takes the backend's tensors."""
    plain, ours = flex_attention._validate_device, backend.name()

    @wraps(plain)
    def _validate_device(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        if query.device.type != ours:  # in words that torch.compile traces
            plain(query, key, value)

    flex_attention._validate_device = _validate_device


def triton_asks_registered_devices() -> None:
    """`torch.utils._triton.has_triton`, by which Dynamo decides whether to trace calls of Triton's kernels, asks the
    devices of a list in its own source alone. torch 2.13 (torch/utils/_triton.py; 2.14 asks those that are registered).
    """
    imports.call_after({"torch.utils._triton": [_let_triton_ask]})


def _let_triton_ask(triton: Any) -> None:
    """Dynamo traces calls of Triton's kernels for torch's own devices alone."""
    plain = triton.has_triton

    @cache
    @wraps(plain)
    def has_triton() -> bool:
        if plain():
            return True
        from torch._inductor import config

        if not triton.has_triton_package() or config.triton_disable_device_detection:
            return False
        from torchgraft.inductor.interface import Interface

        return Interface.is_available() and Interface.is_triton_capable()

    triton.has_triton = has_triton


def unnamed_groups_serve_the_cpu() -> None:
    """`torch.distributed.init_process_group()` without a backend's name makes a group for the accelerator's tensors
    alone, so that a program that uses the CPU's stops working when a device is installed. torch 2.13 to 2.15
    (torch/distributed/distributed_c10d.py, `BackendConfig`).
    """
    if not torch.distributed.is_available():
        return
    from torch.distributed.distributed_c10d import Backend, BackendConfig

    plain, alone = BackendConfig.__init__, [backend.name()]

    @wraps(plain)
    def __init__(self: Any, backend: Any) -> None:
        plain(self, backend)
        served = self.device_backend_map
        if str(backend) == Backend.UNDEFINED and list(served) == alone:
            self.device_backend_map = {"cpu": Backend(Backend.GLOO), **served}

    BackendConfig.__init__ = __init__  # type: ignore[method-assign]


def mixed_groups_have_a_default_backend() -> None:
    """A group of several backends, as "cpu:gloo,ocl:graft", is to have the one from outside as its default: torch looks
    for the first key of its table of these, which are in capitals, among names in small letters. Without a default such
    a group warns when it ends: "No backend of type 0 found". torch 2.13 (torch/distributed/distributed_c10d.py,
    `_new_process_group_helper`).
    """
    if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
        return
    from torch.distributed.distributed_c10d import Backend

    known = Backend._plugins
    Backend._plugins = {NAME: known[NAME.upper()], **known}


def monitored_barriers_ask_for_what_they_need() -> None:
    """`torch.distributed.monitored_barrier` refuses every group whose backend is not called "gloo", also one that has
    such a barrier. torch 2.13 (torch/distributed/distributed_c10d.py; 2.14 asks what the group can).
    """
    if not torch.distributed.is_available():
        return
    from torch.distributed import distributed_c10d

    plain = distributed_c10d.monitored_barrier

    @wraps(plain)
    def monitored_barrier(group: Any = None, timeout: Any = None, wait_all_ranks: bool = False) -> Any:
        own: Any = group if group is not None else torch.distributed.group.WORLD
        if own is None or torch.distributed.get_rank(own) < 0 or torch.distributed.get_backend(own) != NAME:
            return plain(group, timeout, wait_all_ranks)
        patience = timeout if timeout is not None else distributed_c10d.default_pg_timeout
        if isinstance(patience, float):
            patience = timedelta(seconds=patience)
        distributed_c10d._check_valid_timeout(patience)
        return own.monitored_barrier(patience, wait_all_ranks=wait_all_ranks)

    distributed_c10d.monitored_barrier = monitored_barrier
    torch.distributed.monitored_barrier = monitored_barrier


def meshes_share_devices() -> None:
    """`init_device_mesh` in a process that has not chosen a device chooses that of the number LOCAL_RANK, which is an
    error where more processes than devices share a machine, as they may without NCCL. torch 2.13 to 2.15
    (torch/distributed/device_mesh.py, `DeviceMesh._setup_world_group_and_device`).
    """
    if not torch.distributed.is_available():
        return
    from torch.distributed.device_mesh import DeviceMesh

    plain: Callable[..., Any] = DeviceMesh._setup_world_group_and_device

    @wraps(plain)
    def _setup_world_group_and_device(self: Any) -> Any:
        number = os.environ.get("LOCAL_RANK", "")
        module = getattr(torch, backend.name())
        if self.device_type == backend.name() and number.isdecimal() and not module.is_initialized():
            module.set_device(int(number) % module.device_count())
        return plain(self)

    DeviceMesh._setup_world_group_and_device = _setup_world_group_and_device  # type: ignore[method-assign]


def gradients_are_exchanged_in_bfloat16() -> None:
    """DistributedDataParallel refuses the hooks `bf16_compress_hook` and its wrapper, by their names, where torch is
    built without NCCL and XCCL, though gloo adds bfloat16. torch 2.13 to 2.15 (torch/nn/parallel/distributed.py,
    `_check_comm_hook`).
    """
    if not torch.distributed.is_available():
        return
    from torch.nn.parallel import DistributedDataParallel

    plain: Callable[..., Any] = DistributedDataParallel._check_comm_hook

    @wraps(plain)
    def _check_comm_hook(self: Any, hook: Any) -> None:
        if self.device_type == backend.name() and "bf16" in getattr(hook, "__name__", ""):
            signature, hook = inspect.signature(hook), lambda state, bucket: None
            hook.__signature__ = signature
        plain(self, hook)

    DistributedDataParallel._check_comm_hook = _check_comm_hook  # type: ignore[method-assign]


_OF_2_13 = (
    (
        mixed_groups_have_a_default_backend,
        monitored_barriers_ask_for_what_they_need,
        triton_asks_registered_devices,
    )
    if minor(torch.__version__) == (2, 13)
    else ()
)

PATCHES: tuple[Callable[[], None], ...] = (
    unnamed_groups_serve_the_cpu,
    *_OF_2_13,
    meshes_share_devices,
    gradients_are_exchanged_in_bfloat16,
    dlpack_knows_the_device,
    dlpack_offers_host_memory,
    dlpack_refuses_foreign_memory,
    deepcopy_carries_fields,
    references_import_no_tracer,
    flex_attention_knows_the_device,
)


def apply() -> None:
    """All of them; a step of the registration."""
    for patch in PATCHES:
        patch()


def _is_ours(tensor: torch.Tensor) -> bool:
    # A subclass with a __torch_function__ answers first; what it then does comes here again.
    return not has_torch_function_unary(tensor) and tensor.device.type == backend.name()
