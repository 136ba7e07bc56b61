"""What the ops of PyTorch become for a device that has operators: docs/operators.md describes each."""

from __future__ import annotations

from torchgraft.ops.operators import attention as attention
from torchgraft.ops.operators import common as common
from torchgraft.ops.operators import optimizers as optimizers
