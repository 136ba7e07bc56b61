"""Lists the devices that all drivers offer, used or not, with the numbers that TORCHGRAFT_DEVICES takes.

Exit status: 0 if at least one is used, otherwise 1.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from torchgraft.diagnosis.child import add_backend_arguments, start

__all__ = ["HELP", "add_arguments", "run"]

HELP = "the devices: number, name, driver, kind, memory, capabilities"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_backend_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print JSON: backend, devices, errors")


def run(arguments: argparse.Namespace) -> int:
    child = start("torchgraft.diagnosis.listing", arguments.backend, arguments.modules)
    printed, said = child.communicate()
    if child.returncode != 0:
        print(f"{said.decode(errors='replace')}\ntorchgraft devices: a driver has not survived", file=sys.stderr)
        return 1
    listing = json.loads(printed)
    if arguments.json:
        print(json.dumps(listing, indent=2))
    else:
        for device in listing["devices"]:
            print(_text(device))
        if not listing["devices"]:
            print("no devices")
        if listing["errors"]:
            print(f"{listing['errors']}\n`torchgraft doctor` tells more.", file=sys.stderr)
    return 0 if any(device["device"] for device in listing["devices"]) else 1


def _text(row: dict[str, Any]) -> str:
    use = row["device"] or "not used"
    if row["duplicate_of"] is not None:
        use += f", the same device as {row['duplicate_of']}"
    details = {
        "driver": f"{row['driver']} ({row['driver_version']})" if row["driver_version"] else row["driver"],
        "platform": row["platform"],
        "memory": f"{row['total_memory'] / (1 << 20):.0f} MiB",
        "can": ", ".join(row["capabilities"]).lower().replace("_", " "),
        "uuid": row["uuid"],
    }
    lines = [f"{row['number']}  {use}: {row['name']}, {row['kind']}"]
    return "\n".join([*lines, *(f"     {key:9} {value}" for key, value in details.items() if value)])
