"""A program may end right after backward()."""

from __future__ import annotations

import pytest
from conftest import Script

# Autograd's thread comes after this one where both could run, so it often asks for the GIL when this one has it again;
# and this one does not let it go before the interpreter is ending.
PROGRAM = """
    import atexit, os, sys, time
    from pathlib import Path
    import torch
    from torchgraft.registration import shutdown

    class Slow:
        def __del__(self):
            time.sleep(0.2)

    slow = Slow()  # deleted while the interpreter ends
    x = torch.randn(100, device="ocl", requires_grad=True)
    x.square().sum().backward()
    os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
    for thread in Path("/proc/self/task").iterdir():
        if (thread / "comm").read_text().startswith("pt_autograd"):
            os.sched_setaffinity(int(thread.name), os.sched_getaffinity(0))
            os.setpriority(os.PRIO_PROCESS, int(thread.name), 19)
    y = x.square().sum()
    {change}
    sys.setswitchinterval(1000)
    y.backward()
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        pass
"""


@pytest.mark.thorough
def test_ending_right_after_backward(script: Script) -> None:
    assert script(PROGRAM.format(change=""), autoload=True) == ""


@pytest.mark.thorough
def test_torch_still_needs_it(script: Script) -> None:
    """If this fails, torchgraft/registration/shutdown.py has done its duty: torch no longer ends so."""
    without = PROGRAM.format(change="atexit.unregister(shutdown.wait_for_autograd)")
    with pytest.raises(AssertionError, match=r"exit status -6:\s+terminate called"):
        for _ in range(20):  # about each second time
            script(without, autoload=True)


def test_waiting_ends(script: Script) -> None:
    """Also where a thread of autograd does not."""
    printed = script(
        """
        import time
        import torch
        from torchgraft.registration import shutdown

        shutdown._states = lambda: ["R"]
        start = time.monotonic()
        shutdown.wait_for_autograd(limit=0.05)
        print(0.05 <= time.monotonic() - start < 5)
        """
    )
    assert printed == "True\n"
