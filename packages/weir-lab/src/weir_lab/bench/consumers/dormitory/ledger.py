"""What all platforms do with a record: one inbox insert, committed, over pooled connections."""

from __future__ import annotations

import asyncio
import os
import struct

from sqlalchemy import Engine, create_engine, func, select, text
from sqlalchemy.ext.asyncio import create_async_engine

from weir.app.inbox import FLOORS, METADATA, ROWS, Inbox
from weir.errors import Reject
from weir.model.message import Message
from weir_lab.bench.harness.payload import filler
from weir_lab.bench.sides.devices import VALUE_BYTES

CLUSTER = "ledger"
TOPIC = "unlocks"
#: Records that a process keeps at once, each over a connection of its own.
AT_ONCE = 16
#: The most processes of handlers, and how many there are where they do not come and go.
PROCESSES = 8
#: Where every process of a platform finds the database's URL.
DATABASE = "WEIR_BENCH_DATABASE"

_PRODUCER = struct.Struct("<I")
_PRODUCER_AT = 8
_FILLER = filler(VALUE_BYTES)


class Ledger:
    """The connections of one process."""

    def __init__(self) -> None:
        """Take the database that the environment names; `open` connects."""
        url = os.environ[DATABASE]
        self._engine = create_async_engine(url, pool_size=AT_ONCE, max_overflow=0)
        self._inbox = Inbox(CLUSTER)
        self._free = asyncio.Semaphore(AT_ONCE)

    async def open(self) -> None:
        """Open all connections, so that no record waits for one to be made."""
        connections = [self._engine.connect() for _ in range(AT_ONCE)]
        await asyncio.gather(*connections)
        await asyncio.gather(*(one.execute(text("select 1")) for one in connections))
        await asyncio.gather(*(one.close() for one in connections))

    async def keep(self, message: Message) -> None:
        """Commit a record's row, unless it is there. Raises `Reject` for one that nobody sent."""
        number_of(message.value)
        async with (
            self._free,
            self._engine.begin() as connection,
            self._inbox.once(connection, message),
        ):
            pass

    async def keep_value(self, value: bytes) -> None:
        """Keep a record that did not come through weir: its device is what it is known by."""
        number = number_of(value)
        await self.keep(Message(value, topic=TOPIC, partition=0, offset=number, stamp=number + 1))


def number_of(value: bytes) -> int:
    """Return the device that sent a record. Raises `Reject` for other bytes."""
    if len(value) != VALUE_BYTES or not value.endswith(_FILLER):
        raise Reject("this record was changed on its way")
    (number,) = _PRODUCER.unpack_from(value, _PRODUCER_AT)
    return int(number)


class Book:
    """The ledger as the one who measures sees it: empty at first, then counted."""

    def __init__(self, url: str) -> None:
        """Make empty tables in the database."""
        self._engine: Engine = create_engine(url)
        with self._engine.begin() as connection:
            METADATA.drop_all(connection)
            METADATA.create_all(connection, [ROWS, FLOORS])

    def rows(self) -> int:
        """Return how many records are kept."""
        with self._engine.connect() as connection:
            return int(connection.execute(select(func.count()).select_from(ROWS)).scalar_one())

    def close(self) -> None:
        """Let go of the database."""
        self._engine.dispose()
