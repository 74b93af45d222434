"""How fast a log is verified: `python -m weir.bench.scrub --messages 8000000` prints JSON.

A node takes messages of 100 bytes in batches of 1,000 and is stopped; `weir inspect --verify` then
reads every byte of its log, which is in the page cache: what is timed is the checking.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import tempfile
from pathlib import Path

import msgspec

from weir.bench.children import environment, python
from weir.bench.loop import run
from weir.bench.machine import Machine, this_machine
from weir.bench.node import running_node
from weir.bench.own import Own
from weir.bench.side import topic_name
from weir.errors import WeirError

_SIZE = 100
_DEADLINE_S = 300.0
_VERIFIED = re.compile(r"([\d,.]+) MiB verified, ([\d,]+) MB/s")


class ScrubFailed(WeirError):
    """The log was not found sound; the message holds what was said of it."""


class Result(msgspec.Struct, frozen=True):
    """MB (10^6 bytes) a second over all files of the log."""

    machine: Machine
    messages: int
    verified_mib: float
    mb_per_s: float


def measure(messages: int, folder: str | None = None) -> Result:
    """Fill a log, stop its node, verify it. Raises `ScrubFailed`."""
    with tempfile.TemporaryDirectory(prefix="weir-bench-", dir=folder) as name:
        data = Path(name) / "data"
        with running_node(data) as node:
            run(_fill(Own(node), messages))
        done = subprocess.run(
            python("weir.cli", "inspect", str(data), "--verify"),
            env=environment(),
            capture_output=True,
            text=True,
            timeout=_DEADLINE_S,
            check=False,
        )
    found = _VERIFIED.search(done.stdout)
    if done.returncode or found is None:
        raise ScrubFailed(f"the log was not found sound: {(done.stderr or done.stdout)[-500:]}")
    mib, rate = (float(number.replace(",", "")) for number in found.groups())
    return Result(this_machine(), messages, mib, rate)


async def _fill(side: Own, messages: int) -> None:
    topic = topic_name(1)
    await side.prepare(topic)
    async with side.crew(topic, [messages], _SIZE, _DEADLINE_S) as crew:
        await crew.ready()
        crew.go()
        await crew.done()


def main() -> None:
    """Measure as much as the command line says."""
    parser = argparse.ArgumentParser(prog="python -m weir.bench.scrub")
    parser.add_argument("--messages", type=int, default=8_000_000)
    parser.add_argument("--folder", help="where the log is to lie for the moment")
    wanted = parser.parse_args()
    result = measure(wanted.messages, wanted.folder)
    print(msgspec.json.format(msgspec.json.encode(result)).decode())


if __name__ == "__main__":
    main()
