"""`python -m weir_lab.bench.faults.killed.worker`: one process with some of the consumers.

SIGUSR1 lets it die behind its next commit: an effect is there, and its ack is never sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType

import msgspec
from sqlalchemy import Engine, create_engine, text

from weir.app import inbox as inbox_module
from weir.app.app import App
from weir.app.inbox import Inbox
from weir.errors import Disconnected
from weir.model.message import Message

TOPIC = "unlocks"
CLUSTER = "ledger"
GRACE = "20s"
LEASE = "10s"
#: Rows of the inbox go as soon as they may: whatever is wrong with that shows sooner.
GAP_SECONDS = 0.2
_EFFECT = text("insert into effects values (:value)")


class Orders(msgspec.Struct, frozen=True):
    """What a process is to do: `consumers` of them, the first of which is number `first`.

    Each notes in `notes`, a file of all processes, what it begins to handle: an effect without an
    inbox. With one it writes into `database`. Before that it takes `work_ms`.
    """

    url: str
    database: str
    notes: str
    first: int
    consumers: int
    concurrency: int
    prune_seconds: float
    work_ms: float


class Worker:
    """The consumers of one process."""

    def __init__(self, orders: Orders) -> None:
        """Take what to do; connect to the database."""
        self._orders = orders
        connections = orders.consumers * orders.concurrency + 1
        self._engine: Engine = create_engine(orders.database, pool_size=connections, max_overflow=0)
        self._inbox = Inbox(CLUSTER, prune_every=orders.prune_seconds)
        self._notes = os.open(orders.notes, os.O_WRONLY | os.O_APPEND)
        self._dies = False

    async def run(self) -> None:
        """Handle messages until SIGTERM."""
        orders = self._orders
        signal.signal(signal.SIGUSR1, self._die_soon)
        self._inbox.create(self._engine)
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            for number in range(orders.first, orders.first + orders.consumers):
                app = App(orders.url, name=f"consumer-{number}")
                app.subscribe(
                    TOPIC,
                    cluster=CLUSTER,
                    concurrency=orders.concurrency,
                    lease=LEASE,
                    # One a process has the rows pruned, which are all consumers'.
                    inbox=self._inbox if number == orders.first else None,
                )(self._handler(number))
                group.create_task(_run(app, stop))

    def _handler(self, number: int) -> Callable[[Message], None]:
        once, work_seconds = self._inbox.once, self._orders.work_ms / 1_000

        def handle(message: Message) -> None:
            value = bytes(message.value).decode()
            os.write(self._notes, f"{value} {number}\n".encode())
            time.sleep(work_seconds)
            with self._engine.begin() as connection, once(connection, message) as fresh:
                if fresh:
                    connection.execute(_EFFECT, {"value": value})
            if self._dies:
                os.kill(os.getpid(), signal.SIGKILL)

        return handle

    def _die_soon(self, number: int, frame: FrameType | None) -> None:
        self._dies = True


async def _run(app: App, stop: asyncio.Event) -> None:
    """Run until `stop`; where everybody connects at once, a busy broker may keep one waiting."""
    while not stop.is_set():
        with contextlib.suppress(Disconnected):
            await app.run(stop=stop, grace=GRACE)


def main() -> None:
    """Do what the only word, JSON, says."""
    inbox_module.GAP = GAP_SECONDS
    asyncio.run(Worker(msgspec.json.decode(sys.argv[1], type=Orders)).run())


if __name__ == "__main__":
    main()
