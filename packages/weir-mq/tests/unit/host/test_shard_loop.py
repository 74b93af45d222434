"""Effects are done in order, before the shard hears of what they caused."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from weir.access.devices import FrameKeys
from weir.broker.api import effects as ef
from weir.broker.api import events as ev
from weir.broker.runtime.budget import Budget
from weir.broker.shard import Shard
from weir.host.accept_queue import ConnectionLimits
from weir.host.connections import Connections
from weir.host.logs import FlushSchedule
from weir.host.shard_loop import EventQueue, ShardLoop, with_joined_replies
from weir.model.limits import KIB
from weir.storage.log import Flush


class Network:
    found: tuple[str, ...] = ()

    def address(self, transport: Any) -> str:
        return ""

    def is_gone(self, transport: Any) -> bool:
        return False


class Noting:
    """A shard and its host, which note what they are told."""

    def __init__(self) -> None:
        self.ready = self.has_deferred = False
        self.budget = Budget(100)
        self.turn: list[Any] = []
        self.behind: list[Callable[[], None]] = []
        self.breaks = False
        self.queue = EventQueue(cast(Shard, self), FlushSchedule((), (), lambda: 0.0))
        connections: Connections[Any] = Connections(
            self.queue, self.budget, ConnectionLimits(), Network(), lambda session: None,
            lambda: 0.0, 1, logging.getLogger("test"),
        )  # fmt: skip
        self.linked: list[int] = []
        actions = {ef.Stopped: self.stopped, ef.Connect: self.turn.append}
        self.loop = ShardLoop(
            cast(Shard, self), self.queue, connections, self.linked, actions, self,
            self.behind.append,
        )  # fmt: skip

    def start(self) -> list[ef.Effect]:
        return [ef.Connect(2, "host", 1)]

    def step(self, *events: ev.Event) -> list[ef.Effect]:
        self.turn.append(events)
        if self.breaks:
            raise KeyError("planted")
        return [ef.Stopped(), ef.Connect(3, "host", 1)] if events == (ev.Stopping(),) else []

    def run_deferred(self) -> list[ef.Effect]:
        self.turn.append("settled")
        return []

    def stopped(self, effect: ef.Stopped) -> None:
        self.turn.append(effect)
        self.loop.handle(ev.Closed(7))

    def serve(self) -> None:
        self.turn.append("serves")

    def wake(self) -> None:
        self.turn.append("wakes")

    def broke(self, where: str, error: Exception) -> None:
        self.turn.append((where, str(error)))


def test_what_an_effect_causes_is_heard_behind_all_effects() -> None:
    noting = Noting()
    noting.loop.handle(ev.Stopping())
    assert noting.turn == [
        (ev.Stopping(),), ef.Stopped(), ef.Connect(3, "host", 1), "settled",
        (ev.Closed(7),), "settled",
    ]  # fmt: skip


def test_it_settles_behind_the_turn_of_a_flush() -> None:
    noting, flushed = Noting(), ev.Flushed(1, Flush(0, 0, (), ()))
    noting.loop.handle(flushed)
    assert noting.turn == [(flushed,)]
    for act in noting.behind:
        act()
    assert noting.turn == [(flushed,), "settled"]


def test_clients_are_let_in_once_the_shard_is_ready_or_linked() -> None:
    for linked in (False, True):
        noting = Noting()
        noting.loop.start()
        noting.loop.handle(ev.Ticked())
        assert noting.turn == [ef.Connect(2, "host", 1), (ev.Ticked(),), "settled"]
        if linked:
            noting.linked.append(2)
        noting.ready = not linked
        noting.turn.clear()
        for _ in range(2):
            noting.loop.handle(ev.Ticked())
        assert noting.turn == [(ev.Ticked(),), "settled", "serves", (ev.Ticked(),), "settled"]


def test_clients_are_let_in_still_when_the_shard_has_lost_its_leaders() -> None:
    noting = Noting()
    noting.ready = True
    noting.loop.start()
    assert not noting.loop.serves
    noting.loop.run()
    noting.ready = False
    noting.loop.run()
    assert noting.loop.serves


def test_of_a_shard_that_broke_nothing_is_believed() -> None:
    noting = Noting()
    noting.breaks = True
    noting.loop.handle(ev.Ticked())
    noting.loop.handle(ev.Ticked())
    assert noting.turn == [(ev.Ticked(),), ("Ticked", "'planted'")]


def test_clients_are_let_in_though_a_trunk_was_there_before_the_start() -> None:
    noting = Noting()
    noting.ready = True  # another shard's trunk has told it all, and no group is open yet
    noting.loop.handle(ev.TrunkOpened(1))
    assert "serves" not in noting.turn
    noting.loop.start()
    noting.loop.run()
    assert noting.turn.count("serves") == 1


def says(noting: Noting, session: int, size: int = 100) -> ev.Received:
    event = ev.Received(session, ())
    noting.queue.put(event)
    noting.loop.run_soon(session, size)
    return event


def turn_ends(noting: Noting) -> list[Any]:
    """Do what comes behind this turn of the host; return what the shard took since the last."""
    behind, noting.behind[:] = noting.behind[:], []
    for act in behind:
        act()
    taken, noting.turn[:] = noting.turn[:], []
    return [events for events in taken if isinstance(events, tuple)]


def test_what_several_peers_say_in_a_turn_is_taken_as_one_in_order() -> None:
    noting = Noting()
    said = [says(noting, session) for session in (1, 2, 3, 2)]
    assert noting.turn == []
    assert turn_ends(noting) == [tuple(said)]
    assert turn_ends(noting) == [], "nothing runs twice"
    later = [says(noting, session) for session in (1, 2)]
    assert turn_ends(noting) == [tuple(later)]


def test_a_peer_that_speaks_alone_is_served_at_once() -> None:
    noting = Noting()
    says(noting, 1)
    assert len(turn_ends(noting)) == 1, "somebody else may have spoken last"
    for _ in range(3):
        said = says(noting, 1)
        assert noting.turn[0] == (said,)
        assert turn_ends(noting) == [(said,)]
    other, own = says(noting, 2), says(noting, 2)
    assert noting.turn == [], "what it says behind that does not overtake"
    assert turn_ends(noting) == [(other, own)]


def test_much_that_is_said_in_a_turn_is_taken_at_once() -> None:
    noting = Noting()
    said = [says(noting, session, 64 * KIB) for session in (1, 2)]
    assert noting.turn == []
    said.append(says(noting, 3, 1))
    assert noting.turn[0] == tuple(said)
    behind = says(noting, 4, 1)
    assert len(noting.turn) == 1, "what comes then is gathered again"
    assert turn_ends(noting) == [tuple(said), (behind,)]


def test_what_the_disk_has_done_is_taken_behind_what_was_said_before() -> None:
    noting, flushed = Noting(), ev.Flushed(1, Flush(0, 0, (), ()))
    said = says(noting, 1)
    noting.loop.handle(flushed)
    assert noting.turn[0] == (said, flushed)
    behind = says(noting, 2)
    assert turn_ends(noting) == [(said, flushed), (behind,)]


def test_small_replies_to_a_peer_are_joined_in_order() -> None:
    effects: list[ef.Effect] = [
        ef.Send(1, (b"a",)), ef.Send(2, (b"b", b"c")), ef.Connect(3, "host", 1),
        ef.Send(1, (b"d", b"e")), ef.Send(2, (b"f",)), ef.Send(1, (b"g",)),
    ]  # fmt: skip
    assert with_joined_replies(effects, {1, 2}) == [
        ef.Send(1, (b"a", b"d", b"e", b"g")), ef.Send(2, (b"b", b"c", b"f")),
        ef.Connect(3, "host", 1),
    ]  # fmt: skip
    assert len(effects) == 6, "the shard may still have them"


def test_replies_to_peers_of_other_shards_are_frames_of_their_own() -> None:
    effects: list[ef.Effect] = [ef.Send(1, (b"a",)), ef.Send(1, (b"b",))]
    assert with_joined_replies(effects, {2}) == effects


def test_messages_keep_their_place_and_their_charge() -> None:
    effects: list[ef.Effect] = [
        ef.Send(1, (b"a",)), ef.Send(1, (b"b",)), ef.Send(1, (b"m", b"n"), 2),
        ef.Send(1, (b"c",)), ef.Send(1, (b"o",), 1), ef.Send(1, (b"d",)),
    ]  # fmt: skip
    assert with_joined_replies(effects, {1}) == [
        ef.Send(1, (b"a", b"b")), ef.Send(1, (b"m", b"n", b"c"), 2), ef.Send(1, (b"o", b"d"), 1),
    ]  # fmt: skip


def test_no_reply_moves_over_what_else_concerns_its_peer() -> None:
    keys = FrameKeys(b"d" * 32, b"b" * 32)
    for between in (ef.Hangup(1, "why"), ef.Answers({1: b"x"}), ef.SignFrames(1, keys)):
        effects: list[ef.Effect] = [
            ef.Send(1, (b"a",)), ef.Send(1, (b"b",)), between, ef.Send(1, (b"c",)),
        ]  # fmt: skip
        expected = [ef.Send(1, (b"a", b"b")), between, ef.Send(1, (b"c",))]
        assert with_joined_replies(effects, {1}) == expected


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 2), st.booleans())))
def test_each_peer_gets_the_same_bytes_in_the_same_order(rows: list[tuple[int, int, bool]]) -> None:
    effects: list[ef.Effect] = [
        ef.Hangup(session, str(number))
        if ends
        else ef.Send(session, (number.to_bytes(2, "big"),), charged)
        for number, (session, charged, ends) in enumerate(rows)
    ]
    joined = with_joined_replies(effects, {1, 2})
    for session in (1, 2, 3):
        assert told(joined, session) == told(effects, session)
    assert charged_by(joined) == charged_by(effects)
    assert [one for one in joined if isinstance(one, ef.Hangup)] == [
        one for one in effects if isinstance(one, ef.Hangup)
    ]


def told(effects: list[ef.Effect], session: int) -> list[Any]:
    """Return what a peer gets: bytes, and its end among them."""
    found: list[Any] = []
    for effect in effects:
        if isinstance(effect, ef.Send) and effect.session == session:
            found += effect.buffers
        elif isinstance(effect, ef.Hangup) and effect.session == session:
            found.append(effect)
    return found


def charged_by(effects: list[ef.Effect]) -> int:
    return sum(one.charged for one in effects if isinstance(one, ef.Send))
