"""A new environment: is the device there, and what is it?"""

from __future__ import annotations

from conftest import Script


def test_torch_finds_the_device_by_itself(script: Script) -> None:
    printed = script(
        """
        # <found>
        import torch

        x = torch.ones(2, 3, device="ocl")
        print(x.sum())
        # </found>
        """,
        autoload=True,
    )
    assert printed == "tensor(6., device='ocl:0')\n"


def test_what_is_there(script: Script) -> None:
    script(
        """
        import torch

        # <devices>
        assert torch.ocl.is_available()
        for index in range(torch.ocl.device_count()):
            properties = torch.ocl.get_device_properties(index)
            print(f"ocl:{index}", properties.name, properties.total_memory // 2**20, "MiB")

        device = torch.accelerator.current_accelerator()  # portable programs ask for whatever is there
        # </devices>
        assert device == torch.device("ocl")
        assert properties.name and properties.total_memory > 0
        """,
        autoload=True,
    )


def test_importing_torch_opens_no_device(script: Script) -> None:
    printed = script(
        """
        import torch

        print(torch.ocl.is_initialized())
        torch.ones(1, device="ocl")
        print(torch.ocl.is_initialized())
        """,
        autoload=True,
    )
    assert printed == "False\nTrue\n"
