"""Requests and replies of consumers that read a topic in total order, in turn (DESIGN §5 Consume).

They go to partition 0, whose group keeps the cursors. Vectors are offsets by partition.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from weir.model.ids import Address, Natural
from weir.model.limits import PARTITIONS_PER_TOPIC_MAX
from weir.protocol.client.control import Control

Offsets = Annotated[tuple[Natural, ...], msgspec.Meta(max_length=PARTITIONS_PER_TOPIC_MAX)]


class TakeTurn(Control, frozen=True, array_like=True):
    """Ask for the turn of `cluster`, and wait for it for `wait_ms` at most.

    A cluster that was never here begins at `offsets`.
    """

    address: Address
    cluster: str
    offsets: Offsets
    lease_ms: Natural = 30_000
    wait_ms: Natural = 0


class Turn(Control, frozen=True, array_like=True):
    """The turn, until `deadline`, a stamp by the leader's wall clock: all below `offsets` is done.

    `attempts` counts the turns that began here, this one included. `fence` 0: time ran out, and it
    is another's.
    """

    fence: Natural
    deadline: Natural = 0
    offsets: Offsets = ()
    attempts: Natural = 0


class MoveCursor(Control, frozen=True, array_like=True):
    """Say that all below `offsets` is done, and keep the turn for `lease_ms` more.

    If it `ends` the turn is given back: others may take it in `lease_ms`. It does not count as an
    attempt if it is `untried`: whoever has the turn did not begin what lies at the cursor.
    """

    address: Address
    cluster: str
    fence: Natural
    offsets: Offsets
    lease_ms: Natural
    ends: bool = False
    untried: bool = False


class Moved(Control, frozen=True, array_like=True):
    """The cursor is durable on a majority, and the turn lasts until `deadline`, as of `Turn`."""

    deadline: Natural


class SeekCursor(Control, frozen=True, array_like=True):
    """Let a cluster go on at `offsets`; whoever has its turn has it no more."""

    address: Address
    cluster: str
    offsets: Offsets
