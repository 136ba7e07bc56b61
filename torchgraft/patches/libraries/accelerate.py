"""Accelerate."""

from __future__ import annotations

import os
from functools import update_wrapper, wraps
from types import FunctionType
from typing import Any

import torch

from torchgraft import backend, distributed
from torchgraft.patches.libraries.patch import after, is_ours, keep_random_numbers, module, only_device, rather_than_cpu


@after("accelerate.state")
def accelerate_takes_the_device(state: Any) -> None:
    """Accelerate uses the CPU where none of the devices is there that it knows by name. accelerate 1.10 to 1.15
    (`PartialState.default_device`; the variable ACCELERATE_TORCH_DEVICE would have to be set at import).
    """
    plain = state.PartialState.default_device.fget

    @wraps(plain)
    def default_device(self: Any) -> torch.device:
        return rather_than_cpu(plain(self))

    state.PartialState.default_device = property(default_device)


@after("accelerate.state")
def accelerate_joins_processes(state: Any) -> None:
    """Several processes stay alone, since Accelerate has kinds of groups for CPUs and for devices that it knows only.
    Ours get that for CPUs, which asks least of a device, with the backend's collectives. accelerate 1.10 to 1.15
    (`PartialState._prepare_backend`, `set_device`, `wait_for_everyone`).
    """
    owner, kinds = state.PartialState, state.DistributedType
    plain_prepare, plain_set, plain_wait = owner._prepare_backend, owner.set_device, owner.wait_for_everyone

    @wraps(plain_prepare)
    def _prepare_backend(self: Any, cpu: bool = False, sagemaker_dp: bool = False, backend: Any = None) -> Any:
        chosen = plain_prepare(self, cpu, sagemaker_dp, backend)
        started_alone = "LOCAL_RANK" not in os.environ or cpu
        if chosen[1] != kinds.NO or started_alone or only_device() is None:
            return chosen
        return backend or distributed.NAME, kinds.MULTI_CPU

    @wraps(plain_set)
    def set_device(self: Any) -> None:
        if self.device is None and self.distributed_type == kinds.MULTI_CPU and not self._cpu and only_device():
            self.device = torch.device(backend.name(), self.local_process_index % module().device_count())
            module().set_device(self.device)
        plain_set(self)

    @wraps(plain_wait)
    def wait_for_everyone(self: Any) -> None:
        """By the device that it has: Accelerate names the accelerator's of the process's number, for CPUs too."""
        if self.distributed_type == kinds.MULTI_CPU:
            torch.distributed.barrier(device_ids=[self.device.index] if is_ours(self.device) else None)
        else:
            plain_wait(self)

    owner._prepare_backend, owner.set_device = _prepare_backend, set_device
    owner.wait_for_everyone = wait_for_everyone


@after("accelerate.commands.launch")
def accelerate_launches_processes(launch: Any) -> None:
    """`accelerate launch --num_processes 2` starts one process, since it starts several only where it knows devices.
    accelerate 1.10 to 1.15 (`_validate_launch_command`).
    """
    plain = launch._validate_launch_command

    @wraps(plain)
    def _validate_launch_command(args: Any) -> Any:
        args, *others = plain(args)
        if only_device() is not None and not (args.cpu or args.tpu or args.use_deepspeed):
            args.num_processes = args.num_processes or module().device_count()  # it has counted CUDA's
            args.multi_gpu = args.multi_gpu or args.num_processes > 1
        return args, *others

    launch._validate_launch_command = _validate_launch_command


@after("accelerate.accelerator")
def accelerate_allows_float16(accelerator: Any) -> None:
    """Accelerate refuses mixed precision in float16 on devices that are not in a list. accelerate 1.10 to 1.15
    (`supported_device` in `Accelerator.__init__`, a constant of its code, and nothing else decides).
    """
    plain: FunctionType = accelerator.Accelerator.__init__
    constants = plain.__code__.co_consts
    (known,) = [each for each in constants if isinstance(each, tuple) and {"cuda", "xpu", "npu"}.issubset(each)]
    longer = tuple((*known, backend.name()) if each is known else each for each in constants)
    code = plain.__code__.replace(co_consts=longer)
    __init__ = FunctionType(code, plain.__globals__, plain.__name__, plain.__defaults__, plain.__closure__)
    __init__.__kwdefaults__ = plain.__kwdefaults__
    accelerator.Accelerator.__init__ = update_wrapper(__init__, plain)


@after("accelerate.utils.modeling")
def accelerate_scales_gradients(modeling: Any) -> None:
    """Accelerate makes a GradScaler for CUDA, which without CUDA does nothing. accelerate 1.10 to 1.15
    (`get_grad_scaler`).
    """
    plain = modeling.get_grad_scaler

    @wraps(plain)
    def get_grad_scaler(distributed_type: Any = None, **options: Any) -> Any:
        if only_device() is None or getattr(distributed_type, "name", "NO") not in ("NO", "MULTI_CPU"):
            return plain(distributed_type, **options)
        return torch.amp.GradScaler(backend.name(), **options)

    modeling.get_grad_scaler = get_grad_scaler


@after("accelerate.utils.modeling")
def accelerate_knows_the_memory(modeling: Any) -> None:
    """`device_map="auto"` puts everything on the CPU, since Accelerate asks just those devices that it knows.
    accelerate 1.10 to 1.15 (`get_max_memory`).
    """
    plain = modeling.get_max_memory

    @wraps(plain)
    def get_max_memory(max_memory: dict[Any, Any] | None = None) -> Any:
        if only_device() is None:
            return plain(max_memory)
        numbers = range(module().device_count())
        if max_memory is not None:
            ours = {each: max_memory[each] for each in numbers if each in max_memory}
            to_bytes = modeling.convert_file_size_to_int
            sizes = {each: to_bytes(size) if isinstance(size, str) else size for each, size in ours.items()}
            return {**sizes, **plain({key: size for key, size in max_memory.items() if key not in ours})}
        others = plain(None)
        if any(module().get_device_properties(each).unified_memory for each in numbers):
            others.pop("cpu", None)  # the same memory is not to be counted twice, as with other devices of the host's
        return {**{each: module().mem_get_info(each)[0] for each in numbers}, **others}

    modeling.get_max_memory = get_max_memory


@after("accelerate.utils.memory")
def accelerate_frees_the_memory(memory: Any) -> None:
    """Accelerate empties the caches of devices that it knows, as before a smaller batch is tried.
    accelerate 1.10 to 1.15 (`clear_device_cache`).
    """
    plain = memory.clear_device_cache

    @wraps(plain)
    def clear_device_cache(*arguments: Any, **options: Any) -> None:
        plain(*arguments, **options)
        if backend.is_opened():
            module().empty_cache()

    memory.clear_device_cache = clear_device_cache


@after("accelerate.checkpointing")
def accelerate_keeps_random_numbers(checkpointing: Any) -> None:
    """Accelerate saves the random states of devices that it knows, so that what is resumed draws other numbers.
    accelerate 1.10 to 1.15 (`save_accelerator_state`, `load_accelerator_state`).
    """
    keep_random_numbers(checkpointing, "save_accelerator_state", "output_dir")
    keep_random_numbers(checkpointing, "load_accelerator_state", "input_dir")
