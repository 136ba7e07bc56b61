"""What `torch.<name>` offers, as a plain module: mypy reads it in the place of `torch.<name>` (see torchgraft.mypy),
and with a checker that takes no plug-ins one can import it instead.

`torchgraft.device_module` makes `torch.<name>` itself, of the same parts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from torchgraft.device_module import *  # noqa: F403
from torchgraft.device_module import amp as amp
from torchgraft.device_module import graphs as graphs
from torchgraft.device_module import memory as memory
from torchgraft.device_module import random as random
from torchgraft.device_module import streams as streams
from torchgraft.device_module.amp import *  # noqa: F403
from torchgraft.device_module.graphs import *  # noqa: F403
from torchgraft.device_module.memory import *  # noqa: F403
from torchgraft.device_module.random import *  # noqa: F403
from torchgraft.device_module.streams import *  # noqa: F403

if TYPE_CHECKING:
    default_generators: tuple[torch.Generator, ...]
else:

    def __getattr__(name: str) -> object:
        if name == "default_generators":  # there are none before the devices are opened
            return random.default_generators()
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
