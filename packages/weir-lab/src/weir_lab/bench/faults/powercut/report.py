"""What people read of a run of power cuts, while it goes on and at its end."""

from __future__ import annotations

from statistics import median

from weir_lab.bench.faults.powercut.rounds import Result, Round, Shape


def heading(shape: Shape) -> str:
    """Return what is about to happen."""
    machines = "one Linux kernel" if shape.nodes == 1 else f"{shape.nodes} Linux kernels"
    lie = "\nNothing is synced, though the nodes say so: messages must be lost." * shape.never_sync
    return (
        f"Power cuts: {machines}, each with a node and an ext4 disk; seed {shape.seed}.{lie}\n\n"
        "round  power lost by         confirmed before   all up and flowing   longest silence"
    )


def line(number: int, one: Round) -> str:
    """Return a line of the table."""
    who = " and ".join(f"{node}" for node in one.victims)
    who = ("node " if len(one.victims) == 1 else "nodes ") + who + ", twice" * one.again
    return f"{number:5}  {who:20}  {one.confirmed:16,}  {one.up_s:17.1f} s  {one.dark_s:14.1f} s"


def summary(result: Result) -> str:
    """Return what came of it."""
    verdict = result.verdict
    ups = [one.up_s for one in result.rounds]
    back = f"Back after {median(ups):.1f} s (median), {max(ups):.1f} s (most). " if ups else ""
    word = "Everything is as it was confirmed." if result.clean else "NOT as it was confirmed."
    if result.refused:
        word += f" The nodes refused to go on: {result.refused}"
    return (
        f"\n{result.cuts} power cuts in {result.seconds:.0f} s. {back}\n"
        f"sent {verdict.sent:,}   confirmed {verdict.confirmed:,}   "
        f"delivered {verdict.delivered:,}, 2 ms of work each   acked {verdict.acked:,}\n"
        f"lost {verdict.lost:,}   undelivered {verdict.undelivered:,}   "
        f"repeated {verdict.repeated:,}   reordered {verdict.reordered:,}   "
        f"strange {verdict.strange:,}   not done {result.lag:,}\n"
        f"worked on again before the ack {verdict.again:,}\n"
        f"{word}"
    )
