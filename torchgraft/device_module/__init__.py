"""The module `torch.<name>`: what `torch.cuda` is to CUDA, for our devices."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType, TracebackType
from typing import Any, TypeVar

import torch

from torchgraft import backend
from torchgraft._core import _C
from torchgraft.backend import DeviceLike
from torchgraft.device_module import amp, graphs, memory, random, storages, streams

__all__ = [
    "current_device",
    "device",
    "device_count",
    "device_of",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "init",
    "is_available",
    "is_initialized",
    "set_device",
    "synchronize",
]


_Function = TypeVar("_Function", bound=Callable[..., Any])


def _constant(function: _Function) -> _Function:
    """Marks a function whose answer does not change, which torch.compile then takes for a constant in place of breaking
    the graph: torch.compiler.assume_constant_result, without the seconds that importing torch._dynamo takes."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


@_constant
def is_available() -> bool:
    """Whether there is a device to use. Never raises."""
    return _C.device_count() > 0


@_constant
def device_count() -> int:
    """How many devices there are, over all drivers."""
    return _C.device_count()


def init() -> None:
    """Opens the devices now instead of at their first use."""
    backend.open_devices()


def is_initialized() -> bool:
    """Whether the devices have been opened."""
    return backend.is_opened()


def current_device() -> int:
    """The number of this thread's current device."""
    backend.open_devices()
    return torch._C._accelerator_getDeviceIndex()


def set_device(device: DeviceLike) -> None:
    """Chooses this thread's current device; a negative number changes nothing. Better is the context manager `device`.

    Raises:
        ValueError: None, a name without a number, or another backend's device.
        RuntimeError: there is no such device.
    """
    index = backend.named_index(device)
    if index is None:
        raise ValueError(f"Expected a torch.device with a specified index or an integer, but got: {device}")
    if index >= 0:
        backend.open_devices()
        torch._C._accelerator_setDeviceIndex(index)


def synchronize(device: DeviceLike = None) -> None:
    """Waits until all work submitted to the device is done, and raises what its kernels reported.

    As long as the devices are not open there is nothing to wait for. (torch's profiler calls this at the end of every
    profile, also where there is no device.)
    """
    if device is None and not backend.is_opened():
        _C.raise_if_forked()
        return
    backend.open_devices()
    _C.synchronize(backend.device_index(device))


@_constant
def _is_only(index: int) -> bool:
    """Whether a device is the only one, which need not be chosen."""
    backend.open_devices()
    return index == 0 and _C.device_count() == 1


class device:
    """`with torch.<name>.device(1):` makes a device current for a while.

    Nothing happens for None, a name without a number and a negative number.
    """

    def __init__(self, device: DeviceLike) -> None:
        index = backend.named_index(device)
        self.idx = -1 if index is None else index
        self.prev_idx = -1

    def __enter__(self) -> None:
        if self.idx >= 0 and not _is_only(self.idx):
            self.prev_idx = torch._C._accelerator_exchangeDevice(self.idx)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.idx >= 0 and not _is_only(self.idx):
            torch._C._accelerator_exchangeDevice(self.prev_idx)


class device_of(device):
    """The same, for the device of a tensor or storage; nothing happens where that is another backend's."""

    def __init__(self, obj: torch.Tensor | torch.UntypedStorage) -> None:
        super().__init__(obj.device if obj.device.type == backend.name() else None)


@dataclass(frozen=True)
class DeviceProperties:
    """What a driver tells of a device."""

    name: str
    vendor: str
    platform: str
    driver: str
    driver_version: str
    dialect: str
    uuid: str
    kind: str
    total_memory: int
    max_allocation: int
    local_memory: int
    multi_processor_count: int
    max_work_group_size: int
    simd_width: int
    clock_mhz: int
    unified_memory: bool
    has_compiler: bool
    has_float64: bool
    has_float16: bool


def get_device_properties(device: DeviceLike = None) -> DeviceProperties:
    """Name, memory, capabilities and more.

    Raises:
        AssertionError: a number that no device has, as in torch.cuda.
    """
    backend.open_devices()
    index = backend.named_index(device)
    if index is None:
        index = current_device()
    if not 0 <= index < device_count():
        raise AssertionError(f"Invalid device id: there is no {backend.name()}:{index}, but {device_count()} device(s)")
    given = _C.device_properties(index)
    return DeviceProperties(**{field: given[field] for field in DeviceProperties.__dataclass_fields__})


def get_device_name(device: DeviceLike = None) -> str:
    """The device's name, as its driver tells it."""
    return get_device_properties(device).name


def get_device_capability(device: DeviceLike = None) -> dict[str, Any]:
    """What the device supports, as `torch.accelerator.get_device_capability` tells it: "supported_dtypes", a set."""
    backend.open_devices()
    return torch._C._accelerator_getDeviceCapability(backend.device_index(device))


def _exchange_device(index: int) -> int:
    return torch._C._accelerator_exchangeDevice(index)


def _maybe_exchange_device(index: int) -> int:
    return torch._C._accelerator_maybeExchangeDevice(index)


class DeviceModule(ModuleType):
    """The type of `torch.<name>`: a module with two attributes that change."""

    @property
    def _initialized(self) -> bool:
        # Read by torch.utils.checkpoint, which otherwise would not keep the device's random numbers.
        return backend.is_opened()

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), "default_generators"})

    @property
    def default_generators(self) -> tuple[torch.Generator, ...]:
        return random.default_generators()


def _late(make: Callable[[], object]) -> property:
    return property(lambda _: make())


def make_device_module(name: str, late: Mapping[str, Callable[[], object]], **hooks: object) -> DeviceModule:
    """Puts `torch.<name>` together. torch looks its members up by name, hence no class hierarchy.

    Args:
        name: of the backend.
        late: what makes an attribute each time that it is asked for.
        hooks: other attributes that only torch asks for.
    """
    doc = f"Devices '{name}': memory, streams, events, random numbers, mixed precision."
    type_: type[DeviceModule] = type(
        "DeviceModule", (DeviceModule,), {each: _late(make) for each, make in late.items()}
    )
    module = type_(f"torch.{name}", doc)
    offered = {part: list(part.__all__) for part in (memory, streams, random, amp, graphs)}
    offered[sys.modules[__name__]] = list(__all__)
    for part, names in offered.items():
        for each in names:
            setattr(module, each, getattr(part, each))
    legacy = storages.make_storages(module.__name__)
    parts = {"memory": memory, "streams": streams, "random": random, "amp": amp, "graphs": graphs}
    public = {*legacy, *parts, "default_generators"}.union(*offered.values())
    module.__dict__.update(
        legacy,
        **parts,
        **hooks,
        _lazy_init=backend.open_devices,
        _is_in_bad_fork=_C.in_bad_fork,
        _get_generator=random.generator,
        _exchange_device=_exchange_device,
        _maybe_exchange_device=_maybe_exchange_device,
        __all__=sorted(public),
    )
    return module
