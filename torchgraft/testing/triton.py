"""What `torchgraft conformance` says of Triton: whether its kernels run on the device, of each kind and in each dtype.

The samples (diagnosis/triton_samples.py) run in a process of their own, which may crash: `python -m
torchgraft.testing.triton DEVICE MODULES`.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import version

import torch

from torchgraft._core import _C
from torchgraft.diagnosis import triton_samples

__all__ = ["runs_triton"]


def runs_triton(device: str, imports: Sequence[str], timeout: float) -> tuple[list[str], str]:
    """A line for each sample that does not do what it should, and one that sums up.

    Args:
        imports: modules that register the device.
        timeout: seconds for all of them.
    """
    if reason := triton_samples.absent():
        return [], f"runs Triton: not tried, since {reason}"
    command = [sys.executable, "-m", __spec__.name, device, ",".join(imports)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
        output, ending = done.stdout, f"the process ended with status {done.returncode}: {done.stderr[-1000:]}"
        ended = done.returncode != 0
    except subprocess.TimeoutExpired as error:
        output = (error.stdout or b"").decode()
        ended, ending = True, f"no end within {timeout:g} seconds"
    told = [json.loads(line) for line in output.splitlines()]
    if told and "no compiler" in told[0]:
        return [], f"runs Triton: no, since {told[0]['no compiler']}"
    tried = [each["sample"] for each in told if "sample" in each]
    wrong = [f"Triton, {each['wrong']}: {each['text']}" for each in told if "wrong" in each]
    right = len(tried) - len(wrong)
    if ended:
        right -= bool(tried)
        wrong.append(f"Triton, {tried[-1] if tried else 'before the first kernel'}: {ending}")
    return wrong, f"runs Triton {version('triton')}: {right} of {len(tried)} kernels are right"


def _lines(device: torch.device) -> Iterator[dict[str, str]]:
    """What is tried, before it is, and what is wrong with it."""
    properties = _C.device_properties(device.index)
    if not properties["has_compiler"]:
        yield {"no compiler": f"{device} compiles no kernels"}
        return
    with triton_samples.active(), torch.accelerator.device_index(device.index):
        for name, dtype in triton_samples.samples_of(properties):
            sample = f"{name} in {str(dtype).removeprefix('torch.')}"
            yield {"sample": sample}
            try:
                triton_samples.SAMPLES[name][0](device, dtype)
            except Exception as error:
                yield {"wrong": sample, "text": f"{type(error).__name__}: {str(error).strip()[:500]}"}


def main() -> None:
    name, imports = sys.argv[1:]
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what kernels and drivers print is not to be mixed with this
    for module in filter(None, imports.split(",")):
        importlib.import_module(module)
    device = torch.empty(0, device=name).device
    torch.manual_seed(0)
    for line in _lines(device):
        print(json.dumps(line), file=output, flush=True)


if __name__ == "__main__":
    main()
