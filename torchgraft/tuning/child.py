"""The process that measures: answers each line of its input, a JSON object, by one of its output.

python -m torchgraft.tuning.child INDEX [MODULE ...]

The first line it writes tells of the device. A request has "family", "tuning" and "seconds" (of a measurement of one
workload); the answer has "times", seconds by workload, or "error".
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from typing import Any

import torch

from torchgraft.codegen.tuning import Room, Tuning, as_json, device_class, families, from_json
from torchgraft.tuning.workloads import WORKLOADS, Workload

__all__ = ["main"]


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what drivers print is not to be mixed with the answers
    from torchgraft.diagnosis.listing import registered_backend

    index, *modules = sys.argv[1:]
    device = torch.device(registered_backend(modules), int(index))
    warnings.simplefilter("ignore")  # what the fallback says

    def answer(what: object) -> None:
        print(json.dumps(what), file=answers, flush=True)

    try:
        bench = _Bench(device)
        answer(bench.device_facts())
    except Exception as error:
        answer({"error": f"{type(error).__name__}: {error}"})
        return
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer({"times": bench.times(request["family"], bench.tuning(request["tuning"]), request["seconds"])})
        except Exception as error:
            answer({"error": f"{type(error).__name__}: {error}"})


class _Bench:
    """Operands and right results of the workloads, made when they are first needed."""

    def __init__(self, device: torch.device) -> None:
        from torchgraft.plans.device import described

        self.device, self.index = device, device.index
        self._properties = described(self.index)
        self._known: dict[tuple[str, str], tuple[list[torch.Tensor], list[torch.Tensor]]] = {}

    def device_facts(self) -> dict[str, Any]:
        from torchgraft.plans.device import device_traits, kernel_form

        traits, form = device_traits(self.index), kernel_form(self.index)
        if not traits.has_compiler:
            raise NotImplementedError(f"{self.device} ({traits.name}) has no kernel compiler: there is nothing to tune")
        row = device_class(traits.kind, traits.simd_width, traits.matrix_units)
        return {
            "properties": {k: v for k, v in self._properties.items() if isinstance(v, (str, int))},
            "form": form,
            "families": families(traits.target(form)),
            "tuning": as_json(traits.tuning),
            "class": f"{row.name}, measured on {row.measured}",
            "usual": as_json(row.sizes),
        }

    def tuning(self, given: object) -> Tuning:
        return from_json(given, Room.of(self._properties))

    def times(self, family: str, tuning: Tuning, seconds: float) -> dict[str, float]:
        """The shortest times of a call, in seconds, of the family's workloads.

        Raises:
            ArithmeticError: a result is wrong.
        """
        from torchgraft.plans.device import set_tuning

        # The sizes of kernels are not to be measured with operators.
        os.environ["TORCHGRAFT_PREFER"] = "" if family == "operators" else "kernels"
        set_tuning(self.index, tuning)
        return {name: self._time(family, name, workload, seconds) for name, workload in WORKLOADS[family].items()}

    @torch.no_grad()
    def _time(self, family: str, name: str, workload: Workload, seconds: float) -> float:
        if (family, name) not in self._known:
            operands = workload.operands()
            right = workload.run(*operands)
            self._known[family, name] = [x.to(self.device) for x in operands], right
        operands, right = self._known[family, name]
        for got, wanted in zip(workload.run(*operands), right, strict=True):
            off = (got.cpu().double() - wanted.double()).abs().max() / wanted.double().abs().max()
            if not off <= workload.tolerance:
                raise ArithmeticError(f"{name}: a result is off by {off:.1e} of the largest")
        return self._shortest(workload, operands, seconds)

    def _shortest(self, workload: Workload, operands: list[torch.Tensor], seconds: float) -> float:
        """Of batches of calls that follow each other, each long enough for the clock."""
        module = torch.get_device_module(self.device)
        calls, best, end = 1, float("inf"), time.perf_counter() + seconds
        while True:
            begin = time.perf_counter()
            for _ in range(calls):
                workload.run(*operands)
            module.synchronize(self.device)
            now = time.perf_counter()
            if now - begin < seconds / 10:
                calls *= 2
            else:
                best = min(best, (now - begin) / calls)
            if now > end and best < float("inf"):
                return best


if __name__ == "__main__":
    main()
