"""A driver in the hands of a test, which does what loop, disk and peers do by themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

from weir.broker.api import effects as ef
from weir.broker.api import events as ev
from weir.host.links import ShardInfo
from weir.host.trunks import RemotePeer, Trunks
from weir.server.driver import Driver, TimedTurns


def receive(driver: Driver, session: int, frames: Sequence[Any]) -> None:
    """Let a connection bring frames, and the shard take them."""
    driver._queue.receive(session, frames)
    driver._turns.run()


def arrive(driver: Driver, event: ev.Arrived) -> None:
    """Let devices come at once, and the shard take them."""
    driver._queue.arrive(event)
    driver._turns.run()


def run(driver: Driver) -> None:
    """Let the shard take what waits."""
    driver._turns.run()


def waiting(driver: Driver) -> list[ev.Event]:
    """Return the events that the shard has yet to take."""
    return list(driver._queue.events)


def do(driver: Driver, *effects: ef.Effect) -> None:
    """Do what the shard might ask for."""
    driver._turns.do(list(effects))


def is_held(driver: Driver) -> bool:
    """Whether connections are not read from, for the budget is used up."""
    return driver._queue.held


def hold(driver: Driver) -> None:
    """Read from no connection: the budget is used up."""
    driver._queue.held = True


def peers(driver: Driver) -> dict[int, Any]:
    """Return the open connections, by session."""
    return cast(dict[int, Any], driver._connections.open_now)


def is_read(peer: Any) -> bool:
    """Whether a connection is read from."""
    return bool(peer._transport.is_reading())


def is_broken(driver: Driver) -> bool:
    """Whether the shard broke."""
    return driver._lifecycle.broken.exception() is not None


def end(driver: Driver) -> None:
    """End its ticks and threads; may come twice."""
    if driver._ticker is not None:
        driver._ticker.cancel()
    driver._pool.shutdown()


def end_flushes(driver: Driver) -> None:
    """End what flushes run on, of a driver that is not stopped."""
    driver._flushes.stop()


def call_later_by(driver: Driver, loop: Any) -> None:
    """Let what flushes wait for come by another loop."""
    cast(TimedTurns, driver._flushes._host)._loop = cast(asyncio.AbstractEventLoop, loop)


def flushed_alone(driver: Driver, log: int, flush: Any, times: int, seconds: float) -> None:
    """Let it know a disk that is quick, from so many flushes."""
    for _ in range(times):
        driver._flushes._schedule.flushed(log, flush, seconds)


def begin_flushes(driver: Driver, effect: ef.StartFlush, times: int) -> None:
    """Let it begin so many flushes, and do none of them."""
    for _ in range(times):
        driver._flushes._schedule.start(effect)


def requests_heard(driver: Driver) -> int:
    """Return how many requests it counts to tell a lone writer by."""
    return driver._flushes._schedule.asked


def hang(driver: Driver) -> None:
    """Do no flush any more: the disk hangs."""
    actions: dict[type, Callable[..., None]] = driver._turns._actions
    actions[ef.StartFlush] = lambda effect: None


def be_at(driver: Driver, own: ShardInfo) -> None:
    """Say this of itself to those who link with it."""
    driver.links._own = own


def own_of(driver: Driver) -> ShardInfo:
    """Return what it says of itself."""
    return driver.links._own


def ends_of(trunks: Trunks) -> list[Any]:
    """Return the ends of the trunks to other shards."""
    return list(trunks._ends())


def remote_peers(trunks: Trunks) -> dict[int, RemotePeer]:
    """Return the peers of other shards that are known, by session."""
    return cast(dict[int, RemotePeer], trunks._remote_peers)


@contextmanager
def writes_of(end: Any) -> Iterator[list[bytes]]:
    """Yield what an end writes meanwhile, each write by itself; nothing of it goes out."""
    written: list[bytes] = []
    honest = end._transport
    end._transport = SimpleNamespace(
        writelines=lambda buffers: written.append(b"".join(buffers)),
        get_write_buffer_size=lambda: 0,
    )
    try:
        yield written
    finally:
        end._transport = honest


def frame_of(peer: Any) -> Any:
    """Return the large frame that comes over a connection, if one does."""
    return peer._frame


def is_over(poller: Any) -> bool:
    """Whether a poller waits for nobody any more."""
    return bool(poller._epoll.closed)


def disk_of(node: Any) -> Any:
    """Return the disk of a node in memory."""
    return node._disk
