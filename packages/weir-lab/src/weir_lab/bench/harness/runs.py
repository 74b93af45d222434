"""Several runs of one measurement: their list, the worst of them, and a file that keeps samples."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from weir_lab.bench.harness.machine import this_machine


def as_one(results: Sequence[dict[str, Any]], key: str, most: bool) -> dict[str, Any]:
    """Return the worst run's fields and, where there are several, all of them as `runs`.

    Worst is the run whose `key` is highest if `most`, else lowest.
    """
    if len(results) == 1:
        return results[0]
    worst = (max if most else min)(results, key=lambda result: float(result[key]))
    return {**worst, "runs": [*results]}


def record(
    path: Path | None, schema: str, settings: msgspec.Struct, result: Any, samples: Any
) -> None:
    """Append one run with its samples to a file, a line of JSON; do nothing without a file."""
    if path is None:
        return
    line = {
        "schema": schema,
        "at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": this_machine(),
        "settings": settings,
        "result": result,
        "samples": samples,
    }
    with path.open("ab") as file:
        file.write(msgspec.json.encode(line) + b"\n")
