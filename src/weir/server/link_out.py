"""The links that this shard keeps to the shards of other nodes: dialled, lost, dialled again.

A link is a connection for each lane, and is there when they all are; with any of them it ends. The
quick lane is dialled first: where it is, there is somebody who answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import socket
from collections.abc import Iterator
from typing import Protocol

from weir.broker import events as ev
from weir.errors import RemoteProtocolError
from weir.model.ids import place_of
from weir.model.limits import LINK_HELLO_SECONDS
from weir.server.driving import Driving
from weir.server.link_lanes import Greeted, OutLane, tune
from weir.server.outlet import Outlet
from weir.server.trunk import Trunks, adopt
from weir.wire.link import (
    Lane,
    LinkAnswer,
    LinkHello,
    Verdict,
    decode_answer,
    encode_greeting,
    is_of,
)

log = logging.getLogger(__name__)

PAUSE_FIRST_SECONDS = 0.05
PAUSE_MOST_SECONDS = 1.0
#: So many different reasons are told until a link is up.
_COMPLAINTS_MAX = 8


class LinkRefused(Exception):
    """The other side answered, and will have no link."""


class Elsewhere(Exception):
    """Another shard than the one that is meant answered, and said where that is."""


class Whereabouts:
    """Where a node is reached, and what its answers told of its shards."""

    def __init__(self, node: int) -> None:
        """Know nothing yet but that there is a shard 0."""
        self.node = node
        self.shards = 1
        #: Host and port that all shards share: as the registry has them, as the node says itself.
        self.told: tuple[str, int] | None = None
        self.said: tuple[str, int] | None = None
        self._own: tuple[str, tuple[int, ...]] = ("", ())

    def learn(self, host: str, ports: tuple[int, ...]) -> None:
        """Take the ports of its shards that a node told which was reached at `host`."""
        self._own = host, ports

    def of(self, shard: int) -> list[tuple[str, int]]:
        """Return hosts and ports to dial for a shard, in the order in which to try them. Where
        shards share a port, any of them may answer.
        """
        host, ports = self._own
        own = (host, ports[shard]) if shard < len(ports) and ports[shard] else None
        return list(dict.fromkeys(one for one in (own, self.told, self.said) if one is not None))


class Dialling(Protocol):
    """What one link asks of those who keep them all."""

    driver: Driving
    trunks: Trunks
    #: The addresses of other nodes, as far as they are known.
    found: set[str]

    def hello(self, lane: Lane, node: int, shard: int) -> LinkHello:
        """Return what this shard says when it dials another."""

    def lanes_to(self, at: Whereabouts, shard: int) -> list[Lane]:
        """Return which lanes a link has, in the order to dial them."""

    def answered(self, at: Whereabouts, host: str, hello: LinkHello, answer: LinkAnswer) -> None:
        """A node that was dialled at `host` said who it is. Raises `LinkRefused` if its folder is
        another than that node's.
        """

    def tell(self, event: ev.LinkOpened | ev.LinkClosed) -> None:
        """Tell the shard what became of a link."""


class Outbound:
    """The link from this shard to one of another node, kept up by a task until `close`."""

    def __init__(self, links: Dialling, at: Whereabouts, shard: int) -> None:
        """Begin to dial."""
        self.place = place_of(at.node, shard)
        self._links = links
        self._at = at
        self._shard = shard
        self._lanes: dict[Lane, Outlet] = {}
        self._up = False
        self._loop = asyncio.get_running_loop()
        self._over: asyncio.Future[str] = self._loop.create_future()
        self._complaints: set[str] = set()
        self._nudged = asyncio.Event()
        self._run = 0
        #: What was said when the last lane was opened, and the answer.
        self._greeted: tuple[LinkHello, LinkAnswer] | None = None
        self._task = self._loop.create_task(self._keep(), name="weir link")
        self._task.add_done_callback(_tell_if_failed)

    def lane(self, quick: bool) -> Outlet | None:
        """Return where frames are to be written; None while the link is down."""
        return self._lanes.get(Lane.QUICK if quick else Lane.BULK) if self._up else None

    def tick(self) -> None:
        """Look after the lanes."""
        for lane in list(self._lanes.values()):
            if isinstance(lane, OutLane):
                lane.tick()

    def close(self) -> None:
        """End the link for good, once what was written is out."""
        self._task.cancel()
        lanes, self._lanes = self._lanes, {}
        for lane in lanes.values():
            lane.close()
        if self._up:
            self._up = False
            log.info("%s is let go", self._name(), extra=self._fields())
            self._links.tell(ev.LinkClosed(self.place))

    def expect(self, birth: int) -> None:
        """End the link if it is to another folder than the one that was founded as this node."""
        if self._greeted is not None and not is_of(self._greeted[1], self._greeted[0], birth):
            self._ended(founded_anew(self._at.node))

    def nudge(self) -> None:
        """Dial soon: the other side is known to be there."""
        self._nudged.set()

    async def _keep(self) -> None:
        tries, redirected = 0, False
        pause = pauses()
        while True:
            try:
                tries, why = 0, await self._once(tries)
            except Elsewhere as error:
                # The shard's own port is known now: unless that is what answered, it does at once.
                tries, why = 0, str(error)
                redirected = not redirected
                if redirected:
                    continue
            except LinkRefused as error:
                tries, why = tries + 1, str(error)
            redirected = False
            if self._down(why):
                pause = pauses()
            await self._rest(next(pause))

    async def _rest(self, seconds: float) -> None:
        self._nudged.clear()
        await asyncio.sleep(min(seconds, PAUSE_FIRST_SECONDS))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._nudged.wait(), max(0.0, seconds - PAUSE_FIRST_SECONDS))

    async def _once(self, tries: int) -> str:
        """Dial all lanes; return why the link ended."""
        self._over = self._loop.create_future()
        try:
            for lane in self._links.lanes_to(self._at, self._shard):
                await self._open(lane, tries)
            if not self._over.done():
                self._came_up()
            return await self._over
        finally:
            for outlet in self._lanes.values():
                outlet.cut()
            self._lanes.clear()
            self._greeted = None  # who answers next may be another

    async def _open(self, lane: Lane, tries: int) -> None:
        places = self._at.of(self._shard)
        host, port = places[tries % len(places)]
        hello = self._links.hello(lane, self._at.node, self._shard)
        try:
            transport, answer = await dial(self._links.found, host, port, hello, tries)
        except (OSError, ValueError, RemoteProtocolError) as error:  # ValueError: no name at all
            raise LinkRefused(f"{_at(host, port)}: {_in_words(error)}") from None
        try:
            self._links.answered(self._at, host, hello, answer)
            self._check(answer, _at(host, port))
        except BaseException:
            transport.abort()
            raise
        if lane is Lane.TRUNK:
            self._lanes[lane] = self._links.trunks.ask(
                self.place, transport, lambda _: self._ended("its trunk broke")
            )
        else:
            quick = lane is Lane.QUICK
            out = self._lanes[lane] = OutLane(self._links.driver, quick, self._ended)
            adopt(transport, out)
        self._run, self._greeted = answer.run, (hello, answer)

    def _check(self, answer: LinkAnswer, where: str) -> None:
        if answer.verdict == Verdict.ELSEWHERE and answer.node == self._at.node:
            raise Elsewhere(f"{where} is shard {answer.shard}")
        if answer.verdict != Verdict.ACCEPTED:
            raise LinkRefused(f"{where} refused it: {answer.reason}")
        if (answer.node, answer.shard) != (self._at.node, self._shard):
            raise LinkRefused(f"{where} is shard {answer.shard} of node {answer.node}")

    def _ended(self, why: str) -> None:
        if not self._over.done():
            self._over.set_result(why)

    def _came_up(self) -> None:
        self._up = True
        self._complaints.clear()
        log.info("%s is linked", self._name(), extra=self._fields())
        if Lane.BULK in self._lanes:
            self._links.tell(ev.LinkOpened(self.place, self._at.shards, self._run))

    def _down(self, why: str) -> bool:
        """Say that the link is down, and why; return whether it was up."""
        was_up, self._up = self._up, False
        if was_up:
            log.warning("%s is linked no more: %s", self._name(), why, extra=self._fields())
            self._links.tell(ev.LinkClosed(self.place))
        elif why not in self._complaints and len(self._complaints) < _COMPLAINTS_MAX:
            self._complaints.add(why)
            log.warning("%s has no link yet: %s", self._name(), why, extra=self._fields())
        return was_up

    def _name(self) -> str:
        return f"shard {self._shard} of node {self._at.node}"

    def _fields(self) -> dict[str, dict[str, int]]:
        return {"fields": {"peer_node": self._at.node, "peer_shard": self._shard}}


async def dial(
    found: set[str], host: str, port: int, hello: LinkHello, tries: int
) -> tuple[asyncio.Transport, LinkAnswer]:
    """Connect, say hello, and return the answer, whatever it is. The addresses that a name has are
    added to `found`, and tried in turn. Raises `OSError`, `RemoteProtocolError`, or `ValueError`
    for a host that cannot be one, within seconds.
    """
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(LINK_HELLO_SECONDS):
        infos = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        found.update(str(address[0]) for *_, address in infos)
        family, kind, protocol, _, address = infos[tries % len(infos)]
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            tune(sock)
            await loop.sock_connect(sock, address)
            transport, greeted = await loop.create_connection(Greeted, sock=sock)
        except BaseException:
            sock.close()
            raise
        try:
            transport.write(encode_greeting(hello))
            return transport, decode_answer(await greeted.heard())
        except BaseException:
            transport.abort()
            raise


def founded_anew(node: int) -> str:
    """Return why there is no link to a node, or from it, whose folder is another than it had."""
    return (
        f"node {node} of this set has another data folder: start it with that one. If that is "
        "lost, add a node under another number (`weir node add`), then drain and remove node "
        f"{node}"
    )


def pauses() -> Iterator[float]:
    """Yield how long to wait before dialling again: longer each time, and never quite the same, so
    that all those who lost a node do not come back together.
    """
    pause = PAUSE_FIRST_SECONDS
    while True:
        yield pause * random.uniform(0.5, 1.0)
        pause = min(2 * pause, PAUSE_MOST_SECONDS)


def _tell_if_failed(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.critical("a link is dialled no more", exc_info=error)


def _at(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _in_words(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {LINK_HELLO_SECONDS:g} s"
    number = error.errno if isinstance(error, OSError) else None
    if number is not None and number > 0:
        return os.strerror(number)
    return str(error) or type(error).__name__
