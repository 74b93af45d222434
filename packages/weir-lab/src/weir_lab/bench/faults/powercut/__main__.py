"""`python -m weir_lab.bench.faults.powercut`: cut the power of nodes under load, and see what is
left.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from itertools import count

import msgspec

from weir.errors import WeirError
from weir_lab.bench.faults.powercut.machine import KERNEL
from weir_lab.bench.faults.powercut.report import heading, line, summary
from weir_lab.bench.faults.powercut.rounds import Round, Shape, measure
from weir_lab.bench.harness.network import enter


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 if nothing was lost or repeated, 1 if something was, 2 if it could not be tried."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    parser = argparse.ArgumentParser(
        prog="python -m weir_lab.bench.faults.powercut", description=__doc__
    )
    parser.add_argument("--nodes", type=int, choices=(1, 3), default=Shape().nodes)
    parser.add_argument("--times", type=int, default=Shape().times)
    parser.add_argument("--seed", type=int, default=Shape().seed, help="of whom it hits, and when")
    parser.add_argument(
        "--never-sync", action="store_true", help="plant a node that lies: it must be caught"
    )
    parser.add_argument("--lease-s", type=float, default=Shape().lease_s, help="of the consumer")
    parser.add_argument("--json", action="store_true")
    wanted = parser.parse_args(given)
    shape = Shape(wanted.nodes, wanted.times, wanted.seed, wanted.never_sync, wanted.lease_s)
    numbers = count(1)

    def tell(one: Round) -> None:
        print(line(next(numbers), one), file=sys.stderr if wanted.json else sys.stdout, flush=True)

    try:
        enter("weir_lab.bench.faults.powercut", given, (KERNEL, "mkfs.ext4", "cc"))
        print(heading(shape), file=sys.stderr if wanted.json else sys.stdout, flush=True)
        result = asyncio.run(measure(shape, tell))
    except WeirError as error:
        print(error, file=sys.stderr)
        return 2
    if wanted.json:
        print(msgspec.json.format(msgspec.json.encode(result)).decode())
    else:
        print(summary(result))
    return 0 if result.clean else 1


if __name__ == "__main__":
    sys.exit(main())
