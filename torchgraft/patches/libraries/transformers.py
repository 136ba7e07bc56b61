"""Transformers."""

from __future__ import annotations

import inspect
from functools import cached_property, wraps
from typing import Any, cast

import torch

from torchgraft.patches.libraries.patch import after, is_ours, keep_random_numbers, module, only_device


@after("transformers.training_args")
def trainer_takes_the_device(training_args: Any) -> None:
    """The Trainer uses the CPU where none of the devices is there that it knows by name, whatever Accelerate chose.
    transformers 4.57 to 5.23 (`TrainingArguments._setup_devices`).
    """
    plain = training_args.TrainingArguments._setup_devices.func

    @wraps(plain)
    def _setup_devices(self: Any) -> torch.device:
        device: torch.device = plain(self)
        chosen = getattr(self.distributed_state, "device", None)
        if device.type != "cpu" or not is_ours(chosen):
            return device
        self._n_gpu = 1
        return cast(torch.device, chosen)

    replacement = cached_property(_setup_devices)
    replacement.__set_name__(training_args.TrainingArguments, "_setup_devices")
    training_args.TrainingArguments._setup_devices = replacement


@after("transformers.utils.import_utils")
def transformers_computes_in_bfloat16(import_utils: Any) -> None:
    """`TrainingArguments(bf16=True)` raises ValueError, since transformers asks only devices that it knows.
    transformers 4.57 to 5.23 (`is_torch_bf16_gpu_available`).
    """
    plain = import_utils.is_torch_bf16_gpu_available

    @wraps(plain)
    def is_torch_bf16_gpu_available() -> bool:
        return plain() or (only_device() is not None and module().is_bf16_supported())

    import_utils.is_torch_bf16_gpu_available = is_torch_bf16_gpu_available


@after("transformers.trainer")
def trainer_keeps_random_numbers(trainer: Any) -> None:
    """The Trainer saves the random states of devices that it knows, so that training that is resumed draws other
    numbers. transformers 4.57 to 5.23 (`Trainer._save_rng_state`, `_load_rng_state`).
    """
    keep_random_numbers(trainer.Trainer, "_save_rng_state", "output_dir")
    keep_random_numbers(trainer.Trainer, "_load_rng_state", "checkpoint")


@after("transformers.pipelines.base")
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
