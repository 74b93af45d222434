"""What the demo's processes are told to do, and what they agree on."""

from __future__ import annotations

import msgspec

#: An airport's first flights, at most, go out at a fixed rate, for latencies without a queue.
PACED_FLIGHTS = 660
PACED_PER_SECOND = 220
#: What an airport says it does afterwards.
FULL_SPEED = "at full speed"


def paced_count(count: int) -> int:
    """Return how many of an airport's `count` flights go out at the fixed rate."""
    return min(PACED_FLIGHTS, count // 10)


class AirportTask(msgspec.Struct, frozen=True):
    """Which airport to be, where the broker is, and the file its ledger goes to.

    `limit`: of all airports' flights in event-time order, only the first so many.
    """

    origin: str
    host: str
    port: int
    limit: int | None
    ledger: str


class CrewTask(msgspec.Struct, frozen=True):
    """Where the broker is, and the file that the ledger goes to."""

    url: str
    ledger: str


#: The copy of the flights in a topic of which only each partition has an order.
APART = "flights-apart"
#: Of each topic: all but the last read live.
READERS = 3
#: How often all readers together read a flight: each of them both topics, from end to end.
READINGS = 2 * READERS


class OrderTask(msgspec.Struct, frozen=True):
    """Where the broker is, and the file that the readers' ledger goes to."""

    url: str
    ledger: str


class PipelineTask(msgspec.Struct, frozen=True):
    """Where the broker is, the folder Spark writes to, and one for scratch files."""

    url: str
    out: str
    scratch: str


class Counted(msgspec.Struct, frozen=True):
    """What Spark counted: flights, of them cancelled, and where the table of `rows` rows lies.

    `joined` are flights whose hour has one of the `observations` of the weather up to the barrier
    of their micro-batch, `bad` are messages that are neither; their table is at `weather_path`.
    """

    flights: int
    cancelled: int
    rows: int
    path: str
    observations: int
    joined: int
    bad: int
    weather_path: str


#: In the folder Spark writes to.
COUNTED = "counted.json"
