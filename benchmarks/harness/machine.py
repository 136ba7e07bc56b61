"""On what a run was made."""

from __future__ import annotations

import os
import platform
import re
import time
from pathlib import Path

import torch


def processor() -> str:
    found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found[1] if found else platform.machine()


def machine(device: str) -> dict[str, str | int | float]:
    properties = torch.get_device_module(device).get_device_properties(torch.device(device))
    return {
        "day": time.strftime("%Y-%m-%d"),
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)),
        "threads_of_torch": torch.get_num_threads(),
        "torch": torch.__version__,
        "device": properties.name,
        "driver": properties.driver_version,
        "load_at_the_beginning": round(os.getloadavg()[0], 2),
    }
