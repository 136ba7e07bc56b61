"""What the device cannot do yet is done by the CPU: rightly, visibly, and counted."""

from __future__ import annotations

import warnings

import pytest
import torch

import torchgraft


def test_a_warning_an_error_or_silence(device: str) -> None:
    matrix = torch.eye(3, device=device)
    torchgraft.reset_fallback_report(warnings=True)
    # <modes>
    with torchgraft.fallback("warn"), warnings.catch_warnings(record=True) as caught:  # the default
        warnings.simplefilter("always")
        torch.linalg.eigvals(matrix)  # one warning, which names this line
        torch.linalg.eigvals(matrix)  # no second one

    with torchgraft.fallback("silent"):
        torch.linalg.eigvals(matrix)

    with torchgraft.fallback("error"), pytest.raises(NotImplementedError, match="eigvals"):
        torch.linalg.eigvals(matrix)
    # </modes>
    assert len(caught) == 1
    if device == "npy":  # which compiles nothing, so that the warning is of the device
        assert "has no kernel compiler" in str(caught[0].message)
    else:
        assert "aten::_linalg_eigvals" in str(caught[0].message)
        assert "test_09_fallback.py" in str(caught[0].message)


def test_the_report(device: str) -> None:
    torchgraft.reset_fallback_report()
    # <report>
    with torchgraft.fallback("silent"):
        values = torch.linalg.eigvals(2 * torch.eye(3, device=device))
    report = torchgraft.fallback_report()
    print(report)
    # </report>
    assert values.device.type == torch.device(device).type
    assert values.real.tolist() == pytest.approx([2.0, 2.0, 2.0])
    (row,) = (row for row in report.rows if row.op.startswith("aten::_linalg_eigvals"))
    assert row.calls == 1
    assert any("test_09_fallback.py" in place for place in row.places)
