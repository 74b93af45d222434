"""What becomes of the shards of a node: who is told, joined, killed, and started again."""

from __future__ import annotations

import logging

import pytest

from weir.host.crew import (
    ENDS_MAX,
    ENDS_WITHIN_SECONDS,
    LOOKS_MISSED_MAX,
    Action,
    Crew,
    DiskGone,
    Join,
    Kill,
    NodeFailed,
    Tell,
)

HANG_LOOKS = 10


def made(shards: int = 2, up: bool = True) -> Crew:
    crew = Crew(shards, float(HANG_LOOKS), 1.0, 0.1, logging.getLogger("test"))
    for shard in range(shards if up else 0):
        crew.started(shard)
        crew.served(shard)
    return crew


def told(shards: int, away: tuple[int, ...], silent: tuple[int, ...] = ()) -> list[Action]:
    return [Tell(shard, away, silent) for shard in range(shards)]


def looked(crew: Crew, looks: int, but: int) -> list[Action]:
    """Look so often; all but one are heard of meanwhile."""
    found: list[Action] = []
    for _ in range(looks):
        found += crew.look()
        found += crew.heard(1 - but)
    return found


def test_a_process_is_joined_with_all_that_are_there_both_ways() -> None:
    crew = made(3, up=False)
    assert crew.started(0) == [Tell(0, (), ())]
    assert crew.started(2) == [Tell(2, (), ()), Join(2, 0), Join(0, 2)]
    assert crew.served(0) == [Tell(0, (1, 2), ()), Tell(2, (1, 2), ())]
    assert crew.started(1)[1:] == [Join(1, 0), Join(0, 1), Join(1, 2), Join(2, 1)]


def test_others_hear_of_who_ends_and_of_who_serves_again() -> None:
    crew = made()
    assert crew.gone(1) == [Tell(0, (1,), ())]
    assert not crew.is_there(1)
    assert crew.started(1) == [Tell(1, (1,), ()), Join(1, 0), Join(0, 1)]
    assert crew.served(1) == told(2, ())


def test_who_stands_still_is_told_of_then_killed() -> None:
    crew = made()
    assert looked(crew, LOOKS_MISSED_MAX - 1, but=1) == []
    assert crew.look() == told(2, (1,), (1,))
    crew.heard(0)
    assert looked(crew, HANG_LOOKS - LOOKS_MISSED_MAX - 1, but=1) == []
    assert crew.look() == [Kill(1)]


def test_who_goes_on_gets_trunks_again_and_nobody_else() -> None:
    crew = made()
    looked(crew, LOOKS_MISSED_MAX, but=1)
    assert crew.heard(1) == [*told(2, ()), Join(1, 0), Join(0, 1)]
    assert crew.heard(1) == []


def test_nobody_is_joined_with_who_stands_still() -> None:
    crew = made()
    looked(crew, LOOKS_MISSED_MAX, but=1)
    crew.gone(0)
    assert crew.started(0) == [Tell(0, (0, 1), (1,))]


def test_who_is_not_up_yet_may_take_its_time() -> None:
    crew = made(up=False)
    crew.started(0)
    assert [crew.look() for _ in range(2 * HANG_LOOKS)][1:] == [[]] * (2 * HANG_LOOKS - 1)


def test_a_broken_trunk_is_replaced_unless_an_end_is_another_process() -> None:
    crew = made()
    trunk, seconds = crew.lost(0, 1)
    assert seconds > 0
    assert crew.replace(trunk) == [Join(0, 1)]
    looked(crew, LOOKS_MISSED_MAX, but=1)
    assert crew.replace(trunk) == [], "it gets all of them when it goes on"
    crew.heard(1)
    crew.gone(1)
    assert crew.replace(trunk) == []
    crew.started(1)
    assert crew.replace(trunk) == [], "it was given that when it started"


def test_a_shard_is_started_again_later_each_time_until_that_makes_no_sense() -> None:
    crew = made()
    pauses = [crew.again(1, "SIGKILL", False, None, float(at)) for at in range(ENDS_MAX - 1)]
    assert pauses == [0.1, 0.2, 0.4, 0.8]
    with pytest.raises(NodeFailed, match=r"shard 1 ended 5 times within 60 s, .* by exit code 9"):
        crew.again(1, "exit code 9", False, None, float(ENDS_MAX))


def test_ends_of_long_ago_do_not_count() -> None:
    crew = made()
    for at in range(3 * ENDS_MAX):
        assert crew.again(1, "SIGKILL", False, None, at * ENDS_WITHIN_SECONDS / 3) <= 0.8


def test_a_failed_disk_and_words_of_its_own_end_the_node_at_once() -> None:
    crew, said = made(), OSError(98, "taken")
    with pytest.raises(DiskGone, match="shard 1: its disk failed"):
        crew.again(1, "exit code 74", True, said, 0.0)
    with pytest.raises(OSError, match="taken") as failed:
        crew.again(1, "exit code 1", False, said, 0.0)
    assert failed.value is said
