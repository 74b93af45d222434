"""What Spark's checkpoint says of a step: the stamp up to which each micro-batch reads.

Spark writes `offsets/<number>` before a micro-batch and `commits/<number>` behind it: a line with
the version, one of settings, and one for each source.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from weir.errors import CheckpointMismatch


@dataclass(frozen=True, slots=True)
class End:
    """Where a micro-batch of a step ends: at `stamp`, with so many `rows` since the beginning, of
    which `late` ones were left out.
    """

    stamp: int
    rows: int
    late: int = 0


def last(checkpoint: Path, log: str) -> int:
    """Return the last number in a log, "offsets" or "commits"; -1 where there is none."""
    names = (checkpoint / log).glob("[0-9]*")
    return max((int(path.name) for path in names if path.name.isdecimal()), default=-1)


def is_unfinished(checkpoint: Path) -> bool:
    """Whether a micro-batch was begun that did not end."""
    return last(checkpoint, "offsets") > last(checkpoint, "commits")


def end(checkpoint: Path, number: int) -> End:
    """Return where a micro-batch ends. Raises `CheckpointMismatch`, also if its sources do not end
    at one stamp.
    """
    path = checkpoint / "offsets" / str(number)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        ends = [_end(line) for line in _sources(lines)]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointMismatch(
            f"{path} is not what Spark wrote for a lake ({type(error).__name__}): delete "
            f"{checkpoint} and the step's table, and the step is made again"
        ) from None
    cuts = {(one.stamp, one.rows) for one in ends}
    if len(cuts) != 1:
        raise CheckpointMismatch(f"{path}: sources end at {len(cuts)} cuts and not at one")
    return End(ends[0].stamp, ends[0].rows, sum(one.late for one in ends))


def _sources(lines: Sequence[str]) -> Sequence[str]:
    if not lines or lines[0] != "v1":
        raise ValueError(f"version {lines[:1]}")
    return lines[2:]


def _end(line: str) -> End:
    told = json.loads(line)
    return End(int(told["s"]), int(told["n"]), int(told.get("l", 0)))
