"""The messages that each producer sends in lockstep, and whether this machine can do that."""

from __future__ import annotations

import shutil
from collections.abc import Sequence

import msgspec

from weir_lab.bench.harness.produce import Done
from weir_lab.bench.harness.producers import Crew

#: In the place of a peer's label.
OWN = "weir"
#: The dialects that the program reads the replies of, in its numbers.
DIALECTS = (OWN, "redis", "nats")


class LockstepPlan(msgspec.Struct, frozen=True):
    """How much each producer sends to the broker at a port of this machine: `shares` holds
    (producer, messages) each. `side` is `OWN` or the label of a peer.
    """

    side: str
    port: int
    topic: str
    shares: list[tuple[int, int]]
    size: int
    timeout_s: float

    @property
    def dialect(self) -> str:
        """What is spoken: a peer's name without its settings."""
        return self.side.partition(":")[0]


def compiler() -> str | None:
    """Return the C compiler of this machine; None if there is none."""
    return shutil.which("gcc") or shutil.which("cc")


def in_lockstep(
    side: str, port: int, topic: str, counts: Sequence[int], size: int, timeout_s: float
) -> Crew[Done] | None:
    """Return one process that is producer p of `counts[p]` messages on a connection each; None if
    there is no compiler, or the dialect is none that the program speaks.
    """
    plan = LockstepPlan(side, port, topic, [*enumerate(counts)], size, timeout_s)
    if compiler() is None or plan.dialect not in DIALECTS:
        return None
    return Crew("weir_lab.bench.lockstep.produce", [plan], Done)
