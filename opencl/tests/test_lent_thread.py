"""The thread that waits in Intel's runtime in the program's place, which that runtime counts on."""

from __future__ import annotations

import pytest
import torch

import torchgraft
import torchgraft_opencl

# Two groups that wait for each other, not for ever: with one thread the first to run waits in vain.
MEETING = """
__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void meet(__global int* here, __global int* met, const int patience) {
  volatile __global int* seen = here;
  const int own = get_group_id(0), other = 1 - own;
  seen[own] = 1;
  for (int i = 0; i < patience && !met[own]; ++i) met[own] = seen[other];
}
"""


@pytest.fixture
def device() -> str:
    torchgraft_opencl.register()
    properties = torch.ocl.get_device_properties(0)  # type: ignore[attr-defined]
    if properties.platform != "Intel(R) OpenCL" or properties.multi_processor_count < 2:
        pytest.skip("not Intel's runtime with two threads")
    return "ocl"


def test_groups_run_at_once_while_the_program_waits(device: str) -> None:
    """Whether the runtime's own threads were enough, once it has threads for all but one of the units."""
    meet = torchgraft.kernel(MEETING)
    for _ in range(3):
        # So large that no part of it is for the calling thread alone.
        here, met = (torch.zeros(1 << 22, dtype=torch.int32, device=device) for _ in range(2))
        torch.accelerator.synchronize()
        meet[2, 1](here, met, 1 << 28)
        torch.accelerator.synchronize()
        assert met[:2].tolist() == [1, 1]
