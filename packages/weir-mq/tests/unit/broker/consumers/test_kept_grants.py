"""What a session of a relay held when it ended is kept for its consumer, for a while."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from weir.broker.api.events import Closed
from weir.broker.consumers.ended_sessions import EndedSessions
from weir.errors import StaleGrant
from weir.model.limits import GRANTS_KEPT_MS
from weir.model.topic import AckOutcome, Mode
from weir.protocol.client import messages as m
from weir.testing.memory_node import ShiftedTime

TOKEN, OTHER = bytes(16), bytes([1] * 16)
LEASE_MS = 60_000
MODES = pytest.mark.parametrize("mode", [Mode.SHARED, Mode.KEYED, Mode.ORDERED])


class Crew:
    """A topic of ten messages, one a batch, and consumers in sessions 1 to 4."""

    def __init__(self, rig: Any, mode: Mode = Mode.SHARED) -> None:
        self.rig = rig
        for session in (1, 2, 3, 4):
            rig.connect(session)
        info = rig.topic(1)
        self.at, self.mode, self.moves = info.addresses[0], mode, 0
        producer = rig.answer(1, m.OpenProducer())
        for n in range(10):
            rig.answer(1, rig.batch(info, producer, n, b"m%d" % n))

    def pull(
        self, session: int, most: int = 3, token: bytes = TOKEN, begun: Any = (), relay: bool = True
    ) -> Any:
        pull = m.Pull(
            self.at, "crew", most, 1 << 20, 0, LEASE_MS, self.mode, [*begun],
            offsets_only=bool(token) and relay, token=token,
        )  # fmt: skip
        return self.rig.answer(session, pull)

    def move(
        self, session: int, *fences: int, token: bytes = TOKEN, begun: Any = (), number: int = 0
    ) -> Any:
        moved = self.answer_to_move(session, *fences, token=token, begun=begun, number=number)
        assert isinstance(moved, m.GrantsMoved)
        return moved.fences

    def answer_to_move(
        self, session: int, *fences: int, token: bytes = TOKEN, begun: Any = (), number: int = 0
    ) -> Any:
        self.moves += 1
        number = number or self.moves
        move = m.MoveGrants(self.at, "crew", token, number, [*fences], [*begun])
        return self.rig.answer(session, move)

    def extend(self, session: int, *fences: int) -> Any:
        return self.rig.answer(session, m.Extend(self.at, "crew", [*fences], LEASE_MS))

    def ack(self, session: int, *ranges: tuple[int, int, int]) -> Any:
        return self.rig.answer(session, m.Ack(self.at, "crew", [*ranges], exact=True))

    def end(self, session: int) -> None:
        self.rig.handle(Closed(session))
        self.rig.settle()


def span(granted: Any) -> tuple[int, int]:
    return granted.offset, granted.next_offset


@MODES
def test_a_consumer_keeps_its_grants_by_another_session(rig: Any, mode: Mode) -> None:
    crew = Crew(rig, mode)
    held = crew.pull(1)
    ahead = crew.pull(1, begun=[(0, 1)])
    assert (span(held), span(ahead)) == ((0, 3), (3, 6))
    crew.end(1)
    if mode is Mode.SHARED:
        assert span(crew.pull(2, most=1, token=b"")) == (6, 7)
    ((_, one), (_, two)) = crew.move(3, held.fence, ahead.fence, begun=[(0, 1)])
    assert one not in (held.fence, ahead.fence, two)
    assert crew.ack(3, (one, 0, 3)).late == ()
    assert crew.ack(3, (two, 3, 5)).late == ()
    # The rest is granted again when its consumer is gone for good, as often as it was tried.
    crew.end(3)
    rig.tick(GRANTS_KEPT_MS)
    rig.settle()
    again = crew.pull(4, token=b"")
    assert (again.offset, again.attempts) == (5, 2)


@MODES
def test_nobody_acks_by_the_number_of_before(rig: Any, mode: Mode) -> None:
    crew = Crew(rig, mode)
    held = crew.pull(1)
    crew.end(1)
    ((asked, now),) = crew.move(3, held.fence)
    assert asked == held.fence
    late = crew.ack(2, (held.fence, 0, 3)).late
    assert [row[3] for row in late] == [AckOutcome.EXPIRED]
    assert crew.ack(2, (now, 0, 3)).late == ()


def test_a_move_counts_no_attempt_and_no_time(rig: Any) -> None:
    crew = Crew(rig)
    held = crew.pull(1)
    rig.tick(LEASE_MS // 2)
    crew.end(1)
    crew.move(3, held.fence, begun=[(0, 3)])
    rig.tick(LEASE_MS // 2 - 1)
    assert span(crew.pull(2, token=b"")) == (3, 6)
    rig.tick(1)
    again = crew.pull(2, token=b"")
    assert (span(again), again.attempts) == ((0, 3), 2)


@pytest.mark.parametrize("mode", [Mode.KEYED, Mode.ORDERED])
def test_where_order_matters_what_was_moved_goes_on(rig: Any, mode: Mode) -> None:
    crew = Crew(rig, mode)
    held = crew.pull(1)
    crew.end(1)
    crew.move(3, held.fence, begun=[(0, 3)])
    assert span(crew.pull(3, begun=[(0, 3)])) == (3, 6)


def test_what_is_not_named_goes_to_others_at_once(rig: Any) -> None:
    crew = Crew(rig)
    held, lost = crew.pull(1), crew.pull(1)
    crew.end(1)
    assert len(crew.move(3, held.fence)) == 1
    assert span(crew.pull(2, token=b""))[0] == lost.offset
    assert crew.move(3, lost.fence) == ()


@pytest.mark.parametrize("relay", [True, False], ids=["of offsets", "without"])
def test_a_relay_that_tells_what_is_begun_is_a_relay_still(rig: Any, relay: bool) -> None:
    """Between two pulls a consumer works for long, and its relay tells on what."""
    crew = Crew(rig)
    held = crew.pull(1)
    assert crew.pull(1, most=0, begun=[(0, 1)], relay=relay).fence == 0
    crew.end(1)
    assert span(crew.pull(2, token=b"")) == (3, 6), "what the consumer works on is kept for it"
    assert len(crew.move(3, held.fence, begun=[(0, 1)])) == 1


def test_what_nobody_comes_for_goes_to_others_after_a_while(rig: Any) -> None:
    crew = Crew(rig)
    held = crew.pull(1, most=10)
    crew.end(1)
    waits = m.Pull(crew.at, "crew", 1, 1 << 20, 60_000, LEASE_MS)
    number = rig.ask(2, waits)
    rig.tick(GRANTS_KEPT_MS - 1)
    rig.settle()
    assert dict(rig.replies[2]).get(number) is None
    rig.tick(1)
    rig.settle()
    assert span(dict(rig.replies[2])[number]) == (0, 1)
    assert crew.move(3, held.fence) == ()


def test_what_was_kept_goes_to_who_asks_after_a_while(rig: Any) -> None:
    crew = Crew(rig)
    crew.pull(1, most=10)
    crew.end(1)
    assert crew.pull(2, token=b"").fence == 0
    rig.tick(GRANTS_KEPT_MS)
    rig.settle()
    assert crew.pull(2, token=b"").offset == 0


def test_who_moves_twice_or_asks_again_keeps_them(rig: Any) -> None:
    crew = Crew(rig)
    held = crew.pull(1)
    crew.end(1)
    moved = crew.move(3, held.fence)
    assert crew.move(3, held.fence) == moved
    crew.end(3)
    ((asked, last),) = crew.move(4, held.fence)
    assert asked == held.fence
    assert crew.ack(4, (last, 0, 3)).late == ()


def test_a_session_that_is_there_yet_is_granted_nothing_more(rig: Any) -> None:
    crew = Crew(rig)
    held = crew.pull(1, most=10)
    waits = m.Pull(crew.at, "crew", 1, 1 << 20, 60_000, LEASE_MS, offsets_only=True, token=TOKEN)
    number = rig.ask(1, waits)
    rig.settle()
    assert len(crew.move(3, held.fence)) == 1
    assert dict(rig.replies[1])[number].fence == 0
    assert crew.ack(1, (held.fence, 0, 10)).late


@pytest.mark.parametrize("how", ["without a token", "at the core", "with another token"])
def test_what_others_held_is_not_moved(rig: Any, how: str) -> None:
    crew = Crew(rig)
    if how == "at the core":
        held = crew.pull(1, relay=False)
    else:
        held = crew.pull(1, token=b"" if how == "without a token" else TOKEN)
    crew.end(1)
    token = {"without a token": b"", "at the core": TOKEN}.get(how, OTHER)
    assert crew.move(3, held.fence, token=token) == ()
    first, _ = span(crew.pull(2, token=b""))
    assert first == (3 if how == "with another token" else 0)


def test_what_was_acked_meanwhile_is_not_moved(rig: Any) -> None:
    crew = Crew(rig)
    held = crew.pull(1)
    crew.end(1)
    assert crew.ack(2, (held.fence, 0, 1)).late == ()
    ((_, now),) = crew.move(3, held.fence)
    assert crew.ack(3, (now, 1, 3)).done == 3
    assert structs.asdict(crew.pull(3))["offset"] == 3


@pytest.mark.parametrize("there", [False, True])
def test_a_move_that_is_late_takes_nothing_back(rig: Any, there: bool) -> None:
    """It was sent by the connection of before, and comes behind that by the next one."""
    crew = Crew(rig)
    held = crew.pull(1)
    if not there:
        crew.end(1)
    ((_, now),) = crew.move(3, held.fence, number=2)
    waits = m.Pull(crew.at, "crew", 1, 1 << 20, 60_000, LEASE_MS, offsets_only=True, token=TOKEN)
    ahead = crew.pull(3, most=10)
    number = rig.ask(3, waits)
    rig.settle()
    late = crew.answer_to_move(1 if there else 4, held.fence, ahead.fence, number=1)
    assert (late.code, late.detail) == (StaleGrant.code, 0)
    assert number not in dict(rig.replies[3]), "its pull waits"
    assert crew.ack(3, (now, 0, 3), (ahead.fence, 3, 10)).late == ()


def test_a_move_that_found_nothing_outruns_earlier_ones_too(rig: Any) -> None:
    crew = Crew(rig)
    assert crew.move(3, number=2) == ()
    held = crew.pull(3)
    assert crew.answer_to_move(4, held.fence, number=1).code == StaleGrant.code
    assert crew.ack(3, (held.fence, 0, 3)).late == ()


def test_the_last_move_may_come_again_and_none_before_it(rig: Any) -> None:
    crew = Crew(rig)
    held = crew.pull(1)
    crew.end(1)
    moved = crew.move(3, held.fence, number=2)
    assert crew.move(3, held.fence, number=2) == moved
    assert crew.answer_to_move(3, held.fence, number=1).code == StaleGrant.code


def test_the_number_of_a_consumer_that_is_gone_is_forgotten(rig: Any) -> None:
    """Else a leader would remember each consumer that ever moved."""
    crew = Crew(rig)
    crew.move(3, number=5)
    crew.end(3)
    assert crew.move(4, number=1) == ()


def test_numbers_of_moves_are_of_one_consumer(rig: Any) -> None:
    crew = Crew(rig)
    held = crew.pull(1, token=OTHER)
    crew.end(1)
    crew.move(3, number=2)
    assert len(crew.move(4, held.fence, token=OTHER, number=1)) == 1


@pytest.mark.parametrize("how", ["nothing to move", "from a relay"])
def test_who_goes_on_without_a_relay_keeps_nothing(rig: Any, how: str) -> None:
    crew = Crew(rig)
    if how == "from a relay":
        held = crew.pull(1)
        crew.end(1)
        assert len(crew.move(3, held.fence)) == 1
        assert span(crew.pull(3, relay=False)) == (3, 6)
    else:
        assert span(crew.pull(3, relay=False)) == (0, 3)
        assert crew.move(3) == ()
    crew.end(3)
    again = crew.pull(2, token=b"")
    assert (again.offset, again.attempts) == (0, 2)


def test_what_is_held_without_a_relay_is_not_moved(rig: Any) -> None:
    crew = Crew(rig)
    held = crew.pull(1, relay=False)
    crew.move(1)
    assert crew.move(3, held.fence) == ()
    assert crew.ack(1, (held.fence, 0, 3)).late == ()


@MODES
def test_nobody_extends_by_the_number_of_before(rig: Any, mode: Mode) -> None:
    crew = Crew(rig, mode)
    held = crew.pull(1)
    crew.end(1)
    ((_, now),) = crew.move(3, held.fence, begun=[(0, 3)])
    rig.tick(LEASE_MS - 1)
    for session in (2, 3):
        refused = crew.extend(session, held.fence)
        assert (refused.code, refused.detail) == (StaleGrant.code, held.fence)
    rig.tick(1)
    assert span(crew.pull(2, token=b"")) == (0, 3), "its lease has ended"
    assert crew.ack(3, (now, 0, 3)).late


def test_a_lease_is_extended_by_the_number_of_now(rig: Any) -> None:
    crew = Crew(rig)
    held = crew.pull(1)
    crew.end(1)
    ((_, now),) = crew.move(3, held.fence, begun=[(0, 3)])
    rig.tick(LEASE_MS - 1)
    assert isinstance(crew.extend(3, now), m.Extended)
    rig.tick(1)
    assert span(crew.pull(2, token=b"")) == (3, 6)
    assert crew.ack(3, (now, 0, 3)).late == ()


@MODES
def test_what_a_consumer_held_that_leaves_goes_to_others_with_its_session(
    rig: Any, mode: Mode
) -> None:
    crew = Crew(rig, mode)
    held = crew.pull(1)
    assert crew.move(1, token=b"") == ()
    assert span(crew.pull(2, token=b"")) != span(held), "it may settle that until it ends"
    crew.end(1)
    again = crew.pull(2, token=b"", begun=[(3, 6)])
    assert (again.offset, again.attempts) == (0, 2)


@pytest.mark.parametrize("what", ["a pull", "a report", "a move"])
def test_what_comes_behind_that_a_consumer_leaves_keeps_nothing(rig: Any, what: str) -> None:
    """It was under way, or a relay tells what was begun."""
    crew = Crew(rig)
    if what == "a move":
        held = crew.pull(2)
        crew.end(2)
    else:
        held = crew.pull(1)
    crew.move(1, token=b"")
    match what:
        case "a pull":
            assert span(crew.pull(1)) == (3, 6)
        case "a report":
            crew.pull(1, most=0, begun=[(0, 1)])
        case _:
            assert len(crew.move(1, held.fence)) == 1
    crew.end(1)
    assert crew.pull(3, token=b"").offset == 0


def test_who_leaves_takes_nothing_from_another_session_of_its_token(rig: Any) -> None:
    """A word that comes late, by the connection of before, concerns that alone."""
    crew = Crew(rig)
    held = crew.pull(1)
    ahead = crew.pull(3)
    crew.end(1)
    crew.move(2, token=b"")
    crew.end(2)
    assert [asked for asked, _ in crew.move(3, held.fence, ahead.fence)] == [
        ahead.fence,
        held.fence,
    ]


def test_a_session_that_has_left_and_ended_is_forgotten() -> None:
    """Else a leader would remember each consumer that ever left."""
    ended = EndedSessions(ShiftedTime())
    ended.show(1, TOKEN, behind_relay=True)
    ended.leave(1)
    assert not ended.keep(1)
    ended.forget(1)
    ended.show(1, TOKEN, behind_relay=True)
    assert ended.keep(1)
