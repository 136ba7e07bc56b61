"""Random numbers: one Philox generator for each device.

Seeding before the device's first use is remembered, not done: `torch.manual_seed(0)` in a program that only uses the
CPU opens no device.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch.utils._mode_utils import no_dispatch

from torchgraft import backend
from torchgraft._core import _C
from torchgraft.backend import DeviceLike
from torchgraft.untraced import untraced

__all__ = [
    "get_rng_state",
    "get_rng_state_all",
    "initial_seed",
    "manual_seed",
    "manual_seed_all",
    "seed",
    "seed_all",
    "set_rng_state",
    "set_rng_state_all",
]


def default_generators() -> tuple[torch.Generator, ...]:
    """Each device's default generator, by its number."""
    backend.open_devices()
    return tuple(_C.default_generator(index) for index in range(_C.device_count()))


def generator(device: DeviceLike = None) -> torch.Generator:
    """A device's default generator.

    Raises:
        IndexError: there is no such device, as in torch.cuda.
    """
    backend.open_devices()
    index = backend.named_index(device)
    if index is None:
        index = backend.device_index()
    if not 0 <= index < _C.device_count():
        raise IndexError(f"{backend.name()}:{index}: there is no such device, and so no generator of it")
    return _C.default_generator(index)


def manual_seed(seed: int) -> None:
    """Seeds the current device's generator."""
    seed = int(seed)

    def apply() -> None:
        generator().manual_seed(seed)

    backend.when_opened(apply)


def manual_seed_all(seed: int) -> None:
    """Seeds every device's generator; `torch.manual_seed` calls this."""
    seed = int(seed)

    def apply() -> None:
        for each in default_generators():
            each.manual_seed(seed)

    backend.when_opened(apply)


def seed() -> None:
    """Seeds the current device's generator with a random number."""

    def apply() -> None:
        generator().seed()

    backend.when_opened(apply)


def seed_all() -> None:
    """Seeds every device's generator with the same random number."""

    def apply() -> None:
        first, *others = default_generators()
        chosen = first.seed()
        for each in others:
            each.manual_seed(chosen)

    backend.when_opened(apply)


def initial_seed() -> int:
    """The seed of the current device's generator."""
    return generator().initial_seed()


@untraced  # torch.compile asks for it while it traces
def get_rng_state(device: DeviceLike = None) -> torch.Tensor:
    """The state of a device's generator: 16 bytes, its seed and its offset."""
    return generator(device).get_state()


def get_rng_state_all() -> list[torch.Tensor]:
    """The states of all devices' generators."""
    return [each.get_state() for each in default_generators()]


@untraced
def set_rng_state(new_state: torch.Tensor, device: DeviceLike = None) -> None:
    """Puts a state got by `get_rng_state` back."""
    # Copied, because the caller may go on with his tensor before the device is opened; out of sight of modes (fake
    # tensors, DTensor's local ones), which ask for states of their own and would take the copying for the program's.
    with no_dispatch():
        state = new_state.detach().to("cpu", torch.uint8, copy=True)

    def apply() -> None:
        generator(device).set_state(state)

    backend.when_opened(apply)


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Puts states got by `get_rng_state_all` back."""
    for index, state in enumerate(new_states):
        set_rng_state(state, index)
