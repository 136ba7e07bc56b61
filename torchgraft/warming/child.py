"""The process behind `torchgraft warm`: runs a workload, or a program, and prints as JSON what was compiled for it.

python -m torchgraft.warming.child REPORT WORKLOAD [MODULE ...]
python -m torchgraft.warming.child REPORT --program FILE [ARGUMENT ...]
"""

from __future__ import annotations

import json
import runpy
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

__all__ = ["main"]


def main() -> None:
    report, what, *rest = sys.argv[1:]
    begin = time.monotonic()
    done = _program(rest) if what == "--program" else _workload(what, rest)
    from torchgraft.codegen import compiler

    facts = {
        "compiled": compiler.counts.compiled,
        "loaded": compiler.counts.loaded,
        "seconds": time.monotonic() - begin,
    }
    Path(report).write_text(json.dumps({**facts, "error": done}))


def _workload(name: str, modules: list[str]) -> str:
    from torchgraft.diagnosis.listing import registered_backend

    backend = registered_backend(modules)
    import torch

    from torchgraft.warming.workloads import WORKLOADS

    warnings.simplefilter("ignore")  # fallbacks are no concern of this
    return _outcome(lambda: WORKLOADS[name](torch.device(backend)))


def _program(arguments: list[str]) -> str:
    sys.argv = arguments
    sys.path.insert(0, str(Path(arguments[0]).resolve().parent))
    return _outcome(lambda: runpy.run_path(arguments[0], run_name="__main__"))


def _outcome(run: Callable[[], object]) -> str:
    """What went wrong; nothing if nothing did."""
    try:
        run()
    except SystemExit as end:
        return "" if end.code in (None, 0) else f"exit status {end.code}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


if __name__ == "__main__":
    main()
