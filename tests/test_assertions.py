"""Errors that kernels find, such as an index out of range: each is raised by the call or the stream that made it."""

from __future__ import annotations

import threading
from collections import Counter

import pytest
import torch
from conftest import Script, in_threads

acc = torch.accelerator


class TestReportedErrors:
    """What kernels find and the host raises later."""

    def report(self, message: str, position: int) -> None:
        from torchgraft import _C

        _C._report_error_as_kernel(0, _C.error_code(message, True), position)

    @pytest.mark.parametrize("position", [0, -1, 2**40, -(2**40)])
    def test_synchronize_raises_it_once(self, device: str, position: int) -> None:
        self.report("index {} is out of bounds", position)
        with pytest.raises(IndexError, match=f"index {position} is out of bounds"):
            acc.synchronize()
        acc.synchronize()

    def test_a_stream_raises_it(self, device: str) -> None:
        self.report("bad value", 0)
        with pytest.raises(IndexError, match="bad value"):
            acc.current_stream().synchronize()

    def test_an_event_raises_it(self, device: str) -> None:
        event = torch.Event(device=device)
        self.report("bad value", 0)
        event.record()
        assert event.query() in (True, False)  # asking raises nothing
        with pytest.raises(IndexError, match="bad value"):
            event.synchronize()
        event.synchronize()

    def test_reading_a_result_raises_it(self, device: str) -> None:
        x = torch.ones(3, device=device)
        self.report("index {} is out of bounds", 9)
        with pytest.raises(IndexError, match="index 9"):
            x.cpu()
        assert x.cpu().tolist() == [1, 1, 1]

    def test_equal_messages_share_a_code(self, device: str) -> None:
        from torchgraft import _C

        assert _C.error_code("one", True) == _C.error_code("one", True) != _C.error_code("another", True)

    def test_a_stream_keeps_what_other_streams_do_not_ask_for(self, device: str) -> None:
        first, second = torch.Stream(device=device), torch.Stream(device=device)
        for stream, message in ((first, "of the first"), (second, "of the second")):
            with stream:
                self.report(message, 0)
        acc.current_stream().synchronize()
        torch.ones(3, device=device).cpu()
        for stream, message in ((second, "of the second"), (first, "of the first")):
            with pytest.raises(IndexError, match=message):
                stream.synchronize()
            stream.synchronize()

    def test_an_event_raises_its_streams_only(self, device: str) -> None:
        guilty, other = torch.Stream(device=device), torch.Stream(device=device)
        with guilty:
            self.report("bad value", 0)
        event = torch.Event(device=device)
        event.record(other)
        event.synchronize()
        with pytest.raises(IndexError, match="bad value"):
            guilty.synchronize()

    def test_a_stream_that_waits_for_another_takes_its_errors_over(self, device: str) -> None:
        """Its results may be made of what the other has spoilt."""
        guilty, following = torch.Stream(device=device), torch.Stream(device=device)
        with guilty:
            self.report("bad value", 0)
        following.wait_stream(guilty)
        with pytest.raises(IndexError, match="bad value"):
            following.synchronize()
        following.synchronize()
        guilty.synchronize()
        with guilty:
            self.report("a later one", 0)
        following.synchronize()
        with pytest.raises(IndexError, match="a later one"):
            guilty.synchronize()

    def test_a_wait_for_the_device_leaves_other_threads_their_errors(self, device: str) -> None:
        reported, waited = threading.Event(), threading.Event()
        raised: list[str] = []

        def work() -> None:
            with torch.Stream(device=device):
                self.report("bad value", 0)
                reported.set()
                waited.wait()
                try:
                    acc.synchronize()
                except IndexError as error:
                    raised.append(str(error))

        def wait() -> None:  # in a new thread, which has not used that stream of the pool before
            reported.wait()
            try:
                acc.synchronize()
            finally:
                waited.set()

        in_threads(work, wait)
        assert raised == ["bad value"]


def test_an_index_error_is_the_guilty_calls(device: str) -> None:
    """Threads that share a stream: each call that is wrong raises, and no other."""
    seen: Counter[str] = Counter()
    over = threading.Event()

    def innocent() -> None:
        while not over.is_set():
            try:
                right = (torch.ones(100, device=device) + 1).cpu().eq(2).all()
                seen["right" if right else "wrong"] += 1
            except IndexError:
                seen["an innocent call raised"] += 1

    def careful() -> None:
        x = torch.arange(10.0, device=device)
        places = torch.tensor([3, 7], device=device)
        while not over.is_set():
            try:
                seen["right" if x[places].cpu().tolist() == [3, 7] else "wrong"] += 1
            except IndexError:
                seen["a call with good indices raised"] += 1

    def guilty(index: int) -> None:
        x = torch.arange(10.0, device=device)
        places = torch.tensor([3, index], device=device)
        for _ in range(150):
            try:
                x[places].cpu()
                seen["silent"] += 1
            except IndexError as error:
                seen["guilty" if str(index) in str(error) else "another's error"] += 1

    def guilty_pair() -> None:
        in_threads(lambda: guilty(77), lambda: guilty(-55))
        over.set()

    in_threads(innocent, innocent, careful, guilty_pair)
    assert seen.pop("right") > 0
    assert seen == {"guilty": 300}


@pytest.mark.thorough
@pytest.mark.parametrize("unified", [False, True])
def test_a_device_that_is_no_cpu(script: Script, unified: bool) -> None:
    """Calls do not wait there: the error is the stream's. Here a GPU is played by a CPU that says it is one."""
    script(
        """
        import dataclasses, importlib.util, threading
        from pathlib import Path
        import torch, torchgraft
        from torchgraft.driver import Capability, DeviceKind
        from torchgraft.driver_table import TableDriver

        class Gpu(TableDriver):
            def device_properties(self, device):
                found = super().device_properties(device)
                capabilities = found.capabilities if UNIFIED else found.capabilities & ~Capability.UNIFIED_MEMORY
                return dataclasses.replace(found, kind=DeviceKind.GPU, capabilities=capabilities)

        package = Path(importlib.util.find_spec("torchgraft_opencl").origin).parent
        torchgraft.register("gpu", [Gpu.load(package / "libtorchgraft_opencl.so")])
        x = torch.arange(10.0, device="gpu")
        good, bad = torch.tensor([3, 7], device="gpu"), torch.tensor([3, 70], device="gpu")
        x[good].cpu()

        def raises(function):
            try:
                function()
            except IndexError as error:
                assert "70" in str(error), error
                return True
            return False

        y = x[bad]  # the call goes on
        assert raises(y.cpu) and not raises(y.cpu)

        seen = dict.fromkeys(["innocent", "guilty", "silent"], 0)
        def innocent():
            with torch.Stream(device="gpu"):
                while not over.is_set():
                    seen["innocent"] += raises(lambda: (x[good] + 1).cpu()) + raises(torch.gpu.synchronize)
        def guilty():
            with torch.Stream(device="gpu") as stream:
                for _ in range(60):
                    y = x[bad]
                    seen["guilty" if raises(stream.synchronize) else "silent"] += 1
        over = threading.Event()
        watchers = [threading.Thread(target=innocent) for _ in range(2)]
        makers = [threading.Thread(target=guilty) for _ in range(2)]
        for thread in watchers + makers: thread.start()
        for thread in makers: thread.join()
        over.set()
        for thread in watchers: thread.join()
        assert seen == {"innocent": 0, "guilty": 120, "silent": 0}, seen
        """.replace("UNIFIED", str(unified), 1)
    )
