"""Libraries that choose a device for the program and know devices by name only: what makes them choose the backend's.

Where it is the only accelerator there is (libraries put those that they know first), a program that names no device
runs on it. A library with an interface for devices gets the device by that. Where it has none, one of its functions is
put in order here: each function says what is wrong and in which versions; tests/ecosystem/test_needed.py fails as soon
as one is needed no longer. No library is imported for this: a function is called when its module has been executed.
"""

from __future__ import annotations

import contextlib
import inspect
import os
from collections import defaultdict
from collections.abc import Callable
from functools import cached_property, update_wrapper, wraps
from pathlib import Path
from types import FunctionType
from typing import Any, cast

import torch

from torchgraft import _backend, distributed, imports

__all__ = ["PATCHES", "install", "only_device"]

Patch = Callable[[Any], None]

#: The functions, with the modules they are called with.
PATCHES: dict[Patch, tuple[str, ...]] = {}


def install() -> None:
    """A step of the registration."""
    calls: defaultdict[str, list[Patch]] = defaultdict(list)
    for patch, modules in PATCHES.items():
        for module in modules:
            calls[module].append(patch)
    imports.call_after(calls)


def _after(*modules: str) -> Callable[[Patch], Patch]:
    """Has a function called with each of the modules."""

    def decorate(patch: Patch) -> Patch:
        PATCHES[patch] = modules
        return patch

    return decorate


# ---- The question that all of them ask ----


def only_device() -> torch.device | None:
    """This thread's current device, if this backend is the only accelerator that can be used. Opens nothing."""
    others = (torch.cuda.is_available, torch.xpu.is_available, torch.backends.mps.is_available)
    if not _module().is_available() or any(is_available() for is_available in others):
        return None
    index = torch._C._accelerator_getDeviceIndex() if _backend.is_opened() else 0
    return torch.device(_backend.name(), index)


def _rather_than_cpu(device: torch.device) -> torch.device:
    """What a library is to use that has looked for all accelerators that it knows."""
    return (only_device() or device) if device.type == "cpu" else device


def _is_ours(device: Any) -> bool:
    return isinstance(device, torch.device) and device.type == _backend.name()


def _module() -> Any:
    return getattr(torch, _backend.name())


# ---- Accelerate ----


@_after("accelerate.state")
def accelerate_takes_the_device(state: Any) -> None:
    """Accelerate uses the CPU where none of the devices is there that it knows by name. accelerate 1.10 to 1.15
    (`PartialState.default_device`; the variable ACCELERATE_TORCH_DEVICE would have to be set at import).
    """
    plain = state.PartialState.default_device.fget

    @wraps(plain)
    def default_device(self: Any) -> torch.device:
        return _rather_than_cpu(plain(self))

    state.PartialState.default_device = property(default_device)


@_after("accelerate.state")
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
            self.device = torch.device(_backend.name(), self.local_process_index % _module().device_count())
            _module().set_device(self.device)
        plain_set(self)

    @wraps(plain_wait)
    def wait_for_everyone(self: Any) -> None:
        """By the device that it has: Accelerate names the accelerator's of the process's number, for CPUs too."""
        if self.distributed_type == kinds.MULTI_CPU:
            torch.distributed.barrier(device_ids=[self.device.index] if _is_ours(self.device) else None)
        else:
            plain_wait(self)

    owner._prepare_backend, owner.set_device = _prepare_backend, set_device
    owner.wait_for_everyone = wait_for_everyone


@_after("accelerate.commands.launch")
def accelerate_launches_processes(launch: Any) -> None:
    """`accelerate launch --num_processes 2` starts one process, since it starts several only where it knows devices.
    accelerate 1.10 to 1.15 (`_validate_launch_command`).
    """
    plain = launch._validate_launch_command

    @wraps(plain)
    def _validate_launch_command(args: Any) -> Any:
        args, *others = plain(args)
        if only_device() is not None and not (args.cpu or args.tpu or args.use_deepspeed):
            args.num_processes = args.num_processes or _module().device_count()  # it has counted CUDA's
            args.multi_gpu = args.multi_gpu or args.num_processes > 1
        return args, *others

    launch._validate_launch_command = _validate_launch_command


@_after("accelerate.accelerator")
def accelerate_allows_float16(accelerator: Any) -> None:
    """Accelerate refuses mixed precision in float16 on devices that are not in a list. accelerate 1.10 to 1.15
    (`supported_device` in `Accelerator.__init__`, a constant of its code, and nothing else decides).
    """
    plain: FunctionType = accelerator.Accelerator.__init__
    constants = plain.__code__.co_consts
    (known,) = [each for each in constants if isinstance(each, tuple) and {"cuda", "xpu", "npu"}.issubset(each)]
    longer = tuple((*known, _backend.name()) if each is known else each for each in constants)
    code = plain.__code__.replace(co_consts=longer)
    __init__ = FunctionType(code, plain.__globals__, plain.__name__, plain.__defaults__, plain.__closure__)
    __init__.__kwdefaults__ = plain.__kwdefaults__
    accelerator.Accelerator.__init__ = update_wrapper(__init__, plain)


@_after("accelerate.utils.modeling")
def accelerate_scales_gradients(modeling: Any) -> None:
    """Accelerate makes a GradScaler for CUDA, which without CUDA does nothing. accelerate 1.10 to 1.15
    (`get_grad_scaler`).
    """
    plain = modeling.get_grad_scaler

    @wraps(plain)
    def get_grad_scaler(distributed_type: Any = None, **options: Any) -> Any:
        if only_device() is None or getattr(distributed_type, "name", "NO") not in ("NO", "MULTI_CPU"):
            return plain(distributed_type, **options)
        return torch.amp.GradScaler(_backend.name(), **options)

    modeling.get_grad_scaler = get_grad_scaler


@_after("accelerate.utils.modeling")
def accelerate_knows_the_memory(modeling: Any) -> None:
    """`device_map="auto"` puts everything on the CPU, since Accelerate asks just those devices that it knows.
    accelerate 1.10 to 1.15 (`get_max_memory`).
    """
    plain = modeling.get_max_memory

    @wraps(plain)
    def get_max_memory(max_memory: dict[Any, Any] | None = None) -> Any:
        if only_device() is None:
            return plain(max_memory)
        numbers = range(_module().device_count())
        if max_memory is not None:
            ours = {each: max_memory[each] for each in numbers if each in max_memory}
            to_bytes = modeling.convert_file_size_to_int
            sizes = {each: to_bytes(size) if isinstance(size, str) else size for each, size in ours.items()}
            return {**sizes, **plain({key: size for key, size in max_memory.items() if key not in ours})}
        others = plain(None)
        if any(_module().get_device_properties(each).unified_memory for each in numbers):
            others.pop("cpu", None)  # the same memory is not to be counted twice, as with other devices of the host's
        return {**{each: _module().mem_get_info(each)[0] for each in numbers}, **others}

    modeling.get_max_memory = get_max_memory


@_after("accelerate.utils.memory")
def accelerate_frees_the_memory(memory: Any) -> None:
    """Accelerate empties the caches of devices that it knows, as before a smaller batch is tried.
    accelerate 1.10 to 1.15 (`clear_device_cache`).
    """
    plain = memory.clear_device_cache

    @wraps(plain)
    def clear_device_cache(*arguments: Any, **options: Any) -> None:
        plain(*arguments, **options)
        if _backend.is_opened():
            _module().empty_cache()

    memory.clear_device_cache = clear_device_cache


@_after("accelerate.checkpointing")
def accelerate_keeps_random_numbers(checkpointing: Any) -> None:
    """Accelerate saves the random states of devices that it knows, so that what is resumed draws other numbers.
    accelerate 1.10 to 1.15 (`save_accelerator_state`, `load_accelerator_state`).
    """
    _keep_random_numbers(checkpointing, "save_accelerator_state", "output_dir")
    _keep_random_numbers(checkpointing, "load_accelerator_state", "input_dir")


# ---- Transformers ----


@_after("transformers.training_args")
def trainer_takes_the_device(training_args: Any) -> None:
    """The Trainer uses the CPU where none of the devices is there that it knows by name, whatever Accelerate chose.
    transformers 4.57 to 5.23 (`TrainingArguments._setup_devices`).
    """
    plain = training_args.TrainingArguments._setup_devices.func

    @wraps(plain)
    def _setup_devices(self: Any) -> torch.device:
        device: torch.device = plain(self)
        chosen = getattr(self.distributed_state, "device", None)
        if device.type != "cpu" or not _is_ours(chosen):
            return device
        self._n_gpu = 1
        return cast(torch.device, chosen)

    replacement = cached_property(_setup_devices)
    replacement.__set_name__(training_args.TrainingArguments, "_setup_devices")
    training_args.TrainingArguments._setup_devices = replacement


@_after("transformers.utils.import_utils")
def transformers_computes_in_bfloat16(import_utils: Any) -> None:
    """`TrainingArguments(bf16=True)` raises ValueError, since transformers asks only devices that it knows.
    transformers 4.57 to 5.23 (`is_torch_bf16_gpu_available`).
    """
    plain = import_utils.is_torch_bf16_gpu_available

    @wraps(plain)
    def is_torch_bf16_gpu_available() -> bool:
        return plain() or (only_device() is not None and _module().is_bf16_supported())

    import_utils.is_torch_bf16_gpu_available = is_torch_bf16_gpu_available


@_after("transformers.trainer")
def trainer_keeps_random_numbers(trainer: Any) -> None:
    """The Trainer saves the random states of devices that it knows, so that training that is resumed draws other
    numbers. transformers 4.57 to 5.23 (`Trainer._save_rng_state`, `_load_rng_state`).
    """
    _keep_random_numbers(trainer.Trainer, "_save_rng_state", "output_dir")
    _keep_random_numbers(trainer.Trainer, "_load_rng_state", "checkpoint")


@_after("transformers.pipelines.base")
def pipelines_take_the_device(base: Any) -> None:
    """`pipeline(...)` and `pipeline(..., device=0)` use the CPU where transformers knows no device by name.
    transformers 4.57 to 5.23 (`Pipeline.__init__`).
    """
    plain = base.Pipeline.__init__
    signature = inspect.signature(plain)

    @wraps(plain)
    def __init__(self: Any, *arguments: Any, **options: Any) -> None:
        given = signature.bind_partial(self, *arguments, **options)
        number = given.arguments.get("device")
        places = getattr(given.arguments.get("model"), "hf_device_map", None)
        ours = only_device() if number is None or (isinstance(number, int) and number >= 0) else None
        if ours is not None and places is None:
            given.arguments["device"] = ours if number is None else torch.device(ours.type, number)
        plain(*given.args, **given.kwargs)
        if ours is not None and places and isinstance(first := next(iter(places.values())), int):
            self.device = torch.device(ours.type, first)  # where transformers sends inputs; no device can be given then

    base.Pipeline.__init__ = __init__


# ---- Sentence Transformers ----


@_after("sentence_transformers.util.environment")
def sentence_transformers_take_the_device(environment: Any) -> None:
    """`SentenceTransformer(...)` uses the CPU where none of the devices is there that it knows by name.
    sentence-transformers 5.2 to 6.2 (`get_device_name`).
    """
    plain = environment.get_device_name

    @wraps(plain)
    def get_device_name() -> str:
        return str(_rather_than_cpu(torch.device(plain())))

    environment.get_device_name = get_device_name


# ---- safetensors ----


@_after("safetensors")
def safetensors_open_on_the_device(safetensors: Any) -> None:
    """`safe_open` and `load_file` refuse names of devices that they do not know, and take them as numbers.
    safetensors 0.5 to 0.8 (bindings/python/src/lib.rs).
    """
    plain = safetensors.safe_open

    @wraps(plain, updated=())
    def safe_open(filename: Any, framework: str, device: Any = "cpu", **options: Any) -> Any:
        with contextlib.suppress(RuntimeError, TypeError):  # what names no device is for safetensors to refuse
            if _is_ours(torch.device(device)):
                device = _backend.device_index(device)
        return plain(filename, framework, device=device, **options)

    safetensors.safe_open = safe_open


# ---- Lightning ----


@_after("lightning.fabric.accelerators", "lightning_fabric.accelerators")
def fabric_knows_the_device(accelerators: Any) -> None:
    """Fabric's register of accelerators, which is its interface for devices. lightning 2.4 to 2.6."""
    _register(accelerators.ACCELERATOR_REGISTRY, accelerators.Accelerator)


@_after("lightning.pytorch.accelerators", "pytorch_lightning.accelerators")
def lightning_knows_the_device(accelerators: Any) -> None:
    """The same of Lightning's Trainer, another register of other classes. lightning 2.4 to 2.6."""
    _register(accelerators.AcceleratorRegistry, accelerators.Accelerator)


@_after("lightning.fabric.connector", "lightning_fabric.connector")
def fabric_takes_the_device(connector: Any) -> None:
    """Fabric knows registered devices, but puts modules on the CPU and precision on CUDA, and never chooses them.
    lightning 2.4 to 2.6 (`_Connector`).
    """
    _connect(connector, connector._Connector, "_precision_instance", "_precision_input")


@_after(
    "lightning.pytorch.trainer.connectors.accelerator_connector",
    "pytorch_lightning.trainer.connectors.accelerator_connector",
)
def lightning_takes_the_device(connector: Any) -> None:
    """The Trainer knows registered devices, but puts modules on the CPU and precision on CUDA, and never chooses them.
    lightning 2.4 to 2.6 (`_AcceleratorConnector`).
    """
    _connect(connector, connector._AcceleratorConnector, "_precision_plugin_flag", "_precision_flag")


@_after("lightning.fabric.strategies.ddp", "lightning_fabric.strategies.ddp")
def fabric_parallelizes_on_the_device(ddp: Any) -> None:
    """Fabric names the device to DistributedDataParallel, and makes a stream of CUDA for it where it has named one; on
    the CPU it names none. lightning 2.4 to 2.6 (`DDPStrategy._determine_ddp_device_ids`).
    """
    _name_no_device(ddp.DDPStrategy, "_determine_ddp_device_ids")


@_after("lightning.pytorch.strategies.ddp", "pytorch_lightning.strategies.ddp")
def lightning_parallelizes_on_the_device(ddp: Any) -> None:
    """The same of Lightning's Trainer. lightning 2.4 to 2.6 (`DDPStrategy.determine_ddp_device_ids`)."""
    _name_no_device(ddp.DDPStrategy, "determine_ddp_device_ids")


def _name_no_device(owner: Any, name: str) -> None:
    plain = getattr(owner, name)

    @wraps(plain)
    def device_ids(self: Any) -> Any:
        return None if _is_ours(self.root_device) else plain(self)

    setattr(owner, name, device_ids)


def _register(registry: Any, base: type) -> None:
    if _backend.name() not in registry:
        name = _backend.name()
        made = type(f"{name.capitalize()}Accelerator", (_Devices, base), {"__doc__": _Devices.__doc__})
        registry.register(name, made, description=f"Devices {name}")


class _Devices:
    """Lightning's accelerator for the backend; together with Lightning's abstract class."""

    def setup_device(self, device: torch.device) -> None:
        if not _is_ours(device):
            raise ValueError(f"Device should be {_backend.name()}, got {device} instead.")
        _module().set_device(device)

    def teardown(self) -> None:
        _module().empty_cache()

    def get_device_stats(self, device: torch.device | str | int) -> dict[str, Any]:
        stats: dict[str, Any] = _module().memory_stats(device)
        return stats

    @staticmethod
    def parse_devices(devices: int | str | list[int]) -> list[int]:
        """The devices' numbers: a list of them, or a text with commas; a single number says how many processes there
        are, which share devices where there are fewer, -1 one for each device."""
        if isinstance(devices, str):
            devices = [int(each) for each in devices.split(",") if each] if "," in devices else int(devices)
        if isinstance(devices, int):
            count = _module().device_count()
            devices = [number % count for number in range(count if devices == -1 else devices)]
        return list(devices)

    @staticmethod
    def get_parallel_devices(devices: list[int]) -> list[torch.device]:
        return [torch.device(_backend.name(), index) for index in devices]

    @staticmethod
    def auto_device_count() -> int:
        return int(_module().device_count())

    @staticmethod
    def is_available() -> bool:
        return bool(_module().is_available())

    @staticmethod
    def name() -> str:
        return _backend.name()


def _connect(connector: Any, owner: Any, precision_plugin: str, precision: str) -> None:
    """Puts a class in order that connects accelerator, strategy and precision.

    Args:
        connector: the module.
        owner: the class, much the same in both packages.
        precision_plugin: its attribute for a plugin that was given.
        precision: its attribute for the precision's name.
    """
    choose_auto, choose_gpu = owner._choose_auto_accelerator, owner._choose_gpu_accelerator_backend
    choose_strategy, init_precision = owner._choose_strategy, owner._check_and_init_precision

    @wraps(choose_auto)
    def _choose_auto_accelerator() -> str:
        chosen: str = choose_auto()
        return _backend.name() if chosen == "cpu" and only_device() is not None else chosen

    @wraps(choose_gpu)
    def _choose_gpu_accelerator_backend() -> Any:
        try:
            return choose_gpu()
        except Exception as error:
            if only_device() is not None:
                name = _backend.name()
                raise type(error)(f'{error} For {name}:0, pass accelerator="{name}", or "auto".') from None
            raise

    @wraps(choose_strategy)
    def _choose_strategy(self: Any) -> Any:
        if isinstance(self.accelerator, _Devices) and self._num_nodes_flag == 1 and len(self._parallel_devices) == 1:
            return connector.SingleDeviceStrategy(device=self._parallel_devices[0])
        return choose_strategy(self)

    @wraps(init_precision)
    def _check_and_init_precision(self: Any) -> Any:
        wanted = getattr(self, precision)
        mixed = wanted in ("16-mixed", "bf16-mixed") and getattr(self, precision_plugin) is None
        if mixed and isinstance(self.accelerator, _Devices):
            setattr(self, precision_plugin, connector.MixedPrecision(wanted, _backend.name()))
        return init_precision(self)

    owner._choose_auto_accelerator = staticmethod(_choose_auto_accelerator)
    owner._choose_gpu_accelerator_backend = staticmethod(_choose_gpu_accelerator_backend)
    owner._choose_strategy = _choose_strategy
    owner._check_and_init_precision = _check_and_init_precision


# ---- What several of them need ----


def _keep_random_numbers(owner: Any, name: str, folder: str) -> None:
    """Has a function that saves or loads a checkpoint do so with the states of our generators.

    Args:
        folder: its parameter with the checkpoint's folder.
    """
    plain = getattr(owner, name)
    signature = inspect.signature(plain)
    exchange = _load_random_numbers if "load" in name else _save_random_numbers

    @wraps(plain)
    def with_random_numbers(*arguments: Any, **options: Any) -> Any:
        given = signature.bind(*arguments, **options).arguments[folder]
        result = plain(*arguments, **options)
        if given is not None and _backend.is_opened():
            exchange(Path(given) / f"{_backend.name()}_random_states_{os.environ.get('RANK', '0')}.pt")
        return result

    setattr(owner, name, with_random_numbers)


def _save_random_numbers(file: Path) -> None:
    torch.save(_module().get_rng_state_all(), file)


def _load_random_numbers(file: Path) -> None:
    if file.is_file():
        _module().set_rng_state_all(torch.load(file, weights_only=True))
