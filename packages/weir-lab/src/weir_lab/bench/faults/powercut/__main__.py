"""`python -m weir_lab.bench.faults.powercut`: cut the power of nodes under load, and see what is
left.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from itertools import count
from statistics import median

import msgspec

from weir.errors import WeirError
from weir_lab.bench.faults.powercut.machine import KERNEL
from weir_lab.bench.faults.powercut.rounds import Result, Round, Shape, measure
from weir_lab.bench.harness.network import enter


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 if nothing was lost or repeated, 1 if something was, 2 if it could not be tried."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    parser = argparse.ArgumentParser(
        prog="python -m weir_lab.bench.faults.powercut", description=__doc__
    )
    parser.add_argument("--nodes", type=int, choices=(1, 3), default=Shape().nodes)
    parser.add_argument("--tiers", action="store_true", help="a core node and relays below it")
    parser.add_argument("--times", type=int, default=Shape().times, help="with --tiers, of each")
    parser.add_argument("--seed", type=int, default=Shape().seed, help="what it hits, and when")
    parser.add_argument(
        "--never-sync", action="store_true", help="plant a node that lies: it must be caught"
    )
    parser.add_argument("--lease-s", type=float, default=Shape().lease_s, help="of the consumer")
    parser.add_argument("--json", action="store_true")
    wanted = parser.parse_args(given)
    shape = Shape(
        wanted.nodes, wanted.times, wanted.seed, wanted.never_sync, wanted.lease_s, wanted.tiers
    )
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


def heading(shape: Shape) -> str:
    """Return what is about to happen."""
    machines = "one Linux kernel" if shape.nodes == 1 else f"{shape.nodes} Linux kernels"
    what = f"{machines}, each with a node"
    if shape.tiers:
        what = "three Linux kernels, with a core node, a tandem relay and an access relay, each"
    lie = "\nNothing is synced, though the nodes say so: messages must be lost." * shape.never_sync
    return (
        f"Power cuts: {what} and an ext4 disk; seed {shape.seed}.{lie}\n\n"
        "round  power lost by          confirmed before   all up and flowing   longest silence"
    )


def line(number: int, one: Round) -> str:
    """Return a line of the table."""
    who = " ".join(one.victims) + ", twice" * one.again
    return f"{number:5}  {who:21}  {one.confirmed:16,}  {one.up_s:17.1f} s  {one.dark_s:14.1f} s"


def summary(result: Result) -> str:
    """Return what came of it."""
    verdict = result.verdict
    ups = [one.up_s for one in result.rounds]
    back = f"Back after {median(ups):.1f} s (median), {max(ups):.1f} s (most). " if ups else ""
    order = ""
    if result.shape.tiers:
        order = f"given to readers {verdict.read:,}   differing {verdict.differing:,}\n"
        pulled = "   ".join(f"{tier} {size:,}" for tier, size in sorted(result.pulled.items()))
        order += f"bytes that the access relay pulled, by tier: {pulled}\n"
    word = "Everything is as it was confirmed." if result.clean else "NOT as it was confirmed."
    if result.refused:
        word += f" The nodes refused to go on: {result.refused}"
    return (
        f"\n{result.cuts} power cuts in {result.seconds:.0f} s. {back}\n"
        f"sent {verdict.sent:,}   confirmed {verdict.confirmed:,}   "
        f"delivered {verdict.delivered:,}, 2 ms of work each   acked {verdict.acked:,}\n"
        f"lost {verdict.lost:,}   undelivered {verdict.undelivered:,}   "
        f"repeated {verdict.repeated:,}   reordered {verdict.reordered:,}   "
        f"strange {verdict.strange:,}   not done {result.lag:,}\n{order}"
        f"worked on again before the ack {verdict.again:,}\n"
        f"{word}"
    )


if __name__ == "__main__":
    sys.exit(main())
