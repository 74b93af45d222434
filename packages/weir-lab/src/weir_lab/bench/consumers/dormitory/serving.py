"""A server without a broker: `python -m weir_lab.bench.consumers.dormitory.serving`, led over its
pipes.

Each process listens on the same port. A lock sends its record and is answered with a byte once the
record is committed: no dialect could cost less.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Protocol, cast

import msgspec
from sqlalchemy.exc import SQLAlchemyError

from weir.errors import Reject
from weir_lab.bench.consumers.dormitory.ledger import Ledger
from weir_lab.bench.harness.led import Orders, Ready, be_led, report
from weir_lab.bench.sides.devices import VALUE_BYTES

#: Connections that the kernel keeps until they are taken; asyncio's own 100 would turn locks away.
_BACKLOG = 8_192
_DONE = b"\1"
_WORDS_MAX = 200


class BackEnd(msgspec.Struct, frozen=True):
    """Where to listen, or what broker's port to connect to."""

    port: int


class Kept(msgspec.Struct, frozen=True, tag="kept"):
    """How many records a process has kept, and what kept it from others."""

    records: int
    problems: dict[str, int]


class Keeper(Protocol):
    """What commits a record."""

    async def keep_value(self, value: bytes) -> None:
        """Return when it is committed."""


class Keeping:
    """Records that are being kept, each by a task."""

    def __init__(self, ledger: Keeper) -> None:
        """Begin with none."""
        self._ledger = ledger
        self._tasks: set[asyncio.Task[None]] = set()
        self._records = 0
        self._problems: Counter[str] = Counter()

    def begin(self, value: bytes, transport: asyncio.WriteTransport, done: bytes) -> None:
        """Keep a record; `done` is written once that is committed."""
        task = asyncio.ensure_future(self._keep(value, transport, done))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @property
    def under_way(self) -> int:
        """How many are being kept."""
        return len(self._tasks)

    def result(self) -> Kept:
        """Return what became of all so far."""
        return Kept(self._records, dict(self._problems))

    def failed(self, why: str) -> None:
        """Count what kept a record from being kept, or might have."""
        self._problems[why[:_WORDS_MAX]] += 1

    async def _keep(self, value: bytes, transport: asyncio.WriteTransport, done: bytes) -> None:
        try:
            await self._ledger.keep_value(value)
        except (OSError, Reject, SQLAlchemyError) as error:
            self.failed(str(error))
            return
        self._records += 1
        transport.write(done)


class Door(asyncio.Protocol):
    """A lock that has connected."""

    def __init__(self, keeping: Keeping) -> None:
        """Wait for its record."""
        self._keeping = keeping
        self._transport: asyncio.Transport | None = None
        self._said = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by descent

    def data_received(self, data: bytes) -> None:
        """Keep a record that is whole."""
        assert self._transport is not None
        self._said += data
        while len(self._said) >= VALUE_BYTES:
            value, self._said = self._said[:VALUE_BYTES], self._said[VALUE_BYTES:]
            self._keeping.begin(value, self._transport, _DONE)


async def serve(plan: BackEnd, orders: Orders) -> Kept:
    """Serve until told to stop."""
    ledger = Ledger()
    await ledger.open()
    keeping = Keeping(ledger)
    server = await asyncio.get_running_loop().create_server(
        lambda: Door(keeping), "127.0.0.1", plan.port, reuse_port=True, backlog=_BACKLOG
    )
    report(Ready())
    await orders.get()
    server.close()
    return keeping.result()


if __name__ == "__main__":
    be_led(BackEnd, serve)
