"""Sentence Transformers."""

from __future__ import annotations

from functools import wraps
from typing import Any

import torch

from torchgraft.patches.libraries.patch import after, rather_than_cpu


@after("sentence_transformers.util.environment")
def sentence_transformers_take_the_device(environment: Any) -> None:
    """`SentenceTransformer(...)` uses the CPU where none of the devices is there that it knows by name.
    sentence-transformers 5.2 to 6.2 (`get_device_name`).
    """
    plain = environment.get_device_name

    @wraps(plain)
    def get_device_name() -> str:
        return str(rather_than_cpu(torch.device(plain())))

    environment.get_device_name = get_device_name
