"""A shard process of a node, started by the supervisor.

`python -m weir.server.processes.shard_process CHANNEL SOCKET...`

Those are file descriptors: its end of the control channel, and the sockets that all shards listen
on. It ends with the supervisor, whatever becomes of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import sys
from asyncio import Event, Queue
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Any

from weir.errors import WeirError
from weir.host.supervision import ALIVE_SECONDS
from weir.server.assembly import ShardSlot, drain, hosting
from weir.server.driver import Driver
from weir.server.interpreter import run_loop
from weir.server.network.poller import ListeningSocket, listening
from weir.server.observability.monitoring import observed
from weir.server.processes.control_channel import (
    Alive,
    Assignment,
    Away,
    ControlChannel,
    Drained,
    Failed,
    NewTrunk,
    Ready,
    Stop,
    ToShard,
    TrunkLost,
)
from weir.server.status import configure

log = logging.getLogger(__name__)

EXIT_FAILED = 1
#: The supervisor is gone, and with it everybody who would start this process again.
EXIT_ORPHANED = 2
#: So long others let a connection wait that the system dealt to a shard: a short while beside what
#: connecting takes, and a turn of a loop that has time for it.
_DEALT_SECONDS = 0.002


class _ShardControl:
    """What the supervisor asks of this process, and is told by it."""

    def __init__(self, end: socket.socket) -> None:
        self.assignment: asyncio.Future[Assignment] = asyncio.get_running_loop().create_future()
        self.stopping = Event()
        #: Whether it has been ready.
        self.served = False
        self.channel = ControlChannel(end, ToShard, self._received, _end)
        #: The shards of the node that do not serve now.
        self.away: tuple[int, ...] = ()
        self._trunks: Queue[tuple[NewTrunk, socket.socket] | Away] = Queue()

    def _received(self, message: ToShard, end: socket.socket | None) -> None:
        match message:
            case Assignment():
                self.assignment.set_result(message)
            case NewTrunk():
                assert end is not None
                self._trunks.put_nowait((message, end))
            case Stop():
                self.stopping.set()
            case Away(shards):
                self.away = shards
                self._trunks.put_nowait(message)

    def trunk_lost(self, shard: int) -> None:
        """Ask for another trunk to a shard."""
        self.channel.tell(TrunkLost(shard))

    @contextlib.asynccontextmanager
    async def joining(self, driver: Driver) -> AsyncIterator[None]:
        """Take trunks as they come, and leave shards that stand still."""

        async def join() -> None:
            while True:
                match await self._trunks.get():
                    case Away(_, silent):
                        driver.leave(silent)
                    case trunk, end:
                        await driver.join(end, trunk.shard, trunk.asks)

        async with _running(join(), "weir trunks"):
            yield

    @contextlib.asynccontextmanager
    async def living(self) -> AsyncIterator[None]:
        """Tell again and again that this loop turns."""

        async def tell() -> None:
            while True:
                self.channel.tell(Alive())
                await asyncio.sleep(ALIVE_SECONDS)

        async with _running(tell(), "weir alive"):
            yield


@contextlib.asynccontextmanager
async def _running(doing: Coroutine[Any, Any, None], name: str) -> AsyncIterator[None]:
    task = asyncio.get_running_loop().create_task(doing, name=name)
    task.add_done_callback(_end_if_failed)
    try:
        yield
    finally:
        task.cancel()


def _end_if_failed(task: asyncio.Task[None]) -> None:
    """End the process: a shard without its trunks or its sign of life is none."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.critical("%s ended", task.get_name(), exc_info=error)
        logging.shutdown()
        os._exit(EXIT_FAILED)


async def _be_shard(control: _ShardControl, handles: Sequence[int]) -> bool:
    given = await control.assignment
    configure(given.config.status, shard=given.shard)
    share = ShardSlot(given.shard, given.shards, given.ports)
    host, own = given.config.node.host, given.ports[given.shard]
    listeners = [
        ListeningSocket(
            fileno=handle, accept_delay=0.0 if n % given.shards == given.shard else _DEALT_SECONDS
        )
        for n, handle in enumerate(handles)
    ]
    async with (
        control.living(),
        hosting(given.config, given.founded, share, control.trunk_lost) as (driver, shard),
        observed(driver, shard, given.config, control.stopping, lambda: control.away),
        control.joining(driver),
    ):
        try:
            async with listening(driver, host, own, listeners):
                if await _unless(control.stopping, driver.start()):
                    control.served = True
                    control.channel.tell(Ready())
                    await driver.wait(control.stopping)
        finally:
            drained = await drain(driver, shard, given.config.stop.drain_seconds)
    return drained


async def _unless(stopping: Event, doing: Coroutine[Any, Any, None]) -> bool:
    """Return whether something was done before `stopping` was set."""
    done = asyncio.ensure_future(doing)
    stop = asyncio.ensure_future(stopping.wait())
    try:
        await asyncio.wait({done, stop}, return_when=asyncio.FIRST_COMPLETED)
        if done.done():
            done.result()
        return done.done()
    finally:
        done.cancel()
        stop.cancel()


async def _main(channel: int, *handles: int) -> int:
    control = _ShardControl(socket.socket(fileno=channel))
    try:
        drained = await _be_shard(control, handles)
    except (WeirError, OSError) as error:
        if control.served:  # it could serve, so the next start may as well
            log.critical("the shard ends", exc_info=error)
        else:
            control.channel.tell(_failed(error))
        return EXIT_FAILED
    control.channel.tell(Drained(drained))
    return 0


def _failed(error: WeirError | OSError) -> Failed:
    if isinstance(error, OSError) and error.errno:
        file = None if error.filename is None else str(error.filename)
        return Failed(error.strerror or str(error), error.errno, file)
    return Failed(str(error))


def _end() -> None:
    os._exit(EXIT_ORPHANED)


if __name__ == "__main__":
    sys.exit(run_loop(_main(*map(int, sys.argv[1:]))))
