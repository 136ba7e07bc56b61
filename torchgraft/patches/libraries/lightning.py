"""Lightning, and its Fabric."""

from __future__ import annotations

from functools import wraps
from typing import Any

import torch

from torchgraft import backend
from torchgraft.patches.libraries.patch import after, is_ours, module, only_device


@after("lightning.fabric.accelerators", "lightning_fabric.accelerators")
def fabric_knows_the_device(accelerators: Any) -> None:
    """Fabric's register of accelerators, which is its interface for devices. lightning 2.4 to 2.6."""
    _register(accelerators.ACCELERATOR_REGISTRY, accelerators.Accelerator)


@after("lightning.pytorch.accelerators", "pytorch_lightning.accelerators")
def lightning_knows_the_device(accelerators: Any) -> None:
    """The same of Lightning's Trainer, another register of other classes. lightning 2.4 to 2.6."""
    _register(accelerators.AcceleratorRegistry, accelerators.Accelerator)


@after("lightning.fabric.connector", "lightning_fabric.connector")
def fabric_takes_the_device(connector: Any) -> None:
    """Fabric knows registered devices, but puts modules on the CPU and precision on CUDA, and never chooses them.
    lightning 2.4 to 2.6 (`_Connector`).
    """
    _connect(connector, connector._Connector, "_precision_instance", "_precision_input")


@after(
    "lightning.pytorch.trainer.connectors.accelerator_connector",
    "pytorch_lightning.trainer.connectors.accelerator_connector",
)
def lightning_takes_the_device(connector: Any) -> None:
    """The Trainer knows registered devices, but puts modules on the CPU and precision on CUDA, and never chooses them.
    lightning 2.4 to 2.6 (`_AcceleratorConnector`).
    """
    _connect(connector, connector._AcceleratorConnector, "_precision_plugin_flag", "_precision_flag")


@after("lightning.fabric.strategies.ddp", "lightning_fabric.strategies.ddp")
def fabric_parallelizes_on_the_device(ddp: Any) -> None:
    """Fabric names the device to DistributedDataParallel, and makes a stream of CUDA for it where it has named one; on
    the CPU it names none. lightning 2.4 to 2.6 (`DDPStrategy._determine_ddp_device_ids`).
    """
    _name_no_device(ddp.DDPStrategy, "_determine_ddp_device_ids")


@after("lightning.pytorch.strategies.ddp", "pytorch_lightning.strategies.ddp")
def lightning_parallelizes_on_the_device(ddp: Any) -> None:
    """The same of Lightning's Trainer. lightning 2.4 to 2.6 (`DDPStrategy.determine_ddp_device_ids`)."""
    _name_no_device(ddp.DDPStrategy, "determine_ddp_device_ids")


def _name_no_device(owner: Any, name: str) -> None:
    plain = getattr(owner, name)

    @wraps(plain)
    def device_ids(self: Any) -> Any:
        return None if is_ours(self.root_device) else plain(self)

    setattr(owner, name, device_ids)


def _register(registry: Any, base: type) -> None:
    if backend.name() not in registry:
        name = backend.name()
        made = type(f"{name.capitalize()}Accelerator", (_Devices, base), {"__doc__": _Devices.__doc__})
        registry.register(name, made, description=f"Devices {name}")


class _Devices:
    """Lightning's accelerator for the backend; together with Lightning's abstract class."""

    def setup_device(self, device: torch.device) -> None:
        if not is_ours(device):
            raise ValueError(f"Device should be {backend.name()}, got {device} instead.")
        module().set_device(device)

    def teardown(self) -> None:
        module().empty_cache()

    def get_device_stats(self, device: torch.device | str | int) -> dict[str, Any]:
        stats: dict[str, Any] = module().memory_stats(device)
        return stats

    @staticmethod
    def parse_devices(devices: int | str | list[int]) -> list[int]:
        """The devices' numbers: a list of them, or a text with commas; a single number says how many processes there
        are, which share devices where there are fewer, -1 one for each device."""
        if isinstance(devices, str):
            devices = [int(each) for each in devices.split(",") if each] if "," in devices else int(devices)
        if isinstance(devices, int):
            count = module().device_count()
            devices = [number % count for number in range(count if devices == -1 else devices)]
        return list(devices)

    @staticmethod
    def get_parallel_devices(devices: list[int]) -> list[torch.device]:
        return [torch.device(backend.name(), index) for index in devices]

    @staticmethod
    def auto_device_count() -> int:
        return int(module().device_count())

    @staticmethod
    def is_available() -> bool:
        return bool(module().is_available())

    @staticmethod
    def name() -> str:
        return backend.name()


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
        return backend.name() if chosen == "cpu" and only_device() is not None else chosen

    @wraps(choose_gpu)
    def _choose_gpu_accelerator_backend() -> Any:
        try:
            return choose_gpu()
        except Exception as error:
            if only_device() is not None:
                name = backend.name()
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
            setattr(self, precision_plugin, connector.MixedPrecision(wanted, backend.name()))
        return init_precision(self)

    owner._choose_auto_accelerator = staticmethod(_choose_auto_accelerator)
    owner._choose_gpu_accelerator_backend = staticmethod(_choose_gpu_accelerator_backend)
    owner._choose_strategy = _choose_strategy
    owner._check_and_init_precision = _check_and_init_precision
