"""`python -m weir_lab.bench.faults.upgrade`: upgrade a set under load from the release before.

It runs in a clone of the repository, whose history has that release; its wheels are built once, and
kept in the folder `build`.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from weir.errors import WeirError
from weir_lab.bench.faults.upgrade.releases import release_before
from weir_lab.bench.faults.upgrade.run import NODES, Result, upgrade
from weir_lab.bench.faults.upgrade.spark import SparkResult, spark_upgrade


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 if nothing was lost, repeated or in another order, else 1."""
    parser = argparse.ArgumentParser(
        prog="python -m weir_lab.bench.faults.upgrade", description=__doc__
    )
    parser.add_argument("--root", type=Path, default=Path.cwd(), help="the clone")
    parser.add_argument("--back", type=int, default=NODES, help="how many nodes go back once")
    parser.add_argument("--spark", action="store_true", help="upgrade a Spark query instead")
    parser.add_argument("--json", action="store_true", help="print all figures as JSON")
    given = parser.parse_args(arguments)
    if not 0 <= given.back <= NODES:
        parser.error(f"--back: a number from 0 to {NODES}")
    try:
        release = release_before(given.root)
        with tempfile.TemporaryDirectory(prefix="weir-upgrade-") as folder:
            at = Path(folder)
            found: Result | SparkResult = (
                spark_upgrade(at, release)
                if given.spark
                else asyncio.run(upgrade(at, release, given.back))
            )
    except WeirError as error:
        print(f"upgrade: {error}", file=sys.stderr)
        return 2
    wrong = {"lost": found.lost, "repeated": found.repeated, "differing": found.differing}
    if isinstance(found, Result):
        wrong["reordered"] = found.reordered
        what = f"{found.steps} steps"
    else:
        what = f"{found.runs} runs of a query"
    if given.json:
        print(msgspec.json.format(msgspec.json.encode(found)).decode())
    else:
        counts = ", ".join(f"{name} {count}" for name, count in wrong.items())
        print(
            f"{what} between {found.before} and this release in {found.seconds:g} s: "
            f"{found.messages:,} messages, {counts}"
        )
    return 1 if any(wrong.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
