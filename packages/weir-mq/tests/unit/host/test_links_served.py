"""Links that other nodes dialled: without a network, in time that is given."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from types import SimpleNamespace
from typing import Any

import msgspec

from weir.broker.api import effects as ef
from weir.broker.api import events as ev
from weir.broker.api.settings import Identity, Member
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

    def __init__(
        self, members: tuple[Member, ...] = (), births: dict[int, int] | None = None
    ) -> None:
        """With `births`, it was in a closed set when it ended, and has heard nothing since."""
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
        own = ShardInfo(Identity(7, 0, 1, members=members, birth=5), 2)
        trunks = Trunks(local, self.remote_peers, nobody)
        self.links = Links(
            local, trunks, own, {}, set(), 1, dialer, random, births is not None, births or {}
        )
        self.links.connect(ef.Connect(2, "two", 6800))

    def later(self, seconds: float, act: Callable[[], None]) -> Callable[[], None]:
        waiting = self.timers if seconds else self.behind
        waiting.append(act)
        return lambda: waiting.remove(act)

    def dialled(
        self,
        lane: Lane,
        node: int = 2,
        certified: Certified | None = None,
        birth: int = 0,
        key: bytes = b"",
    ) -> tuple[Transport, ShardConnection]:
        """Return a connection that a node made."""
        transport: Any = Transport()
        hello = LinkHello(
            link.LINK_PROTOCOL, 7, 0, node, 0, 1, 2, 1, 9, lane, 1, 0, "two", 6800, birth, 7
        )
        proof, joins = link.vouch(birth, hello), link.announce(key, hello)
        hello = msgspec.structs.replace(hello, proof=proof, joins=joins)
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
    world.links.connect(ef.Connect(2, "two", 6800, 55))
    world.links.guard(ef.GuardLinks(named_only=True))
    assert early.closed
    refused, _ = world.dialled(Lane.QUICK, 3)
    assert refused.closed
    (answer,) = refused.data
    assert b"node 3 is not known here" in answer
    for served in (
        world.dialled(Lane.QUICK, 2, birth=55),
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


# -- nodes that were added -----------------------------------------------------------------------

KEY, OTHER_KEY = link.join_key(b"s" * 16), link.join_key(b"t" * 16)


def why(transport: Transport) -> bytes:
    """Return how a link was answered that is closed."""
    assert transport.closed
    return b"".join(transport.data)


def test_an_added_node_proves_that_it_is_the_one_that_was_added() -> None:
    """Counterexample: until it came, somebody else could come in its place."""
    world = World()
    world.links.guard(ef.GuardLinks(named_only=True))
    assert b"does not prove" in why(world.dialled(Lane.QUICK, birth=8)[0])
    assert b"does not prove" in why(world.dialled(Lane.QUICK, birth=8, key=KEY)[0])
    world.links.connect(ef.Connect(2, "two", 6800, join_key=KEY))
    for key in (b"", OTHER_KEY):
        assert b"does not prove" in why(world.dialled(Lane.QUICK, birth=8, key=key)[0])
    assert not world.dialled(Lane.QUICK, birth=8, key=KEY)[0].closed
    assert not world.dialled(Lane.QUICK, certified=Certified(2))[0].closed, "or by a certificate"


def test_a_join_key_is_spent_at_first_use() -> None:
    """Whoever founds the node again with the same command is another folder."""
    world = World()
    world.links.guard(ef.GuardLinks(named_only=True))
    world.links.connect(ef.Connect(2, "two", 6800, join_key=KEY))
    first, _ = world.dialled(Lane.QUICK, birth=8, key=KEY)
    world.links.connect(ef.Connect(2, "two", 6800, 8))
    assert not first.closed
    assert b"another data folder" in why(world.dialled(Lane.QUICK, birth=9, key=KEY)[0])
    assert not world.dialled(Lane.QUICK, birth=8)[0].closed


def test_a_node_that_joined_by_a_key_is_cut_once_another_folder_is_known() -> None:
    world = World()
    world.links.guard(ef.GuardLinks(named_only=True))
    world.links.connect(ef.Connect(2, "two", 6800, join_key=KEY))
    other, _ = world.dialled(Lane.QUICK, birth=9, key=KEY)
    world.links.connect(ef.Connect(2, "two", 6800, 8))
    assert other.closed


def test_a_founder_that_never_came_needs_no_key() -> None:
    world = World((Member(1, "one", 6800), Member(2, "two", 6800)))
    world.links.guard(ef.GuardLinks(named_only=True))
    assert not world.dialled(Lane.QUICK, birth=8)[0].closed


FOUNDERS = Member(1, "one", 6800), Member(2, "two", 6800)


def test_a_founder_proves_its_birth_before_the_registry_is_read() -> None:
    """Counterexample: while a node of a closed set started, whoever named a founder was let in."""
    world = World(FOUNDERS, {2: 8})
    for birth in (0, 9):
        assert b"another data folder" in why(world.dialled(Lane.QUICK, birth=birth)[0])
    served, _ = world.dialled(Lane.QUICK, birth=8)
    assert not served.closed
    world.links.connect(ef.Connect(2, "two", 6800, 8))
    world.links.guard(ef.GuardLinks(named_only=True))
    assert not served.closed


def test_a_node_that_joined_links_before_the_registry_is_read_here() -> None:
    """Else two nodes that start again at once could not read it: each waits for the other."""
    world = World(births={3: 8})
    assert not world.dialled(Lane.QUICK, 3, birth=8)[0].closed
    assert world.dialled(Lane.QUICK, 3, birth=9)[0].closed
    assert world.dialled(Lane.QUICK, 4, birth=8)[0].closed


def test_a_node_that_was_removed_while_this_one_was_down_is_served_until_that_is_known() -> None:
    """Its birth is known from the last run. The core names it once it has read the registry."""
    world = World(births={3: 8})
    served, _ = world.dialled(Lane.QUICK, 3, birth=8)
    assert not served.closed
    assert 3 in world.links.nodes, "it is linked back to"
    world.links.disconnect(ef.Disconnect(3))
    world.turns()
    assert served.closed
    assert 3 not in world.links.nodes
    assert b"was removed from this set" in why(world.dialled(Lane.QUICK, 3, birth=8)[0])
    assert 3 not in world.links.nodes


def test_in_an_open_set_no_key_is_asked_for() -> None:
    world = World()
    world.links.connect(ef.Connect(2, "two", 6800, join_key=KEY))
    served, _ = world.dialled(Lane.QUICK, birth=8)
    assert not served.closed
    world.links.guard(ef.GuardLinks(named_only=True))
    assert served.closed, "it comes again, with its key"


def test_a_key_is_of_one_hello() -> None:
    """Said by another node, to another node, or of another folder, it shows nothing."""
    hello = LinkHello(1, 7, 0, 2, 0, 1, 2, 1, 9, Lane.QUICK, 1, 0, "two", 6800, 8, 5)
    said = msgspec.structs.replace(hello, joins=link.announce(KEY, hello))
    assert link.is_expected(said, KEY)
    assert not link.is_expected(said, OTHER_KEY)
    assert not link.is_expected(hello, b"")
    assert not link.is_expected(said, b"")
    for change in ({"system": 8}, {"node": 3}, {"to_node": 4}, {"nonce": 6}, {"birth": 9}):
        assert not link.is_expected(msgspec.structs.replace(said, **change), KEY), change


def test_a_node_that_a_promotion_left_behind_is_told_so_with_a_proof() -> None:
    world = World(births={2: 8, 3: 8})
    world.links.disconnect(ef.Disconnect(2, 4))
    world.links.disconnect(ef.Disconnect(3))
    world.turns()
    answers = []
    for node in (2, 3):
        transport, _ = world.dialled(Lane.QUICK, node, birth=8)
        answers.append(link.decode_answer(b"".join(transport.data)[4:]))
        assert transport.closed
    told, removed = answers
    assert (told.verdict, told.lineage) == (link.Verdict.REMOVED, 4)
    assert "another core set was promoted without node 2 (lineage 4)" in told.reason
    assert told.proof
    assert (removed.verdict, removed.lineage, removed.proof) == (link.Verdict.REMOVED, 0, b"")
