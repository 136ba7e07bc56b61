"""What `import torch` does where this package is installed. Each test has a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap


def run(program: str, autoload: bool = True) -> None:
    """Runs lines of Python in a new process; they fail by raising."""
    switches = {"TORCH_DEVICE_BACKEND_AUTOLOAD": str(int(autoload)), "TORCHGRAFT_BACKEND": "skeleton"}
    command = [sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(command, env={**os.environ, **switches}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_import_torch_is_enough() -> None:
    """Needs the package to be installed: entry points are part of its metadata."""
    run("""
    import torch
    assert not torch.skeleton.is_initialized()  # nothing is opened before it is used
    assert torch.ones(3, device="skeleton").sum().item() == 3
    assert torch.device("skeleton:0").type == "skeleton"
    """)


def test_it_can_be_switched_off() -> None:
    run(
        """
        import torch
        try:
            torch.device("skeleton")
        except RuntimeError:
            pass
        else:
            raise AssertionError("registered, although autoloading is switched off")
        import skeleton
        assert torch.ones(3, device="skeleton").sum().item() == 3
        """,
        autoload=False,
    )


def test_a_driver_that_does_not_load_leaves_torch_usable() -> None:
    run("""
    import sys
    sys.modules["skeleton.driver"] = None  # importing it fails
    import torch
    assert torch.ones(3).sum().item() == 3
    assert not torch.skeleton.is_available()
    try:
        torch.ones(3, device="skeleton")
    except RuntimeError as error:
        assert "skeleton.driver" in str(error), error
    else:
        raise AssertionError("no error")
    """)
