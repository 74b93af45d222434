"""Who this shard is: in every hello, so that nobody joins or refills from a stranger."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Identity:
    """System, BrokerSet, node and shard ids. The system id is drawn once, when it is founded."""

    system: int
    brokerset: int = 0
    node: int = 1
    shard: int = 0
