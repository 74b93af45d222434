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
from weir_lab.bench.faults.upgrade.run import NODES, upgrade


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 if nothing was lost, repeated or in another order, else 1."""
    parser = argparse.ArgumentParser(
        prog="python -m weir_lab.bench.faults.upgrade", description=__doc__
    )
    parser.add_argument("--root", type=Path, default=Path.cwd(), help="the clone")
    parser.add_argument("--back", type=int, default=NODES, help="how many nodes go back once")
    parser.add_argument("--json", action="store_true", help="print all figures as JSON")
    given = parser.parse_args(arguments)
    if not 0 <= given.back <= NODES:
        parser.error(f"--back: a number from 0 to {NODES}")
    try:
        release = release_before(given.root)
        with tempfile.TemporaryDirectory(prefix="weir-upgrade-") as folder:
            found = asyncio.run(upgrade(Path(folder), release, given.back))
    except WeirError as error:
        print(f"upgrade: {error}", file=sys.stderr)
        return 2
    wrong = found.lost or found.repeated or found.reordered or found.differing
    if given.json:
        print(msgspec.json.format(msgspec.json.encode(found)).decode())
    else:
        print(
            f"{found.steps} steps between {found.before} and this release in {found.seconds:g} s: "
            f"{found.messages:,} messages, lost {found.lost}, repeated {found.repeated}, "
            f"reordered {found.reordered}, differing {found.differing}"
        )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
