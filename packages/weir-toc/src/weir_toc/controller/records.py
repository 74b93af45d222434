"""What the controller's log holds: each record is applied by all members, in one order."""

from __future__ import annotations

from dataclasses import dataclass

from weir_toc.congestion import MARK_ABOVE
from weir_toc.controller.entries import (
    Completed,
    Decide,
    InputSilent,
    LinkJoined,
    NodeSilent,
    ProcessJoined,
    Recalled,
)


@dataclass(frozen=True, slots=True)
class Founded:
    """The first record: the network, as `Topology.tree` builds it; its interval T in ns."""

    racks: int
    spines: int
    cores: int
    interval: int
    #: Where its barriers are aggregated, as `Place` names it.
    place: str = "host"
    #: The phantom queue of each output: bytes per 2^20 ns, and bytes. No marks at a rate of 0.
    drain_rate: int = 0
    mark_above: int = MARK_ABOVE


@dataclass(frozen=True, slots=True)
class Registered:
    """A process asks for an id under a name. `nonce` tells a repeated request from another's."""

    name: str
    rack: int
    nonce: int


@dataclass(frozen=True, slots=True)
class SwitchStarted:
    """An aggregator runs for a switch, and takes packets at this address."""

    switch: int
    incarnation: int
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Removed:
    """A switch has obeyed a `Remove`."""

    switch: int
    neighbour: int
    epoch: int
    holds: bool = False


@dataclass(frozen=True, slots=True)
class Lapsed:
    """A process that has an id has not joined, and is not connected any more: its name is free."""

    process: int


@dataclass(frozen=True, slots=True)
class Returned:
    """A process that was excluded runs again. It holds messages of these senders, all of them at or
    below a stamp that the commit barrier has passed, and asks what became of them.
    """

    process: int
    through: int
    senders: tuple[int, ...]


Report = ProcessJoined | LinkJoined | InputSilent | Completed | Removed | Recalled | Returned


@dataclass(frozen=True, slots=True)
class Reported:
    """What a node reported, with its number: it may be sent again, and counts once."""

    node: int
    incarnation: int
    number: int
    report: Report


Record = Founded | Registered | SwitchStarted | Reported | NodeSilent | Decide | Lapsed
