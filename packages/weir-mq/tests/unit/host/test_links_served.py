"""Links that other nodes dialled: without a network, in time that is given."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from types import SimpleNamespace
from typing import Any

from weir.broker.api import effects as ef
from weir.broker.api import events as ev
from weir.broker.api.settings import Identity
from weir.broker.runtime.budget import Budget
from weir.host.greeting import Certified
from weir.host.links import Links, ShardInfo
from weir.host.shard_connections import LocalShard, ShardConnection
from weir.host.trunks import Trunks, nobody
from weir.protocol import link, trunk
from weir.protocol.link import Lane, LinkHello
from weir.protocol.trunk import Kind


class Transport:
    """Keeps what is written while it is open."""

    def __init__(self) -> None:
        self.data: list[bytes] = []
        self.closed = False

    def write(self, data: bytes) -> None:
        if not self.closed:
            self.data.append(bytes(data))

    def writelines(self, buffers: Any) -> None:
        self.write(b"".join(buffers))

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.closed

    def abort(self) -> None:
        self.closed = True

    def resume_reading(self) -> None:
        """Read on."""

    close = abort


class World:
    """Node 1, which node 2 dials."""

    def __init__(self) -> None:
        self.heard: list[ev.Event] = []
        #: What is done behind the turn under way, and what once seconds have passed.
        self.behind: list[Callable[[], None]] = []
        self.timers: list[Callable[[], None]] = []
        self.remote_peers: dict[int, Any] = {}
        sessions = count(1)
        queue: Any = SimpleNamespace(put=self.heard.append, held=False, receive=lambda *_: None)
        connections: Any = SimpleNamespace(
            time=lambda: 0.0, reservations=SimpleNamespace(limit=1 << 20), unserved=[],
            new_session=lambda: next(sessions), receive=lambda *_: None,
        )  # fmt: skip
        log: Any = SimpleNamespace(
            info=lambda *_, **__: None, warning=lambda *_, **__: None, error=lambda *_, **__: None
        )
        shard: Any = SimpleNamespace(budget=Budget(100), passed_on=lambda *_: None)
        random: Any = SimpleNamespace(getrandbits=lambda bits: 7, uniform=lambda least, most: most)
        dialer: Any = SimpleNamespace(dial=lambda *_: None)
        local = LocalShard(shard, queue, connections, self.behind.append, self.later, log)
        own = ShardInfo(Identity(7, 0, 1, birth=5), 2)
        trunks = Trunks(local, self.remote_peers, nobody)
        self.links = Links(local, trunks, own, {}, set(), 1, dialer, random)
        self.links.connect(ef.Connect(2, "two", 6800))

    def later(self, seconds: float, act: Callable[[], None]) -> Callable[[], None]:
        waiting = self.timers if seconds else self.behind
        waiting.append(act)
        return lambda: waiting.remove(act)

    def dialled(
        self, lane: Lane, node: int = 2, certified: Certified | None = None
    ) -> tuple[Transport, ShardConnection]:
        """Return a connection that a node made."""
        transport: Any = Transport()
        hello = LinkHello(link.LINK_PROTOCOL, 7, 0, node, 0, 1, 2, 1, 9, lane, 1, 0, "two", 6800)
        return transport, self.links.accept(transport, link.encode_greeting(hello), "", certified)

    def turns(self) -> None:
        while self.behind:
            self.behind.pop(0)()


def test_replies_of_the_turn_of_a_disconnect_go_out() -> None:
    """What a node confirms as it stops must reach those who came by way of another node."""
    world = World()
    world.dialled(Lane.QUICK)
    transport, connection = world.dialled(Lane.TRUNK)
    connection.handler.receive(b"".join(trunk.encode(Kind.OPENED, 3, b"who")))
    (remote_peer,) = world.remote_peers.values()
    written = len(transport.data)
    remote_peer.send((b"confirm",), 0)
    world.links.disconnect(ef.Disconnect(2))
    world.turns()
    assert b"confirm" in b"".join(transport.data[written:])
    assert transport.closed


def test_a_closed_set_takes_no_link_of_a_node_that_is_not_known() -> None:
    """What links as a node speaks for all principals: it was let in by the id of the system."""
    world = World()
    early, _ = world.dialled(Lane.QUICK, 3)
    assert not early.closed
    world.links.guard(ef.GuardLinks(named_only=True))
    assert early.closed
    refused, _ = world.dialled(Lane.QUICK, 3)
    assert refused.closed
    (answer,) = refused.data
    assert b"node 3 is not known here" in answer
    for served in (
        world.dialled(Lane.QUICK, 2),
        world.dialled(Lane.QUICK, 3, Certified(3)),
    ):
        assert not served[0].closed
    world.links.guard(ef.GuardLinks(named_only=False))
    assert not world.dialled(Lane.QUICK, 4)[0].closed


def test_whoever_greeted_is_not_kept_by_its_timer() -> None:
    world = World()
    timers = len(world.timers)
    world.dialled(Lane.QUICK)
    assert len(world.timers) == timers
    transport: Any = Transport()
    world.links.accept(transport, b"\x00" * 64, "")
    assert transport.closed
    assert len(world.timers) == timers


def test_whoever_says_nothing_is_cut_when_its_time_is_up() -> None:
    world = World()
    transport: Any = Transport()
    world.links.accept(transport, b"", "")
    world.timers[-1]()
    assert transport.closed
