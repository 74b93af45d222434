"""How a link is dialled, given up and dialled again: without a network, in time that is given."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest

from weir.broker.api import effects as ef
from weir.broker.api import events as ev
from weir.broker.api.settings import Identity
from weir.broker.runtime.budget import Budget
from weir.host.greeting import DialedConnection
from weir.host.links import Links, ShardInfo
from weir.host.shard_connections import LocalShard, ShardConnection
from weir.host.trunks import Trunks, nobody
from weir.model.ids import place_of
from weir.model.limits import LINK_HELLO_SECONDS
from weir.protocol import link, trunk
from weir.protocol.link import Lane, LinkAnswer, LinkHello, Verdict

THERE = place_of(2, 0)
BIRTH = 8


class Transport:
    """Keeps what is written."""

    def __init__(self) -> None:
        self.data = b""
        self.closed = False

    def write(self, data: bytes) -> None:
        self.data += data

    def writelines(self, buffers: Any) -> None:
        self.data += b"".join(buffers)

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.closed

    def resume_reading(self) -> None:
        pass

    def abort(self) -> None:
        self.closed = True

    close = abort


class World:
    """Node 1, whose links dial into the void; what it asks for later happens in `passes`."""

    def __init__(self) -> None:
        self.now = 0.0
        self.heard: list[ev.Event] = []
        self.dialled: list[tuple[str, int, DialedConnection]] = []
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.told: list[str] = []
        budget = Budget(100)
        queue = SimpleNamespace(put=self.heard.append, held=False)
        connections = SimpleNamespace(
            time=lambda: self.now,
            reservations=SimpleNamespace(limit=2),
            new_session=lambda: 1_000 + len(self.heard),
        )
        note = lambda text, *given, extra=None: self.told.append(text % given)  # noqa: E731
        log = SimpleNamespace(info=note, warning=note, error=note)
        shard = SimpleNamespace(budget=budget, passed_on=lambda place, size: budget.release(size))
        local = LocalShard(
            cast(Any, shard), cast(Any, queue), cast(Any, connections), lambda act: None,
            self.later, cast(Any, log),
        )  # fmt: skip
        random = SimpleNamespace(getrandbits=lambda bits: 77, uniform=lambda least, most: most)
        own = ShardInfo(Identity(7, birth=5), 2)
        self.links = Links(
            local, Trunks(local, {}, nobody), own, {}, set(), 1, cast(Any, self), cast(Any, random)
        )

    def dial(self, host: str, port: int, tries: int, dialled: DialedConnection) -> None:
        self.dialled.append((host, port, dialled))

    def later(self, seconds: float, act: Callable[[], None]) -> Callable[[], None]:
        timer = (self.now + seconds, act)
        self.timers.append(timer)
        return lambda: self.timers.remove(timer) if timer in self.timers else None

    def passes(self, seconds: float) -> None:
        until = self.now + seconds
        while due := [one for one in self.timers if one[0] <= until]:
            first = min(due, key=lambda one: one[0])
            self.timers.remove(first)
            self.now = first[0]
            first[1]()
        self.now = until

    def answer(self, **changes: Any) -> ShardConnection:
        """Answer who was dialled last."""
        dialled = self.dialled[-1][2]
        connection = dialled.connected(cast(Any, Transport()))
        said = {
            "verdict": Verdict.ACCEPTED, "reason": "", "node": 2, "shard": 0, "shards": 1,
            "level": 1, "run": 33, "proof": link.prove(BIRTH, dialled.hello), **changes,
        }  # fmt: skip
        connection.handler.receive(link.encode_greeting(LinkAnswer(**said)))
        return connection

    def kinds(self) -> list[str]:
        return [type(event).__name__ for event in self.heard]


@pytest.fixture
def world() -> World:
    world = World()
    world.links.connect(ef.Connect(2, "two", 6800))
    return world


def linked(world: World) -> list[ShardConnection]:
    return [world.answer() for _ in range(3)]


def test_lanes_are_dialled_one_by_one_and_make_a_link_together(world: World) -> None:
    connections = linked(world)
    said = [connection.transport.data for connection in cast(Any, connections)]
    hellos = [one.hello for *_, one in world.dialled]
    assert [hello.lane for hello in hellos] == [Lane.QUICK, Lane.BULK, Lane.TRUNK]
    assert all(
        data.startswith(link.encode_greeting(h)) for data, h in zip(said, hellos, strict=True)
    )
    assert world.heard == [ev.TrunkOpened(THERE), ev.LinkOpened(THERE, 1, 33, 1)]
    world.links.send(ef.SendToPeer(THERE, True, link.encode(1, 5, b"vote")))
    assert cast(Any, connections[0].transport).data.endswith(b"vote")


def test_with_any_lane_the_link_ends_and_is_dialled_again(world: World) -> None:
    connections = linked(world)
    connections[1].handler.lost("")
    assert world.heard[-1] == ev.LinkClosed(THERE)
    assert all(
        cast(Any, connection.transport).closed for connection in (connections[0], connections[2])
    )
    for connection in connections:
        connection.handler.lost("")  # of what it cut itself
    assert world.kinds().count("LinkClosed") == 1
    assert len(world.dialled) == 3
    world.passes(0.05)
    assert len(world.dialled) == 4


def test_who_does_not_answer_is_left_alone_for_longer_each_time_up_to_a_second(
    world: World,
) -> None:
    at = []
    for _ in range(8):
        at.append(world.now)
        world.dialled[-1][2].failed("Connection refused")
        count = len(world.dialled)
        while len(world.dialled) == count:
            world.passes(0.01)
    rests = [round(b - a, 1) for a, b in pairwise(at)]
    assert rests == [0.1, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert world.told == ["shard 0 of node 2 has no link yet: two:6800: Connection refused"]


def test_a_nudge_ends_the_rest_but_not_before_its_least(world: World) -> None:
    for _ in range(6):
        world.dialled[-1][2].failed("Connection refused")
        world.passes(1)
    world.dialled[-1][2].failed("Connection refused")
    count = len(world.dialled)
    hello = world.dialled[-1][2].hello
    mine = LinkHello(1, 7, 0, 2, 0, 1, 2, 1, 9, Lane.QUICK, 1, 0, "two", 6800)
    assert hello.to_node == mine.node
    caller = cast(Any, Transport())
    world.links.accept(caller, link.encode_greeting(mine), "two")
    assert len(world.dialled) == count
    world.passes(0.06)
    assert len(world.dialled) == count + 1


@pytest.mark.parametrize("shards", [1, 2])
def test_the_peers_of_all_shards_of_a_node_may_come_through_one_of_them(
    world: World, shards: int
) -> None:
    """Those of half a node were hung up where it has two shards: one of them asks for all."""
    world.links.trunks.remote_peers_max = 4
    for lane in (Lane.QUICK, Lane.TRUNK):
        hello = LinkHello(1, 7, 0, 2, 0, shards, 2, 1, 9, lane, 1, 0, "two", 6800)
        connection = world.links.accept(cast(Any, Transport()), link.encode_greeting(hello), "two")
    for session in range(1, 20):
        connection.handler.receive(b"".join(trunk.encode(trunk.Kind.OPENED, session, b"ada")))
    assert world.kinds().count("Opened") == 5 * shards


def test_an_answer_that_does_not_come_is_given_up(world: World) -> None:
    dialled = world.dialled[-1][2]
    connection = dialled.connected(cast(Any, Transport()))
    world.passes(LINK_HELLO_SECONDS)
    assert cast(Any, connection.transport).closed
    assert "no answer within 5 s" in world.told[-1]
    late = dialled.connected(cast(Any, Transport()))
    assert cast(Any, late.transport).closed


def test_another_shard_says_where_the_one_that_is_meant_listens(world: World) -> None:
    elsewhere = {"verdict": Verdict.ELSEWHERE, "shard": 1, "shards": 2, "ports": (6900, 6901)}
    world.answer(**elsewhere)
    ports = [(port, one.hello.to_shard) for _, port, one in world.dialled]
    assert sorted(ports) == [(6800, 0), (6900, 0), (6901, 1)]
    again = next(one for _, port, one in world.dialled if port == 6900)
    connection = again.connected(cast(Any, Transport()))
    answer = LinkAnswer(Verdict.ELSEWHERE, "", 2, 1, 2, 1, 33, (6900, 6901))
    connection.handler.receive(link.encode_greeting(answer))  # it is what answered: rest
    assert len(world.dialled) == 3
    world.passes(0.1)
    assert world.dialled[-1][1] == 6900


@pytest.mark.parametrize("known", ["before", "after"])
def test_a_node_founded_anew_gets_no_link(world: World, known: str) -> None:
    connect = ef.Connect(2, "two", 6800, BIRTH)
    if known == "before":
        world.links.connect(connect)
    wrong = link.prove(BIRTH + 1, world.dialled[-1][2].hello)
    connection = world.answer(proof=wrong)
    if known == "after":
        assert not cast(Any, connection.transport).closed
        world.links.connect(connect)
    assert cast(Any, connection.transport).closed
    assert "another data folder" in world.told[-1]
    world.passes(0.1)
    linked(world)
    assert world.heard[-1] == ev.LinkOpened(THERE, 1, 33, 1)


def test_a_node_that_answers_for_another_gets_no_link(world: World) -> None:
    world.answer(node=3)
    world.passes(0.1)
    world.answer(verdict=Verdict.STRANGER, reason="this is node 3, not 2", node=3)
    assert world.heard == []
    assert world.told == [
        "shard 0 of node 2 has no link yet: two:6800 is shard 0 of node 3",
        "shard 0 of node 2 has no link yet: two:6800 refused it: this is node 3, not 2",
    ]


def test_a_node_that_left_is_dialled_no_more(world: World) -> None:
    connections = linked(world)
    world.links.disconnect(ef.Disconnect(2))
    world.passes(0)
    assert world.heard[-1] == ev.LinkClosed(THERE)
    for connection in connections:
        assert cast(Any, connection.transport).closed
        connection.handler.lost("")
    world.passes(10)
    assert len(world.dialled) == 3


@pytest.mark.parametrize("known", [True, False])
def test_who_was_left_behind_by_a_promotion_hears_of_it_from_a_node_of_the_system(
    world: World, known: bool
) -> None:
    """Anybody can answer at an address: only the folder that is the node counts."""
    if known:
        world.links.connect(ef.Connect(2, "two", 6800, BIRTH))
    proof = link.prove(BIRTH, world.dialled[-1][2].hello)
    world.answer(verdict=Verdict.REMOVED, reason="it was left behind", proof=proof, lineage=3)
    assert world.heard == ([ev.Outlived(2, 3)] if known else [])
    assert "it was left behind" in world.told[-1]


def test_nobody_else_says_that_a_node_was_left_behind(world: World) -> None:
    world.links.connect(ef.Connect(2, "two", 6800, BIRTH))
    for proof in (b"", link.prove(BIRTH + 1, world.dialled[-1][2].hello)):
        world.answer(verdict=Verdict.REMOVED, reason="you are", proof=proof, lineage=3)
        world.passes(1)
    assert world.heard == []
