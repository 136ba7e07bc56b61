"""Ops without a kernel run on the CPU: correctly, and so that one can see and forbid it.

Devices have kernels for more and more ops, so the ops here are twins of PyTorch's own: of the same schema, with a
kernel for the CPU only.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from conftest import Script, in_threads

import torchgraft

aten = torch.ops.aten
library = torch.library.Library("torchgraft_test_fallback", "FRAGMENT")

NAME = "torchgraft_test_fallback::special_i1e_default"


def same(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual.cpu(), expected, rtol=0, atol=0, equal_nan=True)


@functools.cache
def twin(op: torch._ops.OpOverload) -> Callable[..., Any]:
    schema = op._schema
    name = f"{schema.name.removeprefix('aten::')}_{schema.overload_name or 'default'}"
    _, _, signature = str(schema).partition("(")
    library.define(f"{name}({signature}", tags=[tag for tag in op.tags if tag == torch.Tag.nondeterministic_seeded])
    library.impl(name, lambda *args, **kwargs: op(*args, **kwargs), "CPU")
    made: Callable[..., Any] = getattr(torch.ops.torchgraft_test_fallback, name).default
    return made


def on_cpu(op: torch._ops.OpOverload, *args: Any, **kwargs: Any) -> Any:
    """Runs the twin of an op."""
    return twin(op)(*args, **kwargs)


@pytest.fixture(autouse=True)
def silent() -> Iterator[None]:
    torchgraft.reset_fallback_report(warnings=True)
    with torchgraft.fallback("silent"):
        yield


def data(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


# ---- results --------------------------------------------------------------------------------------------------------


def test_functional(device: str) -> None:
    x = data(4, 5)
    result = on_cpu(aten.special_i1e.default, x.to(device))
    assert result.device.type == torch.device(device).type
    same(result, torch.special.i1e(x))


def test_strides_of_arguments_and_results(device: str) -> None:
    x = data(4, 5).t()
    for view in (x, x[1:, ::2], x[:1].expand(3, 4), x[:0], x[2, 3]):
        there = (
            view.to(device)
            if view.is_contiguous()
            else x.to(device).as_strided(view.shape, view.stride(), view.storage_offset())
        )
        result = on_cpu(aten.erfinv.default, there)
        same(result, torch.erfinv(view))
        assert result.stride() == torch.erfinv(view).stride()


def test_in_place_returns_the_same_tensor(device: str) -> None:
    x = data(4, 5).to(device)
    view = x[:, ::2]
    assert on_cpu(aten.exp_.default, view) is view
    expected = data(4, 5)
    expected[:, ::2].exp_()
    torch.testing.assert_close(x.cpu(), expected)


def test_out_is_resized_and_returned(device: str) -> None:
    x = data(4, 5)
    for out in (torch.empty(0, device=device), torch.empty(4, 5, device=device), torch.empty(5, 4, device=device).t()):
        assert on_cpu(aten.erfinv.out, x.to(device), out=out) is out
        same(out, torch.erfinv(x))
    wide = torch.zeros(4, 10, device=device)
    on_cpu(aten.erfinv.out, x.to(device), out=wide[:, ::2])
    same(wide[:, ::2], torch.erfinv(x))
    same(wide[:, 1::2], torch.zeros(4, 5))
    small = torch.empty(3, device=device)
    on_cpu(aten.erfinv.out, x.to(device), out=small)
    same(small, torch.erfinv(x))


def test_several_outputs(device: str) -> None:
    x = data(4, 5)
    values, indices = on_cpu(aten.kthvalue.default, x.to(device), 2)
    expected = torch.kthvalue(x, 2)
    same(values, expected.values)
    same(indices, expected.indices)
    outs = torch.empty(0, device=device), torch.empty(0, dtype=torch.int64, device=device)
    on_cpu(aten.kthvalue.values, x.to(device), 2, values=outs[0], indices=outs[1])
    same(outs[0], expected.values)
    same(outs[1], expected.indices)


def test_lists(device: str) -> None:
    parts = [data(3, 2), data(3, 4)]
    there = [part.to(device) for part in parts]
    same(on_cpu(aten.cat.default, there, 1), torch.cat(parts, 1))
    on_cpu(aten._foreach_add_.Scalar, there, 1)
    same(there[1], parts[1] + 1)
    twice = [there[0], there[0]]
    on_cpu(aten._foreach_add_.Scalar, twice, 1)
    same(there[0], parts[0] + 3)
    pieces = on_cpu(aten._foreach_neg.default, there)
    same(pieces[1], -(parts[1] + 1))
    grids = on_cpu(aten.index.Tensor, there[1], [None, torch.tensor([0, 2], device=device)])
    same(grids, (parts[1] + 1)[:, [0, 2]])


def test_optional_arguments(device: str) -> None:
    x, low = data(4, 5), data(5)
    same(on_cpu(aten.clamp.Tensor, x.to(device), None, low.to(device)), torch.clamp(x, max=low))
    same(on_cpu(aten.clamp.Tensor, x.to(device), low.to(device)), torch.clamp(x, low))


def test_views_stay_views(device: str) -> None:
    x = data(4, 5).to(device)
    row = on_cpu(aten.as_strided.default, x, [5], [1], 5)
    row.fill_(1)
    same(x[1], torch.ones(5))
    pairs = data(3, 2).to(device)
    on_cpu(aten.view_as_complex.default, pairs).zero_()
    same(pairs, torch.zeros(3, 2))
    same(on_cpu(aten.unfold.default, x, 1, 2, 2), x.cpu().unfold(1, 2, 2))


def test_arguments_that_share_memory(device: str) -> None:
    x = data(6).to(device)
    on_cpu(aten.add_.Tensor, x[:3], x[3:])
    expected = data(6)
    expected[:3] += expected[3:]
    same(x, expected)
    with pytest.raises(RuntimeError, match="single memory location"):
        on_cpu(aten.exp.out, x[:-1], out=x[1:])


def test_running_statistics_that_the_schema_does_not_mention(device: str) -> None:
    x, mean, var = data(8, 3), torch.zeros(3), torch.ones(3)
    there = [tensor.to(device) for tensor in (x, mean, var)]
    aten.native_batch_norm(there[0], None, None, there[1], there[2], True, 0.1, 1e-5)
    torch.native_batch_norm(x, None, None, mean, var, True, 0.1, 1e-5)
    torch.testing.assert_close(there[1].cpu(), mean)
    torch.testing.assert_close(there[2].cpu(), var)


def test_a_pending_conjugation_of_the_result(device: str) -> None:
    matrix = torch.randn(3, 3, dtype=torch.complex64)
    factors, pivots = torch.linalg.lu_factor(matrix)
    right = torch.randn(4, 3, dtype=torch.complex64)
    there = [tensor.to(device) for tensor in (factors, pivots, right)]
    result = aten.linalg_lu_solve(*there, left=False)
    torch.testing.assert_close(result.cpu(), torch.linalg.lu_solve(factors, pivots, right, left=False))


def test_convolutions_which_the_cpu_knows_by_other_names(device: str) -> None:
    x, weight, bias = data(2, 3, 8), data(4, 3, 3), data(4)
    there = [tensor.to(device).requires_grad_() for tensor in (x, weight, bias)]
    here = [tensor.requires_grad_() for tensor in (x, weight, bias)]
    results = [torch.nn.functional.conv1d(*tensors, padding=1) for tensors in (there, here)]
    for result in results:
        (result * result).sum().backward()
    torch.testing.assert_close(results[0].cpu(), results[1])
    for actual, expected in zip(there, here, strict=True):
        torch.testing.assert_close(actual.grad.cpu(), expected.grad, rtol=1e-4, atol=1e-4)


def test_factories(device: str) -> None:
    result = aten.tril_indices(3, 3, device=torch.device(device))
    assert result.device.type == torch.device(device).type
    same(result, torch.tril_indices(3, 3))


# ---- random numbers -------------------------------------------------------------------------------------------------


def draw(device: str, generator: torch.Generator | None = None) -> torch.Tensor:
    result: torch.Tensor = on_cpu(aten.normal_.default, torch.empty(100, device=device), generator=generator)
    return result.cpu()


def test_seeding_the_device_decides(device: str) -> None:
    torch.manual_seed(5)
    first, second = draw(device), draw(device)
    host = torch.rand(3)
    torch.manual_seed(5)
    assert torch.equal(draw(device), first)
    assert torch.equal(draw(device), second)
    assert not torch.equal(first, second)
    assert torch.equal(torch.rand(3), host)


def test_own_generators(device: str) -> None:
    generator = torch.Generator(device).manual_seed(7)
    first, second = draw(device, generator), draw(device, generator)
    assert not torch.equal(first, second)
    assert torch.equal(draw(device, generator.manual_seed(7)), first)
    with pytest.raises(RuntimeError, match="device type for generator but found 'cpu'"):
        draw(device, torch.Generator())


def test_random_ops_that_take_no_generator(device: str) -> None:
    x = torch.ones(100, device=device)
    torch.manual_seed(5)
    state = torch.get_rng_state()
    first = on_cpu(aten.native_dropout.default, x, 0.5, True)[0].cpu()
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(on_cpu(aten.native_dropout.default, x, 0.5, True)[0].cpu(), first)
    torch.manual_seed(5)
    assert torch.equal(on_cpu(aten.native_dropout.default, x, 0.5, True)[0].cpu(), first)


# ---- errors ---------------------------------------------------------------------------------------------------------


def test_devices_may_not_be_mixed(device: str) -> None:
    x, host = torch.ones(3, device=device), torch.ones(3)
    message = "Expected all tensors to be on the same device, but found at least two devices"
    with pytest.raises(RuntimeError, match=message):
        on_cpu(aten.add.Tensor, x, host)
    with pytest.raises(RuntimeError, match=message):
        on_cpu(aten.cat.default, [x, host])
    with pytest.raises(RuntimeError, match=message):
        on_cpu(aten.erfinv.out, x, out=torch.empty(()))
    same(on_cpu(aten.add.Tensor, x, torch.tensor(2.0)), torch.full((3,), 3.0))
    same(aten.index(x, [torch.tensor([0, 1])]), torch.ones(2))


def test_errors_of_the_kernel_pass_and_leave_all_as_it_was(device: str) -> None:
    x = data(4, 4).to(device)
    with pytest.raises(IndexError, match="Dimension out of range"):
        on_cpu(aten.kthvalue.default, x, 1, 7)
    with pytest.raises(RuntimeError, match="can't be cast"):
        on_cpu(aten.erfinv.out, x, out=torch.empty(4, 4, dtype=torch.int64, device=device))
    same(x, data(4, 4))


def test_neither_the_device_nor_the_cpu_has_a_kernel(device: str) -> None:
    library.define("nowhere(Tensor x) -> Tensor")
    with pytest.raises(NotImplementedError, match=r"nowhere has no kernel for device .* none for the CPU"):
        torch.ops.torchgraft_test_fallback.nowhere(torch.ones(2, device=device))


def test_results_that_the_device_cannot_hold(device: str) -> None:
    with pytest.raises(NotImplementedError, match="cannot hold"):
        on_cpu(aten.to_mkldnn.default, torch.ones(2, device=device))


# ---- modes ----------------------------------------------------------------------------------------------------------


def test_warns_once_for_each_op_naming_the_line(device: str) -> None:
    x = torch.ones(3, device=device)
    torchgraft.reset_fallback_report(warnings=True)
    with warnings.catch_warnings(record=True) as caught, torchgraft.fallback("warn"):
        warnings.simplefilter("always")
        for _ in range(2):
            on_cpu(aten.special_i1e.default, x)
            on_cpu(aten.special_i0e.default, x)
    # Where nothing can be compiled there is one for the device: see the next test.
    assert len(caught) == (1 if device == "npy" else 2)
    text = str(caught[0].message)
    assert caught[0].category is UserWarning
    assert caught[0].filename == __file__
    assert torch.device(device).type in text
    assert "fallback_report" in text
    if device != "npy":
        assert NAME in text
        assert __file__ in text


def test_a_device_without_a_compiler_is_warned_of_once(script: Script) -> None:
    """Not each of its ops: nearly all of them run on the CPU."""
    out = script("""
        import warnings
        import torch, torchgraft
        from numpy_driver import NumpyDriver

        torchgraft.register("npy", [NumpyDriver()])
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(2):
                x = torch.ones(3, device="npy").mul(2).exp().sum()
            torchgraft.reset_fallback_report()
            x.sin()
            torch.ones(3, device="npy:1").sin()
            torchgraft.reset_fallback_report(warnings=True)
            x.cos()
        for each in caught:
            print(each.filename, str(each.message)[:13], "has no kernel compiler" in str(each.message))
        print(len(torchgraft.fallback_report()))
    """)
    assert out.splitlines() == [f"<string> device 'npy:{n} True" for n in (0, 1, 0)] + ["1"]


def test_printing_warns_once(script: Script) -> None:
    """Of a device that plans: not of each op that printing calls; programs are warned of these all the same."""
    script("""
        import warnings
        import torch, torchgraft
        from operator_driver import OperatorDriver

        driver = OperatorDriver()
        driver.refuses = {"pointwise", "reduce", "copy", "gather", "cat"}
        torchgraft.register("npu", [driver])

        def told(call):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                call()
            return [str(each.message) for each in caught]

        x = torch.randn(3, 4).to("npu")
        (text,) = told(lambda: str(x))
        assert text.startswith("to print a tensor, aten::") and "the library has no" in text, text
        assert told(lambda: repr(torch.randn(2, 2).to("npu"))) == []
        used = set(row.op for row in torchgraft.fallback_report())
        assert len(used) > 3, used
        assert any("aten::abs runs on the CPU" in each for each in told(x.abs))
        assert told(x.abs) == []
        torchgraft.reset_fallback_report(warnings=True)
        assert len(told(lambda: str(x))) == 1
    """)


def test_a_warning_may_be_an_error(device: str) -> None:
    x = torch.ones(3, device=device)
    torchgraft.reset_fallback_report(warnings=True)
    with warnings.catch_warnings(), torchgraft.fallback("warn"):
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="no kernel compiler" if device == "npy" else "special_i1e"):
            on_cpu(aten.special_i1e.default, x)


def test_error(device: str) -> None:
    x = torch.ones(3, device=device)
    with torchgraft.fallback("error"), pytest.raises(NotImplementedError) as error:
        on_cpu(aten.special_i1e.default, x)
    text = str(error.value)
    assert "special_i1e_default has no kernel for device" in text
    assert __file__ in text
    assert "torchgraft.fallback('silent')" in text
    assert NAME not in torchgraft.fallback_report()


def test_modes_nest(device: str) -> None:
    assert torchgraft.fallback.get_mode() == "silent"
    with torchgraft.fallback("error"):
        with torchgraft.fallback("warn"):
            assert torchgraft.fallback.get_mode() == "warn"
        assert torchgraft.fallback.get_mode() == "error"
        torchgraft.fallback.set_mode("silent")
        assert torchgraft.fallback.get_mode() == "error"
    torchgraft.fallback.set_mode("warn")
    assert torchgraft.fallback.get_mode() == "silent"

    @torchgraft.fallback("error")
    def inner() -> str:
        return torchgraft.fallback.get_mode()

    assert (inner(), inner()) == ("error", "error")
    with pytest.raises(ValueError, match="'warn', 'silent', 'error'"):
        torchgraft.fallback("loud")  # type: ignore[arg-type]


def test_the_mode_holds_for_threads_of_autograd(device: str) -> None:
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> Any:
            return on_cpu(aten.special_i1e.default, gradient)

    x = torch.ones(3, device=device, requires_grad=True)
    y, gradient = Twice.apply(x), torch.ones(3, device=device)
    with torchgraft.fallback("error"), pytest.raises(NotImplementedError, match="special_i1e"):
        y.backward(gradient)


@pytest.mark.quick(setting=["error", "loud"])
@pytest.mark.parametrize(
    ("setting", "mode"), [("error", "error"), ("Silent", "silent"), ("", "warn"), ("loud", "warn")]
)
def test_environment(setting: str, mode: str) -> None:
    code = "import torch, torchgraft; print(torchgraft.fallback.get_mode())"
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "TORCHGRAFT_FALLBACK": setting},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.split() == [mode]


# ---- the report -----------------------------------------------------------------------------------------------------


def test_report(device: str) -> None:
    x = torch.ones(256).to(device)
    for _ in range(3):
        on_cpu(aten.special_i1e.default, x)
    row = torchgraft.fallback_report()[NAME]
    assert row.calls == 3
    assert row.bytes_to_device == 3 * 1024
    unified = torch.device(device).type == "ocl" and row.bytes_to_host == 0
    assert unified or row.bytes_to_host == 3 * 1024
    assert 0 < row.seconds < 10
    assert [place.rpartition(":")[0] for place in row.places] == [__file__]
    text = str(torchgraft.fallback_report())
    assert NAME in text
    assert "1 ops, 3 calls" in text
    torchgraft.reset_fallback_report()
    assert len(torchgraft.fallback_report()) == 0
    assert "no op has run" in str(torchgraft.fallback_report())
    with pytest.raises(KeyError):
        torchgraft.fallback_report()[NAME]


def test_places_of_every_call(device: str) -> None:
    x, op = torch.ones(3, device=device), twin(aten.special_i1e.default)
    with torchgraft.fallback("silent", places=True):
        for _ in range(2):
            op(x)
        op(x)
    assert sorted(torchgraft.fallback_report()[NAME].places.values()) == [1, 2]


def test_counts_are_right_with_threads(device: str) -> None:
    x = torch.ones(64, device=device)

    def work() -> None:
        for _ in range(100):
            on_cpu(aten.special_i1e.default, x)

    in_threads(*[work] * 4)
    row = torchgraft.fallback_report()[NAME]
    assert row.calls == 400
    assert row.bytes_to_device == 400 * 256
