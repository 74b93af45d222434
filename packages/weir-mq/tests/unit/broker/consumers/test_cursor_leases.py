"""Clusters that read a topic in total order: one turn at a time, one cursor, late moves refused."""

from __future__ import annotations

from typing import Any

import pytest

import weir_raft as raft
from weir.broker.api.events import Closed
from weir.broker.state.clusters import Cursors
from weir.errors import BadRequest, Overloaded, StaleGrant, UnknownCluster
from weir.model.topic import Mode
from weir.order.clock import milliseconds_of, stamp_at
from weir.protocol.client import admin as a
from weir.protocol.client import messages as m

LEASE_MS = 1_000


class Line:
    """Consumers in sessions 1 to 3 of a cluster that reads a topic of three partitions."""

    def __init__(self, rig: Any) -> None:
        self.rig = rig
        for session in (1, 2, 3):
            rig.connect(session)
        self.info = rig.topic(1, partitions=3)
        self.address = self.info.addresses[0]

    def take(self, session: int, wait_ms: int = 0, offsets: tuple[int, ...] = (0, 0, 0)) -> Any:
        return self.rig.answer(session, self.asks(wait_ms, offsets))

    def asks(self, wait_ms: int, offsets: tuple[int, ...] = (0, 0, 0)) -> m.TakeTurn:
        return m.TakeTurn(self.address, "crew", offsets, LEASE_MS, wait_ms)

    def move(self, session: int, fence: int, *offsets: int, **how: Any) -> Any:
        lease = how.pop("lease_ms", LEASE_MS)
        request = m.MoveCursor(self.address, "crew", fence, offsets, lease, **how)
        return self.rig.answer(session, request)

    def reply(self, session: int, number: int) -> Any:
        found = [reply for asked, reply in self.rig.replies[session] if asked == number]
        return found[0] if found else None

    def waits(self, session: int) -> int:
        number = self.waits_on(session)
        self.rig.settle()
        return number

    def waits_on(self, session: int) -> int:
        """As `waits`, and nothing is durable yet."""
        return int(self.rig.ask(session, self.asks(60_000)))

    def stamps_ahead(self, ms: int) -> None:
        """Publish what comes after something that was stamped so far ahead."""
        seen = stamp_at(self.rig.time.wall_ms() + ms)
        grant = self.rig.answer(3, m.OpenProducer())
        batch = self.rig.batch(self.info, grant, 0, b"x", seen=seen)
        assert self.rig.answer(3, batch).stamp > seen


@pytest.fixture
def line(rig: Any) -> Line:
    return Line(rig)


def refused(reply: Any, kind: type) -> bool:
    return isinstance(reply, m.Refusal) and reply.code == kind.code  # type: ignore[attr-defined]


def test_a_new_cluster_begins_where_its_first_consumer_says(line: Line) -> None:
    turn = line.take(1, offsets=(4, 5, 6))
    assert turn.fence > 0
    assert (turn.offsets, turn.attempts) == ((4, 5, 6), 1)
    line.move(1, turn.fence, 4, 7, 6, ends=True, lease_ms=0)
    assert line.take(2, offsets=(0, 0, 0)).offsets == (4, 7, 6)


def test_one_has_the_turn_and_the_next_goes_on_at_the_cursor(line: Line) -> None:
    first = line.take(1)
    assert line.take(2) == m.Turn(0)
    waiting = line.waits(2)
    assert isinstance(line.move(1, first.fence, 3, 1, 0), m.Moved)
    assert line.reply(2, waiting) is None
    assert isinstance(line.move(1, first.fence, 5, 1, 2, ends=True, lease_ms=0), m.Moved)
    second = line.reply(2, waiting)
    assert second.fence > first.fence
    assert second.offsets == (5, 1, 2)
    assert refused(line.move(1, first.fence, 9, 9, 9), StaleGrant), "its turn is over"
    line.rig.handle(Closed(2))
    line.rig.settle()
    assert line.take(3).offsets == (5, 1, 2)


def over(reply: Any, fence: int) -> bool | None:
    """Whether a refusal says that all was done in the turn; None if it is another refusal."""
    assert refused(reply, StaleGrant)
    return {fence: False, -fence: True}.get(reply.detail)


def test_a_move_whose_answer_was_lost_is_told_that_it_was_done(line: Line) -> None:
    turn = line.take(1)
    line.move(1, turn.fence, 2, 1, 0)
    waiting = line.waits(2)
    line.rig.handle(Closed(1))  # with the answer under way
    line.rig.connect(1)
    assert over(line.move(1, turn.fence, 2, 1, 0), turn.fence), "the turn is nobody's yet"
    line.rig.settle()
    after = line.reply(2, waiting)
    line.move(2, after.fence, 9, 9, 9)
    for _ in range(2):
        assert over(line.move(1, turn.fence, 2, 1, 0), turn.fence)
        assert over(line.move(1, turn.fence, 1), turn.fence), "one that was sent before"
        assert over(line.move(1, turn.fence, 2, 2, 0), turn.fence) is False
        assert over(line.move(1, turn.fence, 2, 1, 0, ends=True), turn.fence) is False
    assert line.move(2, after.fence, 9, 9, 9).deadline > 0, "it has the turn still"


def test_a_turn_given_back_whose_answer_was_lost_is_told_so(line: Line) -> None:
    turn = line.take(1)
    line.move(1, turn.fence, 2, 1, 0, ends=True, lease_ms=700, untried=True)
    line.rig.handle(Closed(1))
    line.rig.connect(1)

    def again(**how: Any) -> bool | None:
        how = {"ends": True, "lease_ms": 700, "untried": True, **how}
        return over(line.move(1, turn.fence, 2, 1, 0, **how), turn.fence)

    assert again()
    assert again(lease_ms=701) is False
    assert again(untried=False) is False
    assert line.take(2) == m.Turn(0), "it is held back, as was asked for"
    line.rig.tick(701)
    line.rig.settle()
    assert line.take(2).fence
    assert again()
    line.rig.answer(3, m.SeekCursor(line.address, "crew", (0, 0, 0)))
    assert again() is False, "a seek begins anew"


def test_a_restart_knows_what_the_last_turn_did(line: Line) -> None:
    turn = line.take(1)
    line.move(1, turn.fence, 2, 1, 0, ends=True, lease_ms=0)
    _, partition = line.rig.shard.topics.partition(line.address.group)
    cursors = partition.state.cursors
    (cursor,) = Cursors.decode(cursors.encode()).values()
    assert cursor == cursors["crew"]
    assert cursor.was_done(turn.fence, (2, 1), None)
    assert not cursor.was_done(turn.fence, (2, 2), None)


def test_few_turns_that_are_over_are_remembered(line: Line) -> None:
    fences = []
    for _ in range(20):
        turn = line.take(1)
        line.move(1, turn.fence, 1, 1, 1, ends=True, lease_ms=0)
        fences.append(turn.fence)
    told = [over(line.move(1, fence, 1, 1, 1), fence) for fence in fences]
    assert told == [False] * 4 + [True] * 16


def test_a_turn_lasts_while_it_is_kept(line: Line) -> None:
    first = line.take(1)
    waiting = line.waits(2)
    for _ in range(4):
        line.rig.tick(LEASE_MS - 100)
        line.rig.settle()
        assert isinstance(line.move(1, first.fence, 1, 0, 0), m.Moved)
    line.rig.tick(LEASE_MS + 1)
    line.rig.settle()
    assert line.reply(2, waiting).offsets == (1, 0, 0)


def test_a_turn_lasts_though_an_earlier_holder_goes_while_it_is_given(line: Line) -> None:
    line.take(1)
    line.rig.tick(LEASE_MS + 1)
    line.rig.handle(Closed(1))  # to be let go by an entry that is not durable yet
    second = line.waits_on(2)
    waiting = line.waits(3)
    assert line.reply(2, second).fence > 0
    line.rig.tick()
    line.rig.settle()
    assert line.reply(3, waiting) is None


def test_a_turn_lasts_though_the_one_before_is_given_back_late(line: Line) -> None:
    turn = line.take(1)
    line.rig.tick(LEASE_MS + 1)
    line.rig.ask(1, m.MoveCursor(line.address, "crew", turn.fence, (), 0, ends=True))
    second = line.waits_on(2)
    waiting = line.waits(3)
    assert line.reply(2, second).fence > turn.fence
    line.rig.tick()
    line.rig.settle()
    assert line.reply(3, waiting) is None


def test_a_turn_lasts_while_the_cluster_pauses(line: Line) -> None:
    turn = line.take(1)
    waiting = line.waits(2)
    for paused in (True, False):
        line.rig.answer(3, a.PauseCluster(line.address, "crew", paused))
    assert line.reply(2, waiting) is None
    assert isinstance(line.move(1, turn.fence, 1, 0, 0), m.Moved)
    line.rig.tick(LEASE_MS + 1)
    line.rig.settle()
    assert line.reply(2, waiting).offsets == (1, 0, 0)


def test_a_move_that_comes_behind_a_later_one_takes_nothing_back(line: Line) -> None:
    turn = line.take(1)
    line.move(1, turn.fence, 5, 1, 0)
    assert isinstance(line.move(1, turn.fence, 3, 1), m.Moved), "all of that is done"
    line.rig.handle(Closed(1))
    line.rig.settle()
    assert line.take(2).offsets == (5, 1, 0)


def test_a_new_leader_lets_a_turn_last_though_stamps_are_ahead_of_the_time(line: Line) -> None:
    turn = line.take(1)
    line.stamps_ahead(900)
    line.rig.boot()
    line.rig.connect(2)
    waiting = line.waits(2)
    line.rig.tick(LEASE_MS - 100)
    line.rig.settle()
    assert line.reply(2, waiting) is None
    line.rig.tick(101)
    line.rig.settle()
    assert line.reply(2, waiting).fence > turn.fence


def test_a_new_leader_holds_back_no_longer_though_nothing_was_stamped_since(line: Line) -> None:
    turn = line.take(1)
    line.move(1, turn.fence, 0, 0, 0, ends=True, lease_ms=60_000)
    line.rig.time.pass_ms(59_000)
    line.rig.boot()
    line.rig.connect(2)
    waiting = line.waits(2)
    assert line.reply(2, waiting) is None
    line.rig.tick(1_100)
    line.rig.settle()
    assert line.reply(2, waiting).fence > turn.fence


def test_a_consumer_that_goes_leaves_its_turn_and_its_place_in_line(line: Line) -> None:
    line.take(1)
    gone, stays = line.waits(2), line.waits(3)
    line.rig.handle(Closed(2))
    line.rig.handle(Closed(1))
    line.rig.settle()
    assert line.reply(2, gone) is None
    assert line.reply(3, stays).fence > 0


def test_one_who_withdraws_has_no_turn(line: Line) -> None:
    turn = line.take(1)
    gone, stays = line.waits(2), line.waits(3)
    assert line.rig.answer(2, m.Withdraw(line.address, "crew")) == m.Withdrawn()
    assert (line.reply(2, gone).fence, line.reply(3, stays)) == (0, None)
    line.move(1, turn.fence, 0, 0, 0, ends=True, lease_ms=0)
    assert line.reply(3, stays).fence > 0


def test_a_turn_given_to_one_that_has_gone_meanwhile_goes_on(line: Line) -> None:
    line.rig.ask(1, line.asks(0))  # proposed, not durable yet
    line.rig.handle(Closed(1))
    line.rig.settle()
    assert line.take(2).fence > 0


def test_attempts_count_turns_that_did_not_get_on(line: Line) -> None:
    for attempt in (1, 2):
        turn = line.take(1)
        assert turn.attempts == attempt
        line.move(1, turn.fence, 0, 0, 0, ends=True, lease_ms=0)
    turn = line.take(1)
    line.move(1, turn.fence, 0, 0, 0, ends=True, untried=True, lease_ms=0)
    turn = line.take(1)
    assert turn.attempts == 3
    line.move(1, turn.fence, 1, 0, 0)
    line.move(1, turn.fence, 1, 0, 0, ends=True, lease_ms=0)
    assert line.take(1).attempts == 2, "the next message was begun in the last turn"


def test_a_turn_that_is_held_back_is_nobodys_meanwhile(line: Line) -> None:
    turn = line.take(1)
    line.move(1, turn.fence, 0, 0, 0, ends=True, lease_ms=5_000)
    assert line.take(2) == m.Turn(0)
    waiting = line.waits(2)
    line.rig.tick(4_900)
    line.rig.settle()
    assert line.reply(2, waiting) is None
    line.rig.tick(200)
    line.rig.settle()
    assert line.reply(2, waiting).attempts == 2


def test_a_seek_ends_the_turn(line: Line) -> None:
    turn = line.take(1)
    waiting = line.waits(2)
    reply = line.rig.answer(3, m.SeekCursor(line.address, "crew", (7, 8, 9)))
    assert isinstance(reply, m.Moved)
    assert line.reply(2, waiting).offsets == (7, 8, 9)
    assert refused(line.move(1, turn.fence, 1, 1, 1), StaleGrant)


def test_pause_list_and_delete_know_it(line: Line) -> None:
    turn = line.take(1)
    line.move(1, turn.fence, 2, 3, 4)
    (info,) = line.rig.answer(3, a.ListClusters(line.address, "crew")).clusters
    assert (info.offsets, info.mode, info.consumers) == ((2, 3, 4), int(Mode.ORDERED), 1)
    assert isinstance(line.rig.answer(3, a.DeleteCluster(line.address, "crew")), m.Refusal)
    line.rig.answer(3, a.PauseCluster(line.address, "crew", True))
    line.move(1, turn.fence, 2, 3, 4, ends=True, lease_ms=0)
    waiting = line.waits(2)
    assert line.reply(2, waiting) is None
    line.rig.answer(3, a.PauseCluster(line.address, "crew", False))
    line.rig.settle()
    assert line.reply(2, waiting).offsets == (2, 3, 4)
    line.rig.handle(Closed(2))
    line.rig.settle()
    assert isinstance(line.rig.answer(3, a.DeleteCluster(line.address, "crew")), a.ClusterChanged)
    assert line.take(3, offsets=(1, 1, 1)).offsets == (1, 1, 1)


def test_a_restart_keeps_the_cursor_and_the_lease(line: Line) -> None:
    turn = line.take(1)
    line.move(1, turn.fence, 2, 3, 4)
    line.rig.boot()
    for session in (1, 2):
        line.rig.connect(session)
    waiting = line.waits(2)
    assert line.reply(2, waiting) is None, "it may be at work still, at another node"
    assert isinstance(line.move(1, turn.fence, 3, 3, 4), m.Moved)
    line.rig.tick(LEASE_MS + 1)
    line.rig.settle()
    assert line.reply(2, waiting).offsets == (3, 3, 4)


def test_what_cannot_be_is_refused(line: Line) -> None:
    assert refused(line.move(1, 1, 0, 0, 0), UnknownCluster)
    other = m.TakeTurn(line.info.addresses[1], "crew", (0,), LEASE_MS, 0)
    assert refused(line.rig.answer(1, other), BadRequest)
    line.rig.answer(1, m.Pull(line.address, "shared", 1, 1 << 20, 0, LEASE_MS))
    line.rig.answer(1, a.SeekCluster(line.address, "shared", 0))
    taken = m.TakeTurn(line.address, "shared", (0, 0, 0), LEASE_MS, 0)
    assert refused(line.rig.answer(1, taken), BadRequest)
    line.take(1)
    pull = m.Pull(line.address, "crew", 1, 1 << 20, 0, LEASE_MS)
    assert refused(line.rig.answer(1, pull), BadRequest)


def test_a_turn_that_cannot_be_proposed_is_refused_and_goes_to_the_next(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:

        def refuse(self: raft.Node, data: object, size: int) -> int:
            raise raft.Overloaded("too much is under way")

        patch.setattr(raft.Node, "propose", refuse)
        assert refused(line.take(1), Overloaded)
        waiting = line.waits(2)
        line.rig.tick()
        assert refused(line.reply(2, waiting), Overloaded)
    assert line.take(3).fence > 0


def test_consumers_learn_the_time_also_where_stamps_are_ahead_of_it(line: Line) -> None:
    line.stamps_ahead(900)
    turn = line.take(1)
    ends_ms = line.rig.time.wall_ms() + LEASE_MS
    assert 0 <= ends_ms - milliseconds_of(turn.deadline) <= 1
    line.rig.time.pass_ms(10)
    kept = line.move(1, turn.fence, 1, 0, 0)
    assert isinstance(kept, m.Moved)
    assert 0 <= ends_ms + 10 - milliseconds_of(kept.deadline) <= 1
