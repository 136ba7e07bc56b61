"""What Triton launches kernels by."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase

if TYPE_CHECKING:
    import torch

__all__ = ["Driver"]


def _device_module() -> ModuleType | None:
    import torch

    return getattr(torch, torch._C._get_privateuse1_backend_name(), None)


class Driver(DriverBase):  # type: ignore[misc]  # Triton has no annotations
    """Triton's driver of the devices."""

    def __init__(self) -> None:
        from torchgraft.triton import launch

        self._launch = launch
        self.utils, self.launcher_cls = launch.Utils(), launch.Launcher

    @classmethod
    def is_active(cls) -> bool:
        """Whether they are the machine's only accelerators."""
        import torch

        module = _device_module()
        return module is not None and module.is_available() and not torch.cuda.is_available()

    def map_python_to_cpp_type(self, ty: str) -> str:
        return ty

    def get_current_target(self) -> GPUTarget:
        """Its backend is the device's name in torch, as libraries have it that ask for the device so."""
        return GPUTarget(self.get_active_torch_device().type, self._launch.architecture(), 1)

    def get_current_device(self) -> int:
        return self._launch.current_device()

    def set_current_device(self, device: int) -> None:
        self.get_device_interface().set_device(device)

    def get_current_stream(self, device: int) -> int:
        return 0  # launches go to the current one

    def get_active_torch_device(self) -> torch.device:
        import torch

        return torch.device(torch._C._get_privateuse1_backend_name(), self.get_current_device())

    def get_device_interface(self) -> ModuleType:
        module = _device_module()
        assert module is not None
        return module

    def get_benchmarker(self) -> Callable[..., Any]:
        from triton import testing

        benchmark: Callable[..., Any] = testing.do_bench
        return benchmark

    def get_empty_cache_for_benchmark(self) -> torch.Tensor:
        import torch

        return torch.empty(1 << 22, dtype=torch.int32, device=self.get_active_torch_device())

    def clear_cache(self, cache: torch.Tensor) -> None:
        cache.zero_()
